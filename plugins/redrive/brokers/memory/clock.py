"""Time in a memory world: microseconds since the epoch, from the system or from a clock that a test moves."""

import time
from datetime import timedelta

from redrive.message import Micros


class ManualClock:
    """A clock that stands still until it is told to move; :meth:`sleep` moves it, so nothing really waits."""

    def __init__(self, now: Micros = 1_700_000_000_000_000) -> None:
        self.now = now

    def __call__(self) -> Micros:
        return self.now

    def advance(self, by: timedelta) -> None:
        """Let ``by`` pass."""
        self.now += micros(by)

    def sleep(self, seconds: float) -> None:
        """What :func:`time.sleep` would do to this clock."""
        self.now += round(seconds * 1_000_000)


def micros(duration: timedelta) -> Micros:
    """``duration`` in microseconds."""
    return duration // timedelta(microseconds=1)


def system_micros() -> Micros:
    """The time that it really is."""
    return time.time_ns() // 1000
