"""A run that writes nothing for a while keeps its route: while the ledger is away too, and not once it is replaced."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.errors import LedgerUnavailable
from redrive.ledger.engine import Ledger
from redrive.stages import heartbeat
from redrive.stages.context import Run
from tests.workshop import Workshop

PATIENCE = 60


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path)
    yield workshop
    workshop.ledger.close()


def quickly(run: Run) -> Run:
    """The same run with a lease that beats many times per second."""
    return replace(run, ttl=timedelta(milliseconds=30))


def eventually(condition: Callable[[], object]) -> bool:
    until = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < until:
        time.sleep(0.005)
    return bool(condition())


def lease_until(workshop: Workshop) -> Any:
    return workshop.query("select lease_until from route_state")[0][0]


def is_beating() -> bool:
    return any(thread.name == "lease of orders" for thread in threading.enumerate())


def test_the_lease_is_renewed_while_the_block_lasts_and_not_after_it(workshop: Workshop) -> None:
    run = quickly(workshop.begin())
    before = lease_until(workshop)
    with heartbeat.beating(workshop.settings, run, workshop.now):
        workshop.advance(hours=1)
        assert eventually(lambda: lease_until(workshop) > before)
    assert not is_beating()


@pytest.mark.parametrize("trouble", [LedgerUnavailable, ValueError], ids=["known", "any other"])
def test_a_ledger_that_is_away_for_a_while_does_not_end_the_beat(
    workshop: Workshop,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    trouble: type[Exception],
) -> None:
    run = quickly(workshop.begin())
    before = lease_until(workshop)
    write, failed = Ledger.write, threading.Semaphore(0)
    away = threading.Event()
    away.set()

    @contextmanager
    def write_unless_away(ledger: Ledger) -> Iterator[Any]:
        if away.is_set():
            failed.release()
            raise trouble("ledger: the server is restarting")
        with write(ledger) as connection:
            yield connection

    monkeypatch.setattr(Ledger, "write", write_unless_away)
    with heartbeat.beating(workshop.settings, run, workshop.now):
        for _ in range(3):
            assert failed.acquire(timeout=PATIENCE)
        workshop.advance(hours=1)
        away.clear()
        assert eventually(lambda: lease_until(workshop) > before)
    assert "the server is restarting" in caplog.text


def test_a_run_that_was_replaced_beats_no_more_and_says_so(
    workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    run = quickly(workshop.begin())
    workshop.advance(days=1)
    workshop.begin()
    theirs = lease_until(workshop)
    with heartbeat.beating(workshop.settings, run, workshop.now):
        assert eventually(lambda: not is_beating())
    assert lease_until(workshop) == theirs
    assert "was replaced" in caplog.text
