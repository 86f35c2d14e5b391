"""The same kills with a broker behind a network: an SQS-compatible server that outlives its clients."""

import json
import time
import uuid
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.brokers.memory import MemoryWorld
from redrive.brokers.sqs.adapter import AmazonSqs
from redrive.message import ATTEMPT_HEADER, COMPACT_HEADER
from redrive.stages.context import utc_now
from tests.faults.crash import CHANGING, Points, run_child
from tests.servers import Ministack
from tests.workshop import REFUSED, Workshop

MESSAGES = 25
WINDOW = 4
DRAIN_LEASE = timedelta(seconds=2)


class Reporting:
    """A broker of the child's own; every call that changes something is a point."""

    def __init__(self, broker: AmazonSqs, points: Points) -> None:
        self._broker, self._points = broker, points

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._broker, name)
        if name not in CHANGING:
            return found

        def call(*args: Any, **options: Any) -> Any:
            self._points.reach(f"before {name}")
            result = found(*args, **options)
            self._points.reach(f"after {name}")
            return result

        return call


class Shop(Workshop):
    """A workshop whose queues are at SQS and whose clock is the real one, plus what a test lets pass."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self.passed = timedelta(0)
        self.dlq, self.main = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("dlq", "main"))
        super().__init__(
            folder,
            broker="amazon_sqs",
            connection="sqs_test",
            sources=[{"queue": self.dlq, "kind": "dead_letter", "lease": "2s", "max_deliveries": 3}],
            destination={"queue": self.main},
            drain={"wait": "0s", "lease": "2s", "flush_messages": 10},
            deliver={"slice": 10, "confirm_window": WINDOW},
        )
        self.broker = self.connect()  # type: ignore[assignment]
        for queue in (self.dlq, self.main):
            self.broker._client.create_queue(QueueName=queue)  # type: ignore[attr-defined]
        address = self.broker._client.get_queue_url(QueueName=self.dlq)["QueueUrl"]  # type: ignore[attr-defined]
        for number in range(MESSAGES):
            self.broker._client.send_message(  # type: ignore[attr-defined]
                QueueUrl=address,
                MessageBody=f"message {number}",
                MessageAttributes={"error": {"DataType": "String", "StringValue": REFUSED}},
            )

    def connect(self) -> AmazonSqs:
        connection = {
            "conn_type": "aws", "login": "test", "password": "test",
            "extra": {"region_name": "us-east-1", "endpoint_url": self.url},
        }  # fmt: skip
        return AmazonSqs.open("sqs_test", env={"AIRFLOW_CONN_SQS_TEST": json.dumps(connection)})

    def now(self) -> datetime:
        return utc_now() + getattr(self, "passed", timedelta(0))

    def run_in_child(self, fatal: int | None) -> Any:
        def work(_served: Any, points: Points) -> None:
            self.broker = Reporting(self.connect(), points)  # type: ignore[assignment]
            run = self.begin()
            for name, _ in self.stages(run):
                points.stage = f"after {name}"

        return run_child(MemoryWorld(), work, fatal=fatal)

    def arrived(self) -> Counter[str]:
        found: Counter[str] = Counter()
        while received := self.broker.receive(self.main, limit=100, wait=timedelta(0), lease=timedelta(minutes=1)):
            for letter, _ in received:
                assert {header.name for header in letter.headers} & {ATTEMPT_HEADER, COMPACT_HEADER}
            found.update(letter.body.decode() for letter, _ in received)
            self.broker.settle(self.main, [receipt for _, receipt in received])
        return found


@pytest.mark.server
def test_kills_with_sqs_lose_and_double_nothing(ministack: Ministack, tmp_path: Path) -> None:
    whole = Shop(tmp_path / "whole", ministack.url)
    death = whole.run_in_child(None)
    assert not death.error, death.error
    assert whole.arrived() == Counter(f"message {number}" for number in range(MESSAGES))
    hot = [n for n, point in enumerate(death.points) if any(f" {call}" in point for call in ("settle", "publish"))]
    for fatal in hot[::3]:
        shop = Shop(tmp_path / str(fatal), ministack.url)
        death = shop.run_in_child(fatal)
        assert death.signal, death.error
        time.sleep(DRAIN_LEASE.total_seconds() + 0.2)
        shop.passed = timedelta(minutes=10)
        shop.cycle()
        shop.passed = timedelta(minutes=20)
        shop.cycle()
        unknown = shop.query("select count(*) from redelivery_attempts where unknown_at is not null")[0][0]
        arrived = shop.arrived()
        assert unknown <= WINDOW, death.last
        assert set(arrived.values()) == {1}, death.last
        assert MESSAGES - unknown <= len(arrived) <= MESSAGES, death.last
        states = shop.states()
        assert set(states) <= {"sent", "escalated"}, death.last
        assert sum(states.values()) == MESSAGES, death.last
        assert states.get("escalated", 0) == unknown, death.last
        assert shop.audit() == []
        shop.ledger.close()
