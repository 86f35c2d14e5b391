"""Sign of life: renews a run's lease from a thread of its own while a long step makes no writes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from redrive.errors import RedriveError
from redrive.ledger.engine import Ledger
from redrive.settings import Settings
from redrive.stages.context import Run, utc_now


@contextmanager
def beating(settings: Settings, run: Run) -> Iterator[None]:
    """Renew the lease every third of its length while the block lasts.

    A lost lease stops the beat, not the work: the work's own next write is what is refused.
    """
    stop = threading.Event()

    def beat() -> None:
        ledger = Ledger(settings.database)
        try:
            while not stop.wait(run.ttl.total_seconds() / 3):
                with ledger.write() as connection:
                    run.lease.guard(connection, utc_now())
        except RedriveError:
            pass
        finally:
            ledger.close()

    thread = threading.Thread(target=beat, name=f"lease of {run.route}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=5)
