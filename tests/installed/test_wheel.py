"""The wheel is the product: built twice, installed where no checkout is, and used as a stranger would."""

import json
import os
import re
import shutil
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest

from redrive.airflow import DAG_FILE
from redrive.dev import parts
from tests import servers
from tests.installed.places import SOURCES, Place, build, digest, install
from tests.servers import ROOT
from tests.unit.test_package import only_installed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return install(wheel, tmp_path_factory.mktemp("elsewhere"), Path(sys.executable))


# --- what is built ---------------------------------------------------------------------------------------------


def test_the_same_source_gives_the_same_bytes(made: dict[str, Path], tmp_path: Path) -> None:
    """In another folder, at another time, from files with other times."""
    copy = tmp_path / "somewhere-else"
    copy.mkdir()
    for name in SOURCES:
        whole = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        whole(ROOT / name, copy / name)
    for path in copy.rglob("*"):
        os.utime(path, (1_234_567_890, 1_234_567_890))
    assert len(made) == 2
    again = build(copy, tmp_path / "dist")
    assert {name: digest(path) for name, path in again.items()} == {name: digest(path) for name, path in made.items()}


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = next(name.partition("/")[0] for name in names if ".dist-info/" in name)
        told = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
    assert told["License-Expression"] == "Apache-2.0"
    assert f"{info}/licenses/LICENSE" in names
    assert {"redrive/py.typed", "redrive_ui/py.typed"} <= names
    extras = {
        "sqs",
        "rabbitmq",
        "pubsub",
        "servicebus",
        "pulsar",
        "postgres",
        "spark",
        "connect",
        "emr",
        "dataproc",
        "ui",
    }
    assert extras <= set(told.get_all("Provides-Extra") or [])
    plain = [one for one in told.get_all("Requires-Dist") or [] if "extra ==" not in one]
    assert not [one for one in plain if one.startswith(("apache-airflow", "pyspark", "botocore", "psycopg", "pika"))]


