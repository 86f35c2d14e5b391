"""Saved filters: what one asks, and for whom it is.

A filter tells what was looked for, and where: one that names a route or a queue is for those who may read that, and one
that names none for who saved it, and for those who may read every route.
"""

from typing import NamedTuple
from urllib.parse import parse_qs

from redrive_ui import filters, search_request, search_suggestions
from redrive_ui.filters import BadFilter, Filter
from redrive_ui.request_context import RequestContext
from redrive_ui.rows import Row
from redrive_ui.search_request import Search

PAGES = ("messages", "find")


class Asked(NamedTuple):
    """What a filter asks."""

    query: str = ""  # as the page itself writes it
    routes: frozenset[str] = frozenset()  # that it names
    queue: str = ""


class Reader:
    """Reads filters for one person."""

    def __init__(self, ctx: RequestContext) -> None:
        self._ctx = ctx
        self._declared = search_request.declared_fields(ctx.settings, ctx.readable)
        self._queues = frozenset(search_suggestions.source_queues(ctx.settings, ctx.readable))

    def read(self, page: str, query: str) -> Asked:
        """What ``query`` asks on one of :data:`PAGES`; raises :class:`~redrive_ui.filters.BadFilter`."""
        given = parse_qs(query)
        words = {name: values[-1] for name, values in given.items()}
        if page == "messages":
            chosen = Filter.read({**words, "ids": given.get("ids", []), "failures": given.get("failures", [])})
            named = {chosen.route, *(filters.failure_of(one)[0] for one in chosen.failures)}
            return Asked(chosen.query(), frozenset(named - {""}), chosen.queue)
        sought = Search.read(words, self._declared)
        return Asked(sought.query(), frozenset({sought.route} - {""}), sought.queue)

    def may_read(self, asked: Asked) -> bool:
        """Whether this person may read each route that is named, and a route of the queue."""
        ctx = self._ctx
        return asked.routes <= ctx.readable and (not asked.queue or asked.queue in self._queues or ctx.reads_all)

    def shown(self, saved: list[Row]) -> list[Row]:
        """Those of the saved filters that are for this person, each with whether they may remove it."""
        ctx = self._ctx
        return [{**one, "may_remove": ctx.may_remove(one["saved_by"])} for one in saved if self._is_for(one)]

    def _is_for(self, one: Row) -> bool:
        try:
            asked = self.read(one["page"], one["query"])
        except BadFilter:  # what it asks is not known any more
            asked = Asked()
        named = asked.routes or asked.queue
        mine = one["saved_by"].strip().lower() == self._ctx.person.name.strip().lower()
        return self.may_read(asked) and (bool(named) or self._ctx.reads_all or mine)
