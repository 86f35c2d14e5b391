"""The copies of a load that are new become messages: what each is called, and what it is found by."""

import secrets

from redrive.audit_actions import Action
from redrive.ledger.engine import sql
from redrive.ledger.moves import record_event
from redrive.ledger.predicates import DIED
from redrive.ledger.schema import ledger_id
from redrive.ledger.transactions import RunTransaction
from redrive.message import MAX_CARRIED_ATTEMPTS, REDRIVE_ID_DIGITS

#: SQL: an unknown id that begins as the ids of this ledger do: forged, of another route, or of a message that is gone.
_NOT_GIVEN = (
    "incoming.role is null and incoming.owner is null"
    " and substr(incoming.redrive_id, 1, length(:ledger_id) + 1) = :ledger_id || '-'"
)
#: The id that is ours to give: this ledger's own, and the message's.
_OWN_ID = ":ledger_id || '-' || {hexadecimal}"
#: What each new message would like to be called: by the id that it carries, if another ledger gave it.
_WISHED_ID = f"""
case
    when incoming.redrive_id is not null and incoming.owner is null and not ({_NOT_GIVEN}) then incoming.redrive_id
    else {_OWN_ID}
end
"""
#: The copies of which nothing else is known become messages, called by ``{redrive_id}`` unless another one is. The
#: attempts that a copy tells of are carried over, so that a lost ledger, a message that is made anew from each
#: redelivery, or another route that sends it round in a circle, does not begin to count anew.
_INSERT_NEW = f"""
insert into messages (
    message_id, redrive_id, parent_id, route, source, kind, origin, destination, broker_message_id,
    body_hash, body_bytes, copy_id, state, cause, group_id,
    attempts,
    deliveries, first_enqueued_at, dead_lettered_at, received_at, changed_at, message_key, order_key
)
select
    message_id, {{redrive_id}}, coalesce(owner, stranger), :route, source, kind, origin, destination, broker_message_id,
    body_hash, body_bytes, message_id, 'classified', cause, group_id,
    case when redrive_attempt > :most then :most else coalesce(redrive_attempt, 0) end,
    deliveries, enqueued_at, {DIED}, received_at, :now, message_key, order_key
from incoming
where role is null and {{missing}}
order by message_id
on conflict do nothing
"""
_MISSING = "not exists (select 1 from messages known where known.message_id = incoming.message_id)"


def insert(tx: RunTransaction) -> None:
    """Make messages of the copies that are new.

    Whatever ids came in or are there already: a clash costs a message its wish, and never stops a load.
    """
    own = _OWN_ID.format(hexadecimal=tx.dialect.hexadecimal("message_id", REDRIVE_ID_DIGITS))
    wished = _WISHED_ID.format(hexadecimal=tx.dialect.hexadecimal("message_id", REDRIVE_ID_DIGITS))
    values = {
        "most": MAX_CARRIED_ATTEMPTS,
        "ledger_id": ledger_id(tx.connection),
        "salt": secrets.token_hex(4),
    }
    left = int(tx.execute(sql("select count(*) from incoming where role is null")).scalar_one())
    for redrive_id, missing in ((wished, "1 = 1"), (own, _MISSING), (f"{own} || '-' || :salt", _MISSING)):
        statement = _INSERT_NEW.format(redrive_id=redrive_id, missing=missing)
        left -= tx.execute(sql(statement), values).rowcount
        if left <= 0:
            return


def keep_fields(tx: RunTransaction) -> None:
    """Keep what new messages are found by."""
    tx.execute(
        sql(
            "insert into message_fields (message_id, field, value) select incoming.message_id, member.key, member.value"
            f" from incoming, {tx.dialect.members('incoming.fields')} where incoming.fields is not null"
            " and incoming.role is null order by incoming.message_id on conflict do nothing"
        )
    )


def tell_other_ids(tx: RunTransaction) -> None:
    """Tell the audit trail of copies whose id was not kept, if there are any."""
    ours = {"ledger_id": ledger_id(tx.connection)}
    count = int(tx.execute(sql(f"select count(*) from incoming where {_NOT_GIVEN}"), ours).scalar_one())
    if count:
        record_event(
            tx,
            action=Action.GIVE_ANOTHER_ID,
            count=count,
            reason="They carried an id of this ledger that no message of this route has: forged, of another route, of a"
            " message that is past its retention, or from before the ledger was restored.",
        )