def test_everything_that_is_no_test_is_in_it(wheel: Path) -> None:
    """Also what a later release adds: whatever lies in the packages, but for what Python made there."""
    there = {
        path.relative_to(ROOT / "plugins").as_posix()
        for package in ("redrive", "redrive_ui")
        for path in (ROOT / "plugins" / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == there


def test_the_source_archive_holds_what_people_read_and_nothing_of_this_machine(made: dict[str, Path]) -> None:
    with tarfile.open(next(path for name, path in made.items() if name.endswith(".gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "docs/airflow.md", "dags/redrive_routes.py"} <= names
    assert not [name for name in names if name.startswith((".venv", "var", "tests", ".git/"))]


def test_the_bill_of_materials_names_every_part_and_is_made_again_the_same(wheel: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(wheel, tmp_path))
    pins = ROOT / "requirements.txt"
    told = []
    for _ in range(2):
        assert parts.main([str(copy), str(pins)]) == 0
        told.append(copy.with_name(f"{copy.name}.cdx.json").read_bytes())
    assert told[0] == told[1]
    bill = json.loads(told[0])
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    ours = bill["metadata"]["component"]
    assert (ours["name"], ours["hashes"]) == ("redrive", [{"alg": "SHA-256", "content": digest(wheel)}])
    assert ours["licenses"] == [{"expression": "Apache-2.0"}]
    named = {part["name"]: part["version"] for part in bill["components"]}
    assert len(named) == len(re.findall(r"^[A-Za-z0-9].*==", pins.read_text(), re.MULTILINE))
    assert named["apache-airflow"] == metadata.version("apache-airflow")
    assert len([part for part in bill["components"] if "licenses" in part]) > len(named) / 2


# --- what is installed -----------------------------------------------------------------------------------------


def test_the_command_is_that_of_the_wheel(place: Place) -> None:
    asked = place.run(
        str(place.python), "-c", "import redrive, redrive_ui; print(redrive.__file__, redrive_ui.__file__)"
    )
    for file in asked.stdout.split():
        assert Path(file).is_relative_to(place.python.parents[1]), asked.stderr
    assert "Brings dead messages back" in place.redrive("--help")


@pytest.fixture(scope="module")
def begun(place: Place) -> Place:
    """With what ``redrive init`` writes."""
    place.redrive(
        *("init", ".", "--broker", "rabbitmq", "--source", "orders-dlq", "--destination", "orders"),
        *("--connection", "rabbit"),
    )
    return place


def test_it_lives_where_airflow_does(begun: Place) -> None:
    """The folder is ``$AIRFLOW_HOME`` here, and nothing else is said."""
    ask = "from redrive import settings; print(settings.home(), settings.checkout(), settings.load().database)"
    told = begun.run(str(begun.python), "-c", ask).stdout.split()
    assert told == [str(begun.folder), "None", f"sqlite:///{begun.folder}/var/redrive.db"]


@pytest.mark.airflow
def test_airflow_finds_dags_page_and_forms(begun: Place) -> None:
    assert (begun.folder / "dags" / "redrive_dags.py").read_text() == DAG_FILE
    ask = """
import json
from airflow import plugins_manager
from airflow.dag_processing.dagbag import DagBag
from airflow.providers_manager import ProvidersManager
bag = DagBag("dags")
plugins, problems = plugins_manager._get_plugins()
hooks = ProvidersManager().hooks
print(json.dumps({
    "dags": sorted(bag.dag_ids), "errors": list(bag.import_errors.values()),
    "pages": [one.name for one in plugins if one.name == "redrive"], "problems": problems,
    "forms": {name: hooks[name].hook_name for name in ("amqp", "pulsar")},
}))
"""
    alone = only_installed(begun.python.parents[1])
    done = begun.run(str(begun.python), "-c", alone + ask, AIRFLOW__CORE__LOAD_EXAMPLES="False")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "dags": ["redrive_audit", "redrive_orders", "redrive_review"],
        "errors": [],
        "pages": ["redrive"],
        "problems": {},
        "forms": {"amqp": "RabbitMQ", "pulsar": "Pulsar"},
    }


@pytest.fixture
def shop(rabbitmq: servers.RabbitMQ) -> Iterator[servers.RabbitMQ]:
    """Two queues and one dead message, which the shop's consumer could not work on for a moment."""
    for name in ("orders", "orders-dlq"):
        rabbitmq.create_queue(name)
    rabbitmq.ask(
        "POST",
        "exchanges/%2F/amq.default/publish",
        {
            "routing_key": "orders-dlq",
            "payload": '{"order": 1}',
            "payload_encoding": "string",
            "properties": {"headers": {"x-exception-message": "Connection reset by peer"}},
        },
    )
    yield rabbitmq
    for name in ("orders", "orders-dlq"):
        rabbitmq.ask("DELETE", f"queues/%2F/{name}")


@pytest.mark.server
@pytest.mark.spark
def test_the_whole_loop_runs_without_airflow_and_without_a_checkout(begun: Place, shop: servers.RabbitMQ) -> None:
    extra = {"management_port": shop.management_port}
    connection = {"conn_type": "amqp", "host": "127.0.0.1", "port": shop.port, "extra": extra}
    known = {"AIRFLOW_CONN_RABBIT": json.dumps(connection)}
    assert "is at revision" in begun.redrive("db", "upgrade", **known)
    begun.redrive("doctor", "orders", **known)
    report = json.loads(begun.redrive("run", "orders", "--json", **known).splitlines()[-1])
    assert (report["drained"], report["new"], report["classified"]) == (1, 1, 1), report
    assert report["redelivered"] == 1, report
    deadline = time.monotonic() + 300
    while shop.ask("GET", "queues/%2F/orders").get("messages") != 1:
        assert time.monotonic() < deadline, "the message is not in its queue"
        time.sleep(0.2)
    assert "everything adds up" in begun.redrive("audit", **known)
    assert (begun.folder / "var" / "redrive.db").exists()
