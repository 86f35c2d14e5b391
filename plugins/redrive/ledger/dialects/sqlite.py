"""What SQLite says otherwise than PostgreSQL."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from sqlite3 import SQLITE_BUSY
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DatabaseError, DBAPIError

from redrive.ledger.dialects import sqlite_file
from redrive.ledger.dialects.base import Dialect
from redrive.ledger.dialects.driver import through_driver
from redrive.ledger.dialects.stored_headers import header_condition


class Sqlite(Dialect):
    """SQLite has one writer at a time, so nothing needs to be locked."""

    name = "sqlite"
    zone = ""
    locked = ""
    locked_shared = ""
    for_update = ""
    for_share = ""
    isolation = None
    instant_type = sa.Text()  # see instant_text
    counts_changes = True

    def open_engine(self, url: sa.URL, patience: timedelta | None) -> sa.Engine:
        return sqlite_file.open_engine(url, sqlite_file.PATIENCE if patience is None else patience)

    def is_absent(self, url: sa.URL) -> bool:
        return sqlite_file.is_absent(url)

    def make(self, url: sa.URL) -> None:
        sqlite_file.make(url)

    def begin(self, connection: Connection) -> None:
        connection.exec_driver_sql("begin immediate")  # a writer waits here for its turn

    def begin_reading(self, connection: Connection) -> None:
        connection.exec_driver_sql("begin deferred")  # and a reader for nobody

    def is_busy(self, error: DBAPIError) -> bool:
        return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF == SQLITE_BUSY

    def is_unreadable(self, error: DBAPIError) -> bool:
        return type(error) is DatabaseError  # the file is damaged or something else

    def later(self, base: str, seconds: str) -> str:
        # A bind's day number is computed once for all rows; as a modifier the seconds would be written and read again.
        return f"strftime('%Y-%m-%d %H:%M:%f', julianday({base}) + round({seconds}, 3) / 86400.0) || '000'"

    def latest(self, one: str, other: str) -> str:
        return f"max({one}, {other})"

    def earliest(self, one: str, other: str) -> str:
        return f"min({one}, {other})"

    def seconds_between(self, start: str, end: str) -> str:
        return f"((julianday({end}) - julianday({start})) * 86400.0)"

    def day(self, instant: str) -> str:
        return f"substr({instant}, 1, 10)"

    def ago(self, time: str) -> str:
        return f"(strftime('%Y-%m-%d %H:%M:%f', 'now', '-{time}') || '000')"

    def hexadecimal(self, number: str, digits: int) -> str:
        return f"printf('%0{digits}x', {number})"

    def contains(self, text: str, pattern: str) -> str:
        return rf"{text} like {pattern} escape '\'"  # which knows no upper and lower case (in ASCII)

    def some_header(self, headers: str, name: str, value: str) -> tuple[str, dict[str, str]]:
        # A quote inside of a string follows a backslash, so the ends of an element say it all.
        begin, end = ":header_begin", ":header_end"
        apart = (
            f"exists (select 1 from json_each({headers}) as header"  # which leaves the blanks out
            f" where substr(header.value, 1, length({begin})) = {begin}"
            f" and substr(header.value, length(header.value) - length({end}) + 1) = {end})"
        )
        values = {"header_begin": f"[{json.dumps(name)},", "header_end": f",{json.dumps(value)}]"}
        return header_condition(lambda bind: f"instr({headers}, {bind}) > 0", name, value, apart, values)

    def members(self, text: str) -> str:
        return f"json_each({text}) as member"

    def begins(self, column: str, low: str, high: str) -> str:
        return f"({column} >= {low} and {column} < {high})"

    def by_beginning(self, column: str) -> str:
        return column

    def marks(self, types: Sequence[str]) -> str:
        return ", ".join("?" for _ in types)

    def few(self, column: str, chosen: str) -> str:
        return f"{column} in ({chosen})"

    def in_row(self, column: str) -> str:
        return f"+{column}"

    def tidy_up_early(self, connection: Connection, tables: Sequence[str]) -> None:
        pass  # it changes rows where they are

    def seen(self, connection: Connection) -> str:
        newest = connection.exec_driver_sql("select max(changed) from escalated_messages where changed is not null")
        return str(newest.scalar() or 0)

    def unchanged(self, seen: str) -> str:
        return f"coalesce(changed, 0) <= cast({seen} as integer)"

    def off_index(self, column: str) -> str:
        return f"+{column}"

    def temporary(self, connection: Connection, name: str, columns: str) -> None:
        connection.exec_driver_sql(f"drop table if exists temp.{name}")
        # Only INTEGER makes the key the row's own place; BIGINT would make a second tree.
        portable = columns.replace("bigint primary key", "integer primary key")
        connection.exec_driver_sql(f"create temp table {name} ({portable})")

    def bulk(self, connection: Connection, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        statement = f"insert into {table} ({','.join(columns)}) values ({','.join('?' * len(columns))})"
        with through_driver(connection, statement) as raw:
            raw.executemany(statement, rows)

    def many(self, connection: Connection, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        if not rows:
            return 0
        with through_driver(connection, statement) as raw:
            return int(raw.executemany(statement, rows).rowcount)

    def update_each(
        self, connection: Connection, table: sa.Table, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        values = ", ".join(f"{column} = ?" for column in columns)
        key = " and ".join(f"{column.name} = ?" for column in table.primary_key)
        self.many(connection, f"update {table.name} set {values} where {key}", rows)

    def tuples(self, connection: Connection, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with through_driver(connection, statement) as raw:
            return list(raw.execute(statement, values).fetchall())

    def stored(self, value: datetime | None) -> Any:
        return None if value is None else instant_text(value)

    def comparable(self, instant: Any) -> Any:
        return instant

    def look_again(self, connection: Connection, table: str, changed: int) -> None:
        pass  # it plans without looking

    def look_at_temporary(self, connection: Connection, name: str) -> None:
        pass

    def no_longer_than(self, connection: Connection, limit: str) -> None:
        pass  # it has no such limit

    def count_on(self, connection: Connection, table: str, column: str, last: int) -> None:  # noqa: ARG002
        values = {"last": last, "table": table}
        connection.execute(sa.text("update sqlite_sequence set seq = max(seq, :last) where name = :table"), values)
        connection.execute(
            sa.text(
                "insert into sqlite_sequence (name, seq) select :table, :last"
                " where not exists (select 1 from sqlite_sequence where name = :table)"
            ),
            values,
        )

    def in_turn(self, connection: Connection, name: str) -> None:
        pass  # its one writer is us

    def begin_upgrade(self, connection: Connection) -> None:
        pass  # its one writer is us

    def as_it_is(self, connection: Connection, statement: str) -> None:
        connection.exec_driver_sql(statement)

    def lacks_reviewers(self, connection: Connection) -> bool:  # noqa: ARG002
        return False

    def may_lose(self, connection: Connection) -> str | None:  # noqa: ARG002
        return None

    def clock(self, connection: Connection) -> datetime | None:  # noqa: ARG002
        return None

    def replace_views(self, connection: Connection, statements: Sequence[str]) -> bool:  # noqa: ARG002
        return False


def instant_text(value: datetime) -> str:
    """``value`` as SQLite stores it, ``YYYY-MM-DD HH:MM:SS.ffffff`` in UTC: text that sorts, compares and reads like a
    time, and works with SQLite's date functions."""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
