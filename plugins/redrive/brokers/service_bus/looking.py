"""What only reads: capabilities, depth, description, messages as they lie there, sources and origins."""

from dataclasses import replace
from datetime import timedelta

from azure.servicebus import ServiceBusReceivedMessage

from redrive.brokers.base import UNKNOWN_DEPTH, Capabilities, Depth, QueueInfo
from redrive.brokers.service_bus.entities import Entities
from redrive.brokers.service_bus.facts import Facts
from redrive.brokers.service_bus.kind import CAPABILITIES, STANDARD_BYTES, dead_letters_of, topic_of_many
from redrive.brokers.service_bus.message import Address, letter
from redrive.brokers.service_bus.namespace import Namespace
from redrive.errors import BrokerError, PermissionRefused, QueueMissing
from redrive.message import DeadLetter

#: The lock that is reckoned with where nobody may ask for the entity's.
ASSUMED_LOCK = timedelta(seconds=30)
#: Where depth has to be counted by looking, no more messages are looked at.
PEEK_LIMIT = 5_000
PEEK_PAGE = 250
#: So often Service Bus forwards a message, and to so many entities it is followed.
FORWARDS, FOLLOWED = 4, 50


class Looking:
    """Tells of the entities of one namespace."""

    def __init__(self, namespace: Namespace, entities: Entities) -> None:
        self._namespace = namespace
        self._entities = entities

    def capabilities_for(self, queue: str) -> Capabilities:
        """What the entity's facts leave of :data:`CAPABILITIES`, or add; the least where they can't be had."""
        address = Address.parse(queue)
        entities = self._entities
        try:
            facts = entities.known(address)
            target = entities.known(address._replace(subscription=None, sub_queue=""))
            single = address.subscription is None and entities.is_queue(address, target)
        except BrokerError:
            return replace(CAPABILITIES, knows_empty=False, single_target=False, max_lease=ASSUMED_LOCK)
        return replace(
            CAPABILITIES,
            knows_empty=facts is not None,
            # What moves on from one entity to the next makes the fullest smaller, and nobody took it.
            exact_depth=facts is not None and not facts.forward_to,
            in_order=facts is not None
            and single
            and not (facts.requires_session or facts.partitioned or facts.forwards),
            letters_go_to=_letters_go_to(address, facts),
            single_target=single,
            native_dedupe=target.duplicate_window if target else None,
            max_message_bytes=(target.max_bytes if target else None) or STANDARD_BYTES,
            max_lease=(facts.lock_duration if facts else None) or ASSUMED_LOCK,
        )

    def leads_to(self, queue: str, origin: str) -> bool | None:
        """What goes to a topic may fail in a queue to which one of its subscriptions forwards. What fails at another
        subscription than the one it is meant for is another's copy."""
        to, failed = Address.parse(queue), Address.parse(origin)
        if to.entity.lower() == failed.entity.lower():
            return not (to.subscription and failed.subscription) or to.origin.lower() == failed.origin.lower()
        try:
            facts = self._entities.known(Address(to.entity))
        except BrokerError:
            return None
        forwards = facts is not None and (bool(facts.forward_to) or facts.subscribers is not None)
        return None if forwards else False

    def origins(self, queue: str) -> frozenset[str] | None:
        """To whom a dead-letter queue belongs. Who forwards dead letters into an ordinary queue, Service Bus doesn't
        tell there."""
        address = Address.parse(queue)
        return frozenset({address.origin}) if address.sub_queue else None

    def sources(self, queue: str) -> list[str]:
        """The dead-letter queues of the subscriptions of the topic for which ``queue`` stands, else ``queue``."""
        topic = topic_of_many(queue)
        if topic is None:
            return [queue]
        names = self._entities.subscriptions(queue, topic)
        if names is None:
            raise PermissionRefused(
                f"look on queue {queue}: the subscriptions of {topic} are told to whoever has the right Manage there;"
                " else name each as a source"
            )
        if not names:
            raise QueueMissing(f"look on queue {queue}: {topic} has no subscription")
        return [dead_letters_of(topic, name) for name in names]

    def depth(self, queue: str, held: int) -> Depth:
        """Service Bus counts locked messages as active ones, of which ``held`` are locked to us.

        What forwards is nearly always empty: it is as full as the fullest entity on the way, or unknown where one of
        them doesn't tell. Nobody can receive from what forwards, so as a source it has no other depth to be known by.
        Dead letters stay where they are.
        """
        address = Address.parse(queue)
        facts = self._entities.told_now("depth", queue, address)
        if facts is None:
            return self._peeked_depth(queue, address, held)
        total, delayed = facts.active, facts.scheduled
        if address.sub_queue:
            total = facts.dead_letters if address.sub_queue == "dead_letter" else facts.transfer_dead_letters
            delayed = 0
        elif facts.forward_to:
            return self._depth_on_the_way(queue, facts)
        if total is None:
            return UNKNOWN_DEPTH
        held = min(held, total)
        return Depth(total - held, held, delayed)

    def _depth_on_the_way(self, queue: str, first: Facts) -> Depth:
        """The most that lies anywhere between ``first`` and the ends to which it forwards, and what comes later."""
        active, later = [first.active], [first.scheduled]
        seen, names = set[str](), first.forward_to
        for _ in range(FORWARDS):
            names = frozenset(name.lower() for name in names) - seen
            seen |= names
            if len(seen) > FOLLOWED:
                return UNKNOWN_DEPTH
            onward = list[str]()
            for name in sorted(names):
                try:
                    facts = self._entities.told_now("depth", queue, Address(name))
                except QueueMissing:
                    return UNKNOWN_DEPTH
                if facts is None:
                    return UNKNOWN_DEPTH
                active.append(facts.active)
                later.append(facts.scheduled)
                onward += facts.forward_to
            names = frozenset(onward)
        lie, come = [one for one in active if one is not None], [one for one in later if one is not None]
        if len(lie) < len(active) or len(come) < len(later) or {name.lower() for name in names} - seen:
            return UNKNOWN_DEPTH
        return Depth(max(lie), 0, sum(come))

    def _peeked_depth(self, queue: str, address: Address, held: int) -> Depth:
        def look() -> Depth:
            active = delayed = 0
            receiver = self._namespace.receiver(address)
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

        if address.subscription or address.sub_queue or self._entities.is_queue(address, None, "depth"):
            return self._namespace.again("depth", queue, look)
        # A topic shows only what it keeps for later, what forwards shows nothing, and a queue may only let us send.
        self._namespace.again("depth", queue, self._namespace.sender(address).open)
        return UNKNOWN_DEPTH

    def peek(self, queue: str, limit: int) -> list[DeadLetter]:
        """Up to ``limit`` messages, oldest first, which stay as they are."""
        address = Address.parse(queue)

        def look() -> list[DeadLetter]:
            found: list[ServiceBusReceivedMessage] = []
            receiver = self._namespace.receiver(address)
            try:
                start = 1
                while len(found) < limit and (page := receiver.peek(min(PEEK_PAGE, limit - len(found)), start)):
                    found += page
                    start = (page[-1].sequence_number or start) + 1
            finally:
                receiver.close()
            return [letter(one, b"", address) for one in found]

        return self._namespace.again("peek", queue, look)

    def describe(self, queue: str) -> QueueInfo:
        """What the administration API tells of the entity to which ``queue`` belongs."""
        address = Address.parse(queue)
        facts = self._entities.told_now("describe", queue, address)
        if facts is None:
            self._namespace.probe("describe", queue)
            return QueueInfo()
        dead = bool(address.sub_queue)
        own = f"{address.origin}/$DeadLetterQueue" if facts.max_delivery_count else None
        topic = self._entities.known(Address(address.entity)) if address.subscription else facts
        onward = " or, of a topic, ".join(_letters_go_to(address, facts))
        return QueueInfo(
            retention=None if dead else facts.time_to_live,
            lease=facts.lock_duration,
            max_deliveries=facts.max_delivery_count,
            origin_lease=facts.lock_duration if dead else None,
            ordered=facts.requires_session and not dead,
            dead_letter_queue=None if dead else next(iter(_forwards_letters_to(facts)), own),
            max_message_bytes=topic.max_bytes if topic else None,
            subscribers=topic.subscribers if topic else None,
            warnings=(_ONLY_WHAT_WAS.format(address.origin, onward),) if onward else (),
        )


#: Of a dead-letter queue whose entity forwards them: the entity, and where they go.
_ONLY_WHAT_WAS = (
    "gets nothing any more: {} forwards its dead letters, to {}. A route that does not drain that too never sees what"
    " comes back, and no send of it counts as having stayed away. List that queue among the sources; this one can go"
    " once it is empty"
)


def _letters_go_to(address: Address, facts: Facts | None) -> tuple[str, ...]:
    """See :class:`~redrive.brokers.base.Capabilities`; what could not be forwarded (``$Transfer``) stays there."""
    return _forwards_letters_to(facts) if facts is not None and address.sub_queue == "dead_letter" else ()


def _forwards_letters_to(facts: Facts) -> tuple[str, ...]:
    """The queue to which the entity forwards its dead letters, as a source is named: if it is a topic, a subscription
    of it."""
    to = facts.forward_dead_letters_to
    return (f"{to}/$Active", f"{to}/Subscriptions/*/$Active") if to else ()
