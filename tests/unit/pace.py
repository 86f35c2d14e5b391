"""How fast this machine computes now, for tests that bound what something may take.

A bound in seconds is one that a usual machine keeps with room to spare. A rented core computes half as fast in some
hours, so what misses its bound is held against a fixed calculation of the same moment before it is called slow.
"""

import time

#: What :func:`_calculation` takes on a usual core, in seconds.
_USUAL = 0.06


def in_time(took: float, bound: float) -> bool:
    """Whether ``took`` is below ``bound``, both in seconds of computing, or would be on a usual machine."""
    return took < bound or took < bound * _slower()


def _slower() -> float:
    """How many times as long as usual computing takes now; at least 1, so that a fast machine gets no less time."""
    return max(1.0, min(_calculation() for _ in range(3)) / _USUAL)


def _calculation() -> float:
    started = time.process_time()
    total = 0
    for number in range(2_000_000):
        total += number
    return time.process_time() - started
