"""Where routes stand, and what lets them go or stops them: status, pause, resume, release."""

import getpass
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from redrive.cli.context import (
    confirm,
    console,
    hidden,
    json_line,
    masked,
    open_ledger,
    print_advice,
    printable,
    read_settings,
    utc_now,
)
from redrive.cli.options import ASK_FROM, AsJson, DryRun, RouteName
from redrive.errors import UsageError
from redrive.message import LARGEST_ID, MOST_MESSAGES

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from redrive.ledger.delivery.breakers import GroupGate
    from redrive.settings import Settings

app = typer.Typer()


@app.command()
def status(
    route: Annotated[str | None, typer.Argument(help="One route; all when left out.")] = None,
    wide: Annotated[bool, typer.Option("--wide", help="Gates as one table, for wide terminals.")] = False,
    as_json: AsJson = False,
) -> None:
    """Where every route stands: messages by state, gates of its groups, who holds it, whether it is paused."""
    from redrive.ledger.account import inspecting  # noqa: PLC0415

    settings = read_settings()
    now = utc_now()
    with open_ledger(settings) as ledger, ledger.read() as connection:
        left = inspecting.not_configured(connection, settings.routes)
        names = [route] if route else [*settings.routes, *left]
        for name in names:
            if name not in left:
                settings.route(name)
        found = [
            inspecting.status(connection, name, now)
            | {"configured": name in settings.routes}
            | {"configuration": configurations_of(connection, settings, name)}
            | {"causes": inspecting.causes(connection, name)}
            for name in names
        ]
    for one in found:
        rows = [one, *one["gates"], *one["destinations"]]
        if one["route"] in settings.broken:
            hidden(rows)
        else:
            masked(settings, rows, one["route"])
    if as_json:
        typer.echo(json_line(found))
        return
    from redrive.cli import output  # noqa: PLC0415

    for one in found:
        output.print_status(console(), one, now, wide=wide)
        if one["configured"]:
            print_advice(settings, one["route"], one["causes"])


def configurations_of(connection: "Connection", settings: "Settings", route: str) -> dict[str, str | None]:
    """What the route's newest run began with, and what its next one begins with as the file is now."""
    from redrive import settings as configuration  # noqa: PLC0415
    from redrive.ledger import configurations  # noqa: PLC0415

    now = configuration.written(settings, route)
    return {
        "last_run": configurations.shown(configurations.before(connection, route)),
        "next_run": configurations.shown(now.hash if now else None),
    }


@app.command()
def pause(
    route: RouteName, reason: Annotated[str, typer.Option(help="Why; people see it.")] = "no reason given"
) -> None:
    """Let no run of ROUTE begin and none send, until `redrive resume`."""
    from redrive.ledger import leases  # noqa: PLC0415
    from redrive.stages import notify  # noqa: PLC0415

    settings = read_settings()
    settings.route(route)
    with open_ledger(settings) as ledger:
        before = leases.pause(ledger, route, by=getpass.getuser(), reason=reason, now=utc_now())
    notify.paused(settings, route, utc_now())
    if before is not None:
        told = f"{route} was {before}. That stays; your reason is in the audit trail, and one resume ends both"
        typer.echo(printable(told))
        return
    typer.echo(f"{route} is paused; `redrive resume {route}` lets it go on")


