"""Real servers for tests: started on loopback and a free port, stopped afterwards.

A test that needs a server which isn't there skips with the reason, unless ``REDRIVE_REQUIRE_BROKERS=all``
(what ``.ci/run`` says; ``make test`` leaves it to whoever calls it): then it fails, because a suite that skips what it
promises is not green.
"""

import base64
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import pytest

ROOT = Path(__file__).resolve().parent.parent


class ServerMissing(Exception):
    """The program is not installed; the text says where it was looked for."""


def missing(reason: str) -> None:
    """Skip the running test with ``reason``, or fail it where servers are required."""
    if os.environ.get("REDRIVE_REQUIRE_BROKERS") == "all":
        pytest.fail(f"{reason} (REDRIVE_REQUIRE_BROKERS=all)", pytrace=False)
    pytest.skip(reason)


#: Below those that systems hand out by themselves, so that no outgoing connection sits on one.
PORTS = range(20_000, 32_000)
#: The ports of this process: each with a locked file, so that no other process of tests is given it too.
_taken: dict[int, IO[str]] = {}


def free_port() -> int:
    """A TCP port on loopback that nobody listens on, and that is ours until this process ends."""
    locks = Path(tempfile.gettempdir()) / f"redrive-ports-{os.geteuid()}"
    locks.mkdir(exist_ok=True)
    for port in secrets.SystemRandom().sample(PORTS, 1_000):
        lock = (locks / str(port)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            continue
        _taken[port] = lock
        return port
    raise RuntimeError(f"no free port from {PORTS.start} to {PORTS.stop}")


class Guard:
    """Kills what this process started and did not stop, when it is gone itself: however it went."""

    _CODE = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    change = groups.add if line[0] == "+" else groups.discard
    change(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def watch(self, group: int) -> None:
        """Kill this group of processes when we are gone, unless it was told to :meth:`forget` it."""
        if self._process is None:
            command = [sys.executable, "-I", "-S", "-c", self._CODE]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)
        self._tell(f"+{group}")

    def forget(self, group: int) -> None:
        self._tell(f"-{group}")

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            print(line, file=self._process.stdin, flush=True)


GUARD = Guard()


class Server:
    """One server process with its own directory: ``with Server() as server``.

    A kind of server says how it is started (:meth:`command`), whether it answers (:meth:`ready`) and, if need
    be, how its directory is prepared. Standard output and error go to ``log``.
    """

    name = "server"
    start_within = 120.0  # seconds; several start side by side
    stop_within = 10.0  # and is killed then
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
        GUARD.watch(self.process.pid)
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
                self.process.wait(self.stop_within)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(60)
        if self.process is not None:
            GUARD.forget(self.process.pid)
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

    def __init__(self, directory: Path | None = None, *, buffers: str = "64MB") -> None:
        super().__init__(directory)
        self.data = self.directory / "data"
        self._buffers = buffers

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
            *("-c", "max_connections=200", "-c", f"shared_buffers={self._buffers}"),
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


class RabbitMQ(Server):
    """A RabbitMQ node of its own, with its management API; AMQP, distribution and epmd on loopback only.

    Users and queues are made through the management API, because ``rabbitmqctl`` takes seconds per call.
    """

    name = "rabbitmq"
    stop_within = 60.0  # killed, it might forget what tests go on with
    home = Path("/usr/lib/rabbitmq/lib")

    def __init__(self, directory: Path | None = None) -> None:
        super().__init__(directory)
        self.management_port = free_port()
        self.tls_port = free_port()
        self.certificate = self.directory / "certificate.pem"  # signed by itself, for localhost and 127.0.0.1
        self._epmd_port = free_port()
        self._epmd: subprocess.Popen[bytes] | None = None
        self._distribution_port = free_port()

    def command(self) -> list[str]:
        found = sorted(self.home.glob("rabbitmq_server-*/sbin/rabbitmq-server"))
        if not found:
            raise ServerMissing(f"RabbitMQ's server is not in {self.home} (Debian: rabbitmq-server)")
        return [str(found[-1])]

    def prepare(self) -> None:
        (self.directory / "plugins").write_text("[rabbitmq_management].\n")
        (self.directory / "rabbitmq.conf").write_text(
            f"management.tcp.port = {self.management_port}\nmanagement.tcp.ip = 127.0.0.1\n"
            f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}\nssl_options.verify = verify_none\n"
            f"ssl_options.certfile = {self.certificate}\nssl_options.keyfile = {self.directory}/key.pem\n"
            "disk_free_limit.absolute = 10MB\nloopback_users = none\n"
            # Statistics as of a second ago instead of ten.
            "collect_statistics_interval = 500\n"
            + "".join(
                f"management.sample_retention_policies.{of}.minute = 1\n" for of in ("global", "basic", "detailed")
            )
        )
        if not self.certificate.exists():
            make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
            names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
            files = ["-keyout", str(self.directory / "key.pem"), "-out", str(self.certificate)]
            subprocess.run([*make, "-addext", names, *files], check=True, capture_output=True)
        epmd = shutil.which("epmd")
        if epmd is None:
            raise ServerMissing("Erlang's epmd is not in PATH")
        # Erlang would start one that outlives us and listens on every interface.
        self._epmd = subprocess.Popen(
            [epmd, "-port", str(self._epmd_port), "-address", "127.0.0.1"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        GUARD.watch(self._epmd.pid)

    def environment(self) -> dict[str, str]:
        own = self.directory
        return dict(os.environ) | {
            "HOME": str(own),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"redrive{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_MNESIA_BASE": str(own / "mnesia"),
            "RABBITMQ_LOG_BASE": str(own / "log"),
            "RABBITMQ_CONFIG_FILE": str(own / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(own / "no-such-file"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(own / "plugins"),
            "RABBITMQ_PID_FILE": str(own / "pid"),
        }

    def ready(self) -> bool:
        try:
            # Management comes up last, and with the listeners open.
            return self.ask("GET", "overview") is not None
        except OSError:
            return False

    def stop(self) -> None:
        """Stop the node in order, and its epmd."""
        if self.process is not None and self.process.poll() is None:
            # The script that starts Erlang does not always hand the signal on.
            os.killpg(self.process.pid, signal.SIGTERM)
        super().stop()
        self._stop_epmd()

    def kill(self) -> None:
        """Let the node die as in a power cut, as far as a process can."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)
        GUARD.forget(self.process.pid)
        self.process = None
        self._stop_epmd()

    def _clean_up(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()  # nobody reads its files any more, and stopping in order takes seconds
        super()._clean_up()

    def _stop_epmd(self) -> None:
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait(10)
            GUARD.forget(self._epmd.pid)
            self._epmd = None

    def ask(self, method: str, path: str, body: object = None, *, user: str = "guest") -> Any:
        """Call the management API; None where there is no content."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.management_port}/api/{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={
                "Content-Type": "application/json",
                "Authorization": "Basic " + base64.b64encode(f"{user}:{user}".encode()).decode(),
            },
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = answer.read()
        return json.loads(content) if content else None

    def create_queue(self, name: str, *, vhost: str = "%2F", **arguments: object) -> str:
        """Declare a durable queue with these arguments (``x_`` stands for ``x-``) and return its name."""
        fixed = {key.replace("_", "-"): value for key, value in arguments.items() if value is not None}
        self.ask("PUT", f"queues/{vhost}/{name}", {"durable": True, "arguments": fixed})
        return name

    def create_user(
        self, name: str, *, vhost: str = "%2F", configure: str = "", write: str = "", read: str = ""
    ) -> str:
        """A user whose password is the name, with these rights in one virtual host."""
        self.ask("PUT", f"users/{name}", {"password": name, "tags": "monitoring"})
        rights = {"configure": configure, "write": write, "read": read}
        self.ask("PUT", f"permissions/{vhost}/{name}", rights)
        return name

    def control(self, *arguments: str) -> None:
        """Run ``rabbitmqctl``; takes about two seconds."""
        program = Path(self.command()[0]).with_name("rabbitmqctl")
        subprocess.run([str(program), *arguments], env=self.environment(), check=True, capture_output=True)

    def consume(self, queue: str, *, prefetch: int = 0, **options: Any) -> "Consumer":
        """Somebody else's consumer, by a connection of its own; ``options`` go to ``basic_consume``."""
        return Consumer(self, queue, prefetch, **options)

    def connection(self, **changes: object) -> dict[str, object]:
        """What an Airflow connection to this server says, as JSON."""
        extra = {"management_url": f"http://127.0.0.1:{self.management_port}", "timeout": 10}
        return {
            "conn_type": "amqp",
            "host": "127.0.0.1",
            "port": self.port,
            "login": "guest",
            "password": "guest",
            "extra": extra,
        } | changes


class Consumer:
    """A consumer as teams write them, on pika; it keeps what it gets until the test says what becomes of it."""

    def __init__(self, server: RabbitMQ, queue: str, prefetch: int, **options: Any) -> None:
        import pika  # noqa: PLC0415 - only tests with this server need it

        parameters = pika.ConnectionParameters("127.0.0.1", server.port, heartbeat=0)
        self.connection = pika.BlockingConnection(parameters)
        self.held: list[tuple[int, bytes]] = []  # delivery tag and body, oldest first
        self.channel = self.join(queue, prefetch, **options)

    def join(self, queue: str, prefetch: int = 0, **options: Any) -> Any:
        """Consume another queue too, on another channel of the same connection."""
        channel = self.connection.channel()
        channel.basic_qos(prefetch_count=prefetch)
        channel.basic_consume(
            queue, lambda _, method, __, body: self.held.append((method.delivery_tag, body)), **options
        )
        return channel

    def serve(self, seconds: float = 0.05) -> None:
        """Take in what has come; raises pika's error where the broker closed the connection."""
        self.connection.process_data_events(seconds)

    def ack(self, *, reject: bool = False) -> bytes:
        """Be done with the oldest message, or reject it; its body."""
        tag, body = self.held.pop(0)
        if reject:
            self.channel.basic_reject(tag, requeue=False)
        else:
            self.channel.basic_ack(tag)
        self.serve()
        return body

    def close(self) -> None:
        """Leave; what it holds goes back."""
        if self.connection.is_open:
            self.connection.close()
