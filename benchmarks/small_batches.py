"""How long a whole cycle of few new messages takes, with Spark started for it and with Spark Connect.

``python -m benchmarks.small_batches``. A cycle is begin, observe, drain, classify, load, resolve, plan, deliver,
escalate, report and finish, against the memory broker. "running" is a process that has done one before; "new" is one
that was started for it, as a command or a task is: its start and its imports (PySpark's client needs more than a second
for its own) count too. The server is started here and has seen some cycles before, as one that is always there.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from benchmarks import options
from benchmarks.processes import in_a_process
from benchmarks.results import Cell, Figure, Table, finish
from redrive.brokers.memory import MemoryBroker, MemoryWorld
from redrive.dev import local_spark
from redrive.ledger import schema
from redrive.ledger.engine import Ledger
from redrive.message import DeadLetter, Header
from redrive.settings import Settings, parse
from redrive.spark import submit
from redrive.stages import pipeline
from redrive.stages.context import utc_now

MESSAGES = 500
TARGET_SECONDS = 3.0
WARMING, CYCLES = 2, 5
ERRORS = (
    "ConnectionRefusedError: [Errno 111] Connection refused",
    "HTTP Error 429: Too Many Requests",
    "psycopg.errors.DeadlockDetected: deadlock detected\nDETAIL: Process {0} waits for ShareLock on transaction {0}",
    "Traceback (most recent call last):\n  File \"shop.py\", line 7, in handle\nKeyError: 'sku-{0}'",
    "ValueError: quantity of order {0} is not a number",
)


def main() -> int:
    """Measure both and print a table; 1 when the target was missed."""
    parser = options.parser("small_batches", __doc__)
    parser.add_argument("home", type=Path, nargs="?", help=argparse.SUPPRESS)  # of the process that is measured
    asked = parser.parse_args()
    if asked.home is not None:
        _two_cycles(asked.home)
        return 0
    with tempfile.TemporaryDirectory(dir=os.environ.get("REDRIVE_BENCH_DIR")) as folder:
        home = Path(folder)
        found = {"local": measure(home, {}, 1)}
        with local_spark.running(home) as server:
            measure(home, server.environment, WARMING)
            found["connect"] = measure(home, server.environment, CYCLES)
    rows: list[list[Cell]] = []
    for runner, seconds in found.items():
        for process in ("new", "running"):
            values = [one[process] for one in seconds]
            aimed = (runner, process) == ("connect", "running")
            median = Figure(statistics.median(values), most=TARGET_SECONDS if aimed else None)
            rows.append([f"{runner}, {process}", median, Figure(max(values))])
    return finish(asked, "small_batches", Table(("Spark, process", "seconds, median", "slowest"), rows))


def measure(home: Path, environment: Mapping[str, str], processes: int) -> list[dict[str, float]]:
    """The seconds of two cycles in each of so many processes, with what ``environment`` says of Spark."""
    found = []
    for _ in range(processes):
        with tempfile.TemporaryDirectory(dir=home) as folder:
            _make_ledger(Path(folder))
            started = time.time()
            first, second = in_a_process(
                "-m", "benchmarks.small_batches", folder, env=os.environ | {"REDRIVE_HOME": folder} | environment
            )
        found.append({"new": first - started, "running": second - first})
    return found


def _make_ledger(folder: Path) -> None:
    """An empty ledger: a site has one already, so making it doesn't count."""
    ledger = Ledger(f"sqlite:///{folder}/redrive.db")
    schema.upgrade(ledger, utc_now())
    ledger.close()


# --- in the measured process --------------------------------------------------------------------------------


def _two_cycles(folder: Path) -> None:
    """Print when each ended, in seconds since the epoch."""
    settings = parse(
        f"""
database: sqlite:///{folder}/redrive.db
staging: {folder}/staging
spark: {{runner: "${{REDRIVE_SPARK_RUNNER:-local}}", remote: "${{REDRIVE_SPARK_REMOTE:-sc://localhost}}"}}
routes:
  orders:
    broker: memory
    connection: bench
    sources: [{{queue: orders-dlq, kind: dead_letter}}]
    destination: {{queue: orders}}
    canary: "off"
    drain: {{wait: 0s}}
    evidence: ["attribute:error"]
""",
        env=os.environ,
        root=folder,
    )
    world = MemoryWorld(patience=timedelta(0))
    for queue in ("orders-dlq", "orders"):
        world.create(queue, lease=timedelta(minutes=10))
    ended = []
    for first in (0, MESSAGES):
        for number in range(first, first + MESSAGES):
            world.put("orders-dlq", _letter(number))
        _cycle(settings, MemoryBroker(world))
        ended.append(time.time())
    print(json.dumps(ended))


def _letter(number: int) -> DeadLetter:
    error = ERRORS[number % len(ERRORS)].format(number)
    died = int(time.time() * 1_000_000) - 3_600_000_000
    return DeadLetter("", b'{"order": %d}' % number, (Header("error", "String", error),), (), died, origin="orders")


def _cycle(settings: Settings, broker: MemoryBroker) -> None:
    run = pipeline.begin(settings, "orders", trigger="bench", holder="bench")
    pipeline.observe(settings, run, broker=broker)
    pipeline.drain(settings, run, broker=broker)
    manifest = pipeline.prepare_classification(settings, run, broker=broker)
    assert manifest is not None
    submit.classify(settings, manifest)
    loaded = pipeline.load(settings, run, broker=broker)
    assert loaded["new"] == MESSAGES, loaded
    for stage in (pipeline.resolve, pipeline.plan, pipeline.deliver, pipeline.escalate, pipeline.report):
        stage(settings, run, broker=broker)
    pipeline.finish(settings, run, "succeeded")


if __name__ == "__main__":
    sys.exit(main())
