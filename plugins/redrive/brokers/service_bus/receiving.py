"""Receives and holds messages, and settles, releases or extends what is held.

Each is locked to us for the entity's lock duration. Where an entity requires sessions, each session has a link of its
own: what came over one is settled over that one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceivedMessage
from azure.servicebus import exceptions as sdk

from redrive.brokers.base import Settled
from redrive.brokers.service_bus.entities import Entities
from redrive.brokers.service_bus.errors import SDK_ERRORS, known_error, may_pass, wants_session
from redrive.brokers.service_bus.links import SHORTEST_WAIT, Receiver
from redrive.brokers.service_bus.message import Address, letter
from redrive.brokers.service_bus.namespace import Namespace
from redrive.errors import BrokerError, BrokerUnavailable, PermissionRefused, QueueMissing
from redrive.message import Received

#: Sessions held at once; each is a link of its own.
MAX_SESSIONS = 8


@dataclass(eq=False, slots=True)
class Receipt:
    """A locked message and the link over which it came."""

    message: ServiceBusReceivedMessage
    lane: "_Lane"
    settled: bool = False


@dataclass(eq=False, slots=True)
class _Lane:
    """One receiving link and what we hold over it; with a session if the entity requires them."""

    receiver: Receiver
    session: bool
    held: set[Receipt] = field(default_factory=set)
    lost: bool = False
    exhausted: bool = False  # nothing more came of it

    def receive(self, address: Address, limit: int, wait: float) -> list[Received]:
        """At most ``limit`` messages, which we hold from now on; [] after ``wait`` seconds without any."""
        found = []
        messages, self.exhausted = self.receiver.receive(limit, wait)
        for message, payload in messages:
            receipt = Receipt(message, self)
            self.held.add(receipt)
            found.append(Received(letter(message, payload, address), receipt))
        return found


class Receiving:
    """Every receiving link of one adapter, by queue, and what is held over each."""

    def __init__(self, namespace: Namespace, entities: Entities) -> None:
        self._namespace = namespace
        self._entities = entities
        self._lanes: dict[str, list[_Lane]] = {}
        self._sessions: dict[str, bool] = {}  # whether a queue requires them

    def held(self, queue: str) -> int:
        """How many messages of ``queue`` are locked to us, as far as we know."""
        return sum(len(lane.held) for lane in self._lanes.get(queue, ()))

    def receive(self, queue: str, limit: int, wait: timedelta) -> list[Received]:
        """Up to ``limit`` messages, from one session only where the queue requires sessions."""
        if limit < 1:
            return []
        address = Address.parse(queue)
        seconds = max(wait.total_seconds(), SHORTEST_WAIT)
        if self._by_session(queue, address):
            return self._receive_sessions(queue, address, limit, seconds)
        try:
            return self._namespace.again(
                "receive", queue, lambda: self._lane(queue, address).receive(address, limit, seconds)
            )
        except BrokerError as error:
            if not wants_session(error):
                raise
        self._sessions[queue] = True
        self._drop(queue)
        return self._receive_sessions(queue, address, limit, seconds)

    def settle(self, queue: str, receipts: Sequence[object]) -> Settled:
        """Complete each; errors are raised only where nothing could be settled."""
        if not receipts:
            return Settled(0)
        failures = self._finish("settle", queue, receipts, lambda receiver: receiver.complete)
        return Settled(len(receipts) - len(failures), tuple(failures))

    def release(self, queue: str, receipts: Sequence[object]) -> None:
        """Abandon each."""
        if receipts:
            self._finish("release", queue, receipts, lambda receiver: receiver.abandon)

    def extend(self, queue: str, receipts: Sequence[object]) -> None:
        """Renew the lock of each, or of its session."""
        if not receipts:
            return
        todo, _ = _by_lane(receipts)
        for lane, its in todo.items():
            messages = [receipt.message for receipt in its]
            try:
                self._namespace.again(
                    "extend",
                    queue,
                    lambda lane=lane, messages=messages: lane.receiver.renew(messages),  # type: ignore[misc]
                )
            except BrokerError as error:
                if not lane.session or isinstance(error, PermissionRefused | QueueMissing):
                    raise
                self._lose(queue, lane)
        if not todo:
            self._namespace.probe("extend", queue)

    def close(self) -> None:
        """Close all links; what is locked comes back when its lock ends, sessions at once."""
        for queue in list(self._lanes):
            self._drop(queue)

    # --- links ------------------------------------------------------------------------------------------

    def _by_session(self, queue: str, address: Address) -> bool:
        if address.sub_queue:
            return False  # also those of session entities are read without
        if queue not in self._sessions:
            try:
                facts = self._entities.known(address)
            except QueueMissing:
                return False
            if facts is None:
                return False  # the first receive will tell
            self._sessions[queue] = facts.requires_session
        return self._sessions[queue]

    def _lane(self, queue: str, address: Address) -> _Lane:
        lanes = self._lanes.setdefault(queue, [])
        if not lanes:
            lanes.append(_Lane(self._namespace.receiver(address), session=False))
        return lanes[0]

    def _receive_sessions(self, queue: str, address: Address, limit: int, seconds: float) -> list[Received]:
        lanes = self._lanes.setdefault(queue, [])
        for lane in list(lanes):  # more of a session comes before another session
            if not lane.exhausted:
                try:
                    found = lane.receive(address, limit, SHORTEST_WAIT)
                except SDK_ERRORS:
                    self._lose(queue, lane)
                    continue
                if found:
                    return found
            if not lane.held:
                self._lose(queue, lane)
        if len(lanes) >= MAX_SESSIONS:
            return []
        return self._namespace.again(
            "receive", queue, lambda: self._receive_next_session(queue, address, limit, seconds)
        )

    def _receive_next_session(self, queue: str, address: Address, limit: int, seconds: float) -> list[Received]:
        receiver = self._namespace.receiver(address, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=seconds)
        try:
            receiver.open()
        except sdk.OperationTimeoutError:  # no session has messages
            receiver.close()
            return []
        lane = _Lane(receiver, session=True)
        self._lanes[queue].append(lane)
        try:
            return lane.receive(address, limit, seconds)
        except sdk.OperationTimeoutError:
            self._lose(queue, lane)
            return []
        except BaseException:
            self._lose(queue, lane)
            raise

    def _lose(self, queue: str, lane: _Lane) -> None:
        """The session is not ours any more, or we don't want it."""
        lane.lost = True
        lane.held.clear()
        lane.receiver.close()
        if lane in self._lanes.get(queue, ()):
            self._lanes[queue].remove(lane)

    def _drop(self, queue: str) -> None:
        for lane in self._lanes.pop(queue, []):
            lane.lost = lane.session
            lane.receiver.close()

    # --- what is held -----------------------------------------------------------------------------------

    def _finish(
        self, action: str, queue: str, receipts: Sequence[object], how: Callable[[Receiver], Callable[..., Any]]
    ) -> list[tuple[object, str]]:
        """Settle or give back; the receipts for which it failed, with the reason."""
        todo, failures = _by_lane(receipts)
        done = len(receipts) - len(failures) - sum(map(len, todo.values()))
        if not todo and not done:
            self._namespace.probe(action, queue)
        unreachable: BrokerError | None = None
        for lane, its in todo.items():
            answers: Iterator[Exception | None] = how(lane.receiver)([receipt.message for receipt in its])
            for receipt in its:
                if unreachable is not None:
                    failures.append((receipt, unreachable.detail))
                    continue
                problem = next(answers)
                if problem is not None and may_pass(problem):
                    problem = self._once_more(how(lane.receiver), receipt)
                if problem is None:
                    receipt.settled = True
                    done += 1
                else:
                    known = known_error(action, queue, problem, self._namespace.service)
                    failures.append((receipt, known.detail))
                    if isinstance(known, BrokerUnavailable | PermissionRefused | QueueMissing):
                        unreachable = known
                        continue
                lane.held.discard(receipt)  # gone, or its lock is lost and it is somebody else's
        if unreachable is not None and not done:
            if isinstance(unreachable, PermissionRefused):  # maybe of a new link, after one that broke with no answer
                raise BrokerUnavailable(unreachable.detail) from unreachable
            raise unreachable
        return failures

    def _once_more(self, method: Callable[..., Any], receipt: Receipt) -> Exception | None:
        """A single message over a link that broke: the SDK opens it anew and names the lock to the service."""
        problem: Exception | None = None
        for tries in range(5):
            self._namespace.sleep(0.25 * 2**tries)
            problem = next(iter(method([receipt.message])))
            if problem is None or not may_pass(problem):
                break
        return problem


def _by_lane(receipts: Sequence[object]) -> tuple[dict[_Lane, list[Receipt]], list[tuple[object, str]]]:
    """What is to be done over which link, and the receipts with which nothing can be done."""
    todo: dict[_Lane, list[Receipt]] = {}
    hopeless: list[tuple[object, str]] = []
    for receipt in receipts:
        if not isinstance(receipt, Receipt):
            hopeless.append((receipt, "not a receipt of Service Bus"))
        elif receipt.settled:
            continue
        elif receipt.lane.lost:
            hopeless.append((receipt, "the session was lost, and its messages are back in the queue"))
        else:
            todo.setdefault(receipt.lane, []).append(receipt)
    return todo, hopeless
