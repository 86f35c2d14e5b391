"""What the ledger needs of a database: the seam that SQLite and PostgreSQL fill."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

#: How each file of a view begins its statement.
CREATE_VIEW = re.compile(r"^create view (\w+)", re.MULTILINE)


class Dialect(ABC):
    """What is said in one database otherwise than in the other."""

    name: str
    #: What follows an instant that is told as text, so that nothing has to be known of the session.
    zone: str
    #: Suffix of a query that lets concurrent claimers pass each other.
    locked: str
    #: Suffix of a query whose rows nobody else may change until the transaction ends.
    for_update: str
    #: As ``locked``, where others may say so too.
    locked_shared: str
    #: As ``for_update`` where others may say so too: it waits for who changes them, not for who reads them.
    for_share: str
    #: The isolation in which a reader sees one moment; None: it does anyway.
    isolation: str | None
    #: The type of a column of instants.
    instant_type: sa.types.TypeEngine[Any]
    #: Whether changes of rows are counted, so that an index finds the newest; else transactions have numbers anyway.
    counts_changes: bool = False
    #: Whether somebody else works on what is written; else the time that it takes is ours, and the next one waits.
    writers_beside: bool = False

    # --- connections ------------------------------------------------------------------------------------------

    @abstractmethod
    def open_engine(self, url: sa.URL, patience: timedelta | None) -> sa.Engine:
        """What connects to the database of ``url``, so that a transaction is durable when it ends. ``patience``: as for
        :class:`~redrive.ledger.engine.Ledger`."""

    @abstractmethod
    def is_absent(self, url: sa.URL) -> bool:
        """Whether there is no database, and connecting would make an empty one."""

    @abstractmethod
    def make(self, url: sa.URL) -> None:
        """Make an empty database where :meth:`is_absent` says that there is none."""

    @abstractmethod
    def begin(self, connection: Connection) -> None:
        """Begin a transaction that writes."""

    @abstractmethod
    def begin_reading(self, connection: Connection) -> None:
        """Begin a transaction that only reads."""

    @abstractmethod
    def is_busy(self, error: DBAPIError) -> bool:
        """Somebody else was waited for, and did not end in time."""

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
    def earliest(self, one: str, other: str) -> str:
        """The earlier of two instants, neither of them null."""

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
    def by_beginning(self, column: str) -> str:
        """``column`` for an ``order by``, in the order of the index by which :meth:`begins` finds it."""

    @abstractmethod
    def marks(self, types: Sequence[str]) -> str:
        """Marks for :meth:`many` in the list of a ``select``, by the types that PostgreSQL gives them."""

    @abstractmethod
    def few(self, column: str, chosen: str) -> str:
        """That ``column`` is among the numbers that ``chosen`` selects, which are few beside all rows, and which the
        database has not counted yet: it looks each of them up, whatever it believes of the table."""

    @abstractmethod
    def in_row(self, column: str) -> str:
        """``column``, a text, in a condition beside :meth:`few` or of a count of its own for each row: rows that are
        looked up are asked, and no index is."""

    @abstractmethod
    def tidy_up_early(self, connection: Connection, tables: Sequence[str]) -> None:
        """Have the database clear away and count what a day changed in ``tables``, however large they are."""

    @abstractmethod
    def seen(self, connection: Connection) -> str:
        """What this reader sees of ``escalated_messages``, for :meth:`unchanged`."""

    @abstractmethod
    def unchanged(self, seen: str) -> str:
        """That a row of ``escalated_messages`` is as a reader saw it: ``seen`` is a bind, what :meth:`seen` told then.

        To be asked of rows that this transaction has locked, in a statement of its own.
        """

    @abstractmethod
    def off_index(self, column: str) -> str:
        """``column`` in a condition for which no index is used: another index names fewer rows, or what must be
        looked for in the rows themselves is found faster by reading them as they lie than by jumping to each."""

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
    def update_each(
        self, connection: Connection, table: sa.Table, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        """Give many rows of ``table`` values of their own: each of ``rows`` has those of ``columns``, then those of the
        primary key, which none of the others has. A key that the table doesn't have is passed over."""

    @abstractmethod
    def tuples(self, connection: Connection, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The rows of a query (with ``?`` marks) as the driver gives them: plain tuples, instants as stored."""

    @abstractmethod
    def stored(self, value: datetime | None) -> Any:
        """``value`` as the driver takes it, in :meth:`bulk` and :meth:`many` too."""

    @abstractmethod
    def comparable(self, instant: Any) -> Any:
        """A stored instant as something that is equal when the instants are."""

    @abstractmethod
    def look_again(self, connection: Connection, table: str, changed: int) -> None:
        """So many rows were added to ``table`` or got another state: where that is much, beside what the database knew
        of it or at all, let it look again, for it plans statements by what it knows, and looks by itself a minute
        later. Harmless at any time."""

    @abstractmethod
    def look_at_temporary(self, connection: Connection, name: str) -> None:
        """Let the database look at a temporary table that was filled: nobody else ever does, and what it takes for a
        few rows it goes through for each of another table's."""

    # --- the database as a whole ------------------------------------------------------------------------------

    @abstractmethod
    def no_longer_than(self, connection: Connection, limit: str) -> None:
        """Give up each statement of this transaction that takes longer than ``limit``, such as ``20s``."""

    @abstractmethod
    def count_on(self, connection: Connection, table: str, column: str, last: int) -> None:
        """The next row of ``table`` gets a greater ``column`` than ``last``, which counts up by itself."""

    @abstractmethod
    def in_turn(self, connection: Connection, name: str) -> None:
        """Until the transaction ends, whoever else asks for their turn by this ``name`` waits, and sees then what was
        written meanwhile."""

    @abstractmethod
    def begin_upgrade(self, connection: Connection) -> None:
        """Of two upgrades at once the second waits until the first is done; there is a schema to put tables in."""

    @abstractmethod
    def as_it_is(self, connection: Connection, statement: str) -> None:
        """Run ``statement``, in which neither a colon nor a percent sign means anything but itself."""

    @abstractmethod
    def lacks_reviewers(self, connection: Connection) -> bool:
        """Whether it has roles, and the one of reviewers is not among them."""

    @abstractmethod
    def may_lose(self, connection: Connection) -> str | None:
        """Why what was committed may be gone after a crash or a failover, as far as the server tells; None: it tells of
        nothing."""

    @abstractmethod
    def clock(self, connection: Connection) -> datetime | None:
        """What time it is on the server; None where there is none."""

    @abstractmethod
    def replace_views(self, connection: Connection, statements: Sequence[str]) -> bool:
        """Run ``statements`` with each view replaced in place, so that what people built on it stays; False where that
        isn't possible, and nothing has changed."""
