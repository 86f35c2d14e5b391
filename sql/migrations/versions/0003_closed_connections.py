"""When the broker was asked to close a stuck consumer's connection

Revision: 0003
"""

from typing import Literal

import sqlalchemy as sa
from alembic import op

from redrive.ledger.engine import Instant

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # SQLite would write the new column behind the constraints; made anew, the table is as the code says it.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("consumer_health", recreate=recreate) as table:
        table.add_column(sa.Column("closed_at", Instant(), nullable=True))


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
