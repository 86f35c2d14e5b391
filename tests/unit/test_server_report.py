"""The report says truly what tests ran on, and nothing skips in silence."""

import ast
import re
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.server_report import KINDS, ServerReport, kinds_of, lines, no_skip
from tests.servers import ROOT, Ministack, RabbitMQ, Server


def classes() -> Iterator[tuple[str, list[str]]]:
    """Every class in tests/ by its full name, with the names of its bases."""
    for path in (ROOT / "tests").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                yield f"{module}.{node.name}", [ast.unparse(base) for base in node.bases]


def test_every_server_has_a_row() -> None:
    known = dict(classes())
    servers = {name for name, bases in known.items() if {"Server", "servers.Server"} & set(bases)}

    assert servers <= KINDS.keys()
    assert KINDS.keys() <= known.keys()


def test_a_line_says_what_stands_for_what() -> None:
    told = lines(Counter({"tests.servers.RabbitMQ": 68, "tests.servers.Ministack": 1}))

    assert [re.sub(r"  +", "|", line) for line in told[:1]] == ["stands for|server|version|which is|tests"]
    assert re.match(r"Amazon SQS +ministack +\S+ +a stand-in +1$", told[1])
    assert re.match(r"RabbitMQ +RabbitMQ +\S+ +real +68$", told[2])
    assert len(told) == 3


def test_a_run_without_servers_has_nothing_to_say() -> None:
    assert lines(Counter()) == []


def test_a_version_that_can_not_be_found_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise FileNotFoundError

    monkeypatch.setitem(KINDS, "tests.servers.Ministack", KINDS["tests.servers.Ministack"]._replace(version=broken))

    assert "unknown" in lines(Counter({"tests.servers.Ministack": 1}))[1]


class Item:
    """A test as pytest hands it to the plugin."""

    def __init__(self, **funcargs: object) -> None:
        self.funcargs = funcargs


def test_a_test_counts_for_each_of_its_servers_once() -> None:
    class Special(RabbitMQ):
        """A subclass counts as what it is a kind of."""

    report = ServerReport()
    special = object.__new__(Special)
    report.pytest_runtest_teardown(Item(rabbitmq=special, broker=special, queue="q"))  # type: ignore[arg-type]
    report.pytest_runtest_teardown(Item(sqs_server=object.__new__(Ministack)))  # type: ignore[arg-type]
    report.pytest_runtest_teardown(Item(queue="q"))  # type: ignore[arg-type]

    assert report.tests == {"tests.servers.RabbitMQ": 1, "tests.servers.Ministack": 1}
    assert kinds_of([object.__new__(Server)]) == set()


def a_report(outcome: str, **fields: object) -> pytest.TestReport:
    skipped = ("test_x.py", 7, "Skipped: no Maven here")
    report = pytest.TestReport(
        "test_x", ("test_x.py", 7, "test_x"), {}, outcome, skipped if outcome == "skipped" else None, "call"
    )  # type: ignore[call-arg, arg-type]
    vars(report).update(fields)
    return report


REQUIRED = {"REDRIVE_REQUIRE_BROKERS": "all"}


def test_a_skip_is_a_failure_where_nothing_may_skip() -> None:
    report = no_skip(a_report("skipped"), REQUIRED)

    assert report.failed
    assert "no Maven here" in str(report.longrepr)


@pytest.mark.parametrize(
    ("report", "environ"),
    [
        (a_report("skipped"), {}),
        (a_report("skipped", wasxfail="known"), REQUIRED),
        (a_report("skipped", keywords={"outside_data": 1}), REQUIRED),
        (a_report("passed"), REQUIRED),
    ],
    ids=["on-a-laptop", "expected-failure", "data-that-nothing-installs", "passed"],
)
def test_everything_else_is_left_as_it_is(report: pytest.TestReport, environ: dict[str, str]) -> None:
    before = report.outcome

    assert no_skip(report, environ).outcome == before
