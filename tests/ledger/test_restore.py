"""The way out: every unfinished message goes back into the queue it came from, as it was; what can't is told."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import DatabaseError

from redrive.brokers.base import Settled
from redrive.errors import (
    BrokerError,
    BrokerUnavailable,
    NothingSent,
    PermissionRefused,
    QueueMissing,
    SettlementFailed,
)
from redrive.ledger.account import inspecting
from redrive.ledger.engine import sql
from redrive.ledger.predicates import IN_REVIEW
from redrive.ledger.selecting import Selection
from redrive.message import DeadLetter, Header, tracking_headers
from redrive.stages import pipeline
from redrive.stages import restore as restore_stage
from tests.ledger.planting import entering
from tests.lunch import in_time, lunch
from tests.workshop import KEY_ERROR, REFUSED, ROUTE, THROTTLED, Workshop


def restore(workshop: Workshop, **selection: Any) -> dict[str, Any]:
    run = workshop.begin(even_if_paused=True, selection=Selection(**selection))
    try:
        return pipeline.restore(workshop.settings, run, **workshop.options())
    finally:
        pipeline.finish(workshop.settings, run, "succeeded", workshop.now)


def force(workshop: Workshop, state: str, reason: str | None = None) -> None:
    with workshop.ledger.write() as connection:
        connection.execute(sql(f"update messages set {entering(state)}, reason = :reason"), {"reason": reason})


def escalate_two_of_three(workshop: Workshop) -> None:
    workshop.die("a", "b", error=KEY_ERROR)
    workshop.die("c", error=THROTTLED)
    workshop.cycle()
    assert workshop.states() == {"escalated": 2, "waiting": 1}
    assert workshop.bodies("orders-dlq") == []


@pytest.fixture
def unfinished(workshop_after: Callable[..., Workshop]) -> Workshop:
    """Two escalated messages and one that waits."""
    return workshop_after(escalate_two_of_three)


def test_every_unfinished_message_goes_back_with_its_original_headers(workshop: Workshop) -> None:
    headers = (
        Header("error", "String", KEY_ERROR),
        Header("tenant", "String", "acme"),
        Header("raw", "Binary", b"\x00\xff"),
    )
    original = DeadLetter("", b"a", headers, ordering_key="k", content_type="text/plain", origin="orders")
    workshop.world.put("orders-dlq", original)
    before = workshop.world.peek("orders-dlq")[0]
    workshop.cycle()
    assert restore(workshop)["restored"] == 1
    (after,) = workshop.world.peek("orders-dlq")
    assert (after.body, after.headers, after.ordering_key, after.content_type) == (
        before.body,
        before.headers,
        before.ordering_key,
        before.content_type,
    )


def test_all_of_them_and_only_them(unfinished: Workshop) -> None:
    unfinished.die("sent", error=REFUSED)
    unfinished.cycle()
    found = restore(unfinished)
    assert (found["restored"], found["not_restored"], found["unknown"]) == (3, 0, 0)
    assert sorted(unfinished.bodies("orders-dlq")) == [b"a", b"b", b"c"]
    assert unfinished.states() == {"discarded": 3, "sent": 1}
    assert unfinished.query("select distinct reason from messages where state = 'discarded'") == [
        ("It was restored to orders-dlq.",)
    ]
    assert unfinished.query("select distinct status, decided_by from escalated_messages") == [
        ("applied", "redrive restore")
    ]
    assert unfinished.audit() == []


@pytest.mark.parametrize("state", ["classified", "waiting", "held", "to_review", "expired"])
def test_every_unfinished_state_is_left(workshop: Workshop, state: str) -> None:
    workshop.die("a", error=THROTTLED)
    workshop.cycle()
    force(workshop, state)
    assert restore(workshop)["restored"] == 1
    assert workshop.states() == {"discarded": 1}
    assert workshop.bodies("orders-dlq") == [b"a"]


def test_decisions_that_wait_are_overtaken(unfinished: Workshop) -> None:
    with unfinished.ledger.write() as connection:
        connection.execute(sql("update escalated_messages set decision = 'redeliver', decided_by = 'ana'"))
    unfinished.review()
    restore(unfinished)
    assert unfinished.states() == {"discarded": 3}
    unfinished.cycle()
    assert unfinished.bodies("orders") == [], "nothing of it goes out any more"


def test_restoring_twice_restores_once(unfinished: Workshop) -> None:
    restore(unfinished)
    assert restore(unfinished)["restored"] == 0
    assert len(unfinished.bodies("orders-dlq")) == 3


def test_what_was_restored_comes_in_again_as_new(unfinished: Workshop) -> None:
    restore(unfinished)
    report = unfinished.cycle()
    assert (report["new"], report["duplicates"]) == (3, 0)
    assert unfinished.audit() == []


def test_a_message_whose_payload_is_gone_is_told_and_stays(unfinished: Workshop) -> None:
    for path in (unfinished.folder / "staging").rglob("*.parquet"):
        path.unlink()
    found = restore(unfinished)
    assert (found["restored"], found["not_restored"]) == (0, 3)
    assert all("can't be read" in text for text in found["problems"].values())
    assert unfinished.states() == {"escalated": 2, "waiting": 1}


def restore_with(workshop: Workshop, broker: Any) -> dict[str, Any]:
    run = workshop.begin()
    found = pipeline.restore(workshop.settings, run, clock=workshop.now, broker=broker)
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    return found


class Trouble:
    """A broker of which publishing fails."""

    def __init__(self, workshop: Workshop, error: Exception, after: bool = False) -> None:
        self._broker, self._error, self._after = workshop.broker, error, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def publish(self, queue: str, messages: Any) -> Any:
        if self._after:
            self._broker.publish(queue, messages)
        raise self._error


def test_a_queue_that_is_gone_leaves_everything_as_it_was(unfinished: Workshop) -> None:
    before = unfinished.query("select message_id, state, plan, reason from messages order by message_id")
    found = restore_with(unfinished, Trouble(unfinished, QueueMissing("orders-dlq does not exist")))
    assert (found["restored"], found["not_restored"], found["not_tried"]) == (0, 3, 0)
    assert set(found["problems"].values()) == {"orders-dlq does not exist"}
    assert unfinished.query("select message_id, state, plan, reason from messages order by message_id") == before


class OneGone:
    """A broker of which one queue is gone or forbidden, as one of its calls says. ``asked`` counts how often."""

    def __init__(self, workshop: Workshop, queue: str, call: str, error: BrokerError) -> None:
        self._broker, self._queue, self._call, self._error = workshop.broker, queue, call, error
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def _told(self, call: str, queue: str) -> None:
        if (call, queue) == (self._call, self._queue):
            self.asked += 1
            raise self._error

    def capabilities_for(self, queue: str) -> Any:
        found = self._broker.capabilities_for(queue)
        return replace(found, way_back=self._call == "way_back", single_target=self._call != "describe")

    def way_back(self, source: str) -> str:
        self._told("way_back", source)
        return source

    def describe(self, queue: str) -> Any:
        self._told("describe", queue)
        return self._broker.describe(queue)._replace(subscribers=1)

    def publish(self, queue: str, messages: Any) -> Any:
        self._told("publish", queue)
        return self._broker.publish(queue, messages)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("way_back", QueueMissing("a-dlq does not exist")),
        ("describe", QueueMissing("a-dlq does not exist")),
        ("publish", QueueMissing("a-dlq does not exist")),
        ("publish", PermissionRefused("send to a-dlq: not allowed")),
    ],
)
def test_a_source_that_is_gone_leaves_the_others_to_go_back(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, call: str, error: BrokerError
) -> None:
    """Also those on pages behind it, and it is asked once."""
    monkeypatch.setattr(restore_stage, "PAGE", 2)
    workshop.world.create("a-dlq", lease=timedelta(minutes=5))
    dead, delay = ROUTE["sources"]
    workshop.settings = workshop.configure(
        workshop.settings.database, sources=[dead | {"queue": "a-dlq", "destination": "orders"}, dead, delay]
    )
    workshop.die("1", "2", "3", queue="a-dlq", error=KEY_ERROR)
    workshop.die("4", "5", error=KEY_ERROR)
    workshop.cycle()
    of_a = "select message_id, state, plan, reason from messages where source = 'a-dlq' order by message_id"
    before = workshop.query(of_a)
    broker = OneGone(workshop, "a-dlq", call, error)

    found = restore_with(workshop, broker)
    assert (found["restored"], found["not_restored"], found["not_tried"]) == (2, 3, 0)
    assert set(found["problems"].values()) == {str(error)}
    assert broker.asked == 1
    assert sorted(workshop.bodies("orders-dlq")) == [b"4", b"5"]
    assert workshop.query(of_a) == before
    assert restore(workshop)["restored"] == 3
    assert workshop.audit() == []


@pytest.fixture
def six_in_pages_of_two(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """Six messages under review, of which somebody decided to send one, and a restore that takes two at a time."""
    monkeypatch.setattr(restore_stage, "PAGE", 2)
    workshop.die(*"abcdef", error=KEY_ERROR)
    workshop.cycle()
    decide(workshop, "redeliver", "payload = 'f'")
    return workshop


def test_a_broker_that_is_not_there_leaves_everything_as_it_was(six_in_pages_of_two: Workshop) -> None:
    """Messages and what people decided: certainly nothing was sent."""
    shop = six_in_pages_of_two
    tables = ("messages.message_id, state, plan, messages.reason", "status, decision, question, refusal")
    look = [
        f"select {columns} from messages inner join escalated_messages on escalated_messages.message_id ="
        " messages.message_id order by messages.message_id"
        for columns in tables
    ]
    before = [shop.query(one) for one in look]
    run = shop.begin()
    with pytest.raises(NothingSent, match="no connection"):
        pipeline.restore(shop.settings, run, clock=shop.now, broker=Trouble(shop, NothingSent("no connection")))
    pipeline.finish(shop.settings, run, "failed", shop.now)
    assert [shop.query(one) for one in look] == before
    found = restore(shop)
    assert (found["restored"], found["not_restored"], found["not_tried"]) == (6, 0, 0)


def test_an_answer_that_is_lost_ends_a_restore_with_its_page(six_in_pages_of_two: Workshop) -> None:
    shop = six_in_pages_of_two
    found = restore_and_lose(shop)
    assert (found["restored"], found["not_restored"], found["not_tried"]) == (0, 2, 4)
    assert shop.states() == {"restore_unknown": 2, "escalated": 4}
    assert shop.query("select payload from escalated_messages where status = 'decided'") == [("f",)]
    assert len(shop.bodies("orders-dlq")) == 2


def test_one_message_without_an_answer_ends_a_restore_too(six_in_pages_of_two: Workshop) -> None:
    shop = six_in_pages_of_two
    shop.world.faults.publishes += ["sent", "sent", "sent", "unknown"]
    found = restore(shop)
    assert (found["restored"], found["not_restored"], found["not_tried"]) == (3, 1, 2)
    assert shop.states() == {"discarded": 3, "restore_unknown": 1, "escalated": 2}
    found = restore(shop, limit=1)
    assert (found["restored"], found["unknown"], found["not_tried"]) == (1, 1, 0)


def test_what_may_be_back_already_is_not_sent_by_anybody_else(unfinished: Workshop) -> None:
    """The broker took the messages, but its answer was lost."""
    run = unfinished.begin()
    found = pipeline.restore(
        unfinished.settings, run, clock=unfinished.now,
        broker=Trouble(unfinished, BrokerUnavailable("connection lost"), after=True),
    )  # fmt: skip
    pipeline.finish(unfinished.settings, run, "failed", unfinished.now)
    assert (found["restored"], found["not_restored"]) == (0, 3)
    unfinished.consume(queue="orders-dlq")
    unfinished.advance(hours=2)
    unfinished.cycle()
    assert unfinished.bodies("orders") == [], "it may be in its queue already: a person decides"
    assert unfinished.states() == {"restore_unknown": 3}
    again = restore(unfinished)
    assert again["unknown"] == 3
    assert again["restored"] == 0


def test_what_was_never_classified_goes_back_too(workshop: Workshop) -> None:
    """Spark is broken, and everything must get out."""
    workshop.die("a", "b", error=KEY_ERROR)
    run = workshop.begin()
    pipeline.drain(workshop.settings, run, **workshop.options())
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    assert workshop.bodies("orders-dlq") == []
    assert restore(workshop)["restored"] == 2
    assert sorted(workshop.bodies("orders-dlq")) == [b"a", b"b"]
    assert workshop.states() == {"discarded": 2}
    assert workshop.audit() == []


def test_what_nobody_knows_to_be_settled_is_not_doubled(workshop: Workshop) -> None:
    class Killed(BaseException):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    workshop.die("a", error=KEY_ERROR)
    run = workshop.begin()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workshop.broker, "settle", die)
        with pytest.raises(Killed):
            pipeline.drain(workshop.settings, run, **workshop.options())
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    found = restore(workshop)
    assert (found["restored"], found["still_there"], found["unknown"]) == (0, 0, 1), "it died at that line"
    workshop.advance(hours=2)
    assert workshop.bodies("orders-dlq") == [b"a"], "its lease ran out"
    run = workshop.begin()
    pipeline.drain(workshop.settings, run, **workshop.options())
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    assert restore(workshop)["restored"] == 1
    assert workshop.bodies("orders-dlq") == [b"a"]
    assert workshop.audit() == []


def test_a_send_of_which_nobody_knows_is_told_and_not_repeated(workshop: Workshop) -> None:
    workshop.die("a", error=THROTTLED)
    workshop.cycle()
    force(workshop, "unknown")
    found = restore(workshop)
    assert (found["restored"], found["unknown"]) == (0, 1)
    assert workshop.bodies("orders-dlq") == []


class UnsettledBroker:
    """A broker that refuses to settle: with an error, also ``after`` it has settled, or so many copies of each call."""

    def __init__(
        self, workshop: Workshop, *, error: BrokerError | None = None, failing: int = 0, after: bool = False
    ) -> None:
        self._broker, self._error, self._workshop, self._failing = workshop.broker, error, workshop, failing
        self._after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def settle(self, queue: str, receipts: Any) -> Any:
        if self._after:
            self._broker.settle(queue, receipts)
        if self._error is not None:
            raise self._error
        self._workshop.world.faults.settles = self._failing
        return self._broker.settle(queue, receipts)


def drain_with(workshop: Workshop, broker: Any) -> None:
    run = workshop.begin()
    try:
        pipeline.drain(workshop.settings, run, clock=workshop.now, broker=broker)
    except SettlementFailed:
        pass
    finally:
        pipeline.finish(workshop.settings, run, "failed", workshop.now)


def test_what_a_broker_refused_to_settle_is_not_put_back_beside_itself(workshop: Workshop) -> None:
    """The role may receive and not delete: both messages come back to their queue by themselves."""
    workshop.die("a", "b", error=KEY_ERROR)
    drain_with(workshop, UnsettledBroker(workshop, error=PermissionRefused("DeleteMessageBatch on orders-dlq")))
    found = restore(workshop)
    assert (found["restored"], found["still_there"], found["unknown"]) == (0, 2, 0)
    workshop.advance(hours=2)
    assert sorted(workshop.bodies("orders-dlq")) == [b"a", b"b"]
    assert workshop.audit() == []


def test_what_was_settled_without_an_answer_is_not_said_to_be_there(workshop: Workshop) -> None:
    """The queue hasn't got it: whoever believes it has, and leaves, has lost it."""
    workshop.die("a", "b", error=KEY_ERROR)
    drain_with(workshop, UnsettledBroker(workshop, error=BrokerUnavailable("read timeout"), after=True))
    found = restore(workshop)
    assert (found["restored"], found["still_there"], found["unknown"]) == (0, 0, 2)
    workshop.advance(hours=2)
    assert workshop.bodies("orders-dlq") == []
    workshop.cycle()
    found = restore(workshop)
    assert (found["restored"], found["still_there"], found["unknown"]) == (2, 0, 0)
    assert sorted(workshop.bodies("orders-dlq")) == [b"a", b"b"]
    assert workshop.audit() == []


