"""What a message looks like on Azure Service Bus, and how entities are named."""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageHeader, AmqpMessageProperties

from redrive.brokers.base import readable
from redrive.brokers.service_bus import amqp_values
from redrive.brokers.service_bus.amqp_values import STRING, Encoded, Section, Typed, Unreadable
from redrive.brokers.service_bus.kind import DESCRIPTION, REASON
from redrive.brokers.service_bus.links import Undecoded
from redrive.message import MILLISECOND, DeadLetter, Header, Micros, Outgoing, count, instant, send_id

#: All application properties of a message together.
MAX_ID = 128
#: Holds the message's own MessageId while an attempt needs another one.
MESSAGE_ID_HEADER = "x-redrive-message-id"

_FAILED_AT = ("NServiceBus.FailedQ", "MT-Fault-InputAddress")
_SEQUENCE = b"x-opt-sequence-number"
_ENQUEUED = b"x-opt-enqueued-time"
_PARTITION_KEY = b"x-opt-partition-key"
_SOURCE = b"x-opt-deadletter-source"
_FIRST_SEQUENCE = b"x-opt-enqueue-sequence-number"
_SCHEDULED_FOR = "x-opt-scheduled-enqueue-time"
#: The fields of the properties section, in AMQP's order.
_FIELDS = (
    *("MessageId", "UserId", "To", "Subject", "ReplyTo", "CorrelationId", "ContentType", "ContentEncoding"),
    *("AbsoluteExpiryTime", "CreationTime", "SessionId", "GroupSequence", "ReplyToSessionId"),
)
_KEPT_FIELDS = (
    *("MessageId", "UserId", "To", "Subject", "ReplyTo", "CorrelationId", "ContentEncoding", "CreationTime"),
    *("GroupSequence", "ReplyToSessionId"),
)
#: Annotations that a producer's JMS library writes and a consumer's reads, such as what kind of message it is. All
#: others are the broker's.
_OF_JMS = "x-opt-jms-"

# --- names -------------------------------------------------------------------------------------------------

_SUB_QUEUES = {
    "/$transfer/$deadletterqueue": "transfer",
    "/$deadletterqueue": "dead_letter",
    "/$active": "",
}
_SUBSCRIPTION = re.compile(r"(?P<topic>.+)/subscriptions/(?P<name>[^/]+)", re.IGNORECASE)


class Address(NamedTuple):
    """An entity as the configuration names it."""

    entity: str  # a queue or topic
    subscription: str | None = None
    sub_queue: str = ""  # "", dead_letter or transfer

    @classmethod
    def parse(cls, name: str) -> Self:
        """``orders``, ``orders/$DeadLetterQueue``, ``topic/Subscriptions/sub/$Transfer/$DeadLetterQueue``, …"""
        entity, sub_queue = name.strip("/"), ""
        for suffix, kind in _SUB_QUEUES.items():
            if entity.lower().endswith(suffix):
                entity, sub_queue = entity[: -len(suffix)], kind
                break
        found = _SUBSCRIPTION.fullmatch(entity)
        return cls(found["topic"], found["name"], sub_queue) if found else cls(entity, None, sub_queue)

    @property
    def origin(self) -> str:
        """The queue or subscription that this is, or to which this dead-letter queue belongs."""
        return f"{self.entity}/Subscriptions/{self.subscription}" if self.subscription else self.entity


# --- received ----------------------------------------------------------------------------------------------


def letter(message: ServiceBusReceivedMessage, payload: bytes, address: Address) -> DeadLetter:
    """A received message; ``payload`` is its first frame, from which values are read with their types."""
    return readable(lambda: _letter(message, payload, address), lambda: _least(message, payload))


def _least(message: ServiceBusReceivedMessage, payload: bytes) -> DeadLetter:
    raw = message.raw_amqp_message
    annotations: dict[Any, Any] = raw.annotations or {}
    message_id = raw.properties.message_id if raw.properties else None
    try:
        body, _ = _body(raw, {})
    except Exception:
        body = payload  # all that came, headers included
    return DeadLetter(
        _as_text(message_id) if isinstance(message_id, str | bytes) else f"sequence-{annotations.get(_SEQUENCE)}", body
    )


