"""A Spark cluster for real: a master and a worker on loopback, whose executors know nothing of us but what we send."""

import os
import socket
import stat
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests import workshop
from tests.workshop import Workshop

from redrive.spark import submit

pytestmark = pytest.mark.spark

HOST = "127.0.0.1"
DEADLINE = 60.0


@contextmanager
def running(folder: Path, name: str, sign: str, *arguments: str) -> Iterator[None]:
    """One of Spark's own servers, from when its log shows ``sign`` to the end of the block."""
    log = folder / f"{name}.log"
    command = [str(Path(sysconfig.get_path("scripts")) / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    environment = os.environ | {
        "SPARK_LOCAL_IP": HOST,
        "SPARK_WORKER_DIR": str(folder / "work"),
        "PYSPARK_PYTHON": sys.executable,  # by which its scripts find Spark
    }
    with log.open("wb") as sink:
        server = subprocess.Popen(
            [*command, "--host", HOST, "--webui-port", "0"], env=environment, stdout=sink, stderr=sink
        )
    try:
        deadline = time.monotonic() + DEADLINE
        while sign not in log.read_text():
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        address = f"{HOST}:{probe.getsockname()[1]}"
    with (
        running(tmp_path, "master.Master", "New state: ALIVE", "--port", address.rpartition(":")[2]),
        running(tmp_path, "worker.Worker", "Successfully registered", "-c", "2", "-m", "1g", f"spark://{address}"),
    ):
        yield f"spark://{address}"


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """Python with the libraries of this environment, in which nothing of ours is installed."""
    script = tmp_path / "python"
    libraries = sysconfig.get_path("purelib")
    # Without `site` no .pth file is read, so an editable installation isn't seen.
    script.write_text(f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{libraries}"\nexec "{sys.executable}" -S "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    found = subprocess.run([script, "-c", "import pyarrow, redrive"], capture_output=True, text=True, check=False)
    assert "No module named 'redrive'" in found.stderr
    return str(script)


def test_a_cycle_on_a_cluster_to_which_our_code_travels(
    master: str, bare_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Workshop(tmp_path)
    chosen = shop.settings.spark.model_copy(
        update={"runner": "submit", "master": master, "conf": {"spark.pyspark.python": bare_python}}
    )
    shop.settings = shop.settings.model_copy(update={"spark": chosen})
    monkeypatch.setenv("SPARK_LOCAL_IP", HOST)
    monkeypatch.setattr(workshop, "classify", lambda manifest: submit.classify(shop.settings, manifest))
    shop.cycle_of_thirty()
