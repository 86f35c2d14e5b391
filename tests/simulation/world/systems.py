"""Systems, queues and copies: see the package."""

import random
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal

from tests.simulation.world.book import Arrival, Book, Mark, Place

Header = tuple[str, str, str | bytes]
Micros = int
SECOND: Micros = 1_000_000
MINUTE: Micros = 60 * SECOND
#: Seconds for which a system that estimates may tell of a queue with a few messages that it is empty.
ZEROS_APART = 120
EPOCH: Micros = 1_760_000_000 * SECOND

ID, ATTEMPT, COMPACT = "x-redrive-id", "x-redrive-attempt", "x-redrive"


class Clock:
    """The world's time. It stands still until it is told to move; whoever sleeps moves it."""

    def __init__(self) -> None:
        self.now: Micros = EPOCH

    def sleep(self, seconds: float) -> None:
        self.now += max(0, round(seconds * SECOND))

    def monotonic(self) -> float:
        return (self.now - EPOCH) / SECOND + 1000.0


@dataclass(frozen=True)
class Traits:
    """What a system does and tells."""

    depth: Literal["exact", "late", "about", "unknown"] = "exact"
    lag: int = 0  # seconds by which a late depth is behind, at most
    ids: Literal["kept", "new", "none"] = "kept"  # on the way into a dead-letter queue; none: the publisher's, if any
    dedupe: int | None = None  # seconds
    death_times: bool = True
    tells_origin: bool = True
    tells_reason: bool = True
    ordered: bool = False  # a key's messages come in order, and wait while one of them is in flight
    shuffles: bool = False  # what comes back, or in, may come out in another order
    max_headers: int | None = None
    publish_batch: int = 10
    native_delay: int | None = None  # seconds
    subscribers: int = 1
    client: str = "plain"  # which client library stands between


@dataclass(eq=False)
class Copy:
    """One copy of a message. A move makes a new one, whose ``parent`` is the old."""

    number: int
    body: bytes
    headers: tuple[Header, ...] = ()
    key: str | None = None
    properties: tuple[tuple[str, str], ...] = ()
    content_type: str | None = None
    broker_id: str = ""
    publisher_id: str = ""
    enqueued_at: Micros = 0
    arrived_at: Micros = 0
    died_at: Micros | None = None
    first_received_at: Micros | None = None
    deliveries: int = 0
    redelivered: bool = False
    origin: str | None = None
    reason: str | None = None
    description: str | None = None
    by: str = "producer"
    parent: "Copy | None" = None
    failed_at: Place | None = None  # where it died, if it is a dead one
    fresh: bool = False  # a message of its own, that only carries its parent's headers
    seen_by_consumer: bool = False
    visible_at: Micros = 0  # of what is sent early
    gone: bool = False

    @property
    def mark(self) -> Mark | None:
        """Redrive's marks on it, whoever put them there."""
        return mark_of(self.headers)

    def sends(self) -> "list[Copy]":
        """Itself and what it was made of, as long as it is the same message."""
        found, one = [], self
        while True:
            found.append(one)
            if one.parent is None or one.fresh:
                return found
            one = one.parent


def mark_of(headers: tuple[Header, ...]) -> Mark | None:
    """``x-redrive-id`` and ``x-redrive-attempt``, or both in ``x-redrive``."""
    found = {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value for name, _, value in headers
    }
    name, attempt = found.get(ID), found.get(ATTEMPT)
    if COMPACT in found:
        name, _, attempt = found[COMPACT].rpartition(";")
    if name and attempt and attempt.isascii() and attempt.isdigit() and len(attempt) < 7:
        return name, int(attempt)
    return None


