"""The clock by which adapters know when a lease ended that the broker does not tell the end of."""

import time

_ALSO_SUSPENDED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def elapsing() -> float:
    """Seconds since some moment, never set back. Where the system can tell it (Linux), those in which the machine was
    suspended count too: a lease runs out meanwhile, and ``time.monotonic`` stands still."""
    return time.clock_gettime(_ALSO_SUSPENDED)
