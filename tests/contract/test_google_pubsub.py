"""The Pub/Sub adapter: the contract on two servers that are not Google's service, and what only Pub/Sub does.

:class:`TestGooglePubSub` runs on our own stand-in, :class:`TestOnPstest` on the fake that Google's Go library has
for its tests, as an opinion that isn't ours.
"""

import itertools
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import google.api_core.exceptions as api
import google.auth.credentials
import google.auth.exceptions as auth
import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.api_core.exceptions import DeadlineExceeded
from google.auth.transport.grpc import AuthMetadataPlugin
from google.cloud import pubsub_v1
from google.pubsub_v1 import types

from redrive.brokers import open_broker
from redrive.brokers.base import NAMES_ASKED, UNKNOWN_DEPTH, Depth
from redrive.brokers.memory import ManualClock
from redrive.brokers.pubsub.adapter import GooglePubSub
from redrive.brokers.pubsub.clients import TellingCredentials
from redrive.brokers.pubsub.errors import certainly_not_taken, fate, known_error, may_pass
from redrive.brokers.pubsub.kind import FAILURE_HEADERS
from redrive.brokers.pubsub.message import parse_time
from redrive.errors import (
    BrokerError,
    BrokerUnavailable,
    NothingSent,
    PermissionRefused,
    QueueMissing,
    SettingsError,
)
from redrive.message import Header, Outgoing, clean_headers, tracking_headers
from tests.contract.broker_contract import LEASE, NO_WAIT, PATIENCE, BrokerContract, outgoing
from tests.servers import ServerMissing, free_port, missing
from tests.stand_ins.pstest_server import Pstest
from tests.stand_ins.pubsub import PubSubServer
from tests.stand_ins.pubsub_topics import Refusal, World

PROJECT = "shop"
SECOND = timedelta(seconds=1)


def connection(endpoint: str, **extra: object) -> str:
    return json.dumps(
        {"conn_type": "google_cloud_platform", "extra": {"project": PROJECT, "endpoint": endpoint, **extra}}
    )


def adapter(endpoint: str, *, extra: dict[str, object] | None = None, **options: object) -> GooglePubSub:
    """The adapter on ``endpoint``; it does not really sleep between tries unless told to."""
    options.setdefault("sleep", lambda seconds: None)
    env = {"AIRFLOW_CONN_PUBSUB_TEST": connection(endpoint, **(extra or {}))}
    return GooglePubSub.open("pubsub_test", env=env, **options)


def topic(name: str) -> str:
    return f"projects/{PROJECT}/topics/{name}"


def subscription(name: str) -> str:
    return f"projects/{PROJECT}/subscriptions/{name}"


class Operator:
    """Makes topics and subscriptions with Google's own client."""

    def __init__(self, broker: GooglePubSub, deadline: int = 10) -> None:
        self._publisher, self._subscriber = broker._clients.publisher, broker._clients.subscriber
        self._deadline = deadline

    def topic(self, name: str) -> str:
        self._publisher.create_topic(request={"name": topic(name)})
        return name

    def subscribe(self, name: str, to: str, **settings: object) -> str:
        settings.setdefault("ack_deadline_seconds", self._deadline)
        self._subscriber.create_subscription(request={"name": subscription(name), "topic": topic(to), **settings})
        return name

    def queue(
        self,
        *,
        ordered: bool = False,
        dead_letter_queue: str | None = None,
        max_deliveries: int | None = None,
        **settings: object,
    ) -> str:
        """A topic with one subscription, both under one new name: what the contract calls a queue."""
        name = f"q-{uuid.uuid4().hex[:12]}"
        if dead_letter_queue is not None:
            settings["dead_letter_policy"] = {
                "dead_letter_topic": topic(dead_letter_queue),
                "max_delivery_attempts": max_deliveries,
            }
        self.topic(name)
        return self.subscribe(name, name, enable_message_ordering=ordered, **settings)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def world(clock: ManualClock) -> World:
    return World(clock=lambda: clock.now / 1e6, least_attempts=2)


@pytest.fixture
def server(world: World) -> Iterator[PubSubServer]:
    with PubSubServer(world) as server:
        yield server


@pytest.fixture
def make_adapter(server: PubSubServer, clock: ManualClock) -> Iterator[Callable[..., GooglePubSub]]:
    """Adapters on the stand-in that live by its clock."""
    opened: list[GooglePubSub] = []

    def make(**options: object) -> GooglePubSub:
        seconds = {"sleep": clock.sleep, "monotonic": lambda: clock.now / 1e6, "clock": lambda: clock.now / 1e6}
        opened.append(adapter(server.endpoint, **(seconds | options)))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def pubsub(make_adapter: Callable[..., GooglePubSub]) -> GooglePubSub:
    return make_adapter()


@pytest.fixture
def operator(pubsub: GooglePubSub) -> Operator:
    return Operator(pubsub)


@pytest.fixture(scope="module")
def pstest() -> Iterator[Pstest]:
    try:
        with Pstest() as server:
            yield server
    except ServerMissing as reason:
        missing(str(reason))


