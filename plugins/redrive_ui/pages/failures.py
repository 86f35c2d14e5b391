"""Failures, that is groups: the list of them by how far people are, and one with all about it."""

from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from redrive.classification.causes import Cause
from redrive_ui import charts, failure_queries, filters, formatting, message_queries, recent
from redrive_ui.filters import BadFilter, Filter
from redrive_ui.pages import filter_form
from redrive_ui.pages.advice import advice
from redrive_ui.pages.parameters import Chosen, Requested, Word
from redrive_ui.protection import Refused
from redrive_ui.rows import PAGE

router = APIRouter()


@router.get("/groups", response_class=HTMLResponse)
def groups_page(
    ctx: Requested, tab: Word = "waiting", route: Word = "", cause: Word = "", order: Word = "open", after: Word = ""
) -> Response:
    if route:
        ctx.require_readable(route)
    if cause and cause not in set(Cause):
        raise BadFilter("cause: not one of the eighteen")
    if order not in ("open", "oldest"):
        raise BadFilter("order: open or oldest")
    if tab not in failure_queries.TABS:
        raise BadFilter(f"tab: one of {', '.join(failure_queries.TABS)}")
    with ctx.read() as connection:
        rows, tabs = failure_queries.failures(
            connection, ctx.readable, ctx.mask, tab=tab, route=route, cause=cause, order=order, after=_group_key(after)
        )
        more, rows = len(rows) > PAGE, rows[:PAGE]
        trend = failure_queries.trends(
            connection, ctx.readable, {r["group_id"] for r in rows if r["group_id"]}, ctx.now
        )
    days = recent.days(ctx.now)
    for row in rows:
        per_day = trend.get((row["route"], row["group_id"]), {})
        row["trend"] = [per_day.get(day, 0) for day in days]
    return ctx.render(
        "groups.html",
        groups=rows,
        tab=tab,
        tabs=tabs,
        count_done=message_queries.COUNT_DONE,
        route=route,
        cause=cause,
        order=order,
        following="~".join(map(str, failure_queries.group_key(rows[-1]))) if more else "",
        after=after,
        may_decide={name for name in {row["route"] for row in rows} if ctx.may_decide(name)},
    )


@router.get("/groups/{route}/{group}", response_class=HTMLResponse)
def group_page(ctx: Requested, chosen: Chosen, route: str, group: str) -> Response:
    ctx.require_readable(route)
    here = Filter.read({**chosen.to_json(), "route": route, "group": group})
    with ctx.read() as connection:
        found = failure_queries.group(
            connection, route, None if group == filters.NO_GROUP else int(group), ctx.readable, ctx.mask, ctx.now
        )
        if found is None:
            raise Refused(404, f"nothing of group {group} was escalated on route {route!r}")
        listing = filter_form.listing(connection, ctx, here)
        outcome = failure_queries.outcomes(connection, route, [found["group_id"]] if found["group_id"] else [])
        trend = failure_queries.trends(connection, [route], [found["group_id"]] if found["group_id"] else [], ctx.now)
    for row in found["decided"]:
        row["may_approve"] = row["decided"] and ctx.may_approve(row)
    days = recent.days(ctx.now)
    per_day = trend.get((route, found["group_id"]), {})
    return ctx.render(
        "group.html",
        group=found,
        outcome=outcome.get(found["group_id"], {}),
        chart=charts.stacked_bars(
            days, {formatting.words(found["cause"]) or "messages": per_day}, "New messages per UTC day"
        ),
        advice=advice(ctx, route, found["cause"]),
        may_decide=ctx.may_decide(route),
        may_approve=filter_form.any_to_approve(ctx, listing["rows"]),
        **listing,
    )


def _group_key(text: str) -> tuple[Any, ...]:
    """The place after which a page of groups begins, as the link to it says; () for the first page."""
    if not text:
        return ()
    first, _, rest = text.partition("~")
    route, _, group = rest.partition("~")
    if not all(one.isascii() and one.isdigit() and len(one) < 19 for one in (first, group)):
        raise BadFilter("after: not a place in this list")
    return int(first), route, int(group)
