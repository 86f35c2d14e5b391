"""The Service Bus adapter: the contract on a stand-in that Microsoft's own client talks to, and what only it does."""

import itertools
import json
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import _servicebus_receiver, _servicebus_sender
from azure.servicebus._pyamqp import client

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver, ServiceBusSubQueue
from azure.servicebus.amqp import AmqpAnnotatedMessage
from redrive.brokers import azure_service_bus, open_broker, service_bus_facts
from redrive.brokers.amqp_values import Encoded
from redrive.brokers.azure_service_bus import AzureServiceBus
from redrive.brokers.service_bus_message import FAILURE_PROPERTIES, MAX_PROPERTY_BYTES, Address, message_id_of
from redrive.connections import parse
from redrive.errors import BrokerUnavailable, PermissionRefused, QueueMissing, SettingsError
from redrive.message import Header, Outgoing, Received, clean_headers
from tests.contract.broker_contract import LEASE, NO_WAIT, BrokerContract, outgoing
from tests.servers import free_port
from tests.stand_ins.service_bus import ServiceBusStandIn
from tests.stand_ins.service_bus.codec import Raw

LOCK = 30.0


def connection(schema: str, **extra: object) -> str:
    return json.dumps({"conn_type": "azure_service_bus", "schema": schema, "extra": extra})


def adapter(bus: ServiceBusStandIn, *, key: str = "root", administered: bool = True, **options: Any) -> AzureServiceBus:
    """The adapter on the stand-in; it does not really sleep between tries unless told to."""
    extra = {"admin_endpoint": bus.admin_url} if administered else {}
    options.setdefault("sleep", lambda seconds: None)
    value = connection(bus.connection_string(key), **extra)
    return AzureServiceBus.open("bus_test", env={"AIRFLOW_CONN_BUS_TEST": value}, **options)


