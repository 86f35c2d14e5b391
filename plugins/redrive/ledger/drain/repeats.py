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

Nor does such a broker say that it kept the acks. A node that dies, or a quorum whose leader is gone, may have answered
what came behind them, and gives out once more what was settled. So what was delivered before, and is like a copy of a
batch that was settled :data:`LATELY`, is *suspected* too. Such a batch proves no duplicate, since what a publisher
sends twice looks the same; and nobody is kept waiting for it.

All this goes for the batches of other routes of this broker too, if they were drained from a queue that the route has
by now; but theirs prove no duplicate. The other route may never run again, and then nobody would have the message.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive.ledger.drain import batches, shared_queues
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.predicates import HERE, ROUTES_HERE
from redrive.message import Tracking, batch_and_row, index_key, message_id_of

#: How long what was settled is held against what comes again. What a broker forgot of it is given out again at once:
#: this is for runs that don't come, and for what lies before it in the queue.
LATELY = timedelta(days=1)


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


class Doubtful(NamedTuple):
    """A batch that is recorded, not known to be settled whole, and may come again."""

    uri: str
    copies: int
    of_another: bool  # route, which had the queue before


class StagedBatch(NamedTuple):
    """A batch whose copies matter: one that waits to be loaded, or one that may come again."""

    batch_id: int
    in_doubt: bool  # recorded, and not known to be settled whole
    waiting: bool  # not loaded yet
    copies: Sequence[Copy]
    lately: bool = False  # settled a short while ago, as far as the broker said
    of_another: bool = False  # route: that one decides about its copies, and may have done so


class Repeat(NamedTuple):
    """What a copy is, and the staged copy that it repeats."""

    role: str  # duplicate | suspected | twin: suspected, unless it is the return of a send of ours
    first: int


#: The queues of which the route has copies that wait to be loaded.
_WAITING = (
    "select waiting.source from staging_batches waiting where waiting.route = :route"
    " and waiting.state in ('recorded', 'settled') and waiting.loaded_at is null"
)


def doubtful(
    ledger: Ledger, connection: Connection, route: str, source: str | None = None, *, leased_for: timedelta
) -> dict[int, Doubtful]:
    """Batches, by their ids, that are recorded, not known to be settled whole, and may come again: those of the route,
    and those that other routes drained from a queue of which it has copies now. With ``source`` those of this one."""
    rows = connection.execute(
        sql(
            "select batch_id, uri, copies, route <> :route as of_another from staging_batches"
            f" where state in ('recorded', 'settled') and {shared_queues.UNSETTLED}"
            f" and (route = :route or route in {ROUTES_HERE} and source in ({':source' if source else _WAITING}))"
            f" and {batches.may_come_again(ledger, leased_for, 'staging_batches', to=HERE)}"
            + (" and source = :source" if source else "")
            + " order by batch_id"
        ),
        {"route": route, "source": source} if source else {"route": route},
    )
    return {row.batch_id: Doubtful(row.uri, row.copies, bool(row.of_another)) for row in rows}


