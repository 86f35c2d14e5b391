"""What was seen of queues: depth, and the ages that brokers don't tell truly."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy.engine import Connection

from redrive.ledger.engine import Ledger, sql
from redrive.ledger.leases import RouteLease


class Observation(NamedTuple):
    """One look at one queue. Ages are seconds since the original enqueue; a method says where they come from."""

    queue: str
    role: str  # source | destination
    visible: int | None
    in_flight: int | None
    delayed: int | None
    consumers: int | None = None
    oldest_age_seconds: float | None = None
    oldest_age_method: str = "unknown"
    oldest_visible_age_seconds: float | None = None
    oldest_visible_age_method: str = "unknown"
    coverage: float | None = None
    observed_at: datetime | None = None  # when it was so, if that was not now


def observe(ledger: Ledger, lease: RouteLease, observations: Sequence[Observation], now: datetime) -> None:
    """Keep what was seen, at ``now`` unless an observation says when."""
    with ledger.write() as connection:
        lease.guard(connection, now)
        for one in observations:
            connection.execute(
                sql(
                    "insert into queue_observations (route, run_id, queue, role, observed_at, visible, in_flight,"
                    " delayed, consumers, oldest_age_seconds, oldest_age_method, oldest_visible_age_seconds,"
                    " oldest_visible_age_method, coverage) values (:route, :run_id, :queue, :role, :observed_at,"
                    " :visible, :in_flight, :delayed, :consumers, :oldest_age_seconds, :oldest_age_method,"
                    " :oldest_visible_age_seconds, :oldest_visible_age_method, :coverage)"
                ),
                {
                    "route": lease.route,
                    "run_id": lease.run_id,
                    **one._asdict(),
                    "observed_at": one.observed_at or now,
                },
            )


def destinations(connection: Connection, route: str) -> list[str]:
    """Queues to which the route has open or observed messages."""
    rows = connection.execute(
        sql(
            "select distinct destination from messages where route = :route and destination is not null"
            " and state in ('classified', 'waiting', 'held', 'sending', 'unknown', 'sent')"
        ),
        {"route": route},
    )
    return sorted(row.destination for row in rows)
