"""What proves that a destination has worked past what was sent to it, so that consumers have had all of it.

Each of these proves it of a slice:

- The destination was seen empty after the last send, and after the broker had let go of what it delayed. Where the
  broker estimates, a count may be zero by itself: there only zeros over some minutes are emptiness (:class:`_Zeros`).
- The destination gives out first what came first, and at least as many messages have left it as it held when it was
  first seen after the send; or a later send of ours has come back from there, or was proved to be processed. Where
  later messages may go past earlier ones, neither says anything about one that may still lie there.
- A consumer's hold ends by the broker's clock, and looks said that nothing waited for as long as the longest redrive
  takes. Then consumers were given all of it as often as it may be, and what failed is in the dead-letter queue. While
  something waits, no such time passes: consumers may be down, and then it lies there for as long as they are. A busy
  queue nearly always holds something that waits. There each time of emptiness counts for itself, and between two that
  are a lease or more apart one more delivery was used up: who held it at the first holds it no more.

None of it proves anything once the destination may have given a message up: what lay there for as long as it keeps
messages is gone without anybody having had it.

A look counts only for its own destination: a queue of the same name at another broker or connection is another one. It
counts as one after the send only if the depth that the broker told, which may be late, was that of after the send.
Clocks of processes differ: of two things that runs of the route did, the later one is that of the later run (its
*fence*). Where all that later runs saw is earlier than a look by its time, and by more than clocks may differ, one of
the clocks was wrong: then only what was seen since that look counts (:func:`_since_clocks_agree`).

How many have left can't be seen where others send too. Where the broker counts exactly, it is at least the sum of what
the depth fell by between two looks, plus our own sends in between. Where it estimates, a depth wavers with nobody
working, and small falls would add up to everything: there only the part of a fall beyond :data:`WAVER` counts.

Pure: what was seen of a queue goes in, what it proves comes out.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeVar

#: An estimated depth may be off by a third, and by a few more: of a fall only what goes below half of where it began,
#: and these few, has surely left.
WAVER, FEW = 0.5, 10
_T = TypeVar("_T", int, datetime)
#: The fence of a look that no run of the route took: its time alone counts.
NOBODYS = 2**63

#: So far apart the clocks of two processes may be.
CLOCKS = timedelta(minutes=2)


class Holds(NamedTuple):
    """How often a message is given out before the broker dead-letters it, and for how long at most each time."""

    lease: timedelta
    deliveries: int


@dataclass(frozen=True, slots=True)
class Consumption:
    """How a destination's messages are taken from it, as far as that proves what has become of one."""

    in_order: bool = False  # what came first is given first
    holds: Holds | None = None  # consumers' leases end by the broker's clock: how often, and after how long
    keeps: timedelta | None = None  # what nobody took for so long may be gone; None: not known, or not for long


class Look(NamedTuple):
    """A destination's depth at a moment, or up to ``lag`` before; ``exact``: no estimate."""

    at: datetime
    depth: int
    lag: timedelta = timedelta(0)
    exact: bool = False
    fence: int | None = None  # of the run of ours that looked, before it sent anything; None: another route's
    waiting: int | None = None  # of the depth, what no consumer holds; None: not told apart
    zeros_apart: timedelta = timedelta(0)  # a zero counts once another, so much earlier, said so too
    told: bool = False  # the broker told the moment, by its own clock

    @property
    def since(self) -> datetime:
        """It was not so any earlier."""
        return self.at - self.lag

    @property
    def surely_since(self) -> datetime:
        """The same, whoever's clock is asked. Of a run of ours its fence says what it was before; that doesn't help
        where the depth is late."""
        return self.since - CLOCKS if self.lag or self.told or self.fence is None else self.since

    @property
    def surely_by(self) -> datetime:
        """It was so by then, whoever's clock is asked."""
        return self.at + CLOCKS if self.told or self.fence is None else self.at


