"""Up to when the sources are drained and loaded: whatever came back to them before that moment is known.

Unless it was gone by then: see :func:`redrive.ledger.delivery.expiry.note`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.delivery import outcomes
from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.moves import record_event
from redrive.ledger.predicates import HERE
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.policy.worked_past import CLOCKS

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
    """All recorded batches of the route are loaded: what was drained is now also known.

    A moment that is yet to come was told by a clock that was wrong: up to when that source was drained is not known.
    """
    with ledger.under(lease, now) as tx:
        tx.execute(
            sql("update source_state set drained_to = null where route = :route and drained_to > :latest_at"),
            {"latest_at": now + CLOCKS},
        )
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


#: Where messages of a source went, or what came back to it: what fails there lands in it.
_FEEDING = """
select destination from messages where route = :route and source = :source and destination is not null
union
select attempts.destination
from repeat_copies copies
inner join redelivery_attempts attempts
    on attempts.message_id = copies.message_id and attempts.attempt = copies.attempt
where copies.route = :route and copies.source = :source and copies.kind in ('returned', 'surplus')
"""


def lose_sight(
    tx: RunTransaction,
    source: str,
    emptied: datetime | None,
    reason: str,
    *,
    only: str = "1 = 1",
    values: Mapping[str, Any] = MappingProxyType({}),
) -> int:
    """Nobody will see what earlier runs sent that may have come back to ``source`` after it was ``emptied`` last; of
    how many messages."""
    later = "" if emptied is None else " and (window_ends_at is null or window_ends_at > :emptied_at)"
    return outcomes.lose_sight(
        tx,
        until_fence=tx.lease.fence - 1,
        reason=reason,
        only=f"system = {HERE}{later} and (destination in ({_FEEDING}) or not exists ({_FEEDING})) and {only}",
        values={**values, "source": source} | ({} if emptied is None else {"emptied_at": emptied}),
    )


def leave(ledger: Ledger, lease: RouteLease, sources: Sequence[str], now: datetime) -> dict[str, int]:
    """The route doesn't drain these sources any more: what earlier runs sent and may have come back to one later than
    it was last emptied stays sent, and is never presumed. Returns the sources with how many messages that is. What is
    known of them is forgotten."""
    with ledger.under(lease, now) as tx:
        # Of a source from which nothing came, nobody knows what comes back to it: first those of which it is known.
        return {source: _leave(tx, source) for source in sorted(sources, key=lambda one: not _is_fed(tx, one))}


def _is_fed(tx: RunTransaction, source: str) -> bool:
    return tx.execute(sql(f"select 1 from ({_FEEDING}) fed limit 1"), {"source": source}).first() is not None


def forget(tx: RunTransaction, source: str | None = None, *, system: str | None = None) -> None:
    """What is known of a source of the route, or of all of them, is forgotten, but for that it was one: on the
    ``system`` that the route is on, or was on."""
    here = HERE if system is None else ":system"
    of_it = f"where route = :route{' and source = :source' if source is not None else ''}"
    values = {"source": source, "system": system}
    tx.execute(
        sql(
            f"insert into former_sources (route, source, system) select route, source, {here} from source_state {of_it}"
            " on conflict do nothing"
        ),
        values,
    )
    tx.execute(sql(f"delete from source_state {of_it}"), values)


def _leave(tx: RunTransaction, source: str) -> int:
    of_it = "where route = :route and source = :source"
    emptied = tx.execute(sql(f"select drained_to from source_state {of_it}"), {"source": source}).scalar_one_or_none()
    unseen = lose_sight(
        tx,
        source,
        parse_instant(emptied),
        f"It may have come back to {source}, which the route does not drain any more.",
    )
    forget(tx, source)
    if unseen:
        record_event(
            tx,
            Action.CHANGE_CONFIGURATION,
            count=unseen,
            selection={"source": source, "unseen_sends": unseen},
            reason=f"{source} is no source of the route any more: what may have come back to it is never presumed.",
        )
    return unseen
