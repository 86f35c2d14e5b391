"""What Pub/Sub tells about subscriptions and topics: depth, settings, who dead-letters into them. Only reads."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from google.pubsub_v1 import types

from redrive.brokers.base import UNKNOWN_DEPTH, Depth, Origin, QueueInfo
from redrive.brokers.pubsub.calls import Calls
from redrive.brokers.pubsub.kind import BATCH, MAX_BYTES, is_full
from redrive.brokers.pubsub.message import short_name
from redrive.brokers.pubsub.monitoring import Monitoring
from redrive.brokers.pubsub.names import Names
from redrive.errors import BrokerError, PermissionRefused, QueueMissing

#: How long an answer of Cloud Monitoring is good enough.
_FRESH = 30.0


class Inspector:
    """Looks at any subscription or topic; ``monitoring`` is None where nobody tells depths."""

    def __init__(
        self, calls: Calls, names: Names, monitoring: Monitoring | None, *, monotonic: Callable[[], float]
    ) -> None:
        self._calls = calls
        self._names = names
        self._monitoring = monitoring
        self._monotonic = monotonic
        self._depths: dict[str, tuple[float, Depth]] = {}

    def leads_to(self, queue: str, origin: str) -> bool | None:
        """See :class:`~redrive.brokers.base.Broker`; an origin is a topic, for which its subscriptions stand too."""
        try:
            if short_name(self._names.destination(queue), self._names.project) == origin:
                return True
            behind = self._names.topic_behind(queue)
        except BrokerError:
            return None
        return behind is not None and short_name(behind, self._names.project) == origin

    def origins(self, queue: str) -> frozenset[str] | None:
        """See :class:`~redrive.brokers.base.Broker`: the topics of the project's subscriptions that dead-letter into
        the topic of ``queue``; None where they may not be listed."""
        topic = self._names.topic_behind(queue)
        if topic is None:
            return None
        try:
            feeding = self._feeding(queue, topic)
        except PermissionRefused:
            return None
        return frozenset(short_name(one.topic, self._names.project) for one in feeding if is_full(one.topic, "topics"))

    def depth(self, queue: str) -> Depth:
        """See :class:`~redrive.brokers.base.Broker`: what Cloud Monitoring says, some minutes late, or unknown.

        A topic's depth is that of all its subscriptions, and of one that has its name, whatever that is on. Leased
        messages can't be told from visible ones.
        """
        names = self._subscriptions_of(queue)
        if self._monitoring is None or not names:
            return UNKNOWN_DEPTH if names else Depth(0, 0, 0)
        now = self._monotonic()
        kept = self._depths.get(queue)
        if kept is None or now - kept[0] >= _FRESH:
            kept = self._depths[queue] = (now, self._monitoring.undelivered(names))
        return kept[1]

    def describe(self, queue: str) -> QueueInfo:
        """See :class:`~redrive.brokers.base.Broker`; of a name that a subscription and a topic share, both are told.

        ``max_deliveries`` is the smallest of the subscriptions in the project that dead-letter into ``queue``; where
        there are none, or may not be listed, it is that of ``queue`` itself. ``origin_lease`` is their longest ack
        deadline, unless one has a retry policy: then time between deliveries does not tell of leases.
        """
        found: Any = None
        if not is_full(queue, "topics"):
            try:
                found = self._names.subscription(queue, self._names.subscription_name(queue))
            except QueueMissing:
                if is_full(queue, "subscriptions"):
                    raise
        readers: int | None = None
        if not is_full(queue, "subscriptions"):
            try:
                readers = len(self._readers(queue, self._names.topic_name(queue)))
            except QueueMissing:
                if found is None:
                    raise
            except PermissionRefused:
                if found is None:
                    return QueueInfo(max_message_bytes=MAX_BYTES)
        if found is None:
            return QueueInfo(max_message_bytes=MAX_BYTES, subscribers=readers)
        policy = found.dead_letter_policy
        origins = self._origins_of(queue, found.topic)
        attempts = [one.dead_letter_policy.max_delivery_attempts for one in origins]
        return QueueInfo(
            retention=found.message_retention_duration or None,
            lease=timedelta(seconds=found.ack_deadline_seconds or 10),
            max_deliveries=min(attempts, default=policy.max_delivery_attempts) or None,
            ordered=found.enable_message_ordering,
            dead_letter_queue=short_name(policy.dead_letter_topic, self._names.project) or None,
            max_message_bytes=MAX_BYTES,
            subscribers=readers,
            origin_lease=_lease_of(origins),
            origins=tuple(Origin(_lease_of([one]), one.dead_letter_policy.max_delivery_attempts) for one in origins),
        )

    def _subscriptions_of(self, queue: str) -> list[str]:
        """Full names: the subscription itself, or all of a topic.

        Of a name that both have nobody says which is meant, and either alone may be empty while the other is not: all
        of them count.
        """
        topic = self._names.topic_name(queue) if not is_full(queue, "subscriptions") else ""
        if is_full(queue, "topics"):
            return self._readers(queue, topic)
        name = self._names.subscription_name(queue)
        try:
            self._names.subscription(queue, name)
        except QueueMissing:
            if not topic:
                raise
            return self._readers(queue, topic)
        if not topic:
            return [name]
        try:
            return sorted({name, *self._readers(queue, topic)})
        except (QueueMissing, PermissionRefused):  # no such topic; or not ours to see, as anyone may be told of none
            return [name]

    def _readers(self, queue: str, topic: str) -> list[str]:
        request = types.ListTopicSubscriptionsRequest(topic=topic, page_size=BATCH)
        found: list[str] = []
        while True:
            answer = self._calls.call(
                "ListTopicSubscriptions", queue, self._calls.publisher.list_topic_subscriptions, request
            )
            page = answer.raw_page
            found += page.subscriptions
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        if not found:  # emulators say the same of a topic that does not exist
            self._calls.call("GetTopic", queue, self._calls.publisher.get_topic, types.GetTopicRequest(topic=topic))
        return found

    def _origins_of(self, queue: str, topic: str) -> list[Any]:
        """The subscriptions in the project that dead-letter into ``topic``; [] where they may not be listed."""
        try:
            return self._feeding(queue, topic)
        except BrokerError:
            return []

    def _feeding(self, queue: str, topic: str) -> list[Any]:
        request = types.ListSubscriptionsRequest(project=f"projects/{self._names.project}", page_size=BATCH)
        found: list[Any] = []
        while True:
            page = self._calls.call(
                "ListSubscriptions", queue, self._calls.subscriber.list_subscriptions, request
            ).raw_page
            found += [one for one in page.subscriptions if one.dead_letter_policy.dead_letter_topic == topic]
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token


def _lease_of(origins: Sequence[Any]) -> timedelta | None:
    """The longest ack deadline of these subscriptions; None where a retry policy spaces deliveries out."""
    if any("retry_policy" in one for one in origins):
        return None
    deadlines = [timedelta(seconds=one.ack_deadline_seconds or 10) for one in origins]
    return max(deadlines, default=None)
