"""Sends claimed slices: window by window announced, sent, confirmed, marked.

Only one confirm window at a time is in the broker's hands or not yet marked, so a crash leaves at most that window
unknown. Where the broker pipelines, the window goes in two halves: one is with the broker while the other is marked,
and the next half is read and announced; both are at the end of a slice, while the next slice is claimed. Where the
ledger has a server of its own that does the work, a slice is closed beside the next one, and claimed beside the one
before it.
"""

import itertools
import logging
import math
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple, cast

from redrive.brokers.base import Pipelines, Publication
from redrive.errors import (
    BrokerError,
    BrokerUnavailable,
    CheckFailed,
    NothingSent,
    PermissionRefused,
    QueueMissing,
    RedriveError,
    StagingError,
)
from redrive.ledger.delivery import windows
from redrive.ledger.delivery.claims import Claimed, Slice
from redrive.ledger.delivery.windows import Mark
from redrive.message import Outgoing, as_tuples, body_hash
from redrive.stages import checking
from redrive.stages.beside import Beside, Worker
from redrive.stages.checking import open_check
from redrive.stages.context import FILE_DAMAGED, Context
from redrive.stages.outgoing import outgoing
from redrive.stages.rates import Rate
from redrive.stages.stretches import Stretch

log = logging.getLogger(__name__)

#: Has a window's results, and begins to publish it: see :class:`redrive.brokers.base.Pipelines`.
Finish = Callable[[], list[Publication]]
Begin = Callable[[], Finish]

#: So many messages one after the other that a destination does not take are its trouble, and not theirs: it gets no
#: more in this task. Fewer, of a window of one say, may have reasons of their own, and don't keep those behind them.
NONE_TAKEN = 10
#: Seconds: whoever waits longer for its turn leaves nothing on the wire meanwhile.
LONGEST_ON_THE_WIRE = 0.1
#: How a message ended, in the log's words; by ``Publication.status``.
_ENDED = {"sent": "sent", "unknown": "unknown", "refused": "refused", "retry": "put back"}


@dataclass(slots=True)
class Totals:
    """What one delivery task did."""

    redelivered: int = 0
    unknown: int = 0
    suppressed: int = 0
    refused: int = 0
    put_back: int = 0
    slices: int = 0
    unreadable: int = 0


class _Read(NamedTuple):
    """A part of a confirm window whose payloads are at hand, and how it goes to the broker."""

    messages: list[Outgoing]
    begin: Begin


@dataclass(slots=True)
class _SliceUnderWay:
    """A slice that is being sent."""

    claimed: Slice
    rate: Rate
    share: float  # of the destination's consumers that work
    ids: list[int]  # ascending
    released: AbstractSet[int]
    outgoing: Iterator[Outgoing]
    damaged: list[Claimed]  # found since they were last set aside
    began: float
    announced: deque[_Read] = field(default_factory=deque)
    on_the_wire: int = 0  # parts
    mark: int = 0  # the last message that was announced
    stopped: bool = False  # nothing more of it is announced; what is on the wire is still marked
    trouble: RedriveError | None = None
    ended: Counter[str] = field(default_factory=Counter)  # how its messages ended

    def behind_the_mark(self) -> list[int]:
        """What was not announced yet."""
        return self.ids[bisect_right(self.ids, self.mark) :]


class _Part(NamedTuple):
    """A part of a confirm window that is with the broker, or is published when its results are asked for."""

    of: _SliceUnderWay
    messages: list[Outgoing]
    finish: Finish
    begun: bool
    began: datetime  # no later than the broker got it


