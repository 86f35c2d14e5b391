"""The ledger's database: connections, and the transactions in which all of its rows are read and written.

A transaction is durable when its block ends. A run writes in :meth:`Ledger.under`, which guards its lease; whoever
holds no lease, a person most often, writes in :meth:`Ledger.by`. SQL is written once, as text with named parameters
(:func:`sql`); where the two databases differ is in :mod:`redrive.ledger.dialects`.
"""

import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, OperationalError

from redrive.errors import LedgerBusy, LedgerRefused, LedgerUnavailable, SchemaOutdated, SettingsError
from redrive.ledger import dialects
from redrive.ledger.dialects import Dialect, instant_text, refusal
from redrive.ledger.statements import Instant, parse_instant, sql
from redrive.ledger.transactions import MACHINE, ActorTransaction, RouteLease, RunTransaction

__all__ = ["CHUNK_ROWS", "Instant", "Ledger", "instant_text", "let_go_of_interrupted", "parse_instant", "sql"]

#: Rows per bulk statement: large enough to amortise the call, small enough to stay flat in memory.
CHUNK_ROWS = 10_000
_BUSY = "Somebody else has the same open and has not ended: nothing was changed; end that, or try again."


class Ledger:
    """The SQL database that holds state and decisions. Only :func:`redrive.ledger.schema.upgrade` makes an SQLite
    file: whoever reads or writes where there is none gets :class:`~redrive.errors.SchemaOutdated`.

    ``url`` is an SQLAlchemy URL, ``sqlite:///…`` or ``postgresql+psycopg://…``; anything else is refused. ``patience``
    is how long a statement waits for rows that somebody else is changing, before :class:`~redrive.errors.LedgerBusy`;
    None: on PostgreSQL ten minutes, on SQLite one. On PostgreSQL a statement that only reads is given up after
    ``reads_for``, such as ``20s``; None: never.
    """

    def __init__(self, url: str, *, patience: timedelta | None = None, reads_for: str | None = None) -> None:
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):  # of a port that is no number; what it quotes may be of a password
            raise SettingsError("database: not an SQLAlchemy URL") from None
        if parsed.get_backend_name() == "postgresql" and parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() not in ("sqlite", "postgresql"):
            raise SettingsError(f"database: {parsed.get_backend_name()} is not supported; use sqlite or postgresql")
        self.url = parsed
        self.dialect: Dialect = dialects.named(parsed.get_backend_name())
        self.engine = self.dialect.open_engine(parsed, patience)
        self._reads_for = reads_for

    def __repr__(self) -> str:
        return f"Ledger({self.url.render_as_string(hide_password=True)})"

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction in which nobody is said to act: committed and durable when the block ends, rolled back when
        it raises. What a run or a person does goes through :meth:`under` and :meth:`by`; a test names the few others.
        """
        with self._transaction() as connection:
            self.dialect.begin(connection)
            yield connection

    @contextmanager
    def under(
        self, lease: RouteLease, now: datetime, *, actor: str = MACHINE, alongside: bool = False
    ) -> Iterator[RunTransaction]:
        """One transaction of the run that holds ``lease``, which it renews; :class:`~redrive.errors.LeaseLost` when
        another run holds the route. ``actor``: the person that the run is for, where it is for one. ``alongside``: see
        :class:`RunTransaction`."""
        with self.write() as connection:
            yield RunTransaction(self.dialect, connection, lease, now, actor=actor, alongside=alongside)

    @contextmanager
    def by(self, actor: str, now: datetime, *, route: str | None = None) -> Iterator[ActorTransaction]:
        """One transaction of somebody who holds no route, on ``route`` or on all of them."""
        with self.write() as connection:
            yield ActorTransaction(self.dialect, connection, now, actor=actor, route=route)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent snapshot for reading; takes no write lock."""
        with self._transaction(self.dialect.isolation) as connection:
            self.dialect.begin_reading(connection)
            if self._reads_for is not None:
                self.dialect.no_longer_than(connection, self._reads_for)
            yield connection

    def is_absent(self) -> bool:
        """Whether the SQLite file that ``url`` names is not there."""
        return self.dialect.is_absent(self.url)

    def make(self) -> None:
        """Make an empty SQLite file where there is none; it is nothing until its schema is made."""
        self.dialect.make(self.url)

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()

    @contextmanager
    def _transaction(self, isolation: str | None = None) -> Iterator[Connection]:
        if self.is_absent():  # each time: what is written to a file that was removed is lost
            raise SchemaOutdated(f"the ledger {self!r} is at nothing: there is no such file. Run `redrive db upgrade`")
        with self._reachable(), self.engine.connect() as connection:
            # Said here and not to an event of the engine: as soon as it has any, it looks for them at each statement.
            _BEGUN[threading.get_ident()].add(connection)
            if isolation is not None:
                connection.execution_options(isolation_level=isolation)
            with connection.begin():
                yield connection

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
                said = f"ledger {where}: {str(error.orig).strip().splitlines()[0]}"
                if self.dialect.is_busy(error):
                    raise LedgerBusy(f"{said}. {_BUSY}") from error
                raise LedgerUnavailable(said) from error
            if self.dialect.is_unreadable(error):
                raise LedgerUnavailable(f"ledger {where}: {error.orig}") from error
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


#: Connections with which each thread begins a transaction, as long as somebody holds them.
_BEGUN: defaultdict[int, weakref.WeakSet[Connection]] = defaultdict(weakref.WeakSet)


def let_go_of_interrupted() -> int:
    """End the transactions of this thread that an interrupt left open; how many. To be called outside of any.

    Ctrl-C between the end of a ``with`` block and the commit that it stands for skips both commit and rollback. The
    connection then lives as long as the exception, with its locks, and whoever cleans up would wait for itself.
    """
    left = [one for one in _BEGUN.pop(threading.get_ident(), ()) if not one.closed and one.in_transaction()]
    for connection in left:
        connection.invalidate()
    return len(left)
