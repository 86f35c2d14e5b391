"""Queues in which messages wait for their time; from there the broker dead-letters them to where they go."""

from redrive.brokers.rabbitmq.kind import DELAYS
from redrive.brokers.rabbitmq.message import delay_queue
from redrive.brokers.rabbitmq.session import Session
from redrive.errors import QueueMissing

LONGEST_NAME = 255


class DelayQueues:
    """Those that this instance made, by where their messages go, and those that were there when it looked."""

    def __init__(self, session: Session, *, keep_expiration: bool) -> None:
        self._session = session
        self._keep_expiration = keep_expiration
        self._made: dict[str, set[str]] = {}
        self._found: dict[str, set[str]] = {}

    def longest(self, queue: str) -> int:
        """Seconds that a message for ``queue`` can wait; 0: none can.

        A message that waits loses its own time to live, and the name of the queue where it waits has to fit.
        """
        if self._keep_expiration or len(delay_queue(queue, DELAYS[-1]).encode()) > LONGEST_NAME:
            return 0
        return DELAYS[-1]

    def place(self, queue: str, seconds: float) -> str:
        """The queue where messages wait so long for ``queue``, made where it isn't there.

        A quorum queue that dead-letters at least once: should ``queue`` be away or full then, they wait on. It stays
        when it is empty, because nobody could say that it will be so when it is deleted.
        """
        kept = next(one for one in DELAYS if one >= seconds)
        name, known = delay_queue(queue, kept), self._made.setdefault(queue, set())
        if name not in known:
            channel = self._session.connected(f"queue.declare on queue {name}").channel()
            try:
                channel.declare(
                    name,
                    {
                        "x-queue-type": "quorum",
                        "x-message-ttl": kept * 1000,
                        "x-dead-letter-exchange": "",
                        "x-dead-letter-routing-key": queue,
                        "x-dead-letter-strategy": "at-least-once",
                        "x-overflow": "reject-publish",
                    },
                )
            finally:
                channel.close()
            known.add(name)
        return name

    def waiting(self, queue: str) -> int | None:
        """So many messages wait for ``queue``; None where nobody knows. Another process may have made them wait, so the
        first time each queue that there could be is asked for."""
        if queue not in self._found:
            could_be = (delay_queue(queue, seconds) for seconds in DELAYS)
            self._found[queue] = {name for name in could_be if len(name.encode()) <= LONGEST_NAME}
        waiting, found, made = 0, self._found[queue], self._made.get(queue, set())
        for name in sorted(found | made):
            try:
                counted = self._session.counted(name)
            except QueueMissing:
                found.discard(name)
                made.discard(name)
                continue
            if counted is None:
                return None
            waiting += counted[0]
        return waiting

    def forget(self, queue: str) -> None:
        """Somebody may have deleted one; each is made again where it isn't there."""
        self._made.pop(queue, None)
        self._found.pop(queue, None)
