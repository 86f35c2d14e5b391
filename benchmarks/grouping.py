"""Accuracy of grouping: of failures, and as a second opinion of log lines; one configuration for all.

Failures: families of texts, one family for one failure, from ``groups/*.jsonl`` (``text, family, kind`` and perhaps
``alt``, by which families may also be one). GA is the share of messages whose group is exactly their family, FGA the F1
over groups, *merge* the share of messages in groups that hold more than one failure, *split* the share of families in
more than one group. Log lines: GA and FGA on the Loghub samples, from ``loghub/*.csv``.
The data is read from ``$REDRIVE_DATA`` (default ``../shared/data``).
"""

import csv
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import drain3_peer, options
from benchmarks.results import Cell, Figure, Table, finish
from redrive.classification.explain import explain


def accuracy(found: Sequence[str], true: Sequence[str]) -> tuple[float, float]:
    """(GA, FGA) of one system."""
    pairs = Counter(zip(found, true, strict=True))
    found_sizes, true_sizes = Counter(found), Counter(true)
    right = [count for (f, t), count in pairs.items() if count == found_sizes[f] == true_sizes[t]]
    precision, recall = len(right) / len(found_sizes), len(right) / len(true_sizes)
    return sum(right) / len(true), 2 * precision * recall / (precision + recall) if right else 0.0


#: Families of our own, which are measured without a goal: rules were written with most of them in view.
OURS = Path(__file__).parent / "families"
#: Log lines of systems that were run for it, labelled by the statement that wrote them, which are measured without a
#: goal: verbs and names are arguments there that tell failures apart.
LINES = Path(__file__).parent / "log_lines"
#: Goals on log lines, and on failures: at least, at least, at most, at most.
GA, FGA = 0.80, 0.85


class Families(NamedTuple):
    """How failures were grouped."""

    messages: int
    families: int
    groups: int
    ga: float
    fga: float
    merge: float
    split: float

    @property
    def good(self) -> bool:
        """Whether the goals are reached."""
        return all(self[at] >= GOALS[at] for at in (3, 4)) and all(self[at] <= GOALS[at] for at in (5, 6))


GOALS = Families(0, 0, 0, ga=0.75, fga=0.65, merge=0.01, split=0.25)


def families_of(rows: Sequence[dict[str, str]], found: Sequence[str]) -> dict[str, Families]:
    """By kind, and as ``all``: how ``rows`` were grouped, each into the group of its place in ``found``."""
    true: dict[str, set[int]] = {}
    predicted: dict[str, set[int]] = {}
    other: dict[str, str] = {}
    for number, (row, group) in enumerate(zip(rows, found, strict=True)):
        predicted.setdefault(group, set()).add(number)
        true.setdefault(row["family"], set()).add(number)
        other[row["family"]] = row.get("alt") or row["family"]
    together: dict[str, set[int]] = {}
    for family, members in true.items():
        together.setdefault(other[family], set()).update(members)
    right = {frozenset(members) for members in [*true.values(), *together.values()]}
    good = {group for group, members in predicted.items() if frozenset(members) in right}
    merged = {group for group, members in predicted.items() if len({other[rows[one]["family"]] for one in members}) > 1}
    split = {family for family, members in true.items() if len({found[one] for one in members}) > 1}
    seen = {rows[one]["family"] for group in good for one in predicted[group]}
    measured = {}
    for kind in [*sorted({row["kind"] for row in rows}), "all"]:
        some = [number for number, row in enumerate(rows) if kind in (row["kind"], "all")]
        groups, families = {found[one] for one in some}, {rows[one]["family"] for one in some}
        precision, recall = len(good & groups) / len(groups), len(seen & families) / len(families)
        measured[kind] = Families(
            len(some),
            len(families),
            len(groups),
            sum(found[one] in good for one in some) / len(some),
            2 * precision * recall / (precision + recall) if precision + recall else 0.0,
            sum(found[one] in merged for one in some) / len(some),
            len(split & families) / len(families),
        )
    return measured


def failures() -> dict[str, Families]:
    """By kind, how the families of ``$REDRIVE_DATA`` are grouped; nothing where there are none."""
    return _of(sorted((_folder().parent / "groups").glob("*.jsonl")))


def ours() -> dict[str, list[Path]]:
    """The files of each set of our own: a large one has several, ``name.1.jsonl`` and so on."""
    sets: dict[str, list[Path]] = {}
    for file in sorted(OURS.glob("*.jsonl")):
        sets.setdefault(file.name.partition(".")[0], []).append(file)
    return sets


def _of(files: Iterable[Path]) -> dict[str, Families]:
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines() if line]
    if not rows:
        return {}
    return families_of(rows, [answer["group"] for answer in explain({"text": row["text"]} for row in rows)])


