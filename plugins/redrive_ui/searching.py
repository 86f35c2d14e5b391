"""One search: what the box in the corner finds, in every state, and what nobody may find out by it.

Ids, the beginning of a business key and of a field that the route declares (``search``) are found by an index, at any
age. Parts of words are looked for in the newest messages alone, and the page says how far back that was. Whatever is
masked for people is not found either: what the database offers is looked at as it would be shown.
"""

import difflib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive.classification.causes import Cause
from redrive.ledger.dialects import Dialect, dialect_of
from redrive.lifecycle import FINISHED, State
from redrive.message import index_key
from redrive.redaction import Redactor
from redrive.settings import Settings
from redrive_ui import message_queries, recent
from redrive_ui.filters import (
    BadFilter,
    Filter,
    check_times,
    escaped,
    instant,
    query_of,
    since_of,
    storable,
    whole_number,
)
from redrive_ui.rows import PAGE, Row, routes_in, rows_of

#: So many of the newest messages are looked at for what no index knows.
LOOK = 100_000
#: And so many of the newest questions to people, whose texts are long.
LOOK_TEXTS = 20_000
#: So many rows of an index are looked at.
LOOK_INDEX = 5_000
#: So many rows that the database offers are looked at as people would see them.
LOOK_MASKED = 2_000

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
        self, readable: Collection[str], now: datetime, dialect: Dialect, table: str = "messages"
    ) -> tuple[str, dict[str, Any]]:
        """A condition over ``messages`` of what is counted out, and its parameters; not what finds them: a route may
        have millions."""
        routes = [one for one in readable if self.route in ("", one)]
        where, values = routes_in(routes, dialect.off_index(f"{table}.route"))
        parts = [where]
        if self.state:
            parts.append(f"{table}.state in ({', '.join(repr(one) for one in STATES[self.state])})")
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


class Found(NamedTuple):
    """What a search found."""

    rows: list[Row]  # newest first, each with ``found_by``
    more: bool  # whether there are more than are shown
    told: list[str]  # how far was looked, a sentence each
    following: int | None  # the message from which to look on, where no word is looked for


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


def search(
    connection: Connection,
    asked: Search,
    readable: Collection[str],
    redactor: Callable[[str], Redactor],
    now: datetime,
    *,
    after: int | None = None,
) -> Found:
    """What ``asked`` finds on the routes that may be read: messages in every state, newest first."""
    if not asked.seeks:
        return _newest(connection, asked, readable, now, after)
    looking = _SearchRun(connection, asked, readable, redactor, now)
    for found_by, ids in looking.ways():
        for one in ids:
            looking.found.setdefault(one, found_by)
        if len(looking.found) > PAGE:
            break
    # What is meant exactly comes before what only begins so.
    ids = sorted(looking.found, key=lambda one: (looking.found[one] not in ("id", "key"), -one))[: PAGE + 1]
    rows = sorted(_rows(connection, ids, readable), key=lambda row: ids.index(row["message_id"]))
    for row in rows:
        row["found_by"] = looking.found[row["message_id"]]
    return Found(rows[:PAGE], len(rows) > PAGE, looking.told, None)


