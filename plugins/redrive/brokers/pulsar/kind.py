"""What Apache Pulsar is, before there is a connection."""

import re
from datetime import timedelta

from redrive.brokers.base import CUSTOM_FAILURE_HEADERS, BrokerKind, Capabilities, ConnectionForm
from redrive.brokers.pulsar.message import BATCH, MAX_BYTES, REAL_TOPIC, RECONSUMES, base_topic, refuses_headers
from redrive.classification.causes import Cause

#: Written by client libraries that dead-letter or retry, and by consumers that dead-letter by themselves.
FAILURE_HEADERS = CUSTOM_FAILURE_HEADERS | {
    *(REAL_TOPIC, RECONSUMES, "ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_IDY_TIME"),
    *("DELAY_TIME", "RETRY_TOPIC", "REAL_SUBSCRIPTION"),
}

CAPABILITIES = Capabilities(
    knows_empty=False,  # backlogs count entries, and an entry may hold many messages
    stable_identity=True,
    gives_reason=False,
    single_target=False,
    native_dedupe=None,  # it goes by a producer's rising numbers; attempts of several tasks have none
    native_delay=timedelta(days=7),  # no bound of its own, but brokers keep what is delayed in memory
    max_headers=None,
    max_message_bytes=MAX_BYTES,
    publish_batch=BATCH,
    failure_headers=FAILURE_HEADERS,
    consumer_statistics=True,
    closes_connections=True,
    closes_all_together=True,
    untried_rights="consume on the topics of sources; produce on destinations",
    ids_of_sends=True,
)

#: persistent://tenant/namespace/topic
FULL_NAME = re.compile(r"persistent://([^/]+)/([^/]+)/(.+)", re.DOTALL)


def name_tells(queue: str) -> tuple[str | None, ...]:
    """The tenant, namespace and partition, and the topic that all its partitions are."""
    found = FULL_NAME.fullmatch(queue)
    tenant, namespace, topic = found.groups() if found else (None, None, queue)
    base = base_topic(topic)
    return tenant, namespace, topic[len(base) :] or None, base


KIND = BrokerKind(
    title="Pulsar",
    adapter="redrive.brokers.pulsar.adapter:ApachePulsar",
    extra="pulsar",
    form=ConnectionForm(
        "pulsar",
        labels={"schema": "Tenant/namespace", "password": "Token, or password"},
        placeholders={
            "port": "6650, with TLS 6651",
            "schema": "public/default",
            "extra": '{"admin_url": "http://pulsar.internal:8080"}',
        },
    ),
    capabilities=CAPABILITIES,
    name_tells=name_tells,
    refuses_headers=refuses_headers,
    advice={
        Cause.LEASE_EXPIRED: (
            "On Pulsar: lower `receiver_queue_size`, raise or drop `unacked_messages_timeout_ms` "
            "(`ackTimeout`), use `negative_ack_redelivery_delay_ms` for failures instead of the timeout, and "
            "raise `maxRedeliverCount` of the dead-letter policy."
        ),
        Cause.MAX_DELIVERIES: "On Pulsar the number is `maxRedeliverCount` of the consumer's dead-letter policy.",
        Cause.CONSUMER_STUCK: (
            "On Pulsar `unacked_messages_timeout_ms` takes messages back from a consumer that never acks, and "
            "`maxUnackedMessagesPerConsumer` bounds what one can hold; `isolation: {action: close_connection}` unloads "
            "the topic, which gives out again what all consumers hold."
        ),
    },
    words={
        "processed_check.key": "On Pulsar it has another id.",
        "isolation.action": "On Pulsar it unloads the topic, once an hour at most.",
    },
)
