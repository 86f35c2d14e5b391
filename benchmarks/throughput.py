"""What our own code costs: drain, load, plan and delivery with a broker in memory, on one core, 1 KiB messages.

Each measurement runs in a process of its own, bound to one core, so that its peak memory is its own. Rates are messages
per second of wall time; ``cpu`` is the share of it that this process computed (the rest is fsync, or somebody else's
use of the core). The targets are for an idle machine; and memory is flat from 10,000 to 500,000 messages.
"""

import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.processes import in_a_process
from redrive.brokers.memory import MemoryBroker, MemoryWorld
from redrive.ledger import schema
from redrive.ledger.engine import Ledger, sql
from redrive.message import DeadLetter, Header, message_id_of
from redrive.settings import Settings, parse
from redrive.stages import pipeline
from redrive.stages.context import Run, utc_now
from redrive.staging import file_schemas

SIZES = (10_000, 100_000, 500_000)
TARGETS = {"drain": 60_000, "load": 70_000, "plan": 100_000, "deliver": 40_000}
#: Memory is flat when fifty times the messages take no more than this many times the peak.
FLAT = 1.5
GROUPS = 50


def main() -> int:
    """Measure everything and print a table; 1 when a target was missed."""
    table = Table("stage", "messages", "per second", "target", "cpu", "peak MiB", box=box.SIMPLE_HEAD)
    missed = False
    for stage, target in TARGETS.items():
        least = 0.0
        for size in SIZES:
            found = _measure(stage, size)
            least = least or found["peak_mib"]
            missed |= found["peak_mib"] > FLAT * least
            rate = size / found["seconds"]
            missed |= size == SIZES[-1] and rate < target
            table.add_row(
                stage,
                f"{size:,}",
                f"{rate:,.0f}",
                f"{target:,}",
                f"{found['cpu'] / found['seconds']:.0%}",
                f"{found['peak_mib']:,.0f}",
            )
    Console().print(table)
    return int(missed)


def _measure(stage: str, size: int) -> dict[str, float]:
    return in_a_process("-m", "benchmarks.throughput", stage, str(size))  # type: ignore[no-any-return]


# --- in the measured process --------------------------------------------------------------------------------


def _settings(folder: Path, database: str | None = None) -> Settings:
    return parse(
        f"""
database: {database or f"sqlite:///{folder}/redrive.db"}
staging: {folder}/staging
routes:
  orders:
    broker: memory
    connection: bench
    sources: [{{queue: orders-dlq, kind: dead_letter}}]
    destination: {{queue: orders}}
    canary: "off"
    drain: {{limit: 10000000, wait: 0s}}
    # A fifth of a second at the goal's rate, in five windows; the defaults (1,000 and 200) are for hundreds a second.
    deliver: {{run_for: 1h, slice: 5000, confirm_window: 1000}}
    rate: {{per_second: 100000000, max_in_flight: 100000000}}
""",
        env=os.environ,
        root=folder,
    )


def _letters(world: MemoryWorld, size: int, *, start: int = 0) -> None:
    noise = random.Random(1).randbytes(1 << 20)
    first = int(time.time() * 1_000_000) - 3_600_000_000

    def letter(number: int) -> DeadLetter:
        number += start
        begins = (number * 7919) % (len(noise) - 512)
        body = b'{"order": %012d, "lines": "' % number + noise[begins : begins + 370].hex().encode() + b'"}'
        return DeadLetter(
            f"00000000-0000-0000-0000-{number:012d}",
            body.ljust(1024),
            (
                Header("message_id", "String", f"order-{number}"),
                Header("error", "String", "ConnectionResetError: [Errno 104] Connection reset by peer"),
            ),
            (("SenderId", "AIDAIENQZJOLO23YVJ4VO"),),
            first + number,
            deliveries=3,
            origin="orders",
        )

    world.fill("orders-dlq", size, letter)


def _prepare(folder: Path) -> tuple[Settings, MemoryWorld, MemoryBroker, Run]:
    settings = _settings(folder)
    ledger = Ledger(settings.database)
    schema.upgrade(ledger, utc_now())
    ledger.close()
    world = MemoryWorld(patience=timedelta(0))
    world.create("orders-dlq", lease=timedelta(minutes=10))
    world.create("orders", sink=True)
    run = pipeline.begin(settings, "orders", trigger="bench", holder="bench", lease=timedelta(hours=1))
    return settings, world, MemoryBroker(world), run


