"""The copies of a load that are of messages which are known: what came back changes its attempt and its message.

A message that comes back is classified again, and the plan goes on. Where people were asked whether its last send was
made, the return answers that, and they are asked what becomes of it: also where they had discarded it, because that was
said without knowing this. Whatever they decided and is not taken up is asked again.
"""

from redrive import lifecycle
from redrive.audit_actions import Action
from redrive.ledger.delivery import counting
from redrive.ledger.engine import sql
from redrive.ledger.moves import move, record_event
from redrive.ledger.predicates import DIED, PERHAPS_SENT, listed
from redrive.ledger.review import escalations
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
#: Messages that came back are what the copy of their newest attempt says that they are now.
_CLASSIFY_AGAIN = f"""
update messages set
    state = 'classified', plan = null, reason = null, next_attempt_at = null, changed_at = :now,
    cause = incoming.cause, group_id = incoming.group_id, kind = incoming.kind, copy_id = incoming.message_id,
    deliveries = incoming.deliveries, received_at = incoming.received_at,
    dead_lettered_at = coalesce({DIED}, messages.dead_lettered_at),
    origin = coalesce(messages.origin, incoming.origin),
    doubted = false
from incoming
where
    incoming.role = 'returned' and messages.message_id = incoming.owner
    and messages.state = 'returned' and incoming.redrive_attempt = (
        select max(newest.redrive_attempt) from incoming newest
        where newest.role = 'returned' and newest.owner = messages.message_id
    )
"""
#: SQL: the attempt that came back is the last one. A late return of an earlier attempt changes that attempt only.
CURRENT = "(message_id, attempts) in (select owner, redrive_attempt from incoming where role = 'returned')"
#: What people are told of a message that comes back in this state, after they were asked.
_TOLD = {
    State.ESCALATED: "Nobody knew whether it was sent. It was, and it came back.",
    State.DISCARDED: "It was discarded while nobody knew whether it was sent. It was, and it came back.",
}


def apply(tx: RunTransaction) -> None:
    """Note at each attempt that it came back. A message whose last attempt it was is classified again."""
    if not tx.execute(sql("select 1 from incoming where role = 'returned' limit 1")).first():
        return
    note_outcomes(tx)
    _remember_asked(tx)
    why = "It came back with our id."
    for state in (State.SENT, State.PRESUMED, State.CONFIRMED, State.SUPPRESSED, State.UNKNOWN, State.TO_REVIEW):
        move(tx, state, State.RETURNED, where=f"route = :route and {CURRENT}", action=Action.RETURN, reason=why)
    for state in _TOLD:
        move(tx, state, State.RETURNED, few=_WAS_ASKED, values={"was": state}, action=Action.RETURN, reason=why)
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
    _ask_again(tx)


def note_outcomes(tx: RunTransaction) -> int:
    """The attempts that came back, of table ``incoming``, say so; how many."""
    return int(tx.execute(sql(_NOTE_RETURNS)).rowcount)


#: SQL: the messages about which people had been asked, and that were in this state.
_WAS_ASKED = "select message_id from asked where asked.state = :was"


def _remember_asked(tx: RunTransaction) -> None:
    """Which messages came back after people were asked about them, in table ``asked``. Where somebody discarded one and
    nobody knows whether its last send was made, the copy of an earlier one may be all that there is."""
    came_back = "select owner from incoming where role = 'returned'"
    tx.temporary("asked", "message_id bigint primary key, state text")
    tx.execute(
        sql(
            "insert into asked (message_id, state) select message_id, state from messages where"
            f" {tx.dialect.few('message_id', came_back)} and {tx.dialect.in_row('messages.state')} in {listed(_TOLD)}"
            f" and ({CURRENT} or (messages.state = 'discarded' and {PERHAPS_SENT}))"
        )
    )


def _ask_again(tx: RunTransaction) -> None:
    """Those about which people had been asked go before them as they are now, whatever the policy says."""
    for state, why in _TOLD.items():
        moved = move(
            tx,
            State.CLASSIFIED,
            State.TO_REVIEW,
            few=_WAS_ASKED,
            values={"was": state, "why": why},
            set_="reason = :why",
            action=Action.PUT_TO_REVIEW,
            reason=why,
        )
        if moved:
            escalations.reopen(
                tx,
                of=_WAS_ASKED,
                why="'It came back before this decision of ' || decided_by || ' was carried out: ' || decision"
                " || '. Decide again.'",
                values={"was": state},
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
