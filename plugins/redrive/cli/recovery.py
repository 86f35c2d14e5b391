"""What is done when a route is left, or its ledger or staging was lost: restore, adopt, forget-batch."""

import getpass
import sys
from typing import Annotated

import typer

from redrive.cli.context import confirm, json_line, open_ledger, print_counts, read_settings, selection_of
from redrive.cli.held_run import held
from redrive.cli.options import ASK_FROM, AsJson, DryRun, Groups, RouteName, Wait
from redrive.message import MOST_MESSAGES

app = typer.Typer()


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
    from redrive.ledger.selecting import refuse_unknown_groups  # noqa: PLC0415
    from redrive.stages import pipeline  # noqa: PLC0415
    from redrive.stages import restore as restoring  # noqa: PLC0415

    settings, selection = read_settings(), selection_of(limit, groups=group)
    leased_for = settings.route(route).drain.lease
    with open_ledger(settings) as ledger:
        refuse_unknown_groups(ledger, selection)
        with ledger.read() as connection:
            would = restoring.would_restore(ledger, connection, route, selection, leased_for=leased_for)
    count, staged = would.messages, would.staged
    whole = restoring.takes_all(selection)
    if dry_run:
        also = ", and what is new of" if whole else "; this leaves alone"
        typer.echo(
            json_line(
                {
                    "route": route,
                    "would_restore": count,
                    "staged": staged,
                    "unknown": would.unknown,
                    "suspected": would.suspected,
                }
            )
            if as_json
            else f"{count:,} unfinished messages of {route} would go back into their queues"
            + (f"{also} {staged:,} copies that are staged and not yet classified" if staged else "")
            + (
                f"\nwould stay: unknown {would.unknown:,}, suspected {would.suspected:,}"
                if would.unknown or would.suspected
                else ""
            )
        )
        return
    # Where nobody sits there it is a program, which has always gone ahead.
    most = count + staged if whole else count
    if most > ASK_FROM and not yes and sys.stdin.isatty():
        confirm(f"Put {most:,} messages of {route} back into their queues?")
    with held(settings, route, selection, as_json, trigger="restore", even_if_paused=True, wait=wait) as (
        current,
        progress,
    ):
        done = pipeline.restore(settings, current, progress=progress)
    if as_json:
        typer.echo(json_line({"route": route, **done}))
    else:
        print_counts(f"restore {route}", {k: v for k, v in done.items() if k != "problems"})
        for message_id, problem in done["problems"].items():
            typer.echo(f"  message {message_id}: {problem}", err=True)
    if done["not_restored"] or done["unknown"] or done["suspected"] or (whole and done["staged"]):
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

    settings = read_settings()
    with held(settings, route, selection_of(), as_json, trigger="adopt", even_if_paused=True) as (current, progress):
        done = pipeline.adopt(settings, current, of_ledgers=ledger or (), restored=restored, progress=progress)
    if as_json:
        typer.echo(json_line({"route": route, **done}))
    else:
        print_counts(f"adopt {route}", done)
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
    from redrive.stages import give_up_batch, pipeline  # noqa: PLC0415

    settings = read_settings()
    settings.route(route)
    found = give_up_batch.look(settings, route, batch)
    if not yes:
        confirm(
            f"Batch {batch} holds {found['copies']} copies, which may be nowhere else. {found['watched']} sends are"
            " watched that may have come back in it; nobody will know of these, and they stay sent. Give it up?"
        )
    with held(settings, route, selection_of(), as_json, trigger="forget-batch", even_if_paused=True) as (
        current,
        progress,
    ):
        done = pipeline.give_up(settings, current, batch, by=getpass.getuser(), reason=reason, progress=progress)
    if as_json:
        typer.echo(json_line({"route": route, **done}))
    else:
        print_counts(f"forget-batch {route}", done)
