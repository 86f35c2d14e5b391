"""What a year of finished messages costs those that come today: each stage, page and ``status``, before and after.

``python -m benchmarks.growth [--messages 500000] [--database sqlite|postgresql]`` fills a ledger with as many finished
messages from hourly runs (5,000,000 are a year's), by SQL in sets, and does a day's work on it: four runs of 20,000 new
messages, every page, ``status``, then audit and retention. The same is done on a ledger of the last two weeks alone,
of which pages tell trends, in turns, stage by stage and page by page, because a machine's speed changes within minutes.
A ratio is computing time after to before; of PostgreSQL that of the server is counted too, but for its autovacuum,
which comes when it likes and is told by itself. Of a stage it is that of all runs but the first, which differ in what
they have to do, and of a page the least of several times. The goal is 1.3; audit and retention, which look at
everything, are told in seconds and peak memory.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks import finished_messages, options, workload
from benchmarks.databases import database, variant
from benchmarks.processes import ServerClock, in_a_process, peak_memory
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
#: What the first run sends the second one judges, so the first is not counted.
RUNS = 4
#: So often a page is asked for.
TIMES = 9
#: So many dead rows, and rows that its statistics don't know, PostgreSQL leaves lying in the largest table.
TIDY = 10_000
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
    before, after = found = _measured(asked)
    ratios: list[list[Cell]] = [
        [
            name,
            Figure(_ratio(before["seconds"][name], seconds), most=GOAL),
            Figure(before["seconds"][name], 3),
            Figure(seconds, 3),
        ]
        for name, seconds in after["seconds"].items()
    ]
    if asked.database == "postgresql":
        tidying = (before["autovacuum"], after["autovacuum"])
        ratios.append([
            "autovacuum meanwhile",
            Figure(_ratio(*tidying)),
            *(Figure(seconds, 3) for seconds in tidying),
        ])  # fmt: skip
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


def _measured(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """What both ledgers took, that of two weeks first."""
    with tempfile.TemporaryDirectory(dir=asked.folder or os.environ.get("REDRIVE_BENCH_DIR")) as folder:
        return in_a_process(  # type: ignore[no-any-return]
            *("-m", "benchmarks.growth", "--child", folder),
            *("--messages", str(asked.messages), "--database", asked.database),
        )


# --- in the measured process --------------------------------------------------------------------------------


class _Year:
    """A ledger with so many finished messages, and the seconds that things take on it, by what they were for."""

    def __init__(self, folder: Path, messages: int, url: str, server: int | None) -> None:
        self.folder, self.messages, self.url = folder, messages, url
        self.server = ServerClock(server) if server else None
        self.settings = workload.settings(folder, url)
        self.ledger = Ledger(self.settings.database)
        self.took: dict[str, list[float]] = {}
        self.stages: set[str] = set()
        self.world = MemoryWorld(patience=timedelta(0))
        self.world.create("orders-dlq", lease=timedelta(minutes=10))
        self.world.create("orders", sink=True)
        schema.upgrade(self.ledger, utc_now())
        started = time.perf_counter()
        finished_messages.fill(self.ledger, folder, messages)
        print(f"{messages:,} messages filled in {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)

    def time(self, name: str, work: Callable[[], Any]) -> Any:
        """Do the work; what this process computed counts, and the database's server with it."""
        before = self._computed()
        done = work()
        self.took.setdefault(name, []).append(self._computed() - before)
        return done

    def seconds(self) -> dict[str, float]:
        """By name: of a stage all runs' together, for each has other work to do; of a page the least."""
        return {name: sum(took) if name in self.stages else min(took) for name, took in self.took.items()}

    def _computed(self) -> float:
        return time.process_time() + self.of_server()

    def of_server(self) -> float:
        """Seconds that the database's server computed, but for its autovacuum; SQLite has none."""
        return self.server.seconds()[0] if self.server else 0.0

    def of_autovacuum(self) -> float:
        """Seconds that the server's autovacuum computed."""
        return self.server.seconds()[1] if self.server else 0.0


