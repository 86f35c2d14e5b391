"""Brokers that can't tell how many messages a queue holds, and destinations that several subscribers read."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from redrive.brokers.base import UNKNOWN_DEPTH, Depth, QueueInfo
from redrive.brokers.memory import MEMORY_CAPABILITIES, MemoryBroker
from redrive.cli import output
from redrive.cli.app import app
from redrive.errors import UsageError
from redrive.ledger.account import inspecting
from redrive.ledger.delivery import breakers, gate_waits, in_flight
from redrive.message import DeadLetter, Header, Received
from redrive.stages import doctor, pipeline
from tests import query_plans
from tests.workshop import REFUSED, Workshop, outgoing


class TopicBroker(MemoryBroker):
    """A broker that knows no depth and publishes to topics: what Pub/Sub is to the stages."""

    def __init__(self, workshop: Workshop) -> None:
        super().__init__(workshop.world)
        self.capabilities = replace(MEMORY_CAPABILITIES, knows_empty=False, single_target=False)
        self.told: Callable[[str], Depth] = lambda _: UNKNOWN_DEPTH
        self.subscribers: int | None = 1
        self.receives = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def depth(self, queue: str) -> Depth:
        super().depth(queue)
        return self.told(queue)

    def describe(self, queue: str) -> QueueInfo:
        return super().describe(queue)._replace(subscribers=self.subscribers)

    def receive(self, queue: str, *, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:
        self.receives += 1
        self.meanwhile()
        return super().receive(queue, limit=limit, wait=wait, lease=lease)


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[..., tuple[Workshop, TopicBroker]]]:
    made: list[Workshop] = []

    def build(**route: object) -> tuple[Workshop, TopicBroker]:
        only = [{"queue": "orders-dlq", "kind": "dead_letter", "lease": "2s", "max_deliveries": 3}]
        workshop = Workshop(tmp_path, **({"sources": only} | route))
        workshop.broker = TopicBroker(workshop)
        made.append(workshop)
        return workshop, workshop.broker

    yield build
    for one in made:
        one.ledger.close()


Build = Callable[..., tuple[Workshop, TopicBroker]]


def test_a_drain_ends_after_three_quiet_receives(build: Build) -> None:
    workshop, broker = build()
    workshop.die("a", "b", "c")
    report = workshop.cycle()

    assert (report["drained"], report["redelivered"]) == (3, 3)
    assert broker.receives == 1 + 3
    assert workshop.audit() == []


def test_what_comes_in_during_a_drain_does_not_keep_it_running(build: Build) -> None:
    """The moment of the start is the snapshot: nothing older came in three receives."""
    workshop, broker = build()
    workshop.die("old")

    def bounce() -> None:
        workshop.advance(seconds=1)
        workshop.die("new", dead_lettered_at=workshop.time.now)

    broker.meanwhile = bounce
    run = workshop.begin()
    counts = pipeline.drain(workshop.settings, run, **workshop.options())

    assert counts["drained"] == 1 + 1 + 3  # the old one came with a new one
    assert counts["complete:orders-dlq"] == 1
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)


def test_what_says_it_is_of_tomorrow_may_have_been_there_before_the_drain(build: Build) -> None:
    """Ten whose producer's clock is ahead, in front of one of ours that came back: three receives are not the end."""
    workshop, _ = build(drain={"flush_messages": 2, "wait": "0s"})
    workshop.die(*(f"{n}" for n in range(10)), enqueued_at=workshop.time.now + 6 * 3_600_000_000)
    workshop.die("ours", enqueued_at=workshop.time.now - 1)
    run = workshop.begin()
    counts = pipeline.drain(workshop.settings, run, **workshop.options())

    assert (counts["drained"], counts["complete:orders-dlq"]) == (11, 1)
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)


