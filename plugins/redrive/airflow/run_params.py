"""The parameters of a run of a route: what Airflow's form asks, and what the answers mean."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param

from redrive.classification.causes import Cause
from redrive.errors import UsageError
from redrive.message import LARGEST_ID, MOST_MESSAGES

if TYPE_CHECKING:
    from redrive.ledger.selecting import Selection

#: RFC 3339, or only its date; Airflow's form sends the first, people type the second.
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?$"


def route_params(sources: Sequence[str] = ()) -> dict[str, Param]:
    """The parameters of a run of a route with these sources, as in ``redrive run --help``; all may be left out."""
    return {
        "limit": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            maximum=MOST_MESSAGES,
            title="At most",
            description="Drain at most this many messages. Empty: what the route's `drain.limit` says.",
        ),
        "dry_run": Param(
            False,
            type="boolean",
            title="Dry run",
            description="Change nothing: plan what is staged already and report what would be sent.",
        ),
        "causes": Param(
            [],
            type="array",
            items={"type": "string", "enum": [cause.value for cause in Cause]},
            uniqueItems=True,
            examples=[cause.value for cause in Cause],
            title="Causes",
            description="Redeliver only messages that failed for one of these. Empty: all.",
        ),
        "groups": Param(
            [],
            type="array",
            items={"type": "integer", "minimum": 1, "maximum": LARGEST_ID},
            uniqueItems=True,
            title="Groups",
            description="Redeliver only messages of these failure groups, e.g. `[7, 12]`. Empty: all.",
        ),
        "since": Param(
            None,
            type=["null", "string"],
            format="date-time",
            pattern=_TIME,
            title="Since",
            description="Only messages dead-lettered at or after this time (UTC unless it says otherwise).",
        ),
        "until": Param(
            None,
            type=["null", "string"],
            format="date-time",
            pattern=_TIME,
            title="Until",
            description="Only messages dead-lettered before this time (UTC unless it says otherwise).",
        ),
        "sources": Param(
            [],
            type="array",
            items={"type": "string", **({"enum": list(sources)} if sources else {})},
            uniqueItems=True,
            examples=list(sources),
            title="Source queues",
            description="Drain, plan and redeliver only what comes from these. Empty: all.",
        ),
        "attributes": Param(
            [],
            type="array",
            items={"type": "string", "pattern": "^[^=]+="},
            uniqueItems=True,
            title="Attributes",
            description="Redeliver only messages with these headers, each as NAME=VALUE, e.g. `tenant=acme`. "
            "Of one name any value will do; different names all have to match. The name `type()` is the message's type "
            "(NServiceBus, MassTransit, Subject). Empty: all.",
        ),
    }


def selection(params: Mapping[str, Any]) -> "Selection":
    """The selection that the parameters of a run mean; :class:`UsageError` names a parameter that is wrong."""
    from redrive.ledger.selecting import Selection, parse_attributes  # noqa: PLC0415

    since, until = moment("since", params["since"]), moment("until", params["until"])
    if since and until and since >= until:
        raise UsageError(f"since: {params['since']} is not before until ({params['until']})")
    return Selection(
        limit=None if params["limit"] is None else int(params["limit"]),  # 1e3 is an integer to JSON Schema
        causes=tuple(params["causes"]),
        groups=tuple(params["groups"]),
        since=since,
        until=until,
        sources=tuple(params["sources"]),
        attributes=parse_attributes(params["attributes"]),
    )


def moment(name: str, text: str | None) -> datetime | None:
    """A time in ISO 8601 as an aware datetime; one without an offset is UTC."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{name}: {text!r} is not a time; write 2026-11-20T08:00:00Z or 2026-11-20") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def refuse_unknown(conf: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse parameters that do not exist; Airflow takes them, and a mistyped ``limit`` would drain it all."""
    names = sorted(known)
    if unknown := sorted(set(conf) - set(names)):
        raise UsageError(f"{', '.join(unknown)}: no such parameter; there are {', '.join(names)}")
