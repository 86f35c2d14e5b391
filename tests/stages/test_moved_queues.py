"""A queue moves to another route, or its route is renamed: what the ledger knows of it goes for whoever has it now."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from redrive.brokers.memory.kind import MEMORY_CAPABILITIES
from redrive.errors import BrokerUnavailable
from redrive.ledger.drain import repeats
from redrive.message import DeadLetter, Header
from redrive.settings import parse
from redrive.stages import pipeline
from redrive.stages.context import Run
from tests.workshop import REFUSED, ROUTE, Workshop

DLQ, DELAY = ROUTE["sources"]


class Moving(Workshop):
    """Whose routes are edited between runs."""

    def __init__(self, folder: Path, database: str | None = None) -> None:
        super().__init__(folder, database)
        self.route = "orders"
        self.world.create("other-dlq")

    def write(self, **routes: dict[str, Any]) -> None:
        """The file has these routes from now on, each with what differs from the usual one."""
        text = yaml.safe_dump(
            {
                "database": self.settings.database,
                "staging": str(self.folder / "staging"),
                "routes": {name: ROUTE | route for name, route in routes.items()},
            }
        )
        self.settings = parse(text, env={}, root=self.folder)

    def begin(self, **options: Any) -> Run:
        return pipeline.begin(self.settings, self.route, trigger="test", holder="test", clock=self.now, **options)

    def go(self, route: str) -> dict[str, Any]:
        """One whole run of a route; its report."""
        self.route = route
        return self.cycle()

    def review(self) -> dict[str, Any]:
        return pipeline.apply_decisions(self.settings, self.route, clock=self.now)

    def dies(self, monkeypatch: pytest.MonkeyPatch, where: str, *, first: bool) -> None:
        """A run of the route dies at this call of the broker, before it or after it."""
        with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
            patched.setattr(self.broker, where, _dying(getattr(self.broker, where), first=first))
            self.cycle()
        self.advance(minutes=20)


def _dying(call: Callable[..., Any], *, first: bool) -> Callable[..., Any]:
    def die(*given: Any, **named: Any) -> Any:
        if not first:
            call(*given, **named)
        raise KeyboardInterrupt

    return die


class WithoutIds(Moving):
    capabilities = replace(MEMORY_CAPABILITIES, stable_identity=False)


@pytest.fixture
def shop(tmp_path: Path, ledger_url: str) -> Iterator[Moving]:
    shop = Moving(tmp_path, ledger_url)
    yield shop
    shop.ledger.close()


@pytest.fixture
def nameless(tmp_path: Path, ledger_url: str) -> Iterator[WithoutIds]:
    shop = WithoutIds(tmp_path, ledger_url)
    yield shop
    shop.ledger.close()


MOVED = {"orders": {"sources": [DELAY]}, "payments": {"sources": [DLQ]}}


@pytest.mark.parametrize("first", ["orders", "payments"])
def test_what_was_recorded_and_not_settled_is_sent_once_whichever_route_has_the_queue(
    shop: Moving, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    shop.die("pay 1", "pay 2")
    shop.dies(monkeypatch, "settle", first=True)
    shop.write(**MOVED)
    found = [shop.go(route) for route in (first, *({"orders", "payments"} - {first}))]

    assert [(one["new"], one["duplicates"], one["redelivered"]) for one in found] == [(2, 0, 2), (0, 2, 0)]
    assert shop.bodies("orders") == [b"pay 1", b"pay 2"]
    assert shop.audit() == []


def test_a_name_that_is_written_again_after_a_rename_sends_nothing_twice(
    shop: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.die("pay 1", "pay 2")
    shop.dies(monkeypatch, "settle", first=True)
    shop.write(payments={})
    assert shop.go("payments")["redelivered"] == 2
    shop.write(**MOVED)
    assert shop.go("orders")["duplicates"] == 2
    assert shop.bodies("orders") == [b"pay 1", b"pay 2"]


def test_a_queue_of_the_same_name_on_another_broker_is_another_one(
    shop: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.die("pay 1")
    shop.dies(monkeypatch, "settle", first=True)
    shop.write(orders={"sources": [DELAY]}, payments={"sources": [DLQ], "connection": "elsewhere"})
    assert [shop.go(route)["new"] for route in ("orders", "payments")] == [1, 1]


@pytest.mark.parametrize("first", ["orders", "payments"])
def test_without_identities_people_say_whether_another_routes_batch_came_again(
    nameless: WithoutIds, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    nameless.die("pay 1", "pay 2")
    nameless.dies(monkeypatch, "settle", first=True)
    nameless.write(**MOVED)
    found = {route: nameless.go(route) for route in (first, *({"orders", "payments"} - {first}))}

    assert (found["orders"]["new"], found["orders"]["redelivered"]) == (2, 2)
    assert (found["payments"]["new"], found["payments"]["suspected"], found["payments"]["redelivered"]) == (0, 2, 0)
    assert nameless.query("select count(*) from escalated_messages where route = 'payments'") == [(2,)]
    assert nameless.bodies("orders") == [b"pay 1", b"pay 2"]
    assert nameless.audit() == []


def test_the_doubt_about_another_routes_batch_ends_with_a_drain_to_the_end(
    nameless: WithoutIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    nameless.die("pay 1")
    nameless.dies(monkeypatch, "settle", first=True)
    nameless.write(payments={})
    assert nameless.go("payments")["suspected"] == 1
    nameless.advance(hours=1)
    nameless.go("payments")
    with nameless.ledger.read() as connection:
        leased_for = nameless.settings.route("payments").drain.lease
        assert repeats.doubtful(nameless.ledger, connection, "payments", DLQ["queue"], leased_for=leased_for) == {}


# --- a message that another route knows --------------------------------------------------------------------


def unknown_and_discarded(shop: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows whether it was sent; a person discards it; it had been sent, and fails again."""
    shop.die("pay 1")
    shop.dies(monkeypatch, "publish", first=False)
    assert shop.go("orders")["escalated"] == 1
    shop.change("update escalated_messages set decision = 'discard', decided_by = 'ana', note = 'must not be paid'")
    assert shop.review()["discarded"] == 1
    assert shop.consume(lambda _: REFUSED) == 1


