"""The archive of Spark's classes: a real Java takes its classes from the file that ``make setup`` made."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from redrive.spark import session_conf

pytestmark = pytest.mark.spark


def test_spark_takes_its_classes_from_the_archive_of_the_setup(tmp_path: Path) -> None:
    archive = session_conf.class_archive()
    if archive is None or not archive.exists():
        pytest.skip("no archive: this Java doesn't tell its version, or `make setup` has not run")
    log = tmp_path / "loaded.txt"
    subprocess.run(
        [Path(sysconfig.get_path("scripts")) / "spark-submit", "--version"],
        env=os.environ
        | {"PYSPARK_PYTHON": sys.executable}
        | {"SPARK_SUBMIT_OPTS": f"{session_conf.jvm_options()} -Xlog:class+load:file={log}"},
        capture_output=True,
        check=True,
        timeout=120,
    )
    mapped = [line for line in log.read_text().splitlines() if "shared objects file (top)" in line]
    assert len([line for line in mapped if " org.apache.spark." in line]) > 50, "Java ignores an archive of other jars"
