"""What the tables and triggers themselves refuse, and the words in which they tell."""

import pytest

from redrive.audit_actions import Action
from redrive.ledger.engine import Ledger, sql
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


@pytest.mark.parametrize("decision", ["redeliver", "discard"])
def test_what_a_trigger_tells_is_a_word_of_the_audit_trail(waiting: Ledger, decision: str) -> None:
    with waiting.write() as connection:
        connection.execute(sql("update messages set state = 'escalated', plan = null"))
        connection.execute(
            sql(
                "insert into escalated_messages (message_id, route, reason, size_bytes, source, attempts, escalated_at)"
                " select message_id, 'orders', 'x', 2, 'q', 0, :now from messages"
            ),
            {"now": NOW},
        )
        for change in (f"decision = '{decision}', decided_by = 'ana'", "approved_by = 'ben'", "approved_by = null"):
            connection.execute(sql(f"update escalated_messages set {change}"))
        connection.execute(sql("update escalated_messages set decision = null"))
        told = connection.execute(sql("select action from audit_events order by event_id")).scalars().all()
    verbs = ("decide", "approve", "unapprove", "withdraw")
    assert told[-4:] == [f"{verb}_{decision}" for verb in verbs]
