"""The gate of a group, as a table: what was seen of its stage, and the step it takes."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive.policy import gates
from redrive.policy.gates import Counts, Outcomes, Rules, Stage, Step

NOW = datetime(2025, 1, 1, tzinfo=UTC)
COOL = timedelta(minutes=15)
RULES = Rules(canary=True, first=20, grow=10, pass_share=0.95, return_rate=0.5, min_samples=20, cool_down=COOL)


def counts(stage: str, **seen: Any) -> Counts:
    values: dict[str, Any] = {
        "allowed": 20, "sent": 0, "stayed": 0, "returned": 0, "trips": 0, "cool_down_until": None, "waiting": 0,
        "held": 1000,
    }  # fmt: skip
    return Counts(Stage(stage), **values | seen)


STAYS = {
    "canary: nothing sent": counts("canary"),
    "canary: not all observed": counts("canary", sent=20, stayed=19),
    "canary: some still waiting": counts("canary", sent=10, stayed=10, waiting=10),
    "canary: one return of twenty still passes": counts("canary", sent=20, stayed=18, returned=1),
    "canary: too few were sent to grow by, and nothing waits for it": counts("canary", sent=2, stayed=2, held=0),
    "ramp: it ran empty and has proved less than it may send": counts("ramp", allowed=200, sent=20, stayed=20, held=0),
    "ramp: the first of a handful came back": counts("ramp", allowed=200, sent=2, stayed=1, returned=1, held=0),
    "open: too few samples": counts("open", sent=19, returned=19),
    "open: just at the return rate": counts("open", sent=40, stayed=20, returned=20),
    "open: quiet": counts("open", sent=1000, stayed=1000),
    "failed: waits for a person": counts("failed", sent=20, returned=20),
    "tripped: still cooling": counts("tripped", cool_down_until=NOW + timedelta(seconds=1)),
}


@pytest.mark.parametrize("seen", STAYS.values(), ids=STAYS.keys())
def test_stays(seen: Counts) -> None:
    assert gates.step(seen, RULES, passing=True, now=NOW) is None


STEPS = {
    "canary passes and grows": (
        counts("canary", sent=20, stayed=20),
        Step(Stage.RAMP, 200, "20 of 20 stayed away.", 0),
    ),
    "canary passes with one return": (
        counts("canary", sent=20, stayed=19, returned=1),
        Step(Stage.RAMP, 200, "19 of 20 stayed away.", 0),
    ),
    "ramp grows again": (
        counts("ramp", allowed=200, sent=200, stayed=200),
        Step(Stage.RAMP, 2000, "200 of 200 stayed away.", 0),
    ),
    "ramp opens when it is wide": (
        counts("ramp", allowed=2000, sent=2000, stayed=2000),
        Step(Stage.OPEN, 0, "2000 of 2000 stayed away.", 0),
    ),
    "a group that ran empty at its canary has its ramp still before it": (
        counts("canary", sent=20, stayed=20, held=0),
        Step(Stage.RAMP, 200, "20 of 20 stayed away.", 0),
    ),
    "a small group grows by what has proved itself": (
        counts("canary", sent=3, stayed=3, held=0),
        Step(Stage.RAMP, 30, "3 of 3 stayed away.", 0),
    ),
    "a ramp trips when more come back than its first samples can bear": (
        counts("ramp", allowed=200, sent=5, stayed=3, returned=2),
        Step(Stage.TRIPPED, 0, "2 of 5 came back.", 1, NOW + COOL),
    ),
    "canary trips as soon as it can't pass": (
        counts("canary", sent=20, returned=2),
        Step(Stage.TRIPPED, 0, "2 of 20 came back.", 1, NOW + COOL),
    ),
    "breaker trips": (
        counts("open", sent=100, stayed=40, returned=60),
        Step(Stage.TRIPPED, 0, "60 of 100 came back.", 1, NOW + COOL),
    ),
    "cool-down doubles": (
        counts("open", sent=100, returned=100, trips=3),
        Step(Stage.TRIPPED, 0, "100 of 100 came back.", 4, NOW + COOL * 8),
    ),
    "cool-down stays finite": (
        counts("open", sent=100, returned=100, trips=500),
        Step(Stage.TRIPPED, 0, "100 of 100 came back.", 501, NOW + COOL * 1024),
    ),
    "a canary that passes after a cool-down has still to show that it is well": (
        counts("canary", sent=20, stayed=20, trips=3),
        Step(Stage.RAMP, 200, "20 of 20 stayed away.", 3),
    ),
    "a ramp that passes has got over its trips": (
        counts("ramp", allowed=200, sent=200, stayed=200, trips=3),
        Step(Stage.RAMP, 2000, "200 of 200 stayed away.", 0),
    ),
    "and so has one that opens": (
        counts("ramp", allowed=2000, sent=2000, stayed=2000, trips=3),
        Step(Stage.OPEN, 0, "2000 of 2000 stayed away.", 0),
    ),
    "half-open after its cool-down": (
        counts("tripped", cool_down_until=NOW, trips=2),
        Step(Stage.CANARY, 20, "Its cool-down is over, so a few may go.", 2),
    ),
}


@pytest.mark.parametrize(("seen", "expected"), STEPS.values(), ids=STEPS.keys())
def test_steps(seen: Counts, expected: Step) -> None:
    assert gates.step(seen, RULES, passing=True, now=NOW) == expected


@pytest.mark.parametrize("stage", ["canary", "ramp", "open"])
def test_what_does_not_go_away_by_itself_fails_and_waits_for_a_person(stage: str) -> None:
    taken = gates.step(counts(stage, sent=40, returned=40), RULES, passing=False, now=NOW)
    assert taken == Step(Stage.FAILED, 0, "40 of 40 came back.", 1)


#: What an open gate let go, slice by slice: (sent, stayed, returned).
OPENED = {
    "few of many fail at once": ([(10_000, 0, 300)], None),
    "few of each slice do": ([(1000, 0, 30)] * 10, None),
    "all come back, and the first slice shows it": (
        [(1000, 0, 501), *[(1000, 0, 0)] * 9],
        "501 of 1000 came back, and 499 are awaited.",
    ),
    "all come back, a few of each slice at a time": ([(1000, 0, 500)] * 10, None),
    "it was well until a while ago": (
        [(100_000, 0, 0), (100, 90, 10), *[(40, 0, 25)] * 3],
        "75 of 120 came back, and 45 are awaited.",
    ),
    "what is known is enough whatever is awaited": ([(20, 5, 15), (5000, 0, 0)], "15 of 20 came back."),
    "too few are known": ([(30, 0, 19)], None),
    "a small group of which most came back": ([(15, 0, 10), (15, 0, 10)], "20 of 30 came back, and 10 are awaited."),
    "a small group of which most are awaited": ([(30, 0, 15), (30, 0, 5)], None),
    "one by one, and those that came back are known first": ([(1, 0, n % 3 == 0) for n in range(300)], None),
    "one late return of each of many slices that stayed away": ([(200, 199, 1)] * 30, None),
}


@pytest.mark.parametrize(("sent", "reason"), OPENED.values(), ids=OPENED.keys())
def test_an_open_gate_compares_returns_with_all_that_was_sent(
    sent: list[tuple[int, int, int]], reason: str | None
) -> None:
    slices: gates.Slices = [{7: Outcomes(*one)} for one in sent]
    known = counts("open", sent=100, stayed=20, returned=80)  # as it remembers them
    taken = gates.step(known, RULES, passing=True, now=NOW, slices=slices)
    assert (taken.reason if taken else None) == reason


def test_without_a_canary_half_open_is_a_small_ramp() -> None:
    rules = Rules(False, 0, 1.0, 0.0, 0.5, 20, COOL)
    assert gates.step(counts("tripped", cool_down_until=NOW), rules, passing=True, now=NOW) == Step(
        Stage.RAMP, 20, "Its cool-down is over, so a few may go.", 0
    )


@pytest.mark.parametrize(("returned", "stage"), [(0, "open"), (10, "open"), (11, "tripped")])
def test_without_a_canary_a_half_open_ramp_is_judged_by_the_breaker_s_rate(returned: int, stage: str) -> None:
    rules = Rules(False, 0, 1.0, 0.0, 0.5, 20, COOL)
    seen = counts("ramp", sent=20, stayed=20 - returned, returned=returned)
    taken = gates.step(seen, rules, passing=True, now=NOW)
    assert taken is not None
    assert taken.stage == stage


@pytest.mark.parametrize(
    ("seen", "taken"),
    [
        ({"sent": 1, "stayed": 1, "held": 1500}, None),
        ({"sent": 1, "stayed": 1, "held": 0}, Step(Stage.OPEN, 0, "1 of 1 stayed away.", 5)),
        ({"sent": 20, "stayed": 20, "held": 1500}, Step(Stage.OPEN, 0, "20 of 20 stayed away.", 0)),
    ],
    ids=["more are held", "it is all there is", "as many as it may"],
)
def test_without_a_canary_one_send_that_stayed_away_opens_no_gate_for_all_that_are_held(
    seen: dict[str, int], taken: Step | None
) -> None:
    rules = Rules(False, 0, 1.0, 0.0, 0.5, 20, COOL)
    assert gates.step(counts("ramp", trips=5, **seen), rules, passing=True, now=NOW) == taken


def test_a_ramp_of_a_few_has_not_got_over_its_trips() -> None:
    slow = replace(RULES, first=1, grow=5)
    few = gates.step(counts("ramp", allowed=5, sent=5, stayed=5, trips=3), slow, passing=True, now=NOW)
    assert few == Step(Stage.RAMP, 25, "5 of 5 stayed away.", 3)
    enough = gates.step(counts("ramp", allowed=25, sent=25, stayed=25, trips=3), slow, passing=True, now=NOW)
    assert enough == Step(Stage.RAMP, 125, "25 of 25 stayed away.", 0)


def test_growth_by_one_still_grows() -> None:
    slow = Rules(True, 1, 1.0, 0.95, 0.5, 20, COOL)
    taken = gates.step(counts("canary", allowed=1, sent=1, stayed=1), slow, passing=True, now=NOW)
    assert taken is not None
    assert taken.allowed == 2


@pytest.mark.parametrize(
    ("seen", "allowed"),
    [
        (counts("open"), None),
        (counts("canary"), 20),
        (counts("canary", sent=5, waiting=5), 10),
        (counts("ramp", allowed=200, sent=300), 0),
        (counts("half_open", sent=5, waiting=5), 10),
        (counts("failed"), 0),
        (counts("tripped"), 0),
    ],
)
def test_quota(seen: Counts, allowed: int | None) -> None:
    assert gates.quota(seen) == allowed


# --- destinations --------------------------------------------------------------------------------------------


def of_groups(*seen: tuple[int, int]) -> list[Outcomes]:
    """(stayed, returned) of each group, all of whose sends are known."""
    return [Outcomes(stayed + returned, stayed, returned) for stayed, returned in seen]


def step_destination(stage: str, seen: list[Outcomes], **state: Any) -> Step | None:
    sums = {name: sum(getattr(one, name) for one in seen) for name in ("sent", "stayed", "returned")}
    return gates.step_destination(counts(stage, **{"allowed": 0, **sums, **state}), seen, RULES, now=NOW)


@pytest.mark.parametrize(
    "seen",
    [
        of_groups(),
        of_groups((0, 9), (0, 9)),
        of_groups((0, 500)),
        of_groups((0, 500), (50, 1)),
        of_groups((10, 10), (10, 10)),
        of_groups((900, 100), (0, 30)),
        of_groups((0, 30), (0, 9)),
    ],
    ids=["nothing", "too few", "one group", "the other is well", "at the rate", "few of all", "too few others"],
)
def test_a_destination_stays_open(seen: list[Outcomes]) -> None:
    assert step_destination("open", seen) is None


@pytest.mark.parametrize(
    "seen", [of_groups((0, 10), (0, 10)), of_groups(*[(0, 2)] * 10), of_groups((100, 200), (5, 10))]
)
def test_a_destination_trips_when_no_single_group_is_to_blame(seen: list[Outcomes]) -> None:
    taken = step_destination("open", seen, trips=2)
    assert taken is not None
    assert (taken.stage, taken.trips, taken.cool_down_until) == ("tripped", 3, NOW + 4 * COOL)


@pytest.mark.parametrize(
    ("slices", "reason"),
    [
        ([{1: Outcomes(2000, 0, 20), 2: Outcomes(500, 0, 15), None: Outcomes(10, 0, 0)}], None),
        ([{1: Outcomes(100, 0, 90), 2: Outcomes(100, 0, 40)}], None),
        (
            [{1: Outcomes(100, 0, 90), 2: Outcomes(100, 0, 60)}, {3: Outcomes(1000, 0, 0)}],
            "150 of 200 came back, and 50 are awaited, of several groups.",
        ),
    ],
    ids=["few of all", "one group is to blame", "most of several"],
)
def test_a_destination_compares_returns_with_all_that_was_sent(slices: gates.Slices, reason: str | None) -> None:
    known = [Outcomes(20, 0, 20), Outcomes(15, 0, 15)]
    seen = counts("open", sent=35, returned=35, allowed=0)
    taken = gates.step_destination(seen, known, RULES, now=NOW, slices=slices)
    assert (taken.reason if taken else None) == reason


def test_a_tripped_destination_is_tried_with_a_few_after_its_cool_down() -> None:
    assert step_destination("tripped", [], cool_down_until=NOW + timedelta(seconds=1), trips=1) is None
    assert step_destination("tripped", [], cool_down_until=NOW, trips=1) == Step(
        Stage.HALF_OPEN, 20, "Its cool-down is over, so a few may go.", 1
    )


@pytest.mark.parametrize(
    ("seen", "stage"),
    [
        ([], None),
        ([Outcomes(20, 19, 0)], None),
        ([Outcomes(20, 0, 10)], None),
        (of_groups((20, 0)), "open"),
        (of_groups((5, 5), (10, 0)), "open"),
        (of_groups((1, 2)), "tripped"),
        ([Outcomes(20, 0, 11)], "tripped"),
    ],
)
def test_what_becomes_of_the_few_decides(seen: list[Outcomes], stage: str | None) -> None:
    taken = step_destination("half_open", seen, allowed=20, trips=1)
    assert (taken.stage if taken else None) == stage
    if taken and taken.stage == "open":
        assert taken.trips == 0, "it begins anew"


@pytest.mark.parametrize(("waiting", "taken"), [(5, None), (0, Step(Stage.OPEN, 0, "1 of 1 stayed away.", 3))])
def test_one_send_that_stayed_away_opens_no_destination_for_all_that_wait(waiting: int, taken: Step | None) -> None:
    """Where nothing waits it opens, and is not well yet: the next cool-down is as long as it would have been."""
    assert step_destination("half_open", of_groups((1, 0)), allowed=20, trips=3, waiting=waiting) == taken


def test_a_stage_is_not_passed_while_it_has_places_that_what_is_held_can_not_use() -> None:
    seen = counts("canary", sent=10, stayed=10, held=5)
    assert gates.step(seen, RULES, passing=False, now=NOW) is None
    assert gates.quota(seen) == 10
    last = gates.step(counts("canary", sent=10, stayed=10, held=0), RULES, passing=False, now=NOW)
    assert last == Step(Stage.RAMP, 100, "10 of 10 stayed away.", 0)
