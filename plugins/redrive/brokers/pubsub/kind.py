"""What Google Pub/Sub is, before there is a connection."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from redrive.brokers.base import CUSTOM_FAILURE_HEADERS, BrokerKind, Capabilities
from redrive.classification.causes import Cause
from redrive.message import Header

BATCH = 1_000
MAX_ATTRIBUTES = 100
MAX_NAME_BYTES = 256
MAX_VALUE_BYTES = 1024
#: Of a publish request, and so of a message with all that belongs to it.
MAX_BYTES = 10_000_000
MAX_LEASE = timedelta(seconds=600)
#: ``FlowControl.max_lease_duration`` of Google's libraries, where a subscriber does not set it.
CLIENT_LEASE = timedelta(hours=1)

COUNT = "CloudPubSubDeadLetterSourceDeliveryCount"
SUBSCRIPTION = "CloudPubSubDeadLetterSourceSubscription"
PROJECT = "CloudPubSubDeadLetterSourceSubscriptionProject"
PUBLISHED = "CloudPubSubDeadLetterSourceTopicPublishTime"
ERROR = "CloudPubSubDeadLetterSourceDeliveryErrorMessage"

#: Names that Pub/Sub keeps for itself, but for those by which Google's libraries tell each other something (the trace
#: of OpenTelemetry).
RESERVED, OF_LIBRARIES = "goog", "googclient_"
#: What Pub/Sub writes at a topic with a schema, and writes anew when the message is published there again.
_OF_SCHEMAS = frozenset({"googclient_schemaname", "googclient_schemarevisionid", "googclient_schemaencoding"})

#: Attributes that say why a message died, removed before it is sent again: what Pub/Sub writes when it forwards to
#: a dead-letter topic, and what consumers that dead-letter by themselves usually write.
FAILURE_HEADERS = CUSTOM_FAILURE_HEADERS | _OF_SCHEMAS | {COUNT, SUBSCRIPTION, PROJECT, PUBLISHED, ERROR}

#: ``hides_for``: a subscription's own ack deadline, and the rest that its retry policy may add.
CAPABILITIES = Capabilities(
    knows_empty=False,
    stable_identity=True,
    gives_reason=False,
    single_target=False,
    native_dedupe=None,
    native_delay=None,
    max_headers=MAX_ATTRIBUTES,
    max_message_bytes=MAX_BYTES,
    publish_batch=BATCH,
    failure_headers=FAILURE_HEADERS,
    max_lease=MAX_LEASE,
    hides_for=2 * MAX_LEASE,
    tells_origin_lease=True,
    client_lease=CLIENT_LEASE,
    untried_rights="pubsub.subscriptions.consume on sources (roles/pubsub.subscriber); pubsub.topics.publish on"
    " destinations (roles/pubsub.publisher)",
    times_tell_leases=True,
    ids_of_sends=True,
    way_back=True,
)


def objections_to_headers(headers: Sequence[Header]) -> Iterator[str]:
    """What Pub/Sub has against a message with these attributes."""
    if len({header.name for header in headers}) < len(headers):
        yield "two attributes have the same name; Pub/Sub keeps one of each"
    for header in headers:
        value = header.value if isinstance(header.value, bytes) else header.value.encode("utf-8", "surrogatepass")
        if not header.name or len(header.name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
            yield f"attribute name {header.name[:40]!r} has not between 1 and {MAX_NAME_BYTES} bytes"
        if header.name.startswith(RESERVED) and not header.name.startswith(OF_LIBRARIES):
            yield f"attribute {header.name!r} begins with goog, which Pub/Sub keeps for itself"
        if len(value) > MAX_VALUE_BYTES:
            yield f"attribute {header.name} is longer than {MAX_VALUE_BYTES} bytes"


def refuses_headers(headers: Sequence[Header]) -> str | None:
    """Why Pub/Sub won't take these attributes as a person wrote them, with the name of the first; None if it will."""
    typed = next((one for one in headers if one.type != "String"), None)
    if typed is not None:
        return f"attribute {typed.name} can't be of type {typed.type[:40]!r}: Pub/Sub carries text only"
    return next(objections_to_headers(headers), None)


def is_full(name: str, kind: str) -> bool:
    """``name`` is a full name of this kind."""
    parts = name.split("/")
    return len(parts) == 4 and parts[0] == "projects" and parts[2] == kind


def name_tells(queue: str) -> tuple[str | None, ...]:
    """The project and the name; a topic's full name is none of a subscription, which a source is."""
    if not is_full(queue, "subscriptions"):
        return None, queue
    _, project, _, name = queue.split("/")
    return project, name


KIND = BrokerKind(
    title="Pub/Sub",
    adapter="redrive.brokers.pubsub.adapter:GooglePubSub",
    extra="pubsub",
    capabilities=CAPABILITIES,
    name_tells=name_tells,
    drains_elsewhere=True,
    refuses_headers=refuses_headers,
    advice={
        Cause.LEASE_EXPIRED: (
            "On Pub/Sub: lower `FlowControl.max_messages`, raise `FlowControl.max_lease_duration` (the client "
            "library stops extending after it, one hour by default, and says so in one line of its log only: "
            "`Dropping N items because they were leased too long.`) and `ackDeadlineSeconds` of the "
            "subscription, and consider exactly-once delivery, which tells when an ack came too late."
        ),
        Cause.MAX_DELIVERIES: (
            "On Pub/Sub the number is `maxDeliveryAttempts` of the subscription's `deadLetterPolicy` (5 to 100). Where "
            "leases may have run out, look for `Dropping N items because they were leased too long.` in the consumer's "
            "log, and lower `FlowControl.max_messages` or raise `FlowControl.max_lease_duration`."
        ),
        Cause.CONSUMER_STUCK: (
            "On Pub/Sub a hung callback keeps its lease until `max_lease_duration`: set it to what the work may take."
        ),
    },
    words={
        "sources[].lease": "On Pub/Sub: `FlowControl.max_lease_duration` of your consumers, an hour unless they set "
        "it, because the client library renews the subscription's ack deadline until then.",
        "backoff.native": "Pub/Sub keeps no delays.",
        "processed_check.key": "On Pub/Sub it has another id.",
    },
)
