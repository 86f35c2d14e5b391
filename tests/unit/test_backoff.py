"""Backoff grows to its cap; the jitter below it is even, and the same whenever it is computed."""

import itertools
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.policy import backoff

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(("number", "seconds"), [(1, 60), (2, 120), (3, 240), (7, 3600), (60, 3600), (100_000, 3600)])
def test_the_cap_grows_by_its_factor_up_to_the_longest(number: int, seconds: int) -> None:
    cap = backoff.cap(number, first=60 * SECOND, factor=2, longest=3600 * SECOND)
    assert cap == seconds * SECOND


def test_delayed_attempts_are_counted_from_one() -> None:
    with pytest.raises(ValueError, match="counted from 1, not 0"):
        backoff.cap(0, first=SECOND, factor=2, longest=SECOND)


def test_a_first_delay_beyond_the_longest_is_cut() -> None:
    assert backoff.cap(1, first=60 * SECOND, factor=2, longest=SECOND) == SECOND


@given(st.integers(0, 2**62), st.integers(0, 1_000_000))
def test_the_dice_stay_on_the_table(message_id: int, attempt: int) -> None:
    assert 0 <= backoff.dice(message_id, attempt) < 1
    assert backoff.dice(message_id, attempt) == backoff.dice(message_id, attempt)
    assert timedelta(0) <= backoff.delay(message_id, attempt, limit=timedelta(hours=6)) < timedelta(hours=6)


@pytest.mark.parametrize("first", [0, 7 << 20, 123_456 << 20])
@pytest.mark.parametrize("attempt", [1, 5])
def test_due_times_of_100_000_messages_are_spread_evenly(first: int, attempt: int) -> None:
    buckets = [0] * 100
    for message_id in range(first, first + 100_000):
        buckets[int(backoff.dice(message_id, attempt) * 100)] += 1
    assert min(buckets) > 950
    assert max(buckets) < 1050


def test_messages_that_share_an_attempt_do_not_meet_again_at_the_next() -> None:
    """Also the first messages of many batches, whose ids are far apart, are spread."""
    ids = [batch << 20 for batch in range(1, 2000)]
    together = sum(
        abs(backoff.dice(a, n) - backoff.dice(b, n)) < 0.001 for a, b in itertools.pairwise(ids) for n in (1, 2)
    )
    assert together < 20
