"""Second stagings where the broker gives no identity: proved as a whole, suspected in part, never guessed."""

import random
import sys
import tracemalloc
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.ledger import leases
from redrive.ledger.drain import batches, loading
from redrive.ledger.drain.repeats import (
    Copy,
    Evidence,
    Repeat,
    StagedBatch,
    decide,
    doubtful,
    known,
    lately_settled,
    let_go,
)
from redrive.ledger.engine import Ledger, sql
from redrive.message import Tracking, batch_and_row, body_hash, index_key, message_id_of
from tests import blank, query_plans
from tests.ledger.planting import NOW, Plant
from tests.probe import numbers

DIED = datetime(2026, 11, 21, 8, 41, 22, tzinfo=UTC)


OURS = Tracking("k3v9q2-00000000100007", 1)


def evidence(body: str, *, message_id: str = "", died: datetime | None = DIED) -> Evidence:
    return Evidence("orders-dlq", message_id, died, died, body_hash(body.encode()))


def batch(
    batch_id: int,
    *bodies: str,
    again: bool,
    doubt: bool = False,
    waiting: bool = True,
    tracking: Tracking | None = None,
    named: bool = False,
    died: datetime | None = DIED,
) -> StagedBatch:
    copies = [
        Copy(
            message_id_of(batch_id, row),
            evidence(body, message_id=body if named else "", died=died),
            again,
            tracking,
        )
        for row, body in enumerate(bodies)
    ]
    return StagedBatch(batch_id, doubt, waiting, copies)


def lately(one: StagedBatch) -> StagedBatch:
    """It was loaded before, and is settled as far as the broker said."""
    return one._replace(lately=True, waiting=False)


def roles(*batches: StagedBatch, known: dict[Evidence, int] | None = None) -> dict[tuple[int, int], str]:
    """(batch, row) -> role."""
    return {(copy >> 20, copy & 0xFFFFF): repeat.role for copy, repeat in decide(batches, known or {}).items()}


def test_what_was_settled_lately_and_looks_the_same_is_suspected_and_never_taken_for_a_duplicate() -> None:
    """A node that died may have forgotten the acks; or a publisher sends the same twice, and somebody peeked."""
    settled = lately(batch(1, "a", "b", again=False))
    assert roles(settled, batch(2, "a", "b", again=True)) == {(2, 0): "suspected", (2, 1): "suspected"}
    assert roles(settled, batch(2, "c", "b", again=True)) == {(2, 1): "suspected"}
    assert roles(settled, batch(2, "a", "b", again=False)) == {}, "it was never delivered before"
    assert roles(settled, batch(2, "a", "b", again=True, died=DIED + timedelta(seconds=1))) == {}
    assert roles(lately(batch(1, "a", again=False, died=None)), batch(2, "a", again=True, died=None)) == {}, (
        "a body alone"
    )
    ours = batch(2, "a", again=True, tracking=OURS)
    assert roles(lately(batch(1, "a", again=False, tracking=OURS)), ours) == {}, "its id says more"


def test_a_batch_is_lately_settled_until_its_queue_was_drained_to_the_end_after_its_leases(plant: Plant) -> None:
    batch_id = plant.batch(2)
    at = plant.ledger.dialect.stored(NOW)
    plant.change(
        "update staging_batches set state = 'settled', copies = 2, settled_copies = 2, settled_at = :at", at=at
    )

    def found(hours: float = 1) -> list[int]:
        now = NOW + timedelta(hours=hours)
        with plant.ledger.read() as connection:
            return list(lately_settled(plant.ledger, connection, "orders", leased_for=timedelta(minutes=5), now=now))

    assert (found(), found(23), found(25)) == ([batch_id], [batch_id], [])
    drained = (
        "insert into source_state (route, source, drained_to) select route, source, :to from staging_batches where true"
        " on conflict (route, source) do update set drained_to = excluded.drained_to"
    )
    plant.change(drained, to=plant.ledger.dialect.stored(NOW + timedelta(minutes=5)))
    assert found() == [batch_id], "within its leases"
    plant.change(drained, to=plant.ledger.dialect.stored(NOW + timedelta(minutes=6)))
    assert found() == []


def test_a_batch_that_came_back_whole_was_staged_twice() -> None:
    first = batch(1, "a", "b", again=False, doubt=True)
    second = batch(2, "a", "b", again=True)

    assert decide([first, second], {}) == {
        message_id_of(2, 0): Repeat("duplicate", message_id_of(1, 0)),
        message_id_of(2, 1): Repeat("duplicate", message_id_of(1, 1)),
    }


