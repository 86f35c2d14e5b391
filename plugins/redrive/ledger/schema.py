"""Bring the ledger's schema up to date and check that it is: tables by Alembic, views and triggers from files.

Views and triggers are code, not data: every upgrade makes them anew from ``views/`` beside this module, after the
migrations. ``views/*.sql`` runs on both databases, ``views/<dialect>/*.sql`` on one. Where only a function differs, a
view says ``{day: …}``, ``{seconds: start -> end}`` or ``{ago: 1 day}``. On PostgreSQL a view is replaced in place where
its columns allow it, so that grants and views that people built on it survive.
"""

import re
import secrets
from collections.abc import Callable
from datetime import datetime
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from redrive.errors import LedgerError, SchemaOutdated
from redrive.ledger import moves
from redrive.ledger.dialects import CREATE_VIEW
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.tables import metadata

if TYPE_CHECKING:
    from alembic.config import Config

_HERE = files("redrive.ledger")
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's: no letters that are mistaken for digits
#: Tables of which each run changes many rows, among those of all runs before.
_CHANGING = ("messages", "redelivery_attempts", "escalated_messages")
_FUNCTION = re.compile(r"\{(\w+): ([^{}]+)\}")


def upgrade(ledger: Ledger, now: datetime, *, count_anew: bool = False) -> str:
    """Create or upgrade the schema; harmless when repeated. Returns the revision that is now in force.

    With ``count_anew`` what is finished is counted anew too, for which every message is read.
    """
    from alembic import command  # noqa: PLC0415 - half a second that only an upgrade needs

    config = _config()
    ledger.make()
    with ledger.write() as connection:
        ledger.dialect.begin_upgrade(connection)
        _refuse_unknown(ledger, current_revision(connection))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        _refuse_unfinished(ledger, connection)
        _make_views(ledger, connection)
        ledger.dialect.tidy_up_early(connection, _CHANGING)
        if count_anew:
            moves.count_anew(connection)
        connection.execute(
            sql(
                "insert into ledger_identity (ledger_id, created_at)"
                " select :ledger_id, :now where not exists (select 1 from ledger_identity)"
            ),
            {"ledger_id": "".join(secrets.choice(_ALPHABET) for _ in range(8)), "now": now},
        )
    return head()


def check(ledger: Ledger) -> None:
    """Raise :class:`SchemaOutdated` unless the schema is of this version."""
    current = revision(ledger)
    _refuse_unknown(ledger, current)
    if current != head():
        absent = ", which makes the file that `database` names: it is not there" if ledger.is_absent() else ""
        raise SchemaOutdated(
            f"the ledger {ledger!r} is at {current or 'nothing'}, this version needs {head()}: run `redrive db upgrade`"
            f"{absent}"
        )


def revision(ledger: Ledger) -> str | None:
    """The revision that the ledger is at; None for an empty one, and for an SQLite file that is not there."""
    if ledger.is_absent():
        return None
    with ledger.read() as connection:
        return current_revision(connection)


def current_revision(connection: sa.Connection) -> str | None:
    """The revision that the database is at; None for an empty one."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(sql("select version_num from alembic_version")).scalar()


def head() -> str:
    """The revision that this version needs."""
    return max(_revisions())


def _revisions() -> set[str]:
    # Files are named REVISION_what_it_does.py with revisions that count up; a test holds Alembic to the same answer.
    names = (file.name for file in (_HERE / "migrations" / "versions").iterdir())
    return {name.partition("_")[0] for name in names if name.endswith(".py")}


def _refuse_unknown(ledger: Ledger, current: str | None) -> None:
    """A schema that another version made is not ours to guess at."""
    if current is not None and current not in _revisions():
        raise SchemaOutdated(
            f"the ledger {ledger!r} is at {current}, which this version does not know; its newest is {head()}: use the"
            " version of Redrive that made this ledger, or a newer one"
        )


def _refuse_unfinished(ledger: Ledger, connection: sa.Connection) -> None:
    """A checkout from before the first release made a schema of this number that lacks what was added since."""
    there = sa.inspect(connection)
    for table in metadata.sorted_tables:
        known = {column["name"] for column in there.get_columns(table.name)}
        if missing := [column.name for column in table.columns if column.name not in known]:
            raise SchemaOutdated(
                f"the ledger {ledger!r} was made before Redrive was released: its table {table.name} has no"
                f" {', '.join(missing)}. Nothing was changed. With the version that made it, `redrive restore` each"
                " route; then name another `database` and another `staging`, and run `redrive db upgrade`"
            )


def ledger_id(connection: sa.Connection) -> str:
    """The random id that begins every redrive id of this ledger."""
    return str(connection.execute(sql("select ledger_id from ledger_identity")).scalar_one())


def _config() -> "Config":
    from alembic.config import Config  # noqa: PLC0415 - as above

    config = Config()
    config.set_main_option("script_location", "redrive.ledger:migrations")
    config.set_main_option("path_separator", "os")
    return config


def _make_views(ledger: Ledger, connection: sa.Connection) -> None:
    """Make every view, trigger and role anew."""
    statements = [statement for text in _view_texts(ledger) for statement in _statements(text)]
    if ledger.dialect.replace_views(connection, statements):
        return
    names = [match[1] for statement in statements if (match := CREATE_VIEW.search(statement))]
    for name in reversed(names):
        try:
            ledger.dialect.as_it_is(connection, f"drop view if exists {name}")
        except DBAPIError as error:
            raise LedgerError(f"view {name} has to change, but something was built on it: {error.orig}") from error
    for statement in statements:
        ledger.dialect.as_it_is(connection, statement)


def _view_texts(ledger: Ledger) -> list[str]:
    """The texts of all files in the order in which they run, in this database's words."""
    functions: dict[str, Callable[..., str]] = {
        "day": ledger.dialect.day,
        "seconds": ledger.dialect.seconds_between,
        "ago": ledger.dialect.ago,
    }
    views = _HERE / "views"
    own = sorted(_sql_files(views / ledger.dialect.name), key=lambda file: (file.name == "roles.sql", file.name))
    return [  # roles come last: what they may read has to exist
        _FUNCTION.sub(lambda match: functions[match[1]](*match[2].split(" -> ")), file.read_text(encoding="utf-8"))
        for file in (*_sql_files(views), *own)
    ]


def _sql_files(folder: Traversable) -> list[Traversable]:
    return sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)


def _statements(text: str) -> list[str]:
    """The statements of a file; they are separated by a line that holds only ``--;``."""
    return [part.strip() for part in text.split("\n--;\n") if part.strip()]
