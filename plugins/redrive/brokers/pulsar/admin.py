"""Pulsar's admin API: whether a topic is there, how full it is, who reads it. Only an unload changes anything."""

import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from redrive.brokers.pulsar.kind import FULL_NAME
from redrive.brokers.rest import Rest
from redrive.brokers.retries import RetryPolicy
from redrive.errors import QueueMissing

#: A broker that just started loads its topics first.
_WHILE_LOADING = RetryPolicy(6, 0.5, 4)


class Admin:
    """One cluster through its admin API. ``headers`` gives what proves who we are, anew for each request."""

    def __init__(
        self, url: str, *, headers: Callable[[], dict[str, str]], context: ssl.SSLContext | None, timeout: float
    ) -> None:
        # A broker sends us on to the one that has the topic.
        url = f"{url.rstrip('/')}/admin/v2"
        self._api = Rest(url, headers=headers, context=context, timeout=timeout, cluster=True)

    def partitions(self, topic: str) -> int:
        """How many partitions ``topic`` has; 0: it is not partitioned. Creates nothing, whatever the broker allows."""
        told = self._get(f"{_path(topic)}/partitions?checkAllowAutoCreation=false", topic)
        count = int(told.get("partitions", 0))
        if count == 0:  # before 4.0 that was also the answer for a topic that isn't there
            self.stats(topic, 0)
        return count

    def stats(self, topic: str, partitions: int) -> dict[str, Any]:
        """The statistics of a topic, of all its partitions together."""
        kind = "partitioned-stats?perPartition=false&" if partitions else "stats?"
        told: dict[str, Any] = self._get(
            f"{_path(topic)}/{kind}getPreciseBacklog=true&subscriptionBacklogSize=false", topic
        )
        return told

    def each_stats(self, topic: str, partitions: int) -> list[dict[str, Any]]:
        """The statistics of each partition, or of a topic that has none."""
        if not partitions:
            return [self.stats(topic, 0)]
        told = self._get(f"{_path(topic)}/partitioned-stats?perPartition=true", topic)
        return list(told.get("partitions", {}).values())

    def entries(self, topic: str, partitions: int) -> int:
        """How many entries the topic still holds, read or not."""
        if not partitions:
            return int(self._get(f"{_path(topic)}/internalStats", topic).get("numberOfEntries", 0))
        told = self._get(f"{_path(topic)}/partitioned-internalStats", topic)
        return sum(int(one.get("numberOfEntries", 0)) for one in told.get("partitions", {}).values())

    def message_ttl(self, topic: str) -> int:
        """After how many seconds unread messages of ``topic`` are taken for read; 0: never.

        What applies there, whether topic, namespace or broker says it.
        """
        return int(self._get(f"{_path(topic)}/messageTTL?applied=true", topic) or 0)

    def unacked_limits(self, topic: str) -> tuple[int | None, int | None]:
        """How many unacked messages one consumer, and all of a subscription, may hold of ``topic``; None: any number.

        What applies there, whether topic, namespace or broker says it.
        """
        of_each, of_all = (
            self._get(f"{_path(topic)}/maxUnackedMessagesOn{who}?applied=true", topic)
            for who in ("Consumer", "Subscription")
        )
        return (int(of_each) if of_each else None), (int(of_all) if of_all else None)

    def unload(self, topic: str) -> None:
        """Let the broker give up ``topic`` and load it again: its consumers connect anew, and hold nothing."""
        self._api.ask(f"{_path(topic)}/unload", f"admin API: unload of topic {topic}", method="PUT")

    def schema(self, topic: str, version: int) -> tuple[str, str]:
        """Type and definition of one version of a topic's schema."""
        told = self._get(f"schemas/{_path(topic).removeprefix('persistent/')}/schema/{version}", topic)
        return str(told["type"]), str(told.get("data") or "")

    def _get(self, path: str, topic: str) -> Any:
        """The decoded answer. A broker that just started answers 500 until the topic is loaded: asked a few times."""
        name = path.partition("?")[0].rpartition("/")[2]
        return self._api.retried(path, f"admin API: {name} of topic {topic}", _WHILE_LOADING)


def _path(topic: str) -> str:
    found = FULL_NAME.fullmatch(topic)
    if found is None:
        raise QueueMissing(f"{topic} does not name a persistent topic (persistent://tenant/namespace/topic)")
    return "persistent/" + "/".join(quote(part, safe="") for part in found.groups())
