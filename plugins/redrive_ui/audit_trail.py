"""What people did, and what has changed since somebody looked last."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.dialects import Dialect, dialect_of
from redrive.ledger.engine import parse_instant
from redrive.ledger.review.visits import Visit
from redrive.lifecycle import UNDECIDED, ReviewStatus
from redrive_ui.filters import BadFilter, check_times, instant, query_of, since_of, storable, whole_number
from redrive_ui.group_templates import Mask, templates
from redrive_ui.rows import PAGE, Row, quoted, routes_in, rows_of

#: So many events are looked at for one page.
LOOK = 20_000
#: And so many are gone through where few of them are asked for, from where the page begins.
GO_THROUGH = 100_000
_PORTION = 2_000
_ALIKE = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Audit:
    """Which events are asked for; every field narrows."""

    actor: str = ""
    action: str = ""
    route: str = ""
    group: str = ""
    past: str = ""
    zone: str = ""
    since: str = ""
    until: str = ""
    machine: str = ""  # not empty: also what Redrive did by itself

    @classmethod
    def read(cls, given: Mapping[str, str]) -> "Audit":
        """What an address says."""
        found = cls(**{one.name: storable(one.name, given.get(one.name, "")[:200]).strip() for one in fields(cls)})
        if found.action and found.action not in set(Action):
            raise BadFilter("action: none of docs/states.md")
        if found.group:
            whole_number("group", found.group)
        check_times(found.past, found.since, found.until, found.zone)
        return found

    def query(self, **changes: Any) -> str:
        """This as a query string, with these fields changed; others are appended."""
        return query_of(self, changes)

    def where(
        self, readable: Collection[str], now: datetime, dialect: Dialect, *, all_routes: bool
    ) -> tuple[str, dict[str, Any]]:
        """A condition over ``audit_events`` as ``event``; what is of no route is for who may read every route."""
        timed = self.past or self.since or self.until
        # Without a time the newest events are looked through; by its index all of a route's would be sorted.
        route = "event.route" if timed else dialect.off_index("event.route")
        where, values = routes_in([one for one in readable if self.route in ("", one)], route)
        parts = [f"({where} or event.route is null)" if all_routes and not self.route else where]
        if not self.machine:
            parts.append("event.actor <> 'redrive'")
        if self.actor:
            parts.append("lower(trim(event.actor)) = lower(trim(:who))")
            values["who"] = self.actor
        if self.action:
            parts.append("event.action = :what")
            values["what"] = self.action
        if since := since_of(self.past, now, self.zone) if self.past else instant("since", self.since):
            parts.append("event.at >= :since_at")
            values["since_at"] = since
        if not self.past and (until := instant("until", self.until)):
            parts.append("event.at < :until_at")
            values["until_at"] = until
        if self.group:  # of one message, or of what the selection names
            said = "replace(event.selection, ' ', '')"
            parts.append(
                "(exists (select 1 from messages where messages.message_id = event.message_id and messages.group_id ="
                f" :group_id) or {said} like :group_within or {said} like :group_last)"
            )
            values["group_id"] = int(self.group)
            values["group_within"], values["group_last"] = (f'%"group_id":{self.group}{end}%' for end in ",}")
        return " and ".join(parts), values


def audit(
    connection: Connection,
    asked: Audit,
    readable: Collection[str],
    now: datetime,
    *,
    all_routes: bool,
    before: int | None = None,
) -> tuple[list[Row], int | None]:
    """A page of what was done, newest first, and the event before which the next page begins.

    What somebody did to many messages at once is one row: ``n`` messages, ``groups``, and one of the messages.
    """
    where, values = asked.where(readable, now, dialect_of(connection), all_routes=all_routes)
    shown: list[Row] = []
    at, looked = before if before is not None else (1 << 63) - 1, 0
    people = "" if asked.machine else " and actor <> 'redrive'"
    beyond = rows_of(
        connection,
        f"select event_id from audit_events where event_id < :before{people} order by event_id desc limit 1"
        f" offset {GO_THROUGH}",
        before=at,
    )
    floor = beyond[0]["event_id"] if beyond else 0
    while looked < LOOK:
        portion = rows_of(
            connection,
            "select event.event_id, event.at, event.route, event.actor, event.action, event.from_state, event.to_state,"
            " event.count, event.message_id, event.selection, event.reason, messages.group_id from audit_events event"
            f" left join messages on messages.message_id = event.message_id where {where} and event.event_id < :before"
            f" and event.event_id > :floor order by event.event_id desc limit {_PORTION}",
            before=at,
            floor=floor,
            **values,
        )
        for row in portion:
            if not (shown and _together(shown[-1], row)):
                if len(shown) == PAGE:
                    return shown, at
                shown.append(_entry(row))
            else:
                shown[-1]["n"] += row["count"]
                shown[-1]["first_at"] = row["at"]
            if row["group_id"]:
                shown[-1]["groups"].add(row["group_id"])
            at = row["event_id"]
        looked += len(portion)
        if len(portion) < _PORTION:
            return shown, floor + 1 if floor else None
    return shown, at


def _until(written: object) -> str:
    """A moment as an event has it, whose text each database writes in its own way, always of UTC."""
    try:
        until = parse_instant(str(written))
    except ValueError:
        return str(written)
    return f"{until:%Y-%m-%d %H:%M} UTC"


def _entry(row: Row) -> Row:
    try:
        said = json.loads(row["selection"] or "{}")
    except ValueError:
        said = {}
    said = said if isinstance(said, dict) else {}
    groups = {said["group_id"]} if isinstance(said.get("group_id"), int) else set[int]()
    told = [
        (name, _until(said[name]) if name == "until" else str(said[name]))
        for name in ("status", "owner", "ticket", "until", "name", "query", "destination")
        if said.get(name)
    ]
    return {**row, "n": row["count"], "first_at": row["at"], "groups": groups, "told": told}


def _together(one: Row, following: Row) -> bool:
    """Whether both are of one decision about several messages."""
    return (
        one["message_id"] is not None
        and following["message_id"] is not None
        and all(one[name] == following[name] for name in ("actor", "action", "route", "reason"))
        and one["first_at"] - following["at"] < _ALIKE
    )


def actors(connection: Connection) -> list[str]:
    """Who did something lately."""
    rows = rows_of(
        connection,
        "select distinct actor from (select actor from audit_events where actor <> 'redrive' order by event_id desc"
        f" limit {LOOK}) as latest order by actor limit 100",
    )
    return [row["actor"] for row in rows]


def changed(
    connection: Connection,
    readable: Collection[str],
    mask: Mask,
    person: str,
    visit: Visit,
    *,
    all_routes: bool,
    most: int = 8,
) -> Row:
    """What has changed for people since ``visit.since``: failures that are ``new``, ``regressed`` or ``grown``, each
    list with the largest first and at most ``most`` rows, how many there are of each, and what ``others`` did."""
    where, values = routes_in(readable)
    earlier = "from escalated_messages earlier where earlier.route = since.route and {} and status in ({})"
    known, open_ = (
        [
            what.format(f"{earlier.format(same, quoted(statuses))}{when}")
            for same in ("earlier.group_id = since.group_id", "earlier.group_id is null")
        ]
        for what, statuses, when in (
            ("exists (select 1 {})", ReviewStatus, " and escalated_at <= :since_at"),
            ("(select count(*) {})", UNDECIDED, ""),
        )
    )
    rows = rows_of(
        connection,
        f"select since.*, case when group_id is not null then {known[0]} else {known[1]} end as known,"
        f" case when group_id is not null then {open_[0]} else {open_[1]} end as open_messages from (select route,"
        f" group_id, count(*) as more from escalated_messages where {where} and escalated_at > :since_at"
        # Found by when they were asked; the index that has them in this order has all that was ever asked.
        f" group by route, {dialect_of(connection).off_index('group_id')}) as since"
        " order by more desc, route, group_id",
        since_at=visit.since,
        **values,
    )
    back = {
        (row["route"], row["group_id"])
        for row in rows_of(
            connection, f"select route, group_id from issue_state where {where} and status = 'regressed'", **values
        )
    }
    lists: dict[str, list[Row]] = {"regressed": [], "new": [], "grown": []}
    for row in rows:
        kind = "grown" if row["known"] else "new"
        lists["regressed" if (row["route"], row["group_id"]) in back else kind].append(row)
    shown = {kind: some[:most] for kind, some in lists.items()}
    wanted = [(one["route"], one["group_id"]) for some in shown.values() for one in some]
    said = templates(connection, readable, mask, wanted)
    for some in shown.values():
        for one in some:
            one["template"] = said.get((one["route"], one["group_id"]))
    of_route = "(route is null or " + where + ")" if all_routes else where
    # People's newest events are found by their index; asked with their routes, the machine's would be gone through too.
    others = rows_of(
        connection,
        "select actor, action, route, sum(count) as n, max(at) as last_at from (select actor, action, route, count, at"
        " from audit_events where event_id in (select event_id from audit_events where actor <> 'redrive' order by"
        f" event_id desc limit {LOOK}) and {of_route}) as latest"
        " where at > :since_at and lower(trim(actor)) <> lower(trim(:me)) group by actor, action, route"
        " order by max(at) desc limit 12",
        since_at=visit.since,
        me=person,
        **values,
    )
    for one in others:
        one["n"] = int(one["n"])
        one["last_at"] = parse_instant(one["last_at"]) if isinstance(one["last_at"], str) else one["last_at"]
    counts = {kind: len(some) for kind, some in lists.items()}
    return {"lists": shown, "counts": counts, "others": others, "any": bool(rows or others)}
