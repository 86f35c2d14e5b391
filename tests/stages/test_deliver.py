"""Redelivery under control: rates, room at the destination, pauses, canaries and breakers."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from redrive.brokers.base import UNKNOWN_DEPTH, Depth, Publication
from redrive.brokers.memory import MemoryBroker
from redrive.errors import (
    BrokerError,
    BrokerUnavailable,
    LeaseLost,
    LedgerError,
    LedgerUnavailable,
    PermissionRefused,
    QueueMissing,
    StagingError,
)
from redrive.ledger import leases
from redrive.ledger.delivery import lanes, windows
from redrive.ledger.engine import parse_instant, sql
from redrive.ledger.selecting import Selection
from redrive.stages import deliver as deliver_stage
from redrive.stages import pipeline, sending
from redrive.stages.beside import Worker
from redrive.stages.context import Context, Run
from tests.turns import Turns
from tests.workshop import KEY_ERROR, REFUSED, THROTTLED, Pipelining, Workshop

STRANGE = "the flux capacitor said hm"  # nothing is known of it: a canary first


class Watched(MemoryBroker):
    """Remembers what was published when, and does something after each publish."""

    def __init__(self, workshop: Workshop, after: Any = lambda: None) -> None:
        super().__init__(workshop.world)
        self._workshop = workshop
        self._after = after
        self.published: list[tuple[float, int]] = []

    def publish(self, queue: str, messages: Any) -> Any:
        self.published.append((self._workshop.time.now / 1e6, len(messages)))
        results = super().publish(queue, messages)
        self._after()
        return results


def deliver(workshop: Workshop, run: Run, *, on_sleep: Any = lambda: None, **options: Any) -> dict[str, Any]:
    """Deliver with simulated time: sleeping moves the clock."""

    def sleep(seconds: float) -> None:
        workshop.advance(seconds=seconds)
        on_sleep()

    with Context(workshop.settings, run, clock=workshop.now, broker=workshop.broker) as context:
        return deliver_stage.deliver(context, monotonic=lambda: workshop.time.now / 1e6, sleep=sleep, **options)


def bodies(count: int) -> list[str]:
    return [f"{number:04}" for number in range(count)]


def assert_rate(broker: Watched, per_second: int) -> None:
    start = broker.published[0][0]
    for moment, _ in broker.published:
        until_then = sum(count for at, count in broker.published if at <= moment)
        assert until_then <= per_second + per_second * (moment - start) + 1, "at most a second's worth ahead"


def test_a_rate_is_kept(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, rate={"per_second": 10}, deliver={"confirm_window": 5})
    workshop.die(*bodies(60), error=REFUSED)
    run = workshop.planned()
    broker = workshop.broker = Watched(workshop)
    assert deliver(workshop, run)["redelivered"] == 60
    assert_rate(broker, 10)
    assert broker.published[-1][0] - broker.published[0][0] <= 6


def test_what_is_due_is_not_looked_up_for_each_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten million it takes seconds, in which a slow rate would have let a slice through."""
    workshop = Workshop(tmp_path, rate={"per_second": 10})
    workshop.die(*bodies(1000), error=REFUSED)
    run = workshop.planned()
    workshop.broker = Watched(workshop)
    looked_up = list[float]()
    of_due = lanes.of_due

    def slowly(*args: Any, **options: Any) -> list[lanes.Lane]:
        looked_up.append(workshop.time.now / 1e6)
        workshop.advance(seconds=1.5)
        return of_due(*args, **options)

    monkeypatch.setattr(lanes, "of_due", slowly)
    assert deliver(workshop, run)["redelivered"] == 1000
    assert [b - a > 75 for a, b in itertools.pairwise(looked_up)] == [True, False], "once more when all is sent"


def test_a_broker_that_deduplicates_drops_no_message_for_another(tmp_path: Path) -> None:
    """They have one body and one id of their producer's, and die together; so do their second tries."""
    workshop = Workshop(tmp_path)
    workshop.world.capabilities = replace(workshop.world.capabilities, native_dedupe=timedelta(hours=1))
    workshop.broker = MemoryBroker(workshop.world)
    workshop.die(*(["tick"] * 3), properties=(("dedup_id", "0f3c9a"),))
    for attempt in (1, 2):
        assert workshop.cycle()["redelivered"] == 3, attempt
        assert workshop.consume(lambda _: REFUSED) == 3, attempt
        workshop.advance(minutes=2)


def test_a_full_destination_is_waited_for_and_never_overfilled(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, rate={"max_in_flight": 8})
    workshop.die(*bodies(30), error=REFUSED)
    run = workshop.planned()
    fullest = []
    broker = workshop.broker = Watched(workshop, lambda: fullest.append(workshop.broker.depth("orders").total))
    assert deliver(workshop, run, on_sleep=workshop.consume)["redelivered"] == 30
    assert max(fullest) == 8
    assert len(broker.published) >= 4


class Turning(Watched):
    """Lets the other task work before and after each publish."""

    def __init__(self, workshop: Workshop, turns: Turns, seen: list[int | None]) -> None:
        super().__init__(workshop, lambda: seen.append(workshop.broker.depth("orders").total))
        self._turns = turns

    def publish(self, queue: str, messages: Any) -> Any:
        self._turns.pass_on()
        results = super().publish(queue, messages)
        self._turns.pass_on()
        return results


