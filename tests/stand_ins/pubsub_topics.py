"""What a Pub/Sub server remembers: topics, subscriptions, and who holds which message until when.

No network here; :mod:`tests.stand_ins.pubsub` serves it. Time is passed in. Every method that is not private
takes the world's lock.
"""

import heapq
import itertools
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from google.pubsub_v1 import types

from tests.stand_ins import pubsub_filter

Message = types.PubsubMessage.pb()
Received = types.ReceivedMessage.pb()
Topic = types.Topic.pb()
SubscriptionSettings = types.Subscription.pb()

#: Limits of the service.
MAX_MESSAGES = 1_000
MAX_BYTES = 10_000_000
MAX_ATTRIBUTES = 100
MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 1024
MAX_DEADLINE = 600
DELETED_TOPIC = "_deleted-topic_"
NAME = re.compile(r"projects/[^/\s]+/(topics|subscriptions)/(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{2,254}")


class Refusal(Exception):
    """What the server answers instead: a gRPC status by name, its text, and per-id results of exactly-once."""

    def __init__(self, status: str, text: str, ids: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.text = text
        self.ids = ids or {}
        super().__init__(f"{status}: {text}")


@dataclass(slots=True)
class Copy:
    """One message in one subscription."""

    sequence: int
    message: Any
    attempts: int = 0
    ack_id: str | None = None
    until: float = 0.0
    stream: object = None  # the stream that holds it, where one does


class Subscription:
    """Messages that wait and messages under lease."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.passes = pubsub_filter.parse(settings.filter)
        self.ready: list[tuple[int, Copy]] = []  # heap: in order of publishing
        self.resting: list[tuple[float, int, Copy]] = []  # heap: given back, wait for the retry policy's backoff
        self.leased: dict[str, Copy] = {}
        self.ends: list[tuple[float, str]] = []  # heap: ends of leases; an entry may be out of date
        self.busy: Counter[str] = Counter()  # ordering keys of leased messages
        self.detached = False

    @property
    def name(self) -> str:
        return str(self.settings.name)

    @property
    def ordered(self) -> bool:
        return bool(self.settings.enable_message_ordering)

    @property
    def max_attempts(self) -> int | None:
        policy = self.settings.dead_letter_policy
        return (policy.max_delivery_attempts or 5) if policy.dead_letter_topic else None

    def count(self) -> int:
        """All unacknowledged messages."""
        return len(self.ready) + len(self.resting) + len(self.leased)


@dataclass(slots=True)
class Faults:
    """What goes wrong next."""

    #: Called with (method, name of topic or subscription) before anything happens; may raise :class:`Refusal`.
    before: Callable[[str, str], None] | None = None
    #: Per method: refusals for its next requests, one each; nothing of those requests is done.
    refuse: dict[str, list[Refusal]] = field(default_factory=dict)
    #: Last parts of the names that nobody may touch.
    forbidden: set[str] = field(default_factory=set)
    #: So many of the next requests of a method are carried out, but answered with UNAVAILABLE.
    lost_answers: Counter[str] = field(default_factory=Counter)
    #: So many of the next requests of a method are carried out, but never answered.
    hang: Counter[str] = field(default_factory=Counter)
    #: Per method: so many seconds an answer is on its way.
    slow: dict[str, float] = field(default_factory=dict)
    #: So many of the next dead-lettered messages are forwarded twice, as the service may do.
    forward_twice: int = 0
    #: Ack ids that exactly-once subscriptions refuse for the moment, once each.
    passing_ids: set[str] = field(default_factory=set)


class World:
    """All topics and subscriptions of one pretended Pub/Sub.

    ``clock`` gives seconds since the epoch. The service takes 5 to 100 delivery attempts and ack deadlines of 10 to
    600 seconds in a subscription's settings; tests may allow less to be quick.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.time, least_attempts: int = 5, least_deadline: int = 10
    ) -> None:
        self.clock = clock
        self.least_attempts = least_attempts
        self.least_deadline = least_deadline
        self.faults = Faults()
        self.topics: dict[str, Any] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.requests: Counter[str] = Counter()
        self.changed = threading.Condition(threading.RLock())
        self._numbers = itertools.count(1)
        #: Cloud Monitoring: None: not there. Otherwise points are this many seconds late.
        self.monitoring_lag: float | None = None
        self._points: list[tuple[float, dict[str, int]]] = []

    # --- administration -------------------------------------------------------------------------------

    def create_topic(self, settings: Any) -> Any:
        with self.changed:
            _check_name(settings.name)
            if settings.name in self.topics:
                raise Refusal("ALREADY_EXISTS", f"Topic already exists: {settings.name}")
            self.topics[settings.name] = settings
            return settings

    def topic(self, name: str) -> Any:
        with self.changed:
            _check_name(name)
            try:
                return self.topics[name]
            except KeyError:
                raise Refusal("NOT_FOUND", f"Resource not found (resource={_last(name)}).") from None

    def delete_topic(self, name: str) -> None:
        with self.changed:
            self.topic(name)
            del self.topics[name]
            for one in self.subscriptions.values():
                if one.settings.topic == name:
                    one.settings.topic = DELETED_TOPIC

    def readers(self, topic: str) -> list[str]:
        """Names of the subscriptions of a topic."""
        with self.changed:
            self.topic(topic)
            return sorted(s.name for s in self.subscriptions.values() if s.settings.topic == topic)

    def create_subscription(self, settings: Any) -> Any:
        with self.changed:
            _check_name(settings.name)
            if settings.name in self.subscriptions:
                raise Refusal("ALREADY_EXISTS", f"Subscription already exists: {settings.name}")
            self.topic(settings.topic)
            settings.ack_deadline_seconds = settings.ack_deadline_seconds or 10
            if not self.least_deadline <= settings.ack_deadline_seconds <= MAX_DEADLINE:
                raise Refusal("INVALID_ARGUMENT", f"Invalid ack deadline given: {settings.ack_deadline_seconds}")
            policy = settings.dead_letter_policy
            if policy.dead_letter_topic:
                policy.max_delivery_attempts = policy.max_delivery_attempts or 5
                if not self.least_attempts <= policy.max_delivery_attempts <= 100:
                    raise Refusal("INVALID_ARGUMENT", "max_delivery_attempts must be between 5 and 100")
            if not settings.HasField("message_retention_duration"):
                settings.message_retention_duration.seconds = 7 * 86400
            try:
                self.subscriptions[settings.name] = Subscription(settings)
            except ValueError as error:
                raise Refusal("INVALID_ARGUMENT", str(error)) from error
            return settings

    def subscription(self, name: str) -> Subscription:
        with self.changed:
            _check_name(name)
            try:
                return self.subscriptions[name]
            except KeyError:
                raise Refusal("NOT_FOUND", f"Resource not found (resource={_last(name)}).") from None

    def delete_subscription(self, name: str) -> None:
        with self.changed:
            self.subscription(name)
            del self.subscriptions[name]

    # --- messages -------------------------------------------------------------------------------------

    def publish(self, topic: str, messages: Sequence[Any]) -> list[str]:
        """Give every subscription of ``topic`` its copy of each message; returns the messages' ids."""
        with self.changed:
            self.topic(topic)
            _check_request(messages)
            ids = [self._publish(topic, message) for message in messages]
            self.changed.notify_all()
            return ids

    def _publish(self, topic: str, message: Any) -> str:
        number = next(self._numbers)
        stored = Message(data=message.data, ordering_key=message.ordering_key, message_id=f"{10**15 + number}")
        stored.attributes.update(message.attributes)
        stored.publish_time.FromMicroseconds(round(self.clock() * 1e6))
        for one in self.subscriptions.values():
            if one.settings.topic == topic and one.passes(message.attributes):
                heapq.heappush(one.ready, (number, Copy(number, stored)))
        return str(stored.message_id)

    def pull(self, name: str, limit: int, *, deadline: int | None = None, stream: object = None) -> list[Any]:
        """Up to ``limit`` messages under lease, for the subscription's ack deadline or the stream's own."""
        with self.changed:
            found = self.subscription(name)
            self._pass_time(found)
            until = self.clock() + (deadline or found.settings.ack_deadline_seconds)
            taken: list[Copy] = []
            aside: list[tuple[int, Copy]] = []
            held: set[str] = set()  # keys of which messages are out, or rest: later ones wait
            if found.ordered:
                held = set(found.busy) | {copy.message.ordering_key for *_, copy in found.resting}
            while found.ready and len(taken) < limit:
                entry = heapq.heappop(found.ready)
                if entry[1].message.ordering_key and entry[1].message.ordering_key in held:
                    aside.append(entry)
                else:
                    taken.append(entry[1])
            for entry in aside:
                heapq.heappush(found.ready, entry)
            return [self._lease(found, copy, until, stream) for copy in taken]

    def _lease(self, found: Subscription, copy: Copy, until: float, stream: object) -> Any:
        copy.attempts += 1
        copy.ack_id = uuid.uuid4().hex
        copy.until, copy.stream = until, stream
        found.leased[copy.ack_id] = copy
        found.busy[copy.message.ordering_key] += 1
        heapq.heappush(found.ends, (until, copy.ack_id))
        return Received(
            ack_id=copy.ack_id,
            message=copy.message,
            delivery_attempt=copy.attempts if found.max_attempts is not None else 0,
        )

    def acknowledge(self, name: str, ack_ids: Iterable[str]) -> None:
        """Forget these messages. Ids that are no longer valid are ignored, or told where delivery is exactly once."""
        with self.changed:
            found = self.subscription(name)
            self._pass_time(found)
            refused = self._stale(found, ack_ids)
            for ack_id in ack_ids:
                if ack_id not in refused and (copy := found.leased.pop(ack_id, None)) is not None:
                    self._unlease(found, copy)
            self.changed.notify_all()
            self._tell(found, refused)

    def modify_deadline(self, name: str, ack_ids: Iterable[str], seconds: int) -> None:
        """Lease for ``seconds`` from now; 0 gives the messages back."""
        if not 0 <= seconds <= MAX_DEADLINE:
            raise Refusal("INVALID_ARGUMENT", f"Invalid ack deadline given: {seconds}")
        with self.changed:
            found = self.subscription(name)
            self._pass_time(found)
            refused = self._stale(found, ack_ids)
            for ack_id in ack_ids:
                copy = found.leased.get(ack_id)
                if copy is None or ack_id in refused:
                    continue
                if seconds:
                    copy.until = self.clock() + seconds
                    heapq.heappush(found.ends, (copy.until, ack_id))
                else:
                    self._give_back(found, copy)
            self.changed.notify_all()
            self._tell(found, refused)

    def held_by(self, name: str, stream: object) -> int:
        """How many messages a stream holds."""
        with self.changed:
            found = self.subscription(name)
            self._pass_time(found)
            return sum(1 for copy in found.leased.values() if copy.stream is stream)

    def _stale(self, found: Subscription, ack_ids: Iterable[str]) -> dict[str, str]:
        if not found.settings.enable_exactly_once_delivery:
            return {}
        refused = {i: "PERMANENT_FAILURE_INVALID_ACK_ID" for i in ack_ids if i not in found.leased}
        for ack_id in self.faults.passing_ids.intersection(ack_ids):
            refused[ack_id] = "TRANSIENT_FAILURE_INTERNAL"
            self.faults.passing_ids.discard(ack_id)
        return refused

    @staticmethod
    def _tell(found: Subscription, refused: dict[str, str]) -> None:
        if refused:
            raise Refusal("FAILED_PRECONDITION", f"Some acknowledgement ids of {found.name} failed", refused)

    def _unlease(self, found: Subscription, copy: Copy) -> None:
        copy.ack_id = copy.stream = None
        key = copy.message.ordering_key
        found.busy[key] -= 1
        if found.busy[key] <= 0:
            del found.busy[key]

    def _give_back(self, found: Subscription, copy: Copy) -> None:
        """The message was not processed: again, or to the dead-letter topic. Its key's later ones come again too."""
        followers = [copy]
        if found.ordered and copy.message.ordering_key:
            followers += [
                other
                for other in found.leased.values()
                if other.message.ordering_key == copy.message.ordering_key and other.sequence > copy.sequence
            ]
        for one in followers:
            assert one.ack_id is not None
            del found.leased[one.ack_id]
            self._unlease(found, one)
            if found.max_attempts is not None and one.attempts >= found.max_attempts and self._dead_letter(found, one):
                continue
            rest = self._backoff(found, one.attempts) if one is copy else 0.0
            if rest:
                heapq.heappush(found.resting, (self.clock() + rest, one.sequence, one))
            else:
                heapq.heappush(found.ready, (one.sequence, one))

    @staticmethod
    def _backoff(found: Subscription, attempts: int) -> float:
        if not found.settings.HasField("retry_policy"):
            return 0.0
        policy = found.settings.retry_policy
        least = policy.minimum_backoff.ToTimedelta().total_seconds() or 10.0
        most = policy.maximum_backoff.ToTimedelta().total_seconds() or 600.0
        return float(min(least * 2 ** (attempts - 1), most))

    def _dead_letter(self, found: Subscription, copy: Copy) -> bool:
        topic = found.settings.dead_letter_policy.dead_letter_topic
        if topic not in self.topics:
            return False  # the service keeps redelivering
        _, project, _, short = found.name.split("/")
        forwarded = Message(data=copy.message.data, ordering_key=copy.message.ordering_key)
        forwarded.attributes.update(copy.message.attributes)
        forwarded.attributes.update(
            {
                "CloudPubSubDeadLetterSourceDeliveryCount": str(copy.attempts),
                "CloudPubSubDeadLetterSourceSubscription": short,
                "CloudPubSubDeadLetterSourceSubscriptionProject": project,
                "CloudPubSubDeadLetterSourceTopicPublishTime": _rfc3339(copy.message.publish_time),
            }
        )
        self._publish(topic, forwarded)
        if self.faults.forward_twice:
            self.faults.forward_twice -= 1
            self._publish(topic, forwarded)
        return True

    def _pass_time(self, found: Subscription) -> None:
        now = self.clock()
        while found.resting and found.resting[0][0] <= now:
            _, sequence, copy = heapq.heappop(found.resting)
            heapq.heappush(found.ready, (sequence, copy))
        ended: dict[int, Copy] = {}
        while found.ends and found.ends[0][0] <= now:
            _, ack_id = heapq.heappop(found.ends)
            copy = found.leased.get(ack_id)
            if copy is not None and copy.until <= now:
                ended[copy.sequence] = copy
        for _, copy in sorted(ended.items()):
            if copy.ack_id is not None:  # not given back yet with an earlier one of its key
                self._give_back(found, copy)

    # --- looking, for assertions and for monitoring ------------------------------------------------------

    def pass_time(self) -> None:
        """Let every lease end that should have ended by now."""
        with self.changed:
            for found in list(self.subscriptions.values()):
                self._pass_time(found)

    def peek(self, name: str) -> list[Any]:
        """All unacknowledged messages of a subscription in order of publishing, untouched."""
        with self.changed:
            found = self.subscription(name)
            self._pass_time(found)
            copies = [copy for _, copy in found.ready] + [copy for *_, copy in found.resting]
            copies += found.leased.values()
            return [copy.message for copy in sorted(copies, key=lambda copy: copy.sequence)]

    def sample(self) -> None:
        """Let monitoring take its numbers."""
        with self.changed:
            for found in self.subscriptions.values():
                self._pass_time(found)
            self._points.append((self.clock(), {s.name: s.count() for s in self.subscriptions.values()}))

    def undelivered(self, name: str) -> tuple[float, int] | None:
        """The newest point of ``num_undelivered_messages`` that monitoring shows by now: (time, count)."""
        with self.changed:
            if self.monitoring_lag is None:
                raise Refusal("UNIMPLEMENTED", "no monitoring here")
            if self.monitoring_lag == 0:
                self.sample()
            shown = [p for p in self._points if p[0] <= self.clock() - self.monitoring_lag and name in p[1]]
            return (shown[-1][0], shown[-1][1][name]) if shown else None


