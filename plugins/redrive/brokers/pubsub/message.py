"""What a message looks like on Google Pub/Sub: names, parts, size, and what Pub/Sub will not take."""

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from google.pubsub_v1 import types

from redrive.brokers.base import readable
from redrive.brokers.pubsub.kind import (
    BATCH,
    COUNT,
    ERROR,
    MAX_ATTRIBUTES,
    MAX_BYTES,
    PROJECT,
    PUBLISHED,
    SUBSCRIPTION,
    is_full,
    objections_to_headers,
)
from redrive.message import DeadLetter, Header, Micros, Outgoing, Received, count, instant

MAX_ORDERING_KEY_BYTES = 1024
#: What a request adds to its messages: the topic's name, and tags and lengths per message.
REQUEST_OVERHEAD = 512
MESSAGE_OVERHEAD = 6
#: The shortest ack deadline that a subscription can have.
LEAST_LEASE = timedelta(seconds=10)

_CONTENT_TYPE_NAMES = frozenset({"content-type", "contenttype", "content_type"})
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
#: Names of topics and subscriptions; of projects, some of which have a domain in front.
_NAME = re.compile(r"[A-Za-z][-\w.~+%]{2,254}", re.ASCII)
_PROJECT = re.compile(r"[A-Za-z0-9][-\w.:]{0,99}", re.ASCII)
#: The plain protobuf classes: the client's own wrappers cost several times as much per message.
_Message = types.PubsubMessage.pb()


class Entry(NamedTuple):
    """One message of a publish request."""

    place: int  # its place among the messages of the call
    message: Any  # as the API wants it
    size: int  # bytes as they go into a request
    key: str  # its ordering key, or ""


def full_name(kind: str, name: str, project: str) -> str:
    """The full name for a short one; ``kind`` is ``topics`` or ``subscriptions``."""
    return name if name.startswith("projects/") else f"projects/{project}/{kind}/{name}"


def short_name(name: str, project: str) -> str:
    """The name as a configuration has it: without its path where that is the connection's own project."""
    parts = name.split("/")
    return parts[-1] if parts[:2] == ["projects", project] else name


def may_exist(name: str, kind: str) -> bool:
    """Pub/Sub could have something of this kind and full ``name``. Nothing else has to be asked about."""
    parts = name.split("/")
    return is_full(name, kind) and bool(_PROJECT.fullmatch(parts[1]) and _NAME.fullmatch(parts[3]))


def received(message: Any, origin_of: Callable[[str | None, str], str | None]) -> Received:
    """A message of a pull's answer; ``origin_of(project, subscription)`` names the topic on which it failed."""
    inner = message.message
    letter = readable(lambda: _letter(message, origin_of), lambda: DeadLetter(inner.message_id, inner.data))
    return Received(letter, message.ack_id)


def _letter(message: Any, origin_of: Callable[[str | None, str], str | None]) -> DeadLetter:
    inner = message.message
    attributes = inner.attributes
    published = _micros(inner.publish_time)
    headers = tuple(Header(name, "String", attributes[name]) for name in sorted(attributes))
    subscription = attributes.get(SUBSCRIPTION) or None
    return DeadLetter(
        broker_message_id=inner.message_id,
        body=inner.data,
        headers=headers,
        enqueued_at=parse_time(attributes.get(PUBLISHED)) or published,
        dead_lettered_at=published if subscription else None,
        # Without a dead-letter policy of its own a subscription does not count: 0.
        deliveries=count(attributes.get(COUNT), otherwise=count(message.delivery_attempt)),
        origin=origin_of(attributes.get(PROJECT) or None, subscription) if subscription else None,
        ordering_key=inner.ordering_key or None,
        content_type=next((h.value for h in headers if h.name.lower() in _CONTENT_TYPE_NAMES), None),  # type: ignore[arg-type]
        description=attributes.get(ERROR) or None,
        redelivered=message.delivery_attempt > 1,
    )


def entry(place: int, message: Outgoing) -> Entry | str:
    """``message`` as part of a publish request, or why Pub/Sub will never take it."""
    if objection := next(_objections(message), None):
        return objection
    made = _Message(data=message.body)
    for header in message.headers:
        value = header.value
        if isinstance(value, bytes):
            try:
                value = value.decode("utf-8")
            except UnicodeDecodeError as error:
                return f"attribute {header.name} is not UTF-8 (byte {error.start}); Pub/Sub carries text only"
        try:
            made.attributes[header.name] = value
        except (ValueError, UnicodeError):
            return f"attribute {header.name} is not valid Unicode"
    if message.ordering_key:
        made.ordering_key = message.ordering_key
    size = made.ByteSize() + MESSAGE_OVERHEAD
    if size > MAX_BYTES - REQUEST_OVERHEAD:
        return f"{size} bytes with attributes; Pub/Sub takes at most {MAX_BYTES} in a request"
    return Entry(place, made, size, message.ordering_key or "")


def packs(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Requests of at most a thousand messages and ten megabytes, in order."""
    pack: list[Entry] = []
    total = REQUEST_OVERHEAD
    for item in entries:
        if pack and (len(pack) == BATCH or total + item.size > MAX_BYTES):
            yield pack
            pack, total = [], REQUEST_OVERHEAD
        pack.append(item)
        total += item.size
    if pack:
        yield pack


def parse_time(text: str | None) -> Micros | None:
    """An RFC 3339 instant, as precise as microseconds are; None for anything else."""
    found = _RFC3339.fullmatch(text or "")
    if found is None:
        return None
    try:
        when = datetime.fromisoformat(found[1].upper() + found[3].upper().replace("Z", "+00:00"))
    except ValueError:
        return None
    since = when - datetime(1970, 1, 1, tzinfo=UTC)
    return instant(since // timedelta(microseconds=1) + int((found[2] or "0")[:6].ljust(6, "0")))


def _objections(message: Outgoing) -> Iterator[str]:
    if not message.body and not message.headers:
        yield "the message is empty: it has neither body nor attributes, and Pub/Sub takes no such message"
    if len(message.headers) > MAX_ATTRIBUTES:
        yield f"{len(message.headers)} attributes; Pub/Sub takes at most {MAX_ATTRIBUTES}"
    yield from objections_to_headers(message.headers)
    if len((message.ordering_key or "").encode()) > MAX_ORDERING_KEY_BYTES:
        yield f"the ordering key is longer than {MAX_ORDERING_KEY_BYTES} bytes"
    if message.delay_seconds > 0:
        yield "Pub/Sub keeps no delay for a message"


def _micros(moment: Any) -> Micros | None:
    return instant(moment.seconds * 1_000_000 + moment.nanos // 1000)
