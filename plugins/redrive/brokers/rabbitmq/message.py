"""What a message looks like on RabbitMQ: properties, typed headers, and the story of its death in ``x-death``.

AMQP's content header is read and written here, not by pika: pika turns doubles into integers and forgets how wide an
integer was, and a redelivered message has to carry what the original carried. A header value that is not text has a
lossless text form (a number in decimal, a timestamp in ISO 8601, a table or an array as JSON); bytes stay bytes.
"""

import base64
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, NamedTuple

from redrive.brokers.base import readable
from redrive.message import SECOND, DeadLetter, Header, Micros, Outgoing, count, instant

#: RabbitMQ routes to these as well as to the routing key, which would reach more than the queue that failed.
ROUTING_HEADERS = frozenset({"CC", "BCC"})
#: With the plugin for message deduplication a queue confirms and drops what shares this with a message that it holds.
DEDUPLICATION_HEADER = "x-deduplication-header"
#: Holds the properties and headers of a message, as they came, of which something could not be read.
UNREAD_HEADER = "x-redrive-unread"
#: They have to fit into one frame, of 128 KiB unless broker and client agree on something else, with the properties.
_MAX_HEADERS = 128 * 1024 - 4096
_NOT_SENT = ROUTING_HEADERS | {DEDUPLICATION_HEADER}
#: Property names of a letter that are ours: where the message was and what the broker took off it.
EXCHANGE, ROUTING_KEY, DRAINED_FROM = "exchange", "routing_key", "drained_from"

_SHORT = "shortstr"
_UINT16, _UINT32 = struct.Struct(">H"), struct.Struct(">I")
#: AMQP's properties in the order of their flag bits, from bit 15 down.
_PROPERTIES = (
    ("content_type", _SHORT), ("content_encoding", _SHORT), ("headers", "table"), ("delivery_mode", "octet"),
    ("priority", "octet"), ("correlation_id", _SHORT), ("reply_to", _SHORT), ("expiration", _SHORT),
    ("message_id", _SHORT), ("timestamp", "timestamp"), ("type", _SHORT), ("user_id", _SHORT), ("app_id", _SHORT),
    ("cluster_id", _SHORT),
)  # fmt: skip
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
#: Tables nested more deeply are carried as raw bytes.
_MAX_DEPTH = 32
_MARK = "!"  # {"!int": "5"} in JSON is an int; a plain number there is a long, which is what RabbitMQ itself writes


class Death(NamedTuple):
    """One entry of ``x-death``: how often a message died in one queue for one reason, and when first."""

    queue: str
    reason: str
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on a death
    at: Micros | None


#: A message that waits for its time is in a queue of this name, then the seconds, then where it goes.
DELAY_PREFIX = "redrive.delay."


def delay_queue(queue: str, seconds: int) -> str:
    """Where messages for ``queue`` wait for so many seconds."""
    return f"{DELAY_PREFIX}{seconds}.{queue}"


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
            fields[name] = raw[offset + 1 : end].decode("utf-8", "replace")
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


@lru_cache(maxsize=256)
def _flagged(flags: int) -> tuple[tuple[str, str], ...]:
    """The properties that a content header with these flags has."""
    return tuple(one for bit, one in enumerate(_PROPERTIES) if flags & (1 << (15 - bit)))


def letter_of(
    raw: bytes,
    body: bytes,
    *,
    queue: str,
    exchange: str,
    routing_key: str,
    redelivered: bool,
    delivery_limit: Callable[[str], int | None] = lambda _: None,
) -> DeadLetter:
    """The letter that was delivered from ``queue``; ``delivery_limit`` tells a queue's own limit where it is known."""
    where = ((EXCHANGE, exchange), (ROUTING_KEY, routing_key), (DRAINED_FROM, queue))
    return readable(
        lambda: _letter(raw, body, where, redelivered, delivery_limit),
        # What could not be read of it goes to staging as it came.
        lambda: DeadLetter("", body, (Header(UNREAD_HEADER, "binary", raw),), where, redelivered=redelivered),
    )


def _letter(
    raw: bytes,
    body: bytes,
    where: tuple[tuple[str, str], ...],
    redelivered: bool,
    delivery_limit: Callable[[str], int | None],
) -> DeadLetter:
    fields, headers = decode(raw)
    content_type = fields.pop("content_type", None)
    by_name = {header[0]: header for header in headers}
    deaths: tuple[Death, ...] = ()
    failed, times = None, list[Micros]()
    if "x-death" in by_name:
        # In a queue of ours it only waited for its time.
        deaths = tuple(one for one in deaths_of(by_name["x-death"]) if not one.queue.startswith(DELAY_PREFIX))
        failed = _failure(deaths, by_name.get("x-first-death-queue"))
        times = [death.at for death in deaths if death.at is not None]
    sent = fields.get("timestamp")
    enqueued = None if sent is None else instant(sent, SECOND)
    return DeadLetter(
        fields.get("message_id", ""),
        body,
        headers,
        (*fields.items(), *where),
        enqueued if enqueued is not None else min(times, default=None),
        max(times, default=None),
        None,
        _deliveries(deaths, failed, by_name.get("x-delivery-count"), redelivered, delivery_limit),
        failed.queue if failed else None,
        None,
        content_type,
        failed.reason if failed else None,
        None,
        redelivered,
    )


