"""The demo's consumer: one handler per kind of order, written the way such consumers are written.

A handler returns when the work is done and raises when it isn't. What happens then:

* most failures: the consumer sends a copy to the dead-letter queue with the traceback in the attribute
  ``error`` and deletes the original;
* "try later": the consumer sends a copy to the delay queue;
* "not mine": it gives the message back at once, and after a few rounds the queue's own redrive policy
  dead-letters it, without a word about why;
* too slow: the work is finished and recorded, but the visibility timeout has run out in between, and the
  queue has dead-lettered a message that was processed.
"""

import base64
import json
import smtplib
import sqlite3
import threading
import time
import traceback
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import sqlalchemy

from redrive.dev.demo.orders import Attributes, text_attribute
from redrive.dev.demo.services import SKUS, Shop
from redrive.dev.demo.world import DEAD, DELAY, ORDERS, Queues

Order = dict[str, Any]
Handler = Callable[[Order, Shop], None]

ERROR_ATTRIBUTE = "error"
MAX_ATTRIBUTES = 10
MAX_ERROR_CHARACTERS = 3000
#: Dropped first when the error text needs the room; everything else is business, or somebody's tracking.
EXPENDABLE = ("trace", "sent-by")
TAX_RATES = {"EUR": Decimal("0.19"), "SEK": Decimal("0.25")}


class TryLater(Exception):
    """The order can't be handled yet, and nobody is to blame."""


class NotMine(Exception):
    """Another consumer of this queue is meant to take it."""


class NoHandler(LookupError):
    """Nobody here knows this type of order."""


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


# --- one handler per kind of order ------------------------------------------------------------------------


@handles("order.placed")
def place_order(order: Order, shop: Shop) -> None:
    for required in ("order_id", "customer_id", "items"):
        if required not in order:
            raise InvalidOrder(f"required field {required!r} is missing")
    with shop.orders() as database:
        database.execute("insert into orders values (?, ?, ?)", (order["order_id"], order["customer_id"], _now()))


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
    order["inspected_at"] = _now()


# --- the consumer around them -----------------------------------------------------------------------------


