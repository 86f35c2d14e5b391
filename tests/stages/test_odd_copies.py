"""Copies that Arrow can't take as they came: staged as far as possible, and never in the way of others."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from redrive.message import DeadLetter, Header
from redrive.staging import odd_copies
from tests.workshop import REFUSED, Workshop

ODD: dict[str, dict[str, Any]] = {
    "a count beyond 32 bits": {"deliveries": 2**40},
    "a count beyond 64 bits": {"deliveries": 2**70},
    "a count that is a text": {"deliveries": "\u00b2"},
    "a time beyond the year 9999": {"enqueued_at": 2**62},
    "a time beyond 64 bits": {"dead_lettered_at": 2**80},
    "a time that is a float": {"first_received_at": float("nan")},
    "a header that is a number": {"headers": (Header("n", "int", 7), Header("error", "String", REFUSED))},  # type: ignore[arg-type]
    "a property that is a number": {"properties": (("a", 1),)},
    "an origin that is a number": {"origin": 7},
    "a body that is a text": {"body": "odd"},
    "a body that can change": {"body": bytearray(b"odd")},
    "an id that is a number": {"broker_message_id": 7},
    "a text that is no text": {"description": object()},
    "a flag that is a word": {"redelivered": "yes"},
}


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path)
    yield workshop
    workshop.ledger.close()


def hand_out(workshop: Workshop, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """The adapter hands the copy with body ``odd`` over with these fields."""
    receive = workshop.broker.receive

    def changed(*args: Any, **options: Any) -> Any:
        return [
            one._replace(letter=one.letter._replace(**fields)) if one.letter.body == b"odd" else one
            for one in receive(*args, **options)
        ]

    monkeypatch.setattr(workshop.broker, "receive", changed)


@pytest.mark.parametrize("fields", ODD.values(), ids=ODD.keys())
def test_a_copy_with_odd_values_is_staged_as_far_as_possible(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    workshop.die("before", "odd", "after")
    hand_out(workshop, monkeypatch, **fields)
    workshop.cycle()
    assert workshop.bodies("orders-dlq") == []
    assert workshop.query("select count(*) from messages") == [(3,)]
    assert {b"before", b"after"} <= set(workshop.bodies("orders"))
    (file,) = Path(workshop.settings.staging).rglob("*.parquet")
    rows = pq.read_table(file).to_pylist()
    assert [row["body"] for row in rows] == [b"before", b"odd", b"after"]
    (name,) = fields
    noted = [[p["value"] for p in row["properties"] if p["name"] == odd_copies.CHANGED] for row in rows]
    assert noted == [[], [name], []]
    assert workshop.audit() == []


def test_what_could_not_be_converted_is_all_that_changes() -> None:
    whole = DeadLetter("id", b"\x00\xff", (Header("a", "String", "1"), Header("b", "Binary", b"\xff")), (("p", "q"),),
                       1, 2, 3, 4, "origin", "key", "text/plain", "reason", "description", True)  # fmt: skip
    found = odd_copies.as_far_as_possible(whole._replace(deliveries=2**40))
    assert found == whole._replace(deliveries=2**31 - 1, properties=(("p", "q"), (odd_copies.CHANGED, "deliveries")))
