"""What Pulsar tells about topics: how full they are, who reads them, whence their messages come. Only reads."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from redrive.brokers.base import UNKNOWN_DEPTH, ConsumerStats, Depth, QueueInfo
from redrive.brokers.pulsar.connection import Place
from redrive.brokers.pulsar.message import MAX_BYTES, base_topic
from redrive.brokers.pulsar.topics import DLQ, RETRY, Topics
from redrive.errors import PermissionRefused, QueueMissing


class Inspector:
    """Looks at any topic."""

    def __init__(self, place: Place, topics: Topics) -> None:
        self._place = place
        self._topics = topics

    def leads_to(self, queue: str, origin: str) -> bool | None:
        """See :class:`~redrive.brokers.base.Broker`; of what a retry topic held, its consumer's topic is the origin."""
        mine = self._topics.prefix
        to, failed = queue.removeprefix(mine), origin.removeprefix(mine)
        if to.endswith(RETRY):
            return None
        return to == failed or base_topic(to) == failed or to == base_topic(failed)

    def origins(self, queue: str) -> frozenset[str] | None:
        """See :class:`~redrive.brokers.base.Broker`: by the name ``TOPIC-SUBSCRIPTION-DLQ`` that client libraries give,
        in which hyphens leave a few topics possible; of a topic with another name nobody says it."""
        prefix = self._topics.prefix
        stem = queue.removeprefix(prefix)
        for ending in (DLQ, RETRY):
            if stem.endswith(ending):
                words = stem.removesuffix(ending).split("-")
                names = ["-".join(words[:count]) for count in range(1, len(words)) if words[0]]
                topics = [name if "://" in name else prefix + name for name in names]
                if self._place.keep_partition:
                    topics += [part for topic in topics for part in self._topics.parts(topic)]
                return frozenset(self._topics.origin(topic) for topic in topics)
        return None

    def depth(self, queue: str) -> Depth:
        """See :class:`~redrive.brokers.base.Broker`.

        Of a source: what our subscription has before it; of any other topic: its fullest subscription; of a topic
        that nobody has subscribed to: all that it keeps. A backlog counts entries; where consumers got several
        messages per entry it is multiplied by that, so it is an estimate.
        """
        topic = self._topics.full(queue)
        told = self._topics.stats(topic)
        subscriptions: dict[str, Any] = told.get("subscriptions", {})
        own = self._topics.subscription(queue, topic, subscriptions)
        if not subscriptions:
            return Depth(self._topics.entries(topic), 0, 0, 0)
        read = [own] if own in subscriptions else subscriptions
        seen = [backlog(subscriptions[one]) for one in read]
        if any(depth.total is None for depth in seen):
            return UNKNOWN_DEPTH
        fullest = max(seen, key=lambda depth: depth.total or 0)
        return fullest._replace(consumers=sum(depth.consumers or 0 for depth in seen))

    def describe(self, queue: str) -> QueueInfo:
        """See :class:`~redrive.brokers.base.Broker`. Lease and deliveries are consumers' affairs: Pulsar has none.

        ``retention`` is the time to live that applies to the topic, after which messages count as read; unknown to
        whoever may not ask for policies.
        """
        topic = self._topics.full(queue)
        told = self._topics.stats(topic)
        subscriptions = told.get("subscriptions", {})
        try:
            seconds = self._place.admin.message_ttl(topic)
        except (PermissionRefused, QueueMissing):
            seconds = 0
        warnings: list[str] = []
        if not subscriptions:
            warnings.append(
                "has no subscription: what arrives before the first drain may be dropped;"
                f" create {self._place.subscription!r}"
            )
        try:
            limits = self._place.admin.unacked_limits(topic)
        except (PermissionRefused, QueueMissing):
            limits = (None, None)
        return QueueInfo(
            retention=timedelta(seconds=seconds) if seconds else None,
            max_message_bytes=MAX_BYTES,
            subscribers=len(subscriptions),
            warnings=tuple(warnings),
            bounds=tuple(
                f"{who} is given no more once it holds {limit:,} unacked messages"
                for who, limit in zip(("a consumer", "a subscription"), limits, strict=True)
                if limit
            ),
        )

    def consumers(self, queue: str) -> list[ConsumerStats]:
        """See :class:`~redrive.brokers.base.TellsOfConsumers`; those of key-shared subscriptions are left out."""
        topic = self._topics.full(queue)
        found: dict[str, ConsumerStats] = {}
        for told in self._topics.each_stats(topic):
            for subscription, one in told.get("subscriptions", {}).items():
                if one.get("type") == "Key_Shared":
                    continue
                for consumer in one.get("consumers", ()):
                    name = f"{subscription}/{consumer.get('consumerName', '')}"
                    unacked = int(consumer.get("unackedMessages", 0))
                    before = found.get(name, ConsumerStats(name, 0, 0))
                    blocked = bool(consumer.get("blockedConsumerOnUnackedMsgs"))
                    found[name] = ConsumerStats(
                        name,
                        before.unacked + unacked,
                        before.progress + _progress(consumer, unacked),
                        connection=topic,
                        blocked=before.blocked or blocked,
                    )
        return list(found.values())


def backlog(told: Mapping[str, Any]) -> Depth:
    """What lies before one subscription, as its statistics tell; unknown where they don't."""
    if told.get("msgBacklog") is None:
        return UNKNOWN_DEPTH
    consumers = told.get("consumers", ())
    per_entry = max((int(one.get("avgMessagesPerEntry") or 1) for one in consumers), default=1)
    messages = int(told["msgBacklog"]) * max(1, per_entry)
    unacked, delayed = int(told.get("unackedMessages", 0)), int(told.get("msgDelayed", 0))
    return Depth(max(0, messages - unacked - delayed), unacked, delayed, len(consumers))


def _progress(consumer: Mapping[str, Any], unacked: int) -> int:
    """A number that changes when a consumer acks, refuses what it got, or asks for more because it has taken some.

    That the broker gives it more is none: it goes on pushing to one that hangs, as long as there is room.
    """
    answered = int(consumer.get("msgOutCounter", 0)) - unacked
    asked_at = int(consumer.get("lastConsumedFlowTimestamp", 0))
    return int(consumer.get("lastAckedTimestamp", 0)) + asked_at + answered
