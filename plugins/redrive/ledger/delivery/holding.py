"""Messages behind the gates of their groups (:mod:`redrive.ledger.delivery.breakers`): held, let through, or put to
people.

Each of these was decided about gates as they were read before. Where a person moved one since, nothing is done about
its group: the next look at the gates decides anew.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from redrive.audit_actions import Action
from redrive.ledger.delivery import breakers, ordering
from redrive.ledger.delivery.breakers import GroupGate
from redrive.ledger.delivery.ordering import InOrder
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import move
from redrive.ledger.predicates import TO_RESEND, listed
from redrive.ledger.review import escalations
from redrive.ledger.selecting import Selection, stage_selection
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.lifecycle import SENDS, Plan, State

#: What a group's gate holds or lets through; delays pass every gate.
_OF_GROUP = "route = :route and group_id = :group_id and kind <> 'delay'"
#: SQL for a SET: people are asked about it.
_ASKED_BECAUSE = "reason = :why, next_attempt_at = null"
#: So many quotas the audit trail tells.
_TOLD = 100
#: Why a message that had a place is held again: :func:`put_off`.
NOT_TAKEN = "Its destination took nothing when its turn came, so others of its group may go first."
#: When the destinations of these groups were put off.
_PUT_OFF = """
insert into put_off
select group_id, destination, max(changed_at) from messages
where
    route = :route and state = 'held' and reason = :not_taken and destination is not null
    and group_id in (select group_id from quotas)
group by group_id, destination
"""


def _within_quota(selected: str) -> str:
    """SQL: into ``admitted`` the held messages that are ``selected`` (SQL over ``candidates``) and have a place in the
    quota of their group: those for destinations that were not put off, then those for the one that was put off the
    longest ago; of alike ones those with the oldest ids."""
    return f"""
    insert into admitted
    select message_id
    from (
        select
            candidates.message_id, quotas.quota,
            row_number() over (
                partition by candidates.group_id
                order by
                    case when put_off.last_at is null then 0 else 1 end, put_off.last_at, candidates.message_id
            ) as place
        from messages candidates
        inner join quotas on quotas.group_id = candidates.group_id
        left join put_off
            on put_off.group_id = candidates.group_id and put_off.destination = candidates.destination
        where
            candidates.route = :route and candidates.state = 'held' and candidates.plan in {listed(SENDS)}
            and {selected}
    ) ranked
    where quota is null or place <= quota
    """


def admit(
    ledger: Ledger,
    lease: RouteLease,
    quotas: Mapping[GroupGate, int | None],
    now: datetime,
    selection: Selection = Selection(),  # noqa: B008 - frozen
    *,
    in_order: InOrder | None = None,
) -> int:
    """Behind each gate let so many selected held messages wait for delivery, oldest ids first; None lets all. Messages
    for destinations that took nothing when they had places (:func:`put_off`) come after all others.

    With ``in_order`` a quota is for messages that could go now: others would take places that they can't use. A quota
    is given away once: with it the gate's ``admits`` count up.
    """
    where, values = selection.where("candidates")
    if in_order:
        where += f" and (quotas.quota is null or {ordering.may_go('candidates')})"
        values |= ordering.values(in_order.drained_to)
    with ledger.under(lease, now) as tx:
        stage_selection(ledger, tx.connection, selection)
        # Each has a key, and what is admitted is told before it is moved: a database that has not counted what is held
        # would go through all of it for each of them.
        tx.temporary("quotas", "group_id bigint primary key, quota bigint")
        tx.temporary(
            "put_off", "group_id bigint, destination text, last_at instant, primary key (group_id, destination)"
        )
        tx.temporary("admitted", "message_id bigint primary key")
        unmoved = breakers.unmoved(tx, quotas)
        limited = [gate for gate, quota in quotas.items() if quota is not None and gate.group_id in unmoved]
        given = breakers.take_places(tx, limited)
        rows = [
            (gate.group_id, quota)
            for gate, quota in quotas.items()
            if gate.group_id in unmoved and (quota is None or gate.group_id in given)
        ]
        tx.bulk("quotas", ("group_id", "quota"), rows)
        tx.execute(sql(_PUT_OFF), {"not_taken": NOT_TAKEN})
        tx.execute(sql(_within_quota(where)), values)
        return move(
            tx,
            State.HELD,
            State.WAITING,
            where="message_id in (select message_id from admitted)",
            values={**values, "quotas": dict(rows[:_TOLD])},  # told in the audit trail
            set_="reason = null",
            action=Action.ADMIT,
        )


#: Messages of groups at a canary or ramp that can't go before an earlier one of their key.
_OUT_OF_TURN = f"""
route = :route and kind <> 'delay' and order_key is not null
and group_id in (select group_id from breakers where route = :route and stage in ('canary', 'ramp'))
and not {ordering.may_go("messages")}
"""


def hold_out_of_turn(ledger: Ledger, lease: RouteLease, in_order: InOrder, now: datetime) -> int:
    """Of the groups at a canary or ramp, hold every waiting message that can't go before an earlier one of its key: it
    would take a place that it may never use, and its group would wait for it."""
    with ledger.under(lease, now) as tx:
        return move(
            tx,
            State.WAITING,
            State.HELD,
            where=_OUT_OF_TURN,
            values=ordering.values(in_order.drained_to),
            set_="reason = 'It waits for an earlier message of its key.'",
            action=Action.HOLD_BACK,
            reason="An earlier message of its key is not finished, or may not be staged.",
        )


#: For which destinations messages of these groups are held, the first and the last by name.
_BEHIND = f"""
insert into behind
select group_id, min(destination), max(destination) from messages
where
    route = :route and state = 'held' and plan in {listed(SENDS)}
    and group_id in (select group_id from without_places)
