"""Drain: broker -> staging, all sources of a route. Each is drained by :mod:`redrive.stages.source_drain`, which puts
what it receives into batches (:mod:`redrive.stages.open_batch`); :mod:`redrive.stages.source_end` tells whether it is
drained to its end.

Where messages go in order, a source is drained by one shard, so that what it gave out first has the lowest ids.

While a gate waits only for what may have come back, or messages in order only for what may lie before them, a run
reads on beyond its limit, so that neither waits for a backlog to be worked off.

A source that fails stops no other one: it is noted, and the run fails for it in the end. The source whose messages
expire soonest is drained first.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from redrive.errors import BrokerError
from redrive.ledger.delivery import expiry as expiry_ledger
from redrive.ledger.delivery import gate_waits
from redrive.ledger.delivery.expiry import Expiry
from redrive.ledger.drain import batches, horizon
from redrive.settings import Source
from redrive.stages.context import Context
from redrive.stages.failed_queues import Failures
from redrive.stages.source_drain import RESCUE_AT_ONCE, SourceDrain
from redrive.stages.source_end import BEGAN, COMPLETE, ENDED, NOTHING_MORE, PROVED

#: Messages asked for at a first look at a source of which nothing is known.
LOOK_AT = 10
#: So many times its limit a run drains at most while a gate waits only for what may have come back into a source.
READ_ON = 100
#: The next run may be over so many times the longest of the last gaps between runs from now; never sooner than in
#: :data:`SOONEST`, and in :data:`UNKNOWN_GAP` where there were no two runs yet.
GAPS = 2
SOONEST = timedelta(hours=1)
UNKNOWN_GAP = timedelta(days=1)


def drain(context: Context, *, shard: int = 0, shards: int = 1, tries_left: bool = False) -> dict[str, Any]:
    """Drain every source of the route, the one that expires soonest first; returns what was staged and settled.

    With ``tries_left`` a failure that may pass is raised when all sources had their turn, and nothing is noted.
    """
    began = context.now()
    limit = context.route.drain.limit
    if context.selection.limit is not None:
        limit = min(limit, context.selection.limit)
    elif reads_on(context):
        context.progress("beyond the limit: a gate waits for what may have come back", 0, None)
        limit *= READ_ON
    totals: dict[str, Any] = {"drained": 0, "settled": 0, "batches": 0, "not_settled": 0, "rescued": 0}
    if began < context.run.started_at:
        totals[f"{BEGAN}{began.isoformat()}"] = 1
    mine, sharing = _mine(context.route.sources, shard, shards, in_order=context.route.order_by is not None)
    remaining = math.ceil(limit / sharing)
    if context.selection.limit is not None:  # people's limit is of a run, however often its tasks are cleared
        with context.ledger.read() as connection:
            taken = batches.taken_by(connection, context.lease, shard)
        remaining = math.ceil(max(0, limit - taken.before) / sharing) - taken.here
    known, next_run = _expiries(context), _next_run_over(context)
    failures = Failures(context)
    for source in by_urgency(context.route.sources, known):
        if context.selection.sources and source.queue not in context.selection.sources:
            continue
        if source.queue not in mine:
            continue
        expiry = known[source.queue]
        # Of a source that was never looked at nobody knows how old its messages are.
        unseen = expiry.retention is not None and expiry.oldest_at is None
        if remaining <= 0 and not unseen and (expiry.at is None or expiry.at > next_run):
            continue
        one = SourceDrain(context, source, shard, expiry, next_run)
        with failures.apart(source.queue):
            one.run(max(remaining, 0), look_at=LOOK_AT if unseen else RESCUE_AT_ONCE)
        remaining -= one.drained
        totals["rescued"] += one.rescued
        totals["drained"] += one.drained
        totals["settled"] += one.batch.settled
        totals["batches"] += one.batch.closed
        totals["not_settled"] += one.drained - one.batch.settled
        for found, name in (
            (one.end.complete, COMPLETE),
            (one.end.proved, PROVED),
            (one.end.nothing_more, NOTHING_MORE),
            (one.end.ended, ENDED),
        ):
            if found:
                totals[name + source.queue] = 1
    if tries_left:
        failures.raise_passing()
    return totals | failures.noted()


def reads_on(context: Context) -> bool:
    """Whether this run drains to the end of its sources, up to :data:`READ_ON` times its limit.

    Then a gate waits for nothing but that: the destination has worked past sends of its stage and their window is over,
    so that what failed again lies in a source, behind whatever else does. Reading on costs staging; not reading on
    would keep all that is held behind the gate until the backlog is worked off, which with a steady inflow is never.
    For all shards of a run the answer is the same.
    """
    lag = max(context.broker.capabilities_for(source.queue).depth_lag for source in context.route.sources)
    began = min(context.run.started_at, context.now())
    with context.ledger.read() as connection:
        if gate_waits.for_what_came_back(connection, context.name, drained_from=began - lag):
            return True
        if context.route.order_by is None:
            return False
        to = horizon.drained_to(connection, context.name, [source.queue for source in context.route.sources])
        return gate_waits.for_their_turn(connection, context.name, drained_to=to, now=began)


def _mine(sources: Sequence[Source], shard: int, shards: int, *, in_order: bool) -> tuple[set[str], int]:
    """The sources that this shard drains, and how many shards share the limit.

    Where messages go in order, each source is drained by one shard. Brokers tell in milliseconds or seconds when a
    message was enqueued, so for many the order in which they came out of their source is all there is to tell theirs,
    and of two shards nobody knows which received first.
    """
    queues = [source.queue for source in sources]
    if not in_order:
        return set(queues), shards
    return set(queues[shard::shards]), min(shards, len(queues))


def by_urgency(sources: Sequence[Source], known: Mapping[str, Expiry]) -> list[Source]:
    """Sources in the order in which their messages expire; where that isn't known, those that keep them for the
    shortest time first, and those that keep them for ever last. Of these, the one goes first of which nobody knows how
    old its messages are, then whose may be the oldest: none waits for ever for another one that fills each limit."""

    def expires(source: Source) -> tuple[bool, datetime, timedelta, datetime]:
        expiry = known[source.queue]
        at = expiry.at
        oldest = expiry.oldest_at or datetime.min.replace(tzinfo=UTC)
        return at is None, at or datetime.max.replace(tzinfo=UTC), expiry.retention or timedelta.max, oldest

    return sorted(sources, key=expires)


def _expiries(context: Context) -> dict[str, Expiry]:
    """What is known of each source's expiry; retention as configured, else as the broker said before, else asked."""
    with context.ledger.read() as connection:
        known = expiry_ledger.of_sources(connection, context.name)
    found = {}
    for source in context.route.sources:
        before = known.get(source.queue, Expiry())
        retention = source.retention or before.retention
        if retention is None:
            try:
                retention = context.broker.describe(source.queue).retention
            except BrokerError:
                pass  # not everybody may ask: then nothing is known
        found[source.queue] = Expiry(retention, before.oldest_at)
    return found


def _next_run_over(context: Context) -> datetime:
    """By when the next run should be over, judged by how often the route ran."""
    with context.ledger.read() as connection:
        gap = expiry_ledger.longest_gap(connection, context.name)
    return context.now() + max(SOONEST, UNKNOWN_GAP if gap is None else GAPS * gap)
