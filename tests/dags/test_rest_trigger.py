"""The real Airflow: api-server, scheduler, dag-processor and triggerer, and a run that is triggered over REST.

``dags test`` proves too little: there a task may use Airflow's own database, here a worker can't.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from tests.real_airflow import LASTING, PASSING, PATIENCE, Rest, Shop
from tests.servers import Ministack

from redrive import settings
from redrive.dev import local_airflow
from redrive.dev.local_airflow import Airflow, PortTaken
from redrive.stages import pipeline

pytestmark = [pytest.mark.airflow, pytest.mark.server, pytest.mark.spark, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def airflow(shop: Shop) -> Airflow:
    """The Airflow, which runs the shop's route."""
    return shop.house.airflow()


@pytest.fixture(scope="module")
def rest(airflow: Airflow) -> Rest:
    """Its API, as soon as the DAGs are known."""
    api = Rest(airflow)
    deadline = time.monotonic() + PATIENCE
    while any(api.call("GET", f"/api/v2/dags/{dag}")[0] != 200 for dag in ("redrive_orders", "after", "clean")):
        assert time.monotonic() < deadline, api.call("GET", "/api/v2/importErrors")
        time.sleep(0.5)
    return api


def test_a_triggered_run_brings_back_what_may_go(rest: Rest, shop: Shop) -> None:
    shop.fail(8, PASSING)
    shop.fail(2, LASTING)

    status, _ = rest.trigger("redrive_orders", "ticket-4711", limit=100)

    assert status == 200
    assert rest.wait("redrive_orders", "ticket-4711") == "success", rest.states("redrive_orders", "ticket-4711")
    assert set(rest.states("redrive_orders", "ticket-4711").values()) == {"success"}
    assert shop.states() == {"sent": 8, "escalated": 2}
    assert (shop.depth("dead"), shop.depth("orders")) == (0, 8)
    assert shop.query("select status from runs where airflow_run_id = 'ticket-4711'") == [("succeeded",)]
    assert shop.query("select run_id from route_state") == [(None,)], "the route was given back"
    rung = (shop.home / "var" / "bell.txt").read_text().splitlines()
    told = [line for line in rung if line.startswith("escalate: ")]  # the scheduled audit rings as well
    assert told == ["escalate: orders: failure group 2 (application_bug) waits for a decision"], "by its notifier"


def test_who_waits_for_the_route_is_told_and_who_waits_for_a_clean_one_is_not_yet(rest: Rest) -> None:
    until(lambda: runs_of(rest, "after"))
    [run] = runs_of(rest, "after")
    assert rest.wait("after", run["dag_run_id"]) == "success"
    seen = f"/api/v2/dags/after/dagRuns/{run['dag_run_id']}/taskInstances/seen/xcomEntries/return_value"
    assert rest.call("GET", seen)[1]["value"] == [8]
    assert runs_of(rest, "clean") == [], "two wait for people"


def test_a_dry_run_tells_what_would_happen_changes_nothing_and_is_no_event(rest: Rest, shop: Shop) -> None:
    shop.fail(4, PASSING)
    before = (shop.states(), shop.depth("dead"), shop.depth("orders"), shop.query("select count(*) from runs"))
    assert rest.trigger("redrive_orders", "dry", dry_run=True)[0] == 200
    assert rest.wait("redrive_orders", "dry") == "success"
    assert rest.states("redrive_orders", "dry")["classify"] == "skipped", "no Spark for nothing"
    told = logs(shop, "dry")
    assert "'would': {" in told
    assert "in the sources: not looked at" in told
    assert before == (shop.states(), shop.depth("dead"), shop.depth("orders"), shop.query("select count(*) from runs"))
    _, answer = rest.call("GET", "/api/v2/assets/events?limit=100")
    assert [event["source_run_id"] for event in answer["asset_events"]] == ["ticket-4711"]


def logs(shop: Shop, run_id: str) -> str:
    """All that the tasks of a run of the route wrote."""
    folder = shop.house.airflow().home / "logs" / "dag_id=redrive_orders" / f"run_id={run_id}"
    return "".join(path.read_text() for path in folder.rglob("*.log"))


