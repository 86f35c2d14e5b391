"""Close the review rows of released messages that turned out to be processed: they were left open

Revision: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        sa.text(
            "update escalated_messages set status = 'applied', applied_at = (select changed_at from messages"
            " where messages.message_id = escalated_messages.message_id), refusal = 'processed already'"
            " where status = 'decided' and message_id in (select message_id from messages"
            " where state in ('suppressed', 'confirmed'))"
        )
    )


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
