"""What pages read of standing decisions: those that hold and ended, and what a new one would be about."""

from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy.engine import Connection

from redrive.ledger.review import standing
from redrive_ui.group_templates import Mask, templates
from redrive_ui.recent import DAYS
from redrive_ui.rows import Row, routes_in, rows_of


def listed(connection: Connection, readable: Collection[str], mask: Mask, now: datetime) -> list[Row]:
    """Standing decisions that hold, then those that ended, the newest first; each with whether it ``holds``, and
    the routes that may be read on which it is ``suspended``."""
    where, values = routes_in(readable, "standing_decisions.route")
    of_gates, _ = routes_in(readable, "gate.route")  # what is decided for every route is told where its failure is
    rows = rows_of(
        connection,
        "select standing_decisions.*, failure_groups.cause, case when revoked_at is null and until_at > :now then 1"
        " else 0 end as holds from standing_decisions inner join failure_groups on failure_groups.group_id ="
        f" standing_decisions.group_id where {where} or route is null and exists (select 1 from breakers gate where"
        f" gate.group_id = standing_decisions.group_id and {of_gates}) order by case when revoked_at is null and"
        " until_at > :now then 0 else 1 end, standing_id desc limit 200",
        now=now,
        **values,
    )
    suspended = rows_of(
        connection,
        "select standing_id, gate.route from standing_decisions inner join breakers gate on"
        f" {standing.SUSPENDED} where {of_gates} and revoked_at is null and until_at > :now order by gate.route",
        now=now,
        **values,
    )
    pairs = {(route, row["group_id"]) for row in rows for route in ([row["route"]] if row["route"] else readable)}
    said = templates(connection, readable, mask, pairs)
    for row in rows:
        row["suspended"] = [one["route"] for one in suspended if one["standing_id"] == row["standing_id"]]
        routes_of_it = [row["route"]] if row["route"] else sorted(readable)
        row["at_route"] = next((one for one in routes_of_it if (one, row["group_id"]) in said), None)
        row["template"] = said.get((row["at_route"], row["group_id"])) if row["at_route"] else None
    return rows


def preview(connection: Connection, readable: Collection[str], route: str, group_id: int, now: datetime) -> Row:
    """What a standing decision about a failure would be about: people were asked so often in the last two weeks on
    ``route``, and on every route that may be read (``everywhere``); ``open_messages`` are left alone by it."""
    where, values = routes_in(readable)
    rows = rows_of(
        connection,
        "select route, sum(case when escalated_at >= :since_at then 1 else 0 end) as lately, sum(case when status in"
        " ('open', 'refused', 'reopened') then 1 else 0 end) as open_messages from escalated_messages where"
        f" group_id = :group_id and {where} group by route",
        group_id=group_id,
        since_at=now - timedelta(days=DAYS),
        **values,
    )
    here = next((row for row in rows if row["route"] == route), {"lately": 0, "open_messages": 0})
    return {**here, "everywhere": sum(row["lately"] for row in rows)}
