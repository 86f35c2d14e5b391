"""Airflow on loopback: for ``make up``, for ``make run`` and for the tests that need a real scheduler.

All state is under one folder (``var/airflow``): Airflow's own database, its logs, the generated password and
secrets, which are readable by their owner only. Nothing listens on anything but 127.0.0.1. This is one user's
Airflow on one machine; production runs Redrive's DAGs in an Airflow of its own (docs/airflow.md).
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO, NamedTuple

from redrive import settings as configuration
from redrive.airflow import DAG_FILE
from redrive.connections.lookup import variable_of
from redrive.dev import local_spark
from redrive.errors import RedriveError, UsageError
from redrive.settings import Settings

USER = "admin"
HOST = "127.0.0.1"
DEFAULT_PORT = 8080
#: The order is the order of start; they are stopped in reverse.
COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "api-server": ("api-server",),
    # Logs are read from the folder by the api-server, so nobody needs the log servers, which would listen
    # on every interface.
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
_STOP_SECONDS = 20.0
#: Runs the command that follows it, after asking Linux for SIGTERM when we die, even by SIGKILL. As a program
#: of its own and not a ``preexec_fn``, because that may hang where other threads run.
_LEASH = """\
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(143)
os.execv(sys.argv[2], sys.argv[2:])
"""


#: Starts something below a home folder, and yields the environment by which its connections are found.
World = Callable[[Path], AbstractContextManager[Mapping[str, str]]]


class AirflowFailed(RedriveError):
    """Airflow did not start or ended by itself; the text says which part and where its log is."""


class PortTaken(UsageError):
    """Somebody else listens on the port; the text names it."""


class Airflow(NamedTuple):
    """An Airflow that answers."""

    url: str
    user: str
    password: str
    environment: Mapping[str, str]
    home: Path


def airflow_home(home: Path) -> Path:
    """Where the local Airflow keeps everything, below the project's ``home``."""
    return home / "var" / "airflow"


def environment(
    home: Path, port: int, *, base: Mapping[str, str] | None = None, viewers: Sequence[str] = ()
) -> dict[str, str]:
    """The environment of every local Airflow process; makes the folder, the password and the secrets.

    ``home`` is where ``var/`` is (``$REDRIVE_HOME``), ``port`` the api-server's. ``base`` is what to start
    from (default: this process's environment), so connections such as ``AIRFLOW_CONN_SQS_DEMO`` pass through;
    settings of another Airflow (``AIRFLOW__…``) do not, or they would point this one at that one's database.
    ``viewers`` are users beside :data:`USER` who may look and change nothing.
    Repeated calls give the same passwords and secrets. Port 0 is for runs without a server (:func:`dags_test`).
    """
    state = airflow_home(home)
    _private_folder(state)
    given = os.environ if base is None else base
    kept = {key: value for key, value in given.items() if not key.startswith(("AIRFLOW__", "AIRFLOW_CONFIG"))}
    # Airflow's parts talk to each other over loopback; a proxy of the user's must not be asked for that.
    direct = ",".join(filter(None, [kept.get("no_proxy") or kept.get("NO_PROXY"), f"{HOST},localhost"]))
    scripts = sysconfig.get_path("scripts")
    # The code is where it is installed, also where ``$REDRIVE_HOME`` puts the state elsewhere.
    code = configuration.checkout()
    dags, plugins = (code or state) / "dags", (code or state) / "plugins"
    if code is None:  # and the package's entry point brings the page
        dags.mkdir(exist_ok=True)
        (dags / "redrive_dags.py").write_text(DAG_FILE)
    url = f"http://{HOST}:{port}"
    passwords = state / "simple_auth_manager_passwords.json"
    known = json.loads(passwords.read_text(encoding="utf-8")) if passwords.exists() else {}
    missing = {name: secrets.token_urlsafe(12) for name in (USER, *viewers) if name not in known}
    if missing:
        _write_private(passwords, json.dumps(known | missing))
    return kept | {
        "PATH": os.pathsep.join([scripts, kept.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(plugins) if code else "", kept.get("PYTHONPATH", "")])),
        "NO_PROXY": direct,
        "no_proxy": direct,
        "REDRIVE_HOME": str(home),
        "AIRFLOW_HOME": str(state),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(plugins),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": str(max(2, os.cpu_count() or 2)),
        "AIRFLOW__CORE__FERNET_KEY": _secret(state / "fernet_key", _fernet_key),
        "AIRFLOW__CORE__AUTH_MANAGER": (
            "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager"
        ),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(
            [f"{USER}:admin", *(f"{name}:viewer" for name in viewers)]
        ),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__API__HOST": HOST,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__SECRET_KEY": _secret(state / "api_secret", secrets.token_hex),
        "AIRFLOW__API_AUTH__JWT_SECRET": _secret(state / "jwt_secret", secrets.token_hex),
        # SQLite's writers wait for each other, on a busy machine longer than the driver's 5 s; then a request to
        # the API would be answered with 500.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{state / 'airflow.db'}?timeout=60",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(state / "logs"),
        "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "False",  # would listen on every interface
        "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "2",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "30",
    }


