"""Brokers whose depth is true only after a while, as SQS's: a count of nothing is no proof that nothing is there."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.brokers.base import Depth, Settled
from redrive.brokers.memory import MEMORY_CAPABILITIES, MemoryBroker
from redrive.ledger.engine import parse_instant
from redrive.message import Received
from redrive.stages import pipeline
from redrive.stages.source_end import EMPTY_RECEIVES, LAST_LOOK
from tests.workshop import REFUSED, Workshop

LAG = timedelta(minutes=1)
SOURCE = {"queue": "orders-dlq", "kind": "dead_letter", "lease": "2s", "max_deliveries": 3}


class Killed(BaseException):
    """A process is gone, and with it all that it knew."""


class LateBroker(MemoryBroker):
    """Its depths are those of an earlier moment: ``counted`` of a queue, where that is given."""

    def __init__(self, workshop: Workshop) -> None:
        super().__init__(workshop.world)
        self.capabilities = replace(MEMORY_CAPABILITIES, depth_lag=LAG)
        self.counted: dict[str, int] = {}
        self.hides_held = False  # what somebody holds is in none of its counts
        self.waits: list[timedelta] = []

    def depth(self, queue: str) -> Depth:
        now = super().depth(queue)
        if self.hides_held:
            now = now._replace(in_flight=0)
        return Depth(self.counted[queue], 0, 0) if queue in self.counted else now

    def receive(self, queue: str, *, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:
        self.waits.append(wait)
        return super().receive(queue, limit=limit, wait=wait, lease=lease)


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path, sources=[SOURCE], drain={"wait": "5s"})
    workshop.broker = LateBroker(workshop)
    yield workshop
    workshop.ledger.close()


def broker_of(workshop: Workshop) -> LateBroker:
    assert isinstance(workshop.broker, LateBroker)
    return workshop.broker


def drain(workshop: Workshop) -> dict[str, Any]:
    run = workshop.begin()
    try:
        return pipeline.drain(workshop.settings, run, **workshop.options())
    finally:
        pipeline.finish(workshop.settings, run, "succeeded", workshop.now)


def send_one(workshop: Workshop) -> None:
    """A message is sent back, and its destination works past it."""
    workshop.die("a", error=REFUSED)
    assert workshop.cycle()["redelivered"] == 1
    workshop.advance(seconds=2)


def test_what_was_not_counted_is_drained_and_not_presumed(workshop: Workshop) -> None:
    """It failed again and lies in its dead-letter queue, of which the broker still says that it is empty."""
    send_one(workshop)
    workshop.consume(lambda _: REFUSED)
    workshop.advance(minutes=10)
    broker_of(workshop).counted["orders-dlq"] = 0
    report = workshop.cycle()
    assert report["returned"] == 1
    assert "presumed" not in workshop.states()


def test_a_source_is_known_up_to_the_lag_before_the_run(workshop: Workshop) -> None:
    before = workshop.now()
    workshop.cycle()
    [(drained_to,)] = workshop.query("select drained_to from source_state")
    assert parse_instant(drained_to) == before - LAG


def drained_to(workshop: Workshop) -> datetime | None:
    rows = workshop.query("select drained_to from source_state where source = 'orders-dlq'")
    return parse_instant(rows[0][0]) if rows else None


def hold(workshop: Workshop) -> None:
    """Somebody receives all that is there, and looks at it for long."""
    taken = MemoryBroker(workshop.world).receive("orders-dlq", limit=10, wait=timedelta(0), lease=timedelta(hours=2))
    assert taken


def test_a_count_of_nothing_does_not_take_back_what_the_first_look_saw_held(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was in flight before the run received anything; after an empty receive it is in none of the counts."""
    workshop.die("a")
    hold(workshop)
    broker = broker_of(workshop)
    receive = broker.receive

    def then_counts_nothing(*queue: Any, **how: Any) -> list[Received]:
        broker.counted["orders-dlq"] = 0
        return receive(*queue, **how)

    monkeypatch.setattr(broker, "receive", then_counts_nothing)
    workshop.cycle()
    assert drained_to(workshop) is None


