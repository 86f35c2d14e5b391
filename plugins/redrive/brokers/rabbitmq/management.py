"""RabbitMQ's management API: what AMQP itself doesn't tell. Optional; all but closing a connection only reads."""

import base64
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from redrive.brokers.rest import Rest
from redrive.brokers.retries import RetryPolicy
from redrive.errors import BrokerUnavailable, QueueMissing

#: A node that just started opens its management database first.
_WHILE_STARTING = RetryPolicy(4, 0.5, 2)


class QueueFacts(NamedTuple):
    """How a queue was declared, with the policies that hold for it."""

    name: str
    type: str  # classic | quorum | stream
    unacked: int | None  # None: not measured yet
    ttl_ms: int | None
    delivery_limit: int | None  # None: none
    dead_letter_exchange: str | None
    dead_letter_routing_key: str | None
    single_active_consumer: bool
    rejects_when_full: bool = False  # a nack says that it did not take the message
    ready: int | None = None  # measured together with ``unacked``
    priorities: bool = False  # some messages go past others
    statistics: bool = False  # the node measures what is in its queues; told where one queue is asked for
    mean_bytes: float | None = None  # of the bodies of what is ready
    auto_delete: bool = False  # it is deleted, with all that is in it, when its last consumer leaves
    most: str = ""  # how much fits, where the oldest goes for what is too much
    leaderless: bool = False  # of a quorum queue: nobody leads it now


class ConsumerFacts(NamedTuple):
    """One consumer of a queue."""

    tag: str
    channel: str  # its full name: peer, node, number
    connection: str
    acks: bool  # False: what it is sent counts as done at once
    prefetch: int  # 0: no limit


class ChannelFacts(NamedTuple):
    """A channel, as it was measured some seconds ago. Counts begin with the channel."""

    name: str
    connection: str
    consumers: int
    unacked: int
    prefetch: int  # for all its consumers together; 0: no limit
    acked: int
    delivered: int  # those to be acked, each delivery anew


class Management:
    """One virtual host as its management API tells of it."""

    def __init__(
        self, url: str, vhost: str, user: str, password: str, *, context: ssl.SSLContext | None, timeout: float
    ) -> None:
        self._vhost = quote(vhost, safe="")
        authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self._api = Rest(
            f"{url.rstrip('/')}/api",
            headers=lambda: {"Authorization": authorization},
            context=context,
            timeout=timeout,
        )

    def queue(self, name: str) -> QueueFacts:
        """One queue."""
        return _facts(self._get(f"queues/{self._vhost}/{quote(name, safe='')}", name))

    def keeps_order(self, facts: QueueFacts) -> bool:
        """Whether a queue gives what came first first. With priorities it doesn't; quorum queues have them from
        RabbitMQ 4.0 on. Where the oldest goes for what is too much, it may leave without being given to anybody."""
        if facts.most:
            return False
        if facts.type == "quorum":
            version = str(self._get("overview?columns=rabbitmq_version", facts.name).get("rabbitmq_version", ""))
            return version.startswith("3.")
        return facts.type == "classic" and not facts.priorities

    def queues(self) -> list[QueueFacts]:
        """Every queue of the virtual host that the user may see."""
        return [_facts(one) for one in self._get(f"queues/{self._vhost}", "")]

    def targets(self, facts: QueueFacts) -> list[str]:
        """The queues into which ``facts`` dead-letters; [] when it doesn't, or nothing is bound there."""
        if facts.dead_letter_exchange is None:
            return []
        key = facts.dead_letter_routing_key
        if facts.dead_letter_exchange == "":
            return [key if key is not None else facts.name]
        exchange = quote(facts.dead_letter_exchange, safe="")
        try:
            kind = self._get(f"exchanges/{self._vhost}/{exchange}", facts.name)["type"]
            bindings = self._get(f"exchanges/{self._vhost}/{exchange}/bindings/source", facts.name)
        except QueueMissing:
            return []
        found = [
            binding["destination"]
            for binding in bindings
            if binding["destination_type"] == "queue" and _routes(kind, binding["routing_key"], key)
        ]
        return list(dict.fromkeys(found))

    def consumers(self, queue: str) -> list[ConsumerFacts]:
        """Who consumes ``queue``. Raises :class:`BrokerUnavailable` where the node keeps no statistics."""
        told = self._patiently(f"queues/{self._vhost}/{quote(queue, safe='')}?columns=consumer_details", queue)
        if not isinstance(told, dict):  # [] is an object of which no column is there
            raise BrokerUnavailable(
                f"management API: consumers of queue {queue}: the node keeps no statistics (management.disable_stats)"
            )
        found = []
        for one in told.get("consumer_details") or ():
            channel = one.get("channel_details") or {}
            if "name" in channel:  # not of one that is just leaving
                found.append(
                    ConsumerFacts(
                        str(one["consumer_tag"]),
                        str(channel["name"]),
                        str(channel.get("connection_name", "")),
                        bool(one.get("ack_required", True)),
                        _count(one, "prefetch_count"),
                    )
                )
        return found

    def channels(self, queue: str) -> list[ChannelFacts]:
        """Every channel of the virtual host that the user may see; ``queue`` is what an error names."""
        columns = (
            "name,consumer_count,messages_unacknowledged,global_prefetch_count,connection_details.name,"
            "message_stats.ack,message_stats.deliver,message_stats.get"
        )
        return [
            _channel(one)
            for one in self._patiently(f"vhosts/{self._vhost}/channels?columns={columns}", queue, "channels")
        ]

    def close_connection(self, name: str, reason: str, queue: str) -> bool:
        """Close a connection; False where it is gone already. Asked once: nobody knows what became of no answer."""
        words = " ".join(reason.encode("ascii", "replace").decode().split())[:200]  # AMQP tells the client 255 bytes
        try:
            self._api.ask(
                f"connections/{quote(name, safe='')}",
                f"management API: closing connection {name} of a consumer of queue {queue}",
                method="DELETE",
                headers={"X-Reason": words},
            )
        except QueueMissing:
            return False
        return True

    def _get(self, path: str, queue: str) -> Any:
        return self._api.ask(path, _subject(path, queue))

    def _patiently(self, path: str, queue: str, what: str = "") -> Any:
        """The answer; a node that just started is asked a few times, until its management database is there."""
        return self._api.retried(path, _subject(path, queue, what), _WHILE_STARTING)


