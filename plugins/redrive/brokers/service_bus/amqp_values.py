"""AMQP 1.0 values with their types.

The Service Bus SDK decodes a string and a binary value to the same ``bytes`` and a long and an int to the same
``int``. A message that goes back to its consumer must carry what its producer wrote, so the parts that matter are
read here, from the bytes on the wire, into :class:`Typed` values; :func:`for_sdk` gives them to the SDK in the form
in which it takes types.
"""

import struct
import uuid
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from redrive.message import Header

ANNOTATIONS = 0x72
PROPERTIES = 0x73
APPLICATION_PROPERTIES = 0x74
DATA = 0x75
SEQUENCE = 0x76
VALUE = 0x77

#: AMQP's strings have the name that headers of other brokers have.
STRING = "String"
_MAX_DEPTH = 32


class Typed(NamedTuple):
    """A value and the name of its AMQP type. Lists, arrays and maps hold Typed values, maps as pairs."""

    type: str
    value: Any


class Unreadable(ValueError):
    """Not AMQP, or cut off."""


_FIXED = {
    0x50: ("ubyte", ">B"),
    0x51: ("byte", ">b"),
    0x52: ("uint", ">B"),
    0x53: ("ulong", ">B"),
    0x54: ("int", ">b"),
    0x55: ("long", ">b"),
    0x56: ("boolean", ">?"),
    0x60: ("ushort", ">H"),
    0x61: ("short", ">h"),
    0x70: ("uint", ">I"),
    0x71: ("int", ">i"),
    0x72: ("float", ">f"),
    0x73: ("char", ">I"),
    0x80: ("ulong", ">Q"),
    0x81: ("long", ">q"),
    0x82: ("double", ">d"),
    0x83: ("timestamp", ">q"),
}
_EMPTY = {
    0x40: Typed("null", None),
    0x41: Typed("boolean", True),
    0x42: Typed("boolean", False),
    0x43: Typed("uint", 0),
    0x44: Typed("ulong", 0),
    0x45: Typed("list", []),
}
#: Nobody needs their value, only that they go out as they came.
_OPAQUE = {0x74: ("decimal32", 4), 0x84: ("decimal64", 8)}
_VARIABLE = {0: "binary", 1: STRING, 3: "symbol"}
#: Of all application properties of a message together.
MAX_PROPERTY_BYTES = 64 * 1024
_INTEGERS = frozenset({"ubyte", "ushort", "uint", "ulong", "byte", "short", "int", "long", "timestamp"})
#: Those that :func:`to_text` and :func:`from_text` carry.
SIMPLE = _INTEGERS | {"boolean", "float", "double", "uuid", "binary", "symbol", STRING}
#: What a person can write, and "Number", which is the nearest of long and double.
_WRITTEN = _INTEGERS | {
    *("null", "boolean", "float", "double", "char", "decimal32", "decimal64", "decimal128", "uuid", "binary", "symbol"),
    *(STRING, "Number", "list", "map", "array"),
}


def read(buffer: bytes | memoryview, at: int = 0, depth: int = 0) -> tuple[Typed, int]:
    """The value at ``at`` and the place after it; raises :class:`Unreadable`."""
    try:
        return _read(buffer, at, depth)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Unreadable(f"no AMQP value at byte {at}: {error}") from None


def _read(buffer: bytes | memoryview, at: int, depth: int) -> tuple[Typed, int]:
    if depth > _MAX_DEPTH:
        raise Unreadable(f"nested deeper than {_MAX_DEPTH}")
    code = buffer[at]
    if code == 0:
        descriptor, at = _read(buffer, at + 1, depth + 1)
        value, at = _read(buffer, at, depth + 1)
        return Typed("described", (descriptor, value)), at
    return _content(buffer, at + 1, code, depth)


