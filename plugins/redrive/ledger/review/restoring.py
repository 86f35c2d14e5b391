"""What restore needs of the ledger: unfinished messages, and the state of those that are on their way back.

While a message is being put back it is ``restoring``: handed to the broker for the queue that it came from, and nobody
knows yet whether it is there. The broker's word ends that: ``discarded`` (``It was restored to QUEUE.``), because from
then on the queue owns it again, or back to where it was. Where no word came (the restore was killed, the answer was
lost) it is ``restore_unknown``: nothing sends it, and people are asked (:func:`doubt`). Only that it was seen, by
the load (:func:`recognise`) or by a person who looked, ends the doubt.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.drain import batches
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import move, move_each
from redrive.ledger.predicates import IN_DOUBT, listed
from redrive.ledger.review import escalations
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.lifecycle import Question, State
from redrive.message import MAX_ROWS, ROW_BITS

#: What people are advised to decide where only their own look can tell: no decision, so that nobody copies it into one.
LOOK = "look"
ACTOR = "redrive restore"
_OPEN_STATES = (State.CLASSIFIED, State.WAITING, State.HELD, State.TO_REVIEW, State.ESCALATED, State.EXPIRED)
_OPEN = listed(_OPEN_STATES)
#: SQL over ``{table}``, which has messages: a restore put it back into its queue.
WAS_RESTORED = "{table}.state = 'discarded' and coalesce({table}.reason, '') like 'It was restored to %'"
#: A restore handed them over, and nobody knows whether they are in their queue.
_HANDED_OVER = (State.RESTORING, State.RESTORE_UNKNOWN)
_REASON = (
    "'It was being put back into its queue ' || source || ' and may be there already. Before that it was ' || state"
    " || case when reason is null then '.' else ': ' || reason end"
)
# A batch says how many of its copies were settled, not which. So a message is certainly with us alone only if all of a
# batch with one of its copies were, or if its source was drained to the end (source_state.drained_to) after the leases
# of every such batch: a copy that was still there would have come.
_STAGED = (
    f"(select taken.*, 'first' as role from staging_batches taken where taken.batch_id = messages.copy_id >> {ROW_BITS}"
    " union all select taken.*, again.kind from repeat_copies again inner join staging_batches taken"
    f" on taken.batch_id = again.copy_id >> {ROW_BITS} where again.message_id = messages.message_id)"
)
#: SQL: some copies of a batch with a copy of this message were settled, or no answer came whether any was; so maybe
#: this one.
_PERHAPS = (
    f"exists (select 1 from {_STAGED} one where one.role in ('first', 'duplicate')"
    " and (one.settled_copies > 0 or one.state = 'recorded'))"
)


def _taken(ledger: Ledger, leased_for: timedelta) -> str:
    """SQL: no queue holds a copy of this message."""
    return (
        f"(exists (select 1 from {_STAGED} one where one.role in ('first', 'duplicate') and one.state = 'settled'"
        " and one.settled_copies = one.copies)"
        f" or exists (select 1 from {_STAGED} one) and not exists (select 1 from {_STAGED} one"
        f" where {batches.may_come_again(ledger, leased_for, 'one')}))"
    )


#: SQL over ``incoming``: the copy was drained after what is in doubt had been handed over. Whose fence is higher came
#: later, whatever clocks say; what is in a file that was taken in was drained by nobody knows whom.
_DRAINED_SINCE = (
    f"exists (select 1 from staging_batches drained where drained.batch_id = incoming.message_id >> {ROW_BITS}"
    " and (drained.adopted_from is null and drained.fence > (select coalesce(max(restores.fence), -1)"
    " from audit_events told inner join runs restores on restores.run_id = told.run_id"
    f" where told.route = :route and told.action = '{Action.BEGIN_RESTORE}')"
    " or drained.adopted_from is not null and incoming.received_at >= messages.changed_at))"
)


class Unfinished(NamedTuple):
    """A message that restore puts back."""

    message_id: int
    redrive_id: str
    attempts: int
    source: str
    state: str
    reason: str | None


def _of(groups: Sequence[int]) -> str:
    """SQL: the message is of one of these groups; of any where none is named."""
    return f" and group_id in ({', '.join(str(int(one)) for one in groups)})" if groups else ""


def count(connection: Connection, route: str, groups: Sequence[int] = ()) -> int:
    """How many messages of the route are unfinished and certainly not at the broker."""
    return int(
        connection.execute(
            sql(
                f"select count(*) from messages where route = :route and state in {_OPEN} and not {IN_DOUBT}"
                f"{_of(groups)}"
            ),
            {"route": route},
        ).scalar_one()
    )


def unfinished(
    ledger: Ledger,
    connection: Connection,
    route: str,
    *,
    leased_for: timedelta,
    after: int,
    limit: int,
    groups: Sequence[int] = (),
) -> list[Unfinished]:
    """Unfinished messages that no queue holds, in id order after ``after``; ``leased_for``: how long drains lease."""
    rows = connection.execute(
        sql(
            "select message_id, redrive_id, attempts, source, state, reason from messages"
            f" where route = :route and state in {_OPEN} and message_id > :after and not {IN_DOUBT}"
            f" and {_taken(ledger, leased_for)}{_of(groups)} order by message_id limit :limit"
        ),
        {"route": route, "after": after, "limit": limit},
    )
    return [Unfinished(*row) for row in rows]


class NotTaken(NamedTuple):
    """Unfinished messages of which a queue has a copy, and those of which one may have."""

    still_there: int
    in_doubt: int


def not_taken(
    ledger: Ledger, connection: Connection, route: str, *, leased_for: timedelta, groups: Sequence[int] = ()
) -> NotTaken:
    """Of how many messages the broker refused to settle all copies, and of how many nobody knows whether one was."""
    row = connection.execute(
        sql(
            f"select coalesce(sum(case when {_PERHAPS} then 0 else 1 end), 0) as still_there,"
            f" coalesce(sum(case when {_PERHAPS} then 1 else 0 end), 0) as in_doubt from messages"
            f" where route = :route and state in {_OPEN} and not {IN_DOUBT} and not {_taken(ledger, leased_for)}"
            f"{_of(groups)}"
        ),
        {"route": route},
    ).one()
    return NotTaken(int(row.still_there), int(row.in_doubt))


def sent_in_doubt(connection: Connection, route: str, groups: Sequence[int] = ()) -> int:
    """How many messages a delivery may have sent without hearing so, or an earlier restore, or a ledger that is lost;
    also those that are under review for it. Nobody knows whether they are anywhere."""
    return int(
        connection.execute(
            sql(
                "select count(*) from messages where route = :route and (state in"
                f" {listed((State.SENDING, State.UNKNOWN, *_HANDED_OVER))} or (state in {_OPEN} and {IN_DOUBT}))"
                f"{_of(groups)}"
            ),
            {"route": route},
        ).scalar_one()
    )


def suspected(connection: Connection, route: str, groups: Sequence[int] = ()) -> int:
    """How many copies may be second stagings of a message, of one of these groups if any is named, and nobody has
    decided on them yet."""
    theirs = f" and message_id in (select message_id from messages where route = :route{_of(groups)})" if groups else ""
    return int(
        connection.execute(
            sql(f"select count(*) from repeat_copies where route = :route and kind = 'suspected'{theirs}"),
            {"route": route},
        ).scalar_one()
    )


def begin(ledger: Ledger, lease: RouteLease, message_ids: Sequence[int], now: datetime) -> list[int]:
    """These are about to be handed to the broker; returns those that are still unfinished, and so may be. Not those
    that somebody decides on at this moment: whoever finishes it would wait for them."""
    with ledger.under(lease, now) as tx:
        _choose(tx, message_ids)
        escalations.leave_those_at_it(tx, "chosen")
        for state in _OPEN_STATES:
            move(
                tx,
                state,
                State.RESTORING,
                where="message_id in (select message_id from chosen)",
                set_=f"reason = {_REASON}",
                action=Action.BEGIN_RESTORE,
            )
        rows = tx.execute(
            sql(
                "select message_id from messages where state = 'restoring' and message_id in"
                " (select message_id from chosen) order by message_id"
            )
        )
        return [row.message_id for row in rows]


def undo(ledger: Ledger, lease: RouteLease, messages: Sequence[Unfinished], why: str, now: datetime) -> None:
    """These were certainly not put back; they are again as they were."""
    if not messages:
        return
    with ledger.under(lease, now) as tx:
        tx.temporary("chosen", "message_id bigint primary key, state text, reason text")
        tx.bulk(
            "chosen",
            ("message_id", "state", "reason"),
            [(one.message_id, one.state, one.reason) for one in messages],
        )
        for state in sorted({one.state for one in messages}):
            move_each(
                tx,
                State.RESTORING,
                State(state),
                decided="select message_id, :actor as actor, :action as action, :why as reason from chosen"
                " where chosen.state = :before",
                set_="reason = (select chosen.reason from chosen where chosen.message_id = messages.message_id)",
                values={"before": state, "why": why, "action": Action.UNDO_RESTORE},
            )
        # Who looked meanwhile was not shown them: what they chose then is not about these.
        escalations.leave_those_at_it(tx, "chosen")
        of_these = tx.dialect.few("message_id", "select message_id from chosen")
        tx.execute(
            sql(
                f"update escalated_messages set reason = reason where {of_these}"
                f" and {tx.dialect.in_row('status')} <> 'applied'"
            )
        )


def finish(ledger: Ledger, lease: RouteLease, message_ids: Sequence[int], source: str, now: datetime) -> None:
    """The broker has them: here they are finished."""
    if not message_ids:
        return
    with ledger.under(lease, now) as tx:
        tx.temporary("chosen", "message_id bigint primary key, why text")
        why = f"It was restored to {source}."
        tx.bulk("chosen", ("message_id", "why"), [(i, why) for i in message_ids])
        _restored(tx)


def _restored(tx: RunTransaction) -> None:
    """Messages of table ``chosen`` (with ``why``) are in their queue again: nothing is left to do or to decide here."""
    for state in _HANDED_OVER:
        move_each(
            tx,
            state,
            State.DISCARDED,
            decided="select chosen.message_id, :actor as actor, :action as action, chosen.why as reason from chosen"
            " inner join messages here on here.message_id = chosen.message_id and here.state = :source_state",
            set_="reason = (select chosen.why from chosen where chosen.message_id = messages.message_id),"
            " next_attempt_at = null",
            values={"action": Action.FINISH_RESTORE},
        )
    # What people had decided meanwhile was not carried out: the row says so, and doesn't put our word into their mouth.
    tx.execute(
        sql(
            "update escalated_messages set status = 'applied', applied_at = :now, decision = 'discard',"
            f" question = '{Question.RESTORED}', decided_by = :restore, decided_at = :now, approved_by = null,"
            " note = (select chosen.why from chosen where chosen.message_id = escalated_messages.message_id),"
            " refusal = case when decision is not null"
            " then 'A restore came before this decision of ' || decided_by || ': ' || decision || '.' else refusal end"
            " where status <> 'applied' and message_id in (select message_id from chosen)"
        ),
        {"restore": ACTOR},
    )


def doubt(ledger: Ledger, lease: RouteLease, now: datetime) -> int:
    """Whatever was handed over and has no answer yet will get none: people are asked, and what was decided about these
    messages before is asked again. Returns how many; at most one page per restore that died or lost an answer. Of what
    somebody writes to at this moment the next run asks: nothing is done with it before."""
    at_it = "route = :route and state = 'restoring'"
    with ledger.under(lease, now) as tx:
        any_left = tx.execute(sql(f"select 1 from messages where {at_it} limit 1"))
        if any_left.first() is None:
            return 0
        values = {"look": LOOK}
        tx.temporary("chosen", "message_id bigint primary key, why text")
        tx.execute(
            sql(f"insert into chosen (message_id, why) select message_id, reason from messages where {at_it}"), values
        )
        escalations.leave_those_at_it(tx, "chosen")
        count = move_each(
            tx,
            State.RESTORING,
            State.RESTORE_UNKNOWN,
            decided="select message_id, :actor as actor, :action as action, why as reason from chosen",
            set_="next_attempt_at = null",
            values={"action": Action.DOUBT_RESTORE},
        )
        tx.execute(
            sql(
                "update escalated_messages set reason = (select chosen.why from chosen"
                "  where chosen.message_id = escalated_messages.message_id), suggested_decision = :look,"
                f" question = '{Question.RESTORED}',"
                " refusal = case when decision is null then refusal else 'A restore came after this decision of '"
                "  || decided_by || ': ' || decision || '. Decide again.' end,"
                " status = case when decision is null then status else 'reopened' end,"
                " decision = null, decided_at = null, approved_by = null"
                " where status <> 'applied' and message_id in (select message_id from chosen)"
            ),
            values,
        )
        return int(count)


def recognise(tx: RunTransaction, keyed_by: str | None) -> int:
    """Within a load: of copies in table ``incoming``, whose keys the selector ``keyed_by`` found, some are those of
    which a restore never heard; how many.

    Proof is the body, from the queue into which it was put, drained since, and one of: the redrive id that the message
    came with, its broker's id, its business key, if the same selector found it. The message is restored then, and its
    copy is new, with the message as its parent. The body alone proves nothing; people are told of it.
    """
    if not tx.execute(
        sql(f"select 1 from messages where route = :route and state in {listed(_HANDED_OVER)} limit 1")
    ).first():
        return 0
    fits = (
        f"from incoming inner join messages on messages.route = :route and messages.state in {listed(_HANDED_OVER)}"
        " and messages.source = incoming.source and messages.body_hash = incoming.body_hash"
        f" where incoming.role is null and {_DRAINED_SINCE}"
    )
    proved = (
        " and (incoming.owner = messages.message_id or (incoming.owner is null"
        " and ((incoming.message_key = messages.message_key and exists (select 1 from staging_batches staged"
        f" where staged.batch_id = messages.message_id / {MAX_ROWS}"
        " and coalesce(staged.message_key_by, '') = coalesce(cast(:keyed_by as text), '')))"
        " or (incoming.broker_message_id <> ''"
        " and incoming.broker_message_id = messages.broker_message_id))))"
    )
    tx.temporary("chosen", "message_id bigint primary key, copy_id bigint, why text")
    # One copy proves one message.
    found = tx.execute(
        sql(
            "insert into chosen (message_id, copy_id, why) select owner, min(copy_id), 'It was restored to ' || source"
            " || ', and came from there again as message ' || cast(min(copy_id) as text) || '.' from"
            " (select incoming.message_id as copy_id, incoming.source, min(messages.message_id) as owner"
            f" {fits}{proved}"
            " group by incoming.message_id, incoming.source) pairs group by owner, source"
        ),
        {"keyed_by": keyed_by},
    ).rowcount
    if found:
        tx.execute(
            sql(
                "update incoming set owner = chosen.message_id from chosen where incoming.message_id = chosen.copy_id"
                " and incoming.redrive_id is null"
            )
        )
        _restored(tx)
    _tell_of_likely_copies(tx, fits)
    return int(found)


def _tell_of_likely_copies(tx: RunTransaction, fits: str) -> None:
    tx.temporary("likely", "message_id bigint primary key, why text")
    seen = tx.execute(
        sql(
            "insert into likely (message_id, why) select messages.message_id, messages.reason || ' A copy with the"
            " same body has come from there since, as message ' || cast(min(incoming.message_id) as text) || '.'"
            f" {fits} and messages.reason not like '% A copy with the same body has come from there since%'"
            " group by messages.message_id, messages.reason"
        )
    ).rowcount
    for table in ("messages", "escalated_messages") if seen else ():
        tx.execute(
            sql(
                f"update {table} set reason = (select likely.why from likely where likely.message_id ="
                f" {table}.message_id) where message_id in (select message_id from likely)"
                + (" and status <> 'applied'" if table == "escalated_messages" else "")
            )
        )


def _choose(tx: RunTransaction, message_ids: Sequence[int]) -> None:
    tx.temporary("chosen", "message_id bigint primary key")
    tx.bulk("chosen", ("message_id",), [(i,) for i in message_ids])
