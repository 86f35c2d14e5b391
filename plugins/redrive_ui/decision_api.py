"""What the page writes, but for rulings: each a ``POST`` of JSON to ``/api/…``, of which all is checked first."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, TypeGuard

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from redrive.corrections import Correction
from redrive.ledger.review import issues, saved_filters, standing, visits
from redrive.lifecycle import Decision, IssueStatus
from redrive.restored_values import lock
from redrive.stages.review import bounds_of
from redrive_ui import bulk_decisions, failure_queries, filters, shared_filters
from redrive_ui.filters import Filter
from redrive_ui.identity import Person
from redrive_ui.protection import Refused, bounded_json, refuse_forged
from redrive_ui.request_context import RequestContext, person_of, request_context

router = APIRouter()
_MAX_NOTE = 2_000
#: What :meth:`redrive.ledger.dialects.Dialect.seen` tells: a number, or a snapshot of PostgreSQL.
_SEEN = re.compile(r"[0-9]{1,18}(:[0-9]{1,18}:[0-9,]{0,20000})?")
#: A reason has so many characters at least.
MIN_NOTE = 3


async def answered(
    request: Request, person: Person, work: Callable[[RequestContext, dict[str, Any]], dict[str, Any]]
) -> Response:
    """What ``work`` makes of the request's JSON, in a thread; what another site has sent is refused first."""
    refuse_forged(request)
    given = await bounded_json(request)
    return JSONResponse(await run_in_threadpool(lambda: work(request_context(request, person), given)))


#: No question has this id.
NO_QUESTION = 0


@router.post("/api/decisions")
async def decide(request: Request, person: Annotated[Person, Depends(person_of)]) -> Response:
    """Decides what the body says and answers ``{"action", "count", "by"}``; see docs/review-page.md.

    ``at`` is when it was decided, by which all of it is found again, to see what became of it or to undo it. With what
    a preview showed (``expected``, ``since``) the answer says who was ``faster``, where less than that was decided.
    ``stopped``: the ledger could not take the rest.
    """
    return await answered(request, person, _decide)


def filter_for(action: str, chosen: Filter) -> Filter:
    """The filter with the status that the action is about."""
    if action in ("approve", "withdraw"):
        return replace(chosen, status="decided")
    return chosen if chosen.status in ("undecided", "refused") else replace(chosen, status="undecided")


def require_decidable(ctx: RequestContext, routes: frozenset[str]) -> None:
    """Raise :class:`Refused` unless this person may decide on all of these routes; hidden ones are not named."""
    ctx.require_all(routes, "it is about routes that you may not see, so it isn't yours to decide")
    forbidden = sorted(route for route in routes if not ctx.may_decide(route))
    if forbidden:
        raise Refused(
            403,
            f"you may read but not decide on {', '.join(forbidden)}: that needs the right to trigger"
            f" {', '.join(f'redrive_{route}' for route in forbidden)}",
        )


