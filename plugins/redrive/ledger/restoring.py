"""What restore needs of the ledger: unfinished messages, and a mark that they are on their way back.

While a message is being put back its reason says so; it keeps its state until the broker has confirmed, and ends as
``discarded`` with the reason ``restored to QUEUE``, because from then on the queue owns it again. Until then nothing
else sends it: should the restore die here, the message goes to people, because it may be in its queue already.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy.engine import Connection

from redrive.ledger import batches
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.leases import RouteLease
from redrive.ledger.moves import move
from redrive.lifecycle import State
from redrive.message import ROW_BITS

RESTORING = "was being put back into its queue and may be there already"
_OPEN = "('classified', 'waiting', 'held', 'escalated', 'expired')"
# A batch says how many of its copies were settled, not which. So a message is certainly with us alone only if all of a
# batch with one of its copies were, or if its source was drained to the end (source_state.drained_to) after the leases
# of every such batch: a copy that was still there would have come.
_STAGED = (
    f"(select taken.*, 'first' as role from staging_batches taken where taken.batch_id = messages.copy_id >> {ROW_BITS}"
    " union all select taken.*, again.kind from repeat_copies again inner join staging_batches taken"
    f" on taken.batch_id = again.copy_id >> {ROW_BITS} where again.message_id = messages.message_id)"
)
#: SQL: some copies of a batch with a copy of this message were settled, and maybe this one.
_PARTLY = f"exists (select 1 from {_STAGED} one where one.role in ('first', 'duplicate') and one.settled_copies > 0)"


def _taken(ledger: Ledger, leased_for: timedelta) -> str:
    """SQL: no queue holds a copy of this message."""
    return (
        f"(exists (select 1 from {_STAGED} one where one.role in ('first', 'duplicate') and one.state = 'settled'"
        " and one.settled_copies = one.copies)"
        f" or exists (select 1 from {_STAGED} one) and not exists (select 1 from {_STAGED} one"
        f" where {batches.may_come_again(ledger, leased_for, 'one')}))"
    )


class Unfinished(NamedTuple):
    """A message that restore puts back."""

    message_id: int
    redrive_id: str
    attempts: int
    source: str
    reason: str | None
    verdict: str | None


def count(connection: Connection, route: str) -> int:
    """How many messages of the route are unfinished and certainly not at the broker."""
    return int(
        connection.execute(
            sql(f"select count(*) from messages where route = :route and state in {_OPEN}"), {"route": route}
        ).scalar_one()
    )


def unfinished(
    ledger: Ledger, connection: Connection, route: str, *, leased_for: timedelta, after: int, limit: int
) -> list[Unfinished]:
    """Unfinished messages that no queue holds, in id order after ``after``; ``leased_for``: how long drains lease."""
    rows = connection.execute(
        sql(
            "select message_id, redrive_id, attempts, source, reason, verdict from messages"
            f" where route = :route and state in {_OPEN} and message_id > :after and coalesce(reason, '') <> :restoring"
            f" and {_taken(ledger, leased_for)} order by message_id limit :limit"
        ),
        {"route": route, "after": after, "limit": limit, "restoring": RESTORING},
    )
    return [Unfinished(*row) for row in rows]


class NotTaken(NamedTuple):
    """Unfinished messages of which a queue has a copy, and those of which one may have."""

    still_there: int
    in_doubt: int


def not_taken(ledger: Ledger, connection: Connection, route: str, *, leased_for: timedelta) -> NotTaken:
    """How many copies were never settled, and of how many batches only a part was, nobody knows which."""
    row = connection.execute(
        sql(
            f"select coalesce(sum(case when {_PARTLY} then 0 else 1 end), 0) as still_there,"
            f" coalesce(sum(case when {_PARTLY} then 1 else 0 end), 0) as in_doubt from messages"
            f" where route = :route and state in {_OPEN} and coalesce(reason, '') <> :restoring"
            f" and not {_taken(ledger, leased_for)}"
        ),
        {"route": route, "restoring": RESTORING},
    ).one()
    return NotTaken(int(row.still_there), int(row.in_doubt))


def sent_in_doubt(connection: Connection, route: str) -> int:
    """How many messages a delivery may have sent without hearing so; nobody knows whether they are anywhere."""
    return int(
        connection.execute(
            sql("select count(*) from messages where route = :route and state in ('sending', 'unknown')"),
            {"route": route},
        ).scalar_one()
    )


def suspected(connection: Connection, route: str) -> int:
    """How many copies may be second stagings of a message, and nobody has decided on them yet."""
    return int(
        connection.execute(
            sql("select count(*) from repeat_copies where route = :route and kind = 'suspected'"), {"route": route}
        ).scalar_one()
    )


def settle_unfinished_sends(ledger: Ledger, lease: RouteLease, now: datetime) -> int:
    """How many messages an earlier restore may have sent without hearing so; they are left alone and told."""
    with ledger.write() as connection:
        lease.guard(connection, now)
        return int(
            connection.execute(
                sql(f"select count(*) from messages where route = :route and state in {_OPEN} and reason = :restoring"),
                {"route": lease.route, "restoring": RESTORING},
            ).scalar_one()
        )


def begin(ledger: Ledger, lease: RouteLease, message_ids: Sequence[int], now: datetime) -> None:
    """These are about to be handed to the broker."""
    with ledger.write() as connection:
        lease.guard(connection, now)
        _choose(ledger, connection, message_ids)
        connection.execute(
            sql(
                "update messages set reason = :reason, verdict = case when state = 'escalated' then verdict"
                " else 'escalate' end where message_id in (select message_id from chosen)"
            ),
            {"reason": RESTORING},
        )


def undo(ledger: Ledger, lease: RouteLease, messages: Sequence[Unfinished], now: datetime) -> None:
    """These were certainly not put back; they are again as they were."""
    if not messages:
        return
    with ledger.write() as connection:
        lease.guard(connection, now)
        ledger.many(
            connection,
            "update messages set reason = ?, verdict = ? where message_id = ?",
            [(one.reason, one.verdict, one.message_id) for one in messages],
        )


def finish(ledger: Ledger, lease: RouteLease, message_ids: Sequence[int], source: str, now: datetime) -> None:
    """The broker has them: here they are finished."""
    if not message_ids:
        return
    why = f"restored to {source}"
    with ledger.write() as connection:
        lease.guard(connection, now)
        _choose(ledger, connection, message_ids)
        chosen = "message_id in (select message_id from chosen)"
        common = {"now": now, "route": lease.route, "run_id": lease.run_id, "action": "restore", "reason": why}
        # Waiting and held messages have no edge to discarded; they pass through review on paper.
        for state in (State.WAITING, State.HELD):
            move(connection, state, State.ESCALATED, where=chosen, **common)  # type: ignore[arg-type]
        for state in (State.CLASSIFIED, State.ESCALATED, State.EXPIRED):
            move(
                connection,
                state,
                State.DISCARDED,
                where=chosen,
                values={"why": why},
                set_="reason = :why, next_attempt_at = null, verdict = null",
                **common,  # type: ignore[arg-type]
            )
        connection.execute(
            sql(
                "update escalated_messages set status = 'applied', applied_at = :now, decision = 'discard',"
                " decided_by = coalesce(decided_by, 'redrive restore'), note = coalesce(note, :why)"
                f" where status <> 'applied' and {chosen}"
            ),
            {"now": now, "why": why},
        )


def _choose(ledger: Ledger, connection: Connection, message_ids: Sequence[int]) -> None:
    ledger.temporary(connection, "chosen", "message_id bigint primary key")
    ledger.bulk(connection, "chosen", ("message_id",), [(i,) for i in message_ids])
