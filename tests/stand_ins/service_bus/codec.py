"""AMQP 1.0 on the wire: values with their types, sections of a message, frames.

Only what a Service Bus client sends and wants to see. Decoded values keep their wire type (:class:`Symbol`,
:class:`UInt`, …), so what is decoded can be encoded again without loss.
"""

import struct
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

HEADER_SECTION = 0x70
DELIVERY_ANNOTATIONS = 0x71
ANNOTATIONS = 0x72
PROPERTIES = 0x73
APPLICATION_PROPERTIES = 0x74
DATA = 0x75
SEQUENCE = 0x76
VALUE = 0x77
FOOTER = 0x78


class Symbol(str):
    __slots__ = ()


class UByte(int):
    pass


class UShort(int):
    pass


class UInt(int):
    pass


class ULong(int):
    pass


class Byte(int):
    pass


class Short(int):
    pass


class Int(int):
    pass


class Long(int):
    pass


class Timestamp(int):
    """Milliseconds since the epoch."""


class Float(float):
    """32 bits; a plain ``float`` is a double."""


class Raw(NamedTuple):
    """A value of a type that needs no understanding here (decimals, characters), as it came."""

    code: int
    content: bytes


class Array(list):  # type: ignore[type-arg]
    """Values of one type."""


class Described(NamedTuple):
    descriptor: Any
    value: Any


class Section(NamedTuple):
    code: int
    value: Any
    raw: bytes


# --- values: fixed width ---------------------------------------------------------------------------------

_FIXED: dict[int, tuple[str, Callable[[Any], Any]]] = {
    0x50: (">B", UByte),
    0x51: (">b", Byte),
    0x52: (">B", UInt),
    0x53: (">B", ULong),
    0x54: (">b", Int),
    0x55: (">b", Long),
    0x56: (">B", bool),
    0x60: (">H", UShort),
    0x61: (">h", Short),
    0x70: (">I", UInt),
    0x71: (">i", Int),
    0x72: (">f", Float),
    0x80: (">Q", ULong),
    0x81: (">q", Long),
    0x82: (">d", float),
    0x83: (">q", Timestamp),
}
_EMPTY: dict[int, Callable[[], Any]] = {
    0x40: lambda: None,
    0x41: lambda: True,
    0x42: lambda: False,
    0x43: lambda: UInt(0),
    0x44: lambda: ULong(0),
    0x45: list,
}
_WIDTHS_OF_RAW = {0x73: 4, 0x74: 4, 0x84: 8, 0x94: 16}
_ENCODE_FIXED: dict[type, tuple[int, str]] = {
    UByte: (0x50, ">B"),
    Byte: (0x51, ">b"),
    UShort: (0x60, ">H"),
    Short: (0x61, ">h"),
    UInt: (0x70, ">I"),
    Int: (0x71, ">i"),
    Float: (0x72, ">f"),
    ULong: (0x80, ">Q"),
    Long: (0x81, ">q"),
    int: (0x81, ">q"),
    float: (0x82, ">d"),
    Timestamp: (0x83, ">q"),
}


def decode(buffer: bytes, at: int = 0) -> tuple[Any, int]:
    """The value at ``at`` and where the next one begins."""
    code = buffer[at]
    at += 1
    if code == 0:
        descriptor, at = decode(buffer, at)
        value, at = decode(buffer, at)
        return Described(descriptor, value), at
    return _content(buffer, at, code)


def _content(buffer: bytes, at: int, code: int) -> tuple[Any, int]:
    if code in _EMPTY:
        return _EMPTY[code](), at
    if code in _FIXED:
        form, make = _FIXED[code]
        return make(struct.unpack_from(form, buffer, at)[0]), at + struct.calcsize(form)
    if code in _WIDTHS_OF_RAW:
        width = _WIDTHS_OF_RAW[code]
        return Raw(code, bytes(buffer[at : at + width])), at + width
    if code == 0x98:
        return uuid.UUID(bytes=bytes(buffer[at : at + 16])), at + 16
    wide = bool(code & 0x10)
    size = struct.unpack_from(">I" if wide else ">B", buffer, at)[0]
    at += 4 if wide else 1
    end = at + size
    if code & 0xE0 == 0xA0:  # variable width
        content = bytes(buffer[at:end])
        kind = code & 0x0F
        return (content if kind == 0 else content.decode() if kind == 1 else Symbol(content.decode())), end
    count = struct.unpack_from(">I" if wide else ">B", buffer, at)[0]
    at += 4 if wide else 1
    if code in (0xE0, 0xF0):
        return _array(buffer, at, count), end
    values = []
    for _ in range(count):
        value, at = decode(buffer, at)
        values.append(value)
    return (dict(zip(values[::2], values[1::2], strict=True)) if code in (0xC1, 0xD1) else values), end


