"""The project keeps its word: the commands of the contract, and nothing in the tree that doesn't belong there."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()


def tracked() -> list[Path]:
    """The files of the project: what git knows, or everything where there is no git (a release's archive)."""
    git = shutil.which("git")
    if git and (ROOT / ".git").exists():
        names = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        return [path for name in names.split("\0") if name and (path := ROOT / name).is_file()]
    hidden = {"var", "__pycache__"}
    return [
        path
        for path in ROOT.rglob("*")
        if path.is_file()
        and not any(part in hidden or part.startswith(".venv") for part in path.relative_to(ROOT).parts)
    ]


FILES = tracked()


@pytest.mark.parametrize(
    "target", ["setup", "run", "up", "test", "lint", "format", "brokers", "bench", "clean", "help"]
)
def test_the_target_exists_and_says_what_it_does(target: str) -> None:
    assert re.search(rf"^{target}:.*## \S", MAKEFILE, re.MULTILINE)
    assert re.search(rf"^\.PHONY: {target}$", MAKEFILE, re.MULTILINE)


def test_make_alone_lists_the_targets() -> None:
    shown = subprocess.run(["make", "-s"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "make run" in shown
    assert "make test" in shown


def test_clean_spares_the_ledger() -> None:
    recipe = MAKEFILE.split("\nclean:")[1]
    assert not re.search(r"(^|\s)var\b", recipe.split("\n", 1)[1])


def test_continuous_integration_requires_every_server() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "set -euo pipefail" in script
    assert "REDRIVE_REQUIRE_BROKERS=all" in script
    assert "make test" in script


def test_uv_is_pinned_and_used_for_both_environments() -> None:
    assert re.search(r"^UV_VERSION := \d+\.\d+\.\d+$", MAKEFILE, re.MULTILINE)
    assert "-r requirements.txt" in MAKEFILE
    assert "-r requirements-ministack.txt" in MAKEFILE


def pins(lock: str) -> set[str]:
    return set(re.findall(r"^[A-Za-z0-9].*==\S+", (ROOT / lock).read_text(), re.MULTILINE))


def test_tests_run_on_the_versions_that_are_deployed_and_on_tools_that_are_not() -> None:
    deployed = {pin.partition("==")[0] for pin in pins("requirements.txt")}
    assert pins("requirements.txt") < pins("requirements-test.txt")
    assert not deployed & {"mypy", "ruff", "playwright", "hypothesis", "import-linter"}
    image = {pin.partition("==")[0] for pin in pins("requirements-image.txt")}
    assert pins("requirements-image.txt") < pins("requirements.txt")
    assert not image & {"pytest", "apache-airflow-providers-google", "apache-airflow-providers-amazon"}
    named = {"apache-airflow", "pyspark", "apache-airflow-providers-google", "apache-airflow-providers-amazon"}
    assert named | {"sqlalchemy", "pytest"} <= deployed


@pytest.mark.parametrize(
    "lock", [f"requirements{name}.txt" for name in ("", "-test", "-image", "-ministack", "-bench")]
)
def test_every_requirement_is_pinned_by_version_and_content(lock: str) -> None:
    text = (ROOT / lock).read_text().replace("\\\n", "")
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            hashed = r"[A-Za-z0-9_.\-]+(\[[a-z0-9,_\-]+\])?==\S+( ;.*?)?(\s+--hash=sha256:[0-9a-f]{64})+\s*"
            assert re.fullmatch(hashed, line), line


@pytest.mark.parametrize("wanted", [f"requirements{name}" for name in ("", "-test", "-image", "-ministack", "-bench")])
def test_whatever_is_asked_for_is_pinned(wanted: str) -> None:
    asked = {line.partition("[")[0] for line in (ROOT / f"{wanted}.in").read_text().splitlines() if line[:1].isalnum()}
    pinned = {pin.partition("==")[0].partition("[")[0] for pin in pins(f"{wanted}.txt")}
    assert {re.split(r"[=<>!~ ;]", one)[0] for one in asked} <= pinned


@pytest.mark.parametrize(
    ("text", "file"), [(MAKEFILE, "the Makefile"), ((ROOT / "Dockerfile").read_text(), "the image")]
)
def test_what_is_installed_is_held_against_its_hash(text: str, file: str) -> None:
    installs = re.findall(r"pip (?:--\S+ \S+ )?install .*-r requirements.*", text)
    assert installs, file
    assert all("--require-hashes" in line for line in installs), installs


@pytest.mark.parametrize(
    ("java", "python", "said"),
    [
        ('openjdk version "17.0.12" 2024-07-16', "Python 3.11.2", None),
        ('openjdk version "21" 2023-09-19', "Python 3.12.1", None),
        ('java version "1.8.0_392"', "Python 3.11.2", "Java 17 or later"),
        ('openjdk version "11.0.2" 2019-01-15', "Python 3.11.2", "Java 17 or later"),
        (None, "Python 3.11.2", "Java 17 or later"),
        ('openjdk version "17.0.12" 2024-07-16', None, "Python 3.11 or later"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_installed(
    tmp_path: Path, java: str | None, python: str | None, said: str | None
) -> None:
    for tool in ("bash", "sed", "head", "env"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    if java:
        (tmp_path / "java").write_text(f"#!/bin/sh\necho '{java}' >&2\n")
        (tmp_path / "java").chmod(0o755)
    if python:
        (tmp_path / "python3").write_text(f"#!/bin/sh\necho '{python}'\n")
        (tmp_path / "python3").chmod(0o755)
    environment = {"PATH": str(tmp_path), "PYTHON": "python3" if python else ""}
    done = subprocess.run(
        [str(ROOT / ".ci" / "prerequisites")], check=False, capture_output=True, text=True, env=environment
    )
    assert done.returncode == (1 if said else 0), done.stderr
    assert (said or "") in done.stderr


# Written in pieces, so that this file does not find itself.
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.:/-])/" + "work/"),
    "an unfinished spot": re.compile(r"\b(TO" + "DO|FIX" + "ME|X" + r"XX)\b"),
}


def test_nothing_is_left_behind() -> None:
    """One test for all files: a test for each of a thousand takes seconds."""
    found: list[str] = []
    for path in FILES:
        name = path.relative_to(ROOT)
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # an image or another binary file
        for what, pattern in FORBIDDEN.items():
            if hit := pattern.search(text):
                found.append(f"{name}: {what}: {text[hit.start() : hit.start() + 60]!r}")
        if path.suffix not in {".md", ".txt"} and re.search(r"[ \t]+$", text, re.MULTILINE):
            found.append(f"{name}: space at the end of a line")
    assert found == []


def test_no_file_is_large() -> None:
    large = [path for path in FILES if path.stat().st_size > 1_000_000]
    assert not large


def test_the_license_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