def _letter(message: ServiceBusReceivedMessage, payload: bytes, address: Address) -> DeadLetter:
    raw = message.raw_amqp_message
    annotations: dict[Any, Any] = raw.annotations or {}
    parts = _parts(payload)
    fields = _fields(raw, parts)
    headers = _headers(raw, parts)
    body, kind = _body(raw, parts)
    said = {header.name: _as_text(header.value) for header in headers if header.name in (REASON, DESCRIPTION)}
    told = annotations.get(_SEQUENCE)  # a long, larger than a count
    sequence = told if isinstance(told, int) else 0
    source = _decoded(annotations.get(_SOURCE))
    partition_key = _decoded(annotations.get(_PARTITION_KEY))
    session = fields.get("SessionId")
    failed = count(message.delivery_count)
    dead = bool(address.sub_queue)
    properties = [
        *_kept(fields),
        *_of_jms(parts),
        *([("PartitionKey", partition_key)] if partition_key and not session else []),
        *([("TimeToLive", str(raw.header.time_to_live))] if raw.header and raw.header.time_to_live else []),
        *([("BodyType", kind)] if kind else []),
        *([("SequenceNumber", str(sequence))] if sequence else []),
        *_optional("EnqueuedSequenceNumber", annotations.get(_FIRST_SEQUENCE)),
        *_optional("DeadLetterSource", source),
    ]
    message_id = fields.get("MessageId")
    return DeadLetter(
        broker_message_id=amqp_values.to_text(message_id) if message_id else f"sequence-{sequence}",
        body=body,
        headers=tuple(header for header in headers if header.name not in (REASON, DESCRIPTION)),
        properties=tuple(properties),
        enqueued_at=_enqueued_at(annotations.get(_ENQUEUED), sequence),
        # In a dead-letter queue these are the failed deliveries of the origin, and later our own.
        deliveries=max(failed, 1) if dead else failed + 1,
        # Where it failed last: what was forwarded from one dead-letter queue may die again elsewhere.
        origin=address.origin if dead else source or _failed_at(headers),
        ordering_key=amqp_values.to_text(session) if session else partition_key,
        content_type=amqp_values.to_text(fields["ContentType"]) if "ContentType" in fields else None,
        reason=said.get(REASON),
        description=said.get(DESCRIPTION),
        redelivered=failed > 0 and not dead,
    )


def _failed_at(headers: Iterable[Header]) -> str | None:
    """Where NServiceBus or MassTransit say that it failed, of what they moved to a queue of errors by themselves:
    ``orders``, ``orders@host``, ``sb://namespace/orders?…``. A claim, as any header."""
    said = {header.name: _as_text(header.value) for header in headers if header.name in _FAILED_AT}
    for name in _FAILED_AT:
        if told := said.get(name, "").strip():
            if "://" in told:
                return urlsplit(told).path.strip("/") or None
            return told.partition("@")[0] or None
    return None


def _parts(payload: bytes) -> dict[int, list[Section]]:
    parts: dict[int, list[Section]] = {}
    try:
        for section in amqp_values.sections(payload):
            parts.setdefault(section.code, []).append(section)
    except Unreadable:
        pass  # what could be read is there; of the rest the SDK's own reading is taken
    return parts


def _first(parts: dict[int, list[Section]], code: int) -> Typed | None:
    return parts[code][0].value if code in parts else None


def _fields(raw: AmqpAnnotatedMessage, parts: dict[int, list[Section]]) -> dict[str, Typed]:
    """The properties section by our names; without the fields that are null."""
    typed = _first(parts, amqp_values.PROPERTIES)
    if typed is not None:
        return {name: value for name, value in zip(_FIELDS, typed.value, strict=False) if value.type != "null"}
    told = raw.properties
    plain = {
        "MessageId": told.message_id,
        "To": told.to,
        "Subject": told.subject,
        "ReplyTo": told.reply_to,
        "CorrelationId": told.correlation_id,
        "ContentType": told.content_type,
        "ContentEncoding": told.content_encoding,
        "SessionId": told.group_id,
        "ReplyToSessionId": told.reply_to_group_id,
    } if told else {}  # fmt: skip
    return {name: _guessed(value) for name, value in plain.items() if value is not None}


def _headers(raw: AmqpAnnotatedMessage, parts: dict[int, list[Section]]) -> list[Header]:
    typed = _first(parts, amqp_values.APPLICATION_PROPERTIES)
    if typed is not None and typed.type == "map":
        return [amqp_values.to_header(str(key.value), value) for key, value in typed.value]
    told = raw.application_properties or {}
    return [amqp_values.to_header(_decoded(key) or "", _guessed(value)) for key, value in told.items()]


