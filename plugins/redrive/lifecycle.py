"""The states of a message and every legal move between them.

The ledger writes a state only through :func:`check`, so an edge that is not drawn here can't happen.
"""

from enum import StrEnum

from redrive.errors import IllegalMove


class State(StrEnum):
    """Where a message is; each message is in exactly one state."""

    CLASSIFIED = "classified"  # loaded from staging with a cause and a group; waits for a plan
    WAITING = "waiting"  # goes out when next_attempt_at has come
    HELD = "held"  # would go out, but canary, breaker, order or a sick destination says not now
    SENDING = "sending"  # claimed by a delivery that has not said yet how it ended
    SENT = "sent"  # the broker confirmed that it has our copy; the outcome is being observed
    UNKNOWN = "unknown"  # a delivery died between send and confirmation
    RETURNED = "returned"  # came back dead after a redelivery; about to be classified again
    PRESUMED = "presumed"  # did not come back within a window that could have seen it
    CONFIRMED = "confirmed"  # proved to be processed
    SUPPRESSED = "suppressed"  # was processed already, so it is not sent again
    ESCALATED = "escalated"  # a person decides
    RESTORING = "restoring"  # a restore hands it to the broker for its source queue, and has heard no answer yet
    DISCARDED = "discarded"  # a person decided that it is not needed
    EXPIRED = "expired"  # older than the route's give_up_after; goes to review


S = State
MOVES: dict[State, frozenset[State]] = {
    S.CLASSIFIED: frozenset({S.WAITING, S.HELD, S.SUPPRESSED, S.ESCALATED, S.RESTORING, S.DISCARDED, S.EXPIRED}),
    S.WAITING: frozenset({S.HELD, S.SENDING, S.SUPPRESSED, S.ESCALATED, S.RESTORING, S.EXPIRED}),
    S.HELD: frozenset({S.WAITING, S.SUPPRESSED, S.ESCALATED, S.RESTORING, S.EXPIRED}),
    S.SENDING: frozenset({S.SENT, S.WAITING, S.UNKNOWN, S.ESCALATED}),
    S.UNKNOWN: frozenset({S.SENDING, S.RETURNED, S.CONFIRMED, S.ESCALATED}),
    S.SENT: frozenset({S.RETURNED, S.PRESUMED, S.CONFIRMED}),
    S.PRESUMED: frozenset({S.CONFIRMED, S.RETURNED}),
    S.CONFIRMED: frozenset({S.RETURNED}),
    S.RETURNED: frozenset({S.CLASSIFIED}),
    S.SUPPRESSED: frozenset({S.ESCALATED}),
    S.ESCALATED: frozenset({S.WAITING, S.RESTORING, S.DISCARDED}),
    S.RESTORING: frozenset({S.CLASSIFIED, S.WAITING, S.HELD, S.ESCALATED, S.DISCARDED, S.EXPIRED}),
    S.EXPIRED: frozenset({S.ESCALATED, S.RESTORING, S.DISCARDED}),
    S.DISCARDED: frozenset(),
}

#: States in which nothing more will happen unless the message comes back.
FINISHED = frozenset({S.PRESUMED, S.CONFIRMED, S.SUPPRESSED, S.DISCARDED})


def check(source: State, target: State) -> None:
    """Raise :class:`IllegalMove` unless ``source -> target`` is drawn in :data:`MOVES`."""
    if target not in MOVES[source]:
        raise IllegalMove(f"{source} -> {target}; legal from {source}: {', '.join(sorted(MOVES[source])) or 'nothing'}")
