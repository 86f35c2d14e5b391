"""Who is it? Every rule by which a staged copy is taken for a new message, a return, a duplicate or a surplus."""

import json
import random
import sqlite3
import string
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.errors import ClassificationFailed, LeaseLost
from redrive.ledger.account import inspecting
from redrive.ledger.drain import batches, copy_roles, groups, keys, loading, suspects
from redrive.ledger.drain.groups import Group
from redrive.ledger.drain.loading import Loaded
from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.review.escalations import Review
from redrive.ledger.transactions import RunTransaction
from redrive.message import MAX_CARRIED_ATTEMPTS, body_hash, index_key, redrive_id_of
from redrive.stages import checking
from tests import blank, query_plans
from tests.ledger.planting import NOW, Plant, entering, unchanged
from tests.workshop import CHECK, KEY_ERROR, REFUSED, Workshop

NEW, RETURNED, DUPLICATE, SURPLUS = Loaded(new=1), Loaded(returned=1), Loaded(duplicates=1), Loaded(surplus=1)


def balance(plant: Plant) -> tuple[int, int]:
    ((copies, messages),) = plant.rows("select copies_difference, messages_difference from message_balance")
    return int(copies), int(messages)


def coming_back(
    plant: Plant, message_id: int, attempt: int = 1, body: bytes = b"body 0", **fields: Any
) -> dict[str, Any]:
    """A copy that carries the headers of an attempt."""
    return {"redrive_id": plant.redrive_id(message_id), "redrive_attempt": attempt, "body": body, **fields}


def parents(plant: Plant) -> list[tuple[Any, ...]]:
    return plant.rows("select message_id, parent_id from messages order by message_id")


def test_sql_makes_the_redrive_id_that_python_makes(plant: Plant) -> None:
    plant.load(*[{} for _ in range(20)])
    [(ledger_id,)] = plant.rows("select ledger_id from ledger_identity")
    found = plant.rows("select message_id, redrive_id from messages")
    assert len(found) == 20
    assert all(redrive_id == redrive_id_of(ledger_id, message_id) for message_id, redrive_id in found)


def test_a_copy_that_says_it_died_tomorrow_died_when_it_was_drained_and_is_known_again(plant: Plant) -> None:
    ahead = plant.ledger.dialect.stored(plant.now + timedelta(days=1))
    copy = {"broker_message_id": "b-1", "enqueued_at": ahead, "dead_lettered_at": ahead}
    plant.load(copy)
    ((enqueued, dead, received),) = plant.rows("select first_enqueued_at, dead_lettered_at, received_at from messages")
    assert parse_instant(enqueued) == plant.now + timedelta(days=1), "what was said tells it from others"
    assert dead == received
    plant.now += timedelta(minutes=1)
    again, _ = plant.load(copy)
    assert (again.new, again.duplicates) == (0, 1)


def test_a_copy_without_headers_is_new(plant: Plant) -> None:
    loaded, (one,) = plant.load({})
    assert loaded == NEW
    assert plant.rows("select state, attempts, parent_id from messages") == [("classified", 0, None)]
    assert plant.redrive_id(one).endswith(f"{one:014x}")
    assert balance(plant) == (0, 0)


def test_a_copy_with_the_headers_and_body_of_a_send_is_its_return(plant: Plant) -> None:
    (one,) = plant.messages(1)
    plant.send()
    loaded, (copy,) = plant.load(coming_back(plant, one, cause="throttled"))
    assert loaded == RETURNED
    assert plant.rows("select message_id, state, cause, copy_id, attempts from messages") == [
        (one, "classified", "throttled", copy, 1)
    ]
    assert plant.rows("select outcome, return_copy, return_kind from redelivery_attempts") == [
        ("returned", copy, "dead_letter")
    ]
    assert balance(plant) == (0, 0)


@pytest.mark.parametrize("outcome", ["presumed", "confirmed"])
def test_what_was_thought_to_have_worked_can_still_return(plant: Plant, outcome: str) -> None:
    group = plant.group()
    (one,) = plant.messages(1, group_id=group)
    plant.gate(group, "canary")
    plant.send()
    plant.change(f"update messages set {entering(outcome)}")
    plant.change("update redelivery_attempts set outcome = :outcome", outcome=outcome)
    assert plant.rows("select stayed, returned from group_state") == [(1, 0)]
    assert plant.load(coming_back(plant, one))[0] == RETURNED
    assert plant.states() == {"classified": 1}
    assert plant.rows("select stayed, returned from group_state") == [(0, 1)], (
        "it no longer counts as having stayed away"
    )


def test_a_return_of_an_unknown_send_proves_that_it_was_sent(plant: Plant) -> None:
    (one,) = plant.messages(1)
    plant.send(status="unknown")
    assert plant.states() == {"unknown": 1}
    assert plant.load(coming_back(plant, one))[0] == RETURNED
    assert plant.states() == {"classified": 1}


