"""Rulings: what people say about groups. Two of them are one failure (``merge``), or are two, or one of them holds two
(``split``).

People make them by a plain ``INSERT`` into ``group_rulings``, by ``redrive groups`` or on the page, and take them back
by an ``UPDATE``. Here a run carries them out: the next one that loads, plans or applies decisions, whatever its route.
They hold for all routes, runs and releases, since groups do, until they are taken back.

A merge moves no message that is on its way: what has a group's id keeps it, and with it gate, counts and decisions.
What comes from then on has the older group's name. Only questions that nobody has answered are asked under that name at
once. Nobody gets past a canary by a merge: unless both gates were open, the one that stays begins a canary anew. Nor by
a merge that is taken back: the group that has its own name again begins one, whatever its gate was when it lost it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.aliases import Aliases, as_they_are, one_at_a_time
from redrive.ledger.delivery import breakers
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import record_event
from redrive.ledger.predicates import UNDECIDED_REVIEW
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.policy.gates import Stage

#: So many rulings have to agree on a word before it is believed everywhere.
AGREE = 2


class Ruling(NamedTuple):
    """What somebody said."""

    ruling_id: int
    ruling: str
    group_id: int
    other_group_id: int | None
    words: str | None
    decided_by: str
    note: str

    @property
    def said(self) -> str:
        """As the audit trail tells it."""
        return f"ruling {self.ruling_id} by {self.decided_by}: {self.note}"


class InForce(NamedTuple):
    """What the rulings that hold now say about groups."""

    apart: frozenset[frozenset[int]]  # pairs of groups that are two
    same_words: Mapping[str, str]  # a word, and the one that it stands for

    def keeps_apart(self, some: Iterable[int], others: Iterable[int]) -> tuple[int, int] | None:
        """Two groups, one of each, that people told apart."""
        others = list(others)
        return next(((a, b) for a in some for b in others if frozenset((a, b)) in self.apart), None)


_COLUMNS = ", ".join(f"group_rulings.{name}" for name in Ruling._fields)
#: SQL: a ruling was carried out, and is neither taken back nor found to be impossible since.
_HOLDS = "applied_at is not null and refusal is null and revoked_at is null"
#: SQL: a word about the two groups of a ruling that holds and was said after it; ``{of}`` begins the names of its own.
_SAID_LATER = f"""
select 1 from group_rulings newer
where
    newer.ruling_id > {{of}}ruling_id and {_HOLDS} and words is null
    and (
        (newer.group_id = {{of}}group_id and newer.other_group_id = {{of}}other_group_id)
        or (newer.group_id = {{of}}other_group_id and newer.other_group_id = {{of}}group_id)
    )
"""
#: SQL over ``group_rulings``: what holds about two groups is that they are one. The newest word about them counts.
_ARE_ONE = f"ruling = 'merge' and {_HOLDS} and not exists ({_SAID_LATER.format(of='group_rulings.')})"
#: SQL that ends a select: rulings by which two groups are one, and they are not.
_NOT_ONE = f"""
from group_rulings
left join group_aliases one on one.group_id = group_rulings.group_id
left join group_aliases other on other.group_id = group_rulings.other_group_id
where
    coalesce(one.merged_into, group_rulings.group_id) <> coalesce(other.merged_into, group_rulings.other_group_id)
    and {_ARE_ONE}
