"""A canary can't pass before it could have failed: slow consumers, backlogs, destinations that are never empty."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from redrive.brokers.memory import MemoryBroker
from redrive.ledger.account import inspecting
from redrive.ledger.delivery import breakers, outcomes
from redrive.ledger.engine import Ledger, parse_instant
from redrive.ledger.review import applying
from redrive.ledger.selecting import Selection
from redrive.message import DeadLetter, Header
from redrive.policy.worked_past import Consumption, Sends, worked_past
from redrive.stages import pipeline
from redrive.stages.context import Run
from redrive.stages.preview import preview
from tests.ledger.planting import NOW
from tests.workshop import KEY_ERROR, REFUSED, THROTTLED, Workshop

STRANGE = "the flux capacitor said hm"  # nothing is known of it: a canary first
CANARY: dict[str, Any] = {"canary": {"first": 4, "grow": 5, "pass": 0.95, "observe": "auto"}}


class Shop(Workshop):
    """A destination with a backlog of its own and a consumer that takes one message after the other."""

    def __init__(self, folder: Path, *, backlog: int, broken: bool, **route: Any) -> None:
        super().__init__(folder, **CANARY | route)
        self.world.create("orders", lease=timedelta(minutes=5))
        self.broken = broken
        self.others(backlog)

    def others(self, count: int) -> None:
        """Messages of other producers come in."""
        letter = DeadLetter("", b"other", ())
        self.world.put("orders", *[letter] * count)

    def work(self, count: int) -> int:
        """The consumer takes ``count`` messages and fails with ours while its bug isn't fixed; how many were ours."""
        received = self.broker.receive("orders", limit=count, wait=timedelta(0), lease=timedelta(minutes=1))
        ours = 0
        for letter, _ in received:
            if letter.body == b"other":
                continue
            ours += 1
            if self.broken:
                kept = tuple(h for h in letter.headers if h.name != "error")
                self.world.put("orders-dlq", letter._replace(broker_message_id="", enqueued_at=None,
                               headers=(*kept, Header("error", "String", STRANGE)), origin="orders"))  # fmt: skip
        self.broker.settle("orders", [receipt for _, receipt in received])
        return ours

    def gate(self) -> tuple[str, int]:
        ((stage, sent),) = self.query("select stage, (select count(*) from redelivery_attempts) from group_state")
        return stage, sent

    def status(self) -> dict[str, Any]:
        with self.ledger.read() as connection:
            return inspecting.status(connection, "orders", self.now())


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Callable[..., Shop]]:
    made: list[Shop] = []

    def build(**options: Any) -> Shop:
        made.append(Shop(tmp_path, **options))
        return made[-1]

    yield build
    for one in made:
        one.ledger.close()


def ten_minutes(shop: Shop, *, work: int, others: int = 0) -> int:
    """The consumer works, then a run of another process looks; how many of the consumed messages were ours."""
    shop.others(others)
    ours = shop.work(work)
    shop.advance(minutes=10)
    shop.ledger.close()
    shop.ledger = Ledger(shop.settings.database)  # what a run knows it has from the ledger
    shop.cycle()
    return ours


def test_a_canary_behind_a_backlog_waits_for_it_and_its_return_after_an_hour_fails_the_group(
    shop: Callable[..., Shop],
) -> None:
    one = shop(backlog=120, broken=True)
    one.die(*[f"{n:03}" for n in range(60)], error=STRANGE)
    one.cycle()
    for _ in range(6):
        assert one.gate() == ("canary", 4), "the window of six seconds is long over; the consumer isn't there yet"
        watching = one.status()["watching"]
        assert (watching["not_worked_past"], watching["in_window"]) == (4, 0)
        assert ten_minutes(one, work=20) == 0
    assert ten_minutes(one, work=20) == 4
    assert one.gate() == ("failed", 4)
    watching = one.status()["watching"]
    assert (watching["not_worked_past"], watching["in_window"]) == (0, 0), "all four are back: nothing is awaited"
    for _ in range(3):
        ten_minutes(one, work=20)
    assert one.gate() == ("failed", 4)
    assert one.states() == {"escalated": 60}
    assert one.audit() == []


