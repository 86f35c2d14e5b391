"""Staging batches in the ledger: open, recorded, settled, abandoned; each step a compare-and-set.

open -> recorded happens only after the file is durable, and only while the run still holds the route; nothing
is settled before it. An open batch whose writer vanished is recorded for it where its file is complete, and else
abandoned, by the same compare-and-set, so a writer that comes back to life finds its row gone and settles nothing.

An open row is never a reason to remove a complete file. The row may be out of date, in a ledger that was restored from
a backup or that continued on a replica which was behind, and then only the file holds what was settled.
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection, Row

from redrive.audit_actions import Action
from redrive.errors import BatchLost
from redrive.ledger.delivery import outcomes
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import record_event
from redrive.ledger.predicates import HERE, UNFINISHED
from redrive.ledger.schema import ledger_id
from redrive.ledger.transactions import MACHINE, RouteLease, RunTransaction
from redrive.message import MAX_ROWS, span_of

#: (route, source, batch id, ledger id) -> where the batch is written, relative to the staging folder; a path that was
#: never given before.
PathOf = Callable[[str, str, int, str], str]


class Batch(NamedTuple):
    """One staging file as the ledger knows it."""

    batch_id: int
    route: str
    source: str
    kind: str
    uri: str  # relative to the staging folder
    copies: int
    state: str
    size: int = 0  # of its file, in bytes


def open_batch(
    ledger: Ledger,
    lease: RouteLease,
    *,
    source: str,
    kind: str,
    shard: int,
    path_of: PathOf,
    now: datetime,
    beyond: int = 0,
    adopted_from: str | None = None,
) -> tuple[int, str]:
    """Announce a batch before its file is begun; returns its id, greater than ``beyond``, and its path.

    ``adopted_from`` is the path of a file without a row, of which this batch will be a copy.
    """
    with ledger.under(lease, now) as tx:
        if beyond:
            _count_on_from(tx, beyond)
        batch_id = int(
            tx.execute(
                sql(
                    "insert into staging_batches (route, source, kind, shard, run_id, fence, state, uri, opened_at,"
                    " adopted_from, system) values (:route, :source, :kind, :shard, :run_id, :fence, 'open', '', :now,"
                    f" :adopted_from, {HERE}) returning batch_id"
                ),
                {
                    "source": source,
                    "kind": kind,
                    "shard": shard,
                    "adopted_from": adopted_from,
                },
            ).scalar_one()
        )
        path = path_of(lease.route, source, batch_id, ledger_id(tx.connection))
        tx.execute(
            sql("update staging_batches set uri = :uri where batch_id = :batch_id"),
            {"uri": path, "batch_id": batch_id},
        )
    return batch_id, path


def record(ledger: Ledger, lease: RouteLease, batch_id: int, *, copies: int, size: int, now: datetime) -> None:
    """The file is durable: from here on its copies count, and may be settled.

    Raises :class:`BatchLost` when the batch was abandoned, :class:`LeaseLost` when the run was replaced.
    """
    assert copies <= MAX_ROWS  # noqa: S101 - settings bound flush_messages; a larger batch would break message ids
    with ledger.under(lease, now) as tx:
        changed = tx.execute(
            sql(
                "update staging_batches set state = 'recorded', copies = :copies, bytes = :size, recorded_at = :now"
                " where batch_id = :batch_id and state = 'open' and fence = :fence"
            ),
            {"copies": copies, "size": size, "batch_id": batch_id},
        ).rowcount
        if changed != 1:
            raise BatchLost(f"batch {batch_id} of route {lease.route} is no longer open for run {lease.run_id}")


def settled(ledger: Ledger, batch_id: int, *, count: int, now: datetime) -> None:
    """The source is done with ``count`` copies of the batch; 0 where the broker said that it would settle none. True
    whoever holds the route now, so no fence."""
    with ledger.write() as connection:
        connection.execute(
            sql(
                "update staging_batches set state = 'settled', settled_copies = :count, settled_at = :now"
                " where batch_id = :batch_id and state = 'recorded'"
            ),
            {"count": count, "now": now, "batch_id": batch_id},
        )


def settled_by(connection: Connection, lease: RouteLease, source: str) -> int:
    """How many copies the run's shards have settled at ``source``, in whichever try: those don't come again."""
    found = connection.execute(
        sql(
            "select coalesce(sum(settled_copies), 0) from staging_batches where route = :route and state = 'settled'"
            " and fence = :fence and source = :source and adopted_from is null"
        ),
        {"route": lease.route, "fence": lease.fence, "source": source},
    ).scalar_one()
    return int(found)


class Taken(NamedTuple):
    """Copies that a run has taken from the sources, or may have."""

    before: int  # by all of its shards, before it was begun anew (its tasks were cleared)
    here: int  # by one shard since, in an earlier try perhaps


def taken_by(connection: Connection, lease: RouteLease, shard: int) -> Taken:
    """What the run has taken already, this ``shard`` and all of them. There may have been other shards before."""
    row = connection.execute(
        sql(
            "select coalesce(sum(case when fence < :fence then n end), 0) as earlier, coalesce(sum(case when"
            " fence = :fence and shard = :shard then n end), 0) as here from (select fence, shard, case when state ="
            " 'settled' then settled_copies else copies end as n from staging_batches where run_id = :run_id"
            " and state in ('recorded', 'settled') and adopted_from is null) taken"
        ),
        {"run_id": lease.run_id, "fence": lease.fence, "shard": shard},
    ).one()
    return Taken(int(row.earlier), int(row.here))


def left_open(
    connection: Connection, *, route: str | None, before_fence: int | None, opened_before: datetime | None
) -> list[Batch]:
    """Open batches whose writer is gone: of an older fence of the route, or opened too long ago; oldest first."""
    values = {"route": route, "fence": before_fence, "opened_at": opened_before}
    rows = connection.execute(
        sql(
            "select batch_id, route, source, kind, uri, copies, state from staging_batches where state = 'open'"
            + (" and route = :route" if route else "")
            + (" and fence < :fence" if before_fence is not None else "")
            + (" and opened_at < :opened_at" if opened_before else "")
            + " order by batch_id"
        ),
        {name: value for name, value in values.items() if value is not None},
    ).all()
    return [Batch(*row) for row in rows]


def record_left(ledger: Ledger, batch: Batch, *, copies: int, size: int, now: datetime) -> bool:
    """An open batch whose writer is gone has a complete file, so its copies count; False when somebody was faster.

    From here it is as if the writer had died before it settled anything: what is still at the broker comes again.
    """
    with ledger.by(MACHINE, now, route=batch.route) as tx:
        changed = tx.execute(
            sql(
                "update staging_batches set state = 'recorded', copies = :copies, bytes = :size, recorded_at = :now"
                " where batch_id = :batch_id and state = 'open'"
            ),
            {"copies": copies, "size": size, "batch_id": batch.batch_id},
        ).rowcount
        if changed:
            record_event(
                tx,
                Action.RECORD_BATCH,
                count=copies,
                selection={"batch_id": batch.batch_id},
                reason="Its writer is gone. Its file is complete, and may be all that there is of its copies.",
            )
    return bool(changed)


def abandon(ledger: Ledger, batch: Batch, now: datetime) -> bool:
    """Give up an open batch whose writer is gone and whose file is not complete; False when somebody was faster."""
    with ledger.by(MACHINE, now, route=batch.route) as tx:
        changed = tx.execute(
            sql("update staging_batches set state = 'abandoned' where batch_id = :batch_id and state = 'open'"),
            {"batch_id": batch.batch_id},
        ).rowcount
        if changed:
            record_event(
                tx,
                Action.ABANDON_BATCH,
                count=1,
                selection={"batch_id": batch.batch_id},
                reason="Its writer is gone. Nothing of it was recorded or settled.",
            )
    return bool(changed)


def give_up(ledger: Ledger, lease: RouteLease, batch: Batch, *, by: str, reason: str, now: datetime) -> bool:
    """Somebody gives up a recorded batch whose file is lost before its load; False when it is loaded or given up.

    Its row stays and counts no copies any more; the audit event says how many there were, and of how many of them
    nothing is left at their source. The file is the caller's to remove, as of every abandoned batch. What was sent
    before and is watched may have come back in it, and is never presumed.
    """
    with ledger.under(lease, now, actor=by) as tx:
        known = tx.execute(
            sql("select settled_copies, fence from staging_batches where batch_id = :id"), {"id": batch.batch_id}
        ).first()
        changed = tx.execute(
            sql(
                "update staging_batches set state = 'abandoned', copies = 0, settled_copies = 0, removed_at = null"
                " where batch_id = :id and route = :route and state in ('recorded', 'settled') and loaded_at is null"
            ),
            {"id": batch.batch_id},
        ).rowcount
        if known is not None and changed:
            unseen = outcomes.lose_sight(
                tx,
                until_fence=known.fence,  # what later runs sent had not come back when it was drained
                reason=f"It may have come back in batch {batch.batch_id}, which was given up.",
            )
            record_event(
                tx,
                action=Action.GIVE_UP_BATCH,
                count=batch.copies,
                selection={
                    "batch_id": batch.batch_id,
                    "settled_copies": known.settled_copies,
                    "uri": batch.uri,
                    "unseen_sends": unseen,
                },
                reason=reason,
            )
    return bool(changed)


def abandoned(connection: Connection, route: str | None) -> list[Batch]:
    """Every abandoned batch whose file may still be there, also those of which a process died before it had removed
    the file; the caller removes the files, then calls :func:`removed`."""
    rows = connection.execute(
        sql(
            "select batch_id, route, source, kind, uri, copies, state from staging_batches"
            " where state = 'abandoned' and removed_at is null"
            + (" and route = :route" if route else "")
            + " order by batch_id"
        ),
        {"route": route} if route else {},
    ).all()
    return [Batch(*row) for row in rows]


def abandon_one(ledger: Ledger, batch_id: int) -> bool:
    """Its own writer gives up an open batch after an error; says whether the file may go.

    False: the batch is recorded, its copies count. True also when others had abandoned it: a writer that was
    stalled may have begun or finished its file after they had removed it.
    """
    with ledger.write() as connection:
        return bool(
            connection.execute(
                sql(
                    "update staging_batches set state = 'abandoned', removed_at = null"
                    " where batch_id = :batch_id and state in ('open', 'abandoned')"
                ),
                {"batch_id": batch_id},
            ).rowcount
        )


def open_of(ledger: Ledger, lease: RouteLease, path: str) -> int | None:
    """The open batch of this run that is written at ``path``; None when there is none.

    Asked by its path, which is given once: two tries of one task have run, fence, source and shard in common.
    """
    with ledger.read() as connection:
        found = connection.execute(
            sql(
                "select batch_id from staging_batches where route = :route and fence = :fence and uri = :path"
                " and state = 'open'"
            ),
            {"route": lease.route, "fence": lease.fence, "path": path},
        ).scalar()
    return None if found is None else int(found)


def newest(connection: Connection) -> int:
    """The greatest batch id that this ledger knows of; 0 when it knows none."""
    return int(connection.execute(sql("select coalesce(max(batch_id), 0) from staging_batches")).scalar_one())


def _count_on_from(tx: RunTransaction, batch_id: int) -> None:
    """The next batch gets a greater id than ``batch_id``: a counter that went back must not give an id twice."""
    tx.dialect.count_on(tx.connection, "staging_batches", "batch_id", batch_id)


def removed(ledger: Ledger, batch_ids: list[int], now: datetime) -> None:
    """The files of these batches are gone."""
    with ledger.write() as connection:
        for batch_id in batch_ids:
            connection.execute(
                sql("update staging_batches set removed_at = :now where batch_id = :batch_id"),
                {"now": now, "batch_id": batch_id},
            )


def may_come_again(ledger: Ledger, leased_for: timedelta, batch: str, *, to: str | None = None) -> str:
    """SQL: what was not settled of ``batch`` (an alias of ``staging_batches``) may still lie in its source.

    No longer once the source was drained to its end and loaded after all leases of that drain, which lasted
    ``leased_for``, were over: what was still there would have come. Whichever route drained it; for another one than
    took the batch, a run that nobody took over is over with its hold on its route, which may be gone.

    A source is that of the broker and connection where the batch was taken, wherever its route is by now: a queue of
    that name elsewhere says nothing of it. With ``to``, SQL of a broker and connection, it is asked whether anything of
    it may come from the queue of that name there.
    """
    taken = f"coalesce({batch}.settled_at, (select runs.finished_at from runs where runs.run_id = {batch}.run_id))"
    held = (
        f"coalesce({taken}, (select lease_until from route_state"
        f" where route_state.route = {batch}.route and route_state.run_id = {batch}.run_id))"
    )
    over, over_for_others = (ledger.dialect.later(at, str(leased_for.total_seconds())) for at in (taken, held))
    return (
        "not exists (select 1 from source_state there inner join route_state its on its.route = there.route"
        f" where there.source = {batch}.source and its.system = {to or f'{batch}.system'}"
        f" and (there.route = {batch}.route and there.drained_to > {over}"
        f" or there.route <> {batch}.route and there.drained_to > {over_for_others}))"
    )


def unloaded(connection: Connection, route: str) -> list[Batch]:
    """Recorded batches of the route that have not been loaded, oldest first."""
    rows = connection.execute(
        sql(
            "select batch_id, route, source, kind, uri, copies, state, bytes from staging_batches"
            " where route = :route and state in ('recorded', 'settled') and loaded_at is null order by batch_id"
        ),
        {"route": route},
    ).all()
    return [Batch(*row) for row in rows]


def paths(connection: Connection, batch_ids: set[int]) -> dict[int, str]:
    """Where the files of these batches are, relative to the staging folder."""
    return {row.batch_id: row.uri for row in _of_these(connection, batch_ids, "batch_id, uri")}


def routes_of(connection: Connection, batch_ids: set[int]) -> set[str]:
    """The routes of these batches, as far as the ledger has them."""
    return {row.route for row in _of_these(connection, batch_ids, "distinct route")}


def _of_these(connection: Connection, batch_ids: set[int], what: str) -> Iterator[Row[Any]]:
    """What the ledger has of these batches, some hundreds at a time."""
    ids = sorted(batch_ids)
    for start in range(0, len(ids), 500):
        part = ",".join(map(str, ids[start : start + 500]))  # ints only
        yield from connection.execute(sql(f"select {what} from staging_batches where batch_id in ({part})"))


def needed(connection: Connection, route: str | None) -> set[int]:
    """Batches whose payloads may still be asked for: not loaded, or with a message that isn't finished."""
    only = " and route = :route" if route else ""
    rows = connection.execute(
        sql(
            "select batch_id from staging_batches where state in ('recorded', 'settled') and loaded_at is null"
            f"{only} union select message_id / 1048576 from messages where state in {UNFINISHED}{only}"
            f" union select copy_id / 1048576 from messages where state in {UNFINISHED}{only}"
        ),
        {"route": route} if route else {},
    )
    return {int(batch_id) for batch_id in rows.scalars()}


