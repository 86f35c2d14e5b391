"""What our own code costs: drain, load, plan and delivery with a broker in memory, on one core, 1 KiB messages.

``python -m benchmarks.throughput [--database sqlite|postgresql]``; PostgreSQL's server shares the core.

Each measurement runs in a process of its own, bound to one core, so that its peak memory is its own. Rates are messages
per second of wall time; ``cpu`` is the share of it that this process computed (the rest is fsync, or somebody else's
use of the core). The targets are for an idle machine; and memory is flat from 10,000 to 500,000 messages.
"""

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks import options, workload
from benchmarks.databases import database, variant
from benchmarks.processes import in_a_process
from benchmarks.results import Cell, Figure, Table, finish
from redrive.brokers.memory import MemoryBroker, MemoryWorld
from redrive.ledger import schema
from redrive.ledger.engine import Ledger, sql
from redrive.settings import Settings
from redrive.stages import pipeline
from redrive.stages.context import Run, utc_now

SIZES = (10_000, 100_000, 500_000)
TARGETS = {"drain": 60_000, "load": 70_000, "plan": 100_000, "plan, canary": None, "deliver": 40_000}
#: Memory is flat when fifty times the messages take no more than this many times the peak.
FLAT = 1.5


def main() -> int:
    """Measure everything and print a table; 1 when a target was missed."""
    parser = options.parser("throughput", __doc__)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    asked = parser.parse_args()
    rows: list[list[Cell]] = []
    for stage, target in TARGETS.items():
        least = 0.0
        for size in SIZES:
            found = in_a_process("-m", "benchmarks.throughput", stage, str(size), asked.database)
            least = least or found["peak_mib"]
            is_last = size == SIZES[-1]
            goal = target if is_last and asked.database == "sqlite" else None
            rows.append([
                f"{stage}, {size:,}",
                Figure(size / found["seconds"], 0, least=goal),
                Figure(100 * found["cpu"] / found["seconds"], 0),
                Figure(found["peak_mib"], 0),
                Figure(found["peak_mib"] / least, most=FLAT if is_last else None),
            ])  # fmt: skip
    table = Table(("stage, messages", "messages/s", "of that our computing, %", "peak MiB", "to the first"), rows)
    return finish(asked, "throughput", table, variant=variant(asked.database))


# --- in the measured process --------------------------------------------------------------------------------


def _prepare(folder: Path, ledger_url: str, **canary: str) -> tuple[Settings, MemoryWorld, MemoryBroker, Run]:
    settings = workload.settings(folder, ledger_url, **canary)
    ledger = Ledger(settings.database)
    schema.upgrade(ledger, utc_now())
    ledger.close()
    world = MemoryWorld(patience=timedelta(0))
    world.create("orders-dlq", lease=timedelta(minutes=10))
    world.create("orders", sink=True)
    run = pipeline.begin(settings, "orders", trigger="bench", holder="bench", lease=timedelta(hours=1))
    return settings, world, MemoryBroker(world), run


def _drain(folder: Path, size: int, ledger_url: str) -> Callable[[], Any]:
    settings, world, broker, run = _prepare(folder, ledger_url)
    workload.dead_letters(world, size)

    def measured() -> None:
        counts = pipeline.drain(settings, run, broker=broker)
        assert counts["settled"] == size, counts

    return measured


def _staged(folder: Path, size: int, ledger_url: str, **canary: str) -> tuple[Settings, MemoryWorld, MemoryBroker, Run]:
    """Everything drained and classified."""
    settings, world, broker, run = _prepare(folder, ledger_url, **canary)
    workload.dead_letters(world, size)
    pipeline.drain(settings, run, broker=broker)
    workload.classify(settings, broker, run)
    return settings, world, broker, run


def _loaded(folder: Path, size: int, ledger_url: str, **canary: str) -> tuple[Settings, MemoryWorld, MemoryBroker, Run]:
    """And loaded."""
    settings, world, broker, run = _staged(folder, size, ledger_url, **canary)
    pipeline.load(settings, run, broker=broker)
    return settings, world, broker, run


def _load(folder: Path, size: int, ledger_url: str) -> Callable[[], Any]:
    settings, _, broker, run = _staged(folder, size, ledger_url)

    def measured() -> None:
        counts = pipeline.load(settings, run, broker=broker)
        assert counts["new"] == size, counts

    return measured


def _plan(folder: Path, size: int, ledger_url: str, **canary: str) -> Callable[[], Any]:
    settings, _, broker, run = _loaded(folder, size, ledger_url, **canary)

    def measured() -> None:
        counts = pipeline.plan(settings, run, broker=broker)
        assert counts["planned"] == size, counts

    return measured


def _plan_behind_gates(folder: Path, size: int, ledger_url: str) -> Callable[[], Any]:
    """Each failure tried by a few messages first, as is the default: all others are held."""
    return _plan(folder, size, ledger_url, canary="{first: 10}")


def _deliver(folder: Path, size: int, ledger_url: str) -> Callable[[], Any]:
    settings, world, broker, run = _loaded(folder, size, ledger_url)
    pipeline.plan(settings, run, broker=broker)

    def measured() -> None:
        counts = pipeline.deliver(settings, run, broker=broker)
        assert counts["redelivered"] == size == world.messages["publish"], counts
        ledger = Ledger(settings.database)
        with ledger.read() as connection:
            assert connection.execute(sql("select count(*) from messages where state = 'sent'")).scalar() == size

    return measured


_STAGES = {"drain": _drain, "load": _load, "plan": _plan, "plan, canary": _plan_behind_gates, "deliver": _deliver}


def _child(stage: str, size: int, name: str) -> None:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("REDRIVE_BENCH_DIR")) as folder,
        database(Path(folder), name) as (ledger_url, _),
    ):
        measured = _STAGES[stage](Path(folder), size, ledger_url)
        base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started, cpu = time.perf_counter(), time.process_time()
        measured()
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": seconds, "cpu": cpu, "base_mib": base / 1024, "peak_mib": peak / 1024}))


if __name__ == "__main__":
    if len(sys.argv) == 4 and not sys.argv[1].startswith("-"):  # else they are options of the whole
        _child(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        sys.exit(main())
