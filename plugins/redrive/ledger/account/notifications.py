"""Notifications in the ledger: which conditions of a route people have to know of, and who was told.

A condition (a route is paused, a group waits for a decision) is raised once when it begins and resolved when it is
over; should it begin again, that is a new notification. Rows are written after the change that they tell of, from what
the ledger says, so a crash in between loses none: whoever looks next finds the same. Each target is claimed before it
is told and marked afterwards: a crash in between tells it twice, and the event's id is the same then.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive.ledger.delivery import consumers, observations
from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.predicates import enqueued, out_of_sight
from redrive.ledger.review import applying
from redrive.ledger.schema import ledger_id
from redrive.lifecycle import FINISHED, UNDECIDED, State

#: What was not sent for so long is no news any more.
GIVE_UP = timedelta(days=1)
_LONGEST_WAIT = timedelta(hours=1)
_LONG_AGO = datetime(1970, 1, 2, tzinfo=UTC)

Facts = Mapping[str, Any]


class Pending(NamedTuple):
    """A target that is to be told of a notification."""

    notification_id: int
    event_id: str
    event: str
    subject: str
    facts: dict[str, Any]
    raised_at: datetime
    target: str
    tries: int
    resolved_at: datetime | None = None


def reconcile(
    ledger: Ledger,
    route: str,
    event: str,
    present: Mapping[str, Facts],
    *,
    targets: Iterable[str],
    now: datetime,
    of: Iterable[str] | None = None,
    once: bool = False,
) -> int:
    """Raise what is ``present`` (subject -> facts) and not raised yet, resolve what is raised and not present.

    ``of`` limits what is resolved to these subjects. With ``once`` the subjects are witnesses of one event: what begins
    while another one is raised is recorded, and nobody is told. Returns how many were raised. Where nothing changed it
    writes nothing.
    """
    with ledger.read() as connection:
        raised = _unresolved(connection, route, event)
    over = (raised if of is None else raised & set(of)) - set(present)
    begun = [subject for subject in present if subject not in raised]
    if not over and not begun:
        return 0
    told = [] if once and raised - over else list(targets)
    count = 0
    with ledger.write() as connection:
        for subject in sorted(over):
            connection.execute(
                sql(
                    "update notifications set resolved_at = :now where route = :route and event = :event"
                    " and subject = :subject and resolved_at is null"
                ),
                {"now": now, "route": route, "event": event, "subject": subject},
            )
        for subject in begun:
            made = connection.execute(
                sql(
                    "insert into notifications (route, event, subject, facts, raised_at)"
                    " values (:route, :event, :subject, :facts, :now)"
                    " on conflict (route, event, subject) where resolved_at is null do nothing"
                    " returning notification_id"
                ),
                {
                    "route": route,
                    "event": event,
                    "subject": subject,
                    "facts": json.dumps(present[subject], default=str, sort_keys=True),
                    "now": now,
                },
            ).scalar()
            if made is None:
                continue  # another process was first
            count += 1
            for target in told:
                connection.execute(
                    sql(
                        "insert into notification_sends (notification_id, target, next_try_at)"
                        " values (:id, :target, :now)"
                    ),
                    {"id": made, "target": target, "now": now},
                )
    return count


def _unresolved(connection: Connection, route: str, event: str) -> set[str]:
    rows = connection.execute(
        sql("select subject from notifications where route = :route and event = :event and resolved_at is null"),
        {"route": route, "event": event},
    )
    return {row.subject for row in rows}


def is_raised(connection: Connection, route: str, event: str) -> bool:
    """Whether anything of this event is raised on the route, and not over."""
    return bool(_unresolved(connection, route, event))


# --- conditions ---------------------------------------------------------------------------------------------------


def groups(connection: Connection, route: str) -> dict[str, Facts]:
    """The groups of which messages wait for a decision."""
    # Status by status: what waits is found by that, among all that was ever decided.
    suggested = (
        # none where one word is not right for all: as review_groups says it
        "(select case when min(asked.suggested_decision) = max(asked.suggested_decision)"
        " then max(asked.suggested_decision) else '' end from escalated_messages asked"
        " where asked.route = :route and asked.status = '{status}' and asked.group_id {same})"
    )
    waiting = " union all ".join(
        f"select group_id, n, case when group_id is null then {suggested.format(status=status, same='is null')}"
        f" else {suggested.format(status=status, same='= counted.group_id')} end as suggested from ("
        f"select group_id, count(*) as n from escalated_messages where route = :route and status = '{status}'"
        " group by group_id) counted"
        for status in UNDECIDED
    )
    rows = connection.execute(
        sql(
            "select waiting.group_id, sum(waiting.n) as n, case when min(waiting.suggested) = max(waiting.suggested)"
            " then max(waiting.suggested) end as suggested, failure_groups.cause"
            f" from ({waiting}) waiting left join failure_groups on failure_groups.group_id = waiting.group_id"
            " group by waiting.group_id, failure_groups.cause"
        ),
        {"route": route},
    )
    return {
        "" if row.group_id is None else str(row.group_id): {
            "group_id": row.group_id,
            "cause": row.cause or "no cause",
            "messages": int(row.n),
            "suggested_decision": row.suggested or "none",
        }
        for row in rows
    }


def not_approved(connection: Connection, route: str) -> dict[str, Facts]:
    """The groups about which one person has decided, on a route that asks for two: the second has to hear of it too."""
    return {
        f"{one.group_id or ''} to approve".strip(): {
            "group_id": one.group_id,
            "cause": one.cause or "no cause",
            "messages": one.decisions,
            "decision": one.decision or "several",
            "decided_by": one.decided_by or "several people",
        }
        for one in applying.not_approved(connection, route)
    }


def pause(connection: Connection, route: str) -> dict[str, Facts]:
    """The route's pause, by when it began."""
    row = connection.execute(
        sql("select paused_at, paused_by, pause_reason from route_state where route = :route"), {"route": route}
    ).first()
    if row is None or row.paused_at is None:
        return {}
    since = parse_instant(row.paused_at)
    assert since is not None  # noqa: S101 - it was not null
    return {since.isoformat(): {"by": row.paused_by, "reason": row.pause_reason or "no reason given"}}


