"""staging

Revision: 0015
"""

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
