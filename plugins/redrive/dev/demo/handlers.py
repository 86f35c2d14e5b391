"""The shop's work: one handler per kind of order, written the way such handlers are written.

A handler returns when the work is done and raises when it isn't: what the world did to it, what the order lacks,
:class:`TryLater`, or :class:`NotMine`.
"""

import base64
import json
import smtplib
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import sqlalchemy

from redrive.dev.demo.services import SKUS, Shop

Order = dict[str, Any]
Handler = Callable[[Order, Shop], None]

TAX_RATES = {"EUR": Decimal("0.19"), "SEK": Decimal("0.25")}


class TryLater(Exception):
    """The order can't be handled yet, and nobody is to blame."""


class NotMine(Exception):
    """Another consumer of this queue is meant to take it."""


class CustomerNotFound(LookupError):
    """The customer does not exist."""


class NotInCatalogue(LookupError):
    """Nobody sells this."""


class InvalidOrder(ValueError):
    """The order is not what the contract says."""


class OfferExpired(ValueError):
    """The offer was good until a moment that has passed."""


class StaleRead(RuntimeError):
    """A replica has not seen yet what the message speaks of."""


HANDLERS: dict[str, Handler] = {}


def handles(order_type: str) -> Callable[[Handler], Handler]:
    """Register a handler for one type of order."""

    def register(handler: Handler) -> Handler:
        HANDLERS[order_type] = handler
        return handler

    return register


@handles("order.placed")
def place_order(order: Order, shop: Shop) -> None:
    for required in ("order_id", "customer_id", "items"):
        if required not in order:
            raise InvalidOrder(f"required field {required!r} is missing")
    with shop.orders() as database:
        database.execute("insert into orders values (?, ?, ?)", (order["order_id"], order["customer_id"], now()))


@handles("payment.capture")
def capture_payment(order: Order, shop: Shop) -> None:
    _post(f"{shop.payments_url}/payments", order)


@handles("warehouse.reserve")
def reserve_stock(order: Order, shop: Shop) -> None:
    _post(f"{shop.partners_url}/warehouse", order, timeout=0.3)


@handles("stock.recheck")
def recheck_stock(order: Order, shop: Shop) -> None:
    try:
        _post(f"{shop.partners_url}/recheck", order)
    except urllib.error.HTTPError as error:
        if error.code == 425:
            raise TryLater from error
        raise
    order["aisle"] = order["shelf"].upper()[0]


@handles("customs.declare")
def declare_to_customs(order: Order, shop: Shop) -> None:
    _post(f"{shop.customs_url}/customs", order)


@handles("customer.notify")
def notify_customer(order: Order, shop: Shop) -> None:
    if shop.mail_spool is not None:
        with shop.mail_spool.open("a", encoding="utf-8") as spool:
            spool.write(f"{order['customer']['email']}: your order {order['order_id']}\n")
        return
    with smtplib.SMTP(shop.mail_host, 25, timeout=2) as mail:
        mail.sendmail("shop@example.com", order["customer"]["email"], f"Your order {order['order_id']}")


@handles("booking.post")
def post_booking(order: Order, shop: Shop) -> None:
    with closing(sqlite3.connect(shop.bookings_db, timeout=0.1)) as books, books:
        books.execute("insert into bookings values (?, ?)", (order["order_id"], order["total"]))


@handles("stock.count")
def count_stock(_order: Order, shop: Shop) -> None:
    with shop.pool.connect() as connection:
        connection.execute(sqlalchemy.text("select count(*) from orders"))


@handles("price.quote")
def quote_price(order: Order, shop: Shop) -> None:
    _post(f"{shop.partners_url}/quotes", order)


@handles("tax.calculate")
def calculate_tax(order: Order, shop: Shop) -> None:
    _post(f"{shop.partners_url}/tax", order)


@handles("route.plan")
def plan_route(order: Order, shop: Shop) -> None:
    _post(f"{shop.partners_url}/routes", order)


@handles("carrier.book")
def book_carrier(order: Order, shop: Shop) -> None:
    _post(f"{shop.partners_url}/carrier", order)


@handles("address.verify")
def verify_address(order: Order, shop: Shop) -> None:
    _post(f"{shop.partners_url}/addresses", order)


