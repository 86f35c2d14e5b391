"""RabbitMQ, over AMQP 0-9-1; what AMQP doesn't tell is asked of the management API where the connection names one."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Self

from redrive.brokers.base import Capabilities, ConsumerStats, Depth, Publication, QueueInfo, Settled
from redrive.brokers.rabbitmq.confirms import Confirms
from redrive.brokers.rabbitmq.connection import arguments
from redrive.brokers.rabbitmq.declared import Declared
from redrive.brokers.rabbitmq.delays import DelayQueues
from redrive.brokers.rabbitmq.kind import CAPABILITIES, MAX_BYTES, WITH_MANAGEMENT
from redrive.brokers.rabbitmq.looking import Looking
from redrive.brokers.rabbitmq.management import Management
from redrive.brokers.rabbitmq.measured import Measured
from redrive.brokers.rabbitmq.publishing import Publishing
from redrive.brokers.rabbitmq.receiving import Receiving
from redrive.brokers.rabbitmq.session import OpensLinks, Session
from redrive.connections import lookup
from redrive.errors import PermissionRefused
from redrive.message import Outgoing, Received


class RabbitMQ:
    """One virtual host as a connection reaches it; fills :class:`~redrive.brokers.base.Broker`, with the management
    API :class:`~redrive.brokers.base.ClosesConnections` too.

    ``hosts`` is where links come from. ``confirm_timeout`` (seconds) is how long a confirmation may take; while the
    broker blocks us because of its memory or disk alarm the time stands still, for at most ``blocked_timeout``.
    """

    def __init__(
        self,
        hosts: OpensLinks,
        *,
        management: Management | None = None,
        confirm_timeout: float = 60,
        blocked_timeout: float = 120,
        keep_expiration: bool = False,
        max_message_bytes: int = MAX_BYTES,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.capabilities = replace(
            WITH_MANAGEMENT if management else CAPABILITIES, max_message_bytes=max_message_bytes
        )
        self._management = management
        self._session = Session(hosts)
        self._declared = Declared(management)
        self._measured = Measured(management, monotonic)
        self._delays = DelayQueues(self._session, keep_expiration=keep_expiration)
        self._receiving = Receiving(self._session, self._measured, self._declared)
        confirms = Confirms(
            self._session,
            self._declared,
            self._delays,
            timeout=confirm_timeout,
            blocked_timeout=blocked_timeout,
            monotonic=monotonic,
        )
        self._publishing = Publishing(
            self._session,
            confirms,
            self._delays,
            user=hosts.user,
            keep_expiration=keep_expiration,
            max_message_bytes=max_message_bytes,
        )
        self._looking = Looking(self._session, management, self._measured, self._receiving, self._delays)

    @classmethod
    def open(
        cls,
        connection_id: str,
        *,
        env: Mapping[str, str] = os.environ,
        sleep: Callable[[float], None] = time.sleep,
        **options: Any,
    ) -> Self:
        """The virtual host that Airflow connection ``connection_id`` names; nothing is asked of it yet."""
        return cls(**(arguments(lookup.get(connection_id, env), sleep) | options))

    def capabilities_for(self, queue: str) -> Capabilities:
        """See :class:`~redrive.brokers.base.Broker`; that a queue keeps order only the management API can tell."""
        able = replace(self.capabilities, in_order=self._declared.keeps_order(queue))
        return able if self._delays.longest(queue) else replace(able, native_delay=None, native_delays=())

    # --- receiving ------------------------------------------------------------------------------------

    def receive(self, queue: str, *, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:  # noqa: ARG002
        """See :class:`~redrive.brokers.base.Broker`; there is no lease, messages are ours while the channel lives."""
        return self._receiving.receive(queue, limit=limit, ahead=0, wait=wait)

    def receive_ahead(
        self,
        queue: str,
        *,
        limit: int,
        ahead: int,
        wait: timedelta,
        lease: timedelta,  # noqa: ARG002
    ) -> list[Received]:
        """See :class:`~redrive.brokers.base.ReadsAhead`: another consumer is there at once, for as many again."""
        return self._receiving.receive(queue, limit=limit, ahead=ahead, wait=wait)

    def settle(self, queue: str, receipts: Sequence[object]) -> Settled:
        """See :class:`~redrive.brokers.base.Broker` and :meth:`Receiving.settle`."""
        return self._receiving.settle(queue, receipts)

    def release(self, queue: str, receipts: Sequence[object]) -> None:
        """See :class:`~redrive.brokers.base.Broker`; they return to where they were, and count as redelivered."""
        self._receiving.release(queue, receipts)

    def extend(self, queue: str, receipts: Sequence[object], lease: timedelta) -> None:  # noqa: ARG002
        """See :class:`~redrive.brokers.base.Broker`; nothing to extend: asks whether the channel lives."""
        self._receiving.extend(queue, receipts)

    def reject(self, queue: str, receipts: Sequence[object]) -> None:
        """Let the broker dead-letter these messages, as a consumer does that gives up."""
        self._receiving.reject(queue, receipts)

    # --- publishing -----------------------------------------------------------------------------------

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        """See :class:`~redrive.brokers.base.Broker` and :meth:`Publishing.publish`."""
        return self._publishing.publish(queue, messages)

    def ready(self, queue: str, messages: Sequence[Outgoing]) -> Callable[[], Callable[[], list[Publication]]]:
        """See :class:`~redrive.brokers.base.Pipelines` and :meth:`Publishing.ready`."""
        return self._publishing.ready(queue, messages)

    # --- looking --------------------------------------------------------------------------------------

    def leads_to(self, queue: str, origin: str) -> bool | None:
        """See :class:`~redrive.brokers.base.Broker`; by the default exchange only this queue gets it."""
        return queue == origin

    def origins(self, queue: str) -> frozenset[str] | None:
        """See :class:`~redrive.brokers.base.Broker` and :meth:`Looking.origins`."""
        return self._looking.origins(queue)

    def depth(self, queue: str) -> Depth:
        """See :class:`~redrive.brokers.base.Broker` and :meth:`Looking.depth`."""
        return self._looking.depth(queue)

    def describe(self, queue: str) -> QueueInfo:
        """See :class:`~redrive.brokers.base.Broker`; most of it only with the management API."""
        return self._looking.describe(queue)

    def consumers(self, queue: str) -> list[ConsumerStats]:
        """See :class:`~redrive.brokers.base.TellsOfConsumers` and :meth:`Looking.consumers`."""
        return self._looking.consumers(queue)

    def close_connection(self, queue: str, connection: str, reason: str) -> bool:
        """See :class:`~redrive.brokers.base.ClosesConnections`; needs the management API, and an administrator there
        or the consumer's own user."""
        if self._management is None:
            raise PermissionRefused(f"closing a connection of a consumer of queue {queue} needs the management API")
        return self._management.close_connection(connection, reason, queue)

    def close(self) -> None:
        """Close the connection; what is held goes back to its queue at once."""
        self._receiving.let_go()
        self._session.close()
