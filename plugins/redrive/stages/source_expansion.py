"""Sources that stand for several queues, such as all subscriptions of a topic: which ones, now or as the ledger knows.

What a stage works with is a route that names each queue, as if it stood in the configuration so.
"""

from collections.abc import Callable, Iterable
from typing import cast

from redrive.brokers import registry
from redrive.brokers.base import Broker, ListsSources
from redrive.ledger.delivery import expiry
from redrive.ledger.engine import Ledger
from redrive.ledger.selecting import Selection
from redrive.settings import Route


def has_many(route: Route) -> bool:
    """Whether a source of the route stands for several."""
    return any(registry.kind(route.broker).many(source.queue) for source in route.sources)


def expanded(route: Route, names: Callable[[str], Iterable[str]]) -> Route:
    """The route with each such source replaced by those that ``names`` gives for it; what is listed by itself stays."""
    if not has_many(route):
        return route
    kind = registry.kind(route.broker)
    listed = {source.queue.lower() for source in route.sources}
    sources = []
    for source in route.sources:
        if not kind.many(source.queue):
            sources.append(source)
            continue
        for queue in names(source.queue):
            if queue.lower() not in listed:
                listed.add(queue.lower())
                sources.append(source.model_copy(update={"queue": queue}))
    return route.model_copy(update={"sources": tuple(sources)})


def as_the_broker_says(route: Route, broker: Callable[[], Broker]) -> Route:
    """The route with the queues that are there now; ``broker`` is opened only where it has to be asked."""
    return expanded(route, lambda queue: cast("ListsSources", broker()).sources(queue))


def as_known(route: Route, queues: Iterable[str]) -> Route:
    """The route with those of ``queues``, which the ledger knows, for which its sources stand."""
    covers, known = registry.kind(route.broker).covers, sorted(set(queues))
    return expanded(route, lambda source: [queue for queue in known if covers(source, queue)])


def selected(selection: Selection, written: Route, route: Route) -> Selection:
    """The selection of a run of ``written`` with the queues of the expanded ``route`` for a source that has many."""
    if not selection.sources or not has_many(written):
        return selection
    covers = registry.kind(written.broker).covers
    queues = [one.queue for one in route.sources if any(covers(source, one.queue) for source in selection.sources)]
    return selection.of(queues or selection.sources)


def of_ledger(ledger: Ledger, name: str, route: Route, selection: Selection) -> tuple[Route, Selection]:
    """The route and the selection with the queues of which the ledger knows, where no broker is asked."""
    if not has_many(route):
        return route, selection
    with ledger.read() as connection:
        known = as_known(route, expiry.of_sources(connection, name))
    return known, selected(selection, route, known)


def refuse_unknown_sources(selection: Selection, route: Route) -> None:
    """:class:`~redrive.errors.UsageError` where the selection names a source that the route does not drain."""
    selection.refuse_unknown_sources((one.queue for one in route.sources), registry.kind(route.broker).covers)
