"""The token bucket, with time passed in."""

import pytest

from redrive.policy.pacing import TokenBucket


def test_it_lets_a_second_of_tokens_through_at_once_and_then_the_rate() -> None:
    bucket = TokenBucket(100, now=0.0)
    sent, now = 0, 0.0
    while now < 10:
        ready = bucket.available(now)
        bucket.take(ready)
        sent += ready
        now += 0.05
    assert sent == pytest.approx(100 + 10 * 100, rel=0.02)


def test_it_saves_up_no_more_than_a_second() -> None:
    bucket = TokenBucket(10, now=0.0)
    assert bucket.available(3600.0) == 10


def test_it_says_how_long_to_wait() -> None:
    bucket = TokenBucket(10, now=0.0)
    bucket.take(10)
    assert bucket.wait(5, 0.0) == pytest.approx(0.5)
    assert bucket.wait(5, 0.4) == pytest.approx(0.1)
    assert bucket.wait(5, 0.6) == 0


def test_a_window_larger_than_the_rate_is_paid_off_later() -> None:
    bucket = TokenBucket(10, now=0.0)
    assert bucket.wait(200, 0.0) == 0, "it waits for a full bucket, not for ever"
    bucket.take(200)
    assert bucket.wait(1, 0.0) == pytest.approx(19.1)


def test_less_than_one_per_second_still_moves() -> None:
    bucket = TokenBucket(0.1, now=0.0)
    assert bucket.available(0.0) == 1
    bucket.take(1)
    assert bucket.available(9.0) == 0
    assert bucket.available(10.1) == 1
