"""Apache Pulsar.

Sources are topics, most of all the dead-letter topics that client libraries write (``<topic>-<subscription>-DLQ``);
they are read through a Shared subscription of our own whose name is stable. Destinations are topics. Both are named
by their short name, which stands for the connection's tenant and namespace, or in full (``persistent://…``).

Pulsar has no leases: what a consumer holds comes back when its connection ends. So the adapter keeps the end of each
lease by its own clock, and gives back what ran out at the next call. Acks travel grouped and without an answer; a
settle waits until they were sent, and then for an answer on the same connection, which can't overtake them.

The client library sends what was not confirmed again when a connection comes back. Only a topic with deduplication
drops such a repetition; on any other the producer is closed at once when its connection is lost, and what was under
way is ``unknown``.
"""

import itertools
import math
import os
import queue as queues
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Self

import pulsar
from _pulsar import SchemaInfo, SchemaType

from redrive.brokers.base import UNKNOWN_DEPTH, Capabilities, ConsumerStats, Depth, Publication, QueueInfo, Settled
from redrive.brokers.pulsar.connection import Place, place_of
from redrive.brokers.pulsar.kind import CAPABILITIES
from redrive.brokers.pulsar.message import (
    BATCH,
    MAX_BYTES,
    Entry,
    base_topic,
    entry,
    id_text,
    letter,
)
from redrive.connections import lookup
from redrive.errors import BrokerError, BrokerUnavailable, MessageRefused, PermissionRefused, QueueMissing
from redrive.message import Outgoing, Received

#: RetryPolicy with a subscription that was just made or was just given something back, and between two messages.
_FIRST, _NEXT = 0.3, 0.05
_STEP = 0.5
#: Acks are sent every 100 ms. Where no answer can be had behind them, a margin takes its place.
_ACK_SENT, _ACK_SURE = 0.12, 0.3
#: How often an open window looks whether its connection is still there. Reconnecting takes the library longer.
_LOOK = 0.02
_RETRY = "-RETRY"
_DLQ = "-DLQ"

_MISSING = (pulsar.TopicNotFound,)
_REFUSED = (pulsar.AuthenticationError, pulsar.AuthorizationError, pulsar.ErrorGettingAuthenticationData)
_AWAY = (
    *(pulsar.Timeout, pulsar.ConnectError, pulsar.NotConnected, pulsar.LookupError, pulsar.ServiceUnitNotReady),
    *(pulsar.TooManyLookupRequestException, pulsar.BrokerMetadataError, pulsar.BrokerPersistenceError),
    *(pulsar.AlreadyClosed, pulsar.ReadError, pulsar.ConsumerBusy, pulsar.ProducerBusy, pulsar.Interrupted),
    *(pulsar.ProducerBlockedQuotaExceededError, pulsar.ProducerBlockedQuotaExceededException, pulsar.ProducerFenced),
)
_NEVER = (pulsar.MessageTooBig, pulsar.InvalidMessage, pulsar.TopicTerminated, pulsar.IncompatibleSchema)

#: What the library says of a single message, by the names of its results.
#: A full backlog or a terminated topic is not among them: the library fails with that all that it has in hand when
#: it comes back, and the broker may have taken some of it before.
_REFUSALS = frozenset({"MessageTooBig", "InvalidMessage", "IncompatibleSchema", "NotAllowedError"})
_NOT_TAKEN = frozenset({"ProducerQueueIsFull", "MemoryBufferIsFull", "ChecksumError"})
_BEHIND = Publication("retry", detail="an earlier message of its key was not sent")


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


class _RawSchema(pulsar.schema.Schema):  # type: ignore[misc]
    """Bytes as they are, under the schema with which they were written."""

    def __init__(self, kind: str, definition: str) -> None:
        self._record_cls = bytes
        self._schema_info = SchemaInfo(getattr(SchemaType, kind), kind, definition)

    def encode(self, obj: bytes) -> bytes:
        return obj

    def decode(self, data: bytes) -> bytes:
        return data