def password(env: Mapping[str, str], user: str = USER) -> str:
    """The generated password of ``user``."""
    file = Path(env["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
    return str(json.loads(file.read_text(encoding="utf-8"))[user])


def migrate(env: Mapping[str, str]) -> None:
    """Bring Airflow's own database to its schema (about 6 s the first time); harmless when repeated."""
    log = Path(env["AIRFLOW_HOME"]) / "migrate.log"
    with log.open("wb") as sink:
        code = subprocess.run(  # noqa: S603  the airflow of this very environment
            [_program("airflow"), "db", "migrate"],
            env=dict(env), stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, check=False,
        ).returncode  # fmt: skip
    if code:
        raise AirflowFailed(f"airflow db migrate ended with {code}; see {log}")


def dags_test(
    dag_id: str,
    conf: Mapping[str, object],
    env: Mapping[str, str],
    on_progress: Callable[[str, str], None] | None = None,
) -> int:
    """Run one DAG to its end in one process, without a scheduler; 0 when the run succeeded.

    ``env`` is of :func:`environment`, and its database is migrated (:func:`migrate`). ``on_progress`` hears
    ``("drain[0]", "running")`` when a task starts and its state when it ends; tasks that are skipped because
    of others are not mentioned. The whole output is kept in ``<AIRFLOW_HOME>/<dag_id>.log``.
    """
    log = Path(env["AIRFLOW_HOME"]) / f"{dag_id}.log"
    command = [_program("airflow"), "dags", "test", dag_id, "--conf", json.dumps(dict(conf))]
    with log.open("w", encoding="utf-8") as sink, _child(command, env, subprocess.PIPE) as process:
        assert process.stdout is not None  # noqa: S101  asked for by PIPE
        progress = _Progress(on_progress)
        for line in process.stdout:
            text = line.decode("utf-8", "replace")
            sink.write(text)
            sink.flush()
            progress.read(text)
        return process.wait()


@contextmanager
def running(
    home: Path, port: int, *, base: Mapping[str, str] | None = None, viewers: Sequence[str] = ()
) -> Iterator[Airflow]:
    """A real Airflow (api-server, scheduler, dag-processor, triggerer) on loopback for as long as the block lasts.

    Yields when all four say that they are healthy (about 20 s). Raises :class:`PortTaken`, or
    :class:`AirflowFailed` when a part ends or isn't healthy within three minutes. All of them are stopped at
    the end, and, on Linux, when this process dies.
    """
    with started(home, port, base=base, viewers=viewers) as (airflow, watch):
        watch.until_healthy(airflow, timeout=180)
        yield airflow


def up(
    settings: Settings,
    port: int | None = None,
    *,
    worlds: Mapping[str, World] = MappingProxyType({}),
    say: Callable[[str], None] = print,
) -> int:
    """``redrive up``: run Airflow with every DAG scheduled until Ctrl-C; returns the exit code.

    ``port`` defaults to ``$PORT`` or 8080. ``worlds`` says, by connection id, what can be started for routes of
    which that connection is and the environment doesn't define it: the demo's broker and shop. An empty ledger is
    made; one of another version is refused with :class:`~redrive.errors.SchemaOutdated`. Where the configuration
    lets the environment choose Spark's runner and nobody has chosen, a Spark Connect server is started as well; one
    that ends is started again, and :class:`~redrive.dev.local_spark.SparkFailed` raised when that doesn't help.
    """
    chosen = port if port is not None else _port_from(os.environ.get("PORT"))
    refuse_taken(chosen)
    signal.signal(signal.SIGTERM, _interrupt)  # `kill` and a closing terminal stop the children as Ctrl-C does
    signal.signal(signal.SIGHUP, _interrupt)
    home = configuration.home()
    try:
        with ExitStack() as stack:
            base = dict(os.environ)
            for connection in sorted({route.connection or "" for route in settings.routes.values()}):
                if connection in worlds and variable_of(connection) not in os.environ:
                    say(f"connection {connection} is not defined: starting the demo's ...")
                    base |= stack.enter_context(worlds[connection](home))
            _make_ledger(settings)
            server = None
            if spark_is_ours(base):
                say("starting Spark Connect ...")
                server = stack.enter_context(local_spark.started(home, settings.spark))
                base |= server.environment
            say("starting Airflow: about 20 seconds ...")
            airflow, watch = stack.enter_context(started(home, chosen, base=base))
            watch.until_healthy(airflow, timeout=180)
            if server is not None:
                server.until_ready()
            for line in _greeting(airflow, settings, server):
                say(line)
            watch.until_one_ends((lambda: server.revive(say)) if server is not None else None)
    except KeyboardInterrupt:
        say("stopped")
    return 0


def spark_is_ours(env: Mapping[str, str]) -> bool:
    """Whether the configuration takes Spark's runner and address from the environment, and ``env`` says none."""
    if env.get(local_spark.RUNNER_VARIABLE):
        return False
    probe = "sc://localhost:1"
    asked = {local_spark.RUNNER_VARIABLE: "connect", local_spark.REMOTE_VARIABLE: probe}
    spark = configuration.load(env={**env, **asked}).spark
    return (spark.runner, spark.remote) == ("connect", probe)


def _make_ledger(settings: Settings) -> None:
    from datetime import UTC, datetime  # noqa: PLC0415

    from redrive.ledger import schema  # noqa: PLC0415
    from redrive.ledger.engine import Ledger  # noqa: PLC0415

    ledger = Ledger(settings.database)
    try:
        with ledger.read() as connection:
            empty = schema.current_revision(connection) is None
        if empty:
            schema.upgrade(ledger, datetime.now(UTC))
        schema.check(ledger)
    finally:
        ledger.close()


class Watch:
    """The four processes of a local Airflow."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._parts: dict[str, subprocess.Popen[bytes]] = {}

    def add(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        self._parts[name] = process

    def check(self) -> None:
        """Raise :class:`AirflowFailed` if a part has ended."""
        for name, process in self._parts.items():
            if process.poll() is not None:
                log = self._logs / f"{name}.log"
                raise AirflowFailed(f"airflow {name} ended with {process.returncode}; see {log}\n{_tail(log)}")

    def until_healthy(self, airflow: Airflow, *, timeout: float) -> None:
        """Wait until every part reports health; ``timeout`` in seconds."""
        deadline = time.monotonic() + timeout
        while True:
            self.check()
            sick = unhealthy(airflow.url)
            if not sick:
                return
            if time.monotonic() > deadline:
                raise AirflowFailed(f"not healthy after {timeout:.0f} s: {', '.join(sick)}; see {self._logs}")
            time.sleep(0.5)

    def until_one_ends(self, tend: Callable[[], None] | None = None) -> None:
        """Wait, calling ``tend`` every second; raises :class:`AirflowFailed` when a part ends by itself."""
        while True:
            self.check()
            if tend is not None:
                tend()
            time.sleep(1)

    def stop(self) -> None:
        """Stop all parts and everything that they started, politely first."""
        for process in reversed(self._parts.values()):
            _signal_group(process, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        for process in self._parts.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass  # killed below, with whatever is left of its group
        for process in self._parts.values():
            _signal_group(process, signal.SIGKILL)
            process.wait()


@contextmanager
def started(
    home: Path, port: int, *, base: Mapping[str, str] | None = None, viewers: Sequence[str] = ()
) -> Iterator[tuple[Airflow, Watch]]:
    """Like :func:`running`, but yields as soon as the processes run, with the :class:`Watch` to wait by."""
    refuse_taken(port)
    env = environment(home, port, base=base, viewers=viewers)
    migrate(env)
    state = airflow_home(home)
    watch = Watch(state)
    try:
        for name, command in COMPONENTS.items():
            with (state / f"{name}.log").open("wb") as log:
                watch.add(name, _spawn([_program("airflow"), *command], env, log))
        yield Airflow(f"http://{HOST}:{port}", USER, password(env), env, state), watch
    finally:
        watch.stop()


def refuse_taken(port: int) -> None:
    """Raise :class:`PortTaken` unless ``port`` on loopback is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise PortTaken(
                f"port {port} on {HOST} is in use; stop what listens there or choose another, "
                f"e.g. `make up PORT={port + 1}`"
            ) from error


def unhealthy(url: str) -> list[str]:
    """The parts of the Airflow at ``url`` that do not report health; ``["api-server"]`` if it doesn't answer."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{url}/api/v2/monitor/health", timeout=5) as answer:
            report = json.load(answer)
    except (OSError, ValueError):
        return ["api-server"]
    wanted = ("metadatabase", "scheduler", "dag_processor", "triggerer")
    return [part for part in wanted if (report.get(part) or {}).get("status") != "healthy"]


class _Progress:
    """Reads the log of ``airflow dags test`` and tells which task runs and how it ended."""

    _START, _END, _STATE = "[DAG TEST] starting task_id=", "[DAG TEST] end task task_id=", "new_state="

    def __init__(self, tell: Callable[[str, str], None] | None) -> None:
        self._tell = tell or (lambda _task, _state: None)
        self._state = "failed"

    def read(self, line: str) -> None:
        if self._START in line:
            self._state = "failed"  # unless the task says otherwise before it ends
            self._tell(self._name(line, self._START), "running")
        elif self._END in line:
            self._tell(self._name(line, self._END), self._state)
        elif self._STATE in line and "Task instance state updated" in line:
            self._state = line.split(self._STATE, 1)[1].split(maxsplit=1)[0]

    @staticmethod
    def _name(line: str, mark: str) -> str:
        task, _, rest = line.split(mark, 1)[1].partition(" map_index=")
        index = rest.split(maxsplit=1)[0] if rest.strip() else "-1"
        return task if index == "-1" else f"{task}[{index}]"


def _greeting(airflow: Airflow, settings: Settings, server: local_spark.ConnectServer | None) -> Iterator[str]:
    yield f"Airflow      {airflow.url}"
    yield f"review page  {airflow.url}/plugin/redrive"
    yield f"user         {airflow.user}"
    yield f"password     {airflow.password}   (kept in {airflow.home / 'simple_auth_manager_passwords.json'})"
    if server is not None:
        yield f"Spark        Connect at {server.remote}, for these DAGs only; log {server.log}"
    yield "scheduled"
    for name, route in settings.routes.items():
        when = route.schedule or "by hand"
        yield f"  redrive_{name:<22} {when}"
    yield "  redrive_review and redrive_audit, for all routes"
    yield f"logs         {airflow.home}"
    yield "Ctrl-C stops everything."


def _program(name: str) -> str:
    """The program of this very environment, whatever the PATH says."""
    return str(Path(sysconfig.get_path("scripts")) / name)


def _port_from(text: str | None) -> int:
    if not text:
        return DEFAULT_PORT
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise UsageError(f"PORT={text!r} is not a port; a number from 1 to 65535 is")
    return int(text)


def _spawn(command: Sequence[str], env: Mapping[str, str], out: "IO[bytes] | int") -> "subprocess.Popen[bytes]":
    """Start a child in a process group of its own, so that Ctrl-C reaches it through us and in our order."""
    leash = [sys.executable, "-I", "-S", "-c", _LEASH, str(os.getpid())]
    return subprocess.Popen(  # noqa: S603  the airflow of this very environment
        [*leash, *command],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


@contextmanager
def _child(
    command: Sequence[str], env: Mapping[str, str], out: "IO[bytes] | int"
) -> "Iterator[subprocess.Popen[bytes]]":
    """A child that is gone, with its own children, when the block ends."""
    process = _spawn(command, env, out)
    try:
        yield process
    finally:
        if process.poll() is None:
            _signal_group(process, signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                _signal_group(process, signal.SIGKILL)
                process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _signal_group(process: "subprocess.Popen[bytes]", what: signal.Signals) -> None:
    try:
        os.killpg(process.pid, what)
    except ProcessLookupError:
        pass  # all of the group is gone already


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def _private_folder(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, never readable by others in between."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o600)
        file.write(text)


def _secret(path: Path, make: Callable[[], str]) -> str:
    if not path.exists():
        _write_private(path, make())
    return path.read_text(encoding="utf-8")


def _fernet_key() -> str:
    return urlsafe_b64encode(secrets.token_bytes(32)).decode()
