"""Airflow on loopback: for ``make up``, for ``make run`` and for the tests that need a real scheduler.

All state is under one folder (``var/airflow``): Airflow's own database, its logs, the generated password and
secrets, which are readable by their owner only. Nothing listens on anything but 127.0.0.1. This is one user's
Airflow on one machine; production runs Redrive's DAGs in an Airflow of its own (docs/airflow.md).
"""

import json
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from redrive.dev import child_processes
from redrive.dev.airflow_environment import HOST, USER, airflow_home, environment, password
from redrive.errors import RedriveError, UsageError

#: The order is the order of start; they are stopped in reverse.
COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "api-server": ("api-server",),
    # Logs are read from the folder by the api-server, so nobody needs the log servers, which would listen
    # on every interface.
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}


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


def migrate(env: Mapping[str, str]) -> None:
    """Bring Airflow's own database to its schema (about 6 s the first time); harmless when repeated."""
    log = Path(env["AIRFLOW_HOME"]) / "migrate.log"
    with log.open("wb") as sink:
        code = subprocess.run(  # noqa: S603  the airflow of this very environment
            [child_processes.program("airflow"), "db", "migrate"],
            env=dict(env), stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, check=False,
        ).returncode  # fmt: skip
    if code:
        raise AirflowFailed(f"airflow db migrate ended with {code}; see {log}")


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


class Watch:
    """The four processes of a local Airflow."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._parts: dict[str, subprocess.Popen[bytes]] = {}

    def add(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """``process`` is the part of this name from now on; they are stopped in reverse order."""
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
            child_processes.signal_group(process, signal.SIGTERM)
        deadline = time.monotonic() + child_processes.STOP_SECONDS
        for process in self._parts.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass  # killed below, with whatever is left of its group
        for process in self._parts.values():
            child_processes.signal_group(process, signal.SIGKILL)
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
                watch.add(name, child_processes.spawn([child_processes.program("airflow"), *command], env, log))
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


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
