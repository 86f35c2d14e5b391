"""Read-only views of the ledger for people and programs: status, review, the life of a message."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Self

from sqlalchemy.engine import Connection, RowMapping

from redrive.audit_actions import Action, decision_of
from redrive.ledger.account import balance
from redrive.ledger.delivery import breakers, expiry, gate_waits, observations, presuming
from redrive.ledger.drain.loading import SEARCHED
from redrive.ledger.engine import parse_instant, sql
from redrive.ledger.predicates import HERE, UNDECIDED_REVIEW, UNFINISHED, WATCHED
from redrive.ledger.review import applying
from redrive.ledger.selecting import Selection
from redrive.ledger.transactions import MACHINE
from redrive.lifecycle import FINISHED, State
from redrive.message import index_key
from redrive.redaction import MARGIN
from redrive.settings import MOST_SEARCHED

#: So much of a reason is told in a report.
REASON = 200


def status(connection: Connection, route: str, now: datetime) -> dict[str, Any]:
    """Where a route stands: its balance, gates, lease, pause, newest observations and last runs, as seen at ``now``."""
    state = _one(connection, "select * from route_state where route = :route", route=route)
    gates = breakers.of_groups(connection, route)
    waits = {(one.group_id, one.destination): one for one in gate_waits.waits(connection, route, now, gates)}
    return {
        "route": route,
        "paused": bool(state and state["paused_at"]),
        "paused_at": state["paused_at"] if state else None,
        "paused_by": state["paused_by"] if state else None,
        "pause_reason": state["pause_reason"] if state else None,
        "held_by": {"run_id": state["run_id"], "holder": state["holder"], "until": state["lease_until"]}
        if state and state["run_id"]
        else None,
        "balance": balance.of_route(connection, route),
        "to_decide": to_decide(connection, route),
        "decided": applying.left(connection, route).decisions,
        "gates": [
            {name: value for name, value in asdict(gate).items() if name not in _NOT_SHOWN}
            | _wait(waits.get((gate.group_id, None)))
            for gate in gates
            if gate.stage != "open" or gate.waiting or gate.held
        ],
        "destinations": [
            {name: value for name, value in asdict(one).items() if name not in ("outcomes", "held", "stage_id")}
            | _wait(waits.get((None, one.destination)))
            for one in breakers.of_destinations(connection, route)
            if one.stage != "open"
        ],
        "watching": _watching(connection, route),
        "expiry": [
            {"source": source, "oldest_at": known.oldest_at, "expires_at": known.at}
            for source, known in sorted(expiry.of_sources(connection, route).items())
            if known.at is not None
        ],
        "queues": _all(
            connection,
            observations.newest()
            + "select queue, role, visible, in_flight, delayed, consumers, oldest_age_seconds, oldest_age_method,"
            " observed_at from queue_observations where observation_id in (select observation_id from newest)"
            " order by role desc, queue",
            route=route,
        ),
        "stuck_consumers": _all(
            connection,
            "select queue, consumer, unacked, status, last_progress_at, observed_at from consumer_health"
            " where route = :route and status in ('stuck', 'isolated') order by queue, consumer",
            route=route,
        ),
        "next_due_at": _one(
            connection,
            "select min(next_attempt_at) as due from messages where route = :route and state = 'waiting'",
            route=route,
        )["due"],  # type: ignore[index]
        "last_runs": _all(
            connection,
            'select run_id, "trigger", status, started_at, finished_at, counts, configuration from runs'
            " where route = :route"
            " order by started_at desc limit 5",
            route=route,
        ),
    }


def not_configured(connection: Connection, configured: Collection[str]) -> dict[str, int]:
    """Routes of the ledger that are not ``configured``, and how many copies and messages of each no run does anything
    for: staged and not loaded, perhaps staged before, or not finished."""
    names = _all(connection, "select route from route_state order by route")
    found = {}
    for name in (row["route"] for row in names if row["route"] not in configured):
        places = balance.of_route(connection, name)
        if count := sum(places.get(place, 0) for place in ("staged", "suspected", *sorted(set(State) - FINISHED))):
            found[name] = count
    return found


def to_decide(connection: Connection, route: str, group_id: int | None = None) -> int:
    """How many questions of a route, or of one group there, wait for a person. No state of messages says it: of some it
    is decided already, and people are also asked about copies that may be no messages, and about what a restore may
    have put back."""
    group, values = "", dict[str, Any](route=route)
    if group_id is not None:
        group, values = " and group_id = :group_id", {"route": route, "group_id": group_id}
    row = connection.execute(
        sql(f"select count(*) as n from escalated_messages where {UNDECIDED_REVIEW} and route = :route{group}"), values
    ).one()
    return int(row.n)


#: What of a gate is not shown: the id of its stage, and what its ``waits_for`` tells in words.
_NOT_SHOWN = ("stage_id", "sending", "unknown", "next_due_at")


def _wait(one: gate_waits.GateWait | None) -> dict[str, Any]:
    return {"waits_for": one.waits_for if one else None, "until": one.until if one else None}


def _watching(connection: Connection, route: str) -> dict[str, Any]:
    """What the observation of past sends waits for: sends without an outcome that their destination has not worked past
    yet, those that it has and whose window is not over, since when, the source that holds everything up, and the
    destinations that tell no depth, so that nobody sees them work, and whether messages wait for those by their order
    key."""
    row = _one(
        connection,
        # Materialized, or each mention of awaited counts anew.
        "with watched as materialized (select observed_from, last_sent_at, (select count(*) from redelivery_attempts"
        " attempts where attempts.slice_id = slices.slice_id and attempts.sent_at is not null"
        " and attempts.outcome is null) as awaited from delivery_slices slices"
        f" where route = :route and {WATCHED})"
        " select coalesce(sum(case when observed_from is null then awaited end), 0) as not_worked_past,"
        " coalesce(sum(case when observed_from is not null then awaited end), 0) as in_window,"
        " min(case when observed_from is null then last_sent_at end) as oldest_send,"
        " min(observed_from) as worked_past_at from watched where awaited > 0",
        route=route,
    )
    assert row is not None  # noqa: S101 - an aggregate
    drained = _all(
        connection,
        "select source, drained_to from source_state where route = :route order by drained_to nulls first, source"
        " limit 1",
        route=route,
    )
    untold = [
        queue
        for queue in presuming.watched(connection, route)
        if row["not_worked_past"] and not observations.tells_depth(connection, route, queue)
    ]
    return {
        **row,
        "not_worked_past": int(row["not_worked_past"]),  # PostgreSQL's sums are decimals
        "in_window": int(row["in_window"]),
        "least_drained": drained[0] if drained else None,
        "untold": untold,
        "keeps_order": bool(untold) and _behind_sends(connection, route),
    }


def _behind_sends(connection: Connection, route: str) -> bool:
    """Whether messages wait for the outcome of an earlier one of their order key."""
    row = connection.execute(
        sql(
            "select 1 from messages where route = :route and state in ('waiting', 'held') and order_key is not null"
            " and exists (select 1 from messages earlier where earlier.route = messages.route"
            f" and earlier.order_key = messages.order_key and earlier.state in {UNFINISHED}"
            " and earlier.state = 'sent') limit 1"
        ),
        {"route": route},
    )
    return row.first() is not None


#: Of so many of the newest messages in each state it is told why they died.
_NEWEST = 10_000


def causes(connection: Connection, route: str, *, most: int = 3) -> dict[str, int]:
    """The commonest causes among the route's newest messages in each state but ``discarded``, commonest first."""
    found: dict[str, int] = {}
    for state in sorted(set(State) - {State.DISCARDED}):
        rows = connection.execute(
            sql(
                "select cause, count(*) as n from (select cause from messages where route = :route and state = :state"
                " order by message_id desc limit :newest) newest where cause is not null group by cause"
            ),
            {"route": route, "state": state, "newest": _NEWEST},
        )
        for row in rows:
            found[row.cause] = found.get(row.cause, 0) + row.n
    return dict(sorted(found.items(), key=lambda one: (-one[1], one[0]))[:most])


