"""Forget what is finished and old, batch by batch, so that the rest still adds up.

The last that goes is the row that names the file: :func:`forget` leaves it ``abandoned``, with the time at which it
was loaded and no copies, until the file is gone and :func:`drop` is called. So a crash in between leaves no file that
nobody knows of; whatever looks for abandoned batches next removes it.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.drain import batches
from redrive.ledger.drain.batches import Batch
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import count_finished, record_event
from redrive.ledger.predicates import out_of_sight
from redrive.ledger.transactions import MACHINE
from redrive.lifecycle import FINISHED
from redrive.message import span_of
from redrive.settings import LONGEST_LEASE


def forget(
    ledger: Ledger, route: str, *, before: datetime, doubted_before: datetime, now: datetime
) -> tuple[list[Batch], int]:
    """Empty batches loaded before ``before`` of which every message is finished, or was sent and nobody will see what
    became of it, and nothing else refers to.

    Returns the batches and how many messages went with them; the files of :func:`forgotten` ones are the caller's to
    remove. One transaction per batch; a batch that holds the newest copy of a message of another batch stays. So does
    one of which copies may still lie in their source, or they would be new messages when they come again; but not for
    ever, because a source may never be drained to its end any more: it goes if it was loaded before ``doubted_before``.
    """
    finished = ", ".join(f"'{state}'" for state in sorted(FINISHED))
    with ledger.read() as connection:
        rows = connection.execute(
            sql(
                "select batch_id, route, source, kind, uri, copies, state from staging_batches b"
                " where route = :route and state in ('recorded', 'settled') and loaded_at < :before_at"
                " and not exists (select 1 from messages m where m.message_id >= b.batch_id * 1048576"
                "   and m.message_id < (b.batch_id + 1) * 1048576"
                f"   and (m.state not in ({finished}) and not {out_of_sight('m')} or m.changed_at >= :before_at))"
                " and not exists (select 1 from messages m inner join repeat_copies r on r.message_id = m.message_id"
                "   where r.copy_id >= b.batch_id * 1048576 and r.copy_id < (b.batch_id + 1) * 1048576"
                "   and m.copy_id = r.copy_id and (m.message_id < b.batch_id * 1048576"
                "   or m.message_id >= (b.batch_id + 1) * 1048576))"
                # a suspected copy waits for a person
                " and not exists (select 1 from repeat_copies s where s.kind = 'suspected'"
                "   and s.copy_id >= b.batch_id * 1048576 and s.copy_id < (b.batch_id + 1) * 1048576)"
                f" and not {_may_come_again(ledger, 'b')} order by batch_id"
            ),
            {"route": route, "before_at": before, "doubted_at": doubted_before},
        ).all()
    gone, messages = [], 0
    for row in rows:
        batch = Batch(*row)
        span = span_of(batch.batch_id)
        with ledger.by(MACHINE, now, route=route) as tx:
            # A run that loads a return of one of these messages holds this row to the end of its transaction.
            tx.execute(sql("update route_state set fence = fence where route = :route"))
            # First, and only where it still counts: of two that forget at once the second finds nothing to tell.
            taken = tx.execute(
                sql(
                    "update staging_batches set state = 'abandoned', removed_at = null, copies = 0, settled_copies = 0,"
                    " new_copies = 0, returned_copies = 0, duplicate_copies = 0, surplus_copies = 0,"
                    " suspected_copies = 0 where batch_id = :id and state in ('recorded', 'settled')"
                    " and loaded_at < :before_at and not exists (select 1 from messages"
                    " where message_id >= :low and message_id < :high"
                    f" and (messages.state not in ({finished}) and not {out_of_sight()} or changed_at >= :before_at))"
                    f" and not {_may_come_again(ledger, 'staging_batches')}"
                ),
                {**span, "id": batch.batch_id, "before_at": before, "doubted_at": doubted_before},
            ).rowcount
            if not taken:
                continue
            within = "message_id >= :low and message_id < :high"
            ended = tx.execute(
                sql(f"select state, count(*) as n from messages where {within} group by state order by state"), span
            ).all()
            # Before their attempts, which tell the ledger that nobody waits for them.
            messages += tx.execute(sql(f"delete from messages where {within}"), span).rowcount
            for one in ended:
                if one.state in FINISHED:
                    count_finished(tx, one.state, -one.n)
            tx.execute(sql(f"delete from redelivery_attempts where {within}"), span)
            tx.execute(sql(f"delete from escalated_messages where {within}"), span)
            tx.execute(sql(f"delete from message_fields where {within}"), span)
            tx.execute(sql(f"delete from returned_elsewhere where {within}"), span)
            # Not before it was taken: the copies of a batch that counts can't be deleted.
            tx.execute(sql("delete from repeat_copies where copy_id >= :low and copy_id < :high"), span)
            record_event(
                tx,
                Action.FORGET,
                count=batch.copies,
                selection={"batch_id": batch.batch_id},
                reason="They are finished, and older than the route's retention.",
            )
        gone.append(batch)
    return gone, messages


def _may_come_again(ledger: Ledger, batch: str) -> str:
    """SQL: copies of ``batch`` that were not settled may come again. How long drains leased when it was drained isn't
    known any more: no longer than any may."""
    again = batches.may_come_again(ledger, LONGEST_LEASE, batch)
    return f"({batch}.settled_copies < {batch}.copies and {batch}.loaded_at >= :doubted_at and {again})"


_FORGOTTEN = "state = 'abandoned' and loaded_at is not null"


def forgotten(connection: Connection) -> list[Batch]:
    """Batches of all routes that are forgotten but for their files, which may be gone already."""
    rows = connection.execute(
        sql(
            "select batch_id, route, source, kind, uri, copies, state from staging_batches"
            f" where {_FORGOTTEN} order by batch_id"
        )
    )
    return [Batch(*row) for row in rows]


def drop(ledger: Ledger, batch_ids: Sequence[int]) -> None:
    """The files of these forgotten batches are gone: nothing is left of them."""
    with ledger.write() as connection:
        ledger.dialect.many(
            connection,
            f"delete from staging_batches where batch_id = ? and {_FORGOTTEN}",
            [(batch_id,) for batch_id in batch_ids],
        )
