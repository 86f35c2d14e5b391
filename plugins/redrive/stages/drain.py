"""Drain: broker -> staging. What is received goes into batches: see :mod:`redrive.stages.open_batch`.

A shard reads a source until the depth that it saw at the start is reached or the source is empty, so a message that
bounces back can't keep it running. Where the broker can't tell its depth exactly, the moment of the start takes its
place: the drain ends when a few receives in a row bring nothing from before it. Then it looks whether the source is
drained to its end: see :mod:`redrive.stages.completeness`.

Where messages go in order, a source is drained by one shard, so that what it gave out first has the lowest ids.

While a gate waits only for what may have come back, or messages in order only for what may lie before them, a run
reads on beyond its limit, so that neither waits for a backlog to be worked off.

A source that fails stops no other one: it is noted, and the run fails for it in the end.

The source whose messages expire soonest is drained first. When the limit is reached and what was received last would
expire before the next run may be over, the drain goes on beyond the limit until that is no longer so, and says it.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from redrive.brokers.base import Depth, ReadsAhead
from redrive.errors import BrokerError, PathTaken
from redrive.ledger.delivery import expiry as expiry_ledger
from redrive.ledger.delivery import gate_waits, observations, outcomes
from redrive.ledger.delivery.expiry import Expiry
from redrive.ledger.delivery.observations import Observation
from redrive.ledger.drain import first_looks, horizon, repeats
from redrive.message import FIRST_MOMENT, LAST_MOMENT, Micros, Received
from redrive.settings import Source
from redrive.stages.context import Context, instant, micros
from redrive.stages.failed_sources import Failures
from redrive.stages.open_batch import OpenBatch
from redrive.staging.odd_copies import as_far_as_possible

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

#: Messages asked for per receive; adapters split it as their broker needs.
RECEIVE_AT_ONCE = 1_000
#: Messages asked for per receive beyond the limit, and for a first look at a source of which nothing is known.
RESCUE_AT_ONCE = 100
LOOK_AT = 10
#: So many times its limit a run drains at most while a gate waits only for what may have come back into a source.
READ_ON = 100
#: The next run may be over so many times the longest of the last gaps between runs from now; never sooner than in
#: :data:`SOONEST`, and in :data:`UNKNOWN_GAP` where there were no two runs yet.
GAPS = 2
SOONEST = timedelta(hours=1)
UNKNOWN_GAP = timedelta(days=1)
#: Receives in a row without anything new to us that end a drain where the broker's depth can't be trusted to.
EMPTY_RECEIVES = 3
#: How long the last look at a source whose depth tells late waits: with SQS a poll that waits at all asks all servers.
LAST_LOOK = timedelta(seconds=1)
#: What a shard notes of a source, before the name of its queue: as far as it goes itself it is drained to its end; it
#: is, whatever other shards say; at a moment nothing was there to be received.
COMPLETE, PROVED, NOTHING_MORE = "complete:", "proved:", "nothing_more:"


def drain(context: Context, *, shard: int = 0, shards: int = 1, tries_left: bool = False) -> dict[str, Any]:
    """Drain every source of the route, the one that expires soonest first; returns what was staged and settled.

    With ``tries_left`` a failure that may pass is raised when all sources had their turn, and nothing is noted.
    """
    limit = context.route.drain.limit
    if context.selection.limit is not None:
        limit = min(limit, context.selection.limit)
    elif reads_on(context):
        context.progress("beyond the limit: a gate waits for what may have come back", 0, None)
        limit *= READ_ON
    totals: dict[str, Any] = {"drained": 0, "settled": 0, "batches": 0, "not_settled": 0, "rescued": 0}
    mine, sharing = _mine(context.route.sources, shard, shards, in_order=context.route.order_by is not None)
    remaining = math.ceil(limit / sharing)
    known, next_run = _expiries(context), _next_run_over(context)
    failures = Failures(context)
    for source in by_urgency(context.route.sources, known):
        if context.selection.sources and source.queue not in context.selection.sources:
            continue
        if source.queue not in mine:
            totals[COMPLETE + source.queue] = 1  # as far as this shard goes: it is up to the one that has it
            continue
        expiry = known[source.queue]
        # Of a source that was never looked at nobody knows how old its messages are.
        unseen = expiry.retention is not None and expiry.oldest_at is None
        if remaining <= 0 and not unseen and (expiry.at is None or expiry.at > next_run):
            continue
        one = _SourceDrain(context, source, shard, expiry, next_run)
        with failures.apart(source.queue):
            one.run(max(remaining, 0), look_at=LOOK_AT if unseen else RESCUE_AT_ONCE)
        remaining -= one.drained
        totals["rescued"] += one.rescued
        totals["drained"] += one.drained
        totals["settled"] += one.batch.settled
        totals["batches"] += one.batch.closed
        totals["not_settled"] += one.drained - one.batch.settled
        for found, name in ((one.complete, COMPLETE), (one.proved, PROVED), (one.nothing_more, NOTHING_MORE)):
            if found:
                totals[name + source.queue] = 1
    if tries_left:
        failures.raise_passing()
    return totals | failures.noted()


def reads_on(context: Context) -> bool:
    """Whether this run drains to the end of its sources, up to :data:`READ_ON` times its limit.

    Then a gate waits for nothing but that: the destination has worked past sends of its stage and their window is over,
    so that what failed again lies in a source, behind whatever else does. Reading on costs staging; not reading on
    would keep all that is held behind the gate until the backlog is worked off, which with a steady inflow is never.
    For all shards of a run the answer is the same.
    """
    lag = max(context.broker.capabilities_for(source.queue).depth_lag for source in context.route.sources)
    began = context.run.started_at
    with context.ledger.read() as connection:
        if gate_waits.for_what_came_back(connection, context.name, drained_from=began - lag):
            return True
        if context.route.order_by is None:
            return False
        to = horizon.drained_to(connection, context.name, [source.queue for source in context.route.sources])
        return gate_waits.for_their_turn(connection, context.name, drained_to=to, now=began)


def _mine(sources: Sequence[Source], shard: int, shards: int, *, in_order: bool) -> tuple[set[str], int]:
    """The sources that this shard drains, and how many shards share the limit.

    Where messages go in order, each source is drained by one shard. Brokers tell in milliseconds or seconds when a
    message was enqueued, so for many the order in which they came out of their source is all there is to tell theirs,
    and of two shards nobody knows which received first.
    """
    queues = [source.queue for source in sources]
    if not in_order:
        return set(queues), shards
    return set(queues[shard::shards]), min(shards, len(queues))


def by_urgency(sources: Sequence[Source], known: Mapping[str, Expiry]) -> list[Source]:
    """Sources in the order in which their messages expire; where that isn't known, those that keep them for the
    shortest time first, and those that keep them for ever last."""

    def expires(source: Source) -> tuple[bool, datetime, timedelta]:
        expiry = known[source.queue]
        at = expiry.at
        return at is None, at or datetime.max.replace(tzinfo=UTC), expiry.retention or timedelta.max

    return sorted(sources, key=expires)


def _expiries(context: Context) -> dict[str, Expiry]:
    """What is known of each source's expiry; retention as configured, else as the broker said before, else asked."""
    with context.ledger.read() as connection:
        known = expiry_ledger.of_sources(connection, context.name)
    found = {}
    for source in context.route.sources:
        before = known.get(source.queue, Expiry())
        retention = source.retention or before.retention
        if retention is None:
            try:
                retention = context.broker.describe(source.queue).retention
            except BrokerError:
                pass  # not everybody may ask: then nothing is known
        found[source.queue] = Expiry(retention, before.oldest_at)
    return found


