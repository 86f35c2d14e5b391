"""What a whole loop costs on SQS in API requests, and that it is the loop on SQS: drained, sent, recognised."""

import json
import os
from pathlib import Path

import boto3
import pytest
import yaml

from redrive.brokers.sqs.adapter import AmazonSqs
from redrive.ledger.engine import Ledger
from redrive.settings import parse
from redrive.stages import pipeline
from redrive.stages.context import utc_now
from tests import blank
from tests.classifying import classify
from tests.servers import Ministack
from tests.workshop import REFUSED, ROUTE

MESSAGES = 1_000
#: What a run asks about the origins of its source, however many messages come of it: which they are, and their leases.
ONCE = 2


@pytest.mark.server
def test_drain_and_delivery_of_a_message_cost_less_than_a_third_of_a_request(
    ministack: Ministack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.30 is the floor: receive, delete and send by tens (stand-in server: ministack)."""
    monkeypatch.setenv("AIRFLOW_CONN_SQS_REQUESTS", json.dumps(ministack.connection()))
    broker = AmazonSqs.open("sqs_requests")
    client = boto3.client(
        "sqs",
        endpoint_url=ministack.url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    for queue in ("req-orders", "req-orders-dlq"):
        client.create_queue(QueueName=queue)
    url = client.get_queue_url(QueueName="req-orders-dlq")["QueueUrl"]
    for start in range(0, MESSAGES, 10):
        client.send_message_batch(
            QueueUrl=url,
            Entries=[
                {
                    "Id": str(number),
                    "MessageBody": json.dumps({"order": start + number}),
                    "MessageAttributes": {"error": {"DataType": "String", "StringValue": REFUSED}},
                }
                for number in range(10)
            ],
        )
    route = ROUTE | {
        "broker": "amazon_sqs",
        "connection": "sqs_requests",
        "sources": [{"queue": "req-orders-dlq", "kind": "dead_letter"}],
        "destination": {"queue": "req-orders"},
    }
    settings = parse(
        yaml.safe_dump(
            {
                "database": f"sqlite:///{tmp_path}/redrive.db",
                "staging": str(tmp_path / "staging"),
                "routes": {"orders": route},
            }
        ),
        env=os.environ,
        root=tmp_path,
    )
    ledger = Ledger(settings.database)
    blank.upgrade(ledger, utc_now())
    run = pipeline.begin(settings, "orders", trigger="test", holder="test")
    broker.requests.clear()

    drained = pipeline.drain(settings, run, broker=broker)
    classify(pipeline.prepare_classification(settings, run, broker=broker) or "")
    pipeline.load(settings, run, broker=broker)
    pipeline.plan(settings, run, broker=broker)
    delivered = pipeline.deliver(settings, run, broker=broker)

    assert (drained["drained"], drained["settled"], delivered["redelivered"]) == (MESSAGES, MESSAGES, MESSAGES)
    spent = broker.requests.total()
    assert spent <= 0.31 * MESSAGES + ONCE, dict(broker.requests)
    assert pipeline.audit(settings)["problems"] == []
    broker.close()