def deaths_of(header: Header) -> tuple[Death, ...]:
    """The entries of an ``x-death`` header as they are there; nonsense (a forged header) gives none."""
    try:
        entries = json.loads(header.value)
        return tuple(
            Death(str(entry["queue"]), str(entry["reason"]), _count(entry.get("count")), _time(entry.get("time")))
            for entry in entries
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return ()


def _failure(deaths: tuple[Death, ...], first: Header | None) -> Death | None:
    """The death that tells where the message failed: at its consumer's queue, not in a delay queue on the way.

    That is the oldest one that a consumer caused; without any, the first death of all. ``x-death`` itself is in no
    reliable order: an entry that is counted up moves, and its time stays that of its first death.
    """
    if not deaths:
        return None
    oldest_last = sorted(deaths, key=lambda death: -(death.at or 0))  # stable: newest first, as the broker adds them
    caused = [death for death in oldest_last if death.reason in ("rejected", "delivery_limit")]
    if caused:
        return caused[-1]
    named = [death for death in oldest_last if first is not None and death.queue == first.value]
    return named[-1] if named else oldest_last[-1]


def _deliveries(
    deaths: tuple[Death, ...],
    failed: Death | None,
    counted: Header | None,
    redelivered: bool,
    delivery_limit: Callable[[str], int | None],
) -> int:
    if failed is None:
        before = -1 if counted is None else count(counted.value, otherwise=-1)
        return count(before + 1) or (2 if redelivered else 1)
    total = 0
    for death in deaths:
        if death.queue != failed.queue:
            continue
        each = 1
        if death.reason == "delivery_limit":
            each = (delivery_limit(death.queue) or 0) + 1
        total += death.count * each
    return max(count(total), 1)


def _headers(raw: bytes, offset: int, end: int) -> tuple[Header, ...]:
    found = []
    while offset < end:
        length = raw[offset]
        start = offset + 1 + length
        name = raw[offset + 1 : start].decode("utf-8", "surrogateescape")
        try:
            letter, value, offset = _read(raw, start, 0)
            found.append(_header(name, letter, value))
        except _TooDeepError:
            size = struct.unpack_from(">I", raw, start + 1)[0]
            offset = start + 5 + size
            found.append(Header(name, f"raw:{chr(raw[start])}", raw[start + 5 : offset]))
    return tuple(found)


class _TooDeepError(Exception):
    pass


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
        raise _TooDeepError
    end = offset + 4 + struct.unpack_from(">I", raw, offset)[0]
    offset += 4
    items: list[tuple[str, str, Any]] = []
    while offset < end:
        name = ""
        if letter == "F":
            length = raw[offset]
            name = raw[offset + 1 : offset + 1 + length].decode("utf-8", "surrogateescape")
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


_NAMES = {letter: name for name, letter in _LETTERS.items()}


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
        return {f"{_MARK}table": table} if len(table) == 1 and next(iter(table)).startswith(_MARK) else table
    if letter == "S":
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return {f"{_MARK}longstr": base64.b64encode(value).decode()}
    if letter == "x":
        return {f"{_MARK}binary": base64.b64encode(value).decode()}
    if letter in "tlV":
        return value
    return {f"{_MARK}{_NAMES[letter]}": _text(letter, value)}


def _instant(seconds: int) -> str:
    if seconds <= 253_402_300_799:  # the year 9999
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return str(seconds)


def _seconds(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    return int(datetime.fromisoformat(text).timestamp())


def _time(value: object) -> Micros | None:
    if isinstance(value, Mapping):
        value = value.get(f"{_MARK}timestamp")
    return instant(_seconds(value), SECOND) if isinstance(value, str) else None


def _count(value: object) -> int:
    if isinstance(value, Mapping):
        value = next(iter(value.values()), 1)
    return max(count(value, otherwise=1), 1)


# --- writing -----------------------------------------------------------------------------------------------


def encode(message: Outgoing, *, queue: str, user: str | None, keep_expiration: bool = False) -> bytes:
    """The content header of ``message`` on its way to ``queue``, as ``user``.

    A time to live belongs to one stay in one queue: it is set again only where the message goes back to the queue
    that it was drained from, or where ``keep_expiration`` asks for it. Raises :class:`NotEncodable`.
    """
    kept = dict(message.properties)
    if kept.get(DRAINED_FROM) != queue and not keep_expiration:
        kept.pop("expiration", None)
    if kept.get("user_id") != user:
        kept.pop("user_id", None)  # RabbitMQ closes the channel for a name that is not the connection's
    kept.setdefault("delivery_mode", "2")
    if message.content_type is not None:
        kept["content_type"] = message.content_type
    headers = [header for header in message.headers if header.name not in _NOT_SENT]
    flags, parts = 0, []
    for bit, (name, kind) in enumerate(_PROPERTIES):
        if name == "headers":
            if not headers:
                continue
            parts.append(_table([(h.name, _field(h)) for h in headers]))
        elif name not in kept:
            continue
        else:
            parts.append(_property(name, kind, kept[name]))
        flags |= 1 << (15 - bit)
    return _UINT16.pack(flags) + b"".join(parts)


def refuses_headers(headers: Sequence[Header]) -> str | None:
    """Why RabbitMQ won't take these headers as a person wrote them, with the name of the first; None if it will."""
    names = set[str]()
    for header in headers:
        if header.name in _NOT_SENT:
            return f"header {header.name!r} is not sent on: it would bring the message elsewhere, or have it dropped"
        if header.name in names:
            return f"header {header.name!r} is there twice; a table keeps one of each"
        names.add(header.name)
        if not (header.type in _LETTERS or header.type in ("String", "Number") or header.type.startswith("raw:")):
            return f"header {header.name!r}: {header.type[:40]!r} is no type; there are {', '.join(sorted(_LETTERS))}"
        if header.type == "bool" and header.value not in ("true", "false"):
            return f"header {header.name!r} is of type bool: it is true or false"
        try:
            size = len(_table([(header.name, _field(header))]))
        except NotEncodable as error:
            return str(error)
        if size > _MAX_HEADERS:
            return f"header {header.name!r} has {size:,} bytes; all headers have to fit into {_MAX_HEADERS:,}"
    size = len(_table([(one.name, _field(one)) for one in headers]))
    if size > _MAX_HEADERS:
        return f"{size:,} bytes of headers, {headers[-1].name!r} the last; they have to fit into {_MAX_HEADERS:,}"
    return None


def _property(name: str, kind: str, value: str) -> bytes:
    try:
        if kind == "octet":
            return struct.pack(">B", int(value))
        if kind == "timestamp":
            return struct.pack(">Q", _seconds(value))
    except (ValueError, OverflowError, struct.error) as error:
        raise NotEncodable(f"property {name}: {error}") from None
    return _short(value, f"property {name}")


def _short(value: str, what: str) -> bytes:
    encoded = value.encode("utf-8", "surrogateescape")
    if len(encoded) > 255:
        raise NotEncodable(f"{what} has {len(encoded)} bytes; AMQP allows at most 255")
    return bytes((len(encoded),)) + encoded


def _table(items: list[tuple[str, bytes]]) -> bytes:
    content = b"".join([_name(name) + value for name, value in items])
    return _UINT32.pack(len(content)) + content


@lru_cache(maxsize=1024)
def _name(name: str) -> bytes:
    """A header's name; messages of a queue share most of theirs, and none is long."""
    return _short(name, f"the name of header {name[:40]!r}")


def _field(header: Header) -> bytes:
    """A header's value with its type letter."""
    _, kind, value = header
    try:
        if kind == "longstr" and isinstance(value, str):
            return _long(b"S", value.encode("utf-8", "surrogatepass"))
        if kind.startswith("raw:") and isinstance(value, bytes):
            return kind[4:].encode() + struct.pack(">I", len(value)) + value
        if isinstance(value, bytes):
            return _long(b"S" if kind == "longstr" else b"x", value)
        if kind in ("table", "array"):
            return _from_json(json.loads(value))
        if kind in _LETTERS:
            return _scalar(_LETTERS[kind], value)
        if kind.startswith("Number") and value.lstrip("-").isdigit():  # as our own marks say it
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
        return mark + struct.pack(">Q", _seconds(text))
    if letter == "V":
        return mark
    if letter == "D":
        _, digits, exponent = Decimal(text).as_tuple()
        scale = -exponent if isinstance(exponent, int) else 0
        unscaled = int("".join(map(str, digits)))
        return mark + struct.pack(">Bi", scale, -unscaled if text.startswith("-") else unscaled)
    number = float(text) if letter in "fd" else int(text)
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
        if len(value) == 1 and (name := next(iter(value))).startswith(_MARK):
            marked, kind = value[name], name[1:]
            if kind == "table":
                value = marked
            elif kind == "longstr":
                return _long(b"S", base64.b64decode(marked))
            else:
                return _scalar(_LETTERS[kind], marked)
        return b"F" + _table([(name, _from_json(item)) for name, item in value.items()])
    raise ValueError(f"{type(value).__name__} has no AMQP type here")
