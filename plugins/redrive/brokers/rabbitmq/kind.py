"""What RabbitMQ is, before there is a connection."""

from dataclasses import replace
from datetime import timedelta

from redrive.brokers.base import CUSTOM_FAILURE_HEADERS, BrokerKind, Capabilities, ConnectionForm
from redrive.brokers.rabbitmq.message import refuses_headers
from redrive.classification.causes import Cause

MAX_BYTES = 128 * 1024 * 1024
#: RabbitMQ's default consumer_timeout: how long a consumer may hold a message.
CONSUMER_TIMEOUT = timedelta(minutes=30)

#: Seconds that messages can be made to wait: a queue with this time to live each, made when it is needed first. With
#: one queue for all, a long wait in front would hold up the short ones behind it. None is more than half too long.
DELAYS = (1, 2, 3, 4, 6, 9, 13, 20, 30, 45, 60, 90, 120, 180, 240, 360, 540, 720, 900)

#: Headers that say how and why a message died, removed before it is sent again.
FAILURE_HEADERS = CUSTOM_FAILURE_HEADERS | {
    # the broker; sent again they would grow, and before 4.0 could make it drop the message as a cycle
    *("x-death", "x-first-death-queue", "x-first-death-reason", "x-first-death-exchange"),
    *("x-last-death-queue", "x-last-death-reason", "x-last-death-exchange"),
    *("x-delivery-count", "x-acquired-count", "x-opt-deaths"),
    # Spring's RepublishMessageRecoverer
    *("x-exception-message", "x-exception-stacktrace", "x-original-exchange", "x-original-routingKey"),
}

CAPABILITIES = Capabilities(
    knows_empty=False,
    stable_identity=False,
    gives_reason=True,
    single_target=True,
    native_dedupe=None,
    native_delay=timedelta(seconds=DELAYS[-1]),
    native_delays=DELAYS,
    max_headers=None,
    max_message_bytes=MAX_BYTES,
    publish_batch=1,
    failure_headers=FAILURE_HEADERS,
    max_lease=CONSUMER_TIMEOUT,
    settles_whole=True,
    untried_rights="read on sources; write on the default exchange",
    consumer_ids="kept",  # the property message_id, where the producer set one
    pipelines=True,
    reads_ahead=True,
)
#: With the management API the messages in flight are known too, and who holds them.
WITH_MANAGEMENT = replace(CAPABILITIES, knows_empty=True, consumer_statistics=True, closes_connections=True)

KIND = BrokerKind(
    title="RabbitMQ",
    adapter="redrive.brokers.rabbitmq.adapter:RabbitMQ",
    extra="rabbitmq",
    form=ConnectionForm(
        "amqp",
        labels={"host": "Host, or several separated by commas", "schema": "Virtual host"},
        placeholders={
            "port": "5672, with TLS 5671",
            "schema": "/",
            "extra": '{"management_url": "http://rabbitmq.internal:15672"}',
        },
    ),
    capabilities=WITH_MANAGEMENT,
    refuses_headers=refuses_headers,
    advice={
        Cause.LEASE_EXPIRED: (
            "On RabbitMQ: lower `prefetch_count` (`basic.qos`), ack as soon as the work is done, and raise "
            "`consumer_timeout` (30 minutes by default; per queue `x-consumer-timeout`); after it the broker "
            "closes the channel and requeues all that it held."
        ),
        Cause.MAX_DELIVERIES: (
            "On RabbitMQ the number is `x-delivery-limit` of a quorum queue (20 by default from 4.0)."
        ),
        Cause.CONSUMER_STUCK: (
            "On RabbitMQ `heartbeat` finds dead connections and `consumer_timeout` consumers that never ack."
        ),
        Cause.MESSAGE_EXPIRED: (
            "On RabbitMQ look at `x-message-ttl` and per-message `expiration`; the latter ends only at the queue's "
            "head."
        ),
        Cause.ROUTING_FAILURE: (
            "On RabbitMQ `maxlen` comes from `x-max-length` with `x-overflow`; `reject-publish` tells the "
            "producer, `drop-head` does not."
        ),
    },
    words={"isolation.action": "On RabbitMQ it needs the management API."},
)
