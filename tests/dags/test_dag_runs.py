"""The DAG of a route from end to end in Airflow, Spark included, on a real queue."""

import pytest
from tests.dags.conftest import LASTING, PASSING, Shop

from redrive.dev import local_airflow

pytestmark = [pytest.mark.airflow, pytest.mark.server, pytest.mark.spark]


@pytest.fixture(scope="module")
def ready(shop: Shop) -> Shop:
    """The shop, with Airflow's own database made."""
    local_airflow.migrate(shop.base)
    return shop


def run_dag(shop: Shop, **conf: object) -> tuple[int, dict[str, str]]:
    """Run the route once: the exit code, and how each task ended (skipped ones are not mentioned)."""
    ended: dict[str, str] = {}
    code = local_airflow.dags_test("redrive_orders", conf, shop.base, ended.__setitem__)
    return code, ended


@pytest.mark.timeout(1200)
def test_a_run_brings_back_what_may_go_and_hands_over_the_rest_and_an_idle_one_starts_no_spark(ready: Shop) -> None:
    shop = ready
    shop.fail(12, PASSING)
    shop.fail(5, LASTING)

    code, ended = run_dag(shop)

    log = (shop.home / "var" / "airflow" / "redrive_orders.log").read_text()
    assert code == 0, log[-8000:]
    assert set(ended.values()) == {"success"}
    assert {"drain[0]", "classify", "deliver[0]", "deliver[1]", "finish"} <= set(ended)
    assert shop.states() == {"sent": 12, "escalated": 5}
    assert (shop.depth("dead"), shop.depth("orders")) == (0, 12)
    assert shop.query("select status, airflow_run_id like 'manual__%' from runs") == [("succeeded", 1)]
    assert shop.query("select run_id from route_state") == [(None,)], "the route was given back"

    code, ended = run_dag(shop)

    assert code == 0
    assert "classify" not in ended
    assert ended["report"] == "success"
    assert shop.states() == {"sent": 12, "escalated": 5}
    assert shop.depth("orders") == 12, "nothing is sent twice"
    rung = (shop.home / "var" / "bell.txt").read_text()
    assert rung == "escalate: orders: failure group 2 (application_bug) waits for a decision\n", "once, by its notifier"


@pytest.mark.timeout(1200)
def test_a_dry_run_tells_what_would_happen_and_changes_nothing(ready: Shop) -> None:
    shop = ready
    shop.fail(4, PASSING)
    before = (shop.states(), shop.depth("dead"), shop.depth("orders"), shop.query("select count(*) from runs"))

    code, ended = run_dag(shop, dry_run=True)

    assert code == 0
    assert "classify" not in ended
    log = (shop.home / "var" / "airflow" / "redrive_orders.log").read_text()
    assert "'would': {" in log
    assert "in the sources: not looked at" in log
    assert before == (shop.states(), shop.depth("dead"), shop.depth("orders"), shop.query("select count(*) from runs"))


@pytest.mark.timeout(1200)
def test_a_run_whose_source_is_missing_does_all_else_and_fails_and_says_why(ready: Shop) -> None:
    shop = ready
    config = shop.home / "config" / "redrive.yaml"
    healthy = config.read_text()
    before = shop.depth("dead")
    shop.fail(3, PASSING)
    try:
        config.write_text(healthy.replace("queue: orders-dlq", "queue: renamed-dlq"))
        code, ended = run_dag(shop)
    finally:
        config.write_text(healthy)

    assert code == 1
    assert ended["drain[0]"] == ended["deliver[0]"] == ended["escalate"] == "success"
    assert ended["report"] == "failed", "a queue that isn't there is not tried again"
    assert ended["finish"] == "failed", "the end of the run says what became of it"
    log = (shop.home / "var" / "airflow" / "redrive_orders.log").read_text()
    assert "SourcesFailed: source renamed-dlq" in log
    assert shop.query("select run_id from route_state") == [(None,)]
    assert shop.query("select status from runs order by started_at desc limit 1") == [("failed",)]
    assert shop.depth("dead") == before + 3, "nothing was touched"
