"""How SQLite goes through its tables for each statement that a test makes it carry out."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import Engine, event


class Step(NamedTuple):
    """One step of a plan, as ``explain query plan`` tells it, and the statement that it is of."""

    text: str
    statement: str


@contextmanager
def told() -> Iterator[list[Step]]:
    """The steps of whatever is carried out meanwhile, each statement's once."""
    steps: list[Step] = []
    seen: set[str] = set()

    def note(connection: Any, _cursor: object, statement: str, values: Any, _context: object, many: bool) -> None:
        if many or statement in seen or not statement.strip().lower().startswith(_PLANNED):
            return
        seen.add(statement)
        cursor = connection.connection.driver_connection.cursor()  # the same: it has the temporary tables
        try:
            steps.extend(Step(row[3], statement) for row in cursor.execute(f"explain query plan {statement}", values))
        finally:
            cursor.close()

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield steps
    finally:
        event.remove(Engine, "before_cursor_execute", note)


_PLANNED = ("select", "with", "insert", "update", "delete")
