"""Python's garbage collector, told what kind of program this is."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Look for reference cycles rarely: a stage makes millions of short-lived tuples and hardly a cycle.

    To look through them every 700 allocations, as Python does by default, costs a stage a tenth of its time, and
    imports, or making thousands of DAGs, a fifth.
    """
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
