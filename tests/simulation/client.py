"""The simulation's own adapter: Redrive's broker port over a :class:`~tests.simulation.world.System`.

Other clients (stand-ins for client libraries under the real adapters) are registered in :data:`CLIENTS` under the name
that :attr:`Traits.client <tests.simulation.world.Traits>` says: the name that ``broker:`` has in the configuration,
and what connects to a system.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from redrive.brokers.base import (
    UNKNOWN_DEPTH,
    Broker,
    Capabilities,
    Depth,
    Publication,
    QueueInfo,
    Settled,
    readable,
)
from redrive.errors import BrokerUnavailable, QueueMissing
from redrive.message import DeadLetter, Header, Outgoing, Received, send_id
from tests.simulation import clients
from tests.simulation.world import Copy, System
from tests.simulation.world.systems import ZEROS_APART

#: Properties of a message whose broker gives it no identity.
MESSAGE_ID, TIMESTAMP = "message_id", "timestamp"


class PlainClient:
    """Fills :class:`redrive.brokers.base.Broker`."""

    def __init__(self, system: System) -> None:
        self.system = system
        able = system.traits
        self.capabilities = Capabilities(
            knows_empty=able.depth in ("exact", "late"),
            stable_identity=able.ids != "none",
            gives_reason=able.tells_reason,
            single_target=able.subscribers == 1,
            native_dedupe=None if able.dedupe is None else timedelta(seconds=able.dedupe),
            native_delay=None if able.native_delay is None else timedelta(seconds=able.native_delay),
            max_headers=able.max_headers,
            max_message_bytes=None,
            publish_batch=able.publish_batch,
            failure_headers=frozenset({"x-failure-reason", "x-failure-text"}),
            settles_whole=able.ids == "none",
            consumer_ids="kept" if able.ids == "kept" else None,
            in_order=not (able.shuffles or able.ordered),
            depth_lag=timedelta(seconds=able.lag if able.depth == "late" else 0),
            zeros_apart=timedelta(seconds=ZEROS_APART if able.depth == "about" else 0),
        )

    def capabilities_for(self, _queue: str) -> Capabilities:
        return self.capabilities

    def receive(self, queue: str, *, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:
        if self._begins("receive", queue) == "lost":
            self.system.receive(queue, limit, lease.total_seconds(), by="redrive")
            raise BrokerUnavailable(f"receive on {queue}: the answer was lost")
        taken = self.system.receive(queue, min(limit, 10), lease.total_seconds(), by="redrive")
        return [Received(self.letter(copy), receipt) for copy, receipt in taken]

    def letter(self, copy: Copy) -> DeadLetter:
        """As adapters do: of what can't be understood there are id, body and headers."""
        number = copy.publisher_id if self.system.traits.ids == "none" else copy.broker_id
        headers = tuple(Header(*one) for one in copy.headers)
        return readable(lambda: self._letter(copy), lambda: DeadLetter(number, copy.body, headers))

    def _letter(self, copy: Copy) -> DeadLetter:
        told = {name: str(value) for name, _, value in copy.headers if name.startswith("x-told-")}
        deliveries = copy.deliveries
        enqueued_at: int | None = copy.enqueued_at
        if "x-told-deliveries" in told:
            deliveries = int(told["x-told-deliveries"])
        if "x-told-enqueued" in told:
            enqueued_at = int(told["x-told-enqueued"])
        broker_id, properties = copy.broker_id, copy.properties
        if self.system.traits.ids == "none":  # what its publisher said of it is all that there is, and goes along
            broker_id = copy.publisher_id
            if not copy.publisher_id:
                enqueued_at = None
            else:
                properties = (*properties, (MESSAGE_ID, copy.publisher_id), (TIMESTAMP, str(copy.enqueued_at)))
        return DeadLetter(
            broker_message_id=broker_id,
            body=copy.body,
            headers=tuple(Header(*one) for one in copy.headers),
            properties=properties,
            enqueued_at=enqueued_at,
            dead_lettered_at=copy.died_at,
            first_received_at=copy.first_received_at,
            deliveries=deliveries,
            origin=told.get("x-told-origin", copy.origin),
            ordering_key=copy.key,
            content_type=copy.content_type,
            reason=copy.reason,
            description=copy.description,
            redelivered=copy.redelivered,
        )

    def settle(self, queue: str, receipts: Sequence[object]) -> Settled:
        fate = self._begins("settle", queue)
        if fate == "lost":
            self.system.settle(queue, list(receipts), by="redrive")  # type: ignore[arg-type]
            raise BrokerUnavailable(f"settle on {queue}: the answer was lost")
        some = list(receipts)
        if fate == "part" and not self.capabilities.settles_whole:
            some = some[: len(some) // 2]
        late = self.system.settle(queue, some, by="redrive")  # type: ignore[arg-type]
        failed = [*late, *receipts[len(some) :]]
        return Settled(len(receipts) - len(failed), tuple((receipt, "not settled") for receipt in failed))

    def release(self, queue: str, receipts: Sequence[object]) -> None:
        self._begins("release", queue)
        self.system.release(queue, list(receipts), by="redrive")  # type: ignore[arg-type]

    def extend(self, queue: str, receipts: Sequence[object], lease: timedelta) -> None:
        self._begins("extend", queue)
        self.system.extend(queue, list(receipts), lease.total_seconds())  # type: ignore[arg-type]

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        self._exists(queue)
        results: list[Publication] = []
        blocked: set[str] = set()
        if self.system.fate("link") == "cut":  # in the middle of it
            for message in messages[: (len(messages) + 1) // 2]:
                self._send(queue, message, known=False)
            raise BrokerUnavailable(f"publish to {queue}: the connection is lost")
        for message in messages:
            if message.ordering_key is not None and message.ordering_key in blocked:
                results.append(Publication("retry", None, "an earlier message of its key was not sent"))
                continue
            results.append(self._publish(queue, message))
            if results[-1].status != "sent" and message.ordering_key is not None:
                blocked.add(message.ordering_key)
        return results

    def _publish(self, queue: str, message: Outgoing) -> Publication:
        fate = self.system.fate("publish")
        if fate in ("retry", "down"):
            return Publication("retry", None, "throttled")
        if fate == "error":
            return Publication("unknown", None, "no answer")
        if fate == "refused":
            return Publication("refused", None, "the broker will never take it")
        broker_id = self._send(queue, message, known=fate == "ok")
        return Publication("unknown", None, "the answer was lost") if fate == "lost" else Publication("sent", broker_id)

    def _send(self, queue: str, message: Outgoing, *, known: bool) -> str:
        told = dict(message.properties)
        return self.system.send(
            queue,
            message.body,
            tuple((one.name, one.type, one.value) for one in message.headers),
            by="redrive",
            key=message.ordering_key,
            properties=tuple(one for one in message.properties if one[0] not in (MESSAGE_ID, TIMESTAMP)),
            publisher_id=told.get(MESSAGE_ID, ""),
            enqueued_at=int(told[TIMESTAMP]) if TIMESTAMP in told else None,
            content_type=message.content_type,
            dedup_id=send_id(message),
            delay=message.delay_seconds,
            known=known,
        )

    def depth(self, queue: str) -> Depth:
        self._begins("depth", queue)
        told = self.system.depth(queue)
        return UNKNOWN_DEPTH if told is None else Depth(*told)

    def leads_to(self, queue: str, origin: str) -> bool | None:
        return queue == origin

    def origins(self, queue: str) -> frozenset[str] | None:
        self._exists(queue)
        return frozenset(one.name for one in self.system.queues.values() if one.dead_letters == queue)

    def describe(self, queue: str) -> QueueInfo:
        self._exists(queue)
        found = self.system.queues[queue]
        feeding = [one for one in self.system.queues.values() if one.dead_letters == queue]
        return QueueInfo(
            lease=timedelta(seconds=found.lease),
            max_deliveries=min((one.max_deliveries for one in feeding if one.max_deliveries), default=None),
            ordered=self.system.traits.ordered,
            dead_letter_queue=found.dead_letters,
            subscribers=self.system.traits.subscribers,
            own_max_deliveries=found.max_deliveries if found.dead_letters else None,
        )

    def close(self) -> None:
        pass

    def _exists(self, queue: str) -> None:
        if not self.system.exists(queue):
            raise QueueMissing(f"queue {queue} does not exist")

    def _begins(self, action: str, queue: str) -> str:
        self._exists(queue)
        fate = self.system.fate(action)
        if fate in ("down", "retry", "error"):
            raise BrokerUnavailable(f"{action} on {queue}: {fate}")
        return fate


class Client(NamedTuple):
    """What stands between Redrive and a system."""

    broker: str  # what a route says
    connect: Callable[[System], Broker]


CLIENTS: dict[str, Client] = {"plain": Client("memory", PlainClient)} | {
    name: Client(broker, connect) for name, (broker, connect) in clients.CONNECT.items()
}


def connect(system: System, **_: Any) -> Broker:
    """A new client of ``system``."""
    return CLIENTS[system.traits.client].connect(system)
