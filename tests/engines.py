"""SQLAlchemy compiles statements once per engine, and asks the database what it can do. Tests make thousands of
ledgers, each with engines of its own, for the same few hundred statements: here all of one kind share what one
knows."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Engine

#: The engine that has met a database of its kind, by what its dialect is. How its transactions begin is a part of that.
_first: dict[tuple[str, str, str | None], Engine] = {}


def share() -> None:
    """From now on engines of one kind of database have one dialect, by which compiled statements are kept, and one
    cache."""
    create = sa.create_engine

    def sharing(url: Any, **how: Any) -> Engine:
        made = create(url, **how)
        own = made.dialect
        kind = (own.name, own.driver, how.get("isolation_level"))
        first = _first.get(kind)
        if first is None:
            event.listen(made, "connect", lambda *_: _first.setdefault(kind, made))
            return made
        own.initialize = lambda _connection: None  # type: ignore[method-assign]
        made.dialect = made.pool._dialect = first.dialect
        made._compiled_cache = first._compiled_cache
        return made

    sa.create_engine = sharing
