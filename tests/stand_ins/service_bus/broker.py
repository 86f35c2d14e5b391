"""What the stand-in remembers: queues, topics, subscriptions, their messages, locks and sessions.

No wire here: messages come and go as :class:`Message`, refusals are :class:`Refused`. Time comes from a clock, so
that a test can let it pass.
"""

import heapq
import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.stand_ins.service_bus import codec
from tests.stand_ins.service_bus.codec import Section, Symbol, Timestamp, UInt, section

ACTIVE, DEFERRED, SCHEDULED = 0, 1, 2
DEAD_LETTER_SUFFIX = "/$DeadLetterQueue"
TRANSFER_SUFFIX = "/$Transfer/$DeadLetterQueue"
MAX_HOPS = 4
MAX_HEADER_BYTES = 64 * 1024
STANDARD_BYTES = 256 * 1024

#: Properties that the broker writes when it dead-letters.
REASON, DESCRIPTION = "DeadLetterReason", "DeadLetterErrorDescription"

_PARTITION_KEY = "x-opt-partition-key"
_SCHEDULED_FOR = "x-opt-scheduled-enqueue-time"


class Refused(Exception):
    """The broker says no; ``condition`` is AMQP's name for why."""

    def __init__(self, condition: str, text: str) -> None:
        self.condition = condition
        super().__init__(text)


class Lock:
    """Who holds a message, and until when."""

    def __init__(self, until: float) -> None:
        self.token = uuid.uuid4()
        self.until = until


class Message:
    """A message as it was sent, and what the broker writes on it. The body is never touched."""

    def __init__(self, encoded: bytes | None = None) -> None:
        self.size = len(encoded or b"")
        self.header: list[Any] = [None] * 5
        self.annotations: dict[Any, Any] = {}
        self.properties: list[Any] = []
        self.application: dict[Any, Any] = {}
        self.kept: list[Section] = []  # sections that go out as they came in
        for one in codec.sections(encoded or b""):
            if one.code == codec.HEADER_SECTION:
                self.header = [*one.value, *[None] * 5][:5]
            elif one.code == codec.ANNOTATIONS:
                self.annotations = dict(one.value)
            elif one.code == codec.APPLICATION_PROPERTIES:
                self.application = dict(one.value)
            elif one.code != codec.DELIVERY_ANNOTATIONS:
                if one.code == codec.PROPERTIES:
                    self.properties = one.value
                self.kept.append(one)
        self.sequence = 0
        self.first_sequence: int | None = None  # in the entity from which it was forwarded
        self.enqueued_at = 0.0
        self.failed_deliveries = 0
        self.state = ACTIVE
        self.lock: Lock | None = None
        self.hops = 0

    def _property(self, index: int) -> Any:
        return self.properties[index] if index < len(self.properties) else None

    @property
    def message_id(self) -> Any:
        return self._property(0)

    @property
    def session(self) -> str | None:
        return self._property(10)

    @property
    def partition_key(self) -> str | None:
        return self.annotations.get(_PARTITION_KEY) or self.session

    @property
    def time_to_live(self) -> float | None:
        return self.header[2] / 1000 if self.header[2] else None

    @property
    def scheduled_for(self) -> float | None:
        at = self.annotations.get(_SCHEDULED_FOR)
        return at / 1000 if at else None

    def header_bytes(self) -> int:
        return len(codec.encode(self.application)) if self.application else 0

    def copy(self) -> "Message":
        """Another message with the same content, as a forward or a dead-lettering makes one."""
        twin = Message()
        twin.size, twin.kept, twin.properties = self.size, self.kept, self.properties
        twin.header, twin.annotations = list(self.header), dict(self.annotations)
        twin.application = dict(self.application)
        twin.hops = self.hops
        return twin

    def encode(self) -> bytes:
        """The message as a receiver gets it."""
        durable, priority, ttl, _, _ = self.header
        header = [bool(durable), priority, ttl, None, UInt(self.failed_deliveries)]
        annotations = {
            **self.annotations,
            Symbol("x-opt-sequence-number"): self.sequence,
            Symbol("x-opt-enqueued-time"): Timestamp(self.enqueued_at * 1000),
            Symbol("x-opt-message-state"): codec.Int(self.state),
        }
        if self.first_sequence is not None:
            annotations[Symbol("x-opt-enqueue-sequence-number")] = self.first_sequence
        if self.lock is not None:
            annotations[Symbol("x-opt-locked-until")] = Timestamp(self.lock.until * 1000)
        bare = [one for one in self.kept if one.code == codec.PROPERTIES]
        rest = [one for one in self.kept if one.code != codec.PROPERTIES]
        application = section(codec.APPLICATION_PROPERTIES, self.application) if self.application else b""
        return b"".join(
            [
                section(codec.HEADER_SECTION, header),
                section(codec.ANNOTATIONS, annotations),
                *(one.raw for one in bare),
                application,
                *(one.raw for one in rest),
            ]
        )


