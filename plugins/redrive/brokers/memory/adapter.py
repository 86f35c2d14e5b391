"""A broker in memory: the fake that passes the same contract as the real ones.

Queues live in a :class:`MemoryWorld`; any number of :class:`MemoryBroker` instances (shards, consumers)
share it, also from several threads of one process. It has leases, receive counts, dead-lettering, groups
in order, delays, native dedupe, registered consumers and faults on demand, and time comes from the world's
clock. Work per message is constant: no call looks at all messages of a queue.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Self

from redrive.brokers.base import (
    Capabilities,
    ConsumerStats,
    Depth,
    Origin,
    Publication,
    QueueInfo,
    Settled,
    published_at_once,
)
from redrive.brokers.memory.publishing import Publishing
from redrive.brokers.memory.receiving import Receiving
from redrive.brokers.memory.world import MemoryWorld, world_of
from redrive.message import Outgoing, Received


class MemoryBroker:
    """One client of a :class:`MemoryWorld`; fills :class:`~redrive.brokers.base.Broker`."""

    def __init__(self, world: MemoryWorld) -> None:
        self.world = world
        self.capabilities = world.capabilities
        self._receiving = Receiving(world)
        self._publishing = Publishing(world)

    @classmethod
    def open(cls, connection_id: str) -> Self:
        """A broker on the world registered under ``connection_id``; an empty world is made at the first use."""
        return cls(world_of(connection_id))

    def capabilities_for(self, queue: str) -> Capabilities:
        """See :class:`~redrive.brokers.base.Broker`; where keys keep their order, others go past one that waits."""
        found = self.world.queues.get(queue)
        return replace(self.capabilities, in_order=False) if found and found.info.ordered else self.capabilities

    def receive(self, queue: str, *, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:
        """See :class:`~redrive.brokers.base.Broker`; an empty queue is waited for at most the patience."""
        return self._receiving.receive(queue, limit, wait, lease)

    def settle(self, queue: str, receipts: Sequence[object]) -> Settled:
        """See :class:`~redrive.brokers.base.Broker`; a receipt whose lease ran out is a failure."""
        return self._receiving.settle(queue, receipts)

    def release(self, queue: str, receipts: Sequence[object]) -> None:
        """See :class:`~redrive.brokers.base.Broker`."""
        self._receiving.release(queue, receipts)

    def extend(self, queue: str, receipts: Sequence[object], lease: timedelta) -> None:
        """See :class:`~redrive.brokers.base.Broker`; receipts whose lease ran out are left alone."""
        self._receiving.extend(queue, receipts, lease)

    def dead_letter(self, queue: str, receipts: Sequence[object], *, reason: str, description: str = "") -> None:
        """Reject leased messages for good, as a consumer does; they go to the dead-letter queue."""
        self._receiving.dead_letter(queue, receipts, reason, description)

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        """See :class:`~redrive.brokers.base.Broker`."""
        return self._publishing.publish(queue, messages)

    def ready(self, queue: str, messages: Sequence[Outgoing]) -> Callable[[], Callable[[], list[Publication]]]:
        """See :class:`~redrive.brokers.base.Pipelines`; what is begun has arrived at once."""
        return lambda: published_at_once(lambda: self.publish(queue, messages))

    def leads_to(self, queue: str, origin: str) -> bool | None:
        """See :class:`~redrive.brokers.base.Broker`."""
        return queue == origin

    def origins(self, queue: str) -> frozenset[str] | None:
        """See :class:`~redrive.brokers.base.Broker`."""
        world = self.world
        with world.lock:
            world.find(queue, "origins")
            return frozenset(other.name for other in world.queues.values() if other.info.dead_letter_queue == queue)

    def depth(self, queue: str) -> Depth:
        """See :class:`~redrive.brokers.base.Broker`; exact."""
        world = self.world
        with world.lock:
            found = world.find(queue, "depth")
            found.catch_up(world.clock())
            consumers = None if found.consumers is None else len(found.consumers)
            return Depth(found.visible(), len(found.in_flight), len(found.delayed), consumers)

    def describe(self, queue: str) -> QueueInfo:
        """See :class:`~redrive.brokers.base.Broker`; ``max_deliveries``: of what feeds it, else its own."""
        world = self.world
        with world.lock:
            found = world.find(queue, "describe")
            feeding = [
                other.info.max_deliveries
                for other in world.queues.values()
                if other.info.dead_letter_queue == queue and other.info.max_deliveries is not None
            ]
            return found.info._replace(
                max_deliveries=min(feeding, default=found.info.max_deliveries),
                origins=tuple(Origin(None, deliveries) for deliveries in feeding),
                own_max_deliveries=found.info.max_deliveries if found.info.dead_letter_queue else None,
            )

    def consumers(self, queue: str) -> list[ConsumerStats]:
        """See :class:`~redrive.brokers.base.TellsOfConsumers`; those of whom the world was told."""
        world = self.world
        with world.lock:
            return list(world.find(queue, "consumers").consumer_stats.values())

    def close_connection(self, queue: str, connection: str, reason: str) -> bool:
        """See :class:`~redrive.brokers.base.ClosesConnections`; the world keeps what it was asked for."""
        world = self.world
        with world.lock:
            found = world.find(queue, "close_connection")
            world.closed.append((connection, reason))
            leaving = [one.consumer for one in found.consumer_stats.values() if one.connection == connection]
        for name in leaving:
            world.remove_consumer(queue, name)
        return bool(leaving)

    def close(self) -> None:
        """Nothing to close: what is leased comes back when its lease ends, as after a crash."""
