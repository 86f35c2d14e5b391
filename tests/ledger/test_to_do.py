"""What is left for runs to do, and when: by it a command that runs until all is done knows when to go on and to end."""

import json
from pathlib import Path

from redrive.ledger.account import inspecting
from redrive.ledger.selecting import Selection
from tests import query_plans
from tests.ledger.test_escalations import person
from tests.workshop import KEY_ERROR, THROTTLED, Workshop


def left(workshop: Workshop, selection: Selection | None = None) -> inspecting.ToDo:
    with workshop.ledger.read() as connection:
        chosen = None if selection is None else inspecting.chosen(connection, "orders", selection)
        return inspecting.to_do(connection, "orders", workshop.now(), chosen)


def test_a_status_counts_in_numbers_on_both_databases(workshop: Workshop) -> None:
    """A program that asks whether more than 0 are awaited is never given the text '0'."""
    workshop.die("a", "b")
    workshop.cycle()
    with workshop.ledger.read() as connection:
        status = inspecting.status(connection, "orders", workshop.now())
    assert json.loads(json.dumps(status["watching"], default=str))["not_worked_past"] == 2
    assert json.loads(json.dumps(status["watching"], default=str))["in_window"] == 0


def test_what_waits_for_people_is_not_left_for_runs(workshop: Workshop) -> None:
    assert left(workshop).messages == 0
    workshop.die("a bug", error=KEY_ERROR)
    workshop.cycle()
    assert workshop.states() == {"escalated": 1}
    assert left(workshop).messages == 0


def test_what_waits_is_left_until_it_is_due_and_what_was_sent_until_its_outcome(workshop: Workshop) -> None:
    workshop.die("later", error=THROTTLED)
    workshop.cycle()
    found = left(workshop)
    assert (found.messages, found.words) == (1, "1 waiting")
    assert found.next_at is not None
    assert found.next_at > workshop.now()
    for _ in range(50):
        workshop.advance(minutes=30)
        workshop.consume()
        workshop.cycle()
        if workshop.states() == {"sent": 1}:
            assert left(workshop).words == "1 sent"
        if workshop.states().keys() <= {"presumed", "confirmed"}:
            break
    assert workshop.states().keys() <= {"presumed", "confirmed"}
    assert left(workshop) == inspecting.ToDo(0, "", None, [])


def test_what_was_sent_by_another_broker_is_left_for_a_person(workshop: Workshop) -> None:
    workshop.die("a")
    workshop.cycle()
    assert left(workshop).words == "1 sent"
    person(workshop, "update delivery_slices set system = 'elsewhere'")
    found = left(workshop)
    assert (found.messages, found.words) == (0, "")
    assert found.stuck == [
        "1 sends have no outcome and went by another broker or connection: point the route there for a few runs"
    ]


def test_what_was_sent_and_has_no_outcome_is_counted_once(tmp_path: Path) -> None:
    """Not once for each sum that it is in."""
    workshop = Workshop(tmp_path)
    with query_plans.told() as steps:
        left(workshop)
    assert len([step for step in steps if "attempts USING" in step.text and "watched" in step.statement]) == 1


def test_what_is_behind_a_gate_that_failed_is_left_for_a_person(workshop: Workshop) -> None:
    workshop.die("later", "and later", error=THROTTLED)
    workshop.cycle()
    ((group,),) = workshop.query("select group_id from failure_groups")
    person(workshop, "update messages set state = 'held', plan = 'canary', next_attempt_at = null")
    person(workshop, "delete from breakers")
    person(
        workshop,
        "insert into breakers (route, group_id, stage, reason, stage_at, began_at)"
        f" values ('orders', {group}, 'failed', '3 of 5 came back', '2025-10-09', '2025-10-09')",
    )
    found = left(workshop)
    assert (found.messages, found.words) == (0, "")
    assert found.stuck == [
        f"group {group} waits for a person, who decides what is in review once it is fixed: 3 of 5 came back"
    ]
    assert left(workshop, Selection(groups=[group])) == found
    assert left(workshop, Selection(groups=[group + 1])) == inspecting.ToDo(0, "", None, [])


def test_what_a_run_was_not_asked_for_is_not_left_for_it(workshop: Workshop) -> None:
    workshop.die("later", "and later", error=THROTTLED)
    workshop.cycle()
    whole, mine = left(workshop), left(workshop, Selection(causes=["throttled"]))
    assert mine == whole
    assert (mine.messages, mine.words) == (2, "2 waiting")
    others = Selection(causes=["poison"])
    assert left(workshop, others) == inspecting.ToDo(0, "", None, [])
    ((one,),) = workshop.query("select min(message_id) from messages")
    for state in ("held", "unknown"):
        person(workshop, f"update messages set state = '{state}' where message_id = {one}")
        assert left(workshop, others).messages == 0, state
        assert left(workshop, Selection(causes=["throttled"])).messages == 2, state
    person(
        workshop,
        "update messages set state = 'to_review', plan = null, next_attempt_at = null, reason = 'x'"
        f" where message_id = {one}",
    )
    assert left(workshop, others).words == "1 to review", "people are asked, whatever was chosen"
