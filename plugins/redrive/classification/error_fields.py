"""What fields say about a failure: JSON, XML and ``key=value``, cut short or not, and in any order.

Names and codes are kept as they are, messages as prose; of the rest is assumed that it differs from message to message.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from redrive.classification.values_and_names import (
    ASKED_FOR,
    BLANK,
    NAMING,
    PLAIN_WORD,
    field_of,
    is_of_consumer,
    path_words,
)

#: Between the messages of several fields.
BETWEEN: Final = "; "
_PAIR: Final = re.compile(
    r"(?P<key>[A-Za-z_@][A-Za-z0-9_.@-]{0,50})="
    r"(?P<value>\"(?:[^\"\\]|\\.){0,2000}+\"?|'[^'\n]{0,500}'|[^ \t\n,;]*)[,;]?"
)
_FIELD: Final = re.compile(
    r"\"(?P<key>[^\"\\\n]{1,60})\"\s*:\s*"
    r"(?P<value>\[(?:\s*+(?:\"[^\"\n]{0,200}\"|[0-9]{1,9}+|<\*>)\s*+,?+){1,12}+\]|"
    r"\"(?:[^\"\\]|\\.){0,4000}+\"?|[^\s,\"{}\[\]]+|[\[{])"
)
_TAG: Final = re.compile(
    r"<(?P<key>[A-Za-z][A-Za-z0-9_:.-]{0,60})(?: [^<>]{0,300})?>(?P<value>[^<>]{1,2000}|(?:[^<>]|<\*>){1,2000}?)</"
)
_SAYING = re.compile(
    r"(?:^|[._-])(?:messages?|msg|err|errors?|errormessage|errormsg|description|desc|detail|details|"
    r"diagnostics|reason|exc_info|exception|cause|faultstring|error_description|fault|title|exc|what|text|failure)$"
)
_OF_ERROR = re.compile(r"(?:^|[._-])(?:err|error|exception|exc|exc_info|cause|reason|fault|faultstring)$")
_SENTENCE = re.compile(r"(?:message|msg|description|desc|detail|details|text|title|faultstring)$")
# An object of these has what is wrong by field.
_ERRORS = re.compile(r"(?:^|[._-])(?:errors|violations|invalid_(?:params|fields)|fields|model_state)$")
# What was sent, beside what is wrong with it.
_GIVEN = re.compile(r"\"(?:input|ctx|variables|payload|instance|request|params)\"\s*:\s*\{[^{}]{0,2000}\}\s*,?")
_ITEM = re.compile(r"\"([^\"\n]{1,200})\"")
# Statuses that are about what was asked for.
_OF_RESOURCES = frozenset(["400", "404", "405", "409", "410", "422"])
# The way to what is wrong in what was sent.
_WAY = re.compile(r"(?:^|[._-])(?:path|loc|location|field|instance_?path|pointer|expression)$")
# The same as one text: /data/attributes/title, MedicationRequest.intent
_POINTER = re.compile(r"(?:^|[._-])(?:pointer|instance_?path|data_?path|property_?path|expression)$")
_STEP = re.compile(r"(?<![^/.\]#])[A-Za-z_][\w-]*(?![^/.\[])")
# Line 7, Col 6: where in what was sent it stands
_LINE = re.compile(r"line (?:[0-9]|<\*>)", re.I)
# query Report: what the client calls its request
_OPERATION = re.compile(r"(?:query|mutation|subscription)(?: \w{1,80})?")
_PLACE = re.compile(r" \((?:line|row|col)[^()]{1,40}\)$", re.I)
# What many names of fields begin with, and says nothing: error_code is code, decline_code is not.
_GENERAL = re.compile(
    r"^(?:.*[._-])?(?:error|err|status|exception|fault|api|response|http|x|failure|death|_+)[._-]|^.*[.]"
)
# {count=<*>, reason=expired}, [{'count': <*>, 'reason': 'expired'}]: as runtimes print a map
_MAP = re.compile(r"(?:[\w -]{1,40}: ?)?[\[(]*\{")
_ENTRY = re.compile(
    r"['\"]?(?P<key>[A-Za-z][\w-]{1,40})['\"]?(?:=|: ?)"
    r"(?P<value>'[^'\n]{0,200}'|\"[^\"\n]{0,200}\"|[^\s,;{}\[\]'\"]{1,200}|(?<==)[^\s,;={}\[\]'\"][^,;={}\[\]'\"\n]{1,200})"
    r"(?=[,;}\]]|$)"
)
# DeadLetterReason=X; DeadLetterErrorDescription=a sentence
_SETTINGS = re.compile(r"(?P<key>[A-Za-z][\w.-]{1,60})(?:=|(?<=[Rr]eason): (?=\w+;))(?P<value>[^;\n]{1,1000})(?:; |$)")
_HEADER = re.compile(r"(?P<key>[A-Z][a-z]+(?:[A-Z][a-z]+)+|[a-z]+(?:-[a-z]+)+): (?P<value>[^\n]{1,1000})")
_KEY = re.compile(r"(?:^|[\s;,])(?P<key>[A-Za-z][\w.-]{1,60})=")
# That it failed is known.
_NO_NEWS = re.compile(
    r"(?:error|err|fail|failed|failure|fatal|exception|nok|ko|warn|critical|generated|generic_?error)$", re.I
)
_RAISED = re.compile(r"[A-Z]\w{2,60}(?:Error|Exception|NotFound|Failure): ")
_WORD = re.compile(r"[A-Za-z0-9_.:/|-]{1,60}")
_NUMBER = re.compile(r"[0-9]{6}|[0-9]{4}-")
_KNOWN = re.compile(rf"{_SAYING.pattern}|{NAMING.pattern}")
_LONGEST_CODE = 6
_HEXADECIMAL_CODE = re.compile(r"0[xX][0-9A-Fa-f]{4,8}")
# soap:Server: what is in front is what the document calls its schema
_QUALIFIED = re.compile(r"^[A-Za-z][\w-]{0,20}:(?=[A-Z][a-z])")
# value_error.missing: as pydantic called its checks once
_CHECKED = re.compile(r"^(?:value|type|assertion)_error[.](?=[a-z])")
# property=LYO3, type=text/html; of codes digits are a part
_ID = re.compile(r"[A-Z]{2,6}-?[0-9]{1,8}|[a-z]{3,12}/[a-z0-9.+-]{2,60}")
_OF_CODES = re.compile(r"(?:code|status|errno|number|state|cd|reason|error|flags)$")
# avg_basket_<*>d: a name of several words, of which one is a number
_NUMBERED_NAME = re.compile(r"[a-z]{2,40}(?:_[a-z]{1,40}){1,6}_<[*]>[a-z]{1,3}")
_IDENTIFIER, _SHORT = re.compile(r"[A-Za-z]+(?:_[A-Za-z]+)*"), 3
_SEVERAL_PARTS = re.compile(r"[A-Za-z]{2,40}(?:_[A-Za-z]{1,40}){1,8}")
_ONE_OF_A_FEW = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)+")
_OF_HTTP = re.compile(r"(?:^|_)status_?code$")
_REASON, _STATUS = re.compile(r"(?:reason|code)$"), re.compile(r"status(?:_?code)?$")
_PAGE = re.compile(r"<(?:!doctype )?html", re.I)
_SAYS_WHY = re.compile(r"error|message\"|reason|exception|fail", re.I)
_LOOKED_AT = 4000
_SOME_WORDS = 3


def message_of(text: str, say: Callable[[str], str]) -> str:
    """What the fields of ``text`` say, "" where it has none; ``say`` writes the template of a message."""
    text = _GIVEN.sub("", text) if "{" in text else text
    start = text.find("{")
    if "DeadLetterQueueSourceArn" in text and not _SAYS_WHY.search(text):
        return f"DeadLetterQueueSourceArn={BLANK}"  # of the attributes that SQS adds others may be missing
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
    if len(headers := _headers(text[:_LOOKED_AT])) > 1:
        return _together(headers, say)
    for read in (_settings, _spoken):
        settings = read(text[:_LOOKED_AT])
        if (len(settings) > 1 or _is_told(settings)) and (said := _together(settings, say)):
            return said
    pairs = list(_PAIR.finditer(text[:_LOOKED_AT])) if "=" in text else []
    covered = sum(len(pair[0]) for pair in pairs)
    if len(pairs) > 1 and not pairs[0].start() and covered * 10 >= 7 * min(len(text), _LOOKED_AT):
        told = [(pair["key"], pair["value"]) for pair in pairs]
        return _together(told, say) or _of_unknown_names(told)
    return ""


def _of_unknown_names(fields: Sequence[tuple[str, str]]) -> str:
    """What fields say of which none is known to name anything: words of several parts, ``why=gap_in_track``; else that
    there are such fields. Else all failures of which nothing is known were one."""
    words = {key: value for key, value in fields if _SEVERAL_PARTS.fullmatch(value)}
    if words:
        return " ".join(f"{key}={value}" for key, value in sorted(words.items()))
    # A broker's properties begin with the one that is always there.
    keys = sorted({key for key, _ in fields}) if fields[0][0].islower() else [fields[0][0]]
    return " ".join(f"{key}={BLANK}" for key in keys)


def _settings(text: str) -> list[tuple[str, str]]:
    """``key=words and words; key=words``, where all of ``text`` is like that."""
    settings: list[tuple[str, str]] = _SETTINGS.findall(text) if "; " in text else []
    is_all = sum(len(key) + len(value) + 3 for key, value in settings) >= len(text.rstrip("; "))
    return settings if is_all else []


def _headers(text: str) -> list[tuple[str, str]]:
    """``DeadLetterReason: X`` and ``x-death-count: 7``, a line each, where all of ``text`` is like that."""
    lines = [line for line in text.split("\n") if line.strip()]
    found = [(match["key"], match["value"]) for line in lines if (match := _HEADER.fullmatch(line))]
    return found if len(found) == len(lines) else []


def _is_told(settings: Sequence[tuple[str, str]]) -> bool:
    """Whether one setting tells it all, in several words: ``reason=session id is null``."""
    said = settings[0][1].partition("(")[0] if settings else ""
    return len(said.split()) >= _SOME_WORDS and "=" not in said


def _spoken(text: str) -> list[tuple[str, str]]:
    """``key=value message=words and words key=value``: all of ``text``, of which only messages have words."""
    if "=" not in text or '"' in text or not (match := _KEY.match(text)):
        return []
    found: list[tuple[str, str]] = []
    keys = [match, *_KEY.finditer(text, match.end())]
    for one, following in zip(keys, [*keys[1:], None], strict=True):
        value = text[one.end() : following.start() if following else len(text)].strip(" ;,\n")
        if value.count("(") != value.count(")"):
            return []
        if " " in value and not _SAYING.search(field_of(one["key"])):
            return []
        found.append((one["key"], value))
    return found


def _together(fields: Sequence[tuple[str, str]], say: Callable[[str], str]) -> str:
    told = _dead_lettered(fields)
    return say(told) if told else _named_and_told(fields, say)


def _named_and_told(fields: Iterable[tuple[str, str]], say: Callable[[str], str]) -> str:
    names: dict[str, str] = {}
    fields, by_field = _by_field(fields)
    messages = [(True, said) for line in by_field if (said := say(line))]
    raw: list[str] = []
    spare: dict[str, str] = {}  # other words, which may be what a name is about
    heard: set[str] = set()
    asked_for = ""
    for name, quoted in fields:
        key, items = field_of(name), _items(quoted)
        value = _unescaped(items[0]) if items else unquoted(quoted)
        if way := _way(key, items, value):
            names.setdefault("path", way)
            continue
        if not value or value in ("null", "[", "{", "-"):
            continue
        is_word = _WORD.fullmatch(value) is not None
        if NAMING.search(key):
            if named := _name_in(key, value, is_word=is_word):
                names.setdefault("status" if _OF_HTTP.search(key) else _GENERAL.sub("", key), named)
            elif not is_word and BLANK not in value:
                _add(messages, key, " ".join(value.split()))
        elif ASKED_FOR.search(key) and (words := path_words(value)):
            asked_for = words
        elif _SAYING.search(key) and key not in heard:
            heard.add(key)
            if is_word and not value.isdigit() and BLANK not in value and not _SENTENCE.search(key):
                names.setdefault(key, value)
            else:
                raw.append(value)
                _add(messages, key, say(value))
        elif _IDENTIFIER.fullmatch(value):
            spare.setdefault(key, value)
    names = _with_spare(names, spare, is_silent=not messages)
    names = _telling(names, " ".join(raw))
    if asked_for and _OF_RESOURCES.intersection(names.values()) and not any(map(_RAISED.search, raw)):
        names.setdefault("path", asked_for)
    pieces = " ".join(f"{key}={value}" for key, value in sorted(names.items()))
    return " | ".join(part for part in (pieces, BETWEEN.join(_news(messages))) if part)


def _way(key: str, items: Sequence[str], value: str) -> str:
    """The way to what is wrong in what was sent, "" where a field doesn't tell it."""
    if items and _WAY.search(key):
        return ".".join(item for item in items if not item.isdigit() and item != BLANK) or ".".join(items)
    return ".".join(_STEP.findall(value)) if _POINTER.search(key) else ""


