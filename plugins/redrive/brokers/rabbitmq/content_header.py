"""AMQP 0-9-1's content header, between bytes and text: properties, and headers of every field type.

It is read and written here, not by pika: pika turns doubles into integers and forgets how wide an integer was, and a
redelivered message has to carry what the original carried. A header value that is not text has a lossless text form (a
number in decimal, a timestamp in ISO 8601, a table or an array as JSON); bytes stay bytes.
"""

import base64
import contextlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

from redrive.message import Header

_SHORT = "shortstr"
_UINT16, _UINT32, _INT64 = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">q")
#: AMQP's properties in the order of their flag bits, from bit 15 down.
_PROPERTIES = (
    ("content_type", _SHORT), ("content_encoding", _SHORT), ("headers", "table"), ("delivery_mode", "octet"),
    ("priority", "octet"), ("correlation_id", _SHORT), ("reply_to", _SHORT), ("expiration", _SHORT),
    ("message_id", _SHORT), ("timestamp", "timestamp"), ("type", _SHORT), ("user_id", _SHORT), ("app_id", _SHORT),
    ("cluster_id", _SHORT),
)  # fmt: skip
#: The same with the flag of each.
_FLAGGED = tuple((name, kind, 1 << (15 - bit)) for bit, (name, kind) in enumerate(_PROPERTIES))
#: Field types by letter: name and struct format of those of fixed width.
_NUMBERS = {
    "b": ("byte", ">b"),
    "B": ("ubyte", ">B"),
    "s": ("short", ">h"),
    "u": ("ushort", ">H"),
    "I": ("int", ">i"),
    "i": ("uint", ">I"),
    "l": ("long", ">q"),
    "L": ("longlong", ">q"),
    "f": ("float", ">f"),
    "d": ("double", ">d"),
}
_LETTERS = {name: letter for letter, (name, _) in _NUMBERS.items()} | {
    "longstr": "S", "binary": "x", "bool": "t", "timestamp": "T", "decimal": "D", "void": "V", "table": "F",
    "array": "A",
}  # fmt: skip
_NAMES = {letter: name for name, letter in _LETTERS.items()}
#: Texts: as AMQP calls them, and as our own marks do.
_TEXTS = frozenset({"longstr", "String"})
#: What a header's type may be called.
TYPES = frozenset(_LETTERS)
#: Tables nested more deeply are carried as raw bytes.
_MAX_DEPTH = 32
#: Begins the key of a value that JSON has no type for: {"!int": "5"} in JSON is an int; a plain number there is a long,
#: which is what RabbitMQ itself writes.
MARK = "!"
#: Round a short string (a property, a header's name) that is not UTF-8, in base64.
_BYTES, _BYTES_END = f'{{"{MARK}shortstr": "', '"}'


class NotEncodable(Exception):
    """AMQP can't carry this message; the text says why."""


# --- reading -----------------------------------------------------------------------------------------------


def decode(raw: bytes) -> tuple[dict[str, str], tuple[Header, ...]]:
    """Properties as text, and headers, of an AMQP content header (from its flags on)."""
    offset = 2
    fields: dict[str, str] = {}
    headers: tuple[Header, ...] = ()
    for name, kind in _flagged(_UINT16.unpack_from(raw)[0]):
        if kind == _SHORT:
            end = offset + 1 + raw[offset]
            fields[name] = _short_text(raw[offset + 1 : end])
            offset = end
        elif kind == "octet":
            fields[name] = str(raw[offset])
            offset += 1
        elif kind == "timestamp":
            fields[name] = str(struct.unpack_from(">Q", raw, offset)[0])
            offset += 8
        else:
            end = offset + 4 + _UINT32.unpack_from(raw, offset)[0]
            headers = _headers(raw, offset + 4, end)
            offset = end
    return fields, headers


def _short_text(value: bytes) -> str:
    """A short string as text; where it is none, such as a binary correlation id, it is marked as values in JSON are."""
    with contextlib.suppress(UnicodeDecodeError):
        text = value.decode("utf-8")
        if not text.startswith(_BYTES):  # what only looks like our mark is marked too, so that it is itself again
            return text
    return f"{_BYTES}{base64.b64encode(value).decode()}{_BYTES_END}"


#: Messages of a queue share most of their headers' names, and none is long.
_name_text = lru_cache(maxsize=1024)(_short_text)


def _short_bytes(text: str) -> bytes:
    """The inverse of :func:`_short_text`. Raises ValueError."""
    if text.startswith(_BYTES) and text.endswith(_BYTES_END):
        return base64.b64decode(text[len(_BYTES) : -len(_BYTES_END)], validate=True)
    return text.encode("utf-8", "surrogatepass")