"""


def in_force(connection: Connection) -> InForce:
    """What holds now. Of what was said about one pair the newest counts.

    Where two rulings or more joined groups that differ in the same one word, and none told such groups apart, the two
    words are one: *read only replica*, *read only slave*.
    """
    from redrive.classification import similarity  # noqa: PLC0415 - takes a while, and most runs find nothing

    rows = connection.execute(
        sql(
            "select r.ruling, r.group_id, r.other_group_id, one.template, other.template as other_template"
            " from group_rulings r inner join failure_groups one on one.group_id = r.group_id"
            " inner join failure_groups other on other.group_id = r.other_group_id"
            f" where {_HOLDS} and r.words is null order by r.ruling_id"
        )
    ).all()
    last = {frozenset((row.group_id, row.other_group_id)): row for row in rows}
    joined: Counter[tuple[str, str]] = Counter()
    parted: set[tuple[str, str]] = set()
    for row in last.values():
        words = similarity.different_word(row.template, row.other_template)
        if words is not None and row.ruling == "merge":
            joined[words] += 1
        elif words is not None:
            parted.add(words)
    same: dict[str, str] = {}
    for (first, second), times in sorted(joined.items()):
        if times >= AGREE and (first, second) not in parted:
            same[second] = same.get(first, first)
    return InForce(frozenset(pair for pair, row in last.items() if row.ruling == "split"), same)


def apply(ledger: Ledger, lease: RouteLease, now: datetime) -> dict[str, int]:
    """Carry out what people said since, and let this route's gates and open questions follow; counts.

    Idempotent, and harmless where another route's run does the same at this moment.
    """
    done = {"applied": 0, "refused": 0, "asked_elsewhere": 0}
    with ledger.read() as connection:
        said_since = connection.execute(sql(_SAID_SINCE)).scalar()
    if said_since:
        with ledger.under(lease, now) as tx:
            one_at_a_time(tx)
            done |= _carry_out_all(tx)
    with ledger.read() as connection:
        left = connection.execute(sql(_TO_FOLLOW), {"route": lease.route}).scalar()
    if left:
        with ledger.under(lease, now) as tx:
            as_they_are(tx)
            _begin_gates_anew(tx)
            done["asked_elsewhere"] = _ask_under_the_name(tx)
    return done


#: SQL: whether somebody said something, or took it back, that no run has carried out yet.
_SAID_SINCE = f"""
select exists (
    select 1 from group_rulings
    where applied_at is null and refusal is null and revoked_at is null
) or exists (
    select 1
    from group_aliases
    inner join group_rulings on group_rulings.ruling_id = group_aliases.ruling_id
    where group_rulings.revoked_at is not null
) or exists (select 1 {_NOT_ONE})
"""


def _carry_out_all(tx: RunTransaction) -> dict[str, int]:
    """What was said since, for all routes."""
    aliases = Aliases(tx.connection)
    _undo_revoked(tx, aliases)
    done = {"applied": 0, "refused": _agree(tx, aliases)}
    for row in tx.execute(
        sql(
            f"select {_COLUMNS} from group_rulings where applied_at is null and refusal is null"
            # One that somebody is taking back at this moment waits for the next run, not we for them.
            f" and revoked_at is null order by ruling_id {tx.dialect.locked}"
        )
    ).all():
        one = Ruling._make(row)
        if not _carry_out_or_refuse(tx, one, aliases):
            done["refused"] += 1
            continue
        tx.execute(
            sql("update group_rulings set applied_at = :now where ruling_id = :ruling_id"),
            {"ruling_id": one.ruling_id},
        )
        done["applied"] += 1
    done["refused"] += _agree(tx, aliases)
    return done


def _undo_revoked(tx: RunTransaction, aliases: Aliases) -> None:
    """What was merged by a ruling that was taken back is parted, unless somebody else says the same."""
    rows = tx.execute(
        sql(
            "select a.group_id, r.ruling_id, r.revoked_by, r.group_id as one, r.other_group_id as other"
            " from group_aliases a"
            " inner join group_rulings r on r.ruling_id = a.ruling_id where r.revoked_at is not null"
        )
    ).all()
    for row in rows:
        the_same = tx.execute(
            sql(
                f"select ruling_id from group_rulings where {_ARE_ONE} and ((group_id = :one"
                " and other_group_id = :other) or (group_id = :other and other_group_id = :one))"
            ),
            {"one": row.one, "other": row.other},
        ).scalar()
        if the_same is None:
            aliases.part(tx, row.group_id, reason=f"ruling {row.ruling_id} was taken back by {row.revoked_by}")
            continue
        tx.execute(
            sql("update group_aliases set ruling_id = :ruling_id where group_id = :group_id"),
            {"ruling_id": the_same, "group_id": row.group_id},
        )


def _agree(tx: RunTransaction, aliases: Aliases) -> int:
    """Groups are one where a ruling that holds says so, also if others that were carried out since are taken back; and
    none is called by another's name for a ruling about two that are apart by now. How many rulings can't hold any
    more."""
    merged = tx.execute(
        sql(
            "select a.group_id, r.ruling_id, r.group_id as one, r.other_group_id as other from group_aliases a"
            " inner join group_rulings r on r.ruling_id = a.ruling_id"
        )
    ).all()
    while apart := [row for row in merged if aliases.root(row.one) != aliases.root(row.other)]:
        for row in apart:
            aliases.part(tx, row.group_id, reason=f"the groups of ruling {row.ruling_id} are apart by now")
        merged = [row for row in merged if row not in apart]
    refused = 0
    not_one = f"select group_rulings.ruling_id {_NOT_ONE}"
    for row in tx.execute(
        sql(
            f"select {_COLUMNS} from group_rulings where ruling_id in ({not_one}) and {_HOLDS} order by ruling_id"
            f" {tx.dialect.locked}"
        )
    ).all():
        if aliases.root(row.group_id) != aliases.root(row.other_group_id):
            refused += not _carry_out_or_refuse(tx, Ruling._make(row), aliases)
    return refused


def _carry_out_or_refuse(tx: RunTransaction, one: Ruling, aliases: Aliases) -> bool:
    """Whether it could be carried out; its row says why not."""
    problem = objection(tx.connection, one, aliases, tx.now)
    if problem is None:
        _carry_out(tx, one, aliases)
        return True
    tx.execute(
        sql("update group_rulings set refusal = :refusal where ruling_id = :ruling_id"),
        {"refusal": problem, "ruling_id": one.ruling_id},
    )
    record_event(tx, Action.REFUSE_RULING, selection={"ruling_id": one.ruling_id}, reason=problem)
    return False


def objection(connection: Connection, one: Ruling, aliases: Aliases, now: datetime) -> str | None:
    """Why a ruling can't hold, as a sentence; None when it can."""
    from redrive.classification import explain, grouping  # noqa: PLC0415 - takes a while, and most runs find nothing

    ids = [one.group_id] if one.other_group_id is None else [one.group_id, one.other_group_id]
    named = ", ".join(f":g{i}" for i in range(len(ids)))
    values = {f"g{i}": group for i, group in enumerate(ids)}
    rows = connection.execute(
        sql(f"select group_id, cause, fingerprint from failure_groups where group_id in ({named})"), values
    ).all()
    causes = {row.group_id: row.cause for row in rows}
    if {row.fingerprint for row in rows} & explain.overflow_groups():
        return "A group of what could not be told apart holds many failures."
    if one.words is not None:
        if grouping.plain_words(grouping.mask(one.words)) != grouping.plain_words(one.words):
            return f"The words hold what differs from message to message: {grouping.mask(one.words)}."
        return None
    if one.ruling == "split":
        return None
    if causes[ids[0]] != causes[ids[1]]:
        return (
            f"A group has one cause: group {ids[0]} is {causes[ids[0]]}, group {ids[1]} is {causes[ids[1]]}."
            " Give both the same by a rule of the route, then merge what comes of it."
        )
    first, second = aliases.members(ids[0]), aliases.members(ids[1])
    stands = connection.execute(
        sql("select group_id from standing_decisions where revoked_at is null and until_at > :now order by group_id"),
        {"now": now},
    ).scalars()
    # Whichever of their names it was made by: all that either of them is called by is joined.
    about = next((group for group in stands if group in first | second), None)
    if about is not None:
        return f"A standing decision about group {about} is about its words: revoke it first."
    told_apart = in_force(connection).keeps_apart(first, second)
    if told_apart is not None and set(told_apart) != set(ids):
        return f"Somebody said that groups {told_apart[0]} and {told_apart[1]} are two failures: take that back first."
    return None


