"""A ledger of before 0017, in which ``verdict`` said what the state does now, comes over with rows of every kind."""

from typing import Any

import pytest
from alembic import command
from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger import schema
from redrive.ledger.engine import Ledger, sql
from tests.ledger.planting import NOW

#: State and verdict before, state and plan after.
ROWS = [
    ("classified", None, "classified", None),
    ("classified", "escalate", "to_review", None),
    ("waiting", "requeue", "waiting", "requeue"),
    ("waiting", "release", "waiting", "release"),
    ("waiting", "escalate", "to_review", None),
    ("waiting", None, "waiting", "requeue"),
    ("held", "canary", "held", "canary"),
    ("held", "hold", "held", "hold"),
    ("held", "escalate", "to_review", None),
    ("held", None, "held", "requeue"),
    ("sending", "delay", "sending", "delay"),
    ("sent", "release", "sent", "release"),
    ("unknown", "requeue", "unknown", "requeue"),
    ("unknown", "resend", "unknown", "resend"),
    ("unknown", "repeat", "unknown", "repeat"),
    ("unknown", "escalate", "to_review", None),
    ("returned", "requeue", "returned", "requeue"),
    ("presumed", "requeue", "presumed", "requeue"),
    ("confirmed", "escalate", "confirmed", None),
    ("suppressed", "requeue", "suppressed", None),
    ("suppressed", "escalate", "to_review", None),
    ("escalated", "escalate", "escalated", None),
    ("escalated", "release", "escalated", None),
    ("restoring", "restore", "restoring", None),
    ("restoring", "escalate", "restore_unknown", None),
    ("discarded", "discard", "discarded", None),
    ("expired", "requeue", "expired", None),
]
#: Action and reason before, and after.
TOLD = [
    ("claim", "x", "claim", "x"),
    ("let through", None, "let_through", None),
    ("gate canary -> ramp", "20 of 20 stayed away", "step_gate", "canary -> ramp: 20 of 20 stayed away"),
    ("breaker open -> tripped", None, "step_breaker", "open -> tripped"),
    ("release", None, "release_gate", None),
    ("hold for people", "x", "give_to_people", "x"),
    ("redeliver", "fixed", "apply_redeliver", "fixed"),
    ("decide discard", "x", "decide_discard", "x"),
    ("undecide edit", "x", "withdraw_edit", "x"),
    ("unapprove nothing", None, "unapprove_nothing", None),
    ("let discard stand", "x", "make_standing_discard", "x"),
    ("approve standing redeliver", "x", "approve_standing_redeliver", "x"),
    ("apply standing discard", "x", "apply_standing_discard", "x"),
    ("revoke standing discard", "x", "revoke_standing_discard", "x"),
    ("lose sight of a restore", "x", "doubt_restore", "x"),
    ("restore", "x", "finish_restore", "x"),
    ("merge_groups", None, "merge_groups", None),
    ("somebody's own word", "why", "note", "somebody's own word: why"),
]


def to_revision(ledger: Ledger, revision: str) -> None:
    config = schema._config()
    with ledger.write() as connection:
        if not ledger.is_sqlite:
            connection.exec_driver_sql("create schema if not exists redrive")
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def plant(connection: Connection) -> None:
    for number, (state, verdict, _, _) in enumerate(ROWS, 1):
        due = NOW if state in ("waiting", "held") and verdict is not None else None
        connection.execute(
            sql(
                "insert into messages (message_id, redrive_id, route, source, kind, broker_message_id, body_hash,"
                " body_bytes, copy_id, state, verdict, next_attempt_at, changed_at, order_key) values (:id, :redrive,"
                " 'orders', 'q', 'dead_letter', :broker, :hash, 2, :id, :state, :verdict, :due_at, :now, 'k')"
            ),
            {"id": number, "redrive": f"r{number}", "broker": f"b{number}", "hash": b"h" * 16, "state": state,
             "verdict": verdict, "due_at": due, "now": NOW},
        )  # fmt: skip
    for action, reason, _, _ in TOLD:
        connection.execute(
            sql("insert into audit_events (at, actor, action, reason) values (:now, 'x', :action, :reason)"),
            {"now": NOW, "action": action, "reason": reason},
        )
    connection.execute(
        sql(
            "insert into redelivery_attempts (message_id, attempt, route, slice_id, mode, destination, claimed_at,"
            " outcome) values (1, 1, 'orders', 1, 'requeue', 'q', :now, 'escalated')"
        ),
        {"now": NOW},
    )


@pytest.fixture
def upgraded(ledger_url: str) -> Any:
    ledger = Ledger(ledger_url)
    to_revision(ledger, "0016")
    with ledger.write() as connection:
        plant(connection)
    schema.upgrade(ledger, NOW)
    yield ledger
    ledger.close()


def test_rows_of_every_kind_come_over(upgraded: Ledger) -> None:
    with upgraded.read() as connection:
        found = connection.execute(sql("select state, plan, next_attempt_at from messages order by message_id")).all()
        told = connection.execute(sql("select action, reason from audit_events order by event_id")).all()
        assert connection.execute(sql("select mode, outcome from redelivery_attempts")).all() == [("requeue", None)]
        counted = connection.execute(sql("select to_review, restore_unknown from message_balance")).one()
    for row, (state, verdict, *after) in zip(found, ROWS, strict=True):
        assert [row.state, row.plan] == after, (state, verdict)
        assert (row.next_attempt_at is not None) == (row.state in ("waiting", "held")), (state, verdict)
    assert [tuple(row) for row in told] == [(action, reason) for _, _, action, reason in TOLD]
    assert tuple(counted) == (5, 1)


def test_every_word_that_the_code_writes_is_taken_and_no_other(upgraded: Ledger) -> None:
    write = sql("insert into audit_events (at, actor, action) values (:now, 'x', :action)")
    with upgraded.write() as connection:
        for action in Action:
            connection.execute(write, {"now": NOW, "action": action})
    with pytest.raises(Exception, match=r"(?i)ck_audit_events_action|check constraint"), upgraded.write() as connection:
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
def test_a_row_that_nothing_would_ever_move_is_refused(upgraded: Ledger, row: str) -> None:
    with pytest.raises(Exception, match=r"(?i)ck_messages|check constraint"), upgraded.write() as connection:
        connection.execute(sql(f"update messages set {row} where message_id = 3"))


@pytest.mark.parametrize("decision", ["redeliver", "discard"])
def test_triggers_and_migration_speak_the_same_words(upgraded: Ledger, decision: str) -> None:
    with upgraded.write() as connection:
        connection.execute(
            sql(
                "insert into escalated_messages (message_id, route, reason, size_bytes, source, attempts, escalated_at)"
                " values (22, 'orders', 'x', 2, 'q', 0, :now)"
            ),
            {"now": NOW},
        )
        for change in (f"decision = '{decision}', decided_by = 'ana'", "approved_by = 'ben'", "approved_by = null"):
            connection.execute(sql(f"update escalated_messages set {change}"))
        connection.execute(sql("update escalated_messages set decision = null"))
        told = connection.execute(sql("select action from audit_events order by event_id")).scalars().all()
    verbs = ("decide", "approve", "unapprove", "withdraw")
    assert told[len(TOLD) :] == [f"{verb}_{decision}" for verb in verbs]
