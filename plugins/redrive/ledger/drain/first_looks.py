"""The first look of a run at each source: what it held before any shard of the run had received from it.

Each shard looks, writes its look, and receives only then; the first that was written stays. So it shows nothing that
the run itself holds, whichever shard was first and whatever their clocks say.
"""

import json
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.transactions import RouteLease

#: Its place among the counts of the run; no stage has this name.
_PLACE = "looks"


class FirstLook(NamedTuple):
    """A source before the run received from it."""

    total: int
    held_by_others: bool  # leased to a dead run, a person who looks, another system
    as_of: datetime | None  # when it was so, where the broker tells late
    began_again: bool  # a shard began twice: what its first try received may still be leased


def note(
    ledger: Ledger,
    lease: RouteLease,
    source: str,
    *,
    shard: int,
    total: int,
    in_flight: int,
    as_of: datetime | None,
    now: datetime,
) -> None:
    """``shard`` saw that ``source`` held so many, as of a moment if that is not now, and will receive from it."""
    with ledger.under(lease, now) as tx:
        counts = _counts(tx.connection, lease)
        kept = (
            counts.setdefault(_PLACE, {})
            .setdefault("sources", {})
            .setdefault(source, {"total": total, "in_flight": in_flight, "as_of": as_of, "shards": []})
        )
        kept["shards"].append(shard)
        tx.execute(
            sql("update runs set counts = :counts where run_id = :run_id"),
            {"counts": json.dumps(counts, default=str)},
        )


def first(connection: Connection, lease: RouteLease) -> dict[str, FirstLook]:
    """The run's first look at each source of which it noted one."""
    sources = _counts(connection, lease).get(_PLACE, {}).get("sources", {})
    return {
        source: FirstLook(
            kept["total"],
            kept["in_flight"] > 0,
            parse_instant(kept["as_of"]),
            len(kept["shards"]) > len(set(kept["shards"])),
        )
        for source, kept in sources.items()
    }


def _counts(connection: Connection, lease: RouteLease) -> dict[str, Any]:
    row = connection.execute(sql("select counts from runs where run_id = :run_id"), {"run_id": lease.run_id}).first()
    return dict(json.loads(row.counts)) if row else {}
