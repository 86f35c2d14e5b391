"""Amazon SQS.

Requests are what SQS charges for and what limits speed, so everything goes in batches of ten: one receive,
one delete and one send per ten messages. The SDK's own retries are off: a send that is repeated after a lost
answer would be sent twice in silence. What may be repeated is repeated by :mod:`~redrive.brokers.sqs.calls`.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

from redrive.brokers.base import Capabilities, Depth, Publication, QueueInfo, Settled
from redrive.brokers.clock import elapsing
from redrive.brokers.sqs.calls import Calls
from redrive.brokers.sqs.client import open_client
from redrive.brokers.sqs.kind import FIFO, STANDARD
from redrive.brokers.sqs.looking import Inspector
from redrive.brokers.sqs.message import account_of, is_fifo
from redrive.brokers.sqs.publishing import Publisher
from redrive.brokers.sqs.receiving import Receiver
from redrive.connections import lookup
from redrive.message import Outgoing, Received


class AmazonSqs:
    """One SQS account and region as a connection reaches it; fills :class:`~redrive.brokers.base.Broker`.

    Queues are named by name, URL or ARN. ``requests`` counts HTTP requests by operation. ``concurrency`` is
    how many requests of one call may be under way at once.
    """

    capabilities = STANDARD

    def __init__(
        self,
        client: Any,
        *,
        concurrency: int = 4,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = elapsing,
    ) -> None:
        self._client = client
        self._calls = Calls(client, concurrency=concurrency, sleep=sleep)
        self._receiver = Receiver(self._calls, sleep=sleep, monotonic=monotonic)
        self._inspector = Inspector(self._calls)
        self._publisher = Publisher(self._calls, self._inspector)
        self.requests = self._calls.requests

    @classmethod
    def open(
        cls,
        connection_id: str,
        *,
        env: Mapping[str, str] = os.environ,
        read_timeout: float = 30,
        **options: Any,
    ) -> Self:
        """The account that Airflow connection ``connection_id`` names; nothing is asked of it yet.

        ``read_timeout`` (seconds, more than a long poll) is how long an answer may take.
        """
        connection = lookup.get(connection_id, env)
        return cls(open_client(connection, max(read_timeout, 1)), **options)

    def capabilities_for(self, queue: str) -> Capabilities:
        """What holds for ``queue``: FIFO queues dedupe and can't delay, standard ones the other way round."""
        return FIFO if is_fifo(queue) else STANDARD

    def receive(self, queue: str, *, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:
        """See :class:`~redrive.brokers.base.Broker` and :meth:`Receiver.receive`."""
        return self._receiver.receive(queue, limit=limit, wait=wait, lease=lease)

    def settle(self, queue: str, receipts: Sequence[object]) -> Settled:
        """See :class:`~redrive.brokers.base.Broker` and :meth:`Receiver.settle`."""
        return self._receiver.settle(queue, receipts)

    def release(self, queue: str, receipts: Sequence[object]) -> None:
        """See :class:`~redrive.brokers.base.Broker`; what is no longer ours is left alone."""
        self._receiver.release(queue, receipts)

    def extend(self, queue: str, receipts: Sequence[object], lease: timedelta) -> None:
        """See :class:`~redrive.brokers.base.Broker`; what is no longer ours is left alone."""
        self._receiver.extend(queue, receipts, lease)

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        """See :class:`~redrive.brokers.base.Broker` and :meth:`Publisher.publish`."""
        return self._publisher.publish(queue, messages)

    def leads_to(self, queue: str, origin: str) -> bool | None:
        """See :class:`~redrive.brokers.base.Broker`; a URL or an ARN ends with a name. None where one of the two says
        whose queue it is, and the other, of that name, does not."""
        names = [one.rstrip("/").rpartition("/")[2].rpartition(":")[2] for one in (queue, origin)]
        if names[0] != names[1]:
            return False
        owners = account_of(queue), account_of(origin)
        if owners[1] is None:  # an origin that is no ARN is as the connection finds it
            return True
        return None if owners[0] is None else owners[0] == owners[1]

    def origins(self, queue: str) -> frozenset[str] | None:  # noqa: ARG002 - each letter tells it
        """See :class:`~redrive.brokers.base.Broker`; not needed, because no producer can set the system attribute."""
        return None

    def depth(self, queue: str) -> Depth:
        """See :class:`~redrive.brokers.base.Broker`; SQS's numbers are approximate and lag up to a minute."""
        return self._inspector.depth(queue)

    def describe(self, queue: str) -> QueueInfo:
        """See :class:`~redrive.brokers.base.Broker` and :meth:`Inspector.describe`."""
        return self._inspector.describe(queue)

    def close(self) -> None:
        """Close connections; what is leased comes back when its lease ends."""
        self._calls.close()
        self._client.close()
