"""What Dockerfile puts into the image, put together without Docker: as small as promised, and its services run."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.installed.composition import DOCKERFILE, Composition, Image
from tests.installed.places import UV
from tests.servers import ROOT, ServerMissing, missing

pytestmark = [pytest.mark.matrix, pytest.mark.airflow, pytest.mark.server, pytest.mark.spark, pytest.mark.slow]

MB = 1_000_000
#: What comes of the base image, which can't be fetched here: Debian without documents, curl and procps (measured with
#: mmdebstrap: 93 MB), and Python 3.11 without its tests (56 MB).
BASE = 150 * MB


def size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))


@pytest.fixture(scope="module")
def image(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Java and Python as the first stage of Dockerfile makes them."""
    jlink = shutil.which("jlink")
    if jlink is None:
        missing("no jlink, which comes with a JDK")
    told = re.search(r"^RUN jlink (.*) --output /opt/java --add-modules \\\n(\S+)$", DOCKERFILE, re.MULTILINE)
    assert told
    folder = tmp_path_factory.mktemp("image")
    made = Image(folder / "venv", folder / "java")
    subprocess.run([jlink, *told[1].split(), "--output", made.java, "--add-modules", told[2]], check=True)
    subprocess.run([UV, "venv", "--quiet", "--relocatable", "--python", sys.executable, made.venv], check=True)
    install = [UV, "pip", "install", "--quiet", "--python", made.venv / "bin" / "python"]
    subprocess.run([*install, "--require-hashes", "-r", ROOT / "requirements-image.txt"], check=True)
    subprocess.run([ROOT / "docker" / "lean", made.venv], check=True)
    subprocess.run([*install, "--no-deps", wheel], check=True)
    return made


@pytest.mark.timeout(1800)
def test_the_image_is_lean(image: Image) -> None:
    assert size(image.venv) + size(image.java) + BASE <= 1_200 * MB, (size(image.venv), size(image.java))


@pytest.fixture(scope="module")
def composition(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composition]:
    try:
        with Composition(tmp_path_factory.mktemp("compose"), image) as one:
            yield one
    except ServerMissing as reason:
        missing(str(reason))


#: Puts dead letters into a queue, and tells how many messages each has.
SQS = """
import json, sys, boto3
client = boto3.client("sqs", endpoint_url="http://sqs:9324", region_name="elasticmq",
                      aws_access_key_id="unchecked", aws_secret_access_key="unchecked")
urls = {name: client.get_queue_url(QueueName=name)["QueueUrl"] for name in ("orders", "orders-dlq")}
for number in range(int(sys.argv[1])):
    client.send_message(QueueUrl=urls["orders-dlq"], MessageBody=json.dumps({"order": number}), MessageAttributes={
        name: {"DataType": "String", "StringValue": value}
        for name, value in {"error": "Connection refused", "message_id": str(number)}.items()})
depth = "ApproximateNumberOfMessages"
print(json.dumps({name: int(client.get_queue_attributes(QueueUrl=url, AttributeNames=[depth])["Attributes"][depth])
                  for name, url in urls.items()}))
"""


@pytest.mark.timeout(3600)
def test_the_services_of_compose_become_healthy_run_a_route_and_end_in_order(composition: Composition) -> None:
    spark = [name for name in composition.services if name.startswith("spark")]
    composition.up(*(name for name in composition.services if name not in spark))
    composition.up(*spark)

    def depths(more: int = 0) -> Any:
        done = composition.done("scheduler", "python", "-c", SQS, str(more))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def ask(method: str, path: str, body: object = None, token: str = "") -> Any:
        command = ["curl", "--silent", "--show-error", "--request", method, f"http://localhost:8080{path}"]
        command += ["--header", "Content-Type: application/json", "--header", f"Authorization: Bearer {token}"]
        done = composition.done("api-server", *command, *([] if body is None else ["--data", json.dumps(body)]))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert depths(5) == {"orders": 0, "orders-dlq": 5}
    who = {"username": "admin", "password": composition.secrets["AIRFLOW_ADMIN_PASSWORD"]}
    token = ask("POST", "/auth/token", who)["access_token"]
    dag = "/api/v2/dags/redrive_orders"
    composition.until(lambda: "dag_id" in ask("GET", dag, token=token), "the DAG is parsed")
    assert ask("PATCH", dag, {"is_paused": False}, token)["is_paused"] is False
    told = {"dag_run_id": "first", "logical_date": None, "conf": {"limit": 10}}
    assert ask("POST", f"{dag}/dagRuns", told, token)["dag_run_id"] == "first"

    def runs() -> dict[str, str]:
        return {run["dag_run_id"]: run["state"] for run in ask("GET", f"{dag}/dagRuns", token=token)["dag_runs"]}

    composition.until(lambda: runs()["first"] in ("success", "failed"), "the run ended")
    tasks = ask("GET", f"{dag}/dagRuns/first/taskInstances", token=token)["task_instances"]
    assert runs()["first"] == "success", {one["task_id"]: one["state"] for one in tasks}
    # A run by schedule may have come first.
    classified = [
        one["state"]
        for run in runs()
        for one in ask("GET", f"{dag}/dagRuns/{run}/taskInstances", token=token)["task_instances"]
        if one["task_id"] == "classify"
    ]
    assert "success" in classified, "on the cluster"
    assert depths() == {"orders": 5, "orders-dlq": 0}
    assert composition.stop("scheduler")
    assert composition.stop("spark-worker")