class Silent(Turning):
    """Tells no depth."""

    def depth(self, queue: str) -> Depth:
        return UNKNOWN_DEPTH


@pytest.mark.parametrize("broker", [Turning, Silent])
@pytest.mark.parametrize("most", [7, 8])
def test_tasks_that_deliver_side_by_side_share_the_room_of_the_destination(
    tmp_path: Path, broker: type[Turning], most: int
) -> None:
    workshop = Workshop(tmp_path, rate={"max_in_flight": most}, deliver={"slice": 5, "confirm_window": 2})
    workshop.die(*bodies(30), error=REFUSED)
    run = workshop.planned()
    turns, seen = Turns(), list[int | None]()

    def task(shard: int) -> Any:
        client = broker(workshop, turns, seen)
        with Context(workshop.settings, run, clock=workshop.now, broker=client) as context:
            sleep = lambda seconds: (workshop.advance(seconds=seconds), turns.pass_on())  # noqa: E731
            return deliver_stage.deliver(
                context, shard=shard, shards=3, monotonic=lambda: workshop.time.now / 1e6, sleep=sleep
            )

    counts = turns.run(*[lambda shard=shard: task(shard) for shard in range(3)])
    assert sum(one["redelivered"] for one in counts) == most
    assert workshop.states() == {"sent": most, "waiting": 30 - most}
    if broker is Turning:
        assert max(one or 0 for one in seen) == most


@pytest.mark.parametrize("kind", [Workshop, Pipelining])
def test_where_nothing_is_confirmed_one_window_is_in_doubt_and_the_rest_waits(
    tmp_path: Path, kind: type[Workshop]
) -> None:
    workshop = kind(tmp_path, deliver={"confirm_window": 10})
    workshop.die(*bodies(50))
    workshop.world.faults.publishes.extend(["unknown", "retry"] * 5 + ["unknown"] * 40)
    report = workshop.cycle()

    assert (report["unknown"], report["redelivered"]) == (5, 0)
    assert workshop.states() == {"unknown": 5, "waiting": 45}


