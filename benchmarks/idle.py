"""What a run costs that finds nothing to do, as schedules start them day and night.

``python -m benchmarks.idle``: ``redrive run`` as a process of its own, on queues of an SQS-compatible server (a
stand-in) that are empty, with a ledger on SQLite that holds 100,000 finished messages. Wall time and what it computed,
of seven runs after a first one that is not counted. The goal is two seconds.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import boto3
import yaml
from tests.servers import Ministack

from benchmarks import finished_messages, options
from benchmarks.results import Figure, Table, finish
from redrive.ledger import schema
from redrive.ledger.engine import Ledger
from redrive.stages.context import utc_now

FINISHED = 100_000
RUNS = 7
GOAL = 2.0


def main() -> int:
    """Print what runs took; 1 when the median is above the goal."""
    asked = options.parser("idle", __doc__).parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("REDRIVE_BENCH_DIR")) as folder, Ministack() as server:
        home = Path(folder)
        client = boto3.client(
            "sqs",
            endpoint_url=server.url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        for queue in ("orders", "orders-dlq"):
            client.create_queue(QueueName=queue)
        ledger = Ledger(f"sqlite:///{home}/redrive.db")
        schema.upgrade(ledger, utc_now())
        finished_messages.fill(ledger, home, FINISHED)
        ledger.close()
        configuration = home / "redrive.yaml"
        configuration.write_text(yaml.safe_dump(_configuration(home)))
        environment = os.environ | {
            "REDRIVE_CONFIG": str(configuration),
            "AIRFLOW_CONN_BENCH": json.dumps(server.connection()),
        }
        took = [_run(environment) for _ in range(1 + RUNS)][1:]
    rows = [
        (name, Figure(statistics.median(values), most=goal), Figure(min(values)), Figure(max(values)))
        for name, values, goal in zip(("seconds", "computing"), zip(*took, strict=True), (GOAL, None), strict=True)
    ]
    return finish(asked, "idle", Table(("", "median", "least", "most"), rows))


def _configuration(home: Path) -> dict[str, object]:
    return {
        "database": f"sqlite:///{home}/redrive.db",
        "staging": f"{home}/staging",
        "routes": {
            "orders": {
                "broker": "amazon_sqs",
                "connection": "bench",
                "sources": [{"queue": "orders-dlq", "kind": "dead_letter"}],
                "destination": {"queue": "orders"},
                "drain": {"wait": "0s"},
            }
        },
    }


def _run(environment: dict[str, str]) -> tuple[float, float]:
    """Seconds of one run, and those of them that it computed."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [Path(sys.executable).with_name("redrive"), "run", "orders", "--json"],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["drained"] == 0, report
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