class ApachePulsar:
    """One cluster as a connection reaches it; fills :class:`~redrive.brokers.base.Broker` and TellsOfConsumers."""

    capabilities = CAPABILITIES

    def __init__(
        self,
        place: Place,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._place = place
        self._admin = place.admin
        self._monotonic = monotonic
        self._sleep = sleep
        self._opened: Any = None
        self._partitions: dict[str, int] = {}
        self._readers: dict[str, _Reader] = {}
        self._producers: dict[tuple[str, str | None], Any] = {}
        self._dedup: dict[str, bool] = {}
        self._bases: dict[str, str] = {}
        self._late: dict[object, str] = {}  # receipts that no longer hold, and why
        self._receipts = itertools.count(1)

    @classmethod
    def open(cls, connection_id: str, *, env: Mapping[str, str] = os.environ, **options: Any) -> Self:
        """The cluster that Airflow connection ``connection_id`` names; nothing is asked of it yet."""
        return cls(place_of(lookup.get(connection_id, env)), **options)

    def capabilities_for(self, queue: str) -> Capabilities:  # noqa: ARG002 - all are alike
        """See :class:`~redrive.brokers.base.Broker`."""
        return CAPABILITIES

    # --- receiving ------------------------------------------------------------------------------------

    def receive(self, queue: str, *, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:
        """See :class:`~redrive.brokers.base.Broker`.

        The first message is waited for, the following ones only as long as they keep coming; a quarter of the lease
        at most. An error after some messages have come is kept back: the next call will meet it again.
        """
        if limit < 1:
            return []
        reader = self._reader(queue, limit)
        self._give_back_expired(reader)
        began = self._monotonic()
        patience = max(_FIRST if began < reader.expects_until else _NEXT, wait.total_seconds())
        found: list[Received] = []
        while len(found) < limit and self._monotonic() < began + max(patience, lease.total_seconds() / 4):
            try:
                message = self._next(reader.consumer, _NEXT if found else patience)
            except pulsar.PulsarException as error:
                self._forget_reader(queue)
                if found:
                    break
                raise _known_error("receive", queue, error, self._place.service) from error
            if message is None:
                break
            text = id_text(message.message_id())
            if text in reader.texts:  # after a reconnect everything unacked comes again; we hold it already
                continue
            receipt = next(self._receipts)
            reader.held[receipt] = _Held(message.message_id(), self._monotonic() + lease.total_seconds(), text)
            reader.texts.add(text)
            found.append(Received(letter(message, self._origin), receipt))
        return found

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
            topic = self._topic(queue)
            size = min(max(limit, 1), BATCH)
            try:
                consumer = self._client().subscribe(
                    topic,
                    self._subscription(queue, topic),
                    consumer_type=pulsar.ConsumerType.Shared,
                    initial_position=pulsar.InitialPosition.Earliest,
                    receiver_queue_size=size,
                    max_total_receiver_queue_size_across_partitions=size,
                    negative_ack_redelivery_delay_ms=100,
                    batch_index_ack_enabled=True,
                )
            except pulsar.PulsarException as error:
                raise _known_error("subscribe", queue, error, self._place.service) from error
            reader = self._readers[queue] = _Reader(consumer, self._monotonic() + 2 * _FIRST)
        return reader

    def _subscription(self, queue: str, topic: str) -> str:
        """Ours, as a rule. A retry-letter topic is shared with the consumer whose delayed messages it keeps.

        On a subscription of our own every one of them would be both drained and consumed.
        """
        given = self._place.subscriptions.get(queue) or self._place.subscriptions.get(topic)
        if given or not topic.endswith(_RETRY):
            return given or self._place.subscription
        stem = topic.removesuffix(_RETRY)
        known = self._admin.stats(topic, self._partitions[topic]).get("subscriptions", {})
        return max((name for name in known if stem.endswith(f"-{name}")), key=len, default=self._place.subscription)

    def _origin(self, real_topic: str) -> str:
        """The queue that a topic is; without its partition, which is chosen anew, unless it is to be kept."""
        if real_topic not in self._bases:
            base = base_topic(real_topic)
            if base != real_topic and not self._place.keep_partition:
                try:
                    base = base if self._admin.partitions(base) else real_topic
                except QueueMissing:
                    base = real_topic
                except BrokerError:
                    pass  # not ours to ask, or not now: the name says what it most likely is
            elif self._place.keep_partition:
                base = real_topic
            self._bases[real_topic] = base.removeprefix(f"persistent://{self._place.namespace}/")
        return self._bases[real_topic]

    def settle(self, queue: str, receipts: Sequence[object]) -> Settled:
        """See :class:`~redrive.brokers.base.Broker`; returns when the broker has the acks."""
        if not receipts:
            return Settled(0)
        reader = self._readers.get(queue)
        if reader is None:
            self._topic(queue)
        failures = [(receipt, self._late[receipt]) for receipt in receipts if receipt in self._late]
        if reader is not None:
            self._give_back_expired(reader, among=receipts)
            failures = [(receipt, self._late[receipt]) for receipt in receipts if receipt in self._late]
            ours = [receipt for receipt in receipts if receipt in reader.held]
            failures += self._acknowledge(queue, reader, ours)
        return Settled(len(receipts) - len(failures), tuple(failures))

    def _acknowledge(self, queue: str, reader: _Reader, receipts: Sequence[object]) -> list[tuple[object, str]]:
        try:
            for receipt in receipts:
                reader.consumer.acknowledge(reader.held[receipt].id)
            if receipts:
                self._sleep(_ACK_SENT)
                self._wait_for_broker(reader.consumer)
        except pulsar.PulsarException as error:
            # They may be settled or may come again: then they are recognised.
            words = str(_known_error("acknowledge", queue, error, self._place.service))
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

    def release(self, queue: str, receipts: Sequence[object]) -> None:
        """See :class:`~redrive.brokers.base.Broker`; they come back within some tenths of a second."""
        if not receipts:
            return
        reader = self._readers.get(queue)
        if reader is None:
            self._topic(queue)
            return
        self._give_back(reader, [r for r in receipts if r in reader.held], "it was released")

    def extend(self, queue: str, receipts: Sequence[object], lease: timedelta) -> None:
        """See :class:`~redrive.brokers.base.Broker`; what is no longer ours is left alone."""
        if not receipts:
            return
        reader = self._readers.get(queue)
        if reader is None:
            self._topic(queue)
            return
        self._give_back_expired(reader, among=receipts)
        until = self._monotonic() + lease.total_seconds()
        for receipt in receipts:
            if receipt in reader.held:
                reader.held[receipt] = reader.held[receipt]._replace(until=until)

    def _give_back_expired(self, reader: _Reader, among: Iterable[object] | None = None) -> int:
        now = self._monotonic()
        candidates = reader.held if among is None else [receipt for receipt in among if receipt in reader.held]
        expired = [receipt for receipt in candidates if reader.held[receipt].until <= now]
        self._give_back(reader, expired, "its lease ran out")
        return len(expired)

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
        _close(reader.consumer)

    # --- sending --------------------------------------------------------------------------------------

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        """See :class:`~redrive.brokers.base.Broker`.

        Messages go out in windows, each message on its own, and every one is confirmed. What was under way when a
        connection was lost is ``unknown``.
        """
        if not messages:
            return []
        topic = self._topic(queue)
        results: list[Publication | None] = [None] * len(messages)
        closed: set[str] = set()  # keys of which a message can't be sent
        going: list[Entry] = []
        for place, message in enumerate(messages):
            made = entry(place, message)
            key = message.ordering_key
            if key is not None and key in closed:
                results[place] = _BEHIND
            elif isinstance(made, str):
                results[place] = Publication("refused", detail=made)
                if key is not None:
                    closed.add(key)
            else:
                going.append(made)
        trouble: BrokerError | None = None
        closed = set()  # from here on: by what became of those that were handed to the library
        # One producer at a time: those of two schemas know nothing of each other's order.
        for schema, members in itertools.groupby(going, key=lambda one: one.schema):
            run = list(members)
            for window in (run[at : at + BATCH] for at in range(0, len(run), BATCH)):
                if trouble is None:
                    trouble = self._publish_window(queue, topic, schema, window, closed, results)
                else:
                    _answer(results, window, Publication("retry", detail=str(trouble)))
        if isinstance(trouble, QueueMissing | PermissionRefused) and not any(
            result and result.status in ("sent", "unknown") for result in results
        ):
            raise trouble  # any other may pass, and certainly none of these was taken: that is said per message
        return [result or _BEHIND for result in results]

    def _publish_window(
        self,
        queue: str,
        topic: str,
        schema: str | None,
        window: Sequence[Entry],
        closed: set[str],
        results: list[Publication | None],
    ) -> BrokerError | None:
        """Send one window and wait for every answer; the error if it concerns the topic and not the messages."""
        try:
            producer = self._producer(queue, topic, schema)
        except MessageRefused as error:
            _answer(results, window, Publication("refused", detail=str(error)))
            closed.update(one.key for one in window if one.key is not None)
            return None
        except BrokerError as error:
            _answer(results, window, Publication("retry", detail=str(error)))
            return error
        going = [one for one in window if one.key is None or one.key not in closed]  # the others stay _BEHIND
        answers: queues.SimpleQueue[tuple[int, str, str | None]] = queues.SimpleQueue()
        waiting = {one.place for one in going}
        for one in going:
            try:
                producer.send_async(one.body, _tell(answers, one.place), **one.arguments)
            except pulsar.PulsarException as error:  # it never left
                answers.put((one.place, type(error).__name__, None))
        lost = False
        while waiting:
            try:
                place, result, broker_id = answers.get(timeout=_LOOK)
            except queues.Empty:
                if lost:
                    break  # the library has forgotten the rest
                if not self._dedup[topic] and not producer.is_connected():
                    lost = True
                    self._forget_producer(topic, schema)
                continue
            waiting.discard(place)
            results[place] = _publication(result, broker_id)
        for place in waiting:
            results[place] = Publication("unknown", detail="the connection was lost before the broker's confirmation")
        closed.update(one.key for one in going if one.key is not None and _status(results[one.place]) != "sent")
        if any(_status(results[one.place]) == "unknown" for one in going):
            self._forget_producer(topic, schema)
        return None

    def _producer(self, queue: str, topic: str, schema: str | None) -> Any:
        """A connected producer on ``topic`` for messages of one schema."""
        producer = self._producers.get((topic, schema))
        if producer is not None and not producer.is_connected():
            self._forget_producer(topic, schema)
            producer = None
        if producer is None:
            options: dict[str, Any] = {}
            if schema is not None:
                options["schema"] = self._schema(schema)
            try:
                self._dedup[topic] = (
                    self._admin.stats(topic, self._partitions[topic]).get("deduplicationStatus") == "Enabled"
                )
                producer = self._client().create_producer(
                    topic,
                    send_timeout_millis=max(1, round(self._place.timeout * 1000)),
                    max_pending_messages=BATCH,
                    batching_enabled=False,
                    **options,
                )
            except pulsar.PulsarException as error:
                raise _known_error("publish", queue, error, self._place.service) from error
            self._producers[topic, schema] = producer
        return producer

    def _schema(self, name: str) -> _RawSchema:
        """The schema ``topic@version`` as it is registered."""
        topic, _, version = name.rpartition("@")
        try:
            kind, definition = self._admin.schema(topic, int(version))
        except QueueMissing:
            raise MessageRefused(f"its schema {name} is no longer registered") from None
        if not hasattr(SchemaType, kind):
            raise MessageRefused(f"its schema {name} is of type {kind}, which the client library can't write")
        return _RawSchema(kind, definition)

    def _forget_producer(self, topic: str, schema: str | None) -> None:
        producer = self._producers.pop((topic, schema), None)
        if producer is not None:
            _close(producer)

    # --- looking --------------------------------------------------------------------------------------

    def leads_to(self, queue: str, origin: str) -> bool | None:
        """See :class:`~redrive.brokers.base.Broker`; of what a retry topic held, its consumer's topic is the origin."""
        mine = f"persistent://{self._place.namespace}/"
        to, failed = queue.removeprefix(mine), origin.removeprefix(mine)
        if to.endswith(_RETRY):
            return None
        return to == failed or base_topic(to) == failed or to == base_topic(failed)

    def origins(self, queue: str) -> frozenset[str] | None:
        """See :class:`~redrive.brokers.base.Broker`: by the name ``TOPIC-SUBSCRIPTION-DLQ`` that client libraries give,
        in which hyphens leave a few topics possible; of a topic with another name nobody says it."""
        place = f"persistent://{self._place.namespace}/"
        stem = queue.removeprefix(place)
        for ending in (_DLQ, _RETRY):
            if stem.endswith(ending):
                words = stem.removesuffix(ending).split("-")
                names = ["-".join(words[:count]) for count in range(1, len(words)) if words[0]]
                topics = [name if "://" in name else place + name for name in names]
                if self._place.keep_partition:
                    topics += [part for topic in topics for part in self._parts(topic)]
                return frozenset(self._origin(topic) for topic in topics)
        return None

    def _parts(self, topic: str) -> list[str]:
        try:
            return [f"{topic}-partition-{number}" for number in range(self._admin.partitions(topic))]
        except QueueMissing:
            return []

    def depth(self, queue: str) -> Depth:
        """See :class:`~redrive.brokers.base.Broker`.

        Of a source: what our subscription has before it; of any other topic: its fullest subscription; of a topic
        that nobody has subscribed to: all that it keeps. A backlog counts entries; where consumers got several
        messages per entry it is multiplied by that, so it is an estimate.
        """
        topic = self._topic(queue)
        told = self._admin.stats(topic, self._partitions[topic])
        subscriptions: dict[str, Any] = told.get("subscriptions", {})
        own = self._readers_subscription(queue, subscriptions)
        if not subscriptions:
            return Depth(self._admin.entries(topic, self._partitions[topic]), 0, 0, 0)
        seen = [_backlog(subscriptions[own])] if own else [_backlog(one) for one in subscriptions.values()]
        if any(depth.total is None for depth in seen):
            return UNKNOWN_DEPTH
        fullest = max(seen, key=lambda depth: depth.total or 0)
        return fullest._replace(consumers=sum(depth.consumers or 0 for depth in seen))

    def _readers_subscription(self, queue: str, subscriptions: Mapping[str, Any]) -> str | None:
        name = self._place.subscriptions.get(queue, self._place.subscription)
        return name if name in subscriptions else None

    def describe(self, queue: str) -> QueueInfo:
        """See :class:`~redrive.brokers.base.Broker`. Lease and deliveries are consumers' affairs: Pulsar has none.

        ``retention`` is the namespace's time to live, after which messages count as read; unknown to whoever may
        not look at the namespace.
        """
        topic = self._topic(queue)
        told = self._admin.stats(topic, self._partitions[topic])
        subscriptions = told.get("subscriptions", {})
        try:
            seconds = self._admin.message_ttl(topic)
        except (PermissionRefused, QueueMissing):
            seconds = 0
        warnings: list[str] = []
        if not subscriptions:
            warnings.append(
                "has no subscription: what arrives before the first drain may be dropped;"
                f" create {self._place.subscription!r}"
            )
        try:
            limits = self._admin.unacked_limits(topic)
        except (PermissionRefused, QueueMissing):
            limits = (None, None)
        return QueueInfo(
            retention=timedelta(seconds=seconds) if seconds else None,
            max_message_bytes=MAX_BYTES,
            subscribers=len(subscriptions),
            warnings=tuple(warnings),
            bounds=tuple(
                f"{who} is given no more once it holds {limit:,} unacked messages"
                for who, limit in zip(("a consumer", "a subscription"), limits, strict=True)
                if limit
            ),
        )

    def consumers(self, queue: str) -> list[ConsumerStats]:
        """See :class:`~redrive.brokers.base.TellsOfConsumers`; those of key-shared subscriptions are left out."""
        topic = self._topic(queue)
        found: dict[str, ConsumerStats] = {}
        for told in self._admin.each_stats(topic, self._partitions[topic]):
            for subscription, one in told.get("subscriptions", {}).items():
                if one.get("type") == "Key_Shared":
                    continue
                for consumer in one.get("consumers", ()):
                    name = f"{subscription}/{consumer.get('consumerName', '')}"
                    unacked = int(consumer.get("unackedMessages", 0))
                    before = found.get(name, ConsumerStats(name, 0, 0))
                    blocked = bool(consumer.get("blockedConsumerOnUnackedMsgs"))
                    found[name] = ConsumerStats(
                        name,
                        before.unacked + unacked,
                        before.progress + _progress(consumer, unacked),
                        connection=topic,
                        blocked=before.blocked or blocked,
                    )
        return list(found.values())

    def close_connection(self, queue: str, connection: str, reason: str) -> bool:  # noqa: ARG002 - Pulsar tells nobody
        """See :class:`~redrive.brokers.base.ClosesConnections`: Pulsar can't end one consumer, it unloads the topic."""
        topic = self._topic(queue)
        self._admin.unload(topic)
        return True

    def close(self) -> None:
        """Close connections; acks that were not sent yet go first, and what is held comes back at once."""
        for reader in self._readers.values():
            _close(reader.consumer)
        for producer in self._producers.values():
            _close(producer)
        self._readers.clear()
        self._producers.clear()
        if self._opened is not None:
            _close(self._opened)
            self._opened = None

    # --- names and connections ------------------------------------------------------------------------

    def _topic(self, queue: str) -> str:
        """The full name of ``queue``, which is there."""
        topic = queue if "://" in queue else f"persistent://{self._place.namespace}/{queue}"
        if topic not in self._partitions:
            self._partitions[topic] = self._admin.partitions(topic)
        return topic

    def _client(self) -> Any:
        if self._opened is None:
            self._opened = self._place.connect()
        return self._opened


def _progress(consumer: Mapping[str, Any], unacked: int) -> int:
    """A number that changes when a consumer acks, refuses what it got, or asks for more because it has taken some.

    That the broker gives it more is none: it goes on pushing to one that hangs, as long as there is room.
    """
    answered = int(consumer.get("msgOutCounter", 0)) - unacked
    asked_at = int(consumer.get("lastConsumedFlowTimestamp", 0))
    return int(consumer.get("lastAckedTimestamp", 0)) + asked_at + answered


def _backlog(told: Mapping[str, Any]) -> Depth:
    """What lies before one subscription, as its statistics tell; unknown where they don't."""
    if told.get("msgBacklog") is None:
        return UNKNOWN_DEPTH
    consumers = told.get("consumers", ())
    per_entry = max((int(one.get("avgMessagesPerEntry") or 1) for one in consumers), default=1)
    messages = int(told["msgBacklog"]) * max(1, per_entry)
    unacked, delayed = int(told.get("unackedMessages", 0)), int(told.get("msgDelayed", 0))
    return Depth(max(0, messages - unacked - delayed), unacked, delayed, len(consumers))


def _known_error(action: str, queue: str, error: pulsar.PulsarException, service: str) -> BrokerError:
    text = f"{action} on queue {queue}: {error}"
    if isinstance(error, _MISSING):
        return QueueMissing(text)
    if isinstance(error, _REFUSED):
        return PermissionRefused(text)
    if isinstance(error, _NEVER):
        return MessageRefused(text)
    if isinstance(error, _AWAY):
        return BrokerUnavailable(f"{action} on queue {queue}: {service}: {error}")
    return BrokerError(text)


def _tell(answers: "queues.SimpleQueue[tuple[int, str, str | None]]", place: int) -> Callable[[Any, Any], None]:
    """What the library calls from a thread of its own when it knows what became of a message."""

    def tell(result: Any, message_id: Any) -> None:
        answers.put((place, result.name, id_text(message_id) if result == pulsar.Result.Ok else None))

    return tell


def _publication(result: str, broker_id: str | None) -> Publication:
    if result == "Ok":
        return Publication("sent", broker_id)
    if result in _REFUSALS:
        return Publication("refused", detail=result)
    return Publication("retry" if result in _NOT_TAKEN else "unknown", detail=result)


def _status(result: Publication | None) -> str:
    return result.status if result else ""


def _answer(results: list[Publication | None], window: Iterable[Entry], answer: Publication) -> None:
    for one in window:
        results[one.place] = answer


def _close(closable: Any) -> None:
    try:
        closable.close()
    except pulsar.PulsarException:
        pass  # it was not open any more
