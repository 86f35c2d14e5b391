"""SQLAlchemy compiles statements once per engine. Tests make thousands of SQLite ledgers, each with engines of its own,
for the same few hundred statements: here all of them share what one has compiled."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine


def share() -> None:
    """From now on engines of SQLite have one dialect, by which compiled statements are kept, and one cache."""
    create = sa.create_engine
    first = create("sqlite://")
    with first.connect():  # which tells the dialect what this SQLite can do
        pass

    def sharing(url: Any, **how: Any) -> Engine:
        made = create(url, **how)
        if made.name == first.name and made.driver == first.driver:
            made.dialect = made.pool._dialect = first.dialect
            made._compiled_cache = first._compiled_cache
        return made

    sa.create_engine = sharing
