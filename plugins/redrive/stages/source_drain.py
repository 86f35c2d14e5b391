"""The drain of one source by one shard: receive, stage, settle, until nothing of it is wanted any more.

Where the broker can't tell its depth exactly, the moment of the start takes its place: the drain ends when a few
receives in a row bring nothing from before it. When the limit is reached and what was received last would expire before
the next run may be over, the drain goes on beyond the limit until that is no longer so, and says it.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import cast

from redrive.brokers.base import Depth, ReadsAhead
from redrive.errors import BrokerError, PathTaken
from redrive.ledger.delivery import expiry as expiry_ledger
from redrive.ledger.delivery import observations
from redrive.ledger.delivery.expiry import Expiry
from redrive.ledger.delivery.observations import Observation
from redrive.message import FIRST_MOMENT, LAST_MOMENT, Micros, Received
from redrive.settings import Source
from redrive.stages import source_end
from redrive.stages.context import Context, instant, micros
from redrive.stages.open_batch import OpenBatch
from redrive.stages.receive_sizes import ReceiveSizes, first
from redrive.stages.source_end import SourceEnd
from redrive.staging.odd_copies import as_far_as_possible

#: Messages asked for per receive beyond the limit.
RESCUE_AT_ONCE = 100


class SourceDrain:
    """The drain of one source by one shard."""

    def __init__(self, context: Context, source: Source, shard: int, expiry: Expiry, next_run: datetime) -> None:
        self._context = context
        self._expiry = expiry
        self._next_run = next_run
        self._last: Micros | None = None  # when the oldest message of the last receive was first enqueued
        self.rescued = 0
        self._source = source
        self._wait = context.route.drain.wait
        capabilities = context.broker.capabilities_for(source.queue)
        self._lease = capabilities.lease_for(context.route.drain.lease)
        self.batch = OpenBatch(context, source, shard, self._lease)
        self._reads_ahead = capabilities.reads_ahead
        self._sizes = ReceiveSizes(
            context.route.drain.flush_bytes,
            first(context.route.drain.flush_bytes, capabilities.max_message_bytes)
            if not self._reads_ahead
            else source_end.RECEIVE_AT_ONCE,  # what comes ahead has to fit into memory too
        )
        self.drained = 0
        self.end = SourceEnd(context, source, shard, self)

    def run(self, limit: int, *, look_at: int = RESCUE_AT_ONCE) -> None:
        """Drain up to ``limit``, and on while messages would be lost before the next run.

        With a limit of 0, ``look_at`` messages are taken to see whether there are such.
        """
        context, queue = self._context, self._source.queue
        exact = context.broker.capabilities_for(queue).knows_empty
        started = micros(context.now())
        depth = context.broker.depth(queue)
        # What is invisible now may become visible while we drain: in flight at a dead run, delayed. Each shard takes
        # what it sees and not its share of it: shards that start one after another would leave messages behind.
        snapshot = depth.total if exact else None
        self.end.note_look(depth)
        limit = max(limit, self._doubtful())
        goal = limit if snapshot is None else min(limit, snapshot)
        quiet = 0
        try:
            while (room := self._left(goal, snapshot, look_at)) > 0:
                received = self._receive(room, self._wait)
                now = context.now()
                if not received:
                    self.close_batch()
                else:
                    self._stage(received, now)
                    if self.drained > goal:
                        self.rescued = self.drained - goal
                        context.progress(f"{queue}: beyond the limit, or messages expire unread", self.rescued, None)
                    if self.batch.is_full(now):
                        self.close_batch()
                    context.progress(f"draining {queue}", self.drained, goal)
                if received and (snapshot is not None or not _all_after(started, micros(now), received)):
                    quiet = 0
                    continue
                quiet += 1
                if snapshot is None:
                    if quiet >= source_end.EMPTY_RECEIVES:
                        self.end.complete = (
                            True  # nothing from before the start came any more: no broker says it better
                        )
                        break
                    continue
                left = context.broker.depth(queue)
                if left.visible == 0 or quiet >= source_end.EMPTY_RECEIVES:
                    self.end.note(depth, left, limit)
                    break
            else:
                if snapshot is not None:
                    self.end.note(depth, None, limit)
            self.close_batch()
            self._let_nothing_more_come()
        except BaseException as error:
            self.batch.give_up(ours=not isinstance(error, PathTaken))
            raise
        self.end.note_end()
        self._write_age(depth, started)
        self._note_expiry(started)

    def _receive(self, room: int, wait: timedelta) -> list[Received]:
        broker, queue = self._context.broker, self._source.queue
        limit = min(source_end.RECEIVE_AT_ONCE, room, self.room())
        if self._reads_ahead:
            reading = cast("ReadsAhead", broker)
            received = reading.receive_ahead(queue, limit=limit, ahead=room - limit, wait=wait, lease=self._lease)
        else:
            received = broker.receive(queue, limit=limit, wait=wait, lease=self._lease)
        if all(map(_tells_times, received)):
            return received
        return [one if _tells_times(one) else one._replace(letter=as_far_as_possible(one.letter)) for one in received]

    def _let_nothing_more_come(self) -> None:
        if self._reads_ahead:
            with suppress(BrokerError):  # then what came goes back by itself
                self._context.broker.release(self._source.queue, ())

    def _stage(self, received: Sequence[Received], now: datetime) -> None:
        size = self.batch.add(received, now)
        self._sizes.came(len(received), size)
        self.drained += len(received)
        # None was enqueued later than now, whatever clock says so.
        latest = micros(now)
        self._last = min([min(letter.enqueued_at or latest, latest) for letter, _ in received], default=None)

    def take(self, limit: int, wait: timedelta) -> int:
        """See :class:`~redrive.stages.source_end.Receives`."""
        received, now = self._receive(limit, wait), self._context.now()
        if received:
            self._stage(received, now)
            if self.batch.is_full(now):
                self.close_batch()
        return len(received)

    def room(self) -> int:
        """See :class:`~redrive.stages.source_end.Receives`."""
        return min(self.batch.room(), self._sizes.most(self.batch.weight))

    def close_batch(self) -> None:
        """See :class:`~redrive.stages.source_end.Receives`."""
        self.batch.close()

    def _left(self, goal: int, snapshot: int | None, look_at: int) -> int:
        """How many more to ask for; beyond the limit while what came last would expire before the next run."""
        if self.drained < goal:
            return goal - self.drained
        left = look_at if self._last is None else RESCUE_AT_ONCE
        if snapshot is not None:
            left = min(left, snapshot - self.drained)
        retention = self._expiry.retention
        if retention is None:
            return 0
        # Queues give out the oldest first, by and large: when these are safe, so are the ones behind.
        safe = self._last is not None and instant(self._last) + retention > self._next_run
        return 0 if safe or (self._last is None and goal > 0) else left

    def _note_expiry(self, started: Micros) -> None:
        """What is left was first enqueued after what was received last, or where nothing is left, after now."""
        oldest = started if self.end.complete else self._last
        known = Expiry(self._expiry.retention, None if oldest is None else instant(oldest))
        expiry_ledger.note(
            self._context.ledger,
            self._context.lease,
            self._source.queue,
            known,
            rescued=self.rescued,
            expiring_at=self._next_run,
            began_at=instant(started),
            now=self._context.now(),
        )

    def _doubtful(self) -> int:
        """Copies of batches that may come again, all of them first: what they are is decided on the whole of them."""
        context = self._context
        if context.broker.capabilities_for(self._source.queue).stable_identity:
            return 0
        with context.ledger.read() as connection:
            found = self.end.in_doubt(connection)
        return sum(batch.copies for batch in found.values())

    def _write_age(self, depth: Depth, started: Micros) -> None:
        """The true age of the oldest message, from the copies themselves: it doesn't reset and skips nothing. It is
        written beside the depth that was seen as the drain ``started``, and as of then: what it took is there no more,
        and nobody counted what is."""
        if self.batch.oldest is None:
            return
        context = self._context
        now = context.now()
        seen = started if depth.as_of is None else depth.as_of
        age = max(0.0, (seen - self.batch.oldest) / 1_000_000)
        coverage: float | None = 1.0
        if depth.total:
            coverage = min(1.0, self.drained / depth.total)
        elif depth.total is None and not self.end.complete:
            coverage = None
        observations.observe(
            context.ledger,
            context.lease,
            [
                Observation(
                    self._source.queue,
                    "source",
                    depth.visible,
                    depth.in_flight,
                    depth.delayed,
                    depth.consumers,
                    age,
                    "ledger",
                    age,
                    "ledger",
                    coverage,
                    observed_at=instant(seen),
                    told=depth.by_its_clock,
                    oldest_enqueued_at=instant(self.batch.oldest),
                    oldest_seen_at=now,
                )
            ],
            now,
        )


#: So far ahead of ours the clock of a broker may be; further ahead are those of producers.
_CLOCKS_APART: Micros = 5_000_000


def _all_after(started: Micros, now: Micros, received: Sequence[Received]) -> bool:
    """All of these came into their queue after the drain had started. One that says that it is yet to come has its time
    from a clock that is ahead, and may have been there."""
    entered = [letter.dead_lettered_at or letter.enqueued_at for letter, _ in received]
    return all(moment is not None and started < moment <= now + _CLOCKS_APART for moment in entered)


def _tells_times(one: Received) -> bool:
    """Its times are times, or not told."""
    entered, dead = one.letter.enqueued_at, one.letter.dead_lettered_at
    return (entered is None or (type(entered) is int and FIRST_MOMENT <= entered <= LAST_MOMENT)) and (
        dead is None or (type(dead) is int and FIRST_MOMENT <= dead <= LAST_MOMENT)
    )
