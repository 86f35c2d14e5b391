"""The demo's producer: a day of a shop's order messages, the odd ones included.

What goes wrong with a message is decided by what it asks for and by the state of the shop, never here:
this module only writes business messages. The same seed gives the same messages.
"""

import base64
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from redrive.dev.demo import services
from redrive.dev.demo.world import ORDERS, Queues

Attributes = dict[str, dict[str, Any]]
Body = dict[str, Any]

DEFAULT_MESSAGES = 440
MAX_BATCH_BYTES = 900_000  # SQS takes 1 MiB per request, attributes included
NAMES = ("Ana Lindqvist", "Bo Adeyemi", "Chen Wei", "Dara O'Neill", "Émile Žák", "渡辺 さくら", "Zoë 🦄 Park")
HOSTILE = (
    "<script>alert('x')</script>",
    "{{ 7 * 7 }} ${jndi:ldap://127.0.0.1/x} %s%n",
    "'; drop table orders; --",
    "\x1b[31mred\x1b[0m \x07 \x00",
    "[bold red]markup[/bold red] \u202ereversed",
)


@dataclass(frozen=True, slots=True)
class OrderMessage:
    """One message as the producer sends it; ``trace`` is the AWS trace header, "" for none."""

    body: str
    attributes: Attributes = field(default_factory=dict)
    trace: str = ""

    @property
    def message_id(self) -> str:
        return str(self.attributes["message_id"]["StringValue"])

    def size(self) -> int:
        """Bytes as SQS counts them, roughly: the body and every attribute's name, type and value."""
        return len(self.body.encode()) + sum(
            len(name) + len(value["DataType"]) + len(value.get("StringValue", "")) + 64
            for name, value in self.attributes.items()
        )


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of message: the order type, how many of a default day, and what changes the plain order."""

    type: str
    share: int
    change: Callable[[Body, random.Random], Body | str] | None = None
    extra_attributes: int = 0  # beyond the usual five


def make_orders(count: int, seed: int, *, first_number: int = 1000) -> list[OrderMessage]:
    """``count`` messages in a mixed order, at least one of each kind; duplicates come last, as they do.

    Order numbers count up from ``first_number``.
    """
    dice = random.Random(seed)  # noqa: S311  a demo's variety, no secret
    numbered = itertools.count(first_number)
    messages = [
        _message(kind, next(numbered), dice)
        for kind, copies in zip(KINDS, _shares(count), strict=True)
        for _ in range(copies)
    ]
    dice.shuffle(messages)
    return messages + _sent_twice(messages, max(3, count * 12 // DEFAULT_MESSAGES))


def publish(queues: Queues, messages: Sequence[OrderMessage]) -> int:
    """Send everything to ``orders``; returns how many the queue took: all, or it raises."""
    url = queues.url(ORDERS)
    # The embedded server forgets trace headers that come in a batch, so traced messages go alone.
    for message in messages:
        if message.trace:
            queues.client.send_message(
                QueueUrl=url,
                MessageBody=message.body,
                MessageAttributes=message.attributes,
                MessageSystemAttributes={"AWSTraceHeader": text_attribute(message.trace)},
            )
    for batch in _batches([m for m in messages if not m.trace]):
        answer = queues.client.send_message_batch(
            QueueUrl=url,
            Entries=[
                {"Id": str(n), "MessageBody": m.body, "MessageAttributes": m.attributes} for n, m in enumerate(batch)
            ],
        )
        if answer.get("Failed"):
            raise RuntimeError(f"the queue refused {answer['Failed'][0]}")
    return len(messages)


def text_attribute(value: str) -> dict[str, Any]:
    """``value`` as SQS wants a text attribute."""
    return {"DataType": "String", "StringValue": value}


# --- the kinds: what each asks for ------------------------------------------------------------------------


def _without(field_name: str) -> Callable[[Body, random.Random], Body]:
    return lambda order, _: {key: value for key, value in order.items() if key != field_name}


def _with(**changes: Any) -> Callable[[Body, random.Random], Body]:
    return lambda order, _: order | changes


def _not_json(order: Body, dice: random.Random) -> str:
    return dice.choice(
        (
            "order_id=4711;customer=Ana;total=12,50",
            "<order><id>4711</id><total>12.50</total></order>",
            "OK",
            " ",
            f"note for the courier: {dice.choice(HOSTILE[:3])}",
            "GrÃ¼ÃŸe aus MÃ¼nchen, bitte klingeln",  # UTF-8 that somebody read as Latin-1
            json.dumps(order)[: dice.randrange(40, 90)],  # cut off by a field of fixed width
        )
    )


def _latin_1(order: Body, _dice: random.Random) -> Body:
    return order | {"note": base64.b64encode("Grüße, bitte bei Müller klingeln".encode("latin-1")).decode()}


def _document(order: Body, dice: random.Random) -> Body:
    return order | {"document": "".join(dice.choices("abcdefghijklmnop \n", k=64)) * 4800}


def _unknown_customer(order: Body, dice: random.Random) -> Body:
    return order | {"customer_id": dice.randrange(90_000, 99_999)}


def _price(order: Body, dice: random.Random) -> Body:
    return order | {"sku": dice.choice(services.SKUS), "price_version": services.CURRENT_PRICE_VERSION}


def _offer(order: Body, dice: random.Random) -> Body:
    return order | {
        "offer": f"flash-{dice.randrange(100, 999)}",
        "valid_until": f"2024-0{dice.randrange(1, 10)}-28T12:00:00+00:00",
    }


def _hostile(order: Body, dice: random.Random) -> Body:
    nasty = dice.choice(HOSTILE)
    return order | {"type": f"order.{nasty}", "note": nasty * 3}


def _coupon(order: Body, dice: random.Random) -> Body:
    return order | {"coupon": f"{dice.choice(('SUMMER', 'XMAS', 'FRIEND'))}{dice.randrange(10, 99)}"}


def _shelf(order: Body, dice: random.Random) -> Body:
    # One in five is on no shelf, which the code that finally runs does not expect.
    return order | {"shelf": None if dice.random() < 0.2 else f"A{dice.randrange(10, 99)}"}


def _discontinued(order: Body, dice: random.Random) -> Body:
    return order | {"items": [{"sku": f"SKU-{dice.randrange(9000, 9999)}", "quantity": 1}]}


def _nobody(order: Body, dice: random.Random) -> Body:
    return order | {"customer_id": dice.randrange(80_000, 89_999)}


#: ``share`` is the count among DEFAULT_MESSAGES; about a fifth of a bad day goes well.
KINDS: tuple[Kind, ...] = (
    Kind("order.placed", 84),
    Kind("payment.capture", 22),
    Kind("warehouse.reserve", 16),
    Kind("customs.declare", 8),
    Kind("customer.notify", 10),
    Kind("booking.post", 14),
    Kind("stock.count", 8, extra_attributes=4),
    Kind("price.quote", 18),
    Kind("tax.calculate", 16),
    Kind("route.plan", 6),
    Kind("carrier.book", 8),
    Kind("address.verify", 6),
    Kind("fraud.check", 10),
    Kind("partner.sync", 5),
    Kind("coupon.redeem", 8, _coupon),
    Kind("order.placed", 12, _not_json),
    Kind("courier.note", 4, _latin_1),
    Kind("order.placed", 6, _without("customer_id")),
    Kind("order.placed", 4, _without("items")),
    Kind("invoice.create", 8, _with(currency="CHF")),
    Kind("invoice.create", 5, _with(currency="EUR", total=None)),
    Kind("order.discount", 5, _with(loyalty=None)),
    Kind("order.split", 4, _with(parcels=0)),
    Kind("order.first-item", 3, _with(items=[])),
    Kind("customer.update", 10, _unknown_customer),
    Kind("order.configure", 6, _discontinued),
    Kind("order.placed", 5, _nobody),
    Kind("fulfilment.release", 10),
    Kind("document.print", 4, _document),
    Kind("gift-card.v3", 6),
    Kind("order.hostile", 5, _hostile),
    Kind("invoice.archive", 8),
    Kind("journal.append", 6),
    Kind("price.update", 12, _price),
    Kind("offer.accept", 6, _offer),
    Kind("gift.wrap", 12, extra_attributes=5),
    Kind("gift.engrave", 4, extra_attributes=5),
    Kind("return.inspect", 12, extra_attributes=4),
    Kind("stock.recheck", 24, _shelf),
)

EXTRA_ATTRIBUTES: Attributes = {
    "tenant": text_attribute("north"),
    "priority": {"DataType": "Number", "StringValue": "5"},
    "channel": text_attribute("web"),
    "weight": {"DataType": "Number.float", "StringValue": "1.250"},
    "signature": {"DataType": "Binary", "BinaryValue": b"\x00\xff\x10signed"},
}


def _shares(count: int) -> list[int]:
    """How many of each kind: in proportion, at least one, ``count`` in all (or one each, if that is more)."""
    whole = sum(kind.share for kind in KINDS)
    copies = [max(1, kind.share * count // whole) for kind in KINDS]
    # What rounding left over goes to the plain orders; what the minimum of one took comes from them.
    copies[0] = max(1, copies[0] + count - sum(copies))
    return copies


def _message(kind: Kind, number: int, dice: random.Random) -> OrderMessage:
    order: Body = {
        "order_id": f"ord-{number:06d}",
        "type": kind.type,
        "customer_id": dice.choice(services.CUSTOMERS),
        "customer": {"name": dice.choice(NAMES), "email": f"c{dice.randrange(9999)}@example.com"},
        "items": [
            {"sku": dice.choice(services.SKUS), "quantity": dice.randrange(1, 5)} for _ in range(dice.randrange(1, 4))
        ],
        "currency": "EUR",
        "total": f"{dice.randrange(500, 50_000) / 100:.2f}",
        "loyalty": {"level": dice.choice(("silver", "gold"))},
        "parcels": dice.randrange(1, 4),
    }
    changed = kind.change(order, dice) if kind.change else order
    body = changed if isinstance(changed, str) else json.dumps(changed, ensure_ascii=dice.random() < 0.5)
    attributes: Attributes = {
        "message_id": text_attribute(f"m-{number:06d}-{dice.getrandbits(32):08x}"),
        "customer_id": {"DataType": "Number", "StringValue": str(order["customer_id"])},
        "content-type": text_attribute("application/json"),
        "trace": text_attribute(f"00-{dice.getrandbits(128):032x}-{dice.getrandbits(64):016x}-01"),
        "sent-by": text_attribute(f"web-{dice.randrange(1, 4)}"),
    }
    for name in list(EXTRA_ATTRIBUTES)[: kind.extra_attributes]:
        attributes[name] = EXTRA_ATTRIBUTES[name]
    trace = f"Root=1-{dice.getrandbits(32):08x}-{dice.getrandbits(96):024x}" if dice.random() < 0.1 else ""
    return OrderMessage(body, attributes, trace)


def _sent_twice(messages: Sequence[OrderMessage], count: int) -> list[OrderMessage]:
    """Copies of plain orders: a producer that lost the answer and sent again.

    Two of three carry the same message id; the third kind is an import that minted a new one, so only
    the order number gives it away.
    """
    plain = [m for m in messages if _is_plain(m)][:count]
    copies = []
    for n, message in enumerate(plain):
        if n % 3 == 2:
            renamed = message.attributes | {"message_id": text_attribute(f"import-{message.message_id}")}
            copies.append(replace(message, attributes=renamed, trace=""))
        else:
            copies.append(replace(message, trace=""))
    return copies


def _is_plain(message: OrderMessage) -> bool:
    try:
        order = json.loads(message.body)
    except ValueError:
        return False
    return (
        isinstance(order, dict)
        and order.get("type") == "order.placed"
        and order.get("customer_id") in services.CUSTOMERS
        and "items" in order
    )


def _batches(messages: Sequence[OrderMessage]) -> Iterator[list[OrderMessage]]:
    batch: list[OrderMessage] = []
    size = 0
    for message in messages:
        if batch and (len(batch) == 10 or size + message.size() > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += message.size()
    if batch:
        yield batch
