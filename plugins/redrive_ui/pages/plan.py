"""What the next run of a route would do, and, when it is asked for, what lies in its queues."""

from datetime import datetime

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from redrive.errors import RedriveError
from redrive.ledger.selecting import Selection
from redrive.stages import peek
from redrive.stages.preview import preview as plan_of
from redrive_ui import formatting, group_templates
from redrive_ui.pages.parameters import Requested, Word
from redrive_ui.protection import Refused

router = APIRouter()


@router.get("/plan/{route}", response_class=HTMLResponse)
def plan_page(ctx: Requested, route: str, look: Word = "") -> Response:
    ctx.require_readable(route)
    if route not in ctx.settings.routes:
        raise Refused(404, f"route {route!r} is no longer in the configuration, so no run of it is planned")
    found = plan_of(ctx.settings, route, Selection(), now=ctx.now, ledger=ctx.ledger)
    with ctx.read() as connection:
        groups = [(route, row["group"]) for row in found["plan"]]
        said = group_templates.templates(connection, ctx.readable, ctx.mask, groups)
    for row in found["plan"]:
        row["template"] = said.get((route, row["group"]))
    peeks, peeked, trouble = peek.can_peek(ctx.settings, route), None, ""
    if look and peeks:
        try:
            peeked = peek.peek(ctx.settings, route)
        except RedriveError as error:
            trouble = str(error)
    return ctx.render(
        "plan.html",
        route=route,
        plan=found,
        peeks=peeks,
        peeked=peeked,
        trouble=trouble,
        total=sum(row["messages"] for row in found["plan"]),
        when=lambda value: _when(value, ctx.now),
    )


def _when(planned: object, now: datetime) -> str:
    """When something is due; what has been for a while is due now."""
    if not isinstance(planned, datetime):
        return str(planned or "")
    return formatting.ago(planned, now) if planned > now else "now"
