"""SIGKILL at every point of a run where it leaves a trace outside of its process: a broker call, a commit, a file.

After each kill another process takes over. Nothing may be lost, nothing doubled in silence, at most one confirm window
may be unknown, and everything must add up; :meth:`Scenario.verify` says it in detail.
"""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive.ledger.dialects import Sqlite
from redrive.stages import open_batch
from tests.faults.crash import Death, run_child, telling
from tests.faults.scenario import Scenario
from tests.servers import Postgres
from tests.workshop import Workshop

# Many runs, each in processes of its own: how long they take depends on what else the machine does.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# The points are shared out between tests, so that they can run side by side.
PARTS = 8


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return Scenario(tmp_path_factory.mktemp("scenario"))


@pytest.fixture(scope="module")
def resending(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    """Where a window has to be confirmed before the next is sent."""
    return Scenario(tmp_path_factory.mktemp("resending"), kind=Workshop, on_unknown="resend")


def kill_and_verify(scenario: Scenario, folder: Path, fatal: int, database: str | None = None) -> Death:
    """Kill a run at its ``fatal``-th point, let another one take over, and verify."""
    shop = scenario.start(folder, database)
    try:
        death = run_child(shop.world, scenario.whole_run(shop), fatal=fatal)
        assert not death.error, death.error
        scenario.complete(shop)
        try:
            scenario.verify(shop, kills=1 if death.signal else 0, resent=scenario.route.get("on_unknown") == "resend")
        except AssertionError as problem:
            raise AssertionError(f"killed at point {fatal}, {death.last}: {problem}") from problem
        return death
    finally:
        shop.ledger.close()


@pytest.fixture(scope="module")
def points(scenario: Scenario, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Those of an undisturbed run."""
    return points_of(scenario, tmp_path_factory.mktemp("whole") / "shop")


def points_of(scenario: Scenario, folder: Path) -> list[str]:
    shop = scenario.start(folder)
    points = run_child(shop.world, scenario.whole_run(shop)).points
    shop.ledger.close()
    return points


@pytest.mark.parametrize("part", range(PARTS))
def test_a_kill_at_any_point_of_a_run_loses_and_doubles_nothing(
    scenario: Scenario, points: list[str], tmp_path: Path, part: int
) -> None:
    assert len(points) > 150, "the run has that many points; fewer mean that the hooks no longer see them"
    assert {"drain", "load", "plan", "deliver", "escalate"} <= {point.partition(":")[0] for point in points}
    for fatal in telling(points)[part::PARTS]:
        death = kill_and_verify(scenario, tmp_path / str(fatal), fatal)
        assert (death.signal, death.last) == (signal.SIGKILL, points[fatal])


def test_unknown_sends_are_repeated_where_the_route_says_so(resending: Scenario, tmp_path: Path) -> None:
    points = points_of(resending, tmp_path / "whole")
    for fatal in telling(points):
        if points[fatal].startswith("deliver:"):
            assert kill_and_verify(resending, tmp_path / str(fatal), fatal).signal == signal.SIGKILL


def test_whoever_takes_over_may_be_killed_too(scenario: Scenario, tmp_path: Path) -> None:
    dice = random.Random(20_251_121)
    for number in range(12):
        shop = scenario.start(tmp_path / str(number))
        deaths = []
        for _ in range(3):
            deaths.append(run_child(shop.world, scenario.whole_run(shop), fatal=dice.randrange(180)))
            assert not deaths[-1].error, deaths[-1].error
            shop.advance(minutes=30)
        scenario.complete(shop)
        try:
            scenario.verify(shop, kills=3)
        except AssertionError as problem:
            raise AssertionError(f"killed at {', then '.join(death.last for death in deaths)}: {problem}") from problem
        shop.ledger.close()


@pytest.mark.server
def test_a_kill_with_the_ledger_on_postgresql_loses_and_doubles_nothing(
    postgres: Postgres, postgres_database: str, points: list[str], tmp_path: Path
) -> None:
    scenario = Scenario(tmp_path / "scenario", postgres_database)
    for fatal in telling(points)[::8]:
        database = postgres.copy_database(postgres_database)
        try:
            kill_and_verify(scenario, tmp_path / str(fatal), fatal, database)
        finally:
            postgres.drop_database(database)


def test_a_kill_between_the_settle_calls_of_one_batch_doubles_nothing(
    scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_batch, "SETTLE_AT_ONCE", 3)
    points = points_of(scenario, tmp_path / "whole")
    at = [number for number, point in enumerate(points) if point == "drain: after settle"]
    assert len(at) >= 6
    for fatal in at:
        kill_and_verify(scenario, tmp_path / str(fatal), fatal)


@pytest.mark.parametrize("rows", [0, 1, 9, 15])
def test_a_kill_in_the_middle_of_a_load_loads_nothing_and_the_next_one_everything(
    scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    bulk = Sqlite.bulk

    def die_on_the_way(dialect: Sqlite, connection: Any, table: str, columns: Any, loaded: Any) -> None:
        def until_death() -> Iterator[Any]:
            for number, row in enumerate(loaded):
                if number == rows and os.getpid() != test:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield row

        bulk(dialect, connection, table, columns, until_death() if table == "incoming" else loaded)

    test = os.getpid()
    monkeypatch.setattr(Sqlite, "bulk", die_on_the_way)
    shop = scenario.start(tmp_path / "shop")
    before = shop.states()
    death = run_child(shop.world, scenario.whole_run(shop))
    assert death.signal == signal.SIGKILL
    assert death.last.startswith("load:")
    assert sum(shop.states().values()) == sum(before.values())
    assert shop.query("select staged from message_balance") == [(16,)], "recorded, and not loaded"
    scenario.complete(shop)
    scenario.verify(shop, kills=1)
    shop.ledger.close()
