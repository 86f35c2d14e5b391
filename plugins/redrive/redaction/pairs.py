r"""Secrets whose name is a value itself: ``{"name": "password", "value": "…"}``, as forms, environments and lists of
headers are written, and as frameworks tell of the value that they refused; and what XML has in a CDATA section.

Pairs are found by their members: from a key that may be of one on, those that follow are read one by one, as far as
they are such, and where one of them names a secret, the values beside it are masked.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from redrive.redaction.complaints import is_complaint
from redrive.redaction.credentials import CALLED, CALLED_AT_END
from redrive.redaction.escapes import Unescaped
from redrive.redaction.masks import MASK_CREDENTIALS, replaced

_FLAGS = re.ASCII | re.IGNORECASE
_QUOTE = r"\\{0,7}[\"']"
_NAMES = r"(?:name|key|field|header|param(?:eter)?|property|attribute|path|loc|variable|setting)"
#: What it is, or was; what should have been is none.
_VALUES = r"(?<!expected)(?<!expected[ _-])values?|input|data"
_SIGN = r"[ \t]{0,4}(?:=>?|:(?!:))[ \t]{0,4}"
_LINE = r"(?:\r|\\{1,7}r)?(?:\n|\\{1,7}n)"
# Where the next member begins: behind blanks, a comma or the end of a line, unless that begins another entry of a list.
_NEXT = re.compile(rf"(?:[ \t,;&]|\\{{1,7}}t|{_LINE}(?![ \t]*+-[ \t]))*+")
_ON_THE_LINE = re.compile(r"[ \t,;&]*+")
_KEY = r"(?P<in_quotes>" + _QUOTE + r")?(?P<key>[A-Za-z][\w.-]{0,60}(?: value)?)(?(in_quotes)" + _QUOTE + ")" + _SIGN
_START = re.compile(
    rf"(?<![\w.-])(?:{_QUOTE})?(?=(?P<word>[A-Za-z][\w.-]{{0,60}}+(?: value)?)(?:{_QUOTE})?{_SIGN})(?=[\w.-]{{0,60}}?"
    rf"(?:{_NAMES}|{_VALUES})(?:{_QUOTE}|[ \t:=]))",
    _FLAGS,
)
# What a list has: texts in quotes, whole, and what is in none.
_ITEMS = r"(?:[^\[\](){}\"'\\]|\"(?:[^\"\\\n]|\\.)*+\"|'(?:[^'\"\\\n]|\\.)*+'|\\{1,7}\"[^\"\\\n]*+\\{1,7}\")"
_MEMBER = re.compile(
    rf"{_KEY}(?:b?(?P<opens>{_QUOTE})|\[(?P<list>{_ITEMS}{{0,300}}+)\]|\((?P<tuple>{_ITEMS}{{0,300}}+)\)"
    rf"|(?P<bare>[^\s,;\"'\\\]}}(){{\[<>]{{1,300}}+))",
    _FLAGS,
)
#: In quotes up to where they are closed; where they are not, up to the next ones.
_QUOTED = {
    '"': re.compile(r"(?:[^\"\\\n]|\\.)*+"),
    "'": re.compile(r"(?:[^'\\\n]|\\.)*+"),
    "\\": re.compile(r"[^\"'\\\n]*+"),
}
_UP_TO_QUOTES = re.compile(r"[^\"'\\\n]*+")
_REST = re.compile(r"[^\s,;\"'\\\]}(){\[<>]*+")
_REST_OF_LINE = re.compile(r"[^\n\\\"]++")
_MOST_MEMBERS = 16
_LONGEST_NAME = 60
_PARTS_NAME = re.compile(r"[/\"',\s]")
_NUMBER = re.compile(r"-?[\d.]+")
_IS_NAME = re.compile(rf"[\w.-]*?{_NAMES}", _FLAGS)
_IS_VALUE = re.compile(rf"[\w.-]*?(?:{_VALUES})|[\w.-]*[ _-]value", _FLAGS)
#: Names that are said only of what is in quotes, as JSON and Python have them: in prose they begin much else.
_IN_QUOTES_ALONE = frozenset({"input", "data"})
# What a secret is not called, though it ends so: the kind of a failure, or of what a parser reads.
_NO_NAME = re.compile(
    r"(?:invalid|expired|missing|wrong|unknown|unexpected|unsupported|bad|end|no)[ _.-]?[a-z]+", _FLAGS
)
_NOTHING = re.compile(r"(?:null|none|nil|undefined|true|false|\d{1,3}|redacted(?: \w+)?|)", re.IGNORECASE)
_NAMED_IN_QUOTES = rf"[\[(]\s{{0,4}}b?{_QUOTE}[^\"'\n\\]{{0,60}}?{CALLED}{_QUOTE}\s{{0,4}},\s{{0,4}}b?"
_IN_OTHER_WAYS = tuple(
    re.compile(pattern, _FLAGS)
    for pattern in (
        # Spring: error on field 'password': rejected value [...]
        rf"field {_QUOTE}[^\"'\n]{{0,80}}?{CALLED}{_QUOTE}[^\n]{{0,20}}? rejected value \["
        r"(?P<hidden>[^\n\"\\]{1,300}?)\](?=[;.,\s]|\\{0,7}[\"'nr]|$)",
        rf"{CALLED}(?:\s[^<>]{{0,200}})?><!\[CDATA\[(?P<hidden>(?:(?!\]\]>|\\*\")[^\n]){{1,2000}})",
        # <property name="password">…</property>; <name>db.password</name><value>…</value>
        rf"<(?:\w{{1,20}}:)?(?:property|entry|setting|param|parameter|init-param|string|item|constant)\s[^<>]{{0,200}}?"
        rf"(?:name|key)\s?=\s?{_QUOTE}[^\"'<>]{{0,80}}?{CALLED}{_QUOTE}[^<>]{{0,200}}(?<!/)>\s{{0,80}}(?:<value>)?"
        r"(?P<hidden>[^<>\"{}]{1,2000})(?=</)",
        rf"{CALLED}</(?:\w{{1,20}}:)?name>\s{{0,80}}<(?:\w{{1,20}}:)?value>(?P<hidden>[^<>\"{{}}]{{1,2000}})(?=</)",
        # [("password", "…"), …]: of a pair alone, the second may be another name
        rf"(?:\[|[\])]\s?,)\s{{0,4}}{_NAMED_IN_QUOTES}(?P<opens>{_QUOTE})(?P<hidden>[^\n\"'\\]{{1,2000}})(?P=opens)"
        r"\s{0,4}[\])]",
        # pydantic: the name is alone on the line before
        rf"(?:^|\n|\\n)[\w.\[\]-]{{0,60}}?{CALLED}{_LINE} {{1,4}}(?:(?!\[type=|\\{{1,7}}n)[^\n]){{0,300}}"
        r"\[type=(?!missing)(?:(?!\\{1,7}n)[^\n]){0,80}?input_value="
        r"(?P<hidden>(?:(?!\\{1,7}n)[^\n]){1,2000}?)(?=, input_type=)",
        # of SQL
        rf"\b(?:user|role|to)\s{{1,4}}(?:if\snot\sexists\s)?[^\s;]{{1,100}}\s{{1,4}}identified\s{{1,4}}(?:with\s{{1,4}}\w{{1,40}}\s{{1,4}})?by\s{{1,4}}"
        rf"(?:password\s{{1,4}})?(?P<opens>{_QUOTE})?(?P<hidden>[^\s\"'\\;]{{1,300}})",
    )
)


def without_pairs(text: str) -> str:
    """``text`` with the value masked beside which stands what is called a secret; what is JSON stays JSON."""
    text = _masked(text, _of_pairs)
    for pattern in _IN_OTHER_WAYS:
        text = _masked(text, partial(_of, pattern))
    return text


class _Hidden(NamedTuple):
    """A secret, and what is shown instead."""

    start: int
    end: int
    instead: str


class _Member(NamedTuple):
    """A key and its value, and where the value is; ``quote`` is what its mask needs to stay JSON."""

    key: str
    said: str
    start: int
    end: int
    behind: int
    quote: str
    is_json: bool
    is_whole: bool


def _masked(text: str, find: Callable[[str], Iterable[_Hidden]]) -> str:
    unescaped = Unescaped(text)
    places, shown_to = [], 0
    for start, end, instead in sorted(find(unescaped.text)):
        if start >= shown_to:
            places.append((unescaped.place(start), unescaped.place(end), instead))
            shown_to = end
    return replaced(text, places)


def _of(pattern: re.Pattern[str], text: str) -> Iterator[_Hidden]:
    for found in pattern.finditer(text):
        if _is_secret(found["hidden"]):
            yield _Hidden(*found.span("hidden"), MASK_CREDENTIALS)


def _is_secret(said: str) -> bool:
    return not (_NOTHING.fullmatch(said) or is_complaint(said) or said.startswith(MASK_CREDENTIALS[:9]))


def _of_pairs(text: str) -> Iterator[_Hidden]:
    for start in _START.finditer(text):
        members = list(_members(text, start.start()))
        called = next(filter(None, map(_called, members)), None)
        if called is None:
            continue
        is_count = called["many"] or called["may_be_none"]  # "tokens": 1700, "pass": 12
        for one in members:
            if _is_value(one) and _is_secret(one.said) and not (is_count and _NUMBER.fullmatch(one.said)):
                end = one.end if one.is_whole else _end(_REST, text, one.end)
                yield _Hidden(one.start, end, f"{one.quote}{MASK_CREDENTIALS}{one.quote}")


def _called(one: _Member) -> re.Match[str] | None:
    """By what the value of a member is the name of a secret."""
    if not _IS_NAME.fullmatch(one.key):
        return None
    if one.key.lower() == "path" and one.said.startswith("/"):
        return None  # of a request, or of a file
    name = one.said[-_LONGEST_NAME:].rstrip("\"'\\ ,\r\n\t")
    return None if _NO_NAME.fullmatch(_PARTS_NAME.split(name)[-1]) else CALLED_AT_END.search(name)


def _is_value(one: _Member) -> bool:
    return _IS_VALUE.fullmatch(one.key) is not None and (one.is_json or one.key.lower() not in _IN_QUOTES_ALONE)


def _members(text: str, at: int) -> Iterator[_Member]:
    """Those from there on that stand beside each other, each key once."""
    seen: set[str] = set()
    while len(seen) < _MOST_MEMBERS and (found := _MEMBER.match(text, at)):
        one = _member(text, found)
        if one.key in seen:
            return
        seen.add(one.key)
        yield one
        # A line of key=value is an entry of its own.
        is_told = one.is_json or (_begins_line(text, at) and text[at + len(one.key) :][:8].lstrip().startswith(":"))
        at = _end(_NEXT if is_told else _ON_THE_LINE, text, one.behind)
        if at == one.behind:
            return


def _member(text: str, found: re.Match[str]) -> _Member:
    key, in_quotes = found["key"], found["in_quotes"] or ""
    if opens := found["opens"]:
        start = found.end()
        end = _end(_QUOTED[opens[0]], text, start)
        if not text.startswith(opens, end) or (opens == "'" and in_quotes != "'" and '"' in text[start:end]):
            end = _end(_UP_TO_QUOTES, text, start)
        behind = end + len(opens) if text.startswith(opens, end) else end
        return _Member(key, text[start:end], start, end, behind, "", bool(in_quotes), True)
    which = next(name for name in ("list", "tuple", "bare") if found[name] is not None)
    start, end = found.span(which)
    if (
        which == "bare"
        and not in_quotes
        and _IS_VALUE.fullmatch(key)
        and ":" in text[found.end("key") : start]
        and _begins_line(text, found.start())
    ):
        end = _end(_REST_OF_LINE, text, start)  # of YAML
    quote = "" if which == "tuple" else in_quotes
    return _Member(key, text[start:end], start, end, max(end, found.end()), quote, bool(in_quotes), which != "bare")


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where what ``pattern`` takes from there ends."""
    found = pattern.match(text, at)
    return found.end() if found else at


def _begins_line(text: str, at: int) -> bool:
    before = text[max(0, at - 60) : at].rstrip(" \t-")
    return before == "" or before.endswith(("\n", "\\n", '"'))
