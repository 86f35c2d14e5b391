"""The breaker of a destination: several groups that come back say something of the destination, one doesn't."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from redrive import settings as configuration
from redrive.cli import app
from redrive.ledger import leases
from redrive.ledger.account import inspecting
from redrive.ledger.delivery import breakers
from redrive.ledger.selecting import Selection, parse_attributes
from redrive.stages import pipeline
from tests.workshop import REFUSED, Workshop

ERRORS = [
    REFUSED,
    "TimeoutError: [Errno 110] Connection timed out",
    "psycopg.errors.DeadlockDetected: deadlock detected",
    "socket.gaierror: [Errno -3] Temporary failure in name resolution",
]
BREAKER: dict[str, Any] = {
    "breaker": {"return_rate": 0.5, "min_samples": 6, "cool_down": "10m"},
    "requeue_attempts": 50,
}


def group_of(letter: Any) -> int:
    return int(letter.body[:1])


def the_error(letter: Any) -> str:
    return ERRORS[group_of(letter)]


def fail(shop: Workshop, groups: int, each: int, name: str = "m") -> None:
    for group in range(groups):
        shop.die(*[f"{group} {name} {n}" for n in range(each)], error=ERRORS[group])


def stages(shop: Workshop) -> dict[str, str]:
    return {row[0]: row[1] for row in shop.query("select destination, stage from destination_state")}


def sent(shop: Workshop) -> int:
    return int(shop.query("select count(*) from redelivery_attempts")[0][0])


def trip(shop: Workshop) -> None:
    """Three groups of three: none has samples enough to tell by itself, together they have."""
    fail(shop, 3, 3)
    assert shop.cycle()["redelivered"] == 9
    shop.consume(the_error)
    shop.advance(minutes=1)
    report = shop.cycle()
    assert (report["returned"], report["redelivered"]) == (9, 0)
    assert stages(shop) == {"orders": "tripped"}
    assert {stage for (stage,) in shop.query("select stage from group_state")} == {"open"}


def test_returns_of_several_groups_open_it_though_no_group_has_samples_enough(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, **BREAKER)
    trip(shop)
    with shop.ledger.read() as connection:
        (told,) = inspecting.status(connection, "orders", shop.now())["destinations"]
    assert (told["stage"], told["waiting"]) == ("tripped", 9)
    assert told["reason"] == "9 of 9 came back, of several groups."
    shop.die("3 new 0", error=ERRORS[3])
    assert shop.cycle()["redelivered"] == 0, "whatever its group"
    assert shop.audit() == []


def test_after_its_cool_down_a_few_go_and_when_they_stay_away_all_do(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, **BREAKER)
    trip(shop)
    shop.advance(minutes=9)
    assert shop.cycle()["redelivered"] == 0
    shop.advance(minutes=2)
    assert shop.cycle()["redelivered"] == 6, "as many as tell"
    assert stages(shop) == {"orders": "half_open"}
    assert shop.cycle()["redelivered"] == 0, "their outcome is not known"
    shop.consume()
    shop.advance(minutes=1)
    shop.cycle()
    shop.advance(minutes=1)
    assert shop.cycle()["redelivered"] == 3
    assert stages(shop) == {"orders": "open"}
    assert shop.audit() == []


def test_each_trip_cools_down_for_longer(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, **BREAKER)
    trip(shop)
    shop.advance(minutes=11)
    assert shop.cycle()["redelivered"] == 6
    shop.consume(the_error)
    shop.advance(minutes=1)
    assert shop.cycle()["redelivered"] == 0
    assert shop.query("select stage, trips from destination_state") == [("tripped", 2)]
    shop.advance(minutes=19)
    assert shop.cycle()["redelivered"] == 0
    shop.advance(minutes=2)
    assert shop.cycle()["redelivered"] == 6


def test_one_group_that_keeps_coming_back_does_not_stop_the_others(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, **BREAKER)
    fail(shop, 2, 10)
    shop.cycle()
    shop.consume(lambda letter: the_error(letter) if group_of(letter) == 0 else None)
    shop.advance(minutes=1)
    shop.cycle()
    shop.advance(minutes=1)
    shop.die("1 new 0", error=ERRORS[1])
    assert shop.cycle()["redelivered"] == 1
    assert stages(shop) == {"orders": "open"}
    assert [row[0] for row in shop.query("select stage from group_state order by group_id")] == ["tripped", "open"]


def test_another_destination_of_the_route_goes_on(tmp_path: Path) -> None:
    sources = [{"queue": "orders-dlq", "kind": "dead_letter", "lease": "2s", "max_deliveries": 3}]
    shop = Workshop(tmp_path, **BREAKER, sources=sources, destination=None)
    shop.world.create("bills", dead_letter_queue="orders-dlq")
    trip(shop)
    shop.die("3 bill", error=ERRORS[3], origin="bills")
    assert shop.cycle()["redelivered"] == 1
    assert shop.bodies("bills") == [b"3 bill"]


def test_a_person_may_release_it_before(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, **BREAKER)
    trip(shop)
    assert breakers.release_destination(shop.ledger, "orders", "orders", by="ana", now=shop.now())
    assert not breakers.release_destination(shop.ledger, "orders", "bills", by="ana", now=shop.now())
    assert shop.cycle()["redelivered"] == 6
    assert shop.query("select actor, selection from audit_events where action = 'release_gate'") == [
        ("ana", json.dumps({"destination": "orders"}))
    ]


def test_a_person_may_say_that_it_is_well_before_all_outcomes_are_known(tmp_path: Path) -> None:
    """Where nobody tells a depth, those of the few that were tried may never be."""
    shop = Workshop(tmp_path, **BREAKER)
    trip(shop)
    shop.advance(minutes=11)
    assert shop.cycle()["redelivered"] == 6
    shop.advance(minutes=11)
    assert shop.cycle()["redelivered"] == 0
    assert stages(shop) == {"orders": "half_open"}

    assert breakers.release_destination(shop.ledger, "orders", "orders", by="ana", now=shop.now())

    assert stages(shop) == {"orders": "open"}
    assert shop.cycle()["redelivered"] > 0
    assert shop.query("select reason from destination_state") == [("ana released it.",)]
    assert not breakers.release_destination(shop.ledger, "orders", "orders", by="ana", now=shop.now())


def test_two_tasks_at_once_send_no_more_than_the_half_open_breaker_lets(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, **BREAKER, deliver={"slice": 2, "shards": 2})
    trip(shop)
    shop.advance(minutes=11)
    run = shop.planned()
    both = [pipeline.deliver(shop.settings, run, shard, 2, **shop.options())["redelivered"] for shard in (0, 1)]
    assert sum(both) == 6


def test_recent_outcomes_count_a_long_good_past_does_not_hide_them(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, **BREAKER)
    fail(shop, 3, 200, "good")
    shop.cycle()
    shop.consume()
    shop.advance(minutes=1)
    shop.cycle()
    shop.advance(minutes=1)
    shop.cycle()
    assert shop.query("select stayed <= 60, stayed >= 27 from destination_state") == [(1, 1)]
    fail(shop, 3, 40, "bad")
    shop.cycle()
    shop.consume(the_error)
    shop.advance(minutes=1)
    assert shop.cycle()["redelivered"] == 0


# --- the whole route ------------------------------------------------------------------------------------------

MANY = [
    *ERRORS,
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "psycopg.errors.SerializationFailure: could not serialize access due to concurrent update",
]


def sick(shop: Workshop, healthy: int) -> dict[str, Any]:
    """Six groups with ten open messages each come back, and one of ``healthy`` waits; the run that sees it."""
    for number, error in enumerate(MANY):
        shop.die(*[f"{number} {n}" for n in range(10)], error=error)
    shop.cycle()
    shop.consume(lambda letter: MANY[int(letter.body[:1])])
    shop.die(*[f"{n}" for n in range(healthy)], error="HTTP Error 429: Too Many Requests")
    shop.advance(minutes=1)
    return shop.cycle()


def test_up_to_the_share_groups_are_held_one_by_one(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, **BREAKER)
    report = sick(shop, healthy=45)
    assert (report["held"], report["waiting"]) == (60, 45)
    assert "paused" not in report


def test_beyond_it_the_route_pauses_with_one_alarm(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, **BREAKER)
    report = sick(shop, healthy=35)
    assert report["paused"] == (
        "paused by redrive: 60 of 95 open messages are in groups that keep coming back: the destination is sick"
    )
    assert shop.query("select count(*) from audit_events where action = 'pause'") == [(1,)]
    leases.pause(shop.ledger, "orders", by="redrive", reason="again", now=shop.now())
    assert shop.query("select count(*) from audit_events where action = 'pause'") == [(1,)]


def test_who_resumes_says_that_the_destination_is_well_and_it_is_tried(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, **BREAKER)
    sick(shop, healthy=0)
    shop.advance(minutes=1)
    assert leases.resume(shop.ledger, "orders", by="ana", now=shop.now())
    report = shop.cycle()
    assert "paused" not in report, "not stopped at once by what was seen before"
    assert report["redelivered"] == 6, "a few first: the destination's own breaker is half-open"


def test_a_group_that_a_person_releases_while_the_run_looks_is_no_reason_to_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Workshop(tmp_path, **BREAKER)

    real = leases.pause_itself

    def pause_itself(*args: Any) -> Any:
        assert breakers.release_group(shop.ledger, "orders", 1, first=None, by="ana", now=shop.now())
        return real(*args)

    monkeypatch.setattr(leases, "pause_itself", pause_itself)
    report = sick(shop, healthy=35)
    assert "paused" not in report
    assert shop.query("select count(*) from audit_events where action = 'pause'") == [(0,)]


def test_a_destination_that_a_person_releases_while_the_run_looks_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Workshop(tmp_path, **BREAKER)
    trip(shop)
    shop.advance(minutes=11)
    shop.cycle()
    shop.consume(the_error)
    assert stages(shop) == {"orders": "half_open"}
    real = breakers.of_destinations

    def look(*args: Any) -> Any:
        found = real(*args)
        breakers.release_destination(shop.ledger, "orders", "orders", by="ana", now=shop.now())
        return found

    shop.advance(minutes=1)
    monkeypatch.setattr(breakers, "of_destinations", look)
    shop.cycle()
    assert stages(shop) == {"orders": "open"}


def test_a_pause_of_people_opens_no_breaker_when_it_ends(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, **BREAKER)
    trip(shop)
    leases.pause(shop.ledger, "orders", by="ana", reason="deploy", now=shop.now())
    leases.resume(shop.ledger, "orders", by="ana", now=shop.now())
    assert shop.cycle()["redelivered"] == 0


# --- the command line -----------------------------------------------------------------------------------------


def test_the_command_line_shows_it_and_releases_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Workshop(tmp_path, **BREAKER)
    trip(shop)
    monkeypatch.setattr(configuration, "load", lambda: shop.settings)
    runner = CliRunner()
    assert "the next run tries it with a few" in runner.invoke(app.app, ["status", "orders"]).output  # long over now
    monkeypatch.setattr("redrive.cli.control.utc_now", shop.now)
    assert "nothing goes to orders until" in runner.invoke(app.app, ["status", "orders"]).output
    planned = runner.invoke(app.app, ["run", "orders", "--dry-run"], catch_exceptions=False).output
    assert "but orders was stopped and is tried with a few" in planned
    monkeypatch.setattr("redrive.cli.runs.utc_now", shop.now)
    planned = runner.invoke(app.app, ["run", "orders", "--dry-run"], catch_exceptions=False).output
    assert "but nothing goes to orders until" in planned
    released = runner.invoke(app.app, ["release", "orders", "--destination", "orders"], catch_exceptions=False)
    assert "orders gets messages again" in released.output
    wrong = runner.invoke(app.app, ["release", "orders"])
    assert "say what to release" in str(wrong.exception)


@pytest.mark.parametrize("groups", [1, 4])
def test_a_few_of_many_that_come_back_before_the_rest_can_be_known_stop_nothing(tmp_path: Path, groups: int) -> None:
    shop = Workshop(tmp_path, **BREAKER)
    fail(shop, groups, 240 // groups)
    assert shop.cycle()["redelivered"] == 240
    shop.consume(lambda letter: the_error(letter) if letter.body.endswith(b"7") else None)
    shop.advance(minutes=1)
    assert shop.cycle()["returned"] == 24
    assert stages(shop) == {"orders": "open"}
    assert {stage for (stage,) in shop.query("select stage from group_state")} == {"open"}
    shop.advance(minutes=30)
    shop.cycle()
    assert sent(shop) == 264
    assert shop.audit() == []


def test_a_group_that_comes_back_whole_is_stopped_although_most_of_it_is_awaited(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, **BREAKER, deliver={"slice": 60})
    fail(shop, 1, 240)
    assert shop.cycle()["redelivered"] == 240
    taken = iter(range(1000))
    shop.consume(lambda letter: the_error(letter) if next(taken) < 40 else None)
    shop.advance(minutes=1)
    assert shop.cycle()["returned"] == 40
    assert shop.query("select stage, reason from group_state") == [
        ("tripped", "40 of 60 came back, and 20 are awaited.")
    ]


def test_without_a_canary_what_a_run_of_a_few_shows_opens_no_gate_for_the_rest(tmp_path: Path, ledger_url: str) -> None:
    """The consumer refuses all but one message, and a run sends that one alone once the group's cool-down is over."""
    shop = Workshop(tmp_path, ledger_url, **BREAKER)
    shop.die("fine", *(f"m{n}" for n in range(30)), error=REFUSED)
    shop.cycle()
    shop.consume(lambda _: REFUSED)
    shop.advance(minutes=1)
    shop.cycle()
    gate = "select stage, allowed, sent, trips from group_state"
    assert shop.query(gate) == [("tripped", 0, 0, 1)]
    shop.advance(minutes=11)
    assert shop.cycle(Selection(attributes=parse_attributes(["message_id=fine"])))["redelivered"] == 1
    shop.consume()
    for _ in range(2):
        shop.advance(minutes=1)
        shop.cycle(Selection(attributes=parse_attributes(["message_id=fine"])))
    assert shop.states() == {"presumed": 1, "held": 30}
    assert shop.query(gate) == [("ramp", 6, 1, 1)]
    assert shop.cycle()["redelivered"] == 5, "the rest of the few"
    shop.consume(lambda _: REFUSED)
    shop.advance(minutes=1)
    assert shop.cycle()["redelivered"] == 0
    assert shop.query(gate) == [("tripped", 0, 0, 2)]
    assert shop.audit() == []
    shop.ledger.close()