def _drain(folder: Path, size: int) -> Callable[[], Any]:
    settings, world, broker, run = _prepare(folder)
    _letters(world, size)

    def measured() -> None:
        counts = pipeline.drain(settings, run, broker=broker)
        assert counts["settled"] == size, counts

    return measured


def _classified(settings: Settings, broker: MemoryBroker, run: Run, *, for_people: int = 0) -> None:
    """What Spark would write, made directly: the load and the delivery are measured, not the job. The first
    ``for_people`` groups are of a cause that people decide about."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    manifest = json.loads(Path(pipeline.prepare_classification(settings, run, broker=broker) or "").read_text())
    output = Path(manifest["output"])
    (output / file_schemas.MESSAGES_DIR).mkdir(parents=True)
    for batch in manifest["batches"]:
        count = pq.read_metadata(batch["uri"]).num_rows
        made = {
            "message_id": pa.array([message_id_of(batch["batch_id"], row) for row in range(count)], pa.int64()),
            "case_key": pa.array([row % GROUPS for row in range(count)], pa.int64()),
        }
        columns = [made.get(field.name, pa.nulls(count, field.type)) for field in file_schemas.MESSAGES]
        path = output / file_schemas.MESSAGES_DIR / file_schemas.messages_file(batch["batch_id"])
        pq.write_table(pa.table(columns, schema=file_schemas.MESSAGES), path)
    cases = [
        {
            "case_key": number,
            "messages": 1,
            "cause": "application_bug" if number < for_people else "transient_network",
            "rule": "bench",
            "confidence": 0.9,
            "fingerprint": f"{number:016x}",
            "template": f"{number:016x}",
            "example": f"{number:016x}",
        }
        for number in range(GROUPS)
    ]
    pq.write_table(pa.Table.from_pylist(cases, file_schemas.CASES), output / file_schemas.CASES_FILE)


def _staged(folder: Path, size: int) -> tuple[Settings, MemoryWorld, MemoryBroker, Run]:
    """Everything drained and classified."""
    settings, world, broker, run = _prepare(folder)
    _letters(world, size)
    pipeline.drain(settings, run, broker=broker)
    _classified(settings, broker, run)
    return settings, world, broker, run


def _loaded(folder: Path, size: int) -> tuple[Settings, MemoryWorld, MemoryBroker, Run]:
    """And loaded."""
    settings, world, broker, run = _staged(folder, size)
    pipeline.load(settings, run, broker=broker)
    return settings, world, broker, run


def _load(folder: Path, size: int) -> Callable[[], Any]:
    settings, _, broker, run = _staged(folder, size)

    def measured() -> None:
        counts = pipeline.load(settings, run, broker=broker)
        assert counts["new"] == size, counts

    return measured


def _plan(folder: Path, size: int) -> Callable[[], Any]:
    settings, _, broker, run = _loaded(folder, size)

    def measured() -> None:
        counts = pipeline.plan(settings, run, broker=broker)
        assert counts["planned"] == size, counts

    return measured


def _deliver(folder: Path, size: int) -> Callable[[], Any]:
    settings, world, broker, run = _loaded(folder, size)
    pipeline.plan(settings, run, broker=broker)

    def measured() -> None:
        counts = pipeline.deliver(settings, run, broker=broker)
        assert counts["redelivered"] == size == world.messages["publish"], counts
        ledger = Ledger(settings.database)
        with ledger.read() as connection:
            assert connection.execute(sql("select count(*) from messages where state = 'sent'")).scalar() == size

    return measured


_STAGES = {"drain": _drain, "load": _load, "plan": _plan, "deliver": _deliver}


def _child(stage: str, size: int) -> None:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})
    with tempfile.TemporaryDirectory(dir=os.environ.get("REDRIVE_BENCH_DIR")) as folder:
        measured = _STAGES[stage](Path(folder), size)
        base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started, cpu = time.perf_counter(), time.process_time()
        measured()
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": seconds, "cpu": cpu, "base_mib": base / 1024, "peak_mib": peak / 1024}))


if __name__ == "__main__":
    if sys.argv[1:]:
        _child(sys.argv[1], int(sys.argv[2]))
    else:
        sys.exit(main())
