"""Conditions that more than one statement asks, as SQL, over table ``messages`` if nothing else is
said: each is written here once."""

from collections.abc import Iterable

from redrive.ledger.dialects import Dialect
from redrive.lifecycle import FINISHED, RESENDS, SENDS, UNDECIDED, Plan, ReviewStatus, State
from redrive.policy.gates import Stage


def listed(words: Iterable[str]) -> str:
    """SQL list of words of ours, never of values from outside."""
    return "(" + ", ".join(f"'{word}'" for word in words) + ")"


#: Will be sent by a new attempt.
IS_SEND = f"messages.plan in {listed(SENDS)}"
#: An unknown send that is to be made again.
TO_RESEND = f"state = 'unknown' and plan in {listed(RESENDS)}"
#: The gate of its group lets nothing go: it is failed, or tripped.
IS_STOPPED = (
    "messages.kind <> 'delay' and exists (select 1 from breakers gate where gate.route = messages.route"
    f" and gate.group_id = messages.group_id and gate.stage in {listed((Stage.FAILED, Stage.TRIPPED))})"
)
#: The plan decides about it: for the first time, or again because its destination's consumers were stuck.
#: Said as a list of states too, which an index knows.
TO_PLAN = "messages.state in ('classified', 'held') and (messages.state = 'classified' or messages.plan = 'hold')"
#: Waits for its question to people.
TO_ASK = f"state in {listed((State.TO_REVIEW, State.EXPIRED))}"
#: People are asked, or have to be.
ASKED_STATES = (State.ESCALATED, State.RESTORE_UNKNOWN)
ASKED = f"state in {listed(ASKED_STATES)}"
#: The message is still in review: nothing that was decided about it was taken up, and all of that can be changed. What
#: was released before a restore took it is not: if it can't be put back, it is sent as that was decided.
#: As in the triggers of ``escalated_messages``.
IN_REVIEW = (
    f"(messages.state in {listed((State.ESCALATED, State.RESTORING, State.RESTORE_UNKNOWN))}"
    f" and not (messages.state = '{State.RESTORING}' and coalesce(messages.plan, '') = '{Plan.RELEASE}'))"
)
#: States in which a message keeps later ones of its order key waiting; as in ``ix_messages_order``.
UNFINISHED = listed(state for state in State if state not in FINISHED)
#: The last send of the message may have arrived, and nobody knows.
PERHAPS_SENT = (
    "exists (select 1 from redelivery_attempts last where last.message_id = messages.message_id"
    " and last.attempt = messages.attempts and last.unknown_at is not null and last.sent_at is null"
    " and coalesce(last.outcome, '') not in ('returned', 'confirmed'))"
)
#: The message may have been processed already, by a send of which nobody knows: people are asked about that.
IN_DOUBT = f"(messages.doubted or {PERHAPS_SENT})"
#: Over ``delivery_slices``: something of it was sent, and what becomes of that is still to be seen.
NOT_OBSERVED = "sent > 0 and observed_at is null"
#: The same of a slice of which nothing more is sent. Without the brackets SQLite looks for it among all closed slices.
WATCHED = f"not (closed_at is null) and {NOT_OBSERVED}"
#: The broker and connection that the route's queues are on.
HERE = "(select system from route_state where route = :route)"
#: The routes whose queues are on the same broker and connection, its own among them.
ROUTES_HERE = f"(select beside.route from route_state beside where beside.system = {HERE})"
#: The newest slice of all: what is claimed from now on has a later one, whatever any clock says.
NEWEST_SLICE = "(select coalesce(max(slice_id), 0) from delivery_slices)"
#: The newest slice of the route. Its claims wait for each other, so one that is not to be seen yet is later: of all
#: routes' slices it may be an earlier one.
NEWEST_OF_ROUTE = "(select coalesce(max(slice_id), 0) from delivery_slices where route = :route)"
#: Over ``redelivery_attempts``: it counts for breakers; what a consumer put off for later did not fail, nor stay.
COUNTS = "coalesce(return_kind, 'dead_letter') = 'dead_letter'"
#: Over ``escalated_messages``: a person has to say something.
UNDECIDED_REVIEW = f"status in {listed(UNDECIDED)}"
#: Over ``escalated_messages`` and ``standing_decisions``: somebody else than who decided has approved it.
APPROVED = "lower(trim(approved_by)) not in ('', lower(trim(decided_by)))"

#: Over table ``incoming`` of a load: when the copy was dead-lettered. What says so may be a header, or a clock that is
#: ahead: it was not after the copy was drained.
DIED = (
    "case when incoming.dead_lettered_at > incoming.received_at then incoming.received_at"
    " else incoming.dead_lettered_at end"
)


def out_of_sight(table: str = "messages") -> str:
    """Its last send is watched no more, and its outcome is not known: nobody waits for that."""
    return (
        f"({table}.state = 'sent' and exists (select 1 from redelivery_attempts last"
        f" inner join delivery_slices went on went.slice_id = last.slice_id where last.message_id = {table}.message_id"
        f" and last.attempt = {table}.attempts and last.outcome is null and not (went.observed_at is null)))"
    )


def enqueued(table: str = "messages") -> str:
    """When a message was first enqueued, null where nobody told: not after it was drained, whatever a producer's clock
    says. The column has what was said, by which a copy is known again."""
    return (
        f"case when {table}.first_enqueued_at > {table}.received_at then {table}.received_at"
        f" else {table}.first_enqueued_at end"
    )


def due(at: str = ":now", *, in_id_order: bool = False) -> str:
    """Waits to be sent, and may go at the moment ``at`` (SQL)."""
    # coalesce() keeps the planner on the index (route, state, message_id): slices in file order, no sort.
    when = f"coalesce(next_attempt_at, {at})" if in_id_order else "next_attempt_at"
    return f"state = 'waiting' and {when} <= {at}"


def too_old() -> str:
    """Given up by the next plan, once it is planned or to be: older than ``:enqueued_at``, and not released by a
    person. Where nobody told when it was enqueued it counts when it was drained."""
    return f"coalesce({enqueued()}, messages.received_at) < :enqueued_at and coalesce(messages.plan, '') <> 'release'"


def nobody_is_asked(dialect: Dialect, message_id: str) -> str:
    """SQL: no question about message ``message_id``, a column of an outer query, is before people or being carried
    out."""
    # Counted of each message by its id. "not exists" becomes a join, and as long as the statistics know nothing of what
    # was asked since, each message is held against all that is open.
    return (
        f"(select count(*) from escalated_messages asked where asked.message_id = {message_id}"
        f" and {dialect.in_row('asked.status')} <> '{ReviewStatus.APPLIED}') = 0"
    )
