"""Pulsar's admin API: whether a topic is there, how full it is, who reads it. Everything here only reads."""

import http.client
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import tenacity

from redrive.errors import BrokerError, BrokerUnavailable, PermissionRefused, QueueMissing

#: persistent://tenant/namespace/topic
_FULL = re.compile(r"persistent://([^/]+)/([^/]+)/(.+)\Z", re.DOTALL)


class _NotReady(BrokerUnavailable):
    """The broker answers, but not yet for this topic."""


class Admin:
    """One cluster through its admin API. ``headers`` gives what proves who we are, anew for each request."""

    def __init__(
        self, url: str, *, headers: Callable[[], dict[str, str]], context: ssl.SSLContext | None, timeout: float
    ) -> None:
        self._url = url.rstrip("/")
        self._headers = headers
        self._timeout = timeout
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})] if _is_loopback(url) else []
        if context is not None:
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

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
        """After how many seconds the namespace takes unread messages for read; 0: never."""
        found = _FULL.match(topic)
        assert found is not None  # noqa: S101 - only full names come here
        return int(
            self._get(f"namespaces/{quote(found[1], safe='')}/{quote(found[2], safe='')}/messageTTL", topic) or 0
        )

    def schema(self, topic: str, version: int) -> tuple[str, str]:
        """Type and definition of one version of a topic's schema."""
        told = self._get(f"schemas/{_path(topic).removeprefix('persistent/')}/schema/{version}", topic)
        return str(told["type"]), str(told.get("data") or "")

    def _get(self, path: str, topic: str) -> Any:
        """The decoded answer. A broker that just started answers 500 until the topic is loaded: asked a few times."""
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_NotReady),
            wait=tenacity.wait_random_exponential(multiplier=0.5, max=4),
            stop=tenacity.stop_after_attempt(6),
            reraise=True,
        )
        return again(self._get_once, path, topic)

    def _get_once(self, path: str, topic: str) -> Any:
        subject = f"admin API: {path.partition('?')[0].rpartition('/')[2]} of topic {topic}"
        request = urllib.request.Request(  # noqa: S310 - the connection says http or https
            f"{self._url}/admin/v2/{path}", headers=self._headers()
        )
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                content = answer.read()
            return json.loads(content) if content else None
        except urllib.error.HTTPError as error:
            words = f"{subject}: HTTP {error.code} {_reason(error)}"
            if error.code in (401, 403):
                raise PermissionRefused(words) from None
            if error.code == 404:
                raise QueueMissing(words) from None
            raise (_NotReady if error.code >= 500 else BrokerError)(words) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise BrokerUnavailable(f"{subject}: {type(error).__name__}: {error}") from error


def _path(topic: str) -> str:
    found = _FULL.match(topic)
    if found is None:
        raise QueueMissing(f"{topic} does not name a persistent topic (persistent://tenant/namespace/topic)")
    return "persistent/" + "/".join(quote(part, safe="") for part in found.groups())


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        told = json.loads(error.read())
        return str(told["reason"]).strip().partition("\n")[0][:300]  # it may hold a stack trace of the server
    except (OSError, ValueError, KeyError, TypeError):
        return str(error.reason)


def _is_loopback(url: str) -> bool:
    return bool(re.match(r"https?://(127\.|localhost|\[::1\])", url))
