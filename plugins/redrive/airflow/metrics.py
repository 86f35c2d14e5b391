"""What stages report, as metrics of Airflow: to StatsD or OpenTelemetry, as the team has set it up for everything else.

The words are those of the report; the tags say route and stage. Where Airflow writes the names of its own metrics the
old way too (``[metrics] legacy_names_on``), so does this: plain StatsD has no tags, so there the route is in the name.
"""

import functools
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from redrive.airflow import compat

log = logging.getLogger(__name__)

#: Counters, each by the stage that reports it and its name there.
COUNTERS: Final[dict[str, frozenset[str]]] = {
    "drain": frozenset({"drained"}),
    "load": frozenset({"new", "returned", "duplicates", "suspected"}),
    "resolve": frozenset({"confirmed", "presumed"}),
    "plan": frozenset({"discarded", "expired"}),
    "deliver": frozenset({"redelivered", "suppressed", "unknown"}),
    "escalate": frozenset({"escalated", "suppressed"}),
}
#: Gauges: what is there now.
GAUGES: Final[dict[str, frozenset[str]]] = {
    "observe": frozenset({"source_depth", "destination_depth", "oldest_age_seconds"}),
    "report": frozenset({"waiting", "held"}),
}


def emit(route: str, stage: str, counts: Mapping[str, Any]) -> None:
    """Tell Airflow's metrics what ``stage`` of a run of ``route`` did. Never raises: a run fails for no metric."""
    try:
        stats = compat.stats()
        tags = {"route": route}
        for name in sorted(COUNTERS.get(stage, frozenset()) & counts.keys()):
            if count := int(counts[name] or 0):
                for one in _names(name, route):
                    stats.incr(one, count, tags=tags)
        for name in sorted(GAUGES.get(stage, frozenset()) & counts.keys()):
            if counts[name] is not None:
                for one in _names(name, route):
                    stats.gauge(one, counts[name], tags=tags)
        if isinstance(seconds := counts.get("seconds"), int | float):
            for one in _names("stage.duration", f"{route}.{stage}"):
                stats.timing(one, timedelta(seconds=seconds), tags=tags | {"stage": stage})
    except Exception:
        log.warning("the metrics of %s of route %s were not sent", stage, route, exc_info=True)


def gauge(name: str, value: int) -> None:
    """A number about all routes together."""
    try:
        compat.stats().gauge(f"redrive.{name}", value)
    except Exception:
        log.warning("the metric %s was not sent", name, exc_info=True)


def _names(name: str, of: str) -> list[str]:
    return [f"redrive.{name}", f"redrive.{name}.{of}"] if _old_names_too() else [f"redrive.{name}"]


@functools.cache
def _old_names_too() -> bool:
    from airflow.configuration import conf  # noqa: PLC0415  not at every parse

    return bool(conf.getboolean("metrics", "legacy_names_on", fallback=True))
