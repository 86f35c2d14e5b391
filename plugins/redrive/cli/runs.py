"""Runs of a route: the whole loop, one of its stages, or a replay of its past."""

import time
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.cli.context import (
    console,
    json_line,
    known_groups_here,
    learned_model_here,
    open_ledger,
    print_advice,
    print_counts,
    read_settings,
    utc_now,
)
from redrive.cli.held_run import held
from redrive.cli.options import ALL_CHOOSING, AsJson, DryRun, RouteName, Wait, choosing
from redrive.errors import (
    BrokerUnavailable,
    ClassificationFailed,
    LedgerUnavailable,
    QueuesFailed,
    RedriveError,
    RoutePaused,
    StagingError,
    UsageError,
)

if TYPE_CHECKING:
    from redrive.ledger.account.inspecting import Chosen
    from redrive.ledger.engine import Ledger
    from redrive.ledger.selecting import Selection
    from redrive.settings import Settings
    from redrive.stages.context import Progress, Run

app = typer.Typer()

#: What a later run may find over, or has nothing to do with.
_MAY_PASS = (BrokerUnavailable, ClassificationFailed, LedgerUnavailable, QueuesFailed, RoutePaused, StagingError)


@app.command()
@choosing()
def run(
    route: RouteName,
    dry_run: DryRun = False,
    *,
    selection: "Selection",
    until_done: Annotated[
        bool,
        typer.Option("--until-done", help="Run again, as windows and delays allow, until nothing is left for runs."),
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Run again and again, until Ctrl-C; what fails is tried again.")
    ] = False,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Run the whole loop for ROUTE: drain, classify, resolve, plan, deliver, escalate, report. Once, unless told.

    Only --limit and --source restrict what is drained. The other options that choose say what is sent: the rest is
    drained too, and stays `classified` until a run takes it.
    """
    if dry_run and (until_done or watch):
        raise UsageError(
            f"--dry-run shows what the next run would do: without {'--watch' if watch else '--until-done'}"
        )
    settings = read_settings()
    if dry_run:
        _preview(settings, route, selection, as_json)
        return
    if until_done and not watch:
        _refuse_to_wait_for_ever(settings, route, selection)
    report: dict[str, Any] = {}
    while True:
        try:
            report = _run_once(settings, route, selection, as_json, wait=wait or until_done or watch)
            pause = _before_next(settings, route, selection, report, watch=watch) if until_done or watch else None
        except _MAY_PASS as error:
            if not watch:
                raise
            pause = PAUSES[1]
            typer.secho(f"redrive: {error}; the next run in {pause.total_seconds():.0f} s", err=True, fg="red")
        if pause is None:
            break
        time.sleep(pause.total_seconds())
    if not as_json:
        print_advice(settings, route, report.get("causes", {}))


def _run_once(settings: "Settings", route: str, selection: "Selection", as_json: bool, *, wait: bool) -> dict[str, Any]:
    """One run, and what it says; returns its report."""
    from redrive.stages import pipeline  # noqa: PLC0415

    with held(settings, route, selection, as_json, wait=wait) as (current, progress):
        pipeline.observe(settings, current, progress=progress)
        pipeline.drain(settings, current, progress=progress)
        _classify(settings, current, progress)
        pipeline.resolve(settings, current, progress=progress)
        pipeline.plan(settings, current, progress=progress)
        pipeline.deliver(settings, current, progress=progress)
        pipeline.escalate(settings, current, progress=progress)
        try:
            report = pipeline.report(settings, current, progress=progress)
        except QueuesFailed as failed:
            _tell(failed.report or {}, as_json)
            raise
    _tell(report, as_json)
    return report


#: Between two runs of one command: no less, so that a queue that fills all the time is no tight loop, and no more,
#: because how far a destination has got shows only when somebody looks.
PAUSES = (timedelta(seconds=2), timedelta(seconds=60))


def _before_next(
    settings: "Settings", route: str, selection: "Selection", report: dict[str, Any], *, watch: bool
) -> timedelta | None:
    """How long to wait until the next run has something to do; None where nothing is left for it. Tells it too."""
    from redrive.ledger.account import inspecting  # noqa: PLC0415

    with open_ledger(settings) as ledger:
        of = _chosen(settings, ledger, route, selection)
        with ledger.read() as connection:
            left = inspecting.to_do(connection, route, utc_now(), of)
    for sentence in left.stuck:
        typer.echo(f"redrive: {sentence}", err=True)
    if not watch and not left.messages and not report["drained"]:
        what = "nothing" if of is None else "nothing of what you chose"
        typer.echo(f"done: {what} is left on {route} that a run could do", err=True)
        return None
    shortest, pause = PAUSES
    if report["drained"]:
        pause = shortest  # there may be more of it
    elif left.next_at is not None:
        pause = min(max(left.next_at - utc_now(), shortest), pause)
    typer.echo(
        f"left: {left.words or 'nothing'}; the next run in {pause.total_seconds():.0f} s (Ctrl-C ends it)", err=True
    )
    return pause


def _refuse_to_wait_for_ever(settings: "Settings", route: str, selection: "Selection") -> None:
    """UsageError where runs of the selection never learn what became of what they send."""
    left_out = [one.queue for one in settings.route(route).sources if one.queue not in selection.sources]
    if selection.sources and left_out:
        raise UsageError(
            f"--until-done with --source: what was sent has an outcome once every source is drained, and"
            f" {', '.join(left_out)} would not be. Leave --source out, or run it once"
        )


def _chosen(
    settings: "Settings", ledger: "Ledger", route: str, selection: "Selection"
) -> "dict[tuple[str, int | None], Chosen] | None":
    """What of the route the selection takes; None: everything."""
    from redrive.connections import storage  # noqa: PLC0415
    from redrive.ledger.account import inspecting  # noqa: PLC0415
    from redrive.ledger.selecting import Selection, stage_selection  # noqa: PLC0415
    from redrive.stages import attributes  # noqa: PLC0415

    if replace(selection, limit=None) == Selection():
        return None
    found: dict[tuple[str, int | None], Chosen] = {}
    with ExitStack() as stack:
        parts: Iterable[Selection] = [selection]
        if selection.attributes:
            staging = stack.enter_context(closing(storage.staging(settings)))
            states = ", ".join(f"'{state}'" for state in inspecting.SELECTED)
            parts = attributes.parts(ledger, staging, route, selection, where=f"state in ({states})")
        for part in parts:
            with ledger.read() as connection:
                stage_selection(ledger, connection, part)
                for key, one in inspecting.chosen(connection, route, part).items():
                    found[key] = found[key].and_also(one) if key in found else one
    return found


def _tell(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json_line(report))
    else:
        _print_report(report)


def _causes(settings: "Settings", route: str) -> dict[str, int]:
    from redrive.ledger.account import inspecting  # noqa: PLC0415

    with open_ledger(settings) as ledger, ledger.read() as connection:
        return inspecting.causes(connection, route)


#: By stage, the options that it can honour: the others are refused, as it would take everything all the same.
_HONOURED: dict[str, tuple[str, ...]] = {
    "observe": (),
    "drain": ("limit", "sources"),
    "classify": (),
    "resolve": (),
    "plan": tuple(name for name in ALL_CHOOSING if name != "limit"),
    "deliver": ALL_CHOOSING,
    "escalate": (),
}


def _stage_command(name: str, text: str) -> None:
    def refuse(parameter: str, option: str) -> str:
        others = [f"`redrive {stage}`" for stage, honoured in _HONOURED.items() if parameter in honoured]
        who = f"{', '.join(others)} and `redrive run` can"
        return f"{option}: `redrive {name}` can't choose by it, and takes all; {who}"

    @choosing(*_HONOURED[name], refuse=refuse)
    def command(route: RouteName, dry_run: DryRun = False, *, selection: "Selection", as_json: AsJson = False) -> None:
        from redrive.stages import failed_queues, pipeline  # noqa: PLC0415

        settings = read_settings()
        if dry_run:
            _preview(settings, route, selection, as_json)
            return
        with held(settings, route, selection, as_json) as (current, progress):
            if name == "classify":
                counts = _classify(settings, current, progress)
            else:
                counts = getattr(pipeline, name)(settings, current, progress=progress)
            if as_json:
                typer.echo(json_line({"route": route, "stage": name, **counts}))
            else:
                print_counts(f"{name} {route}", counts)
                if name == "classify":
                    print_advice(settings, route, _causes(settings, route))
            failed_queues.refuse(counts)

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
@choosing("causes", "groups", "since", "until", "sources")
def simulate(
    route: RouteName,
    policy: Annotated[
        Path,
        typer.Option(help="YAML with other values of requeue_attempts, delay_attempts, backoff, canary, causes."),
    ],
    *,
    selection: "Selection",
    as_json: AsJson = False,
) -> None:
    """Replay ROUTE's history against another policy: what would have been redelivered, returned, escalated.

    Reads the ledger only. What nobody tried is counted as not known, never guessed. Example:

        echo 'requeue_attempts: 1' > policy.yaml; redrive simulate orders --policy policy.yaml --since 7d
    """
    from redrive import settings as configuration  # noqa: PLC0415
    from redrive.stages import simulate as simulation  # noqa: PLC0415

    settings = read_settings()
    other = configuration.load_policy(policy, settings.route(route))
    found = simulation.simulate(settings, route, other, selection)
    if as_json:
        typer.echo(json_line(found))
        return
    from redrive.cli import output  # noqa: PLC0415

    output.print_simulation(console(), found)


def _classify(settings: "Settings", current: "Run", progress: "Progress") -> dict[str, Any]:
    from redrive.stages import pipeline  # noqa: PLC0415

    manifest = pipeline.prepare_classification(settings, current)
    if manifest is not None:
        from redrive.spark import submit  # noqa: PLC0415

        progress("finding causes with Spark", 0, None)
        submit.classify(settings, manifest)
    return pipeline.load(settings, current, progress=progress)


def _preview(settings: "Settings", route: str, selection: "Selection", as_json: bool) -> None:
    from redrive.ledger.selecting import Selection  # noqa: PLC0415
    from redrive.stages import peek, preview  # noqa: PLC0415

    plan = preview.preview(settings, route, selection, now=utc_now())
    if peek.can_peek(settings, route):
        plan["peeked"] = peek.peek(
            settings, route, selection=selection, known=known_groups_here(), model=learned_model_here()
        )
        plan["not_seen"]["in_the_sources"] = "looked at, and not touched"
    known = plan["plan"] or plan.get("peeked") or plan["not_seen"]["staged_but_not_classified"]
    if not known and replace(selection, limit=None, sources=()) == Selection():
        try:  # there is nothing else to tell
            plan["sources"] = peek.depths(settings, route, selection=selection)
        except RedriveError as error:  # the ledger's answer needs no broker
            typer.echo(f"redrive: how much the sources hold is not known: {error}; `redrive doctor {route}`", err=True)
    if as_json:
        typer.echo(json_line(plan))
        return
    from redrive.cli import output  # noqa: PLC0415

    output.print_preview(console(), plan)


def _print_report(report: dict[str, Any]) -> None:
    from redrive.cli import output  # noqa: PLC0415

    output.print_report(console(), report)
