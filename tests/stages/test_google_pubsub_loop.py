"""The whole loop on Pub/Sub's protocol: dead-lettered by the broker, drained, classified, sent back, recognised.

The broker is our stand-in (tests/stand_ins/pubsub.py) with a clock that the tests move; adapter, gRPC and Google's
client library are the real ones.
"""

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from redrive.brokers import registry
from redrive.classification.causes import Cause
from redrive.errors import QueuesFailed
from redrive.message import DeadLetter, Header
from redrive.settings import Canary
from redrive.stages import doctor, pipeline
from tests.contract.broker_contract import PATIENCE
from tests.contract.test_google_pubsub import Operator, adapter, connection, subscription, topic
from tests.stages.loop_contract import LoopContract
from tests.stand_ins.pubsub import PubSubServer
from tests.stand_ins.pubsub_topics import Refusal, World
from tests.workshop import Workshop, outgoing

pytestmark = pytest.mark.server

NO_WAIT = timedelta(0)
MINUTE = timedelta(minutes=1)
ATTEMPTS = 5


class PubSubWorkshop(Workshop):
    """A workshop whose broker is Pub/Sub.

    Topic ``orders`` is read by subscription ``orders-worker``, which dead-letters to topic ``dead`` after five
    deliveries; the route drains ``orders-dlq``, a subscription on that.
    """

    def __init__(self, folder: Path, **route: Any) -> None:
        source = {"queue": "orders-dlq", "kind": "dead_letter", "max_deliveries": ATTEMPTS}
        on_pubsub = {"broker": "google_pubsub", "connection": "pubsub", "sources": [source], "destination": None}
        super().__init__(folder, **(on_pubsub | {"drain": {"wait": "0s", "lease": "1m"}} | route))
        self.pubsub = World(clock=lambda: self.time.now / 1e6)
        self.server = PubSubServer(self.pubsub).start()
        self.broker = self.open()  # type: ignore[assignment]
        self.operator = Operator(self.broker)  # type: ignore[arg-type]
        self.operator.topic("orders")
        self.operator.topic("dead")
        self.operator.subscribe("orders-dlq", "dead")
        policy = {"dead_letter_topic": topic("dead"), "max_delivery_attempts": ATTEMPTS}
        self.operator.subscribe("orders-worker", "orders", dead_letter_policy=policy)

    def open(self, **options: Any) -> Any:
        """An adapter of its own, as another task has."""
        options = {"sleep": time.sleep, "monotonic": lambda: self.time.now / 1e6, "timeout": PATIENCE} | options
        return adapter(self.server.endpoint, **options)

    def close(self) -> None:
        self.broker.close()
        self.server.stop()
        self.ledger.close()

    def buy(self, *orders: str, **fields: Any) -> None:
        """A shop publishes orders."""
        messages = [
            outgoing(n, order.encode())._replace(headers=(Header("order", "String", order),), **fields)
            for n, order in enumerate(orders)
        ]
        assert {result.status for result in self.broker.publish("orders", messages)} == {"sent"}

    def work(self, succeeds: Callable[[DeadLetter], bool] = lambda _: True) -> list[bytes]:
        """A consumer works off its subscription; what fails is given back until it is dead-lettered."""
        done, queue = [], "orders-worker"
        while received := self.broker.receive(queue, limit=1000, wait=NO_WAIT, lease=MINUTE):
            good = [one for one in received if succeeds(one.letter)]
            self.broker.settle(queue, [one.receipt for one in good])
            self.broker.release(queue, [one.receipt for one in received if one not in good])
            done += [one.letter.body for one in good]
        return done

    def fail(self) -> None:
        """A consumer that can't."""
        assert self.work(lambda _: False) == []

    def held(self, name: str) -> list[bytes]:
        """What lies in a subscription."""
        return [bytes(message.data) for message in self.pubsub.peek(subscription(name))]


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[..., PubSubWorkshop]]:
    made: list[PubSubWorkshop] = []

    def build(**route: Any) -> PubSubWorkshop:
        made.append(PubSubWorkshop(tmp_path, **route))
        return made[-1]

    yield build
    for one in made:
        one.close()


