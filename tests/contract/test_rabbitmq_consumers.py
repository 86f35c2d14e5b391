"""Who consumes a queue and whether it gets on, as RabbitMQ's management API tells; and closing a connection over it."""

import time
import uuid
from collections.abc import Callable, Iterator

import pika
import pytest

from redrive.brokers.base import ConsumerStats
from redrive.brokers.rabbitmq.adapter import RabbitMQ
from redrive.errors import BrokerUnavailable, PermissionRefused, QueueMissing, SettingsError
from redrive.message import Outgoing
from tests import servers
from tests.contract.test_rabbitmq import adapter
from tests.servers import free_port

pytestmark = pytest.mark.server

Told = dict[str, ConsumerStats]


@pytest.fixture
def rabbit(rabbitmq: servers.RabbitMQ) -> Iterator[RabbitMQ]:
    broker = adapter(rabbitmq)
    yield broker
    broker.close()


@pytest.fixture
def queue(rabbitmq: servers.RabbitMQ) -> str:
    return rabbitmq.create_queue(f"q-{uuid.uuid4().hex[:12]}")


@pytest.fixture
def consume(rabbitmq: servers.RabbitMQ) -> Iterator[Callable[..., servers.Consumer]]:
    made: list[servers.Consumer] = []

    def consume(queue: str, **options: object) -> servers.Consumer:
        made.append(rabbitmq.consume(queue, **options))  # type: ignore[arg-type]
        return made[-1]

    yield consume
    for one in made:
        one.close()


def fill(broker: RabbitMQ, queue: str, count: int) -> None:
    broker.publish(queue, [Outgoing(n, f"r-{n}", 1, b"%d" % n) for n in range(count)])


def measured(broker: RabbitMQ, queue: str, enough: Callable[[Told], bool], within: float = 60) -> Told:
    """What is told of the consumers, by tag, once it is enough; statistics come late."""
    deadline = time.monotonic() + within
    while True:
        told = {one.consumer.partition(" ")[0]: one for one in broker.consumers(queue)}
        if enough(told):
            return told
        assert time.monotonic() < deadline, told
        time.sleep(0.2)


def holding(**unacked: int) -> Callable[[Told], bool]:
    """They hold so many, and have answered none yet."""
    return lambda told: {name: one[1:3] for name, one in told.items()} == {n: (u, 0) for n, u in unacked.items()}


def test_each_consumer_is_told_with_what_it_holds(
    rabbit: RabbitMQ, queue: str, consume: Callable[..., servers.Consumer]
) -> None:
    consume(queue, prefetch=3, consumer_tag="a")
    consume(queue, prefetch=2, consumer_tag="b")
    fill(rabbit, queue, 9)
    told = measured(rabbit, queue, holding(a=3, b=2))

    assert told["a"].connection != told["b"].connection
    assert told["a"].connection in told["a"].consumer, "the name says where it is"
    assert not told["a"].shared


@pytest.mark.parametrize("reject", [False, True], ids=["acks", "rejects"])
def test_whoever_answers_gets_on_and_whoever_holds_does_not(
    rabbit: RabbitMQ, queue: str, consume: Callable[..., servers.Consumer], reject: bool
) -> None:
    """Also who rejects one message after the other: RabbitMQ counts no rejections, but they are not its fault."""
    hung, well = consume(queue, prefetch=2, consumer_tag="hung"), consume(queue, prefetch=2, consumer_tag="well")
    fill(rabbit, queue, 20)
    before = measured(rabbit, queue, holding(hung=2, well=2))
    for _ in range(5):
        while not well.held:
            well.serve()
        well.ack(reject=reject)
    after = measured(rabbit, queue, lambda told: told["well"].progress != before["well"].progress)

    hung.serve()
    assert after["hung"] == before["hung"]
    assert after["well"].unacked > 0


def test_deliveries_without_a_limit_are_no_progress(
    rabbit: RabbitMQ, queue: str, consume: Callable[..., servers.Consumer]
) -> None:
    hung = consume(queue, consumer_tag="hung")
    fill(rabbit, queue, 5)
    before = measured(rabbit, queue, holding(hung=5))
    fill(rabbit, queue, 5)
    after = measured(rabbit, queue, holding(hung=10))
    assert after["hung"].progress == before["hung"].progress

    while not hung.held:
        hung.serve()
    hung.ack()
    measured(rabbit, queue, lambda told: told["hung"].progress != before["hung"].progress)


