"""Decisions as the page takes them: the plain UPDATE that reviewers use in SQL, signed with the login's name.

A decision is taken in two steps. :func:`preview` tells what would be decided and remembers what it saw;
:func:`decide` then touches nothing that came later or changed since, so nobody decides about what they have not seen.
"""

import difflib
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive import corrections
from redrive.corrections import Bounds, Correction, Original
from redrive.errors import LedgerUnavailable
from redrive.ledger.dialects import Dialect, dialect_of
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.predicates import IN_REVIEW, listed
from redrive.ledger.review import decisions
from redrive.lifecycle import UNDECIDED, Decision
from redrive.message import Header
from redrive.redaction import Redactor
from redrive.restored_values import lock
from redrive_ui.filters import Filter
from redrive_ui.formatting import formatted, plain
from redrive_ui.group_templates import Mask, templates
from redrive_ui.rows import Row, rows_of

DECISIONS = tuple(decision.value for decision in Decision)
ACTIONS = (*DECISIONS, "approve", "withdraw")
#: Rows per transaction: a large decision must not keep the ledger's only writer (SQLite) waiting for long.
CHUNK = 5_000
#: Of so many groups a preview tells what they say; beyond that, how many there are.
SHOWN_GROUPS = 20
#: SQL: once the message has left the review (it waits for delivery, say), nothing about the decision can be changed.
NOT_TAKEN_UP = (
    "status = 'decided' and exists (select 1 from messages where messages.message_id = escalated_messages.message_id"
    f" and {IN_REVIEW})"
)
# What a restore may have put back is not sent again before somebody has looked.
_MAYBE_RESTORED = (
    "exists (select 1 from messages where messages.message_id = escalated_messages.message_id"
    " and messages.state in ('restoring', 'restore_unknown'))"
)


@dataclass(frozen=True, slots=True)
class Preview:
    """What a decision would touch."""

    action: str
    count: int
    up_to: int  # the newest escalation among them
    seen: str  # what was there, for Dialect.unchanged
    groups: list[Row]  # route, group_id, cause, n, the group's gate; of the first the template
    routes: frozenset[str]


def eligible(action: str, by: str, status: str = "status") -> tuple[str, dict[str, Any]]:
    """Which rows an action can touch at all, beside the filter; ``status`` is how that column is written."""
    undecided = f"{status} in {listed(UNDECIDED)}"
    match action:
        case "approve":  # never what one has decided oneself, by the database's own idea of who is the same
            return (
                f"{NOT_TAKEN_UP} and coalesce(approved_by, '') = ''"
                " and lower(trim(decided_by)) <> lower(trim(:approver))",
                {"approver": by},
            )
        case "withdraw":
            return NOT_TAKEN_UP, {}
        case "not_there":
            return f"{undecided} and {_MAYBE_RESTORED}", {}
        case "redeliver" | "edit":
            return f"{undecided} and not {_MAYBE_RESTORED}", {}
    return undecided, {}


def preview(
    connection: Connection, action: str, chosen: Filter, readable: Collection[str], by: str, mask: Mask
) -> Preview:
    """What ``action`` on everything that matches would touch now. Changes nothing."""
    where, values = _matching(action, chosen, readable, by, dialect_of(connection))
    rows = rows_of(
        connection,
        f"with rows as materialized (select route, group_id, escalation_id from escalated_messages where {where})"
        " select matching.*, failure_groups.cause, gate.stage from (select route, group_id, count(*) as n,"
        " max(escalation_id) as newest from rows group by route, group_id) as matching left join failure_groups on"
        " failure_groups.group_id = matching.group_id left join breakers gate on gate.route ="
        " matching.route and gate.group_id = matching.group_id order by n desc, matching.route, matching.group_id",
        **values,
    )
    said = templates(connection, readable, mask, [(row["route"], row["group_id"]) for row in rows[:SHOWN_GROUPS]])
    for row in rows:
        row["template"] = said.get((row["route"], row["group_id"]))
    return Preview(
        action=action,
        count=sum(row["n"] for row in rows),
        up_to=max((row["newest"] for row in rows), default=0),
        seen=dialect_of(connection).seen(connection),
        groups=rows,
        routes=frozenset(row["route"] for row in rows),
    )


class Chosen(NamedTuple):
    """The one message that somebody corrects."""

    escalation_id: int
    route: str
    original: Original


