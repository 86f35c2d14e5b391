"""What became of past sends: confirmed, presumed, or to be sent again; never "gone, so it worked".

A send is *presumed* good only when a return could have been seen: the destination was seen to have worked past the
slice, the observation window has passed since then, and every source of the route was drained and loaded beyond the
window's end.

A destination has *worked past* a slice when it was seen empty after the last send (and after the broker had let go of
what it delayed). Where the broker estimates, a count may be zero by itself: there only zeros over some minutes are
emptiness (:class:`_Zeros`). Where it gives what came first first, also when at least as many messages have left it
since as it held when it was first seen after the send; or when a later send of ours has come back from there, or was
proved to be processed. Where later ones may go past earlier ones, neither says anything of one that may still lie
there; but where a consumer's hold ends by the broker's clock, a look at which nothing waited says that the consumers
had been given all of it, and when the longest redrive has passed since then, what failed there is in its dead-letter
queue. It is the destination at the broker and connection that the slice went by: a queue of the same name elsewhere
says nothing. A look counts as one of after the send only if the depth that the broker told, which may be late, was that
of after the send. Clocks of processes differ: of two things that runs of the route did, the later one is that of the
later run (its *fence*).

How many have left can't be seen where others send too. Where the broker counts exactly, it is no fewer than the sum of
what the depth went down by between two looks, our own sends in between added. Where it estimates, a depth wavers with
nobody working, and small falls would add up to everything: there only what a fall goes beyond :data:`WAVER` counts.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple, TypeVar

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.delivery import counting
from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.moves import move
from redrive.ledger.review import escalations
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.lifecycle import Plan, State

#: An estimated depth may be off by a third, and by a few more: of a fall only what goes below half of where it began,
#: and these few, has surely left.
WAVER, FEW = 0.5, 10
_T = TypeVar("_T", int, datetime)
#: The fence of a look that no run of the route took: its time alone counts.
NOBODYS = 2**63

#: So far apart the clocks of two processes may be.
CLOCKS = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Consumption:
    """How a destination's messages are taken from it, as far as that proves what has become of one."""

    in_order: bool = False  # what came first is given first
    redrive: timedelta | None = None  # consumers' leases end by the broker's clock: how long the longest redrive takes


_UNKNOWN = Consumption()


class Look(NamedTuple):
    """A destination's depth at a moment, or up to ``lag`` before; ``exact``: no estimate."""

    at: datetime
    depth: int
    lag: timedelta = timedelta(0)
    exact: bool = False
    fence: int | None = None  # of the run of ours that looked, before it sent anything; None: another route's
    waiting: int | None = None  # of the depth, what no consumer holds; None: not told apart
    zeros_apart: timedelta = timedelta(0)  # a zero counts once another, so much earlier, said so too

    @property
    def since(self) -> datetime:
        """It was not so any earlier."""
        return self.at - self.lag

    @property
    def surely_since(self) -> datetime:
        """The same, whoever's clock is asked. Of a run of ours its fence says what it was before; that doesn't help
        where the depth is late."""
        return self.since - CLOCKS if self.lag or self.fence is None else self.since

    @property
    def surely_by(self) -> datetime:
        """It was so by then, whoever's clock is asked."""
        return self.at + CLOCKS if self.fence is None else self.at


class Sends(NamedTuple):
    """A slice that was sent to a destination."""

    slice_id: int
    claimed_at: datetime
    last_sent_at: datetime
    sent: int
    first_outcome_at: datetime | None  # of its messages that came back or were proved to be processed
    fence: int = 0  # of the run that claimed it


class Keyed(NamedTuple):
    """A message and the key under which a processed check knows it."""

    message_id: int
    message_key: str


def sources_drained(ledger: Ledger, lease: RouteLease, sources: Sequence[str], since: datetime, now: datetime) -> None:
    """These sources were empty of anything that lay in them at ``since``; it counts once their batches are loaded."""
    with ledger.under(lease, now) as tx:
        for source in sources:
            tx.execute(
                sql(
                    "insert into source_state (route, source, pending_to) values (:route, :source, :since_at)"
                    " on conflict (route, source) do update set pending_to = excluded.pending_to"
                ),
                {"source": source, "since_at": since},
            )


