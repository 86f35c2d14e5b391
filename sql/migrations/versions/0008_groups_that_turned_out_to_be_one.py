"""Groups that turned out to be one

Revision: 0008
"""

import sqlalchemy as sa
from alembic import op

from redrive.ledger.engine import Instant

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "group_aliases",
        sa.Column("group_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("merged_into", sa.BigInteger(), nullable=False),
        sa.Column("merged_at", Instant(), nullable=False),
        sa.CheckConstraint("merged_into < group_id", name=op.f("ck_group_aliases_older")),
        sa.ForeignKeyConstraint(["group_id"], ["failure_groups.group_id"], name=op.f("fk_group_aliases_group_id")),
        sa.ForeignKeyConstraint(
            ["merged_into"], ["failure_groups.group_id"], name=op.f("fk_group_aliases_merged_into")
        ),
        sa.PrimaryKeyConstraint("group_id", name=op.f("pk_group_aliases")),
    )


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
