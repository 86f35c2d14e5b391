"""Load classified copies: decide what each copy is, in sets, and take it in exactly once.

A copy is one of
- *duplicate*: the same copy was staged before (source, broker id, enqueue time and body hash agree);
- *returned*: it carries the id and attempt of a redelivery that was sent and has not returned yet, with the body
  that was sent, and nobody says that it failed elsewhere than where it was sent;
- *surplus*: that attempt has already returned from the same source with the same headers;
- *suspected*: the same with other headers. It may be that attempt once more, noted in another way, or a message that
  a consumer made of it: people decide;
- *new*: everything else. A copy with our id but another body, from another subscriber or from elsewhere is new with a
  ``parent_id``. Whatever its headers say of attempts is carried over, so that no circle begins to count anew. The id of
  another ledger is kept; one of this ledger that no message of the route has is not, because whoever sees our ids can
  write one that will be given next.

A message id is a function of (batch, row), and a batch is loaded in the transaction that sets ``loaded_at``:
loading twice, or by a run that was replaced, changes nothing.
"""

import itertools
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive import lifecycle
from redrive.audit_actions import Action
from redrive.errors import ClassificationFailed
from redrive.ledger.delivery import counting
from redrive.ledger.drain import adopting
from redrive.ledger.drain.repeats import Repeat
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import move, record_event
from redrive.ledger.review import restoring
from redrive.ledger.schema import ledger_id
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.lifecycle import State
from redrive.message import MAX_CARRIED_ATTEMPTS, REDRIVE_ID_DIGITS


class Classified(NamedTuple):
    """One copy as the Spark job describes it. Instants are as the ledger stores them (:meth:`Dialect.stored`)."""

    message_id: int
    batch_id: int
    source: str
    kind: str
    destination: str | None
    broker_message_id: str
    body_hash: bytes
    body_bytes: int
    enqueued_at: Any
    dead_lettered_at: Any
    received_at: Any
    deliveries: int
    redrive_id: str | None
    redrive_attempt: int | None
    message_key: str | None
    order_key: str | None
    cause: str | None
    group_id: int | None
    origin: str | None = None  # where it failed, as the copy tells it
    # Of copies that carry our headers, of what a consumer or producer wrote: redrive.message.headers_hash.
    headers_hash: bytes | None = None
    fields: str | None = None  # JSON of what it is found by, by selector, in small letters


class Loaded(NamedTuple):
    """What the copies turned out to be."""

    new: int = 0
    returned: int = 0
    duplicates: int = 0
    surplus: int = 0
    suspected: int = 0

    def plus(self, other: "Loaded") -> "Loaded":
        return Loaded(*(a + b for a, b in zip(self, other, strict=True)))


_INCOMING = (
    "message_id bigint primary key, batch_id bigint, source text, kind text, destination text,"
    " broker_message_id text, body_hash blob, body_bytes int, enqueued_at instant, dead_lettered_at instant,"
    " received_at instant,"
    " deliveries int, redrive_id text, redrive_attempt int, message_key text, order_key text, cause text,"
    " group_id bigint, origin text, headers_hash blob, fields text, astray int, role text, owner bigint, twin bigint,"
    " prior_outcome text"
)
_STAGE_ROWS = 10_000
#: So many characters of what messages are found by are kept: an index holds them.
SEARCHED = 200
# Rows come as plain tuples in the order of Classified: a named one each would cost more than the insert.
_BATCH_ID, _BROKER_ID, _REDRIVE_ID = map(Classified._fields.index, ("batch_id", "broker_message_id", "redrive_id"))