def forget_pending(ledger: Ledger, lease: RouteLease, now: datetime) -> None:
    """A run that died may have drained some shards only: what it thought to have drained does not count."""
    with ledger.under(lease, now) as tx:
        tx.execute(sql("update source_state set pending_to = null where route = :route"))


def sources_loaded(ledger: Ledger, lease: RouteLease, now: datetime) -> None:
    """All recorded batches of the route are loaded: what was drained is now also known."""
    with ledger.under(lease, now) as tx:
        tx.execute(
            sql(
                "update source_state set drained_to = pending_to, pending_to = null where route = :route"
                " and pending_to is not null and not exists (select 1 from staging_batches where route = :route"
                " and state in ('recorded', 'settled') and loaded_at is null)"
            )
        )


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


def awaited(connection: Connection, route: str, before: datetime) -> bool:
    """Whether sends that were claimed before ``before`` wait to be observed: drains decide what becomes of them."""
    found = connection.execute(
        sql(
            "select 1 from delivery_slices where route = :route and claimed_at < :before_at and sent > 0"
            " and observed_at is null limit 1"
        ),
        {"route": route, "before_at": before},
    )
    return found.first() is not None


def outstanding(connection: Connection, route: str, batch_id: int | None = None) -> int:
    """How many sends of the route wait to be observed: each may have come back in a batch that is not loaded. With
    ``batch_id`` those that may have in this one: what later runs sent had not come back when it was drained."""
    found = connection.execute(
        sql(
            "select count(*) from redelivery_attempts a inner join delivery_slices s on s.slice_id = a.slice_id"
            " where s.route = :route and s.observed_at is null and a.sent_at is not null and a.outcome is null"
            + (
                ""
                if batch_id is None
                else " and s.fence <= (select fence from staging_batches where batch_id = :batch_id)"
            )
        ),
        {"route": route} | ({} if batch_id is None else {"batch_id": batch_id}),
    )
    return int(found.scalar_one())


def lose_sight(tx: RunTransaction, *, until_fence: int, reason: str) -> int:
    """Nobody will see whether the watched sends of runs up to ``until_fence`` came back: they stay sent, with this
    ``reason``, until they are seen after all or proved to be processed; how many they are. Gates and breakers count
    them as if they had not been sent, and send others. In the caller's transaction."""
    values = {"until_fence": until_fence, "reason": reason}
    slices = (
        "select slice_id from delivery_slices where route = :route and fence <= :until_fence and closed_at is not null"
        " and observed_at is null and sent > 0"
    )
    lost = f"slice_id in ({slices}) and sent_at is not null and outcome is null"
    counting.forget_sends(tx, lost, values)
    count = tx.execute(
        sql(
            "update messages set reason = :reason where route = :route and state = 'sent' and exists (select 1 from"
            " redelivery_attempts attempts where attempts.message_id = messages.message_id"
            f" and attempts.attempt = messages.attempts and attempts.{lost})"
        ),
        values,
    ).rowcount
    tx.execute(sql(f"update delivery_slices set observed_at = :now where slice_id in ({slices})"), values)
    return int(count)


