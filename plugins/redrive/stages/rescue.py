"""Rescue: which sources hold messages that may expire unread, because nobody has emptied them or gets to their end."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from redrive.ledger.delivery import expiry
from redrive.ledger.delivery.expiry import Expiry
from redrive.ledger.drain import horizon
from redrive.ledger.engine import Ledger
from redrive.settings import Settings, format_duration
from redrive.stages import source_expansion

#: From this share of a source's retention on it is said aloud; there is time left to do something.
SHARE = 0.5


class Risk(NamedTuple):
    """A source that may hold messages for which it gets late."""

    route: str
    queue: str
    unseen: timedelta  # since it was last emptied, or since the oldest message was enqueued that may still lie there
    retention: timedelta
    emptied: bool = True  # which of the two

    def __str__(self) -> str:
        hours = self.unseen // timedelta(hours=1)
        since = (
            f"was last emptied {hours} hours ago"
            if self.emptied
            else f"may hold messages that were enqueued {hours} hours ago, which no drain has reached,"
        )
        return (
            f"{self.queue} (route {self.route}) {since} and keeps messages for "
            f"{format_duration(self.retention)}: run `redrive drain {self.route}`, or find out why its runs don't"
        )


def at_risk(settings: Settings, *, now: datetime, only: str | None = None) -> list[Risk]:
    """The sources of which messages may expire before anybody has staged them, the most urgent first; of all routes,
    or of ``only`` one.

    Counted from when a source was last drained to its end, or where that is longer ago or never happened, from the
    oldest message that drains may have left there; by what the configuration, or else the broker at the last drain,
    says of its retention. A source that was never drained, or of whose retention nobody said anything, can't be judged.
    Of a broken route, which nobody drains until it is mended, the ledger knows the sources.
    """
    ledger = Ledger(settings.database)
    found = []
    try:
        with ledger.read() as connection:
            for name in [only] if only else [*settings.routes, *settings.broken]:
                known = expiry.of_sources(connection, name)
                for queue, configured in _sources(settings, name, known).items():
                    emptied = horizon.drained_to(connection, name, [queue])
                    told = known.get(queue, Expiry())
                    retention = configured or told.retention
                    since = min((at for at in (emptied, told.oldest_at) if at is not None), default=None)
                    if since is not None and retention is not None and now - since >= retention * SHARE:
                        found.append(Risk(name, queue, now - since, retention, since == emptied))
    finally:
        ledger.close()
    return sorted(found, key=lambda risk: risk.unseen / risk.retention, reverse=True)


def _sources(settings: Settings, name: str, known: Mapping[str, Expiry]) -> dict[str, timedelta | None]:
    """The sources of a route, each with how long it keeps messages, where the configuration says so."""
    if name in settings.broken:
        return dict.fromkeys(known)
    return {one.queue: one.retention for one in source_expansion.as_known(settings.routes[name], known).sources}