def test_also_when_several_shards_took_it_and_new_messages_lie_between() -> None:
    first = batch(5, "a", "b", "c", again=False, doubt=True)
    one = batch(3, "b", again=True)  # opened before the other was lost
    other = batch(6, "c", "a", again=True)
    fresh = batch(7, "a", "d", again=False)

    assert roles(first, one, other, fresh) == {(3, 0): "duplicate", (6, 0): "duplicate", (6, 1): "duplicate"}


def test_a_part_of_it_is_suspected() -> None:
    assert roles(batch(1, "a", "b", again=False, doubt=True), batch(2, "a", again=True)) == {(2, 0): "suspected"}


def test_a_batch_that_is_known_to_be_settled_does_not_come_again() -> None:
    assert roles(batch(1, "a", "b", again=False), batch(2, "a", "b", again=True)) == {}


def test_unless_its_publisher_s_ids_say_so_for_a_broker_can_lose_acks_in_a_crash() -> None:
    first, second = batch(1, "a", again=False, named=True), batch(2, "a", again=True, named=True)

    assert roles(first, second) == {(2, 0): "suspected"}


def test_what_was_loaded_long_ago_counts_as_well() -> None:
    known = {evidence("a", message_id="a"): 17}

    assert decide([batch(2, "a", again=True, named=True)], known) == {message_id_of(2, 0): Repeat("suspected", 17)}


def test_what_was_never_delivered_before_is_new() -> None:
    assert roles(batch(1, "a", "b", again=False, doubt=True), batch(2, "a", "b", again=False)) == {}


def test_one_body_alone_proves_nothing() -> None:
    first = batch(1, "ping", again=False, doubt=True)

    assert roles(first, batch(2, "ping", again=True)) == {(2, 0): "suspected"}


def test_the_publisher_s_id_does() -> None:
    first = batch(1, "ping", again=False, doubt=True, named=True)

    assert roles(first, batch(2, "ping", again=True, named=True)) == {(2, 0): "duplicate"}


def test_words_without_a_time_prove_nothing_however_many() -> None:
    first = batch(1, "ping", "pong", again=False, doubt=True, died=None)

    assert set(roles(first, batch(2, "ping", "pong", again=True, died=None)).values()) == {"suspected"}


def test_of_equal_copies_only_as_many_are_repeats_as_were_staged() -> None:
    first = batch(1, "a", "a", "b", again=False, doubt=True)
    second = batch(2, "a", "a", "a", "b", again=True)
    found = roles(first, second)

    assert sorted(found.values()) == ["duplicate"] * 3 + ["suspected"]


@pytest.mark.parametrize("third_in_doubt", [False, True])
def test_a_crash_during_the_recovery_leaves_one_message_of_each(third_in_doubt: bool) -> None:
    stagings = [
        batch(1, "a", "b", again=False, doubt=True),
        batch(2, "a", "b", again=True, doubt=True),
        batch(3, "a", "b", again=True, doubt=third_in_doubt),
    ]
    found = decide(stagings, {})

    assert {copy >> 20 for copy in found} == {2, 3}
    assert {repeat.role for repeat in found.values()} == {"duplicate"}
    assert {repeat.first >> 20 for repeat in found.values()} == {1}


def test_two_batches_in_doubt_that_were_both_delivered_before_never_erase_each_other() -> None:
    found = decide([batch(1, "a", "b", again=True, doubt=True), batch(2, "a", "b", again=True, doubt=True)], {})

    assert {copy >> 20 for copy in found} == {2}


def test_a_batch_that_was_loaded_before_can_still_come_again() -> None:
    first = batch(1, "a", "b", again=False, doubt=True, waiting=False)

    assert set(roles(first, batch(2, "a", "b", again=True)).values()) == {"duplicate"}


@pytest.mark.parametrize(
    ("first", "second"),
    [(None, OURS), (OURS, None), (OURS, OURS._replace(attempt=2)), (OURS, OURS._replace(redrive_id="another"))],
)
def test_what_was_sent_since_is_no_second_staging(first: Tracking | None, second: Tracking | None) -> None:
    """Sent again by us, failed again as a whole, and somebody looked into the queue and put it back."""
    before = batch(1, "a", "b", again=False, doubt=True, waiting=False, named=True, tracking=first)
    after = batch(2, "a", "b", again=True, named=True, tracking=second)

    assert "duplicate" not in roles(before, after).values()


