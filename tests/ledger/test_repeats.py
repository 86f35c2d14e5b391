"""Second stagings where the broker gives no identity: proved as a whole, suspected in part, never guessed."""

from datetime import UTC, datetime, timedelta

import pytest

from redrive.ledger import leases
from redrive.ledger.drain import loading
from redrive.ledger.drain.repeats import Copy, Evidence, Repeat, StagedBatch, decide, doubtful, let_go
from redrive.message import Tracking, batch_and_row, body_hash, message_id_of
from tests.ledger.planting import Plant

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


def roles(*batches: StagedBatch, known: dict[Evidence, int] | None = None) -> dict[tuple[int, int], str]:
    """(batch, row) -> role."""
    return {(copy >> 20, copy & 0xFFFFF): repeat.role for copy, repeat in decide(batches, known or {}).items()}


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
