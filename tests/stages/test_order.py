"""With ``order_by`` messages of a key go out as they were sent first, however they were drained."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.brokers.memory import MemoryBroker, MemoryWorld
from redrive.ledger import leases
from redrive.ledger.delivery import lanes
from redrive.ledger.selecting import Selection
from redrive.message import DeadLetter, Header
from redrive.stages import pipeline
from redrive.stages.context import Run
from tests.turns import Turns
from tests.workshop import REFUSED, Workshop, micros

ORDER: dict[str, Any] = {
    "order_by": "attribute:customer",
    "canary": {"first": 20, "grow": 10, "pass": 0.5, "observe": "1s"},
    "deliver": {"shards": 2},
}


class Turning(MemoryBroker):
    """Gives a few messages at a time, then lets the other process work."""

    def __init__(self, world: MemoryWorld, turns: Turns, at_once: int = 1000) -> None:
        super().__init__(world)
        self._turns = turns
        self._at_once = at_once

    def receive(self, queue: str, *, limit: int, **how: Any) -> Any:
        received = super().receive(queue, limit=min(limit, self._at_once), **how)
        self._turns.pass_on()
        return received


class Shop(Workshop):
    """Drains with two shards that take turns after every two messages."""

    def __init__(self, folder: Path, **route: Any) -> None:
        super().__init__(folder, **ORDER | route)

    def drain(self, run: Run) -> dict[str, Any]:
        turns = Turns()

        def shard(number: int) -> Any:
            broker = Turning(self.world, turns, at_once=2)
            return pipeline.drain(self.settings, run, shard=number, shards=2, clock=self.now, broker=broker)

        return dict(enumerate(turns.run(lambda: shard(0), lambda: shard(1))))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    assert made.audit() == []
    made.ledger.close()


def headers(error: str, customer: str) -> tuple[Header, ...]:
    return Header("error", "String", error), Header("customer", "String", customer)


def dies(shop: Workshop, *bodies: str, customer: str = "ana", queue: str = "orders-dlq", **fields: Any) -> None:
    """Messages of a customer die, one millisecond after the other."""
    for body in bodies:
        shop.advance(milliseconds=1)
        died_at = micros(shop.now())
        letter = DeadLetter("", body.encode(), headers(REFUSED, customer), origin="orders", dead_lettered_at=died_at)
        shop.world.put(queue, letter._replace(**fields))


def consumed(shop: Workshop) -> list[str]:
    """What the destination holds, worked off."""
    bodies = [body.decode() for body in shop.bodies("orders")]
    shop.consume()
    return bodies


def to_the_end(shop: Workshop, *, runs: int = 30) -> list[str]:
    """What arrives at the destination, in the order in which it does."""
    arrived = []
    for _ in range(runs):
        shop.cycle()
        arrived += consumed(shop)
        shop.advance(minutes=1)
        if not shop.states().keys() - {"presumed", "discarded"}:
            break
    return arrived


def test_messages_that_two_shards_drained_go_out_in_the_order_of_their_first_send(shop: Shop) -> None:
    dies(shop, "m0", "m1", "m2", "m3", "m4", "m5")
    assert to_the_end(shop) == ["m0", "m1", "m2", "m3", "m4", "m5"]


def test_a_source_whose_shard_never_ran_is_not_known_to_be_drained(tmp_path: Path) -> None:
    """Somebody marked its task done, or `drain.shards` was raised after Airflow had made the run's tasks."""
    later = {"queue": "orders-delay", "kind": "delay", "delay": "30s", "destination": "orders"}
    shop = Shop(tmp_path, sources=[{"queue": "orders-dlq", "lease": "2s", "max_deliveries": 3}, later])
    shop.advance(minutes=1)
    run = shop.begin()
    pipeline.drain(shop.settings, run, shard=0, shards=2, **shop.options())
    assert pipeline.load(shop.settings, run, **shop.options())["emptied"] == ["orders-dlq"]


def test_also_where_the_broker_tells_time_too_coarsely_to_tell_them_apart(shop: Shop) -> None:
    same = micros(shop.now())
    dies(shop, "m0", "m1", "m2", "m3", "m4", "m5", enqueued_at=same, dead_lettered_at=same)
    assert to_the_end(shop) == ["m0", "m1", "m2", "m3", "m4", "m5"]


def test_one_that_was_sent_first_goes_first_though_it_died_and_was_drained_last(shop: Shop) -> None:
    first, second = micros(shop.now()), micros(shop.now() + timedelta(milliseconds=1))
    shop.advance(minutes=1)
    dies(shop, "second", enqueued_at=second)
    dies(shop, "first", enqueued_at=first)
    assert to_the_end(shop) == ["first", "second"]


def test_what_says_that_it_died_tomorrow_does_not_wait_for_tomorrow(shop: Shop) -> None:
    ahead = micros(shop.now() + timedelta(days=300 * 365))
    dies(shop, "m0", "m1", enqueued_at=ahead, dead_lettered_at=ahead)
    assert to_the_end(shop) == ["m0", "m1"]


def test_all_sources_count_as_drained_whichever_shard_took_them(shop: Shop) -> None:
    dies(shop, "m0")
    dies(shop, "later", queue="orders-delay")
    shop.cycle()
    ends = shop.query("select source, drained_to from source_state order by source")
    assert [source for source, at in ends if at] == ["orders-delay", "orders-dlq"]


# --- not before the sources are drained ---------------------------------------------------------------------


