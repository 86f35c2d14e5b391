"""Who did what: the audit trail."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from redrive.audit_actions import Action
from redrive_ui import audit_trail, filters, formatting
from redrive_ui.pages.parameters import Requested, Word

router = APIRouter()


@router.get("/audit", response_class=HTMLResponse)
def audit_page(ctx: Requested, before: Word = "") -> Response:
    asked = audit_trail.Audit.read(dict(ctx.request.query_params))
    if asked.route:
        ctx.require_readable(asked.route)
    with ctx.read() as connection:
        place = filters.whole_number("before", before) if before else None
        events, following = audit_trail.audit(
            connection, asked, ctx.readable, ctx.now, all_routes=ctx.reads_all, before=place
        )
        actors = audit_trail.actors(connection) if ctx.reads_all else [ctx.person.name]
    return ctx.render(
        "audit.html",
        asked=asked,
        events=events,
        following=following,
        before=before,
        actors=actors,
        actions=[action.value for action in Action],
        meanings={action.value: action.meaning for action in Action},
        picker=formatting.picker,
    )
