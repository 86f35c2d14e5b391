"""More dead letters than one run drains: gates move on all the same, on evidence, and say what they wait for."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.ledger.account import inspecting
from redrive.ledger.delivery import gate_waits
from redrive.ledger.delivery.gate_waits import GateWait
from redrive.ledger.selecting import Selection
from redrive.message import DeadLetter
from tests.workshop import KEY_ERROR, REFUSED, Workshop

STRANGE = "the flux capacitor said hm"  # nothing is known of it: it doesn't go away by itself
LIMIT = 20
ROUTE: dict[str, Any] = {
    "canary": {"first": 5, "grow": 4, "pass": 0.95, "observe": "1m"},
    "drain": {"wait": "0s", "limit": LIMIT, "shards": 1},
}

Build = Callable[..., Workshop]


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    made: list[Workshop] = []

    def build(**route: Any) -> Workshop:
        made.append(Workshop(tmp_path, **ROUTE | route))
        return made[-1]

    yield build
    for one in made:
        one.ledger.close()


def gate(shop: Workshop) -> tuple[str, int]:
    [(stage, sent)] = shop.query("select stage, (select count(*) from redelivery_attempts) from group_state")
    return stage, sent


def left(shop: Workshop) -> int:
    return shop.broker.depth("orders-dlq").total or 0


def wait(shop: Workshop) -> GateWait:
    with shop.ledger.read() as connection:
        [one] = gate_waits.waits(connection, "orders", shop.now())
    return one


@pytest.mark.parametrize("inflow", [0, LIMIT + 5])
def test_a_canary_moves_on_after_its_window_and_two_runs_whatever_the_backlog(build: Build, inflow: int) -> None:
    shop = build()
    shop.die(*(f"m{i}" for i in range(150)), error=STRANGE)
    shop.cycle()
    assert (gate(shop), left(shop)) == (("canary", 5), 130)
    for run in range(2):
        shop.consume()
        shop.advance(minutes=10)
        shop.die(*(f"more {run} {i}" for i in range(inflow)), error=STRANGE)
        shop.cycle()
    assert gate(shop) == ("ramp", 25)
    assert shop.states()["presumed"] == 5
    assert shop.audit() == []


def test_a_consumer_that_fails_everything_gets_no_more_than_the_canary_though_its_returns_lie_behind_a_backlog(
    build: Build,
) -> None:
    shop = build()
    shop.die(*(f"m{i}" for i in range(150)), error=STRANGE)
    shop.cycle()
    for run in range(6):
        shop.consume(lambda _: STRANGE)
        shop.advance(minutes=10)
        shop.die(*(f"more {run} {i}" for i in range(2 * LIMIT)), error=STRANGE)
        shop.cycle()
        assert gate(shop) in (("canary", 5), ("failed", 5))
    assert gate(shop) == ("failed", 5)
    assert shop.world.messages["publish"] == 5


def test_where_even_that_does_not_reach_the_end_nothing_is_taken_for_proved_and_status_says_why(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.stages.drain.READ_ON", 2)
    shop = build()
    shop.die(*(f"m{i}" for i in range(130)), error=STRANGE)
    shop.cycle()
    for _ in range(3):
        shop.consume(lambda _: STRANGE)
        shop.advance(minutes=10)
        shop.cycle()
        assert gate(shop) == ("canary", 5)
    assert left(shop) == 130 + 5 - LIMIT - LIMIT - 2 * 2 * LIMIT
    assert wait(shop).waits_for.endswith("orders-dlq was never drained to its end")
    shop.advance(minutes=10)
    shop.cycle()
    assert gate(shop) == ("failed", 5)


def test_a_limit_that_a_person_gives_for_a_run_is_kept(build: Build) -> None:
    shop = build()
    shop.die(*(f"m{i}" for i in range(100)), error=STRANGE)
    shop.cycle()
    for _ in range(3):
        shop.consume()
        shop.advance(minutes=10)
        assert shop.cycle(Selection(limit=7))["drained"] == 7


def test_a_limit_is_kept_while_nothing_waits_behind_the_gate(build: Build) -> None:
    shop = build()
    shop.die("one", error=STRANGE)
    shop.cycle()
    shop.die(*(f"m{i}" for i in range(100)), error=KEY_ERROR)  # for people at once
    for _ in range(3):
        shop.consume()
        shop.advance(minutes=10)
        assert shop.cycle()["drained"] == LIMIT


def test_a_breaker_that_tries_a_few_moves_on_too(build: Build) -> None:
    shop = build(breaker={"return_rate": 0.5, "min_samples": 6, "cool_down": "10m"}, canary="off", requeue_attempts=50)
    errors = [REFUSED, "TimeoutError: [Errno 110] Connection timed out", "psycopg.errors.DeadlockDetected: deadlock"]
    shop.die(*(f"{i % 3}" for i in range(9)), error=None)
    for number, error in enumerate(errors):
        shop.die(*(f"{number} {i}" for i in range(3)), error=error)
    shop.settings = shop.configure(shop.settings.database, **ROUTE | {
        "breaker": {"return_rate": 0.5, "min_samples": 6, "cool_down": "10m"}, "canary": "off", "requeue_attempts": 50,
    })  # fmt: skip
    shop.cycle()
    shop.consume(lambda letter: errors[int(letter.body[:1])])
    shop.advance(minutes=1)
    shop.cycle()
    assert shop.query("select stage from destination_state") == [("tripped",)]
    shop.die(*(f"m{i}" for i in range(200)), error=KEY_ERROR)
    shop.advance(minutes=11)
    shop.cycle()
    assert shop.query("select stage from destination_state") == [("half_open",)]
    for _ in range(2):
        shop.consume()
        shop.advance(minutes=10)
        shop.cycle()
    assert shop.query("select stage from destination_state") == [("open",)]


def test_messages_in_order_do_not_wait_for_a_backlog_to_be_worked_off(build: Build) -> None:
    shop = build(canary="off", order_by="key")
    for number in range(100):
        shop.advance(seconds=1)
        shop.die(f"m{number}", error=REFUSED, ordering_key=f"k{number % 3}", dead_lettered_at=shop.time.now)
    assert shop.cycle()["redelivered"] == 0
    shop.advance(minutes=10)
    shop.die(*(f"late {i}" for i in range(2 * LIMIT)), error=REFUSED, dead_lettered_at=shop.time.now)
    shop.cycle()
    assert shop.cycle()["redelivered"] + len(shop.bodies("orders")) > 0


# --- what it waits for, in words --------------------------------------------------------------------------


def test_a_gate_says_in_turn_what_it_waits_for(build: Build) -> None:
    shop = build(drain={"wait": "0s"})
    shop.world.put("orders", DeadLetter("", b"other", ()))
    shop.die(*(f"m{i}" for i in range(30)), error=STRANGE)
    shop.cycle()
    shop.advance(minutes=2)
    shop.cycle()
    one = wait(shop)
    assert (one.stage, one.until, one.stuck) == ("canary", None, False)
    assert one.waits_for == (
        "orders to work past 5 sends, the last of 2025-10-09 08:53 UTC; it held 6 at 2025-10-09 08:55 UTC"
    )
    shop.consume()
    shop.advance(minutes=2)
    shop.cycle()
    one = wait(shop)
    assert one.until == shop.now() + timedelta(minutes=1)
    assert one.waits_for == (
        "the observation window of 5 sends to end at 2025-10-09 08:58 UTC and a run after it to drain every source;"
        " orders-delay is drained up to 2025-10-09 08:57 UTC"
    )
    shop.advance(minutes=2)
    assert wait(shop).waits_for.startswith("a run to drain every source beyond 2025-10-09 08:58 UTC, when"), (
        "nothing is due in the past"
    )
    shop.cycle()
    assert gate(shop) == ("ramp", 25)
    shop.consume(lambda _: STRANGE)
    shop.advance(minutes=2)
    shop.cycle()
    assert gate(shop)[0] == "failed"
    assert wait(shop).waits_for.startswith("a person, who decides what is in review once it is fixed: ")
    with shop.ledger.read() as connection:
        [told] = inspecting.status(connection, "orders", shop.now())["gates"]
    assert told["waits_for"] == wait(shop).waits_for


def test_a_tripped_gate_says_until_when_it_cools_down(build: Build) -> None:
    shop = build(drain={"wait": "0s"}, requeue_attempts=50)
    shop.die(*(f"m{i}" for i in range(30)), error=REFUSED)
    shop.cycle()
    shop.consume(lambda _: REFUSED)
    shop.advance(minutes=1)
    shop.cycle()
    assert wait(shop).until == shop.now() + timedelta(minutes=15)
    assert wait(shop).waits_for == "its cool-down, until 2025-10-09 09:09 UTC: 5 of 5 came back"
    shop.advance(minutes=15)
    assert wait(shop).waits_for == (
        "the next run, which lets a few through, as its cool-down is over: 5 of 5 came back"
    )


def test_what_is_due_waits_for_the_next_run_and_for_no_time_in_the_past(build: Build) -> None:
    shop = build(drain={"wait": "0s"}, requeue_attempts=0, delay_attempts=9)
    shop.die(*(f"m{i}" for i in range(3)), error=REFUSED)
    shop.cycle()
    one = wait(shop)
    assert one.until is not None
    assert one.until > shop.now()
    assert one.waits_for == f"3 messages to be sent, the next due at {one.until:%Y-%m-%d %H:%M} UTC"
    shop.advance(hours=9)
    assert wait(shop).waits_for == "3 messages to be sent, by the next run"


def test_sends_of_unknown_fate_are_waited_for(build: Build) -> None:
    shop = build(drain={"wait": "0s"}, on_unknown="review")
    shop.die(*(f"m{i}" for i in range(30)), error=STRANGE)
    shop.world.faults.lost_responses = 5
    run = shop.begin()
    for name, _ in shop.stages(run):
        if name == "deliver":
            break
    assert wait(shop).waits_for == "5 sends of which nobody knows whether they arrived"


def test_what_was_sent_by_another_connection_is_waited_for_in_vain_and_says_so(build: Build) -> None:
    shop = build(drain={"wait": "0s"})
    shop.die(*(f"m{i}" for i in range(30)), error=STRANGE)
    shop.cycle()
    with shop.ledger.write() as connection:
        connection.exec_driver_sql("update delivery_slices set system = 'memory:old'")
    one = wait(shop)
    assert one.stuck
    assert one.waits_for.startswith("5 sends that went by memory:old, where the route's queues are not any more")


# --- a group that runs empty ------------------------------------------------------------------------------


def test_a_group_that_was_emptied_at_its_canary_still_has_its_ramp_before_it(build: Build) -> None:
    shop = build(drain={"wait": "0s"})
    shop.die(*(f"m{i}" for i in range(5)), error=STRANGE)
    shop.cycle()
    for _ in range(2):
        shop.consume()
        shop.advance(minutes=10)
        shop.cycle()
    shop.die(*(f"more {i}" for i in range(100)), error=STRANGE)
    shop.cycle()
    assert gate(shop) == ("ramp", 5 + 20)
