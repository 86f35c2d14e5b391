"""One failure or two: people join groups or split them, and see before what that changes.

Groups are one over all routes, so it takes the right to decide on every route. What is said here is the same row of
``group_rulings`` that SQL and ``redrive groups`` write; the next run carries it out.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse, Response
from sqlalchemy.engine import Connection
from starlette.requests import Request

from redrive.classification import grouping
from redrive.classification.failure_text import cut
from redrive.ledger.aliases import Aliases
from redrive.ledger.engine import parse_instant
from redrive.ledger.predicates import UNDECIDED_REVIEW
from redrive.ledger.review import rulings
from redrive.ledger.review.rulings import Ruling
from redrive.redaction import MARGIN
from redrive_ui import failure_queries, filters
from redrive_ui.decision_api import MIN_NOTE, answered, is_count, require_decidable, text_in
from redrive_ui.identity import Person
from redrive_ui.pages.parameters import Requested, Word
from redrive_ui.protection import Refused
from redrive_ui.request_context import RequestContext, person_of
from redrive_ui.rows import Row, rows_of
from redrive_ui.searching import LONGEST

router = APIRouter()
#: So many groups of the cause, those that were seen last, are compared; so many of the likeliest are shown.
COMPARED, LIKELY = 2_000, 12
#: So many of the newest questions are looked at for what tells them apart.
TEXTS = 500
#: A phrase that is offered has at most so many words.
_PHRASE = 5
_MAX_WORDS = 200


@router.get("/rulings", response_class=HTMLResponse)
def rulings_page(ctx: Requested) -> Response:
    """What people said about groups, and what became of it."""
    ctx.require_all(
        ctx.known, "what is said about groups holds for every route, and there are some that you may not see"
    )
    with ctx.read() as connection:
        rows = _readable(ctx, connection, rulings.listed(connection, most=500))
    return ctx.render("rulings.html", rows=rows, may_rule=all(map(ctx.may_decide, ctx.known)))


@router.get("/rulings/new", response_class=HTMLResponse)
def new_ruling_page(
    ctx: Requested, route: Word, group: Word, other: Word = "", words: Word = "", word: Word = ""
) -> Response:
    """What may be said about a group; with ``other`` or ``words`` what saying it changes."""
    ctx.require_readable(route)
    require_decidable(ctx, ctx.known)
    group_id = filters.whole_number("group", group)
    other_id = filters.whole_number("other", other) if other else None
    words = " ".join(words.split())
    with ctx.read() as connection:
        found = failure_queries.group(connection, route, group_id, ctx.readable, ctx.mask, ctx.now)
        if not found or not found["group_id"]:
            raise Refused(404, f"nothing of group {group} was escalated on route {route!r}")
        aliases = Aliases(connection)
        members = sorted(aliases.members(found["group_id"]) - {found["group_id"]})
        about = _groups(ctx, connection, [*members, *([other_id] if other_id else [])])
        if other_id and other_id not in about:
            raise Refused(404, f"there is no group {other_id}")
        joined, pair, split = other_id in members, None, None
        likely: list[Row] = []
        offered: list[Row] = []
        if other_id:
            one = Ruling(0, "split" if joined else "merge", found["group_id"], other_id, None, ctx.person.name, "")
            pair = {
                "other": about[other_id],
                "joined": joined,
                "objection": rulings.objection(connection, one, aliases, ctx.now),
                "routes": [] if joined else _what_moves(ctx, connection, aliases, found["group_id"], other_id),
                "name": min(aliases.root(found["group_id"]), aliases.root(other_id)),
                "said": [] if joined else _what_is_said(ctx, connection, aliases, found["group_id"], other_id),
            }
        else:
            texts = _texts(ctx, connection, route, found["group_id"])
            if words:
                one = Ruling(0, "split", found["group_id"], None, words, ctx.person.name, "")
                split = {
                    "words": words,
                    "objection": rulings.objection(connection, one, aliases, ctx.now),
                    "have": sum(n for text, n in texts if grouping.plain_words(words) in text),
                    "of": sum(n for _, n in texts),
                }
            else:
                likely = _likely(ctx, connection, aliases, found, word)
                offered = distinguishing(texts)
        said = rulings.listed(connection, of={found["group_id"], *members})
        rows = _readable(ctx, connection, said)
    return ctx.render(
        "ruling_new.html",
        group=found,
        members=[about[one] for one in members],
        pair=pair,
        split=split,
        likely=likely,
        offered=offered,
        word=word,
        rows=rows,
    )


def _groups(ctx: RequestContext, connection: Connection, wanted: Iterable[int]) -> dict[int, Row]:
    """These groups as people may read them."""
    ids = ", ".join(str(int(one)) for one in wanted)
    if not ids:
        return {}
    return {
        row["group_id"]: _shown(ctx, row)
        for row in rows_of(connection, f"select {_COLUMNS} from failure_groups where group_id in ({ids})")
    }


_COLUMNS = "group_id, cause, template, first_route, messages, last_seen_at"


def _shown(ctx: RequestContext, row: Row) -> Row:
    """A group with its template masked as on the route whose words these are."""
    return {**row, "template": ctx.mask(row["first_route"] or "", row["template"])}


def _readable(ctx: RequestContext, connection: Connection, said: Sequence[Row]) -> list[Row]:
    ids = {one for row in said for one in (row["group_id"], row["other_group_id"]) if one is not None}
    about = _groups(ctx, connection, sorted(ids))
    return [
        {
            **row,
            **{name: parse_instant(row[name]) for name in ("created_at", "revoked_at")},
            "group": about[row["group_id"]],
            "other": about.get(row["other_group_id"]),
        }
        for row in said
    ]


def _likely(ctx: RequestContext, connection: Connection, aliases: Aliases, group: Row, word: str) -> list[Row]:
    """Groups of the cause that may be the same failure, the likeliest first: those that share most of their words.
    With ``word`` those whose words, or id, have it."""
    rows = rows_of(
        connection,
        f"select {_COLUMNS} from failure_groups where cause = :cause order by last_seen_at desc, group_id"
        f" limit {COMPARED}",
        cause=group["cause"],
    )
    sought = grouping.plain_words(word)
    mine = next((row["template"] for row in rows if row["group_id"] == group["group_id"]), group["template"] or "")
    own, found = _words(mine), []
    for row in rows:
        if row["group_id"] in aliases or aliases.root(group["group_id"]) == row["group_id"]:
            continue
        if row["group_id"] == group["group_id"]:
            continue
        if (
            sought
            and sought != str(row["group_id"])
            and sought not in grouping.plain_words(_shown(ctx, row)["template"])
        ):
            continue
        theirs = _words(row["template"])
        alike = len(own & theirs) / (len(own | theirs) or 1)
        if alike or sought:
            found.append((alike, row))
    found.sort(key=lambda one: -one[0])
    return [{**_shown(ctx, row), "alike": alike} for alike, row in found[:LIKELY]]


def _words(template: str) -> frozenset[str]:
    return frozenset(word.strip("\"'()[]:,.;") for word in grouping.plain_words(template).split()) - {"<*>", ""}


def _what_moves(
    ctx: RequestContext, connection: Connection, aliases: Aliases, group_id: int, other_id: int
) -> list[Row]:
    """Of each route what becomes of the group that loses its name: questions, messages that keep it, both gates."""
    older, later = sorted((aliases.root(group_id), aliases.root(other_id)))
    both = {"older": older, "later": later}
    found: dict[str, Row] = {}

    def of(route: str) -> Row:
        empty = {"route": route, "asked": 0, "decided": 0, "keep": 0, "to_ask": False, "older": None, "later": None}
        return found.setdefault(route, empty)

    for row in rows_of(
        connection,
        f"select route, sum(case when {UNDECIDED_REVIEW} then 1 else 0 end) as asked, sum(case when status = 'decided'"
        " then 1 else 0 end) as decided from escalated_messages where group_id = :later group by route",
        later=later,
    ):
        of(row["route"]).update(asked=int(row["asked"]), decided=int(row["decided"]))
    for row in rows_of(
        connection, "select route, group_id, stage from breakers where group_id in (:older, :later)", **both
    ):
        of(row["route"])["older" if row["group_id"] == older else "later"] = row["stage"]
    brought = ", ".join(str(int(one)) for one in aliases.members(later) - {later})
    closed = {
        row["route"]
        for row in (
            rows_of(connection, f"select route from breakers where group_id in ({brought}) and stage <> 'open'")
            if brought
            else ()
        )
    }
    for route in list(found):  # a group of which something is planned has a gate there
        for row in rows_of(
            connection,
            "select coalesce(sum(case when state <> 'to_review' then 1 else 0 end), 0) as planned, count(*) as n"
            " from messages where route = :route and group_id = :later"
            " and state in ('waiting', 'held', 'sending', 'sent', 'unknown', 'to_review')",
            route=route,
            later=later,
        ):
            of(route).update(keep=int(row["planned"]), to_ask=row["n"] > row["planned"])
    for row in found.values():
        untried = row["later"] is None and (row["asked"] or row["to_ask"])
        row["anew"] = row["older"] in ("ramp", "open") and (
            untried or row["later"] not in (None, "open") or row["route"] in closed
        )
    return [row for route, row in sorted(found.items()) if route in ctx.readable]


def _what_is_said(
    ctx: RequestContext, connection: Connection, aliases: Aliases, group_id: int, other_id: int
) -> list[Row]:
    """How far people are with the group that loses its name, route by route: that stays with the old one, so a failure
    that was resolved is not regressed by what comes under the other's."""
    later = max(aliases.root(group_id), aliases.root(other_id))
    rows = rows_of(
        connection,
        "select route, group_id, status, owner, ticket from issue_state where group_id = :later"
        " and (status <> 'open' or owner is not null or ticket is not null) order by route",
        later=later,
    )
    return [row for row in rows if row["route"] in ctx.readable]


