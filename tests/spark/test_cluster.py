"""A Spark cluster for real: a master and a worker on loopback, whose executors know nothing of us but what we send."""

import json
import os
import signal
import stat
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests import workshop
from tests.servers import GUARD, free_port
from tests.spark.test_classify_messages import answers, plainly, said, staged
from tests.workshop import Workshop

from redrive.spark import session_conf, submit
from redrive.staging import file_schemas

pytestmark = pytest.mark.spark

HOST = "127.0.0.1"
OTHER = "127.0.0.2"  # Spark tries a task again on another host only
DEADLINE = 300.0


@contextmanager
def running(folder: Path, name: str, sign: str, *arguments: str, host: str = HOST) -> Iterator[int]:
    """One of Spark's own servers, from when its log shows ``sign`` to the end of the block; its group of processes."""
    log = folder / f"{name}.{host}.log"
    command = [str(Path(sysconfig.get_path("scripts")) / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    environment = os.environ | {
        "SPARK_LOCAL_IP": host,
        "SPARK_WORKER_DIR": str(folder / f"work-{host}"),
        "SPARK_DAEMON_JAVA_OPTS": session_conf.jvm_options(),
        "PYSPARK_PYTHON": sys.executable,  # by which its scripts find Spark
    }
    with log.open("wb") as sink:
        server = subprocess.Popen(
            [*command, "--host", host, "--webui-port", "0"],
            env=environment,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    GUARD.watch(server.pid)
    try:
        deadline = time.monotonic() + DEADLINE
        while sign not in log.read_text():
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield server.pid
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        GUARD.forget(server.pid)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    address = f"{HOST}:{free_port()}"
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


def quick(python: Path | str) -> dict[str, str]:
    """Properties of jobs whose workers run this Python and whose JVMs begin soon."""
    java = {f"spark.{which}.extraJavaOptions": session_conf.jvm_options() for which in ("driver", "executor")}
    return {**session_conf.SESSION, **java, "spark.pyspark.python": str(python)}


def test_a_cycle_on_a_cluster_to_which_our_code_travels(
    master: str, bare_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Workshop(tmp_path)
    chosen = shop.settings.spark.model_copy(update={"runner": "submit", "master": master, "conf": quick(bare_python)})
    shop.settings = shop.settings.model_copy(update={"spark": chosen})
    monkeypatch.setenv("SPARK_LOCAL_IP", HOST)
    monkeypatch.setattr(workshop, "classify", lambda manifest: submit.classify(shop.settings, manifest))
    shop.cycle_of_thirty()


def batches(folder: Path) -> list[dict[str, Any]]:
    """Five batches, one far larger than the others; each is given to a task of its own, as if all were large."""
    found = []
    for number, rows in enumerate((2_000, 3, 3, 3, 3), 1):
        staged_rows = [
            staged(n, batch_id=number, headers=[("error", f"KeyError: 'sku-{n % 3}'" if n % 2 else "HTTP 429")])
            for n in range(rows)
        ]
        columns = {field.name: [row.get(field.name) for row in staged_rows] for field in file_schemas.STAGED}
        pq.write_table(pa.table(columns, schema=file_schemas.STAGED), folder / f"{number}.parquet")
        found.append({"batch_id": number, "uri": str(folder / f"{number}.parquet"), "rows": 1_000_000})
    return found


@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_a_worker_that_hangs_and_one_that_is_killed_in_the_middle_cost_no_answer(
    master: str, bare_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, reached, events = tmp_path / "held", tmp_path / "reached", tmp_path / "events"
    events.mkdir()
    held.touch()
    holding = tmp_path / "holding-python"
    holding.write_text(
        f"""#!/bin/sh
case "$PWD" in *work-{OTHER}*) touch "{reached}"; while [ -e "{held}" ]; do sleep 0.1; done;; esac
exec "{bare_python}" "$@"
"""
    )
    holding.chmod(0o755)
    monkeypatch.setenv("SPARK_LOCAL_IP", HOST)
    monkeypatch.setenv("REDRIVE_HOME", str(tmp_path))
    shop = Workshop(tmp_path)

    def classifies(run: str, in_the_middle: Callable[[], object], **conf: str) -> None:
        """The job of a run, which is told of when a task on the second worker has begun."""
        reached.unlink(missing_ok=True)
        manifest = {"batches": some, "output": str(tmp_path / run), "route": "orders", "run": run} | ASKED
        (tmp_path / f"{run}.json").write_text(json.dumps(manifest))
        given = quick(holding) | {"spark.executor.cores": "1", "spark.executor.memory": "600m"}
        log = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": str(events), "spark.eventLog.compress": "false"}
        # Nothing begins before both workers can take a task.
        given |= {"spark.scheduler.minRegisteredResourcesRatio": "1", "spark.cores.max": "2"} | log | conf
        chosen = shop.settings.spark.model_copy(update={"runner": "submit", "master": master, "conf": given})
        settings = shop.settings.model_copy(update={"spark": chosen})
        failed: list[Exception] = []

        def work() -> None:
            try:
                submit.classify(settings, str(tmp_path / f"{run}.json"))
            except Exception as error:
                failed.append(error)

        job = threading.Thread(target=work)
        job.start()
        try:
            while not reached.exists() and job.is_alive():
                time.sleep(0.1)
            in_the_middle()
        finally:
            job.join()
        assert not failed, failed
        (tmp_path / "plain").mkdir(exist_ok=True)
        assert said(*answers(tmp_path / run)) == said(*plainly(manifest, tmp_path))

    some = batches(tmp_path)
    sign = "Successfully registered"
    with running(tmp_path, "worker.Worker", sign, "-c", "1", "-m", "1g", master, host=OTHER) as second:
        speculation = {"spark.speculation": "true", "spark.speculation.quantile": "0.5"}
        classifies("hangs", lambda: None, **speculation)
        classifies("killed", lambda: os.killpg(second, signal.SIGKILL))
    told = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    for run in ("hangs", "killed"):
        label = f"redrive-classify orders {run}"
        assert f'"App Name":"{label}"' in told
        assert f'"spark.job.description":"{label}"' in told
    assert '"Speculative":true' in told
    assert "ExecutorLostFailure" in told
    held.unlink()


#: What else a manifest says.
ASKED: dict[str, Any] = {
    "sources": {"orders-dlq": {"kind": "dead_letter", "lease_seconds": 30}},
    "evidence": [],
    "rules": [],
    "message_key": None,
    "order_key": None,
    "known_groups": [],
}