def finish(plant: Plant, state: str) -> None:
    """All messages are finished, and counted so."""
    plant.change(f"update messages set {entering(state)}")
    count = (
        "insert into finished_counts (route, state, messages) select route, state, count(*) from messages group by 1, 2"
    )
    plant.change(count)


@pytest.mark.parametrize(("state", "then"), [("discarded", "to_review"), ("suppressed", "classified")])
def test_a_finished_message_of_an_unknown_send_can_return(plant: Plant, state: str, then: str) -> None:
    (one,) = plant.messages(1)
    plant.send(status="unknown")
    finish(plant, state)
    assert plant.load(coming_back(plant, one, cause="application_bug"))[0] == RETURNED
    assert plant.rows("select state, cause, copy_id > message_id from messages") == [(then, "application_bug", True)]
    assert plant.rows("select sum(messages) from finished_counts") == [(0,)]
    assert balance(plant) == (0, 0)


def test_a_discarded_message_whose_last_send_is_unknown_returns_with_an_earlier_one(plant: Plant) -> None:
    (one,) = plant.messages(1)
    plant.send(status="unknown")
    plant.change("update messages set state = 'waiting', plan = 'release', releases = 1, next_attempt_at = changed_at")
    plant.send(plan="release", status="unknown")
    finish(plant, "discarded")
    assert plant.load(coming_back(plant, one, attempt=1))[0] == RETURNED
    assert plant.states() == {"to_review": 1}, "this copy may be all that there is"


@pytest.mark.parametrize("status", ["sent", "unknown"])
def test_what_was_discarded_after_its_last_return_stays_so_whatever_else_comes_back(plant: Plant, status: str) -> None:
    (one,) = plant.messages(1)
    plant.send(status="unknown")
    plant.change("update messages set state = 'waiting', plan = 'release', releases = 1, next_attempt_at = changed_at")
    plant.send(plan="release", status=status)
    plant.load(coming_back(plant, one, attempt=2))
    finish(plant, "discarded")
    assert plant.load(coming_back(plant, one, attempt=1))[0] == RETURNED
    assert plant.states() == {"discarded": 1}


def test_a_late_return_of_attempt_1_does_not_touch_attempt_2(plant: Plant) -> None:
    (one,) = plant.messages(1)
    plant.send(status="unknown")
    # a person released it meanwhile: attempt 2 is out
    plant.change("update messages set state = 'waiting', plan = 'release', releases = 1, next_attempt_at = changed_at")
    plant.send(plan="release")
    loaded, _ = plant.load(coming_back(plant, one, attempt=1))
    assert loaded == RETURNED
    assert plant.rows("select state, attempts from messages") == [("sent", 2)]
    assert plant.rows("select attempt, outcome from redelivery_attempts order by attempt") == [
        (1, "returned"),
        (2, None),
    ]


def test_the_same_attempt_again_from_the_same_source_is_surplus(plant: Plant) -> None:
    (one,) = plant.messages(1)
    plant.send()
    plant.load(coming_back(plant, one))
    assert plant.load(coming_back(plant, one))[0] == SURPLUS
    assert plant.states() == {"classified": 1}
    assert balance(plant) == (0, 0)


def test_the_same_attempt_twice_in_one_batch_is_one_return_and_one_surplus(plant: Plant) -> None:
    (one,) = plant.messages(1)
    plant.send()
    loaded, _ = plant.load(coming_back(plant, one), coming_back(plant, one))
    assert loaded == Loaded(returned=1, surplus=1)


def test_another_subscribers_copy_is_a_message_of_its_own(plant: Plant) -> None:
    (one,) = plant.messages(1)
    plant.send()
    plant.load(coming_back(plant, one))
    loaded, (copy,) = plant.load(coming_back(plant, one), source="billing-dlq")
    assert loaded == NEW
    assert parents(plant) == [(one, None), (copy, one)]


def test_another_subscribers_copy_in_the_same_load_is_a_message_of_its_own(plant: Plant) -> None:
    (one,) = plant.messages(1)
    plant.send()
    both = [plant.batch(1), plant.batch(2, source="billing-dlq")]
    copies = [
        plant.copy(both[0], 0, **coming_back(plant, one)),
        plant.copy(both[1], 0, source="billing-dlq", **coming_back(plant, one)),
        plant.copy(both[1], 1, source="billing-dlq", **coming_back(plant, one)),
    ]
    loaded = loading.load(plant.ledger, plant.lease, both, copies, plant.now)
    assert loaded == Loaded(new=2, returned=1)
    assert [parent for _, parent in parents(plant)] == [None, one, one]
    assert balance(plant) == (0, 0)