def watched(connection: Connection, route: str) -> list[str]:
    """The destinations, at the route's present broker, that are not known to have worked past all of its sends."""
    rows = connection.execute(
        sql(
            "select distinct destination from delivery_slices where route = :route and closed_at is not null"
            " and observed_at is null and observed_from is null and sent > 0"
            " and system = (select system from route_state where route = :route)"
        ),
        {"route": route},
    )
    return sorted(row.destination for row in rows)


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

    ``destinations``: what is known of those that are :func:`watched`.
    """
    with ledger.under(lease, now) as tx:
        _note_worked_past(tx, destinations, window)
        horizon = drained_to(tx.connection, lease.route, sources)
        if horizon is None:
            return 0
        # What went by another broker came back to sources that this route doesn't drain any more.
        closable = (
            "select slice_id from delivery_slices where route = :route and observed_at is null"
            " and window_ends_at <= :horizon_at and system = (select system from route_state where route = :route)"
        )
        values = {"horizon_at": horizon}
        tx.execute(
            sql(
                f"update redelivery_attempts set outcome = 'presumed', outcome_at = :now, {counting.STAYED}"
                f" where slice_id in ({closable}) and sent_at is not null and outcome is null"
            ),
            values,
        )
        presumed = move(
            tx,
            State.SENT,
            State.PRESUMED,
            where=(
                "route = :route and exists (select 1 from redelivery_attempts attempts"
                " where attempts.message_id = messages.message_id and attempts.attempt = messages.attempts"
                f" and attempts.outcome = 'presumed' and attempts.slice_id in ({closable}))"
            ),
            values=values,
            action=Action.PRESUME,
            reason=f"did not come back within {window} after the destination had worked past it",
        )
        tx.execute(
            sql(f"update delivery_slices set observed_at = :now where slice_id in ({closable})"),
            values,
        )
    return presumed


def _note_worked_past(tx: RunTransaction, destinations: Mapping[str, Consumption], window: timedelta) -> None:
    """Give every slice of the route the moment from which its destination is known to have worked past it, and the end
    of its observation ``window``."""
    rows = tx.execute(
        sql(
            "select slice_id, system, system = (select system from route_state where route = :route) as here,"
            " destination, claimed_at, last_sent_at, sent, fence, (select min(outcome_at)"
            " from redelivery_attempts where redelivery_attempts.slice_id = delivery_slices.slice_id"
            " and outcome in ('returned', 'confirmed')) as first_outcome_at from delivery_slices where route = :route"
            " and closed_at is not null and observed_at is null and observed_from is null and sent > 0"
        )
    ).all()
    slices: dict[tuple[str, str, Consumption], list[Sends]] = defaultdict(list)
    for row in rows:
        claimed, last, outcome = map(parse_instant, (row.claimed_at, row.last_sent_at, row.first_outcome_at))
        if claimed is not None and last is not None:
            how = destinations.get(row.destination, _UNKNOWN) if row.here else _UNKNOWN
            slices[row.system, row.destination, how].append(
                Sends(row.slice_id, claimed, last, row.sent, outcome, row.fence)
            )
    for (system, destination, how), sends in slices.items():
        looks = tx.execute(
            sql(
                "select observed_at, visible + in_flight + delayed as depth, visible + delayed as waiting,"
                " lag_seconds, zeros_apart_seconds, exact,"
                " (select fence from runs where runs.run_id = queue_observations.run_id and runs.route = :route)"
                " as fence from queue_observations"
                " where queue = :queue and system = :system and role = 'destination' and observed_at > :since_at"
                " and visible + in_flight + delayed is not null"
                " order by observed_at"
            ),
            {
                "queue": destination,
                "system": system,
                "since_at": min(one.last_sent_at for one in sends),
            },
        )
        seen = [
            Look(
                at,
                row.depth,
                timedelta(seconds=row.lag_seconds),
                bool(row.exact),
                row.fence,
                row.waiting,
                timedelta(seconds=row.zeros_apart_seconds),
            )
            for row in looks
            if (at := parse_instant(row.observed_at)) is not None
        ]
        tx.many(
            "update delivery_slices set observed_from = ? where slice_id = ?",
            [(tx.dialect.stored(at), slice_id) for slice_id, at in worked_past(sends, seen, how, tx.now).items()],
        )
    end = tx.dialect.later("observed_from", str(window.total_seconds()))
    tx.execute(
        sql(
            f"update delivery_slices set window_ends_at = {end}"
            " where route = :route and observed_at is null and observed_from is not null"
        )
    )


def worked_past(
    slices: Sequence[Sends], looks: Sequence[Look], how: Consumption, now: datetime | None = None
) -> dict[int, datetime]:
    """From when one destination is known to have worked past each of these slices; those of which it isn't are left
    out. ``looks`` may be in any order. What its consumers were given by a look is done or dead-lettered when the
    longest redrive after it is over ``now``."""
    looks = sorted(looks, key=lambda look: (look.since, look.at))
    #: The earliest moment, and run, of each look and of all that follow.
    times = _least_of_the_rest([look.surely_since for look in looks])
    runs = _least_of_the_rest([NOBODYS if look.fence is None else look.fence for look in looks])
    flow = _Flow(slices, looks) if how.in_order else None
    empty = _Zeros(looks, [look.depth == 0 for look in looks])
    given_out = _Zeros(looks, [look.waiting == 0 for look in looks])
    ordered = sorted(slices, key=lambda one: one.fence)
    fences = [one.fence for one in ordered]
    claims = _least_of_the_rest([one.claimed_at for one in ordered])
    # The earliest outcome of the n-th and of every later slice.
    outcomes: list[datetime | None] = [None]
    for one in reversed(ordered):
        known = [at for at in (outcomes[-1], one.first_outcome_at) if at is not None]
        outcomes.append(min(known, default=None))
    outcomes.reverse()
    found: dict[int, datetime] = {}
    for one in slices:
        moments = []
        later = outcomes[max(bisect_right(fences, one.fence), bisect_right(claims, one.last_sent_at))]
        if how.in_order and later is not None and later > one.last_sent_at:
            moments.append(later)
        first = max(bisect_right(times, one.last_sent_at), bisect_right(runs, one.fence))
        if first < len(looks):
            gone = flow.gone_by(first) if flow is not None else None
            # By the time of a look it was surely so, be its depth late or not.
            moments += [looks[number].at for number in (gone, empty.by(first)) if number is not None]
            if how.redrive is not None and now is not None and (given := given_out.by(first)) is not None:
                ends = looks[given].at + how.redrive
                moments += [ends] if ends <= now else []
        if moments:
            found[one.slice_id] = min(moments)
    return found


def _least_of_the_rest(values: Sequence[_T]) -> list[_T]:
    """Of each value and of all that follow, the least: it never falls."""
    return list(accumulate(reversed(values), min))[::-1]


class _Zeros:
    """When a count was surely zero: at a look that says so, and where it is an estimate once an earlier look said so
    too, as much before as the broker asks for, and none between them said otherwise.

    AWS asks for that of a queue before it is deleted: *confirming that a queue is empty*.
    """

    def __init__(self, looks: Sequence[Look], zeros: Sequence[bool]) -> None:
        self._looks = looks
        self._times = [look.since for look in looks]
        starts = [n for n, zero in enumerate(zeros) if zero and not (n and zeros[n - 1])]
        #: Of each row of zeros its first look, and the one after its last.
        self._rows = [
            (start, next((n for n in range(start, len(zeros)) if not zeros[n]), len(zeros))) for start in starts
        ]
        #: Of each row, the look by which it or the next one that lasts is sure.
        self._next: list[int | None] = [None]
        for row in reversed(self._rows):
            sure = self._within(*row)
            self._next.append(self._next[-1] if sure is None else sure)
        self._next.reverse()

    def by(self, first: int) -> int | None:
        """The look by which it is sure, of those from ``first`` on; None if there is none."""
        row = bisect_right(self._rows, first, key=lambda one: one[0])
        if row:
            sure = self._within(max(first, self._rows[row - 1][0]), self._rows[row - 1][1])
            if sure is not None:
                return sure
        return self._next[row]

    def _within(self, start: int, end: int) -> int | None:
        if start >= end:
            return None
        apart = self._looks[start].zeros_apart
        found = bisect_left(self._times, self._times[start] + apart, lo=start)
        return found if found < end else None


class _Flow:
    """How many messages at least have left a destination between looks at it."""

    def __init__(self, slices: Sequence[Sends], looks: Sequence[Look]) -> None:
        self._looks = looks
        self._known: dict[int, int | None] = {}
        by_end = sorted(slices, key=lambda one: one.last_sent_at)
        ends = [one.last_sent_at for one in by_end]
        #: What we sent between each look and the one before: only slices that wholly lie in between, so that no part
        #: of them is in the one count or missing in the other. A run looks before it sends.
        self._own = [0]
        for before, look in pairwise(looks):
            between = by_end[bisect_right(ends, before.at) : bisect_right(ends, look.surely_since)]
            self._own.append(
                sum(
                    one.sent
                    for one in between
                    if one.claimed_at > before.surely_by
                    and (before.fence is None or before.fence <= one.fence)
                    and (look.fence is None or one.fence < look.fence)
                )
            )
        self._left = self._exactly()
        #: From each look on all counts are exact.
        self._exact_from = next((n + 1 for n in reversed(range(len(looks))) if not looks[n].exact), 0)

    def gone_by(self, first: int) -> int | None:
        """The look by which as many have left as there were at the ``first``; None if there is none."""
        if first not in self._known:
            self._known[first] = self._exact_by(first) if first >= self._exact_from else self._estimated_by(first)
        return self._known[first]

    def _exactly(self) -> list[int]:
        left = [0] if self._looks else []
        for (before, look), own in zip(pairwise(self._looks), self._own[1:], strict=True):
            left.append(left[-1] + max(0, before.depth + own - look.depth))
        return left

    def _exact_by(self, first: int) -> int | None:
        found = bisect_left(self._left, self._left[first] + self._looks[first].depth, lo=first)
        return found if found < len(self._looks) else None

    def _estimated_by(self, first: int) -> int | None:
        """A fall goes on until the depth rises again by more than it may waver; then another may begin."""
        top = bottom = self._looks[first].depth
        wanted = top * (1 + WAVER) + FEW
        left = counted = 0.0
        for number in range(first + 1, len(self._looks)):
            top += self._own[number]
            depth = self._looks[number].depth
            if depth * (1 - WAVER) - FEW > bottom:
                top, counted = depth, 0.0
            top, bottom = max(top, depth), depth if counted == 0 else min(bottom, depth)
            gone = top * (1 - WAVER) - FEW - depth
            if gone > counted:
                left, counted = left + gone - counted, gone
                if left >= wanted:
                    return number
        return None


def any_under_observation(connection: Connection, route: str) -> bool:
    """Whether the route has sends whose outcome isn't known."""
    return (
        connection.execute(
            sql(
                "select 1 where exists (select 1 from messages where route = :route and state in ('sent', 'unknown'))"
                " or exists (select 1 from delivery_slices where route = :route and sent > 0 and observed_at is null)"
            ),
            {"route": route},
        ).first()
        is not None
    )


