"""Apache Pulsar.

Sources are topics, most of all the dead-letter topics that client libraries write (``<topic>-<subscription>-DLQ``);
they are read through a Shared subscription of our own whose name is stable. Destinations are topics. Both are named
by their short name, which stands for the connection's tenant and namespace, or in full (``persistent://…``).

Pulsar has no leases, and its client library repeats by itself what was not confirmed; what is done about that is told
in :mod:`~redrive.brokers.pulsar.receiving` and :mod:`~redrive.brokers.pulsar.publishing`.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

from redrive.brokers.base import Capabilities, ConsumerStats, Depth, Publication, QueueInfo, Settled
from redrive.brokers.clock import elapsing
from redrive.brokers.pulsar.connection import LazyClient, Place, place_of
from redrive.brokers.pulsar.kind import CAPABILITIES
from redrive.brokers.pulsar.looking import Inspector
from redrive.brokers.pulsar.publishing import Publisher
from redrive.brokers.pulsar.receiving import Receiver
from redrive.brokers.pulsar.topics import Topics
from redrive.connections import lookup
from redrive.message import Outgoing, Received


class ApachePulsar:
    """One cluster as a connection reaches it; fills :class:`~redrive.brokers.base.Broker` and TellsOfConsumers."""

    capabilities = CAPABILITIES

    def __init__(
        self,
        place: Place,
        *,
        monotonic: Callable[[], float] = elapsing,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._admin = place.admin
        self._topics = Topics(place, monotonic)
        self._client = LazyClient(place)
        self._receiver = Receiver(place, self._topics, self._client, sleep=sleep, monotonic=monotonic)
        self._publisher = Publisher(place, self._topics, self._client)
        self._inspector = Inspector(place, self._topics)

    @classmethod
    def open(cls, connection_id: str, *, env: Mapping[str, str] = os.environ, **options: Any) -> Self:
        """The cluster that Airflow connection ``connection_id`` names; nothing is asked of it yet."""
        return cls(place_of(lookup.get(connection_id, env)), **options)

    def capabilities_for(self, queue: str) -> Capabilities:  # noqa: ARG002 - all are alike
        """See :class:`~redrive.brokers.base.Broker`."""
        return CAPABILITIES

    def receive(self, queue: str, *, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:
        """See :class:`~redrive.brokers.base.Broker` and :meth:`Receiver.receive`."""
        return self._receiver.receive(queue, limit=limit, wait=wait, lease=lease)

    def settle(self, queue: str, receipts: Sequence[object]) -> Settled:
        """See :class:`~redrive.brokers.base.Broker`; returns when the broker has the acks."""
        return self._receiver.settle(queue, receipts)

    def release(self, queue: str, receipts: Sequence[object]) -> None:
        """See :class:`~redrive.brokers.base.Broker`; they come back within some tenths of a second."""
        self._receiver.release(queue, receipts)

    def extend(self, queue: str, receipts: Sequence[object], lease: timedelta) -> None:
        """See :class:`~redrive.brokers.base.Broker`; what is no longer ours is left alone."""
        self._receiver.extend(queue, receipts, lease)

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        """See :class:`~redrive.brokers.base.Broker` and :meth:`Publisher.publish`."""
        return self._publisher.publish(queue, messages)

    def leads_to(self, queue: str, origin: str) -> bool | None:
        """See :class:`~redrive.brokers.base.Broker`; of what a retry topic held, its consumer's topic is the origin."""
        return self._inspector.leads_to(queue, origin)

    def origins(self, queue: str) -> frozenset[str] | None:
        """See :class:`~redrive.brokers.base.Broker` and :meth:`Inspector.origins`."""
        return self._inspector.origins(queue)

    def depth(self, queue: str) -> Depth:
        """See :class:`~redrive.brokers.base.Broker` and :meth:`Inspector.depth`; an estimate."""
        return self._inspector.depth(queue)

    def describe(self, queue: str) -> QueueInfo:
        """See :class:`~redrive.brokers.base.Broker` and :meth:`Inspector.describe`."""
        return self._inspector.describe(queue)

    def consumers(self, queue: str) -> list[ConsumerStats]:
        """See :class:`~redrive.brokers.base.TellsOfConsumers`; those of key-shared subscriptions are left out."""
        return self._inspector.consumers(queue)

    def close_connection(self, queue: str, connection: str, reason: str) -> bool:  # noqa: ARG002 - Pulsar tells nobody
        """See :class:`~redrive.brokers.base.ClosesConnections`: Pulsar can't end one consumer, it unloads the topic."""
        self._admin.unload(self._topics.full(queue))
        return True

    def close(self) -> None:
        """Close connections; acks that were not sent yet go first, and what is held comes back at once."""
        self._receiver.close()
        self._publisher.close()
        self._client.close()
