"""What a copy's headers say, to tell a return that came twice from another message

Revision: 0011
"""

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    recreate: Literal["always", "never"] = "never"
    if connection.dialect.name == "sqlite":
        # As in 0005: made anew, the table is as the code says it; the upgrade makes all views anew.
        recreate = "always"
        views = sa.text("select name from sqlite_master where type = 'view'")
        for name in connection.execute(views).scalars().all():
            op.execute(f'drop view "{name}"')
    with op.batch_alter_table("repeat_copies", recreate=recreate) as table:
        table.add_column(sa.Column("headers_hash", sa.LargeBinary(16), nullable=True))


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
