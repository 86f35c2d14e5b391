"""Presumed only where a return could have been seen; confirmed only by proof; unknown stays unknown until decided."""

from datetime import datetime, timedelta
from typing import Any, Literal

import pytest

from redrive.ledger import observations, outcomes
from redrive.ledger.observations import Observation
from tests.ledger.planting import MINUTE, Plant

WINDOW = 5 * MINUTE
SOURCES = ["orders-dlq", "orders-delay"]


def see_destination(plant: Plant, at: datetime, depth: int = 0) -> None:
    observations.observe(plant.ledger, plant.lease, [Observation("orders", "destination", depth, 0, 0)], at)


def drain(plant: Plant, since: datetime, sources: list[str] = SOURCES) -> None:
    outcomes.sources_drained(plant.ledger, plant.lease, sources, since, plant.now)
    outcomes.sources_loaded(plant.ledger, plant.lease, plant.now)


def presume(plant: Plant) -> int:
    return outcomes.presume(plant.ledger, plant.lease, window=WINDOW, sources=SOURCES, now=plant.now)


@pytest.fixture
def sent(plant: Plant) -> Plant:
    plant.messages(2)
    plant.send()
    return plant


def test_what_stayed_away_beyond_the_window_is_presumed(sent: Plant) -> None:
    see_destination(sent, sent.now + MINUTE)
    drain(sent, sent.now + MINUTE + WINDOW)
    assert presume(sent) == 2
    assert sent.states() == {"presumed": 2}
    assert sent.rows("select outcome from redelivery_attempts") == [("presumed",)] * 2
    assert presume(sent) == 0


def test_not_before_the_destination_has_worked_past_the_send(sent: Plant) -> None:
    see_destination(sent, sent.now)  # not after the send
    see_destination(sent, sent.now + MINUTE, depth=1)  # not empty
    drain(sent, sent.now + timedelta(days=1))
    assert presume(sent) == 0


def test_not_before_the_window_is_over(sent: Plant) -> None:
    see_destination(sent, sent.now + MINUTE)
    drain(sent, sent.now + MINUTE + WINDOW - timedelta(seconds=1))
    assert presume(sent) == 0


def test_not_before_every_source_was_drained_beyond_it(sent: Plant) -> None:
    see_destination(sent, sent.now + MINUTE)
    drain(sent, sent.now + timedelta(days=1), ["orders-dlq"])
    assert presume(sent) == 0
    drain(sent, sent.now + timedelta(days=1), ["orders-delay"])
    assert presume(sent) == 2


def test_what_was_drained_counts_only_when_it_is_loaded(sent: Plant) -> None:
    see_destination(sent, sent.now + MINUTE)
    sent.batch(1)  # recorded, not loaded: a return may be in it
    drain(sent, sent.now + timedelta(days=1))
    assert presume(sent) == 0


def test_what_a_dead_run_drained_does_not_count(sent: Plant) -> None:
    see_destination(sent, sent.now + MINUTE)
    outcomes.sources_drained(sent.ledger, sent.lease, SOURCES, sent.now + timedelta(days=1), sent.now)
    sent.begin()
    outcomes.forget_pending(sent.ledger, sent.lease, sent.now)
    outcomes.sources_loaded(sent.ledger, sent.lease, sent.now)
    assert presume(sent) == 0


def test_a_slice_that_is_still_open_is_not_observed(plant: Plant) -> None:
    plant.messages(1)
    plant.send()
    plant.change("update delivery_slices set closed_at = null")
    see_destination(plant, plant.now + MINUTE)
    drain(plant, plant.now + timedelta(days=1))
    assert presume(plant) == 0


def test_the_group_learns_how_many_stayed_away(plant: Plant) -> None:
    group = plant.group()
    plant.messages(3, group_id=group)
    plant.change("insert into group_state (route, group_id, stage, stage_at) values ('orders', :g, 'canary', :now)",
                 g=group, now=plant.now)  # fmt: skip
    plant.send()
    assert plant.rows("select sent, stayed from group_state") == [(3, 0)]
    see_destination(plant, plant.now + MINUTE)
    drain(plant, plant.now + timedelta(days=1))
    presume(plant)
    assert plant.rows("select sent, stayed, returned from group_state") == [(3, 3, 0)]


@pytest.mark.parametrize("status", ["sent", "unknown"])
def test_proof_confirms(plant: Plant, status: str) -> None:
    first, second = plant.messages(2, message_key="k")
    plant.send(status=status)
    assert outcomes.confirm(plant.ledger, plant.lease, [first], plant.now) == 1
    assert plant.rows("select message_id, state from messages order by message_id") == [
        (first, "confirmed"),
        (second, status),
    ]
    assert plant.rows("select outcome from redelivery_attempts order by message_id") == [("confirmed",), (None,)]


def test_only_what_has_a_key_and_no_outcome_is_asked_about(plant: Plant) -> None:
    (with_key,) = plant.messages(1, message_key="k")
    plant.messages(1)
    plant.send()
    plant.messages(1, message_key="waits")
    with plant.ledger.read() as connection:
        assert outcomes.under_observation(connection, "orders", -1, 10) == [(with_key, "k")]


@pytest.mark.parametrize("verdict", ["repeat", "resend", "escalate"])
def test_unknown_sends_are_decided_once_their_time_has_come(
    plant: Plant, verdict: Literal["repeat", "resend", "escalate"]
) -> None:
    plant.messages(2)
    plant.send(status="unknown")

    def decide(before: datetime) -> int:
        return outcomes.decide_unknown(
            plant.ledger, plant.lease, destination="orders", verdict=verdict, unknown_before=before, now=plant.now
        )

    assert decide(plant.now - timedelta(seconds=1)) == 0
    assert decide(plant.now) == 2
    assert plant.rows("select state, verdict from messages") == [("unknown", verdict)] * 2


def test_unknown_sends_are_told_apart_by_their_claim_and_their_key(plant: Plant) -> None:
    plant.messages(1, message_key="k")
    plant.messages(1)
    plant.send(status="unknown")

    def decide(**which: Any) -> int:
        return outcomes.decide_unknown(
            plant.ledger, plant.lease, destination="orders", verdict="resend", unknown_before=plant.now, now=plant.now,
            **which,
        )  # fmt: skip

    assert decide(claimed_after=plant.now) == 0
    assert decide(claimed_until=plant.now - timedelta(seconds=1)) == 0
    assert decide(keyed=True, claimed_until=plant.now) == 1
    assert plant.rows("select message_key from messages where verdict = 'resend'") == [("k",)]
    assert decide(keyed=False, claimed_after=plant.now - timedelta(seconds=1)) == 1


def test_times_to_return_are_known_from_twenty_on(plant: Plant) -> None:
    plant.messages(20)
    plant.send()
    ids = plant.rows("select redrive_id from messages order by message_id")
    sent_at = plant.now
    for n, (redrive_id,) in enumerate(ids):
        with plant.ledger.read() as connection:
            assert outcomes.return_times(connection, "orders") is None
        plant.now = sent_at + timedelta(seconds=n + 1)
        plant.load({"redrive_id": redrive_id, "redrive_attempt": 1, "body": f"body {n}".encode()})
    with plant.ledger.read() as connection:
        assert outcomes.return_times(connection, "orders") == pytest.approx(20)
        assert outcomes.return_times(connection, "orders", quantile=0.5) == pytest.approx(11)
