"""What the audit sees beyond sums: what waits for too long, and traces of mistakes that no sum shows.

Each finding says what it means and what to do. One statement each, in sets; nothing here changes anything.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy.engine import Connection

from redrive.ledger.account import balance, inspecting
from redrive.ledger.account.balance import Problem
from redrive.ledger.delivery import gate_waits
from redrive.ledger.engine import Ledger, parse_instant, sql

#: Runs that ended since a batch was staged; the first of them should have loaded it.
LATE_RUNS = 3
#: A delivery may be on its way to end by itself for so long after its deadline, or so long after its lease.
LATE_SLICE = timedelta(hours=1)
#: So long after an unknown send somebody should have decided, or a resend have happened; after any other, what became
#: of it should be known.
LATE_UNKNOWN = timedelta(days=1)
LATE_OUTCOME = timedelta(days=3)
#: No observation window should be longer.
LATE_WINDOW = timedelta(days=14)
#: A route that no run was begun of for so long is run by nobody.
LATE_RUN = timedelta(days=1)
#: Sends that are looked at for ids that the broker has given twice: the audit runs much more often than that.
RECENT = timedelta(days=2)


class _Check(NamedTuple):
    """``statement`` selects route, n and an example; the text is said of them."""

    statement: str
    text: str


def findings(
    ledger: Ledger, connection: Connection, route: str | None, now: datetime, *, own_ids: Sequence[str] = ()
) -> Iterator[Problem]:
    """Everything that is found, of a route or of all; ``own_ids``: the brokers that give each send an id of its own."""
    systems = {f"own_ids_{number}": f"{broker}:%" for number, broker in enumerate(own_ids)}
    with_own_ids = " or ".join(f"s.system like :{name}" for name in systems) or "1 = 0"
    values = {
        "now": now,
        "late_slice_at": now - LATE_SLICE,
        "late_unknown_at": now - LATE_UNKNOWN,
        "late_outcome_at": now - LATE_OUTCOME,
        "late_window_at": now - LATE_WINDOW,
        "resolved": '%"resolve": {%',
        "recent_at": now - RECENT,
        "late_runs": LATE_RUNS,
        "route": route,
        **systems,
    }
    for check in _checks(ledger):
        statement = check.statement.replace("/*route*/", "and s.route = :route" if route else "")
        statement = statement.replace("/*with own ids*/", f"and ({with_own_ids})")
        used = {name: value for name, value in values.items() if f":{name}" in statement}
        for row in connection.execute(sql(statement), used):
            if row.n:
                yield Problem(
                    f"route {row.route}: " + check.text.format(n=row.n, example=row.example, route=row.route), row.route
                )
    yield from _stuck(connection, route, now)


def of_routes_not_configured(connection: Connection, configured: Collection[str], now: datetime) -> Iterator[Problem]:
    """Routes that the configuration does not name any more, with something unfinished; not those that another
    configuration runs."""
    for route, count in inspecting.not_configured(connection, configured).items():
        began = connection.execute(
            sql("select max(started_at) from runs where route = :route"), {"route": route}
        ).scalar()
        last = parse_instant(began)
        if last is None or last < now - LATE_RUN:
            yield Problem(f"route {route}: {balance.why_not_configured(route, count)}", route)


def _stuck(connection: Connection, route: str | None, now: datetime) -> Iterator[Problem]:
    routes = [route] if route else connection.execute(sql("select route from route_state order by route")).scalars()
    for one in list(routes):
        for gate in gate_waits.waits(connection, one, now):
            if gate.stuck:
                who = gate.destination or f"group {gate.group_id}"
                yield Problem(
                    f"route {one}: the gate of {who} can't move by itself ({gate.stage}): it waits for"
                    f" {gate.waits_for}",
                    one,
                )


def _checks(ledger: Ledger) -> list[_Check]:
    told_late = ledger.dialect.later("s.last_sent_at", "q.lag_seconds")
    return [
        _Check(
            "select s.route, count(*) as n, min(s.batch_id) as example from staging_batches s"
            " where s.state in ('recorded', 'settled') and s.loaded_at is null /*route*/"
            " and (select count(*) from runs r where r.route = s.route and r.started_at > s.recorded_at"
            " and r.finished_at is not null"
            " and r.\"trigger\" not in ('review', 'restore', 'adopt', 'forget-batch')) >= :late_runs"
            " group by s.route",
            "{n} batches were staged and are not loaded although three runs ended since: their messages wait in staging"
            " and nobody looks at them. Mend what keeps the classification or the load from them (the runs' logs say"
            " it, and a damaged file is named above), then `redrive classify {route}`. The first is batch {example}",
        ),
        _Check(
            "select s.route, count(*) as n, min(a.message_id) as example from delivery_slices s"
            " inner join redelivery_attempts a on a.slice_id = s.slice_id inner join messages m"
            " on m.message_id = a.message_id and m.attempts = a.attempt and m.state = 'sending'"
            " inner join route_state r on r.route = s.route where s.closed_at is null"
            " and s.deadline_at < :late_slice_at and coalesce(r.lease_until, s.deadline_at) < :late_slice_at /*route*/"
            " group by s.route",
            "{n} messages are in sending although their delivery is over: its process died, and no run came since to"
            " tell what certainly was not sent from what may have been. `redrive run {route}` does. One is message"
            " {example}",
        ),
        _Check(
            "select s.route, count(*) as n, min(s.message_id) as example from messages s inner join redelivery_attempts"
            " a on a.message_id = s.message_id and a.attempt = s.attempts inner join delivery_slices d"
            " on d.slice_id = a.slice_id where s.state = 'sent' and coalesce(a.due_at, a.sent_at) < :late_outcome_at"
            " and coalesce(d.window_ends_at, :late_outcome_at) < :now"
            # Where nobody will see it any more, the message says why, and waiting or draining would not help.
            " and (d.observed_at is null or a.outcome is not null) /*route*/ group by s.route",
            "{n} messages were sent more than three days ago, and nobody knows what became of them: their destination"
            " is not worked off, or a source is never drained to its end. `redrive status {route}` says"
            " what is watched and"
            " which source is behind. One is message {example}",
        ),
        _Check(
            "select s.route, count(*) as n, min(s.message_id) as example from messages s inner join redelivery_attempts"
            " a on a.message_id = s.message_id and a.attempt = s.attempts where s.state = 'unknown'"
            " and a.sent_at is not null /*route*/ group by s.route",
            "{n} messages count as unknown although it is written down that the broker confirmed their last send: they"
            " would be sent once more. That is a mistake of Redrive's; please report it. `redrive pause {route}` keeps"
            " them until it is mended. One is message {example}",
        ),
        _Check(
            "select s.route, count(*) as n, min(s.message_id) as example from messages s inner join redelivery_attempts"
            " a on a.message_id = s.message_id and a.attempt = s.attempts left join (select route from runs"
            " where started_at > :late_unknown_at and status = 'succeeded' and counts like :resolved"
            " group by route) done on done.route = s.route"
            # While runs go well, what is unknown waits out its observation window, which may be days.
            " where s.state = 'unknown' and coalesce(a.due_at, a.unknown_at)"
            " < case when done.route is null then :late_unknown_at else :late_window_at end"
            " /*route*/ group by s.route",
            "{n} sends are unknown for more than a day, and neither was one repeated nor a person asked: no run of"
            " the route delivers and escalates. See whether it is paused, and whether its runs end:"
            " `redrive status {route}`. One is message {example}",
        ),
        _Check(
            "select s.route, count(*) as n, min(s.message_id) as example from messages s"
            " where s.state in ('to_review', 'expired') and s.changed_at < :late_unknown_at /*route*/ group by s.route",
            "{n} messages are to be reviewed for more than a day, and nobody is asked: no run of the route escalates."
            " See whether it is paused, and whether its runs end: `redrive status {route}`; `redrive escalate {route}`"
            " asks. One is message {example}",
        ),
        _Check(
            "select s.route, count(*) as n, min(s.message_id) as example from escalated_messages s"
            " where s.status <> 'applied' and s.payload is null and s.payload_bytes is null /*route*/ group by s.route",
            "{n} messages are under review without a payload, as their staging file could not be read when they"
            " came there. Bring the file back from the store's versions or a backup, then decide: a"
            " redelivery reads it from"
            " there. Where it is lost for good, discard them. One is message {example}",
        ),
        _Check(
            "select s.route, count(*) as n, min(s.slice_id) as example from delivery_slices s inner join"
            " queue_observations q on q.queue = s.destination and q.system = s.system and q.role = 'destination'"
            " and q.observed_at = s.observed_from where s.observed_at is not null and q.lag_seconds > 0"
            f" and {told_late} > q.observed_at /*route*/ group by s.route",
            "{n} slices count as worked past because of a look that was taken sooner after their last send than the"
            " broker tells depths late, so it may show what was there before: what is presumed of them is not proved."
            " Look into redelivery_attempts of slice {example} and the destination's consumer",
        ),
        _Check(
            "select twice.route, count(*) as n, min(twice.example) as example from (select s.route, s.destination,"
            " a.broker_message_id, min(a.message_id) as example from delivery_slices s inner join redelivery_attempts a"
            " on a.slice_id = s.slice_id where s.claimed_at > :recent_at and a.sent_at is not null"
            " and a.broker_message_id <> '' /*with own ids*/ /*route*/"
            " group by s.route, s.destination, a.broker_message_id having count(*) > 1) twice group by twice.route",
            "{n} times the broker gave one message id for several sends to the same queue: it took them for one and"
            " dropped the others. Of these messages only one went out: find the others by redelivery_attempts"
            ".broker_message_id of message {example}, and send them from what staging holds",
        ),
        _Check(
            "select s.route, count(*) as n, min(s.message_id) as example from messages s"
            " where s.reason like 'It was being put back into its queue%' and s.state not in"
            " ('restoring', 'restore_unknown', 'discarded')"
            " and not exists (select 1 from escalated_messages e where e.message_id = s.message_id"
            " and e.decision = 'not_there') /*route*/ group by s.route",
            "{n} messages may have been put back into their dead-letter queue by a restore that died, and nothing keeps"
            " them from being sent from here too. Look for them in the queue before you decide. One is message"
            " {example}",
        ),
        _Check(
            "select s.route, count(*) as n, min(s.message_id) as example from messages s inner join redelivery_attempts"
            " a on a.message_id = s.message_id and a.attempt = s.attempts where s.state = 'discarded'"
            " and s.reason like 'It was restored to %' and a.unknown_at is not null and a.sent_at is null"
            " and coalesce(a.outcome, '') not in ('returned', 'confirmed') /*route*/ group by s.route",
            "{n} messages were put back into their dead-letter queue although their last send may have arrived: they"
            " may be in two places. Ask the consumer whether it has processed them before the next run"
            " drains them. One is"
            " message {example}",
        ),
    ]
