"""destinations

Revision: 0013
"""

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