def _content(buffer: bytes | memoryview, at: int, code: int, depth: int) -> tuple[Typed, int]:
    if code in _EMPTY:
        return _EMPTY[code], at
    if code in _FIXED:
        name, form = _FIXED[code]
        return Typed(name, struct.unpack_from(form, buffer, at)[0]), at + struct.calcsize(form)
    if code == 0x98:
        return Typed("uuid", uuid.UUID(bytes=_bytes(buffer, at, 16))), at + 16
    if code == 0x94:
        return Typed("decimal128", decimal128(_bytes(buffer, at, 16))), at + 16
    if code in _OPAQUE:
        name, width = _OPAQUE[code]
        return Typed(name, _bytes(buffer, at, width)), at + width
    wide = bool(code & 0x10)
    size = struct.unpack_from(">I" if wide else ">B", buffer, at)[0]
    at += 4 if wide else 1
    if code & 0xE0 == 0xA0 and code & 0x0F in _VARIABLE:
        content = _bytes(buffer, at, size)
        name = _VARIABLE[code & 0x0F]
        return Typed(name, content if name == "binary" else content.decode()), at + size
    if code not in (0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0):
        raise Unreadable(f"unknown type 0x{code:02x}")
    end = at + size
    if end > len(buffer):
        raise Unreadable(f"cut off at byte {len(buffer)}")
    count = struct.unpack_from(">I" if wide else ">B", buffer, at)[0]
    if count > len(buffer):
        raise Unreadable(f"{count} elements in {len(buffer)} bytes")
    at += 4 if wide else 1
    items, last = _items(buffer, at, count, depth + 1, array=code in (0xE0, 0xF0))
    if last != end:  # else what is beyond would be read again, by each value that this one is in
        raise Unreadable(f"{size} bytes of a value are {size + last - end}")
    if code in (0xE0, 0xF0):
        return Typed("array", items), end
    if code in (0xC1, 0xD1):
        return Typed("map", list(zip(items[::2], items[1::2], strict=False))), end
    return Typed("list", items), end


def _items(buffer: bytes | memoryview, at: int, count: int, depth: int, *, array: bool) -> tuple[list[Typed], int]:
    """So many values from ``at`` on, and the place after them."""
    if depth > _MAX_DEPTH:
        raise Unreadable(f"nested deeper than {_MAX_DEPTH}")
    code, descriptor = 0, None
    if array and count:  # one constructor for all
        code = buffer[at]
        at += 1
        if code == 0:
            descriptor, at = _read(buffer, at, depth)
            code = buffer[at]
            at += 1
    items = []
    for _ in range(count):
        value, at = _content(buffer, at, code, depth) if array else _read(buffer, at, depth)
        items.append(Typed("described", (descriptor, value)) if descriptor is not None else value)
    return items, at


def _bytes(buffer: bytes | memoryview, at: int, size: int) -> bytes:
    content = bytes(buffer[at : at + size])
    if len(content) < size:
        raise Unreadable(f"cut off at byte {len(buffer)}")
    return content


def decimal128(content: bytes) -> Decimal:
    """The number in the 16 bytes of a decimal128."""
    high, low = struct.unpack(">QQ", content)
    exponent = (high >> 49 & 0x3FFF) - 6176
    digits = (high & ((1 << 49) - 1)) << 64 | low
    return Decimal((high >> 63, tuple(map(int, str(digits))), exponent))


class Section(NamedTuple):
    """One section of a message; ``value`` is None where its bytes are cut off."""

    code: int
    value: Typed | None
    type: str  # of the value; of texts and binaries known also where they are cut off
    raw: bytes  # the value as it is encoded
    end: int  # the place after it; of one that is cut off, where its value begins


def sections(payload: bytes | memoryview) -> Iterator[Section]:
    """The sections of an encoded message, as far as ``payload`` has them: it may be the first of several frames."""
    at = 0
    while at < len(payload):
        if payload[at] != 0:
            raise Unreadable(f"no section at byte {at}")
        code, start = read(payload, at + 1)
        try:
            value, at = read(payload, start)
        except Unreadable:
            kind = payload[start] if start < len(payload) else 0x40
            yield Section(
                int(code.value), None, _VARIABLE.get(kind & 0x0F, "") if kind & 0xE0 == 0xA0 else "", b"", start
            )
            return
        yield Section(int(code.value), value, value.type, bytes(payload[start:at]), at)


# --- as headers --------------------------------------------------------------------------------------------


def to_header(name: str, typed: Typed) -> Header:
    """An application property as a header: the value as text, binary as bytes."""
    if typed.type == "described":
        descriptor, inner = typed.value
        shown = to_header(name, inner)
        return Header(name, f"{descriptor.value}/{shown.type}", shown.value)
    return Header(name, typed.type, typed.value if typed.type == "binary" else to_text(typed))


def to_text(typed: Typed) -> str:
    """A simple value as text; :func:`from_text` is the inverse."""
    match typed.type:
        case "null":
            return ""
        case "boolean":
            return "true" if typed.value else "false"
        case "binary" | "decimal32" | "decimal64":
            return bytes(typed.value).hex()
        case "char":
            return chr(typed.value) if typed.value < 0x110000 else ""
        case _:
            return str(typed.value)


