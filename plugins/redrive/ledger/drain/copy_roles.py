"""What each copy of a load is, decided in sets over the temporary table ``incoming``.

A copy is one of
- *duplicate*: the same copy was staged before (source, broker id, enqueue time and body hash agree), on this route or
  on another of this broker;
- *returned*: it carries the id and attempt of a redelivery that was sent and has not returned yet, with the body
  that was sent, and nobody says that it failed elsewhere than where it was sent;
- *surplus*: that attempt has already returned from the same source with the same headers;
- *suspected*: the same with other headers. It may be that attempt once more, noted in another way, or a message that
  a consumer made of it: people decide;
- *new*: everything else. A copy with our id but another body, from another subscriber or from elsewhere is new with a
  ``parent_id``. Whatever its headers say of attempts is carried over, so that no circle begins to count anew. The id of
  another ledger is kept; one of this ledger that no message of the route has is not, because whoever sees our ids can
  write one that will be given next. What another route knows of it says :mod:`~redrive.ledger.drain.strangers`.

``incoming.role`` is what a copy is, null while that is undecided and of what is new; ``owner`` is the message whose
copy it is, or may be. Nothing outside of ``incoming`` changes here.
"""

from collections.abc import Collection

from redrive.ledger.drain import shared_queues
from redrive.ledger.engine import sql
from redrive.ledger.transactions import RunTransaction

#: The same copy is twice in what is loaded now: its lease ran out while a batch was open. The first counts.
_DUPLICATES_OF_INCOMING = """
update incoming set role = 'duplicate', owner = same.first_id
from (
    select
        message_id,
        min(message_id) over (partition by broker_message_id, source, enqueued_at, body_hash) as first_id
    from incoming
    where broker_message_id <> ''
) same
where incoming.message_id = same.message_id and same.first_id <> same.message_id
"""

#: SQL: an enqueue time, so that an index finds it and two are equal that are both null.
_TIME = "coalesce(cast({} as text), '')"
# A producer may give one id to all that it sends. Then the id finds all that the route ever had, and each copy would be
# held against all of it. So the database goes once through what is known by an id that came in, and brings together
# what has in common with a copy all that tells copies apart; copies are looked up there. What no copy can match is not
# written. Here and below route, source and ids that are not to be looked up are compared as expressions, so that the
# database finds what is known by the key that is meant: an index that begins with the route would fit too, and would
# read the whole route for each copy.
_CANDIDATE_COLUMNS = "broker_message_id text, body_hash blob, enqueued text, source text, known_id bigint"
_UNDECIDED_COLUMNS = "broker_message_id text, body_hash blob, enqueued text, source text"
_FIND_UNDECIDED = f"""
insert into undecided (broker_message_id, body_hash, enqueued, source)
select distinct broker_message_id, body_hash, {_TIME.format("enqueued_at")}, source
from incoming where role is null and broker_message_id <> ''
"""
# A broker's id is the broker's, not a route's: a queue may have moved to another route before a copy of it was settled.
_ID_CAME_IN = "known.route || '' in {routes} and known.broker_message_id in (select broker_message_id from undecided)"
#: Most often none is, and nothing needs to be brought together to see that.
_SOME_ID_IS_KNOWN = """
select 1 from incoming inner join {table} known on known.broker_message_id = incoming.broker_message_id
where incoming.role is null and incoming.broker_message_id <> '' and known.broker_message_id <> '' limit 1
"""
_SAME_COPY = f"""
    incoming.role is null and known.broker_message_id = incoming.broker_message_id || ''
    and known.enqueued = {_TIME.format("incoming.enqueued_at")} and known.source = incoming.source || ''
"""
#: What was staged before and became a message, the newest of those that nothing tells apart.
_FIND_MESSAGES = f"""
insert into candidates (broker_message_id, body_hash, enqueued, source, known_id)
select
    known.broker_message_id, known.body_hash, {_TIME.format("known.first_enqueued_at")}, known.source,
    max(known.message_id)
from messages known
where known.broker_message_id <> '' and {_ID_CAME_IN}
    and (known.broker_message_id || '', {_TIME.format("known.first_enqueued_at")}, known.body_hash, known.source)
    in (select broker_message_id, enqueued, body_hash, source from undecided)
group by 1, 2, 3, 4
"""
#: The same copy was staged before, and became a message.
_DUPLICATES_OF_MESSAGES = f"""
update incoming set role = 'duplicate', owner = known.known_id
from candidates known
where {_SAME_COPY}
    and known.body_hash = incoming.body_hash and known.known_id <> incoming.message_id
"""
#: What was staged before and was a copy of a message, likewise.
_FIND_REPEATS = f"""
insert into candidates (broker_message_id, enqueued, source, known_id)
select known.broker_message_id, {_TIME.format("known.enqueued_at")}, known.source, max(known.copy_id)
from repeat_copies known
where {_ID_CAME_IN}
    and (known.broker_message_id || '', {_TIME.format("known.enqueued_at")}, known.source)
    in (select broker_message_id, enqueued, source from undecided)
group by 1, 2, 3
"""
#: The same copy was staged before, and was a copy of a message.
_DUPLICATES_OF_REPEATS = f"""
update incoming set
    role = 'duplicate', owner = (select first.message_id from repeat_copies first where first.copy_id = known.known_id)
from candidates known
where {_SAME_COPY}
    and known.known_id <> incoming.message_id
"""


