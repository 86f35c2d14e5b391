"""What somebody looks for: the words and filters of the box in the corner, and what they count out."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from redrive.classification.causes import Cause
from redrive.ledger.dialects import Dialect
from redrive.lifecycle import FINISHED, State
from redrive.settings import Settings
from redrive_ui.filters import BadFilter, check_times, instant, query_of, since_of, storable, whole_number
from redrive_ui.rows import routes_in

#: What can be written before a colon in the box.
NAMES = ("route", "state", "cause", "queue", "group", "key", "header", "text")
STATES = {
    **{state.value: (state.value,) for state in State},
    "finished": tuple(state.value for state in State if state in FINISHED),
    "unfinished": tuple(state.value for state in State if state not in FINISHED),
}
_TOKEN = re.compile(r'([^\s":]{1,100}):"([^"]*)"|"([^"]*)"|(\S+)')


@dataclass(frozen=True, slots=True)
class Search:
    """What somebody looks for; every field narrows."""

    word: str = ""  # ids, keys, parts of texts
    route: str = ""
    state: str = ""
    cause: str = ""
    queue: str = ""
    group: str = ""
    key: str = ""  # how a business key begins
    header: str = ""  # name=value, or a part of a value
    text: str = ""  # in what went wrong
    field: str = ""  # selector=beginning
    past: str = ""
    zone: str = ""
    since: str = ""
    until: str = ""

    @classmethod
    def read(cls, given: Mapping[str, str], declared: Mapping[str, str]) -> "Search":
        """What an address says; in the box ``name:value`` is a filter, also by the name of a field that is ``declared``
        (name: selector)."""
        values = {one.name: storable(one.name, given.get(one.name, "")).strip() for one in fields(cls)}
        rest = []
        for token in _TOKEN.finditer(values["word"]):
            name, quoted, phrase, plain = token.groups()
            if plain is not None:
                name, _, quoted = plain.partition(":")
            name = (name or "").lower()
            if quoted and name in NAMES:
                values[name] = quoted
            elif quoted and name in declared:
                values["field"] = f"{declared[name]}={quoted}"
            else:
                rest.append(phrase if phrase is not None else token[0])
        found = cls(**{**values, "word": " ".join(rest)})
        found._check()
        return found

    def _check(self) -> None:
        if self.state and self.state not in STATES:
            raise BadFilter(f"state: one of {', '.join(STATES)}")
        if self.cause and self.cause not in set(Cause):
            raise BadFilter("cause: not one of the eighteen")
        if self.group:
            whole_number("group", self.group)
        check_times(self.past, self.since, self.until, self.zone)

    @property
    def seeks(self) -> bool:
        """Whether anything has to be found, and not only counted out."""
        return bool(self.word or self.key or self.header or self.text or self.field)

    @property
    def narrows(self) -> bool:
        """Whether anything is asked at all."""
        return any(getattr(self, one.name) for one in fields(self) if one.name != "zone")

    def query(self, **changes: Any) -> str:
        """This search as a query string, with these fields changed."""
        return query_of(self, changes)

    def where(
        self,
        readable: Collection[str],
        now: datetime,
        dialect: Dialect,
        table: str = "messages",
        *,
        looked_up: bool = False,
    ) -> tuple[str, dict[str, Any]]:
        """A condition over ``messages`` of what is counted out, and its parameters; not what finds them: a route may
        have millions. ``looked_up``: their ids are known."""
        routes = [one for one in readable if self.route in ("", one)]
        where, values = routes_in(routes, dialect.off_index(f"{table}.route"))
        parts = [where]
        if self.state:
            state = dialect.in_row(f"{table}.state") if looked_up else f"{table}.state"
            parts.append(f"{state} in ({', '.join(repr(one) for one in STATES[self.state])})")
        for name, column in (("cause", "cause"), ("queue", "source")):
            if value := getattr(self, name):
                parts.append(f"{table}.{column} = :{name}")
                values[name] = value
        if self.group:
            parts.append(f"{table}.group_id = :group_id")
            values["group_id"] = int(self.group)
        when = f"coalesce({table}.first_enqueued_at, {table}.dead_lettered_at, {table}.changed_at)"
        if since := since_of(self.past, now, self.zone) if self.past else instant("since", self.since):
            parts.append(f"{when} >= :since_at")
            values["since_at"] = since
        if not self.past and (until := instant("until", self.until)):
            parts.append(f"{when} < :until_at")
            values["until_at"] = until
        return " and ".join(parts), values


def declared_fields(settings: Settings, readable: Collection[str]) -> dict[str, str]:
    """The fields by which messages are found on these routes: selector by the name that people write."""
    found: dict[str, str] = {}
    for route in sorted(set(settings.routes) & set(readable)):
        for selector in settings.routes[route].search:
            name = selector.name or (str(selector.path[-1]) if selector.path else "key")
            short = name.lower()
            if short in NAMES or found.get(short, str(selector)) != str(selector):
                short = str(selector).lower().replace("body:$.", "").replace("attribute:", "header.")
            found[short] = str(selector)
    return found
