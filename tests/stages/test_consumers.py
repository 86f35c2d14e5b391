"""Sick consumers, not bad messages: who is isolated, who is freed, and what that does to the budget."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from redrive.brokers.base import ConsumerStats
from redrive.brokers.memory import MemoryBroker
from redrive.errors import BrokerUnavailable
from redrive.ledger.account import inspecting, notifications
from redrive.ledger.delivery.consumers import Health
from redrive.ledger.selecting import Selection
from redrive.notify import channels
from redrive.notify.channels import Event
from redrive.stages import deliver as deliver_stage
from redrive.stages import pipeline, preview
from redrive.stages.consumers import Closing, assess, to_close
from redrive.stages.context import Context, Run
from redrive.stages.watch import watch
from tests.workshop import REFUSED, Workshop

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TIMEOUT = timedelta(minutes=5)


def looks(*rounds: list[ConsumerStats], every: timedelta = timedelta(minutes=10)) -> list[Health]:
    """What is known after looking at these consumers, one look after the other."""
    known: list[Health] = []
    for number, seen in enumerate(rounds):
        known = assess(known, seen, ack_timeout=TIMEOUT, now=NOW + number * every)
    return known


def statuses(known: list[Health]) -> dict[str, str]:
    return {one.consumer: one.status for one in known}


def crew(stuck: int, well: int, *, turn: int) -> list[ConsumerStats]:
    """Consumers of which the first ``stuck`` hold seven messages and never ack."""
    return [ConsumerStats(f"s{n}", 7, 1) for n in range(stuck)] + [
        ConsumerStats(f"w{n}", 7, 100 * turn) for n in range(well)
    ]


def test_one_look_judges_nobody() -> None:
    assert set(statuses(looks(crew(3, 0, turn=1))).values()) == {"healthy"}


def test_who_held_messages_twice_and_acked_none_between_is_isolated() -> None:
    assert statuses(looks(crew(1, 1, turn=1), crew(1, 1, turn=2))) == {"s0": "isolated", "w0": "healthy"}


def test_not_before_the_timeout() -> None:
    rounds = [crew(1, 3, turn=n) for n in (1, 2, 3)]
    assert statuses(looks(*rounds[:2], every=timedelta(minutes=3)))["s0"] == "healthy"
    assert statuses(looks(*rounds, every=timedelta(minutes=3)))["s0"] == "isolated"


@pytest.mark.parametrize(
    ("first", "second"),
    [((7, 1), (7, 2)), ((0, 1), (7, 1)), ((7, 1), (0, 1))],
    ids=["it acked", "it just got them", "it gave them back"],
)
def test_who_got_on_is_well(first: tuple[int, int], second: tuple[int, int]) -> None:
    known = looks([ConsumerStats("c", *first)], [ConsumerStats("c", *second)])
    assert statuses(known) == {"c": "healthy"}


@pytest.mark.parametrize(
    ("stuck", "well", "isolated"), [(1, 0, 0), (1, 1, 1), (2, 3, 2), (4, 1, 3), (5, 0, 3), (10, 0, 6)]
)
def test_at_most_sixty_percent_are_isolated(stuck: int, well: int, isolated: int) -> None:
    known = statuses(looks(crew(stuck, well, turn=1), crew(stuck, well, turn=2)))
    assert list(known.values()).count("isolated") == isolated
    assert list(known.values()).count("stuck") == stuck - isolated


def test_who_is_isolated_stays_so_while_others_get_stuck() -> None:
    first = looks(crew(2, 3, turn=1), crew(2, 3, turn=2))
    later = assess(first, crew(2, 3, turn=2), ack_timeout=TIMEOUT, now=NOW + timedelta(hours=1))
    assert statuses(later) == {"s0": "isolated", "s1": "isolated", "w0": "isolated", "w1": "stuck", "w2": "stuck"}


def test_an_ack_or_leaving_frees() -> None:
    known = looks(crew(2, 3, turn=1), crew(2, 3, turn=2))
    acked = [ConsumerStats("s0", 6, 2), *crew(0, 3, turn=3)]
    after = assess(known, acked, ack_timeout=TIMEOUT, now=NOW + timedelta(minutes=20))
    assert statuses(after) == {"s0": "healthy", "s1": "gone", "w0": "healthy", "w1": "healthy", "w2": "healthy"}
    assert all(one.isolated_at is None for one in after)


def test_who_comes_back_under_its_name_begins_anew() -> None:
    known = looks(crew(1, 3, turn=1), crew(1, 3, turn=2), crew(0, 3, turn=3), crew(1, 3, turn=4))
    assert statuses(known)["s0"] == "healthy"


# --- between runs ---------------------------------------------------------------------------------------------


def test_a_watcher_finds_a_stuck_consumer_within_the_timeout_and_one_look(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, isolation={"ack_timeout": "5m"}, notify=[{"connection": "nowhere"}])
    every, began = timedelta(seconds=30), workshop.now()
    for turn in range(30):
        for one in crew(1, 1, turn=turn):
            workshop.world.tell_consumer("orders", one.consumer, unacked=one.unacked, progress=one.progress)
        if watch(workshop.settings, "orders", workshop.broker, workshop.now()):
            break
        workshop.advance(seconds=every.total_seconds())

    assert workshop.now() - began <= timedelta(minutes=5) + every
    assert workshop.query("select consumer, status from consumer_health order by consumer") == [
        ("s0", "isolated"),
        ("w0", "healthy"),
    ]
    assert workshop.query("select event, subject from notifications") == [("consumers_stuck", "orders")]
    assert workshop.query("select count(*) from runs") == [(0,)], "it takes no route, so it delays no run"
    workshop.world.tell_consumer("orders", "s0", unacked=6, progress=2)
    assert watch(workshop.settings, "orders", workshop.broker, workshop.now()) == 0
    assert workshop.query("select count(*) from notifications where resolved_at is null") == [(0,)]
    workshop.ledger.close()


# --- the budget ----------------------------------------------------------------------------------------------


def stick(workshop: Workshop, stuck: int, well: int) -> None:
    """Let the destination's consumers be seen twice: so many make no progress, so many do."""
    for turn in (1, 2):
        for one in crew(stuck, well, turn=turn):
            workshop.world.tell_consumer("orders", one.consumer, unacked=one.unacked, progress=one.progress)
        workshop.cycle()
        workshop.advance(minutes=6)


