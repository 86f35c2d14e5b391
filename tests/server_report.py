"""Says after a test run which servers it ran on: which were real, and which only stand in for a service.

A test counts for every server that one of its fixtures gave it. A new server needs a row in ``KINDS``;
tests/unit/test_server_report.py finds those without.
"""

import importlib.metadata
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import pytest

from tests.elasticmq_server import library
from tests.servers import ROOT, Postgres, RabbitMQ

OURS = "of this repository"


class Kind(NamedTuple):
    """What a server is to somebody who reads a test report."""

    broker: str
    name: str
    real: bool  # the vendor's own server; else something that speaks its protocol
    version: Callable[[], str]


def _ministack_version() -> str:
    found = importlib.metadata.distributions(
        name="ministack", path=[str(p) for p in (ROOT / ".venv-ministack").glob("lib/python*/site-packages")]
    )
    return next((one.version for one in found), "")


def _elasticmq_version() -> str:
    return next((_number(jar.name, after="2.13-") for jar in library().glob("elasticmq-server_*.jar")), "")


def _pulsar_version() -> str:
    from tests.pulsar_server import _home  # noqa: PLC0415 - knows where it is installed

    return _number(_home().name)


def _pstest_version() -> str:
    modules = (ROOT / "tests" / "stand_ins" / "pstest" / "go.mod").read_text()
    return _number(modules, after="cloud.google.com/go/pubsub/v2 v")


def _postgres_version() -> str:
    told = subprocess.run([Postgres._binary("postgres"), "--version"], capture_output=True, text=True, check=True)
    return _number(told.stdout)


def _rabbitmq_version() -> str:
    return _number(max(path.name for path in RabbitMQ.home.glob("rabbitmq_server-*")))


def _number(text: str, after: str = "") -> str:
    """The first version number in ``text`` behind ``after``; empty if there is none."""
    found = re.search(re.escape(after) + r"[^\d\n]*(\d+(?:\.\d+)+)", text)
    return found[1] if found else ""


#: By the class's full name, so that a run without a server imports nothing of it.
KINDS: dict[str, Kind] = {
    "tests.servers.Ministack": Kind("Amazon SQS", "ministack", False, _ministack_version),
    "tests.elasticmq_server.ElasticMq": Kind("Amazon SQS", "ElasticMQ", False, _elasticmq_version),
    "tests.contract.scripted_sqs.ScriptedSqs": Kind("Amazon SQS", "scripted answers", False, lambda: OURS),
    "tests.servers.RabbitMQ": Kind("RabbitMQ", "RabbitMQ", True, _rabbitmq_version),
    "tests.pulsar_server.Pulsar": Kind("Apache Pulsar", "Pulsar standalone", True, _pulsar_version),
    "tests.stand_ins.pubsub.PubSubServer": Kind("Google Pub/Sub", "gRPC stand-in", False, lambda: OURS),
    "tests.stand_ins.pstest_server.Pstest": Kind("Google Pub/Sub", "pstest", False, _pstest_version),
    "tests.stand_ins.service_bus.server.ServiceBusStandIn": Kind(
        "Azure Service Bus", "AMQP stand-in", False, lambda: OURS
    ),
    "tests.servers.Postgres": Kind("ledger", "PostgreSQL", True, _postgres_version),
}


def kinds_of(values: Iterable[object]) -> set[str]:
    """Which rows of ``KINDS`` these fixture values are."""
    names = (f"{kind.__module__}.{kind.__qualname__}" for value in values for kind in type(value).__mro__)
    return KINDS.keys() & set(names)


def lines(tests: Counter[str]) -> list[str]:
    """The report: a line per server, real ones marked, with the number of ``tests`` that had it."""
    rows = [("stands for", "server", "version", "which is", "tests")]
    for name, kind in KINDS.items():
        if tests[name]:
            word = "real" if kind.real else "a stand-in"
            rows.append((kind.broker, kind.name, _version(kind), word, str(tests[name])))
    if len(rows) == 1:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[4]]) for row in rows]


def _version(kind: Kind) -> str:
    try:
        return kind.version() or "unknown"
    except Exception:
        return "unknown"


class ServerReport:
    """The pytest plugin."""

    def __init__(self) -> None:
        self.tests: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """The test has run, and its fixtures still have their values."""
        values = list(getattr(item, "funcargs", {}).values())
        # Fixtures that were asked for by name at run time are only here.
        for fixture in getattr(getattr(item, "_request", None), "_fixture_defs", {}).values():
            values += (fixture.cached_result or ())[:1]
        self.tests.update(kinds_of(values))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A worker tells whoever it works for."""
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output["servers"] = dict(self.tests)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker has told; one that died has not."""
        self.tests.update(getattr(node, "workeroutput", {}).get("servers", {}))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if told := lines(self.tests):
            terminalreporter.section("servers that tests ran on")
            for line in told:
                terminalreporter.write_line(line)


def no_skip(report: pytest.TestReport, environ: Mapping[str, str]) -> pytest.TestReport:
    """With ``REDRIVE_REQUIRE_BROKERS=all`` a test that skips has failed: the promise was not checked.

    Not so one that needs data from outside of this repository, which no machine can install.
    """
    expected = hasattr(report, "wasxfail") or "outside_data" in report.keywords
    if environ.get("REDRIVE_REQUIRE_BROKERS") == "all" and report.skipped and not expected:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"  # type: ignore[assignment]
        report.longrepr = f"{reason}: nothing may skip with REDRIVE_REQUIRE_BROKERS=all"
    return report
