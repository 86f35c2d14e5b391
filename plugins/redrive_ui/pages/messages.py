"""Messages in review, those of a filter; and one message with all that is known of it."""

from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from redrive import corrections
from redrive.ledger.review import saved_filters
from redrive_ui import formatting, message_queries, route_queries, shared_filters, timeline
from redrive_ui.pages import filter_form
from redrive_ui.pages.advice import advice
from redrive_ui.pages.parameters import Chosen, Requested
from redrive_ui.protection import Refused
from redrive_ui.request_context import RequestContext
from redrive_ui.rows import Row

router = APIRouter()


@router.get("/messages", response_class=HTMLResponse)
def messages_page(ctx: Requested, chosen: Chosen) -> Response:
    if chosen.route:
        ctx.require_readable(chosen.route)
    with ctx.read() as connection:
        listing = filter_form.listing(connection, ctx, chosen)
        saved = saved_filters.all_of(connection)
    decidable = [route for route in {row["route"] for row in listing["rows"]} if ctx.may_decide(route)]
    return ctx.render(
        "messages.html",
        may_decide=bool(decidable),
        may_approve=filter_form.any_to_approve(ctx, listing["rows"]),
        saved=shared_filters.Reader(ctx).shown(saved),
        **listing,
    )


@router.get("/messages/{message_id}", response_class=HTMLResponse)
def message_page(ctx: Requested, message_id: int) -> Response:
    with ctx.read() as connection:
        found = message_queries.message(connection, message_id, ctx.readable) if 0 <= message_id < 1 << 63 else None
    if found is None:
        raise Refused(404, f"there is no message {message_id}, or you may not see it")
    return ctx.render("message.html", **_message(ctx, found))


def _message(ctx: RequestContext, found: Row) -> dict[str, Any]:
    route, review = found["route"], found["review"]
    body = None
    if review:
        masked = ctx.mask(route, review["payload"]) if review["payload"] is not None else None
        binary = bytes(review["payload_bytes"]) if review["payload_bytes"] is not None else None
        hidden = binary is not None and bool(ctx.redactor(route))  # nothing can be masked in what is no text
        body = {
            "text": masked,
            "formatted": formatting.formatted(masked),
            "masked": masked != review["payload"],
            "hex": formatting.hexadecimal(binary) if binary is not None and not hidden else None,
            "hidden": hidden,
        }
    settings = ctx.settings.routes.get(route)
    return {
        "message": found,
        "review": review,
        "body": body,
        "headers": timeline.headers_of(ctx.redactor(route).headers(review["headers"])) if review else [],
        "corrected_headers": _corrected_headers(ctx, route, review) if review else [],
        "life": timeline.events_of(found),
        "advice": advice(ctx, route, found["cause"]),
        "may_decide": ctx.may_decide(route),
        "approvals": settings.approvals if settings else 1,
        "dag_run": route_queries.dag_run,
    }


def _corrected_headers(ctx: RequestContext, route: str, review: Row) -> list[tuple[str, str | None]]:
    """By name what a header became, as it may be shown; None: it was left out."""
    try:
        changes = corrections.read_changes(review["corrected_headers"] or "{}")
    except ValueError:
        return []
    mask = ctx.redactor(route)
    return [(name, None if new is None else mask.header(name, new.value)) for name, new in changes.items()]
