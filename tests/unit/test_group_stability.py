"""A text keeps its group: in the next batch, in the one after that, alone, and whatever else is told by then."""

import json
import random
from collections.abc import Sequence
from itertools import chain

import pytest
from benchmarks import grouping as families
from benchmarks import lookalikes

from redrive.classification import failure_text, grouping
from redrive.classification.cases import Case
from redrive.classification.explain import explain_cases, groups_of
from redrive.classification.templates import KnownGroup

#: So many texts of a set, chosen by chance, are one batch.
BATCH = 400
LOOK_ALIKES = [
    json.loads(line)["texts"]
    for file in sorted(lookalikes.SETS.glob("*.jsonl"))
    for line in file.read_text(encoding="utf-8").splitlines()
]


def cases_of(texts: Sequence[str]) -> dict[Case, int]:
    return {Case(grouping.mask(failure_text.cut(text))): 1 for text in texts}


def grouped(cases: dict[Case, int], known: set[KnownGroup]) -> dict[Case, str]:
    """The group of each case; the groups become ``known``."""
    found = explain_cases(cases, known=known)
    known |= groups_of(found.values())
    return {case: one.fingerprint for case, one in found.items()}


def moved(cases: dict[Case, int]) -> list[str]:
    """Those of ``cases`` that have another group when all of them come again, and again."""
    known: set[KnownGroup] = set()
    first, second, third = (grouped(cases, known) for _ in range(3))
    return [case.masked for case in cases if not first[case] == second[case] == third[case]]


@pytest.mark.parametrize("name", families.ours())
def test_a_batch_that_comes_again_has_the_same_groups(name: str) -> None:
    lines = chain.from_iterable(file.read_text(encoding="utf-8").splitlines() for file in families.ours()[name])
    texts = sorted({json.loads(line)["text"] for line in lines})
    assert moved(cases_of(random.Random(name).sample(texts, min(BATCH, len(texts))))) == []


def test_look_alikes_that_come_again_have_the_same_groups() -> None:
    assert [texts for texts in LOOK_ALIKES if moved(cases_of(texts))] == []
    assert moved(cases_of(sorted(set(chain.from_iterable(LOOK_ALIKES))))) == []


@pytest.mark.parametrize("name", families.ours())
def test_a_text_of_a_batch_has_the_same_group_when_it_comes_alone(name: str) -> None:
    lines = families.ours()[name][0].read_text(encoding="utf-8").splitlines()
    texts = sorted({json.loads(line)["text"] for line in lines})
    cases = cases_of(random.Random(name).sample(texts, 120))
    known: set[KnownGroup] = set()
    first = grouped(cases, known)
    some = list(cases)[:15]
    assert [case.masked for case in some if grouped({case: 1}, {*known}) != {case: first[case]}] == []