def load(
    ledger: Ledger,
    lease: RouteLease,
    batch_ids: Sequence[int],
    copies: Iterable[Classified],
    now: datetime,
    *,
    repeats: Mapping[int, Repeat] | None = None,
    elsewhere: Collection[tuple[str, str]] = (),
) -> Loaded:
    """Take in all copies of these batches, in one transaction; batches that are loaded already are left alone.

    ``copies`` are in message id order and may hold copies of other batches too; those are skipped. Plain tuples in
    the order of :class:`Classified` will do. ``repeats``, for a broker whose ids prove nothing, says which copies were
    staged before; without it the broker's ids do. ``elsewhere`` are pairs of a destination and an origin: what failed
    at this origin was not sent to that destination.
    """
    with ledger.under(lease, now) as tx:
        marks = ",".join(str(int(batch_id)) for batch_id in batch_ids)
        pending = {
            row.batch_id: row.copies
            for row in tx.execute(
                sql(
                    "select batch_id, copies from staging_batches where loaded_at is null"
                    f" and state in ('recorded', 'settled') and batch_id in ({marks or 'null'})"  # ints only
                )
            )
        }
        if not pending:
            return Loaded()
        tx.temporary("incoming", _INCOMING)
        tracked = _stage(tx, pending, copies, repeats)
        _refuse_incomplete(tx.connection, pending)
        if repeats is None:
            _find_duplicates(tx)
        else:
            _follow_loaded_copies(tx)
        if tracked:
            tx.execute(sql("create index incoming_redrive_id on incoming (redrive_id, message_id)"))
            _find_owners_by_header(tx)
        _find_owners_by_broker_id(tx)
        repeated = tx.execute(
            sql("select 1 from incoming where role is not null or owner is not null or twin is not null limit 1")
        ).first()
        if tracked and elsewhere:
            _find_astray(tx, elsewhere)
        if repeated:
            tx.execute(sql("create index incoming_owner on incoming (owner, redrive_attempt, message_id)"))
            _mark_returns(tx)
            _suspect_twins(tx)
            _follow_first_copies(tx)
        restoring.recognise(tx)
        _insert_new(tx)
        _keep_fields(tx)
        if tracked:
            _tell_other_ids(tx)
        if repeated:
            _apply_returns(tx)
            _keep_repeats(tx)
        adopting.hold_for_people(tx, list(pending))
        return _count(tx)


def _stage(
    tx: RunTransaction,
    pending: Mapping[int, int],
    copies: Iterable[Classified],
    repeats: Mapping[int, Repeat] | None,
) -> int:
    """Bring the copies into table ``incoming``; the number that carry our headers."""
    tracked = 0
    seen: set[str] = set()
    repeated = False
    rows = iter(copies)
    while chunk := list(itertools.islice(rows, _STAGE_ROWS)):
        mine = [copy for copy in chunk if copy[_BATCH_ID] in pending]
        tracked += sum([copy[_REDRIVE_ID] is not None for copy in mine])
        tx.bulk("incoming", Classified._fields, mine)
        if repeats is None:
            ids = [str(copy[_BROKER_ID]) for copy in mine if copy[_BROKER_ID]]
            before = len(seen)
            seen.update(ids)
            repeated |= len(seen) < before + len(ids)
            continue
        repeating = [(*repeats[copy[0]], copy[0]) for copy in mine if copy[0] in repeats] if repeats else []
        tx.many(
            "update incoming set role = ?, owner = ? where message_id = ?",
            [one for one in repeating if one[0] != "twin"],
        )
        tx.many(
            "update incoming set twin = ? where message_id = ?",
            [(first, copy_id) for role, first, copy_id in repeating if role == "twin"],
        )
    if repeated:
        tx.execute(sql("create index incoming_broker_message_id on incoming (broker_message_id, message_id)"))
        tx.execute(sql(_DUPLICATES_OF_INCOMING))
    return tracked


def _refuse_incomplete(connection: Connection, pending: Mapping[int, int]) -> None:
    """A batch of which rows are missing is never loaded: those copies would be settled and forgotten."""
    found: dict[int, int] = {
        row.batch_id: row.n
        for row in connection.execute(sql("select batch_id, count(*) as n from incoming group by batch_id"))
    }
    for batch_id, copies in pending.items():
        if found.get(batch_id, 0) != copies:
            raise ClassificationFailed(
                f"batch {batch_id}: {copies} copies are recorded but {found.get(batch_id, 0)} were classified"
            )


