"""A run's numbers are what it did, also where a try of a task was killed in the middle and could not say so."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from redrive.cli import output
from redrive.ledger.account import inspecting
from redrive.ledger.delivery import outcomes
from redrive.ledger.review import escalations
from redrive.stages import classified_files, classify, escalate, pipeline, resolve
from redrive.stages.context import Run
from tests.workshop import CHECK, KEY_ERROR, REFUSED, Workshop

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


def kill_before(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, nth: int) -> None:
    """The process is gone before it calls this for the ``nth`` time."""
    called, calls = getattr(module, name), 0

    def calling(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise Killed
        return called(*given)

    monkeypatch.setattr(module, name, calling)


@pytest.mark.parametrize(
    ("module", "step", "last"),
    [
        (classified_files, "load", "drain"),
        (outcomes, "confirm", "load"),
        (escalations, "escalate", "deliver"),
        (escalations, "suppress", "deliver"),
    ],
)
def test_what_a_try_loaded_confirmed_and_gave_to_people_counts(
    ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, step: str, last: str
) -> None:
    """Twenty sent by an earlier run are proved to be processed, twenty die anew and are sent, twenty are for people, of
    which six prove to be processed: whichever of these steps ends a try, halfway through."""
    monkeypatch.setattr(classify, "CHUNK_ROWS", 10)
    monkeypatch.setattr(resolve, "PAGE", 10)
    monkeypatch.setattr(escalate, "PAGE", 10)
    processed: set[str] = set()
    monkeypatch.setattr(
        "redrive.connections.processed_check.Checker.processed", lambda _, keys: processed.intersection(keys)
    )
    workshop = Workshop(tmp_path, ledger_url, processed_check=CHECK, drain={"wait": "0s", "flush_messages": 10})
    workshop.die(*(f"sent-{number:02}" for number in range(20)), error=REFUSED)
    workshop.cycle()
    assert workshop.states() == {"sent": 20}
    workshop.die(*(f"new-{number:02}" for number in range(20)), error=REFUSED)
    workshop.die(*(f"bug-{number:02}" for number in range(20)), error=KEY_ERROR)
    processed |= {*(f"sent-{number:02}" for number in range(20)), *(f"bug-{number:02}" for number in range(0, 18, 3))}
    run = workshop.begin()
    with monkeypatch.context() as patched:
        kill_before(patched, module, step, 2)
        assert stages_until_killed(workshop, run)[-1] == last
    assert stages_until_killed(workshop, run)[-1] == "report"
    report = pipeline.report(workshop.settings, run, **workshop.options())
    told = {name: report[name] for name in ("drained", "new", "classified", "confirmed", "escalated", "suppressed")}
    assert told == {
        "drained": 40,
        "new": 40,
        "classified": 40,
        "confirmed": 20,
        "escalated": 14,
        "suppressed": 6,
    }
    assert report["redelivered"] == 20
    assert workshop.audit() == []


def test_what_waits_for_people_is_what_they_are_asked_and_have_not_decided(ledger_url: str, tmp_path: Path) -> None:
    """Not a state of messages: of those before people some are decided, and others are asked about besides."""
    shop = Workshop(tmp_path, ledger_url)
    shop.die(*(f"m-{number}" for number in range(6)), error=KEY_ERROR)
    assert shop.cycle()["to_decide"] == 6
    shop.change(
        "update messages set state = 'restore_unknown' where message_id = (select max(message_id) from messages)"
    )
    assert shop.states() == {"escalated": 5, "restore_unknown": 1}
    assert shop.cycle()["to_decide"] == 6
    shop.change("update escalated_messages set decision = 'discard', decided_by = 'ana' where escalation_id <= 2")
    with shop.ledger.read() as connection:
        status = inspecting.status(connection, "orders", shop.now())
    assert (status["to_decide"], status["decided"]) == (4, 2)
    screen = Console(record=True, width=100)
    configuration = {"last_run": None, "next_run": None}
    output.print_status(screen, status | {"configuration": configuration}, shop.now())
    told = "  people: 4 to decide (`redrive review list`), 2 decided (`redrive review apply`)\n"
    assert told in screen.export_text()
    assert shop.cycle()["to_decide"] == 4
    assert shop.states() == {"escalated": 3, "restore_unknown": 1, "discarded": 2}, "a run carries decisions out"


def test_a_route_that_was_left_with_a_suspected_copy_alone_is_told(ledger_url: str, tmp_path: Path) -> None:
    shop = Workshop(tmp_path, ledger_url)
    shop.die("a", error=KEY_ERROR)
    shop.cycle()
    shop.change("update escalated_messages set decision = 'discard', decided_by = 'ana'")
    shop.review()
    with shop.ledger.read() as connection:
        assert inspecting.not_configured(connection, ["payments"]) == {}
    shop.change("update staging_batches set suspected_copies = 1")
    with shop.ledger.read() as connection:
        assert inspecting.not_configured(connection, ["payments"]) == {"orders": 1}