def late(connection: Connection, route: str, *, enqueued_before: datetime) -> tuple[int, datetime | None]:
    """How many messages without an outcome were first enqueued before that moment, and when the first of them was. What
    was sent and nobody will see any more is none: there is nothing to wait for."""
    open_states = ", ".join(f"'{state}'" for state in sorted(set(State) - FINISHED))
    row = connection.execute(
        sql(
            f"select count(*) as n, min(coalesce({enqueued()}, received_at)) as oldest from messages"
            f" where route = :route and state in ({open_states})"
            f" and coalesce({enqueued()}, received_at) < :enqueued_at and not {out_of_sight()}"
        ),
        {"route": route, "enqueued_at": enqueued_before},
    ).one()
    return int(row.n), parse_instant(row.oldest)


def _looked_at_since(connection: Connection, route: str) -> datetime:
    """A queue at which nobody looked since then is none of the route's any more: its runs looked at others since. One
    that could not be looked at for a while is."""
    newest = connection.execute(
        sql(
            observations.newest() + "select max(observed_at) from queue_observations"
            " where observation_id in (select observation_id from newest)"
        ),
        {"route": route},
    ).scalar()
    return (parse_instant(newest) or _LONG_AGO) - GIVE_UP


#: SQL behind :func:`~redrive.ledger.delivery.observations.newest`: of each of those queues the first look, by anybody,
#: of those since ``:since_at``. Earlier ones are as many as there ever were, and none need be asked. The index tells it
#: by the broker, of which a queue has had hardly more than one: they are gone through as the queues are.
_FIRST_LOOKS = """
, systems (queue, system) as (
    select queue, (select min(system) from queue_observations seen where seen.queue = queues.queue)
    from queues where queue is not null
    union all
    select queue, (
        select min(system) from queue_observations seen
        where seen.queue = systems.queue and seen.system > systems.system
    )
    from systems where system is not null
),

first_looks (queue, observation_id) as (
    select queue, min(observation_id) from (
        select queue, (
            select observation_id from queue_observations seen
            where seen.queue = systems.queue and seen.system = systems.system and seen.observed_at > :since_at
            order by seen.observed_at limit 1
        ) as observation_id
        from systems
    ) each_system
    group by queue
)

"""