@app.command()
def resume(route: RouteName) -> None:
    """Let ROUTE go on after a pause."""
    from redrive.ledger import leases  # noqa: PLC0415
    from redrive.stages import notify  # noqa: PLC0415

    settings = read_settings()
    settings.route(route)
    with open_ledger(settings) as ledger:
        changed = leases.resume(ledger, route, by=getpass.getuser(), now=utc_now())
    notify.paused(settings, route, utc_now())
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

    settings = read_settings()
    canary = settings.route(route).canary
    if (group is None) == (destination is None):
        raise UsageError("say what to release: the id of a group, or --destination NAME")
    if limit is not None and destination is not None:
        raise UsageError("--limit is for a group; to a stopped destination a few go first anyway")
    first = limit or (canary.first if canary else None)
    if dry_run:
        _would_release(settings, route, group, destination, first)
        return
    with open_ledger(settings) as ledger:
        if destination is not None:
            worked = in_flight.vouch(ledger, route, destination, by=getpass.getuser(), now=utc_now())
            released = breakers.release_destination(ledger, route, destination, by=getpass.getuser(), now=utc_now())
            if not (released or worked):
                raise UsageError(_holds_nothing(route, destination))
            typer.echo(f"{destination} gets messages again in the next run of {route}; if it was stopped, a few first")
            return
        assert group is not None  # noqa: S101 - one of the two was given
        with ledger.read() as connection:
            gate = _gate_of(connection, route, group)
            asked = _asked(connection, route, gate)
        held = gate.held
        at_once = held if first is None else min(first, held)
        # Where nobody sits there it is a program, which has always gone ahead.
        if at_once > ASK_FROM and not yes and sys.stdin.isatty():
            confirm(f"Let {at_once:,} messages of group {group} of {route} go at once?")
        if not breakers.release_group(ledger, route, group, first=first, by=getpass.getuser(), now=utc_now()):
            raise UsageError(f"route {route} has no group {group}; `redrive status {route}` lists them")
    if not held:
        typer.echo(_nothing_held(route, gate, first) + asked)
        return
    typer.echo(
        f"group {group} of {route} goes in the next run, all of it{asked}"
        if first is None
        else f"group {group} of {route} tries its canary again in the next run: up to {first:,} go first{asked}"
    )


def _gate_of(connection: "Connection", route: str, group: int | None) -> "GroupGate":
    """The gate of a group, which holds something back or may."""
    from redrive.ledger.delivery import breakers  # noqa: PLC0415

    gate = None if group is None else breakers.of_group(connection, route, group)
    if gate is None:
        raise UsageError(f"route {route} has no group {group}; `redrive status {route}` lists them")
    if gate.stage == "open":  # to try a canary again would hold back what goes
        raise UsageError(f"the gate of group {group} of {route} is open: it holds nothing back")
    return gate


def _nothing_held(route: str, gate: "GroupGate", first: int | None) -> str:
    """What a release does where nothing stands behind the gate, and where the messages are."""
    then = "goes at once" if first is None else f"tries a canary of up to {first:,}"
    return f"nothing of group {gate.group_id} of {route} is held: a release is for what comes, which {then}"


def _asked(connection: "Connection", route: str, gate: "GroupGate") -> str:
    """What a release of the group says of those of its messages that a release does not reach."""
    from redrive.ledger.account import inspecting  # noqa: PLC0415

    command = f"`redrive review redeliver --group {gate.group_id} --route {route}`"
    if count := inspecting.to_decide(connection, route, gate.group_id):
        return f"; {count:,} of it wait for people: {command} sends them"
    return f"; what failed waits for people: {command} sends it" if gate.stage == "failed" else ""


def _holds_nothing(route: str, destination: str) -> str:
    return f"the breaker of {destination} holds nothing back; `redrive status {route}` shows those that do"


def _would_release(
    settings: "Settings", route: str, group: int | None, destination: str | None, first: int | None
) -> None:
    """Say what stands behind the gate of a group or a destination, and what its release would do."""
    from redrive.ledger.delivery import breakers, in_flight  # noqa: PLC0415

    with open_ledger(settings) as ledger, ledger.read() as connection:
        if destination is not None:
            one = next((o for o in breakers.of_destinations(connection, route) if o.destination == destination), None)
            sends = in_flight.to_vouch_for(connection, route, destination, utc_now())
            stopped = one is not None and one.stage != "open"
            if not (sends or stopped):
                raise UsageError(_holds_nothing(route, destination))
            if one is not None and stopped:
                typer.echo(f"{destination} is {one.stage}: {one.waiting:,} messages wait, and a few would go first")
            if sends:
                typer.echo(
                    f"{destination} tells no depth: {sends:,} sends without an outcome would count as worked off by now"
                )
            return
        gate = _gate_of(connection, route, group)
        asked = _asked(connection, route, gate)
    if not gate.held:
        typer.echo(_nothing_held(route, gate, first) + asked)
        return
    would = "all of them would go" if first is None else f"{min(first, gate.held):,} of them would go first"
    typer.echo(
        f"group {group} of {route} is {gate.stage}: {gate.held:,} messages are held; {would} in the next run{asked}"
    )
