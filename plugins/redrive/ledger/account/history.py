"""What became of a route's messages under the policy that it had, as counts of those that went the same way."""

from dataclasses import dataclass

from sqlalchemy.engine import Connection

from redrive.classification.causes import Cause
from redrive.ledger.engine import sql
from redrive.ledger.predicates import COUNTS
from redrive.ledger.selecting import Selection
from redrive.policy.replay import History


@dataclass(frozen=True, slots=True)
class Doubts:
    """How much of a history can't be taken at its word."""

    regrouped: int  # messages that failed for another reason before: the last one counts for all of their sends
    released: int  # messages that people sent again: what came of that is left out


def histories(connection: Connection, route: str, selection: Selection) -> list[History]:
    """The distinct histories of the selected messages; what people sent again is not part of them, nor are the sends
    that a consumer asked to have later, which did not fail, nor stay."""
    where, values = selection.where()
    rows = connection.execute(
        sql(
            "select kind, cause, group_id, carried, sends, fate, state, escalated, count(*) as n from ("
            " select messages.kind, messages.cause, messages.group_id,"
            "  messages.attempts - messages.requeues - messages.delays - messages.releases as carried,"
            "  coalesce(made.sends, 0) as sends, case when made.sends is null then 'none'"
            "   when newest.outcome = 'returned' then 'returned'"
            "   when newest.outcome in ('presumed', 'confirmed') then 'stayed' else 'open' end as fate,"
            "  case when messages.state in ('suppressed', 'discarded', 'held') then messages.state else 'other' end"
            "   as state, exists (select 1 from escalated_messages asked"
            "   where asked.message_id = messages.message_id) as escalated"
            " from messages left join (select message_id, count(*) as sends, max(attempt) as last"
            f"   from redelivery_attempts where route = :route and mode <> 'release' and {COUNTS}"
            "   group by message_id) made"
            "  on made.message_id = messages.message_id"
            " left join redelivery_attempts newest on newest.message_id = made.message_id"
            "  and newest.attempt = made.last"
            f" where messages.route = :route and {where}) histories"
            " group by kind, cause, group_id, carried, sends, fate, state, escalated"
        ),
        {"route": route, **values},
    )
    return [
        History(
            kind=row.kind,
            cause=Cause(row.cause) if row.cause is not None and row.kind != "delay" else None,
            group_id=row.group_id,
            carried=max(0, row.carried),  # a release that is decided and not yet sent counts already
            sends=row.sends,
            fate=row.fate,
            state=row.state,
            escalated=bool(row.escalated),
            messages=row.n,
        )
        for row in rows
    ]


def doubts(connection: Connection, route: str, selection: Selection) -> Doubts:
    """What to tell with a replay of these messages."""
    where, values = selection.where()
    row = connection.execute(
        sql(
            "select sum(case when releases > 0 then 1 else 0 end) as released,"
            " sum(case when exists (select 1 from redelivery_attempts made where made.message_id = messages.message_id"
            "  and made.mode <> 'release' and coalesce(made.group_id, 0) <> coalesce(messages.group_id, 0))"
            " then 1 else 0 end) as regrouped"
            f" from messages where route = :route and {where}"
        ),
        {"route": route, **values},
    ).one()
    return Doubts(regrouped=int(row.regrouped or 0), released=int(row.released or 0))


def templates(connection: Connection, group_ids: set[int]) -> dict[int, str]:
    """What the failures of these groups look like."""
    found: dict[int, str] = {}
    ids = sorted(group_ids)
    for start in range(0, len(ids), 500):
        part = ",".join(map(str, ids[start : start + 500]))  # ints only
        rows = connection.execute(sql(f"select group_id, template from failure_groups where group_id in ({part})"))
        found.update({row.group_id: row.template for row in rows})
    return found
