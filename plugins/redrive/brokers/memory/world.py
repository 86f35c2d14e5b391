"""A pretended broker: its queues, their consumers, its clock, and what goes wrong there.

Tests set it up and look at it; each :class:`~redrive.brokers.memory.adapter.MemoryBroker` is a client of one.
"""

import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from redrive.brokers.base import Capabilities, ConsumerStats, QueueInfo
from redrive.brokers.memory.clock import ManualClock, system_micros
from redrive.brokers.memory.kind import MEMORY_CAPABILITIES
from redrive.brokers.memory.queues import OrderedQueue, Queue, Stored
from redrive.errors import BrokerUnavailable, PermissionRefused, QueueMissing
from redrive.message import DeadLetter, Micros

Status = Literal["sent", "refused", "retry", "unknown"]


@dataclass(slots=True)
class Faults:
    """What goes wrong next. Counts run down as faults happen; the rest stays until it is changed."""

    #: Outcomes of the next messages published, one each; nothing of them reaches the queue, unless ``sent``.
    publishes: deque[Status] = field(default_factory=deque)
    #: So many of the next messages published reach the queue, but the answer is lost: ``unknown``.
    lost_responses: int = 0
    #: Bodies that the broker will never take.
    refused_bodies: set[bytes] = field(default_factory=set)
    #: So many of the next receipts to settle are answered with a failure and stay in flight.
    settles: int = 0
    #: Not empty: every call raises BrokerUnavailable with this text.
    down: str = ""
    #: (queue, action) pairs that are forbidden; action is the method's name.
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    #: Called with (action, queue) before anything happens; it may raise, or kill the process.
    before: Callable[[str, str], None] | None = None


class MemoryWorld:
    """All queues of one pretended broker, their clock and their faults.

    ``clock`` gives microseconds since the epoch; ``sleep`` waits on it. An empty ``receive`` waits at most
    ``patience``, however long it may: what can still come is in this process.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], Micros] | None = None,
        sleep: Callable[[float], None] | None = None,
        capabilities: Capabilities = MEMORY_CAPABILITIES,
        patience: timedelta = timedelta(milliseconds=50),
    ) -> None:
        self.clock = clock or system_micros
        self.sleep = sleep or (clock.sleep if isinstance(clock, ManualClock) else time.sleep)
        self.capabilities = capabilities
        self.patience = patience
        self.faults = Faults()
        self.messages: Counter[str] = Counter()  # messages per action, e.g. messages["publish"]
        self.closed: list[tuple[str, str]] = []  # connections that a broker was asked to close, and why
        self.lock = threading.RLock()
        self.queues: dict[str, Queue] = {}
        self.sequence = itertools.count(1)  # numbers copies and receipts in the order in which they come about

    def create(
        self,
        name: str,
        *,
        ordered: bool = False,
        dead_letter_queue: str | None = None,
        max_deliveries: int | None = None,
        lease: timedelta = timedelta(seconds=30),
        retention: timedelta | None = None,
        delay: timedelta = timedelta(0),
        max_message_bytes: int | None = None,
        sink: bool = False,
    ) -> str:
        """Make queue ``name`` and return its name; after ``max_deliveries`` a message is dead-lettered.

        A ``sink`` confirms what is published to it and keeps nothing: ``messages["publish"]`` counts.
        """
        info = QueueInfo(retention, lease, max_deliveries, ordered, dead_letter_queue, max_message_bytes)
        queue = (OrderedQueue if ordered else Queue)(name, info, delay)
        queue.sink = sink
        self.queues[name] = queue
        return name

    def remove(self, name: str) -> None:
        """Queue ``name`` is deleted, with what is in it."""
        with self.lock:
            del self.queues[name]

    def fill(self, queue: str, count: int, make: Callable[[int], DeadLetter]) -> None:
        """Let ``queue`` hold ``count`` letters, ``make(0)``, ``make(1)``, …, each made when it is received.

        So a queue of any length costs no memory (an ordered one does).
        """
        with self.lock:
            target, now = self.find(queue, "put"), self.clock()
            target.fill((self._filled(make(number), now) for number in range(count)), count)

    def put(self, queue: str, *letters: DeadLetter) -> None:
        """Lay ready-made letters into ``queue`` as they are; an empty broker id or enqueue time is filled."""
        with self.lock:
            target, now = self.find(queue, "put"), self.clock()
            for letter in letters:
                target.add(self._filled(letter, now))

    def peek(self, queue: str) -> list[DeadLetter]:
        """The visible letters of ``queue`` in order, untouched: for assertions."""
        with self.lock:
            found = self.find(queue, "peek")
            found.catch_up(self.clock())
            return [copy.letter for copy in found.letters()]

    def register_consumer(self, queue: str, name: str) -> None:
        """From now on ``depth`` tells how many consumers ``queue`` has, and ``name`` is one."""
        with self.lock:
            found = self.find(queue, "register_consumer")
            found.consumers = (found.consumers or set()) | {name}

    def tell_consumer(
        self,
        queue: str,
        name: str,
        *,
        unacked: int,
        progress: int,
        connection: str | None = None,
        shared: bool = False,
    ) -> None:
        """What consumer ``name`` holds, a number that changes when it acks, and the connection that it came by."""
        self.register_consumer(queue, name)
        with self.lock:
            told = ConsumerStats(name, unacked, progress, connection, shared)
            self.find(queue, "tell_consumer").consumer_stats[name] = told

    def remove_consumer(self, queue: str, name: str) -> None:
        """Consumer ``name`` has left."""
        with self.lock:
            found = self.find(queue, "remove_consumer")
            found.consumers = (found.consumers or set()) - {name}
            found.consumer_stats.pop(name, None)

    def find(self, name: str, action: str) -> Queue:
        """Queue ``name`` for ``action``, a method of a client that holds the lock.

        Raises what :class:`~redrive.brokers.base.Broker` says, also as the faults ask for it.
        """
        faults = self.faults
        if faults.before is not None:
            faults.before(action, name)
        if faults.down:
            raise BrokerUnavailable(f"{action} on queue {name}: {faults.down}")
        if (name, action) in faults.forbidden:
            raise PermissionRefused(f"{action} on queue {name} is not allowed")
        try:
            return self.queues[name]
        except KeyError:
            raise QueueMissing(f"queue {name} does not exist ({action})") from None

    def _filled(self, letter: DeadLetter, now: Micros) -> Stored:
        sequence = next(self.sequence)
        if not letter.broker_message_id or letter.enqueued_at is None:
            letter = letter._replace(
                broker_message_id=letter.broker_message_id or f"m-{sequence}",
                enqueued_at=now if letter.enqueued_at is None else letter.enqueued_at,
            )
        return Stored(sequence, letter)


_worlds: dict[str, MemoryWorld] = {}


def register_world(connection_id: str, world: MemoryWorld) -> MemoryWorld:
    """Make ``world`` what routes with ``broker: memory`` and this connection use; replaces another."""
    _worlds[connection_id] = world
    return world


def world_of(connection_id: str) -> MemoryWorld:
    """The world registered under ``connection_id``; an empty one is made at the first use."""
    return _worlds.setdefault(connection_id, MemoryWorld())


def forget_worlds() -> None:
    """Forget every registered world: between tests."""
    _worlds.clear()
