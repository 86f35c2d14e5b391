"""A source that nobody empties is told of while there is time."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests import blank

from redrive import settings as configuration
from redrive.ledger import leases
from redrive.ledger.delivery import expiry
from redrive.ledger.delivery.expiry import Expiry
from redrive.ledger.drain import horizon
from redrive.ledger.engine import Ledger
from redrive.settings import Settings
from redrive.stages import rescue

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
CONFIG = """
routes:
  orders:
    broker: memory
    sources: [{queue: orders-dlq, retention: 4d}, {queue: orders-old, retention: 1d}, {queue: unknown}]
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A route with a fresh ledger."""
    found = configuration.parse(CONFIG, env={}, root=tmp_path)
    (tmp_path / "var").mkdir()
    ledger = Ledger(found.database)
    blank.upgrade(ledger, NOON)
    ledger.close()
    return found


def emptied(settings: Settings, *queues: str) -> None:
    """A run drained these sources to their end at noon."""
    ledger = Ledger(settings.database)
    lease = leases.acquire(
        ledger, "orders", "run-1", holder="ana", trigger="manual", ttl=timedelta(minutes=1), now=NOON
    )
    horizon.sources_drained(ledger, lease, queues, NOON, NOON)
    horizon.sources_loaded(ledger, lease, NOON)
    leases.release(ledger, lease, status="succeeded", now=NOON)
    ledger.close()


def looked_at(settings: Settings, queue: str, oldest_at: datetime, retention: timedelta | None = None) -> None:
    """A run drained this source, but not to its end: what is left was enqueued after ``oldest_at``."""
    ledger = Ledger(settings.database)
    lease = leases.acquire(
        ledger, "orders", "run-2", holder="ana", trigger="manual", ttl=timedelta(minutes=1), now=NOON
    )
    known = Expiry(retention, oldest_at)
    expiry.note(ledger, lease, queue, known, rescued=0, expiring_at=NOON, began_at=NOON, now=NOON)
    ledger.close()


def risks(settings: Settings, later: timedelta) -> list[str]:
    return [risk.queue for risk in rescue.at_risk(settings, now=NOON + later)]


def test_a_source_that_was_just_emptied_is_safe(settings: Settings) -> None:
    emptied(settings, "orders-dlq", "orders-old", "unknown")
    assert risks(settings, timedelta(minutes=10)) == []


def test_one_is_told_of_when_half_of_its_retention_is_gone(settings: Settings) -> None:
    emptied(settings, "orders-dlq")
    assert risks(settings, timedelta(days=2, seconds=-1)) == []
    assert risks(settings, timedelta(days=2)) == ["orders-dlq"]


def test_the_most_urgent_comes_first(settings: Settings) -> None:
    emptied(settings, "orders-dlq", "orders-old")
    assert risks(settings, timedelta(days=3)) == ["orders-old", "orders-dlq"]


def test_one_of_which_nothing_is_known_cannot_be_judged(settings: Settings) -> None:
    emptied(settings, "unknown")
    assert risks(settings, timedelta(days=100)) == [], "how long it keeps messages, or what lies in it"


def test_one_that_no_drain_comes_to_the_end_of_is_judged_by_the_oldest_that_may_be_left(settings: Settings) -> None:
    looked_at(settings, "orders-dlq", NOON - timedelta(days=1))
    assert risks(settings, timedelta(hours=23)) == []
    (risk,) = rescue.at_risk(settings, now=NOON + timedelta(days=1))
    assert str(risk).startswith(
        "orders-dlq (route orders) may hold messages that were enqueued 48 hours ago, which no drain has reached, and"
        " keeps messages for 4d: "
    )


def test_what_died_late_expires_before_what_came_since_the_source_was_emptied(settings: Settings) -> None:
    emptied(settings, "orders-dlq")
    looked_at(settings, "orders-dlq", NOON - timedelta(days=2))
    assert risks(settings, timedelta(hours=1)) == ["orders-dlq"]


def test_says_what_to_do(settings: Settings) -> None:
    emptied(settings, "orders-dlq")
    (risk,) = rescue.at_risk(settings, now=NOON + timedelta(days=3))
    assert str(risk) == (
        "orders-dlq (route orders) was last emptied 72 hours ago and keeps messages for 4d: "
        "run `redrive drain orders`, or find out why its runs don't"
    )


def test_a_route_whose_configuration_is_broken_is_told_of_too(settings: Settings, tmp_path: Path) -> None:
    """It may have lost its schedule, and then nothing else of it fails."""
    emptied(settings, "orders-dlq")
    looked_at(settings, "orders-dlq", NOON, timedelta(days=4))
    text = CONFIG.replace("broker: memory", "broker: memory\n    schedule: now and then")
    text += CONFIG.replace("routes:\n", "").replace("orders", "mail")
    broken = configuration.parse(text, env={}, root=tmp_path, without_broken=True)
    assert list(broken.broken) == ["orders"]
    assert risks(broken, timedelta(days=1)) == []
    assert risks(broken, timedelta(days=2)) == ["orders-dlq"]
