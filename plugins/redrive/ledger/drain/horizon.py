"""Up to when the sources are drained and loaded: whatever came back to them before that moment is known."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.engine import Connection

from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.transactions import RouteLease

#: A source was empty of what had died before a moment; what was staged of it may not be loaded yet.
_DRAINED = """
insert into source_state (route, source, pending_to)
values (:route, :source, :since_at)
on conflict (route, source) do update set pending_to = excluded.pending_to
"""
#: What was drained is known, once nothing that is staged of the route remains to be loaded.
_LOADED = """
update source_state set drained_to = pending_to, pending_to = null
where
    route = :route and pending_to is not null
    and not exists (
        select 1 from staging_batches
        where route = :route and {state} in ('recorded', 'settled') and loaded_at is null
    )
"""


def sources_drained(ledger: Ledger, lease: RouteLease, sources: Sequence[str], since: datetime, now: datetime) -> None:
    """These sources were empty of anything that lay in them at ``since``; it counts once their batches are loaded."""
    with ledger.under(lease, now) as tx:
        for source in sources:
            tx.execute(sql(_DRAINED), {"source": source, "since_at": since})


def forget_pending(ledger: Ledger, lease: RouteLease, now: datetime) -> None:
    """A run that died may have drained some shards only: what it thought to have drained does not count."""
    with ledger.under(lease, now) as tx:
        tx.execute(sql("update source_state set pending_to = null where route = :route"))


def sources_loaded(ledger: Ledger, lease: RouteLease, now: datetime) -> None:
    """All recorded batches of the route are loaded: what was drained is now also known."""
    with ledger.under(lease, now) as tx:
        tx.execute(sql(_LOADED.format(state=tx.dialect.off_index("state"))))  # else it reads all that were settled


def drained_to(connection: Connection, route: str, sources: Sequence[str]) -> datetime | None:
    """The moment up to which nothing in any of these sources is hidden from us; None when one was never drained."""
    moments = {
        row.source: parse_instant(row.drained_to)
        for row in connection.execute(
            sql("select source, drained_to from source_state where route = :route"), {"route": route}
        )
    }
    known = [moments.get(source) for source in sources]
    return None if not known or None in known else min(m for m in known if m is not None)
