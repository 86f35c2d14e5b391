"""Records: what consumers' own records say of a message that Redrive never had.

A message that is processed without ever dying meets no dead-letter queue. Where a route has a ``processed_check``, the
consumer's record can tell that it was done; when it was made, and when it was done, only that record itself knows.
"""

from typing import NamedTuple

from redrive.connections.processed_check import Checker
from redrive.errors import CheckFailed
from redrive.settings import Settings


class RecordAnswer(NamedTuple):
    """What the record of one route's consumer says about a key."""

    route: str
    connection: str
    processed: bool
    problem: str = ""  # not empty: it could not be asked


def ask(settings: Settings, key: str) -> list[RecordAnswer]:
    """What each route's record says of ``key``, as its ``processed_check.key`` would tell it."""
    answers = []
    for name, route in settings.routes.items():
        if route.processed_check is None:
            continue
        connection, checker = route.processed_check.connection, Checker(route.processed_check)
        try:
            answers.append(RecordAnswer(name, connection, key in checker.processed([key])))
        except CheckFailed as failed:
            answers.append(RecordAnswer(name, connection, False, str(failed)))
        finally:
            checker.close()
    return answers
