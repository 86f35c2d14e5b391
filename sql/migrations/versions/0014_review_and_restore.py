"""A state for what a restore may have put back into its queue, and the decision that says that it didn't

Revision: 0014
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

CHANGED = {
    ("messages", "state"): (
        "state in ('classified', 'waiting', 'held', 'sending', 'sent', 'unknown', 'returned', 'presumed', 'confirmed',"
        " 'suppressed', 'escalated', 'discarded', 'expired')",
        "state in ('classified', 'waiting', 'held', 'sending', 'sent', 'unknown', 'returned', 'presumed', 'confirmed',"
        " 'suppressed', 'escalated', 'restoring', 'discarded', 'expired')",
    ),
    ("escalated_messages", "decision"): (
        "decision in ('redeliver', 'discard', 'edit')",
        "decision in ('redeliver', 'discard', 'edit', 'not_there')",
    ),
}
UNFINISHED = (
    "order_key is not null and state in ('classified', 'waiting', 'held', 'sending', 'sent', 'unknown', 'returned',"
    " 'escalated', 'restoring', 'expired')"
)
#: What the reason of such a message was before it had a state.
BEFORE = "was being put back into its queue and may be there already"
ASK_AGAIN = (
    "update escalated_messages set status = 'reopened', decision = null, decided_at = null, approved_by = null,"
    " suggested_decision = 'look', reason = 'was being put back into its queue ' || source || ' and may be there already'"
    " where status <> 'applied' and message_id in (select message_id from messages where reason = :before"
    " and state in ('classified', 'waiting', 'held', 'escalated', 'expired'))"
)
GIVE_STATE = (
    "update messages set state = 'restoring', verdict = 'escalate',"
    " reason = 'was being put back into its queue ' || source || ' and may be there already' where reason = :before"
    " and state in ('classified', 'waiting', 'held', 'escalated', 'expired')"
)


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        _in_place(connection)
    else:
        for (table, column), (_, condition) in CHANGED.items():
            op.drop_constraint(op.f(f"ck_{table}_{column}"), table, type_="check")
            op.create_check_constraint(op.f(f"ck_{table}_{column}"), table, condition)
    op.drop_index("ix_messages_order", table_name="messages")
    op.create_index(
        "ix_messages_order",
        "messages",
        ["route", "order_key", "first_enqueued_at", "message_id"],
        unique=False,
        sqlite_where=sa.text(UNFINISHED),
        postgresql_where=sa.text(UNFINISHED),
    )
    connection.execute(sa.text(ASK_AGAIN), {"before": BEFORE})
    connection.execute(sa.text(GIVE_STATE), {"before": BEFORE})


def _in_place(connection: sa.Connection) -> None:
    """Other conditions in the text of the tables, as SQLite's documentation describes it: nothing that is stored
    depends on them, and a table of millions of messages need not be written anew."""
    version = connection.exec_driver_sql("pragma schema_version").scalar_one()
    connection.exec_driver_sql("pragma writable_schema = on")
    for (table, _), (before, condition) in CHANGED.items():
        changed = connection.exec_driver_sql(
            "update sqlite_master set sql = replace(sql, ?, ?) where type = 'table' and name = ? and instr(sql, ?) > 0",
            (before, condition, table, before),
        ).rowcount
        if changed != 1:
            raise RuntimeError(f"table {table} is not as the migrations made it: {before!r} was not found in it")
    connection.exec_driver_sql(f"pragma schema_version = {int(version) + 1}")
    connection.exec_driver_sql("pragma writable_schema = reset")


def downgrade() -> None:
    raise NotImplementedError(
        "the ledger's schema only goes forward: going back would throw away what it knows; restore a backup instead"
    )
