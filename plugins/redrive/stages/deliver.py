"""Deliver: claimed, then sent, then confirmed, then marked; slice by slice, under a budget.

Before each slice the budget is measured anew: the rate, the destination's depth, a pause by people; less where some of
the destination's consumers are stuck. Of a slice only one confirm window at a time is in the broker's hands or not yet
marked, so a crash leaves at most that window unknown. Where the broker pipelines, the window goes in two halves: one
is with the broker while the other is marked, and the next half is read and announced.
"""

import itertools
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple, cast

from redrive.brokers.base import Capabilities, Depth, Pipelines, Publication
from redrive.classification.causes import Cause
from redrive.corrections import EDITED_HEADER, Correction, changed, read_changes
from redrive.errors import (
    BrokerError,
    BrokerUnavailable,
    CheckFailed,
    PermissionRefused,
    QueueMissing,
    RedriveError,
    StagingError,
)
from redrive.ledger import leases
from redrive.ledger.delivery import breakers, claims, in_flight, lanes, outcomes, recovery, windows
from redrive.ledger.delivery.claims import Claimed, NoRoom, Room, Slice, Terms, Wanted
from redrive.ledger.delivery.lanes import Lane, NativeDelay
from redrive.ledger.delivery.ordering import InOrder
from redrive.ledger.delivery.windows import Mark
from redrive.ledger.drain import batches
from redrive.ledger.engine import parse_instant
from redrive.ledger.predicates import TO_RESEND, due
from redrive.ledger.review import escalations
from redrive.ledger.selecting import Selection
from redrive.message import (
    MAX_ROWS,
    ROW_BITS,
    DeadLetter,
    Header,
    Micros,
    Outgoing,
    batch_and_row,
    body_hash,
    clean_headers,
    tracking_headers,
)
from redrive.policy.next_step import trusted
from redrive.policy.pacing import TokenBucket
from redrive.stages import aiming, attributes, consumers
from redrive.stages.beside import Beside, in_a_thread
from redrive.stages.checking import Asked, open_check
from redrive.stages.context import FILE_DAMAGED, Context, instant, micros, not_sent_on

log = logging.getLogger(__name__)

#: Causes that go out at a tenth of the route's rate unless the route says otherwise: whoever was throttled, or
#: too slow for its lease, is not to be pushed.
SLOW_CAUSES = (Cause.THROTTLED, Cause.LEASE_EXPIRED)
SLOW_SHARE = 0.1
#: With a full destination: how often its depth is looked at again, and when a task gives up waiting.
LOOK_AGAIN = 1.0
GIVE_UP = 30.0
LEAST_WAIT = 0.01
#: How long a claimed slice belongs to its task; nothing of it is sent after that.
CLAIM_FOR = timedelta(minutes=5)
ZERO = timedelta(0)
#: What waits out a delay is handed to a broker that keeps delays this long before it is due, and no longer: it can't be
#: called back any more, by no breaker and no pause.
AHEAD = timedelta(minutes=15)
#: Has a window's results: see :class:`redrive.brokers.base.Pipelines`.
Finish = Callable[[], list[Publication]]
#: SQL: what may be claimed.
_DUE = due(in_id_order=True)


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


def _whole_batches(size: int, batch: int) -> int:
    """``size`` without the part that would cost a publishing request of its own for less than a batch."""
    return size - size % batch if size > batch else size


@dataclass(frozen=True, slots=True)
class _Band:
    """The budget of causes that share a rate: every send takes from each of its buckets, the route's is one."""

    buckets: tuple[TokenBucket, ...]
    max_in_flight: int
    starts_at_one: bool = False  # where nobody tells a depth: one in flight, and more as they prove themselves

    @property
    def capacity(self) -> int:
        """Whole tokens that can be there at once."""
        return min(one.capacity for one in self.buckets)

    def available(self, now: float) -> int:
        """Whole tokens that may be taken at ``now``."""
        return min(one.available(now) for one in self.buckets)

    def wait(self, count: int, now: float) -> float:
        """Seconds from ``now`` until ``count`` tokens, or the capacity, are there."""
        return max(one.wait(count, now) for one in self.buckets)

    def take(self, count: int) -> None:
        """Use ``count`` tokens of each."""
        for one in self.buckets:
            one.take(count)


