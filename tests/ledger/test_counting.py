"""Which attempts count for a breaker: nothing is counted by hand, so nothing can be counted twice or forgotten."""

from collections.abc import Hashable
from datetime import timedelta

from redrive.ledger.delivery import breakers, counting, outcomes
from redrive.ledger.delivery.windows import Mark
from redrive.policy.gates import Outcomes, Stage, Step
from tests.ledger.planting import MINUTE, Plant, unchanged
from tests.ledger.test_loading import coming_back
from tests.ledger.test_outcomes import drain, presume, see_destination

COUNTS = "select stage, sent, stayed, returned from group_state"


def gate(plant: Plant) -> breakers.GroupGate:
    with plant.ledger.read() as connection:
        (found,) = breakers.of_groups(connection, "orders")
    return found


def destination(plant: Plant) -> breakers.DestinationGate:
    with plant.ledger.read() as connection:
        (found,) = breakers.of_destinations(connection, "orders")
    return found


def step(plant: Plant, breaker: breakers.GroupGate | breakers.DestinationGate, stage: Stage, allowed: int = 0) -> None:
    plant.now += MINUTE
    breakers.take_step(plant.ledger, plant.lease, breaker, Step(stage, allowed, "why", 0), plant.now)


def stay(plant: Plant) -> int:
    """Everything that was sent stays away, and a run sees it; how many."""
    see_destination(plant, plant.now + MINUTE)
    drain(plant, plant.now + timedelta(days=1))
    return presume(plant)


def test_a_stage_that_lets_through_so_many_counts_what_was_sent_in_it(plant: Plant) -> None:
    group = plant.group()
    plant.gate(group, "canary", allowed=20)
    ids = plant.messages(4, group_id=group)
    plant.send()
    assert plant.rows(COUNTS) == [("canary", 4, 0, 0)]
    plant.load(coming_back(plant, ids[0], group_id=group))
    assert plant.rows(COUNTS) == [("canary", 4, 0, 1)]
    assert stay(plant) == 3
    assert plant.rows(COUNTS) == [("canary", 4, 3, 1)]
    step(plant, gate(plant), Stage.RAMP, 200)
    assert plant.rows(COUNTS) == [("ramp", 0, 0, 0)]


def test_what_was_sent_counts_though_the_clock_of_its_process_is_behind(plant: Plant) -> None:
    group = plant.group()
    plant.gate(group, "canary", allowed=20)
    first = plant.messages(1, group_id=group)
    plant.send()
    ids = plant.messages(3, group_id=group)
    plant.make_due()
    step(plant, gate(plant), Stage.RAMP, 3)
    step(plant, destination(plant), Stage.HALF_OPEN, 3)
    plant.now -= timedelta(seconds=90)
    assert [mark.message_id for mark in plant.send()] == ids
    assert plant.rows(COUNTS) == [("ramp", 3, 0, 0)]
    assert destination(plant).sent == 3
    plant.load(coming_back(plant, ids[0], group_id=group))
    assert plant.rows(COUNTS) == [("ramp", 3, 0, 1)]
    assert outcomes.confirm(plant.ledger, plant.lease, [*first, ids[1]], plant.now) == 2
    assert plant.rows(COUNTS) == [("ramp", 3, 1, 1)], "the first was sent before"


def test_what_a_process_sends_after_a_person_began_a_stage_takes_places_of_it(plant: Plant) -> None:
    group = plant.group()
    plant.gate(group, "open")
    plant.messages(2, group_id=group)
    plant.make_due()
    claimed = plant.claim(2)
    assert claimed is not None
    plant.now += MINUTE
    assert breakers.release_group(plant.ledger, "orders", group, first=20, by="ana", now=plant.now)
    plant.now += MINUTE
    marks = [Mark(one.message_id, one.attempt, "sent") for one in claimed.messages]
    plant.announce(claimed, marks[-1].message_id)
    plant.mark(claimed, marks)
    assert plant.rows(COUNTS) == [("canary", 2, 0, 0)]


def test_of_an_open_gate_only_outcomes_count(plant: Plant) -> None:
    group = plant.group()
    plant.gate(group, "open")
    ids = plant.messages(3, group_id=group)
    plant.send()
    assert plant.rows(COUNTS) == [("open", 0, 0, 0)]
    plant.load(coming_back(plant, ids[1], body=b"body 1", group_id=group))
    stay(plant)
    assert plant.rows(COUNTS) == [("open", 3, 2, 1)]
    assert destination(plant).outcomes == (Outcomes(3, 2, 1),)


