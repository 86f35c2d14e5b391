"""Sources and destinations that fail: each is written down with the run and stops nothing else, and in the end the run
fails for them.

What is due goes out to all others, what other sources and shards have staged is loaded, and people are asked, whatever
is wrong with one queue.
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from redrive.errors import BrokerError, BrokerUnavailable, QueuesFailed
from redrive.stages.context import Context

log = logging.getLogger(__name__)

#: What a stage notes of a queue that failed, before its name; the value says why. What a look notes of a destination
#: has a word of its own: nobody may come to it later in the run.
FAILED: Final = "failed:"
UNSEEN: Final = "unseen:"
#: When so many queues in a row can't be reached, it is the broker: nobody asks for the rest.
UNREACHABLE: Final = 3
_LONGEST: Final = 1_000  # characters of a reason


class Failures:
    """The queues that fail in one stage."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._errors: dict[str, BrokerError] = {}
        self._unreachable = 0  # in a row

    @contextmanager
    def apart(self, queue: str) -> Iterator[None]:
        """What the broker refuses within the block is the trouble of ``queue`` alone."""
        try:
            yield
        except BrokerError as error:
            self.note(queue, error)
        else:
            self.answered()

    def note(self, queue: str, error: BrokerError) -> None:
        """It is the trouble of ``queue`` alone."""
        log.warning("%s of route %s failed: %s", queue, self._context.name, error)
        self._context.progress(f"{queue} failed, the others go on: {error}", 0, None)
        self._errors.setdefault(queue, error)
        self._unreachable = self._unreachable + 1 if isinstance(error, BrokerUnavailable) else 0

    def answered(self) -> None:
        """The broker answered for some queue."""
        self._unreachable = 0

    def raise_where_nobody_answers(self) -> None:
        """Raise the last one when so many in a row can't be reached that it is the broker."""
        if self._unreachable >= UNREACHABLE:
            raise list(self._errors.values())[-1]

    def raise_passing(self, *, unless_one_of: int = 0) -> None:
        """Raise the first of those that may pass, so that the caller may try again.

        With ``unless_one_of`` only where so many failed, all of them so: then nobody answers, and not one queue.
        """
        passing = [error for error in self._errors.values() if isinstance(error, BrokerUnavailable)]
        if passing and len(passing) >= unless_one_of:
            raise passing[0]

    def raise_first_of(self, queues: Collection[str | None]) -> None:
        """Raise the first where all of these failed."""
        if self._errors.keys() >= set(queues):
            raise next(iter(self._errors.values()))

    def noted(self, word: str = FAILED) -> dict[str, str]:
        """What the stage adds to its counts."""
        return {
            f"{word}{queue}": f"{type(error).__name__}: {error}"[:_LONGEST] for queue, error in self._errors.items()
        }


def failed(stages: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """By queue, why it failed in this run, by what its stages noted.

    A look that failed for a moment, at a source that was drained after it, is no failure.
    """
    looked, drained, sent = (_of(stages.get(stage, {})) for stage in ("observe", "drain", "deliver"))
    passing = f"{BrokerUnavailable.__name__}:"
    lasting = {queue: why for queue, why in looked.items() if not ("drain" in stages and why.startswith(passing))}
    return _of(stages.get("observe", {}), UNSEEN) | lasting | drained | sent


def refuse(counts: Mapping[str, Any]) -> None:
    """Raise :class:`QueuesFailed` where a stage's counts tell of queues that failed."""
    if failed := _of(counts) | _of(counts, UNSEEN):
        raise QueuesFailed(sentence(failed))


def sentence(failed: Mapping[str, str]) -> str:
    """The failed queues in words."""
    return "; ".join(f"queue {queue} failed: {why}" for queue, why in failed.items()) + ". Everything else was done"


def _of(counts: Mapping[str, Any], word: str = FAILED) -> dict[str, str]:
    return {name.removeprefix(word): str(why) for name, why in counts.items() if name.startswith(word)}
