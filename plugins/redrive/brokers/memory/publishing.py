"""Sends a window of messages, and says what became of each: as chosen by faults, limits and native dedupe."""

import heapq
from collections.abc import Iterable, Sequence

from redrive.brokers.base import Publication, before_the_send
from redrive.brokers.memory.clock import micros
from redrive.brokers.memory.queues import Queue, Stored
from redrive.brokers.memory.world import MemoryWorld
from redrive.message import DeadLetter, Header, Micros, Outgoing, as_tuples, send_id


class Publishing:
    """Sends to the queues of ``world``."""

    def __init__(self, world: MemoryWorld) -> None:
        self._world = world

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        """One result per message, in the same order; behind one of its key that was not sent, a message waits."""
        world = self._world
        with world.lock:
            with before_the_send():
                found, now = world.find(queue, "publish"), world.clock()
            if self._plain(found):
                return self._publish_plainly(found, messages, now)
            results: list[Publication] = []
            blocked: set[str] = set()
            for message in messages:
                if message.ordering_key is not None and message.ordering_key in blocked:
                    results.append(Publication("retry", detail="an earlier message of its key was not sent"))
                    continue
                result = self._publish(found, message, now)
                if result.status != "sent" and message.ordering_key is not None:
                    blocked.add(message.ordering_key)
                results.append(result)
            world.messages["publish"] += len(messages)
            return results

    # --- inside; the lock is held -----------------------------------------------------------------------

    def _plain(self, queue: Queue) -> bool:
        """Nothing can happen to a message that is published here except that it arrives."""
        faults = self._world.faults
        return not (
            queue.delay
            or faults.publishes
            or faults.lost_responses
            or faults.refused_bodies
            or self._world.capabilities.native_dedupe is not None
            or self._limited(queue)
        )

    def _publish_plainly(self, queue: Queue, messages: Sequence[Outgoing], now: Micros) -> list[Publication]:
        """What :meth:`_publish` does for a whole call, without the questions: benchmarks live here."""
        world, add = self._world, queue.add
        sequences = world.sequence
        if queue.sink and not any(message.delay_seconds or message.dedup_id is not None for message in messages):
            world.messages["publish"] += len(messages)
            return list(as_tuples(Publication, [("sent", f"m-{next(sequences)}", "") for _ in messages]))
        results: list[Publication] = []
        say = results.append
        for message in messages:
            if message.delay_seconds or message.dedup_id is not None:
                say(self._publish(queue, message, now))
                continue
            sequence = next(sequences)
            broker_id = f"m-{sequence}"
            if queue.sink:
                say(Publication("sent", broker_id))
                continue
            letter = DeadLetter(
                broker_id,
                message.body,
                message.headers,
                message.properties,
                now,
                None,
                None,
                0,
                None,
                message.ordering_key,
                message.content_type,
            )
            add(Stored(sequence, letter))
            say(Publication("sent", broker_id))
        world.messages["publish"] += len(messages)
        return results

    def _publish(self, queue: Queue, message: Outgoing, now: Micros) -> Publication:
        world = self._world
        faults = world.faults
        if faults.publishes:
            status = faults.publishes.popleft()
            if status != "sent":
                return Publication(status, detail=f"injected: {status}")
        if faults.refused_bodies and message.body in faults.refused_bodies:
            return Publication("refused", detail="injected: this body is refused")
        if (message.delay_seconds or self._limited(queue)) and (detail := self._objection(queue, message)):
            return Publication("refused", detail=detail)
        sequence = next(world.sequence)
        broker_id = f"m-{sequence}"
        dedup_id = message.dedup_id
        if world.capabilities.native_dedupe is not None:
            dedup_id = send_id(message)
            known = queue.dedup
            horizon = now - micros(world.capabilities.native_dedupe)
            while known and next(iter(known.values()))[0] <= horizon:
                known.popitem(last=False)
            if dedup_id in known:
                return Publication("sent", known[dedup_id][1], "dropped as a duplicate")
            known[dedup_id] = (now, broker_id)
        properties = message.properties
        if dedup_id is not None:
            properties = (*(p for p in properties if p[0] != "dedup_id"), ("dedup_id", dedup_id))
        letter = DeadLetter(
            broker_id,
            message.body,
            message.headers,
            properties,
            now,
            None,
            None,
            0,
            None,
            message.ordering_key,
            message.content_type,
        )
        copy = Stored(sequence, letter)
        delay = round(message.delay_seconds * 1_000_000) if message.delay_seconds else queue.delay
        if queue.sink:
            pass
        elif delay:
            heapq.heappush(queue.delayed, (now + delay, sequence, copy))
        else:
            queue.add(copy)
        if faults.lost_responses:
            faults.lost_responses -= 1
            return Publication("unknown", detail="injected: the response was lost")
        return Publication("sent", broker_id)

    def _limited(self, queue: Queue) -> bool:
        able = self._world.capabilities
        return not (able.max_headers is able.max_message_bytes is queue.info.max_message_bytes is None)

    def _objection(self, queue: Queue, message: Outgoing) -> str:
        """Why the broker will never take ``message``, or ""."""
        able = self._world.capabilities
        if able.max_headers is not None and len(message.headers) > able.max_headers:
            return f"{len(message.headers)} headers; at most {able.max_headers} are allowed"
        bound = queue.info.max_message_bytes or able.max_message_bytes
        if bound is not None and (size := _size(message.body, message.headers)) > bound:
            return f"{size} bytes; queue {queue.name} takes at most {bound}"
        if message.delay_seconds and (
            able.native_delay is None or message.delay_seconds > able.native_delay.total_seconds()
        ):
            return f"a delay of {message.delay_seconds:g} s is longer than the broker keeps"
        return ""


def _size(body: bytes, headers: Iterable[Header]) -> int:
    return len(body) + sum(
        len(h.name.encode()) + len(h.type.encode()) + len(h.value if isinstance(h.value, bytes) else h.value.encode())
        for h in headers
    )