def from_text(kind: str, text: str) -> Typed:
    """The value of type ``kind`` that ``text`` says; raises ValueError where it says none."""
    match kind:
        case "null":
            return Typed("null", None)
        case "boolean":
            if text not in ("true", "false"):
                raise ValueError(f"{text!r} is neither true nor false")
            return Typed("boolean", text == "true")
        case "float" | "double":
            return Typed(kind, float(text))
        case "decimal128":
            return Typed(kind, Decimal(text))
        case "uuid":
            return Typed(kind, uuid.UUID(text))
        case "binary" | "decimal32" | "decimal64":
            return Typed(kind, bytes.fromhex(text))
        case "symbol":
            return Typed(kind, text)
        case _ if kind in _INTEGERS:
            return Typed(kind, int(text))
        case "char" if len(text) == 1:
            return Typed(kind, ord(text))
        case _:
            return Typed(STRING, text)


def from_header(header: Header) -> Typed:
    """A header as an application property; types of other brokers become AMQP's nearest.

    Raises ValueError where the value does not fit its type.
    """
    descriptor, slash, kind = header.type.rpartition("/")
    if slash:
        return Typed("described", (Typed("symbol", descriptor), from_header(Header(header.name, kind, header.value))))
    if isinstance(header.value, bytes):
        return Typed("binary", header.value)
    try:
        if kind == "Number" or kind.startswith("Number."):
            whole = header.value.lstrip("+-").isdecimal()
            return Typed("long", int(header.value)) if whole else Typed("double", float(header.value))
        return from_text(kind, header.value)
    except (ValueError, ArithmeticError):
        raise ValueError(f"property {header.name}: {header.value[:40]!r} is no {header.type}") from None


def objections_to_headers(headers: Sequence[Header]) -> Iterator[str]:
    """What Service Bus has against these application properties together."""
    if len({header.name for header in headers}) < len(headers):
        yield "two application properties have the same name; Service Bus keeps one of each"
    size = sum(len(header.name.encode()) + len(_value_bytes(header)) for header in headers)
    if size > MAX_PROPERTY_BYTES:
        last = headers[-1].name[:100]
        yield (
            f"{size} bytes of application properties, {last!r} the last; Service Bus takes at most {MAX_PROPERTY_BYTES}"
        )


def refuses_headers(headers: Sequence[Header]) -> str | None:
    """Why Service Bus won't take these application properties as a person wrote them; None if it will."""
    for header in headers:
        kind = header.type.rpartition("/")[2]
        if kind not in _WRITTEN and not kind.startswith("Number."):
            return f"property {header.name}: {header.type[:40]!r} is no type; there are {', '.join(sorted(_WRITTEN))}"
        if kind == "char" and len(header.value) != 1:
            return f"property {header.name} is of type char: it is one character"
        try:
            _in_range(from_header(header))
        except ValueError as error:
            return str(error)
        except (struct.error, OverflowError):
            return f"property {header.name}: {str(header.value)[:40]!r} is no {kind}"
    return next(objections_to_headers(headers), None)


def _in_range(typed: Typed) -> None:
    """Raises struct.error or OverflowError for a number that its type can't hold."""
    if typed.type in _INTEGERS | {"float"}:
        forms = (form for name, form in _FIXED.values() if name == typed.type)
        struct.pack(max(forms, key=struct.calcsize), typed.value)


def _value_bytes(header: Header) -> bytes:
    return header.value if isinstance(header.value, bytes) else header.value.encode("utf-8", "surrogatepass")


# --- for the SDK --------------------------------------------------------------------------------------------

_SDK_NAMES = {STRING: "STRING", "boolean": "BOOL"}


class Encoded(list[Any]):
    """A value that is encoded already, as an SDK message can carry it (see :mod:`redrive.brokers.service_bus.links`).

    A list, because that is the only thing that the SDK takes for a sequence body without a look at it.
    """

    def __init__(self, raw: bytes) -> None:
        super().__init__()
        self.raw = raw

    def __bool__(self) -> bool:
        return True  # the SDK leaves out what is falsy


def for_sdk(typed: Typed) -> Any:
    """A property's value in the form in which the SDK's encoder takes a value with its type."""
    match typed.type:
        case "null":
            return None
        case "char":
            return {"TYPE": None, "VALUE": Encoded(b"\x73" + struct.pack(">I", typed.value))}
        case "decimal32" | "decimal64":
            code = next(code for code, (name, _) in _OPAQUE.items() if name == typed.type)
            return {"TYPE": None, "VALUE": Encoded(bytes([code]) + typed.value)}
        case "described":
            value: Any = (for_sdk(typed.value[0]), for_sdk(typed.value[1]))
        case _:
            value = typed.value
    return {"TYPE": _SDK_NAMES.get(typed.type, typed.type.upper()), "VALUE": value}
