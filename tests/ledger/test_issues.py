"""A failure as an issue: what people say about it, on both databases, and what becomes of that with time."""

import json
from datetime import timedelta

import pytest
from sqlalchemy.exc import DatabaseError

from redrive.ledger.review import issues
from tests.ledger.planting import Plant
from tests.ledger.test_escalations import person
from tests.workshop import KEY_ERROR, Workshop


def status(plant: Plant) -> object:
    return plant.rows("select route, group_id, status, owner, ticket from issue_state order by route, group_id")


def test_only_what_is_named_is_changed_and_the_trail_tells_it(plant: Plant) -> None:
    group = plant.group()
    failure = [("orders", group)]
    assert issues.change(plant.ledger, failure, by="ana", now=plant.now, changes={"status": "acknowledged"}) == 1
    assert issues.change(plant.ledger, failure, by="ben", now=plant.now, changes={"owner": "cleo"}) == 1
    assert status(plant) == [("orders", group, "acknowledged", "cleo", None)]
    told = plant.rows(
        "select actor, route, selection from audit_events where action = 'change_issue' order by event_id"
    )
    assert [(actor, route, json.loads(what)["status"], json.loads(what)["owner"]) for actor, route, what in told] == [
        ("ana", "orders", "acknowledged", None),
        ("ben", "orders", "acknowledged", "cleo"),
    ]
    assert issues.change(plant.ledger, [("orders", 999)], by="ana", now=plant.now, changes={"status": "open"}) == 0


def test_a_comment_is_kept_and_told(plant: Plant) -> None:
    group = plant.group()
    issues.comment(plant.ledger, [("orders", group)], by="ana", now=plant.now, text="asked the team of billing")
    assert plant.rows("select written_by, text from issue_comments") == [("ana", "asked the team of billing")]
    assert plant.rows("select actor, reason from audit_events where action = 'comment'") == [
        ("ana", "asked the team of billing")
    ]


def test_the_same_words_a_moment_later_are_one_comment(plant: Plant) -> None:
    one, other = ("orders", plant.group()), ("billing", plant.group())

    def say(*failures: tuple[str, int], by: str = "ana", text: str = "asked billing") -> int:
        return issues.comment(plant.ledger, failures, by=by, now=plant.now, text=text)

    assert (say(one), say(one)) == (1, 0)
    assert say(one, other) == 1, "it is new about the other one"
    assert (say(one, by="ben"), say(one, text="they answered")) == (1, 1)
    plant.now += timedelta(minutes=2)
    assert say(one) == 1, "it is so again, or still"
    assert plant.rows("select count(*) from audit_events where action = 'comment'") == [(5,)]


def test_what_is_ignored_is_open_again_afterwards(plant: Plant) -> None:
    group, now = plant.group(), plant.now
    ignored = {"status": "ignored", "ignored_until_at": now + timedelta(days=36500)}
    issues.change(plant.ledger, [("orders", group)], by="ana", now=now, changes=ignored)
    assert status(plant) == [("orders", group, "ignored", None, None)]
    past = {"status": "ignored", "ignored_until_at": now}
    issues.change(plant.ledger, [("orders", group)], by="ana", now=now, changes=past)
    assert status(plant) == [("orders", group, "open", None, None)]
    issues.change(plant.ledger, [("orders", group)], by="ana", now=now, changes={"status": "in_progress"})
    assert plant.rows("select ignored_until_at from failure_issues") == [(None,)]


def test_a_plain_statement_is_enough(plant: Plant) -> None:
    group = plant.group()
    for name in ("ana", "ben"):
        plant.change(
            "insert into failure_issues (route, group_id, status, written_by) values ('orders', :id, 'resolved', :name)"
            " on conflict (route, group_id) do update set status = excluded.status, written_by = excluded.written_by",
            id=group,
            name=name,
        )
    assert status(plant) == [("orders", group, "resolved", None, None)]
    assert plant.rows("select actor from audit_events where action = 'change_issue' order by event_id") == [
        ("ana",),
        ("ben",),
    ], "an insert that becomes an update is told once"
    plant.change(
        "update failure_issues set status = 'ignored', ignored_until_at = '2126-01-01 06:00', written_by = 'ana'"
    )
    assert status(plant) == [("orders", group, "ignored", None, None)]
    assert plant.rows("select count(*) from audit_events where action = 'change_issue'") == [(3,)]
    with pytest.raises(DatabaseError, match="ignored_until"):
        plant.change("update failure_issues set status = 'open', written_by = 'ana'")
    with pytest.raises(DatabaseError, match="stays with that failure"):
        plant.change("update failure_issues set route = 'payments', written_by = 'ana'")


def test_what_comes_back_after_it_was_resolved_is_regressed(workshop: Workshop) -> None:
    workshop.die("first", error=KEY_ERROR)
    workshop.cycle()
    workshop.advance(minutes=1)
    died = int(workshop.now().timestamp() * 1_000_000)
    workshop.die("died before it was resolved", error=KEY_ERROR, dead_lettered_at=died)
    ((group,),) = workshop.query("select group_id from failure_groups")
    workshop.advance(minutes=1)

    def resolve() -> None:
        issues.change(
            workshop.ledger, [("orders", group)], by="ana", now=workshop.now(), changes={"status": "resolved"}
        )

    def now() -> object:
        ((found,),) = workshop.query("select status from issue_state")
        return found

    resolve()
    workshop.advance(minutes=1)
    workshop.cycle()
    assert workshop.states() == {"escalated": 2}
    assert now() == "resolved", "what died before says nothing"
    workshop.die("died afterwards", error=KEY_ERROR)
    workshop.advance(minutes=1)
    workshop.cycle()
    assert now() == "regressed"
    assert workshop.query("select issue_status from review_groups") == [("regressed",)]
    person(workshop, "update failure_issues set owner = 'ben', written_by = 'ben'")
    assert now() == "regressed", "a new owner resolves nothing"
    workshop.advance(minutes=1)
    resolve()
    assert now() == "resolved"


def test_what_was_sent_after_it_was_resolved_and_came_back_is_regressed_though_nobody_tells_when_it_died(
    workshop: Workshop,
) -> None:
    workshop.die("a", error=KEY_ERROR, dead_lettered_at=int(workshop.now().timestamp() * 1_000_000))
    workshop.cycle()
    workshop.advance(minutes=1)
    ((group,),) = workshop.query("select group_id from failure_groups")
    issues.change(workshop.ledger, [("orders", group)], by="ana", now=workshop.now(), changes={"status": "resolved"})
    workshop.advance(minutes=1)
    person(workshop, "update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    workshop.review()
    workshop.cycle()
    state = "select status from issue_state"
    assert workshop.query(state) == [("resolved",)]
    assert workshop.consume(lambda _: KEY_ERROR) == 1
    workshop.advance(minutes=1)
    workshop.cycle()
    assert workshop.query("select group_id, status from escalated_messages order by escalation_id") == [
        (group, "applied"),
        (group, "open"),
    ]
    assert workshop.query(state) == [("regressed",)]
