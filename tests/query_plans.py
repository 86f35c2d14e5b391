"""How SQLite goes through its tables for each statement that a test makes it carry out, and how far."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import Engine, Pool, event


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


class Work:
    """Hundreds of instructions of its machine that SQLite carried out."""

    hundreds = 0


@contextmanager
def counted() -> Iterator[Work]:
    """How much SQLite computes meanwhile: the same at every time and on every machine, unlike seconds."""
    work = Work()

    def count() -> int:
        work.hundreds += 1
        return 0

    def begin(connection: Any, _record: object, _proxy: object) -> None:
        connection.set_progress_handler(count, 100)

    def end(connection: Any, _record: object) -> None:
        connection.set_progress_handler(None, 100)

    event.listen(Pool, "checkout", begin)
    event.listen(Pool, "checkin", end)
    try:
        yield work
    finally:
        event.remove(Pool, "checkout", begin)
        event.remove(Pool, "checkin", end)
