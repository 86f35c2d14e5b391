"""Several shards drain a source together: when is it drained to its end, so that what is not there did not come back?

Shards take turns receiving. Before the first of them and while they work, messages come in; people look at some, which
hides these; runs and tasks die with copies in their hands. Whatever happens, no message that lies in a source is older
than the moment up to which the ledger says that it is drained (:meth:`Site.assert_sound`).
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import pytest

from redrive.brokers.base import UNKNOWN_DEPTH, Depth
from redrive.brokers.memory import MEMORY_CAPABILITIES, MemoryBroker
from redrive.errors import BrokerUnavailable
from redrive.ledger import leases
from redrive.ledger.engine import parse_instant
from redrive.message import Received
from redrive.stages import pipeline
from redrive.stages.context import Run
from tests.classifying import classify
from tests.turns import Turns
from tests.workshop import Workshop, micros

Kind = Literal["exact", "late", "parts", "unknown"]
DLQ = "orders-dlq"
STRANGE = "the flux capacitor said hm"  # nothing is known of it: it doesn't go away by itself
LIMIT = 20
LAG = timedelta(minutes=1)
LEASE = timedelta(minutes=5)
ROUTE: dict[str, Any] = {
    "sources": [{"queue": DLQ, "kind": "dead_letter", "lease": "2s", "max_deliveries": 3}],
    "canary": {"first": 5, "grow": 4, "pass": 0.95, "observe": "1m"},
    "drain": {"wait": "0s", "limit": LIMIT, "flush_messages": 4, "lease": "5m"},
}


class Killed(BaseException):
    """The task is gone, with what it holds."""


class ShardsBroker(MemoryBroker):
    """The client of one shard; what its queues tell of themselves depends on ``kind``."""

    def __init__(self, site: "Site", shard: int, turns: Turns) -> None:
        super().__init__(site.world)
        self.site, self.shard, self.turns = site, shard, turns
        self.capabilities = replace(
            MEMORY_CAPABILITIES,
            knows_empty=site.kind != "unknown",
            depth_lag=LAG if site.kind == "late" else timedelta(0),
        )

    def receive(self, queue: str, *, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:
        if queue == DLQ:
            self.site.time.advance(timedelta(milliseconds=10))
            self.site.before_receive(self.shard)
        received = super().receive(queue, limit=limit, wait=wait, lease=lease)
        if queue == DLQ:
            self.turns.pass_on()
            self.site.after_receive(self.shard, received)
        return received

    def depth(self, queue: str) -> Depth:
        now = super().depth(queue)
        if queue != DLQ:
            return now
        match self.site.kind:
            case "unknown":
                return UNKNOWN_DEPTH
            case "late":
                return self.site.a_lag_ago() or now
            case "parts":  # what others hold is known as of some seconds before this client's own work
                held = sum(1 for receipt in self.site.mine[self.shard] if receipt in self.flights())
                others = self.site.seen_of_others.setdefault((self.site.runs, self.shard), now.in_flight or 0)
                return Depth(now.visible, held + others, 0, None, self.site.time.now - 6_000_000)
        return now

    def flights(self) -> Any:
        return self.world.queues[DLQ].in_flight


class Site(Workshop):
    """A route whose source is drained by several shards."""

    def __init__(self, folder: Path, kind: Kind, shards: int, **route: Any) -> None:
        self.kind = kind
        self.runs = 0
        self.seen_of_others: dict[tuple[int, int], int] = {}
        self.mine: dict[int, set[object]] = {number: set() for number in range(-1, shards)}
        self.shards = shards
        self.before: list[tuple[int, Depth]] = []
        self.before_receive: Callable[[int], None] = lambda _: None
        self.after_receive: Callable[[int, list[Received]], None] = lambda _shard, _received: None
        super().__init__(folder, **ROUTE | route)
        self.person = self.broker
        self.broker = ShardsBroker(self, -1, Turns())

    def advance(self, **delta: float) -> None:
        last = min(LAG, timedelta(**delta))
        for step in (timedelta(**delta) - last, last):  # leases may end on the way
            self.before.append((self.time.now, self.person.depth(DLQ)))
            self.time.advance(step)

    def a_lag_ago(self) -> Depth | None:
        then = self.time.now - LAG // timedelta(microseconds=1)
        return next((depth for at, depth in reversed(self.before) if at <= then), None)

    def drain(self, run: Run) -> dict[str, Any]:
        turns = Turns()
        self.runs += 1
        works = [lambda number=number: self.shard(run, number, turns) for number in range(self.shards)]
        return next(iter(turns.run(*works)))

    def shard(self, run: Run, number: int, turns: Turns | None = None, *, tries_left: bool = False) -> dict[str, Any]:
        broker = ShardsBroker(self, number, turns or Turns())
        options: dict[str, Any] = {"clock": self.now, "broker": broker, "tries_left": tries_left}
        return pipeline.drain(self.settings, run, shard=number, shards=self.shards, **options)

    def rest_of(self, run: Run) -> None:
        """Load what the drains of ``run`` staged; the run ends well."""
        manifest = pipeline.prepare_classification(self.settings, run, **self.options())
        if manifest is not None:
            classify(manifest)
        pipeline.load(self.settings, run, **self.options())
        pipeline.finish(self.settings, run, "succeeded", self.now)

    def only_drain(self) -> None:
        run = self.begin()
        self.drain(run)
        self.rest_of(run)

    def peek(self, count: int, lease: timedelta = timedelta(minutes=100)) -> None:
        """Somebody looks at some messages: for long nobody else sees them."""
        self.person.receive(DLQ, limit=count, wait=timedelta(0), lease=lease)

    def drained_to(self) -> datetime | None:
        rows = self.query("select drained_to from source_state where source = :source", source=DLQ)
        return parse_instant(rows[0][0]) if rows else None

    def assert_sound(self) -> None:
        to = self.drained_to()
        if to is not None:
            queue = self.world.queues[DLQ]
            left = [one.letter for one in chain(queue.ready, queue.in_flight.values())]
            old = [letter.body for letter in left if (letter.enqueued_at or 0) < micros(to)]
            assert old == [], f"drained to {to}"


def inflow(site: Site, every: int = 3, most: int = 40) -> Callable[[int], None]:
    """One more dies with every few receives."""
    count = iter(range(most * every))

    def before_receive(_shard: int) -> None:
        number = next(count, 1)
        if number % every == 0:
            site.die(f"meanwhile {site.time.now}", error=STRANGE)

    return before_receive


Build = Callable[..., Site]


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Build]:
    monkeypatch.setattr("redrive.stages.source_end.RECEIVE_AT_ONCE", 3)
    made: list[Site] = []

    def build(kind: Kind = "exact", shards: int = 2, **route: Any) -> Site:
        made.append(Site(tmp_path / str(len(made)), kind, shards, **route))
        return made[-1]

    yield build
    for one in made:
        one.ledger.close()


UNLIMITED = {"drain": ROUTE["drain"] | {"limit": 10_000}}
COUNTED: tuple[Kind, ...] = ("exact", "late", "parts")
every_kind = pytest.mark.parametrize("kind", ["exact", "late", "parts", "unknown"])
every_count = pytest.mark.parametrize("kind", COUNTED)


# --- live ------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("shards", [2, 3])
def test_a_canary_passes_after_its_window_and_two_runs_though_messages_come_in_all_the_time(
    build: Build, kind: Kind, shards: int
) -> None:
    site = build(kind, shards)
    site.die(*(f"m{i}" for i in range(70)), error=STRANGE)
    site.advance(minutes=10)
    site.before_receive = inflow(site)
    site.cycle()
    for run in range(2):
        site.consume()
        site.advance(minutes=10)
        site.before_receive = inflow(site)
        site.die(*(f"more {run} {i}" for i in range(2 * LIMIT)), error=STRANGE)
        site.advance(minutes=2)
        site.cycle()
        site.assert_sound()
    [(stage,)] = site.query("select stage from group_state")
    assert stage == "ramp"
    assert site.states()["presumed"] == 5
    assert site.audit() == []


@every_kind
def test_each_run_knows_the_source_up_to_its_beginning(build: Build, kind: Kind) -> None:
    site = build(kind, 2, **UNLIMITED)
    site.die(*(f"m{i}" for i in range(30)), error=STRANGE)
    for _ in range(2):
        site.advance(minutes=10)
        began = site.now()
        site.before_receive = inflow(site, every=2)
        site.cycle()
        to = site.drained_to()
        assert to is not None
        assert to >= began - LAG
        site.assert_sound()


def test_the_last_shard_to_end_is_enough(build: Build) -> None:
    """The first ended while the other held copies; then that one finds nothing, and nothing that others hold."""
    site = build("exact", 2, **UNLIMITED)
    site.die(*(f"m{i}" for i in range(13)), error=STRANGE)
    site.advance(minutes=10)
    run = site.begin()
    site.drain(run)
    noted = leases.counts_of(site.ledger, run.run_id)["drain"]
    assert noted[f"proved:{DLQ}"] == 1
    site.rest_of(run)
    assert site.drained_to() == run.started_at


# --- sound -----------------------------------------------------------------------------------------------


@every_count
@pytest.mark.parametrize("shards", [1, 2])
def test_what_a_person_looks_at_is_not_made_up_for_by_what_comes_in(build: Build, kind: Kind, shards: int) -> None:
    site = build(kind, shards, **UNLIMITED)
    site.die(*(f"m{i}" for i in range(20)), error=STRANGE)
    site.peek(2)
    site.advance(minutes=10)
    site.before_receive = inflow(site, every=2)
    site.only_drain()
    site.assert_sound()
    assert site.drained_to() is None
    site.advance(minutes=120)  # they are there again
    began = site.now()
    site.only_drain()
    to = site.drained_to()
    assert to is not None
    assert to >= began - LAG
    site.assert_sound()


@pytest.mark.parametrize("shards", [1, 2])
def test_a_person_who_begins_to_look_during_the_drain_is_seen(build: Build, shards: int) -> None:
    site = build("exact", shards, **UNLIMITED)
    site.die(*(f"m{i}" for i in range(20)), error=STRANGE)
    site.advance(minutes=10)
    more, receives = inflow(site, every=2), iter(range(10_000))

    def before_receive(shard: int) -> None:
        more(shard)
        if next(receives) == 2:
            site.peek(2)

    site.before_receive = before_receive
    site.only_drain()
    site.assert_sound()
    assert site.drained_to() is None


@every_count
def test_what_a_dead_run_had_leased_keeps_a_source_from_being_complete(build: Build, kind: Kind) -> None:
    site = build(kind, 2, **UNLIMITED)
    site.die(*(f"m{i}" for i in range(20)), error=STRANGE)
    site.advance(minutes=10)
    dead = site.begin()
    site.person.receive(DLQ, limit=5, wait=timedelta(0), lease=LEASE)  # all that it came to
    assert dead.fence
    site.advance(minutes=2)  # its lease of the route is over, those of its copies are not
    site.before_receive = inflow(site, every=2)
    site.only_drain()
    site.assert_sound()
    assert site.drained_to() is None
    site.advance(minutes=10)
    site.only_drain()
    assert site.drained_to() is not None
    site.assert_sound()


@every_count
@pytest.mark.parametrize("how", [Killed, BrokerUnavailable])
def test_a_shard_that_failed_and_is_tried_again_does_not_count_twice(
    build: Build, kind: Kind, how: type[BaseException]
) -> None:
    """Killed, it leaves copies leased; else they go back, behind what has come in."""
    site = build(kind, 2, **UNLIMITED)
    site.die(*(f"m{i}" for i in range(20)), error=STRANGE)
    site.advance(minutes=10)
    run = site.begin()
    received = iter(range(3))

    def fail(shard: int, _: list[Received]) -> None:
        if shard == 1 and next(received, None) == 2:
            if how is Killed:
                site.world.faults.down = "the process is gone"
            raise how("now")

    site.after_receive = fail
    with pytest.raises(how):
        site.shard(run, 1, tries_left=True)
    site.world.faults.down = ""
    site.after_receive = lambda _shard, _received: None
    site.before_receive = inflow(site, every=2)
    site.drain(run)
    site.rest_of(run)
    site.assert_sound()
    if how is Killed:
        assert site.drained_to() is None


@every_kind
@pytest.mark.parametrize("how", [Killed, BrokerUnavailable])
def test_a_shard_that_failed_and_that_somebody_marked_done_is_not_forgotten(
    build: Build, kind: Kind, how: type[BaseException]
) -> None:
    """Airflow lets anybody do so, to have the rest of a run. What the shard had is leased, or back behind the others'
    last look; what comes in takes its place in the count."""
    site = build(kind, 2, **UNLIMITED)
    site.die(*(f"m{i}" for i in range(20)), error=STRANGE)
    site.advance(minutes=10)
    run = site.begin()
    received, late = iter(range(3)), iter(range(7))

    def fail(shard: int, _: list[Received]) -> None:
        if shard == 1 and next(received, None) == 2:
            site.world.faults.down = "the process is gone"
            raise how("now")

    def before_receive(shard: int) -> None:
        if shard == 0 and next(late, None) is not None:
            site.die(f"meanwhile {site.time.now}", error=STRANGE)

    site.after_receive = fail
    with pytest.raises(how):
        site.shard(run, 1, tries_left=True)
    site.world.faults.down = ""
    site.after_receive = lambda _shard, _received: None
    site.before_receive = before_receive
    site.shard(run, 0)
    site.rest_of(run)
    site.assert_sound()
    assert site.drained_to() is None


@every_count
def test_a_task_that_ran_twice_does_not_count_twice(build: Build, kind: Kind) -> None:
    """Of 40, one shard takes 10, its share of the limit, and does so twice; the other takes its 10."""
    site = build(kind, 2)
    site.die(*(f"m{i}" for i in range(40)), error=STRANGE)
    site.advance(minutes=10)
    run = site.begin()
    for shard in (0, 0, 1):
        site.shard(run, shard)
    site.rest_of(run)
    site.assert_sound()
    assert site.drained_to() is None


@every_kind
def test_a_shard_at_its_limit_while_the_other_goes_quiet_proves_nothing(build: Build, kind: Kind) -> None:
    """A person holds the greater part while one shard finds nothing more; it is there again when the other ends."""
    site = build(kind, 2)
    site.die(*(f"m{i}" for i in range(30)), error=STRANGE)
    site.advance(minutes=10)
    run = site.begin()
    site.peek(25, timedelta(seconds=30))
    site.shard(run, 0)
    site.time.advance(timedelta(seconds=31))
    site.shard(run, 1)
    site.rest_of(run)
    assert site.person.depth(DLQ).visible == 15
    site.assert_sound()
    assert site.drained_to() is None


@every_kind
def test_shards_at_their_limits_prove_nothing(build: Build, kind: Kind) -> None:
    site = build(kind, 2)
    site.die(*(f"m{i}" for i in range(LIMIT + 1)), error=STRANGE)
    site.advance(minutes=10)
    site.only_drain()
    site.assert_sound()
    assert site.drained_to() is None


def test_what_came_later_than_the_count_is_not_taken_for_what_was_there(build: Build) -> None:
    """A late count of nothing, and more there than the limit allows."""
    site = build("late", 2)
    site.advance(minutes=10)
    site.advance(seconds=0)
    site.die(*(f"m{i}" for i in range(2 * LIMIT)), error=STRANGE)
    site.advance(seconds=30)
    site.only_drain()
    site.assert_sound()


@every_count
def test_copies_that_were_staged_and_not_settled_do_not_count_twice(build: Build, kind: Kind) -> None:
    """They come again, within the run, and are staged again."""
    site = build(kind, 2, drain=ROUTE["drain"] | {"lease": "1s", "limit": 30})
    site.die(*(f"m{i}" for i in range(30)), error=STRANGE)
    site.advance(minutes=10)
    site.world.faults.settles = 8
    run = site.begin()
    site.shard(run, 0)
    site.time.advance(timedelta(seconds=2))
    site.shard(run, 1)
    site.rest_of(run)
    site.assert_sound()
    assert site.drained_to() is None


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_nothing_older_lies_in_a_source_than_what_it_is_drained_to(build: Build, seed: int) -> None:
    dice = random.Random(seed)
    kind, shards = COUNTED[seed % 3], dice.choice([1, 2, 3])
    site = build(kind, shards, drain=ROUTE["drain"] | {"limit": dice.choice([10, 30, 200])})
    for number in range(6):
        site.die(*(f"m{number} {i}" for i in range(dice.choice([0, 5, 25]))), error=STRANGE)
        if dice.random() < 0.4:
            site.peek(dice.randint(1, 6), timedelta(minutes=dice.choice([9, 30])))
        site.advance(minutes=dice.choice([5, 10]))
        more = inflow(site, every=dice.choice([1, 2, 5]), most=15)
        peeks = dice.random() < 0.4 and kind == "exact"

        def before_receive(shard: int, more: Callable[[int], None] = more, peeks: bool = peeks) -> None:
            more(shard)
            if peeks and dice.random() < 0.1:
                site.peek(1, timedelta(minutes=dice.choice([2, 20])))

        site.before_receive = before_receive
        if dice.random() < 0.3:
            dies_after = iter(range(dice.randint(1, 6)))

            def fail(_shard: int, _: list[Received], left: Iterator[int] = dies_after) -> None:
                if next(left, None) is None:
                    site.world.faults.down = "the process is gone"
                    raise Killed

            site.after_receive = fail
        try:
            site.only_drain()
        except (Killed, BrokerUnavailable):
            pass
        site.world.faults.down = ""
        site.after_receive = lambda _shard, _received: None
        site.before_receive = lambda _shard: None
        site.assert_sound()
        site.advance(minutes=2)