def _body(raw: AmqpAnnotatedMessage, parts: dict[int, list[Section]]) -> tuple[bytes, str]:
    """The body as bytes, and of what kind it is ("": data)."""
    if raw.body_type == AmqpMessageBodyType.DATA:
        return b"".join(bytes(part) for part in raw.body), ""
    if raw.body_type == AmqpMessageBodyType.SEQUENCE:
        found = parts.get(amqp_values.SEQUENCE, [])
        if found and all(section.value is not None for section in found):
            return b"".join(section.raw for section in found), "sequence/amqp"
        return b"".join(_encoded(part) for part in raw.body), "sequence/amqp"
    section = parts.get(amqp_values.VALUE, [None])[0]
    if section is not None and section.type in (STRING, "binary"):
        content = raw.body
        return (content if isinstance(content, bytes) else str(content).encode()), f"value/{section.type}"
    if section is not None and section.value is not None:
        return (b"", "value/null") if section.type == "null" else (section.raw, "value/amqp")
    if isinstance(raw.body, Undecoded):
        raise Unreadable("neither we nor the SDK can read its body")
    return (b"", "value/null") if raw.body is None else (_encoded(raw.body), "value/amqp")


def _encoded(value: object) -> bytes:
    """A value that came in several frames, which only the SDK has whole: its texts are strings where they can be."""
    from azure.servicebus._pyamqp._encode import encode_value  # noqa: PLC0415 - only here

    output = bytearray()
    encode_value(output, _as_strings(value))
    return bytes(output)


def _as_strings(value: object) -> object:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, dict):
        return {_as_strings(key): _as_strings(item) for key, item in value.items()}
    return [_as_strings(item) for item in value] if isinstance(value, list) else value


def _kept(fields: dict[str, Typed]) -> Iterator[tuple[str, str]]:
    for name in _KEPT_FIELDS:
        if (typed := fields.get(name)) is not None:
            yield name, amqp_values.to_text(typed)
            if typed.type not in (STRING, "symbol"):
                yield f"{name}Type", typed.type


def _of_jms(parts: dict[int, list[Section]]) -> Iterator[tuple[str, str]]:
    typed = _first(parts, amqp_values.ANNOTATIONS)
    if typed is None or typed.type != "map":
        return
    for key, value in typed.value:
        name = str(key.value)
        if name.startswith(_OF_JMS) and value.type in amqp_values.SIMPLE:
            yield name, amqp_values.to_text(value)
            yield f"{name}Type", value.type


def _optional(name: str, value: object) -> list[tuple[str, str]]:
    return [(name, str(value))] if value else []


def _guessed(value: object) -> Typed:
    """The SDK's value with the type that it most likely had."""
    if isinstance(value, bytes):
        try:
            return Typed(STRING, value.decode())
        except UnicodeDecodeError:
            return Typed("binary", value)
    if isinstance(value, bool):
        return Typed("boolean", value)
    kinds = {int: "long", float: "double", str: STRING}
    return Typed(kinds.get(type(value), STRING), value if type(value) in kinds else str(value))


def _decoded(value: object) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else None if value is None else str(value)


def _as_text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _enqueued_at(milliseconds: object, sequence: int) -> Micros | None:
    """Service Bus tells milliseconds; the three digits below are the sequence number's last.

    So two copies that a producer sent at once with one MessageId are still told apart.
    """
    moment = instant(milliseconds, MILLISECOND)
    return None if moment is None else moment + sequence % 1000


# --- sent --------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """One message of a publish call."""

    place: int  # among the messages of the call
    message: AmqpAnnotatedMessage
    message_id: str
    key: str | None  # messages with one key keep their order


def message_id_of(message: Outgoing, *, detects: bool) -> tuple[str, str | None]:
    """The MessageId of an attempt, and the message's own one where it has one.

    Where duplicates may be detected on its way (``detects``), Service Bus accepts and drops a MessageId that it has
    seen within its window, and several messages may share their own: then it is always the attempt's.
    """
    kept = next((h.value for h in message.headers if h.name == MESSAGE_ID_HEADER), None)
    own = _as_text(kept) if kept else dict(message.properties).get("MessageId")
    if own is None or detects or message.dedup_id is not None:
        return send_id(message), own
    return own, own


