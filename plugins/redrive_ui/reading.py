"""What the page reads from the ledger: one function per question, sets in SQL, pages by key.

Questions about the past are answered from what is small by nature (audit events of sets, batches, slices), or from a
bounded number of the newest messages: no page may read a whole ledger of millions.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.engine import Connection

from redrive.classification import grouping, normalization
from redrive.ledger.account import balance
from redrive.ledger.delivery import gate_waits
from redrive.ledger.dialects import dialect_of
from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.predicates import UNDECIDED_REVIEW
from redrive.lifecycle import FINISHED, UNDECIDED, State
from redrive_ui.filters import Filter

Row = dict[str, Any]

PAGE = 50
#: Trends are drawn from at most so many of the newest messages, rates of success from so many of the newest sends.
RECENT = 200_000
#: A count beyond this is told as "more than".
COUNT_TO = 100_000
#: Of what is on its way, so many of the newest messages are looked at for what people released.
UNDER_WAY = 50_000
DAYS = 14
_OPEN_STATES = ("classified", "waiting", "held", "sending", "unknown", "to_review", "escalated", "restoring",
                "restore_unknown", "expired")  # fmt: skip


def routes(connection: Connection) -> list[str]:
    """Routes that the ledger knows, also those that the configuration has forgotten."""
    return [row["route"] for row in rows_of(connection, "select route from route_state order by route")]


def states(connection: Connection, readable: Collection[str]) -> dict[str, dict[str, int]]:
    """Messages per route and state."""
    return balance.states_of(connection, readable)


def holders(connection: Connection, readable: Collection[str]) -> dict[str, Row]:
    """Each route's lease and pause, and the Airflow run that holds it."""
    where, values = routes_in(readable, "route_state.route")
    rows = rows_of(
        connection,
        'select route_state.*, runs.airflow_run_id, runs."trigger" from route_state left join runs'
        f" on runs.run_id = route_state.run_id where {where}",
        **values,
    )
    return {row["route"]: row for row in rows}


def queues(connection: Connection, readable: Collection[str]) -> dict[str, list[Row]]:
    """The newest observation of each queue, by route; sources first."""
    where, values = routes_in(readable)
    found: dict[str, list[Row]] = {}
    for row in rows_of(
        connection,
        "select o.* from queue_observations o inner join (select max(observation_id) as id from queue_observations"
        f" where {where} group by route, queue) newest on newest.id = o.observation_id order by role desc, queue",
        **values,
    ):
        found.setdefault(row["route"], []).append(row)
    return found


def stuck_consumers(connection: Connection, route: str) -> list[Row]:
    """Who held messages and got nowhere when the consumers of the route's destinations were last looked at."""
    return rows_of(
        connection,
        "select queue, consumer, unacked, status, last_progress_at, observed_at from consumer_health"
        " where route = :route and status in ('stuck', 'isolated') order by queue, consumer limit 200",
        route=route,
    )


def gates(connection: Connection, readable: Collection[str]) -> dict[str, dict[str, int]]:
    """How many groups of each route are at which stage of canary and breaker."""
    where, values = routes_in(readable)
    found: dict[str, dict[str, int]] = {}
    for row in rows_of(
        connection,
        "select route, stage, count(*) as n from breakers"
        f" where {where} and group_id is not null group by route, stage",
        **values,
    ):
        found.setdefault(row["route"], {})[row["stage"]] = row["n"]
    return found


def undecided(connection: Connection, readable: Collection[str]) -> dict[str, int]:
    """How many escalated messages of each route wait for a person."""
    where, values = routes_in(readable)
    return {
        row["route"]: row["n"]
        for row in rows_of(
            connection,
            f"select route, count(*) as n from escalated_messages where {UNDECIDED_REVIEW} and {where} group by route",
            **values,
        )
    }


def alarms(connection: Connection, readable: Collection[str]) -> dict[str, dict[str, int]]:
    """What people were told of and is not over, by route: event and how many. Pauses and new groups show elsewhere."""
    where, values = routes_in(readable)
    found: dict[str, dict[str, int]] = {}
    for row in rows_of(
        connection,
        "select route, event, count(*) as n from notifications where resolved_at is null and event in ('slo_breach',"
        f" 'messages_expiring', 'consumers_stuck', 'balance_broken') and {where} group by route, event",
        **values,
    ):
        found.setdefault(row["route"], {})[row["event"]] = row["n"]
    return found


