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

#: Parses the folder as the DAG processor does, in a fresh interpreter, and tells what that touched.
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
before, clock = set(sys.modules), time.process_time()
bag = DagBag(sys.argv[1])
print(json.dumps({
    "seconds": time.process_time() - clock,
    "errors": bag.import_errors,
    "dags": {d.dag_id: d.schedule for d in bag.dags.values()},
    "modules": sorted(set(sys.modules) - before),
    "engines": engines,
    **seen,
}))
"""


def parse(config: str, folder: Path, dags: Path = ROOT / "dags") -> dict[str, Any]:
    """What a fresh interpreter finds in the DAG folder under the configuration ``config``."""
    file = folder / "redrive.yaml"
    file.write_text(config)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW__")}
    environment |= {
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "REDRIVE_HOME": str(ROOT),
        "REDRIVE_CONFIG": str(file),
        "PYTHONPATH": str(ROOT / "plugins"),
    }
    answer = subprocess.run(
        [sys.executable, "-c", PARSE, str(dags)], env=environment, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two routes become."""
    return parse(TWO_ROUTES, tmp_path_factory.mktemp("parsed"))


def test_every_file_imports(parsed: dict[str, Any]) -> None:
    assert parsed["errors"] == {}


def test_there_is_one_dag_per_route_and_two_for_all(parsed: dict[str, Any]) -> None:
    assert set(parsed["dags"]) == {"redrive_orders", "redrive_payments", "redrive_review", "redrive_audit"}


def test_two_lines_are_a_whole_dag_file(tmp_path: Path) -> None:
    (tmp_path / "dags").mkdir()
    page = (ROOT / "docs" / "airflow.md").read_text()
    assert DAG_FILE in page.replace("   ", "")
    assert len(DAG_FILE.replace("\n\n", "\n").splitlines()) == 2
    (tmp_path / "dags" / "dead_letters.py").write_text(DAG_FILE)
    found = parse(TWO_ROUTES, tmp_path, tmp_path / "dags")
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


@pytest.mark.parametrize("module", ["boto3", "pyspark", "pyarrow", "pandas", "redrive.ledger", "redrive.stages"])
def test_importing_does_not_pay_for_what_tasks_need(parsed: dict[str, Any], module: str) -> None:
    assert module not in parsed["modules"]


def test_importing_takes_less_than_two_seconds_of_processor_time(parsed: dict[str, Any]) -> None:
    assert parsed["seconds"] < 2


def test_a_bad_configuration_is_an_import_error_that_names_the_key(tmp_path: Path) -> None:
    found = parse(TWO_ROUTES.replace("schedule: null", "schedule: perhaps"), tmp_path)
    assert not {"redrive_orders", "redrive_payments"} & set(found["dags"])
    (error,) = found["errors"].values()
    assert "routes.payments.schedule" in error


def test_no_routes_are_no_error(tmp_path: Path) -> None:
    found = parse("routes: {}", tmp_path)
    assert found["errors"] == {}
    assert set(found["dags"]) == {"redrive_review", "redrive_audit"}


def test_airflow_does_not_import_the_library_as_plugins() -> None:
    # Without these lines Airflow imports every module below plugins/ under its bare file name, and `errors`
    # exists twice, so that `except` misses.
    assert {"redrive/", "redrive_ui/"} <= set((ROOT / "plugins" / ".airflowignore").read_text().split())
