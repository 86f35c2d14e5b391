"""Somebody has a transaction open on the ledger and is at lunch. On PostgreSQL: SQLite has one writer at a time."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from tests.workshop import Workshop


@contextmanager
def lunch(shop: Workshop, statement: str) -> Iterator[sa.Connection]:
    """Somebody ran ``statement`` in a transaction and left it open."""
    elsewhere = sa.create_engine(shop.ledger.url)
    with elsewhere.connect() as connection:
        connection.exec_driver_sql(f"set search_path to redrive; {statement}")
        yield connection
    elsewhere.dispose()


def in_time(work: Callable[[], Any]) -> Any:
    """What ``work`` returns; fails where it waits."""
    done: list[Any] = []
    working = threading.Thread(target=lambda: done.append(work()), daemon=True)
    working.start()
    working.join(30)
    assert done, "it waits for somebody who is at lunch"
    return done[0]
