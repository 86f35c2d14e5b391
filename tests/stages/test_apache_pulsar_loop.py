"""The whole loop on a real Pulsar: dead-lettered by the client library, drained, classified, sent back, recognised."""

import functools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest

from redrive.brokers.pulsar.adapter import ApachePulsar
from redrive.errors import RedriveError
from redrive.message import ATTEMPT_HEADER, ID_HEADER, Outgoing, Received
from redrive.stages import pipeline
from tests.contract.broker_contract import PATIENCE
from tests.contract.test_apache_pulsar import QUIET, adapter, full
from tests.pulsar_server import Pulsar, token
from tests.stages.loop_contract import LoopContract
from tests.workshop import Workshop

pytestmark = pytest.mark.server

Verdict = Callable[[str], bool]


class PulsarWorkshop(Workshop):
    """A workshop on Pulsar and on the real clock; its topics are its own.

    The consumer refuses what it can't do, and its library dead-letters that after the second time. Nothing says why,
    so the route tells what is to be done then.
    """

    def __init__(self, folder: Path, server: Pulsar, orders: str = "", timeout: float = 30, **route: Any) -> None:
        self.server = server
        self.timeout = timeout
        self.orders = server.create_topic(orders or f"orders-{uuid.uuid4().hex[:8]}")
        self.dlq = server.create_topic(f"{self.orders}-worker-DLQ")
        server.subscribe(self.orders, "worker")
        on_pulsar = {
            "broker": "apache_pulsar",
            "connection": "pulsar_test",
            "destination": None,
            "sources": [{"queue": self.dlq, "kind": "dead_letter", "lease": "1s", "max_deliveries": 2}],
            "causes": {"max_deliveries": {"verdict": "requeue"}},
            "evidence": [],
        }
        super().__init__(folder, **(on_pulsar | route))
        self.broker = self.fresh_broker()  # type: ignore[assignment]
        self.client = pulsar.Client(
            f"pulsar://127.0.0.1:{server.port}", pulsar.AuthenticationToken(token("admin")), logger=QUIET
        )

    def fresh_broker(self) -> ApachePulsar:
        connection = self.server.connection()
        connection["extra"]["timeout"] = self.timeout
        broker = adapter(connection)
        broker.receive = functools.partial(self._receive, broker, broker.receive)  # type: ignore[method-assign]
        return broker

    def _receive(
        self, broker: ApachePulsar, receive: Callable[..., list[Received]], queue: str, **options: Any
    ) -> list[Received]:
        """What comes; nothing only where nothing more lies there, however long a busy server pauses."""
        deadline = time.monotonic() + 20
        while not (got := receive(queue, **options)) and time.monotonic() < deadline:
            reader = broker._receiver._readers.get(queue)
            if (broker.depth(queue).total or 0) <= (len(reader.held) if reader else 0):
                break
        return got

    def restarted_process(self) -> None:
        """What a new process of ours begins with."""
        self.broker.close()
        self.broker = self.fresh_broker()  # type: ignore[assignment]

    def now(self) -> datetime:
        return datetime.now(UTC)

    def advance(self, **delta: float) -> None:
        time.sleep(timedelta(**delta).total_seconds())

    def close(self) -> None:
        self.broker.close()
        self.client.close()
        self.ledger.close()

    def buy(self, *orders: str, **fields: Any) -> None:
        """A shop publishes orders; each names itself in a property."""
        producer = self.client.create_producer(full(self.orders))
        for order in orders:
            producer.send(order.encode(), properties={"order": order}, **fields)
        producer.close()

    def work(self, fails: Verdict = lambda _: False, subscription: str = "worker") -> list[str]:
        """A consumer works off the topic and refuses what fails; the orders that it got done."""
        consumer = self.client.subscribe(
            full(self.orders),
            subscription,
            consumer_type=pulsar.ConsumerType.Shared,
            negative_ack_redelivery_delay_ms=100,
            dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(1),
        )
        done, self.seen = [], []
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                message = consumer.receive(600)
            except pulsar.Timeout:
                if self.server.is_worked_off(self.orders, subscription):
                    break  # what it refused is dead-lettered, too
                continue
            self.seen.append(message)
            if fails(message.data().decode()):
                consumer.negative_acknowledge(message)
            else:
                consumer.acknowledge(message)
                done.append(message.data().decode())
        consumer.close()
        return sorted(done)

    def ours(self) -> list[str]:
        """What we sent of that which the consumer saw last.

        A broker that died gives its subscriptions again what was acked in the last seconds: that isn't.
        """
        return [message.data().decode() for message in self.seen if ID_HEADER in message.properties()]

    def fail(self, *orders: str) -> None:
        """These orders are bought, and die."""
        self.buy(*orders)
        assert self.work(fails=lambda _: True) == []
        assert self.broker.depth(self.dlq).visible == len(orders)