class SliceSender:
    """Sends the slices of one delivery task; destinations to which nothing more may go are added to ``blocked``."""

    def __init__(
        self,
        context: Context,
        totals: Totals,
        blocked: set[str],
        *,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        reader: Worker,
        beside: Beside,
    ) -> None:
        self.arrived: Counter[str] = Counter()  # by destination: what was sent, or may have been, or is on the wire
        self._context = context
        self._totals = totals
        self._blocked = blocked
        self._monotonic = monotonic
        self._sleep = sleep
        self._reader = reader
        self._beside = beside
        self._not_taken: Counter[str] = Counter()  # by destination: so many in a row, whole windows
        self._checker = open_check(context)
        self._aside: set[int] = set()  # messages whose file is damaged
        self._wire: deque[_Part] = deque()  # oldest first; they belong to two slices at most
        self._fatal: RedriveError | None = None  # what keeps all messages from going, and a person has to mend
        self.refused: dict[str, BrokerError] = {}  # the same of one destination; the others get their messages

    def close(self) -> None:
        """Close the processed check."""
        if self._checker is not None:
            self._checker.close()

    def send(
        self,
        claimed: Slice,
        rate: Rate,
        share: float,
        stretch: Stretch | None = None,
        *,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Send what the processed check doesn't know at ``rate``, slower where only a ``share`` of consumers works;
        ``stretch`` may have its payloads. ``meanwhile`` is called once where the broker has as much of it as it may,
        and more is to come.

        Where the broker pipelines, the last parts of it may still be on the wire when this returns: see :meth:`finish`.
        Raises where the staging can't be read. A queue that is missing, or may not be written to, is ``blocked``, and
        :attr:`refused` says why.
        """
        one, parts = self._under_way(claimed, rate, share, stretch), self._parts(claimed.destination)
        if one is None:
            return
        if parts == 1:
            self._finish_all()
        if len(self._wire) >= parts:
            self._finish_oldest(one, parts)  # and announce the first part
        else:
            self._announce_first(one, parts)
        if not one.announced:
            self._give_back(one, self._rest(one))
            self._close(one)
            if self._fatal is not None:
                self.finish()
            return
        while True:
            while one.announced:
                self._begin(one)
            if not self._wire or (parts > 1 and self._is_all_begun(one)):
                break
            if meanwhile is not None and parts > 1 and one.trouble is None and not one.stopped:
                meanwhile()
                meanwhile = None
            self._finish_oldest(one, parts)
            self._beside.check()
        if one.stopped and not one.on_the_wire:
            self._close(one)
        if self._fatal is not None:
            self.finish()

    def give_back(self, claimed: Slice) -> None:
        """A slice of which nothing was sent waits again, as if never claimed."""
        context, slice_id = self._context, claimed.slice_id
        ids = [each.message_id for each in claimed.messages]
        windows.give_back(context.ledger, context.lease, slice_id, ids, context.now())
        windows.close(context.ledger, context.lease, slice_id, context.now())

    def finish(self) -> bool:
        """Mark what is still on the wire when the broker has confirmed it; whether there was any. Raises as
        :meth:`send`."""
        found = self._finish_all()
        if self._fatal is not None:
            raise self._fatal
        return found

    def salvage(self) -> None:
        """After an error: mark what is with the broker and can still be marked, and send nothing more."""
        self._wire = deque(part for part in self._wire if part.begun)
        with suppress(Exception):
            self._finish_all()

    def _finish_all(self) -> bool:
        found = bool(self._wire)
        while self._wire:
            self._finish_oldest()
        self._beside.wait()
        return found

    def _parts(self, destination: str) -> int:
        """In how many parts a confirm window goes, which are sent and marked one after the other."""
        pipelines = self._context.broker.capabilities_for(destination).pipelines
        return 2 if pipelines and self._context.route.deliver.confirm_window > 1 else 1

    def _under_way(self, claimed: Slice, rate: Rate, share: float, stretch: Stretch | None) -> _SliceUnderWay | None:
        """The slice, as far as it is to be sent; None where it isn't."""
        began = time.monotonic()
        todo, damaged = self._without_processed(claimed), list[Claimed]()
        one = _SliceUnderWay(
            claimed,
            rate,
            share,
            [each.message_id for each in todo],
            {each.message_id for each in todo if each.mode == "release"},
            outgoing(self._context, todo, claimed, stretch, damaged),
            damaged,
            began,
        )
        if todo:
            return one
        self._close(one)
        return None

    def _announce_first(self, one: _SliceUnderWay, parts: int) -> None:
        """Read what has room on the wire, and announce it; nothing where it can't be read, or nothing may be sent."""
        try:
            # What is announced has its payloads at hand: what can't be read never was in the broker's hands.
            free = parts - len(self._wire)
            first = [part for _ in range(free) if (part := self._next_part(one, parts))]
        except StagingError as error:
            self._note(one, error)
            first = []
        self._set_aside(one)
        if not first or one.claimed.destination in self._blocked:
            return
        one.announced.extend(first)
        one.mark = first[-1].messages[-1].message_id
        context = self._context
        alongside, slice_id = self._beside.busy, one.claimed.slice_id
        windows.raise_mark(context.ledger, context.lease, slice_id, one.mark, context.now(), alongside=alongside)

    def _next_part(self, one: _SliceUnderWay, parts: int) -> _Read | None:
        """The next part of the slice, made ready as far as that goes without the broker; None where there is none."""
        if one.stopped:
            return None
        messages = list(itertools.islice(one.outgoing, self._context.route.deliver.confirm_window // parts))
        if not messages:
            return None
        broker, to = self._context.broker, one.claimed.destination
        if parts > 1:
            return _Read(messages, cast("Pipelines", broker).ready(to, messages))
        return _Read(messages, lambda: lambda: broker.publish(to, messages))

    def _rest(self, one: _SliceUnderWay) -> list[int]:
        """What was not announced yet and can be."""
        if one.stopped:
            return []
        rest = one.behind_the_mark()
        return [each for each in rest if each not in self._aside] if self._aside else rest

    def _is_all_begun(self, one: _SliceUnderWay) -> bool:
        """All of it is on the wire or marked, and nothing speaks against the next slice."""
        return one.trouble is None and not one.stopped and not self._rest(one)

    def _begin(self, one: _SliceUnderWay) -> None:
        """Send what was announced first when its turn comes, unless something speaks against it and all behind it."""
        context, to = self._context, one.claimed.destination
        messages, begin = one.announced[0]
        self._pace(one.rate, len(messages), one.share)
        # Who waited for its turn, or for others' confirmations, may be late; then its room counts as free again.
        until = min(one.claimed.deadline, one.claimed.repeat_until or one.claimed.deadline)
        if context.now() >= until or to in self._blocked:
            one.announced.clear()
            one.stopped = True
            self._give_back(one, one.ids[one.ids.index(messages[0].message_id) :])
            return
        one.announced.popleft()
        self.arrived[to] += len(messages)
        one.on_the_wire += 1
        began = context.now()
        self._wire.append(_Part(one, messages, begin(), self._parts(to) > 1, began))

    def _finish_oldest(self, current: _SliceUnderWay | None = None, parts: int = 1) -> None:
        """Mark what was sent first when the broker has confirmed it. With a ``current`` slice, which is its own or the
        next one, the next part of that is read meanwhile, and announced."""
        context = self._context
        one, messages, finish, _, began = self._wire.popleft()
        with self._reader.during(lambda: self._next_part(current, parts) if current else None) as read:
            marks, problem = _published(finish, one, messages, began)
        problem = problem or self._none_taken(one, marks)
        self._note(one, problem)
        if current and one.claimed.destination == current.claimed.destination:
            current.trouble = current.trouble or problem
        following: _Read | None = None
        failure: Exception | None = None  # of what was read ahead: raised once what the broker has confirmed is marked
        if current and current.trouble is None and not current.stopped:
            try:
                following = read()
            except StagingError as error:
                self._note(current, error)
            except Exception as error:
                failure = error
            self._set_aside(current)
        rest = self._rest(current) if current and failure is None else []
        last = failure is None and not (self._rest(one) or one.announced or one.on_the_wire > 1 or one.stopped)
        beside = context.ledger.dialect.writers_beside
        later = beside and last and current is not one and following is not None
        announced = windows.mark(
            context.ledger,
            context.lease,
            one.claimed.slice_id,
            marks,
            tries=context.route.deliver.tries,
            now=context.now(),
            following=(current.claimed.slice_id, following.messages[-1].message_id) if current and following else None,
            last_window=last and not later,
            first_sends=not one.claimed.resends,
            alongside=self._beside.busy,
        )
        one.on_the_wire -= 1  # not before: a slice stays open, and is recovered, where a part could not be marked
        self._count(one, marks)
        if failure is not None:
            raise failure
        if later:
            self._beside.do(lambda: self._close(one))
        elif last:
            self._tell(one)
        if current and following and announced:
            current.announced.append(following)
            current.mark = following.messages[-1].message_id
        elif current and rest:
            current.stopped = True
            self._give_back(current, rest)

    def _none_taken(self, one: _SliceUnderWay, marks: Sequence[Mark]) -> RedriveError | None:
        """What speaks against one more window, where nothing of this one arrived for certain."""
        to, statuses = one.claimed.destination, {each.status for each in marks}
        if not statuses <= {"retry", "unknown"}:
            self._not_taken[to] = 0
            return None
        self._not_taken[to] += len(marks)
        if "unknown" in statuses or self._not_taken[to] >= NONE_TAKEN:  # more would be in doubt, or refused
            return BrokerUnavailable(f"{to}: {marks[0].detail}")
        return None

    def _note(self, one: _SliceUnderWay, problem: RedriveError | None) -> None:
        """What keeps a slice's destination from getting more in this task."""
        if problem is None:
            return
        one.trouble = one.trouble or problem
        self._blocked.add(one.claimed.destination)
        if isinstance(problem, QueueMissing | PermissionRefused):
            self.refused.setdefault(one.claimed.destination, problem)
        elif isinstance(problem, StagingError):
            self._fatal = self._fatal or problem

    def _give_back(self, one: _SliceUnderWay, message_ids: Sequence[int]) -> None:
        if not message_ids:
            return
        context, slice_id = self._context, one.claimed.slice_id
        back = windows.give_back(context.ledger, context.lease, slice_id, message_ids, context.now())
        self._totals.put_back += back
        one.ended["put back"] += back

    def _close(self, one: _SliceUnderWay) -> None:
        windows.close(self._context.ledger, self._context.lease, one.claimed.slice_id, self._context.now())
        self._tell(one)

    def _tell(self, one: _SliceUnderWay) -> None:
        """Log what became of a slice that is closed."""
        ended = ", ".join(f"{count} {how}" for how, count in sorted(one.ended.items()))
        log.info(
            "slice %d to %s: %d messages: %s; in %.2f s",
            one.claimed.slice_id,
            one.claimed.destination,
            len(one.claimed.messages),
            ended or "none sent",
            time.monotonic() - one.began,
        )

    def _set_aside(self, one: _SliceUnderWay) -> None:
        """Leave the messages whose file is damaged to people."""
        if not one.damaged:
            return
        context, ids, slice_id = self._context, [each.message_id for each in one.damaged], one.claimed.slice_id
        windows.set_aside(context.ledger, context.lease, slice_id, ids, FILE_DAMAGED, context.now())
        context.progress("set aside, as their staging file is damaged or missing", len(ids), None)
        self._totals.unreadable += len(ids)
        one.ended["set aside"] += len(ids)
        self._aside.update(ids)
        one.damaged.clear()

    def _without_processed(self, claimed: Slice) -> Sequence[Claimed]:
        """The claimed messages that the processed check doesn't know; none where it gives no answer, and they wait."""
        context = self._context
        if self._checker is None:
            return claimed.messages
        ids = [one.message_id for one in claimed.messages]
        try:
            done = self._checker.processed([(one.message_id, one.message_key) for one in claimed.messages])
        except CheckFailed as error:
            back = windows.give_back(context.ledger, context.lease, claimed.slice_id, ids, context.now())
            self._totals.put_back += back
            self._blocked.add(claimed.destination)
            context.progress(f"held: {error}", 0, None)
            return []
        claimed = self._without_refused(claimed)
        if not done:
            return claimed.messages
        self._totals.suppressed += windows.suppress(
            context.ledger, context.lease, claimed.slice_id, sorted(done), context.now()
        )
        return [one for one in claimed.messages if one.message_id not in done]

    def _without_refused(self, claimed: Slice) -> Slice:
        """The slice without what the processed check can't be asked about: that is for people."""
        context, refused = self._context, self._checker.refused if self._checker is not None else set[int]()
        if not refused:
            return claimed
        windows.set_aside(
            context.ledger, context.lease, claimed.slice_id, sorted(refused), checking.REFUSED, context.now()
        )
        self._totals.put_back += len(refused)
        return replace(claimed, messages=[one for one in claimed.messages if one.message_id not in refused])

    def _pace(self, rate: Rate, count: int, share: float) -> None:
        """Wait until ``count`` messages may go; each costs more where only a share of the consumers works."""
        wait = rate.wait(count, self._monotonic())
        if wait > LONGEST_ON_THE_WIRE:
            self._finish_all()  # else a crash meanwhile would leave it unknown
            wait = rate.wait(count, self._monotonic())
        if wait > 0:
            self._sleep(wait)
        rate.available(self._monotonic())
        rate.take(math.ceil(count / (share or 1)))

    def _count(self, one: _SliceUnderWay, marks: Sequence[Mark]) -> None:
        ended = Counter([_ENDED[each.status] for each in marks])
        one.ended += ended
        self._totals.redelivered += ended["sent"]
        self._totals.unknown += ended["unknown"]
        self._totals.refused += ended["refused"]
        self._totals.put_back += ended["put back"]
        self.arrived[one.claimed.destination] -= ended["refused"] + ended["put back"]


def _published(
    finish: Finish, one: _SliceUnderWay, messages: Sequence[Outgoing], began: datetime
) -> tuple[list[Mark], RedriveError | None]:
    """What became of a window: what is certain and what is not, as marks, and the trouble that should end the slice."""
    trouble: RedriveError | None = None
    try:
        results = finish()
    except (QueueMissing, PermissionRefused, NothingSent) as error:
        trouble = error
        results = [Publication("retry", None, str(error))] * len(messages)
    except BrokerError as error:
        # An adapter answers per message; when it can't, nothing is known of any of them.
        trouble = error
        results = [Publication("unknown", None, str(error))] * len(messages)
    rows = [
        (
            message.message_id,
            message.attempt,
            result.status,
            result.broker_message_id,
            result.detail,
            bool(message.headers) and message.headers[-1][0].startswith("x-redrive"),  # tracked
            # Only a person's release can have another body, and the header that says so has not always room.
            body_hash(message.body) if message.message_id in one.released else None,
            began + timedelta(seconds=message.delay_seconds) if message.delay_seconds else None,
        )
        for message, result in zip(messages, results, strict=True)
    ]
    return list(as_tuples(Mark, rows)), trouble
