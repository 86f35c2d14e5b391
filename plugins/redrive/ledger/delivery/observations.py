"""What was seen of queues: depth, and the ages that brokers don't tell truly."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.predicates import HERE
from redrive.ledger.tables import messages
from redrive.ledger.transactions import RouteLease
from redrive.message import ROW_BITS

#: A count of zero may be so much behind what really lies in a queue.
COUNTS_LAG = timedelta(minutes=5)
#: Values in one ``in (…)``.
AT_ONCE = 500


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
    oldest_enqueued_at: datetime | None = None
    oldest_seen_at: datetime | None = None
    oldest_deliveries: int | None = None
    looked_from_at: datetime | None = None  # what was received to look at it was sent between these, says the broker
    looked_to_at: datetime | None = None
    lag_seconds: float = 0.0  # so long before ``observed_at`` the depth may have been so
    zeros_apart_seconds: float = 0.0  # a depth of zero counts once another, so long before, said so too
    exact: bool = False  # the depth counts every message; no estimate
    told: bool = False  # ``observed_at`` is by the clock of the broker, which told it


#: SQL: of the queues that the route's runs work with now. Those of another broker may have the same names.
_HERE = f"system = {HERE}"


def newest(of: str = "route = :route") -> str:
    """SQL that begins a statement: ``newest`` has the ``observation_id`` of what was seen last of each queue, of the
    routes that ``of`` picks from ``route_state``. It goes from queue to queue, however often each was looked at."""
    return f"""
with recursive queues (route, queue) as (
    select route, (select min(queue) from queue_observations seen where seen.route = route_state.route)
    from route_state where {of}
    union all
    select
        route,
        (select min(queue) from queue_observations seen where seen.route = queues.route and seen.queue > queues.queue)
    from queues where queue is not null
),

newest (observation_id) as (
    select (
        select max(observation_id) from queue_observations seen
        where seen.route = queues.route and seen.queue = queues.queue
    ) from queues where queue is not null
)

"""


class Oldest(NamedTuple):
    """The oldest message of a queue as it was last seen."""

    enqueued_at: datetime  # first of all, also where it has been redelivered since
    seen_at: datetime
    deliveries: int  # to others than us


def observe(ledger: Ledger, lease: RouteLease, observations: Sequence[Observation], now: datetime) -> None:
    """Keep what was seen, at ``now`` unless an observation says when."""
    with ledger.under(lease, now) as tx:
        for one in observations:
            tx.execute(
                sql(
                    "insert into queue_observations (route, run_id, queue, role, observed_at, visible, in_flight,"
                    " delayed, consumers, oldest_age_seconds, oldest_age_method, oldest_visible_age_seconds,"
                    " oldest_visible_age_method, coverage, oldest_enqueued_at, oldest_seen_at, oldest_deliveries,"
                    " looked_from_at, looked_to_at, lag_seconds, zeros_apart_seconds, exact, told, system, fence)"
                    " values (:route, :run_id, :queue, :role, :observed_at,"
                    " :visible, :in_flight, :delayed, :consumers, :oldest_age_seconds, :oldest_age_method,"
                    " :oldest_visible_age_seconds, :oldest_visible_age_method, :coverage, :oldest_enqueued_at,"
                    " :oldest_seen_at, :oldest_deliveries, :looked_from_at, :looked_to_at, :lag_seconds,"
                    f" :zeros_apart_seconds, :exact, :told, {HERE}, :fence)"
                ),
                {
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


def last_oldest(connection: Connection, route: str, queue: str) -> Oldest | None:
    """The oldest message of the destination ``queue`` by the last observation that knew an age."""
    row = connection.execute(
        sql(
            "select oldest_enqueued_at, oldest_seen_at, oldest_deliveries from queue_observations where"
            " observation_id = (select max(observation_id) from queue_observations where route = :route"
            f" and queue = :queue and {_HERE} and role = 'destination' and oldest_age_method <> 'unknown')"
        ),
        {"route": route, "queue": queue},
    ).first()
    if row is None or row.oldest_enqueued_at is None or row.oldest_seen_at is None:
        return None
    return Oldest(
        cast("datetime", parse_instant(row.oldest_enqueued_at)),
        cast("datetime", parse_instant(row.oldest_seen_at)),
        row.oldest_deliveries or 0,
    )


class LastDepth(NamedTuple):
    """What was seen last of how much a destination holds; None: its broker does not tell."""

    observed_at: datetime
    depth: int | None
    exact: bool


def last_depth(connection: Connection, route: str, queue: str) -> LastDepth | None:
    """What was seen last of a destination; None where nobody has looked at it yet."""
    row = connection.execute(
        sql(
            "select observed_at, visible + in_flight + delayed as depth, exact from queue_observations"
            f" where queue = :queue and {_HERE} and role = 'destination' order by observed_at desc limit 1"
        ),
        {"route": route, "queue": queue},
    ).first()
    at = parse_instant(row.observed_at) if row else None
    return None if row is None or at is None else LastDepth(at, row.depth, bool(row.exact))


def tells_depth(connection: Connection, route: str, queue: str) -> bool:
    """Whether looking at a destination can say that it has worked; not where its broker did not tell its depth."""
    seen = last_depth(connection, route, queue)
    return seen is None or seen.depth is not None


def looks(connection: Connection, route: str, queue: str, sent_at: datetime) -> int:
    """How often a message that the ``route``'s ``queue`` has had since ``sent_at`` may have been received only to look
    at it, at most.

    Over all routes of the same broker: a queue may be the destination of several.
    """
    row = connection.execute(
        sql(
            f"select count(*) as looks from queue_observations where queue = :queue and {_HERE}"
            " and observed_at >= :sent_at and looked_from_at <= :sent_at and looked_to_at >= :sent_at"
        ),
        {"route": route, "queue": queue, "sent_at": sent_at},
    ).one()
    return int(row.looks)


def most_looks(connection: Connection, route: str, queue: str, since: datetime) -> int:
    """:func:`looks` at that message, of those that the ``route``'s ``queue`` may have since ``since``, which had most.

    A look may have had any message between the first and the last that it saw, and none before or after.
    """
    spans = (
        f"from queue_observations where queue = :queue and {_HERE} and observed_at >= :since_at"
        " and looked_to_at >= :since_at"
    )
    row = connection.execute(
        sql(
            "select max(at_once) as most from (select sum(step) over (order by moment, step desc rows unbounded"
            f" preceding) as at_once from (select looked_from_at as moment, 1 as step {spans}"
            f" union all select looked_to_at, -1 {spans}) ends) counted"
        ),
        {"route": route, "queue": queue, "since_at": since},
    ).one()
    return int(row.most or 0)


def nothing_left(connection: Connection, route: str, queue: str, depth: int, since: datetime) -> bool:
    """Whether all looks at the ``route``'s ``queue`` from ``since`` on say that nobody took anything: none was in a
    consumer's hands, and the depth, which is ``depth`` now, never fell."""
    rows = connection.execute(
        sql(
            "select in_flight, visible + in_flight + delayed as depth from queue_observations where queue = :queue"
            f" and {_HERE} and role = 'destination' and observed_at >= :since_at order by observed_at, observation_id"
        ),
        {"route": route, "queue": queue, "since_at": since},
    ).all()
    depths = [*(row.depth for row in rows), depth]
    return all(row.in_flight == 0 for row in rows) and all(
        earlier is not None and earlier <= later for earlier, later in pairwise(depths)
    )


