"""Google Pub/Sub.

Sources are subscriptions, most of all on a dead-letter topic; destinations are topics. Both are named by their
short name, which stands for the connection's project, or in full (``projects/…/subscriptions/…``).

Messages are pulled and published by unary requests with the library's retries off, so that no request of unknown
fate is repeated. Without exactly-once delivery Pub/Sub doesn't say whether an ack came too late; so the adapter
keeps the end of each lease by its own clock, and what it acks after that is not reported as settled.
"""

import math
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Self

import google.api_core.exceptions as api
import grpc
from google.pubsub_v1 import types

from redrive.brokers.base import UNKNOWN_DEPTH, Capabilities, Depth, Publication, QueueInfo, Settled
from redrive.brokers.pubsub.clients import Clients, open_clients
from redrive.brokers.pubsub.kind import BATCH, CAPABILITIES, MAX_BYTES, MAX_LEASE
from redrive.brokers.pubsub.message import (
    LEAST_LEASE,
    Entry,
    entry,
    full_name,
    is_full,
    packs,
    received,
    short_name,
)
from redrive.brokers.retries import again, until
from redrive.connections import lookup
from redrive.errors import BrokerError, BrokerUnavailable, PermissionRefused, QueueMissing
from redrive.message import Outgoing, Received

_ARRIVED = frozenset({"sent", "unknown"})
_BEHIND = Publication("retry", detail="an earlier message of its ordering key was not sent")
#: How far back Cloud Monitoring is asked for a depth; its points come every minute, some minutes late.
_LOOK_BACK = 900
#: How long an answer of Cloud Monitoring is good enough.
_FRESH = 30.0
_UNDELIVERED = "pubsub.googleapis.com/subscription/num_undelivered_messages"
#: gRPC's words where a request never left this process.
_NEVER_SENT = ("failed to connect to all addresses", "DNS resolution failed", "name resolution failure")
_NO_TOKEN = ("Getting metadata from plugin failed", "metadata from plugin")


