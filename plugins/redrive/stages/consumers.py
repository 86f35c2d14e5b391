"""Sick consumers, not bad messages: who holds messages and acks none, and how much less is sent while that lasts.

Where the broker tells who consumes a destination, each observation compares what every consumer holds and whether it
has acked since the last one. A consumer that held messages at both and acked none in between made no progress; after
the route's ``isolation.ack_timeout`` of that it is stuck. Stuck consumers are isolated, that is, they count as gone,
until they ack or leave; never more than :data:`MOST_ISOLATED` of them, because if nearly all are stuck it is not they
who are sick. One look alone says nothing: a consumer that just got its first message has acked nothing either.

With ``isolation.action: close_connection`` the broker is asked to end the connections of isolated consumers, so that
the healthy ones get what they held. Only connections over which nobody else works, only while somebody is healthy, and
of one crew no more than :data:`MOST_ISOLATED` within :data:`CREW_CHANGES`: a message at which whoever gets it hangs
would otherwise go from one to the next. Where a broker can only make all consumers connect anew, it does so once within
:data:`CREW_CHANGES`.
"""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, cast

from redrive.brokers.base import ClosesConnections, ConsumerStats, TellsOfConsumers
from redrive.errors import BrokerError, QueueMissing
from redrive.ledger.delivery import consumers as ledger_consumers
from redrive.ledger.delivery.consumers import Health
from redrive.message import index_key
from redrive.stages.context import Context

#: At most this share of a queue's consumers is isolated at once.
MOST_ISOLATED = 0.6
#: For so long consumers whose connection was closed count as some of the crew that they left.
CREW_CHANGES = timedelta(hours=1)
#: A consumer that is there so long after its connection was to be closed still has it; statistics come late.
CLOSING_TAKES = timedelta(minutes=1)


class Sick(NamedTuple):
    """What a look at the consumers of a queue came to."""

    stuck: int = 0  # the isolated ones too
    isolated: int = 0
    closed: int = 0  # connections


class Closing(NamedTuple):
    """A connection of isolated consumers."""

    connection: str
    consumers: tuple[str, ...]
    why_not: str = ""  # not empty: it is left open


def look(context: Context, queue: str) -> Sick:
    """Judge the consumers of ``queue``, write it down, and do what the route says about those that are isolated."""
    broker = context.broker
    if not broker.capabilities_for(queue).consumer_statistics:
        return Sick()
    try:
        told = cast("TellsOfConsumers", broker).consumers(queue)
        seen = [one._replace(consumer=index_key(one.consumer)) for one in told]
    except QueueMissing:
        raise
    except BrokerError as error:
        # Who can't look knows nothing new: the route goes on as with a broker that doesn't tell.
        context.progress(f"consumers of {queue} are not watched: {error}", 0, None)
        return Sick()
    with context.ledger.read() as connection:
        known = ledger_consumers.of_queue(connection, context.name, queue)
    now = context.now()
    assessed = assess(known, seen, ack_timeout=context.route.isolation.ack_timeout, now=now)
    if assessed:
        ledger_consumers.write(context.ledger, context.lease, queue, assessed, now)
    isolated = sum(1 for one in assessed if one.status == "isolated")
    stuck = isolated + sum(1 for one in assessed if one.status == "stuck")
    closed = 0
    if (
        isolated
        and context.route.isolation.action == "close_connection"
        and broker.capabilities_for(queue).closes_connections
        and not context.run.dry_run
    ):
        for one in _closings(context, queue, known, assessed, seen):
            closed += _close(context, queue, one)
    return Sick(stuck, isolated, closed)


def _close(context: Context, queue: str, closing: Closing) -> int:
    """Close one connection; 1 if it was."""
    connection, consumers, why_not = closing
    if why_not:
        context.progress(f"connection {connection} of a stuck consumer of {queue} stays open: {why_not}", 0, None)
        return 0
    timeout = context.route.isolation.ack_timeout
    reason = f"Redrive: holds messages of queue {queue} and acked none for more than {timeout} (route {context.name})"
    here = (context.ledger, context.lease, queue, connection, consumers)
    ledger_consumers.close_connection(*here, reason, context.now())
    try:
        was_there = cast("ClosesConnections", context.broker).close_connection(queue, connection, reason)
    except BrokerError as error:
        ledger_consumers.connection_stayed(*here, str(error), context.now())
        context.progress(f"connection {connection} of a stuck consumer of {queue} stays open: {error}", 0, None)
        return 0
    context.progress(f"closed connection {connection}: {reason}" if was_there else f"{connection} has left", 0, None)
    return int(was_there)


