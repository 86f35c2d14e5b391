"""What is read while a window of messages is on the wire."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from threading import Thread
from typing import Protocol, TypeVar

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
