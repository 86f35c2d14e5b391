"""When a route's runs begin: by its schedule, and where it is watched also when something arrives."""

from typing import Any

from redrive.settings import Route, format_duration


def of_route(name: str, route: Route) -> Any:
    """What the route's DAG is given as its ``schedule``."""
    cron: Any = route.schedule
    zone = route.airflow.timezone
    if cron is not None and (zone or route.airflow.watch):
        cron = _timetables()[0](cron, timezone=zone or "UTC")
    if route.airflow.watch is None:
        return cron
    from redrive.airflow import watching  # noqa: PLC0415  only for routes that want it

    arrived = [watching.asset(name, route.airflow.watch)]
    return arrived if cron is None else _timetables()[1](timetable=cron, assets=arrived)


def in_words(route: Route) -> str:
    """The same for people."""
    begins = [f"`{route.schedule}` {route.airflow.timezone or 'UTC'}"] if route.schedule else []
    if route.airflow.watch:
        begins.append(f"when something dies, looked at every {format_duration(route.airflow.watch)}")
    return ", and ".join(begins) or "only by hand"


def _timetables() -> tuple[Any, Any]:
    try:
        from airflow.sdk import AssetOrTimeSchedule, CronTriggerTimetable  # noqa: PLC0415
    except ImportError:  # before Airflow 3.2
        from airflow.timetables.assets import AssetOrTimeSchedule  # noqa: PLC0415
        from airflow.timetables.trigger import CronTriggerTimetable  # noqa: PLC0415
    return CronTriggerTimetable, AssetOrTimeSchedule