class _Impatient:
    """``time`` for the SDK's link opening, which looks every 50 ms whether the link is there."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    @staticmethod
    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, 0.001))


@pytest.fixture(autouse=True)
def _quick_links(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_servicebus_receiver, _servicebus_sender, client):
        monkeypatch.setattr(module, "time", _Impatient())


@pytest.fixture
def bus() -> Iterator[ServiceBusStandIn]:
    with ServiceBusStandIn() as bus:
        yield bus


@pytest.fixture
def broker(bus: ServiceBusStandIn) -> Iterator[AzureServiceBus]:
    broker = adapter(bus)
    yield broker
    broker.close()


@pytest.mark.server
class TestAzureServiceBus(BrokerContract):
    """On the stand-in, because tests can't reach Azure."""

    max_body = 200_000
    short_lease = timedelta(seconds=LOCK)  # the entity's lock duration, whatever is asked for

    @pytest.fixture
    def broker(self, bus: ServiceBusStandIn) -> Iterator[AzureServiceBus]:
        broker = adapter(bus)
        yield broker
        broker.close()

    @pytest.fixture
    def another_broker(self, bus: ServiceBusStandIn) -> Iterator[AzureServiceBus]:
        broker = adapter(bus)
        yield broker
        broker.close()

    @pytest.fixture
    def make_queue(self, bus: ServiceBusStandIn) -> Callable[..., str]:
        names = (f"queue-{number}" for number in itertools.count(1))

        def make_queue(
            *, ordered: bool = False, dead_letter_queue: str | None = None, max_deliveries: int | None = None
        ) -> str:
            name = next(names)
            bus.queue(
                name,
                lock_duration=LOCK,
                requires_session=ordered,
                forward_dead_letters_to=dead_letter_queue,
                max_delivery_count=max_deliveries or 10,
            )
            return name

        return make_queue

    @pytest.fixture
    def let_pass(self, bus: ServiceBusStandIn) -> Callable[[timedelta], None]:
        return lambda duration: bus.let_pass(duration.total_seconds())

    @pytest.fixture
    def refused_broker(self, bus: ServiceBusStandIn) -> Iterator[AzureServiceBus]:
        bus.queue("orders-dlq")
        bus.keys["nothing"] = ("c2VjcmV0", frozenset())
        broker = adapter(bus, key="nothing")
        yield broker
        broker.close()

    @pytest.fixture
    def unreachable_broker(self, bus: ServiceBusStandIn) -> Iterator[AzureServiceBus]:
        bus.port, bus.admin_port = free_port(), free_port()
        broker = adapter(bus)
        yield broker
        broker.close()

    def test_headers_survive_with_their_types(self, broker: AzureServiceBus, queue: str) -> None:
        headers = {
            Header("customer", "String", "Müller & Söhne"),
            Header("thumbnail", "binary", b"\x89PNG\x00\xff"),
            Header("count", "int", "7"),
            Header("total", "long", "9007199254740993"),
            Header("tiny", "ubyte", "255"),
            Header("ratio", "double", "0.1"),
            Header("price", "decimal128", "12.50"),
            Header("paid", "boolean", "false"),
            Header("at", "timestamp", "1760000000123"),
            Header("trace", "uuid", "0f8fad5b-d9cb-469f-a165-70867728950e"),
            Header("kind", "symbol", "x-y"),
            Header("nothing", "null", ""),
            Header("took", "com.microsoft:timespan/long", "36000000000"),
        }
        self.send(broker, queue, outgoing(headers=tuple(headers)))

        assert set(self.take(broker, queue, 1)[0].letter.headers) == headers

    def test_too_many_headers_are_refused(self, broker: AzureServiceBus, queue: str) -> None:
        """Not their number is bounded but their size."""
        many = tuple(Header(f"h{n:04}", "String", "v" * 95) for n in range(MAX_PROPERTY_BYTES // 100 + 1))
        results = broker.publish(queue, [outgoing(headers=many), outgoing(number=2, headers=many[:-1])])

        assert [r.status for r in results] == ["refused", "sent"]
        assert str(MAX_PROPERTY_BYTES) in results[0].detail

    def test_a_dead_letter_names_the_queue_on_which_it_failed(
        self, broker: AzureServiceBus, make_queue: Callable[..., str], let_pass: Callable[[timedelta], None]
    ) -> None:
        """A dead-letter queue is not a queue of its own but belongs to one."""
        live = make_queue(max_deliveries=2)
        [sent] = self.send(broker, live, outgoing(b"fails", headers=(Header("a", "String", "b"),)))
        for _ in range(2):
            assert len(self.take(broker, live, 1)) == 1
            let_pass(self.short_lease * 1.5)
        assert self.take(broker, live, 1) == []

        [received] = self.take(broker, f"{live}/$DeadLetterQueue", 1)
        letter = received.letter
        assert (letter.origin, letter.body, letter.deliveries) == (live, b"fails", 2)
        assert letter.headers == (Header("a", "String", "b"),)
        assert letter.broker_message_id == sent.broker_message_id
        assert letter.reason == "MaxDeliveryCountExceeded"
        assert letter.description == "Message could not be consumed after 2 delivery attempts."

    def test_an_extended_lease_keeps_a_message_away(
        self, broker: AzureServiceBus, queue: str, let_pass: Callable[[timedelta], None]
    ) -> None:
        """A lock is renewed for the entity's lock duration, no longer: so it has to be done again in time."""
        self.send(broker, queue, outgoing(b"kept", 1), outgoing(b"let go", 2))
        kept = next(r for r in self.take(broker, queue, 2) if r.letter.body == b"kept")
        for _ in range(3):
            let_pass(self.short_lease * 0.6)
            broker.extend(queue, [kept.receipt], LEASE)

        assert [r.letter.body for r in self.take(broker, queue, 2)] == [b"let go"]
        assert broker.settle(queue, [kept.receipt]).count == 1


# --- the SDK as a producer and consumer of others --------------------------------------------------------------


@pytest.fixture
def theirs(bus: ServiceBusStandIn) -> Iterator[ServiceBusClient]:
    """Somebody else's client: producers and consumers of whom Redrive knows nothing."""
    with ServiceBusClient.from_connection_string(bus.connection_string(), retry_total=0, keep_alive=0) as client:
        yield client


def produce(client: ServiceBusClient, queue: str, *messages: Any) -> None:
    with client.get_queue_sender(queue) as sender:
        for message in messages:
            sender.send_messages(message)


def take(broker: AzureServiceBus, queue: str, count: int = 1) -> list[Received]:
    return BrokerContract.take(broker, queue, count)


def as_it_came(received: Received, number: int = 1, **changes: Any) -> Outgoing:
    """What a delivery makes of a received message."""
    letter = received.letter
    return outgoing(
        letter.body,
        number,
        headers=clean_headers(letter.headers, FAILURE_PROPERTIES),
        properties=letter.properties,
        ordering_key=letter.ordering_key,
        content_type=letter.content_type,
        enqueued_at=letter.enqueued_at,
        **changes,
    )


def bodies(bus: ServiceBusStandIn, path: str) -> list[bytes]:
    return [one.value for message in bus.messages(path) for one in message.kept if one.code == 0x75]


# --- names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("orders", Address("orders")),
        ("shop/eu/orders", Address("shop/eu/orders")),
        ("orders/$DeadLetterQueue", Address("orders", None, "dead_letter")),
        ("Orders/$deadletterqueue", Address("Orders", None, "dead_letter")),
        ("orders/$Transfer/$DeadLetterQueue", Address("orders", None, "transfer")),
        ("news/Subscriptions/mail", Address("news", "mail")),
        ("news/subscriptions/mail/$DeadLetterQueue", Address("news", "mail", "dead_letter")),
        ("news/Subscriptions/mail/$Transfer/$DeadLetterQueue", Address("news", "mail", "transfer")),
        ("errors/$Active", Address("errors")),
    ],
)
def test_names_are_read_as_service_bus_writes_them(name: str, address: Address) -> None:
    assert Address.parse(name) == address


