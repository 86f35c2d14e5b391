"""What Airflow pays for many routes: ``python -m benchmarks.parsing [--routes 2000]``.

Seconds of computing, each in a new interpreter: to parse ``dags/redrive_routes.py`` as the DAG processor does, with the
imports of ours; of that to read the configuration; the same with one route broken, and for a task of one route; and
what the DAG processor does after a parse, which is to serialize every DAG. The goal is 10 seconds for 2,000 routes.
"""

import os
import sys
import tempfile
from pathlib import Path

from benchmarks import options
from benchmarks.processes import in_a_process
from benchmarks.results import Figure, Table, finish

ROOT = Path(__file__).parents[1]
#: Seconds for 2,000 routes; the goal grows with the routes, but never below what importing takes.
GOAL, GOAL_ROUTES = 10.0, 2_000

_ROUTE = """
  route_{number}:
    broker: amazon_sqs
    connection: sqs_{number}
    sources:
      - {{queue: queue-{number}-dlq}}
    destination: {{queue: queue-{number}}}
    evidence: ["attribute:error"]
"""
_BROKEN = "    retries: 3\n"

_PARSE = """
import json, sys, time
begun = time.process_time()
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.definitions._internal.dag_parsing_context import _airflow_parsing_context_manager
from airflow.serialization.serialized_objects import DagSerialization
found = {"importing Airflow": time.process_time() - begun}
with _airflow_parsing_context_manager(dag_id=sys.argv[2] or None, task_id=None):
    begun = time.process_time()
    bag = DagBag(sys.argv[1])
    found["parse"] = time.process_time() - begun
assert not bag.import_errors, bag.import_errors
found["dags"] = len(bag.dags)
from redrive import settings
begun = time.process_time()
settings.load()
found["configuration"] = time.process_time() - begun
if not sys.argv[2]:
    begun = time.process_time()
    for dag in bag.dags.values():
        DagSerialization.to_dict(dag)
    found["serialize"] = time.process_time() - begun
print(json.dumps(found))
"""


def main(arguments: list[str] | None = None) -> int:
    """Measure and print a table; 1 when a parse takes longer than its goal."""
    parser = options.parser("parsing", __doc__)
    parser.add_argument("--routes", type=int, default=GOAL_ROUTES)
    asked = parser.parse_args(arguments)
    _measured(1)  # not counted: the first Python on a new machine compiles what it imports
    whole = _measured(asked.routes)
    broken = _measured(asked.routes, broken=True)
    task = _measured(asked.routes, only=f"redrive_route_{asked.routes // 2}")
    if (whole["dags"], broken["dags"], task["dags"]) != (asked.routes, asked.routes, 1):
        raise SystemExit(f"DAGs are missing: {whole['dags']}, {broken['dags']}, {task['dags']}")
    goal = GOAL * max(1.0, asked.routes / GOAL_ROUTES)
    rows = (
        ("parse", Figure(whole["parse"], most=goal)),
        ("of that, the configuration", Figure(whole["configuration"])),
        ("parse with one route broken", Figure(broken["parse"], most=goal)),
        ("parse for a task of one route", Figure(task["parse"])),
        ("serialize, after a parse", Figure(whole["serialize"])),
        ("import Airflow, before the first", Figure(whole["importing Airflow"])),
    )
    return finish(asked, "parsing", Table(("what", f"{asked.routes:,} routes, s"), rows))


def _measured(routes: int, *, broken: bool = False, only: str = "") -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("REDRIVE_BENCH_DIR")) as folder:
        text = "routes:" + "".join(_ROUTE.format(number=number) for number in range(routes))
        file = Path(folder, "redrive.yaml")
        file.write_text(text + _BROKEN * broken)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW__")} | {
            "AIRFLOW_HOME": f"{folder}/airflow",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "600",
            "REDRIVE_CONFIG": str(file),
            "PYTHONPATH": str(ROOT / "plugins"),
        }
        return in_a_process(  # type: ignore[no-any-return]
            *("-c", _PARSE, str(ROOT / "dags" / "redrive_routes.py"), only), env=environment
        )


if __name__ == "__main__":
    sys.exit(main())