@pytest.fixture
def build(tmp_path: Path, pulsar_server: Pulsar) -> Iterator[Callable[..., PulsarWorkshop]]:
    made: list[PulsarWorkshop] = []

    def build(**route: Any) -> PulsarWorkshop:
        made.append(PulsarWorkshop(tmp_path, pulsar_server, **route))
        return made[-1]

    yield build
    for one in made:
        one.close()


@pytest.fixture
def workshop(build: Callable[..., PulsarWorkshop]) -> PulsarWorkshop:
    return build()


# --- the loop --------------------------------------------------------------------------------------------------


class TestLoop(LoopContract):
    @pytest.fixture
    def shop(self, workshop: PulsarWorkshop) -> PulsarWorkshop:
        return workshop

    def fail(self, shop: PulsarWorkshop, *orders: str) -> None:
        shop.fail(*orders)

    def work(self, shop: PulsarWorkshop, fails: Verdict = lambda _: False) -> list[str]:
        return shop.work(fails)

    def restart(self, shop: PulsarWorkshop, held: int) -> None:
        shop.restarted_process()


def test_what_is_sent_back_has_its_key_and_of_our_properties_two(workshop: PulsarWorkshop) -> None:
    workshop.buy("a", "b", partition_key="customer-7")
    workshop.work(fails=lambda _: True)
    workshop.cycle()

    assert workshop.work() == ["a", "b"]
    for message in workshop.seen:
        assert set(message.properties()) == {"order", ID_HEADER, ATTEMPT_HEADER}, "REAL_TOPIC and its like stay here"
        assert message.partition_key() == "customer-7"


def test_a_topic_with_two_subscriptions_is_for_people_unless_the_route_says_otherwise(
    build: Callable[..., PulsarWorkshop],
) -> None:
    workshop = build()
    workshop.server.subscribe(workshop.orders, "mail")
    workshop.fail("a")
    assert workshop.cycle()["redelivered"] == 0
    [(reason,)] = workshop.query("select reason from escalated_messages")
    assert "2 subscriptions" in reason
    assert workshop.audit() == []


def test_with_fan_out_allowed_every_subscription_gets_it(build: Callable[..., PulsarWorkshop]) -> None:
    workshop = build(fan_out="allow")
    workshop.server.subscribe(workshop.orders, "mail")
    workshop.fail("a")
    assert workshop.cycle()["redelivered"] == 1
    assert (workshop.work(), workshop.work(subscription="mail")) == (["a"], ["a", "a"])


def test_a_retry_letter_topic_is_drained_for_its_consumer(
    build: Callable[..., PulsarWorkshop], pulsar_server: Pulsar
) -> None:
    """As the Java library writes it. What we take its own consumer no longer gets."""
    retry = pulsar_server.create_topic(f"late-{uuid.uuid4().hex[:8]}-worker-RETRY")
    pulsar_server.subscribe(retry, "worker")
    orders = retry.removesuffix("-worker-RETRY")
    workshop = build(orders=orders, sources=[{"queue": retry, "kind": "delay", "delay": "1s", "destination": orders}])
    told = {"REAL_TOPIC": full(workshop.orders), "RECONSUMETIMES": "1", "DELAY_TIME": "300", "order": "later"}
    producer = workshop.client.create_producer(full(retry))
    producer.send(b"later", properties=told, deliver_after=timedelta(milliseconds=300))
    producer.close()
    workshop.advance(seconds=0.5)

    report = workshop.cycle()
    workshop.advance(seconds=1)
    assert (report["drained"], report["redelivered"] + workshop.cycle()["redelivered"]) == (1, 1)
    assert workshop.work() == ["later"]
    assert set(workshop.seen[0].properties()) == {"order", ID_HEADER, ATTEMPT_HEADER}
    assert workshop.broker.depth(retry).total == 0
    assert workshop.audit() == []


