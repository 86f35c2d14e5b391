"""What a look at a queue proves: only of that queue of that broker, and only of when the broker's word was true."""

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from redrive.brokers.base import Depth
from redrive.brokers.memory import MEMORY_CAPABILITIES, MemoryBroker, MemoryWorld
from redrive.errors import SettingsError
from redrive.ledger.engine import parse_instant
from redrive.settings import Settings, parse
from redrive.stages import pipeline
from tests.workshop import REFUSED, ROUTE, Workshop

CANARY: dict[str, Any] = {"canary": {"first": 5, "grow": 10, "pass": 0.95, "observe": "1m"}}


class TwoSystems(Workshop):
    """A second route, ``orders_us``, whose queues have the same names; by default on a broker of its own."""

    def __init__(self, folder: Path, **other: Any) -> None:
        self.other_route = {"connection": "us"} | other
        super().__init__(folder, **CANARY)
        us = MemoryWorld(clock=self.time, patience=timedelta(0))
        for queue in ("orders", "orders-dlq", "orders-delay"):
            us.create(queue, lease=timedelta(minutes=5))
        self.other = MemoryBroker(us)

    def configure(self, database: str, **route: Any) -> Settings:
        return configured(self.folder, database, orders={"connection": "eu"} | route, orders_us=self.other_route)

    def observe_the_other(self) -> None:
        """The other route looks at its queues, which are empty."""
        run = pipeline.begin(self.settings, "orders_us", trigger="t", holder="t", clock=self.now)
        pipeline.observe(self.settings, run, clock=self.now, broker=self.other)
        pipeline.finish(self.settings, run, "succeeded", self.now)

    def gate(self) -> tuple[Any, ...]:
        [gate] = self.query("select stage, allowed, sent, stayed, returned from group_state where route = 'orders'")
        return gate


def configured(folder: Path, database: str, **routes: dict[str, Any]) -> Settings:
    text = {
        "database": database,
        "staging": str(folder / "staging"),
        "routes": {name: ROUTE | CANARY | route for name, route in routes.items()},
    }
    return parse(yaml.safe_dump(text), env=os.environ, root=folder)


@pytest.fixture
def shops(tmp_path: Path) -> Iterator[list[Workshop]]:
    made: list[Workshop] = []
    yield made
    for one in made:
        one.ledger.close()


# --- which queue ----------------------------------------------------------------------------------------


def test_another_broker_s_queue_of_the_same_name_proves_nothing(tmp_path: Path, shops: list[Workshop]) -> None:
    shop = TwoSystems(tmp_path)
    shops.append(shop)
    shop.die(*(f"m{i}" for i in range(40)), error=REFUSED)
    shop.cycle()
    for _ in range(3):
        shop.advance(minutes=30)
        shop.observe_the_other()
        shop.advance(minutes=5)
        shop.cycle()
    assert len(shop.bodies("orders")) == 5, "nobody consumes"
    assert shop.states() == {"sent": 5, "held": 35}
    assert shop.gate() == ("canary", 5, 5, 0, 0)


def test_two_routes_to_one_queue_share_what_they_see(tmp_path: Path, shops: list[Workshop]) -> None:
    shop = TwoSystems(tmp_path, connection="eu", canary="off", sources=[{"queue": "more-dlq"}])
    shop.other = shop.broker
    shop.world.create("more-dlq", lease=timedelta(minutes=5))
    shops.append(shop)
    shop.die(*(f"m{i}" for i in range(40)), error=REFUSED)
    shop.cycle()
    shop.consume()
    shop.advance(minutes=3)  # beyond what the other's clock may be ahead
    shop.observe_the_other()
    shop.die("busy again", queue="orders")
    shop.advance(minutes=5)
    shop.cycle()
    assert shop.states() == {"presumed": 5, "sent": 35}


