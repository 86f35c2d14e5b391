"""``redrive demo --broker NAME``: the story of a broker, told live.

Its server runs on loopback: the real one where it can be installed, else the stand-in that the tests use; which of both
is said. What a team has is played with the broker's own client library. What is done about it is done by ``redrive``
itself, with the route that the broker's page gives to copy, and with shorter waits. Everything is below
``var/demo-NAME``.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from redrive import settings
from redrive.connections.lookup import variable_of
from redrive.dev.demo import story, workspace
from redrive.dev.demo.workspace import ROUTE, Workspace
from redrive.errors import UsageError
from redrive.ledger.engine import Ledger, parse_instant, sql

#: What of the user's shell could lead a client elsewhere.
_ELSEWHERE = ("AWS_", "AZURE_", "GOOGLE_", "PUBSUB_", "REDRIVE_")
_LONGEST_WAIT_SECONDS = 20.0


class Served(NamedTuple):
    """A broker that answers on loopback."""

    about: str  # what it is, in words
    connection: dict[str, Any]  # as an Airflow connection has it
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Story:
    """What happened to a team, and what is to be seen afterwards."""

    page: str  # of docs/brokers, and the route's ``broker``
    tell: Callable[["Play"], bool]  # whether it ended as it should
    shorter: Mapping[str, Any] = field(default_factory=dict)  # keys of the route that nobody wants to wait for
    #: More connections of the page's route, given the demo's folder.
    more: Callable[[Path], dict[str, dict[str, Any]]] = lambda _: {}


#: Runs ``redrive`` with these words, that environment and what stands on standard input; what it prints goes, line by
#: line, to the last argument.
Command = Callable[[Sequence[str], Mapping[str, str], str, Callable[[str], None]], int]

STORIES = ("rabbitmq", "pubsub", "service_bus", "pulsar")


def find(broker: str) -> Story:
    """The story of a broker; :class:`UsageError` where there is none."""
    if broker not in STORIES:
        raise UsageError(f"--broker {broker}: there is no such demo; there are sqs, {', '.join(STORIES)}")
    found: Story = import_module(f"redrive.dev.demo.stories.{broker}").STORY
    return found


def main(broker: str, *, keep_broker: bool, fresh: bool, console: Console) -> int:
    """Tell the story of ``broker`` on a server of its own; 0 if it ended as it should, else 1."""
    told = find(broker)
    root = workspace.root()
    place = Workspace(settings.home() / "var" / f"demo-{broker}")
    with place.alone(), workspace.terminable(), ExitStack() as stack:
        place.claim(fresh=fresh)
        with console.status("its server starts …"):
            served = stack.enter_context(serving(broker, root, place, keep=keep_broker))
        play = stack.enter_context(Play.begun(told, served, place, console))
        ended_well = play.perform()
        if keep_broker:
            play.tell_how_to_go_on()
        return 0 if ended_well else 1


class Play:
    """One performance: what a story tells with."""

    def __init__(
        self, told: Story, served: Served, place: Workspace, ledger: Ledger, console: Console, command: Command
    ) -> None:
        self.served = served
        self.folder = place.folder
        self.ledger = ledger
        self._story = told
        self._place = place
        self._console = console
        self._command = command
        self._started = time.monotonic()
        self.route = page_route(told)
        connections = {self.route["connection"]: served.connection} | told.more(place.folder)
        self.environment = _environment(place, connections, os.environ)

    @classmethod
    @contextmanager
    def begun(
        cls, told: Story, served: Served, place: Workspace, console: Console, command: "Command | None" = None
    ) -> Iterator["Play"]:
        """With its ledger open and its configuration written."""
        ledger = place.open_ledger(datetime.now(UTC))
        try:
            play = cls(told, served, place, ledger, console, command or _in_a_process)
            play.configuration.write_text(yaml.safe_dump({"routes": {ROUTE: play.route}}, sort_keys=False))
            yield play
        finally:
            ledger.close()

    @property
    def configuration(self) -> Path:
        return self._place.home / "redrive.yaml"

    def perform(self) -> bool:
        """Tell it, then prove that it adds up; whether all went as it should."""
        self.say(f"The server: {self.served.about}.")
        self.say(f"The route: that of docs/brokers/{self._story.page}.md; {_words(self._story.shorter)}.")
        ended_well = self._story.tell(self)
        self.act("Proving that it all adds up, against the ledger and the staged files")
        ended_well &= self.redrive("audit") == 0
        mark = "[green]✓[/] as it should be" if ended_well else "[bold red]✗ not as it should be[/]"
        self.say(f"{mark}; {time.monotonic() - self._started:.0f} s in all. Ledger: {self._place.ledger_file}")
        return ended_well

    # --- words ------------------------------------------------------------------------------------------

    def act(self, title: str) -> None:
        """A heading."""
        self._console.print()
        self._console.rule(f"[bold]{title}[/]", align="left")

    def say(self, text: str) -> None:
        """A sentence, with markup."""
        self._console.print(f"  {text}", highlight=False)

    def check(self, good: object, text: str) -> bool:
        """Say whether what should be so is so."""
        self.say(f"[green]✓[/] {text}" if good else f"[bold red]✗ not so:[/] {text}")
        return bool(good)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table; what messages say is shown as plain text."""
        table = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
        for name in columns:
            table.add_column(name)
        for row in rows:
            table.add_row(*(story.printable(str(value)) for value in row))
        self._show(table)

    def _show(self, *parts: RenderableType) -> None:
        story.tell(self._console, *parts)

    # --- deeds ------------------------------------------------------------------------------------------

    def redrive(self, *words: str, given: str = "", brief: bool = False) -> int:
        """Run ``redrive`` as its user does, with ``given`` on its standard input; its exit code.

        What it prints is shown, ``brief``: without its advice.
        """
        advice = [False]

        def show(line: str) -> None:
            advice[0] |= "how to make it not happen again" in line
            if not (brief and advice[0]):
                self._console.print(Text(f"    {line.rstrip()}"), soft_wrap=True)

        self._console.print(
            Text(f"  $ {f'echo {shlex.quote(given)} | ' if given else ''}redrive {shlex.join(words)}", style="bold"),
            soft_wrap=True,
        )
        width = {"COLUMNS": str(max(60, self._console.width - 4))}
        code = self._command(words, self.environment | width, given, show)
        if code:
            self.say(f"[bold red]it ended with {code}[/]")
        return code

    def rows(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        """What the ledger says."""
        with self.ledger.read() as connection:
            return [tuple(row) for row in connection.execute(sql(query), values)]

    def states(self) -> dict[str, int]:
        """How many messages are in each state."""
        return dict(self.rows("select state, count(*) from messages group by state"))

    def wait_until_due(self) -> None:
        """Until the next redelivery is due, within reason."""
        [(due,)] = self.rows("select min(next_attempt_at) from messages where state = 'waiting'")
        if moment := parse_instant(due):
            seconds = (moment - datetime.now(UTC)).total_seconds()
            time.sleep(min(_LONGEST_WAIT_SECONDS, max(0.0, seconds)))

    def tell_how_to_go_on(self) -> None:
        """What to paste into a shell to play one's own case on the server that was kept."""
        names = ["REDRIVE_HOME", "REDRIVE_CONFIG", "REDRIVE_DATABASE_URL", "REDRIVE_STAGING_URI"]
        names += [name for name in self.environment if name.startswith("AIRFLOW_CONN_")]
        lines = [Text("The server still runs. To play a case of your own on it, and to end it:", style="bold")]
        lines += [Text(f"export {name}={shlex.quote(self.environment[name])}") for name in names]
        lines += [Text(f"kill {self.served.pid}")]
        self._show(Group(*lines))


def page_route(told: Story) -> dict[str, Any]:
    """The route that the page of the story's broker gives to copy, with the waits of the demo."""
    page = (workspace.root() / "docs" / "brokers" / f"{told.page}.md").read_text(encoding="utf-8")
    first = re.search(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    if first is None:
        raise UsageError(f"docs/brokers/{told.page}.md has no route to copy")
    route: dict[str, Any] = yaml.safe_load(textwrap.dedent(first[1]))["routes"][ROUTE]
    for key, value in told.shorter.items():
        route[key] = route.get(key, {}) | value if isinstance(value, dict) else value
    return route


@contextmanager
def serving(broker: str, root: Path, place: Workspace, *, keep: bool) -> Iterator[Served]:
    """The server of ``broker`` for as long as the block lasts, or longer with ``keep``.

    The tests' own program runs it. Raises :class:`UsageError` where it is not installed.
    """
    if not (root / "tests" / "serving.py").exists():
        raise UsageError("the demos of brokers need the tests' servers: clone the repository and run it there")
    log = place.folder / f"{broker}.log"
    command = [sys.executable, "-m", "tests.serving", broker, str(place.folder / "server")]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_ELSEWHERE)}
    with log.open("wb") as written:
        process = subprocess.Popen(  # noqa: S603  this very checkout
            [*command, *(["--keep"] if keep else [])],
            cwd=root,
            env=environment | {"PYTHONPATH": os.pathsep.join([str(root / "plugins"), str(root)])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=written,
            text=True,
            start_new_session=True,
        )
    try:
        said = process.stdout.readline() if process.stdout else ""
        if not said:
            process.wait(10)
            why = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise UsageError(f"{broker} can't be started here: {''.join(why) or 'it said nothing'} (`make brokers`)")
        told = json.loads(said)
        if "missing" in told:
            raise UsageError(f"{told['missing']}: `make brokers` installs it")
        yield Served(told["about"], told["connection"], process.pid)
    except BaseException:
        keep = False
        raise
    finally:
        if not keep:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _environment(
    place: Workspace, connections: Mapping[str, dict[str, Any]], base: Mapping[str, str]
) -> dict[str, str]:
    """``base`` with everything pointed at the demo's place and server, and at nothing else."""
    kept = {key: value for key, value in base.items() if not key.startswith(_ELSEWHERE)}
    ours = {variable_of(name): json.dumps(value) for name, value in connections.items()}
    return (
        kept
        | ours
        | workspace.past_proxies(kept)
        | {
            "REDRIVE_HOME": str(place.home),
            "REDRIVE_CONFIG": str(place.home / "redrive.yaml"),
            "REDRIVE_DATABASE_URL": place.ledger_url,
            "REDRIVE_STAGING_URI": str(place.staging),
        }
    )


def _in_a_process(words: Sequence[str], environment: Mapping[str, str], given: str, say: Callable[[str], None]) -> int:
    with tempfile.TemporaryFile() as stdin:
        stdin.write(given.encode())
        stdin.seek(0)
        with subprocess.Popen(  # noqa: S603  this very package
            [sys.executable, "-m", "redrive", *words],
            env=dict(environment),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            for line in process.stdout or ():
                say(line)
    return process.returncode


def _words(shorter: Mapping[str, Any]) -> str:
    if not shorter:
        return "nothing else"
    return f"for the demo with {yaml.safe_dump(dict(shorter), default_flow_style=True, width=1000).strip()}"
