"""What would be lost before the next run is drained first, beyond the limit, and it is said."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from redrive.brokers.memory import MemoryBroker
from redrive.ledger.account import inspecting
from redrive.ledger.engine import parse_instant
from redrive.stages import rescue
from tests.workshop import REFUSED, Workshop

SOURCES: list[dict[str, Any]] = [
    {"queue": "orders-dlq", "kind": "dead_letter", "retention": "4d"},
    {"queue": "orders-delay", "kind": "delay", "delay": "30s", "destination": "orders", "retention": "14d"},
]
DAY = 86_400_000_000


def a_shop(folder: Path, limit: int = 10, **route: Any) -> Workshop:
    return Workshop(folder, **{"sources": SOURCES, "drain": {"wait": "0s", "limit": limit}} | route)


def dead(shop: Workshop, count: int, *, days: float, queue: str = "orders-dlq", name: str = "m") -> None:
    """So many messages that were first enqueued so many days ago."""
    shop.die(
        *[f"{name} {n}" for n in range(count)],
        error=REFUSED,
        queue=queue,
        enqueued_at=shop.time.now - round(days * DAY),
    )


def every_ten_minutes(shop: Workshop, runs: int = 3) -> None:
    for _ in range(runs):
        shop.cycle()
        shop.advance(minutes=10)


def test_the_limit_holds_while_there_is_time(tmp_path: Path) -> None:
    shop = a_shop(tmp_path)
    every_ten_minutes(shop)
    dead(shop, 50, days=1)
    report = shop.cycle()
    assert report["drained"] == 10
    assert "rescued" not in report


def test_what_would_expire_before_the_next_run_is_drained_beyond_the_limit_and_it_is_said(tmp_path: Path) -> None:
    shop = a_shop(tmp_path)
    every_ten_minutes(shop)
    dead(shop, 350, days=3.98, name="urgent")
    dead(shop, 500, days=1, name="safe")
    report = shop.cycle()
    assert 350 <= report["drained"] < 350 + 200, "all that is urgent, and no more than two receives of the rest"
    assert report["rescued"] == report["drained"] - 10
    ((count, reason),) = shop.query("select count, reason from audit_events where action = 'drain_beyond_limit'")
    assert count == report["rescued"]
    assert reason.startswith("They would have been lost before 2025-10-09")
    assert shop.audit() == []


def test_what_says_it_is_of_tomorrow_makes_no_source_safe_for_longer(tmp_path: Path) -> None:
    shop = a_shop(tmp_path)
    dead(shop, 50, days=-300)
    shop.cycle()
    ((oldest,),) = shop.query("select oldest_at from source_state where source = 'orders-dlq'")
    assert parse_instant(oldest) == shop.now()
    (risk,) = rescue.at_risk(shop.settings, now=shop.now() + timedelta(days=3))
    assert risk.queue == "orders-dlq"


def test_how_soon_the_next_run_comes_is_judged_by_the_last_ones(tmp_path: Path) -> None:
    shop = a_shop(tmp_path)
    for _ in range(3):
        shop.cycle()
        shop.advance(days=1)
    dead(shop, 30, days=2.5)
    assert shop.cycle()["rescued"] == 20, "the next run may be two days away"


def test_a_source_whose_messages_expire_sooner_goes_first_though_it_keeps_them_longer(tmp_path: Path) -> None:
    shop = a_shop(tmp_path)
    every_ten_minutes(shop)
    dead(shop, 100, days=13.7, queue="orders-delay")
    assert shop.cycle()["drained"] == 10, "it was thought to be empty: the other goes first, then this"
    dead(shop, 50, days=1)
    shop.advance(minutes=10)
    shop.cycle()
    assert shop.query("select source, sum(copies) from staging_batches group by source") == [("orders-delay", 20)]
    with shop.ledger.read() as connection:
        expiry = inspecting.status(connection, "orders", shop.now())["expiry"]
    assert [one["source"] for one in sorted(expiry, key=lambda one: one["expires_at"])] == [
        "orders-delay",
        "orders-dlq",
    ]


def test_no_source_waits_for_ever_for_another_that_fills_each_limit_though_nobody_says_when_they_expire(
    tmp_path: Path,
) -> None:
    forever = [{"queue": queue} for queue in ("orders-dlq", "other-dlq")]
    shop = a_shop(tmp_path, limit=5, sources=forever)
    shop.world.create("other-dlq", lease=timedelta(minutes=5))
    drained = []
    for number in range(8):
        shop.die(*(f"{number}: {n}" for n in range(6)))
        shop.die(f"other {number}", queue="other-dlq")
        shop.cycle()
        drained.append(len(shop.bodies("other-dlq")))
        shop.advance(minutes=10)
    assert drained[0] == 1, "the limit was used up"
    assert drained.count(0) >= 2, "its turn comes, and not once only"
    assert max(drained) <= 3


def test_a_source_for_which_no_limit_is_left_is_looked_at_when_its_time_has_come(tmp_path: Path) -> None:
    shop = a_shop(tmp_path)
    dead(shop, 30, days=0.5, queue="orders-delay")
    shop.cycle()  # nothing was known of either: each was looked at
    shop.advance(days=3.4)
    dead(shop, 300, days=3.98, name="urgent")
    dead(shop, 20, days=0, name="safe")
    report = shop.cycle()
    drained = dict(shop.query("select source, sum(copies) from staging_batches group by source"))
    assert drained["orders-dlq"] >= 300
    assert report["rescued"] >= 290


def test_how_long_a_source_keeps_messages_is_asked_of_the_broker_once_and_remembered(tmp_path: Path) -> None:
    asked = []

    class Telling(MemoryBroker):
        def describe(self, queue: str) -> Any:
            asked.append(queue)
            return super().describe(queue)

    shop = a_shop(tmp_path, sources=[{"queue": "kept", "lease": "2s", "max_deliveries": 3}])
    shop.world.create("kept", retention=timedelta(days=2))
    shop.broker = Telling(shop.world)
    every_ten_minutes(shop)
    assert asked == ["kept"]
    shop.advance(hours=20)
    assert rescue.at_risk(shop.settings, now=shop.now()) == []
    shop.advance(hours=5)
    (risk,) = rescue.at_risk(shop.settings, now=shop.now())
    assert (risk.queue, risk.retention) == ("kept", timedelta(days=2))


def test_what_its_destination_gave_up_while_consumers_were_down_is_not_presumed(tmp_path: Path) -> None:
    """The destination keeps messages for four days, and its consumers are away for as long."""
    shop = a_shop(tmp_path, canary={"first": 2, "grow": 10, "pass": 0.9, "observe": "5m"}, give_up_after="90d")
    shop.world.create("orders", retention=timedelta(days=4), lease=timedelta(minutes=5))
    shop.die("a", "b", "c", "d", error=REFUSED)
    assert shop.cycle()["redelivered"] == 2
    for day in range(4):
        shop.advance(days=1)
        if day == 3:
            assert shop.consume() == 2, "as the broker does when their time is over"
        shop.cycle()
    for _ in range(3):
        shop.advance(minutes=10)
        shop.cycle()
    assert shop.query("select distinct outcome from redelivery_attempts") == [(None,)]
    [(why,)] = shop.query("select reason from messages where state = 'sent' and reason is not null group by reason")
    assert why.startswith("It may be gone from orders without anybody having had it")
    assert shop.query("select stage, allowed, sent, stayed from group_state") == [("canary", 2, 2, 0)]
    assert shop.states() == {"sent": 4}, "the next two are its canary"
    assert shop.audit() == []


def test_what_came_back_while_nobody_ran_and_expired_is_not_presumed_and_passes_no_canary(tmp_path: Path) -> None:
    """Airflow is off for three weeks, and the dead-letter queue keeps messages for four days."""
    shop = a_shop(tmp_path, canary={"first": 2, "grow": 10, "pass": 0.9, "observe": "5m"}, give_up_after="90d")
    shop.die("a", "b", "c", "d", error=REFUSED)
    assert shop.cycle()["redelivered"] == 2
    assert shop.consume(lambda _: REFUSED) == 2
    shop.advance(days=5)
    assert shop.consume(queue="orders-dlq") == 2, "as the broker does when their time is over"
    shop.advance(days=16)
    report = shop.cycle()
    assert (report["presumed"], report["returned"]) == (0, 0)
    assert shop.query("select stage, allowed, stayed from group_state") == [("canary", 2, 0)]
    shop.consume()
    for _ in range(2):
        shop.advance(minutes=10)
        shop.cycle()
    assert shop.query("select outcome from redelivery_attempts order by message_id") == [
        (None,), (None,), ("presumed",), ("presumed",)
    ], "others went as its canary"  # fmt: skip
    assert shop.audit() == []
