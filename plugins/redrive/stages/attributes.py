"""Which messages carry the attributes that a run is limited to: known from staging only, looked up page by page.

The ledger holds no headers. Candidates are paged in id order, which is file order; of a page only the headers are
read, so memory stays flat whatever is waiting. What counts is the message as it was first drained: that is what a
redelivery sends.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from redrive.errors import StagingError
from redrive.ledger import selecting
from redrive.ledger.drain import batches
from redrive.ledger.engine import Ledger
from redrive.ledger.selecting import Selection
from redrive.message import MAX_ROWS, ROW_BITS, batch_and_row, message_id_of

if TYPE_CHECKING:
    from redrive.staging.batch_files import Staging

#: Candidates whose headers are looked at together.
PAGE = 5_000


def parts(
    ledger: Ledger,
    staging: "Staging",
    route: str,
    selection: Selection,
    *,
    where: str,
    values: Mapping[str, Any] | None = None,
    after: int = -1,
) -> Iterator[Selection]:
    """The selection as selections of ids that carry its attributes, each of at most :data:`PAGE` messages.

    Only messages for which ``where`` (with ``values``) holds and whose id is above ``after`` are looked at; a page
    without a match is skipped. :class:`~redrive.errors.StagingError` where a file can't be read.
    """
    wanted = selection.wanted_attributes()
    while True:
        with ledger.read() as connection:
            page = selecting.candidates(
                connection, route, selection, where=where, values=values or {}, after=after, limit=PAGE
            )
            paths = batches.paths(connection, {batch_and_row(one)[0] for one in page})
        if not page:
            return
        after = page[-1]
        found: list[int] = []
        for batch_id, ids in itertools.groupby(page, key=lambda one: one >> ROW_BITS):
            rows = [one & (MAX_ROWS - 1) for one in ids]
            try:
                carriers = staging.carrying(paths[batch_id], rows, wanted)
            except StagingError:
                if not staging.is_damaged(paths[batch_id], rows[-1]):
                    raise
                continue  # nobody knows what they carry
            found += [message_id_of(batch_id, row) for row in carriers]
        if found:
            yield selection.only(found)
