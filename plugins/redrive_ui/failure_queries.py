"""What pages read of failures, that is groups: the list of them at each place, and one with all about it."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.engine import Connection

from redrive.ledger.delivery import breakers, gate_waits
from redrive.ledger.dialects import Dialect, dialect_of
from redrive.ledger.predicates import COUNTS
from redrive.ledger.review import standing
from redrive.lifecycle import FINISHED, UNDECIDED, ReviewStatus, State
from redrive_ui.group_templates import Mask, example, templates
from redrive_ui.message_queries import COUNT_DONE, by_ids
from redrive_ui.recent import RECENT, all_recent, first_recent_slice, recent_batches
from redrive_ui.result_queries import NEWEST, results
from redrive_ui.rows import PAGE, Row, first_of, routes_in, rows_of

#: Of what is on its way, so many of the newest messages are looked at for what people released.
UNDER_WAY = 50_000


def trends(
    connection: Connection, readable: Collection[str], groups: Collection[int], now: datetime
) -> dict[tuple[str, int], dict[str, int]]:
    """New messages per day of these groups, by route and group, as far back as :mod:`redrive_ui.recent` looks."""
    if not groups:
        return {}
    batches, _ = recent_batches(connection, readable, now)
    found: dict[tuple[str, int], dict[str, int]] = {}
    only = f"group_id in ({', '.join(str(int(group)) for group in groups)})"
    for row in all_recent(connection, readable, batches, "group_id", only):
        per_day = found.setdefault((row["route"], row["what"]), {})
        day = batches[row["batch_id"]]
        per_day[day] = per_day.get(day, 0) + row["n"]
    return found


TABS = ("waiting", "progress", "done")


def _each(where: str, statuses: Iterable[ReviewStatus]) -> str:
    """SQL: the questions with these statuses by route, group (key 0: without one) and status: how many, first, last."""
    # Status by status: what waits is found by that, among all that was ever decided.
    return " union all ".join(
        f"select route, coalesce(group_id, 0) as group_key, '{status}' as status, count(*) as n,"
        " min(escalation_id) as first_id, max(escalation_id) as last_id from escalated_messages"
        f" where {where} and status = '{status}' group by route, coalesce(group_id, 0)"
        for status in statuses
    )


def _of(failure: str, what: str) -> str:
    """SQL: ``what``, in which ``{here}`` says that ``questions`` are of the route and group of a row of ``failure``."""
    here = f"questions.route = {failure}.route and questions.group_id "
    return (
        f"case when {failure}.group_id is null then ({what.format(here=here + 'is null')})"
        f" else ({what.format(here=f'{here}= {failure}.group_id')}) end"
    )


def _placed(dialect: Dialect, readable: Collection[str], route: str, cause: str) -> tuple[str, dict[str, Any]]:
    """SQL of named queries up to ``placed``: all failures that people were asked about, each at its place: who is
    awaited, in progress, or done with.

    A failure is in one place. Somebody who is at it, or says that it is to be ignored, comes first; then what waits for
    a decision; then what is decided and has no outcome yet. What is done with is not counted, however much it is: from
    one failure of it to the next an index is jumped through.
    """
    where, values = routes_in([one for one in readable if one == route] if route else readable)
    if cause:
        values["cause"] = cause
    last_done = "select max(escalation_id) from escalated_messages questions where status = 'applied' and {here}"
    counted = "{0}.route = failures.route and {0}.group_key = failures.group_key"
    known = "{0}.route = failures.route and {0}.group_id = failures.group_id"
    return (
        f"routes as (select route from route_state where {where}),"
        " asked(route, group_id) as (select route, (select min(group_id) from escalated_messages questions where"
        " questions.route = routes.route) from routes union all select route, (select min(group_id) from"
        " escalated_messages questions where questions.route = asked.route and questions.group_id > asked.group_id)"
        " from asked where group_id is not null),"
        " failures as (select route, group_id, group_id as group_key from asked where group_id is not null union all"
        " select route, null, 0 from routes where exists (select 1 from escalated_messages questions where"
        " questions.route = routes.route and questions.group_id is null)),"
        " undecided as (select route, group_key, cast(sum(case when status <> 'decided' then n else 0 end) as bigint)"
        " as open_messages, cast(sum(case when status = 'decided' then n else 0 end) as bigint) as decided_messages,"
        " min(case when status <> 'decided' then first_id end) as first_open, max(last_id) as last_id"
        f" from ({_each(where, (*UNDECIDED, ReviewStatus.DECIDED))}) as by_status group by route, group_key),"
        # Released and on their way; until they are sent they are counted with what is decided.
        " released as (select route, coalesce(group_id, 0) as group_key, count(*) as n from (select message_id, route,"
        f" group_id, releases from messages where {where} and state in ('waiting', 'held', 'sending', 'sent',"
        f" 'unknown') order by message_id desc limit {UNDER_WAY}) as newest where releases > 0 and not exists"
        " (select 1 from escalated_messages questions where questions.message_id = newest.message_id"
        f" and {dialect.in_row('questions.status')} = 'decided')"
        " group by route, coalesce(group_id, 0)),"
        " told as (select failures.*, failure_groups.cause, coalesce(undecided.open_messages, 0) as open_messages,"
        " coalesce(undecided.decided_messages, 0) as decided_messages, coalesce(released.n, 0) as under_way,"
        f" undecided.first_open, coalesce(undecided.last_id, {_of('failures', last_done)}) as last_id,"
        " coalesce(issue_state.status, 'open') as issue, issue_state.owner, issue_state.ticket, gate.stage as gate"
        " from failures left join failure_groups on failure_groups.group_id = failures.group_id"
        f" left join undecided on {counted.format('undecided')} left join released on {counted.format('released')}"
        f" left join issue_state on {known.format('issue_state')} left join breakers gate on {known.format('gate')}"
        f"{' where failure_groups.cause = :cause' if cause else ''}),"
        " placed as materialized (select told.*, coalesce(first_open, last_id) as example_id,"
        " case when issue = 'ignored' then 'done' when issue = 'in_progress'"
        " then 'progress' when open_messages > 0 then 'waiting' when decided_messages > 0 or under_way > 0 then"
        " 'progress' else 'done' end as tab from told)",
        values,
    )


def failures(
    connection: Connection,
    readable: Collection[str],
    mask: Mask,
    *,
    tab: str = "waiting",
    route: str = "",
    cause: str = "",
    order: str = "open",
    after: Sequence[Any] = (),
    size: int | None = None,
) -> tuple[list[Row], dict[str, int]]:
    """A page of the failures at one place: counts, how far people are, an example, with cause and template (or None);
    and how many there are at each place.

    ``order`` is ``open`` (most messages first; of what is done with, the latest first) or ``oldest`` (who has waited
    longest first; the example is that one). ``after`` is the :func:`group_key` of the last row. One row more than
    ``size`` (:data:`PAGE`) is returned where there is more. Of what is done with, ``many`` is at most
    :data:`COUNT_DONE` and one.
    """
    placed, values = _placed(dialect_of(connection), readable, route, cause)
    conditions = ["tab = :tab"]
    values["tab"] = tab
    oldest = order == "oldest"
    rank = ("last_id" if tab == "done" else "example_id") if oldest else _MANY.get(tab, "last_id")
    if len(after) == 3:
        tie = "(route > :last_route or (route = :last_route and group_key > :last_group))"
        conditions.append(f"({rank} {'>' if oldest else '<'} :last_rank or ({rank} = :last_rank and {tie}))")
        values |= dict(zip(("last_rank", "last_route", "last_group"), after, strict=True))
    counts = ", ".join(f"coalesce(sum(case when tab = '{one}' then 1 else 0 end), 0) as in_{one}" for one in TABS)
    by = f"rank{'' if oldest else ' desc'}, route, group_key"
    # Page and counts are of one look at all failures.
    rows = rows_of(
        connection,
        f"with recursive {placed}, tabs as (select {counts} from placed), page as (select placed.*, {rank} as rank"
        f" from placed where {' and '.join(conditions)} order by {by} limit {(size or PAGE) + 1})"
        f" select tabs.*, page.*, {_MANY.get(tab) or _of('page', _COUNTED)} as many, {_of('page', _TIME[tab])} as"
        f" {'newest_at' if tab == 'done' else 'oldest_at'} from tabs left join page on 1 = 1 order by {by}",
        **values,
    )
    tabs = {one: rows[0][f"in_{one}"] for one in TABS}
    rows = [row for row in rows if row["route"] is not None]
    examples = {row["escalation_id"]: row for row in by_ids(connection, [row["example_id"] for row in rows])}
    said = templates(connection, readable, mask, [(row["route"], row["group_id"]) for row in rows])
    for row in rows:
        row["shown"] = examples[row["example_id"]]
        row["template"] = said.get((row["route"], row["group_id"]))
    return rows, tabs


#: SQL: how many messages are shown at each place: those that wait, and those that are on their way …
_MANY = {"waiting": "open_messages", "progress": "(open_messages + decided_messages + under_way)"}
#: … and of what is done with, all that there ever were, as far as they are counted.
_COUNTED = (
    "select count(*) from (select 1 as one from escalated_messages questions where {here}"
    f" limit {COUNT_DONE + 1}) as counted"
)
_WAITS = (
    "select min(coalesce(first_enqueued_at, escalated_at)) from escalated_messages questions where {here}"
    " and status <> 'applied'"
)
#: SQL: since when the failures at each place wait, or when they were last asked about.
_TIME = {
    "waiting": _WAITS,
    "progress": _WAITS,
    "done": "select escalated_at from escalated_messages questions where questions.escalation_id = page.last_id",
}


def next_failure(connection: Connection, readable: Collection[str]) -> Row | None:
    """The failure that is first in the list of those that wait: its route and group."""
    where, values = routes_in(readable)
    return first_of(
        connection,
        f"select waiting.route, nullif(group_key, 0) as group_id from ({_each(where, UNDECIDED)}) as waiting left join"
        " issue_state on issue_state.route = waiting.route and issue_state.group_id = group_key where"
        " coalesce(issue_state.status, 'open') not in ('ignored', 'in_progress') group by waiting.route, group_key"
        " order by sum(n) desc, waiting.route, group_key limit 1",
        **values,
    )


def issue(connection: Connection, route: str, group_id: int) -> Row:
    """How far people are with a failure, and what they said about it, newest first."""
    found = first_of(
        connection, "select * from issue_state where route = :route and group_id = :id", route=route, id=group_id
    )
    said = rows_of(
        connection,
        "select written_by, written_at, text from issue_comments where route = :route and group_id = :id"
        " order by comment_id desc limit 50",
        route=route,
        id=group_id,
    )
    return {"status": "open", "owner": None, "ticket": None, "written_by": None, **(found or {}), "comments": said}


def group_key(row: Row) -> tuple[int, str, int]:
    """Where in its list a row of :func:`failures` stands."""
    return row["rank"], row["route"], row["group_key"]


def group(
    connection: Connection, route: str, group_id: int | None, readable: Collection[str], mask: Mask, now: datetime
) -> Row | None:
    """One group on one route; None where nothing of it was ever there.

    All that is told is of this route: counts, times, example, decisions. Groups that it was merged with are named where
    they are on this route too.
    """
    same = "group_id = :group_id" if group_id is not None else "group_id is null"
    values: Row = {"route": route} | ({"group_id": group_id} if group_id is not None else {})
    counts = rows_of(
        connection,
        "select status, count(*) as n, min(escalated_at) as first_at, max(escalated_at) as last_at from"
        f" escalated_messages where route = :route and {same} group by status",
        **values,
    )
    under_way = {
        row["state"]: row["n"]
        for row in rows_of(
            connection,
            f"select state, count(*) as n from messages where route = :route and {same} and state in"
            f" ({', '.join(repr(state.value) for state in State if state not in FINISHED)}) group by state",
            **values,
        )
    }
    gate = rows_of(
        connection, "select * from group_state where route = :route and group_id = :id", route=route, id=group_id or 0
    )
    if not (counts or under_way or gate or _was_here(connection, route, group_id)):
        return None
    own = breakers.of_group(connection, route, group_id) if group_id else None
    waits = gate_waits.of_groups(connection, route, now, [own]) if own else []
    known = first_of(connection, "select cause from failure_groups where group_id = :id", id=group_id or 0)
    aliases = rows_of(
        connection,
        "select group_id, merged_into from group_aliases where (group_id = :id or merged_into = :id) and exists (select"
        " 1 from escalated_messages where route = :route and escalated_messages.group_id = case when"
        " group_aliases.group_id = :id then merged_into else group_aliases.group_id end) order by group_id",
        id=group_id or 0,
        route=route,
    )
    return {
        "route": route,
        "group_id": group_id,
        "statuses": {row["status"]: row["n"] for row in counts},
        "messages": sum(row["n"] for row in counts),
        "first_at": min((row["first_at"] for row in counts), default=None),
        "last_at": max((row["last_at"] for row in counts), default=None),
        "under_way": {state.value: under_way[state] for state in State if state in under_way},
        "waits_for": waits[0] if waits else None,
        "cause": known and known["cause"],
        "template": group_id and templates(connection, readable, mask, [(route, group_id)]).get((route, group_id)),
        "example": group_id and example(connection, route, group_id),
        "gate": gate[0] if gate else None,
        "merged_into": next((row["merged_into"] for row in aliases if row["group_id"] == group_id), None),
        "merged_here": [row["group_id"] for row in aliases if row["merged_into"] == group_id],
        "decided": results(
            connection, [route], mask, dialect_of(connection).few("escalation_id", _newest_answered(same)), values
        ),
        "issue": issue(connection, route, group_id) if group_id else None,
        "standing": rows_of(
            connection,
            "select route, decision, decided_by, approved_by, note, until_at, exists (select 1 from breakers gate where"
            f" gate.route = :route and {standing.SUSPENDED}) as suspended from standing_decisions where group_id = :id"
            " and (route is null or route = :route) and revoked_at is null and until_at > :now order by standing_id",
            id=group_id or 0,
            route=route,
            now=now,
        ),
    }


def _newest_answered(same: str) -> str:
    """SQL: the newest questions about a group that somebody has answered, though perhaps they are asked again."""
    # Status by status: looked for in the order of their ids, those of a group about which nobody has decided are not
    # found before all that was ever asked is at an end.
    # By group first, which is one: where it is null, PostgreSQL does not know that its index has that order.
    return " union all ".join(
        f"select escalation_id from (select escalation_id from escalated_messages where status = '{status}'"
        f" and route = :route and {same} and decision is not null"
        f" order by group_id desc, escalation_id desc limit {NEWEST}) as {status}_ones"
        for status in ReviewStatus
        if status not in (ReviewStatus.OPEN, ReviewStatus.REOPENED)
    )


def _was_here(connection: Connection, route: str, group_id: int | None) -> bool:
    """Whether the group was first seen on this route, or has one of its newest messages, all of which are finished."""
    found = first_of(
        connection,
        "select 1 as n from failure_groups where group_id = :id and (first_route = :route or exists (select 1 from"
        f" (select group_id from messages where route = :route order by message_id desc limit {RECENT}) as newest"
        " where newest.group_id = :id))",
        id=group_id or 0,
        route=route,
    )
    return found is not None


def outcomes(connection: Connection, route: str, groups: Collection[int]) -> dict[int, Row]:
    """Of the newest sends of a route, per group: sent, returned, stayed away."""
    if not groups:
        return {}
    rows = rows_of(
        connection,
        "select group_id, sum(case when sent_at is not null then 1 else 0 end) as redelivered, sum(case when outcome ="
        f" 'returned' and {COUNTS} then 1 else 0 end) as returned,"
        " sum(case when outcome in ('presumed', 'confirmed') then 1 else 0 end) as stayed_away"
        " from redelivery_attempts where slice_id >= :first and route = :route"
        f" and group_id in ({', '.join(str(int(one)) for one in groups)}) group by group_id",
        first=first_recent_slice(connection, [route]),
        route=route,
    )
    return {row["group_id"]: row for row in rows}