def reasons(connection: Connection, route: str, *, since: datetime, most: int = 3) -> dict[str, int]:
    """Why people were asked since then: the beginnings of the commonest reasons, those that begin alike as one, and of
    how many messages. Each is as long as its first :data:`REASON` characters need to be masked."""
    rows = connection.execute(
        sql(
            f"select min(substr(reason, 1, {REASON + MARGIN})) as reason, count(*) as n from escalated_messages"
            f" where route = :route and escalated_at >= :since_at group by substr(reason, 1, {REASON})"
            " order by count(*) desc, 1 limit :most"
        ),
        {"route": route, "since_at": since, "most": most},
    )
    return {row.reason: row.n for row in rows}


def without_origin(connection: Connection, route: str, source: str) -> tuple[int, int]:
    """Of the newest messages of a source how many were looked at, and of how many nobody knows where they failed."""
    row = connection.execute(
        sql(
            "select count(*) as n, coalesce(sum(case when origin is null then 1 else 0 end), 0) as lacking from (select"
            " origin from messages where route = :route and source = :source and kind = 'dead_letter'"
            " order by message_id desc limit :newest) newest"
        ),
        {"route": route, "source": source, "newest": _NEWEST},
    ).one()
    return int(row.n), int(row.lacking)


class ToDo(NamedTuple):
    """What runs have still to do on a route."""

    messages: int  # that a run will move, or whose outcome is awaited
    words: str  # where they are
    next_at: datetime | None  # when a run has something to do, as far as it is known; None: at once, or not known
    stuck: list[str]  # what only a person can end


