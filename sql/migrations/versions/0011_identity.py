"""What a copy's headers say, to tell a return that came twice from another message; order keys and broker ids that are too
long for an index of PostgreSQL by their beginning and a hash

Revision: 0011
"""

import hashlib
from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


MAX_INDEXED = 512


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
    for table_name, column in (
        ("messages", "order_key"),
        ("messages", "broker_message_id"),
        ("repeat_copies", "broker_message_id"),
        ("redelivery_attempts", "broker_message_id"),
    ):
        _shorten(connection, table_name, column)


def _shorten(connection: sa.Connection, table: str, column: str) -> None:
    """As the load has it from here on, so that old and new keys stay comparable (``redrive.message.index_key``)."""
    # A character has at most four bytes.
    found = connection.execute(
        sa.text(f"select distinct {column} from {table} where length({column}) > {MAX_INDEXED // 4}")  # noqa: S608
    )
    for value in [row[0] for row in found]:
        raw = value.encode("utf-8")
        if len(raw) > MAX_INDEXED:
            short = f"{value[:64]}~{hashlib.blake2b(raw, digest_size=16).hexdigest()}"
            connection.execute(
                sa.text(f"update {table} set {column} = :short where {column} = :value"),  # noqa: S608
                {"short": short, "value": value},
            )


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
