"""The first look of a run at each source: what it held before any shard of the run had received from it.

Each shard looks, writes its look, and receives only then; the first that was written stays. So it shows nothing that
the run itself holds, whichever shard was first and whatever their clocks say.

Where the broker tells no depth a look shows nothing, but that a shard began is written all the same, and at its end
that it holds nothing any more. A beginning without an end is a drain that may have died with copies leased. So it is
where the broker tells its depth late.
"""

import json
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive.ledger import leases
from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.predicates import HERE
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.settings import LONGEST_LEASE

#: So many runs before this one may not have looked at a source, and what was known of it counts on.
_LOOKED_THROUGH = 20
#: Its place among the counts of the run; no stage has this name.
_PLACE = "looks"


class FirstLook(NamedTuple):
    """A source before the run received from it."""

    total: int | None  # None: the broker doesn't tell
    held_by_others: bool  # leased to a dead run, a person who looks, another system
    as_of: datetime | None  # when it was so, where the broker tells late
    beginnings: int  # of shards, which then receive from it
    began_again: bool  # a shard began twice: what its first try received may still be leased
    at: datetime | None  # when the first shard wrote it
    left_open: bool  # a try of a shard did not end well: what it received may still be leased
    free_since: datetime | None  # from then on each run's first look said that nobody holds any; this one too


class MayHold(NamedTuple):
    """An earlier drain that is not known to have ended, whose leases may last."""

    run_id: str
    until: datetime


def note(
    ledger: Ledger,
    lease: RouteLease,
    source: str,
    *,
    shard: int,
    total: int | None,
    in_flight: int,
    as_of: datetime | None,
    leased_for: timedelta = timedelta(0),
    now: datetime,
) -> None:
    """``shard`` saw that ``source`` held so many, as of a moment if that is not now, and will receive from it, leasing
    each copy for so long.

    ``total`` is None where the broker doesn't tell.
    """
    with ledger.under(lease, now) as tx:
        counts = leases.written_counts(tx.connection, lease.run_id)
        look: dict[str, Any] = {
            "total": total,
            "in_flight": in_flight,
            "as_of": as_of,
            "at": now,
            "shards": [],
            "ended": [],
        }
        kept = counts.setdefault(_PLACE, {}).setdefault("sources", {}).setdefault(source, look)
        if kept is look and total is not None:
            look["system"] = tx.execute(sql(f"select {HERE}")).scalar_one()
            look["free_since"] = (_free_since(tx, source, look["system"]) or now) if in_flight == 0 else None
        kept["shards"].append(shard)
        kept["leased_seconds"] = max(kept.get("leased_seconds", 0), leased_for.total_seconds())
        _keep(tx, counts)


def _free_since(tx: RunTransaction, source: str, system: str) -> str | None:
    """What the last earlier run noted that looked at ``source``, if that was of the same ``system``."""
    rows = tx.execute(
        sql(
            "select counts from runs where route = :route and fence < :fence"
            f" and \"trigger\" not in ('review', 'restore') order by fence desc limit {_LOOKED_THROUGH}"
        )
    )
    for counts in rows.scalars():
        kept = json.loads(counts).get(_PLACE, {}).get("sources", {}).get(source)
        if kept is not None:
            found: str | None = kept.get("free_since") if kept.get("system") == system else None
            return found
    return None


def end(ledger: Ledger, lease: RouteLease, source: str, *, shard: int, now: datetime) -> None:
    """``shard`` has settled or given back all that it received from ``source``, and receives no more."""
    with ledger.under(lease, now) as tx:
        counts = leases.written_counts(tx.connection, lease.run_id)
        counts[_PLACE]["sources"][source].setdefault("ended", []).append(shard)
        _keep(tx, counts)


def first(connection: Connection, lease: RouteLease) -> dict[str, FirstLook]:
    """The run's first look at each source of which it noted one."""
    sources = leases.written_counts(connection, lease.run_id).get(_PLACE, {}).get("sources", {})
    return {
        source: FirstLook(
            kept["total"],
            kept["in_flight"] > 0,
            parse_instant(kept["as_of"]),
            len(kept["shards"]),
            len(kept["shards"]) > len(set(kept["shards"])),
            parse_instant(kept.get("at")),
            _left_open(kept),
            parse_instant(kept.get("free_since")),
        )
        for source, kept in sources.items()
    }


def may_hold(
    connection: Connection, lease: RouteLease, source: str, *, leased_for: timedelta, at: datetime
) -> MayHold | None:
    """The drain of an earlier run of the route that may still hold copies of ``source`` at the moment ``at``.

    A run that was replaced may have died at any line. Any other one tells by its beginnings and ends. One that was
    begun anew has forgotten them, and shows by the fence that is missing before its own. The end of a run is its last
    sign of life; from then a lease lasts as long as the run said, at least ``leased_for``, which drains lease now.
    """
    rows = connection.execute(
        sql(
            "select runs.run_id, runs.fence, runs.status, runs.started_at, runs.finished_at, runs.counts, exists"
            " (select 1 from runs before where before.route = runs.route and before.fence = runs.fence - 1) as follows"
            " from runs where runs.route = :route and runs.fence <= :fence"
            " and (runs.finished_at is null or runs.finished_at > :since_at) order by runs.fence desc"
        ),
        {"route": lease.route, "fence": lease.fence, "since_at": at - max(leased_for, LONGEST_LEASE)},
    ).all()
    began = at  # of the run after the one that is looked at
    for row in rows:
        started = parse_instant(row.started_at) or began
        if row.fence < lease.fence:
            kept = json.loads(row.counts).get(_PLACE, {}).get("sources", {}).get(source)
            leased = max(leased_for, timedelta(seconds=(kept or {}).get("leased_seconds", 0)))
            over = (parse_instant(row.finished_at) or began) + leased
            if over > at and (row.status in ("running", "replaced") or (kept is not None and _left_open(kept))):
                return MayHold(row.run_id, over)
        if row.fence > 1 and not row.follows and started + leased_for > at:
            return MayHold(row.run_id, started + leased_for)
        began = started
    return None


def _left_open(kept: dict[str, Any]) -> bool:
    return len(kept["shards"]) > len(kept.get("ended", ()))


def _keep(tx: RunTransaction, counts: dict[str, Any]) -> None:
    tx.execute(
        sql("update runs set counts = :counts where run_id = :run_id"), {"counts": json.dumps(counts, default=str)}
    )
