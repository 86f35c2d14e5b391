"""What Service Bus tells about an entity over its administration API, where it may be asked."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Protocol, TypeVar

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError, ResourceNotFoundError
from azure.servicebus.management import ServiceBusAdministrationClient

from redrive.brokers.service_bus.message import Address
from redrive.errors import QueueMissing

#: After it could not be reached, or did not let us in, it is not asked again for so long (seconds).
SILENCE = 300.0
#: Longer times to live mean that nothing expires.
_FOREVER = timedelta(days=3650)
Answer = TypeVar("Answer")


class Facts(NamedTuple):
    """One queue, topic or subscription; None where it has no such thing."""

    lock_duration: timedelta | None = None
    max_delivery_count: int | None = None
    time_to_live: timedelta | None = None
    requires_session: bool = False
    duplicate_window: timedelta | None = None
    partitioned: bool = False
    forwards: bool = False  # it, or a subscription of the topic, passes on to another entity what comes
    forward_dead_letters_to: str | None = None
    forward_to: frozenset[str] = frozenset()  # where what comes goes on to; of a topic: by any of its subscriptions
    max_bytes: int | None = None
    active: int | None = None  # messages; None, here and in the next: it isn't told
    scheduled: int | None = 0  # lies in a queue or a topic, never before a subscriber
    dead_letters: int | None = None
    transfer_dead_letters: int | None = None
    subscribers: int | None = None  # of a topic


class Administration(Protocol):
    """Where :class:`Facts` come from."""

    def facts(self, address: Address) -> Facts | None:
        """What is told of the entity, None where nobody may ask; raises QueueMissing."""
        ...

    def subscriptions(self, topic: str) -> list[str] | None:
        """The names of the topic's subscriptions, None where nobody may ask; raises QueueMissing."""
        ...

    def close(self) -> None: ...


class NoAdministration:
    """Nobody can be asked."""

    def facts(self, address: Address) -> Facts | None:  # noqa: ARG002
        return None

    def subscriptions(self, topic: str) -> list[str] | None:  # noqa: ARG002
        return None

    def close(self) -> None: ...


class AtomApi:
    """The administration API (HTTPS, right ``Manage``)."""

    def __init__(self, client: ServiceBusAdministrationClient, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._monotonic = monotonic
        self._silent_until = 0.0

    def facts(self, address: Address) -> Facts | None:
        """See :class:`Administration`."""
        return self._told(lambda: self._facts(address), address.origin)

    def subscriptions(self, topic: str) -> list[str] | None:
        """See :class:`Administration`."""

        def ask() -> list[str]:
            self._client.get_topic(topic)
            return sorted(str(one.name) for one in self._client.list_subscriptions(topic))

        return self._told(ask, topic)

    def _facts(self, address: Address) -> Facts:
        if address.subscription is not None:
            return self._subscription(address.entity, address.subscription)
        try:
            return self._queue(address.entity)
        except (ResourceNotFoundError, AttributeError):  # the SDK trips over a topic's description
            return self._topic(address.entity)

    def _told(self, ask: Callable[[], Answer], origin: str) -> Answer | None:
        if self._monotonic() < self._silent_until:
            return None
        try:
            return ask()
        except (ResourceNotFoundError, AttributeError):
            raise QueueMissing(f"Service Bus has no queue or topic {origin}") from None
        except ClientAuthenticationError:
            self._silent_until = self._monotonic() + SILENCE
        except HttpResponseError as error:
            if error.status_code in (401, 403):
                self._silent_until = self._monotonic() + SILENCE
        except (AzureError, OSError):
            self._silent_until = self._monotonic() + SILENCE
        return None

    def _queue(self, name: str) -> Facts:
        rules, counts = self._client.get_queue(name), self._client.get_queue_runtime_properties(name)
        return Facts(
            **_common(rules, counts),
            lock_duration=_finite(rules.lock_duration),
            max_delivery_count=rules.max_delivery_count,
            requires_session=bool(rules.requires_session),
            forward_dead_letters_to=_entity_of(rules.forward_dead_lettered_messages_to),
            forward_to=_targets(rules),
            duplicate_window=_window(rules),
            partitioned=bool(rules.enable_partitioning),
            max_bytes=_bytes(rules),
            forwards=bool(rules.forward_to),
            scheduled=counts.scheduled_message_count,
        )

    def _subscription(self, topic: str, name: str) -> Facts:
        rules = self._client.get_subscription(topic, name)
        counts = self._client.get_subscription_runtime_properties(topic, name)
        return Facts(
            **_common(rules, counts),
            lock_duration=_finite(rules.lock_duration),
            max_delivery_count=rules.max_delivery_count,
            requires_session=bool(rules.requires_session),
            forward_dead_letters_to=_entity_of(rules.forward_dead_lettered_messages_to),
            forward_to=_targets(rules),
            scheduled=self._scheduled(topic),
        )

    def _scheduled(self, topic: str) -> int | None:
        """What comes to a topic's subscriptions later lies in the topic until then."""
        count: int | None = self._client.get_topic_runtime_properties(topic).scheduled_message_count
        return count

    def _topic(self, name: str) -> Facts:
        rules = self._client.get_topic(name)
        targets = _targets(*self._client.list_subscriptions(name))
        backlogs = [one.active_message_count for one in self._client.list_subscriptions_runtime_properties(name)]
        return Facts(
            time_to_live=_finite(rules.default_message_time_to_live),
            duplicate_window=_window(rules),
            partitioned=bool(rules.enable_partitioning),
            max_bytes=_bytes(rules),
            forward_to=targets,
            forwards=bool(targets),
            active=_most(backlogs),  # of the slowest subscriber
            scheduled=self._scheduled(name),
            subscribers=len(backlogs),
        )

    def close(self) -> None:
        self._client.close()


def _common(rules: Any, counts: Any) -> dict[str, Any]:
    return {
        "time_to_live": _finite(rules.default_message_time_to_live),
        "active": counts.active_message_count,
        "dead_letters": counts.dead_letter_message_count,
        "transfer_dead_letters": counts.transfer_dead_letter_message_count,
    }


def _targets(*rules: Any) -> frozenset[str]:
    """The entities to which any of these forwards."""
    return frozenset(target for one in rules if (target := _entity_of(one.forward_to)))


def _most(counts: Sequence[int | None]) -> int | None:
    """The largest; None where one isn't told."""
    known = [one for one in counts if one is not None]
    return max(known, default=0) if len(known) == len(counts) else None


def _finite(duration: object) -> timedelta | None:
    return duration if isinstance(duration, timedelta) and duration < _FOREVER else None


def _window(rules: Any) -> timedelta | None:
    window: timedelta | None = rules.duplicate_detection_history_time_window
    return window if rules.requires_duplicate_detection else None


def _bytes(rules: Any) -> int | None:
    kilobytes: int | None = rules.max_message_size_in_kilobytes
    return kilobytes * 1024 if kilobytes else None


def _entity_of(url: str | None) -> str | None:
    """The entity of ``https://namespace/entity``, as Service Bus writes forwards, or of a bare name."""
    if url and "://" in url:
        return url.split("://", 1)[1].partition("/")[2] or None
    return url or None