def health(workshop: Workshop) -> dict[str, int]:
    return dict(workshop.query("select status, count(*) from consumer_health group by status"))  # type: ignore[arg-type]


def test_the_budget_shrinks_to_the_healthy_share(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, rate={"max_in_flight": 10})
    stick(workshop, stuck=2, well=2)
    assert health(workshop) == {"isolated": 2, "healthy": 2}
    workshop.die(*(f"{n}" for n in range(30)), error=REFUSED)

    assert deliver(workshop, planned(workshop, well=2)) == 5, "half of the consumers, half of what may be in flight"


def test_what_was_seen_of_stuck_consumers_long_ago_holds_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The management API is away since, and the consumers may have been restarted."""
    workshop = Workshop(tmp_path)
    stick(workshop, stuck=2, well=0)
    workshop.die("a", "b", error=REFUSED)
    assert health(workshop) == {"isolated": 1, "stuck": 1}

    def away(queue: str) -> list[ConsumerStats]:
        raise BrokerUnavailable(f"consumers of queue {queue}: 503")

    monkeypatch.setattr(workshop.broker, "consumers", away)
    assert workshop.cycle()["redelivered"] == 0, "so they were minutes ago"
    workshop.advance(hours=1)
    assert workshop.cycle()["redelivered"] == 2


def go_on(workshop: Workshop, well: int) -> None:
    """Those who are well have acked again."""
    for n in range(well):
        workshop.world.tell_consumer("orders", f"w{n}", unacked=7, progress=300)


def planned(workshop: Workshop, *, well: int) -> Run:
    """A run that is about to deliver."""
    go_on(workshop, well)
    return workshop.planned()


def deliver(workshop: Workshop, run: Run) -> int:
    with Context(workshop.settings, run, clock=workshop.now, broker=workshop.broker) as context:
        counts = deliver_stage.deliver(
            context,
            monotonic=lambda: workshop.time.now / 1e6,
            sleep=lambda seconds: workshop.advance(seconds=seconds),
        )
    return counts["redelivered"]


def test_a_smaller_crew_gets_less_per_second(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, rate={"per_second": 10}, deliver={"confirm_window": 5, "run_for": "10s"})
    stick(workshop, stuck=2, well=2)
    workshop.die(*(f"{n:03}" for n in range(300)), error=REFUSED)

    assert 45 <= deliver(workshop, planned(workshop, well=2)) <= 65, (
        "five per second for ten seconds, and what was saved up"
    )


def test_with_all_of_them_stuck_nothing_goes_until_one_acks(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    stick(workshop, stuck=3, well=0)
    assert health(workshop) == {"isolated": 1, "stuck": 2}
    workshop.die("a", "b", error=REFUSED)
    assert workshop.cycle()["redelivered"] == 0
    assert workshop.states() == {"waiting": 2}

    workshop.advance(minutes=6)
    workshop.world.tell_consumer("orders", "s1", unacked=6, progress=2)
    assert workshop.cycle()["redelivered"] == 2
    assert workshop.audit() == []


def test_a_consumer_that_leaves_no_longer_counts(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    stick(workshop, stuck=1, well=0)
    workshop.world.remove_consumer("orders", "s0")
    workshop.world.tell_consumer("orders", "new", unacked=0, progress=0)
    workshop.die("a", error=REFUSED)

    assert workshop.cycle()["redelivered"] == 1
    assert health(workshop) == {"gone": 1, "healthy": 1}


def test_people_are_told_of_stuck_consumers_until_they_get_on(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, notify=[{"connection": "nowhere"}])
    stick(workshop, stuck=2, well=2)
    told = "select event, subject, resolved_at is null from notifications"
    assert workshop.query(told) == [("consumers_stuck", "orders", True)]
    with workshop.ledger.read() as connection:
        facts = notifications.stuck(connection, "orders", now=workshop.now())["orders"]
        (title, text) = channels._words(Event("1", "consumers_stuck", "orders", "orders", "", facts))
        seen = inspecting.status(connection, "orders", workshop.now())["stuck_consumers"]
    assert title == "orders: 2 consumers of orders hold messages and get nowhere"
    assert "2 are isolated" in text
    assert [(one["consumer"], one["status"]) for one in seen] == [("s0", "isolated"), ("s1", "isolated")]

    for name in ("s0", "s1"):
        workshop.world.tell_consumer("orders", name, unacked=0, progress=1)
    go_on(workshop, well=2)
    workshop.cycle()
    assert workshop.query(told) == [("consumers_stuck", "orders", False)]


def test_of_a_queue_that_nobody_looks_at_any_more_no_alarm_stays(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, notify=[{"connection": "nowhere"}])
    stick(workshop, stuck=2, well=2)
    workshop.world.create("elsewhere", lease=timedelta(minutes=5))
    workshop.settings = workshop.configure(
        workshop.settings.database,
        notify=[{"connection": "nowhere"}],
        sources=[{"queue": "orders-dlq", "kind": "dead_letter", "lease": "2s", "max_deliveries": 3}],
        destination={"queue": "elsewhere"},
    )
    open_alarms = "select subject from notifications where event = 'consumers_stuck' and resolved_at is null"
    workshop.cycle()
    assert workshop.query(open_alarms) == [("orders",)], "so they were minutes ago"
    workshop.advance(hours=1)
    workshop.cycle()
    assert workshop.query(open_alarms) == []


def test_isolating_and_freeing_are_told(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    stick(workshop, stuck=1, well=2)
    workshop.world.tell_consumer("orders", "s0", unacked=0, progress=1)
    go_on(workshop, well=2)
    workshop.cycle()

    rows = workshop.query(
        "select action, to_state, reason is not null from audit_events where action like '%consumer' order by event_id"
    )
    assert [(action, state, bool(why)) for action, state, why in rows] == [
        ("isolate_consumer", "isolated", True),
        ("free_consumer", "healthy", False),
    ]


def test_a_broker_that_does_not_say_leaves_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop = Workshop(tmp_path)
    stick(workshop, stuck=1, well=1)

    def away(queue: str) -> list[ConsumerStats]:
        raise BrokerUnavailable(f"consumers of {queue}: no answer")

    monkeypatch.setattr(workshop.broker, "consumers", away)
    workshop.die("a", error=REFUSED)
    assert workshop.cycle()["redelivered"] == 1
    assert health(workshop) == {"isolated": 1, "healthy": 1}


def test_who_may_not_look_is_not_held_up(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    workshop.world.faults.forbidden.add(("orders", "consumers"))
    workshop.die("a", error=REFUSED)

    assert workshop.cycle()["redelivered"] == 1


# --- messages of a consumer that was stuck ---------------------------------------------------------------------

HUNG = "celery.exceptions.SoftTimeLimitExceeded: SoftTimeLimitExceeded()"


def test_a_message_whose_consumer_hung_is_held_until_the_consumers_are_well_then_requeued(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    stick(workshop, stuck=1, well=2)
    workshop.die("hung", error=HUNG)
    workshop.die("refused", error=REFUSED)
    go_on(workshop, well=2)
    assert (workshop.cycle()["redelivered"], workshop.bodies("orders")) == (1, [b"refused"])
    held = "select state, plan, reason from messages where cause = 'consumer_stuck'"
    assert workshop.query(held) == [("held", "hold", "consumer_stuck: Consumers of its destination are stuck.")]
    workshop.advance(minutes=6)
    go_on(workshop, well=2)
    assert workshop.cycle()["held"] == 1, "still stuck"

    for name in ("s0", "w0", "w1"):
        workshop.world.tell_consumer("orders", name, unacked=0, progress=400)
    assert workshop.cycle()["redelivered"] == 1
    assert workshop.query("select state, mode, requeues, delays from messages inner join redelivery_attempts using"
                          " (message_id) where cause = 'consumer_stuck'") == [("sent", "requeue", 1, 0)]  # fmt: skip
    assert workshop.audit() == []


def test_a_dry_run_says_that_it_is_held(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    stick(workshop, stuck=1, well=2)
    workshop.die("hung", error=HUNG)
    workshop.cycle()
    [row] = preview.preview(workshop.settings, "orders", Selection(), now=workshop.now())["plan"]
    assert (row["messages"], row["verdict"], row["when"]) == (1, "hold", "once they are well")


def test_where_nobody_tells_of_consumers_holding_means_waiting(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    workshop.world.faults.forbidden.add(("orders", "consumers"))
    workshop.die("hung", error=HUNG)
    workshop.cycle()
    assert workshop.query("select state, plan from messages") == [("waiting", "delay")]


def test_what_was_seen_of_consumers_long_ago_holds_nothing(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    stick(workshop, stuck=1, well=2)
    workshop.world.faults.forbidden.add(("orders", "consumers"))
    workshop.advance(hours=2)
    workshop.die("hung", error=HUNG)
    workshop.cycle()
    assert workshop.query("select state, plan from messages") == [("waiting", "delay")]


# --- closing connections -------------------------------------------------------------------------------------


def there(*crew: str, shared: str = "") -> list[ConsumerStats]:
    """Consumers written as ``name@connection``, each of which holds something."""
    return [
        ConsumerStats(name, 7, 1, connection, connection == shared)
        for name, _, connection in (one.partition("@") for one in crew)
    ]


def assessed(status: str, *names: str, **fields: datetime) -> list[Health]:
    return [Health(name, 7, 1, NOW - timedelta(minutes=10), status, **fields) for name in names]


def test_a_connection_of_isolated_consumers_alone_is_closed() -> None:
    crew = there("s0@x", "s1@x", "w0@y", "w1@y")
    known = [*assessed("isolated", "s0", "s1"), *assessed("healthy", "w0", "w1")]
    assert to_close([], known, crew, now=NOW) == [Closing("x", ("s0", "s1"))]


@pytest.mark.parametrize(
    ("crew", "isolated", "healthy", "why"),
    [
        (there("s0@x", "w0@x", "w1@y"), ["s0"], ["w0", "w1"], "not isolated"),
        (there("s0@x", "w0@y", shared="x"), ["s0"], ["w0"], "other queues"),
        (there("s0@x", "s1@y", "s2@z"), ["s0"], [], "no healthy consumer"),
    ],
    ids=["others work over it", "it serves another queue too", "nobody is left to take over"],
)
def test_a_connection_that_others_need_stays(
    crew: list[ConsumerStats], isolated: list[str], healthy: list[str], why: str
) -> None:
    stuck = [one.consumer for one in crew if one.consumer not in (*isolated, *healthy)]
    known = [*assessed("isolated", *isolated), *assessed("healthy", *healthy), *assessed("stuck", *stuck)]
    [left] = to_close([], known, crew, now=NOW)
    assert why in left.why_not


def test_a_message_at_which_whoever_gets_it_hangs_does_not_close_one_after_another() -> None:
    """Two consumers; the first was closed ten minutes ago and came back, now the second hangs."""
    before = assessed("gone", "s0", closed_at=NOW - timedelta(minutes=10))
    now = [*assessed("isolated", "s1"), *assessed("healthy", "again")]
    crew = there("s1@y", "again@z")
    [left] = to_close(before, now, crew, now=NOW)
    assert "60%" in left.why_not

    long_ago = [one._replace(closed_at=NOW - timedelta(hours=2)) for one in before]
    assert to_close(long_ago, now, crew, now=NOW) == [Closing("y", ("s1",))]


def test_closed_is_asked_for_once_as_long_as_statistics_may_be_late() -> None:
    crew = there("s0@x", "w0@y", "w1@y")
    asked = [*assessed("isolated", "s0", closed_at=NOW - timedelta(seconds=10)), *assessed("healthy", "w0", "w1")]
    assert to_close([], asked, crew, now=NOW) == []
    assert to_close([], asked, crew, now=NOW + timedelta(minutes=5)) == [Closing("x", ("s0",))], (
        "it is still there: whoever was to ask the broker did not come to it"
    )


def closing(folder: Path, stuck: int = 1, well: int = 1) -> Workshop:
    """Stuck consumers have a connection each; they have just been found."""
    workshop = Workshop(folder, isolation={"action": "close_connection"})
    for turn in (1, 2):
        for one in crew(stuck, well, turn=turn):
            workshop.world.tell_consumer(
                "orders", one.consumer, unacked=7, progress=one.progress, connection=f"of-{one.consumer}"
            )
        if turn == 1:
            workshop.cycle()
            workshop.advance(minutes=6)
    return workshop


def told(workshop: Workshop) -> list[tuple[str, int]]:
    return workshop.query(  # type: ignore[return-value]
        "select action, count from audit_events where action like '%connection%' order by event_id"
    )


def test_the_connection_of_an_isolated_consumer_is_closed_and_that_is_told(tmp_path: Path) -> None:
    workshop = closing(tmp_path)
    workshop.cycle()
    [(connection, reason)] = workshop.world.closed
    assert connection == "of-s0"
    assert "orders" in reason
    assert told(workshop) == [("close_connection", 1)]

    workshop.world.tell_consumer("orders", "w0", unacked=1, progress=900)
    workshop.cycle()
    assert health(workshop) == {"gone": 1, "healthy": 1}
    assert len(workshop.world.closed) == 1


def test_never_more_than_sixty_percent_are_closed(tmp_path: Path) -> None:
    workshop = closing(tmp_path, stuck=9, well=1)
    for turn in range(3, 6):
        workshop.cycle()
        workshop.advance(minutes=6)
        workshop.world.tell_consumer("orders", "w0", unacked=7, progress=100 * turn)
    assert len(workshop.world.closed) == 6
    assert health(workshop)["gone"] == 6


def test_where_all_have_to_connect_anew_that_is_done_once_an_hour_and_only_while_one_is_well(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, isolation={"action": "close_connection"})
    workshop.world.capabilities = replace(workshop.world.capabilities, closes_all_together=True)
    workshop.broker = MemoryBroker(workshop.world)

    def hang(*, well: int, since: int) -> int:
        """Somebody hangs for twelve minutes, among so many who work; how often all had to connect anew by then."""
        for turn in (since, since + 1, since + 2):
            for one in crew(1, well, turn=turn):
                workshop.world.tell_consumer(
                    "orders", one.consumer, unacked=7, progress=one.progress, connection="orders"
                )
            workshop.cycle()
            workshop.advance(minutes=6)
        return len(workshop.world.closed)

    assert hang(well=0, since=1) == 0, "nobody could take over"
    assert hang(well=1, since=11) == 1
    assert hang(well=1, since=21) == 1, "not again within the hour"
    workshop.advance(hours=1)
    assert hang(well=1, since=31) == 2
    assert [action for action, _ in told(workshop)] == ["close_connection"] * 2


def test_by_default_nobody_is_closed(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    stick(workshop, stuck=1, well=1)
    assert (health(workshop), workshop.world.closed) == ({"isolated": 1, "healthy": 1}, [])


def test_a_refusal_is_told_and_the_run_goes_on(tmp_path: Path) -> None:
    workshop = closing(tmp_path)
    workshop.world.faults.forbidden.add(("orders", "close_connection"))
    workshop.die("a", error=REFUSED)
    said: list[str] = []
    run = workshop.begin()
    counts = pipeline.observe(workshop.settings, run, progress=lambda text, *_: said.append(text), **workshop.options())
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    assert counts["isolated_consumers"] == 1
    assert "closed_connections" not in counts
    assert any("stays open" in text and "not allowed" in text for text in said)
    assert told(workshop) == [("close_connection", 1), ("connection_stayed", 1)]

    workshop.world.faults.forbidden.clear()
    workshop.world.tell_consumer("orders", "w0", unacked=7, progress=900)
    assert workshop.cycle()["redelivered"] == 1
    assert len(workshop.world.closed) == 1, "asked again once it may"


def test_consumers_that_left_long_ago_are_forgotten(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    stick(workshop, stuck=1, well=1)
    workshop.world.remove_consumer("orders", "s0")
    workshop.cycle()
    workshop.advance(days=8)
    workshop.cycle()
    assert workshop.query("select consumer from consumer_health") == [("w0",)]
