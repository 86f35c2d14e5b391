"""How several shards of one delivery scale on one destination: they share a ledger, and each waits for its broker.

``python -m benchmarks.shards [--messages 100000] [--confirm 0.1] [--database sqlite|postgresql]``: each shard is a
process, as Airflow's mapped tasks are, with a broker in memory that confirms a window of 1,000 only after so many
seconds, as one does that is far away or stores to several disks. What the ledger makes shards wait for each other is
what is missing from so many times the rate of one.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path

from benchmarks import options, workload
from benchmarks.databases import database, variant
from benchmarks.results import Figure, Table, finish
from redrive.brokers.base import Publication
from redrive.brokers.memory import MemoryBroker, MemoryWorld
from redrive.ledger import schema
from redrive.ledger.engine import Ledger, sql
from redrive.message import Outgoing
from redrive.stages import pipeline
from redrive.stages.context import Run, utc_now

SHARDS = (1, 2, 4, 8)
#: Seconds until the last shard has imported what it needs.
STARTED = 120.0

_together: Barrier


class _FarBroker(MemoryBroker):
    """Confirms a window after ``seconds``."""

    def __init__(self, world: MemoryWorld, seconds: float) -> None:
        super().__init__(world)
        self._seconds = seconds

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        """As in memory, later."""
        time.sleep(self._seconds)
        return super().publish(queue, messages)


def _world() -> MemoryWorld:
    world = MemoryWorld(patience=timedelta(0))
    world.create("orders-dlq", lease=timedelta(minutes=10))
    world.create("orders", sink=True)
    return world


def main() -> int:
    """Print a row for each number of shards; 1 where not every message was sent once."""
    parser = options.parser("shards", __doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--confirm", type=float, default=0.1, help="seconds until a window is confirmed")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    asked = parser.parse_args()
    rates = {shards: asked.messages / _measured(asked, shards) for shards in SHARDS}
    rows = [(str(shards), Figure(rate / rates[1]), Figure(rate, 0)) for shards, rate in rates.items()]
    table = Table(("shards", "times one shard", "messages/s"), rows)
    return finish(asked, "shards", table, variant=variant(asked.database))


def _measured(asked: argparse.Namespace, shards: int) -> float:
    """Seconds in which so many shards deliver all messages, their start not counted."""
    processes = get_context("spawn")
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("REDRIVE_BENCH_DIR")) as folder,
        database(Path(folder), asked.database) as (url, _),
        ProcessPoolExecutor(
            shards, mp_context=processes, initializer=_begin_together, initargs=(processes.Barrier(shards),)
        ) as pool,
    ):
        settings = workload.settings(Path(folder), url)
        ledger = Ledger(settings.database)
        schema.upgrade(ledger, utc_now())
        world = _world()
        broker = MemoryBroker(world)
        run = pipeline.begin(settings, "orders", trigger="bench", holder="bench", lease=timedelta(hours=1))
        workload.dead_letters(world, asked.messages)
        pipeline.drain(settings, run, broker=broker)
        workload.classify(settings, broker, run)
        pipeline.load(settings, run, broker=broker)
        pipeline.plan(settings, run, broker=broker)
        tasks = [pool.submit(_deliver, folder, url, run, shard, shards, asked.confirm) for shard in range(shards)]
        sent = [task.result() for task in tasks]
        with ledger.read() as connection:
            done = connection.execute(sql("select count(*) from messages where state = 'sent'")).scalar()
        ledger.close()
        assert done == sum(count for count, _, _ in sent) == asked.messages, (done, sent)
        return max(ended for _, _, ended in sent) - min(began for _, began, _ in sent)


def _begin_together(together: Barrier) -> None:
    global _together  # noqa: PLW0603 - a barrier goes to a process only when that begins
    _together = together


def _deliver(folder: str, url: str, run: Run, shard: int, shards: int, confirm: float) -> tuple[int, float, float]:
    """One shard's task: how many it sent, when it began and when it had."""
    settings = workload.settings(Path(folder), url)
    broker = _FarBroker(_world(), confirm)
    _together.wait(STARTED)
    began = time.time()
    counts = pipeline.deliver(settings, run, shard, shards, broker=broker)
    return counts["redelivered"], began, time.time()


if __name__ == "__main__":
    sys.exit(main())
