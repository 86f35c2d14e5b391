"""Filters of the review page that people gave a name: who saved them, when, and that they are gone again."""

from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import record_event

#: So many are kept at once.
MOST = 200


class SavedFilter(NamedTuple):
    """A filter with a name."""

    filter_id: int
    name: str
    page: str
    query: str
    saved_by: str


def all_of(connection: Connection) -> list[dict[str, Any]]:
    """All of them, by name."""
    return [
        row._asdict()
        for row in (
            SavedFilter(*one)
            for one in connection.execute(
                sql("select filter_id, name, page, query, saved_by from saved_filters order by lower(name), filter_id")
            )
        )
    ]


def save(ledger: Ledger, *, name: str, page: str, query: str, by: str, now: datetime) -> str | None:
    """Keep it under its name; a sentence where that can't be."""
    with ledger.by(by, now) as tx:
        count = tx.execute(sql("select count(*) from saved_filters")).scalar_one()
        if count >= MOST:
            return f"there are {MOST} saved filters: remove one that nobody needs"
        saved = tx.execute(
            sql(
                "insert into saved_filters (name, page, query, saved_by, saved_at)"
                " values (:name, :page, :query, :actor, :now) on conflict (name) do nothing"
            ),
            {"name": name, "page": page, "query": query},
        ).rowcount
        if not saved:
            return "a filter of that name is there already"
        record_event(tx, Action.SAVE_FILTER, selection={"name": name, "page": page, "query": query})
    return None


def found(connection: Connection, filter_id: int) -> SavedFilter | None:
    """The one with this id."""
    row = connection.execute(
        sql("select filter_id, name, page, query, saved_by from saved_filters where filter_id = :id"), {"id": filter_id}
    ).first()
    return SavedFilter(*row) if row else None


def remove(ledger: Ledger, one: SavedFilter, *, by: str, now: datetime) -> bool:
    """Remove it; False where somebody was faster."""
    with ledger.by(by, now) as tx:
        gone = tx.execute(sql("delete from saved_filters where filter_id = :id"), {"id": one.filter_id}).rowcount
        if gone:
            record_event(
                tx,
                Action.REMOVE_FILTER,
                selection={"name": one.name, "page": one.page, "query": one.query, "saved_by": one.saved_by},
            )
    return bool(gone)
