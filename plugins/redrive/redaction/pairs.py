r"""Secrets whose name is a value itself: ``{"name": "password", "value": "…"}``, as forms, environments and lists of
headers are written, and as frameworks tell of the value that they refused; and what XML has in a CDATA section.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from redrive.redaction.escapes import Unescaped
from redrive.redaction.masks import MASK_CREDENTIALS
from redrive.redaction.patterns import CALLED, is_complaint, replaced

_QUOTE = r"\\{0,7}[\"']"
_SIGN = r"\s{0,4}(?:[:=]|=>)\s{0,4}"
_FLAGS = re.ASCII | re.IGNORECASE
#: What says which secret it is.
_NAME = re.compile(
    r"(?<![a-z])(?:name|key|field|header|param(?:eter)?|property|attribute|(?:instance|data)?path|loc|variable|setting)"
    rf"(?:{_QUOTE})?(?:{_SIGN}|\s{{1,4}}(?={_QUOTE}))(?:\[[^\[\]\n]{{0,60}}?)?(?:{_QUOTE})?[^\"'<>{{}}\[\]\n=]{{0,60}}?"
    rf"{CALLED}(?:{_QUOTE})?\]?(?![\w-])",
    _FLAGS,
)
_VALUE = (
    r"(?<![a-z])(?:(?:rejected|refused|actual|given|invalid|received|current|old|new|raw|input)[_ -]?)?"
    r"(?:value|input|data)"
)
_OPENS = rf"(?P<opens>{_QUOTE})(?P<quoted>(?:(?!(?P=opens))[^\n]){{1,2000}})"
_BARE = r"(?P<bare>(?!\[redacted)[^\s\"'\\,;&<>()\[\]{}]{1,2000})"
# What may be between the two of a pair, within one object, element or entry of a list.
_BETWEEN = r"(?:[^{}<>\n]|\n[ \t]+(?!- )){0,160}?"
_BEHIND_NAME = tuple(
    re.compile(pattern, _FLAGS)
    for pattern in (
        rf"{_BETWEEN}{_VALUE}(?:{_QUOTE})?(?:{_SIGN}(?!\[redacted)\[?|\s{{0,4}}\[(?!redacted)){_OPENS}",
        rf"{_BETWEEN}{_VALUE}(?P<of_json>{_QUOTE}){_SIGN}{_BARE}",
        rf"[\s,;:]{{0,20}}{_VALUE}(?:{_SIGN}(?!\[redacted)\[?|\s{{0,4}}\[(?!redacted)){_BARE}",
        r"[^<>]{0,200}(?<!/)>(?P<quoted>[^<>]{1,2000})(?=</)",  # <property name="password">…</property>
    )
)
_BEFORE_NAME = re.compile(
    rf"{_VALUE}(?:{_QUOTE})?{_SIGN}{_OPENS}(?P=opens)\s{{0,20}},\s{{0,20}}(?:{_QUOTE})?\Z", _FLAGS
)
_LOOKED_BACK = 400
_IN_OTHER_WAYS = tuple(
    re.compile(pattern, _FLAGS)
    for pattern in (
        rf"{CALLED}(?:\s[^<>]{{0,200}})?><!\[CDATA\[(?P<quoted>[^\n\]]{{1,2000}})",
        # ("password", "…"): a word there would be another name
        rf"[\[(]\s{{0,4}}{_QUOTE}[^\"'\n]{{0,60}}?{CALLED}{_QUOTE}\s{{0,4}},\s{{0,4}}(?P<opens>{_QUOTE})"
        r"(?P<quoted>(?=[^\s\"'\d]{0,60}\d)[^\n\"']{6,2000})(?P=opens)\s{0,4}[\])]",
        # pydantic: the name is alone on the line before
        rf"(?:^|\n)[\w.\[\]-]{{0,60}}?{CALLED}\n {{1,4}}[^\n]{{0,300}}?(?<![a-z])input_value="
        r"(?P<quoted>[^\n]{1,2000}?)(?=, input_type=)",
        rf"\bidentified\s{{1,4}}by\s{{1,4}}{_OPENS}",  # of SQL
    )
)
_NOTHING = re.compile(r"(?:null|none|nil|undefined|true|false|\d{1,3})", re.IGNORECASE)


def without_pairs(text: str) -> str:
    """``text`` with the value masked beside which stands what is called a secret; what is JSON stays JSON."""
    text = _masked(text, _beside_names)
    for pattern in _IN_OTHER_WAYS:
        text = _masked(text, partial(_all, pattern))
    return text


class _Hidden(NamedTuple):
    """A secret, and what is shown instead."""

    start: int
    end: int
    instead: str


def _masked(text: str, find: Callable[[str], Iterable[_Hidden]]) -> str:
    unescaped = Unescaped(text)
    places, shown_to = [], 0
    for start, end, instead in sorted(find(unescaped.text)):
        if start >= shown_to:
            places.append((unescaped.place(start), unescaped.place(end), instead))
            shown_to = end
    return replaced(text, places)


def _all(pattern: re.Pattern[str], text: str) -> Iterator[_Hidden]:
    return filter(None, map(_hidden, pattern.finditer(text)))


def _beside_names(text: str) -> Iterator[_Hidden]:
    for name in _NAME.finditer(text):
        for pattern in _BEHIND_NAME:
            found = pattern.match(text, name.end())
            if found and (hidden := _hidden(found, is_plural=bool(name["many"]))):
                yield hidden
                break
        else:
            begin = max(0, name.start() - _LOOKED_BACK)
            found = _BEFORE_NAME.search(text[begin : name.start()])
            if found and (hidden := _hidden(found)):
                yield _Hidden(begin + hidden.start, begin + hidden.end, hidden.instead)


def _hidden(found: re.Match[str], *, is_plural: bool = False) -> _Hidden | None:
    """The secret of what was ``found``; None where it is none, as a number of several."""
    parts = found.groupdict()
    which = "bare" if parts.get("quoted") is None else "quoted"
    if _NOTHING.fullmatch(parts[which]) or is_complaint(parts[which]) or (which == "bare" and is_plural):
        return None
    quote = parts.get("of_json") or ""  # a number of a JSON text: it stays JSON
    return _Hidden(*found.span(which), f"{quote}{MASK_CREDENTIALS}{quote}")
