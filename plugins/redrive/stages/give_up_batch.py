"""Give up a batch: a person says that a staging file which was lost before its load won't come back.

Until then its copies count as staged, nothing that was sent before is presumed, and each run of the route ends as
failed. The machine never decides this.
"""

from typing import Any

from redrive.connections import storage
from redrive.errors import StagingError, UsageError
from redrive.ledger.delivery import outcomes
from redrive.ledger.drain import batches
from redrive.ledger.drain.batches import Batch
from redrive.ledger.engine import Ledger
from redrive.settings import Settings
from redrive.stages.context import Context


def look(settings: Settings, route: str, batch_id: int) -> dict[str, Any]:
    """What giving up ``batch_id`` would mean; raises as :func:`give_up` does, and changes nothing."""
    ledger = Ledger(settings.database)
    try:
        batch = _lost(ledger, storage.staging(settings), route, batch_id)
        with ledger.read() as connection:
            return {
                "batch_id": batch_id,
                "copies": batch.copies,
                "watched": outcomes.outstanding(connection, route, batch_id),
            }
    finally:
        ledger.close()


def give_up(context: Context, batch_id: int, *, by: str, reason: str) -> dict[str, Any]:
    """Give up a batch that waits to be loaded and whose file is damaged or missing, for ever; what is left of the file
    is removed.

    Returns ``batch_id``, its ``copies`` and how many sends were ``watched`` that may have come back in it: these stay
    sent, and are never presumed. Raises
    :class:`UsageError` without a reason, for a batch that doesn't wait, and for a file that can be read;
    :class:`StagingError` where the store can't be reached.
    """
    if not reason.strip():
        raise UsageError("say why the batch is given up: it is kept for ever")
    batch = _lost(context.ledger, context.staging, context.name, batch_id)
    with context.ledger.read() as connection:
        watched = outcomes.outstanding(connection, context.name, batch_id)
    if not batches.give_up(context.ledger, context.lease, batch, by=by, reason=reason, now=context.now()):
        raise UsageError(f"batch {batch_id} of route {context.name} no longer waits to be loaded")
    context.staging.remove(batch.uri)
    batches.removed(context.ledger, [batch_id], context.now())
    return {"batch_id": batch_id, "copies": batch.copies, "watched": watched}


def _lost(ledger: Ledger, staging: Any, route: str, batch_id: int) -> Batch:
    """The batch, which waits to be loaded and can't be."""
    with ledger.read() as connection:
        waiting = {batch.batch_id: batch for batch in batches.unloaded(connection, route)}
    batch: Batch | None = waiting.get(batch_id)
    if batch is None:
        raise UsageError(f"route {route} has no batch {batch_id} that waits to be loaded; `redrive audit` names them")
    try:
        whole = staging.copies(batch.uri) == batch.copies and not staging.is_damaged(batch.uri)
    except StagingError:
        if not staging.is_damaged(batch.uri):
            raise
        whole = False
    if whole:
        raise UsageError(f"the file of batch {batch_id} can be read: `redrive classify {route}` loads it")
    return batch