def test_what_was_counted_and_did_not_come_is_not_gone_by_a_count_of_nothing(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody took it between the first look and the receive, and no count says so yet."""
    workshop.die("a")
    broker = broker_of(workshop)
    receive = broker.receive

    def is_faster(*queue: Any, **how: Any) -> list[Received]:
        if "orders-dlq" not in broker.counted:
            broker.counted["orders-dlq"] = 0
            hold(workshop)
        return receive(*queue, **how)

    monkeypatch.setattr(broker, "receive", is_faster)
    workshop.cycle()
    assert drained_to(workshop) is None


def test_what_a_dead_run_holds_is_remembered_where_no_count_says_so(workshop: Workshop) -> None:
    workshop.die("a")
    workshop.advance(minutes=10)
    broker = broker_of(workshop)
    broker.hides_held = True
    dead, receive = workshop.begin(), broker.receive

    def deadly(*queue: Any, **how: Any) -> list[Received]:
        receive(*queue, **how)
        raise Killed

    broker.receive = deadly  # type: ignore[method-assign]
    with pytest.raises(Killed):
        pipeline.drain(workshop.settings, dead, **workshop.options())
    broker.receive = receive  # type: ignore[method-assign]
    workshop.advance(seconds=70)  # its lease of the route is over, that of the copy is not
    workshop.cycle()
    assert drained_to(workshop) is None
    workshop.advance(hours=1)
    at = workshop.now()
    assert workshop.cycle()["new"] == 1
    assert drained_to(workshop) == at - LAG


def test_an_estimate_of_nothing_held_counts_once_an_earlier_run_saw_it_too(workshop: Workshop) -> None:
    broker = broker_of(workshop)
    broker.capabilities = replace(broker.capabilities, zeros_apart=timedelta(minutes=2))
    workshop.die("a")
    hold(workshop)
    workshop.cycle()
    broker.hides_held = True  # for a moment
    workshop.advance(minutes=10)
    workshop.cycle()
    assert drained_to(workshop) is None
    broker.hides_held = False
    workshop.advance(minutes=10)
    workshop.cycle()
    workshop.advance(hours=2)
    assert workshop.cycle()["new"] == 1
    assert drained_to(workshop) is None, "for the first time since"
    workshop.advance(minutes=1)
    workshop.cycle()
    assert drained_to(workshop) is None, "too soon after it"
    for _ in range(3):
        workshop.advance(minutes=1)
        at = workshop.now()
        workshop.cycle()
        assert drained_to(workshop) == at - LAG


def test_an_outcome_waits_until_destination_and_source_are_known_beyond_it(workshop: Workshop) -> None:
    """Window 6 s (2 s x 3). The look 200 s after the send is the first that is of after it for certain, as it may be a
    minute late and its clock two ahead; and a run knows of the source up to a minute before."""
    send_one(workshop)
    workshop.consume()
    for _ in range(6):
        workshop.cycle()
        assert workshop.states() == {"sent": 1}
        workshop.advance(seconds=50)
    workshop.cycle()
    assert workshop.states() == {"presumed": 1}


def test_an_idle_run_asks_once_and_is_not_kept_waiting(workshop: Workshop) -> None:
    counts = drain(workshop)
    assert counts["complete:orders-dlq"] == 1
    assert broker_of(workshop).waits == [timedelta(0)]


def test_while_outcomes_are_awaited_the_last_look_waits(workshop: Workshop) -> None:
    send_one(workshop)
    workshop.consume()
    broker_of(workshop).waits.clear()
    assert drain(workshop)["complete:orders-dlq"] == 1
    assert broker_of(workshop).waits == [LAST_LOOK]


def test_where_nothing_may_wait_several_looks_make_up_for_it(workshop: Workshop) -> None:
    workshop.settings = workshop.configure(str(workshop.settings.database), sources=[SOURCE], drain={"wait": "0s"})
    send_one(workshop)
    workshop.consume()
    broker_of(workshop).waits.clear()
    assert drain(workshop)["complete:orders-dlq"] == 1
    assert broker_of(workshop).waits == [timedelta(0)] * EMPTY_RECEIVES


def test_no_request_is_spent_on_a_proof_that_nobody_needs(workshop: Workshop) -> None:
    """Nothing was sent before: only what is sent from now on can come back."""
    workshop.die("a", "b")
    counts = drain(workshop)
    assert (counts["drained"], counts["complete:orders-dlq"]) == (2, 1)
    assert len(broker_of(workshop).waits) == 1


def test_a_burst_that_was_not_counted_is_drained_to_its_end(workshop: Workshop) -> None:
    send_one(workshop)
    workshop.die(*[str(number) for number in range(30)])
    broker_of(workshop).counted["orders-dlq"] = 10
    counts = drain(workshop)
    assert (counts["drained"], counts["complete:orders-dlq"]) == (30, 1)


def test_a_backlog_that_goes_on_is_not_complete(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.stages.source_end.RECEIVE_AT_ONCE", 5)
    workshop.die(*[str(number) for number in range(30)])
    broker_of(workshop).counted["orders-dlq"] = 0
    counts = drain(workshop)
    assert "complete:orders-dlq" not in counts
    assert counts["drained"] == 5 * EMPTY_RECEIVES, "the rest is for the next run, by when it is counted"


def test_the_limit_is_kept(workshop: Workshop) -> None:
    workshop.settings = workshop.configure(
        str(workshop.settings.database), sources=[SOURCE], drain={"wait": "0s", "limit": 10, "shards": 1}
    )
    send_one(workshop)
    workshop.die(*[str(number) for number in range(30)])
    broker_of(workshop).counted["orders-dlq"] = 10
    counts = drain(workshop)
    assert counts["drained"] == 10
    assert "complete:orders-dlq" not in counts


def test_a_source_that_is_never_empty_can_be_complete(workshop: Workshop) -> None:
    """Each receive finds one that has just died; more came than was counted, and no backlog is left."""
    send_one(workshop)
    broker = broker_of(workshop)
    settle = broker.settle

    def one_dies_meanwhile(queue: str, receipts: Any) -> Settled:
        workshop.die("another")
        return settle(queue, receipts)

    broker.settle = one_dies_meanwhile  # type: ignore[method-assign]
    workshop.settings = workshop.configure(
        str(workshop.settings.database), sources=[SOURCE], drain={"wait": "0s", "flush_messages": 2}
    )
    workshop.die("a", "b")
    counts = drain(workshop)
    assert counts["drained"] <= 2 + EMPTY_RECEIVES * 2
    assert counts["complete:orders-dlq"] == 1
