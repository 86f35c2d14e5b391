"""The ledger's database: connections, transactions, instants, and bulk loads on SQLite and PostgreSQL.

Every write goes through :meth:`Ledger.write`, one transaction that is durable when the block ends. SQL is
written once, as text with named parameters (:func:`sql`); the few places where the two databases differ are
methods here, so that no operation elsewhere asks which one it runs on.
"""

import re
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, DataError, DBAPIError, OperationalError

from redrive.errors import LedgerRefused, LedgerUnavailable, SettingsError
from redrive.extras import needing

#: Rows per bulk statement: large enough to amortise the call, small enough to stay flat in memory.
CHUNK_ROWS = 50_000

_TABLE = re.compile(r"\b(?:insert into|update|copy|delete from)\s+(\w+)", re.IGNORECASE)
_BIND = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")


class Instant(sa.types.TypeDecorator[datetime]):
    """A point in time, UTC. ``timestamptz`` on PostgreSQL; on SQLite text ``YYYY-MM-DD HH:MM:SS.ffffff``,
    which sorts, compares and reads like a time and works with SQLite's date functions."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.DateTime(timezone=True))
        return dialect.type_descriptor(sa.Text())

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> Any:
        if value is None or dialect.name == "postgresql":
            return value
        return instant_text(value)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002 - SQLAlchemy's
        return parse_instant(value)


def instant_text(value: datetime) -> str:
    """``value`` as SQLite stores it."""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def parse_instant(value: datetime | str | None) -> datetime | None:
    """A stored instant, from either database, as an aware datetime."""
    if value is None or isinstance(value, datetime):
        return value
    return datetime.fromisoformat(value).replace(tzinfo=UTC)


@lru_cache(maxsize=512)
def sql(statement: str) -> sa.TextClause:
    """``statement`` with its parameters typed by name: ``:now`` and ``:…_at`` are instants."""
    instants = {name for name in _BIND.findall(statement) if name == "now" or name.endswith("_at")}
    return sa.text(statement).bindparams(*(sa.bindparam(name, type_=Instant()) for name in sorted(instants)))


class Ledger:
    """The SQL database that holds state and decisions.

    ``url`` is an SQLAlchemy URL, ``sqlite:///…`` or ``postgresql+psycopg://…``; anything else is refused.
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
        except ArgumentError as error:
            raise SettingsError("database: not an SQLAlchemy URL") from error
        if parsed.get_backend_name() == "postgresql" and parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() not in ("sqlite", "postgresql"):
            raise SettingsError(f"database: {parsed.get_backend_name()} is not supported; use sqlite or postgresql")
        self.url = parsed
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        if self.is_sqlite:
            if parsed.database and parsed.database != ":memory:":
                Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
            self.engine = sa.create_engine(
                parsed, connect_args={"timeout": 60, "check_same_thread": False}, hide_parameters=True
            )
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        else:
            with needing("postgres", "database: PostgreSQL"):  # whose driver is imported here
                self.engine = sa.create_engine(
                    parsed,
                    connect_args={"options": "-csearch_path=redrive -ctimezone=UTC"},
                    pool_pre_ping=True,
                    hide_parameters=True,
                )
        event.listen(self.engine, "begin", _remember)

    def __repr__(self) -> str:
        return f"Ledger({self.url.render_as_string(hide_password=True)})"

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction: committed and durable when the block ends, rolled back when it raises."""
        with self._reachable(), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent snapshot for reading; takes no write lock."""
        options: dict[str, Any] = {"redrive_read": True}
        if not self.is_sqlite:
            options["isolation_level"] = "REPEATABLE READ"
        with self._reachable(), self.engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()

    # --- where the two databases differ -----------------------------------------------------------------

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
        dialect = self.engine.dialect
        base: type[Exception] = dialect.loaded_dbapi.Error
        try:
            yield
        except (OverflowError, UnicodeEncodeError) as error:  # of SQLite's driver, for what no column can hold
            raise LedgerRefused(f"ledger {self.url.database}: {_refusal(statement, error)}") from error
        except base as error:
            lost = dialect.is_disconnect(error, connection.connection.driver_connection, None)  # type: ignore[arg-type]
            told = DBAPIError.instance(
                statement, None, error, base, hide_parameters=True, connection_invalidated=lost, dialect=dialect
            )
            if lost:
                connection.invalidate(error)
            raise told from error

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            _without_values(error)
            where = self.url.render_as_string(hide_password=True)
            if isinstance(error, DataError) or _is_too_much(error):
                raise LedgerRefused(f"ledger {where}: {_refusal(error.statement, error.orig)}") from error
            if isinstance(error, OperationalError):
                raise LedgerUnavailable(f"ledger {where}: {str(error.orig).strip().splitlines()[0]}") from error
            if self.is_sqlite and type(error) is DatabaseError:  # the file is damaged or something else
                raise LedgerUnavailable(f"ledger {self.url.database}: {error.orig}") from error
            if error.connection_invalidated:
                raise LedgerUnavailable(f"ledger {where}: the connection was lost") from error
            raise


def _is_too_much(error: DBAPIError) -> bool:
    """Beyond a limit of PostgreSQL (its class 54): most often a value that is too large for an index."""
    return str(getattr(error.orig, "sqlstate", None) or "").startswith("54")


def _refusal(statement: str | None, error: object) -> str:
    table = _TABLE.search(statement or "")
    said = str(error).strip().splitlines()[0]
    return f"a value {f'for table {table[1]} ' if table else ''}was refused: {said}"


def _without_values(error: DBAPIError) -> None:
    """Leave only the first line of what the database said: the details of PostgreSQL hold the row."""
    said = str(error.orig)
    lines = said.strip().splitlines()
    if error.orig is not None and len(lines) > 1:
        error.args = (str(error.args[0]).replace(said, lines[0]), *error.args[1:])
        error.orig.args = (lines[0],)


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # Autocommit at the driver, so that BEGIN IMMEDIATE below is ours: sqlite3's own begin is deferred, and
    # a deferred transaction that writes after it has read fails instead of waiting when another one wrote.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("pragma page_size = 8192")  # of a new file: fewer, larger writes of the same rows
    cursor.execute("pragma journal_mode = wal")
    cursor.execute("pragma synchronous = full")  # recorded means durable, also when the power fails
    cursor.execute("pragma wal_autocheckpoint = 16384")  # 64 MiB: each checkpoint writes every touched page again
    cursor.execute("pragma foreign_keys = on")
    cursor.execute("pragma temp_store = file")  # what is sorted grows with the messages, memory must not
    cursor.execute("pragma cache_size = -32768")  # 32 MiB
    cursor.close()


#: Connections with which each thread has begun a transaction, as long as somebody holds them.
_BEGUN: defaultdict[int, weakref.WeakSet[Connection]] = defaultdict(weakref.WeakSet)


def _remember(connection: Connection) -> None:
    _BEGUN[threading.get_ident()].add(connection)


def let_go_of_interrupted() -> int:
    """End the transactions of this thread that an interrupt left open; how many. To be called outside of any.

    Ctrl-C between the end of a ``with`` block and the commit that it stands for skips both commit and rollback. The
    connection then lives as long as the exception, with its locks, and whoever cleans up would wait for itself.
    """
    left = [one for one in _BEGUN.pop(threading.get_ident(), ()) if not one.closed and one.in_transaction()]
    for connection in left:
        connection.invalidate()
    return len(left)


def _begin_sqlite(connection: Connection) -> None:
    mode = "deferred" if connection.get_execution_options().get("redrive_read") else "immediate"
    connection.exec_driver_sql(f"begin {mode}")