def flows(connection: Connection, readable: Collection[str], since: datetime) -> dict[str, list[Row]]:
    """What moved since then, by route: day, states from and to, messages. From the events of whole sets."""
    where, values = routes_in(readable)
    day = dialect_of(connection).day("at")
    found: dict[str, list[Row]] = {}
    for row in rows_of(
        connection,
        f"select route, {day} as day, from_state, to_state, sum(count) as n from audit_events where {where}"
        f" and at >= :since_at and to_state is not null group by route, {day}, from_state, to_state",
        since_at=since,
        **values,
    ):
        found.setdefault(row["route"], []).append({**row, "n": int(row["n"])})
    return found


def inflow(connection: Connection, readable: Collection[str], now: datetime) -> tuple[dict[str, dict[str, int]], bool]:
    """New messages by cause and day, of the last two weeks; and whether older ones of that time were left out."""
    batches, cut = _recent_batches(connection, readable, now)
    found: dict[str, dict[str, int]] = {}
    for row in _all_recent(connection, readable, batches, "coalesce(cause, kind)"):
        per_day = found.setdefault(row["what"], {})
        day = batches[row["batch_id"]]
        per_day[day] = per_day.get(day, 0) + row["n"]
    return found, cut


def trends(
    connection: Connection, readable: Collection[str], groups: Collection[int], now: datetime
) -> dict[tuple[str, int], dict[str, int]]:
    """New messages per day of each of these groups, by route and group, as far back as :func:`inflow` looks."""
    if not groups:
        return {}
    batches, _ = _recent_batches(connection, readable, now)
    found: dict[tuple[str, int], dict[str, int]] = {}
    only = f"group_id in ({', '.join(str(int(group)) for group in groups)})"
    for row in _all_recent(connection, readable, batches, "group_id", only):
        per_day = found.setdefault((row["route"], row["what"]), {})
        day = batches[row["batch_id"]]
        per_day[day] = per_day.get(day, 0) + row["n"]
    return found


def ages(connection: Connection, route: str, now: datetime) -> list[Row]:
    """Unfinished messages by how long ago they were first enqueued; of at most :data:`RECENT` of them."""
    bounds = [("under 1 h", 1), ("1 to 6 h", 6), ("6 to 24 h", 24), ("1 to 3 d", 72), ("3 to 7 d", 168)]
    cases = " ".join(f"when t >= :edge_{i}_at then {i}" for i in range(len(bounds)))
    values = {f"edge_{i}_at": now - timedelta(hours=hours) for i, (_, hours) in enumerate(bounds)}
    rows = rows_of(
        connection,
        f"select case {cases} else {len(bounds)} end as bucket, count(*) as n from (select coalesce(first_enqueued_at,"
        f" dead_lettered_at, changed_at) as t from messages where route = :route and state in ({_quoted(_OPEN_STATES)})"
        f" limit {RECENT}) as unfinished group by 1",
        route=route,
        **values,
    )
    counted = {row["bucket"]: row["n"] for row in rows}
    names = [*(name for name, _ in bounds), "over 7 d"]
    return [{"name": name, "n": counted.get(i, 0)} for i, name in enumerate(names)]


def times_to_outcome(connection: Connection, ledger: Ledger, route: str) -> list[float]:
    """Seconds from first enqueue to a presumed or confirmed outcome, ascending, of the newest sends."""
    first = first_recent_slice(connection, [route])
    seconds = ledger.dialect.seconds_between("messages.first_enqueued_at", "redelivery_attempts.outcome_at")
    return [
        row["seconds"]
        for row in rows_of(
            connection,
            f"select {seconds} as seconds from redelivery_attempts inner join messages on messages.message_id ="
            " redelivery_attempts.message_id where slice_id >= :first and redelivery_attempts.route = :route"
            " and outcome in ('presumed', 'confirmed') and messages.first_enqueued_at is not null order by 1",
            first=first,
            route=route,
        )
    ]


def runs(connection: Connection, route: str, limit: int = 10) -> list[Row]:
    """The newest runs of a route."""
    return rows_of(
        connection, "select * from runs where route = :route order by started_at desc limit :n", route=route, n=limit
    )


