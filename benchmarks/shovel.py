"""The loop on a real RabbitMQ node, beside a dynamic shovel on the same node in the same minutes.

``python -m benchmarks.shovel [--messages 200000] [--rounds 1]``, with ``--database`` and ``--spark`` as below.
Durable messages of 1 KiB lie in a classic queue. First a dynamic shovel in ``on-confirm`` mode moves as many as that
from one queue to another; then Redrive drains, classifies, loads, plans and delivers them. What counts are the ratios:
both had the same broker, disk and neighbours, and a node that holds nothing but what is to be moved. It rests for some
seconds first, as dead letters do: a node is slower with a queue that it just filled (``--rest 0`` shows it). Neighbours
come and go, so with several rounds both take turns, and their sums are compared. With ``--spark local`` Spark is
started for the batch, and that counts; with ``connect`` it is a server that runs already and has seen some small
batches.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
from tests.servers import RabbitMQ, ServerMissing

from benchmarks import options, small_batches
from benchmarks.databases import database, variant
from benchmarks.results import Cell, Figure, Table, finish
from redrive.dev import local_spark
from redrive.ledger import schema
from redrive.ledger.engine import Ledger
from redrive.settings import Settings, parse
from redrive.spark import submit
from redrive.stages import pipeline
from redrive.stages.context import utc_now

#: Stage: ratio to the shovel that is aimed at.
GOALS = {"drain": 2.2, "deliver": 1.2, "loop": 0.6}
#: Of so many messages the loop is to reach more, as Spark's start costs less.
MANY, LOOP_OF_MANY = 1_000_000, 0.65
ERROR = "ConnectionResetError: [Errno 104] Connection reset by peer (order {})"
PREFETCH = 1_000
#: Seconds that a filled queue rests: its process tidies its memory when it has nothing to do.
REST = 5.0


class _Node(RabbitMQ):
    """A node that has shovels too."""

    def prepare(self) -> None:
        super().prepare()
        (self.directory / "plugins").write_text("[rabbitmq_management,rabbitmq_shovel,rabbitmq_shovel_management].\n")


def main() -> int:
    """Print rates and ratios; 1 when a goal was missed."""
    parser = options.parser("shovel", (__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=1, help="shovel and loop take turns so many times")
    parser.add_argument("--rest", type=float, default=REST, help="seconds between filling a queue and moving from it")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--spark", choices=("local", "connect"), default="local")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("REDRIVE_BENCH_DIR")) as folder:
        try:
            with (
                _spark(Path(folder), asked.spark),
                _Node() as node,
                database(Path(folder), asked.database) as (ledger_url, _),
            ):
                found = _measure(node, Path(folder), asked, ledger_url)
        except ServerMissing as missing:
            print(missing)
            return 0
    goals = GOALS | ({"loop": LOOP_OF_MANY} if asked.messages >= MANY else {})
    shovel = found["rates"]["shovel"]
    rows: list[list[Cell]] = [
        [name, "" if name == "shovel" else Figure(rate / shovel, least=goals.get(name)), Figure(rate, 0)]
        for name, rate in found["rates"].items()
    ]
    title = (
        f"{asked.messages:,} messages, ledger on {found['ledger']}, Spark {asked.spark}, RabbitMQ {found['rabbitmq']}"
    )
    many = str(asked.messages) if asked.messages >= MANY else ""
    called = "-".join(filter(None, (many, variant(asked.database))))
    table = Table(("stage", "to the shovel", "messages/s"), rows, title)
    return finish(asked, "shovel", table, variant=called, details=found)


@contextmanager
def _spark(folder: Path, runner: str) -> Iterator[None]:
    """The Spark that the settings name: one that is started for each batch, or one that runs."""
    if runner == "local":
        yield
        return
    with local_spark.running(folder) as server:
        small_batches.measure(folder, server.environment, small_batches.WARMING)
        os.environ.update(server.environment)
        yield


def _measure(node: RabbitMQ, folder: Path, options: argparse.Namespace, ledger_url: str) -> dict[str, Any]:
    count, rounds = options.messages, options.rounds
    os.environ["AIRFLOW_CONN_RABBIT_BENCH"] = json.dumps(node.connection())
    settings = _settings(folder, ledger_url)
    ledger = Ledger(settings.database)
    schema.upgrade(ledger, utc_now())
    ledger.close()
    each = [_round(node, settings, count, options.rest) for _ in range(rounds)]
    seconds = {name: sum(one[name] for one in each) for name in each[0]}
    shown = ("shovel", "drain", "classify", "load", "plan", "deliver", "loop")
    return {
        "messages": count,
        "rest": options.rest,
        "rounds": [{name: round(taken, 2) for name, taken in one.items()} for one in each],
        "spark": settings.spark.runner,
        "ledger": settings.database.partition(":")[0].partition("+")[0],
        "rabbitmq": node.ask("GET", "overview")["rabbitmq_version"],
        "seconds": {name: round(taken, 2) for name, taken in seconds.items()},
        "rates": {name: round(count * rounds / seconds[name], 1) for name in shown},
    }


def _round(node: RabbitMQ, settings: Settings, count: int, rest: float) -> dict[str, float]:
    """Seconds of the shovel and of each stage."""
    with _queues(node, "from", "to"):
        _fill(node, "from", count, rest)
        seconds = {"shovel": _shovel(node, count)}
    with _queues(node, "orders-dlq", "orders"):
        _fill(node, "orders-dlq", count, rest)
        seconds |= _loop(settings, count)
    return seconds


def _loop(settings: Settings, count: int) -> dict[str, float]:
    """Seconds of each stage, and of all."""
    seconds = {}
    run = pipeline.begin(settings, "orders", trigger="bench", holder="bench")
    seconds["observe"], _ = _timed(lambda: pipeline.observe(settings, run))
    seconds["drain"], drained = _timed(lambda: pipeline.drain(settings, run))
    assert drained["settled"] == count, drained
    manifest = pipeline.prepare_classification(settings, run)
    assert manifest is not None
    seconds["classify"], _ = _timed(lambda: submit.classify(settings, manifest))
    for stage in ("load", "resolve", "plan", "deliver", "escalate"):
        seconds[stage], counts = _timed(lambda stage=stage: getattr(pipeline, stage)(settings, run))  # type: ignore[misc]
        assert stage != "deliver" or counts["redelivered"] == count, counts
    pipeline.finish(settings, run, "succeeded")
    return seconds | {"loop": sum(seconds.values())}


@contextmanager
def _queues(node: RabbitMQ, *names: str) -> Iterator[None]:
    for name in names:
        node.create_queue(name)
    yield
    for name in names:
        node.ask("DELETE", f"queues/%2F/{name}")


def _timed(work: Any) -> tuple[float, Any]:
    started = time.perf_counter()
    found = work()
    return time.perf_counter() - started, found


def _settings(folder: Path, ledger_url: str) -> Settings:
    return parse(
        f"""