def test_a_run_whose_source_is_missing_does_all_else_starts_no_spark_fails_and_says_why(rest: Rest, shop: Shop) -> None:
    before = (shop.states(), shop.depth("dead"), shop.depth("orders"))
    with configured_otherwise(shop, "queue: orders-dlq", "queue: renamed-dlq"):
        assert rest.trigger("redrive_orders", "renamed")[0] == 200
        assert rest.wait("redrive_orders", "renamed") == "failed", rest.states("redrive_orders", "renamed")

    ended = rest.states("redrive_orders", "renamed")
    assert ended["classify"] == "skipped"
    assert ended["drain"] == ended["deliver"] == ended["escalate"] == "success"
    assert ended["report"] == "failed", "a queue that isn't there is not tried again"
    assert ended["finish"] == "failed", "the end of the run says what became of it"
    assert "QueuesFailed: queue renamed-dlq" in logs(shop, "renamed")
    assert shop.query("select run_id from route_state") == [(None,)]
    assert shop.query("select status from runs where airflow_run_id = 'renamed'") == [("failed",)]
    assert before == (shop.states(), shop.depth("dead"), shop.depth("orders")), "nothing was touched or sent twice"


def test_tasks_lead_to_the_review_page(rest: Rest) -> None:
    tasks = "/api/v2/dags/redrive_orders/dagRuns/ticket-4711/taskInstances"
    _, report = rest.call("GET", f"{tasks}/report/links")
    assert report["extra_links"] == {"Route": f"{rest.url}/redrive/routes/orders"}
    _, escalate = rest.call("GET", f"{tasks}/escalate/links")
    assert escalate["extra_links"] == {"Review": f"{rest.url}/redrive/groups?route=orders"}


def runs_of(rest: Rest, dag_id: str) -> list[dict[str, Any]]:
    _, answer = rest.call("GET", f"/api/v2/dags/{dag_id}/dagRuns")
    found: list[dict[str, Any]] = answer["dag_runs"]
    return found


def test_what_a_task_returns_holds_counts_and_no_message(rest: Rest) -> None:
    status, answer = rest.call("GET", "/api/v2/dags/~/dagRuns/~/taskInstances/~/xcomEntries?limit=1000")
    assert status == 200
    assert len(answer["xcom_entries"]) >= 8
    for entry in answer["xcom_entries"]:
        path = f"/api/v2/dags/{entry['dag_id']}/dagRuns/{entry['run_id']}/taskInstances/{entry['task_id']}"
        _, found = rest.call("GET", f"{path}/xcomEntries/{entry['key']}?map_index={entry['map_index']}")
        assert "Connection refused" not in json.dumps(found)
        assert len(json.dumps(found)) < 2000


def test_the_same_run_id_again_is_refused(rest: Rest, shop: Shop) -> None:
    assert rest.trigger("redrive_orders", "ticket-4711")[0] == 409
    assert shop.query("select count(*) from runs where airflow_run_id = 'ticket-4711'") == [(1,)]


@pytest.mark.parametrize(
    "conf",
    [{"limit": 0}, {"limit": "ten"}, {"causes": ["throtled"]}, {"since": "yesterday"}, {"dry_run": "perhaps"}],
    ids=lambda conf: next(iter(conf)),
)
def test_a_bad_parameter_is_refused_before_anything_runs(rest: Rest, conf: dict[str, object]) -> None:
    status, answer = rest.trigger("redrive_orders", "never", **conf)
    assert status == 400
    assert next(iter(conf)) in answer["detail"]


@pytest.mark.parametrize("conf", [{"limit": 10**23}, {"groups": [10**23]}], ids=["limit", "groups"])
def test_a_number_that_is_too_large_is_refused(rest: Rest, conf: dict[str, object]) -> None:
    assert rest.trigger("redrive_orders", "never", **conf)[0] == 400


