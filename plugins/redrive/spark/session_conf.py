"""Properties of Spark sessions that Redrive starts, and options for their JVM.

The job's script reads them on a cluster too, so this imports nothing that a cluster may lack.
"""

import os
import re
import shutil
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

APPLICATION_NAME = "redrive-classify"
#: For sessions on this machine; a cluster keeps its own. Spark only hands out work and reduces cases, some thousand
#: rows: compiling code for that, or planning it anew halfway, takes longer than it saves.
SESSION: Mapping[str, str] = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "16",  # parts in which cases are brought together
}
#: A session on this machine: nothing of it can be reached from another one.
LOCAL: Mapping[str, str] = {
    "spark.log.level": "WARN",
    "spark.ui.enabled": "false",  # would listen on every interface
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.ui.explainMode": "simple",  # nobody looks at the plans, whose text takes longer than some queries
}
JVM_OPTIONS = "spark.driver.extraJavaOptions"
WORKER_DAEMON = "spark.python.daemon.module"
#: A JVM of this machine runs for one job: code that is compiled soon is worth more than code that is compiled well.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def label(manifest: Mapping[str, Any]) -> str:
    """Whose job it is, as Spark's own pages show it: the application's name, the jobs' description."""
    return " ".join([APPLICATION_NAME, *(str(manifest[key]) for key in ("route", "run") if key in manifest)])


def here(conf: Mapping[str, str]) -> dict[str, str]:
    """Properties of a Spark that this process starts on its machine, besides ``conf``.

    They suit this JVM, and the workers where those run on this Python, on which the library is installed.
    """
    found = {JVM_OPTIONS: jvm_options()}
    if os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable and "spark.pyspark.python" not in conf:
        found[WORKER_DAEMON] = "redrive.spark.worker_daemon"
    return found


def jvm_options() -> str:
    """Options of a local JVM, with the archive of Spark's classes where there is one for this Java."""
    archive = class_archive()
    if archive is None or not archive.exists():
        return QUICK_JVM
    # An archive that doesn't fit is ignored in silence.
    return f"{QUICK_JVM} -XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"


def class_archive() -> Path | None:
    """Where the archive of Spark's classes is or would be; :mod:`redrive.dev.class_archive` makes it.

    An archive serves one build of Java and one of Spark, so its name has both. None where there is no Java or no
    Spark, where Java's folder doesn't say its build, and where a JVM option couldn't name the file.
    """
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else Path(shutil.which("java") or "")
    release = java.resolve().parent.parent / "release"
    try:
        facts = dict(line.split("=", 1) for line in release.read_text(encoding="utf-8").splitlines() if "=" in line)
        builds = (metadata.version("pyspark"), facts.get("JAVA_RUNTIME_VERSION") or facts["JAVA_VERSION"])
    except (OSError, KeyError, metadata.PackageNotFoundError):
        return None
    name = "-".join(["spark", *builds, facts.get("OS_ARCH", "")])
    safe = "".join(c if c.isalnum() or c in ".+-_" else "" for c in name)
    archive = Path(sys.prefix) / "share" / "redrive" / f"{safe}.jsa"
    return None if re.search(r"[\s\"']", str(archive)) else archive