def test_the_limit_of_the_run_ends_a_drain_that_knows_no_depth(build: Build) -> None:
    workshop, _ = build(drain={"limit": 2, "wait": "0s"})
    workshop.die("a", "b", "c")
    run = workshop.begin()
    counts = pipeline.drain(workshop.settings, run, **workshop.options())

    assert counts["drained"] == 2
    assert "complete:orders-dlq" not in counts
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)


def test_a_lease_is_no_longer_than_the_broker_allows(build: Build) -> None:
    workshop, broker = build(drain={"lease": "12h", "wait": "0s"})
    broker.capabilities = replace(broker.capabilities, max_lease=timedelta(minutes=10))
    asked: list[timedelta] = []
    receive = broker.receive
    broker.receive = lambda queue, **how: asked.append(how["lease"]) or receive(queue, **how)  # type: ignore[method-assign, func-returns-value]
    workshop.die("a")
    workshop.cycle()

    assert set(asked) == {timedelta(minutes=10)}


def test_what_is_unknown_is_written_down_as_unknown(build: Build) -> None:
    workshop, _ = build()
    workshop.cycle()

    assert set(workshop.query("select visible, in_flight, delayed from queue_observations")) == {(None, None, None)}


def test_absence_proves_nothing_while_the_destination_tells_nothing(build: Build) -> None:
    workshop, broker = build()
    workshop.die("a", error=REFUSED)
    workshop.cycle()
    workshop.consume()
    for _ in range(3):
        workshop.advance(minutes=10)
        workshop.cycle()
    assert workshop.states() == {"sent": 1}

    broker.told = lambda _: Depth(0, 0, 0)
    workshop.cycle()
    workshop.advance(minutes=10)
    workshop.cycle()
    assert workshop.states() == {"presumed": 1}


def test_a_canary_says_that_it_waits_for_a_person_where_nobody_tells_a_depth(build: Build) -> None:
    workshop, broker = build(canary={"first": 1, "grow": 10, "pass": 0.9, "observe": "1m"})
    workshop.die("a", "b", "c", error=REFUSED)
    for _ in range(3):
        workshop.cycle()
        workshop.consume()
        workshop.advance(minutes=10)
    assert workshop.states() == {"sent": 1, "held": 2}
    with workshop.ledger.read() as connection:
        (wait,) = gate_waits.waits(connection, "orders", workshop.now())
    assert "how much it holds is not known" in wait.waits_for
    assert wait.waits_for.endswith(f"redrive release orders {wait.group_id}")

    breakers.release_group(workshop.ledger, "orders", wait.group_id or 0, first=1, by="ana", now=workshop.now())
    workshop.cycle()
    assert workshop.states() == {"sent": 2, "held": 1}, "on her word the next canary goes"
    broker.told = lambda _: Depth(0, 0, 0)
    workshop.consume()
    workshop.advance(minutes=10)
    workshop.cycle()
    with workshop.ledger.read() as connection:
        assert not any(
            "redrive release" in one.waits_for for one in gate_waits.waits(connection, "orders", workshop.now())
        )


def test_sends_of_which_nobody_will_learn_are_not_left_for_runs(build: Build) -> None:
    """They may come back for a while; then only a person can say what became of them."""
    workshop, _ = build(canary="off")
    workshop.die("a", "b", error=REFUSED)
    workshop.cycle()

    def left() -> inspecting.ToDo:
        with workshop.ledger.read() as connection:
            return inspecting.to_do(connection, "orders", workshop.now())

    assert (left().messages, left().stuck) == (2, [])
    workshop.advance(hours=2)
    workshop.cycle()
    assert (left().messages, left().words) == (0, "")
    (said,) = left().stuck
    assert said.startswith("2 sends to orders have no outcome")
    assert said.endswith("redrive release orders --destination orders")


@pytest.mark.parametrize("told", [False, True])
def test_sends_of_which_nothing_tells_are_not_read_again_in_each_run(build: Build, told: bool) -> None:
    workshop, broker = build(canary="off")
    broker.capabilities = replace(broker.capabilities, in_order=False)
    workshop.die("a", "b", error=REFUSED)
    workshop.cycle()
    workshop.advance(minutes=10)
    if told:
        broker.told = lambda _: Depth(2, 0, 0)
    with query_plans.told() as steps:
        workshop.cycle()
    assert any("first_outcome_at" in step.statement for step in steps) is told


