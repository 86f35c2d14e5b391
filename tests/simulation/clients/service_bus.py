"""The Service Bus SDK over a simulated system: a dead-letter queue is called ``QUEUE/$DeadLetterQueue``.

MessageIds are the producer's own, or the broker's where it gave none; where the system deduplicates, they are what it
deduplicates by. Nobody may send to a dead-letter queue.
"""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp.error import MessageException
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from redrive.brokers.service_bus.adapter import AzureServiceBus
from redrive.brokers.service_bus.facts import Facts
from redrive.brokers.service_bus.message import Address
from redrive.errors import QueueMissing
from tests.simulation.world import Copy, System
from tests.simulation.world.systems import Header

TRAITS: dict[str, object] = {
    "depth": "exact",
    "ids": "kept",
    "death_times": False,
    "tells_origin": True,
    "tells_reason": True,
    "ordered": False,
    "shuffles": False,
    "max_headers": None,
    "publish_batch": 100,
    "native_delay": None,
    "subscribers": 1,
}
DEAD_LETTERS = "/$DeadLetterQueue"


def connect(system: System) -> AzureServiceBus:
    """The real adapter, on this SDK."""
    clock = system.world.clock
    return AzureServiceBus(
        Client(system),  # type: ignore[arg-type]
        Administration(system),
        sleep=clock.sleep,
        now=lambda: datetime.fromtimestamp(clock.now / 1e6, UTC),
    )


class Administration:
    """See :class:`redrive.brokers.service_bus.facts.Administration`."""

    def __init__(self, system: System) -> None:
        self._system = system

    def facts(self, address: Address) -> Facts | None:
        if not self._system.exists(address.entity):
            raise QueueMissing(f"{address.entity} does not exist")
        queue = self._system.queues[address.entity]
        ready, flight, later = self._system.depth(address.entity) or (0, 0, 0)
        dead = (
            self._system.depth(address.entity + DEAD_LETTERS)
            if self._system.exists(address.entity + DEAD_LETTERS)
            else None
        )
        window = self._system.traits.dedupe
        return Facts(
            lock_duration=timedelta(seconds=queue.lease),
            max_delivery_count=queue.max_deliveries,
            duplicate_window=None if window is None else timedelta(seconds=window),
            max_bytes=262_144,
            active=ready + flight,
            scheduled=later,
            dead_letters=sum(dead[:2]) if dead else 0,
        )

    def close(self) -> None:
        """Nothing is held."""


class Client:
    """See :class:`azure.servicebus.ServiceBusClient`."""

    fully_qualified_namespace = "simulated.example:5671"

    def __init__(self, system: System) -> None:
        self._system = system

    def get_queue_receiver(self, name: str, *, sub_queue: Any = None, **_: Any) -> "Receiver":
        return Receiver(self._system, name + (DEAD_LETTERS if sub_queue is not None else ""))

    def get_queue_sender(self, name: str) -> "Sender":
        return Sender(self._system, name)

    def close(self) -> None:
        """Links are closed one by one."""


class Receiver:
    """See :class:`azure.servicebus.ServiceBusReceiver`; without the inner parts that make it fast."""

    session = None
    _handler = None

    def __init__(self, system: System, queue: str) -> None:
        self._system = system
        self._queue = queue
        self._create_handler = lambda _auth: None

    def __enter__(self) -> "Receiver":
        if not self._system.exists(self._queue):
            raise sdk.MessagingEntityNotFoundError(message=f"{self._queue} could not be found")
        return self

    def peek_messages(self, count: int, sequence_number: int = 0) -> list[Any]:
        self.__enter__()
        held = [copy for copy in self._system.queues[self._queue].copies() if copy.number >= sequence_number]
        return [_message(copy, 0) for copy in sorted(held, key=lambda one: one.number)[:count]]

    def receive_messages(self, limit: int, max_wait_time: float) -> list[Any]:
        fate = self._system.fate("receive")
        _fail(fate)
        lease = self._system.queues[self._queue].lease
        taken = self._system.receive(self._queue, limit, lease, by="redrive")
        if fate == "lost":
            raise sdk.ServiceBusConnectionError(message="simulated: the link was lost")
        if not taken:
            self._system.world.clock.sleep(max_wait_time)
        return [_message(copy, receipt) for copy, receipt in taken]

    def complete_message(self, message: Any) -> None:
        fate = self._system.fate("settle")
        if fate in ("retry", "down", "error", "part"):
            raise sdk.ServiceBusConnectionError(message="simulated: the link was lost")
        late = self._system.settle(self._queue, [message.lock_token], by="redrive")
        if fate == "lost":
            raise sdk.ServiceBusConnectionError(message="simulated: the link was lost")
        if late:
            raise sdk.MessageLockLostError(message="The lock supplied is invalid.")

    def abandon_message(self, message: Any) -> None:
        self._system.release(self._queue, [message.lock_token], by="redrive")

    def renew_message_lock(self, message: Any) -> None:
        self._system.extend(self._queue, [message.lock_token], self._system.queues[self._queue].lease)

    def _renew_locks(self, *tokens: Any) -> None:
        self._system.extend(self._queue, list(tokens), self._system.queues[self._queue].lease)

    def close(self) -> None:
        """Locks last until they run out."""


