"""What a Spark session of ours is told: properties, and options for its JVM.

Plain data for whoever starts one (:mod:`redrive.spark`, :mod:`redrive.local_spark`, the job's script, tests and
benchmarks), so this imports nothing that a cluster may lack.
"""

import os
import re
import shutil
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

#: What the job needs of any session, wherever it runs.
SESSION: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "4",
    "spark.sql.files.maxPartitionBytes": "64m",
    "spark.sql.files.openCostInBytes": "256k",  # staging files are small and many: a task takes dozens
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",  # costs more than the masks; the cache may spill
    "spark.sql.icu.caseMappings.enabled": "false",  # names of headers are ASCII; ICU takes seconds to load
}
#: What may be set for one query, and so is, in a session that somebody else started.
OF_A_QUERY = (
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.openCostInBytes",
    "spark.sql.session.timeZone",
    "spark.sql.parquet.outputTimestampType",
    "spark.sql.parquet.compression.codec",
    "spark.sql.inMemoryColumnarStorage.compressed",
    "spark.sql.icu.caseMappings.enabled",
)
#: A session on this machine: nothing of it can be reached from another one.
LOCAL: Mapping[str, str] = {
    "spark.log.level": "WARN",
    "spark.ui.enabled": "false",  # would listen on every interface
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.ui.explainMode": "simple",  # nobody looks at the plans, whose text takes longer than some queries
}
#: For few messages: compiling code for them takes longer than interpreting it.
INTERPRETED: Mapping[str, str] = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
JVM_OPTIONS = "spark.driver.extraJavaOptions"
#: For few messages: code that is compiled soon is worth more than code that is compiled well.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: For many: throughput before pauses; code is compiled later, since most that Spark runs to plan a query is not
#: worth it; and the method that a query becomes, which is "huge", is compiled at all.
LARGE_JVM = "-XX:+UseParallelGC -XX:CompileThresholdScaling=4 -XX:-DontCompileHugeMethods"
#: Up to so many messages, by measurement (docs/adr/0007-spark-classification.md).
FEW_FOR_CODE, FEW_FOR_JVM = 2_000, 20_000


def messages_of(manifest: Mapping[str, Any]) -> int:
    """How many messages the job's manifest names."""
    return sum(batch["rows"] for batch in manifest.get("batches", ()))


def for_messages(count: int) -> dict[str, str]:
    """Properties of a local session that is started for ``count`` messages and for nothing else."""
    quick = count <= FEW_FOR_JVM
    return {JVM_OPTIONS: jvm_options(quick=quick)} | (dict(INTERPRETED) if count <= FEW_FOR_CODE else {})


def jvm_options(*, quick: bool) -> str:
    """Options of a local JVM, with the archive of Spark's classes where there is one for this Java."""
    options = QUICK_JVM if quick else LARGE_JVM
    archive = class_archive()
    return f"{options} {use_archive(archive)}" if archive is not None and archive.exists() else options


def use_archive(archive: Path) -> str:
    """The JVM options by which classes are mapped from ``archive``; one that doesn't fit is ignored in silence."""
    return f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"


def class_archive() -> Path | None:
    """Where the archive of Spark's classes for this environment is or would be; :mod:`redrive.spark_classes` makes it.

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
