"""The HTTP API for administration, as far as it is read: descriptions and runtime counts as Atom entries."""

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from xml.sax.saxutils import escape

from tests.stand_ins.service_bus.broker import ACTIVE, SCHEDULED, Entity, Refused, Rules, Subscription, Topic
from tests.stand_ins.service_bus.management import rights_of

if TYPE_CHECKING:
    from tests.stand_ins.service_bus.server import ServiceBusStandIn

_ATOM = "http://www.w3.org/2005/Atom"
_DESCRIPTION = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
_COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
_EMPTY_FEED = f'<feed xmlns="{_ATOM}"><title type="text">Publicly Listed Services</title></feed>'


async def serve(server: "ServiceBusStandIn", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one HTTP connection."""
    try:
        while request := (await reader.readline()).decode().split():
            headers = {}
            while line := (await reader.readline()).decode().strip():
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            await reader.readexactly(int(headers.get("content-length", 0)))
            status, body = answer(server, request[1], headers.get("authorization", ""))
            content = body.encode()
            head = f"HTTP/1.1 {status}\r\nContent-Type: application/atom+xml\r\nContent-Length: {len(content)}\r\n\r\n"
            writer.write(head.encode() + content)
            await writer.drain()
    except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
        pass  # the client is gone, or the server stops
    finally:
        writer.close()


def answer(server: "ServiceBusStandIn", target: str, authorization: str) -> tuple[str, str]:
    """Status and body for a GET of ``target``."""
    path = unquote(urlsplit(target).path).strip("/")
    server.admin_requests += 1
    try:
        if "Manage" not in rights_of(authorization, server.keys):
            return "401 Unauthorized", _error("401", "Manage claim is required.")
    except Refused as refused:
        return "401 Unauthorized", _error("401", str(refused))
    head, _, last = path.rpartition("/")
    if last.lower() == "subscriptions" and (topic := server.world.topic(head)):
        return "200 OK", _feed([_subscription(one) for one in topic.subscriptions])
    if topic := server.world.topic(path):
        return "200 OK", _topic(topic)
    try:
        entity = server.world.entity(path)
    except Refused:
        return "200 OK", _EMPTY_FEED  # so Service Bus says that there is none
    return "200 OK", _subscription(entity) if isinstance(entity, Subscription) else _queue(entity)


def _queue(entity: Entity) -> str:
    rules = entity.rules
    return _entry(
        entity.path,
        "QueueDescription",
        [
            ("LockDuration", _duration(rules.lock_duration)),
            ("RequiresDuplicateDetection", _flag(rules.duplicate_window)),
            ("RequiresSession", _flag(rules.requires_session)),
            ("DefaultMessageTimeToLive", _time_to_live(rules)),
            ("DeadLetteringOnMessageExpiration", _flag(rules.dead_letter_on_expiration)),
            ("DuplicateDetectionHistoryTimeWindow", _duration(rules.duplicate_window or 600)),
            ("MaxDeliveryCount", str(rules.max_delivery_count)),
            ("MessageCount", str(len(entity.messages))),
            ("Status", "Disabled" if rules.disabled else "Active"),
            ("ForwardTo", rules.forward_to),
            ("CountDetails", _counts(entity)),
            ("EnablePartitioning", _flag(rules.partitioned)),
            ("ForwardDeadLetteredMessagesTo", rules.forward_dead_letters_to),
            ("MaxMessageSizeInKilobytes", str(rules.max_message_bytes // 1024)),
        ],
    )


def _subscription(entity: Entity) -> str:
    rules = entity.rules
    return _entry(
        entity.path.rpartition("/")[2],
        "SubscriptionDescription",
        [
            ("LockDuration", _duration(rules.lock_duration)),
            ("RequiresSession", _flag(rules.requires_session)),
            ("DefaultMessageTimeToLive", _time_to_live(rules)),
            ("DeadLetteringOnMessageExpiration", _flag(rules.dead_letter_on_expiration)),
            ("MessageCount", str(len(entity.messages))),
            ("MaxDeliveryCount", str(rules.max_delivery_count)),
            ("Status", "Disabled" if rules.disabled else "Active"),
            ("ForwardTo", rules.forward_to),
            ("CountDetails", _counts(entity)),
            ("ForwardDeadLetteredMessagesTo", rules.forward_dead_letters_to),
        ],
    )


def _topic(topic: Topic) -> str:
    rules = topic.rules
    return _entry(
        topic.path,
        "TopicDescription",
        [
            ("DefaultMessageTimeToLive", _time_to_live(rules)),
            ("RequiresDuplicateDetection", _flag(rules.duplicate_window)),
            ("DuplicateDetectionHistoryTimeWindow", _duration(rules.duplicate_window or 600)),
            ("Status", "Disabled" if rules.disabled else "Active"),
            ("SubscriptionCount", str(len(topic.subscriptions))),
            ("CountDetails", _counted({"ScheduledMessageCount": _scheduled(topic)})),
            ("EnablePartitioning", _flag(rules.partitioned)),
            ("MaxMessageSizeInKilobytes", str(rules.max_message_bytes // 1024)),
        ],
    )


def _counts(entity: Entity) -> str:
    assert entity.dead_letters is not None
    assert entity.transfer_dead_letters is not None
    counts = {
        # A locked message is an active one, so nobody is told what is in flight.
        "ActiveMessageCount": entity.count(ACTIVE),
        "DeadLetterMessageCount": len(entity.dead_letters.messages),
        "ScheduledMessageCount": entity.count(SCHEDULED),
        "TransferMessageCount": 0,
        "TransferDeadLetterMessageCount": len(entity.transfer_dead_letters.messages),
    }
    return _counted(counts)


def _scheduled(topic: Topic) -> int:
    """In the service they lie in the topic; here each subscription has a copy."""
    return max((one.count(SCHEDULED) for one in topic.subscriptions), default=0)


def _counted(counts: dict[str, int]) -> str:
    return "".join(f'<d2p1:{name} xmlns:d2p1="{_COUNTS}">{count}</d2p1:{name}>' for name, count in counts.items())


def _entry(title: str, kind: str, fields: list[tuple[str, str | None]]) -> str:
    inner = "".join(
        f"<{name}>{value if name == 'CountDetails' else escape(value)}</{name}>" for name, value in fields if value
    )
    content = f'<content type="application/xml"><{kind} xmlns="{_DESCRIPTION}">{inner}</{kind}></content>'
    return f'<entry xmlns="{_ATOM}"><title type="text">{escape(title)}</title>{content}</entry>'


def _feed(entries: list[str]) -> str:
    return f'<feed xmlns="{_ATOM}"><title type="text">Subscriptions</title>{"".join(entries)}</feed>'


def _error(code: str, detail: str) -> str:
    return f"<Error><Code>{code}</Code><Detail>{escape(detail)}</Detail></Error>"


def _flag(value: object) -> str:
    return "true" if value else "false"


def _duration(seconds: float) -> str:
    return f"PT{seconds:g}S"


def _time_to_live(rules: Rules) -> str:
    return _duration(rules.time_to_live) if rules.time_to_live else "P10675199DT2H48M5.4775807S"
