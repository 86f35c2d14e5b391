"""Processes that work at the same time, always in the same order: each works until it has to take turns."""

import threading
from collections.abc import Callable
from typing import Any


class Turns:
    """Runs works side by side, one at a time; each passes the turn on where it calls :meth:`pass_on`."""

    def __init__(self) -> None:
        self._turns: list[threading.Semaphore] = []
        self._over: list[bool] = []
        self._me = threading.local()

    def run(self, *works: Callable[[], Any]) -> list[Any]:
        """The results of the works, when all are over; raises the first error, of whichever work."""
        self._turns = [threading.Semaphore(0) for _ in works]
        self._over = [False for _ in works]
        results: list[Any] = [None for _ in works]
        errors: list[BaseException] = []

        def work(number: int) -> None:
            self._me.number = number
            self._turns[number].acquire()
            try:
                results[number] = works[number]()
            except BaseException as error:
                errors.append(error)
            finally:
                self._over[number] = True
                self._wake(number)

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(len(works))]
        for thread in threads:
            thread.start()
        self._turns[0].release()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results

    def pass_on(self) -> None:
        """Let the others work until it is this one's turn again; outside of :meth:`run` nothing happens."""
        number = getattr(self._me, "number", None)
        if number is not None and self._wake(number):
            self._turns[number].acquire()

    def _wake(self, number: int) -> bool:
        """Whether another one works now."""
        for step in range(1, len(self._turns)):
            other = (number + step) % len(self._turns)
            if not self._over[other]:
                self._turns[other].release()
                return True
        return False