@dataclass
class Rules:
    """How an entity behaves. Times are seconds."""

    lock_duration: float = 30.0
    max_delivery_count: int = 10
    requires_session: bool = False
    time_to_live: float | None = None
    dead_letter_on_expiration: bool = True
    dead_letter_on_filter_error: bool = True
    duplicate_window: float | None = None
    forward_to: str | None = None
    forward_dead_letters_to: str | None = None
    max_message_bytes: int = STANDARD_BYTES
    partitioned: bool = False
    disabled: bool = False


class Duplicates:
    """The message ids of the window."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._seen: dict[Any, float] = {}

    def known(self, message: Message, now: float) -> bool:
        for key in [key for key, at in self._seen.items() if at <= now - self._window]:
            del self._seen[key]
        key = (message.message_id, message.partition_key)
        if message.message_id is None:
            return False
        if key in self._seen:
            return True
        self._seen[key] = now
        return False


class Entity:
    """A queue or subscription, or one of their dead-letter queues (then ``parent`` is what it belongs to)."""

    def __init__(self, world: "World", path: str, rules: Rules, parent: "Entity | None" = None) -> None:
        self.world = world
        self.path = path
        self.rules = rules
        self.parent = parent
        self.messages: dict[int, Message] = {}
        self.session_locks: dict[str, float] = {}
        self.session_states: dict[str, bytes] = {}
        self._sequences = itertools.count(1)
        self._ready: dict[str | None, list[int]] = {}  # heaps of sequence numbers, by session
        self._by_token: dict[uuid.UUID, Message] = {}
        detects = parent is None and rules.duplicate_window
        self._duplicates = Duplicates(rules.duplicate_window or 0) if detects else None
        self.dead_letters: Entity | None = None
        self.transfer_dead_letters: Entity | None = None
        if parent is None:
            self.dead_letters = Entity(world, path + DEAD_LETTER_SUFFIX, rules, self)
            self.transfer_dead_letters = Entity(world, path + TRANSFER_SUFFIX, rules, self)

    @property
    def by_session(self) -> bool:
        """Dead-letter queues are read without a session, also those of session queues."""
        return self.rules.requires_session and self.parent is None

    # --- in ------------------------------------------------------------------------------------------------

    def check(self, message: Message) -> None:
        """Raises :class:`Refused` if a sender may not put ``message`` here."""
        if self.parent is not None:
            raise Refused("amqp:not-allowed", f"A dead-letter queue takes no messages from senders: {self.path}.")
        self.check_enabled()
        if message.size > self.rules.max_message_bytes:
            raise Refused(
                "amqp:link:message-size-exceeded",
                f"The received message (size:{message.size}) exceeds the limit ({self.rules.max_message_bytes}).",
            )
        if self.by_session and message.session is None:
            raise Refused("amqp:not-allowed", "The SessionId was not set on a message for an entity with sessions.")

    def check_enabled(self) -> None:
        if (self.parent or self).rules.disabled:
            raise Refused("com.microsoft:entity-disabled", f"Entity {self.path} is currently disabled.")

    def enqueue(self, message: Message) -> int:
        """Take ``message``; its sequence number. What the window has seen is dropped, as if it were taken."""
        now = self.world.clock()
        if self._duplicates is not None and self._duplicates.known(message, now):
            return 0
        message.sequence, message.enqueued_at = next(self._sequences), now
        if message.scheduled_for and message.scheduled_for > now:
            message.state = SCHEDULED
            self.messages[message.sequence] = message
            return message.sequence
        self._arrive(message)
        return message.sequence

    def _arrive(self, message: Message) -> None:
        if self.parent is None and self.rules.forward_to:
            self.world.forward(self, message)
        elif message.header_bytes() > MAX_HEADER_BYTES and self.dead_letters is not None:
            self.dead_letter(message, "HeaderSizeExceeded", "The size quota for this stream has been exceeded.")
        elif self.by_session and message.session is None:
            text = "Session enabled entity doesn't allow a message whose session identifier is null."
            self.dead_letter(message, "Session ID is null", text)
        else:
            self.messages[message.sequence] = message
            self._make_ready(message)

    def _make_ready(self, message: Message) -> None:
        key = message.session if self.by_session else None
        heapq.heappush(self._ready.setdefault(key, []), message.sequence)

    # --- out -----------------------------------------------------------------------------------------------

    def take(self, session: str | None, *, lock: bool) -> Message | None:
        """The next message, locked or (receive-and-delete) gone."""
        heap = self._ready.get(session, [])
        while heap:
            message = self.messages.get(heapq.heappop(heap))
            if message is None or message.lock is not None or message.state != ACTIVE:
                continue
            if self._expired(message):
                self._expire(message)
                continue
            if lock:
                self.lock(message)
            else:
                self.remove(message)
            return message
        return None

    def lock(self, message: Message) -> Lock:
        message.lock = Lock(self.world.clock() + self.rules.lock_duration)
        self._by_token[message.lock.token] = message
        return message.lock

    def locked(self, token: uuid.UUID) -> Message:
        """The message that is locked with ``token``; raises :class:`Refused` where the lock is lost."""
        message = self._by_token.get(token)
        if message is None:
            raise Refused(
                "com.microsoft:message-lock-lost",
                "The lock supplied is invalid. Either the lock expired, or the message has already been removed.",
            )
        return message

    def renew(self, token: uuid.UUID) -> float:
        lock = self.locked(token).lock
        assert lock is not None
        lock.until = self.world.clock() + self.rules.lock_duration
        return lock.until

    def unlock(self, message: Message) -> None:
        if message.lock is not None:
            self._by_token.pop(message.lock.token, None)
            message.lock = None

    def remove(self, message: Message) -> None:
        self.unlock(message)
        self.messages.pop(message.sequence, None)

    def release(self, message: Message) -> None:
        """Back to its place, without counting a delivery."""
        self.unlock(message)
        self._make_ready(message)

    def abandon(self, message: Message) -> None:
        """Back to its place; after too many deliveries dead-lettered."""
        self.unlock(message)
        message.failed_deliveries += 1
        if self.parent is None and message.failed_deliveries >= self.rules.max_delivery_count:
            self.dead_letter(
                message,
                "MaxDeliveryCountExceeded",
                f"Message could not be consumed after {message.failed_deliveries} delivery attempts.",
            )
        elif message.state == ACTIVE:
            self._make_ready(message)

    def defer(self, message: Message) -> None:
        self.unlock(message)
        message.state = DEFERRED

    def dead_letter(self, message: Message, reason: str | None, description: str | None) -> None:
        if self.parent is not None:
            raise Refused("amqp:not-allowed", "A message of a dead-letter queue can't be dead-lettered.")
        self.remove(message)
        dead = message.copy()
        dead.failed_deliveries = message.failed_deliveries
        dead.annotations.pop(_SCHEDULED_FOR, None)
        for name, text in ((REASON, reason), (DESCRIPTION, description)):
            if text is not None:
                dead.application[name] = text
        if self.rules.forward_dead_letters_to:
            dead.annotations[Symbol("x-opt-deadletter-source")] = self.path
            dead.sequence = message.sequence
            self.world.forward(self, dead, to=self.rules.forward_dead_letters_to)
        else:
            assert self.dead_letters is not None
            self.dead_letters.enqueue(dead)

    # --- time ----------------------------------------------------------------------------------------------

    def _expired(self, message: Message) -> bool:
        lives = [ttl for ttl in (message.time_to_live, self.rules.time_to_live) if ttl]
        return self.parent is None and bool(lives) and message.enqueued_at + min(lives) <= self.world.clock()

    def _expire(self, message: Message) -> None:
        if self.rules.dead_letter_on_expiration:
            self.dead_letter(message, "TTLExpiredException", "The message expired and was dead lettered.")
        else:
            self.remove(message)

    def tick(self) -> None:
        """What time alone does: locks end, messages expire, scheduled ones come."""
        now = self.world.clock()
        for session in [name for name, until in self.session_locks.items() if until <= now]:
            self.end_session(session)
        for message in list(self.messages.values()):
            if message.lock is not None:
                if message.lock.until <= now and message.session not in self.session_locks:
                    self.abandon(message)
            elif message.state == SCHEDULED:
                if (message.scheduled_for or 0) <= now:
                    del self.messages[message.sequence]
                    message.state, message.sequence, message.enqueued_at = ACTIVE, next(self._sequences), now
                    message.annotations.pop(_SCHEDULED_FOR, None)
                    self._arrive(message)
            elif message.state == ACTIVE and self._expired(message):
                self._expire(message)

    # --- sessions ------------------------------------------------------------------------------------------

    def next_session(self) -> str | None:
        """A session with messages that nobody holds."""
        for name, heap in self._ready.items():
            live = (self.messages.get(sequence) for sequence in heap)
            if (
                name is not None
                and name not in self.session_locks
                and any(m is not None and m.lock is None and m.state == ACTIVE for m in live)
            ):
                return name
        return None

    def lock_session(self, name: str) -> float:
        if name in self.session_locks:
            raise Refused("com.microsoft:session-cannot-be-locked", f"The session {name} is locked by another client.")
        self.session_locks[name] = self.world.clock() + self.rules.lock_duration
        return self.session_locks[name]

    def renew_session(self, name: str) -> float:
        if name not in self.session_locks:
            raise Refused("com.microsoft:session-lock-lost", "The session lock has expired.")
        self.session_locks[name] = self.world.clock() + self.rules.lock_duration
        return self.session_locks[name]

    def end_session(self, name: str) -> None:
        """The session is free; what was locked in it is back, counted as delivered."""
        self.session_locks.pop(name, None)
        for message in [m for m in self.messages.values() if m.session == name and m.lock is not None]:
            self.abandon(message)

    # --- looking -------------------------------------------------------------------------------------------

    def browse(self, start: int, limit: int, session: str | None = None) -> list[Message]:
        found = (m for n, m in sorted(self.messages.items()) if n >= start and session in (None, m.session))
        return list(itertools.islice(found, limit))

    def count(self, state: int = ACTIVE) -> int:
        return sum(1 for message in self.messages.values() if message.state == state)


class Subscription(Entity):
    """``filter`` says whether a message belongs here; an exception in it is a filter error."""

    def __init__(self, world: "World", path: str, rules: Rules, accepts: Callable[[Message], bool]) -> None:
        super().__init__(world, path, rules)
        self.accepts = accepts


@dataclass
class Topic:
    """Sends each message to those subscriptions whose filter takes it."""

    world: "World"
    path: str
    rules: Rules
    subscriptions: list[Subscription] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._duplicates = Duplicates(self.rules.duplicate_window) if self.rules.duplicate_window else None

    def check(self, message: Message) -> None:
        self.check_enabled()
        if message.size > self.rules.max_message_bytes:
            raise Refused(
                "amqp:link:message-size-exceeded",
                f"The received message (size:{message.size}) exceeds the limit ({self.rules.max_message_bytes}).",
            )

    def check_enabled(self) -> None:
        if self.rules.disabled:
            raise Refused("com.microsoft:entity-disabled", f"Entity {self.path} is currently disabled.")

    def enqueue(self, message: Message) -> int:
        if self._duplicates is not None and self._duplicates.known(message, self.world.clock()):
            return 0
        sequences = [self._offer(subscription, message.copy()) for subscription in self.subscriptions]
        return next((number for number in sequences if number), 0)

    @staticmethod
    def _offer(subscription: Subscription, message: Message) -> int:
        try:
            wanted = subscription.accepts(message)
        except Exception as error:
            if subscription.rules.dead_letter_on_filter_error:
                text = f"The subscription's rule could not be evaluated for this message: {error}"
                subscription.dead_letter(message, "FilterException", text)
            return 0
        return subscription.enqueue(message) if wanted else 0


class World:
    """All entities of one namespace, found by path without regard to case."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._entities: dict[str, Entity] = {}
        self._topics: dict[str, Topic] = {}

    def add_queue(self, name: str, rules: Rules) -> Entity:
        return self._add(Entity(self, name, rules))

    def add_topic(self, name: str, rules: Rules) -> Topic:
        return self._topics.setdefault(name.lower(), Topic(self, name, rules))

    def add_subscription(self, topic: str, name: str, rules: Rules, accepts: Callable[[Message], bool]) -> Subscription:
        subscription = Subscription(self, f"{topic}/Subscriptions/{name}", rules, accepts)
        self._topics[topic.lower()].subscriptions.append(subscription)
        self._add(subscription)
        return subscription

    def _add(self, entity: Entity) -> Entity:
        for one in (entity, entity.dead_letters, entity.transfer_dead_letters):
            assert one is not None
            self._entities[one.path.lower()] = one
        return entity

    def remove(self, name: str) -> None:
        """Delete a queue, topic or subscription with all that belongs to it."""
        low = name.lower()
        self._topics.pop(low, None)
        self._entities = {
            path: entity for path, entity in self._entities.items() if path != low and not path.startswith(low + "/")
        }

    def entity(self, path: str) -> Entity:
        found = self._entities.get(path.lower())
        if found is None:
            raise Refused("amqp:not-found", f"The messaging entity '{path}' could not be found.")
        return found

    def topic(self, path: str) -> Topic | None:
        return self._topics.get(path.lower())

    def target(self, path: str) -> Entity | Topic:
        """Where a sender to ``path`` sends."""
        return self.topic(path) or self.entity(path)

    def entities(self) -> Iterable[Entity]:
        return list(self._entities.values())

    def tick(self) -> None:
        for entity in self.entities():
            entity.tick()

    def forward(self, source: Entity, message: Message, to: str | None = None) -> None:
        """Send ``message`` on; what can't go on lands in the source's transfer dead-letter queue."""
        message.hops += 1
        target_name = to or source.rules.forward_to or ""
        moved = message.copy()
        moved.first_sequence = message.sequence
        try:
            if message.hops > MAX_HOPS:
                raise Refused("MaxTransferHopCountExceeded", f"More than {MAX_HOPS} hops between entities.")
            target = self.target(target_name)
            target.check_enabled()
        except Refused as error:
            dead = message.copy()
            reasons = {
                "amqp:not-found": "MessagingEntityNotFoundException",
                "com.microsoft:entity-disabled": "MessagingEntityDisabledException",
            }
            dead.application[REASON] = reasons.get(error.condition, error.condition)
            dead.application[DESCRIPTION] = str(error)
            assert source.transfer_dead_letters is not None
            source.transfer_dead_letters.enqueue(dead)
        else:
            target.enqueue(moved)


def messages_of(entity: Entity) -> Iterator[Message]:
    """What an entity holds, in order: for assertions."""
    yield from (message for _, message in sorted(entity.messages.items()))
