"""``docs/benchmarks.md``, made of what ``--record`` kept: ``python -m benchmarks.page`` writes it anew.

Each number on the page is of one run of one commit on one machine. What was measured before, what helped and what did
not is told in ``docs/benchmarks-history.md``, which people write.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks import options
from benchmarks.results import ADDITIONS, FOLDER, ROOT, Figure, Result, Table, shown

PAGE: Final = ROOT / "docs" / "benchmarks.md"
#: Of more figures with one goal the worst leads the page.
MANY: Final = 4


class Section(NamedTuple):
    """A benchmark's part of the page; ``runs``: the arguments of its runs that stand there, each beside the others."""

    benchmark: str
    heading: str
    says: str
    runs: Sequence[Sequence[str]] = ((),)


POSTGRESQL: Final = ("--database", "postgresql")

SECTIONS: Final = (
    Section(
        "shovel",
        "The loop beside a shovel",
        "Durable messages of 1 KiB in classic queues of a RabbitMQ node. A dynamic shovel in `on-confirm` mode, with a "
        "prefetch of 1,000, moves them from one queue to another; then Redrive drains, classifies, loads, plans and "
        "delivers as many, with slices of 5,000 (on commit 7daca4b of 2,000) and confirm windows of 1,000, one stage "
        "after the other. Node, shovel, Spark, ledger and Redrive share the cores.",
        (
            ("--rounds", "3", "--spark", "connect"),
            ("--messages", "1000000"),
            (*POSTGRESQL, "--rounds", "3", "--spark", "connect"),
        ),
    ),
    Section(
        "throughput",
        "Our own code, on one core",
        "Messages of 1 KiB, a broker in memory; each measurement in a process of its own. PostgreSQL's server shares "
        "the core. Goals are for 500,000 messages on an idle machine, with the ledger on SQLite.",
        ((), POSTGRESQL),
    ),
    Section(
        "classification",
        "Classification",
        "The Spark job (`local[2]`, without the start of the session) beside Drain3 on the same texts and cores. "
        "`--invented`: one word of each text is replaced by an invented one that no mask takes for a value, in one "
        "place of each template or anywhere, so that every text is distinct.",
        (
            (),
            ("--invented", "in one place", "--texts", "1000000", "--no-double"),
            ("--invented", "anywhere", "--texts", "1000000", "--no-double"),
        ),
    ),
    Section(
        "floods",
        "Where every text is distinct",
        "Of failures with an invented word, which causes and groups differ from those that each has by itself: a batch "
        "counts what is rare as a value.",
    ),
    Section(
        "grouping",
        "Grouping",
        "Families of failure texts, one family for one failure. GA, FGA: share of messages, of groups, that are "
        "exactly one family. Merge: share of messages in groups that hold two failures. Split: share of families in "
        "several groups. Rules were written with most of these sets in view, `held_out`, `unread` and `blind_e` were "
        "never read; how each set was grouped when it was first seen, which is the figure that counts, "
        "[stands apart](benchmarks-history.md#families-that-nobody-had-seen).",
    ),
    Section(
        "lookalikes",
        "Look-alikes",
        "Small sets of texts that differ in one place and are other failures, and sets that look different and are "
        "one, written to be hard.",
    ),
    Section(
        "accuracy",
        "Causes",
        "Labelled failure texts: how many causes are right, how many messages for people would be sent again "
        "(unsafe), and whether answers are as often right as they are sure.",
    ),
    Section(
        "growth",
        "A year of finished messages",
        "Runs of 20,000 new messages, every page and `status`, in turns on a ledger that holds the last two weeks and "
        "on one that holds a year. A ratio is computing time after to before, of PostgreSQL with its server's but for "
        "autovacuum, which comes when it likes and has its own line: of a stage that of three runs together, of a page "
        "the least of nine times.",
        (("--messages", "5000000"), (*POSTGRESQL, "--messages", "5000000")),
    ),
    Section(
        "memory",
        "Memory",
        "Peak of each stage's process, imports and all, of three runs of a route, then of audit and retention.",
    ),
    Section("parsing", "Many routes", "Seconds of computing, each in a new interpreter."),
    Section(
        "shards",
        "Several shards on one destination",
        "A broker in memory that confirms a window of 1,000 after 0.1 s; each shard is a process.",
        (("--messages", "50000"),),
    ),
    Section(
        "idle",
        "A run that finds nothing to do",
        "`redrive run` as a process of its own, on empty queues of an SQS-compatible server (a stand-in).",
    ),
    Section(
        "small_batches",
        "A small batch",
        "A whole cycle of 500 new messages, with Spark started for it and with one that is there.",
    ),
    Section(
        "redelivery",
        "A slow consumer",
        "Ten thousand messages for a consumer that does 20 a second: all at once, as consoles and shovels do it, and "
        "under Redrive's budget. Time is simulated.",
    ),
)

