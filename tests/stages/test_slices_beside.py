"""Where the ledger's server does the work, slices are claimed and closed beside the delivery of another one: all that
holds of slices that follow each other holds then too."""

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.errors import BrokerError, LedgerError
from redrive.ledger import leases
from redrive.ledger.delivery import claims, windows
from redrive.ledger.dialects.sqlite import Sqlite
from redrive.ledger.selecting import Selection
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
from tests.workshop import REFUSED, Pipelining


@pytest.fixture(autouse=True)
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sqlite, "writers_beside", True)


@pytest.fixture
def claimed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """What is claimed: beside or not, for which destination, how much."""
    found, claim = list[tuple[str, str, int]](), claims.claim

    def claiming(*arguments: Any) -> Any:
        one = claim(*arguments)
        if one is not None:
            where = "main" if threading.current_thread() is threading.main_thread() else "beside"
            found.append((where, one.destination, len(one.messages)))
        return one

    monkeypatch.setattr(claims, "claim", claiming)
    return found


class Interrupted(OnTheWire):
    """Does something when so many parts were sent, before the next one."""

    def __init__(self, shop: Pipelining, parts: int, work: Callable[[], None]) -> None:
        super().__init__(shop)
        self._parts = parts
        self._work = work

    def _begin(self, begin: Any, count: int) -> Any:
        if len(self.together) == self._parts:
            self._work()
        return super()._begin(begin, count)


def wait_for(count: int, claimed: list[Any]) -> None:
    """Until so many slices are claimed, a minute at most."""
    for _ in range(6_000):
        if len(claimed) >= count:
            return
        threading.Event().wait(0.01)
    raise AssertionError(f"{len(claimed)} slices were claimed, not {count}")


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


def test_the_next_slice_is_claimed_while_this_one_goes(shop: Pipelining, claimed: list[Any]) -> None:
    run = shop.planned()
    broker = shop.broker = OnTheWire(shop)
    assert deliver(shop, run)["redelivered"] == 24
    assert claimed == [("main", "orders", 8), ("beside", "orders", 8), ("beside", "orders", 8)]
    assert broker.together == [1, *[2] * 11], "and the broker never waits for a claim"
    assert shop.bodies("orders") == [body.encode() for body in bodies(24)]
    assert shop.query("select claimed, sent from delivery_slices order by slice_id") == [(8, 8)] * 3
    assert shop.audit() == []


@pytest.mark.parametrize(
    ("route", "selection"),
    [
        pytest.param({"rate": {"per_second": 15}}, {}, id="the rate lets no two slices go at once"),
        pytest.param({"rate": {"max_in_flight": 15}}, {}, id="the destination has no room for two"),
        pytest.param({"order_by": "attribute:message_id"}, {}, id="what goes next depends on what went"),
        pytest.param({}, {"limit": 20}, id="the run is limited"),
        pytest.param({}, {"attributes": (("error", REFUSED),)}, id="it is looked up in the files"),
    ],
)
def test_nothing_is_claimed_ahead_where_the_slice_before_it_decides(
    tmp_path: Path, claimed: list[Any], route: dict[str, Any], selection: dict[str, Any]
) -> None:
    shop = Pipelining(tmp_path, deliver={"slice": 8, "confirm_window": 4}, **route)
    shop.die(*bodies(24))
    deliver(shop, shop.planned(**({"selection": Selection(**selection)} if selection else {})))
    assert claimed
    assert {where for where, _, _ in claimed} == {"main"}


def test_what_was_claimed_ahead_waits_again_when_people_pause_the_route(shop: Pipelining, claimed: list[Any]) -> None:
    run = shop.planned()

    def pause() -> None:
        leases.pause(shop.ledger, "orders", by="ana", reason="the consumer is sick", now=shop.now())

    shop.broker = Interrupted(shop, 2, pause)  # the first slice is on its way, and the second one not claimed yet
    assert deliver(shop, run)["redelivered"] == 8
    assert shop.states() == {"sent": 8, "waiting": 16}


def test_what_was_claimed_ahead_before_people_paused_the_route_waits_again_too(
    shop: Pipelining, claimed: list[Any]
) -> None:
    run = shop.planned()

    def pause() -> None:
        wait_for(2, claimed)
        leases.pause(shop.ledger, "orders", by="ana", reason="the consumer is sick", now=shop.now())

    shop.broker = Interrupted(shop, 3, pause)
    assert deliver(shop, run) | {"put_back": 0} == {
        "redelivered": 8, "unknown": 0, "suppressed": 0, "refused": 0, "put_back": 0, "slices": 1,
    }  # fmt: skip
    assert [where for where, _, _ in claimed] == ["main", "beside"]
    assert shop.states() == {"sent": 8, "waiting": 16}
    assert shop.query("select distinct attempts from messages where state = 'waiting'") == [(0,)]
    assert shop.query("select count(*) from delivery_slices where closed_at is null") == [(0,)]
    assert shop.audit() == []


@pytest.mark.parametrize("error", [BrokerError("the link broke"), KeyboardInterrupt()])
def test_what_was_claimed_ahead_is_not_in_doubt_when_the_delivery_fails(
    shop: Pipelining, claimed: list[Any], error: BaseException
) -> None:
    run = shop.planned()

    def fail() -> None:
        raise error

    shop.broker = Interrupted(shop, 3, fail)
    with pytest.raises(type(error)):
        deliver(shop, run)
    states = shop.states()
    assert states.get("unknown", 0) <= 4
    assert states["waiting"] >= 16
    assert sum(states.values()) == 24
    assert not {"sending"} & set(states)


