"""Order: which message of an order key may go, as SQL over table ``messages``.

Of the messages of one key that are not finished only the first may go: the one that was enqueued first, and of those
enqueued at the same moment, as far as the broker tells time, the one that was staged first. One whose time nobody told
comes before those whose time is known: it may be older, and might wait for ever behind a key that always has another.
The first goes only when everything that had died before it is staged, so that no earlier one still lies in a source.

A send of which nobody watches any more what becomes of it (:func:`redrive.ledger.delivery.outcomes.lose_sight`) keeps
no later one: they would wait for ever.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from redrive.ledger.predicates import UNFINISHED, out_of_sight
from redrive.message import MAX_ROWS

_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class InOrder:
    """Messages of one key go one after the other; ``drained_to``: up to when every source was drained to its end and
    loaded, None: never."""

    drained_to: datetime | None = None


def first(table: str) -> str:
    """A condition: nothing of this message's key comes before it. True of one without a key."""
    of_its_key = (
        f"select first.message_id from messages first where first.route = {table}.route and first.order_key ="
        f" {table}.order_key and first.order_key is not null and first.state in {UNFINISHED}"
        f" and not {out_of_sight('first')}"
        " and first.first_enqueued_at"
    )
    # Databases disagree on where NULL sorts, also in an index; each half is the first entry of a range of it on both.
    untimed = f"{of_its_key} is null order by first.message_id limit 1"
    timed = f"{of_its_key} is not null order by first.first_enqueued_at, first.message_id limit 1"
    return f"({table}.order_key is null or {table}.message_id = coalesce(({untimed}), ({timed})))"


def staged(table: str) -> str:
    """A condition: everything that died before this message is staged and loaded; needs :func:`values`.

    Where the broker doesn't tell when it died, that is everything that had died when the run began that drained it, by
    the clock by which its sources are drained (:func:`redrive.stages.completeness.drained_to`).
    """
    began = (
        "select coalesce(runs.began_at, runs.started_at) from staging_batches"
        " inner join runs on runs.run_id = staging_batches.run_id"
        f" where staging_batches.batch_id = {table}.copy_id / {MAX_ROWS}"
    )
    died = f"coalesce({table}.dead_lettered_at, ({began}), {table}.received_at, :drained_at)"
    return f"{died} <= :drained_at"


def may_go(table: str) -> str:
    """A condition: it has no key, or is the first of its key and :func:`staged`; needs :func:`values`."""
    return f"({first(table)} and ({table}.order_key is null or {staged(table)}))"


def values(drained_to: datetime | None) -> dict[str, Any]:
    """The parameters of these conditions: up to when every source was drained to its end and loaded; None: never."""
    return {"drained_at": drained_to or _NEVER}
