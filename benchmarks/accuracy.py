"""Accuracy of causes: share right, unsafe and left open, and the confusions, on the labelled failure texts.

The data is read from ``$REDRIVE_DATA`` (default ``../shared/data``): ``failures/*.jsonl`` with ``text, cause, also``.
An answer is right if it is ``cause`` or one of ``also``; it is unsafe if the true cause is one for a person, and the
message goes again by itself for ours (:class:`redrive.classification.causes.Verdict` says which do).
"""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from redrive.classification.causes import AUTOMATIC, NEED_PERSON, Cause
from redrive.classification.explain import explain


def is_unsafe(true: str, found: str) -> bool:
    """Whether ``found`` sends again by itself what ``true`` leaves to a person."""
    return Cause(true) in NEED_PERSON and Cause(found) in AUTOMATIC


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


RIGHT, UNSAFE, UNCLASSIFIED = 0.96, 0.01, 0.04


class Measured(NamedTuple):
    """Shares of the labelled texts, and what went wrong."""

    texts: int
    right: float
    unsafe: float
    unclassified: float
    seconds: float
    pairs: list[tuple[str, str]]  # (true, found)
    wrong: list[tuple[str, str, str, str]]  # true, found, rule, text

    @property
    def good(self) -> bool:
        """Whether every goal is met."""
        return self.right >= RIGHT and self.unsafe <= UNSAFE and self.unclassified <= UNCLASSIFIED


def measure() -> Measured | None:
    """What ``$REDRIVE_DATA`` says of our answers; None where there is no data."""
    items: list[dict[str, Any]] = []
    for file in sorted(_folder().glob("*.jsonl")):
        items += [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not items:
        return None
    started = time.perf_counter()
    answers = list(explain({"text": item["text"]} for item in items))
    seconds = time.perf_counter() - started
    pairs = [(item["cause"], answer["cause"]) for item, answer in zip(items, answers, strict=True)]
    wrong = [
        (item["cause"], answer["cause"], answer["rule"], item["text"])
        for item, answer in zip(items, answers, strict=True)
        if answer["cause"] not in (item["cause"], *item.get("also", ()))
    ]
    total = len(items)
    return Measured(
        total,
        1 - len(wrong) / total,
        sum(is_unsafe(true, found) for true, found in pairs) / total,
        sum(found == Cause.UNCLASSIFIED for _, found in pairs) / total,
        seconds,
        pairs,
        wrong,
    )


def _folder() -> Path:
    return Path(os.environ.get("REDRIVE_DATA", "../shared/data")) / "failures"


def main() -> int:
    """Print shares and confusions, with ``-v`` every wrong answer; 1 where a goal is missed."""
    measured = measure()
    if measured is None:
        print(f"no data in {_folder()}: set REDRIVE_DATA to a folder with failures/*.jsonl (text, cause, also)")
        return 0
    print(
        f"texts {measured.texts}  right {measured.right:.3f} (goal {RIGHT:.3f})  "
        f"unsafe {measured.unsafe:.3f} (goal {UNSAFE:.3f})  "
        f"unclassified {measured.unclassified:.3f} (goal {UNCLASSIFIED:.3f})  "
        f"{measured.texts / measured.seconds:,.0f} texts/s"
    )
    for true, found, rule, text in measured.wrong if "-v" in sys.argv else ():
        print(f"  {true} -> {found} ({rule}): {text[:160]!r}")
    for (true, found), count in Counter(one[:2] for one in measured.wrong).most_common():
        print(f"  {count:3} {true} taken for {found}")
    print("\n".join(confusion_matrix(measured.pairs)))
    return int(not measured.good)


if __name__ == "__main__":
    sys.exit(main())
