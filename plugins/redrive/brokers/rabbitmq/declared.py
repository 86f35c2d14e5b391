"""How queues were declared, as far as the management API tells."""

from typing import NamedTuple

from redrive.brokers.base import NAMES_ASKED
from redrive.brokers.rabbitmq.management import Management, QueueFacts
from redrive.errors import BrokerError


class _Known(NamedTuple):
    """What does not change while a queue exists."""

    delivery_limit: int | None = None
    keeps_order: bool = False
    not_drained: str = ""


class Declared:
    """Asked where a letter is read or a nack is judged. Without the management API nothing is known."""

    def __init__(self, management: Management | None) -> None:
        self._management = management
        self._facts: dict[str, _Known] = {}
        self._named = 0  # of those by letters

    def delivery_limit(self, queue: str) -> int | None:
        """After so many returns a queue that a letter names lets a message die; None: none, or not known.

        Asked once, of :data:`NAMES_ASKED` queues in all.
        """
        if queue not in self._facts:
            if self._named >= NAMES_ASKED:
                return None
            self._named += 1
        return self._known(queue).delivery_limit

    def keeps_order(self, queue: str) -> bool:
        """The queue gives what came first first, as far as may be known. Asked once."""
        return self._known(queue).keeps_order

    def not_drained(self, queue: str) -> str:
        """Why nobody should receive from ``queue``; "" where nothing is known against it. Asked once."""
        return self._known(queue).not_drained

    def rejects_when_full(self, queue: str) -> bool:
        """A nack of ``queue`` says that it is full, as far as may be known. Asked each time."""
        if self._management is None:
            return False
        try:
            return self._management.queue(queue).rejects_when_full
        except BrokerError:
            return False

    def _known(self, queue: str) -> _Known:
        """What the management API says of a queue, as far as may be known."""
        if queue not in self._facts:
            self._facts[queue] = _Known()
            if self._management is not None:
                try:
                    facts = self._management.queue(queue)
                    known = self._facts[queue] = _Known(facts.delivery_limit, not_drained=_not_drained(facts))
                    self._facts[queue] = known._replace(keeps_order=self._management.keeps_order(facts))
                except BrokerError:
                    pass  # a queue that is gone, or no right to look: then it stays unknown
        return self._facts[queue]


def _not_drained(facts: QueueFacts) -> str:
    if facts.type == "stream":
        return "it is a stream, and nothing can be taken out of one"
    if facts.auto_delete:
        return "it is auto-delete: RabbitMQ deletes it, with all that is still in it, when whoever drains it leaves"
    return ""
