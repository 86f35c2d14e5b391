"""The route whose words a group's template and example are: who may not read it is not shown them

Revision: 0016
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Other tables refer to this one, so SQLite can't make it anew as in 0004.
    op.add_column("failure_groups", sa.Column("first_route", sa.Text()))
    # Where there is only one route, they can't be another's. Else it is not known of older groups.
    op.execute(
        "update failure_groups set first_route = (select min(route) from route_state)"
        " where (select count(*) from route_state) = 1"
    )


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
