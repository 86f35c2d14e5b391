"""What a run is limited to: how it is written, how it travels, and what it refuses to guess."""

import json
from datetime import UTC, datetime

import pytest

from redrive.errors import UsageError
from redrive.ledger.selecting import Selection, parse_attributes

WHOLE = Selection(
    limit=5,
    causes=("throttled",),
    groups=(7, 8),
    since=datetime(2026, 11, 20, 6, tzinfo=UTC),
    until=datetime(2026, 11, 21, 6, tzinfo=UTC),
    sources=("orders-dlq",),
    attributes=(("tenant", "acme"), ("tenant", "umbrella"), ("region", "eu")),
)


def test_a_selection_survives_the_trip_between_tasks() -> None:
    assert Selection.from_json(json.loads(json.dumps(WHOLE.to_json()))) == WHOLE
    assert Selection.from_json({}) == Selection(), "as runs of an older version wrote it"


def test_attributes_are_written_as_name_and_value() -> None:
    assert parse_attributes(["tenant=acme", "note=a=b", "empty="]) == (
        ("tenant", "acme"),
        ("note", "a=b"),
        ("empty", ""),
    )
    for nonsense in ("tenant", "=acme", ""):
        with pytest.raises(UsageError, match="NAME=VALUE"):
            parse_attributes([nonsense])


def test_values_of_one_name_are_alternatives() -> None:
    assert WHOLE.wanted_attributes() == {"tenant": {"acme", "umbrella"}, "region": {"eu"}}


def test_a_source_that_the_route_does_not_drain_is_wrong_use() -> None:
    WHOLE.refuse_unknown_sources(["orders-dlq", "orders-delay"])
    with pytest.raises(UsageError, match="orders-dlq: the route doesn't drain it; it drains invoices-dlq"):
        WHOLE.refuse_unknown_sources(["invoices-dlq"])


def test_attributes_are_never_left_out_in_silence() -> None:
    with pytest.raises(ValueError, match="attributes"):
        WHOLE.where()
    assert "wanted" in WHOLE.only([1, 2]).where()[0]
    assert "wanted" not in WHOLE.without_attributes().where()[0]
