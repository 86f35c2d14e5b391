"""Decisions applied to whole sets, and the gates of groups."""

import json
from datetime import timedelta
from typing import Any

import pytest

from redrive.classification.causes import Cause
from redrive.ledger.account import notifications
from redrive.ledger.delivery import breakers, holding, outcomes, planning
from redrive.ledger.delivery.planning import CaseCount
from redrive.ledger.engine import parse_instant
from redrive.ledger.selecting import Selection
from redrive.lifecycle import Plan
from redrive.policy.next_step import Decision, Discard, Escalate, Send
from tests.ledger.planting import MINUTE, Plant, entering, unchanged

EVERYTHING = Selection()


def cases(plant: Plant, selection: Selection = EVERYTHING) -> list[CaseCount]:
    with plant.ledger.read() as connection:
        return planning.cases(connection, "orders", selection)


def apply(plant: Plant, decision: Decision, selection: Selection = EVERYTHING, **options: Any) -> dict[str, int]:
    options = {"delays": {}, "settle_after": timedelta(0)} | options
    return planning.apply(
        plant.ledger, plant.lease, [(case, decision) for case in cases(plant, selection)], selection=selection,
        now=plant.now, **options,
    )  # fmt: skip


def test_messages_that_are_alike_are_one_case(plant: Plant) -> None:
    group = plant.group()
    plant.messages(3, group_id=group)
    plant.load({"cause": None, "kind": "delay", "source": "orders-delay"})
    found = {(c.case.kind, c.case.cause, c.group_id, c.source, c.messages) for c in cases(plant)}
    assert found == {
        ("dead_letter", Cause.TRANSIENT_NETWORK, group, "orders-dlq", 3),
        ("delay", None, None, "orders-delay", 1),
    }


def test_a_requeue_is_due_at_once(plant: Plant) -> None:
    plant.messages(2)
    assert apply(plant, Send(Plan.REQUEUE)) == {"planned": 2, "waiting": 2, "held": 0, "to_review": 0, "discarded": 0}
    assert {parse_instant(at) for (at,) in plant.rows("select next_attempt_at from messages")} == {plant.now}


def test_a_delay_is_spread_below_its_cap(plant: Plant) -> None:
    plant.messages(200)
    apply(plant, Send(Plan.DELAY, timedelta(hours=1)))
    waits = [(parse_instant(at) - plant.now) for (at,) in plant.rows("select next_attempt_at from messages")]  # type: ignore[operator]
    assert min(waits) >= timedelta(0)
    assert max(waits) < timedelta(hours=1)
    assert len({int(wait / timedelta(minutes=6)) for wait in waits}) == 10


def test_a_delay_is_spread_above_its_least_wait(plant: Plant) -> None:
    plant.messages(200)
    apply(plant, Send(Plan.DELAY, timedelta(hours=1), least=timedelta(minutes=20)))
    waits = [(parse_instant(at) - plant.now) for (at,) in plant.rows("select next_attempt_at from messages")]  # type: ignore[operator]
    assert min(waits) >= timedelta(minutes=20)
    assert max(waits) < timedelta(hours=1)
    assert len({int(wait / timedelta(minutes=4)) for wait in waits}) == 10


def test_a_delay_source_keeps_its_own_delay_from_when_the_copy_was_put_there(plant: Plant) -> None:
    put = plant.now - timedelta(seconds=10)
    plant.load({"kind": "delay", "source": "orders-delay", "cause": None, "dead_lettered_at": None,
                "enqueued_at": plant.ledger.dialect.stored(put)})  # fmt: skip
    apply(plant, Send(Plan.DELAY, timedelta(hours=1)), delays={"orders-delay": timedelta(minutes=5)})
    ((at,),) = plant.rows("select next_attempt_at from messages")
    assert parse_instant(at) == put + timedelta(minutes=5)


@pytest.mark.parametrize("told", [True, False], ids=["its time is told", "only that of its first copy is"])
def test_what_is_put_off_after_a_redelivery_waits_as_long_as_that_source_says(plant: Plant, told: bool) -> None:
    """It was drained from the dead-letter queue first, and failed there long ago: neither is what it waits for."""
    first = plant.ledger.dialect.stored(plant.now)
    (message,) = plant.messages(1)
    plant.send()
    put, plant.now = plant.now + 10 * MINUTE, plant.now + 11 * MINUTE
    plant.begin(at_once=True)
    plant.load(
        {"kind": "delay", "source": "orders-delay", "cause": None, "dead_lettered_at": None, "body": b"body 0",
         "redrive_id": plant.redrive_id(message), "redrive_attempt": 1,
         "enqueued_at": plant.ledger.dialect.stored(put) if told else first},
    )  # fmt: skip
    apply(plant, Send(Plan.DELAY, timedelta(hours=1)), delays={"orders-delay": timedelta(minutes=5)})
    ((at,),) = plant.rows("select next_attempt_at from messages")
    assert parse_instant(at) == (put if told else plant.now) + timedelta(minutes=5)


