"""What all rules of the checker share. Nothing of the product is imported here."""

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.simulation.sql import Sql
from tests.simulation.world import Copy, System
from tests.simulation.world.systems import SECOND

if TYPE_CHECKING:
    from tests.simulation.checker import Checker


class Broken(AssertionError):
    """Something that must hold doesn't."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule
        self.detail = detail


class Rules:
    """Some rules of a :class:`~tests.simulation.checker.Checker`, which calls them."""

    def __init__(self, checker: "Checker") -> None:
        self.checker = checker
        self.world = checker.world
        self.book = checker.book

    def sent(self, sql: Sql, system: System, queue: str, copy: Copy) -> None:
        """A send of Redrive's, with its marks, is about to lie in a queue that consumers read."""

    def settled(self, sql: Sql, system: System, queue: str, copies: list[Copy]) -> None:
        """Redrive is about to settle these copies in ``queue``."""

    def after_stage(self, sql: Sql, stage: str, route: str) -> None:
        """A stage of a run is over."""

    def after_step(self, sql: Sql) -> None:
        """A step of the story is over."""

    def at_the_end(self, sql: Sql) -> None:
        """Everything is at rest."""

    def keep(self) -> None:
        """A backup of the ledger is made."""

    def forget(self) -> None:
        """The last backup is the ledger now."""


def body_hash(body: bytes) -> bytes:
    """As the ledger's ``body_hash`` is documented: 16 bytes of BLAKE2b."""
    return hashlib.blake2b(body, digest_size=16).digest()


def micros(moment: Any) -> int:
    """A stored time, of either database."""
    if moment is None:
        return 0
    when = datetime.fromisoformat(moment).replace(tzinfo=UTC) if isinstance(moment, str) else moment
    return round(when.timestamp() * SECOND)


def own_headers(copy: Copy) -> frozenset[tuple[str, str]]:
    """What producers and consumers wrote on it of their own: neither marks nor the failure."""
    return frozenset(
        (name, value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))
        for name, _, value in copy.headers
        if name in ("tenant", "customer", "part")
    )