# Route and source are compared as expressions, so that the database finds candidates by their own key: an index
# that begins with the route would fit too, and would read the whole route for each copy.


#: The same copy is twice in what is loaded now: its lease ran out while a batch was open. The first counts.
_DUPLICATES_OF_INCOMING = """
update incoming set role = 'duplicate', owner = first.message_id
from (
    select broker_message_id, source, enqueued_at, body_hash, min(message_id) as message_id
    from incoming
    where broker_message_id <> ''
    group by broker_message_id, source, enqueued_at, body_hash
    having count(*) > 1
) first
where
    incoming.broker_message_id = first.broker_message_id
    and incoming.source = first.source and incoming.body_hash = first.body_hash
    and (
        incoming.enqueued_at = first.enqueued_at
        or (incoming.enqueued_at is null and first.enqueued_at is null)
    )
    and incoming.message_id <> first.message_id
"""
#: The same copy was staged before, and became a message.
_DUPLICATES_OF_MESSAGES = """
update incoming set role = 'duplicate', owner = known.message_id
from messages known
where
    incoming.role is null and incoming.broker_message_id <> ''
    and known.broker_message_id = incoming.broker_message_id
    and known.source || '' = incoming.source and known.route || '' = :route
    and (
        known.first_enqueued_at = incoming.enqueued_at
        or (known.first_enqueued_at is null and incoming.enqueued_at is null)
    )
    and known.body_hash = incoming.body_hash and known.message_id <> incoming.message_id
"""
#: The same copy was staged before, and was a copy of a message.
_DUPLICATES_OF_REPEATS = """
update incoming set role = 'duplicate', owner = known.message_id
from repeat_copies known
where
    incoming.role is null and incoming.broker_message_id <> ''
    and known.broker_message_id = incoming.broker_message_id
    and known.source || '' = incoming.source and known.route || '' = :route
    and (known.enqueued_at = incoming.enqueued_at or (known.enqueued_at is null and incoming.enqueued_at is null))
    and known.copy_id <> incoming.message_id
"""


def _find_duplicates(tx: RunTransaction) -> None:
    tx.execute(sql(_DUPLICATES_OF_MESSAGES))
    tx.execute(sql(_DUPLICATES_OF_REPEATS))


_WAS_SENT = "(attempts.sent_at is not null or attempts.unknown_at is not null)"
_SAME_BODY = "incoming.body_hash = coalesce(attempts.body_hash, known.body_hash)"


def _find_owners_by_header(tx: RunTransaction) -> None:
    tx.execute(
        sql(
            "update incoming set owner = known.message_id from messages known"
            " where incoming.role is null and incoming.redrive_id is not null"
            " and known.redrive_id = incoming.redrive_id and known.route || '' = :route"
        )
    )
    # Of several copies with one id that we don't know, the first is that message; the others come from it.
    tx.execute(
        sql(
            "update incoming set owner = (select min(first.message_id) from incoming first where first.role is null"
            " and first.owner is null and first.redrive_id = incoming.redrive_id) where role is null and owner is null"
            " and exists (select 1 from incoming earlier where earlier.role is null and earlier.owner is null"
            " and earlier.redrive_id = incoming.redrive_id and earlier.message_id < incoming.message_id)"
        )
    )


def _find_owners_by_broker_id(tx: RunTransaction) -> None:
    tx.execute(
        sql(
            "update incoming set owner = known.message_id, redrive_attempt = attempts.attempt"
            " from redelivery_attempts attempts inner join messages known on known.message_id = attempts.message_id"
            " where incoming.role is null and incoming.redrive_id is null and not attempts.tracked"
            " and attempts.broker_message_id = incoming.broker_message_id and incoming.broker_message_id <> ''"
            f" and attempts.route = :route and {_SAME_BODY}"
        )
    )


