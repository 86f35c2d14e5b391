"""The words that say where things stand, each list once, and every legal move of a message between its states.

The ledger writes a state only through :func:`check`, so an edge that is not drawn here can't happen; the CHECK
constraints of its columns are made from these lists. The gates' stages are in :mod:`redrive.policy.gates`, what
``audit_events`` tells in :mod:`redrive.audit_actions`.
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
    TO_REVIEW = "to_review"  # a person is to decide; the question, with the payload, is not written yet
    ESCALATED = "escalated"  # a person decides
    RESTORING = "restoring"  # a restore hands it to the broker for its source queue, and has heard no answer yet
    RESTORE_UNKNOWN = "restore_unknown"  # a restore died before the answer: it may be in its queue; a person looks
    DISCARDED = "discarded"  # a person decided that it is not needed
    EXPIRED = "expired"  # older than the route's give_up_after; goes to review


S = State
#: Every legal move, and who makes it when (docs/states.md shows it).
MOVES: dict[State, dict[State, str]] = {
    S.CLASSIFIED: {
        S.WAITING: "plan: it is to be sent",
        S.HELD: "plan: its group's gate is not open, or the consumers of its destination are stuck",
        S.TO_REVIEW: "plan: a person has to decide. load: from a file that the ledger did not know, or with the id of"
        " another route's message, or it came back after people were asked. A restored ledger",
        S.ESCALATED: "review: a suspected copy about which somebody decided",
        S.DISCARDED: "plan: the route discards its cause. resolve: it came back to another route, which has it",
        S.EXPIRED: "plan: older than give_up_after",
        S.RESTORING: "restore: before it is handed to the broker",
    },
    S.WAITING: {
        S.SENDING: "deliver: claims it",
        S.HELD: "plan: its gate closed, or an earlier message of its key is not finished",
        S.SUPPRESSED: "deliver: the processed check found it",
        S.TO_REVIEW: "plan: the canary of its group failed, or nobody knows where it goes. deliver: it can't be read or"
        " sent. A restored ledger",
        S.ESCALATED: "plan, deliver: what a person released can't be sent, or its group keeps coming back; its question"
        " is open again",
        S.EXPIRED: "plan: older than give_up_after",
        S.RESTORING: "restore: before it is handed to the broker",
    },
    S.HELD: {
        S.WAITING: "plan, review: its gate lets it through, or the consumers are well",
        S.TO_REVIEW: "plan: the canary of its group failed, nobody knows where it goes, or a person decides once the"
        " consumers are well. A restored ledger",
        S.ESCALATED: "plan: what a person released, and its group keeps coming back; its question is open again",
        S.EXPIRED: "plan: older than give_up_after",
        S.RESTORING: "restore: before it is handed to the broker",
    },
    S.SENDING: {
        S.SENT: "deliver: its slice is closed, and the broker has it",
        S.WAITING: "deliver, recover: certainly not sent",
        S.UNKNOWN: "deliver, recover: nobody knows whether it was sent; or a resend that was not made",
    },
    S.UNKNOWN: {
        S.SENDING: "deliver: claims the same attempt again",
        S.RETURNED: "load: it came back, so it was sent. resolve: to another route",
        S.CONFIRMED: "resolve, deliver: the processed check found it",
        S.TO_REVIEW: "resolve: on_unknown asks people. plan: the canary of its group failed. deliver: its resend can't"
        " be read or sent, or is never answered",
    },
    S.SENT: {
        S.RETURNED: "load: it came back. resolve: to another route",
        S.PRESUMED: "resolve: the observation window closed without it",
        S.CONFIRMED: "resolve: the processed check found it",
    },
    S.PRESUMED: {
        S.RETURNED: "load: it came back after all. resolve: to another route",
        S.CONFIRMED: "resolve: the processed check found it",
    },
    S.CONFIRMED: {S.RETURNED: "load: it came back after all. resolve: to another route"},
    S.RETURNED: {S.CLASSIFIED: "load, resolve, in the same transaction: with the cause of its newest copy"},
    S.SUPPRESSED: {S.RETURNED: "load: it came back after all"},
    S.TO_REVIEW: {
        S.ESCALATED: "escalate: with its question, in the same transaction",
        S.SUPPRESSED: "escalate: the processed check found it",
        S.CONFIRMED: "escalate, resolve: the processed check found it, and its last send was unknown",
        S.RETURNED: "load: it came back, and its last send was unknown",
        S.RESTORING: "restore: before it is handed to the broker",
    },
    S.ESCALATED: {
        S.WAITING: "review: redeliver or edit",
        S.DISCARDED: "review: discard",
        S.RETURNED: "load: it came back, and its last send was unknown",
        S.RESTORING: "restore: before it is handed to the broker",
    },
    S.RESTORING: {
        S.DISCARDED: "restore: the broker has it",
        S.RESTORE_UNKNOWN: "restore, or the next run: there was no answer",
        **dict.fromkeys(
            (S.CLASSIFIED, S.WAITING, S.HELD, S.TO_REVIEW, S.ESCALATED, S.EXPIRED),
            "restore: the broker certainly does not have it; as it was",
        ),
    },
    S.RESTORE_UNKNOWN: {
        S.DISCARDED: "load: it came from its queue again. review: discard",
        S.ESCALATED: "review: not_there",
    },
    S.EXPIRED: {
        S.ESCALATED: "escalate: with its question, in the same transaction",
        S.RESTORING: "restore: before it is handed to the broker",
    },
    S.DISCARDED: {S.RETURNED: "load: it came back, and its last send was unknown"},
}

#: States in which nothing more will happen unless the message comes back.
FINISHED = frozenset({S.PRESUMED, S.CONFIRMED, S.SUPPRESSED, S.DISCARDED})


class Plan(StrEnum):
    """What is to be done with a message next, where its state leaves that open."""

    REQUEUE = "requeue"  # sent at once
    DELAY = "delay"  # sent after a wait that grows
    CANARY = "canary"  # sent at once, as one of the first of its group
    RELEASE = "release"  # sent because a person said so
    HOLD = "hold"  # planned again once the consumers of its destination are well
    RESEND = "resend"  # of an unknown send: the same attempt is made again
    REPEAT = "repeat"  # the same, and only while the broker would drop the second of two


#: Plans of a new attempt; an attempt remembers its own as its mode.
SENDS = (Plan.REQUEUE, Plan.DELAY, Plan.CANARY, Plan.RELEASE)
#: Plans of an unknown send.
RESENDS = (Plan.RESEND, Plan.REPEAT)
#: States with which a plan ends: whoever comes out of one is planned anew.
UNPLANNED = frozenset({S.CLASSIFIED, S.TO_REVIEW, S.ESCALATED, S.RESTORE_UNKNOWN, S.SUPPRESSED, S.DISCARDED, S.EXPIRED})


class Outcome(StrEnum):
    """What became of an attempt."""

    RETURNED = "returned"  # it came back
    PRESUMED = "presumed"  # it did not come back within a window that could have seen it
    CONFIRMED = "confirmed"  # it is proved to be processed


class Question(StrEnum):
    """What people are asked about a message."""

    FAILURE = "failure"  # it failed: what becomes of it
    SENT = "sent"  # it may have been sent already, and processed: whether to send it all the same
    SECOND_COPY = "second_copy"  # whether it is one of a message that is known
    RESTORED = "restored"  # whether a restore has put it back into its queue; also where a restore says that it has


class ReviewStatus(StrEnum):
    """Where a question to people stands."""

    OPEN = "open"  # nobody has decided
    DECIDED = "decided"  # somebody has; it is not carried out yet
    APPLIED = "applied"  # carried out, or nothing is left to decide
    REFUSED = "refused"  # it can't be carried out, and the refusal says why
    REOPENED = "reopened"  # it was not carried out, and is asked again


#: A person has to say something.
UNDECIDED = (ReviewStatus.OPEN, ReviewStatus.REFUSED, ReviewStatus.REOPENED)


class Decision(StrEnum):
    """What people can decide about a message."""

    REDELIVER = "redeliver"
    DISCARD = "discard"
    EDIT = "edit"  # redeliver with the corrected body
    NOT_THERE = "not_there"  # what a restore may have put back is not in its queue


class IssueStatus(StrEnum):
    """How far people say that they are with a failure."""

    OPEN = "open"  # nobody has taken it up; also without a word of anybody
    ACKNOWLEDGED = "acknowledged"  # somebody has seen it
    IN_PROGRESS = "in_progress"  # somebody is at it
    RESOLVED = "resolved"  # it should not happen again; if it does, it is regressed
    IGNORED = "ignored"  # until a moment


def check(source: State, target: State) -> None:
    """Raise :class:`IllegalMove` unless ``source -> target`` is drawn in :data:`MOVES`."""
    if target not in MOVES[source]:
        raise IllegalMove(f"{source} -> {target}; legal from {source}: {', '.join(sorted(MOVES[source])) or 'nothing'}")
