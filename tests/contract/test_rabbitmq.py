"""The RabbitMQ adapter: the contract on a real node, with classic and quorum queues, and what only RabbitMQ does."""

import contextlib
import copy
import json
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pika
import pytest

from redrive.brokers import open_broker
from redrive.brokers.base import Publication
from redrive.brokers.rabbitmq.adapter import RabbitMQ
from redrive.brokers.rabbitmq.confirms import Sender, Window
from redrive.brokers.rabbitmq.consumption import Consumption
from redrive.brokers.rabbitmq.content_header import decode
from redrive.brokers.rabbitmq.deaths import Death, deaths_of
from redrive.brokers.rabbitmq.kind import FAILURE_HEADERS
from redrive.brokers.rabbitmq.link import Channel, Link
from redrive.brokers.rabbitmq.management import QueueFacts, _facts, _routes
from redrive.brokers.rabbitmq.measured import STATISTICS_LAG
from redrive.brokers.rabbitmq.message import encode, letter_of
from redrive.brokers.rabbitmq.session import Hosts
from redrive.errors import BrokerError, BrokerUnavailable, NothingSent, PermissionRefused, QueueMissing, SettingsError
from redrive.message import Header, Outgoing, clean_headers, tracking_headers
from redrive.staging.batch_columns import to_letters, to_table
from tests import servers
from tests.contract.broker_contract import LEASE, NO_WAIT, PATIENCE, BrokerContract, eventually, outgoing
from tests.servers import free_port

#: For what comes; a receive ends as soon as it has.
WAIT = timedelta(seconds=PATIENCE)

#: One header of every type that AMQP knows, in its text form.
TYPED = (
    Header("customer", "longstr", "Müller & Söhne"),
    Header("latin", "longstr", b"M\xfcller"),
    Header("thumbnail", "binary", b"\x89PNG\x00\xff"),
    Header("flag", "bool", "true"),
    Header("off", "bool", "false"),
    Header("tiny", "byte", "-7"),
    Header("tiny-unsigned", "ubyte", "200"),
    Header("small", "short", "-30000"),
    Header("small-unsigned", "ushort", "60000"),
    Header("count", "int", "-5"),
    Header("count-unsigned", "uint", "4000000000"),
    Header("big", "long", "9007199254740993"),
    Header("share", "float", "0.5"),
    Header("ratio", "double", "12.1"),
    Header("amount", "decimal", "12.50"),
    Header("debt", "decimal", "-0.05"),
    Header("at", "timestamp", "2026-11-21T08:41:22Z"),
    Header("nothing", "void", ""),
    Header("lines", "array", '["a",7,{"!int":"7"},{"!double":"1.5"},null,true]'),
    Header("order", "table", '{"id":17,"paid":false,"image":{"!binary":"AP8="}}'),
    Header("nested", "table", '{"a":{"b":[{"at":{"!timestamp":"1999-12-31T23:59:59Z"}}]}}'),
    Header("marked", "table", '{"!table":{"!int":"is a key of its own"}}'),
)  # fmt: skip


def adapter(server: servers.RabbitMQ, **changes: object) -> RabbitMQ:
    """The adapter on the node, connected as an Airflow connection in the environment says."""
    options = changes.pop("options", {})
    value = json.dumps(server.connection(**changes))
    return open_broker("rabbitmq", "rabbit_test", env={"AIRFLOW_CONN_RABBIT_TEST": value}, **options)  # type: ignore[return-value, arg-type]


@pytest.fixture
def rabbit(rabbitmq: servers.RabbitMQ) -> Iterator[RabbitMQ]:
    broker = adapter(rabbitmq)
    yield broker
    broker.close()


@pytest.fixture
def create(rabbitmq: servers.RabbitMQ) -> Callable[..., str]:
    """``create(x_queue_type="quorum", …)`` -> name of a new durable queue with these arguments."""
    return lambda **arguments: rabbitmq.create_queue(f"q-{uuid.uuid4().hex[:12]}", **arguments)


class OnRabbitMQ(BrokerContract):
    """RabbitMQ has no leases: what a consumer holds comes back when its connection is gone, and all of it."""

    text_type = "longstr"
    queue_type = "classic"
    hostile_headers = (
        (Header("x-delivery-count", "longstr", "99999999999"),),
        (Header("x-delivery-count", "longstr", "\u00b2"),),
        (Header("x-death", "array", '[{"queue":"orders","reason":"rejected","count":1099511627776}]'),),
        (Header("x-death", "array", '[{"queue":"orders","reason":"rejected","time":{"!timestamp":"999999999999"}}]'),),
    )

    @pytest.fixture
    def broker(self, rabbit: RabbitMQ) -> RabbitMQ:
        return rabbit

    @pytest.fixture
    def another_broker(self, rabbitmq: servers.RabbitMQ) -> Iterator[RabbitMQ]:
        broker = adapter(rabbitmq)
        yield broker
        broker.close()

    @pytest.fixture
    def make_queue(self, create: Callable[..., str]) -> Callable[..., str]:
        def make(
            *, ordered: bool = False, dead_letter_queue: str | None = None, max_deliveries: int | None = None
        ) -> str:
            if dead_letter_queue is None:
                return create(x_queue_type=self.queue_type, x_single_active_consumer=ordered or None)
            # Only quorum queues count deliveries; one more than the limit kills.
            return create(
                x_queue_type="quorum",
                x_dead_letter_exchange="",
                x_dead_letter_routing_key=dead_letter_queue,
                x_delivery_limit=None if max_deliveries is None else max_deliveries - 1,
            )

        return make

    @pytest.fixture
    def let_pass(self, broker: RabbitMQ) -> Callable[[timedelta], None]:
        """The consumer dies: there is nothing else that ends its hold on messages."""

        def die(_: timedelta) -> None:
            broker.close()

        return die

    @pytest.fixture
    def refused_broker(self, rabbitmq: servers.RabbitMQ) -> Iterator[RabbitMQ]:
        rabbitmq.create_queue("orders-dlq")
        rabbitmq.ask("PUT", "users/stranger", {"password": "stranger", "tags": ""})
        broker = adapter(rabbitmq, login="stranger", password="stranger")
        yield broker
        broker.close()

    @pytest.fixture
    def unreachable_broker(self, rabbitmq: servers.RabbitMQ) -> RabbitMQ:
        return adapter(rabbitmq, port=free_port(), options={"sleep": lambda _: None})

    def test_headers_survive_with_their_types(self, broker: RabbitMQ, queue: str) -> None:
        self.send(broker, queue, outgoing(headers=TYPED))

        assert self.take(broker, queue, 1)[0].letter.headers[: len(TYPED)] == TYPED

    def test_a_letter_tells_its_id_and_times(self, broker: RabbitMQ, queue: str) -> None:
        """The id is the publisher's, if it gave one, and so is the time: RabbitMQ itself has neither."""
        given = (("message_id", "order-17"), ("timestamp", "1760000000"))
        self.send(broker, queue, outgoing(number=1), outgoing(number=2, properties=given))
        bare, told = (r.letter for r in self.take(broker, queue, 2))

        assert (bare.broker_message_id, bare.enqueued_at, bare.deliveries, bare.redelivered) == ("", None, 1, False)
        assert (told.broker_message_id, told.enqueued_at) == ("order-17", 1_760_000_000_000_000)

    def test_an_ordering_key_survives(self, broker: RabbitMQ, make_queue: Callable[..., str]) -> None:
        """RabbitMQ has none; routes order by a header or a field of the body."""
        queue = make_queue(ordered=True)
        self.send(broker, queue, outgoing(ordering_key="customer-7"))

        assert self.take(broker, queue, 1)[0].letter.ordering_key is None

    def test_order_within_a_key_is_kept(self, broker: RabbitMQ, queue: str) -> None:
        """All of a queue is in order, across windows and receives, and also after a consumer's death.

        After a release it is on classic queues only: a quorum queue without a delivery limit puts it to the end.
        """
        self.send(broker, queue, *(outgoing(b"%d" % n, n, ordering_key="ab"[n % 2]) for n in range(24)))
        first = self.take(broker, queue, 10)
        if self.queue_type == "classic":
            broker.release(queue, [r.receipt for r in first])
        else:
            broker.close()
        seen = []
        while got := self.take(broker, queue, 5, least=len(seen) < 24):
            seen += [int(r.letter.body) for r in got]
            broker.settle(queue, [r.receipt for r in got])

        assert seen == list(range(24))

    def test_too_many_headers_are_refused(self, broker: RabbitMQ, queue: str) -> None:
        """Not their number counts: they have to fit into one frame."""
        many = tuple(Header(f"h{n}", "longstr", "v" * 200) for n in range(1000))
        results = broker.publish(queue, [outgoing(headers=many), outgoing(number=2, headers=many[:500])])

        assert [r.status for r in results] == ["refused", "sent"]
        assert "one frame" in results[0].detail

    def test_a_delayed_message_is_counted_and_comes_later(  # type: ignore[override]
        self, broker: RabbitMQ, another_broker: RabbitMQ, queue: str
    ) -> None:
        """It waits in a queue that is made for it; nothing but time brings it on. Another process sees it wait there:
        else what is kept there, because the destination is full, would count as taken."""
        sent = outgoing(b"waits", headers=(Header("a", "longstr", "b"),), delay_seconds=1.2)
        started = time.monotonic()
        self.send(broker, queue, sent, outgoing(b"at once", 2))

        assert eventually(lambda: broker.depth(queue).delayed == 1)
        assert another_broker.depth(queue).delayed == 1
        assert [r.letter.body for r in self.take(broker, queue, 1)] == [b"at once"]
        [received] = self.take(broker, queue, 1)
        assert time.monotonic() - started >= 1.2
        letter = received.letter
        assert (letter.body, letter.origin, letter.reason, letter.deliveries) == (b"waits", None, None, 1)
        assert clean_headers(letter.headers, FAILURE_HEADERS) == (Header("a", "longstr", "b"),)
        assert eventually(lambda: broker.depth(queue).delayed == 0)
        assert another_broker.depth(queue).delayed == 0

    def test_delays_are_rounded_up_and_never_longer_than_a_queue_keeps_them(self, broker: RabbitMQ, queue: str) -> None:
        results = broker.publish(
            queue, [outgoing(delay_seconds=14, number=1), outgoing(delay_seconds=901, number=2), outgoing(number=3)]
        )

        assert [result.status for result in results] == ["sent", "refused", "sent"]
        assert "delay" in results[1].detail
        assert eventually(lambda: broker.depth(f"redrive.delay.20.{queue}").visible == 1)
        assert broker.capabilities_for("q" * 250).native_delay is None, "the name of its delay queue would be too long"

    def test_nothing_waits_for_a_queue_that_is_not_there(self, broker: RabbitMQ) -> None:
        with pytest.raises(QueueMissing, match="no-such-queue"):
            broker.publish("no-such-queue", [outgoing(delay_seconds=5)])

    def test_a_delay_queue_that_was_deleted_is_made_anew(
        self, broker: RabbitMQ, rabbitmq: servers.RabbitMQ, queue: str
    ) -> None:
        self.send(broker, queue, outgoing(delay_seconds=600))
        rabbitmq.ask("DELETE", f"queues/%2F/redrive.delay.720.{queue}")
        [lost] = broker.publish(queue, [outgoing(delay_seconds=600, number=2)])
        assert lost.status == "retry"
        self.send(broker, queue, outgoing(delay_seconds=600, number=2))

    def test_a_queue_that_delays_is_drained_before_its_time(self, broker: RabbitMQ, create: Callable[..., str]) -> None:
        """A delay is a queue with a time to live; a drain takes messages out of it before their time."""
        time_to_live = 1
        while True:
            queue = create(x_queue_type=self.queue_type)
            delay = create(
                x_queue_type=self.queue_type,
                x_message_ttl=time_to_live * 1000,
                x_dead_letter_exchange="",
                x_dead_letter_routing_key=queue,
            )
            began = time.monotonic()
            self.send(broker, delay, outgoing(b"waits", 1), outgoing(b"is drained", 2))
            taken = self.take(broker, delay, 2, least=0)
            if len(taken) == 2:
                break
            assert time.monotonic() - began >= time_to_live, "they went before their time"
            time_to_live *= 4  # on so busy a machine their time comes before the drain does
        waits, drained = taken
        broker.release(delay, [waits.receipt])
        assert broker.settle(delay, [drained.receipt]).count == 1

        [came] = self.take(broker, queue, 2, least=1)
        assert (came.letter.body, came.letter.origin, came.letter.reason) == (b"waits", delay, "expired")

    def test_an_extended_lease_keeps_a_message_away(
        self, broker: RabbitMQ, another_broker: RabbitMQ, queue: str
    ) -> None:
        """There is nothing to extend; the question only shows whether the channel lives."""
        self.send(broker, queue, outgoing())
        [kept] = self.take(broker, queue, 1)
        broker.extend(queue, [kept.receipt], LEASE)

        assert self.take(another_broker, queue, 1, least=0) == []
        assert broker.settle(queue, [kept.receipt]).count == 1