class Measured(NamedTuple):
    """One system's lines and how they were grouped."""

    system: str
    ga: float
    fga: float
    texts: list[str]
    found: list[str]  # per line: our group
    true: list[str]  # per line: the true one


def measure() -> list[Measured]:
    """Every system of ``$REDRIVE_DATA``; nothing where there is no data."""
    measured = []
    for file in sorted(_folder().glob("*.csv")):
        with file.open(encoding="utf-8", newline="") as lines:
            rows = [(row["text"], row["event_id"]) for row in csv.DictReader(lines)]
        measured.append(_measured(file.stem, rows))
    return measured


def measure_ours() -> list[Measured]:
    """As :func:`measure`, every system of :data:`LINES`."""
    measured = []
    for file in sorted(LINES.glob("*.jsonl")):
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        measured.append(_measured(file.stem, [(row["text"], row["label"]) for row in rows]))
    return measured


def _measured(system: str, rows: Sequence[tuple[str, str]]) -> Measured:
    answers = list(explain({"text": text} for text, _ in rows))
    found = [f"{answer['cause']}: {answer['template']}" for answer in answers]
    true = [label for _, label in rows]
    return Measured(system, *accuracy(found, true), [text for text, _ in rows], found, true)


def means(measured: Sequence[Measured]) -> tuple[float, float]:
    """Mean (GA, FGA) over the systems."""
    return _means([(one.ga, one.fga) for one in measured])


def _means(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    gas, fgas = zip(*pairs, strict=True)
    return sum(gas) / len(gas), sum(fgas) / len(fgas)


def _folder() -> Path:
    return Path(os.environ.get("REDRIVE_DATA", "../shared/data")) / "loghub"


def main() -> int:
    """Print how failures and log lines are grouped, with ``-v`` what was split and merged; 1 where a goal is missed."""
    parser = options.parser("grouping", __doc__)
    parser.add_argument("-v", dest="explained", action="store_true", help="which log lines were split and merged")
    asked = parser.parse_args()
    tables = []
    if of_failures := failures():
        rows = [_row(kind, one, GOALS if kind == "all" else None) for kind, one in of_failures.items()]
        tables.append(_families(rows, "Failures at hand, by kind"))
    rows = [_row(name, _of(files)["all"]) for name, files in ours().items()]
    tables.append(_families(rows, "Families of our own"))
    for title, measured, goals in (
        ("Log lines of systems that were run for it", measure_ours(), (None, None)),
        ("Log lines of Loghub", measure(), (GA, FGA)),
    ):
        if not measured:
            print(f"no data in {_folder()}: set REDRIVE_DATA to a folder with loghub/*.csv (event_id,text)")
            continue
        tables.append(_log_lines(measured, title, goals))
        for one in measured if asked.explained else ():
            print(one.system)
            _explain(one)
    return finish(asked, "grouping", *tables)


def _row(name: str, one: Families, goals: Families | None = None) -> list[Cell]:
    return [
        name,
        one.messages,
        one.families,
        one.groups,
        Figure(one.ga, 3, least=goals and goals.ga),
        Figure(one.fga, 3, least=goals and goals.fga),
        Figure(one.merge, 3, most=goals and goals.merge),
        Figure(one.split, 3, most=goals and goals.split),
    ]


def _families(rows: list[list[Cell]], title: str) -> Table:
    return Table(("", "texts", "families", "groups", "GA", "FGA", "merge", "split"), rows, title)


def _log_lines(measured: Sequence[Measured], title: str, goals: tuple[float | None, float | None]) -> Table:
    """How the lines of each system were grouped, their means, and those of Drain3 where it is installed."""
    rows: list[list[Cell]] = [[one.system, Figure(one.ga, 3), Figure(one.fga, 3)] for one in measured]
    means_of_ours = zip(means(measured), goals, strict=True)
    rows.append(["mean", *(Figure(mean, 3, least=goal) for mean, goal in means_of_ours)])
    found = drain3_peer.clusters(one.texts for one in measured)
    if found is None:
        print("no Drain3 to stand beside it: `make bench` installs it")
    else:
        each = [accuracy(clusters, one.true) for clusters, one in zip(found, measured, strict=True)]
        rows.append(["Drain3, mean of the same lines", *(Figure(mean, 3) for mean in _means(each))])
    return Table(("system", "GA", "FGA"), rows, title)


def _explain(one: Measured) -> None:
    groups_of: dict[str, set[str]] = {}
    events_of: dict[str, Counter[str]] = {}
    for found, true in zip(one.found, one.true, strict=True):
        groups_of.setdefault(true, set()).add(found)
        events_of.setdefault(found, Counter())[true] += 1
    for event, names in groups_of.items():
        if len(names) > 1:
            print("   split", event, len(names), sorted(names)[:4])
    for name, events in events_of.items():
        if len(events) > 1:
            print("   merged", dict(events), name[:160])


if __name__ == "__main__":
    sys.exit(main())