def _find_astray(tx: RunTransaction, elsewhere: Collection[tuple[str, str]]) -> None:
    """Mark the copies that failed elsewhere than where the attempt went that they name."""
    tx.temporary("elsewhere", "destination text, origin text")
    tx.bulk("elsewhere", ("destination", "origin"), elsewhere)
    tx.execute(
        sql(
            "update incoming set astray = 1 from redelivery_attempts attempts"
            " where incoming.role is null and incoming.owner = attempts.message_id"
            " and incoming.redrive_attempt = attempts.attempt and exists (select 1 from elsewhere"
            " where elsewhere.destination = attempts.destination and elsewhere.origin = incoming.origin)"
        )
    )


def _came_before(first: str, later: str) -> str:
    """SQL: ``first``, undecided as all are, is an earlier copy of the attempt that ``later`` names."""
    return (
        f"{first}.owner = incoming.owner and {first}.redrive_attempt = incoming.redrive_attempt"
        f" and {first}.message_id < {later}.message_id and {first}.body_hash = incoming.body_hash"
        f" and {first}.role is null and {first}.astray is null"
    )


#: SQL: what a further copy of an attempt is, by the copy that was its return.
_FURTHER = "case when earlier.headers_hash = incoming.headers_hash then 'surplus' else 'suspected' end"
#: Copies that name an attempt with the body that was sent: the first one is its return, if that was not loaded before;
#: further ones from the same source are surplus or suspected, and those from another source stay undecided.
_RETURNS = f"""
update incoming set
    prior_outcome = coalesce(attempts.outcome, 'none'),
    role = case
        when attempts.outcome = 'returned' then (
            select {_FURTHER}
            from repeat_copies earlier
            where earlier.copy_id = attempts.return_copy and earlier.source = incoming.source
        )
        when exists (select 1 from incoming earlier where {_came_before("earlier", "incoming")}) then (
            select {_FURTHER}
            from incoming earlier
            where
                {_came_before("earlier", "incoming")} and earlier.source = incoming.source
                and not exists (select 1 from incoming first where {_came_before("first", "earlier")})
        )
        else 'returned'
    end
from redelivery_attempts attempts
inner join messages known on known.message_id = attempts.message_id
where
    incoming.role is null and incoming.astray is null and incoming.owner = attempts.message_id
    and incoming.redrive_attempt = attempts.attempt and {_WAS_SENT} and {_SAME_BODY}
"""


def _mark_returns(tx: RunTransaction) -> None:
    """Of the copies that have an owner and an attempt, tell returned from surplus; the rest stays undecided.

    Of several copies of one attempt the first is the return; others from the same source are surplus, or where their
    headers differ suspected, and those from another source are somebody else's and stay new.
    """
    tx.execute(sql(_RETURNS))


def _suspect_twins(tx: RunTransaction) -> None:
    """A copy that carries an id of ours, is no return, and resembles another that may have come again: who made it of
    a message copied the headers, so its id says nothing of it."""
    tx.execute(sql("update incoming set role = 'suspected', owner = twin where role is null and twin is not null"))
    _follow_loaded_copies(tx)


def _follow_first_copies(tx: RunTransaction) -> None:
    """A copy that was staged twice in one load belongs to whom its first staging turned out to belong to."""
    tx.execute(
        sql(
            "update incoming set owner = first.owner from incoming first"
            " where incoming.role in ('duplicate', 'suspected')"
            " and first.message_id = incoming.owner and first.role is not null"
        )
    )


def _follow_loaded_copies(tx: RunTransaction) -> None:
    """A copy that repeats one which was loaded before belongs to whom that one belongs to."""
    tx.execute(
        sql(
            "update incoming set owner = first.message_id from repeat_copies first"
            " where incoming.role is not null and first.copy_id = incoming.owner"
        )
    )


