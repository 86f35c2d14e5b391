"""How old a poison message is, whatever SQS's own metric makes of it once it was received three times.

On ministack and on ElasticMQ, which stand in for SQS. The clock is set forward; what SQS stamps stays as it is.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from redrive.brokers.sqs.adapter import AmazonSqs
from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.message import Micros
from redrive.settings import parse
from redrive.stages import pipeline
from redrive.stages.context import instant, micros, utc_now
from tests import blank
from tests.classifying import classify
from tests.workshop import REFUSED, ROUTE

pytestmark = pytest.mark.server

COLUMNS = (
    "oldest_age_seconds, oldest_age_method, oldest_visible_age_seconds, oldest_visible_age_method, coverage,"
    " oldest_enqueued_at, oldest_seen_at, oldest_deliveries, observed_at"
)


class Shop:
    """A route whose destination is a live queue, with a consumer that fails at one message again and again."""

    def __init__(self, folder: Path, max_deliveries: int | None, sample: int) -> None:
        self.offset = timedelta(0)
        self.broker = AmazonSqs.open("sqs_shop")
        self.client = self.broker._client
        name = f"ages-{folder.name}".replace("_", "-")[:60]
        self.queue, self.dead = f"{name}-live", f"{name}-dlq"
        self.client.create_queue(QueueName=self.dead)
        attributes = {"VisibilityTimeout": "600"}
        if max_deliveries:
            arn = f"arn:aws:sqs:us-east-1:000000000000:{self.dead}"
            attributes["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": max_deliveries})
        self.url = self.client.create_queue(QueueName=self.queue, Attributes=attributes)["QueueUrl"]
        route = ROUTE | {
            "broker": "amazon_sqs",
            "connection": "sqs_shop",
            "sources": [{"queue": self.dead, "kind": "dead_letter"}],
            "destination": {"queue": self.queue},
            "ages": {"sample": sample},
        }
        text = {
            "database": f"sqlite:///{folder}/redrive.db",
            "staging": str(folder / "staging"),
            "routes": {"orders": route},
        }
        self.settings = parse(yaml.safe_dump(text), env=os.environ, root=folder)
        self.ledger = Ledger(self.settings.database)
        blank.upgrade(self.ledger, utc_now())

    def now(self) -> datetime:
        return utc_now() + self.offset

    def send(self, body: str) -> None:
        error = {"error": {"DataType": "String", "StringValue": REFUSED}}
        self.client.send_message(QueueUrl=self.url, MessageBody=body, MessageAttributes=error)

    def hold(self, body: str) -> tuple[str, Micros, int]:
        """The consumer takes ``body`` and no other: its receipt, when it was sent, how often it was received."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = self.client.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=10,
                WaitTimeSeconds=1,
                MessageSystemAttributeNames=["All"],
            ).get("Messages", [])
            for one in found:
                if one["Body"] != body:
                    self.give_back(one["ReceiptHandle"])
            for one in found:
                if one["Body"] == body:
                    told = one["Attributes"]
                    sent = int(told["SentTimestamp"]) * 1000
                    return one["ReceiptHandle"], sent, int(told["ApproximateReceiveCount"])
        raise AssertionError(f"{body} never came")

    def give_back(self, receipt: str) -> None:
        """The consumer fails."""
        self.client.change_message_visibility(QueueUrl=self.url, ReceiptHandle=receipt, VisibilityTimeout=0)

    def fail(self, body: str, times: int) -> Micros:
        """The consumer fails at ``body``; when that was sent."""
        sent = 0
        for _ in range(times):
            receipt, sent, _ = self.hold(body)
            self.give_back(receipt)
        return sent

    def die(self) -> None:
        """One receive too many: SQS moves the message to the dead-letter queue."""
        deadline = time.monotonic() + 60
        while self.broker.depth(self.dead).visible != 1:
            assert time.monotonic() < deadline
            assert not self.client.receive_message(QueueUrl=self.url, WaitTimeSeconds=1).get("Messages")

    def observe(self, hours: float) -> dict[str, Any]:
        """Let hours go by and look; what was written about the live queue."""
        self.offset += timedelta(hours=hours)
        run = pipeline.begin(self.settings, "orders", trigger="test", holder="test", clock=self.now)
        pipeline.observe(self.settings, run, broker=self.broker, clock=self.now)
        pipeline.finish(self.settings, run, "succeeded", self.now)
        return self.written(self.queue)

    def cycle(self) -> None:
        """A whole run."""
        options: dict[str, Any] = {"broker": self.broker, "clock": self.now}
        run = pipeline.begin(self.settings, "orders", trigger="test", holder="test", clock=self.now)
        pipeline.observe(self.settings, run, **options)
        pipeline.drain(self.settings, run, **options)
        manifest = pipeline.prepare_classification(self.settings, run, **options)
        if manifest is not None:
            classify(manifest)
        for stage in (pipeline.load, pipeline.resolve, pipeline.plan, pipeline.deliver):
            stage(self.settings, run, **options)
        pipeline.finish(self.settings, run, "succeeded", self.now)

    def written(self, queue: str) -> dict[str, Any]:
        """The newest observation of ``queue``."""
        with self.ledger.read() as connection:
            row = connection.execute(
                sql(f"select {COLUMNS} from queue_observations where queue = :q order by observation_id desc limit 1"),
                {"q": queue},
            ).one()
        found = dict(row._mapping)
        for name in ("oldest_enqueued_at", "oldest_seen_at", "observed_at"):
            found[name] = parse_instant(found[name])
        if found["oldest_enqueued_at"] is not None:  # the age is what the moments say it is
            age = (found["observed_at"] - found["oldest_enqueued_at"]).total_seconds()
            assert found["oldest_age_seconds"] == pytest.approx(age, abs=30)
        return found


