"""Deliver: claimed, then sent, then confirmed, then marked; slice by slice, under a budget.

This module says what goes next, and how much of it. Before each slice the budget is measured anew: the rate
(:mod:`~redrive.stages.rates`), the destination's room (:mod:`~redrive.stages.rooms`), a pause by people; less where
some of the destination's consumers are stuck. :mod:`~redrive.stages.sending` then sends the slice.
"""

import secrets
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from redrive.brokers.base import Depth
from redrive.errors import BrokerError, QueueMissing, RedriveError
from redrive.ledger import leases
from redrive.ledger.delivery import breakers, claims, lanes, recovery
from redrive.ledger.delivery.claims import NoRoom, Room, Slice
from redrive.ledger.delivery.lanes import Lane, NativeDelay
from redrive.ledger.delivery.ordering import InOrder
from redrive.ledger.drain import horizon
from redrive.ledger.engine import let_go_of_interrupted
from redrive.stages import aiming, consumers, fan_out
from redrive.stages.beside import Beside, Worker
from redrive.stages.claiming import CLAIM_FOR, Ahead, Claimer
from redrive.stages.context import Context, surely_as_of
from redrive.stages.failed_queues import Failures
from redrive.stages.rates import rates
from redrive.stages.rooms import Rooms
from redrive.stages.sending import SliceSender, Totals
from redrive.stages.stretches import Course, LaneName, Span

#: With a full destination: how often its depth is looked at again, and when a task gives up waiting.
LOOK_AGAIN = 1.0
#: As old may a destination's depth be when what was claimed by it goes; then it is asked for once more.
DEPTH_HOLDS = timedelta(seconds=LOOK_AGAIN)
GIVE_UP = 30.0
LEAST_WAIT = 0.01
#: Seconds after which a task that only waits says that the route is still its own; the lease is for minutes.
SIGN_OF_LIFE = 60.0
#: While messages go out it is looked up again after so many seconds what is due, and no sooner than so many times as
#: long as that took: what a slow rate lets through is not to be spent on looking.
LOOK_UP_AGAIN = 60.0
LOOKING_UP = 50


def _whole_batches(size: int, batch: int) -> int:
    """``size`` without the part that would cost a publishing request of its own for less than a batch."""
    return size - size % batch if size > batch else size