def nothing_older_than(connection: Connection, route: str, queue: str, since: datetime) -> datetime:
    """No message of the ``route``'s ``queue`` was put there before this moment, as far as ``since`` and observations
    after it tell.

    They do when it was empty, and when a look saw all that was in it.
    """
    row = connection.execute(
        sql(
            "select max(case when visible = 0 and in_flight = 0 and delayed = 0 then observed_at end) as empty_at,"
            # A time that was still to come when it was told says nothing of what had been put there by then.
            " max(case when coverage >= 1 and oldest_age_method = 'sample' and oldest_enqueued_at <= observed_at"
            " then oldest_enqueued_at end) as all_seen_at"
            f" from queue_observations where queue = :queue and {_HERE} and observed_at >= :since_at"
        ),
        {"route": route, "queue": queue, "since_at": since},
    ).one()
    found = (parse_instant(one) for one in (row.empty_at, row.all_seen_at))
    return max([since, *(one - COUNTS_LAG for one in found if one is not None)])


def originals(connection: Connection, redrive_ids: Collection[str]) -> dict[str, datetime]:
    """When the messages of these redrive ids were first enqueued; those that we don't know are left out."""
    # What can't be printed (a NUL, half a surrogate pair) no database takes as a text, and we never made it.
    wanted, found = sorted({one for one in redrive_ids if one.isprintable()}), {}
    for start in range(0, len(wanted), AT_ONCE):
        rows = connection.execute(
            sa.select(messages.c.redrive_id, messages.c.first_enqueued_at).where(
                messages.c.redrive_id.in_(wanted[start : start + AT_ONCE]), messages.c.first_enqueued_at.is_not(None)
            )
        )
        found.update({row.redrive_id: row.first_enqueued_at for row in rows})
    return found


def drained_since(connection: Connection, route: str, enqueued_at: datetime, since: datetime) -> bool:
    """Whether a message that was first enqueued at ``enqueued_at`` was drained and loaded after ``since``."""
    batch = connection.execute(
        sql("select min(batch_id) as batch_id from staging_batches where route = :route and opened_at >= :since_at"),
        {"route": route, "since_at": since},
    ).one()
    if batch.batch_id is None:
        return False
    row = connection.execute(
        sql(
            "select 1 from messages where message_id >= :first and route = :route"
            " and first_enqueued_at = :enqueued_at union all"
            " select 1 from repeat_copies c join messages m on m.message_id = c.message_id where c.copy_id >= :first"
            " and c.route = :route and m.first_enqueued_at = :enqueued_at"
        ),
        {"first": batch.batch_id << ROW_BITS, "route": route, "enqueued_at": enqueued_at},
    ).first()
    return row is not None