def test_a_number_that_is_too_large_under_an_unknown_key_fails_its_run_and_nothing_else(
    rest: Rest, shop: Shop, airflow: Airflow
) -> None:
    processors = dag_processors()
    assert rest.trigger("redrive_orders", "large", nobody_knows=10**23)[0] == 200
    assert rest.wait("redrive_orders", "large") == "failed"
    assert shop.query("select count(*) from runs where airflow_run_id = 'large'") == [(0,)]
    heard = heartbeat(rest)
    deadline = time.monotonic() + PATIENCE
    while heartbeat(rest) == heard:  # it was well after the run's failure, and is after what that left behind
        assert time.monotonic() < deadline, "the dag-processor is silent"
        time.sleep(0.5)
    assert dag_processors() == processors, "the same processes"


def heartbeat(rest: Rest) -> tuple[str, str]:
    """How the dag-processor is, and when it last said so."""
    _, health = rest.call("GET", "/api/v2/monitor/health")
    found = health["dag_processor"]
    return found["status"], found["latest_dag_processor_heartbeat"]


def dag_processors() -> set[int]:
    return {child.pid for child in children("dag-processor")}


def children(word: str) -> list[psutil.Process]:
    """Those of this process that were started with this word. Others may end while they are looked at."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if word in " ".join(child.cmdline()):
                found.append(child)
    return found


def test_a_decision_is_applied_and_sent_by_the_review_dag(rest: Rest, shop: Shop) -> None:
    shop.change(
        "update escalated_messages set decision = 'redeliver', decided_by = 'ana', note = 'fixed in 1.4.2'"
        " where escalation_id = (select min(escalation_id) from escalated_messages)"
    )

    assert rest.trigger("redrive_review", "by-hand")[0] == 200
    assert rest.wait("redrive_review", "by-hand") == "success", rest.states("redrive_review", "by-hand")

    assert shop.query("select status from escalated_messages order by escalation_id") == [("applied",), ("open",)]
    assert shop.states() == {"sent": 9, "escalated": 1}
    assert shop.depth("orders") == 9
    assert shop.query("select run_id from route_state") == [(None,)]


def test_the_audit_finds_every_promise_kept(rest: Rest) -> None:
    assert rest.trigger("redrive_audit", "by-hand")[0] == 200
    assert rest.wait("redrive_audit", "by-hand") == "success", rest.states("redrive_audit", "by-hand")


def test_a_task_that_is_cleared_and_fails_makes_the_run_a_failure_in_both_worlds(rest: Rest, shop: Shop) -> None:
    shop.change(
        "update escalated_messages set decision = 'redeliver', decided_by = 'ana', note = '' where status = 'open'"
    )
    pipeline.apply_decisions(settings.load(), "orders")
    cleared = {"task_ids": ["deliver"], "dag_run_id": "ticket-4711", "dry_run": False, "only_failed": False}
    with configured_otherwise(shop, "destination: {queue: orders-", "destination: {queue: gone-"):
        status, answer = rest.call("POST", "/api/v2/dags/redrive_orders/clearTaskInstances", cleared)
        assert status == 200, answer
        assert rest.wait("redrive_orders", "ticket-4711") == "failed", rest.states("redrive_orders", "ticket-4711")
    states = rest.states("redrive_orders", "ticket-4711")
    assert (states["report"], states["finish"]) == ("success", "failed"), "the report is of the first time"
    assert "not done: queue gone-" in logs(shop, "ticket-4711")
    assert shop.query("select status from runs where airflow_run_id = 'ticket-4711'") == [("failed",)]
    assert shop.query("select run_id from route_state") == [(None,)]


def test_a_run_that_somebody_marks_failed_is_one_in_both_worlds(rest: Rest, shop: Shop) -> None:
    shop.fail(1, LASTING)
    assert rest.trigger("redrive_orders", "stopped")[0] == 200
    until(lambda: rest.states("redrive_orders", "stopped").get("classify") == "running")

    status, _ = rest.call("PATCH", "/api/v2/dags/redrive_orders/dagRuns/stopped", {"state": "failed"})

    assert status == 200
    until(lambda: rest.states("redrive_orders", "stopped")["finish"] in ("success", "failed"))
    assert rest.wait("redrive_orders", "stopped") == "failed", rest.states("redrive_orders", "stopped")
    assert shop.query("select status from runs where airflow_run_id = 'stopped'") == [("failed",)]
    assert shop.query("select run_id from route_state") == [(None,)]


def test_a_dead_letter_begins_a_run_by_itself_with_a_connection_that_only_airflow_knows(
    rest: Rest, shop: Shop, ministack: Ministack
) -> None:
    known = ministack.connection()
    stored = {"connection_id": "sqs_stored", **known, "extra": json.dumps(known["extra"])}
    assert rest.call("POST", "/api/v2/connections", stored)[0] == 201
    config = shop.home / "config" / "redrive.yaml"
    watched = config.read_text().replace("connection: sqs_test", "connection: sqs_stored\n    airflow: {watch: 5s}")
    config.write_text(watched)
    until(lambda: rest.call("GET", "/api/v2/dags/redrive_orders")[1]["timetable_summary"] == "Asset")
    before = {run["dag_run_id"] for run in runs_of(rest, "redrive_orders")}

    shop.fail(1, PASSING)

    until(lambda: new_runs(rest, before))
    [run] = new_runs(rest, before)
    assert run["run_type"] == "asset_triggered"
    assert rest.wait("redrive_orders", run["dag_run_id"]) == "success", rest.states("redrive_orders", run["dag_run_id"])
    assert shop.query("select status from runs where airflow_run_id = :id", id=run["dag_run_id"]) == [("succeeded",)]


def new_runs(rest: Rest, before: set[str]) -> list[dict[str, Any]]:
    return [run for run in runs_of(rest, "redrive_orders") if run["dag_run_id"] not in before]


def until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@contextlib.contextmanager
def configured_otherwise(shop: Shop, words: str, others: str) -> Iterator[None]:
    """The configuration says something else instead of these words."""
    config = shop.home / "config" / "redrive.yaml"
    healthy = config.read_text()
    assert words in healthy
    config.write_text(healthy.replace(words, others))
    try:
        yield
    finally:
        config.write_text(healthy)


def test_nobody_without_the_password_gets_in(rest: Rest, airflow: Airflow) -> None:
    nobody = Rest.__new__(Rest)
    nobody.url, nobody.token = airflow.url, "forged"
    assert nobody.trigger("redrive_orders", "never")[0] in (401, 403)
    wrong = {"username": airflow.user, "password": "admin"}
    assert nobody.call("POST", "/auth/token", wrong)[0] == 401


def test_it_listens_on_loopback_only(airflow: Airflow) -> None:
    # Other tests' servers are children of this process too.
    parts = children("airflow")
    assert len(parts) == len(local_airflow.COMPONENTS)
    listening = set()
    for part in parts:
        for process in [part, *part.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):  # tasks come and go meanwhile
                listening |= {
                    (connection.laddr.ip, connection.laddr.port)
                    for connection in process.net_connections(kind="inet")
                    if connection.status == psutil.CONN_LISTEN
                }
    assert ("127.0.0.1", int(airflow.url.rpartition(":")[2])) in listening
    # A JVM's socket for both families says so of a loopback address.
    assert {address.removeprefix("::ffff:") for address, _ in listening} == {"127.0.0.1"}


def test_it_keeps_its_secrets_to_itself(airflow: Airflow) -> None:
    for name in ("simple_auth_manager_passwords.json", "jwt_secret", "api_secret", "fernet_key"):
        assert (airflow.home / name).stat().st_mode & 0o077 == 0, name


def test_a_taken_port_is_a_clear_error(airflow: Airflow, shop: Shop) -> None:
    port = int(airflow.url.rpartition(":")[2])
    with pytest.raises(PortTaken, match=f"port {port} .* in use"), local_airflow.running(shop.home, port):
        pass
