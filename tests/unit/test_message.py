"""The ids under which a deduplicating broker knows our sends."""

import re

import pytest

from redrive.message import Outgoing, restore_id, send_id

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
