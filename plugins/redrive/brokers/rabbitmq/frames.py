"""Frames on the wire: a connection of pika's that reads many deliveries fast, and frames of many messages at once.

pika would lose header types, so content headers are handed on undecoded; and it reads and writes frame by frame, three
for a message, which takes half of the time of publishing. Whatever else comes is left to pika.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pika
import pika.exceptions as amqp
from pika import frame, spec
from pika.adapters.select_connection import SelectConnection

#: Bytes of messages that are written, and read, at once.
TOGETHER = 128 * 1024

#: So many messages to one consumer are kept whatever their size; of more than that no more than so many bytes.
HARMLESS, TOO_MANY_BYTES = 100, 128 * 1024 * 1024

#: Frames: type, channel and size; of a content header also its class, weight and the size of the body.
_FRAME, _HEADER, _END, _BASIC = struct.Struct(">BHL"), struct.Struct(">BHLHHQ"), bytes([spec.FRAME_END]), 60
#: Of a delivery: what its payload begins with, up to the length of the consumer's tag; and tag and flags behind that.
_DELIVER, _TAG = spec.Basic.Deliver.INDEX.to_bytes(4, "big"), struct.Struct(">QB")


class RawProperties(pika.BasicProperties):  # type: ignore[misc]
    """A content header as it is on the wire, from its flags on."""

    def __init__(self, raw: bytes) -> None:
        super().__init__()
        self.raw = raw

    def encode(self) -> list[bytes]:
        """What pika puts into the frame behind class and body size."""
        return [self.raw]


class Delivery(NamedTuple):
    """One message as the broker delivered it."""

    tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    raw: bytes
    body: bytes


class Arrivals:
    """What came of a queue, in its order."""

    def __init__(self) -> None:
        self.kept: list[Delivery] = []
        self.spilled: list[int] = []  # tags of those behind them that were too much to keep: they have to go back


class Taker:
    """Takes the deliveries to one consumer; pika gets those that come in more than one body frame, and hands them on
    to :meth:`add`.

    All that is under way has to be read before anything else is heard. Where that is far more than was asked for,
    because those behind are so much larger than those before, what is too much is read and not kept.
    """

    def __init__(self, tag: str, arrivals: Arrivals) -> None:
        self.consumer = _DELIVER + bytes([len(tag)]) + tag.encode()
        self._count = self._bytes = 0  # of all that came
        self._arrivals = arrivals
        self._place = b""
        self._names = ("", "")

    def take(self, method: bytes, raw: bytes, body: bytes) -> bool:
        """Take a delivery: the payload of its method, its content header from the flags on, and its body; not where
        the names of exchange and routing key can't be read."""
        at = len(self.consumer)
        tag, redelivered = _TAG.unpack_from(method, at)
        place = method[at + _TAG.size :]
        if place != self._place:  # most often all messages of a queue came by the same way
            split = 1 + place[0]
            exchange, routing_key = place[1:split], place[split + 1 : split + 1 + place[split]]
            try:
                self._place, self._names = place, (exchange.decode(), routing_key.decode())
            except UnicodeDecodeError:
                return False
        self.add(Delivery(tag, bool(redelivered & 1), *self._names, raw, body))
        return True

    def add(self, delivery: Delivery) -> None:
        """One more came."""
        self._count += 1
        self._bytes += len(delivery.body)
        if self._bytes > TOO_MANY_BYTES and self._count > HARMLESS:
            self._arrivals.spilled.append(delivery.tag)
        else:
            self._arrivals.kept.append(delivery)


