"""A source that nobody empties is told of while there is time."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from redrive import settings as configuration
from redrive.ledger import leases, outcomes, schema
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
    schema.upgrade(ledger, NOON)
    ledger.close()
    return found


def emptied(settings: Settings, *queues: str) -> None:
    """A run drained these sources to their end at noon."""
    ledger = Ledger(settings.database)
    lease = leases.acquire(
        ledger, "orders", "run-1", holder="ana", trigger="manual", ttl=timedelta(minutes=1), now=NOON
    )
    outcomes.sources_drained(ledger, lease, queues, NOON, NOON)
    outcomes.sources_loaded(ledger, lease, NOON)
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


def test_one_that_cannot_be_judged_is_left_out(settings: Settings) -> None:
    emptied(settings, "unknown")
    assert risks(settings, timedelta(days=100)) == []


def test_says_what_to_do(settings: Settings) -> None:
    emptied(settings, "orders-dlq")
    (risk,) = rescue.at_risk(settings, now=NOON + timedelta(days=3))
    assert str(risk) == (
        "orders-dlq (route orders) was last emptied 72 hours ago and keeps messages for 4d: "
        "run `redrive drain orders`, or find out why its runs don't"
    )
