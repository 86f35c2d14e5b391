"""What is known of when messages of a source expire: how long it keeps them, and how old the oldest one may be.

A source that no run drained until its oldest message may have been lost (a pause, a scheduler that was off) proves
nothing by its emptiness of what may have come back to it meanwhile.
"""

from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.drain import horizon
from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.moves import record_event
from redrive.ledger.transactions import RouteLease


class Expiry(NamedTuple):
    """Of one source: how long it keeps a message, and before when nothing in it was first enqueued, where known."""

    retention: timedelta | None = None
    oldest_at: datetime | None = None

    @property
    def at(self) -> datetime | None:
        """When its oldest message may be lost; None where that isn't known."""
        return None if self.retention is None or self.oldest_at is None else self.oldest_at + self.retention


def of_sources(connection: Connection, route: str) -> dict[str, Expiry]:
    """What is known of the route's sources."""
    rows = connection.execute(
        sql("select source, retention_seconds, oldest_at from source_state where route = :route"), {"route": route}
    )
    return {
        row.source: Expiry(
            None if row.retention_seconds is None else timedelta(seconds=row.retention_seconds),
            parse_instant(row.oldest_at),
        )
        for row in rows
    }


def note(
    ledger: Ledger,
    lease: RouteLease,
    source: str,
    known: Expiry,
    *,
    rescued: int,
    expiring_at: datetime,
    began_at: datetime,
    now: datetime,
) -> None:
    """Keep what a drain that began at ``began_at`` learned of ``source``, and tell of ``rescued`` copies that it took
    beyond its limit because they would have expired before ``expiring_at``. Where some may have been lost before the
    drain began, nobody will see whether earlier sends are among them."""
    with ledger.under(lease, now) as tx:
        before = parse_instant(
            tx.execute(
                sql("select oldest_at from source_state where route = :route and source = :source"), {"source": source}
            ).scalar()
        )
        lost_at = Expiry(known.retention, before).at
        if lost_at is not None and known.retention is not None and lost_at < began_at:
            horizon.lose_sight(
                tx,
                source,
                before,
                f"It may have come back to {source} and been lost there: no run drained that for longer than it keeps"
                " messages.",
                only="claimed_at < :kept_from",
                values={"kept_from": began_at - known.retention},
            )
        tx.execute(
            sql(
                "insert into source_state (route, source, retention_seconds, oldest_at)"
                " values (:route, :source, :seconds, :oldest_at) on conflict (route, source) do update set"
                " retention_seconds = excluded.retention_seconds,"
                " oldest_at = coalesce(excluded.oldest_at, source_state.oldest_at)"
            ),
            {
                "source": source,
                "seconds": None if known.retention is None else known.retention.total_seconds(),
                "oldest_at": known.oldest_at,
            },
        )
        if rescued:
            record_event(
                tx,
                action=Action.DRAIN_BEYOND_LIMIT,
                count=rescued,
                selection={"source": source},
                reason=f"They would have been lost before {expiring_at:%Y-%m-%d %H:%M} UTC,"
                " when the next run may be over.",
            )


def longest_gap(connection: Connection, route: str) -> timedelta | None:
    """The longest time between the starts of two of the route's last runs; None when there were fewer than two."""
    rows = connection.execute(
        sql(
            "select started_at from runs where route = :route and \"trigger\" not in ('review', 'restore')"
            " order by started_at desc limit 6"
        ),
        {"route": route},
    )
    starts = [at for row in rows if (at := parse_instant(row.started_at)) is not None]
    return max((later - earlier for later, earlier in pairwise(starts)), default=None)
