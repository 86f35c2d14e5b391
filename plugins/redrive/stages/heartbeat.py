"""Sign of life: renews a run's lease from a thread of its own while a long step makes no writes."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from redrive.errors import LeaseLost
from redrive.ledger.engine import Ledger
from redrive.settings import Settings
from redrive.stages.context import Run, utc_now

log = logging.getLogger(__name__)

#: Beats per lease; and after one that failed, so that the lease has several more before it runs out.
BEATS = 3
BEATS_IN_TROUBLE = 12


@contextmanager
def beating(settings: Settings, run: Run, clock: Callable[[], datetime] = utc_now) -> Iterator[None]:
    """Renew the lease every third of its length while the block lasts.

    A ledger that can't be reached is tried again, sooner. A lost lease stops the beat, not the work: the work's own
    next write is what is refused. Both are logged.
    """
    stop = threading.Event()

    def beat() -> None:
        ledger = Ledger(settings.database)
        beats = BEATS
        try:
            while not stop.wait(run.ttl.total_seconds() / beats):
                try:
                    with ledger.under(run.lease, clock()):
                        pass  # to begin one is to renew the lease
                    beats = BEATS
                except LeaseLost as error:
                    log.warning("no more heartbeats: %s", error)
                    return
                except Exception as error:  # another one may succeed before the lease is over
                    log.warning("a heartbeat of run %s failed: %s", run.run_id, error)
                    beats = BEATS_IN_TROUBLE
        finally:
            ledger.close()

    thread = threading.Thread(target=beat, name=f"lease of {run.route}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=5)
