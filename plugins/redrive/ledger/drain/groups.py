"""The groups of failures that the ledger knows, over all routes, and those that turned out to be one."""

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.classification import grouping
from redrive.classification.templates import KnownGroup
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import record_event
from redrive.ledger.transactions import RouteLease, RunTransaction

#: So many groups, the latest first, are matched before a new one is made.
KNOWN_GROUPS = 20_000


class Group(NamedTuple):
    """One failure group that the Spark job found."""

    fingerprint: str
    cause: str
    template: str
    example: str | None


def ensure_groups(ledger: Ledger, lease: RouteLease, groups: Iterable[Group], now: datetime) -> dict[str, int]:
    """Make the groups known (one row per fingerprint, over all routes); returns fingerprint -> group id.

    Groups that turn out to be one with an older group become its alias: the older one's id is returned for them,
    from now on. What has the later id already keeps it.
    """
    wanted = {group.fingerprint: group for group in groups}
    with ledger.under(lease, now) as tx:
        known = _group_ids(tx.connection, list(wanted))
        for group in wanted.values():
            if group.fingerprint not in known:
                tx.execute(
                    sql(
                        "insert into failure_groups"
                        " (fingerprint, cause, template, example, first_route, first_seen_at, last_seen_at)"
                        " values (:fingerprint, :cause, :template, :example, :first_route, :now, :now)"
                        " on conflict (fingerprint) do nothing"
                    ),
                    {**group._asdict(), "first_route": lease.route},
                )
        _merge(tx, {group.cause for group in wanted.values()})
        return _group_ids(tx.connection, list(wanted))


def known_groups(connection: Connection, limit: int = KNOWN_GROUPS) -> list[Group]:
    """The groups that the ledger knows, newest first; grouping matches against them so that ids stay stable.

    An alias is there with its own template and the name of the group that it was merged into.
    """
    rows = connection.execute(
        sql(
            "select coalesce(older.fingerprint, failure_groups.fingerprint) as fingerprint, failure_groups.cause,"
            " failure_groups.template, null as example from failure_groups"
            " left join group_aliases on group_aliases.group_id = failure_groups.group_id"
            " left join failure_groups as older on older.group_id = group_aliases.merged_into"
            " order by failure_groups.last_seen_at desc, failure_groups.group_id limit :limit"
        ),
        {"limit": limit},
    ).all()
    return [Group(*row) for row in rows]


def _merge(tx: RunTransaction, causes: Iterable[str]) -> None:
    """Make aliases of the groups of ``causes`` that turned out to be one with an older one.

    Not of those about which a person has made a standing decision: that was about these words.
    """
    pairs = tx.execute(sql("select group_id, merged_into from group_aliases"))
    aliases = {pair.group_id: pair.merged_into for pair in pairs}
    for cause in sorted(causes):
        rows = tx.execute(
            sql(
                "select group_id, fingerprint, cause, template from failure_groups where cause = :cause and not exists"
                " (select 1 from standing_decisions s where s.group_id = failure_groups.group_id"
                " and s.revoked_at is null and s.until_at > :now) order by last_seen_at desc, group_id limit :limit"
            ),
            {"cause": cause, "limit": KNOWN_GROUPS},
        ).all()
        ids = {row.fingerprint: row.group_id for row in rows}
        by_age = sorted(rows, key=lambda row: row.group_id)
        merged = grouping.merges([KnownGroup(row.fingerprint, row.cause, row.template) for row in by_age])
        for fingerprint, older in merged.items():
            later, first = ids[fingerprint], aliases.get(ids[older], ids[older])
            if later not in aliases:
                aliases = {group: first if into == later else into for group, into in aliases.items()} | {later: first}
                _make_alias(tx, later, first)


def _make_alias(tx: RunTransaction, later: int, older: int) -> None:
    values = {"later": later, "older": older}
    # What was merged into the later one goes with it, so that an alias never names an alias.
    tx.execute(sql("update group_aliases set merged_into = :older where merged_into = :later"), values)
    tx.execute(
        sql("insert into group_aliases (group_id, merged_into, merged_at) values (:later, :older, :now)"), values
    )
    record_event(
        tx,
        action=Action.MERGE_GROUPS,
        selection={"group": later, "into": older},
    )


def _group_ids(connection: Connection, fingerprints: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for start in range(0, len(fingerprints), 500):
        part = fingerprints[start : start + 500]
        names = ",".join(f":f{i}" for i in range(len(part)))
        rows = connection.execute(
            sql(
                "select fingerprint, coalesce(merged_into, failure_groups.group_id) as group_id from failure_groups"
                " left join group_aliases on group_aliases.group_id = failure_groups.group_id"
                f" where fingerprint in ({names})"
            ),
            {f"f{i}": value for i, value in enumerate(part)},
        )
        found.update({row.fingerprint: row.group_id for row in rows})
    return found
