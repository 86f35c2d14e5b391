"""Where the ledger's server does the work, a slice is closed beside the next one's delivery: all that holds of slices
that follow each other holds then too."""

from pathlib import Path
from typing import Any

import pytest

from redrive.errors import LedgerError
from redrive.ledger.delivery import windows
from redrive.ledger.dialects.sqlite import Sqlite
from tests.stages.test_deliver import (  # noqa: F401 - tests of slices that follow each other, once more
    OnTheWire,
    bodies,
    deliver,
    test_a_claim_that_is_lost_between_slices_leaves_one_window_in_doubt,
    test_a_full_destination_is_never_overfilled_by_what_is_on_the_wire,
    test_a_half_that_can_not_be_marked_is_unknown_whatever_is_marked_after_it,
    test_an_error_between_slices_leaves_nothing_of_the_last_one_in_doubt,
    test_half_a_window_is_marked_while_the_other_is_on_the_wire_and_no_more_is_ever_in_doubt,
    test_what_may_have_been_sent_counts_for_a_limit,
    test_when_the_end_of_a_slice_fails_the_next_one_stays,
    test_who_waits_for_his_turn_leaves_nothing_on_the_wire,
)
from tests.workshop import Pipelining


@pytest.fixture(autouse=True)
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sqlite, "writers_beside", True)


@pytest.fixture
def shop(tmp_path: Path) -> Pipelining:
    shop = Pipelining(tmp_path, deliver={"slice": 8, "confirm_window": 4})
    shop.die(*bodies(24))
    return shop


def test_a_slice_is_closed_when_two_parts_of_the_next_one_are_on_the_wire(
    shop: Pipelining, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shop.planned()
    broker = shop.broker = OnTheWire(shop)
    on_the_wire: list[int] = []
    close = windows.close

    def closing(*arguments: Any) -> None:
        on_the_wire.append(broker._windows - broker._over)
        close(*arguments)

    monkeypatch.setattr(windows, "close", closing)
    assert deliver(shop, run)["redelivered"] == 24
    assert len(on_the_wire) == 2, "the last one ends with its last window"
    assert set(on_the_wire) <= {1, 2}
    assert shop.states() == {"sent": 24}
    assert shop.query("select count(*) from delivery_slices where closed_at is null") == [(0,)]
    assert shop.query("select count from audit_events where action = 'send' order by event_id") == [(8,)] * 3


def test_one_that_can_not_be_closed_is_recovered_and_nothing_of_it_is_in_doubt(
    shop: Pipelining, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shop.planned()

    def full(*_: Any) -> None:
        raise LedgerError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(windows, "close", full)
        with pytest.raises(LedgerError, match="the disk is full"):
            deliver(shop, run)
    states = shop.states()
    assert states["unknown"] <= 2, "what was announced of the next one"
    assert states["sent"] == len(shop.bodies("orders"))
    assert set(states) == {"sent", "unknown", "waiting"}
    ended = "select count(*) from messages where message_id & 1048575 < 8 and state <> 'sent'"
    assert shop.query(ended) == [(0,)], "all of the slice that was to be closed"
    assert shop.query("select count(*) from delivery_slices where closed_at is null") == [(0,)]


def test_one_whose_last_part_can_not_be_marked_is_not_closed(shop: Pipelining, monkeypatch: pytest.MonkeyPatch) -> None:
    run, mark = shop.planned(), windows.mark

    def fails(*arguments: Any, **named: Any) -> bool:
        if not named["last_window"] and arguments[3][-1].message_id & 0xFFFFF == 7:
            raise LedgerError("the disk is full")
        return mark(*arguments, **named)

    monkeypatch.setattr("redrive.stages.sending.windows.mark", fails)
    with pytest.raises(LedgerError):
        deliver(shop, run)
    states = shop.states()
    assert (states["unknown"], states.get("sending", 0)) == (2, 0)
    assert sum(states.values()) == 24
