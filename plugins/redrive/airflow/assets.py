"""Assets, so that other DAGs can wait for a route: an event for each run that did what it could, with its numbers.

A task tells an event of each of its outlets whenever it succeeds. Here that depends on the run: a dry run tells
nothing, and only one that left nothing to do says that the route is clean. So the outlet is an alias, and what it
stands for is said run by run.
"""

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Asset, AssetAlias


def alias(route: str) -> AssetAlias:
    """The outlet of the route's task ``report``."""
    return AssetAlias(name=f"redrive_{route}", group="redrive")


def of_route(route: str) -> Asset:
    """``redrive://route/NAME``: a run has ended in which nothing failed."""
    return Asset(f"redrive://route/{route}", group="redrive")


def clean(route: str) -> Asset:
    """``redrive://route/NAME/clean``: such a run, and nothing is left to do on the route."""
    return Asset(f"redrive://route/{route}/clean", group="redrive")


def emit(context: Mapping[str, Any], route: str, report: Mapping[str, Any]) -> None:
    """The events of a run with this report; its numbers are the event's ``extra``."""
    extra = {name: value for name, value in report.items() if isinstance(value, int | str)}
    events = context["outlet_events"][alias(route)]
    events.add(of_route(route), extra=extra)
    if report["clean"]:
        events.add(clean(route), extra=extra)
