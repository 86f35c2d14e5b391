"""The demo's broker: an SQS-compatible server on loopback, run as a child process, and its three queues.

Nothing here ever talks to another machine: :func:`refuse_remote` is asked before a client is made.
"""

import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from redrive.errors import BrokerUnavailable, UsageError

REGION = "us-east-1"
#: What the embedded server accepts; they open nothing anywhere else.
ACCESS_KEY, SECRET_KEY = "test", "test"

ORDERS, DEAD, DELAY = "orders", "orders-dlq", "orders-delay"
VISIBILITY_SECONDS = 2
MAX_RECEIVES = 3
MINISTACK_VARIABLE = "REDRIVE_MINISTACK"


class Counts(NamedTuple):
    """How many messages a queue holds, by what they are doing."""

    visible: int
    in_flight: int
    delayed: int

    @property
    def total(self) -> int:
        return self.visible + self.in_flight + self.delayed


@dataclass(frozen=True, slots=True)
class Queues:
    """The demo's queues and a client for them; the client may be shared by threads."""

    endpoint: str
    client: Any
    urls: dict[str, str]

    def url(self, name: str) -> str:
        return self.urls[name]

    def counts(self, name: str) -> Counts:
        """What the queue holds now; this server counts exactly."""
        answer = self.client.get_queue_attributes(
            QueueUrl=self.urls[name],
            AttributeNames=[
                "ApproximateNumberOfMessages",
                "ApproximateNumberOfMessagesNotVisible",
                "ApproximateNumberOfMessagesDelayed",
            ],
        )["Attributes"]
        return Counts(
            int(answer["ApproximateNumberOfMessages"]),
            int(answer["ApproximateNumberOfMessagesNotVisible"]),
            int(answer["ApproximateNumberOfMessagesDelayed"]),
        )


def refuse_remote(endpoint: str) -> None:
    """Raise :class:`UsageError` unless ``endpoint`` is on this machine: demo traffic goes nowhere else."""
    host = urlsplit(endpoint).hostname or ""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback:
        raise UsageError(f"the demo only sends to this machine, not to {endpoint!r}")


def free_port() -> int:
    """A TCP port on loopback that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def find_ministack(root: Path) -> Path:
    """The server's program: ``$REDRIVE_MINISTACK``, else the one of ``make setup``, else the PATH's."""
    named = os.environ.get(MINISTACK_VARIABLE)
    if named:
        return Path(named)
    installed = root / ".venv-ministack" / "bin" / "ministack"
    if installed.exists():
        return installed
    on_path = shutil.which("ministack")
    if on_path:
        return Path(on_path)
    raise UsageError(f"{installed} is missing: run `make setup`, or set ${MINISTACK_VARIABLE}")


@contextmanager
def embedded_server(program: Path, workspace: Path, *, keep: bool = False) -> Iterator[str]:
    """Run the server on a free loopback port; yields its endpoint, stops it at the end unless ``keep``.

    Its log and scratch files stay in ``workspace``. Raises :class:`BrokerUnavailable` if it doesn't answer
    within 30 seconds.
    """
    workspace.mkdir(parents=True, exist_ok=True)
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    log_path = workspace / "ministack.log"
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "TMPDIR": str(workspace),
        "GATEWAY_PORT": str(port),
        "BIND_HOST": "127.0.0.1",
        "SERVICES": "sqs",
        "LOG_LEVEL": "WARNING",
        # The server tidies up containers of its own kind at start; the demo has none and touches nobody's.
        "DOCKER_HOST": f"unix://{workspace}/no-docker.sock",
    }
    with log_path.open("wb") as log:
        process = subprocess.Popen(  # noqa: S603  the program that `make setup` installed
            [str(program)], env=environment, cwd=workspace, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait_until_healthy(process, endpoint, log_path)
        (workspace / "ministack.json").write_text(json.dumps({"pid": process.pid, "endpoint": endpoint}))
        yield endpoint
    except BaseException:
        keep = False
        raise
    finally:
        if not keep:
            _stop(process)


def make_queues(endpoint: str) -> Queues:
    """Create ``orders`` with its redrive policy, ``orders-dlq`` and ``orders-delay``; may be repeated."""
    import botocore.session  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415

    refuse_remote(endpoint)
    # (file key, environment variable, default, conversion): nothing of the user's AWS set-up plays a part.
    nowhere = (None, None, os.devnull, None)
    core = botocore.session.Session(
        {"profile": (None, None, None, None), "config_file": nowhere, "credentials_file": nowhere}
    )
    client: Any = core.create_client(
        "sqs",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        # A proxy of the user's must not see loopback traffic; the consumer uses the client from many threads.
        config=Config(max_pool_connections=80, proxies={}, retries={"max_attempts": 3, "mode": "standard"}),
    )
    urls = {}
    for name in (DEAD, DELAY):
        urls[name] = client.create_queue(
            QueueName=name, Attributes={"MessageRetentionPeriod": "345600", "VisibilityTimeout": "30"}
        )["QueueUrl"]
    dead_arn = client.get_queue_attributes(QueueUrl=urls[DEAD], AttributeNames=["QueueArn"])["Attributes"]
    policy = {"deadLetterTargetArn": dead_arn["QueueArn"], "maxReceiveCount": MAX_RECEIVES}
    urls[ORDERS] = client.create_queue(
        QueueName=ORDERS,
        Attributes={
            "VisibilityTimeout": str(VISIBILITY_SECONDS),
            "MessageRetentionPeriod": "345600",
            "RedrivePolicy": json.dumps(policy),
        },
    )["QueueUrl"]
    return Queues(endpoint, client, urls)


def _wait_until_healthy(process: subprocess.Popen[bytes], endpoint: str, log_path: Path) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with direct.open(f"{endpoint}/_ministack/health", timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    raise BrokerUnavailable(f"the embedded server did not start; its log is {log_path}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=3)
    except subprocess.TimeoutExpired:
        # It holds nothing that outlives it, so there is nothing to lose.
        process.kill()
        process.wait()