@dataclass
class Queue:
    """A queue; small numbers only, so lists will do."""

    name: str
    lease: int = 30  # seconds
    max_deliveries: int | None = None
    dead_letters: str | None = None
    retention: int | None = None  # seconds after its first send at which a message is gone
    ready: list[Copy] = field(default_factory=list)
    flight: dict[int, tuple[Copy, Micros]] = field(default_factory=dict)
    later: list[tuple[Micros, Copy]] = field(default_factory=list)
    repeats: dict[str, tuple[Micros, Copy]] = field(default_factory=dict)  # dedup id -> when, what
    history: list[tuple[Micros, int, int, int]] = field(default_factory=list)
    zero_since: Micros | None = None  # since when it is told to be empty, by a system that estimates, and is not

    def copies(self) -> list[Copy]:
        """All that lie here, in whatever state."""
        return [*self.ready, *(copy for copy, _ in self.flight.values()), *(copy for _, copy in self.later)]


class World:
    """See the package."""

    def __init__(self, dice: random.Random) -> None:
        self.clock = Clock()
        self.dice = dice
        self.book = Book()
        self.systems: dict[str, System] = {}
        self.serial = 0
        self.log: list[str] = []
        self.watchers: list[
            Callable[[System, str, Copy], None]
        ] = []  # told of each send of Redrive's, before it lies there
        self.settle_watchers: list[Callable[[System, str, list[Copy]], None]] = []  # and of what it is to settle

    def number(self) -> int:
        self.serial += 1
        return self.serial

    def tell(self, text: str) -> None:
        """A line of the story."""
        seconds = (self.clock.now - EPOCH) / SECOND
        self.log.append(f"{seconds:>10.3f}  {text}")

    def copies(self) -> list[tuple[Place, Copy]]:
        """All copies that lie anywhere."""
        for system in self.systems.values():
            for name, queue in system.queues.items():
                if queue.retention is not None:
                    system._at(name)
        return [
            ((system.name, queue.name), copy)
            for system in self.systems.values()
            for queue in system.queues.values()
            for copy in queue.copies()
        ]


