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
from redrive.errors import RedriveError
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
    """Queues of two routes, once for each two routes; connections that nobody knows are left out."""
    found: dict[str, Connection] = {}
    for name in sorted({route.connection for route in settings.routes.values() if route.connection}):
        try:
            found[name] = connection(name)
        except RedriveError:
            continue  # the finding of its routes
    for (first, one), (second, other) in combinations(settings.routes.items(), 2):
        ends = one.connection or "", other.connection or ""
        if one.broker != other.broker or ends[0] == ends[1] or not found.keys() >= {*ends}:
            continue
        if not lead_to_one(found[ends[0]], found[ends[1]]):
            continue
        queues = Queues(registry.kind(one.broker))
        for queue in _named(one):
            queues.add(queue, first)
        shared = next((queue for queue in sorted(_named(other)) if queues.find(queue)), None)
        if shared is not None:
            yield Twice(second, shared, ends[1], first, ends[0])


def _named(route: Route) -> set[str]:
    sources = {source.queue for source in route.sources}
    return sources | {target for source in sources if (target := route.destination_of(source))}


def lead_to_one(one: Connection, other: Connection) -> bool:
    """Whether two connections surely lead to one broker: to the same host, port and virtual host or namespace, whoever
    signs in; where they name no host, because they say the same of everything."""
    if one.host or other.host:
        hosts = {(connection.host or "").lower().rstrip(".") for connection in (one, other)}
        ports = {connection.port for connection in (one, other) if connection.port is not None}
        spaces = {(connection.schema or "").strip("/") for connection in (one, other)}
        return len(hosts) == 1 and len(ports) < 2 and len(spaces) == 1
    said = ((c.login, c.password, c.port, c.schema, dict(c.extra)) for c in (one, other))
    return next(said) == next(said)