#: What runs of a selection leave alone where it is not selected. All else they see to as every run does.
SELECTED = (State.CLASSIFIED, State.HELD, State.UNKNOWN, State.WAITING)


class Chosen(NamedTuple):
    """How many messages of one state and group a selection takes, and when the first of them is due."""

    messages: int
    due: datetime | None

    def and_also(self, other: Self) -> "Chosen":
        """Both together."""
        return Chosen(
            self.messages + other.messages,
            min((at for at in (self.due, other.due) if at is not None), default=None),
        )


def chosen(connection: Connection, route: str, selection: Selection) -> dict[tuple[str, int | None], Chosen]:
    """What a selection takes of the messages that are :data:`SELECTED`, by state and group. Of one by attributes the
    ids have to be staged (:func:`~redrive.ledger.selecting.stage_selection`)."""
    where, values = selection.where()
    rows = connection.execute(
        sql(
            "select state, group_id, count(*) as n, min(next_attempt_at) as due from messages where route = :route"
            f" and state in ({', '.join(repr(state.value) for state in SELECTED)}) and {where} group by state, group_id"
        ),
        {"route": route, **values},
    )
    return {(row.state, row.group_id): Chosen(int(row.n), parse_instant(row.due)) for row in rows}


def to_do(
    connection: Connection,
    route: str,
    now: datetime,
    of: Mapping[tuple[str, int | None], Chosen] | None = None,
) -> ToDo:
    """What is left for runs: nothing that waits for people, and nothing behind a gate that only a person can move.
    ``of``: for runs of what was :func:`chosen`; None for those of everything."""
    places = {"staged": balance.staged(connection, route), **balance.states_of(connection, [route]).get(route, {})}
    if of is not None:
        places |= {state: sum(one.messages for (its, _), one in of.items() if its == state) for state in SELECTED}
    found = {place: places[place] for place in _MOVED_BY_RUNS if places.get(place)}
    awaited = _watching(connection, route)
    unseen = _unseen(connection, route, awaited["untold"], now - LONGEST_LOOK)
    if watched := awaited["not_worked_past"] + awaited["in_window"] - sum(unseen.values()):
        found["sent"] = watched
    gates = breakers.of_groups(connection, route)
    waits = gate_waits.waits(connection, route, now, gates)
    if of is not None:
        groups = {group for _, group in of}
        waits = [one for one in waits if one.destination is not None or one.group_id in groups]
    stuck = [one for one in waits if one.stuck or one.stage == "failed"]
    behind = {one.group_id for one in stuck}
    if of is None:
        out_of_reach = sum(gate.held for gate in gates if gate.group_id in behind)
    else:
        out_of_reach = sum(one.messages for (its, group), one in of.items() if its == State.HELD and group in behind)
    if out_of_reach:
        found["held"] = found.get("held", 0) - out_of_reach
    if of is None:
        row = _one(
            connection,
            "select min(next_attempt_at) as due from messages where route = :route and state = 'waiting'",
            route=route,
        )
        due = [parse_instant(row["due"]) if row else None]
    else:
        due = [one.due for (its, _), one in of.items() if its == State.WAITING]
    times = [*due, *(one.until for one in waits)]
    return ToDo(
        sum(found.values()),
        ", ".join(f"{n:,} {place.replace('_', ' ')}" for place, n in found.items() if n > 0),
        min((at for at in times if at is not None), default=None),
        [f"group {one.group_id} waits for {one.waits_for}" for one in stuck]
        + [f"{n:,} {said}" for said, n in unseen.items()],
    )


