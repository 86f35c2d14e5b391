"""The Pulsar adapter: the contract on a real server, and what only Pulsar does."""

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import _pulsar
import pulsar
import pytest

from redrive.brokers import open_broker
from redrive.brokers.base import Depth
from redrive.brokers.pulsar.adapter import ApachePulsar
from redrive.brokers.pulsar.connection import place_of
from redrive.brokers.pulsar.kind import FAILURE_HEADERS
from redrive.brokers.pulsar.message import base_topic, entry, schema_version
from redrive.connections.lookup import Connection
from redrive.errors import BrokerUnavailable, PermissionRefused, QueueMissing, SettingsError
from redrive.message import Header, clean_headers, tracking_headers
from tests.answering import Answer, answering
from tests.contract.broker_contract import LEASE, NO_WAIT, PATIENCE, BrokerContract, eventually, outgoing
from tests.pulsar_server import Pulsar, token
from tests.servers import free_port

pytestmark = pytest.mark.server

SECOND = timedelta(seconds=1)
MILLISECONDS = round(1000 * PATIENCE)  # for what comes
QUIET = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)


def adapter(connection: dict[str, Any], **options: object) -> ApachePulsar:
    return ApachePulsar.open("pulsar_test", env={"AIRFLOW_CONN_PULSAR_TEST": json.dumps(connection)}, **options)


def full(topic: str) -> str:
    return f"persistent://public/default/{topic}"


@pytest.fixture
def make_adapter(pulsar_server: Pulsar) -> Iterator[Callable[..., ApachePulsar]]:
    """Adapters on the server, as a connection with these changes reaches it."""
    opened: list[ApachePulsar] = []

    def make(extra: dict[str, object] | None = None, **changes: object) -> ApachePulsar:
        connection = pulsar_server.connection(**changes)
        connection["extra"] = connection["extra"] | (extra or {})
        opened.append(adapter(connection))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def make_queue(pulsar_server: Pulsar) -> Callable[..., str]:
    def make(*, ordered: bool = False, partitions: int = 0, **_: object) -> str:
        return pulsar_server.create_topic(f"q-{uuid.uuid4().hex[:12]}", partitions=partitions)

    return make


@pytest.fixture(scope="module")
def consumers(pulsar_server: Pulsar) -> Iterator[Any]:
    """A client of the vendor's, for those who consume and publish beside us."""
    client = pulsar.Client(
        f"pulsar://127.0.0.1:{pulsar_server.port}", pulsar.AuthenticationToken(token("admin")), logger=QUIET
    )
    yield client
    client.close()


