"""The demo's consumer on its own: what it keeps of a message that it dead-letters, and each real failure."""

import errno
import sqlite3
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy.exc

from redrive.dev.demo import consumer, handlers, orders, world
from redrive.dev.demo.services import Shop, TokenExpired
from redrive.errors import UsageError

AN_ORDER = {
    "order_id": "ord-1",
    "customer_id": 1001,
    "customer": {"name": "Ana", "email": "a@example.com"},
    "items": [{"sku": "SKU-0001", "quantity": 1}],
    "currency": "EUR",
    "total": "12.50",
    "loyalty": {"level": "gold"},
    "parcels": 1,
    "sku": "SKU-0001",
    "price_version": 4,
    "coupon": "SUMMER22",
    "shelf": "A12",
    "offer": "flash-1",
    "valid_until": "2024-01-01T00:00:00+00:00",
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with Shop(tmp_path_factory.mktemp("broken"), slow_seconds=0.1) as shop:
        yield shop


@pytest.fixture(scope="module")
def repaired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with Shop(tmp_path_factory.mktemp("repaired"), slow_seconds=0.1) as shop:
        shop.repair()
        yield shop


FAILURES = {
    "payment.capture": (urllib.error.URLError, "Connection refused"),
    "warehouse.reserve": (TimeoutError, "timed out"),
    "customer.notify": (OSError, "Name or service not known|name resolution|nodename"),
    "customs.declare": (OSError, "reset by peer|Broken pipe"),
    "booking.post": (sqlite3.OperationalError, "database is locked"),
    "stock.count": (sqlalchemy.exc.TimeoutError, "QueuePool limit"),
    "price.quote": (urllib.error.HTTPError, "429"),
    "tax.calculate": (urllib.error.HTTPError, "503"),
    "route.plan": (urllib.error.HTTPError, "502"),
    "address.verify": (urllib.error.HTTPError, "504"),
    "fraud.check": (urllib.error.HTTPError, "401"),
    "partner.sync": (urllib.error.HTTPError, "403"),
    "fulfilment.release": (TokenExpired, "expired"),
    "journal.append": (sqlite3.OperationalError, "full"),
    "invoice.archive": (OSError, "No space left on device|directory"),
    "price.update": (handlers.StaleRead, "version conflict"),
    "stock.recheck": (handlers.TryLater, None),
    "return.inspect": (handlers.NotMine, None),
}


@pytest.mark.parametrize("order_type", FAILURES)
def test_broken_shop_really_fails_and_repaired_shop_works(order_type: str, broken: Shop, repaired: Shop) -> None:
    error, text = FAILURES[order_type]

    with pytest.raises(error, match=text):
        handlers.HANDLERS[order_type](dict(AN_ORDER), broken)
    handlers.HANDLERS[order_type](dict(AN_ORDER), repaired)


@pytest.mark.parametrize(
    ("order_type", "change", "error"),
    [
        pytest.param("carrier.book", {}, urllib.error.HTTPError, id="the carrier is still down"),
        pytest.param("coupon.redeem", {}, urllib.error.HTTPError, id="no such coupon"),
        pytest.param("invoice.create", {"currency": "CHF"}, KeyError, id="a currency without a rate"),
        pytest.param("order.discount", {"loyalty": None}, TypeError, id="None where a level was expected"),
        pytest.param("stock.recheck", {"shelf": None}, AttributeError, id="stock on no shelf"),
        pytest.param("order.configure", {"items": [{"sku": "SKU-9999"}]}, LookupError, id="nobody sells it"),
        pytest.param("customer.update", {"customer_id": 9}, handlers.CustomerNotFound, id="no such customer"),
        pytest.param("order.placed", {"customer_id": 9}, sqlite3.IntegrityError, id="foreign key"),
        pytest.param("offer.accept", {}, handlers.OfferExpired, id="an old offer"),
    ],
)
def test_some_things_no_repair_of_the_services_mends(
    order_type: str, change: dict[str, object], error: type[Exception], repaired: Shop
) -> None:
    with pytest.raises(error):
        handlers.HANDLERS[order_type](AN_ORDER | change, repaired)


def test_too_large_for_the_printer(repaired: Shop) -> None:
    with pytest.raises(urllib.error.HTTPError, match="413"):
        handlers.HANDLERS["document.print"](AN_ORDER | {"document": "x" * 300_000}, repaired)


def test_the_error_text_is_the_traceback_cut_to_a_bound() -> None:
    try:
        raise ValueError("x" * 50_000)
    except ValueError as error:
        text = consumer.error_text(error)

    assert text.startswith("Traceback (most recent call last):")
    assert text.endswith("xxx")
    assert len(text) <= consumer.MAX_ERROR_CHARACTERS + 30


def test_the_error_text_holds_nothing_that_sqs_refuses() -> None:
    assert "\x1b" not in consumer.error_text(ValueError("\x1b[31m\x00"))


@pytest.mark.parametrize("count", [5, 8, 9, 10])
def test_a_dead_letter_keeps_its_id_and_our_marks_whatever_the_room(count: int) -> None:
    tracking = {name: orders.text_attribute("1") for name in ("x-redrive-id", "x-redrive-attempt")}
    business = {name: orders.text_attribute(name) for name in ("message_id", "trace", "sent-by")}
    filler = {f"field-{n}": orders.text_attribute("x") for n in range(count - 5)}
    before = business | filler | tracking

    after = consumer.with_error(before, ValueError("no"))

    assert len(after) <= 10
    assert after["error"]["StringValue"].endswith("ValueError: no")
    assert {"message_id", *tracking, *filler} <= set(after)


def test_an_error_of_an_earlier_failure_is_replaced() -> None:
    again = consumer.with_error(
        {"message_id": orders.text_attribute("m"), "error": orders.text_attribute("old")}, ValueError("new")
    )

    assert again["error"]["StringValue"] == "ValueError: new"


@pytest.mark.parametrize(
    "endpoint",
    ["https://sqs.us-east-1.amazonaws.com", "http://10.0.0.1:4566", "http://127.0.0.1.example.com", "sqs"],
)
def test_demo_traffic_never_leaves_the_machine(endpoint: str) -> None:
    with pytest.raises(UsageError, match="only sends to this machine"):
        world.make_queues(endpoint)


def test_no_space_is_a_real_errno(broken: Shop) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(OSError, match="No space") as caught:
        handlers.HANDLERS["invoice.archive"](dict(AN_ORDER), broken)
    assert caught.value.errno == errno.ENOSPC
