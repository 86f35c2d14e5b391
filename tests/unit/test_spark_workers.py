"""The process that forks Spark's Python workers: it lives as long as it has one, and ends by itself after."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("pyspark")


@contextmanager
def forking(seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """As Spark starts it: it tells its port on standard output and ends when standard input does."""
    program = f"from redrive.dev import spark_workers; spark_workers.SECONDS = {seconds}; spark_workers.main()"
    environment = os.environ | {"PYTHON_WORKER_FACTORY_SECRET": "secret", "SPARK_REUSE_WORKER": "1"}
    command = [sys.executable, "-c", program, "pyspark.worker"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def number(data: bytes) -> int:
    return int.from_bytes(data, "big")


def test_it_ends_when_nobody_wants_a_worker() -> None:
    with forking(1.0) as forker:
        assert forker.wait(timeout=60) == 0


@pytest.mark.slow
def test_it_stays_as_long_as_it_has_a_worker() -> None:
    """It looks when the test says so: by its own clock it might look before there is a worker."""
    with forking(600.0) as forker:
        assert forker.stdout
        address = "127.0.0.1", number(forker.stdout.read(4))
        with socket.create_connection(address) as wanted:
            worker = number(wanted.recv(4))
            for _ in range(3):
                forker.send_signal(signal.SIGALRM)
                with socket.create_connection(address) as another:  # who forks has looked and is still there
                    assert number(another.recv(4)) != worker
            assert forker.poll() is None
            os.kill(worker, 0)
        deadline = time.monotonic() + 60
        while forker.poll() is None:
            assert time.monotonic() < deadline
            forker.send_signal(signal.SIGALRM)
            time.sleep(0.05)
        assert forker.returncode == 0
