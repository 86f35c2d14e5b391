"""Alembic's entry point; ``redrive db upgrade`` hands over an open connection."""

from alembic import context

from redrive.ledger.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=True,
    compare_server_default=False,
)
with context.begin_transaction():
    context.run_migrations()
