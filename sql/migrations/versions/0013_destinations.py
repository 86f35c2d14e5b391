"""Keep the origin that a message told beside its destination, which is the configuration's to say

Revision: 0013
"""

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # SQLite would write the new column behind the constraints; made anew, the table is as the code says it.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("messages", recreate=recreate) as table:
        table.add_column(sa.Column("origin", sa.Text(), nullable=True))
    # Where none was configured this was the origin; where one is, the next run says it anew. What is finished learns
    # its origin from the copy, should one come back.
    op.execute(
        sa.text(
            "update messages set origin = destination"
            " where state not in ('presumed', 'confirmed', 'suppressed', 'discarded')"
        )
    )


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