@pytest.fixture(params=["ministack", "elasticmq"])
def build(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Shop]]:
    server = request.getfixturevalue(request.param)
    connection = {
        "conn_type": "aws",
        "login": "test",
        "password": "test",
        "extra": {"region_name": "us-east-1", "endpoint_url": server.url},
    }
    monkeypatch.setenv("AIRFLOW_CONN_SQS_SHOP", json.dumps(connection))
    made: list[Shop] = []

    def build(*, max_deliveries: int | None = None, sample: int = 10) -> Shop:
        made.append(Shop(tmp_path, max_deliveries, sample))
        return made[-1]

    yield build
    for one in made:
        one.broker.close()
        one.ledger.close()


@pytest.mark.parametrize("max_deliveries", [None, 20], ids=["no-redrive-policy", "redrive-policy"])
def test_a_message_that_is_received_again_and_again_keeps_its_true_age(
    build: Callable[..., Shop], max_deliveries: int | None
) -> None:
    shop = build(max_deliveries=max_deliveries)
    shop.send("poison")
    sent = instant(shop.fail("poison", times=4))
    shop.send("fresh")

    seen = shop.observe(hours=2)
    assert (seen["oldest_age_method"], seen["oldest_visible_age_method"], seen["coverage"]) == ("sample", "sample", 1.0)
    assert seen["oldest_enqueued_at"] == sent
    assert seen["oldest_age_seconds"] == seen["oldest_visible_age_seconds"] == pytest.approx(7200, abs=60)
    assert seen["oldest_deliveries"] == 4

    receipt, _, _ = shop.hold("poison")
    seen = shop.observe(hours=0.5)
    assert (seen["oldest_age_method"], seen["oldest_visible_age_method"], seen["coverage"]) == ("ledger", "sample", 0.5)
    assert seen["oldest_enqueued_at"] == sent
    assert seen["oldest_visible_age_seconds"] < seen["oldest_age_seconds"] == pytest.approx(9000, abs=60)

    shop.give_back(receipt)
    shop.fail("poison", times=3)
    seen = shop.observe(hours=0.5)
    assert (seen["oldest_age_method"], seen["oldest_enqueued_at"]) == ("sample", sent)
    assert seen["oldest_age_seconds"] == seen["oldest_visible_age_seconds"] == pytest.approx(10800, abs=60)


def test_looking_never_kills_a_message_and_its_age_survives_death_and_redelivery(build: Callable[..., Shop]) -> None:
    shop = build(max_deliveries=7)
    shop.send("poison")
    sent = instant(shop.fail("poison", times=3))
    for _ in range(5):
        seen = shop.observe(hours=0.1)
        assert seen["oldest_enqueued_at"] == sent
    assert seen["oldest_age_method"] == "ledger"  # the ration is used up: what is known is remembered
    receipt, _, received = shop.hold("poison")
    assert received == 3 + 3 + 1  # failures, looks, and this one: it can still be worked on

    shop.give_back(receipt)
    shop.die()
    shop.offset += timedelta(hours=1)
    shop.cycle()
    dead = shop.written(shop.dead)
    assert (dead["oldest_age_method"], dead["oldest_enqueued_at"], dead["coverage"]) == ("ledger", sent, 1.0)

    back = shop.observe(hours=1)
    assert (back["oldest_age_method"], back["oldest_enqueued_at"], back["oldest_deliveries"]) == ("sample", sent, 0)
    assert shop.hold("poison")[1] > micros(sent)  # to SQS it is a new message


def test_a_poison_message_in_a_consumer_s_hands_leaves_a_lower_bound_at_every_look(build: Callable[..., Shop]) -> None:
    """With six receives at most: a look costs those a delivery that it sees, and no other."""
    shop = build(max_deliveries=6)
    shop.send("poison")
    poison, sent, _ = shop.hold("poison")
    for number in range(4):
        shop.send(f"good-{number}")
        seen = shop.observe(hours=1)
        assert (seen["oldest_age_method"], seen["coverage"]) == ("sample", 0.5)
        assert seen["oldest_enqueued_at"] > instant(sent), "a lower bound, and said to be one"
        receipt, _, received = shop.hold(f"good-{number}")
        assert received == 2
        shop.client.delete_message(QueueUrl=shop.url, ReceiptHandle=receipt)
    shop.give_back(poison)
    shop.fail("poison", times=3)
    seen = shop.observe(hours=1)
    assert (seen["oldest_age_method"], seen["oldest_enqueued_at"]) == ("sample", instant(sent))
    assert shop.hold("poison")[2] == 1 + 3 + 1 + 1, "it can still be worked on"


def test_no_live_queue_is_touched_unless_asked(build: Callable[..., Shop]) -> None:
    shop = build(sample=0)
    shop.send("order")
    seen = shop.observe(hours=1)

    assert (seen["oldest_age_method"], seen["oldest_age_seconds"]) == ("unknown", None)
    assert shop.hold("order")[2] == 1
