"""The Service Bus adapter: the contract on a stand-in that Microsoft's own client talks to, and what only it does."""

import itertools
import json
import ssl
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiver,
    ServiceBusSender,
    ServiceBusSubQueue,
    _servicebus_receiver,
    _servicebus_sender,
)
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp import client
from azure.servicebus._pyamqp.error import AMQPLinkError
from azure.servicebus.amqp import AmqpAnnotatedMessage
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from redrive.brokers import open_broker
from redrive.brokers.base import UNREADABLE
from redrive.brokers.service_bus import looking
from redrive.brokers.service_bus.adapter import AzureServiceBus
from redrive.brokers.service_bus.amqp_values import MAX_PROPERTY_BYTES, Encoded
from redrive.brokers.service_bus.clients import clients
from redrive.brokers.service_bus.kind import FAILURE_HEADERS
from redrive.brokers.service_bus.links import OUTCOME_TIMEOUT, Receiver
from redrive.brokers.service_bus.message import Address, message_id_of
from redrive.connections.lookup import parse
from redrive.errors import BrokerUnavailable, NothingSent, PermissionRefused, QueueMissing, SettingsError
from redrive.message import Header, Outgoing, Received, clean_headers
from redrive.settings import Route
from tests.contract.broker_contract import LEASE, NO_WAIT, PATIENCE, BrokerContract, outgoing
from tests.servers import free_port
from tests.stand_ins.service_bus import ServiceBusStandIn
from tests.stand_ins.service_bus.codec import VALUE, Raw, Section

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
    source_name = "{}/$Active"

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
                duplicate_window=600 if ordered else None,
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
        assert self.take(broker, live, 1, least=0) == []

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

        assert [r.letter.body for r in self.take(broker, queue, 2, least=1)] == [b"let go"]
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


def take(broker: AzureServiceBus, queue: str, count: int = 1, *, least: int | None = None) -> list[Received]:
    return BrokerContract.take(broker, queue, count, least=least)


