"""The process that forks Spark's Python workers: it lives as long as it has one, and ends by itself after."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")

TICK = 3.0
PROGRAM = f"from redrive.dev import spark_workers; spark_workers.SECONDS = {TICK}; spark_workers.main()"


@pytest.fixture
def forker() -> Iterator[subprocess.Popen[bytes]]:
    """As Spark starts it: it tells its port on standard output and ends when standard input does."""
    environment = os.environ | {"PYTHON_WORKER_FACTORY_SECRET": "secret", "SPARK_REUSE_WORKER": "1"}
    command = [sys.executable, "-c", PROGRAM, "pyspark.worker"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def number(data: bytes) -> int:
    return int.from_bytes(data, "big")


def test_it_ends_when_nobody_wants_a_worker(forker: subprocess.Popen[bytes]) -> None:
    assert forker.wait(timeout=60) == 0


@pytest.mark.slow
def test_it_stays_as_long_as_it_has_a_worker(forker: subprocess.Popen[bytes]) -> None:
    assert forker.stdout
    with socket.create_connection(("127.0.0.1", number(forker.stdout.read(4)))) as wanted:
        worker = number(wanted.recv(4))
        time.sleep(2.5 * TICK)  # several looks
        assert forker.poll() is None
        os.kill(worker, 0)
    assert forker.wait(timeout=60) == 0
