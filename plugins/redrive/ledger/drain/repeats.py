"""Which copies were staged before, for brokers that give copies no identity (RabbitMQ).

Such a broker takes the acks of a batch whole or not at all. So a batch that is recorded but not known to be settled
either is gone from its queue or comes back whole, marked as redelivered.

- If it came back whole, its second staging is *duplicate*.
- If only a part of it was seen again, or nothing in the copies tells one from another, they are *suspected*, and people
  decide. So is what was let go since, where the broker does not say when it died: a consumer that drops our headers may
  have dead-lettered it anew.
- A copy that was never delivered before is never a second staging, nor is one with the id of a send of ours where the
  other has another id or none.

The doubt about a batch ends once its source was drained to the end after its leases: what was still there would have
come.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive.ledger.drain import batches
from redrive.ledger.engine import Ledger, sql
from redrive.message import Tracking, batch_and_row, index_key, message_id_of


class Evidence(NamedTuple):
    """What tells copies apart where the broker gives no id. The publisher's id may be "", and times may be None."""

    source: str
    message_id: str
    enqueued_at: datetime | None
    dead_lettered_at: datetime | None
    body_hash: bytes


class Copy(NamedTuple):
    """One staged copy."""

    copy_id: int  # batch and row, like a message id
    evidence: Evidence
    redelivered: bool
    tracking: Tracking | None  # our id and attempt, which say more than all this


class StagedBatch(NamedTuple):
    """A batch whose copies matter: one that waits to be loaded, or one that may come again."""

    batch_id: int
    in_doubt: bool  # recorded, and not known to be settled whole
    waiting: bool  # not loaded yet
    copies: Sequence[Copy]


class Repeat(NamedTuple):
    """What a copy is, and the staged copy that it repeats."""

    role: str  # duplicate | suspected | twin: suspected, unless it is the return of a send of ours
    first: int


def doubtful(
    ledger: Ledger, connection: Connection, route: str, source: str | None = None, *, leased_for: timedelta
) -> dict[int, tuple[str, int]]:
    """Batches that are recorded, not known to be settled whole, and may come again: id -> (path, copies)."""
    rows = connection.execute(
        sql(
            "select batch_id, uri, copies from staging_batches where route = :route"
            " and state in ('recorded', 'settled') and settled_copies < copies and removed_at is null"
            f" and {batches.may_come_again(ledger, leased_for, 'staging_batches')}"
            + (" and source = :source" if source else "")
            + " order by batch_id"
        ),
        {"route": route, "source": source} if source else {"route": route},
    )
    return {row.batch_id: (row.uri, row.copies) for row in rows}


def let_go(connection: Connection, batch_ids: Iterable[int]) -> set[int]:
    """The copies of these batches whose messages were sent or restored since: they may have come back from there."""
    found: set[int] = set()
    for batch_id in batch_ids:
        bounds = {"first": message_id_of(batch_id, 0), "beyond": message_id_of(batch_id + 1, 0)}
        rows = connection.execute(
            sql(
                "select message_id from redelivery_attempts where message_id >= :first and message_id < :beyond"
                " and (sent_at is not null or unknown_at is not null)"
                " union select message_id from messages where message_id >= :first and message_id < :beyond"
                " and state in ('restoring', 'restore_unknown', 'discarded')"
            ),
            bounds,
        )
        found.update(rows.scalars())
    return found


def decide(
    staged: Iterable[StagedBatch], known: Mapping[Evidence, int], gone: Collection[int] = frozenset()
) -> dict[int, Repeat]:
    """Which of the waiting copies repeat an earlier one; ``known`` are copies that were loaded before, ``gone`` those
    that were :func:`let_go` since."""
    in_order = sorted(staged, key=lambda batch: batch.batch_id)
    again: dict[Evidence, list[Copy]] = defaultdict(list)
    for batch in in_order:
        for copy in batch.copies if batch.waiting else ():
            if copy.redelivered:
                again[copy.evidence].append(copy)
    found: dict[int, Repeat] = {}
    for batch in in_order:
        if batch.in_doubt:
            pairs = _came_back_whole(batch, again, found)
            for copy, first in pairs:
                may_be_back = _says_nothing(copy) and first.copy_id in gone
                found[copy.copy_id] = Repeat("suspected" if may_be_back else "duplicate", _root(found, first))
    found.update(_suspected(in_order, again, found, known))
    return found


def _says_nothing(copy: Copy) -> bool:
    """Whether nothing tells the copy of a message that died again from the one that died before: no id of ours, and no
    time of its death, which would be another one."""
    return copy.tracking is None and copy.evidence.dead_lettered_at is None


