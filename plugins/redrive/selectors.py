"""Selectors: how the configuration points at a value of a message, and what they find.

``attribute:NAME`` is a header, ``body:$.a.b[0].c`` a place in a JSON body, ``key`` and ``message_group``
the ordering key under its two usual names, ``broker_id`` the broker's own message id.

The parsed form stays readable (:attr:`Selector.kind`, ``name``, ``path``) because the Spark job evaluates attributes
for whole columns.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from redrive.errors import SelectorError
from redrive.message import Header

#: Larger bodies are not parsed: a key or an error text is never worth that much memory for each message.
MAX_BODY_BYTES = 1 << 20
MAX_PATH_STEPS = 32
MAX_NAME_LENGTH = 256

# Spark's own parser of JSON paths takes `.name`, `['name']` and `[0]`; wildcards would give several values.
_STEP = re.compile(r"\.([^.\[\]'\"*?\s]{1,256})|\['([^'*?]{1,256})'\]|\[([0-9]{1,6})\]")


class Kind(StrEnum):
    """Where a selector looks."""

    ATTRIBUTE = "attribute"
    BODY = "body"
    KEY = "key"
    MESSAGE_GROUP = "message_group"
    BROKER_ID = "broker_id"


@dataclass(frozen=True, slots=True)
class Selector:
    """A parsed selector; ``str()`` gives its canonical text."""

    kind: Kind
    name: str = ""  # of the attribute
    path: tuple[str | int, ...] = ()  # into the body: names and array positions

    def __str__(self) -> str:
        match self.kind:
            case Kind.ATTRIBUTE:
                return f"attribute:{self.name}"
            case Kind.BODY:
                return f"body:{self.json_path}"
        return self.kind.value

    @property
    def json_path(self) -> str:
        """The path as Spark's ``get_json_object`` takes it, e.g. ``$.error.causes[0]``."""
        return "$" + "".join(_step_text(step) for step in self.path)

    def evaluate(
        self,
        headers: Sequence[Header],
        body: bytes,
        ordering_key: str | None = None,
        broker_message_id: str = "",
    ) -> str | None:
        """The value as text; None where it is absent, empty, null, or can't be had from this body.

        Never raises, whatever the message holds. Numbers come as they are written, objects and arrays as
        compact JSON, undecodable bytes and characters that no database stores as U+FFFD. Of a header that
        occurs more than once the last counts. The text can be as long as the body: hash it before it goes
        into an index.
        """
        value: str | None
        match self.kind:
            case Kind.ATTRIBUTE:
                value = _attribute(headers, self.name)
            case Kind.BODY:
                value = _in_body(body, self.path)
            case Kind.KEY | Kind.MESSAGE_GROUP:
                value = ordering_key
            case Kind.BROKER_ID:
                value = broker_message_id
        return _storable(value) if value else None


def parse(text: str) -> Selector:
    """The selector that ``text`` means; :class:`~redrive.errors.SelectorError` says what is wrong with it."""
    if not isinstance(text, str):
        raise SelectorError(f"a selector is text such as attribute:error, not {type(text).__name__}")
    kind, colon, rest = text.strip().partition(":")
    match kind:
        case "attribute" if colon:
            if not rest or len(rest) > MAX_NAME_LENGTH:
                raise SelectorError(f"{text[:80]!r}: the name of the attribute has 1 to {MAX_NAME_LENGTH} characters")
            return Selector(Kind.ATTRIBUTE, name=rest)
        case "body" if colon:
            return Selector(Kind.BODY, path=parse_path(rest))
        case "key" | "message_group" | "broker_id" if not colon:
            return Selector(Kind(kind))
    raise SelectorError(
        f"{text[:80]!r} is not a selector; write attribute:NAME, body:$.path, key, message_group or broker_id"
    )


def parse_path(text: str) -> tuple[str | int, ...]:
    """The steps of a JSON path such as ``$.error.causes[0]['the name']``."""
    if not text.startswith("$"):
        raise SelectorError(f"{text[:80]!r}: a path into a JSON body begins with $, such as $.error.message")
    steps: list[str | int] = []
    at = 1
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            raise SelectorError(
                f"{text[:80]!r}: can't read {text[at : at + 20]!r}; steps are .name, ['any name'] and [0], no wildcards"
            )
        name, quoted, position = step.groups()
        steps.append(int(position) if position is not None else name or quoted)
        at = step.end()
    if not steps:
        raise SelectorError(f"{text!r}: the path names nothing; write $.name")
    if len(steps) > MAX_PATH_STEPS:
        raise SelectorError(f"{text[:80]!r}: more than {MAX_PATH_STEPS} steps")
    return tuple(steps)


class _Number(str):
    """A JSON number as it is written: no rounding, and no cost for one of a million digits."""

    __slots__ = ()


def _no_constant(word: str) -> None:
    raise ValueError(word)


#: ``NaN`` and ``Infinity`` are not JSON, and Spark does not read them either.
_DECODER = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_no_constant)


def _attribute(headers: Sequence[Header], name: str) -> str | None:
    for header in reversed(headers):
        if header.name == name:
            value = header.value
            return value if isinstance(value, str) else value.decode("utf-8", "replace")
    return None


def _in_body(body: bytes, path: tuple[str | int, ...]) -> str | None:
    if len(body) > MAX_BODY_BYTES:
        return None
    try:
        value: Any = _DECODER.decode(body.decode("utf-8"))
        for step in path:
            if isinstance(value, dict) and isinstance(step, str):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                return None
        return None if value is None else _as_text(value)
    except (ValueError, RecursionError):  # not UTF-8, not JSON, or nested to break the parser
        return None


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else _compact(value)


def _compact(value: Any) -> str:
    # json.dumps would put quotes around the numbers that were kept as written.
    if isinstance(value, _Number):
        return value
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{_compact(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_compact(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _storable(text: str) -> str:
    # JSON can smuggle in lone surrogates, which can't be encoded, and NUL, which PostgreSQL refuses.
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _step_text(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if re.fullmatch(r"[^.\[\]'\"*?\s]+", step) else f"['{step}']"
