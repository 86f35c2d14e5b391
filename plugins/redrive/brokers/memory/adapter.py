"""A broker in memory: the fake that passes the same contract as the real ones.

Queues live in a :class:`MemoryWorld`; any number of :class:`MemoryBroker` instances (shards, consumers)
share it, also from several threads of one process. It has leases, receive counts, dead-lettering, groups
in order, delays, native dedupe, registered consumers and faults on demand, and time comes from the world's
clock. Work per message is constant: no call looks at all messages of a queue.
"""

import heapq
import itertools
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Literal, Self

from redrive.brokers.base import (
    Capabilities,
    ConsumerStats,
    Depth,
    Publication,
    QueueInfo,
    Settled,
    published_at_once,
)
from redrive.brokers.memory.kind import MEMORY_CAPABILITIES
from redrive.errors import BrokerUnavailable, PermissionRefused, QueueMissing
from redrive.message import DeadLetter, Header, Micros, Outgoing, Received, as_tuples, send_id

Status = Literal["sent", "refused", "retry", "unknown"]


class ManualClock:
    """A clock that stands still until it is told to move; :meth:`sleep` moves it, so nothing really waits."""

    def __init__(self, now: Micros = 1_700_000_000_000_000) -> None:
        self.now = now

    def __call__(self) -> Micros:
        return self.now

    def advance(self, by: timedelta) -> None:
        """Let ``by`` pass."""
        self.now += _micros(by)

    def sleep(self, seconds: float) -> None:
        """What :func:`time.sleep` would do to this clock."""
        self.now += round(seconds * 1_000_000)


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


class _Stored:
    """One copy in a queue."""

    __slots__ = ("first_received_at", "lease_until", "letter", "receipt", "receives", "sequence")

    def __init__(self, sequence: int, letter: DeadLetter) -> None:
        self.sequence = sequence
        self.letter = letter
        self.receives = letter.deliveries
        self.first_received_at = letter.first_received_at
        self.receipt = 0
        self.lease_until = 0


class _Queue:
    """A queue without order: what is given back goes to the end."""

    sink = False  # what is published here is counted and dropped

    def __init__(self, name: str, info: QueueInfo, delay: timedelta) -> None:
        self.name = name
        self.info = info
        self.unmade: deque[Iterator[_Stored]] = deque()  # letters that come into being when received
        self.unmade_count = 0
        self.delay = _micros(delay)
        self.ready: deque[_Stored] = deque()
        self.delayed: list[tuple[Micros, int, _Stored]] = []  # heap
        self.in_flight: dict[int, _Stored] = {}
        self.leases: list[tuple[Micros, int, list[int]]] = []  # heap: end, first receipt, receipts
        self.stale: set[int] = set()  # receipts whose lease ran out
        self.dedup: OrderedDict[str, tuple[Micros, str]] = OrderedDict()
        self.consumers: set[str] | None = None
        self.consumer_stats: dict[str, ConsumerStats] = {}

    def visible(self) -> int:
        return len(self.ready) + self.unmade_count

    def add(self, copy: _Stored) -> None:
        self.ready.append(copy)

    def fill(self, copies: Iterator[_Stored], count: int) -> None:
        self.unmade.append(copies)
        self.unmade_count += count

    def take(self, limit: int) -> list[_Stored]:
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

    def give_back(self, copies: list[_Stored]) -> None:
        self.ready.extend(copies)

    def gone(self, copy: _Stored) -> None:
        """``copy`` was settled or moved away."""

    def letters(self) -> Iterable[_Stored]:
        return self.ready