class Connection(SelectConnection):  # type: ignore[misc]
    """pika's connection, but content headers stay bytes, and whole deliveries go to who takes them."""

    _frame_buffer: bytes  # what came, and is not read yet

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.takers: dict[int, Taker] = {}  # by channel
        super().__init__(*arguments, **named)

    def read_together(self) -> None:
        """Read as much at once as is written at once; pika takes 4 KiB, three messages of 1 KiB."""
        if self._transport is not None:
            self._transport._MAX_RECV_BYTES = TOGETHER

    def write(self, frames: bytes) -> None:
        """Let whole frames go out when the connection is served next."""
        self._output_marshaled_frames([frames])

    def drop(self, error: BaseException) -> bool:
        """End without a word to the broker, because of ``error``; whether there was anything to end."""
        if self._transport is None:
            return False
        self._terminate_stream(error)
        return True

    def _on_data_available(self, data_in: bytes) -> None:
        """As pika does it, but without a copy of all the rest for each frame; a delivery is read at once."""
        data = self._frame_buffer + data_in if self._frame_buffer else data_in
        at = 0
        while at < len(data):
            end = self._take(data, at) if self.takers else at
            if end == at:
                end = _frame_end(data, at)
                if not end:
                    break
                self._frame_buffer = data[at:end]
                self._process_frame(self._read_frame()[1])
            elif end < 0:
                break
            self.bytes_received += end - at
            at = end
        self._frame_buffer = data[at:]

    def _take(self, data: bytes, at: int) -> int:
        """Where the delivery that begins at ``at`` ends, when it was taken; ``at`` where none begins that could be;
        -1: more of it has to come."""
        if len(data) - at < _FRAME.size:
            return -1
        kind, channel, size = _FRAME.unpack_from(data, at)
        end: int
        taker = self.takers.get(channel) if kind == spec.FRAME_METHOD else None
        method = at + _FRAME.size
        if taker is None or not data.startswith(taker.consumer, method):
            return at if taker is None or len(data) >= method + size else -1
        header = method + size + 1
        if len(data) < header + _HEADER.size:
            return -1
        kind, same, header_size, _, _, body_size = _HEADER.unpack_from(data, header)
        if kind != spec.FRAME_HEADER or same != channel or body_size >= TOGETHER:
            return at  # somebody else's frame came between, or the body is worth pika's way
        raw, body = header + _HEADER.size, header + _FRAME.size + header_size + 1
        end = body
        if body_size:
            if len(data) < body + _FRAME.size:
                return -1
            kind, same, size_here = _FRAME.unpack_from(data, body)
            if kind != spec.FRAME_BODY or same != channel or size_here != body_size:
                return at
            end = body + _FRAME.size + body_size + 1
        if len(data) < end:
            return -1
        if not data[header - 1] == data[body - 1] == data[end - 1] == spec.FRAME_END:
            return at  # pika says what is wrong
        if not taker.take(data[method : header - 1], data[raw : body - 1], data[body + _FRAME.size : end - 1]):
            return at
        self.frames_received += 3 if body_size else 2
        return end

    def _read_frame(self) -> tuple[int, Any]:
        data = self._frame_buffer
        if len(data) < 7 or data[0] != spec.FRAME_HEADER:
            return frame.decode_frame(data)  # type: ignore[no-any-return]
        channel, size = struct.unpack_from(">HL", data, 1)
        end = spec.FRAME_HEADER_SIZE + size + spec.FRAME_END_SIZE
        if end > len(data):
            return 0, None
        if data[end - 1] != spec.FRAME_END:
            raise amqp.InvalidFrameError("Invalid FRAME_END marker")
        (body_size,) = struct.unpack_from(">Q", data, spec.FRAME_HEADER_SIZE + 4)
        raw = bytes(data[spec.FRAME_HEADER_SIZE + 12 : end - 1])
        return end, frame.Header(channel, body_size, RawProperties(raw))


def _frame_end(data: bytes, at: int) -> int:
    """Where the frame that begins at ``at`` ends; 0: more of it has to come."""
    if data.startswith(b"AMQP", at):
        return at + 8 if len(data) >= at + 8 else 0
    if len(data) - at < _FRAME.size:
        return 0
    end = at + _FRAME.size + int(_FRAME.unpack_from(data, at)[2]) + 1
    return end if end <= len(data) else 0


def published(channel: int, messages: Sequence[tuple[str, bytes, bytes]], frame_max: int) -> Iterator[bytes]:
    """Frames that publish each (queue, content header, body) on ``channel`` through the default exchange to its queue
    alone, mandatory; in pieces of :data:`TOGETHER` bytes or a little more, the last one smaller."""
    most = frame_max - spec.FRAME_HEADER_SIZE - spec.FRAME_END_SIZE
    methods: dict[str, bytes] = {}
    frames: list[bytes] = []
    size = 0
    for queue, raw, body in messages:
        method = methods.get(queue)
        if method is None:
            publish = spec.Basic.Publish(exchange="", routing_key=queue, mandatory=True)
            method = methods[queue] = frame.Method(channel, publish).marshal()
        frames += method, _HEADER.pack(spec.FRAME_HEADER, channel, len(raw) + 12, _BASIC, 0, len(body)), raw, _END
        for start in range(0, len(body), most):
            part = body if len(body) <= most else body[start : start + most]
            frames += _FRAME.pack(spec.FRAME_BODY, channel, len(part)), part, _END
        size += len(method) + len(raw) + len(body)
        if size >= TOGETHER:
            yield b"".join(frames)
            frames, size = [], 0
    if frames:
        yield b"".join(frames)