def _carry_out(tx: RunTransaction, one: Ruling, aliases: Aliases) -> None:
    if one.words is not None:
        _split_off(tx, one, aliases)
        return
    assert one.other_group_id is not None  # noqa: S101 - a constraint of the table
    first, second = sorted((one.group_id, one.other_group_id))
    if tx.execute(sql(_SAID_LATER.format(of=":")), one._asdict()).first() is not None:
        return  # it was not there yet when that was carried out
    together = aliases.root(first) == aliases.root(second)
    if one.ruling == "split":
        if together:
            aliases.part(tx, second, reason=one.said)
        else:
            record_event(tx, Action.SPLIT_GROUPS, selection={"group": second, "from": first}, reason=one.said)
    elif together:  # found by Redrive before: now a person's word
        tx.execute(
            sql("update group_aliases set ruling_id = :ruling_id where group_id = :group_id and ruling_id is null"),
            {"ruling_id": one.ruling_id, "group_id": second},
        )
    else:
        older, later = sorted((aliases.root(first), aliases.root(second)))
        aliases.merge(tx, later, older, ruling_id=one.ruling_id, reason=one.said)


def _split_off(tx: RunTransaction, one: Ruling, aliases: Aliases) -> None:
    """Make the group of what has the words; it begins with a canary like any other new one."""
    from redrive.classification import grouping  # noqa: PLC0415 - takes a while, and most runs find nothing
    from redrive.classification.templates import MAX_TEMPLATE  # noqa: PLC0415 - likewise

    words = " ".join((one.words or "").split())
    row = tx.execute(
        sql("select fingerprint, cause, template from failure_groups where group_id = :group_id"),
        {"group_id": aliases.root(one.group_id)},
    ).one()
    fingerprint = grouping.split_fingerprint(row.fingerprint, words)
    tx.execute(
        sql(
            "insert into failure_groups (fingerprint, cause, template, first_route, first_seen_at, last_seen_at)"
            " select :fingerprint, cause, :template, first_route, :now, :now from failure_groups"
            " where group_id = :group_id on conflict (fingerprint) do nothing"
        ),
        {
            "fingerprint": fingerprint,
            "template": f"{row.template[: MAX_TEMPLATE - len(words[:200]) - 3]} [{words[:200]}]",
            "group_id": one.group_id,
        },
    )
    made = tx.execute(
        sql("select group_id from failure_groups where fingerprint = :fingerprint"), {"fingerprint": fingerprint}
    ).scalar_one()
    tx.execute(
        sql("update group_rulings set other_group_id = :made where ruling_id = :ruling_id"),
        {"made": made, "ruling_id": one.ruling_id},
    )
    record_event(tx, Action.SPLIT_GROUPS, selection={"group": made, "from": one.group_id}, reason=one.said)


