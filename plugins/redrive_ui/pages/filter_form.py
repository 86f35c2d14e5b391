"""The form that narrows messages, with the list under it, and the parts of it that the search has too."""

from typing import Any

from sqlalchemy.engine import Connection

from redrive_ui import filters, formatting, message_queries
from redrive_ui.filters import Filter
from redrive_ui.request_context import RequestContext
from redrive_ui.rows import PAGE, Row
from redrive_ui.search_suggestions import source_queues


def listing(connection: Connection, ctx: RequestContext, chosen: Filter) -> dict[str, Any]:
    """A page of messages, their number, and the filter form around them."""
    query = ctx.request.query_params
    after = query.get("after", "")
    place = filters.whole_number("after", after) if after else None
    oldest_first = query.get("order") == "oldest"
    settled = ctx.resolve(connection, chosen)
    rows = message_queries.page(connection, settled, ctx.readable, after=place, oldest_first=oldest_first)
    more, rows = len(rows) > PAGE, rows[:PAGE]
    return {
        "rows": rows,
        "total": message_queries.count(connection, settled, ctx.readable),
        "filter": chosen,
        "settled": settled,
        "picker": formatting.picker,
        "following": rows[-1]["escalation_id"] if more else None,
        "after": after,
        "order": "oldest" if oldest_first else "newest",
        "queue_names": source_queues(ctx.settings, ctx.readable),
    }


def any_to_approve(ctx: RequestContext, rows: list[Row]) -> bool:
    """Whether any of these waits for a second person, and this one can be that."""
    return any(row["status"] == "decided" and ctx.may_approve(row) for row in rows)
