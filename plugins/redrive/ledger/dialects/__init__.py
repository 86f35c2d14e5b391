"""Where SQLite and PostgreSQL differ: connections, fragments of SQL, temporary tables, the fastest way in and out.

Nobody else asks which of the two it is; what has to be said in the one otherwise than in the other is a method of
:class:`Dialect`, with two implementations.
"""

from sqlalchemy.engine import Connection

from redrive.ledger.dialects.base import CREATE_VIEW, Dialect
from redrive.ledger.dialects.driver import refusal
from redrive.ledger.dialects.postgresql import Postgresql
from redrive.ledger.dialects.sqlite import Sqlite, instant_text

__all__ = ["CREATE_VIEW", "Dialect", "Postgresql", "Sqlite", "dialect_of", "instant_text", "named", "refusal"]

_ALL: dict[str, Dialect] = {one.name: one for one in (Sqlite(), Postgresql())}


def dialect_of(connection: Connection) -> Dialect:
    """That of the database that ``connection`` leads to."""
    return named(connection.dialect.name)


def named(name: str) -> Dialect:
    """``sqlite`` or ``postgresql``; KeyError for any other."""
    return _ALL[name]
