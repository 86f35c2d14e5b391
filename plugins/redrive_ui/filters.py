"""Which escalated messages are meant: what a person typed, checked and bounded, as a WHERE clause.

The same filter lists messages, exports them, previews a decision and takes it, so that what is decided is what was
seen.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from redrive.classification.causes import Cause
from redrive.ledger.dialects import Dialect
from redrive.lifecycle import UNDECIDED, ReviewStatus

STATUSES: Mapping[str, tuple[str, ...]] = {
    "undecided": UNDECIDED,
    "decided": ("decided",),
    "applied": ("applied",),
    "refused": ("refused", "reopened"),
    "all": tuple(ReviewStatus),
}
NO_GROUP = "none"
#: How long ago at most, by name; ``today`` begins at midnight, in the zone that is said beside it, else in UTC.
PAST: Mapping[str, timedelta | None] = {
    "hour": timedelta(hours=1),
    "today": None,
    "day": timedelta(days=1),
    "week": timedelta(days=7),
}
_MAX_TEXT = 200
_MAX_IDS = 200
_MAX_FAILURES = 100


class BadFilter(ValueError):
    """A field of the filter makes no sense; the text names it."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Every field narrows; empty ones don't. ``ids`` are escalation ids."""

    route: str = ""
    group: str = ""  # a group's id, or NO_GROUP for messages without one
    cause: str = ""
    queue: str = ""
    status: str = "undecided"
    since: str = ""
    until: str = ""
    past: str = ""  # a name of PAST, instead of since and until
    zone: str = ""  # of whom ``past`` is told, such as Europe/Berlin
    text: str = ""
    header: str = ""  # name=value
    decided_by: str = ""
    decided_at: str = ""  # exactly then: what was decided together
    above: str = ""  # only later escalations: texts are not looked for in endless tables
    masked_above: str = ""  # the same, on the routes whose texts are masked in part: of those fewer are looked at
    failures: tuple[str, ...] = ()  # route~group, or route~NO_GROUP
    ids: tuple[int, ...] = ()
    #: What matches on the routes whose texts are masked in part; text and header count for these of the others alone.
    unmasked: tuple[frozenset[str], tuple[int, ...]] | None = field(default=None, metadata={"from": "settle"})
    few: bool = field(default=False, metadata={"from": "settle"})  # have its status, so an index finds them

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> "Filter":
        """A filter from text fields, as a query string or a JSON object brings them; unknown fields are left out."""
        values: dict[str, Any] = {}
        for one in _written(cls):
            raw = given.get(one.name)
            if raw in (None, "", []):
                continue
            if one.name == "ids":
                values["ids"] = _ids(raw)
            elif one.name == "failures":
                values["failures"] = _failures(raw)
            elif not isinstance(raw, str) or len(raw) > _MAX_TEXT:
                raise BadFilter(f"{one.name}: text of at most {_MAX_TEXT} characters")
            else:
                values[one.name] = storable(one.name, raw).strip()
        found = cls(**values)
        found._check()
        return found

    @classmethod
    def read_strictly(cls, given: Mapping[str, Any]) -> "Filter":
        """As :meth:`read`, of somebody who means each field that they name: one that is unknown or empty is refused,
        for without it more would match."""
        known = {one.name for one in _written(cls)}
        for name, raw in given.items():
            if name not in known:
                raise BadFilter(f"filter: there is no field {name[:100]!r}")
            if raw in (None, []) or (isinstance(raw, str) and not raw.strip()):
                raise BadFilter(f"{name}: empty, so it would choose everything; leave it out if that is meant")
        return cls.read(given)

    def _check(self) -> None:
        if self.status not in STATUSES:
            raise BadFilter(f"status: one of {', '.join(STATUSES)}")
        if self.cause and self.cause not in set(Cause):
            raise BadFilter("cause: not one of the eighteen")
        check_times(self.past, self.since, self.until, self.zone)
        for name in ("above", "masked_above"):
            if value := getattr(self, name):
                whole_number(name, value)
        if self.group and self.group != NO_GROUP:
            whole_number("group", self.group)
        if self.header and not self.header.partition("=")[2]:
            raise BadFilter("header: write name=value")
        instant("decided_at", self.decided_at)

    def resolved(self, now: datetime) -> "Filter":
        """The same with relative times made absolute."""
        if not self.past:
            return self
        return replace(self, since=since_of(self.past, now, self.zone).isoformat(), until="", past="", zone="")

    def where(self, readable: Collection[str], dialect: Dialect, *, newest: bool = False) -> tuple[str, dict[str, Any]]:
        """A condition over ``escalated_messages`` and its parameters; only ``readable`` routes are ever in it. With
        ``newest`` a few of the newest, or oldest, are asked for: where nearly all match, no index finds them sooner."""
        routes = [self.route] if self.route else sorted(readable)
        routes = [route for route in routes if route in readable]
        values: dict[str, Any] = {f"route_{i}": route for i, route in enumerate(routes)}
        if not routes:
            return "1 = 0", {}
        statuses = STATUSES[self.status]
        all_match = newest and self.status == "all" and not (self.group or self.failures)
        by_id = self.reads_rows or all_match
        status, route = map(dialect.off_index, ("status", "route")) if by_id else ("status", "route")
        parts = [f"{route} in ({', '.join(':' + name for name in values)})"]
        if self.status != "all":
            parts.append(f"{status} in ({', '.join(f':status_{i}' for i, _ in enumerate(statuses))})")
            values |= {f"status_{i}": status for i, status in enumerate(statuses)}
        if self.group == NO_GROUP:
            parts.append("group_id is null")
        elif self.group:
            parts.append("group_id = :group_id")
            values["group_id"] = int(self.group)
        if self.failures:
            parts.append(f"({' or '.join(_failure(i, one, values) for i, one in enumerate(self.failures))})")
        given = {"cause": self.cause, "source": self.queue, "decided_by": self.decided_by}
        parts += [f"{column} = :{column}" for column, value in given.items() if value]
        values |= {column: value for column, value in given.items() if value}
        if since := instant("since", self.since):
            parts.append("coalesce(first_enqueued_at, escalated_at) >= :since_at")
            values["since_at"] = since
        if until := instant("until", self.until):
            parts.append("coalesce(first_enqueued_at, escalated_at) < :until_at")
            values["until_at"] = until
        if decided := instant("decided_at", self.decided_at):
            parts.append("decided_at = :then_at")
            values["then_at"] = decided
        if self.above:
            parts.append("escalation_id > :above")
            values["above"] = int(self.above)
        parts += self._sought(values, dialect)
        if self.ids:
            parts.append(f"escalation_id in ({', '.join(str(one) for one in self.ids)})")
        return " and ".join(parts), values

    def _sought(self, values: dict[str, Any], dialect: Dialect) -> list[str]:
        """Conditions for what is looked for in texts; their parameters are added to ``values``."""
        sought = []
        if self.text:
            sought.append(dialect.contains("coalesce(error_text, reason)", ":text"))
            values["text"] = "%" + escaped(self.text) + "%"
        if self.header:
            name, _, value = self.header.partition("=")
            condition, named = dialect.some_header("headers", name, value)
            sought.append(condition)
            values |= named
        if not sought or self.unmasked is None:
            return sought
        masked, found = self.unmasked
        plain = [name for name, one in values.items() if name.startswith("route_") and one not in masked]
        here = f"route in ({', '.join(':' + name for name in plain) or 'null'})"
        return [f"({' and '.join([here, *sought])} or escalation_id in ({', '.join(map(str, found)) or 'null'}))"]

    def to_json(self) -> dict[str, Any]:
        """The fields that say something; :meth:`read` takes them back."""
        return {
            one.name: value for one in _written(self) if (value := getattr(self, one.name)) and value != one.default
        }

    def query(self, **changes: Any) -> str:
        """This filter as a query string, with these fields changed; other names are appended as they are."""
        known = {one.name for one in _written(self)}
        changed = replace(self, **{name: value for name, value in changes.items() if name in known})
        pairs: dict[str, Any] = dict(changed.to_json())
        for name in ("ids", "failures"):
            if chosen := getattr(changed, name):
                pairs[name] = [str(one) for one in chosen]
        pairs |= {name: value for name, value in changes.items() if name not in known and value not in (None, "")}
        return urlencode(pairs, doseq=True)

    def searched(self) -> str:
        """What of it the search in every state knows, as a query string."""
        names = ("route", "cause", "queue", "since", "until", "past", "zone", "text", "header")
        pairs = {name: value for name in names if (value := getattr(self, name))}
        return urlencode(pairs | ({"group": self.group} if self.group.isdigit() else {}))

    @property
    def narrows(self) -> bool:
        """Whether anything but route, group and status is given."""
        return any(
            getattr(self, one.name) for one in _written(self) if one.name not in ("route", "group", "status", "zone")
        )

    @property
    def reads_rows(self) -> bool:
        """Whether it is found faster by reading rows as they lie than by an index."""
        return self.narrows and not (self.few or self.group or self.ids or self.failures)

    @property
    def names_failures(self) -> list[tuple[str, int]]:
        """The groups that it names, each with its route."""
        pairs = [failure_of(one) for one in self.failures]
        if self.route and self.group:
            pairs.append(failure_of(f"{self.route}~{self.group}"))
        return [(route, group) for route, group in pairs if group is not None]


