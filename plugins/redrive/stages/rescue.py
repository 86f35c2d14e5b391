"""Rescue: which sources nobody has emptied for so long that their messages may expire unread."""

from datetime import datetime, timedelta
from typing import NamedTuple

from redrive.ledger import expiry, outcomes
from redrive.ledger.engine import Ledger
from redrive.ledger.expiry import Expiry
from redrive.settings import Settings, format_duration

#: From this share of a source's retention on it is said aloud; there is time left to do something.
SHARE = 0.5


class Risk(NamedTuple):
    """A source that has not been emptied for too long."""

    route: str
    queue: str
    unseen: timedelta  # since it was last emptied
    retention: timedelta

    def __str__(self) -> str:
        hours = self.unseen // timedelta(hours=1)
        return (
            f"{self.queue} (route {self.route}) was last emptied {hours} hours ago and keeps messages for "
            f"{format_duration(self.retention)}: run `redrive drain {self.route}`, or find out why its runs don't"
        )


def at_risk(settings: Settings, *, now: datetime, only: str | None = None) -> list[Risk]:
    """The sources of which messages may expire before anybody has staged them, the most urgent first; of all routes,
    or of ``only`` one.

    Counted from when a source was last drained to its end, by what the configuration, or else the broker at the last
    drain, says of its retention. A source that never was drained to its end, or of whose retention nobody said
    anything, can't be judged.
    """
    ledger = Ledger(settings.database)
    found = []
    try:
        with ledger.read() as connection:
            for name in [only] if only else settings.routes:
                route = settings.routes[name]
                known = expiry.of_sources(connection, name)
                for source in route.sources:
                    emptied = outcomes.drained_to(connection, name, [source.queue])
                    retention = source.retention or known.get(source.queue, Expiry()).retention
                    if emptied is None or retention is None:
                        continue
                    if now - emptied >= retention * SHARE:
                        found.append(Risk(name, source.queue, now - emptied, retention))
    finally:
        ledger.close()
    return sorted(found, key=lambda risk: risk.unseen / risk.retention, reverse=True)