group by group_id
"""

#: Messages that had places behind their gate and were due when the last run planned, or are due again after their
#: destination took none of what was tried since, while another destination has held messages of their group.
_NOT_TAKEN = """
select placed.message_id
from messages placed
inner join behind on behind.group_id = placed.group_id
where
    placed.route = :route and placed.state = 'waiting' and placed.kind <> 'delay'
    and placed.next_attempt_at <= :now
    and (
        placed.next_attempt_at <= :planned_at
        or placed.destination in (
            select destination from delivery_slices
            where route = :route and closed_at >= :planned_at
            group by destination
            having sum(sent) = 0
        )
    )
    and (behind.one <> placed.destination or behind.other <> placed.destination)
"""


def put_off(
    ledger: Ledger, lease: RouteLease, gates: Collection[GroupGate], *, planned_at: datetime, now: datetime
) -> int:
    """Behind these gates, whose places are all taken, hold the messages that could go since ``planned_at`` and did not,
    if messages for another destination wait for a place: whatever keeps theirs from taking any must not keep others.

    It is known by what was not sent, not by why: a breaker, a missing permission, a full queue all look the same here.
    """
    with ledger.under(lease, now) as tx:
        tx.temporary("without_places", "group_id bigint primary key")
        tx.bulk("without_places", ("group_id",), [(group_id,) for group_id in breakers.unmoved(tx, gates)])
        tx.temporary("behind", "group_id bigint primary key, one text, other text")
        tx.execute(sql(_BEHIND))
        return move(
            tx,
            State.WAITING,
            State.HELD,
            few=_NOT_TAKEN,
            values={"planned_at": planned_at, "not_taken": NOT_TAKEN},
            set_="reason = :not_taken",
            action=Action.HOLD_BACK,
            reason=NOT_TAKEN,
        )


def hold_back(ledger: Ledger, lease: RouteLease, gates: Mapping[GroupGate, str], now: datetime) -> int:
    """Hold every waiting message behind these gates (gate -> reason)."""
    total = 0
    with ledger.under(lease, now) as tx:
        for group_id, reason in _of_unmoved(tx, gates):
            total += move(
                tx,
                State.WAITING,
                State.HELD,
                where=_OF_GROUP,
                values={"group_id": group_id, "why": reason},
                set_="reason = :why",
                action=Action.HOLD_BACK,
                reason=reason,
            )
    return total


def _of_unmoved(tx: RunTransaction, gates: Mapping[GroupGate, str]) -> list[tuple[int, str]]:
    """The groups whose gates are as they were read, with the reasons."""
    unmoved = breakers.unmoved(tx, gates)
    return [(gate.group_id, reason) for gate, reason in gates.items() if gate.group_id in unmoved]


def reopen_released(ledger: Ledger, lease: RouteLease, gates: Mapping[GroupGate, str], now: datetime) -> int:
    """The groups behind these gates keep coming back (gate -> reason): what a person released of them is asked again;
    how many. The rest stays where it is."""
    with ledger.under(lease, now) as tx:
        return sum(
            _reopen(tx, group_id, reason, state)
            for group_id, reason in _of_unmoved(tx, gates)
            for state in (State.WAITING, State.HELD)
        )


def put_to_review(ledger: Ledger, lease: RouteLease, gates: Mapping[GroupGate, str], now: datetime) -> dict[str, int]:
    """The canary behind these gates failed (gate -> reason): what a person released is asked again, the rest is to be
    asked about; so are sends of unknown fate that would be made again now."""
    reopened = to_review = 0
    with ledger.under(lease, now) as tx:
        for group_id, reason in _of_unmoved(tx, gates):
            values = {"group_id": group_id, "why": reason}
            common: dict[str, Any] = {
                "values": values, "set_": _ASKED_BECAUSE, "reason": reason, "action": Action.PUT_TO_REVIEW,
            }  # fmt: skip
            for state in (State.WAITING, State.HELD):
                reopened += _reopen(tx, group_id, reason, state)
                to_review += move(tx, state, State.TO_REVIEW, where=_OF_GROUP, **common)
            unknown = f"Nobody knows whether it was sent. {reason}"
            to_review += move(
                tx, State.UNKNOWN, State.TO_REVIEW, where=f"{_OF_GROUP} and {TO_RESEND}",
                **common | {"values": values | {"why": unknown}, "reason": unknown},
            )  # fmt: skip
    return {"reopened": reopened, "to_review": to_review}


def _reopen(tx: RunTransaction, group_id: int, reason: str, state: State) -> int:
    """Ask again about what a person released of the group and is in ``state``; how many."""
    values = {"group_id": group_id, "why": reason}
    released = f"{_OF_GROUP} and plan = '{Plan.RELEASE}'"
    escalations.reopen(
        tx,
        of="select message_id from messages where messages.route = :of_route and messages.group_id = :group_id"
        f" and kind <> 'delay' and plan = '{Plan.RELEASE}' and state = :state",
        why=":why",
        values=values | {"of_route": tx.route, "state": state.value},
    )
    return move(
        tx, state, State.ESCALATED, where=released, values=values, set_=_ASKED_BECAUSE, action=Action.REOPEN,
        reason=reason,
    )  # fmt: skip