Build = Callable[..., PubSubWorkshop]


def test_a_dead_letter_goes_back_to_the_topic_on_which_it_failed(build: Build) -> None:
    shop = build()
    shop.buy("1", "2", "3", ordering_key="customer-7")
    shop.fail()
    assert sorted(shop.held("orders-dlq")) == [b"1", b"2", b"3"]
    report = shop.cycle()

    assert (report["drained"], report["new"], report["redelivered"]) == (3, 3, 3)
    assert shop.held("orders-dlq") == []
    [first, *_] = shop.pubsub.peek(subscription("orders-worker"))
    assert (first.data, first.ordering_key, first.attributes["order"]) == (b"1", "customer-7", "1")
    assert set(first.attributes) == {"order", "x-redrive-id", "x-redrive-attempt"}
    assert shop.work() == [b"1", b"2", b"3"]
    assert shop.audit() == []


class TestLoop(LoopContract):
    @pytest.fixture
    def shop(self, build: Build) -> PubSubWorkshop:
        return build()

    def fail(self, shop: PubSubWorkshop, *orders: str) -> None:
        shop.buy(*orders)
        shop.fail()

    def work(self, shop: PubSubWorkshop, fails: Callable[[str], bool] = lambda _: False) -> list[str]:
        return sorted(body.decode() for body in shop.work(lambda letter: not fails(letter.body.decode())))

    def restart(self, shop: PubSubWorkshop, held: int) -> None:
        shop.broker.close()
        shop.broker = shop.open()
        shop.advance(minutes=2)


def test_a_return_that_pubsub_forwards_twice_is_one_return(build: Build) -> None:
    """Dead-lettering is best effort: the same message may be forwarded twice, under two ids."""
    shop = build()
    shop.buy("1")
    shop.fail()
    shop.cycle()
    shop.pubsub.faults.forward_twice = 1
    shop.fail()
    assert shop.held("orders-dlq") == [b"1", b"1"]
    report = shop.cycle()

    assert (report["returned"], report["new"]) == (1, 0)
    assert sum(shop.states().values()) == 1
    assert shop.query("select kind from repeat_copies order by kind") == [("returned",), ("surplus",)]
    assert shop.audit() == []


def test_several_subscriptions_of_a_topic_are_for_people(build: Build) -> None:
    shop = build()
    shop.operator.subscribe("audit-log", "orders")
    shop.buy("1")
    shop.fail()
    report = shop.cycle()

    assert (report["redelivered"], report["escalated"]) == (0, 1)
    [(reason,)] = shop.query("select reason from escalated_messages")
    assert reason.startswith("orders has 2 subscriptions")
    assert shop.held("orders-worker") == []
    assert shop.held("audit-log") == [b"1"]  # of the first publish
    assert shop.audit() == []


def test_several_subscriptions_get_it_where_the_route_allows_it(build: Build) -> None:
    shop = build(fan_out="allow")
    shop.operator.subscribe("audit-log", "orders")
    shop.buy("1")
    shop.fail()

    assert shop.cycle()["redelivered"] == 1
    assert shop.held("orders-worker") == [b"1"]
    assert shop.held("audit-log") == [b"1", b"1"]


def test_a_filter_keeps_redelivered_messages_from_subscribers_that_had_succeeded(build: Build) -> None:
    shop = build(fan_out="allow")
    shop.operator.subscribe("audit-log", "orders", filter='NOT attributes:"x-redrive-id"')
    shop.buy("1")
    shop.fail()
    shop.cycle()

    assert shop.held("orders-worker") == [b"1"]
    assert shop.held("audit-log") == [b"1"]  # of the first publish