def _subject(path: str, queue: str, what: str = "") -> str:
    return f"management API: {what or path.partition('?')[0].split('/')[0]} of queue {queue}"


def _facts(told: dict[str, Any]) -> QueueFacts:
    policy = told.get("effective_policy_definition") or {}
    arguments = told.get("arguments") or {}

    def of(key: str) -> Any:
        return arguments.get(f"x-{key}", policy.get(key))

    def least(key: str) -> int | None:
        """Of argument and policy the smaller holds. An operator's policy is in the effective one, by the same rule."""
        return min((one for one in (arguments.get(f"x-{key}"), policy.get(key)) if isinstance(one, int)), default=None)

    limit = least("delivery-limit")
    reported = told.get("delivery_limit")  # 4.0 tells the limit in force, its default of 20 included
    if isinstance(reported, int):
        limit = reported
    unacked, ready = told.get("messages_unacknowledged"), told.get("messages_ready")
    return QueueFacts(
        str(told["name"]),
        str(told.get("type") or "classic"),
        int(unacked) if isinstance(unacked, int) else None,
        least("message-ttl"),
        limit if limit is not None and limit >= 0 else None,
        of("dead-letter-exchange"),
        of("dead-letter-routing-key"),
        bool(arguments.get("x-single-active-consumer")),
        str(of("overflow")).startswith("reject-publish"),
        int(ready) if isinstance(ready, int) else None,
        bool(arguments.get("x-max-priority")),
        "consumer_details" in told,
        _count(told, "message_bytes_ready") / ready if isinstance(ready, int) and ready > 0 else None,
        bool(told.get("auto_delete")),
        "" if str(of("overflow")).startswith("reject-publish") else _most(arguments, policy),
        told.get("type") == "quorum" and "leader" in told and not told["leader"],
    )


def _most(arguments: Mapping[str, Any], policy: Mapping[str, Any]) -> str:
    """How much a queue holds; "" where nothing says it. Of argument and policy the smaller holds."""
    found = []
    for key, what in (("max-length", "messages"), ("max-length-bytes", "bytes")):
        told = [one for one in (arguments.get(f"x-{key}"), policy.get(key)) if isinstance(one, int)]
        if told:
            found.append(f"{min(told):,} {what} ({key})")
    return " or ".join(found)


def _channel(told: dict[str, Any]) -> ChannelFacts:
    connection, counts = (told.get(key) or {} for key in ("connection_details", "message_stats"))  # [] where empty
    return ChannelFacts(
        str(told.get("name", "")),
        str(connection.get("name", "")),
        _count(told, "consumer_count"),
        _count(told, "messages_unacknowledged"),
        _count(told, "global_prefetch_count"),
        _count(counts, "ack"),
        _count(counts, "deliver") + _count(counts, "get"),
    )


def _count(told: dict[str, Any], key: str) -> int:
    """A number that is not there, or not measured yet, is 0."""
    value = told.get(key)
    return value if isinstance(value, int) else 0


def _routes(kind: str, pattern: str, key: str | None) -> bool:
    """Whether a dead letter can come through a binding; without a key of its own it keeps the message's, any."""
    if kind == "fanout" or key is None:
        return True
    if kind == "topic":
        return _matches(pattern.split("."), key.split(".") if key else [])
    return kind == "direct" and pattern == key


def _matches(pattern: list[str], words: list[str]) -> bool:
    """A topic pattern: ``*`` is one word, ``#`` any number of them."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_matches(pattern[1:], words[skipped:]) for skipped in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _matches(pattern[1:], words[1:])
