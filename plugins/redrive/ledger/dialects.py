"""Where SQLite and PostgreSQL differ: connections, fragments of SQL, temporary tables, the fastest way in and out.

Nobody else asks which of the two it is; what has to be said in the one otherwise than in the other is a method here,
with two implementations.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DatabaseError, DBAPIError, ProgrammingError

from redrive.errors import LedgerRefused
from redrive.extras import needing
from redrive.ledger import sqlite_file

if TYPE_CHECKING:
    import pyarrow as pa

#: How each file of a view begins its statement.
CREATE_VIEW = re.compile(r"^create view (\w+)", re.MULTILINE)
#: How brokers call the type of a header that is text: headers of these are found without their JSON being taken apart.
_TEXT_TYPES = ("String", "longstr")
_TABLE = re.compile(r"\b(?:insert into|update|copy|delete from)\s+(\w+)", re.IGNORECASE)


class Dialect(ABC):
    """What is said in one database otherwise than in the other."""

    name: str
    #: Suffix of a query that lets concurrent claimers pass each other.
    locked: str
    #: Suffix of a query whose rows nobody else may change until the transaction ends.
    for_update: str
    #: The same where others may say so too: it waits for who changes them, not for who reads them.
    for_share: str
    #: The isolation in which a reader sees one moment; None: it does anyway.
    isolation: str | None
    #: The type of a column of instants.
    instant_type: sa.types.TypeEngine[Any]

    # --- connections ------------------------------------------------------------------------------------------

    @abstractmethod
    def open_engine(self, url: sa.URL) -> sa.Engine:
        """What connects to the database of ``url``, so that a transaction is durable when it ends."""

    @abstractmethod
    def begin(self, connection: Connection) -> None:
        """Begin a transaction that writes."""

    @abstractmethod
    def begin_reading(self, connection: Connection) -> None:
        """Begin a transaction that only reads."""

    @abstractmethod
    def is_unreadable(self, error: DBAPIError) -> bool:
        """Whether ``error`` says that there is no database, or a damaged one, where the ledger should be."""

    # --- fragments of SQL -------------------------------------------------------------------------------------

    @abstractmethod
    def later(self, base: str, seconds: str) -> str:
        """The instant ``seconds`` (an expression) after ``base`` (an instant expression or bind)."""

    @abstractmethod
    def latest(self, one: str, other: str) -> str:
        """The later of two instants, neither of them null."""

    @abstractmethod
    def seconds_between(self, start: str, end: str) -> str:
        """The seconds from ``start`` to ``end``, as a float."""

    @abstractmethod
    def day(self, instant: str) -> str:
        """The day of an instant in UTC, as text."""

    @abstractmethod
    def ago(self, time: str) -> str:
        """The instant ``time``, such as ``1 day``, before now by the database's clock."""

    @abstractmethod
    def hexadecimal(self, number: str, digits: int) -> str:
        """``number`` (an expression that is not negative) in lower case, filled with zeros to ``digits``."""

    @abstractmethod
    def contains(self, text: str, pattern: str) -> str:
        """Whether ``text`` is like the bind ``pattern``, where a backslash escapes, whatever its case."""

    @abstractmethod
    def some_header(self, headers: str, name: str, value: str) -> tuple[str, dict[str, str]]:
        """Whether one of the ``headers``, JSON of ``[["name", "type", "value"], …]`` as :func:`json.dumps` writes it,
        has this name and value; and the condition's parameters.

        It is compared as JSON, as it was written: a header may hold what is no text of a database, NUL for one, and
        what takes the JSON apart fails then.
        """

    @abstractmethod
    def members(self, text: str) -> str:
        """``key`` and ``value`` of each member of a JSON object of texts, as ``member`` in a ``from``."""

    @abstractmethod
    def begins(self, column: str, low: str, high: str) -> str:
        """Whether ``column`` is from the bind ``low`` on and before the bind ``high``, character by character, by the
        index that is made for it."""

    @abstractmethod
    def marks(self, types: Sequence[str]) -> str:
        """Marks for :meth:`many` in the list of a ``select``, by the types that PostgreSQL gives them."""

    @abstractmethod
    def few(self, column: str, chosen: str) -> str:
        """That ``column`` is among the numbers that ``chosen`` selects, which are few beside all rows, and which the
        database has not counted yet: it looks each of them up, whatever it believes of the table."""

    @abstractmethod
    def off_index(self, column: str) -> str:
        """``column`` in a condition for which no index is used: what must be looked for in the rows themselves is found
        faster by reading them as they lie than by jumping to each row that an index names."""

    # --- rows in and out --------------------------------------------------------------------------------------

    @abstractmethod
    def temporary(self, connection: Connection, name: str, columns: str) -> None:
        """An empty temporary table ``name`` for this transaction's set-based work."""

    @abstractmethod
    def bulk(self, connection: Connection, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Load ``rows`` (tuples in the order of ``columns``) the fastest way. Instants must be as :meth:`stored`."""

    @abstractmethod
    def many(self, connection: Connection, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run ``statement`` (with ``?`` marks) once per row through the driver; the number of rows changed."""

    @abstractmethod
    def tuples(self, connection: Connection, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The rows of a query (with ``?`` marks) as the driver gives them: plain tuples, instants as stored."""

    @abstractmethod
    def stored(self, value: datetime | None) -> Any:
        """``value`` as the driver takes it, in :meth:`bulk` and :meth:`many` too."""

    @abstractmethod
    def stored_column(self, column: "pa.Array") -> list[Any]:
        """Arrow timestamps as :meth:`stored`."""

    @abstractmethod
    def comparable(self, instant: Any) -> Any:
        """A stored instant as something that is equal when the instants are."""

    @abstractmethod
    def look_again(self, connection: Connection, table: str, added: int) -> None:
        """So many rows were added to ``table``: where that is much beside what the database knew of it, let it look
        again, for it plans statements by what it knows, and looks by itself a minute later. Harmless at any time."""

    # --- the database as a whole ------------------------------------------------------------------------------

    @abstractmethod
    def no_longer_than(self, connection: Connection, limit: str) -> None:
        """Give up each statement of this transaction that takes longer than ``limit``, such as ``20s``."""

    @abstractmethod
    def count_on(self, connection: Connection, table: str, column: str, last: int) -> None:
        """The next row of ``table`` gets a greater ``column`` than ``last``, which counts up by itself."""

    @abstractmethod
    def begin_upgrade(self, connection: Connection) -> None:
        """Of two upgrades at once the second waits until the first is done; there is a schema to put tables in."""

    @abstractmethod
    def as_it_is(self, connection: Connection, statement: str) -> None:
        """Run ``statement``, in which neither a colon nor a percent sign means anything but itself."""

    @abstractmethod
    def replace_views(self, connection: Connection, statements: Sequence[str]) -> bool:
        """Run ``statements`` with each view replaced in place, so that what people built on it stays; False where that
        isn't possible, and nothing has changed."""


class Sqlite(Dialect):
    """SQLite has one writer at a time, so nothing needs to be locked."""

    name = "sqlite"
    locked = ""
    for_update = ""
    for_share = ""
    isolation = None
    instant_type = sa.Text()  # see instant_text

    def open_engine(self, url: sa.URL) -> sa.Engine:
        return sqlite_file.open_engine(url)

    def begin(self, connection: Connection) -> None:
        connection.exec_driver_sql("begin immediate")  # a writer waits here for its turn

    def begin_reading(self, connection: Connection) -> None:
        connection.exec_driver_sql("begin deferred")  # and a reader for nobody

    def is_unreadable(self, error: DBAPIError) -> bool:
        return type(error) is DatabaseError  # the file is damaged or something else

    def later(self, base: str, seconds: str) -> str:
        # A bind's day number is computed once for all rows; as a modifier the seconds would be written and read again.
        return f"strftime('%Y-%m-%d %H:%M:%f', julianday({base}) + round({seconds}, 3) / 86400.0) || '000'"

    def latest(self, one: str, other: str) -> str:
        return f"max({one}, {other})"

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
        return _some_header(lambda bind: f"instr({headers}, {bind}) > 0", name, value, apart, values)

    def members(self, text: str) -> str:
        return f"json_each({text}) as member"

    def begins(self, column: str, low: str, high: str) -> str:
        return f"({column} >= {low} and {column} < {high})"

    def marks(self, types: Sequence[str]) -> str:
        return ", ".join("?" for _ in types)

    def few(self, column: str, chosen: str) -> str:
        return f"{column} in ({chosen})"

    def off_index(self, column: str) -> str:
        return f"+{column}"

    def temporary(self, connection: Connection, name: str, columns: str) -> None:
        connection.exec_driver_sql(f"drop table if exists temp.{name}")
        # Only INTEGER makes the key the row's own place; BIGINT would make a second tree.
        portable = columns.replace("bigint primary key", "integer primary key")
        connection.exec_driver_sql(f"create temp table {name} ({portable})")

    def bulk(self, connection: Connection, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        statement = f"insert into {table} ({','.join(columns)}) values ({','.join('?' * len(columns))})"
        with _through_driver(connection, statement) as raw:
            raw.executemany(statement, rows)

    def many(self, connection: Connection, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        if not rows:
            return 0
        with _through_driver(connection, statement) as raw:
            return int(raw.executemany(statement, rows).rowcount)

    def tuples(self, connection: Connection, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with _through_driver(connection, statement) as raw:
            return list(raw.execute(statement, values).fetchall())

    def stored(self, value: datetime | None) -> Any:
        return None if value is None else instant_text(value)

    def stored_column(self, column: "pa.Array") -> list[Any]:
        import pyarrow as pa  # noqa: PLC0415 - only a load needs Arrow

        if column.null_count == len(column):
            return [None] * len(column)
        distinct = column.dictionary_encode()
        if len(distinct.dictionary) * 2 < len(column):  # thousands of copies are received at one moment
            texts = self.stored_column(distinct.dictionary)
            return [None if i is None else texts[i] for i in distinct.indices.to_pylist()]
        return list(column.cast(pa.timestamp("us")).cast(pa.string()).to_pylist())

    def comparable(self, instant: Any) -> Any:
        return instant

    def look_again(self, connection: Connection, table: str, added: int) -> None:
        pass  # it plans without looking

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

    def begin_upgrade(self, connection: Connection) -> None:
        pass  # its one writer is us

    def as_it_is(self, connection: Connection, statement: str) -> None:
        connection.exec_driver_sql(statement)

    def replace_views(self, connection: Connection, statements: Sequence[str]) -> bool:  # noqa: ARG002
        return False


class Postgresql(Dialect):
    """PostgreSQL."""

    name = "postgresql"
    locked = "for update skip locked"
    for_update = " for update"
    for_share = " for share"
    isolation = "REPEATABLE READ"
    instant_type = sa.DateTime(timezone=True)

    def open_engine(self, url: sa.URL) -> sa.Engine:
        with needing("postgres", "database: PostgreSQL"):  # whose driver is imported here
            return sa.create_engine(
                url,
                connect_args={"options": "-csearch_path=redrive -ctimezone=UTC"},
                pool_pre_ping=True,
                hide_parameters=True,
            )

    def begin(self, connection: Connection) -> None:
        pass  # its driver does with the first statement

    def begin_reading(self, connection: Connection) -> None:
        pass

    def is_unreadable(self, error: DBAPIError) -> bool:  # noqa: ARG002
        return False  # its server says so itself

    def later(self, base: str, seconds: str) -> str:
        return f"(cast({base} as timestamptz) + ({seconds}) * interval '1 second')"

    def latest(self, one: str, other: str) -> str:
        return f"greatest({one}, {other})"

    def seconds_between(self, start: str, end: str) -> str:
        return f"extract(epoch from ({end} - {start}))"

    def day(self, instant: str) -> str:
        return f"to_char({instant} at time zone 'UTC', 'YYYY-MM-DD')"

    def ago(self, time: str) -> str:
        return f"(now() - interval '{time}')"

    def hexadecimal(self, number: str, digits: int) -> str:
        return f"lpad(to_hex({number}), {digits}, '0')"

    def contains(self, text: str, pattern: str) -> str:
        return rf"lower({text}) like lower({pattern}) escape '\'"

    def some_header(self, headers: str, name: str, value: str) -> tuple[str, dict[str, str]]:
        begin, end = ":header_begin", ":header_end"
        apart = (
            f"exists (select 1 from (select cast(json_array_elements(cast({headers} as json)) as text) as value)"
            f" as header where substr(header.value, 1, length({begin})) = {begin}"
            f" and substr(header.value, length(header.value) - length({end}) + 1) = {end})"
        )
        values = {"header_begin": f"[{json.dumps(name)},", "header_end": f", {json.dumps(value)}]"}
        return _some_header(lambda bind: f"strpos({headers}, {bind}) > 0", name, value, apart, values)

    def members(self, text: str) -> str:
        return f"json_each_text(cast({text} as json)) as member"

    def begins(self, column: str, low: str, high: str) -> str:
        return f"({column} ~>=~ {low} and {column} ~<~ {high})"

    def marks(self, types: Sequence[str]) -> str:
        # It can't infer the types of bare parameters in the list of a select.
        return ", ".join(f"?::{name}" for name in types)

    def few(self, column: str, chosen: str) -> str:
        # As a join it is planned by statistics: where nothing was waiting when they were taken, they tell of hardly a
        # message that waits, and for each that does the whole slice is read.
        return f"{column} = any(array({chosen}))"

    def off_index(self, column: str) -> str:
        return column  # its planner knows

    def temporary(self, connection: Connection, name: str, columns: str) -> None:
        connection.exec_driver_sql(f"drop table if exists pg_temp.{name}")
        portable = columns.replace("blob", "bytea").replace("instant", "timestamptz")
        connection.exec_driver_sql(f"create temp table {name} ({portable}) on commit drop")

    def bulk(self, connection: Connection, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        statement = f"copy {table} ({','.join(columns)}) from stdin"
        with _through_driver(connection, statement) as raw, raw.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    def many(self, connection: Connection, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        if not rows:
            return 0
        with _through_driver(connection, statement) as raw, raw.cursor() as cursor:
            cursor.executemany(statement.replace("?", "%s"), rows)
            return int(cursor.rowcount)

    def tuples(self, connection: Connection, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with _through_driver(connection, statement) as raw:
            return list(raw.execute(statement.replace("?", "%s"), values).fetchall())

    def stored(self, value: datetime | None) -> Any:
        return value

    def stored_column(self, column: "pa.Array") -> list[Any]:
        return list(column.to_pylist())

    def comparable(self, instant: Any) -> Any:
        return None if instant is None else instant.timestamp()

    def look_again(self, connection: Connection, table: str, added: int) -> None:
        known = connection.execute(
            sa.text("select max(reltuples) from pg_class where oid = to_regclass(:table)"), {"table": table}
        ).scalar_one()
        if known is not None and added > known / 5:
            connection.exec_driver_sql(f"analyze {table}")

    def no_longer_than(self, connection: Connection, limit: str) -> None:
        connection.execute(sa.text(f"set local statement_timeout = '{limit}'"))

    def count_on(self, connection: Connection, table: str, column: str, last: int) -> None:
        counter = connection.execute(
            sa.text("select pg_get_serial_sequence(:table, :column)"), {"table": table, "column": column}
        ).scalar_one()
        given = connection.execute(
            sa.text(f"select case when is_called then last_value else 0 end from {counter}")
        ).scalar_one()
        # Counted on and not set: others may be counting at this moment, and a counter that is set may go back.
        connection.execute(
            sa.text("select count(nextval(cast(:counter as regclass))) from generate_series(1, :missing)"),
            {"counter": counter, "missing": max(0, last - given)},
        )

    def begin_upgrade(self, connection: Connection) -> None:
        connection.exec_driver_sql("select pg_advisory_xact_lock(7239581)")
        # "if not exists" asks for the right to create before it looks, and whoever upgrades may lack it
        if connection.exec_driver_sql("select to_regnamespace('redrive')").scalar() is None:
            connection.exec_driver_sql("create schema redrive")

    def as_it_is(self, connection: Connection, statement: str) -> None:
        connection.exec_driver_sql(statement.replace("%", "%%"))  # psycopg reads a percent sign as a parameter

    def replace_views(self, connection: Connection, statements: Sequence[str]) -> bool:
        try:
            with connection.begin_nested():
                for statement in statements:
                    self.as_it_is(connection, CREATE_VIEW.sub(r"create or replace view \1", statement))
        except ProgrammingError:
            return False  # a view lost or renamed a column
        return True


def _some_header(
    holds: Callable[[str], str], name: str, value: str, apart: str, values: dict[str, str]
) -> tuple[str, dict[str, str]]:
    """Most rows are passed over, and most others taken, by looking for what the header is written as; the JSON of the
    rest is taken ``apart``."""
    named, valued = json.dumps(name), json.dumps(value)
    # Where a quote closes a string, a comma or a bracket follows. So what begins like this is a header's beginning and
    # no text inside of one, but for such names.
    types = () if name.startswith((",", "]")) else _TEXT_TYPES
    written = {f"header_{number}": f'[{named}, "{kind}", {valued}]' for number, kind in enumerate(types)}
    either = " or ".join([*(holds(f":{bind}") for bind in written), apart])
    return f"({holds(':header_value')} and ({either}))", {**values, **written, "header_value": f"{valued}]"}


_ALL: dict[str, Dialect] = {one.name: one for one in (Sqlite(), Postgresql())}


def dialect_of(connection: Connection) -> Dialect:
    """That of the database that ``connection`` leads to."""
    return named(connection.dialect.name)


def named(name: str) -> Dialect:
    """``sqlite`` or ``postgresql``; KeyError for any other."""
    return _ALL[name]


def instant_text(value: datetime) -> str:
    """``value`` as SQLite stores it, ``YYYY-MM-DD HH:MM:SS.ffffff`` in UTC: text that sorts, compares and reads like a
    time, and works with SQLite's date functions."""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


@contextmanager
def _through_driver(connection: Connection, statement: str) -> Iterator[Any]:
    """The driver's own connection, whose errors are told as if ``statement`` had gone through SQLAlchemy."""
    raw: Any = connection.connection.driver_connection
    dialect = connection.dialect
    base: type[Exception] = dialect.loaded_dbapi.Error
    try:
        yield raw
    except (OverflowError, UnicodeEncodeError) as error:  # of SQLite's driver, for what no column can hold
        raise LedgerRefused(f"ledger {connection.engine.url.database}: {refusal(statement, error)}") from error
    except base as error:
        lost = dialect.is_disconnect(error, raw, None)  # type: ignore[arg-type]
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
