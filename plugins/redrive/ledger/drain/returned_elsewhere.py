"""Sends that came back to another route than made them: a queue moved, or was given to that route.

Whoever loads such a copy holds its own route and not the one that sent it, so it notes the fact
(``returned_elsewhere``), and the next run of that route takes it in before it looks at what stayed away, and at its
gates. What came back is a message of the route that has it by then, and is planned or decided there
(:mod:`~redrive.ledger.drain.strangers`). The message that was sent ends with that, unless people are asked about it
too. Nobody else may end it: while its route is configured no more, it stays as it is, and nothing is sent of it.
"""

from datetime import datetime

from redrive.audit_actions import Action
from redrive.ledger.drain import copy_roles, returns, strangers
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import move
from redrive.ledger.predicates import DIED, ROUTES_HERE, listed
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.lifecycle import State

#: So many are taken in by one transaction.
PAGE = 10_000
_NOTE = f"""
insert into returned_elsewhere (message_id, attempt, route, copy_id, kind, dead_lettered_at, received_at)
select
    attempts.message_id, attempts.attempt, attempts.route, incoming.message_id, incoming.kind, {DIED},
    incoming.received_at
from incoming
inner join redelivery_attempts attempts
    on attempts.message_id = incoming.stranger and attempts.attempt = incoming.redrive_attempt
inner join messages known on known.message_id = attempts.message_id
where
    incoming.stranger is not null and incoming.role is null and {copy_roles.SAME_BODY}
    and coalesce(attempts.outcome, '') <> 'returned' and attempts.route in {ROUTES_HERE} and {strangers.COMES_BACK}
order by attempts.message_id, attempts.attempt, incoming.message_id
on conflict do nothing
"""


def note(tx: RunTransaction) -> None:
    """Within a load: what came in with the id of another route's message is the return of that route's send, if it
    names one with its body. Whether that was made its own run knows better."""
    tx.execute(sql(_NOTE))


_TAKE = """
delete from returned_elsewhere
where
    (message_id, attempt) in (
        select message_id, attempt from returned_elsewhere where route = :route order by message_id, attempt
        limit :most
    )
returning message_id, attempt, copy_id, kind, dead_lettered_at, received_at
"""
_COLUMNS = (
    "owner bigint, redrive_attempt int, message_id bigint primary key, kind text, dead_lettered_at instant,"
    " received_at instant, role text"
)
_MARK = f"""
update incoming set role = 'returned'
from redelivery_attempts attempts
where
    attempts.message_id = incoming.owner and attempts.attempt = incoming.redrive_attempt and {copy_roles.WAS_SENT}
    and coalesce(attempts.outcome, '') <> 'returned'
"""
_OVER = (State.SENT, State.PRESUMED, State.CONFIRMED, State.UNKNOWN, State.TO_REVIEW)
_WHY = """
select 'It came back to route ' || batch.route || ', and is a message of that one: it is decided there.'
from incoming inner join staging_batches batch on batch.batch_id = incoming.message_id / 1048576
where incoming.role = 'returned' and incoming.owner = messages.message_id
and incoming.redrive_attempt = messages.attempts
"""


def take_in(ledger: Ledger, lease: RouteLease, now: datetime) -> int:
    """Sends of the route that came back to other ones say so, and count for its gates; how many."""
    taken, more = 0, True
    while more:
        with ledger.read() as connection:
            there = sql("select 1 from returned_elsewhere where route = :route limit 1")
            if connection.execute(there, {"route": lease.route}).first() is None:
                break
        with ledger.under(lease, now) as tx:
            rows = [tuple(row) for row in tx.execute(sql(_TAKE), {"most": PAGE})]
            tx.temporary("incoming", _COLUMNS)
            columns = ("owner", "redrive_attempt", "message_id", "kind", "dead_lettered_at", "received_at")
            tx.bulk("incoming", columns, rows)
            tx.dialect.look_at_temporary(tx.connection, "incoming")
            tx.execute(sql(_MARK))
            taken += returns.note_outcomes(tx)
            _end(tx)
            more = len(rows) == PAGE
    return taken


def _end(tx: RunTransaction) -> None:
    """What was sent last and came back to another route is done with here."""
    tx.temporary("ended", "message_id bigint primary key")
    tx.execute(
        sql(
            "insert into ended (message_id) select message_id from messages"
            f" where route = :route and state in {listed(_OVER)} and {returns.CURRENT}"
        )
    )
    ended = "select message_id from ended"
    why = "It came back to another route, with our id."
    for state in _OVER:
        move(tx, state, State.RETURNED, few=ended, action=Action.RETURN, reason=why)
    move(tx, State.RETURNED, State.CLASSIFIED, few=ended, action=Action.CLASSIFY_AGAIN)
    move(
        tx,
        State.CLASSIFIED,
        State.DISCARDED,
        few=ended,
        set_=f"doubted = false, reason = ({_WHY})",
        action=Action.HAND_OVER,
        reason=why,
    )
