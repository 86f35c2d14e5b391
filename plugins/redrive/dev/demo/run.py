"""``redrive demo``: break a shop, let Redrive bring its messages back through Airflow, tell what happened.

One broker, one shop, two or three runs of the DAG ``redrive_orders``; between the runs the repaired consumer
works off what came back. Everything is below ``var/`` and on loopback, and nothing is left running unless
``keep_broker`` says so.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console, Group
from rich.text import Text
from sqlalchemy.engine import Connection

from redrive import settings
from redrive.dev import airflow_environment, local_airflow, unscheduled_run
from redrive.dev.demo import orders, services, story, workspace, world
from redrive.dev.demo.consumer import Consumer
from redrive.dev.demo.workspace import Workspace
from redrive.errors import UsageError
from redrive.ledger.engine import Ledger, parse_instant, sql

DAG = f"redrive_{workspace.ROUTE}"
#: Longer than all deliveries of a message together, so the queue gives up before the work is done.
SLOW_SECONDS = world.VISIBILITY_SECONDS * world.MAX_RECEIVES + 0.6
LONGEST_WAIT_SECONDS = 12.0
LOG_TAIL_LINES = 30
MARKS = {"success": ("✓", "green"), "skipped": ("·", "dim"), "up_for_retry": ("↻", "yellow")}


def main(*, messages: int, seed: int, keep_broker: bool, fresh: bool, console: Console) -> int:
    """Run the demo; 0 if every run succeeded and every promise held, else 1.

    ``messages`` orders of the day ``seed`` are sent. ``keep_broker`` leaves the embedded server running.
    ``fresh`` removes what an earlier demo left, and nothing else. Raises :class:`UsageError` where a ledger,
    configuration or environment is not the demo's.
    """
    if messages < 1:
        raise UsageError(f"--messages {messages}: at least one")
    workspace.root()
    place = Workspace(settings.home())
    _refuse_without_java()
    with place.alone(), workspace.terminable(), ExitStack() as stack:
        place.claim(fresh=fresh)
        demo = Demo(place, console, stack, keep_broker=keep_broker)
        return demo.play(messages, seed)


@contextmanager
def living_shop(home: Path) -> Iterator[Mapping[str, str]]:
    """The demo's broker and shop for as long as the block lasts, for an Airflow that runs the routes by schedule.

    Yields the environment by which the route's connections are found; what the environment already defines is
    left as it is. The shop breaks once, is repaired, and goes on with new orders every five minutes.
    """
    place = Workspace(home)
    with (
        place.alone(),
        world.embedded_server(world.find_ministack(workspace.root()), place.folder) as endpoint,
    ):
        place.announce()
        queues = world.make_queues(endpoint)
        with services.Shop(place.folder / "shop", slow_seconds=SLOW_SECONDS) as shop:
            stop = threading.Event()
            trade = threading.Thread(target=_trade, args=(queues, shop, stop), daemon=True)
            trade.start()
            try:
                ours = workspace.connections(endpoint, shop.orders_db)
                known = {name: value for name, value in ours.items() if name not in os.environ}
                yield known | workspace.past_proxies(os.environ)
            finally:
                stop.set()
                shop.hang_up()
                trade.join(timeout=10)


class Demo:
    """One performance; whatever it starts is stopped by ``stack``."""

    def __init__(self, place: Workspace, console: Console, stack: ExitStack, *, keep_broker: bool) -> None:
        self.place = place
        self.console = console
        self.keep_broker = keep_broker
        self._stack = stack
        self._started = time.monotonic()

    def play(self, messages: int, seed: int) -> int:
        """All acts in order; the exit code."""
        self._act("A shop, its queues, and a bad day")
        endpoint = self._stack.enter_context(
            world.embedded_server(world.find_ministack(workspace.root()), self.place.folder, keep=self.keep_broker)
        )
        queues = world.make_queues(endpoint)
        self._say(f"an SQS-compatible server answers at {endpoint}")
        shop = self._stack.enter_context(services.Shop(self.place.folder / "shop", slow_seconds=SLOW_SECONDS))
        environment = self._environment(endpoint, shop)
        with ThreadPoolExecutor(1) as aside:
            # Airflow's own database takes six seconds to make, as long as the shop takes to break.
            migrated = aside.submit(local_airflow.migrate, environment)
            ledger = self._stack.enter_context(_closing(self.place.open_ledger(datetime.now(UTC))))
            sent = self._break_the_shop(queues, shop, messages, seed)
            self._wait_for(migrated, "Airflow's database")

        shop.repair()
        self._act(f"Run 1: {DAG}, in Airflow")
        if not self._run_dag(environment):
            return 1
        self._let_the_shop_work(queues, shop)
        self._wait_until_due(ledger)

        self._act(f"Run 2: {DAG} again, to see what came back and send what is due")
        if not self._run_dag(environment):
            return 1
        self._let_the_shop_work(queues, shop)

        self._act("A person decides: the credential was renewed, so what failed for it may go again")
        decided = self._decide(ledger, environment)

        self._act("Run 3: the same loop without Airflow, from the command line")
        looped = self._redrive(environment, "run", workspace.ROUTE)
        self._let_the_shop_work(queues, shop)
        asked = self._redrive(environment, "resolve", workspace.ROUTE)

        self._act("Proving that it all adds up, against the ledger and the staged files")
        proved = self._redrive(environment, "audit")
        told = self._tell_the_end(ledger, queues, shop, sent)
        if self.keep_broker:
            self._tell_how_to_go_on(queues, environment)
        return 0 if all((decided, looped, asked, proved, told)) else 1

    def _environment(self, endpoint: str, shop: services.Shop) -> dict[str, str]:
        for name in workspace.connections(endpoint, shop.orders_db):
            if name in os.environ:
                self._say(f"${name} is set; the demo leaves it alone and uses its own server")
        base = self.place.environment(endpoint, shop.orders_db, os.environ)
        workspace.refuse_other_configuration(settings.load(env=base))
        return airflow_environment.environment(self.place.home, 0, base=base)

    def _break_the_shop(
        self, queues: world.Queues, shop: services.Shop, messages: int, seed: int
    ) -> list[orders.OrderMessage]:
        sent = orders.make_orders(messages, seed, first_number=shop.next_order_number())
        orders.publish(queues, sent)
        consumer = Consumer(queues, shop)
        with self.console.status("the consumer fails …"):
            tally = consumer.work_off(patience=2, limit=60 + messages / 50)
        depth = {name: queues.counts(name) for name in queues.urls}
        story.tell(self.console, story.shop_table(len(sent), tally, depth))
        return sent

    def _run_dag(self, environment: Mapping[str, str]) -> bool:
        began = time.monotonic()
        starts: dict[str, float] = {}
        with self.console.status("Airflow starts …") as status:

            def on_progress(task: str, state: str) -> None:
                if state == "running":
                    starts[task] = time.monotonic()
                    status.update(Text(f"{task} …"))
                else:
                    seconds = time.monotonic() - starts.get(task, began)
                    mark, style = MARKS.get(state, ("✗", "red"))
                    self.console.print(Text.assemble("  ", (mark, style), f" {task:<24} {seconds:5.1f} s"))

            code = unscheduled_run.dags_test(DAG, {}, environment, on_progress)
        if code:
            log = Path(environment["AIRFLOW_HOME"]) / f"{DAG}.log"
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
            self.console.print(f"\n[bold red]{DAG} failed[/] (exit {code}); the end of {log}:")
            for line in lines:
                self.console.print(story.printable(line), style="dim")
            return False
        self._say(f"done in {time.monotonic() - began:.1f} s")
        return True

    def _decide(self, ledger: Ledger, environment: Mapping[str, str]) -> bool:
        """Decide about one group as a reviewer does, with an UPDATE, and let Redrive take the decision in."""
        with ledger.read() as connection:
            group = story.cured_group(connection)
        if group is None:
            self._say("nothing of that kind is under review")
            return False
        self.console.print(Text(f"  sql> {story.decision(group)}"), soft_wrap=True)
        with ledger.write() as connection:
            connection.exec_driver_sql(story.decision(group))
        return self._redrive(environment, "review", "apply")

    def _redrive(self, environment: Mapping[str, str], *arguments: str) -> bool:
        """Run a command of our own and show what it prints; whether it succeeded."""
        self._say(f"[bold]$ redrive {' '.join(arguments)}[/]")
        command = [sys.executable, "-m", "redrive", *arguments]
        width = {"COLUMNS": str(max(60, self.console.width - 4))}
        with (
            self.console.status(f"redrive {' '.join(arguments)} …"),
            subprocess.Popen(  # noqa: S603  this very package
                command,
                env={**environment, **width},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as process,
        ):
            assert process.stdout is not None  # noqa: S101  asked for by PIPE
            for line in process.stdout:
                self.console.print(Text(f"  {line.rstrip()}"), soft_wrap=True)
        if process.returncode:
            self.console.print(f"  [bold red]it ended with {process.returncode}[/]")
        return process.returncode == 0

    def _let_the_shop_work(self, queues: world.Queues, shop: services.Shop) -> None:
        with self.console.status("the repaired consumer works off what came back …"):
            tally = Consumer(queues, shop).work_off(patience=1, limit=30)
        self._say(f"the repaired consumer processed {tally['processed']}, failed again on {tally['dead_lettered']}")

    def _wait_until_due(self, ledger: Ledger) -> None:
        with ledger.read() as connection:
            seconds = _until_due(connection, datetime.now(UTC))
        if seconds > 0:
            with self.console.status(f"backoff: the next messages are due in {seconds:.0f} s …"):
                time.sleep(seconds)

    def _tell_the_end(
        self,
        ledger: Ledger,
        queues: world.Queues,
        shop: services.Shop,
        sent: list[orders.OrderMessage],
    ) -> bool:
        """Print the tables; whether every promise held."""
        self._act("What came of it")
        with shop.orders() as database:
            processed = {row[0] for row in database.execute("select message_id from processed")}
        with ledger.read() as connection:
            accounts = story.settle_accounts(connection, {m.message_id for m in sent}, processed)
            story.tell(
                self.console,
                story.causes_table(connection),
                story.groups_table(connection),
                story.outcome_table(connection),
                story.balance_table(connection),
                story.queues_table({name: queues.counts(name) for name in queues.urls}),
                story.advice(connection),
                story.review_help(connection, self.place),
            )
        self.console.print()
        for promise in accounts.broken:
            self.console.print(Text.assemble(("✗ ", "bold red"), promise))
        if not accounts.broken:
            self._say(
                f"[green]✓[/] all {len(sent)} messages are accounted for, processed or in the ledger; "
                f"{time.monotonic() - self._started:.0f} s in all"
            )
        return not accounts.broken

    def _tell_how_to_go_on(self, queues: world.Queues, environment: Mapping[str, str]) -> None:
        """What to paste into a shell so that ``redrive`` finds the server that was kept."""
        pid = json.loads((self.place.folder / "ministack.json").read_text())["pid"]
        names = ("REDRIVE_HOME", "REDRIVE_CONFIG", *workspace.connections(queues.endpoint, self.place.folder))
        lines = [Text(f"The server still runs at {queues.endpoint}; to go on with it, and to end it:", style="bold")]
        lines += [Text(f"export {name}={shlex.quote(environment[name])}") for name in names]
        lines.append(Text(f"kill {pid}"))
        story.tell(self.console, Group(*lines))

    def _wait_for(self, work: "Future[None]", what: str) -> None:
        with self.console.status(f"{what} …"):
            work.result()

    def _act(self, title: str) -> None:
        self.console.print()
        self.console.rule(f"[bold]{title}[/]", align="left")

    def _say(self, text: str) -> None:
        self.console.print(f"  {text}", highlight=False)


def _trade(queues: world.Queues, shop: services.Shop, stop: threading.Event) -> None:
    """A bad start, then business as usual: new orders every five minutes until ``stop``."""
    number = shop.next_order_number()
    orders.publish(queues, orders.make_orders(orders.DEFAULT_MESSAGES, seed=0, first_number=number))
    Consumer(queues, shop).work_off(patience=2, limit=60)
    shop.repair()
    consumer = threading.Thread(target=Consumer(queues, shop).run, args=(stop,), daemon=True)
    consumer.start()
    day = 0
    while not stop.wait(300):
        day += 1
        orders.publish(queues, orders.make_orders(100, seed=day, first_number=number + 1000 * day))
    consumer.join(timeout=10)


def _until_due(connection: Connection, now: datetime) -> float:
    """Seconds until most of what waits is due, within reason."""
    due = connection.execute(
        sql("select max(next_attempt_at) from messages where route = :route and state = 'waiting'"),
        {"route": workspace.ROUTE},
    ).scalar_one()
    moment = parse_instant(due)
    return min(LONGEST_WAIT_SECONDS, max(0.0, (moment - now).total_seconds())) if moment else 0.0


def _refuse_without_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if (home and (Path(home) / "bin" / "java").exists()) or shutil.which("java"):
        return
    raise UsageError("Java 17 or later is needed for Spark: install it, or set JAVA_HOME")


@contextmanager
def _closing(ledger: Ledger) -> Iterator[Ledger]:
    try:
        yield ledger
    finally:
        ledger.close()
