"""The wheel in Airflows of other teams: each version with the libraries of its time (``airflows/*.txt``), no checkout.

``make matrix`` looks at all of them: DAGs, page and forms, the page under both auth managers, and the whole loop with a
real scheduler, RabbitMQ and an SQS-compatible server.
"""

import contextlib
import http.cookiejar
import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from redrive.airflow import DAG_FILE
from redrive.dev.local_airflow import unhealthy
from tests import servers
from tests.installed.places import Place, install
from tests.servers import ROOT, free_port, missing

pytestmark = [pytest.mark.matrix, pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1800)]

OLDEST, *BETWEEN, NEWEST = AIRFLOWS = sorted(path.stem for path in (ROOT / "tests/installed/airflows").glob("*.txt"))

FAB = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
SIMPLE = "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager"
PASSWORD = "open-sesame"  # of an Airflow that lives for a test
PATIENCE = 600.0  # seconds; the whole run takes about one minute where nothing else runs

CONFIG = """
database: sqlite:///var/redrive.db
staging: var/staging
spark: {master: "local[2,4]"}
defaults: {schedule: null, canary: off, drain: {shards: 1}, deliver: {shards: 1}}
routes:
  rabbit:
    broker: rabbitmq
    connection: rabbit
    sources: [{queue: matrix-dlq}]
    destination: {queue: matrix}
  sqs:
    broker: amazon_sqs
    connection: sqs
    sources: [{queue: matrix-dlq, lease: 30s, max_deliveries: 3, retention: 4d}]
    destination: {queue: matrix}
    evidence: ["attribute:error"]
"""

#: What Airflow makes of the package: its DAGs, its page, its forms.
FOUND = """
import json
from airflow import plugins_manager
try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:
    from airflow.models.dagbag import DagBag
from airflow.providers_manager import ProvidersManager
bag = DagBag("dags")
if hasattr(plugins_manager, "_get_plugins"):
    plugins, problems = plugins_manager._get_plugins()
else:
    plugins_manager.ensure_plugins_loaded()
    plugins, problems = plugins_manager.plugins, plugins_manager.import_errors
hooks = ProvidersManager().hooks
print(json.dumps({
    "dags": sorted(bag.dag_ids), "errors": list(bag.import_errors.values()),
    "pages": [one.name for one in plugins if one.name == "redrive"], "problems": problems,
    "forms": {name: hooks[name].hook_name for name in ("amqp", "pulsar")},
}))
"""


@pytest.fixture(scope="module", params=[OLDEST, *(pytest.param(one) for one in (*BETWEEN, NEWEST))])
def place(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """An Airflow of this version in which the package was installed, with two routes and a DAG file of two lines."""
    lender = ROOT / f".venv-airflow-{request.param}" / "bin" / "python"
    if not lender.exists():
        missing(f"no Airflow {request.param} in {lender.parents[1].name}: `make matrix` makes it")
    place = install(wheel, tmp_path_factory.mktemp(f"airflow-{request.param}"), lender)
    for name, text in {"config/redrive.yaml": CONFIG, "dags/redrive_dags.py": DAG_FILE}.items():
        (place.folder / name).parent.mkdir()
        (place.folder / name).write_text(text)
    assert place.run(str(place.python), "-m", "airflow", "version").stdout.strip().startswith(request.param)
    return place


def test_airflow_finds_dags_page_and_forms(place: Place) -> None:
    done = place.run(str(place.python), "-c", FOUND, AIRFLOW__CORE__LOAD_EXAMPLES="False")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "dags": ["redrive_audit", "redrive_rabbit", "redrive_review", "redrive_sqs"],
        "errors": [],
        "pages": ["redrive"],
        "problems": {},
        "forms": {"amqp": "RabbitMQ", "pulsar": "Pulsar"},
    }


# --- a whole Airflow ------------------------------------------------------------------------------------------------


