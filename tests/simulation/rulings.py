"""Rules about what people said about groups: two are one failure, or two. Nothing of the product is imported here."""

from typing import TYPE_CHECKING

from tests.simulation.rule import Broken, Rules
from tests.simulation.sql import Sql
from tests.simulation.world import Copy, System

if TYPE_CHECKING:
    from tests.simulation.checker import Checker


class Rulings(Rules):
    """See the module."""

    def __init__(self, checker: "Checker") -> None:
        super().__init__(checker)
        self.decided: dict[int, int | None] = {}  # review row -> the group that it was decided about

    def forget(self) -> None:
        self.decided.clear()

    def sent(self, sql: Sql, system: System, queue: str, copy: Copy) -> None:
        """Once a person merged a group that was not open into one that was, that one proves itself anew: no run that
        began since sends through the gate as it was."""
        assert copy.mark is not None
        for route, older, later in sql.rows(
            "select m.route, gate.group_id, alias.group_id from messages m inner join redelivery_attempts a"
            f" on a.message_id = m.message_id and a.attempt = {copy.mark[1]}"
            " inner join delivery_slices s on s.slice_id = a.slice_id inner join runs r on r.run_id = s.run_id"
            " inner join breakers gate on gate.route = m.route and gate.group_id = a.group_id"
            " inner join group_aliases alias on alias.merged_into = gate.group_id and alias.ruling_id is not null"
            " inner join breakers other on other.route = m.route and other.group_id = alias.group_id"
            f" where m.redrive_id = {sql.quoted(copy.mark[0])} and m.kind <> 'delay'"
            " and gate.stage in ('ramp', 'open') and gate.began_at < alias.merged_at"
            " and other.stage <> 'open' and other.stage_at <= alias.merged_at and r.started_at > alias.merged_at"
        ):
            raise Broken("a group that another was merged into proves itself anew", f"{later} into {older} on {route}")

    def after_step(self, sql: Sql) -> None:
        """What comes after a merge is of the group that has the name; what was decided stays about its own group."""
        for message, group in sql.rows(
            "select m.message_id, m.group_id from messages m inner join group_aliases alias"
            " on alias.group_id = m.group_id and alias.ruling_id is not null inner join staging_batches b"
            " on b.batch_id = m.copy_id / 1048576 where b.opened_at > alias.merged_at"
        ):
            raise Broken("what comes after a merge is one group", f"message {message} is of group {group}")
        for row, group in sql.rows(
            "select escalation_id, group_id from escalated_messages where status in ('decided', 'applied')"
        ):
            if self.decided.setdefault(row, group) != group:
                raise Broken("what was decided stays about its group", f"row {row}: {self.decided[row]}, now {group}")
        # Taken back or refused before it was taken up, it may be asked under another name.
        self.decided = {
            row: self.decided[row]
            for (row,) in sql.rows(
                "select escalation_id from escalated_messages where status in ('decided', 'applied')"
            )
        }
