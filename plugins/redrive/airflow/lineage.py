"""What a run read and wrote, for OpenLineage: through Airflow's hook lineage, which its provider listens to.

Queues are ``redrive://queue/BROKER/CONNECTION/QUEUE``; :func:`to_openlineage` says them in OpenLineage's words. They
are no outlets of tasks: an outlet tells an asset event whenever its task ends well, also where nothing was moved.
"""

import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from redrive.airflow import compat
from redrive.settings import Route, Settings

log = logging.getLogger(__name__)


def emit(settings: Settings, name: str, stage: str, counts: Mapping[str, Any]) -> None:
    """Tell what ``stage`` of route ``name`` moved: from queues into staging, from staging to queues. Never raises."""
    try:
        route = settings.route(name)
        if stage == "drain" and counts.get("drained"):
            _tell([_queue(route, source.queue) for source in route.sources], [_staging(settings)])
        elif stage == "deliver" and counts.get("redelivered"):
            _tell([_staging(settings)], [_queue(route, queue) for queue in _destinations(route)])
    except Exception:
        log.warning("the lineage of %s of route %s was not told", stage, name, exc_info=True)


def _tell(read: list[str], written: list[str]) -> None:
    from airflow.sdk import get_current_context  # noqa: PLC0415  not at every parse

    collector, task = compat.lineage_collector(), get_current_context()["ti"]
    for uri in read:
        collector.add_input_asset(task, uri=uri)
    for uri in written:
        collector.add_output_asset(task, uri=uri)


def _destinations(route: Route) -> list[str]:
    """The queues that the configuration names; where messages go back to where they came from, the broker tells."""
    default = route.destination.queue if route.destination else None
    return sorted({queue for source in route.sources if (queue := source.destination or default)})


def _queue(route: Route, queue: str) -> str:
    return (
        f"redrive://queue/{'/'.join(quote(part, safe='') for part in (route.broker, route.connection or '-', queue))}"
    )


def _staging(settings: Settings) -> str:
    return settings.staging if "://" in settings.staging else f"file://localhost{settings.staging}"


def to_openlineage(asset: Any, lineage_context: Any) -> Any:
    """OpenLineage's dataset of one of our assets; Airflow's provider for it asks, by our entry point."""
    from airflow.providers.common.compat.openlineage.facet import Dataset  # noqa: PLC0415

    del lineage_context
    parts = urlsplit(asset.uri)
    path = [unquote(part) for part in parts.path.split("/")[1:]]
    if parts.netloc == "queue":
        broker, connection, queue = path
        return Dataset(namespace=f"{broker}://{connection}", name=queue)
    return Dataset(namespace=f"redrive://{parts.netloc}", name="/".join(path))
