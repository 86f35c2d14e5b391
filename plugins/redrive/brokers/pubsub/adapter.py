"""Google Pub/Sub.

Sources are subscriptions, most of all on a dead-letter topic; destinations are topics. Both are named by their
short name, which stands for the connection's project, or in full (``projects/…/subscriptions/…``).

Messages are pulled and published by unary requests with the library's retries off, so that no request of unknown
fate is repeated. Without exactly-once delivery Pub/Sub doesn't say whether an ack came too late; so the adapter
keeps the end of each lease by its own clock (:mod:`~redrive.brokers.pubsub.receiving`), and what it acks after that is
not reported as settled.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

from redrive.brokers.base import Capabilities, Depth, Publication, QueueInfo, Settled
from redrive.brokers.clock import elapsing
from redrive.brokers.pubsub.calls import Calls
from redrive.brokers.pubsub.clients import Clients, open_clients
from redrive.brokers.pubsub.kind import CAPABILITIES
from redrive.brokers.pubsub.looking import Inspector
from redrive.brokers.pubsub.monitoring import Monitoring
from redrive.brokers.pubsub.names import Names
from redrive.brokers.pubsub.publishing import Publisher
from redrive.brokers.pubsub.receiving import Receiver
from redrive.connections import lookup
from redrive.message import Outgoing, Received


class GooglePubSub:
    """One project as a connection reaches it; fills :class:`~redrive.brokers.base.Broker`.

    ``requests`` counts requests by operation. ``concurrency`` is how many publish requests of one call may be under
    way at once, ``timeout`` how many seconds an answer may take.
    """

    capabilities = CAPABILITIES

    def __init__(
        self,
        clients: Clients,
        *,
        concurrency: int = 8,
        timeout: float = 30,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = elapsing,
        clock: Callable[[], float] = time.time,
    ) -> None:
        calls = Calls(clients, timeout=timeout, sleep=sleep)
        names = Names(calls, clients.project)
        monitoring = None
        if clients.monitoring is not None:
            monitoring = Monitoring(clients.monitoring, timeout=timeout, clock=clock, requests=calls.requests)
        self._clients = clients
        self._names = names
        self._receiver = Receiver(calls, names, sleep=sleep, monotonic=monotonic)
        self._publisher = Publisher(calls, names, concurrency=concurrency)
        self._inspector = Inspector(calls, names, monitoring, monotonic=monotonic)
        self.project = clients.project
        self.requests = calls.requests

    @classmethod
    def open(cls, connection_id: str, *, env: Mapping[str, str] = os.environ, **options: Any) -> Self:
        """The project that Airflow connection ``connection_id`` names; nothing is asked of it yet."""
        return cls(open_clients(lookup.get(connection_id, env), env), **options)

    def capabilities_for(self, queue: str) -> Capabilities:  # noqa: ARG002 - all are alike
        """See :class:`~redrive.brokers.base.Broker`."""
        return CAPABILITIES

    def receive(self, queue: str, *, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:
        """See :class:`~redrive.brokers.base.Broker` and :meth:`Receiver.receive`."""
        return self._receiver.receive(queue, limit=limit, wait=wait, lease=lease)

    def settle(self, queue: str, receipts: Sequence[object]) -> Settled:
        """See :class:`~redrive.brokers.base.Broker` and :meth:`Receiver.settle`."""
        return self._receiver.settle(queue, receipts)

    def release(self, queue: str, receipts: Sequence[object]) -> None:
        """See :class:`~redrive.brokers.base.Broker`; each release counts as a delivery attempt."""
        self._receiver.release(queue, receipts)

    def extend(self, queue: str, receipts: Sequence[object], lease: timedelta) -> None:
        """See :class:`~redrive.brokers.base.Broker`; what is no longer ours is left alone."""
        self._receiver.extend(queue, receipts, lease)

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        """See :class:`~redrive.brokers.base.Broker` and :meth:`Publisher.publish`."""
        return self._publisher.publish(queue, messages)

    def way_back(self, source: str) -> str:
        """See :class:`~redrive.brokers.base.WayBack`: the full name of the topic that the subscription is on."""
        return self._names.feeding(source)

    def leads_to(self, queue: str, origin: str) -> bool | None:
        """See :class:`~redrive.brokers.base.Broker`; an origin is a topic, for which its subscriptions stand too."""
        return self._inspector.leads_to(queue, origin)

    def origins(self, queue: str) -> frozenset[str] | None:
        """See :class:`~redrive.brokers.base.Broker` and :meth:`Inspector.origins`."""
        return self._inspector.origins(queue)

    def depth(self, queue: str) -> Depth:
        """See :class:`~redrive.brokers.base.Broker`: what Cloud Monitoring says, some minutes late, or unknown."""
        return self._inspector.depth(queue)

    def describe(self, queue: str) -> QueueInfo:
        """See :class:`~redrive.brokers.base.Broker` and :meth:`Inspector.describe`."""
        return self._inspector.describe(queue)

    def close(self) -> None:
        """Close connections; what is leased comes back when its lease ends."""
        self._publisher.close()
        self._clients.channel.close()
        if self._clients.monitoring is not None:
            self._clients.monitoring.close()