class PubSubContract(BrokerContract):
    """What holds for Pub/Sub on whatever server."""

    carries_empty = False  # with an attribute it would
    hostile_headers = (
        (Header("CloudPubSubDeadLetterSourceDeliveryCount", "String", "99999999999"),),
        (Header("CloudPubSubDeadLetterSourceDeliveryCount", "String", "\u00b2"),),
        (Header("CloudPubSubDeadLetterSourceTopicPublishTime", "String", "0001-01-01T00:00:00+23:59"),),
        (Header("CloudPubSubDeadLetterSourceSubscription", "String", "not a name"),),
        (Header("CloudPubSubDeadLetterSourceSubscription", "String", "google-has-such-a-name"),),
        (
            Header("CloudPubSubDeadLetterSourceSubscription", "String", "orders-worker"),
            Header("CloudPubSubDeadLetterSourceSubscriptionProject", "String", "no/project"),
        ),
    )
    keeps_id_when_dead_lettered = False
    counts_deliveries = False  # only a subscription with a dead-letter policy does

    def test_a_content_type_survives(self, broker: GooglePubSub, queue: str) -> None:
        """Pub/Sub has none of its own: an attribute of that name is taken for it, and stays an attribute."""
        header = Header("content-type", "String", "application/json")
        self.send(broker, queue, outgoing(headers=(header,)))
        [received] = self.take(broker, queue, 1)

        assert received.letter.content_type == "application/json"
        assert received.letter.headers == (header,)

    def test_an_empty_body_with_an_attribute_survives(self, broker: GooglePubSub, queue: str) -> None:
        self.send(broker, queue, outgoing(b"", headers=tracking_headers("r-1", 1)))

        assert self.take(broker, queue, 1)[0].letter.body == b""

    def test_headers_survive_with_their_types(self, broker: GooglePubSub, queue: str) -> None:
        """Attributes are strings: what is text arrives as one."""
        headers = (Header("amount", "Number", "12.50"), Header("note", "Binary", "Größe".encode()))
        self.send(broker, queue, outgoing(headers=headers))

        assert self.take(broker, queue, 1)[0].letter.headers == (
            Header("amount", "String", "12.50"),
            Header("note", "String", "Größe"),
        )

    def test_the_library_s_own_subscriber_gets_what_was_published(
        self, broker: GooglePubSub, queue: str, endpoint: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Through StreamingPull, as a real consumer reads."""
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", endpoint)
        self.send(broker, queue, *(outgoing(b"%d" % n, n) for n in range(20)))
        seen: list[bytes] = []
        all_here = threading.Event()

        def handle(message: pubsub_v1.subscriber.message.Message) -> None:
            seen.append(message.data)
            message.ack()
            if len(seen) == 20:
                all_here.set()

        with pubsub_v1.SubscriberClient() as subscriber:
            pulling = subscriber.subscribe(subscription(queue), handle)
            assert all_here.wait(PATIENCE)
            pulling.cancel()
            pulling.result(PATIENCE)
        assert sorted(int(body) for body in seen) == list(range(20))
        assert self.left(broker, queue) == 0

    @pytest.fixture
    def endpoint(self) -> str:
        raise NotImplementedError


@pytest.mark.server
class TestGooglePubSub(PubSubContract):
    """On our stand-in, whose clock the tests move."""

    @pytest.fixture
    def broker(self, pubsub: GooglePubSub) -> GooglePubSub:
        return pubsub

    @pytest.fixture
    def another_broker(self, make_adapter: Callable[..., GooglePubSub]) -> GooglePubSub:
        return make_adapter()

    @pytest.fixture
    def endpoint(self, server: PubSubServer) -> str:
        return server.endpoint

    @pytest.fixture(autouse=True)
    def _world(self, world: World) -> None:
        self.world = world

    def left(self, broker: GooglePubSub, queue: str) -> int:
        return len(self.world.peek(subscription(queue)))

    @pytest.fixture
    def make_queue(self, operator: Operator) -> Callable[..., str]:
        return operator.queue

    @pytest.fixture
    def let_pass(self, clock: ManualClock) -> Callable[[timedelta], None]:
        return clock.advance

    @pytest.fixture
    def now(self, clock: ManualClock) -> Callable[[], datetime]:
        return lambda: datetime.fromtimestamp(clock.now / 1e6, UTC)

    @pytest.fixture
    def refused_broker(self, world: World, pubsub: GooglePubSub) -> GooglePubSub:
        world.faults.forbidden.add("orders-dlq")
        return pubsub

    @pytest.fixture
    def unreachable_broker(self) -> GooglePubSub:
        return adapter(f"127.0.0.1:{free_port()}")


@pytest.mark.server
class TestOnPstest(PubSubContract):
    """On Google's pstest, in real time."""

    # It has no permissions; the stand-in refuses.
    test_a_refusal_names_the_queue = None

    @pytest.fixture
    def endpoint(self, pstest: Pstest) -> str:
        return pstest.endpoint

    @pytest.fixture
    def broker(self, endpoint: str) -> Iterator[GooglePubSub]:
        broker = adapter(endpoint)
        yield broker
        broker.close()

    @pytest.fixture
    def another_broker(self, endpoint: str) -> Iterator[GooglePubSub]:
        broker = adapter(endpoint)
        yield broker
        broker.close()

    @pytest.fixture
    def make_queue(self, broker: GooglePubSub) -> Callable[..., str]:
        return Operator(broker).queue

    def left(self, broker: GooglePubSub, queue: str) -> int:
        """What a pull still gets: pstest shows no depth, and what is leased not at all."""
        found = []
        while got := broker.receive(queue, limit=1000, wait=SECOND / 2, lease=LEASE):
            found += got
        return len(found)

    def test_settling_twice_harms_nothing(self, broker: GooglePubSub, queue: str) -> None:
        """pstest doesn't show what is leased: the other one is released to see that it is still there."""
        self.send(broker, queue, outgoing(number=1), outgoing(number=2))
        first, second = self.take(broker, queue, 2)
        broker.settle(queue, [first.receipt])
        broker.settle(queue, [first.receipt])
        broker.release(queue, [second.receipt])

        assert len(self.take(broker, queue, 2, least=1)) == 1

    def test_a_leased_message_is_hidden_and_counted(self, broker: GooglePubSub, queue: str) -> None:
        """pstest doesn't show what is leased: it is hidden, and there again when it is released."""
        self.send(broker, queue, outgoing(), outgoing(number=2))
        held = self.take(broker, queue, 1)
        rest = self.take(broker, queue, 2, least=1)
        assert len(rest) == 1
        assert broker.depth(queue).total is None

        broker.release(queue, [one.receipt for one in [*held, *rest]])
        assert len(self.take(broker, queue, 3, least=2)) == 2

    def test_closing_settles_nothing(self, broker: GooglePubSub, another_broker: GooglePubSub, queue: str) -> None:
        """pstest doesn't show what is leased: it comes back when the lease is over."""
        self.send(broker, queue, outgoing(), outgoing(number=2))
        self.take(broker, queue, 1, self.short_lease)
        broker.close()
        time.sleep(self.short_lease.total_seconds() * 1.5)

        assert len(self.take(another_broker, queue, 3, least=2)) == 2

    def test_a_dead_letter_names_the_queue_on_which_it_failed(
        self, broker: GooglePubSub, make_queue: Callable[..., str], let_pass: Callable[[timedelta], None]
    ) -> None:
        """pstest forwards without the CloudPubSubDeadLetterSource attributes, under the old id: so no origin."""
        dead = make_queue()
        live = make_queue(dead_letter_queue=dead, max_deliveries=2)
        self.send(broker, live, outgoing(b"fails", headers=(Header("a", "String", "b"),)))
        for _ in range(2):
            [received] = self.take(broker, live, 1)
            broker.release(live, [received.receipt])
        assert self.take(broker, live, 1, least=0) == []

        [received] = self.take(broker, dead, 1)
        assert (received.letter.body, received.letter.headers) == (b"fails", (Header("a", "String", "b"),))
        assert received.letter.origin is None

    @pytest.fixture
    def unreachable_broker(self) -> GooglePubSub:
        return adapter(f"127.0.0.1:{free_port()}")


# --- what only Pub/Sub does, on the stand-in ----------------------------------------------------------------

pytestmark = pytest.mark.server


def statuses(broker: GooglePubSub, queue: str, count: int, **fields: object) -> list[str]:
    messages = [outgoing(b"%d" % n, n, **fields) for n in range(count)]
    return [result.status for result in broker.publish(queue, messages)]


@pytest.fixture
def orders(operator: Operator) -> str:
    """Topic orders, read by orders-worker, which dead-letters to topic dead, read by orders-dlq."""
    operator.topic("orders")
    operator.topic("dead")
    operator.subscribe("orders-dlq", "dead")
    policy = {"dead_letter_topic": topic("dead"), "max_delivery_attempts": 2}
    operator.subscribe("orders-worker", "orders", dead_letter_policy=policy)
    return "orders"


def die(broker: GooglePubSub, name: str = "orders-worker") -> None:
    """Let everything in a subscription fail until it is dead-lettered."""
    while got := broker.receive(name, limit=1000, wait=NO_WAIT, lease=LEASE):
        broker.release(name, [one.receipt for one in got])


def test_a_dead_letter_tells_its_life(pubsub: GooglePubSub, orders: str, clock: ManualClock) -> None:
    published = clock.now
    pubsub.publish(orders, [outgoing(b"x", headers=(Header("id", "String", "17"),), ordering_key="c-1")])
    clock.advance(timedelta(minutes=3))
    died = clock.now
    die(pubsub)
    clock.advance(timedelta(hours=1))
    [(letter, _)] = pubsub.receive("orders-dlq", limit=10, wait=NO_WAIT, lease=LEASE)

    assert (letter.origin, letter.deliveries, letter.ordering_key) == ("orders", 2, "c-1")
    assert (letter.enqueued_at, letter.dead_lettered_at) == (published, died)
    assert clean_headers(letter.headers, FAILURE_HEADERS) == (Header("id", "String", "17"),)


def test_an_origin_that_is_gone_is_no_origin(pubsub: GooglePubSub, orders: str, world: World) -> None:
    pubsub.publish(orders, [outgoing()])
    die(pubsub)
    world.delete_topic(topic("orders"))

    [(letter, _)] = pubsub.receive("orders-dlq", limit=1, wait=NO_WAIT, lease=LEASE)
    assert letter.origin is None


def forged(number: int, name: str) -> Outgoing:
    """A message that says that it failed on the subscription called ``name``."""
    return outgoing(number=number, headers=(Header("CloudPubSubDeadLetterSourceSubscription", "String", name),))


def test_names_that_anyone_wrote_cost_so_many_questions_and_no_more(
    pubsub: GooglePubSub, orders: str, world: World
) -> None:
    names = [f"forged-{number % (2 * NAMES_ASKED)}" for number in range(3 * NAMES_ASKED)]
    pubsub.publish("dead", [forged(0, "orders-worker"), *(forged(n, name) for n, name in enumerate(names, 1))])
    received = pubsub.receive("orders-dlq", limit=1000, wait=NO_WAIT, lease=LEASE)

    assert [one.letter.origin for one in received] == ["orders"] + [None] * len(names)
    assert world.requests["GetSubscription"] == len(pubsub._receiver._origins) == NAMES_ASKED


def test_what_can_not_be_a_name_is_neither_asked_about_nor_kept(
    pubsub: GooglePubSub, orders: str, world: World
) -> None:
    names = ["not a name", "x", "9lives", "a/b", "x" * 1000, "projects/shop/topics/orders", "projects/", "bücher"]
    pubsub.publish("dead", [forged(number, name) for number, name in enumerate(names)])
    received = pubsub.receive("orders-dlq", limit=1000, wait=NO_WAIT, lease=LEASE)

    assert [one.letter.origin for one in received] == [None] * len(names)
    assert (world.requests["GetSubscription"], len(pubsub._receiver._origins)) == (0, 0)


def test_an_origin_of_which_an_outage_told_nothing_is_asked_about_again_in_a_minute(
    pubsub: GooglePubSub, orders: str, world: World, clock: ManualClock
) -> None:
    pubsub.publish("dead", [forged(number, "orders-worker") for number in range(4)])
    world.faults.refuse["GetSubscription"] = [Refusal("UNAVAILABLE", "not now")] * 100
    asked, origins = [], []
    for seconds in (0, 0, 59, 1):
        clock.advance(seconds * SECOND)
        [one] = pubsub.receive("orders-dlq", limit=1, wait=NO_WAIT, lease=timedelta(minutes=5))
        asked.append(world.requests["GetSubscription"])
        origins.append(one.letter.origin)
        if seconds == 59:
            world.faults.refuse.clear()

    assert origins == [None, None, None, "orders"]
    assert asked[0] == asked[1] == asked[2] == asked[3] - 1


def test_an_origin_in_another_project_has_its_full_name(pubsub: GooglePubSub, orders: str) -> None:
    theirs = "projects/other/subscriptions/bills-worker"
    pubsub._clients.publisher.create_topic(request={"name": "projects/other/topics/bills"})
    pubsub._clients.subscriber.create_subscription(
        request={
            "name": theirs,
            "topic": "projects/other/topics/bills",
            "dead_letter_policy": {"dead_letter_topic": topic("dead"), "max_delivery_attempts": 2},
        }
    )
    pubsub.publish("projects/other/topics/bills", [outgoing()])
    die(pubsub, theirs)

    [(letter, _)] = pubsub.receive("orders-dlq", limit=1, wait=NO_WAIT, lease=LEASE)
    assert letter.origin == "projects/other/topics/bills"
    assert pubsub.describe(letter.origin).subscribers == 1


def test_queues_are_named_in_full_too(pubsub: GooglePubSub, orders: str) -> None:
    assert statuses(pubsub, topic("orders"), 1) == ["sent"]
    assert len(pubsub.receive(subscription("orders-worker"), limit=9, wait=NO_WAIT, lease=LEASE)) == 1
    assert pubsub.describe(topic("orders")).subscribers == 1
    assert pubsub.describe(subscription("orders-worker")).dead_letter_queue == "dead"
    with pytest.raises(BrokerError, match="is a topic"):
        pubsub.receive(topic("orders"), limit=1, wait=NO_WAIT, lease=LEASE)


@pytest.mark.parametrize("name", ["orders-dlq", subscription("orders-dlq")], ids=["short", "full"])
def test_a_subscription_is_restored_through_its_topic(
    pubsub: GooglePubSub, orders: str, world: World, name: str
) -> None:
    assert statuses(pubsub, name, 2) == ["sent", "sent"]
    assert len(world.peek(subscription("orders-dlq"))) == 2
    found = pubsub._clients.subscriber.get_subscription(subscription=subscription("orders-dlq"))
    topic = str(found.topic).rpartition("/")[2]
    assert pubsub.leads_to(name, topic) is True
    assert pubsub.leads_to(name, "another") is False


def test_a_topic_that_could_not_be_looked_up_was_sent_nothing(pubsub: GooglePubSub, orders: str, world: World) -> None:
    name = subscription("orders-worker")
    world.faults.refuse["GetSubscription"] = [Refusal("UNAVAILABLE", "not now")] * 100
    with pytest.raises(NothingSent, match="not now"):
        pubsub.publish(name, [outgoing()])
    world.faults.refuse.clear()
    asked = world.requests["GetSubscription"]

    assert [statuses(pubsub, name, 1) for _ in range(3)] == [["sent"]] * 3
    assert world.requests["GetSubscription"] == asked + 1, "once is enough"


@pytest.mark.parametrize("name", ["orders-dlq", subscription("orders-dlq")], ids=["short", "full"])
def test_the_way_back_into_a_subscription_is_its_own_topic(
    pubsub: GooglePubSub, operator: Operator, orders: str, world: World, name: str
) -> None:
    operator.topic("orders-dlq")  # a namesake, which nobody reads
    assert pubsub.capabilities.way_back
    assert pubsub.way_back(name) == topic("dead")

    world.delete_topic(topic("dead"))
    with pytest.raises(QueueMissing, match="orders-dlq: its topic is gone"):
        pubsub.way_back(name)
    world.delete_subscription(subscription("orders-dlq"))
    with pytest.raises(QueueMissing, match="orders-dlq"):
        pubsub.way_back(name)


def test_an_ack_that_came_too_late_is_not_reported_as_settled(
    pubsub: GooglePubSub, operator: Operator, clock: ManualClock
) -> None:
    """Pub/Sub takes it without a word."""
    queue = operator.queue()
    pubsub.publish(queue, [outgoing()])
    [late] = pubsub.receive(queue, limit=1, wait=NO_WAIT, lease=LEASE)
    clock.advance(LEASE)
    settled = pubsub.settle(queue, [late.receipt])

    assert (settled.count, settled.failures[0][0]) == (0, late.receipt)
    assert "lease ended" in settled.failures[0][1]
    assert len(pubsub.receive(queue, limit=1, wait=NO_WAIT, lease=LEASE)) == 1


@pytest.mark.parametrize(("method", "late_by"), [("Acknowledge", LEASE), ("ModifyAckDeadline", 11 * SECOND)])
def test_a_lease_that_ends_while_a_request_is_on_its_way_is_not_trusted(
    pubsub: GooglePubSub, operator: Operator, world: World, clock: ManualClock, method: str, late_by: timedelta
) -> None:
    queue = operator.queue()
    pubsub.publish(queue, [outgoing()])
    world.faults.before = lambda called, _: clock.advance(late_by) if called == method else None
    [one] = pubsub.receive(queue, limit=1, wait=NO_WAIT, lease=LEASE)
    settled = pubsub.settle(queue, [one.receipt])

    assert (settled.count, len(settled.failures)) == (0, 1)
    assert len(world.peek(subscription(queue))) == 1


@pytest.mark.parametrize(("deadline", "settled"), [(10, 0), (60, 1)])
def test_a_lease_begins_before_the_answer_to_a_pull_has_come(
    pubsub: GooglePubSub,
    operator: Operator,
    world: World,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    deadline: int,
    settled: int,
) -> None:
    """On a slow link a lease may be over when the answer is here. How long it is, the subscription tells."""
    queue = operator.queue(ack_deadline_seconds=deadline)
    pubsub.publish(queue, [outgoing()])
    pull = pubsub._clients.subscriber.pull

    def slow(**call: object) -> object:
        answer = pull(**call)
        clock.advance(11 * SECOND)
        return answer

    monkeypatch.setattr(pubsub._clients.subscriber, "pull", slow)
    [one] = pubsub.receive(queue, limit=1, wait=NO_WAIT, lease=LEASE)

    assert pubsub.settle(queue, [one.receipt]).count == settled
    assert len(world.peek(subscription(queue))) == 1 - settled


def test_an_ack_whose_answer_was_lost_and_that_is_refused_then_may_have_been_done(
    pubsub: GooglePubSub, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a refusal a restore concludes that the subscription has the messages."""
    queue = operator.queue()
    pubsub.publish(queue, [outgoing()])
    [one] = pubsub.receive(queue, limit=1, wait=NO_WAIT, lease=LEASE)
    acknowledge, answers = pubsub._clients.subscriber.acknowledge, iter([api.ServiceUnavailable("gone")])

    def lost(**call: Any) -> Any:
        acknowledge(**call)
        raise next(answers, api.PermissionDenied("revoked meanwhile"))

    monkeypatch.setattr(pubsub._clients.subscriber, "acknowledge", lost)
    with pytest.raises(BrokerUnavailable):
        pubsub.settle(queue, [one.receipt])
    with pytest.raises(PermissionRefused):
        pubsub.settle(queue, [one.receipt])


def test_an_extension_after_the_end_does_not_bring_a_lease_back(
    pubsub: GooglePubSub, operator: Operator, clock: ManualClock
) -> None:
    queue = operator.queue()
    pubsub.publish(queue, [outgoing()])
    [late] = pubsub.receive(queue, limit=1, wait=NO_WAIT, lease=LEASE)
    clock.advance(LEASE)
    pubsub.extend(queue, [late.receipt], LEASE)

    assert pubsub.settle(queue, [late.receipt]).count == 0


def test_exactly_once_tells_each_receipt_apart(pubsub: GooglePubSub, operator: Operator, world: World) -> None:
    queue = operator.queue(enable_exactly_once_delivery=True)
    pubsub.publish(queue, [outgoing(number=n) for n in range(4)])
    receipts = [one.receipt for one in pubsub.receive(queue, limit=4, wait=NO_WAIT, lease=LEASE)]
    world.faults.passing_ids = {str(receipts[2])}
    settled = pubsub.settle(queue, ["nobody's", *receipts])

    assert settled.count == 4
    assert settled.failures == (("nobody's", "PERMANENT_FAILURE_INVALID_ACK_ID"),)
    assert world.requests["Acknowledge"] == 2  # the one that failed in passing was tried again
    assert world.peek(subscription(queue)) == []


def test_a_thousand_messages_cost_a_handful_of_requests(pubsub: GooglePubSub, operator: Operator, world: World) -> None:
    queue = operator.queue()
    assert set(statuses(pubsub, queue, 1000)) == {"sent"}
    received = pubsub.receive(queue, limit=1000, wait=NO_WAIT, lease=LEASE)
    assert pubsub.settle(queue, [one.receipt for one in received]).count == 1000

    counted = {name: world.requests[name] for name in ("Publish", "Pull", "ModifyAckDeadline", "Acknowledge")}
    assert counted == {"Publish": 1, "Pull": 1, "ModifyAckDeadline": 1, "Acknowledge": 1}


def test_with_as_many_bytes_as_have_room_no_more_is_asked_for(
    pubsub: GooglePubSub, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.brokers.pubsub.receiving.BATCH", 10)
    monkeypatch.setattr("redrive.brokers.pubsub.receiving.RECEIVE_BYTES", 600)
    queue = operator.queue()
    pubsub.publish(queue, [outgoing(b"x" * 20, number) for number in range(50)])

    assert len(pubsub.receive(queue, limit=1_000, wait=NO_WAIT, lease=LEASE)) == 30


def test_a_lease_is_never_longer_than_pubsub_allows(
    pubsub: GooglePubSub, operator: Operator, clock: ManualClock
) -> None:
    queue = operator.queue()
    pubsub.publish(queue, [outgoing()])
    pubsub.receive(queue, limit=1, wait=NO_WAIT, lease=timedelta(hours=12))
    assert pubsub.capabilities.max_lease == timedelta(seconds=600)
    clock.advance(timedelta(seconds=601))

    assert len(pubsub.receive(queue, limit=1, wait=NO_WAIT, lease=LEASE)) == 1


def test_a_request_has_one_ordering_key(pubsub: GooglePubSub, operator: Operator, world: World) -> None:
    queue = operator.queue(ordered=True)
    keys = [None, "a", "b", None, "a"]
    pubsub.publish(queue, [outgoing(b"%d" % n, n, ordering_key=key) for n, key in enumerate(keys)])

    assert world.requests["Publish"] == 3
    assert {m.data: m.ordering_key for m in world.peek(subscription(queue))} == {
        b"0": "",
        b"1": "a",
        b"2": "b",
        b"3": "",
        b"4": "a",
    }


@pytest.mark.parametrize(
    "fault",
    [
        {"lost_answers": {"Publish": 1}},
        {"refuse": {"Publish": [Refusal("UNAVAILABLE", "try again")]}},
        {"refuse": {"Publish": [Refusal("INTERNAL", "oops")]}},
        {"refuse": {"Publish": [Refusal("ABORTED", "oops")]}},
        {"hang": {"Publish": 1}},
    ],
    ids=["lost", "unavailable", "internal", "aborted", "hang"],
)
def test_a_publish_of_unknown_fate_is_never_repeated(
    make_adapter: Callable[..., GooglePubSub], world: World, fault: dict[str, dict[str, object]]
) -> None:
    broker = make_adapter(concurrency=1, timeout=1 if "hang" in fault else PATIENCE)
    queue = Operator(broker).queue(ordered=True)
    for name, of_method in fault.items():
        getattr(world.faults, name).update({one: copy(what) for one, what in of_method.items()})
    results = broker.publish(queue, [outgoing(b"%d" % n, n, ordering_key="ab"[n]) for n in range(2)])

    assert [r.status for r in results] == ["unknown", "sent"]
    assert world.requests["Publish"] == 2


def test_behind_a_publish_of_unknown_fate_its_key_waits(pubsub: GooglePubSub, operator: Operator, world: World) -> None:
    queue = operator.queue(ordered=True)
    world.faults.lost_answers["Publish"] = 1
    big = b"x" * 6_000_000  # two of these are two requests

    assert [r.status for r in pubsub.publish(queue, [outgoing(big, n, ordering_key="a") for n in range(2)])] == [
        "unknown",
        "retry",
    ]


def test_a_throttled_publish_is_repeated_after_a_while(make_adapter: Callable[..., GooglePubSub], world: World) -> None:
    pauses: list[float] = []
    broker = make_adapter(sleep=pauses.append)
    queue = Operator(broker).queue()
    world.faults.refuse["Publish"] = [Refusal("RESOURCE_EXHAUSTED", "quota")] * 5
    assert statuses(broker, queue, 3) == ["sent"] * 3
    assert len(pauses) == len(set(pauses)) == 5  # jitter

    world.faults.refuse["Publish"] = [Refusal("RESOURCE_EXHAUSTED", "quota")] * 100
    assert statuses(broker, queue, 3) == ["retry"] * 3


def test_one_message_that_spoils_a_request_is_found(pubsub: GooglePubSub, operator: Operator, world: World) -> None:
    queue = operator.queue()
    invalid = Refusal("INVALID_ARGUMENT", "bad message")
    world.faults.refuse["Publish"] = [invalid, invalid]  # ten, then the first five; after that the server is content
    assert statuses(pubsub, queue, 10) == ["sent"] * 10
    world.faults.refuse["Publish"] = [invalid] * 2
    assert statuses(pubsub, queue, 2) == ["refused", "sent"]


def test_a_disabled_key_concerns_the_topic_not_the_messages(
    pubsub: GooglePubSub, operator: Operator, world: World
) -> None:
    queue = operator.queue()
    world.faults.refuse["Publish"] = [Refusal("FAILED_PRECONDITION", "Cloud KMS key is disabled")]
    with pytest.raises(PermissionRefused, match=f"{queue}.*KMS key is disabled"):
        pubsub.publish(queue, [outgoing()])


def test_a_server_that_went_away_has_taken_nothing(
    make_adapter: Callable[..., GooglePubSub], server: PubSubServer
) -> None:
    broker = make_adapter(sleep=time.sleep)
    queue = Operator(broker).queue()
    broker.depth(queue)
    server.stop()
    # By the first the client notices that its connection is gone; what breaks under way is rightly unknown.
    assert set(statuses(broker, queue, 2)) <= {"retry", "unknown"}
    assert statuses(broker, queue, 2) == ["retry", "retry"]
    server.start()
    deadline = time.monotonic() + 60  # the channel connects anew after pauses of up to 5 s
    while (answers := statuses(broker, queue, 2)) == ["retry", "retry"] and time.monotonic() < deadline:
        time.sleep(0.2)
    assert answers == ["sent", "sent"]


def test_after_a_restart_the_same_adapter_goes_on(
    make_adapter: Callable[..., GooglePubSub], server: PubSubServer
) -> None:
    broker = make_adapter(sleep=time.sleep)
    queue = Operator(broker).queue()
    broker.publish(queue, [outgoing(b"%d" % n, n) for n in range(3)])
    [first] = broker.receive(queue, limit=1, wait=NO_WAIT, lease=LEASE)
    server.restart()

    assert len(BrokerContract.take(broker, queue, 5, least=2)) == 2
    assert broker.settle(queue, [first.receipt]).count == 1
    assert statuses(broker, queue, 1) == ["sent"]


@pytest.mark.parametrize("status", ["UNAVAILABLE", "INTERNAL", "RESOURCE_EXHAUSTED"])
def test_an_idempotent_call_is_repeated_and_then_given_up(
    pubsub: GooglePubSub, operator: Operator, world: World, status: str
) -> None:
    queue = operator.queue()
    pubsub.publish(queue, [outgoing()])
    [one] = pubsub.receive(queue, limit=1, wait=NO_WAIT, lease=LEASE)
    world.faults.refuse["Acknowledge"] = [Refusal(status, "not now")] * 3
    assert pubsub.settle(queue, [one.receipt]).count == 1

    world.faults.refuse["GetSubscription"] = [Refusal(status, "not now")] * 100
    with pytest.raises(BrokerUnavailable, match=f"GetSubscription on queue {queue}: {status}"):
        pubsub.depth(queue)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"headers": (Header("goog-x", "String", "v"),)}, "'goog-x'"),
        ({"headers": (Header("", "String", "v"),)}, "between 1 and 256"),
        ({"headers": (Header("a" * 257, "String", "v"),)}, "between 1 and 256"),
        ({"headers": (Header("a", "String", "ü" * 513),)}, "attribute a is longer than 1024 bytes"),
        ({"headers": (Header("a", "Binary", b"\xff"),)}, "attribute a is not UTF-8"),
        ({"headers": (Header("a", "String", "1"), Header("a", "String", "2"))}, "same name"),
        ({"ordering_key": "k" * 1025}, "ordering key is longer"),
        ({"delay_seconds": 5}, "no delay"),
    ],
    ids=["reserved", "unnamed", "long-name", "long-value", "binary", "twice", "key", "delay"],
)
def test_what_pubsub_never_takes_is_refused_without_asking(
    pubsub: GooglePubSub, operator: Operator, world: World, fields: dict[str, object], words: str
) -> None:
    [result] = pubsub.publish(operator.queue(), [outgoing(**fields)])

    assert result.status == "refused"
    assert words in result.detail
    assert world.requests["Publish"] == 0


def test_a_message_of_a_topic_with_a_schema_or_with_a_trace_goes_back(pubsub: GooglePubSub, operator: Operator) -> None:
    """Pub/Sub writes the schema's attributes itself, each time, and Google's libraries publish the trace's."""
    trace = Header("googclient_traceparent", "String", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    of_schema = (
        Header("googclient_schemaencoding", "String", "JSON"),
        Header("googclient_schemaname", "String", "projects/shop/schemas/order"),
        Header("googclient_schemarevisionid", "String", "a1b2c3d4"),
    )
    cleaned = clean_headers((*of_schema, trace), FAILURE_HEADERS)
    [result] = pubsub.publish(operator.queue(), [outgoing(headers=cleaned)])

    assert (cleaned, result.status) == ((trace,), "sent")


def test_a_filter_lets_one_subscriber_have_what_is_marked(
    pubsub: GooglePubSub, operator: Operator, world: World
) -> None:
    operator.topic("orders")
    operator.subscribe("billing", "orders", filter='attributes.for = "billing" AND NOT attributes:test')
    operator.subscribe("shipping", "orders", filter="NOT attributes:for")
    pubsub.publish("orders", [outgoing(b"all"), outgoing(b"one", 2, headers=(Header("for", "String", "billing"),))])

    assert [m.data for m in world.peek(subscription("billing"))] == [b"one"]
    assert [m.data for m in world.peek(subscription("shipping"))] == [b"all"]


def test_one_message_of_a_key_that_comes_again_brings_its_successors(pubsub: GooglePubSub, operator: Operator) -> None:
    queue = operator.queue(ordered=True)
    pubsub.publish(queue, [outgoing(b"%d" % n, n, ordering_key="a") for n in range(3)])
    first, second, _ = pubsub.receive(queue, limit=3, wait=NO_WAIT, lease=LEASE)
    pubsub.settle(queue, [first.receipt])
    pubsub.release(queue, [second.receipt])

    assert [r.letter.body for r in pubsub.receive(queue, limit=3, wait=NO_WAIT, lease=LEASE)] == [b"1", b"2"]


# --- depth and readers -----------------------------------------------------------------------------------


@pytest.fixture
def monitored(make_adapter: Callable[..., GooglePubSub], server: PubSubServer, world: World) -> GooglePubSub:
    """An adapter that may ask Cloud Monitoring, whose numbers are two minutes late."""
    world.monitoring_lag = 120
    return make_adapter(extra={"monitoring_endpoint": server.endpoint})


def test_without_monitoring_a_depth_is_unknown_never_zero(pubsub: GooglePubSub, orders: str) -> None:
    assert pubsub.depth("orders") == pubsub.depth("orders-worker") == UNKNOWN_DEPTH
    assert UNKNOWN_DEPTH.total is None


def test_monitoring_tells_a_depth_and_when_it_was_so(
    monitored: GooglePubSub, orders: str, world: World, clock: ManualClock
) -> None:
    Operator(monitored).subscribe("audit", "orders")
    monitored.publish(orders, [outgoing(number=n) for n in range(3)])
    world.sample()
    then = clock.now
    assert monitored.depth("orders-worker") == UNKNOWN_DEPTH  # nothing to be seen yet
    clock.advance(timedelta(seconds=121))

    assert monitored.depth("orders-worker") == Depth(3, 0, 0, as_of=then, by_its_clock=True)
    assert monitored.depth("orders") == Depth(
        6, 0, 0, as_of=then, by_its_clock=True
    )  # a topic's: of all its subscriptions
    monitored.depth("orders")
    assert world.requests["ListTimeSeries"] == 3  # an answer is good for half a minute


def test_a_subscription_with_the_name_of_a_topic_does_not_make_it_look_empty(
    monitored: GooglePubSub, orders: str, world: World
) -> None:
    """Nor the other way round: whoever asks for the depth of a name may mean either."""
    world.monitoring_lag = 0
    Operator(monitored).topic("news")
    Operator(monitored).subscribe("orders", "news")
    monitored.publish("orders", [outgoing(number=n) for n in range(3)])
    assert monitored.depth("orders").total == 3
    assert monitored.depth(topic("orders")).total == 3
    assert monitored.depth(subscription("orders")).total == 0

    Operator(monitored).topic("orders-dlq")
    Operator(monitored).subscribe("another", "orders-dlq")
    monitored.publish("dead", [outgoing()])
    assert monitored.depth("orders-dlq").total == monitored.depth(subscription("orders-dlq")).total == 1


def test_a_depth_is_told_where_a_topic_of_its_name_may_not_be_seen(
    monitored: GooglePubSub, orders: str, world: World
) -> None:
    """Pub/Sub tells those who have no right so of topics that don't exist, too."""
    world.monitoring_lag = 0
    monitored.publish("orders", [outgoing()])
    world.faults.refuse["ListTopicSubscriptions"] = [Refusal("PERMISSION_DENIED", "or it may not exist")]
    assert monitored.depth("orders-worker").total == 1


def test_a_depth_is_unknown_where_monitoring_gives_no_answer(
    monitored: GooglePubSub, orders: str, world: World
) -> None:
    world.faults.refuse["ListTimeSeries"] = [Refusal("PERMISSION_DENIED", "monitoring.timeSeries.list")]
    assert monitored.depth("orders-worker") == UNKNOWN_DEPTH


def test_a_topic_tells_how_many_read_it(pubsub: GooglePubSub, operator: Operator, orders: str) -> None:
    assert pubsub.describe("orders").subscribers == 1
    operator.subscribe("audit", "orders")
    assert pubsub.describe("orders").subscribers == 2
    operator.topic("nobody")
    assert pubsub.describe("nobody").subscribers == 0


def test_max_deliveries_comes_from_the_subscriptions_that_dead_letter_here(
    pubsub: GooglePubSub, operator: Operator, orders: str
) -> None:
    policy = {"dead_letter_topic": topic("dead"), "max_delivery_attempts": 7}
    operator.subscribe("another", "orders", dead_letter_policy=policy)

    told = pubsub.describe("orders-dlq")
    assert (told.max_deliveries, told.origin_lease) == (2, timedelta(seconds=10))


def test_a_retry_policy_hides_how_long_leases_were(pubsub: GooglePubSub, operator: Operator, orders: str) -> None:
    policy = {"dead_letter_topic": topic("dead"), "max_delivery_attempts": 5}
    operator.subscribe(
        "patient", "orders", dead_letter_policy=policy, retry_policy={"minimum_backoff": timedelta(seconds=30)}
    )

    assert pubsub.describe("orders-dlq").origin_lease is None


def test_a_message_that_was_given_back_rests_as_the_retry_policy_says(
    pubsub: GooglePubSub, operator: Operator, clock: ManualClock
) -> None:
    queue = operator.queue(retry_policy={"minimum_backoff": timedelta(seconds=30)})
    pubsub.publish(queue, [outgoing()])
    [one] = pubsub.receive(queue, limit=1, wait=NO_WAIT, lease=LEASE)
    pubsub.release(queue, [one.receipt])
    assert pubsub.receive(queue, limit=1, wait=NO_WAIT, lease=LEASE) == []
    clock.advance(timedelta(seconds=30))

    assert len(pubsub.receive(queue, limit=1, wait=NO_WAIT, lease=LEASE)) == 1


def test_silence_of_a_server_is_not_taken_for_an_empty_subscription(
    make_adapter: Callable[..., GooglePubSub], world: World
) -> None:
    broker = make_adapter(timeout=0.3)
    queue = Operator(broker).queue()
    assert broker.receive(queue, limit=1, wait=SECOND / 5, lease=LEASE) == []
    world.faults.hang["Pull"] = 100  # also for a pull of before that is only now begun
    for wait in (NO_WAIT, SECOND / 5):
        asked = world.requests["Pull"]
        with pytest.raises(BrokerUnavailable, match=queue):
            broker.receive(queue, limit=1, wait=wait, lease=LEASE)
        assert world.requests["Pull"] == asked + 1, "what it leased is hidden from a second one"


@pytest.mark.parametrize("before", [0, 1], ids=["first", "after-some"])
def test_what_a_lost_answer_had_is_awaited(
    pubsub: GooglePubSub, operator: Operator, world: World, clock: ManualClock, before: int
) -> None:
    """It is leased to nobody, so that pulls bring nothing: who takes that for the end presumes what it never saw."""
    queue = operator.queue()
    pubsub.publish(queue, [outgoing(number=0)])
    came = []
    if before:
        pulled = pubsub._clients.subscriber.pull

        def pull(**call: Any) -> Any:
            answer = pulled(**call)
            pubsub._clients.subscriber.pull = pulled
            world.faults.lost_answers["Pull"] = 100
            pubsub.publish(queue, [outgoing(number=1)])
            return answer

        pubsub._clients.subscriber.pull = pull
        came = pubsub.receive(queue, limit=5, wait=NO_WAIT, lease=LEASE)
        assert len(came) == 1
    world.faults.lost_answers["Pull"] = 1 - before
    began = clock.now

    assert len(pubsub.receive(queue, limit=5, wait=NO_WAIT, lease=LEASE)) == 1
    assert 0 < clock.now - began <= 15_000_000


@pytest.mark.parametrize(
    "settings",
    [
        {"ack_deadline_seconds": 600},
        {"retry_policy": {"minimum_backoff": timedelta(seconds=10), "maximum_backoff": timedelta(seconds=590)}},
    ],
    ids=["lease", "rest"],
)
def test_what_a_lost_answer_hides_for_long_is_an_error_and_not_the_end(
    pubsub: GooglePubSub, operator: Operator, world: World, clock: ManualClock, settings: dict[str, object]
) -> None:
    queue = operator.queue(**settings)
    pubsub.publish(queue, [outgoing()])
    world.faults.lost_answers["Pull"] = 1
    for _ in range(2):
        with pytest.raises(BrokerUnavailable, match=f"queue {queue}: an answer was lost"):
            pubsub.receive(queue, limit=5, wait=NO_WAIT, lease=LEASE)
        clock.advance(15 * SECOND)
    clock.advance(600 * SECOND)

    assert len(pubsub.receive(queue, limit=5, wait=NO_WAIT, lease=LEASE)) == 1


def extensions_fail(world: World, which: Callable[[int], bool]) -> Callable[[str, str], None]:
    """A fault of ``world``: of the requests for another lease fail those whose number ``which`` names."""

    def before(method: str, _: str) -> None:
        if method == "ModifyAckDeadline" and which(world.requests[method]):
            raise Refusal("UNAVAILABLE", "502 upstream")

    return before


def test_what_was_pulled_and_could_not_be_leased_as_asked_is_given_back(
    pubsub: GooglePubSub, operator: Operator, world: World, clock: ManualClock
) -> None:
    """Else it is leased to nobody for as long as the subscription says, and pulls bring nothing meanwhile."""
    queue = operator.queue(ack_deadline_seconds=600)
    pubsub.publish(queue, [outgoing(number=n) for n in range(1_000)])
    pubsub.publish(queue, [outgoing(number=n) for n in range(1_000, 1_500)])
    world.faults.before = extensions_fail(world, lambda number: 2 <= number <= 9)
    first = pubsub.receive(queue, limit=1_500, wait=NO_WAIT, lease=LEASE)
    began = clock.now

    assert len(first) == 1_000
    assert len(pubsub.receive(queue, limit=1_500, wait=NO_WAIT, lease=LEASE)) == 500
    assert pubsub.receive(queue, limit=1_500, wait=NO_WAIT, lease=LEASE) == []
    assert clock.now - began <= 5_000_000


@pytest.mark.parametrize(
    ("deadline", "carried_out"), [(600, False), (10, True)], ids=["for the subscription's", "for what was asked"]
)
def test_what_was_pulled_and_nobody_holds_is_hidden_and_not_gone(
    pubsub: GooglePubSub, operator: Operator, world: World, clock: ManualClock, deadline: int, carried_out: bool
) -> None:
    queue = operator.queue(ack_deadline_seconds=deadline)
    pubsub.publish(queue, [outgoing(number=n) for n in range(1_000)])
    pubsub.publish(queue, [outgoing(number=n) for n in range(1_000, 1_500)])
    modified = pubsub._clients.subscriber.modify_ack_deadline
    calls = itertools.count(1)

    def modify(**call: Any) -> Any:
        number = next(calls)
        if number == 2 and carried_out:
            modified(**call)
        if 2 <= number <= 10:
            raise api.ServiceUnavailable("the answer was lost")
        return modified(**call)

    pubsub._clients.subscriber.modify_ack_deadline = modify
    lease = timedelta(minutes=5)
    first = pubsub.receive(queue, limit=1_500, wait=NO_WAIT, lease=lease)
    assert len(first) == 1_000
    assert pubsub.settle(queue, [one.receipt for one in first]).count == 1_000
    for _ in range(3):
        with pytest.raises(BrokerUnavailable, match=f"queue {queue}: an answer was lost"):
            pubsub.receive(queue, limit=1_500, wait=NO_WAIT, lease=lease)
        clock.advance(20 * SECOND)
    clock.advance(600 * SECOND)

    assert len(pubsub.receive(queue, limit=1_500, wait=NO_WAIT, lease=lease)) == 500


def test_who_waits_gives_an_answer_the_time_that_it_takes_to_come(
    make_adapter: Callable[..., GooglePubSub], world: World
) -> None:
    """Else on a slow link each answer is late for the wait, and what it had is leased to nobody."""
    pubsub = make_adapter(monotonic=time.monotonic)
    queue = Operator(pubsub).queue()
    world.faults.slow["Pull"] = 1.5
    pulled = pubsub._clients.subscriber.pull

    def pull(*, request: types.PullRequest, **call: Any) -> Any:
        if not request.return_immediately:
            pubsub.publish(queue, [outgoing()])
        return pulled(request=request, **call)

    pubsub._clients.subscriber.pull = pull
    assert len(pubsub.receive(queue, limit=1, wait=SECOND, lease=LEASE)) == 1


def test_an_answer_that_takes_longer_than_the_wait_comes_in(
    pubsub: GooglePubSub, operator: Operator, world: World
) -> None:
    """Else a slow link makes a full subscription look empty, and what was in the answer is leased to nobody."""
    queue = operator.queue()
    pubsub.publish(queue, [outgoing(number=n) for n in range(50)])
    world.faults.slow["Pull"] = 0.5

    assert len(pubsub.receive(queue, limit=50, wait=SECOND / 5, lease=LEASE)) == 50


def test_who_waits_asks_for_few_messages_and_never_for_long(
    pubsub: GooglePubSub, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = operator.queue()
    asked: list[tuple[bool, int, float]] = []

    def pull(*, request: types.PullRequest, retry: None, timeout: float) -> types.PullResponse:
        asked.append((request.return_immediately, request.max_messages, timeout))
        if request.return_immediately:
            return types.PullResponse()
        raise DeadlineExceeded("nothing came")

    monkeypatch.setattr(pubsub._clients.subscriber, "pull", pull)
    assert pubsub.receive(queue, limit=1000, wait=12 * SECOND, lease=LEASE) == []
    assert asked == [(True, 1000, 30), *[(False, 10, 4)] * 3]

    asked.clear()
    assert pubsub.receive(queue, limit=1000, wait=NO_WAIT, lease=LEASE) == []
    assert asked == [(True, 1000, 30)]


# --- connections -------------------------------------------------------------------------------------------


def test_the_registry_opens_it_by_connection_id(
    server: PubSubServer, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PUBSUB_DEMO", connection(server.endpoint))
    broker = open_broker("google_pubsub", "pubsub_demo")

    assert broker.describe("orders").subscribers == 1
    broker.close()


@pytest.mark.parametrize("key", ["project", "extra__google_cloud_platform__project"], ids=["new", "old"])
def test_an_emulator_is_found_by_its_variable(server: PubSubServer, orders: str, key: str) -> None:
    env = {
        "PUBSUB_EMULATOR_HOST": server.endpoint,
        "AIRFLOW_CONN_GCP": json.dumps({"conn_type": "google_cloud_platform", "extra": {key: PROJECT}}),
    }
    broker = GooglePubSub.open("gcp", env=env)

    assert broker.describe("orders").subscribers == 1
    broker.close()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"conn_type": "aws"}, "'aws', not google_cloud_platform"),
        ({"extra": {"endpoint": "127.0.0.1:1"}}, "extra.project is needed"),
        ({"extra": {"project": "p", "endpoint": "http://127.0.0.1:no"}}, "endpoint 'http://127.0.0.1:no'"),
        ({"extra": {"project": "p", "key_path": "/nonexistent.json"}}, "no usable credentials"),
        ({"extra": {"project": "p", "keyfile_dict": "{not json"}}, "keyfile_dict is not JSON"),
        ({"extra": {"project": "p", "keyfile_dict": "{}"}}, "no usable credentials"),
    ],
    ids=["type", "project", "endpoint", "key-path", "key-json", "key-empty"],
)
def test_a_wrong_connection_says_what_is_wrong(value: dict[str, object], words: str) -> None:
    env = {"AIRFLOW_CONN_PUBSUB_TEST": json.dumps({"conn_type": "google_cloud_platform"} | value)}
    with pytest.raises(SettingsError, match=f"connection pubsub_test.*{words}"):
        GooglePubSub.open("pubsub_test", env=env)


def test_a_key_makes_clients_of_the_service_with_tls(tmp_path: Path) -> None:
    """Nothing is asked of Google by opening."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    info = {
        "type": "service_account",
        "project_id": "from-the-key",
        "client_email": "redrive@from-the-key.iam.gserviceaccount.com",
        "private_key": pem,
        "token_uri": "https://127.0.0.1:1/token",
    }
    (tmp_path / "key.json").write_text(json.dumps(info))
    for extra in ({"keyfile_dict": json.dumps(info)}, {"key_path": str(tmp_path / "key.json")}):
        value = json.dumps({"conn_type": "google_cloud_platform", "extra": extra})
        broker = GooglePubSub.open("gcp", env={"AIRFLOW_CONN_GCP": value})
        assert broker.project == "from-the-key"
        broker.close()


class NoToken(google.auth.credentials.Credentials):
    """Credentials whose token server is away, or refuses."""

    def __init__(self, error: Exception, cause: Exception | None = None) -> None:
        super().__init__()
        self.error, self.cause = error, cause

    def refresh(self, request: object) -> None:
        raise self.error from self.cause


_AWAY, _REFUSED = auth.TransportError("oauth2.googleapis.com: no route"), auth.RefreshError("invalid_grant: no account")


@pytest.mark.parametrize(
    ("credentials", "kind"),
    [
        (NoToken(_AWAY), BrokerUnavailable),
        (NoToken(auth.RefreshError("internal_failure", retryable=True)), BrokerUnavailable),
        (NoToken(auth.RefreshError("no metadata"), _AWAY), BrokerUnavailable),
        (NoToken(_REFUSED), PermissionRefused),
    ],
    ids=["transport", "retryable", "cause", "refused"],
)
def test_a_token_server_that_is_away_passes_and_one_that_refuses_does_not(
    credentials: NoToken, kind: type[BrokerError]
) -> None:
    """All that gRPC tells is the text of what its plugin raised."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", grpc.local_server_credentials())
    server.start()
    plugin = AuthMetadataPlugin(TellingCredentials(credentials), None)
    both = grpc.composite_channel_credentials(grpc.local_channel_credentials(), grpc.metadata_call_credentials(plugin))
    with grpc.secure_channel(f"127.0.0.1:{port}", both) as channel, pytest.raises(grpc.RpcError) as told:
        channel.unary_unary("/google.pubsub.v1.Publisher/Publish")(b"", timeout=20)
    server.stop(0)
    error = api.from_grpc_error(told.value)
    passes = kind is BrokerUnavailable

    assert type(known_error("Pull", "orders", error)) is kind
    assert (may_pass(error), certainly_not_taken(error)) == (passes, passes)
    assert fate("orders", error)[0].status == "retry"


@pytest.mark.airflow
def test_a_connection_that_needs_more_goes_through_airflows_hook() -> None:
    value = {"conn_type": "google_cloud_platform", "extra": {"project": PROJECT, "is_anonymous": True}}
    broker = GooglePubSub.open("gcp", env={"AIRFLOW_CONN_GCP": json.dumps(value)})

    assert broker.project == PROJECT
    broker.close()


def test_opening_needs_no_airflow(server: PubSubServer) -> None:
    code = (
        "import sys; from redrive.brokers import open_broker; open_broker('google_pubsub', 'gcp').close();"
        "sys.exit('airflow' in sys.modules)"
    )
    env = os.environ | {"AIRFLOW_CONN_GCP": connection(server.endpoint)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("2023-11-14T22:13:20Z", 1_700_000_000_000_000),
        ("2023-11-14T22:13:20.123456789Z", 1_700_000_000_123_456),
        ("2023-11-14T23:13:20.5+01:00", 1_700_000_000_500_000),
        ("2023-11-14 22:13:20", None),
        ("2023-99-14T22:13:20Z", None),
        ("", None),
        (None, None),
    ],
)
def test_times_are_read_to_the_microsecond(text: str | None, micros: int | None) -> None:
    assert parse_time(text) == micros
