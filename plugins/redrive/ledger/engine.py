"""The ledger's database: connections, and the transactions in which all of its rows are read and written.

A transaction is durable when its block ends. A run writes in :meth:`Ledger.under`, which guards its lease; whoever
holds no lease, a person most often, writes in :meth:`Ledger.by`. SQL is written once, as text with named parameters
(:func:`sql`); where the two databases differ is in :mod:`redrive.ledger.dialects`.
"""

import sqlite3
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import tenacity
from sqlalchemy import event
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, DataError, DBAPIError, OperationalError

from redrive.errors import LedgerRefused, LedgerUnavailable, SettingsError
from redrive.extras import needing
from redrive.ledger import dialects
from redrive.ledger.dialects import Dialect, Sqlite, refusal
from redrive.ledger.statements import Instant, instant_text, parse_instant, sql
from redrive.ledger.transactions import MACHINE, ActorTransaction, RouteLease, RunTransaction

__all__ = ["CHUNK_ROWS", "Instant", "Ledger", "instant_text", "let_go_of_interrupted", "parse_instant", "sql"]

#: Rows per bulk statement: large enough to amortise the call, small enough to stay flat in memory.
CHUNK_ROWS = 50_000
#: How many seconds SQLite waits for whoever writes.
_PATIENCE = 60


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
        self.dialect: Dialect = dialects.named(parsed.get_backend_name())
        if isinstance(self.dialect, Sqlite):
            if parsed.database and parsed.database != ":memory:":
                Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
            self.engine = sa.create_engine(
                parsed, connect_args={"timeout": _PATIENCE, "check_same_thread": False}, hide_parameters=True
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
        """One transaction in which nobody is said to act: committed and durable when the block ends, rolled back when
        it raises. What a run or a person does goes through :meth:`under` and :meth:`by`; a test names the few others.
        """
        with self._reachable(), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def under(self, lease: RouteLease, now: datetime, *, actor: str = MACHINE) -> Iterator[RunTransaction]:
        """One transaction of the run that holds ``lease``, which it renews; :class:`~redrive.errors.LeaseLost` when
        another run holds the route. ``actor``: the person that the run is for, where it is for one."""
        with self.write() as connection:
            yield RunTransaction(self.dialect, connection, lease, now, actor=actor)

    @contextmanager
    def by(self, actor: str, now: datetime, *, route: str | None = None) -> Iterator[ActorTransaction]:
        """One transaction of somebody who holds no route, on ``route`` or on all of them."""
        with self.write() as connection:
            yield ActorTransaction(self.dialect, connection, now, actor=actor, route=route)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent snapshot for reading; takes no write lock."""
        options: dict[str, Any] = {"redrive_read": True}
        if self.dialect.isolation is not None:
            options["isolation_level"] = self.dialect.isolation
        with self._reachable(), self.engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            _without_values(error)
            where = self.url.render_as_string(hide_password=True)
            if isinstance(error, DataError) or _is_too_much(error):
                raise LedgerRefused(f"ledger {where}: {refusal(error.statement, error.orig)}") from error
            if isinstance(error, OperationalError):
                raise LedgerUnavailable(f"ledger {where}: {str(error.orig).strip().splitlines()[0]}") from error
            if (
                isinstance(self.dialect, Sqlite) and type(error) is DatabaseError
            ):  # the file is damaged or something else
                raise LedgerUnavailable(f"ledger {self.url.database}: {error.orig}") from error
            if error.connection_invalidated:
                raise LedgerUnavailable(f"ledger {where}: the connection was lost") from error
            raise


def _is_too_much(error: DBAPIError) -> bool:
    """Beyond a limit of PostgreSQL (its class 54): most often a value that is too large for an index."""
    return str(getattr(error.orig, "sqlstate", None) or "").startswith("54")


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
    _write_ahead(cursor)
    cursor.execute("pragma synchronous = full")  # recorded means durable, also when the power fails
    cursor.execute("pragma wal_autocheckpoint = 16384")  # 64 MiB: each checkpoint writes every touched page again
    cursor.execute("pragma foreign_keys = on")
    cursor.execute("pragma temp_store = file")  # what is sorted grows with the messages, memory must not
    cursor.execute("pragma cache_size = -32768")  # 32 MiB
    cursor.close()


def _write_ahead(cursor: Any) -> None:
    """Have readers and the writer not wait for each other. The file keeps that, so it is said once. While somebody else
    who has just found the new file says it too, SQLite refuses at once, whatever its timeout is."""
    patience = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(sqlite3.OperationalError),
        wait=tenacity.wait_random(0.01, 0.1),
        stop=tenacity.stop_after_delay(_PATIENCE),
        reraise=True,
    )
    for attempt in patience:
        with attempt:
            if cursor.execute("pragma journal_mode").fetchone()[0] != "wal":
                cursor.execute("pragma journal_mode = wal")


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