@pytest.mark.parametrize("goes_on", [True, False], ids=["goes on", "runs later"])
@pytest.mark.parametrize("decided", [True, False], ids=["discarded", "asked about"])
def test_a_route_that_went_on_without_a_source_still_had_it(
    shop: Moving, monkeypatch: pytest.MonkeyPatch, decided: bool, goes_on: bool
) -> None:
    """Nothing was ever staged from its delay queue, in which a send of unknown fate waits, and what the route knew of
    that queue is forgotten: that it drained it is not."""
    shop.die("pay 1")
    shop.dies(monkeypatch, "publish", first=False)
    assert shop.go("orders")["escalated"] == 1
    if decided:
        shop.change("update escalated_messages set decision = 'discard', decided_by = 'ana', note = 'must not be paid'")
        assert shop.review()["discarded"] == 1
    [sent] = shop.world.peek("orders")
    assert shop.consume() == 1
    shop.world.put("orders-delay", DeadLetter("", sent.body, sent.headers))
    shop.advance(minutes=5)
    shop.write(orders={"sources": [DLQ]}, payments={"sources": [DELAY]})
    if goes_on:
        shop.go("orders")
    report = shop.go("payments")

    assert (report["new"], report["redelivered"], report["escalated"]) == (1, 0, 1)
    assert shop.bodies("orders") == []
    assert shop.audit() == []


@pytest.mark.parametrize("renamed", [True, False], ids=["renamed with its connection", "went to another broker"])
def test_what_somebody_discarded_is_asked_about_wherever_its_route_is_now(
    shop: Moving, monkeypatch: pytest.MonkeyPatch, renamed: bool
) -> None:
    unknown_and_discarded(shop, monkeypatch)
    if renamed:
        shop.write(payments={"connection": "renamed"})
    else:
        shop.write(
            orders={"connection": "elsewhere", "sources": [{**DLQ, "queue": "other-dlq"}]}, payments={"sources": [DLQ]}
        )
        shop.go("orders")
    report = shop.go("payments")

    assert (report["new"], report["redelivered"], report["escalated"]) == (1, 0, 1)
    assert shop.bodies("orders") == []


