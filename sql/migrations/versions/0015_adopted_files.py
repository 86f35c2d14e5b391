"""Files without a row can be taken in: a batch says which file it was made of, and no two of the same

Revision: 0015
"""

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

COUNTS = "adopted_from is not null and state <> 'abandoned'"


def upgrade() -> None:
    # SQLite would write the new column behind the constraints; made anew, the table is as the code says it. But a table
    # that is made anew counts on from the rows that are left, and a batch id must not be given twice.
    sqlite = op.get_bind().dialect.name == "sqlite"
    counter = "select coalesce(max(seq), 0) from sqlite_sequence where name = 'staging_batches'"
    given = op.get_bind().execute(sa.text(counter)).scalar_one() if sqlite else 0
    recreate: Literal["always", "never"] = "always" if sqlite else "never"
    with op.batch_alter_table(
        "staging_batches", recreate=recreate, table_kwargs={"sqlite_autoincrement": True}
    ) as table:
        table.add_column(sa.Column("adopted_from", sa.Text(), nullable=True))
    if given:
        op.execute("delete from sqlite_sequence where name = 'staging_batches'")
        counts_on = sa.text("insert into sqlite_sequence (name, seq) values ('staging_batches', :given)")
        op.get_bind().execute(counts_on, {"given": given})
    op.create_index(
        "ix_staging_batches_adopted_from",
        "staging_batches",
        ["adopted_from"],
        unique=True,
        sqlite_where=sa.text(COUNTS),
        postgresql_where=sa.text(COUNTS),
    )


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