class GooglePubSub:
    """One project as a connection reaches it; fills :class:`~redrive.brokers.base.Broker`.

    ``requests`` counts requests by operation. ``concurrency`` is how many publish requests of one call may be under
    way at once, ``timeout`` how many seconds an answer may take.
    """

    capabilities = CAPABILITIES

    def __init__(
        self,
        clients: Clients,
        *,
        concurrency: int = 8,
        timeout: float = 30,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._publisher = clients.publisher
        self._subscriber = clients.subscriber
        self._channel = clients.channel
        self._monitoring = clients.monitoring
        self._series: Callable[..., Any] | None = None
        self.project = clients.project
        self._concurrency = concurrency
        self._timeout = timeout
        self._sleep = sleep
        self._monotonic = monotonic
        self._clock = clock
        self._pool: ThreadPoolExecutor | None = None
        self._reached = False
        self._leases: dict[object, float] = {}  # ack id -> when its lease ends, on our clock
        self._origins: dict[tuple[str | None, str], str | None] = {}
        self._topics: dict[str, str] = {}  # queue -> the topic that stands for it, where that is not its own name
        self._depths: dict[str, tuple[float, Depth]] = {}
        self.requests: Counter[str] = Counter()

    @classmethod
    def open(cls, connection_id: str, *, env: Mapping[str, str] = os.environ, **options: Any) -> Self:
        """The project that Airflow connection ``connection_id`` names; nothing is asked of it yet."""
        return cls(open_clients(lookup.get(connection_id, env), env), **options)

    def capabilities_for(self, queue: str) -> Capabilities:  # noqa: ARG002 - all are alike
        """See :class:`~redrive.brokers.base.Broker`."""
        return CAPABILITIES

    # --- receiving ------------------------------------------------------------------------------------

    def receive(self, queue: str, *, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:
        """See :class:`~redrive.brokers.base.Broker`.

        The first pull waits, the following ones don't; they go on until ``limit`` is reached, one comes back empty,
        or a quarter of the lease is used up. An error after some messages have come is kept back: the next call
        will meet it again.
        """
        if limit < 1:
            return []
        name = self._subscription_name(queue)
        seconds = _lease_seconds(lease)
        fill_until = self._monotonic() + seconds / 4
        found = self._pull(queue, name, min(limit, BATCH), wait.total_seconds(), seconds)
        while found and len(found) < limit and self._monotonic() < fill_until:
            try:
                more = self._pull(queue, name, min(limit - len(found), BATCH), 0, seconds)
            except BrokerError:
                break
            if not more:
                break
            found += more
        return found

    def _pull(self, queue: str, name: str, limit: int, wait: float, seconds: int) -> list[Received]:
        """One pull, and the lease that was asked for instead of the subscription's own."""
        request = types.PullRequest(subscription=name, max_messages=limit, return_immediately=wait <= 0)
        patience = wait if wait > 0 else self._timeout
        try:
            with warnings.catch_warnings():  # deprecated for those who can wait; a drain must be able to just ask
                warnings.simplefilter("ignore", DeprecationWarning)
                answer = self._call("Pull", queue, self._subscriber.pull, request, timeout=patience, patient=wait > 0)
        except api.DeadlineExceeded:
            self._get_subscription(queue, name)  # nothing came; or nobody is there, which must not look the same
            return []
        got = types.PullResponse.pb(answer).received_messages
        if not got:
            return []
        ids = [message.ack_id for message in got]
        # No subscription leases for less; whether this was long enough for the next request is seen there.
        self._leases.update(dict.fromkeys(ids, self._monotonic() + LEAST_LEASE.total_seconds()))
        self._set_deadlines(queue, name, ids, seconds)
        return [received(message, self._origin) for message in got]

    def _origin(self, project: str | None, subscription: str) -> str | None:
        """The topic of the subscription on which a message failed; None where it is gone or not ours to see."""
        key = (project, subscription)
        if key not in self._origins:
            name = full_name("subscriptions", subscription, project or self.project)
            try:
                topic = self._get_subscription(subscription, name).topic
            except (QueueMissing, PermissionRefused):
                topic = ""
            self._origins[key] = short_name(topic, self.project) if is_full(topic, "topics") else None
        return self._origins[key]

    def settle(self, queue: str, receipts: Sequence[object]) -> Settled:
        """See :class:`~redrive.brokers.base.Broker`; errors are raised only where nothing could be acked.

        What was acked after its lease ended by our clock is a failure: Pub/Sub may take the ack and deliver again.
        """
        if not receipts:
            return Settled(0)
        name = self._subscription_name(queue)
        failures: list[tuple[object, str]] = []
        errors: list[BrokerError] = []
        batches = [receipts[at : at + BATCH] for at in range(0, len(receipts), BATCH)]
        for batch in batches:
            try:
                refused = self._acknowledge(queue, name, batch)
            except BrokerError as error:
                errors.append(error)
                refused = {receipt: str(error) for receipt in batch}
            now = self._monotonic()  # the ack may have waited for its turn on the way
            for receipt in batch:
                if receipt in refused:
                    failures.append((receipt, refused[receipt]))
                elif self._leases.pop(receipt, math.inf) <= now:
                    failures.append((receipt, "its lease ended before the ack: it may come again"))
        if len(errors) == len(batches):
            raise errors[0]
        return Settled(len(receipts) - len(failures), tuple(failures))

    def _acknowledge(self, queue: str, name: str, receipts: Sequence[object]) -> dict[object, str]:
        """Ack; the ids that were refused for good (exactly-once subscriptions only) with Pub/Sub's words."""

        def send(ids: Sequence[object]) -> None:
            request = types.AcknowledgeRequest(subscription=name, ack_ids=list(ids))
            self._call("Acknowledge", queue, self._subscriber.acknowledge, request)

        return self._by_id(queue, receipts, send)

    def release(self, queue: str, receipts: Sequence[object]) -> None:
        """See :class:`~redrive.brokers.base.Broker`; each release counts as a delivery attempt."""
        if not receipts:
            return
        self._set_deadlines(queue, self._subscription_name(queue), receipts, 0)

    def extend(self, queue: str, receipts: Sequence[object], lease: timedelta) -> None:
        """See :class:`~redrive.brokers.base.Broker`; what is no longer ours is left alone."""
        if not receipts:
            return
        self._set_deadlines(queue, self._subscription_name(queue), receipts, _lease_seconds(lease))

    def _set_deadlines(self, queue: str, name: str, receipts: Sequence[object], seconds: int) -> None:
        def send(ids: Sequence[object]) -> None:
            request = types.ModifyAckDeadlineRequest(subscription=name, ack_ids=list(ids), ack_deadline_seconds=seconds)
            self._call("ModifyAckDeadline", queue, self._subscriber.modify_ack_deadline, request)

        for at in range(0, len(receipts), BATCH):
            batch = receipts[at : at + BATCH]
            began = self._monotonic()
            refused = self._by_id(queue, batch, send)
            now = self._monotonic()
            for receipt in batch:
                if seconds == 0 or receipt in refused:
                    self._leases.pop(receipt, None)
                elif self._leases.get(receipt, math.inf) > now:  # one that ended can't be extended: it stays ended
                    self._leases[receipt] = began + seconds

    def _by_id(self, queue: str, ids: Sequence[object], send: Callable[[Sequence[object]], None]) -> dict[object, str]:
        """Send; exactly-once's results per id: passing failures are tried again, lasting ones returned."""
        lasting: dict[object, str] = {}
        open_ids = list(ids)

        def once() -> bool:
            try:
                send(open_ids)
            except _Partial as partial:
                lasting.update({i: partial.ids[i] for i in open_ids if partial.ids.get(i, "").startswith("PERMANENT")})
                open_ids[:] = [i for i in open_ids if i in partial.ids and i not in lasting]
                return not open_ids
            open_ids.clear()
            return True

        until(once, sleep=self._sleep)
        return lasting | dict.fromkeys(open_ids, f"{queue}: Pub/Sub refused it for the moment, again and again")

    # --- sending --------------------------------------------------------------------------------------

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        """See :class:`~redrive.brokers.base.Broker`.

        A request carries messages of one ordering key only, and those of one key go one after another. A request
        whose answer is lost is ``unknown`` for exactly its messages. A subscription's name stands for its topic.
        """
        if not messages:
            return []
        results: list[Publication | None] = [None] * len(messages)
        lanes = self._lanes(messages, results)
        if lanes:
            topic = self._topics.get(queue) or self._topic_name(queue)
            errors = self._send_lanes(queue, topic, lanes, results)
            if errors and not _any_arrived(results) and isinstance(errors[0], QueueMissing):
                other = self._topic_behind(queue)
                if other is not None and other != topic:
                    self._topics[queue] = other
                    errors = self._send_lanes(queue, other, lanes, results)
            if errors and not _any_arrived(results):
                raise errors[0]
            if not self._reached and (words := _never_connected(results)):
                raise BrokerUnavailable(f"Publish on queue {queue}: {words}")
        return [result or _BEHIND for result in results]

    def _lanes(self, messages: Sequence[Outgoing], results: list[Publication | None]) -> list[list[list[Entry]]]:
        """Lanes of requests: lanes may go at once, the requests of a lane one after another."""
        keyless: list[Entry] = []
        keyed: dict[str, list[Entry]] = {}
        closed: set[str] = set()
        for place, message in enumerate(messages):
            key = message.ordering_key or ""
            made = entry(place, message)
            if isinstance(made, str):
                results[place] = Publication("refused", detail=made)
                if key:
                    closed.add(key)
            elif key in closed:
                results[place] = _BEHIND
            elif key:
                keyed.setdefault(key, []).append(made)
            else:
                keyless.append(made)
        return [[pack] for pack in packs(keyless)] + [list(packs(entries)) for entries in keyed.values()]

    def _send_lanes(
        self, queue: str, topic: str, lanes: Sequence[list[list[Entry]]], results: list[Publication | None]
    ) -> list[BrokerError]:
        def run(lane: list[list[Entry]]) -> tuple[dict[int, Publication], BrokerError | None]:
            outcome: dict[int, Publication] = {}
            error: BrokerError | None = None
            for pack in lane:
                if outcome and any(result.status != "sent" for result in outcome.values()):
                    outcome |= {item.place: _BEHIND for item in pack}
                    continue
                sent, error = self._send(queue, topic, pack)
                outcome |= sent
            return outcome, error

        errors: list[BrokerError] = []
        for outcome, error in self._together(run, lanes):
            for place, result in outcome.items():
                results[place] = result
            errors += [error] if error else []
        return errors

    def _send(self, queue: str, topic: str, pack: Sequence[Entry]) -> tuple[dict[int, Publication], BrokerError | None]:
        """One request: an outcome per message, and the error if it concerns the topic and not the messages."""
        request = types.PublishRequest.wrap(
            types.PublishRequest.pb()(topic=topic, messages=[item.message for item in pack])
        )

        def once() -> Any:
            self.requests["Publish"] += 1
            return self._publisher.publish(request=request, retry=None, timeout=self._timeout)

        try:
            answer = self._patiently(once, when=_certainly_not_taken)
        except api.GoogleAPICallError as error:
            result, concerns_topic = _fate(queue, error)
            if result.status == "refused" and len(pack) > 1:
                return self._send_halves(queue, topic, pack)
            return {item.place: result for item in pack}, concerns_topic
        self._reached = True
        ids = list(answer.message_ids)
        silence = Publication("unknown", detail="Pub/Sub gave no message id for it")
        return {
            item.place: Publication("sent", ids[at]) if at < len(ids) else silence for at, item in enumerate(pack)
        }, None

    def _send_halves(
        self, queue: str, topic: str, pack: Sequence[Entry]
    ) -> tuple[dict[int, Publication], BrokerError | None]:
        """Pub/Sub refused a request as a whole, so it took nothing; find the message that is to blame."""
        middle = len(pack) // 2
        outcome, error = self._send(queue, topic, pack[:middle])
        rest = pack[middle:]
        behind = bool(pack[0].key) and any(result.status != "sent" for result in outcome.values())
        if error is not None or behind:
            return outcome | {item.place: _BEHIND for item in rest}, error
        second, error = self._send(queue, topic, rest)
        return outcome | second, error

    # --- looking --------------------------------------------------------------------------------------

    def leads_to(self, queue: str, origin: str) -> bool | None:
        """See :class:`~redrive.brokers.base.Broker`; an origin is a topic, for which its subscriptions stand too."""
        try:
            if short_name(self._topics.get(queue) or self._topic_name(queue), self.project) == origin:
                return True
            behind = self._topic_behind(queue)
        except BrokerError:
            return None
        return behind is not None and short_name(behind, self.project) == origin

    def origins(self, queue: str) -> frozenset[str] | None:
        """See :class:`~redrive.brokers.base.Broker`: the topics of the project's subscriptions that dead-letter into
        the topic of ``queue``; None where they may not be listed."""
        topic = self._topic_behind(queue)
        if topic is None:
            return None
        try:
            feeding = self._feeding(queue, topic)
        except PermissionRefused:
            return None
        return frozenset(short_name(one.topic, self.project) for one in feeding if is_full(one.topic, "topics"))

    def depth(self, queue: str) -> Depth:
        """See :class:`~redrive.brokers.base.Broker`: what Cloud Monitoring says, some minutes late, or unknown.

        A topic's depth is that of all its subscriptions. Leased messages can't be told from visible ones.
        """
        names = self._subscriptions_of(queue)
        if self._monitoring is None or not names:
            return UNKNOWN_DEPTH if names else Depth(0, 0, 0)
        now = self._monotonic()
        kept = self._depths.get(queue)
        if kept is None or now - kept[0] >= _FRESH:
            kept = self._depths[queue] = (now, self._undelivered(names))
        return kept[1]

    def _subscriptions_of(self, queue: str) -> list[str]:
        """Full names: the subscription itself, or all of a topic."""
        if not is_full(queue, "topics"):
            name = self._subscription_name(queue)
            try:
                self._get_subscription(queue, name)
            except QueueMissing:
                if is_full(queue, "subscriptions"):
                    raise
            else:
                return [name]
        return self._readers(queue, self._topic_name(queue))

    def _readers(self, queue: str, topic: str) -> list[str]:
        request = types.ListTopicSubscriptionsRequest(topic=topic, page_size=BATCH)
        found: list[str] = []
        while True:
            answer = self._call("ListTopicSubscriptions", queue, self._publisher.list_topic_subscriptions, request)
            page = answer.raw_page
            found += page.subscriptions
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        if not found:  # emulators say the same of a topic that does not exist
            self._call("GetTopic", queue, self._publisher.get_topic, types.GetTopicRequest(topic=topic))
        return found

    def _undelivered(self, names: Sequence[str]) -> Depth:
        """The newest points of Cloud Monitoring, added up; unknown where one is missing or nothing answers."""
        total, oldest = 0, math.inf
        by_project: dict[str, list[str]] = {}
        for name in names:
            _, project, _, short = name.split("/")
            by_project.setdefault(project, []).append(short)
        for project, shorts in by_project.items():
            points = self._points(project, shorts)
            if points is None or len(points) < len(shorts):
                return UNKNOWN_DEPTH
            total += sum(count for _, count in points)
            oldest = min(oldest, *(at for at, _ in points))
        return Depth(total, 0, 0, as_of=int(oldest))

    def _points(self, project: str, shorts: Sequence[str]) -> list[tuple[int, int]] | None:
        """(time in microseconds, count) per subscription; None where monitoring gives no answer."""
        from google.cloud.monitoring_v3 import types as monitoring  # noqa: PLC0415 - it takes a while, and few need it

        if self._series is None:
            self._series = self._monitoring.unary_unary(
                "/google.monitoring.v3.MetricService/ListTimeSeries",
                request_serializer=monitoring.ListTimeSeriesRequest.serialize,
                response_deserializer=monitoring.ListTimeSeriesResponse.deserialize,
            )
        one_of = ", ".join(f'"{short}"' for short in shorts)
        now = int(self._clock())
        request = monitoring.ListTimeSeriesRequest(
            name=f"projects/{project}",
            filter=f'metric.type = "{_UNDELIVERED}" AND resource.labels.subscription_id = one_of({one_of})',
            interval={"start_time": {"seconds": now - _LOOK_BACK}, "end_time": {"seconds": now + 1}},
            view=monitoring.ListTimeSeriesRequest.TimeSeriesView.FULL,
        )
        self.requests["ListTimeSeries"] += 1
        try:
            answer = self._series(
                request, timeout=self._timeout, metadata=(("x-goog-request-params", f"name=projects/{project}"),)
            )
        except grpc.RpcError:
            return None
        found = []
        for series in monitoring.ListTimeSeriesResponse.pb(answer).time_series:
            if series.points:
                newest = max(series.points, key=lambda point: point.interval.end_time.ToMicroseconds())
                found.append((newest.interval.end_time.ToMicroseconds(), newest.value.int64_value))
        return found

    def describe(self, queue: str) -> QueueInfo:
        """See :class:`~redrive.brokers.base.Broker`; of a name that a subscription and a topic share, both are told.

        ``max_deliveries`` is the smallest of the subscriptions in the project that dead-letter into ``queue``; where
        there are none, or may not be listed, it is that of ``queue`` itself. ``origin_lease`` is their longest ack
        deadline, unless one has a retry policy: then time between deliveries does not tell of leases.
        """
        found: Any = None
        if not is_full(queue, "topics"):
            try:
                found = self._get_subscription(queue, self._subscription_name(queue))
            except QueueMissing:
                if is_full(queue, "subscriptions"):
                    raise
        readers: int | None = None
        if not is_full(queue, "subscriptions"):
            try:
                readers = len(self._readers(queue, self._topic_name(queue)))
            except QueueMissing:
                if found is None:
                    raise
            except PermissionRefused:
                if found is None:
                    return QueueInfo(max_message_bytes=MAX_BYTES)
        if found is None:
            return QueueInfo(max_message_bytes=MAX_BYTES, subscribers=readers)
        policy = found.dead_letter_policy
        origins = self._origins_of(queue, found.topic)
        attempts = [one.dead_letter_policy.max_delivery_attempts for one in origins]
        return QueueInfo(
            retention=found.message_retention_duration or None,
            lease=timedelta(seconds=found.ack_deadline_seconds or 10),
            max_deliveries=min(attempts, default=policy.max_delivery_attempts) or None,
            ordered=found.enable_message_ordering,
            dead_letter_queue=short_name(policy.dead_letter_topic, self.project) or None,
            max_message_bytes=MAX_BYTES,
            subscribers=readers,
            origin_lease=_lease_of(origins),
        )

    def _origins_of(self, queue: str, topic: str) -> list[Any]:
        """The subscriptions in the project that dead-letter into ``topic``; [] where they may not be listed."""
        try:
            return self._feeding(queue, topic)
        except BrokerError:
            return []

    def _feeding(self, queue: str, topic: str) -> list[Any]:
        request = types.ListSubscriptionsRequest(project=f"projects/{self.project}", page_size=BATCH)
        found: list[Any] = []
        while True:
            page = self._call("ListSubscriptions", queue, self._subscriber.list_subscriptions, request).raw_page
            found += [one for one in page.subscriptions if one.dead_letter_policy.dead_letter_topic == topic]
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    def close(self) -> None:
        """Close connections; what is leased comes back when its lease ends."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._channel.close()
        if self._monitoring is not None:
            self._monitoring.close()

    # --- names and calls ------------------------------------------------------------------------------

    def _subscription_name(self, queue: str) -> str:
        if is_full(queue, "topics"):
            raise BrokerError(f"{queue} is a topic; a source is a subscription on it")
        return full_name("subscriptions", queue, self.project)

    def _topic_name(self, queue: str) -> str:
        if is_full(queue, "subscriptions"):
            return str(self._get_subscription(queue, queue).topic)
        return full_name("topics", queue, self.project)

    def _topic_behind(self, queue: str) -> str | None:
        """The topic of the subscription called ``queue``, if there is one."""
        if is_full(queue, "topics"):
            return None
        try:
            return str(self._get_subscription(queue, self._subscription_name(queue)).topic)
        except QueueMissing:
            return None

    def _get_subscription(self, queue: str, name: str) -> Any:
        request = types.GetSubscriptionRequest(subscription=name)
        return self._call("GetSubscription", queue, self._subscriber.get_subscription, request)

    def _call(
        self,
        action: str,
        queue: str,
        method: Callable[..., Any],
        request: Any,
        *,
        timeout: float | None = None,
        patient: bool = False,
    ) -> Any:
        """One call that may safely be repeated; raises the errors of :mod:`redrive.errors`.

        A ``patient`` call is one that waits for something to come: that nothing came in time is for the caller.
        """

        def once() -> Any:
            self.requests[action] += 1
            return method(request=request, retry=None, timeout=timeout or self._timeout)

        may_pass = _may_pass if not patient else lambda e: _may_pass(e) and not isinstance(e, api.DeadlineExceeded)
        try:
            answer = self._patiently(once, when=may_pass)
        except api.GoogleAPICallError as error:
            if patient and isinstance(error, api.DeadlineExceeded):
                raise
            if results := _results_per_id(error):
                raise _Partial(results) from error
            raise _known_error(action, queue, error) from error
        self._reached = True
        return answer

    def _patiently(self, work: Callable[[], Any], *, when: Callable[[BaseException], bool]) -> Any:
        return again(work, when=when, away=_never_sent, sleep=self._sleep)

    def _together(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
        """``work`` on all items, a few at a time, results in order."""
        if len(items) <= 1 or self._concurrency <= 1:
            return [work(item) for item in items]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._concurrency, thread_name_prefix="pubsub")
        return self._pool.map(work, items)


class _Partial(Exception):
    """Exactly-once delivery took some ids and refused others."""

    def __init__(self, ids: Mapping[object, str]) -> None:
        self.ids = ids
        super().__init__(f"{len(ids)} ids failed")


def _results_per_id(error: api.GoogleAPICallError) -> dict[object, str]:
    """The failures per ack id that an exactly-once subscription tells; {} for any other error."""
    told = error.metadata or {}
    return {i: words for i, words in told.items() if words.startswith(("PERMANENT_FAILURE", "TRANSIENT_FAILURE"))}


def _lease_of(origins: Sequence[Any]) -> timedelta | None:
    """The longest ack deadline of these subscriptions; None where a retry policy spaces deliveries out."""
    if any("retry_policy" in one for one in origins):
        return None
    deadlines = [timedelta(seconds=one.ack_deadline_seconds or 10) for one in origins]
    return max(deadlines, default=None)


def _known_error(action: str, queue: str, error: api.GoogleAPICallError) -> BrokerError:
    text = f"{action} on queue {queue}: {_words(error)}"
    if isinstance(error, api.NotFound):
        return QueueMissing(text)
    if isinstance(error, api.Forbidden | api.Unauthorized) or _says(error, _NO_TOKEN):
        return PermissionRefused(text)
    if _may_pass(error):
        return BrokerUnavailable(text)
    return BrokerError(text)


def _words(error: api.GoogleAPICallError) -> str:
    code = error.grpc_status_code.name if error.grpc_status_code else type(error).__name__
    return f"{code}: {error.message}"


def _says(error: api.GoogleAPICallError, texts: Sequence[str]) -> bool:
    return any(text in (error.message or "") for text in texts)


def _certainly_not_taken(error: BaseException) -> bool:
    """Pub/Sub answered that it did not look at the request (a quota), or no connection carried it there."""
    return isinstance(error, api.ResourceExhausted) or _never_sent(error)


def _never_sent(error: BaseException) -> bool:
    """There was no connection. One that broke is another matter: then the request may have arrived."""
    return isinstance(error, api.ServiceUnavailable) and _says(error, _NEVER_SENT)


def _may_pass(error: BaseException) -> bool:
    """Worth another try, for calls that may be repeated."""
    passing = (
        *(api.ServiceUnavailable, api.DeadlineExceeded, api.ResourceExhausted, api.Aborted),
        *(api.InternalServerError, api.Unknown, api.Cancelled),
    )
    return isinstance(error, passing) and not _says(error, _NO_TOKEN)


def _fate(queue: str, error: api.GoogleAPICallError) -> tuple[Publication, BrokerError | None]:
    """What became of the messages of a publish request that failed, and the error if it concerns the topic."""
    detail = _words(error)
    known = _known_error("Publish", queue, error)
    if isinstance(known, QueueMissing | PermissionRefused):
        return Publication("retry", detail=str(known)), known
    if isinstance(error, api.FailedPrecondition):  # a disabled key, a detached topic: nothing in the messages
        return Publication("retry", detail=detail), PermissionRefused(str(known))
    if _certainly_not_taken(error):
        return Publication("retry", detail=detail), None
    if isinstance(error, api.InvalidArgument | api.OutOfRange):
        return Publication("refused", detail=detail), None
    return Publication("unknown", detail=detail), None


def _any_arrived(results: Iterable[Publication | None]) -> bool:
    return any(result is not None and result.status in _ARRIVED for result in results)


def _never_connected(results: Iterable[Publication | None]) -> str:
    """The words of a call of which nothing could be sent because nobody was there; "" for any other."""
    waiting = [result.detail for result in results if result is not None and result.status == "retry"]
    away = [detail for detail in waiting if any(text in detail for text in _NEVER_SENT)]
    return away[0] if away and not _any_arrived(results) else ""


def _lease_seconds(lease: timedelta) -> int:
    return max(1, math.ceil(min(lease, MAX_LEASE).total_seconds()))
