"""The ``redrive`` command.

Everything heavy is imported by the command that needs it: an idle run answers without Airflow, Spark or a browser of
their modules. Exit codes: 0 done, 1 failed or a promise broken, 2 wrong use or configuration, 3 refused because
another run holds the route or people paused it.
"""

import getpass
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.errors import RedriveError, RouteBusy, SourcesFailed, UsageError
from redrive.message import LARGEST_ID, MOST_MESSAGES

if TYPE_CHECKING:
    from rich.console import Console
    from sqlalchemy.engine import Connection

    from redrive.corrections import Correction
    from redrive.ledger.engine import Ledger
    from redrive.ledger.review.decisions import Choice
    from redrive.ledger.selecting import Selection
    from redrive.settings import Settings
    from redrive.stages.context import Progress, Run

app = typer.Typer(
    name="redrive",
    help="""Brings dead messages back in batches.

    A run of a route observes its queues, drains them into staging, finds out in Spark why each message failed,
    redelivers what is eligible under control, and hands the rest to people, who decide in SQL.

    Try it: [bold]redrive demo[/bold]. See where things are: [bold]redrive status[/bold]. Look before you leap:
    [bold]redrive run ROUTE --dry-run[/bold].
    """,
    rich_markup_mode="rich",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
review_app = typer.Typer(help="Look at escalated messages and decide about them.", no_args_is_help=True)
groups_app = typer.Typer(help="Say which failures are one, and which are two.", no_args_is_help=True)
db_app = typer.Typer(help="The ledger's database.", no_args_is_help=True)
app.add_typer(review_app, name="review")
app.add_typer(groups_app, name="groups")
app.add_typer(db_app, name="db")

#: How long a run of the command line holds a route between two signs of life.
LEASE = timedelta(seconds=60)

RouteName = Annotated[str, typer.Argument(help="A route of the configuration.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of tables.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, change nothing anywhere.")]
Limit = Annotated[
    int | None, typer.Option(min=1, max=MOST_MESSAGES, help="At most so many messages, drained and sent each.")
]
Causes = Annotated[list[str] | None, typer.Option("--cause", help="Only this cause; may be repeated.")]
Groups = Annotated[
    list[int] | None,
    typer.Option("--group", min=1, max=LARGEST_ID, help="Only this group's id; may be repeated."),
]
Since = Annotated[str | None, typer.Option(help="Dead-lettered at or after: 2026-11-20T06:00, or 6h ago as 6h.")]
Until = Annotated[str | None, typer.Option(help="Dead-lettered before; as --since.")]
Sources = Annotated[list[str] | None, typer.Option("--source", help="Only this source queue; may be repeated.")]
Attributes = Annotated[
    list[str] | None,
    typer.Option(
        "--attribute",
        help="Only messages with this header, as NAME=VALUE; may be repeated: any value of one name, all names.",
    ),
]
Types = Annotated[
    list[str] | None,
    typer.Option("--type", help="Only messages of this type (NServiceBus, MassTransit, Subject); may be repeated."),
]


Wait = Annotated[bool, typer.Option("--wait", help="Where another run holds the route, wait for its end.")]


def _say_version(asked: bool) -> None:
    if asked:
        from redrive import __version__  # noqa: PLC0415

        typer.echo(f"redrive {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version and stop.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command; errors that Redrive knows end in one clear line and their exit code."""
    try:
        # Without its own error handling the app returns the code of typer.Exit instead of leaving with it.
        sys.exit(app(standalone_mode=False) or 0)
    except RedriveError as error:
        typer.secho(f"redrive: {error}", err=True, fg="red")  # plain where nobody looks on
        sys.exit(error.exit_code)
    except typer.Exit as done:
        sys.exit(done.exit_code)
    except KeyboardInterrupt as interrupted:
        typer.echo(f"redrive: {interrupted or 'interrupted'}", err=True)
        sys.exit(130)
    except typer.Abort:
        sys.exit(1)
    except Exception as error:
        # Wrong use of an option: Typer's own copy of Click raises these, and exports no common base class.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        sys.exit(2)


# --- running ------------------------------------------------------------------------------------------------


@app.command()
def run(
    route: RouteName,
    dry_run: DryRun = False,
    limit: Limit = None,
    cause: Causes = None,
    group: Groups = None,
    since: Since = None,
    until: Until = None,
    source: Sources = None,
    attribute: Attributes = None,
    type: Types = None,
    until_done: Annotated[
        bool,
        typer.Option("--until-done", help="Run again, as windows and delays allow, until nothing is left for runs."),
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Run again and again, until Ctrl-C.")] = False,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Run the whole loop for ROUTE: drain, classify, resolve, plan, deliver, escalate, report. Once, unless told."""
    settings, selection = _settings(), _selection(limit, cause, group, since, until, source, attribute, type)
    if dry_run:
        _preview(settings, route, selection, as_json)
        return
    while True:
        report = _run_once(settings, route, selection, as_json, wait=wait or until_done or watch)
        if not (until_done or watch) or not _another(settings, route, report, watch=watch):
            break
    if not as_json:
        _print_advice(settings, route, report.get("causes", {}))


def _run_once(settings: "Settings", route: str, selection: "Selection", as_json: bool, *, wait: bool) -> dict[str, Any]:
    """One run, and what it says; returns its report."""
    from redrive.stages import pipeline  # noqa: PLC0415

    with _running(settings, route, selection, as_json, wait=wait) as (current, progress):
        pipeline.observe(settings, current, progress=progress)
        pipeline.drain(settings, current, progress=progress)
        _classify(settings, current, progress)
        pipeline.resolve(settings, current, progress=progress)
        pipeline.plan(settings, current, progress=progress)
        pipeline.deliver(settings, current, progress=progress)
        pipeline.escalate(settings, current, progress=progress)
        try:
            report = pipeline.report(settings, current, progress=progress)
        except SourcesFailed as failed:
            _tell(failed.report or {}, as_json)
            raise
    _tell(report, as_json)
    return report


#: Between two runs of one command: no less, so that a queue that fills all the time is no tight loop, and no more,
#: because how far a destination has got shows only when somebody looks.
PAUSES = (timedelta(seconds=2), timedelta(seconds=60))


def _another(settings: "Settings", route: str, report: dict[str, Any], *, watch: bool) -> bool:
    """Wait until the next run has something to do; False where nothing is left for it."""
    from redrive.ledger.account import inspecting  # noqa: PLC0415

    with _ledger(settings) as ledger, ledger.read() as connection:
        left = inspecting.to_do(connection, route)
    for sentence in left.stuck:
        typer.echo(f"redrive: {sentence}", err=True)
    if not watch and not left.messages and not report["drained"]:
        typer.echo(f"done: nothing is left on {route} that a run could do", err=True)
        return False
    shortest, pause = PAUSES
    if report["drained"]:
        pause = shortest  # there may be more of it
    elif left.next_at is not None:
        pause = min(max(left.next_at - _now(), shortest), pause)
    typer.echo(
        f"left: {left.words or 'nothing'}; the next run in {pause.total_seconds():.0f} s (Ctrl-C ends it)", err=True
    )
    time.sleep(pause.total_seconds())
    return True


def _tell(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(report))
    else:
        _print_report(report)


def _print_advice(settings: "Settings", route: str, causes: dict[str, int]) -> None:
    """How to make the commonest causes of ``route`` not happen again."""
    from redrive.cli import output  # noqa: PLC0415

    output.print_advice(_console(), causes, settings.route(route).broker)


def _causes(settings: "Settings", route: str) -> dict[str, int]:
    from redrive.ledger.account import inspecting  # noqa: PLC0415

    with _ledger(settings) as ledger, ledger.read() as connection:
        return inspecting.causes(connection, route)


def _stage_command(name: str, text: str) -> None:
    def command(
        route: RouteName,
        dry_run: DryRun = False,
        limit: Limit = None,
        cause: Causes = None,
        group: Groups = None,
        since: Since = None,
        until: Until = None,
        source: Sources = None,
        attribute: Attributes = None,
        type: Types = None,
        as_json: AsJson = False,
    ) -> None:
        from redrive.stages import failed_sources, pipeline  # noqa: PLC0415

        settings, selection = _settings(), _selection(limit, cause, group, since, until, source, attribute, type)
        if dry_run:
            _preview(settings, route, selection, as_json)
            return
        with _running(settings, route, selection, as_json) as (current, progress):
            if name == "classify":
                counts = _classify(settings, current, progress)
            else:
                counts = getattr(pipeline, name)(settings, current, progress=progress)
            if as_json:
                typer.echo(json.dumps({"route": route, "stage": name, **counts}))
            else:
                _print_counts(f"{name} {route}", counts)
                if name == "classify":
                    _print_advice(settings, route, _causes(settings, route))
            failed_sources.refuse(counts)

    app.command(name=name, help=text)(command)


for _name, _text in {
    "observe": "Only look at ROUTE's queues: depths into queue_observations.",
    "drain": "Only drain ROUTE's sources into staging, and settle there what is recorded.",
    "classify": "Only find causes and groups of what is staged (Spark), and load it into the ledger.",
    "resolve": "Only find out what became of past sends: confirmed, presumed, unknown.",
    "plan": "Only decide: who waits, who is held behind a canary, who goes to people.",
    "deliver": "Only send what is due, under ROUTE's budget.",
    "escalate": "Only hand over to people what the plan marked for them.",
}.items():
    _stage_command(_name, _text)


@app.command()
def restore(
    route: RouteName,
    group: Groups = None,
    limit: Annotated[int | None, typer.Option(min=1, max=MOST_MESSAGES, help="At most so many messages.")] = None,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask, however many they are.")] = False,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """The way out: put every unfinished message of ROUTE back into the queue it was drained from."""
    from redrive.stages import pipeline  # noqa: PLC0415
    from redrive.stages import restore as restoring  # noqa: PLC0415

    settings, selection = _settings(), _selection(limit, groups=group)
    settings.route(route)
    with _ledger(settings) as ledger, ledger.read() as connection:
        count, staged = restoring.would_restore(connection, route, selection)
    if dry_run:
        typer.echo(
            json.dumps({"route": route, "would_restore": count, "staged": staged})
            if as_json
            else f"{count:,} unfinished messages of {route} would go back into their queues"
            + (f", and what is new of {staged:,} copies that are staged and not yet classified" if staged else "")
        )
        return
    # Where nobody sits there it is a program, which has always gone ahead.
    if count + staged > ASK_FROM and not yes and sys.stdin.isatty():
        typer.confirm(f"Put {count + staged:,} messages of {route} back into their queues?", abort=True)
    with _running(settings, route, selection, as_json, trigger="restore", even_if_paused=True, wait=wait) as (
        current,
        progress,
    ):
        done = pipeline.restore(settings, current, progress=progress)
    if as_json:
        typer.echo(json.dumps({"route": route, **done}))
    else:
        _print_counts(f"restore {route}", {k: v for k, v in done.items() if k != "problems"})
        for message_id, problem in done["problems"].items():
            typer.echo(f"  message {message_id}: {problem}", err=True)
    if done["not_restored"] or done["unknown"] or done["suspected"]:
        raise typer.Exit(1)


@app.command()
def adopt(
    route: RouteName,
    ledger: Annotated[
        list[str] | None,
        typer.Option(help="Also files of this ledger, which is lost; `redrive audit` names it. May be repeated."),
    ] = None,
    restored: Annotated[
        bool,
        typer.Option("--restored", help="The ledger comes from a backup: ask people about all that it says is unsent."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take in ROUTE's staging files that the ledger doesn't know, each once; what is in them goes to people.

    For after a restore of the ledger from a backup: what was drained since then is in such files only, and nobody
    knows what was redelivered since. The next run classifies it and puts it under review, with that reason.
    """
    from redrive.stages import pipeline  # noqa: PLC0415

    settings = _settings()
    with _running(settings, route, _selection(), as_json, trigger="adopt", even_if_paused=True) as (current, progress):
        done = pipeline.adopt(settings, current, of_ledgers=ledger or (), restored=restored, progress=progress)
    if as_json:
        typer.echo(json.dumps({"route": route, **done}))
    else:
        _print_counts(f"adopt {route}", done)
    if done["unreadable"]:
        raise typer.Exit(1)


@app.command("forget-batch")
def forget_batch(
    route: RouteName,
    batch: Annotated[int, typer.Argument(help="The batch's id, as `redrive audit` says it.", show_default=False)],
    reason: Annotated[str, typer.Option(help="Why its file won't come back; kept for ever.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give up BATCH of ROUTE, whose staging file was lost before it was loaded, so that the route goes on.

    Refused while the file can be read. Bring it back if you can: what was settled may be nowhere else.
    """
    from redrive.stages import give_up, pipeline  # noqa: PLC0415

    settings = _settings()
    settings.route(route)
    found = give_up.look(settings, route, batch)
    if not yes:
        typer.confirm(
            f"Batch {batch} holds {found['copies']} copies, which may be nowhere else. {found['watched']} sends are"
            " watched that may have come back in it; nobody will know of these, and they stay sent. Give it up?",
            abort=True,
        )
    with _running(settings, route, _selection(), as_json, trigger="forget-batch", even_if_paused=True) as (
        current,
        progress,
    ):
        done = pipeline.give_up(settings, current, batch, by=getpass.getuser(), reason=reason, progress=progress)
    if as_json:
        typer.echo(json.dumps({"route": route, **done}))
    else:
        _print_counts(f"forget-batch {route}", done)


@app.command()
def simulate(
    route: RouteName,
    policy: Annotated[
        Path,
        typer.Option(help="YAML with other values of requeue_attempts, delay_attempts, backoff, canary, causes."),
    ],
    cause: Causes = None,
    group: Groups = None,
    since: Since = None,
    until: Until = None,
    source: Sources = None,
    as_json: AsJson = False,
) -> None:
    """Replay ROUTE's history against another policy: what would have been redelivered, returned, escalated.

    Reads the ledger only. What nobody tried is counted as not known, never guessed. Example:

        echo 'requeue_attempts: 1' > policy.yaml; redrive simulate orders --policy policy.yaml --since 7d
    """
    from redrive import settings as configuration  # noqa: PLC0415
    from redrive.stages import simulate as simulation  # noqa: PLC0415

    settings = _settings()
    other = configuration.load_policy(policy, settings.route(route))
    found = simulation.simulate(settings, route, other, _selection(None, cause, group, since, until, source))
    if as_json:
        typer.echo(json.dumps(found))
        return
    from redrive.cli import output  # noqa: PLC0415

    output.print_simulation(_console(), found)


# --- control ------------------------------------------------------------------------------------------------


@app.command()
def status(
    route: Annotated[str | None, typer.Argument(help="One route; all when left out.")] = None,
    wide: Annotated[bool, typer.Option("--wide", help="Gates as one table, for wide terminals.")] = False,
    as_json: AsJson = False,
) -> None:
    """Where every route stands: messages by state, gates of its groups, who holds it, whether it is paused."""
    from redrive.ledger.account import inspecting  # noqa: PLC0415

    settings = _settings()
    names = [route] if route else list(settings.routes)
    for name in names:
        settings.route(name)
    with _ledger(settings) as ledger, ledger.read() as connection:
        found = [
            inspecting.status(connection, name)
            | {"configuration": _configuration(connection, settings, name)}
            | {"causes": inspecting.causes(connection, name)}
            for name in names
        ]
    if as_json:
        typer.echo(json.dumps(found, default=str))
        return
    from redrive.cli import output  # noqa: PLC0415

    for one in found:
        output.print_status(_console(), one, _now(), wide=wide)
        _print_advice(settings, one["route"], one["causes"])


@app.command()
def pause(
    route: RouteName, reason: Annotated[str, typer.Option(help="Why; people see it.")] = "no reason given"
) -> None:
    """Let no run of ROUTE begin and none send, until `redrive resume`."""
    from redrive.ledger import leases  # noqa: PLC0415
    from redrive.stages import notify  # noqa: PLC0415

    settings = _settings()
    settings.route(route)
    with _ledger(settings) as ledger:
        leases.pause(ledger, route, by=getpass.getuser(), reason=reason, now=_now())
    notify.paused(settings, route, _now())
    typer.echo(f"{route} is paused; `redrive resume {route}` lets it go on")


@app.command()
def resume(route: RouteName) -> None:
    """Let ROUTE go on after a pause."""
    from redrive.ledger import leases  # noqa: PLC0415
    from redrive.stages import notify  # noqa: PLC0415

    settings = _settings()
    settings.route(route)
    with _ledger(settings) as ledger:
        changed = leases.resume(ledger, route, by=getpass.getuser(), now=_now())
    notify.paused(settings, route, _now())
    typer.echo(f"{route} goes on" if changed else f"{route} was not paused")


@app.command()
def release(
    route: RouteName,
    group: Annotated[int | None, typer.Argument(max=LARGEST_ID, help="The group's id.", show_default=False)] = None,
    destination: Annotated[str | None, typer.Option(help="A stopped destination instead of a group.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_MESSAGES, help="So many of the group go first. Default: the route's canary."),
    ] = None,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask, however many go at once.")] = False,
) -> None:
    """Let a held GROUP of ROUTE try its canary again, or a stopped destination a few messages. Of a destination that
    tells no depth you say by it that it has worked off what was sent there."""
    from redrive.ledger.delivery import breakers, in_flight  # noqa: PLC0415

    settings = _settings()
    canary = settings.route(route).canary
    if (group is None) == (destination is None):
        raise UsageError("say what to release: the id of a group, or --destination NAME")
    if limit is not None and destination is not None:
        raise UsageError("--limit is for a group; to a stopped destination a few go first anyway")
    first = limit or (canary.first if canary else None)
    if dry_run:
        _would_release(settings, route, group, destination, first)
        return
    with _ledger(settings) as ledger:
        if destination is not None:
            worked = in_flight.vouch(ledger, route, destination, by=getpass.getuser(), now=_now())
            released = breakers.release_destination(ledger, route, destination, by=getpass.getuser(), now=_now())
            if not (released or worked):
                raise UsageError(
                    f"the breaker of {destination} holds nothing back; `redrive status {route}` shows those that do"
                )
            typer.echo(f"{destination} gets messages again in the next run of {route}; if it was stopped, a few first")
            return
        assert group is not None  # noqa: S101 - one of the two was given
        with ledger.read() as connection:
            held = next((one.held for one in breakers.of_groups(connection, route) if one.group_id == group), 0)
        at_once = held if first is None else min(first, held)
        # Where nobody sits there it is a program, which has always gone ahead.
        if at_once > ASK_FROM and not yes and sys.stdin.isatty():
            typer.confirm(f"Let {at_once:,} messages of group {group} of {route} go at once?", abort=True)
        if not breakers.release_group(ledger, route, group, first=first, by=getpass.getuser(), now=_now()):
            raise UsageError(f"route {route} has no group {group}; `redrive status {route}` lists them")
    typer.echo(
        f"group {group} of {route} goes in the next run, all of it"
        if first is None
        else f"group {group} of {route} tries its canary again in the next run: {first:,} go first"
    )


def _would_release(
    settings: "Settings", route: str, group: int | None, destination: str | None, first: int | None
) -> None:
    """Say what stands behind the gate of a group or a destination, and what its release would do."""
    from redrive.ledger.delivery import breakers  # noqa: PLC0415

    with _ledger(settings) as ledger, ledger.read() as connection:
        if destination is not None:
            one = next((o for o in breakers.of_destinations(connection, route) if o.destination == destination), None)
            if one is None or one.stage == "open":
                raise UsageError(f"the breaker of {destination} holds nothing back")
            typer.echo(f"{destination} is {one.stage}: {one.waiting:,} messages wait, and a few would go first")
            return
        gate = next((one for one in breakers.of_groups(connection, route) if one.group_id == group), None)
        if gate is None:
            raise UsageError(f"route {route} has no group {group}; `redrive status {route}` lists them")
    would = "all of them would go" if first is None else f"{min(first, gate.held):,} of them would go first"
    typer.echo(f"group {group} of {route} is {gate.stage}: {gate.held:,} messages are held; {would} in the next run")


# --- review -------------------------------------------------------------------------------------------------

Message = Annotated[list[int] | None, typer.Option("--message", max=LARGEST_ID, help="A message id; may be repeated.")]
OfGroup = Annotated[int | None, typer.Option("--group", max=LARGEST_ID, help="Every open message of this group.")]
OfRoute = Annotated[str | None, typer.Option("--route", help="Only of this route.")]
By = Annotated[str, typer.Option("--by", help="Who decides.", show_default="your login name")]
Note = Annotated[str, typer.Option("--note", help="Why; kept for ever.")]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask, however many they are.")]
#: A decision about more messages than that is asked for once more.
ASK_FROM = 100


def _chosen(message: list[int] | None, group: int | None, route: str | None) -> "Choice":
    from redrive.ledger.review.decisions import Choice  # noqa: PLC0415

    return Choice(message or (), group, route)


@review_app.command("list")
def review_list(route: OfRoute = None, as_json: AsJson = False) -> None:
    """The groups that wait for a decision, largest first."""
    from redrive.ledger.account import inspecting  # noqa: PLC0415

    settings = _settings()
    if route:
        settings.route(route)
    with _ledger(settings) as ledger, ledger.read() as connection:
        rows = _masked(settings, inspecting.review_groups(connection, route))
    if as_json:
        typer.echo(json.dumps(rows, default=str))
        return
    from redrive.cli import output  # noqa: PLC0415

    output.print_review_groups(_console(), rows)


@review_app.command("show")
def review_show(message: Annotated[int, typer.Argument(help="The message's id.")], as_json: AsJson = False) -> None:
    """One escalated message: error, payload, headers, and what was done with it before."""
    from redrive.ledger.account import inspecting  # noqa: PLC0415

    settings = _settings()
    with _ledger(settings) as ledger, ledger.read() as connection:
        rows = _masked(settings, inspecting.escalations(connection, message))
    if not rows:
        raise UsageError(f"message {message} was never escalated")
    if as_json:
        typer.echo(json.dumps(rows, default=str))
        return
    from redrive.cli import output  # noqa: PLC0415

    output.print_escalations(_console(), rows)


def _masked(settings: "Settings", rows: list[dict[str, Any]], route: str | None = None) -> list[dict[str, Any]]:
    """Rows about messages as they may be shown: without what their route, or ``route``, redacts."""
    from redrive.redaction import redactor  # noqa: PLC0415

    for row in rows:
        name = route or row["route"]
        if name not in settings.routes or not (mask := redactor(settings.routes[name])):
            continue
        for name in {"payload", "error_text", "corrected_body", "template", "example"} & row.keys():
            row[name] = row[name] and mask(row[name])
        if row.get("headers"):
            row["headers"] = mask.headers(row["headers"])
        if row.get("corrected_headers"):
            row["corrected_headers"] = mask.changes(row["corrected_headers"])
        if row.get("payload_bytes"):
            row["payload_bytes"] = mask(bytes(row["payload_bytes"]).decode("utf-8", "replace")).encode()
    return rows


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
    settings = _settings()
    if choice.route:
        settings.route(choice.route)
    with _ledger(settings) as ledger:
        if correction is not None:
            with ledger.read() as connection:
                found_here = decisions.original(connection, *choice.where())
            if found_here is not None:
                of, original = found_here
                bounds = bounds_of(settings.routes.get(of))
                if problem := corrections.objection(correction, original, bounds):
                    raise UsageError(f"message {choice.messages[0]}: {problem}")
        found = decisions.undecided(ledger, choice, limit)
        for sentence in found.left:
            typer.echo(f"redrive: {sentence}", err=True)
        if dry_run:
            typer.echo(f"{found.questions} messages would be decided: {decision}")
        elif found.questions:
            if found.questions > ASK_FROM and not yes:
                typer.confirm(f"{decision} {found.questions:,} messages?", abort=True)
            count = decisions.decide(
                ledger,
                choice,
                up_to=found.up_to,
                decision=decision,
                by=by or getpass.getuser(),
                note=note,
                correction=correction,
            )
            typer.echo(f"{count} messages: {decision}; `redrive review apply` or the DAG redrive_review carries it out")
            if count < found.questions:
                typer.echo(f"redrive: somebody else decided {found.questions - count} of them meanwhile", err=True)
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

    review_app.command(name, help=text)(command)


for _name, _text in {
    "redeliver": "Send these again, one attempt beyond their cap.",
    "discard": "Nobody needs these any more.",
    "not-there": "You looked: what a restore may have put back is not in its queue. Decide then what becomes of it.",
}.items():
    _decision_command(_name, _text)


@review_app.command("edit")
def review_edit(
    message: Annotated[int, typer.Argument(help="The message's id.")],
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


Group = Annotated[int, typer.Argument(max=LARGEST_ID, help="The group's id.", show_default=False)]
Why = Annotated[str, typer.Option("--note", help="Why; kept for ever.", show_default=False)]


@groups_app.command("merge")
def groups_merge(
    group: Group,
    others: Annotated[list[int], typer.Argument(max=LARGEST_ID, help="Groups that are the same failure.")],
    note: Why,
    by: By = "",
) -> None:
    """These are one failure: the same fix helps all of them. The oldest keeps its name."""
    oldest, *later = sorted({group, *others})
    if not later:
        raise UsageError(f"name another group beside {group}")
    _rule([("merge", one, oldest, None) for one in later], by, note)


@groups_app.command("split")
def groups_split(
    group: Group,
    other: Annotated[
        int | None, typer.Option("--from", max=LARGEST_ID, help="The group that it was merged into, or might be.")
    ] = None,
    words: Annotated[str | None, typer.Option(help="What has these words in its text is a failure of its own.")] = None,
    note: Why = "",
    by: By = "",
) -> None:
    """What is one group are two failures: another group, or what has some words in its text."""
    if (other is None) == (words is None):
        raise UsageError("say what to split off: --from GROUP, or --words TEXT")
    _rule([("split", group, other, words)], by, note)


def _rule(rules: Sequence[tuple[str, int, int | None, str | None]], by: str, note: str) -> None:
    from redrive.ledger.review import rulings  # noqa: PLC0415

    if not note.strip():
        raise UsageError("say why: --note TEXT")
    if any(words is not None and not words.strip() for *_, words in rules):
        raise UsageError("--words: no words")
    if any(group == other for _, group, other, _ in rules):
        raise UsageError("name two groups")
    with _ledger(_settings()) as ledger:
        with ledger.read() as connection:
            missing = rulings.unknown(
                connection, sorted({id_ for _, group, other, _ in rules for id_ in (group, other) if id_ is not None})
            )
        if missing:
            raise UsageError(f"there is no group {missing[0]}")
        for ruling, group, other, words in rules:
            made = rulings.make(ledger, ruling, group, other=other, words=words, by=by or getpass.getuser(), note=note)
            typer.echo(f"ruling {made}: the next run, or `redrive review apply`, carries it out")


@groups_app.command("revoke")
def groups_revoke(
    ruling: Annotated[int, typer.Argument(max=LARGEST_ID, help="The ruling's id, as `redrive groups list` shows it.")],
    by: By = "",
) -> None:
    """Take back what was said. A merge is undone; what has a group's id by then keeps it."""
    from redrive.ledger.review import rulings  # noqa: PLC0415

    with _ledger(_settings()) as ledger:
        if not rulings.revoke(ledger, ruling, by=by or getpass.getuser()):
            raise UsageError(f"there is no ruling {ruling} that holds")
    typer.echo(f"ruling {ruling} does not hold any more")


@groups_app.command("list")
def groups_list(as_json: AsJson = False) -> None:
    """What people said about groups, the newest first, and what became of it."""
    from redrive.ledger.review import rulings  # noqa: PLC0415

    with _ledger(_settings()) as ledger, ledger.read() as connection:
        rows = rulings.told(connection)
    if as_json:
        typer.echo(json.dumps(rows, default=str))
        return
    for row in rows:
        what = f"what says {row['words']!r}" if row["words"] else f"group {row['other_group_id']}"
        typer.echo(
            f"{row['ruling_id']:5}  {row['ruling']:5}  group {row['group_id']} and {what}, by {row['decided_by']}:"
            f" {row['note']}  ({row['refusal'] or row['status']})"
        )


@review_app.command("apply")
def review_apply(route: OfRoute = None, as_json: AsJson = False) -> None:
    """Carry out what was decided: releases wait for the next delivery, discards are final.

    A route that a run holds is left for the next time (exit code 3), the others are done.
    """
    from redrive.stages import pipeline  # noqa: PLC0415

    settings = _settings()
    if route:
        settings.route(route)
    done: dict[str, dict[str, Any]] = {}
    for name in [route] if route else list(settings.routes):
        try:
            done[name] = pipeline.apply_decisions(settings, name, holder=_holder())
        except RouteBusy as busy:
            done[name] = {"busy": str(busy)}
            typer.echo(f"redrive: {busy}", err=True)
            continue
        if not as_json:
            _print_counts(f"review {name}", done[name])
    if as_json:
        typer.echo(json.dumps(done))
    if any("busy" in counts for counts in done.values()):
        raise typer.Exit(RouteBusy.exit_code)


# --- looking ------------------------------------------------------------------------------------------------


@app.command()
def trace(
    message: Annotated[str, typer.Argument(help="A redrive id, message id, broker id or business key.")],
    as_json: AsJson = False,
) -> None:
    """The whole life of a message, from its first enqueue to the last outcome.

    Of one that never died the ledger knows nothing. Then the records of consumers are asked (processed_check), by the
    same key: they can tell that it was processed.
    """
    from redrive.ledger.account import inspecting  # noqa: PLC0415

    settings = _settings()
    with _ledger(settings) as ledger, ledger.read() as connection:
        found = inspecting.trace(connection, message)
    if not found:
        _print_records(settings, message, as_json)
        return
    for one in found:
        if one["group"]:
            _masked(settings, [one["group"]], one["message"]["route"])
    if as_json:
        typer.echo(json.dumps(found, default=str))
        return
    from redrive.cli import output  # noqa: PLC0415

    for one in found:
        output.print_trace(_console(), one)


def _print_records(settings: "Settings", key: str, as_json: bool) -> None:
    """What consumers' records say of a key that the ledger doesn't know; UsageError where none has it."""
    from redrive.stages import records  # noqa: PLC0415

    said = records.ask(settings, key)
    done = [one for one in said if one.processed]
    if not done:
        text = f"nothing is known of {key!r}: not a redrive id, message id, broker id or key in the ledger"
        for one in said:
            text += f"; the record of route {one.route} " + (f"could not be asked: {one.problem}" if one.problem else
                                                             "does not have it as processed")  # fmt: skip
        raise UsageError(text)
    if as_json:
        typer.echo(json.dumps([{"processed_without_dying": True, **one._asdict()} for one in done]))
        return
    for one in done:
        typer.echo(
            f"{key}: processed, says the record of route {one.route}'s consumer (connection {one.connection}). It never"
            " came to a dead-letter queue that Redrive drained, so when it was made and when it was done is known"
            " to that record only."
        )


@app.command()
def audit(
    route: Annotated[str | None, typer.Argument(help="One route; all when left out.")] = None, as_json: AsJson = False
) -> None:
    """Prove that copies, messages and states add up, against the ledger and the staging files; exit 1 if not.

    Every file's copies are held against the ledger by their hashes. Bodies are read and hashed anew where they may
    still be asked for: of messages that are not finished. It also finds files that the ledger doesn't know, what waits
    for too long, and traces of mistakes; each line says what it means and what to do.
    """
    from redrive.stages import pipeline  # noqa: PLC0415

    settings = _settings()
    if route:
        settings.route(route)
    with _progress(as_json) as progress:
        found = pipeline.audit(settings, route, progress=progress)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        typer.echo(f"{found['batches']} batches with {found['copies']} copies checked")
        for problem in found["problems"]:
            typer.echo(f"BROKEN  {problem}", err=True)
        if not found["problems"]:
            typer.echo("everything adds up")
    if found["problems"]:
        raise typer.Exit(1)


@app.command()
def doctor(
    route: Annotated[str | None, typer.Argument(help="One route; all when left out.")] = None, as_json: AsJson = False
) -> None:
    """Check configuration, ledger, staging, connections, queues and permissions, and say what to mend."""
    from redrive.stages import doctor as examination  # noqa: PLC0415

    settings = _settings()
    findings = examination.examine(settings, [route] if route else list(settings.routes))
    if as_json:
        typer.echo(json.dumps([finding._asdict() for finding in findings]))
    else:
        from redrive.cli import output  # noqa: PLC0415

        output.print_findings(_console(), findings)
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)


@app.command()
def explain(
    compare: Annotated[
        tuple[str, str] | None, typer.Option(help="Two failure texts: say whether they are one group, and why.")
    ] = None,
) -> None:
    """Say why messages failed: JSON lines with `text` in, the same lines with cause, rule and group out.

    A line may also have `reason` (the broker's) and `attributes`. The input is grouped as one batch. Needs neither
    configuration nor database; where there is a ledger, its known groups are used. What helps against each cause is
    told on standard error. Example:

        echo '{"text": "KeyError: sku"}' | redrive explain

    `--compare A B` takes two texts instead, and says why they are one group or two.
    """
    from redrive.brokers import registry  # noqa: PLC0415
    from redrive.classification.causes import Cause  # noqa: PLC0415
    from redrive.classification.explain import compare as compared  # noqa: PLC0415
    from redrive.classification.explain import explain as explained  # noqa: PLC0415

    model = _learned_model()
    if compare is not None:
        found = compared(*compare, known_groups=_known_groups(), model=model)
        typer.echo(json.dumps(found, ensure_ascii=False))
        one = "one group" if found["same"] else "two groups"
        typer.echo("\n".join([f"{one}:", *(f"- {reason}" for reason in found["because"])]), err=True)
        return
    causes: dict[str, None] = {}
    problems: list[str] = []
    for line in explained(_json_lines(sys.stdin, problems), known_groups=_known_groups(), model=model):
        sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
        causes[line["cause"]] = None
    sys.stdout.flush()
    for cause in causes:  # for people; programs read the other stream
        typer.echo(f"{cause}: {registry.advice(Cause(cause))}", err=True)
    for problem in problems:
        typer.secho(f"redrive: {problem}", err=True, fg="red")
    if problems:
        raise typer.Exit(UsageError.exit_code)


@app.command()
def learn(as_json: AsJson = False) -> None:
    """Train the model of causes with what became of this ledger's messages; kept only where it helps.

    Half of the groups are held back to measure with. A model that answers more of them right, and none more
    unsafely, is written to var/learned_causes.npz; explain and the Spark job use it from then on. Remove the
    file to go back to ours.
    """
    from redrive.settings.file import home  # noqa: PLC0415
    from redrive.stages.learn import learn as learned  # noqa: PLC0415

    with _ledger(_settings()) as ledger:
        found = learned(ledger, home())
    if as_json:
        typer.echo(json.dumps(found))
    elif "needed" in found:
        typer.echo(f"{found['groups']} groups teach something, {found['needed']} are needed: nothing learned")
    else:
        for when in ("before", "after"):
            typer.echo(f"{when:6}  " + "  ".join(f"{name} {count}" for name, count in found[when].items()))
        typer.echo("kept: used from now on" if found["kept"] else "not kept: it does not answer better")


# --- upkeep ------------------------------------------------------------------------------------------------


@db_app.command("upgrade")
def db_upgrade() -> None:
    """Create the ledger's tables and views, or bring them up to date; harmless when repeated."""
    from redrive.ledger import schema  # noqa: PLC0415
    from redrive.ledger.engine import Ledger  # noqa: PLC0415

    ledger = Ledger(_settings().database)
    try:
        revision = schema.upgrade(ledger, _now())
        typer.echo(f"{ledger!r} is at revision {revision}")
    finally:
        ledger.close()


@app.command()
def init(
    folder: Annotated[
        Path, typer.Argument(help="Where to write: a folder of its own, or that of your Airflow.", show_default=False)
    ] = Path(),
    broker: Annotated[str | None, typer.Option(help="What holds the queues, e.g. rabbitmq.")] = None,
    source: Annotated[
        list[str] | None, typer.Option("--source", help="A dead-letter queue that is drained; may be repeated.")
    ] = None,
    route: Annotated[str | None, typer.Option(help="The route's name; by default made from the queue's.")] = None,
    connection: Annotated[str | None, typer.Option(help="The Airflow connection id; by default ROUTE_broker.")] = None,
    destination: Annotated[
        str | None, typer.Option(help="The queue that is sent to; left out, each message goes back where it failed.")
    ] = None,
) -> None:
    """Write config/redrive.yaml with a first route and the DAG file; what isn't given is asked.

    Nothing is overwritten, and nothing but these two files is touched: no queue, no database. Afterwards it says
    what to do next. Example:

        redrive init --broker rabbitmq --source orders.dlq --destination orders
    """
    from redrive.cli import init as first  # noqa: PLC0415

    known = first.brokers()
    broker = broker or _ask("broker", f"Broker ({', '.join(known)})")
    sources = source or [_ask("source", "Dead-letter queue")]
    route = route or _ask("route", "Name of the route", first.route_of(sources[0]))
    connection = connection or _ask("connection", "Airflow connection id", f"{route}_broker")
    if destination is None:
        destination = _ask("destination", "Queue that is sent to (empty: back to where each message failed)", "")
    answers = first.Answers(route, broker, connection, sources, destination or None)
    for path in first.write(folder.absolute(), answers):
        typer.echo(f"wrote {path}")
    typer.echo("\nNext:")
    for step in first.next_steps(folder.absolute(), answers):
        typer.echo(f"  {step}")


def _ask(option: str, question: str, default: str | None = None) -> str:
    """An answer of whoever sits there; where nobody does, the default."""
    if sys.stdin.isatty():
        return str(typer.prompt(question, default=default, show_default=bool(default))).strip()
    if default is None:
        raise UsageError(f"--{option}: is required where nobody can be asked")
    return default


@app.command()
def demo(
    broker: Annotated[
        str, typer.Option(help="Whose story: sqs (the shop of `make run`), rabbitmq, pubsub, service_bus or pulsar.")
    ] = "sqs",
    messages: Annotated[int, typer.Option(min=60, max=20_000, help="Orders that the demo shop gets.")] = 400,
    seed: Annotated[int, typer.Option(help="Which orders; the same seed gives the same.")] = 7,
    keep_broker: Annotated[
        bool, typer.Option("--keep-broker", help="Leave the server running, to try a case of your own on it.")
    ] = False,
    fresh: Annotated[bool, typer.Option(help="Begin with an empty demo ledger.")] = True,
) -> None:
    """Break a small shop for real, bring its messages back through Airflow, and show what happened.

    With --broker another story, from the command line, on a real server or a stand-in; --messages and --seed are not
    for those.
    """
    if broker != "sqs":
        from redrive.dev.demo import play  # noqa: PLC0415

        raise typer.Exit(play.main(broker, keep_broker=keep_broker, fresh=fresh, console=_console()))
    from redrive.dev.demo.run import main as run_demo  # noqa: PLC0415

    raise typer.Exit(run_demo(messages=messages, seed=seed, keep_broker=keep_broker, fresh=fresh, console=_console()))


@app.command()
def up(port: Annotated[int | None, typer.Option(help="Port of the Airflow UI; default $PORT or 8080.")] = None) -> None:
    """Start Airflow on 127.0.0.1 with every route scheduled, until Ctrl-C."""
    from redrive.dev import local_airflow  # noqa: PLC0415
    from redrive.dev.demo.run import living_shop  # noqa: PLC0415

    raise typer.Exit(local_airflow.up(_settings(), port, worlds={"sqs_demo": living_shop}, say=typer.echo))


# --- parts --------------------------------------------------------------------------------------------------


def _settings() -> "Settings":
    from redrive import settings  # noqa: PLC0415

    return settings.load()


def _configuration(connection: "Connection", settings: "Settings", route: str) -> dict[str, str | None]:
    """What the route's newest run began with, and what its next one begins with as the file is now."""
    from redrive import settings as configuration  # noqa: PLC0415
    from redrive.ledger import configurations  # noqa: PLC0415

    now = configuration.written(settings, route)
    return {
        "last_run": configurations.shown(configurations.before(connection, route)),
        "next_run": configurations.shown(now.hash if now else None),
    }


def _now() -> datetime:
    return datetime.now(UTC)


def _holder() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()} process {os.getpid()}"


def _console() -> "Console":
    from rich.console import Console  # noqa: PLC0415

    return Console()


@contextmanager
def _ledger(settings: "Settings") -> Iterator["Ledger"]:
    from redrive.ledger import schema  # noqa: PLC0415
    from redrive.ledger.engine import Ledger  # noqa: PLC0415

    ledger = Ledger(settings.database)
    try:
        schema.check(ledger)
        yield ledger
    finally:
        ledger.close()


def _selection(
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
            return _now() - parse_duration(text.removesuffix(" ago"))
        except ValueError as error:
            raise UsageError(
                f"{option} {text}: neither a time such as 2026-11-20T06:00 nor an age such as 6h"
            ) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@contextmanager
def _running(
    settings: "Settings",
    route: str,
    selection: "Selection",
    quiet: bool,
    *,
    trigger: str = "cli",
    even_if_paused: bool = False,
    wait: bool = False,
) -> Iterator[tuple["Run", "Progress"]]:
    """A run that holds the route with a heartbeat while the block lasts; with ``wait``, once no other run holds it."""
    from redrive.stages import heartbeat, pipeline  # noqa: PLC0415

    while True:
        try:
            current = pipeline.begin(
                settings,
                route,
                trigger=trigger,
                holder=_holder(),
                selection=selection,
                lease=LEASE,
                even_if_paused=even_if_paused,
            )
            break
        except RouteBusy as busy:
            why = _busy(busy, settings, route)
            if not wait:
                raise RouteBusy(f"{why}; --wait waits") from busy
            typer.echo(f"redrive: {why}; waiting", err=True)
            time.sleep(5)
    status = "failed"
    try:
        with heartbeat.beating(settings, current), _progress(quiet) as progress:
            yield current, progress
        status = "succeeded"
    except KeyboardInterrupt as interrupted:
        raise KeyboardInterrupt(_interrupted(settings, route)) from interrupted
    finally:
        pipeline.finish(settings, current, status)


def _busy(busy: RouteBusy, settings: "Settings", route: str) -> str:
    """Who holds the route, and whether that process is there at all, where this machine can tell."""
    from redrive.ledger import leases  # noqa: PLC0415

    with _ledger(settings) as ledger, ledger.read() as connection:
        who = leases.holder_of(connection, route) or ""
    host, _, process = who.rpartition("@")[2].partition(" process ")
    if host != socket.gethostname() or not process.isdigit():
        return str(busy)
    if not Path("/proc/self").exists() or Path("/proc", process).exists():
        return str(busy)
    return f"{busy}; process {process} is not running any more, so the route is free after that"


def _interrupted(settings: "Settings", route: str) -> str:
    """What an interrupted run leaves, in a sentence: nothing is lost by it."""
    from redrive.ledger.account import balance  # noqa: PLC0415

    try:
        with _ledger(settings) as ledger, ledger.read() as connection:
            found = balance.of_route(connection, route)
    except RedriveError:
        return "interrupted; run it again to go on"
    places = {"staged": "staged and not yet classified", "sending": "in a delivery that was cut off"}
    left = ", ".join(f"{found[place]:,} {words}" for place, words in places.items() if found.get(place))
    return f"interrupted: {left or 'nothing is half done'}; nothing is lost, and the next `redrive run {route}` goes on"


@contextmanager
def _progress(quiet: bool) -> Iterator["Progress"]:
    """Live progress on standard error; plain and rare where that is no terminal, none with --json."""
    if quiet:
        yield lambda _text, _done, _total: None
        return
    from rich.console import Console  # noqa: PLC0415

    console, last = Console(stderr=True), [0.0]

    if console.is_terminal:
        with console.status("starting ...") as live:
            yield lambda text, done, total: live.update(_sentence(text, done, total))
        return

    def say(text: str, done: int, total: int | None) -> None:
        if time.monotonic() - last[0] >= 5:
            last[0] = time.monotonic()
            typer.echo(_sentence(text, done, total), err=True)

    yield say


def _sentence(text: str, done: int, total: int | None) -> str:
    if total:
        return f"{text}: {done:,} of {total:,}"
    return f"{text}: {done:,}" if done else text


def _classify(settings: "Settings", current: "Run", progress: "Progress") -> dict[str, Any]:
    from redrive.stages import pipeline  # noqa: PLC0415

    manifest = pipeline.prepare_classification(settings, current)
    if manifest is not None:
        from redrive.spark import submit  # noqa: PLC0415

        progress("finding causes with Spark", 0, None)
        began = time.monotonic()
        submit.classify(settings, manifest)
        pipeline.note(settings, current, "classify", {"seconds": round(time.monotonic() - began, 3)})
    return pipeline.load(settings, current, progress=progress)


def _preview(settings: "Settings", route: str, selection: "Selection", as_json: bool) -> None:
    from redrive.stages import peek, preview  # noqa: PLC0415

    plan = preview.preview(settings, route, selection, now=_now())
    if peek.can_peek(settings, route):
        plan["peeked"] = peek.peek(settings, route, selection=selection, known=_known_groups(), model=_learned_model())
        plan["not_seen"]["in_the_sources"] = "looked at, and not touched"
    if as_json:
        typer.echo(json.dumps(plan, default=str))
        return
    from redrive.cli import output  # noqa: PLC0415

    output.print_preview(_console(), plan)


def _print_report(report: dict[str, Any]) -> None:
    from redrive.cli import output  # noqa: PLC0415

    output.print_report(_console(), report)


def _print_counts(title: str, counts: dict[str, Any]) -> None:
    shown = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in counts.items() if ":" not in key)
    typer.echo(f"{title}: {shown}")


def _json_lines(stream: Any, problems: list[str]) -> Iterator[dict[str, Any]]:
    """The objects of a stream of JSON lines; what is none is noted, by its number, and costs its own line only."""
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            problems.append(f"line {number} is not JSON: {error}")
            continue
        if not isinstance(value, dict) or not isinstance(value.get("text", ""), str):
            problems.append(f"line {number} is not an object with a text")
            continue
        yield value


def _learned_model() -> Any:
    """What this site has learned; None where it has not, or with a file of another version, which is told."""
    from redrive.classification import learned_model  # noqa: PLC0415
    from redrive.settings.file import home  # noqa: PLC0415

    try:
        return learned_model.of_site(home())
    except ValueError as error:
        typer.echo(f"{learned_model.LEARNED}: {error}", err=True)
        return None


def _known_groups() -> list[Any]:
    """The ledger's groups where there is a ledger; [] in any other case, because explain needs none."""
    from redrive.errors import RedriveError as AnyError  # noqa: PLC0415

    try:
        from redrive.ledger.drain import groups  # noqa: PLC0415

        settings = _settings()
        if settings.database.startswith("sqlite") and not Path(settings.database.removeprefix("sqlite:///")).exists():
            return []
        with _ledger(settings) as ledger, ledger.read() as connection:
            return groups.known_groups(connection)
    except AnyError:
        return []
