"""Drains that died while they held copies of a source whose broker tells no depth: nobody sees what they hold, so
nothing is proved of that source until their leases are over."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.brokers.memory import MEMORY_CAPABILITIES
from redrive.errors import BrokerError
from redrive.ledger.engine import parse_instant
from redrive.stages import pipeline
from redrive.stages.context import Run
from tests.workshop import REFUSED, Workshop


class NoDepth(Workshop):
    """What Pub/Sub, Pulsar and RabbitMQ without its management tell of a source."""

    capabilities = replace(MEMORY_CAPABILITIES, knows_empty=False)


class Killed(BaseException):
    """A process is gone, and with it all that it knew."""


CANARY = {"first": 2, "grow": 10, "pass": 0.95, "observe": "auto"}


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    workshop = NoDepth(tmp_path, canary=CANARY)
    yield workshop
    workshop.ledger.close()


def die_holding(workshop: Workshop, run: Run, error: BaseException | None = None) -> int:
    """A try of the run's drain receives from its source and is gone; returns how many copies it holds."""
    receive, held = workshop.broker.receive, [0]

    def deadly(queue: str, **how: Any) -> Any:
        received = receive(queue, **how)
        if queue == "orders-dlq":
            held[0] = len(received)
            raise error or Killed
        return received

    workshop.broker.receive = deadly  # type: ignore[method-assign]
    with suppress(Killed):
        pipeline.drain(workshop.settings, run, **workshop.options())
    workshop.broker.receive = receive  # type: ignore[method-assign]
    return held[0]


def canary_fails(workshop: Workshop) -> None:
    """Both messages of the canary come back."""
    workshop.die(*(f"m-{number}" for number in range(30)))
    assert workshop.cycle()["redelivered"] == 2
    workshop.consume(lambda _: REFUSED)
    workshop.advance(minutes=1)


def finish_with(workshop: Workshop, run: Run, dead_tries: int, error: BaseException | None = None) -> None:
    """The whole run, of which so many tries of the drain died before the one that ends."""
    for name, _ in workshop.stages(run):
        if name == "observe":
            for _ in range(dead_tries):
                die_holding(workshop, run, error)
                workshop.advance(seconds=20)
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)


def drained_to(workshop: Workshop) -> Any:
    [(moment,)] = workshop.query("select drained_to from source_state where source = 'orders-dlq'")
    return parse_instant(moment)


def nothing_is_presumed_until_they_come_back(workshop: Workshop) -> None:
    for _ in range(3):
        assert workshop.cycle()["redelivered"] == 0
        assert workshop.states() == {"held": 28, "sent": 2}
        workshop.advance(seconds=30)
    workshop.advance(minutes=4)
    assert workshop.cycle()["returned"] == 2
    assert "presumed" not in workshop.states()
    assert workshop.audit() == []


def test_a_run_that_died_with_returns_presumes_nothing(workshop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    canary_fails(workshop)
    dead = workshop.begin()
    assert die_holding(workshop, dead) == 2
    workshop.advance(seconds=70)  # its lease of the route is over, those of its copies are not
    with caplog.at_level(logging.INFO, "redrive.stages.completeness"):
        nothing_is_presumed_until_they_come_back(workshop)
    assert f"orders-dlq: run {dead.run_id} did not end well there" in caplog.text


def test_it_holds_them_as_long_as_it_leased_them_whatever_the_configuration_says_since(workshop: Workshop) -> None:
    canary_fails(workshop)
    assert die_holding(workshop, workshop.begin()) == 2
    shorter = {"canary": CANARY, "drain": {"wait": "0s", "lease": "30s"}}
    workshop.settings = workshop.configure(workshop.settings.database, **shorter)
    workshop.advance(seconds=70)
    nothing_is_presumed_until_they_come_back(workshop)


def test_a_try_that_died_in_a_run_that_succeeded_is_not_forgotten(workshop: Workshop) -> None:
    """The try after it reaches the end of what it sees, in the same run; the next run is a minute later."""
    canary_fails(workshop)
    run = workshop.begin(lease=timedelta(minutes=15))
    finish_with(workshop, run, dead_tries=1)
    assert workshop.states() == {"held": 28, "sent": 2}
    assert drained_to(workshop) < run.started_at
    workshop.advance(minutes=1)
    nothing_is_presumed_until_they_come_back(workshop)


def test_a_run_that_is_begun_anew_remembers_that_it_was(workshop: Workshop) -> None:
    canary_fails(workshop)
    again = {"trigger": "test", "holder": "me", "lease": timedelta(minutes=15), "dag_run_id": "daily"}
    run = pipeline.begin(workshop.settings, "orders", clock=workshop.now, **again)  # type: ignore[arg-type]
    assert die_holding(workshop, run) == 2
    run = pipeline.begin(workshop.settings, "orders", clock=workshop.now, **again)  # type: ignore[arg-type]
    finish_with(workshop, run, dead_tries=0)
    nothing_is_presumed_until_they_come_back(workshop)


def test_the_later_of_two_in_order_waits_for_what_a_dead_try_holds(tmp_path: Path) -> None:
    workshop = NoDepth(tmp_path, order_by="body:$.c")
    workshop.cycle()
    workshop.advance(minutes=1)
    earlier, later = '{"c": "ana", "n": 1}', '{"c": "ana", "n": 2}'
    workshop.die(earlier)
    workshop.advance(seconds=2)
    run = workshop.begin(lease=timedelta(minutes=15))
    for name, _ in workshop.stages(run):
        if name == "observe":
            assert die_holding(workshop, run) == 1
            workshop.die(later)
            workshop.advance(seconds=20)
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    for _ in range(3):
        workshop.advance(minutes=1)
        workshop.cycle()
        assert workshop.bodies("orders") == []
    sent: list[bytes] = []
    for _ in range(12):
        workshop.advance(minutes=3)
        workshop.cycle()
        sent += workshop.bodies("orders")
        workshop.consume()
    assert sent == [earlier.encode(), later.encode()]
    assert workshop.audit() == []
    workshop.ledger.close()


# --- and an ordinary route goes on ------------------------------------------------------------------------


def test_where_all_ended_well_every_run_is_a_proof(workshop: Workshop) -> None:
    for _ in range(3):
        workshop.advance(seconds=5)
        at = workshop.now()
        workshop.cycle()
        assert drained_to(workshop) == at


def test_a_run_that_failed_after_its_drain_had_ended_holds_nothing(workshop: Workshop) -> None:
    """One source that fails in every run, or a report that does, keeps no gate shut."""
    run = workshop.begin()
    pipeline.drain(workshop.settings, run, **workshop.options())
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    workshop.advance(seconds=5)
    at = workshop.now()
    workshop.cycle()
    assert drained_to(workshop) == at


def test_a_run_that_died_is_forgotten_when_its_leases_are_over(workshop: Workshop) -> None:
    workshop.die("a")
    die_holding(workshop, workshop.begin())
    workshop.advance(minutes=20)
    workshop.cycle()
    workshop.advance(minutes=5)
    at = workshop.now()
    workshop.cycle()
    assert drained_to(workshop) == at


def test_a_source_that_failed_is_not_known_in_the_next_run(workshop: Workshop) -> None:
    """What its drain had received may not have been given back."""
    workshop.die("a")
    run = workshop.begin()
    die_holding(workshop, run, BrokerError("connection reset"))
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    workshop.advance(seconds=5)
    workshop.cycle()
    assert workshop.query("select drained_to from source_state where source = 'orders-dlq'") in ([], [(None,)])
