"""The whole loop on Service Bus's protocol: dead-lettered by the broker, drained, classified, sent back, recognised.

The broker is our stand-in (tests/stand_ins/service_bus) with a clock that the tests move; adapter, AMQP and
Microsoft's client library are the real ones.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage

from redrive.classification.causes import Cause
from redrive.classification.explain import explain
from redrive.errors import PermissionRefused, QueueMissing, QueuesFailed, UsageError
from redrive.ledger.engine import Ledger
from redrive.ledger.selecting import Selection
from redrive.message import TYPE_ATTRIBUTE
from redrive.stages import doctor, peek, pipeline
from tests import blank
from tests.contract.broker_contract import PATIENCE
from tests.contract.test_azure_service_bus import _quick_links, adapter  # noqa: F401 - a fixture
from tests.stages.loop_contract import LoopContract
from tests.stand_ins.service_bus import ServiceBusStandIn
from tests.workshop import Workshop

pytestmark = pytest.mark.server

LOCK = 30.0
REFUSED = "System.Net.Sockets.SocketException: Connection refused (billing:443)\n   at Shop.Billing.Charge(Order order)"
BUG = (
    "System.NullReferenceException: Object reference not set to an instance of an object.\n"
    "   at Shop.Orders.Handler.Handle(Order order) in /src/Handler.cs:line 17\n"
    "   at Shop.Worker.Run()"
)
DEAD = "orders/$DeadLetterQueue"
#: A route as it is on Service Bus, where a test says nothing else.
ON_BUS: dict[str, Any] = {
    "broker": "azure_service_bus",
    "connection": "bus",
    "sources": [{"queue": DEAD, "lease": "30s", "max_deliveries": 10}],
    "destination": None,
    "evidence": [],
}

Verdict = Callable[[ServiceBusReceivedMessage], tuple[str, str] | None]


class ServiceBusWorkshop(Workshop):
    """A workshop whose broker is Service Bus: the route drains the dead-letter queue of ``orders``."""

    def __init__(
        self, folder: Path, bus: ServiceBusStandIn, *, queue: dict[str, Any] | None = None, **route: Any
    ) -> None:
        self.folder = folder
        self.bus = bus
        bus.queue("orders", lock_duration=LOCK, **(queue or {}))
        self.settings = self.configure(f"sqlite:///{folder}/redrive.db", **(ON_BUS | route))
        self.ledger = Ledger(self.settings.database)
        blank.upgrade(self.ledger, self.now())
        self.broker = adapter(bus)  # type: ignore[assignment]
        self.client = ServiceBusClient.from_connection_string(bus.connection_string(), retry_total=0, keep_alive=0)

    def close(self) -> None:
        self.broker.close()
        self.client.close()
        self.ledger.close()

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.bus.now(), UTC)

    def advance(self, **delta: float) -> None:
        self.bus.let_pass(timedelta(**delta).total_seconds())

    def buy(self, *orders: str, to: str = "orders", **fields: Any) -> None:
        """A shop sends orders; each names itself in a property and in its id."""
        messages = [
            ServiceBusMessage(order.encode(), message_id=order, application_properties={"order": order}, **fields)
            for order in orders
        ]
        with self.client.get_queue_sender(to) as sender:
            sender.send_messages(messages)

    def work(self, verdict: Verdict = lambda _: None, queue: str = "orders") -> list[bytes]:
        """A consumer works off ``queue``; what it can't do it dead-letters with its reason and a stack trace."""
        done = []
        topic, _, subscription = queue.partition("/Subscriptions/")
        if subscription:
            opened = self.client.get_subscription_receiver(topic, subscription)
        else:
            opened = self.client.get_queue_receiver(queue)
        with opened as receiver:
            while self.bus.entity(queue).count():  # however long a receive brings nothing
                for message in receiver.receive_messages(100, max_wait_time=0.5):
                    error = verdict(message)
                    if error is None:
                        done.append(b"".join(message.body))
                        receiver.complete_message(message)
                    else:
                        reason, description = error
                        receiver.dead_letter_message(message, reason=reason, error_description=description)
        return done

    def held(self, path: str) -> list[bytes]:
        """The bodies in an entity, in order."""
        return [one.value for message in self.bus.messages(path) for one in message.kept if one.code == 0x75]


