"""``python -m redrive.dev.class_archive``: archive Spark's classes, so that the next Spark here starts sooner.

A Spark that starts here for one batch loads some fifteen thousand classes, which takes longer than classifying a
few thousand messages. The JVM can keep them as it needs them in a file (class data sharing). This makes that file
once, by running the job on a handful of messages; it belongs to the environment, beside the jars that it is made
from. Without it everything works, more slowly.
"""

import json
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

from redrive.errors import ClassificationFailed, RedriveError
from redrive.spark import session_conf

_ERRORS = (
    "ConnectionRefusedError: [Errno 111] Connection refused",
    "Traceback (most recent call last):\n  File \"shop.py\", line 7, in handle\nKeyError: 'sku-1'",
    "java.lang.IllegalStateException: x\n\tat shop.Orders.take(Orders.java:17)\nCaused by: java.io.IOException: y",
)
_TIMEOUT = timedelta(minutes=10)


def make() -> Path | None:
    """Make the archive unless it is there; returns its path, or None where it is known that there can't be one.

    It appears complete or not at all. Raises :class:`ClassificationFailed` when Spark or Java fails.
    """
    # Here, because every `make` asks whether there is an archive, and nearly always there is.
    from redrive.settings import Settings, SparkSettings  # noqa: PLC0415
    from redrive.spark import submit  # noqa: PLC0415

    target = session_conf.class_archive()
    if target is None or target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir=target.parent) as beside:
        made = Path(beside) / target.name
        # A JVM that writes down which classes it loaded when it ends; what `spark.conf` says wins over our own options.
        options = f"{session_conf.QUICK_JVM} -XX:ArchiveClassesAtExit={made} -Xlog:cds=error"
        chosen = SparkSettings(timeout=_TIMEOUT, conf={session_conf.JVM_OPTIONS: options})
        submit.classify(Settings(spark=chosen), _manifest(Path(folder)))
        if not made.exists():
            raise ClassificationFailed(f"Java wrote no archive of Spark's classes to {made}")
        made.replace(target)
    return target


def _manifest(folder: Path) -> str:
    from redrive.message import DeadLetter, Header  # noqa: PLC0415
    from redrive.staging.batch_files import Staging  # noqa: PLC0415

    staging = Staging(str(folder))
    now = 1_700_000_000_000_000
    letters = [
        DeadLetter(str(n), b"{}", (Header("error", "String", error),), enqueued_at=now)
        for n, error in enumerate(_ERRORS)
    ]
    names = {number: f"batch-{number}.parquet" for number in (1, 2)}
    for number, name in names.items():
        writer = staging.writer(
            name, batch_id=number, route="classes", source="dlq", kind="dead_letter", broker="memory"
        )
        writer.add(letters, now)
        writer.close()
    manifest: dict[str, Any] = {
        # As if they were large: then there are two tasks, whose cases are brought together.
        "batches": [{"batch_id": n, "uri": staging.uri(name), "rows": 1_000_000} for n, name in names.items()],
        "output": staging.uri("classified"),
        "evidence": ["attribute:error"],
    }
    return staging.write_bytes("manifest.json", json.dumps(manifest).encode())


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def main() -> int:
    """Make it and say so; 0 also where there can't be one, since nothing depends on it."""
    target = session_conf.class_archive()
    if target is None:
        _say("no archive of Spark's classes here: Java's folder does not tell its version; Spark starts more slowly")
        return 0
    if target.exists():
        return 0
    _say("Archiving Spark's classes, so that Spark starts sooner (about 200 MB, half a minute, once)")
    try:
        make()
    except (RedriveError, OSError) as error:
        _say(f"{error}\nSpark works without it, and starts more slowly")
    return 0


if __name__ == "__main__":
    sys.exit(main())
