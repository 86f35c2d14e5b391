"""Ctrl-C at any point of a write: whoever cleans up after it can write at once, and never waits for itself."""

import contextlib
import sys
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import base
from sqlalchemy.pool import base as pool

from redrive.errors import LedgerUnavailable
from redrive.ledger import engine, leases
from redrive.ledger.delivery import windows
from redrive.ledger.dialects import sqlite_file
from redrive.ledger.engine import Ledger
from redrive.stages import pipeline
from redrive.stages.context import Run
from tests.workshop import Workshop

#: Where connections and transactions begin and end.
CODE = {module.__file__ for module in (contextlib, engine, sqlite_file, base, pool)}


def interrupted_at(point: int, work: Any) -> str | None:
    """Run ``work``, and raise KeyboardInterrupt at its ``point``-th line, whoever's it is; where; None: it was over."""
    count, where = 0, None

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count, where
        if event == "line" and frame.f_code.co_filename in CODE:
            count += 1
            if count == point:
                sys.settrace(None)
                where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return where


def begin(workshop: Workshop) -> Run:
    now, ttl = workshop.now(), timedelta(minutes=1)
    lease = leases.acquire(workshop.ledger, "orders", "r", holder="test", trigger="test", ttl=ttl, now=now)
    return Run("orders", lease.run_id, lease.fence, ttl, now)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger on SQLite that waits for a lock for a moment only."""
    create = sa.create_engine
    monkeypatch.setattr(
        sa,
        "create_engine",
        lambda url, connect_args, **more: create(url, connect_args=connect_args | {"timeout": 0.05}, **more),
    )


@pytest.mark.slow
def test_an_interrupt_at_any_line_of_a_write_keeps_no_lock(tmp_path: Path, impatient: None) -> None:
    workshop = Workshop(tmp_path)
    left, point = [], 0
    while True:
        point += 1
        run = begin(workshop)
        ledger = Ledger(workshop.settings.database)

        def write(ledger: Ledger = ledger, run: Any = run) -> None:
            with ledger.under(run.lease, workshop.now()):
                pass

        try:
            where = interrupted_at(point, write)
        except BaseException as interrupt:  # its traceback keeps the frames alive, as while a command ends
            try:
                pipeline.finish(workshop.settings, run, "failed", workshop.now)
            except LedgerUnavailable as locked:
                left.append(f"{point}: {interrupt!r}: {locked}")
                engine.let_go_of_interrupted()
                del interrupt
                pipeline.finish(workshop.settings, run, "failed", workshop.now)
        else:
            pipeline.finish(workshop.settings, run, "failed", workshop.now)
            if where is None:
                break
        ledger.close()
    assert point > 150, point
    assert left == []


def test_a_delivery_that_an_interrupt_ends_in_the_middle_of_a_write_is_recovered(
    tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop, left = Workshop(tmp_path), list[Any]()
    workshop.die("a", "b")
    run = workshop.planned()

    def interrupted(ledger: Ledger, lease: Any, *_: Any, **__: Any) -> None:
        left.append(ledger.under(lease, workshop.now()))
        left[0].__enter__()
        raise KeyboardInterrupt

    monkeypatch.setattr(windows, "mark", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workshop.deliver(run)
    assert workshop.states() == {"unknown": 2}
    with contextlib.suppress(sa.exc.SQLAlchemyError):
        left[0].__exit__(None, None, None)