@pytest.fixture
def bus() -> Iterator[ServiceBusStandIn]:
    with ServiceBusStandIn() as bus:
        yield bus


@pytest.fixture
def build(tmp_path: Path, bus: ServiceBusStandIn) -> Iterator[Callable[..., ServiceBusWorkshop]]:
    made: list[ServiceBusWorkshop] = []

    def build(**options: Any) -> ServiceBusWorkshop:
        made.append(ServiceBusWorkshop(tmp_path, bus, **options))
        return made[-1]

    yield build
    for one in made:
        one.close()


Build = Callable[..., ServiceBusWorkshop]


def refused(_: ServiceBusReceivedMessage) -> tuple[str, str]:
    return "ProcessingFailed", REFUSED


# --- the loop ----------------------------------------------------------------------------------------------------


def test_a_dead_letter_goes_back_to_the_queue_on_which_it_failed(build: Build) -> None:
    shop = build()
    shop.buy("a", "b", "c", correlation_id="cart-1", subject="OrderPlaced")
    shop.work(refused)
    report = shop.cycle()

    assert (report["drained"], report["new"], report["redelivered"], report["escalated"]) == (3, 3, 3, 0)
    assert shop.held(DEAD) == []
    for message in shop.bus.messages("orders"):
        assert (message.message_id, message.properties[5]) == (message.application["order"], "cart-1")
        assert "DeadLetterReason" not in message.application
        assert {"x-redrive-id", "x-redrive-attempt"} <= set(message.application)
    assert sorted(shop.work()) == [b"a", b"b", b"c"]
    assert shop.states() == {"sent": 3}
    assert shop.audit() == []


class TestLoop(LoopContract):
    @pytest.fixture
    def shop(self, build: Build) -> ServiceBusWorkshop:
        return build()

    def fail(self, shop: ServiceBusWorkshop, *orders: str) -> None:
        shop.buy(*orders)
        assert shop.work(refused) == []

    def work(self, shop: ServiceBusWorkshop, fails: Callable[[str], bool] = lambda _: False) -> list[str]:
        done = shop.work(lambda message: refused(message) if fails(b"".join(message.body).decode()) else None)
        return sorted(body.decode() for body in done)

    def restart(self, shop: ServiceBusWorkshop, held: int) -> None:
        shop.broker.close()
        shop.broker = adapter(shop.bus)  # type: ignore[assignment]
        shop.advance(seconds=LOCK + 1)


def test_what_is_sent_again_counts_its_attempts_and_keeps_its_id(build: Build) -> None:
    shop = build()
    shop.buy("bad")
    for _ in range(2):
        shop.work(refused)
        shop.cycle()
    [message] = shop.bus.messages("orders")
    assert message.application["x-redrive-attempt"] == 2
    assert message.message_id == "bad"


def test_a_queue_with_duplicate_detection_swallows_no_attempt(build: Build) -> None:
    shop = build(queue={"duplicate_window": 600})
    shop.buy("x")
    for _ in range(2):
        shop.work(refused)
        assert shop.cycle()["redelivered"] == 1

    [message] = shop.bus.messages("orders")
    assert message.message_id.startswith(f"{message.application['x-redrive-id']}.2.")
    assert message.application["x-redrive-message-id"] == "x"


def test_a_bug_with_its_stack_trace_goes_to_people(build: Build) -> None:
    shop = build()
    shop.buy("x")
    shop.work(lambda _: ("UnhandledException", BUG))
    report = shop.cycle()

    assert report["escalated"] == 1
    [(cause, text)] = shop.query("select cause, error_text from escalated_messages")
    assert cause == "application_bug"
    assert text.startswith("UnhandledException") or "Handler.cs:line 17" in text


