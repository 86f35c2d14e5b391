"""The one real Airflow of a run of the tests, and shops with two queues on a real server that it runs a route for.

Files of tests that need an Airflow share it, one after another, each with a shop of its own: with its queues, ledger
and staging. The next shop's configuration replaces the last one's.
"""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from redrive import settings
from redrive.airflow import DAG_FILE
from redrive.dev import airflow_environment, local_airflow
from redrive.dev.local_airflow import Airflow
from redrive.ledger import schema
from redrive.ledger.engine import Ledger
from tests.probe import Probe
from tests.servers import Ministack, free_port

#: How often a call is made whose answer is that Airflow itself failed.
TRIES = 5

#: Failure texts that consumers wrote, and what becomes of such messages.
PASSING = "java.net.ConnectException: Connection refused: inventory:8443"
LASTING = "KeyError: 'sku'"

CONFIG = """
database: sqlite:///var/{name}.db
staging: var/{name}
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


#: DAGs of somebody else, who waits for the route.
AFTER = """
from airflow.sdk import DAG, Asset, task

@task
def seen(uri, triggering_asset_events=None):
    return [event.extra["redelivered"] for event in triggering_asset_events[Asset(uri)]]

for name, uri in {"after": "redrive://route/orders", "clean": "redrive://route/orders/clean"}.items():
    with DAG(name, schedule=[Asset(uri)]):
        seen(uri)
"""

#: A DAG folder's file as a team has it, but for one thing: a decision is applied when a test asks for it. By schedule
#: the review would come every five minutes, also between a test's decision and what the test looks at or takes back.
OURS = f"from redrive.airflow import definitions\n\ndefinitions.REVIEW_SCHEDULE = None\n\n{DAG_FILE}"

VIEWER = "val"  # may look and change nothing
PATIENCE = 600  # seconds; a whole run takes about 40 where nothing else runs


class House:
    """A folder in which shops live, and the Airflow that runs there from when it is first asked for."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()  # known before it runs: the configuration may name the page's address
        self._running = ExitStack()
        self._airflow: Airflow | None = None
        for name in ("config", "dags", "var"):
            (home / name).mkdir()
        (home / "bell.py").write_text(BELL)
        (home / "dags" / "redrive_dags.py").write_text(OURS)
        (home / "dags" / "after.py").write_text(AFTER)

    def airflow(self) -> Airflow:
        """The Airflow, whose DAGs read the configuration of now."""
        if self._airflow is None:
            base = dict(os.environ)
            base["PYTHONPATH"] = os.pathsep.join(filter(None, [str(self.home), base.get("PYTHONPATH")]))
            plain = airflow_environment.environment

            def with_folder(*arguments: Any, **options: Any) -> dict[str, str]:
                return plain(*arguments, **options) | {"AIRFLOW__CORE__DAGS_FOLDER": str(self.home / "dags")}

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(local_airflow, "environment", with_folder)
                one = local_airflow.started(self.home, self.port, base=base, viewers=[VIEWER])
                airflow, watch = self._running.enter_context(one)
            watch.until_healthy(airflow, timeout=PATIENCE)  # it begins while every other worker begins too
            self._airflow = airflow
        return self._airflow

    def stop(self) -> None:
        self._airflow = None
        self._running.close()