def test_what_other_groups_failed_with_at_once_makes_no_window_in_which_a_slow_one_can_not_fail(
    shop: Callable[..., Shop],
) -> None:
    """Of a lease of five minutes and five deliveries a message may fail in the 25th; here it fails in the twelfth."""
    source = {"queue": "orders-dlq", "lease": "5m", "max_deliveries": 5}
    route = {"canary": {"first": 20, "observe": "auto"}, "requeue_attempts": 3, "backoff": {"first": "1s", "max": "1s"}}
    one = shop(backlog=0, broken=True, sources=[source], **route)
    one.die(*(f"fast {n}" for n in range(60)), error=REFUSED)
    for _ in range(4):
        one.cycle()
        one.advance(seconds=30)
        one.consume(lambda _: REFUSED)
        one.advance(seconds=30)
    with one.ledger.read() as connection:
        assert (outcomes.return_times(connection, "orders") or 999) <= 60, "they are known, and short"
    one.die(*(f"slow {n}" for n in range(60)), error=STRANGE)
    one.cycle()
    slow = "select count(*) from redelivery_attempts join messages using (message_id) where cause = 'unclassified'"
    assert one.value(slow) == 20
    held = one.broker.receive("orders", limit=1000, wait=timedelta(0), lease=timedelta(minutes=1))
    one.broker.settle("orders", [receipt for _, receipt in held])
    for _ in range(6):
        one.advance(minutes=2)
        one.cycle()
        assert one.value(slow) == 20, "none of them could have failed yet"
    for letter, _ in held:
        kept = tuple(h for h in letter.headers if h.name != "error")
        one.world.put("orders-dlq", letter._replace(broker_message_id="", enqueued_at=None,
                      headers=(*kept, Header("error", "String", STRANGE)), origin="orders"))  # fmt: skip
    one.cycle()
    assert one.value(slow) == 20
    assert one.value("select count(*) from group_state where stage = 'failed'") == 1
    assert one.audit() == []


def test_one_run_under_a_clock_that_was_a_month_ahead_stops_no_gate(shop: Callable[..., Shop]) -> None:
    one = shop(backlog=3, broken=False)
    right = one.time.now
    one.advance(days=30)
    one.cycle()
    one.time.now = right
    one.die(*(f"ours {n}" for n in range(40)), error=STRANGE)
    for _ in range(3):
        ten_minutes(one, work=1000)
    assert one.gate() == ("ramp", 24)