_TOP: Final = f"""# Benchmarks

<!-- Made by `python -m benchmarks.page` from benchmarks/results; do not edit. -->

`make bench` measures on your machine. Rates belong to the machine and the hour, so compare what stands in one table:
each was measured in one run, and its last line says where, when and on which commit (`+`: with changes). How long
{ADDITIONS:,} additions of plain Python took then tells how fast a core was.

What was measured on other commits, what helped and what did not: [history](benchmarks-history.md).
"""


def read() -> list[Result]:
    """What was recorded, in the order of the page."""
    found = [Result.from_json(file.read_text(encoding="utf-8")) for file in sorted(FOLDER.glob("*.json"))]
    order = [section.benchmark for section in SECTIONS]
    return sorted(found, key=lambda one: (order.index(one.benchmark), one.variant))


def document(results: Sequence[Result]) -> str:
    """The whole page."""
    parts = [_TOP, "## Goals\n", *_lines(_goals(results)), ""]
    for section in SECTIONS:
        own = [one for one in results if one.benchmark == section.benchmark]
        if own:
            parts += [f"## {section.heading}\n", section.says + "\n"]
        for one in own:
            for table in one.tables:
                parts += [f"**{table.title}**\n"] if table.title else []
                parts += [*_lines(table), ""]
            parts.append(
                f"`{' '.join(['python -m benchmarks.' + one.benchmark, one.arguments]).strip()}`: commit {one.commit}, "
                f"{one.date} UTC, {one.machine}; additions: {one.additions:.2f} s.\n"
            )
    return "\n".join(parts).rstrip() + "\n"


def _goals(results: Iterable[Result]) -> Table:
    """Every figure that has a goal; of many with the same goal in one column the worst, and how many miss it."""
    rows = []
    for one in results:
        heading = next(section.heading for section in SECTIONS if section.benchmark == one.benchmark)
        for table in one.tables:
            for (column, goal), figures in _by_goal(table).items():
                name, worst = max(figures, key=lambda each: each[1].value * (-1 if each[1].least is not None else 1))
                told = [(name, worst)] if len(figures) > MANY else figures
                for name, figure in told:
                    what = ", ".join(filter(None, (table.title or one.variant, name, column)))
                    missed = sum(each.missed for _, each in figures)
                    of = f"; the worst of {len(figures)}, {missed} miss it" if len(figures) > MANY else ""
                    rows.append((f"[{heading}](#{_anchor(heading)}): {what}{of}", figure, goal, one.commit))
    return Table(("what", "measured", "goal", "commit"), rows)


def _by_goal(table: Table) -> dict[tuple[str, str], list[tuple[str, Figure]]]:
    """The figures with a goal and the names of their rows, by column and goal."""
    found: dict[tuple[str, str], list[tuple[str, Figure]]] = {}
    for name, column, figure in table.figures():
        if figure.goal:
            found.setdefault((column, figure.goal), []).append((name, figure))
    return found


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-").replace(",", "").replace("'", "")


def _lines(table: Table) -> Iterator[str]:
    """The table in Markdown; a goal that was missed is bold."""
    yield f"| {' | '.join(table.columns)} |"
    yield "|" + "---|" * len(table.columns)
    for row in table.rows:
        yield f"| {' | '.join(_bold(cell) for cell in row)} |"


def _bold(cell: str | int | Figure) -> str:
    text = shown(cell)
    return f"**{text}**" if isinstance(cell, Figure) and cell.missed else text


def write(page: Path = PAGE) -> None:
    """Write the page."""
    page.write_text(document(read()), encoding="utf-8")


if __name__ == "__main__":
    options.parser("page", __doc__, kept=False).parse_args()
    write()
    print(f"{PAGE.relative_to(ROOT)} written", file=sys.stderr)
