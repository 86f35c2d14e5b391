"""Decisions about escalated messages: `redrive review`."""

import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.cli.context import (
    confirm,
    console,
    json_line,
    masked,
    open_ledger,
    print_counts,
    printable,
    read_settings,
    this_process,
)
from redrive.cli.options import ASK_FROM, AsJson, By, DryRun, Note, OfRoute, Yes
from redrive.errors import RouteBusy, UsageError
from redrive.message import LARGEST_ID, MOST_MESSAGES

if TYPE_CHECKING:
    from redrive.corrections import Correction
    from redrive.ledger.review.decisions import Choice

app = typer.Typer(help="Look at escalated messages and decide about them.", no_args_is_help=True)

Message = Annotated[list[int] | None, typer.Option("--message", max=LARGEST_ID, help="A message id; may be repeated.")]
OfGroup = Annotated[int | None, typer.Option("--group", max=LARGEST_ID, help="Every open message of this group.")]


def _chosen(message: list[int] | None, group: int | None, route: str | None) -> "Choice":
    from redrive.ledger.review.decisions import Choice  # noqa: PLC0415

    return Choice(message or (), group, route)


@app.command("list")
def review_list(route: OfRoute = None, as_json: AsJson = False) -> None:
    """The groups that wait for a decision, largest first."""
    from redrive.ledger.account import inspecting  # noqa: PLC0415

    settings = read_settings()
    if route:
        settings.route(route)
    with open_ledger(settings) as ledger, ledger.read() as connection:
        rows = inspecting.review_groups(connection, route)
    left_out = sorted({row["route"] for row in rows} & settings.broken.keys())
    for name in left_out:  # what it redacts may be what is wrong
        count = sum(row["route"] == name for row in rows)
        typer.echo(f"redrive: {count} groups of route {name} are not shown until that is mended", err=True)
    rows = masked(settings, [row for row in rows if row["route"] not in settings.broken])
    if as_json:
        typer.echo(json_line(rows))
        return
    from redrive.cli import output  # noqa: PLC0415

    output.print_review_groups(console(), rows)


@app.command("show")
def review_show(
    message: Annotated[int, typer.Argument(max=LARGEST_ID, help="The message's id.")], as_json: AsJson = False
) -> None:
    """One escalated message: error, payload, headers, and what was done with it before."""
    from redrive.ledger.account import inspecting  # noqa: PLC0415

    settings = read_settings()
    with open_ledger(settings) as ledger, ledger.read() as connection:
        rows = masked(settings, inspecting.escalations(connection, message))
    if not rows:
        raise UsageError(f"message {message} was never escalated")
    if as_json:
        typer.echo(json_line(rows))
        return
    from redrive.cli import output  # noqa: PLC0415

    output.print_escalations(console(), rows)


def _decide(
    decision: str,
    choice: "Choice",
    by: str,
    note: str,
    *,
    correction: "Correction | None" = None,
    limit: int | None = None,
    dry_run: bool = False,
    yes: bool = False,
) -> None:
    """Decide, or say what would be decided; exit 1 if anything that ``choice`` names could not be."""
    from redrive import corrections  # noqa: PLC0415
    from redrive.ledger.review import decisions  # noqa: PLC0415
    from redrive.stages.review import bounds_of  # noqa: PLC0415

    if not choice.messages and choice.group is None:
        raise UsageError("say which: --message ID (may be repeated) or --group ID")
    settings = read_settings()
    if choice.route:
        settings.route(choice.route)
    with open_ledger(settings) as ledger:
        if correction is not None:
            with ledger.read() as connection:
                found_here = decisions.original(connection, *choice.where())
            if found_here is not None:
                _, of, original = found_here
                bounds = bounds_of(settings.routes.get(of))
                if problem := corrections.objection(correction, original, bounds):
                    raise UsageError(f"message {choice.messages[0]}: {problem}")
        found = decisions.undecided(ledger, choice, limit)
        for sentence in found.left:
            typer.echo(printable(f"redrive: {sentence}"), err=True)
        for name in sorted(set(found.routes) - set(settings.routes)):
            typer.echo(
                f"redrive: route {name} is not in the configuration, or wrong there: what is decided about its messages"
                " is carried out once that is mended",
                err=True,
            )
        if dry_run:
            typer.echo(f"{found.questions} messages would be decided: {decision}")
        elif found.questions:
            if found.questions > ASK_FROM and not yes:
                confirm(f"{decision} {found.questions:,} messages?")
            count = decisions.decide(
                ledger,
                choice,
                up_to=found.up_to,
                seen=found.seen,
                decision=decision,
                by=by or getpass.getuser(),
                note=note,
                correction=correction,
            )
            alone = any(one in settings.routes and settings.routes[one].approvals > 1 for one in found.routes)
            first = "once a second person has approved it (approved_by), " if alone else ""
            typer.echo(
                f"{count} messages: {decision}; {first}`redrive review apply` or the DAG redrive_review carries it out"
            )
            if count < found.questions:
                typer.echo(
                    f"redrive: {found.questions - count} of them changed meanwhile and were left alone", err=True
                )
                raise typer.Exit(1)
    if found.left:
        raise typer.Exit(1)


