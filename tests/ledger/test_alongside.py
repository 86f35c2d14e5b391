"""Windows that are marked alongside other transactions of the route, on PostgreSQL: what waits for what there."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from redrive.errors import LeaseLost, LedgerBusy
from redrive.ledger import schema
from redrive.ledger.delivery import claims, recovery, windows
from redrive.ledger.delivery.claims import Slice
from redrive.ledger.delivery.windows import Mark
from redrive.ledger.engine import Ledger, sql
from tests.ledger.planting import NOW, Plant

pytestmark = pytest.mark.server


@pytest.fixture
def plant(postgres_database: str) -> Iterator[Plant]:
    """Twelve messages that are due; nobody waits longer than half a second."""
    ledger = Ledger(postgres_database, patience=timedelta(seconds=0.5))
    schema.upgrade(ledger, NOW)
    plant = Plant(ledger)
    plant.messages(12)
    plant.make_due()
    yield plant
    ledger.close()


def claimed(plant: Plant, limit: int) -> Slice:
    found = plant.claim(limit)
    assert found is not None
    return found


def marks(one: Slice, first: int, last: int, status: str = "sent") -> list[Mark]:
    return [Mark(m.message_id, m.attempt, status) for m in one.messages[first:last]]


def mark(plant: Plant, one: Slice, some: list[Mark], **how: Any) -> bool:
    return windows.mark(
        plant.ledger, plant.lease, one.slice_id, some, tries=3, now=plant.now, first_sends=True, alongside=True, **how
    )


def sent(plant: Plant) -> int:
    [(count,)] = plant.query("select count(*) from redelivery_attempts where sent_at is not null")
    return int(count)


def test_a_window_is_marked_and_the_next_announced_while_the_next_slice_is_claimed(plant: Plant) -> None:
    one = claimed(plant, 6)
    following = (one.slice_id, one.messages[3].message_id)
    with plant.ledger.under(plant.lease, plant.now):
        assert mark(plant, one, marks(one, 0, 2), following=following)
        plant.announce_alongside(one, one.messages[5].message_id)
    assert sent(plant) == 2
    assert plant.query("select confirmed_to, high_water, sent from delivery_slices") == [
        (one.messages[1].message_id, one.messages[5].message_id, 2)
    ]


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"last_window": True}, id="the slice is closed"),
        pytest.param({"status": "retry"}, id="messages wait again"),
        pytest.param({"status": "refused"}, id="messages go to people"),
        pytest.param({"status": "unknown"}, id="messages are in doubt"),
    ],
)
def test_what_concerns_more_than_the_slice_waits_for_the_others(plant: Plant, how: dict[str, Any]) -> None:
    one = claimed(plant, 6)
    some = marks(one, 0, 2, how.pop("status", "sent"))
    with plant.ledger.under(plant.lease, plant.now), pytest.raises(LedgerBusy):
        mark(plant, one, some, **how)
    assert sent(plant) == 0


def test_who_recovers_a_slice_waits_for_a_window_that_is_being_announced(plant: Plant) -> None:
    """Else what the old task sends now would wait again, and be sent twice."""
    one, old = claimed(plant, 6), plant.lease
    plant.announce(one, one.messages[1].message_id)
    new, found = plant.begin(), dict[str, int]()
    patient = Ledger(plant.ledger.url.render_as_string(hide_password=False))
    with plant.ledger.write() as connection:
        connection.exec_driver_sql(  # as a mark does that passed the question who holds the route a moment before
            f"update delivery_slices set high_water = {one.messages[3].message_id} where slice_id = {one.slice_id}"
        )
        recovering = threading.Thread(target=lambda: found.update(recovery.recover(patient, new, plant.now)))
        recovering.start()
        recovering.join(0.5)
        assert recovering.is_alive()
    recovering.join(60)
    patient.close()
    assert found == {"given_back": 2, "unknown": 4}
    assert old.fence < new.fence


@pytest.mark.parametrize("replaced", [True, False])
def test_nothing_is_announced_of_a_slice_that_was_recovered(plant: Plant, replaced: bool) -> None:
    one, lease = claimed(plant, 6), plant.lease
    if replaced:
        plant.begin()
    recovery.recover(plant.ledger, plant.lease, plant.now, shard=0)
    plant.lease = lease
    with pytest.raises(LeaseLost):
        mark(plant, one, marks(one, 0, 2), following=(one.slice_id, one.messages[3].message_id))
    with pytest.raises(LeaseLost):
        plant.announce_alongside(one, one.messages[1].message_id)
    assert sent(plant) == 0
    assert plant.states() == {"waiting": 12}


def test_a_run_that_was_replaced_marks_nothing_alongside_although_its_slice_is_open(plant: Plant) -> None:
    one, lease = claimed(plant, 6), plant.lease
    plant.begin()
    plant.lease = lease
    with pytest.raises(LeaseLost, match="was replaced"):
        mark(plant, one, marks(one, 0, 2))
    assert sent(plant) == 0


def test_a_claim_that_nobody_can_see_yet_takes_room_whatever_other_routes_do(plant: Plant) -> None:
    slice_of = (
        "insert into delivery_slices (route, run_id, fence, shard, destination, claimed, claimed_at, deadline_at)"
        " values ('{}', 'r', 1, 0, 'orders', 4, :now, :now) returning slice_id"
    )
    with plant.ledger.under(plant.lease, plant.now) as claim:
        hidden = claim.connection.execute(sql(slice_of.format(plant.route)), {"now": plant.now}).scalar_one()
        with plant.ledger.by("tests", plant.now) as tx:
            other = tx.connection.execute(sql(slice_of.format("billing")), {"now": plant.now}).scalar_one()
        with plant.ledger.read() as connection:
            newest, _ = claims.seen(connection, plant.route)
    assert newest < hidden < other