def _texts(ctx: RequestContext, connection: Connection, route: str, group_id: int) -> list[tuple[str, int]]:
    """What the newest questions about a group say, as words are looked for in it, and how many say so.

    Masked before words are counted: what people may not read can't be asked for either.
    """
    counts: dict[str, int] = {}
    for row in rows_of(
        connection,
        f"select substr(error_text, 1, {LONGEST + MARGIN}) as said, count(*) as n from"
        " (select error_text from escalated_messages where route = :route and group_id = :group_id"
        " and error_text is not null order by status, escalation_id desc"
        f" limit {TEXTS}) as newest group by error_text",
        route=route,
        group_id=group_id,
    ):
        text = grouping.plain_words(grouping.mask(cut(ctx.redactor(route).beginning(row["said"], LONGEST))))
        counts[text] = counts.get(text, 0) + row["n"]
    return sorted(counts.items())


def distinguishing(texts: Sequence[tuple[str, int]], most: int = 8) -> list[Row]:
    """Words that some of ``texts`` have and others don't, those that part them most evenly first.

    Of words that the same texts have only the longest phrase is told.
    """
    total = sum(n for _, n in texts)
    having: dict[str, int] = {}
    for number, (text, _) in enumerate(texts[:60]):
        words = text.split()[:400]
        for start in range(len(words)):
            for end in range(start + 1, min(start + _PHRASE, len(words)) + 1):
                if "<" not in words[end - 1] and "[" not in words[end - 1]:
                    said = " ".join(words[start:end])
                    having[said] = having.get(said, 0) | 1 << number
                else:
                    break
    longest: dict[int, str] = {}
    for phrase, among in having.items():
        if len(longest.get(among, "")) < len(phrase) <= _MAX_WORDS:
            longest[among] = phrase
    found: list[Row] = []
    for among, phrase in longest.items():
        have = sum(n for number, (_, n) in enumerate(texts) if among >> number & 1)
        if len(phrase) > 2 and have < total and among.bit_count() < len(texts[:60]):
            found.append({"words": phrase, "have": have, "of": total})
    return sorted(found, key=lambda one: (-min(one["have"], total - one["have"]), one["words"]))[:most]


