"""What is remembered of a live queue's oldest message, and what looking at it may cost."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from redrive.errors import BrokerUnavailable
from redrive.ledger.engine import parse_instant
from redrive.message import DeadLetter, Header, Received
from redrive.stages import pipeline
from tests.workshop import KEY_ERROR, Workshop

SECOND = timedelta(seconds=1)


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path, ages={"sample": 10})
    yield workshop
    workshop.ledger.close()


def put(workshop: Workshop, body: str) -> None:
    workshop.world.put("orders", DeadLetter("", body.encode(), (Header("error", "String", KEY_ERROR),)))


def take(workshop: Workshop, body: str) -> Received:
    """The consumer takes this message and no other."""
    found = workshop.broker.receive("orders", limit=100, wait=0 * SECOND, lease=timedelta(hours=1))
    workshop.broker.release("orders", [receipt for letter, receipt in found if letter.body != body.encode()])
    return next(one for one in found if one.letter.body == body.encode())


def fail(workshop: Workshop, body: str, times: int) -> None:
    for _ in range(times):
        workshop.broker.release("orders", [take(workshop, body).receipt])


def look(workshop: Workshop) -> tuple[float | None, str]:
    """Observe; the age of the oldest message, in minutes, and its method."""
    run = workshop.begin()
    pipeline.observe(workshop.settings, run, **workshop.options())
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    [(age, method)] = workshop.query(
        "select oldest_age_seconds, oldest_age_method from queue_observations where queue = 'orders'"
        " order by observation_id desc limit 1"
    )
    return None if age is None else round(age / 60), method


def test_an_empty_queue_has_no_oldest_message_and_is_known_to_have_none(workshop: Workshop) -> None:
    assert look(workshop) == (None, "broker")


def test_a_queue_that_nobody_consumes_keeps_its_age(workshop: Workshop) -> None:
    """The looks that a message can bear are used up; nothing has left, so what was the oldest is it still."""
    workshop.world.create("orders", dead_letter_queue="orders-dlq", max_deliveries=5)
    put(workshop, "first")
    for minutes in range(0, 600, 60):
        assert look(workshop) == (minutes, "sample" if minutes < 120 else "ledger")
        workshop.advance(minutes=60)
        put(workshop, f"{minutes}")


def test_once_something_has_left_its_age_is_unknown_again(workshop: Workshop) -> None:
    workshop.world.create("orders", dead_letter_queue="orders-dlq", max_deliveries=5)
    put(workshop, "first")
    put(workshop, "second")
    for _ in range(4):
        look(workshop)
        workshop.advance(minutes=60)
    assert look(workshop) == (240, "ledger")
    workshop.broker.settle("orders", [take(workshop, "first").receipt])
    workshop.advance(minutes=60)
    assert look(workshop) == (None, "unknown"), "it may have been the oldest one"


def test_a_poison_message_among_good_ones_has_a_lower_bound_then_its_true_age_until_it_dies(workshop: Workshop) -> None:
    """At most six receives of two minutes each, one poison message, and a good one each minute."""
    workshop.world.create("orders", dead_letter_queue="orders-dlq", max_deliveries=6)
    first = workshop.now()
    put(workshop, "poison")
    coverage = "select coverage from queue_observations where queue = 'orders' order by observation_id desc limit 1"
    told: list[tuple[float | None, str]] = []
    for turn in range(5):
        held = take(workshop, "poison")
        for _ in range(2):
            workshop.advance(minutes=1)
            put(workshop, "good")
            told.append(look(workshop))
            assert workshop.query(coverage) == [(0.5,)]
            workshop.broker.settle("orders", [take(workshop, "good").receipt])
        workshop.broker.release("orders", [held.receipt])
        if turn == 3:  # for once it is not in a consumer's hands
            assert look(workshop) == (8, "sample")
    assert told == [(0, "sample")] * 8 + [(9, "ledger"), (10, "ledger")]
    while got := workshop.broker.receive("orders", limit=1, wait=0 * SECOND, lease=SECOND):  # its last deliveries
        workshop.broker.release("orders", [one.receipt for one in got])
    workshop.cycle()
    [(since,)] = workshop.query("select first_enqueued_at from messages")
    assert parse_instant(since) == first
    put(workshop, "good")
    workshop.advance(minutes=1)
    assert look(workshop) == (1, "sample"), "what is dead counts no longer"


def test_no_message_is_looked_at_more_often_than_it_can_bear(workshop: Workshop) -> None:
    """Whatever else was in the queue at each look: a message between two that were seen may have been seen too."""
    workshop.world.create("orders", dead_letter_queue="orders-dlq", max_deliveries=6)
    for body in ("first", "middle", "last"):
        put(workshop, body)
        workshop.advance(minutes=1)
    middle = take(workshop, "middle")
    assert look(workshop)[1] == "sample"
    assert look(workshop)[1] == "sample"
    for body in ("first", "last"):
        workshop.broker.settle("orders", [take(workshop, body).receipt])
    workshop.broker.release("orders", [middle.receipt])
    workshop.advance(minutes=1)
    assert look(workshop) == (None, "unknown")
    put(workshop, "later")
    assert look(workshop) == (None, "unknown"), "one look has all that is there"


def test_messages_whose_clock_is_ahead_are_looked_at_no_more_often(workshop: Workshop) -> None:
    workshop.world.create("orders", dead_letter_queue="orders-dlq", max_deliveries=6)
    workshop.world.put("orders", DeadLetter("", b"ahead", (), enqueued_at=workshop.time.now + 6 * 3_600_000_000))
    for _ in range(4):
        workshop.advance(minutes=1)
        look(workshop)
    ((looks,),) = workshop.query("select count(*) from queue_observations where looked_from_at is not null")
    assert looks == 2, "more than half of its deliveries is left to consumers"


def test_people_are_told_of_a_live_queue_that_is_older_than_the_slo(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, ages={"sample": 10}, slo="2h", notify=[{"connection": "nowhere"}])
    put(workshop, "first")
    look(workshop)
    assert workshop.query("select count(*) from notifications") == [(0,)]
    workshop.advance(hours=3)
    run = workshop.begin()
    counts = pipeline.observe(workshop.settings, run, **workshop.options())
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    assert (counts["oldest_age_seconds"], counts["aged"]) == (3 * 3600, 1)
    [(event, subject, facts)] = workshop.query("select event, subject, facts from notifications")
    assert (event, subject) == ("slo_breach", "orders")
    assert '"messages": 1' in facts
    workshop.broker.settle("orders", [take(workshop, "first").receipt])
    workshop.advance(minutes=10)
    look(workshop)
    assert workshop.query("select count(*) from notifications where resolved_at is null") == [(0,)]
    workshop.ledger.close()


def test_a_poison_message_that_was_drained_from_the_dead_letter_queue_is_remembered_no_longer(
    workshop: Workshop,
) -> None:
    workshop.world.create("orders", dead_letter_queue="orders-dlq")
    put(workshop, "poison")
    fail(workshop, "poison", 3)
    workshop.advance(minutes=10)
    put(workshop, "slow")
    assert look(workshop) == (10, "sample")

    take(workshop, "slow")  # and keep it
    receipt = take(workshop, "poison").receipt
    workshop.advance(minutes=5)
    assert look(workshop) == (15, "ledger")

    workshop.broker.dead_letter("orders", [receipt], reason="rejected")
    workshop.cycle()  # a KeyError: to be looked at by a person
    workshop.advance(minutes=5)
    assert look(workshop) == (None, "unknown")  # something is in flight, and nobody has seen how old it is


def test_a_message_that_was_processed_is_remembered_no_longer(workshop: Workshop) -> None:
    put(workshop, "poison")
    fail(workshop, "poison", 3)
    workshop.advance(minutes=10)
    assert look(workshop) == (10, "sample")

    workshop.broker.settle("orders", [take(workshop, "poison").receipt])
    put(workshop, "next")
    workshop.advance(minutes=1)
    assert look(workshop) == (1, "sample")


def test_what_a_look_has_cost_is_known_also_when_the_run_fails_after_it(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.world.create("orders", dead_letter_queue="orders-dlq", max_deliveries=3)  # bears one look
    put(workshop, "order")

    def broken(*_: object) -> None:
        raise BrokerUnavailable("consumers of orders")

    with monkeypatch.context() as patched:
        patched.setattr("redrive.stages.observe.consumers.look", broken)
        for _ in range(5):
            run = workshop.begin()
            with pytest.raises(BrokerUnavailable):
                pipeline.observe(workshop.settings, run, **workshop.options())
            pipeline.finish(workshop.settings, run, "failed", workshop.now)

    assert take(workshop, "order").letter.deliveries == 2


def test_a_queue_that_was_empty_since_can_bear_looks_again(workshop: Workshop) -> None:
    workshop.world.create("orders", dead_letter_queue="orders-dlq", max_deliveries=3)
    for number in range(3):
        put(workshop, f"order-{number}")
        workshop.advance(minutes=1)
        assert look(workshop) == (1, "sample")
        assert look(workshop) == (1, "ledger")  # a second look at it would be one too many, and nothing has left
        assert workshop.consume() == 1
        workshop.advance(minutes=10)
        assert look(workshop) == (None, "broker")
        workshop.advance(minutes=10)


def test_a_queue_that_we_may_not_receive_from_does_not_stop_the_route(workshop: Workshop) -> None:
    put(workshop, "order")
    workshop.world.faults.forbidden = {("orders", "receive")}
    run = workshop.begin()
    counts = pipeline.observe(workshop.settings, run, **workshop.options())

    assert (counts["refused_looks"], counts["destination_depth"]) == (1, 1)


def test_a_message_that_comes_back_is_as_old_as_when_it_was_first_sent(workshop: Workshop) -> None:
    workshop.die("order")
    workshop.cycle()
    workshop.advance(minutes=30)
    assert workshop.consume(lambda _: "ConnectionRefusedError: again") == 1
    workshop.cycle()

    assert workshop.query(
        "select round(oldest_age_seconds / 60), oldest_age_method from queue_observations where queue = 'orders-dlq'"
        " and oldest_age_method <> 'unknown' order by observation_id desc limit 1"
    ) == [(30, "ledger")]
