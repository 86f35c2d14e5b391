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

from redrive.explain import explain


def accuracy(found: Sequence[str], true: Sequence[str]) -> tuple[float, float]:
    """(GA, FGA) of one system."""
    pairs = Counter(zip(found, true, strict=True))
    found_sizes, true_sizes = Counter(found), Counter(true)
    right = [count for (f, t), count in pairs.items() if count == found_sizes[f] == true_sizes[t]]
    precision, recall = len(right) / len(found_sizes), len(right) / len(true_sizes)
    return sum(right) / len(true), 2 * precision * recall / (precision + recall) if right else 0.0


def main() -> int:
    """Print a line per system and the means."""
    folder = Path(os.environ.get("REDRIVE_DATA", "../shared/data")) / "loghub"
    files = sorted(folder.glob("*.csv"))
    if not files:
        print(f"no data in {folder}: set REDRIVE_DATA to a folder with loghub/*.csv (event_id,text)")
        return 0
    scores = []
    for file in files:
        with file.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines))
        started = time.perf_counter()
        answers = list(explain({"text": row["text"]} for row in rows))
        seconds = time.perf_counter() - started
        found = [f"{answer['cause']}: {answer['template']}" for answer in answers]
        ga, fga = accuracy(found, [row["event_id"] for row in rows])
        scores.append((ga, fga))
        print(
            f"{file.stem:12} GA {ga:.3f}  FGA {fga:.3f}  groups {len(set(found)):4}  "
            f"true {len({row['event_id'] for row in rows}):4}  {len(rows) / seconds:7.0f} texts/s"
        )
        if "-v" in sys.argv:
            truth: dict[str, set[str]] = {}
            for f, row in zip(found, rows, strict=True):
                truth.setdefault(row["event_id"], set()).add(f)
            back: dict[str, Counter[str]] = {}
            for f, row in zip(found, rows, strict=True):
                back.setdefault(f, Counter())[row["event_id"]] += 1
            for event, names in truth.items():
                if len(names) > 1:
                    print("   split", event, len(names), sorted(names)[:4])
            for name, events in back.items():
                if len(events) > 1:
                    print("   merged", dict(events), name[:160])
    ga, fga = (sum(column) / len(scores) for column in zip(*scores, strict=True))
    print(f"{'mean':12} GA {ga:.3f} (goal 0.930)  FGA {fga:.3f} (goal 0.900)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