def test_a_derived_message_with_copied_headers_and_another_body_is_new_with_its_parent(plant: Plant) -> None:
    (one,) = plant.messages(1)
    plant.send()
    loaded, (copy,) = plant.load(coming_back(plant, one, body=b"invoice for body 0"))
    assert loaded == NEW
    assert parents(plant) == [(one, None), (copy, one)]
    assert plant.redrive_id(copy) != plant.redrive_id(one)
    assert plant.rows("select state from messages where message_id = :id", id=one) == [("sent",)]


def test_an_edited_body_returns_as_what_it_is(plant: Plant) -> None:
    (one,) = plant.messages(1)
    plant.send(plan="release", body_hash=body_hash(b"edited"))
    assert plant.load(coming_back(plant, one, body=b"edited"))[0] == RETURNED


def test_the_original_body_is_not_the_return_of_an_edited_send(plant: Plant) -> None:
    (one,) = plant.messages(1)
    plant.send(plan="release", body_hash=body_hash(b"edited"))
    assert plant.load(coming_back(plant, one))[0] == NEW


def test_an_attempt_that_was_never_made_is_forged(plant: Plant) -> None:
    (one,) = plant.messages(1)
    plant.send()
    loaded, (copy,) = plant.load(coming_back(plant, one, attempt=7))
    assert loaded == NEW
    assert parents(plant) == [(one, None), (copy, one)]


def test_a_claimed_attempt_that_was_not_sent_cannot_return(plant: Plant) -> None:
    (one,) = plant.messages(1)
    plant.make_due()
    assert plant.claim()
    assert plant.load(coming_back(plant, one))[0] == NEW


def test_an_id_that_is_not_known_is_kept_with_its_attempts(plant: Plant) -> None:
    plant.load({"redrive_id": "another-0001", "redrive_attempt": 4})
    assert plant.rows("select redrive_id, attempts, parent_id from messages") == [("another-0001", 4, None)]


def test_two_copies_with_one_unknown_id_are_that_message_and_its_child(plant: Plant) -> None:
    unknown = {"redrive_id": "another-0001", "redrive_attempt": 4}
    loaded, (first, second) = plant.load(unknown, unknown)
    assert loaded == Loaded(new=2)
    assert parents(plant) == [(first, None), (second, first)]
    assert plant.rows("select count(distinct redrive_id) from messages") == [(2,)]
    assert plant.load(unknown)[0] == NEW, "and a third one, later, too"


def test_an_id_of_another_route_is_not_taken_from_it(plant: Plant) -> None:
    (one,) = plant.messages(1)
    plant.send()
    other = Plant(plant.ledger, "billing")
    loaded, (copy,) = other.load({"redrive_id": plant.redrive_id(one), "redrive_attempt": 1, "body": b"body 0"})
    assert loaded == NEW
    assert other.rows("select route, attempts from messages where message_id = :id", id=copy) == [("billing", 1)]
    assert plant.rows("select state from messages where message_id = :id", id=one) == [("sent",)]


def test_an_id_of_this_ledger_that_it_has_not_given_is_not_kept(plant: Plant) -> None:
    """Every consumer sees our ids, and can write the next one."""
    prefix = plant.value("select ledger_id from ledger_identity")
    forged = {"redrive_id": redrive_id_of(prefix, 2 << 20), "redrive_attempt": 3}  # of the first copy of the next batch
    _, (one, two) = plant.load(forged, forged)
    assert plant.rows("select message_id, redrive_id, attempts, parent_id from messages order by message_id") == [
        (one, redrive_id_of(prefix, one), 3, None),
        (two, redrive_id_of(prefix, two), 3, one),
    ]
    assert plant.rows("select action, count from audit_events where action = 'give_another_id'") == [
        ("give_another_id", 1)
    ]
    assert plant.load({}, {})[0] == Loaded(new=2), "and what comes next is taken in as ever"


def test_an_id_that_is_taken_already_stops_no_load(plant: Plant) -> None:
    """As an earlier release kept it, in a ledger that is older than the rule above."""
    plant.load({})
    prefix = plant.value("select ledger_id from ledger_identity")
    plant.change("update messages set redrive_id = :next", next=redrive_id_of(prefix, 2 << 20))
    loaded, ids = plant.load({}, {})
    assert loaded == Loaded(new=2)
    first, second = (plant.redrive_id(one) for one in ids)
    assert first.startswith(redrive_id_of(prefix, ids[0]) + "-")
    assert second == redrive_id_of(prefix, ids[1])