def test_a_late_depth_counts_from_when_it_was_so(build: Build) -> None:
    """Monitoring says: empty. But that was before the send."""
    workshop, broker = build()
    workshop.die("a", error=REFUSED)
    before = workshop.time.now
    broker.told = lambda _: Depth(0, 0, 0, as_of=before, by_its_clock=True)
    workshop.advance(minutes=1)
    for _ in range(3):
        workshop.cycle()
        workshop.advance(minutes=10)
    assert workshop.states() == {"sent": 1}
    seen = workshop.query("select distinct observed_at from queue_observations where role = 'destination'")
    assert [datetime.fromisoformat(str(at)).timestamp() * 1e6 for (at,) in seen] == [before]


@pytest.mark.parametrize(("ahead", "states"), [(110, {"sent": 1}), (130, {"presumed": 1})])
def test_a_moment_that_the_broker_tells_counts_once_it_is_later_by_any_clock(
    build: Build, ahead: float, states: dict[str, int]
) -> None:
    """Empty, so many seconds after the send; but the broker's clock may be two minutes ahead of the sender's."""
    workshop, broker = build(canary="off")
    workshop.die("a", error=REFUSED)
    workshop.cycle()
    after = workshop.time.now + int(ahead * 1_000_000)
    broker.told = lambda _: Depth(0, 0, 0, as_of=after, by_its_clock=True)
    for _ in range(3):
        workshop.advance(minutes=10)
        workshop.cycle()
    assert workshop.states() == states


def test_no_more_is_in_flight_over_all_runs_than_may_be_where_nothing_is_told(build: Build) -> None:
    """An idle consumer: what run after run sends would pile up there, and nobody would see it."""
    workshop, _ = build(rate={"per_second": 1000, "max_in_flight": 3}, deliver={"slice": 2})
    workshop.die(*"abcdefgh", error=REFUSED)

    assert workshop.cycle()["redelivered"] == 3
    for _ in range(3):
        workshop.advance(minutes=10)
        assert workshop.cycle()["redelivered"] == 0
    assert len(workshop.bodies("orders")) == 3


def test_what_came_back_makes_room_where_nothing_is_told(build: Build) -> None:
    workshop, _ = build(rate={"per_second": 1000, "max_in_flight": 3}, deliver={"slice": 2}, canary="off")
    workshop.die(*"abcdefgh", error=REFUSED)
    workshop.cycle()
    assert workshop.consume(lambda letter: REFUSED if letter.body == b"a" else None) == 3

    assert workshop.cycle()["redelivered"] == 1, "one of three is known to be there no more"


def test_tasks_of_one_run_share_the_room_where_nothing_is_told(build: Build) -> None:
    rate = {"per_second": 1000, "max_in_flight": 3}
    workshop, _ = build(rate=rate, deliver={"slice": 2, "shards": 4})
    workshop.die(*"abcdefgh", error=REFUSED)
    run = workshop.planned()
    sent = [
        pipeline.deliver(workshop.settings, run, shard=shard, **workshop.options())["redelivered"] for shard in range(4)
    ]
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)

    assert sum(sent) == 3


def test_a_person_may_say_that_the_destination_has_worked(build: Build) -> None:
    workshop, _ = build(rate={"per_second": 1000, "max_in_flight": 3})
    workshop.die(*"abcdefgh", error=REFUSED)
    workshop.cycle()
    workshop.advance(minutes=10)
    assert workshop.cycle()["redelivered"] == 0
    assert in_flight.vouch(workshop.ledger, "orders", "orders", by="ana", now=workshop.now()) == 3
    workshop.advance(minutes=10)

    assert workshop.cycle()["redelivered"] == 3
    [(by,)] = workshop.query("select actor from audit_events where action = 'release_gate'")
    assert by == "ana"


