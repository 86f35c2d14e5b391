"""How far pages look back: days, and a bounded number of the newest messages and sends.

Questions about the past are answered from what is small by nature (audit events of sets, batches, slices), or from
this: no page may read a whole ledger of millions.
"""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta

from sqlalchemy.engine import Connection

from redrive.ledger.dialects import dialect_of
from redrive.ledger.engine import sql
from redrive_ui.rows import Row, routes_in, rows_of

#: Trends are drawn from at most so many of the newest messages, rates of success from so many of the newest sends.
RECENT = 200_000
DAYS = 14
#: So many of the newest messages are looked at for what no index knows.
LOOK = 100_000
#: Where at most so many questions have the status that is asked for, they are found by its index; where more have it,
#: rows are read as they lie.
FEW = 20_000
#: So many rows that the database offers are looked at as people would see them.
LOOK_MASKED = 2_000


def days(now: datetime, count: int = DAYS) -> list[str]:
    """The last ``count`` days, today last, as they are called in SQL."""
    return [f"{now.astimezone(UTC) - timedelta(days=back):%Y-%m-%d}" for back in range(count - 1, -1, -1)]


def recent_batches(connection: Connection, readable: Collection[str], now: datetime) -> tuple[dict[int, str], bool]:
    """The newest loaded batches, each with its day, with at most :data:`RECENT` new messages altogether."""
    where, values = routes_in(readable)
    rows = rows_of(
        connection,
        "select batch_id, new_copies, loaded_at from staging_batches where loaded_at >= :since_at and new_copies > 0"
        f" and {where} order by batch_id desc limit 20000",
        since_at=now - timedelta(days=DAYS),
        **values,
    )
    chosen: dict[int, str] = {}
    total = 0
    for row in rows:
        total += row["new_copies"]
        if chosen and total > RECENT:
            return chosen, True
        chosen[row["batch_id"]] = f"{row['loaded_at'].astimezone(UTC):%Y-%m-%d}"
    return chosen, len(rows) == 20_000


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
    where, values = routes_in(readable)
    found, total = 0, 0
    # Row by row: where the newest slices are large, the others are not fetched.
    with connection.execute(
        sql(f"select slice_id, sent from delivery_slices where {where} order by slice_id desc limit 5000"), values
    ) as rows:
        for row in rows:
            found, total = int(row.slice_id), total + row.sent
            if total > most:
                break
    return found
