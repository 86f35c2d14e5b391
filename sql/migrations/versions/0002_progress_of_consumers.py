"""What tells a consumer that acks from one that does not

Revision: 0002
"""

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # SQLite would write the new column behind the constraints; made anew, the table is as the code says it.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("consumer_health", recreate=recreate) as table:
        table.add_column(sa.Column("progress", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
