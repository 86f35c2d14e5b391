"""What a delivery task has done beside it, in threads: payloads that are read, slices that are claimed and closed."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")


class Worker:
    """Does one piece of work after the other, in a thread of its own. Whoever asks has the result, or the error.

    The work shares nothing with whoever gave it that either of them changes meanwhile.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None  # most tasks need none

    def do(self, work: Callable[[], T]) -> Future[T]:
        """Have ``work`` done after what was given before."""
        self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="beside")
        return self._pool.submit(work)

    @contextmanager
    def during(self, work: Callable[[], T]) -> Iterator[Callable[[], T]]:
        """Have ``work`` done during the block of the ``with``, which gets a call for its result or its error.

        The work is over when the block is, however that ends.
        """
        done = self.do(work)
        try:
            yield done.result
        finally:
            wait([done])

    def close(self) -> None:
        """End the thread, when it has done what it was given."""
        if self._pool is not None:
            self._pool.shutdown()


class Beside(Worker):
    """A worker of which no error is missed: it keeps what it was given until somebody has asked for that."""

    def __init__(self) -> None:
        super().__init__()
        self._given: deque[Future[Any]] = deque()

    def do(self, work: Callable[[], T]) -> Future[T]:
        """Have ``work`` done after what was given before."""
        done = super().do(work)
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