@dataclass(slots=True)
class _UnderWay:
    """A slice that is being sent."""

    claimed: Slice
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


class _Unsettled(NamedTuple):
    """Sends without a known outcome, as a task found them, and by cause what more may go."""

    to: in_flight.SendTarget
    sent: dict[int, int]  # of slices that were open: how much of them
    sends: int
    rooms: dict[str, int]


def deliver(
    context: Context,
    *,
    shard: int = 0,
    shards: int = 1,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    beside: Beside = in_a_thread,
) -> dict[str, int]:
    """Send what is due, as fast as the budget allows, for at most the route's ``deliver.run_for``.

    ``beside`` has the next window's payloads read while the broker confirms this one.
    """
    # An earlier try of this very task may have died: its claims are ours to recover.
    recovery.recover(context.ledger, context.lease, context.now(), shard=shard)
    aiming.aim(context)
    one = _Delivery(context, shard, shards, monotonic, sleep, beside)
    try:
        one.run()
    except BaseException:
        # As after a crash, only sooner: what was not handed to the broker waits again, the rest is unknown.
        try:
            recovery.recover(context.ledger, context.lease, context.now(), shard=shard)
        except RedriveError:
            pass  # the run was replaced or the ledger is away: the next run recovers the slice
        raise
    finally:
        one.close()
    if one.wrong is not None:
        raise one.wrong
    totals = one.totals
    return {
        "redelivered": totals.redelivered,
        "unknown": totals.unknown,
        "suppressed": totals.suppressed,
        "refused": totals.refused,
        "put_back": totals.put_back,
        "slices": totals.slices,
        **({"unreadable": totals.unreadable} if totals.unreadable else {}),
    }


