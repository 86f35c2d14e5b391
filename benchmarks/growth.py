"""What a year of finished messages costs those that come today: each stage, page and ``status``, before and after.

``python -m benchmarks.growth [--messages 500000] [--database sqlite|postgresql]`` fills a ledger with as many finished
messages from hourly runs (5,000,000 are a year's), by SQL in sets, and does a day's work on it: two runs of 20,000 new
messages, every page, ``status``, then audit and retention. The same is done on a ledger of the last two weeks alone,
of which pages tell trends. A ratio is computing time after to before; of PostgreSQL that of the server is counted too.
The goal is 1.3; audit and retention, which look at everything, are told in seconds and peak memory.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks import finished_messages, options, workload
from benchmarks.databases import database, variant
from benchmarks.processes import computed, in_a_process, peak_memory
from benchmarks.results import Cell, Figure, Table, finish
from redrive.brokers.memory import MemoryBroker, MemoryWorld
from redrive.ledger import schema
from redrive.ledger.account import inspecting
from redrive.ledger.engine import Ledger, sql
from redrive.settings import Settings
from redrive.stages import pipeline
from redrive.stages.context import utc_now

GOAL = 1.3
#: Two weeks of hourly runs.
TWO_WEEKS = 14 * 24 * finished_messages.OF_A_RUN
#: New messages of one run.
NEW = 20_000
#: So many dead rows PostgreSQL leaves lying in the largest table.
TIDY = 60_000
#: Below so many seconds of computing a ratio says nothing of the ledger.
NOISE = 0.01


def main(arguments: list[str] | None = None) -> int:
    """Measure both ledgers and print a table; 1 when a ratio is above the goal."""
    parser = options.parser("growth", __doc__)
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--folder", help="where the ledgers are made, and removed again")
    for hidden in ("--child", "--whole", "--url"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.whole:
        began = time.process_time()
        _WHOLE[asked.whole](workload.settings(Path(asked.child), asked.url))
        print(json.dumps([time.process_time() - began, peak_memory()]))
        return 0
    if asked.child:
        print(json.dumps(_child(Path(asked.child), asked.messages, asked.database)))
        return 0
    found = before, after = [_measured(asked, messages) for messages in (TWO_WEEKS, asked.messages)]
    ratios: list[list[Cell]] = [
        [
            name,
            Figure(_ratio(before["seconds"][name], seconds), most=GOAL),
            Figure(before["seconds"][name], 3),
            Figure(seconds, 3),
        ]
        for name, seconds in after["seconds"].items()
    ]
    whole: list[list[Cell]] = [
        [f"{name}, {one['messages']:,}", Figure(seconds, 1), Figure(peak, 0)]
        for one in found
        for name, (seconds, peak) in one["whole"].items()
    ]
    return finish(
        asked,
        "growth",
        Table(("what", "ratio", "seconds, two weeks", f"{asked.messages:,} messages"), ratios),
        Table(("what looks at everything, messages", "seconds", "peak MiB"), whole),
        variant=variant(asked.database),
    )


def _ratio(before: float, after: float) -> float:
    return max(after, NOISE) / max(before, NOISE)


def _measured(asked: argparse.Namespace, messages: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=asked.folder or os.environ.get("REDRIVE_BENCH_DIR")) as folder:
        return in_a_process(  # type: ignore[no-any-return]
            *("-m", "benchmarks.growth", "--child", folder),
            *("--messages", str(messages), "--database", asked.database),
        )


# --- in the measured process --------------------------------------------------------------------------------


def _child(folder: Path, messages: int, kind: str) -> dict[str, Any]:
    with database(folder, kind) as (url, server):
        settings = workload.settings(folder, url)
        clock = _Clock(server)
        ledger = Ledger(settings.database)
        schema.upgrade(ledger, utc_now())
        started = time.perf_counter()
        finished_messages.fill(ledger, folder, messages)
        print(f"{messages:,} messages filled in {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        _work(settings, clock)
        if server:
            _wait_for_autovacuum(ledger)
        _look(settings, ledger, clock)
        ledger.close()
        whole = {name: _whole(folder, url, name, server) for name in _WHOLE}
    return {"messages": messages, "seconds": clock.seconds, "whole": whole}


def _wait_for_autovacuum(ledger: Ledger) -> None:
    """Until PostgreSQL has tidied up after the day's work, as it does within a minute or two."""
    for _ in range(180):
        with ledger.read() as connection:
            dead = connection.execute(
                sql("select max(n_dead_tup) from pg_stat_user_tables where schemaname = 'redrive'")
            ).scalar_one()
        if dead < TIDY:
            return
        time.sleep(1)
    print("PostgreSQL has not tidied up within three minutes: pages read what is dead", file=sys.stderr, flush=True)


