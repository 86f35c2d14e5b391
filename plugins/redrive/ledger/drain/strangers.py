"""Copies of a load that carry the id of a message of another route: the queue moved, or the route was renamed.

Such a copy, with the body of that message, may be what that route sent or still has, or what somebody decided about
there. So it is a message of this route that is never planned by itself: people are told whose it is, and decide. But
where it is the last send of a message that is watched there, and has not come back yet, it ends that message, and
nothing is open: it is planned, as it would be on that route, with the attempts that it tells of.

One with another body was made of that message; one that comes from where nothing of that route comes back to (another
subscriber's, or what a consumer passed on), or that failed elsewhere than where that route sent it, is somebody else's;
and what was restored was put back to be drained anew. Those say nothing of it, and are new like any other.

``incoming.stranger`` is the message of the other route. Of that one nothing changes here, because its runs hold it:
what may be the return of a send of theirs is noted for them (:mod:`~redrive.ledger.drain.returned_elsewhere`).
"""

from collections.abc import Collection
from typing import NamedTuple

from redrive.audit_actions import Action
from redrive.ledger.drain.copy_roles import FAILED_ELSEWHERE
from redrive.ledger.engine import sql
from redrive.ledger.moves import move
from redrive.ledger.predicates import HERE, ROUTES_HERE, listed
from redrive.ledger.review.restoring import WAS_RESTORED
from redrive.ledger.transactions import RunTransaction
from redrive.lifecycle import State

_UNKNOWN_HERE = "incoming.role is null and incoming.owner is null and incoming.redrive_id is not null"
_FIND = f"""
update incoming set stranger = known.message_id
from messages known
where
    {_UNKNOWN_HERE} and known.redrive_id = incoming.redrive_id and known.route || '' <> :route
    and not ({WAS_RESTORED.format(table="known")})
    and (
        known.body_hash = incoming.body_hash
        or exists (
            select 1 from redelivery_attempts edited
            where edited.message_id = known.message_id and edited.body_hash = incoming.body_hash
        )
    )
"""
_STRANGE = """
insert into strange (route)
select distinct known.route from incoming inner join messages known on known.message_id = incoming.stranger
"""
#: The sources of this load that other routes drain, or drained, by their names; and whether on the broker that it is
#: on. One that moved since, or whose connection has another name, may have been on this one.
_SHARED_SOURCES = f"""
insert into shared_sources (route, source, here)
select owned.route, owned.source, max(case when owned.system = {HERE} then 1 else 0 end)
from (
    select now.route, now.source, its.system from source_state now inner join route_state its on its.route = now.route
    union
    select route, source, system from former_sources
    union
    select route, source, system from staging_batches where route in (select route from strange)
) owned
where owned.route in (select route from strange) and owned.source in (select source from drained)
group by owned.route, owned.source
"""
#: SQL over ``incoming``, ``redelivery_attempts attempts`` and ``messages known``: what is sent there fails into here,
#: by the broker's word.
_FAILS_INTO = f"""
exists (
    select 1 from behind
    where
        behind.destination = attempts.destination and attempts.route in {ROUTES_HERE}
        and behind.source = incoming.source and (behind.origin is null or behind.origin = incoming.origin)
)
"""
#: The same: what came from here may be the return of that attempt, and nobody else's.
COMES_BACK = f"""
(
    exists (
        select 1 from shared_sources
        where shared_sources.route = known.route and shared_sources.source = incoming.source and here = 1
    )
    or {_FAILS_INTO}
)
"""
#: What did not come from a source of the route that knows it, nor fails into this one as far as the broker tells.
_LEAVE_OTHERS = f"""
update incoming set stranger = null
where
    stranger is not null
    and source not in (select source from untold)
    and not exists (
        select 1
        from messages known
        inner join shared_sources on shared_sources.route = known.route
        where known.message_id = incoming.stranger and shared_sources.source = incoming.source
    )
    and not exists (
        select 1
        from redelivery_attempts attempts
        where
            attempts.message_id = incoming.stranger and attempts.attempt = incoming.redrive_attempt and {_FAILS_INTO}
    )
"""


class Behind(NamedTuple):
    """Where lands what fails at the destinations of other routes, and nobody else's, as far as the broker tells."""

    #: Each destination with a source, and with an origin where only the letters that tell of it are meant.
    known: Collection[tuple[str, str, str | None]] = ()
    #: Sources of which it could not be asked now.
    untold: Collection[str] = ()


