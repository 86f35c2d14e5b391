"""What a message looks like on RabbitMQ: the letter that a delivery is, and what is sent of one that goes back."""

from collections.abc import Callable, Sequence

from redrive.brokers.base import readable
from redrive.brokers.rabbitmq import content_header
from redrive.brokers.rabbitmq.content_header import TYPES, NotEncodable, size_of
from redrive.brokers.rabbitmq.deaths import Death, deaths_of, deliveries, failure
from redrive.message import SECOND, DeadLetter, Header, Micros, Outgoing, instant

#: RabbitMQ routes to these as well as to the routing key, which would reach more than the queue that failed.
ROUTING_HEADERS = frozenset({"CC", "BCC"})
#: With the plugin for message deduplication a queue confirms and drops what shares this with a message that it holds.
DEDUPLICATION_HEADER = "x-deduplication-header"
#: Holds the properties and headers of a message, as they came, of which something could not be read.
UNREAD_HEADER = "x-redrive-unread"
#: They have to fit into one frame, of 128 KiB unless broker and client agree on something else, with the properties.
_MAX_HEADERS = 128 * 1024 - 4096
_NOT_SENT = ROUTING_HEADERS | {DEDUPLICATION_HEADER}
#: Property names of a letter that are ours: where the message was and what the broker took off it.
EXCHANGE, ROUTING_KEY, DRAINED_FROM = "exchange", "routing_key", "drained_from"
#: A message that waits for its time is in a queue of this name, then the seconds, then where it goes.
DELAY_PREFIX = "redrive.delay."


def delay_queue(queue: str, seconds: int) -> str:
    """Where messages for ``queue`` wait for so many seconds."""
    return f"{DELAY_PREFIX}{seconds}.{queue}"


def letter_of(
    raw: bytes,
    body: bytes,
    *,
    queue: str,
    exchange: str,
    routing_key: str,
    redelivered: bool,
    delivery_limit: Callable[[str], int | None] = lambda _: None,
) -> DeadLetter:
    """The letter that was delivered from ``queue``; ``delivery_limit`` tells a queue's own limit where it is known."""
    where = ((EXCHANGE, exchange), (ROUTING_KEY, routing_key), (DRAINED_FROM, queue))
    return readable(
        lambda: _letter(raw, body, where, redelivered, delivery_limit),
        # What could not be read of it goes to staging as it came.
        lambda: DeadLetter("", body, (Header(UNREAD_HEADER, "binary", raw),), where, redelivered=redelivered),
    )


def _letter(
    raw: bytes,
    body: bytes,
    where: tuple[tuple[str, str], ...],
    redelivered: bool,
    delivery_limit: Callable[[str], int | None],
) -> DeadLetter:
    fields, headers = content_header.decode(raw)
    content_type = fields.pop("content_type", None)
    by_name = {header[0]: header for header in headers}
    deaths: tuple[Death, ...] = ()
    failed, times = None, list[Micros]()
    if "x-death" in by_name:
        # In a queue of ours it only waited for its time.
        deaths = tuple(one for one in deaths_of(by_name["x-death"]) if not one.queue.startswith(DELAY_PREFIX))
        failed = failure(deaths, by_name.get("x-first-death-queue"))
        times = [death.at for death in deaths if death.at is not None]
    sent = fields.get("timestamp")
    enqueued = None if sent is None else instant(sent, SECOND)
    return DeadLetter(
        fields.get("message_id", ""),
        body,
        headers,
        (*fields.items(), *where),
        enqueued if enqueued is not None else min(times, default=None),
        max(times, default=None),
        None,
        deliveries(deaths, failed, by_name.get("x-delivery-count"), redelivered, delivery_limit),
        failed.queue if failed else None,
        None,
        content_type,
        failed.reason if failed else None,
        None,
        redelivered,
    )


def encode(message: Outgoing, *, queue: str, user: str | None, keep_expiration: bool = False) -> bytes:
    """The content header of ``message`` on its way to ``queue``, as ``user``.

    A time to live belongs to one stay in one queue: it is set again only where the message goes back to the queue
    that it was drained from, or where ``keep_expiration`` asks for it. Raises
    :class:`~redrive.brokers.rabbitmq.content_header.NotEncodable`.
    """
    kept = dict(message.properties)
    if kept.get(DRAINED_FROM) != queue and not keep_expiration:
        kept.pop("expiration", None)
    if kept.get("user_id") != user:
        kept.pop("user_id", None)  # RabbitMQ closes the channel for a name that is not the connection's
    kept.setdefault("delivery_mode", "2")
    if message.content_type is not None:
        kept["content_type"] = message.content_type
    headers = [header for header in message.headers if header.name not in _NOT_SENT]
    return content_header.encode(kept, headers)


def refuses_headers(headers: Sequence[Header]) -> str | None:
    """Why RabbitMQ won't take these headers as a person wrote them, with the name of the first; None if it will."""
    names = set[str]()
    for header in headers:
        if header.name in _NOT_SENT:
            return f"header {header.name!r} is not sent on: it would bring the message elsewhere, or have it dropped"
        if header.name in names:
            return f"header {header.name!r} is there twice; a table keeps one of each"
        names.add(header.name)
        if not (header.type in TYPES or header.type in ("String", "Number") or header.type.startswith("raw:")):
            return f"header {header.name!r}: {header.type[:40]!r} is no type; there are {', '.join(sorted(TYPES))}"
        if header.type == "bool" and header.value not in ("true", "false"):
            return f"header {header.name!r} is of type bool: it is true or false"
        try:
            size = size_of([header])
        except NotEncodable as error:
            return str(error)
        if size > _MAX_HEADERS:
            return f"header {header.name!r} has {size:,} bytes; all headers have to fit into {_MAX_HEADERS:,}"
    size = size_of(headers)
    if size > _MAX_HEADERS:
        return f"{size:,} bytes of headers, {headers[-1].name!r} the last; they have to fit into {_MAX_HEADERS:,}"
    return None
