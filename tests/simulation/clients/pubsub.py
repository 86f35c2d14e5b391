"""Google's Pub/Sub clients over a simulated system. A queue is a topic and its one subscription, which share its name.

There is no Cloud Monitoring here, so nobody tells a depth.
"""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from google.api_core import exceptions as api
from google.pubsub_v1 import types

from redrive.brokers.pubsub.adapter import GooglePubSub
from redrive.brokers.pubsub.clients import Clients
from tests.simulation.world import Copy, System
from tests.simulation.world.systems import Header

TRAITS: dict[str, object] = {
    "depth": "unknown",
    "ids": "new",
    "death_times": True,
    "tells_origin": True,
    "tells_reason": False,
    "ordered": False,
    "dedupe": None,
    "max_headers": 100,
    "publish_batch": 1000,
    "native_delay": None,
    "subscribers": 1,
}
PROJECT = "simulated"
_PREFIX = "CloudPubSubDeadLetterSource"


def connect(system: System) -> GooglePubSub:
    """The real adapter, on these clients."""
    clock = system.world.clock
    service = PubSub(system)
    clients = Clients(service, service, SimpleNamespace(close=lambda: None), PROJECT, None)
    return GooglePubSub(
        clients, concurrency=1, sleep=clock.sleep, monotonic=clock.monotonic, clock=lambda: clock.now / 1e6
    )


class PubSub:
    """Publisher and subscriber: the calls that the adapter makes, with the library's types and errors."""

    def __init__(self, system: System) -> None:
        self._system = system

    # --- subscriber ---------------------------------------------------------------------------------------

    def pull(self, *, request: Any, retry: None, timeout: float) -> Any:
        name = self._queue(request.subscription)
        fate = self._system.fate("receive")
        self._fail(fate)
        taken = self._system.receive(name, request.max_messages, self._system.queues[name].lease, by="redrive")
        if fate == "lost":
            raise api.ServiceUnavailable("Socket closed")
        if not taken:
            if not request.return_immediately:
                self._system.world.clock.sleep(timeout)
            return types.PullResponse()
        return types.PullResponse(received_messages=[_received(copy, receipt) for copy, receipt in taken])

    def acknowledge(self, *, request: Any, retry: None, timeout: float) -> None:
        name = self._queue(request.subscription)
        fate = self._system.fate("settle")
        self._fail(fate)
        ids = [int(one) for one in request.ack_ids]
        # An ack that comes too late is taken without a word, and does nothing.
        self._system.settle(name, ids[: len(ids) // 2] if fate == "part" else ids, by="redrive")
        if fate in ("lost", "part"):
            raise api.ServiceUnavailable("Socket closed")

    def modify_ack_deadline(self, *, request: Any, retry: None, timeout: float) -> None:
        name = self._queue(request.subscription)
        self._fail(self._system.fate("extend"))
        ids = [int(one) for one in request.ack_ids]
        if request.ack_deadline_seconds:
            self._system.extend(name, ids, request.ack_deadline_seconds)
        else:
            self._system.release(name, ids, by="redrive")

    def get_subscription(self, *, request: Any, retry: None, timeout: float) -> Any:
        return self._subscription(self._queue(request.subscription))

    def list_subscriptions(self, *, request: Any, retry: None, timeout: float) -> Any:
        found = [self._subscription(name) for name in sorted(self._system.queues)]
        return SimpleNamespace(raw_page=SimpleNamespace(subscriptions=found, next_page_token=""))

    # --- publisher ----------------------------------------------------------------------------------------

    def publish(self, *, request: Any, retry: None, timeout: float) -> Any:
        name = self._queue(request.topic)
        fate = self._system.fate("publish")
        self._fail(fate)
        if fate == "refused":
            raise api.InvalidArgument("simulated")
        ids = []
        for message in types.PublishRequest.pb(request).messages:
            headers: list[Header] = [(key, "String", message.attributes[key]) for key in sorted(message.attributes)]
            ids.append(
                self._system.send(
                    name,
                    message.data,
                    tuple(headers),
                    by="redrive",
                    key=message.ordering_key or None,
                    known=fate != "lost",
                )
            )
        if fate == "lost":
            raise api.DeadlineExceeded("Deadline Exceeded")
        return types.PublishResponse(message_ids=ids)

    def get_topic(self, *, request: Any, retry: None, timeout: float) -> Any:
        return types.Topic(name=_full("topics", self._queue(request.topic)))

    def list_topic_subscriptions(self, *, request: Any, retry: None, timeout: float) -> Any:
        found = [_full("subscriptions", self._queue(request.topic))]
        return SimpleNamespace(raw_page=SimpleNamespace(subscriptions=found, next_page_token=""))

    # --- inside -------------------------------------------------------------------------------------------

    def _queue(self, full: str) -> str:
        name = full.rpartition("/")[2]
        if not self._system.exists(name):
            raise api.NotFound(f"Resource not found (resource={name}).")
        return name

    def _subscription(self, name: str) -> Any:
        queue = self._system.queues[name]
        policy = None
        if queue.dead_letters:
            policy = types.DeadLetterPolicy(
                dead_letter_topic=_full("topics", queue.dead_letters), max_delivery_attempts=queue.max_deliveries or 5
            )
        return types.Subscription(
            name=_full("subscriptions", name),
            topic=_full("topics", name),
            ack_deadline_seconds=queue.lease,
            dead_letter_policy=policy,
        )

    def _fail(self, fate: str) -> None:
        """Requests that were not carried out."""
        if fate == "down":
            raise api.ServiceUnavailable("failed to connect to all addresses; simulated")
        if fate == "retry":
            raise api.ResourceExhausted("Quota exceeded; simulated")
        if fate == "error":
            raise api.ServiceUnavailable("Socket closed")


def _received(copy: Copy, receipt: int) -> Any:
    attributes = {
        name: (value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
        .encode("utf-8", "replace")
        .decode()
        for name, _, value in copy.headers
    }
    if copy.failed_at is not None and copy.origin is not None:
        attributes.setdefault(f"{_PREFIX}DeliveryCount", str(copy.deliveries))
        attributes |= {
            f"{_PREFIX}Subscription": copy.origin,
            f"{_PREFIX}SubscriptionProject": PROJECT,
            f"{_PREFIX}TopicPublishTime": _moment(copy.enqueued_at).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
    message = types.PubsubMessage(
        data=copy.body,
        attributes=attributes,
        message_id=copy.broker_id,
        publish_time=_moment(copy.arrived_at),
        ordering_key=copy.key or "",
    )
    return types.ReceivedMessage(ack_id=str(receipt), message=message)


def _moment(micros: int) -> datetime:
    return datetime.fromtimestamp(micros // 1_000_000, UTC).replace(microsecond=micros % 1_000_000)


def _full(kind: str, name: str) -> str:
    return f"projects/{PROJECT}/{kind}/{name}"
