"""A run's numbers are what it did, also where a try of a task was killed in the middle and could not say so."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive.stages import pipeline
from redrive.stages.context import Run
from tests.workshop import Workshop

MESSAGES = 40


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture
def workshop(ledger_url: str, tmp_path: Path) -> Workshop:
    workshop = Workshop(
        tmp_path,
        ledger_url,
        deliver={"slice": 10, "confirm_window": 5},
        drain={"wait": "0s", "flush_messages": 10},
    )
    workshop.die(*(f"m-{number:02}" for number in range(MESSAGES)))
    return workshop


def kill_at(workshop: Workshop, action: str, nth: int) -> Callable[[str, str], None]:
    calls = 0

    def before(called: str, queue: str) -> None:
        nonlocal calls
        calls += called == action
        if calls == nth:
            workshop.world.faults.before = None
            raise Killed

    return before


def stages_until_killed(workshop: Workshop, run: Run) -> list[str]:
    """The stages that were done."""
    done = []
    with contextlib.suppress(Killed):
        for name, _ in workshop.stages(run):
            done.append(name)
    return done


@pytest.mark.parametrize(("action", "last"), [("publish", "plan"), ("settle", "observe")])
def test_what_a_try_did_that_was_killed_counts(workshop: Workshop, action: str, last: str) -> None:
    run = workshop.begin()
    workshop.world.faults.before = kill_at(workshop, action, 3)
    assert stages_until_killed(workshop, run)[-1] == last
    workshop.advance(minutes=6)  # what it had received and not settled is visible again
    assert stages_until_killed(workshop, run)[-1] == "report"
    report = pipeline.report(workshop.settings, run, **workshop.options())
    # Ten were recorded and not settled when it was killed, so they came twice.
    again = 10 if action == "settle" else 0
    assert (report["drained"], report["new"], report["duplicates"]) == (MESSAGES + again, MESSAGES, again)
    ((sent,),) = workshop.query("select count(*) from redelivery_attempts where sent_at is not null")
    assert report["redelivered"] == sent >= MESSAGES - 5