class _OrderedQueue(_Queue):
    """Groups in order: while a message of a group is in flight, the rest of the group waits."""

    def __init__(self, name: str, info: QueueInfo, delay: timedelta) -> None:
        super().__init__(name, info, delay)
        self.groups: dict[str, deque[_Stored]] = {}
        self.free: OrderedDict[str, None] = OrderedDict()  # groups with messages and none in flight
        self.busy: Counter[str] = Counter()
        self.count = 0

    def visible(self) -> int:
        return self.count

    def add(self, copy: _Stored) -> None:
        group = copy.letter.ordering_key or ""
        self.groups.setdefault(group, deque()).append(copy)
        self.count += 1
        if not self.busy[group]:
            self.free[group] = None

    def fill(self, copies: Iterator[_Stored], count: int) -> None:  # noqa: ARG002 - they say it themselves
        for copy in copies:
            self.add(copy)

    def take(self, limit: int) -> list[_Stored]:
        taken: list[_Stored] = []
        while self.free and len(taken) < limit:
            group, _ = self.free.popitem(last=False)
            waiting = self.groups[group]
            for _ in range(min(limit - len(taken), len(waiting))):
                taken.append(waiting.popleft())
                self.busy[group] += 1
        self.count -= len(taken)
        return taken

    def give_back(self, copies: list[_Stored]) -> None:
        returned: dict[str, list[_Stored]] = {}
        for copy in copies:
            returned.setdefault(copy.letter.ordering_key or "", []).append(copy)
        for group, members in returned.items():
            waiting = self.groups[group]
            self.groups[group] = deque(sorted([*members, *waiting], key=lambda copy: copy.sequence))
            self.count += len(members)
            self._less_busy(group, len(members))

    def gone(self, copy: _Stored) -> None:
        self._less_busy(copy.letter.ordering_key or "", 1)

    def letters(self) -> Iterable[_Stored]:
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
        self.clock = clock or _system_micros
        self.sleep = sleep or (clock.sleep if isinstance(clock, ManualClock) else time.sleep)
        self.capabilities = capabilities
        self.patience = patience
        self.faults = Faults()
        self.messages: Counter[str] = Counter()  # messages per action, e.g. messages["publish"]
        self.closed: list[tuple[str, str]] = []  # connections that a broker was asked to close, and why
        self.lock = threading.RLock()
        self._queues: dict[str, _Queue] = {}
        self._sequence = itertools.count(1)

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
        queue = (_OrderedQueue if ordered else _Queue)(name, info, delay)
        queue.sink = sink
        self._queues[name] = queue
        return name

    def remove(self, name: str) -> None:
        """Queue ``name`` is deleted, with what is in it."""
        with self.lock:
            del self._queues[name]

    def fill(self, queue: str, count: int, make: Callable[[int], DeadLetter]) -> None:
        """Let ``queue`` hold ``count`` letters, ``make(0)``, ``make(1)``, …, each made when it is received.

        So a queue of any length costs no memory (an ordered one does).
        """
        with self.lock:
            target, now = self._queue(queue, "put"), self.clock()
            target.fill((self._filled(make(number), now) for number in range(count)), count)

    def put(self, queue: str, *letters: DeadLetter) -> None:
        """Lay ready-made letters into ``queue`` as they are; an empty broker id or enqueue time is filled."""
        with self.lock:
            target, now = self._queue(queue, "put"), self.clock()
            for letter in letters:
                target.add(self._filled(letter, now))

    def peek(self, queue: str) -> list[DeadLetter]:
        """The visible letters of ``queue`` in order, untouched: for assertions."""
        with self.lock:
            found = self._queue(queue, "peek")
            self._settle_time(found, self.clock())
            return [copy.letter for copy in found.letters()]

    def register_consumer(self, queue: str, name: str) -> None:
        """From now on ``depth`` tells how many consumers ``queue`` has, and ``name`` is one."""
        with self.lock:
            found = self._queue(queue, "register_consumer")
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
            self._queue(queue, "tell_consumer").consumer_stats[name] = told

    def remove_consumer(self, queue: str, name: str) -> None:
        """Consumer ``name`` has left."""
        with self.lock:
            found = self._queue(queue, "remove_consumer")
            found.consumers = (found.consumers or set()) - {name}
            found.consumer_stats.pop(name, None)

    # --- what brokers do in here; the caller holds the lock -------------------------------------------

    def _filled(self, letter: DeadLetter, now: Micros) -> _Stored:
        sequence = next(self._sequence)
        if not letter.broker_message_id or letter.enqueued_at is None:
            letter = letter._replace(
                broker_message_id=letter.broker_message_id or f"m-{sequence}",
                enqueued_at=now if letter.enqueued_at is None else letter.enqueued_at,
            )
        return _Stored(sequence, letter)

    def _queue(self, name: str, action: str) -> _Queue:
        faults = self.faults
        if faults.before is not None:
            faults.before(action, name)
        if faults.down:
            raise BrokerUnavailable(f"{action} on queue {name}: {faults.down}")
        if (name, action) in faults.forbidden:
            raise PermissionRefused(f"{action} on queue {name} is not allowed")
        try:
            return self._queues[name]
        except KeyError:
            raise QueueMissing(f"queue {name} does not exist ({action})") from None

    def _settle_time(self, queue: _Queue, now: Micros) -> None:
        """Bring ``queue`` up to ``now``: delays that are over, leases that ran out."""
        while queue.delayed and queue.delayed[0][0] <= now:
            queue.add(heapq.heappop(queue.delayed)[2])
        while queue.leases and queue.leases[0][0] <= now:
            end, _, receipts = heapq.heappop(queue.leases)
            back = [
                copy
                for receipt in receipts
                # A copy that was extended is in a later entry too; that one counts.
                if (copy := queue.in_flight.get(receipt)) is not None and copy.lease_until <= end
            ]
            for copy in back:
                del queue.in_flight[copy.receipt]
                queue.stale.add(copy.receipt)
            queue.give_back(back)

    def _next_event(self, queue: _Queue) -> Micros | None:
        return min((heap[0][0] for heap in (queue.delayed, queue.leases) if heap), default=None)

    def _receive(self, queue: _Queue, limit: int, lease: Micros, now: Micros) -> list[Received]:
        self._settle_time(queue, now)
        bound = queue.info.max_deliveries if queue.info.dead_letter_queue else None
        until = now + lease
        in_flight, sequence = queue.in_flight, self._sequence
        received: list[Received] = []
        receipts: list[int] = []
        while len(received) < limit and (taken := queue.take(limit - len(received))):
            for copy in taken:
                if bound is not None and copy.receives >= bound:
                    self._dead_letter(queue, copy, now)
                    continue
                copy.receives += 1
                if copy.first_received_at is None:
                    copy.first_received_at = now
                copy.receipt = receipt = next(sequence)
                copy.lease_until = until
                in_flight[receipt] = copy
                old = copy.letter
                letter = DeadLetter(
                    old.broker_message_id,
                    old.body,
                    old.headers,
                    old.properties,
                    old.enqueued_at,
                    old.dead_lettered_at,
                    copy.first_received_at,
                    copy.receives,
                    old.origin,
                    old.ordering_key,
                    old.content_type,
                    old.reason,
                    old.description,
                    copy.receives > 1,
                )
                received.append(Received(letter, receipt))
                receipts.append(receipt)
        while queue.leases and in_flight.keys().isdisjoint(queue.leases[0][2]):
            heapq.heappop(queue.leases)  # all of it is settled
        if receipts:
            heapq.heappush(queue.leases, (until, receipts[0], receipts))
        return received

    def _dead_letter(
        self, queue: _Queue, copy: _Stored, now: Micros, reason: str = "max_deliveries", description: str = ""
    ) -> None:
        queue.gone(copy)
        target = self._queues.get(queue.info.dead_letter_queue or "")
        if target is None:  # as on most brokers: without a target it is gone
            return
        letter = copy.letter._replace(
            dead_lettered_at=now,
            first_received_at=copy.first_received_at,
            deliveries=copy.receives,
            origin=queue.name,
            reason=reason,
            description=description or copy.letter.description,
        )
        target.add(_Stored(next(self._sequence), letter))

    def _plain(self, queue: _Queue) -> bool:
        """Nothing can happen to a message that is published here except that it arrives."""
        faults = self.faults
        return not (
            queue.delay
            or faults.publishes
            or faults.lost_responses
            or faults.refused_bodies
            or self.capabilities.native_dedupe is not None
            or self._limited(queue)
        )

    def _publish_plainly(self, queue: _Queue, messages: Sequence[Outgoing], now: Micros) -> list[Publication]:
        """What :meth:`_publish` does for a whole call, without the questions: benchmarks live here."""
        sequences, add = self._sequence, queue.add
        if queue.sink and not any(message.delay_seconds or message.dedup_id is not None for message in messages):
            self.messages["publish"] += len(messages)
            return list(as_tuples(Publication, [("sent", f"m-{next(sequences)}", "") for _ in messages]))
        results: list[Publication] = []
        say = results.append
        for message in messages:
            if message.delay_seconds or message.dedup_id is not None:
                say(self._publish(queue, message, now))
                continue
            sequence = next(sequences)
            broker_id = f"m-{sequence}"
            if queue.sink:
                say(Publication("sent", broker_id))
                continue
            letter = DeadLetter(
                broker_id,
                message.body,
                message.headers,
                message.properties,
                now,
                None,
                None,
                0,
                None,
                message.ordering_key,
                message.content_type,
            )
            add(_Stored(sequence, letter))
            say(Publication("sent", broker_id))
        self.messages["publish"] += len(messages)
        return results

    def _publish(self, queue: _Queue, message: Outgoing, now: Micros) -> Publication:
        faults = self.faults
        if faults.publishes:
            status = faults.publishes.popleft()
            if status != "sent":
                return Publication(status, detail=f"injected: {status}")
        if faults.refused_bodies and message.body in faults.refused_bodies:
            return Publication("refused", detail="injected: this body is refused")
        if (message.delay_seconds or self._limited(queue)) and (detail := self._objection(queue, message)):
            return Publication("refused", detail=detail)
        sequence = next(self._sequence)
        broker_id = f"m-{sequence}"
        dedup_id = message.dedup_id
        if self.capabilities.native_dedupe is not None:
            dedup_id = send_id(message)
            known = queue.dedup
            horizon = now - _micros(self.capabilities.native_dedupe)
            while known and next(iter(known.values()))[0] <= horizon:
                known.popitem(last=False)
            if dedup_id in known:
                return Publication("sent", known[dedup_id][1], "dropped as a duplicate")
            known[dedup_id] = (now, broker_id)
        properties = message.properties
        if dedup_id is not None:
            properties = (*(p for p in properties if p[0] != "dedup_id"), ("dedup_id", dedup_id))
        letter = DeadLetter(
            broker_id,
            message.body,
            message.headers,
            properties,
            now,
            None,
            None,
            0,
            None,
            message.ordering_key,
            message.content_type,
        )
        copy = _Stored(sequence, letter)
        delay = round(message.delay_seconds * 1_000_000) if message.delay_seconds else queue.delay
        if queue.sink:
            pass
        elif delay:
            heapq.heappush(queue.delayed, (now + delay, sequence, copy))
        else:
            queue.add(copy)
        if faults.lost_responses:
            faults.lost_responses -= 1
            return Publication("unknown", detail="injected: the response was lost")
        return Publication("sent", broker_id)

    def _limited(self, queue: _Queue) -> bool:
        able = self.capabilities
        return not (able.max_headers is able.max_message_bytes is queue.info.max_message_bytes is None)

    def _objection(self, queue: _Queue, message: Outgoing) -> str:
        """Why the broker will never take ``message``, or ""."""
        able = self.capabilities
        if able.max_headers is not None and len(message.headers) > able.max_headers:
            return f"{len(message.headers)} headers; at most {able.max_headers} are allowed"
        bound = queue.info.max_message_bytes or able.max_message_bytes
        if bound is not None and (size := _size(message.body, message.headers)) > bound:
            return f"{size} bytes; queue {queue.name} takes at most {bound}"
        if message.delay_seconds and (
            able.native_delay is None or message.delay_seconds > able.native_delay.total_seconds()
        ):
            return f"a delay of {message.delay_seconds:g} s is longer than the broker keeps"
        return ""


