"""The queues of a memory world, with and without order: what lies there, what is delayed and what is in flight.

A queue keeps copies; who leases, settles and sends is elsewhere. The caller holds the world's lock.
"""

import heapq
import itertools
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from datetime import timedelta

from redrive.brokers.base import ConsumerStats, QueueInfo
from redrive.brokers.memory.clock import micros
from redrive.message import DeadLetter, Micros


class Stored:
    """One copy in a queue; its receipt and lease count while it is in flight."""

    __slots__ = ("first_received_at", "lease_until", "letter", "receipt", "receives", "sequence")

    def __init__(self, sequence: int, letter: DeadLetter) -> None:
        self.sequence = sequence
        self.letter = letter
        self.receives = letter.deliveries
        self.first_received_at = letter.first_received_at
        self.receipt = 0
        self.lease_until = 0


class Queue:
    """A queue without order: what is given back goes to the end. What is published to it waits for ``delay``."""

    sink = False  # what is published here is counted and dropped

    def __init__(self, name: str, info: QueueInfo, delay: timedelta) -> None:
        self.name = name
        self.info = info
        self.unmade: deque[Iterator[Stored]] = deque()  # letters that come into being when received
        self.unmade_count = 0
        self.delay = micros(delay)
        self.ready: deque[Stored] = deque()
        self.delayed: list[tuple[Micros, int, Stored]] = []  # heap
        self.in_flight: dict[int, Stored] = {}
        self.leases: list[tuple[Micros, int, list[int]]] = []  # heap: end, first receipt, receipts
        self.stale: set[int] = set()  # receipts whose lease ran out
        self.dedup: OrderedDict[str, tuple[Micros, str]] = OrderedDict()
        self.consumers: set[str] | None = None
        self.consumer_stats: dict[str, ConsumerStats] = {}

    def visible(self) -> int:
        """How many can be taken."""
        return len(self.ready) + self.unmade_count

    def add(self, copy: Stored) -> None:
        """``copy`` came, and can be taken at once."""
        self.ready.append(copy)

    def fill(self, copies: Iterator[Stored], count: int) -> None:
        """``count`` copies came, each of which is made when it is taken."""
        self.unmade.append(copies)
        self.unmade_count += count

    def take(self, limit: int) -> list[Stored]:
        """Up to ``limit`` copies, which are no longer here until they are given back; [] if there is none."""
        ready = self.ready
        if limit < len(ready):
            return [ready.popleft() for _ in range(limit)]
        taken = list(ready)
        ready.clear()
        while self.unmade and len(taken) < limit:
            made = list(itertools.islice(self.unmade[0], limit - len(taken)))
            if not made:
                self.unmade.popleft()
            self.unmade_count -= len(made)
            taken += made
        return taken

    def give_back(self, copies: list[Stored]) -> None:
        """``copies`` were taken, and can be taken again."""
        self.ready.extend(copies)

    def gone(self, copy: Stored) -> None:
        """``copy`` was taken, and is settled or moved away."""

    def letters(self) -> Iterable[Stored]:
        """The copies that can be taken, in order, without those that aren't made yet."""
        return self.ready

    def catch_up(self, now: Micros) -> None:
        """Bring the queue up to ``now``: delays that are over, leases that ran out."""
        while self.delayed and self.delayed[0][0] <= now:
            self.add(heapq.heappop(self.delayed)[2])
        while self.leases and self.leases[0][0] <= now:
            end, _, receipts = heapq.heappop(self.leases)
            back = [
                copy
                for receipt in receipts
                # A copy that was extended is in a later entry too; that one counts.
                if (copy := self.in_flight.get(receipt)) is not None and copy.lease_until <= end
            ]
            for copy in back:
                del self.in_flight[copy.receipt]
                self.stale.add(copy.receipt)
            self.give_back(back)

    def next_event(self) -> Micros | None:
        """When the next delay or lease is over."""
        return min((heap[0][0] for heap in (self.delayed, self.leases) if heap), default=None)


class OrderedQueue(Queue):
    """Groups in order: while a message of a group is in flight, the rest of the group waits."""

    def __init__(self, name: str, info: QueueInfo, delay: timedelta) -> None:
        super().__init__(name, info, delay)
        self.groups: dict[str, deque[Stored]] = {}
        self.free: OrderedDict[str, None] = OrderedDict()  # groups with messages and none in flight
        self.busy: Counter[str] = Counter()
        self.count = 0

    def visible(self) -> int:
        return self.count

    def add(self, copy: Stored) -> None:
        group = copy.letter.ordering_key or ""
        self.groups.setdefault(group, deque()).append(copy)
        self.count += 1
        if not self.busy[group]:
            self.free[group] = None

    def fill(self, copies: Iterator[Stored], count: int) -> None:  # noqa: ARG002 - they say it themselves
        for copy in copies:
            self.add(copy)

    def take(self, limit: int) -> list[Stored]:
        taken: list[Stored] = []
        while self.free and len(taken) < limit:
            group, _ = self.free.popitem(last=False)
            waiting = self.groups[group]
            for _ in range(min(limit - len(taken), len(waiting))):
                taken.append(waiting.popleft())
                self.busy[group] += 1
        self.count -= len(taken)
        return taken

    def give_back(self, copies: list[Stored]) -> None:
        returned: dict[str, list[Stored]] = {}
        for copy in copies:
            returned.setdefault(copy.letter.ordering_key or "", []).append(copy)
        for group, members in returned.items():
            waiting = self.groups[group]
            self.groups[group] = deque(sorted([*members, *waiting], key=lambda copy: copy.sequence))
            self.count += len(members)
            self._less_busy(group, len(members))

    def gone(self, copy: Stored) -> None:
        self._less_busy(copy.letter.ordering_key or "", 1)

    def letters(self) -> Iterable[Stored]:
        return sorted(itertools.chain(*self.groups.values()), key=lambda copy: copy.sequence)

    def _less_busy(self, group: str, by: int) -> None:
        self.busy[group] -= by
        if self.busy[group] > 0:
            return
        del self.busy[group]
        if self.groups[group]:
            self.free[group] = None
        else:
            del self.groups[group]
