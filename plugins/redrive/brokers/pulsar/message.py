"""What a Pulsar message is to Redrive, and the other way round: pure conversions, no I/O."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from redrive.brokers.base import readable
from redrive.message import MILLISECOND, DeadLetter, Header, Outgoing, count, instant

#: What brokers take unless they are told otherwise (``maxMessageSize``).
MAX_BYTES = 5 * 1024 * 1024
#: Messages per window; the client library keeps no more than that unconfirmed.
BATCH = 1000

REAL_TOPIC = "REAL_TOPIC"
RECONSUMES = "RECONSUMETIMES"

# Names of our own for what Pulsar keeps beside properties.
PARTITION_KEY = "partition_key"
ORDERING_KEY = "ordering_key"
EVENT_TIMESTAMP = "event_timestamp"
NULL_VALUE = "null_value"
#: ``topic@version``: where the schema of a message is registered.
SCHEMA = "schema"


def id_text(message_id: Any) -> str:
    """A message id as Pulsar itself writes it into ORIGIN_MESSAGE_ID: ``ledger:entry:partition[:batch index]``."""
    text = f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.partition()}"
    return text if message_id.batch_index() < 0 else f"{text}:{message_id.batch_index()}"


def letter(message: Any, origin: Callable[[str], str]) -> DeadLetter:
    """One message as received; ``origin`` names the queue of a topic on which it failed."""
    return readable(lambda: _letter(message, origin), lambda: DeadLetter(id_text(message.message_id()), message.data()))


def _letter(message: Any, origin: Callable[[str], str]) -> DeadLetter:
    told: dict[str, str] = message.properties()
    published = instant(message.publish_timestamp(), MILLISECOND)  # the producer's clock
    real_topic = told.get(REAL_TOPIC)
    read_before = count(message.redelivery_count())
    # Our own reads of the dead letter say nothing about its failures.
    deliveries = count(read_before + 1) if real_topic is None else count(told.get(RECONSUMES))
    partition_key = message.partition_key()
    try:
        ordering_key, lacking = _text(message.ordering_key()), None
    except UnicodeDecodeError:  # Java's are bytes; the client library takes any for a text, to read and to write
        ordering_key, lacking = None, "malformed message: its ordering key is not UTF-8 and was left out"
    properties: list[tuple[str, str]] = []
    if partition_key:
        properties.append((PARTITION_KEY, partition_key))
    if ordering_key:
        properties.append((ORDERING_KEY, ordering_key))
    if message.event_timestamp():
        properties.append((EVENT_TIMESTAMP, str(message.event_timestamp())))
    if message.has_null_value():
        properties.append((NULL_VALUE, "true"))
    version = schema_version(message.schema_version())
    if version is not None:
        properties.append((SCHEMA, f"{base_topic(message.topic_name())}@{version}"))
    return DeadLetter(
        broker_message_id=id_text(message.message_id()),
        body=message.data(),
        headers=tuple(Header(name, "String", value) for name, value in told.items()),
        properties=tuple(properties),
        enqueued_at=published,  # of a dead letter: when the client library wrote it; the first publish is not kept
        dead_lettered_at=published if real_topic is not None else None,
        deliveries=deliveries,
        origin=origin(real_topic) if real_topic else None,
        ordering_key=ordering_key or partition_key or None,
        content_type=next((value for name, value in told.items() if name.lower() == "content-type"), None),
        description=lacking,
        redelivered=read_before > 0,
    )


def schema_version(raw: object) -> int | None:
    """The number of a schema's version, which travels as eight bytes; None without a schema."""
    data = raw.encode("latin-1", "ignore") if isinstance(raw, str) else raw
    return int.from_bytes(data, "big") if isinstance(data, bytes) and len(data) == 8 else None


def base_topic(topic: str) -> str:
    """A topic's name without the number of its partition."""
    base, mark, number = topic.rpartition("-partition-")
    return base if mark and number.isdigit() else topic


class Entry(NamedTuple):
    """One message ready to go: its place in the call, and what the client library takes."""

    place: int
    body: bytes | None  # None: a null value, as compaction knows it
    arguments: Mapping[str, Any]
    key: str | None  # whose order counts
    schema: str | None


def entry(place: int, message: Outgoing) -> Entry | str:
    """``message`` as it goes out, or why Pulsar will never take it."""
    kept = dict(message.properties)
    properties: dict[str, str] = {}
    for header in message.headers:
        value = _text(header.value)
        if value is None:
            return f"property {header.name!r} is binary; Pulsar's properties are text"
        properties[header.name] = value
    size = len(message.body) + sum(len(k.encode()) + len(v.encode()) for k, v in properties.items())
    if size > MAX_BYTES:
        return f"{size} bytes; Pulsar takes at most {MAX_BYTES}"
    arguments: dict[str, Any] = {"properties": properties}
    if PARTITION_KEY in kept:
        arguments["partition_key"] = kept[PARTITION_KEY]
    if ORDERING_KEY in kept:
        arguments["ordering_key"] = kept[ORDERING_KEY]
    if message.ordering_key and PARTITION_KEY not in kept and ORDERING_KEY not in kept:
        arguments["partition_key"] = message.ordering_key
    if kept.get(EVENT_TIMESTAMP, "").isdigit():
        arguments["event_timestamp"] = int(kept[EVENT_TIMESTAMP])
    if message.delay_seconds > 0:
        arguments["deliver_after"] = timedelta(seconds=message.delay_seconds)
    body = None if NULL_VALUE in kept and not message.body else message.body
    return Entry(place, body, arguments, message.ordering_key, kept.get(SCHEMA))


def refuses_headers(headers: Sequence[Header]) -> str | None:
    """Why Pulsar won't take these properties as a person wrote them, with the name of the first; None if it will."""
    typed = next((one for one in headers if one.type != "String"), None)
    if typed is not None:
        return f"property {typed.name!r} can't be of type {typed.type[:40]!r}: Pulsar's properties are text"
    return None


def _text(value: str | bytes | None) -> str | None:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None
