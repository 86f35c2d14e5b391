"""What is known of consumers is written by runs, and by somebody who watches at the same time."""

import threading
from collections.abc import Sequence

import pytest

from redrive.ledger.delivery import consumers
from redrive.ledger.delivery.consumers import Health
from redrive.ledger.engine import Ledger, sql
from tests import blank
from tests.ledger.planting import NOW, Plant


def health(consumer: str, status: str = "isolated") -> Health:
    return Health(consumer, 7, 1, NOW, status, NOW if status == "isolated" else None)


def known(plant: Plant) -> Sequence[Health]:
    with plant.ledger.read() as connection:
        return consumers.of_queue(connection, plant.route, "orders")


def test_who_looked_before_a_connection_was_closed_does_not_undo_that(plant: Plant) -> None:
    """Else it would be closed once more, when its consumer has only just connected anew."""
    consumers.write(plant.ledger, plant.lease, "orders", [health("c")], plant.now)
    before = known(plant)
    consumers.close_connection(plant.ledger, plant.lease, "orders", "x", ["c"], "why", plant.now)
    consumers.write_unheld(plant.ledger, plant.route, "orders", before, plant.now)
    assert known(plant)[0].closed_at == plant.now
    consumers.write_unheld(plant.ledger, plant.route, "orders", [health("c", "healthy")], plant.now)
    assert known(plant)[0].closed_at is None


def test_a_consumer_that_two_find_stuck_is_told_of_once(plant: Plant) -> None:
    consumers.write(plant.ledger, plant.lease, "orders", [health("c", "healthy")], plant.now)
    for _ in range(2):
        consumers.write_unheld(plant.ledger, plant.route, "orders", [health("c")], plant.now)
    assert plant.query("select count(*) from audit_events where action = 'isolate_consumer'") == [(1,)]


@pytest.mark.server
@pytest.mark.parametrize("second", ["one who watches", "a run"])
def test_two_that_write_at_once_do_not_wait_for_each_other(postgres_database: str, second: str) -> None:
    ledger = Ledger(postgres_database)
    blank.upgrade(ledger, NOW)
    plant = Plant(ledger)
    consumers.write(plant.ledger, plant.lease, "orders", [health("a"), health("B")], plant.now)
    first, last = (one.consumer for one in known(plant))
    other = Ledger(postgres_database)

    def write() -> None:
        if second == "a run":
            consumers.close_connection(other, plant.lease, "orders", "x", [last, first], "why", plant.now)
        else:
            consumers.write_unheld(other, plant.route, "orders", [health(last), health(first)], plant.now)

    writing = threading.Thread(target=write)
    with plant.ledger.write() as connection:
        note = "update consumer_health set closed_at = now() where consumer = '{}'"
        connection.execute(sql(note.format(first)))
        writing.start()
        writing.join(1)
        assert writing.is_alive(), "it waits for the first one"
        connection.execute(sql("set local lock_timeout = '5s'"))
        connection.execute(sql(note.format(last)))
    writing.join(30)
    assert not writing.is_alive()
    other.close()
    plant.ledger.close()
