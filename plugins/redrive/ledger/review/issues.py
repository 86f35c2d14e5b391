"""A failure as an issue: how far people are with it, who has it, where its ticket is, and what they said.

One row per route and group, written by plain SQL from anywhere; triggers sign it and keep the trail. It decides about
no message. What it is now (regressed, ignored no longer) is said by the view ``issue_state``.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from redrive.ledger.engine import Ledger, sql
from redrive.ledger.transactions import ActorTransaction
from redrive.lifecycle import IssueStatus

#: What of an issue can be changed.
FIELDS: Final = ("status", "owner", "ticket", "ignored_until_at")
#: What the same person says in the same words within this time is said once: by a second click, or a lost answer.
TWICE: Final = timedelta(minutes=1)


def change(
    ledger: Ledger,
    failures: Iterable[tuple[str, int]],
    *,
    by: str,
    now: datetime,
    changes: Mapping[str, Any],
    text: str = "",
) -> int:
    """Change what is said about these failures (route, group); only what ``changes`` names, of :data:`FIELDS`. With
    ``text``, say that about them too: both or nothing.

    With another status than ignored it is ignored no longer. Groups that the ledger doesn't know are left out; returns
    how many were changed.
    """
    given = dict(changes)
    if unknown := given.keys() - set(FIELDS):
        raise ValueError(f"not of an issue: {', '.join(sorted(unknown))}")
    if "status" in given and given["status"] != IssueStatus.IGNORED:
        given["ignored_until_at"] = None
    columns = ", ".join(given)
    # The status is named only where it was said, because naming it begins it anew.
    statement = sql(
        f"insert into failure_issues (route, group_id, {columns}, written_by, written_at, status_at)"
        f" select :of_route, group_id, {', '.join(f':new_{name}' for name in given)}, :actor, :now, :now"
        " from failure_groups where group_id = :group_id"
        f" on conflict (route, group_id) do update set {', '.join(f'{name} = excluded.{name}' for name in given)},"
        " written_by = excluded.written_by, written_at = excluded.written_at"
        + (", status_at = excluded.status_at" if "status" in given else "")
    )
    chosen = sorted(set(failures))
    with ledger.by(by, now) as tx:
        changed = sum(
            tx.execute(
                statement,
                {"of_route": route, "group_id": group_id, **{f"new_{name}": value for name, value in given.items()}},
            ).rowcount
            for route, group_id in chosen
        )
        if text:
            _comment(tx, chosen, text)
        return changed


def comment(ledger: Ledger, failures: Iterable[tuple[str, int]], *, by: str, now: datetime, text: str) -> int:
    """Say something about these failures (route, group), about how many it was new. Groups that the ledger doesn't
    know are left out, and those about which the same person said the same a moment ago."""
    with ledger.by(by, now) as tx:
        return _comment(tx, sorted(set(failures)), text)


def _comment(tx: ActorTransaction, failures: Iterable[tuple[str, int]], text: str) -> int:
    tx.one_after_the_other()
    return sum(
        tx.execute(
            sql(
                "insert into issue_comments (route, group_id, written_by, written_at, text)"
                " select :of_route, group_id, :actor, :now, :text from failure_groups where group_id = :group_id"
                " and not exists (select 1 from issue_comments said where said.route = :of_route"
                " and said.group_id = :group_id and said.written_by = :actor and said.text = :text"
                " and said.written_at > :lately)"
            ),
            {"of_route": route, "group_id": group_id, "text": text, "lately": tx.now - TWICE},
        ).rowcount
        for route, group_id in failures
    )
