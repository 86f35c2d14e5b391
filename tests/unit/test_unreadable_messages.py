"""One message that can't be converted is received with what can be: it never blocks its queue."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from redrive.brokers.base import UNREADABLE, readable
from redrive.brokers.pubsub import message as pubsub_message
from redrive.brokers.pulsar import message as pulsar_message
from redrive.brokers.rabbitmq import content_header
from redrive.brokers.rabbitmq import message as rabbitmq_message
from redrive.brokers.service_bus import message as service_bus_message
from redrive.brokers.sqs import message as sqs_message
from redrive.errors import BrokerUnavailable
from redrive.message import MOST, DeadLetter, Header


class Broken:
    """Whatever is asked of it, it can't be read."""

    def __call__(self, *_: object, **__: object) -> Any:
        raise UnicodeDecodeError("utf-8", b"\\xff", 0, 1, "invalid start byte")

    __getattr__ = __getitem__ = get = items = __iter__ = __call__


class PulsarId:
    def ledger_id(self) -> int:
        return 7

    entry_id = partition = batch_index = ledger_id


def of_sqs() -> DeadLetter:
    return sqs_message.received(
        {
            "MessageId": "7:7:7:7",
            "Body": "body",
            "ReceiptHandle": "r",
            "MessageAttributes": {"a": {"DataType": "String"}},
        },
        str,
    ).letter


def of_rabbitmq() -> DeadLetter:
    return rabbitmq_message.letter_of(
        b"\x20\x00\x00\x00\x00\x05\x01a?", b"body", queue="q", exchange="", routing_key="q", redelivered=False
    )


def of_pubsub() -> DeadLetter:
    inner = SimpleNamespace(message_id="7:7:7:7", data=b"body", attributes=Broken())
    message = SimpleNamespace(message=inner, ack_id="a", delivery_attempt=1)
    return pubsub_message.received(message, lambda *_: None).letter


def of_pulsar() -> DeadLetter:
    message = SimpleNamespace(message_id=PulsarId, data=lambda: b"body", properties=Broken())
    return pulsar_message.letter(message, str)


def of_service_bus() -> DeadLetter:
    raw = SimpleNamespace(
        annotations={}, properties=SimpleNamespace(message_id=b"7:7:7:7"), body=[b"body"],
        body_type=service_bus_message.AmqpMessageBodyType.DATA, application_properties=Broken(), header=None,
    )  # fmt: skip
    message: Any = SimpleNamespace(raw_amqp_message=raw, delivery_count=0)
    return service_bus_message.letter(message, b"", service_bus_message.Address("orders"))


@pytest.mark.parametrize("read", [of_sqs, of_rabbitmq, of_pubsub, of_pulsar, of_service_bus])
def test_a_message_that_can_not_be_read_is_received_with_its_body(read: Callable[[], DeadLetter]) -> None:
    letter = read()

    assert (letter.body, letter.deliveries) == (b"body", 0)
    assert letter.broker_message_id == ("" if read is of_rabbitmq else "7:7:7:7")
    assert letter.description is not None
    assert letter.description.startswith(UNREADABLE)


def test_what_is_not_the_messages_fault_is_raised() -> None:
    def ask() -> DeadLetter:
        raise BrokerUnavailable("nobody says where it failed")

    with pytest.raises(BrokerUnavailable):
        readable(ask, lambda: DeadLetter("", b""))


def rabbit(headers: dict[str, object]) -> DeadLetter:
    raw = content_header.encode({}, [Header(name, "table", json.dumps(value)) for name, value in headers.items()])
    return rabbitmq_message.letter_of(raw, b"", queue="dlq", exchange="", routing_key="dlq", redelivered=False)


@pytest.mark.parametrize(
    ("headers", "deliveries"),
    [
        ({"x-death": [{"queue": "orders", "reason": "rejected", "count": 2**40}]}, MOST),
        ({"x-death": [{"queue": "orders", "reason": "rejected", "count": 2**31 - 1}] * 3}, MOST),
        ({"x-death": [{"queue": "orders", "reason": "rejected", "count": "\u00b2"}]}, 1),
        ({"x-death": [{"queue": "orders", "reason": "rejected", "count": -(2**40)}]}, 1),
        ({"x-delivery-count": "99999999999"}, MOST),
        ({"x-delivery-count": "\u00b2"}, 1),
        ({"x-delivery-count": 2**62}, MOST),
        ({"x-delivery-count": 4}, 5),
    ],
)
def test_counts_of_rabbitmq_fit(headers: dict[str, object], deliveries: int) -> None:
    assert rabbit(headers).deliveries == deliveries


@pytest.mark.parametrize("time", ["253402300800", "9" * 19, "0001-01-01T00:00:00", "0001-01-01T00:00:00+23:59"])
def test_times_of_rabbitmq_fit(time: str) -> None:
    letter = rabbit({"x-death": [{"queue": "orders", "reason": "rejected", "time": time}]})

    assert (letter.enqueued_at, letter.dead_lettered_at) == (None, None)


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.9-23:59", "1969-12-31T23:59:59Z"])
@pytest.mark.parametrize("told", ["99999999999", "\u00b2", "-1", ""])
def test_what_a_publisher_writes_into_pubsubs_attributes_fits(told: str, time: str) -> None:
    published = SimpleNamespace(seconds=1_760_000_000, nanos=0)
    attributes = {pubsub_message.COUNT: told, pubsub_message.PUBLISHED: time}
    inner = SimpleNamespace(message_id="1", data=b"", attributes=attributes, publish_time=published, ordering_key="")
    message = SimpleNamespace(message=inner, ack_id="a", delivery_attempt=3)
    letter = pubsub_message.received(message, lambda *_: None).letter

    assert letter.deliveries == (MOST if told.isascii() and told.isdigit() else 3)
    assert letter.enqueued_at == 1_760_000_000_000_000
    assert letter.description is None


def test_a_year_of_the_producers_clock_is_no_time() -> None:
    message = SimpleNamespace(
        message_id=PulsarId, data=lambda: b"", properties=lambda: {"REAL_TOPIC": "t", "RECONSUMETIMES": "4" * 20},
        publish_timestamp=lambda: 2**63, redelivery_count=lambda: 0, partition_key=str, ordering_key=str,
        event_timestamp=int, has_null_value=bool, schema_version=str, topic_name=str,
    )  # fmt: skip
    letter = pulsar_message.letter(message, str)

    assert (letter.deliveries, letter.enqueued_at, letter.dead_lettered_at) == (MOST, None, None)
    assert letter.headers
