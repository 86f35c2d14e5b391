"""What a run did, as the ledger tells it: also what was done by a try of a task that was killed, or failed, before it
could say so."""

import json

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.drain.loading import Loaded
from redrive.ledger.engine import sql
from redrive.lifecycle import State

_TOTALS = """
select
    (
        select coalesce(sum(copies), 0) from staging_batches where run_id = :run_id and recorded_at is not null
    ) as drained,
    (select coalesce(sum(sent), 0) from delivery_slices where run_id = :run_id) as redelivered
"""
#: The states of which a report tells how many messages the run brought there.
_REACHED = (State.SUPPRESSED, State.ESCALATED, State.CONFIRMED, State.PRESUMED)


def of_run(connection: Connection, run_id: str) -> dict[str, int]:
    """``drained``, copies that are durable and recorded; ``redelivered``, sends that the broker confirmed; what the
    loaded copies turned out to be (``new``, ``returned``, ``duplicates``, ``suspected``; ``classified``, those that are
    to be planned); and how many messages were ``suppressed``, ``escalated``, ``confirmed`` and ``presumed``."""
    row = connection.execute(sql(_TOTALS), {"run_id": run_id}).mappings().one()
    loaded = _loaded(connection, run_id)
    return {
        "drained": int(row["drained"]),
        "redelivered": int(row["redelivered"]),
        "new": loaded.new,
        "returned": loaded.returned,
        "duplicates": loaded.duplicates,
        "suspected": loaded.suspected,
        "classified": loaded.new + loaded.returned,
        **_reached(connection, run_id),
    }


def _loaded(connection: Connection, run_id: str) -> Loaded:
    """What was loaded, a portion of batches after the other."""
    portions = connection.execute(
        sql("select selection from audit_events where run_id = :run_id and action = :load"),
        {"run_id": run_id, "load": Action.LOAD},
    ).scalars()
    loaded = Loaded()
    for told in map(json.loads, portions):
        loaded = loaded.plus(Loaded(**{name: told[name] for name in Loaded._fields}))
    return loaded


def _reached(connection: Connection, run_id: str) -> dict[str, int]:
    moved = {
        row.to_state: int(row.messages)
        for row in connection.execute(
            sql(
                "select to_state, sum(count) as messages from audit_events where run_id = :run_id"
                " and from_state is not null group by to_state"
            ),
            {"run_id": run_id},
        )
    }
    return {state.value: moved.get(state, 0) for state in _REACHED}
