"""One state machine: what waits for review has a state of its own, and so has what a restore lost from sight

Revision: 0017

The column ``verdict`` of messages becomes ``plan``: what is to be done next. ``escalate`` in it meant "a person is to
decide" in five states at once. Every word has its CHECK, ``audit_events.action`` too.
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

SENDS = "'requeue', 'delay', 'canary', 'release'"
PLANS = f"{SENDS}, 'hold', 'resend', 'repeat'"
#: States with which a plan ends.
UNPLANNED = "'classified', 'suppressed', 'to_review', 'escalated', 'restore_unknown', 'discarded', 'expired'"
ACTIONS = (
    "take_over_route", "move_route", "pause", "resume", "drain_beyond_limit", "record_batch", "abandon_batch",
    "give_up_batch", "load", "give_another_id", "return", "classify_again", "merge_groups", "forget", "plan", "aim",
    "expire", "refuse_destination", "step_gate", "step_breaker", "release_gate", "let_through", "hold_back",
    "give_to_people", "claim", "claim_resend", "give_back", "send", "lose_sight", "recover_slice", "refuse_send",
    "suppress", "presume", "confirm", "escalate", "ask", "ask_about_suspected", "take_in_suspected", "reopen",
    "refuse_decision", "note", "decide_redeliver", "decide_discard", "decide_edit", "decide_not_there",
    "withdraw_redeliver", "withdraw_discard", "withdraw_edit", "withdraw_not_there", "approve_redeliver",
    "approve_discard", "approve_edit", "approve_not_there", "approve_nothing", "unapprove_redeliver",
    "unapprove_discard", "unapprove_edit", "unapprove_not_there", "unapprove_nothing", "apply_redeliver",
    "apply_discard", "apply_edit", "apply_not_there", "make_standing_redeliver", "make_standing_discard",
    "approve_standing_redeliver", "approve_standing_discard", "revoke_standing_redeliver", "revoke_standing_discard",
    "apply_standing_redeliver", "apply_standing_discard", "begin_restore", "undo_restore", "finish_restore",
    "doubt_restore", "doubt_backup", "isolate_consumer", "free_consumer", "close_connection", "connection_stayed",
)  # fmt: skip
#: Actions that are called otherwise now; of the others blanks become underscores.
RENAMED = {
    "ask about suspected copies": "ask_about_suspected",
    "take in suspected copy": "take_in_suspected",
    "hold for people": "give_to_people",
    "doubt what was not sent": "doubt_backup",
    "begin to restore": "begin_restore",
    "not restored": "undo_restore",
    "restore": "finish_restore",
    "lose sight of a restore": "doubt_restore",
    "refuse": "refuse_send",
    "release": "release_gate",
    "drain beyond the limit": "drain_beyond_limit",
    "redeliver": "apply_redeliver",
    "discard": "apply_discard",
    "edit": "apply_edit",
    "not_there": "apply_not_there",
    "let redeliver stand": "make_standing_redeliver",
    "let discard stand": "make_standing_discard",
    "undecide redeliver": "withdraw_redeliver",
    "undecide discard": "withdraw_discard",
    "undecide edit": "withdraw_edit",
    "undecide not_there": "withdraw_not_there",
}

#: By table: constraints before, which change or go, and those after.
CHECKS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "messages": (
        {
            "state": "state in ('classified', 'waiting', 'held', 'sending', 'sent', 'unknown', 'returned', 'presumed',"
            " 'confirmed', 'suppressed', 'escalated', 'restoring', 'discarded', 'expired')",
        },
        {
            "state": "state in ('classified', 'waiting', 'held', 'sending', 'sent', 'unknown', 'returned', 'presumed',"
            " 'confirmed', 'suppressed', 'to_review', 'escalated', 'restoring', 'restore_unknown', 'discarded',"
            " 'expired')",
            "plan": f"plan in ({PLANS})",
            "waiting_is_planned": "state <> 'waiting' or (next_attempt_at is not null"
            f" and coalesce(plan, '') in ({SENDS}))",
            "held_is_planned": f"state <> 'held' or coalesce(plan, '') in ({SENDS}, 'hold')",
            "plan_has_ended": f"state not in ({UNPLANNED}) or plan is null",
        },
    ),
    "redelivery_attempts": (
        {"outcome": "outcome in ('returned', 'presumed', 'confirmed', 'escalated')"},
        {"mode": f"mode in ({SENDS})", "outcome": "outcome in ('returned', 'presumed', 'confirmed')"},
    ),
    "audit_events": ({}, {"action": "action in (" + ", ".join(f"'{action}'" for action in ACTIONS) + ")"}),
}
UNFINISHED = (
    "order_key is not null and state in ('classified', 'waiting', 'held', 'sending', 'sent', 'unknown', 'returned',"
    " 'to_review', 'escalated', 'restoring', 'restore_unknown', 'expired')"
)

# One statement, because a row that breaks two of the new rules has to keep both after it. Some had no plan, or no time,
# and so waited for ever.
STATES = f"""
update messages set
    state = case
        when plan = 'escalate' and state in ('classified', 'waiting', 'held', 'unknown', 'suppressed') then 'to_review'
        when plan = 'escalate' and state = 'restoring' then 'restore_unknown'
        else state
    end,
    plan = case
        when plan = 'escalate' then null
        when state in ({UNPLANNED}, 'restoring') then null
        when state = 'waiting' and coalesce(plan, '') not in ({SENDS}) then 'requeue'
        when state = 'held' and coalesce(plan, '') not in ({SENDS}, 'hold') then 'requeue'
        when plan not in ({PLANS}) then null
        else plan
    end,
    next_attempt_at = case
        when plan = 'escalate' then null
        when state = 'waiting' or state = 'held' and coalesce(plan, '') <> 'hold'
        then coalesce(next_attempt_at, changed_at)
        else next_attempt_at
    end
