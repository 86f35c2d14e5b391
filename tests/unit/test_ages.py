"""What is true of the ages of a live queue, and how often it may be looked into."""

from datetime import UTC, datetime, timedelta

import pytest

from redrive.brokers.base import UNKNOWN_DEPTH, Depth
from redrive.ledger.delivery.observations import Oldest
from redrive.stages.ages import UNKNOWN, Ages, ages_of, may_look

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
ONE_HELD = Depth(1, 1, 0)


def message(age: timedelta, *, deliveries: int = 0, seen: timedelta = timedelta(0)) -> Oldest:
    """A message of that age, last seen so long ago."""
    return Oldest(NOW - age, NOW - seen, deliveries)


def ages(
    *seen: Oldest, known: Oldest | None = None, depth: Depth = ONE_HELD, looked: bool = True
) -> tuple[Ages, list[float | None]]:
    found = ages_of(depth, seen if looked else None, known, keep=HOUR, now=NOW)
    hours = [
        None if age is None else age / 3600 for age in (found.oldest_age_seconds, found.oldest_visible_age_seconds)
    ]
    return found, hours


def test_the_oldest_of_what_was_seen_is_the_oldest() -> None:
    found, hours = ages(message(HOUR), message(3 * HOUR), depth=Depth(2, 0, 0))

    assert hours == [3, 3]
    assert (found.oldest_age_method, found.oldest_visible_age_method, found.coverage) == ("sample", "sample", 1.0)


def test_a_poison_message_in_a_consumer_s_hands_keeps_its_age() -> None:
    poison = message(5 * HOUR, deliveries=3, seen=HOUR / 2)
    found, hours = ages(message(HOUR), known=poison)

    assert hours == [5, 1]
    assert (found.oldest_age_method, found.oldest_visible_age_method, found.coverage) == ("ledger", "sample", 0.5)
    assert (found.oldest_enqueued_at, found.oldest_seen_at, found.oldest_deliveries) == tuple(poison)


@pytest.mark.parametrize(
    ("known", "depth"),
    [
        (message(5 * HOUR, deliveries=2, seen=HOUR / 2), Depth(1, 1, 0)),
        (message(5 * HOUR, deliveries=9, seen=HOUR * 1.1), Depth(1, 1, 0)),
        (message(5 * HOUR, deliveries=9, seen=HOUR / 2), Depth(1, 0, 0)),
    ],
    ids=["it was no poison", "nobody saw it for long", "all that is there was seen"],
)
def test_what_is_likely_gone_is_forgotten(known: Oldest, depth: Depth) -> None:
    found, hours = ages(message(HOUR), known=known, depth=depth)

    assert hours == [1, 1]
    assert found.oldest_age_method == "sample"


def test_without_a_look_only_what_is_remembered_is_told() -> None:
    found, hours = ages(known=message(5 * HOUR, deliveries=3, seen=HOUR / 2), looked=False)

    assert hours == [5, None]
    assert (found.oldest_age_method, found.oldest_visible_age_method, found.coverage) == ("ledger", "unknown", None)
    assert ages(looked=False)[0] == UNKNOWN


def test_nothing_is_made_up_where_nothing_was_seen() -> None:
    assert ages(depth=Depth(3, 0, 0))[0] == UNKNOWN._replace(coverage=0.0)
    assert ages(message(HOUR), depth=UNKNOWN_DEPTH)[0].coverage is None


@pytest.mark.parametrize("max_deliveries", [1, 2, 3, 4, 5, 10, 100])
def test_consumers_keep_more_than_half_of_the_deliveries(max_deliveries: int) -> None:
    looks = 0
    while may_look(looks, max_deliveries):
        looks += 1

    assert max_deliveries - looks > max_deliveries / 2
    assert looks > 0 or max_deliveries <= 2
    assert may_look(10_000, None)
