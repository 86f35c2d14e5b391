"""Receives from topics, holds by our own clock, acks, gives back.

Pulsar has no leases: what a consumer holds comes back when its connection ends. So the end of each lease is kept here,
and what ran out is given back at the next call. Acks travel grouped and without an answer; a settle waits until they
were sent, and then for an answer on the same connection, which can't overtake them.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import pulsar

from redrive.brokers.base import RECEIVE_BYTES, Settled
from redrive.brokers.pulsar.connection import LazyClient, Place, close_quietly
from redrive.brokers.pulsar.errors import known_error
from redrive.brokers.pulsar.message import BATCH, id_text, letter
from redrive.brokers.pulsar.topics import Topics
from redrive.message import Received

#: Patience, in seconds, with a subscription that was just made or was just given something back, and between two
#: messages. A wait is cut into steps.
_FIRST, _NEXT = 0.3, 0.05
_STEP = 0.5
#: Acks are sent every 100 ms. Where no answer can be had behind them, a margin takes its place.
_ACK_SENT, _ACK_SURE = 0.12, 0.3


class _Held(NamedTuple):
    """A message that is ours until ``until``, on our clock."""

    id: Any
    until: float
    text: str


class _Reader:
    """Our consumer on one queue, and what it holds."""

    def __init__(self, consumer: Any, expects_until: float) -> None:
        self.consumer = consumer
        self.expects_until = expects_until  # messages are on their way: it was just made, or given something back
        self.held: dict[object, _Held] = {}
        self.texts: set[str] = set()


class Receiver:
    """Our consumers, one per queue that is received from, and what they hold."""

    def __init__(
        self,
        place: Place,
        topics: Topics,
        client: LazyClient,
        *,
        sleep: Callable[[float], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._place = place
        self._topics = topics
        self._client = client
        self._sleep = sleep
        self._monotonic = monotonic
        self._readers: dict[str, _Reader] = {}
        self._late: dict[object, str] = {}  # receipts that no longer hold, and why
        self._receipts = itertools.count(1)

    def receive(self, queue: str, *, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:
        """See :class:`~redrive.brokers.base.Broker`.

        The first message is waited for, the following ones only as long as they keep coming, and until they are large
        enough together; a quarter of the lease at most. An error after some messages have come is kept back: the next
        call will meet it again.
        """
        if limit < 1:
            return []
        reader = self._reader(queue, limit)
        self._give_back_expired(reader)
        began = self._monotonic()
        patience = max(_FIRST if began < reader.expects_until else _NEXT, wait.total_seconds())
        found, size = list[Received](), 0
        until = began + max(patience, lease.total_seconds() / 4)
        while len(found) < limit and size < RECEIVE_BYTES and self._monotonic() < until:
            try:
                message = self._next(reader.consumer, _NEXT if found else patience)
            except pulsar.PulsarException as error:
                self._forget_reader(queue)
                if found:
                    break
                raise known_error("receive", queue, error, self._place.service) from error
            if message is None:
                break
            text = id_text(message.message_id())
            if text in reader.texts:  # after a reconnect everything unacked comes again; we hold it already
                continue
            receipt = next(self._receipts)
            reader.held[receipt] = _Held(message.message_id(), self._monotonic() + lease.total_seconds(), text)
            reader.texts.add(text)
            found.append(Received(letter(message, self._topics.origin), receipt))
            size += len(found[-1].letter.body)
        return found

    def settle(self, queue: str, receipts: Sequence[object]) -> Settled:
        """See :class:`~redrive.brokers.base.Broker`; returns when the broker has the acks."""
        if not receipts:
            return Settled(0)
        reader = self._readers.get(queue)
        if reader is None:
            self._topics.full(queue)
        failures = [(receipt, self._late[receipt]) for receipt in receipts if receipt in self._late]
        if reader is not None:
            self._give_back_expired(reader, among=receipts)
            failures = [(receipt, self._late[receipt]) for receipt in receipts if receipt in self._late]
            ours = [receipt for receipt in receipts if receipt in reader.held]
            failures += self._acknowledge(queue, reader, ours)
        return Settled(len(receipts) - len(failures), tuple(failures))

    def release(self, queue: str, receipts: Sequence[object]) -> None:
        """See :class:`~redrive.brokers.base.Broker`; they come back within some tenths of a second."""
        if not receipts:
            return
        reader = self._readers.get(queue)
        if reader is None:
            self._topics.full(queue)
            return
        self._give_back(reader, [r for r in receipts if r in reader.held], "it was released")

    def extend(self, queue: str, receipts: Sequence[object], lease: timedelta) -> None:
        """See :class:`~redrive.brokers.base.Broker`; what is no longer ours is left alone."""
        if not receipts:
            return
        reader = self._readers.get(queue)
        if reader is None:
            self._topics.full(queue)
            return
        self._give_back_expired(reader, among=receipts)
        until = self._monotonic() + lease.total_seconds()
        for receipt in receipts:
            if receipt in reader.held:
                reader.held[receipt] = reader.held[receipt]._replace(until=until)

    def close(self) -> None:
        """Close our consumers; acks that were not sent yet go first, and what is held comes back at once."""
        for reader in self._readers.values():
            close_quietly(reader.consumer)
        self._readers.clear()

    def _next(self, consumer: Any, patience: float) -> Any:
        """The next message; None after ``patience`` seconds. Waits in steps, between which signals are heard."""
        until = self._monotonic() + patience
        while True:
            step = min(_STEP, until - self._monotonic())
            try:
                return consumer.receive(max(1, math.ceil(1000 * step)))
            except pulsar.Timeout:
                if self._monotonic() >= until:
                    return None

    def _reader(self, queue: str, limit: int) -> _Reader:
        """Our consumer on ``queue``; subscribed from the earliest message on if nobody was yet."""
        reader = self._readers.get(queue)
        if reader is None:
            topic = self._topics.full(queue)
            size = min(max(limit, 1), BATCH)
            try:
                consumer = self._client.get().subscribe(
                    topic,
                    self._topics.subscription(queue, topic),
                    consumer_type=pulsar.ConsumerType.Shared,
                    initial_position=pulsar.InitialPosition.Earliest,
                    receiver_queue_size=size,
                    max_total_receiver_queue_size_across_partitions=size,
                    negative_ack_redelivery_delay_ms=100,
                    batch_index_ack_enabled=True,
                )
            except pulsar.PulsarException as error:
                raise known_error("subscribe", queue, error, self._place.service) from error
            reader = self._readers[queue] = _Reader(consumer, self._monotonic() + 2 * _FIRST)
        return reader

    def _acknowledge(self, queue: str, reader: _Reader, receipts: Sequence[object]) -> list[tuple[object, str]]:
        try:
            for receipt in receipts:
                reader.consumer.acknowledge(reader.held[receipt].id)
            if receipts:
                self._sleep(_ACK_SENT)
                self._wait_for_broker(reader.consumer)
        except pulsar.PulsarException as error:
            # They may be settled or may come again: then they are recognised.
            words = str(known_error("acknowledge", queue, error, self._place.service))
            self._forget_reader(queue)
            return [(receipt, words) for receipt in receipts]
        for receipt in receipts:
            reader.texts.discard(reader.held.pop(receipt).text)
        return []

    def _wait_for_broker(self, consumer: Any) -> None:
        """Return when the broker has worked off what was sent to it before."""
        if not consumer.is_connected():
            raise pulsar.NotConnected("the connection was lost before the acks")
        try:
            consumer.get_last_message_id()
        except pulsar.OperationNotSupported:  # a partitioned topic has several connections
            self._sleep(_ACK_SURE)

    def _give_back_expired(self, reader: _Reader, among: Iterable[object] | None = None) -> None:
        now = self._monotonic()
        candidates = reader.held if among is None else [receipt for receipt in among if receipt in reader.held]
        expired = [receipt for receipt in candidates if reader.held[receipt].until <= now]
        self._give_back(reader, expired, "its lease ran out")

    def _give_back(self, reader: _Reader, receipts: Sequence[object], why: str) -> None:
        if receipts:
            reader.expects_until = self._monotonic() + 2 * _FIRST
        for receipt in receipts:
            held = reader.held.pop(receipt)
            reader.texts.discard(held.text)
            self._late[receipt] = why
            try:
                reader.consumer.negative_acknowledge(held.id)
            except pulsar.PulsarException:
                pass  # no connection: then it comes back by itself

    def _forget_reader(self, queue: str) -> None:
        """Close our consumer; what it held comes back at once, to whoever asks."""
        reader = self._readers.pop(queue, None)
        if reader is None:
            return
        self._late.update(dict.fromkeys(reader.held, "the connection was lost: it may come again"))
        close_quietly(reader.consumer)
