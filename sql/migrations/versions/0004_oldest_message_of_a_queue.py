"""What is remembered of a live queue's oldest message

Revision: 0004
"""

from typing import Literal

import sqlalchemy as sa
from alembic import op

from redrive.ledger.engine import Instant

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # SQLite would write the new columns behind the constraints; made anew, the table is as the code says it.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table(
        "queue_observations", recreate=recreate, table_kwargs={"sqlite_autoincrement": True}
    ) as table:
        table.add_column(sa.Column("oldest_enqueued_at", Instant(), nullable=True))
        table.add_column(sa.Column("oldest_seen_at", Instant(), nullable=True))
        table.add_column(sa.Column("oldest_deliveries", sa.Integer(), nullable=True))


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