def under_observation(connection: Connection, route: str, after: int, limit: int) -> list[Keyed]:
    """Messages whose last send has no outcome yet and that have a key, in id order after ``after``."""
    rows = connection.execute(
        sql(
            "select message_id, message_key from messages where route = :route and state in ('sent', 'unknown')"
            " and message_key is not null and message_id > :after order by message_id limit :limit"
        ),
        {"route": route, "after": after, "limit": limit},
    )
    return [Keyed(row.message_id, row.message_key) for row in rows]


def confirm(ledger: Ledger, lease: RouteLease, message_ids: Sequence[int], now: datetime) -> int:
    """A processed check found these: their last send succeeded."""
    if not message_ids:
        return 0
    with ledger.under(lease, now) as tx:
        return prove(tx, message_ids)


def prove(tx: RunTransaction, message_ids: Sequence[int]) -> int:
    """As :func:`confirm`, in the caller's transaction."""
    tx.temporary("proved", "message_id bigint primary key")
    tx.bulk("proved", ("message_id",), [(i,) for i in message_ids])
    last = (
        "redelivery_attempts.message_id in (select message_id from proved) and redelivery_attempts.attempt ="
        " (select attempts from messages where messages.message_id = redelivery_attempts.message_id)"
    )
    tx.execute(
        sql(
            f"update redelivery_attempts set outcome = 'confirmed', outcome_at = :now, {counting.STAYED}"
            f" where {last} and coalesce(outcome, 'presumed') = 'presumed'"
        )
    )
    escalations.close_released(tx, "proved", "nobody knew whether it was sent; it was processed")
    return sum(
        move(
            tx,
            state,
            State.CONFIRMED,
            where="message_id in (select message_id from proved)",
            action=Action.CONFIRM,
            reason="processed_check found it",
        )
        for state in (State.SENT, State.UNKNOWN, State.TO_REVIEW)
    )