def test_an_id_that_is_taken_already_stops_no_decision_on_a_suspected_copy(plant: Plant) -> None:
    (one,) = plant.messages(1)
    plant.send()
    plant.load(coming_back(plant, one, headers_hash=b"first"))
    plant.load(coming_back(plant, one, headers_hash=b"other"))
    (copy,) = plant.rows("select copy_id from repeat_copies where kind = 'suspected'")[0]
    taken = redrive_id_of(plant.value("select ledger_id from ledger_identity"), copy)
    plant.load({})
    plant.change("update messages set redrive_id = :taken where message_id = (select max(message_id) from messages)",
                 taken=taken)  # fmt: skip
    with plant.ledger.read() as connection:
        (candidate,) = suspects.candidates(connection, "orders", after=-1, limit=9, max_bytes=9)
    review = Review(candidate, b"{}", None, (), None, "discard")
    suspects.write_reviews(plant.ledger, plant.lease, [review], plant.now)
    plant.change("update escalated_messages set decision = 'redeliver', decided_by = 'ana', note = 'x'")
    assert suspects.adopt(plant.ledger, plant.lease, [copy], plant.now) == 1
    assert plant.redrive_id(copy).startswith(f"{taken}-")
    assert balance(plant) == (0, 0)


@pytest.mark.parametrize("by", [None, "attribute:order"], ids=["alike", "by another selector"])
def test_a_suspected_copy_that_becomes_a_message_has_keys_by_its_own_batch(plant: Plant, by: str | None) -> None:
    """It is given those of the message that it resembles: made by another selector they are to be taken anew."""
    (one,) = plant.messages(1, message_key="17")
    plant.send()
    for headers in (b"first", b"other"):
        plant.load(coming_back(plant, one, headers_hash=headers))
    (copy,) = plant.rows("select copy_id from repeat_copies where kind = 'suspected'")[0]
    with plant.ledger.read() as connection:
        (candidate,) = suspects.candidates(connection, "orders", after=-1, limit=9, max_bytes=9)
    review = Review(candidate, b"{}", None, (), None, "discard")
    suspects.write_reviews(plant.ledger, plant.lease, [review], plant.now)
    plant.change("update staging_batches set message_key_by = 'attribute:id'")
    plant.change("update staging_batches set message_key_by = coalesce(:by, message_key_by) where batch_id = :copy",
                 by=by, copy=copy >> 20)  # fmt: skip
    plant.change("update escalated_messages set decision = 'redeliver', decided_by = 'ana', note = 'x'")
    assert suspects.adopt(plant.ledger, plant.lease, [copy], plant.now) == 1
    kept = plant.value("select message_key_by from staging_batches where batch_id = :copy", copy=copy >> 20)
    assert kept == (None if by else "attribute:id")
    with plant.ledger.read() as connection:
        found = keys.to_renew(connection, "orders", keys.Selectors(by or "attribute:id"))
    assert (copy >> 20 in {batch.batch_id for batch in found}) == (by is not None)


def test_decisions_on_suspected_copies_are_taken_up_page_by_page(plant: Plant) -> None:
    (one,) = plant.messages(1)
    plant.send()
    for headers in (b"first", b"second", b"third", b"fourth", b"fifth"):
        plant.load(coming_back(plant, one, headers_hash=headers))
    with plant.ledger.read() as connection:
        asked = suspects.candidates(connection, "orders", after=-1, limit=9, max_bytes=99)
        assert suspects.candidates(connection, "orders", after=-1, limit=2, max_bytes=99) == asked[:2]
        assert suspects.candidates(connection, "orders", after=-1, limit=9, max_bytes=13) == asked[:2]
        assert suspects.candidates(connection, "orders", after=-1, limit=9, max_bytes=1) == asked[:1]
    copies = [candidate.copy_id for candidate in asked]
    assert len(copies) == 4
    reviews = [Review(candidate, b"0123456789", None, (), None, "discard") for candidate in asked]
    suspects.write_reviews(plant.ledger, plant.lease, reviews, plant.now)

    def page(after: int = -1, limit: int = 9, max_bytes: int = 99) -> list[suspects.DecidedCopy]:
        with plant.ledger.read() as connection:
            return suspects.decided(connection, "orders", after=after, limit=limit, max_bytes=max_bytes)

    assert page() == []
    plant.change("update escalated_messages set decision = 'discard', decided_by = 'ana' where message_id <> :id",
                 id=copies[1])  # fmt: skip
    decided = page()
    assert [(found.copy_id, found.has_body, found.size_bytes) for found in decided] == [
        (copies[0], True, 10), (copies[2], True, 10), (copies[3], True, 10)
    ]  # fmt: skip
    assert page(limit=2) == page(max_bytes=25) == decided[:2]
    assert page(max_bytes=1) == decided[:1]
    assert page(after=decided[0].escalation_id) == decided[1:]
    assert suspects.adopt(plant.ledger, plant.lease, copies[:3], plant.now) == 2
    assert page() == decided[2:]
    assert plant.rows("select message_id, state from messages where parent_id is not null order by message_id") == [
        (copies[0], "escalated"), (copies[2], "escalated")
    ]  # fmt: skip
    assert balance(plant) == (0, 0)