def _child(folder: Path, messages: int, kind: str) -> list[dict[str, Any]]:
    folder.chmod(0o755)  # PostgreSQL's server runs as somebody else
    with ExitStack() as servers:
        years = []
        for size in (TWO_WEEKS, messages):
            place = folder / str(size)
            place.mkdir()
            years.append(_Year(place, size, *servers.enter_context(database(place, kind))))
        tidying = [year.of_autovacuum() for year in years]
        for number in range(1, RUNS + 1):
            for year in years:
                workload.dead_letters(year.world, NEW, start=(number - 1) * NEW)
            for _ in zip(*(_stages(year, number) for year in years), strict=True):
                pass  # a stage of each
        for year in years:
            if year.server:
                _wait_for_autovacuum(year.ledger)
        for _ in zip(*(_looks(year) for year in years), strict=True):
            pass  # a page of each
        tidied = [year.of_autovacuum() - before for year, before in zip(years, tidying, strict=True)]
        for year in years:
            year.ledger.close()
        return [
            {
                "messages": year.messages,
                "seconds": year.seconds(),
                "autovacuum": seconds,
                "whole": {name: _whole(year, name) for name in _WHOLE},
            }
            for year, seconds in zip(years, tidied, strict=True)
        ]


def _wait_for_autovacuum(ledger: Ledger) -> None:
    """Until PostgreSQL has tidied up after the day's work, as it does within a minute or two."""
    for _ in range(180):
        with ledger.read() as connection:
            left = connection.execute(
                sql(
                    "select max(greatest(n_dead_tup, n_mod_since_analyze)) from pg_stat_user_tables"
                    " where schemaname = 'redrive'"
                )
            ).scalar_one()
        if left < TIDY:
            return
        time.sleep(1)
    print("PostgreSQL has not tidied up within three minutes: pages read what is dead", file=sys.stderr, flush=True)


def _whole(year: _Year, name: str) -> tuple[float, float]:
    """Seconds and peak memory of what looks at everything, in a process of its own: this one is large by now."""
    before = year.of_server()
    seconds, peak = in_a_process(
        *("-m", "benchmarks.growth", "--child", str(year.folder), "--whole", name, "--url", year.url)
    )
    return seconds + year.of_server() - before, peak


# --- what comes today ---------------------------------------------------------------------------------------


def _stages(year: _Year, number: int) -> Iterator[None]:
    """A run, stage by stage. One message in five goes to people."""
    settings, broker = year.settings, MemoryBroker(year.world)

    def now() -> datetime:
        return utc_now() + timedelta(hours=number - 1)

    run = pipeline.begin(settings, "orders", trigger="bench", holder="bench", lease=timedelta(hours=2), clock=now)

    def stage(name: str) -> dict[str, Any]:
        work = getattr(pipeline, name)
        done: dict[str, Any]
        if number == 1:
            done = work(settings, run, broker=broker, clock=now)
        else:
            year.stages.add(name)
            done = year.time(name, lambda: work(settings, run, broker=broker, clock=now))
        return done

    stage("observe")
    yield
    counts = stage("drain")
    assert counts["settled"] == NEW, counts
    yield
    workload.classify(settings, broker, run, for_people=workload.GROUPS // 5)
    yield
    counts = stage("load")
    assert counts["new"] == NEW, counts
    yield
    for name in ("resolve", "plan"):
        stage(name)
        yield
    counts = stage("deliver")
    assert counts["redelivered"] == NEW * 4 // 5, counts
    yield
    for name in ("escalate", "review", "report"):
        stage(name)
        yield
    pipeline.finish(settings, run, "succeeded", clock=now)


def _looks(year: _Year) -> Iterator[None]:
    """``status`` and every page, each several times."""
    from fastapi.testclient import TestClient  # noqa: PLC0415
    from tests.ui.conftest import Doors  # noqa: PLC0415

    from redrive_ui.app import create_app  # noqa: PLC0415

    settings = year.settings

    def status() -> None:
        with year.ledger.read() as connection:
            inspecting.status(connection, "orders", utc_now())
            inspecting.causes(connection, "orders")

    def left_to_do() -> None:
        with year.ledger.read() as connection:
            inspecting.to_do(connection, "orders", utc_now())

    for _ in range(TIMES):
        year.time("status", status)
        yield
        year.time("what is left to do", left_to_do)
        yield
    client = TestClient(create_app(Doors(), load=lambda: settings), base_url="http://airflow.test")
    with year.ledger.read() as connection:
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
        name = path.replace(f"/{message}", "/N").replace(f"{group}", "N")
        for _ in range(TIMES):
            answer = year.time(name, lambda at=path: client.get(at))
            assert answer.status_code in (200, 404), (path, answer.text)
            yield


def _audited(settings: Settings) -> None:
    problems = pipeline.audit(settings)["problems"]
    assert not problems, problems[:3]


#: What looks at everything.
_WHOLE: Mapping[str, Callable[[Settings], object]] = {"audit": _audited, "retention": pipeline.retention}


if __name__ == "__main__":
    sys.exit(main())