def test_a_delay_queue_is_an_ordinary_queue_that_is_drained(build: Build, bus: ServiceBusStandIn) -> None:
    bus.queue("orders-delay")
    delay = {"queue": "orders-delay", "kind": "delay", "delay": "5m", "destination": "orders"}
    shop = build(sources=[delay])
    shop.buy("later", to="orders-delay")
    assert shop.cycle()["redelivered"] == 0
    shop.advance(minutes=6)
    assert shop.cycle()["redelivered"] == 1
    assert shop.held("orders") == [b"later"]
    assert shop.audit() == []


def test_sessions_keep_their_order_on_the_way_back(build: Build) -> None:
    shop = build(queue={"requires_session": True, "max_delivery_count": 1})
    for number in range(6):
        shop.buy(f"{number}", session_id="ab"[number % 2])
    while shop.bus.messages("orders"):
        received = shop.broker.receive("orders", limit=10, wait=timedelta(0), lease=timedelta(minutes=1))
        shop.broker.release("orders", [one.receipt for one in received])
    # Nothing but the broker's own words: one delivery too many.
    report = shop.cycle()

    assert (report["drained"], report["redelivered"]) == (6, 6)
    sessions: dict[str | None, list[bytes]] = {}
    for message, body in zip(shop.bus.messages("orders"), shop.held("orders"), strict=True):
        sessions.setdefault(message.session, []).append(body)
    assert sessions == {"a": [b"0", b"2", b"4"], "b": [b"1", b"3", b"5"]}


def test_what_can_not_go_back_into_its_dead_letter_queue_stays_and_is_told(build: Build) -> None:
    """Nobody can send to a dead-letter queue of Service Bus, so ``redrive restore`` has no way back."""
    shop = build()
    shop.buy("x")
    shop.work(lambda _: ("UnhandledException", BUG))
    shop.cycle()
    run = shop.begin()
    told = pipeline.restore(shop.settings, run, **shop.options())
    pipeline.finish(shop.settings, run, "succeeded", shop.now)

    assert (told["restored"], told["not_restored"]) == (0, 1)
    assert "send to orders instead" in next(iter(told["problems"].values()))
    assert shop.states() == {"escalated": 1}
    assert shop.held("orders") == []
    assert shop.audit() == []


# --- topics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fan_out", ["refuse", "allow"])
def test_a_topic_is_asked_for_before_all_its_subscribers_get_a_message(
    build: Build, bus: ServiceBusStandIn, fan_out: str
) -> None:
    bus.topic("news")
    for name in ("mail", "push"):
        bus.subscription("news", name, lock_duration=LOCK)
    shop = build(sources=[{"queue": "news/Subscriptions/mail/$DeadLetterQueue"}], fan_out=fan_out)
    shop.buy("x", to="news")
    shop.work(refused, queue="news/Subscriptions/mail")
    shop.work(queue="news/Subscriptions/push")
    report = shop.cycle()

    if fan_out == "refuse":
        assert (report["redelivered"], report["escalated"]) == (0, 1)
        [(reason,)] = shop.query("select reason from escalated_messages")
        assert "2 subscriptions" in reason
    else:
        assert (report["redelivered"], report["escalated"]) == (1, 0)
        assert shop.held("news/Subscriptions/mail") == shop.held("news/Subscriptions/push") == [b"x"]


