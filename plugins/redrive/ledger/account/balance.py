"""Does it add up? The balance of a route, and everything in the ledger that contradicts it."""

from collections.abc import Collection
from typing import Any, Self

from sqlalchemy.engine import Connection

from redrive.ledger.dialects import dialect_of
from redrive.ledger.engine import sql
from redrive.ledger.moves import FINISHED_NOW
from redrive.ledger.predicates import UNFINISHED, nobody_is_asked
from redrive.lifecycle import State


def of_route(connection: Connection, route: str) -> dict[str, Any]:
    """The route's row of ``message_balance``; {} for a route that never staged anything.

    What is finished is not counted anew (``finished_counts``): an audit holds that against the messages.
    """
    staged = connection.execute(sql(_COPIES), {"route": route}).mappings().one()
    states = states_of(connection, [route]).get(route, {})
    if staged["batches"] == 0 and not states:
        return {}
    copies = {name: int(value or 0) for name, value in staged.items() if name != "batches"}
    messages = sum(states.values())
    accounted = sum(copies[name] for name in ("new", "returned", "duplicate", "surplus", "suspected", "staged"))
    return {
        "route": route,
        **copies,
        "messages": messages,
        **{state.value: states.get(state, 0) for state in State if state is not State.RETURNED},
        "copies_difference": copies["recorded"] - accounted,
        "messages_difference": copies["new"] - messages,
        "settled_difference": max(0, copies["settled"] - copies["recorded"]),
    }


def staged(connection: Connection, route: str) -> int:
    """The route's recorded copies that are not loaded yet, without a look at all batches that ever were."""
    state = dialect_of(connection).off_index("state")
    found = sql(
        "select coalesce(sum(copies), 0) from staging_batches where route = :route and loaded_at is null"
        f" and {state} in ('recorded', 'settled')"
    )
    return int(connection.execute(found, {"route": route}).scalar_one())


def why_not_configured(route: str, count: int) -> str:
    """What is wrong with a route that the configuration does not name any more, and what to do."""
    return (
        f"it is not in the configuration, and {count:,} of its messages are unfinished: no run sends them, asks people"
        f" about them or carries out what they decide. Write it into the file again under the name {route}, until they"
        f" are finished or `redrive restore {route}` has put them back"
    )


def states_of(connection: Connection, routes: Collection[str]) -> dict[str, dict[str, int]]:
    """Messages per route and state, of these routes."""
    names = {f"route_{number}": route for number, route in enumerate(sorted(routes))}
    where = f"route in ({', '.join(':' + name for name in names)})" if names else "1 = 0"
    found: dict[str, dict[str, int]] = {}
    for row in connection.execute(
        sql(
            f"select route, state, count(*) as n from messages where {where} and state in {UNFINISHED}"
            f" group by route, state union all select route, state, messages from finished_counts where {where}"
            " and messages <> 0"
        ),
        names,
    ):
        found.setdefault(row.route, {})[row.state] = int(row.n)
    return found


_COPIES = """
select
    count(*) as batches,
    sum(copies) filter (where state in ('recorded', 'settled')) as recorded,
    sum(new_copies) as new,
    sum(returned_copies) as returned,
    sum(duplicate_copies) as duplicate,
    sum(surplus_copies) as surplus,
    sum(suspected_copies) as suspected,
    sum(copies) filter (where state in ('recorded', 'settled') and loaded_at is null) as staged,
    sum(settled_copies) filter (where state in ('recorded', 'settled')) as settled
from staging_batches
where route = :route
"""


class Problem(str):
    """A contradiction, in words; ``route`` is the one that it is about, None where none can be named."""

    route: str | None

    def __new__(cls, text: str, route: str | None) -> Self:
        made = super().__new__(cls, text)
        made.route = route
        return made