def _whole(folder: Path, url: str, name: str, server: int | None) -> tuple[float, float]:
    """Seconds and peak memory of what looks at everything, in a process of its own: this one is large by now."""
    before = computed(server) if server else 0.0
    seconds, peak = in_a_process(*("-m", "benchmarks.growth", "--child", str(folder), "--whole", name, "--url", url))
    return seconds + ((computed(server) if server else 0.0) - before), peak


class _Clock:
    """Seconds that this process computed, and the database's server with it, by what they were for."""

    def __init__(self, server: int | None) -> None:
        self.seconds: dict[str, float] = {}
        self._server = server

    def now(self) -> float:
        return time.process_time() + (computed(self._server) if self._server else 0.0)

    def time(self, name: str, work: Callable[[], Any], *, times: int = 1) -> Any:
        """Do the work so often; the least of what it took counts."""
        took, done = [], None
        for _ in range(times):
            before = self.now()
            done = work()
            took.append(self.now() - before)
        self.seconds[name] = min(took)
        return done


# --- what comes today ---------------------------------------------------------------------------------------


def _work(settings: Settings, clock: _Clock) -> None:
    """Two runs: what the first one sends the second one judges. One message in five goes to people."""
    world = MemoryWorld(patience=timedelta(0))
    world.create("orders-dlq", lease=timedelta(minutes=10))
    world.create("orders", sink=True)
    for number in (1, 2):
        workload.dead_letters(world, NEW, start=(number - 1) * NEW)
        _run(settings, MemoryBroker(world), clock, number)


def _run(settings: Settings, broker: MemoryBroker, clock: _Clock, number: int) -> None:
    def now() -> datetime:
        return utc_now() + timedelta(hours=number - 1)

    run = pipeline.begin(settings, "orders", trigger="bench", holder="bench", lease=timedelta(hours=2), clock=now)

    def stage(name: str) -> dict[str, Any]:
        work = getattr(pipeline, name)
        done: dict[str, Any] = clock.time(
            f"{name}, run {number}", lambda: work(settings, run, broker=broker, clock=now)
        )
        return done

    stage("observe")
    counts = stage("drain")
    assert counts["settled"] == NEW, counts
    workload.classify(settings, broker, run, for_people=workload.GROUPS // 5)
    counts = stage("load")
    assert counts["new"] == NEW, counts
    stage("resolve")
    stage("plan")
    counts = stage("deliver")
    assert counts["redelivered"] == NEW * 4 // 5, counts
    for name in ("escalate", "review", "report"):
        stage(name)
    pipeline.finish(settings, run, "succeeded", clock=now)


def _look(settings: Settings, ledger: Ledger, clock: _Clock) -> None:
    """``status`` and every page."""
    from fastapi.testclient import TestClient  # noqa: PLC0415
    from tests.ui.conftest import Doors  # noqa: PLC0415

    from redrive_ui.app import create_app  # noqa: PLC0415

    def status() -> None:
        with ledger.read() as connection:
            inspecting.status(connection, "orders", utc_now())
            inspecting.causes(connection, "orders")

    def left_to_do() -> None:
        with ledger.read() as connection:
            inspecting.to_do(connection, "orders", utc_now())

    clock.time("status", status, times=5)
    clock.time("what is left to do", left_to_do, times=5)
    client = TestClient(create_app(Doors(), load=lambda: settings), base_url="http://airflow.test")
    with ledger.read() as connection:
        message, group = connection.execute(
            sql("select message_id, group_id from escalated_messages order by escalation_id desc limit 1")
        ).one()
    for path in (
        *("/", "/routes/orders", "/plan/orders", "/groups", "/groups?tab=done", f"/groups/orders/{group}"),
        *("/messages", "/messages?status=all", "/messages?text=nothing", f"/messages/{message}"),
        *("/find", "/find?word=order-17", "/find?word=old-1048576", "/find?word=tenant-7", "/find?state=finished"),
        *("/find?word=nothing", "/decide?route=orders&action=discard", "/audit", "/audit?machine=1", "/standing"),
        f"/standing/new?route=orders&group={group}",
        "/results?decided_by=ana&decided_at=2026-01-01T00:00:00",
    ):
        answer = clock.time(
            path.replace(f"/{message}", "/N").replace(f"{group}", "N"), lambda at=path: client.get(at), times=5
        )
        assert answer.status_code in (200, 404), (path, answer.text)


def _audited(settings: Settings) -> None:
    problems = pipeline.audit(settings)["problems"]
    assert not problems, problems[:3]


#: What looks at everything.
_WHOLE: Mapping[str, Callable[[Settings], object]] = {"audit": _audited, "retention": pipeline.retention}


if __name__ == "__main__":
    sys.exit(main())
