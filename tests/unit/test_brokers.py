"""What brokers say of themselves before there is a connection, and that nothing else says it for them."""

import inspect
import re
import subprocess
import sys
import time
import tomllib
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from tests.servers import ROOT

import redrive.policy
import redrive.settings
from redrive.brokers import clock, registry
from redrive.classification import cases, causes
from redrive.classification.causes import Cause
from redrive.settings import Route
from redrive.settings.page import configuration_page

OURS = ("amazon_sqs", "apache_pulsar", "azure_service_bus", "google_pubsub", "memory", "rabbitmq")


def test_ours_are_offered_as_anybodys() -> None:
    """`make setup` installs what pyproject.toml says; an environment that is older knows nothing of it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert tuple(project["entry-points"][registry.GROUP]) == OURS
    assert set(OURS) <= set(registry.names())


@pytest.mark.parametrize("name", OURS)
def test_a_kind_names_its_adapter(name: str) -> None:
    module, _, attribute = registry.kind(name).adapter.partition(":")
    assert callable(getattr(import_module(module), attribute).open)


@pytest.mark.parametrize("name", ["amazon_sqs", "apache_pulsar", "google_pubsub"])
def test_a_lease_runs_out_while_the_machine_is_suspended(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what is deleted after it counts as gone, though somebody else may hold it by then."""
    module, _, attribute = registry.kind(name).adapter.partition(":")
    by = inspect.signature(getattr(import_module(module), attribute)).parameters["monotonic"].default
    suspended = {time.CLOCK_MONOTONIC: 5.0, getattr(time, "CLOCK_BOOTTIME", None): 4000.0}
    monkeypatch.setattr(clock.time, "clock_gettime", suspended.__getitem__)
    assert by() == (4000.0 if hasattr(time, "CLOCK_BOOTTIME") else 5.0)


@pytest.mark.parametrize("name", OURS)
def test_no_client_library_is_imported_before_a_route_is_opened(name: str) -> None:
    code = (
        f"import sys; from redrive.brokers import registry; registry.kind({name!r}); import redrive.settings;"
        "heavy = {'botocore', 'pika', 'azure.servicebus', 'google.pubsub_v1', 'pulsar', 'grpc'} & set(sys.modules);"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "module", [causes, cases, redrive.policy, redrive.settings], ids=lambda module: module.__name__
)
def test_the_core_names_no_broker(module: ModuleType) -> None:
    source = Path(inspect.getfile(module))
    files = sorted(source.parent.glob("*.py")) if source.name == "__init__.py" else [source]
    others = {"memory"}  # a word of its own too
    words = {word for name in OURS for word in (name, registry.kind(name).title) if word not in others}
    for file in files:
        text = file.read_text()
        found = {word for word in words if re.search(rf"(?<![a-z]){re.escape(word)}(?![a-z])", text, re.IGNORECASE)}
        assert not found, f"{file.name} names {found}"
        assert '"memory"' not in text, file.name


@pytest.mark.parametrize(
    ("broker", "knob"),
    [
        ("amazon_sqs", "VisibilityTimeout"),
        ("google_pubsub", "max_lease_duration"),
        ("google_pubsub", "max_messages"),
        ("rabbitmq", "consumer_timeout"),
        ("azure_service_bus", "LockDuration"),
        ("apache_pulsar", "unacked_messages_timeout_ms"),
    ],
)
def test_advice_on_an_expired_lease_names_the_brokers_knobs(broker: str, knob: str) -> None:
    assert knob in registry.advice(Cause.LEASE_EXPIRED, broker)
    assert knob not in registry.advice(Cause.LEASE_EXPIRED)


def test_a_broker_that_is_not_here_any_more_gets_the_general_advice() -> None:
    assert registry.advice(Cause.LEASE_EXPIRED, "carrier_pigeon") == causes.advice(Cause.LEASE_EXPIRED)


def test_times_are_evidence_where_no_reason_is_given_and_times_are_told() -> None:
    told = {name for name in OURS if registry.kind(name).capabilities.times_tell_leases}
    assert told == {"amazon_sqs", "google_pubsub"}
    assert not any(registry.kind(name).capabilities.gives_reason for name in told)


@pytest.mark.parametrize("name", OURS)
def test_what_a_broker_says_of_a_key_is_in_the_configurations_page(name: str) -> None:
    page = configuration_page()
    for key, words in registry.kind(name).words.items():
        last = key.rpartition(".")[2]
        rows = [line for line in page.splitlines() if line.startswith(f"| `{last}` |")]
        assert any(words in row for row in rows), key


def test_every_name_of_ours_has_a_package_a_page_and_a_contract_test() -> None:
    for name in set(OURS) - {"memory"}:
        assert (ROOT / f"docs/brokers/{name}.md").is_file()
        assert (ROOT / f"tests/contract/test_{name}.py").is_file()


def test_a_source_is_named_as_the_broker_does() -> None:
    route = {"broker": "azure_service_bus", "connection": "bus", "sources": [{"queue": "orders"}]}
    assert Route.model_validate(route).sources[0].queue == "orders/$DeadLetterQueue"
    route["broker"] = "rabbitmq"
    assert Route.model_validate(route).sources[0].queue == "orders"


def test_what_a_drain_received_that_died_is_hidden_for_as_long_as_the_broker_says() -> None:
    asked = timedelta(minutes=5)
    hidden = {name: registry.kind(name).capabilities.hidden_for(asked) for name in ("amazon_sqs", "google_pubsub")}
    assert hidden == {"amazon_sqs": asked, "google_pubsub": timedelta(minutes=20)}, "an ack deadline, and a rest"
    assert registry.kind("azure_service_bus").capabilities.hidden_for(timedelta(hours=1)) == timedelta(minutes=5)
