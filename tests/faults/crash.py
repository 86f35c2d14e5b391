"""Processes that really die: a worker in a child process, a broker that outlives it, and points to be killed at.

The queues stay in the parent, which serves the child's broker calls over a pipe, so what the broker has taken it keeps
when the child is gone. In the child every step that leaves a trace outside the process (a broker call, a commit, a
file) is a *point*; the child sends itself a signal at the one that it is told to.
"""

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from redrive.brokers.base import Capabilities, Publication
from redrive.brokers.memory import MemoryBroker, MemoryWorld
from redrive.ledger.engine import Ledger
from redrive.message import Outgoing
from redrive.staging import batch_files, batch_writer
from tests import classifying

#: Calls after which the broker is another: here a process can also die before it hears the answer.
CHANGING = {"receive", "settle", "release", "extend", "publish"}
_IN_ITS_HANDS = " is in the broker's hands"


@dataclass(slots=True)
class Death:
    """How a child ended."""

    points: list[str] = field(default_factory=list)  # that it reached, in order
    signal: int = 0  # that killed it; 0: none
    error: str = ""  # the traceback of what ended it otherwise
    result: Any = None
    answers: dict[str, float] = field(default_factory=dict)

    @property
    def last(self) -> str:
        """Where it was when it ended."""
        return self.points[-1] if self.points else "the very beginning"


class Points:
    """Counts the points of one process and sends it ``signal_`` at the ``fatal``-th (from 0; None: never)."""

    def __init__(self, pipe: Connection, fatal: int | None, signal_: int) -> None:
        self._pipe = pipe
        self._fatal = fatal
        self._signal = signal_
        self._count = 0
        self.stage = "begin"

    def reach(self, what: str) -> None:
        """The process is about to do, or has just done, ``what``."""
        count, self._count = self._count, self._count + 1
        self._pipe.send(("point", f"{self.stage}: {what}"))
        if count == self._fatal:
            signal.raise_signal(self._signal)  # in this very thread: another one would raise it somewhere later
            if self._signal == signal.SIGKILL:
                time.sleep(60)  # never returns
            elif self._signal == signal.SIGSTOP:
                self.reach("woken")


def telling(points: Sequence[str]) -> list[int]:
    """The numbers of the points at which a kill may leave something else than one at the point before.

    Every step that leaves a trace is a point before it and one after it. Between the end of one and the beginning of
    the next a process has done nothing that outlives it, so that of such two the second stands for both. What the
    broker has in its hands it does, whether or not the caller lives to hear of it, so that the point after a call
    stands for the one within it.
    """
    before = [point.partition(": ")[2].startswith("before ") for point in points]
    after = [point.partition(": ")[2].startswith("after ") for point in points]
    within = [point.endswith(_IN_ITS_HANDS) for point in points]
    followed = range(len(points) - 1)
    same_as_next = {at for at in followed if (after[at] and before[at + 1]) or (within[at] and after[at + 1])}
    return [at for at in range(len(points)) if at not in same_as_next]


class ServedBroker:
    """The broker as the child sees it: every call goes to the parent."""

    def __init__(self, pipe: Connection, points: Points, capabilities: Capabilities) -> None:
        self._pipe = pipe
        self._points = points
        self.capabilities = capabilities
        self._begun: deque[Future[Any]] = deque()  # whose answers come first, in this order

    def capabilities_for(self, _queue: str) -> Capabilities:
        return self.capabilities

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return functools.partial(self._call, name)

    def ready(self, queue: str, messages: Sequence[Outgoing]) -> Callable[[], Callable[[], list[Publication]]]:
        """See :class:`redrive.brokers.base.Pipelines`; between its beginning and its end a process can die too."""
        return functools.partial(self._begin, queue, messages)

    def _begin(self, queue: str, messages: Sequence[Outgoing]) -> Callable[[], list[Publication]]:
        self._points.reach("before publish")
        self._pipe.send(("call", "publish", (queue, messages), {}))
        self._points.reach(f"publish{_IN_ITS_HANDS}")
        begun: Future[list[Publication]] = Future()
        self._begun.append(begun)

        def finish() -> list[Publication]:
            while not begun.done():
                self._hear(self._begun.popleft())
            self._points.reach("after publish")
            return begun.result()

        return finish

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        changing = name in CHANGING
        if changing:
            self._points.reach(f"before {name}")
        self._pipe.send(("call", name, args, options))
        if changing:
            self._points.reach(f"{name}{_IN_ITS_HANDS}")
        while self._begun:
            self._hear(self._begun.popleft())
        answer: Future[Any] = Future()
        self._hear(answer)
        if changing:
            self._points.reach(f"after {name}")
        return answer.result()

    def _hear(self, answer: "Future[Any]") -> None:
        good, value = self._pipe.recv()
        if good:
            answer.set_result(value)
        else:
            answer.set_exception(value)


def run_child(
    world: MemoryWorld,
    work: Callable[["ServedBroker", Points], Any],
    *,
    fatal: int | None = None,
    signal_: int = signal.SIGKILL,
    on_point: Callable[[int, str], None] | None = None,
) -> Death:
    """Run ``work`` in a child process that gets ``signal_`` at its ``fatal``-th point; serves its broker until it ends.

    ``on_point`` is called in the parent with the child's process id at every point.
    """
    ours, theirs = multiprocessing.Pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            ours.close()
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
            points = Points(theirs, fatal, signal_)
            with hooked(points):
                result = work(ServedBroker(theirs, points, world.capabilities), points)
            theirs.send(("result", result))
            status = 0
        except BaseException:
            with contextlib.suppress(OSError):
                theirs.send(("error", traceback.format_exc()))
        finally:
            os._exit(status)
    theirs.close()
    death = Death()
    broker = MemoryBroker(world)
    while True:
        try:
            kind, *rest = ours.recv()
        except (EOFError, ConnectionResetError):
            break
        if kind == "point":
            death.points.append(rest[0])
            if on_point is not None:
                on_point(pid, rest[0])
        elif kind == "call":
            name, args, options = rest
            try:
                answer = (True, getattr(broker, name)(*args, **options))
            except Exception as error:
                answer = (False, error)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                ours.send(answer)
        elif kind == "result":
            death.result = rest[0]
        else:
            death.error = rest[0]
    ours.close()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        death.signal = os.WTERMSIG(status)
    return death


@contextlib.contextmanager
def hooked(points: Points) -> Iterator[None]:
    """Make commits, files and classification points, for the rest of this (child) process."""
    write = Ledger.write

    @contextlib.contextmanager
    def write_with_points(ledger: Ledger) -> Iterator[Any]:
        with write(ledger) as connection:
            yield connection
            points.reach("before a commit")
        points.reach("after a commit")

    Ledger.write = write_with_points  # type: ignore[method-assign, assignment]
    for owner, name in (
        (batch_files.Staging, "writer"),
        (batch_files.Staging, "remove"),
        (batch_files.Staging, "write_bytes"),
        (batch_writer.BatchWriter, "close"),
        (batch_writer.BatchWriter, "abort"),
        (batch_writer, "_fsync"),
        (classifying, "_write"),
    ):
        setattr(owner, name, _with_points(getattr(owner, name), name, points))
    yield


def _with_points(function: Callable[..., Any], name: str, points: Points) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> Any:
        points.reach(f"before {name}")
        result = function(*args, **options)
        points.reach(f"after {name}")
        return result

    return wrapped