def test_what_was_let_go_since_is_suspected_where_it_says_nothing_of_us() -> None:
    """Its consumer may have dead-lettered it anew, without our headers, and somebody looked and put it back."""
    before = batch(1, "a", "b", again=False, doubt=True, waiting=False, named=True, died=None)
    after = batch(2, "a", "b", again=True, named=True, died=None)
    gone = {message_id_of(1, 0)}

    assert decide([before, after], {}, gone) == {
        message_id_of(2, 0): Repeat("suspected", message_id_of(1, 0)),
        message_id_of(2, 1): Repeat("duplicate", message_id_of(1, 1)),
    }


def test_what_was_let_go_since_and_died_when_it_did_before_is_a_second_staging() -> None:
    """As on RabbitMQ after a restart in the middle of a drain, whose run sent what it had staged."""
    before = batch(1, "a", "b", again=False, doubt=True, waiting=False)
    after = batch(2, "a", "b", again=True)

    assert decide([before, after], {}, {message_id_of(1, 0)}) == {
        message_id_of(2, 0): Repeat("duplicate", message_id_of(1, 0)),
        message_id_of(2, 1): Repeat("duplicate", message_id_of(1, 1)),
    }


def test_let_go_is_what_was_sent_or_restored(plant: Plant) -> None:
    (sent,) = plant.messages(1)
    plant.send()
    (unknown,) = plant.messages(1)
    plant.send(status="unknown")
    (restored,) = plant.messages(1)
    plant.change("update messages set state = 'discarded' where message_id = :id", id=restored)
    (waits,) = plant.messages(1)
    every = {batch_and_row(one)[0] for one in (sent, unknown, restored, waits)}
    with plant.ledger.read() as connection:
        assert let_go(connection, every) == {sent, unknown, restored}


def test_the_same_send_staged_twice_is_a_second_staging() -> None:
    before = batch(1, "a", "b", again=False, doubt=True, tracking=OURS)
    after = batch(2, "a", "b", again=True, tracking=OURS)

    assert set(roles(before, after).values()) == {"duplicate"}


LEASE = timedelta(minutes=15)


def unsettled(plant: Plant) -> int:
    batch_id = plant.batch(2)
    plant.change("update staging_batches set state = 'recorded', settled_copies = 0, settled_at = null")
    return batch_id


def drained(plant: Plant, to: datetime) -> None:
    plant.change(
        "insert into source_state (route, source, drained_to) values ('orders', 'orders-dlq', :to_at)"
        " on conflict (route, source) do update set drained_to = excluded.drained_to",
        to_at=to,
    )


def in_doubt(plant: Plant) -> list[int]:
    with plant.ledger.read() as connection:
        return list(doubtful(plant.ledger, connection, "orders", leased_for=LEASE))


def test_the_doubt_about_a_batch_ends_with_a_drain_to_the_end_after_its_leases(plant: Plant) -> None:
    one = unsettled(plant)
    over = plant.now + timedelta(hours=2)
    drained(plant, over)
    assert in_doubt(plant) == [one], "its run is not over, as far as anybody knows"
    leases.release(plant.ledger, plant.lease, status="failed", now=plant.now)
    for moment, found in ((plant.now, [one]), (plant.now + LEASE, [one]), (over, [])):
        drained(plant, moment)
        assert in_doubt(plant) == found


def somewhere(plant: Plant) -> list[int]:
    """The batches that may still lie in the source from which they were taken."""
    condition = batches.may_come_again(plant.ledger, LEASE, "b")
    with plant.ledger.read() as connection:
        return list(connection.execute(sql(f"select batch_id from staging_batches b where {condition}")).scalars())


def moved(plant: Plant, connection: str) -> None:
    """The route's runs use another connection from now on; one has begun and is over."""
    plant.begin(system=f"rabbitmq:{connection}")
    leases.release(plant.ledger, plant.lease, status="succeeded", now=plant.now)


