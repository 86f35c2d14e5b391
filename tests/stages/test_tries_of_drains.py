"""Two tries of one drain task: the one that was taken for dead and comes back takes nothing from the living one."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive.errors import BrokerError
from redrive.ledger.drain import batches
from redrive.stages import pipeline
from redrive.stages.context import Run
from tests.turns import Turns
from tests.workshop import Workshop


class Terminated(BaseException):
    """The scheduler ends a process."""


def named(name: str, work: Callable[[], Any]) -> Callable[[], Any]:
    """``work`` in a thread of that name, which gives its error as its result."""

    def run() -> Any:
        threading.current_thread().name = name
        try:
            return work()
        except (Exception, Terminated) as error:
            return error

    return run


def drain(workshop: Workshop, run: Run) -> dict[str, Any]:
    return pipeline.drain(workshop.settings, run, tries_left=True, **workshop.options())


@pytest.mark.parametrize("error", [BrokerError("connection reset"), Terminated()])
def test_a_try_that_had_opened_nothing_gives_up_nothing(tmp_path: Path, error: BaseException) -> None:
    """It stalls in its first receive, and fails while the living try has a batch open."""
    workshop = Workshop(tmp_path)
    workshop.die(*(f"m-{number:02}" for number in range(40)))
    run = workshop.begin()
    turns, receive, calls = Turns(), workshop.broker.receive, {"old": 0, "new": 0}

    def stalling(queue: str, **how: Any) -> Any:
        who = threading.current_thread().name
        calls[who] += 1
        if (who, calls[who]) == ("old", 1):
            turns.pass_on()
            raise error
        how["limit"] = min(how["limit"], 15)
        received = receive(queue, **how)
        if (who, calls[who]) == ("new", 2):
            turns.pass_on()
        return received

    workshop.broker.receive = stalling  # type: ignore[method-assign]
    old, new = turns.run(named("old", lambda: drain(workshop, run)), named("new", lambda: drain(workshop, run)))

    assert isinstance(old, Terminated) or "connection reset" in old["failed:orders-dlq"]
    assert (new["drained"], new["settled"]) == (40, 40)
    assert workshop.query("select state, copies from staging_batches") == [("settled", 40)]
    assert len(list(tmp_path.rglob("batch-*.parquet"))) == 1
    assert workshop.audit() == []
    workshop.ledger.close()


def test_a_try_that_is_interrupted_before_it_knows_its_batch_gives_up_its_own_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is written and the answer does not come."""
    workshop = Workshop(tmp_path)
    workshop.die(*(f"m-{number:02}" for number in range(40)))
    run = workshop.begin()
    turns = Turns()
    open_batch, receive = batches.open_batch, workshop.broker.receive

    def interrupted(*given: Any, **how: Any) -> Any:
        opened = open_batch(*given, **how)
        if threading.current_thread().name == "old":
            raise Terminated
        turns.pass_on()
        return opened

    monkeypatch.setattr(batches, "open_batch", interrupted)
    workshop.broker.receive = lambda queue, **how: receive(queue, **how | {"limit": min(how["limit"], 20)})  # type: ignore[method-assign]
    new, old = turns.run(named("new", lambda: drain(workshop, run)), named("old", lambda: drain(workshop, run)))

    assert isinstance(old, Terminated)
    assert not isinstance(new, BaseException), new
    states = workshop.query("select state, removed_at is not null from staging_batches order by batch_id")
    assert [(state, bool(removed)) for state, removed in states] == [("settled", False), ("abandoned", True)]
    workshop.ledger.close()
