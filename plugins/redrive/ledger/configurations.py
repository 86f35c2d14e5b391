"""What runs began with: each text of a configuration once, under its hash.

A run's other tasks read it here and not from the file, so an edit in the middle of a run counts from the next one on.
The environment's values are not in it.
"""

from datetime import datetime

from sqlalchemy.engine import Connection

from redrive.ledger.engine import Ledger, sql

#: How many digits of a hash people are shown.
SHOWN = 8


def keep(connection: Connection, name: str, text: str, now: datetime) -> None:
    """A run begins with the configuration ``text`` of hash ``name``; in the transaction that makes its row of ``runs``.

    A row that is there is written too: :func:`forget` waits for it then, and leaves it.
    """
    connection.execute(
        sql(
            "insert into configurations (hash, text, first_used_at, last_used_at) values (:hash, :text, :now, :now)"
            " on conflict (hash) do update set last_used_at = excluded.last_used_at"
        ),
        {"hash": name, "text": text, "now": now},
    )


def text_of(connection: Connection, name: str) -> str | None:
    """The text of the configuration of hash ``name``; None when the ledger doesn't have it."""
    row = connection.execute(sql("select text from configurations where hash = :hash"), {"hash": name}).first()
    return None if row is None else str(row.text)


def before(connection: Connection, route: str) -> str | None:
    """The hash of what the newest run of the route began with; None without one."""
    row = connection.execute(
        sql(
            "select configuration from runs where route = :route and configuration is not null"
            " order by started_at desc limit 1"
        ),
        {"route": route},
    ).first()
    return None if row is None else str(row.configuration)


def forget(ledger: Ledger, *, before: datetime) -> int:
    """Remove the texts with which no run began since ``before`` and none is running; returns how many."""
    with ledger.write() as connection:
        return connection.execute(
            sql(
                "delete from configurations where last_used_at < :before_at and not exists (select 1 from runs"
                " where runs.configuration = configurations.hash and runs.status = 'running')"
            ),
            {"before_at": before},
        ).rowcount


def shown(name: str | None) -> str | None:
    """The hash as people are shown it."""
    return name[:SHOWN] if name else None
