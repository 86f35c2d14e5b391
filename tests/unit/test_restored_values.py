"""What is masked stays locked while people correct the rest, and comes back as it was."""

import json
import re
import time

import pytest

from redrive.redaction import of_rules
from redrive.restored_values import Locked, lock

MASK = of_rules(("email", "card", "$.customer.name", "$.items[*].phone", "$.secret"))
ORDER = (
    '{"order": 12345678901234567890, "customer": {"name": "Kim", "mail": "kim@example.org"},\n'
    ' "items": [{"sku": "A-1", "phone": 4711}, {"sku": "A-2", "phone": {"work": "0815"}}], "price": 1.10}'
)


def locked(text: str) -> Locked:
    found = lock(text, MASK)
    assert found is not None
    return found


def test_every_masked_value_has_a_lock_of_its_own_and_comes_back_byte_for_byte() -> None:
    found = locked(ORDER)
    assert found.values == ('"Kim"', '"kim@example.org"', "4711", '{"work": "0815"}')
    assert json.loads(found.shown)["items"][1]["phone"] == "[redacted 4]"
    assert found.restore(found.shown) == ORDER
    assert found.restore(found.shown.replace("A-1", "B-1")) == ORDER.replace("A-1", "B-1")


def test_a_value_stays_with_what_it_was_moved_with() -> None:
    found = locked('{"items": [{"sku": "A-1", "phone": "1"}, {"sku": "A-2", "phone": "2"}]}')
    turned = '{"items": [{"sku": "A-2", "phone": "[redacted 2]"}, {"sku": "A-1", "phone": "[redacted 1]"}]}'
    assert json.loads(found.restore(turned))["items"] == [{"sku": "A-2", "phone": "2"}, {"sku": "A-1", "phone": "1"}]


@pytest.mark.parametrize(
    "corrected",
    [
        pytest.param('{"order": 1, "customer": {"name": "x"}, "note": "[redacted 1]"}', id="in another place"),
        pytest.param('{"order": 1, "customer": {"name": 1}, "secret2": ["[redacted 1]"]}', id="within another place"),
    ],
)
def test_a_value_that_its_place_masks_comes_back_only_where_it_is_masked(corrected: str) -> None:
    found = locked('{"order": 1, "customer": {"name": "Kim"}}')
    with pytest.raises(ValueError, match="has to stay where it is masked"):
        found.restore(corrected)
    assert json.loads(found.restore('{"customer": {"name": "[redacted 1]"}, "order": 2}'))["customer"]["name"] == "Kim"


def test_a_value_that_looks_like_what_is_masked_may_go_anywhere() -> None:
    found = locked('{"mail": "kim@example.org"}')
    assert (
        found.restore('{"to": ["[redacted 1]", "ben@example.org"]}') == '{"to": ["kim@example.org", "ben@example.org"]}'
    )


@pytest.mark.parametrize(
    ("instead", "why"),
    [
        pytest.param('"Ben"', "[redacted 1] is missing", id="changed"),
        pytest.param('"[redacted 1] [redacted 1]"', "stands there 2 times", id="doubled"),
        pytest.param('"[redacted 1]", "b": "[redacted 9]"', "[redacted 9] stands for nothing", id="made up"),
        pytest.param('"Mr [redacted 1]"', "a value of its own", id="within another"),
    ],
)
def test_what_is_masked_can_not_be_changed(instead: str, why: str) -> None:
    found = locked(ORDER)
    with pytest.raises(ValueError, match=r".*") as refused:
        found.restore(found.shown.replace('"[redacted 1]"', instead))
    assert why in str(refused.value)


def test_of_plain_text_addresses_and_cards_are_locked() -> None:
    text = "pay with 4111 1111 1111 1111, mail kim@example.org, or ben@example.org."
    found = locked(text)
    assert found.shown == "pay with [redacted 1], mail [redacted 2], or [redacted 3]."
    assert found.restore(found.shown.replace("pay", "paid")) == text.replace("pay", "paid")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('to "john doe"@example.com,', ('"john doe"@example.com',)),
        ("j\\u00fcrgen@example.com 4111\u20131111\u20131111\u20131111", (
            "j\\u00fcrgen@example.com", "4111\u20131111\u20131111\u20131111"
        )),
        ('{"a": "4111_1111_1111_1111", "items": [{"ph\\u006fne": 1}]}', ('"4111_1111_1111_1111"', "1")),
        ('{"Message": "\\n{\\"secret\\": \\"x\\"}"}', ('"\\n{\\"secret\\": \\"x\\"}"',)),
    ],
)  # fmt: skip
def test_a_value_in_another_spelling_comes_back_as_it_was_written(text: str, values: tuple[str, ...]) -> None:
    found = locked(text)
    assert found.values == values
    assert found.restore(found.shown) == text


def test_what_is_hidden_since_a_path_has_no_name_comes_back() -> None:
    found = lock('\ufeff [{"name": "Kim", ', of_rules(("$[0]",)))
    assert found is not None
    assert found.shown == "\ufeff [redacted 1]"
    assert found.restore(found.shown) == '\ufeff [{"name": "Kim", '


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"secret": "x", "note": "[redacted 1]"}', id="what looks like a lock"),
        pytest.param('{"secret": "x"', id="cut off"),
        pytest.param("secret=x", id="by its name only"),
        pytest.param('\ufeff{"secret": "x"}', id="behind a byte order mark"),
    ],
)
def test_what_is_not_certain_is_not_locked(text: str) -> None:
    assert lock(text, MASK) is None


def test_nothing_masked_is_shown_however_deep_it_stands() -> None:
    nested = json.dumps({"body": json.dumps({"secret": "Kim"}), "secret": {"a": ["Kim"]}, "Kim@example.org": "Kim"})
    found = lock(nested, of_rules(("email", "$..secret")))
    assert found is not None
    assert "example.org" not in found.shown
    assert found.restore(found.shown) == nested
    deep = "[" * 100_000 + '"kim@example.org"' + "]" * 100_000
    assert lock(deep, MASK) is None or "kim" not in lock(deep, MASK).shown  # type: ignore[union-attr]


def test_a_body_of_which_tens_of_thousands_of_values_are_masked_keeps_nobody_waiting() -> None:
    """It is locked by the server of the page, which does nothing else meanwhile."""
    text = json.dumps([f"secret {number}" for number in range(40_000)])
    started = time.process_time()
    found = lock(text, lambda shown: re.sub(r"secret \d+", "[redacted]", shown))
    assert found is not None
    assert len(found.values) == 40_000
    assert found.restore(found.shown) == text
    assert time.process_time() - started < 5  # a slow case takes a minute


def test_what_is_not_masked_is_as_it_was() -> None:
    assert lock('{"order": 1}', MASK) == Locked('{"order": 1}', (), quoted=False, mask=MASK)
