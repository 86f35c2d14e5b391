"""One Service Bus namespace as a client reaches it: links to its entities, and work that is done again until it works.

Everything that sends, receives or looks has the same :class:`Namespace`, so an entity has one sending link.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from azure.servicebus import ServiceBusClient, ServiceBusSubQueue

from redrive.brokers.retries import BRIEF, again
from redrive.brokers.service_bus.clients import address_of
from redrive.brokers.service_bus.errors import SDK_ERRORS, known_error, may_pass, wants_session
from redrive.brokers.service_bus.links import Receiver, Sender
from redrive.brokers.service_bus.message import Address
from redrive.errors import BrokerError

_SUB_QUEUES = {
    "dead_letter": ServiceBusSubQueue.DEAD_LETTER,
    "transfer": ServiceBusSubQueue.TRANSFER_DEAD_LETTER,
}
Result = TypeVar("Result")


class Namespace:
    """Opens links over ``client``, whose own retries are off; ``sleep`` waits for so many seconds before a next try."""

    def __init__(self, client: ServiceBusClient, sleep: Callable[[float], None]) -> None:
        self._client = client
        self._senders: dict[str, Sender] = {}
        self.sleep = sleep

    @property
    def service(self) -> str:
        """Host and port, for people."""
        return address_of(self._client)

    def receiver(self, address: Address, **options: Any) -> Receiver:
        """A new receiving link, which who asks for it closes; ``options`` go to the SDK's receiver."""
        sub_queue = _SUB_QUEUES.get(address.sub_queue)
        if sub_queue is not None:
            options["sub_queue"] = sub_queue
        if address.subscription is not None:
            return Receiver(self._client.get_subscription_receiver(address.entity, address.subscription, **options))
        return Receiver(self._client.get_queue_receiver(address.entity, **options))

    def sender(self, address: Address) -> Sender:
        """The sending link of a queue or a topic, the same for as long as the namespace is open."""
        name = address.entity
        if name not in self._senders:
            self._senders[name] = Sender(lambda: self._client.get_queue_sender(name))  # topics are sent to like queues
        return self._senders[name]

    def again(self, action: str, queue: str, work: Callable[[], Result]) -> Result:
        """Work that may safely be repeated; raises the errors of :mod:`redrive.errors`."""
        try:
            return again(work, when=may_pass, policy=BRIEF, sleep=self.sleep)
        except (*SDK_ERRORS, ValueError) as error:
            raise known_error(action, queue, error, self.service) from error

    def probe(self, action: str, queue: str) -> None:
        """Ask where nothing is to be done, so that a wrong name or right is told; raises as :meth:`again`."""

        def ask() -> None:
            receiver = self.receiver(Address.parse(queue))
            try:
                receiver.probe()
            finally:
                receiver.close()

        try:
            self.again(action, queue, ask)
        except BrokerError as error:
            if not wants_session(error):
                raise

    def can_receive(self, action: str, queue: str) -> bool:
        """Whether a receiver stays there, also one that has to name a session; raises as :meth:`again`."""

        def ask() -> bool:
            receiver = self.receiver(Address.parse(queue))
            try:
                return receiver.can_receive()
            finally:
                receiver.close()

        try:
            return self.again(action, queue, ask)
        except BrokerError as error:
            if wants_session(error):
                return True
            raise

    def close(self) -> None:
        """Close the sending links and the connection; receiving links are closed by who asked for them."""
        for sender in self._senders.values():
            sender.close()
        self._senders.clear()
        self._client.close()
