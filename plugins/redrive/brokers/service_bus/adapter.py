"""Azure Service Bus.

Peek-lock over AMQP: messages are locked to us for the entity's lock duration, settled one by one with the service's
own word for each, and sent in batches of which all or nothing is taken. The SDK's own retries are off: a send that is
repeated after a lost answer would be sent twice in silence. What may be repeated is repeated here.
"""

import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypeVar

from azure.core.exceptions import AzureError
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusReceivedMessage, ServiceBusSubQueue
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp.error import AMQPException, MessageException

from redrive.brokers.base import UNKNOWN_DEPTH, Capabilities, Depth, Publication, QueueInfo, Settled
from redrive.brokers.retries import BRIEF, again
from redrive.brokers.service_bus.facts import Administration, Facts, NoAdministration, address_of, clients
from redrive.brokers.service_bus.kind import CAPABILITIES, STANDARD_BYTES, dead_letters_of, topic_of_many
from redrive.brokers.service_bus.links import Receiver, Sender
from redrive.brokers.service_bus.message import (
    Address,
    Entry,
    entry,
    letter,
)
from redrive.connections import lookup
from redrive.errors import BrokerError, BrokerUnavailable, PermissionRefused, QueueMissing
from redrive.message import DeadLetter, Outgoing, Received

#: The lock that is reckoned with where nobody may ask for the entity's.
ASSUMED_LOCK = timedelta(seconds=30)
#: The shortest wait for messages: a link needs a moment.
SHORTEST_WAIT = 0.3
#: Sessions held at once; each is a link of its own.
MAX_SESSIONS = 8
#: Where depth has to be counted by looking, no more messages are looked at.
PEEK_LIMIT = 5_000
PEEK_PAGE = 250
SEND_TIMEOUT = 60.0

_UNREACHABLE = (
    sdk.ServiceBusConnectionError,
    sdk.ServiceBusCommunicationError,
    sdk.OperationTimeoutError,
    sdk.ServiceBusServerBusyError,
    sdk.ServiceBusQuotaExceededError,
    sdk.MessagingEntityDisabledError,
)
_REFUSED = (sdk.ServiceBusAuthenticationError, sdk.ServiceBusAuthorizationError)
_SDK_ERRORS = (AzureError, AMQPException, OSError, TimeoutError)
_ARRIVED = frozenset({"sent", "unknown"})
_BEHIND = Publication("retry", detail="an earlier message of its key was not sent")
_LOST = (sdk.ServiceBusConnectionError, sdk.ServiceBusCommunicationError, sdk.OperationTimeoutError)
#: The entity says no to everything for now.
_ENTITY = (
    *(sdk.MessagingEntityNotFoundError, sdk.MessagingEntityDisabledError, sdk.ServiceBusQuotaExceededError),
    *_REFUSED,
)

Result = TypeVar("Result")


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
    exhausted: bool = False  # a session of which nothing more came


