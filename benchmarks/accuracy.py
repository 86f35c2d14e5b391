"""Accuracy of causes: share right, unsafe and left open, and the confusions, on the labelled failure texts.

The data is read from ``$REDRIVE_DATA`` (default ``../shared/data``): ``failures/*.jsonl`` with ``text, cause, also``.
An answer is right if it is ``cause`` or one of ``also``; it is unsafe if the true cause is one for a person or
may have been processed already, and ours would send the message again by itself.
"""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redrive.causes import Cause, Verdict, default_verdict
from redrive.explain import explain

CAREFUL = {Verdict.ESCALATE, Verdict.SUPPRESS_OR_REQUEUE, Verdict.SUPPRESS_OR_ESCALATE}
BOLD = {Verdict.REQUEUE, Verdict.DELAY}


def is_unsafe(true: str, found: str) -> bool:
    """Whether ``found`` would send again what ``true`` says should not go by itself."""
    return default_verdict(Cause(true)) in CAREFUL and default_verdict(Cause(found)) in BOLD


def confusion_matrix(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Lines of a table of (true, found) pairs: a row for each true cause, a column for each cause found.

    Counts are to the letter, so what one of ``also`` excuses stands beside the diagonal too. Columns are
    numbered like the rows; a dot is a zero.
    """
    names = [cause.value for cause in Cause if any(cause.value in pair for pair in pairs)]
    counts = Counter(pairs)
    widest = max(map(len, names), default=0)
    lines = [f"  {'true, found':>{widest + 4}} " + "".join(f"{n:4}" for n in range(1, len(names) + 1)) + "  right"]
    for n, true in enumerate(names, 1):
        row = [counts[true, found] for found in names]
        share = f"{counts[true, true] / sum(row):7.2f}" if sum(row) else "      -"
        lines.append(f"  {n:2} {true:>{widest + 1}} " + "".join(f"{count or '.':>4}" for count in row) + share)
    return lines


def main() -> int:
    """Print shares and confusions; exit 1 where a goal is missed and ``--check`` is given."""
    folder = Path(os.environ.get("REDRIVE_DATA", "../shared/data")) / "failures"
    items: list[dict[str, Any]] = []
    for file in sorted(folder.glob("*.jsonl")):
        items += [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not items:
        print(f"no data in {folder}: set REDRIVE_DATA to a folder with failures/*.jsonl (text, cause, also)")
        return 0
    started = time.perf_counter()
    answers = list(explain({"text": item["text"]} for item in items))
    seconds = time.perf_counter() - started
    confusions: Counter[tuple[str, str]] = Counter()
    unsafe = open_ = 0
    for item, answer in zip(items, answers, strict=True):
        found = answer["cause"]
        unsafe += is_unsafe(item["cause"], found)
        open_ += found == Cause.UNCLASSIFIED
        if found not in (item["cause"], *item.get("also", ())):
            confusions[item["cause"], found] += 1
            if "-v" in sys.argv:
                print(f"  {item['cause']} -> {found} ({answer['rule']}): {item['text'][:160]!r}")
    total = len(items)
    right = 1 - sum(confusions.values()) / total
    print(
        f"texts {total}  right {right:.3f} (goal 0.960)  unsafe {unsafe / total:.3f} (goal 0.010)  "
        f"unclassified {open_ / total:.3f} (goal 0.040)  {total / seconds:,.0f} texts/s"
    )
    for (true, found), count in confusions.most_common():
        print(f"  {count:3} {true} taken for {found}")
    print(
        "\n".join(
            confusion_matrix([(item["cause"], answer["cause"]) for item, answer in zip(items, answers, strict=True)])
        )
    )
    return int("--check" in sys.argv and not (right >= 0.96 and unsafe / total <= 0.01 and open_ / total <= 0.04))


if __name__ == "__main__":
    sys.exit(main())