def _least(room: int) -> int:
    """So much of a destination's room has to be free, or a claim is not worth asking the broker for a depth."""
    return max(1, room // 10)


def deliver(
    context: Context,
    *,
    shard: int = 0,
    shards: int = 1,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    reader: Callable[[], Worker] = Worker,
    beside: Callable[[], Beside] = Beside,
    tries_left: bool = False,
    at_most: timedelta | None = None,
) -> dict[str, Any]:
    """Send what is due, as fast as the budget allows, for at most the route's ``deliver.run_for``, and ``at_most`` so
    long where that is said. What is left then waits as before.

    A ``reader`` reads the next window's payloads while the broker confirms this one; ``beside`` it slices are claimed
    and closed. A destination that fails is noted, and the others get their messages; with ``tries_left`` a
    failure that may pass is raised when they have.
    """
    # An earlier try of this very task may have died: its claims are ours to recover.
    recovery.recover(context.ledger, context.lease, context.now(), shard=shard, tries=context.route.deliver.tries)
    aiming.aim(context)
    run_for = context.route.deliver.run_for
    until = monotonic() + (run_for if at_most is None else min(run_for, at_most)).total_seconds()
    one = _Delivery(context, shard, shards, until, monotonic, sleep, reader(), beside())
    try:
        one.run()
    except BaseException:
        let_go_of_interrupted()  # or what is done beside would wait for our own locks, and we for it
        one.salvage()
        # As after a crash, only sooner: what was not handed to the broker waits again, the rest is unknown.
        try:
            one.recover()
        except RedriveError:
            pass  # the run was replaced or the ledger is away: the next run recovers the slice
        raise
    finally:
        one.close()
    failures = one.failures()
    if tries_left:
        failures.raise_passing()
    totals = one.totals
    return {
        "redelivered": totals.redelivered,
        "unknown": totals.unknown,
        "suppressed": totals.suppressed,
        "refused": totals.refused,
        "put_back": totals.put_back,
        "slices": totals.slices,
        **({"unreadable": totals.unreadable} if totals.unreadable else {}),
        **failures.noted(),
    }


class _Delivery:
    def __init__(
        self,
        context: Context,
        shard: int,
        shards: int,
        until: float,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        reader: Worker,
        beside: Beside,
    ) -> None:
        self._context = context
        self._shard = shard
        self._shards = shards
        self._task_try = secrets.token_hex(8)  # what it claims is its own from the commit on, whatever interrupts it
        self._monotonic = monotonic
        self._sleep = sleep
        self._until = until
        self._keep_at = monotonic() + SIGN_OF_LIFE
        self._limit = context.selection.limit
        self._rates = rates(context, monotonic(), shard, shards)
        self._apart = tuple(cause for cause in self._rates if cause is not None)
        in_order = None if context.route.order_by is None else InOrder(self._watermark())
        self._claimer = Claimer(context, shard, self._task_try, self._apart, in_order)
        self._ahead: Ahead | None = None  # the next slice, if one was claimed before its turn
        self._blocked: set[str] = set()  # destinations that can't take anything in this task
        self._shares: dict[str, float] = {}  # per destination: the share of its consumers that work
        self._look_up_at = self._until
        self._failures = Failures(context)
        self.totals = Totals()
        self._reader, self._beside = reader, beside
        self._sender = SliceSender(
            context, self.totals, self._blocked, monotonic=monotonic, sleep=sleep, reader=reader, beside=beside
        )
        self._rooms = Rooms(context, self._sender.arrived)

    def failures(self) -> Failures:
        """What kept some destinations from getting anything."""
        for destination, error in self._sender.refused.items():
            self._failures.note(destination, error)
        return self._failures

    def salvage(self) -> None:
        self._beside.settle()  # or it would claim what nobody recovers
        self._sender.salvage()

    def recover(self) -> None:
        """As after a crash, but only what this try has claimed: a later try may be at work."""
        context = self._context
        recovery.recover(
            context.ledger,
            context.lease,
            context.now(),
            task_try=self._task_try,
            tries=context.route.deliver.tries,
        )

    def close(self) -> None:
        self._sender.close()
        self._reader.close()
        self._beside.close()

    def _watermark(self) -> datetime | None:
        """Up to when every source was drained to its end: of what died later, an earlier one may not be staged yet."""
        context = self._context
        with context.ledger.read() as connection:
            drained_to = horizon.drained_to(connection, context.name, [one.queue for one in context.route.sources])
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
        """Look up what is due and work it off, until nothing of it went: meanwhile more may have become due."""
        going = True
        while going and not self._over():
            going = self._work_off(self._due())
            self._claimed_ahead()  # nothing of it goes now

    def _due(self) -> list[Lane]:
        """What is due, by lane. This reads all that waits: of ten million messages it takes seconds."""
        context, began = self._context, self._monotonic()
        with context.ledger.read() as connection:
            due = lanes.of_resends(connection, context.name)
            due += lanes.of_due(connection, context.name, context.now(), self._apart, native_delay=self._earliest())
        now = self._monotonic()
        self._look_up_at = now + max(LOOK_UP_AGAIN, LOOKING_UP * (now - began))
        return due

    def _earliest(self) -> NativeDelay | None:
        """How early messages may go to any of the broker's queues."""
        return self._claimer.native_delay(self._context.broker.capabilities)

    def _work_off(self, due: Iterable[Lane]) -> bool:
        """A slice of each lane in turn until nothing is left, nothing may go for a while, or it is time to look up anew
        what is due; returns whether to look that up.

        What is due but not to be claimed (another selection, an earlier message of its key) is not waited for; nor is,
        for ever, a destination that stays full; nor a rate that lets nothing through in this task's time.
        """
        moved, waited = False, 0.0
        # Of an order key one message goes at a time, and attributes are looked up in the files.
        context = self._context
        course = Course(due, together=context.route.order_by is None and not context.selection.attributes)
        course.go_on(self._context, self._earliest())
        while course and self._monotonic() < self._look_up_at:
            waits, progress = dict[LaneName, float](), False
            for lane in course.turn():
                if lane[0] in self._blocked:
                    course.drop(lane)
                    continue
                if self._over():  # a pause counts from the next slice on, whatever its lane
                    self._sender.finish()
                    return moved or progress
                claimed, wait = self._slice(lane, course)
                if claimed is not None:
                    course.reach(lane, claimed.messages[-1].message_id)
                    progress = True
                elif wait is not None:
                    waits[lane] = wait
                else:
                    course.leave(lane)
            if progress:
                moved, waited = True, 0.0
                continue
            self._sender.finish()
            # Who waits for room keeps nobody; the rate does, which they share.
            others = course.others(waits.keys())
            if (not waits or any(self._budget(cause)[0] for _, cause in others)) and course.go_on(
                self._context, self._earliest()
            ):
                continue
            soonest = min([*waits.values(), *(self._budget(cause)[1] for _, cause in others)], default=0.0)
            if waits and (waited >= GIVE_UP or self._monotonic() + soonest >= self._until):
                return False
            if not waits:
                break
            pause = max(min(*waits.values(), LOOK_AGAIN), LEAST_WAIT)
            self._keep_route()
            self._sleep(pause)
            # A rate goes on whatever happens: it is waited for as long as the task may take.
            waited += pause if all(self._budget(cause)[0] for _, cause in waits) else 0.0
        else:
            moved = moved or bool(course)  # what is left of it waits for a rate, which may be slower than we look
        self._sender.finish()
        return moved

    def _keep_route(self) -> None:
        """A wait writes nothing, and may be longer than the route is ours without a sign of life."""
        if self._monotonic() >= self._keep_at:
            with self._context.ledger.under(self._context.lease, self._context.now()):
                self._keep_at = self._monotonic() + SIGN_OF_LIFE

    def _over(self) -> bool:
        """Whether this task's time or the run's limit is used up, or people paused the route."""
        if self._monotonic() >= self._until:
            return True
        with self._context.ledger.read() as connection:
            if claims.left(connection, self._context.lease, self._limit) == 0:
                return True
            return leases.pause_of(connection, self._context.name) is not None

    def _slice(self, lane: LaneName, course: Course) -> tuple[Slice | None, float | None]:
        """Claim and send one slice of a lane; without one, in how many seconds to look again (None: never).

        The end of the slice before may still be on the wire. Where that stands in the way it is waited for.
        """
        claimed, wait = self._next_slice(lane, course)
        if claimed is None and self._sender.finish():
            claimed, wait = self._next_slice(lane, course)
        if claimed is None:
            return None, wait
        self.totals.slices += 1
        following = course.following(lane)
        span = course.span(following)
        if following == lane:
            span = Span(claimed.messages[-1].message_id, span.until)
        self._sender.send(
            claimed,
            self._rates[lane[1]],
            self._share(lane[0]),
            course.stretch,
            meanwhile=lambda: self._go_ahead(following, span, len(claimed.messages)),
        )
        self._context.progress(f"redelivering to {lane[0]}", self.totals.redelivered, self._limit)
        return claimed, None

    def _budget(self, cause: str | None) -> tuple[int, float]:
        """How many messages the rate lets go now; where that is none, in how many seconds to look again."""
        size, rate = self._context.route.deliver.slice, self._rates[cause]
        if self._limit is not None:
            size = min(size, self._limit)
        # Whole windows, not crumbs: each slice asks the broker for the depth and ends with a part of a batch.
        now, capacity = self._monotonic(), rate.capacity
        least = min(size, capacity, max(self._context.route.deliver.confirm_window, capacity // 2))
        ready = rate.available(now)
        return (min(size, ready), 0.0) if ready >= least else (0, rate.wait(least, now))

    def _next_slice(self, lane: LaneName, course: Course) -> tuple[Slice | None, float | None]:
        context, (destination, cause) = self._context, lane
        rate = self._rates[cause]
        if destination in self._blocked or self._stopped(lane):
            return None, None
        claimed = self._claimed_ahead(lane)
        if claimed is not None:
            return claimed, None
        size, wait = self._budget(cause)
        if not size:
            return None, wait
        seen, depth = self._seen(), self._depth(destination)
        if depth is None:
            return None, None
        room = int(rate.max_in_flight * self._share(destination))
        if room == 0 and self._shares[destination] == 0:
            self._blocked.add(destination)  # the next observation may see them well
            context.progress(f"held: every consumer of {destination} is stuck", 0, None)
            return None, None
        if depth.visible is not None and depth.total is None:
            # Nobody sees what consumers hold of what the others sent: each task has its own part of the room.
            room = room // self._shards + (self._shard < room % self._shards)
        free = self._free(room, destination, depth)
        if free < size and self._sender.finish():
            return self._next_slice(lane, course)
        least = _least(room)
        if free < min(size, least):
            return None, self._full(destination, depth)
        size = _whole_batches(min(size, free), context.broker.capabilities.publish_batch)
        rooms = self._room_of_claim(lane, depth, free, least, seen)
        try:
            return self._claimer.claim(lane, course.span(lane), size, rooms), None
        except NoRoom:
            return None, self._full(destination, depth)

    def _free(self, room: int, destination: str, depth: Depth) -> int:
        """What is left of a destination's room."""
        return room - self._rooms.in_flight(destination, depth)

    def _room_of_claim(
        self, lane: LaneName, depth: Depth, free: int, least: int, seen: tuple[int, dict[int, int]]
    ) -> list[Room]:
        """What the claims of all tasks may take of what is ``free`` together; what the depth shows was ``seen`` before
        it was read, unless the broker tells it late."""
        destination, cause = lane
        room = Room(free, least, *seen, as_of=surely_as_of(depth))
        return self._rooms.of_claim(destination, cause, self._rates[cause], depth, room)

    def _go_ahead(self, lane: LaneName, span: Span, under_way: int) -> None:
        """Have the lane's next slice claimed while one of so many messages is ``under_way``."""
        if not self._claimer.may_go_ahead(lane, span):
            return
        asked_at = self._context.now()
        size, rooms = self._room_ahead(lane, under_way)
        if size:
            claim = self._beside.do(lambda: self._claimer.claim_ahead(lane, span, size, rooms))
            self._ahead = Ahead(lane, asked_at, claim)

    def _claimed_ahead(self, lane: LaneName | None = None) -> Slice | None:
        """What was claimed ahead for the lane. What was for another one, or so long ago that it might be late in the
        middle of it, waits again; so does what the destination has no room for any more."""
        ahead, self._ahead = self._ahead, None
        claimed = ahead.claim.result() if ahead is not None else None
        if ahead is None or claimed is None:
            return None
        now = self._context.now()
        in_time = ahead.lane == lane and now < claimed.deadline - CLAIM_FOR / 2
        if in_time and (now <= ahead.asked_at + DEPTH_HOLDS or self._holds_claims(ahead.lane)):
            return claimed
        self._sender.give_back(claimed)
        return None

    def _holds_claims(self, lane: LaneName) -> bool:
        """Whether the lane's destination still has room for all that is claimed for it: others may have filled it."""
        destination, cause = lane
        seen, depth = self._seen(), self._depth(destination)
        if depth is None or depth.total is None:
            return False
        free = self._free(self._rates[cause].max_in_flight, destination, depth)
        rooms = self._room_of_claim(lane, depth, free, 0, seen)
        return claims.all_fit(self._context.ledger, self._context.lease, destination, rooms, self._context.now())

    def _room_ahead(self, lane: LaneName, under_way: int) -> tuple[int, list[Room]]:
        """How many messages of a lane may be claimed ahead, and the room that they share: none unless rate and
        destination take a whole slice besides what is ``under_way``. What is wrong is found when its turn comes."""
        context, (destination, cause) = self._context, lane
        rate, size = self._rates[cause], context.route.deliver.slice
        if destination in self._blocked or rate.available(self._monotonic()) < size + under_way:
            return 0, []
        if self._share(destination) < 1:
            return 0, []
        seen = self._seen()
        try:
            depth = context.broker.depth(destination)
            objection = fan_out.objection(context, destination)
        except BrokerError:
            return 0, []
        if objection is not None or depth.total is None:
            return 0, []
        room = rate.max_in_flight
        free = self._free(room, destination, depth)
        if free < (size + under_way) * self._shards:  # else it would take what other tasks need now
            return 0, []
        size = _whole_batches(size, context.broker.capabilities.publish_batch)
        return size, self._room_of_claim(lane, depth, free, _least(room), seen)

    def _depth(self, destination: str) -> Depth | None:
        """How much lies there; None where nothing may be sent there at all, or now. Whatever is wrong with one
        destination, the others get their messages; where the broker can't be reached at all, it raises."""
        context = self._context
        try:
            depth = context.broker.depth(destination)
            objection = fan_out.objection(context, destination)
        except QueueMissing:
            if wrong := aiming.missing(context, destination):
                self._leave(destination, wrong)
                return None
            objection = f"the destination {destination!r} does not exist"
        except BrokerError as error:
            self._leave(destination, error)
            self._failures.raise_where_nobody_answers()
            return None
        self._failures.answered()
        if objection is not None:
            self._escalate_all(destination, objection)
            return None
        return depth

    def _leave(self, destination: str, error: BrokerError) -> None:
        """Send nothing more there in this task, and tell why."""
        self._blocked.add(destination)
        self._failures.note(destination, error)

    def _seen(self) -> tuple[int, dict[int, int]]:
        with self._context.ledger.read() as connection:
            return claims.seen(connection, self._context.name)

    def _stopped(self, lane: LaneName) -> bool:
        """Whether the destination's breaker lets nothing through; what it lets through is seen to by the claim."""
        destination, ahead = lane[0], self._ahead
        claimed = ahead.claim.result() if ahead is not None and ahead.lane == lane else None
        own = len(claimed.messages) if claimed is not None else 0
        with self._context.ledger.read() as connection:
            stopped = breakers.quota(connection, self._context.name, destination, own=own) == 0
        if stopped:
            self._blocked.add(destination)
            self._context.progress(f"held: the breaker of {destination} is open", 0, None)
        return stopped

    def _full(self, destination: str, depth: Depth) -> float | None:
        """In how many seconds to look again at a destination that is full; None: no outcome will come in this task."""
        if not self._rooms.tells(depth):
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

    def _escalate_all(self, destination: str, reason: str) -> None:
        context = self._context
        self._blocked.add(destination)
        lanes.refuse_destination(context.ledger, context.lease, destination, reason, context.now())