#: SQL over ``breakers``: gates that let through more than the gate of a group that a person merged into theirs did, or
#: would: one of which nothing was planned yet has none.
_MERGED_SINCE = f"""
group_id is not null and stage in ('ramp', 'open') and exists (
    select 1
    from group_aliases merged
    left join breakers other on other.group_id = merged.group_id and other.route = :route
    where
        merged.merged_into = breakers.group_id and merged.ruling_id is not null
        and merged.merged_at > breakers.began_at
        and (
            other.stage <> 'open'
            or (other.stage is null and exists (
                select 1 from escalated_messages asked
                where asked.route = :route and asked.{UNDECIDED_REVIEW} and asked.group_id = merged.group_id
            ))
            or (other.stage is null and exists (
                select 1 from messages
                where messages.route = :route and state = 'to_review' and messages.group_id = merged.group_id
            ))
        )
)
"""


#: SQL over ``breakers``: gates that let through more than a canary, of groups that came under another's name since they
#: began, and have their own again: people's words alone part them. Meanwhile the other's gate learnt what it didn't.
_PARTED_SINCE = """
group_id is not null and stage in ('ramp', 'open') and exists (
    select 1 from failure_groups parted
    where parted.group_id = breakers.group_id and parted.parted_at > breakers.began_at
)
"""


def _begin_gates_anew(tx: RunTransaction) -> None:
    # As a canary that is allowed nothing yet: the plan allows it its first few.
    for reason, which in (
        ("A group was merged into it whose gate was not open.", _MERGED_SINCE),
        ("It has its own name again.", _PARTED_SINCE),
    ):
        breakers.begin_anew(tx, Stage.CANARY, allowed=0, reason=reason, which=which)


#: SQL: the groups that people merged into others.
_BY_PEOPLE = "select group_id from group_aliases where ruling_id is not null"
_NAME = "(select merged_into from group_aliases merged where merged.group_id = {0}.group_id)"