def test_a_route_that_moved_to_another_broker_begins_anew_there(tmp_path: Path, shops: list[Workshop]) -> None:
    """Its sends of before are judged by nothing that is seen there, and its gates prove themselves again."""
    shop = TwoSystems(tmp_path)
    shops.append(shop)
    shop.die(*(f"m{i}" for i in range(40)), error=REFUSED)
    shop.cycle()
    sent_before = shop.now()
    old = shop.broker
    shop.settings = configured(tmp_path, shop.settings.database, orders={"connection": "us"})
    shop.broker = shop.other
    for _ in range(3):
        shop.advance(minutes=30)
        shop.cycle()
    sent = shop.query(
        "select outcome, count(*) from redelivery_attempts where sent_at <= :before_at group by outcome",
        before_at=sent_before,
    )
    assert sent == [(None, 5)], "what was sent to the old broker is not presumed"
    assert shop.gate()[0] == "canary"
    assert len(shop.world.peek("orders")) == 5
    assert shop.query("select reason from audit_events where action = 'move_route'")
    (moved,) = shop.query("select count(*) from redelivery_attempts where sent_at > :before_at", before_at=sent_before)
    assert moved == (5,), "again a few first"
    shop.settings = configured(tmp_path, shop.settings.database, orders={"connection": "eu"})
    shop.broker = old
    shop.consume()
    for _ in range(3):
        shop.advance(minutes=30)
        shop.cycle()
    assert shop.query(
        "select outcome, count(*) from redelivery_attempts where sent_at <= :before_at group by outcome",
        before_at=sent_before,
    ) == [("presumed", 5)], "back there, they are observed again"


def sent_without_an_answer(tmp_path: Path, shops: list[Workshop]) -> TwoSystems:
    """Nobody knows whether a message was sent, and both brokers drop a repeat of what they were sent within an hour."""
    shop = TwoSystems(tmp_path)
    shops.append(shop)
    for world in (shop.world, shop.other.world):
        world.capabilities = replace(world.capabilities, native_dedupe=timedelta(hours=1))
    shop.broker, shop.other = MemoryBroker(shop.world), MemoryBroker(shop.other.world)
    shop.die("pay", error=REFUSED)
    shop.world.faults.lost_responses = 1
    shop.cycle()
    return shop


@pytest.mark.parametrize(("rule", "asked"), [("auto", 1), ("resend", 0)])
def test_another_broker_drops_no_repeat_of_a_send_that_it_never_saw(
    tmp_path: Path, shops: list[Workshop], rule: str, asked: int
) -> None:
    """Its first try was processed by a consumer of the broker where the route was. A resend waits for its window."""
    shop = sent_without_an_answer(tmp_path, shops)
    assert shop.consume() == 1
    pipeline.finish(shop.settings, shop.planned(), "failed", shop.now)
    assert shop.query("select plan from messages") == [("repeat",)]
    there = {"connection": "us", "on_unknown": rule, "canary": {"observe": "1h"}}
    shop.settings, shop.broker = configured(tmp_path, shop.settings.database, orders=there), shop.other
    shop.advance(minutes=5)
    report = shop.cycle()
    assert (report["redelivered"], report["escalated"]) == (0, asked)
    assert shop.other.world.peek("orders") == [], "not sent twice in silence"
    assert shop.audit() == []


def test_where_the_route_comes_back_its_broker_still_drops_a_repeat(tmp_path: Path, shops: list[Workshop]) -> None:
    shop = sent_without_an_answer(tmp_path, shops)
    more = {"on_unknown": "resend", "canary": {"observe": "1h"}}
    for connection, broker in (("us", shop.other), ("eu", shop.broker)):
        there = {"connection": connection} | more
        shop.settings, shop.broker = configured(tmp_path, shop.settings.database, orders=there), broker
        shop.advance(minutes=5)
        report = shop.cycle()
    assert report["redelivered"] == 1
    assert shop.bodies("orders") == [b"pay"]
    assert shop.states() == {"sent": 1}


@pytest.mark.parametrize("instead", [[], ["orders-dead"]], ids=["removed", "renamed"])
def test_what_may_have_come_back_to_a_source_that_is_none_any_more_is_never_presumed(
    tmp_path: Path, shops: list[Workshop], instead: list[str]
) -> None:
    shop = Workshop(tmp_path)
    shops.append(shop)
    shop.world.create("orders-dead", lease=timedelta(minutes=5))
    shop.die("a", "b", "c", error=REFUSED)
    shop.cycle()
    shop.consume(lambda _: REFUSED)
    dead, delay = ROUTE["sources"]
    now = [*(dead | {"queue": queue} for queue in instead), delay]
    shop.settings = shop.configure(shop.settings.database, sources=now)
    for _ in range(5):
        shop.advance(days=1)
        shop.cycle()
    assert len(shop.bodies("orders-dlq")) == 3
    assert shop.states() == {"sent": 3}
    assert shop.query("select distinct reason from messages") == [
        ("It may have come back to orders-dlq, which the route does not drain any more.",)
    ]
    assert shop.query("select source from source_state order by source") == [
        (queue,) for queue in ["orders-dead"] * len(instead) + ["orders-delay"]
    ], "nobody is told that it is behind"
    assert shop.audit() == [], "nobody is asked to wait for it"
    shop.settings = shop.configure(shop.settings.database)
    assert shop.cycle()["returned"] == 3, "what is seen after all counts"
    assert shop.audit() == []


