"""A run that finds nothing is over at once: it loads nothing that only messages need."""

import subprocess
import sys
from pathlib import Path

import pytest

IDLE = """
import sys
from pathlib import Path
from redrive import settings
from redrive.brokers.memory import MemoryBroker, MemoryWorld
from redrive.ledger import schema
from redrive.ledger.engine import Ledger
from redrive.stages import pipeline
from redrive.stages.context import utc_now

text = "routes: {orders: {broker: memory, connection: shop, sources: [{queue: dead}], destination: {queue: orders}}}"
found = settings.parse(text, env={}, root=Path(sys.argv[1]))
schema.upgrade(Ledger(found.database), utc_now())
world = MemoryWorld()
world.create("dead")
world.create("orders")
run = pipeline.begin(found, "orders", trigger="test", holder="test")
for stage in ("observe", "drain", "prepare_classification", "load", "resolve", "plan", "deliver", "escalate", "report"):
    getattr(pipeline, stage)(found, run, broker=MemoryBroker(world))
pipeline.finish(found, run, "succeeded")
print(*sorted({module if module.startswith("redrive.") else module.partition(".")[0] for module in sys.modules}))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The packages that an idle run has loaded, and our own modules."""
    folder: Path = tmp_path_factory.mktemp("idle")
    (folder / "var").mkdir()
    done = subprocess.run([sys.executable, "-c", IDLE, str(folder)], check=True, capture_output=True, text=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("package", ["airflow", "botocore", "jinja2", "numpy", "pandas", "pyarrow", "pyspark"])
def test_an_idle_run_does_not_load_what_messages_need(loaded: set[str], package: str) -> None:
    assert package not in loaded


def test_an_idle_run_compiles_no_rules(loaded: set[str]) -> None:
    """Those of causes and groups take a quarter of a second."""
    found = {module for module in loaded if module.startswith("redrive.classification.")}
    assert "redrive.classification.causes" in found
    assert not found & {f"redrive.classification.{name}" for name in ("rules", "grouping", "explain", "templates")}


def test_an_idle_run_loads_the_ledger(loaded: set[str]) -> None:
    assert "sqlalchemy" in loaded