def problems(connection: Connection, route: str | None = None, *, thorough: bool = False) -> list[Problem]:
    """Every way in which the ledger's numbers contradict each other; [] when they add up.

    ``thorough`` reads every message: it counts what is finished anew, holds every review row and every attempt against
    its message, and proves each batch for itself, so that errors that cancel each other out are found. Else, for one
    ``route``, only what is not finished is read.
    """
    found: list[Problem] = []
    routes = []
    only = " where route = :route" if route else ""
    if thorough or route is None:
        rows = connection.execute(sql(f"select * from message_balance{only}"), {"route": route} if route else {})
        sums = [dict(row) for row in rows.mappings()]
    else:
        sums = [one for one in [of_route(connection, route)] if one]
    for row in sums:
        routes.append(row["route"])
        found += [
            Problem(f"route {row['route']}: {column} is {value}, not 0: {meaning}. {_BY_HAND}", row["route"])
            for column, meaning in _SUMS.items()
            if (value := row[column])
        ]
    for name, statement in (
        _CONTRADICTIONS | _FINISHED | _REVIEWS | _PER_BATCH if thorough else _CONTRADICTIONS
    ).items():
        if not (total := _count(connection, statement, route)):
            continue
        # Which routes it is about is asked only where there is something to ask about.
        of_routes = {one: _count(connection, statement, one) for one in ([route] if route else routes)}
        what, _, then = name.partition(": ")
        for one, count in of_routes.items():
            if count:
                found.append(Problem(f"route {one}: {count} {what}: {(then or _BY_HAND).format(route=one)}", one))
        if rest := total - sum(of_routes.values()):
            found.append(Problem(f"{rest} {what}: {(then or _BY_HAND).format(route='ROUTE')}", None))
    return found


def _count(connection: Connection, statement: str, route: str | None) -> int:
    """What a statement below counts, of one route or of all."""
    text = statement.replace("/*route*/", "and m.route = :route" if route else "")
    text = text.replace("/*repeat*/", "and r.route = :route" if route else "")
    text = text.replace("/*unasked*/", nobody_is_asked(dialect_of(connection), "m.message_id"))
    text = text.replace("/*both*/", "and both_of.route = :route" if route else "")
    return int(connection.execute(sql(text), {"route": route} if route else {}).scalar_one() or 0)


_BY_HAND = (
    "Rows were changed or removed by hand, or only a part of the ledger was restored: `audit_events` says what was"
    " done, so put them back as they were, or restore the whole ledger, and pause the route until then"
)

#: What a sum that is off says.
_SUMS = {
    "copies_difference": "so many recorded copies more (fewer, where below 0) than the ledger says became of them",
    "messages_difference": "so many messages are missing (too many, where below 0) for the copies loaded as new",
    "settled_difference": "so many copies were settled at their source and are not recorded as staged",
}

# What is found, then what to do; where nothing is said, it is as with the sums.
_CONTRADICTIONS = {
    "escalated messages without an open review row: nobody is asked about them, as their rows were removed or closed by"
    " hand. The next run, or `redrive escalate {route}`, asks again": (
        "select count(*) from messages m where m.state = 'escalated' /*route*/ and /*unasked*/"
    ),
    "messages in state sending that no open slice holds: nobody sends them, and nobody knows whether somebody did. "
    + _BY_HAND: (
        "select count(*) from messages m where m.state = 'sending' /*route*/ and not exists"
        " (select 1 from redelivery_attempts a inner join delivery_slices s on s.slice_id = a.slice_id"
        " where a.message_id = m.message_id and a.attempt = m.attempts and s.closed_at is null)"
    ),
    "messages whose current attempt is missing: where and when they were sent isn't known any more. " + _BY_HAND: (
        "select count(*) from messages m where m.state in ('sending', 'sent', 'unknown') /*route*/ and not exists"
        " (select 1 from redelivery_attempts a where a.message_id = m.message_id and a.attempt = m.attempts)"
    ),
    "attempts that their message does not count: it was sent more often than it says, and may be sent too often. "
    + _BY_HAND: (
        f"select count(*) from messages m inner join redelivery_attempts a on a.message_id = m.message_id"
        f" where m.state in {UNFINISHED} and a.attempt > m.attempts /*route*/"
    ),
}

