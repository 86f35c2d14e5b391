"""A measurement in a Python of its own, so that imports and peak memory are its own; what processes took."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
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


def computed(server: int) -> float:
    """Seconds that a PostgreSQL server and all of its processes computed, those that are gone too (in hundredths)."""
    seconds = sum(_stat(server)[:4]) / os.sysconf("SC_CLK_TCK")
    for child in Path(f"/proc/{server}/task/{server}/children").read_text().split():
        try:
            seconds += int(Path(f"/proc/{child}/schedstat").read_text().split()[0]) / 1_000_000_000
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile, before or after it was opened
            continue
    return seconds


def peak_memory() -> float:
    """MiB that this process had at most."""
    (line,) = [one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def _stat(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]]