def _next_run_over(context: Context) -> datetime:
    """By when the next run should be over, judged by how often the route ran."""
    with context.ledger.read() as connection:
        gap = expiry_ledger.longest_gap(connection, context.name)
    return context.now() + max(SOONEST, UNKNOWN_GAP if gap is None else GAPS * gap)


def _all_after(started: Micros, received: Sequence[Received]) -> bool:
    """All of these came into their queue after the drain had started."""
    entered = [letter.dead_lettered_at or letter.enqueued_at for letter, _ in received]
    return all(moment is not None and moment > started for moment in entered)


def _tells_times(one: Received) -> bool:
    """Its times are times, or not told."""
    entered, dead = one.letter.enqueued_at, one.letter.dead_lettered_at
    return (entered is None or (type(entered) is int and FIRST_MOMENT <= entered <= LAST_MOMENT)) and (
        dead is None or (type(dead) is int and FIRST_MOMENT <= dead <= LAST_MOMENT)
    )


class _SourceDrain:
    """The drain of one source by one shard."""

    def __init__(self, context: Context, source: Source, shard: int, expiry: Expiry, next_run: datetime) -> None:
        self._context = context
        self._expiry = expiry
        self._next_run = next_run
        self._last: Micros | None = None  # when the oldest message of the last receive was first enqueued
        self.rescued = 0
        self._source = source
        self._shard = shard
        self._wait = context.route.drain.wait
        longest = context.broker.capabilities_for(source.queue).max_lease
        self._lease = min(context.route.drain.lease, longest or timedelta.max)
        self.batch = OpenBatch(context, source, shard, self._lease)
        self._lag = context.broker.capabilities_for(source.queue).depth_lag
        self._reads_ahead = context.broker.capabilities_for(source.queue).reads_ahead
        self.drained = 0
        self.complete = self.proved = self.nothing_more = False

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
        self._note_look(depth)
        limit = max(limit, self._doubtful())
        goal = limit if snapshot is None else min(limit, snapshot)
        quiet = 0
        try:
            while (room := self._left(goal, snapshot, look_at)) > 0:
                received = self._receive(room, self._wait)
                now = context.now()
                if not received:
                    self.batch.close()
                else:
                    self._stage(received, now)
                    if self.drained > goal:
                        self.rescued = self.drained - goal
                        context.progress(f"{queue}: beyond the limit, or messages expire unread", self.rescued, None)
                    if self.batch.is_full(now):
                        self.batch.close()
                    context.progress(f"draining {queue}", self.drained, goal)
                if received and (snapshot is not None or not _all_after(started, received)):
                    quiet = 0
                    continue
                quiet += 1
                if snapshot is None:
                    if quiet >= EMPTY_RECEIVES:
                        self.complete = True  # nothing from before the start came any more: no broker says it better
                        break
                    continue
                left = context.broker.depth(queue)
                if left.visible == 0 or quiet >= EMPTY_RECEIVES:
                    self._note_end(depth, left, limit)
                    break
            else:
                if snapshot is not None:
                    self._note_end(depth, None, limit)
            self.batch.close()
            self._let_nothing_more_come()
        except BaseException as error:
            self.batch.give_up(ours=not isinstance(error, PathTaken))
            raise
        self._write_age(depth)
        self._note_expiry(started)

    def _receive(self, room: int, wait: timedelta) -> list[Received]:
        broker, queue = self._context.broker, self._source.queue
        limit = min(RECEIVE_AT_ONCE, room, self.batch.room())
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
        self.batch.add(received, now)
        self.drained += len(received)
        self._last = min((one.letter.enqueued_at or micros(now) for one in received), default=None)

    def _note_end(self, first: Depth, left: Depth | None, limit: int) -> None:
        """Whether the source, which began with ``first``, is drained to its end; ``left`` was seen after receives had
        brought nothing."""
        if left is not None and left.total is not None and left.total == (left.delayed or 0):
            self.complete = True
            self.proved = first.as_of is None  # parts of different age may overlook what another shard holds
        elif not self._is_late(first):
            self.complete = self.proved = self._is_counted_out(first) or self._nothing_is_left(limit)
        elif left is not None:
            self.nothing_more = self._has_nothing_more(limit)
        else:
            drained_all = first.total is not None and self.drained >= first.total
            self.complete = self.nothing_more = drained_all and self._has_nothing_more(limit)

    def _is_late(self, depth: Depth) -> bool:
        return bool(self._lag) or depth.as_of is not None

    def _note_look(self, depth: Depth) -> None:
        """Where later looks can't tell what this run's shards hold from what others do, the first one has to."""
        context = self._context
        exact = context.broker.capabilities_for(self._source.queue).knows_empty
        if not exact or depth.total is None or not self._is_late(depth):
            return
        first_looks.note(
            context.ledger,
            context.lease,
            self._source.queue,
            shard=self._shard,
            total=depth.total,
            in_flight=depth.in_flight or 0,
            as_of=None if depth.as_of is None else instant(depth.as_of),
            now=context.now(),
        )

    def _has_nothing_more(self, limit: int) -> bool:
        """All that was counted has come: whether receives say too that this was all, where the count may be late.

        What comes now is staged like the rest. Where something comes each time, the last receive decides: if it
        brought fewer than it was asked for, no backlog is left, and a source that is never empty can be complete too.
        """
        if not self._lag:
            return True
        matters = self._completeness_matters()
        if self.drained and not matters:
            return True
        wait = min(self._wait, LAST_LOOK) if matters else timedelta(0)
        enough = EMPTY_RECEIVES if matters and not wait else 1  # one that doesn't wait may overlook something
        brought, asked, quiet = 0, 1, 0
        # What came in since the count is no more than what was counted, or the source fills as fast as it is drained.
        for _ in range(max(EMPTY_RECEIVES, self.drained // RECEIVE_AT_ONCE)):
            asked = min(RECEIVE_AT_ONCE, limit - self.drained, self.batch.room())
            if asked <= 0:
                return False
            brought = self._take(asked, wait)
            quiet = 0 if brought else quiet + 1
            if quiet >= enough:
                return True
        return brought < asked

    def _is_counted_out(self, first: Depth) -> bool:
        """Nothing is decided by it, and as much came as was there, with nothing in flight before and after: so nobody
        has to receive what came in since. Only where what came first is given first: elsewhere what came in since may
        have been given, and what was there is left."""
        in_order = self._context.broker.capabilities_for(self._source.queue).in_order
        if not in_order or first.total is None or first.in_flight or self.drained < first.total:
            return False
        if self._completeness_matters():
            return False
        self.batch.close()
        return self._context.broker.depth(self._source.queue).in_flight == 0

    def _nothing_is_left(self, limit: int) -> bool:
        """Where the broker counts now: whether all that lies in the source has been received, and nobody holds any.

        A count at the start can't say so: other shards hold a part of it, and what comes in meanwhile takes the place
        of what somebody hides. So the source is counted when this shard holds nothing itself. When nothing is in flight
        then, all of it can be received, and what comes is staged like the rest. When as much came as was counted,
        nothing from before is left there, whatever came in since. While another shard or anybody else holds a message,
        this shard proves nothing; the last shard to end finds none held by the others.
        """
        broker, queue = self._context.broker, self._source.queue
        for _ in range(EMPTY_RECEIVES):
            self.batch.close()
            left = broker.depth(queue)
            if left.total is None:
                return False
            there = left.total - (left.delayed or 0)
            if there == 0:
                return True
            if left.in_flight or there > limit - self.drained:
                return False
            short = there
            while short > 0 and (brought := self._take(min(RECEIVE_AT_ONCE, short, self.batch.room()), timedelta(0))):
                short -= brought
            if short > 0:
                return False
            if there <= RECEIVE_AT_ONCE:  # more took a while, in which somebody may have hidden some
                return True
        return False

    def _take(self, limit: int, wait: timedelta) -> int:
        """Receive up to ``limit`` and stage what comes; returns how many came."""
        received, now = self._receive(limit, wait), self._context.now()
        if received:
            self._stage(received, now)
            if self.batch.is_full(now):
                self.batch.close()
        return len(received)

    def _completeness_matters(self) -> bool:
        """Whether anything is decided by this source's having been empty: if not, nobody is kept waiting for a proof.

        What is sent from now on is judged by later drains.
        """
        context = self._context
        if context.route.order_by is not None:
            return True
        with context.ledger.read() as connection:
            return outcomes.awaited(connection, context.name, context.run.started_at) or bool(
                self._in_doubt(connection)
            )

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
        oldest = started if self.complete else self._last
        known = Expiry(self._expiry.retention, None if oldest is None else instant(oldest))
        expiry_ledger.note(
            self._context.ledger,
            self._context.lease,
            self._source.queue,
            known,
            rescued=self.rescued,
            expiring_at=self._next_run,
            now=self._context.now(),
        )

    def _in_doubt(self, connection: "Connection") -> dict[int, tuple[str, int]]:
        context = self._context
        leased_for = context.route.drain.lease
        return repeats.doubtful(context.ledger, connection, context.name, self._source.queue, leased_for=leased_for)

    def _doubtful(self) -> int:
        """Copies of batches that may come again, all of them first: what they are is decided on the whole of them."""
        context = self._context
        if context.broker.capabilities_for(self._source.queue).stable_identity:
            return 0
        with context.ledger.read() as connection:
            found = self._in_doubt(connection)
        return sum(copies for _, copies in found.values())

    def _write_age(self, depth: Depth) -> None:
        """The true age of the oldest message, from the copies themselves: it doesn't reset and skips nothing."""
        if self.batch.oldest is None:
            return
        context = self._context
        now = context.now()
        age = max(0.0, (micros(now) - self.batch.oldest) / 1_000_000)
        coverage: float | None = 1.0
        if depth.total:
            coverage = min(1.0, self.drained / depth.total)
        elif depth.total is None and not self.complete:
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
                    oldest_enqueued_at=instant(self.batch.oldest),
                    oldest_seen_at=now,
                )
            ],
            now,
        )