def _decision_command(name: str, text: str) -> None:
    def command(
        message: Message = None,
        group: OfGroup = None,
        route: OfRoute = None,
        by: By = "",
        note: Note = "",
        limit: Annotated[
            int | None, typer.Option("--limit", min=1, max=MOST_MESSAGES, help="At most so many, oldest first.")
        ] = None,
        dry_run: DryRun = False,
        yes: Yes = False,
    ) -> None:
        decision = name.replace("-", "_")
        _decide(decision, _chosen(message, group, route), by, note, limit=limit, dry_run=dry_run, yes=yes)

    app.command(name, help=text)(command)


for _name, _text in {
    "redeliver": "Send these again, one attempt beyond their cap.",
    "discard": "Nobody needs these any more.",
    "not-there": "You looked: what a restore may have put back is not in its queue. Decide then what becomes of it.",
}.items():
    _decision_command(_name, _text)


@app.command("edit")
def review_edit(
    message: Annotated[int, typer.Argument(max=LARGEST_ID, help="The message's id.")],
    body: Annotated[Path | None, typer.Option(help="A file with the corrected body; - reads standard input.")] = None,
    headers: Annotated[
        str | None,
        typer.Option(help='Headers that change: {"tenant": "blue", "trace": null, "retries": ["Number", "3"]}.'),
    ] = None,
    by: By = "",
    note: Note = "",
    dry_run: DryRun = False,
) -> None:
    """Send a corrected copy instead of the original, which is kept."""
    from redrive.corrections import Correction  # noqa: PLC0415

    if body is None and headers is None:
        raise UsageError("say what to correct: --body FILE, --headers JSON, or both")
    correction = Correction(None if body is None else _text_of(body), headers)
    _decide("edit", _chosen([message], None, None), by, note, correction=correction, dry_run=dry_run)


def _text_of(body: Path) -> str:
    """What a file, or standard input, holds: as it is, because other ends of lines would be another body."""
    where = "standard input" if str(body) == "-" else str(body)
    try:
        return (sys.stdin.buffer.read() if str(body) == "-" else body.read_bytes()).decode("utf-8")
    except OSError as error:
        raise UsageError(f"--body {where}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--body {where}: not text in UTF-8, from byte {error.start} on") from error


@app.command("apply")
def review_apply(route: OfRoute = None, as_json: AsJson = False) -> None:
    """Carry out what was decided: releases wait for the next delivery, discards are final.

    A route that a run holds is left for the next time (exit code 3), the others are done. What waits for something
    else, a second person or a route that is not configured, is told.
    """
    from redrive.ledger.review import applying  # noqa: PLC0415
    from redrive.stages import pipeline  # noqa: PLC0415

    settings = read_settings()
    if route:
        settings.route(route)
    done: dict[str, dict[str, Any]] = {}
    for name in [route] if route else list(settings.routes):
        try:
            done[name] = pipeline.apply_decisions(settings, name, holder=this_process())
        except RouteBusy as busy:
            done[name] = {"busy": str(busy)}
            typer.echo(f"redrive: {busy}", err=True)
            continue
        if not as_json:
            print_counts(f"review {name}", done[name])
    with open_ledger(settings) as ledger, ledger.read() as connection:
        of_two = [name for name in done if settings.routes[name].approvals > 1]
        alone = {name: applying.left(connection, name).not_approved for name in of_two}
        behind = {} if route else applying.of_routes_not_configured(connection, settings.routes)
    for name, count in alone.items():
        done[name]["not_approved"] = count
        if count:
            typer.echo(f"redrive: {count:,} decisions on route {name} wait for a second person (approved_by)", err=True)
    for name, count in behind.items():
        done[name] = {"not_configured": count}
        typer.echo(printable(f"redrive: {applying.why_nobody_applies(name, count)}"), err=True)
    if as_json:
        typer.echo(json_line(done))
    if any("busy" in counts for counts in done.values()):
        raise typer.Exit(RouteBusy.exit_code)