class Batch:
    """See :class:`azure.servicebus.ServiceBusMessageBatch`."""

    max_size_in_bytes = 262_144

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def add_message(self, message: Any) -> None:
        self.messages.append(message)


class Sender:
    """See :class:`azure.servicebus.ServiceBusSender`."""

    _max_message_size_on_link = 262_144

    def __init__(self, system: System, queue: str) -> None:
        self._system = system
        self._queue = queue
        self._running = False
        self._create_handler = lambda _auth: None
        self._handler = SimpleNamespace(
            _connection=SimpleNamespace(listen=lambda wait: None),
            _link=SimpleNamespace(get_state=lambda: None),
        )

    def __enter__(self) -> "Sender":
        if not self._system.exists(self._queue) or self._queue.endswith(DEAD_LETTERS):
            raise sdk.MessagingEntityNotFoundError(message=f"{self._queue} could not be found")
        self._running = True
        return self

    def create_message_batch(self) -> Batch:
        return Batch()

    def send_messages(self, messages: Any, timeout: float) -> None:
        fate = self._system.fate("publish")
        _fail(fate)
        if fate == "refused":
            told = MessageException(b"amqp:not-allowed", description="simulated")
            raise sdk.ServiceBusError(message="simulated: not allowed", error=told)
        for one in messages.messages if isinstance(messages, Batch) else [messages]:
            self._send(one, known=fate != "lost")
        if fate == "lost":
            raise sdk.OperationTimeoutError(message="simulated: no answer in time")

    def _send(self, message: AmqpAnnotatedMessage, *, known: bool) -> None:
        told = message.properties
        headers: list[Header] = []
        for name, value in (message.application_properties or {}).items():
            key = name.decode() if isinstance(name, bytes) else str(name)
            plain = value["VALUE"] if isinstance(value, dict) else value  # as the SDK's encoder takes what has a type
            headers.append((key, "String", plain if isinstance(plain, bytes) else str(plain)))
        message_id = str(told.message_id) if told is not None and told.message_id is not None else ""
        self._system.send(
            self._queue,
            b"".join(bytes(part) for part in message.body),
            tuple(headers),
            by="redrive",
            key=str(told.group_id) if told is not None and told.group_id else None,
            content_type=str(told.content_type) if told is not None and told.content_type else None,
            publisher_id=message_id,
            dedup_id=message_id or None,
            delay=self._delay(message),
            known=known,
        )

    def _delay(self, message: AmqpAnnotatedMessage) -> float:
        due = (message.annotations or {}).get("x-opt-scheduled-enqueue-time")
        return 0.0 if due is None else max(0.0, due.timestamp() - self._system.world.clock.now / 1e6)

    def close(self) -> None:
        self._running = False


def _message(copy: Copy, token: int) -> Any:
    application: dict[Any, Any] = {name: value for name, _, value in copy.headers}
    if copy.failed_at is not None:
        if copy.reason is not None:
            application["DeadLetterReason"] = copy.reason
        if copy.description is not None:
            application["DeadLetterErrorDescription"] = copy.description
    raw = AmqpAnnotatedMessage(
        data_body=copy.body,
        application_properties=application,
        properties=AmqpMessageProperties(
            message_id=copy.publisher_id or copy.broker_id, content_type=copy.content_type, group_id=copy.key
        ),
        annotations={
            b"x-opt-sequence-number": copy.number,
            b"x-opt-enqueued-time": copy.enqueued_at // 1000,
        },
    )
    return SimpleNamespace(
        raw_amqp_message=raw,
        delivery_count=max(copy.deliveries - 1, 0),
        lock_token=token,
        sequence_number=copy.number,
        state=0,
        _delivery_tag=str(token).encode(),
        _delivery_id=token,
        _settled=False,
        _expiry=None,
    )


def _fail(fate: str) -> None:
    """Requests that were not carried out."""
    if fate == "down":
        raise sdk.ServiceBusConnectionError(message="simulated: no connection")
    if fate == "retry":
        told = MessageException(b"com.microsoft:server-busy", description="simulated")
        raise sdk.ServiceBusServerBusyError(message="simulated: busy", error=told)
    if fate in ("error", "part"):
        raise sdk.OperationTimeoutError(message="simulated: no answer in time")