class System:
    """One broker behind one connection."""

    def __init__(self, world: World, name: str, traits: Traits) -> None:
        self.world = world
        self.name = name
        self.traits = traits
        self.queues: dict[str, Queue] = {}
        self.troubles: dict[str, list[str]] = {}  # action -> what happens to the next requests
        world.systems[name] = self

    def create(self, name: str, **how: object) -> Queue:
        self.queues[name] = Queue(name, **how)  # type: ignore[arg-type]
        return self.queues[name]

    def fate(self, action: str) -> str:
        """What happens to this request of Redrive's."""
        waiting = self.troubles.get(action)
        fate = waiting.pop(0) if waiting else "ok"
        if fate != "ok":
            self.world.book.numbers[f"fault {action} {fate}"] += 1
            self.world.tell(f"    fault: {action} at {self.name}: {fate}")
        return fate

    # --- verbs --------------------------------------------------------------------------------------------

    def send(
        self,
        queue: str,
        body: bytes,
        headers: tuple[Header, ...] = (),
        *,
        by: str,
        key: str | None = None,
        properties: tuple[tuple[str, str], ...] = (),
        content_type: str | None = None,
        publisher_id: str = "",
        dedup_id: str | None = None,
        delay: float = 0.0,
        parent: Copy | None = None,
        fresh: bool = False,
        failed_at: Place | None = None,
        enqueued_at: Micros | None = None,
        origin: str | None = None,
        known: bool = True,
    ) -> str:
        """A message comes to lie in ``queue``, unless it repeats one; the broker's id."""
        found, now = self._at(queue), self.world.clock.now
        place = (self.name, queue)
        window = self.traits.dedupe
        if window is not None and dedup_id is not None:
            before = found.repeats.get(dedup_id)
            if before is not None and now - before[0] < window * SECOND:
                self.world.book.numbers["swallowed"] += 1
                self.world.tell(f"    {self.name}/{queue} swallows {shown(body)}: repeats {dedup_id}")
                if by == "redrive":
                    first = before[1]
                    self.world.book.arrivals.append(
                        Arrival(now, place, body, mark_of(headers), None, first.mark, known)
                    )
                return before[1].broker_id
        number = self.world.number()
        copy = Copy(
            number, body, headers, key, properties, content_type,
            broker_id=f"{self.name}-{number}", publisher_id=publisher_id,
            enqueued_at=now if enqueued_at is None else enqueued_at, arrived_at=now,
            by=by, parent=parent, fresh=fresh, failed_at=failed_at, origin=origin,
            visible_at=now + round(delay * SECOND),
        )  # fmt: skip
        if dedup_id is not None:
            found.repeats[dedup_id] = (now, copy)
        if by == "redrive":
            self.world.book.arrivals.append(Arrival(now, place, body, copy.mark, copy, None, known))
            self.world.book.numbers["sends"] += 1
            for watcher in self.world.watchers:
                watcher(self, queue, copy)
        self.world.book.entries.append((place, copy))
        if failed_at is not None:
            self.world.book.deaths.append((now, failed_at, copy))
        if delay:
            found.later.append((now + round(delay * SECOND), copy))
        else:
            self._lay(found, copy)
        self._note(found)
        return copy.broker_id

    def receive(self, queue: str, limit: int, lease: float, *, by: str) -> list[tuple[Copy, int]]:
        found, now = self._at(queue), self.world.clock.now
        busy = {copy.key for copy, _ in found.flight.values()} if self.traits.ordered else set()
        taken: list[tuple[Copy, int]] = []
        for copy in list(found.ready):
            if len(taken) >= limit:
                break
            if self.traits.ordered and copy.key is not None and copy.key in busy:
                continue
            if found.dead_letters and found.max_deliveries is not None and copy.deliveries >= found.max_deliveries:
                found.ready.remove(copy)
                self._die(found, copy, "MaxDeliveryCountExceeded", None)
                continue
            found.ready.remove(copy)
            receipt = self.world.number()
            copy.redelivered = copy.deliveries > 0 or copy.redelivered
            copy.deliveries += 1
            copy.first_received_at = copy.first_received_at or now
            copy.seen_by_consumer = copy.seen_by_consumer or by == "consumer"
            found.flight[receipt] = (copy, now + round(lease * SECOND))
            taken.append((copy, receipt))
        self._note(found)
        return taken

    def settle(self, queue: str, receipts: list[int], *, by: str) -> list[int]:
        """The receipts that were not settled."""
        found = self._at(queue)
        if by == "redrive":
            held_here = [found.flight[receipt][0] for receipt in receipts if receipt in found.flight]
            for watcher in self.world.settle_watchers:
                watcher(self, queue, held_here)
        late = []
        for receipt in receipts:
            held = found.flight.pop(receipt, None)
            if held is None:
                late.append(receipt)
            else:
                held[0].gone = True
                self.world.book.numbers[f"settled by {by}"] += 1
                self.world.book.settled[self.name, queue] += by == "redrive"
        self._note(found)
        return late

    def release(self, queue: str, receipts: list[int], *, by: str) -> None:
        found = self._at(queue)
        for receipt in receipts:
            held = found.flight.pop(receipt, None)
            if held is not None:
                self._back(found, held[0])
        self._note(found)

    def extend(self, queue: str, receipts: list[int], lease: float) -> None:
        found, now = self._at(queue), self.world.clock.now
        for receipt in receipts:
            if receipt in found.flight:
                found.flight[receipt] = (found.flight[receipt][0], now + round(lease * SECOND))

    def reject(self, queue: str, receipt: int, reason: str, description: str | None) -> None:
        """Its consumer gives up; without a dead-letter queue it is gone, which the book notes as the world's loss."""
        found = self._at(queue)
        held = found.flight.pop(receipt, None)
        if held is not None:
            self._die(found, held[0], reason, description)
        self._note(found)

    def depth(self, queue: str) -> tuple[int, int, int] | None:
        """Visible, in flight, delayed: as the system tells it."""
        found, now = self._at(queue), self.world.clock.now
        true = (len(found.ready), len(found.flight), len(found.later))
        match self.traits.depth:
            case "unknown":
                return None
            case "late":
                then = now - self.world.dice.randint(0, self.traits.lag) * SECOND
                at = bisect_right(found.history, then, key=lambda entry: entry[0]) - 1
                return found.history[at][1:] if at >= 0 else (0, 0, 0)
            case "about":
                wobble = max(1, sum(true) // 10)
                told = max(0, true[0] + self.world.dice.randint(-wobble, wobble))
                if not sum(true) and self._at_rest(found):
                    told = 0
                elif true[0] and not told:  # wrong for a while, not for ever
                    found.zero_since = now if found.zero_since is None else found.zero_since
                    told = int(now - found.zero_since >= ZEROS_APART * SECOND)
                if told:
                    found.zero_since = None
                return (told, true[1], true[2])
        return true

    def _at_rest(self, found: Queue) -> bool:
        """Nothing came or went there for so long that an estimate of it is right."""
        changed = next((at for (at, *was), (_, *now) in pairwise(reversed(found.history)) if was != now), EPOCH)
        return self.world.clock.now - changed >= ZEROS_APART * SECOND

    def restart(self) -> None:
        """The broker starts anew: what was in flight comes back, leases and receipts are void."""
        for found in self.queues.values():
            for receipt in list(found.flight):
                self._back(found, found.flight.pop(receipt)[0])
            self._note(found)

    # --- inside -------------------------------------------------------------------------------------------

    def exists(self, queue: str) -> bool:
        return queue in self.queues

    def _at(self, queue: str) -> Queue:
        found, now = self.queues[queue], self.world.clock.now
        for due, copy in sorted(found.later, key=lambda entry: entry[0]):
            if due <= now:
                found.later.remove((due, copy))
                self._lay(found, copy)
        for receipt, (copy, until) in list(found.flight.items()):
            if until <= now:
                del found.flight[receipt]
                self._back(found, copy)
        if found.retention is not None:
            for copy in [one for one in found.ready if one.enqueued_at + found.retention * SECOND <= now]:
                found.ready.remove(copy)
                copy.gone = True
                self.world.book.lost[copy.failed_at or (self.name, found.name), copy.body] += 1
                self.world.book.numbers["expired"] += 1
                self.world.tell(f"    {self.name}/{found.name} keeps {shown(copy.body)} no longer")
        self._note(found)
        return found

    def _lay(self, found: Queue, copy: Copy) -> None:
        if self.traits.shuffles and not self.traits.ordered:
            found.ready.insert(self.world.dice.randint(0, len(found.ready)), copy)
        else:
            found.ready.append(copy)

    def _back(self, found: Queue, copy: Copy) -> None:
        copy.redelivered = True
        if self.traits.ordered:
            found.ready.append(copy)
            found.ready.sort(key=lambda one: one.number)
        elif self.traits.ids == "none":  # to its place, as RabbitMQ does
            found.ready.insert(0, copy)
        else:
            self._lay(found, copy)

    def _die(self, found: Queue, copy: Copy, reason: str, description: str | None) -> None:
        place, now, able = (self.name, found.name), self.world.clock.now, self.traits
        copy.gone = True
        if found.dead_letters is None:
            self.world.book.lost[place, copy.body] += 1
            return
        number = self.world.number()
        dead = replace(
            copy, number=number, parent=copy, fresh=False, gone=False, arrived_at=now, failed_at=place,
            broker_id=copy.broker_id if able.ids == "kept" else f"{self.name}-{number}",
            died_at=now if able.death_times else None,
            origin=found.name if able.tells_origin else None,
            reason=reason if able.tells_reason else None,
            description=description if able.tells_reason else None,
            redelivered=False, seen_by_consumer=False,
        )  # fmt: skip
        target = self.queues[found.dead_letters]
        self.world.book.entries.append(((self.name, target.name), dead))
        self.world.book.deaths.append((now, place, dead))
        self._lay(target, dead)
        self._note(target)

    def _note(self, found: Queue) -> None:
        found.history.append((self.world.clock.now, len(found.ready), len(found.flight), len(found.later)))


def shown(body: bytes) -> str:
    """A body in the log."""
    text = body[:40].decode("utf-8", "replace")
    return text if len(body) <= 40 else f"{text}…"


def moment(at: Micros) -> str:
    """A time as people type it into SQL."""
    return f"{datetime.fromtimestamp(at // SECOND, UTC):%Y-%m-%d %H:%M:%S}.{at % SECOND:06d}"
