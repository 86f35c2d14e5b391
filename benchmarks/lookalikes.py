"""Failures that look alike, and one failure that looks different: how many sets of each are grouped right.

Families (``benchmarks.grouping``) say how much is right of what teams have. This asks for what is hard: sets of texts
that differ in one small place and are other failures (a wrong merge sends the wrong messages), and sets that look
different and are one. Each set is grouped by itself.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import options
from benchmarks.results import Table, finish
from redrive.classification.explain import explain

SETS = Path(__file__).parent / "look_alikes"


class Measured(NamedTuple):
    """How one file was grouped: of the sets that are apart, and of those that are one, the wrong ones."""

    name: str
    apart: int
    merged: list[dict[str, Any]]
    one: int
    split: list[dict[str, Any]]


def groups_of(texts: list[str]) -> list[str]:
    """The group of each text, grouped as one batch."""
    return [answer["group"] for answer in explain({"text": text} for text in texts)]


def measure() -> Iterator[Measured]:
    """Every file of look-alikes."""
    for file in sorted(SETS.glob("*.jsonl")):
        sets = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        apart, one = ([each for each in sets if each["apart"] is kind] for kind in (True, False))
        merged = [each for each in apart if len(set(groups_of(each["texts"]))) < len(each["texts"])]
        split = [each for each in one if len(set(groups_of(each["texts"]))) > 1]
        yield Measured(file.stem, len(apart), merged, len(one), split)


def main() -> int:
    """Print a line per file, with ``-v`` the sets that are wrong."""
    parser = options.parser("lookalikes", __doc__)
    parser.add_argument("-v", dest="explained", action="store_true", help="which sets are wrong, and their texts")
    asked = parser.parse_args()
    found = list(measure())
    for file in found if asked.explained else ():
        for kind, wrong in (("merged", file.merged), ("split", file.split)):
            for each in wrong:
                print(f"   {file.name}: {kind} {each['id']} {each['what']}")
                for text in each["texts"]:
                    print(f"      {text[:160]!r}")
    table = Table(
        ("sets", "other failures", "of these merged", "one failure", "of these split"),
        [(file.name, file.apart, len(file.merged), file.one, len(file.split)) for file in found],
    )
    return finish(asked, "lookalikes", table)


if __name__ == "__main__":
    sys.exit(main())
