"""Which attempts count for a breaker: those that carry the stage that it is at.

An attempt carries the stage of its group's breaker and that of its destination's: ``group_stage`` and
``destination_stage`` are a ``breakers.stage_id``, or null where it counts for none. It gets the present stage

- when its slice is closed, of a stage that lets through only so many: it has taken a place;
- when it stayed away, if it was sent since the stage began;
- when it came back, if it was sent since this series of stages began: a late return is seen by the stage that is.

What was sent since then is what was claimed since then: slices are numbered in order, and clocks of processes differ.
Of a slice in the middle of which a person began the stage, what its process says was sent later has taken a place too.

So a stage that knows as many outcomes as it has sent knows all of its own, and an open breaker, through which most
goes, costs nothing until an outcome is known. What a consumer put into a delay queue did not fail and counts for none;
nor does what nobody watches any more (:func:`forget_sends`). Each is written by who learns it, in the same transaction.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from redrive.ledger.engine import Ledger, sql
from redrive.ledger.predicates import COUNTS, listed
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.policy.gates import LIMITED

_TAKEN = listed(LIMITED)
#: The sends of a slice take places of the limited stage that their group's gate is at.
_TAKE_PLACES_OF_GROUPS = f"""
update redelivery_attempts set group_stage = breakers.stage_id
from breakers
where
    redelivery_attempts.slice_id = :slice_id and redelivery_attempts.sent_at is not null
    and (breakers.stage_slice < :slice_id or breakers.stage_at <= redelivery_attempts.sent_at)
    and breakers.route = :route and breakers.group_id = redelivery_attempts.group_id and breakers.stage in {_TAKEN}
"""
#: And of the limited stage that their destination's breaker is at.
_TAKE_PLACES_OF_DESTINATIONS = f"""
update redelivery_attempts set destination_stage = breakers.stage_id
from breakers
where
    redelivery_attempts.slice_id = :slice_id and redelivery_attempts.sent_at is not null
    and (breakers.stage_slice < :slice_id or breakers.stage_at <= redelivery_attempts.sent_at)
    and breakers.route = :route and breakers.destination = redelivery_attempts.destination
    and breakers.stage in {_TAKEN}
"""


def take_places(tx: RunTransaction, slice_id: int) -> None:
    """What was sent of a slice that is being closed counts for the limited stages that it was sent in."""
    limited = tx.execute(
        sql(
            "select count(group_id) as groups, count(destination) as destinations from breakers"
            f" where route = :route and stage in {_TAKEN}"
        )
    ).one()
    if limited.groups:
        tx.execute(sql(_TAKE_PLACES_OF_GROUPS), {"slice_id": slice_id})
    if limited.destinations:
        tx.execute(sql(_TAKE_PLACES_OF_DESTINATIONS), {"slice_id": slice_id})


#: For the SET of whoever writes an outcome: the attempts count for the present stages of their breakers, if they were
#: sent in a slice after the one in column ``{since}``.
_COUNT = """
    group_stage = coalesce(
        (
            select stage_id from breakers
            where
                breakers.route = redelivery_attempts.route and breakers.group_id = redelivery_attempts.group_id
                and breakers.{since} < redelivery_attempts.slice_id
        ),
        group_stage
    ),
    destination_stage = coalesce(
        (
            select stage_id from breakers
            where
                breakers.route = redelivery_attempts.route and breakers.destination = redelivery_attempts.destination
                and breakers.{since} < redelivery_attempts.slice_id
        ),
        destination_stage
    )
"""
#: Attempts that stayed away count for the present stages, if sent since those began. One of which nobody knew whether
#: it was sent took no place until now.
STAYED = _COUNT.format(since="stage_slice")
#: Attempts that came back count for the present stages, if sent since this series of stages began.
CAME_BACK = _COUNT.format(since="began_slice")


def forget_sends(tx: RunTransaction, which: str, values: Mapping[str, Any]) -> None:
    """Attempts (``which``, SQL) whose outcome nobody will see give their places back: others go instead."""
    tx.execute(
        sql(f"update redelivery_attempts set group_stage = null, destination_stage = null where {which}"), values
    )


#: Open breakers of groups that know more than so many outcomes, and those of destinations.
_FULL_OF_GROUPS = """
select breakers.stage_id
from breakers
inner join redelivery_attempts attempts on attempts.group_stage = breakers.stage_id
where breakers.route = :route and breakers.stage = 'open' and breakers.group_id is not null
group by breakers.stage_id
having count(*) > :most
"""
_FULL_OF_DESTINATIONS = """
select breakers.stage_id
from breakers
inner join redelivery_attempts attempts on attempts.destination_stage = breakers.stage_id
where breakers.route = :route and breakers.stage = 'open' and breakers.destination is not null
group by breakers.stage_id
having count(*) > :most
"""


def remember(ledger: Ledger, lease: RouteLease, most: int, now: datetime) -> None:
    """An open breaker that knows more than ``most`` outcomes forgets all but half as many, which it keeps in their
    proportion: what matters is what is new."""
    with ledger.under(lease, now) as tx:
        for full, column in ((_FULL_OF_GROUPS, "group_stage"), (_FULL_OF_DESTINATIONS, "destination_stage")):
            for stage_id in tx.execute(sql(full), {"most": most}).scalars().all():
                forget_half(tx, column, stage_id, most // 2)


def forget_half(tx: RunTransaction, column: str, stage_id: int, keep: int) -> None:
    """Begin a period to which, of each outcome of each group, the newest messages go over. None where the breaker is at
    another stage by now: a person began it anew, and nothing that was sent before counts for that."""
    counts = f"{column} = :stage_id and {COUNTS}"
    of = {"stage_id": stage_id}
    if not tx.execute(sql("update breakers set period = period + 1 where stage_id = :stage_id"), of).rowcount:
        return
    alike = tx.execute(
        sql(f"select group_id, outcome, count(*) as n from redelivery_attempts where {counts} group by 1, 2"), of
    ).all()
    known = sum(row.n for row in alike)
    for row in alike:
        of_group = {} if row.group_id is None else {"group_id": row.group_id}
        tx.execute(
            sql(
                f"update redelivery_attempts set {column} = {column} + 1 where (message_id, attempt) in"
                f" (select message_id, attempt from redelivery_attempts where {counts} and outcome = :outcome"
                f" and group_id {'= :group_id' if of_group else 'is null'} order by message_id desc limit :n)"
            ),
            {**of, **of_group, "outcome": row.outcome, "n": row.n * keep // known},
        )