@handles("fraud.check")
def check_fraud(order: Order, shop: Shop) -> None:
    _post(f"{shop.partners_url}/fraud", order)


@handles("partner.sync")
def sync_partner(order: Order, shop: Shop) -> None:
    _post(f"{shop.partners_url}/partners", order)


@handles("coupon.redeem")
def redeem_coupon(order: Order, shop: Shop) -> None:
    _post(f"{shop.partners_url}/coupons?{order['coupon']}", order)


@handles("courier.note")
def print_courier_note(order: Order, _shop: Shop) -> None:
    base64.b64decode(order["note"]).decode("utf-8")


@handles("invoice.create")
def create_invoice(order: Order, _shop: Shop) -> None:
    rate = TAX_RATES[order["currency"]]
    Decimal(order["total"]) * rate


@handles("order.discount")
def apply_discount(order: Order, _shop: Shop) -> None:
    if order["loyalty"]["level"] == "gold":
        order["discount"] = "0.05"


@handles("order.split")
def split_order(order: Order, _shop: Shop) -> None:
    order["items_per_parcel"] = len(order["items"]) / order["parcels"]


@handles("order.first-item")
def pick_first_item(order: Order, _shop: Shop) -> None:
    order["first"] = order["items"][0]


@handles("customer.update")
def update_customer(order: Order, shop: Shop) -> None:
    with shop.orders() as database:
        changed = database.execute(
            "update customers set name = ? where customer_id = ?",
            (order["customer"]["name"], order["customer_id"]),
        )
        if changed.rowcount == 0:
            raise CustomerNotFound(f"customer {order['customer_id']} not found")


@handles("order.configure")
def configure_order(order: Order, _shop: Shop) -> None:
    for item in order["items"]:
        if item["sku"] not in SKUS:
            raise NotInCatalogue(f"SKU {item['sku']} not in catalogue")


@handles("fulfilment.release")
def release_order(order: Order, shop: Shop) -> None:
    shop.release_order(order["order_id"])


@handles("document.print")
def print_document(order: Order, shop: Shop) -> None:
    _post(f"{shop.partners_url}/print", order)


@handles("invoice.archive")
def archive_invoice(order: Order, shop: Shop) -> None:
    with shop.archive_file.open("ab", buffering=0) as archive:
        archive.write(json.dumps(order).encode() + b"\n")


@handles("journal.append")
def append_to_journal(order: Order, shop: Shop) -> None:
    with closing(sqlite3.connect(shop.journal_db, timeout=10)) as journal, journal:
        journal.execute(f"pragma max_page_count = {shop.journal_pages:d}")
        journal.execute("insert into journal values (?)", (json.dumps(order) * 20,))


@handles("price.update")
def update_price(order: Order, shop: Shop) -> None:
    with closing(sqlite3.connect(shop.replica_db, timeout=10)) as replica:
        (version,) = replica.execute("select version from prices where sku = ?", (order["sku"],)).fetchone()
    if version < order["price_version"]:
        raise StaleRead(
            f"version conflict: replica has {order['sku']} at version {version}, expected {order['price_version']}"
        )


@handles("offer.accept")
def accept_offer(order: Order, _shop: Shop) -> None:
    if datetime.fromisoformat(order["valid_until"]) < datetime.now(UTC):
        raise OfferExpired(f"offer {order['offer']} expired at {order['valid_until']}")


@handles("gift.wrap")
def wrap_gift(order: Order, shop: Shop) -> None:
    _post(f"{shop.partners_url}/giftwrap", order, timeout=None)


@handles("gift.engrave")
def engrave_gift(order: Order, shop: Shop) -> None:
    _post(f"{shop.partners_url}/engraving", order, timeout=None)


@handles("return.inspect")
def inspect_return(order: Order, shop: Shop) -> None:
    if not shop.returns_desk_open:
        raise NotMine
    order["inspected_at"] = now()


def _post(url: str, order: Order, *, timeout: float | None = 2.0) -> None:
    request = urllib.request.Request(  # noqa: S310  the shop's own loopback addresses
        url, data=json.dumps(order).encode(), headers={"Content-Type": "application/json"}, method="POST"
    )
    # A proxy of the user's has no business with loopback traffic.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=timeout) as answer:
        answer.read()


def now() -> str:
    """This moment as the shop writes it down."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