def test_a_subscription_can_be_a_delay_queue(build: Build) -> None:
    delay = {"queue": "later-30s", "kind": "delay", "delay": "30s", "destination": "orders"}
    shop = build(sources=[delay])
    shop.operator.topic("later-30s")
    shop.operator.subscribe("later-30s", "later-30s")
    shop.broker.publish("later-30s", [outgoing(1, b"remind")])
    assert shop.cycle()["waiting"] == 1
    assert shop.held("later-30s") == []
    shop.advance(seconds=31)

    assert shop.cycle()["redelivered"] == 1
    assert shop.work() == [b"remind"]


def restore(shop: PubSubWorkshop) -> dict[str, Any]:
    run = shop.begin()
    try:
        return pipeline.restore(shop.settings, run, **shop.options())
    finally:
        pipeline.finish(shop.settings, run, "succeeded", shop.now)


@pytest.mark.parametrize("namesake", [False, True], ids=["alone", "namesake"])
def test_restore_puts_everything_back_as_it_was(build: Build, namesake: bool) -> None:
    """Also where a topic has the name of the subscription."""
    shop = build(processed_check=None, causes={"max_deliveries": {"verdict": "escalate"}})
    if namesake:
        shop.operator.topic("orders-dlq")
    shop.buy("1")
    shop.fail()
    before = dict(shop.pubsub.peek(subscription("orders-dlq"))[0].attributes)
    shop.cycle()
    assert restore(shop)["restored"] == 1

    [back] = shop.pubsub.peek(subscription("orders-dlq"))
    assert (back.data, dict(back.attributes)) == (b"1", before)


@pytest.mark.parametrize("allowed", [False, True], ids=["refuse", "allow"])
def test_a_restore_reaches_other_readers_of_the_dead_letter_topic_only_where_it_may(
    build: Build, allowed: bool
) -> None:
    shop = build(causes={"max_deliveries": {"verdict": "escalate"}}, fan_out="allow" if allowed else "refuse")
    shop.buy("1")
    shop.fail()
    shop.cycle()
    shop.operator.subscribe("dead-archive", "dead")
    told = restore(shop)

    assert (told["restored"], told["not_restored"]) == ((1, 0) if allowed else (0, 1))
    assert shop.held("orders-dlq") == shop.held("dead-archive") == ([b"1"] if allowed else [])
    assert shop.states() == {"discarded" if allowed else "escalated": 1}
    if not allowed:
        [words] = told["problems"].values()
        assert words == f"{topic('dead')} has 2 subscriptions: all of them would get the message, and fan_out is refuse"
    assert shop.audit() == []


def test_nothing_is_restored_into_a_subscription_that_is_gone(build: Build) -> None:
    """Its name may still be that of a topic, and what is published there nobody would get."""
    shop = build(causes={"max_deliveries": {"verdict": "escalate"}})
    shop.operator.topic("orders-dlq")
    shop.buy("1")
    shop.fail()
    shop.cycle()
    shop.pubsub.delete_subscription(subscription("orders-dlq"))
    told = restore(shop)

    assert (told["restored"], told["not_restored"]) == (0, 1)
    assert "orders-dlq" in next(iter(told["problems"].values()))
    assert shop.states() == {"escalated": 1}
    shop.operator.subscribe("orders-dlq", "dead")
    assert restore(shop)["restored"] == 1
    assert shop.held("orders-dlq") == [b"1"]
    assert shop.audit() == []


def test_with_monitoring_a_send_is_presumed_once_its_destination_was_seen_empty(build: Build) -> None:
    """Its numbers are two minutes late, so an empty destination of before the send proves nothing; nor does one a
    minute after it, as its clock may be ahead of ours."""
    shop = build()
    shop.pubsub.monitoring_lag = 120
    shop.broker.close()
    shop.broker = shop.open(extra={"monitoring_endpoint": shop.server.endpoint}, clock=lambda: shop.time.now / 1e6)
    shop.buy("1")
    shop.fail()
    shop.pubsub.sample()
    shop.advance(minutes=3)
    shop.cycle()
    shop.work()
    shop.advance(minutes=1)
    shop.cycle()
    assert shop.states() == {"sent": 1}, "monitoring shows what was before the send"
    shop.pubsub.sample()
    for _ in range(3):
        shop.advance(minutes=4)
        shop.cycle()
    assert shop.states() == {"sent": 1}
    shop.pubsub.sample()
    for _ in range(3):
        shop.advance(minutes=4)
        shop.cycle()
    assert shop.states() == {"presumed": 1}
    assert shop.audit() == []