def lately_settled(
    ledger: Ledger, connection: Connection, route: str, *, leased_for: timedelta, now: datetime
) -> dict[int, str]:
    """Batches that were settled within :data:`LATELY`, as far as the broker said, and may come again if that isn't
    true, of the same routes: id -> path."""
    rows = connection.execute(
        sql(
            f"select batch_id, uri from staging_batches where route in {ROUTES_HERE} and state = 'settled'"
            " and settled_copies >= copies and settled_at > :since_at and removed_at is null"
            f" and (route = :route or source in ({_WAITING}))"
            f" and {batches.may_come_again(ledger, leased_for, 'staging_batches', to=HERE)} order by batch_id"
        ),
        {"route": route, "since_at": now - LATELY},
    )
    return {row.batch_id: row.uri for row in rows}


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
    that were :func:`let_go` since.

    It looks at each copy a few times, however many are equal.
    """
    in_order = sorted(staged, key=lambda batch: batch.batch_id)
    again: dict[_Alike, list[Copy]] = defaultdict(list)
    for batch in in_order:
        for copy in batch.copies if batch.waiting else ():
            if copy.redelivered:
                again[_alike(copy)].append(copy)
    lines = {alike: _Line(copies) for alike, copies in again.items()}
    found: dict[int, Repeat] = {}
    for batch in in_order:
        if batch.in_doubt and not batch.of_another:
            pairs = _came_back_whole(batch, lines)
            for copy, first in pairs:
                may_be_back = _says_nothing(copy) and first.copy_id in gone
                found[copy.copy_id] = Repeat("suspected" if may_be_back else "duplicate", _root(found, first))
    found.update(_suspected(in_order, again, found, known))
    return found


#: What copies have in common of which one may repeat another: what carries the id of a send of ours repeats no other
#: send, and not what it was before any.
_Alike = tuple[Evidence, Tracking | None]


def _alike(copy: Copy) -> _Alike:
    return copy.evidence, copy.tracking


def _says_nothing(copy: Copy) -> bool:
    """Whether nothing tells the copy of a message that died again from the one that died before: no id of ours, and no
    time of its death, which would be another one."""
    return copy.tracking is None and copy.evidence.dead_lettered_at is None


def _says_when(copy: Copy) -> bool:
    """Whether a time tells the copy from others with its body. What has an id of ours is known by that."""
    times = (copy.evidence.enqueued_at, copy.evidence.dead_lettered_at)
    return copy.tracking is None and any(one is not None for one in times)


class _Line:
    """Copies that are alike and came again, in the order of their batches; each is taken once, the first first."""

    def __init__(self, copies: Sequence[Copy]) -> None:
        self.copies = copies
        self._batches = [_batch(copy) for copy in copies]
        #: Where to look on from each place: itself while it is free, and what was found beyond it once it is taken.
        self._onward = list(range(len(copies) + 1))

    def around(self, batch_id: int) -> "_Around":
        """For a batch that may have come back: its own copies repeat none of it."""
        return _Around(self, bisect_left(self._batches, batch_id), bisect_right(self._batches, batch_id))

    def free(self, place: int) -> int:
        """The first place from this one on that nobody took; behind the last where there is none."""
        onward = self._onward
        while onward[place] != place:
            onward[place] = place = onward[onward[place]]
        return place

    def take(self, place: int) -> None:
        self._onward[place] = place + 1


class _Around:
    """What of a line stands before a batch and behind it, taken for the time being."""

    def __init__(self, line: _Line, own: int, behind: int) -> None:
        self._line, self._own = line, own
        self._earlier, self._later = line.free(0), line.free(behind)
        self._taken: list[int] = []

    def next(self, first: Copy) -> Copy | None:
        """The first that may repeat ``first``: of two that were both delivered before, the later staged repeats."""
        if not first.redelivered and self._earlier < self._own:
            place = self._earlier
            self._earlier = self._line.free(place + 1)
        else:
            place = self._later
            if place == len(self._line.copies):
                return None
            self._later = self._line.free(place + 1)
        self._taken.append(place)
        return self._line.copies[place]

    def keep(self) -> None:
        for place in self._taken:
            self._line.take(place)


class _Firsts:
    """Copies that are alike, of which one may be the first staging of another that came again."""

    def __init__(self) -> None:
        self._earliest: Copy | None = None
        # Of each batch the first that was never delivered before: one of a later batch may repeat nothing else.
        self._fresh: list[Copy] = []
        self._fresh_batches: list[int] = []

    def add(self, copy: Copy) -> None:
        """They come in the order of their batches."""
        batch_id = _batch(copy)
        if self._earliest is None:
            self._earliest = copy
        if not copy.redelivered and self._fresh_batches[-1:] != [batch_id]:
            self._fresh.append(copy)
            self._fresh_batches.append(batch_id)

    def of(self, copy: Copy) -> Copy | None:
        """The first that ``copy`` may repeat: of an earlier batch any, of a later one what was never delivered."""
        batch_id = _batch(copy)
        if self._earliest is not None and _batch(self._earliest) < batch_id:
            return self._earliest
        place = bisect_right(self._fresh_batches, batch_id)
        return self._fresh[place] if place < len(self._fresh) else None


def _suspected(
    in_order: Sequence[StagedBatch],
    again: Mapping[_Alike, Sequence[Copy]],
    found: Mapping[int, Repeat],
    known: Mapping[Evidence, int],
) -> dict[int, Repeat]:
    """Copies that resemble one of a batch in doubt, one of a batch settled lately by a time too, or one of any batch by
    the publisher's id, without a proof.

    What carries the id of a send of ours and resembles a copy of a batch in doubt that carries it too is a *twin*: if
    it is a return, its id says more; if it was made of a message, with the headers copied, nothing else does.
    """
    firsts: dict[_Alike, _Firsts] = defaultdict(_Firsts)
    for batch in in_order:
        for copy in batch.copies:
            if batch.in_doubt or copy.evidence.message_id or (batch.lately and _says_when(copy)):
                firsts[_alike(copy)].add(copy)
    in_doubt = {batch.batch_id for batch in in_order if batch.in_doubt}
    suspected: dict[int, Repeat] = {}
    for alike, copies in again.items():
        evidence, _ = alike
        for copy in copies:
            if copy.copy_id in found:
                continue
            first = firsts[alike].of(copy)
            if copy.tracking is not None:
                if first is not None and _batch(first) in in_doubt:
                    suspected[copy.copy_id] = Repeat("twin", _root(found, first))
            elif first is not None:
                suspected[copy.copy_id] = Repeat("suspected", _root(found, first))
            elif evidence in known:
                suspected[copy.copy_id] = Repeat("suspected", known[evidence])
    return suspected


def _came_back_whole(batch: StagedBatch, lines: Mapping[_Alike, _Line]) -> list[tuple[Copy, Copy]]:
    """(copy, its first staging) for every copy of the batch, which are taken; or nothing where that is not proved."""
    own: dict[Evidence, list[Copy]] = defaultdict(list)
    for copy in batch.copies:
        own[copy.evidence].append(copy)
    # Bodies alone prove nothing: the same few words are sent again and again.
    telling = [e for e in own if e.message_id or e.dead_lettered_at is not None]
    if not any(e.message_id for e in telling) and len(telling) < 2:
        return []
    pairs: list[tuple[Copy, Copy]] = []
    around: dict[_Alike, _Around] = {}
    for firsts in own.values():
        for first in firsts:
            alike = _alike(first)
            if alike not in lines:
                return []
            if alike not in around:
                around[alike] = lines[alike].around(batch.batch_id)
            second = around[alike].next(first)
            if second is None:
                return []
            pairs.append((second, first))
    for one in around.values():
        one.keep()
    return pairs


def _batch(copy: Copy) -> int:
    return batch_and_row(copy.copy_id)[0]


def _root(found: Mapping[int, Repeat], copy: Copy) -> int:
    return found[copy.copy_id].first if copy.copy_id in found else copy.copy_id


#: No message was enqueued then: it stands for a time that is not known, since null is equal to nothing.
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


def known(ledger: Ledger, route: str, wanted: Iterable[Evidence]) -> dict[Evidence, int]:
    """Of these, those that a loaded copy has, of this or another route of the broker: evidence with the publisher's id
    -> message, the latest of several.

    The database looks at every message with one of the ids, for a producer may give all the same; what it hands out
    is bounded by what is asked.
    """
    asked = {evidence for evidence in wanted if evidence.message_id}
    if not asked:
        return {}
    dialect = ledger.dialect
    never = dialect.stored(_NEVER)
    enqueued = {evidence: dialect.stored(evidence.enqueued_at) for evidence in asked}
    copies = {(evidence.source, enqueued[evidence] or never, evidence.body_hash) for evidence in asked}
    with ledger.write() as connection:  # a temporary table counts as writing
        routes = shared_queues.Routes(connection, route)
        dialect.temporary(connection, "asked", "message_id text")
        dialect.bulk(connection, "asked", ("message_id",), [(one,) for one in {index_key(e.message_id) for e in asked}])
        dialect.temporary(
            connection,
            "asked_copies",
            "source text, enqueued_at instant, body_hash blob, primary key (source, enqueued_at, body_hash)",
        )
        dialect.bulk(connection, "asked_copies", ("source", "enqueued_at", "body_hash"), copies)
        dialect.look_at_temporary(connection, "asked_copies")
        # It goes to the messages by the id alone, to each once; by all together it might for each copy with that id.
        rows = connection.execute(
            sql(
                "select m.source, m.broker_message_id, m.first_enqueued_at, m.body_hash, max(m.message_id)"
                " from messages m"
                f" where {dialect.few('m.broker_message_id', 'select message_id from asked')}"
                f" and m.broker_message_id <> '' and m.route || '' in {routes.listed}"
                " and (m.source, coalesce(m.first_enqueued_at, :never), m.body_hash)"
                " in (select source, enqueued_at, body_hash from asked_copies)"
                " group by m.source, m.broker_message_id, m.first_enqueued_at, m.body_hash"
            ),
            {**routes.values, "never": never},
        ).all()
    seen: dict[tuple[Any, ...], int] = {}
    for source, message_id, at, body, latest in rows:
        seen[source, message_id, dialect.comparable(at), bytes(body)] = latest
    found = {}
    for evidence in asked:
        at = dialect.comparable(enqueued[evidence])
        key = (evidence.source, index_key(evidence.message_id), at, evidence.body_hash)
        if key in seen:
            found[evidence] = seen[key]
    return found
