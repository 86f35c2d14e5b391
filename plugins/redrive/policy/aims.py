"""Where a message goes: to the queue configured for its source, or else back to where its copy says that it failed.

A header says where, and whoever can put a message into a source can write headers. So without a configured queue an
origin counts only where the broker says that it dead-letters into this source, or the configuration lists it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

#: No broker's name of a queue is longer; what a header says beyond that is cut off.
LONGEST_ORIGIN = 500


@dataclass(frozen=True, slots=True)
class Aim:
    """Where the messages of one source go."""

    configured: str | None = None
    any_origin: bool = False  # where none is configured: whatever origin their copies tell …
    origins: frozenset[str] = frozenset()  # … or only these …
    beginnings: tuple[str, ...] = ()  # … and those that begin so
    as_before: bool = False  # nobody can be asked: where they were to go until now

    @classmethod
    def back(cls, listed: Iterable[str], vouched: Iterable[str] = ()) -> Self:
        """Back to an origin that is listed (a name, or a beginning and ``*``) or that the broker vouches for."""
        names = list(listed)
        return cls(
            origins=frozenset(name for name in names if not name.endswith("*")) | frozenset(vouched),
            beginnings=tuple(name[:-1] for name in names if name.endswith("*")),
        )

    def at(self, origin: str | None) -> str | None:
        """Where a new message goes whose copy told this ``origin``; None: nobody knows, or nobody vouches for it."""
        if self.configured is not None or origin is None:
            return self.configured
        trusted = self.any_origin or origin in self.origins or origin.startswith(self.beginnings)
        return origin if trusted else None


@dataclass(frozen=True, slots=True)
class Aims:
    """Where the messages of one route go."""

    by_source: Mapping[str, Aim]
    elsewhere: Aim = field(default_factory=Aim)  # for what was drained from sources that the route has no more

    def of(self, source: str) -> Aim:
        """Where messages that were drained from ``source`` go."""
        return self.by_source.get(source, self.elsewhere)