def unknown_destinations(connection: Connection, route: str) -> list[str]:
    """Queues to which the route has sends of unknown fate."""
    rows = connection.execute(
        sql("select distinct destination from messages where route = :route and state = 'unknown'"), {"route": route}
    )
    return sorted(row.destination for row in rows)


def decide_unknown(
    ledger: Ledger,
    lease: RouteLease,
    *,
    destination: str,
    plan: Literal[Plan.REPEAT, Plan.RESEND] | None,
    unknown_before: datetime,
    now: datetime,
    claimed_after: datetime | None = None,
    claimed_until: datetime | None = None,
    keyed: bool | None = None,
) -> int:
    """Sends to ``destination`` that are unknown, and were due, since before ``unknown_before`` get this ``plan``; with
    None people are to be asked. ``claimed_after`` and ``claimed_until`` limit it to sends that were claimed then, and
    ``keyed`` to messages that have a key, or none, by which a processed check could know them.
    """
    which = ""
    values: dict[str, Any] = {"destination": destination, "before_at": unknown_before}
    if claimed_after is not None:
        which += " and attempts.claimed_at > :after_at"
        values["after_at"] = claimed_after
    if claimed_until is not None:
        which += " and attempts.claimed_at <= :until_at"
        values["until_at"] = claimed_until
    if keyed is not None:
        which += f" and messages.message_key is {'not null' if keyed else 'null'}"
    where = (
        "route = :route and destination = :destination and exists (select 1 from redelivery_attempts attempts"
        " where attempts.message_id = messages.message_id and attempts.attempt = messages.attempts"
        " and attempts.unknown_at <= :before_at"
        f" and coalesce(attempts.due_at, attempts.unknown_at) <= :before_at{which})"
    )
    with ledger.under(lease, now) as tx:
        if plan is None:
            return move(
                tx,
                State.UNKNOWN,
                State.TO_REVIEW,
                where=where,
                values={**values, "why": "a delivery ended between send and confirmation: it may be there"},
                set_="reason = :why, next_attempt_at = null",
                action=Action.PUT_TO_REVIEW,
                reason="nobody knows whether it was sent",
            )
        return int(
            tx.execute(
                sql(
                    "update messages set plan = :plan, reason = null where state = 'unknown'"
                    f" and coalesce(plan, '') <> :plan and {where}"
                ),
                {**values, "plan": plan},
            ).rowcount
        )


def return_times(connection: Connection, route: str, quantile: float = 0.99, least: int = 20) -> float | None:
    """Seconds from send (or from when the broker let go of what it delayed) to return that ``quantile`` of the
    route's newest 10,000 returns, of what went by its present broker, stayed below; None while there are fewer than
    ``least``."""
    rows = connection.execute(
        sql(
            "select coalesce(due_at, sent_at) as sent_at, outcome_at from redelivery_attempts"
            " where route = :route and outcome = 'returned'"
            " and return_kind = 'dead_letter' and sent_at is not null and exists (select 1 from delivery_slices went"
            "   where went.slice_id = redelivery_attempts.slice_id"
            "   and went.system = (select system from route_state where route = :route))"
            " order by message_id desc limit 10000"
        ),
        {"route": route},
    ).all()
    seconds = sorted(
        (end - start).total_seconds()
        for start, end in ((parse_instant(r.sent_at), parse_instant(r.outcome_at)) for r in rows)
        if start is not None and end is not None
    )
    if len(seconds) < least:
        return None
    return seconds[min(len(seconds) - 1, int(quantile * len(seconds)))]