def aged(connection: Connection, route: str, *, seconds: float) -> dict[str, Facts]:
    """The destinations that the route still looks at whose oldest message was older than that when last seen: by the
    newest look that knew an age, or found nothing. Others say nothing of it, as where looks are rationed."""
    rows = connection.execute(
        sql(
            observations.newest()
            + _FIRST_LOOKS
            + "select told.queue, told.visible + told.in_flight + told.delayed as depth, told.oldest_enqueued_at from"
            " (select (select max(observation_id) from queue_observations seen where seen.route = last.route"
            " and seen.queue = last.queue and seen.observation_id >= (select observation_id from first_looks"
            " where first_looks.queue = last.queue) and seen.role = 'destination'"
            " and (seen.oldest_age_method <> 'unknown' or seen.visible + seen.in_flight + seen.delayed = 0))"
            " as observation_id from queue_observations last"
            " where last.observation_id in (select observation_id from newest) and last.role = 'destination'"
            " and last.observed_at > :since_at) knew"
            " inner join queue_observations told on told.observation_id = knew.observation_id"
            " where told.oldest_age_seconds > :seconds and told.observed_at > :since_at"
        ),
        {"route": route, "seconds": seconds, "since_at": _looked_at_since(connection, route)},
    )
    return {
        row.queue: {"queue": row.queue, "messages": row.depth, "oldest": parse_instant(row.oldest_enqueued_at)}
        for row in rows
    }


def deep(connection: Connection, route: str, *, most: int) -> dict[str, Facts]:
    """The queues that the route still looks at that held more messages than that when last seen; parts that nobody
    knows count as none."""
    known = "coalesce(visible, 0) + coalesce(in_flight, 0) + coalesce(delayed, 0)"
    rows = connection.execute(
        sql(
            observations.newest() + f"select queue, {known} as depth, observed_at from queue_observations"
            f" where observation_id in (select observation_id from newest) and {known} > :most"
            " and observed_at > :since_at"
        ),
        {"route": route, "most": most, "since_at": _looked_at_since(connection, route)},
    )
    return {
        f"depth of {row.queue}": {
            "queue": row.queue,
            "depth": row.depth,
            "most": most,
            "seen": parse_instant(row.observed_at),
        }
        for row in rows
    }


def stuck(connection: Connection, route: str, *, now: datetime) -> dict[str, Facts]:
    """The destinations of which consumers hold messages and get nowhere, where that was seen within
    :data:`~redrive.ledger.delivery.consumers.RECENT`: of one that nobody looks at any more nothing is known."""
    rows = connection.execute(
        sql(
            "select queue, count(*) as n, sum(case when status = 'isolated' then 1 else 0 end) as isolated,"
            " sum(unacked) as held, min(last_progress_at) as since, min(consumer) as first from consumer_health"
            " where route = :route and status in ('stuck', 'isolated') and observed_at > :since_at group by queue"
        ),
        {"route": route, "since_at": now - consumers.RECENT},
    )
    return {
        row.queue: {
            "queue": row.queue,
            "consumers": row.n,
            "isolated": row.isolated,
            "held": row.held,
            "since": parse_instant(row.since),
            "first": row.first,
        }
        for row in rows
    }


