"""What a redelivery does to a slow consumer: all at once, as consoles and shovels do it, or under Redrive's budget.

Time is simulated, so this takes seconds. The consumer works off some messages per second and, as client libraries do,
takes as many as it may hold before it begins. What it holds is leased to it; what it has not got round to when the
lease ends goes to somebody else, counts a delivery, and after a few is dead again, through no fault of its own. The
depth of the destination (waiting and in the consumer's hands) decides which of the two it is.
"""

import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks import options
from benchmarks.results import Figure, Table, finish
from benchmarks.workload import classify as classify_directly
from redrive.brokers.memory import ManualClock, MemoryBroker, MemoryWorld
from redrive.ledger import schema
from redrive.ledger.engine import Ledger
from redrive.message import DeadLetter, Header, Outgoing
from redrive.settings import parse
from redrive.stages import deliver as deliver_stage
from redrive.stages import pipeline
from redrive.stages.context import Context

MESSAGES = 10_000
#: What the consumer can do, and for how long the broker leases it what it holds.
PER_SECOND = 20
PREFETCH = 1_000
LEASE = timedelta(seconds=30)
MAX_DELIVERIES = 3
#: What the route allows at the destination: two thirds of what the consumer does within one lease.
BOUND = 400
STEP = 0.5
OURS = "Redrive"


@dataclass(slots=True)
class Outcome:
    """What a redelivery came to."""

    way: str
    messages: int
    deepest: int = 0
    expired: int = 0  # leases that ran out in the consumer's hands
    worked: int = 0  # pieces of work that the consumer did
    twice: int = 0  # of these, done again although they had been done before
    dead: int = 0  # dead-lettered again
    minutes: float = 0.0


class Consumer:
    """Takes what it may hold, then works it off one after the other."""

    def __init__(self, world: MemoryWorld, clock: ManualClock, outcome: Outcome) -> None:
        self._broker = MemoryBroker(world)
        self._clock = clock
        self._outcome = outcome
        self._held: deque[tuple[bytes, object]] = deque()
        self._done: set[bytes] = set()
        self._credit = 0.0

    def work(self, seconds: float) -> None:
        """What it does in so many seconds; the clock moves."""
        while seconds > 0:
            step = min(STEP, seconds)
            seconds -= step
            self._clock.advance(timedelta(seconds=step))
            self._credit += step * PER_SECOND
            while self._credit >= 1:
                if not self._held:
                    self._take()
                if not self._held:
                    self._credit = 0
                    break
                body, receipt = self._held.popleft()
                self._credit -= 1
                self._outcome.worked += 1
                self._outcome.twice += body in self._done
                self._done.add(body)
                settled = self._broker.settle("orders", [receipt])
                self._outcome.expired += len(settled.failures)
            self.look()

    def look(self) -> None:
        """Note how deep the destination is."""
        self._outcome.deepest = max(self._outcome.deepest, self._broker.depth("orders").total or 0)

    def finish(self) -> None:
        """Work until nothing is left."""
        while (self._broker.depth("orders").total or 0) > 0:
            self.work(STEP)

    def _take(self) -> None:
        received = self._broker.receive("orders", limit=PREFETCH, wait=timedelta(0), lease=LEASE)
        self._held.extend((letter.body, receipt) for letter, receipt in received)


def simulate(messages: int = MESSAGES) -> list[Outcome]:
    """Both ways, each with the same messages and the same consumer."""
    return [_one("all at once", messages, _blindly), _one(OURS, messages, _with_redrive)]


def _one(way: str, messages: int, send: Callable[[MemoryWorld, ManualClock, Consumer, int], None]) -> Outcome:
    clock = ManualClock()
    world = MemoryWorld(clock=clock, patience=timedelta(0))
    world.create("orders-dlq", lease=timedelta(minutes=10))
    world.create("failed-again")
    world.create("orders", lease=LEASE, max_deliveries=MAX_DELIVERIES, dead_letter_queue="failed-again")
    outcome = Outcome(way, messages)
    consumer = Consumer(world, clock, outcome)
    start = clock.now
    send(world, clock, consumer, messages)
    consumer.finish()
    outcome.minutes = (clock.now - start) / 60e6
    outcome.dead = MemoryBroker(world).depth("failed-again").total or 0
    return outcome


def _blindly(world: MemoryWorld, _clock: ManualClock, consumer: Consumer, messages: int) -> None:
    MemoryBroker(world).publish("orders", [Outgoing(n, f"r-{n}", 1, b"%06d" % n) for n in range(messages)])
    consumer.look()


def _with_redrive(world: MemoryWorld, clock: ManualClock, consumer: Consumer, messages: int) -> None:
    headers = (Header("error", "String", "ConnectionResetError: [Errno 104] Connection reset by peer"),)
    world.fill("orders-dlq", messages, lambda n: DeadLetter("", b"%06d" % n, headers, origin="orders"))
    broker = MemoryBroker(world)

    def now() -> datetime:
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=clock.now)

    with tempfile.TemporaryDirectory(dir=os.environ.get("REDRIVE_BENCH_DIR")) as folder:
        settings = parse(
            f"""
database: sqlite:///{folder}/redrive.db
staging: {folder}/staging
routes:
  orders:
    broker: memory
    connection: bench
    sources: [{{queue: orders-dlq, kind: dead_letter}}]
    destination: {{queue: orders}}
    canary: "off"
    drain: {{limit: 10000000, wait: 0s}}
    deliver: {{run_for: 24h}}
    rate: {{per_second: 500, max_in_flight: {BOUND}}}
""",
            env={},
            root=Path(folder),
        )
        ledger = Ledger(settings.database)
        schema.upgrade(ledger, now())
        ledger.close()
        run = pipeline.begin(settings, "orders", trigger="bench", holder="bench", lease=timedelta(hours=24), clock=now)
        pipeline.drain(settings, run, broker=broker, clock=now)
        classify_directly(settings, broker, run)
        pipeline.load(settings, run, broker=broker, clock=now)
        pipeline.plan(settings, run, broker=broker, clock=now)
        with Context(settings, run, clock=now, broker=broker) as context:
            sent = deliver_stage.deliver(context, monotonic=lambda: clock.now / 1e6, sleep=consumer.work)
        assert sent["redelivered"] == messages, sent


def main() -> int:
    """Print a table; 1 when Redrive went beyond its bound or let a lease run out, or when all at once did not."""
    asked = options.parser("redelivery", __doc__).parse_args()
    found = simulate()
    table = Table(
        ("", "messages", "deepest", "leases run out", "worked on", "done twice", "dead again", "minutes"),
        [
            (
                one.way,
                one.messages,
                Figure(one.deepest, 0, most=BOUND if one.way == OURS else None),
                Figure(one.expired, 0, most=0 if one.way == OURS else None, least=None if one.way == OURS else 1),
                one.worked,
                one.twice,
                Figure(one.dead, 0, most=0 if one.way == OURS else None),
                Figure(one.minutes, 1),
            )
            for one in found
        ],
    )
    missed = finish(asked, "redelivery", table)
    print(
        f"the consumer does {PER_SECOND} per second, holds up to {PREFETCH:,}, leased for {LEASE.seconds} s;"
        f" Redrive may fill the destination up to {BOUND}"
    )
    return missed


if __name__ == "__main__":
    sys.exit(main())
