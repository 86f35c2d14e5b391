"""The demo's producer: the same day again for the same seed, and nothing that SQS would refuse."""

import json
import re
from collections import Counter

import pytest

from redrive.dev.demo import orders

#: XML 1.0's characters, which are all that a real queue takes.
REFUSED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


@pytest.fixture(scope="module")
def day() -> list[orders.OrderMessage]:
    return orders.make_orders(orders.DEFAULT_MESSAGES, seed=7)


def type_of(message: orders.OrderMessage) -> str | None:
    try:
        order = json.loads(message.body)
    except ValueError:
        return None
    return order.get("type")


def test_same_seed_gives_the_same_day(day: list[orders.OrderMessage]) -> None:
    assert orders.make_orders(orders.DEFAULT_MESSAGES, seed=7) == day
    assert orders.make_orders(orders.DEFAULT_MESSAGES, seed=8) != day


def test_another_day_of_the_same_seed_has_other_orders(day: list[orders.OrderMessage]) -> None:
    later = orders.make_orders(orders.DEFAULT_MESSAGES, seed=7, first_number=100_000)

    assert not {m.message_id for m in later} & {m.message_id for m in day}


@pytest.mark.parametrize("count", [60, 200, 440, 1000])
def test_every_kind_occurs_whatever_the_count(count: int) -> None:
    made = orders.make_orders(count, seed=1)
    wanted = {kind.type for kind in orders.KINDS} - {"order.hostile"}  # its type is the hostile text

    assert wanted <= {type_of(m) for m in made}
    assert any((type_of(m) or "").startswith("order.") and "order.placed" not in m.body for m in made)
    assert count <= len(made) <= count * 1.05 + 3


def test_nothing_is_sent_that_sqs_refuses(day: list[orders.OrderMessage]) -> None:
    for message in day:
        assert message.body
        assert not REFUSED.search(message.body)
        assert len(message.attributes) <= 10
        assert message.size() <= 1_048_576
        assert not any(REFUSED.search(a.get("StringValue", "")) for a in message.attributes.values())


def test_the_odd_ones_are_there(day: list[orders.OrderMessage]) -> None:
    assert {5, 9, 10} <= {len(m.attributes) for m in day}
    assert max(m.size() for m in day) > 300 * 1024
    assert min(len(m.body.strip()) for m in day) == 0
    assert sum(type_of(m) is None for m in day) >= 10
    assert any("🦄" in m.body for m in day)
    assert any("\\u001b[31m" in m.body for m in day)


def test_some_orders_are_sent_twice_and_some_of_those_under_a_new_id(day: list[orders.OrderMessage]) -> None:
    ids = Counter(m.message_id for m in day)
    bodies = Counter(m.body for m in day if type_of(m) == "order.placed")

    assert sum(n == 2 for n in ids.values()) >= 4
    assert sum(n == 2 for n in bodies.values()) > sum(n == 2 for n in ids.values())


def test_batches_fit_into_one_request_each(day: list[orders.OrderMessage]) -> None:
    batches = list(orders._batches(day))

    assert [m for batch in batches for m in batch] == day
    assert all(len(batch) <= 10 for batch in batches)
    assert all(sum(m.size() for m in batch) <= 1_000_000 for batch in batches)
