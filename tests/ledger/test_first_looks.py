"""Which earlier drain may still hold copies of a source whose broker tells no depth."""

from datetime import timedelta

from redrive.ledger.drain import first_looks
from redrive.ledger.drain.first_looks import FirstLook
from tests.ledger.planting import Plant

LEASE = timedelta(minutes=5)


def look(plant: Plant, in_flight: int, source: str = "q") -> FirstLook:
    """The first look of a new run, some time after the last."""
    plant.now += timedelta(minutes=1)
    plant.begin()
    first_looks.note(
        plant.ledger, plant.lease, source, shard=0, total=in_flight, in_flight=in_flight, as_of=None, now=plant.now
    )
    with plant.ledger.read() as connection:
        return first_looks.first(connection, plant.lease)[source]


def test_it_is_known_since_when_looks_have_said_that_nobody_holds_any(plant: Plant) -> None:
    since = look(plant, 0).at
    assert look(plant, 0).free_since == since
    look(plant, 0, "another")
    assert look(plant, 0).free_since == since, "runs that don't look at it say nothing of it"
    assert look(plant, 1).free_since is None
    again = look(plant, 0)
    assert again.free_since == again.at
    plant.change("update route_state set system = 'another broker'")
    moved = look(plant, 0)
    assert moved.free_since == moved.at, "a queue of that name elsewhere is another one"


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