@pytest.mark.server
class TestRabbitMQ(OnRabbitMQ):
    """On a real node, with classic queues."""


@pytest.mark.server
class TestRabbitMQQuorum(OnRabbitMQ):
    """On a real node, with quorum queues."""

    queue_type = "quorum"


# --- settling ----------------------------------------------------------------------------------------------


def fill(broker: RabbitMQ, queue: str, count: int) -> None:
    results = broker.publish(queue, [outgoing(b"%d" % n, n) for n in range(count)])
    assert {r.status for r in results} == {"sent"}


def ready(broker: RabbitMQ, queue: str) -> int:
    """What lies ready now; a depth may tell what the node measured seconds ago."""
    return broker._session.probed(queue, "queue.declare")[0]


@pytest.fixture
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that was asked for is there and comes: a receive ends with it, and not where a busy node pauses."""
    take = Consumption.take
    monkeypatch.setattr(Consumption, "take", lambda self, limit, **_: take(self, limit, first=PATIENCE, idle=PATIENCE))


def drain_all(broker: RabbitMQ, queue: str, count: int) -> list[object]:
    return [r.receipt for r in BrokerContract.take(broker, queue, count)]


@pytest.mark.server
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_batch_is_acked_by_one_ack_for_all(
    rabbit: RabbitMQ, create: Callable[..., str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    queue = create(x_queue_type=kind)
    fill(rabbit, queue, 2500)
    receipts = drain_all(rabbit, queue, 2500)
    channel = rabbit._receiving.holders[queue].channel
    acks: list[tuple[int, bool]] = []
    real = channel.ack
    monkeypatch.setattr(
        channel, "ack", lambda tag, multiple: (acks.append((tag, multiple)), real(tag, multiple=multiple))
    )

    assert rabbit.settle(queue, list(reversed(receipts))).count == 2500
    assert acks == [(2500, True)]
    assert rabbit.depth(queue).total == 0


@pytest.mark.server
def test_what_is_not_the_oldest_is_acked_one_by_one(rabbit: RabbitMQ, create: Callable[..., str]) -> None:
    queue = create()
    fill(rabbit, queue, 6)
    receipts = drain_all(rabbit, queue, 6)
    rabbit.settle(queue, [receipts[0], receipts[1], receipts[3]])
    rabbit.release(queue, [receipts[2]])

    assert rabbit.settle(queue, [receipts[2]]).failures == ((receipts[2], "it was given back"),)
    assert rabbit.depth(queue)[:3] == (1, 2, 0)
    rabbit.close()
    assert sorted(r.letter.body for r in BrokerContract.take(rabbit, queue, 6, least=3)) == [b"2", b"4", b"5"]


@pytest.mark.server
def test_nobody_knows_of_a_batch_whose_connection_is_lost_before_the_answer(
    rabbit: RabbitMQ, create: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = create()
    fill(rabbit, queue, 3)
    receipts = drain_all(rabbit, queue, 3)
    channel, link = rabbit._receiving.holders[queue].channel, rabbit._session.link
    assert link is not None
    real = channel.ack
    monkeypatch.setattr(channel, "ack", lambda tag, multiple: (real(tag, multiple=multiple), link.abort()))

    with pytest.raises(BrokerUnavailable, match=queue):
        rabbit.settle(queue, receipts)
    later = rabbit.settle(queue, receipts)
    assert later.count == 0
    assert "went back" in later.failures[0][1]


@pytest.mark.server
def test_a_channel_lost_with_messages_is_told_before_they_come_again(
    rabbit: RabbitMQ, create: Callable[..., str]
) -> None:
    """Else they would be staged twice in one batch."""
    queue = create()
    fill(rabbit, queue, 2)
    drain_all(rabbit, queue, 1)
    rabbit._session.link.abort()  # type: ignore[union-attr]

    with pytest.raises(BrokerUnavailable, match=f"{queue}: the channel was lost with 1 messages held"):
        rabbit.receive(queue, limit=2, wait=WAIT, lease=LEASE)
    assert eventually(lambda: rabbit.depth(queue).visible == 2)
    assert len(drain_all(rabbit, queue, 2)) == 2


def close_unread(broker: RabbitMQ, rabbitmq: servers.RabbitMQ, what: str) -> None:
    """RabbitMQ closes the connection or its channels, and nobody has read that yet."""
    link = broker._session.link
    assert link is not None
    if what == "channel":
        for holder in broker._receiving.holders.values():
            holder.channel.ack(1_000_000, multiple=False)  # it closes the channel for a tag that it never gave
        link.serve()
        time.sleep(0.5)
        return
    port = link.connection._transport._sock.getsockname()[1]  # type: ignore[attr-defined]
    name = eventually(lambda: [one["name"] for one in rabbitmq.ask("GET", "connections") if one["peer_port"] == port])
    rabbitmq.ask("DELETE", f"connections/{quote(name[0], safe='')}")
    time.sleep(0.5)
    assert link.is_open


@pytest.mark.server
@pytest.mark.parametrize("what", ["connection", "channel"])
@pytest.mark.parametrize("noticed_by", ["receive", "probe", "extend", "depth"])
def test_a_close_that_nobody_has_read_yet_is_told_before_messages_come_again(
    rabbit: RabbitMQ, rabbitmq: servers.RabbitMQ, create: Callable[..., str], what: str, noticed_by: str
) -> None:
    """While a batch is staged nobody reads what the broker says. Else its messages would come twice in that batch."""
    queue = create()
    fill(rabbit, queue, 3)
    receipts = drain_all(rabbit, queue, 1)
    close_unread(rabbit, rabbitmq, what)

    if noticed_by == "probe":
        rabbit._session.probed(queue, "queue.declare")
    if noticed_by == "depth":
        with contextlib.suppress(BrokerError):
            rabbit.depth(queue)
    lost = pytest.raises(BrokerUnavailable, match=f"{queue}: the channel was lost with 1 messages held")
    with lost:
        if noticed_by == "extend":
            rabbit.extend(queue, receipts, LEASE)
        else:
            rabbit.receive(queue, limit=3, wait=WAIT, lease=LEASE)
    rabbit.release(queue, receipts)
    assert len(drain_all(rabbit, queue, 3)) == 3, "it is told once"


@pytest.mark.server
@pytest.mark.parametrize("what", ["connection", "channel"])
def test_a_close_that_a_settle_has_told_is_not_told_again(
    rabbit: RabbitMQ, rabbitmq: servers.RabbitMQ, create: Callable[..., str], what: str
) -> None:
    queue = create()
    fill(rabbit, queue, 2)
    receipts = drain_all(rabbit, queue, 2)
    close_unread(rabbit, rabbitmq, what)

    assert [why for _, why in rabbit.settle(queue, receipts).failures] == [
        "its channel was lost, so the message went back to its queue"
    ] * 2
    assert len(drain_all(rabbit, queue, 2)) == 2


@pytest.mark.server
@pytest.mark.usefixtures("without_pauses")
def test_never_more_is_taken_than_one_batch(rabbitmq: servers.RabbitMQ, create: Callable[..., str]) -> None:
    queue = create()
    one, two = adapter(rabbitmq), adapter(rabbitmq)
    fill(one, queue, 50)
    assert len(one.receive(queue, limit=20, wait=NO_WAIT, lease=LEASE)) == 20

    assert ready(two, queue) == 30
    one.close()
    two.close()


@pytest.mark.server
@pytest.mark.usefixtures("without_pauses")
@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize(("mean_bytes", "first_left"), [(None, 1000), (1000.0, 500)])
def test_what_is_wanted_next_comes_while_this_is_worked_on_and_never_more(
    rabbitmq: servers.RabbitMQ, create: Callable[..., str], kind: str, mean_bytes: float | None, first_left: int
) -> None:
    """More at once where the node has told how large they are."""
    queue = create(x_queue_type=kind)
    one, other = adapter(rabbitmq), adapter(rabbitmq)
    fill(one, queue, 3001)
    one.settle(queue, drain_all(one, queue, 1))  # what a message takes is known now
    one._measured.others = lambda *_: None  # type: ignore[method-assign] # nor is it measured meanwhile
    one._measured.backlog_bytes[queue] = mean_bytes
    first = one.receive_ahead(queue, limit=1000, ahead=1500, wait=NO_WAIT, lease=LEASE)

    assert [each.letter.body for each in first] == [b"%d" % number for number in range(1, 1001)]
    assert eventually(lambda: ready(other, queue) == first_left)
    assert one.settle(queue, [each.receipt for each in first]).count == 1000
    assert ready(other, queue) == first_left, "an ack let more come"
    later = [
        one.receive_ahead(queue, limit=limit, ahead=ahead, wait=NO_WAIT, lease=LEASE)
        for limit, ahead in ((1000, 500), (500, 0))
    ]
    assert [each.letter.body for part in later for each in part] == [b"%d" % number for number in range(1001, 2501)]
    assert ready(other, queue) == 500
    assert one.settle(queue, [each.receipt for part in later for each in part]).count == 1500
    assert one.depth(queue).visible == 500
    one.close()
    other.close()


@pytest.mark.server
@pytest.mark.usefixtures("without_pauses")
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_what_is_under_way_at_a_settle_comes_in_its_order(
    rabbitmq: servers.RabbitMQ, create: Callable[..., str], kind: str
) -> None:
    """Also what is too large for one frame."""
    queue = create(x_queue_type=kind)
    one = adapter(rabbitmq)
    sizes = [200_000 if number % 2 else 10 for number in range(40)]
    one.publish(queue, [outgoing(b"%04d" % number + b"x" * size, number) for number, size in enumerate(sizes)])
    one._measured.others = lambda *_: None  # type: ignore[method-assign] # nor is it measured meanwhile
    one._measured.backlog_bytes[queue] = 100_000.0
    got: list[tuple[int, bool]] = []
    while len(got) < 40:
        left = 40 - len(got)
        came = one.receive_ahead(queue, limit=min(10, left), ahead=left - min(10, left), wait=WAIT, lease=LEASE)
        assert came
        got += [(int(each.letter.body[:4]), each.letter.redelivered) for each in came]
        assert one.settle(queue, [each.receipt for each in came]).count == len(came)
    assert got == [(number, False) for number in range(40)]
    one.close()


@pytest.mark.server
@pytest.mark.usefixtures("without_pauses")
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_shares_of_a_backlog_come_one_behind_the_other_and_no_more_than_may(
    rabbitmq: servers.RabbitMQ, create: Callable[..., str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """While one is worked on, the next is under way, also while what came before is acked."""
    queue = create(x_queue_type=kind)
    one, other = adapter(rabbitmq), adapter(rabbitmq)
    monkeypatch.setattr("redrive.brokers.rabbitmq.receiving.MOST_PREFETCH", 300)
    fill(one, queue, 3001)
    one.settle(queue, drain_all(one, queue, 1))
    one._measured.others = lambda *_: None  # type: ignore[method-assign] # nor is it measured meanwhile
    one._measured.backlog_bytes[queue] = 1000.0
    got: list[tuple[int, bool]] = []
    held: list[object] = []
    ahead = 0
    while left := 3000 - len(got):
        limit = min(100, left)
        came = one.receive_ahead(queue, limit=limit, ahead=left - limit, wait=NO_WAIT, lease=LEASE)
        assert 0 < len(came) <= limit  # fewer at the end of a share
        got += [(int(each.letter.body), each.letter.redelivered) for each in came]
        held += [each.receipt for each in came]
        if len(held) > 300 + len(got) % 128 or left == len(came):  # now with a share that began, now without
            assert one.settle(queue, held).count == len(held)
            held = []
        under_way = 3000 - len(got) - ready(other, queue)
        assert 0 <= under_way <= 300
        ahead = max(ahead, under_way)
    assert ahead > 100
    assert got == [(number, False) for number in range(1, 3001)]
    assert one.depth(queue).visible == 0
    one.close()
    other.close()


@pytest.mark.server
@pytest.mark.usefixtures("without_pauses")
def test_of_large_messages_fewer_come_ahead(rabbitmq: servers.RabbitMQ, create: Callable[..., str]) -> None:
    """Those behind are, though what came was small."""
    queue = create()
    one, other = adapter(rabbitmq), adapter(rabbitmq)
    fill(one, queue, 3001)
    one.settle(queue, drain_all(one, queue, 1))
    one._measured.others = lambda *_: None  # type: ignore[method-assign] # nor is it measured meanwhile
    one._measured.backlog_bytes[queue] = 16 * 1024 * 1024 / 1500
    assert len(one.receive_ahead(queue, limit=1000, ahead=2000, wait=NO_WAIT, lease=LEASE)) == 1000
    assert eventually(lambda: ready(other, queue) == 1500)
    one.close()
    other.close()


@pytest.mark.server
@pytest.mark.usefixtures("without_pauses")
@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize(("body_bytes", "settle_at"), [(20_000, 800), (200_000, 620)])
def test_large_ones_in_a_row_behind_many_small_ones_fill_no_memory(
    rabbitmq: servers.RabbitMQ,
    create: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    body_bytes: int,
    kind: str,
    settle_at: int,
) -> None:
    """The mean of all is small, so many are asked for; what is too much goes back, and from then on fewer are."""
    module = "redrive.brokers.rabbitmq"
    monkeypatch.setattr(f"{module}.receiving.RECEIVE_BYTES", 20 * body_bytes)
    monkeypatch.setattr(f"{module}.frames.TOO_MANY_BYTES", 50 * body_bytes)
    for user in ("frames", "receiving"):
        monkeypatch.setattr(f"{module}.{user}.HARMLESS", 25)
    queue, one, other = create(x_queue_type=kind), adapter(rabbitmq), adapter(rabbitmq)
    bodies = [b"%04d" % n for n in range(400)] + [b"%04d" % n + b"x" * body_bytes for n in range(400, 600)]
    bodies += [b"%04d" % n for n in range(600, 800)]
    one.publish(queue, [outgoing(body, n) for n, body in enumerate(bodies)])
    one._measured.others = lambda *_: None  # type: ignore[method-assign] # nor is it measured meanwhile
    one._measured.backlog_bytes[queue] = 10.0
    got: list[bytes] = []
    held: list[object] = []
    while len(got) < 800:
        came = one.receive_ahead(queue, limit=100, ahead=700 - len(got), wait=WAIT, lease=LEASE)
        holder = one._receiving.holders[queue]
        kept = holder.coming._arrivals.kept if holder.coming else []
        assert sum(len(each.body) for each in kept) <= 51 * body_bytes
        got += [each.letter.body for each in came]
        held += [each.receipt for each in came]
        if len(held) > settle_at:
            assert one.settle(queue, held).count == len(held)
            held.clear()
    if kind == "quorum":  # where what goes back comes behind what is there
        got.sort(key=lambda body: body[:4])
    assert got == bodies
    assert one._receiving._uneven == {queue}
    assert one.settle(queue, held).count == len(held)
    one.close()
    assert ready(other, queue) == 0
    other.close()


@pytest.mark.server
@pytest.mark.usefixtures("without_pauses")
@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("way", ["release", "close", "fail"])
def test_what_came_and_was_not_wanted_goes_back_to_its_place(
    rabbitmq: servers.RabbitMQ, create: Callable[..., str], kind: str, way: str
) -> None:
    queue = create(x_queue_type=kind)
    one, other = adapter(rabbitmq), adapter(rabbitmq)
    fill(one, queue, 3001)
    one.settle(queue, drain_all(one, queue, 1))
    one._measured.others = lambda *_: None  # type: ignore[method-assign] # nor is it measured meanwhile
    one._measured.backlog_bytes[queue] = None
    first = one.receive_ahead(queue, limit=1000, ahead=1500, wait=NO_WAIT, lease=LEASE)
    assert eventually(lambda: ready(other, queue) == 1000)
    if way == "release":
        one.release(queue, ())
    elif way == "close":
        assert one.depth(queue).visible == 2000, "what comes next is visible to us"
        assert ready(other, queue) == 1000
        one.close()
    else:
        one.release(queue, [each.receipt for each in first])

    left = 2000 if way == "release" else 3000
    assert eventually(lambda: ready(other, queue) == left)
    again = drain_all(one, queue, left)
    assert len(again) == left
    assert one.settle(queue, again).count == left
    if way == "release":
        assert one.settle(queue, [each.receipt for each in first]).count == 1000
    assert one.depth(queue).visible == 0
    one.close()
    other.close()


@pytest.mark.server
@pytest.mark.usefixtures("without_pauses")
def test_large_messages_are_taken_a_few_at_a_time(rabbit: RabbitMQ, create: Callable[..., str]) -> None:
    queue = create()
    rabbit.publish(queue, [outgoing(b"x" * 2_000_000, n) for n in range(12)])
    rabbit.settle(queue, [r.receipt for r in rabbit.receive(queue, limit=2, wait=WAIT, lease=LEASE)])

    assert len(rabbit.receive(queue, limit=1000, wait=WAIT, lease=LEASE)) == 8


# --- why it died -------------------------------------------------------------------------------------------


@pytest.mark.server
@pytest.mark.parametrize("strategy", ["at-most-once", "at-least-once"])
def test_a_rejected_message_says_where_why_and_when(
    rabbit: RabbitMQ, create: Callable[..., str], strategy: str
) -> None:
    dead = create(x_queue_type="quorum")
    live = create(
        x_queue_type="quorum",
        x_dead_letter_exchange="",
        x_dead_letter_routing_key=dead,
        x_dead_letter_strategy=strategy,
        x_overflow="reject-publish",
    )
    rabbit.publish(live, [outgoing(b"bad", properties=(("message_id", "order-17"),), headers=TYPED)])
    rabbit.reject(live, [r.receipt for r in rabbit.receive(live, limit=1, wait=WAIT, lease=LEASE)])
    [received] = rabbit.receive(dead, limit=1, wait=WAIT, lease=LEASE)
    letter = received.letter

    assert (letter.origin, letter.reason, letter.deliveries, letter.redelivered) == (live, "rejected", 1, False)
    assert letter.broker_message_id == "order-17"
    assert letter.dead_lettered_at is not None
    assert abs(letter.dead_lettered_at / 1e6 - time.time()) < PATIENCE
    assert letter.enqueued_at == letter.dead_lettered_at, "as far back as the broker remembers"
    assert set(clean_headers(letter.headers, FAILURE_HEADERS)) == set(TYPED)  # the broker sorts them


@pytest.mark.server
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [({"x_message_ttl": 1}, "expired"), ({"x_max_length": 1}, "maxlen")],
    ids=["expired", "maxlen"],
)
def test_the_broker_s_own_reasons_are_told(
    rabbit: RabbitMQ, create: Callable[..., str], arguments: dict[str, int], reason: str
) -> None:
    dead = create()
    live = create(x_dead_letter_exchange="", x_dead_letter_routing_key=dead, **arguments)
    rabbit.publish(live, [outgoing(number=1), outgoing(number=2)])
    letter = rabbit.receive(dead, limit=1, wait=WAIT, lease=LEASE)[0].letter

    assert (letter.origin, letter.reason) == (live, reason)


@pytest.mark.server
def test_a_message_that_went_round_a_retry_queue_came_from_its_consumer_s_queue(
    rabbit: RabbitMQ, create: Callable[..., str], rabbitmq: servers.RabbitMQ
) -> None:
    name = uuid.uuid4().hex[:8]
    retry = f"retry-{name}"
    work = create(x_dead_letter_exchange="", x_dead_letter_routing_key=retry)
    rabbitmq.create_queue(retry, x_dead_letter_exchange="", x_dead_letter_routing_key=work, x_message_ttl=50)
    rabbit.publish(work, [outgoing()])
    for _ in range(3):
        rabbit.reject(work, [r.receipt for r in rabbit.receive(work, limit=1, wait=WAIT, lease=LEASE)])
    letter = rabbit.receive(work, limit=1, wait=WAIT, lease=LEASE)[0].letter

    assert (letter.origin, letter.reason, letter.deliveries) == (work, "rejected", 3)


def x_death(*entries: dict[str, object]) -> Header:
    return Header("x-death", "array", json.dumps(entries))


def entry(queue: str, reason: str, seconds: int, count: int = 1) -> dict[str, object]:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1_760_000_000 + seconds))
    return {"queue": queue, "reason": reason, "count": count, "time": {"!timestamp": at}}


@pytest.mark.parametrize(
    ("entries", "origin", "reason", "deliveries"),
    [
        ([entry("work", "rejected", 0)], "work", "rejected", 1),
        ([entry("retry", "expired", 1, 4), entry("work", "rejected", 0, 5)], "work", "rejected", 5),
        ([entry("work", "rejected", 9), entry("delay", "expired", 0)], "work", "rejected", 1),
        ([entry("dlq", "expired", 9), entry("work", "rejected", 0)], "work", "rejected", 1),
        ([entry("dlq", "rejected", 9), entry("work", "rejected", 0)], "work", "rejected", 1),
        ([entry("park", "expired", 9), entry("work", "maxlen", 0)], "work", "maxlen", 1),
        # RabbitMQ moves entries that it counts up, so the order of the array says nothing
        (
            [entry("retry", "expired", 1, 2), entry("work", "rejected", 0), entry("work", "delivery_limit", 5)],
            "work",
            "rejected",
            1 + 4,
        ),
        ([entry("work", "delivery_limit", 5)], "work", "delivery_limit", 4),
    ],
    ids=["plain", "retry-cycle", "delayed-first", "dlq-expired", "dlq-rejected", "overflow", "unordered", "limit"],
)
def test_the_failing_queue_is_the_one_whose_consumer_gave_up_first(
    entries: list[dict[str, object]], origin: str, reason: str, deliveries: int
) -> None:
    raw = encode(outgoing(headers=(x_death(*entries),)), queue="dlq", user=None)
    letter = letter_of(
        raw, b"", queue="dlq", exchange="", routing_key="dlq", redelivered=False, delivery_limit=lambda _: 3
    )

    assert (letter.origin, letter.reason, letter.deliveries) == (origin, reason, deliveries)


@pytest.mark.parametrize("value", ["", "[1]", "{}", '[{"queue": 1}]', "x" * 99, "[" * 99999], ids=range(6))
def test_a_forged_death_is_no_death(value: str) -> None:
    assert deaths_of(Header("x-death", "longstr", value)) == ()


def test_waiting_for_its_time_is_no_death() -> None:
    entries = [entry("work", "expired", 5), entry("redrive.delay.20.work", "expired", 0)]
    first = Header("x-first-death-queue", "longstr", "redrive.delay.20.work")
    raw = encode(outgoing(headers=(x_death(*entries), first)), queue="dlq", user=None)
    letter = letter_of(raw, b"", queue="dlq", exchange="", routing_key="dlq", redelivered=False)

    assert (letter.origin, letter.reason) == ("work", "expired")


def test_deaths_are_read_as_they_are_written() -> None:
    assert deaths_of(x_death(entry("work", "expired", 0, 3))) == (Death("work", "expired", 3, 1_760_000_000_000_000),)


# --- what goes back ----------------------------------------------------------------------------------------


def sent_properties(message: Outgoing, *, queue: str = "orders", **options: object) -> dict[str, str]:
    return decode(encode(message, queue=queue, user="app", **options))[0]  # type: ignore[arg-type]


def test_business_properties_are_kept() -> None:
    kept = {
        "content_encoding": "gzip", "correlation_id": "c-1", "reply_to": "answers", "message_id": "m-1",
        "type": "order", "app_id": "shop", "priority": "7", "delivery_mode": "1", "timestamp": "1760000000",
        "cluster_id": "x",
    }  # fmt: skip
    message = outgoing(properties=(*kept.items(), ("exchange", "shop"), ("routing_key", "eu.orders")))

    assert sent_properties(message._replace(content_type="application/json")) == kept | {
        "content_type": "application/json"
    }


@pytest.mark.parametrize(
    "value",
    [bytes(range(0xE0, 0xF0)), b"caf\xe9", "café".encode(), b'{"!shortstr": "eA=="}', b'{"!shortstr": "'],
    ids=["uuid", "latin-1", "utf-8", "like a mark", "like the beginning of a mark"],
)
@pytest.mark.parametrize("name", ["correlation_id", "message_id", "reply_to", "content_type"])
def test_properties_that_are_no_text_are_kept_as_well(name: str, value: bytes) -> None:
    """A requester that makes its correlation ids of raw bytes waits for exactly those."""
    flag = {"correlation_id": 1 << 10, "message_id": 1 << 7, "reply_to": 1 << 9, "content_type": 1 << 15}[name]
    raw = (flag | 1 << 12).to_bytes(2, "big")
    parts = [bytes([len(value)]) + value, b"\x02"]  # and a delivery mode
    raw += b"".join(parts if name == "content_type" else reversed(parts))
    letter = letter_of(raw, b"body", queue="dead", exchange="", routing_key="dead", redelivered=False)
    assert not letter.description

    constants = {"batch_id": 1, "route": "r", "source": "dead", "kind": "dead_letter", "broker": "rabbitmq"}
    [staged] = to_letters(to_table([letter], [1], constants, 0))
    message = outgoing(properties=staged.properties)._replace(content_type=staged.content_type)
    assert encode(message, queue="q", user=None) == raw


def test_a_table_in_which_a_name_comes_twice_goes_out_as_it_came() -> None:
    """As JSON it would have lost one of them, here, in staging and for its consumer."""
    twice = b"\x01aI" + (1).to_bytes(4, "big") + b"\x01aI" + (2).to_bytes(4, "big")
    inner = b"F" + len(twice).to_bytes(4, "big") + twice
    for table in (inner, b"A" + len(inner).to_bytes(4, "big") + inner):
        field = b"\x01h" + table
        raw = (1 << 13 | 1 << 12).to_bytes(2, "big") + len(field).to_bytes(4, "big") + field + b"\x02"
        letter = letter_of(raw, b"body", queue="dead", exchange="", routing_key="dead", redelivered=False)
        [header] = letter.headers
        assert header.type == f"raw:{chr(table[0])}"
        assert encode(outgoing(headers=letter.headers, properties=letter.properties), queue="q", user=None) == raw


@pytest.mark.parametrize("name", [b"caf\xe9", "café".encode(), b'{"!shortstr": "eA=="}'])
def test_names_of_headers_that_are_no_text_are_kept_as_well(name: bytes) -> None:
    field = bytes([len(name)]) + name + b"t\x01"
    table = b"\x05tableF" + len(field).to_bytes(4, "big") + field
    raw = (1 << 13 | 1 << 12).to_bytes(2, "big") + len(field + table).to_bytes(4, "big") + field + table + b"\x02"
    letter = letter_of(raw, b"body", queue="dead", exchange="", routing_key="dead", redelivered=False)
    constants = {"batch_id": 1, "route": "r", "source": "dead", "kind": "dead_letter", "broker": "rabbitmq"}
    [staged] = to_letters(to_table([letter], [1], constants, 0))

    assert encode(outgoing(headers=staged.headers, properties=staged.properties), queue="q", user=None) == raw


def test_a_message_without_a_delivery_mode_is_sent_to_last() -> None:
    assert sent_properties(outgoing()) == {"delivery_mode": "2"}


@pytest.mark.parametrize(("user", "kept"), [("app", True), ("somebody", False)])
def test_a_user_id_goes_along_only_where_it_is_ours(user: str, kept: bool) -> None:
    assert ("user_id" in sent_properties(outgoing(properties=(("user_id", user),)))) is kept


def test_a_time_to_live_counts_for_the_queue_that_it_was_set_for() -> None:
    delayed = outgoing(properties=(("expiration", "60000"), ("drained_from", "orders-delay")))

    assert "expiration" not in sent_properties(delayed)
    assert sent_properties(delayed, queue="orders-delay")["expiration"] == "60000"
    assert sent_properties(delayed, keep_expiration=True)["expiration"] == "60000"


def test_headers_that_would_route_to_more_queues_or_to_none_stay_behind() -> None:
    message = outgoing(
        headers=(
            Header("CC", "array", '["audit"]'),
            Header("x-deduplication-header", "longstr", "tick"),
            Header("a", "longstr", "b"),
        )
    )

    assert decode(encode(message, queue="orders", user="app"))[1] == (Header("a", "longstr", "b"),)


def test_marks_of_ours_are_text_and_a_number() -> None:
    marks = decode(encode(outgoing(headers=tracking_headers("r-1", 3)), queue="q", user=None))[1]

    assert marks == (Header("x-redrive-id", "longstr", "r-1"), Header("x-redrive-attempt", "long", "3"))


def test_tables_without_end_are_carried_as_bytes() -> None:
    deep = "1"
    for _ in range(60):
        deep = f'{{"t":{deep}}}'
    raw = encode(outgoing(headers=(Header("deep", "table", deep), Header("after", "int", "1"))), queue="q", user=None)
    _, headers = decode(raw)

    assert [h.name for h in headers] == ["deep", "after"]
    assert isinstance(headers[0].value, bytes)
    assert encode(outgoing(headers=headers), queue="q", user=None) == raw


@pytest.mark.server
def test_what_can_not_be_encoded_is_refused_alone(rabbit: RabbitMQ, create: Callable[..., str]) -> None:
    queue = create()
    bad = {
        "nan": (Header("share", "double", "nan"),),
        "infinite": (Header("share", "float", "-inf"),),
        "within a table": (Header("t", "table", '{"share":{"!double":"1e999"}}'),),
        "decimal": (Header("amount", "decimal", "Infinity"),),
        "name": (Header("x" * 256, "longstr", "v"),),
        "number": (Header("n", "int", "99999999999"),),
        "table": (Header("t", "table", "{"),),
        "frame": (Header("trace", "longstr", "x" * 200_000),),
    }
    messages = [outgoing(number=n, headers=h) for n, h in enumerate(bad.values())]
    results = rabbit.publish(queue, [*messages, outgoing(number=9, properties=(("priority", "x"),)), outgoing()])

    assert [r.status for r in results] == ["refused"] * 9 + ["sent"]
    assert results[0].detail == "header 'share' is no double: nan is not a finite number"
    assert "256 bytes" in results[4].detail
    assert "one frame" in results[7].detail


@pytest.mark.server
def test_a_redelivery_reaches_the_queue_that_failed_and_no_other(
    rabbit: RabbitMQ, create: Callable[..., str], rabbitmq: servers.RabbitMQ
) -> None:
    failed, other = create(), create()
    rabbitmq.ask("PUT", "exchanges/%2F/shop", {"type": "fanout", "durable": True})
    for queue in (failed, other):
        rabbitmq.ask("POST", f"bindings/%2F/e/shop/q/{queue}", {"routing_key": ""})
    rabbit.publish(failed, [outgoing(properties=(("exchange", "shop"), ("routing_key", "eu.orders")))])

    assert (rabbit.depth(failed).visible, rabbit.depth(other).visible) == (1, 0)


# --- how a send can end ------------------------------------------------------------------------------------


@pytest.mark.server
def test_a_full_queue_refuses_and_may_take_it_later(rabbit: RabbitMQ, create: Callable[..., str]) -> None:
    queue = create(x_max_length=2, x_overflow="reject-publish")
    results = rabbit.publish(queue, [outgoing(number=n) for n in range(5)])

    assert [r.status for r in results] == ["sent"] * 2 + ["retry"] * 3
    assert "nack" in results[2].detail


@pytest.mark.server
@pytest.mark.parametrize(("full", "status"), [(True, "retry"), (False, "unknown")], ids=["full", "fault"])
def test_a_nack_that_may_come_from_a_fault_in_the_queue_is_unknown(
    rabbit: RabbitMQ, create: Callable[..., str], monkeypatch: pytest.MonkeyPatch, full: bool, status: str
) -> None:
    """A queue that breaks may have delivered what it had not confirmed; one that is full has not taken it."""
    queue = create(x_max_length=1, x_overflow="reject-publish")
    monkeypatch.setattr(rabbit._declared, "rejects_when_full", lambda _: full)

    assert [r.status for r in rabbit.publish(queue, [outgoing(number=n) for n in range(3)])] == ["sent", status, status]


@pytest.mark.server
def test_rights_that_are_lost_midway_do_not_hide_what_was_sent(
    rabbit: RabbitMQ, create: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, connected, calls = create(), rabbit._session.connected, []

    def lose_rights(subject: str) -> object:
        if subject.startswith("basic.publish"):
            calls.append(subject)
        if len(calls) > 2:  # its first is for the whole call
            raise PermissionRefused(f"{subject}: RabbitMQ refuses user and password")
        return connected(subject)

    monkeypatch.setattr(rabbit._session, "connected", lose_rights)
    results = rabbit.publish(queue, [outgoing(b"x" * 1_500_000, n) for n in range(3)])

    assert [r.status for r in results] == ["sent", "retry", "retry"]


@pytest.mark.server
def test_several_windows_are_on_the_wire_and_each_has_its_own_results(
    rabbit: RabbitMQ, create: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = create()
    rabbit.publish(queue, [outgoing(b"first of its channel")])
    windows = [[outgoing(b"%d" % n, n) for n in range(at, at + 20)] for at in range(0, 80, 20)]
    with monkeypatch.context() as deaf:
        deaf.setattr(Link, "serve", lambda _: None)  # a quick node has answered before the next window is begun
        finishes = [rabbit.ready(queue, window)() for window in windows]

    assert rabbit._publishing.confirms.sender is not None
    assert len(rabbit._publishing.confirms.sender.unanswered()) == 4, "nobody waited for an answer"
    assert [[one.status for one in finish()] for finish in finishes] == [["sent"] * 20] * 4
    assert rabbit._publishing.confirms.sender.unanswered() == []
    got = BrokerContract.take(rabbit, queue, 81)
    assert [one.letter.body for one in got[1:]] == [b"%d" % n for n in range(80)]


def on_the_wire(broker: RabbitMQ, queue: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Publication]]:
    """A window of twenty messages whose answers nobody has read; gives what reads them."""
    broker.publish(queue, [outgoing(b"first of its channel")])
    with monkeypatch.context() as deaf:
        deaf.setattr(Link, "serve", lambda _: None)
        return broker.ready(queue, [outgoing(b"%d" % n, n) for n in range(20)])()


@pytest.mark.server
def test_a_depth_is_not_asked_behind_what_is_on_the_wire(
    rabbit: RabbitMQ, create: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = create()
    finish = on_the_wire(rabbit, queue, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(rabbit._session.link, "wait", lambda *_: pytest.fail("its own link was waited for"))
        assert rabbit.depth(queue).visible in range(1, 22)
        with pytest.raises(QueueMissing):
            rabbit.depth("q-not-there")
    assert [one.status for one in finish()] == ["sent"] * 20
    assert eventually(lambda: rabbit.depth(queue).visible == 21)
    beside = rabbit._session._beside
    assert beside is not None
    rabbit.close()
    assert beside.link is None


@pytest.mark.server
def test_who_may_have_one_connection_asks_over_that(
    rabbitmq: servers.RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = rabbitmq.create_queue(f"q-{uuid.uuid4().hex[:12]}")
    user = rabbitmq.create_user("frugal", configure=".*", write=".*", read=".*")
    rabbitmq.control("set_user_limits", user, '{"max-connections": 1}')
    broker = adapter(rabbitmq, login=user, password=user)
    finish = on_the_wire(broker, queue, monkeypatch)
    tries: list[str] = []
    opens = Hosts.open
    monkeypatch.setattr(Hosts, "open", lambda hosts, subject: (tries.append(subject), opens(hosts, subject))[1])
    assert broker.depth(queue).visible in range(1, 22)
    assert [one.status for one in finish()] == ["sent"] * 20
    finish = on_the_wire(broker, queue, monkeypatch)
    assert broker.depth(queue).visible in range(22, 43)
    assert [one.status for one in finish()] == ["sent"] * 20
    assert len(tries) == 1, "and tries no other twice"
    broker.close()


@pytest.mark.server
def test_what_needs_the_brokers_word_before_anything_follows_is_sent_in_its_turn(
    rabbit: RabbitMQ, create: Callable[..., str]
) -> None:
    queue = create()
    bodies = [b"first of its channel", b"plain", b"with a key", b"plain again", b"x" * 1_500_000, b"last"]
    keys = [None, None, "k", None, None, None]
    finishes, on_the_wire = [], []
    for number, (body, key) in enumerate(zip(bodies, keys, strict=True)):
        finishes.append(rabbit.ready(queue, [outgoing(body, number, ordering_key=key)])())
        assert rabbit._publishing.confirms.sender is not None
        on_the_wire.append(len(rabbit._publishing.confirms.sender.unanswered()))
    assert (on_the_wire[0], on_the_wire[2], on_the_wire[4]) == (0, 0, 0), "and all before it"
    assert [finish()[0].status for finish in finishes] == ["sent"] * 6
    got = BrokerContract.take(rabbit, queue, 6)
    assert [one.letter.body for one in got] == bodies

    late = rabbit.ready(queue, [outgoing(delay_seconds=900.0)])()
    refused, sent = rabbit.ready(queue, [outgoing(headers=(Header("x" * 256, "longstr", "v"),)), outgoing()])()()
    assert (late()[0].status, refused.status, sent.status) == ("sent", "refused", "sent")
    assert rabbit.depth(queue).delayed == 1


@pytest.mark.server
def test_what_is_ready_is_not_sent_before_it_is_begun(rabbit: RabbitMQ, create: Callable[..., str]) -> None:
    queue = create()
    rabbit.publish(queue, [outgoing(b"first", 1)])
    begin = rabbit.ready(queue, [outgoing(b"second", 2)])
    assert rabbit.depth(queue).total == 1
    assert [one.status for one in begin()()] == ["sent"]
    assert rabbit.depth(queue).total == 2


@pytest.mark.server
def test_windows_to_a_queue_that_is_gone_are_not_sent(
    rabbit: RabbitMQ, create: Callable[..., str], rabbitmq: servers.RabbitMQ
) -> None:
    queue = create()
    rabbit.publish(queue, [outgoing()])
    rabbitmq.ask("DELETE", f"queues/%2F/{queue}")
    for finish in [rabbit.ready(queue, [outgoing(b"%d" % n, n) for n in range(3)])() for _ in range(2)]:
        with pytest.raises(QueueMissing):
            finish()


@pytest.mark.server
def test_of_windows_on_a_connection_that_is_lost_nobody_knows(rabbit: RabbitMQ, create: Callable[..., str]) -> None:
    queue = create()
    rabbit.publish(queue, [outgoing()])
    finishes = [rabbit.ready(queue, [outgoing(b"%d" % n, n) for n in range(3)])() for _ in range(2)]
    assert rabbit._session.link is not None
    rabbit._session.link.abort()

    for finish in finishes:
        assert {one.status for one in finish()} <= {"sent", "unknown"}, "what left may have arrived"
    assert rabbit.ready(queue, [outgoing()])()()[0].status == "sent", "over a new connection"


class Confirming:
    """A channel of which the test is the broker."""

    published = 0

    def confirm(self, on_word: Any, on_return: Any) -> None:
        self.word, self.back = on_word, on_return

    def publish(self, messages: list[tuple[str, bytes, bytes]]) -> None:
        self.published += len(messages)


def statuses(window: Any) -> list[str]:
    return [one.status for one in window.results(lambda _: Publication("unknown"))]


def window_of(count: int, *, returns: int) -> list[str]:
    """What becomes of a window of which so many came back changed, and all were confirmed."""
    channel = Confirming()
    sender = Sender(channel)  # type: ignore[arg-type]
    window = sender.send([("orders", b"header %d" % n, b"body") for n in range(count)])
    for _ in range(returns):
        channel.back(312, "NO_ROUTE", b"header with a time of arrival", b"body")
    channel.word(count, True, True)
    return statuses(window)


def two_windows() -> tuple[Confirming, Any, Any]:
    """Tags 1 to 3, and 4 to 6."""
    channel = Confirming()
    sender = Sender(channel)  # type: ignore[arg-type]
    first, second = (
        sender.send([("orders", b"header %d" % n, b"body") for n in tags]) for tags in ((1, 2, 3), (4, 5, 6))
    )
    return channel, first, second


def test_a_word_is_for_the_window_of_its_tag() -> None:
    channel, first, second = two_windows()
    channel.word(2, True, True)
    assert (statuses(first), statuses(second)) == (["sent", "sent", "unknown"], ["unknown"] * 3)
    channel.word(5, False, True)  # out of turn
    assert (first.pending, second.pending) == ({3}, {4, 6})
    channel.back(312, "NO_ROUTE", b"header 6", b"body")
    channel.word(6, True, True)
    assert (statuses(first), statuses(second)) == (["sent"] * 3, ["sent", "sent", "retry"])
    assert not first.pending | second.pending


def test_what_came_back_changed_may_be_of_any_window_on_the_wire() -> None:
    channel, first, second = two_windows()
    for _ in range(3):
        channel.back(312, "NO_ROUTE", b"header with a time of arrival", b"body")
    channel.word(6, True, True)
    assert (statuses(first), statuses(second)) == (["unknown"] * 3, ["unknown"] * 3), "three of six, and which?"


def test_what_came_back_and_can_not_be_told_apart_makes_nothing_sent() -> None:
    assert window_of(3, returns=0) == ["sent"] * 3
    assert window_of(3, returns=1) == ["unknown"] * 3
    assert window_of(3, returns=3) == ["retry"] * 3


@pytest.mark.server
def test_what_is_written_together_arrives_as_it_was(rabbit: RabbitMQ, create: Callable[..., str]) -> None:
    """Bodies that are empty, that fill a frame to its last byte, and that take several; more than one write."""
    queue = create()
    frame = rabbit._session.connected("test").frame_max - 8
    bodies = [b"", b"x", b"f" * frame, b"g" * (frame + 1), b"h" * (2 * frame), *(b"%d" % n * 500 for n in range(300))]
    results = rabbit.publish(queue, [outgoing(body, n) for n, body in enumerate(bodies)])

    assert {one.status for one in results} == {"sent"}
    received: list[bytes] = []
    while some := BrokerContract.take(rabbit, queue, 100, least=len(received) < len(bodies)):
        received += [one.letter.body for one in some]
        rabbit.settle(queue, [one.receipt for one in some])
    assert received == bodies


@pytest.mark.server
def test_a_queue_that_vanishes_in_the_middle_leaves_the_rest_to_be_tried_again(
    rabbit: RabbitMQ, create: Callable[..., str], rabbitmq: servers.RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = create()
    real, calls = rabbit._publishing.confirms.send, []

    def send(name: str, pack: object) -> object:
        if calls:
            rabbitmq.ask("DELETE", f"queues/%2F/{queue}")
        calls.append(name)
        return real(name, pack)  # type: ignore[arg-type]

    monkeypatch.setattr(rabbit._publishing.confirms, "send", send)
    results = rabbit.publish(queue, [outgoing(b"x" * 1_500_000, n) for n in range(4)])

    assert [r.status for r in results] == ["sent", "retry", "retry", "retry"]
    assert "NO_ROUTE" in results[1].detail


@pytest.mark.server
def test_who_may_not_write_is_refused_and_nothing_is_unknown(
    rabbitmq: servers.RabbitMQ, create: Callable[..., str]
) -> None:
    queue = create()
    reader = rabbitmq.create_user("reader", read=".*")
    broker = adapter(rabbitmq, login=reader, password=reader)
    with pytest.raises(PermissionRefused, match=f"basic.publish on queue {queue}: 403"):
        broker.publish(queue, [outgoing(number=n) for n in range(3)])
    assert broker.depth(queue).visible == 0
    broker.close()

    writer = rabbitmq.create_user("writer", write=".*")
    broker = adapter(rabbitmq, login=writer, password=writer)
    with pytest.raises(PermissionRefused, match=f"basic.consume on queue {queue}: 403"):
        broker.receive(queue, limit=1, wait=WAIT, lease=LEASE)
    broker.close()


@pytest.mark.server
def test_a_lost_answer_is_unknown_and_not_sent_again(
    rabbit: RabbitMQ, create: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = create()
    fill(rabbit, queue, 1)

    def lose(link: Link, _: Sender, window: Window) -> None:
        before = copy.deepcopy(vars(window))
        link.serve()
        vars(window).update(before)  # what a quick node has answered by now is lost too
        link.abort()

    monkeypatch.setattr(rabbit._publishing.confirms, "wait", lose)
    results = rabbit.publish(queue, [outgoing(number=n) for n in range(3)])
    monkeypatch.undo()

    assert [r.status for r in results] == ["unknown"] * 3
    assert rabbit.depth(queue).visible in range(1, 5)


@pytest.mark.server
def test_a_server_that_went_away_has_certainly_not_taken_what_comes_after(
    rabbit: RabbitMQ, create: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = create()
    fill(rabbit, queue, 1)
    rabbit._session.link.abort()  # type: ignore[union-attr]
    nowhere = Hosts([pika.ConnectionParameters("127.0.0.1", free_port())], sleep=lambda _: None)
    monkeypatch.setattr(rabbit._session, "hosts", nowhere)

    assert [r.status for r in rabbit.publish(queue, [outgoing(), outgoing(number=2)])] == ["retry"] * 2


@pytest.mark.server
def test_a_memory_alarm_slows_and_loses_nothing(
    rabbitmq: servers.RabbitMQ, create: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, broker = create(), adapter(rabbitmq)
    fill(broker, queue, 1)
    link = broker._session.link
    assert link is not None
    told: list[bool] = []
    was_told = threading.Event()
    real = link._set_blocked
    monkeypatch.setattr(link, "_set_blocked", lambda blocked: (told.append(blocked), was_told.set(), real(blocked)))

    def relieve() -> None:
        was_told.wait(PATIENCE)  # a relief that came before anything was sent would go unnoticed
        rabbitmq.control("set_vm_memory_high_watermark", "0.6")

    rabbitmq.control("set_vm_memory_high_watermark", "absolute", "1MB")
    relief = threading.Thread(target=relieve)
    try:
        relief.start()
        results = [r.status for n in range(5) for r in broker.publish(queue, [outgoing(number=n)] * 40)]
    finally:
        relief.join()
        rabbitmq.control("set_vm_memory_high_watermark", "0.6")

    assert told == [True, False]
    assert results == ["sent"] * 200
    assert broker.depth(queue).visible == 201
    broker.close()


@pytest.mark.server
def test_an_alarm_that_lasts_is_told_before_anything_is_sent(
    rabbitmq: servers.RabbitMQ, create: Callable[..., str]
) -> None:
    queue = create()
    broker = adapter(rabbitmq, options={"blocked_timeout": 0.3})
    fill(broker, queue, 1)
    assert broker._session.link is not None
    broker._session.link.blocked = True

    with pytest.raises(NothingSent, match="alarm"):
        broker.publish(queue, [outgoing()])
    assert broker.depth(queue).visible == 1
    broker.close()


# --- depth, description, connection ------------------------------------------------------------------------


@pytest.mark.server
def test_without_the_management_api_nobody_guesses_what_others_hold(
    rabbitmq: servers.RabbitMQ, create: Callable[..., str]
) -> None:
    broker, queue = adapter(rabbitmq, extra={}), create()
    fill(broker, queue, 2)

    assert not broker.capabilities.knows_empty
    assert broker.depth(queue)[:3] == (2, None, 0)
    assert broker.depth(queue).total is None
    broker.close()


@pytest.mark.server
def test_the_management_api_tells_what_others_hold(
    rabbit: RabbitMQ, rabbitmq: servers.RabbitMQ, create: Callable[..., str]
) -> None:
    queue, other = create(), adapter(rabbitmq)
    fill(other, queue, 5)
    drain_all(other, queue, 3)

    assert eventually(lambda: rabbit.depth(queue).in_flight == 3)
    assert rabbit.depth(queue).visible == 2
    other.close()


class Scripted:
    """A management API that tells what it is told to."""

    def __init__(self) -> None:
        self.leaderless = False
        self.ready: int | None = 0
        self.unacked: int | None = 0
        self.asked = 0

    def queue(self, name: str) -> QueueFacts:
        self.asked += 1
        return QueueFacts(
            *(name, "quorum", self.unacked, None, None, None, None, False),
            ready=self.ready,
            statistics=True,
            leaderless=self.leaderless,
        )


def looking(ready: int, consumers: int, *, monotonic: Callable[[], float] = lambda: 0.0) -> tuple[RabbitMQ, Scripted]:
    """An adapter that finds so many messages ready now."""
    scripted = Scripted()
    broker = RabbitMQ(Hosts([]), management=scripted, monotonic=monotonic)  # type: ignore[arg-type]
    broker._session._on_probe = lambda *_: (ready, consumers)  # type: ignore[method-assign, return-value]
    return broker, scripted


@pytest.mark.parametrize("consumers", [0, 1])
def test_a_queue_that_consumers_have_just_emptied_into_their_hands_does_not_look_empty(consumers: int) -> None:
    """Its 50 were ready when the node measured; now none is, and of what was taken since nobody tells."""
    broker, told = looking(ready=0, consumers=consumers)
    told.ready, told.unacked = 50, 0
    before = time.time() - STATISTICS_LAG
    depth = broker.depth("orders")
    assert depth.total == 50
    assert depth.as_of is not None
    assert depth.as_of <= (before + 1) * 1e6


@pytest.mark.parametrize(("ready", "consumers"), [(0, 0), (0, 1), (7, 0)])
def test_a_depth_is_as_old_as_its_oldest_part(ready: int, consumers: int) -> None:
    broker, _ = looking(ready, consumers)
    depth = broker.depth("orders")
    assert (depth.visible, depth.in_flight) == (ready, 0)
    assert depth.as_of is not None
    assert depth.as_of <= (time.time() - STATISTICS_LAG) * 1e6


def test_what_others_hold_is_as_old_as_when_it_was_known_apart_from_ours() -> None:
    now = [100.0]
    broker, told = looking(ready=5, consumers=0, monotonic=lambda: now[0])
    told.ready, told.unacked = 5, 2
    first = broker.depth("orders")
    broker._measured.touch("orders")
    told.unacked = 9
    now[0] += STATISTICS_LAG - 1
    assert broker.depth("orders") == first
    now[0] += 2
    assert broker.depth("orders").in_flight == 9


def test_what_others_hold_is_unknown_where_it_was_never_known_apart_from_ours() -> None:
    broker, told = looking(ready=0, consumers=0)
    broker._measured.touch("orders")
    assert broker.depth("orders")[:2] == (0, None)
    assert told.asked == 0


# --- queues without a leader -------------------------------------------------------------------------------


@contextlib.contextmanager
def leader(server: servers.RabbitMQ, queue: str, *, hangs: bool) -> Iterator[None]:
    """The leader of a quorum queue, its only member, hangs or is gone."""
    name = f'list_to_atom("%2F_{queue}")'
    member = f"quorum_queues, {{{name}, node()}}"
    before, after = f"ra:stop_server({member})", f"ra:restart_server({member})"
    if hangs:
        before, after = f"sys:suspend(whereis({name}))", f"sys:resume(whereis({name}))"
    server.control("eval", f"{before}.")
    try:
        yield
    finally:
        server.control("eval", f"{after}.")


@pytest.mark.server
def test_a_queue_whose_leader_hangs_is_not_taken_for_empty(
    rabbit: RabbitMQ, rabbitmq: servers.RabbitMQ, create: Callable[..., str]
) -> None:
    """RabbitMQ waits a quarter of a second for its leader, and then tells 0 messages and 0 consumers."""
    queue, bare = create(x_queue_type="quorum"), adapter(rabbitmq, extra={})
    fill(rabbit, queue, 5)
    [held] = BrokerContract.take(rabbit, queue, 1)
    with leader(rabbitmq, queue, hangs=True):
        for broker in (rabbit, bare):
            assert broker.depth(queue) == (None, None, 0, None, None, False)
            with pytest.raises(BrokerUnavailable, match=f"queue {queue}: its leader doesn't answer"):
                broker.receive(queue, limit=5, wait=NO_WAIT, lease=LEASE)

    assert eventually(lambda: bare.depth(queue).visible == 4)
    assert rabbit.settle(queue, [held.receipt]).count == 1, "nothing that is held is lost by a question"
    assert len(BrokerContract.take(bare, queue, 4)) == 4
    bare.close()


@pytest.mark.server
def test_what_waits_is_unknown_where_the_leader_of_its_delay_queue_hangs(
    rabbit: RabbitMQ, rabbitmq: servers.RabbitMQ, create: Callable[..., str]
) -> None:
    queue = create()
    assert [one.status for one in rabbit.publish(queue, [outgoing(delay_seconds=900)])] == ["sent"]
    with leader(rabbitmq, f"redrive.delay.900.{queue}", hangs=True):
        depth = rabbit.depth(queue)
        assert (depth.visible, depth.delayed, depth.total) == (0, None, None)
    assert eventually(lambda: rabbit.depth(queue).delayed == 1)


@pytest.mark.server
def test_a_queue_without_a_leader_is_not_taken_for_empty(
    rabbit: RabbitMQ, rabbitmq: servers.RabbitMQ, create: Callable[..., str]
) -> None:
    """The zeros come at once. Who has the management API asks it; a receive finds out by being a consumer."""
    queue, bare = create(x_queue_type="quorum"), adapter(rabbitmq, extra={})
    fill(rabbit, queue, 5)
    rabbit.settle(queue, drain_all(rabbit, queue, 2))  # so the node's numbers may be from before that, and say nothing
    with leader(rabbitmq, queue, hangs=False):
        assert rabbit.depth(queue)[:2] == (None, None)
        with pytest.raises(BrokerUnavailable, match=queue):
            bare.receive(queue, limit=5, wait=NO_WAIT, lease=LEASE)

    assert eventually(lambda: rabbit.depth(queue).visible == 3)
    bare.close()


def test_a_leader_is_missed_where_there_is_nothing_else() -> None:
    broker, told = looking(ready=0, consumers=0)
    told.ready, told.leaderless = 5, True
    assert broker.depth("orders")[:2] == (None, None), "the node's own numbers are from when it had one"
    told.leaderless = False
    assert broker.depth("orders")[:2] == (5, 0)
    broker, told = looking(ready=3, consumers=0)
    told.leaderless = True
    assert broker.depth("orders").visible == 3, "somebody has counted them"


@pytest.mark.parametrize(
    ("told", "leaderless"),
    [
        ({"type": "quorum", "leader": None}, True),
        ({"type": "quorum", "leader": ""}, True),
        ({"type": "quorum", "leader": "rabbit@mq1"}, False),
        ({"type": "quorum"}, False),
        ({"type": "classic", "leader": None}, False),
    ],
)
def test_the_management_api_tells_whether_a_queue_has_a_leader(told: dict[str, object], leaderless: bool) -> None:
    assert _facts({"name": "orders", **told}).leaderless is leaderless


class Slow:
    """A channel of which each count takes so many seconds, over a network that takes ``network``."""

    _prefetch = None

    def __init__(self, *counts: tuple[float, tuple[int, int]], network: float = 0.001) -> None:
        self.now = 0.0
        self.asked = 0
        self.counts = list(counts)
        self.network = network

    def count(self, *_: str) -> tuple[int, int]:
        takes, counted = self.counts[min(self.asked, len(self.counts) - 1)]
        self.asked += 1
        self.now += takes
        return counted

    def _set_prefetch(self, *_: object) -> None:
        self.now += self.network

    _way = Channel._way


@pytest.mark.parametrize(
    ("channel", "known", "asked"),
    [
        (Slow((0.25, (0, 0))), None, 3),
        (Slow((0.3, (0, 0)), (0.001, (0, 0))), (0, 0), 2),
        (Slow((0.3, (0, 0)), (0.3, (5, 0))), (5, 0), 2),
        (Slow((0.3, (0, 1))), (0, 1), 1),
        (Slow((0.3, (0, 0)), network=0.29), (0, 0), 1),
        (Slow((0.55, (0, 0)), network=0.3), None, 3),
        (Slow((0.01, (0, 0))), (0, 0), 1),
    ],
)
def test_only_a_slow_zero_is_asked_for_again(
    channel: Slow, known: tuple[int, int] | None, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.brokers.rabbitmq.link.time.monotonic", lambda: channel.now)
    assert Channel.known_count(channel, "orders", "queue.declare") == known  # type: ignore[arg-type]
    assert channel.asked == asked


@pytest.mark.server
def test_a_description_follows_exchanges(
    rabbit: RabbitMQ, rabbitmq: servers.RabbitMQ, create: Callable[..., str]
) -> None:
    dead, exchange = create(), f"graveyard-{uuid.uuid4().hex[:12]}"
    rabbitmq.ask("PUT", f"exchanges/%2F/{exchange}", {"type": "topic", "durable": True})
    rabbitmq.ask("POST", f"bindings/%2F/e/{exchange}/q/{dead}", {"routing_key": "orders.#"})
    rabbitmq.ask("POST", f"bindings/%2F/e/{exchange}/q/{create()}", {"routing_key": "invoices.*"})
    live = create(
        x_queue_type="quorum",
        x_dead_letter_exchange=exchange,
        x_dead_letter_routing_key="orders.eu",
        x_delivery_limit=4,
    )

    told = rabbit.describe(live)
    assert (told.dead_letter_queue, told.max_deliveries, told.ordered) == (dead, 5, False)
    assert rabbit.describe(dead).max_deliveries == 5, "of the queue that feeds it"
    assert rabbit.describe(create(x_message_ttl=90_000)).retention == timedelta(seconds=90)


def test_how_large_messages_are_is_told_where_some_are_ready() -> None:
    def mean(**told: object) -> float | None:
        return _facts({"name": "q", **told}).mean_bytes

    assert mean(messages_ready=4, message_bytes_ready=4096) == 1024
    assert mean(messages_ready=0, message_bytes_ready=0) is None
    assert mean() is None


def test_a_policy_counts_as_much_as_an_argument() -> None:
    told = {
        "name": "orders",
        "type": "quorum",
        "arguments": {"x-queue-type": "quorum", "x-delivery-limit": 9},
        "effective_policy_definition": {"dead-letter-exchange": "", "delivery-limit": 4, "message-ttl": 5},
    }

    assert _facts(told) == QueueFacts("orders", "quorum", None, 5, 4, "", None, False)
    told["arguments"] |= {"x-message-ttl": 86_400_000}
    assert _facts(told).ttl_ms == 5, "the smaller holds"
    assert _facts(told | {"delivery_limit": 20}).delivery_limit == 20, "4.0 has a limit by default"
    assert _facts(told | {"delivery_limit": -1}).delivery_limit is None


@pytest.mark.server
def test_of_every_time_to_live_of_a_queue_the_smallest_is_its_retention(
    rabbit: RabbitMQ, rabbitmq: servers.RabbitMQ, create: Callable[..., str]
) -> None:
    queue = create(x_message_ttl=3_600_000)

    def told(hours: float) -> bool:
        return bool(eventually(lambda: rabbit.describe(queue).retention == timedelta(hours=hours)))

    assert told(1)
    places = [(f"{kind}/%2F/ttl-{queue}", {"pattern": f"^{queue}$", "apply-to": "queues"})
              for kind in ("policies", "operator-policies")]  # fmt: skip
    try:
        for (place, body), hours in zip(places, (0.5, 0.25), strict=True):
            rabbitmq.ask("PUT", place, body | {"definition": {"message-ttl": round(hours * 3_600_000)}})
            assert told(hours)
        rabbitmq.ask("PUT", places[0][0], places[0][1] | {"definition": {"message-ttl": 60_000}})
        assert told(1 / 60)
    finally:
        for place, _ in places:
            with contextlib.suppress(OSError):
                rabbitmq.ask("DELETE", place)


@pytest.mark.parametrize(
    ("pattern", "key", "routed"),
    [("orders.#", "orders", True), ("orders.#", "orders.eu.de", True), ("#.de", "de", True), ("*.de", "de", False),
     ("#", "", True), ("a.*.c", "a.b.c", True), ("a.#.c", "a.c", True), ("a.*", "a.b.c", False), ("a", "axb", False)],
)  # fmt: skip
def test_topic_patterns_route_as_rabbitmq_does(pattern: str, key: str, routed: bool) -> None:
    assert _routes("topic", pattern, key) is routed


@pytest.mark.server
def test_a_dead_letter_queue_that_deletes_is_warned_about(rabbit: RabbitMQ, create: Callable[..., str]) -> None:
    [limit] = rabbit.describe(create(x_queue_type="quorum", x_delivery_limit=3)).warnings
    [single] = rabbit.describe(create(x_single_active_consumer=True)).warnings

    assert "DELETES" in limit
    assert "single active consumer" in single
    assert rabbit.describe(create(x_queue_type="quorum")).warnings == ()


@pytest.mark.server
def test_a_queue_that_gives_nothing_out_is_not_taken_for_empty(
    rabbit: RabbitMQ, rabbitmq: servers.RabbitMQ, create: Callable[..., str]
) -> None:
    """Another consumer is its single active one, and full."""
    queue = create(x_single_active_consumer=True)
    assert [one.status for one in rabbit.publish(queue, [outgoing(number=n) for n in range(3)])] == ["sent"] * 3
    with contextlib.closing(pika.BlockingConnection(pika.ConnectionParameters(port=rabbitmq.port))) as other:
        channel = other.channel()
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(queue, lambda *_: None)
        eventually(lambda: rabbit.depth(queue).visible == 2)
        with pytest.raises(BrokerUnavailable, match=f"queue {queue}: messages are ready and none is given out"):
            rabbit.receive(queue, limit=5, wait=NO_WAIT, lease=LEASE)
    assert len(BrokerContract.take(rabbit, queue, 3)) == 3


@pytest.mark.server
def test_a_queue_that_drops_what_it_confirmed_is_warned_about(rabbit: RabbitMQ, create: Callable[..., str]) -> None:
    queue = create(x_max_length=2)
    assert [one.status for one in rabbit.publish(queue, [outgoing(number=n) for n in range(5)])] == ["sent"] * 5
    eventually(lambda: rabbit.depth(queue).visible == 2)

    [loss] = rabbit.describe(queue).losses
    assert "at most 2 messages (max-length)" in loss
    assert rabbit.describe(queue).warnings == (loss,), "of dead letters as well"
    telling = create(x_max_length=2, x_overflow="reject-publish")
    assert rabbit.describe(telling).losses == ()
    in_order = [rabbit.capabilities_for(one).in_order for one in (queue, telling)]
    assert in_order == [False, True], "what left the first one was not given to anybody"
    assert rabbit.describe(create(x_max_length=2, x_dead_letter_exchange="")).losses == (), "they are somewhere else"
    told = {"name": "q", "arguments": {"x-max-length": 7}, "effective_policy_definition": {"max-length": 3}}
    assert _facts(told).most == "3 messages (max-length)"
    bytes_too = {"arguments": {"x-max-length-bytes": 5000}, "effective_policy_definition": {"max-length": 3}}
    assert _facts({"name": "q", **bytes_too}).most == "3 messages (max-length) or 5,000 bytes (max-length-bytes)"


@pytest.mark.server
def test_a_queue_that_would_not_outlive_a_drain_is_left_alone(rabbit: RabbitMQ, rabbitmq: servers.RabbitMQ) -> None:
    """RabbitMQ deletes it when its last consumer leaves: the first share was staged, and all the rest was gone."""
    queue = f"q-{uuid.uuid4().hex[:12]}"
    rabbitmq.ask("PUT", f"queues/%2F/{queue}", {"durable": True, "auto_delete": True, "arguments": {}})
    fill(rabbit, queue, 50)

    with pytest.raises(BrokerError, match=f"{queue}: it is auto-delete"):
        rabbit.receive(queue, limit=10, wait=WAIT, lease=LEASE)
    rabbit.close()
    assert rabbit.depth(queue).visible == 50
    [warning] = rabbit.describe(queue).warnings
    assert "auto-delete" in warning


@pytest.mark.server
def test_a_stream_is_no_empty_queue(rabbit: RabbitMQ, create: Callable[..., str]) -> None:
    """Nothing of what lies there ever came, and every drain of it succeeded."""
    stream = create(x_queue_type="stream")
    assert rabbit.publish(stream, [outgoing()])[0].status == "sent"

    with pytest.raises(BrokerError, match=f"{stream}: it is a stream"):
        rabbit.receive(stream, limit=10, wait=NO_WAIT, lease=LEASE)


@pytest.mark.server
def test_a_connection_names_virtual_host_and_rights(rabbitmq: servers.RabbitMQ) -> None:
    rabbitmq.ask("PUT", "vhosts/shop", {})
    user = rabbitmq.create_user("shopper", vhost="shop", configure=".*", write=".*", read=".*")
    rabbitmq.create_queue("orders-of-shop", vhost="shop")
    broker = adapter(rabbitmq, schema="shop", login=user, password=user)
    fill(broker, "orders-of-shop", 1)
    assert broker.describe("orders-of-shop").lease == timedelta(minutes=30)
    broker.close()

    with pytest.raises(PermissionRefused, match=r"connection rabbit_test.*orders-of-shop.*virtual host"):
        adapter(rabbitmq, schema="no-such-vhost").depth("orders-of-shop")
    with pytest.raises(PermissionRefused, match=r"orders-of-shop.*user and password"):
        adapter(rabbitmq, password="wrong").depth("orders-of-shop")
    with pytest.raises(QueueMissing, match="orders-of-shop"):
        adapter(rabbitmq).depth("orders-of-shop")


@pytest.mark.server
def test_tls_trusts_whom_the_connection_says(rabbitmq: servers.RabbitMQ, create: Callable[..., str]) -> None:
    queue, port = create(), rabbitmq.tls_port
    trusting = adapter(rabbitmq, conn_type="amqps", port=port, extra={"ca_certs": str(rabbitmq.certificate)})
    fill(trusting, queue, 1)
    careless = adapter(rabbitmq, conn_type="amqps", port=port, extra={"verify": False})
    assert careless.depth(queue).visible == 1
    trusting.close()
    careless.close()

    with pytest.raises(BrokerUnavailable, match=f"{queue}.*CERTIFICATE_VERIFY_FAILED"):
        adapter(rabbitmq, conn_type="amqps", port=port, options={"sleep": lambda _: None}).depth(queue)


@pytest.mark.server
def test_the_next_host_is_tried(rabbitmq: servers.RabbitMQ, create: Callable[..., str]) -> None:
    queue = create()
    broker = adapter(rabbitmq, host=f"127.0.0.1:{free_port()},127.0.0.1:{rabbitmq.port}")

    assert broker.depth(queue).visible == 0
    broker.close()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"conn_type": "aws", "host": "h"}, "'aws', not one of amqp"),
        ({"conn_type": "amqp"}, "no host"),
        ({"conn_type": "amqp", "host": "h", "extra": {"mangement_url": "x"}}, "extra.mangement_url is unknown"),
        ({"conn_type": "amqp", "host": "h", "extra": {"heartbeat": "often"}}, "extra.heartbeat is no number"),
        ({"conn_type": "amqps", "host": "h", "extra": {"ca_certs": "/nonexistent"}}, "TLS"),
        ({"conn_type": "amqp", "host": "h:1,h:x"}, "host or host:port, with a port from 1 to 65535"),
        ({"conn_type": "amqp", "host": "h:99999"}, "host or host:port, with a port from 1 to 65535"),
        ({"conn_type": "amqp", "host": "h", "extra": {"management_port": 99999}}, "extra.management_port is no number"),
        ({"conn_type": "amqp", "host": "h", "extra": {"management_port": "inf"}}, "extra.management_port is no number"),
        (
            {"conn_type": "amqp", "host": "h", "extra": {"management_url": "h:15672"}},
            "extra.management_url is no address",
        ),
        ({"conn_type": "amqp", "host": "h", "extra": {"ssl": "required"}}, "extra.ssl is neither true nor false"),
        ({"conn_type": "amqps", "host": "h", "extra": {"verify": "ture"}}, "extra.verify is neither true nor false"),
    ],
    ids=[
        *(
            "type",
            "host",
            "unknown",
            "number",
            "certificate",
            "port",
            "large port",
            "management port",
            "endless",
            "url",
        ),
        *("unclear TLS", "unclear trust"),
    ],
)
def test_a_wrong_connection_says_what_is_wrong(value: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=f"connection rabbit_test.*{words}"):
        RabbitMQ.open("rabbit_test", env={"AIRFLOW_CONN_RABBIT_TEST": json.dumps(value)})


@pytest.mark.parametrize("nothing", [None, ""])
def test_who_says_nothing_of_trust_trusts_the_authorities(nothing: object) -> None:
    value = {"conn_type": "amqps", "host": "h", "extra": {"ssl": nothing, "verify": nothing}}
    broker = RabbitMQ.open("rabbit_test", env={"AIRFLOW_CONN_RABBIT_TEST": json.dumps(value)})
    [host] = broker._session.hosts.parameters

    assert host.ssl_options.context.verify_mode == ssl.CERT_REQUIRED
    assert host.ssl_options.context.check_hostname


def test_a_uri_is_enough() -> None:
    broker = RabbitMQ.open(
        "rabbit_test",
        env={"AIRFLOW_CONN_RABBIT_TEST": "amqps://ana:s3cret@mq.example.org/shop?management_port=15671&verify=false"},
    )
    [host] = broker._session.hosts.parameters

    assert (host.host, host.port, host.virtual_host, host.ssl_options is not None) == (
        "mq.example.org",
        5671,
        "shop",
        True,
    )
    assert broker.capabilities.knows_empty