def test_a_drain_of_another_broker_s_queue_of_the_same_name_ends_no_doubt(plant: Plant) -> None:
    """What was not settled lies where the route was, and comes again once it is back there. From the queue that the
    route has now it does not, once that was drained to its end."""
    plant.begin(system="rabbitmq:east")
    one = unsettled(plant)
    moved(plant, "west")
    assert in_doubt(plant) == [one], "it may be the same broker under another name"
    drained(plant, plant.now + timedelta(hours=2))
    assert (somewhere(plant), in_doubt(plant)) == ([one], [])
    plant.begin(system="rabbitmq:west")
    there = unsettled(plant)
    moved(plant, "east")
    assert somewhere(plant) == in_doubt(plant) == [one, there]


def test_the_doubt_about_what_was_taken_before_a_move_ends_once_the_route_is_back_there(plant: Plant) -> None:
    plant.begin(system="rabbitmq:east")
    unsettled(plant)
    moved(plant, "west")
    moved(plant, "east")
    drained(plant, plant.now + timedelta(hours=2))
    assert somewhere(plant) == in_doubt(plant) == []


def test_another_route_s_drain_of_the_queue_ends_the_doubt_also_where_the_first_one_has_left_it(plant: Plant) -> None:
    plant.begin(system="rabbitmq:east")
    one = unsettled(plant)
    moved(plant, "west")
    beside = "insert into route_state (route, fence, system) values ('beside', 1, :system)"
    plant.change(beside, system="rabbitmq:east")
    to = "insert into source_state (route, source, drained_to) values ('beside', 'orders-dlq', :to_at)"
    plant.change(to, to_at=plant.now + timedelta(hours=2))
    assert somewhere(plant) == []
    assert in_doubt(plant) == [one]


def test_a_batch_of_a_source_that_was_never_drained_to_the_end_stays_in_doubt(plant: Plant) -> None:
    one = unsettled(plant)
    leases.release(plant.ledger, plant.lease, status="failed", now=plant.now)
    assert in_doubt(plant) == [one]


def test_what_carries_an_id_of_ours_and_may_have_come_again_is_a_twin() -> None:
    first = batch(1, "part of an order", again=False, doubt=True, tracking=OURS, died=None)
    second = batch(2, "part of an order", again=True, tracking=OURS, died=None)

    assert decide([first, second], {}) == {message_id_of(2, 0): Repeat("twin", message_id_of(1, 0))}
    assert roles(first._replace(in_doubt=False), second) == {}
    assert roles(first, batch(2, "part of an order", again=True, tracking=Tracking(OURS.redrive_id, 2))) == {}


def test_a_message_made_of_another_with_its_headers_is_not_new_when_it_may_have_come_again(plant: Plant) -> None:
    """Its settle was not confirmed, and it carries the id and attempt of the message that it was made of."""
    (whole,) = plant.messages(1)
    plant.send()
    part = {"redrive_id": plant.redrive_id(whole), "redrive_attempt": 1, "body": b"part", "broker_message_id": ""}
    first = plant.batch(1)
    copy = plant.copy(first, 0, **part)
    assert loading.load(plant.ledger, plant.lease, [first], [copy], plant.now, repeats={}).new == 1

    second = plant.batch(2)
    again, back = plant.copy(second, 0, **part), plant.copy(second, 1, **{**part, "body": b"body 0"})
    twins = {one.message_id: Repeat("twin", copy.message_id) for one in (again, back)}
    loaded = loading.load(plant.ledger, plant.lease, [second], [again, back], plant.now, repeats=twins)

    assert (loaded.new, loaded.suspected, loaded.returned) == (0, 1, 1)
    assert plant.rows("select message_id from repeat_copies where kind = 'suspected'") == [(copy.message_id,)]


