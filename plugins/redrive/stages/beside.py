"""What a delivery task has done beside it: payloads that are read, slices that are claimed and closed."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Thread
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Prefetch(Protocol):
    """Has ``work`` done during the block of the ``with``, which gets a call for its result or its error.

    The work is over when the block is, however that ends.
    """

    def __call__(self, work: Callable[[], T], /) -> AbstractContextManager[Callable[[], T]]: ...


@contextmanager
def in_a_thread(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """See :class:`Prefetch`; the work shares nothing with the block that either of them changes."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # it is the block's to raise
            done.set_exception(error)

    thread = Thread(target=run, name="prefetch", daemon=True)
    thread.start()
    try:
        yield done.result
    finally:
        thread.join()


class Beside:
    """Does one piece of work after the other, in a thread of its own. Whoever asks has the result, or the error."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None  # most tasks need none
        self._given: deque[Future[Any]] = deque()

    def do(self, work: Callable[[], T]) -> Future[T]:
        """Have ``work`` done after what was given before."""
        self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="beside")
        done = self._pool.submit(work)
        self._given.append(done)
        return done

    @property
    def busy(self) -> bool:
        """Whether some of it is not done yet."""
        return any(not one.done() for one in self._given)

    def check(self) -> None:
        """Raise the error of what was done, if there is one."""
        while self._given and self._given[0].done():
            self._given.popleft().result()

    def wait(self) -> None:
        """Until all of it is done; raises the first error."""
        while self._given:
            self._given.popleft().result()

    def settle(self) -> None:
        """Until all of it is done, whatever came of it."""
        while self._given:
            with suppress(Exception):
                self._given.popleft().result()

    def close(self) -> None:
        """End the thread, when it has done what it was given."""
        if self._pool is not None:
            self._pool.shutdown()
