"""Delays that the broker keeps: handed over early, never too early, and the ledger knows until when."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.brokers.base import Depth
from redrive.brokers.memory import MemoryBroker
from redrive.errors import BrokerUnavailable
from redrive.ledger.selecting import Selection
from redrive.message import DeadLetter, Header
from redrive.stages import claiming, doctor
from tests.stages.test_deliver import deliver
from tests.workshop import REFUSED, THROTTLED, Pipelining, Workshop

#: ``throttled`` waits at first failure, for at most ten minutes.
NATIVE: dict[str, Any] = {"backoff": {"first": "10m", "max": "1h", "native": True}, "rate": {"max_in_flight": 100_000}}
CHECK = {
    "connection": "nowhere",
    "query": "select message_id from processed where message_id in :keys",
    "key": "attribute:message_id",
    "settle_after": "5m",
}


def delayed(tmp_path: Path, count: int = 20, **route: Any) -> Workshop:
    """A workshop after its first run, with messages that have to wait."""
    workshop = Workshop(tmp_path, **(NATIVE | route))
    workshop.die(*[f"{number:02}" for number in range(count)], error=THROTTLED)
    workshop.cycle()
    return workshop


def due(workshop: Workshop) -> list[str]:
    """When each message is due, by the ledger."""
    return [row[0] for row in workshop.query("select next_attempt_at from messages order by message_id")]


def test_the_broker_keeps_delays_and_lets_go_of_each_message_when_it_is_due(tmp_path: Path) -> None:
    workshop = delayed(tmp_path)
    assert workshop.states() == {"sent": 20}, "nothing waits for another run"
    assert workshop.query("select count(*) from redelivery_attempts where due_at = claimed_at") == [(0,)]
    depth = workshop.broker.depth("orders")
    assert (depth.total, depth.delayed) == (20, 20 - (depth.visible or 0))
    known = dict(workshop.query("select message_id & 1048575, due_at from redelivery_attempts"))
    for _ in range(61):
        now = workshop.now().strftime("%Y-%m-%d %H:%M:%S.%f")
        there = {int(body) for body in workshop.bodies("orders")}
        assert there == {number for number, at in known.items() if at is None or at <= now}, "never early, never late"
        workshop.advance(seconds=10)
    assert len(there) == 20


def test_a_delay_counts_from_when_the_broker_got_it_and_not_from_when_it_said_so(tmp_path: Path) -> None:
    workshop = Pipelining(tmp_path, **NATIVE)
    workshop.die(*[f"{number:02}" for number in range(20)], error=THROTTLED)
    run = workshop.planned()

    class Thoughtful(MemoryBroker):
        def ready(self, queue: str, messages: Any) -> Any:
            begin = super().ready(queue, messages)

            def begun() -> Any:
                finish = begin()

                def over() -> Any:
                    workshop.advance(seconds=30)
                    return finish()

                return over

            return begun

    workshop.broker = Thoughtful(workshop.world)
    deliver(workshop, run)
    known = dict(workshop.query("select message_id & 1048575, due_at from redelivery_attempts"))
    for _ in range(61):
        now = workshop.now().strftime("%Y-%m-%d %H:%M:%S.%f")
        there = {int(body) for body in workshop.bodies("orders")}
        assert there == {number for number, at in known.items() if at is None or at <= now}
        workshop.advance(seconds=10)
    assert len(there) == 20


def test_without_native_the_ledger_keeps_them(tmp_path: Path) -> None:
    workshop = delayed(tmp_path, backoff={"first": "10m", "max": "1h"})
    assert workshop.states()["waiting"] >= 18
    assert workshop.query("select count(*) from redelivery_attempts where due_at is not null") == [(0,)]


def test_longer_waits_stay_in_the_ledger_until_the_last_quarter_of_an_hour(tmp_path: Path) -> None:
    workshop = delayed(tmp_path, 40, backoff={"first": "1h", "max": "1h", "native": True})
    horizon = (workshop.now() + claiming.NATIVE_DELAY_LIMIT).strftime("%Y-%m-%d %H:%M:%S.%f")
    early = workshop.query("select count(*) from messages where next_attempt_at <= :horizon", horizon=horizon)[0][0]
    assert 5 <= early <= 15
    assert workshop.states() == {"sent": early, "waiting": 40 - early}
    workshop.advance(minutes=50)
    workshop.cycle()
    assert workshop.states().get("waiting", 0) == 0


def test_a_requeue_goes_at_once(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, **NATIVE)
    workshop.die("a", error=REFUSED)
    workshop.cycle()
    assert workshop.bodies("orders") == [b"a"]
    assert workshop.query("select due_at from redelivery_attempts") == [(None,)]


@pytest.mark.parametrize("reason", ["order", "broker"])
def test_where_it_would_not_be_exact_the_ledger_keeps_them(tmp_path: Path, reason: str) -> None:
    workshop = Workshop(tmp_path, **NATIVE, **({"order_by": "key"} if reason == "order" else {}))
    if reason == "broker":
        workshop.broker.capabilities = replace(workshop.broker.capabilities, native_delay=None)
    for number in range(10):
        headers = (Header("error", "String", THROTTLED),)
        workshop.world.put("orders-dlq", DeadLetter("", b"x", headers, origin="orders", ordering_key=f"k{number}"))
    workshop.cycle()
    assert workshop.query("select count(*) from redelivery_attempts where due_at is not null") == [(0,)]
    assert workshop.states()["waiting"] >= 8


def test_nothing_is_presumed_before_it_was_due(tmp_path: Path) -> None:
    workshop = delayed(tmp_path, canary={"first": 50, "observe": "1m"})
    last = max(at for at in due(workshop))
    for _ in range(10):
        workshop.consume()
        workshop.cycle()
        presumed = workshop.states().get("presumed", 0)
        if presumed:
            break
        workshop.advance(minutes=2)
    assert presumed == 20
    assert workshop.now().strftime("%Y-%m-%d %H:%M:%S") > last, "and a minute beyond that"
    ((observed,),) = workshop.query("select min(observed_from) from delivery_slices where sent > 0")
    assert observed > last


def test_a_return_counts_from_when_it_was_due(tmp_path: Path) -> None:
    workshop = delayed(tmp_path, delay_attempts=1)
    workshop.advance(minutes=10)
    workshop.consume(lambda _: THROTTLED)
    workshop.cycle()
    assert workshop.states() == {"escalated": 20}
    seconds = workshop.query(
        "select max((julianday(outcome_at) - julianday(coalesce(due_at, sent_at))) * 86400) from redelivery_attempts"
    )[0][0]
    assert seconds <= 600


def test_a_send_that_the_broker_did_not_take_is_not_due_any_earlier(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, **NATIVE)
    workshop.die(*[f"{number:02}" for number in range(20)], error=THROTTLED)
    workshop.world.faults.publishes.extend(["retry"] * 20)
    workshop.cycle()
    assert workshop.states() == {"waiting": 20}
    planned = [row for row in due(workshop) if row > (workshop.now() + timedelta(minutes=1)).strftime("%Y-%m-%d %H:%M")]
    assert len(planned) >= 15, "a backoff of minutes did not become a retry of seconds"
    workshop.cycle()
    assert workshop.states()["sent"] >= 15
    assert workshop.audit() == []


def test_an_unknown_early_send_is_not_repeated_before_it_could_have_come_back(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, **NATIVE, on_unknown="resend", canary={"first": 50, "observe": "1m"})
    workshop.die("a", "b", error=THROTTLED)
    workshop.world.faults.lost_responses = 2
    workshop.cycle()
    assert workshop.states() == {"unknown": 2}
    ((last,),) = workshop.query("select max(due_at) from redelivery_attempts")
    while workshop.now().strftime("%Y-%m-%d %H:%M:%S") < last:
        workshop.cycle()
        ((attempted,),) = workshop.query(
            "select count(*) from redelivery_attempts where due_at = :last and sent_at is not null", last=last
        )
        assert attempted == 0
        workshop.advance(minutes=2)
    workshop.advance(minutes=2)
    workshop.cycle()
    workshop.cycle()
    assert workshop.states() == {"sent": 2}


def test_a_processed_check_is_not_asked_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        "redrive.connections.processed_check.Checker.processed", lambda _, keys: set(asked.extend(keys) or ())
    )
    workshop = Workshop(tmp_path, **NATIVE, processed_check=CHECK)
    now = workshop.time.now
    workshop.die("fresh", error=THROTTLED, dead_lettered_at=now)
    workshop.die("settled", error=THROTTLED, dead_lettered_at=now - 600_000_000)
    workshop.cycle()
    assert asked == ["settled"]
    assert workshop.states() == {"sent": 1, "waiting": 1}


def test_a_delay_queues_messages_come_to_the_second(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, **NATIVE)
    workshop.die("later", queue="orders-delay", error=None, dead_lettered_at=workshop.time.now)
    workshop.cycle()
    assert workshop.states() == {"sent": 1}
    assert workshop.bodies("orders") == []
    workshop.advance(seconds=30)
    assert workshop.bodies("orders") == [b"later"]


def test_with_attributes_too(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, **NATIVE)
    for tenant in ("acme", "umbrella"):
        headers = (Header("tenant", "String", tenant), Header("error", "String", THROTTLED))
        workshop.world.put("orders-dlq", DeadLetter("", tenant.encode(), headers, origin="orders"))
    workshop.cycle(Selection(attributes=(("tenant", "acme"),)))
    assert workshop.states() == {"sent": 1, "classified": 1}


def test_a_crash_between_claim_and_send_leaves_them_waiting_for_their_own_time(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, **NATIVE)
    workshop.die("a", "b", error=THROTTLED)

    def gone(*_: object) -> Any:
        raise BrokerUnavailable("orders: gone")

    workshop.broker.depth, depth = gone, workshop.broker.depth  # type: ignore[method-assign]
    run = workshop.begin()
    with pytest.raises(BrokerUnavailable):
        list(workshop.stages(run))
    workshop.broker.depth = depth  # type: ignore[method-assign]
    workshop.advance(minutes=2)
    workshop.cycle()
    assert workshop.states() == {"sent": 2}
    assert workshop.audit() == []


def test_a_broker_that_keeps_some_delays_only_gets_the_next_longer_one_and_the_ledger_knows(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, **NATIVE)
    workshop.broker.capabilities = replace(workshop.broker.capabilities, native_delays=(120, 240, 900))
    workshop.die(*[f"{number:02}" for number in range(20)], error=THROTTLED)
    workshop.cycle()
    kept = workshop.query(
        "select distinct cast(round((julianday(due_at) - julianday(sent_at)) * 86400) as integer)"
        " from redelivery_attempts where due_at is not null order by 1"
    )
    assert kept == [(120,), (240,), (900,)]
    assert workshop.query(
        "select count(*) from redelivery_attempts join messages using (message_id) where due_at < next_attempt_at"
    ) == [(0,)], "never early"
    assert workshop.query("select last_sent_at from delivery_slices") == workshop.query(
        "select max(due_at) from redelivery_attempts"
    )


class Elsewhere(MemoryBroker):
    """Keeps what is delayed in another queue."""

    delayed: int | None = 0

    def depth(self, queue: str) -> Depth:
        return super().depth(queue)._replace(delayed=self.delayed)


def test_what_the_broker_keeps_where_nobody_counts_it_fills_the_destination_too(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, **(NATIVE | {"rate": {"max_in_flight": 8}}))
    workshop.broker = Elsewhere(workshop.world)
    workshop.die(*[f"{number:02}" for number in range(40)], error=THROTTLED)
    run = workshop.planned()
    assert deliver(workshop, run)["redelivered"] <= 8
    assert workshop.states()["waiting"] >= 32
    assert deliver(workshop, run)["redelivered"] <= 8, "what has come since then may be followed by as much"


def test_what_the_broker_keeps_and_can_not_count_fills_the_destination_until_its_outcome_is_known(
    tmp_path: Path,
) -> None:
    """What lies ready there is told, and that says nothing about what may come any moment."""
    workshop = Workshop(tmp_path, **(NATIVE | {"rate": {"max_in_flight": 80}}))  # a tenth of it for what was throttled
    workshop.broker = broker = Elsewhere(workshop.world)
    broker.delayed = None
    workshop.die(*[f"{number:02}" for number in range(40)], error=THROTTLED)
    run = workshop.planned()
    assert [deliver(workshop, run)["redelivered"] for _ in range(3)] == [8, 0, 0]


def test_the_doctor_says_where_native_has_no_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop = Workshop(tmp_path, **NATIVE)
    monkeypatch.setattr(doctor, "open_broker", lambda *_: workshop.broker)

    def said() -> list[str]:
        findings = doctor.examine(workshop.settings, ["orders"])
        return [f.text for f in findings if f.subject == "orders: backoff.native"]

    assert said() == []
    workshop.broker.capabilities = replace(workshop.broker.capabilities, native_delay=None)
    assert said() == ["orders: the broker keeps no delays there; delays stay in the ledger"]