def test_what_a_copy_says_of_its_attempts_is_bounded(plant: Plant) -> None:
    """One more attempt has to fit into the header that comes back."""
    plant.load({"redrive_id": "another-0001", "redrive_attempt": 999_999})
    assert plant.rows("select attempts from messages") == [(MAX_CARRIED_ATTEMPTS,)]


# --- elsewhere, or with other headers ---------------------------------------------------------------------


def load(plant: Plant, *copies: dict[str, Any], elsewhere: set[tuple[str, str]]) -> tuple[Loaded, list[int]]:
    batch = plant.batch(len(copies))
    staged = [plant.copy(batch, row, **one) for row, one in enumerate(copies)]
    loaded = loading.load(plant.ledger, plant.lease, [batch], staged, plant.now, elsewhere=elsewhere)
    return loaded, [one.message_id for one in staged]


def test_a_copy_that_failed_elsewhere_is_a_message_of_its_own(plant: Plant) -> None:
    """A consumer passed the redelivered message on, headers and all; who got it then failed."""
    (one,) = plant.messages(1)
    plant.send()
    back = coming_back(plant, one, origin="billing")
    loaded, (copy,) = load(plant, back, elsewhere={("orders", "billing")})
    assert loaded == NEW
    assert parents(plant) == [(one, None), (copy, one)]
    assert plant.rows("select state, attempts from messages order by message_id") == [("sent", 1), ("classified", 1)]


def test_what_failed_elsewhere_does_not_take_the_place_of_the_return(plant: Plant) -> None:
    (one,) = plant.messages(1)
    plant.send()
    copies = [coming_back(plant, one, origin=origin) for origin in ("billing", "orders", "billing")]
    loaded, ids = load(plant, *copies, elsewhere={("orders", "billing")})
    assert loaded == Loaded(new=2, returned=1)
    assert plant.rows("select return_copy from redelivery_attempts") == [(ids[1],)]
    assert load(plant, copies[0], elsewhere={("orders", "billing")})[0] == NEW


@pytest.mark.parametrize("origin", [None, "orders", "another"])
def test_a_copy_whose_origin_proves_nothing_is_a_return(plant: Plant, origin: str | None) -> None:
    (one,) = plant.messages(1)
    plant.send()
    back = coming_back(plant, one, origin=origin)
    assert load(plant, back, elsewhere={("orders", "billing"), ("billing", "another")})[0] == RETURNED


def test_a_return_may_have_other_headers(plant: Plant) -> None:
    (one,) = plant.messages(1)
    plant.send()
    assert plant.load(coming_back(plant, one, headers_hash=b"another"))[0] == RETURNED


@pytest.mark.parametrize("together", [True, False], ids=["one-load", "two-loads"])
@pytest.mark.parametrize("other", [b"other", None])
def test_the_same_attempt_again_with_other_headers_is_for_people(
    plant: Plant, other: bytes | None, together: bool
) -> None:
    (one,) = plant.messages(1)
    plant.send()
    first, second = coming_back(plant, one, headers_hash=b"first"), coming_back(plant, one, headers_hash=other)
    if together:
        assert plant.load(first, second)[0] == Loaded(returned=1, suspected=1)
    else:
        plant.load(first)
        assert plant.load(second)[0] == Loaded(suspected=1)
    assert plant.rows("select kind, message_id from repeat_copies where kind = 'suspected'") == [("suspected", one)]
    assert balance(plant) == (0, 0)


@pytest.mark.parametrize(
    ("redrive_id", "attempt"),
    [("' or 1=1 --", 1), ("%s", 999_999), ("x" * 64, 0), ("\u202e\U0001f4a9", 1), (r"\N", 1)],
    ids=["sql", "overflow", "long", "unicode", "copy-null"],
)
def test_garbage_in_our_headers_hurts_nobody(plant: Plant, redrive_id: str, attempt: int) -> None:
    loaded, _ = plant.load({"redrive_id": redrive_id, "redrive_attempt": attempt}, {"body": b"neighbour"})
    assert loaded == Loaded(new=2)
    assert plant.rows("select redrive_id from messages order by message_id limit 1") == [(redrive_id,)]
    assert balance(plant) == (0, 0)


# --- the same copy again ----------------------------------------------------------------------------------


def test_a_copy_staged_again_in_a_later_batch_is_a_duplicate(plant: Plant) -> None:
    again = {"broker_message_id": "same", "body": b"a"}
    _, (one,) = plant.load(again)
    loaded, (copy,) = plant.load(again)
    assert loaded == DUPLICATE
    assert plant.rows("select copy_id, message_id, kind from repeat_copies") == [(copy, one, "duplicate")]
    assert balance(plant) == (0, 0)