#: SQL: an unknown id that begins as the ids of this ledger do: forged, of another route, or of a message that is gone.
_NOT_GIVEN = (
    "incoming.role is null and incoming.owner is null"
    " and substr(incoming.redrive_id, 1, length(:ledger_id) + 1) = :ledger_id || '-'"
)


#: The id that is ours to give: this ledger's own, and the message's.
_OWN_ID = ":ledger_id || '-' || {hexadecimal}"
#: What each new message would like to be called: by the id that it carries, if another ledger gave it.
_WISHED_ID = f"""
case
    when incoming.redrive_id is not null and incoming.owner is null and not ({_NOT_GIVEN}) then incoming.redrive_id
    else {_OWN_ID}
end
"""
#: The copies of which nothing else is known become messages, called by ``{redrive_id}`` unless another one is. The
#: attempts that a copy tells of are carried over, so that a lost ledger, a message that is made anew from each
#: redelivery, or another route that sends it round in a circle, does not begin to count anew.
_INSERT_NEW = """
insert into messages (
    message_id, redrive_id, parent_id, route, source, kind, origin, destination, broker_message_id,
    body_hash, body_bytes, copy_id, state, cause, group_id,
    attempts,
    deliveries, first_enqueued_at, dead_lettered_at, received_at, changed_at, message_key, order_key
)
select
    message_id, {redrive_id}, owner, :route, source, kind, origin, destination, broker_message_id,
    body_hash, body_bytes, message_id, 'classified', cause, group_id,
    case when redrive_attempt > :most then :most else coalesce(redrive_attempt, 0) end,
    deliveries, enqueued_at, dead_lettered_at, received_at, :now, message_key, order_key
from incoming
where role is null and {missing}
order by message_id
on conflict do nothing
"""
_MISSING = "not exists (select 1 from messages known where known.message_id = incoming.message_id)"


def _keep_fields(tx: RunTransaction) -> None:
    """Keep what new messages are found by."""
    tx.execute(
        sql(
            "insert into message_fields (message_id, field, value) select incoming.message_id, member.key, member.value"
            f" from incoming, {tx.dialect.members('incoming.fields')} where incoming.fields is not null"
            " and incoming.role is null order by incoming.message_id on conflict do nothing"
        )
    )


def _insert_new(tx: RunTransaction) -> None:
    """Make messages of the copies that are new.

    Whatever ids came in or are there already: a clash costs a message its wish, and never stops a load.
    """
    own = _OWN_ID.format(hexadecimal=tx.dialect.hexadecimal("message_id", REDRIVE_ID_DIGITS))
    wished = _WISHED_ID.format(hexadecimal=tx.dialect.hexadecimal("message_id", REDRIVE_ID_DIGITS))
    values = {
        "most": MAX_CARRIED_ATTEMPTS,
        "ledger_id": ledger_id(tx.connection),
        "salt": secrets.token_hex(4),
    }
    left = int(tx.execute(sql("select count(*) from incoming where role is null")).scalar_one())
    for redrive_id, missing in ((wished, "1 = 1"), (own, _MISSING), (f"{own} || '-' || :salt", _MISSING)):
        statement = _INSERT_NEW.format(redrive_id=redrive_id, missing=missing)
        left -= tx.execute(sql(statement), values).rowcount
        if left <= 0:
            return


def _tell_other_ids(tx: RunTransaction) -> None:
    ours = {"ledger_id": ledger_id(tx.connection)}
    count = int(tx.execute(sql(f"select count(*) from incoming where {_NOT_GIVEN}"), ours).scalar_one())
    if count:
        record_event(
            tx,
            action=Action.GIVE_ANOTHER_ID,
            count=count,
            reason="They carried an id of this ledger that no message of this route has: forged, of another route, of a"
            " message that is past its retention, or from before the ledger was restored.",
        )