def test_a_connection_that_changes_within_a_run_ends_it(tmp_path: Path, shops: list[Workshop]) -> None:
    """Tasks of one run read the configuration each for itself."""
    shop = TwoSystems(tmp_path)
    shops.append(shop)
    run = shop.begin()
    moved = configured(tmp_path, shop.settings.database, orders={"connection": "us"})
    with pytest.raises(SettingsError, match=r"memory:eu.*memory:us.*next run"):
        pipeline.observe(moved, run, **shop.options())
    pipeline.finish(shop.settings, run, "failed", shop.now)


# --- when -------------------------------------------------------------------------------------------------


class LateDepths(MemoryBroker):
    """Depths are as they were a minute ago, as SQS's may be."""

    LAG = timedelta(minutes=1)

    def __init__(self, shop: Workshop) -> None:
        super().__init__(shop.world)
        self.shop = shop
        self.capabilities = replace(MEMORY_CAPABILITIES, depth_lag=self.LAG, consumer_statistics=False)
        self.history: dict[str, deque[tuple[Any, Depth]]] = {}

    def note(self) -> None:
        """Remember how things are."""
        for queue in ("orders", "orders-dlq", "orders-delay"):
            self.history.setdefault(queue, deque()).append((self.shop.now(), super().depth(queue)))

    def depth(self, queue: str) -> Depth:
        self.note()
        told = [depth for at, depth in self.history[queue] if at <= self.shop.now() - self.LAG]
        return told[-1] if told else Depth(0, 0, 0)


def test_emptiness_that_was_told_too_soon_after_a_send_proves_nothing(tmp_path: Path, shops: list[Workshop]) -> None:
    shop = Workshop(tmp_path, **CANARY)
    shops.append(shop)
    shop.broker = late = LateDepths(shop)
    shop.die(*(f"m{i}" for i in range(40)), error=REFUSED)
    late.note()
    shop.advance(minutes=2)
    shop.cycle()
    late.note()
    shop.advance(seconds=10)
    shop.cycle()
    assert shop.query("select observed_from from delivery_slices") == [(None,)]
    for _ in range(3):
        late.note()
        shop.advance(minutes=12)
        shop.cycle()
    assert shop.states() == {"sent": 5, "held": 35}, "nobody consumes"
    shop.consume()
    consumed = shop.now()
    late.note()
    for _ in range(3):
        shop.advance(minutes=12)
        late.note()
        shop.cycle()
    assert shop.states()["presumed"] >= 5
    [(worked_past,)] = shop.query("select min(observed_from) from delivery_slices")
    assert (parse_instant(worked_past) or consumed) > consumed


class WaveringDepths(MemoryBroker):
    """An estimate: of more than a few messages it is sometimes a twentieth too low."""

    def __init__(self, shop: Workshop) -> None:
        super().__init__(shop.world)
        self.capabilities = replace(MEMORY_CAPABILITIES, exact_depth=False, consumer_statistics=False)
        self.asked = 0

    def depth(self, queue: str) -> Depth:
        depth = super().depth(queue)
        self.asked += queue == "orders"
        return depth._replace(visible=(depth.visible or 0) - (depth.visible or 0) // 20 * (self.asked % 2))


def test_a_depth_that_wavers_proves_nothing_however_often_it_is_looked_at(
    tmp_path: Path, shops: list[Workshop]
) -> None:
    shop = Workshop(tmp_path, **CANARY, sources=SOURCES)
    shops.append(shop)
    shop.die(*(f"other{i}" for i in range(40)), queue="orders")
    shop.broker = WaveringDepths(shop)
    shop.die(*(f"m{i}" for i in range(40)), error=REFUSED)
    shop.cycle()
    for _ in range(60):  # a run's look now and then, without all its other stages
        shop.advance(minutes=10)
        run = shop.begin()
        pipeline.observe(shop.settings, run, **shop.options())
        pipeline.finish(shop.settings, run, "succeeded", shop.now)
    shop.cycle()
    assert shop.states() == {"sent": 5, "held": 35}, "nobody consumes"
    assert shop.query("select observed_from from delivery_slices") == [(None,)]


SOURCES = [{"queue": "orders-dlq", "kind": "dead_letter", "lease": "2s", "max_deliveries": 3}]