# --- dead letters ------------------------------------------------------------------------------------------------


def test_dead_letters_of_queue_subscription_and_transfer_are_drained(
    bus: ServiceBusStandIn, broker: AzureServiceBus, theirs: ServiceBusClient
) -> None:
    bus.queue("orders")
    bus.topic("news")
    bus.subscription("news", "mail")
    bus.queue("entry", forward_to="gone")
    produce(theirs, "orders", ServiceBusMessage(b"order"))
    with theirs.get_topic_sender("news") as sender:
        sender.send_messages(ServiceBusMessage(b"news"))
    with theirs.get_queue_receiver("orders") as one, theirs.get_subscription_receiver("news", "mail") as other:
        for receiver in (one, other):
            [message] = receiver.receive_messages(1, max_wait_time=1)
            receiver.dead_letter_message(message, reason="ValidationFailed", error_description="KeyError: 'sku'")
    produce(theirs, "entry", ServiceBusMessage(b"forwarded"))

    places = {
        "orders/$DeadLetterQueue": (b"order", "orders", "ValidationFailed", "KeyError: 'sku'"),
        "news/Subscriptions/mail/$DeadLetterQueue": (
            b"news",
            "news/Subscriptions/mail",
            "ValidationFailed",
            "KeyError: 'sku'",
        ),
        "entry/$Transfer/$DeadLetterQueue": (
            b"forwarded",
            "entry",
            "MessagingEntityNotFoundException",
            "The messaging entity 'gone' could not be found.",
        ),
    }
    for queue, expected in places.items():
        assert broker.depth(queue).visible == 1
        [received] = take(broker, queue)
        letter = received.letter
        assert (letter.body, letter.origin, letter.reason, letter.description) == expected
        assert letter.headers == ()
        assert broker.settle(queue, [received.receipt]).count == 1
        assert broker.depth(queue).total == 0


def test_a_forwarded_dead_letter_names_its_source(
    bus: ServiceBusStandIn, broker: AzureServiceBus, theirs: ServiceBusClient
) -> None:
    bus.queue("all-errors")
    bus.queue("orders", forward_dead_letters_to="all-errors", max_delivery_count=1)
    produce(theirs, "orders", ServiceBusMessage(b"x"))
    with theirs.get_queue_receiver("orders") as receiver:
        receiver.abandon_message(receiver.receive_messages(1, max_wait_time=1)[0])

    [received] = take(broker, "all-errors")
    assert received.letter.origin == "orders"
    assert dict(received.letter.properties)["DeadLetterSource"] == "orders"


def test_the_dead_letters_of_a_session_queue_are_read_without_sessions(
    bus: ServiceBusStandIn, broker: AzureServiceBus
) -> None:
    bus.queue("orders", requires_session=True, max_delivery_count=1)
    broker.publish("orders", [outgoing(b"x", ordering_key="customer-7")])
    broker.release("orders", [take(broker, "orders")[0].receipt])

    [received] = take(broker, "orders/$DeadLetterQueue")
    assert received.letter.ordering_key == "customer-7"