#: What was sent so long ago where nobody tells a depth has come back by now, or nobody sees what became of it.
LONGEST_LOOK = timedelta(hours=1)
#: Sends without an outcome, of slices that are watched and match ``{which}``.
_AWAITED = (
    "select count(*) from redelivery_attempts where sent_at is not null and outcome is null and slice_id in (select"
    f" slice_id from delivery_slices where route = :route and {WATCHED} and observed_from is null and {{which}})"
)


def _unseen(connection: Connection, route: str, untold: Collection[str], sent_before: datetime) -> dict[str, int]:
    """How many sends no run will see worked past, with what can be done about them: those before that moment to one of
    the ``untold`` destinations, and those by a broker on which the route's queues are not any more."""
    found = {}
    for queue in untold:
        which = f"system = {HERE} and destination = :queue and last_sent_at <= :sent_before_at"
        values = {"route": route, "queue": queue, "sent_before_at": sent_before}
        said = (
            f"sends to {queue} have no outcome, and nobody sees it work past them: a return or a processed"
            f" check says so, or a person: redrive release {route} --destination {queue}"
        )
        found[said] = connection.execute(sql(_AWAITED.format(which=which)), values).scalar_one()
    said = "sends have no outcome and went by another broker or connection: point the route there for a few runs"
    found[said] = connection.execute(sql(_AWAITED.format(which=f"system <> {HERE}")), {"route": route}).scalar_one()
    return {said: int(n) for said, n in found.items() if n}


_MOVED_BY_RUNS = ("staged", "classified", "waiting", "held", "sending", "unknown", "to_review", "expired")


def review_groups(connection: Connection, route: str | None) -> list[dict[str, Any]]:
    """``review_groups``, largest first."""
    where = " where route = :route" if route else ""
    return _all(
        connection,
        f"select * from review_groups{where} order by open_messages desc, oldest nulls first, group_id",
        **({"route": route} if route else {}),
    )


def escalations(connection: Connection, message_id: int) -> list[dict[str, Any]]:
    """Every escalation of a message, newest first."""
    return _all(
        connection,
        "select * from escalated_messages where message_id = :id order by escalation_id desc",
        id=message_id,
    )


def trace(
    connection: Connection, word: str, limit: int = 20, *, shows: Callable[[str, str, str], bool] = lambda *_: True
) -> list[dict[str, Any]]:
    """The lives of the messages that ``word`` names: a redrive id, message id or broker id, else a business key, else
    the whole value of a field that the route's ``search`` names, in large or small letters. The ``limit`` oldest.

    ``shows`` says of a route, a field and its value whether people may see it: by what is masked nothing is found.
    """
    number = int(word) if word.isascii() and word.isdigit() and len(word) < 19 else -1
    ids = [
        row["message_id"]
        for row in _all(
            connection,
            "select message_id from messages where redrive_id = :word"
            " or (broker_message_id in (:word, :key) and broker_message_id <> '')"
            " or message_id = :number union select message_id from repeat_copies"
            # A message that is past its retention may have copies that are not.
            " where broker_message_id in (:word, :key) and exists (select 1 from messages first"
            " where first.message_id = repeat_copies.message_id) union"
            " select message_id from redelivery_attempts where broker_message_id in (:word, :key)"
            " order by message_id limit :limit",
            word=word,
            key=index_key(word),
            number=number,
            limit=limit,
        )
    ] or [
        row["message_id"]
        for row in _all(
            connection,
            "select message_id from messages where message_key in (:word, :key) order by message_id limit :limit",
            word=word,
            key=index_key(word),
            limit=limit,
        )
    ]
    ids = ids or _with_field(connection, word, limit, shows)
    return [_life(connection, message_id) for message_id in ids]


def _with_field(connection: Connection, word: str, limit: int, shows: Callable[[str, str, str], bool]) -> list[int]:
    rows = _all(
        connection,
        "select message_fields.message_id, route, field, value from message_fields inner join messages"
        " on messages.message_id = message_fields.message_id where value = :value"
        " order by message_fields.message_id limit :limit",
        value=word.lower()[:SEARCHED],  # as the load keeps it
        limit=limit * MOST_SEARCHED,  # a message may have the value in each of its fields
    )
    found = dict.fromkeys(row["message_id"] for row in rows if shows(row["route"], row["field"], row["value"]))
    return list(found)[:limit]