def _decide(ctx: RequestContext, given: dict[str, Any]) -> dict[str, Any]:
    """Take the decision that the body of a request describes; what is wrong with it is said before anything is done."""
    unknown = set(given) - {
        "action",
        "filter",
        "routes",
        "up_to",
        "expected",
        "since",
        "seen",
        "note",
        "corrected_body",
        "corrected_headers",
        "restore",
    }
    if unknown:
        raise Refused(400, f"unknown: {', '.join(sorted(unknown))[:200]}")
    action, up_to = given.get("action"), given.get("up_to")
    if action not in bulk_decisions.ACTIONS:
        raise Refused(400, f"action: one of {', '.join(bulk_decisions.ACTIONS)}")
    if not is_count(up_to):
        raise Refused(400, "up_to: the newest escalation that the preview showed")
    expected, previewed = _previewed(given)
    seen = given.get("seen")
    if seen is not None and not (isinstance(seen, str) and _SEEN.fullmatch(seen)):
        raise Refused(400, "seen: what the preview showed, as it says it")
    note = given.get("note", "")
    if not isinstance(note, str) or len(note) > _MAX_NOTE:
        raise Refused(400, f"note: text of at most {_MAX_NOTE} characters")
    note = "".join(c for c in note if c.isprintable() or c in "\n\t").strip()
    if action != "approve" and len(note) < MIN_NOTE:
        raise Refused(400, "note: say why; it is what the next person reads")
    correction = _correction_in(given)
    if (action == "edit") != (correction is not None):
        raise Refused(400, "corrected_body or corrected_headers: needed for an edit, and only there")
    narrowed = given.get("filter")
    if not isinstance(narrowed, dict):
        raise Refused(400, "filter: an object")
    chosen = filter_for(action, Filter.read_strictly(narrowed))
    named = _routes_in(given)
    if not (chosen.route or chosen.ids or chosen.failures or named):
        raise Refused(
            400, "routes: name those that the preview showed; or filter: a route, failures, or messages by id"
        )
    readable = ctx.readable if named is None else ctx.readable & named
    by = ctx.person.name
    with ctx.read() as connection:
        chosen = ctx.resolve(connection, chosen, up_to=up_to)
        routes = bulk_decisions.routes_of(connection, action, chosen, readable, by, up_to)
        if action == "edit" and bulk_decisions.preview(connection, action, chosen, readable, by, ctx.mask).count > 1:
            raise Refused(400, "edit: one message at a time")
    require_decidable(ctx, routes)
    if correction is not None:
        found, correction = _corrected(ctx, chosen, routes, correction, up_to, restore=given.get("restore") is True)
        # What was held against this message, and has its masked values, is no other one's.
        chosen = replace(chosen, ids=(found.escalation_id if found is not None else NO_QUESTION,))
    taken = (
        bulk_decisions.decide(
            ctx.ledger,
            action,
            chosen,
            routes,
            by=by,
            note=note,
            up_to=up_to,
            at=ctx.now,
            correction=correction,
            seen=seen,
        )
        if routes
        else bulk_decisions.Taken(0)
    )
    count, stopped = taken.count, taken.stopped and (expected is None or taken.count < expected)
    found_by = {"at": ctx.now.isoformat()} if count and action in bulk_decisions.DECISIONS else {}
    told: dict[str, Any] = {
        "action": action,
        "count": count,
        "by": by,
        **found_by,
        **({"stopped": True} if stopped else {}),
    }
    if stopped or expected is None or count >= expected or previewed is None:
        return told
    with ctx.read() as connection:
        others = bulk_decisions.faster(connection, chosen, readable, by=by, up_to=up_to, since=previewed)
    return {**told, "expected": expected, "faster": others}


def _correction_in(given: dict[str, Any]) -> Correction | None:
    """What a request wants corrected; None: nothing."""
    body, headers = given.get("corrected_body"), given.get("corrected_headers")
    if body is not None and (not isinstance(body, str) or not body):
        raise Refused(400, "corrected_body: a text that is not empty")
    if isinstance(body, str) and "\0" in body:
        raise Refused(400, "corrected_body: NUL can't be kept as text")
    if headers is not None and not isinstance(headers, dict):
        raise Refused(400, "corrected_headers: an object by name")
    changes = json.dumps(headers, ensure_ascii=False) if headers else None
    return None if body is None and changes is None else Correction(body, changes)


def _corrected(
    ctx: RequestContext, chosen: Filter, routes: frozenset[str], given: Correction, up_to: int, *, restore: bool
) -> tuple[bulk_decisions.Chosen | None, Correction]:
    """The message, and ``given`` as it would be sent; what is wrong with it is refused. With ``restore`` masked values
    come back."""
    with ctx.read() as connection:
        found = bulk_decisions.to_correct(connection, chosen, routes, by=ctx.person.name, up_to=up_to)
    if found is None:
        return None, given
    bounds, mask = bounds_of(ctx.settings.routes.get(found.route)), ctx.redactor(found.route)
    try:
        return found, bulk_decisions.correction(given, found.original, bounds, mask, restore=restore)
    except ValueError as error:
        raise Refused(400, mask(str(error))) from None


@router.post("/api/corrections")
async def check_correction(request: Request, person: Annotated[Person, Depends(person_of)]) -> Response:
    """Whether a correction could be sent, and what it changes; changes nothing itself."""
    return await answered(request, person, _check_correction)


def _check_correction(ctx: RequestContext, given: dict[str, Any]) -> dict[str, Any]:
    narrowed, correction = given.get("filter"), _correction_in(given)
    if correction is None or not isinstance(narrowed, dict):
        raise Refused(400, "corrected_body, a text, or corrected_headers, an object; and filter, an object")
    chosen = filter_for("edit", Filter.read_strictly(narrowed))
    by, up_to = ctx.person.name, (1 << 63) - 1
    with ctx.read() as connection:
        chosen = ctx.resolve(connection, chosen)
        routes = bulk_decisions.routes_of(connection, "edit", chosen, ctx.readable, by, up_to)
        count = bulk_decisions.preview(connection, "edit", chosen, ctx.readable, by, ctx.mask).count
    require_decidable(ctx, routes)
    found = None
    if count == 1:
        found, _ = _corrected(ctx, chosen, routes, correction, up_to, restore=given.get("restore") is True)
    if found is None:
        raise Refused(409, "it is not one message that waits for a decision: somebody was faster, or it was taken up")
    mask, original = ctx.redactor(found.route), found.original
    headers = bulk_decisions.header_difference(
        original, correction, bounds_of(ctx.settings.routes.get(found.route)), mask
    )
    body = correction.body
    if body is None or original.payload is None:
        return {
            "headers": headers,
            "difference": [] if body is None else [("+", line) for line in mask(body).splitlines()],
        }
    # Between what was shown and what came back: nothing that is masked is in either.
    locked = lock(original.payload, mask)
    return {
        "headers": headers,
        "difference": bulk_decisions.difference(
            locked.shown if locked else mask(original.payload), mask(body) if not locked else body
        ),
    }