@router.post("/api/rulings")
async def rule(request: Request, person: Annotated[Person, Depends(person_of)]) -> Response:
    """Says that two groups are one failure (``ruling`` merge, ``group``, ``other``), or two (split), or that what has
    ``words`` is one of its own; with ``route``, where the group was seen, and ``note``. Or takes back: ``revoke``."""
    return await answered(request, person, _rule)


def _rule(ctx: RequestContext, given: dict[str, Any]) -> dict[str, Any]:
    by = ctx.person.name
    require_decidable(ctx, ctx.known)
    if set(given) == {"revoke"}:
        if not is_count(given["revoke"]):
            raise Refused(400, "revoke: the id of a ruling")
        if not rulings.revoke(ctx.ledger, given["revoke"], by=by):
            raise Refused(409, "there is no such ruling, or it was taken back already")
        return {"ruling": given["revoke"], "by": by}
    if set(given) not in ({"ruling", "route", "group", "other", "note"}, {"ruling", "route", "group", "words", "note"}):
        raise Refused(400, "ruling, route, group, other or words, and note; or revoke")
    route = text_in("route", given["route"], 200)
    ctx.require_readable(route)
    group_id = filters.whole_number("group", text_in("group", given["group"], 20))
    other = filters.whole_number("other", text_in("other", given["other"], 20)) if "other" in given else None
    words = " ".join(text_in("words", given["words"], _MAX_WORDS).split()) if "words" in given else None
    note = text_in("note", given["note"], 2_000)
    if given["ruling"] not in ("merge", "split") or (words is not None and given["ruling"] != "split"):
        raise Refused(400, "ruling: merge (of two groups) or split")
    if words == "" or other == group_id:
        raise Refused(400, "name two groups, or words")
    if len(note) < MIN_NOTE:
        raise Refused(400, "note: say why; it is what the next person reads")
    with ctx.read() as connection:
        if not failure_queries.group(connection, route, group_id, ctx.readable, ctx.mask, ctx.now):
            raise Refused(404, f"there is no group {group_id} on route {route!r}")
        if other is not None and rulings.unknown(connection, [other]):
            raise Refused(404, f"there is no group {other}")
        one = Ruling(0, given["ruling"], group_id, other, words, by, note)
        if problem := rulings.objection(connection, one, Aliases(connection), ctx.now):
            raise Refused(409, problem)
        waits = [row for row in rulings.listed(connection, of={group_id}) if row["status"] == "waits for a run"]
        about = {group_id, other} if other is not None else words
        if any(
            about == ({row["group_id"], row["other_group_id"]} if row["words"] is None else row["words"])
            for row in waits
        ):
            raise Refused(409, "somebody said something about that already, and the next run carries it out")
    made = rulings.make(ctx.ledger, given["ruling"], group_id, other=other, words=words, by=by, note=note)
    return {"ruling": made, "by": by}
