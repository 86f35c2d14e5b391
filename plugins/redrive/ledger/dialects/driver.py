"""Past SQLAlchemy to the driver, where rows go in and out faster; its errors are told as SQLAlchemy tells them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from redrive.errors import LedgerRefused

_TABLE = re.compile(r"\b(?:insert into|update|copy|delete from)\s+(\w+)", re.IGNORECASE)


@contextmanager
def through_driver(connection: Connection, statement: str) -> Iterator[Any]:
    """The driver's own connection, whose errors are told as if ``statement`` had gone through SQLAlchemy."""
    raw: Any = connection.connection.driver_connection
    dialect = connection.dialect
    base: type[Exception] = dialect.loaded_dbapi.Error
    try:
        yield raw
    except (OverflowError, UnicodeEncodeError) as error:  # of SQLite's driver, for what no column can hold
        raise LedgerRefused(f"ledger {connection.engine.url.database}: {refusal(statement, error)}") from error
    except base as error:
        lost = dialect.is_disconnect(error, raw, None)  # type: ignore[arg-type]
        told = DBAPIError.instance(
            statement, None, error, base, hide_parameters=True, connection_invalidated=lost, dialect=dialect
        )
        if lost:
            connection.invalidate(error)
        raise told from error


def refusal(statement: str | None, error: object) -> str:
    """What is told of an ``error`` without the values that it is about."""
    table = _TABLE.search(statement or "")
    said = str(error).strip().splitlines()[0]
    return f"a value {f'for table {table[1]} ' if table else ''}was refused: {said}"