def test_a_refusal_after_an_answer_that_told_of_failures_says_nothing_of_those(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two calls may have settled its copy, whose lease was over by then."""
    monkeypatch.setattr("redrive.stages.open_batch.SETTLE_AT_ONCE", 1)
    workshop.die("a", "b", error=KEY_ERROR)
    answers = iter([Settled(0, (("r", "its lease ended before it was deleted"),))])

    def settle(_queue: str, _receipts: Any) -> Settled:
        for answer in answers:
            return answer
        raise PermissionRefused("DeleteMessageBatch on orders-dlq")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workshop.broker, "settle", settle)
        drain_with(workshop, workshop.broker)
    found = restore(workshop)
    assert (found["restored"], found["still_there"], found["unknown"]) == (0, 0, 2)


def test_which_of_a_batch_were_settled_nobody_knows_so_none_is_put_back_on_a_guess(workshop: Workshop) -> None:
    workshop.die("a", "b", "c", error=KEY_ERROR)
    drain_with(workshop, UnsettledBroker(workshop, failing=1))
    found = restore(workshop)
    assert (found["restored"], found["still_there"], found["unknown"]) == (0, 0, 3)
    workshop.advance(hours=2)
    assert workshop.bodies("orders-dlq") == [b"a"], "the others are with us"


@pytest.mark.parametrize("failing", [1, 3])
def test_a_later_drain_to_the_end_shows_which_of_them_are_with_us(workshop: Workshop, failing: int) -> None:
    workshop.die("a", "b", "c", error=KEY_ERROR)
    drain_with(workshop, UnsettledBroker(workshop, failing=failing))
    workshop.cycle()
    assert restore(workshop)["restored"] == 0, "it may be leased still, and come later"
    workshop.advance(hours=2)
    workshop.cycle()
    found = restore(workshop)
    assert (found["restored"], found["still_there"], found["unknown"]) == (3, 0, 0)
    assert sorted(workshop.bodies("orders-dlq")) == [b"a", b"b", b"c"], "each once"
    assert workshop.audit() == []


@pytest.mark.parametrize("refused", [True, False])
def test_a_copy_that_comes_again_and_is_not_settled_again_is_not_put_back(workshop: Workshop, refused: bool) -> None:
    """A copy that failed may be gone all the same: its lease may have ended before it was settled."""
    workshop.die("a", error=KEY_ERROR)
    for _ in range(3):
        error = PermissionRefused("DeleteMessageBatch on orders-dlq") if refused else None
        drain_with(workshop, UnsettledBroker(workshop, error=error, failing=1))
        found = restore(workshop)
        assert (found["restored"], found["still_there"], found["unknown"]) == (0, int(refused), int(not refused))
        workshop.advance(hours=2)
    assert sum(workshop.states().values()) == 1


def test_what_was_settled_when_the_run_died_is_put_back_once_its_queue_was_seen_empty(workshop: Workshop) -> None:
    """Killed between settling and writing it down."""
    workshop.die("a", error=KEY_ERROR)
    run = workshop.begin()
    pipeline.drain(workshop.settings, run, **workshop.options())
    with workshop.ledger.write() as connection:
        connection.execute(sql("update staging_batches set state = 'recorded', settled_copies = 0, settled_at = null"))
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    assert restore(workshop)["unknown"] == 1
    workshop.advance(hours=2)
    workshop.cycle()
    found = restore(workshop)
    assert (found["restored"], found["still_there"], found["unknown"]) == (1, 0, 0)
    assert workshop.bodies("orders-dlq") == [b"a"]


def test_a_copy_that_may_be_a_second_staging_is_told(unfinished: Workshop) -> None:
    with unfinished.ledger.write() as connection:
        connection.execute(
            sql(
                "insert into repeat_copies (copy_id, route, source, kind, message_id, broker_message_id, seen_at)"
                " select message_id + 500, route, source, 'suspected', message_id, broker_message_id, changed_at"
                " from messages where state = 'waiting'"
            )
        )
    found = restore(unfinished)
    assert (found["restored"], found["suspected"]) == (3, 1)


def test_a_restore_of_a_group_counts_what_is_of_that_group(unfinished: Workshop) -> None:
    ((asked,), (waiting,)) = unfinished.query("select distinct group_id from messages order by group_id")
    ((doubtful,),) = unfinished.query("select message_id from messages where state = 'waiting'")
    with unfinished.ledger.write() as connection:
        connection.execute(
            sql(
                "insert into repeat_copies (copy_id, route, source, kind, message_id, broker_message_id, seen_at)"
                " select message_id + 500, route, source, 'suspected', message_id, broker_message_id, changed_at"
                f" from messages where message_id = {doubtful}"
            )
        )
        connection.execute(sql(f"update messages set {entering('unknown')} where message_id = {doubtful}"))

    def would(**part: Any) -> tuple[int, ...]:
        lease = unfinished.settings.route("orders").drain.lease
        with unfinished.ledger.read() as connection:
            return restore_stage.would_restore(
                unfinished.ledger, connection, "orders", Selection(**part), leased_for=lease
            )

    assert would() == (2, 0, 1, 1)
    assert would(groups=(waiting,)) == (0, 0, 1, 1)
    assert would(groups=(asked,)) == (2, 0, 0, 0)
    found = restore(unfinished, groups=(asked,))
    assert (found["restored"], found["unknown"], found["suspected"]) == (2, 0, 0)
    found = restore(unfinished, groups=(waiting,))
    assert (found["restored"], found["unknown"], found["suspected"]) == (0, 1, 1)


def test_a_restore_of_a_group_counts_what_the_broker_kept_of_that_group(workshop: Workshop) -> None:
    workshop.die("a", error=KEY_ERROR)
    workshop.cycle()
    ((asked,),) = workshop.query("select distinct group_id from messages")
    workshop.die("b", error=THROTTLED)
    drain_with(workshop, UnsettledBroker(workshop, error=SettlementFailed("no answer")))
    workshop.cycle()
    found = restore(workshop, groups=(asked,))
    assert (found["restored"], found["unknown"] + found["still_there"]) == (1, 0)
    found = restore(workshop)
    assert (found["restored"], found["unknown"] + found["still_there"]) == (0, 1)


# --- what may be in two places --------------------------------------------------------------------------------


class Lost:
    """A broker that takes what is published, and whose answer is lost; ``meanwhile`` is called in between."""

    def __init__(
        self, workshop: Workshop, meanwhile: Callable[[], None] = lambda: None, *, answer: bool = False
    ) -> None:
        self._broker, self._meanwhile, self._answer = workshop.broker, meanwhile, answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def publish(self, queue: str, messages: Any) -> Any:
        results = self._broker.publish(queue, messages)
        self._meanwhile()
        if self._answer:
            return results
        raise BrokerUnavailable("connection lost")


def restore_and_lose(
    workshop: Workshop, meanwhile: Callable[[], None] = lambda: None, *, ahead: timedelta = timedelta(0)
) -> dict[str, Any]:
    """A restore that never hears an answer, by a process whose clock is so far ``ahead``."""
    run = workshop.begin(even_if_paused=True)
    try:
        return pipeline.restore(
            workshop.settings, run, clock=lambda: workshop.now() + ahead, broker=Lost(workshop, meanwhile)
        )
    finally:
        pipeline.finish(workshop.settings, run, "failed", workshop.now)


def decide(
    workshop: Workshop, decision: str | None, where: str = "status <> 'applied'", by: str = "ana", **more: Any
) -> None:
    with workshop.ledger.write() as connection:
        connection.execute(
            sql(
                "update escalated_messages set decision = :decision, decided_by = :by, note = 'because',"
                f" corrected_body = :corrected where {where}"
            ),
            {"decision": decision, "by": by, "corrected": None, **more},
        )


def rows(workshop: Workshop) -> list[tuple[Any, ...]]:
    return workshop.query(
        "select status, decision, decided_by, suggested_decision, reason, refusal from escalated_messages"
        " order by escalation_id"
    )


def life(workshop: Workshop) -> list[str]:
    """What ``redrive trace`` tells of the first message."""
    with workshop.ledger.read() as connection:
        ((first,),) = connection.execute(sql("select min(message_id) from messages"))
        (one,) = inspecting.trace(connection, str(first))
    return [event["what"] for event in one["timeline"]]


@pytest.mark.server
class TestWhereSomebodyIsAtLunchOverADecision:
    """On PostgreSQL: SQLite has one writer at a time."""

    OVER_A = "update escalated_messages set decision = 'redeliver', decided_by = 'ana' where payload = 'a'"

    @pytest.fixture
    def shop(self, tmp_path: Path, postgres_database: str) -> Iterator[Workshop]:
        shop = Workshop(tmp_path, postgres_database)
        escalate_two_of_three(shop)
        yield shop
        shop.ledger.close()

    def test_a_restore_leaves_that_one_to_them(self, shop: Workshop) -> None:
        with lunch(shop, self.OVER_A) as person:
            assert in_time(lambda: restore(shop))["restored"] == 2
            assert shop.states() == {"discarded": 2, "escalated": 1}
            person.commit()
        assert shop.review()["released"] == 1

    def test_runs_go_on_after_a_restore_whose_answer_was_lost(self, shop: Workshop) -> None:
        with ExitStack() as stack:
            in_time(lambda: restore_and_lose(shop, lambda: stack.enter_context(lunch(shop, self.OVER_A))))
            assert shop.consume(queue="orders-dlq") == 3
            in_time(shop.cycle)
            assert shop.states() == {"restore_unknown": 2, "restoring": 1}
        shop.cycle()
        assert shop.states() == {"restore_unknown": 3}
        assert shop.query("select distinct question, decision from escalated_messages") == [("restored", None)]


def test_what_may_be_back_says_so_in_review_whatever_it_was_before(unfinished: Workshop) -> None:
    restore_and_lose(unfinished)
    assert unfinished.states() == {"restore_unknown": 3}
    told = rows(unfinished)
    assert [row[:4] for row in told] == [("open", None, None, "look")] * 3
    for row, before in zip(told, ("escalated", "escalated", "waiting"), strict=True):
        assert row[4].startswith(
            "It was being put back into its queue orders-dlq and may be there already. Before that it was " + before
        )
    assert unfinished.query("select restore_unknown, copies_difference, messages_difference from message_balance") == [
        (3, 0, 0)
    ]
    assert unfinished.audit() == []


def test_a_decision_made_before_a_restore_whose_answer_was_lost_is_asked_again(workshop: Workshop) -> None:
    """The broker has it: what ana decided before would be a second copy."""
    workshop.die("pay 100 EUR", error=KEY_ERROR)
    workshop.cycle()
    decide(workshop, "redeliver")
    restore_and_lose(workshop)
    assert workshop.bodies("orders-dlq") == [b"pay 100 EUR"]
    ((status, decision, _, suggested, _, refusal),) = rows(workshop)
    assert (status, decision, suggested) == ("reopened", None, "look")
    assert refusal == "A restore came after this decision of ana: redeliver. Decide again."
    workshop.consume(queue="orders-dlq")
    workshop.advance(minutes=30)
    workshop.review()
    workshop.cycle()
    assert workshop.bodies("orders") == []


@pytest.mark.parametrize("decision", ["redeliver", "edit"])
def test_an_ordinary_decision_about_what_may_be_back_is_refused_with_a_sentence(
    unfinished: Workshop, decision: str
) -> None:
    restore_and_lose(unfinished)
    decide(unfinished, decision, corrected="other" if decision == "edit" else None)
    assert unfinished.review() | {"seconds": 0} == {"released": 0, "discarded": 0, "refused": 3, "seconds": 0}
    assert unfinished.states() == {"restore_unknown": 3}
    assert {(row[0], row[5]) for row in rows(unfinished)} == {
        (
            "refused",
            "A restore may have put it back into orders-dlq, so sending it may double it. Look there: if it is there,"
            " discard; if not, not_there, and then decide again.",
        )
    }
    unfinished.consume(queue="orders-dlq")
    unfinished.advance(minutes=30)
    unfinished.cycle()
    assert unfinished.bodies("orders") == []


def test_who_looked_and_did_not_find_it_releases_it_and_decides_again(unfinished: Workshop) -> None:
    restore_and_lose(unfinished)
    unfinished.consume(queue="orders-dlq")  # somebody else's doing
    decide(unfinished, "not_there")
    unfinished.review()
    assert unfinished.states() == {"escalated": 3}
    assert {row[:2] + row[5:] for row in rows(unfinished)} == {
        ("reopened", None, "ana looked into orders-dlq, and it is not there. Decide what becomes of it.")
    }
    decide(unfinished, "redeliver")
    unfinished.review()
    unfinished.cycle()
    assert sorted(unfinished.bodies("orders")) == [b"a", b"b", b"c"]
    assert unfinished.audit() == []


def test_who_found_it_there_discards_it(unfinished: Workshop) -> None:
    restore_and_lose(unfinished)
    decide(unfinished, "discard")
    unfinished.review()
    assert unfinished.states() == {"discarded": 3}
    assert {row[0] for row in rows(unfinished)} == {"applied"}
    assert unfinished.audit() == []


def test_not_there_answers_only_what_is_in_doubt(unfinished: Workshop) -> None:
    decide(unfinished, "not_there")
    unfinished.review()
    assert unfinished.states() == {"escalated": 2, "waiting": 1}
    assert {(row[0], (row[5] or "")[:9]) for row in rows(unfinished)} == {("refused", "not_there")}


@pytest.mark.parametrize("decision", ["redeliver", "discard", "not_there"])
def test_a_decision_made_while_the_broker_has_it_does_not_come_through(workshop: Workshop, decision: str) -> None:
    """People write SQL at any moment, also between the send and the word of the broker."""
    workshop.die("a", error=KEY_ERROR)
    workshop.cycle()
    restore_and_lose(workshop, lambda: decide(workshop, decision))
    workshop.review()
    assert workshop.states() == {"restore_unknown": 1}
    ((status, decided, _, _, _, refusal),) = rows(workshop)
    assert (status, decided) == ("reopened", None)
    assert refusal == f"A restore came after this decision of ana: {decision}. Decide again."


@pytest.mark.parametrize("decision", [None, "discard", "edit"])
def test_what_was_released_is_not_decided_otherwise_while_a_restore_has_it(
    workshop: Workshop, decision: str | None
) -> None:
    """Its queue may not take it, and then it is sent as it was released: nobody may have been told otherwise."""
    workshop.die("a", error=KEY_ERROR)
    workshop.cycle()
    decide(workshop, "redeliver")
    workshop.review()

    def change_ones_mind() -> None:
        assert workshop.query(f"select state, plan, {IN_REVIEW} from messages") == [("restoring", "release", False)]
        with pytest.raises(DatabaseError, match="taken up already"):
            decide(workshop, decision, corrected="b" if decision == "edit" else None)

    workshop.world.faults.publishes += ["retry"]
    run = workshop.begin()
    broker = Lost(workshop, change_ones_mind, answer=True)
    assert pipeline.restore(workshop.settings, run, clock=workshop.now, broker=broker)["not_restored"] == 1
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    assert workshop.query("select state, plan from messages") == [("waiting", "release")]
    workshop.cycle()
    assert workshop.bodies("orders") == [b"a"]
    assert [row[:3] for row in rows(workshop)] == [("applied", "redeliver", "ana")]
    assert workshop.audit() == []


def test_a_decision_that_a_restore_came_before_is_not_shown_as_carried_out(workshop: Workshop) -> None:
    workshop.die("a", error=KEY_ERROR)
    workshop.cycle()
    run = workshop.begin()
    broker = Lost(workshop, lambda: decide(workshop, "redeliver"), answer=True)
    found = pipeline.restore(workshop.settings, run, clock=workshop.now, broker=broker)
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    assert found["restored"] == 1
    assert workshop.states() == {"discarded": 1}
    ((status, decision, by, _, _, refusal),) = rows(workshop)
    assert (status, decision, by) == ("applied", "discard", "redrive restore")
    assert refusal == "A restore came before this decision of ana: redeliver."


def test_standing_decisions_leave_what_may_be_back_alone(workshop: Workshop) -> None:
    workshop.die("a", error=KEY_ERROR)
    workshop.cycle()
    with workshop.ledger.write() as connection:
        connection.execute(
            sql(
                "insert into standing_decisions (group_id, decision, decided_by, note, created_at, until_at)"
                " select group_id, 'redeliver', 'ana', 'always', :made_at, :until_at from messages"
            ),
            {"made_at": workshop.now() - timedelta(days=1), "until_at": workshop.now() + timedelta(days=9)},
        )
    restore_and_lose(workshop)
    workshop.consume(queue="orders-dlq")
    workshop.review()
    workshop.cycle()
    assert workshop.states() == {"restore_unknown": 1}
    assert workshop.bodies("orders") == []


def test_a_send_of_which_nobody_knows_is_not_put_back_from_review(workshop: Workshop) -> None:
    """It may be with the consumer: back in its queue it would be the second one."""
    workshop.die("a", error=REFUSED)
    workshop.broker = Lost(workshop)  # type: ignore[assignment]
    workshop.cycle()
    workshop.broker = workshop.broker._broker  # type: ignore[attr-defined]
    assert workshop.states() == {"unknown": 1}
    for _ in range(3):
        workshop.advance(hours=1)
        workshop.cycle()
    assert workshop.states() == {"escalated": 1}
    assert workshop.bodies("orders") == [b"a"]
    found = restore(workshop)
    assert (found["restored"], found["not_restored"], found["unknown"]) == (0, 0, 1)
    assert workshop.bodies("orders-dlq") == []
    decide(workshop, "redeliver")
    workshop.review()
    assert restore(workshop)["unknown"] == 1, "released, and not sent yet"


@pytest.mark.parametrize("ahead", [timedelta(0), timedelta(minutes=2)], ids=["", "by a clock that is ahead"])
def test_a_copy_with_the_redrive_id_that_it_came_with_proves_that_it_was_restored(
    workshop: Workshop, ahead: timedelta
) -> None:
    tracked = (Header("error", "String", KEY_ERROR), *tracking_headers("elsewhere-1", 1))
    workshop.world.put("orders-dlq", DeadLetter("", b"a", tracked, origin="orders"))
    workshop.cycle()
    restore_and_lose(workshop, ahead=ahead)
    workshop.cycle()
    assert workshop.states() == {"discarded": 1, "escalated": 1}
    ((first, why),) = workshop.query("select message_id, reason from messages where state = 'discarded'")
    ((second, parent),) = workshop.query("select message_id, parent_id from messages where state = 'escalated'")
    assert parent == first
    assert why == f"It was restored to orders-dlq, and came from there again as message {second}."
    assert [row[:3] for row in rows(workshop)] == [("applied", "discard", "redrive restore"), ("open", None, None)]
    assert workshop.audit() == []


def test_a_copy_with_the_business_key_proves_that_it_was_restored_and_two_keys_are_two(tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    with contextlib.closing(sqlite3.connect(database)) as shop:
        shop.execute("create table processed (message_id text)")
    check = {
        "connection": "shop", "query": "select message_id from processed where message_id in :keys",
        "key": "attribute:message_id",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_SHOP", f"sqlite:///{database}")
        workshop = Workshop(tmp_path, processed_check=check)
        for key in ("k1", "k2"):
            workshop.world.put("orders-dlq", keyed(key))
        workshop.cycle()
        assert workshop.query("select message_key from messages order by message_id") == [("k1",), ("k2",)]
        restore_and_lose(workshop)
        taken = workshop.broker.receive("orders-dlq", limit=1, wait=timedelta(0), lease=timedelta(days=9))
        assert len(taken) == 1, "somebody else takes one of them"
        workshop.cycle()
        assert workshop.query("select message_key, state from messages where parent_id is null order by 1") == [
            ("k1", "restore_unknown"), ("k2", "discarded")
        ]  # fmt: skip
        assert workshop.audit() == []


def test_a_key_that_another_selector_found_proves_no_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check asked by customer when the message was loaded, and now by order, which has the same number."""
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute("create table processed (message_id text)")
    check = {"connection": "shop", "query": "select message_id from processed where message_id in :keys"}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", f"sqlite:///{tmp_path / 'shop.db'}")
    workshop = Workshop(tmp_path, processed_check=check | {"key": "attribute:customer"})
    error = Header("error", "String", KEY_ERROR)
    for customer, order in (("17", "99"), ("18", "17")):
        headers = (error, Header("customer", "String", customer), Header("order", "String", order))
        workshop.world.put("orders-dlq", DeadLetter("", b"same", headers, origin="orders"))
    workshop.cycle()
    restore_and_lose(workshop)
    workshop.broker.receive("orders-dlq", limit=1, wait=timedelta(0), lease=timedelta(days=9))  # somebody takes one
    workshop.settings = workshop.configure(
        workshop.settings.database, processed_check=check | {"key": "attribute:order"}
    )
    workshop.cycle()
    assert workshop.query("select state from messages where parent_id is null order by message_id") == [
        ("restore_unknown",), ("restore_unknown",), ("escalated",)
    ]  # fmt: skip
    assert workshop.audit() == []
    workshop.ledger.close()


def keyed(key: str) -> DeadLetter:
    headers = (Header("error", "String", KEY_ERROR), Header("message_id", "String", key))
    return DeadLetter("", b"same", headers, origin="orders")


def test_a_body_alone_proves_nothing_and_is_told(workshop: Workshop) -> None:
    workshop.die("a", error=KEY_ERROR)
    workshop.cycle()
    restore_and_lose(workshop)
    for _ in range(2):
        workshop.cycle()
        assert workshop.states() == {"restore_unknown": 1, "escalated": 1}
    ((copy,),) = workshop.query("select message_id from messages where state = 'escalated'")
    ((reason,),) = workshop.query(
        "select e.reason from escalated_messages e inner join messages m on m.message_id = e.message_id"
        " where m.state = 'restore_unknown'"
    )
    assert reason.endswith(f" A copy with the same body has come from there since, as message {copy}.")
    assert workshop.audit() == []


def test_a_copy_that_was_drained_before_the_restore_proves_nothing(workshop: Workshop) -> None:
    tracked = (Header("error", "String", KEY_ERROR), *tracking_headers("elsewhere-1", 1))
    letter = DeadLetter("", b"a", tracked, origin="orders")
    workshop.world.put("orders-dlq", letter)
    workshop.cycle()
    workshop.world.put("orders-dlq", letter)
    run = workshop.begin()
    workshop.drain(run)
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    workshop.advance(minutes=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("redrive.stages.classify.load_unclassified", lambda _: 0)
        restore_and_lose(workshop)
    workshop.consume(queue="orders-dlq")
    workshop.cycle()
    assert workshop.states() == {"restore_unknown": 1, "escalated": 1}


@pytest.fixture
def staged(workshop: Workshop) -> Workshop:
    """One message of group 1 is with people; two more were drained and then never classified."""
    workshop.die("first", error=KEY_ERROR)
    workshop.cycle()
    workshop.die("a", "b", error=KEY_ERROR)
    run = workshop.begin()
    workshop.drain(run)
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    workshop.advance(minutes=1)
    return workshop


def test_what_was_never_classified_and_not_put_back_goes_to_people(staged: Workshop) -> None:
    restore_with(staged, Trouble(staged, QueueMissing("orders-dlq")))
    assert staged.states() == {"classified": 2, "escalated": 1}
    staged.advance(minutes=1)
    assert staged.cycle()["redelivered"] == 0
    assert staged.bodies("orders") == [], "nobody knows why they failed"
    assert staged.query("select reason, count(*) from escalated_messages where group_id is null group by reason") == [
        ("It was taken in without being classified, for a restore that did not put it back.", 2)
    ]
    assert staged.audit() == []


@pytest.mark.parametrize("part", [{"limit": 1}, {"groups": (1,)}])
def test_a_restore_of_a_part_leaves_to_the_next_run_what_was_never_classified(
    staged: Workshop, part: dict[str, Any]
) -> None:
    found = restore(staged, **part)
    assert (found["restored"], found["staged"]) == (1, 2)
    staged.advance(minutes=1)
    staged.cycle()
    assert staged.query("select count(*) from messages where cause is null") == [(0,)]
    found = restore(staged)
    assert (found["restored"], found["staged"]) == (3, 0)


def test_trace_tells_every_restore_decision_release_and_reopening(workshop: Workshop) -> None:
    workshop.die("a", error=KEY_ERROR)
    workshop.cycle()
    decide(workshop, "redeliver")
    restore_and_lose(workshop)
    workshop.consume(queue="orders-dlq")
    decide(workshop, "redeliver", by="bob")
    workshop.review()
    decide(workshop, "not_there", by="cem")
    workshop.review()
    decide(workshop, "redeliver", by="dan")
    workshop.review()
    told = life(workshop)
    expected = [
        "decided by ana: redeliver: because",
        "doubt restore: It was being put back into its queue orders-dlq",
        "decided by bob: redeliver: because",
        "refuse decision: A restore may have put it back into orders-dlq",
        "decided by cem: not_there: because",
        "found not to be in its queue (cem): because",
        "decided by dan: redeliver: because",
        "released for delivery (dan): because",
    ]
    for text in expected:
        assert any(what.startswith(text) for what in told), (text, told)
    workshop.advance(minutes=5)
    restore(workshop)
    assert "finish restore: It was restored to orders-dlq." in life(workshop)


def test_trace_tells_what_could_not_be_put_back(workshop: Workshop) -> None:
    workshop.die("a", error=THROTTLED)
    workshop.cycle()
    restore_with(workshop, Trouble(workshop, QueueMissing("orders-dlq")))
    assert any(what.startswith("undo restore: ") and "orders-dlq" in what for what in life(workshop))