#: Attempts that came back say so, and count for their breakers as having come back.
_NOTE_RETURNS = f"""
update redelivery_attempts set
    outcome = 'returned', outcome_at = coalesce(incoming.dead_lettered_at, :now),
    return_copy = incoming.message_id, return_kind = incoming.kind, {counting.CAME_BACK}
from incoming
where
    incoming.role = 'returned' and redelivery_attempts.message_id = incoming.owner
    and redelivery_attempts.attempt = incoming.redrive_attempt
"""
#: Messages whose last attempt came back are what the copy says that they are now.
_CLASSIFY_AGAIN = """
update messages set
    state = 'classified', plan = null, reason = null, next_attempt_at = null, changed_at = :now,
    cause = incoming.cause, group_id = incoming.group_id, kind = incoming.kind, copy_id = incoming.message_id,
    deliveries = incoming.deliveries, received_at = incoming.received_at,
    dead_lettered_at = coalesce(incoming.dead_lettered_at, messages.dead_lettered_at),
    origin = coalesce(messages.origin, incoming.origin)
from incoming
where
    incoming.role = 'returned' and messages.message_id = incoming.owner
    and incoming.redrive_attempt = messages.attempts and messages.state = 'returned'
"""


def _apply_returns(tx: RunTransaction) -> None:
    if not tx.execute(sql("select 1 from incoming where role = 'returned' limit 1")).first():
        return
    tx.execute(sql(_NOTE_RETURNS))
    # A late return of an earlier attempt changes that attempt only.
    current = "(message_id, attempts) in (select owner, redrive_attempt from incoming where role = 'returned')"
    for state in (State.SENT, State.PRESUMED, State.CONFIRMED, State.UNKNOWN, State.TO_REVIEW):
        move(
            tx,
            state,
            State.RETURNED,
            where=f"route = :route and {current}",
            action=Action.RETURN,
            reason="It came back with our id.",
        )
    lifecycle.check(State.RETURNED, State.CLASSIFIED)
    again = tx.execute(sql(_CLASSIFY_AGAIN)).rowcount
    if again:
        record_event(
            tx,
            action=Action.CLASSIFY_AGAIN,
            source=State.RETURNED,
            target=State.CLASSIFIED,
            count=again,
        )


def _keep_repeats(tx: RunTransaction) -> None:
    tx.execute(
        sql(
            "insert into repeat_copies (copy_id, message_id, route, kind, attempt, source, broker_message_id,"
            " enqueued_at, headers_hash, seen_at) select message_id, owner, :route, role, redrive_attempt, source,"
            " broker_message_id, enqueued_at, headers_hash, :now from incoming where role is not null"
            " on conflict (copy_id) do nothing"
        )
    )


def _count(tx: RunTransaction) -> Loaded:
    roles = "".join(
        f", sum(case when role = '{role}' then 1 else 0 end) as {role}"
        for role in ("returned", "duplicate", "surplus", "suspected")
    )
    rows = tx.execute(
        sql(f"select batch_id, sum(case when role is null then 1 else 0 end) as new{roles} from incoming group by 1")
    ).all()
    tx.many(
        "update staging_batches set loaded_at = ?, new_copies = ?, returned_copies = ?, duplicate_copies = ?,"
        " surplus_copies = ?, suspected_copies = ? where batch_id = ? and loaded_at is null",
        [(tx.dialect.stored(tx.now), *row[1:], row[0]) for row in rows],
    )
    tx.execute(
        sql(
            "update failure_groups set messages = failure_groups.messages + seen.messages, last_seen_at = :now"
            " from (select group_id, count(*) as messages from incoming"
            "   where group_id is not null and (role is null or role = 'returned') group by group_id) seen"
            " where failure_groups.group_id = seen.group_id"
        )
    )
    loaded = Loaded(*(sum(column) for column in list(zip(*rows, strict=True))[1:])) if rows else Loaded()
    batch_ids = [row.batch_id for row in rows]
    record_event(
        tx,
        action=Action.LOAD,
        target=State.CLASSIFIED,
        count=loaded.new,
        selection={"batches": [min(batch_ids, default=None), max(batch_ids, default=None)], **loaded._asdict()},
    )
    return loaded
