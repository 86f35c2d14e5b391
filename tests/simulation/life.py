"""The life of a process: points at which it may die, meet somebody else, or lose its database.

Every step that leaves a trace outside of the process is a point: each call of the broker before and after, each
transaction before it begins, before its commit and after, each file. At an *open* point (outside of a transaction)
others may work; the process goes on afterwards.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy.exc import OperationalError

from redrive.errors import StagingError
from redrive.ledger.engine import Ledger
from redrive.staging import batch_files, batch_writer

CHANGING = ("receive", "settle", "release", "extend", "publish")


class Died(BaseException):
    """The process is gone; nothing that it still tries to do happens."""


class LostConnection(Exception):
    """What a driver says of it."""


class Life:
    """Of one process. ``die_at``: at its so-many-th point; ``meet``: open points at which others work;
    ``ledger``: transactions that go wrong, and how; ``disk``: files that can't be written."""

    def __init__(
        self,
        *,
        die_at: int | None = None,
        die_of: str = "",
        meet: dict[int, Callable[[], None]] | None = None,
        meet_of: str = "",
        ledger: dict[int, str] | None = None,
        disk: set[int] | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.die_at = die_at
        self.die_of = die_of  # only points of this kind are counted
        self.meet = meet or {}
        self.meet_of = meet_of  # only open points of this kind are counted
        self.ending = self.interrupted_at_its_end = False
        self.left_open: list[Any] = []  # transactions that an interrupt left
        self.ledger = ledger or {}
        self.disk = disk or set()
        self.dead = False
        self.points = self.open_points = self.transactions = self.files = 0
        self.tell = tell
        self.unfinished: list[Any] = []  # writers of files that are not complete

    def buried(self) -> None:
        """What a dead process had not written is not written: no destructor completes its files."""
        for writer in self.unfinished:
            path = Path(writer._path)
            size = path.stat().st_size if path.exists() else None
            for closing in (writer._writer.close, writer._stream.close):
                with contextlib.suppress(Exception):
                    closing()
            if size is not None and path.exists():
                os.truncate(path, size)
        self.unfinished.clear()

    def ended(self) -> None:
        """The process is gone, and its connections with it."""
        for left in self.left_open:
            with contextlib.suppress(BaseException):
                left.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        self.left_open.clear()

    def reach(self, what: str, *, opened: bool = False) -> None:
        if self.dead:
            raise Died
        if opened and self.meet_of in what:
            number, self.open_points = self.open_points, self.open_points + 1
            work = self.meet.pop(number, None)
            if work is not None:
                self.tell(f"    meanwhile, at “{what}”:")
                with living(Life()):
                    work()
                self.tell("    and the first one goes on")
        if self.die_of not in what:
            return
        number, self.points = self.points, self.points + 1
        if number == self.die_at:
            self.tell(f"    dies at “{what}”")
            self.dead = True
            raise Died


_current: list[Life] = [Life()]


def life() -> Life:
    """Whose code runs."""
    return _current[-1]


@contextlib.contextmanager
def living(one: Life) -> Iterator[Life]:
    """What runs in here is of the process ``one``."""
    _current.append(one)
    try:
        yield one
    finally:
        _current.remove(one)


class Mortal:
    """A client of a broker in a process that may die."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._broker, name)
        if name not in CHANGING:
            return found

        @functools.wraps(found)
        def call(*args: Any, **options: Any) -> Any:
            life().reach(f"before {name}", opened=True)
            result = found(*args, **options)
            life().reach(f"after {name}", opened=True)
            return result

        return call

    def begin(self, queue: str, messages: Any) -> Callable[[], Any]:
        """Between its beginning and its end a process may die too, and others work."""
        life().reach("before publish", opened=True)
        begun = self._broker.begin(queue, messages)
        life().reach("publish has begun", opened=True)

        def finish() -> Any:
            result = begun()
            life().reach("after publish", opened=True)
            return result

        return finish


_write, _read = Ledger.write, Ledger.read


@contextlib.contextmanager
def _mortal_write(ledger: Ledger) -> Iterator[Any]:
    one = life()
    one.reach("before a transaction", opened=True)
    number, one.transactions = one.transactions, one.transactions + 1
    trouble = one.ledger.get(number, "")
    if trouble:
        one.tell(f"    ledger: {trouble}")
    if trouble == "interrupted":  # Ctrl-C between the end of a block and the commit that it stands for
        left = _write(ledger)
        connection = left.__enter__()
        try:
            yield connection
        except BaseException:
            left.__exit__(*sys.exc_info())
            raise
        one.left_open.append(left)
        one.interrupted_at_its_end = one.ending
        raise KeyboardInterrupt
    with _write(ledger) as connection:
        yield connection
        one.reach("before a commit")
        if trouble in ("lost before commit", "serialization"):
            raise OperationalError("commit", None, LostConnection(trouble))
    if trouble == "lost after commit":
        with ledger._reachable():
            raise OperationalError("commit", None, LostConnection(trouble))
    one.reach("after a commit", opened=True)


@contextlib.contextmanager
def _mortal_read(ledger: Ledger) -> Iterator[Any]:
    if life().dead:
        raise Died
    with _read(ledger) as connection:
        yield connection


def _pointed(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> Any:
        one = life()
        one.reach(f"before {name}")
        if name in ("a file is opened", "a file is closed", "a manifest"):
            number, one.files = one.files, one.files + 1
            if number in one.disk:
                one.tell(f"    disk: full at “{name}”")
                raise StagingError("No space left on device")
        result = function(*args, **options)
        if name == "a file is opened":
            one.unfinished.append(result)
        elif name in ("a file is closed", "an abort of a file") and args[0] in one.unfinished:
            one.unfinished.remove(args[0])
        one.reach(f"after {name}")
        return result

    return wrapped


@contextlib.contextmanager
def mortality() -> Iterator[None]:
    """Make the points, for everything that runs in here."""
    kept = [
        (batch_files.Staging, "writer", "a file is opened"),
        (batch_files.Staging, "remove", "a removal of a file"),
        (batch_files.Staging, "write_bytes", "a manifest"),
        (batch_writer.BatchWriter, "close", "a file is closed"),
        (batch_writer.BatchWriter, "abort", "an abort of a file"),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in kept]
    for owner, name, words in kept:
        setattr(owner, name, _pointed(getattr(owner, name), words))
    Ledger.write, Ledger.read = _mortal_write, _mortal_read  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Ledger.write, Ledger.read = _write, _read  # type: ignore[method-assign]
        for owner, name, function in before:
            setattr(owner, name, function)
