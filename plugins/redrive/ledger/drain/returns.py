"""The copies of a load that are of messages which are known: what came back changes its attempt and its message."""

from redrive import lifecycle
from redrive.audit_actions import Action
from redrive.ledger.delivery import counting
from redrive.ledger.engine import sql
from redrive.ledger.moves import move, record_event
from redrive.ledger.predicates import DIED
from redrive.ledger.transactions import RunTransaction
from redrive.lifecycle import State

#: Attempts that came back say so, and count for their breakers as having come back. None came back before it was
#: made: where the copy tells no time since then, it counts from now.
_NOTE_RETURNS = f"""
update redelivery_attempts set
    outcome = 'returned',
    outcome_at = case
        when incoming.dead_lettered_at >= redelivery_attempts.claimed_at then {DIED}
        else :now
    end,
    return_copy = incoming.message_id, return_kind = incoming.kind, {counting.CAME_BACK}
from incoming
where
    incoming.role = 'returned' and redelivery_attempts.message_id = incoming.owner
    and redelivery_attempts.attempt = incoming.redrive_attempt
"""
#: Messages whose last attempt came back are what the copy says that they are now.
_CLASSIFY_AGAIN = f"""
update messages set
    state = 'classified', plan = null, reason = null, next_attempt_at = null, changed_at = :now,
    cause = incoming.cause, group_id = incoming.group_id, kind = incoming.kind, copy_id = incoming.message_id,
    deliveries = incoming.deliveries, received_at = incoming.received_at,
    dead_lettered_at = coalesce({DIED}, messages.dead_lettered_at),
    origin = coalesce(messages.origin, incoming.origin)
from incoming
where
    incoming.role = 'returned' and messages.message_id = incoming.owner
    and incoming.redrive_attempt = messages.attempts and messages.state = 'returned'
"""


def apply(tx: RunTransaction) -> None:
    """Note at each attempt that it came back. A message whose last attempt it was is classified again."""
    if not tx.execute(sql("select 1 from incoming where role = 'returned' limit 1")).first():
        return
    tx.execute(sql(_NOTE_RETURNS))
    # A late return of an earlier attempt changes that attempt only.
    current = "(message_id, attempts) in (select owner, redrive_attempt from incoming where role = 'returned')"
    for state in (State.SENT, State.PRESUMED, State.CONFIRMED, State.UNKNOWN, State.TO_REVIEW):
        move(
            tx,
            state,
            State.RETURNED,
            where=f"route = :route and {current}",
            action=Action.RETURN,
            reason="It came back with our id.",
        )
    lifecycle.check(State.RETURNED, State.CLASSIFIED)
    again = tx.execute(sql(_CLASSIFY_AGAIN)).rowcount
    if again:
        record_event(
            tx,
            action=Action.CLASSIFY_AGAIN,
            source=State.RETURNED,
            target=State.CLASSIFIED,
            count=again,
        )


def keep_repeats(tx: RunTransaction) -> None:
    """Keep a row of each copy that is no message of its own."""
    tx.execute(
        sql(
            "insert into repeat_copies (copy_id, message_id, route, kind, attempt, source, broker_message_id,"
            " enqueued_at, headers_hash, seen_at) select message_id, owner, :route, role, redrive_attempt, source,"
            " broker_message_id, enqueued_at, headers_hash, :now from incoming where role is not null"
            " on conflict (copy_id) do nothing"
        )
    )
