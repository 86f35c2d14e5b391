"""Claims, windows, marks and recovery: nothing is sent twice in silence, and a crash leaves one window unknown."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from redrive.errors import LeaseLost
from redrive.ledger import leases
from redrive.ledger.delivery import claims, lanes, recovery, windows
from redrive.ledger.delivery.claims import Slice
from redrive.ledger.delivery.windows import Mark
from redrive.ledger.engine import parse_instant
from redrive.ledger.selecting import Selection
from redrive.lifecycle import FINISHED, State
from tests.ledger.planting import Plant, entering, unchanged


@pytest.fixture
def due(plant: Plant) -> Plant:
    """Six messages that are due."""
    plant.messages(6)
    plant.make_due()
    return plant


def claimed(plant: Plant, limit: int = 1000) -> Slice:
    found = plant.claim(limit)
    assert found is not None
    return found


def sent(one: claims.Claimed) -> Mark:
    return Mark(one.message_id, one.attempt, "sent", f"b-{one.message_id}")


def counters(plant: Plant) -> list[tuple]:
    return plant.rows("select attempts, requeues, delays, send_failures from messages order by message_id")


def test_a_claim_counts_the_attempt_and_names_its_slice(due: Plant) -> None:
    slice_ = claimed(due, 2)
    assert [m.attempt for m in slice_.messages] == [1, 1]
    assert due.states() == {"sending": 2, "waiting": 4}
    assert counters(due)[:3] == [(1, 1, 0, 0), (1, 1, 0, 0), (0, 0, 0, 0)]
    assert (
        due.rows("select slice_id, mode, sent_at from redelivery_attempts") == [(slice_.slice_id, "requeue", None)] * 2
    )


@pytest.mark.parametrize("counted", [False, True], ids=["never counted", "counted while nothing waited"])
def test_a_slice_is_looked_up_whatever_postgresql_believes_of_the_tables(plant: Plant, *, counted: bool) -> None:
    """It has counted neither what waits since the last load nor the attempts of this slice."""
    if plant.ledger.dialect.name != "postgresql":
        return
    plant.messages(2000)
    if counted:
        with plant.ledger.write() as connection:
            connection.exec_driver_sql("analyze messages")
    plant.make_due()
    plans: dict[str, str] = {}

    def note(connection: Any, _cursor: object, statement: str, values: Any, *_: object) -> None:
        if statement.startswith("update messages set state") and "redelivery_attempts" in statement:
            rows = connection.connection.driver_connection.execute(f"explain {statement}", values).fetchall()
            plans[values["target_state"]] = " ".join(row[0] for row in rows)

    event.listen(plant.ledger.engine, "before_cursor_execute", note)
    try:
        some = claimed(plant, 20)
        plant.announce(some, some.messages[-1].message_id)
        plant.mark(some, [sent(one) for one in some.messages])
    finally:
        event.remove(plant.ledger.engine, "before_cursor_execute", note)
    assert set(plans) == {"sending", "sent"}
    assert all("InitPlan" in plan and "Join" not in plan and "Loop" not in plan for plan in plans.values()), plans
    assert all("pk_messages" in plan and "ix_messages" not in plan for plan in plans.values()), plans


def test_a_claim_of_nothing_writes_nothing(plant: Plant) -> None:
    plant.messages(1)
    assert plant.claim() is None
    assert plant.rows("select * from delivery_slices") == []


@pytest.mark.parametrize("threads", [6])
def test_many_claimers_at_once_never_claim_a_message_twice(plant: Plant, threads: int) -> None:
    plant.messages(300)
    plant.make_due()
    got: list[list[int]] = [[] for _ in range(threads)]
    errors: list[BaseException] = []
    start = threading.Barrier(threads)

    def work(shard: int) -> None:
        start.wait()
        try:
            while found := plant.claim(17, shard=shard):
                got[shard] += [m.message_id for m in found.messages]
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(shard,)) for shard in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert errors == []
    everything = [message_id for some in got for message_id in some]
    assert len(everything) == len(set(everything)) == 300
    assert plant.value("select count(*) from redelivery_attempts") == 300
    assert plant.value("select sum(claimed) from delivery_slices") == 300


def test_what_is_not_due_or_for_another_queue_or_for_people_is_not_claimed(due: Plant) -> None:
    ids = [row[0] for row in due.rows("select message_id from messages order by message_id")]
    due.change("update messages set next_attempt_at = :at where message_id = :id", at=due.now, id=ids[0])
    due.change(
        "update messages set next_attempt_at = :later_at where message_id = :id",
        later_at=due.now + timedelta(seconds=1),
        id=ids[1],
    )
    due.change("update messages set destination = 'billing' where message_id = :id", id=ids[2])
    due.change(f"update messages set {entering('to_review')} where message_id = :id", id=ids[3])
    due.change("update messages set cause = 'throttled' where message_id = :id", id=ids[4])
    assert [m.message_id for m in claimed(due, 10).messages] == [ids[0], ids[4], ids[5]]


def test_causes_with_a_rate_of_their_own_are_claimed_apart(due: Plant) -> None:
    first = due.value("select min(message_id) from messages")
    due.change("update messages set cause = 'throttled' where message_id = :id", id=first)
    slow = due.claim(causes=("throttled",))
    assert slow is not None
    assert [m.message_id for m in slow.messages] == [first]
    rest = due.claim(except_causes=("throttled",))
    assert rest is not None
    assert len(rest.messages) == 5


def test_a_selection_limits_the_claim(due: Plant) -> None:
    assert due.claim(selection=Selection(causes=("throttled",))) is None
    assert due.claim(selection=Selection(since=due.now + timedelta(seconds=1))) is None
    found = due.claim(selection=Selection(causes=("transient_network",), until=due.now + timedelta(seconds=1)))
    assert found is not None
    assert len(found.messages) == 6


@pytest.mark.parametrize("earlier", [state for state in State if state not in FINISHED])
def test_with_order_a_message_waits_for_every_earlier_unfinished_one_of_its_key(plant: Plant, earlier: str) -> None:
    first, second = plant.messages(2, order_key="customer-1")
    (other,) = plant.messages(1, order_key="customer-2")
    (free,) = plant.messages(1)
    plant.make_due()
    plant.change(f"update messages set {entering(earlier)} where message_id = :id", id=first)
    if earlier == "waiting":
        plant.change("update messages set next_attempt_at = :later_at where message_id = :id",
                     later_at=plant.now + timedelta(hours=1), id=first)  # fmt: skip
    found = plant.claim(in_order=True)
    assert found is not None
    assert [m.message_id for m in found.messages] == [other, free]
    assert second not in [m.message_id for m in found.messages]


@pytest.mark.parametrize("earlier", sorted(FINISHED))
def test_with_order_a_finished_message_lets_the_next_one_go(plant: Plant, earlier: str) -> None:
    first, second = plant.messages(2, order_key="customer-1")
    plant.make_due()
    plant.change(f"update messages set {entering(earlier)} where message_id = :id", id=first)
    found = plant.claim(in_order=True)
    assert found is not None
    assert [m.message_id for m in found.messages] == [second]


def test_with_order_one_slice_holds_one_message_of_a_key(plant: Plant) -> None:
    plant.messages(3, order_key="customer-1")
    plant.make_due()
    found = plant.claim(in_order=True)
    assert found is not None
    assert len(found.messages) == 1


def test_claims_of_other_tasks_take_the_room_that_a_depth_could_not_show(plant: Plant) -> None:
    plant.messages(10)
    plant.make_due()
    with plant.ledger.read() as connection:
        newest, sent_before = claims.seen(connection, plant.route)
    room = claims.Room(6, 1, newest, sent_before)
    assert plant.claim(4, rooms=[room]) is not None
    found = plant.claim(4, rooms=[room])
    assert found is not None
    assert len(found.messages) == 2
    with pytest.raises(claims.NoRoom):
        plant.claim(4, rooms=[room])
    windows.give_back(plant.ledger, plant.lease, found.slice_id, [m.message_id for m in found.messages], plant.now)
    again = plant.claim(4, rooms=[room])
    assert again is not None
    assert len(again.messages) == 2


def test_claims_of_other_routes_take_the_room_that_a_late_depth_could_not_show(plant: Plant) -> None:
    other = Plant(plant.ledger, "other")
    for one in (plant, other):
        one.messages(10)
        one.make_due()
    before = other.claim(3)
    assert before is not None
    other.change("update delivery_slices set closed_at = :now", now=other.now)  # the depth shows it
    minute = timedelta(minutes=1)
    with plant.ledger.read() as connection:
        room = claims.Room(6, 1, *claims.seen(connection, plant.route), as_of=plant.now + minute)
    other.now = plant.now = plant.now + 3 * minute
    since = other.claim(2)
    assert since is not None
    other.change("update delivery_slices set closed_at = :now where closed_at is null", now=other.now)
    assert other.claim(1) is not None  # it is under way
    found = plant.claim(4, rooms=[room])
    assert found is not None
    assert len(found.messages) == 3, "of six, two and one are the other route's"
    with pytest.raises(claims.NoRoom):
        plant.claim(1, rooms=[room])
    plant.change("update delivery_slices set system = 'elsewhere' where slice_id = :slice_id", slice_id=since.slice_id)
    again = plant.claim(4, rooms=[room])
    assert again is not None
    assert len(again.messages) == 2, "a queue of that name somewhere else is another one"


# --- marks ------------------------------------------------------------------------------------------------


def test_a_window_that_was_sent_is_marked_sent(due: Plant) -> None:
    slice_ = claimed(due)
    due.announce(slice_, slice_.messages[-1].message_id)
    due.mark(slice_, [sent(m) for m in slice_.messages])
    assert due.states() == {"sent": 6}
    assert due.rows("select sent, confirmed_to = high_water from delivery_slices") == [(6, True)]
    assert due.value("select count(*) from redelivery_attempts where sent_at is not null") == 6


def test_a_window_is_marked_without_what_was_given_back_and_another_slice_has(due: Plant) -> None:
    slice_ = claimed(due)
    windows.give_back(due.ledger, due.lease, slice_.slice_id, [slice_.messages[2].message_id], due.now)
    other = claimed(due)
    marks = [Mark(one.message_id, one.attempt, "sent") for number, one in enumerate(slice_.messages) if number != 2]
    windows.raise_mark(due.ledger, due.lease, slice_.slice_id, marks[-1].message_id, due.now)
    windows.mark(due.ledger, due.lease, slice_.slice_id, marks, tries=3, now=due.now, first_sends=True)
    not_sent = due.rows("select message_id, slice_id from redelivery_attempts where sent_at is null")
    assert not_sent == [(other.messages[0].message_id, other.slice_id)]


def test_a_message_of_which_nobody_says_how_it_ended_is_not_taken_for_sent(due: Plant) -> None:
    slice_ = claimed(due)
    due.announce(slice_, slice_.messages[-1].message_id)
    marks = [Mark(one.message_id, one.attempt, "sent") for number, one in enumerate(slice_.messages) if number != 2]
    with pytest.raises(AssertionError, match="5 marks, 6 attempts"):
        windows.mark(due.ledger, due.lease, slice_.slice_id, marks, tries=3, now=due.now, first_sends=True)
    assert due.value("select count(*) from redelivery_attempts where sent_at is not null") == 0
    assert due.rows("select confirmed_to from delivery_slices") == [(-1,)], "recovery finds the window unknown"


def test_messages_and_their_group_follow_when_the_slice_is_closed_and_only_once(due: Plant) -> None:
    slice_ = claimed(due)
    due.announce(slice_, slice_.messages[-1].message_id)
    windows.mark(
        due.ledger, due.lease, slice_.slice_id, [sent(m) for m in slice_.messages[:4]], tries=3, now=due.now,
        following=(slice_.slice_id, slice_.messages[-1].message_id),
    )  # fmt: skip
    assert due.states() == {"sending": 6}, "what was sent is durable in the attempts"
    assert due.value("select count(*) from redelivery_attempts where sent_at is not null") == 4
    due.mark(slice_, [sent(m) for m in slice_.messages[4:]])
    windows.close(due.ledger, due.lease, slice_.slice_id, due.now)
    assert due.states() == {"sent": 6}
    assert due.value("select sum(count) from audit_events where action = 'send'") == 6


def test_every_fate_within_one_window_is_kept_apart(due: Plant) -> None:
    slice_ = claimed(due)
    due.announce(slice_, slice_.messages[-1].message_id)
    fates = ["sent", "retry", "refused", "unknown", "sent", "retry"]
    due.mark(
        slice_,
        [Mark(m.message_id, m.attempt, fate, None, "why") for m, fate in zip(slice_.messages, fates, strict=True)],
    )
    assert due.rows("select state, plan, attempts, send_failures from messages order by message_id") == [
        ("sent", "requeue", 1, 0),
        ("waiting", "requeue", 0, 0),
        ("to_review", None, 0, 3),
        ("unknown", "requeue", 1, 0),
        ("sent", "requeue", 1, 0),
        ("waiting", "requeue", 0, 0),
    ]
    assert due.rows("select attempt from redelivery_attempts") == [(1,)] * 3, "what was not sent leaves no attempt"
    assert due.rows("select reason from messages where state = 'to_review'") == [("It could not be sent: why",)]


def test_what_could_not_be_sent_waits_a_little_with_its_counters_as_before(due: Plant) -> None:
    before = counters(due)
    slice_ = claimed(due)
    due.announce(slice_, slice_.messages[-1].message_id)
    due.mark(slice_, [Mark(m.message_id, m.attempt, "retry", None, "throttled") for m in slice_.messages])
    assert due.states() == {"waiting": 6}
    assert counters(due) == before, "a broker in trouble is not the messages' fault"
    late = due.now + windows.RETRY_AFTER
    assert (
        due.value(
            "select count(*) from messages where next_attempt_at between :now and :late_at", now=due.now, late_at=late
        )
        == 6
    )


def test_a_message_that_cannot_be_sent_goes_to_people_after_its_tries(plant: Plant) -> None:
    plant.messages(2)
    plant.make_due()
    for _ in range(3):
        slice_ = claimed(plant, 2)
        plant.announce(slice_, slice_.messages[-1].message_id)
        bad, *good = slice_.messages
        plant.mark(slice_, [Mark(bad.message_id, bad.attempt, "retry", None, "poison"), *map(sent, good)], tries=3)
        plant.change("update messages set state = 'waiting', attempts = 0 where state = 'sent'")
        plant.change("update redelivery_attempts set sent_at = null")
        plant.change("delete from redelivery_attempts")
        plant.change("update messages set next_attempt_at = :now", now=plant.now)
    assert plant.rows("select state, reason, attempts from messages order by message_id limit 1") == [
        ("to_review", "It could not be sent: poison", 0)
    ]
    assert len(claimed(plant, 2).messages) == 1, "it is not claimed again, and its neighbour is"


@pytest.mark.parametrize(
    "fates",
    [
        ["sent", "retry", "retry"],  # throttled, or its queue is full
        ["unknown", "retry", "sent"],  # behind a message of its key
        ["refused", "retry", "sent"],
        ["retry"],
    ],
)
def test_what_waits_for_the_broker_or_for_another_message_costs_it_no_try(plant: Plant, fates: list[str]) -> None:
    plant.messages(len(fates))
    plant.make_due()
    for _ in range(4):
        slice_ = claimed(plant, len(fates))
        plant.announce(slice_, slice_.messages[-1].message_id)
        marks = [Mark(m.message_id, m.attempt, f, None, "why") for m, f in zip(slice_.messages, fates, strict=True)]
        plant.mark(slice_, marks, tries=3)
        waits = plant.rows("select send_failures, reason from messages where state = 'waiting'")
        assert waits == [(0, None)] * fates.count("retry")
        plant.change("update messages set send_failures = 0, reason = null where state = 'to_review'")
        plant.change(
            "update messages set state = 'waiting', plan = 'requeue', attempts = 0, next_attempt_at = :now",
            now=plant.now,
        )
        plant.change("update redelivery_attempts set sent_at = null, unknown_at = null")
        plant.change("delete from redelivery_attempts")


def test_a_deadline_that_has_passed_stops_the_next_window(due: Plant) -> None:
    slice_ = claimed(due)
    due.now += timedelta(minutes=10)
    with unchanged(due), pytest.raises(LeaseLost, match="has run out; nothing more of it is sent"):
        due.announce(slice_, slice_.messages[0].message_id)


def test_after_its_deadline_a_window_is_still_marked_but_no_next_one_announced(due: Plant) -> None:
    slice_ = claimed(due)
    due.announce(slice_, slice_.messages[0].message_id)
    late = due.now + timedelta(minutes=10)
    announced = windows.mark(
        due.ledger, due.lease, slice_.slice_id, [sent(slice_.messages[0])], tries=3, now=late,
        following=(slice_.slice_id, slice_.messages[1].message_id),
    )  # fmt: skip
    assert not announced
    assert due.value("select count(*) from redelivery_attempts where sent_at is not null") == 1
    assert due.value("select high_water from delivery_slices") == slice_.messages[0].message_id


def test_what_was_given_back_is_as_if_never_claimed(due: Plant) -> None:
    before = counters(due)
    slice_ = claimed(due)
    assert (
        windows.give_back(due.ledger, due.lease, slice_.slice_id, [m.message_id for m in slice_.messages], due.now) == 6
    )
    assert counters(due) == before
    assert due.rows("select * from redelivery_attempts") == []
    assert len(claimed(due).messages) == 6


def test_what_was_processed_already_is_suppressed(due: Plant) -> None:
    slice_ = claimed(due)
    done = [m.message_id for m in slice_.messages[:2]]
    assert windows.suppress(due.ledger, due.lease, slice_.slice_id, done, due.now) == 2
    assert due.states() == {"suppressed": 2, "sending": 4}
    assert counters(due)[0] == (0, 0, 0, 0)


# --- crashes ----------------------------------------------------------------------------------------------


def crash_after_two_of_three_windows(plant: Plant) -> Slice:
    """Six claimed: two marked sent, two announced and never marked, two above the mark."""
    slice_ = claimed(plant)
    plant.announce(slice_, slice_.messages[1].message_id)
    windows.mark(
        plant.ledger, plant.lease, slice_.slice_id, [sent(m) for m in slice_.messages[:2]], tries=3, now=plant.now,
        following=(slice_.slice_id, slice_.messages[3].message_id),
    )  # fmt: skip
    return slice_


def test_after_a_crash_only_the_window_in_the_brokers_hands_is_unknown(due: Plant) -> None:
    slice_ = crash_after_two_of_three_windows(due)
    due.begin()
    assert recovery.recover(due.ledger, due.lease, due.now) == {"given_back": 2, "unknown": 2}
    assert due.rows("select state, attempts, requeues from messages order by message_id") == (
        [("sent", 1, 1)] * 2 + [("unknown", 1, 1)] * 2 + [("waiting", 0, 0)] * 2
    )
    assert due.value("select count(*) from redelivery_attempts where unknown_at is not null") == 2
    with unchanged(due):
        recovery.recover(due.ledger, due.lease, due.now)
    assert [m.message_id for m in claimed(due).messages] == [m.message_id for m in slice_.messages[4:]]


def test_after_a_crash_an_edited_body_is_still_known_when_it_returns(plant: Plant) -> None:
    (one,) = plant.messages(1)
    plant.change(
        "insert into escalated_messages (message_id, route, reason, size_bytes, source, attempts, escalated_at, status,"
        " decision, decided_by, corrected_body) values (:id, 'orders', 'x', 2, 'q', 0, :now, 'decided', 'edit', 'ana',"
        " 'edited')",
        id=one,
        now=plant.now,
    )
    plant.make_due("release")
    slice_ = claimed(plant)
    plant.announce(slice_, one)
    assert recovery.recover(plant.ledger, plant.begin(), plant.now)["unknown"] == 1
    loaded, _ = plant.load({"redrive_id": plant.redrive_id(one), "redrive_attempt": 1, "body": b"edited"})
    assert (loaded.returned, loaded.new) == (1, 0)


def test_a_crash_before_the_first_mark_leaves_nothing_unknown(due: Plant) -> None:
    claimed(due)
    due.begin()
    assert recovery.recover(due.ledger, due.lease, due.now) == {"given_back": 6, "unknown": 0}
    assert due.states() == {"waiting": 6}


def test_a_task_that_is_tried_again_recovers_its_own_shard_only(due: Plant) -> None:
    mine, other = due.claim(2, shard=0), due.claim(2, shard=1)
    assert mine is not None
    assert other is not None
    assert recovery.recover(due.ledger, due.lease, due.now, shard=0)["given_back"] == 2
    assert due.states() == {"sending": 2, "waiting": 4}


def test_a_try_that_failed_recovers_what_it_claimed_itself_and_nothing_of_the_next_try(due: Plant) -> None:
    for task_try in ("first", "next"):
        due.claim(2, shard=0, task_try=task_try)
    assert recovery.recover(due.ledger, due.lease, due.now, task_try="first")["given_back"] == 2
    assert due.states() == {"sending": 2, "waiting": 4}


def test_a_slice_that_was_recovered_sends_no_more(due: Plant) -> None:
    slice_ = claimed(due)
    recovery.recover(due.ledger, due.lease, due.now, shard=0)
    with pytest.raises(LeaseLost):
        due.announce(slice_, slice_.messages[0].message_id)


def unknown_to_resend(plant: Plant, count: int = 2) -> None:
    plant.messages(count)
    plant.send(status="unknown")
    plant.change("update messages set plan = 'resend' where state = 'unknown'")


def claim_resends(plant: Plant, **options: Any) -> Slice | None:
    dedupes_for = options.pop("dedupes_for", None)
    now = options.pop("now", plant.now)
    asking = plant.asking(**{"limit": 10} | options)
    return claims.claim_resends(plant.ledger, plant.lease, *asking, now, dedupes_for=dedupes_for)


def resend(plant: Plant) -> Slice:
    found = claim_resends(plant)
    assert found is not None
    return found


def test_a_resend_is_the_same_attempt(plant: Plant) -> None:
    unknown_to_resend(plant)
    again = resend(plant)
    assert [m.attempt for m in again.messages] == [1, 1]
    plant.announce(again, again.messages[-1].message_id)
    plant.mark(again, [sent(m) for m in again.messages])
    assert plant.rows("select state, attempts from messages") == [("sent", 1)] * 2
    assert (
        plant.rows("select attempt, sent_at is not null, unknown_at is not null from redelivery_attempts")
        == [(1, True, True)] * 2
    )


@pytest.mark.parametrize(("first", "then"), [(False, True), (True, False)])
def test_a_resend_says_anew_what_it_is_known_by(plant: Plant, first: bool, then: bool) -> None:
    """Whether it had room for our headers, and which body it has, may have changed since the first try."""
    plant.messages(2)
    plant.send(status="unknown", tracked=first, body_hash=None if first else b"x" * 16)
    plant.change("update messages set plan = 'resend' where state = 'unknown'")
    again = resend(plant)
    plant.announce(again, again.messages[-1].message_id)
    body = None if then else b"y" * 16
    plant.mark(again, [sent(m)._replace(tracked=then, body_hash=body) for m in again.messages])
    assert plant.rows("select tracked, body_hash from redelivery_attempts") == [(then, body)] * 2


@pytest.mark.parametrize(("tracked", "body"), [(True, None), (False, None), (True, b"y" * 16)])
def test_a_first_send_says_what_it_is_known_by(plant: Plant, tracked: bool, body: bytes | None) -> None:
    plant.messages(3)
    marks = plant.send(tracked=tracked, body_hash=body)
    said = plant.rows("select tracked, body_hash, broker_message_id from redelivery_attempts order by message_id")
    assert said == [(tracked, body, mark.broker_message_id) for mark in marks]


def test_a_slice_ends_when_the_broker_lets_go_of_the_last_that_it_keeps(plant: Plant) -> None:
    """However many windows come after that one."""
    plant.messages(3)
    plant.make_due()
    slice_ = claimed(plant)
    late = plant.now + timedelta(hours=1)
    for number, one in enumerate(slice_.messages):
        plant.announce(slice_, one.message_id)
        mark = sent(one)._replace(due_at=late if number == 1 else None)
        windows.mark(plant.ledger, plant.lease, slice_.slice_id, [mark], tries=3, now=plant.now, first_sends=True)
    windows.close(plant.ledger, plant.lease, slice_.slice_id, plant.now)
    assert [parse_instant(at) for (at,) in plant.rows("select last_sent_at from delivery_slices")] == [late]


def test_what_is_repeated_because_the_broker_dedupes_is_claimed_only_while_it_does(plant: Plant) -> None:
    unknown_to_resend(plant)
    plant.change("update messages set plan = 'repeat' where state = 'unknown'")

    def claim(*, age: timedelta, dedupes_for: timedelta | None = timedelta(minutes=4)) -> Slice | None:
        return claim_resends(plant, now=plant.now + age, dedupes_for=dedupes_for)

    assert claim(age=timedelta(minutes=4)) is None
    assert claim(age=timedelta(minutes=1), dedupes_for=None) is None
    again = claim(age=timedelta(minutes=1))
    assert again is not None
    assert len(again.messages) == 2
    assert again.repeat_until == plant.now + timedelta(minutes=4), "nor is any of it sent later"


def test_nothing_is_claimed_once_a_route_is_paused(plant: Plant) -> None:
    """Whatever its task saw before."""
    unknown_to_resend(plant)
    plant.messages(2)
    plant.make_due()
    leases.pause(plant.ledger, "orders", by="ana", reason="a deployment", now=plant.now)
    with unchanged(plant):
        assert plant.claim() is None
        assert claim_resends(plant) is None
    leases.resume(plant.ledger, "orders", by="ana", now=plant.now)
    assert len(claimed(plant).messages) == 2
    assert len(resend(plant).messages) == 2


def test_only_selected_sends_are_repeated(plant: Plant) -> None:
    plant.messages(1, cause="transient_network")
    (other,) = plant.messages(1, cause="throttled")
    plant.send(status="unknown")
    plant.change("update messages set plan = 'resend' where state = 'unknown'")
    found = claim_resends(plant, selection=Selection(causes=("throttled",)))
    assert found is not None
    assert [m.message_id for m in found.messages] == [other]


def test_a_resend_that_was_processed_is_confirmed_and_not_tried_again(plant: Plant) -> None:
    unknown_to_resend(plant)
    again = resend(plant)
    done = [again.messages[0].message_id]
    assert windows.suppress(plant.ledger, plant.lease, again.slice_id, done, plant.now) == 1
    assert plant.states() == {"confirmed": 1, "sending": 1}
    assert plant.rows("select outcome from redelivery_attempts order by message_id") == [("confirmed",), (None,)]
    assert claim_resends(plant) is None


@pytest.mark.parametrize("how", ["crash-before", "crash-within", "given-back", "retry"])
def test_a_resend_that_was_not_made_leaves_the_send_as_unknown_as_it_was(plant: Plant, how: str) -> None:
    unknown_to_resend(plant)
    again = resend(plant)
    if how == "given-back":
        windows.give_back(plant.ledger, plant.lease, again.slice_id, [m.message_id for m in again.messages], plant.now)
    elif how == "retry":
        plant.announce(again, again.messages[-1].message_id)
        plant.mark(again, [Mark(m.message_id, m.attempt, "retry", None, "busy") for m in again.messages])
    else:
        if how == "crash-within":
            plant.announce(again, again.messages[-1].message_id)
        recovery.recover(plant.ledger, plant.begin(), plant.now)
    assert plant.rows("select state, attempts from messages") == [("unknown", 1)] * 2
    assert plant.value("select count(*) from redelivery_attempts where unknown_at is not null") == 2


def test_a_resend_that_ends_its_run_each_time_goes_to_people(plant: Plant) -> None:
    unknown_to_resend(plant)
    for count in (1, 2, 3):
        assert plant.rows("select distinct state, send_failures from messages") == [("unknown", count - 1)]
        again = resend(plant)
        plant.announce(again, again.messages[-1].message_id)
        recovery.recover(plant.ledger, plant.begin(), plant.now, tries=3)
    assert plant.rows("select distinct state, attempts, send_failures from messages") == [("to_review", 1, 3)]


def test_of_an_attempt_that_arrived_the_resends_count_no_more(plant: Plant) -> None:
    unknown_to_resend(plant)
    for status in ("unknown", "unknown", "sent"):
        again = resend(plant)
        plant.announce(again, again.messages[-1].message_id)
        plant.mark(again, [Mark(m.message_id, m.attempt, status, None, "lost") for m in again.messages])
    assert plant.rows("select distinct state, send_failures from messages") == [("sent", 0)]


def test_a_resend_that_the_broker_refuses_goes_to_people_not_round_in_a_circle(plant: Plant) -> None:
    unknown_to_resend(plant)
    again = resend(plant)
    plant.announce(again, again.messages[-1].message_id)
    plant.mark(again, [Mark(m.message_id, m.attempt, "refused", None, "too large") for m in again.messages])
    assert (
        plant.rows("select state, plan, reason from messages")
        == [("to_review", None, "It could not be sent: too large")] * 2
    )
    with plant.ledger.read() as connection:
        assert lanes.of_resends(connection, "orders") == []


def test_lanes_tell_what_is_due_for_each_destination(due: Plant) -> None:
    due.change("update messages set destination = 'billing' where message_id = (select max(message_id) from messages)")
    with due.ledger.read() as connection:
        assert [(lane.destination, lane.due) for lane in lanes.of_due(connection, "orders", due.now)] == [
            ("orders", 5),
            ("billing", 1),
        ]
        assert lanes.of_due(connection, "orders", due.now - timedelta(seconds=1)) == []


def test_a_destination_that_is_gone_sends_its_messages_to_people(due: Plant) -> None:
    assert lanes.refuse_destination(due.ledger, due.lease, "orders", "no such queue", due.now) == 6
    assert due.claim() is None
    assert due.rows("select count from audit_events where action = 'refuse_destination'") == [(6,)]


def test_one_audit_event_tells_of_each_set_that_moved(due: Plant) -> None:
    slice_ = claimed(due)
    due.announce(slice_, slice_.messages[-1].message_id)
    due.mark(slice_, [sent(m) for m in slice_.messages])
    assert due.rows(
        "select action, from_state, to_state, count from audit_events where action in ('claim', 'send')"
        " order by event_id"
    ) == [
        ("claim", "waiting", "sending", 6),
        ("send", "sending", "sent", 6),
    ]
