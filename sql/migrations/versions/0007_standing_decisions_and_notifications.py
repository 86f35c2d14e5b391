"""Standing decisions that hold, notifications that wait to be sent, and an index for the groups under review

Revision: 0007
"""

import sqlalchemy as sa
from alembic import op

from redrive.ledger.engine import Instant

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Made anew: nothing read the table before, so nobody expects that what is in it begins to hold now.
    op.drop_table("standing_decisions")
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
        sa.CheckConstraint("decision in ('redeliver', 'discard')", name=op.f("ck_standing_decisions_decision")),
        sa.CheckConstraint(
            "trim(decided_by) <> '' and trim(note) <> ''", name=op.f("ck_standing_decisions_says_who_and_why")
        ),
        sa.CheckConstraint("until_at > created_at", name=op.f("ck_standing_decisions_holds_for_a_while")),
        sa.CheckConstraint(
            "revoked_at is null or coalesce(trim(revoked_by), '') <> ''",
            name=op.f("ck_standing_decisions_revocation_needs_name"),
        ),
        sa.ForeignKeyConstraint(["group_id"], ["failure_groups.group_id"], name=op.f("fk_standing_decisions_group_id")),
        sa.PrimaryKeyConstraint("standing_id", name=op.f("pk_standing_decisions")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_escalated_messages_review",
        "escalated_messages",
        ["route", "group_id", "status", "escalated_at", "first_enqueued_at", "suggested_decision"],
        unique=False,
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
        sa.CheckConstraint(
            "event in ('new_group', 'route_paused', 'slo_breach', 'messages_expiring', 'balance_broken')",
            name=op.f("ck_notifications_event"),
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
        "notification_sends",
        sa.Column("notification_id", sa.BigInteger(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("tries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("next_try_at", Instant(), nullable=True),
        sa.Column("sent_at", Instant(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["notification_id"],
            ["notifications.notification_id"],
            name=op.f("fk_notification_sends_notification_id"),
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


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
