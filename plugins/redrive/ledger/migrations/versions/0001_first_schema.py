"""First schema

Revision: 0001
"""

import sqlalchemy as sa
from alembic import op

from redrive.ledger.dialects import named
from redrive.ledger.engine import Instant

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

UNFINISHED = (
    "order_key is not null and state in ('classified', 'waiting', 'held', 'sending', 'sent', 'unknown', 'returned',"
    " 'to_review', 'escalated', 'restoring', 'restore_unknown', 'expired')"
)


def among(column: str, values: str, otherwise: str = "false") -> str:
    """Whether it is one of these. A case: SQLite would build a table for an IN, for each row."""
    cases = " ".join(f"when '{value}' then true" for value in values.split())
    return f"case {column} {cases} else {otherwise} end"


def one_of(name: str, column: str, values: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(among(column, values, otherwise=f"{column} is null"), name=op.f(name))


def upgrade() -> None:
    op.create_table(
        "audit_events",
        sa.Column("event_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", Instant(), nullable=False),
        sa.Column("route", sa.Text(), nullable=True),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("from_state", sa.Text(), nullable=True),
        sa.Column("to_state", sa.Text(), nullable=True),
        sa.Column("count", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("message_id", sa.BigInteger(), nullable=True),
        sa.Column("selection", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        one_of(
            "ck_audit_events_action",
            "action",
            """
            take_over_route move_route change_configuration pause resume drain_beyond_limit
            record_batch abandon_batch give_up_batch load give_another_id return hand_over classify_again
            renew_keys
            merge_groups rule_merge rule_split revoke_ruling split_groups refuse_ruling
            follow_ruling forget plan aim expire refuse_destination step_gate step_breaker
            release_gate admit hold_back put_to_review claim claim_resend give_back send lose_sight
            recover_slice refuse_send suppress presume confirm escalate ask ask_about_suspected
            take_in_suspected reopen refuse_decision note decide_redeliver decide_discard
            decide_edit decide_not_there withdraw_redeliver withdraw_discard withdraw_edit
            withdraw_not_there approve_redeliver approve_discard approve_edit approve_not_there
            approve_nothing unapprove_redeliver unapprove_discard unapprove_edit unapprove_not_there
            unapprove_nothing apply_redeliver apply_discard apply_edit apply_not_there
            make_standing_redeliver make_standing_discard approve_standing_redeliver
            approve_standing_discard revoke_standing_redeliver revoke_standing_discard
            apply_standing_redeliver apply_standing_discard change_issue comment save_filter
            remove_filter begin_restore undo_restore finish_restore doubt_restore doubt_backup
            isolate_consumer free_consumer close_connection connection_stayed
            """,
        ),
        sa.PrimaryKeyConstraint("event_id", name=op.f("pk_audit_events")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_events_message_id", "audit_events", ["message_id"], unique=False)
    op.create_index("ix_audit_events_route_at", "audit_events", ["route", "at"], unique=False)
    op.create_index("ix_audit_events_run_id", "audit_events", ["run_id"], unique=False)
    op.create_index(
        "ix_audit_events_people",
        "audit_events",
        ["event_id", "actor", "action"],
        unique=False,
        sqlite_where=sa.text("actor <> 'redrive'"),
        postgresql_where=sa.text("actor <> 'redrive'"),
    )
    op.create_table(
        "breakers",
        sa.Column("breaker_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=True),
        sa.Column("destination", sa.Text(), nullable=True),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("period", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column(
            "stage_id", sa.BigInteger(), sa.Computed("breaker_id * 16777216 + period", persisted=True), nullable=False
        ),
        sa.Column("allowed", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("trips", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("admits", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("cool_down_until", Instant(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("stage_at", Instant(), nullable=False),
        sa.Column("began_at", Instant(), nullable=False),
        sa.Column("stage_slice", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("began_slice", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("failed_at", Instant(), nullable=True),
        sa.CheckConstraint(
            "destination is null and group_id is not null and stage in ('canary', 'ramp', 'open', 'failed', 'tripped')"
            " or group_id is null and destination is not null and stage in ('open', 'tripped', 'half_open')",
            name=op.f("ck_breakers_stage"),
        ),
        sa.PrimaryKeyConstraint("breaker_id", name=op.f("pk_breakers")),
        sa.UniqueConstraint("route", "destination", name=op.f("uq_breakers_route_destination")),
        sa.UniqueConstraint("route", "group_id", name=op.f("uq_breakers_route_group_id")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "configurations",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("first_used_at", Instant(), nullable=False),
        sa.Column("last_used_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_configurations")),
        comment="What runs began with.",
    )
    op.create_table(
        "consumer_health",
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("consumer", sa.Text(), nullable=False),
        sa.Column("observed_at", Instant(), nullable=False),
        sa.Column("last_progress_at", Instant(), nullable=True),
        sa.Column("unacked", sa.BigInteger(), nullable=True),
        sa.Column("progress", sa.BigInteger(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("isolated_at", Instant(), nullable=True),
        sa.Column("closed_at", Instant(), nullable=True),
        one_of("ck_consumer_health_status", "status", "healthy stuck isolated gone"),
        sa.PrimaryKeyConstraint("route", "queue", "consumer", name=op.f("pk_consumer_health")),
    )
    op.create_table(
        "delivery_slices",
        sa.Column("slice_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("task_try", sa.Text(), server_default="", nullable=False),
        sa.Column("destination", sa.Text(), nullable=False),
        sa.Column("claimed", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("sent", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("claimed_at", Instant(), nullable=False),
        sa.Column("deadline_at", Instant(), nullable=False),
        sa.Column("high_water", sa.BigInteger(), server_default=sa.text("-1"), nullable=False),
        sa.Column("confirmed_to", sa.BigInteger(), server_default=sa.text("-1"), nullable=False),
        sa.Column("closed_at", Instant(), nullable=True),
        sa.Column("last_sent_at", Instant(), nullable=True),
        sa.Column("observed_from", Instant(), nullable=True),
        sa.Column("observed_at", Instant(), nullable=True),
        sa.Column("system", sa.Text(), server_default="", nullable=False),
        sa.Column("window_ends_at", Instant(), nullable=True),
        sa.PrimaryKeyConstraint("slice_id", name=op.f("pk_delivery_slices")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_delivery_slices_route_slice_id", "delivery_slices", ["route", "slice_id"], unique=False)
    op.create_index("ix_delivery_slices_route_closed_at", "delivery_slices", ["route", "closed_at"], unique=False)
    op.create_index(
        "ix_delivery_slices_destination",
        "delivery_slices",
        ["destination", "closed_at"],
        unique=False,
        sqlite_where=sa.text("observed_at is null"),
        postgresql_where=sa.text("observed_at is null"),
    )
    op.create_index("ix_delivery_slices_run_id", "delivery_slices", ["run_id"], unique=False)
    op.create_index(
        "ix_delivery_slices_unobserved",
        "delivery_slices",
        ["route", "slice_id"],
        unique=False,
        sqlite_where=sa.text("observed_at is null"),
        postgresql_where=sa.text("observed_at is null"),
    )
    op.create_table(
        "escalated_messages",
        sa.Column("escalation_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("message_id", sa.BigInteger(), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=True),
        sa.Column("cause", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("error_text", sa.Text(), nullable=True),
        sa.Column("payload", sa.Text(), nullable=True),
        sa.Column("payload_bytes", sa.LargeBinary(), nullable=True),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("content_type", sa.Text(), nullable=True),
        sa.Column("headers", sa.Text(), server_default="[]", nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("destination", sa.Text(), nullable=True),
        sa.Column("broker_message_id", sa.Text(), nullable=True),
        sa.Column("message_key", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("first_enqueued_at", Instant(), nullable=True),
        sa.Column("escalated_at", Instant(), nullable=False),
        sa.Column("suggested_decision", sa.Text(), nullable=True),
        sa.Column("question", sa.Text(), server_default="failure", nullable=False),
        sa.Column("status", sa.Text(), server_default="open", nullable=False),
        sa.Column("decision", sa.Text(), nullable=True),
        sa.Column("decided_by", sa.Text(), nullable=True),
        sa.Column("decided_at", Instant(), nullable=True),
        sa.Column("approved_by", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("corrected_body", sa.Text(), nullable=True),
        sa.Column("corrected_headers", sa.Text(), nullable=True),
        sa.Column("refusal", sa.Text(), nullable=True),
        sa.Column("applied_at", Instant(), nullable=True),
        sa.Column("changed", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "decision <> 'edit' or corrected_body is not null or corrected_headers is not null",
            name=op.f("ck_escalated_messages_edit_needs_correction"),
        ),
        one_of("ck_escalated_messages_decision", "decision", "redeliver discard edit not_there"),
        sa.CheckConstraint(
            "decision is null or coalesce(trim(decided_by), '') <> ''",
            name=op.f("ck_escalated_messages_decision_needs_name"),
        ),
        sa.CheckConstraint(
            "status <> 'applied' or decision is not null", name=op.f("ck_escalated_messages_status_needs_decision")
        ),
        one_of("ck_escalated_messages_question", "question", "failure sent second_copy restored"),
        one_of("ck_escalated_messages_status", "status", "open decided applied refused reopened"),
        sa.PrimaryKeyConstraint("escalation_id", name=op.f("pk_escalated_messages")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_escalated_messages_message_id", "escalated_messages", ["message_id"], unique=False)
    op.create_index(
        "ix_escalated_messages_decided",
        "escalated_messages",
        ["route", "escalation_id"],
        unique=False,
        sqlite_where=sa.text("status = 'decided'"),
        postgresql_where=sa.text("status = 'decided'"),
    )
    op.create_index(
        "ix_escalated_messages_route_escalated_at",
        "escalated_messages",
        ["route", "escalated_at", "group_id"],
        unique=False,
    )
    op.create_index(
        "ix_escalated_messages_review",
        "escalated_messages",
        ["route", "group_id", "escalated_at", "status", "first_enqueued_at", "suggested_decision"],
        unique=False,
    )
    op.create_index(
        "ix_escalated_messages_answered",
        "escalated_messages",
        ["route", "group_id", "decided_at", "escalation_id"],
        unique=False,
        sqlite_where=sa.text("status = 'applied' and question = 'failure'"),
        postgresql_where=sa.text("status = 'applied' and question = 'failure'"),
    )
    op.create_index(
        "ix_escalated_messages_decided_at",
        "escalated_messages",
        ["decided_at"],
        unique=False,
        sqlite_where=sa.text("decided_at is not null"),
        postgresql_where=sa.text("decided_at is not null"),
    )
    if named(op.get_context().dialect.name).counts_changes:
        op.create_index(
            "ix_escalated_messages_changed",
            "escalated_messages",
            ["changed"],
            unique=False,
            sqlite_where=sa.text("changed is not null"),
        )
    op.create_index(
        "ix_escalated_messages_status_group_id",
        "escalated_messages",
        ["status", "route", "group_id", "escalation_id"],
        unique=False,
    )
    op.create_table(
        "finished_counts",
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("messages", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("route", "state", name=op.f("pk_finished_counts")),
        comment="How many messages are finished: more each day, so they are not counted anew each time somebody asks.",
    )
    op.create_table(
        "failure_groups",
        sa.Column("group_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("template", sa.Text(), nullable=False),
        sa.Column("example", sa.Text(), nullable=True),
        sa.Column("messages", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("first_seen_at", Instant(), nullable=False),
        sa.Column("last_seen_at", Instant(), nullable=False),
        sa.Column("first_route", sa.Text(), nullable=True),
        sa.Column("parted_at", Instant(), nullable=True),
        sa.PrimaryKeyConstraint("group_id", name=op.f("pk_failure_groups")),
        sa.UniqueConstraint("fingerprint", name=op.f("uq_failure_groups_fingerprint")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "ledger_identity",
        sa.Column("ledger_id", sa.Text(), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("ledger_id", name=op.f("pk_ledger_identity")),
        comment="One row: which ledger this is.",
    )
    op.create_table(
        "messages",
        sa.Column(
            "message_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False
        ),
        sa.Column("redrive_id", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.BigInteger(), nullable=True),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=True),
        sa.Column("destination", sa.Text(), nullable=True),
        sa.Column("broker_message_id", sa.Text(), nullable=False),
        sa.Column("body_hash", sa.LargeBinary(length=16), nullable=False),
        sa.Column("body_bytes", sa.Integer(), nullable=False),
        sa.Column("copy_id", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=True),
        sa.Column("group_id", sa.BigInteger(), nullable=True),
        sa.Column("plan", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("doubted", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("requeues", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("delays", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("releases", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("send_failures", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("deliveries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("first_enqueued_at", Instant(), nullable=True),
        sa.Column("dead_lettered_at", Instant(), nullable=True),
        sa.Column("received_at", Instant(), nullable=True),
        sa.Column("next_attempt_at", Instant(), nullable=True),
        sa.Column("changed_at", Instant(), nullable=False),
        sa.Column("message_key", sa.Text(), nullable=True),
        sa.Column("order_key", sa.Text(), nullable=True),
        one_of("ck_messages_plan", "plan", "requeue delay canary release hold resend repeat"),
        sa.CheckConstraint(
            "state <> 'held' or " + among("plan", "requeue delay canary release hold"),
            name=op.f("ck_messages_held_is_planned"),
        ),
        sa.CheckConstraint(
            "state <> 'waiting' or (next_attempt_at is not null and "
            + among("plan", "requeue delay canary release")
            + ")",
            name=op.f("ck_messages_waiting_is_planned"),
        ),
        one_of(
            "ck_messages_state",
            "state",
            """
            classified waiting held sending sent unknown returned presumed confirmed suppressed
            to_review escalated restoring restore_unknown discarded expired
            """,
        ),
        sa.CheckConstraint(
            "plan is null or not "
            + among(
                "state",
                """
            classified suppressed to_review escalated restore_unknown discarded expired
            """,
            ),
            name=op.f("ck_messages_plan_has_ended"),
        ),
        sa.PrimaryKeyConstraint("message_id", name=op.f("pk_messages")),
    )
    op.create_index(
        "ix_messages_broker_message_id",
        "messages",
        ["broker_message_id"],
        unique=False,
        sqlite_where=sa.text("broker_message_id <> ''"),
        postgresql_where=sa.text("broker_message_id <> ''"),
    )
    op.create_index(
        "ix_messages_due",
        "messages",
        ["route", "next_attempt_at"],
        unique=False,
        sqlite_where=sa.text("state = 'waiting'"),
        postgresql_where=sa.text("state = 'waiting'"),
    )
    op.create_index(
        "ix_messages_order",
        "messages",
        ["route", "order_key", "first_enqueued_at", "message_id"],
        unique=False,
        sqlite_where=sa.text(UNFINISHED),
        postgresql_where=sa.text(UNFINISHED),
    )
    op.create_index("ix_messages_redrive_id", "messages", ["redrive_id"], unique=True)
    op.create_index(
        "ix_messages_route_state", "messages", ["route", "state", "message_id", "destination"], unique=False
    )
    op.create_table(
        "notifications",
        sa.Column("notification_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.Column("raised_at", Instant(), nullable=False),
        sa.Column("resolved_at", Instant(), nullable=True),
        one_of(
            "ck_notifications_event",
            "event",
            """
            new_group route_paused slo_breach messages_expiring consumers_stuck balance_broken
            """,
        ),
        sa.PrimaryKeyConstraint("notification_id", name=op.f("pk_notifications")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_notifications_unresolved",
        "notifications",
        ["route", "event", "subject"],
        unique=True,
        sqlite_where=sa.text("resolved_at is null"),
        postgresql_where=sa.text("resolved_at is null"),
    )
    op.create_table(
        "queue_observations",
        sa.Column("observation_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("observed_at", Instant(), nullable=False),
        sa.Column("visible", sa.BigInteger(), nullable=True),
        sa.Column("in_flight", sa.BigInteger(), nullable=True),
        sa.Column("delayed", sa.BigInteger(), nullable=True),
        sa.Column("consumers", sa.Integer(), nullable=True),
        sa.Column("oldest_age_seconds", sa.Float(), nullable=True),
        sa.Column("oldest_age_method", sa.Text(), nullable=False),
        sa.Column("oldest_visible_age_seconds", sa.Float(), nullable=True),
        sa.Column("oldest_visible_age_method", sa.Text(), nullable=False),
        sa.Column("coverage", sa.Float(), nullable=True),
        sa.Column("oldest_enqueued_at", Instant(), nullable=True),
        sa.Column("oldest_seen_at", Instant(), nullable=True),
        sa.Column("oldest_deliveries", sa.Integer(), nullable=True),
        sa.Column("looked_from_at", Instant(), nullable=True),
        sa.Column("looked_to_at", Instant(), nullable=True),
        sa.Column("system", sa.Text(), server_default="", nullable=False),
        sa.Column("lag_seconds", sa.Float(), server_default="0", nullable=False),
        sa.Column("zeros_apart_seconds", sa.Float(), server_default="0", nullable=False),
        sa.Column("exact", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("told", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=True),
        one_of("ck_queue_observations_oldest_age_method", "oldest_age_method", "broker ledger sample unknown"),
        one_of(
            "ck_queue_observations_oldest_visible_age_method",
            "oldest_visible_age_method",
            "broker ledger sample unknown",
        ),
        one_of("ck_queue_observations_role", "role", "source destination"),
        sa.PrimaryKeyConstraint("observation_id", name=op.f("pk_queue_observations")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_queue_observations_seen", "queue_observations", ["queue", "system", "observed_at"], unique=False
    )
    op.create_index(
        "ix_queue_observations_newest", "queue_observations", ["route", "queue", "observation_id"], unique=False
    )
    op.create_table(
        "redelivery_attempts",
        sa.Column("message_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=True),
        sa.Column("slice_id", sa.BigInteger(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("destination", sa.Text(), nullable=False),
        sa.Column("broker_message_id", sa.Text(), nullable=True),
        sa.Column("tracked", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("body_hash", sa.LargeBinary(length=16), nullable=True),
        sa.Column("claimed_at", Instant(), nullable=False),
        sa.Column("due_at", Instant(), nullable=True),
        sa.Column("sent_at", Instant(), nullable=True),
        sa.Column("unknown_at", Instant(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("outcome_at", Instant(), nullable=True),
        sa.Column("return_copy", sa.BigInteger(), nullable=True),
        sa.Column("return_kind", sa.Text(), nullable=True),
        sa.Column("group_stage", sa.BigInteger(), nullable=True),
        sa.Column("destination_stage", sa.BigInteger(), nullable=True),
        one_of("ck_redelivery_attempts_mode", "mode", "requeue delay canary release"),
        one_of("ck_redelivery_attempts_outcome", "outcome", "returned presumed confirmed"),
        sa.PrimaryKeyConstraint("message_id", "attempt", name=op.f("pk_redelivery_attempts")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_redelivery_attempts_destination_stage",
        "redelivery_attempts",
        ["destination_stage", "group_id", "outcome", "return_kind"],
        unique=False,
        sqlite_where=sa.text("destination_stage is not null"),
        postgresql_where=sa.text("destination_stage is not null"),
    )
    op.create_index(
        "ix_redelivery_attempts_returned",
        "redelivery_attempts",
        ["route", "message_id"],
        unique=False,
        sqlite_where=sa.text("outcome = 'returned'"),
        postgresql_where=sa.text("outcome = 'returned'"),
    )
    op.create_index(
        "ix_redelivery_attempts_group_stage",
        "redelivery_attempts",
        ["group_stage", "outcome", "return_kind"],
        unique=False,
        sqlite_where=sa.text("group_stage is not null"),
        postgresql_where=sa.text("group_stage is not null"),
    )
    op.create_index(
        "ix_redelivery_attempts_slice_id",
        "redelivery_attempts",
        ["slice_id", "message_id"],
        unique=False,
        postgresql_with={"deduplicate_items": "off"},
    )
    op.create_index(
        "ix_redelivery_attempts_untracked",
        "redelivery_attempts",
        ["broker_message_id"],
        unique=False,
        sqlite_where=sa.text("not tracked"),
        postgresql_where=sa.text("not tracked"),
    )
    op.create_table(
        "repeat_copies",
        sa.Column("copy_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("message_id", sa.BigInteger(), nullable=True),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("broker_message_id", sa.Text(), nullable=False),
        sa.Column("enqueued_at", Instant(), nullable=True),
        sa.Column("seen_at", Instant(), nullable=False),
        sa.Column("headers_hash", sa.LargeBinary(length=16), nullable=True),
        one_of("ck_repeat_copies_kind", "kind", "returned duplicate surplus suspected"),
        sa.PrimaryKeyConstraint("copy_id", name=op.f("pk_repeat_copies")),
        comment="Staged copies that did not become a message of their own, and what they were.",
    )
    op.create_index("ix_repeat_copies_broker_message_id", "repeat_copies", ["broker_message_id"], unique=False)
    op.create_index("ix_repeat_copies_message_id", "repeat_copies", ["message_id"], unique=False)
    op.create_index(
        "ix_repeat_copies_suspected",
        "repeat_copies",
        ["route", "copy_id"],
        unique=False,
        sqlite_where=sa.text("kind = 'suspected'"),
        postgresql_where=sa.text("kind = 'suspected'"),
    )
    op.create_table(
        "returned_elsewhere",
        sa.Column("message_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("copy_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("dead_lettered_at", Instant(), nullable=True),
        sa.Column("received_at", Instant(), nullable=False),
        one_of("ck_returned_elsewhere_kind", "kind", "dead_letter delay"),
        sa.PrimaryKeyConstraint("message_id", "attempt", name=op.f("pk_returned_elsewhere")),
        comment="Attempts that came back to another route than sent them, until that one's next run knows it.",
        sqlite_with_rowid=False,
    )
    op.create_index("ix_returned_elsewhere_route", "returned_elsewhere", ["route"], unique=False)
    op.create_table(
        "route_state",
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("holder", sa.Text(), nullable=True),
        sa.Column("lease_until", Instant(), nullable=True),
        sa.Column("fence", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("paused_at", Instant(), nullable=True),
        sa.Column("paused_by", sa.Text(), nullable=True),
        sa.Column("pause_reason", sa.Text(), nullable=True),
        sa.Column("system", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("route", name=op.f("pk_route_state")),
    )
    op.create_table(
        "runs",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("trigger", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("selection", sa.Text(), server_default="{}", nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("started_at", Instant(), nullable=False),
        sa.Column("began_at", Instant(), nullable=True),
        sa.Column("finished_at", Instant(), nullable=True),
        sa.Column("counts", sa.Text(), server_default="{}", nullable=False),
        sa.Column("airflow_run_id", sa.Text(), nullable=True),
        sa.Column("configuration", sa.Text(), nullable=True),
        one_of("ck_runs_status", "status", "running succeeded failed replaced"),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_runs")),
    )
    op.create_index("ix_runs_route_started_at", "runs", ["route", "started_at"], unique=False)
    op.create_table(
        "former_sources",
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("system", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("route", "source", "system", name=op.f("pk_former_sources")),
        comment="Sources that a route drained once, and drains no more.",
        sqlite_with_rowid=False,
    )
    op.create_table(
        "source_state",
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("drained_to", Instant(), nullable=True),
        sa.Column("pending_to", Instant(), nullable=True),
        sa.Column("retention_seconds", sa.Float(), nullable=True),
        sa.Column("oldest_at", Instant(), nullable=True),
        sa.PrimaryKeyConstraint("route", "source", name=op.f("pk_source_state")),
    )
    op.create_table(
        "staging_batches",
        sa.Column("batch_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("copies", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("settled_copies", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("new_copies", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("returned_copies", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("duplicate_copies", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("surplus_copies", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("suspected_copies", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("opened_at", Instant(), nullable=False),
        sa.Column("recorded_at", Instant(), nullable=True),
        sa.Column("settled_at", Instant(), nullable=True),
        sa.Column("loaded_at", Instant(), nullable=True),
        sa.Column("removed_at", Instant(), nullable=True),
        sa.Column("adopted_from", sa.Text(), nullable=True),
        sa.Column("doubted", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("message_key_by", sa.Text(), nullable=True),
        sa.Column("order_key_by", sa.Text(), nullable=True),
        sa.Column("system", sa.Text(), server_default="", nullable=False),
        one_of("ck_staging_batches_kind", "kind", "dead_letter delay"),
        one_of("ck_staging_batches_state", "state", "open recorded settled abandoned"),
        sa.PrimaryKeyConstraint("batch_id", name=op.f("pk_staging_batches")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_staging_batches_adopted_from",
        "staging_batches",
        ["adopted_from"],
        unique=True,
        sqlite_where=sa.text("adopted_from is not null and state <> 'abandoned'"),
        postgresql_where=sa.text("adopted_from is not null and state <> 'abandoned'"),
    )
    op.create_index("ix_staging_batches_route_state", "staging_batches", ["route", "state"], unique=False)
    op.create_index("ix_staging_batches_run_id", "staging_batches", ["run_id"], unique=False)
    op.create_index(
        "ix_staging_batches_to_load",
        "staging_batches",
        ["route", "batch_id"],
        unique=False,
        sqlite_where=sa.text("loaded_at is null"),
        postgresql_where=sa.text("loaded_at is null"),
    )
    op.create_index(
        "ix_staging_batches_unsettled",
        "staging_batches",
        ["source", "batch_id"],
        unique=False,
        sqlite_where=sa.text("settled_copies < copies and removed_at is null"),
        postgresql_where=sa.text("settled_copies < copies and removed_at is null"),
    )
    op.create_table(
        "group_rulings",
        sa.Column("ruling_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("ruling", sa.Text(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("other_group_id", sa.BigInteger(), nullable=True),
        sa.Column("words", sa.Text(), nullable=True),
        sa.Column("decided_by", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("created_at", Instant(), server_default=sa.text("current_timestamp"), nullable=False),
        sa.Column("applied_at", Instant(), nullable=True),
        sa.Column("refusal", sa.Text(), nullable=True),
        sa.Column("revoked_at", Instant(), nullable=True),
        sa.Column("revoked_by", sa.Text(), nullable=True),
        one_of("ck_group_rulings_ruling", "ruling", "merge split"),
        sa.CheckConstraint(
            "other_group_id is not null or (ruling = 'split' and words is not null)",
            name=op.f("ck_group_rulings_says_of_what"),
        ),
        sa.CheckConstraint(
            "words is null or (ruling = 'split' and trim(words) <> '')", name=op.f("ck_group_rulings_words_split")
        ),
        sa.CheckConstraint("other_group_id <> group_id", name=op.f("ck_group_rulings_about_two")),
        sa.CheckConstraint(
            "trim(decided_by) <> '' and trim(note) <> ''", name=op.f("ck_group_rulings_says_who_and_why")
        ),
        sa.CheckConstraint(
            "revoked_at is null or coalesce(trim(revoked_by), '') <> ''",
            name=op.f("ck_group_rulings_revocation_needs_name"),
        ),
        sa.ForeignKeyConstraint(["group_id"], ["failure_groups.group_id"], name=op.f("fk_group_rulings_group_id")),
        sa.ForeignKeyConstraint(
            ["other_group_id"], ["failure_groups.group_id"], name=op.f("fk_group_rulings_other_group_id")
        ),
        sa.PrimaryKeyConstraint("ruling_id", name=op.f("pk_group_rulings")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "group_aliases",
        sa.Column("group_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("merged_into", sa.BigInteger(), nullable=False),
        sa.Column("merged_at", Instant(), nullable=False),
        sa.Column("parent_id", sa.BigInteger(), nullable=True),
        sa.Column("ruling_id", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("merged_into < group_id", name=op.f("ck_group_aliases_older")),
        sa.ForeignKeyConstraint(["group_id"], ["failure_groups.group_id"], name=op.f("fk_group_aliases_group_id")),
        sa.ForeignKeyConstraint(
            ["merged_into"], ["failure_groups.group_id"], name=op.f("fk_group_aliases_merged_into")
        ),
        sa.ForeignKeyConstraint(["parent_id"], ["failure_groups.group_id"], name=op.f("fk_group_aliases_parent_id")),
        sa.ForeignKeyConstraint(["ruling_id"], ["group_rulings.ruling_id"], name=op.f("fk_group_aliases_ruling_id")),
        sa.PrimaryKeyConstraint("group_id", name=op.f("pk_group_aliases")),
    )
    op.create_table(
        "notification_sends",
        sa.Column("notification_id", sa.BigInteger(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("tries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("next_try_at", Instant(), nullable=True),
        sa.Column("sent_at", Instant(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["notification_id"], ["notifications.notification_id"], name=op.f("fk_notification_sends_notification_id")
        ),
        sa.PrimaryKeyConstraint("notification_id", "target", name=op.f("pk_notification_sends")),
    )
    op.create_index(
        "ix_notification_sends_pending",
        "notification_sends",
        ["next_try_at"],
        unique=False,
        sqlite_where=sa.text("next_try_at is not null"),
        postgresql_where=sa.text("next_try_at is not null"),
    )
    op.create_table(
        "standing_decisions",
        sa.Column("standing_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("route", sa.Text(), nullable=True),
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("decision", sa.Text(), nullable=False),
        sa.Column("decided_by", sa.Text(), nullable=False),
        sa.Column("approved_by", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("created_at", Instant(), server_default=sa.text("current_timestamp"), nullable=False),
        sa.Column("until_at", Instant(), nullable=False),
        sa.Column("revoked_at", Instant(), nullable=True),
        sa.Column("revoked_by", sa.Text(), nullable=True),
        one_of("ck_standing_decisions_decision", "decision", "redeliver discard"),
        sa.CheckConstraint(
            "revoked_at is null or coalesce(trim(revoked_by), '') <> ''",
            name=op.f("ck_standing_decisions_revocation_needs_name"),
        ),
        sa.CheckConstraint(
            "trim(decided_by) <> '' and trim(note) <> ''", name=op.f("ck_standing_decisions_says_who_and_why")
        ),
        sa.CheckConstraint("until_at > created_at", name=op.f("ck_standing_decisions_holds_for_a_while")),
        sa.ForeignKeyConstraint(["group_id"], ["failure_groups.group_id"], name=op.f("fk_standing_decisions_group_id")),
        sa.PrimaryKeyConstraint("standing_id", name=op.f("pk_standing_decisions")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "failure_issues",
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("group_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("status", sa.Text(), server_default="open", nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("ticket", sa.Text(), nullable=True),
        sa.Column("ignored_until_at", Instant(), nullable=True),
        sa.Column("status_at", Instant(), server_default=sa.text("current_timestamp"), nullable=False),
        sa.Column("written_by", sa.Text(), nullable=False),
        sa.Column("written_at", Instant(), server_default=sa.text("current_timestamp"), nullable=False),
        one_of("ck_failure_issues_status", "status", "open acknowledged in_progress resolved ignored"),
        sa.CheckConstraint(
            "(status = 'ignored') = (ignored_until_at is not null)", name=op.f("ck_failure_issues_ignored_until")
        ),
        sa.CheckConstraint("trim(written_by) <> ''", name=op.f("ck_failure_issues_says_who")),
        sa.ForeignKeyConstraint(["group_id"], ["failure_groups.group_id"], name=op.f("fk_failure_issues_group_id")),
        sa.PrimaryKeyConstraint("route", "group_id", name=op.f("pk_failure_issues")),
    )
    op.create_table(
        "issue_comments",
        sa.Column("comment_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("written_by", sa.Text(), nullable=False),
        sa.Column("written_at", Instant(), server_default=sa.text("current_timestamp"), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "trim(written_by) <> '' and trim(text) <> ''", name=op.f("ck_issue_comments_says_who_and_what")
        ),
        sa.ForeignKeyConstraint(["group_id"], ["failure_groups.group_id"], name=op.f("fk_issue_comments_group_id")),
        sa.PrimaryKeyConstraint("comment_id", name=op.f("pk_issue_comments")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_issue_comments_route_group_id", "issue_comments", ["route", "group_id"], unique=False)

    _of_the_page()


def _of_the_page() -> None:
    """What people find messages by, and what they left on the page."""
    op.create_index(
        "ix_messages_message_key",
        "messages",
        ["message_key"],
        unique=False,
        sqlite_where=sa.text("message_key is not null"),
        postgresql_where=sa.text("message_key is not null"),
        postgresql_ops={"message_key": "text_pattern_ops"},
    )
    op.create_table(
        "message_fields",
        sa.Column("message_id", sa.BigInteger(), nullable=False),
        sa.Column("field", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("message_id", "field", name=op.f("pk_message_fields")),
        comment="What messages are found by, beside their ids and keys.",
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_message_fields_value",
        "message_fields",
        ["value", "field"],
        unique=False,
        postgresql_ops={"value": "text_pattern_ops"},
    )
    op.create_table(
        "saved_filters",
        sa.Column("filter_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("page", sa.Text(), nullable=False),
        sa.Column("query", sa.Text(), nullable=False),
        sa.Column("saved_by", sa.Text(), nullable=False),
        sa.Column("saved_at", Instant(), nullable=False),
        one_of("ck_saved_filters_page", "page", "find messages"),
        sa.CheckConstraint(
            "trim(name) <> '' and trim(saved_by) <> ''", name=op.f("ck_saved_filters_says_what_and_who")
        ),
        sa.PrimaryKeyConstraint("filter_id", name=op.f("pk_saved_filters")),
        sa.UniqueConstraint("name", name=op.f("uq_saved_filters_name")),
        comment="Filters of the review page that somebody gave a name.",
        sqlite_autoincrement=True,
    )
    op.create_table(
        "page_visits",
        sa.Column("person", sa.Text(), nullable=False),
        sa.Column("visited_at", Instant(), nullable=False),
        sa.Column("since_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("person", name=op.f("pk_page_visits")),
        comment="When people looked at the review page.",
    )


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
