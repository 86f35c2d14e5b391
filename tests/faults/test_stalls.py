"""Processes that stall and come back after they were replaced (SIGSTOP, SIGCONT), and Ctrl-C (SIGINT)."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.faults.crash import Death, run_child
from tests.faults.scenario import CONFIRM_WINDOW, Scenario
from tests.workshop import Workshop

# Many runs, each in processes of its own: how long they take depends on what else the machine does.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# A writer that is stopped in a transaction keeps SQLite locked: nobody can take over before it goes on.
IN_A_TRANSACTION = {"drain: before a commit", "deliver: before a commit"}


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return Scenario(tmp_path_factory.mktemp("scenario"))


def points_of(scenario: Scenario, folder: Path) -> list[str]:
    """The points of an undisturbed run."""
    shop = scenario.start(folder)
    points = run_child(shop.world, scenario.whole_run(shop)).points
    shop.ledger.close()
    return points


def stall(scenario: Scenario, shop: Workshop, at: int) -> tuple[Death, int]:
    """Stop a run at point ``at``, let another one do everything meanwhile, wake it; also how much it sent then."""
    sent_before_waking = 0

    def on_point(pid: int, _what: str) -> None:
        nonlocal count, sent_before_waking
        count += 1
        if count != at + 1:
            return
        while _state(pid) != "T":
            time.sleep(0.001)
        try:
            scenario.complete(shop)
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            raise
        sent_before_waking = shop.world.messages["publish"]
        os.kill(pid, signal.SIGCONT)

    count = 0
    death = run_child(shop.world, scenario.whole_run(shop), fatal=at, signal_=signal.SIGSTOP, on_point=on_point)
    return death, shop.world.messages["publish"] - sent_before_waking


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see that a process has stopped")
def test_a_stalled_drain_that_was_replaced_settles_nothing_and_leaves_no_file(
    scenario: Scenario, tmp_path: Path
) -> None:
    points = points_of(scenario, tmp_path / "whole")
    at_drain = [
        number for number, point in enumerate(points) if point.startswith("drain:") and point not in IN_A_TRANSACTION
    ]
    for at in at_drain[::3]:
        shop = scenario.start(tmp_path / str(at))
        death, _ = stall(scenario, shop, at)
        assert any(name in death.error for name in ("LeaseLost", "BatchLost")), f"{points[at]}: {death.error}"
        scenario.verify(shop, kills=1)
        shop.ledger.close()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see that a process has stopped")
def test_a_stalled_delivery_that_was_replaced_sends_at_most_the_window_that_it_had_announced(
    scenario: Scenario, tmp_path: Path
) -> None:
    points = points_of(scenario, tmp_path / "whole")
    at_delivery = [
        number for number, point in enumerate(points) if point.startswith("deliver:") and point not in IN_A_TRANSACTION
    ]
    for at in at_delivery[::4]:
        shop = scenario.start(tmp_path / str(at))
        death, sent = stall(scenario, shop, at)
        assert "LeaseLost" in death.error, f"{points[at]}: {death.error}"
        assert sent <= CONFIRM_WINDOW, points[at]
        scenario.verify(shop, kills=1)
        shop.ledger.close()


def test_ctrl_c_leaves_nothing_claimed(scenario: Scenario, tmp_path: Path) -> None:
    points = points_of(scenario, tmp_path / "whole")
    at_work = [number for number, point in enumerate(points) if point.startswith(("drain:", "deliver:"))]
    for at in at_work[::5]:  # all kinds of them: calls are three points, the rest are two
        shop = scenario.start(tmp_path / str(at))
        death = run_child(shop.world, scenario.whole_run(shop), fatal=at, signal_=signal.SIGINT)
        assert "KeyboardInterrupt" in death.error, (points[at], death.error)
        assert "sending" not in shop.states(), points[at]
        assert shop.query("select batch_id from staging_batches where state = 'open'") == [], points[at]
        scenario.complete(shop)
        scenario.verify(shop, kills=1)
        shop.ledger.close()
