"""The few places where SQLite and PostgreSQL differ: fragments of SQL, temporary tables, the fastest way in and out.

No operation elsewhere asks which of the two it runs on.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from redrive.errors import LedgerRefused
from redrive.ledger.statements import instant_text

_TABLE = re.compile(r"\b(?:insert into|update|copy|delete from)\s+(\w+)", re.IGNORECASE)


class Dialect:
    """What has to be said in the one database otherwise than in the other."""

    is_sqlite: bool

    def later(self, base: str, seconds: str) -> str:
        """SQL for the instant ``seconds`` (an expression) after ``base`` (an instant expression or bind)."""
        if self.is_sqlite:
            return f"strftime('%Y-%m-%d %H:%M:%f', {base}, '+' || round({seconds}, 3) || ' seconds') || '000'"
        return f"(cast({base} as timestamptz) + ({seconds}) * interval '1 second')"

    def seconds_between(self, start: str, end: str) -> str:
        """SQL for the seconds from ``start`` to ``end``, as a float."""
        if self.is_sqlite:
            return f"((julianday({end}) - julianday({start})) * 86400.0)"
        return f"extract(epoch from ({end} - {start}))"

    def hexadecimal(self, number: str, digits: int) -> str:
        """SQL for ``number`` (an expression that is not negative) in lower case, filled with zeros to ``digits``."""
        if self.is_sqlite:
            return f"printf('%0{digits}x', {number})"
        return f"lpad(to_hex({number}), {digits}, '0')"

    @property
    def locked(self) -> str:
        """SQL suffix that lets concurrent claimers pass each other; SQLite has one writer anyway."""
        return "" if self.is_sqlite else "for update skip locked"

    def temporary(self, connection: Connection, name: str, columns: str) -> None:
        """An empty temporary table ``name`` for this transaction's set-based work."""
        if self.is_sqlite:
            connection.exec_driver_sql(f"drop table if exists temp.{name}")
            # Only INTEGER makes the key the row's own place; BIGINT would make a second tree.
            portable = columns.replace("bigint primary key", "integer primary key")
            connection.exec_driver_sql(f"create temp table {name} ({portable})")
        else:
            connection.exec_driver_sql(f"drop table if exists pg_temp.{name}")
            portable = columns.replace("blob", "bytea").replace("instant", "timestamptz")
            connection.exec_driver_sql(f"create temp table {name} ({portable}) on commit drop")

    def bulk(self, connection: Connection, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Load ``rows`` (tuples in the order of ``columns``) the fastest way: COPY, or prepared inserts.

        Instants must already be what the database stores: text on SQLite, aware datetimes on PostgreSQL.
        """
        raw: Any = connection.connection.driver_connection
        names = ",".join(columns)
        if self.is_sqlite:
            statement = f"insert into {table} ({names}) values ({','.join('?' * len(columns))})"
            with self._through_driver(connection, statement):
                raw.executemany(statement, rows)
            return
        statement = f"copy {table} ({names}) from stdin"
        with self._through_driver(connection, statement), raw.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    def many(self, connection: Connection, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run ``statement`` (with ``?`` marks) once per row through the driver; the number of rows changed."""
        if not rows:
            return 0
        raw: Any = connection.connection.driver_connection
        with self._through_driver(connection, statement):
            if self.is_sqlite:
                return int(raw.executemany(statement, rows).rowcount)
            with raw.cursor() as cursor:
                cursor.executemany(statement.replace("?", "%s"), rows)
                return int(cursor.rowcount)

    def tuples(self, connection: Connection, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The rows of a query (with ``?`` marks) as the driver gives them: plain tuples, instants as stored."""
        raw: Any = connection.connection.driver_connection
        text = statement if self.is_sqlite else statement.replace("?", "%s")
        with self._through_driver(connection, statement):
            return list(raw.execute(text, values).fetchall())

    def stored(self, value: datetime | None) -> Any:
        """``value`` as :meth:`bulk` and :meth:`many` need it."""
        return instant_text(value) if self.is_sqlite and value is not None else value

    @contextmanager
    def _through_driver(self, connection: Connection, statement: str) -> Iterator[None]:
        """Errors of the driver as those of SQLAlchemy, as if ``statement`` had gone through it."""
        dialect = connection.dialect
        base: type[Exception] = dialect.loaded_dbapi.Error
        try:
            yield
        except (OverflowError, UnicodeEncodeError) as error:  # of SQLite's driver, for what no column can hold
            raise LedgerRefused(f"ledger {connection.engine.url.database}: {refusal(statement, error)}") from error
        except base as error:
            lost = dialect.is_disconnect(error, connection.connection.driver_connection, None)  # type: ignore[arg-type]
            told = DBAPIError.instance(
                statement, None, error, base, hide_parameters=True, connection_invalidated=lost, dialect=dialect
            )
            if lost:
                connection.invalidate(error)
            raise told from error


def refusal(statement: str | None, error: object) -> str:
    """What is told of an ``error`` without the values that it is about."""
    table = _TABLE.search(statement or "")
    said = str(error).strip().splitlines()[0]
    return f"a value {f'for table {table[1]} ' if table else ''}was refused: {said}"
