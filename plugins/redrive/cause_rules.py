from typing import NamedTuple
from redrive.causes import Cause


class Finding(NamedTuple):
    """A cause and why."""

    cause: Cause
    rule: str
    confidence: float
    last_resort: bool = False


def find(text: str) -> Finding | None:
    return None


def find_reason(reason: str) -> Finding | None:
    return None
