"""What fields say about a failure: JSON, XML and ``key=value``, cut short or not, and in any order.

Names and codes are kept as they are, messages as prose; of the rest is assumed that it differs from message to message.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

from redrive.classification.values_and_names import BLANK, NAMING, field_of

_PAIR: Final = re.compile(
    r"(?P<key>[A-Za-z_@][A-Za-z0-9_.@-]{0,50})="
    r"(?P<value>\"(?:[^\"\\]|\\.){0,2000}+\"?|'[^'\n]{0,500}'|[^ \t\n,;]*)[,;]?"
)
_FIELD: Final = re.compile(
    r"\"(?P<key>[^\"\\\n]{1,60})\"\s*:\s*(?P<value>\"(?:[^\"\\]|\\.){0,4000}+\"?|[^\s,\"{}\[\]]+|[\[{])"
)
_TAG: Final = re.compile(
    r"<(?P<key>[A-Za-z][A-Za-z0-9_:.-]{0,60})(?: [^<>]{0,300})?>(?P<value>[^<>]{1,2000}|(?:[^<>]|<\*>){1,2000}?)</"
)
_SAYING = re.compile(
    r"(?:^|[._-])(?:message|msg|err|error|errormessage|errormsg|description|desc|detail|details|reason|exc_info|exception|"
    r"cause|faultstring|error_description|fault|title|exc|what|text|failure)$"
)
_SENTENCE = re.compile(r"(?:message|msg|description|desc|detail|details|text|title|faultstring)$")
# Names of things of the trade are values.
_NO_NAME = re.compile(r"(?:host|user|file|customer|first|last|sku|order|queue|topic|user)_?name$")
_WORD = re.compile(r"[A-Za-z0-9_.:/|-]{1,60}")
_NUMBER = re.compile(r"[0-9]{6}|[0-9]{4}-")
_PAGE = re.compile(r"<(?:!doctype )?html", re.I)
_LOOKED_AT = 4000


def message_of(text: str, say: Callable[[str], str]) -> str:
    """What the fields of ``text`` say, "" where it has none; ``say`` writes the template of a message."""
    start = text.find("{")
    if 0 <= start < 60 and len(fields := _FIELD.findall(text[:_LOOKED_AT])) > bool(start):
        return _together(fields, say)
    if (
        text.startswith("<")
        and "</" in text
        and not _PAGE.match(text)
        and len(tags := _TAG.findall(text[:_LOOKED_AT])) > 1
    ):
        return _together(tags, say)
    pairs = list(_PAIR.finditer(text[:_LOOKED_AT])) if "=" in text else []
    covered = sum(len(pair[0]) for pair in pairs)
    if len(pairs) > 1 and not pairs[0].start() and covered * 10 >= 7 * min(len(text), _LOOKED_AT):
        # Where no field names anything, that there are such fields is all that is known.
        return _together([(pair["key"], pair["value"]) for pair in pairs], say) or f"{pairs[0]['key']}={BLANK}"
    return ""


def _together(fields: Iterable[tuple[str, str]], say: Callable[[str], str]) -> str:
    names: dict[str, str] = {}
    messages: list[str] = []
    heard: set[str] = set()
    for name, quoted in fields:
        key, value = field_of(name), _unquoted(quoted)
        if not value or value in ("null", "[", "{", "-"):
            continue
        is_word = _WORD.fullmatch(value) is not None
        if NAMING.search(key) and not _NO_NAME.search(key):
            if is_word and not _NUMBER.search(value):
                names.setdefault(re.split(r"[._]", key)[-1], value)
            elif not is_word and BLANK not in value:
                _add(messages, " ".join(value.split()))
        elif _SAYING.search(key) and key not in heard:
            heard.add(key)
            if is_word and not value.isdigit() and BLANK not in value and not _SENTENCE.search(key):
                names.setdefault(key, value)
            else:
                _add(messages, say(value))
    pieces = " ".join(f"{key}={value}" for key, value in sorted(names.items()))
    return " | ".join(part for part in (pieces, "; ".join(messages)) if part)


def _add(messages: list[str], line: str) -> None:
    if line and not any(line in other or other in line for other in messages):
        messages.append(line)


def _unquoted(value: str) -> str:
    if value[:1] in ("'", '"'):
        value = value[1:-1] if len(value) > 1 and value[-1] == value[0] else value[1:]
    return value.replace("\\r", "").replace("\\n", "\n").replace('\\"', '"').replace("\\/", "/").replace("\\t", " ")