class TestApachePulsar(BrokerContract):
    """On a real Pulsar standalone, with tokens and permissions switched on."""

    short_lease = timedelta(seconds=3)  # ours to count, so a busy machine has to be as fast

    hostile_headers = (
        (Header("REAL_TOPIC", "String", "orders"), Header("RECONSUMETIMES", "String", "99999999999")),
        (Header("REAL_TOPIC", "String", "orders"), Header("RECONSUMETIMES", "String", "\u00b2")),
    )

    @pytest.fixture
    def broker(self, make_adapter: Callable[..., ApachePulsar]) -> ApachePulsar:
        return make_adapter()

    @pytest.fixture
    def another_broker(self, make_adapter: Callable[..., ApachePulsar]) -> ApachePulsar:
        return make_adapter()

    @pytest.fixture
    def make_queue(self, make_queue: Callable[..., str]) -> Callable[..., str]:
        return make_queue

    @pytest.fixture
    def refused_broker(self, pulsar_server: Pulsar, make_adapter: Callable[..., ApachePulsar]) -> ApachePulsar:
        if "orders-dlq" not in pulsar_server.known:
            pulsar_server.create_topic("orders-dlq")
        return make_adapter(password=token("nobody"))

    @pytest.fixture
    def unreachable_broker(self) -> ApachePulsar:
        return adapter({"conn_type": "pulsar", "host": "127.0.0.1", "port": free_port(),
                        "extra": {"admin_url": f"http://127.0.0.1:{free_port()}"}})  # fmt: skip

    def test_a_content_type_survives(self, broker: ApachePulsar, queue: str) -> None:
        """Pulsar has none of its own: a property of that name is taken for it, and stays a property."""
        header = Header("Content-Type", "String", "application/json")
        self.send(broker, queue, outgoing(headers=(header,)))
        [received] = self.take(broker, queue, 1)

        assert received.letter.content_type == "application/json"
        assert received.letter.headers == (header,)

    def test_headers_survive_with_their_types(self, broker: ApachePulsar, queue: str) -> None:
        """Properties are strings: what is text arrives as one, what isn't is refused."""
        headers = (Header("amount", "Number", "12.50"), Header("note", "Binary", "Größe".encode()))
        binary = (Header("thumbnail", "Binary", b"\x89PNG\xff"),)
        results = broker.publish(queue, [outgoing(headers=headers), outgoing(number=2, headers=binary)])

        assert [r.status for r in results] == ["sent", "refused"]
        assert "thumbnail" in results[1].detail
        assert set(self.take(broker, queue, 1)[0].letter.headers) == {
            Header("amount", "String", "12.50"),
            Header("note", "String", "Größe"),
        }

    def test_two_tasks_never_hold_the_same_message(
        self, broker: ApachePulsar, another_broker: ApachePulsar, queue: str
    ) -> None:
        """As everywhere; only that a client has some more on the way to it, which the other one can't have."""
        self.send(broker, queue, *(outgoing(b"%d" % n, n) for n in range(40)))
        mine = self.take(broker, queue, 10)
        theirs = self.take(another_broker, queue, 40, least=10)
        mine += self.take(broker, queue, 40, least=0)
        deadline = time.monotonic() + PATIENCE
        while len(mine) + len(theirs) < 40 and time.monotonic() < deadline:  # what is under way to one, only it gets
            theirs += self.take(another_broker, queue, 40, least=0)
            mine += self.take(broker, queue, 40, least=0)

        assert sorted(int(r.letter.body) for r in [*mine, *theirs]) == list(range(40))
        assert len(theirs) >= 10

    def test_order_within_a_key_is_kept(self, broker: ApachePulsar, make_queue: Callable[..., str]) -> None:
        """What was published in order is stored in order; a Shared subscription alone promises none."""
        queue = make_queue()
        keys = ("a", "b", "a", "a", "b", "a") * 4
        self.send(broker, queue, *(outgoing(b"%d" % n, n, ordering_key=k) for n, k in enumerate(keys)))

        stored = sorted(
            self.take(broker, queue, 24), key=lambda r: tuple(map(int, r.letter.broker_message_id.split(":")))
        )
        assert [int(r.letter.body) for r in stored] == list(range(24))

    def test_a_queue_tells_where_it_dead_letters(self, broker: ApachePulsar, make_queue: Callable[..., str]) -> None:
        """On Pulsar only the consumer knows: nothing is told, and nothing is invented."""
        told = broker.describe(make_queue())
        assert (told.dead_letter_queue, told.max_deliveries, told.lease) == (None, None, None)

    def test_a_dead_letter_names_the_queue_on_which_it_failed(
        self, broker: ApachePulsar, make_queue: Callable[..., str], pulsar_server: Pulsar, consumers: Any
    ) -> None:
        """Dead-lettered by the vendor's client library, as in real life."""
        live = make_queue()
        [sent] = self.send(broker, live, outgoing(b"fails", headers=(Header("a", "String", "b"),), ordering_key="k-1"))
        dead = fail(pulsar_server, consumers, live)

        [received] = self.take(broker, dead, 1)
        letter = received.letter
        assert (letter.origin, letter.body) == (live, b"fails")
        assert clean_headers(letter.headers, broker.capabilities.failure_headers) == (Header("a", "String", "b"),)
        origin_id = {h.name: h.value for h in letter.headers}["ORIGIN_MESSAGE_ID"]
        assert sent.broker_message_id == origin_id.strip("()").replace(",", ":").removesuffix(":-1")
        assert letter.deliveries == 0  # nobody counted
        assert letter.dead_lettered_at == letter.enqueued_at
        assert letter.broker_message_id != sent.broker_message_id


def fail(
    server: Pulsar, client: Any, topic: str, *, subscription: str = "worker", times: int = 1, **options: Any
) -> str:
    """Let a consumer refuse every message until its library has dead-lettered them; the name of that topic."""
    consumer = client.subscribe(
        full(topic),
        subscription,
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(times, **options),
    )
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            consumer.negative_acknowledge(consumer.receive(700))
        except pulsar.Timeout:
            if server.is_worked_off(topic, subscription):
                break
    consumer.close()
    return f"{topic}-{subscription}-DLQ"