def _check_name(name: str) -> None:
    if NAME.fullmatch(name) is None:
        raise Refusal("INVALID_ARGUMENT", f"Invalid resource name given (name={name}).")


def _check_request(messages: Sequence[Any]) -> None:
    if not 1 <= len(messages) <= MAX_MESSAGES:
        raise Refusal("INVALID_ARGUMENT", f"{len(messages)} messages in one request; 1 to {MAX_MESSAGES} are allowed")
    if sum(message.ByteSize() for message in messages) > MAX_BYTES:
        raise Refusal("INVALID_ARGUMENT", f"The request is larger than {MAX_BYTES} bytes")
    if len({message.ordering_key for message in messages}) > 1:
        raise Refusal("INVALID_ARGUMENT", "All messages of a request must have the same ordering key")
    for message in messages:
        if not message.data and not message.attributes:
            raise Refusal("INVALID_ARGUMENT", "One or more messages have neither data nor attributes")
        if len(message.attributes) > MAX_ATTRIBUTES:
            raise Refusal("INVALID_ARGUMENT", f"More than {MAX_ATTRIBUTES} attributes")
        for key, value in message.attributes.items():
            reserved = key.startswith("goog") and not key.startswith("googclient_")  # which Google's libraries publish
            if not key or reserved or len(key.encode()) > MAX_KEY_BYTES:
                raise Refusal("INVALID_ARGUMENT", f"Invalid attribute key: {key[:40]!r}")
            if len(value.encode()) > MAX_VALUE_BYTES:
                raise Refusal("INVALID_ARGUMENT", f"The value of attribute {key} is too long")


def _rfc3339(moment: Any) -> str:
    when = datetime.fromtimestamp(moment.seconds, UTC)
    return f"{when:%Y-%m-%dT%H:%M:%S}.{moment.nanos // 1000:06d}Z"


def _last(name: str) -> str:
    return name.rpartition("/")[2]