@pytest.mark.parametrize("ahead", [timedelta(hours=6), timedelta(days=300 * 365)])
@pytest.mark.parametrize("dead", [True, False], ids=["it says when it was dead-lettered", "it says when it was sent"])
def test_a_clock_that_is_ahead_makes_no_delay_longer(plant: Plant, ahead: timedelta, dead: bool) -> None:
    told = plant.ledger.dialect.stored(plant.now + ahead)
    plant.load({"kind": "delay", "source": "orders-delay", "cause": None, "dead_lettered_at": told if dead else None,
                "enqueued_at": told})  # fmt: skip
    apply(plant, Send(Plan.DELAY, timedelta(hours=1)), delays={"orders-delay": timedelta(minutes=5)})
    (at,) = plant.rows("select next_attempt_at from messages")[0]
    assert parse_instant(at) == plant.now + timedelta(minutes=5), "from when it was drained"


def test_a_clock_that_is_ahead_makes_no_delay_longer_after_a_redelivery(plant: Plant) -> None:
    (message,) = plant.messages(1)
    plant.send()
    plant.now += 11 * MINUTE
    plant.begin(at_once=True)
    plant.load(
        {"kind": "delay", "source": "orders-delay", "cause": None, "dead_lettered_at": None, "body": b"body 0",
         "redrive_id": plant.redrive_id(message), "redrive_attempt": 1,
         "enqueued_at": plant.ledger.dialect.stored(plant.now + timedelta(days=1))},
    )  # fmt: skip
    apply(plant, Send(Plan.DELAY, timedelta(hours=1)), delays={"orders-delay": timedelta(minutes=5)})
    (at,) = plant.rows("select next_attempt_at from messages")[0]
    assert parse_instant(at) == plant.now + timedelta(minutes=5)


def test_a_clock_that_is_ahead_does_not_put_off_a_send_until_a_processed_check_could_be_believed(plant: Plant) -> None:
    plant.load({"dead_lettered_at": plant.ledger.dialect.stored(plant.now + timedelta(days=1))})
    apply(plant, Send(Plan.REQUEUE), settle_after=5 * MINUTE)
    (at,) = plant.rows("select next_attempt_at from messages")[0]
    assert parse_instant(at) == plant.now + 5 * MINUTE


def test_nothing_goes_before_a_processed_check_could_be_believed(plant: Plant) -> None:
    plant.messages(1)
    apply(plant, Send(Plan.REQUEUE), settle_after=5 * MINUTE)
    ((at,),) = plant.rows("select next_attempt_at from messages")
    assert parse_instant(at) == plant.now + 5 * MINUTE


def test_what_people_must_decide_waits_for_its_question_in_a_state_of_its_own(plant: Plant) -> None:
    plant.messages(2)
    assert apply(plant, Escalate("because"))["to_review"] == 2
    assert plant.rows("select state, plan, reason from messages") == [("to_review", None, "because")] * 2
    assert cases(plant) == [], "it is decided"


def test_what_the_route_discards_is_discarded(plant: Plant) -> None:
    plant.messages(2)
    assert apply(plant, Discard("not needed"))["discarded"] == 2
    assert plant.rows("select state, reason from messages") == [("discarded", "not needed")] * 2


def test_a_selection_limits_the_plan(plant: Plant) -> None:
    plant.messages(2)
    plant.messages(3, cause="throttled")
    assert apply(plant, Send(Plan.REQUEUE), Selection(causes=("throttled",)))["planned"] == 3
    assert plant.states() == {"waiting": 3, "classified": 2}


@pytest.mark.parametrize(
    ("stage", "state"), [("canary", "held"), ("failed", "held"), ("tripped", "held"), ("open", "waiting")]
)
def test_what_may_go_waits_behind_its_groups_gate(plant: Plant, stage: str, state: str) -> None:
    group = plant.group()
    plant.messages(2, group_id=group)
    breakers.open_gates(plant.ledger, plant.lease, first=1, now=plant.now)
    plant.change("update breakers set stage = :stage", stage=stage)
    apply(plant, Send(Plan.CANARY))
    assert plant.states() == {state: 2}


