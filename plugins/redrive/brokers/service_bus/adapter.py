"""Azure Service Bus.

Peek-lock over AMQP: messages are locked to us for the entity's lock duration, settled one by one with the service's
own word for each, and sent in batches of which all or nothing is taken. The SDK's own retries are off: a send that is
repeated after a lost answer would be sent twice in silence. What may be repeated is repeated here.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from azure.servicebus import ServiceBusClient

from redrive.brokers.base import Capabilities, Depth, Publication, QueueInfo, Settled
from redrive.brokers.service_bus.clients import clients
from redrive.brokers.service_bus.entities import Entities
from redrive.brokers.service_bus.facts import Administration, NoAdministration
from redrive.brokers.service_bus.kind import CAPABILITIES
from redrive.brokers.service_bus.looking import Looking
from redrive.brokers.service_bus.namespace import Namespace
from redrive.brokers.service_bus.publishing import SEND_TIMEOUT, Publishing
from redrive.brokers.service_bus.receiving import Receiving
from redrive.connections import lookup
from redrive.message import DeadLetter, Outgoing, Received


class AzureServiceBus:
    """One Service Bus namespace as a connection reaches it; fills :class:`~redrive.brokers.base.Broker`.

    Entities are named ``queue``, ``topic``, ``topic/Subscriptions/name``, and ``…/$DeadLetterQueue`` or
    ``…/$Transfer/$DeadLetterQueue`` of a queue or subscription. A subscription as a destination means its topic.
    """

    capabilities = CAPABILITIES

    def __init__(
        self,
        client: ServiceBusClient,
        administration: Administration | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        send_timeout: float = SEND_TIMEOUT,
    ) -> None:
        self._namespace = Namespace(client, sleep)
        self._entities = Entities(self._namespace, administration or NoAdministration())
        self._receiving = Receiving(self._namespace, self._entities)
        self._publishing = Publishing(self._namespace, self._entities, now=now, timeout=send_timeout)
        self._looking = Looking(self._namespace, self._entities)

    @classmethod
    def open(cls, connection_id: str, *, env: Mapping[str, str] = os.environ, **options: Any) -> Self:
        """The namespace that Airflow connection ``connection_id`` names; nothing is asked of it yet."""
        connection = lookup.get(connection_id, env)
        client, administration = clients(connection, time.monotonic, retry_total=0, keep_alive=0)
        return cls(client, administration, **options)

    def capabilities_for(self, queue: str) -> Capabilities:
        """What holds for ``queue``.

        Topics reach every subscriber; duplicates are detected where the entity does it; locks last as long as the
        entity says; messages of a session go past those of one that somebody holds, and of partitions each has an order
        of its own. Without the right to ask, the depth is not exact and locks are taken to last 30 s; and what
        lets nobody receive from it, or can't be asked now, is taken for a topic.
        """
        return self._looking.capabilities_for(queue)

    # --- receiving ------------------------------------------------------------------------------------

    def receive(self, queue: str, *, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:  # noqa: ARG002
        """See :class:`~redrive.brokers.base.Broker`.

        The lease is the entity's lock duration, whatever is asked for. A queue that requires sessions is read
        session by session; at most eight are held at once, so settle before you ask for more.
        """
        return self._receiving.receive(queue, limit, wait)

    def settle(self, queue: str, receipts: Sequence[object]) -> Settled:
        """See :class:`~redrive.brokers.base.Broker`; errors are raised only where nothing could be settled."""
        return self._receiving.settle(queue, receipts)

    def release(self, queue: str, receipts: Sequence[object]) -> None:
        """See :class:`~redrive.brokers.base.Broker`: abandons, which counts as a delivery."""
        self._receiving.release(queue, receipts)

    def extend(self, queue: str, receipts: Sequence[object], lease: timedelta) -> None:  # noqa: ARG002
        """See :class:`~redrive.brokers.base.Broker`: for another lock duration, which the entity sets."""
        self._receiving.extend(queue, receipts)

    # --- publishing -----------------------------------------------------------------------------------

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        """See :class:`~redrive.brokers.base.Broker`.

        Messages go in batches; Service Bus takes all of a batch or nothing, so a batch whose answer is lost is
        ``unknown`` for all its messages. A missing entity or right is raised where nothing of the call was sent. What
        goes to a subscription goes to its topic.
        """
        return self._publishing.publish(queue, messages)

    # --- looking --------------------------------------------------------------------------------------

    def leads_to(self, queue: str, origin: str) -> bool | None:
        """See :class:`~redrive.brokers.base.Broker`; None where a subscription or a forward may lead there."""
        return self._looking.leads_to(queue, origin)

    def origins(self, queue: str) -> frozenset[str] | None:
        """See :class:`~redrive.brokers.base.Broker`: to whom a dead-letter queue belongs; None for other queues."""
        return self._looking.origins(queue)

    def sources(self, queue: str) -> list[str]:
        """See :class:`~redrive.brokers.base.ListsSources`: the dead-letter queues of a topic's subscriptions."""
        return self._looking.sources(queue)

    def depth(self, queue: str) -> Depth:
        """See :class:`~redrive.brokers.base.Broker`.

        Service Bus counts locked messages as active ones: in flight is what this instance holds. Of a topic it is
        the backlog of its slowest subscription; what forwards is as full as the fullest entity on the way. Where nobody
        may ask for counts, messages are looked at one by one, up to 5,000; beyond that the depth is unknown, as it is
        of what may be a topic.
        """
        return self._looking.depth(queue, self._receiving.held(queue))

    def peek(self, queue: str, limit: int) -> list[DeadLetter]:
        """See :class:`~redrive.brokers.base.Peeks`. Properties have the types that the SDK gives them."""
        return self._looking.peek(queue, limit)

    def describe(self, queue: str) -> QueueInfo:
        """See :class:`~redrive.brokers.base.Broker`; little is told where nobody may ask.

        Lease and deliveries of a dead-letter queue are those of the queue or subscription to which it belongs;
        nothing in it expires.
        """
        return self._looking.describe(queue)

    def close(self) -> None:
        """Close all links; what is locked comes back when its lock ends, sessions at once."""
        self._receiving.close()
        self._namespace.close()
        self._entities.close()
