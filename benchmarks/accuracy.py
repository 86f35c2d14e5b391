"""Accuracy of causes: share right, unsafe and left open, the confusions, and whether answers are as often right as they
are sure, on the labelled failure texts.

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
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import options
from benchmarks.results import Cell, Figure, Table, finish
from redrive.classification import grouping, normalization
from redrive.classification.causes import AUTOMATIC, NEED_PERSON, Cause
from redrive.classification.explain import explain
from redrive.classification.learned_model import shipped

#: Ranges of confidence.
EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0)


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


class Bin(NamedTuple):
    """Answers of about one confidence: how sure they were, and what share of them was right."""

    low: float
    high: float
    answers: int
    confidence: float
    right: float
    least: float  # with so few answers the true share is between these two (Wilson, 95 of 100)
    most: float


def reliability(believed: Sequence[tuple[float, bool]], edges: Sequence[float] = EDGES) -> list[Bin]:
    """Whether answers are as often right as they are sure: one line for each range of confidence that has any."""
    bins = []
    for low, high in pairwise(edges):
        some = [one for one in believed if low <= one[0] < high or (high == edges[-1] and one[0] == high)]
        if some:
            right, total = sum(was for _, was in some), len(some)
            z, share = 1.96, right / total
            middle, wide = share + z * z / (2 * total), z * sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2)
            least, most = ((middle + sign * wide) / (1 + z * z / total) for sign in (-1, 1))
            bins.append(Bin(low, high, total, sum(one for one, _ in some) / total, share, max(0.0, least), most))
    return bins


def calibration_error(bins: Sequence[Bin]) -> float:
    """How far confidences are from what is right, on average over the answers (expected calibration error)."""
    total = sum(one.answers for one in bins)
    return sum(abs(one.confidence - one.right) * one.answers for one in bins) / total if total else 0.0


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
    believed: list[tuple[float, bool]]  # the confidence of each answer, and whether it is right
    by_model: list[tuple[float, bool]]  # the same of what the learned model would answer with no rule beside it

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
        [
            (answer["confidence"], answer["cause"] in (item["cause"], *item.get("also", ())))
            for item, answer in zip(items, answers, strict=True)
        ],
        _by_model(items),
    )


def _by_model(items: Sequence[dict[str, Any]]) -> list[tuple[float, bool]]:
    model = shipped()
    found = []
    for item in items if model is not None else ():
        answer = model.find(normalization.template(grouping.mask(item["text"])))  # type: ignore[union-attr]
        if answer is not None:
            found.append((answer.confidence, answer.cause in (item["cause"], *item.get("also", ()))))
    return found


def _folder() -> Path:
    return Path(os.environ.get("REDRIVE_DATA", "../shared/data")) / "failures"


def main() -> int:
    """Print shares and confusions, with ``-v`` every wrong answer; 1 where a goal is missed."""
    parser = options.parser("accuracy", __doc__)
    parser.add_argument("-v", dest="explained", action="store_true", help="every answer that is wrong")
    asked = parser.parse_args()
    measured = measure()
    if measured is None:
        print(f"no data in {_folder()}: set REDRIVE_DATA to a folder with failures/*.jsonl (text, cause, also)")
        return 0
    for true, found, rule, text in measured.wrong if asked.explained else ():
        print(f"  {true} -> {found} ({rule}): {text[:160]!r}")
    for (true, found), count in Counter(one[:2] for one in measured.wrong).most_common():
        print(f"  {count:3} {true} taken for {found}")
    print("\n".join(confusion_matrix(measured.pairs)))
    shares = Table(
        (f"{measured.texts:,} texts", "share"),
        (
            ("right", Figure(measured.right, 3, least=RIGHT)),
            ("unsafe", Figure(measured.unsafe, 3, most=UNSAFE)),
            ("unclassified", Figure(measured.unclassified, 3, most=UNCLASSIFIED)),
            ("texts/s", Figure(measured.texts / measured.seconds, 0)),
        ),
    )
    rows: list[list[Cell]] = []
    for name, believed in (("rules and model", measured.believed), ("the model alone", measured.by_model)):
        bins = reliability(believed)
        rows += [
            [
                f"{name}, {one.low:.2f} to {one.high:.2f}",
                one.answers,
                Figure(one.confidence, 3),
                Figure(one.right, 3),
                f"{one.least:.2f} to {one.most:.2f}" + ("" if one.least <= one.confidence <= one.most else ", off"),
            ]
            for one in bins
        ]
        rows.append([f"{name}, expected calibration error", "", "", Figure(calibration_error(bins), 3), ""])
    sure = Table(("answers of a confidence", "number", "they say", "are right", "95 of 100"), rows)
    return finish(asked, "accuracy", shares, sure)


if __name__ == "__main__":
    sys.exit(main())