def to_correct(
    connection: Connection, chosen: Filter, readable: Collection[str], *, by: str, up_to: int
) -> Chosen | None:
    """The one message that is chosen; None if none is left."""
    where, values = _matching("edit", chosen, readable, by, dialect_of(connection))
    found = decisions.original(connection, f"{where} and escalation_id <= :up_to", {**values, "up_to": up_to})
    return None if found is None else Chosen(*found)


def correction(given: Correction, original: Original, bounds: Bounds, mask: Redactor, *, restore: bool) -> Correction:
    """What is to be sent in place of ``original``. With ``restore`` what ``mask`` hides is put back into the body.

    Raises ValueError, with a sentence, if it can't take the original's place.
    """
    body, headers = given
    if restore and body is not None and original.payload is not None:
        locked = lock(original.payload, mask)
        if locked is None:
            raise ValueError("what is masked can't be put back into this payload: correct it in SQL")
        body = _with_line_ends_of(original.payload, locked.restore(body))
    changes = corrections.read_changes(headers) if headers is not None else {}
    for one in corrections.stored_headers(original.headers):
        if one.name in changes and _is_locked(one, mask):
            raise ValueError(f"header {one.name[:100]!r} is locked: what is masked, or binary, stays as it is")
    if problem := corrections.objection(Correction(body, headers), original, bounds):
        raise ValueError(problem)
    return Correction(body, headers)


_LINE_END = re.compile(r"\r\n|\r|\n")


def _with_line_ends_of(original: str, body: str) -> str:
    """``body``, which a form had, in which every line ends with LF, with the line ends of ``original`` again: of HL7
    they are CR, of EDI and CSV often CR and LF. Raises ValueError, with a sentence, where there are several kinds."""
    if "\r" not in original or "\r" in body:
        return body
    ends = set(_LINE_END.findall(original))
    if len(ends) > 1:
        raise ValueError("the lines of this payload end in several ways, which a form doesn't keep: correct it in SQL")
    return _LINE_END.sub(ends.pop(), body)


class HeaderField(NamedTuple):
    """A header as a field of the form."""

    name: str
    type: str
    value: str  # as it may be shown
    locked: bool


def header_fields(original: Original, bounds: Bounds, mask: Redactor) -> list[HeaderField]:
    """The headers that people may correct, in order; what is masked or binary among them is locked."""
    found = corrections.business(corrections.stored_headers(original.headers), bounds)
    return [
        HeaderField(one.name, one.type, plain(mask.header(one.name, str(one.value))), _is_locked(one, mask))
        for one in found
    ]


def _is_locked(header: Header, mask: Redactor) -> bool:
    # What a field of one line does not show as it is, it would not give back as it was.
    masked = plain(mask.header(header.name, str(header.value))) != header.value
    return masked or header.type.lower().startswith(("binary", "raw:"))


def header_difference(original: Original, given: Correction, bounds: Bounds, mask: Redactor) -> list[tuple[str, str]]:
    """As :func:`difference`, of headers: what goes and what comes, each with its name."""
    changes = corrections.read_changes(given.headers) if given.headers is not None else {}
    was = corrections.business(corrections.stored_headers(original.headers), bounds)
    before = {one.name: f"{one.name}: {mask.header(one.name, str(one.value))}" for one in was}
    after = {
        one.name: f"{one.name}: {mask.header(one.name, str(one.value))}" for one in corrections.changed(was, changes)
    }
    types = {one.name: one.type for one in was}
    told: list[tuple[str, str]] = []
    for name, new in changes.items():
        kind = new.type if new is not None else None
        retyped = kind is not None and kind != types.get(name, kind)
        if before.get(name) != after.get(name) or retyped:
            told += [("-", f"{before[name]} ({types[name]})" if retyped else before[name])] if name in before else []
            told += [("+", f"{after[name]} ({kind})" if kind else after[name])] if name in after else []
    return told


def difference(before: str, after: str) -> list[tuple[str, str]] | None:
    """Lines that go (``-``), come (``+``) and stand around (a space; ``…`` for those left out), of JSON as it is laid
    out; None if too large."""
    if max(len(before), len(after)) > _COMPARED:
        return None
    was, will_be = ((formatted(text) or text).splitlines() for text in (before, after))
    found = difflib.unified_diff(was, will_be, lineterm="", n=2)
    lines = list(islice(found, 3, None))  # names of files, and where the first change is
    return [(" ", "…") if line.startswith("@@") else (line[:1], line[1:]) for line in lines][:400]


#: Comparing takes the square of the number of lines.
_COMPARED = 65_536


