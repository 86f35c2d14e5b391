"""What a benchmark measured: its tables, printed, and kept as JSON with the machine, the commit and the date.

``--json FILE`` keeps them in a file of one's own. ``--record`` keeps them in ``benchmarks/results``, from which
``docs/benchmarks.md`` is made (:mod:`benchmarks.page`), and makes that page anew.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Shown

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = Path(__file__).parent / "results"
#: Additions that tell how fast a core is in this hour: other people use the same machine.
ADDITIONS: Final = 10_000_000


class Figure(NamedTuple):
    """A number with so many ``digits`` behind the point, and what it is to reach: at least, or at most."""

    value: float
    digits: int = 2
    least: float | None = None
    most: float | None = None

    @property
    def missed(self) -> bool:
        """Whether it does not reach its goal."""
        return (self.least is not None and self.value < self.least) or (
            self.most is not None and self.value > self.most
        )

    @property
    def goal(self) -> str:
        """Its goal in words, "" without one."""
        if self.least is not None:
            return f"at least {self.least:,g}"
        return "" if self.most is None else f"at most {self.most:,g}"

    @property
    def shown(self) -> str:
        """The number as people read it."""
        return f"{self.value:,.{self.digits}f}"


#: What a place of a table holds.
Cell = str | int | Figure


class Table(NamedTuple):
    """What was measured: the first column says of what. ``title`` says what tables of one benchmark differ in."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""

    def figures(self) -> Iterator[tuple[str, str, Figure]]:
        """Each figure with the name of its row and of its column."""
        for name, *cells in self.rows:
            for column, cell in zip(self.columns[1:], cells, strict=True):
                if isinstance(cell, Figure):
                    yield str(name), column, cell


def shown(cell: Cell) -> str:
    """A cell as people read it."""
    if isinstance(cell, Figure):
        return cell.shown
    return f"{cell:,}" if isinstance(cell, int) else cell


@dataclass(frozen=True, slots=True)
class Result:
    """One run of a benchmark. ``variant`` tells the runs of one benchmark apart that stand on the page together."""

    benchmark: str
    tables: Sequence[Table]
    variant: str = ""
    arguments: str = ""
    machine: str = ""
    commit: str = ""
    date: str = ""  # UTC, to the minute
    additions: float = 0.0  # seconds of ADDITIONS in plain Python, when it ended
    details: dict[str, Any] = field(default_factory=dict)  # for programs alone

    @property
    def name(self) -> str:
        """Its file's name, without the ending."""
        return f"{self.benchmark}-{self.variant}" if self.variant else self.benchmark

    @property
    def missed(self) -> bool:
        """Whether any goal was missed."""
        return any(figure.missed for table in self.tables for _, _, figure in table.figures())

    def to_json(self) -> str:
        """As :meth:`from_json` reads it."""
        return json.dumps(asdict(self) | {"tables": [_plain(table) for table in self.tables]}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What :meth:`to_json` wrote."""
        found = json.loads(text)
        tables = [
            Table(one["columns"], [[_cell(cell) for cell in row] for row in one["rows"]], one["title"])
            for one in found["tables"]
        ]
        return cls(**found | {"tables": tables})


def _plain(table: Table) -> dict[str, Any]:
    rows = [[cell._asdict() if isinstance(cell, Figure) else cell for cell in row] for row in table.rows]
    return {"title": table.title, "columns": list(table.columns), "rows": rows}


def _cell(plain: Any) -> Cell:
    return Figure(**plain) if isinstance(plain, dict) else plain


def add_options(parser: argparse.ArgumentParser) -> None:
    """``--json`` and ``--record``, for :func:`finish`; the commit is the one at which measuring begins."""
    parser.set_defaults(commit=commit())
    parser.add_argument("--json", type=Path, metavar="FILE", help="a file for the figures")
    parser.add_argument(
        "--record", action="store_true", help="keep the figures in benchmarks/results and in docs/benchmarks.md"
    )


def finish(
    asked: argparse.Namespace,
    benchmark: str,
    *tables: Table,
    variant: str = "",
    details: dict[str, Any] | None = None,
) -> int:
    """Print the tables, and keep them as was asked; 1 where a goal was missed, else 0."""
    result = Result(
        benchmark,
        tables,
        variant,
        _arguments(sys.argv[1:]),
        machine(),
        asked.commit,
        f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        round(additions(), 2),
        details or {},
    )
    for table in tables:
        show(table)
    for name, column, figure in (one for table in tables for one in table.figures() if one[2].missed):
        print(f"missed: {name}, {column}: {figure.shown}, {figure.goal}")
    if asked.json:
        asked.json.write_text(result.to_json(), encoding="utf-8")
    if asked.record:
        from benchmarks import page  # noqa: PLC0415 - it reads what this module writes

        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{result.name}.json").write_text(result.to_json(), encoding="utf-8")
        page.write()
    return int(result.missed)


def show(table: Table) -> None:
    """Print a table."""
    print(f"\n{table.title}" if table.title else "")
    whole = Shown(*table.columns, box=box.SIMPLE_HEAD)
    for row in table.rows:
        goals = [cell.goal if isinstance(cell, Figure) else "" for cell in row]
        whole.add_row(
            *(escape(f"{shown(cell)} ({goal})" if goal else shown(cell)) for cell, goal in zip(row, goals, strict=True))
        )
    console = Console()
    (console if console.is_terminal else Console(width=140)).print(whole)


def machine() -> str:
    """The processor, how many cores of it are ours, and the memory."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, {memory:.0f} GiB, Python {platform.python_version()}"


def commit() -> str:
    """The commit that is measured, with ``+`` where files differ from it; "" outside of a repository."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs", ":!benchmarks/results")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+" if changed else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _arguments(given: Sequence[str]) -> str:
    """What was asked for, without what is done with the figures."""
    ours = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_options(ours)
    return shlex.join(ours.parse_known_args(given)[1])


def additions(count: int = ADDITIONS, clock: Callable[[], float] = time.perf_counter) -> float:
    """How long so many additions of plain Python take, in seconds by ``clock``: how fast a core is now."""
    began, total = clock(), 0
    for number in range(count):
        total += number
    return clock() - began
