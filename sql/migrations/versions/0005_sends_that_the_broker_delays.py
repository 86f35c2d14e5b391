"""Until when the broker keeps a message that was sent early

Revision: 0005
"""

from typing import Literal

import sqlalchemy as sa
from alembic import op

from redrive.ledger.engine import Instant

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    recreate: Literal["always", "never"] = "never"
    if connection.dialect.name == "sqlite":
        # SQLite would write the new column behind the constraints; made anew, the table is as the code says it.
        # It renames no table while a view names one that isn't there; the upgrade makes all views anew.
        recreate = "always"
        views = sa.text("select name from sqlite_master where type = 'view'")
        for name in connection.execute(views).scalars().all():
            op.execute(f'drop view "{name}"')
    with op.batch_alter_table(
        "redelivery_attempts", recreate=recreate, table_kwargs={"sqlite_with_rowid": False}
    ) as table:
        table.add_column(sa.Column("due_at", Instant(), nullable=True))


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