def test_a_claim_ahead_that_fails_ends_the_delivery_and_leaves_one_window_in_doubt(
    shop: Pipelining, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, claim = shop.planned(), claims.claim

    def failing(*arguments: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            raise LedgerError("the disk is full")
        return claim(*arguments)

    monkeypatch.setattr(claims, "claim", failing)
    with pytest.raises(LedgerError, match="the disk is full"):
        deliver(shop, run)
    states = shop.states()
    assert states.get("unknown", 0) <= 4
    assert states["waiting"] >= 16
    assert not {"sending"} & set(states)


def test_what_was_claimed_ahead_too_long_ago_is_claimed_anew(shop: Pipelining, claimed: list[Any]) -> None:
    run = shop.planned()

    def take_long() -> None:
        wait_for(2, claimed)
        shop.advance(minutes=4)

    shop.broker = Interrupted(shop, 3, take_long)
    assert deliver(shop, run)["redelivered"] == 24
    assert [where for where, _, _ in claimed] == ["main", "beside", "main", "beside"]
    assert shop.query("select distinct attempts from messages") == [(1,)]
    assert shop.audit() == []


@pytest.mark.parametrize(
    ("room", "others", "goes"),
    [
        pytest.param(40, 16, True, id="there is room for what they sent and for it"),
        pytest.param(24, 16, False, id="they sent so much that it has no room any more"),
    ],
)
def test_what_others_sent_since_the_depth_was_read_takes_room_of_what_was_claimed_ahead(
    tmp_path: Path, claimed: list[Any], room: int, others: int, goes: bool
) -> None:
    shop = Pipelining(tmp_path, deliver={"slice": 8, "confirm_window": 4}, rate={"max_in_flight": room})
    shop.die(*bodies(24))
    run = shop.planned()
    deepest: list[int] = []

    def fill() -> None:
        wait_for(2, claimed)
        shop.die(*(f"other {number}" for number in range(others)), queue="orders")
        shop.advance(seconds=2)

    class Watched(Interrupted):
        def _begin(self, begin: Any, count: int) -> Any:
            done = super()._begin(begin, count)
            deepest.append(len(shop.world.peek("orders")))
            return done

    shop.broker = Watched(shop, 3, fill)
    sent = deliver(shop, run)["redelivered"]
    assert max(deepest) <= room
    assert sent == room - others
    assert [where for where, _, _ in claimed[:2]] == ["main", "beside"]
    assert shop.query("select count(*) from delivery_slices where sent = 0") == [(0 if goes else 1,)]
    assert shop.audit() == []


def test_where_the_broker_stops_telling_the_whole_depth_what_was_claimed_ahead_waits_again(
    tmp_path: Path, claimed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Pipelining(tmp_path, deliver={"slice": 8, "confirm_window": 4}, rate={"max_in_flight": 40})
    shop.die(*bodies(24))
    run = shop.planned()

    def fill() -> None:
        wait_for(2, claimed)
        shop.die(*(f"other {number}" for number in range(60)), queue="orders")
        depth = shop.broker.depth
        monkeypatch.setattr(shop.broker, "depth", lambda queue: depth(queue)._replace(in_flight=None))
        shop.advance(seconds=2)

    shop.broker = Interrupted(shop, 3, fill)
    assert deliver(shop, run)["redelivered"] == 8
    assert shop.states() == {"sent": 8, "waiting": 16}
    assert shop.audit() == []


def test_what_was_claimed_ahead_takes_the_places_of_a_breaker_that_is_half_open(
    shop: Pipelining, claimed: list[Any]
) -> None:
    shop.change(
        "insert into breakers (route, destination, stage, allowed, stage_at, began_at)"
        " values ('orders', 'orders', 'half_open', 12, '2026-01-01', '2026-01-01')"
    )
    run = shop.planned()
    shop.change("update breakers set stage = 'half_open', allowed = 12 where destination = 'orders'")
    assert deliver(shop, run)["redelivered"] == 12
    assert claimed[:2] == [("main", "orders", 8), ("beside", "orders", 4)]
    assert shop.states() == {"sent": 12, "waiting": 12}


def test_destinations_take_turns_and_each_ones_slice_is_claimed_while_the_other_ones_goes(
    tmp_path: Path, claimed: list[Any]
) -> None:
    sources = [{"queue": "orders-dlq", "lease": "2s", "max_deliveries": 3, "origins": ["orders", "billing"]}]
    shop = Pipelining(tmp_path, sources=sources, destination=None, deliver={"slice": 8, "confirm_window": 4})
    shop.world.create("billing", lease=timedelta(minutes=5))
    for number in range(16):
        shop.die(f"o{number}", origin="orders")
        shop.die(f"b{number}", origin="billing")
    run = shop.planned()
    assert deliver(shop, run)["redelivered"] == 32
    assert [where for where, _, _ in claimed] == ["main", "main", "beside", "beside"], "the first of each in its turn"
    assert sorted(to for _, to, _ in claimed) == ["billing", "billing", "orders", "orders"]
    assert shop.audit() == []