def _closings(
    context: Context, queue: str, known: Sequence[Health], assessed: Sequence[Health], seen: Sequence[ConsumerStats]
) -> list[Closing]:
    """What may be closed, one by one or, where that makes every consumer connect anew, all at once."""
    now = context.now()
    if not context.broker.capabilities_for(queue).closes_all_together:
        return to_close(known, assessed, seen, now=now)
    with context.ledger.read() as connection:
        last = ledger_consumers.last_closing(connection, context.name, queue, since=now - CREW_CHANGES)
    why_not = ""
    if all(one.status != "healthy" for one in assessed):
        why_not = "no healthy consumer could take over"
    elif last is not None:
        why_not = f"all its consumers had to connect anew at {last:%H:%M}, and that is done once in {CREW_CHANGES}"
    isolated = tuple(one.consumer for one in assessed if one.status == "isolated")
    return [Closing(place, isolated, why_not) for place in dict.fromkeys(one.connection for one in seen) if place]


def to_close(
    known: Sequence[Health], assessed: Sequence[Health], seen: Sequence[ConsumerStats], *, now: datetime
) -> list[Closing]:
    """The connections of isolated consumers that nobody has asked to close yet, and what speaks against closing."""
    status = {one.consumer: one.status for one in assessed}
    last = {one.consumer: one for one in (*known, *assessed)}.values()
    due = [one for one in assessed if one.status == "isolated" and _due(one, now)]
    closed = [one for one in last if one.closed_at and now - one.closed_at <= CREW_CHANGES and one not in due]
    # Of everybody who was there in that time, those that left without being asked to are of no interest.
    crew = {one.consumer for one in seen} | {one.consumer for one in closed}
    room = math.floor(MOST_ISOLATED * len(crew)) - len(closed)
    found: list[Closing] = []
    of = {one.consumer: one.connection for one in seen}
    for connection in dict.fromkeys(of[one.consumer] for one in sorted(due, key=lambda one: one.last_progress_at)):
        if connection is None:
            continue
        members = [one for one in seen if one.connection == connection]
        names = tuple(one.consumer for one in members)
        why_not = ""
        if any(status[name] != "isolated" for name in names):
            why_not = "consumers that are not isolated use it too"
        elif any(one.shared for one in members):
            why_not = "other queues are served over it too"
        elif "healthy" not in status.values():
            why_not = "no healthy consumer could take over"
        elif len(names) > room:
            why_not = f"that would be more than {MOST_ISOLATED:.0%} of the consumers within {CREW_CHANGES}"
        else:
            room -= len(names)
        found.append(Closing(connection, names, why_not))
    return found


def _due(one: Health, now: datetime) -> bool:
    return one.closed_at is None or now - one.closed_at > CLOSING_TAKES


def assess(
    known: Sequence[Health], seen: Sequence[ConsumerStats], *, ack_timeout: timedelta, now: datetime
) -> list[Health]:
    """Each consumer that is there, and each that left since it was last seen."""
    before = {one.consumer: one for one in known if one.status != "gone"}
    assessed: dict[str, Health] = {}
    stuck: list[Health] = []
    for one in seen:
        was = before.get(one.consumer)
        if was is None or 0 in (was.unacked, one.unacked) or was.progress != one.progress:
            assessed[one.consumer] = Health(one.consumer, one.unacked, one.progress, now, "healthy")
        elif now - was.last_progress_at <= ack_timeout:
            assessed[one.consumer] = was._replace(
                unacked=one.unacked, status="healthy", isolated_at=None, closed_at=None
            )
        else:
            stuck.append(was._replace(unacked=one.unacked))
    # Who is isolated stays so; then the longest without progress.
    stuck.sort(key=lambda one: (one.isolated_at or now, one.last_progress_at, one.consumer))
    room = math.floor(MOST_ISOLATED * len(seen))
    for place, sick in enumerate(stuck):
        if place < room:
            assessed[sick.consumer] = sick._replace(status="isolated", isolated_at=sick.isolated_at or now)
        else:
            assessed[sick.consumer] = sick._replace(status="stuck", isolated_at=None)
    gone = [was for name, was in before.items() if name not in assessed]
    left = [was._replace(unacked=0, status="gone", isolated_at=None) for was in gone]
    return [*assessed.values(), *left]


def healthy_share(context: Context, queue: str) -> float:
    """The share of the queue's consumers that counts: 1 where nothing is known, 0 while all of them are stuck.

    What was seen long ago is not known: the broker may not have told since, and they may be others by now.
    """
    since = context.now() - ledger_consumers.RECENT
    with context.ledger.read() as connection:
        known = ledger_consumers.of_queue(connection, context.name, queue, since=since)
    present = [one.status for one in known if one.status != "gone"]
    if not present:
        return 1.0
    if "healthy" not in present:
        return 0.0
    return 1 - present.count("isolated") / len(present)
