"""Rows for pages: a query's rows with instants as instants, and the routes that somebody may read as a condition."""

from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy.engine import Connection

from redrive.ledger.engine import parse_instant, sql

Row = dict[str, Any]
#: Rows of one page of a list.
PAGE = 50


def routes_in(readable: Collection[str], column: str = "route") -> tuple[str, dict[str, Any]]:
    """A condition that holds on these routes, and its parameters."""
    names = {f"route_{i}": route for i, route in enumerate(sorted(readable))}
    if not names:
        return "1 = 0", {}
    return f"{column} in ({', '.join(':' + name for name in names)})", dict(names)


def quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def rows_of(connection: Connection, statement: str, **values: Any) -> list[Row]:
    """The rows of a query, with instants as instants on either database."""
    return [_typed(dict(row)) for row in connection.execute(sql(statement), values).mappings()]


def first_of(connection: Connection, statement: str, **values: Any) -> Row | None:
    return next(iter(rows_of(connection, statement, **values)), None)


def _typed(row: Row) -> Row:
    """Instants are text on SQLite; which columns hold them shows in their names."""
    for name, value in row.items():
        if isinstance(value, str) and (
            name.endswith("_at") or name in ("at", "lease_until", "cool_down_until", "until")
        ):
            row[name] = parse_instant(value)
    return row