class _SearchRun:
    """One search under way: what it has found so far, by which way, and what it has to say about how far it looked."""

    def __init__(
        self,
        connection: Connection,
        asked: Search,
        readable: Collection[str],
        redactor: Callable[[str], Redactor],
        now: datetime,
    ) -> None:
        self.found: dict[int, str] = {}
        self.told: list[str] = []
        self._connection, self._asked, self._readable, self._redactor = connection, asked, readable, redactor
        self._dialect = dialect_of(connection)
        self._where, self._values = asked.where(readable, now, self._dialect)
        self._here, _ = routes_in([one for one in readable if asked.route in ("", one)])

    def ways(self) -> Iterator[tuple[str, Iterable[int]]]:
        """How it was found, and the messages, way by way; what an index knows comes first."""
        asked = self._asked
        if asked.key:
            yield "key", self._keys(asked.key)
            yield "beginning of the key", self._keys_that_begin(asked.key)
        elif asked.field:
            selector, _, value = asked.field.rpartition("=")
            yield _said(selector), self._fields_that_begin(value, selector)
        elif asked.word:
            yield "id", self._ids(asked.word)
            yield "key", self._keys(asked.word)
            yield "beginning of the key", self._keys_that_begin(asked.word)
            yield "field", self._fields_that_begin(asked.word)
        if asked.header:
            yield "header", self._in_texts(header=asked.header)
        if asked.text:
            yield "what went wrong", self._in_texts(text=asked.text)
        if asked.word:
            yield "part of the key", self._parts(asked.word)
            yield "text", self._in_texts(text=asked.word, any_header=asked.word)

    def _of(self, inner: str, **values: Any) -> list[int]:
        """Of the messages of ``inner`` the newest that are asked for."""
        rows = rows_of(
            self._connection,
            f"select messages.message_id from ({inner}) as looked inner join messages on messages.message_id ="
            f" looked.message_id where {self._where} order by messages.message_id desc limit {PAGE + 1}",
            **values,
            **self._values,
        )
        return [row["message_id"] for row in rows]

    def _ids(self, word: str) -> list[int]:
        number = int(word) if word.isascii() and word.isdigit() and len(word) < 19 else -1
        return self._of(
            "select message_id from messages where redrive_id = :word or broker_message_id in (:word, :id_key)"
            f" or message_id = :number union select message_id from repeat_copies where {self._here} and"
            " broker_message_id in (:word, :id_key) union select message_id from redelivery_attempts where"
            f" slice_id >= :first_slice and {self._here} and broker_message_id in (:word, :id_key)",
            word=word,
            id_key=index_key(word),
            number=number,
            first_slice=recent.first_recent_slice(self._connection, self._readable),
        )

    def _keys(self, word: str) -> list[int]:
        return self._of(f"select message_id from messages where message_key = :word limit {LOOK_INDEX}", word=word)

    def _keys_that_begin(self, word: str) -> list[int]:
        return self._by_index(
            "messages", self._dialect.begins("message_key", ":low", ":high"), f"key begins with {word}", word
        )

    def _fields_that_begin(self, word: str, selector: str = "") -> list[int]:
        condition = self._dialect.begins("value", ":low", ":high") + (" and field = :field" if selector else "")
        found = self._by_index("message_fields", condition, f"field begins with {word}", word.lower(), selector)
        return self._that_may_be_seen(found, word.lower())

    def _by_index(self, table: str, condition: str, what: str, word: str, selector: str = "") -> list[int]:
        values = {"low": word, "high": f"{word}\U0010ffff"} | ({"field": selector} if selector else {})
        inner = f"select message_id from {table} where {condition} limit {LOOK_INDEX}"
        found = self._of(f"select message_id from ({inner}) as inside", **values)
        if len(found) <= PAGE:
            (row,) = rows_of(self._connection, f"select count(*) as n from ({inner}) as inside", **values)
            if row["n"] == LOOK_INDEX:
                self.told.append(f"Of the messages whose {what[:80]} {LOOK_INDEX:,} were looked at: write more of it.")
        return found

    def _that_may_be_seen(self, ids: list[int], word: str) -> list[int]:
        """Those of ``ids`` whose field may still be seen: what a route masks may have been kept before it did."""
        if not ids:
            return []
        rows = rows_of(
            self._connection,
            "select message_fields.message_id, route, field, value from message_fields inner join messages on"
            " messages.message_id = message_fields.message_id where message_fields.message_id in"
            f" ({', '.join(map(str, ids))})",
        )
        return sorted(
            {
                row["message_id"]
                for row in rows
                if word in row["value"] and self._redactor(row["route"]).shows(row["field"], row["value"])
            },
            reverse=True,
        )

    def _parts(self, word: str) -> list[int]:
        """Of the newest messages those with ``word`` anywhere in their key or fields."""
        floor, since = message_queries.floor_of(self._connection, self._readable, LOOK)
        like = "%" + escaped(word) + "%"
        by_key = self._of(
            "select message_id from messages where message_id >= :floor and message_key is not null and"
            f" {self._dialect.contains('message_key', ':part')}",
            floor=floor,
            part=like,
        )
        by_field = self._of(
            "select distinct message_id from message_fields where message_id >= :floor and"
            f" {self._dialect.contains('value', ':part')}",
            floor=floor,
            part=like,
        )
        if since:
            self.told.append(
                f"Parts of keys and fields were looked for in the newest {LOOK:,} messages, staged since"
                f" {since:%Y-%m-%d %H:%M} UTC. How a key or a field begins is found at any age."
            )
        return [*by_key, *self._that_may_be_seen(by_field, word.lower())]

    def _in_texts(self, *, text: str = "", header: str = "", any_header: str = "") -> list[int]:
        """Of the newest questions to people those that show it in what went wrong, or in a header."""
        newest = message_queries.newest_question(self._connection)
        name, _, named = header.rpartition("=")
        likes, values = [], dict[str, Any]()
        if text:
            likes.append(self._dialect.contains("coalesce(error_text, asked.reason)", ":in_text"))
            values["in_text"] = "%" + escaped(text) + "%"
        for word in (named, any_header):
            if word:  # as JSON has it
                likes.append(self._dialect.contains("headers", ":in_headers"))
                values["in_headers"] = "%" + escaped(json.dumps(word)[1:-1]) + "%"
        rows = rows_of(
            self._connection,
            "select asked.message_id, asked.route, substr(coalesce(asked.error_text, asked.reason), 1, 20000) as said,"
            f" {'headers' if header or any_header else 'null as headers'} from escalated_messages asked inner join"
            " messages on messages.message_id = asked.message_id where asked.escalation_id > :floor and"
            f" ({' or '.join(likes)}) and {self._where} order by asked.escalation_id desc limit {LOOK_MASKED}",
            floor=newest - LOOK_TEXTS,
            **values,
            **self._values,
        )
        if newest > LOOK_TEXTS:
            self.told.append(
                f"Texts and headers were looked for in the newest {LOOK_TEXTS:,} messages that people were asked about."
            )
        found: dict[int, None] = {}
        for row in rows:
            mask = self._redactor(row["route"])
            if (text and text.lower() in mask(row["said"] or "").lower()) or _in_headers(
                mask, row["headers"], name, named or any_header
            ):
                found.setdefault(row["message_id"])
            if len(found) > PAGE:
                break
        return list(found)


