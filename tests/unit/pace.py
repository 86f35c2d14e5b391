"""How fast this machine computes now, for tests that bound what something may take.

A bound in seconds is one that a usual machine keeps with room to spare. A rented core computes half as fast in some
hours, so what misses its bound is held against plain additions of the same moment before it is called slow.
"""

import time

from benchmarks.results import additions

_COUNT, _USUAL = 2_000_000, 0.06  # so many additions take a usual core so many seconds


def in_time(took: float, bound: float) -> bool:
    """Whether ``took`` is below ``bound``, both in seconds of computing, or would be on a usual machine."""
    return took < bound or took < bound * _slower()


def _slower() -> float:
    """How many times as long as usual computing takes now; at least 1, so that a fast machine gets no less time."""
    return max(1.0, min(additions(_COUNT, time.process_time) for _ in range(3)) / _USUAL)
