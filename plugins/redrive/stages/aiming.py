"""Where the messages of a route go in this run, and what is said when that is nowhere."""

from redrive.aims import Aim, Aims
from redrive.errors import QueueMissing
from redrive.ledger import aiming
from redrive.settings import Route
from redrive.stages.context import Context


def aims(context: Context) -> Aims:
    """Where the messages of the route go by its configuration."""
    return configured(context.route)


def configured(route: Route) -> Aims:
    """Where messages go as far as the configuration alone says it."""
    return Aims(
        {source.queue: _aim(route.destination_of(source.queue)) for source in route.sources}, _aim(_fixed(route))
    )


def aim(context: Context) -> int:
    """Bring the destinations of all messages that are still to be sent in line; how many changed."""
    changed = aiming.aim(context.ledger, context.lease, aims(context), context.now())
    if changed:
        context.progress("messages go elsewhere than before: the configuration changed", changed, None)
    return changed


def missing(context: Context, queue: str) -> QueueMissing | None:
    """The error about a configured destination that is missing; None where ``queue`` isn't configured as one.

    It is the configuration that is wrong, not a message, and no person has to look at each of them.
    """
    route = context.route
    key = next(
        (f"sources.{place}.destination" for place, source in enumerate(route.sources) if source.destination == queue),
        "destination.queue" if _fixed(route) == queue else None,
    )
    if key is None:
        return None
    return QueueMissing(
        f"routes.{context.name}.{key}: {queue!r} does not exist (connection {route.connection}). Messages that go there"
        " stay as they are, and go out once the key is mended or the queue is made"
    )


def _aim(queue: str | None) -> Aim:
    return Aim(queue, any_origin=queue is None)


def _fixed(route: Route) -> str | None:
    return route.destination.queue if route.destination else None
