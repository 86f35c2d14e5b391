"""RabbitMQ's AMQP link over a simulated system: channels, deliveries, acks and confirms, with headers on the wire.

Content headers are written and read by pika, which shares no code with the adapter. Without the management API the
depth tells what is ready and nothing more; with it (``rabbitmq_managed``) also what a node measured of its queues some
seconds ago. A client whose messages went to others finds its connection closed.
"""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pika

from redrive.brokers.rabbitmq.adapter import RabbitMQ
from redrive.brokers.rabbitmq.frames import Arrivals, Delivery, Taker
from redrive.brokers.rabbitmq.management import Management
from redrive.errors import BrokerError, BrokerUnavailable, QueueMissing
from tests.simulation.world import Copy, System
from tests.simulation.world.systems import Header

TRAITS: dict[str, object] = {
    "depth": "unknown",
    "ids": "none",
    "death_times": True,
    "tells_origin": True,
    "tells_reason": True,
    "ordered": False,
    "shuffles": False,
    "dedupe": None,
    "max_headers": None,
    "publish_batch": 1,
    "native_delay": None,
    "subscribers": 1,
}
#: With the management API, whose numbers are as old as this, in seconds.
MEASURED = 5
MANAGED_TRAITS = TRAITS | {"depth": "late", "lag": MEASURED}
#: RabbitMQ notices that a client is gone when its heartbeats stop.
HEARTBEAT = 120.0
_DELAY = "redrive.delay."
_REASONS = {"MaxDeliveryCountExceeded": "delivery_limit"}


def connect(system: System) -> RabbitMQ:
    """The real adapter, on such a link."""
    return RabbitMQ(Node(system), monotonic=system.world.clock.monotonic)


def connect_managed(system: System) -> RabbitMQ:
    """The same, with the management API."""
    return RabbitMQ(Node(system), management=Measured(system), monotonic=system.world.clock.monotonic)


class Node:
    """Where the adapter's links come from: one simulated node, tried once."""

    user = "guest"

    def __init__(self, system: System) -> None:
        self._system = system

    def open(self, subject: str) -> Any:
        if self._system.fate("connect") == "down":
            raise BrokerUnavailable(f"{subject}: no connection")
        return Link(self._system)


class Measured(Management):
    """The management API's answers; consumers and connections are not among them."""

    def __init__(self, system: System) -> None:
        super().__init__("http://simulated", "/", "guest", "guest", context=None, timeout=1)
        self._system = system

    def _get(self, path: str, queue: str) -> Any:
        if path.startswith("overview"):
            return {"rabbitmq_version": "4.0.5"}
        if queue:
            if not self._system.exists(queue):
                raise QueueMissing(f"queue {queue} does not exist")
            return self._told(queue)
        return [self._told(name) for name in self._system.queues]

    def _patiently(self, path: str, queue: str, what: str = "") -> Any:
        return [] if what == "channels" else {"consumer_details": []}

    def _told(self, name: str) -> dict[str, Any]:
        queue = self._system._at(name)
        then = self._system.world.clock.now - MEASURED * 1_000_000
        before = [entry for entry in queue.history if entry[0] <= then]
        _, ready, unacked, _ = before[-1] if before else (0, 0, 0, 0)
        arguments: dict[str, Any] = {}
        if queue.dead_letters:
            arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue.dead_letters}
        return {
            "name": name,
            "type": "classic",
            "arguments": arguments,
            "messages_ready": ready,
            "messages_unacknowledged": unacked,
            "consumer_details": [],
        }


class Link:
    """See :class:`redrive.brokers.rabbitmq.link.Link`."""

    timeout = 30.0
    blocked = False
    frame_max = 131_072

    def __init__(self, system: System) -> None:
        self.system = system
        self.error: BaseException | None = None
        self.channels: list[Channel] = []
        self.words: list[Callable[[], None]] = []

    @property
    def is_open(self) -> bool:
        return self.error is None

    def wait(self, until: Callable[[], bool], seconds: float) -> bool:
        while self.words and not until():
            self.words.pop(0)()
        if not until() and self.error is None:
            self.system.world.clock.sleep(seconds)
            for channel in self.channels:
                channel.bring()
        return until()

    def serve(self) -> None:
        """Nothing comes by itself."""

    def channel(self) -> "Channel":
        made = Channel(self)
        self.channels.append(made)
        return made

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        """What is unacked goes back at once."""
        if self.error is None:
            self.error = pika.exceptions.StreamLostError("simulated")
        self.words.clear()
        for channel in self.channels:
            channel.give_back()


class Consumer(NamedTuple):
    """Who gets deliveries."""

    queue: str
    prefetch: int
    taker: Taker
    first: int  # tag