where
    plan not in ({PLANS})
    or plan is not null and state in ({UNPLANNED}, 'restoring')
    or state = 'waiting' and (next_attempt_at is null or coalesce(plan, '') not in ({SENDS}))
    or state = 'held' and (
        coalesce(plan, '') not in ({SENDS}, 'hold') or next_attempt_at is null and coalesce(plan, '') <> 'hold'
    )
"""  # noqa: S608 - words of ours


def upgrade() -> None:
    connection = op.get_bind()
    sqlite = connection.dialect.name == "sqlite"
    connection.execute(sa.text("alter table messages rename column verdict to plan"))
    if sqlite:  # what is written from here on has to keep the new rules; what is there isn't looked at
        _in_place(connection)
    else:
        for table, (before, _) in CHECKS.items():
            for name in before:
                op.drop_constraint(op.f(f"ck_{table}_{name}"), table, type_="check")
    op.drop_index("ix_messages_order", table_name="messages")
    connection.execute(sa.text(STATES))
    connection.execute(sa.text(f"update redelivery_attempts set mode = 'requeue' where mode not in ({SENDS})"))  # noqa: S608
    connection.execute(sa.text("update redelivery_attempts set outcome = null where outcome = 'escalated'"))
    _rename_actions(connection)
    if not sqlite:
        for table, (_, after) in CHECKS.items():
            for name, condition in after.items():
                op.create_check_constraint(op.f(f"ck_{table}_{name}"), table, condition)
    op.create_index(
        "ix_messages_order",
        "messages",
        ["route", "order_key", "first_enqueued_at", "message_id"],
        unique=False,
        sqlite_where=sa.text(UNFINISHED),
        postgresql_where=sa.text(UNFINISHED),
    )


def _rename_actions(connection: sa.Connection) -> None:
    """One word for each action. What a word can't say, from which stage to which a gate went, goes to the reason."""
    known = ", ".join(f"'{action}'" for action in ACTIONS)
    connection.execute(
        sa.text(
            "update audit_events set"  # noqa: S608 - words of ours
            " reason = case when action like 'gate %' then substr(action, 6) || coalesce('\\: ' || reason, '')"
            " when action like 'breaker %' then substr(action, 9) || coalesce('\\: ' || reason, '')"
            f" when {_new('action')} not in ({known}) then action || coalesce('\\: ' || reason, '')"
            " else reason end,"
            " action = case when action like 'gate %' then 'step_gate' when action like 'breaker %' then 'step_breaker'"
            f" when {_new('action')} in ({known}) then {_new('action')} else 'note' end"
            f" where action not in ({known})"
        )
    )


def _new(action: str) -> str:
    cases = " ".join(f"when '{before}' then '{after}'" for before, after in RENAMED.items())
    return f"(case {action} {cases} else replace({action}, ' ', '_') end)"


def _in_place(connection: sa.Connection) -> None:
    """Other conditions in the text of the tables, as SQLite's documentation describes it: nothing that is stored
    depends on them, and a table of millions of messages need not be written anew."""
    version = connection.exec_driver_sql("pragma schema_version").scalar_one()
    connection.exec_driver_sql("pragma writable_schema = on")
    for table, (before, after) in CHECKS.items():
        lines = ", \n\t".join(f"CONSTRAINT ck_{table}_{name} CHECK ({condition})" for name, condition in after.items())
        if before:
            ((name, condition),) = before.items()
            old, new = f"CONSTRAINT ck_{table}_{name} CHECK ({condition})", lines
        else:
            old, new = "\n\treason TEXT\n)", f"\n\treason TEXT, \n\t{lines}\n)"
        changed = connection.exec_driver_sql(
            "update sqlite_master set sql = replace(sql, ?, ?) where type = 'table' and name = ? and instr(sql, ?) > 0",
            (old, new, table, old),
        ).rowcount
        if changed != 1:
            raise RuntimeError(f"table {table} is not as the migrations made it: {old!r} was not found in it")
    connection.exec_driver_sql(f"pragma schema_version = {int(version) + 1}")
    connection.exec_driver_sql("pragma writable_schema = reset")


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