def find_staged_twice(tx: RunTransaction) -> None:
    """Of copies that are twice in this load, by the broker's ids, the later ones are duplicates of the first."""
    tx.execute(sql(_DUPLICATES_OF_INCOMING))


def find_duplicates(tx: RunTransaction) -> None:
    """Copies that were staged before, by the broker's ids, are duplicates of what they became then, on whichever route
    of this broker."""
    routes = None
    for table, find, mark in (
        ("messages", _FIND_MESSAGES, _DUPLICATES_OF_MESSAGES),
        ("repeat_copies", _FIND_REPEATS, _DUPLICATES_OF_REPEATS),
    ):
        if not tx.execute(sql(_SOME_ID_IS_KNOWN.format(table=table))).first():
            continue
        routes = routes or shared_queues.Routes(tx.connection, tx.route)
        tx.temporary("undecided", _UNDECIDED_COLUMNS)
        tx.execute(sql(_FIND_UNDECIDED))
        # PostgreSQL believes that hardly any is known, and would go through all of these for each that is.
        tx.execute(sql("create index undecided_copy on undecided (broker_message_id, enqueued, body_hash)"))
        tx.dialect.look_at_temporary(tx.connection, "undecided")
        tx.temporary("candidates", _CANDIDATE_COLUMNS)
        tx.execute(sql(find.format(routes=routes.listed)), routes.values)
        tx.execute(sql("create index candidates_of_copy on candidates (broker_message_id, enqueued, body_hash)"))
        tx.dialect.look_at_temporary(tx.connection, "candidates")
        tx.execute(sql(mark))


#: SQL over ``incoming``, ``redelivery_attempts attempts`` and ``messages known``: the attempt was made, and with the
#: body of the copy.
WAS_SENT = "(attempts.sent_at is not null or attempts.unknown_at is not null)"
SAME_BODY = "incoming.body_hash = coalesce(attempts.body_hash, known.body_hash)"


def find_owners_by_header(tx: RunTransaction) -> None:
    """Find the messages of copies that carry an id, of this route."""
    tx.execute(
        sql(
            "update incoming set owner = known.message_id from messages known"
            " where incoming.role is null and incoming.redrive_id is not null"
            " and known.redrive_id = incoming.redrive_id and known.route || '' = :route"
        )
    )


def find_owners_in_load(tx: RunTransaction) -> None:
    """Of several copies with one id that we don't know, the first is that message; the others come from it."""
    tx.execute(
        sql(
            "update incoming set owner = (select min(first.message_id) from incoming first where first.role is null"
            " and first.owner is null and first.redrive_id = incoming.redrive_id) where role is null and owner is null"
            " and stranger is null"
            " and exists (select 1 from incoming earlier where earlier.role is null and earlier.owner is null"
            " and earlier.redrive_id = incoming.redrive_id and earlier.message_id < incoming.message_id)"
        )
    )


def find_owners_by_broker_id(tx: RunTransaction) -> None:
    """Find the attempts of copies that carry no id, by the broker's id of a send for whose headers was no room."""
    tx.execute(
        sql(
            "update incoming set owner = known.message_id, redrive_attempt = attempts.attempt"
            " from redelivery_attempts attempts inner join messages known on known.message_id = attempts.message_id"
            " where incoming.role is null and incoming.redrive_id is null and not attempts.tracked"
            " and attempts.broker_message_id = incoming.broker_message_id and incoming.broker_message_id <> ''"
            f" and attempts.route = :route and {SAME_BODY}"
        )
    )


