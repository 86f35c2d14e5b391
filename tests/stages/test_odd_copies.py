"""Copies that Arrow can't take as they came: staged as far as possible, and never in the way of others."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from redrive.ledger.dialects import postgresql
from redrive.ledger.engine import parse_instant
from redrive.message import DeadLetter, Header
from redrive.staging import batch_columns, odd_copies
from tests.workshop import REFUSED, Workshop, micros

OTHERS = (Header("x-redrive-id", "String", "of-another"), Header("x-redrive-attempt", "Number", "2"))
HALF = "\ud83d"  # of a surrogate pair: no UTF-8 can hold it

ODD: dict[str, dict[str, Any]] = {
    "a count beyond 32 bits": {"deliveries": 2**40},
    "a count beyond 64 bits": {"deliveries": 2**70},
    "a count that is None": {"deliveries": None},
    "a count that is a text": {"deliveries": "\u00b2"},
    "a time beyond the year 9999": {"enqueued_at": 2**62},
    "a time beyond 64 bits": {"dead_lettered_at": 2**80},
    "a time that is a float": {"first_received_at": float("nan")},
    "a header that is a number": {"headers": (Header("n", "int", 7), Header("error", "String", REFUSED))},  # type: ignore[arg-type]
    "headers that are none": {"headers": None},
    "a header without a value": {"headers": (("n", "String"),)},
    "a header without a name": {"headers": (Header(None, "String", "x"), *OTHERS)},  # type: ignore[arg-type]
    "a header without a type": {"headers": (Header("n", None, "x"), *OTHERS)},  # type: ignore[arg-type]
    "a header whose name is bytes": {"headers": (Header(b"n", "String", "x"), *OTHERS)},  # type: ignore[arg-type]
    "half of a character in a header": {"headers": (Header("tenant", "String", HALF),)},
    "half of a character in a header's name": {"headers": (Header(HALF, "String", "x"),)},
    "a mark of ours that is a number": {"headers": (Header("x-redrive-id", "String", 7),)},  # type: ignore[arg-type]
    "a property that is a number": {"properties": (("a", 1),)},
    "a property that is None": {"properties": (("a", None),)},
    "a property without a name": {"properties": ((None, "a"),)},
    "a property that is bytes": {"properties": (("a", b"a"),)},
    "a property of three": {"properties": (("a", "b", "c"),)},
    "half of a character in a property": {"properties": (("a", HALF),)},
    "half of a character in an id": {"broker_message_id": HALF},
    "half of a character in an origin": {"origin": HALF},
    "half of a character in a key": {"ordering_key": HALF},
    "half of a character in a content type": {"content_type": HALF},
    "half of a character in a reason": {"reason": HALF},
    "half of a character in a description": {"description": HALF},
    "an origin that could be a text": {"origin": b"orders"},
    "a content type that could be a text": {"content_type": b"text/plain"},
    "an origin that is a number": {"origin": 7},
    "an origin that is bytes": {"origin": b"\xff"},
    "an origin that is a list": {"origin": ["orders"]},
    "a body that is a text": {"body": "odd"},
    "a body that can change": {"body": bytearray(b"odd")},
    "an id that is a number": {"broker_message_id": 7},
    "an id that is none": {"broker_message_id": None},
    "a time that is a truth": {"enqueued_at": True},
    "a text that is no text": {"description": object()},
    "a flag that is a word": {"redelivered": "yes"},
}


SOURCE = {"queue": "orders-dlq", "kind": "dead_letter", "lease": "2s", "max_deliveries": 3, "origins": ["orders"]}
ROUTES: dict[str, dict[str, Any]] = {
    "to one destination": {},
    "back to the origin": {"destination": None, "sources": [SOURCE]},
}


@pytest.fixture(params=ROUTES.values(), ids=ROUTES.keys())
def workshop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path, **request.param)
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
    # Where messages go back, those of an origin lie together.
    rows = sorted(pq.read_table(file).to_pylist(), key=lambda row: [b"before", b"odd", b"after"].index(row["body"]))
    (name,) = fields
    noted = [[p["value"] for p in row["properties"] if p["name"] == odd_copies.CHANGED] for row in rows]
    assert noted == [[], [name], []]
    assert workshop.audit() == []


def test_what_could_not_be_converted_is_all_that_changes() -> None:
    whole = DeadLetter("id", b"\x00\xff", (Header("a", "String", "1"), Header("b", "Binary", b"\xff")), (("p", "q"),),
                       1, 2, 3, 4, "origin", "key", "text/plain", "reason", "description", True)  # fmt: skip
    found = odd_copies.as_far_as_possible(whole._replace(deliveries=2**40))
    assert found == whole._replace(deliveries=2**31 - 1, properties=(("p", "q"), (odd_copies.CHANGED, "deliveries")))


def test_what_only_looks_odd_is_not_told_as_changed() -> None:
    class Word(str):
        pass

    letter = DeadLetter("id", b"b", (Header(Word("a"), Word("String"), Word("1")), Header("b", "Binary", b"\xff")))
    assert odd_copies.as_far_as_possible(letter) == letter


def test_bytes_in_another_form_are_kept_as_bytes() -> None:
    letter = DeadLetter("id", b"b", (Header("a", "Binary", bytearray(b"\xff")),))  # type: ignore[arg-type]
    assert odd_copies.as_far_as_possible(letter).headers == (Header("a", "Binary", b"\xff"),)


@pytest.mark.parametrize("odd", [Header(None, "String", "x"), Header("n", None, "x")])  # type: ignore[arg-type]
def test_a_file_that_was_staged_with_headers_without_a_name_or_a_type_is_loaded_and_sent(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, odd: Header
) -> None:
    """Arrow takes None for a text, and for a time we let it."""
    workshop.die("before", "odd", "after")
    hand_out(workshop, monkeypatch, headers=(odd, *OTHERS), properties=((None, None),))
    monkeypatch.setattr(batch_columns, "_texts", batch_columns._strings)
    workshop.cycle()
    assert workshop.query("select count(*) from messages") == [(3,)]
    (arrived,) = [one for one in workshop.world.peek("orders") if one.body == b"odd"]
    assert arrived.headers[0] == (odd.name or "", odd.type or "", "x")
    assert workshop.audit() == []


def test_the_moments_of_a_copy_are_kept_to_the_microsecond_whatever_zone_a_session_is_in(
    ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool between us and the server may drop what a session is told as it begins."""
    monkeypatch.setattr(postgresql, "_SESSION", postgresql._SESSION.replace("UTC", "Asia/Kolkata"))
    workshop = Workshop(tmp_path, ledger_url)
    moments = [workshop.time.now - 3_600_000_000 + n for n in (0, 1, 999_999)]
    for number, moment in enumerate(moments):
        workshop.die(f"m{number}", enqueued_at=moment, dead_lettered_at=moment + 7)
    workshop.die("m3", dead_lettered_at=None)
    workshop.cycle()
    rows = workshop.query("select first_enqueued_at, dead_lettered_at from messages order by message_id")
    told = [tuple(micros(at) if (at := parse_instant(value)) else None for value in row) for row in rows]
    assert told[:3] == [(moment, moment + 7) for moment in moments]
    assert told[3][1] is None
    workshop.ledger.close()
