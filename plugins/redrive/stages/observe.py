"""Look at every queue of the route and write down what is seen."""

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.engine import Connection

from redrive.brokers.base import Depth
from redrive.errors import PermissionRefused, QueueMissing
from redrive.ledger.account import notifications
from redrive.ledger.delivery import observations
from redrive.ledger.delivery.observations import Observation
from redrive.settings import Route
from redrive.stages import ages, aiming, consumers
from redrive.stages.ages import UNKNOWN, Ages
from redrive.stages.checking import refuse_broker_id
from redrive.stages.context import Context, instant
from redrive.stages.failed_queues import UNSEEN, Failures


def observe(context: Context, *, tries_left: bool = False) -> dict[str, Any]:
    """Depths of all sources and destinations into ``queue_observations``, and of destinations who consumes them.

    What a broker tells late is kept with the time at which it was so; what it doesn't tell is kept as unknown. A
    source that fails is noted and stops no other one, unless nobody answers for any; so does a destination, unless
    nothing goes anywhere else. A missing destination that the configuration names is an error: nothing is drained for
    it. One that only a message told is that message's own trouble when it is to be sent there. ``late`` are the
    messages that are older than the route's SLO and have no outcome, ``aged`` the destinations that hold one so old,
    ``deep`` the queues that hold more than the route allows. With ``tries_left`` a failure of a destination that may
    pass is raised when all had their turn.
    """
    refuse_broker_id(context)
    looks = _Looks(context)
    failures = Failures(context)
    for source in context.route.sources:
        with failures.apart(source.queue):
            looks.at_source(source.queue)
    failures.raise_passing(unless_one_of=len(context.route.sources))
    looks.write_sources()
    aiming.aim(context)
    wrong: QueueMissing | None = None
    unseen = Failures(context)
    for queue in destinations(context):
        with unseen.apart(queue):
            try:
                depth = context.broker.depth(queue)
            except QueueMissing:
                wrong = wrong or aiming.missing(context, queue)
                continue
            with contextlib.suppress(QueueMissing):  # it was there a moment ago: whoever sends to it will say so
                looks.at_destination(queue, depth)
        unseen.raise_where_nobody_answers()
    if wrong is not None:
        raise wrong
    aims = {context.route.destination_of(source.queue) for source in context.route.sources}
    unseen.raise_first_of(aims)  # there is nowhere to send what would be drained
    if tries_left:
        unseen.raise_passing()
    return looks.counts() | failures.noted() | unseen.noted(UNSEEN)


@dataclass(slots=True)
class _Looks:
    """What was seen so far, and written down."""

    context: Context
    sources: dict[str, Depth] = field(default_factory=dict)
    destinations: dict[str, Depth] = field(default_factory=dict)
    oldest_seconds: list[float] = field(default_factory=list)  # how old the oldest message of each destination is
    more: Counter[str] = field(default_factory=Counter)

    def at_source(self, queue: str) -> None:
        """How much it holds."""
        self.sources[queue] = self.context.broker.depth(queue)

    def write_sources(self) -> None:
        """All of them at once."""
        _write(
            self.context,
            [_observation(self.context, queue, "source", depth, UNKNOWN) for queue, depth in self.sources.items()],
        )

    def at_destination(self, queue: str, depth: Depth) -> None:
        """How old its oldest message is, and who consumes it; raises :class:`QueueMissing` where it is gone."""
        try:
            age = ages.look(self.context, queue, depth)
        except PermissionRefused:  # an age is not worth stopping the route for
            age = UNKNOWN
            self.more["refused_looks"] += 1
        # At once: what a look has cost must be known although the next queue may fail.
        _write(self.context, [_observation(self.context, queue, "destination", depth, age)])
        self.destinations[queue] = depth
        if age.oldest_age_seconds is not None:
            self.oldest_seconds.append(age.oldest_age_seconds)
        elif age == ages.EMPTY:
            self.oldest_seconds.append(0.0)  # whoever watches the number would else see the last one for ever
        stuck, isolated, closed = consumers.look(self.context, queue)
        self.more.update(stuck_consumers=stuck, isolated_consumers=isolated, closed_connections=closed)

    def counts(self) -> dict[str, Any]:
        """The stage's numbers."""
        depths = [*self.sources.values(), *self.destinations.values()]
        counts: dict[str, Any] = {
            "source_depth": sum(depth.total or 0 for depth in self.sources.values()),
            "destination_depth": sum(depth.total or 0 for depth in self.destinations.values()),
        }
        if unknown := sum(1 for depth in depths if depth.total is None):
            counts["unknown_depths"] = unknown
        counts |= _breaches(self.context, self.oldest_seconds, depths)
        return counts | {name: count for name, count in self.more.items() if count}


def _breaches(context: Context, aged: list[float], depths: list[Depth]) -> dict[str, int]:
    """What is older, or more, than the route wants it."""
    slo, most = context.route.slo, context.route.most_messages
    with context.ledger.read() as connection:
        late, _ = notifications.late(connection, context.name, enqueued_before=context.now() - slo)
    found = {
        "late": late,
        "aged": sum(1 for one in aged if one > slo.total_seconds()),
        "deep": 0 if most is None else sum(1 for depth in depths if depth.known > most),
    }
    oldest = {"oldest_age_seconds": round(max(aged))} if aged else {}
    return {name: count for name, count in found.items() if count} | oldest


def _write(context: Context, found: list[Observation]) -> None:
    observations.observe(context.ledger, context.lease, found, context.now())


def _observation(context: Context, queue: str, role: str, depth: Depth, age: Ages) -> Observation:
    capabilities = context.broker.capabilities_for(queue)
    return Observation(
        queue,
        role,
        depth.visible,
        depth.in_flight,
        depth.delayed,
        depth.consumers,
        observed_at=None if depth.as_of is None else instant(depth.as_of),
        **age._asdict(),
        lag_seconds=capabilities.depth_lag.total_seconds(),
        zeros_apart_seconds=capabilities.zeros_apart.total_seconds(),
        exact=capabilities.exact_depth,
        told=depth.by_its_clock,
    )


def destinations(context: Context) -> list[str]:
    """Every queue that the route sends to: as configured, and as its open messages say."""
    with context.ledger.read() as connection:
        return destinations_of(connection, context.name, context.route)


def destinations_of(connection: Connection, name: str, route: Route) -> list[str]:
    """As :func:`destinations`, of a route that nobody runs."""
    found = set(observations.destinations(connection, name))
    if route.destination:
        found.add(route.destination.queue)
    found.update(source.destination for source in route.sources if source.destination)
    return sorted(found)
