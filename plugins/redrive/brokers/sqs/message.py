"""What a message looks like on Amazon SQS: its parts, its size, what SQS will not take."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from redrive.brokers.base import readable
from redrive.message import MILLISECOND, DeadLetter, Header, Outgoing, Received, count, instant, plain_id, send_id

BATCH = 10
MAX_ATTRIBUTES = 10
MAX_BYTES = 1024 * 1024
#: Queues made before August 2025 keep this bound; nothing smaller than it is worth a question to the queue.
OLD_MAX_BYTES = 256 * 1024
MAX_DELAY = timedelta(minutes=15)
MAX_LEASE = timedelta(hours=12)
MAX_WAIT = timedelta(seconds=20)
DEDUPE_WINDOW = timedelta(minutes=5)


# What a message may consist of, as SQS documents it: XML 1.0's characters.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAME = re.compile(r"(?!\.)(?!.*\.\.)[A-Za-z0-9_.\-]{1,256}(?<!\.)")
_TYPE = re.compile(r"(?:String|Number|Binary)(?:\..{1,200})?")
_NUMBER = re.compile(r"[+-]?[0-9]{1,38}(?:\.[0-9]{1,38})?(?:[eE][+-]?[0-9]{1,3})?")
_KEPT_PROPERTIES = (
    "MessageDeduplicationId",
    "AWSTraceHeader",
    "SequenceNumber",
    "DeadLetterQueueSourceArn",
)
_CONTENT_TYPE_NAMES = frozenset({"content-type", "contenttype", "content_type"})


class Entry(NamedTuple):
    """One message of a send request."""

    place: int  # its place among the messages of the call; also its id in the request
    fields: dict[str, Any]  # as the API wants them
    size: int  # bytes as SQS counts them
    group: str | None  # on FIFO queues


def received(message: Mapping[str, Any], origin_of: Callable[[str], str | None]) -> Received:
    """A message of a receive request's answer; ``origin_of`` is the queue of an ARN on which it failed."""
    letter = readable(lambda: _letter(message, origin_of), lambda: DeadLetter(message["MessageId"], _body(message)))
    return Received(letter, message["ReceiptHandle"])


def _letter(message: Mapping[str, Any], origin_of: Callable[[str], str | None]) -> DeadLetter:
    system = message.get("Attributes", {})
    headers = tuple(
        Header(name, value["DataType"], value["BinaryValue"] if "BinaryValue" in value else value["StringValue"])
        for name, value in message.get("MessageAttributes", {}).items()
    )
    content_type = next(
        (h.value for h in headers if h.name.lower() in _CONTENT_TYPE_NAMES and isinstance(h.value, str)), None
    )
    deliveries = count(system.get("ApproximateReceiveCount"))
    failed_at = system.get("DeadLetterQueueSourceArn")
    return DeadLetter(
        broker_message_id=message["MessageId"],
        body=_body(message),
        headers=headers,
        properties=tuple((name, system[name]) for name in _KEPT_PROPERTIES if name in system),
        enqueued_at=instant(system.get("SentTimestamp"), MILLISECOND),
        first_received_at=instant(system.get("ApproximateFirstReceiveTimestamp"), MILLISECOND),
        deliveries=deliveries,
        origin=origin_of(failed_at) if failed_at else None,
        ordering_key=system.get("MessageGroupId"),
        content_type=content_type,
        redelivered=deliveries > 1,
    )


def _body(message: Mapping[str, Any]) -> bytes:
    # Half surrogate pairs can't be in UTF-8, but a server may let them through: keep what came.
    return str(message.get("Body", "")).encode("utf-8", "surrogatepass")


def entry(place: int, message: Outgoing, *, fifo: bool) -> Entry | str:
    """``message`` as an entry of a send request, or why SQS will never take it."""
    try:
        body = message.body.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"the body is not UTF-8 (byte {error.start}); SQS carries text only"
    size = len(message.body) + sum(_header_size(header) for header in message.headers)
    if objection := next(_objections(message, body, size, fifo=fifo), None):
        return objection
    fields: dict[str, Any] = {"Id": str(place), "MessageBody": body}
    if message.headers:
        fields["MessageAttributes"] = {header.name: _attribute(header) for header in message.headers}
    if trace := dict(message.properties).get("AWSTraceHeader"):
        fields["MessageSystemAttributes"] = {"AWSTraceHeader": {"DataType": "String", "StringValue": trace}}
    group = message.ordering_key
    if fifo:
        # A message without a group has no order to keep: a group of its own.
        group = group or plain_id(message.redrive_id)
        # Neither the producer's id nor content-based deduplication: two messages may share those, and SQS drops one.
        fields["MessageDeduplicationId"] = send_id(message)
    if group:
        fields["MessageGroupId"] = group
    if message.delay_seconds > 0:
        fields["DelaySeconds"] = math.ceil(message.delay_seconds)
    return Entry(place, fields, size, group if fifo else None)


