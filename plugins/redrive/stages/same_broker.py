"""Two connections that lead to one broker: its queues are two to Redrive where two routes name them so.

A queue is known by its broker's kind and the connection (:attr:`redrive.settings.Route.system`), so nothing that
happens through one is seen through the other. The doctor tells of it; no run asks for connections that it needs not.
"""

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import NamedTuple

from redrive.brokers import registry
from redrive.connections import lookup
from redrive.connections.lookup import Connection
from redrive.settings import Route, Settings
from redrive.settings.route import Queues


class Twice(NamedTuple):
    """A queue that two routes name through two connections to one broker."""

    route: str
    queue: str
    connection: str
    other_route: str
    other_connection: str

    def __str__(self) -> str:
        return (
            f"{self.queue}: route {self.other_route} names this queue too, through {self.other_connection}, which leads"
            f" to the same broker as {self.connection}. Redrive takes it for two: what comes back is not seen as a"
            " return of the other route's sends, and what waits there counts for neither's limits. Give both routes one"
            " connection"
        )


def named_twice(settings: Settings, connection: Callable[[str], Connection] = lookup.get) -> Iterator[Twice]:
    """Queues of two routes, the first of each two connections; connections that can't be read are left out."""
    by_kind: dict[str, dict[str, dict[str, Route]]] = {}
    for name, route in settings.routes.items():
        if route.connection:
            by_kind.setdefault(route.broker, {}).setdefault(route.connection, {})[name] = route
    for broker, of_kind in by_kind.items():
        if len(of_kind) < 2:
            continue
        known = {name: said for name in of_kind if (said := _read(name, connection))}
        for one, other in combinations(known, 2):
            if lead_to_one(known[one], known[other]):
                queues = Queues(registry.kind(broker))
                for name, route in of_kind[one].items():
                    for queue in _named(route):
                        queues.add(queue, name)
                shared = (
                    Twice(name, queue, other, found.of, one)
                    for name, route in of_kind[other].items()
                    for queue in sorted(_named(route))
                    if (found := queues.find(queue))
                )
                yield from [first] if (first := next(shared, None)) else []


def _read(name: str, connection: Callable[[str], Connection]) -> Connection | None:
    try:
        return connection(name)
    except Exception:  # whatever a secrets backend raises is a finding of its routes
        return None


def _named(route: Route) -> set[str]:
    sources = {source.queue for source in route.sources}
    return sources | {target for source in sources if (target := route.destination_of(source))}


def lead_to_one(one: Connection, other: Connection) -> bool:
    """Whether two connections surely lead to one broker: they say the same but for who signs in, or, where no host is
    named, of everything."""
    said, another = _said(one), _said(other)
    if not one.host and not other.host:
        said, another = (*said, one.login, one.password), (*another, other.login, other.password)
    return said == another


def _said(connection: Connection) -> tuple[object, ...]:
    host = str(connection.host or "").lower().rstrip(".")
    return host, connection.port, connection.schema or None, dict(connection.extra)
