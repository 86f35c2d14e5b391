"""A send is not presumed while its copy lies in the destination, where only leases that end prove anything."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from redrive.brokers.sqs.kind import STANDARD
from tests.workshop import Workshop

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