class Sends(NamedTuple):
    """A slice that was sent to a destination."""

    slice_id: int
    claimed_at: datetime
    last_sent_at: datetime
    sent: int
    first_outcome_at: datetime | None  # of its messages that came back or were proved to be processed
    fence: int = 0  # of the run that claimed it


def worked_past(slices: Sequence[Sends], looks: Sequence[Look], how: Consumption) -> dict[int, datetime]:
    """Since when one destination is known to have worked past each of these slices; the others are left
    out. ``looks`` may be in any order."""
    looks = sorted(_since_clocks_agree(looks), key=lambda look: (look.since, look.at))
    #: The earliest moment, and run, of each look and of all that follow.
    times = _least_of_the_rest([look.surely_since for look in looks])
    runs = _least_of_the_rest([NOBODYS if look.fence is None else look.fence for look in looks])
    flow = _Flow(slices, looks) if how.in_order else None
    empty = _Zeros(looks, [look.depth == 0 for look in looks])
    given_out = _GivenOut(looks, how.holds) if how.holds is not None else None
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
            dead = given_out.to_the_end(first) if given_out is not None else None
            # By the time of a look it was surely so, be its depth late or not.
            moments += [looks[number].at for number in (gone, empty.by(first), dead) if number is not None]
        if how.keeps is not None:
            moments = [moment for moment in moments if moment < one.claimed_at + how.keeps]
        if moments:
            found[one.slice_id] = min(moments)
    return found


def _since_clocks_agree(looks: Sequence[Look]) -> Sequence[Look]:
    """Without the newest look that all looks of later runs contradict, and without all that was seen before it.

    By its time it would come after them, and hide all of them until that time has come. It was taken before them; when,
    nobody knows. What is left is what would be known had nobody looked before, so nothing is proved by leaving it out.
    """
    ends: dict[int, datetime] = {}
    for look in looks:
        if look.fence is not None:
            ends[look.fence] = max(look.at, ends.get(look.fence, look.at))
    latest: datetime | None = None
    for fence in sorted(ends, reverse=True):
        if latest is not None and ends[fence] - CLOCKS > latest:
            start = min(look.since for look in looks if look.fence is not None and look.fence > fence)
            return [look for look in looks if (look.since >= start if look.fence is None else look.fence > fence)]
        latest = ends[fence] if latest is None else max(latest, ends[fence])
    return looks


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

    def end_of(self, zero: int) -> int:
        """The look after the last of the row to which this ``zero`` belongs."""
        return self._rows[bisect_right(self._rows, zero, key=lambda one: one[0]) - 1][1]

    def _within(self, start: int, end: int) -> int | None:
        if start >= end:
            return None
        apart = self._looks[start].zeros_apart
        found = bisect_left(self._times, self._times[start] + apart, lo=start)
        return found if found < end else None


class _GivenOut:
    """When what lay in a destination had surely been given out as often as it may be, and no hold was left."""

    def __init__(self, looks: Sequence[Look], holds: Holds) -> None:
        self._looks = looks
        self._times = [look.since for look in looks]
        self._none_waits = _Zeros(looks, [look.waiting == 0 for look in looks])
        self._holds = holds
        self._known: dict[int, int | None] = {}

    def to_the_end(self, first: int) -> int | None:
        """The look by which that is sure of what lay there at the ``first``; None if there is none."""
        found = self._none_waits.by(first)
        if found is None:
            return None
        if found not in self._known:
            self._known[found] = self._after(found)
        return self._known[found]

    def _after(self, found: int | None) -> int | None:
        lease, left = self._holds
        while found is not None:
            moment, end = self._looks[found].at, self._none_waits.end_of(found)
            dead = bisect_left(self._times, moment + left * lease, lo=found)
            if dead < end:
                return dead
            over = max(0, (self._times[end - 1] - moment) // lease)
            found = self._none_waits.by(bisect_left(self._times, moment + (over + 1) * lease, lo=end))
            left -= over + 1
            if left == 0:
                return found
        return None


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