def _written(kind: Any) -> list[Any]:
    """The fields that people write."""
    return [one for one in fields(kind) if not one.metadata]


def since_of(past: str, now: datetime, zone: str = "") -> datetime:
    """When a name of :data:`PAST` begins, for people of ``zone``."""
    if back := PAST[past]:
        return now - back
    return now.astimezone(_zone(zone)).replace(hour=0, minute=0, second=0, microsecond=0).astimezone(UTC)


def _zone(name: str) -> tzinfo:
    if not name:
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, KeyError, OSError):  # no file is so called, or none that has a zone in it
        raise BadFilter("zone: one such as Europe/Berlin") from None


def storable(name: str, text: str) -> str:
    """``text`` itself, if a database can have it; :class:`BadFilter` of what no stored text can be equal to.

    Nothing is taken out of it: a filter that is left with nothing would choose everything.
    """
    if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise BadFilter(f"{name}: NUL and half characters are in no text here")
    return text


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _ids(raw: object) -> tuple[int, ...]:
    given = raw if isinstance(raw, (list, tuple)) else [raw]
    if len(given) > _MAX_IDS:
        raise BadFilter(f"ids: at most {_MAX_IDS}; narrow the filter instead")
    return tuple(sorted({whole_number("ids", one) for one in given}))


