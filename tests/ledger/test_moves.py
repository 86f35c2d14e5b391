"""Changes of state: only along legal edges, and each set is told of once."""

import json

import pytest

from redrive.audit_actions import Action
from redrive.errors import IllegalMove
from redrive.ledger.moves import move
from redrive.lifecycle import MOVES, State
from tests.ledger.planting import Plant, entering, unchanged


def try_move(plant: Plant, source: State, target: State, where: str = "1 = 1", **values: object) -> int:
    with plant.ledger.under(plant.lease, plant.now) as tx:
        return move(
            tx, source, target, where=where, values=values,
            set_="plan = 'requeue', next_attempt_at = changed_at" if target in (State.WAITING, State.HELD) else "",
            action=Action.NOTE, reason="because",
        )  # fmt: skip


def test_every_legal_edge_moves_and_every_other_is_refused_untouched(plant: Plant) -> None:
    plant.messages(1)
    for source in State:
        for target in MOVES[source]:
            plant.change(f"update messages set {entering(source)}")
            assert try_move(plant, source, target) == 1
            assert plant.states() == {target.value: 1}
        plant.change(f"update messages set {entering(source)}")
        with unchanged(plant):
            for target in [state for state in State if state not in MOVES[source]]:
                with pytest.raises(IllegalMove, match=f"{source} -> {target}"):
                    try_move(plant, source, target)


def test_one_event_per_set_says_who_when_why_and_which(plant: Plant) -> None:
    ids = plant.messages(5)
    assert try_move(plant, State.CLASSIFIED, State.WAITING, "message_id <= :top", top=ids[2]) == 3
    ((actor, source, target, count, selection, reason, run),) = plant.rows(
        "select actor, from_state, to_state, count, selection, reason, run_id from audit_events where action = 'note'"
    )
    assert (actor, source, target, count, reason, run) == ("redrive", "classified", "waiting", 3, "because", "orders-1")
    assert json.loads(selection) == {"where": "message_id <= :top", "top": ids[2]}


def test_an_empty_set_is_not_told(plant: Plant) -> None:
    plant.messages(1)
    with unchanged(plant):
        assert try_move(plant, State.HELD, State.WAITING) == 0


def test_a_state_that_does_not_exist_is_refused_by_the_database(plant: Plant) -> None:
    plant.messages(1)
    with pytest.raises(Exception, match=r"(?i)ck_messages_state|check constraint"):
        plant.change("update messages set state = 'lost'")
