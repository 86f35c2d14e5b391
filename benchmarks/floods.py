"""What blanking rare words changes: causes and groups of texts that are all different, beside each told apart.

``python -m benchmarks.floods [--texts 20000]``. One word of each text is invented (:mod:`benchmarks.failure_texts`), as
values are that look like words. Half of the texts are log lines, which only count as neighbours; of the failure texts
3,000 are judged twice: as they are, and as a share of a batch would see them
(:mod:`redrive.classification.rare_words`). A cause is unsafe if a person's becomes one that is sent again by itself.
"""

import random
import sys
from collections.abc import Sequence

from benchmarks import options
from benchmarks.accuracy import is_unsafe
from benchmarks.failure_texts import PLACES, lines, texts
from benchmarks.results import Cell, Figure, Table, finish
from redrive.classification import explain
from redrive.classification.bulk_masking import Masked
from redrive.classification.cases import Case
from redrive.classification.rare_words import RareWords

JUDGED = 3_000
#: So many may have another cause, by values in one place.
DIFFER = 0.01


def main() -> int:
    """Print what differs; 1 where more than one of a hundred causes does by values in one place."""
    parser = options.parser("floods", __doc__)
    parser.add_argument("--texts", type=int, default=20_000)
    asked = parser.parse_args()
    if not all(lines()):
        print("no data: set REDRIVE_DATA to a folder with failures/*.jsonl and loghub/*.csv")
        return 0
    rows = [_compared(list(texts(asked.texts, 5, place)), place) for place in PLACES[1:]]
    columns = (
        "a word invented",
        "cases",
        "shared",
        "failures",
        "of another cause",
        "unsafe",
        "groups",
        "groups, shared",
    )
    return finish(asked, "floods", Table(columns, rows))


def _compared(said: Sequence[str], place: str) -> list[Cell]:
    masks, words = Masked(), RareWords(1_000)
    apart = masks.all(said)
    together = [words.shown(masked) for masked in masks.all(words.blanked(said, 0))]
    pairs = list(zip(apart, together, strict=True))[0::2]
    pairs = random.Random(2).sample(pairs, min(JUDGED, len(pairs)))
    alone, shared = (explain.explain_cases(dict.fromkeys(map(Case, one), 1)) for one in zip(*pairs, strict=True))
    found = [(alone[Case(one)], shared[Case(other)]) for one, other in pairs]
    differ = sum(one.cause != other.cause for one, other in found) / len(found)
    unsafe = sum(is_unsafe(one.cause, other.cause) for one, other in found) / len(found)
    groups, of_shared = (len({one.fingerprint for one in some}) for some in zip(*found, strict=True))
    most = DIFFER if place == PLACES[1] else None
    return [
        place,
        len(set(apart)),
        len(set(together)),
        len(found),
        Figure(differ, 4, most=most),
        Figure(unsafe, 4),
        groups,
        of_shared,
    ]


if __name__ == "__main__":
    sys.exit(main())
