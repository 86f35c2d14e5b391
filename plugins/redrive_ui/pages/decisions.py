"""Deciding: what a decision would be about before it is taken, and what became of it afterwards."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from redrive.restored_values import lock
from redrive.stages.review import bounds_of
from redrive_ui import (
    bulk_decisions,
    decision_api,
    failure_queries,
    filters,
    message_queries,
    result_queries,
    route_queries,
)
from redrive_ui.filters import BadFilter
from redrive_ui.pages.parameters import Chosen, Requested, Word

router = APIRouter()


@router.get("/decide", response_class=HTMLResponse)
def decide_page(ctx: Requested, chosen: Chosen, action: Word = "") -> Response:
    if action not in bulk_decisions.ACTIONS:
        raise BadFilter(f"action: one of {', '.join(bulk_decisions.ACTIONS)}")
    chosen = decision_api.filter_for(action, chosen)
    with ctx.read() as connection:
        chosen = ctx.resolve(connection, chosen)
        found = bulk_decisions.preview(connection, action, chosen, ctx.readable, ctx.person.name, ctx.mask)
        examples = message_queries.page(connection, chosen, ctx.readable, size=3)[:3] if found.count else []
        holders = route_queries.holders(connection, found.routes)
    decision_api.require_decidable(ctx, found.routes)
    if action == "edit" and found.count > 1:
        raise BadFilter("edit: one message at a time")
    original, fields, binary = None, [], False
    if action == "edit" and examples:
        with ctx.read() as connection:
            one = bulk_decisions.to_correct(connection, chosen, ctx.readable, by=ctx.person.name, up_to=found.up_to)
        if one is not None:
            mask, bounds = ctx.redactor(one.route), bounds_of(ctx.settings.routes.get(one.route))
            original = lock(one.original.payload, mask) if one.original.payload is not None else None
            binary = one.original.payload is None
            fields = bulk_decisions.header_fields(one.original, bounds, mask)
    return ctx.render(
        "decide.html",
        preview=found,
        filter=chosen,
        action=action,
        examples=examples,
        original=original,
        fields=fields,
        binary=binary,
        paused=[holder for _, holder in sorted(holders.items()) if holder["paused_at"]],
        seen_at=ctx.now.isoformat(),
    )


@router.get("/results", response_class=HTMLResponse)
def results_page(ctx: Requested, decided_by: Word = "", decided_at: Word = "") -> Response:
    moment = filters.instant("decided_at", decided_at)
    if moment is None or not decided_by:
        raise BadFilter("decided_at and decided_by: which decision")
    together = {"then_at": moment, "who": decided_by}
    with ctx.read() as connection:
        rows = result_queries.results(connection, ctx.readable, ctx.mask, result_queries.TOGETHER, together)
        totals = result_queries.totals(connection, ctx.readable, together)
        following = failure_queries.next_failure(connection, ctx.readable)
    for row in rows:
        row["may_approve"] = row["decided"] and ctx.may_approve(row)
    routes = [row["route"] for row in totals]
    return ctx.render(
        "results.html",
        results=rows,
        decided_by=decided_by,
        moment=moment,
        total=sum(row["n"] for row in totals),
        undecided=sum(row["undecided"] for row in totals),
        newest=result_queries.NEWEST,
        most=result_queries.MOST,
        undo={
            "action": "withdraw",
            "filter": {"decided_by": decided_by, "decided_at": decided_at},
            "routes": routes,
            "up_to": (1 << 53) - 1,  # all of them, in a number that scripts know exactly
            "note": "taken back",
        },
        may_undo=all(ctx.may_decide(route) for route in routes),
        following=following,
    )
