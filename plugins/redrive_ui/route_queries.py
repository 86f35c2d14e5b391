"""What pages read of routes: states, queues, gates, alarms, what comes in and what becomes of it, runs."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive.ledger.account import balance
from redrive.ledger.delivery import observations
from redrive.ledger.dialects import dialect_of
from redrive.ledger.engine import Ledger
from redrive.ledger.predicates import UNDECIDED_REVIEW, enqueued
from redrive_ui.group_templates import Mask, templates
from redrive_ui.recent import RECENT, all_recent, first_recent_slice, recent_batches
from redrive_ui.rows import Row, first_of, quoted, routes_in, rows_of

#: So many of the newest sends tell how long sends take; and which shares of them are told.
TIMED = 50_000
PERCENTS = (50, 95, 99)
_OPEN_STATES = ("classified", "waiting", "held", "sending", "unknown", "to_review", "escalated", "restoring",
                "restore_unknown", "expired")  # fmt: skip


def routes(connection: Connection) -> list[str]:
    """Routes that the ledger knows, also those that the configuration has forgotten."""
    return [row["route"] for row in rows_of(connection, "select route from route_state order by route")]


def states(connection: Connection, readable: Collection[str]) -> dict[str, dict[str, int]]:
    """Messages per route and state."""
    return balance.states_of(connection, readable)


def staged(connection: Connection, readable: Collection[str]) -> dict[str, int]:
    """Copies per route that were drained and wait to be classified: no message counts them yet."""
    where, values = routes_in(readable)
    rows = rows_of(
        connection,
        "select route, sum(copies) as n from staging_batches where loaded_at is null and state in ('recorded',"
        f" 'settled') and {where} group by route",
        **values,
    )
    return {row["route"]: int(row["n"]) for row in rows if row["n"]}


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
        observations.newest(where) + "select * from queue_observations"
        " where observation_id in (select observation_id from newest) order by role desc, queue",
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


def stopped_destinations(connection: Connection, readable: Collection[str]) -> dict[str, int]:
    """To how many destinations of each route nothing goes, or only a few, because messages kept coming back."""
    where, values = routes_in(readable)
    rows = rows_of(
        connection,
        f"select route, count(*) as n from breakers where {where} and destination is not null and stage <> 'open'"
        " group by route",
        **values,
    )
    return {row["route"]: row["n"] for row in rows}


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
    batches, cut = recent_batches(connection, readable, now)
    found: dict[str, dict[str, int]] = {}
    for row in all_recent(connection, readable, batches, "coalesce(cause, kind)"):
        per_day = found.setdefault(row["what"], {})
        day = batches[row["batch_id"]]
        per_day[day] = per_day.get(day, 0) + row["n"]
    return found, cut


def ages(connection: Connection, route: str, now: datetime) -> list[Row]:
    """Unfinished messages by how long ago they were first enqueued; of at most :data:`RECENT` of them."""
    bounds = [("under 1 h", 1), ("1 to 6 h", 6), ("6 to 24 h", 24), ("1 to 3 d", 72), ("3 to 7 d", 168)]
    cases = " ".join(f"when t >= :edge_{i}_at then {i}" for i in range(len(bounds)))
    values = {f"edge_{i}_at": now - timedelta(hours=hours) for i, (_, hours) in enumerate(bounds)}
    rows = rows_of(
        connection,
        f"select case {cases} else {len(bounds)} end as bucket, count(*) as n from (select coalesce({enqueued()},"
        f" dead_lettered_at, changed_at) as t from messages where route = :route and state in ({quoted(_OPEN_STATES)})"
        f" limit {RECENT}) as unfinished group by 1",
        route=route,
        **values,
    )
    counted = {row["bucket"]: row["n"] for row in rows}
    names = [*(name for name, _ in bounds), "over 7 d"]
    return [{"name": name, "n": counted.get(i, 0)} for i, name in enumerate(names)]


class Times(NamedTuple):
    """How long sends took from their first enqueue to a presumed or confirmed outcome."""

    sends: int
    within: dict[int, float]  # by percent, in seconds: so many of them took no longer
    within_slo: float | None  # a share of all


def times_to_outcome(connection: Connection, ledger: Ledger, route: str, slo: timedelta | None) -> Times | None:
    """Of the newest :data:`TIMED` sends of a route; None where no outcome is known. Percentiles by nearest rank."""
    seconds = ledger.dialect.seconds_between("enqueued_at", "outcome_at")
    rank = "(sends * {percent} + 99) / 100"
    columns = ", ".join(
        f"min(case when place >= {rank.format(percent=percent)} then seconds end) as within_{percent}"
        for percent in PERCENTS
    )
    row = first_of(
        connection,
        # Each message is looked up: joined, PostgreSQL would read all messages as soon as these are some thousands.
        f"with known as materialized (select outcome_at, (select {enqueued()} from messages where"
        " messages.message_id = redelivery_attempts.message_id) as enqueued_at from redelivery_attempts where"
        " slice_id >= :first and route = :route and outcome in ('presumed', 'confirmed'))"
        f" select max(sends) as sends, {columns}, sum(case when seconds <= :slo then 1 else 0 end) as in_time from"
        " (select seconds, row_number() over (order by seconds) as place, count(*) over () as sends from"
        f" (select {seconds} as seconds from known where enqueued_at is not null) as taken) as placed",
        first=first_recent_slice(connection, [route], TIMED),
        route=route,
        slo=slo.total_seconds() if slo else 0.0,
    )
    if row is None or not row["sends"]:
        return None
    within = {percent: row[f"within_{percent}"] for percent in PERCENTS}
    return Times(row["sends"], within, row["in_time"] / row["sends"] if slo else None)


def runs(connection: Connection, route: str, limit: int = 10) -> list[Row]:
    """The newest runs of a route."""
    return rows_of(
        connection, "select * from runs where route = :route order by started_at desc limit :n", route=route, n=limit
    )


def gates_of(connection: Connection, route: str, readable: Collection[str], mask: Mask) -> list[Row]:
    """Groups of a route whose gate is not open, those that hold something first."""
    rows = rows_of(
        connection,
        "select group_state.*, failure_groups.cause, coalesce(behind.held, 0) as held from group_state"
        " inner join failure_groups on failure_groups.group_id = group_state.group_id left join (select group_id,"
        " count(*) as held from messages where route = :route and state = 'held' group by group_id) behind"
        " on behind.group_id = group_state.group_id where group_state.route = :route and stage <> 'open'"
        " order by held desc, group_state.stage_at desc limit 100",
        route=route,
    )
    said = templates(connection, readable, mask, [(route, row["group_id"]) for row in rows])
    return [{**row, "template": said.get((route, row["group_id"]))} for row in rows]


def dag_run(run: Mapping[str, Any] | None) -> tuple[str, str] | None:
    """The DAG and DAG run of a row of ``runs``; None where Airflow did not run it."""
    if not run or not run.get("airflow_run_id"):
        return None
    if run["trigger"] == "review":  # several routes share that DAG run: its id is followed by the route
        return "redrive_review", str(run["airflow_run_id"]).removesuffix(f" {run['route']}")
    return f"redrive_{run['route']}", str(run["airflow_run_id"])
