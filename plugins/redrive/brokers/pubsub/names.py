"""What the name of a queue stands for: a subscription, a topic, or one of each that share it."""

from typing import Any

from google.pubsub_v1 import types

from redrive.brokers.pubsub.calls import Calls
from redrive.brokers.pubsub.kind import is_full
from redrive.brokers.pubsub.message import full_name
from redrive.errors import BrokerError, QueueMissing


class Names:
    """Finds full names for those of a configuration, of which the short ones are in ``project``."""

    def __init__(self, calls: Calls, project: str) -> None:
        self._calls = calls
        self.project = project
        self._topics: dict[str, str] = {}  # queue -> the topic to which is published what goes there

    def subscription_name(self, queue: str) -> str:
        """The full name of the subscription called ``queue``; an error where ``queue`` is a topic's full name."""
        if is_full(queue, "topics"):
            raise BrokerError(f"{queue} is a topic; a source is a subscription on it")
        return full_name("subscriptions", queue, self.project)

    def topic_name(self, queue: str) -> str:
        """The full name of the topic called ``queue``; of a subscription's full name, the topic that it is on."""
        if is_full(queue, "subscriptions"):
            return str(self.subscription(queue, queue).topic)
        return full_name("topics", queue, self.project)

    def topic_behind(self, queue: str) -> str | None:
        """The topic of the subscription called ``queue``, if there is one."""
        if is_full(queue, "topics"):
            return None
        try:
            return str(self.subscription(queue, self.subscription_name(queue)).topic)
        except QueueMissing:
            return None

    def feeding(self, source: str) -> str:
        """The full name of the topic whose messages the subscription called ``source`` gets.

        Raises :class:`~redrive.errors.QueueMissing` where either is gone.
        """
        topic = str(self.subscription(source, self.subscription_name(source)).topic)
        if not is_full(topic, "topics"):
            raise QueueMissing(f"GetSubscription on queue {source}: its topic is gone, so nothing gets there any more")
        return topic

    def destination(self, queue: str) -> str:
        """The full name of the topic to which what goes to ``queue`` is published; asked once."""
        if queue not in self._topics:
            in_full = is_full(queue, "subscriptions")
            self._topics[queue] = self.feeding(queue) if in_full else self.topic_name(queue)
        return self._topics[queue]

    def stands_for(self, queue: str, topic: str) -> None:
        """From now on ``topic`` is the destination of ``queue``: there is no topic of that name."""
        self._topics[queue] = topic

    def subscription(self, queue: str, name: str) -> Any:
        """What Pub/Sub tells about the subscription with the full ``name``; errors name ``queue``."""
        request = types.GetSubscriptionRequest(subscription=name)
        return self._calls.call("GetSubscription", queue, self._calls.subscriber.get_subscription, request)
