"""How far pages look back: days, and a bounded number of the newest messages and sends.

Questions about the past are answered from what is small by nature (audit events of sets, batches, slices), or from
this: no page may read a whole ledger of millions.
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from redrive.ledger.dialects import dialect_of
from redrive.ledger.engine import parse_instant, sql
from redrive.ledger.tables import delivery_slices, staging_batches
from redrive_ui.rows import Row, routes_in, rows_of

#: Trends are drawn from at most so many of the newest messages, rates of success from so many of the newest sends.
RECENT = 200_000
DAYS = 14
#: And from at most so many batches and slices.
MOST_BATCHES, MOST_SLICES = 20_000, 5_000
#: So many of the newest messages are looked at for what no index knows.
LOOK = 100_000
#: Where at most so many questions have the status that is asked for, they are found by its index; where more have it,
#: rows are read as they lie.
FEW = 20_000
#: So many rows that the database offers are looked at as people would see them.
LOOK_MASKED = 2_000
#: So many of the newest batches or slices of all routes are read in their own order. Who has to look further back is
#: told by an index of the route, which knows no order: all there are of the route are read then, and sorted.
NEAR = 20_000


def days(now: datetime, count: int = DAYS) -> list[str]:
    """The last ``count`` days, today last, as they are called in SQL."""
    return [f"{now.astimezone(UTC) - timedelta(days=back):%Y-%m-%d}" for back in range(count - 1, -1, -1)]


def newest(
    connection: Connection,
    table: sa.Table,
    columns: str,
    readable: Collection[str],
    limit: int,
    *,
    where: str = "1 = 1",
    values: Mapping[str, Any] | None = None,
    last: int | None = None,
) -> Iterator[sa.Row[Any]]:
    """The rows of these routes, the newest first, ``limit`` at most and up to the one with the number ``last``; only as
    far as they are asked for."""
    (key,) = (column.name for column in table.primary_key)
    if last is None:
        last = connection.execute(sql(f"select coalesce(max({key}), 0) from {table.name}")).scalar_one()
    for part, route in (
        (f"{key} > :near and {key} <= :last", dialect_of(connection).off_index("route")),
        (f"{key} <= :near and {key} <= :last", "route"),
    ):
        of_routes, names = routes_in(readable, route)
        statement = (
            f"select {key}, {columns} from {table.name} where {part} and {where} and {of_routes}"
            f" order by {key} desc limit {limit}"
        )
        bounds = {"near": last - NEAR, "last": last}
        with connection.execute(sql(statement), {**(values or {}), **names, **bounds}) as rows:
            for row in rows:
                yield row
                limit -= 1
        if limit <= 0:
            return


def recent_batches(connection: Connection, readable: Collection[str], now: datetime) -> tuple[dict[int, str], bool]:
    """The newest loaded batches, each with its day, with at most :data:`RECENT` new messages altogether."""
    rows = newest(
        connection,
        staging_batches,
        "new_copies, loaded_at",
        readable,
        MOST_BATCHES,
        where="loaded_at >= :since_at and new_copies > 0",
        values={"since_at": now - timedelta(days=DAYS)},
    )
    chosen: dict[int, str] = {}
    total = 0
    for row in rows:
        total += row.new_copies
        if chosen and total > RECENT:
            return chosen, True
        loaded_at = cast("datetime", parse_instant(row.loaded_at))
        chosen[row.batch_id] = f"{loaded_at.astimezone(UTC):%Y-%m-%d}"
    return chosen, len(chosen) == MOST_BATCHES


def all_recent(
    connection: Connection, readable: Collection[str], batches: Mapping[int, str], what: str, only: str = "1 = 1"
) -> list[Row]:
    """Messages of these batches counted by batch, route and ``what``. A message id begins with its batch's."""
    if not batches:
        return []
    where, values = routes_in(readable, dialect_of(connection).off_index("route"))
    rows = rows_of(
        connection,
        f"select message_id / 1048576 as batch_id, route, {what} as what, count(*) as n from messages"
        f" where message_id >= :first and {where} and {only} group by message_id / 1048576, route, {what}",
        first=min(batches) << 20,
        **values,
    )
    return [row for row in rows if row["batch_id"] in batches]


def first_recent_slice(connection: Connection, readable: Collection[str], most: int = RECENT) -> int:
    """The first of the slices in which the newest messages were sent, ``most`` of them."""
    found, total = 0, 0
    for row in newest(connection, delivery_slices, "sent", readable, MOST_SLICES):
        found, total = int(row.slice_id), total + row.sent
        if total > most:
            break
    return found
