"""When a route is clean: every source is drained to its end, and nothing waits for us or for people."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.ledger.selecting import Selection
from redrive.stages import pipeline
from tests.workshop import KEY_ERROR, THROTTLED, Workshop


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path)
    yield workshop
    workshop.ledger.close()


def test_a_route_without_messages_is_clean(workshop: Workshop) -> None:
    assert workshop.cycle()["clean"] is True


def test_what_was_sent_and_did_not_come_back_yet_is_done(workshop: Workshop) -> None:
    workshop.die("a", "b")
    report = workshop.cycle()
    assert (report["redelivered"], report["clean"]) == (2, True)


def test_what_waits_for_its_time_is_not(workshop: Workshop) -> None:
    workshop.die("a", error=THROTTLED)
    report = workshop.cycle()
    assert (report["waiting"], report["clean"]) == (1, False)


def test_what_waits_for_people_is_not_until_they_have_decided(workshop: Workshop) -> None:
    workshop.die("a", error=KEY_ERROR)
    assert workshop.cycle()["clean"] is False
    assert workshop.cycle()["clean"] is False, "in later runs too"
    with workshop.ledger.write() as connection:
        connection.exec_driver_sql("update escalated_messages set decision = 'discard', decided_by = 'ana'")
    workshop.review()
    assert workshop.cycle()["clean"] is True


def test_a_source_that_was_not_drained_to_its_end_is_not(workshop: Workshop) -> None:
    workshop.die("a", "b", "c")
    assert workshop.cycle(Selection(limit=1))["clean"] is False
    assert workshop.cycle()["clean"] is True


def test_a_source_that_the_run_did_not_look_at_is_not(workshop: Workshop) -> None:
    assert workshop.cycle(Selection(sources=("orders-delay",)))["clean"] is False


def test_a_load_that_is_tried_again_after_it_was_done_makes_nothing_clean(workshop: Workshop) -> None:
    """As where its task was killed just before it could say that it was done."""
    run = workshop.begin(selection=Selection(sources=("orders-dlq",)))
    for name, _ in workshop.stages(run):
        if name == "load":
            pipeline.load(workshop.settings, run, **workshop.options())
    assert pipeline.report(workshop.settings, run, **workshop.options())["clean"] is False
