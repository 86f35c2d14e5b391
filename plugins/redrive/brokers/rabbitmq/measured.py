"""What the node measured of its queues some seconds ago, told apart from what we ourselves did there meanwhile."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from redrive.brokers.rabbitmq.management import Management, QueueFacts
from redrive.errors import BrokerUnavailable, PermissionRefused
from redrive.message import Micros

#: The management API measures queues every five seconds (collect_statistics_interval).
STATISTICS_LAG = 6.0


class Others(NamedTuple):
    """What others than we held of a queue, as the node measured it."""

    held: int
    ready: int | None  # what was ready at the same moment; None: not measured yet
    as_of: Micros


class Measured:
    """The node's numbers of each queue. Without the management API there are none."""

    def __init__(self, management: Management | None, monotonic: Callable[[], float]) -> None:
        #: By queue: mean bytes of all that lay there when the node measured it last; None: not told.
        self.backlog_bytes: dict[str, float | None] = {}
        self._management = management
        self._monotonic = monotonic
        self._touched: dict[str, float] = {}  # when a queue's unacked messages last changed through us
        self._leaderless: set[str] = set()  # quorum queues that had no leader when the node was asked last
        self._others: dict[str, Others] = {}  # what they held when it was last known apart from what we hold

    def touch(self, queue: str) -> None:
        """The queue's unacked messages change through us now."""
        self._touched[queue] = self._monotonic()

    def just_touched(self, queue: str) -> bool:
        """The node's numbers may be from before we received or settled there, or from after."""
        touched = self._touched.get(queue)
        return touched is not None and self._monotonic() - touched <= STATISTICS_LAG

    def is_known(self, queue: str) -> bool:
        """What others hold there was known once, and still is as far as may be."""
        return queue in self._others

    def others(self, queue: str, held: Callable[[str], int]) -> Others | None:
        """What others hold, as it was measured last; None where it never was, or is not told any more.

        ``held`` tells how many messages of a queue we hold: they are in the node's number too.
        """
        if self._management is None:
            return None
        if not self.just_touched(queue):
            self._others.pop(queue, None)
            try:
                facts = self._management.queue(queue)
            except (BrokerUnavailable, PermissionRefused):
                return None
            self.backlog_bytes[queue] = facts.mean_bytes
            self._note_leader(queue, facts)
            if not facts.statistics:
                return None
            as_of = round((time.time() - STATISTICS_LAG) * 1_000_000)
            theirs = max((facts.unacked or 0) - held(queue), 0)  # None: nothing was ever delivered
            self._others[queue] = Others(theirs, facts.ready, as_of)
        return self._others.get(queue)

    def lacks_leader(self, queue: str) -> bool:
        """The node says that nobody leads this quorum queue, so that a count of it tells nothing. Call it after
        :meth:`others`, which asks as a rule."""
        if self._management is not None and self.just_touched(queue) and self.is_known(queue):
            with suppress(BrokerUnavailable, PermissionRefused):
                self._note_leader(queue, self._management.queue(queue))
        return queue in self._leaderless

    def _note_leader(self, queue: str, facts: QueueFacts) -> None:
        if facts.leaderless:
            self._leaderless.add(queue)
        else:
            self._leaderless.discard(queue)
