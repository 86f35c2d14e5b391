"""What was seen last of each queue, however often it was looked at."""

from datetime import timedelta
from pathlib import Path

from redrive.ledger import leases
from redrive.ledger.account import inspecting, notifications
from redrive.ledger.delivery import observations, presuming
from redrive.ledger.delivery.observations import Observation
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.predicates import HERE
from tests import blank, query_plans
from tests.ledger.planting import NOW, Plant
from tests.probe import numbers
from tests.workshop import ROUTE, Workshop


def look(plant: Plant, hours: int, **depths: int) -> None:
    """One look at each of these queues, so many hours from the beginning."""
    seen = [
        Observation(
            queue,
            "destination",
            depth,
            0,
            0,
            oldest_age_seconds=3600.0 * depth,
            oldest_age_method="broker",
        )
        for queue, depth in depths.items()
    ]
    observations.observe(plant.ledger, plant.lease, seen, NOW + timedelta(hours=hours))


def test_what_was_seen_last_of_a_queue_counts_and_of_every_queue(plant: Plant) -> None:
    look(plant, 0, orders=50, late=5, cleared=9)
    look(plant, 1, orders=40, cleared=0)
    other = Plant(plant.ledger, "payments")
    look(other, 2, orders=7, paid=8)
    with plant.ledger.read() as connection:
        deep = notifications.deep(connection, "orders", most=0)
        assert {facts["queue"]: facts["depth"] for facts in deep.values()} == {"orders": 40, "late": 5}
        assert notifications.aged(connection, "orders", seconds=3600.0 * 4).keys() == {"orders", "late"}
        assert {(row["queue"], row["visible"]) for row in inspecting.status(connection, "orders", NOW)["queues"]} == {
            ("orders", 40),
            ("late", 5),
            ("cleared", 0),
        }
        assert {facts["queue"] for facts in notifications.deep(connection, "payments", most=7).values()} == {"paid"}


def test_a_queue_that_the_route_looks_at_no_more_is_neither_aged_nor_deep(plant: Plant) -> None:
    """It was a source or a destination once. One that could not be looked at for some hours still is."""
    look(plant, 0, orders=50, gone=60)
    look(plant, 20, orders=50)
    with plant.ledger.read() as connection:
        assert len(notifications.deep(connection, "orders", most=0)) == 2
    look(plant, 30, orders=50)
    with plant.ledger.read() as connection:
        assert {facts["queue"] for facts in notifications.deep(connection, "orders", most=0).values()} == {"orders"}
        assert notifications.aged(connection, "orders", seconds=1.0).keys() == {"orders"}


def test_a_look_is_of_the_run_that_took_it_also_when_that_is_begun_anew(plant: Plant) -> None:
    before = plant.lease
    look(plant, 1, orders=0)
    leases.release(plant.ledger, before, status="failed", now=plant.now)
    anew = leases.acquire(
        plant.ledger, plant.route, before.run_id, holder="test", trigger="test", ttl=timedelta(minutes=1), now=plant.now
    )
    assert anew.fence > before.fence
    with plant.ledger.read() as connection:
        system = connection.execute(sql(f"select {HERE}"), {"route": plant.route}).scalar_one()
        looks = connection.execute(
            sql(presuming._LOOKS), {"route": plant.route, "queue": "orders", "system": system, "since_at": NOW}
        ).all()
    assert [row.fence for row in looks] == [before.fence], (
        "it may have been before what that run sent, by another clock"
    )


def test_looking_back_at_a_year_of_full_queues_takes_no_longer(tmp_path: Path) -> None:
    """Each look that found much was once held against all others: half a minute after a year."""
    took = [_work(tmp_path / f"{looks}.db", looks) for looks in (200, 2_000)]
    assert took[1] < 2 * took[0], took


def _work(path: Path, looks: int) -> int:
    """What SQLite computes to tell what was seen last."""
    ledger = Ledger(f"sqlite:///{path}")
    blank.upgrade(ledger, NOW)
    plant = Plant(ledger)
    for queue in ("orders", "late"):
        plant.change(
            "insert into queue_observations (route, queue, role, observed_at, visible, in_flight, delayed,"
            " oldest_age_seconds, oldest_age_method, oldest_visible_age_method)"
            f" {numbers(looks)}"
            f" select 'orders', '{queue}', 'destination', '2025-01-01', 1000, 0, 0, 9999, 'broker', 'unknown' from n"
        )
    with query_plans.counted() as work, ledger.read() as connection:
        assert len(notifications.deep(connection, "orders", most=10)) == 2
        assert len(notifications.aged(connection, "orders", seconds=10)) == 2
        assert len(inspecting.status(connection, "orders", NOW)["queues"]) == 2
    ledger.close()
    return work.hundreds


def test_a_source_that_is_none_any_more_hides_only_what_comes_back_to_it(workshop: Workshop) -> None:
    """What went elsewhere, and what it was emptied of after its window, is presumed as ever."""
    workshop.world.create("bills-dlq", lease=timedelta(minutes=5))
    workshop.world.create("bills", lease=timedelta(minutes=5), dead_letter_queue="bills-dlq")
    dead, delay = ROUTE["sources"]
    bills = dead | {"queue": "bills-dlq", "destination": "bills"}
    workshop.settings = workshop.configure(workshop.settings.database, sources=[dead, delay, bills])
    workshop.die("early", queue="bills-dlq", origin="bills")
    workshop.cycle()
    workshop.consume(queue="bills")
    for _ in range(2):
        workshop.advance(minutes=30)
        workshop.cycle()
    assert workshop.states() == {"presumed": 1}
    workshop.die("an order")
    workshop.die("a bill", queue="bills-dlq", origin="bills")
    workshop.cycle()
    workshop.consume()
    workshop.consume(queue="bills")
    workshop.settings = workshop.configure(workshop.settings.database, sources=[dead, delay])
    for _ in range(3):
        workshop.advance(minutes=30)
        workshop.cycle()
    assert workshop.query(
        "select origin, state, count(*) from messages group by origin, state order by origin, state"
    ) == [
        ("bills", "presumed", 1),
        ("bills", "sent", 1),
        ("orders", "presumed", 1),
    ]
    workshop.die("another order")
    workshop.cycle()
    workshop.consume()
    for _ in range(3):
        workshop.advance(minutes=30)
        workshop.cycle()
    assert workshop.states() == {"presumed": 3, "sent": 1}, "what is sent from now on can't come back there"