def statuses(broker: ApachePulsar, queue: str, count: int, **fields: object) -> list[str]:
    messages = [outgoing(b"%d" % n, n, **fields) for n in range(count)]
    return [result.status for result in broker.publish(queue, messages)]


# --- dead letters and retry letters ---------------------------------------------------------------------------


def test_all_partitions_of_a_topic_are_one_queue(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str]
) -> None:
    broker, queue = make_adapter(), make_queue(partitions=3)
    assert statuses(broker, queue, 30) == ["sent"] * 30
    assert broker.depth(queue) == Depth(30, 0, 0, 0), "nobody subscribed yet: all that is there"

    taken = BrokerContract.take(broker, queue, 30)
    assert sorted(int(r.letter.body) for r in taken) == list(range(30))
    assert broker.depth(queue)[:3] == (0, 30, 0)
    assert broker.settle(queue, [r.receipt for r in taken]).count == 30
    assert broker.depth(queue).total == 0
    assert broker.describe(queue).subscribers == 1


def test_a_letter_from_a_partition_goes_back_to_its_topic_unless_pinned(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str], pulsar_server: Pulsar, consumers: Any
) -> None:
    broker, live = make_adapter(), make_queue(partitions=2)
    statuses(broker, live, 1, ordering_key="k")
    dead = make_queue()
    # By default each partition would get one of its own.
    fail(pulsar_server, consumers, live, dead_letter_topic=full(dead))

    [received] = BrokerContract.take(broker, dead, 1)
    [pinned] = BrokerContract.take(make_adapter({"keep_partition": True, "subscription": "pinned"}), dead, 1)
    assert received.letter.origin == live
    assert base_topic(pinned.letter.origin or "") == live != pinned.letter.origin


def test_a_topic_whose_name_only_looks_like_a_partition_is_kept(
    make_adapter: Callable[..., ApachePulsar], pulsar_server: Pulsar
) -> None:
    name = pulsar_server.create_topic(f"odd-{uuid.uuid4().hex[:8]}-partition-x7")

    assert make_adapter()._topics.origin(full(name)) == name
    assert make_adapter()._topics.origin(full("gone-partition-7")) == full("gone-partition-7").removeprefix(full(""))


def test_what_java_writes_into_retry_letters_is_evidence_and_goes_no_further(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str], consumers: Any
) -> None:
    """The properties as the Java library writes them; Python's writes only the first two."""
    broker, live, dead = make_adapter(), make_queue(), make_queue()
    told = {
        "REAL_TOPIC": full(live),
        "ORIGIN_MESSAGE_ID": "17:4:-1",
        "ORIGIN_MESSAGE_IDY_TIME": "17:4:-1",
        "RECONSUMETIMES": "3",
        "DELAY_TIME": "10000",
        "RETRY_TOPIC": full(f"{live}-worker-RETRY"),
        "REAL_SUBSCRIPTION": "worker",
    }
    producer = consumers.create_producer(full(dead))
    producer.send(b"x", properties=told | {"customer": "7"})
    producer.close()

    [received] = BrokerContract.take(broker, dead, 1)
    letter = received.letter
    assert (letter.origin, letter.deliveries) == (live, 3)
    assert {h.name: h.value for h in letter.headers} == told | {"customer": "7"}
    assert clean_headers(letter.headers, FAILURE_HEADERS) == (Header("customer", "String", "7"),)


def test_a_retry_letter_topic_is_shared_with_its_consumer_not_copied(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str], pulsar_server: Pulsar
) -> None:
    live = make_queue()
    retry = pulsar_server.create_topic(f"{live}-order-worker-RETRY")
    pulsar_server.subscribe(retry, "order-worker")
    pulsar_server.subscribe(retry, "worker")  # a shorter name that fits too
    broker = make_adapter()
    delay = 0.4
    while True:
        began = time.monotonic()
        broker.publish(retry, [outgoing(delay_seconds=delay)])
        early = broker.receive(retry, limit=1, wait=NO_WAIT, lease=LEASE)
        if not early:
            break
        assert time.monotonic() - began >= delay - 0.1, "before its time"  # which the broker takes to the tick
        broker.settle(retry, [one.receipt for one in early])
        pulsar_server.ask("POST", f"persistent/public/default/{retry}/subscription/worker/skip_all")
        delay *= 4  # on so busy a machine its time comes before it can be looked for

    [received] = BrokerContract.take(broker, retry, 1)
    broker.settle(retry, [received.receipt])
    told = pulsar_server.ask("GET", f"persistent/public/default/{retry}/stats?getPreciseBacklog=true")["subscriptions"]
    assert {name: one["msgBacklog"] for name, one in told.items()} == {"order-worker": 0, "worker": 1}


