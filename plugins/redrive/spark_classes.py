"""``python -m redrive.spark_classes``: archive Spark's classes, so that the next Spark of this machine starts sooner.

A Spark that starts here for one batch loads some fifteen thousand classes, which takes longer than classifying a
few thousand messages. The JVM can keep them as it needs them in a file (class data sharing). This makes that file
once, by running the job on a handful of messages; it belongs to the environment, beside the jars that it is made
from. Without it everything works, more slowly.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from redrive import spark, spark_session
from redrive.errors import RedriveError
from redrive.message import DeadLetter, Header
from redrive.settings import parse
from redrive.staging import Staging

_ERRORS = (
    "ConnectionRefusedError: [Errno 111] Connection refused",
    "Traceback (most recent call last):\n  File \"shop.py\", line 7, in handle\nKeyError: 'sku-1'",
    "java.lang.IllegalStateException: x\n\tat shop.Orders.take(Orders.java:17)\nCaused by: java.io.IOException: y",
)
_TIMEOUT_SECONDS = 600


class ArchiveFailed(RedriveError):
    """The archive of Spark's classes could not be made; the text says what Java said."""


def make() -> Path | None:
    """Make the archive unless it is there; returns its path, or None where it is known that there can't be one.

    It appears complete or not at all. Raises :class:`ArchiveFailed` when Spark or Java fails.
    """
    target = spark_session.class_archive()
    if target is None or target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir=target.parent) as beside:
        made = Path(beside) / target.name
        command = _command(Path(folder), made)
        done = subprocess.run(  # noqa: S603  our own job
            command,
            env=os.environ
            | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
            | {"SPARK_LOCAL_IP": "127.0.0.1", "REDRIVE_HOME": folder},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode or not made.exists():
            last = "\n".join(done.stdout.splitlines()[-20:])
            raise ArchiveFailed(f"no archive of Spark's classes: the job ended with {done.returncode}\n{last}")
        made.replace(target)
    return target


def _command(folder: Path, archive: Path) -> list[str]:
    """The job over a few messages, in a JVM that writes down which classes it loaded when it ends."""
    manifest = _manifest(folder)
    settings = parse("spark: {runner: local}", env={}, root=folder)
    command = spark.submit_command(settings, manifest)
    wanted = f"{spark_session.JVM_OPTIONS}={spark_session.QUICK_JVM} -XX:ArchiveClassesAtExit={archive} -Xlog:cds=error"
    at = command.index(str(spark.application()))
    return [*command[:at], "--conf", wanted, *command[at:]]


def _manifest(folder: Path) -> str:
    staging = Staging(str(folder))
    writer = staging.writer(
        "batch.parquet", batch_id=1, route="classes", source="dlq", kind="dead_letter", broker="memory"
    )
    now = 1_700_000_000_000_000
    letters = [
        DeadLetter(str(n), b"{}", (Header("error", "String", error),), enqueued_at=now)
        for n, error in enumerate(_ERRORS)
    ]
    writer.add(letters, now)
    writer.close()
    manifest: dict[str, Any] = {
        "batches": [{"batch_id": 1, "uri": staging.uri("batch.parquet"), "rows": len(letters)}],
        "output": staging.uri("classified"),
        "evidence": ["attribute:error"],
    }
    return staging.write_bytes("manifest.json", json.dumps(manifest).encode())


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def main() -> int:
    """Make it and say so; 0 also where there can't be one, since nothing depends on it."""
    target = spark_session.class_archive()
    if target is None:
        _say("no archive of Spark's classes here: Java's folder does not tell its version; Spark starts more slowly")
        return 0
    if target.exists():
        return 0
    _say("Archiving Spark's classes, so that Spark starts sooner (about 200 MB, half a minute, once)")
    try:
        make()
    except (RedriveError, OSError, subprocess.TimeoutExpired) as error:
        _say(f"{error}\nSpark works without it, and starts more slowly")
    return 0


if __name__ == "__main__":
    sys.exit(main())