class AzureServiceBus:
    """One Service Bus namespace as a connection reaches it; fills :class:`~redrive.brokers.base.Broker`.

    Entities are named ``queue``, ``topic``, ``topic/Subscriptions/name``, and ``…/$DeadLetterQueue`` or
    ``…/$Transfer/$DeadLetterQueue`` of a queue or subscription. A subscription as a destination means its topic.
    """

    capabilities = CAPABILITIES

    def __init__(
        self,
        client: ServiceBusClient,
        administration: Administration | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        send_timeout: float = SEND_TIMEOUT,
    ) -> None:
        self._client = client
        self._administration = administration or NoAdministration()
        self._sleep = sleep
        self._now = now
        self._send_timeout = send_timeout
        self._lanes: dict[str, list[_Lane]] = {}
        self._senders: dict[str, Sender] = {}
        self._facts: dict[str, Facts | None] = {}
        self._sessions: dict[str, bool] = {}
        self._queues: dict[str, bool] = {}

    @classmethod
    def open(cls, connection_id: str, *, env: Mapping[str, str] = os.environ, **options: Any) -> Self:
        """The namespace that Airflow connection ``connection_id`` names; nothing is asked of it yet."""
        connection = lookup.get(connection_id, env)
        client, administration = clients(connection, time.monotonic, retry_total=0, keep_alive=0)
        return cls(client, administration, **options)

    def capabilities_for(self, queue: str) -> Capabilities:
        """What holds for ``queue``.

        Topics reach every subscriber; duplicates are detected where the entity does it; locks last as long as the
        entity says; messages of a session go past those of one that somebody holds, and of partitions each has an order
        of its own. Without the right to ask, the depth is not exact and locks are taken to last 30 s; and what
        lets nobody receive from it is taken for a topic.
        """
        address = Address.parse(queue)
        try:
            facts, target = self._known(address), self._known(address._replace(subscription=None, sub_queue=""))
            single = address.subscription is None and self._is_queue(address, target)
        except BrokerError:
            return CAPABILITIES
        return replace(
            CAPABILITIES,
            knows_empty=facts is not None,
            exact_depth=facts is not None,
            in_order=facts is not None
            and single
            and not (facts.requires_session or facts.partitioned or facts.forwards),
            single_target=single,
            native_dedupe=target.duplicate_window if target else None,
            max_message_bytes=(target.max_bytes if target else None) or STANDARD_BYTES,
            max_lease=(facts.lock_duration if facts else None) or ASSUMED_LOCK,
        )

    # --- receiving ------------------------------------------------------------------------------------

    def receive(self, queue: str, *, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:  # noqa: ARG002
        """See :class:`~redrive.brokers.base.Broker`.

        The lease is the entity's lock duration, whatever is asked for. A queue that requires sessions is read
        session by session; at most eight are held at once, so settle before you ask for more.
        """
        if limit < 1:
            return []
        address = Address.parse(queue)
        seconds = max(wait.total_seconds(), SHORTEST_WAIT)
        if self._by_session(queue, address):
            return self._receive_sessions(queue, address, limit, seconds)

        def once() -> list[Received]:
            lane = self._lane(queue, address)
            return self._held(lane, address, lane.receiver.receive(limit, seconds))

        try:
            return self._again("receive", queue, once)
        except BrokerError as error:
            if not _wants_session(error):
                raise
        self._sessions[queue] = True
        self._drop(queue)
        return self._receive_sessions(queue, address, limit, seconds)

    def _receive_sessions(self, queue: str, address: Address, limit: int, seconds: float) -> list[Received]:
        lanes = self._lanes.setdefault(queue, [])
        for lane in list(lanes):  # more of a session comes before another session
            if not lane.exhausted:
                try:
                    found = self._held(lane, address, lane.receiver.receive(limit, SHORTEST_WAIT))
                except _SDK_ERRORS:
                    self._lose(queue, lane)
                    continue
                lane.exhausted = len(found) < limit
                if found:
                    return found
            if not lane.held:
                self._lose(queue, lane)
        if len(lanes) >= MAX_SESSIONS:
            return []

        def once() -> list[Received]:
            receiver = Receiver(self._sdk_receiver(address, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=seconds))
            try:
                receiver.open()
            except sdk.OperationTimeoutError:  # no session has messages
                receiver.close()
                return []
            lane = _Lane(receiver, session=True)
            lanes.append(lane)
            try:
                found = self._held(lane, address, receiver.receive(limit, seconds))
                lane.exhausted = len(found) < limit
                return found
            except sdk.OperationTimeoutError:
                self._lose(queue, lane)
                return []
            except BaseException:
                self._lose(queue, lane)
                raise

        return self._again("receive", queue, once)

    @staticmethod
    def _held(lane: _Lane, address: Address, came: Sequence[tuple[ServiceBusReceivedMessage, bytes]]) -> list[Received]:
        found = []
        for message, payload in came:
            receipt = Receipt(message, lane)
            lane.held.add(receipt)
            found.append(Received(letter(message, payload, address), receipt))
        return found

    def settle(self, queue: str, receipts: Sequence[object]) -> Settled:
        """See :class:`~redrive.brokers.base.Broker`; errors are raised only where nothing could be settled."""
        if not receipts:
            return Settled(0)
        failures = self._finish("settle", queue, receipts, lambda receiver: receiver.complete)
        return Settled(len(receipts) - len(failures), tuple(failures))

    def release(self, queue: str, receipts: Sequence[object]) -> None:
        """See :class:`~redrive.brokers.base.Broker`: abandons, which counts as a delivery."""
        if receipts:
            self._finish("release", queue, receipts, lambda receiver: receiver.abandon)

    def _finish(
        self, action: str, queue: str, receipts: Sequence[object], how: Callable[[Receiver], Callable[..., Any]]
    ) -> list[tuple[object, str]]:
        """Settle or give back; the receipts for which it failed, with the reason."""
        todo, failures = _by_lane(receipts)
        done = len(receipts) - len(failures) - sum(map(len, todo.values()))
        if not todo and not done:
            self._probe(action, queue)
        unreachable: BrokerError | None = None
        for lane, its in todo.items():
            answers: Iterator[Exception | None] = how(lane.receiver)([receipt.message for receipt in its])
            for receipt in its:
                if unreachable is not None:
                    failures.append((receipt, unreachable.detail))
                    continue
                problem = next(answers)
                if problem is not None and _may_pass(problem):
                    problem = self._once_more(how(lane.receiver), receipt)
                if problem is None:
                    receipt.settled = True
                    done += 1
                else:
                    known = _known_error(action, queue, problem, self._client)
                    failures.append((receipt, known.detail))
                    if isinstance(known, BrokerUnavailable | PermissionRefused | QueueMissing):
                        unreachable = known
                        continue
                lane.held.discard(receipt)  # gone, or its lock is lost and it is somebody else's
        if unreachable is not None and not done:
            raise unreachable
        return failures

    def _once_more(self, method: Callable[..., Any], receipt: Receipt) -> Exception | None:
        """A single message over a link that broke: the SDK opens it anew and names the lock to the service."""
        problem: Exception | None = None
        for tries in range(5):
            self._sleep(0.25 * 2**tries)
            problem = next(iter(method([receipt.message])))
            if problem is None or not _may_pass(problem):
                break
        return problem

    def extend(self, queue: str, receipts: Sequence[object], lease: timedelta) -> None:  # noqa: ARG002
        """See :class:`~redrive.brokers.base.Broker`: for another lock duration, which the entity sets."""
        if not receipts:
            return
        todo, _ = _by_lane(receipts)
        for lane, its in todo.items():
            messages = [receipt.message for receipt in its]
            try:
                self._again("extend", queue, lambda lane=lane, messages=messages: lane.receiver.renew(messages))  # type: ignore[misc]
            except BrokerError as error:
                if not lane.session or isinstance(error, PermissionRefused | QueueMissing):
                    raise
                self._lose(queue, lane)
        if not todo:
            self._probe("extend", queue)

    def _probe(self, action: str, queue: str) -> None:
        """Nothing to do at the service; still a wrong name or right is told."""

        def ask() -> None:
            receiver = Receiver(self._sdk_receiver(Address.parse(queue)))
            try:
                receiver.probe()
            finally:
                receiver.close()

        try:
            self._again(action, queue, ask)
        except BrokerError as error:
            if not _wants_session(error):
                raise

    # --- sending --------------------------------------------------------------------------------------

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        """See :class:`~redrive.brokers.base.Broker`.

        Messages go in batches; Service Bus takes all of a batch or nothing. A batch that is rejected is halved until
        the message that is to blame is found; a batch whose answer is lost is ``unknown`` for all its messages and
        is not sent again. A missing entity or right is raised where nothing of the call was sent. What goes to a
        subscription goes to its topic.
        """
        if not messages:
            return []
        address = Address.parse(queue)
        results: list[Publication | None] = [None] * len(messages)
        if address.sub_queue:
            text = f"Service Bus lets nobody send to a dead-letter queue; send to {address.origin} instead"
            return [Publication("refused", detail=text)] * len(messages)
        target = address._replace(subscription=None)
        self._again("publish", queue, self._sender(target).open)  # nothing is sent by this
        sending = _Sending(self, queue, target, results)
        entries = sending.entries(messages)
        sending.run(entries)
        if sending.error is not None and not any(r is not None and r.status in _ARRIVED for r in results):
            raise sending.error
        return [result or _BEHIND for result in results]

    # --- looking --------------------------------------------------------------------------------------

    def leads_to(self, queue: str, origin: str) -> bool | None:
        """See :class:`~redrive.brokers.base.Broker`; what goes to a topic may fail in a queue to which one of its
        subscriptions forwards. What fails at another subscription than the one it is meant for is another's copy."""
        to, failed = Address.parse(queue), Address.parse(origin)
        if to.entity.lower() == failed.entity.lower():
            return not (to.subscription and failed.subscription) or to.origin.lower() == failed.origin.lower()
        try:
            facts = self._known(Address(to.entity))
        except BrokerError:
            return None
        forwards = facts is not None and (facts.forward_to is not None or facts.subscribers is not None)
        return None if forwards else False

    def origins(self, queue: str) -> frozenset[str] | None:
        """See :class:`~redrive.brokers.base.Broker`: to whom a dead-letter queue belongs. Who forwards dead letters
        into an ordinary queue, Service Bus doesn't tell there."""
        address = Address.parse(queue)
        return frozenset({address.origin}) if address.sub_queue else None

    def depth(self, queue: str) -> Depth:
        """See :class:`~redrive.brokers.base.Broker`.

        Service Bus counts locked messages as active ones: in flight is what this instance holds. Of a topic it is
        the backlog of its slowest subscription. Where nobody may ask for counts, messages are looked at one by one,
        up to 5,000; beyond that the depth is unknown.
        """
        address = Address.parse(queue)
        facts = self._ask("depth", queue, address)
        held = sum(len(lane.held) for lane in self._lanes.get(queue, ()))
        if facts is None:
            return self._peeked_depth(queue, address, held)
        total, delayed = facts.active, facts.scheduled
        if address.sub_queue:
            total = facts.dead_letters if address.sub_queue == "dead_letter" else facts.transfer_dead_letters
            delayed = 0
        if total is None:
            return UNKNOWN_DEPTH
        held = min(held, total)
        return Depth(total - held, held, delayed)

    def peek(self, queue: str, limit: int) -> list[DeadLetter]:
        """See :class:`~redrive.brokers.base.Peeks`. Properties have the types that the SDK gives them."""
        address = Address.parse(queue)

        def look() -> list[DeadLetter]:
            found: list[ServiceBusReceivedMessage] = []
            receiver = Receiver(self._sdk_receiver(address))
            try:
                start = 1
                while len(found) < limit and (page := receiver.peek(min(PEEK_PAGE, limit - len(found)), start)):
                    found += page
                    start = (page[-1].sequence_number or start) + 1
            finally:
                receiver.close()
            return [letter(one, b"", address) for one in found]

        return self._again("peek", queue, look)

    def sources(self, queue: str) -> list[str]:
        """See :class:`~redrive.brokers.base.ListsSources`: the dead-letter queues of a topic's subscriptions."""
        topic = topic_of_many(queue)
        if topic is None:
            return [queue]
        try:
            names = self._administration.subscriptions(topic)
        except QueueMissing as error:
            raise QueueMissing(f"look on queue {queue}: {error.detail}") from None
        if names is None:
            raise PermissionRefused(
                f"look on queue {queue}: the subscriptions of {topic} are told to whoever has the right Manage there;"
                " else name each as a source"
            )
        if not names:
            raise QueueMissing(f"look on queue {queue}: {topic} has no subscription")
        return [dead_letters_of(topic, name) for name in names]

    def _peeked_depth(self, queue: str, address: Address, held: int) -> Depth:
        def look() -> Depth:
            active = delayed = 0
            receiver = Receiver(self._sdk_receiver(address))
            try:
                start = 1
                while page := receiver.peek(PEEK_PAGE, start):
                    delayed += sum(1 for message in page if message.state == 2)
                    active += len(page)
                    start = (page[-1].sequence_number or start) + 1
                    if active > PEEK_LIMIT:
                        return UNKNOWN_DEPTH
            finally:
                receiver.close()
            here = min(held, active - delayed)
            return Depth(active - delayed - here, here, delayed)

        try:
            return self._again("depth", queue, look)
        except (QueueMissing, PermissionRefused):
            if address.subscription or address.sub_queue:
                raise
            # A topic has no messages to look at, and a queue may only let us send.
            self._again("depth", queue, self._sender(address).open)
            return UNKNOWN_DEPTH

    def describe(self, queue: str) -> QueueInfo:
        """See :class:`~redrive.brokers.base.Broker`; little is told where nobody may ask.

        Lease and deliveries of a dead-letter queue are those of the queue or subscription to which it belongs;
        nothing in it expires.
        """
        address = Address.parse(queue)
        facts = self._ask("describe", queue, address)
        if facts is None:
            self._probe("describe", queue)
            return QueueInfo()
        dead = bool(address.sub_queue)
        forwarded = facts.forward_dead_letters_to
        own = f"{address.origin}/$DeadLetterQueue" if facts.max_delivery_count else None
        topic = self._known(Address(address.entity)) if address.subscription else facts
        return QueueInfo(
            retention=None if dead else facts.time_to_live,
            lease=facts.lock_duration,
            max_deliveries=facts.max_delivery_count,
            ordered=facts.requires_session and not dead,
            dead_letter_queue=None if dead else forwarded or own,
            max_message_bytes=topic.max_bytes if topic else None,
            subscribers=topic.subscribers if topic else None,
        )

    def close(self) -> None:
        """Close all links; what is locked comes back when its lock ends, sessions at once."""
        for queue in list(self._lanes):
            self._drop(queue)
        for sender in self._senders.values():
            sender.close()
        self._senders.clear()
        self._client.close()
        self._administration.close()

    # --- inside ---------------------------------------------------------------------------------------

    def _ask(self, action: str, queue: str, address: Address) -> Facts | None:
        """What the administration API says now."""
        try:
            facts = self._administration.facts(address._replace(sub_queue=""))
        except QueueMissing as error:
            raise QueueMissing(f"{action} on queue {queue}: {error.detail}") from None
        self._facts[address.origin] = facts
        return facts

    def _known(self, address: Address) -> Facts | None:
        """What the administration API said once; for what hardly ever changes."""
        if address.origin not in self._facts:
            self._ask("look", address.origin, address)
        return self._facts[address.origin]

    def _is_queue(self, address: Address, facts: Facts | None) -> bool:
        """Whether what is sent there has one reader only, as far as can be known."""
        if facts is not None:
            return facts.subscribers is None
        if address.entity not in self._queues:
            try:
                self._probe("look", address.entity)
                self._queues[address.entity] = True
            except (QueueMissing, PermissionRefused):
                self._queues[address.entity] = False
        return self._queues[address.entity]

    def _by_session(self, queue: str, address: Address) -> bool:
        if address.sub_queue:
            return False  # also those of session entities are read without
        if queue not in self._sessions:
            try:
                facts = self._known(address)
            except QueueMissing:
                return False
            if facts is None:
                return False  # the first receive will tell
            self._sessions[queue] = facts.requires_session
        return self._sessions[queue]

    def _lane(self, queue: str, address: Address) -> _Lane:
        lanes = self._lanes.setdefault(queue, [])
        if not lanes:
            lanes.append(_Lane(Receiver(self._sdk_receiver(address)), session=False))
        return lanes[0]

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

    def _sdk_receiver(self, address: Address, **options: Any) -> Any:
        sub_queue = {
            "dead_letter": ServiceBusSubQueue.DEAD_LETTER,
            "transfer": ServiceBusSubQueue.TRANSFER_DEAD_LETTER,
        }.get(address.sub_queue)
        if sub_queue is not None:
            options["sub_queue"] = sub_queue
        if address.subscription is not None:
            return self._client.get_subscription_receiver(address.entity, address.subscription, **options)
        return self._client.get_queue_receiver(address.entity, **options)

    def _sender(self, address: Address) -> Sender:
        """Queues and topics are sent to in the same way."""
        name = address.entity
        if name not in self._senders:
            self._senders[name] = Sender(lambda: self._client.get_queue_sender(name))
        return self._senders[name]

    def _again(self, action: str, queue: str, work: Callable[[], Result]) -> Result:
        """Work that may safely be repeated; raises the errors of :mod:`redrive.errors`."""
        try:
            return again(work, when=_may_pass, policy=BRIEF, sleep=self._sleep)
        except (*_SDK_ERRORS, ValueError) as error:
            raise _known_error(action, queue, error, self._client) from error


class _Sending:
    """One publish call."""

    def __init__(self, broker: AzureServiceBus, queue: str, target: Address, results: list[Publication | None]) -> None:
        self._broker = broker
        self._queue = queue
        self._results = results
        self._target = target
        self._sender = broker._sender(target)
        self._blocked: dict[str, int] = {}
        self._places: dict[int, str | None] = {}
        self.error: BrokerError | None = None

    def entries(self, messages: Sequence[Outgoing]) -> list[Entry]:
        """What can be sent at all; the rest is refused."""
        broker = self._broker
        try:
            facts = broker._known(self._target)
        except QueueMissing as error:
            raise QueueMissing(f"publish on queue {self._queue}: {error.detail}") from None
        # Where nobody may ask, and behind a forward, duplicates may be detected.
        detects = facts is None or facts.duplicate_window is not None or facts.forwards
        now, found = broker._now(), []
        for place, message in enumerate(messages):
            self._places[place] = message.ordering_key
            made = entry(place, message, detects=detects, sessions=facts.requires_session if facts else None, now=now)
            if isinstance(made, str):
                self._note(place, Publication("refused", detail=made))
            else:
                found.append(made)
        self._partitioned = facts.partitioned if facts else False
        return found

    def run(self, entries: Sequence[Entry]) -> None:
        """Send all, batch after batch."""
        waiting = list(entries)
        while waiting := [one for one in waiting if not self._is_behind(one)]:
            if self.error is None:
                try:
                    self._broker._again("publish", self._queue, self._sender.open)  # nothing is sent by this
                    batch, taken = self._batch(waiting)
                except BrokerError as error:
                    self.error = error
            if self.error is not None:
                for one in waiting:
                    self._note(one.place, Publication("retry", detail=self.error.detail))
                return
            waiting = waiting[len(taken) :]
            if batch is not None:
                self._send(taken, batch)

    def _batch(self, waiting: Sequence[Entry]) -> tuple[Any, list[Entry]]:
        """As many of the next messages as fit into one request; no request where the first can't be sent."""
        batch = self._sender.open().create_message_batch()
        taken: list[Entry] = []
        for one in waiting[: CAPABILITIES.publish_batch]:
            if self._partitioned and taken and one.key != taken[0].key:
                break
            try:
                batch.add_message(one.message)
            except sdk.MessageSizeExceededError:
                if taken:
                    break
                if _size(one) <= self._sender.max_bytes():
                    return one.message, [one]  # larger than a batch may be, but not than a message
                self._note(one.place, Publication("refused", detail=self._with_size(one, "")))
                return None, [one]
            except (ValueError, TypeError, AttributeError, OverflowError, struct.error) as error:
                if taken:
                    break
                self._note(one.place, Publication("refused", detail=f"the SDK can't encode it: {error}"))
                return None, [one]
            taken.append(one)
        return batch, taken

    def _send(self, going: Sequence[Entry], batch: Any) -> None:
        result, concerns_queue = self._once(batch)
        if result.status == "refused" and len(going) > 1:
            self._halve(going)
            return
        if concerns_queue is not None:
            self.error = concerns_queue
        for one in going:
            told = result
            if result.status == "sent":
                told = Publication("sent", one.message_id)
            elif result.status == "refused":
                told = Publication("refused", detail=self._with_size(one, result.detail))
            self._note(one.place, told)

    def _once(self, batch: Any) -> tuple[Publication, BrokerError | None]:
        """One request, repeated only while Service Bus says that it took nothing because it is busy."""
        for tries in range(5):
            try:
                self._sender.send(batch, self._broker._send_timeout)
            except (*_SDK_ERRORS, ValueError) as error:
                result, concerns_queue = _fate(self._queue, error, self._broker._client, used=self._sender.used)
                if result.status != "retry" or not isinstance(error, sdk.ServiceBusServerBusyError):
                    return result, concerns_queue
                self._broker._sleep(min(0.25 * 2**tries, 4))
            else:
                return Publication("sent"), None
        return result, concerns_queue

    def _halve(self, going: Sequence[Entry]) -> None:
        """Service Bus took nothing of a batch; find the message that is to blame."""
        for half in (going[: len(going) // 2], going[len(going) // 2 :]):
            self.run(half)

    def _is_behind(self, one: Entry) -> bool:
        """An earlier message of its key was not sent."""
        if one.key is None or self._blocked.get(one.key, one.place) >= one.place:
            return False
        if self._results[one.place] is None:
            self._results[one.place] = _BEHIND
        return True

    def _note(self, place: int, result: Publication) -> None:
        self._results[place] = result
        key = self._places.get(place)
        if key is not None and result.status != "sent":
            self._blocked[key] = min(place, self._blocked.get(key, place))

    def _with_size(self, one: Entry, detail: str) -> str:
        try:
            bound = self._sender.max_bytes()
        except _SDK_ERRORS:
            return detail
        size = _size(one)
        if size <= bound:
            return detail
        return f"a body of {size} bytes; {self._queue} takes at most {bound} with properties {detail}".rstrip()


def _size(one: Entry) -> int:
    body = one.message.body
    try:
        return sum(len(part) for part in body)
    except TypeError:
        return len(str(body))


def _fate(
    queue: str, error: Exception, client: ServiceBusClient, *, used: bool
) -> tuple[Publication, BrokerError | None]:
    """What became of the messages of a send that failed, and the error if it concerns the entity.

    ``used``: the link was there and something was given to it, so its error may hide an answer.
    """
    known = _known_error("publish", queue, error, client)
    inner = getattr(error, "inner_exception", None) or error.__context__
    # Of a link or connection that broke the SDK says the same as of a message whose answer is lost.
    rejected = isinstance(inner, MessageException) and not isinstance(error, _LOST)
    if isinstance(error, sdk.MessageSizeExceededError):
        return Publication("refused", detail=known.detail), None
    if isinstance(error, sdk.ServiceBusServerBusyError) and rejected:
        return Publication("retry", detail=known.detail), None
    if isinstance(error, _ENTITY) and (rejected or not used):
        return Publication("retry", detail=known.detail), known
    if rejected and not _may_pass(error):
        return Publication("refused", detail=known.detail), None
    return Publication("unknown", detail=known.detail), None


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


def _known_error(action: str, queue: str, error: BaseException, client: ServiceBusClient) -> BrokerError:
    if isinstance(error, BrokerError):
        return error
    text = f"{action} on queue {queue}: {_words(error)}"
    if isinstance(error, sdk.MessagingEntityNotFoundError):
        return QueueMissing(text)
    if isinstance(error, _REFUSED):
        return PermissionRefused(text)
    if isinstance(error, _UNREACHABLE) or _may_pass(error):
        return BrokerUnavailable(f"{action} on queue {queue}: {address_of(client)}: {_words(error)}")
    return BrokerError(text)


def _words(error: BaseException) -> str:
    if isinstance(error, sdk.MessagingEntityDisabledError):
        return f"the entity is disabled ({error})"
    if isinstance(error, sdk.ServiceBusAuthenticationError):
        return f"the credentials are refused ({error})"
    return str(error) or type(error).__name__


def _may_pass(error: BaseException) -> bool:
    """Worth another try, for work that may be repeated."""
    if isinstance(error, sdk.ServiceBusError):
        if isinstance(error, (*_REFUSED, sdk.MessagingEntityDisabledError, sdk.ServiceBusQuotaExceededError)):
            return False
        return isinstance(error, _UNREACHABLE) or bool(getattr(error, "_retryable", False))
    return isinstance(error, OSError | TimeoutError | AMQPException)


def _wants_session(error: BaseException) -> bool:
    text = str(error)
    return "sessionful" in text or "requires sessions" in text
