"""A measurement in a Python of its own, so that its imports and its peak memory are its own."""

import json
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
