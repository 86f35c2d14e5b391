"""One search: what the box in the corner finds, in every state, and what nobody may find out by it.

Ids, the beginning of a business key and of a field that the route declares (``search``) are found by an index, at any
age. Parts of words are looked for in the newest messages alone, and the page says how far back that was. Whatever is
masked for people is not found either: what the database offers is looked at as it would be shown.

Of several terms the first of :data:`_TERMS` finds messages, in one way or another, and each other one is a condition.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive.ledger.dialects import Dialect, dialect_of
from redrive.message import index_key
from redrive.redaction import MARGIN, Redactor
from redrive_ui import message_queries, recent
from redrive_ui.filters import escaped
from redrive_ui.recent import LOOK, LOOK_MASKED
from redrive_ui.rows import PAGE, Row, routes_in, rows_of
from redrive_ui.search_request import STATES, Search

#: So many of the newest questions to people, whose texts are long, are looked at for what no index knows.
LOOK_TEXTS = 20_000
#: So much of a text is looked at, and so much is read for that.
LONGEST = 20_000
_READ = LONGEST + MARGIN
#: So many rows of an index are looked at.
LOOK_INDEX = 5_000
#: So many messages of each route at least are looked at where those in one state are asked for.
LOOK_ROUTE = 1_000
#: The fields of a :class:`Search` that find messages.
_TERMS = ("word", "key", "field", "header", "text")


class Found(NamedTuple):
    """What a search found."""

    rows: list[Row]  # newest first, each with ``found_by``
    more: bool  # whether there are more than are shown
    told: list[str]  # how far was looked, a sentence each
    following: int | None  # the message from which to look on, where no word is looked for


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
        for one in looking.narrowed(ids):
            looking.found.setdefault(one, found_by)
        if len(looking.found) > PAGE:
            break
    # What is meant exactly comes before what only begins so.
    ids = sorted(looking.found, key=lambda one: (looking.found[one] not in ("id", "key"), -one))[: PAGE + 1]
    rows = sorted(_rows(connection, ids, readable), key=lambda row: ids.index(row["message_id"]))
    for row in rows:
        row["found_by"] = looking.found[row["message_id"]]
    return Found(rows[:PAGE], len(rows) > PAGE, looking.told, None)


class _Texts(NamedTuple):
    """What a question to people shows: in what went wrong, or in a header."""

    text: str = ""
    header: str = ""  # a part of its value
    header_name: str = ""  # of any name, where there is none

    @classmethod
    def of_header(cls, header: str) -> "_Texts":
        name, _, value = header.rpartition("=")
        return cls(header=value, header_name=name)

    def condition(self, dialect: Dialect, table: str) -> tuple[str, dict[str, str]]:
        """SQL that is true of each row of ``table`` that shows it, and of others; and its parameters."""
        likes, values = [], dict[str, str]()
        if self.text:
            likes.append(dialect.contains(f"coalesce({table}.error_text, {table}.reason)", f":{table}_text"))
            values[f"{table}_text"] = "%" + escaped(self.text) + "%"
        if self.header:  # as JSON has it
            likes.append(dialect.contains(f"{table}.headers", f":{table}_headers"))
            values[f"{table}_headers"] = "%" + escaped(json.dumps(self.header)[1:-1]) + "%"
        return f"({' or '.join(likes) or '1 = 0'})", values

    def columns(self, table: str) -> str:
        """The columns of a row for :meth:`shown`."""
        headers = f"{table}.headers" if self.header else "null as headers"
        said = f"substr(coalesce({table}.error_text, {table}.reason), 1, {_READ}) as said"
        return f"{table}.message_id, {table}.route, {said}, {headers}"

    def shown(self, row: Row, mask: Redactor) -> bool:
        """Whether it is in a row as people see it."""
        if self.text and self.text.lower() in mask.beginning(row["said"] or "", LONGEST).lower():
            return True
        return _in_headers(mask, row["headers"], self.header_name, self.header)


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
        self._where, self._values = asked.where(readable, now, self._dialect, looked_up=True)
        routes = [one for one in readable if asked.route in ("", one)]
        self._here, _ = routes_in(routes)
        # Of what an index knows: what others have there is neither counted nor in the way.
        self._of_routes, self._names = routes_in(routes, self._dialect.off_index("messages.route"))
        self._leading, *others = (one for one in _TERMS if getattr(asked, one))
        #: Each takes messages that may match one of the others, and gives those that do, as people see them.
        self._shown: list[Callable[[list[int]], list[int]]] = []
        for one in others:
            self._narrow(one)
        self._most = LOOK_MASKED if self._shown else PAGE

    def ways(self) -> Iterator[tuple[str, Iterable[int]]]:
        """How it was found, and the messages that may match, way by way; what an index knows comes first."""
        asked = self._asked
        match self._leading:
            case "word":
                yield "id", self._ids(asked.word)
                yield "key", self._keys(asked.word)
                yield "beginning of the key", self._keys_that_begin(asked.word)
                yield "field", self._fields_that_begin(asked.word)
                yield "part of the key", self._parts(asked.word)
                yield "text", self._in_texts(_Texts(text=asked.word, header=asked.word))
            case "key":
                yield "key", self._keys(asked.key)
                yield "beginning of the key", self._keys_that_begin(asked.key)
            case "field":
                selector, _, value = asked.field.rpartition("=")
                yield _said(selector), self._fields_that_begin(value, selector)
            case "header":
                yield "header", self._in_texts(_Texts.of_header(asked.header))
            case "text":
                yield "what went wrong", self._in_texts(_Texts(text=asked.text))

    def narrowed(self, ids: Iterable[int]) -> list[int]:
        """Those of what :meth:`ways` tells that match the other terms too, as people see them."""
        found = list(ids)
        for shown in self._shown:
            found = shown(found)
        return found

    def _narrow(self, name: str) -> None:
        """Let this term be a condition. It is asked of each message that another one finds: joined with it, PostgreSQL
        may read all there are."""
        asked, dialect = self._asked, self._dialect
        match name:
            case "key":
                condition = dialect.begins(dialect.in_row("messages.message_key"), ":key_low", ":key_high")
                values = {"key_low": asked.key, "key_high": f"{asked.key}{_LAST}"}
            case "field":
                selector, _, value = asked.field.rpartition("=")
                word = value.lower()
                begins = dialect.begins(dialect.in_row("named.value"), ":named_low", ":named_high")
                condition = (
                    "(select count(*) from message_fields named where named.message_id = messages.message_id"
                    f" and {begins}{' and named.field = :named_field' if selector else ''}) > 0"
                )
                values = {"named_low": word, "named_high": f"{word}{_LAST}"}
                values |= {"named_field": selector} if selector else {}
                self._shown.append(lambda ids: self._that_may_be_seen(ids, word, selector))
            case _:
                texts = _Texts.of_header(asked.header) if name == "header" else _Texts(text=asked.text)
                table = f"with_{name}"
                inside, values = texts.condition(dialect, table)
                condition = (
                    f"(select count(*) from escalated_messages {table} where {table}.message_id = messages.message_id"
                    f" and {inside}) > 0"
                )
                self._shown.append(lambda ids: self._that_show(ids, texts))
        self._where += f" and {condition}"
        self._values |= values

    def _of(self, inner: str, **values: Any) -> list[int]:
        """Of the messages of ``inner`` the newest that may match."""
        rows = rows_of(
            self._connection,
            f"select messages.message_id from messages where {self._dialect.few('messages.message_id', inner)}"
            f" and {self._where} order by messages.message_id desc limit {self._most + 1}",
            **values,
            **self._values,
        )
        return [row["message_id"] for row in rows]

    def _ids(self, word: str) -> list[int]:
        number = int(word) if word.isascii() and word.isdigit() and len(word) < 19 else -1
        return self._of(
            "select message_id from messages where redrive_id = :word"
            " or (broker_message_id in (:word, :id_key) and broker_message_id <> '')"
            f" or message_id = :number union select message_id from repeat_copies where {self._here} and"
            " broker_message_id in (:word, :id_key) union select message_id from redelivery_attempts where"
            f" slice_id >= :first_slice and {self._here} and broker_message_id in (:word, :id_key)",
            word=word,
            id_key=index_key(word),
            number=number,
            first_slice=recent.first_recent_slice(self._connection, self._readable),
        )

    def _keys(self, word: str) -> list[int]:
        inner = (
            "select message_id from messages where message_key in (:word, :key)"
            f" and {self._of_routes} limit {LOOK_INDEX}"
        )
        return self._of(inner, word=word, key=index_key(word))

    def _keys_that_begin(self, word: str) -> list[int]:
        return self._by_index("messages", "message_key", f"key begins with {word}", word)

    def _fields_that_begin(self, word: str, selector: str = "") -> list[int]:
        of_routes = "message_fields inner join messages on messages.message_id = message_fields.message_id"
        told = len(self.told)
        found = self._by_index(of_routes, "message_fields.value", f"field begins with {word}", word.lower(), selector)
        seen = self._that_may_be_seen(found, word.lower(), selector)
        if not seen:  # nor is it told how many there are of what is masked
            del self.told[told:]
        return seen

    def _by_index(self, table: str, column: str, what: str, word: str, selector: str = "") -> list[int]:
        values = {"low": word, "high": f"{word}{_LAST}"} | ({"field": selector} if selector else {})
        condition = self._dialect.begins(column, ":low", ":high") + (" and field = :field" if selector else "")
        # In the order of the index: where many begin so, PostgreSQL would read rows as they lie until it has enough.
        inner = (
            f"select messages.message_id from {table} where {condition} and {self._of_routes}"
            f" order by {self._dialect.by_beginning(column)} limit {LOOK_INDEX}"
        )
        found = self._of(inner, **values)
        if self._shown or len(found) <= PAGE:
            counted = f"select count(*) as n from ({inner}) as inside"
            (row,) = rows_of(self._connection, counted, **values, **self._names)
            if row["n"] == LOOK_INDEX:
                self.told.append(f"Of the messages whose {what[:80]} {LOOK_INDEX:,} were looked at: write more of it.")
        return found

    def _that_may_be_seen(self, ids: list[int], word: str, selector: str = "") -> list[int]:
        """Those of ``ids`` whose field (any, or that of ``selector``) may still be seen: what a route masks may have
        been kept before it did."""
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
                if word in row["value"]
                and selector in ("", row["field"])
                and self._redactor(row["route"]).shows(row["field"], row["value"])
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

    def _in_texts(self, texts: _Texts) -> list[int]:
        """Of the newest questions to people those that show it."""
        newest = message_queries.newest_question(self._connection)
        condition, values = texts.condition(self._dialect, "asked")
        rows = rows_of(
            self._connection,
            f"select {texts.columns('asked')} from escalated_messages asked inner join messages on messages.message_id"
            f" = asked.message_id where asked.escalation_id > :floor and {condition} and {self._where}"
            f" order by asked.escalation_id desc limit {LOOK_MASKED}",
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
            if texts.shown(row, self._redactor(row["route"])):
                found.setdefault(row["message_id"])
            if len(found) > self._most:
                break
        return list(found)

    def _that_show(self, ids: list[int], texts: _Texts) -> list[int]:
        """Those of ``ids`` of which a question to people, however old, shows it."""
        if not ids:
            return []
        condition, values = texts.condition(self._dialect, "asked")
        rows = rows_of(
            self._connection,
            f"select {texts.columns('asked')} from escalated_messages asked"
            f" where asked.message_id in ({', '.join(map(str, ids))}) and {condition}",
            **values,
        )
        shown = {row["message_id"] for row in rows if texts.shown(row, self._redactor(row["route"]))}
        return [one for one in ids if one in shown]


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


#: What no text goes on with that begins with another.
_LAST = "\U0010ffff"


def _said(selector: str) -> str:
    return selector.replace("body:$.", "").replace("attribute:", "")


#: SQL: the columns of a message by which messages are counted out.
_ASKED = "message_id, route, source, state, cause, group_id, first_enqueued_at, dead_lettered_at, changed_at"


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
        most = max(LOOK_ROUTE, LOOK // len(routes))
        named = {f"one_{number}": route for number, route in enumerate(routes)}

        def each(columns: str, limit: str) -> str:
            return " union all ".join(
                f"select * from (select {columns} from messages where route = :{name} and state = '{state}'{before}"
                f" order by message_id desc limit {limit}) as of_{name}"
                for name in sorted(named)
            )

        # Where one route has more, none is looked at further back than that one: so a page goes on where this ends.
        (row,) = rows_of(
            connection,
            f"select max(message_id) as beyond from ({each('message_id', f'1 offset {most}')}) as not_looked_at",
            **named,
            **({"after": after} if after is not None else {}),
        )
        # They are called as what they are taken of: joined with it, PostgreSQL may read all of it.
        inner, values = f"({each(_ASKED, str(most))}) as messages", {**values, **named}
        if row["beyond"] is not None:
            where, values = f"messages.message_id > :beyond and {where}", {**values, "beyond": row["beyond"]}
            following = row["beyond"] + 1
            told.append(f"Looked at the newest messages in this state, {most:,} of a route at most.")
    else:
        floor, since = message_queries.floor_of(connection, readable, LOOK, before=after)
        inner, where = "messages", f"messages.message_id >= :floor{before} and {where}"
        values["floor"] = floor
        following = floor if since else None
        if since:
            told.append(f"Looked at the {LOOK:,} messages that were staged since {since:%Y-%m-%d %H:%M} UTC.")
    rows = rows_of(
        connection,
        f"select messages.message_id from {inner} where {where} order by messages.message_id desc limit {PAGE + 1}",
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
            "select message_id, escalation_id, status, substr(coalesce(error_text, reason), 1,"
            f" {message_queries.READ}) as error_text from escalated_messages where message_id in ({wanted})"
            " order by escalation_id",
        )
    }
    return [{**row, "asked": said.get(row["message_id"])} for row in rows]
