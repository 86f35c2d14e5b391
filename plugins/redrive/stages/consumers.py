"""Sick consumers, not bad messages: who holds messages and acks none, and how much less is sent while that lasts.

Where the broker tells who consumes a destination, each observation compares what every consumer holds and whether it
has acked since the last one. A consumer that held messages at both and acked none in between made no progress; after
the route's ``isolation.ack_timeout`` of that it is stuck. Stuck consumers are isolated, that is, they count as gone,
until they ack or leave; never more than :data:`MOST_ISOLATED` of them, because if nearly all are stuck it is not they
who are sick. Nothing is judged by one look alone: a consumer that just got its first message has acked nothing either.
"""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import cast

from redrive.brokers.base import ConsumerStats, TellsOfConsumers
from redrive.errors import PermissionRefused
from redrive.ledger import consumers as ledger_consumers
from redrive.ledger.consumers import Health
from redrive.stages.context import Context

#: At most this share of a queue's consumers is isolated at once.
MOST_ISOLATED = 0.6


def look(context: Context, queue: str) -> tuple[int, int]:
    """Judge the consumers of ``queue`` and write it down; how many are stuck, and how many of those isolated."""
    broker = context.broker
    if not broker.capabilities_for(queue).consumer_statistics:
        return 0, 0
    try:
        seen = cast("TellsOfConsumers", broker).consumers(queue)
    except PermissionRefused:
        return 0, 0  # who may not look knows nothing: the route goes on as with a broker that can't tell
    with context.ledger.read() as connection:
        known = ledger_consumers.of_queue(connection, context.name, queue)
    now = context.now()
    judged = judge(known, seen, ack_timeout=context.route.isolation.ack_timeout, now=now)
    if judged:
        ledger_consumers.write(context.ledger, context.lease, queue, known, judged, now)
    isolated = sum(1 for one in judged if one.status == "isolated")
    return isolated + sum(1 for one in judged if one.status == "stuck"), isolated


def judge(
    known: Sequence[Health], seen: Sequence[ConsumerStats], *, ack_timeout: timedelta, now: datetime
) -> list[Health]:
    """Each consumer that is there, and each that left since it was last seen."""
    before = {one.consumer: one for one in known if one.status != "gone"}
    judged: dict[str, Health] = {}
    stuck: list[Health] = []
    for one in seen:
        was = before.get(one.consumer)
        if was is None or 0 in (was.unacked, one.unacked) or was.progress != one.progress:
            judged[one.consumer] = Health(one.consumer, one.unacked, one.progress, now, "healthy")
        elif now - was.last_progress_at <= ack_timeout:
            judged[one.consumer] = was._replace(unacked=one.unacked, status="healthy", isolated_at=None)
        else:
            stuck.append(was._replace(unacked=one.unacked))
    # Who is isolated stays so; then the longest without progress.
    stuck.sort(key=lambda one: (one.isolated_at or now, one.last_progress_at, one.consumer))
    room = math.floor(MOST_ISOLATED * len(seen))
    for place, sick in enumerate(stuck):
        if place < room:
            judged[sick.consumer] = sick._replace(status="isolated", isolated_at=sick.isolated_at or now)
        else:
            judged[sick.consumer] = sick._replace(status="stuck", isolated_at=None)
    gone = [was for name, was in before.items() if name not in judged]
    left = [was._replace(unacked=0, status="gone", isolated_at=None) for was in gone]
    return [*judged.values(), *left]


def healthy_share(context: Context, queue: str) -> float:
    """The share of the queue's consumers that counts: 1 where nothing is known, 0 while all of them are stuck."""
    with context.ledger.read() as connection:
        known = ledger_consumers.of_queue(connection, context.name, queue)
    present = [one.status for one in known if one.status != "gone"]
    if not present:
        return 1.0
    if "healthy" not in present:
        return 0.0
    return 1 - present.count("isolated") / len(present)