@pytest.mark.parametrize(
    ("fan_out", "readers", "level", "words"),
    [
        ("refuse", 0, "error", "nobody is subscribed"),
        ("refuse", 2, "warning", "fan_out is refuse"),
        ("allow", 2, "warning", "all of them get"),
    ],
)
def test_the_doctor_says_who_else_reads_a_destination(
    build: Build, monkeypatch: pytest.MonkeyPatch, fan_out: str, readers: int, level: str, words: str
) -> None:
    shop = build(fan_out=fan_out, destination={"queue": "bills"})
    shop.operator.topic("bills")
    for number in range(readers):
        shop.operator.subscribe(f"bills-{number}", "bills")
    monkeypatch.setenv("AIRFLOW_CONN_PUBSUB", connection(shop.server.endpoint))
    found = [one for one in doctor.examine(shop.settings, ["orders"]) if one.subject == "orders: destination bills"]

    assert found[0].text.startswith("exists; the broker does not tell") or readers == 0
    assert (found[-1].level, words in found[-1].text) == (level, True)


# --- when things break --------------------------------------------------------------------------------------


def test_a_restart_in_the_middle_of_a_drain_loses_and_doubles_nothing(build: Build) -> None:
    shop = build(drain={"wait": "0s", "lease": "1m", "flush_messages": 4})
    shop.buy(*"123456789")
    shop.fail()
    shop.broker.settle("orders-dlq", [])
    calls = itertools.count(1)

    def restart(method: str, _: str) -> None:
        if method == "Acknowledge" and next(calls) == 2:
            shop.server.restart()

    shop.pubsub.faults.before = restart
    report = shop.cycle()

    assert (report["drained"], report["new"], report["redelivered"]) == (9, 9, 9)
    assert sorted(shop.work()) == sorted(b"%d" % n for n in range(1, 10))
    assert shop.held("orders-dlq") == []
    assert shop.audit() == []


def test_a_server_that_stays_away_in_a_drain_makes_duplicates_that_are_recognised(build: Build) -> None:
    """Staged and recorded, but never acked: the copies come again with the id and time that they had."""
    shop = build()
    shop.buy("1", "2", "3")
    shop.fail()

    def stop(method: str, _: str) -> None:
        if method == "Acknowledge":
            shop.server.stop()
            raise Refusal("UNAVAILABLE", "going away")

    shop.pubsub.faults.before = stop
    run = shop.begin()
    pipeline.drain(shop.settings, run, **shop.options())
    shop.pubsub.faults.before = None
    shop.server.start()
    with pytest.raises(QueuesFailed, match="orders-dlq: 3 of 3 copies"):
        pipeline.report(shop.settings, run)
    pipeline.finish(shop.settings, run, "failed", shop.now)
    shop.broker.close()
    shop.broker = shop.open()
    shop.advance(minutes=2)
    report = shop.cycle()

    assert (report["drained"], report["duplicates"], report["new"]) == (3, 3, 3)
    assert sorted(shop.work()) == [b"1", b"2", b"3"]
    assert shop.held("orders-dlq") == []
    assert shop.audit() == []


def test_a_restart_in_the_middle_of_a_delivery_leaves_one_window_unknown(build: Build) -> None:
    """The second window was taken, but the answer went down with the connection."""
    shop = build(deliver={"confirm_window": 2, "slice": 6})
    shop.buy(*"123456")
    shop.fail()
    calls = itertools.count(1)

    def cut(method: str, name: str) -> None:
        if method == "Publish" and name == topic("orders") and next(calls) == 2:
            shop.pubsub.faults.hang["Publish"] = 1
            threading.Timer(0.2, shop.server.restart).start()

    shop.pubsub.faults.before = cut
    report = shop.cycle()

    assert (report["redelivered"], report["unknown"]) == (2, 2), "no more is put in doubt where nothing is confirmed"
    assert shop.cycle()["redelivered"] == 2
    assert sorted(shop.work()) == sorted(b"%d" % n for n in range(1, 7)), "each arrived once"
    assert shop.audit() == []
    shop.advance(hours=1)
    shop.cycle()
    assert shop.work() == [], "what is unknown is not sent again without proof"
    assert shop.states()["escalated"] == 2
    assert shop.audit() == []