def by_the_rules(
    staged: Sequence[StagedBatch], loaded: Mapping[Evidence, int], gone: Collection[int]
) -> dict[int, Repeat]:
    """What :func:`decide` finds, as its rules say it: each copy is held against each other one."""
    in_order = sorted(staged)
    again = [copy for batch in in_order if batch.waiting for copy in batch.copies if copy.redelivered]
    found: dict[int, Repeat] = {}

    def may_repeat(copy: Copy, first: Copy) -> bool:
        return (
            (copy.evidence, copy.tracking) == (first.evidence, first.tracking)
            and copy.copy_id >> 20 != first.copy_id >> 20
            and (not first.redelivered or first.copy_id < copy.copy_id)
        )

    def root(first: Copy) -> int:
        return found[first.copy_id].first if first.copy_id in found else first.copy_id

    for batch in in_order:
        taken: dict[int, tuple[Copy, Copy]] = {}
        for first in batch.copies if batch.in_doubt else ():
            for copy in again:
                if copy.copy_id not in found and copy.copy_id not in taken and may_repeat(copy, first):
                    taken[copy.copy_id] = (copy, first)
                    break
        named = any(copy.evidence.message_id for copy in batch.copies)
        dead = {copy.evidence for copy in batch.copies if copy.evidence.dead_lettered_at}
        if len(taken) == len(batch.copies) and (named or len(dead) > 1):
            for copy, first in taken.values():
                unsure = copy.tracking is None and copy.evidence.dead_lettered_at is None and first.copy_id in gone
                found[copy.copy_id] = Repeat("suspected" if unsure else "duplicate", root(first))
    suspected: dict[int, Repeat] = {}
    resembled = [
        (one, batch.in_doubt) for batch in in_order for one in batch.copies if batch.in_doubt or one.evidence.message_id
    ]
    for copy in again:
        if copy.copy_id in found:
            continue
        first, doubt = next((pair for pair in resembled if may_repeat(copy, pair[0])), (None, False))
        if copy.tracking is not None:
            if first is not None and doubt:
                suspected[copy.copy_id] = Repeat("twin", root(first))
        elif first is not None:
            suspected[copy.copy_id] = Repeat("suspected", root(first))
        elif copy.evidence in loaded:
            suspected[copy.copy_id] = Repeat("suspected", loaded[copy.evidence])
    return found | suspected


def history(chance: random.Random) -> list[StagedBatch]:
    """A few batches of copies that are hardly told apart, some of which hold what is in an earlier one."""
    ids, times = chance.choice([[""], ["", "m"], ["m", "n"]]), chance.choice([[None], [DIED], [None, DIED]])
    marks = chance.choice([[None], [None, OURS], [None, OURS, OURS._replace(attempt=2)]])
    bodies, delivered, doubt = chance.randint(1, 3), chance.random(), chance.random()
    made: list[StagedBatch] = []
    for batch_id in chance.sample(range(1, 9), chance.randint(2, 5)):
        again, copies = delivered, [
            (Evidence("orders-dlq", chance.choice(ids), None, chance.choice(times), bytes([chance.randrange(bodies)])),
             chance.choice(marks))
            for _ in range(chance.randint(1, 6))
        ]  # fmt: skip
        if made and chance.random() < 0.5:
            again, copies = 0.9, [(copy.evidence, copy.tracking) for copy in chance.choice(made).copies]
            chance.shuffle(copies)
            copies = copies[: chance.choice([len(copies), len(copies), max(1, len(copies) - 1)])]
        staged = [
            Copy(message_id_of(batch_id, row), told, chance.random() < again, tracking)
            for row, (told, tracking) in enumerate(copies)
        ]
        made.append(StagedBatch(batch_id, chance.random() < doubt, chance.random() < 0.8, staged))
    return made


