"""What commands share: the configuration, the ledger, the time, who runs them, and what is said at the end.

Imports what is heavy only when it is asked for.
"""

import base64
import getpass
import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from redrive.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from redrive.ledger.engine import Ledger
    from redrive.ledger.selecting import Selection
    from redrive.settings import Settings


def read_settings() -> "Settings":
    """The configuration, as `REDRIVE_CONFIG` or the working folder says where it is; routes that are left out of it
    are named on standard error."""
    from redrive import settings  # noqa: PLC0415

    found = settings.load()
    for name in found.broken:
        typer.echo(f"redrive: route {name} is left out: `redrive doctor {name}` says what is wrong with it", err=True)
    return found


@contextmanager
def open_ledger(settings: "Settings") -> Iterator["Ledger"]:
    """The ledger, once its tables are those that this code knows; SchemaOutdated otherwise."""
    from redrive.ledger import schema  # noqa: PLC0415
    from redrive.ledger.engine import Ledger  # noqa: PLC0415

    ledger = Ledger(settings.database)
    try:
        schema.check(ledger)
        yield ledger
    finally:
        ledger.close()


def utc_now() -> datetime:
    """The time: commands read it here, and hand it on."""
    return datetime.now(UTC)


def this_process() -> str:
    """Who holds a route while this command runs, as others see it."""
    return f"{getpass.getuser()}@{socket.gethostname()} process {os.getpid()}"


def console() -> "Console":
    """Standard output, as wide as its terminal."""
    from rich.console import Console  # noqa: PLC0415

    return Console()


