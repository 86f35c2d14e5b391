"""The search of the box in the corner: what it found in every state, and what the words may have meant."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from redrive.ledger.review import saved_filters
from redrive_ui import filters, formatting, search_request, search_suggestions, searching, shared_filters
from redrive_ui.pages.parameters import Requested, Sought, Word

router = APIRouter()


@router.get("/find", response_class=HTMLResponse)
def find_page(ctx: Requested, word: Sought = "", after: Word = "") -> Response:
    query = ctx.request.query_params
    declared = search_request.declared_fields(ctx.settings, ctx.readable)
    asked = search_request.Search.read({**dict(query), "word": word}, declared)
    if asked.route:
        ctx.require_readable(asked.route)
    with ctx.read() as connection:
        place = filters.whole_number("after", after) if after else None
        found = searching.search(connection, asked, ctx.readable, ctx.redactor, ctx.now, after=place)
        saved = saved_filters.all_of(connection)
    alone = found.rows[0] if len(found.rows) == 1 and not found.more else None
    if alone and alone["found_by"] == "id":
        return Response(status_code=303, headers={"location": f"{ctx.root}/messages/{alone['message_id']}"})
    return ctx.render(
        "find.html",
        asked=asked,
        word=word.strip(),
        found=found,
        after=after,
        declared=declared,
        suggestions=search_suggestions.suggestions(asked, ctx.settings, ctx.readable, declared),
        saved=shared_filters.Reader(ctx).shown(saved),
        states=list(search_request.STATES),
        queue_names=search_suggestions.source_queues(ctx.settings, ctx.readable),
        picker=formatting.picker,
    )
