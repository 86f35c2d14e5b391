"""Saved filters: what one asks, and for whom it is.

A filter tells what was looked for, and where: one that names a route or a queue is for those who may read that, and one
that names none for those who may read every route. Who saved one has it as long as they may read each route that it
names, whatever its queue is called now.
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
        # A route whose section is wrong is not shown, but hidden from nobody either.
        self._reads_all = ctx.known <= ctx.readable | ctx.left_out

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

    def _is_of_their_routes(self, asked: Asked) -> bool:
        """Whether it names a route or a queue, of which this person may read each."""
        return bool(asked.routes or asked.queue) and (not asked.queue or asked.queue in self._queues)

    def shown(self, saved: list[Row]) -> list[Row]:
        """Those of the saved filters that are for this person, each with whether they may remove it."""
        ctx = self._ctx
        return [{**one, "may_remove": ctx.may_remove(one["saved_by"])} for one in saved if self._is_for(one)]

    def _is_for(self, one: Row) -> bool:
        try:
            asked = self.read(one["page"], one["query"])
        except BadFilter:  # what it asks is not known any more
            asked = Asked()
        mine = self._ctx.is_them(one["saved_by"])
        return asked.routes <= self._ctx.readable and (mine or self._reads_all or self._is_of_their_routes(asked))