def test_who_need_not_ack_holds_nothing(rabbit: RabbitMQ, queue: str, consume: Callable[..., servers.Consumer]) -> None:
    consume(queue, auto_ack=True, consumer_tag="careless")
    fill(rabbit, queue, 5)
    assert measured(rabbit, queue, holding(careless=0))["careless"].progress == 0


def test_a_connection_that_serves_another_queue_too_is_shared(
    rabbit: RabbitMQ, rabbitmq: servers.RabbitMQ, queue: str, consume: Callable[..., servers.Consumer]
) -> None:
    both = consume(queue, prefetch=1, consumer_tag="both")
    both.join(rabbitmq.create_queue(f"q-{uuid.uuid4().hex[:12]}"))
    assert measured(rabbit, queue, lambda told: "both" in told and told["both"].shared)


def test_a_closed_connection_gives_back_what_it_held(
    rabbit: RabbitMQ, queue: str, consume: Callable[..., servers.Consumer]
) -> None:
    hung = consume(queue, prefetch=3, consumer_tag="hung")
    fill(rabbit, queue, 3)
    told = measured(rabbit, queue, holding(hung=3))
    while len(hung.held) < 3:
        hung.serve()
    connection = told["hung"].connection
    assert connection is not None

    assert rabbit.close_connection(queue, connection, "holds\nmessages \u2013 and acks none " + "x" * 500)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="holds messages"):
        hung.serve(60)
    measured(rabbit, queue, holding())
    assert rabbit.depth(queue).visible == 3
    deadline = time.monotonic() + 60  # for a moment RabbitMQ still knows it
    while rabbit.close_connection(queue, connection, "once more"):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_who_only_watches_may_not_close(
    rabbit: RabbitMQ, rabbitmq: servers.RabbitMQ, queue: str, consume: Callable[..., servers.Consumer]
) -> None:
    consume(queue, prefetch=1, consumer_tag="hung")
    rabbitmq.create_user("watcher", read=".*", write=".*")
    watcher = adapter(rabbitmq, login="watcher", password="watcher")
    connection = measured(watcher, queue, holding(hung=0))["hung"].connection
    assert connection is not None
    with pytest.raises(PermissionRefused, match="closing connection") as refused:
        watcher.close_connection(queue, connection, "why")
    assert queue in str(refused.value)
    assert "d2F0Y2hlc" not in str(refused.value), "credentials"
    watcher.close()


def test_a_queue_that_is_missing_and_an_api_that_is_away_are_told(rabbitmq: servers.RabbitMQ, rabbit: RabbitMQ) -> None:
    with pytest.raises(QueueMissing, match="no-such-queue"):
        rabbit.consumers("no-such-queue")
    away = adapter(rabbitmq, extra={"management_port": free_port()})
    with pytest.raises(BrokerUnavailable, match="queues of queue orders"):
        away.consumers("orders")


@pytest.mark.parametrize("answer", [[], {"consumer_details": []}], ids=["off", "on"])
def test_statistics_that_are_off_are_not_taken_for_no_consumers(
    rabbit: RabbitMQ, queue: str, monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    """What a node with ``management.disable_stats`` answers."""
    monkeypatch.setattr(rabbit._management._api, "ask", lambda *_: answer)  # type: ignore[union-attr]
    if answer:
        assert rabbit.consumers(queue) == []
    else:
        with pytest.raises(BrokerUnavailable, match="disable_stats"):
            rabbit.consumers(queue)


def test_statistics_that_are_off_leave_what_is_held_unknown(
    rabbit: RabbitMQ, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(rabbit, queue, 2)
    real = rabbit._management._api.ask  # type: ignore[union-attr]

    def off(*call: str) -> dict[str, object]:
        told = real(*call)
        return {key: told[key] for key in ("name", "type", "arguments", "durable", "vhost")}

    monkeypatch.setattr(rabbit._management._api, "ask", off)  # type: ignore[union-attr]
    assert rabbit.depth(queue)[:3] == (2, None, 0)


def test_without_the_management_api_it_does_not_say_that_it_could(rabbitmq: servers.RabbitMQ, queue: str) -> None:
    broker = adapter(rabbitmq, extra={})
    assert not broker.capabilities.consumer_statistics
    assert not broker.capabilities.closes_connections
    with pytest.raises(PermissionRefused, match="needs the management API"):
        broker.close_connection(queue, "x", "why")


def test_credentials_in_the_url_are_refused_and_not_repeated(rabbitmq: servers.RabbitMQ) -> None:
    with pytest.raises(SettingsError, match="management_url") as refused:
        adapter(rabbitmq, extra={"management_url": "http://ana:s3cret@mq1:15672"})
    assert "s3cret" not in str(refused.value)
