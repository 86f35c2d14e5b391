"""The DAG files as the scheduler meets them: they import clean, fast, and touch nothing but one YAML file."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from redrive.airflow import DAG_FILE

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]

TWO_ROUTES = """
routes:
  orders:
    broker: amazon_sqs
    connection: sqs_demo
    sources: [{queue: orders-dlq}]
  payments:
    broker: amazon_sqs
    connection: sqs_demo
    sources: [{queue: payments-dlq}]
    schedule: null
"""

#: Parses folders as the DAG processor does, each with its configuration, and tells what that touched. The first one
#: finds a fresh interpreter.
PARSE = """
import json, os, sys, time
from airflow.dag_processing.dagbag import DagBag

seen = {"opened": [], "connected": [], "started": []}
prefixes = tuple({sys.prefix, sys.base_prefix, os.environ["AIRFLOW_HOME"], "/proc", "/usr", "/etc"})

def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        path = os.path.abspath(arguments[0])
        if not path.endswith(".py") and "__pycache__" not in path and not path.startswith(prefixes):
            seen["opened"].append(path)
    elif event in ("socket.connect", "socket.getaddrinfo", "sqlite3.connect"):
        seen["connected"].append(event)
    elif event in ("subprocess.Popen", "os.system", "os.fork"):
        seen["started"].append(event)

sys.addaudithook(watch)
engines = []
import sqlalchemy
create_engine = sqlalchemy.create_engine
sqlalchemy.create_engine = lambda *a, **k: engines.append(str(a)) or create_engine(*a, **k)
found = {}
for case, (config, folder) in json.loads(sys.argv[1]).items():
    os.environ["REDRIVE_CONFIG"] = config
    before, clock = set(sys.modules), time.process_time()
    bag = DagBag(folder)
    found[case] = {
        "seconds": time.process_time() - clock,
        "errors": bag.import_errors,
        "dags": {d.dag_id: d.schedule for d in bag.dags.values()},
        "modules": sorted(set(sys.modules) - before),
        "engines": list(engines),
        **{name: list(what) for name, what in seen.items()},
    }
print(json.dumps(found))
"""


def parse(cases: dict[str, tuple[str, Path]], folder: Path) -> dict[str, dict[str, Any]]:
    """What an interpreter finds, case by case, under a configuration in a DAG folder."""
    files = {}
    for case, (config, dags) in cases.items():
        (folder / case).mkdir()
        (folder / case / "redrive.yaml").write_text(config)
        files[case] = (str(folder / case / "redrive.yaml"), str(dags))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW__")}
    environment |= {
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "REDRIVE_HOME": str(ROOT),
        "PYTHONPATH": str(ROOT / "plugins"),
    }
    answer = subprocess.run(
        [sys.executable, "-c", PARSE, json.dumps(files)], env=environment, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    found: dict[str, dict[str, Any]] = json.loads(answer.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def all_parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What becomes of each of these."""
    folder = tmp_path_factory.mktemp("parsed")
    (folder / "two-lines").mkdir()
    (folder / "two-lines" / "dead_letters.py").write_text(DAG_FILE)
    ours = ROOT / "dags"
    cases = {
        "two routes": (TWO_ROUTES, ours),
        "two lines": (TWO_ROUTES, folder / "two-lines"),
        "a bad one": (TWO_ROUTES.replace("schedule: null", "schedule: perhaps"), ours),
        "all bad": (TWO_ROUTES.replace("amazon_sqs", "pigeons"), ours),
        "no routes": ("routes: {}", ours),
    }
    return parse(cases, folder)


@pytest.fixture
def parsed(all_parsed: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What two routes become."""
    return all_parsed["two routes"]


def test_every_file_imports(parsed: dict[str, Any]) -> None:
    assert parsed["errors"] == {}


def test_there_is_one_dag_per_route_and_two_for_all(parsed: dict[str, Any]) -> None:
    assert set(parsed["dags"]) == {"redrive_orders", "redrive_payments", "redrive_review", "redrive_audit"}


def test_two_lines_are_a_whole_dag_file(all_parsed: dict[str, dict[str, Any]]) -> None:
    page = (ROOT / "docs" / "airflow.md").read_text()
    assert DAG_FILE in page.replace("   ", "")
    assert len(DAG_FILE.replace("\n\n", "\n").splitlines()) == 2
    found = all_parsed["two lines"]
    assert found["errors"] == {}
    assert set(found["dags"]) == {"redrive_orders", "redrive_payments", "redrive_review", "redrive_audit"}


def test_a_route_without_a_schedule_is_not_scheduled(parsed: dict[str, Any]) -> None:
    assert parsed["dags"]["redrive_orders"] == "*/10 * * * *"
    assert parsed["dags"]["redrive_payments"] is None


def test_importing_opens_no_socket_no_database_and_starts_no_process(parsed: dict[str, Any]) -> None:
    assert parsed["connected"] == []
    assert parsed["engines"] == []
    assert parsed["started"] == []


def test_importing_reads_the_configuration_and_which_brokers_there_are(parsed: dict[str, Any]) -> None:
    # Another test of this process may have read the entry points already.
    assert {Path(path).name for path in parsed["opened"]} - {"entry_points.txt"} == {"redrive.yaml"}


@pytest.mark.parametrize("module", ["botocore", "pyspark", "pyarrow", "pandas", "redrive.ledger", "redrive.stages"])
def test_importing_does_not_pay_for_what_tasks_need(parsed: dict[str, Any], module: str) -> None:
    assert module not in parsed["modules"]


def test_importing_takes_less_than_two_seconds_of_processor_time(parsed: dict[str, Any], tmp_path: Path) -> None:
    """Each time for itself; on a busy machine the same work can take more, so that a slow one is looked at again."""
    seconds = [parsed["seconds"]]
    while min(seconds) >= 2 and len(seconds) < 3:
        folder = tmp_path / str(len(seconds))
        folder.mkdir()
        seconds.append(parse({"again": (TWO_ROUTES, ROOT / "dags")}, folder)["again"]["seconds"])
    assert min(seconds) < 2


def test_a_bad_configuration_is_an_import_error_that_names_the_key(all_parsed: dict[str, dict[str, Any]]) -> None:
    found = all_parsed["all bad"]
    assert not {"redrive_orders", "redrive_payments"} & set(found["dags"])
    assert all("routes.payments.broker" in error for error in found["errors"].values())
    assert found["errors"]


def test_a_bad_route_leaves_the_others_standing(all_parsed: dict[str, dict[str, Any]]) -> None:
    found = all_parsed["a bad one"]
    assert found["errors"] == {}
    assert found["dags"] == all_parsed["two routes"]["dags"], "also the bad one, which nothing schedules"


def test_no_routes_are_no_error(all_parsed: dict[str, dict[str, Any]]) -> None:
    found = all_parsed["no routes"]
    assert found["errors"] == {}
    assert set(found["dags"]) == {"redrive_review", "redrive_audit"}


def test_airflow_does_not_import_the_library_as_plugins() -> None:
    # Without these lines Airflow imports every module below plugins/ under its bare file name, and `errors`
    # exists twice, so that `except` misses.
    assert {"redrive/", "redrive_ui/"} <= set((ROOT / "plugins" / ".airflowignore").read_text().split())