def routes_of(
    connection: Connection, action: str, chosen: Filter, readable: Collection[str], by: str, up_to: int
) -> frozenset[str]:
    """The routes whose messages ``action`` would touch."""
    where, values = _matching(action, chosen, readable, by, dialect_of(connection))
    rows = rows_of(
        connection,
        f"select distinct route from escalated_messages where {where} and escalation_id <= :up_to",
        up_to=up_to,
        **values,
    )
    return frozenset(row["route"] for row in rows)


def faster(
    connection: Connection, chosen: Filter, routes: Collection[str], *, by: str, up_to: int, since: datetime
) -> list[Row]:
    """Who but ``by`` decided about what matches after ``since``: ``by``, ``decision`` and ``count``, most first, at
    most three."""
    where, values = replace(chosen, status="all").where(routes, dialect_of(connection))
    return rows_of(
        connection,
        f'select decided_by as "by", decision, count(*) as "count" from escalated_messages where {where}'
        " and escalation_id <= :up_to and decided_at >= :decided_since and decision is not null and decided_by <> :me"
        " group by decided_by, decision order by count(*) desc, decided_by, decision limit 3",
        up_to=up_to,
        decided_since=since,
        me=by,
        **values,
    )


@dataclass(frozen=True, slots=True)
class Taken:
    """A decision as it was taken."""

    count: int  # messages
    stopped: bool = False  # the ledger could not take the rest


def decide(
    ledger: Ledger,
    action: str,
    chosen: Filter,
    allowed: Collection[str],
    *,
    by: str,
    note: str,
    up_to: int,
    at: datetime,
    correction: Correction | None = None,
    seen: str | None = None,
) -> Taken:
    """Carry ``action`` out on what matches, belongs to ``allowed`` routes and was there at the preview.
    ``seen``: and is as the preview saw it. None: nobody has looked, whatever it is.

    All of it was decided ``at`` one moment, by which it can be found again.

    Works in chunks, each its own transaction: a person who decides about 100,000 messages does not lock out the rest.
    What somebody else decided meanwhile is left alone, and so is what changed and matches again, or only now.
    Where the ledger can't take a chunk, those before it stay decided; :class:`~redrive.errors.LedgerUnavailable` is
    raised only if nothing was.
    """
    where, values = _matching(action, chosen, allowed, by, ledger.dialect)
    set_, given = _assignments(action, by=by, note=note, at=at, correction=correction)
    as_seen = "" if seen is None else f" and {ledger.dialect.unchanged(':seen')}"
    given |= {} if seen is None else {"seen": seen}
    total, last = 0, -1
    while True:
        try:
            with ledger.write() as connection:
                ids = [
                    row["escalation_id"]
                    for row in rows_of(
                        connection,
                        f"select escalation_id from escalated_messages where {where} and escalation_id <= :up_to"
                        f" and escalation_id > :last order by escalation_id limit {CHUNK}" + ledger.dialect.for_update,
                        up_to=up_to,
                        last=last,
                        **values,
                    )
                ]
                if not ids:
                    return Taken(total)
                changed = connection.execute(
                    sql(
                        f"update escalated_messages set {set_} where {where} and escalation_id <= :newest"
                        f" and escalation_id > :last{as_seen}"
                    ),
                    {**values, **given, "newest": ids[-1], "last": last},
                ).rowcount
        except LedgerUnavailable:
            if not total:
                raise
            return Taken(total, stopped=True)
        total, last = total + int(changed), ids[-1]


def _matching(
    action: str, chosen: Filter, routes: Collection[str], by: str, dialect: Dialect
) -> tuple[str, dict[str, Any]]:
    where, values = chosen.where(routes, dialect)
    extra, more = eligible(action, by, dialect.off_index("status") if chosen.reads_rows else "status")
    return f"{where} and {extra}", {**values, **more}


def _assignments(
    action: str, *, by: str, note: str, at: datetime, correction: Correction | None
) -> tuple[str, dict[str, Any]]:
    match action:
        case "approve":
            return "approved_by = :by", {"by": by}
        case "withdraw":
            return "decision = null, decided_by = :by, note = :note", {"by": by, "note": note}
    body, headers = correction or (None, None)
    return (
        "decision = :decision, decided_by = :by, decided_at = :decided_at, note = :note, corrected_body = :body,"
        " corrected_headers = :headers",
        {"decision": action, "by": by, "note": note, "decided_at": at, "body": body, "headers": headers},
    )
