"""Groups that are called by the name of an older one, because they turned out to be one failure.

What fits the template of either comes under the older one's name from then on. What has a group's id already keeps it,
and with it its gate and its decisions.
"""

from collections.abc import Iterable

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.engine import sql
from redrive.ledger.moves import record_event
from redrive.ledger.transactions import RunTransaction


def one_at_a_time(tx: RunTransaction) -> None:
    """Until the transaction ends no other one, on whatever route, changes which groups are one."""
    tx.execute(sql("update ledger_identity set created_at = created_at"))


def as_they_are(tx: RunTransaction) -> None:
    """Until the transaction ends nobody changes which groups are one; others may rely on that at the same time."""
    tx.execute(sql(f"select ledger_id from ledger_identity{tx.dialect.for_share}"))


class Aliases:
    """Which groups are one. Each alias has a parent, the group that it was merged into; the last one has the name."""

    def __init__(self, connection: Connection) -> None:
        rows = connection.execute(
            sql("select group_id, coalesce(parent_id, merged_into) as parent, merged_into from group_aliases")
        ).all()
        self._parents: dict[int, int] = {row.group_id: row.parent for row in rows}
        self._roots: dict[int, int] = {row.group_id: row.merged_into for row in rows}

    def __contains__(self, group_id: int) -> bool:
        """Whether it is called by another's name."""
        return group_id in self._parents

    def root(self, group_id: int) -> int:
        """The group under whose name its failures come."""
        return self._roots.get(group_id, group_id)

    def members(self, group_id: int) -> set[int]:
        """All groups that are one with it."""
        root = self.root(group_id)
        return {root, *(one for one, its in self._roots.items() if its == root)}

    def merge(
        self, tx: RunTransaction, later: int, older: int, *, ruling_id: int | None = None, reason: str | None = None
    ) -> None:
        """``later``, so far called by its own name, is called by that of ``older`` from now on."""
        older = self.root(older)
        tx.execute(
            sql(
                "insert into group_aliases (group_id, merged_into, merged_at, parent_id, ruling_id)"
                " values (:later, :older, :now, :older, :ruling_id)"
            ),
            {"later": later, "older": older, "ruling_id": ruling_id},
        )
        # What was merged into the later one goes with it, so that an alias never names an alias.
        theirs = self.members(later) - {later}
        self._parents[later] = self._roots[later] = older
        self._follow(tx, theirs, merged=True)
        record_event(tx, Action.MERGE_GROUPS, selection={"group": later, "into": older}, reason=reason)

    def add(self, tx: RunTransaction, made: int, root: int) -> None:
        """``made``, which nothing belongs to yet, is another telling of ``root``, and never was a group of its own."""
        tx.execute(
            sql(
                "insert into group_aliases (group_id, merged_into, merged_at, parent_id)"
                " values (:made, :root, :now, :root)"
            ),
            {"made": made, "root": root},
        )
        self._parents[made] = self._roots[made] = root

    def part(self, tx: RunTransaction, group_id: int, *, reason: str | None = None) -> None:
        """An alias is called by its own name again, and with it what had been merged into it."""
        root, theirs = self.root(group_id), self.members(group_id) - {self.root(group_id), group_id}
        tx.execute(sql("delete from group_aliases where group_id = :group_id"), {"group_id": group_id})
        tx.execute(sql("update failure_groups set parted_at = :now where group_id = :group_id"), {"group_id": group_id})
        del self._parents[group_id], self._roots[group_id]
        self._follow(tx, theirs)
        record_event(tx, Action.SPLIT_GROUPS, selection={"group": group_id, "from": root}, reason=reason)

    def _follow(self, tx: RunTransaction, some: Iterable[int], *, merged: bool = False) -> None:
        """These come under the name that their parents come under by now; where they were ``merged`` into one that they
        had no part in before, it is since now."""
        since = ", merged_at = :now" if merged else ""
        for group_id in some:
            root = group_id
            while root in self._parents:
                root = self._parents[root]
            if self._roots.get(group_id) != root:
                tx.execute(
                    sql(
                        f"update group_aliases set merged_into = :root, parent_id = :parent{since}"
                        " where group_id = :group_id"
                    ),
                    {"root": root, "parent": self._parents[group_id], "group_id": group_id},
                )
                self._roots[group_id] = root
