"""The real Airflow: api-server, scheduler, dag-processor and triggerer, and a run that is triggered over REST.

``dags test`` proves too little: there a task may use Airflow's own database, here a worker can't.
"""

import contextlib
import json
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from tests.dags.conftest import LASTING, PASSING, Shop
from tests.servers import free_port

from redrive.dev import local_airflow
from redrive.dev.local_airflow import Airflow, PortTaken

pytestmark = [pytest.mark.airflow, pytest.mark.server, pytest.mark.spark, pytest.mark.timeout(600)]

PATIENCE = 300  # seconds; the whole run takes about 40 where nothing else runs


class Rest:
    """Airflow's REST API, with the generated password's token."""

    def __init__(self, airflow: Airflow) -> None:
        self.url = airflow.url
        self.token = ""
        status, answer = self.call("POST", "/auth/token", {"username": airflow.user, "password": airflow.password})
        assert status == 201
        self.token = answer["access_token"]

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """The status and the decoded answer."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def trigger(self, dag_id: str, run_id: str, **conf: object) -> tuple[int, Any]:
        return self.call(
            "POST",
            f"/api/v2/dags/{dag_id}/dagRuns",
            {"dag_run_id": run_id, "logical_date": None, "conf": conf},
        )

    def states(self, dag_id: str, run_id: str) -> dict[str, str]:
        """How each task of a run stands; mapped ones under their last state."""
        _, answer = self.call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances")
        return {one["task_id"]: one["state"] for one in answer["task_instances"]}

    def wait(self, dag_id: str, run_id: str) -> str:
        """The state in which the run ended."""
        deadline = time.monotonic() + PATIENCE
        while True:
            _, run = self.call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}")
            if run["state"] in ("success", "failed"):
                return str(run["state"])
            assert time.monotonic() < deadline, self.states(dag_id, run_id)
            time.sleep(0.5)


@pytest.fixture(scope="module")
def airflow(shop: Shop) -> Iterator[Airflow]:
    """An Airflow of its own for this module."""
    with local_airflow.running(shop.home, free_port(), base=shop.base) as one:
        yield one


@pytest.fixture(scope="module")
def rest(airflow: Airflow) -> Rest:
    """Its API, as soon as the DAGs are known."""
    api = Rest(airflow)
    deadline = time.monotonic() + 60
    while api.call("GET", "/api/v2/dags/redrive_orders")[0] != 200:
        assert time.monotonic() < deadline, api.call("GET", "/api/v2/importErrors")
        time.sleep(0.5)
    return api


def test_a_triggered_run_brings_back_what_may_go(rest: Rest, shop: Shop) -> None:
    shop.fail(8, PASSING)
    shop.fail(2, LASTING)

    status, _ = rest.trigger("redrive_orders", "ticket-4711", limit=100)

    assert status == 200
    assert rest.wait("redrive_orders", "ticket-4711") == "success", rest.states("redrive_orders", "ticket-4711")
    assert shop.states() == {"sent": 8, "escalated": 2}
    assert shop.depth("orders") == 8
    assert shop.query("select status from runs where airflow_run_id = 'ticket-4711'") == [("succeeded",)]
    assert shop.query("select run_id from route_state") == [(None,)]


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


def test_a_decision_is_applied_and_sent_by_the_review_dag(rest: Rest, shop: Shop) -> None:
    with sqlite3.connect(shop.home / "var" / "redrive.db") as ledger:
        ledger.execute(
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


def test_nobody_without_the_password_gets_in(rest: Rest, airflow: Airflow) -> None:
    nobody = Rest.__new__(Rest)
    nobody.url, nobody.token = airflow.url, "forged"
    assert nobody.trigger("redrive_orders", "never")[0] in (401, 403)
    wrong = {"username": airflow.user, "password": "admin"}
    assert nobody.call("POST", "/auth/token", wrong)[0] == 401


def test_it_listens_on_loopback_only(airflow: Airflow) -> None:
    # Other tests' servers are children of this process too.
    parts = [child for child in psutil.Process().children() if "airflow" in " ".join(child.cmdline())]
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
    assert {address for address, _ in listening} == {"127.0.0.1"}


def test_it_keeps_its_secrets_to_itself(airflow: Airflow) -> None:
    for name in ("simple_auth_manager_passwords.json", "jwt_secret", "api_secret", "fernet_key"):
        assert (airflow.home / name).stat().st_mode & 0o077 == 0, name


def test_a_taken_port_is_a_clear_error(airflow: Airflow, shop: Shop) -> None:
    port = int(airflow.url.rpartition(":")[2])
    with pytest.raises(PortTaken, match=f"port {port} .* in use"), local_airflow.running(shop.home, port):
        pass
