"""Whether a source is drained to its end by one shard; what all shards together prove of it says
:mod:`redrive.stages.completeness`.

A shard reads a source until the depth that it saw at the start is reached or the source is empty, so a message that
bounces back can't keep it running. Then it is looked whether anything from before is left: that differs by what the
broker tells of its depth.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from redrive.brokers.base import Depth
from redrive.ledger.delivery import outcomes
from redrive.ledger.drain import first_looks, repeats
from redrive.settings import Source
from redrive.stages.context import Context, surely_as_of

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

#: Messages asked for per receive; adapters split it as their broker needs.
RECEIVE_AT_ONCE = 1_000
#: Receives in a row without anything new to us that end a drain where the broker's depth can't be trusted to.
EMPTY_RECEIVES = 3
#: How long the last look at a source whose depth tells late waits: with SQS a poll that waits at all asks all servers.
LAST_LOOK = timedelta(seconds=1)

#: What a shard notes of a source, before the name of its queue: as far as it goes itself it is drained to its end; it
#: is, whatever other shards say; at a moment nothing was there to be received; where it looked first, that it holds
#: nothing any more.
COMPLETE, PROVED, NOTHING_MORE, ENDED = "complete:", "proved:", "nothing_more:", "ended:"
#: Before the moment at which it began by its own clock, where the run began later by that of another host.
BEGAN = "began:"


def counts_out(context: Context, queue: str) -> bool:
    """Whether a count says which messages came: it is of the moment that it names, and what came first is given first.
    Elsewhere what came in since may have been given, and something that was counted is left."""
    can = context.broker.capabilities_for(queue)
    return can.in_order and not can.depth_lag


class Receives(Protocol):
    """The drain whose source it is."""

    @property
    def drained(self) -> int:
        """So many were staged."""
        ...

    def take(self, limit: int, wait: timedelta) -> int:
        """Receive up to ``limit`` and stage what comes; returns how many came."""
        ...

    def room(self) -> int:
        """So many one receive may bring."""
        ...

    def close_batch(self) -> None:
        """Settle all that was staged."""
        ...


class SourceEnd:
    """What one shard finds out: ``complete``, as far as it goes itself; ``proved``, whatever other shards say;
    ``nothing_more`` was there to be received at some moment; it looked first, and ``ended``."""

    def __init__(self, context: Context, source: Source, shard: int, drain: Receives) -> None:
        self._context = context
        self._source = source
        self._shard = shard
        self._drain = drain
        self._lag = context.broker.capabilities_for(source.queue).depth_lag
        self._wait = context.route.drain.wait
        self.complete = self.proved = self.nothing_more = self.ended = False
        self._looked = False
        self._began = False  # and it is to be written down at once that it ended

    def note(self, first: Depth, left: Depth | None, limit: int) -> None:
        """Whether the source, which began with ``first``, is drained to its end; ``left`` was seen after receives had
        brought nothing."""
        empty = left is not None and left.total is not None and left.total == (left.delayed or 0)
        if empty and not self._lag:
            self.complete = True
            self.proved = first.as_of is None  # parts of different age may overlook what another shard holds
        elif not self._is_late(first):
            self.complete = self.proved = self._is_counted_out(first) or self._nothing_is_left(limit)
        elif left is not None:
            self.nothing_more = self._has_nothing_more(limit)
            # A late count of nothing is one more estimate: what somebody holds may be in none of its parts.
            self.complete = empty and self.nothing_more and self._all_came(first)
        else:
            self.complete = self.nothing_more = self._all_came(first) and self._has_nothing_more(limit)

    def note_look(self, depth: Depth) -> None:
        """Where later looks can't tell what this run's shards hold from what others do, the first one has to; where no
        look tells anything, it is at least known who began."""
        context = self._context
        can = context.broker.capabilities_for(self._source.queue)
        total = depth.total if can.knows_empty else None
        if total is not None and not self._is_late(depth):
            return
        first_looks.note(
            context.ledger,
            context.lease,
            self._source.queue,
            shard=self._shard,
            total=total,
            in_flight=0 if total is None else depth.in_flight or 0,
            as_of=None if total is None else surely_as_of(depth),
            leased_for=can.hidden_for(context.route.drain.lease),
            now=context.now(),
        )
        self._looked, self._began = True, total is None or bool(self._lag)

    def note_end(self) -> None:
        """This shard holds nothing of the source any more; written down at once where a later look may not tell."""
        self.ended = self._looked
        if self._began:
            context = self._context
            first_looks.end(context.ledger, context.lease, self._source.queue, shard=self._shard, now=context.now())

    def _all_came(self, first: Depth) -> bool:
        return first.total is not None and self._drain.drained >= first.total

    def _is_late(self, depth: Depth) -> bool:
        return bool(self._lag) or depth.as_of is not None

    def _has_nothing_more(self, limit: int) -> bool:
        """As many have come as were counted: whether receives say too that this was all, where the count doesn't.

        What comes now is staged like the rest. Where something comes each time, the last receive decides: if it
        brought fewer than it was asked for, no backlog is left, and a source that is never empty can be complete too.
        """
        if counts_out(self._context, self._source.queue):
            return True
        matters = self._completeness_matters()
        if self._drain.drained and not matters:
            return True
        wait = min(self._wait, LAST_LOOK) if matters else timedelta(0)
        enough = EMPTY_RECEIVES if matters and not wait else 1  # one that doesn't wait may overlook something
        brought, asked, quiet = 0, 1, 0
        # What came in since the count is no more than what was counted, or the source fills as fast as it is drained.
        for _ in range(max(EMPTY_RECEIVES, self._drain.drained // RECEIVE_AT_ONCE)):
            asked = min(RECEIVE_AT_ONCE, limit - self._drain.drained, self._drain.room())
            if asked <= 0:
                return False
            brought = self._drain.take(asked, wait)
            quiet = 0 if brought else quiet + 1
            if quiet >= enough:
                return True
        return brought < asked

    def _is_counted_out(self, first: Depth) -> bool:
        """Nothing is decided by it, and as much came as was there, with nothing in flight before and after: so nobody
        has to receive what came in since. Only where what came first is given first: elsewhere what came in since may
        have been given, and what was there is left."""
        in_order = self._context.broker.capabilities_for(self._source.queue).in_order
        if not in_order or first.total is None or first.in_flight or self._drain.drained < first.total:
            return False
        if self._completeness_matters():
            return False
        self._drain.close_batch()
        return self._context.broker.depth(self._source.queue).in_flight == 0

    def _nothing_is_left(self, limit: int) -> bool:
        """Where the broker counts now: whether all that lies in the source has been received, and nobody holds any.

        A count at the start can't say so: other shards hold a part of it, and what comes in meanwhile takes the place
        of what somebody hides. So the source is counted when this shard holds nothing itself. When nothing is in flight
        then, all of it can be received, and what comes is staged like the rest. When as much came as was counted,
        nothing from before is left there, whatever came in since. While another shard or anybody else holds a message,
        this shard proves nothing; the last shard to end finds none held by the others.
        """
        broker, queue = self._context.broker, self._source.queue
        for _ in range(EMPTY_RECEIVES):
            self._drain.close_batch()
            left = broker.depth(queue)
            if left.total is None:
                return False
            there = left.total - (left.delayed or 0)
            if there == 0:
                return True
            if left.in_flight or there > limit - self._drain.drained:
                return False
            short = there
            while short > 0 and (
                brought := self._drain.take(min(RECEIVE_AT_ONCE, short, self._drain.room()), timedelta(0))
            ):
                short -= brought
            if short > 0:
                return False
            if there <= RECEIVE_AT_ONCE:  # more took a while, in which somebody may have hidden some
                return True
        return False

    def _completeness_matters(self) -> bool:
        """Whether anything is decided by this source's having been empty: if not, nobody is kept waiting for a proof.

        What is sent from now on is judged by later drains.
        """
        context = self._context
        if context.route.order_by is not None:
            return True
        with context.ledger.read() as connection:
            return outcomes.awaited(connection, context.name, context.run.started_at) or bool(self.in_doubt(connection))

    def in_doubt(self, connection: "Connection") -> dict[int, repeats.Doubtful]:
        """See :func:`redrive.ledger.drain.repeats.doubtful`."""
        context = self._context
        leased_for = context.route.drain.lease
        return repeats.doubtful(context.ledger, connection, context.name, self._source.queue, leased_for=leased_for)