def test_a_connection_may_name_the_subscription_of_a_queue(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str], pulsar_server: Pulsar
) -> None:
    queue = make_queue()
    pulsar_server.subscribe(queue, "theirs")
    broker = make_adapter({"subscriptions": {queue: "theirs"}})
    statuses(broker, queue, 1)
    BrokerContract.take(broker, queue, 1)

    assert broker.describe(queue).subscribers == 1
    assert broker.depth(queue)[:2] == (0, 1)


def test_a_topic_without_subscription_is_warned_of(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str]
) -> None:
    broker, queue = make_adapter(), make_queue()
    told = broker.describe(queue)

    assert told.subscribers == 0
    assert "has no subscription" in told.warnings[0]
    broker.receive(queue, limit=1, wait=NO_WAIT, lease=LEASE)
    assert broker.describe(queue).warnings == ()


def test_the_time_to_live_that_applies_is_the_retention(
    make_adapter: Callable[..., ApachePulsar], pulsar_server: Pulsar
) -> None:
    namespace = f"public/short-{uuid.uuid4().hex[:12]}"
    pulsar_server.ask("PUT", f"namespaces/{namespace}", {})
    pulsar_server.ask("POST", f"namespaces/{namespace}/messageTTL", 3600)
    pulsar_server.ask("PUT", f"persistent/{namespace}/orders")

    assert make_adapter(schema=namespace).describe("orders").retention == timedelta(hours=1)
    assert make_adapter().describe(f"persistent://{namespace}/orders").retention == timedelta(hours=1)

    topic = f"persistent/{namespace}/orders"
    pulsar_server.ask("POST", f"{topic}/messageTTL?messageTTL=600")
    deadline = time.monotonic() + 30  # a topic's policies take a moment
    while (told := make_adapter(schema=namespace).describe("orders").retention) == timedelta(hours=1):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert told == timedelta(minutes=10)


# --- what a message carries -----------------------------------------------------------------------------------


def test_keys_event_time_and_null_values_survive_a_round_trip(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str], consumers: Any
) -> None:
    broker, dead, live = make_adapter(), make_queue(), make_queue()
    producer = consumers.create_producer(full(dead))
    producer.send(b"x", partition_key="p-1", ordering_key="o-1", event_timestamp=1_700_000_000_123)
    producer.send(None, partition_key="p-2")
    producer.close()
    for number, (letter, _) in enumerate(BrokerContract.take(broker, dead, 2)):
        [result] = broker.publish(
            live,
            [outgoing(letter.body, number, properties=letter.properties, ordering_key=letter.ordering_key)],
        )
        assert result.status == "sent"

    reader = consumers.subscribe(full(live), "check", initial_position=pulsar.InitialPosition.Earliest)
    first, second = reader.receive(MILLISECONDS), reader.receive(MILLISECONDS)
    reader.close()
    assert (first.partition_key(), first.ordering_key()) == ("p-1", "o-1")
    assert first.event_timestamp() == 1_700_000_000_123
    assert (second.partition_key(), second.has_null_value()) == ("p-2", True)


class Order(pulsar.schema.Record):  # type: ignore[misc]
    sku = pulsar.schema.String()


def test_bytes_written_with_a_schema_go_back_under_that_schema(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str], consumers: Any
) -> None:
    broker, dead, live = make_adapter(), make_queue(), make_queue()
    schema = pulsar.schema.JsonSchema(Order)
    producer = consumers.create_producer(full(dead), schema=schema)
    producer.send(Order(sku="a-17"))
    producer.close()
    [received] = BrokerContract.take(broker, dead, 1)
    letter = received.letter
    plain = outgoing(b"plain", 2)  # in one call with one that has none
    results = broker.publish(live, [outgoing(letter.body, properties=letter.properties), plain])

    assert [r.status for r in results] == ["sent", "sent"]
    reader = consumers.subscribe(full(live), "check", schema=schema, initial_position=pulsar.InitialPosition.Earliest)
    got = reader.receive(MILLISECONDS)
    reader.close()
    assert got.value().sku == "a-17"
    assert schema_version(got.schema_version()) == 0


