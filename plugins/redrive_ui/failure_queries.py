"""What pages read of failures, that is groups: the list of them at each place, and one with all about it."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.engine import Connection

from redrive.ledger.delivery import gate_waits
from redrive.lifecycle import FINISHED, UNDECIDED, State
from redrive_ui.group_templates import example, templates
from redrive_ui.message_queries import by_ids
from redrive_ui.recent import RECENT, all_recent, first_recent_slice, recent_batches
from redrive_ui.result_queries import results
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


def _placed(readable: Collection[str], route: str, cause: str) -> tuple[str, dict[str, Any]]:
    """All failures that people were asked about, each at its place: who is awaited, in progress, or done with.

    A failure is in one place. Somebody who is at it, or says that it is to be ignored, comes first; then what waits for
    a decision; then what is decided and has no outcome yet.
    """
    only = [one for one in readable if one == route] if route else readable
    where, values = routes_in(only)
    # All of this is in one index, in its order. What a row holds beside it is read for the examples alone.
    each = (
        "select route, group_id, status, count(*) as n, min(coalesce(first_enqueued_at, escalated_at)) as oldest_at,"
        " max(escalated_at) as newest_at, min(escalation_id) as first_id, max(escalation_id) as last_id"
        f" from escalated_messages where {where} group by route, group_id, status"
    )
    counted = (
        "select route, group_id, cast(sum(case when status in ('open', 'refused', 'reopened') then n else 0 end) as"
        " bigint) as open_messages, cast(sum(case when status = 'decided' then n else 0 end) as bigint) as"
        " decided_messages, cast(sum(case when status = 'applied' then n else 0 end) as bigint) as applied_messages,"
        " min(case when status <> 'applied' then oldest_at end) as oldest_at, max(newest_at) as newest_at,"
        " coalesce(min(case when status in ('open', 'refused', 'reopened') then first_id end),"
        f" max(last_id)) as example_id from ({each}) as each_status group by route, group_id"
    )
    released = (
        "select route, group_id, count(*) as n from (select route, group_id, releases from messages where"
        f" {where} and state in ('waiting', 'held', 'sending', 'sent', 'unknown') order by message_id desc"
        f" limit {UNDER_WAY}) as newest where releases > 0 group by route, group_id"
    )
    by_cause = " and failure_groups.cause = :cause" if cause else ""
    if cause:
        values["cause"] = cause
    same = (
        "{0}.route = counted.route and ({0}.group_id = counted.group_id or ({0}.group_id is null and"
        " counted.group_id is null))"
    )
    return (
        "select told.*, case when issue = 'ignored' then 'done' when issue = 'in_progress' then 'progress'"
        " when open_messages > 0 then 'waiting' when decided_messages > 0 or under_way > 0 then 'progress'"
        " else 'done' end as tab, open_messages + decided_messages + applied_messages as all_messages from ("
        "select counted.*, failure_groups.cause, coalesce(issue_state.status, 'open') as issue, issue_state.owner,"
        " issue_state.ticket,"
        " coalesce(released.n, 0) as under_way, gate.stage as gate"
        f" from ({counted}) as counted left join failure_groups on failure_groups.group_id = counted.group_id"
        f" left join issue_state on {same.format('issue_state')} left join ({released}) as released on"
        f" {same.format('released')} left join breakers gate on {same.format('gate')} and gate.group_id is not null"
        f" where 1 = 1{by_cause}) as told",
        values,
    )


def failures(
    connection: Connection,
    readable: Collection[str],
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

    ``order`` is ``open`` (most messages first) or ``oldest`` (who has waited longest first; the example is that one).
    ``after`` is the :func:`group_key` of the last row. One row more than ``size`` (:data:`PAGE`) is returned where
    there is more.
    """
    placed, values = _placed(readable, route, cause)
    conditions = ["tab = :tab"]
    values["tab"] = tab
    many = _MANY[tab]
    if len(after) == 3:
        tie = "(route > :last_route or (route = :last_route and coalesce(group_id, 0) > :last_group))"
        if order == "oldest":
            conditions.append(f"(example_id > :first or (example_id = :first and {tie}))")
        else:
            conditions.append(f"({many} < :first or ({many} = :first and {tie}))")
        values |= dict(zip(("first", "last_route", "last_group"), after, strict=True))
    by = "example_id" if order == "oldest" else f"{many} desc"
    counts = ", ".join(f"coalesce(sum(case when tab = '{one}' then 1 else 0 end), 0) as in_{one}" for one in TABS)
    # Page and counts are of one look at all that there is, which is what takes time.
    rows = rows_of(
        connection,
        f"with placed as materialized ({placed}), tabs as (select {counts} from placed), page as (select placed.*,"
        f" {many} as many from placed where {' and '.join(conditions)} order by {by}, route, coalesce(group_id, 0)"
        f" limit {(size or PAGE) + 1}) select * from tabs left join page on 1 = 1"
        f" order by {by}, route, coalesce(group_id, 0)",
        **values,
    )
    tabs = {one: rows[0][f"in_{one}"] for one in TABS}
    rows = [row for row in rows if row["route"] is not None]
    examples = {row["escalation_id"]: row for row in by_ids(connection, [row["example_id"] for row in rows])}
    said = templates(connection, readable, [(row["route"], row["group_id"]) for row in rows])
    for row in rows:
        row["shown"] = examples[row["example_id"]]
        row["template"] = said.get((row["route"], row["group_id"]))
    return rows, tabs