#: SQL over ``escalated_messages``: open questions of the route about groups that people merged.
_ASKED = f"""
route = :route and {UNDECIDED_REVIEW} and group_id in ({_BY_PEOPLE}) and exists (
    select 1 from messages
    where
        messages.message_id = escalated_messages.message_id
        and messages.state = 'escalated' and messages.group_id = escalated_messages.group_id
)
"""
#: SQL: whether a gate or a question of the route has not followed a merge yet. No run waits for another for that.
_TO_FOLLOW = f"""
select exists (select 1 from group_rulings where ruling = 'split' or revoked_at is not null) and exists (
    select 1 from breakers where route = :route and {_PARTED_SINCE}
) or exists ({_BY_PEOPLE}) and (
    exists (select 1 from breakers where route = :route and {_MERGED_SINCE})
    or exists (select 1 from escalated_messages where {_ASKED})
    or exists (select 1 from messages where route = :route and state = 'to_review' and group_id in ({_BY_PEOPLE}))
)
"""


def _ask_under_the_name(tx: RunTransaction) -> int:
    """Open questions of the route about merged groups, and messages that wait for one, get the name that holds.

    What is decided is not touched: the decision was about the group that it names. Nor is what somebody is deciding at
    this moment: it follows with the next run, if they take their time.
    """
    asked = tx.execute(
        sql(
            f"update escalated_messages set group_id = {_NAME.format('escalated_messages')} where escalation_id in"
            f" (select escalation_id from escalated_messages where {_ASKED} order by escalation_id {tx.dialect.locked})"
        )
    ).rowcount
    moved = tx.execute(
        sql(
            f"update messages set group_id = {_NAME.format('messages')} where route = :route"
            f" and group_id in ({_BY_PEOPLE}) and (state = 'to_review' or state = 'escalated' and exists (select 1"
            " from escalated_messages asked where asked.message_id = messages.message_id"
            f" and asked.{UNDECIDED_REVIEW} and asked.group_id = {_NAME.format('messages')}))"
        )
    ).rowcount
    if asked or moved:
        record_event(tx, Action.FOLLOW_RULING, count=moved, selection={"questions": asked})
    return int(asked)


def make(
    ledger: Ledger,
    ruling: str,
    group_id: int,
    *,
    other: int | None = None,
    words: str | None = None,
    by: str,
    note: str,
) -> int:
    """Say it: the same plain INSERT that people make in SQL. Returns the ruling's id."""
    with ledger.write() as connection:
        return int(
            connection.execute(
                sql(
                    "insert into group_rulings (ruling, group_id, other_group_id, words, decided_by, note)"
                    " values (:ruling, :group_id, :other, :words, :by, :note) returning ruling_id"
                ),
                {"ruling": ruling, "group_id": group_id, "other": other, "words": words, "by": by, "note": note},
            ).scalar_one()
        )


def revoke(ledger: Ledger, ruling_id: int, *, by: str) -> bool:
    """Take it back; False where there is no such ruling, or it was taken back before."""
    with ledger.write() as connection:
        return bool(
            connection.execute(
                sql("update group_rulings set revoked_by = :by where ruling_id = :ruling_id and revoked_at is null"),
                {"by": by, "ruling_id": ruling_id},
            ).rowcount
        )


def listed(connection: Connection, *, of: Collection[int] = (), most: int | None = None) -> list[dict[str, Any]]:
    """What people said about groups, the newest first, and what became of it: all, or what is about those ``of``, and
    the ``most`` newest."""
    ids = ", ".join(str(int(one)) for one in of)
    rows = connection.execute(
        sql(
            f"select {_COLUMNS}, created_at, applied_at, refusal, revoked_at, revoked_by, case"
            " when revoked_at is not null then 'revoked' when refusal is not null then 'refused'"
            " when applied_at is not null then 'holds' else 'waits for a run' end as status"
            " from group_rulings"
            + (f" where group_id in ({ids}) or other_group_id in ({ids})" if ids else "")
            + " order by ruling_id desc"
            + (f" limit {most}" if most is not None else "")
        )
    )
    return [dict(row._mapping) for row in rows]


def unknown(connection: Connection, groups: Iterable[int]) -> list[int]:
    """Those of ``groups`` that the ledger doesn't have."""
    return [
        group
        for group in groups
        if not connection.execute(
            sql("select 1 from failure_groups where group_id = :group_id"), {"group_id": group}
        ).scalar()
    ]
