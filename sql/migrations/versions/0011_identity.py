"""identity

Revision: 0011
"""

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
