"""The wheel is the product: built twice, installed where no checkout is, and used as a stranger would."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path
from typing import NamedTuple

import pytest

from redrive.airflow import DAG_FILE
from tests import servers
from tests.servers import ROOT
from tests.unit.test_package import only_installed

pytestmark = pytest.mark.slow

UV = Path(sys.executable).with_name("uv")
#: What a build reads.
SOURCES = (
    *("config", "dags", "docs", "plugins", "spark_jobs", "sql", ".gitignore", "LICENSE", "pyproject.toml"),
    *("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md"),
)


def build(source: Path, target: Path) -> dict[str, Path]:
    """sdist and wheel of ``source``, by their names."""
    environment = {"SOURCE_DATE_EPOCH": "1700000000"} | os.environ  # `make release` says its own
    command = [UV, "build", "--quiet", "--python", sys.executable, "--out-dir", target, source]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {path.name: path for path in target.iterdir() if path.suffix in (".whl", ".gz")}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What `make release` made (``$REDRIVE_DIST``), else what is built now."""
    given = os.environ.get("REDRIVE_DIST")
    if given:
        return {path.name: path for path in Path(given).iterdir() if path.suffix in (".whl", ".gz")}
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(made: dict[str, Path]) -> Path:
    return next(path for name, path in made.items() if name.endswith(".whl"))


class Place(NamedTuple):
    """An environment with the wheel in it, and a folder to work in; the checkout is nowhere in either."""

    python: Path
    folder: Path

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        unwanted = ("AIRFLOW", "REDRIVE_", "PYTHONPATH", "VIRTUAL_ENV")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(unwanted)}
        # Spark's program is beside the Python of the tests.
        path = os.pathsep.join(
            [str(self.python.parent), kept.get("PATH", os.defpath), str(Path(sys.executable).parent)]
        )
        return subprocess.run(
            words,
            cwd=self.folder,
            env=kept | {"PATH": path, "AIRFLOW_HOME": str(self.folder), "COLUMNS": "200"} | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def redrive(self, *words: str, **environment: str) -> str:
        """What the installed command prints; it has to go well."""
        done = self.run(str(self.python.with_name("redrive")), *words, **environment)
        assert done.returncode == 0, f"redrive {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def place(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The libraries are those of the tests, lent by a path; the editable installation is not, for which that would
    have to be a folder whose ``.pth`` files are read."""
    home = tmp_path_factory.mktemp("elsewhere")
    python = home / "venv" / "bin" / "python"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, home / "venv"], check=True)
    install = [UV, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", python, wheel]
    subprocess.run(install, check=True)
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = Path(subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip())
    (own / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (home / "work").mkdir()
    return Place(python, home / "work")


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
    assert not [one for one in plain if one.startswith(("apache-airflow", "pyspark", "boto3", "psycopg", "pika"))]


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
    deadline = time.monotonic() + 30
    while shop.ask("GET", "queues/%2F/orders").get("messages") != 1:
        assert time.monotonic() < deadline, "the message is not in its queue"
        time.sleep(0.2)
    assert "everything adds up" in begun.redrive("audit", **known)
    assert (begun.folder / "var" / "redrive.db").exists()
