"""The pages: what is shown at which address. All of them are GET requests that change nothing."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from pydantic import AfterValidator
from sqlalchemy.engine import Connection
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from redrive import corrections
from redrive.audit_actions import Action
from redrive.brokers import registry
from redrive.classification import causes
from redrive.classification.causes import Cause
from redrive.errors import RedriveError
from redrive.ledger.review import saved_filters, visits
from redrive.ledger.selecting import Selection
from redrive.restored_values import lock
from redrive.stages import peek
from redrive.stages.preview import preview as plan_of
from redrive.stages.review import bounds_of
from redrive_ui import (
    audit_trail,
    bulk_decisions,
    charts,
    decision_api,
    export,
    failure_queries,
    filters,
    formatting,
    message_queries,
    recent,
    route_queries,
    searching,
    timeline,
)
from redrive_ui.filters import BadFilter, Filter
from redrive_ui.identity import Person
from redrive_ui.protection import Refused
from redrive_ui.rendering import FILE_TYPES
from redrive_ui.request_context import RequestContext, person_of, request_context
from redrive_ui.rows import PAGE, Row

router = APIRouter()
Word = Annotated[str, Query(max_length=300), AfterValidator(lambda text: filters.storable("text", text))]
#: Ids and keys are as long as who gave them liked.
Sought = Annotated[str, Query(max_length=4096), AfterValidator(lambda text: filters.storable("text", text))]
Requested = Annotated[RequestContext, Depends(request_context)]


def _filter_of(request: Request) -> Filter:
    query = request.query_params
    return Filter.read({**dict(query), "ids": query.getlist("ids"), "failures": query.getlist("failures")})


Chosen = Annotated[Filter, Depends(_filter_of)]


@router.get("/", response_class=HTMLResponse)
def overview(ctx: Requested) -> Response:
    with ctx.read() as connection:
        context = _overview(connection, ctx)
        visit = visits.visit_of(connection, ctx.person.name, ctx.now)
        changed = audit_trail.changed(connection, ctx.readable, ctx.person.name, visit, all_routes=ctx.reads_all)
    return ctx.render("overview.html", visit=visit, changed=changed, **context)


@router.get("/audit", response_class=HTMLResponse)
def audit_page(ctx: Requested, before: Word = "") -> Response:
    asked = audit_trail.Audit.read(dict(ctx.request.query_params))
    if asked.route:
        ctx.require_readable(asked.route)
    with ctx.read() as connection:
        events, following = audit_trail.audit(
            connection, asked, ctx.readable, ctx.now, all_routes=ctx.reads_all, before=_whole_number("before", before)
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


@router.get("/standing", response_class=HTMLResponse)
def standing_page(ctx: Requested) -> Response:
    with ctx.read() as connection:
        rows = failure_queries.standing(connection, ctx.readable, ctx.now)
    me = ctx.person.name.strip().lower()
    for row in rows:
        row["may_end"] = row["holds"] and _may_make_standing(ctx, row["route"])
        wants_two = any(
            settings.approvals > 1 for name, settings in ctx.settings.routes.items() if row["route"] in (None, name)
        )
        row["wants_two"] = wants_two and not row["approved_by"]
        row["may_approve"] = row["may_end"] and row["wants_two"] and row["decided_by"].strip().lower() != me
    return ctx.render("standing.html", rows=rows)


@router.get("/standing/new", response_class=HTMLResponse)
def new_standing_page(ctx: Requested, route: Word, group: Word) -> Response:
    ctx.require_readable(route)
    decision_api.require_decidable(ctx, frozenset([route]))
    group_id = _whole_number("group", group)
    with ctx.read() as connection:
        found = failure_queries.group(connection, route, group_id, ctx.readable, ctx.now) if group_id else None
        if found is None:
            raise Refused(404, f"nothing of group {group} was escalated on route {route!r}")
        coming = failure_queries.standing_preview(connection, ctx.readable, route, found["group_id"], ctx.now)
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


@router.get("/routes/{route}", response_class=HTMLResponse)
def route_page(ctx: Requested, route: str) -> Response:
    ctx.require_readable(route)
    with ctx.read() as connection:
        context = _route(connection, ctx, route)
    return ctx.render("route.html", **context)


@router.get("/plan/{route}", response_class=HTMLResponse)
def plan_page(ctx: Requested, route: str, look: Word = "") -> Response:
    ctx.require_readable(route)
    if route not in ctx.settings.routes:
        raise Refused(404, f"route {route!r} is no longer in the configuration, so no run of it is planned")
    found = plan_of(ctx.settings, route, Selection(), now=ctx.now)
    with ctx.read() as connection:
        said = failure_queries.templates(connection, ctx.readable, [(route, row["group"]) for row in found["plan"]])
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
            connection, ctx.readable, tab=tab, route=route, cause=cause, order=order, after=_group_key(after)
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
        route=route,
        cause=cause,
        order=order,
        following="~".join(map(str, failure_queries.group_key(rows[-1], order))) if more else "",
        after=after,
        may_decide={name for name in {row["route"] for row in rows} if ctx.may_decide(name)},
    )


@router.get("/groups/{route}/{group}", response_class=HTMLResponse)
def group_page(ctx: Requested, chosen: Chosen, route: str, group: str) -> Response:
    ctx.require_readable(route)
    here = Filter.read({**chosen.to_json(), "route": route, "group": group})
    with ctx.read() as connection:
        found = failure_queries.group(
            connection, route, None if group == filters.NO_GROUP else int(group), ctx.readable, ctx.now
        )
        if found is None:
            raise Refused(404, f"nothing of group {group} was escalated on route {route!r}")
        listing = _listing(connection, ctx, here)
        outcome = failure_queries.outcomes(connection, route, [found["group_id"]] if found["group_id"] else [])
        trend = failure_queries.trends(connection, [route], [found["group_id"]] if found["group_id"] else [], ctx.now)
    for row in found["decided"]:
        row["may_approve"] = row["decided"] and _is_second(ctx, row)
    days = recent.days(ctx.now)
    per_day = trend.get((route, found["group_id"]), {})
    return ctx.render(
        "group.html",
        group=found,
        outcome=outcome.get(found["group_id"], {}),
        chart=charts.stacked_bars(
            days, {formatting.words(found["cause"]) or "messages": per_day}, "New messages per UTC day"
        ),
        advice=_advice(ctx, route, found["cause"]),
        may_decide=ctx.may_decide(route),
        may_approve=_may_approve(ctx, listing["rows"]),
        **listing,
    )


@router.get("/messages", response_class=HTMLResponse)
def messages_page(ctx: Requested, chosen: Chosen) -> Response:
    if chosen.route:
        ctx.require_readable(chosen.route)
    with ctx.read() as connection:
        listing = _listing(connection, ctx, chosen)
        saved = saved_filters.all_of(connection)
    decidable = [route for route in {row["route"] for row in listing["rows"]} if ctx.may_decide(route)]
    return ctx.render(
        "messages.html",
        may_decide=bool(decidable),
        may_approve=_may_approve(ctx, listing["rows"]),
        saved=_shown_filters(ctx, saved),
        **listing,
    )


@router.get("/messages/{message_id}", response_class=HTMLResponse)
def message_page(ctx: Requested, message_id: int) -> Response:
    with ctx.read() as connection:
        found = message_queries.message(connection, message_id, ctx.readable) if 0 <= message_id < 1 << 63 else None
    if found is None:
        raise Refused(404, f"there is no message {message_id}, or you may not see it")
    return ctx.render("message.html", **_message(ctx, found))


@router.get("/find", response_class=HTMLResponse)
def find_page(ctx: Requested, word: Sought = "", after: Word = "") -> Response:
    query = ctx.request.query_params
    declared = searching.declared_fields(ctx.settings, ctx.readable)
    asked = searching.Search.read({**dict(query), "word": word}, declared)
    if asked.route:
        ctx.require_readable(asked.route)
    with ctx.read() as connection:
        found = searching.search(
            connection, asked, ctx.readable, ctx.redactor, ctx.now, after=_whole_number("after", after)
        )
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
        suggestions=searching.suggestions(asked, ctx.settings, ctx.readable, declared),
        saved=_shown_filters(ctx, saved),
        states=list(searching.STATES),
        queue_names=_queue_names(ctx),
        picker=formatting.picker,
    )


@router.get("/decide", response_class=HTMLResponse)
def decide_page(ctx: Requested, chosen: Chosen, action: Word = "") -> Response:
    if action not in bulk_decisions.ACTIONS:
        raise BadFilter(f"action: one of {', '.join(bulk_decisions.ACTIONS)}")
    chosen = decision_api.filter_for(action, chosen)
    with ctx.read() as connection:
        chosen = ctx.resolve(connection, chosen)
        found = bulk_decisions.preview(connection, action, chosen, ctx.readable, ctx.person.name)
        examples = message_queries.page(connection, chosen, ctx.readable, size=3)[:3] if found.count else []
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
        seen_at=ctx.now.isoformat(),
    )


@router.get("/results", response_class=HTMLResponse)
def results_page(ctx: Requested, decided_by: Word = "", decided_at: Word = "") -> Response:
    moment = filters.instant("decided_at", decided_at)
    if moment is None or not decided_by:
        raise BadFilter("decided_at and decided_by: which decision")
    with ctx.read() as connection:
        rows = failure_queries.results(
            connection,
            ctx.readable,
            "decided_at = :then_at and decided_by = :who",
            {"then_at": moment, "who": decided_by},
        )
        following = failure_queries.next_failure(connection, ctx.readable)
    for row in rows:
        row["may_approve"] = row["decided"] and _is_second(ctx, row)
    routes = sorted({row["route"] for row in rows})
    return ctx.render(
        "results.html",
        results=rows,
        decided_by=decided_by,
        moment=moment,
        total=sum(row["n"] for row in rows),
        undecided=sum(row["decided"] for row in rows),
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


@router.get("/messages.csv")
def messages_as_csv(ctx: Requested, chosen: Chosen) -> Response:
    if chosen.route:
        ctx.require_readable(chosen.route)
    exports = ctx.app_state.exports
    if not exports.acquire(blocking=False):
        raise Refused(429, "others are exporting already: try again in a minute")
    try:
        with ctx.read() as connection:
            ids = message_queries.ids(connection, ctx.resolve(connection, chosen), ctx.readable, export.MAX_ROWS + 1)
        rows = _rows_of(ctx, ids[: export.MAX_ROWS])
        return _Export(
            export.portions(rows, ctx.mask, cut=len(ids) > export.MAX_ROWS),
            done=exports.release,
            media_type="text/csv; charset=utf-8",
            headers={"content-disposition": f'attachment; filename="redrive-{ctx.now:%Y%m%d-%H%M%S}.csv"'},
        )
    except BaseException:
        exports.release()
        raise


class _Export(StreamingResponse):
    """A stream of which somebody is told when it is over, however it ends."""

    def __init__(self, content: Iterator[str], *, done: Callable[[], None], **options: Any) -> None:
        super().__init__(content, **options)
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._done()


@router.get("/messages/{message_id}/payload")
def payload(ctx: Requested, message_id: int) -> Response:
    """The body as a file: byte for byte where its route masks nothing, else with what is masked left out."""
    with ctx.read() as connection:
        found = message_queries.message(connection, message_id, ctx.readable) if 0 <= message_id < 1 << 63 else None
    review = found["reviews"][0] if found and found["reviews"] else None
    if found is None or review is None:
        raise Refused(404, f"there is no payload of message {message_id} here, or you may not see it")
    if review["payload"] is not None:
        body = ctx.mask(found["route"], review["payload"]).encode()
    elif ctx.redactor(found["route"]):
        raise Refused(403, "it is no text, so what the route's redaction names can't be masked in it")
    else:
        body = bytes(review["payload_bytes"] or b"")
    return Response(
        body,
        media_type="application/octet-stream",
        headers={"content-disposition": f'attachment; filename="redrive-{message_id}.bin"'},
    )


@router.get("/static/{name}")
def static(request: Request, _who: Annotated[Person, Depends(person_of)], name: str) -> Response:
    files = request.app.state.redrive.templates.files
    if name not in files:
        raise Refused(404, "there is no such file")
    return Response(
        files[name],
        media_type=FILE_TYPES[Path(name).suffix],
        headers={"cache-control": "private, max-age=86400"},  # its address changes with its content
    )


# --- what the pages show --------------------------------------------------------------------------------------

_RUNNING = ("classified", "waiting", "held", "sending", "sent", "unknown", "to_review")
_DONE = ("presumed", "confirmed", "suppressed")


def _overview(connection: Connection, ctx: RequestContext) -> dict[str, Any]:
    states = route_queries.states(connection, ctx.readable)
    holders = route_queries.holders(connection, ctx.readable)
    queues = route_queries.queues(connection, ctx.readable)
    gates = route_queries.gates(connection, ctx.readable)
    undecided = route_queries.undecided(connection, ctx.readable)
    alarms = route_queries.alarms(connection, ctx.readable)
    flows = route_queries.flows(connection, ctx.readable, ctx.now - timedelta(days=7))
    inflow, cut = route_queries.inflow(connection, ctx.readable, ctx.now)
    cards: list[dict[str, Any]] = []
    for name in sorted(ctx.readable):
        mine = states.get(name, {})
        sources = [one for one in queues.get(name, []) if one["role"] == "source"]
        old = [one for one in queues.get(name, []) if one["oldest_age_seconds"] is not None]
        flow = flow_of(flows.get(name, []))
        cards.append(
            {
                "name": name,
                "title": ctx.settings.routes[name].title if name in ctx.settings.routes else "not configured any more",
                "undecided": undecided.get(name, 0),
                "under_way": sum(mine.get(state, 0) for state in _RUNNING),
                "done": sum(mine.get(state, 0) for state in _DONE),
                "holder": holders.get(name),
                "run": route_queries.dag_run({**holders[name], "route": name}) if name in holders else None,
                "paused": bool(holders.get(name, {}).get("paused_at")),
                "depth": sum(one["visible"] or 0 for one in sources) if sources else None,
                "observed_at": max((one["observed_at"] for one in sources), default=None),
                "oldest": max(old, key=lambda one: one["oldest_age_seconds"], default=None),
                "gates": gates.get(name, {}),
                "alarms": sorted(alarms.get(name, {})),
                "flow": flow,
            }
        )
    cards.sort(key=lambda card: (-undecided.get(card["name"], 0), card["name"]))
    days = recent.days(ctx.now)
    return {
        "cards": cards,
        "inflow": _inflow_chart(days, inflow),
        "names": _legend(inflow),
        "cut": cut,
        "funnel": _funnel([row for rows in flows.values() for row in rows]),
        "any_inflow": bool(inflow),
        "left_out": sorted(ctx.left_out),
    }


def _route(connection: Connection, ctx: RequestContext, route: str) -> dict[str, Any]:
    only = [route]
    inflow, cut = route_queries.inflow(connection, only, ctx.now)
    flows = route_queries.flows(connection, only, ctx.now - timedelta(days=7)).get(route, [])
    settings = ctx.settings.routes.get(route)
    times = route_queries.times_to_outcome(connection, ctx.ledger, route, settings.slo if settings else None)
    runs = route_queries.runs(connection, route)
    for run in runs:
        run["dag_run"] = route_queries.dag_run(run)
    days = recent.days(ctx.now)
    return {
        "route": route,
        "settings": settings,
        "states": route_queries.states(connection, only).get(route, {}),
        "undecided": route_queries.undecided(connection, only).get(route, 0),
        "alarms": sorted(route_queries.alarms(connection, only).get(route, {})),
        "holder": route_queries.holders(connection, only).get(route),
        "queues": route_queries.queues(connection, only).get(route, []),
        "stuck": route_queries.stuck_consumers(connection, route),
        "gates": route_queries.gates_of(connection, route, ctx.readable),
        "runs": runs,
        "flow": flow_of(flows),
        "inflow": _inflow_chart(days, inflow),
        "any_inflow": bool(inflow),
        "names": _legend(inflow),
        "cut": cut,
        "funnel": _funnel(flows),
        "ages": charts.histogram(
            [(one["name"], one["n"]) for one in route_queries.ages(connection, route, ctx.now)],
            "Unfinished messages by age since their first enqueue",
        ),
        "times": times,
        "per_day": [
            {"day": day, **flow_of([row for row in flows if row["day"] == day])} for day in reversed(days[-7:])
        ],
    }


def flow_of(rows: list[Row]) -> dict[str, int]:
    """What moved: in, sent again, stayed away, proved, returned, to people, discarded.

    A message that stayed away and came back after all counts as returned, not as both.
    """
    found = dict.fromkeys(("new", "sent", "stayed", "proved", "returned", "people", "discarded", "suppressed"), 0)
    for row in rows:
        source, target, n = row["from_state"], row["to_state"], row["n"]
        if target == "classified" and source is None:
            found["new"] += n
        elif target == "sent":
            found["sent"] += n
        elif target in ("presumed", "confirmed"):
            found["proved"] += n if target == "confirmed" else 0
            found["stayed"] += n if source in ("sent", "unknown") else 0
        elif target == "returned":
            found["returned"] += n
            found["stayed"] -= n if source in ("presumed", "confirmed") else 0
            found["proved"] -= n if source == "confirmed" else 0
        elif target == "escalated":
            found["people"] += n
        elif target in ("discarded", "suppressed"):
            found[target] += n
    return {name: max(0, n) for name, n in found.items()}


def _funnel(rows: list[Row]) -> Any:
    flow = flow_of(rows)
    steps = [
        ("came in", flow["new"]),
        ("sent again", flow["sent"]),
        ("stayed away", flow["stayed"]),
        ("proved processed", flow["proved"]),
        ("came back", flow["returned"]),
        ("to people", flow["people"]),
    ]
    return charts.funnel(steps, "What became of messages in the last seven days")


def _inflow_chart(days: list[str], inflow: dict[str, dict[str, int]]) -> Any:
    named = {formatting.words(name): per_day for name, per_day in inflow.items()}
    return charts.stacked_bars(days, named, "New messages per UTC day, by cause")


def _legend(inflow: dict[str, dict[str, int]]) -> list[tuple[str, int]]:
    totals = {formatting.words(name): sum(per_day.values()) for name, per_day in inflow.items()}
    names = charts.ranked(totals)
    rest = sum(n for name, n in totals.items() if name not in names)
    return [(name, totals.get(name, rest)) for name in names]


def _listing(connection: Connection, ctx: RequestContext, chosen: Filter) -> dict[str, Any]:
    """A page of messages, their number, and the filter form around them."""
    query = ctx.request.query_params
    after = query.get("after", "")
    _whole_number("after", after)
    oldest_first = query.get("order") == "oldest"
    settled = ctx.resolve(connection, chosen)
    rows = message_queries.page(
        connection, settled, ctx.readable, after=int(after) if after else None, oldest_first=oldest_first
    )
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
        "queue_names": _queue_names(ctx),
    }


def _queue_names(ctx: RequestContext) -> list[str]:
    """The sources of the routes that may be read."""
    return sorted(
        {s.queue for name in ctx.readable if name in ctx.settings.routes for s in ctx.settings.routes[name].sources}
    )


def _shown_filters(ctx: RequestContext, saved: list[Row]) -> list[Row]:
    """The saved filters that are about nothing that this person may not read."""
    shown = []
    for one in saved:
        route = dict(parse_qsl(one["query"])).get("route", "")
        if not route or route in ctx.readable:
            shown.append({**one, "may_remove": ctx.may_remove(one["saved_by"])})
    return shown


def _whole_number(name: str, text: str) -> int | None:
    if text and not (text.isascii() and text.isdigit() and len(text) < 19):
        raise BadFilter(f"{name}: a whole number")
    return int(text) if text else None


def _may_approve(ctx: RequestContext, rows: list[Row]) -> bool:
    """Whether any of these waits for a second person, and this one can be that."""
    return any(row["status"] == "decided" and _is_second(ctx, row) for row in rows)


def _is_second(ctx: RequestContext, row: Row) -> bool:
    """Whether what was decided in ``row`` wants a second person, and this one can be that."""
    return (
        not row["approved_by"]
        and row["decided_by"].strip().lower() != ctx.person.name.strip().lower()
        and row["route"] in ctx.settings.routes
        and ctx.settings.routes[row["route"]].approvals > 1
        and ctx.may_decide(row["route"])
    )


def _rows_of(ctx: RequestContext, ids: list[int]) -> Iterator[Row]:
    """The rows of these escalations, read in portions, each for itself."""
    for start in range(0, len(ids), 500):
        portion = ids[start : start + 500]
        with ctx.read() as connection:
            rows = {row["escalation_id"]: row for row in message_queries.by_ids(connection, portion)}
        yield from (rows[one] for one in portion if one in rows)


def _message(ctx: RequestContext, found: Row) -> dict[str, Any]:
    route, review = found["route"], found["reviews"][0] if found["reviews"] else None
    body = None
    if review:
        masked = ctx.mask(route, review["payload"]) if review["payload"] is not None else None
        body = {
            "text": masked,
            "formatted": formatting.formatted(masked),
            "masked": masked != review["payload"],
            "hex": formatting.hexadecimal(bytes(review["payload_bytes"]))
            if review["payload_bytes"] is not None
            else None,
        }
    settings = ctx.settings.routes.get(route)
    return {
        "message": found,
        "review": review,
        "body": body,
        "headers": timeline.headers_of(ctx.redactor(route).headers(review["headers"])) if review else [],
        "corrected_headers": _corrected_headers(ctx, route, review) if review else [],
        "life": timeline.events_of(found),
        "advice": _advice(ctx, route, found["cause"]),
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


def _advice(ctx: RequestContext, route: str, cause: str | None) -> tuple[str, str] | None:
    """What the cause means, and how to make it not happen again, with the knobs of the route's broker."""
    if cause not in set(Cause):
        return None
    broker = ctx.settings.routes[route].broker if route in ctx.settings.routes else ""
    return causes.meaning(Cause(cause)), registry.advice(Cause(cause), broker)


def _group_key(text: str) -> tuple[Any, ...]:
    """The place after which a page of groups begins, as the link to it says; () for the first page."""
    if not text:
        return ()
    first, _, rest = text.partition("~")
    route, _, group = rest.partition("~")
    if not all(one.isascii() and one.isdigit() and len(one) < 19 for one in (first, group)):
        raise BadFilter("after: not a place in this list")
    return int(first), route, int(group)