def _by_field(fields: Iterable[tuple[str, str]]) -> tuple[list[tuple[str, str]], list[str]]:
    """The fields but those behind ``errors`` whose texts say what is wrong with one, and that as lines:
    ``{"errors": {"email": ["can't be blank"]}}``."""
    others, lines, of_errors = list[tuple[str, str]](), list[str](), False
    for name, quoted in fields:
        of_errors |= quoted == "{" and _ERRORS.search(field_of(name)) is not None
        texts = (_items(quoted) or [unquoted(quoted)]) if of_errors and not _KNOWN.search(field_of(name)) else []
        if texts and _is_said(texts[0]):
            lines.append(f"field '{name}': {texts[0]}")
        else:
            others.append((name, quoted))
    return others, lines


def _is_said(text: str) -> bool:
    """Whether a text is a sentence, or the rest of one: several words, most of them in small letters."""
    words = text.split()
    return len(words) > 1 and sum(word[:1].islower() for word in words) * 2 > len(words)


def _dead_lettered(fields: Iterable[tuple[str, str]]) -> str:
    """What Service Bus tells in two properties, as those write it who tell it in one line: *reason: description*."""
    told = {field_of(name): quoted for name, quoted in fields if name[:1] in "Dd"}
    reason, said = map(told.get, ("dead_letter_reason", "dead_letter_error_description"))
    return f"{unquoted(reason)}: {unquoted(said)}" if reason and said else ""