@router.post("/api/issues")
async def change_issues(request: Request, person: Annotated[Person, Depends(person_of)]) -> Response:
    """Says how far people are with failures; answers ``{"count", "by"}``. See docs/review-page.md."""
    return await answered(request, person, _change_issues)


def _change_issues(ctx: RequestContext, given: dict[str, Any]) -> dict[str, Any]:
    if unknown := set(given) - {"failures", "status", "owner", "ticket", "ignored_until", "comment"}:
        raise Refused(400, f"unknown: {', '.join(sorted(unknown))[:200]}")
    chosen = Filter.read({"failures": given.get("failures")}).names_failures
    if not chosen:
        raise Refused(400, "failures: route~group, one or more")
    for route, _ in chosen:
        ctx.require_readable(route)
    require_decidable(ctx, frozenset(route for route, _ in chosen))
    changes: dict[str, Any] = {
        name: text_in(name, given[name], 1_000) or None for name in ("owner", "ticket") if name in given
    }
    until = filters.instant("ignored_until", text_in("ignored_until", given.get("ignored_until", ""), 40))
    if "status" in given:
        if given["status"] not in tuple(IssueStatus):
            raise Refused(400, f"status: one of {', '.join(IssueStatus)}")
        changes["status"] = given["status"]
        if given["status"] == IssueStatus.IGNORED:
            if until is None or until <= ctx.now:
                raise Refused(400, "ignored_until: a moment to come, such as 2026-11-20T06:00 (UTC)")
            changes["ignored_until_at"] = until
    comment = text_in("comment", given.get("comment", ""), _MAX_NOTE)
    if not changes and not comment:
        raise Refused(400, "nothing to say: give a status, an owner, a ticket or a comment")
    by = ctx.person.name
    if changes:
        count = issues.change(ctx.ledger, chosen, by=by, now=ctx.now, changes=changes, text=comment)
    else:
        count = issues.comment(ctx.ledger, chosen, by=by, now=ctx.now, text=comment)
    return {"count": count, "by": by}


@router.post("/api/visits")
async def visit(request: Request, person: Annotated[Person, Depends(person_of)]) -> Response:
    """Notes that somebody looks; with ``seen`` all that has changed until now counts as known. Answers ``since``."""
    return await answered(request, person, _visit)


def _visit(ctx: RequestContext, given: dict[str, Any]) -> dict[str, Any]:
    if set(given) - {"seen"} or not isinstance(given.get("seen", False), bool):
        raise Refused(400, "seen: true or false")
    if not ctx.readable:
        raise Refused(403, "there is no route that you may see")
    since = visits.remember(ctx.ledger, ctx.person.name, ctx.now, seen=given.get("seen", False))
    return {"since": since.isoformat()}


@router.post("/api/standing")
async def change_standing(request: Request, person: Annotated[Person, Depends(person_of)]) -> Response:
    """Makes a standing decision (``route``, ``group``, ``decision``, ``until``, ``note``), or does an ``action``
    (``end`` or ``approve``) to ``standing``, the id of one.
    """
    return await answered(request, person, _change_standing)