def test_delays_pass_every_gate(plant: Plant) -> None:
    group = plant.group()
    plant.load({"kind": "delay", "source": "orders-delay", "cause": None, "group_id": group})
    plant.gate(group, "failed")
    apply(plant, Send(Plan.DELAY), delays={"orders-delay": timedelta(0)})
    assert plant.states() == {"waiting": 1}


def test_a_gate_is_opened_once_per_group(plant: Plant) -> None:
    group = plant.group()
    plant.messages(5, group_id=group)
    assert breakers.open_gates(plant.ledger, plant.lease, first=20, now=plant.now) == 1
    assert breakers.open_gates(plant.ledger, plant.lease, first=99, now=plant.now) == 0
    gate = as_it_is(plant)
    assert (gate.group_id, gate.stage, gate.allowed, gate.cause) == (group, "canary", 20, "transient_network")


def held(plant: Plant, count: int = 5) -> breakers.GroupGate:
    group = plant.group()
    plant.messages(count, group_id=group)
    breakers.open_gates(plant.ledger, plant.lease, first=2, now=plant.now)
    apply(plant, Send(Plan.CANARY))
    assert plant.states() == {"held": count}
    return as_it_is(plant)


def as_it_is(plant: Plant) -> breakers.GroupGate:
    with plant.ledger.read() as connection:
        (gate,) = breakers.of_groups(connection, "orders")
    return gate


def test_a_quota_lets_the_oldest_through(plant: Plant) -> None:
    gate = held(plant)
    assert holding.admit(plant.ledger, plant.lease, {gate: 2}, plant.now) == 2
    assert plant.rows("select state from messages order by message_id") == [("waiting",)] * 2 + [("held",)] * 3
    told = json.loads(plant.value("select selection from audit_events where action = 'admit'"))
    assert told["quotas"] == {str(gate.group_id): 2}


def test_a_quota_is_given_away_once(plant: Plant) -> None:
    """Two tries of one task have read the same, and one of them was suspended in between."""
    gate = held(plant)
    assert holding.admit(plant.ledger, plant.lease, {gate: 2}, plant.now) == 2
    plant.change(f"update messages set {entering('sent')} where state = 'waiting'")
    assert holding.admit(plant.ledger, plant.lease, {gate: 2}, plant.now) == 0
    assert holding.admit(plant.ledger, plant.lease, {as_it_is(plant): 1}, plant.now) == 1
    assert plant.states() == {"sent": 2, "waiting": 1, "held": 2}


def test_no_quota_lets_all_through(plant: Plant) -> None:
    gate = held(plant)
    assert holding.admit(plant.ledger, plant.lease, {gate: None}, plant.now) == 5


def test_holding_back_says_why(plant: Plant) -> None:
    gate = held(plant)
    holding.admit(plant.ledger, plant.lease, {gate: None}, plant.now)
    assert holding.hold_back(plant.ledger, plant.lease, {gate: "breaker"}, plant.now) == 5
    assert plant.rows("select distinct state, reason from messages") == [("held", "breaker")]


def held_and_one_released(plant: Plant) -> breakers.GroupGate:
    gate = held(plant)
    released = plant.value("select min(message_id) from messages")
    plant.change(
        "insert into escalated_messages (message_id, route, group_id, reason, size_bytes, source, attempts,"
        " escalated_at, status, decision, decided_by)"
        " values (:id, 'orders', :g, 'x', 2, 'q', 0, :now, 'decided', 'redeliver', 'ana')",
        id=released, g=gate.group_id, now=plant.now,
    )  # fmt: skip
    plant.change("update messages set plan = 'release' where message_id = :id", id=released)
    return gate


def test_a_failed_canary_gives_the_group_to_people_and_reopens_what_they_released(plant: Plant) -> None:
    gate = held_and_one_released(plant)
    assert holding.put_to_review(plant.ledger, plant.lease, {gate: "canary failed"}, plant.now) == {
        "reopened": 1,
        "to_review": 4,
    }
    assert plant.rows("select status, decision, refusal from escalated_messages") == [
        ("reopened", None, "canary failed")
    ]
    assert plant.states() == {"escalated": 1, "to_review": 4}


@pytest.mark.parametrize("state", ["held", "waiting"])
def test_of_a_group_that_keeps_coming_back_people_are_asked_about_what_they_released_alone(
    plant: Plant, state: str
) -> None:
    gate = held_and_one_released(plant)
    plant.change("update messages set state = :state", state=state)
    assert holding.reopen_released(plant.ledger, plant.lease, {gate: "they come back"}, plant.now) == 1
    assert plant.rows("select status, decision, refusal from escalated_messages") == [
        ("reopened", None, "they come back")
    ]
    assert plant.rows("select message_id, action from audit_events where action = 'reopen' order by 1 nulls first") == [
        (None, "reopen"),
        (plant.value("select min(message_id) from messages"), "reopen"),
    ]
    assert plant.states() == {"escalated": 1, state: 4}