def forgotten(connection: Connection, word: str, limit: int = 20) -> list[dict[str, Any]]:
    """Of the broker id ``word`` the copies whose message is past its retention: all that is still known."""
    return _all(
        connection,
        "select copy_id, message_id, route, kind, source, seen_at from repeat_copies"
        " where broker_message_id in (:word, :key) and message_id is not null and not exists (select 1 from messages"
        " where messages.message_id = repeat_copies.message_id) order by copy_id limit :limit",
        word=word,
        key=index_key(word),
        limit=limit,
    )


def _life(connection: Connection, message_id: int) -> dict[str, Any]:
    message = _one(connection, "select * from messages where message_id = :id", id=message_id)
    assert message is not None  # noqa: S101 - its id was just found
    attempts = _all(
        connection, "select * from redelivery_attempts where message_id = :id order by attempt", id=message_id
    )
    copies = _all(connection, "select * from repeat_copies where message_id = :id order by copy_id", id=message_id)
    reviews = _all(
        connection,
        "select escalation_id, status, decision, decided_by, decided_at, escalated_at, applied_at, reason, refusal,"
        " note from escalated_messages where message_id = :id order by escalation_id",
        id=message_id,
    )
    told = _all(
        connection,
        "select at, actor, action, reason from audit_events where message_id = :id order by event_id",
        id=message_id,
    )
    batch = _one(connection, "select * from staging_batches where batch_id = :id", id=message_id >> 20)
    events: list[tuple[Any, str]] = [
        (message["first_enqueued_at"], "first enqueued"),
        (message["received_at"] if not copies else None, "drained"),
    ]
    if batch:
        events.append((batch["recorded_at"], f"staged in batch {batch['batch_id']} from {batch['source']}"))
        events.append((batch["loaded_at"], "loaded into the ledger"))
    for one in attempts:
        what = f"attempt {one['attempt']} ({one['mode']}) to {one['destination']}"
        events += [
            (one["claimed_at"], f"{what}: claimed"),
            (one["sent_at"], f"{what}: sent{f' as {its_id}' if (its_id := one['broker_message_id']) else ''}"),
            (one["due_at"], f"{what}: the broker lets go of it"),
            (one["unknown_at"], f"{what}: lost sight of it between send and confirmation"),
            (one["outcome_at"], f"{what}: {one['outcome']}"),
        ]
    events += [(one["seen_at"], f"{one['kind']} copy from {one['source']}") for one in copies]
    for one in reviews:
        events += [
            (one["escalated_at"], f"escalated: {one['reason']}"),
            (one["applied_at"], f"decision applied: {one['decision']}"),
        ]
        # A decision has its own event where a person made it, none where it was a standing one.
        if (one["decided_by"], f"decide_{one['decision']}") not in {
            (event["actor"], event["action"]) for event in told
        }:
            events.append((one["decided_at"], f"decided by {one['decided_by']}: {one['decision']}"))
    events += [(one["at"], _told(one)) for one in told]
    timeline = sorted(((str(at), what) for at, what in events if at is not None), key=lambda event: event[0])
    group = _one(
        connection, "select cause, template from failure_groups where group_id = :id", id=message["group_id"] or 0
    )
    return {
        "message": {k: v for k, v in message.items() if k != "body_hash"},
        "group": dict(group) if group else None,
        "timeline": [{"at": at, "what": what} for at, what in timeline],
    }


def _told(event: dict[str, Any]) -> str:
    """An event of the audit trail that names the message, as a line of its life."""
    actor, action = event["actor"], event["action"]
    about = decision_of(action)
    if about is not None and about[0] == "decide":
        what = f"decided by {actor}: {about[1]}"
    elif actor == MACHINE:
        what = action.replace("_", " ")
    else:
        what = f"{_CARRIED_OUT.get(action) or action.replace('_', ' ')} ({actor})"
    return f"{what}: {event['reason']}" if event["reason"] else what


_CARRIED_OUT: dict[str, str] = {
    Action.APPLY_REDELIVER: "released for delivery",
    Action.APPLY_EDIT: "released for delivery with another body",
    Action.APPLY_DISCARD: "discarded",
    Action.APPLY_NOT_THERE: "found not to be in its queue",
}


def _all(connection: Connection, statement: str, **values: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(sql(statement), values).mappings()]


def _one(connection: Connection, statement: str, **values: Any) -> RowMapping | None:
    return connection.execute(sql(statement), values).mappings().first()