def _name_in(key: str, value: str, *, is_word: bool) -> str:
    """What the value of a naming field names, "" where that is nothing: of an address the end of its path."""
    if "://" in value:
        path = path_words(value)
        return path.rpartition("/")[2] if path.count("/") > 1 else ""
    if key == "resource" and value.startswith("/"):
        return ""  # of S3: which object
    if is_word and _is_named(key, value):
        return _CHECKED.sub("", _QUALIFIED.sub("", value))
    return value if _NUMBERED_NAME.fullmatch(value) else ""


def _items(quoted: str) -> list[str]:
    """The texts of a list, none of anything else; not the one that says in which line of what was sent it stands, and
    not what the client calls its request."""
    texts = _ITEM.findall(quoted) if quoted.startswith("[") else []
    return [_PLACE.sub("", text) for text in texts if not (_LINE.match(text) or _OPERATION.fullmatch(text))]


def _news(messages: Sequence[tuple[bool, str]]) -> list[str]:
    """``messages``, those of errors first, without what a consumer says of itself (*handler failed*) beside others."""
    lines = [line for _, line in sorted(messages, key=lambda one: not one[0])]
    return [line for line in lines if not all(map(is_of_consumer, PLAIN_WORD.findall(line)))] or lines


def _with_spare(names: dict[str, str], spare: dict[str, str], *, is_silent: bool) -> dict[str, str]:
    """``names`` with those of other words that say what broke: one of a few, where nothing else is told, or what a name
    is about, in the field of that name: ``cause=feature_missing feature=age``."""
    if not names and is_silent:
        names = {key: value for key, value in spare.items() if _ONE_OF_A_FEW.fullmatch(value)}
    about = {word for value in names.values() for word in value.lower().replace("-", "_").split("_")}
    return names | {key: value for key, value in spare.items() if len(key) > _SHORT and key in about}


