"""Which message of an order key comes first: by the time of its first enqueue, among those that are not finished

Revision: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

UNFINISHED = (
    "order_key is not null and state in ('classified', 'waiting', 'held', 'sending', 'sent', 'unknown', 'returned',"
    " 'escalated', 'expired')"
)


def upgrade() -> None:
    op.drop_index("ix_messages_order_key", table_name="messages")
    op.create_index(
        "ix_messages_order",
        "messages",
        ["route", "order_key", "first_enqueued_at", "message_id"],
        unique=False,
        sqlite_where=sa.text(UNFINISHED),
        postgresql_where=sa.text(UNFINISHED),
    )


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
