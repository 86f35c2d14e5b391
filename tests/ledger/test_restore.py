"""The way out: every unfinished message goes back into the queue it came from, as it was; what can't is told."""

from typing import Any

import pytest

from redrive.errors import BrokerError, BrokerUnavailable, PermissionRefused, QueueMissing, SettlementFailed
from redrive.ledger.engine import sql
from redrive.message import DeadLetter, Header
from redrive.stages import pipeline
from tests.workshop import KEY_ERROR, REFUSED, THROTTLED, Workshop


def restore(workshop: Workshop) -> dict[str, Any]:
    run = workshop.begin(even_if_paused=True)
    try:
        return pipeline.restore(workshop.settings, run, **workshop.options())
    finally:
        pipeline.finish(workshop.settings, run, "succeeded", workshop.now)


def force(workshop: Workshop, state: str, reason: str | None = None) -> None:
    with workshop.ledger.write() as connection:
        connection.execute(
            sql("update messages set state = :state, reason = :reason"), {"state": state, "reason": reason}
        )


@pytest.fixture
def unfinished(workshop: Workshop) -> Workshop:
    """Two escalated messages and one that waits."""
    workshop.die("a", "b", error=KEY_ERROR)
    workshop.die("c", error=THROTTLED)
    workshop.cycle()
    assert workshop.states() == {"escalated": 2, "waiting": 1}
    assert workshop.bodies("orders-dlq") == []
    return workshop


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
        ("restored to orders-dlq",)
    ]
    assert unfinished.query("select distinct status, decided_by from escalated_messages") == [
        ("applied", "redrive restore")
    ]
    assert unfinished.audit() == []


@pytest.mark.parametrize("state", ["classified", "waiting", "held", "expired"])
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
    before = unfinished.query("select message_id, state, verdict, reason from messages order by message_id")
    run = unfinished.begin()
    with pytest.raises(QueueMissing):
        pipeline.restore(
            unfinished.settings, run, clock=unfinished.now, broker=Trouble(unfinished, QueueMissing("orders-dlq"))
        )
    pipeline.finish(unfinished.settings, run, "failed", unfinished.now)
    assert unfinished.query("select message_id, state, verdict, reason from messages order by message_id") == before


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
    assert unfinished.states() == {"escalated": 3}
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


def test_what_was_never_settled_is_in_its_queue_and_is_not_doubled(workshop: Workshop) -> None:
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
    assert (found["restored"], found["still_there"]) == (0, 1)
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
    """A broker that refuses to settle: with an error, or so many copies of each call."""

    def __init__(self, workshop: Workshop, *, error: BrokerError | None = None, failing: int = 0) -> None:
        self._broker, self._error, self._workshop, self._failing = workshop.broker, error, workshop, failing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def settle(self, queue: str, receipts: Any) -> Any:
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


def test_a_copy_that_comes_again_and_is_not_settled_again_is_still_there(workshop: Workshop) -> None:
    workshop.die("a", error=KEY_ERROR)
    for _ in range(3):
        workshop.broker = UnsettledBroker(workshop, failing=1)  # type: ignore[assignment]
        workshop.cycle()
        found = restore(workshop)
        assert (found["restored"], found["still_there"]) == (0, 1)
        workshop.advance(hours=2)
    assert workshop.states() == {"escalated": 1}


def test_what_was_settled_when_the_run_died_is_put_back_once_its_queue_was_seen_empty(workshop: Workshop) -> None:
    """Killed between settling and writing it down."""
    workshop.die("a", error=KEY_ERROR)
    run = workshop.begin()
    pipeline.drain(workshop.settings, run, **workshop.options())
    with workshop.ledger.write() as connection:
        connection.execute(sql("update staging_batches set state = 'recorded', settled_copies = 0, settled_at = null"))
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    assert restore(workshop)["still_there"] == 1
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