def gates_of(connection: Connection, route: str, readable: Collection[str]) -> list[Row]:
    """Groups of a route whose gate is not open, those that hold something first."""
    rows = rows_of(
        connection,
        "select group_state.*, failure_groups.cause, (select count(*) from messages where"
        " messages.route = group_state.route and messages.state = 'held' and messages.group_id ="
        " group_state.group_id) as held from group_state inner join failure_groups on failure_groups.group_id ="
        " group_state.group_id where group_state.route = :route and stage <> 'open' order by held desc,"
        " group_state.stage_at desc limit 100",
        route=route,
    )
    said = templates(connection, readable, [(route, row["group_id"]) for row in rows])
    return [{**row, "template": said.get((route, row["group_id"]))} for row in rows]


def templates(
    connection: Connection, readable: Collection[str], wanted: Iterable[tuple[str, int | None]]
) -> dict[tuple[str, int], str]:
    """What each of these groups says, on a route that may be read, in words that may be read.

    A group is one over all routes, and its template holds words of the route that it was first seen on. Whoever may not
    read that one gets the template of a message on the route that is asked about; nothing where no such message is in
    front of people.
    """
    pairs = {(route, group_id) for route, group_id in wanted if group_id is not None and route in readable}
    if not pairs:
        return {}
    where, values = routes_in(readable, "first_route")
    own = {
        row["group_id"]: row["template"]
        for row in rows_of(
            connection,
            f"select group_id, template from failure_groups where {where}"
            f" and group_id in ({', '.join(str(int(one)) for one in sorted({group_id for _, group_id in pairs}))})",
            **values,
        )
    }
    found = {(route, group_id): own[group_id] for route, group_id in pairs if group_id in own}
    for route, group_id in sorted(pairs - found.keys()):
        if text := _example(connection, route, group_id):
            masked = grouping.mask(text)
            found[route, group_id] = normalization.template(masked)
    return found