def test_a_schema_that_is_gone_or_does_not_fit_is_refused_with_its_name(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str], consumers: Any
) -> None:
    broker, dead, live = make_adapter(), make_queue(), make_queue()
    gone = outgoing(number=1, properties=(("schema", f"{full(dead)}@7"),))

    [refused, after] = broker.publish(live, [gone, outgoing(number=2)])
    assert (refused.status, after.status) == ("refused", "sent")
    assert f"{dead}@7" in refused.detail


def test_a_schema_of_two_holds_up_no_other_message(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str], pulsar_server: Pulsar
) -> None:
    """A producer with it was never there: the destination looked away, and all that goes there waited with it."""
    broker, dead, live = make_adapter(), make_queue(), make_queue()
    text = json.dumps({"name": "s", "schema": "", "type": "STRING", "properties": {}})
    both = json.dumps({"key": text, "value": text})
    pulsar_server.ask("POST", f"schemas/public/default/{dead}/schema", {"type": "KEY_VALUE", "schema": both})

    [refused, after] = broker.publish(
        live, [outgoing(number=1, properties=(("schema", f"{full(dead)}@0"),)), outgoing(number=2)]
    )
    assert (refused.status, after.status) == ("refused", "sent")
    assert "KEY_VALUE" in refused.detail


def test_of_an_ordering_key_that_is_no_text_only_the_key_is_left_out(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str], consumers: Any
) -> None:
    broker, dead = make_adapter(), make_queue()
    producer = consumers.create_producer(full(dead))
    made = _pulsar.MessageBuilder().content(b"x").property("tenant", "a").partition_key("p-1").ordering_key(b"\xff\x00")
    producer._producer.send(made.build())
    producer.close()
    [(letter, _)] = BrokerContract.take(broker, dead, 1)

    assert letter.headers == (Header("tenant", "String", "a"),)
    assert letter.ordering_key == "p-1"
    assert "ordering key" in (letter.description or "")


def test_a_batch_of_the_library_is_settled_message_by_message(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str], consumers: Any
) -> None:
    """One entry in the backlog, five messages: settling some must neither lose nor free the others."""
    queue = make_queue()
    producer = consumers.create_producer(full(queue), batching_enabled=True, batching_max_publish_delay_ms=200)
    for number in range(5):
        producer.send_async(b"%d" % number, lambda result, message_id: None)
    producer.flush()
    producer.close()
    broker = make_adapter()
    taken = BrokerContract.take(broker, queue, 5)
    assert len({r.letter.broker_message_id for r in taken}) == 5
    assert broker.depth(queue)[:2] == (0, 5)

    assert broker.settle(queue, [r.receipt for r in taken if r.letter.body != b"3"]).count == 4
    broker.close()
    left = BrokerContract.take(make_adapter(), queue, 5, least=1)
    assert b"3" in {r.letter.body for r in left}


def test_settled_means_that_another_client_never_sees_it(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str]
) -> None:
    """Acks travel grouped, without an answer: a settle that returned too early would lose them with its process."""
    broker, queue = make_adapter(), make_queue()
    statuses(broker, queue, 1500)
    taken = BrokerContract.take(broker, queue, 1500)
    assert broker.settle(queue, [r.receipt for r in taken[:1200]]).count == 1200
    broker._receiver._readers.clear()  # as a process that dies: nobody says good-bye to the broker
    opened = broker._client.get()
    opened.shutdown() if hasattr(opened, "shutdown") else opened._client.shutdown()
    broker._client._opened = None

    left = BrokerContract.take(make_adapter(), queue, 1500, least=300)
    assert {r.letter.body for r in left} == {r.letter.body for r in taken[1200:]}


# --- sending --------------------------------------------------------------------------------------------------


