"""Consumers that pass a redelivered message on, with our headers: what dies behind them is not what we sent."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.message import DeadLetter, Header
from tests.workshop import REFUSED, Workshop

ERROR = Header("error", "String", REFUSED)

ROUTE: dict[str, Any] = {
    "sources": [{"queue": f"{name}-dlq", "lease": "2s", "max_deliveries": 3, "origins": [name]} for name in "ab"],
    "destination": None,
    "requeue_attempts": 2,
    "delay_attempts": 2,
}


@pytest.fixture
def shop(tmp_path: Path, ledger_url: str) -> Workshop:
    shop = Workshop(tmp_path, ledger_url, **ROUTE)
    for queue in ("a", "b", "a-dlq", "b-dlq"):
        shop.world.create(queue, lease=timedelta(minutes=5))
    return shop


def fails(shop: Workshop, queue: str, letter: DeadLetter, *more: Header, **fields: Any) -> None:
    """The consumer of ``queue`` fails at a copy of ``letter``."""
    headers = tuple(header for header in letter.headers if header.name != "error")
    shop.world.put(
        f"{queue}-dlq", DeadLetter("", letter.body, (*headers, *more, ERROR), **({"origin": queue} | fields))
    )


def taken(shop: Workshop, queue: str) -> DeadLetter:
    """The one message that the consumer of ``queue`` processes."""
    [(letter, receipt)] = shop.broker.receive(queue, limit=10, wait=timedelta(0), lease=timedelta(minutes=1))
    shop.broker.settle(queue, [receipt])
    return letter


def test_what_dies_behind_a_consumer_goes_back_to_where_it_died(shop: Workshop) -> None:
    fails(shop, "a", DeadLetter("", b"order 1"))
    shop.cycle()
    fails(shop, "b", taken(shop, "a"))
    shop.advance(minutes=30)
    report = shop.cycle()
    assert (report["new"], report["returned"]) == (1, 0)
    assert (shop.bodies("a"), shop.bodies("b")) == ([], [b"order 1"])
    assert shop.audit() == []


def test_a_circle_of_consumers_ends_with_a_person(shop: Workshop) -> None:
    """Each passes the message on to the other, and what dies behind it is new each time; the attempts are not."""
    fails(shop, "a", DeadLetter("", b"order 1"))
    shop.cycle()
    for _ in range(4):
        for here, there in ("ab", "ba"):
            if shop.bodies(here):
                fails(shop, there, taken(shop, here))
        shop.advance(minutes=90)
        shop.cycle()
    assert shop.bodies("a") + shop.bodies("b") == []
    assert shop.states()["escalated"] == 1


def test_two_messages_that_a_consumer_made_of_one_both_go_on(shop: Workshop) -> None:
    fails(shop, "a", DeadLetter("", b"invoice 7"))
    shop.cycle()
    letter = taken(shop, "a")
    for who in ("ana", "bob"):
        fails(shop, "b", letter, Header("recipient", "String", who))
    shop.advance(minutes=30)
    assert shop.cycle()["new"] == 2
    assert shop.bodies("b") == [b"invoice 7"] * 2


def test_without_an_origin_the_second_of_two_is_for_a_person(shop: Workshop) -> None:
    fails(shop, "a", DeadLetter("", b"invoice 7"))
    shop.cycle()
    letter = taken(shop, "a")
    for who in ("ana", "bob"):
        fails(shop, "a", letter, Header("recipient", "String", who), origin=None)
    shop.advance(minutes=30)
    report = shop.cycle()
    assert (report["returned"], report["suspected"]) == (1, 1)
    assert shop.audit() == []


def test_a_failure_that_a_header_tells_of_makes_no_other_message(shop: Workshop) -> None:
    """Delivered twice, failed twice: ``evidence`` names the header in which the two differ."""
    fails(shop, "a", DeadLetter("", b"order 1"))
    shop.cycle()
    letter = taken(shop, "a")
    fails(shop, "a", letter)
    shop.world.put("a-dlq", DeadLetter("", letter.body, (*letter.headers, ERROR._replace(value="again")), origin="a"))
    shop.advance(minutes=30)
    report = shop.cycle()
    assert (report["returned"], report["suspected"]) == (1, 0)
    assert shop.query("select surplus_copies from staging_batches order by batch_id") == [(0,), (1,)]


def test_a_queue_that_only_waits_leads_to_where_its_messages_go_on(shop: Workshop) -> None:
    """As with RabbitMQ's queues with a time to live: sent to one, it fails at the next."""
    shop.world.create("a-retry", lease=timedelta(minutes=5), dead_letter_queue="a")
    shop.settings = shop.configure(shop.settings.database, **(ROUTE | {"destination": {"queue": "a-retry"}}))
    fails(shop, "a", DeadLetter("", b"order 1"))
    shop.cycle()
    fails(shop, "a", taken(shop, "a-retry"))
    shop.advance(minutes=30)
    assert shop.cycle()["returned"] == 1
