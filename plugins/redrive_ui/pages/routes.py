"""Where the routes stand: all of them at a glance, and one with its queues, gates, runs and charts."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response
from sqlalchemy.engine import Connection

from redrive.ledger.delivery import breakers
from redrive.ledger.review import visits
from redrive_ui import audit_trail, charts, recent, route_charts, route_queries
from redrive_ui.pages.parameters import Requested
from redrive_ui.request_context import RequestContext

router = APIRouter()
_RUNNING = ("classified", "waiting", "held", "sending", "sent", "unknown", "to_review")
_DONE = ("presumed", "confirmed", "suppressed")


@router.get("/", response_class=HTMLResponse)
def overview(ctx: Requested) -> Response:
    with ctx.read() as connection:
        context = _overview(connection, ctx)
        visit = visits.visit_of(connection, ctx.person.name, ctx.now)
        changed = audit_trail.changed(
            connection, ctx.readable, ctx.mask, ctx.person.name, visit, all_routes=ctx.reads_all
        )
    return ctx.render("overview.html", visit=visit, changed=changed, **context)


@router.get("/routes/{route}", response_class=HTMLResponse)
def route_page(ctx: Requested, route: str) -> Response:
    ctx.require_readable(route)
    with ctx.read() as connection:
        context = _route(connection, ctx, route)
    return ctx.render("route.html", **context)


def _overview(connection: Connection, ctx: RequestContext) -> dict[str, Any]:
    states = route_queries.states(connection, ctx.readable)
    holders = route_queries.holders(connection, ctx.readable)
    queues = route_queries.queues(connection, ctx.readable)
    gates = route_queries.gates(connection, ctx.readable)
    stopped = route_queries.stopped_destinations(connection, ctx.readable)
    staged = route_queries.staged(connection, ctx.readable)
    undecided = route_queries.undecided(connection, ctx.readable)
    alarms = route_queries.alarms(connection, ctx.readable)
    flows = route_queries.flows(connection, ctx.readable, ctx.now - timedelta(days=7))
    inflow, cut = route_queries.inflow(connection, ctx.readable, ctx.now)
    cards: list[dict[str, Any]] = []
    for name in sorted(ctx.readable):
        mine = states.get(name, {})
        sources = [one for one in queues.get(name, []) if one["role"] == "source"]
        depths = [one["visible"] for one in sources if one["visible"] is not None]
        old = [one for one in queues.get(name, []) if one["oldest_age_seconds"] is not None]
        flow = route_charts.flow_of(flows.get(name, []))
        cards.append(
            {
                "name": name,
                "title": ctx.settings.routes[name].title if name in ctx.settings.routes else "not configured any more",
                "undecided": undecided.get(name, 0),
                "under_way": sum(mine.get(state, 0) for state in _RUNNING),
                "done": sum(mine.get(state, 0) for state in _DONE),
                "staged": staged.get(name, 0),
                "holder": holders.get(name),
                "running": _is_held(holders.get(name), ctx.now),
                "run": route_queries.dag_run({**holders[name], "route": name}) if name in holders else None,
                "paused": bool(holders.get(name, {}).get("paused_at")),
                "depth": sum(depths) if depths else None,
                "untold": len(sources) - len(depths),
                "observed_at": max((one["observed_at"] for one in sources), default=None),
                "oldest": max(old, key=lambda one: one["oldest_age_seconds"], default=None),
                "gates": gates.get(name, {}),
                "stopped": stopped.get(name, 0),
                "alarms": sorted(alarms.get(name, {})),
                "flow": flow,
            }
        )
    cards.sort(key=lambda card: (-undecided.get(card["name"], 0), card["name"]))
    days = recent.days(ctx.now)
    return {
        "cards": cards,
        "inflow": route_charts.inflow(days, inflow),
        "names": route_charts.legend(inflow),
        "cut": cut,
        "funnel": route_charts.funnel([row for rows in flows.values() for row in rows]),
        "any_inflow": bool(inflow),
        "left_out": sorted(ctx.left_out),
    }


def _is_held(holder: Mapping[str, Any] | None, now: datetime) -> bool:
    """Whether a run holds the route that is there; one that died held it until its lease ended."""
    return bool(holder and holder["run_id"] and holder["lease_until"] and holder["lease_until"] > now)


def _route(connection: Connection, ctx: RequestContext, route: str) -> dict[str, Any]:
    only = [route]
    inflow, cut = route_queries.inflow(connection, only, ctx.now)
    flows = route_queries.flows(connection, only, ctx.now - timedelta(days=7)).get(route, [])
    settings = ctx.settings.routes.get(route)
    times = route_queries.times_to_outcome(connection, ctx.ledger, route, settings.slo if settings else None)
    holder = route_queries.holders(connection, only).get(route)
    runs = route_queries.runs(connection, route)
    for run in runs:
        run["dag_run"] = route_queries.dag_run(run)
    days = recent.days(ctx.now)
    return {
        "route": route,
        "settings": settings,
        "states": route_queries.states(connection, only).get(route, {}),
        "staged": route_queries.staged(connection, only).get(route, 0),
        "undecided": route_queries.undecided(connection, only).get(route, 0),
        "alarms": sorted(route_queries.alarms(connection, only).get(route, {})),
        "holder": holder,
        "running": _is_held(holder, ctx.now),
        "queues": route_queries.queues(connection, only).get(route, []),
        "stuck": route_queries.stuck_consumers(connection, route),
        "gates": route_queries.gates_of(connection, route, ctx.readable, ctx.mask),
        "destinations": [one for one in breakers.of_destinations(connection, route) if one.stage != "open"]
        if route_queries.stopped_destinations(connection, only)
        else [],
        "runs": runs,
        "flow": route_charts.flow_of(flows),
        "inflow": route_charts.inflow(days, inflow),
        "any_inflow": bool(inflow),
        "names": route_charts.legend(inflow),
        "cut": cut,
        "funnel": route_charts.funnel(flows),
        "ages": charts.histogram(
            [(one["name"], one["n"]) for one in route_queries.ages(connection, route, ctx.now)],
            "Unfinished messages by age since their first enqueue",
        ),
        "times": times,
        "per_day": [
            {"day": day, **route_charts.flow_of([row for row in flows if row["day"] == day])}
            for day in reversed(days[-7:])
        ],
    }
