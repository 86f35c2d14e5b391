"""What is missing is said in one sentence, with the command that mends it."""

import sys
import tomllib

import pytest
from tests.servers import ROOT

from redrive.brokers import open_broker, registry
from redrive.errors import ExtraMissing, SettingsError
from redrive.extras import needing
from redrive.ledger.engine import Ledger
from redrive.spark import submit

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
#: The module without which a broker can't be opened.
CLIENTS = {
    "amazon_sqs": "botocore",
    "apache_pulsar": "pulsar",
    "azure_service_bus": "azure.servicebus",
    "google_pubsub": "google.pubsub_v1",
    "rabbitmq": "pika",
}


def hide(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if ``module`` were not installed, nor anything of ours that has imported it."""
    for name in list(sys.modules):
        of_an_adapter = name.startswith("redrive.brokers.") and name.count(".") == 3 and not name.endswith(".kind")
        if of_an_adapter or name == "redrive.spark.job":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.parametrize("name", sorted(CLIENTS))
def test_a_broker_without_its_client_names_the_extra_that_brings_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(CLIENTS[name], monkeypatch)
    with pytest.raises(ExtraMissing) as told:
        open_broker(name, "nowhere")
    extra = registry.kind(name).extra
    assert extra in EXTRAS
    assert str(told.value) == (
        f"broker: {name} needs {CLIENTS[name]}, which is not installed: pip install 'redrive[{extra}]'"
    )


def test_postgresql_without_its_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ExtraMissing, match=r"PostgreSQL needs psycopg.*: pip install 'redrive\[postgres\]'"):
        Ledger("postgresql://127.0.0.1/redrive")


def test_connect_without_pyspark_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    hide("pyspark.sql", monkeypatch)
    with pytest.raises(ExtraMissing, match=r"connect needs pyspark\.sql.*: pip install 'redrive\[connect\]'"):
        submit._job_function()


def test_a_package_outside_of_ours_is_told_what_it_misses_without_an_extra() -> None:
    told = pytest.raises(ExtraMissing, match=r"^broker: theirs needs theirs_client, which is not installed$")
    with told, needing("", "broker: theirs"):
        raise ModuleNotFoundError("No module named 'theirs_client'", name="theirs_client")


def test_a_module_of_ours_that_is_missing_is_a_mistake_and_no_extra() -> None:
    with pytest.raises(ModuleNotFoundError), needing("sqs", "broker: amazon_sqs"):
        raise ModuleNotFoundError("No module named 'redrive.nothing'", name="redrive.nothing")


def test_a_library_that_is_too_old_is_told_by_what_it_lacks() -> None:
    told = pytest.raises(SettingsError, match=r"can't be used: cannot import name 'spec'.*redrive\[rabbitmq\]")
    with told, needing("rabbitmq", "broker: rabbitmq"):
        raise ImportError("cannot import name 'spec' from 'pika'", name="pika")


def test_every_dependency_has_a_floor() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for one in [*project["dependencies"], *(name for extra in EXTRAS.values() for name in extra)]:
        assert ">=" in one, one
