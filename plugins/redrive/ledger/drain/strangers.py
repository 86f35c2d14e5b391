"""Copies of a load that carry the id of a message of another route: the queue moved, or the route was renamed.

Such a copy, with the body of that message, may be what that route sent or still has, or what somebody decided about
there. So it is a message of this route that is never planned by itself: people are told whose it is, and decide. One
with another body was made of that message; one that failed elsewhere than where that route sent it was passed on; and
what was restored was put back to be drained anew. Those say nothing of it, and are new like any other.

``incoming.stranger`` is the message of the other route. Of that one nothing changes here, because its runs hold it:
what may be the return of a send of theirs is noted for them (:mod:`~redrive.ledger.drain.returned_elsewhere`).
"""

from redrive.audit_actions import Action
from redrive.ledger.engine import sql
from redrive.ledger.moves import move
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


def find(tx: RunTransaction) -> bool:
    """Find the messages of other routes whose ids copies carry that this route does not know; whether there are any."""
    if not tx.execute(sql(f"select 1 from incoming where {_UNKNOWN_HERE} limit 1")).first():
        return False
    return bool(tx.execute(sql(_FIND)).rowcount)


def leave_astray(tx: RunTransaction) -> None:
    """What failed elsewhere than where the other route sent it is none of that route's."""
    tx.execute(
        sql(
            "update incoming set stranger = null from redelivery_attempts attempts"
            " where incoming.stranger = attempts.message_id and incoming.redrive_attempt = attempts.attempt"
            " and exists (select 1 from elsewhere where elsewhere.destination = attempts.destination"
            " and elsewhere.origin = incoming.origin)"
        )
    )


#: What people are told. Of the other route no more than its name and how far it is: not all may see its messages.
_WHY = """
select
    'It came with the id of message ' || known.redrive_id || ' of route ' || known.route || ', which '
    || case
        when known.state = 'discarded' then 'was discarded'
        when known.state in ('sent', 'presumed', 'confirmed') then 'was sent'
        when known.state = 'suppressed' then 'had been processed'
        else 'is not finished'
    end
    || ' there: the queue moved, or the route was renamed.'
from incoming
inner join messages known on known.message_id = incoming.stranger
where incoming.message_id = messages.message_id
"""


def hold_for_people(tx: RunTransaction) -> None:
    """About what became a message of this route people are asked, whatever the policy and standing decisions say."""
    move(
        tx,
        State.CLASSIFIED,
        State.TO_REVIEW,
        few="select message_id from incoming where stranger is not null and role is null",
        set_=f"doubted = true, reason = ({_WHY})",
        action=Action.PUT_TO_REVIEW,
        reason="Another route has, or had, a message of this id and body.",
    )
