"""Where a message goes: to the queue configured for its source, or else back to where its copy says that it failed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

#: No broker's name of a queue is longer; what a header says beyond that is cut off.
LONGEST_ORIGIN = 500


@dataclass(frozen=True, slots=True)
class Aim:
    """Where the messages of one source go."""

    configured: str | None = None
    any_origin: bool = False  # where none is configured: whatever origin their copies tell

    def at(self, origin: str | None) -> str | None:
        """Where a message goes whose copy told this ``origin``; None: nobody knows."""
        if self.configured is not None:
            return self.configured
        return origin if self.any_origin else None


@dataclass(frozen=True, slots=True)
class Aims:
    """Where the messages of one route go."""

    by_source: Mapping[str, Aim]
    elsewhere: Aim = field(default_factory=Aim)  # for what was drained from sources that the route has no more

    def of(self, source: str) -> Aim:
        """Where messages that were drained from ``source`` go."""
        return self.by_source.get(source, self.elsewhere)