@lru_cache(maxsize=256)
def _flagged(flags: int) -> tuple[tuple[str, str], ...]:
    """The properties that a content header with these flags has."""
    return tuple(one for bit, one in enumerate(_PROPERTIES) if flags & (1 << (15 - bit)))


def _headers(raw: bytes, offset: int, end: int) -> tuple[Header, ...]:
    found = []
    while offset < end:
        length = raw[offset]
        start = offset + 1 + length
        name = _name_text(raw[offset + 1 : start])
        try:
            letter, value, offset = _read(raw, start, 0)
            found.append(_header(name, letter, value))
        except _UntoldError:
            size = struct.unpack_from(">I", raw, start + 1)[0]
            offset = start + 5 + size
            found.append(Header(name, f"raw:{chr(raw[start])}", raw[start + 5 : offset]))
    return tuple(found)


class _UntoldError(Exception):
    """Its JSON would not say all of it: it is nested too deeply, or a table has two fields of one name."""


def _read(raw: bytes, offset: int, depth: int) -> tuple[str, Any, int]:
    """(letter, Python value, next offset) of the field value at ``offset``."""
    letter = chr(raw[offset])
    offset += 1
    if letter in "Sx":
        end = offset + 4 + _UINT32.unpack_from(raw, offset)[0]
        return letter, raw[offset + 4 : end], end
    if letter in _NUMBERS:
        form = _NUMBERS[letter][1]
        return letter, struct.unpack_from(form, raw, offset)[0], offset + struct.calcsize(form)
    if letter == "t":
        return letter, raw[offset] != 0, offset + 1
    if letter == "T":
        return letter, struct.unpack_from(">Q", raw, offset)[0], offset + 8
    if letter == "V":
        return letter, None, offset
    if letter == "D":
        scale, unscaled = struct.unpack_from(">Bi", raw, offset)
        return letter, (scale, unscaled), offset + 5
    if letter not in "FA":
        raise NotEncodable(f"field type {letter!r} is unknown")
    if depth >= _MAX_DEPTH:
        raise _UntoldError
    end = offset + 4 + struct.unpack_from(">I", raw, offset)[0]
    offset += 4
    items: list[tuple[str, str, Any]] = []
    while offset < end:
        name = ""
        if letter == "F":
            length = raw[offset]
            name = _name_text(raw[offset + 1 : offset + 1 + length])
            offset += 1 + length
        kind, value, offset = _read(raw, offset, depth + 1)
        items.append((name, kind, value))
    return letter, items, end


def _header(name: str, letter: str, value: Any) -> Header:
    if letter == "S":
        try:
            return Header(name, "longstr", value.decode("utf-8"))
        except UnicodeDecodeError:
            return Header(name, "longstr", value)
    if letter == "x":
        return Header(name, "binary", value)
    if letter in "FA":
        text = json.dumps(_json(letter, value), ensure_ascii=False, separators=(",", ":"))
        return Header(name, "table" if letter == "F" else "array", text)
    return Header(name, _NAMES[letter], _text(letter, value))


def _text(letter: str, value: Any) -> str:
    if letter == "t":
        return "true" if value else "false"
    if letter == "T":
        return _instant(value)
    if letter == "D":
        scale, unscaled = value
        return format(Decimal(unscaled).scaleb(-scale), "f")
    if letter == "V":
        return ""
    return repr(value) if letter in "fd" else str(value)


def _json(letter: str, value: Any) -> Any:
    """A field value in JSON; what JSON has no type for is an object with one marked key."""
    if letter == "A":
        return [_json(kind, item) for _, kind, item in value]
    if letter == "F":
        table = {name: _json(kind, item) for name, kind, item in value}
        if len(table) < len(value):
            raise _UntoldError
        return {f"{MARK}table": table} if len(table) == 1 and next(iter(table)).startswith(MARK) else table
    if letter == "S":
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return {f"{MARK}longstr": base64.b64encode(value).decode()}
    if letter == "x":
        return {f"{MARK}binary": base64.b64encode(value).decode()}
    if letter in "tlV":
        return value
    return {f"{MARK}{_NAMES[letter]}": _text(letter, value)}


def _instant(seconds: int) -> str:
    if seconds <= 253_402_300_799:  # the year 9999
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return str(seconds)


def seconds_of(text: str) -> int:
    """Seconds since 1970 of a timestamp's text form; ValueError or OverflowError where it is none."""
    if text.isascii() and text.isdigit():
        return int(text)
    return int(datetime.fromisoformat(text).timestamp())


# --- writing -----------------------------------------------------------------------------------------------


def encode(properties: Mapping[str, str], headers: Sequence[Header]) -> bytes:
    """The content header (from its flags on) of these properties and headers. Raises :class:`NotEncodable`."""
    flags, parts = 0, []
    for name, kind, flag in _FLAGGED:
        if name == "headers":
            if not headers:
                continue
            parts.append(_header_table(headers))
        elif name not in properties:
            continue
        elif kind == _SHORT:
            parts.append(_short(properties[name], f"property {name}"))
        else:
            parts.append(_number(name, kind, properties[name]))
        flags |= flag
    return _UINT16.pack(flags) + b"".join(parts)