def test_a_queue_of_another_broker_makes_nobodys_failure_the_return_of_a_send(
    shop: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the route drained one of that name elsewhere. Here it is another route's, into which a consumer passes on
    what it was sent, while the message still lies with its own: people say what that is, and its send is not over."""
    monkeypatch.setattr(shop.broker, "origins", lambda _: None)
    shop.write(orders={"connection": "elsewhere"})
    shop.die("old")
    shop.go("orders")
    shop.consume()
    shop.advance(hours=3)
    shop.go("orders")
    shop.write(orders={"sources": [{**DLQ, "queue": "other-dlq"}]}, payments={"sources": [DLQ]})
    shop.world.put("other-dlq", DeadLetter("", b"pay 1", (Header("error", "String", REFUSED),), origin="orders"))
    assert shop.go("orders")["redelivered"] == 1
    [sent] = shop.world.peek("orders")
    shop.world.put("orders-dlq", DeadLetter("", sent.body, (*sent.headers, Header("error", "String", REFUSED))))
    report = shop.go("payments")
    shop.go("orders")

    assert (report["new"], report["redelivered"], report["escalated"]) == (1, 0, 1)
    assert shop.query("select state from messages where route = 'orders' and attempts = 1 order by 1 desc limit 1") == [
        ("sent",)
    ]
    assert shop.query("select count(*) from redelivery_attempts where outcome = 'returned'") == [(0,)]


def test_a_broker_that_can_not_be_asked_where_failures_land_keeps_nothing_from_being_loaded(
    shop: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: str) -> frozenset[str]:
        raise BrokerUnavailable("management API: connection refused")

    shop.die("pay 1")
    shop.go("orders")
    assert shop.consume(lambda _: REFUSED) == 1
    shop.write(payments={})
    monkeypatch.setattr(shop.broker, "origins", away)
    shop.die("pay 2")

    assert shop.go("payments")["new"] == 2


def test_what_somebody_discarded_on_another_route_is_never_sent_by_itself(
    shop: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown_and_discarded(shop, monkeypatch)
    ((known,),) = shop.query("select redrive_id from messages")
    shop.write(payments={})
    report = shop.go("payments")

    assert (report["new"], report["redelivered"], report["escalated"]) == (1, 0, 1)
    assert shop.query("select reason, question from escalated_messages where status = 'open'") == [
        (
            f"It came with the id of message {known} of route orders, which was discarded there: the queue moved, or"
            " the route was renamed. This is its send, attempt 1, and it came back: nobody else has it.",
            "sent",
        )
    ]
    assert shop.query("select route, parent_id is null from messages order by message_id") == [
        ("orders", True),
        ("payments", False),
    ]
    assert shop.bodies("orders") == []
    assert shop.audit() == []


def test_no_standing_decision_answers_for_a_message_of_another_route(
    shop: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown_and_discarded(shop, monkeypatch)
    shop.write(payments={})
    shop.change(
        "insert into standing_decisions (group_id, route, decision, decided_by, note, created_at, until_at) select"
        " group_id, 'payments', 'redeliver', 'ben', 'known', :now, :later from failure_groups",
        now=shop.now(),
        later=shop.now() + timedelta(days=1),
    )
    shop.go("payments")
    shop.go("payments")
    assert shop.query("select status from escalated_messages where route = 'payments'") == [("open",)]
    assert shop.bodies("orders") == []


def test_what_another_route_has_is_not_sent_beside_it(shop: Moving) -> None:
    """Somebody put a copy back, with its headers, into the queue that moved meanwhile."""
    shop.die("pay 1")
    shop.go("orders")
    shop.advance(minutes=5)
    shop.consume(lambda _: REFUSED)
    [letter] = shop.world.peek("orders-dlq")
    pipeline.finish(shop.settings, shop.planned(), "succeeded", shop.now)  # it waits to be sent once more
    shop.world.put("orders-dlq", letter._replace(broker_message_id=""))
    shop.write(**MOVED)
    assert (report := shop.go("payments"))["escalated"] == 1
    assert report["redelivered"] == 0
    assert "of route orders, which is not finished there" in shop.query("select reason from escalated_messages")[0][0]


def test_what_was_made_of_another_routes_message_is_planned_like_any_other(shop: Moving) -> None:
    """Its consumer copied our headers: another body, or another place where it failed, is another message."""
    shop.world.create("payments", dead_letter_queue="payments-dlq")
    shop.world.create("payments-dlq")
    shop.write(
        orders={}, payments={"sources": [{**DLQ, "queue": "payments-dlq"}], "destination": {"queue": "payments"}}
    )
    shop.die("pay 1")
    shop.go("orders")
    [sent] = shop.world.peek("orders")
    failed = (*sent.headers, Header("error", "String", REFUSED))
    shop.consume()
    shop.world.put("payments-dlq", DeadLetter("", b"a part of pay 1", failed, origin="orders"))
    shop.world.put("payments-dlq", DeadLetter("", b"pay 1", failed, origin="payments"))
    report = shop.go("payments")
    assert (report["new"], report["redelivered"], report["escalated"]) == (2, 2, 0)
    assert shop.audit() == []


def test_what_was_restored_begins_anew_on_whichever_route_has_the_queue(shop: Moving) -> None:
    shop.die("pay 1")
    shop.go("orders")
    shop.consume(lambda _: REFUSED)
    shop.write(orders={"requeue_attempts": 1, "delay_attempts": 0})
    assert shop.go("orders")["returned"] == 1
    run = shop.begin()
    assert pipeline.restore(shop.settings, run, **shop.options())["restored"] == 1
    pipeline.finish(shop.settings, run, "succeeded", shop.now)
    shop.write(payments={})
    assert (report := shop.go("payments"))["new"] == 1
    assert report["escalated"] == 0


# --- what another route sent -----------------------------------------------------------------------------------

ODD = "the flux capacitor said hm"
CANARY = {"canary": {"first": 2, "grow": 10, "pass": 0.95, "observe": "10m"}}


def test_what_comes_back_to_another_route_stops_the_gate_of_the_route_that_sent_it(shop: Moving) -> None:
    shop.write(orders=CANARY)
    shop.die(*(f"m{number}" for number in range(30)), error=ODD)
    assert shop.go("orders")["redelivered"] == 2
    shop.consume(lambda _: ODD)
    shop.write(orders={**CANARY, "sources": [{**DLQ, "queue": "other-dlq"}]}, payments=CANARY)
    assert shop.go("payments")["escalated"] == 2
    for _ in range(3):
        shop.advance(minutes=20)
        assert shop.go("orders")["redelivered"] == 0
        shop.go("payments")

    assert shop.query("select stage, reason from group_state where route = 'orders'") == [
        ("failed", "2 of 2 came back.")
    ]
    assert shop.query("select outcome, count(*) from redelivery_attempts where route = 'orders' group by outcome") == [
        ("returned", 2)
    ]
    assert shop.query("select count(*) from returned_elsewhere") == [(0,)]
    assert shop.query("select distinct reason from messages where route = 'orders' and state = 'discarded'") == [
        ("It came back to route payments, and is a message of that one: it is decided there.",)
    ]
    assert shop.audit() == []


def test_a_late_return_to_another_route_corrects_what_was_presumed(shop: Moving) -> None:
    shop.die("pay 1")
    shop.go("orders")
    [letter] = shop.world.peek("orders")
    shop.consume()
    for _ in range(3):
        shop.advance(hours=1)
        shop.go("orders")
    assert shop.query("select state from messages") == [("presumed",)]
    shop.world.put("orders-dlq", DeadLetter("", letter.body, letter.headers, origin="orders"))
    shop.write(**MOVED)
    assert shop.go("payments")["redelivered"] == 1
    shop.go("orders")
    assert shop.query("select route, attempt, outcome from redelivery_attempts order by message_id") == [
        ("orders", 1, "returned"),
        ("payments", 2, None),
    ]
    assert shop.query("select state from messages order by message_id") == [("discarded",), ("sent",)]
    assert shop.audit() == []


def test_what_names_an_attempt_that_was_never_made_is_no_return_of_it(shop: Moving) -> None:
    shop.die("pay 1")
    pipeline.finish(shop.settings, shop.planned(), "succeeded", shop.now)
    ((known,),) = shop.query("select redrive_id from messages")
    forged = (Header("x-redrive-id", "String", known), Header("x-redrive-attempt", "Number", "1"))
    shop.world.put("orders-dlq", DeadLetter("", b"pay 1", forged, origin="orders"))
    shop.write(**MOVED)
    assert shop.go("payments")["escalated"] == 1
    assert shop.go("orders")["redelivered"] == 1
    assert shop.query("select outcome from redelivery_attempts") == [(None,)]


def test_people_who_are_asked_about_a_send_are_still_asked_when_it_came_back_elsewhere(
    shop: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.die("pay 1")
    shop.dies(monkeypatch, "publish", first=False)
    assert shop.go("orders")["escalated"] == 1
    shop.consume(lambda _: REFUSED)
    shop.write(**MOVED)
    assert shop.go("payments")["escalated"] == 1
    shop.go("orders")
    assert shop.query("select outcome from redelivery_attempts") == [("returned",)]
    assert shop.query("select state from messages order by message_id") == [("escalated",), ("escalated",)]
    assert shop.audit() == []


def passed_on(shop: Moving, queue: str, origin: str | None) -> None:
    """What lies in ``orders`` fails at somebody else, with our headers and its body; ``orders`` keeps its own."""
    for one in shop.world.peek("orders"):
        failed = (*one.headers, Header("error", "String", REFUSED))
        shop.world.put(queue, DeadLetter("", one.body, failed, origin=origin))


@pytest.mark.parametrize("origin", ["orders", None])
def test_what_fails_at_another_subscriber_is_none_of_the_senders(shop: Moving, origin: str | None) -> None:
    """``orders`` stands for a topic: its own subscriber processes all, and the copies of another one fail."""
    shop.world.create("payments-dlq")
    shop.write(orders=CANARY, payments={"sources": [{**DLQ, "queue": "payments-dlq"}]})
    shop.die(*(f"m{number}" for number in range(30)), error=ODD)
    assert shop.go("orders")["redelivered"] == 2
    passed_on(shop, "payments-dlq", origin)
    shop.consume()
    report = shop.go("payments")
    assert (report["new"], report["escalated"]) == (2, 0)
    assert shop.query("select count(*) from returned_elsewhere") == [(0,)]
    shop.consume()
    for _ in range(2):
        shop.advance(minutes=20)
        assert shop.go("orders")["escalated"] == 0
    assert shop.query("select stage from group_state where route = 'orders'") != [("failed",)]
    assert shop.query("select count(*) from messages where route = 'orders' and state = 'discarded'") == [(0,)]
    assert shop.audit() == []


def test_what_lies_with_its_own_subscriber_is_not_handed_over(shop: Moving) -> None:
    shop.world.create("payments-dlq")
    shop.write(orders={}, payments={"sources": [{**DLQ, "queue": "payments-dlq"}]})
    shop.die("pay 1")
    shop.go("orders")
    passed_on(shop, "payments-dlq", "orders")
    shop.go("payments")
    shop.go("orders")
    assert shop.query("select state, attempts from messages where route = 'orders'") == [("sent", 1)]
    shop.consume(lambda _: REFUSED)
    shop.advance(minutes=5)
    assert shop.go("orders")["returned"] == 1
    assert shop.audit() == []


class Topics(Moving):
    capabilities = replace(MEMORY_CAPABILITIES, single_target=False)


@pytest.mark.parametrize("readers", [1, 2])
def test_a_queue_that_was_never_a_source_takes_what_one_subscriber_alone_can_have_failed(
    tmp_path: Path, ledger_url: str, readers: int
) -> None:
    """Two routes in one loop of failures, by the broker's word: where others read the topic, it may be theirs."""
    shop = Topics(tmp_path, ledger_url)
    shop.write(
        orders={"sources": [{**DLQ, "queue": "other-dlq"}], "destination": {"queue": "orders"}, "fan_out": "allow"},
        payments={"fan_out": "allow"},
    )
    shop.world.put("other-dlq", DeadLetter("", b"pay 1", (Header("error", "String", REFUSED),), origin="orders"))
    assert shop.go("orders")["redelivered"] == 1
    queue = shop.world.queues["orders"]
    queue.info = queue.info._replace(subscribers=readers)
    shop.consume(lambda _: REFUSED)
    assert shop.go("payments")["new"] == 1
    shop.go("orders")
    outcome = "returned" if readers == 1 else None
    assert shop.query("select outcome from redelivery_attempts where route = 'orders'") == [(outcome,)]
    assert shop.audit() == []
    shop.ledger.close()


class Proving(Moving):
    capabilities = replace(MEMORY_CAPABILITIES, proves_origin=True)


@pytest.mark.parametrize(("origin", "outcome"), [("orders", "returned"), ("elsewhere", None)])
def test_an_origin_that_no_producer_can_set_says_whose_failure_it_is(
    tmp_path: Path, ledger_url: str, origin: str, outcome: str | None
) -> None:
    shop = Proving(tmp_path, ledger_url)
    shop.world.create("payments-dlq")
    shop.write(orders={}, payments={"sources": [{**DLQ, "queue": "payments-dlq"}]})
    shop.die("pay 1")
    shop.go("orders")
    passed_on(shop, "payments-dlq", origin)
    shop.consume()
    assert shop.go("payments")["new"] == 1
    shop.go("orders")
    assert shop.query("select outcome from redelivery_attempts where route = 'orders'") == [(outcome,)]
    assert shop.audit() == []
    shop.ledger.close()


def test_what_only_waits_in_the_delay_queue_of_a_renamed_route_is_no_question(shop: Moving) -> None:
    shop.die("pay 1", "pay 2")
    shop.go("orders")
    sent = shop.world.peek("orders")
    shop.consume()
    for one in sent:
        shop.world.put("orders-delay", DeadLetter("", one.body, one.headers))
    shop.advance(minutes=5)
    shop.write(payments={})
    assert (report := shop.go("payments"))["escalated"] == 0
    assert report["redelivered"] == 2
    assert shop.query("select attempts from messages where route = 'payments'") == [(2,), (2,)]

    shop.write(orders={"sources": [{**DLQ, "queue": "other-dlq"}]}, payments={})
    shop.go("orders")
    assert shop.query("select distinct state from messages where route = 'orders'") == [("discarded",)]
    assert shop.audit() == []


def test_a_renamed_route_goes_on_to_count_the_attempts_of_what_comes_back(shop: Moving) -> None:
    caps = {"requeue_attempts": 2, "delay_attempts": 0}
    shop.write(orders=caps)
    shop.die("pay 1")
    shop.go("orders")
    shop.write(payments=caps)
    found = []
    for _ in range(2):
        shop.consume(lambda _: REFUSED)
        shop.advance(minutes=5)
        report = shop.go("payments")
        found.append((report["redelivered"], report["escalated"]))
    assert found == [(1, 0), (0, 1)]
    assert shop.audit() == []


def test_a_second_copy_of_what_was_handed_over_says_to_whom(shop: Moving) -> None:
    shop.die("pay 1")
    shop.go("orders")
    [one] = shop.world.peek("orders")
    shop.consume(lambda _: REFUSED)
    shop.write(**MOVED)
    shop.go("payments")
    shop.go("orders")
    shop.world.put("orders-dlq", DeadLetter("", one.body, one.headers, origin="orders"))
    assert shop.go("payments")["escalated"] == 1
    [(reason,)] = shop.query("select reason from escalated_messages")
    assert "of route orders, which came back to route payments: the queue moved" in reason
    assert "nobody else" not in reason
