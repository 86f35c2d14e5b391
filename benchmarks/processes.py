"""A measurement in a Python of its own, so that imports and peak memory are its own; what processes took."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Lock, Thread
from typing import Any


def in_a_process(*arguments: str, env: Mapping[str, str] | None = None) -> Any:
    """What ``python *arguments`` prints as JSON in its last line; raises ``CalledProcessError`` if it fails."""
    done = subprocess.run(
        [sys.executable, *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        env=env,
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


class ServerClock:
    """What the processes of a PostgreSQL server compute, those that are gone too (in hundredths of a second).

    Its autovacuum counts apart: a worker tidies up after what was done long before it comes, so whatever is measured
    while it comes would count for it. A worker is looked at every :attr:`OFTEN` seconds, so that what it computed is
    known when it is gone; of each that ended, up to so much counts as the others'.
    """

    OFTEN = 0.02

    def __init__(self, server: int) -> None:
        self._server = server
        self._is_worker: dict[str, bool] = {}  # by process id
        self._workers: dict[str, float] = {}  # what each computed when it was last looked at
        self._lock = Lock()
        Thread(target=self._watch, daemon=True).start()

    def seconds(self) -> tuple[float, float]:
        """(all but autovacuum's workers, those), since the server was started."""
        with self._lock:
            running = self._look()
            ended = sum(seconds for pid, seconds in self._workers.items() if pid not in running)
            own = sum(_stat(self._server)[:4]) / os.sysconf("SC_CLK_TCK") - ended
            others = sum(seconds for pid, seconds in running.items() if not self._is_worker[pid])
            return own + others, sum(self._workers.values())

    def _look(self) -> dict[str, float]:
        running: dict[str, float] = {}
        for pid in Path(f"/proc/{self._server}/task/{self._server}/children").read_text().split():
            try:
                if pid not in self._is_worker:
                    title = Path(f"/proc/{pid}/cmdline").read_bytes()
                    if not title.startswith(b"postgres: "):
                        continue  # it is being started, and doesn't say yet what it is
                    self._is_worker[pid] = title.startswith(b"postgres: autovacuum worker")
                running[pid] = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1_000_000_000
            except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile, before or after it was opened
                continue
            if self._is_worker[pid]:
                self._workers[pid] = running[pid]
        return running

    def _watch(self) -> None:
        while True:
            with self._lock:
                try:
                    self._look()
                except (FileNotFoundError, ProcessLookupError):  # the server is gone
                    return
            time.sleep(self.OFTEN)


def peak_memory() -> float:
    """MiB that this process had at most."""
    (line,) = [one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def _stat(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]]