def size_of(headers: Sequence[Header]) -> int:
    """Bytes that these headers take in a content header. Raises :class:`NotEncodable`."""
    return len(_header_table(headers))


def _number(name: str, kind: str, value: str) -> bytes:
    """A property that is an octet or a timestamp."""
    try:
        return struct.pack(">B", int(value)) if kind == "octet" else struct.pack(">Q", seconds_of(value))
    except (ValueError, OverflowError, struct.error) as error:
        raise NotEncodable(f"property {name}: {error}") from None


def _short(value: str, what: str) -> bytes:
    try:
        encoded = _short_bytes(value)
    except ValueError as error:
        raise NotEncodable(f"{what}: {error}") from None
    if len(encoded) > 255:
        raise NotEncodable(f"{what} has {len(encoded)} bytes; AMQP allows at most 255")
    return bytes((len(encoded),)) + encoded


def _header_table(headers: Sequence[Header]) -> bytes:
    return _table([_name(header[0]) + _field(header) for header in headers])


def _table(fields: list[bytes]) -> bytes:
    """A table of fields, each with its name."""
    content = b"".join(fields)
    return _UINT32.pack(len(content)) + content


@lru_cache(maxsize=1024)
def _name(name: str) -> bytes:
    """A header's name as a short string."""
    return _short(name, f"the name of header {name[:40]!r}")


def _field(header: Header) -> bytes:
    """A header's value with its type letter."""
    _, kind, value = header
    try:
        if kind in _TEXTS and isinstance(value, str):  # as nearly all are, so it is asked first
            return _long(b"S", value.encode("utf-8", "surrogatepass"))
        if kind == "Number" and isinstance(value, str) and value.isdigit():  # as our own marks say it
            return b"l" + _INT64.pack(int(value))
        if kind.startswith("raw:") and isinstance(value, bytes):
            return kind[4:].encode() + struct.pack(">I", len(value)) + value
        if isinstance(value, bytes):
            return _long(b"S" if kind == "longstr" else b"x", value)
        if kind in ("table", "array"):
            return _from_json(json.loads(value))
        if kind in _LETTERS:
            return _scalar(_LETTERS[kind], value)
        if kind.startswith("Number") and value.lstrip("-").isdigit():
            return _scalar("l", value)
    except (ValueError, OverflowError, struct.error, InvalidOperation, RecursionError, TypeError) as error:
        raise NotEncodable(f"header {header.name!r} is no {kind}: {error}") from None
    return _long(b"S", value.encode("utf-8", "surrogatepass"))


def _long(letter: bytes, value: bytes) -> bytes:
    return letter + _UINT32.pack(len(value)) + value


def _scalar(letter: str, text: str) -> bytes:
    mark = letter.encode()
    if letter == "S":
        return _long(mark, text.encode("utf-8", "surrogatepass"))
    if letter == "x":
        return _long(mark, base64.b64decode(text))
    if letter == "t":
        return mark + (b"\x01" if text == "true" else b"\x00")
    if letter == "T":
        return mark + struct.pack(">Q", seconds_of(text))
    if letter == "V":
        return mark
    if letter == "D":
        _, digits, exponent = Decimal(text).as_tuple()
        if not isinstance(exponent, int):
            raise ValueError(f"{text} is not a finite number")
        scale = -exponent
        unscaled = int("".join(map(str, digits)))
        return mark + struct.pack(">Bi", scale, -unscaled if text.startswith("-") else unscaled)
    number = float(text) if letter in "fd" else int(text)
    if not math.isfinite(number):  # RabbitMQ can't read that, and closes the connection
        raise ValueError(f"{text} is not a finite number")
    return mark + struct.pack(_NUMBERS[letter][1], number)


def _from_json(value: Any) -> bytes:
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return _scalar("t", "true" if value else "false")
    if isinstance(value, int):
        return _scalar("l", str(value))
    if isinstance(value, str):
        return _scalar("S", value)
    if isinstance(value, list):
        content = b"".join(_from_json(item) for item in value)
        return b"A" + struct.pack(">I", len(content)) + content
    if isinstance(value, dict):
        if len(value) == 1 and (name := next(iter(value))).startswith(MARK):
            marked, kind = value[name], name[1:]
            if kind == "table":
                value = marked
            elif kind == "longstr":
                return _long(b"S", base64.b64decode(marked))
            else:
                return _scalar(_LETTERS[kind], marked)
        return b"F" + _table([_name(name) + _from_json(item) for name, item in value.items()])
    raise ValueError(f"{type(value).__name__} has no AMQP type here")
