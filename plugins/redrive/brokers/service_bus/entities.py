"""What is known of each queue, topic and subscription: told by the administration API, else found out by trying.

:mod:`redrive.brokers.service_bus.facts` asks; here it is kept, and errors name the queue that was asked about.
"""

from redrive.brokers.service_bus.facts import Administration, Facts
from redrive.brokers.service_bus.message import Address
from redrive.brokers.service_bus.namespace import Namespace
from redrive.errors import BrokerError, BrokerUnavailable, QueueMissing


class Entities:
    """The entities of ``namespace``, of which ``administration`` tells, where it may be asked."""

    def __init__(self, namespace: Namespace, administration: Administration) -> None:
        self._namespace = namespace
        self._administration = administration
        self._facts: dict[str, Facts | None] = {}
        self._queues: dict[str, bool] = {}

    def told_now(self, action: str, queue: str, address: Address) -> Facts | None:
        """What the administration API says now, None where nobody may ask; raises QueueMissing."""
        try:
            facts = self._administration.facts(address._replace(sub_queue=""))
        except QueueMissing as error:
            raise QueueMissing(f"{action} on queue {queue}: {error.detail}") from None
        self._facts[address.origin] = facts
        return facts

    def known(self, address: Address) -> Facts | None:
        """What the administration API said once; for what hardly ever changes. Raises QueueMissing."""
        if address.origin not in self._facts:
            self.told_now("look", address.origin, address)
        return self._facts[address.origin]

    def is_queue(self, address: Address, facts: Facts | None, action: str = "look") -> bool:
        """Whether what is sent there has one reader only, as far as can be known.

        Without ``facts`` it is tried once whether a receiver may stay there: what lets nobody receive from it is taken
        for a topic, which it is, or it forwards to who knows whom, or we may not listen. Raises BrokerUnavailable.
        """
        if facts is not None:
            return facts.subscribers is None
        if address.entity not in self._queues:
            try:
                self._queues[address.entity] = self._namespace.can_receive(action, address.entity)
            except BrokerUnavailable:
                raise
            except BrokerError:
                self._queues[address.entity] = False
        return self._queues[address.entity]

    def subscriptions(self, queue: str, topic: str) -> list[str] | None:
        """The names of the subscriptions of ``topic``, None where nobody may ask; raises QueueMissing."""
        try:
            return self._administration.subscriptions(topic)
        except QueueMissing as error:
            raise QueueMissing(f"look on queue {queue}: {error.detail}") from None

    def close(self) -> None:
        """Close the connection to the administration API."""
        self._administration.close()
