"""Which sends are presumed good because they did not come back; never "gone, so it worked".

A send is *presumed* good only when a return could have been seen: the destination was seen to have worked past the
slice (:mod:`redrive.policy.worked_past`), the observation window has passed since then, and every source of the route
was drained and loaded beyond the window's end.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.delivery import counting, outcomes
from redrive.ledger.drain.horizon import drained_to
from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.moves import move
from redrive.ledger.predicates import HERE, WATCHED
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.lifecycle import State
from redrive.policy.worked_past import CLOCKS, Consumption, Look, Sends, worked_past

_UNKNOWN = Consumption()


def watched(connection: Connection, route: str) -> dict[str, datetime]:
    """The destinations, at the route's present broker, that are not known to have worked past all of its sends, and
    when the first of those was claimed."""
    rows = connection.execute(
        sql(
            f"select destination, min(claimed_at) as claimed_at from delivery_slices where route = :route and {WATCHED}"
            f" and observed_from is null and system = {HERE} group by destination order by destination"
        ),
        {"route": route},
    )
    return {row.destination: at for row in rows if (at := parse_instant(row.claimed_at)) is not None}


#: The slices whose window is over, with every source drained beyond it. What went by another broker came back to
#: sources that the route doesn't drain any more.
_CLOSABLE = f"""
select slice_id from delivery_slices
where route = :route and observed_at is null and window_ends_at <= :horizon_at and system = {HERE}
"""
#: What has not come back of them is presumed, and counts for its breakers as having stayed.
_PRESUME = f"""
update redelivery_attempts set outcome = 'presumed', outcome_at = :now, {counting.STAYED}
where slice_id in ({_CLOSABLE}) and sent_at is not null and outcome is null
"""
#: Over ``messages``: their last send was presumed with one of these slices.
_IS_PRESUMED = f"""
route = :route and exists (
    select 1 from redelivery_attempts attempts
    where
        attempts.message_id = messages.message_id and attempts.attempt = messages.attempts
        and attempts.outcome = 'presumed' and attempts.slice_id in ({_CLOSABLE})
)
"""


def presume(
    ledger: Ledger,
    lease: RouteLease,
    destinations: Mapping[str, Consumption],
    *,
    window: timedelta,
    sources: Sequence[str],
    now: datetime,
) -> int:
    """Close the observation of every slice whose window could have shown a return; returns the presumed messages.

    ``destinations``: what is known of those that are :func:`watched`. One that keeps messages for so long, and was not
    seen to have worked past a send in that time, may have lost it: nobody will see what became of that.
    """
    with ledger.under(lease, now) as tx:
        _note_worked_past(tx, destinations, window)
        for queue, how in destinations.items():
            if how.keeps is not None:
                outcomes.lose_sight(
                    tx,
                    until_fence=lease.fence,
                    reason=f"It may be gone from {queue} without anybody having had it: that keeps messages for"
                    f" {how.keeps}, and was not seen to have worked past this one in that time.",
                    only=f"system = {HERE} and destination = :queue and observed_from is null"
                    " and last_sent_at <= :gone_at",
                    values={"queue": queue, "gone_at": now - how.keeps},
                )
        horizon = drained_to(tx.connection, lease.route, sources)
        if horizon is None or horizon > now + CLOCKS:  # not yet: a clock was wrong
            return 0
        values = {"horizon_at": horizon}
        tx.execute(sql(_PRESUME), values)
        presumed = move(
            tx,
            State.SENT,
            State.PRESUMED,
            where=_IS_PRESUMED,
            values=values,
            action=Action.PRESUME,
            reason=f"It did not come back within {window} after its destination had worked past it.",
        )
        tx.execute(sql(f"update delivery_slices set observed_at = :now where slice_id in ({_CLOSABLE})"), values)
    return presumed


#: The destinations of the route that are not known to have worked past all of its sends, by broker.
_BEHIND = f"""
select system, system = {HERE} as here, destination, min(last_sent_at) as last_sent_at
from delivery_slices
where route = :route and {WATCHED} and observed_from is null
group by system, destination
"""
#: The slices that one of them is not known to have worked past, and when the first outcome of each was.
#: What was made again after an unknown send lies where the first try does if the broker dropped the second: it adds
#: nothing to a depth, and says nothing of what was sent since that first try.
_NOT_WORKED_PAST = f"""
select
    slice_id, claimed_at, last_sent_at, fence,
    (
        select count(*) from redelivery_attempts made
        where made.slice_id = delivery_slices.slice_id and made.sent_at is not null and made.unknown_at is null
    ) as sent,
    (
        select min(outcome_at) from redelivery_attempts made
        where
            made.slice_id = delivery_slices.slice_id
            and made.unknown_at is null
            and outcome in ('returned', 'confirmed')
    ) as first_outcome_at
from delivery_slices
where route = :route and {WATCHED} and observed_from is null and system = :system and destination = :queue
"""
#: Looks at a destination that say how much it holds, and the fences of those that runs of the route took.
_LOOKS = """
select
    observed_at, visible + in_flight + delayed as depth, visible + delayed as waiting, lag_seconds,
    zeros_apart_seconds, exact, told,
    case when route = :route then fence end as fence
from queue_observations
where
    queue = :queue and system = :system and role = 'destination' and observed_at > :since_at
    and visible + in_flight + delayed is not null
order by observed_at
"""


def _note_worked_past(tx: RunTransaction, destinations: Mapping[str, Consumption], window: timedelta) -> None:
    """Give every slice of the route the moment from which its destination is known to have worked past it, and the end
    of its observation ``window``."""
    for behind in tx.execute(sql(_BEHIND)).all():
        how = destinations.get(behind.destination, _UNKNOWN) if behind.here else _UNKNOWN
        of_it = {"queue": behind.destination, "system": behind.system}
        looks = tx.execute(sql(_LOOKS), {**of_it, "since_at": parse_instant(behind.last_sent_at)}).all()
        if not looks and not how.in_order:
            continue  # nothing says anything of it, however much is watched
        sends = []
        for row in tx.execute(sql(_NOT_WORKED_PAST), of_it):
            claimed, last, outcome = map(parse_instant, (row.claimed_at, row.last_sent_at, row.first_outcome_at))
            if claimed is not None and last is not None:
                sends.append(Sends(row.slice_id, claimed, last, row.sent, outcome, row.fence))
        seen = [
            Look(
                at,
                row.depth,
                timedelta(seconds=row.lag_seconds),
                bool(row.exact),
                row.fence,
                row.waiting,
                timedelta(seconds=row.zeros_apart_seconds),
                bool(row.told),
            )
            for row in looks
            if (at := parse_instant(row.observed_at)) is not None
        ]
        tx.many(
            "update delivery_slices set observed_from = ? where slice_id = ?",
            [(tx.dialect.stored(at), slice_id) for slice_id, at in worked_past(sends, seen, how).items()],
        )
    end = tx.dialect.later("observed_from", str(window.total_seconds()))
    tx.execute(
        sql(
            f"update delivery_slices set window_ends_at = {end}"
            " where route = :route and observed_at is null and observed_from is not null"
        )
    )
