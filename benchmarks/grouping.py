"""Accuracy of grouping: GA and FGA on the Loghub samples, one configuration for all systems.

GA is the share of lines whose group has exactly the lines of their true group, FGA the F1 over groups.
The data is read from ``$REDRIVE_DATA`` (default ``../shared/data``), folder ``loghub``.
"""

import csv
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from redrive.classification.explain import explain


def accuracy(found: Sequence[str], true: Sequence[str]) -> tuple[float, float]:
    """(GA, FGA) of one system."""
    pairs = Counter(zip(found, true, strict=True))
    found_sizes, true_sizes = Counter(found), Counter(true)
    right = [count for (f, t), count in pairs.items() if count == found_sizes[f] == true_sizes[t]]
    precision, recall = len(right) / len(found_sizes), len(right) / len(true_sizes)
    return sum(right) / len(true), 2 * precision * recall / (precision + recall) if right else 0.0


GA, FGA = 0.93, 0.90


class Measured(NamedTuple):
    """One system's lines and how they were grouped."""

    system: str
    ga: float
    fga: float
    found: list[str]  # per line: our group
    true: list[str]  # per line: the true one
    seconds: float


def measure() -> list[Measured]:
    """Every system of ``$REDRIVE_DATA``; nothing where there is no data."""
    measured = []
    for file in sorted(_folder().glob("*.csv")):
        with file.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines))
        started = time.perf_counter()
        answers = list(explain({"text": row["text"]} for row in rows))
        seconds = time.perf_counter() - started
        found = [f"{answer['cause']}: {answer['template']}" for answer in answers]
        true = [row["event_id"] for row in rows]
        measured.append(Measured(file.stem, *accuracy(found, true), found, true, seconds))
    return measured


def means(measured: Sequence[Measured]) -> tuple[float, float]:
    """Mean (GA, FGA) over the systems."""
    return sum(one.ga for one in measured) / len(measured), sum(one.fga for one in measured) / len(measured)


def _folder() -> Path:
    return Path(os.environ.get("REDRIVE_DATA", "../shared/data")) / "loghub"


def main() -> int:
    """Print a line per system and the means, with ``-v`` what was split and merged; 1 where a goal is missed."""
    measured = measure()
    if not measured:
        print(f"no data in {_folder()}: set REDRIVE_DATA to a folder with loghub/*.csv (event_id,text)")
        return 0
    for one in measured:
        print(
            f"{one.system:12} GA {one.ga:.3f}  FGA {one.fga:.3f}  groups {len(set(one.found)):4}  "
            f"true {len(set(one.true)):4}  {len(one.true) / one.seconds:7.0f} texts/s"
        )
        if "-v" in sys.argv:
            _explain(one)
    ga, fga = means(measured)
    print(f"{'mean':12} GA {ga:.3f} (goal {GA:.3f})  FGA {fga:.3f} (goal {FGA:.3f})")
    return int(ga < GA or fga < FGA)


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
