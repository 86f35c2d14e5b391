"""The ids under which a deduplicating broker knows our sends, and numbers that somebody outside has written."""

import re

import pytest

from redrive.message import MILLISECOND, MOST, SECOND, Outgoing, count, instant, restore_id, send_id

LONG_AGO, NOW = 1_760_000_000_000_000, 1_760_000_000_000_001


def send(redrive_id: str = "k3v9q2-00000000000001", attempt: int = 1, claimed_at: int | None = NOW) -> Outgoing:
    return Outgoing(1, redrive_id, attempt, b"", claimed_at=claimed_at)


def test_each_try_of_an_attempt_has_the_same_id() -> None:
    assert send_id(send()) == send_id(send()._replace(body=b"read again"))


@pytest.mark.parametrize(
    "other",
    [
        send("k3v9q2-00000000000002"),
        send(attempt=2),
        send(claimed_at=LONG_AGO),
        send()._replace(dedup_id=restore_id("k3v9q2-00000000000001", 1, NOW)),
    ],
    ids=["message", "attempt", "number-given-twice", "restore"],
)
def test_no_other_send_has_it(other: Outgoing) -> None:
    assert send_id(send()) != send_id(other)


def test_no_two_restores_share_one() -> None:
    assert len({restore_id("r-1", fence, at) for fence in (1, 2) for at in (LONG_AGO, NOW)}) == 4


@pytest.mark.parametrize("redrive_id", ["two words", "größer", "\ud800", "漢" * 64, "a" * 64, "a\nb"])
def test_whatever_an_id_from_outside_holds_a_broker_takes_ours(redrive_id: str) -> None:
    for made in (send_id(send(redrive_id, 999_999)), restore_id(redrive_id, 1 << 20, NOW)):
        assert re.fullmatch(r"[!-~]{1,128}", made)
    assert send_id(send(redrive_id)) != send_id(send(redrive_id + "x"))


@pytest.mark.parametrize(
    ("said", "counted"),
    [
        (3, 3),
        ("3", 3),
        ("007", 7),
        (2**40, MOST),
        ("99999999999", MOST),
        ("9" * 5_000, MOST),
        (-1, 0),
        (2.9, 2),
        (1e300, MOST),
        *((nonsense, 5) for nonsense in (None, "", "-3", "+3", " 3", "3.0", "\u00b2", "\u0663", True, b"3", [3])),
        *((nonsense, 5) for nonsense in (float("nan"), float("inf"))),
    ],
)
def test_a_count_from_outside_fits_whatever_it_says(said: object, counted: int) -> None:
    assert count(said, otherwise=5) == counted


@pytest.mark.parametrize(
    ("said", "unit", "moment"),
    [
        ("1760000000000", MILLISECOND, LONG_AGO),
        (1_760_000_000, SECOND, LONG_AGO),
        (1_760_000_000_000, SECOND, None),  # milliseconds, from a client that doesn't know better
        *((nonsense, MILLISECOND, None) for nonsense in (0, "0", -5, None, "", "\u00b2", True, 2**64, "9" * 5_000)),
        (float("nan"), SECOND, None),
        (1_760_000_000, MILLISECOND, None),  # seconds, that is 1970
        (86_400, SECOND, None),  # a clock that was never set
    ],
)
def test_a_time_from_outside_is_one_that_a_clock_shows_or_none(said: object, unit: int, moment: int | None) -> None:
    assert instant(said, unit) == moment