def _is_named(key: str, value: str) -> bool:
    """Whether the value of a naming field names something: it is no number or id, and says more than that it failed."""
    is_id = _ID.fullmatch(value) is not None and not _OF_CODES.search(key)
    is_number = _NUMBER.search(value) is not None and not _HEXADECIMAL_CODE.fullmatch(value)
    is_number &= not (key.endswith("code") and value.isdigit() and len(value) <= _LONGEST_CODE)
    return not (is_id or is_number or _NO_NEWS.match(value))


def _telling(names: dict[str, str], said: str) -> dict[str, str]:
    """``names`` without what is no news beside the others and the messages, which ``said`` something as they are."""
    if any(_REASON.search(key) and not value.isdigit() for key, value in names.items()):
        # A status says less than a reason, and not every client tells it.
        names = {key: value for key, value in names.items() if not (_STATUS.search(key) and value.isdigit())}
    # Of what a message quotes it says itself whether it is a name.
    return {key: value for key, value in names.items() if not (key == "name" and value in said)}


def _add(messages: list[tuple[bool, str]], key: str, line: str) -> None:
    if line and not any(line in other or other in line for _, other in messages):
        messages.append((_OF_ERROR.search(key) is not None, line))


def unquoted(value: str) -> str:
    """A field's value without its quotes, and without what those escape; of one that was cut the second is missing."""
    if value[:1] in ("'", '"'):
        value = value[1:-1] if len(value) > 1 and value[-1] == value[0] else value[1:]
    return _unescaped(value)


def _unescaped(value: str) -> str:
    return value.replace("\\r", "").replace("\\n", "\n").replace('\\"', '"').replace("\\/", "/").replace("\\t", " ")