def test_a_late_return_is_seen_by_the_stage_that_is_and_by_none_after_a_release(plant: Plant) -> None:
    group = plant.group()
    plant.gate(group, "canary", allowed=20)
    first, second = plant.messages(2, group_id=group)
    plant.send()
    stay(plant)
    step(plant, gate(plant), Stage.RAMP, 200)
    plant.load(coming_back(plant, first, group_id=group))
    assert plant.rows(COUNTS) == [("ramp", 1, 0, 1)], "as many outcomes as sends"
    plant.now += MINUTE
    assert breakers.release_group(plant.ledger, "orders", group, first=20, by="ana", now=plant.now)
    plant.load(coming_back(plant, second, body=b"body 1", group_id=group))
    assert plant.rows(COUNTS) == [("canary", 0, 0, 0)], "it was sent before what she mended"


def test_who_asks_for_more_time_gives_its_place_back(plant: Plant) -> None:
    group = plant.group()
    plant.gate(group, "canary", allowed=20)
    ids = plant.messages(2, group_id=group)
    plant.send()
    plant.load(coming_back(plant, ids[0], kind="delay", source="orders-delay"), source="orders-delay")
    assert plant.rows(COUNTS) == [("canary", 1, 0, 0)]


def test_what_nobody_watches_any_more_gives_its_place_back_and_counts_when_it_is_seen_after_all(plant: Plant) -> None:
    group = plant.group()
    plant.gate(group, "canary", allowed=20)
    ids = plant.messages(2, group_id=group)
    plant.send()
    with plant.ledger.under(plant.lease, plant.now) as tx:
        assert outcomes.lose_sight(tx, until_fence=plant.lease.fence, reason="why") == 2
    assert plant.rows(COUNTS) == [("canary", 0, 0, 0)]
    plant.load(coming_back(plant, ids[0], group_id=group))
    assert plant.rows(COUNTS) == [("canary", 1, 0, 1)]


def test_a_send_of_which_nobody_knew_counts_once_it_is_proved(plant: Plant) -> None:
    group = plant.group()
    plant.gate(group, "canary", allowed=20)
    (one,) = plant.messages(1, group_id=group)
    plant.send(status="unknown")
    assert plant.rows(COUNTS) == [("canary", 0, 0, 0)]
    assert outcomes.confirm(plant.ledger, plant.lease, [one], plant.now) == 1
    assert plant.rows(COUNTS) == [("canary", 1, 1, 0)]


def test_places_of_a_destination_that_is_tried_are_taken_by_claims_and_sends(plant: Plant) -> None:
    plant.messages(1)
    plant.send()
    step(plant, destination(plant), Stage.HALF_OPEN, 5)
    plant.messages(8)
    plant.make_due()
    claimed = plant.claim(2)
    assert claimed is not None
    assert len(claimed.messages) == 2
    with plant.ledger.read() as connection:
        assert breakers.quota(connection, "orders", "orders") == 3
    rest = plant.claim(100)
    assert rest is not None
    assert len(rest.messages) == 3
    assert plant.claim(100) is None
    assert destination(plant).outcomes == (), "what was sent before counts for nothing"


def test_an_open_breaker_forgets_all_but_half_in_their_proportion(plant: Plant) -> None:
    group = plant.group()
    plant.gate(group, "open")
    ids = plant.messages(30, group_id=group)
    plant.send()
    for number in range(10):
        plant.load(coming_back(plant, ids[number], body=f"body {number}".encode(), group_id=group))
    stay(plant)
    counting.remember(plant.ledger, plant.lease, 30, plant.now)
    assert plant.rows(COUNTS) == [("open", 30, 20, 10)], "it knows no more than it may"
    counting.remember(plant.ledger, plant.lease, 24, plant.now)
    assert plant.rows(COUNTS) == [("open", 12, 8, 4)]
    assert destination(plant).outcomes == (Outcomes(12, 8, 4),)
    assert plant.rows("select stage_at from breakers where destination is not null") == plant.rows(
        "select claimed_at from delivery_slices"
    ), "its stage began when it began"


def test_a_breaker_that_a_person_released_takes_no_step_from_where_it_was(plant: Plant) -> None:
    group = plant.group()
    plant.gate(group, "canary", allowed=20)
    plant.messages(1, group_id=group)
    plant.send()
    step(plant, destination(plant), Stage.HALF_OPEN, 5)
    group_read, destination_read = gate(plant), destination(plant)
    assert breakers.release_group(plant.ledger, "orders", group, first=3, by="ana", now=plant.now)
    assert breakers.release_destination(plant.ledger, "orders", "orders", by="ana", now=plant.now)
    with unchanged(plant):
        for one, to in ((group_read, Stage.FAILED), (destination_read, Stage.TRIPPED)):
            taken = breakers.take_step(plant.ledger, plant.lease, one, Step(to, 0, "why", 1), plant.now)
            assert taken is None
    taken = breakers.take_step(plant.ledger, plant.lease, gate(plant), Step(Stage.RAMP, 9, "why", 0), plant.now)
    assert taken == gate(plant).stage_id


