"""A breaker per destination; since when a group is tried; when what lies in a source expires

Revision: 0006
"""

from typing import Literal

import sqlalchemy as sa
from alembic import op

from redrive.ledger.engine import Instant

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # SQLite would write new columns behind the constraints; made anew, the tables are as the code says them.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("group_state", recreate=recreate) as table:
        table.add_column(sa.Column("began_at", Instant(), nullable=True))
    with op.batch_alter_table("source_state", recreate=recreate) as table:
        table.add_column(sa.Column("retention_seconds", sa.Float(), nullable=True))
        table.add_column(sa.Column("oldest_at", Instant(), nullable=True))
    op.create_table(
        "destination_state",
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("destination", sa.Text(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("allowed", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("trips", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("cool_down_until", Instant(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("stage_at", Instant(), nullable=False),
        sa.CheckConstraint("stage in ('open', 'tripped', 'half_open')", name=op.f("ck_destination_state_stage")),
        sa.PrimaryKeyConstraint("route", "destination", name=op.f("pk_destination_state")),
    )
    op.create_table(
        "destination_outcomes",
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("destination", sa.Text(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("sent", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("stayed", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("returned", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("route", "destination", "group_id", name=op.f("pk_destination_outcomes")),
    )


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