def _in_headers(mask: Redactor, stored: str | None, name: str, word: str) -> bool:
    """Whether a header, of that ``name`` if it is given, shows ``word``."""
    if not stored or not word:
        return False
    try:
        headers = json.loads(stored)
    except ValueError:
        return False
    return any(
        (not name or str(one[0]).lower() == name.lower())
        and word.lower() in mask.header(str(one[0]), str(one[2])).lower()
        for one in headers
        if isinstance(one, list) and len(one) == 3
    )


def _said(selector: str) -> str:
    return selector.replace("body:$.", "").replace("attribute:", "")


def _newest(
    connection: Connection, asked: Search, readable: Collection[str], now: datetime, after: int | None
) -> Found:
    """The newest messages that are not counted out, a page of them, of a bounded number that is looked at."""
    where, values = asked.where(readable, now, dialect_of(connection))
    told: list[str] = []
    routes = [one for one in sorted(readable) if asked.route in ("", one)]
    before = " and message_id < :after" if after is not None else ""
    if after is not None:
        values["after"] = after
    states = STATES.get(asked.state, ())
    following = None
    if len(states) == 1 and routes:
        (state,) = states
        most = max(1_000, LOOK // len(routes))
        named = {f"one_{number}": route for number, route in enumerate(routes)}
        each = " union all ".join(
            f"select * from (select message_id from messages where route = :{name} and state = '{state}'{before}"
            f" order by message_id desc limit {most}) as of_{name}"
            for name in sorted(named)
        )
        inner, values = f"({each}) as looked", {**values, **named}
    else:
        floor, since = message_queries.floor_of(connection, readable, LOOK, before=after)
        inner = f"(select message_id from messages where message_id >= :floor{before}) as looked"
        values["floor"] = floor
        following = floor if since else None
        if since:
            told.append(f"Looked at the {LOOK:,} messages that were staged since {since:%Y-%m-%d %H:%M} UTC.")
    rows = rows_of(
        connection,
        f"select messages.message_id from {inner} inner join messages on messages.message_id = looked.message_id"
        f" where {where} order by messages.message_id desc limit {PAGE + 1}",
        **values,
    )
    ids = [row["message_id"] for row in rows]
    shown = _rows(connection, ids[:PAGE], readable)
    if len(ids) > PAGE:
        following, told = ids[PAGE - 1], []
    for row in shown:
        row["found_by"] = ""
    return Found(shown, len(ids) > PAGE, told, following)


def _rows(connection: Connection, ids: Sequence[int], readable: Collection[str]) -> list[Row]:
    """These messages, newest first, each with the beginning of what went wrong where people were asked about it."""
    if not ids:
        return []
    where, values = routes_in(readable, dialect_of(connection).off_index("route"))
    wanted = ", ".join(map(str, ids))
    rows = rows_of(
        connection,
        "select message_id, redrive_id, route, source, state, cause, group_id, attempts, first_enqueued_at,"
        f" dead_lettered_at, message_key, reason from messages where message_id in ({wanted}) and {where}"
        " order by message_id desc",
        **values,
    )
    said = {
        row["message_id"]: row
        for row in rows_of(
            connection,
            "select message_id, escalation_id, status, substr(coalesce(error_text, reason), 1, 2000) as error_text from"
            f" escalated_messages where message_id in ({wanted}) order by escalation_id",
        )
    }
    return [{**row, "asked": said.get(row["message_id"])} for row in rows]


# --- suggestions -------------------------------------------------------------------------------------------------


def suggestions(
    asked: Search, settings: Settings, readable: Collection[str], declared: Mapping[str, str]
) -> list[tuple[str, str]]:
    """What the words may have meant: what is said to people, and the query of the search that it would be."""
    found: list[tuple[str, str]] = []

    def suggest(name: str, value: str, without: str) -> None:
        rest = " ".join(word for word in asked.word.split() if word != without)
        changes = {"field": f"{declared[name]}={value}"} if name in declared else {name: value}
        one = (f"{name}:{value}", asked.query(word=rest, **changes))
        if one not in found:
            found.append(one)

    values = {
        "route": sorted(readable),
        "state": list(STATES),
        "cause": [cause.value for cause in Cause],
        "queue": sorted(
            {source.queue for name in set(settings.routes) & set(readable) for source in settings.routes[name].sources}
        ),
    }
    for word in asked.word.split()[:20]:
        name, colon, value = word.partition(":")
        if colon and value:
            near = difflib.get_close_matches(name.lower(), [*NAMES, *declared], n=2, cutoff=0.5)
            for one in near:
                if one not in values or value in values[one]:
                    suggest(one, value, word)
            for one, known in values.items():
                if value in known:
                    suggest(one, value, word)
            suggest("header", f"{name}={value}", word)
            suggest("text", value, word)
            continue
        plain = word.lower().replace(" ", "_").replace("-", "_")
        for one, known in values.items():
            for value in known:
                same = value.lower().replace("-", "_")
                if plain == same or (len(plain) > 3 and plain in same.split("_")) or (len(plain) > 4 and plain in same):
                    suggest(one, value, word)
        if "=" in word:
            suggest("header", word, word)
    return found[:6]


# --- the filter of what people are asked -------------------------------------------------------------------------


def resolve(
    connection: Connection,
    chosen: Filter,
    readable: Collection[str],
    redactor: Callable[[str], Redactor],
    now: datetime,
    *,
    up_to: int = (1 << 63) - 1,
) -> Filter:
    """``chosen`` as it is carried out: relative times made absolute, a search for texts bounded to the newest rows, and
    nothing found by what its routes mask."""
    chosen = replace(chosen.resolved(now), unmasked=None)
    if not (chosen.text or chosen.header):
        return chosen
    if not (chosen.above or chosen.ids or chosen.failures or chosen.group):
        newest = message_queries.newest_question(connection)
        if newest > LOOK:
            chosen = replace(chosen, above=str(newest - LOOK))
    name, _, value = chosen.header.partition("=")
    masking = frozenset(
        route
        for route in readable
        if chosen.route in ("", route)
        and (mask := redactor(route))
        and (chosen.text or mask.header(name, value) != value)
    )
    if not masking:
        return chosen
    where, values = chosen.where(masking, dialect_of(connection))
    rows = rows_of(
        connection,
        "select escalation_id, route, coalesce(error_text, reason) as said from escalated_messages"
        f" where {where} and escalation_id <= :up_to order by escalation_id desc limit {LOOK_MASKED}",
        up_to=up_to,
        **values,
    )
    seen: dict[tuple[str, str], bool] = {}
    found = []
    for row in rows:
        mask = redactor(row["route"])
        if chosen.header and mask.header(name, value) != value:
            continue
        one = (row["route"], row["said"] or "")
        if one not in seen:
            seen[one] = chosen.text.lower() in mask(one[1]).lower()
        if seen[one]:
            found.append(row["escalation_id"])
    return replace(chosen, unmasked=(masking, tuple(found)))
