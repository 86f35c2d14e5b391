"""What one delivery task claims: the next slice of a lane, when its turn has come or beside the slice before it.

A claim takes longer than what the broker has of a window. Where the ledger has a server of its own that does the work,
the next slice is claimed while this one goes out. Nothing of it is announced before its turn, so a crash leaves none of
it unknown; where its turn never comes it waits again.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from redrive.brokers.base import Capabilities
from redrive.ledger.delivery import claims
from redrive.ledger.delivery.claims import ClaimFilter, ClaimTerms, NoRoom, Room, Slice
from redrive.ledger.delivery.lanes import NativeDelay
from redrive.ledger.delivery.ordering import InOrder
from redrive.ledger.predicates import TO_RESEND, due
from redrive.ledger.selecting import Selection
from redrive.policy.next_step import trusted
from redrive.stages import attributes
from redrive.stages.context import Context
from redrive.stages.stretches import LaneName, Span

#: How long a claimed slice belongs to its task; nothing of it is sent after that.
CLAIM_FOR = timedelta(minutes=5)
ZERO = timedelta(0)
#: What waits out a delay is handed to a broker that keeps delays this long before it is due, and no longer: it can't be
#: called back any more, by no breaker and no pause.
NATIVE_DELAY_LIMIT = timedelta(minutes=15)
#: SQL: what may be claimed.
_DUE = due(in_id_order=True)


class Claimer:
    """Claims for one try of a delivery task. Causes ``apart`` have lanes of their own; ``in_order``: see
    :class:`~redrive.ledger.delivery.claims.ClaimFilter`."""

    def __init__(
        self, context: Context, shard: int, task_try: str, apart: Sequence[str], in_order: InOrder | None
    ) -> None:
        self._context = context
        self._shard = shard
        self._task_try = task_try
        self._apart = apart
        self._in_order = in_order

    def claim(self, lane: LaneName, span: Span, size: int, rooms: Sequence[Room]) -> Slice | None:
        """The lane's next slice, of ``size`` messages at most; None where nothing is due. What is to be sent again
        goes first. Raises :class:`~redrive.ledger.delivery.claims.NoRoom`."""
        context, now = self._context, self._context.now()
        (destination, cause), asked, terms = lane, self._asked(lane, span), self._terms(size, rooms)
        if cause is None and span.after < 0:
            dedupes_for = trusted(context.broker.capabilities_for(destination).native_dedupe)
            for selection in self._selections(destination, span.after, TO_RESEND):
                of = replace(asked, selection=selection)
                again = claims.claim_resends(context.ledger, context.lease, of, terms, now, dedupes_for=dedupes_for)
                if again is not None:
                    return again
        for selection in self._selections(destination, span.after, _DUE):
            claimed = claims.claim(context.ledger, context.lease, replace(asked, selection=selection), terms, now)
            if claimed is not None:
                return claimed
        return None

    def may_go_ahead(self, lane: LaneName, span: Span) -> bool:
        """Whether the lane's next slice may be claimed before its turn.

        Not what the slice before it decides about: how many the run may still send, or which message of a key is next.
        Nor what is to be sent again, or is looked up in the files.
        """
        selection, again = self._context.selection, lane[1] is None and span.after < 0
        if again or self._in_order or selection.attributes or selection.limit is not None:
            return False
        return self._context.ledger.dialect.writers_beside

    def claim_ahead(self, lane: LaneName, span: Span, size: int, rooms: Sequence[Room]) -> Slice | None:
        """As :meth:`claim`; None also where others have filled the room."""
        try:
            return self.claim(lane, span, size, rooms)
        except NoRoom:
            return None

    def native_delay(self, capabilities: Capabilities) -> NativeDelay | None:
        """How early messages may go to a broker that keeps them; None where it can't, or isn't asked to.

        Not where messages go in order: what is delayed at the broker would be overtaken.
        """
        route, longest, now = self._context.route, capabilities.native_delay, self._context.now()
        if not route.backoff.native or longest is None or route.order_by is not None:
            return None
        check = route.processed_check
        return NativeDelay(now + min(longest, NATIVE_DELAY_LIMIT), now - (check.settle_after if check else ZERO))

    def _asked(self, lane: LaneName, span: Span) -> ClaimFilter:
        destination, cause = lane
        return ClaimFilter(
            destination,
            causes=() if cause is None else (cause,),
            except_causes=self._apart if cause is None else (),
            after=span.after,
            until=span.until,
            native_delay=self.native_delay(self._context.broker.capabilities_for(destination)),
            in_order=self._in_order,
        )

    def _terms(self, size: int, rooms: Sequence[Room]) -> ClaimTerms:
        return ClaimTerms(size, CLAIM_FOR, self._shard, rooms, self._task_try)

    def _selections(self, destination: str, after: int, where: str) -> Iterable[Selection]:
        """What the run is limited to; with attributes page by page what carries them."""
        context = self._context
        if not context.selection.attributes:
            return [context.selection]
        return attributes.parts(
            context.ledger,
            context.staging,
            context.name,
            context.selection,
            where=f"destination = :destination and {where}",
            values={
                "destination": destination,
                "now": context.now() + (NATIVE_DELAY_LIMIT if context.route.backoff.native else ZERO),
            },
            after=after,
        )


class Ahead(NamedTuple):
    """A slice that is claimed beside the one before it; none where nothing is due, or others have filled the room."""

    lane: LaneName
    asked_at: datetime  # no later than its destination's depth was read
    claim: "Future[Slice | None]"
