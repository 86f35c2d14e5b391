"""Templates of masked texts."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

WILDCARD = "<*>"


class KnownGroup(NamedTuple):
    """A group that the ledger has already."""

    fingerprint: str
    cause: str
    template: str


class Place(NamedTuple):
    """Where a text belongs; ``fingerprint`` is that of the known group, "" for a new one."""

    template: str
    fingerprint: str = ""


def mine(weights: Mapping[str, int], known: Sequence[KnownGroup] = ()) -> dict[str, Place]:
    """The template of each text."""
    return {text: Place(text) for text in weights}