def test_a_copy_staged_twice_in_one_batch_is_a_duplicate(plant: Plant) -> None:
    again = {"broker_message_id": "same", "body": b"a"}
    loaded, (one, copy) = plant.load(again, again)
    assert loaded == Loaded(new=1, duplicates=1)
    assert plant.rows("select copy_id, message_id from repeat_copies") == [(copy, one)]


@pytest.mark.parametrize("together", [True, False], ids=["one-load", "two-loads"])
def test_a_returned_copy_staged_again_is_a_duplicate_of_its_message(plant: Plant, together: bool) -> None:
    (one,) = plant.messages(1)
    plant.send()
    back = coming_back(plant, one, broker_message_id="same")
    if together:
        assert plant.load(back, back)[0] == Loaded(returned=1, duplicates=1)
    else:
        plant.load(back)
        assert plant.load(back)[0] == DUPLICATE
    assert plant.rows("select kind, message_id from repeat_copies order by copy_id") == [
        ("returned", one),
        ("duplicate", one),
    ]
    assert balance(plant) == (0, 0)


@pytest.mark.parametrize(
    "other",
    [{"broker_message_id": "other"}, {"body": b"other"}, {"enqueued_at": None}, {"source": "billing-dlq"}],
    ids=["broker-id", "body", "enqueue-time", "source"],
)
def test_a_copy_that_differs_in_anything_is_no_duplicate(plant: Plant, other: dict[str, Any]) -> None:
    plant.load({"broker_message_id": "same", "body": b"a"})
    assert plant.load({"broker_message_id": "same", "body": b"a"} | other)[0] == NEW


def test_copies_without_a_broker_id_are_never_called_duplicates(plant: Plant) -> None:
    assert plant.load({"broker_message_id": ""}, {"broker_message_id": ""})[0] == Loaded(new=2)
    assert plant.load({"broker_message_id": ""})[0] == NEW


# --- sends without room for our headers -------------------------------------------------------------------


def test_an_untracked_send_is_recognised_by_broker_id_and_content(plant: Plant) -> None:
    (one,) = plant.messages(1)
    plant.send(tracked=False)
    assert plant.load({"broker_message_id": f"sent-{one}", "body": b"body 0"})[0] == RETURNED
    assert plant.states() == {"classified": 1}


@pytest.mark.parametrize(
    "other", [{"body": b"another"}, {"broker_message_id": "another"}, {"broker_message_id": ""}],
    ids=["body", "broker-id", "no-broker-id"],
)  # fmt: skip
def test_an_untracked_send_is_not_recognised_by_half(plant: Plant, other: dict[str, Any]) -> None:
    (one,) = plant.messages(1)
    plant.send(tracked=False)
    assert plant.load({"broker_message_id": f"sent-{one}", "body": b"body 0"} | other)[0] == NEW


def test_a_tracked_send_is_not_recognised_without_its_headers(plant: Plant) -> None:
    (one,) = plant.messages(1)
    plant.send()
    assert plant.load({"broker_message_id": f"sent-{one}", "body": b"body 0"})[0] == NEW


# --- exactly once -----------------------------------------------------------------------------------------


def test_loading_twice_changes_nothing(plant: Plant) -> None:
    batch = plant.batch(2)
    copies = [plant.copy(batch, 0), plant.copy(batch, 1)]
    assert loading.load(plant.ledger, plant.lease, [batch], copies, plant.now) == Loaded(new=2)
    with unchanged(plant):
        assert loading.load(plant.ledger, plant.lease, [batch], copies, plant.now) == Loaded()


def test_a_run_that_was_replaced_loads_nothing(plant: Plant) -> None:
    batch = plant.batch(1)
    zombie = plant.lease
    plant.begin()
    with unchanged(plant), pytest.raises(LeaseLost, match="was replaced"):
        loading.load(plant.ledger, zombie, [batch], [plant.copy(batch, 0)], plant.now)


@pytest.mark.parametrize("rows", [[], [0], [0, 2]], ids=["none", "one", "gap"])
def test_an_incomplete_classification_is_refused_as_a_whole(plant: Plant, rows: list[int]) -> None:
    batch = plant.batch(3)
    with unchanged(plant), pytest.raises(ClassificationFailed, match=f"batch {batch}: 3 copies .* {len(rows)} were"):
        loading.load(plant.ledger, plant.lease, [batch], [plant.copy(batch, row) for row in rows], plant.now)


