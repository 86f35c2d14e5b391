"""Files without a row, taken in: what is in them goes to people, because nobody knows what became of it.

A file without a row was written by a ledger that is lost: this one was restored from a backup, or another one is gone.
Its copies were settled at their source, so the file may be all that is left of them; or they were redelivered and
processed long ago. The same holds for what waited to be sent when the backup was taken, or was staged and not loaded.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.moves import move, record_event
from redrive.ledger.predicates import ASKED, TO_ASK, UNDECIDED_REVIEW
from redrive.ledger.review import standing
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.lifecycle import Question, State
from redrive.message import span_of

OF_A_FILE = (
    "It was taken in from a file that the ledger didn't know: it may have been redelivered since, and processed."
)
OF_A_BACKUP = "The ledger was restored from a backup: it may have been redelivered since, and processed."


def paths(connection: Connection, route: str | None) -> tuple[set[str], set[str]]:
    """Of a route or all: the files that batches have, and those that batches are copies of and need no more.

    A batch that was given up, or whose writer was gone, has none: should its file turn up, it can be taken in.
    """
    rows = connection.execute(
        sql(
            "select uri, adopted_from, state from staging_batches where not (state = 'abandoned' and loaded_at is null"
            " and removed_at is not null)" + (" and route = :route" if route else "")
        ),
        {"route": route} if route else {},
    ).all()
    own = {row.uri for row in rows} | {row.adopted_from for row in rows if row.state == "open" and row.adopted_from}
    return own, {row.adopted_from for row in rows if row.state in ("recorded", "settled") and row.adopted_from}


def ever_adopted(connection: Connection) -> set[str]:
    """Paths of all files that were taken in, of every route."""
    rows = connection.execute(
        sql("select adopted_from from staging_batches where adopted_from is not null and state <> 'abandoned'")
    )
    return set(rows.scalars())


def hold_for_people(tx: RunTransaction, batch_ids: Sequence[int]) -> int:
    """Of what was loaded from those of these batches that are copies of files without a row, or were not loaded yet
    when the ledger was backed up, people are to be asked."""
    marks = ",".join(str(int(batch_id)) for batch_id in batch_ids)  # ints only
    doubtful = tx.execute(
        sql(
            "select batch_id, adopted_from from staging_batches where (adopted_from is not null or doubted)"
            f" and batch_id in ({marks or 'null'})"
        )
    ).all()
    moved = 0
    for batch in doubtful:
        why = OF_A_BACKUP if batch.adopted_from is None else OF_A_FILE
        moved += move(
            tx,
            State.CLASSIFIED,
            State.TO_REVIEW,
            where="route = :route and copy_id >= :low and copy_id < :high",
            values={**span_of(batch.batch_id), "why": why},
            set_="reason = :why, doubted = true",
            action=Action.PUT_TO_REVIEW,
            reason=why,
        )
    return moved


def doubt_unsent(ledger: Ledger, lease: RouteLease, now: datetime) -> dict[str, int]:
    """The ledger was restored from a backup: of what it says waits to be sent, or is to be, people are to be asked;
    also of what is staged and not loaded yet, once it is.

    Who is asked already is told, because somebody may have answered since; decisions that were not carried out are
    asked again, and standing ones, which somebody may have revoked since, are to be made again. Returns how many
    messages and recorded copies are ``doubted``, and how many standing decisions are ``ended``.
    """
    doubted = 0
    with ledger.under(lease, now) as tx:
        values = {"why": OF_A_BACKUP}
        doubted += tx.execute(
            sql(
                "update messages set doubted = true, reason = coalesce(reason || ' ', '') || :why where route = :route"
                f" and {TO_ASK} and coalesce(reason, '') not like '%' || :why"
            ),
            values,
        ).rowcount
        for state in (State.CLASSIFIED, State.WAITING, State.HELD):
            doubted += move(
                tx,
                state,
                State.TO_REVIEW,
                where="route = :route",
                values=values,
                set_="reason = :why, next_attempt_at = null, doubted = true",
                action=Action.PUT_TO_REVIEW,
                reason=OF_A_BACKUP,
            )
        doubted += _doubt_unloaded(tx)
        tx.execute(sql(f"update messages set doubted = true where route = :route and {ASKED}"))
        asked_again = tx.execute(
            sql(
                "update escalated_messages set status = 'reopened', decision = null, decided_at = null,"
                " approved_by = null, refusal = case when status = 'decided' then '' else coalesce(refusal || ' ', '')"
                f" end || :why, question = case when question = '{Question.FAILURE}' then '{Question.SENT}'"
                " else question end where route = :route and"
                f" (status = 'decided' or {UNDECIDED_REVIEW} and coalesce(refusal, '') not like '%' || :why)"
                # what was released is asked about again once it is on its way to people
                " and not exists (select 1 from messages where messages.message_id = escalated_messages.message_id"
                f" and not messages.{ASKED})"
            ),
            values,
        ).rowcount
        ended = standing.end_all(tx, by="redrive adopt", made_before=_first_doubt(tx))
        record_event(
            tx,
            action=Action.DOUBT_BACKUP,
            count=doubted + asked_again,
            reason=OF_A_BACKUP,
        )
    return {"doubted": doubted + asked_again, "standing_decisions_ended": ended}


def _first_doubt(tx: RunTransaction) -> datetime:
    """When this restore was told of first, for whichever route, before any other run: what people said since, they said
    knowing of it."""
    at = parse_instant(
        tx.execute(
            sql(
                "select min(at) from audit_events where action = :action and not exists (select 1 from runs"
                " where runs.\"trigger\" <> 'adopt' and runs.started_at >= audit_events.at)"
            ),
            {"action": Action.DOUBT_BACKUP},
        ).scalar()
    )
    return tx.now if at is None else at


def _doubt_unloaded(tx: RunTransaction) -> int:
    """What is staged and not loaded yet may have been loaded and sent since; how many copies are recorded of it. Of an
    open batch nobody knows yet."""
    copies = tx.execute(
        sql(
            "update staging_batches set doubted = true where route = :route and loaded_at is null and not doubted"
            " and state in ('open', 'recorded', 'settled') returning copies"
        )
    ).scalars()
    return sum(copies)