def test_a_server_that_is_away_has_taken_nothing(build: Build) -> None:
    shop = build(deliver={"confirm_window": 2, "slice": 6})
    shop.buy(*"123456")
    shop.fail()
    publish, windows = shop.broker.publish, itertools.count(1)

    def publish_later(queue: str, messages: Any) -> Any:
        if next(windows) == 2:
            shop.server.stop()
            # Nobody is there to take it. By it the client notices that its connection is gone: what it sends over one
            # that breaks meanwhile is unknown, and rightly so.
            publish(queue, messages)
        return publish(queue, messages)

    shop.broker.publish = publish_later
    run = shop.begin()
    with pytest.raises(QueuesFailed, match="orders"):  # told by the report, after all other stages
        for _ in shop.stages(run):
            pass
    pipeline.finish(shop.settings, run, "failed", shop.now)
    assert shop.states() == {"sent": 2, "waiting": 4}
    shop.server.start()
    shop.broker.close()
    shop.broker = shop.open()
    shop.advance(minutes=1)
    shop.cycle()

    assert sorted(shop.work()) == sorted(b"%d" % n for n in range(1, 7))
    assert shop.audit() == []


# --- the story: a subscriber that prefetches more than it can work off ---------------------------------------


class SlowSubscriber:
    """Fetches ``max_messages`` at once and works on one after the other, ``seconds`` each.

    Nobody extends the leases (``max_lease_duration`` is over), so all but the first few acks come too late, and
    Pub/Sub says nothing. It is restarted after ``patience`` messages, as deployments do.
    """

    def __init__(self, shop: PubSubWorkshop, processed: sa.Engine) -> None:
        self._shop = shop
        self._processed = processed

    def run(self, *, max_messages: int, seconds: float, patience: int) -> int:
        shop = self._shop
        lease = timedelta(seconds=10)  # the subscription's ackDeadlineSeconds
        fetched = shop.broker.receive("orders-worker", limit=max_messages, wait=NO_WAIT, lease=lease)
        for one in fetched[:patience]:
            with self._processed.begin() as connection:
                order = next(h.value for h in one.letter.headers if h.name == "order")
                connection.execute(sa.text("insert or ignore into processed values (:order)"), {"order": order})
            shop.advance(seconds=seconds)
            shop.broker.settle("orders-worker", [one.receipt])
        shop.advance(seconds=30)  # the restart
        return len(fetched)


