"""One DAG run from begin to end in one process, without a scheduler: for ``make run`` and the demo."""

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from redrive.dev import child_processes


def dags_test(
    dag_id: str,
    conf: Mapping[str, object],
    env: Mapping[str, str],
    on_progress: Callable[[str, str], None] | None = None,
) -> int:
    """Run one DAG to its end in one process, without a scheduler; 0 when the run succeeded.

    ``env`` is of :func:`redrive.dev.airflow_environment.environment`, and its database is migrated
    (:func:`redrive.dev.local_airflow.migrate`). ``on_progress`` hears ``("drain[0]", "running")`` when a task starts
    and its state when it ends; tasks that are skipped because of others are not mentioned. The whole output is kept in
    ``<AIRFLOW_HOME>/<dag_id>.log``.
    """
    log = Path(env["AIRFLOW_HOME"]) / f"{dag_id}.log"
    command = [child_processes.program("airflow"), "dags", "test", dag_id, "--conf", json.dumps(dict(conf))]
    with log.open("w", encoding="utf-8") as sink, child_processes.child(command, env, subprocess.PIPE) as process:
        assert process.stdout is not None  # noqa: S101  asked for by PIPE
        progress = Progress(on_progress)
        for line in process.stdout:
            text = line.decode("utf-8", "replace")
            sink.write(text)
            sink.flush()
            progress.read(text)
        return process.wait()


class Progress:
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
