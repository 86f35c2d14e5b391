"""What the tables and triggers themselves refuse, and the words in which they tell."""

import re
from collections.abc import Iterable

import pytest
from sqlalchemy.exc import DatabaseError

from redrive.audit_actions import Action
from redrive.ledger.engine import Ledger, sql
from redrive.lifecycle import Decision
from tests.ledger.planting import NOW, Plant


@pytest.fixture
def waiting(plant: Plant) -> Ledger:
    """A ledger with one message, which waits."""
    plant.messages(1)
    plant.change("update messages set state = 'waiting', plan = 'requeue', next_attempt_at = :now", now=NOW)
    return plant.ledger


def test_every_word_that_the_code_writes_is_taken_and_no_other(waiting: Ledger) -> None:
    write = sql("insert into audit_events (at, actor, action) values (:now, 'x', :action)")
    with waiting.write() as connection:
        for action in Action:
            connection.execute(write, {"now": NOW, "action": action})
    with pytest.raises(Exception, match=r"(?i)ck_audit_events_action|check constraint"), waiting.write() as connection:
        connection.execute(write, {"now": NOW, "action": "let through"})


@pytest.mark.parametrize(
    "row",
    [
        "state = 'waiting', plan = null",
        "state = 'waiting', plan = 'hold'",
        "state = 'waiting', next_attempt_at = null",
        "state = 'held', plan = null",
        "state = 'held', plan = 'resend'",
        "state = 'to_review', plan = 'requeue'",
        "plan = 'escalate'",
    ],
)
def test_a_row_that_nothing_would_ever_move_is_refused(waiting: Ledger, row: str) -> None:
    with pytest.raises(Exception, match=r"(?i)ck_messages|check constraint"), waiting.write() as connection:
        connection.execute(sql(f"update messages set {row}"))


@pytest.fixture
def asked(waiting: Ledger) -> Ledger:
    """A ledger with one message, about which people are asked."""
    with waiting.write() as connection:
        connection.execute(sql("update messages set state = 'escalated', plan = null"))
        connection.execute(
            sql(
                "insert into escalated_messages (message_id, route, reason, size_bytes, source, attempts, escalated_at)"
                " select message_id, 'orders', 'x', 2, 'q', 0, :now from messages"
            ),
            {"now": NOW},
        )
    return waiting


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("update escalated_messages set decision = 'Redeliver', decided_by = 'ana'", Decision),
        (
            "insert into standing_decisions (group_id, decision, decided_by, note, created_at, until_at) select"
            " group_id, 'release', 'ana', 'why', '2026-01-01', '2026-02-01' from failure_groups",
            (Decision.REDELIVER, Decision.DISCARD),
        ),
        (
            "insert into group_rulings (ruling, group_id, other_group_id, decided_by, note) select 'join', group_id,"
            " group_id, 'ana', 'why' from failure_groups",
            ("merge", "split"),
        ),
    ],
)
def test_a_word_that_is_no_decision_is_refused_by_those_that_are(
    asked: Ledger, statement: str, words: Iterable[str]
) -> None:
    """SQLite looks at the words of a row that is new before any trigger, and names the column."""
    with asked.write() as connection:
        connection.execute(
            sql(
                "insert into failure_groups (fingerprint, cause, template, first_seen_at, last_seen_at)"
                " values ('f', 'oversized', 't', :now, :now)"
            ),
            {"now": NOW},
        )
    with pytest.raises(DatabaseError) as refused, asked.write() as connection:
        connection.execute(sql(statement))
    told = str(refused.value.orig)
    assert "audit_events" not in told
    assert re.search(r"ck_(standing_decisions_decision|group_rulings_ruling)$", told) or set(words) <= set(
        re.findall(r"[a-z_]+", told)
    )


@pytest.mark.parametrize("decision", ["redeliver", "discard"])
def test_what_a_trigger_tells_is_a_word_of_the_audit_trail(asked: Ledger, decision: str) -> None:
    with asked.write() as connection:
        for change in (f"decision = '{decision}', decided_by = 'ana'", "approved_by = 'ben'", "approved_by = null"):
            connection.execute(sql(f"update escalated_messages set {change}"))
        connection.execute(sql("update escalated_messages set decision = null"))
        told = connection.execute(sql("select action from audit_events order by event_id")).scalars().all()
    verbs = ("decide", "approve", "unapprove", "withdraw")
    assert told[-4:] == [f"{verb}_{decision}" for verb in verbs]