@dataclass
class Shop(Probe):
    """One route with its queues, ledger and staging below ``home``."""

    home: Path
    client: Any
    urls: dict[str, str]
    ledger: Ledger
    house: House = field(repr=False)

    def fail(self, count: int, error: str) -> None:
        """Put messages into the dead-letter queue, with what a consumer says of them."""
        for first in range(0, count, 10):
            sent = self.client.send_message_batch(
                QueueUrl=self.urls["dead"],
                Entries=[
                    {
                        "Id": str(number),
                        "MessageBody": json.dumps({"order": number, "error": error}),
                        "MessageAttributes": {"error": {"DataType": "String", "StringValue": error}},
                    }
                    for number in range(first, min(first + 10, count))
                ],
            )
            assert not sent.get("Failed")

    def consume(self, verdict: Callable[[Any], str | None]) -> int:
        """Work off ``orders``: a message of which ``verdict`` gives an error ends in the dead-letter queue.

        Returns how many were taken.
        """
        taken = 0
        while found := self.client.receive_message(
            QueueUrl=self.urls["orders"], MaxNumberOfMessages=10, MessageAttributeNames=["All"]
        ).get("Messages"):
            taken += len(found)
            for one in found:
                if error := verdict(json.loads(one["Body"])):
                    said = {"error": {"DataType": "String", "StringValue": error}}
                    self.client.send_message(
                        QueueUrl=self.urls["dead"],
                        MessageBody=one["Body"],
                        MessageAttributes=one.get("MessageAttributes", {}) | said,
                    )
            handles = [{"Id": str(i), "ReceiptHandle": one["ReceiptHandle"]} for i, one in enumerate(found)]
            assert not self.client.delete_message_batch(QueueUrl=self.urls["orders"], Entries=handles).get("Failed")
        return taken

    def depth(self, queue: str) -> int:
        """How many messages the queue holds now, in flight ones included."""
        answer = self.client.get_queue_attributes(
            QueueUrl=self.urls[queue],
            AttributeNames=["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"],
        )["Attributes"]
        return sum(int(value) for value in answer.values())


class Rest:
    """Airflow's REST API, with the generated password's token."""

    def __init__(self, airflow: Airflow) -> None:
        self.url = airflow.url
        self.token = ""
        status, answer = self.call("POST", "/auth/token", {"username": airflow.user, "password": airflow.password})
        assert status == 201
        self.token = answer["access_token"]

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """The status and the decoded answer. Where Airflow's SQLite was locked by its scheduler for too long, nothing
        was done and the answer is 500: it is asked again, as its client would."""
        for _ in range(TRIES - 1):
            status, answer = self._call(method, path, body)
            if status != HTTPStatus.INTERNAL_SERVER_ERROR:
                return status, answer
            time.sleep(1)
        return self._call(method, path, body)

    def _call(self, method: str, path: str, body: object) -> tuple[int, Any]:
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def trigger(self, dag_id: str, run_id: str, **conf: object) -> tuple[int, Any]:
        return self.call(
            "POST",
            f"/api/v2/dags/{dag_id}/dagRuns",
            {"dag_run_id": run_id, "logical_date": None, "conf": conf},
        )

    def states(self, dag_id: str, run_id: str) -> dict[str, str]:
        """How each task of a run stands; mapped ones under their last state."""
        _, answer = self.call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances")
        return {one["task_id"]: one["state"] for one in answer["task_instances"]}

    def wait(self, dag_id: str, run_id: str) -> str:
        """The state in which the run ended."""
        deadline = time.monotonic() + PATIENCE
        while True:
            _, run = self.call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}")
            if run["state"] in ("success", "failed"):
                return str(run["state"])
            assert time.monotonic() < deadline, self.states(dag_id, run_id)
            time.sleep(0.5)


@pytest.fixture(scope="module")
def shop(house: House, ministack: Ministack, request: pytest.FixtureRequest) -> Iterator[Shop]:
    """A fresh shop per module, whose queues are empty."""
    import boto3  # noqa: PLC0415  only these tests need it

    client = boto3.client(
        "sqs",
        endpoint_url=ministack.url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    name = request.path.stem
    names = {"orders": f"orders-{name}", "dead": f"orders-dlq-{name}"}
    urls = {which: client.create_queue(QueueName=queue)["QueueUrl"] for which, queue in names.items()}
    (house.home / "config" / "redrive.yaml").write_text(CONFIG.format(name=name, **names))
    (house.home / "var" / "bell.txt").unlink(missing_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDRIVE_HOME", str(house.home))
        for variable in ("REDRIVE_CONFIG", "REDRIVE_DATABASE_URL", "REDRIVE_STAGING_URI"):
            patch.delenv(variable, raising=False)
        patch.setenv("AIRFLOW_CONN_SQS_TEST", json.dumps(ministack.connection()))
        ledger = Ledger(settings.load().database)
        schema.upgrade(ledger, datetime.now(UTC))
        yield Shop(house.home, client, urls, ledger, house)
        ledger.close()
    for url in urls.values():
        client.delete_queue(QueueUrl=url)