def test_nothing_goes_while_one_that_died_before_it_may_not_be_drained(shop: Shop) -> None:
    dies(shop, "m0")
    somebody = MemoryBroker(shop.world)
    somebody.receive("orders-dlq", limit=1, wait=timedelta(0), lease=timedelta(minutes=3))
    dies(shop, "m1")
    dies(shop, "has no key", customer="")
    shop.cycle()
    assert consumed(shop) == ["has no key"], "somebody looks at a message, and nobody knows whose it is"
    shop.advance(minutes=5)
    assert to_the_end(shop) == ["m0", "m1"]


@pytest.mark.parametrize("sources", [("orders-dlq",), ()])
def test_what_a_limit_leaves_in_its_source_is_waited_for(shop: Shop, sources: tuple[str, ...]) -> None:
    dies(shop, "m0", queue="orders-delay")
    dies(shop, "m1")
    left = Selection(limit=1, sources=sources)
    shop.cycle(left)
    assert consumed(shop) == []
    shop.advance(minutes=2)
    assert to_the_end(shop) == ["m0", "m1"]


def test_also_where_the_broker_does_not_tell_when_a_message_died(shop: Shop) -> None:
    enqueued = [micros(shop.now()), micros(shop.now() + timedelta(milliseconds=1))]
    shop.advance(minutes=1)
    shop.cycle()  # all sources are empty, and both are enqueued and live
    dies(shop, "m0", queue="orders-delay", enqueued_at=enqueued[0], dead_lettered_at=None)
    dies(shop, "m1", enqueued_at=enqueued[1], dead_lettered_at=None)
    shop.cycle(Selection(sources=("orders-dlq",)))
    assert consumed(shop) == []
    shop.advance(minutes=2)
    assert to_the_end(shop) == ["m0", "m1"]


def test_a_delivery_without_a_drain_sends_nothing_that_died_since_the_last_one(shop: Shop) -> None:
    dies(shop, "m0")
    shop.cycle(Selection(sources=("orders-dlq",)))
    run = shop.begin()
    assert shop.deliver(run)["redelivered"] == 0
    pipeline.finish(shop.settings, run, "succeeded", shop.now)
    shop.cycle()
    assert consumed(shop) == ["m0"]
    with shop.ledger.read() as connection:
        assert lanes.not_drained_past(connection, "orders", None, shop.now()) == 0


# --- canaries -----------------------------------------------------------------------------------------------

STRANGE = "the flux capacitor said hm"  # nothing is known of it: a canary first
BUG = "Traceback (most recent call last):\n  File \"shop.py\", line 7, in handle\nKeyError: 'sku'"


def test_a_canary_does_not_wait_for_messages_that_wait_for_people(tmp_path: Path) -> None:
    shop = Shop(tmp_path, canary={"first": 2, "grow": 3, "pass": 0.9, "observe": "1s"})
    dies(shop, "for people", customer="ben", headers=headers(BUG, "ben"))
    for n in range(3):
        dies(shop, f"blocked {n}", customer="ben", headers=headers(STRANGE, "ben"))
    for n in range(27):
        dies(shop, f"free {n}", headers=headers(STRANGE, f"customer {n}"))
    arrived = []
    for _ in range(12):
        shop.cycle()
        arrived += consumed(shop)
        shop.advance(minutes=1)
    assert len(arrived) == 27, "a group that is fixed ramps to its end"
    assert not [body for body in arrived if "free" not in body]
    assert shop.states() == {"escalated": 1, "presumed": 27, "held": 3}
    with shop.ledger.write() as connection:
        connection.exec_driver_sql("update escalated_messages set decision = 'discard', decided_by = 'ana'")
    shop.review()
    assert to_the_end(shop) == ["blocked 0", "blocked 1", "blocked 2"]
    shop.ledger.close()


def test_one_that_was_let_through_before_an_earlier_one_of_its_key_was_known_gives_its_place_back(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path, canary={"first": 1, "grow": 3, "pass": 0.9, "observe": "1s"})
    shop.advance(minutes=1)
    earlier = micros(shop.now())
    dies(shop, "later", headers=headers(STRANGE, "ben"))
    dies(shop, "other", headers=headers(STRANGE, "eve"))
    leases.pause(shop.ledger, "orders", by="ana", reason="deploy", now=shop.now())
    run = shop.planned(even_if_paused=True)
    pipeline.finish(shop.settings, run, "succeeded", shop.now)
    leases.resume(shop.ledger, "orders", by="ana", now=shop.now())
    assert shop.states() == {"waiting": 1, "held": 1}
    dies(shop, "earlier, for people", enqueued_at=earlier, headers=headers(BUG, "ben"))
    arrived = []
    for _ in range(4):
        shop.cycle()
        arrived += consumed(shop)
        shop.advance(minutes=1)
    assert arrived == ["other"]
    shop.ledger.close()


def test_a_key_of_which_nobody_told_when_it_died_goes_at_once_where_the_clock_of_begin_is_ahead(shop: Shop) -> None:
    dies(shop, "first", dead_lettered_at=None)
    run = pipeline.begin(
        shop.settings, "orders", trigger="test", holder="test", clock=lambda: shop.now() + timedelta(seconds=30)
    )
    for _ in shop.stages(run):
        shop.advance(milliseconds=1)
    pipeline.finish(shop.settings, run, "succeeded", shop.now)
    assert shop.states() == {"sent": 1}
