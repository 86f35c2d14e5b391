"""The batch that a drain fills: durable, then recorded, then settled; a crash at any line loses nothing.

It is closed when it is large enough, or when half of the lease of its first copy is gone, so that settling is done in
good time. Should writing or settling take longer, leases are extended from here, the thread that owns them.
"""

import logging
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from redrive.errors import (
    BrokerError,
    LedgerError,
    PermissionRefused,
    RedriveError,
    SettlementFailed,
    StagingError,
)
from redrive.ledger.drain import batches
from redrive.ledger.schema import ledger_id
from redrive.message import Micros, Received
from redrive.settings import Source
from redrive.stages.ages import first_enqueued
from redrive.stages.context import Context, micros

if TYPE_CHECKING:
    from redrive.staging.batch_writer import BatchWriter

log = logging.getLogger(__name__)

#: Receipts per settle call: a multiple of every broker's batch size.
SETTLE_AT_ONCE = 1_000


class OpenBatch:
    """The batches of one source and shard, one after the other; at most one is open."""

    def __init__(self, context: Context, source: Source, shard: int, lease: timedelta) -> None:
        self.settled = 0  # copies
        self.closed = 0  # batches
        self.oldest: Micros | None = None  # when the oldest copy was first enqueued
        self._context = context
        self._source = source
        self._shard = shard
        self._lease = lease
        with context.ledger.read() as connection:
            self._ledger_id = ledger_id(connection)
        self._batch_id: int | None = None
        self._path = ""
        self._recorded = False  # the batch is; what is left of it is to settle it
        self._writer: BatchWriter | None = None
        self._receipts: list[object] = []
        self._leased_at: datetime | None = None  # of the oldest receipt, or of the last extension

    def room(self) -> int:
        """How many more copies it takes."""
        return self._context.route.drain.flush_messages - (self._writer.copies if self._writer else 0)

    @property
    def weight(self) -> int:
        """So many bytes it has, of bodies and of large headers."""
        return self._writer.weight if self._writer else 0

    def add(self, received: Sequence[Received], now: datetime) -> int:
        """Stage what was received; opens a batch where none is open. Returns how many bytes that was."""
        context = self._context
        self._receipts.extend([one.receipt for one in received])  # first: whatever fails below, these are given back
        if self._writer is None:
            self._batch_id, self._path = batches.open_batch(
                context.ledger,
                context.lease,
                source=self._source.queue,
                kind=self._source.kind,
                shard=self._shard,
                path_of=self._new_path,
                now=now,
                beyond=0 if self.closed else self._newest_staged(),
            )
            self._writer = context.staging.writer(
                self._path,
                batch_id=self._batch_id,
                route=context.name,
                source=self._source.queue,
                kind=self._source.kind,
                broker=context.route.broker,
                by_origin=self._goes_back(),
            )
            self._leased_at = now
        letters = [one.letter for one in received]
        before = self._writer.weight
        self._writer.add(letters, micros(now))
        size = self._writer.weight - before
        oldest = first_enqueued(context, letters)
        if oldest is not None:
            self.oldest = oldest if self.oldest is None else min(self.oldest, oldest)
        return size

    def _new_path(self, route: str, source: str, batch_id: int, ledger: str) -> str:
        """A new path, remembered before its batch is written down, so that it is known whatever interrupts that."""
        self._path = self._context.staging.new_path(route, source, batch_id, ledger)
        return self._path

    def _goes_back(self) -> bool:
        """Whether copies go where they came from, each to its own queue, and nothing hangs on the order of those of
        different ones."""
        route = self._context.route
        return route.order_by is None and route.destination_of(self._source.queue) is None

    def _newest_staged(self) -> int:
        """The greatest batch id that this ledger gave as far as staging tells, whatever became of the ledger since.

        Only where the route has one that the ledger doesn't know of are the files of all looked at. Raises
        :class:`StagingError` where this is not the place of the files that the route needs.
        """
        context = self._context
        self._refuse_another_place()
        found = context.staging.newest_batch(self._ledger_id, context.name)
        with context.ledger.read() as connection:
            known = batches.newest(connection)
        return context.staging.newest_batch(self._ledger_id) if found > known else found

    def _refuse_another_place(self) -> None:
        """A disk that is not mounted, or a setting that names another place, looks as if all files were lost: with a
        first new one beside them, all that waits would go to people as damaged."""
        context = self._context
        if not context.staging.is_gone(context.name):
            return
        with context.ledger.read() as connection:
            needed = len(batches.needed(connection, context.name))
        if needed:
            place = context.staging.uri(context.name)
            raise StagingError(
                f"{place}: there is nothing, and the ledger counts on {needed} files of route {context.name}: is it"
                " mounted, and the place that `staging` named before? Bring the files there; nothing was settled."
                f" Where they are lost for good, put an empty file into {place}/ and all of them are told as missing"
            )

    def is_full(self, now: datetime) -> bool:
        """Whether it is to be closed: it is large enough, or the leases of its copies are half gone."""
        drain = self._context.route.drain
        return self._writer is not None and (
            self._writer.copies >= drain.flush_messages
            or self._writer.weight >= drain.flush_bytes
            or self._half_gone(now)
        )

    def _half_gone(self, now: datetime) -> bool:
        return self._leased_at is not None and now - self._leased_at >= self._lease / 2

    def close(self) -> None:
        """Close the batch: durable, recorded, settled, in this order."""
        if self._writer is None or self._batch_id is None:
            return
        context, writer, batch_id = self._context, self._writer, self._batch_id
        began = time.monotonic()
        written = writer.close()
        batches.record(
            context.ledger,
            context.lease,
            batch_id,
            copies=written.copies,
            size=written.bytes,
            now=context.now(),
        )
        # From here the copies are ours whatever happens: nothing below may remove the file, whatever the ledger says.
        self._writer = None
        self._recorded = True
        self.closed += 1
        receipts, self._receipts = self._receipts, []
        settled = 0
        refused = False  # by the broker's word nothing of it was settled
        problem: BrokerError | None = None
        whole = context.broker.capabilities_for(self._source.queue).settles_whole
        at_once = len(receipts) if whole else SETTLE_AT_ONCE
        try:
            for start in range(0, len(receipts), at_once):
                self._keep_leases(receipts[start:])
                settled += context.broker.settle(self._source.queue, receipts[start : start + at_once]).count
        except BrokerError as error:
            problem = error  # what was settled is still written down
            refused = start == 0 and isinstance(error, PermissionRefused)
        if settled or refused:  # else all of it may be gone: an answer that is lost says nothing
            batches.settled(context.ledger, batch_id, count=settled, now=context.now())
        self.settled += settled
        log.info(
            "batch %d of %s: %d copies, %d bytes staged, %d settled in %.2f s",
            batch_id,
            self._source.queue,
            written.copies,
            written.bytes,
            settled,
            time.monotonic() - began,
        )
        self._batch_id = None
        self._path = ""
        self._recorded = False
        self._leased_at = None
        if problem is not None:
            raise SettlementFailed(
                f"{self._source.queue}: {len(receipts) - settled} of {len(receipts)} copies of batch {batch_id} are"
                f" staged but not settled; they will be recognised when they come again: {problem}"
            ) from problem

    def _keep_leases(self, receipts: Sequence[object]) -> None:
        now = self._context.now()
        if self._half_gone(now):
            self._context.broker.extend(self._source.queue, receipts, self._lease)
            self._leased_at = now

    def give_up(self, *, ours: bool) -> None:
        """After an error: the copies go back to their queue, and the file, if it is ours, goes unless the ledger counts
        on it. The batch of another try of this task is never touched: it may be alive."""
        context, gone = self._context, False
        try:
            if self._batch_id is None and self._path:  # interrupted before it was known here
                self._batch_id = batches.open_of(context.ledger, context.lease, self._path)
            # Only a row that is still open may lose its file: a commit can succeed though its answer was lost.
            if self._batch_id is not None and not self._recorded:
                gone = batches.abandon_one(context.ledger, self._batch_id)
        except LedgerError:
            pass  # the next run looks at the batch and its file
        if self._writer is not None:
            self._writer.abort(remove=gone)
        if gone and self._batch_id is not None:
            try:
                if ours:
                    with context.ledger.read() as connection:
                        path = batches.paths(connection, {self._batch_id})[self._batch_id]
                    context.staging.remove(path)
                batches.removed(context.ledger, [self._batch_id], context.now())
            except RedriveError:
                pass  # the next run removes what is left
        if self._receipts:
            try:
                context.broker.release(self._source.queue, self._receipts)
            except BrokerError:
                pass  # their lease ends by itself; the error that brought us here is the one to tell
