"""What several routes know of one queue: it may have moved from one to another between being staged and settled.

A queue is one by the broker and connection that it is on and by its name, whoever drains it. So a copy that one route
staged is known to all routes there, and a batch that one recorded, and is not known to have settled, may come again to
another.
"""

from collections.abc import Sequence

from sqlalchemy.engine import Connection

from redrive.ledger.engine import sql
from redrive.ledger.predicates import ROUTES_HERE
from redrive.ledger.transactions import RunTransaction

#: SQL over ``staging_batches``: recorded, and not known to be settled whole; as in ``ix_staging_batches_unsettled``.
UNSETTLED = "settled_copies < copies and removed_at is null"


class Routes:
    """The routes whose queues are on the broker and connection of one route, which is among them.

    As parameters and not as a subquery: what is looked up by an id is then looked up by nothing else.
    """

    def __init__(self, connection: Connection, route: str) -> None:
        found = connection.execute(sql(f"select route from {ROUTES_HERE} here order by 1"), {"route": route}).scalars()
        names = sorted({route, *found})
        self.values = {f"route_{number}": name for number, name in enumerate(names)}
        self.listed = "(" + ", ".join(f":{name}" for name in self.values) + ")"


def load_in_turn(tx: RunTransaction, batch_ids: Sequence[int]) -> None:
    """Where something of the sources of these batches may come again, whoever loads next from there, on whichever
    route, sees what this load made of it."""
    marks = ",".join(str(int(batch_id)) for batch_id in batch_ids)  # ints only
    sources = tx.execute(
        sql(
            f"select distinct loading.source from staging_batches loading where loading.batch_id in ({marks or 'null'})"
            f" and exists (select 1 from staging_batches where source = loading.source and {UNSETTLED}) order by 1"
        )
    ).scalars()
    for source in sources.all():
        tx.dialect.in_turn(tx.connection, f"load {source}")