class _Delivery:
    def __init__(
        self,
        context: Context,
        shard: int,
        shards: int,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        beside: Beside,
    ) -> None:
        self._context = context
        self._shard = shard
        self._shards = shards
        self._monotonic = monotonic
        self._sleep = sleep
        self._beside = beside
        self._until = monotonic() + context.route.deliver.run_for.total_seconds()
        self._limit = context.selection.limit
        self._bands = _bands(context, monotonic(), shards)
        self._apart = tuple(cause for cause in self._bands if cause is not None)
        self._checker = open_check(context)
        self._drained_to = self._watermark() if context.route.order_by is not None else None
        self._blocked: set[str] = set()  # destinations that can't take anything in this task
        self._shares: dict[str, float] = {}  # per destination: the share of its consumers that work
        self._sent: Counter[str] = Counter()  # by destination
        self._found: dict[str, _Unsettled] = {}  # by destination
        self.wrong: QueueMissing | None = None  # a configured destination that is missing: told when the rest is sent
        self._aside: set[int] = set()  # messages whose file is damaged
        self.totals = Totals()

    def close(self) -> None:
        if self._checker is not None:
            self._checker.close()

    def _watermark(self) -> datetime | None:
        """Up to when every source was drained to its end: of what died later, an earlier one may not be staged yet."""
        context = self._context
        with context.ledger.read() as connection:
            drained_to = outcomes.drained_to(connection, context.name, [one.queue for one in context.route.sources])
            behind = lanes.not_drained_past(connection, context.name, drained_to, context.now())
        if behind:
            since = f"{drained_to:%Y-%m-%d %H:%M:%S} UTC" if drained_to else "never"
            context.progress(
                f"held: messages that died after all sources were drained to their end ({since}); "
                "those that were sent first may still lie there",
                behind,
                None,
            )
        return drained_to

    def run(self) -> None:
        waited = 0.0
        while not self._over():
            with self._context.ledger.read() as connection:
                due = lanes.of_resends(connection, self._context.name)
                due += lanes.of_due(
                    connection,
                    self._context.name,
                    self._context.now(),
                    self._apart,
                    ahead=self._ahead(self._context.broker.capabilities)
                    if self._context.route.backoff.native
                    else None,
                )
            moved, wait = self._work_off(lane for lane in due if lane.destination not in self._blocked)
            if moved:
                waited = 0.0
            elif wait is None or waited >= GIVE_UP:
                # What is due but not to be claimed (another selection, an earlier message of its key) is not waited
                # for; nor is, for ever, a destination that stays full.
                return
            else:
                self._sleep(wait)
                waited += wait

    def _work_off(self, due: Iterable[Lane]) -> tuple[int, float | None]:
        """A slice of each lane in turn until nothing is left or nothing may go.

        Returns how many messages were handled, and in how many seconds it makes sense to look again (None: never).
        """
        moved = 0
        reached = {(lane.destination, lane.cause): -1 for lane in due}
        while reached:
            waits, progress = [], False
            for destination, cause in list(reached):
                if destination in self._blocked:
                    del reached[destination, cause]
                    continue
                if self._over():  # a pause counts from the next slice on, whatever its lane
                    return moved, None
                claimed, wait = self._slice(destination, cause, reached[destination, cause])
                if claimed is not None:
                    moved += len(claimed.messages)
                    reached[destination, cause] = claimed.messages[-1].message_id
                    progress = True
                elif wait is not None:
                    waits.append(wait)
                else:
                    del reached[destination, cause]
            if not progress:
                return moved, max(min(*waits, LOOK_AGAIN), LEAST_WAIT) if waits else None
        return moved, None

    def _over(self) -> bool:
        """Whether this task's time or the run's limit is used up, or people paused the route."""
        if self._monotonic() >= self._until:
            return True
        with self._context.ledger.read() as connection:
            if claims.left(connection, self._context.lease, self._limit) == 0:
                return True
            return leases.pause_of(connection, self._context.name) is not None

    def _slice(self, destination: str, cause: str | None, after: int) -> tuple[Slice | None, float | None]:
        """Claim and send one slice of a lane; without one, in how many seconds to look again (None: never)."""
        context, band = self._context, self._bands[cause]
        if self._stopped(destination):
            return None, None
        size = context.route.deliver.slice
        if self._limit is not None:
            size = min(size, self._limit)
        # Whole windows, not crumbs: each slice asks the broker for the depth and ends with a part of a batch.
        now, capacity = self._monotonic(), band.capacity
        least = min(size, capacity, max(context.route.deliver.confirm_window, capacity // 2))
        ready = band.available(now)
        if ready < least:
            return None, band.wait(least, now)
        size = min(size, ready)
        seen = self._seen()
        try:
            depth = context.broker.depth(destination)
            objection = self._fan_out_objection(destination)
        except QueueMissing:
            if wrong := aiming.missing(context, destination):
                self._blocked.add(destination)
                self.wrong = self.wrong or wrong
                return None, None
            objection = f"the destination {destination!r} does not exist"
        if objection is not None:
            self._escalate_all(destination, objection)
            return None, None
        room = int(band.max_in_flight * self._share(destination))
        if room == 0 and self._shares[destination] == 0:
            self._blocked.add(destination)  # the next observation may see them well
            context.progress(f"held: every consumer of {destination} is stuck", 0, None)
            return None, None
        if depth.visible is not None and depth.total is None:
            # Nobody sees what consumers hold of what the others sent: each task has its own part of the room.
            room = room // self._shards + (self._shard < room % self._shards)
        free = room - self._in_flight(destination, depth)
        least = max(1, room // 10)
        if free < min(size, least):
            return None, self._full(destination, depth)
        size = _whole_batches(min(size, free), context.broker.capabilities.publish_batch)
        if depth.as_of is not None:
            seen = self._seen(instant(depth.as_of))
        rooms = self._rooms(destination, cause, depth, Room(free, least, *seen))
        try:
            claimed = self._claim(destination, cause, size, after, rooms)
        except NoRoom:
            return None, self._full(destination, depth)
        if claimed is None:
            return None, None
        self.totals.slices += 1
        before, began = replace(self.totals), time.monotonic()
        self._send_slice(claimed, band)
        log.info(
            "slice %d to %s: %d messages, %d sent, %d unknown, %d refused, %d put back, %d suppressed in %.2f s",
            claimed.slice_id,
            destination,
            len(claimed.messages),
            self.totals.redelivered - before.redelivered,
            self.totals.unknown - before.unknown,
            self.totals.refused - before.refused,
            self.totals.put_back - before.put_back,
            self.totals.suppressed - before.suppressed,
            time.monotonic() - began,
        )
        context.progress(f"redelivering to {destination}", self.totals.redelivered, self._limit)
        return claimed, 0.0

    def _seen(self, as_of: datetime | None = None) -> tuple[int, dict[int, int]]:
        with self._context.ledger.read() as connection:
            return claims.seen(connection, self._context.name, as_of)

    def _stopped(self, destination: str) -> bool:
        """Whether the destination's breaker lets nothing through; what it lets through is seen to by the claim."""
        with self._context.ledger.read() as connection:
            stopped = breakers.quota(connection, self._context.name, destination) == 0
        if stopped:
            self._blocked.add(destination)
            self._context.progress(f"held: the breaker of {destination} is open", 0, None)
        return stopped

    def _in_flight(self, destination: str, depth: Depth) -> int:
        """What the destination still has to work off: what the broker tells, and what it keeps for it elsewhere.

        Of a destination that tells nothing, all counts as still there that was sent without a known outcome when this
        task began, by whichever run; what is claimed from then on takes of the room. Where only is told what lies
        ready, this task's own sends may be with consumers.
        """
        if depth.visible is None:
            return self._unsettled(destination).sends
        if depth.total is None:
            return max(depth.visible, self._sent[destination])
        unseen = 0
        if self._context.route.backoff.native:  # what the broker keeps somewhere else comes all the same
            with self._context.ledger.read() as connection:
                kept = lanes.kept_by_broker(connection, self._context.name, destination, self._context.now())
            unseen = max(0, kept - (depth.delayed or 0))
        return depth.total + unseen

    def _unsettled(self, destination: str) -> "_Unsettled":
        """What was sent to a destination that tells no depth, and has no known outcome, as this task found it first."""
        if destination not in self._found:
            context = self._context
            with context.ledger.read() as connection:
                newest, sent = claims.seen(connection, context.name)
                to = in_flight.SendTarget(context.name, destination, newest)
                sends = in_flight.sends(connection, to, context.now(), most=context.route.rate.max_in_flight)
            self._found[destination] = _Unsettled(to, sent, sends, {})
        return self._found[destination]

    def _rooms(self, destination: str, cause: str | None, depth: Depth, seen: Room) -> list[Room]:
        """What all tasks' claims may take: of what the depth showed, or where there is none of what the ledger knew."""
        if depth.total is not None:
            return [seen]
        if depth.visible is not None:
            return []
        found = self._unsettled(destination)
        rooms = [Room(seen.free, seen.least, found.to.newest, found.sent)]
        band = self._bands[cause]
        if cause is not None and band.starts_at_one:
            if cause not in found.rooms:
                with self._context.ledger.read() as connection:
                    found.rooms[cause] = in_flight.room_of_cause(
                        connection, found.to, cause, self._context.now(), most=band.max_in_flight
                    )
            rooms.append(Room(found.rooms[cause], 1, found.to.newest, found.sent, cause))
        return rooms

    def _full(self, destination: str, depth: Depth) -> float | None:
        """In how many seconds to look again at a destination that is full; None: no outcome will come in this task."""
        if depth.visible is None:
            name = self._context.name
            self._context.progress(
                f"held: {destination} tells no depth, and as many sends as may be in flight have no known outcome;"
                f" when it has worked, say so: `redrive release {name} --destination {destination}`",
                0,
                None,
            )
        return LOOK_AGAIN if depth.total is not None else None

    def _share(self, destination: str) -> float:
        """The share of the destination's consumers that work, as the run's observation saw it."""
        if destination not in self._shares:
            self._shares[destination] = consumers.healthy_share(self._context, destination)
        return self._shares[destination]

    def _fan_out_objection(self, destination: str) -> str | None:
        """Why nothing may be sent to a destination of which not only the subscriber that failed reads."""
        broker = self._context.broker
        if broker.capabilities_for(destination).single_target:
            return None
        try:
            readers = broker.describe(destination).subscribers
        except PermissionRefused:
            readers = None
        if readers == 0:
            return f"{destination} has no subscription: what is sent there is lost"
        if readers == 1 or self._context.route.fan_out == "allow":
            return None
        several = f"{destination} has {readers} subscriptions" if readers else f"who reads {destination} is not known"
        return f"{several}: all of them would get the message, and fan_out is refuse"

    def _claim(self, destination: str, cause: str | None, size: int, after: int, rooms: Sequence[Room]) -> Slice | None:
        context, now = self._context, self._context.now()
        capabilities = context.broker.capabilities_for(destination)
        wanted = Wanted(
            destination,
            causes=() if cause is None else (cause,),
            except_causes=self._apart if cause is None else (),
            after=after,
            ahead=self._ahead(capabilities),
            in_order=None if context.route.order_by is None else InOrder(self._drained_to),
        )
        terms = Terms(size, CLAIM_FOR, self._shard, rooms)
        if cause is None and after < 0:
            for selection in self._selections(destination, after, TO_RESEND):
                again = claims.claim_resends(
                    context.ledger,
                    context.lease,
                    replace(wanted, selection=selection),
                    terms,
                    now,
                    dedupes_for=trusted(capabilities.native_dedupe),
                )
                if again is not None:
                    return again
        for selection in self._selections(destination, after, _DUE):
            claimed = claims.claim(context.ledger, context.lease, replace(wanted, selection=selection), terms, now)
            if claimed is not None:
                return claimed
        return None

    def _ahead(self, capabilities: Capabilities) -> NativeDelay | None:
        """How early messages may go to a broker that keeps them; None where it can't, or isn't asked to.

        Not where messages go in order: what is delayed at the broker would be overtaken.
        """
        route, longest, now = self._context.route, capabilities.native_delay, self._context.now()
        if not route.backoff.native or longest is None or route.order_by is not None:
            return None
        check = route.processed_check
        return NativeDelay(now + min(longest, AHEAD), now - (check.settle_after if check else ZERO))

    def _selections(self, destination: str, after: int, where: str) -> Iterable[Selection]:
        """What the run is limited to; with attributes page by page what carries them."""
        context = self._context
        if not context.selection.attributes:
            return [context.selection]
        return attributes.parts(
            context.ledger,
            context.staging,
            context.name,
            context.selection,
            where=f"destination = :destination and {where}",
            values={
                "destination": destination,
                "now": context.now() + (AHEAD if context.route.backoff.native else ZERO),
            },
            after=after,
        )

    def _send_slice(self, claimed: Slice, band: _Band) -> None:
        context, deliver = self._context, self._context.route.deliver
        todo = self._without_processed(claimed)
        if not todo:
            windows.close(context.ledger, context.lease, claimed.slice_id, context.now())
            return
        damaged: list[Claimed] = []
        one = _UnderWay(
            claimed,
            [each.message_id for each in todo],
            {each.message_id for each in todo if each.mode == "release"},
            _outgoing(context, todo, claimed, damaged),
            damaged,
        )
        if deliver.confirm_window > 1 and context.broker.capabilities_for(claimed.destination).pipelines:
            one.parts = 2
        # What is announced has its payloads at hand: what can't be read never was in the broker's hands.
        one.announced.extend(part for _ in range(one.parts) if (part := self._next_part(one)))
        self._set_aside(one.damaged, claimed)
        if not one.announced:
            windows.close(context.ledger, context.lease, claimed.slice_id, context.now())
            return
        one.mark = one.announced[-1][-1].message_id
        windows.raise_mark(context.ledger, context.lease, claimed.slice_id, one.mark, context.now())
        while one.announced or one.on_the_wire:
            while one.announced:
                self._begin(one, band)
            if one.on_the_wire:
                self._finish(one)
        if isinstance(one.trouble, QueueMissing | PermissionRefused | StagingError):
            raise one.trouble
        if one.stopped:
            windows.close(context.ledger, context.lease, claimed.slice_id, context.now())

    def _next_part(self, one: "_UnderWay") -> list[Outgoing]:
        return list(itertools.islice(one.outgoing, self._context.route.deliver.confirm_window // one.parts))

    def _begin(self, one: "_UnderWay", band: _Band) -> None:
        """Send what was announced first when its turn comes, unless it is too late for it and all behind it."""
        context, messages, to = self._context, one.announced.popleft(), one.claimed.destination
        self._pace(band, len(messages), self._share(to))
        if one.claimed.repeat_until is not None and context.now() >= one.claimed.repeat_until:
            one.announced.clear()
            one.stopped = True
            self._give_back(one.claimed, one.ids[one.ids.index(messages[0].message_id) :])
        elif one.parts > 1:
            one.on_the_wire.append((messages, cast("Pipelines", context.broker).begin(to, messages)))
        else:
            one.on_the_wire.append((messages, lambda: context.broker.publish(to, messages)))

    def _finish(self, one: "_UnderWay") -> None:
        """Mark what was sent first when the broker has confirmed it, and announce what was read meanwhile."""
        context, claimed = self._context, one.claimed
        messages, finish = one.on_the_wire.popleft()
        with self._beside(lambda: [] if one.stopped else self._next_part(one)) as read:
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
        arrived = sum(1 for each in marks if each.status in ("sent", "unknown"))
        self._sent[claimed.destination] += arrived
        if announced:
            one.announced.append(following)
            one.mark = following[-1].message_id
        elif rest:
            one.stopped = True
            self._give_back(claimed, rest)
        if one.trouble is not None:
            self._blocked.add(claimed.destination)

    def _give_back(self, claimed: Slice, message_ids: Sequence[int]) -> None:
        context = self._context
        self.totals.put_back += windows.give_back(
            context.ledger, context.lease, claimed.slice_id, message_ids, context.now()
        )

    def _set_aside(self, damaged: list[Claimed], claimed: Slice) -> None:
        """Leave the messages whose file is damaged to people."""
        if not damaged:
            return
        context, ids = self._context, [one.message_id for one in damaged]
        windows.set_aside(context.ledger, context.lease, claimed.slice_id, ids, FILE_DAMAGED, context.now())
        context.progress("set aside, as their staging file is damaged or missing", len(ids), None)
        self.totals.unreadable += len(ids)
        self._aside.update(ids)
        damaged.clear()

    def _without_processed(self, claimed: Slice) -> Sequence[Claimed]:
        """The claimed messages that the processed check doesn't know; none while it gives no answer."""
        context = self._context
        if self._checker is None:
            return claimed.messages
        try:
            done = self._checker.processed([Asked(one.message_id, one.message_key) for one in claimed.messages])
        except CheckFailed as error:
            self._give_back(claimed, [one.message_id for one in claimed.messages])
            self._blocked.add(claimed.destination)
            context.progress(f"held: {error}", 0, None)
            return []
        if not done:
            return claimed.messages
        self.totals.suppressed += windows.suppress(
            context.ledger, context.lease, claimed.slice_id, sorted(done), context.now()
        )
        return [one for one in claimed.messages if one.message_id not in done]

    def _pace(self, band: _Band, count: int, share: float) -> None:
        """Wait until ``count`` messages may go; each costs more where only a share of the consumers works."""
        wait = band.wait(count, self._monotonic())
        if wait > 0:
            self._sleep(wait)
        band.available(self._monotonic())
        band.take(math.ceil(count / (share or 1)))

    def _count(self, marks: Sequence[Mark]) -> None:
        for one in marks:
            if one.status == "sent":
                self.totals.redelivered += 1
            elif one.status == "unknown":
                self.totals.unknown += 1
            elif one.status == "refused":
                self.totals.refused += 1
            else:
                self.totals.put_back += 1

    def _escalate_all(self, destination: str, reason: str) -> None:
        context = self._context
        self._blocked.add(destination)
        lanes.refuse_destination(context.ledger, context.lease, destination, reason, context.now())


def _bands(context: Context, now: float, shards: int) -> dict[str | None, _Band]:
    """A band for each cause with a rate of its own, and under None the one for all others. What goes by a cause's rate
    counts for the route's too: together they are no faster than that."""
    rate = context.route.rate
    whole = TokenBucket(rate.per_second / shards, now)
    bands: dict[str | None, _Band] = {None: _Band((whole,), rate.max_in_flight)}
    for cause in sorted({*SLOW_CAUSES, *(c for c, over in context.route.causes.items() if over.rate is not None)}):
        over = context.route.causes.get(cause)
        own = over.rate if over else None
        per_second = own.per_second if own and own.per_second else rate.per_second * SLOW_SHARE
        most = own.max_in_flight if own and own.max_in_flight else max(1, int(rate.max_in_flight * SLOW_SHARE))
        at_one = cause is Cause.LEASE_EXPIRED and not (own and own.max_in_flight)
        bands[cause.value] = _Band((whole, TokenBucket(per_second / shards, now)), most, at_one)
    return bands


def _outgoing(context: Context, todo: Sequence[Claimed], claimed: Slice, damaged: list[Claimed]) -> Iterator[Outgoing]:
    """The claimed messages as they go out, in order; payloads are read from staging file by file.

    Those whose file turns out to be damaged are left out and added to ``damaged``.
    """
    capabilities = context.broker.capabilities_for(claimed.destination)
    edits: dict[int, Correction] = {}
    with context.ledger.read() as connection:
        paths = batches.paths(connection, {batch_and_row(one.message_id)[0] for one in todo})
        released = [one.message_id for one in todo if one.mode == "release"]
        if released:
            edits = escalations.corrected(connection, released)
    strip = not_sent_on(context.route, capabilities)
    claimed_at: dict[object, Micros | None] = {}  # one moment per slice, but for resends
    make = Outgoing._make  # by position: names would cost as much as everything else here
    for one, letter in _letters(context, todo, paths, damaged):
        headers = clean_headers(letter.headers, strip)
        body = letter.body
        edit = edits.get(one.message_id) if edits else None
        if edit is not None and edit.headers is not None:
            headers = changed(headers, read_changes(edit.headers))
        room = None if capabilities.max_headers is None else capabilities.max_headers - len(headers)
        marks = tracking_headers(one.redrive_id, one.attempt, room=room)
        if edit is not None:
            body = letter.body if edit.body is None else edit.body.encode("utf-8")
            if room is None or room > len(marks):
                marks = (*marks, Header(EDITED_HEADER, "String", "true"))
        if one.claimed_at not in claimed_at:
            moment = parse_instant(one.claimed_at)
            claimed_at[one.claimed_at] = micros(moment) if moment else None
        yield make(
            (
                one.message_id,
                one.redrive_id,
                one.attempt,
                body,
                headers + marks,
                letter.properties,
                letter.ordering_key,
                letter.content_type,
                None,  # dedup_id: that of the attempt
                0.0 if one.due_at is None else _delay(one.due_at, context.now(), capabilities),
                claimed_at[one.claimed_at],
            )
        )


def _delay(due_at: datetime | str, now: datetime, capabilities: Capabilities) -> float:
    """How long the broker is to keep a message that is not due yet: as long as it can, should that be shorter; where
    it can't keep exactly that, the next longer time."""
    moment, longest = parse_instant(due_at), capabilities.native_delay
    if moment is None or longest is None or moment <= now:
        return 0.0
    wait = min(moment - now, longest).total_seconds()
    return next((float(one) for one in capabilities.native_delays if one >= wait), wait)


def _letters(
    context: Context, todo: Sequence[Claimed], paths: dict[int, str], damaged: list[Claimed]
) -> Iterator[tuple[Claimed, DeadLetter]]:
    for batch_id, group in itertools.groupby(todo, key=lambda one: one.message_id >> ROW_BITS):
        claimed = list(group)
        rows = [one.message_id & (MAX_ROWS - 1) for one in claimed]
        found = context.staging.letters(paths[batch_id], rows)
        read = 0
        try:
            for (_, letter), one in zip(found, claimed, strict=True):
                read += 1
                yield one, letter
        except StagingError:
            context.staging.close()  # not to be read on from where it failed
            if not context.staging.is_damaged(paths[batch_id]):
                raise
            damaged += claimed[read:]


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
    marks = [
        Mark(
            message.message_id,
            message.attempt,
            result.status,
            result.broker_message_id,
            result.detail,
            tracked=bool(message.headers) and message.headers[-1][0].startswith("x-redrive"),
            # Only a person's release can have another body, and the header that says so has not always room.
            body_hash=body_hash(message.body) if message.message_id in released else None,
            delay_seconds=message.delay_seconds,
        )
        for message, result in zip(messages, results, strict=True)
    ]
    return marks, trouble
