"""Real servers for tests: started on loopback and a free port, stopped afterwards.

A test that needs a server which isn't there skips with the reason, unless ``REDRIVE_REQUIRE_BROKERS=all``
(what ``make test`` says): then it fails, because a suite that skips what it promises is not green.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

ROOT = Path(__file__).resolve().parent.parent


class ServerMissing(Exception):
    """The program is not installed; the text says where it was looked for."""


def missing(reason: str) -> None:
    """Skip the running test with ``reason``, or fail it where servers are required."""
    if os.environ.get("REDRIVE_REQUIRE_BROKERS") == "all":
        pytest.fail(f"{reason} (REDRIVE_REQUIRE_BROKERS=all)", pytrace=False)
    pytest.skip(reason)


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One server process with its own directory: ``with Server() as server``.

    A kind of server says how it is started (:meth:`command`), whether it answers (:meth:`ready`) and, if need
    be, how its directory is prepared. Standard output and error go to ``log``.
    """

    name = "server"
    start_within = 60.0  # seconds
    stop_signal = signal.SIGTERM

    def __init__(self, directory: Path | None = None) -> None:
        self.port = free_port()
        self._own_directory = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix=f"redrive-{self.name}-"))
        self.log = self.directory / f"{self.name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Make the directory fit to start in."""

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def user(self) -> str | None:
        """Whom to run as; None: as ourselves."""
        return None

    def ready(self) -> bool:
        raise NotImplementedError

    def start(self) -> Self:
        """Start and wait until it answers; raises ServerMissing if it isn't installed."""
        command = self.command()
        self.prepare()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env=self.environment(),
                user=self.user(),
                start_new_session=True,
            )
        deadline = time.monotonic() + self.start_within
        while not self.ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended at once:\n{self.log.read_text(errors='replace')[-4000:]}")
            if time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"{self.name} did not answer within {self.start_within:g} s; see {self.log}")
            time.sleep(0.05)
        return self

    def stop(self) -> None:
        """Stop it, with everything that it started."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(self.stop_signal)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(10)
        self.process = None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except Exception:
            self._clean_up()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clean_up()

    def _clean_up(self) -> None:
        self.stop()
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)


class Ministack(Server):
    """An SQS-compatible server over HTTP; a stand-in for SQS, as real AWS can't be reached from tests."""

    name = "ministack"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        own = ROOT / ".venv-ministack" / "bin" / "ministack"
        given = os.environ.get("REDRIVE_MINISTACK")
        found = given or (str(own) if own.exists() else shutil.which("ministack"))
        if not found or not Path(found).exists():
            raise ServerMissing(f"ministack is not in {own.parent}, PATH or $REDRIVE_MINISTACK")
        return [found]

    def environment(self) -> dict[str, str]:
        return dict(os.environ) | {"GATEWAY_PORT": str(self.port), "BIND_HOST": "127.0.0.1"}

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/_ministack/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError:
            return True  # it answers, in whatever way
        except OSError:
            return False

    def connection(self) -> dict[str, object]:
        """What an Airflow connection to this server says, as JSON."""
        return {
            "conn_type": "aws",
            "login": "test",
            "password": "test",
            "extra": {"region_name": "us-east-1", "endpoint_url": self.url},
        }


class Postgres(Server):
    """A PostgreSQL of its own: TCP on loopback, no fsync because nobody keeps the data.

    PostgreSQL refuses to run as root, so then it runs as the system user ``postgres``.
    """

    name = "postgres"
    stop_signal = signal.SIGINT  # "fast" shutdown: does not wait for clients

    def __init__(self, directory: Path | None = None) -> None:
        super().__init__(directory)
        self.data = self.directory / "data"

    @property
    def url(self) -> str:
        return self.database_url("postgres")

    def database_url(self, database: str) -> str:
        """The SQLAlchemy URL of ``database``."""
        return f"postgresql+psycopg://redrive@127.0.0.1:{self.port}/{database}"

    def create_database(self) -> str:
        """Make a new empty database and return its URL."""
        name = f"t{uuid.uuid4().hex[:12]}"
        self._sql(f'create database "{name}"')
        return self.database_url(name)

    def copy_database(self, url: str) -> str:
        """Make a database that begins as a copy of one to which nobody is connected; returns its URL."""
        name = f"t{uuid.uuid4().hex[:12]}"
        self._sql(f'create database "{name}" template "{url.rpartition("/")[2]}"')
        return self.database_url(name)

    def drop_database(self, url: str) -> None:
        """Drop what :meth:`create_database` made, with whoever is still connected."""
        self._sql(f'drop database if exists "{url.rpartition("/")[2]}" with (force)')

    def command(self) -> list[str]:
        return [
            self._binary("postgres"),
            *("-D", str(self.data), "-p", str(self.port), "-h", "127.0.0.1", "-k", str(self.directory)),
            *("-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"),
            *("-c", "max_connections=200", "-c", "shared_buffers=64MB"),
        ]

    def prepare(self) -> None:
        if self.user():
            shutil.chown(self.directory, self.user())
        self.directory.chmod(0o700)
        if not self.data.exists():
            initdb = [self._binary("initdb"), "-D", str(self.data), "-U", "redrive", "-A", "trust", "-N"]
            done = subprocess.run(
                [*initdb, "-E", "UTF8", "--locale=C.UTF-8"],
                user=self.user(),
                cwd=self.directory,
                capture_output=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"initdb failed:\n{done.stderr.decode(errors='replace')}")

    def user(self) -> str | None:
        return "postgres" if os.geteuid() == 0 else None

    def ready(self) -> bool:
        return self._when_connected(lambda connection: None)

    def _sql(self, statement: str) -> None:
        if not self._when_connected(lambda connection: connection.execute(statement)):
            raise RuntimeError(f"PostgreSQL on port {self.port} does not answer")

    def _when_connected(self, work: Callable) -> bool:
        import psycopg  # noqa: PLC0415 - only tests with this server need it

        try:
            connection = psycopg.connect(
                host="127.0.0.1", port=self.port, user="redrive", dbname="postgres", autocommit=True
            )
        except psycopg.OperationalError:
            return False
        with connection:
            work(connection)
        return True

    @staticmethod
    def _binary(name: str) -> str:
        folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name, reverse=True)
        found = shutil.which(name) or next((str(f / name) for f in folders if (f / name).exists()), None)
        if found is None:
            raise ServerMissing(f"PostgreSQL's {name} is neither in PATH nor in /usr/lib/postgresql/*/bin")
        return found
