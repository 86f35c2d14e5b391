"""What SQS tells about a queue: how full it is, how it was set up, what dead-letters into it. Only reads."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from redrive.brokers.base import Depth, Origin, QueueInfo
from redrive.brokers.sqs.calls import Calls
from redrive.brokers.sqs.message import MAX_BYTES, is_fifo, queue_of_arn
from redrive.errors import BrokerError, PermissionRefused


class Inspector:
    """Looks at any queue; remembers how large a message each takes."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._max_bytes: dict[str, int] = {}

    def depth(self, queue: str) -> Depth:
        """See :class:`~redrive.brokers.base.Broker`; SQS's numbers are approximate and lag up to a minute."""
        names = [
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
            "ApproximateNumberOfMessagesDelayed",
        ]
        found = self._attributes(queue, self._calls.url(queue), names)
        visible, leased, delayed = (int(told) if (told := found.get(name)) is not None else None for name in names)
        return Depth(visible, leased, delayed)

    def describe(self, queue: str) -> QueueInfo:
        """See :class:`~redrive.brokers.base.Broker`.

        ``max_deliveries`` is the smallest of the queues that dead-letter into ``queue``, and ``origin_lease`` their
        longest visibility timeout. Where there are none, or SQS does not say which, the former is that of ``queue``
        itself.
        """
        url = self._calls.url(queue)
        found = self._attributes(queue, url, ["All"])
        policy = _policy(found)
        origins = self._origins(queue, url)
        deliveries = [one.max_deliveries for one in origins if one.max_deliveries]
        largest = found.get("MaximumMessageSize")
        if largest is not None:
            self._max_bytes[queue] = int(largest)
        return QueueInfo(
            retention=_seconds(found.get("MessageRetentionPeriod")),
            lease=_seconds(found.get("VisibilityTimeout")),
            max_deliveries=min(deliveries, default=_max_receives(policy)),
            ordered=is_fifo(queue),
            dead_letter_queue=queue_of_arn(policy.get("deadLetterTargetArn")),
            max_message_bytes=int(largest) if largest is not None else None,
            origin_lease=max((one.lease for one in origins if one.lease), default=None),
            own_max_deliveries=_max_receives(policy),
            origins=origins,
        )

    def max_bytes(self, queue: str) -> int:
        """The most bytes that ``queue`` takes in one message; asked once."""
        if queue not in self._max_bytes:
            try:
                self._max_bytes[queue] = self.describe(queue).max_message_bytes or MAX_BYTES
            except PermissionRefused:  # may send, may not look: then SQS says it at the send
                self._max_bytes[queue] = MAX_BYTES
        return self._max_bytes[queue]

    def _origins(self, queue: str, url: str) -> tuple[Origin, ...]:
        try:
            answer = self._calls.call("ListDeadLetterSourceQueues", queue, QueueUrl=url)
            told = [
                self._attributes(queue, source, ["RedrivePolicy", "VisibilityTimeout"])
                for source in answer.get("queueUrls", ())
            ]
        except BrokerError:  # not every server has it, and not everybody may ask
            return ()
        return tuple(Origin(_seconds(one.get("VisibilityTimeout")), _max_receives(_policy(one))) for one in told)

    def _attributes(self, queue: str, url: str, names: list[str]) -> dict[str, str]:
        answer = self._calls.call("GetQueueAttributes", queue, QueueUrl=url, AttributeNames=names)
        return dict(answer.get("Attributes", {}))


def _policy(attributes: Mapping[str, str]) -> dict[str, Any]:
    try:
        policy = json.loads(attributes.get("RedrivePolicy") or "{}")
    except json.JSONDecodeError:
        return {}
    return policy if isinstance(policy, dict) else {}


def _max_receives(policy: Mapping[str, Any]) -> int | None:
    count = policy.get("maxReceiveCount")
    return int(count) if count else None


def _seconds(text: str | None) -> timedelta | None:
    return timedelta(seconds=int(text)) if text else None
