"""Standing decisions: those that hold and those that ended, and the form that makes one."""

from datetime import timedelta

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from redrive_ui import decision_api, failure_queries, filters, standing_queries
from redrive_ui.pages.parameters import Requested, Word
from redrive_ui.protection import Refused
from redrive_ui.request_context import RequestContext

router = APIRouter()


@router.get("/standing", response_class=HTMLResponse)
def standing_page(ctx: Requested) -> Response:
    with ctx.read() as connection:
        rows = standing_queries.listed(connection, ctx.readable, ctx.mask, ctx.now)
    for row in rows:
        row["may_end"] = row["holds"] and _may_make_standing(ctx, row["route"])
        wants_two = any(
            settings.approvals > 1 for name, settings in ctx.settings.routes.items() if row["route"] in (None, name)
        )
        row["wants_two"] = wants_two and not row["approved_by"]
        row["may_approve"] = row["may_end"] and row["wants_two"] and not ctx.is_them(row["decided_by"])
    return ctx.render("standing.html", rows=rows)


@router.get("/standing/new", response_class=HTMLResponse)
def new_standing_page(ctx: Requested, route: Word, group: Word) -> Response:
    ctx.require_readable(route)
    decision_api.require_decidable(ctx, frozenset([route]))
    group_id = filters.whole_number("group", group) if group else None
    with ctx.read() as connection:
        found = None
        if group_id:
            found = failure_queries.group(connection, route, group_id, ctx.readable, ctx.mask, ctx.now)
        if found is None:
            raise Refused(404, f"nothing of group {group} was escalated on route {route!r}")
        coming = standing_queries.preview(connection, ctx.readable, route, found["group_id"], ctx.now)
    return ctx.render(
        "standing_new.html",
        group=found,
        coming=coming,
        may_all=_may_make_standing(ctx, None),
        known=ctx.settings.routes.get(route),
        ends=[
            (said, f"{ctx.now + timedelta(days=days):%Y-%m-%dT%H:%M}")
            for said, days in (("one day", 1), ("a week", 7), ("thirty days", 30))
        ],
    )


def _may_make_standing(ctx: RequestContext, route: str | None) -> bool:
    """Whether this person may decide for all that comes on ``route``, or on every route."""
    return all(map(ctx.may_decide, ctx.known)) if route is None else ctx.may_decide(route)