def printable(text: str) -> str:
    """``text`` without control characters: a hostile error, name or note can't drive somebody's terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def confirm(question: str) -> None:
    """Go on where somebody says yes; where not, or where nobody answers, say so and end the command with 1."""
    try:
        if typer.confirm(question):
            return
    except typer.Abort:
        typer.echo(err=True)  # the question's line has no end yet
    typer.echo("redrive: not confirmed, nothing was changed; --yes goes ahead", err=True)
    raise typer.Exit(1)


def json_line(value: Any) -> str:
    """``value`` as a line of JSON: what a database counts as a number, bytes as Base64, times as text with their zone,
    whichever database has them."""
    return json.dumps(_zoned(value), default=_as_json)


def plain_json_line(value: Any) -> str:
    """What somebody gave us as a line of JSON, letters of all languages as they are where standard output can take
    them."""
    text = json.dumps(value, ensure_ascii=False)
    with suppress(UnicodeEncodeError):
        text.encode(sys.stdout.encoding or "utf-8")
        return text
    return json.dumps(value)


#: What times are called, besides ``…_at`` and ``…_until``; and how SQLite has them.
_TIMES = frozenset({"at", "drained_to", "oldest", "oldest_send", "until", "when"})
_STORED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?")


def _zoned(value: Any, name: str = "") -> Any:
    """``value`` with the zone, UTC, at each time that has none because SQLite keeps it as text."""
    from redrive.ledger.engine import parse_instant  # noqa: PLC0415

    if isinstance(value, dict):
        return {key: _zoned(one, str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_zoned(one) for one in value]
    is_time = name.endswith(("_at", "_until")) or name in _TIMES
    return str(parse_instant(value)) if is_time and isinstance(value, str) and _STORED.fullmatch(value) else value


def _as_json(value: object) -> object:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return base64.b64encode(value).decode() if isinstance(value, bytes | bytearray | memoryview) else str(value)


def selection_of(
    limit: int | None = None,
    causes: list[str] | None = None,
    groups: list[int] | None = None,
    since: str | None = None,
    until: str | None = None,
    sources: list[str] | None = None,
    attributes: list[str] | None = None,
    types: list[str] | None = None,
) -> "Selection":
    from redrive.classification.causes import Cause  # noqa: PLC0415
    from redrive.ledger.selecting import Selection, parse_attributes  # noqa: PLC0415
    from redrive.message import TYPE_ATTRIBUTE  # noqa: PLC0415

    known = {cause.value for cause in Cause}
    for cause in causes or ():
        if cause not in known:
            raise UsageError(f"--cause {cause}: no such cause; there are {', '.join(sorted(known))}")
    begins, ends = _moment("--since", since), _moment("--until", until)
    if begins and ends and begins >= ends:
        raise UsageError(f"--since {since} is not before --until {until}: nothing can be both")
    return Selection(
        limit,
        tuple(causes or ()),
        tuple(groups or ()),
        begins,
        ends,
        tuple(sources or ()),
        (*parse_attributes(attributes or ()), *((TYPE_ATTRIBUTE, one) for one in types or ())),
    )


def _moment(option: str, text: str | None) -> datetime | None:
    from redrive.settings import parse_duration  # noqa: PLC0415

    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            return utc_now() - parse_duration(text.removesuffix(" ago"))
        except ValueError as error:
            raise UsageError(
                f"{option} {text}: neither a time such as 2026-11-20T06:00 nor an age such as 6h"
            ) from error
    try:
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError as error:
        raise UsageError(f"{option} {text}: there is no such time in UTC") from error


#: What of a row may hold a text of a message, or what people wrote.
_TEXTS = frozenset(
    {
        *("payload", "error_text", "corrected_body", "template", "example"),
        *("reason", "refusal", "note", "why", "suggested_because", "pause_reason"),
    }
)


def masked(settings: "Settings", rows: list[dict[str, Any]], route: str | None = None) -> list[dict[str, Any]]:
    """Rows about messages as they may be shown: without what their route, or ``route``, redacts, also where it was
    renamed or removed. Raises :class:`~redrive.errors.SettingsError` for a route whose section is wrong: what it
    redacts may be what is wrong."""
    from redrive.redaction import redactor_of, said_by  # noqa: PLC0415
    from redrive.redaction.masks import MASK  # noqa: PLC0415

    for row in rows:
        of = route or row["route"]
        if of in settings.broken:
            settings.route(of)  # raises
        if not (mask := redactor_of(of, settings.routes)):
            continue
        for name in _TEXTS & row.keys():
            row[name] = row[name] and mask(row[name])
        for event in row.get("timeline", ()):
            if not event["what"].startswith("attempt "):  # which says names and ids alone
                event["what"] = said_by(mask, event["what"])
        if row.get("headers"):
            row["headers"] = mask.headers(row["headers"])
        if row.get("corrected_headers"):
            row["corrected_headers"] = mask.changes(row["corrected_headers"])
        if row.get("payload_bytes"):
            row["payload_bytes"] = MASK  # nothing can be masked in what is no text
    return rows


def hidden(rows: list[dict[str, Any]]) -> None:
    """Take all texts out of rows of a route whose section is wrong, as nobody knows what it redacts."""
    from redrive.redaction.masks import MASK  # noqa: PLC0415

    for row in rows:
        row.update({name: MASK for name in _TEXTS & row.keys() if row[name]})


def learned_model_here() -> Any:
    """What this site has learned; None where it has not, or with a file of another version, which is told."""
    from redrive.classification import learned_model  # noqa: PLC0415
    from redrive.settings.places import home  # noqa: PLC0415

    try:
        return learned_model.of_site(home())
    except ValueError as error:
        typer.echo(f"{learned_model.LEARNED}: {error}", err=True)
        return None


def known_groups_here() -> list[Any]:
    """The ledger's groups where there is a ledger; [] in any other case, because explain needs none."""
    from redrive.errors import RedriveError as AnyError  # noqa: PLC0415

    try:
        from redrive.ledger.drain import groups  # noqa: PLC0415

        settings = read_settings()
        if settings.database.startswith("sqlite") and not Path(settings.database.removeprefix("sqlite:///")).exists():
            return []
        with open_ledger(settings) as ledger, ledger.read() as connection:
            return groups.known_groups(connection)
    except AnyError:
        return []


def print_advice(settings: "Settings", route: str, causes: dict[str, int]) -> None:
    """How to make the commonest causes of ``route`` not happen again."""
    from redrive.cli import output  # noqa: PLC0415

    output.print_advice(console(), causes, settings.route(route).broker)


def print_counts(title: str, counts: dict[str, Any]) -> None:
    shown = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in counts.items() if ":" not in key)
    typer.echo(f"{title}: {shown}")
