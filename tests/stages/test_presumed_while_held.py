"""A send is not presumed while its copy lies in the destination, where only leases that end prove anything."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.brokers.base import Origin, QueueInfo
from redrive.brokers.memory import MemoryBroker
from redrive.brokers.sqs.kind import STANDARD
from redrive.errors import BrokerUnavailable, PermissionRefused
from redrive.stages.resolve import redrive_at_origins
from tests.workshop import REFUSED, Workshop

LEASE = timedelta(minutes=15)


class Shop(Workshop):
    """Of the capabilities of SQS: depths are late and estimated, and a hold ends by the broker's clock."""

    capabilities = STANDARD

    def take(self) -> None:
        """Consumers get all that waits, and never say what became of it."""
        self.broker.receive("orders", limit=100, wait=timedelta(0), lease=LEASE)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(
        tmp_path,
        sources=[{"queue": "orders-dlq", "kind": "dead_letter", "lease": "15m", "max_deliveries": 3}],
        canary={"first": 5, "observe": "auto"},
    )
    shop.world.create("orders", lease=LEASE, dead_letter_queue="orders-dlq", max_deliveries=3)
    shop.die(*(f"{n}" for n in range(5)))
    shop.cycle()
    yield shop
    shop.ledger.close()


def test_what_was_taken_once_and_waits_again_is_not_presumed(shop: Shop) -> None:
    """The consumers' host dies, and nobody takes anything for hours."""
    shop.take()
    for _ in range(65):
        shop.advance(minutes=2)
        shop.cycle()
    assert shop.broker.depth("orders").visible == 5
    assert shop.states() == {"sent": 5}
    assert shop.audit() == []


def test_what_is_taken_again_and_again_comes_back_before_it_could_be_presumed(shop: Shop) -> None:
    taken = 0
    while shop.query("select count(*) from redelivery_attempts where outcome is not null") == [(0,)] and taken < 60:
        shop.take()
        taken += 1
        shop.advance(minutes=2)
        shop.cycle()
    assert set(shop.query("select outcome from redelivery_attempts where outcome is not null")) == {("returned",)}


FAST, SLOW, MANY = Origin(timedelta(minutes=1), 2), Origin(timedelta(minutes=15), 5), Origin(timedelta(minutes=2), 20)


@pytest.mark.parametrize(
    ("origins", "configured", "longest", "lease", "deliveries"),
    [
        ([FAST, SLOW, MANY], {}, 75, 15, 20),
        ([FAST, MANY], {}, 40, 2, 20),
        ([FAST, SLOW, MANY], {"lease": "3m"}, 60, 3, 20),
        ([FAST, SLOW, MANY], {"max_deliveries": 3}, 45, 15, 3),
        ([FAST, SLOW, MANY], {"lease": "3m", "max_deliveries": 3}, 9, 3, 3),
        ([Origin(None, 10), Origin(timedelta(0), 4)], {}, 5, 0.5, 10),
        ([], {}, 2.5, 0.5, 5),
    ],
)
def test_the_longest_redrive_is_that_of_the_origin_where_it_takes_longest(
    tmp_path: Path, origins: list[Origin], configured: dict[str, Any], longest: float, lease: float, deliveries: int
) -> None:
    class Telling(MemoryBroker):
        def describe(self, queue: str) -> QueueInfo:
            return super().describe(queue)._replace(origins=tuple(origins))

    shop = Workshop(tmp_path, sources=[{"queue": "orders-dlq", **configured}])
    found = redrive_at_origins(Telling(shop.world), shop.settings.routes["orders"])
    assert (found.longest, *found.holds) == (timedelta(minutes=longest), timedelta(minutes=lease), deliveries)
    shop.ledger.close()


@pytest.mark.parametrize("away", [False, True])
def test_while_the_broker_can_not_be_asked_no_send_is_presumed_sooner_than_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """How long its origin may redrive a message only the broker knows; what is assumed without it is far shorter."""
    shop = Workshop(tmp_path, sources=[{"queue": "orders-dlq"}], canary="off")
    told = shop.broker.describe

    def describe(queue: str) -> QueueInfo:
        if away:
            raise BrokerUnavailable("connection refused")
        return told(queue)._replace(origins=(SLOW,))

    shop.die("a", error=REFUSED)
    monkeypatch.setattr(shop.broker, "describe", lambda queue: told(queue)._replace(origins=(SLOW,)))
    shop.cycle()
    shop.consume()
    shop.advance(minutes=1)
    shop.cycle()
    monkeypatch.setattr(shop.broker, "describe", describe)
    shop.advance(minutes=30)
    shop.cycle()
    assert shop.states() == {"sent": 1}
    shop.advance(hours=1)
    shop.cycle()
    assert shop.states() == {"presumed": 1}
    shop.ledger.close()


def test_who_may_not_ask_reckons_with_thirty_seconds_and_five_deliveries(tmp_path: Path) -> None:
    class Silent(MemoryBroker):
        def describe(self, queue: str) -> QueueInfo:
            raise PermissionRefused(f"describe of queue {queue}: denied")

    shop = Workshop(tmp_path, sources=[{"queue": "orders-dlq"}])
    assert redrive_at_origins(Silent(shop.world), shop.settings.routes["orders"]).longest == timedelta(seconds=150)
    shop.ledger.close()
