"""The ledger as its readers see it: plain SQL over a plain driver, nothing of the product."""

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg


class Sql:
    """One connection to a ledger, ``sqlite:///path`` or ``postgresql://…``."""

    def __init__(self, url: str) -> None:
        self.sqlite = url.startswith("sqlite")
        if self.sqlite:
            self._connection: Any = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=5, isolation_level=None)
        else:
            self._connection = psycopg.connect(
                url.replace("postgresql+psycopg", "postgresql"),
                autocommit=True,
                options="-csearch_path=redrive -ctimezone=UTC",
            )

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._connection.execute(statement).fetchall()]

    def value(self, statement: str) -> Any:
        return self.rows(statement)[0][0]

    def do(self, statement: str) -> None:
        self._connection.execute(statement)

    def refused(self, statement: str) -> str:
        """Why the database doesn't take this statement (a trigger says no); "" if it did."""
        try:
            self._connection.execute(statement)
        except (sqlite3.Error, psycopg.Error) as error:
            return str(error).splitlines()[0]
        return ""

    @staticmethod
    def quoted(text: str) -> str:
        return "'" + text.replace("'", "''") + "'"

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def reading(url: str) -> Iterator[Sql]:
    found = Sql(url)
    try:
        yield found
    finally:
        found.close()
