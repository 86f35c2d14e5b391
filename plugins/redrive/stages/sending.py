"""Sends a claimed slice: window by window announced, sent, confirmed, marked.

Only one confirm window at a time is in the broker's hands or not yet marked, so a crash leaves at most that window
unknown. Where the broker pipelines, the window goes in two halves: one is with the broker while the other is marked,
and the next half is read and announced.
"""

import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import cast

from redrive.brokers.base import Pipelines, Publication
from redrive.errors import (
    BrokerError,
    BrokerUnavailable,
    CheckFailed,
    PermissionRefused,
    QueueMissing,
    RedriveError,
    StagingError,
)
from redrive.ledger.delivery import windows
from redrive.ledger.delivery.claims import Claimed, Slice
from redrive.ledger.delivery.windows import Mark
from redrive.message import Outgoing, as_tuples, body_hash
from redrive.stages.checking import open_check
from redrive.stages.context import FILE_DAMAGED, Context
from redrive.stages.outgoing import outgoing
from redrive.stages.prefetch import Prefetch
from redrive.stages.rates import Rate

#: Has a window's results: see :class:`redrive.brokers.base.Pipelines`.
Finish = Callable[[], list[Publication]]


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


@dataclass(slots=True)
class _SliceUnderWay:
    """A slice that is being sent."""

    claimed: Slice
    rate: Rate
    share: float  # of the destination's consumers that work
    ids: list[int]
    released: AbstractSet[int]
    outgoing: Iterator[Outgoing]
    damaged: list[Claimed]  # found since they were last set aside
    parts: int = 1  # of a confirm window, which are sent and marked one after the other
    announced: deque[list[Outgoing]] = field(default_factory=deque)
    on_the_wire: deque[tuple[list[Outgoing], Finish]] = field(default_factory=deque)
    mark: int = 0  # the last message that was announced
    stopped: bool = False  # nothing more of it is announced; what is on the wire is still marked
    trouble: RedriveError | None = None

    def behind_the_mark(self) -> list[int]:
        """What was not announced yet."""
        return self.ids[self.ids.index(self.mark) + 1 :]


