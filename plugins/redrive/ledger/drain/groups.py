"""The groups of failures that the ledger knows, over all routes, and those that turned out to be one."""

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy.engine import Connection

from redrive.ledger.aliases import Aliases, one_at_a_time
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.review import rulings
from redrive.ledger.transactions import RouteLease, RunTransaction

if TYPE_CHECKING:
    from redrive.classification.templates import KnownGroup

#: So many groups, the latest first, are matched before a new one is made.
KNOWN_GROUPS = 20_000


class Group(NamedTuple):
    """One failure group that the Spark job found."""

    fingerprint: str
    cause: str
    template: str
    example: str | None
    #: Other templates that it is told with, by which it is found again.
    tellings: frozenset[str] = frozenset()


def ensure_groups(ledger: Ledger, lease: RouteLease, groups: Iterable[Group], now: datetime) -> dict[str, int]:
    """Make the groups known (one row per fingerprint, over all routes); returns fingerprint -> group id.

    Groups that turn out to be one with an older group become its alias: the older one's id is returned for them,
    from now on. What has the later id already keeps it. Each telling of a group that is no group yet becomes its alias
    too, so that what is told so the next time is found to be of this group, whatever else was said by then.
    """
    wanted = {group.fingerprint: group for group in groups}
    with ledger.under(lease, now) as tx:
        one_at_a_time(tx)
        known = _group_ids(tx.connection, list(wanted))
        _add(tx, [group for group in wanted.values() if group.fingerprint not in known])
        _add_tellings(tx, wanted.values())
        _merge(tx, {group.cause for group in wanted.values()})
        return _group_ids(tx.connection, list(wanted))


def _add(tx: RunTransaction, some: Iterable[Group]) -> None:
    for group in some:
        tx.execute(
            sql(
                "insert into failure_groups"
                " (fingerprint, cause, template, example, first_route, first_seen_at, last_seen_at)"
                " values (:fingerprint, :cause, :template, :example, :first_route, :now, :now)"
                " on conflict (fingerprint) do nothing"
            ),
            {
                "fingerprint": group.fingerprint,
                "cause": group.cause,
                "template": group.template,
                "example": group.example,
                "first_route": tx.route,
            },
        )


def _add_tellings(tx: RunTransaction, groups: Iterable[Group]) -> None:
    """Make the tellings of ``groups`` known that are no groups yet."""
    from redrive.classification import grouping  # noqa: PLC0415 - takes a while, and most runs find nothing

    told = {
        grouping.fingerprint(group.cause, telling): (group, telling)
        for group in groups
        for telling in sorted(group.tellings)
    }
    for known in _group_ids(tx.connection, list(told)):
        del told[known]
    if not told:
        return
    _add(tx, [Group(name, group.cause, telling, None) for name, (group, telling) in told.items()])
    ids = _group_ids(tx.connection, [*told, *{group.fingerprint for group, _ in told.values()}])
    aliases = Aliases(tx.connection)
    for name, (group, _) in told.items():
        aliases.add(tx, ids[name], ids[group.fingerprint])


#: SQL over ``failure_groups``: people split it off another one, by words.
_SPLIT_OFF = (
    "exists (select 1 from group_rulings r where r.other_group_id = failure_groups.group_id and r.words is not null)"
)


def known_groups(connection: Connection, limit: int = KNOWN_GROUPS) -> "list[KnownGroup]":
    """The groups that the ledger knows, newest first; grouping matches against them so that ids stay stable.

    An alias is there with its own template and the name of the group that it was merged into. What people split off
    comes after them, each with the group that it was split off and the words.
    """
    from redrive.classification.templates import KnownGroup  # noqa: PLC0415 - takes a while, and most runs find nothing

    rows = connection.execute(
        sql(
            "select coalesce(older.fingerprint, failure_groups.fingerprint) as fingerprint, failure_groups.cause,"
            " failure_groups.template from failure_groups"
            " left join group_aliases on group_aliases.group_id = failure_groups.group_id"
            " left join failure_groups as older on older.group_id = group_aliases.merged_into"
            f" where not {_SPLIT_OFF}"
            " order by coalesce(older.last_seen_at, failure_groups.last_seen_at) desc, failure_groups.group_id"
            " limit :limit"
        ),
        {"limit": limit},
    ).all()
    split = connection.execute(
        sql(
            "select coalesce(older.fingerprint, made.fingerprint) as fingerprint, made.cause, made.template, r.words,"
            " coalesce(root.fingerprint, whole.fingerprint) as parted from group_rulings r"
            " inner join failure_groups made on made.group_id = r.other_group_id"
            " inner join failure_groups whole on whole.group_id = r.group_id"
            " left join group_aliases made_alias on made_alias.group_id = made.group_id"
            " left join failure_groups older on older.group_id = made_alias.merged_into"
            " left join group_aliases alias on alias.group_id = whole.group_id"
            " left join failure_groups root on root.group_id = alias.merged_into"
            " where r.words is not null and r.applied_at is not null and r.revoked_at is null order by r.ruling_id"
        )
    ).all()
    return [KnownGroup(*row) for row in rows] + [KnownGroup(*row) for row in split]


def _merge(tx: RunTransaction, causes: Iterable[str]) -> None:
    """Make aliases of the groups of ``causes`` that turned out to be one with an older one.

    Nothing is merged with those about which a person has made a standing decision, however they are told, since that
    was about these words; nor what people told apart or split off. From what people merged it learns which words are
    the same.
    """
    from redrive.classification import grouping  # noqa: PLC0415 - takes a while, and most runs find nothing
    from redrive.classification.templates import KnownGroup  # noqa: PLC0415 - likewise

    aliases, ruled = Aliases(tx.connection), rulings.in_force(tx.connection)
    decided = set(
        tx.execute(
            sql("select group_id from standing_decisions where revoked_at is null and until_at > :now")
        ).scalars()
    )
    for cause in sorted(causes):
        rows = tx.execute(
            sql(
                "select group_id, fingerprint, cause, template from failure_groups where cause = :cause"
                f" and not {_SPLIT_OFF}"
                " order by last_seen_at desc, group_id limit :limit"
            ),
            {"cause": cause, "limit": KNOWN_GROUPS},
        ).all()
        ids = {row.fingerprint: row.group_id for row in rows}
        by_age: list[KnownGroup] = []
        beside: list[KnownGroup] = []
        for row in sorted(rows, key=lambda row: row.group_id):
            stays = row.group_id in decided or aliases.root(row.group_id) in decided
            (beside if stays else by_age).append(KnownGroup(row.fingerprint, row.cause, row.template))
        by_words = grouping.merges(by_age, beside=beside)
        merged = grouping.merges(by_age, ruled.same_words, beside) if ruled.same_words else by_words
        for fingerprint, older in merged.items():
            later, first = ids[fingerprint], ids[older]
            if later in aliases or aliases.root(first) >= later:
                continue
            if ruled.keeps_apart(aliases.members(later), aliases.members(first)) is None:
                learned = None if fingerprint in by_words else "what people merged says that their words are the same"
                aliases.merge(tx, later, first, reason=learned)


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