def test_a_topic_that_deduplicates_swallows_no_redelivery(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str], pulsar_server: Pulsar
) -> None:
    """Every task is a producer of its own name, so nothing counts as sent before."""
    queue = make_queue()
    pulsar_server.ask("POST", f"persistent/public/default/{queue}/deduplicationEnabled", True)
    until = time.monotonic() + 10
    stats = f"persistent/public/default/{queue}/stats"
    while pulsar_server.ask("GET", stats)["deduplicationStatus"] != "Enabled" and time.monotonic() < until:
        time.sleep(0.1)
    message = outgoing(b"same", dedup_id="d-1")
    for attempt in (1, 2):
        broker = make_adapter()
        assert broker.publish(queue, [message._replace(attempt=attempt)])[0].status == "sent"
        assert broker._publisher._dedup[full(queue)]

    assert len(BrokerContract.take(make_adapter(), queue, 5, least=2)) == 2


def test_with_as_many_bytes_as_have_room_no_more_is_taken(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.brokers.pulsar.receiving.RECEIVE_BYTES", 100)
    broker, queue = make_adapter(), make_queue()
    broker.publish(queue, [outgoing(b"x" * 20, number) for number in range(7)])
    receives = [len(broker.receive(queue, limit=1_000, wait=timedelta(seconds=5), lease=LEASE)) for _ in range(2)]

    assert receives == [5, 2]


def test_several_windows_go_out_in_one_call(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str]
) -> None:
    broker, queue = make_adapter(), make_queue()

    assert statuses(broker, queue, 2500) == ["sent"] * 2500
    assert broker.depth(queue).visible == 2500


def test_a_closed_topic_refuses(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str], pulsar_server: Pulsar
) -> None:
    broker, queue = make_adapter(), make_queue()
    statuses(broker, queue, 1)
    pulsar_server.ask("POST", f"persistent/public/default/{queue}/terminate")

    # The connection goes with the topic: whoever sends meanwhile may lose the answer, and hears no later.
    assert set(statuses(broker, queue, 2)) <= {"refused", "unknown"}
    assert set(statuses(broker, queue, 2)) == {"refused"}


def test_subscribers_of_a_destination_are_counted(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str], pulsar_server: Pulsar
) -> None:
    broker, queue = make_adapter(), make_queue()
    for name in ("billing", "shipping"):
        pulsar_server.subscribe(queue, name)
    statuses(broker, queue, 3)

    assert broker.describe(queue).subscribers == 2
    assert not broker.capabilities_for(queue).single_target
    assert broker.depth(queue)[:4] == (3, 0, 0, 0), "the fullest subscription, not the sum of all"


# --- rights and names -----------------------------------------------------------------------------------------


def test_rights_are_missed_one_by_one(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str], pulsar_server: Pulsar
) -> None:
    queue = make_queue()
    reader = make_adapter(password=pulsar_server.allow("reader", "consume"))
    writer = make_adapter(password=pulsar_server.allow("writer", "produce"))

    assert writer.publish(queue, [outgoing()])[0].status == "sent"
    assert len(BrokerContract.take(reader, queue, 1)) == 1
    assert reader.depth(queue).total == 1
    assert reader.describe(queue).retention is None  # who may only consume is not told
    with pytest.raises(PermissionRefused, match=queue):
        reader.publish(queue, [outgoing()])
    with pytest.raises(PermissionRefused, match=queue):
        writer.receive(queue, limit=1, wait=NO_WAIT, lease=LEASE)


@pytest.mark.parametrize("queue", ["persistent://public/no-such-namespace/orders", "persistent://nobody/x/orders"])
def test_a_missing_namespace_is_named(make_adapter: Callable[..., ApachePulsar], queue: str) -> None:
    with pytest.raises(QueueMissing, match=queue):
        make_adapter().depth(queue)


def test_a_bad_token_is_told_at_once(make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str]) -> None:
    queue = make_queue()
    with pytest.raises(PermissionRefused, match=queue):
        make_adapter(password="not.a.token").receive(queue, limit=1, wait=NO_WAIT, lease=LEASE)