def packs(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Requests of at most ten messages and one mebibyte, in order."""
    pack: list[Entry] = []
    total = 0
    for item in entries:
        if pack and (len(pack) == BATCH or total + item.size > MAX_BYTES):
            yield pack
            pack, total = [], 0
        pack.append(item)
        total += item.size
    if pack:
        yield pack


def _objections(message: Outgoing, body: str, size: int, *, fifo: bool) -> Iterator[str]:
    if not body:
        yield "the body is empty; SQS takes no empty message"
    if len(message.headers) > MAX_ATTRIBUTES:
        yield f"{len(message.headers)} attributes; SQS takes at most {MAX_ATTRIBUTES}"
    if problem := next(_objections_to_headers(message.headers), None):
        yield problem
    if forbidden := _FORBIDDEN.search(body):
        yield f"the body holds U+{ord(forbidden[0]):04X} (character {forbidden.start()}), which SQS refuses"
    if size > MAX_BYTES:
        yield f"{size} bytes with attributes; SQS takes at most {MAX_BYTES}"
    if message.delay_seconds > 0 and fifo:
        yield "a FIFO queue has no delay per message"
    if message.delay_seconds > MAX_DELAY.total_seconds():
        yield f"a delay of {message.delay_seconds:g} s; SQS keeps at most {MAX_DELAY.total_seconds():g} s"


def _objections_to_headers(headers: Sequence[Header]) -> Iterator[str]:
    if len({header.name for header in headers}) < len(headers):
        yield "two attributes have the same name; SQS keeps one of each"
    for header in headers:
        if not _NAME.fullmatch(header.name) or header.name.lower().startswith(("aws.", "amazon.")):
            yield f"attribute {header.name!r} has a name that SQS does not allow"
        if not header.value:
            yield f"attribute {header.name} is empty; SQS takes no empty attribute"
        if isinstance(header.value, str) and (forbidden := _FORBIDDEN.search(header.value)):
            yield f"attribute {header.name} holds U+{ord(forbidden[0]):04X}, which SQS refuses"


def refuses_headers(headers: Sequence[Header]) -> str | None:
    """Why SQS won't take these attributes as a person wrote them, with the name of the first; None if it will."""
    for header in headers:
        if not _TYPE.fullmatch(header.type):
            return f"attribute {header.name}: {header.type[:40]!r} is no type; SQS has String, Number and Binary"
        if header.type.startswith("Number") and not _NUMBER.fullmatch(str(header.value)):
            return f"attribute {header.name} is of type {header.type}, and its value is no number"
    return next(_objections_to_headers(headers), None)


def _attribute(header: Header) -> dict[str, Any]:
    kind = header.type or ("Binary" if isinstance(header.value, bytes) else "String")
    if kind == "Binary" or kind.startswith("Binary."):
        value = header.value if isinstance(header.value, bytes) else header.value.encode()
        return {"DataType": kind, "BinaryValue": value}
    text = header.value if isinstance(header.value, str) else header.value.decode("utf-8", "replace")
    if kind.split(".")[0] not in ("String", "Number"):  # another broker's type name
        kind = "String"
    return {"DataType": kind, "StringValue": text}


def _header_size(header: Header) -> int:
    value = header.value if isinstance(header.value, bytes) else header.value.encode("utf-8", "surrogatepass")
    return len(header.name.encode()) + len((header.type or "String").encode()) + len(value)


def queue_of_arn(arn: str | None) -> str | None:
    """The queue's name, which is the last part of its ARN."""
    return arn.rpartition(":")[2] if arn else None


_ACCOUNT = re.compile(r"arn:[^:]*:sqs:[^:]*:([^:]+):[^:]+|https?://[^/]+/([0-9]{12})/[^/]+/?", re.ASCII)


def account_of(queue: str) -> str | None:
    """Whose queue it is, as an ARN or a URL says; None for a name, which is one of the connection's account."""
    found = _ACCOUNT.fullmatch(queue)
    return (found[1] or found[2]) if found else None


def is_fifo(queue: str) -> bool:
    """Whether ``queue`` is a FIFO queue, as the end of its name, URL or ARN says."""
    return queue.endswith(".fifo")