#: SQL over ``incoming`` and ``redelivery_attempts attempts``: it failed elsewhere than where that attempt went.
FAILED_ELSEWHERE = (
    "exists (select 1 from elsewhere"
    " where elsewhere.destination = attempts.destination and elsewhere.origin = incoming.origin)"
)


def find_astray(tx: RunTransaction, elsewhere: Collection[tuple[str, str]]) -> None:
    """Mark the copies that failed elsewhere than where the attempt went that they name."""
    tx.temporary("elsewhere", "destination text, origin text")
    tx.bulk("elsewhere", ("destination", "origin"), elsewhere)
    tx.execute(
        sql(
            "update incoming set astray = 1 from redelivery_attempts attempts"
            " where incoming.role is null and incoming.owner = attempts.message_id"
            f" and incoming.redrive_attempt = attempts.attempt and {FAILED_ELSEWHERE}"
        )
    )


#: Of each attempt that copies name with the body that was sent: the copy that is its return. That is the one which was
#: loaded before, and then it has no ``message_id`` here, or else the first of this load.
_RETURN_COLUMNS = (
    "owner bigint, redrive_attempt int, body_hash blob, message_id bigint, source text, headers_hash blob,"
    " primary key (owner, redrive_attempt)"
)
_FIND_RETURNS = f"""
insert into return_copies (owner, redrive_attempt, body_hash, message_id, source, headers_hash)
select
    first.owner, first.redrive_attempt, first.body_hash,
    case when attempts.outcome = 'returned' then null else first.message_id end,
    case when attempts.outcome = 'returned' then earlier.source else first.source end,
    case when attempts.outcome = 'returned' then earlier.headers_hash else first.headers_hash end
from (
    select min(incoming.message_id) as message_id
    from incoming
    inner join redelivery_attempts attempts
        on attempts.message_id = incoming.owner and attempts.attempt = incoming.redrive_attempt
    inner join messages known on known.message_id = attempts.message_id
    where incoming.role is null and incoming.astray is null and {WAS_SENT} and {SAME_BODY}
    group by incoming.owner, incoming.redrive_attempt
) found
inner join incoming first on first.message_id = found.message_id
inner join redelivery_attempts attempts
    on attempts.message_id = first.owner and attempts.attempt = first.redrive_attempt
left join repeat_copies earlier on earlier.copy_id = attempts.return_copy
"""
#: Copies that name an attempt with the body that was sent: the first one is its return, if that was not loaded before;
#: further ones from the same source are surplus or suspected, and those from another source stay undecided.
_RETURNS = """
update incoming set
    role = case
        when incoming.message_id = first.message_id then 'returned'
        when incoming.source = first.source and incoming.headers_hash = first.headers_hash then 'surplus'
        when incoming.source = first.source then 'suspected'
    end
from return_copies first
where
    incoming.role is null and incoming.astray is null and incoming.owner = first.owner
    and incoming.redrive_attempt = first.redrive_attempt and incoming.body_hash = first.body_hash
"""


def mark_returns(tx: RunTransaction) -> None:
    """Of the copies that have an owner and an attempt, tell returned from surplus; the rest stays undecided.

    Of several copies of one attempt the first is the return; others from the same source are surplus, or where their
    headers differ suspected, and those from another source are somebody else's and stay new.
    """
    tx.temporary("return_copies", _RETURN_COLUMNS)
    # A copy is held against that one alone: against each other, copies of one attempt would take the square of them.
    tx.execute(sql(_FIND_RETURNS))
    tx.dialect.look_at_temporary(tx.connection, "return_copies")
    tx.execute(sql(_RETURNS))


def suspect_twins(tx: RunTransaction) -> None:
    """A copy that carries an id of ours, is no return, and resembles another that may have come again: who made it of
    a message copied the headers, so its id says nothing of it."""
    tx.execute(sql("update incoming set role = 'suspected', owner = twin where role is null and twin is not null"))
    follow_loaded_copies(tx)


def follow_first_copies(tx: RunTransaction) -> None:
    """A copy that was staged twice in one load belongs to whom its first staging turned out to belong to."""
    tx.execute(
        sql(
            "update incoming set owner = first.owner from incoming first"
            " where incoming.role in ('duplicate', 'suspected')"
            " and first.message_id = incoming.owner and first.role is not null"
        )
    )


def follow_loaded_copies(tx: RunTransaction) -> None:
    """A copy that repeats one which was loaded before belongs to whom that one belongs to."""
    tx.execute(
        sql(
            "update incoming set owner = first.message_id from repeat_copies first"
            " where incoming.role is not null and first.copy_id = incoming.owner"
        )
    )