def test_a_token_is_read_from_its_file(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text(token("admin") + "\n")
    broker = make_adapter({"token_file": str(path)}, password=None)

    assert statuses(broker, make_queue(), 1) == ["sent"]


def test_everything_goes_over_tls_where_the_connection_says_so(
    pulsar_server: Pulsar, make_queue: Callable[..., str], make_adapter: Callable[..., ApachePulsar]
) -> None:
    queue = make_queue()
    secure = {"admin_url": f"https://127.0.0.1:{pulsar_server.tls_web_port}"}
    trusting = make_adapter(
        secure | {"tls_trust_certs": str(pulsar_server.certificate)},
        conn_type="pulsar+ssl",
        port=pulsar_server.tls_port,
    )
    assert statuses(trusting, queue, 2) == ["sent"] * 2
    assert len(BrokerContract.take(trusting, queue, 2)) == 2

    with pytest.raises(BrokerUnavailable, match=f"{queue}.*certificate verify failed"):
        make_adapter(secure, conn_type="pulsar+ssl", port=pulsar_server.tls_port).depth(queue)


def test_a_topic_that_keeps_nothing_is_refused(make_adapter: Callable[..., ApachePulsar]) -> None:
    with pytest.raises(QueueMissing, match="persistent"):
        make_adapter().publish("non-persistent://public/default/orders", [outgoing()])


def test_a_missing_topic_is_not_made_by_asking_for_it(
    make_adapter: Callable[..., ApachePulsar], pulsar_server: Pulsar
) -> None:
    """The broker makes topics for whoever connects; a typing error in a route must not."""
    broker = make_adapter()
    for call in (lambda: broker.receive("typo", limit=1, wait=NO_WAIT, lease=LEASE), lambda: broker.depth("typo")):
        with pytest.raises(QueueMissing, match="typo"):
            call()
    assert full("typo") not in pulsar_server.ask("GET", "persistent/public/default")


def test_the_registry_opens_it_by_connection_id(
    pulsar_server: Pulsar, make_queue: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PULSAR_DEMO", json.dumps(pulsar_server.connection()))
    broker = open_broker("apache_pulsar", "pulsar_demo")

    assert broker.depth(make_queue()).total == 0
    broker.close()


# --- consumers ------------------------------------------------------------------------------------------------


def test_consumers_tell_what_they_hold_and_when_they_acked(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str], consumers: Any
) -> None:
    broker, queue = make_adapter(), make_queue()
    statuses(broker, queue, 10)
    options = {"consumer_type": pulsar.ConsumerType.Shared, "initial_position": pulsar.InitialPosition.Earliest}
    worker = consumers.subscribe(full(queue), "worker", consumer_name="w-1", **options)
    first = worker.receive(MILLISECONDS)
    eventually(lambda: broker.consumers(queue)[0].unacked == 10)  # sent to it, one part after the other
    [before] = broker.consumers(queue)
    worker.acknowledge(first)
    eventually(lambda: broker.consumers(queue)[0].unacked < 10)
    [after] = broker.consumers(queue)
    options["consumer_type"] = pulsar.ConsumerType.KeyShared
    keyed = consumers.subscribe(full(queue), "keyed", **options)

    assert (before.consumer, before.unacked, after.unacked) == ("worker/w-1", 10, 9)
    assert before.progress != after.progress
    assert len(broker.consumers(queue)) == 1, "nobody of a key-shared subscription"
    keyed.close()
    worker.close()


def test_a_consumer_that_refuses_what_it_gets_gets_on(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str], consumers: Any
) -> None:
    """It acks nothing and hangs nowhere: refusing is life."""
    broker, queue = make_adapter(), make_queue()
    statuses(broker, queue, 20)
    options = {"consumer_type": pulsar.ConsumerType.Shared, "initial_position": pulsar.InitialPosition.Earliest}
    worker = consumers.subscribe(
        full(queue), "worker", consumer_name="w-1", negative_ack_redelivery_delay_ms=100, **options
    )
    seen: list[int] = []
    for _ in range(4):
        for _ in range(20):
            worker.negative_acknowledge(worker.receive(MILLISECONDS))
        eventually(lambda: broker.consumers(queue)[0].progress not in seen)
        time.sleep(0.2)  # all twenty come again
        [told] = broker.consumers(queue)
        seen.append(told.progress)
    worker.close()

    assert len(set(seen)) == len(seen), "it got on between any two looks"


def test_being_given_more_is_no_progress(
    make_adapter: Callable[..., ApachePulsar], make_queue: Callable[..., str], consumers: Any
) -> None:
    """The broker goes on pushing to a consumer that hangs, as long as it has room."""
    broker, queue = make_adapter(), make_queue()
    statuses(broker, queue, 3)
    options = {"consumer_type": pulsar.ConsumerType.Shared, "initial_position": pulsar.InitialPosition.Earliest}
    worker = consumers.subscribe(full(queue), "worker", consumer_name="w-1", **options)
    worker.receive(MILLISECONDS)
    eventually(lambda: broker.consumers(queue)[0].unacked == 3)  # sent to it, one part after the other
    [before] = broker.consumers(queue)
    statuses(broker, queue, 5)
    eventually(lambda: broker.consumers(queue)[0].unacked >= 8)
    [after] = broker.consumers(queue)
    worker.close()

    assert (before.unacked, after.unacked) == (3, 8)
    assert after.progress == before.progress
    assert not after.blocked