def test_a_destination_that_takes_one_message_at_a_time_gets_them_all_and_asks_nobody(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    publish = workshop.broker.publish

    def throttled(queue: str, messages: Any) -> Any:
        behind = [Publication("retry", detail="RequestThrottled: Rate exceeded")] * (len(messages) - 1)
        return publish(queue, messages[:1]) + behind

    workshop.broker.publish = throttled  # type: ignore[method-assign]
    workshop.die(*bodies(8))
    for _ in range(8):
        workshop.cycle()
        workshop.advance(minutes=1)
    assert len(workshop.bodies("orders")) == 8
    assert workshop.query("select count(*) from escalated_messages") == [(0,)]


class Choosy(MemoryBroker):
    """Never takes some messages, and says that it may do so later; counts how often it was asked."""

    def __init__(self, workshop: Workshop, *never: bytes) -> None:
        super().__init__(workshop.world)
        self.never, self.asked = never, 0

    def publish(self, queue: str, messages: Any) -> Any:
        self.asked += 1
        answers = iter(super().publish(queue, [one for one in messages if one.body not in self.never]))
        return [Publication("retry", detail="busy") if one.body in self.never else next(answers) for one in messages]


@pytest.mark.parametrize("limits", [{"confirm_window": 1}, {"slice": 1}, {"confirm_window": 2}], ids=str)
def test_what_a_destination_never_takes_keeps_nothing_behind_it(tmp_path: Path, limits: dict[str, int]) -> None:
    workshop = Workshop(tmp_path, deliver=limits)
    workshop.die(*bodies(30))
    first, second = bodies(30)[:2]
    workshop.broker = Choosy(workshop, first.encode(), second.encode())
    assert workshop.cycle()["redelivered"] == 28
    assert workshop.states() == {"sent": 28, "waiting": 2}


def test_a_destination_that_takes_nothing_is_left_after_a_few(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, deliver={"confirm_window": 1})
    workshop.die(*bodies(30))
    workshop.broker = broker = Choosy(workshop, *(one.encode() for one in bodies(30)))
    workshop.cycle()
    assert broker.asked == sending.NONE_TAKEN
    assert workshop.states() == {"waiting": 30}


def test_what_is_behind_a_message_of_unknown_fate_waits_and_asks_nobody(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    workshop.die(*bodies(8), ordering_key="customer-7")
    for _ in range(4):
        workshop.world.faults.lost_responses = 1
        workshop.cycle()
        workshop.advance(minutes=1)
    workshop.cycle()
    reasons = workshop.query("select distinct reason from escalated_messages")
    assert [reason[:12] for (reason,) in reasons] == ["Nobody knows"]
    assert len(workshop.bodies("orders")) == 8


def test_a_destination_that_stays_full_is_given_up_and_the_rest_waits(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, rate={"max_in_flight": 8})
    workshop.die(*bodies(30), error=REFUSED)
    run = workshop.planned()
    before = workshop.time.now
    assert deliver(workshop, run)["redelivered"] == 8
    assert workshop.states() == {"sent": 8, "waiting": 22}
    assert (workshop.time.now - before) / 1e6 <= 2 * deliver_stage.GIVE_UP


def test_slow_causes_have_a_rate_of_their_own_and_do_not_slow_the_others(tmp_path: Path) -> None:
    causes = {"throttled": {"verdict": "requeue", "rate": {"per_second": 2}}}
    workshop = Workshop(tmp_path, causes=causes, rate={"per_second": 1000})
    workshop.die(*[f"slow {i}" for i in range(12)], error=THROTTLED)
    workshop.die(*bodies(50), error=REFUSED)
    run = workshop.planned()
    broker = workshop.broker = Watched(workshop)
    assert deliver(workshop, run)["redelivered"] == 62
    start = broker.published[0][0]
    assert sum(count for at, count in broker.published if at == start) >= 50, "all others go at once"
    assert broker.published[-1][0] - start >= 4.5, "12 at 2 per second, two of them at once"


def test_all_causes_together_keep_to_the_routes_rate(tmp_path: Path) -> None:
    causes = {"throttled": {"verdict": "requeue", "rate": {"per_second": 10}}}
    workshop = Workshop(tmp_path, causes=causes, rate={"per_second": 10}, deliver={"confirm_window": 5})
    workshop.die(*[f"slow {i}" for i in range(30)], error=THROTTLED)
    workshop.die(*bodies(30), error=REFUSED)
    run = workshop.planned()
    broker = workshop.broker = Watched(workshop)
    assert deliver(workshop, run)["redelivered"] == 60
    assert_rate(broker, 10)


def limited(workshop: Workshop, limit: int) -> Run:
    """A run that may send so many of what waits, and is about to deliver."""
    pipeline.finish(workshop.settings, workshop.planned(), "succeeded", workshop.now)
    return workshop.begin(selection=Selection(limit=limit))


def deliver_shard(workshop: Workshop, run: Run, shard: int, shards: int) -> dict[str, Any]:
    return pipeline.deliver(workshop.settings, run, shard, shards, **workshop.options())


def test_a_limit_is_shared_by_all_tasks_of_a_run(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, deliver={"slice": 3})
    workshop.die(*bodies(30), error=REFUSED)
    for sent_before in (0, 5):  # each run has its own
        run = limited(workshop, 5)
        sent = [deliver_shard(workshop, run, shard, 4)["redelivered"] for shard in range(4)]
        assert sum(sent) == 5, sent
        assert len(workshop.bodies("orders")) == sent_before + 5
        pipeline.finish(workshop.settings, run, "succeeded", workshop.now)


def test_a_limit_is_that_of_a_dag_run_however_often_it_is_cleared(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    workshop.die(*bodies(30), error=REFUSED)
    workshop.cycle(Selection(causes=("throttled",)))  # there is more to send than the limit lets a run drain
    workshop.die(*(f"later {n}" for n in range(30)), error=REFUSED)
    for dag_run, done in (("manual__1", 5), ("manual__1", 5), ("manual__2", 10)):
        run = workshop.begin(selection=Selection(limit=5), dag_run_id=dag_run)  # as clearing it with `begin` does
        for _ in workshop.stages(run):
            pass
        assert workshop.value("select count(*) from redelivery_attempts where sent_at is not null") == done
        assert workshop.value("select sum(settled_copies) from staging_batches") == 30 + done
        pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    assert workshop.audit() == []


def test_a_run_that_is_cleared_drains_no_more_than_its_limit_with_other_shards_either(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    workshop.die(*bodies(30), error=REFUSED)

    def drained(shards: int, tries: int = 1) -> list[int]:
        run = workshop.begin(selection=Selection(limit=8), dag_run_id="manual__1")
        return [
            pipeline.drain(workshop.settings, run, shard=shard, shards=shards, **workshop.options())["drained"]
            for shard in range(shards)
            for _ in range(tries)
        ]

    assert drained(2, tries=2) == [4, 0, 4, 0], "a task that is tried again"
    assert drained(4) == [0, 0, 0, 0], "drain.shards was raised, and the run cleared"


def test_of_a_limit_nothing_is_lost_to_a_task_that_sends_less_than_it_claimed(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    workshop.die(*bodies(20), error=REFUSED)
    run = limited(workshop, 10)
    others: list[int] = []

    def meanwhile() -> None:
        """While the first task has its slice in hand another one comes: nothing is left for it."""
        if not others:
            others.append(0)
            others.append(deliver_shard(workshop, run, 1, 2)["redelivered"])

    workshop.world.faults.refused_bodies = {b"0002", b"0005"}
    workshop.broker = Watched(workshop, meanwhile)
    counts = deliver(workshop, run)
    assert (counts["redelivered"], counts["refused"], others) == (10, 2, [0, 0])


def test_what_may_have_been_sent_counts_for_a_limit(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    workshop.die(*bodies(20), error=REFUSED)
    run = limited(workshop, 10)
    workshop.world.faults.lost_responses = 4
    counts = deliver(workshop, run)
    assert (counts["redelivered"], counts["unknown"]) == (6, 4)
    assert len(workshop.bodies("orders")) == 10


def test_a_pause_by_people_stops_a_delivery_between_slices(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, deliver={"slice": 5})
    workshop.die(*bodies(20), error=REFUSED)
    run = workshop.planned()
    pause = {"by": "ana", "reason": "deploy", "now": workshop.now()}
    workshop.broker = Watched(workshop, lambda: leases.pause(workshop.ledger, "orders", **pause))
    assert deliver(workshop, run)["redelivered"] == 5
    assert workshop.states() == {"sent": 5, "waiting": 15}


def test_a_pause_by_people_stops_a_delivery_between_slices_of_different_causes(tmp_path: Path) -> None:
    """What has a rate of its own is claimed apart, and no other slice goes either."""
    apart = {"throttled": {"verdict": "requeue", "rate": {"per_second": 100}}}
    workshop = Workshop(tmp_path, deliver={"slice": 5}, causes=apart)
    workshop.die(*bodies(5), error=REFUSED)
    workshop.die("a", "b", "c", error="HTTP Error 429: Too Many Requests")
    run = workshop.planned()
    pause = {"by": "ana", "reason": "deploy", "now": workshop.now()}
    workshop.broker = Watched(workshop, lambda: leases.pause(workshop.ledger, "orders", **pause))
    assert deliver(workshop, run)["redelivered"] == 5
    assert workshop.states() == {"sent": 5, "waiting": 3}


def test_what_may_not_be_claimed_is_not_waited_for(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, order_by="key")
    workshop.die("first", "second", error=REFUSED, ordering_key="k")
    run = workshop.planned()
    before = workshop.time.now
    assert deliver(workshop, run)["redelivered"] == 1, "the second waits until the first has stayed away"
    assert workshop.time.now == before


@pytest.mark.parametrize("shards", [1, 3])
def test_a_rate_of_less_than_one_a_minute_is_used(tmp_path: Path, shards: int) -> None:
    """What is due is looked up anew each minute; a rate that let nothing through meanwhile is waited for."""
    workshop = Workshop(tmp_path, rate={"per_second": 0.01 * shards}, deliver={"shards": shards})
    workshop.die(*bodies(9), error=REFUSED)
    run = workshop.planned()
    workshop.broker = broker = Watched(workshop)
    assert deliver(workshop, run, shards=shards)["redelivered"] == 5, "in eight minutes"
    assert [round(at - broker.published[0][0]) for at, _ in broker.published] == [0, 100, 200, 300, 400]


def test_a_rate_of_less_than_one_a_run_is_used_across_runs(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, rate={"per_second": 1 / 1200}, deliver={"run_for": "8m"})
    workshop.die(*bodies(5), error=REFUSED)
    workshop.broker = broker = Watched(workshop)
    began = workshop.time.now / 1e6
    for minutes in (0, 10, 15, 30):
        workshop.advance(seconds=began + 60 * minutes - workshop.time.now / 1e6)
        run = workshop.planned()
        before = workshop.time.now
        sent = deliver(workshop, run)["redelivered"]
        assert sent or workshop.time.now - before < 10 * 1e6, "what comes too late for this run is not waited for"
        pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    assert [round((at - began) / 60) for at, _ in broker.published] == [0, 20]


def test_who_waits_long_for_a_rate_keeps_the_route(tmp_path: Path) -> None:
    """Nothing is written meanwhile, and whoever finds the lease over takes the route."""
    workshop = Workshop(tmp_path, rate={"per_second": 1 / 1500}, deliver={"run_for": "1h"})
    workshop.die(*bodies(5), error=REFUSED)
    run = workshop.planned()
    left: list[timedelta] = []

    def sleep(seconds: float) -> None:
        workshop.advance(seconds=seconds)
        with workshop.ledger.read() as connection:
            (until,) = connection.execute(sql("select lease_until from route_state")).one()
        left.append(parse_instant(until) - workshop.now())  # type: ignore[operator]

    with Context(workshop.settings, run, clock=workshop.now, broker=workshop.broker) as context:
        ttl = context.lease.ttl
        monotonic = lambda: workshop.time.now / 1e6  # noqa: E731
        assert deliver_stage.deliver(context, monotonic=monotonic, sleep=sleep)["redelivered"] == 3
    assert min(left) > ttl - timedelta(minutes=2)


@pytest.mark.parametrize(("run_for", "at_most"), [("10s", None), ("10s", 60), ("60s", 10)])
def test_a_delivery_ends_when_its_time_is_over(tmp_path: Path, run_for: str, at_most: int | None) -> None:
    workshop = Workshop(tmp_path, rate={"per_second": 1}, deliver={"run_for": run_for})
    workshop.die(*bodies(60), error=REFUSED)
    run = workshop.planned()
    sent = deliver(workshop, run, at_most=None if at_most is None else timedelta(seconds=at_most))["redelivered"]
    assert 9 <= sent <= 12
    assert workshop.states() == {"sent": sent, "waiting": 60 - sent}


@pytest.mark.parametrize(("kind", "together"), [(Workshop, 5), (Pipelining, 2)])
def test_nothing_is_sent_when_a_claim_has_run_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Workshop], together: int
) -> None:
    monkeypatch.setattr("redrive.stages.claiming.CLAIM_FOR", timedelta(seconds=10))
    workshop = kind(tmp_path, deliver={"slice": 10, "confirm_window": 5, "run_for": "30s"})
    workshop.die(*bodies(10), error=REFUSED)
    run = workshop.planned()
    broker = workshop.broker = Watched(workshop, lambda: workshop.advance(seconds=20))
    counts = deliver(workshop, run)
    assert counts["unknown"] == 0, "what the broker has confirmed is marked, however late"
    assert sorted(set(workshop.bodies("orders"))) == sorted(workshop.bodies("orders")), "and not sent again"
    assert broker.published[0][1] == together
    assert set(workshop.states()) <= {"sent", "waiting"}
    assert workshop.states()["sent"] == len(workshop.bodies("orders"))


# --- canaries and breakers ---------------------------------------------------------------------------------

GATED: dict[str, Any] = {"canary": {"first": 2, "grow": 3, "pass": 0.95, "observe": "1s"}}


def observe(workshop: Workshop, verdict: Any = lambda _: None) -> dict[str, Any]:
    """Let the consumer work, and enough time pass for a run to see what became of it."""
    workshop.consume(verdict)
    workshop.advance(seconds=1)
    workshop.cycle()
    workshop.advance(seconds=5)
    return workshop.cycle()


def test_a_canary_goes_first_then_more_then_all(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, **GATED)
    workshop.die(*bodies(40), error=STRANGE)
    assert workshop.cycle()["redelivered"] == 2
    assert workshop.states() == {"sent": 2, "held": 38}
    sent = [2]
    for _ in range(8):
        observe(workshop)
        sent.append(workshop.query("select count(*) from redelivery_attempts")[0][0])
        if sent[-1] == 40:
            break
    assert sent[1] == 2 + 6, "three times as many"
    assert sent[-1] == 40, sent
    assert workshop.audit() == []


def test_a_failed_canary_gives_the_rest_to_people(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, **GATED)
    workshop.die(*bodies(10), error=STRANGE)
    workshop.cycle()
    observe(workshop, lambda _: STRANGE)
    assert workshop.query("select count(*) from redelivery_attempts") == [(2,)]
    assert workshop.states() == {"escalated": 10}
    assert workshop.audit() == []


def test_a_failed_canary_of_a_release_reopens_the_rest_with_the_reason(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, **GATED)
    workshop.die(*bodies(10), error=KEY_ERROR)
    workshop.cycle()
    with workshop.ledger.write() as connection:
        connection.exec_driver_sql("update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    workshop.review()
    assert workshop.cycle()["redelivered"] == 2
    observe(workshop, lambda _: KEY_ERROR)
    assert workshop.query("select count(*) from redelivery_attempts") == [(2,)]
    assert workshop.states() == {"escalated": 10}
    reopened = workshop.query("select refusal from escalated_messages where status = 'reopened'")
    assert len(reopened) == 8
    assert all("came back" in reason for (reason,) in reopened)
    workshop.review()
    workshop.cycle()
    assert workshop.query("select count(*) from redelivery_attempts") == [(2,)], "no decision is carried out twice"
    assert workshop.audit() == []


BREAKER = {"return_rate": 0.5, "min_samples": 4, "cool_down": "10m"}


def test_a_breaker_trips_and_tries_again_after_its_cool_down(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, breaker=BREAKER, requeue_attempts=20)
    workshop.die(*bodies(12), error=REFUSED)
    workshop.cycle()
    workshop.consume(lambda _: REFUSED)
    report = workshop.cycle()
    assert (report["returned"], report["redelivered"]) == (12, 0)
    assert workshop.states() == {"held": 12}
    workshop.advance(minutes=5)
    assert workshop.cycle()["redelivered"] == 0
    workshop.advance(minutes=6)
    assert workshop.cycle()["redelivered"] == 4, "half-open: as many as tell"
    assert workshop.states() == {"held": 8, "sent": 4}
    assert workshop.audit() == []


def test_the_route_pauses_when_most_groups_keep_coming_back(tmp_path: Path) -> None:
    errors = [
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "TimeoutError: [Errno 110] Connection timed out",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        "psycopg.errors.DeadlockDetected: deadlock detected",
        "psycopg.errors.SerializationFailure: could not serialize access due to concurrent update",
    ]
    workshop = Workshop(tmp_path, breaker=BREAKER, requeue_attempts=20)
    for number, error in enumerate(errors):
        workshop.die(*[f"{number} {body}" for body in bodies(5)], error=error)
    workshop.cycle()
    groups = workshop.query("select count(*) from group_state")[0][0]
    assert groups >= 5
    workshop.consume(lambda letter: errors[int(letter.body[:1])])
    report = workshop.cycle()
    assert report["redelivered"] == 0
    [(by, why)] = workshop.query("select paused_by, pause_reason from route_state")
    assert by == "redrive"
    assert "the destination is sick" in why


def test_messages_that_are_too_old_go_to_people(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, give_up_after="1d")
    workshop.die("old", error=REFUSED)
    workshop.advance(days=2)
    workshop.die("new", error=REFUSED)
    report = workshop.cycle()
    assert (report["redelivered"], report["escalated"]) == (1, 1)
    assert workshop.query("select payload, reason from escalated_messages") == [
        ("old", "It is older than the route's give_up_after.")
    ]


@pytest.mark.parametrize("kind", ["cause", "group"])
def test_a_selection_sends_only_what_it_selects(tmp_path: Path, kind: str) -> None:

    workshop = Workshop(tmp_path, causes={"throttled": {"verdict": "requeue"}})
    workshop.die("slow", error=THROTTLED)
    workshop.die("fast", error=REFUSED)
    run = workshop.planned()
    [(group,)] = workshop.query("select group_id from messages where cause = 'throttled'")
    selection = Selection(causes=("throttled",)) if kind == "cause" else Selection(groups=(group,))
    chosen = Run(run.route, run.run_id, run.fence, run.ttl, run.started_at, selection)
    assert deliver(workshop, chosen)["redelivered"] == 1
    assert workshop.bodies("orders") == [b"slow"]


class OnTheWire(MemoryBroker):
    """Tells at each beginning how many messages are with it or not marked yet, and which windows are on the wire."""

    def __init__(self, workshop: Workshop) -> None:
        super().__init__(workshop.world)
        self._workshop = workshop
        self._begun = self._windows = self._over = 0
        self.unmarked: list[int] = []
        self.together: list[int] = []

    def ready(self, queue: str, messages: Any) -> Any:
        begin = super().ready(queue, messages)
        return lambda: self._begin(begin, len(messages))

    def _begin(self, begin: Any, count: int) -> Any:
        self._begun += count
        ((marked,),) = self._workshop.query("select count(*) from redelivery_attempts where sent_at is not null")
        self.unmarked.append(self._begun - marked)
        self._windows += 1
        self.together.append(self._windows - self._over)
        finish = begin()

        def over() -> Any:
            self._over += 1
            return finish()

        return over


def test_half_a_window_is_marked_while_the_other_is_on_the_wire_and_no_more_is_ever_in_doubt(tmp_path: Path) -> None:
    workshop = Pipelining(tmp_path, deliver={"slice": 20, "confirm_window": 5})
    workshop.die(*bodies(26))
    run = workshop.planned()
    broker = workshop.broker = OnTheWire(workshop)
    assert deliver(workshop, run)["redelivered"] == 26
    assert broker.unmarked == [2, *[4] * 12], "of two slices: what a crash would leave unknown"
    assert broker.together == [1, *[2] * 12]
    assert workshop.bodies("orders") == [body.encode() for body in bodies(26)]
    assert workshop.query("select count(*) from delivery_slices where closed_at is null") == [(0,)]


class Refusing(MemoryBroker):
    """Tells no depth of the destination."""

    def __init__(self, workshop: Workshop, error: BrokerError) -> None:
        super().__init__(workshop.world)
        self._error = error

    def depth(self, queue: str) -> Depth:
        raise self._error


class NextSlice(OnTheWire):
    """Does something when the depth is asked for while windows are on the wire: as the next slice is about to be
    claimed."""

    def __init__(self, workshop: Workshop, then: Any) -> None:
        super().__init__(workshop)
        self._then = then

    def depth(self, queue: str) -> Depth:
        if queue == "orders" and self._windows > self._over:
            self._then()
        return super().depth(queue)


def test_an_error_between_slices_leaves_nothing_of_the_last_one_in_doubt(tmp_path: Path) -> None:
    def away() -> None:
        raise BrokerUnavailable("orders: the management API is away")

    workshop = Pipelining(tmp_path, deliver={"slice": 8, "confirm_window": 4})
    workshop.die(*bodies(20))
    run = workshop.planned()
    workshop.broker = NextSlice(workshop, away)
    assert "is away" in str(deliver(workshop, run)["failed:orders"])
    assert workshop.states() == {"sent": 8, "waiting": 12}


def test_a_try_that_is_not_the_last_ends_with_what_may_pass_and_not_with_what_stays(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    workshop.die(*bodies(4))
    run = workshop.planned()
    for error in (PermissionRefused, BrokerUnavailable):
        workshop.broker = Refusing(workshop, error("orders: no"))
        tried = partial(pipeline.deliver, workshop.settings, run, **workshop.options())
        assert tried()["failed:orders"] == f"{error.__name__}: orders: no"
        with pytest.raises(BrokerUnavailable) if error is BrokerUnavailable else nullcontext():
            tried(tries_left=True)
    assert workshop.states() == {"waiting": 4}


def test_a_claim_that_is_lost_between_slices_leaves_one_window_in_doubt(tmp_path: Path) -> None:
    """As a crash there would."""
    workshop = Pipelining(tmp_path, deliver={"slice": 8, "confirm_window": 4})
    workshop.die(*bodies(20))
    run = workshop.planned()

    def replaced() -> None:
        workshop.advance(hours=5)
        workshop.begin()

    workshop.broker = NextSlice(workshop, replaced)
    with pytest.raises(LeaseLost):
        deliver(workshop, run)
    workshop.advance(hours=5)
    workshop.broker = MemoryBroker(workshop.world)
    workshop.cycle()
    assert workshop.query("select count(*) from redelivery_attempts where unknown_at is not null") == [(4,)]
    assert workshop.bodies("orders") == [body.encode() for body in bodies(20)], "and nothing went twice"


@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_a_half_that_can_not_be_marked_is_unknown_whatever_is_marked_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    workshop = Pipelining(tmp_path, deliver={"slice": 8, "confirm_window": 4})
    workshop.die(*bodies(8))
    run = workshop.planned()
    mark, calls = windows.mark, itertools.count(1)

    def fails(*arguments: Any, **named: Any) -> bool:
        if next(calls) == failing:
            raise LedgerError("the disk is full")
        return mark(*arguments, **named)

    monkeypatch.setattr("redrive.stages.sending.windows.mark", fails)
    with pytest.raises(LedgerError):
        deliver(workshop, run)
    states = workshop.states()
    assert (states["unknown"], states.get("sending", 0)) == (2, 0)
    assert states["sent"] == min(2 * failing, 6), "what was on the wire with it is marked"
    assert sum(states.values()) == 8


def test_when_the_end_of_a_slice_fails_the_next_one_stays(tmp_path: Path) -> None:
    workshop = Pipelining(tmp_path, deliver={"slice": 40, "confirm_window": 20})
    workshop.die(*bodies(100))
    run = workshop.planned()
    workshop.world.faults.publishes.extend(["sent"] * 30 + ["retry"] * 70)
    broker = workshop.broker = OnTheWire(workshop)
    assert deliver(workshop, run)["redelivered"] == 30
    assert workshop.states() == {"sent": 30, "waiting": 70}
    assert len(broker.together) == 5, "one more part was on the wire by then"
    assert workshop.query("select count(*) from delivery_slices where closed_at is null") == [(0,)]


def test_who_waits_for_his_turn_leaves_nothing_on_the_wire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the consumers are stuck, so that each message costs two."""
    monkeypatch.setattr(deliver_stage._Delivery, "_share", lambda *_: 0.5)
    workshop = Pipelining(tmp_path, rate={"per_second": 8}, deliver={"slice": 8, "confirm_window": 4})
    workshop.die(*bodies(24))
    run = workshop.planned()
    broker = workshop.broker = OnTheWire(workshop)
    left: list[int] = []
    assert deliver(workshop, run, on_sleep=lambda: left.append(broker._windows - broker._over))["redelivered"] == 24
    assert left
    assert set(left) == {0}
    assert workshop.states() == {"sent": 24}, "and no slice was closed before its last window was sent"
    assert workshop.query("select count(*) from delivery_slices where closed_at is null") == [(0,)]


def test_a_full_destination_is_never_overfilled_by_what_is_on_the_wire(tmp_path: Path) -> None:
    workshop = Pipelining(tmp_path, rate={"max_in_flight": 10}, deliver={"slice": 8, "confirm_window": 4})
    workshop.die(*bodies(40))
    run = workshop.planned()
    fullest: list[int | None] = []

    class Looking(OnTheWire):
        def _begin(self, begin: Any, count: int) -> Any:
            finish = super()._begin(begin, count)
            fullest.append(self.depth("orders").total)
            return finish

    workshop.broker = Looking(workshop)
    assert deliver(workshop, run, on_sleep=workshop.consume)["redelivered"] == 40
    assert max(each or 0 for each in fullest) == 10


def test_of_a_window_of_one_only_one_is_on_the_wire(tmp_path: Path) -> None:
    workshop = Pipelining(tmp_path, deliver={"confirm_window": 1})
    workshop.die(*bodies(3))
    run = workshop.planned()
    broker = workshop.broker = OnTheWire(workshop)
    assert deliver(workshop, run)["redelivered"] == 3
    assert broker.together == [], "each is confirmed before the next is sent"


def test_a_queue_that_is_gone_when_its_windows_are_confirmed_leaves_them_waiting(tmp_path: Path) -> None:
    class Gone(OnTheWire):
        def publish(self, queue: str, messages: Any) -> Any:
            raise QueueMissing(f"publish to {queue}: it is gone")

    workshop = Pipelining(tmp_path, deliver={"confirm_window": 4})
    workshop.die(*bodies(9))
    run = workshop.planned()
    workshop.broker = Gone(workshop)
    assert "it is gone" in str(deliver(workshop, run)["failed:orders"])
    assert workshop.states() == {"waiting": 9}
    assert workshop.broker.together == [1, 2]


class WhileReading(Watched):
    """Confirms its first three messages once the payload of a fourth was asked for."""

    def __init__(self, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        super().__init__(workshop)
        self._asked = threading.Event()
        self.seen: list[bool] = []
        outgoing, read = sending.outgoing, itertools.count(1)

        def asked(*arguments: Any) -> Any:
            for one in outgoing(*arguments):
                if next(read) > 3:
                    self._asked.set()
                    if error is not None:
                        raise error
                yield one

        monkeypatch.setattr(sending, "outgoing", asked)

    def publish(self, queue: str, messages: Any) -> Any:
        results = super().publish(queue, messages)
        self.seen.append(self._asked.wait(60))
        return results


def test_the_next_window_is_read_while_the_broker_confirms_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = Workshop(tmp_path, deliver={"confirm_window": 3})
    workshop.die(*bodies(6))
    run = workshop.planned()
    workshop.broker = WhileReading(workshop, monkeypatch)
    assert pipeline.deliver(workshop.settings, run, **workshop.options())["redelivered"] == 6
    assert workshop.broker.seen == [True, True]
    assert workshop.bodies("orders") == [body.encode() for body in bodies(6)]


def test_a_store_that_goes_away_meanwhile_leaves_nothing_of_the_window_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = Workshop(tmp_path, deliver={"confirm_window": 3})
    workshop.die(*bodies(9))
    run = workshop.planned()
    workshop.broker = WhileReading(workshop, monkeypatch, StagingError("the store is away"))
    with pytest.raises(StagingError, match="the store is away"):
        pipeline.deliver(workshop.settings, run, **workshop.options())
    assert workshop.states() == {"sent": 3, "waiting": 6}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_work_beside_is_over_when_the_block_is(error: type[BaseException]) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        begun.set()
        go_on.wait(60)
        done.append("all of it")

    def block() -> None:
        with Worker().during(work):
            begun.wait(60)
            threading.Timer(0.05, go_on.set).start()
            raise error

    with pytest.raises(error):
        block()
    assert done == ["all of it"]


@pytest.mark.parametrize(("shop", "on_the_wire"), [(Workshop, 0), (Pipelining, 2)])
def test_nothing_of_a_slice_begins_after_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shop: type[Workshop], on_the_wire: int
) -> None:
    workshop = shop(tmp_path, deliver={"slice": 8, "confirm_window": 4})
    workshop.die(*bodies(24))
    run = workshop.planned()
    minutes = iter([0, 6])  # that a part waits for its turn when it is announced
    monkeypatch.setattr(sending.SliceSender, "_pace", lambda *_: workshop.advance(minutes=next(minutes, 0)))
    assert deliver(workshop, run)["redelivered"] == 24
    late = "select count(*) from redelivery_attempts inner join delivery_slices using (slice_id) where sent_at >"
    assert workshop.query(f"{late} deadline_at") == [(on_the_wire,)], "begun in time"
    assert workshop.query("select count(*) from delivery_slices where sent < claimed") == [(1,)]
    assert workshop.query("select distinct attempts from messages") == [(1,)]
    assert len(workshop.bodies("orders")) == 24


def test_what_a_limited_run_did_not_use_goes_to_the_others(tmp_path: Path) -> None:
    sources = [{"queue": "orders-dlq", "lease": "2s", "max_deliveries": 3, "origins": ["orders", "billing"]}]
    workshop = Pipelining(tmp_path, sources=sources, destination=None, deliver={"slice": 8, "confirm_window": 4})
    workshop.world.create("billing", lease=timedelta(minutes=5))
    for number in range(8):
        workshop.die(f"b{number}", origin="billing")
        workshop.die(f"o{number}", origin="orders")
    workshop.world.faults.refused_bodies = {b"b6", b"b7"}
    run = limited(workshop, 8)
    assert deliver(workshop, run)["redelivered"] == 8
    assert len(workshop.bodies("billing")) == 6
    assert len(workshop.bodies("orders")) == 2


@pytest.mark.parametrize(("per_second", "shards", "sent"), [(0.05, 1, 24), (0.025, 1, 12), (0.4, 4, 48)])
def test_a_slow_rate_is_waited_for_as_long_as_a_task_may_take(
    tmp_path: Path, per_second: float, shards: int, sent: int
) -> None:
    workshop = Workshop(tmp_path, rate={"per_second": per_second})
    workshop.die(*(f"m-{number:03}" for number in range(100)))
    run = workshop.planned()
    with Context(workshop.settings, run, clock=workshop.now, broker=workshop.broker) as context:
        found = deliver_stage.deliver(
            context,
            shards=shards,
            monotonic=lambda: workshop.time.now / 1e6,
            sleep=lambda seconds: workshop.advance(seconds=seconds),
        )
    assert found["redelivered"] == sent


def test_runs_one_after_the_other_are_no_faster_than_a_slow_rate(tmp_path: Path) -> None:
    workshop = Workshop(
        tmp_path,
        rate={"per_second": 100},
        causes={"throttled": {"verdict": "requeue", "rate": {"per_second": 0.01}}},
        deliver={"shards": 4, "run_for": "1m"},
    )
    workshop.die(*(f"m-{number:03}" for number in range(100)), error=THROTTLED)
    began, sent = None, 0
    for _ in range(10):
        run = workshop.planned()
        began = began or workshop.time.now
        for shard in range(4):
            with Context(workshop.settings, run, clock=workshop.now, broker=workshop.broker) as context:
                sent += deliver_stage.deliver(
                    context,
                    shard=shard,
                    shards=4,
                    monotonic=lambda: workshop.time.now / 1e6,
                    sleep=lambda seconds: workshop.advance(seconds=seconds / 4),  # four work at the same time
                )["redelivered"]
        pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    assert began is not None
    seconds = (workshop.time.now - began) / 1e6
    assert 4 <= sent <= 4 + seconds * 0.01


def test_what_the_broker_confirmed_is_marked_although_reading_on_fails(
    tmp_path: Path, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a whole window that certainly arrived would be in doubt."""
    shop = Workshop(tmp_path, ledger_url, deliver={"confirm_window": 2})
    shop.die(*"abcdef")
    run, read = shop.planned(), sending.outgoing

    def fails(*given: Any) -> Iterator[Any]:
        for number, one in enumerate(read(*given)):
            if number == 4:
                raise LedgerUnavailable("the server is restarting")
            yield one

    monkeypatch.setattr(sending, "outgoing", fails)
    with pytest.raises(LedgerUnavailable):
        shop.deliver(run)
    monkeypatch.undo()
    assert shop.states() == {"sent": 4, "waiting": 2}, "and none of the others was announced"
    shop.advance(hours=1)
    pipeline.finish(shop.settings, run, "failed", shop.now)
    report = shop.cycle()
    assert (report["redelivered"], shop.states()) == (2, {"sent": 6})
    shop.ledger.close()
