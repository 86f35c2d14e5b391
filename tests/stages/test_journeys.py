"""Whole journeys of messages, with a broker in memory and a clock that moves when told."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.message import DeadLetter, Header, tracking_headers
from tests.workshop import KEY_ERROR, REFUSED, THROTTLED, Workshop


@pytest.fixture
def workshop(tmp_path: Path, ledger_url: str) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path, ledger_url)
    yield workshop
    workshop.ledger.close()


def test_a_passing_failure_goes_straight_back(workshop: Workshop) -> None:
    workshop.die("a", "b", "c", error=REFUSED)
    report = workshop.cycle()
    assert (report["drained"], report["new"], report["redelivered"], report["escalated"]) == (3, 3, 3, 0)
    assert sorted(workshop.bodies("orders")) == [b"a", b"b", b"c"]
    assert workshop.bodies("orders-dlq") == []
    assert workshop.states() == {"sent": 3}
    assert workshop.audit() == []


def test_a_bug_goes_to_people(workshop: Workshop) -> None:
    workshop.die("a", "b", error=KEY_ERROR)
    report = workshop.cycle()
    assert (report["redelivered"], report["escalated"]) == (0, 2)
    rows = workshop.query("select payload, cause, status, error_text from escalated_messages order by message_id")
    assert rows == [("a", "application_bug", "open", KEY_ERROR), ("b", "application_bug", "open", KEY_ERROR)]
    assert workshop.states() == {"escalated": 2}


def test_throttled_messages_wait_for_their_backoff(workshop: Workshop) -> None:
    workshop.die("a", error=THROTTLED)
    assert workshop.cycle()["redelivered"] == 0
    assert workshop.states() == {"waiting": 1}
    workshop.advance(minutes=2)
    assert workshop.cycle()["redelivered"] == 1


def test_what_comes_back_is_recognised_until_its_attempts_are_used_up(workshop: Workshop) -> None:
    workshop.die("a", error=REFUSED)
    reports = []
    for _ in range(14):  # a delay takes two runs: one plans it, a later one sends it
        reports.append(workshop.cycle())
        workshop.consume(lambda _: REFUSED)
        workshop.advance(hours=2)
    assert [r["new"] for r in reports] == [1] + [0] * 13
    assert sum(r["returned"] for r in reports) == 7
    assert sum(r["redelivered"] for r in reports) == 2 + 5, "n requeues, then m delays, then a person"
    assert workshop.states() == {"escalated": 1}
    assert workshop.query("select count(*), max(attempt) from redelivery_attempts where outcome = 'returned'") == [
        (7, 7)
    ]
    assert workshop.audit() == []


def test_what_stays_away_is_presumed_only_after_a_window_that_could_have_seen_it(workshop: Workshop) -> None:
    workshop.die("a", error=REFUSED)
    workshop.cycle()
    workshop.advance(minutes=5)
    workshop.cycle()
    assert workshop.states() == {"sent": 1}, "the destination still holds it: nothing can be said"
    workshop.consume()
    workshop.cycle()
    assert workshop.states() == {"sent": 1}, "the destination was just seen empty: the window begins now"
    workshop.advance(seconds=10)
    workshop.cycle()
    assert workshop.states() == {"presumed": 1}


def test_a_late_return_of_a_presumed_message_is_still_a_return(workshop: Workshop) -> None:
    workshop.die("a", error=REFUSED)
    workshop.cycle()
    kept = workshop.world.peek("orders")[0]
    workshop.advance(seconds=1)
    workshop.consume()
    workshop.cycle()
    workshop.advance(seconds=10)
    workshop.cycle()
    assert workshop.states() == {"presumed": 1}
    workshop.world.put("orders-dlq", kept._replace(broker_message_id="later"))
    assert workshop.cycle()["returned"] == 1
    assert workshop.states() == {"sent": 1}


def test_a_delay_queue_is_held_in_the_ledger_until_due(workshop: Workshop) -> None:
    workshop.die("later", error=None, queue="orders-delay")
    report = workshop.cycle()
    assert (report["drained"], report["redelivered"], report["waiting"]) == (1, 0, 1)
    workshop.advance(seconds=31)
    assert workshop.cycle()["redelivered"] == 1
    assert workshop.query("select mode from redelivery_attempts") == [("delay",)]


def test_the_same_copy_drained_twice_is_a_duplicate(workshop: Workshop) -> None:
    workshop.die("a", error=REFUSED)
    again = workshop.world.peek("orders-dlq")[0]
    workshop.cycle()
    workshop.world.put("orders-dlq", again)
    report = workshop.cycle()
    assert (report["duplicates"], report["new"]) == (1, 0)
    assert workshop.audit() == []


def test_a_second_run_of_nothing_finds_nothing(workshop: Workshop) -> None:
    workshop.die("a", "b", error=KEY_ERROR)
    workshop.cycle()
    report = workshop.cycle()
    assert (report["drained"], report["new"], report["escalated"]) == (0, 0, 0)
    assert workshop.audit() == []


def test_attempts_that_another_ledger_made_count_towards_the_cap(workshop: Workshop) -> None:
    """The ledger was lost, or the message goes round between two routes: it must not begin at nought each time."""
    for body, attempts in (("tired", 7), ("fresh", 1)):
        headers = (Header("error", "String", REFUSED), *tracking_headers(f"other-{body}", attempts))
        workshop.world.put("orders-dlq", DeadLetter("", body.encode(), headers, origin="orders"))
    assert workshop.cycle()["new"] == 2
    assert workshop.query(
        "select redrive_id, attempts, state from messages where redrive_id like 'other-%' order by 1"
    ) == [
        ("other-fresh", 2, "sent"),
        ("other-tired", 7, "escalated"),
    ]
    ((reason,),) = workshop.query("select reason from escalated_messages")
    assert reason == "transient_network: It came back after 7 redeliveries."


def test_a_nul_anywhere_hurts_nobody(workshop: Workshop) -> None:
    """PostgreSQL has no text with a NUL in it; SQLite has, and tools stumble over it."""
    nul = "KeyError: '\0'"
    workshop.die("nul", error=nul, content_type="text/\0", description=nul, reason="r\0")
    headers = (Header("error", "String", nul), *tracking_headers("an\0id", 1))
    workshop.world.put("orders-dlq", DeadLetter("broker\0id", b"\0", headers, origin="orders", ordering_key="k\0"))
    workshop.die("well", error=REFUSED)
    report = workshop.cycle()
    assert (report["new"], report["escalated"], report["redelivered"]) == (3, 2, 1)
    assert workshop.audit() == []


def test_a_report_names_the_commonest_causes_and_its_log_what_helps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workshop = Workshop(tmp_path)
    workshop.die("a", "b", error="Dropping 7 items because they were leased too long.")
    workshop.die("c", error=THROTTLED)
    with caplog.at_level("INFO"):
        report = workshop.cycle()
    assert list(report["causes"].items()) == [("lease_expired", 2), ("throttled", 1)]
    assert "Fetch fewer messages at a time" in caplog.text
    workshop.ledger.close()
