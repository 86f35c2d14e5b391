"""The topics of a cluster: their full names, their partitions, their statistics, and which queue each is.

A short name stands for the connection's tenant and namespace.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from redrive.brokers.clock import elapsing
from redrive.brokers.names_of_messages import NamesOfMessages
from redrive.brokers.pulsar.connection import Place
from redrive.brokers.pulsar.message import base_topic
from redrive.errors import PermissionRefused, QueueMissing

#: How the names of the topics end that client libraries write for delayed messages, and for dead ones.
RETRY: Final = "-RETRY"
DLQ: Final = "-DLQ"
#: No request for a longer name is read by the admin API, unless it is told to.
_LONGEST_NAME: Final = 8 * 1024


class Topics:
    """What is asked of topics, and remembered.

    :meth:`stats`, :meth:`each_stats` and :meth:`entries` take a name that :meth:`full` returned.
    """

    def __init__(self, place: Place, monotonic: Callable[[], float] = elapsing) -> None:
        self._admin = place.admin
        self._keep_partition = place.keep_partition
        self._subscription, self._subscriptions = place.subscription, place.subscriptions
        self.prefix = f"persistent://{place.namespace}/"  # of what has a short name
        self._partitions: dict[str, int] = {}
        # Where nobody tells it has partitions, as the name of one most likely says so.
        self._partitioned = NamesOfMessages(True, monotonic)

    def full(self, queue: str) -> str:
        """The full name of ``queue``, which is there."""
        topic = queue if "://" in queue else self.prefix + queue
        if topic not in self._partitions:
            self._partitions[topic] = self._admin.partitions(topic)
        return topic

    def stats(self, topic: str) -> dict[str, Any]:
        """The statistics of ``topic``, of all its partitions together."""
        return self._admin.stats(topic, self._partitions[topic])

    def each_stats(self, topic: str) -> list[dict[str, Any]]:
        """The statistics of each partition of ``topic``, or of a topic that has none."""
        return self._admin.each_stats(topic, self._partitions[topic])

    def entries(self, topic: str) -> int:
        """How many entries ``topic`` still holds, read or not."""
        return self._admin.entries(topic, self._partitions[topic])

    def origin(self, real_topic: str) -> str:
        """The queue that a topic is; without its partition, which is chosen anew, unless it is to be kept."""
        base = base_topic(real_topic)
        if base != real_topic and (self._keep_partition or not self._is_partitioned(base)):
            base = real_topic
        return base.removeprefix(self.prefix)

    def _is_partitioned(self, topic: str) -> bool:
        """Whether ``topic`` has partitions, as far as anybody tells."""

        def ask() -> bool:
            try:
                return self._admin.partitions(topic) > 0
            except QueueMissing:
                return False
            except PermissionRefused:  # not ours to ask
                return True

        return len(topic) > _LONGEST_NAME or self._partitioned.answer(topic, ask)

    def subscription(self, queue: str, topic: str, known: Mapping[str, Any] | None = None) -> str:
        """The subscription by which ``queue``, with that full name, is drained: ours, as a rule.

        A retry-letter topic is shared with the consumer whose delayed messages it keeps: on a subscription of our own
        every one of them would be both drained and consumed. ``known`` are those that the topic has, asked where they
        are not given.
        """
        given = self._subscriptions.get(queue) or self._subscriptions.get(topic)
        if given or not topic.endswith(RETRY):
            return given or self._subscription
        stem = topic.removesuffix(RETRY)
        if known is None:
            known = self.stats(topic).get("subscriptions", {})
        return max((name for name in known if stem.endswith(f"-{name}")), key=len, default=self._subscription)

    def parts(self, topic: str) -> list[str]:
        """The full names of the partitions of a topic with that full name; [] where it has none, or isn't there."""
        try:
            return [f"{topic}-partition-{number}" for number in range(self._admin.partitions(topic))]
        except QueueMissing:
            return []
