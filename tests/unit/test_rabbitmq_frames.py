"""Deliveries are read from the stream of bytes as pika reads them, wherever the network cuts it."""

from typing import Any

import pytest
from pika import frame, spec
from pika.channel import ContentFrameAssembler

from redrive.brokers.rabbitmq import frames
from redrive.brokers.rabbitmq.frames import Arrivals, Connection, Delivery, RawProperties, Taker

OURS, OTHERS, TAG = 3, 5, "ctag3.1"
RAW = b"\x10\x00\x02"  # a content header from its flags on: only a delivery mode
MOST = frames.TOGETHER


def _frames(number: int, size: int, *, tag: str = TAG, key: str = "orders-dlq") -> list[bytes]:
    method = spec.Basic.Deliver(tag, number, number % 2 == 1, "dead", key)
    body = bytes([number]) * size
    parts = [body[at : at + MOST] for at in range(0, size, MOST)]
    return [
        frame.Method(OURS, method).marshal(),
        frame.Header(OURS, size, RawProperties(RAW)).marshal(),
        *(frame.Body(OURS, part).marshal() for part in parts),
    ]


def _delivery(number: int, size: int, key: str = "orders-dlq") -> Delivery:
    return Delivery(number, number % 2 == 1, "dead", key, RAW, bytes([number]) * size)


class _Stream:
    """The connection of a link without a socket; what it leaves to pika, pika puts together."""

    def __init__(self) -> None:
        self._arrivals = Arrivals()
        self.found = self._arrivals.kept
        self.left: list[Any] = []  # frames that pika got
        self._assembler = ContentFrameAssembler()
        self._connection = Connection.__new__(Connection)
        self._connection._frame_buffer = b""
        self._connection.bytes_received = self._connection.frames_received = 0
        self._connection.takers = {OURS: Taker(TAG, self._arrivals)}
        self._connection._process_frame = self._pika

    def _pika(self, one: Any) -> None:
        self.left.append(one)
        if one.channel_number != OURS or isinstance(one, frame.Heartbeat):
            return
        done = self._assembler.process(one)
        if done:
            method, header, body = done[0].method, done[1], done[2]
            if method.consumer_tag == TAG:
                self.found.append(
                    Delivery(
                        method.delivery_tag,
                        method.redelivered,
                        method.exchange,
                        method.routing_key,
                        header.properties.raw,
                        body,
                    )
                )

    def feed(self, data: bytes, step: int) -> int:
        for at in range(0, len(data), step):
            self._connection._on_data_available(data[at : at + step])
        assert self._connection._frame_buffer == b""
        return int(self._connection.bytes_received)


@pytest.mark.parametrize("step", [1, 2, 7, 19, 4096, 1 << 20])
def test_deliveries_are_the_same_wherever_the_stream_is_cut(step: int) -> None:
    heartbeat = frame.Heartbeat().marshal()
    ack = frame.Method(OTHERS, spec.Basic.Ack(7, True)).marshal()
    method, header, body = _frames(6, 300)
    parts = [
        *_frames(1, 0),
        heartbeat,
        *_frames(2, 5),
        *_frames(3, 1000, key="orders-dlq-2"),
        ack,
        *_frames(4, 10, tag="ctag3.0"),  # of a consumer that is gone: pika's to give back
        *_frames(5, 1024),
        *(method, ack, header, body),  # another channel's frame between the parts of one delivery
        *_frames(7, 40),
    ]
    stream = _Stream()

    received = stream.feed(b"".join(parts), step)

    expected = [_delivery(1, 0), _delivery(2, 5), _delivery(3, 1000, "orders-dlq-2"), _delivery(5, 1024)]
    assert stream.found == [*expected, _delivery(6, 300), _delivery(7, 40)]
    assert received == sum(map(len, parts))
    left = [getattr(one, "method", one).NAME for one in stream.left]
    assert left.count("Basic.Deliver") == 2, "those that pika has to see, and no others"
    assert left.count("Basic.Ack") == 2


@pytest.mark.parametrize("size", [MOST - 1, MOST, 2 * MOST + 1])
def test_a_large_body_is_put_together_by_pika(size: int) -> None:
    stream = _Stream()

    stream.feed(b"".join([*_frames(1, size), *_frames(2, 3)]), 4096)

    assert stream.found == [_delivery(1, size), _delivery(2, 3)]
    assert bool(stream.left) == (size >= MOST)


def test_a_frame_without_its_end_is_refused() -> None:
    method, header, body = _frames(1, 10)
    with pytest.raises(frames.amqp.InvalidFrameError):
        _Stream().feed(method + header + body[:-1] + b"\x00", 4096)