def entry(place: int, message: Outgoing, *, detects: bool, sessions: bool | None, now: datetime) -> Entry | str:
    """``message`` as the SDK sends it, or why Service Bus will never take it.

    ``detects``: see :func:`message_id_of`. ``sessions`` says whether the entity requires sessions (None: not known).
    """
    properties = dict(message.properties)
    message_id, own = message_id_of(message, detects=detects)
    headers = [header for header in message.headers if header.name != MESSAGE_ID_HEADER]
    if own is not None and own != message_id:
        headers.append(Header(MESSAGE_ID_HEADER, STRING, own))
    if objection := next(_objections(message, message_id, headers, sessions=sessions), None):
        return objection
    by_partition = "PartitionKey" in properties
    try:
        application = {header.name: amqp_values.for_sdk(amqp_values.from_header(header)) for header in headers}
        body = _body_arguments(message.body, properties.get("BodyType", ""))
        told = AmqpMessageProperties(
            message_id=_id(message_id, properties, "MessageId") if own == message_id else message_id,
            to=properties.get("To"),
            subject=properties.get("Subject"),
            reply_to=properties.get("ReplyTo"),
            correlation_id=_id(properties.get("CorrelationId"), properties, "CorrelationId"),
            content_type=message.content_type,
            content_encoding=properties.get("ContentEncoding"),
            group_id=None if by_partition else message.ordering_key,
            reply_to_group_id=properties.get("ReplyToSessionId"),
            user_id=_id(properties.get("UserId"), properties, "UserId"),
            creation_time=_id(properties.get("CreationTime"), properties, "CreationTime"),
            group_sequence=_id(properties.get("GroupSequence"), properties, "GroupSequence"),
        )
        annotations: dict[str, Any] = {
            name: amqp_values.for_sdk(amqp_values.from_text(properties.get(f"{name}Type", STRING), text))
            for name, text in message.properties
            if name.startswith(_OF_JMS) and not name.endswith("Type")
        }
    except ValueError as error:
        return str(error)
    if by_partition and message.ordering_key:
        annotations["x-opt-partition-key"] = message.ordering_key
    if message.delay_seconds > 0:
        annotations[_SCHEDULED_FOR] = now.astimezone(UTC) + timedelta(seconds=message.delay_seconds)
    made = AmqpAnnotatedMessage(
        **body,
        header=AmqpMessageHeader(time_to_live=int(properties["TimeToLive"])) if "TimeToLive" in properties else None,
        properties=told,
        application_properties=application or None,
        annotations=annotations or None,
    )
    return Entry(place, made, message_id, message.ordering_key)


def _objections(
    message: Outgoing, message_id: str, headers: Iterable[Header], *, sessions: bool | None
) -> Iterator[str]:
    headers = list(headers)
    yield from amqp_values.objections_to_headers(headers)
    if len(message_id) > MAX_ID:
        yield f"a MessageId of {len(message_id)} characters; Service Bus takes at most {MAX_ID}"
    if message.ordering_key and len(message.ordering_key) > MAX_ID:
        yield f"a session or partition key of {len(message.ordering_key)} characters; at most {MAX_ID} are taken"
    if sessions and not message.ordering_key:
        yield "it has no session id, and its destination requires sessions"


def _id(text: str | None, properties: dict[str, str], name: str) -> Any:
    """A property, of the type that it had."""
    kind = properties.get(f"{name}Type", STRING)
    return text if text is None or kind == STRING else amqp_values.from_text(kind, text).value


def _body_arguments(body: bytes, kind: str) -> dict[str, Any]:
    """The body of the kind that it had; raises ValueError where an edited one does not fit it any more."""
    match kind:
        case "value/String":
            return {"value_body": body.decode()}
        case "value/binary":
            return {"value_body": body}
        case "value/null" if not body:
            return {"value_body": None}
        case "value/amqp":
            [value] = _values(body)
            return {"value_body": value}
        case "sequence/amqp":
            return {"sequence_body": _values(body)}
        case _:
            return {"data_body": body}


def _values(body: bytes) -> list[Encoded]:
    values, at = [], 0
    while at < len(body):
        start = at
        try:
            _, at = amqp_values.read(body, at)
        except Unreadable as error:
            raise ValueError(f"its body was an AMQP value and is none any more: {error}") from None
        values.append(Encoded(body[start:at]))
    if not values:
        raise ValueError("its body was an AMQP value and is empty now")
    return values
