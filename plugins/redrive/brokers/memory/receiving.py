"""Receives and leases messages, and settles, releases, extends or rejects what is leased."""

import heapq
from collections.abc import Sequence
from datetime import timedelta

from redrive.brokers.base import Settled
from redrive.brokers.memory.clock import micros
from redrive.brokers.memory.queues import Queue, Stored
from redrive.brokers.memory.world import MemoryWorld
from redrive.message import DeadLetter, Micros, Received


class Receiving:
    """Leases messages of ``world``; a lease belongs to a copy in its queue, so any client may settle it."""

    def __init__(self, world: MemoryWorld) -> None:
        self._world = world

    def receive(self, queue: str, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:
        """Up to ``limit`` messages; an empty queue is waited for at most the world's patience."""
        world = self._world
        deadline = world.clock() + micros(min(wait, world.patience))
        while True:
            with world.lock:
                found, now = world.find(queue, "receive"), world.clock()
                received = self._lease(found, limit, micros(lease), now)
                if received or now >= deadline:
                    world.messages["receive"] += len(received)
                    return received
                event = found.next_event()
            # Others may publish meanwhile, so look again every few milliseconds.
            step = min(deadline - now, 5_000, (event - now) if event is not None else 5_000)
            world.sleep(max(step, 1) / 1_000_000)

    def settle(self, queue: str, receipts: Sequence[object]) -> Settled:
        """Settle for good; a receipt whose lease ran out is a failure."""
        world = self._world
        with world.lock:
            found = world.find(queue, "settle")
            found.catch_up(world.clock())
            failures: list[tuple[object, str]] = []
            in_flight, stale, gone = found.in_flight, found.stale, found.gone
            for receipt in receipts:
                if receipt in stale:
                    failures.append((receipt, "the lease ran out"))
                elif world.faults.settles and receipt in in_flight:
                    world.faults.settles -= 1
                    failures.append((receipt, "injected: not settled"))
                else:
                    copy = in_flight.pop(receipt, None)  # type: ignore[call-overload]
                    if copy is not None:
                        gone(copy)
            count = len(receipts) - len(failures)
            world.messages["settle"] += count
            return Settled(count, tuple(failures))

    def release(self, queue: str, receipts: Sequence[object]) -> None:
        """Give back at once."""
        world = self._world
        with world.lock:
            found = world.find(queue, "release")
            found.catch_up(world.clock())
            back = [copy for r in receipts if (copy := found.in_flight.pop(r, None)) is not None]  # type: ignore[call-overload]
            found.stale.update(copy.receipt for copy in back)
            found.give_back(back)
            world.messages["release"] += len(back)

    def extend(self, queue: str, receipts: Sequence[object], lease: timedelta) -> None:
        """Lease for ``lease`` from now; receipts whose lease ran out are left alone."""
        world = self._world
        with world.lock:
            found, now = world.find(queue, "extend"), world.clock()
            found.catch_up(now)
            until = now + micros(lease)
            extended = []
            for receipt in receipts:
                copy = found.in_flight.get(receipt)  # type: ignore[call-overload]
                if copy is not None:
                    copy.lease_until = until
                    extended.append(copy.receipt)
            if extended:
                heapq.heappush(found.leases, (until, next(world.sequence), extended))

    def dead_letter(self, queue: str, receipts: Sequence[object], reason: str, description: str) -> None:
        """Move to the dead-letter queue, as a consumer that rejects does."""
        world = self._world
        with world.lock:
            found, now = world.find(queue, "dead_letter"), world.clock()
            found.catch_up(now)
            for receipt in receipts:
                copy = found.in_flight.pop(receipt, None)  # type: ignore[call-overload]
                if copy is not None:
                    self._dead_letter(found, copy, now, reason, description)

    # --- inside; the lock is held -----------------------------------------------------------------------

    def _lease(self, queue: Queue, limit: int, lease: Micros, now: Micros) -> list[Received]:
        queue.catch_up(now)
        bound = queue.info.max_deliveries if queue.info.dead_letter_queue else None
        until = now + lease
        in_flight, sequence = queue.in_flight, self._world.sequence
        received: list[Received] = []
        receipts: list[int] = []
        while len(received) < limit and (taken := queue.take(limit - len(received))):
            for copy in taken:
                if bound is not None and copy.receives >= bound:
                    self._dead_letter(queue, copy, now)
                    continue
                copy.receives += 1
                if copy.first_received_at is None:
                    copy.first_received_at = now
                copy.receipt = receipt = next(sequence)
                copy.lease_until = until
                in_flight[receipt] = copy
                old = copy.letter
                letter = DeadLetter(
                    old.broker_message_id,
                    old.body,
                    old.headers,
                    old.properties,
                    old.enqueued_at,
                    old.dead_lettered_at,
                    copy.first_received_at,
                    copy.receives,
                    old.origin,
                    old.ordering_key,
                    old.content_type,
                    old.reason,
                    old.description,
                    copy.receives > 1,
                )
                received.append(Received(letter, receipt))
                receipts.append(receipt)
        while queue.leases and in_flight.keys().isdisjoint(queue.leases[0][2]):
            heapq.heappop(queue.leases)  # all of it is settled
        if receipts:
            heapq.heappush(queue.leases, (until, receipts[0], receipts))
        return received

    def _dead_letter(
        self, queue: Queue, copy: Stored, now: Micros, reason: str = "max_deliveries", description: str = ""
    ) -> None:
        queue.gone(copy)
        target = self._world.queues.get(queue.info.dead_letter_queue or "")
        if target is None:  # as on most brokers: without a target it is gone
            return
        letter = copy.letter._replace(
            dead_lettered_at=now,
            first_received_at=copy.first_received_at,
            deliveries=copy.receives,
            origin=queue.name,
            reason=reason,
            description=description or copy.letter.description,
        )
        target.add(Stored(next(self._world.sequence), letter))
