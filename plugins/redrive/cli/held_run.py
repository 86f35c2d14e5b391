"""A run of the command line: it holds its route with a heartbeat, and shows how far it is."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from redrive.cli.context import open_ledger, this_process
from redrive.errors import RedriveError, RouteBusy

if TYPE_CHECKING:
    from redrive.ledger.selecting import Selection
    from redrive.settings import Settings
    from redrive.stages.context import Progress, Run

#: How long a run of the command line holds a route between two signs of life.
LEASE = timedelta(seconds=60)
#: Seconds between two looks at a route that another run holds.
LOOK_AGAIN = 5.0


@contextmanager
def held(
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
                holder=this_process(),
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
            time.sleep(LOOK_AGAIN)
    status = "failed"
    try:
        with heartbeat.beating(settings, current), progress_shown(quiet) as progress:
            yield current, progress
        status = "succeeded"
    except KeyboardInterrupt as interrupted:
        raise KeyboardInterrupt(_interrupted(settings, route)) from interrupted
    finally:
        pipeline.finish(settings, current, status)


def _busy(busy: RouteBusy, settings: "Settings", route: str) -> str:
    """Who holds the route, and whether that process is there at all, where this machine can tell."""
    from redrive.ledger import leases  # noqa: PLC0415

    with open_ledger(settings) as ledger, ledger.read() as connection:
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
        with open_ledger(settings) as ledger, ledger.read() as connection:
            found = balance.of_route(connection, route)
    except RedriveError:
        return "interrupted; run it again to go on"
    places = {"staged": "staged and not yet classified", "sending": "in a delivery that was cut off"}
    left = ", ".join(f"{found[place]:,} {words}" for place, words in places.items() if found.get(place))
    return f"interrupted: {left or 'nothing is half done'}; nothing is lost, and the next `redrive run {route}` goes on"


@contextmanager
def progress_shown(quiet: bool) -> Iterator["Progress"]:
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