class Stranger:
    """Airflow's processes in a place, as a team would start them."""

    def __init__(self, place: Place, connections: dict[str, str]) -> None:
        self.place = place
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        state = place.folder
        (state / "passwords.json").write_text(json.dumps({"ana": PASSWORD}))
        self.known = connections | {
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "2",
            "AIRFLOW__CORE__FERNET_KEY": "",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "ana:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(state / "passwords.json"),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": "s" * 64,
            "AIRFLOW__API_AUTH__JWT_SECRET": "j" * 64,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{state / 'airflow.db'}?timeout=60",
            "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "False",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        }

    def airflow(self, auth_manager: str, *words: str) -> None:
        """One command, which has to go well."""
        command = [str(self.place.python), "-m", "airflow", *words]
        done = self.place.run(*command, AIRFLOW__CORE__AUTH_MANAGER=auth_manager, **self.known)
        assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"

    @contextlib.contextmanager
    def running(self, auth_manager: str, *components: str) -> Iterator[None]:
        """The api-server and other components, from when it answers to the end of the block."""
        processes = []
        environment = self.place.environment(AIRFLOW__CORE__AUTH_MANAGER=auth_manager, **self.known)
        try:
            for words in ("api-server", *components):
                with (self.place.folder / f"{words.split()[0]}.log").open("ab") as log:
                    command = [str(self.place.python), "-m", "airflow", *words.split()]
                    process = subprocess.Popen(
                        command, cwd=self.place.folder, env=environment, stdout=log, stderr=log, start_new_session=True
                    )
                    servers.GUARD.watch(process.pid)
                    processes.append(process)
            self.until(lambda: unhealthy(self.url) == [] if components else self.answers(), "Airflow is up")
            yield
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 15)
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                process.wait()
                servers.GUARD.forget(process.pid)

    def answers(self) -> bool:
        return unhealthy(self.url) != ["api-server"]

    def until(self, held: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not held():
            assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} s: {what}; see {self.place.folder}"
            time.sleep(0.5)

    def ask(self, method: str, path: str, body: object = None, token: str = "") -> Any:
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {}),
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def log_of(self, tasks: Iterable[str]) -> str:
        """The ends of what these tasks wrote."""
        found = sorted(path for task in tasks for path in self.place.folder.glob(f"logs/*/*/task_id={task}/**/*.log"))
        return "\n".join(f"{path}\n{path.read_text()[-10_000:]}" for path in found)

    def token(self) -> str:
        answer = self.ask("POST", "/auth/token", {"username": "ana", "password": PASSWORD})
        return str(answer["access_token"])

    def page(self, cookies: http.cookiejar.CookieJar) -> tuple[int, str]:
        """What a browser with these cookies is shown as the review page."""
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies))
        try:
            with browser.open(f"{self.url}/redrive/", timeout=120) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def logged_in_with_fab(self) -> http.cookiejar.CookieJar:
        """As people do: with the form."""
        cookies = http.cookiejar.CookieJar()
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies))
        with browser.open(f"{self.url}/auth/login/", timeout=120) as form:
            hidden = re.search(r'name="csrf_token"[^>]*value="([^"]+)"', form.read().decode())
        assert hidden
        told = {"username": "ana", "password": PASSWORD, "csrf_token": hidden[1]}
        # Where it leads to is Airflow's own page, which is none of ours.
        with contextlib.suppress(urllib.error.HTTPError):
            browser.open(f"{self.url}/auth/login/", urllib.parse.urlencode(told).encode(), timeout=120).close()
        return cookies

    def logged_in_with_simple(self) -> http.cookiejar.CookieJar:
        """The form of this one is a script; it asks for a token and keeps it in this cookie."""
        cookies = http.cookiejar.CookieJar()
        cookie = http.cookiejar.Cookie(
            *(0, "_token", self.token(), None, False, "127.0.0.1", True, False, "/", True, False),
            *(None, False, None, None, {}),
        )
        cookies.set_cookie(cookie)
        return cookies

    def opens(self, cookies: http.cookiejar.CookieJar) -> None:
        """Whoever is logged in sees the routes, and nobody else does."""
        status, page = self.page(cookies)
        assert (status, "rabbit" in page, "sqs" in page) == (200, True, True), page[:3000]
        status, page = self.page(http.cookiejar.CookieJar())
        assert (status, "rabbit" in page) == (401, False), page[:3000]