def test_processed_messages_in_the_dead_letter_topic_are_suppressed_and_the_rest_goes_back_slowly(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processed = sa.create_engine(f"sqlite:///{tmp_path}/orders.db")
    with processed.begin() as connection:
        connection.execute(sa.text("create table processed (message_id text primary key)"))
    orders_db = {"conn_type": "sqlite", "host": f"{tmp_path}/orders.db"}
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS_DB", json.dumps(orders_db))
    check = {
        "connection": "orders_db",
        "query": "select message_id from processed where message_id in :keys",
        "key": "attribute:order",  # the broker's ids change on the way to the dead-letter topic and back
        "settle_after": "1s",
    }
    shop = build(
        processed_check=check,
        sources=[{"queue": "orders-dlq", "max_deliveries": ATTEMPTS, "lease": "10s"}],  # this client renews nothing
        causes={"max_deliveries": {"rate": {"max_in_flight": 2}}},
    )
    subscriber = SlowSubscriber(shop, processed)
    shop.buy(*(f"order-{n:02}" for n in range(20)))
    while subscriber.run(max_messages=20, seconds=4, patience=6):
        pass
    dead = sorted(body.decode() for body in shop.held("orders-dlq"))
    with processed.connect() as connection:
        done = set(connection.scalars(sa.text("select message_id from processed")))
    assert dead == [f"order-{n}" for n in range(10, 20)]
    assert [order for order in dead if order in done] == ["order-10", "order-11", "order-12", "order-13"]

    # Pub/Sub doesn't say why. Every delivery lasted as long as a lease, but so it would have seemed of messages that
    # waited in a backlog: that is a "may be". The record tells.
    shop.advance(minutes=1)
    first = shop.cycle()
    [(cause, template)] = shop.query(
        "select distinct messages.cause, template from messages inner join failure_groups using (group_id)"
    )
    assert (cause, template) == (
        Cause.MAX_DELIVERIES.value,
        "no failure text, leases may have run out, or it waited in a backlog",
    )
    assert first["suppressed"] == 4, "what was done is not done again"
    assert first["redelivered"] == 2, "the rest goes back with few in flight"
    assert shop.held("orders-worker") == [b"order-14", b"order-15"]

    # The advice is taken: few at a time.
    while shop.states().get("waiting"):
        while subscriber.run(max_messages=1, seconds=4, patience=1):
            pass
        shop.cycle()
    while subscriber.run(max_messages=1, seconds=4, patience=1):
        pass
    shop.cycle()
    assert shop.states() == {"suppressed": 4, "confirmed": 6}
    assert shop.held("orders-dlq") == shop.held("orders-worker") == []
    assert shop.audit() == []
    advice = registry.advice(Cause.LEASE_EXPIRED, "google_pubsub")
    assert "max_messages" in advice
    assert "max_lease_duration" in advice
    assert "leased too long" in registry.advice(Cause.MAX_DELIVERIES, "google_pubsub")


def test_a_message_that_waited_in_a_backlog_is_not_said_to_have_lost_its_lease(build: Build) -> None:
    """An hour in the backlog, then five quick refusals. The lease that counts is that of the client: an hour."""
    shop = build()
    shop.buy("early", "late")
    shop.advance(hours=5)
    shop.fail()
    shop.buy("quick")
    shop.advance(minutes=20)  # many ack deadlines, and no time for a client that renews its leases
    shop.fail()
    shop.cycle()
    found = shop.query(
        "select distinct messages.cause, template, count(*) from messages inner join failure_groups using (group_id)"
        " group by messages.cause, template order by template desc"
    )
    assert found == [
        ("max_deliveries", "no failure text, leases may have run out, or it waited in a backlog", 2),
        ("max_deliveries", "no failure text", 1),
    ]


@pytest.mark.parametrize(
    ("error", "most"),
    [("Dropping 7 items because they were leased too long.", 1), ("", Canary().first)],
    ids=["leases-ran-out", "nothing-said"],
)
def test_with_default_settings_three_runs_pile_up_nothing_at_a_consumer_that_does_nothing(
    build: Build, error: str, most: int
) -> None:
    a_run = 200
    drain = {"limit": a_run, "wait": "0s", "lease": "1m"}
    shop = build(canary={}, backoff={}, drain=drain, evidence=["body:$.error"])
    shop.buy(*(json.dumps({"error": error, "order": number}) for number in range(3 * a_run)))
    shop.fail()
    piled = []
    for _ in range(3):
        assert shop.cycle()["drained"] == a_run
        piled.append(len(shop.held("orders-worker")))
        shop.advance(minutes=10)
    assert piled == [most] * 3


def test_the_doctor_asks_how_long_the_client_renews_its_leases(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = build()
    monkeypatch.setenv("AIRFLOW_CONN_PUBSUB", connection(shop.server.endpoint))
    [asked] = [one for one in doctor.examine(shop.settings, ["orders"]) if one.subject.endswith("orders-dlq: lease")]
    assert (asked.level, "1:00:00" in asked.text) == ("warning", True)