def test_nobody_can_send_to_a_dead_letter_queue(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.queue("orders")
    [result] = broker.publish("orders/$DeadLetterQueue", [outgoing()])

    assert result.status == "refused"
    assert "send to orders instead" in result.detail


def test_a_deferred_dead_letter_is_counted_and_left_alone(
    bus: ServiceBusStandIn, broker: AzureServiceBus, theirs: ServiceBusClient
) -> None:
    bus.queue("orders", max_delivery_count=1)
    broker.publish("orders", [outgoing()])
    broker.release("orders", [take(broker, "orders")[0].receipt])
    with theirs.get_queue_receiver("orders", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        receiver.defer_message(receiver.receive_messages(1, max_wait_time=1)[0])

    assert broker.depth("orders/$DeadLetterQueue").visible == 1
    assert broker.receive("orders/$DeadLetterQueue", limit=5, wait=NO_WAIT, lease=LEASE) == []


# --- messages keep what they are -----------------------------------------------------------------------------------


def amqp_long() -> object:
    """A long as a value body, which the SDK itself would send as an int."""
    return Encoded(b"\x81" + (2**40).to_bytes(8, "big"))


def annotated(**body: Any) -> AmqpAnnotatedMessage:
    return AmqpAnnotatedMessage(**body)


@pytest.mark.parametrize(
    ("message", "seen", "kind"),
    [
        (annotated(data_body=[b"two ", b"sections"]), b"two sections", None),
        (annotated(value_body=amqp_long()), None, "value/amqp"),
        (annotated(value_body="text, größer"), "text, größer".encode(), "value/String"),
        (annotated(value_body=b"\x00\xff"), b"\x00\xff", "value/binary"),
        (annotated(value_body="x" * 100_000), b"x" * 100_000, "value/String"),
        (annotated(value_body=None), b"", "value/null"),
        (annotated(value_body={"id": 7, "tags": ["a", True, None], "ratio": 0.5}), None, "value/amqp"),
        (annotated(value_body={"long": "y" * 100_000}), None, "value/amqp"),
        (annotated(sequence_body=[[1, "two", b"\x03"], ["next"]]), None, "sequence/amqp"),
    ],
    ids=["data", "long", "string", "binary", "long-string", "null", "map", "large-map", "sequence"],
)
def test_a_body_keeps_its_kind(
    bus: ServiceBusStandIn,
    broker: AzureServiceBus,
    theirs: ServiceBusClient,
    message: AmqpAnnotatedMessage,
    seen: bytes | None,
    kind: str | None,
) -> None:
    bus.queue("first")
    bus.queue("second")
    produce(theirs, "first", message)
    [received] = take(broker, "first")
    assert dict(received.letter.properties).get("BodyType") == kind
    assert seen is None or received.letter.body == seen

    assert broker.publish("second", [as_it_came(received)])[0].status == "sent"
    with theirs.get_queue_receiver("first") as one, theirs.get_queue_receiver("second") as other:
        broker.release("first", [received.receipt])
        [before] = one.receive_messages(1, max_wait_time=1)
        [after] = other.receive_messages(1, max_wait_time=1)
        assert after.body_type == before.body_type
        assert _plain(after.body) == _plain(before.body)


def _plain(body: Any) -> Any:
    if body is None or isinstance(body, bytes | str | dict | int):
        return body
    parts = list(body)
    return b"".join(parts) if all(isinstance(part, bytes) for part in parts) else parts


def test_an_edited_body_that_is_no_amqp_value_any_more_is_refused(
    bus: ServiceBusStandIn, broker: AzureServiceBus
) -> None:
    bus.queue("orders")
    results = broker.publish(
        "orders", [outgoing(b'{"id": 7}', properties=(("BodyType", "value/amqp"),)), outgoing(number=2)]
    )

    assert [r.status for r in results] == ["refused", "sent"]
    assert "AMQP value" in results[0].detail


def test_everything_that_a_producer_wrote_survives(
    bus: ServiceBusStandIn, broker: AzureServiceBus, theirs: ServiceBusClient
) -> None:
    bus.queue("first")
    bus.queue("second")
    produce(
        theirs,
        "first",
        ServiceBusMessage(
            b"x",
            message_id="order-17",
            correlation_id="c-1",
            subject="OrderPlaced",
            to="billing",
            reply_to="answers",
            reply_to_session_id="s-9",
            content_type="application/json",
            session_id="customer-7",
            partition_key="customer-7",
            time_to_live=timedelta(hours=1),
            application_properties={"n": 1, "t": "text", "b": True},
        ),
    )
    [received] = take(broker, "first")
    broker.publish("second", [as_it_came(received)])

    [before], [after] = bus.messages("first"), bus.messages("second")
    assert [after.properties[n] for n in (0, 2, 3, 4, 5, 6, 10, 12)] == [
        before.properties[n] for n in (0, 2, 3, 4, 5, 6, 10, 12)
    ]
    assert after.application == before.application
    assert [type(value) for value in after.application.values()] == [type(v) for v in before.application.values()]
    assert after.time_to_live == before.time_to_live == 3600


def test_a_partition_key_is_kept_apart_from_a_session(
    bus: ServiceBusStandIn, broker: AzureServiceBus, theirs: ServiceBusClient
) -> None:
    bus.queue("first")
    bus.queue("second")
    produce(theirs, "first", ServiceBusMessage(b"x", partition_key="tenant-3"))
    [received] = take(broker, "first")
    broker.publish("second", [as_it_came(received)])

    [copy] = bus.messages("second")
    assert received.letter.ordering_key == "tenant-3"
    assert (copy.session, copy.partition_key) == (None, "tenant-3")


def test_ids_that_are_not_texts_keep_their_type(
    bus: ServiceBusStandIn, broker: AzureServiceBus, theirs: ServiceBusClient
) -> None:
    bus.queue("first")
    bus.queue("second")
    trace = uuid.UUID("0f8fad5b-d9cb-469f-a165-70867728950e")
    produce(
        theirs, "first", AmqpAnnotatedMessage(data_body=b"x", properties={"message_id": 7, "correlation_id": trace})
    )
    [received] = take(broker, "first")
    broker.publish("second", [as_it_came(received)])

    [copy] = bus.messages("second")
    assert received.letter.broker_message_id == "7"
    assert (type(copy.message_id).__name__, copy.message_id) == ("ULong", 7)
    assert copy.properties[5] == trace


def test_a_message_without_an_id_is_known_by_its_sequence_number(
    bus: ServiceBusStandIn, broker: AzureServiceBus, theirs: ServiceBusClient
) -> None:
    bus.queue("orders")
    produce(theirs, "orders", annotated(data_body=b"x"), annotated(data_body=b"y"))

    assert [r.letter.broker_message_id for r in take(broker, "orders", 2)] == ["sequence-1", "sequence-2"]


def test_two_copies_with_one_id_are_told_apart(
    bus: ServiceBusStandIn, broker: AzureServiceBus, theirs: ServiceBusClient
) -> None:
    bus.queue("orders")
    produce(theirs, "orders", [ServiceBusMessage(b"same", message_id="m-1") for _ in range(3)])

    copies = [received.letter for received in take(broker, "orders", 3)]
    assert {copy.broker_message_id for copy in copies} == {"m-1"}
    assert len({copy.enqueued_at for copy in copies}) == 3


@pytest.mark.parametrize(
    ("raw", "header"),
    [
        (Raw(0x73, b"\0\0\0A"), Header("value", "char", "A")),
        (Raw(0x94, bytes.fromhex("b03c00000000000000000000000004e2")), Header("value", "decimal128", "-12.50")),
        (Raw(0x84, b"12345678"), Header("value", "decimal64", b"12345678".hex())),
    ],
    ids=["char", "decimal128", "decimal64"],
)
def test_values_at_which_the_sdk_breaks_block_nobody(
    bus: ServiceBusStandIn, broker: AzureServiceBus, raw: Raw, header: Header
) -> None:
    for queue in ("orders", "again"):
        bus.queue(queue)
    broker.publish("orders", [outgoing(b"good", 1), outgoing(b"odd", 2)])
    with bus.lock:
        bus.messages("orders")[1].application["value"] = raw
    good, odd = take(broker, "orders", 2)

    assert (good.letter.body, odd.letter.body) == (b"good", b"odd")
    assert odd.letter.headers == (header,)
    broker.publish("again", [as_it_came(odd)])
    assert bus.messages("again")[0].application == {"value": raw}
