"""Spark Connect on loopback: for ``make up`` and for the tests of ``spark.runner: connect``.

A Spark that runs already spares every batch its start, which costs more than classifying a few thousand messages.
The server listens on 127.0.0.1 only, and serves only who knows its token: whoever may talk to Spark Connect can run
any program. Production has a Spark Connect server of its own (docs/airflow.md).
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from redrive.dev import child_processes
from redrive.errors import RedriveError
from redrive.settings import SparkSettings
from redrive.spark import session_conf, submit

HOST = "127.0.0.1"
#: PySpark's client reads it as well as the server does, so the token stands in no address and in no file.
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  a name
#: What ``config/redrive.yaml`` asks the environment for.
RUNNER_VARIABLE, REMOTE_VARIABLE = "REDRIVE_SPARK_RUNNER", "REDRIVE_SPARK_REMOTE"
_START_SECONDS = 120.0
_STOP_SECONDS = 15.0


class SparkFailed(RedriveError):
    """The local Spark Connect server did not start; the text names its log."""


class ConnectServer:
    """A Spark Connect server; its port and token stay the same when it is started again."""

    def __init__(self, home: Path, settings: SparkSettings) -> None:
        self._folder = home / "var" / "spark"
        self._settings = settings
        self._port, self._token = _free_port(), secrets.token_urlsafe(24)
        self._process: subprocess.Popen[bytes] | None = None
        self.log = self._folder / "connect.log"
        #: For ``spark.remote``. Of the name localhost alone PySpark believes that it needs no TLS to send a token.
        self.remote = f"sc://localhost:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """By which ``config/redrive.yaml`` and PySpark's client find the server and are let in."""
        return {RUNNER_VARIABLE: "connect", REMOTE_VARIABLE: self.remote, TOKEN_VARIABLE: self._token}

    @property
    def pid(self) -> int | None:
        """The process, which is also the group of all that it started."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the server and don't wait for it; raises :class:`SparkFailed` without Java."""
        if trouble := submit.java_missing():
            raise SparkFailed(trouble)
        self._folder.mkdir(parents=True, exist_ok=True)
        # In the environment, where other users of the machine can't read the token; a process's arguments they can.
        env = os.environ | {TOKEN_VARIABLE: self._token, "SPARK_LOCAL_IP": HOST, "PYSPARK_PYTHON": sys.executable}
        env.pop("SPARK_REMOTE", None)
        # Spark's errors may quote a customer's messages, so the log is nobody else's business.
        with os.fdopen(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as sink:
            os.fchmod(sink.fileno(), 0o600)
            self._process = child_processes.spawn(self._command(), env, sink, folder=self._folder)

    def until_ready(self) -> None:
        """Wait until the server accepts connections (about 8 s after its start).

        Raises :class:`SparkFailed` when it ends before or doesn't within two minutes.
        """
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if (code := self._ended()) is not None:
                raise SparkFailed(f"Spark Connect ended with {code}; see {self.log}\n{submit.tail(self.log)}")
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex((HOST, self._port)) == 0:
                    return
            time.sleep(0.1)
        raise SparkFailed(f"Spark Connect did not answer within {_START_SECONDS:.0f} s; see {self.log}")

    def revive(self, say: Callable[[str], None]) -> None:
        """Start the server again if it has ended; raises :class:`SparkFailed` if that doesn't help."""
        code = self._ended()
        if code is None:
            return
        say(f"Spark Connect ended with {code} (see {self.log}): starting it again ...")
        self.stop()  # whatever is left of its group
        self.start()
        self.until_ready()
        say("Spark Connect is back; a task that failed meanwhile is tried again by Airflow")

    def stop(self) -> None:
        """Stop the server and everything that it started, politely first; harmless when repeated."""
        if self._process is None:
            return
        child_processes.signal_group(self._process, signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass  # killed below, with whatever is left of its group
        child_processes.signal_group(self._process, signal.SIGKILL)
        self._process.wait()

    def _ended(self) -> int | None:
        return self._process.poll() if self._process is not None else None

    def _command(self) -> list[str]:
        command = [child_processes.program("spark-submit"), "--master", self._settings.master]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        command += ["--name", "redrive-connect"]
        ours = {**session_conf.SESSION, **session_conf.LOCAL}
        ours["spark.connect.grpc.binding.address"] = HOST
        ours["spark.python.daemon.module"] = "redrive.dev.spark_workers"
        ours[session_conf.JVM_OPTIONS] = session_conf.jvm_options()
        port = {"spark.connect.grpc.binding.port": str(self._port)}
        for key, value in (ours | self._settings.conf | port).items():
            command += ["--conf", f"{key}={value}"]
        return [*command, "spark-internal"]


@contextmanager
def started(home: Path, settings: SparkSettings | None = None) -> Iterator[ConnectServer]:
    """A Spark Connect server for as long as the block lasts; yields at once (:meth:`ConnectServer.until_ready`).

    ``home`` is where ``var/`` is; of ``settings`` count ``master`` and ``conf``. The server is
    stopped at the end, and, on Linux, when this process dies. Raises :class:`SparkFailed` without Java.
    """
    server = ConnectServer(home, settings or SparkSettings())
    server.log.unlink(missing_ok=True)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextmanager
def running(home: Path, settings: SparkSettings | None = None) -> Iterator[ConnectServer]:
    """Like :func:`started`, but yields when the server accepts connections; also raises what its wait does."""
    with started(home, settings) as server:
        server.until_ready()
        yield server


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
