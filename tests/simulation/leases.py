"""Rules about who may work on a route: one run at a time, and who was replaced writes nothing.

Nothing of the product is imported here.
"""

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.rule import Broken, Rules, micros
from tests.simulation.sql import Sql

if TYPE_CHECKING:
    from tests.simulation.checker import Checker

#: What only runs write, under their lease; ``staging_batches`` also tells what a run settled that was replaced by then.
OF_RUNS = (
    "messages", "redelivery_attempts", "delivery_slices", "breakers", "route_state", "source_state", "repeat_copies",
    "escalated_messages", "queue_observations",
)  # fmt: skip


class Leases(Rules):
    """See the module."""

    def __init__(self, checker: "Checker") -> None:
        super().__init__(checker)
        self.left: dict[str, tuple[int, dict[str, str]]] = {}  # route -> its fence and tables when it had been replaced

    def second(self, sql: Sql, route: str, run: Callable[[], Any]) -> None:
        """While one run holds a route, another has to wait."""
        held = sql.rows(
            f"select run_id, lease_until from route_state where route = {sql.quoted(route)} and run_id is not null"
        )
        outcome = run()
        if held and micros(held[0][1]) > self.world.clock.now and outcome.status not in ("busy", "paused"):
            self.checker.broken.append(Broken("one run at a time holds a route", f"{route}: {outcome}"))

    def taken_over(self, sql: Sql, route: str) -> None:
        """A second run has taken a route over and is done; the first doesn't know yet."""
        first, last = sql.rows(
            f"select min(fence), max(fence) from (select fence from runs where route = {sql.quoted(route)}"
            " order by fence desc limit 2) newest"
        )[0]
        replaced = sql.rows(f"select status from runs where route = {sql.quoted(route)} and fence = {first}")
        if replaced and replaced[0][0] == "replaced":
            self.left[route] = (last, self._tables(sql, route))

    def replaced_is_over(self, sql: Sql, route: str) -> None:
        """The first has gone on to its end, and nothing is other than it was."""
        fence, before = self.left.pop(route, (0, {}))
        if not before:
            return
        after = self._tables(sql, route)
        if changed := [name for name in before if before[name] != after[name]]:
            raise Broken("a run that was replaced writes nothing", f"{route}, after {fence}: {', '.join(changed)}")

    def _tables(self, sql: Sql, route: str) -> dict[str, str]:
        return {
            name: hashlib.sha256(
                repr(sorted(map(repr, sql.rows(f"select * from {name} where route = {sql.quoted(route)}")))).encode()
            ).hexdigest()
            for name in OF_RUNS
        }

    def forget(self) -> None:
        self.left.clear()