@pytest.mark.parametrize(
    ("ahead", "minutes"), [("begin", 0), ("begin load", 0), ("begin drain", 1), ("begin drain load", 60)]
)
def test_a_host_whose_clock_is_ahead_ends_no_window(
    tmp_path: Path, ahead: str, minutes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Begin, drain and load of a run may be done by three. Consumers have had the canary for two minutes, and fail."""
    one = Workshop(tmp_path, canary={"first": 2, "grow": 10, "pass": 0.95, "observe": "10m"})
    one.die(*(f"{n}" for n in range(20)), error=STRANGE)
    one.cycle()
    one.advance(minutes=1)
    taken = one.broker.receive("orders", limit=10, wait=timedelta(0), lease=timedelta(minutes=30))
    one.broker.settle("orders", [receipt for _, receipt in taken])
    one.advance(minutes=1)

    def options(stage: str) -> dict[str, Any]:
        wrong = timedelta(hours=1) if stage in ahead.split() else timedelta(0)
        return one.options() | {"clock": lambda: one.now() + wrong}

    for _ in range(2):
        run = pipeline.begin(one.settings, "orders", trigger="test", holder="test", clock=options("begin")["clock"])
        pipeline.observe(one.settings, run, **one.options())
        drained = one.now()
        pipeline.drain(one.settings, run, **options("drain"))
        one.advance(minutes=1)
        pipeline.load(one.settings, run, **options("load"))
        pipeline.resolve(one.settings, run, **one.options())
        pipeline.plan(one.settings, run, **one.options())
        pipeline.deliver(one.settings, run, **one.options())
        pipeline.finish(one.settings, run, "succeeded", one.now)
        assert one.states() == {"sent": 2, "held": 18}
        [to] = {parse_instant(to) for (to,) in one.query("select drained_to from source_state")}
        assert to == drained + timedelta(minutes=minutes)
        one.advance(minutes=1)
    for letter, _ in taken:
        kept = tuple(h for h in letter.headers if h.name != "error")
        again = DeadLetter("", letter.body, (*kept, Header("error", "String", STRANGE)), origin="orders")
        one.world.put("orders-dlq", again)
    one.cycle()
    assert one.states() == {"escalated": 20}
    assert ("clocks of this run's hosts differ" in caplog.text) == (minutes < 60)
    one.ledger.close()


class Behind(Shop):
    """Whose deliveries run on a worker with a clock of its own."""

    def deliver(self, run: Run) -> dict[str, Any]:
        options = self.options() | {"clock": lambda: self.now() - timedelta(minutes=3)}
        return pipeline.deliver(self.settings, run, **options)


def test_a_ramp_lets_through_no_more_where_the_clock_of_who_delivers_is_behind(tmp_path: Path) -> None:
    one = Behind(tmp_path, backlog=0, broken=False)
    one.die(*(f"ours {n}" for n in range(100)), error=STRANGE)
    seen = []
    for work in (0, 1000, 1000, 0, 0, 0, 0):  # in the end nobody works, so nothing is known of the twenty
        ten_minutes(one, work=work)
        seen.append(one.gate())
    assert seen[-4:] == [("ramp", 24)] * 4
    one.ledger.close()


@pytest.mark.parametrize("broken", [False, True])
def test_a_dry_run_says_what_the_next_plan_does_with_what_is_held(shop: Callable[..., Shop], broken: bool) -> None:
    one = shop(backlog=0, broken=broken)
    one.die(*(f"ours {n}" for n in range(40)), error=STRANGE)
    one.cycle()
    told = []
    for _ in range(4):
        one.work(1000)
        one.advance(minutes=10)
        would: Counter[str] = Counter()
        run = one.begin()
        for name, counts in one.stages(run):
            if name == "resolve":
                rows = preview(one.settings, "orders", Selection(), now=one.now())["plan"]
                would = Counter()
                for row in rows:
                    would[row["verdict"]] += row["messages"]
            if name == "plan":
                assert would["admit"] == counts["waiting"], rows
                assert would["hold"] == one.states().get("held", 0), rows
                assert would["escalate"] == one.states().get("to_review", 0), rows
        pipeline.finish(one.settings, run, "succeeded", one.now)
        told.append(set(would))
    passes = [{"hold"}, {"admit", "hold"}, {"hold"}, {"admit"}]
    assert told == ([{"escalate"}, set(), set(), set()] if broken else passes)


def test_a_dry_run_says_how_many_of_what_is_new_go(shop: Callable[..., Shop]) -> None:
    one = shop(backlog=0, broken=False)
    for new in (40, 7):  # of a group that has no gate yet, and of one whose canary is out
        one.die(*(f"{n} of {new}" for n in range(new)), error=STRANGE)
        run, before = one.begin(), one.states().get("held", 0)
        for name, _ in one.stages(run):
            if name == "resolve":
                rows = preview(one.settings, "orders", Selection(), now=one.now())["plan"]
                would: Counter[str] = Counter()
                for row in rows:
                    would[row["verdict"]] += row["messages"]
                assert sum(would.values()) == before + new, rows
            if name == "plan":
                assert would["hold"] == one.states()["held"], rows
        pipeline.finish(one.settings, run, "succeeded", one.now)
    (why,) = {row["why"] for row in rows if row["verdict"] == "hold"}
    assert why.endswith("comes first.")


def test_a_group_that_is_fixed_ramps_to_its_end_behind_a_slow_consumer(shop: Callable[..., Shop]) -> None:
    one = shop(backlog=60, broken=False)
    one.die(*[f"{n:03}" for n in range(60)], error=STRANGE)
    one.cycle()
    stages, consumed = [one.gate()], 0
    for _ in range(40):
        consumed += ten_minutes(one, work=20)
        stage, sent = one.gate()
        if (stage, sent) != stages[-1]:
            assert consumed >= stages[-1][1], "never before the consumer had had all of the last stage"
            stages.append((stage, sent))
        if one.states() == {"presumed": 60}:
            break
    assert stages[0] == ("canary", 4)
    assert stages[1] == ("ramp", 4 + 20)
    assert stages[-1] == ("ramp", 60)
    assert one.states() == {"presumed": 60}
    assert one.audit() == []


# --- a destination that is never empty -------------------------------------------------------------------


@pytest.mark.parametrize("broken", [True, False])
def test_a_destination_that_is_never_empty_is_worked_past_all_the_same(shop: Callable[..., Shop], broken: bool) -> None:
    one = shop(backlog=100, broken=broken)
    one.die(*[f"{n:03}" for n in range(60)], error=STRANGE)
    one.cycle()
    consumed, fewest, steps = 0, 1_000, 0
    while one.states().get("sent", 0) + one.states().get("held", 0) and steps < 150:
        others = 60 if steps % 3 == 0 else 0  # as many as are consumed, in bursts
        before = one.gate()
        consumed += ten_minutes(one, work=20, others=others)
        fewest = min(fewest, one.broker.depth("orders").total or 0)
        if one.gate()[0] != before[0]:
            assert consumed >= before[1], f"{before} became {one.gate()} after the consumer had had {consumed}"
        steps += 1
    assert fewest > 0
    assert one.states() == ({"escalated": 60} if broken else {"presumed": 60}), f"after {steps} steps"
    assert one.gate() == (("failed", 4) if broken else ("ramp", 60))


def test_a_destination_that_nobody_works_off_proves_nothing_however_long_it_takes(shop: Callable[..., Shop]) -> None:
    one = shop(backlog=10, broken=False)
    one.die(*[f"{n:03}" for n in range(60)], error=STRANGE)
    one.cycle()
    for step in range(40):
        ten_minutes(one, work=0, others=step % 2)
    assert one.gate() == ("canary", 4)


def test_a_later_send_that_came_back_shows_that_the_earlier_ones_were_reached() -> None:
    def at(minute: int) -> Any:
        return NOW + timedelta(minutes=minute)

    early = Sends(1, at(0), at(1), 5, None, fence=1)
    late = Sends(2, at(10), at(11), 5, at(30), fence=2)
    assert worked_past([early, late], [], Consumption(in_order=True)) == {1: at(30)}, (
        "of itself it says nothing: others may still wait"
    )


# --- storms ---------------------------------------------------------------------------------------------------


def test_of_a_hundred_thousand_messages_of_an_unfixed_bug_only_the_canary_is_sent_again(
    shop: Callable[..., Shop],
) -> None:
    one = shop(
        backlog=0,
        broken=True,
        canary={"first": 20, "grow": 10, "pass": 0.95},
        drain={"wait": "0s", "flush_messages": 50_000},
    )
    headers = (Header("error", "String", STRANGE),)
    one.world.fill("orders-dlq", 100_000, lambda n: DeadLetter("", b"%06d" % n, headers, origin="orders"))
    assert one.cycle()["held"] == 100_000 - 20
    for _ in range(3):
        one.work(1_000)
        one.advance(minutes=10)
        run = one.begin()
        for name, _ in one.stages(run):
            if name == "deliver":  # what people get then is tested elsewhere, with fewer messages
                break
        pipeline.finish(one.settings, run, "succeeded", one.now)
    assert one.gate() == ("failed", 20)
    assert one.world.messages["publish"] == 20


def test_what_people_released_goes_out_as_a_canary_also_when_the_delivery_comes_before_the_next_plan(
    shop: Callable[..., Shop],
) -> None:
    """So the review's DAG does it: apply the decisions, then deliver."""
    one = shop(backlog=0, broken=True)
    one.die(*[f"{n:03}" for n in range(60)], error=KEY_ERROR)
    one.cycle()
    assert one.states() == {"escalated": 60}
    with one.ledger.write() as connection:
        connection.exec_driver_sql("update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    assert one.review()["released"] == 60
    assert one.states() == {"waiting": 4, "held": 56}
    run = one.begin()
    assert one.deliver(run)["redelivered"] == 4
    pipeline.finish(one.settings, run, "succeeded", one.now)


def test_what_expired_before_anything_of_its_group_was_planned_goes_behind_a_canary_when_people_release_it(
    tmp_path: Path, ledger_url: str
) -> None:
    one = Workshop(tmp_path, ledger_url, canary=CANARY["canary"], give_up_after="1d")
    long_ago = one.time.now - 2 * 86_400_000_000
    one.die(*[f"{n:03}" for n in range(30)], error=KEY_ERROR, enqueued_at=long_ago)
    one.cycle()
    assert (one.states(), one.query("select * from group_state")) == ({"escalated": 30}, [])
    with one.ledger.write() as connection:
        connection.exec_driver_sql("update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    assert one.review()["released"] == 30
    assert one.query("select stage, allowed, reason from group_state") == [
        ("canary", 4, "People released messages of it.")
    ]
    one.cycle()
    assert (len(one.bodies("orders")), one.states()) == (4, {"sent": 4, "held": 26})
    assert one.consume(lambda _: KEY_ERROR) == 4
    one.cycle()
    assert one.query("select stage from group_state") == [("failed",)], "its returns tell against it"
    assert one.bodies("orders") == []
    one.ledger.close()


@pytest.mark.parametrize("trouble", ["a clock that is ahead", "a review that dies"])
def test_what_people_release_goes_behind_a_canary_whatever_becomes_of_the_review(
    shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """The gate was opened by a process whose clock is ahead; or the review dies when it has released the messages."""
    one = shop(backlog=0, broken=True)
    one.die(*[f"{n:03}" for n in range(20)], error=KEY_ERROR)
    one.cycle()
    ahead = timedelta(minutes=5 if trouble == "a clock that is ahead" else 0)
    breakers.release_group(one.ledger, "orders", 1, first=None, by="ana", now=one.now() + ahead)
    one.advance(minutes=1)
    with one.ledger.write() as connection:
        connection.exec_driver_sql("update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    if ahead:
        one.review()
    else:
        die_in_a_review(one, monkeypatch)
    assert one.query("select distinct releases from messages") == [(1,)]
    one.cycle()
    assert one.states() == {"sent": 4, "held": 16}


def test_a_delivery_after_a_review_that_died_sends_nothing_past_a_canary(
    tmp_path: Path, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the review's DAG does it: what was released is sent, whatever became of the task before."""
    one = Workshop(tmp_path, ledger_url, canary=CANARY["canary"])
    one.die(*[f"{n:03}" for n in range(20)], error=KEY_ERROR)
    one.cycle()
    with one.ledger.write() as connection:
        connection.exec_driver_sql("update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    die_in_a_review(one, monkeypatch)
    run = one.begin()
    assert one.deliver(run)["redelivered"] == 0
    pipeline.finish(one.settings, run, "succeeded", one.now)
    assert one.states() == {"held": 20}
    one.review()
    assert one.states() == {"waiting": 4, "held": 16}, "whoever reviews next lets the first few through"
    one.cycle()
    assert (len(one.bodies("orders")), one.audit()) == (4, [])
    one.ledger.close()


def die_in_a_review(one: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A review that is killed once it has released the messages; its lease ends."""
    apply = applying.apply
    monkeypatch.setattr(applying, "apply", lambda *args, **options: killed(apply(*args, **options)))
    with pytest.raises(KeyboardInterrupt):
        one.review()
    monkeypatch.undo()
    one.advance(hours=1)


def killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_few_releases_of_a_group_that_passes_by_itself_give_no_more_of_it_to_people(
    tmp_path: Path, ledger_url: str
) -> None:
    """Six that had used up their attempts were released; ten that were never tried are held behind the same gate. The
    service throttles as before, so people hear of the six alone."""
    one = Workshop(
        tmp_path, ledger_url, **CANARY, delay_attempts=1, requeue_attempts=0, backoff={"first": "1s", "max": "1s"},
        sources=[{"queue": "orders-dlq", "lease": "2s", "max_deliveries": 3}],
    )  # fmt: skip
    one.die(*(f"old {n}" for n in range(6)), error=THROTTLED)
    for _ in range(3):
        one.cycle()
        one.advance(minutes=1)
        one.cycle()
        one.consume(lambda _: THROTTLED)
        one.advance(hours=4)
    one.cycle()
    assert one.states() == {"escalated": 6}
    one.change("update escalated_messages set decision = 'redeliver', decided_by = 'ana' where status = 'open'")
    one.review()
    one.die(*(f"new {n}" for n in range(10)), error=THROTTLED)
    one.cycle()
    assert one.consume(lambda _: THROTTLED) == 4
    one.advance(minutes=1)
    run, would = one.begin(), Counter[str]()
    for name, counts in one.stages(run):
        if name == "resolve":
            for row in preview(one.settings, "orders", Selection(), now=one.now())["plan"]:
                would[row["verdict"]] += row["messages"]
            part = preview(one.settings, "orders", Selection(causes=["application_bug"]), now=one.now())["bounds"]
        if name == "plan":
            assert counts["reopened"] == 2, "and four come to people because they came back"
            assert one.states() == {"escalated": 2, "to_review": 4, "held": 10}
    pipeline.finish(one.settings, run, "succeeded", one.now)
    assert would == {"escalate": 6, "hold": 10}
    assert "2 messages beside these expire or are put to people, as in every run" in part
    assert one.query("select stage, reason from group_state") == [("tripped", "4 of 4 came back.")]
    why = "select distinct refusal from escalated_messages where status = 'reopened' and refusal like 'Its group %'"
    assert one.query(why) == [("Its group keeps coming back: 4 of 4 came back.",)]
    one.advance(hours=4)
    one.cycle()
    one.advance(minutes=1)
    one.cycle()
    assert one.states() == {"escalated": 6, "sent": 4, "held": 6}, "it tries again by itself"
    assert one.audit() == []
    one.ledger.close()


def test_what_people_released_and_was_on_its_way_when_its_group_tripped_waits_for_no_cool_down(
    tmp_path: Path, ledger_url: str
) -> None:
    one = Workshop(tmp_path, ledger_url, canary=CANARY["canary"])
    one.die("a", "b", error=KEY_ERROR)
    one.cycle()
    one.change("update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    one.review()
    one.change(
        f"update breakers set stage = 'tripped', cool_down_until = '{one.now() + timedelta(days=1)}', reason = 'Why.'"
    )
    one.cycle()
    assert one.states() == {"escalated": 2}
    assert one.query("select distinct status, refusal from escalated_messages") == [
        ("reopened", "Its group keeps coming back: Why.")
    ]
    one.ledger.close()


def meanwhile(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, what: Callable[[], object], *, after: int = 1
) -> None:
    """A person does ``what`` at the moment when the ``after``-th of these looks into the ledger has been taken."""
    looks, real = iter(range(1, 100)), getattr(module, name)

    def look(*args: Any, **options: Any) -> Any:
        found = real(*args, **options)
        if next(looks) == after:
            person = Thread(target=what)
            person.start()
            person.join()
        return found

    monkeypatch.setattr(module, name, look)


@pytest.mark.parametrize("failed_before", [False, True])
def test_what_a_person_releases_while_a_plan_is_under_way_is_released(
    shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch, failed_before: bool
) -> None:
    one = shop(backlog=0, broken=True)
    one.die(*[f"{n:03}" for n in range(10)], error=STRANGE)
    one.cycle()
    if failed_before:
        ten_minutes(one, work=20)
        one.die(*[f"late {n}" for n in range(6)], error=STRANGE)
        one.cycle()
        assert one.gate() == ("failed", 4)
    else:
        one.work(20)
        one.advance(minutes=10)
    assert one.states()["held"] == 6

    def release() -> None:
        assert breakers.release_group(one.ledger, "orders", 1, first=3, by="ana", now=one.now())

    one.broken = False
    meanwhile(monkeypatch, breakers, "of_groups", release)
    one.cycle()
    assert one.gate() == ("canary", 4 + 3), "her three go at once"
    assert (one.states()["sent"], one.states()["held"]) == (3, 3)
    assert len(one.query("select 1 from audit_events where action = 'step_gate'")) == (1 if failed_before else 0)
    for _ in range(6):
        ten_minutes(one, work=20)
    assert one.states()["presumed"] == 6


def test_what_was_sent_before_a_release_says_nothing_of_the_fix(shop: Callable[..., Shop]) -> None:
    """Of the first canary two come back at once; the other two are slow. Meanwhile the bug is fixed."""
    one = shop(backlog=0, broken=True)
    one.die(*[f"{n:03}" for n in range(30)], error=STRANGE)
    one.cycle()
    assert one.work(2) == 2
    one.advance(minutes=10)
    one.cycle()
    assert one.gate() == ("failed", 4)
    one.advance(minutes=1)
    with one.ledger.write() as connection:
        connection.exec_driver_sql(
            "update escalated_messages set decision = 'redeliver', decided_by = 'ana' where attempts = 0"
        )
    one.review()
    one.cycle()
    assert one.gate() == ("canary", 8)
    assert one.work(2) == 2, "the two slow ones of before fail only now"
    one.broken = False
    one.advance(minutes=1)
    one.cycle()
    assert one.gate() == ("canary", 8), "neither failed by their return nor passed by it"
    for _ in range(8):
        ten_minutes(one, work=100)
    assert one.gate()[0] == "ramp"
    assert one.states() == {"presumed": 26, "escalated": 4}


def test_a_message_that_asks_for_time_does_not_hold_up_its_canary(shop: Callable[..., Shop]) -> None:
    one = shop(backlog=0, broken=False)
    one.die(*[f"{n:03}" for n in range(10)], error=STRANGE)
    one.cycle()
    received = one.broker.receive("orders", limit=100, wait=timedelta(0), lease=timedelta(minutes=1))
    asks = received[0].letter
    one.world.put("orders-delay", asks._replace(broker_message_id="", enqueued_at=None, origin="orders"))
    one.broker.settle("orders", [receipt for _, receipt in received])
    for _ in range(6):
        ten_minutes(one, work=100)
    assert one.gate()[0] == "ramp"
    assert one.states() == {"presumed": 10}
    assert one.audit() == []


def test_the_window_is_the_longest_that_the_broker_says_a_redrive_can_take(tmp_path: Path) -> None:
    """Nobody wrote lease and deliveries into the configuration."""

    class Telling(MemoryBroker):
        def describe(self, queue: str) -> Any:
            return super().describe(queue)._replace(origin_lease=timedelta(hours=1), max_deliveries=4)

    shop = Workshop(tmp_path, **CANARY, sources=[{"queue": "orders-dlq"}])
    shop.broker = Telling(shop.world)
    shop.die("a", "b", error=STRANGE)
    shop.cycle()
    shop.consume()
    shop.advance(minutes=1)
    shop.cycle()  # sees it empty
    shop.advance(hours=3, minutes=59)
    shop.cycle()
    assert shop.states() == {"sent": 2}
    shop.advance(minutes=1)
    shop.cycle()
    assert shop.states() == {"presumed": 2}
    shop.ledger.close()
