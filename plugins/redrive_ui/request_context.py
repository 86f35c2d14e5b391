"""One request of one person: who asks, what they may see, and everything that answers it."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import Depends
from sqlalchemy.engine import Connection
from starlette.requests import Request
from starlette.responses import Response

from redrive import redaction
from redrive import settings as configuration
from redrive.ledger import schema
from redrive.ledger.engine import Ledger
from redrive.redaction import Redactor
from redrive.settings import Settings
from redrive_ui import message_queries, resolved_filters, route_queries
from redrive_ui.filters import Filter
from redrive_ui.identity import Access, Person
from redrive_ui.protection import Refused
from redrive_ui.rendering import Templates
from redrive_ui.rows import Row

#: How long a decision waits for somebody who changes the same messages. Whoever left that open over lunch must not hold
#: the api-server, of whose threads each request that waits has one.
PATIENCE = timedelta(seconds=10)
_READS_FOR = "20s"  # a page that takes longer is given up; the ledger has better things to do


@dataclass
class AppState:
    """What the application needs from outside, for as long as it lives; tests pass their own."""

    access: Access
    load: Callable[[], Settings]
    clock: Callable[[], datetime]
    templates: Templates = field(default_factory=Templates)
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    #: Exports that may go on at the same time.
    exports: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(2))

    def ledger(self, settings: Settings) -> Ledger:
        """The ledger of these settings, whose connections are kept from request to request."""
        if settings.database not in self.ledgers:
            self.ledgers[settings.database] = Ledger(settings.database, patience=PATIENCE, reads_for=_READS_FOR)
        return self.ledgers[settings.database]


@dataclass(frozen=True)
class RequestContext:
    """One request of one person: what they may see, and everything that answers it."""

    app_state: AppState
    request: Request
    person: Person
    settings: Settings
    ledger: Ledger
    readable: frozenset[str]
    now: datetime
    known: frozenset[str]  # every route, whoever may read it
    left_out: frozenset[str]  # routes of which the configuration is wrong: what they mask may be what is wrong

    def may_decide(self, route: str) -> bool:
        """Whether this person may decide on ``route``."""
        return route in self.readable and self.app_state.access.may_decide(self.person, route)

    def may_approve(self, decision: Row) -> bool:
        """Whether what was decided in this row (``route``, ``decided_by``, ``approved_by``) wants a second person, and
        this one can be that."""
        route = decision["route"]
        return (
            not decision["approved_by"]
            and not self.is_them(decision["decided_by"])
            and route in self.settings.routes
            and self.settings.routes[route].approvals > 1
            and self.may_decide(route)
        )

    @property
    def reads_all(self) -> bool:
        """Whether there is no route that this person may not read."""
        return self.known <= self.readable

    def require_all(self, routes: frozenset[str], what: str) -> None:
        """Raise :class:`Refused`, with ``what`` is the matter, unless all of these routes may be read; hidden ones are
        not named."""
        hidden = routes - self.readable
        if hidden and hidden <= self.left_out:
            raise Refused(
                503,
                f"it is about {', '.join(sorted(hidden))} too, and the configuration is wrong there: `redrive doctor`"
                " says where",
            )
        if hidden:
            raise Refused(403, what)

    def may_remove(self, owner: str) -> bool:
        """Whether this person may remove what ``owner`` left on the page for all."""
        return self.is_them(owner) or self.app_state.access.administers(self.person)

    def is_them(self, name: str) -> bool:
        """Whether this person goes by ``name``."""
        return name.strip().lower() == self.person.name.strip().lower()

    def resolve(self, connection: Connection, chosen: Filter, *, up_to: int = (1 << 63) - 1) -> Filter:
        """As :func:`redrive_ui.resolved_filters.resolve`, for this person at this moment."""
        return resolved_filters.resolve(connection, chosen, self.readable, self.redactor, self.now, up_to=up_to)

    def require_readable(self, route: str) -> None:
        """Raise :class:`Refused` unless ``route`` is there and may be read; which of both is not told."""
        if route in self.left_out:
            raise Refused(503, f"the configuration of route {route!r} is wrong; `redrive doctor {route}` says where")
        if route not in self.readable:
            raise Refused(404, f"there is no route {route!r}, or you may not see it")

    def render(self, template: str, **context: Any) -> Response:
        """The template as a page."""
        return self.app_state.templates.render(template, self, **context)

    def read(self) -> AbstractContextManager[Connection]:
        """A snapshot of the ledger."""
        return self.ledger.read()

    def redactor(self, route: str) -> Redactor:
        """What masks the route's texts, also of one that is no longer configured."""
        return redaction.redactor_of(route, self.settings.routes)

    def mask(self, route: str, text: str) -> str:
        """``text`` as people of the page may see it; what is about no route, or all of them, as what is left of one
        that was removed."""
        return self.redactor(route)(text)

    def opening(self, route: str, text: str) -> str:
        """The beginning of ``text``, of which :data:`message_queries.READ` characters at most were read, as people may
        see it."""
        return self.redactor(route).beginning(text, message_queries.SHOWN)

    @property
    def root(self) -> str:
        """The path below which the application is mounted."""
        return str(self.request.scope.get("root_path", ""))


async def person_of(request: Request) -> Person:
    """Who asks; raises :class:`~redrive_ui.identity.NotLoggedIn`. Everything that is served depends on it."""
    found: Person = await request.app.state.redrive.access.person(request)
    return found


def request_context(request: Request, person: Annotated[Person, Depends(person_of)]) -> RequestContext:
    """What answers this request; raises what is wrong with configuration or ledger."""
    app_state: AppState = request.app.state.redrive
    settings = app_state.load()
    ledger = app_state.ledger(settings)
    schema.check(ledger)
    with ledger.read() as connection:
        known = {*settings.routes, *settings.broken, *route_queries.routes(connection)}
    readable = app_state.access.readable(person, known)
    return RequestContext(
        app_state,
        request,
        person,
        settings,
        ledger,
        readable - settings.broken.keys(),
        app_state.clock(),
        frozenset(known),
        readable & settings.broken.keys(),
    )


class Configuration:
    """The configuration file, parsed again only when it has changed."""

    def __init__(self) -> None:
        self._seen: tuple[object, ...] = ()
        self._settings: Settings | None = None

    def load(self) -> Settings:
        path = configuration.config_path()
        try:
            stat = path.stat()
            stamp: tuple[object, ...] = (path, stat.st_mtime_ns, stat.st_size)
        except OSError:
            stamp = ()
        if self._settings is None or not stamp or stamp != self._seen:
            self._settings, self._seen = configuration.load(), stamp
        return self._settings
