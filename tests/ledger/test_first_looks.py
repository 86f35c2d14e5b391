"""Which earlier drain may still hold copies of a source whose broker tells no depth."""

from datetime import timedelta

from redrive.ledger.drain import first_looks
from tests.ledger.planting import Plant

LEASE = timedelta(minutes=5)


def test_a_run_that_was_replaced_may_hold_until_its_leases_are_over(plant: Plant) -> None:
    dead = plant.lease
    plant.begin()
    plant.change(
        "update runs set status = 'replaced', finished_at = :now where run_id = :dead", dead=dead.run_id, now=plant.now
    )
    at = plant.now
    with plant.ledger.read() as connection:
        held = first_looks.may_hold(connection, plant.lease, "q", leased_for=LEASE, at=at + timedelta(minutes=1))
        assert held is not None
        assert held.run_id == dead.run_id
        later = at + timedelta(hours=1)
        assert first_looks.may_hold(connection, plant.lease, "q", leased_for=LEASE, at=later) is None