def as_it_came(received: Received, number: int = 1, **changes: Any) -> Outgoing:
    """What a delivery makes of a received message."""
    letter = received.letter
    return outgoing(
        letter.body,
        number,
        headers=clean_headers(letter.headers, FAILURE_HEADERS),
        properties=letter.properties,
        ordering_key=letter.ordering_key,
        content_type=letter.content_type,
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
            [message] = receiver.receive_messages(1, max_wait_time=PATIENCE)
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
        receiver.abandon_message(receiver.receive_messages(1, max_wait_time=PATIENCE)[0])

    [received] = take(broker, "all-errors")
    assert received.letter.origin == "orders"
    assert dict(received.letter.properties)["DeadLetterSource"] == "orders"


@pytest.mark.parametrize(
    ("name", "told", "origin"),
    [
        ("NServiceBus.FailedQ", "orders", "orders"),
        ("NServiceBus.FailedQ", "orders@worker-7", "orders"),
        ("MT-Fault-InputAddress", "sb://shop.servicebus.windows.net/shop/orders?autodelete=300", "shop/orders"),
        ("MT-Fault-InputAddress", " ", None),
    ],
)
def test_what_a_framework_moved_to_a_queue_of_errors_says_where_it_failed(
    bus: ServiceBusStandIn, broker: AzureServiceBus, theirs: ServiceBusClient, name: str, told: str, origin: str | None
) -> None:
    bus.queue("error")
    produce(theirs, "error", ServiceBusMessage(b"x", application_properties={name: told}))
    [received] = take(broker, "error")
    assert received.letter.origin == origin


def test_the_dead_letters_of_a_session_queue_are_read_without_sessions(
    bus: ServiceBusStandIn, broker: AzureServiceBus
) -> None:
    bus.queue("orders", requires_session=True, max_delivery_count=1)
    broker.publish("orders", [outgoing(b"x", ordering_key="customer-7")])
    broker.release("orders", [take(broker, "orders")[0].receipt])

    [received] = take(broker, "orders/$DeadLetterQueue")
    assert received.letter.ordering_key == "customer-7"


@pytest.mark.parametrize(
    ("error", "sent", "asked"),
    [
        (ClientAuthenticationError("AADSTS7000222: the secret has expired"), PermissionRefused, PermissionRefused),
        (ServiceRequestError("login.microsoftonline.com: no route"), NothingSent, BrokerUnavailable),
        (
            ClientAuthenticationError(
                "AADSTS90033: a transient error", response=SimpleNamespace(status_code=503, reason="", text=lambda: "")
            ),
            NothingSent,
            BrokerUnavailable,
        ),
    ],
    ids=["refused", "away", "busy"],
)
def test_without_a_token_nothing_is_sent_and_it_is_said_why(
    bus: ServiceBusStandIn, broker: AzureServiceBus, error: Exception, sent: type[Exception], asked: type[Exception]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    bus.queue("orders")
    broker._namespace._client._credential.get_token = fail  # type: ignore[method-assign,assignment]
    with pytest.raises(sent, match=str(error)[:20]):
        broker.publish("orders", [outgoing()])
    with pytest.raises(asked, match=str(error)[:20]):
        broker.receive("orders", limit=1, wait=NO_WAIT, lease=LEASE)


def test_a_settle_that_ends_without_a_token_is_not_said_to_be_refused(
    bus: ServiceBusStandIn, broker: AzureServiceBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link broke, maybe behind completions that have no answer; a refusal would say that nothing was settled."""
    error = sdk.ServiceBusError("Handler failed", error=ClientAuthenticationError("AADSTS7000222: expired"))
    bus.queue("orders")
    broker.publish("orders", [outgoing()])
    [received] = take(broker, "orders")
    monkeypatch.setattr(Receiver, "complete", lambda _, messages: iter([error] * len(messages)))
    with pytest.raises(BrokerUnavailable, match="Handler failed"):
        broker.settle("orders", [received.receipt])


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
        receiver.defer_message(receiver.receive_messages(1, max_wait_time=PATIENCE)[0])

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
        [before] = one.receive_messages(1, max_wait_time=PATIENCE)
        [after] = other.receive_messages(1, max_wait_time=PATIENCE)
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


def test_what_a_jms_producer_wrote_survives(
    bus: ServiceBusStandIn, broker: AzureServiceBus, theirs: ServiceBusClient
) -> None:
    """Its consumer reads there that it is a MapMessage; without that it is taken for an ObjectMessage."""
    bus.queue("first")
    bus.queue("second")
    message = AmqpAnnotatedMessage(
        value_body={"sku": "a-17"},
        annotations={
            "x-opt-jms-msg-type": {"TYPE": "BYTE", "VALUE": 2},
            "x-opt-jms-dest": {"TYPE": "BYTE", "VALUE": 0},
            "x-opt-other": "theirs",
        },
        properties={"user_id": b"ana\xff", "creation_time": 1_700_000_000_123, "group_sequence": 7},
    )
    produce(theirs, "first", message)
    [received] = take(broker, "first")
    broker.publish("second", [as_it_came(received)])

    [before], [after] = bus.messages("first"), bus.messages("second")
    kept = {name: value for name, value in before.annotations.items() if "jms" in name}
    assert len(kept) == 2
    assert after.annotations == kept
    assert [type(value) for value in after.annotations.values()] == [type(value) for value in kept.values()]
    assert [after.properties[n] for n in (1, 9, 11)] == [before.properties[n] for n in (1, 9, 11)]
    assert after.properties[1] == b"ana\xff"
    assert after.properties[9] == 1_700_000_000_123
    assert after.properties[11] == 7


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


_NESTED = b"\x45"
for _ in range(70):
    _NESTED = b"\xd0" + (4 + len(_NESTED)).to_bytes(4, "big") + b"\x00\x00\x00\x01" + _NESTED


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (bytes.fromhex("c10602c002014141"), "value/amqp"),
        (b"\xf0" + (70_005).to_bytes(4, "big") + (70_000).to_bytes(4, "big") + b"\x50" + b"x" * 70_000, None),
        (_NESTED, None),
        (b"\x0f", None),
    ],
    ids=["a list as key", "a long array", "nested deeply", "no type"],
)
def test_a_body_at_which_the_sdk_breaks_blocks_nobody(
    bus: ServiceBusStandIn, broker: AzureServiceBus, body: bytes, kind: str | None
) -> None:
    for queue in ("orders", "again"):
        bus.queue(queue)
    broker.publish("orders", [outgoing(b"before", 1), outgoing(b"odd", 2), outgoing(b"after", 3)])
    with bus.lock:
        bus.messages("orders")[1].kept = [Section(VALUE, None, b"\x00\x53\x77" + body)]
    before, odd, after = take(broker, "orders", 3)
    assert (before.letter.body, after.letter.body) == (b"before", b"after")
    if kind is None:  # for people: it is not sent as what it never was
        assert (odd.letter.description or "").startswith(UNREADABLE) or odd.letter.body == body
        return
    assert (odd.letter.body, dict(odd.letter.properties)["BodyType"]) == (body, kind)


@pytest.mark.parametrize("body", [bytes.fromhex("c10602c002014141"), b"\x0f"], ids=["a list as key", "no type"])
def test_a_body_at_which_the_sdk_breaks_can_be_peeked_at(bus: ServiceBusStandIn, body: bytes) -> None:
    """Where nobody may administer, depth is counted by peeks, and what a queue is is found out by one."""
    bus.queue("orders")
    broker = adapter(bus, administered=False)
    broker.publish("orders", [outgoing(b"odd", 1), outgoing(b"after", 2)])
    with bus.lock:
        bus.messages("orders")[0].kept = [Section(VALUE, None, b"\x00\x53\x77" + body)]

    odd, after = broker.peek("orders", 2)
    assert ((odd.description or "").startswith(UNREADABLE), after.body) == (True, b"after")
    assert (broker.depth("orders").visible, broker.describe("orders").warnings) == (2, ())
    broker.close()


# --- message ids -----------------------------------------------------------------------------------------------

OWN = (("MessageId", "order-17"),)


@pytest.mark.parametrize("attempt", [1, 3])
@pytest.mark.parametrize("detects", [False, True])
def test_a_message_id_is_kept_only_where_nothing_is_detected(detects: bool, attempt: int) -> None:
    message = outgoing(properties=OWN, claimed_at=7)._replace(attempt=attempt)

    made = f"k3v9q2-00000000000001.{attempt}.7" if detects else "order-17"
    assert message_id_of(message, detects=detects) == (made, "order-17")


def test_duplicate_detection_drops_a_resend_and_no_attempt(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.queue("orders", duplicate_window=600)
    broker.publish("orders", [outgoing(b"x", dedup_id="order-17")])
    [first] = take(broker, "orders")
    again = as_it_came(first, claimed_at=7)
    for _ in range(2):
        assert broker.publish("orders", [again])[0].status == "sent"
    broker.publish("orders", [again._replace(attempt=2)])

    assert [m.message_id for m in bus.messages("orders")] == [
        "order-17",
        "k3v9q2-00000000000001.1.7",
        "k3v9q2-00000000000001.2.7",
    ]
    assert broker.capabilities_for("orders").native_dedupe == timedelta(minutes=10)


@pytest.mark.parametrize("by", ["queue", "subscription"])
def test_what_is_forwarded_to_where_duplicates_are_detected_is_not_dropped(
    bus: ServiceBusStandIn, broker: AzureServiceBus, by: str
) -> None:
    bus.queue("orders", duplicate_window=600)
    if by == "queue":
        bus.queue("entry", forward_to="orders")
    else:
        bus.topic("entry")
        bus.subscription("entry", "all", forward_to="orders")
    results = broker.publish("entry", [outgoing(b"%d" % n, n, properties=OWN) for n in range(3)])

    assert [result.status for result in results] == ["sent"] * 3
    assert bodies(bus, "orders") == [b"0", b"1", b"2"]


def test_the_own_id_travels_along_and_comes_back(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.queue("orders", duplicate_window=600)
    bus.queue("plain")
    broker.publish("orders", [outgoing(b"x", properties=OWN)])
    [message] = bus.messages("orders")
    assert message.message_id == "k3v9q2-00000000000001.1"
    assert message.application == {"x-redrive-message-id": "order-17"}

    broker.publish("plain", [as_it_came(take(broker, "orders")[0])])
    [message] = bus.messages("plain")
    assert (message.message_id, message.application) == ("order-17", {})


def test_where_nobody_may_ask_duplicates_are_expected(bus: ServiceBusStandIn) -> None:
    bus.queue("orders", duplicate_window=600)
    broker = adapter(bus, administered=False)
    for attempt in (1, 2):
        broker.publish("orders", [outgoing(b"x", properties=OWN)._replace(attempt=attempt)])

    assert len(bus.messages("orders")) == 2
    assert broker.capabilities_for("orders").native_dedupe is None
    broker.close()


# --- topics ----------------------------------------------------------------------------------------------------


def test_a_subscription_is_reached_through_its_topic_only(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.topic("news", duplicate_window=60)
    for name in ("mail", "push"):
        bus.subscription("news", name)
    broker.publish("news/Subscriptions/mail", [outgoing(b"x")])

    assert bodies(bus, "news/Subscriptions/mail") == bodies(bus, "news/Subscriptions/push") == [b"x"]
    for queue in ("news", "news/Subscriptions/mail"):
        able = broker.capabilities_for(queue)
        assert (able.single_target, able.native_dedupe) == (False, timedelta(minutes=1))
        assert broker.describe(queue).subscribers == 2
        assert broker.depth(queue).visible == 1
        assert broker.leads_to(queue, "NEWS/Subscriptions/Mail") is True
        assert broker.leads_to(queue, "news/Subscriptions/push") is (queue == "news")
        assert broker.leads_to(queue, "orders") is None, "a subscription may forward to it"
    bus.queue("orders")
    assert broker.leads_to("orders", "news/Subscriptions/mail") is False


def test_what_a_topic_keeps_for_later_is_counted(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.topic("news")
    for name in ("mail", "push"):
        bus.subscription("news", name)
    broker.publish("news", [outgoing(number=1), outgoing(number=2, delay_seconds=3600)])

    for queue in ("news", "news/Subscriptions/mail"):
        depth = broker.depth(queue)
        assert (depth.visible, depth.delayed) == (1, 1)
        assert depth.total == 2, "or a look after its time would show that it was worked off"


@pytest.mark.parametrize("by", ["queue", "subscription", "several hops"])
def test_what_forwards_is_as_full_as_where_it_leads(bus: ServiceBusStandIn, broker: AzureServiceBus, by: str) -> None:
    bus.queue("orders")
    if by == "subscription":
        bus.topic("entry")
        bus.subscription("entry", "all", forward_to="orders")
    elif by == "queue":
        bus.queue("entry", forward_to="Orders")
    else:
        bus.queue("entry", forward_to="news")
        bus.topic("news")
        bus.subscription("news", "all", forward_to="last")
        bus.queue("last", forward_to="orders")
    broker.publish("entry", [outgoing(number=n) for n in range(3)])

    assert broker.depth("entry").total == 3
    if by == "subscription":
        assert broker.depth("entry/Subscriptions/all").total == 3
    assert broker.depth("entry/$DeadLetterQueue").total == (None if by == "subscription" else 0)
    take(broker, "orders", 3)
    assert broker.depth("entry").total == 3, "what a consumer has locked is not worked off"
    assert not broker.capabilities_for("entry").exact_depth


def test_what_forwards_to_nobody_knows_where_is_of_unknown_depth(
    bus: ServiceBusStandIn, broker: AzureServiceBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus.queue("entry", forward_to="gone")
    assert broker.depth("entry").total is None

    for hop in range(5):
        bus.queue(f"hop-{hop}", forward_to=f"hop-{hop + 1}")
    bus.queue("hop-5")
    assert broker.depth("hop-1").total == 0
    assert broker.depth("hop-0").total is None, "Service Bus goes no further than four"
    monkeypatch.setattr(looking, "FOLLOWED", 1)
    assert broker.depth("hop-1").total is None


def test_a_topic_is_taken_for_one_where_nobody_may_ask(bus: ServiceBusStandIn) -> None:
    bus.topic("news")
    bus.queue("orders")
    broker = adapter(bus, administered=False)

    assert not broker.capabilities_for("news").single_target
    assert broker.capabilities_for("orders").single_target
    assert broker.depth("news").total is None
    broker.close()


@pytest.mark.parametrize("rights", [{"Send", "Listen"}, {"Send"}])
def test_without_manage_only_what_lets_somebody_receive_is_a_queue(bus: ServiceBusStandIn, rights: set[str]) -> None:
    bus.topic("news")
    bus.subscription("news", "mail")
    bus.queue("orders")
    bus.queue("by-session", requires_session=True)
    bus.queue("entry", forward_to="news")
    bus.keys["worker"] = ("c2VjcmV0", frozenset(rights))
    broker = adapter(bus, key="worker")
    broker.publish("news", [outgoing(), outgoing(number=2, delay_seconds=3600)])

    queues = {"orders"} | {"by-session"} if "Listen" in rights else set()
    for name in ("news", "orders", "by-session", "entry"):
        assert broker.capabilities_for(name).single_target is (name in queues)
    for name in ("news", "entry"):
        assert broker.depth(name).total is None
    assert broker.depth("orders").total == (0 if "Listen" in rights else None)
    broker.close()


def test_what_can_not_be_asked_now_is_taken_for_a_topic_and_asked_again(bus: ServiceBusStandIn) -> None:
    bus.queue("orders")
    bus.keys["worker"] = ("c2VjcmV0", frozenset({"Send", "Listen"}))
    broker = adapter(bus, key="worker")
    bus.will_fail("peek-message", "orders", *["com.microsoft:server-busy"] * 20)
    able = broker.capabilities_for("orders")
    assert (able.single_target, able.knows_empty) == (False, False)

    bus.faults.clear()
    assert broker.capabilities_for("orders").single_target
    broker.close()


# --- sending ---------------------------------------------------------------------------------------------------


def statuses(broker: AzureServiceBus, queue: str, *messages: Outgoing) -> list[str]:
    return [result.status for result in broker.publish(queue, messages)]


def test_messages_go_in_batches(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.queue("orders")

    assert statuses(broker, "orders", *(outgoing(b"%d" % n, n) for n in range(1200))) == ["sent"] * 1200
    assert (bus.sent, bus.transfers) == (1200, 3)


def test_a_batch_of_a_partitioned_queue_shares_its_key(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.queue("orders", partitioned=True)
    messages = [outgoing(b"%d" % n, n, ordering_key="ab"[n % 2]) for n in range(6)]

    assert statuses(broker, "orders", *messages) == ["sent"] * 6
    assert bus.transfers == 6


def test_a_message_that_a_batch_is_rejected_for_is_found(bus: ServiceBusStandIn) -> None:
    bus.queue("orders", requires_session=True)
    broker = adapter(bus, administered=False)  # with the right to ask it is found before
    messages = [outgoing(b"%d" % n, n, ordering_key=None if n == 3 else f"s{n}") for n in range(8)]
    results = broker.publish("orders", messages)

    assert [result.status for result in results] == ["sent"] * 3 + ["refused"] + ["sent"] * 4
    assert "SessionId" in results[3].detail
    assert len(bus.messages("orders")) == 7
    broker.close()


def test_a_message_without_a_session_is_refused_in_plain_words(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.queue("orders", requires_session=True)
    [result] = broker.publish("orders", [outgoing()])

    assert (result.status, result.detail) == (
        "refused",
        "it has no session id, and its destination requires sessions",
    )


def test_a_premium_queue_takes_what_no_batch_takes(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.queue("orders", max_message_bytes=4 << 20)
    results = broker.publish("orders", [outgoing(b"x" * (2 << 20)), outgoing(b"x" * (5 << 20), 2), outgoing(number=3)])

    assert [result.status for result in results] == ["sent", "refused", "sent"]
    assert str(4 << 20) in results[1].detail
    assert broker.capabilities_for("orders").max_message_bytes == 4 << 20


def test_a_lost_answer_is_unknown_and_nothing_is_sent_again(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.queue("orders")
    bus.lose_answers = 1
    first = [outgoing(b"%d" % n, n) for n in range(500)]
    second = [outgoing(b"%d" % n, n) for n in range(500, 700)]

    assert statuses(broker, "orders", *first, *second) == ["unknown"] * 500 + ["sent"] * 200
    assert len(bus.messages("orders")) == 700


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ("com.microsoft:argument-error", "refused"),
        ("amqp:internal-error", "unknown"),
        ("com.microsoft:timeout", "unknown"),
        ("com.microsoft:operation-cancelled", "unknown"),
    ],
)
def test_a_rejection_says_what_became_of_the_message(
    bus: ServiceBusStandIn, broker: AzureServiceBus, condition: str, status: str
) -> None:
    bus.queue("orders")
    bus.will_fail("send", "orders", condition)

    assert statuses(broker, "orders", outgoing()) == [status]


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize(
    "error", [sdk.ServiceBusAuthorizationError, sdk.MessagingEntityDisabledError, sdk.MessagingEntityNotFoundError]
)
def test_an_error_of_a_link_in_use_may_hide_an_answer(
    bus: ServiceBusStandIn,
    broker: AzureServiceBus,
    monkeypatch: pytest.MonkeyPatch,
    error: type[sdk.ServiceBusError],
    before: int,
) -> None:
    """A token that ends, an entity that is disabled: the link goes, and with it the word on what was under way, were it
    the first of the link."""
    bus.queue("orders")
    assert statuses(broker, "orders", *map(outgoing, [b"x"] * before)) == ["sent"] * before

    def detached(*_: object, **__: object) -> None:
        raise error(message="the link is gone", error=AMQPLinkError(b"amqp:unauthorized-access"))

    monkeypatch.setattr(ServiceBusSender, "send_messages", detached)
    assert statuses(broker, "orders", outgoing(number=2)) == ["unknown"]


def test_a_link_that_cannot_be_opened_again_has_taken_nothing(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.queue("orders")
    assert statuses(broker, "orders", outgoing()) == ["sent"]
    broker._namespace.sender(Address("orders")).close()
    bus.queue("orders", disabled=True)
    with pytest.raises(NothingSent, match="the entity is disabled"):
        broker.publish("orders", [outgoing(number=2)])


def test_a_busy_service_is_asked_again(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.queue("orders")
    bus.will_fail("send", "orders", *["com.microsoft:server-busy"] * 3)
    assert statuses(broker, "orders", outgoing()) == ["sent"]

    bus.will_fail("send", "orders", *["com.microsoft:server-busy"] * 9)
    assert statuses(broker, "orders", outgoing()) == ["retry"]


def test_behind_a_message_of_unknown_fate_its_key_waits(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.queue("orders")
    bus.lose_answers = 1
    keys = ["a"] * 500 + ["a", "b"]
    results = statuses(broker, "orders", *(outgoing(b"x", n, ordering_key=key) for n, key in enumerate(keys)))

    assert results == ["unknown"] * 500 + ["retry", "sent"]


@pytest.mark.parametrize(
    ("condition", "error", "words"),
    [
        ("com.microsoft:entity-disabled", NothingSent, r"queue orders: 127.0.0.1:\d+: the entity is disabled"),
        ("amqp:resource-limit-exceeded", NothingSent, "queue orders"),
        ("amqp:unauthorized-access", PermissionRefused, "queue orders"),
        ("amqp:not-found", QueueMissing, "queue orders"),
    ],
)
def test_what_concerns_the_entity_is_raised_where_nothing_was_sent(
    bus: ServiceBusStandIn, broker: AzureServiceBus, condition: str, error: type[Exception], words: str
) -> None:
    bus.queue("orders")
    bus.will_fail("send", "orders", condition)

    with pytest.raises(error, match=words):
        broker.publish("orders", [outgoing()])


def test_a_disabled_entity_is_told_by_name(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.queue("orders", disabled=True)

    with pytest.raises(BrokerUnavailable, match=r"publish on queue orders: 127.0.0.1:\d+: the entity is disabled"):
        broker.publish("orders", [outgoing()])
    with pytest.raises(BrokerUnavailable, match=r"receive on queue orders: 127.0.0.1:\d+: the entity is disabled"):
        broker.receive("orders", limit=1, wait=NO_WAIT, lease=LEASE)


# --- links -----------------------------------------------------------------------------------------------------


def test_many_are_settled_without_waiting_for_each(
    bus: ServiceBusStandIn, broker: AzureServiceBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus.queue("orders")
    broker.publish("orders", [outgoing(number=n) for n in range(450)])
    receipts = [received.receipt for received in take(broker, "orders", 450)]
    one_by_one: list[object] = []
    monkeypatch.setattr(ServiceBusReceiver, "complete_message", lambda _, message: one_by_one.append(message))

    assert broker.settle("orders", receipts).count == 450
    assert bus.messages("orders") == []
    assert one_by_one == [], "the SDK's inner parts have changed: see service_bus_links.py"


def test_many_locks_are_renewed_in_few_requests(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.queue("orders")
    broker.publish("orders", [outgoing(number=n) for n in range(250)])
    receipts = [received.receipt for received in take(broker, "orders", 250)]
    broker.settle("orders", receipts[:1])
    broker.extend("orders", receipts, LEASE)

    assert bus.operations["renew-lock"] == 3


def test_one_lost_lock_does_not_spoil_the_renewal_of_others(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.queue("orders", lock_duration=LOCK)
    broker.publish("orders", [outgoing(b"%d" % n, n) for n in range(3)])
    receipts = [received.receipt for received in take(broker, "orders", 3)]
    with bus.lock:
        bus.entity("orders").abandon(bus.messages("orders")[1])
    bus.let_pass(LOCK * 0.8)
    broker.extend("orders", receipts, LEASE)
    bus.let_pass(LOCK * 0.8)
    settled = broker.settle("orders", receipts)

    assert (settled.count, [receipt for receipt, _ in settled.failures]) == (2, [receipts[1]])
    assert "lock" in settled.failures[0][1]


def test_a_short_receive_locks_nothing_that_comes_later(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.queue("orders")
    broker.publish("orders", [outgoing(b"first")])
    assert len(broker.receive("orders", limit=50, wait=NO_WAIT, lease=LEASE)) == 1
    broker.publish("orders", [outgoing(b"second", 2)])
    time.sleep(0.2)

    [later] = [message for message in bus.messages("orders") if message.sequence == 2]
    assert later.lock is None


def test_of_large_messages_a_receive_locks_only_what_has_room(
    bus: ServiceBusStandIn, broker: AzureServiceBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.brokers.service_bus.links.RECEIVE_BYTES", 150 * 1024)
    bus.queue("orders")
    broker.publish("orders", [outgoing(b"x" * 1024, n) for n in range(450)])

    receives = list[int]()
    while sum(receives) < 450 and len(receives) < 20:  # a machine that is busy may give less than there is room for
        receives.append(len(broker.receive("orders", limit=1_000, wait=NO_WAIT, lease=LEASE)))
    assert sum(receives) == 450
    assert max(receives) <= 200


def test_a_session_that_has_more_than_has_room_is_read_on(
    bus: ServiceBusStandIn, broker: AzureServiceBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.brokers.service_bus.links.RECEIVE_BYTES", 50 * 1024)
    bus.queue("orders", requires_session=True)
    for key in ("a", "b"):
        broker.publish("orders", [outgoing(key.encode() * 1024, n, ordering_key=key) for n in range(150)])

    seen = list[str]()
    while got := broker.receive("orders", limit=1_000, wait=NO_WAIT, lease=LEASE):
        seen.append(f"{len(got)} {got[0].letter.ordering_key}")
        broker.settle("orders", [one.receipt for one in got])
    assert seen == ["100 a", "50 a", "100 b", "50 b"], "one session to its end, then the next"


def test_links_start_no_threads(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.queue("orders")
    before = set(threading.enumerate())  # one that an earlier test left may end meanwhile
    broker.publish("orders", [outgoing()])
    take(broker, "orders")

    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("how", ["drop_connections", "restart"])
def test_what_was_received_is_settled_over_a_new_link(
    bus: ServiceBusStandIn, broker: AzureServiceBus, how: str
) -> None:
    bus.queue("orders")
    broker.publish("orders", [outgoing(number=n) for n in range(5)])
    receipts = [received.receipt for received in take(broker, "orders", 5)]
    broker.settle("orders", receipts[:1])
    getattr(bus, how)()

    assert broker.settle("orders", receipts[1:]).count == 4
    assert bus.messages("orders") == []
    assert statuses(broker, "orders", outgoing(number=9)) in (["sent"], ["unknown"])
    taken = take(broker, "orders", least=len(bus.messages("orders")))
    assert len(taken) == len(bus.messages("orders"))


def test_settling_on_a_dead_server_says_so_soon(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.queue("orders")
    broker.publish("orders", [outgoing(number=n) for n in range(300)])
    receipts = [received.receipt for received in take(broker, "orders", 300)]
    bus.stop()
    started = time.monotonic()

    with pytest.raises(BrokerUnavailable, match="settle on queue orders"):
        broker.settle("orders", receipts)
    assert time.monotonic() - started < OUTCOME_TIMEOUT, "nobody waits for answers of who is gone"


# --- sessions --------------------------------------------------------------------------------------------------


def test_more_sessions_than_can_be_held_are_read_in_turns(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.queue("orders", requires_session=True)
    broker.publish("orders", [outgoing(b"%d" % n, n, ordering_key=f"s{n:02}") for n in range(11)])
    seen: list[int] = []
    while got := take(broker, "orders", 100, least=len(seen) < 11):
        seen += [int(received.letter.body) for received in got]
        broker.settle("orders", [received.receipt for received in got])

    assert sorted(seen) == list(range(11))


def test_a_lost_session_is_a_failure_of_its_messages_only(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.queue("orders", requires_session=True, lock_duration=LOCK)
    broker.publish("orders", [outgoing(b"%d" % n, n, ordering_key=f"s{n}") for n in range(2)])
    lost, kept = (received.receipt for received in take(broker, "orders", 2))
    with bus.lock:
        bus.entity("orders").end_session("s0")
    broker.extend("orders", [lost, kept], LEASE)
    settled = broker.settle("orders", [lost, kept])

    assert (settled.count, [receipt for receipt, _ in settled.failures]) == (1, [lost])


# --- rights ----------------------------------------------------------------------------------------------------


def test_wrong_credentials_are_told_as_such(bus: ServiceBusStandIn) -> None:
    bus.queue("orders")
    value = connection(bus.connection_string(secret="d3Jvbmc="), admin_endpoint=bus.admin_url)
    broker = AzureServiceBus.open("bus_test", env={"AIRFLOW_CONN_BUS_TEST": value}, sleep=lambda _: None)

    with pytest.raises(PermissionRefused, match="depth on queue orders: the credentials are refused"):
        broker.depth("orders")
    broker.close()


def test_a_destination_needs_the_right_to_send_only(bus: ServiceBusStandIn) -> None:
    bus.queue("orders")
    bus.keys["sender"] = ("c2VjcmV0", frozenset({"Send"}))
    broker = adapter(bus, key="sender")

    assert broker.depth("orders").total is None
    assert statuses(broker, "orders", outgoing()) == ["sent"]
    with pytest.raises(PermissionRefused, match=r"receive on queue orders.*Listen"):
        broker.receive("orders", limit=1, wait=NO_WAIT, lease=LEASE)
    broker.close()


def test_without_the_right_to_ask_depth_is_counted_by_looking(
    bus: ServiceBusStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus.queue("orders")
    bus.keys["worker"] = ("c2VjcmV0", frozenset({"Send", "Listen"}))
    broker = adapter(bus, key="worker")
    broker.publish("orders", [outgoing(number=n) for n in range(300)])
    broker.publish("orders", [outgoing(number=301, delay_seconds=3600)])
    take(broker, "orders", 10)

    assert broker.depth("orders")[:3] == (290, 10, 1)
    assert not broker.capabilities_for("orders").knows_empty
    assert broker.describe("orders").lease is None
    monkeypatch.setattr(looking, "PEEK_LIMIT", 250)
    assert broker.depth("orders").total is None
    assert all(message.failed_deliveries == 0 for message in bus.messages("orders"))
    broker.close()


def test_a_description_tells_what_is_known(bus: ServiceBusStandIn, broker: AzureServiceBus) -> None:
    bus.queue("orders", lock_duration=45, max_delivery_count=7, time_to_live=86_400)
    live, dead = broker.describe("orders"), broker.describe("orders/$DeadLetterQueue")

    assert (live.lease, live.max_deliveries, live.retention) == (timedelta(seconds=45), 7, timedelta(days=1))
    assert (live.origin_lease, dead.origin_lease) == (None, timedelta(seconds=45))
    assert live.dead_letter_queue == "orders/$DeadLetterQueue"
    assert (dead.lease, dead.max_deliveries, dead.retention, dead.dead_letter_queue) == (
        timedelta(seconds=45),
        7,
        None,
        None,
    )
    assert broker.capabilities_for("orders/$DeadLetterQueue").max_lease == timedelta(seconds=45)


@pytest.mark.parametrize("of", ["orders", "news/Subscriptions/mail"])
def test_a_dead_letter_queue_that_gets_nothing_any_more_says_where_it_goes(bus: ServiceBusStandIn, of: str) -> None:
    bus.queue("errors")
    bus.topic("news")
    bus.queue("orders", forward_dead_letters_to="errors")
    bus.subscription("news", "mail", forward_dead_letters_to="errors")
    broker = adapter(bus)
    dead, not_forwarded = f"{of}/$DeadLetterQueue", f"{of}/$Transfer/$DeadLetterQueue"

    assert broker.capabilities_for(dead).letters_go_to == ("errors/$Active", "errors/Subscriptions/*/$Active")
    assert broker.describe(of).dead_letter_queue == "errors/$Active"
    assert broker.origins(dead) == {of}, "what lies there from before goes back to it"
    [warning] = broker.describe(dead).warnings
    assert (
        f"gets nothing any more: {of} forwards its dead letters, to errors/$Active or, of a topic, errors/Sub"
        in warning
    )
    for queue in (of, not_forwarded, "errors", "errors/$DeadLetterQueue"):
        assert broker.capabilities_for(queue).letters_go_to == ()
        assert broker.describe(queue).warnings == ()
    broker.close()


# --- connections -----------------------------------------------------------------------------------------------


def test_the_registry_opens_it_by_connection_id(bus: ServiceBusStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    bus.queue("orders")
    value = connection(bus.connection_string(), admin_endpoint=bus.admin_url)
    monkeypatch.setenv("AIRFLOW_CONN_BUS_DEMO", value)
    broker = open_broker("azure_service_bus", "bus_demo")

    assert broker.depth("orders").total == 0
    assert bus.admin_requests == 2
    broker.close()


NAMESPACE = {"fully_qualified_namespace": "shop.servicebus.windows.net"}
STRING = "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"conn_type": "aws"}, "'aws', not azure_service_bus"),
        ({"conn_type": "azure_service_bus"}, "connection string in schema, or extra.fully_qualified_namespace"),
        ({"conn_type": "azure_service_bus", "schema": "nonsense"}, "malformed"),
        ({"conn_type": "azure_service_bus", "schema": STRING, "extra": {"transport_type": "Pigeon"}}, "Pigeon"),
        ({"conn_type": "azure_service_bus", "schema": STRING, "extra": {"admin_endpoint": "x:1"}}, "admin_endpoint"),
        ({"conn_type": "azure_service_bus", "login": "a", "password": "b", "extra": NAMESPACE}, "tenantId"),
        ({"conn_type": "azure_service_bus", "extra": {**NAMESPACE, "credential": "x"}}, "extra.credential"),
    ],
    ids=["type", "nothing", "string", "transport", "admin", "tenant", "credential"],
)
def test_a_wrong_connection_says_what_is_wrong(value: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=f"connection bus_test.*{words}"):
        AzureServiceBus.open("bus_test", env={"AIRFLOW_CONN_BUS_TEST": json.dumps(value)})


def test_options_of_the_connection_reach_the_client() -> None:
    extra = {"transport_type": "AmqpOverWebsocket", "http_proxy": {"proxy_hostname": "p", "proxy_port": 1}}
    extra |= {"connection_verify": "/etc/ca.pem", "custom_endpoint_address": "sb://gateway:5671"}
    given = parse("bus_test", connection(STRING, **extra))
    client, _ = clients(given, time.monotonic, retry_total=0)

    config = client.get_queue_sender("orders")._config
    assert (config.transport_type.name, config.connection_verify, config.retry_total) == (
        "AmqpOverWebsocket",
        "/etc/ca.pem",
        0,
    )
    assert config.http_proxy == extra["http_proxy"]


def test_a_service_principal_is_taken_from_login_and_password() -> None:
    given = parse(
        "bus_test",
        json.dumps(
            {
                "conn_type": "azure_service_bus",
                "login": "app",
                "password": "secret",
                "extra": {**NAMESPACE, "tenantId": "0f8fad5b-d9cb-469f-a165-70867728950e"},
            }
        ),
    )
    client, _ = clients(given, time.monotonic)

    assert type(client._credential).__name__ == "ClientSecretCredential"
    assert client.fully_qualified_namespace == "shop.servicebus.windows.net"


@pytest.mark.parametrize(
    ("source", "drained"),
    [
        ({"queue": "orders"}, "orders/$DeadLetterQueue"),
        ({"queue": "news/Subscriptions/mail"}, "news/Subscriptions/mail/$DeadLetterQueue"),
        ({"queue": "orders/$Transfer/$DeadLetterQueue"}, "orders/$Transfer/$DeadLetterQueue"),
        ({"queue": "errors/$Active"}, "errors/$Active"),
        ({"queue": "later", "kind": "delay", "delay": "5m", "destination": "orders"}, "later"),
    ],
    ids=["queue", "subscription", "transfer", "itself", "delay"],
)
def test_a_source_of_dead_letters_is_never_the_live_queue(source: dict[str, str], drained: str) -> None:
    """``orders`` of kind ``dead_letter`` means its dead-letter queue: nobody's live messages are drained by mistake."""
    route = Route.model_validate({"broker": "azure_service_bus", "connection": "bus", "sources": [source]})

    assert route.sources[0].queue == drained


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate of its own for 127.0.0.1."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "stand-in")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(secret + made.public_bytes(pem))
    return path


@pytest.mark.parametrize("trusted", [True, False], ids=["trusted", "not-trusted"])
def test_tls_with_a_certificate_authority_of_ones_own(certificate: Path, trusted: bool) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with ServiceBusStandIn(tls=context) as bus:
        bus.queue("orders")
        extra = {"custom_endpoint_address": f"sb://127.0.0.1:{bus.port}", "transport_type": "Amqp"}
        extra |= {"admin_endpoint": bus.admin_url} | ({"connection_verify": str(certificate)} if trusted else {})
        value = connection(bus.connection_string(), **extra)
        broker = AzureServiceBus.open("bus_test", env={"AIRFLOW_CONN_BUS_TEST": value}, sleep=lambda _: None)

        if trusted:
            assert statuses(broker, "orders", outgoing()) == ["sent"]
            assert broker.depth("orders").visible == 1
        else:
            with pytest.raises(BrokerUnavailable, match=r"depth on queue orders.*certificate"):
                broker.depth("orders")
        broker.close()


def test_without_a_connection_string_the_credentials_are_those_of_airflows_hook(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, object]] = []
    utils = SimpleNamespace(get_sync_default_azure_credential=lambda **given: asked.append(given) or "a credential")
    monkeypatch.setitem(sys.modules, "airflow.providers.microsoft.azure.utils", utils)  # type: ignore[arg-type]
    extra = NAMESPACE | {"extra__azure_service_bus__managed_identity_client_id": "client-1"}
    given = parse("bus_test", json.dumps({"conn_type": "azure_service_bus", "extra": extra}))
    client, _ = clients(given, time.monotonic)

    assert client._credential == "a credential"
    assert asked == [{"managed_identity_client_id": "client-1", "workload_identity_tenant_id": None}]