class Kept(NamedTuple):
    """A copy that did not become a message: whose it is, and where the send went that it came back from."""

    copy_id: int
    kind: str
    attempt: int | None
    owner: int | None
    redrive_id: str | None  # the owner's
    destination: str | None  # of the attempt
    seen_in_return: bool  # another copy of that attempt came back, of which a duplicate may be a second staging


def hashes(connection: Connection, batch_id: int) -> dict[int, bytes]:
    """Row -> body hash, of the batch's copies that became messages."""
    rows = connection.execute(
        sql("select message_id, body_hash from messages where message_id >= :low and message_id < :high"),
        span_of(batch_id),
    )
    return {row.message_id & (MAX_ROWS - 1): bytes(row.body_hash) for row in rows}


def kept(connection: Connection, batch_id: int) -> list[Kept]:
    """The batch's copies that did not become messages."""
    rows = connection.execute(
        sql(
            "select r.copy_id, r.kind, r.attempt, r.message_id as owner, m.redrive_id, a.destination, exists (select 1"
            " from repeat_copies other where other.message_id = r.message_id and other.attempt = r.attempt"
            " and other.copy_id <> r.copy_id and other.kind in ('returned', 'surplus')) as seen_in_return"
            " from repeat_copies r left join messages m on m.message_id = r.message_id left join redelivery_attempts a"
            " on a.message_id = r.message_id and a.attempt = r.attempt"
            " where r.copy_id >= :low and r.copy_id < :high order by r.copy_id"
        ),
        span_of(batch_id),
    )
    return [Kept(*row) for row in rows]


def recorded(connection: Connection, route: str | None) -> list[Batch]:
    """Every batch whose copies count, oldest first."""
    rows = connection.execute(
        sql(
            "select batch_id, route, source, kind, uri, copies, state from staging_batches"
            " where state in ('recorded', 'settled')" + (" and route = :route" if route else "") + " order by batch_id"
        ),
        {"route": route} if route else {},
    ).all()
    return [Batch(*row) for row in rows]
