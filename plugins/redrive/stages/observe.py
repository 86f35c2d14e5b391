"""Look at every queue of the route and write down what is seen."""

from redrive.errors import QueueMissing
from redrive.ledger import observations
from redrive.ledger.observations import Observation
from redrive.stages.context import Context


def observe(context: Context) -> dict[str, int]:
    """Depths of all sources and destinations into ``queue_observations``.

    A missing source is an error; a missing destination is one only when something is to be sent there.
    """
    seen: list[Observation] = []
    for source in context.route.sources:
        depth = context.broker.depth(source.queue)
        seen.append(Observation(source.queue, "source", depth.visible, depth.in_flight, depth.delayed, depth.consumers))
    for queue in destinations(context):
        try:
            depth = context.broker.depth(queue)
        except QueueMissing:
            continue
        seen.append(Observation(queue, "destination", depth.visible, depth.in_flight, depth.delayed, depth.consumers))
    observations.observe(context.ledger, context.lease, seen, context.now())
    return {
        "source_depth": sum(o.visible + o.in_flight + o.delayed for o in seen if o.role == "source"),
        "destination_depth": sum(o.visible + o.in_flight + o.delayed for o in seen if o.role == "destination"),
    }


def destinations(context: Context) -> list[str]:
    """Every queue that the route sends to: as configured, and as its open messages say."""
    with context.ledger.read() as connection:
        found = set(observations.destinations(connection, context.name))
    if context.route.destination:
        found.add(context.route.destination.queue)
    found.update(source.destination for source in context.route.sources if source.destination)
    return sorted(found)
