"""Begin a run when something dies: a trigger that looks at the depth of a route's sources, and takes nothing.

What it tells is a doorbell. The run that it begins looks for itself, so an event that is lost, late or told twice costs
nothing, and the schedule comes as ever.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from redrive.errors import RedriveError

log = logging.getLogger(__name__)


class Rise:
    """When more has come than there was: told at the second look, so that a burst is one run.

    What is there at the first look has come too; what a run leaves behind rings no second time.
    """

    def __init__(self) -> None:
        self._least = 0
        self._rising = False

    def seen(self, depth: int) -> bool:
        """Whether to ring, after a look that counted ``depth`` messages."""
        if depth <= self._least:
            self._least, self._rising = depth, False
            return False
        if not self._rising:
            self._rising = True
            return False
        self._least, self._rising = depth, False
        return True


class DepthTrigger(BaseEventTrigger):  # type: ignore[misc]  # Airflow has no types for mypy
    """Rings when more lies in the dead-letter sources of ``route`` than before; looks every ``seconds``."""

    def __init__(self, route: str, seconds: float) -> None:
        super().__init__()
        self.route = route
        self.seconds = seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """How Airflow makes it anew in the triggerer."""
        return f"{__name__}.{type(self).__name__}", {"route": self.route, "seconds": self.seconds}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look for as long as the route is watched. A look that fails is told, and the next one comes anyway."""
        rise = Rise()
        while True:
            try:
                # In a thread: clients of brokers block, and so does asking Airflow for a connection.
                depth = await sync_to_async(look, thread_sensitive=False)(self.route)
            except Exception as error:
                log.warning("route %s: could not look at its sources: %s: %s", self.route, type(error).__name__, error)
            else:
                if rise.seen(depth):
                    yield TriggerEvent({"route": self.route, "visible": depth})
            await asyncio.sleep(self.seconds)


def look(route: str) -> int:
    """How many messages can be received from the dead-letter sources of the route; 0 of those that don't tell.

    The consumers of its destinations are looked at too; where that fails, it is told and nothing else.
    """
    from redrive import settings as configuration  # noqa: PLC0415
    from redrive.brokers import open_broker  # noqa: PLC0415
    from redrive.stages import source_expansion  # noqa: PLC0415
    from redrive.stages.watch import watch  # noqa: PLC0415

    settings = configuration.load()
    watched = settings.route(route)
    broker = open_broker(watched.broker, watched.connection or "")
    try:
        try:
            watch(settings, route, broker, datetime.now(UTC))
        except RedriveError as error:
            log.warning("route %s: could not look at its consumers: %s: %s", route, type(error).__name__, error)
        watched = source_expansion.as_the_broker_says(watched, lambda: broker)
        # A delay queue always holds something: that it waits is what it is for.
        return sum(broker.depth(one.queue).visible or 0 for one in watched.sources if one.kind == "dead_letter")
    finally:
        broker.close()


def asset(route: str, every: timedelta) -> Asset:
    """``redrive://route/NAME/arrived``: something has died. Its watcher tells it."""
    trigger = DepthTrigger(route, every.total_seconds())
    return Asset(
        f"redrive://route/{route}/arrived",
        group="redrive",
        watchers=[AssetWatcher(name=f"redrive_{route}", trigger=trigger)],
    )
