"""Requests to Pub/Sub: counted, and repeated where that is safe.

The library's retries are off, so that no request of unknown fate is repeated.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import google.api_core.exceptions as api

from redrive.brokers.pubsub.clients import Clients
from redrive.brokers.pubsub.errors import (
    PartlyRefused,
    certainly_not_taken,
    known_error,
    may_pass,
    never_sent,
    results_per_id,
)
from redrive.brokers.retries import again


class Calls:
    """What one project's clients are asked. ``requests`` counts requests by operation.

    ``timeout`` is how many seconds an answer may take.
    """

    def __init__(self, clients: Clients, *, timeout: float, sleep: Callable[[float], None]) -> None:
        self.publisher = clients.publisher
        self.subscriber = clients.subscriber
        self.timeout = timeout
        self.reached = False  # Pub/Sub has answered something
        self.requests: Counter[str] = Counter()
        self._sleep = sleep

    def call(
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

        That a ``patient`` call ran out of time is for the caller, who may have waited for something that did not come.
        """

        def once() -> Any:
            return self.once(action, method, request, timeout=timeout)

        passing = may_pass if not patient else lambda e: may_pass(e) and not isinstance(e, api.DeadlineExceeded)
        try:
            answer = self._patiently(once, when=passing)
        except api.GoogleAPICallError as error:
            if patient and isinstance(error, api.DeadlineExceeded):
                raise
            if results := results_per_id(error):
                raise PartlyRefused(results) from error
            raise known_error(action, queue, error) from error
        self.reached = True
        return answer

    def once(self, action: str, method: Callable[..., Any], request: Any, *, timeout: float | None = None) -> Any:
        """One request that is not repeated; raises the library's own errors."""
        self.requests[action] += 1
        return method(request=request, retry=None, timeout=timeout or self.timeout)

    def publish(self, request: Any) -> Any:
        """One publish, repeated only where it certainly was not taken; raises the library's own errors."""

        def once() -> Any:
            self.requests["Publish"] += 1
            return self.publisher.publish(request=request, retry=None, timeout=self.timeout)

        answer = self._patiently(once, when=certainly_not_taken)
        self.reached = True
        return answer

    def _patiently(self, work: Callable[[], Any], *, when: Callable[[BaseException], bool]) -> Any:
        return again(work, when=when, away=never_sent, sleep=self._sleep)