def _example(connection: Connection, route: str, group_id: int) -> str | None:
    """What a message of the group on this route failed with, the same one every time."""
    row = _first(
        connection,
        "select error_text from escalated_messages where route = :route and group_id = :group_id"
        " order by status, escalated_at, escalation_id limit 1",
        route=route,
        group_id=group_id,
    )
    return str(row["error_text"]) if row and row["error_text"] else None


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
    return _first(
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
    found = _first(
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


def results(connection: Connection, readable: Collection[str], condition: str, values: Mapping[str, Any]) -> list[Row]:
    """What was decided, newest first, and what became of it: one row per decision and failure.

    ``condition`` is about the newest 20,000 rows of ``escalated_messages`` (as ``asked``) that it is true of.
    """
    where, routes_named = routes_in(readable, "asked.route")
    step = (
        "case when asked.status = 'decided' then 'decided' when asked.status in ('refused', 'reopened') then 'refused'"
        " when exists (select 1 from escalated_messages later where later.message_id = asked.message_id"
        " and later.escalation_id > asked.escalation_id) then 'back'"
        " when messages.state = 'waiting' then 'waiting' when messages.state = 'held' then 'held'"
        " when messages.state in ('sending', 'sent', 'unknown') then 'sent'"
        " when messages.state in ('presumed', 'confirmed', 'suppressed') then 'stayed'"
        " when messages.state = 'discarded' then 'discarded' else 'back' end"
    )
    counts = ", ".join(f"sum(case when step = '{one}' then 1 else 0 end) as {one}" for one in STEPS)
    rows = rows_of(
        connection,
        f"select placed.*, group_state.stage, group_state.sent as canary_sent, group_state.allowed from (select route,"
        f" group_id, decision, decided_by, decided_at, note, max(approved_by) as approved_by, count(*) as n, {counts}"
        f" from (select asked.*, {step} as step from (select escalation_id, message_id, route, group_id, decision,"
        " decided_by, decided_at, approved_by, note, status from escalated_messages asked where decision is not null"
        f" and {condition} and {where} order by escalation_id desc limit 20000) as asked left join messages on"
        " messages.message_id = asked.message_id) as steps group by route, group_id, decision, decided_by, decided_at,"
        " note order by decided_at desc nulls last, count(*) desc limit 100) as placed left join group_state on"
        " group_state.route = placed.route and group_state.group_id = placed.group_id"
        " order by decided_at desc nulls last, n desc",
        **values,
        **routes_named,
    )
    said = templates(connection, readable, [(row["route"], row["group_id"]) for row in rows])
    return [{**row, "template": said.get((row["route"], row["group_id"]))} for row in rows]


#: How far what was decided has come.
STEPS = ("decided", "refused", "waiting", "held", "sent", "stayed", "back", "discarded")


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
    known = _first(connection, "select cause from failure_groups where group_id = :id", id=group_id or 0)
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
        "example": group_id and _example(connection, route, group_id),
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


def standing(connection: Connection, readable: Collection[str], now: datetime) -> list[Row]:
    """Standing decisions that hold, then those that ended, the newest first; each with whether it ``holds``."""
    where, values = routes_in(readable, "standing_decisions.route")
    rows = rows_of(
        connection,
        "select standing_decisions.*, failure_groups.cause, case when revoked_at is null and until_at > :now then 1"
        " else 0 end as holds from standing_decisions inner join failure_groups on failure_groups.group_id ="
        f" standing_decisions.group_id where {where} or route is null order by case when revoked_at is null and"
        " until_at > :now then 0 else 1 end, standing_id desc limit 200",
        now=now,
        **values,
    )
    pairs = {(route, row["group_id"]) for row in rows for route in ([row["route"]] if row["route"] else readable)}
    said = templates(connection, readable, pairs)
    for row in rows:
        routes_of_it = [row["route"]] if row["route"] else sorted(readable)
        row["at_route"] = next((one for one in routes_of_it if (one, row["group_id"]) in said), None)
        row["template"] = said.get((row["at_route"], row["group_id"])) if row["at_route"] else None
    return rows


def standing_preview(
    connection: Connection, readable: Collection[str], route: str, group_id: int, now: datetime
) -> Row:
    """What a standing decision about a failure would be about: people were asked so often in the last two weeks on
    ``route``, and on every route that may be read (``everywhere``); ``open_messages`` are left alone by it."""
    where, values = routes_in(readable)
    rows = rows_of(
        connection,
        "select route, sum(case when escalated_at >= :since_at then 1 else 0 end) as lately, sum(case when status in"
        " ('open', 'refused', 'reopened') then 1 else 0 end) as open_messages from escalated_messages where"
        f" group_id = :group_id and {where} group by route",
        group_id=group_id,
        since_at=now - timedelta(days=DAYS),
        **values,
    )
    here = next((row for row in rows if row["route"] == route), {"lately": 0, "open_messages": 0})
    return {**here, "everywhere": sum(row["lately"] for row in rows)}


def _was_here(connection: Connection, route: str, group_id: int | None) -> bool:
    """Whether the group was first seen on this route, or has one of its newest messages, all of which are finished."""
    found = _first(
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


def page(connection: Connection, chosen: Filter, readable: Collection[str], *, after: int | None = None,
         oldest_first: bool = False, size: int = PAGE) -> list[Row]:  # fmt: skip
    """A page of escalated messages, newest first; one row more than ``size`` where there is more."""
    where, values = chosen.where(readable, dialect_of(connection))
    if after is not None:
        where += f" and escalation_id {'>' if oldest_first else '<'} :after"
        values["after"] = after
    # Ids first: they come from an index, without reading a payload of what is not shown.
    ids = _ids(connection, where, values, oldest_first=oldest_first, limit=size + 1)
    found = {row["escalation_id"]: row for row in by_ids(connection, ids)}
    return [found[one] for one in ids if one in found]


def ids(connection: Connection, chosen: Filter, readable: Collection[str], limit: int) -> list[int]:
    """The newest escalation ids that match."""
    where, values = chosen.where(readable, dialect_of(connection))
    return _ids(connection, where, values, oldest_first=False, limit=limit)


def _ids(connection: Connection, where: str, values: Mapping[str, Any], *, oldest_first: bool, limit: int) -> list[int]:
    rows = connection.execute(
        sql(
            f"select escalation_id from escalated_messages where {where} order by escalation_id"
            f" {'asc' if oldest_first else 'desc'} limit :size"
        ),
        {**values, "size": limit},
    )
    return list(rows.scalars())


def by_ids(connection: Connection, ids: Iterable[int]) -> list[Row]:
    """Escalations without their payloads, with the beginnings of their texts."""
    wanted = ", ".join(str(int(one)) for one in ids)
    if not wanted:
        return []
    return rows_of(
        connection,
        "select escalation_id, message_id, route, group_id, cause, substr(reason, 1, 500) as reason,"
        " substr(error_text, 1, 2000) as error_text, size_bytes, content_type, source, destination, message_key,"
        " attempts, first_enqueued_at, escalated_at, suggested_decision, status, decision, decided_by, decided_at,"
        " approved_by, note, substr(refusal, 1, 500) as refusal, applied_at from escalated_messages"
        f" where escalation_id in ({wanted})",
    )


def payload(connection: Connection, escalation_id: int) -> str | None:
    """The payload of one escalation, where it is text."""
    row = _first(connection, "select payload from escalated_messages where escalation_id = :id", id=escalation_id)
    found: str | None = row["payload"] if row else None
    return found


def count(connection: Connection, chosen: Filter, readable: Collection[str]) -> int:
    """How many match; at most :data:`COUNT_TO` + 1."""
    where, values = chosen.where(readable, dialect_of(connection))
    (row,) = rows_of(
        connection,
        f"select count(*) as n from (select 1 from escalated_messages where {where} limit {COUNT_TO + 1}) as found",
        **values,
    )
    return int(row["n"])


def newest_question(connection: Connection) -> int:
    """The newest escalation id that there is; 0 without any."""
    (row,) = rows_of(connection, "select coalesce(max(escalation_id), 0) as newest from escalated_messages")
    return int(row["newest"])


def floor_of(
    connection: Connection, readable: Collection[str], count: int, *, before: int | None = None
) -> tuple[int, datetime | None]:
    """The first of the ``count`` newest messages (of those before ``before``), by whole batches and at least one; and
    when that batch was staged, None where there are no older ones."""
    where, values = routes_in(readable)
    if before is not None:
        where += " and batch_id <= :last_batch"
        values["last_batch"] = before - 1 >> 20
    rows = rows_of(
        connection,
        f"select batch_id, new_copies, opened_at from staging_batches where new_copies > 0 and {where}"
        " order by batch_id desc limit 2001",
        **values,
    )
    total = 0
    for number, row in enumerate(rows):
        total += row["new_copies"]
        if number + 1 < len(rows) and (total >= count or number == 1999):
            return row["batch_id"] << 20, row["opened_at"]
    return 0, None


def message(connection: Connection, message_id: int, readable: Collection[str]) -> Row | None:
    """One message with its cause, its escalations (newest first, with payload) and everything that happened to it.

    None where there is no such message on a route that may be read; a copy that was found on another route is left out.
    """
    where, values = routes_in(readable)
    mine = f"message_id = :id and {where}"
    values["id"] = message_id
    found = _first(connection, f"select * from messages where {mine}", **values)
    if found is None:
        return None
    known = _first(connection, "select cause from failure_groups where group_id = :id", id=found["group_id"] or 0)
    found["group_cause"] = known and known["cause"]
    found["reviews"] = rows_of(
        connection, f"select * from escalated_messages where {mine} order by escalation_id desc limit 20", **values
    )
    found["attempts_made"] = rows_of(
        connection,
        "select redelivery_attempts.*, (select run_id from delivery_slices where delivery_slices.slice_id ="
        f" redelivery_attempts.slice_id) as run_id from redelivery_attempts where {mine} order by attempt limit 200",
        **values,
    )
    found["copies"] = rows_of(
        connection, f"select * from repeat_copies where {mine} order by copy_id limit 200", **values
    )
    found["batch"] = _first(
        connection,
        f"select * from staging_batches where batch_id = :batch and {where}",
        **values,
        batch=message_id >> 20,
    )
    found["events"] = rows_of(
        connection, f"select * from audit_events where {mine} order by event_id limit 200", **values
    )
    ids = {
        one["run_id"] for one in [*found["attempts_made"], *found["events"], found["batch"] or {}] if one.get("run_id")
    }
    found["runs"] = {
        row["run_id"]: row
        for row in rows_of(
            connection,
            f"select * from runs where run_id in ({', '.join(f':run_{i}' for i, _ in enumerate(ids)) or 'null'})"
            f" and {where}",
            **{f"run_{i}": run_id for i, run_id in enumerate(sorted(ids))},
            **values,
        )
    }
    return found


def dag_run(run: Mapping[str, Any] | None) -> tuple[str, str] | None:
    """The DAG and DAG run of a row of ``runs``; None where Airflow did not run it."""
    if not run or not run.get("airflow_run_id"):
        return None
    if run["trigger"] == "review":  # several routes share that DAG run: its id is followed by the route
        return "redrive_review", str(run["airflow_run_id"]).removesuffix(f" {run['route']}")
    return f"redrive_{run['route']}", str(run["airflow_run_id"])


def days(now: datetime, count: int = DAYS) -> list[str]:
    """The last ``count`` days, today last, as they are called in SQL."""
    return [f"{now.astimezone(UTC) - timedelta(days=back):%Y-%m-%d}" for back in range(count - 1, -1, -1)]


# --- recent ---------------------------------------------------------------------------------------------------


def _recent_batches(connection: Connection, readable: Collection[str], now: datetime) -> tuple[dict[int, str], bool]:
    """The newest loaded batches, each with its day, with at most :data:`RECENT` new messages altogether."""
    where, values = routes_in(readable)
    rows = rows_of(
        connection,
        "select batch_id, new_copies, loaded_at from staging_batches where loaded_at >= :since_at and new_copies > 0"
        f" and {where} order by batch_id desc limit 20000",
        since_at=now - timedelta(days=DAYS),
        **values,
    )
    chosen: dict[int, str] = {}
    total = 0
    for row in rows:
        total += row["new_copies"]
        if chosen and total > RECENT:
            return chosen, True
        chosen[row["batch_id"]] = f"{row['loaded_at'].astimezone(UTC):%Y-%m-%d}"
    return chosen, len(rows) == 20_000


def _all_recent(
    connection: Connection, readable: Collection[str], batches: Mapping[int, str], what: str, only: str = "1 = 1"
) -> list[Row]:
    """Messages of these batches counted by batch, route and ``what``. A message id begins with its batch's."""
    if not batches:
        return []
    where, values = routes_in(readable, dialect_of(connection).off_index("route"))
    rows = rows_of(
        connection,
        f"select message_id / 1048576 as batch_id, route, {what} as what, count(*) as n from messages"
        f" where message_id >= :first and {where} and {only} group by message_id / 1048576, route, {what}",
        first=min(batches) << 20,
        **values,
    )
    return [row for row in rows if row["batch_id"] in batches]


def first_recent_slice(connection: Connection, readable: Collection[str]) -> int:
    """The first of the slices in which the newest :data:`RECENT` messages were sent."""
    where, values = routes_in(readable)
    rows = rows_of(
        connection,
        f"select slice_id, sent from delivery_slices where {where} order by slice_id desc limit 5000",
        **values,
    )
    total = 0
    for row in rows:
        total += row["sent"]
        if total > RECENT:
            return int(row["slice_id"])
    return int(rows[-1]["slice_id"]) if rows else 0


# --- rows -----------------------------------------------------------------------------------------------------


def routes_in(readable: Collection[str], column: str = "route") -> tuple[str, dict[str, Any]]:
    """A condition that holds on these routes, and its parameters."""
    names = {f"route_{i}": route for i, route in enumerate(sorted(readable))}
    if not names:
        return "1 = 0", {}
    return f"{column} in ({', '.join(':' + name for name in names)})", dict(names)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def rows_of(connection: Connection, statement: str, **values: Any) -> list[Row]:
    """The rows of a query, with instants as instants on either database."""
    return [_typed(dict(row)) for row in connection.execute(sql(statement), values).mappings()]


def _first(connection: Connection, statement: str, **values: Any) -> Row | None:
    return next(iter(rows_of(connection, statement, **values)), None)


def _typed(row: Row) -> Row:
    """Instants are text on SQLite; which columns hold them shows in their names."""
    for name, value in row.items():
        if isinstance(value, str) and (
            name.endswith("_at") or name in ("at", "lease_until", "cool_down_until", "until")
        ):
            row[name] = parse_instant(value)
    return row
