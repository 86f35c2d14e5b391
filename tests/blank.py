"""Ledgers with their schema and nothing in them, copied instead of migrated: most tests begin with one.

What ``schema.upgrade`` does is tested in ``tests/ledger/test_schema.py``; here it runs once per worker and database.
"""

import atexit
import functools
import secrets
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import sqlalchemy as sa

from redrive.ledger import schema
from redrive.ledger.engine import Ledger, sql

_ONCE = datetime(2026, 1, 1, tzinfo=UTC)
#: Names of PostgreSQL databases that were made with their schema, and that nobody has asked for it yet.
_ready: set[str] = set()


def database(server: str) -> str:
    """The URL of a new PostgreSQL database that has its schema; ``server``: the URL of one that lies beside it."""
    url = sa.make_url(server)
    name = f"t{secrets.token_hex(6)}"
    _on(url, f'create database "{name}" template "{_database(url)}" strategy file_copy')
    _ready.add(name)
    return url.set(database=name).render_as_string(hide_password=False)


def overwrite(url: str, template: str) -> None:
    """Make a PostgreSQL database a copy of another one to which nobody is connected."""
    server, name = sa.make_url(url).set(database="postgres"), sa.make_url(url).database
    _ready.discard(str(name))
    source = sa.make_url(template).database
    _on(server, f'drop database "{name}"', f'create database "{name}" template "{source}" strategy file_copy')


def upgrade(ledger: Ledger, now: datetime) -> None:
    """What ``schema.upgrade`` does, in a fraction of the time where the database is empty and nobody's but ours."""
    copied = _copy_file(ledger) if ledger.dialect.name == "sqlite" else _copy_database(ledger)
    if not copied:
        if schema.revision(ledger) != schema.head():
            schema.upgrade(ledger, now)
        return
    with ledger.write() as connection:
        connection.execute(
            sql("update ledger_identity set ledger_id = :ledger_id, created_at = :now"),
            {"ledger_id": secrets.token_hex(4), "now": now},
        )


def _copy_file(ledger: Ledger) -> bool:
    path = Path(ledger.url.database or "")
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(_file(), path)
    return True


@functools.cache
def _file() -> Path:
    folder = tempfile.mkdtemp(prefix="redrive-blank-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    ledger = Ledger(f"sqlite:///{folder}/blank.db")
    schema.upgrade(ledger, _ONCE)
    ledger.close()
    return Path(folder, "blank.db")


def _copy_database(ledger: Ledger) -> bool:
    if ledger.url.database in _ready:
        _ready.discard(ledger.url.database)
        return True
    with ledger.read() as connection:
        empty = schema.current_revision(connection) is None
    ledger.close()  # who is connected is in the way
    server = ledger.url.set(database="postgres")
    if not empty or server.username != "redrive":
        return False
    overwrite(ledger.url.render_as_string(hide_password=False), str(server.set(database=_database(server))))
    return True


@functools.cache
def _database(server: sa.URL) -> str:
    name = f"blank_{secrets.token_hex(4)}"
    _on(server, f'create database "{name}"')
    ledger = Ledger(server.set(database=name).render_as_string(hide_password=False))
    schema.upgrade(ledger, _ONCE)
    ledger.close()
    return name


def _on(server: sa.URL, *statements: str) -> None:
    address = {"host": server.host, "port": server.port, "user": server.username, "dbname": server.database}
    with psycopg.connect(**address, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())