# --- who is told --------------------------------------------------------------------------------------------------


def due(connection: Connection, route: str, now: datetime, limit: int = 500) -> list[Pending]:
    """What is to be told now, oldest first; at most ``limit`` to each target, so that one which can't be told keeps no
    other from it."""
    rows = connection.execute(
        sql(
            "select notification_id, event, subject, facts, raised_at, target, tries, resolved_at from ("
            "select n.notification_id, event, subject, facts, raised_at, target, tries, resolved_at,"
            " row_number() over (partition by target order by n.notification_id) as place"
            " from notification_sends s"
            " inner join notifications n on n.notification_id = s.notification_id"
            " where n.route = :route and next_try_at <= :now) of_target"
            " where place <= :limit order by notification_id, target"
        ),
        {"route": route, "now": now, "limit": limit},
    ).all()
    if not rows:
        return []
    prefix = ledger_id(connection)
    return [
        Pending(
            row.notification_id,
            f"{prefix}-{row.notification_id}",
            row.event,
            row.subject,
            json.loads(row.facts),
            parse_instant(row.raised_at) or now,
            row.target,
            row.tries,
            parse_instant(row.resolved_at),
        )
        for row in rows
    ]


def claim(ledger: Ledger, pending: Sequence[Pending], now: datetime) -> list[Pending]:
    """Those of ``pending`` that nobody else took meanwhile; the next try is due when this one should be over."""
    mine = []
    with ledger.write() as connection:
        for one in pending:
            wait = min(timedelta(minutes=2) * 2 ** min(one.tries, 10), _LONGEST_WAIT)
            taken = connection.execute(
                sql(
                    "update notification_sends set tries = tries + 1, next_try_at = :next_at"
                    " where notification_id = :id and target = :target and tries = :tries and next_try_at <= :now"
                ),
                {
                    "next_at": now + wait,
                    "id": one.notification_id,
                    "target": one.target,
                    "tries": one.tries,
                    "now": now,
                },
            ).rowcount
            if taken:
                mine.append(one)
    return mine


def sent(ledger: Ledger, pending: Sequence[Pending], now: datetime) -> None:
    """They were told."""
    with ledger.write() as connection:
        for one in pending:
            connection.execute(
                sql(
                    "update notification_sends set sent_at = :now, next_try_at = null, problem = null"
                    " where notification_id = :id and target = :target"
                ),
                {"now": now, "id": one.notification_id, "target": one.target},
            )


def failed(ledger: Ledger, pending: Sequence[Pending], problem: str, now: datetime, *, for_good: bool = False) -> None:
    """They could not be told; it is tried again until it is no news any more, or not at all ``for_good``."""
    with ledger.write() as connection:
        for one in pending:
            over = for_good or _is_old(one, now)
            connection.execute(
                sql(
                    f"update notification_sends set problem = :problem{', next_try_at = null' if over else ''}"
                    " where notification_id = :id and target = :target"
                ),
                {"problem": problem[:500], "id": one.notification_id, "target": one.target},
            )


def needs_airflow(ledger: Ledger, pending: Sequence[Pending], now: datetime) -> None:
    """They can be told only from elsewhere: as if nobody had tried, until they are no news any more."""
    if old := [one for one in pending if _is_old(one, now)]:
        failed(ledger, old, "no task of Airflow came by, which alone can tell it", now)
    with ledger.write() as connection:
        for one in pending:
            if not _is_old(one, now):
                connection.execute(
                    sql(
                        "update notification_sends set tries = :tries, next_try_at = :now"
                        " where notification_id = :id and target = :target"
                    ),
                    {"tries": one.tries, "now": now, "id": one.notification_id, "target": one.target},
                )


def _is_old(one: Pending, now: datetime) -> bool:
    """Whether it is no news any more."""
    return now - one.raised_at >= GIVE_UP
