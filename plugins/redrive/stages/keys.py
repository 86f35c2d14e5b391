"""Keys of messages after an edit of the configuration: taken anew from staging, by the selector that it names now.

A message gets the key of the processed check and its order key at the load. Where ``processed_check.key`` or
``order_by`` is another one since, those keys mean something else: the check would be asked about other things, and
messages that belong together would not wait for each other. So a run that finds such keys at what is not finished reads
them once more, from the payloads that are staged, before anybody asks by them.
"""

import logging

from redrive.errors import StagingError
from redrive.ledger.drain import keys
from redrive.ledger.drain.keys import Selectors
from redrive.settings import Route
from redrive.stages.context import Context

log = logging.getLogger(__name__)


def selectors(route: Route) -> Selectors:
    """By which selectors the route's messages have their keys."""
    return Selectors(
        str(route.processed_check.key) if route.processed_check else None,
        str(route.order_by) if route.order_by else None,
    )


def renew(context: Context) -> int:
    """Take anew the keys that another selector made, of all batches with messages that are not finished; how many
    messages have another key now.

    A batch whose file is damaged keeps its keys, as made by the other selector: nobody is asked by them
    (:class:`redrive.stages.checking.Check`), and the next run tries again.
    """
    now_asked = selectors(context.route)
    with context.ledger.read() as connection:
        found = keys.to_renew(connection, context.name, now_asked)
    if not found:
        return 0
    from redrive.stages import classified_files  # noqa: PLC0415 - see there

    total = 0
    for done, batch in enumerate(found):
        context.progress("taking keys anew, as the configuration names others: batches", done, len(found))
        found_now = classified_files.staged_keys(context.staging, batch, now_asked)
        changed = None
        try:
            changed = keys.renew(context.ledger, context.lease, batch, now_asked, found_now, context.now())
        except StagingError:
            if not context.staging.is_damaged(batch.uri):
                raise
        if changed is None:
            log.warning("keys of batch %d can't be taken anew: its file is damaged or missing", batch.batch_id)
            continue
        total += changed
    log.info("%d messages have other keys now, as the configuration names others", total)
    return total