# --- crashes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["restart", "drop_connections"])
def test_a_restart_in_the_middle_of_a_drain_loses_and_doubles_nothing(
    build: Build, bus: ServiceBusStandIn, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    shop = build()
    shop.buy(*(f"{n}" for n in range(40)))
    shop.work(refused)
    settle = shop.broker.settle

    def interrupted(queue: str, receipts: Any) -> Any:
        getattr(bus, how)()
        return settle(queue, receipts)

    monkeypatch.setattr(shop.broker, "settle", interrupted)
    report = shop.cycle()

    assert (report["drained"], report["new"], report["redelivered"]) == (40, 40, 40)
    assert sorted(shop.held("orders")) == sorted(b"%d" % n for n in range(40))
    assert shop.held(DEAD) == []
    assert shop.audit() == []


def test_copies_that_could_not_be_settled_are_recognised_when_they_come_again(
    build: Build, bus: ServiceBusStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = build()
    shop.buy(*(f"{n}" for n in range(20)))
    shop.work(refused)
    settle = shop.broker.settle

    def dead(queue: str, receipts: Any) -> Any:
        bus.stop()
        return settle(queue, receipts)

    run = shop.begin()
    with monkeypatch.context() as patched:
        patched.setattr(shop.broker, "settle", dead)
        pipeline.drain(shop.settings, run, **shop.options())
    with pytest.raises(QueuesFailed, match="20 of 20 copies"):
        pipeline.report(shop.settings, run)
    pipeline.finish(shop.settings, run, "failed", shop.now)
    bus.start()
    shop.advance(seconds=LOCK + 1)
    assert len(shop.held(DEAD)) == 20
    report = shop.cycle()

    assert (report["drained"], report["new"], report["duplicates"], report["redelivered"]) == (20, 20, 20, 20)
    assert sorted(shop.held("orders")) == sorted(b"%d" % n for n in range(20))
    assert shop.held(DEAD) == []
    assert shop.audit() == []


def test_a_connection_that_breaks_in_the_middle_of_a_delivery_doubles_nothing_in_silence(
    build: Build, bus: ServiceBusStandIn
) -> None:
    shop = build(deliver={"slice": 10, "confirm_window": 10})
    shop.buy(*(f"{n}" for n in range(30)))
    shop.work(refused)
    bus.lose_answers = 1
    report = shop.cycle()

    assert (report["redelivered"], report["unknown"]) == (0, 10), "no more is put in doubt where nothing is confirmed"
    assert shop.cycle()["redelivered"] == 20
    assert sorted(shop.held("orders")) == sorted(b"%d" % n for n in range(30))
    assert shop.states() == {"sent": 20, "escalated": 10}
    assert shop.audit() == []
    shop.work()
    shop.advance(hours=2)
    shop.cycle()
    assert shop.held("orders") == [], "what may have arrived is not sent again; a person decides"
    assert shop.states()["escalated"] == 10


def test_where_duplicates_are_detected_an_unknown_send_is_repeated_at_once(
    build: Build, bus: ServiceBusStandIn
) -> None:
    shop = build(queue={"duplicate_window": 600}, deliver={"slice": 10, "confirm_window": 10})
    shop.buy(*(f"{n}" for n in range(10)))
    shop.work(refused)
    bus.lose_answers = 1
    assert shop.cycle()["unknown"] == 10
    shop.cycle()

    assert sorted(shop.held("orders")) == sorted(b"%d" % n for n in range(10))
    assert shop.states() == {"sent": 10}
    assert shop.audit() == []


# --- why Service Bus dead-letters ---------------------------------------------------------------------------------


def test_every_system_reason_maps_to_its_cause(build: Build, bus: ServiceBusStandIn) -> None:
    """Each reason as the broker itself comes to write it, drained from queue, subscription and transfer queue."""
    bus.queue("too-often", lock_duration=LOCK, max_delivery_count=1)
    bus.queue("too-late", time_to_live=60)
    bus.queue("too-wide")
    for hop in range(5):
        bus.queue(f"hop-{hop}", forward_to=f"hop-{hop + 1}")
    bus.queue("hop-5")
    bus.queue("nowhere", forward_to="no-such-queue")
    bus.topic("news")
    bus.subscription("news", "in-sessions", requires_session=True)
    bus.subscription("news", "filtered", accepts=lambda message: message.application["amount"] > 5)
    places = {
        "too-often/$DeadLetterQueue": ("MaxDeliveryCountExceeded", Cause.MAX_DELIVERIES),
        "too-late/$DeadLetterQueue": ("TTLExpiredException", Cause.MESSAGE_EXPIRED),
        "too-wide/$DeadLetterQueue": ("HeaderSizeExceeded", Cause.OVERSIZED),
        "hop-4/$Transfer/$DeadLetterQueue": ("MaxTransferHopCountExceeded", Cause.ROUTING_FAILURE),
        "nowhere/$Transfer/$DeadLetterQueue": ("MessagingEntityNotFoundException", Cause.ROUTING_FAILURE),
        "news/Subscriptions/in-sessions/$DeadLetterQueue": ("Session ID is null", Cause.ROUTING_FAILURE),
        "news/Subscriptions/filtered/$DeadLetterQueue": ("FilterException", Cause.ROUTING_FAILURE),
    }
    shop = build(sources=[{"queue": queue} for queue in places], destination={"queue": "orders"})
    for queue in ("too-often", "too-late", "hop-0", "nowhere", "news"):
        shop.buy(queue, to=queue)
    with shop.client.get_queue_sender("too-wide") as sender:
        wide = {f"p{n}": "x" * 1000 for n in range(70)}
        sender.send_messages(ServiceBusMessage(b"too-wide", application_properties=wide))
    with shop.client.get_queue_receiver("too-often") as receiver:
        receiver.abandon_message(receiver.receive_messages(1, max_wait_time=PATIENCE)[0])
    shop.advance(seconds=61)
    reasons = {queue: bus.messages(queue)[0].application["DeadLetterReason"] for queue in places}
    assert reasons == {queue: reason for queue, (reason, _) in places.items()}
    shop.cycle()

    causes = dict(shop.query("select source, cause from messages"))
    assert causes == {queue: cause.value for queue, (_, cause) in places.items()}
    assert [shop.held(queue) for queue in places] == [[]] * len(places)
    assert shop.audit() == []


def test_a_deferred_message_does_not_expire(build: Build, bus: ServiceBusStandIn) -> None:
    shop = build(queue={"time_to_live": 60})
    shop.buy("deferred", "waiting")
    with shop.client.get_queue_receiver("orders") as receiver:
        receiver.defer_message(receiver.receive_messages(1, max_wait_time=PATIENCE)[0])
    shop.advance(seconds=61)

    assert shop.held(DEAD) == [b"waiting"]
    assert shop.cycle()["drained"] == 1
    assert shop.held("orders") == [b"deferred"]


@pytest.mark.parametrize(
    ("reason", "description", "cause"),
    [
        ("HeaderSizeExceeded", "The size quota for this stream has been exceeded.", Cause.OVERSIZED),
        ("TTLExpiredException", "The message expired and was dead lettered.", Cause.MESSAGE_EXPIRED),
        (
            "Session ID is null",
            "Session enabled entity doesn't allow a message whose session identifier is null.",
            Cause.ROUTING_FAILURE,
        ),
        (
            "MaxTransferHopCountExceeded",
            "The maximum number of allowed hops when forwarding between queues exceeded. This value is set to 4.",
            Cause.ROUTING_FAILURE,
        ),
        (
            "MaxDeliveryCountExceeded",
            "Message could not be consumed after 10 delivery attempts.",
            Cause.MAX_DELIVERIES,
        ),
        ("FilterException", "Operator '+' can't be used with Int64 and String.", Cause.ROUTING_FAILURE),
        ("ProcessingFailed", REFUSED, Cause.TRANSIENT_NETWORK),
        ("UnhandledException", BUG, Cause.APPLICATION_BUG),
        ("MaxDeliveryCountExceeded", "System.TimeoutException: The operation has timed out.", Cause.TRANSIENT_NETWORK),
        (
            "ProcessingError",
            "Microsoft.Azure.ServiceBus.MessageLockLostException: The lock supplied is invalid. Either the lock "
            "expired, or the message has already been removed from the queue.",
            Cause.LEASE_EXPIRED,
        ),
        (
            "TaxServiceDown",
            "System.Net.Http.HttpRequestException: Response status code does not indicate success: 503 (Service "
            "Unavailable).\n   at Shop.Tax.Ask(Order order) in /src/Tax.cs:line 40",
            Cause.DEPENDENCY_UNAVAILABLE,
        ),
        ("SchemaMismatch", "Newtonsoft.Json.JsonReaderException: Unexpected character", Cause.MALFORMED_PAYLOAD),
    ],
)
def test_reason_and_description_say_why(reason: str, description: str, cause: Cause) -> None:
    [line] = explain([{"text": description, "reason": reason}])

    assert line["cause"] == cause.value


# --- looking before draining -------------------------------------------------------------------------------------


def test_a_dead_letter_queue_is_looked_at_and_left_as_it_is(tmp_path: Path, bus: ServiceBusStandIn) -> None:
    """What can't be put back should be seen before it is drained: by why, by type, by where it failed."""
    shop = ServiceBusWorkshop(tmp_path, bus)
    types = {"NServiceBus.EnclosedMessageTypes": "Shop.OrderPlaced, Shop.Messages, Version=1.0.0.0;Shop.IEvent"}
    with shop.client.get_queue_sender("orders") as sender:
        sender.send_messages([ServiceBusMessage(b"{}", application_properties=types) for _ in range(3)])  # type: ignore[arg-type]
    shop.work(lambda _: ("SocketException", REFUSED))
    shop.buy("late", subject="OrderCancelled")
    shop.work(lambda _: ("HeaderSizeExceeded", "The size quota for this stream has been exceeded."))
    before = [(one.failed_deliveries, one.kept) for one in bus.messages(DEAD)]

    def counted(**selection: Any) -> int:
        seen = peek.peek(shop.settings, "orders", broker=shop.broker, selection=Selection(**selection))
        return sum(one["messages"] for one in seen)

    seen = peek.peek(shop.settings, "orders", broker=shop.broker)
    assert [(one["messages"], one["type"], one["reason"], one["cause"]) for one in seen] == [
        (3, "Shop.OrderPlaced", "SocketException", "transient_network"),
        (1, "OrderCancelled", "HeaderSizeExceeded", "oversized"),
    ]
    assert {(one["source"], one["origin"]) for one in seen} == {(DEAD, "orders")}
    assert counted(limit=2) == 2
    assert (counted(causes=["oversized"]), counted(sources=["elsewhere"])) == (1, 0)
    assert counted(attributes=((TYPE_ATTRIBUTE, "Shop.OrderPlaced"),)) == 3
    assert [(one.failed_deliveries, one.kept) for one in bus.messages(DEAD)] == before
    assert shop.query("select count(*) from staging_batches") == [(0,)]
    report = shop.cycle(Selection(attributes=((TYPE_ATTRIBUTE, "Shop.OrderPlaced"),)))
    assert (report["drained"], report["redelivered"], report["untouched"]) == (4, 3, 1), "and one type is sent"
    report = shop.cycle(Selection(attributes=((TYPE_ATTRIBUTE, "OrderCancelled"),)))
    assert shop.states() == {"sent": 3, "escalated": 1}, "a type that is a property of the broker's"
    shop.close()


# --- dead letters that go on to another queue ----------------------------------------------------------------------


def half_a_day(shop: Workshop) -> None:
    """Runs every three hours."""
    for _ in range(4):
        shop.advance(hours=3)
        shop.cycle()


def test_an_empty_dead_letter_queue_that_gets_nothing_any_more_proves_nothing(
    build: Build, bus: ServiceBusStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies there from before is sent again as ever; what fails then lies in another queue, and is no success."""
    bus.queue("errors", lock_duration=LOCK)
    shop = build()
    monkeypatch.setattr(doctor, "open_broker", lambda *_: adapter(bus))
    shop.buy("a")
    shop.work(refused)
    bus.entity("orders").rules.forward_dead_letters_to = "errors"
    told = [one.text for one in doctor.examine(shop.settings, ["orders"]) if one.subject == f"orders: source {DEAD}"]
    assert [text for text in told if "orders forwards its dead letters, to errors/$Active" in text]
    assert shop.cycle()["redelivered"] == 1
    shop.work(refused)
    assert (shop.held(DEAD), shop.held("errors")) == ([], [b"a"])
    half_a_day(shop)
    assert shop.states() == {"sent": 1}

    both = [{"queue": DEAD}, {"queue": "errors/$Active", "origins": ["orders"]}]
    shop.settings = shop.configure(shop.settings.database, **(ON_BUS | {"sources": both}))
    report = shop.cycle()
    assert (report["drained"], report["returned"], report["new"]) == (1, 1, 0)
    shop.advance(hours=3)
    shop.cycle()
    assert shop.work() == [b"a"]
    half_a_day(shop)
    assert shop.states() == {"presumed": 1}
    assert shop.audit() == []


def test_dead_letters_that_go_to_a_topic_are_seen_at_its_subscription(build: Build, bus: ServiceBusStandIn) -> None:
    """Nothing can be received from a topic itself: the source that drains it is one of its subscriptions."""
    bus.topic("errors")
    bus.subscription("errors", "all", lock_duration=LOCK)
    shop = build(
        queue={"forward_dead_letters_to": "errors"},
        sources=[{"queue": DEAD}, {"queue": "Errors/subscriptions/all/$Active", "origins": ["orders"]}],
        destination={"queue": "orders"},
    )
    shop.buy("a")
    shop.work(refused)
    assert shop.cycle()["redelivered"] == 1
    assert shop.work() == [b"a"]
    half_a_day(shop)
    assert shop.states() == {"presumed": 1}
    assert shop.audit() == []


@pytest.mark.parametrize(
    ("sources", "told"),
    [
        ([DEAD], "goes to errors/$Active and then errors/$DeadLetterQueue, which this route does not drain"),
        (["errors/$Active"], None),
        ([DEAD, "Errors/$active"], None),
    ],
)
def test_the_doctor_says_where_what_fails_again_goes(
    build: Build, bus: ServiceBusStandIn, monkeypatch: pytest.MonkeyPatch, sources: list[str], told: str | None
) -> None:
    bus.queue("errors", lock_duration=LOCK)
    shop = build(
        queue={"forward_dead_letters_to": "errors"},
        sources=[{"queue": queue} for queue in sources],
        destination={"queue": "orders"},
    )
    monkeypatch.setattr(doctor, "open_broker", lambda *_: adapter(bus))
    found = [one.text for one in doctor.examine(shop.settings, ["orders"]) if one.subject.endswith(": returns")]
    assert [told in text for text in found if told] == ([True] if told else [])
    assert bool(found) == bool(told)


# --- all subscriptions of a topic by one line --------------------------------------------------------------------


def test_one_line_drains_all_subscriptions_of_a_topic_each_as_a_source_of_its_own(
    build: Build, bus: ServiceBusStandIn
) -> None:
    bus.topic("news")
    for name in ("mail", "push"):
        bus.subscription("news", name, lock_duration=LOCK)
    shop = build(sources=[{"queue": "news/*"}], fan_out="allow")
    shop.buy("x", to="news")
    for name in ("mail", "push"):
        shop.work(refused, queue=f"news/Subscriptions/{name}")
    seen = peek.peek(shop.settings, "orders", broker=shop.broker)
    places = [f"news/Subscriptions/{name}/$DeadLetterQueue" for name in ("mail", "push")]
    assert sorted((one["source"], one["messages"]) for one in seen) == [(place, 1) for place in places]
    report = shop.cycle(Selection(sources=(places[0],)))
    assert (report["drained"], report["new"]) == (1, 1)
    report = shop.cycle()

    assert (report["drained"], report["new"], report["suspected"]) == (1, 1, 0), "the same body, and two dead letters"
    assert sorted(shop.query("select source from messages")) == [(place,) for place in places]
    with pytest.raises(UsageError, match="the route doesn't drain it"):
        shop.begin(selection=Selection(sources=("other/Subscriptions/mail/$DeadLetterQueue",)))

    for name in ("mail", "push"):
        shop.work(queue=f"news/Subscriptions/{name}")
    bus.subscription("news", "late", lock_duration=LOCK)
    shop.buy("y", to="news")
    shop.work(refused, queue="news/Subscriptions/late")
    assert shop.cycle(Selection(sources=("news/*/$DeadLetterQueue",)))["drained"] == 1, "also of a later one"
    assert shop.audit() == []


def test_who_may_not_list_subscriptions_is_told_to_name_them(build: Build, bus: ServiceBusStandIn) -> None:
    bus.topic("news")
    shop = build(sources=[{"queue": "news/*"}])
    with pytest.raises(QueueMissing, match="news has no subscription"):
        shop.cycle()
    shop.broker.close()
    shop.broker = adapter(bus, administered=False)  # type: ignore[assignment]
    shop.advance(minutes=2)
    with pytest.raises(PermissionRefused, match="name each as a source"):
        shop.cycle()