def test_what_an_open_breaker_remembers_does_not_go_over_to_the_canary_that_a_person_begins(plant: Plant) -> None:
    group = plant.group()
    plant.gate(group, "open")
    plant.messages(8, group_id=group)
    plant.send()
    stay(plant)
    read = gate(plant)
    plant.now += MINUTE
    assert breakers.release_group(plant.ledger, "orders", group, first=3, by="ana", now=plant.now)
    with plant.ledger.under(plant.lease, plant.now) as tx:
        counting.forget_half(tx, "group_stage", read.stage_id, 4)
    assert plant.rows(COUNTS) == [("canary", 0, 0, 0)]


def test_a_destination_that_is_met_again_after_a_move_begins_with_nothing(plant: Plant) -> None:
    plant.begin(system="memory:eu")
    plant.messages(2)
    plant.send()
    assert outcomes.confirm(plant.ledger, plant.lease, [m for (m,) in plant.rows("select message_id from messages")],
                            plant.now) == 2  # fmt: skip
    assert destination(plant).stayed == 2
    plant.begin(system="memory:us")
    plant.messages(1)
    plant.send()
    assert (destination(plant).sent, destination(plant).stayed) == (0, 0)


def test_the_numbers_of_a_stage_are_read_from_its_attempts_alone(plant: Plant) -> None:
    """However long the history is: an index has all of it."""
    explain, said = "explain query plan", "USING COVERING INDEX {}"
    with plant.ledger.read() as connection:
        if plant.ledger.dialect.name == "postgresql":
            explain, said = "explain", "Index Only Scan using {} on"
            for way in ("seqscan", "bitmapscan"):  # of an empty table they cost no more
                connection.exec_driver_sql(f"set local enable_{way} = off")
        for view, index in (
            ("group_state", "ix_redelivery_attempts_group_stage"),
            ("destination_state", "ix_redelivery_attempts_destination_stage"),
        ):
            plan = connection.exec_driver_sql(f"{explain} select * from {view} where route = 'orders'").all()
            assert said.format(index) in str(plan)


def let_go(plant: Plant) -> list[dict[Hashable, Outcomes]]:
    """Of the group's gate, slice by slice; the same of the destination's breaker."""
    since = plant.now - timedelta(days=7)
    with plant.ledger.read() as connection:
        found = breakers.slices_of(connection, "orders", gate(plant), since=since)
        assert breakers.slices_of(connection, "orders", destination(plant), since=since) == found
    return found


def test_what_an_open_breaker_let_go_is_counted_with_what_is_awaited(plant: Plant) -> None:
    group = plant.group()
    plant.gate(group, "open")
    ids = plant.messages(5, group_id=group)
    plant.send()
    plant.begin()
    plant.messages(3, group_id=group)
    plant.send()
    plant.load(coming_back(plant, ids[1], body=b"body 1", group_id=group))
    assert let_go(plant) == [{group: Outcomes(5, 0, 1)}, {group: Outcomes(3, 0, 0)}]
    counting.remember(plant.ledger, plant.lease, 0, plant.now)
    assert let_go(plant)[0] == {group: Outcomes(5, 0, 1)}, "what is watched is not forgotten"
    stay(plant)
    plant.messages(2, group_id=group)
    plant.send()
    assert let_go(plant) == [{group: Outcomes(7, 7, 0)}, {group: Outcomes(3, 0, 0)}], "the rest it had forgotten"
    plant.now += timedelta(days=8)
    assert let_go(plant) == [{group: Outcomes(7, 7, 0)}], "nobody learns of the others any more"


def test_of_what_nobody_watches_any_more_nothing_is_awaited(plant: Plant) -> None:
    group = plant.group()
    plant.gate(group, "open")
    plant.messages(5, group_id=group)
    plant.send()
    with plant.ledger.under(plant.lease, plant.now) as tx:
        assert outcomes.lose_sight(tx, until_fence=plant.lease.fence, reason="why") == 5
    assert let_go(plant) == []


def test_what_comes_back_late_is_counted_with_all_of_its_slice(plant: Plant) -> None:
    group = plant.group()
    plant.gate(group, "ramp", allowed=200)
    ids = plant.messages(5, group_id=group)
    plant.send()
    stay(plant)
    step(plant, gate(plant), Stage.OPEN)
    step(plant, destination(plant), Stage.OPEN)
    plant.load(coming_back(plant, ids[0], group_id=group))
    assert plant.rows(COUNTS) == [("open", 1, 0, 1)]
    assert let_go(plant) == [{group: Outcomes(5, 4, 1)}]