class MemoryBroker:
    """One client of a :class:`MemoryWorld`; fills :class:`~redrive.brokers.base.Broker`."""

    def __init__(self, world: MemoryWorld) -> None:
        self.world = world
        self.capabilities = world.capabilities

    @classmethod
    def open(cls, connection_id: str) -> Self:
        """A broker on the world registered under ``connection_id``; an empty world is made at the first use."""
        return cls(_worlds.setdefault(connection_id, MemoryWorld()))

    def capabilities_for(self, queue: str) -> Capabilities:
        """See :class:`~redrive.brokers.base.Broker`; where keys keep their order, others go past one that waits."""
        found = self.world._queues.get(queue)
        return replace(self.capabilities, in_order=False) if found and found.info.ordered else self.capabilities

    def receive(self, queue: str, *, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:
        """See :class:`~redrive.brokers.base.Broker`; an empty queue is waited for at most the patience."""
        world = self.world
        deadline = world.clock() + _micros(min(wait, world.patience))
        while True:
            with world.lock:
                found, now = world._queue(queue, "receive"), world.clock()
                received = world._receive(found, limit, _micros(lease), now)
                if received or now >= deadline:
                    world.messages["receive"] += len(received)
                    return received
                event = world._next_event(found)
            # Others may publish meanwhile, so look again every few milliseconds.
            step = min(deadline - now, 5_000, (event - now) if event is not None else 5_000)
            world.sleep(max(step, 1) / 1_000_000)

    def settle(self, queue: str, receipts: Sequence[object]) -> Settled:
        """See :class:`~redrive.brokers.base.Broker`; a receipt whose lease ran out is a failure."""
        world = self.world
        with world.lock:
            found = world._queue(queue, "settle")
            world._settle_time(found, world.clock())
            failures: list[tuple[object, str]] = []
            in_flight, stale, gone = found.in_flight, found.stale, found.gone
            for receipt in receipts:
                if receipt in stale:
                    failures.append((receipt, "the lease ran out"))
                elif world.faults.settles and receipt in in_flight:
                    world.faults.settles -= 1
                    failures.append((receipt, "injected: not settled"))
                else:
                    copy = in_flight.pop(receipt, None)  # type: ignore[call-overload]
                    if copy is not None:
                        gone(copy)
            count = len(receipts) - len(failures)
            world.messages["settle"] += count
            return Settled(count, tuple(failures))

    def release(self, queue: str, receipts: Sequence[object]) -> None:
        """See :class:`~redrive.brokers.base.Broker`."""
        world = self.world
        with world.lock:
            found = world._queue(queue, "release")
            world._settle_time(found, world.clock())
            back = [copy for r in receipts if (copy := found.in_flight.pop(r, None)) is not None]  # type: ignore[call-overload]
            found.stale.update(copy.receipt for copy in back)
            found.give_back(back)
            world.messages["release"] += len(back)

    def extend(self, queue: str, receipts: Sequence[object], lease: timedelta) -> None:
        """See :class:`~redrive.brokers.base.Broker`; receipts whose lease ran out are left alone."""
        world = self.world
        with world.lock:
            found, now = world._queue(queue, "extend"), world.clock()
            world._settle_time(found, now)
            until = now + _micros(lease)
            extended = []
            for receipt in receipts:
                copy = found.in_flight.get(receipt)  # type: ignore[call-overload]
                if copy is not None:
                    copy.lease_until = until
                    extended.append(copy.receipt)
            if extended:
                heapq.heappush(found.leases, (until, next(world._sequence), extended))

    def dead_letter(self, queue: str, receipts: Sequence[object], *, reason: str, description: str = "") -> None:
        """Reject leased messages for good, as a consumer does; they go to the dead-letter queue."""
        world = self.world
        with world.lock:
            found, now = world._queue(queue, "dead_letter"), world.clock()
            world._settle_time(found, now)
            for receipt in receipts:
                copy = found.in_flight.pop(receipt, None)  # type: ignore[call-overload]
                if copy is not None:
                    world._dead_letter(found, copy, now, reason, description)

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        """See :class:`~redrive.brokers.base.Broker`."""
        world = self.world
        with world.lock:
            found, now = world._queue(queue, "publish"), world.clock()
            if world._plain(found):
                return world._publish_plainly(found, messages, now)
            results: list[Publication] = []
            blocked: set[str] = set()
            for message in messages:
                if message.ordering_key is not None and message.ordering_key in blocked:
                    results.append(Publication("retry", detail="an earlier message of its key was not sent"))
                    continue
                result = world._publish(found, message, now)
                if result.status != "sent" and message.ordering_key is not None:
                    blocked.add(message.ordering_key)
                results.append(result)
            world.messages["publish"] += len(messages)
            return results

    def begin(self, queue: str, messages: Sequence[Outgoing]) -> Callable[[], list[Publication]]:
        """See :class:`~redrive.brokers.base.Pipelines`; it has arrived at once."""
        return published_at_once(lambda: self.publish(queue, messages))

    def leads_to(self, queue: str, origin: str) -> bool | None:
        """See :class:`~redrive.brokers.base.Broker`."""
        return queue == origin

    def origins(self, queue: str) -> frozenset[str] | None:
        """See :class:`~redrive.brokers.base.Broker`."""
        world = self.world
        with world.lock:
            world._queue(queue, "origins")
            return frozenset(other.name for other in world._queues.values() if other.info.dead_letter_queue == queue)

    def depth(self, queue: str) -> Depth:
        """See :class:`~redrive.brokers.base.Broker`; exact."""
        world = self.world
        with world.lock:
            found = world._queue(queue, "depth")
            world._settle_time(found, world.clock())
            consumers = None if found.consumers is None else len(found.consumers)
            return Depth(found.visible(), len(found.in_flight), len(found.delayed), consumers)

    def describe(self, queue: str) -> QueueInfo:
        """See :class:`~redrive.brokers.base.Broker`; ``max_deliveries``: of what feeds it, else its own."""
        world = self.world
        with world.lock:
            found = world._queue(queue, "describe")
            feeding = [
                other.info.max_deliveries
                for other in world._queues.values()
                if other.info.dead_letter_queue == queue and other.info.max_deliveries is not None
            ]
            return found.info._replace(
                max_deliveries=min(feeding, default=found.info.max_deliveries),
                own_max_deliveries=found.info.max_deliveries if found.info.dead_letter_queue else None,
            )

    def consumers(self, queue: str) -> list[ConsumerStats]:
        """See :class:`~redrive.brokers.base.TellsOfConsumers`; those of whom the world was told."""
        world = self.world
        with world.lock:
            return list(world._queue(queue, "consumers").consumer_stats.values())

    def close_connection(self, queue: str, connection: str, reason: str) -> bool:
        """See :class:`~redrive.brokers.base.ClosesConnections`; the world keeps what it was asked for."""
        world = self.world
        with world.lock:
            found = world._queue(queue, "close_connection")
            world.closed.append((connection, reason))
            leaving = [one.consumer for one in found.consumer_stats.values() if one.connection == connection]
        for name in leaving:
            world.remove_consumer(queue, name)
        return bool(leaving)

    def close(self) -> None:
        """Nothing to close: what is leased comes back when its lease ends, as after a crash."""


_worlds: dict[str, MemoryWorld] = {}


def register_world(connection_id: str, world: MemoryWorld) -> MemoryWorld:
    """Make ``world`` what routes with ``broker: memory`` and this connection use; replaces another."""
    _worlds[connection_id] = world
    return world


def forget_worlds() -> None:
    """Forget every registered world: between tests."""
    _worlds.clear()


def _micros(duration: timedelta) -> Micros:
    return duration // timedelta(microseconds=1)


def _system_micros() -> Micros:
    return time.time_ns() // 1000


def _size(body: bytes, headers: Iterable[Header]) -> int:
    return len(body) + sum(
        len(h.name.encode()) + len(h.type.encode()) + len(h.value if isinstance(h.value, bytes) else h.value.encode())
        for h in headers
    )