def _change_standing(ctx: RequestContext, given: dict[str, Any]) -> dict[str, Any]:
    by = ctx.person.name
    if set(given) == {"action", "standing"}:
        if given["action"] not in ("end", "approve") or not is_count(given["standing"]):
            raise Refused(400, "action: end or approve; standing: an id")
        with ctx.read() as connection:
            found = standing.route_of(connection, given["standing"])
        if found is None or (found[0] is not None and found[0] not in ctx.readable):
            raise Refused(404, "there is no such standing decision, or you may not see it")
        require_decidable(ctx, frozenset([found[0]]) if found[0] is not None else ctx.known)
        act = standing.end if given["action"] == "end" else standing.approve
        if not act(ctx.ledger, given["standing"], by=by, now=ctx.now):
            raise Refused(409, "it ended already, or it isn't you who can approve it")
        return {"action": given["action"], "standing": given["standing"], "by": by}
    if set(given) != {"route", "group", "decision", "until", "note"}:
        raise Refused(400, "route, group, decision, until and note; or action and standing")
    route = text_in("route", given["route"], 200)
    _, group_id = filters.failure_of(f"{route or '*'}~{given['group']}")
    decision, until = given["decision"], filters.instant("until", text_in("until", given["until"], 40))
    if not group_id:
        raise Refused(400, "group: the id of a failure")
    if decision not in (Decision.REDELIVER, Decision.DISCARD):
        raise Refused(400, "decision: redeliver or discard")
    if until is None or until <= ctx.now:
        raise Refused(400, "until: a moment to come, such as 2026-11-20T06:00 (UTC)")
    note = text_in("note", given["note"], _MAX_NOTE)
    if len(note) < MIN_NOTE:
        raise Refused(400, "note: say why; it is what the next person reads")
    if route:
        ctx.require_readable(route)
    require_decidable(ctx, frozenset([route]) if route else ctx.known)
    with ctx.read() as connection:
        routes = [route] if route else sorted(ctx.known)
        if not any(failure_queries.group(connection, one, group_id, ctx.readable, ctx.mask, ctx.now) for one in routes):
            raise Refused(404, f"there is no group {group_id} here")
    made = standing.make(
        ctx.ledger,
        route=route or None,
        group_id=group_id,
        decision=decision,
        until=until,
        note=note,
        by=by,
        now=ctx.now,
    )
    return {"standing": made, "by": by}


@router.post("/api/filters")
async def change_filters(request: Request, person: Annotated[Person, Depends(person_of)]) -> Response:
    """Gives a filter a name (``name``, ``page``, ``query``), or takes it back (``remove``, its id)."""
    return await answered(request, person, _change_filters)


def _change_filters(ctx: RequestContext, given: dict[str, Any]) -> dict[str, Any]:
    if not ctx.readable:
        raise Refused(403, "there is no route that you may see")
    if set(given) == {"remove"}:
        if not is_count(given["remove"]):
            raise Refused(400, "remove: the id of a saved filter")
        with ctx.read() as connection:
            found = saved_filters.found(connection, given["remove"])
        if found is not None and not ctx.may_remove(found.saved_by):
            raise Refused(403, f"{found.saved_by} saved it: only they, or who administers Airflow, may remove it")
        if found is None or not saved_filters.remove(ctx.ledger, found, by=ctx.person.name, now=ctx.now):
            raise Refused(409, "it is gone already")
        return {"name": found.name, "by": ctx.person.name}
    if set(given) != {"name", "page", "query"}:
        raise Refused(400, "name, page and query; or remove")
    name, query = text_in("name", given["name"], 80), text_in("query", given["query"], 2_000)
    if not name:
        raise Refused(400, "name: how it is called")
    if given["page"] not in shared_filters.PAGES:
        raise Refused(400, "page: find or messages")
    reader = shared_filters.Reader(ctx)
    query = reader.read(given["page"], query).query
    asked = reader.read(given["page"], query)  # as whoever follows it does
    for route in sorted(asked.routes):
        ctx.require_readable(route)
    if refusal := saved_filters.save(
        ctx.ledger, name=name, page=given["page"], query=query, by=ctx.person.name, now=ctx.now
    ):
        raise Refused(409, refusal)
    return {"name": name, "by": ctx.person.name}


def text_in(name: str, value: object, most: int) -> str:
    """``value`` as text of at most ``most`` characters, without control characters; else :class:`Refused`."""
    if not isinstance(value, str) or len(value) > most:
        raise Refused(400, f"{name}: text of at most {most:,} characters")
    return "".join(c for c in filters.storable(name, value) if c.isprintable() or c in "\n\t").strip()


def is_count(value: object) -> TypeGuard[int]:
    """Whether ``value`` is a whole number that a database can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _previewed(given: dict[str, Any]) -> tuple[int | None, datetime | None]:
    """How many messages the preview showed, and when it was made."""
    expected, since = given.get("expected"), given.get("since")
    if expected is not None and not is_count(expected):
        raise Refused(400, "expected: how many messages the preview showed")
    if since is not None and not isinstance(since, str):
        raise Refused(400, "since: when the preview was made")
    return expected, filters.instant("since", since or "")


def _routes_in(given: dict[str, Any]) -> frozenset[str] | None:
    """The routes that the request keeps to; None where it names none."""
    routes = given.get("routes")
    if routes is None:
        return None
    if not isinstance(routes, list) or not all(isinstance(route, str) for route in routes):
        raise Refused(400, "routes: a list of names")
    return frozenset(routes)