database: {ledger_url}
staging: {folder}/staging
spark: {{runner: "${{REDRIVE_SPARK_RUNNER:-local}}", remote: "${{REDRIVE_SPARK_REMOTE:-sc://localhost}}"}}
routes:
  orders:
    broker: rabbitmq
    connection: rabbit_bench
    sources: [{{queue: orders-dlq, kind: dead_letter, origins: [orders]}}]
    destination: {{queue: orders}}
    evidence: ["attribute:error"]
    canary: "off"
    drain: {{limit: 10000000, wait: 0s}}
    deliver: {{run_for: 1h, slice: 5000, confirm_window: 1000}}
    rate: {{per_second: 100000000, max_in_flight: 100000000}}
""",
        env=os.environ,
        root=folder,
    )


def _connect(node: RabbitMQ) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.port))


def _fill(node: RabbitMQ, queue: str, count: int, rest: float) -> None:
    connection = _connect(node)
    channel = connection.channel()
    for number in range(count):
        body = (b'{"order": %012d, "lines": "' % number).ljust(1022, b"x") + b'"}'
        properties = pika.BasicProperties(delivery_mode=2, headers={"error": ERROR.format(number)})
        channel.basic_publish("", queue, body, properties)
    connection.close()
    _wait(node, queue, count)
    time.sleep(rest)


def _wait(node: RabbitMQ, queue: str, count: int) -> None:
    connection = _connect(node)
    channel = connection.channel()
    while channel.queue_declare(queue, passive=True).method.message_count < count:
        time.sleep(0.02)
    connection.close()


def _shovel(node: RabbitMQ, count: int) -> float:
    uri = f"amqp://guest:guest@127.0.0.1:{node.port}"
    value = {
        "src-uri": uri,
        "src-queue": "from",
        "dest-uri": uri,
        "dest-queue": "to",
        "ack-mode": "on-confirm",
        "src-prefetch-count": PREFETCH,
    }
    started = time.perf_counter()
    node.ask("PUT", "parameters/shovel/%2F/bench", {"value": value})
    _wait(node, "to", count)
    seconds = time.perf_counter() - started
    node.ask("DELETE", "parameters/shovel/%2F/bench")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