def test_copies_of_other_batches_are_left_alone(plant: Plant) -> None:
    batch, other = plant.batch(1), plant.batch(1)
    copies = [plant.copy(batch, 0), plant.copy(other, 0)]
    assert loading.load(plant.ledger, plant.lease, [batch], copies, plant.now) == NEW
    assert plant.rows("select batch_id from staging_batches where loaded_at is null") == [(other,)]


def test_a_batch_that_is_still_open_is_not_loaded(plant: Plant) -> None:
    batch, _ = batches.open_batch(
        plant.ledger,
        plant.lease,
        source="orders-dlq",
        kind="dead_letter",
        shard=0,
        path_of=lambda *_: "p",
        now=plant.now,
    )
    assert loading.load(plant.ledger, plant.lease, [batch], [plant.copy(batch, 0)], plant.now) == Loaded()


def test_many_returns_at_once_take_seconds_not_minutes(plant: Plant) -> None:
    plant.messages(5000)
    plant.send()
    ids = plant.rows("select redrive_id from messages order by message_id")
    loaded, _ = plant.load(
        *[{"redrive_id": r, "redrive_attempt": 1, "body": f"body {n}".encode()} for n, (r,) in enumerate(ids)],
        *[{"redrive_id": f"unknown-{n}", "redrive_attempt": 1} for n in range(5000)],
    )
    assert loaded == Loaded(new=5000, returned=5000)


def test_many_copies_of_one_attempt_take_no_square_of_them(plant: Plant) -> None:
    """A consumer puts back what it can't do, with all headers, again and again: PostgreSQL held each copy against all
    the others of the attempt."""
    (one,) = plant.messages(1)
    plant.send()
    began = time.perf_counter()
    loaded, _ = plant.load(*[coming_back(plant, one)] * 3000)
    took = time.perf_counter() - began
    assert loaded == Loaded(returned=1, surplus=2999)
    assert took < 10, "it takes half a second, and took 25"


def _one_id(plant: Plant, count: int, **fields: Any) -> list[dict[str, Any]]:
    """So many copies with the same broker's id; each was enqueued at another time, and has a body of its own if none is
    told."""
    plant.now += timedelta(hours=1)
    at = [plant.ledger.dialect.stored(plant.now + timedelta(milliseconds=n)) for n in range(count)]
    own = {"broker_message_id": "order"}
    return [{"body": f"{one} {n}".encode(), "enqueued_at": one} | own | fields for n, one in enumerate(at)]


def _known_messages(plant: Plant, count: int) -> list[dict[str, Any]]:
    plant.load(*_one_id(plant, count))
    return _one_id(plant, count)


def _known_messages_of_one_body(plant: Plant, count: int) -> list[dict[str, Any]]:
    plant.load(*_one_id(plant, count, body=b"tick"))
    return _one_id(plant, count, body=b"tick")


def _known_repeats(plant: Plant, count: int) -> list[dict[str, Any]]:
    (one,) = plant.messages(1)
    plant.send()
    plant.load(*_one_id(plant, count, **coming_back(plant, one)))
    return _one_id(plant, count)


def _staged_twice(plant: Plant, count: int) -> list[dict[str, Any]]:
    return _one_id(plant, count) * 2


@pytest.mark.parametrize("world", [_known_messages, _known_messages_of_one_body, _known_repeats, _staged_twice])
def test_one_id_for_all_that_a_producer_sends_takes_no_square_of_it(tmp_path: Path, world: Any) -> None:
    """Service Bus keeps the id that a producer gives, which may be the same for all: each copy was held against all
    that the route ever had. Where that was 12,000, a load took 20 seconds."""

    def work(count: int) -> int:
        ledger = Ledger(f"sqlite:///{tmp_path}/{count}.db")
        blank.upgrade(ledger, NOW)
        plant = Plant(ledger)
        copies = world(plant, count)
        with query_plans.counted() as work:
            plant.load(*copies)
        ledger.close()
        return work.hundreds

    few, many = work(300), work(1500)
    assert many < 10 * few, "five times as many"


@pytest.mark.parametrize("repeats", [False, True])
def test_of_what_has_one_id_only_what_a_copy_matches_is_brought_together(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, *, repeats: bool
) -> None:
    """All that the route ever had with the id was written down for a load of one copy."""
    (one,) = plant.messages(1)
    plant.send()
    copies = _one_id(plant, 30, **(coming_back(plant, one) if repeats else {}))
    plant.load(*copies)
    counts: list[int] = []
    plainly = copy_roles.find_duplicates

    def looking(tx: RunTransaction) -> None:
        plainly(tx)
        counts.append(tx.execute(sql("select count(*) from candidates")).scalar_one())

    monkeypatch.setattr(copy_roles, "find_duplicates", looking)
    (new,) = _one_id(plant, 1)
    assert plant.load(copies[7], new)[0] == Loaded(new=1, duplicates=1)
    assert counts == [1]