def in_order(build: Build, **route: object) -> tuple[Workshop, TopicBroker]:
    """Three messages of one key, the first of which was sent."""
    workshop, broker = build(order_by="attribute:customer", deliver={"run_for": "1s"}, **route)
    for number in range(3):
        headers = (Header("customer", "String", "c"), Header("error", "String", REFUSED))
        workshop.world.put("orders-dlq", DeadLetter("", b"%d" % number, headers, origin="orders"))
    assert workshop.cycle()["redelivered"] == 1
    return workshop, broker


@pytest.mark.parametrize("days", [0, 8])
def test_a_persons_word_lets_the_next_message_of_a_key_go(build: Build, days: int) -> None:
    """Also long after: by then nothing counts as in flight any more."""
    workshop, broker = in_order(build, give_up_after="90d")
    broker.told = lambda _: Depth(0, None, None)
    for left in (2, 1):
        workshop.consume()
        workshop.advance(hours=1, days=days)
        workshop.cycle()
        assert workshop.states()["waiting"] == left
        assert in_flight.vouch(workshop.ledger, "orders", "orders", by="ana", now=workshop.now()) == 1
        workshop.cycle()
        assert workshop.states()["waiting"] == left, "the window has begun, and is not over"
        workshop.advance(hours=1)
        workshop.cycle()
        workshop.cycle()
        assert workshop.states().get("waiting", 0) == left - 1
    assert workshop.states() == {"presumed": 2, "sent": 1}
    assert workshop.audit() == []


def test_what_came_back_after_a_persons_word_was_not_worked_off(build: Build) -> None:
    workshop, _ = in_order(build)
    in_flight.vouch(workshop.ledger, "orders", "orders", by="ana", now=workshop.now())
    workshop.consume(lambda _: REFUSED)
    workshop.advance(hours=1)
    report = workshop.cycle()
    assert (report["returned"], report["presumed"]) == (1, 0)


def test_a_persons_word_proves_nothing_where_the_depth_is_told(build: Build) -> None:
    workshop, broker = in_order(build)
    broker.told = lambda _: Depth(1, 0, 0)
    workshop.cycle()
    in_flight.vouch(workshop.ledger, "orders", "orders", by="ana", now=workshop.now())
    workshop.advance(hours=1)
    workshop.cycle()
    workshop.cycle()
    assert workshop.states() == {"sent": 1, "waiting": 2}
    assert workshop.query("select observed_from from delivery_slices") == [(None,)]


@pytest.mark.parametrize("depth", [UNKNOWN_DEPTH, Depth(1, 0, 0)])
def test_a_release_is_tried_as_it_is_made(build: Build, monkeypatch: pytest.MonkeyPatch, depth: Depth) -> None:
    """Where the depth is told a person's word counts for nothing, and says so; nothing is noted then."""
    workshop, broker = in_order(build)
    broker.told = lambda _: depth
    workshop.cycle()
    monkeypatch.setattr("redrive.settings.load", lambda: workshop.settings)
    monkeypatch.setattr("redrive.cli.control.utc_now", workshop.now)
    words = ["release", "orders", "--destination", "orders"]
    if depth is not UNKNOWN_DEPTH:
        for tried in (["--dry-run"], []):
            with pytest.raises(UsageError, match="the breaker of orders holds nothing back"):
                CliRunner().invoke(app, [*words, *tried], catch_exceptions=False)
        assert workshop.query("select * from audit_events where action = 'release_gate'") == []
        return
    tried = CliRunner().invoke(app, [*words, "--dry-run"], catch_exceptions=False)
    assert "orders tells no depth: 1 sends without an outcome would count as worked off by now" in tried.output
    assert "gets messages again" in CliRunner().invoke(app, words, catch_exceptions=False).output


