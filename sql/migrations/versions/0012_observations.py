"""observations

Revision: 0012
"""

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
