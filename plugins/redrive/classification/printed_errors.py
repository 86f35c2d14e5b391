"""What an error says that was printed as an object: ``HatError { kind: Lost, message: "hat is lost" }``.

Rust, Elixir, Node, Java, Python and Go write one so where nobody made a sentence of it. Its codes and messages are the
failure; without them all errors of one class would be one.
"""

import re
from itertools import islice
from typing import Final

from redrive.classification.error_fields import unquoted
from redrive.classification.values_and_names import BLANK

#: What the class of an error ends with.
_ENDS: Final = "(?:Error|Exception|Failure|Fault|Status|Violation)s?"
# HatError {, hats::Error(, %Hat.Error{, Status{: an error's object, of which a field comes first
_OBJECT: Final = re.compile(
    rf"(?<![\w.:>])[%#&]?(?P<class>(?:[A-Za-z_]\w{{0,60}}(?:::|[.])){{0,6}}\w{{0,60}}{_ENDS})"
    r" ?(?P<open>[{(])\s{0,4}[{\[]{0,2}(?=['\"]?[A-Za-z_]\w{0,40}['\"]? ?(?:=|: ))"
)
_MAY_BE_ONE: Final = re.compile(_ENDS + r" ?[{(]")
_FIELD: Final = re.compile(
    r"(?<![\w.])['\"]?(?P<key>[A-Za-z_]\w{1,40})['\"]?(?: ?= ?|: ?)(?:Some\(|Err\(|:)?"
    r"(?P<value>[(\[](?:'[^'\n]{0,80}'|\"[^\"\n]{0,80}\"|[0-9]{1,6}+|<\*>|, ?+){1,24}+[)\]]|"
    r"\"(?:[^\"\\]|\\.){0,1000}+\"?|'(?:[^'\n]|'(?![,;}\])]|$)){0,600}+'|[^\s,;:={}()\[\]'\"][^,;={}()\[\]'\"\n]{0,300})"
)
#: Said without a field of its own: ConnectError("tcp connect error", ...
_SAID: Final = re.compile(r"[A-Z]\w{1,60}\(\"(?P<value>(?:[^\"\\]|\\.){3,600}+)\"")
_CODE: Final = re.compile(
    r"(?:^|_)(?:code|kind|type|reason|status|constraint|column|field|errno|error_?code|state)$|(?<=[a-z])(?:Code|Type|Kind|Reason)$"
)
# Messages, those that tell more first.
_MESSAGES: Final = (
    re.compile(r"^(?:message|msg|errmsg|error_?[Mm]essage|description|str|desc)$"),
    re.compile(r"^(?:[Dd]etails?|error)$"),
)
#: The way to what is wrong.
_WAY: Final = re.compile(r"^(?:loc|path|property_?path)$")
_ITEM: Final = re.compile(r"['\"]([^'\"]{1,80})['\"]")
_CLOSING: Final = {"{": "}", "(": ")"}
_NOTHING: Final = frozenset(["", "nil", "None", "null", "undefined", "true", "false", "True", "False", BLANK])
_LONGEST: Final = 3000
#: So many objects of a text are looked at: each may cost its whole length.
_MOST: Final = 8


def told(text: str) -> str:
    """``text`` with what errors say in the place of the objects that they were printed as."""
    if not _MAY_BE_ONE.search(text):
        return text
    pieces: list[str] = []
    end = 0
    for match in islice(_OBJECT.finditer(text), _MOST):
        if match.start() < end:
            continue  # it is a part of the one before
        closed = _end_of(text, match.end("open") - 1)
        if said := _said(match["class"], text[match.end("open") : closed]):
            pieces += text[end : match.start()], said
            end = closed
    return "".join([*pieces, text[end:]])


def _end_of(text: str, opening: int) -> int:
    """Where the object has ended that is opened there: behind its bracket, or where the text was cut."""
    opened, closing = text[opening], _CLOSING[text[opening]]
    depth, quoted, at = 0, False, opening
    for at in range(opening, min(len(text), opening + _LONGEST)):
        char = text[at]
        if char == '"' and text[at - 1] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (char == opened) - (char == closing)
            if depth == 0:
                return at + 1
    return at + 1


def _said(name: str, inside: str) -> str:
    """``Class: message (codes)``, "" where neither is told; the innermost code and message, which are the cause."""
    codes: dict[str, str] = {}
    messages: dict[int, str] = {}
    for field in reversed([*_FIELD.finditer(inside)]):
        key, value = field["key"], _bare(field["value"])
        if _WAY.search(key):
            codes.setdefault(key, ".".join(_ITEM.findall(field["value"])) or value)
        elif value in _NOTHING or value[:1] in ("(", "["):
            continue
        elif (_CODE.search(key) or (key == "name" and value.isupper())) and " " not in value:
            codes.setdefault(key.lower(), value)
        else:
            for number, kind in enumerate(_MESSAGES):
                if kind.search(key):
                    messages.setdefault(number, value)
    if not messages and (spoken := _SAID.search(inside)):
        messages[0] = _bare(f'"{spoken["value"]}"')
    message = messages[min(messages)] if messages else ""
    names = [code for code in sorted(set(codes.values())) if code and not code.isdigit() and code not in message]
    numbers = (
        [] if names or message else [f"error code {code}" for code in sorted(set(codes.values())) if code.isdigit()]
    )
    if not (names or numbers or message):
        return ""
    aside = f" ({' '.join(names or numbers)})" if names or numbers else ""
    short = re.split(r"::|[.]", name)[-1]
    return f"{short}: {message}{aside}" if message else f"{short}{aside}"


def _bare(value: str) -> str:
    return unquoted(value.strip()).strip()