def _suspected(
    in_order: Sequence[StagedBatch],
    again: Mapping[Evidence, Sequence[Copy]],
    found: Mapping[int, Repeat],
    known: Mapping[Evidence, int],
) -> dict[int, Repeat]:
    """Copies that resemble one of a batch in doubt, or one of any batch by the publisher's id, without a proof.

    What carries the id of a send of ours and resembles a copy of a batch in doubt that carries it too is a *twin*: if
    it is a return, its id says more; if it was made of a message, with the headers copied, nothing else does.
    """
    firsts: dict[Evidence, list[Copy]] = defaultdict(list)
    for batch in in_order:
        for copy in batch.copies:
            if batch.in_doubt or copy.evidence.message_id:
                firsts[copy.evidence].append(copy)
    in_doubt = {batch.batch_id for batch in in_order if batch.in_doubt}
    suspected: dict[int, Repeat] = {}
    for evidence, copies in again.items():
        for copy in copies:
            if copy.copy_id in found:
                continue
            first = next((one for one in firsts[evidence] if _may_repeat(copy, one)), None)
            if copy.tracking is not None:
                if first is not None and batch_and_row(first.copy_id)[0] in in_doubt:
                    suspected[copy.copy_id] = Repeat("twin", _root(found, first))
            elif first is not None:
                suspected[copy.copy_id] = Repeat("suspected", _root(found, first))
            elif evidence in known:
                suspected[copy.copy_id] = Repeat("suspected", known[evidence])
    return suspected


def _came_back_whole(
    batch: StagedBatch, again: Mapping[Evidence, Sequence[Copy]], found: Mapping[int, Repeat]
) -> list[tuple[Copy, Copy]]:
    """(copy, its first staging) for every copy of the batch, or nothing where that is not proved."""
    own: dict[Evidence, list[Copy]] = defaultdict(list)
    for copy in batch.copies:
        own[copy.evidence].append(copy)
    pairs: list[tuple[Copy, Copy]] = []
    for evidence, firsts in own.items():
        free = [copy for copy in again.get(evidence, ()) if copy.copy_id not in found]
        for first in firsts:
            second = next((copy for copy in free if _may_repeat(copy, first)), None)
            if second is None:
                return []
            free.remove(second)
            pairs.append((second, first))
    # Bodies alone prove nothing: the same few words are sent again and again.
    telling = [e for e in own if e.message_id or e.dead_lettered_at is not None]
    proved = any(e.message_id for e in telling) or len(telling) > 1
    return pairs if proved else []


def _may_repeat(copy: Copy, first: Copy) -> bool:
    """A copy repeats one of another batch; of two that were both delivered before, the later staged repeats. What
    carries the id of a send of ours repeats no other send, and not what it was before any."""
    if copy.tracking != first.tracking:
        return False
    if batch_and_row(copy.copy_id)[0] == batch_and_row(first.copy_id)[0]:
        return False
    return not first.redelivered or first.copy_id < copy.copy_id


def _root(found: Mapping[int, Repeat], copy: Copy) -> int:
    return found[copy.copy_id].first if copy.copy_id in found else copy.copy_id


def known(ledger: Ledger, route: str, wanted: Iterable[Evidence]) -> dict[Evidence, int]:
    """Of these, those that a loaded copy has: evidence with the publisher's id -> message."""
    asked = {evidence for evidence in wanted if evidence.message_id}
    if not asked:
        return {}
    with ledger.write() as connection:  # a temporary table counts as writing
        ledger.dialect.temporary(connection, "asked", "message_id text")
        ledger.dialect.bulk(
            connection, "asked", ("message_id",), [(one,) for one in {index_key(e.message_id) for e in asked}]
        )
        rows = connection.execute(
            sql(
                "select m.source, m.broker_message_id, m.first_enqueued_at, m.body_hash, m.message_id"
                " from asked inner join messages m on m.broker_message_id = asked.message_id where m.route = :route"
            ),
            {"route": route},
        ).all()
    seen: dict[tuple[Any, ...], int] = {}
    for row in rows:
        seen[
            row.source, row.broker_message_id, ledger.dialect.comparable(row.first_enqueued_at), bytes(row.body_hash)
        ] = row[4]
    found = {}
    for evidence in asked:
        enqueued = ledger.dialect.stored(evidence.enqueued_at)
        key = (evidence.source, index_key(evidence.message_id), ledger.dialect.comparable(enqueued), evidence.body_hash)
        if key in seen:
            found[evidence] = seen[key]
    return found