def _array(buffer: bytes, at: int, count: int) -> Array:
    descriptor = None
    code = buffer[at]
    at += 1
    if code == 0:
        descriptor, at = decode(buffer, at)
        code = buffer[at]
        at += 1
    values = Array()
    for _ in range(count):
        value, at = _content(buffer, at, code)
        values.append(Described(descriptor, value) if descriptor is not None else value)
    return values


def encode(value: Any) -> bytes:
    """``value`` with its constructor; the inverse of :func:`decode`."""
    if value is None or isinstance(value, bool):
        return {None: b"\x40", True: b"\x41", False: b"\x42"}[value]
    if isinstance(value, Described):
        return b"\x00" + encode(value.descriptor) + encode(value.value)
    if isinstance(value, Raw):
        return bytes([value.code]) + value.content
    if type(value) is ULong and value < 256:  # descriptors: clients look for the short form
        return bytes([0x53, value])
    if type(value) in _ENCODE_FIXED:
        code, form = _ENCODE_FIXED[type(value)]
        return bytes([code]) + struct.pack(form, value)
    if isinstance(value, uuid.UUID):
        return b"\x98" + value.bytes
    if isinstance(value, Symbol):
        return _variable(0xA3, value.encode())
    if isinstance(value, str):
        return _variable(0xA1, value.encode())
    if isinstance(value, bytes | bytearray | memoryview):
        return _variable(0xA0, bytes(value))
    if isinstance(value, Array):
        return _encode_array(value)
    if isinstance(value, dict):
        parts = [encode(part) for pair in value.items() for part in pair]
        return _compound(0xD1, len(parts), b"".join(parts))
    if isinstance(value, list | tuple):
        return _compound(0xD0, len(value), b"".join(map(encode, value))) if value else b"\x45"
    raise TypeError(f"{type(value).__name__} has no AMQP type here")


def _variable(code: int, content: bytes) -> bytes:
    if len(content) < 256:
        return bytes([code, len(content)]) + content
    return bytes([code | 0x10]) + struct.pack(">I", len(content)) + content


def _compound(code: int, count: int, content: bytes) -> bytes:
    return bytes([code]) + struct.pack(">II", len(content) + 4, count) + content


def _encode_array(values: Array) -> bytes:
    if not values:
        return _compound(0xF0, 0, b"\x40")
    encoded = [_wide(value) for value in values]
    return _compound(0xF0, len(values), encoded[0][:1] + b"".join(one[1:] for one in encoded))


def _wide(value: Any) -> bytes:
    """In an array all values share one constructor, so each takes the wide one."""
    if type(value) is ULong:
        return b"\x80" + struct.pack(">Q", value)
    if isinstance(value, str):
        content = value.encode()
        return bytes([0xB3 if isinstance(value, Symbol) else 0xB1]) + struct.pack(">I", len(content)) + content
    return encode(value)


# --- messages ----------------------------------------------------------------------------------------------


def sections(message: bytes) -> Iterator[Section]:
    """The sections of an encoded message."""
    at = 0
    while at < len(message):
        described, end = decode(message, at)
        yield Section(int(described.descriptor), described.value, message[at:end])
        at = end


def section(code: int, value: Any) -> bytes:
    """One section, encoded."""
    return encode(Described(ULong(code), value))


# --- frames ------------------------------------------------------------------------------------------------

AMQP_FRAME, SASL_FRAME = 0, 1

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
ERROR = 0x1D
RECEIVED, ACCEPTED, REJECTED, RELEASED, MODIFIED = range(0x23, 0x28)
SASL_MECHANISMS, SASL_INIT, SASL_CHALLENGE, SASL_RESPONSE, SASL_OUTCOME = range(0x40, 0x45)


class Frame(NamedTuple):
    kind: int  # AMQP_FRAME or SASL_FRAME
    channel: int
    performative: int  # 0: an empty frame, which only keeps the connection alive
    fields: list[Any]
    payload: bytes

    def field(self, index: int, default: Any = None) -> Any:
        """A field, or ``default`` where it is null or left out."""
        value = self.fields[index] if index < len(self.fields) else None
        return default if value is None else value


def parse_frame(content: bytes) -> Frame:
    """``content`` is a frame without its first four bytes, which say how long it is."""
    offset, kind, channel = struct.unpack_from(">BBH", content)
    body = content[offset * 4 - 4 :]
    if not body:
        return Frame(kind, channel, 0, [], b"")
    described, end = decode(body)
    return Frame(kind, channel, int(described.descriptor), described.value, body[end:])


def make_frame(performative: int, fields: list[Any], *, channel: int = 0, kind: int = 0, payload: bytes = b"") -> bytes:
    body = encode(Described(ULong(performative), fields)) + payload
    return struct.pack(">IBBH", len(body) + 8, 2, kind, channel) + body