class SliceSender:
    """Sends the slices of one delivery task."""

    def __init__(
        self,
        context: Context,
        totals: Totals,
        *,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        prefetch: Prefetch,
    ) -> None:
        self.arrived: Counter[str] = Counter()  # by destination: what was sent, or may have been
        self._context = context
        self._totals = totals
        self._monotonic = monotonic
        self._sleep = sleep
        self._prefetch = prefetch
        self._checker = open_check(context)
        self._aside: set[int] = set()  # messages whose file is damaged

    def close(self) -> None:
        """Close the processed check."""
        if self._checker is not None:
            self._checker.close()

    def send(self, claimed: Slice, rate: Rate, share: float) -> bool:
        """Send what the processed check doesn't know at ``rate``, slower where only a ``share`` of consumers works.

        Returns whether more may go to the destination in this task. Raises what a person has to mend: a missing queue,
        a missing permission, a staging that can't be read.
        """
        context, deliver = self._context, self._context.route.deliver
        todo = self._without_processed(claimed)
        if todo is None:
            windows.close(context.ledger, context.lease, claimed.slice_id, context.now())
            return False
        if not todo:
            windows.close(context.ledger, context.lease, claimed.slice_id, context.now())
            return True
        damaged: list[Claimed] = []
        one = _SliceUnderWay(
            claimed,
            rate,
            share,
            [each.message_id for each in todo],
            {each.message_id for each in todo if each.mode == "release"},
            outgoing(context, todo, claimed, damaged),
            damaged,
        )
        if deliver.confirm_window > 1 and context.broker.capabilities_for(claimed.destination).pipelines:
            one.parts = 2
        # What is announced has its payloads at hand: what can't be read never was in the broker's hands.
        one.announced.extend(part for _ in range(one.parts) if (part := self._next_part(one)))
        self._set_aside(one.damaged, claimed)
        if not one.announced:
            windows.close(context.ledger, context.lease, claimed.slice_id, context.now())
            return True
        one.mark = one.announced[-1][-1].message_id
        windows.raise_mark(context.ledger, context.lease, claimed.slice_id, one.mark, context.now())
        while one.announced or one.on_the_wire:
            while one.announced:
                self._begin(one)
            if one.on_the_wire:
                self._finish(one)
        if isinstance(one.trouble, QueueMissing | PermissionRefused | StagingError):
            raise one.trouble
        if one.stopped:
            windows.close(context.ledger, context.lease, claimed.slice_id, context.now())
        return one.trouble is None

    def _next_part(self, one: _SliceUnderWay) -> list[Outgoing]:
        return list(itertools.islice(one.outgoing, self._context.route.deliver.confirm_window // one.parts))

    def _begin(self, one: _SliceUnderWay) -> None:
        """Send what was announced first when its turn comes, unless it is too late for it and all behind it."""
        context, messages, to = self._context, one.announced.popleft(), one.claimed.destination
        self._pace(one.rate, len(messages), one.share)
        if one.claimed.repeat_until is not None and context.now() >= one.claimed.repeat_until:
            one.announced.clear()
            one.stopped = True
            self._give_back(one.claimed, one.ids[one.ids.index(messages[0].message_id) :])
        elif one.parts > 1:
            one.on_the_wire.append((messages, cast("Pipelines", context.broker).begin(to, messages)))
        else:
            one.on_the_wire.append((messages, lambda: context.broker.publish(to, messages)))

    def _finish(self, one: _SliceUnderWay) -> None:
        """Mark what was sent first when the broker has confirmed it, and announce what was read meanwhile."""
        context, claimed = self._context, one.claimed
        messages, finish = one.on_the_wire.popleft()
        with self._prefetch(lambda: [] if one.stopped else self._next_part(one)) as read:
            marks, problem = _published(finish, claimed.destination, messages, one.released)
        one.trouble = one.trouble or problem
        following: list[Outgoing] = []
        if one.trouble is None and not one.stopped:
            try:
                following = read()
            except StagingError as error:
                one.trouble = error
            self._set_aside(one.damaged, claimed)
        rest = [] if one.stopped else [each for each in one.behind_the_mark() if each not in self._aside]
        announced = windows.mark(
            context.ledger,
            context.lease,
            claimed.slice_id,
            marks,
            tries=context.route.deliver.tries,
            now=context.now(),
            next_mark=following[-1].message_id if following else None,
            last_window=not (rest or one.on_the_wire or one.stopped),
        )
        self._count(marks)
        self.arrived[claimed.destination] += sum(1 for each in marks if each.status in ("sent", "unknown"))
        if announced:
            one.announced.append(following)
            one.mark = following[-1].message_id
        elif rest:
            one.stopped = True
            self._give_back(claimed, rest)

    def _give_back(self, claimed: Slice, message_ids: Sequence[int]) -> None:
        context = self._context
        self._totals.put_back += windows.give_back(
            context.ledger, context.lease, claimed.slice_id, message_ids, context.now()
        )

    def _set_aside(self, damaged: list[Claimed], claimed: Slice) -> None:
        """Leave the messages whose file is damaged to people."""
        if not damaged:
            return
        context, ids = self._context, [one.message_id for one in damaged]
        windows.set_aside(context.ledger, context.lease, claimed.slice_id, ids, FILE_DAMAGED, context.now())
        context.progress("set aside, as their staging file is damaged or missing", len(ids), None)
        self._totals.unreadable += len(ids)
        self._aside.update(ids)
        damaged.clear()

    def _without_processed(self, claimed: Slice) -> Sequence[Claimed] | None:
        """The claimed messages that the processed check doesn't know; None where it gives no answer, and they wait."""
        context = self._context
        if self._checker is None:
            return claimed.messages
        try:
            done = self._checker.processed([(one.message_id, one.message_key) for one in claimed.messages])
        except CheckFailed as error:
            self._give_back(claimed, [one.message_id for one in claimed.messages])
            context.progress(f"held: {error}", 0, None)
            return None
        if not done:
            return claimed.messages
        self._totals.suppressed += windows.suppress(
            context.ledger, context.lease, claimed.slice_id, sorted(done), context.now()
        )
        return [one for one in claimed.messages if one.message_id not in done]

    def _pace(self, rate: Rate, count: int, share: float) -> None:
        """Wait until ``count`` messages may go; each costs more where only a share of the consumers works."""
        wait = rate.wait(count, self._monotonic())
        if wait > 0:
            self._sleep(wait)
        rate.available(self._monotonic())
        rate.take(math.ceil(count / (share or 1)))

    def _count(self, marks: Sequence[Mark]) -> None:
        for one in marks:
            if one.status == "sent":
                self._totals.redelivered += 1
            elif one.status == "unknown":
                self._totals.unknown += 1
            elif one.status == "refused":
                self._totals.refused += 1
            else:
                self._totals.put_back += 1


def _published(
    finish: Finish, destination: str, messages: Sequence[Outgoing], released: AbstractSet[int]
) -> tuple[list[Mark], RedriveError | None]:
    """What became of a window: what is certain and what is not, as marks, and the trouble that should end the slice."""
    trouble: RedriveError | None = None
    try:
        results = finish()
    except (QueueMissing, PermissionRefused) as error:
        trouble = error
        results = [Publication("retry", None, str(error))] * len(messages)
    except BrokerError as error:
        # An adapter answers per message; when it can't, nothing is known of any of them.
        trouble = error
        results = [Publication("unknown", None, str(error))] * len(messages)
    if trouble is None and all(result.status in ("retry", "unknown") for result in results):
        # Nothing arrived for certain: one more window would only leave more in doubt.
        trouble = BrokerUnavailable(f"{destination}: {results[0].detail}")
    rows = [
        (
            message.message_id,
            message.attempt,
            result.status,
            result.broker_message_id,
            result.detail,
            bool(message.headers) and message.headers[-1][0].startswith("x-redrive"),  # tracked
            # Only a person's release can have another body, and the header that says so has not always room.
            body_hash(message.body) if message.message_id in released else None,
            message.delay_seconds,
        )
        for message, result in zip(messages, results, strict=True)
    ]
    return list(as_tuples(Mark, rows)), trouble
