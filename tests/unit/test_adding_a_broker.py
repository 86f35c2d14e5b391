"""docs/adding-a-broker.md tells all that a sixth adapter needs: held to the code, so that it stays so."""

import dataclasses
import inspect
import re

import pytest
from tests.contract.broker_contract import BrokerContract
from tests.servers import ROOT

from redrive import brokers
from redrive.brokers.base import Broker, Capabilities

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


@pytest.mark.parametrize("kind", sorted(set(brokers.KINDS) - {"memory"}))
def test_every_place_that_knows_an_adapter_by_name_is_listed(kind: str) -> None:
    """Whoever adds the sixth finds the places where the fifth is."""
    places = {
        str(path.relative_to(ROOT))
        for path in [*ROOT.glob("plugins/redrive/**/*.py"), ROOT / "tests/unit/test_causes.py"]
        if "demo" not in path.parts and re.search(rf'"{kind}"', path.read_text())
    }
    listed = set(re.findall(r"`((?:plugins|tests)/[\w/.]+\.py)`", PAGE))

    missing = {place for place in places - listed if not re.search(r"/brokers/(?!__init__)", place)}

    assert not missing


def test_the_lists_of_failure_headers_are_where_the_page_says() -> None:
    rows = re.findall(r"`(FAILURE_\w+)` in `(\w+\.py)`", PAGE)

    assert len(rows) == len(set(brokers.KINDS) - {"memory"})
    for name, module in rows:
        assert f"\n{name} = " in (ROOT / "plugins/redrive/brokers" / module).read_text()


def test_the_words_of_the_suite_are_documented_there() -> None:
    for name in ("left", "delivered"):
        assert inspect.getdoc(getattr(BrokerContract, name))