def test_a_consumer_that_holds_as_many_as_it_may_is_blocked_and_the_bound_is_told(
    pulsar_server: Pulsar, make_adapter: Callable[..., ApachePulsar], consumers: Any
) -> None:
    namespace = f"public/bound-{uuid.uuid4().hex[:8]}"
    pulsar_server.ask("PUT", f"namespaces/{namespace}", {})
    pulsar_server.ask("POST", f"namespaces/{namespace}/maxUnackedMessagesPerConsumer", 5)
    pulsar_server.ask("PUT", f"persistent/{namespace}/orders")
    broker = make_adapter(schema=namespace)
    options = {"consumer_type": pulsar.ConsumerType.Shared, "initial_position": pulsar.InitialPosition.Earliest}
    worker = consumers.subscribe(f"persistent://{namespace}/orders", "worker", consumer_name="w-1", **options)
    for _ in range(10):
        statuses(broker, "orders", 1)
    until = time.monotonic() + 60
    while not broker.consumers("orders")[0].blocked and time.monotonic() < until:
        time.sleep(0.1)
    [told] = broker.consumers("orders")
    worker.close()

    assert (told.consumer, told.blocked) == ("worker/w-1", True)
    assert "a consumer is given no more once it holds 5 unacked messages" in broker.describe("orders").bounds


# --- without a server -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connection", "words"),
    [
        ({"conn_type": "aws", "host": "x"}, "not pulsar"),
        ({"conn_type": "pulsar"}, "no host"),
        ({"conn_type": "pulsar", "host": "h", "extra": {"admin_url": "http://h:x"}}, "extra.admin_url is no address"),
        ({"conn_type": "pulsar", "host": "x", "extra": {"tokenn": "y"}}, "extra.tokenn"),
        ({"conn_type": "pulsar", "host": "x", "extra": {"token_file": "/no/such/file"}}, "token_file"),
        ({"conn_type": "pulsar", "host": "x", "extra": {"tls": "required"}}, "extra.tls is neither true nor false"),
        (
            {"conn_type": "pulsar+ssl", "host": "x", "extra": {"tls_validate_hostname": "ture"}},
            "extra.tls_validate_hostname is neither true nor false",
        ),
    ],
    ids=["type", "host", "address", "key", "file", "unclear TLS", "unclear name"],
)
def test_a_connection_that_can_not_be_is_told(connection: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        adapter(connection)


def test_tls_that_is_on_is_on() -> None:
    """RabbitMQ's connections take the word ``on``, and here it meant plain text, with the token in it."""
    place = place_of(Connection("p", "pulsar", "x", extra={"tls": "on", "tls_validate_hostname": None}))

    assert place.service == "pulsar+ssl://x:6651"


def test_a_token_is_told_to_nobody_but_pulsar(tmp_path: Path) -> None:
    """Secrets that were made of a file end with a line break, which no HTTP header may hold: the error quoted it."""
    with answering([Answer(200, "7")]) as (url, asked):
        place = place_of(Connection("p", "pulsar", "x", extra={"token": "s3cret\n", "admin_url": url}))
        assert place.admin.message_ttl("persistent://a/b/c") == 7
    assert asked == ["GET /admin/v2/persistent/a/b/c/messageTTL?applied=true Bearer s3cret"]

    file = tmp_path / "token"
    file.write_text("s3cret")
    place = place_of(Connection("p", "pulsar", "x", extra={"token_file": str(file)}))
    file.write_text("s3\ncret")
    with pytest.raises(SettingsError, match="connection p: its token holds a character") as told:
        place.admin.message_ttl("persistent://a/b/c")
    assert "cret" not in str(told.value)


def test_a_property_of_the_wrong_kind_is_left_alone() -> None:
    message = outgoing(properties=(("event_timestamp", "soon"),), headers=tracking_headers("r-1", 2))
    made = entry(0, message)

    assert not isinstance(made, str)
    assert made.arguments == {"properties": {"x-redrive-id": "r-1", "x-redrive-attempt": "2"}}
