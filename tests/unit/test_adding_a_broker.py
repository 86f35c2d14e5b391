"""What a sixth adapter needs is told where its author looks: in the port, in the contract suite, on the page."""

import ast
import inspect
import re
from types import ModuleType

import pytest
from tests.contract import broker_contract
from tests.contract.broker_contract import BrokerContract
from tests.servers import ROOT

from redrive.brokers import base, registry
from redrive.brokers.base import Broker

PAGE = (ROOT / "docs" / "adding-a-broker.md").read_text()
#: Words that the tests use, made of the fixtures.
OWN_WORDS = {"queue", "take", "send"}


def fields(module: ModuleType, name: str) -> list[tuple[str, bool]]:
    """The fields of class ``name``, and whether the line above each is a ``#:`` comment."""
    lines = inspect.getsource(module).splitlines()
    (found,) = [one for one in ast.parse("\n".join(lines)).body if isinstance(one, ast.ClassDef) and one.name == name]
    told = []
    for one in found.body:
        if isinstance(one, ast.AnnAssign | ast.Assign):
            target = one.target if isinstance(one, ast.AnnAssign) else one.targets[0]
            assert isinstance(target, ast.Name)
            told.append((target.id, lines[one.lineno - 2].lstrip().startswith("#: ")))
    return told


@pytest.mark.parametrize(
    ("module", "name"), [(base, "Capabilities"), (base, "BrokerKind"), (broker_contract, "BrokerContract")],
    ids=["capabilities", "kind", "contract"],
)  # fmt: skip
def test_every_field_that_an_adapter_fills_is_explained_above_it(module: ModuleType, name: str) -> None:
    found = fields(module, name)
    assert len(found) > 5
    assert [field for field, explained in found if not explained] == []


@pytest.mark.parametrize("method", [name for name in vars(Broker) if not name.startswith("_")])
def test_every_method_of_the_protocol_is_explained(method: str) -> None:
    assert inspect.getdoc(getattr(Broker, method))


def test_everything_that_a_harness_supplies_is_explained() -> None:
    source = ast.parse(inspect.getsource(BrokerContract)).body[0]
    assert isinstance(source, ast.ClassDef)
    supplied = {
        one.name: ast.get_docstring(one)
        for one in source.body
        if isinstance(one, ast.FunctionDef) and not one.name.startswith(("_", "test_")) and one.name not in OWN_WORDS
    }
    assert {"broker", "make_queue", "left", "delivered"} <= set(supplied)
    assert [name for name, explained in supplied.items() if not explained] == []


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
    assert "`FAILURE_HEADERS` in `kind.py` is" in PAGE
    for name in set(registry.names()) - {"memory"}:
        package = registry.kind(name).adapter.split(".")[2]
        assert "\nFAILURE_HEADERS = " in (ROOT / "plugins/redrive/brokers" / package / "kind.py").read_text()
