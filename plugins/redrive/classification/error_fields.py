"""What fields say about a failure: JSON, XML and ``key=value``, cut short or not, and in any order.

Names and codes are kept as they are, messages as prose; of the rest is assumed that it differs from message to message.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

from redrive.classification.values_and_names import ASKED_FOR, BLANK, NAMING, field_of, path_words

_PAIR: Final = re.compile(
    r"(?P<key>[A-Za-z_@][A-Za-z0-9_.@-]{0,50})="
    r"(?P<value>\"(?:[^\"\\]|\\.){0,2000}+\"?|'[^'\n]{0,500}'|[^ \t\n,;]*)[,;]?"
)
_FIELD: Final = re.compile(
    r"\"(?P<key>[^\"\\\n]{1,60})\"\s*:\s*"
    r"(?P<value>\[(?:\s*(?:\"[^\"\n]{0,200}\"|[0-9]{1,9}|<\*>)\s*,?){1,12}\]|"
    r"\"(?:[^\"\\]|\\.){0,4000}+\"?|[^\s,\"{}\[\]]+|[\[{])"
)
_TAG: Final = re.compile(
    r"<(?P<key>[A-Za-z][A-Za-z0-9_:.-]{0,60})(?: [^<>]{0,300})?>(?P<value>[^<>]{1,2000}|(?:[^<>]|<\*>){1,2000}?)</"
)
_SAYING = re.compile(
    r"(?:^|[._-])(?:messages?|msg|err|errors?|errormessage|errormsg|description|desc|detail|details|reason|exc_info|"
    r"exception|cause|faultstring|error_description|fault|title|exc|what|text|failure)$"
)
_SENTENCE = re.compile(r"(?:message|msg|description|desc|detail|details|text|title|faultstring)$")
# Names of things of the trade are values.
_NO_NAME = re.compile(r"(?:host|user|file|customer|first|last|sku|order|queue|topic|user)_?name$")
_ITEM = re.compile(r"\"([^\"\n]{1,200})\"")
# Statuses that are about what was asked for.
_OF_RESOURCES = frozenset(["400", "404", "405", "409", "410", "422"])
# The way to what is wrong in what was sent.
_WAY = re.compile(r"(?:^|[._-])(?:path|loc|location|field|instance_?path|pointer)$")
# What many names of fields begin with, and says nothing: error_code is code, decline_code is not.
_GENERAL = re.compile(r"^(?:.*[._-])?(?:error|err|status|exception|fault|api|response|http|x|failure|_+)[._-]|^.*[.]")
# {count=<*>, reason=expired}, [{'count': <*>, 'reason': 'expired'}]: as runtimes print a map
_MAP = re.compile(r"(?:[\w -]{1,40}: ?)?[\[(]*\{")
_ENTRY = re.compile(
    r"['\"]?(?P<key>[A-Za-z][\w-]{1,40})['\"]?(?:=|: ?)"
    r"(?P<value>'[^'\n]{0,200}'|\"[^\"\n]{0,200}\"|[^\s,;{}\[\]'\"]{1,200})(?=[,;}\]]|$)"
)
# DeadLetterReason=X; DeadLetterErrorDescription=a sentence
_SETTINGS = re.compile(r"(?P<key>[A-Za-z][\w.-]{1,60})=(?P<value>[^;\n]{1,1000})(?:; |$)")
# That it failed is known.
_NO_NEWS = re.compile(r"(?:error|err|fail|failed|failure|fatal|exception|nok|ko|warn|critical)$", re.I)
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
    if _MAP.match(text) and len(entries := _ENTRY.findall(text[:_LOOKED_AT])) > 1:
        said = _together(entries, say)
        if said:
            return said
    if len(settings := _settings(text[:_LOOKED_AT])) > 1:
        return _together(settings, say)
    pairs = list(_PAIR.finditer(text[:_LOOKED_AT])) if "=" in text else []
    covered = sum(len(pair[0]) for pair in pairs)
    if len(pairs) > 1 and not pairs[0].start() and covered * 10 >= 7 * min(len(text), _LOOKED_AT):
        # Where no field names anything, that there are such fields is all that is known.
        return _together([(pair["key"], pair["value"]) for pair in pairs], say) or f"{pairs[0]['key']}={BLANK}"
    return ""


def _settings(text: str) -> list[tuple[str, str]]:
    """``key=words and words; key=words``, where all of ``text`` is like that."""
    settings: list[tuple[str, str]] = _SETTINGS.findall(text) if "; " in text else []
    is_all = sum(len(key) + len(value) + 3 for key, value in settings) >= len(text.rstrip("; "))
    return settings if is_all else []


def _together(fields: Iterable[tuple[str, str]], say: Callable[[str], str]) -> str:
    names: dict[str, str] = {}
    messages: list[str] = []
    heard: set[str] = set()
    asked_for = ""
    for name, quoted in fields:
        key, items = field_of(name), _ITEM.findall(quoted) if quoted.startswith("[") else []
        if items and _WAY.search(key):
            names.setdefault("path", ".".join(items))
            continue
        value = items[0] if items else _unquoted(quoted)
        if not value or value in ("null", "[", "{", "-"):
            continue
        is_word = _WORD.fullmatch(value) is not None
        if NAMING.search(key) and not _NO_NAME.search(key):
            if is_word:
                if not _NUMBER.search(value) and not _NO_NEWS.match(value):
                    names.setdefault(_GENERAL.sub("", key), value)
            elif BLANK not in value:
                _add(messages, " ".join(value.split()))
        elif ASKED_FOR.search(key) and (words := path_words(value)):
            asked_for = words
        elif _SAYING.search(key) and key not in heard:
            heard.add(key)
            if is_word and not value.isdigit() and BLANK not in value and not _SENTENCE.search(key):
                names.setdefault(key, value)
            else:
                _add(messages, say(value))
    if asked_for and _OF_RESOURCES.intersection(names.values()):
        names.setdefault("path", asked_for)
    pieces = " ".join(f"{key}={value}" for key, value in sorted(names.items()))
    return " | ".join(part for part in (pieces, "; ".join(messages)) if part)


def _add(messages: list[str], line: str) -> None:
    if line and not any(line in other or other in line for other in messages):
        messages.append(line)


def _unquoted(value: str) -> str:
    if value[:1] in ("'", '"'):
        value = value[1:-1] if len(value) > 1 and value[-1] == value[0] else value[1:]
    return value.replace("\\r", "").replace("\\n", "\n").replace('\\"', '"').replace("\\/", "/").replace("\\t", " ")
