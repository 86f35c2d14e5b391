"""What pages read of single messages: those of a filter page by page by key, and one with all about it."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive.ledger.dialects import dialect_of
from redrive.ledger.engine import parse_instant, sql
from redrive.ledger.tables import staging_batches
from redrive.lifecycle import ReviewStatus
from redrive.message import ROW_BITS
from redrive.redaction import MARGIN
from redrive_ui.filters import STATUSES, Filter
from redrive_ui.recent import newest
from redrive_ui.rows import PAGE, Row, first_of, routes_in, rows_of

#: So many messages that somebody still has to see to are counted; where there are more, that is said.
COUNT_TO = 100_000
#: The same where those that are done with are among them, which are a ledger's whole past.
COUNT_DONE = 10_000
#: So much of a text is shown in a list, and so much is read of it for that.
SHOWN = 2_000
READ = SHOWN + MARGIN
#: The newest messages are looked for in so many of the newest batches at most.
LOOK_BATCHES = 2_000


def page(connection: Connection, chosen: Filter, readable: Collection[str], *, after: int | None = None,
         oldest_first: bool = False, size: int = PAGE) -> list[Row]:  # fmt: skip
    """A page of escalated messages, newest first; one row more than ``size`` where there is more."""
    where, values = chosen.where(readable, dialect_of(connection), newest=True)
    if after is not None:
        where += f" and escalation_id {'>' if oldest_first else '<'} :after"
        values["after"] = after
    # Ids first: they come from an index, without reading a payload of what is not shown.
    ids = _ids(connection, where, values, oldest_first=oldest_first, limit=size + 1)
    found = {row["escalation_id"]: row for row in by_ids(connection, ids)}
    return [found[one] for one in ids if one in found]


def ids(connection: Connection, chosen: Filter, readable: Collection[str], limit: int) -> list[int]:
    """The newest escalation ids that match."""
    where, values = chosen.where(readable, dialect_of(connection))
    return _ids(connection, where, values, oldest_first=False, limit=limit)


def _ids(connection: Connection, where: str, values: Mapping[str, Any], *, oldest_first: bool, limit: int) -> list[int]:
    rows = connection.execute(
        sql(
            f"select escalation_id from escalated_messages where {where} order by escalation_id"
            f" {'asc' if oldest_first else 'desc'} limit :size"
        ),
        {**values, "size": limit},
    )
    return list(rows.scalars())


def by_ids(connection: Connection, ids: Iterable[int]) -> list[Row]:
    """Escalations without their payloads, with the beginnings of their texts."""
    wanted = ", ".join(str(int(one)) for one in ids)
    if not wanted:
        return []
    return rows_of(
        connection,
        f"select escalation_id, message_id, route, group_id, cause, substr(reason, 1, {READ}) as reason,"
        f" substr(error_text, 1, {READ}) as error_text, size_bytes, content_type, source, destination, message_key,"
        " attempts, first_enqueued_at, escalated_at, suggested_decision, status, decision, decided_by, decided_at,"
        f" approved_by, note, substr(refusal, 1, {READ}) as refusal, applied_at from escalated_messages"
        f" where escalation_id in ({wanted})",
    )


def payload(connection: Connection, escalation_id: int) -> str | None:
    """The payload of one escalation, where it is text."""
    row = first_of(connection, "select payload from escalated_messages where escalation_id = :id", id=escalation_id)
    found: str | None = row["payload"] if row else None
    return found


class Count(NamedTuple):
    """How many messages match, as far as they are counted."""

    messages: int
    more: bool  # there are more than that


def count(connection: Connection, chosen: Filter, readable: Collection[str]) -> Count:
    """How many match, of :data:`COUNT_TO` or :data:`COUNT_DONE`."""
    where, values = chosen.where(readable, dialect_of(connection))
    most = COUNT_DONE if ReviewStatus.APPLIED in STATUSES[chosen.status] else COUNT_TO
    (row,) = rows_of(
        connection,
        f"select count(*) as n from (select 1 from escalated_messages where {where} limit {most + 1}) as found",
        **values,
    )
    return Count(min(int(row["n"]), most), row["n"] > most)


def newest_question(connection: Connection) -> int:
    """The newest escalation id that there is; 0 without any."""
    (row,) = rows_of(connection, "select coalesce(max(escalation_id), 0) as newest from escalated_messages")
    return int(row["newest"])


def floor_of(
    connection: Connection, readable: Collection[str], count: int, *, before: int | None = None
) -> tuple[int, datetime | None]:
    """The first of the ``count`` newest messages (of those before ``before``), by whole batches and at least one; and
    when that batch was staged, None where there are no older ones."""
    batches = newest(
        connection,
        staging_batches,
        "new_copies, opened_at",
        readable,
        LOOK_BATCHES + 1,
        where="new_copies > 0",
        last=None if before is None else before - 1 >> ROW_BITS,
    )
    floor, total = None, 0
    for number, row in enumerate(batches, start=1):
        if floor is not None:
            return floor.batch_id << ROW_BITS, parse_instant(floor.opened_at)
        total += row.new_copies
        if total >= count or number == LOOK_BATCHES:
            floor = row
    return 0, None


def message(connection: Connection, message_id: int, readable: Collection[str]) -> Row | None:
    """One message with its cause, its newest escalation (``review``, the one with its payload), when there were any
    and why (``reviews``), and everything that happened to it.

    None where there is no such message on a route that may be read; a copy that was found on another route is left out.
    """
    where, values = routes_in(readable)
    mine = f"message_id = :id and {where}"
    values["id"] = message_id
    found = first_of(connection, f"select * from messages where {mine}", **values)
    if found is None:
        return None
    known = first_of(connection, "select cause from failure_groups where group_id = :id", id=found["group_id"] or 0)
    found["group_cause"] = known and known["cause"]
    asked = f"from escalated_messages where {mine} order by escalation_id desc limit"
    found["review"] = first_of(connection, f"select * {asked} 1", **values)
    found["reviews"] = rows_of(connection, f"select escalated_at, reason, applied_at, decision {asked} 20", **values)
    found["attempts_made"] = rows_of(
        connection,
        "select redelivery_attempts.*, (select run_id from delivery_slices where delivery_slices.slice_id ="
        f" redelivery_attempts.slice_id) as run_id from redelivery_attempts where {mine} order by attempt limit 200",
        **values,
    )
    found["copies"] = rows_of(
        connection, f"select * from repeat_copies where {mine} order by copy_id limit 200", **values
    )
    found["batch"] = first_of(
        connection,
        f"select * from staging_batches where batch_id = :batch and {where}",
        **values,
        batch=message_id >> 20,
    )
    found["events"] = rows_of(
        connection, f"select * from audit_events where {mine} order by event_id limit 200", **values
    )
    ids = {
        one["run_id"] for one in [*found["attempts_made"], *found["events"], found["batch"] or {}] if one.get("run_id")
    }
    found["runs"] = {
        row["run_id"]: row
        for row in rows_of(
            connection,
            f"select * from runs where run_id in ({', '.join(f':run_{i}' for i, _ in enumerate(ids)) or 'null'})"
            f" and {where}",
            **{f"run_{i}": run_id for i, run_id in enumerate(sorted(ids))},
            **values,
        )
    }
    return found