class Consumer:
    """Takes messages from ``orders`` with a pool of threads until the queue is empty."""

    def __init__(self, queues: Queues, shop: Shop, *, workers: int = 64) -> None:
        self.queues = queues
        self.shop = shop
        #: What became of deliveries: processed, dead_lettered, delayed, given_back, abandoned.
        self.tally: Counter[str] = Counter()
        self._workers = workers
        self._free = threading.Semaphore(workers)
        self._busy = 0
        self._lock = threading.Lock()
        self._killed = threading.Event()

    def work_off(self, *, patience: float, limit: float) -> Counter[str]:
        """Consume until ``orders`` is empty, wait ``patience`` seconds for stragglers, then stop.

        Gives up after ``limit`` seconds in any case. Returns the tally.
        """
        deadline = time.monotonic() + limit
        self._consume(
            lambda taken: time.monotonic() < deadline and bool(taken or self.queues.counts(ORDERS).total),
            lambda: min(deadline, time.monotonic() + patience),
        )
        return self.tally

    def run(self, stop: threading.Event) -> None:
        """Consume until ``stop`` is set."""
        self._consume(lambda _taken: not stop.is_set(), time.monotonic)

    def _consume(self, goes_on: Callable[[int], bool], until: Callable[[], float]) -> None:
        """Take messages while ``goes_on(how many came last)``, then wait for stragglers ``until`` a moment.

        Whoever still works then is killed in the middle, as a deployment does it: neither deleted nor
        dead-lettered.
        """
        with ThreadPoolExecutor(self._workers, thread_name_prefix="order-consumer") as pool:
            try:
                while goes_on(self._take_some(pool)):
                    pass
                deadline = until()
                while self._busy and time.monotonic() < deadline:
                    time.sleep(0.05)
            finally:
                self._killed.set()
                self.tally["abandoned"] += self._busy
                if self._busy:
                    # Nothing but closing their connections wakes threads that wait without a timeout.
                    self.shop.hang_up()

    def _take_some(self, pool: ThreadPoolExecutor) -> int:
        """Receive as many messages as there are idle workers, so none waits here under its lease."""
        self._free.acquire()
        slots = 1
        while slots < 10 and self._free.acquire(blocking=False):
            slots += 1
        messages = self.queues.client.receive_message(
            QueueUrl=self.queues.url(ORDERS),
            MaxNumberOfMessages=slots,
            WaitTimeSeconds=1,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        ).get("Messages", [])
        for _ in range(slots - len(messages)):
            self._free.release()
        for message in messages:
            with self._lock:
                self._busy += 1
            pool.submit(self._handle, message)
        return len(messages)

    def _handle(self, message: dict[str, Any]) -> None:
        try:
            outcome = self._outcome(message)
            with self._lock:
                self.tally[outcome] += 1
        finally:
            with self._lock:
                self._busy -= 1
            self._free.release()

    def _outcome(self, message: dict[str, Any]) -> str:
        client, url = self.queues.client, self.queues.url(ORDERS)
        receipt = message["ReceiptHandle"]
        attributes: Attributes = message.get("MessageAttributes", {})
        try:
            order = json.loads(message["Body"])
            handler = HANDLERS.get(order.get("type"))
            if handler is None:
                raise NoHandler(f"no handler registered for order type '{order.get('type')}'")
            handler(order, self.shop)
            self._record(order, attributes)
        except NotMine:
            client.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0)
            return "given_back"
        except TryLater:
            self._forward(DELAY, message, attributes)
            return "delayed"
        except Exception as error:  # whatever it was: say so, and keep the queue moving
            if self._killed.is_set():
                return "killed"
            self._forward(DEAD, message, with_error(attributes, error))
            return "dead_lettered"
        # Too late for a message whose visibility ran out: the receipt is no longer good, and the queue
        # answers as if it were.
        client.delete_message(QueueUrl=url, ReceiptHandle=receipt)
        return "processed"

    def _record(self, order: Order, attributes: Attributes) -> None:
        with self.shop.orders() as database:
            message_id, now = attributes["message_id"]["StringValue"], _now()
            database.execute("insert into work_log values (?, ?)", (message_id, now))
            database.execute(
                "insert or ignore into processed values (?, ?, ?, ?)",
                (message_id, order["order_id"], order["type"], now),
            )

    def _forward(self, queue: str, message: dict[str, Any], attributes: Attributes) -> None:
        """Send a copy, and only then delete the original."""
        trace = message.get("Attributes", {}).get("AWSTraceHeader")
        system = {"AWSTraceHeader": text_attribute(trace)} if trace else {}
        self.queues.client.send_message(
            QueueUrl=self.queues.url(queue),
            MessageBody=message["Body"],
            MessageAttributes=attributes,
            MessageSystemAttributes=system,
        )
        self.queues.client.delete_message(QueueUrl=self.queues.url(ORDERS), ReceiptHandle=message["ReceiptHandle"])


def with_error(attributes: Attributes, error: BaseException) -> Attributes:
    """``attributes`` and the error's traceback, in the ten that SQS allows.

    The message id and whatever somebody tracks the message by (``x-…``) stay; ``trace`` and ``sent-by`` go
    first where there is no room. With no room even so, the error text is left out.
    """
    kept = {name: value for name, value in attributes.items() if name != ERROR_ATTRIBUTE}
    for name in EXPENDABLE:
        if len(kept) >= MAX_ATTRIBUTES:
            kept.pop(name, None)
    if len(kept) < MAX_ATTRIBUTES:
        kept[ERROR_ATTRIBUTE] = text_attribute(error_text(error))
    return kept


def error_text(error: BaseException) -> str:
    """The traceback, cut in the middle if it is long, without characters that SQS refuses."""
    text = "".join(traceback.format_exception(error)).strip()
    if len(text) > MAX_ERROR_CHARACTERS:
        head = MAX_ERROR_CHARACTERS // 3
        text = f"{text[:head]}\n  ... cut ...\n{text[head - MAX_ERROR_CHARACTERS :]}"
    return "".join(c if c >= " " or c in "\t\n\r" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _post(url: str, order: Order, *, timeout: float | None = 2.0) -> None:
    request = urllib.request.Request(  # noqa: S310  the shop's own loopback addresses
        url, data=json.dumps(order).encode(), headers={"Content-Type": "application/json"}, method="POST"
    )
    # A proxy of the user's has no business with loopback traffic.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=timeout) as answer:
        answer.read()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
