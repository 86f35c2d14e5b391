"""On which broker a queue was seen, how late and how exact its depth may be; until when a send is observed

Revision: 0012
"""

from typing import Literal

import sqlalchemy as sa
from alembic import op

from redrive.ledger.engine import Instant

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # SQLite would write new columns behind the constraints; made anew, the tables are as the code says them.
    sqlite = op.get_bind().dialect.name == "sqlite"
    recreate: Literal["always", "never"] = "always" if sqlite else "never"
    numbered = {"sqlite_autoincrement": True}
    with op.batch_alter_table("route_state", recreate=recreate) as table:
        table.add_column(sa.Column("system", sa.Text(), server_default="", nullable=False))
    with op.batch_alter_table("delivery_slices", recreate=recreate, table_kwargs=numbered) as table:
        table.add_column(sa.Column("system", sa.Text(), server_default="", nullable=False))
        table.add_column(sa.Column("window_ends_at", Instant(), nullable=True))
    op.drop_index("ix_queue_observations_queue_observed_at", table_name="queue_observations")
    with op.batch_alter_table("queue_observations", recreate=recreate, table_kwargs=numbered) as table:
        table.add_column(sa.Column("system", sa.Text(), server_default="", nullable=False))
        table.add_column(sa.Column("lag_seconds", sa.Float(), server_default="0", nullable=False))
        table.add_column(sa.Column("exact", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.create_index(
        "ix_queue_observations_seen", "queue_observations", ["queue", "system", "observed_at"], unique=False
    )


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
