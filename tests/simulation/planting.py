"""Mistakes on purpose: each is put into a copy of the product, and seeds are played until one of them notices.

A mistake is a file in ``mistakes/fixes`` (what was mended once) or ``mistakes/planted`` (of our own devising):
``name``, ``what`` is wrong, the ``world`` that exposes it, the ``theme`` that has it and the ``database`` where it
isn't SQLite, and ``edits``, each with a ``file``, the ``old`` text,
which occurs in it exactly once, and the ``new``.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent / "mistakes"


class Mistake(NamedTuple):
    """One of them."""

    name: str
    kind: str  # fixes | planted
    what: str
    world: str
    edits: list[dict[str, str]]
    theme: str | None = None  # where it is looked for first
    database: str | None = None  # postgresql: it is one of that database alone


class Found(NamedTuple):
    """What became of one."""

    mistake: Mistake
    seeds: int  # that were played
    seed: int | None  # that found it
    rule: str


def mistakes() -> list[Mistake]:
    """All of them."""
    found = []
    for path in sorted(FOLDER.glob("*/*.yaml")):
        said = yaml.safe_load(path.read_text())
        found.append(
            Mistake(
                said["name"],
                path.parent.name,
                said["what"].strip(),
                said.get("world", "").strip(),
                said["edits"],
                said.get("theme"),
                said.get("database"),
            )
        )
    return found


def edited(edit: dict[str, str], text: str) -> str:
    """``text`` with the edit in it; what doesn't fit is refused."""
    old, new = edit["old"].rstrip("\n"), edit["new"].rstrip("\n")
    if text.count(old) != 1:
        # Where a file's author wrote a block without its indentation.
        for depth in (4, 8, 12, 16, 20):
            if text.count(textwrap.indent(old, " " * depth)) == 1:
                return text.replace(textwrap.indent(old, " " * depth), textwrap.indent(new, " " * depth))
        raise ValueError(f"{edit['file']}: {text.count(old)} times: {old!r}")
    return text.replace(old, new)


def plant(mistake: Mistake, folder: Path) -> None:
    """A copy of the product in ``folder`` with the mistake in it."""
    shutil.copytree(ROOT / "plugins", folder / "plugins", ignore=shutil.ignore_patterns("__pycache__"))
    for edit in mistake.edits:
        path = folder / edit["file"]
        path.write_text(edited(edit, path.read_text()))


def look_for(mistake: Mistake, seeds: int, *, first: int = 0, theme: str | None = None, workers: int = 2) -> Found:
    """Play up to ``seeds`` seeds against the product with this mistake, until one breaks that is green without it."""
    with tempfile.TemporaryDirectory(prefix="redrive-mistake-") as place:
        plant(mistake, Path(place))
        played = 0
        while played < seeds:
            done = _hunt(mistake, f"{place}/plugins", first + played, seeds - played, theme, workers)
            try:
                said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
            except (ValueError, IndexError):  # the product can't even be imported
                return Found(mistake, 0, first, f"does not run: {done.stderr.strip().splitlines()[-1:]}")
            played += said["seeds"]
            if said["seed"] is None:
                break
            if _hunt(mistake, f"{ROOT}/plugins", said["seed"], 1, theme, 1).returncode == 0:
                return Found(mistake, played, said["seed"], said["rule"])
    return Found(mistake, played, None, "")


def _hunt(
    mistake: Mistake, plugins: str, first: int, count: int, theme: str | None, workers: int
) -> subprocess.CompletedProcess[str]:
    """Seeds in a process of its own, with the product of this folder; exit code 1 where one breaks."""
    command = [sys.executable, "-m", "tests.simulation", "hunt", str(first), str(count), "--workers", str(workers)]
    if mistake.database == "postgresql":
        command.append("--postgresql")
    return subprocess.run(
        [*command, "--theme", theme] if theme else command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{plugins}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def look_for_all(names: list[str], seeds: int, *, workers: int = 2, themed: bool = False) -> Iterator[Found]:
    """All, or those whose name begins with one of ``names``."""
    for one in mistakes():
        if not names or any(one.name.startswith(name) for name in names):
            yield look_for(one, seeds, theme=one.theme if themed else None, workers=workers)


def table(found: list[Found]) -> str:
    """What was found of each mistake; docs/correctness.md has the sums."""
    lines = ["| mistake | what is wrong | seeds until found | by which rule |", "|---|---|---|---|"]
    for one in found:
        said = str(one.seeds) if one.rule else f"not in {one.seeds}"
        what = one.mistake.what.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {one.mistake.name} | {what} | {said} | {one.rule} |")
    return "\n".join(lines)
