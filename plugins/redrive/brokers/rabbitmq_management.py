"""RabbitMQ's management API: what AMQP itself doesn't tell. Optional; everything here is read-only."""

import base64
import http.client
import json
import re
import ssl
import urllib.error
import urllib.request
from typing import Any, NamedTuple
from urllib.parse import quote

from redrive.errors import BrokerError, BrokerUnavailable, PermissionRefused, QueueMissing


class QueueFacts(NamedTuple):
    """How a queue was declared, with the policies that hold for it."""

    name: str
    type: str  # classic | quorum | stream
    unacked: int | None  # None: not measured yet
    ttl_ms: int | None
    delivery_limit: int | None  # None: none
    dead_letter_exchange: str | None
    dead_letter_routing_key: str | None
    single_active_consumer: bool


class Management:
    """One virtual host as its management API tells of it."""

    def __init__(
        self, url: str, vhost: str, user: str, password: str, *, context: ssl.SSLContext | None, timeout: float
    ) -> None:
        self._url = url.rstrip("/")
        self._vhost = quote(vhost, safe="")
        self._authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self._timeout = timeout
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})] if _is_loopback(url) else []
        if context is not None:
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    def queue(self, name: str) -> QueueFacts:
        """One queue."""
        return _facts(self._get(f"queues/{self._vhost}/{quote(name, safe='')}", name))

    def queues(self) -> list[QueueFacts]:
        """Every queue of the virtual host that the user may see."""
        return [_facts(one) for one in self._get(f"queues/{self._vhost}", "")]

    def targets(self, facts: QueueFacts) -> list[str]:
        """The queues into which ``facts`` dead-letters; [] when it doesn't, or nothing is bound there."""
        if facts.dead_letter_exchange is None:
            return []
        key = facts.dead_letter_routing_key
        if facts.dead_letter_exchange == "":
            return [key if key is not None else facts.name]
        exchange = quote(facts.dead_letter_exchange, safe="")
        try:
            kind = self._get(f"exchanges/{self._vhost}/{exchange}", facts.name)["type"]
            bindings = self._get(f"exchanges/{self._vhost}/{exchange}/bindings/source", facts.name)
        except QueueMissing:
            return []
        found = [
            binding["destination"]
            for binding in bindings
            if binding["destination_type"] == "queue" and _routes(kind, binding["routing_key"], key)
        ]
        return list(dict.fromkeys(found))

    def _get(self, path: str, queue: str) -> Any:
        subject = f"management API: {path.partition('?')[0].split('/')[0]} of queue {queue}"
        request = urllib.request.Request(  # noqa: S310 - the connection says http or https
            f"{self._url}/api/{path}", headers={"Authorization": self._authorization}
        )
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            words = f"{subject}: HTTP {error.code} {error.reason}"
            if error.code in (401, 403):
                raise PermissionRefused(words) from None
            if error.code == 404:
                raise QueueMissing(words) from None
            raise (BrokerUnavailable if error.code >= 500 else BrokerError)(words) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise BrokerUnavailable(f"{subject}: {type(error).__name__}: {error}") from error


def _facts(told: dict[str, Any]) -> QueueFacts:
    policy = told.get("effective_policy_definition") or {}
    arguments = told.get("arguments") or {}

    def of(key: str) -> Any:
        return arguments.get(f"x-{key}", policy.get(key))

    limits = [limit for limit in (arguments.get("x-delivery-limit"), policy.get("delivery-limit")) if limit is not None]
    reported = told.get("delivery_limit")  # 4.0 tells the limit in force, its default of 20 included
    if isinstance(reported, int):
        limits = [reported]
    unacked = told.get("messages_unacknowledged")
    return QueueFacts(
        str(told["name"]),
        str(told.get("type") or "classic"),
        int(unacked) if isinstance(unacked, int) else None,
        of("message-ttl"),
        limit if limits and (limit := min(limits)) >= 0 else None,
        of("dead-letter-exchange"),
        of("dead-letter-routing-key"),
        bool(arguments.get("x-single-active-consumer")),
    )


def _routes(kind: str, pattern: str, key: str | None) -> bool:
    """Whether a dead letter can come through a binding; without a key of its own it keeps the message's, any."""
    if kind == "fanout" or key is None:
        return True
    if kind == "topic":
        return _matches(pattern.split("."), key.split(".") if key else [])
    return kind == "direct" and pattern == key


def _matches(pattern: list[str], words: list[str]) -> bool:
    """A topic pattern: ``*`` is one word, ``#`` any number of them."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_matches(pattern[1:], words[skipped:]) for skipped in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _matches(pattern[1:], words[1:])


def _is_loopback(url: str) -> bool:
    return bool(re.match(r"https?://(127\.|localhost|\[::1\])", url))