@pytest.mark.parametrize("seed", range(4))
def test_each_copy_is_what_the_rules_say_of_it(seed: int) -> None:
    chance = random.Random(seed)
    roles_found = set()
    for number in range(1_500):
        staged = history(chance)
        copies = [copy for batch in staged for copy in batch.copies]
        loaded = {copy.evidence: number for copy in chance.sample(copies, len(copies) // 3)}
        gone = {copy.copy_id for copy in chance.sample(copies, len(copies) // 4)}
        found = decide(staged, loaded, gone)
        assert found == by_the_rules(staged, loaded, gone), (number, staged, loaded, gone)
        roles_found |= {repeat.role for repeat in found.values()}
    assert roles_found == {"duplicate", "suspected", "twin"}


def calls(what: Callable[[], Any]) -> int:
    """How many functions are called meanwhile: the same at every time and on every machine, unlike seconds."""
    count = 0

    def note(_frame: object, event: str, _what: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        what()
    finally:
        sys.setprofile(before)
    return count


def alike(count: int, *, named: bool, batches: int, doubt: Collection[int], died: datetime | None) -> list[StagedBatch]:
    """So many equal copies, and one other, in each of so many batches that wait; all were delivered before."""
    bodies = [*["event"] * (count // batches), "other"]
    return [
        batch(batch_id, *bodies, again=True, doubt=batch_id in doubt, named=named, died=died)
        for batch_id in range(1, batches + 1)
    ]


@pytest.mark.parametrize("died", [None, DIED])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    ("batches", "doubt"), [(1, ()), (1, (1,)), (2, (1,)), (2, (1, 2)), (3, (1, 2)), (0, range(1, 1_000))]
)
def test_equal_copies_take_no_longer_the_more_they_are(
    batches: int, doubt: Collection[int], named: bool, died: datetime | None
) -> None:
    """Two batches of 5,000 took half a minute, and a lease is for fifteen."""
    work = []
    for count in (200, 800):
        staged = alike(count, named=named, batches=batches or count // 4, doubt=doubt, died=died)
        work.append(calls(lambda staged=staged: decide(staged, {})))  # type: ignore[misc]
    assert work[1] < 6 * work[0]


def test_known_is_what_was_loaded_with_all_that_tells_copies_apart(plant: Plant) -> None:
    long = "i" * 600  # its index key is another text
    told = evidence("a", message_id="m")
    others = [
        told._replace(message_id=long),
        told._replace(enqueued_at=None),
        told._replace(enqueued_at=DIED + timedelta(microseconds=1)),
        told._replace(body_hash=body_hash(b"b")),
        told._replace(source="orders-retry"),
    ]
    first = plant.batch(7)
    at = plant.ledger.dialect.stored
    copies = [
        plant.copy(
            first, row, broker_message_id=index_key(one.message_id), enqueued_at=at(one.enqueued_at),
            body_hash=one.body_hash, source=one.source,
        )
        for row, one in enumerate([told, told, *others])
    ]  # fmt: skip
    loading.load(plant.ledger, plant.lease, [first], copies, plant.now, repeats={})
    ids = [copy.message_id for copy in copies]

    assert known(plant.ledger, "orders", [told]) == {told: ids[1]}, "the latest of several"
    assert known(plant.ledger, "orders", [told, *others]) == dict(zip([told, *others], ids[1:], strict=True))
    for stranger in (
        told._replace(message_id=""),
        told._replace(message_id="n"),
        told._replace(body_hash=body_hash(b"c")),
        told._replace(source="another"),
        told._replace(enqueued_at=DIED - timedelta(microseconds=1)),
        # Each of it was loaded, and nothing with all of it.
        told._replace(message_id=long, body_hash=body_hash(b"b")),
        told._replace(enqueued_at=None, body_hash=body_hash(b"b")),
    ):
        assert known(plant.ledger, "orders", [stranger]) == {}
    assert known(plant.ledger, "payments", [told]) == {}


def _with_one_id(path: Path, count: int) -> Ledger:
    """A ledger in which so many messages have one publisher's id, and as many another each."""
    ledger = Ledger(f"sqlite:///{path}")
    blank.upgrade(ledger, NOW)
    for first, name in ((0, "'event'"), (count, "'id ' || n")):
        Plant(ledger).change(
            "insert into messages (message_id, redrive_id, route, source, kind, broker_message_id, body_hash,"
            f" body_bytes, copy_id, state, changed_at) {numbers(count)} select {first} + n, {first} + n, 'orders',"
            f" 'orders-dlq', 'dead_letter', {name}, cast(printf('%016d', n) as blob), 9, {first} + n, 'escalated',"
            " '2025-09-02' from n"
        )
    return ledger


def test_what_was_loaded_is_found_however_many_messages_have_the_same_id(tmp_path: Path) -> None:
    """A hundred thousand took three seconds and 54 MB, for one copy that came again."""
    work, memory = {}, {}
    for count in (500, 4_000):
        ledger = _with_one_id(tmp_path / f"{count}.db", count)
        for asked in (1, 400):
            wanted = [Evidence("orders-dlq", "event", None, None, b"%016d" % n) for n in range(1, asked + 1)]
            known(ledger, "orders", wanted)  # what SQLAlchemy keeps of a statement
            tracemalloc.start()
            with query_plans.counted() as counted:
                assert len(known(ledger, "orders", wanted)) == asked
            memory[count, asked] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            work[count, asked] = counted.hundreds
        ledger.close()
    assert memory[4_000, 1] < memory[500, 1] + 100_000
    assert work[4_000, 1] < 12 * work[500, 1] + 100
    assert work[4_000, 400] < 3 * work[4_000, 1]


def test_of_messages_with_other_ids_none_is_looked_at(tmp_path: Path) -> None:
    ledger = _with_one_id(tmp_path / "ledger.db", 4_000)
    with query_plans.counted() as counted:
        assert known(ledger, "orders", [Evidence("orders-dlq", "id 7", None, None, b"%016d" % 7)])
    ledger.close()
    assert counted.hundreds < 100
