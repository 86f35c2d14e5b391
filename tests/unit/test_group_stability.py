"""A text keeps its group: in the next batch, in the one after that, alone, and whatever else is told by then."""

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping
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
SETS = [
    json.loads(line)
    for file in sorted(lookalikes.SETS.glob("*.jsonl"))
    for line in file.read_text(encoding="utf-8").splitlines()
]
LOOK_ALIKES = [each["texts"] for each in SETS]
#: Sets of other failures that are told apart in one batch, and not one after the other: less is better.
JOINED_IN_TURN = 4


def cases_of(texts: Iterable[str]) -> dict[Case, int]:
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


def some_of(name: str, most: int) -> dict[str, str]:
    """So many texts of a set, each with its family."""
    lines = chain.from_iterable(file.read_text(encoding="utf-8").splitlines() for file in families.ours()[name])
    rows = {row["text"]: row.get("alt") or row["family"] for row in map(json.loads, lines)}
    return {text: rows[text] for text in random.Random(name).sample(sorted(rows), most)}


def in_turn(batches: Iterable[dict[Case, int]]) -> dict[Case, str]:
    """The group of each case of ``batches`` that come one after the other."""
    known: set[KnownGroup] = set()
    return {case: group for batch in batches for case, group in grouped(batch, known).items()}


def with_others(found: Mapping[Case, str], family: Mapping[Case, str]) -> int:
    """How many cases are in a group with those of another family."""
    groups = Counter(group for group, _ in {(group, family[case]) for case, group in found.items()})
    return sum(groups[group] > 1 for group in found.values())


@pytest.mark.parametrize("name", families.ours())
def test_a_batch_that_comes_again_has_the_same_groups(name: str) -> None:
    assert moved(cases_of(some_of(name, BATCH))) == []


@pytest.mark.parametrize("name", families.ours())
def test_two_batches_hold_no_more_wrong_groups_than_one(name: str) -> None:
    rows = some_of(name, BATCH)
    family = {case: rows[text] for text in rows for case in cases_of([text])}
    left, right = dict.fromkeys(list(family)[::2], 1), dict.fromkeys(list(family)[1::2], 1)
    at_once = with_others(in_turn([left | right]), family)
    assert with_others(in_turn([left, right]), family) <= at_once
    assert with_others(in_turn([right, left]), family) <= at_once


@pytest.mark.parametrize("backwards", [False, True])
def test_look_alikes_that_come_one_by_one_stay_apart(backwards: bool) -> None:
    joined = []
    for each in SETS:
        cases = sorted(cases_of(each["texts"]), reverse=backwards)
        if each["apart"] and len({*in_turn([dict.fromkeys(cases, 1)]).values()}) == len(cases):
            joined += [each["id"]] * (len({*in_turn([{case: 1} for case in cases]).values()}) < len(cases))
    assert len(joined) <= JOINED_IN_TURN, joined


def test_look_alikes_that_come_again_have_the_same_groups() -> None:
    assert [texts for texts in LOOK_ALIKES if moved(cases_of(texts))] == []
    assert moved(cases_of(sorted(set(chain.from_iterable(LOOK_ALIKES))))) == []


@pytest.mark.parametrize("name", families.ours())
def test_a_text_of_a_batch_has_the_same_group_when_it_comes_alone(name: str) -> None:
    cases = cases_of(some_of(name, 120))
    known: set[KnownGroup] = set()
    first = grouped(cases, known)
    some = list(cases)[:15]
    assert [case.masked for case in some if grouped({case: 1}, {*known}) != {case: first[case]}] == []
