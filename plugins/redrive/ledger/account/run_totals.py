"""What a run did, as the ledger tells it: also what was done by a try of a task that was killed, or failed, before it
could say so."""

from sqlalchemy.engine import Connection

from redrive.ledger.engine import sql

_TOTALS = """
select
    (
        select coalesce(sum(copies), 0) from staging_batches where run_id = :run_id and recorded_at is not null
    ) as drained,
    (select coalesce(sum(sent), 0) from delivery_slices where run_id = :run_id) as redelivered
"""


def of_run(connection: Connection, run_id: str) -> dict[str, int]:
    """``drained``, copies that are durable and recorded, and ``redelivered``, sends that the broker confirmed."""
    row = connection.execute(sql(_TOTALS), {"run_id": run_id}).mappings().one()
    return {name: int(count) for name, count in row.items()}