def test_status_says_what_messages_in_order_wait_for(build: Build) -> None:
    workshop, broker = in_order(build)
    for told in (UNKNOWN_DEPTH, Depth(1, 0, 0)):
        broker.told = lambda _, told=told: told  # type: ignore[misc]
        workshop.cycle()
        with workshop.ledger.read() as connection:
            status = inspecting.status(connection, "orders", workshop.now())
        untold = told is UNKNOWN_DEPTH
        assert (status["watching"]["untold"], status["watching"]["keeps_order"]) == (["orders"] * untold, untold)
        screen = Console(record=True, width=400)
        output.print_status(screen, status | {"configuration": {"last_run": None, "next_run": None}}, workshop.now())
        assert ("redrive release orders --destination orders" in screen.export_text()) is untold


@pytest.mark.parametrize(
    ("told", "route", "warns"),
    [
        (UNKNOWN_DEPTH, {"order_by": "attribute:customer"}, True),
        (Depth(1, None, 0), {"order_by": "attribute:customer"}, True),
        (Depth(1, 0, 0), {"order_by": "attribute:customer"}, False),
        (UNKNOWN_DEPTH, {}, False),
    ],
)
def test_doctor_warns_of_order_where_nothing_tells_an_outcome(
    build: Build, monkeypatch: pytest.MonkeyPatch, told: Depth, route: dict[str, object], warns: bool
) -> None:
    workshop, broker = build(**route)
    broker.told = lambda _: told
    monkeypatch.setattr(doctor, "open_broker", lambda *_: broker)
    found = [one for one in doctor.examine(workshop.settings, ["orders"]) if one.subject == "orders: order_by"]
    assert [one.level for one in found] == ["warning"] * warns


def test_what_a_queue_keeps_no_more_is_in_flight_no_more(build: Build) -> None:
    """Nothing of which nothing can be known may hold others back for ever."""
    workshop, _ = build(rate={"per_second": 1000, "max_in_flight": 3})
    workshop.die(*"abcdefgh", error=REFUSED)
    workshop.cycle()
    workshop.advance(days=8)

    assert workshop.cycle()["redelivered"] == 3


def test_leases_that_run_out_are_not_made_to_run_out_again(build: Build) -> None:
    """Five hundred messages that waited behind slow work are not sent behind it once more: one, and more as it proves
    itself. With a consumer that does nothing three runs send that one."""
    workshop, _ = build(
        processed_check={
            "connection": "orders_db",
            "query": "select order_id from done where order_id in :keys",
            "key": "attribute:message_id",
            "settle_after": "0s",
        }
    )
    database = workshop.folder / "orders.db"
    with closing(sqlite3.connect(database)) as done:
        done.execute("create table done (order_id text primary key)")
        done.commit()
    workshop.die(*(f"order-{n:03}" for n in range(500)), error="Dropping 7 items because they were leased too long.")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_ORDERS_DB", f'{{"conn_type": "sqlite", "host": "{database}"}}')
        in_its_hands = []
        for _ in range(3):
            workshop.cycle()
            in_its_hands.append(len(workshop.bodies("orders")))
            workshop.advance(minutes=10)
        assert in_its_hands == [1, 1, 1]

        for expected in (2, 4, 8):  # each that is proved lets one more go, beside the next in its place
            with closing(sqlite3.connect(database)) as done:
                done.executemany("insert into done values (?)", [(one.decode(),) for one in workshop.bodies("orders")])
                done.commit()
            workshop.consume()
            workshop.cycle()
            workshop.advance(minutes=10)
            assert len(workshop.bodies("orders")) == expected


