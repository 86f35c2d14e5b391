"""Load classified copies: take in every copy of a batch exactly once, in one transaction.

What each copy is, is decided in sets (:mod:`~redrive.ledger.drain.copy_roles`). New ones become messages
(:mod:`~redrive.ledger.drain.new_messages`), those of another route's ids
(:mod:`~redrive.ledger.drain.strangers`) for people; what came back changes messages that are known
(:mod:`~redrive.ledger.drain.returns`).

A message id is a function of (batch, row), and a batch is loaded in the transaction that sets ``loaded_at``:
loading twice, or by a run that was replaced, changes nothing.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.errors import ClassificationFailed
from redrive.ledger.drain import (
    adopting,
    copy_roles,
    new_messages,
    returned_elsewhere,
    returns,
    shared_queues,
    strangers,
)
from redrive.ledger.drain.keys import Selectors
from redrive.ledger.drain.repeats import Repeat
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import record_event
from redrive.ledger.review import restoring
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.lifecycle import State


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
    " stranger bigint"
)
_STAGE_ROWS = 10_000
#: So many characters of what messages are found by are kept: an index holds them. The job hands on more, so that what
#: is masked is recognised before it is cut.
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
    behind: strangers.Behind = strangers.Behind(),  # noqa: B008 - immutable
    keyed_by: Selectors = Selectors(),  # noqa: B008 - immutable
) -> Loaded:
    """Take in all copies of these batches, in one transaction; batches that are loaded already are left alone.

    ``copies`` are in message id order and may hold copies of other batches too; those are skipped. Plain tuples in
    the order of :class:`Classified` will do. ``repeats``, for a broker whose ids prove nothing, says which copies were
    staged before; without it the broker's ids do. ``elsewhere`` are pairs of a destination and an origin: what failed
    at this origin was not sent to that destination. ``behind`` says where the failures of
    other routes' destinations land. ``keyed_by`` is what found the copies' keys.
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
        tracked, strange = _stage(tx, pending, copies, repeats), False
        tx.dialect.look_at_temporary(tx.connection, "incoming")
        _refuse_incomplete(tx.connection, pending)
        shared_queues.load_in_turn(tx, list(pending))
        if repeats is None:
            copy_roles.find_duplicates(tx)
        else:
            copy_roles.follow_loaded_copies(tx)
        if tracked:
            tx.execute(sql("create index incoming_redrive_id on incoming (redrive_id, message_id)"))
            copy_roles.find_owners_by_header(tx)
            strange = strangers.find(tx, behind)
            copy_roles.find_owners_in_load(tx)
        copy_roles.find_owners_by_broker_id(tx)
        repeated = tx.execute(
            sql("select 1 from incoming where role is not null or owner is not null or twin is not null limit 1")
        ).first()
        if tracked and elsewhere:
            copy_roles.find_astray(tx, elsewhere)
            if strange:
                strangers.leave_astray(tx)
        if repeated:
            tx.execute(sql("create index incoming_owner on incoming (owner, redrive_attempt, message_id)"))
            copy_roles.mark_returns(tx)
            copy_roles.suspect_twins(tx)
            copy_roles.follow_first_copies(tx)
        restoring.recognise(tx, keyed_by.message_key)
        new_messages.insert(tx)
        new_messages.keep_fields(tx)
        if tracked:
            new_messages.tell_other_ids(tx)
        if repeated:
            returns.apply(tx)
            returns.keep_repeats(tx)
        if strange:
            returned_elsewhere.note(tx)
            strangers.hold_for_people(tx)
        adopting.hold_for_people(tx, list(pending))
        return _count(tx, keyed_by)


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
        copy_roles.find_staged_twice(tx)
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


def _count(tx: RunTransaction, keyed_by: Selectors) -> Loaded:
    roles = "".join(
        f", sum(case when role = '{role}' then 1 else 0 end) as {role}"
        for role in ("returned", "duplicate", "surplus", "suspected")
    )
    rows = tx.execute(
        sql(f"select batch_id, sum(case when role is null then 1 else 0 end) as new{roles} from incoming group by 1")
    ).all()
    tx.many(
        "update staging_batches set loaded_at = ?, new_copies = ?, returned_copies = ?, duplicate_copies = ?,"
        " surplus_copies = ?, suspected_copies = ?, message_key_by = ?, order_key_by = ?"
        " where batch_id = ? and loaded_at is null",
        [(tx.dialect.stored(tx.now), *row[1:], *keyed_by, row[0]) for row in rows],
    )
    # Groups are every route's: whoever loads locks them in one order, or two loads could wait for each other.
    of_groups = "select group_id from incoming where group_id is not null and (role is null or role = 'returned')"
    if tx.dialect.for_update:
        groups = f"select group_id from failure_groups where group_id in ({of_groups}) order by group_id"
        tx.execute(sql(f"select count(*) from ({groups}{tx.dialect.for_update}) locked"))
    tx.execute(
        sql(
            "update failure_groups set messages = failure_groups.messages + seen.messages, last_seen_at = :now"
            f" from (select group_id, count(*) as messages from ({of_groups}) counted group by group_id) seen"
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