@pytest.fixture(scope="module")
def stranger(
    place: Place, rabbitmq: servers.RabbitMQ, ministack: servers.Ministack
) -> Iterator[tuple[Stranger, dict[str, Callable[[], int]]]]:
    """An Airflow with a dead message on each broker, and how many messages each destination has by now."""
    told = ministack.connection()
    client = boto3.client(
        "sqs",
        endpoint_url=ministack.url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    urls = {name: client.create_queue(QueueName=name)["QueueUrl"] for name in ("matrix", "matrix-dlq")}
    why = "Connection reset by peer"
    client.send_message(
        QueueUrl=urls["matrix-dlq"],
        MessageBody='{"order": 1}',
        MessageAttributes={"error": {"DataType": "String", "StringValue": why}},
    )
    for name in urls:
        rabbitmq.create_queue(name)
    publication = {"routing_key": "matrix-dlq", "payload": '{"order": 1}', "payload_encoding": "string"}
    publication |= {"properties": {"headers": {"x-exception-message": why}}}
    rabbitmq.ask("POST", "exchanges/%2F/amq.default/publish", publication)
    extra = {"management_port": rabbitmq.management_port}
    rabbit = {"conn_type": "amqp", "host": "127.0.0.1", "port": rabbitmq.port, "extra": extra}

    def on_sqs() -> int:
        name = "ApproximateNumberOfMessages"
        return int(client.get_queue_attributes(QueueUrl=urls["matrix"], AttributeNames=[name])["Attributes"][name])

    def on_rabbit() -> int:
        return int(rabbitmq.ask("GET", "queues/%2F/matrix").get("messages", 0))

    known = {"AIRFLOW_CONN_RABBIT": json.dumps(rabbit), "AIRFLOW_CONN_SQS": json.dumps(told)}
    stranger = Stranger(place, known)
    place.redrive("db", "upgrade", **known)
    # With this one, the tables of both auth managers are made.
    stranger.airflow(FAB, "db", "migrate")
    person = ("--username", "ana", "--password", PASSWORD, "--email", "ana@example.test", "--firstname", "Ana")
    stranger.airflow(FAB, "users", "create", "--role", "Admin", "--lastname", "Lytical", *person)
    yield stranger, {"rabbit": on_rabbit, "sqs": on_sqs}
    for name, url in urls.items():
        client.delete_queue(QueueUrl=url)
        rabbitmq.ask("DELETE", f"queues/%2F/{name}")


@pytest.mark.server
@pytest.mark.parametrize("auth_manager", [SIMPLE, FAB], ids=["simple", "fab"])
def test_the_page_opens_for_whoever_is_logged_in(
    stranger: tuple[Stranger, dict[str, Callable[[], int]]], auth_manager: str
) -> None:
    airflow, _ = stranger
    with airflow.running(auth_manager):
        cookies = airflow.logged_in_with_fab() if auth_manager == FAB else airflow.logged_in_with_simple()
        airflow.opens(cookies)


@pytest.mark.server
@pytest.mark.spark
def test_the_whole_loop_runs(stranger: tuple[Stranger, dict[str, Callable[[], int]]]) -> None:
    airflow, depths = stranger
    connections = {name: value for name, value in airflow.known.items() if name.startswith("AIRFLOW_CONN")}
    for route in depths:
        airflow.place.redrive("doctor", route, **connections)
    with airflow.running(FAB, "scheduler --skip-serve-logs", "dag-processor", "triggerer --skip-serve-logs"):
        token = airflow.token()

        def known() -> set[str]:
            return {dag["dag_id"] for dag in airflow.ask("GET", "/api/v2/dags", token=token)["dags"]}

        airflow.until(lambda: {f"redrive_{route}" for route in depths} <= known(), "the DAGs are parsed")
        for route in depths:
            airflow.ask("PATCH", f"/api/v2/dags/redrive_{route}", {"is_paused": False}, token)
            told = {"dag_run_id": "first", "logical_date": None, "conf": {"limit": 10}}
            airflow.ask("POST", f"/api/v2/dags/redrive_{route}/dagRuns", told, token)
        for route in depths:
            run = f"/api/v2/dags/redrive_{route}/dagRuns/first"
            airflow.until(lambda: airflow.ask("GET", run, token=token)["state"] in ("success", "failed"), run)  # noqa: B023
            tasks = airflow.ask("GET", f"{run}/taskInstances", token=token)["task_instances"]
            states = {one["task_id"]: one["state"] for one in tasks}
            failed = [name for name, state in states.items() if state == "failed"]
            assert {"classify": "success"}.items() <= states.items(), airflow.log_of(failed)
            assert set(states.values()) == {"success"}, airflow.log_of(failed)
    for name, depth in depths.items():
        airflow.until(lambda: depth() == 1, f"the message is in its queue on {name}")  # noqa: B023
    assert "everything adds up" in airflow.place.redrive("audit", **connections)
