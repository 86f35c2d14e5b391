"""The wheel, and environments in which it is installed and no checkout is."""

import hashlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

UV = Path(sys.executable).with_name("uv")
#: What a build reads.
SOURCES = (
    *("config", "dags", "docs", "plugins", "spark_jobs", "sql", ".gitignore", "LICENSE", "pyproject.toml"),
    *("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md"),
)


def build(source: Path, target: Path) -> dict[str, Path]:
    """sdist and wheel of ``source``, by their names."""
    environment = {"SOURCE_DATE_EPOCH": "1700000000"} | os.environ  # `make release` says its own
    command = [UV, "build", "--quiet", "--python", sys.executable, "--out-dir", target, source]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {path.name: path for path in target.iterdir() if path.suffix in (".whl", ".gz")}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Place(NamedTuple):
    """An environment with the wheel in it, and a folder to work in; the checkout is nowhere in either."""

    python: Path
    folder: Path
    programs: Path  # of the libraries that are lent: Spark's are there

    def environment(self, **more: str) -> dict[str, str]:
        unwanted = ("AIRFLOW", "REDRIVE_", "PYTHONPATH", "VIRTUAL_ENV")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(unwanted)}
        programs = [str(self.programs), sysconfig.get_path("scripts")]
        path = os.pathsep.join([str(self.python.parent), kept.get("PATH", os.defpath), *programs])
        return kept | {"PATH": path, "AIRFLOW_HOME": str(self.folder), "COLUMNS": "200"} | more

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=self.folder, env=self.environment(**environment), capture_output=True, text=True, check=False
        )

    def redrive(self, *words: str, **environment: str) -> str:
        """What the installed command prints; it has to go well."""
        done = self.run(str(self.python.with_name("redrive")), *words, **environment)
        assert done.returncode == 0, f"redrive {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout


def install(wheel: Path, home: Path, lender: Path) -> Place:
    """The wheel in an environment of its own below ``home``. The libraries are those that ``lender``, a Python, has,
    lent by a path; an editable installation there is not, for which that would have to be a folder whose ``.pth``
    files are read. Spark itself, half a gigabyte, is always that of the tests."""
    python = home / "venv" / "bin" / "python"
    subprocess.run([UV, "venv", "--quiet", "--python", lender, home / "venv"], check=True)
    command = [UV, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", python, wheel]
    subprocess.run(command, check=True)
    spark = home / "spark"
    spark.mkdir()
    for name in ("pyspark", "py4j"):
        (spark / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    (_libraries(python) / "lent.pth").write_text(f"{_libraries(lender)}\n{spark}\n")
    (home / "work").mkdir()
    return Place(python, home / "work", lender.parent)


def _libraries(python: Path) -> Path:
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return Path(subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip())
