"""A shop with two queues on a real server, and Airflow's environment to run its route in."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.probe import Probe
from tests.servers import Ministack

from redrive import settings
from redrive.dev import local_airflow
from redrive.ledger import schema
from redrive.ledger.engine import Ledger

#: Failure texts that consumers wrote, and what becomes of such messages.
PASSING = "java.net.ConnectException: Connection refused: inventory:8443"
LASTING = "KeyError: 'sku'"

CONFIG = """
database: sqlite:///var/redrive.db
staging: var/staging
spark: {{runner: local, master: "local[2]"}}
routes:
  orders:
    broker: amazon_sqs
    connection: sqs_test
    schedule: null
    sources: [{{queue: {dead}, lease: 30s, max_deliveries: 3, retention: 4d}}]
    destination: {{queue: {orders}}}
    drain: {{shards: 2}}
    deliver: {{shards: 2}}
    canary: off
    evidence: ["attribute:error"]
    notify: [{{notifier: bell.Bell, arguments: {{text: "{{{{ redrive.title }}}}"}}}}]
"""

#: An Airflow notifier of somebody else.
BELL = """
import os, pathlib
from airflow.sdk import BaseNotifier

class Bell(BaseNotifier):
    template_fields = ("text",)

    def __init__(self, text):
        super().__init__()
        self.text = text

    def notify(self, context):
        with pathlib.Path(os.environ["REDRIVE_HOME"], "var", "bell.txt").open("a") as rung:
            print(context["ti"].task_id, self.text, sep=": ", file=rung)
"""


@dataclass
class Shop(Probe):
    """One route with its queues, ledger and staging below ``home``."""

    home: Path
    client: Any
    urls: dict[str, str]
    ledger: Ledger
    base: dict[str, str] = field(repr=False)

    def fail(self, count: int, error: str) -> None:
        """Put messages into the dead-letter queue, with what a consumer says of them."""
        for number in range(count):
            self.client.send_message(
                QueueUrl=self.urls["dead"],
                MessageBody=json.dumps({"order": number, "error": error}),
                MessageAttributes={"error": {"DataType": "String", "StringValue": error}},
            )

    def depth(self, queue: str) -> int:
        """How many messages the queue holds now, in flight ones included."""
        answer = self.client.get_queue_attributes(
            QueueUrl=self.urls[queue],
            AttributeNames=["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"],
        )["Attributes"]
        return sum(int(value) for value in answer.values())


@pytest.fixture(scope="module")
def shop(ministack: Ministack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A fresh shop per module, whose queues are empty."""
    import boto3  # noqa: PLC0415  only these tests need it

    home = tmp_path_factory.mktemp("shop")
    client = boto3.client(
        "sqs",
        endpoint_url=ministack.url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    names = {"orders": f"orders-{home.name}", "dead": f"orders-dlq-{home.name}"}
    urls = {which: client.create_queue(QueueName=name)["QueueUrl"] for which, name in names.items()}
    (home / "config").mkdir()
    (home / "config" / "redrive.yaml").write_text(CONFIG.format(**names))
    (home / "bell.py").write_text(BELL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDRIVE_HOME", str(home))
        for name in ("REDRIVE_CONFIG", "REDRIVE_DATABASE_URL", "REDRIVE_STAGING_URI"):
            patch.delenv(name, raising=False)
        patch.setenv("AIRFLOW_CONN_SQS_TEST", json.dumps(ministack.connection()))
        (home / "var").mkdir()
        ledger = Ledger(settings.load().database)
        schema.upgrade(ledger, datetime.now(UTC))
        base = local_airflow.environment(home, 0)
        base["PYTHONPATH"] = os.pathsep.join(filter(None, [str(home), base.get("PYTHONPATH")]))
        yield Shop(home, client, urls, ledger, base)
        ledger.close()
    for url in urls.values():
        client.delete_queue(QueueUrl=url)
