"""What restore needs of the ledger: unfinished messages, and a mark that they are on their way back.

While a message is being put back its reason says so; it keeps its state until the broker has confirmed, and ends as
``discarded`` with the reason ``restored to QUEUE``, because from then on the queue owns it again. Until then nothing
else sends it: should the restore die here, the message goes to people, because it may be in its queue already.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy.engine import Connection

from redrive.ledger.engine import Ledger, sql
from redrive.ledger.leases import RouteLease
from redrive.ledger.moves import move
from redrive.lifecycle import State
from redrive.message import ROW_BITS

RESTORING = "was being put back into its queue and may be there already"
_OPEN = "('classified', 'waiting', 'held', 'escalated', 'expired')"
# A copy that was recorded and never settled is still in its queue, or comes back to it when its lease runs out.
_TAKEN = (
    f"(exists (select 1 from staging_batches taken where taken.batch_id = messages.copy_id >> {ROW_BITS}"
    " and taken.state = 'settled') or exists (select 1 from repeat_copies again inner join staging_batches taken"
    f" on taken.batch_id = again.copy_id >> {ROW_BITS} where again.message_id = messages.message_id"
    " and again.kind = 'duplicate' and taken.state = 'settled'))"
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


def unfinished(connection: Connection, route: str, *, after: int, limit: int) -> list[Unfinished]:
    """Unfinished messages in id order after ``after``."""
    rows = connection.execute(
        sql(
            "select message_id, redrive_id, attempts, source, reason, verdict from messages"
            f" where route = :route and state in {_OPEN} and message_id > :after"
            f" and coalesce(reason, '') <> :restoring and {_TAKEN} order by message_id limit :limit"
        ),
        {"route": route, "after": after, "limit": limit, "restoring": RESTORING},
    )
    return [Unfinished(*row) for row in rows]


def still_there(connection: Connection, route: str) -> dict[str, int]:
    """Unfinished messages whose copy was never settled, per source: they are in that queue already."""
    rows = connection.execute(
        sql(
            f"select source, count(*) as n from messages where route = :route and state in {_OPEN}"
            f" and coalesce(reason, '') <> :restoring and not {_TAKEN} group by source order by source"
        ),
        {"route": route, "restoring": RESTORING},
    )
    return {row.source: row.n for row in rows}


def sent_in_doubt(connection: Connection, route: str) -> int:
    """How many messages a delivery may have sent without hearing so; nobody knows whether they are anywhere."""
    return int(
        connection.execute(
            sql("select count(*) from messages where route = :route and state in ('sending', 'unknown')"),
            {"route": route},
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