def find(tx: RunTransaction, behind: Behind) -> bool:
    """Find the messages of other routes whose ids copies carry that this route does not know; whether there are any.

    Only those of which something may come back to the source of the copy: it is, or was, a source of that route, or
    what fails at the destination of the attempt lands there, or the broker can't say that it doesn't.
    """
    if not tx.execute(sql(f"select 1 from incoming where {_UNKNOWN_HERE} limit 1")).first():
        return False
    if not tx.execute(sql(_FIND)).rowcount:
        return False
    tx.temporary("strange", "route text primary key")
    tx.execute(sql(_STRANGE))
    tx.temporary("drained", "source text primary key")
    tx.execute(sql("insert into drained (source) select distinct source from incoming where stranger is not null"))
    tx.temporary("shared_sources", "route text, source text, here int, primary key (route, source)")
    tx.execute(sql(_SHARED_SOURCES))
    tx.temporary("behind", "destination text, source text, origin text")
    tx.bulk("behind", ("destination", "source", "origin"), behind.known)
    tx.temporary("untold", "source text primary key")
    tx.bulk("untold", ("source",), [(source,) for source in sorted(set(behind.untold))])
    tx.execute(sql(_LEAVE_OTHERS))
    return tx.execute(sql("select 1 from incoming where stranger is not null limit 1")).first() is not None


def leave_astray(tx: RunTransaction) -> None:
    """What failed elsewhere than where the other route sent it is none of that route's."""
    tx.execute(
        sql(
            "update incoming set stranger = null from redelivery_attempts attempts"
            " where incoming.stranger = attempts.message_id and incoming.redrive_attempt = attempts.attempt"
            f" and {FAILED_ELSEWHERE}"
        )
    )


#: SQL over ``incoming`` and ``messages known``: it is the last send of the other route's message, noted as its return.
_IS_ITS_SEND = (
    "exists (select 1 from returned_elsewhere noted where noted.message_id = known.message_id"
    " and noted.attempt = incoming.redrive_attempt and noted.copy_id = incoming.message_id"
    " and noted.attempt = known.attempts)"
)
#: SQL over ``incoming``: its return ends the other message by itself, as it would a message of this route. Where
#: somebody was asked, or decided, or it may be sent once more, or it was proved processed, people say what it is.
_ENDS_THE_OTHER = f"""
exists (
    select 1
    from messages known
    inner join redelivery_attempts last on last.message_id = known.message_id and last.attempt = known.attempts
    where
        known.message_id = incoming.stranger and known.state in {listed((State.SENT, State.PRESUMED))}
        and last.sent_at is not null and {_IS_ITS_SEND}
)
"""
#: SQL over ``messages known``: to which route its last send came back, for which it was handed over.
_HANDED_TO = """
(
    select batch.route
    from redelivery_attempts last
    inner join staging_batches batch on batch.batch_id = last.return_copy / 1048576
    where
        last.message_id = known.message_id and last.attempt = known.attempts
        and known.reason like 'It came back to route %' and batch.route <> known.route
)
"""
#: What people are told. Of the other route no more than its name and how far it is: not all may see its messages.
_WHY = f"""
select
    'It came with the id of message ' || known.redrive_id || ' of route ' || known.route || ', which '
    || case
        when known.state = 'discarded' then coalesce('came back to route ' || {_HANDED_TO}, 'was discarded there')
        when known.state in ('sent', 'presumed', 'confirmed') then 'was sent there'
        when known.state = 'suppressed' then 'had been processed there'
        else 'is not finished there'
    end
    || ': the queue moved, or the route was renamed.'
    || case
        when not {_IS_ITS_SEND} then ''
        else
            ' This is its send, attempt ' || incoming.redrive_attempt || ', and it came back'
            || case
                when known.state in ('to_review', 'escalated') then ': people of that route are asked about it too.'
                when known.state in ('discarded', 'confirmed') then ': nobody else has it.'
                else '.'
            end
    end
from incoming
inner join messages known on known.message_id = incoming.stranger
where incoming.message_id = messages.message_id
"""


def hold_for_people(tx: RunTransaction) -> None:
    """About what became a message of this route people are asked, whatever the policy and standing decisions say,
    unless it ends the other message. To be called after its return was noted."""
    move(
        tx,
        State.CLASSIFIED,
        State.TO_REVIEW,
        few=f"select message_id from incoming where stranger is not null and role is null and not {_ENDS_THE_OTHER}",
        set_=f"doubted = true, reason = ({_WHY})",
        action=Action.PUT_TO_REVIEW,
        reason="Another route has, or had, a message of this id and body.",
    )
