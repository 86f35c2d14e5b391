"""Sources that fail: each is written down with the run and stops nothing else, and in the end the run fails for them.

What is due goes out, and what other sources and shards have staged is loaded, whatever is wrong with one queue.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from redrive.errors import BrokerError, BrokerUnavailable, SourcesFailed
from redrive.stages.context import Context

log = logging.getLogger(__name__)

#: What a stage notes of a source that failed, before the name of its queue; the value says why.
FAILED: Final = "failed:"
_LONGEST: Final = 1_000  # characters of a reason


class Failures:
    """The sources that fail in one stage."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._errors: dict[str, BrokerError] = {}

    @contextmanager
    def apart(self, queue: str) -> Iterator[None]:
        """What the broker refuses within the block is the trouble of source ``queue`` alone."""
        try:
            yield
        except BrokerError as error:
            log.warning("source %s of route %s failed: %s", queue, self._context.name, error)
            self._context.progress(f"{queue} failed, the others go on: {error}", 0, None)
            self._errors[queue] = error

    def raise_passing(self, *, unless_one_of: int = 0) -> None:
        """Raise the first of those that may pass, so that the caller may try again.

        With ``unless_one_of`` only where so many failed, all of them so: then nobody answers, and not one queue.
        """
        passing = [error for error in self._errors.values() if isinstance(error, BrokerUnavailable)]
        if passing and len(passing) >= unless_one_of:
            raise passing[0]

    def noted(self) -> dict[str, str]:
        """What the stage adds to its counts."""
        return {
            f"{FAILED}{queue}": f"{type(error).__name__}: {error}"[:_LONGEST] for queue, error in self._errors.items()
        }


def failed(stages: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """By source, why it failed in this run, by what its stages noted.

    A look that failed for a moment, at a source that was drained after it, is no failure.
    """
    looked, drained = (_of(stages.get(stage, {})) for stage in ("observe", "drain"))
    passing = f"{BrokerUnavailable.__name__}:"
    lasting = {queue: why for queue, why in looked.items() if not ("drain" in stages and why.startswith(passing))}
    return lasting | drained


def refuse(counts: Mapping[str, Any]) -> None:
    """Raise :class:`SourcesFailed` where a stage's counts tell of sources that failed."""
    if failed := _of(counts):
        raise SourcesFailed(sentence(failed))


def sentence(failed: Mapping[str, str]) -> str:
    """The failed sources in words."""
    return "; ".join(f"source {queue} failed: {why}" for queue, why in failed.items()) + ". Everything else was done"


def _of(counts: Mapping[str, Any]) -> dict[str, str]:
    return {name.removeprefix(FAILED): str(why) for name, why in counts.items() if name.startswith(FAILED)}
