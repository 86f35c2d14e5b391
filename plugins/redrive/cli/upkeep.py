"""Setting up and keeping up: init, db upgrade, learn, and the demo."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from redrive.cli.context import console, json_line, open_ledger, read_settings, utc_now
from redrive.cli.options import AsJson
from redrive.errors import UsageError

app = typer.Typer()
db = typer.Typer(help="The ledger's database.", no_args_is_help=True)
app.add_typer(db, name="db")


@app.command()
def learn(as_json: AsJson = False) -> None:
    """Train the model of causes with what became of this ledger's messages; kept only where it helps.

    Half of the groups are held back to measure with. A model that answers more of them right, and none more
    unsafely, is written to var/learned_causes.npz; explain and the Spark job use it from then on. Remove the
    file to go back to ours.
    """
    from redrive.settings.places import home  # noqa: PLC0415
    from redrive.stages.learn import learn as learned  # noqa: PLC0415

    with open_ledger(read_settings()) as ledger:
        found = learned(ledger, home())
    if "removed" in found and not as_json:
        typer.echo("what was learned before is removed: this version can't read it")
    if as_json:
        typer.echo(json_line(found))
    elif "needed" in found:
        typer.echo(f"{found['groups']} groups teach something, {found['needed']} are needed: nothing learned")
    else:
        for when in ("before", "after"):
            typer.echo(f"{when:6}  " + "  ".join(f"{name} {count}" for name, count in found[when].items()))
        typer.echo("kept: used from now on" if found["kept"] else "not kept: it does not answer better")


@db.command("upgrade")
def db_upgrade(
    count_anew: Annotated[
        bool,
        typer.Option(
            "--count-anew",
            help="Also count finished messages anew: after `redrive audit` said that they are counted otherwise than"
            " they are. It reads every message, and runs wait meanwhile.",
        ),
    ] = False,
) -> None:
    """Create the ledger's tables and views, or bring them up to date; harmless when repeated."""
    from redrive.ledger import schema  # noqa: PLC0415
    from redrive.ledger.engine import Ledger  # noqa: PLC0415

    ledger = Ledger(read_settings().database)
    try:
        revision = schema.upgrade(ledger, utc_now(), count_anew=count_anew)
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
    what to do next. Where a configuration is there already, it prints what to add to it (exit 2). Example:

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
    if added := first.to_add(folder.absolute(), answers):
        typer.echo(added)
        raise typer.Exit(2)
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

        raise typer.Exit(play.main(broker, keep_broker=keep_broker, fresh=fresh, console=console()))
    from redrive.dev.demo.run import main as run_demo  # noqa: PLC0415

    raise typer.Exit(run_demo(messages=messages, seed=seed, keep_broker=keep_broker, fresh=fresh, console=console()))


@app.command()
def up(port: Annotated[int | None, typer.Option(help="Port of the Airflow UI; default $PORT or 8080.")] = None) -> None:
    """Start Airflow on 127.0.0.1 with every route scheduled, until Ctrl-C."""
    from redrive.dev.demo.run import living_shop  # noqa: PLC0415
    from redrive.dev.up import up as run_airflow  # noqa: PLC0415

    raise typer.Exit(run_airflow(read_settings(), port, worlds={"sqs_demo": living_shop}, say=typer.echo))