@pytest.mark.parametrize("late", [60, 0, -60], ids=["late", "at once", "by a clock that is ahead"])
def test_a_late_depth_is_topped_up_with_our_own_sends(build: Build, late: int) -> None:
    workshop, broker = build(rate={"per_second": 1000, "max_in_flight": 5}, deliver={"slice": 2, "run_for": "1s"})
    broker.told = lambda _: Depth(1, 0, 0, as_of=workshop.time.now - late * 1_000_000, by_its_clock=True)
    workshop.die(*"abcdefgh", error=REFUSED)

    with query_plans.told() as steps:
        assert workshop.cycle()["redelivered"] == 4
    read = {step.text for step in steps if ":as_of_at" in step.statement or "closed_at > ?" in step.statement}
    assert any("ix_delivery_slices_destination (destination=? AND closed_at>?)" in text for text in read), read


def test_a_depth_of_a_moment_ago_by_our_own_clock_shows_what_was_sent_before(build: Build) -> None:
    """As RabbitMQ's statistics: else all that was sent in two minutes would take of each room."""
    workshop, broker = build(rate={"per_second": 1000, "max_in_flight": 5}, deliver={"slice": 2, "run_for": "10m"})

    def told(_: str) -> Depth:
        workshop.advance(seconds=10)
        return Depth(1, 0, 0, as_of=workshop.time.now - 5_000_000)

    broker.told = told
    workshop.die(*"abcdefgh", error=REFUSED)

    assert workshop.cycle()["redelivered"] == 8


# --- who reads a destination -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fan_out", "subscribers", "words"),
    [
        ("refuse", 2, "orders has 2 subscriptions: all of them would get the message, and fan_out is refuse"),
        ("refuse", None, "who reads orders is not known"),
        ("refuse", 0, "orders has no subscription: what is sent there is lost"),
        ("allow", 0, "orders has no subscription: what is sent there is lost"),
    ],
)
def test_people_decide_where_others_would_get_the_message_too(
    build: Build, fan_out: str, subscribers: int | None, words: str
) -> None:
    workshop, broker = build(fan_out=fan_out)
    broker.subscribers = subscribers
    workshop.die("a", "b", error=REFUSED)
    report = workshop.cycle()

    assert (report["redelivered"], report["escalated"]) == (0, 2)
    [(reason,)] = workshop.query("select distinct reason from escalated_messages")
    assert words in reason
    assert workshop.bodies("orders") == []
    assert workshop.audit() == []


def test_a_resend_is_for_people_too_once_somebody_else_reads(build: Build) -> None:
    workshop, broker = build(on_unknown="resend")
    workshop.world.faults.publishes.append("unknown")
    workshop.die("a", error=REFUSED)
    workshop.cycle()
    assert workshop.states() == {"unknown": 1}
    broker.subscribers = 2
    workshop.advance(hours=1)
    workshop.cycle()

    assert workshop.states() == {"escalated": 1}
    assert workshop.audit() == []


@pytest.mark.parametrize(("fan_out", "subscribers"), [("refuse", 1), ("allow", 2), ("allow", None)])
def test_it_is_sent_where_nobody_else_reads_or_the_route_allows_it(
    build: Build, fan_out: str, subscribers: int | None
) -> None:
    workshop, broker = build(fan_out=fan_out)
    broker.subscribers = subscribers
    workshop.die("a", error=REFUSED)

    assert workshop.cycle()["redelivered"] == 1


def test_a_broker_with_single_targets_is_not_asked(build: Build) -> None:
    workshop, broker = build()
    broker.capabilities = replace(broker.capabilities, single_target=True)
    broker.subscribers = 9
    workshop.die("a", error=REFUSED)

    assert workshop.cycle()["redelivered"] == 1


def test_a_delay_source_is_drained_without_a_depth_too(build: Build) -> None:
    source = {"queue": "orders-delay", "kind": "delay", "delay": "30s", "destination": "orders"}
    workshop, broker = build(sources=[source])
    broker.publish("orders-delay", [outgoing(1, b"later")])
    assert workshop.cycle()["waiting"] == 1
    workshop.advance(seconds=31)

    assert workshop.cycle()["redelivered"] == 1
    assert [letter.body for letter in workshop.world.peek("orders")] == [b"later"]
    assert isinstance(workshop.world.peek("orders")[0], DeadLetter)
