"""When people looked at the review page: what has changed since then is shown to them."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sqlalchemy.engine import Connection

from redrive.ledger.engine import Ledger, sql

#: Who comes back after this looks anew.
NEW_VISIT = timedelta(minutes=30)
#: So far back is shown to who was never here.
AT_FIRST = timedelta(days=1)


class Visit(NamedTuple):
    """One of somebody's visits."""

    since: datetime
    first: bool  # they were never here


def visit_of(connection: Connection, person: str, now: datetime) -> Visit:
    """What ``person`` is shown the changes since: their last visit, or what they marked as seen in this one."""
    row = connection.execute(
        sql("select visited_at, since_at from page_visits where person = :person"), {"person": person}
    ).first()
    if row is None:
        return Visit(now - AT_FIRST, first=True)
    visited, since = map(_instant, row)
    return Visit(visited if now - visited > NEW_VISIT else since, first=False)


def _instant(stored: str | datetime) -> datetime:
    return datetime.fromisoformat(stored).replace(tzinfo=UTC) if isinstance(stored, str) else stored


def remember(ledger: Ledger, person: str, now: datetime, *, seen: bool) -> datetime:
    """Note that ``person`` looks now; with ``seen`` all that there is counts as known. Returns since when is shown."""
    with ledger.by(person, now) as tx:
        since = now if seen else visit_of(tx.connection, person, now).since
        tx.execute(
            sql(
                "insert into page_visits (person, visited_at, since_at) values (:actor, :now, :since_at)"
                " on conflict (person) do update set visited_at = excluded.visited_at, since_at = excluded.since_at"
            ),
            {"since_at": since},
        )
    return since
