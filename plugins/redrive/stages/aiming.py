"""Where the messages of a route go in this run, and what is said when that is nowhere."""

from collections.abc import Callable, Collection
from dataclasses import replace

from redrive.errors import BrokerError, PermissionRefused, QueueMissing
from redrive.ledger.delivery import aiming
from redrive.policy.aims import Aim, Aims
from redrive.settings import Route, Source
from redrive.stages.context import Context


def aims(context: Context, drained_from: Collection[str]) -> Aims:
    """Where new messages from these sources go: by the route's configuration, and by the broker's word on where they
    came from. Raises :class:`BrokerUnavailable` where that can't be had now: nobody else has to look at them for it.
    """

    def back(source: Source) -> Aim:
        return _back(context, source, (QueueMissing,)) if source.queue in drained_from else Aim(as_before=True)

    return _aims(context.route, back, Aim(as_before=True))


def configured(route: Route) -> Aims:
    """Where messages go as far as the configuration alone says it; the others as before."""
    return _aims(route, lambda _: Aim(as_before=True), Aim(as_before=True))


def vouched(context: Context, source: Source) -> frozenset[str] | None:
    """The origins of ``source`` by the broker's word, asked once; None where nobody may ask. Raises
    :class:`BrokerError` where the source is missing or can't be asked now."""
    if source.queue not in context.asked:
        try:
            found = context.broker.origins(source.queue)
        except PermissionRefused:
            found = None
        context.asked[source.queue] = found
    return context.asked[source.queue]


def key_of(name: str, route: Route, source: str) -> str:
    """The key under which the origins of a source are listed."""
    place = next((place for place, one in enumerate(route.sources) if one.queue == source), None)
    return f"routes.{name}.sources" + ("" if place is None else f".{place}.origins")


def _aims(route: Route, back: Callable[[Source], Aim], gone: Aim) -> Aims:
    by_source = {}
    for source in route.sources:
        queue = route.destination_of(source.queue)
        by_source[source.queue] = back(source) if queue is None else Aim(queue)
    fixed = _fixed(route)
    return Aims(by_source, gone if fixed is None else Aim(fixed))


def _back(context: Context, source: Source, unless: tuple[type[BrokerError], ...]) -> Aim:
    if context.broker.capabilities_for(source.queue).proves_origin:
        return Aim(any_origin=True)
    try:
        return Aim.back(source.origins, vouched(context, source) or ())
    except unless:  # what the broker said of it before still holds
        return replace(Aim.back(source.origins), as_before=True)


def aim(context: Context) -> int:
    """Bring the destinations of all messages that are still to be sent in line; how many changed. Those of a source
    that fails stay as they are."""
    of_loaded = _aims(context.route, lambda source: _back(context, source, (BrokerError,)), Aim(as_before=True))
    changed = aiming.aim(context.ledger, context.lease, of_loaded, context.now())
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


def _fixed(route: Route) -> str | None:
    return route.destination.queue if route.destination else None
