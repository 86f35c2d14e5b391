"""Decisions of people, as the command line makes them: the same plain UPDATE that reviewers use in SQL."""

from collections.abc import Sequence

from redrive.ledger.engine import Ledger, sql
from redrive.ledger.predicates import UNDECIDED_REVIEW


def decide(
    ledger: Ledger,
    *,
    decision: str,
    messages: Sequence[int],
    group: int | None,
    route: str | None,
    by: str,
    note: str,
    corrected_body: str | None,
) -> int:
    """Decide every undecided escalation of these messages or of this group; returns how many."""
    where = [UNDECIDED_REVIEW]
    if group is not None:
        where.append("group_id = :group")
    if messages:
        where.append(f"message_id in ({', '.join(str(int(one)) for one in messages)})")
    if route is not None:
        where.append("route = :route")
    values = {"decision": decision, "by": by, "note": note, "body": corrected_body, "group": group, "route": route}
    used = {name: value for name, value in values.items() if name not in ("group", "route") or value is not None}
    with ledger.write() as connection:
        return int(
            connection.execute(
                sql(
                    "update escalated_messages set decision = :decision, decided_by = :by, note = :note,"
                    " corrected_body = coalesce(:body, corrected_body) where " + " and ".join(where)
                ),
                used,
            ).rowcount
        )