@pytest.mark.parametrize("together", [True, False], ids=["one-load", "two-loads"])
@pytest.mark.parametrize("timed", [True, False])
def test_of_copies_with_one_id_each_is_a_duplicate_of_its_own(plant: Plant, *, timed: bool, together: bool) -> None:
    copies = _one_id(plant, 3)
    if not timed:
        copies = [copy | {"enqueued_at": None} for copy in copies]
    if together:
        loaded, ids = plant.load(*copies, *reversed(copies))
        assert loaded == Loaded(new=3, duplicates=3)
    else:
        assert plant.load(*copies)[0] == Loaded(new=3)
        loaded, ids = plant.load(*reversed(copies))
        assert loaded == Loaded(duplicates=3)
    first = plant.rows("select message_id from messages order by message_id")
    known = plant.rows(
        "select message_id from repeat_copies where copy_id in (:a, :b, :c) order by copy_id desc",
        **dict(zip("abc", ids[-3:], strict=True)),
    )
    assert known == first


def test_one_audit_event_tells_of_a_load(plant: Plant) -> None:
    plant.load({}, {})
    assert plant.rows("select action, to_state, count from audit_events") == [("load", "classified", 2)]


NAMES = ["ana", "ben", "cleo", "dora", "emil"]


def named(plant: Plant, *names: str) -> dict[str, int]:
    """Groups of a text with a name in it, made known in one load."""
    found = [Group(name, "auth_failure", f"cannot open session beside gnome {name}", None) for name in names]
    return groups.ensure_groups(plant.ledger, plant.lease, found, plant.now)


def test_groups_that_turn_out_to_be_one_keep_their_names_and_the_oldest_takes_what_comes(plant: Plant) -> None:
    ids = named(plant, *NAMES[:4])
    assert len(set(ids.values())) == 4
    old = plant.messages(1, group_id=ids["ben"])
    merged = named(plant, NAMES[4])
    assert merged == {"emil": ids["ana"]}
    assert named(plant, *NAMES) == dict.fromkeys(NAMES, ids["ana"])
    assert plant.rows("select fingerprint, template from failure_groups where group_id = :id", id=ids["ben"]) == [
        ("ben", "cannot open session beside gnome ben")
    ]
    assert plant.rows("select message_id, group_id from messages") == [(old[0], ids["ben"])]
    with plant.ledger.read() as connection:
        known = {group.template: group.fingerprint for group in groups.known_groups(connection)}
    assert known == {f"cannot open session beside gnome {name}": "ana" for name in NAMES}
    assert plant.rows("select count(*) from audit_events where action = 'merge_groups'") == [(4,)]


def test_an_alias_never_names_an_alias(plant: Plant) -> None:
    first = named(plant, "zed")["zed"]
    plant.stand(first)
    ids = named(plant, *NAMES)
    assert set(ids.values()) == {first + 1}
    plant.now += timedelta(days=2)
    plant.begin()
    assert named(plant, *NAMES) == dict.fromkeys(NAMES, first)
    assert plant.rows("select distinct merged_into from group_aliases") == [(first,)]


def test_a_group_about_which_a_decision_stands_is_not_merged(plant: Plant) -> None:
    ids = named(plant, *NAMES[:4])
    plant.stand(ids["ben"])
    named(plant, NAMES[4])
    assert plant.rows("select count(*) from group_aliases") == [(0,)]


@pytest.mark.parametrize("error", [REFUSED, KEY_ERROR])
def test_a_key_that_no_index_holds_hurts_only_its_own_message(
    ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    """It is too long, and can't be compressed. People are asked, because the consumer knows it by no shorter one."""
    database = tmp_path / "orders.db"
    with sqlite3.connect(database) as connection:
        connection.execute("create table processed (id text primary key)")
        connection.execute("insert into processed values ('done')")
    connection.close()
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS_DB", f"sqlite:///{database}")
    shop = Workshop(tmp_path, ledger_url, processed_check=CHECK | {"key": "body:$.id"})
    long = "".join(random.Random(0).choices(string.printable, k=6_000))
    shop.die(*(json.dumps({"id": key}) for key in ("done", long, "open")), error=error)
    shop.advance(hours=1)
    shop.cycle()
    assert shop.states() == {"suppressed": 1} | ({"escalated": 1, "sent": 1} if error == REFUSED else {"escalated": 2})
    stored = index_key(long)
    if error == REFUSED:
        assert shop.query("select message_key, reason from escalated_messages") == [(stored, checking.REFUSED)]
    with shop.ledger.read() as connection_:
        for word in (long, stored):
            assert [life["message"]["message_key"] for life in inspecting.trace(connection_, word)] == [stored]
    assert shop.audit() == []
    shop.ledger.close()