class Channel:
    """See :class:`redrive.brokers.rabbitmq.link.Channel`."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.reason: BaseException | None = None
        self.published = 0
        self._tag = 0
        self.cancelled: set[str] = set()
        self._held: dict[int, tuple[str, int]] = {}  # tag -> queue, receipt
        self._consumer: Consumer | None = None
        self._word: Callable[[int, bool, bool], None] | None = None
        self._return: Callable[[int, str, bytes, bytes], None] | None = None

    @property
    def is_open(self) -> bool:
        return self.reason is None and self.link.is_open

    def count(self, queue: str, action: str) -> tuple[int, int]:
        self._alive(f"{action} on queue {queue}")
        if queue.startswith(_DELAY):
            return 0, 0
        self._exists(queue, action)
        if self.link.system.fate("depth") in ("down", "error"):
            self._break(f"{action} on queue {queue}")
        # Of its traits a system tells no depth here; what is ready AMQP counts all the same.
        return len(self.link.system._at(queue).ready), 0

    known_count = count  # no leader hangs here, however slow this machine is

    def declare(self, queue: str, arguments: dict[str, object]) -> None:
        self._alive(f"queue.declare on queue {queue}")

    def subscribe(self, queue: str, prefetch: int, arrivals: Arrivals) -> str:
        system, subject = self.link.system, f"basic.consume on queue {queue}"
        self._alive(subject)
        self._exists(queue, "basic.consume")
        fate = system.fate("receive")
        if fate in ("down", "error", "retry"):
            self._break(subject)
        self._consumer = Consumer(queue, prefetch, Taker("consumer", arrivals), self._tag + 1)
        self.bring()
        if fate == "lost":
            self._break(subject)
        return "consumer"

    def unsubscribe(self, queue: str, tag: str | None) -> None:
        self._alive(f"basic.cancel on queue {queue}")
        self._consumer = None

    def leave(self, tag: str | None) -> None:
        self._consumer = None

    def bring(self) -> None:
        """What may be unacked at the consumer comes to it."""
        one = self._consumer
        if one is None or not self.is_open or not self.link.system.exists(one.queue):
            return
        unacked = sum(1 for tag in self._held if tag >= one.first)
        for copy, receipt in self.link.system.receive(one.queue, one.prefetch - unacked, HEARTBEAT, by="redrive"):
            self._tag += 1
            self._held[self._tag] = (one.queue, receipt)
            one.taker.add(Delivery(self._tag, copy.redelivered, "", one.queue, content_header(copy), copy.body))

    def ack(self, tag: int, *, multiple: bool) -> None:
        self._finish(tag, multiple, "settle")

    def requeue(self, tag: int, *, multiple: bool) -> None:
        self._finish(tag, multiple, "release")

    def reject(self, tag: int) -> None:
        raise NotImplementedError("drains don't reject")

    def confirm(
        self, on_word: Callable[[int, bool, bool], None], on_return: Callable[[int, str, bytes, bytes], None]
    ) -> None:
        self._word, self._return = on_word, on_return

    def publish(self, messages: Sequence[tuple[str, bytes, bytes]]) -> None:
        """One after the other: see :meth:`_one`."""
        for queue, raw, body in messages:
            self._one(queue, raw, body)

    def _one(self, queue: str, raw: bytes, body: bytes) -> int:
        """Confirmed, nacked or returned when somebody waits; after a link is lost, nobody says anything."""
        self.published += 1
        tag, link, system = self.published, self.link, self.link.system
        if not self.is_open:
            return tag
        word, back = self._word, self._return
        assert word is not None  # it publishes in confirm mode
        assert back is not None
        target, delay = queue, 0.0
        if queue.startswith(_DELAY):
            seconds, _, target = queue.removeprefix(_DELAY).partition(".")
            delay = float(seconds)
        if not system.exists(target):
            link.words.append(lambda: back(312, "NO_ROUTE", raw, body))
            link.words.append(lambda: word(tag, False, True))
            return tag
        fate = system.fate("publish")
        if fate in ("error", "down"):
            link.error = pika.exceptions.StreamLostError("simulated")
            return tag
        if fate == "retry":  # the node that has the queue is away, so nothing leads there
            changed = stamped(raw) if system.world.dice.random() < 0.5 else raw
            link.words.append(lambda: back(312, "NO_ROUTE", changed, body))
            link.words.append(lambda: word(tag, False, True))
            return tag
        if fate in ("refused", "part"):
            link.words.append(lambda: word(tag, False, False))
            return tag
        fields = pika.BasicProperties().decode(raw)
        system.send(
            target,
            body,
            headers_of(fields.headers or {}),
            by="redrive",
            publisher_id=fields.message_id or "",
            content_type=fields.content_type,
            delay=delay,
            enqueued_at=None if fields.timestamp is None else int(fields.timestamp) * 1_000_000,
            known=fate == "ok",
        )
        if fate == "lost" and system.world.dice.random() < 0.5:
            link.error = pika.exceptions.StreamLostError("simulated")
        else:  # a nack: the queue broke after it had taken the message
            link.words.append(lambda: word(tag, False, fate != "lost"))
        return tag

    def close(self) -> None:
        self.reason = self.reason or pika.exceptions.ChannelClosedByClient(200, "closed")
        self.give_back()

    def give_back(self) -> None:
        """What it holds returns to its queues."""
        for queue, receipt in reversed(self._held.values()):
            self.link.system.release(queue, [receipt], by="redrive")
        self._held.clear()

    def _finish(self, tag: int, multiple: bool, what: str) -> None:
        if not self.is_open:
            return
        system = self.link.system
        tags = [one for one in self._held if one <= tag] if multiple else [tag]
        fate = system.fate(what)
        if fate in ("error", "down", "retry"):
            self.link.abort()
            return
        held = [self._held.pop(one) for one in tags if one in self._held]
        late = False
        for queue, receipt in held if what == "settle" else reversed(held):
            if what == "settle":
                late = bool(system.settle(queue, [receipt], by="redrive")) or late
            else:
                system.release(queue, [receipt], by="redrive")
        if fate == "lost" or late:
            self.link.abort()
        self.bring()

    def _alive(self, subject: str) -> None:
        if not self.is_open:
            raise BrokerUnavailable(f"{subject}: the connection is lost")

    def _exists(self, queue: str, action: str) -> None:
        if not self.link.system.exists(queue):
            self.reason = pika.exceptions.ChannelClosedByBroker(404, "NOT_FOUND")
            raise QueueMissing(f"{action} on queue {queue}: 404 NOT_FOUND")

    def _break(self, subject: str) -> None:
        self.link.abort()
        problem: BrokerError = BrokerUnavailable(f"{subject}: the connection is lost")
        raise problem


def content_header(copy: Copy) -> bytes:
    """What the broker hands over with a copy, as bytes on the wire, with the story of its death."""
    headers: dict[str, Any] = {name: _value(kind, value) for name, kind, value in copy.headers}
    if copy.failed_at is not None and copy.died_at is not None and copy.origin is not None:
        reason = _REASONS.get(copy.reason or "", "rejected")
        death = {
            "count": 1,
            "reason": reason,
            "queue": copy.origin,
            "time": datetime.fromtimestamp(copy.died_at // 1_000_000, UTC),
            "exchange": "",
            "routing-keys": [copy.origin],
        }
        before = headers.get("x-death")
        headers["x-death"] = [death, *(before if isinstance(before, list) else [])]
        headers.setdefault("x-first-death-queue", copy.origin)
        headers.setdefault("x-first-death-reason", reason)
        headers.setdefault("x-first-death-exchange", "")
    told = headers.get("x-told-enqueued")  # in whatever unit its producer has
    fields = pika.BasicProperties(
        headers=headers or None,
        delivery_mode=2,
        message_id=copy.publisher_id[:255] or None,
        content_type=copy.content_type,
        timestamp=min(int(told), 2**62)
        if str(told or "").isdigit()
        else copy.enqueued_at // 1_000_000
        if copy.publisher_id
        else None,
    )
    return b"".join(fields.encode())


def stamped(raw: bytes) -> bytes:
    """A content header as a plugin of the broker's makes it that writes down when it was published."""
    fields = pika.BasicProperties().decode(raw)
    fields.headers = {**(fields.headers or {}), "timestamp_in_ms": 1_760_000_000_000}
    return b"".join(fields.encode())


def headers_of(table: dict[str, Any]) -> tuple[Header, ...]:
    """A table of headers as the world keeps it."""
    found: list[Header] = []
    for name, value in table.items():
        if isinstance(value, bytes):
            found.append((name, "binary", value))
        elif isinstance(value, bool):
            found.append((name, "bool", "true" if value else "false"))
        elif isinstance(value, int):
            found.append((name, "long", str(value)))
        elif isinstance(value, str):
            found.append((name, "longstr", value))
        else:
            found.append((name, "json", json.dumps(value, default=str)))
    return tuple(found)


def _value(kind: str, value: str | bytes) -> Any:
    """A header's value as pika takes it; ``json`` becomes tables and arrays, as a forged ``x-death`` has them."""
    if isinstance(value, bytes):
        return value
    if kind == "json":
        return json.loads(value)
    if kind == "bool":
        return value == "true"
    if kind.startswith(("long", "Number")) and value.isascii() and value.lstrip("-").isdigit():
        number = int(value)
        return number if -(2**63) <= number < 2**63 else value
    return value