# The same of what is finished, and of all copies that ever were.
_FINISHED = {
    "finished messages whose attempt is missing: where and when they were sent isn't known any more. " + _BY_HAND: (
        "select count(*) from messages m where m.state in ('presumed', 'confirmed') /*route*/"
        " and not exists (select 1 from redelivery_attempts a where a.message_id = m.message_id"
        " and a.attempt = m.attempts)"
    ),
    "attempts that their finished message does not count: it was sent more often than it says. " + _BY_HAND: (
        "select count(*) from redelivery_attempts a inner join messages m on m.message_id = a.message_id"
        f" where a.attempt > m.attempts and m.state not in {UNFINISHED} /*route*/"
    ),
    "copies that are neither a message nor a kept repeat: what became of them isn't known; their staging files"
    " still have them. " + _BY_HAND: (
        "select coalesce(sum(m.returned_copies + m.duplicate_copies + m.surplus_copies + m.suspected_copies), 0)"
        " - (select count(*) from repeat_copies r where r.copy_id > 0 /*repeat*/)"
        " from staging_batches m where m.batch_id > 0 /*route*/"
    ),
    "finished messages are counted otherwise than they are: `redrive status` and the page say so too. If nobody changed"
    " `messages` by hand, nothing is lost; `redrive db upgrade --count-anew` mends it. See `audit_events`": (
        "select coalesce(sum(abs(coalesce(m.messages, 0) - coalesce(told.messages, 0))), 0)"
        " from (select route, state from finished_counts union"
        f" select route, state from ({FINISHED_NOW}) there) both_of"
        f" left join ({FINISHED_NOW}) m on m.route = both_of.route and m.state = both_of.state"
        " left join finished_counts told on told.route = both_of.route and told.state = both_of.state"
        " where 1 = 1 /*both*/"
    ),
}

_REVIEWS = {
    "review rows that wait for a person, or for a send, although their message is done: a decision there would be"
    " refused, or come too late. " + _BY_HAND: (
        "select count(*) from escalated_messages e inner join messages m on m.message_id = e.message_id"
        " where e.status <> 'applied' and m.state in ('sent', 'suppressed', 'presumed', 'confirmed', 'discarded')"
        " /*route*/"
    ),
    "messages with more than one review row that is not closed: two decisions could be taken on one message. "
    + _BY_HAND: (
        "select count(*) from (select m.message_id from escalated_messages e inner join messages m"
        " on m.message_id = e.message_id where e.status <> 'applied' /*route*/ group by m.message_id"
        " having count(*) > 1) twice"
    ),
}

# A message id is its batch's id and a row, so the messages of a batch lie together: counted batch by batch, in no
# memory to speak of.
_PER_BATCH = {
    "batches whose new copies are not its messages": (
        "select count(*) from staging_batches m where m.new_copies <> (select count(*) from messages found"
        " where found.message_id >= m.batch_id * 1048576 and found.message_id < (m.batch_id + 1) * 1048576) /*route*/"
    ),
    "batches whose returned, duplicate and surplus copies are not its kept repeats": (
        "select count(*) from staging_batches m where m.returned_copies + m.duplicate_copies + m.surplus_copies"
        " + m.suspected_copies <> (select count(*) from repeat_copies found"
        " where found.copy_id >= m.batch_id * 1048576 and found.copy_id < (m.batch_id + 1) * 1048576) /*route*/"
    ),
    "messages whose batch is missing or of another route": (
        "select count(*) from messages m left join staging_batches b on b.batch_id = m.message_id / 1048576"
        " where (b.batch_id is null or b.route <> m.route) /*route*/"
    ),
}
