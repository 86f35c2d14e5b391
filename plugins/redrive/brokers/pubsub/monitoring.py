"""Depths from Cloud Monitoring, the only one to tell them: some minutes late, and a service and a right of its own."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from redrive.brokers.base import UNKNOWN_DEPTH, Depth

#: How far back Cloud Monitoring is asked for a depth; its points come every minute, some minutes late.
_LOOK_BACK = 900
_UNDELIVERED = "pubsub.googleapis.com/subscription/num_undelivered_messages"


class Monitoring:
    """Cloud Monitoring through ``channel``; ``requests`` counts what it was asked."""

    def __init__(self, channel: Any, *, timeout: float, clock: Callable[[], float], requests: Counter[str]) -> None:
        self._channel = channel
        self._timeout = timeout
        self._clock = clock
        self._requests = requests
        self._series: Callable[..., Any] | None = None

    def undelivered(self, names: Sequence[str]) -> Depth:
        """The newest points of the subscriptions with these full names, added up.

        Unknown where one is missing or nothing answers.
        """
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
        return Depth(total, 0, 0, as_of=int(oldest), by_its_clock=True)

    def _points(self, project: str, shorts: Sequence[str]) -> list[tuple[int, int]] | None:
        """(time in microseconds, count) per subscription; None where monitoring gives no answer."""
        from google.cloud.monitoring_v3 import types as monitoring  # noqa: PLC0415 - it takes a while, and few need it

        if self._series is None:
            self._series = self._channel.unary_unary(
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
        self._requests["ListTimeSeries"] += 1
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