def test_nothing_is_done_behind_a_gate_that_a_person_moved_since_it_was_read(plant: Plant) -> None:
    read = held(plant)
    holding.admit(plant.ledger, plant.lease, {read: 2}, plant.now)
    assert breakers.release_group(plant.ledger, "orders", read.group_id, first=1, by="ana", now=plant.now)
    with unchanged(plant):
        assert holding.admit(plant.ledger, plant.lease, {read: None}, plant.now) == 0
        assert holding.hold_back(plant.ledger, plant.lease, {read: "why"}, plant.now) == 0
        assert holding.reopen_released(plant.ledger, plant.lease, {read: "why"}, plant.now) == 0
        assert holding.put_to_review(plant.ledger, plant.lease, {read: "why"}, plant.now) == {
            "reopened": 0,
            "to_review": 0,
        }
    assert holding.admit(plant.ledger, plant.lease, {as_it_is(plant): 1}, plant.now) == 1


def test_messages_that_are_too_old_are_given_up_unless_a_person_released_them(plant: Plant) -> None:
    first, _, released = plant.messages(3)
    plant.change("update messages set first_enqueued_at = :old_at where message_id <> :id",
                 old_at=plant.now - timedelta(days=20), id=first)  # fmt: skip
    plant.change(f"update messages set {entering('waiting')} where message_id = :id", id=released)
    plant.change("update messages set plan = 'release' where message_id = :id", id=released)
    assert (
        planning.expire(plant.ledger, plant.lease, enqueued_before=plant.now - timedelta(days=14), now=plant.now) == 1
    )
    assert plant.states() == {"classified": 1, "waiting": 1, "expired": 1}


def test_of_a_message_of_which_nobody_knows_the_age_it_counts_since_when_it_is_here(plant: Plant) -> None:
    plant.messages(1)
    at = {"old_at": plant.now - timedelta(days=15)}
    plant.change("update messages set first_enqueued_at = null, received_at = :old_at", **at)
    before = plant.now - timedelta(days=14)
    assert planning.expire(plant.ledger, plant.lease, enqueued_before=before, now=plant.now) == 1


def test_a_message_that_says_it_is_of_tomorrow_is_as_old_as_it_is_here(plant: Plant) -> None:
    plant.load({"enqueued_at": plant.ledger.dialect.stored(plant.now + timedelta(days=300 * 365))})
    here_since, plant.now = plant.now, plant.now + timedelta(days=15)
    plant.begin()
    for before, old in ((here_since, 0), (here_since + MINUTE, 1)):
        with plant.ledger.read() as connection:
            count, oldest = notifications.late(connection, "orders", enqueued_before=before)
        assert (count, oldest) == (old, here_since if old else None)
        assert planning.expire(plant.ledger, plant.lease, enqueued_before=before, now=plant.now) == old


def test_what_was_sent_and_nobody_will_see_is_not_late(plant: Plant) -> None:
    plant.messages(1)
    plant.send()
    before = plant.now + MINUTE
    for seen_no_more, count in ((0, 1), (1, 0)):
        if seen_no_more:
            with plant.ledger.under(plant.lease, plant.now) as tx:
                assert outcomes.lose_sight(tx, until_fence=plant.lease.fence, reason="why") == 1
        with plant.ledger.read() as connection:
            assert notifications.late(connection, "orders", enqueued_before=before)[0] == count
    assert plant.states() == {"sent": 1}


def test_a_selection_of_a_time_has_what_says_it_is_of_tomorrow(plant: Plant) -> None:
    ahead = plant.ledger.dialect.stored(plant.now + timedelta(days=1))
    plant.load({"enqueued_at": ahead, "dead_lettered_at": None}, {"dead_lettered_at": ahead, "body": b"other"})
    window = Selection(since=plant.now - MINUTE, until=plant.now + MINUTE)
    assert apply(plant, Send(Plan.REQUEUE), window)["planned"] == 2


def test_a_forged_count_of_attempts_does_not_stop_the_plan(plant: Plant) -> None:
    plant.load({"redrive_id": "forged", "redrive_attempt": 999_999}, {"body": b"neighbour"})
    assert apply(plant, Send(Plan.DELAY, timedelta(hours=1)))["waiting"] == 2
    plant.make_due()
    plant.change("update messages set next_attempt_at = :now", now=plant.now)
    plant.send(status="retry")
    assert plant.states() == {"waiting": 2}
