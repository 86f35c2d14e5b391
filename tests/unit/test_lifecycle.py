"""The closed state machine, edge by edge as the design draws it."""

import itertools

import pytest

from redrive import lifecycle
from redrive.errors import IllegalMove
from redrive.lifecycle import FINISHED, MOVES, State

LEGAL = """
classified -> waiting | held | to_review | escalated | restoring | discarded | expired
waiting -> held | suppressed | to_review | escalated | restoring | expired | sending
held -> waiting | to_review | escalated | restoring | expired
expired -> escalated | restoring
sending -> sent | waiting | unknown
unknown -> sending | returned | confirmed | to_review
sent -> returned | presumed | confirmed
presumed -> confirmed | returned
confirmed -> returned
returned -> classified
to_review -> escalated | suppressed | confirmed | returned | restoring
escalated -> waiting | restoring | discarded | returned
discarded -> returned
suppressed -> returned
restoring -> classified | waiting | held | to_review | escalated | expired | discarded | restore_unknown
restore_unknown -> escalated | discarded
"""
EDGES = {
    (State(source), State(target.strip()))
    for source, targets in (line.split(" -> ") for line in LEGAL.strip().splitlines())
    for target in targets.split("|")
}


@pytest.mark.parametrize(("source", "target"), sorted(EDGES), ids=lambda state: state.value)
def test_legal(source: State, target: State) -> None:
    lifecycle.check(source, target)


def test_everything_else_is_refused_and_says_what_would_be_legal() -> None:
    for source, target in set(itertools.product(State, State)) - EDGES:
        with pytest.raises(IllegalMove, match=f"^{source} -> {target}; legal from {source}: "):
            lifecycle.check(source, target)


def test_what_is_finished_stays_so_unless_it_comes_back() -> None:
    assert {target for state in FINISHED for target in MOVES[state]} == {State.RETURNED, State.CONFIRMED}
    assert set(MOVES[State.DISCARDED]) == {State.RETURNED}


def test_every_move_says_who_makes_it() -> None:
    assert all(who for moves in MOVES.values() for who in moves.values())


def test_every_state_can_be_reached_and_every_unfinished_one_left() -> None:
    assert {target for _, target in EDGES} | {State.CLASSIFIED} == set(State)
    assert {source for source, _ in EDGES} >= set(State) - FINISHED
