"""docs/adding-a-broker.md tells all that a sixth adapter needs: held to the code, so that it stays so."""

import dataclasses
import inspect
import re

import pytest
from tests.contract.broker_contract import BrokerContract
from tests.servers import ROOT

from redrive.brokers import registry
from redrive.brokers.base import Broker, BrokerKind, Capabilities

PAGE = (ROOT / "docs" / "adding-a-broker.md").read_text()
FENCED = re.compile(r"```.*?```", re.DOTALL)
CODE = set(re.findall(r"[A-Za-z_]\w*", " ".join(re.findall(r"`([^`\n]+)`", FENCED.sub("", PAGE)))))
#: Words that the tests use, made of the fixtures.
OWN_WORDS = {"queue", "take", "send"}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Capabilities)])
def test_every_capability_is_explained(field: str) -> None:
    assert field in CODE


@pytest.mark.parametrize("method", [name for name in vars(Broker) if not name.startswith("_")])
def test_every_method_of_the_protocol_is_explained(method: str) -> None:
    assert method in CODE


@pytest.mark.parametrize(
    "name", [name for name in vars(BrokerContract) if not name.startswith(("_", "test_")) and name not in OWN_WORDS]
)
def test_everything_that_a_harness_supplies_is_explained(name: str) -> None:
    assert name in CODE


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(BrokerKind)])
def test_everything_that_a_kind_says_is_explained(field: str) -> None:
    assert field in CODE


@pytest.mark.parametrize("name", sorted(set(registry.names()) - {"memory"}))
def test_nothing_but_its_folder_and_packaging_knows_an_adapter_by_name(name: str) -> None:
    """Whoever adds the sixth touches no file of ours; the demo is one of a broker, and says so."""
    package = registry.kind(name).adapter.split(".")[2]
    places = {
        str(path.relative_to(ROOT))
        for path in ROOT.glob("plugins/redrive*/**/*.py")
        if "demo" not in path.parts and package not in path.parts and re.search(rf'"{name}"', path.read_text())
    }
    assert not places


def test_the_lists_of_failure_headers_are_where_the_page_says() -> None:
    assert "The list is `FAILURE_HEADERS` in the folder's `kind.py`" in PAGE
    for name in set(registry.names()) - {"memory"}:
        package = registry.kind(name).adapter.split(".")[2]
        assert "\nFAILURE_HEADERS = " in (ROOT / "plugins/redrive/brokers" / package / "kind.py").read_text()


def test_the_words_of_the_suite_are_documented_there() -> None:
    for name in ("left", "delivered"):
        assert inspect.getdoc(getattr(BrokerContract, name))