def test_what_is_restored_still_knows_where_it_died(build: Callable[..., PulsarWorkshop]) -> None:
    workshop = build(causes={"max_deliveries": {"verdict": "escalate"}})
    workshop.fail("a")
    workshop.cycle()
    run = workshop.begin()
    assert pipeline.restore(workshop.settings, run, **workshop.options())["restored"] == 1
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)

    received = workshop.broker.receive(workshop.dlq, limit=5, wait=timedelta(seconds=1), lease=timedelta(minutes=1))
    assert [(one.letter.origin, one.letter.body) for one in received] == [(workshop.orders, b"a")]


# --- crashes and restarts --------------------------------------------------------------------------------------


def restart(server: Pulsar) -> None:
    if server.process is not None:
        server.kill()
    server.start()


def test_the_broker_dies_in_the_middle_of_a_drain(
    build: Callable[..., PulsarWorkshop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the batch was recorded, while it is being settled."""
    workshop = build(timeout=3)
    workshop.fail("a", "b", "c")
    real = workshop.broker.settle

    def settle(*arguments: Any) -> Any:
        if workshop.server.process is not None:
            workshop.server.kill()
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(workshop.broker, "settle", settle)
        run = workshop.begin()
        with pytest.raises(RedriveError):
            for _ in workshop.stages(run):
                pass
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    restart(workshop.server)
    workshop.timeout = 30  # as a server that starts on a busy machine needs
    workshop.restarted_process()
    report = workshop.cycle()

    assert (report["drained"], report["duplicates"], report["redelivered"]) == (3, 3, 3)
    workshop.work()
    assert sorted(workshop.ours()) == ["a", "b", "c"]
    assert (workshop.balance()["new"], workshop.balance()["settled"]) == (3, 3)
    assert workshop.audit() == []


def test_the_broker_dies_in_the_middle_of_a_delivery(
    build: Callable[..., PulsarWorkshop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three windows the first is confirmed, the second is under way, the third was never sent."""
    workshop = build(timeout=3, deliver={"confirm_window": 5, "run_for": "5s"})
    orders = [f"{n:02}" for n in range(15)]
    workshop.fail(*orders)
    real, server = workshop.broker.publish, workshop.server
    answers: list[list[str]] = []
    under_way: set[str] = set()
    death = threading.Timer(0.3, server.kill)

    def publish(queue: str, messages: list[Outgoing]) -> Any:
        if len(answers) == 1:  # it no longer answers; then it dies
            server.freeze()
            under_way.update(message.body.decode() for message in messages)
            death.start()
        results = real(queue, messages)
        answers.append([result.status for result in results])
        return results

    with monkeypatch.context() as patch:
        patch.setattr(workshop.broker, "publish", publish)
        run = workshop.begin()
        try:
            for _ in workshop.stages(run):
                pass
        except RedriveError:
            pass  # the destination is gone: the run may end there
    death.join()  # or it would take the next server for its own
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    assert answers[:2] == [["sent"] * 5, ["unknown"] * 5]
    assert {status for window in answers[2:] for status in window} <= {"retry"}
    restart(server)
    workshop.timeout = 30
    workshop.restarted_process()
    workshop.cycle()

    workshop.work()
    ours = workshop.ours()
    escalated = {payload for (payload,) in workshop.query("select payload from escalated_messages")}
    assert escalated == under_way, "of what nobody knows nothing is sent again on a guess"
    assert len(ours) == len(set(ours)), "nothing twice"
    assert not set(ours) & escalated
    assert len(ours) + len(escalated) + workshop.states().get("waiting", 0) == 15, "nothing is lost"
    assert workshop.audit() == []