def next_failure(connection: Connection, readable: Collection[str]) -> Row | None:
    """The failure that is first in the list of those that wait: its route and group."""
    where, values = routes_in(readable)
    # Status by status: what waits is found by that, among all that was ever decided.
    waiting = " union all ".join(
        f"select route, group_id, count(*) as n from escalated_messages where {where} and status = '{status}'"
        " group by route, group_id"
        for status in UNDECIDED
    )
    return first_of(
        connection,
        f"select waiting.route, waiting.group_id from ({waiting}) as waiting left join issue_state on issue_state.route"
        " = waiting.route and issue_state.group_id = waiting.group_id where coalesce(issue_state.status, 'open')"
        " not in ('ignored', 'in_progress') group by waiting.route, waiting.group_id order by sum(n) desc,"
        " waiting.route, coalesce(waiting.group_id, 0) limit 1",
        **values,
    )


#: What is counted at each place: what waits, what is on its way, all that there was.
_MANY = {
    "waiting": "open_messages",
    "progress": "(open_messages + decided_messages + under_way)",
    "done": "all_messages",
}


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


def group_key(row: Row, order: str) -> tuple[int, str, int]:
    """Where in its list a row of :func:`failures` stands."""
    return row["example_id"] if order == "oldest" else row["many"], row["route"], row["group_id"] or 0


def group(
    connection: Connection, route: str, group_id: int | None, readable: Collection[str], now: datetime
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
    waits = [one for one in gate_waits.waits(connection, route, now) if group_id and one.group_id == group_id]
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
        "template": group_id and templates(connection, readable, [(route, group_id)]).get((route, group_id)),
        "example": group_id and example(connection, route, group_id),
        "gate": gate[0] if gate else None,
        "merged_into": next((row["merged_into"] for row in aliases if row["group_id"] == group_id), None),
        "merged_here": [row["group_id"] for row in aliases if row["merged_into"] == group_id],
        "decided": results(
            connection, [route], same, {name: value for name, value in values.items() if name != "route"}
        ),
        "issue": issue(connection, route, group_id) if group_id else None,
        "standing": rows_of(
            connection,
            "select decision, decided_by, approved_by, note, until_at from standing_decisions where group_id = :id"
            " and (route is null or route = :route) and revoked_at is null and until_at > :now order by standing_id",
            id=group_id or 0,
            route=route,
            now=now,
        ),
    }


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
        " 'returned' then 1 else 0 end) as returned, sum(case when outcome in ('presumed', 'confirmed') then 1 else 0"
        " end) as stayed_away from redelivery_attempts where slice_id >= :first and route = :route"
        f" and group_id in ({', '.join(str(int(one)) for one in groups)}) group by group_id",
        first=first_recent_slice(connection, [route]),
        route=route,
    )
    return {row["group_id"]: row for row in rows}
