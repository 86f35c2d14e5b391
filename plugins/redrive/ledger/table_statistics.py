"""After many changes at once: let the database count its tables again before it plans statements on them.

It counts by itself too, about a minute later; a delivery has begun by then. Planned as if nothing were waiting, each
slice that it claims would read all that waits.
"""

from collections.abc import Sequence
from datetime import datetime

from redrive.ledger.engine import Ledger
from redrive.ledger.transactions import RouteLease

#: From so many changes on it matters that the database knows of them.
MANY = 1_000


def look_again(ledger: Ledger, lease: RouteLease, tables: Sequence[str], changed: int, now: datetime) -> None:
    """After ``changed`` rows of ``tables`` were added, or got another state. In a transaction of its own, so that its
    lock is a short one. Raises :class:`~redrive.errors.LeaseLost`."""
    if changed >= MANY:
        with ledger.under(lease, now) as tx:
            for table in tables:
                tx.dialect.look_again(tx.connection, table, changed)