def _failures(raw: object) -> tuple[str, ...]:
    given = raw if isinstance(raw, (list, tuple)) else [raw]
    if len(given) > _MAX_FAILURES:
        raise BadFilter(f"failures: at most {_MAX_FAILURES}")
    for one in given:
        failure_of(one)
    return tuple(sorted({str(one) for one in given}))


def failure_of(name: object) -> tuple[str, int | None]:
    """Route and group of ``route~group``; no group for ``route~none``."""
    if not isinstance(name, str) or len(name) > _MAX_TEXT:
        raise BadFilter("failures: route~group")
    route, _, group = storable("failures", name).rpartition("~")
    if not route:
        raise BadFilter("failures: route~group")
    return route, None if group == NO_GROUP else whole_number("failures", group)


def _failure(number: int, name: str, values: dict[str, Any]) -> str:
    """A condition for one of several failures; its values are added to ``values``."""
    route, group = failure_of(name)
    values[f"of_route_{number}"] = route
    if group is None:
        return f"(route = :of_route_{number} and group_id is null)"
    values[f"of_group_{number}"] = group
    return f"(route = :of_route_{number} and group_id = :of_group_{number})"


def check_times(past: str, since: str, until: str, zone: str) -> None:
    """Raise :class:`BadFilter` where these are no times."""
    if past and past not in PAST:
        raise BadFilter(f"past: one of {', '.join(PAST)}")
    for name, text in (("since", since), ("until", until)):
        instant(name, text)
    _zone(zone)


def query_of(asked: Any, changes: Mapping[str, Any]) -> str:
    """A dataclass of texts as a query string, with these fields changed; other names are appended."""
    known = {one.name for one in fields(asked)}
    changed = replace(asked, **{name: value for name, value in changes.items() if name in known})
    pairs = {one.name: value for one in fields(asked) if (value := getattr(changed, one.name))}
    return urlencode(pairs | {name: value for name, value in changes.items() if name not in known and value})


def whole_number(name: str, raw: object) -> int:
    """``raw`` as a number that a database's id can be. Raises :class:`BadFilter` by ``name``."""
    text = str(raw)
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise BadFilter(f"{name}: a whole number")
    return int(text)


def instant(name: str, text: str) -> datetime | None:
    """A date, a time with or without offset (UTC), None for nothing. What no clock can show is refused by ``name``."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return (aware + timedelta(0)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadFilter(f"{name}: a time such as 2026-11-20 or 2026-11-20T06:00 (UTC)") from None
