"""Looking, without changing anything: trace, audit, doctor, explain."""

import json
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.cli.context import (
    console,
    json_line,
    known_groups_here,
    learned_model_here,
    masked,
    open_ledger,
    plain_json_line,
    printable,
    read_settings,
)
from redrive.cli.held_run import progress_shown
from redrive.cli.options import AsJson
from redrive.errors import UsageError

if TYPE_CHECKING:
    from redrive.settings import Settings

app = typer.Typer()

#: So many messages of one key are traced.
_MOST_LIVES = 20


@app.command()
def trace(
    message: Annotated[
        str,
        typer.Argument(
            help="A redrive id, message id, broker id, business key (that of the `processed_check`), or the whole value"
            " of a field that the route's `search` names."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """The whole life of a message, from its first enqueue to the last outcome.

    Of one that never died the ledger knows nothing. Then the records of consumers are asked (processed_check), by the
    same key: they can tell that it was processed.
    """
    from redrive.ledger.account import inspecting  # noqa: PLC0415
    from redrive.redaction import redactor_of  # noqa: PLC0415

    settings = read_settings()

    def shows(route: str, field: str, value: str) -> bool:
        return route not in settings.broken and redactor_of(route, settings.routes).shows(field, value)

    with open_ledger(settings) as ledger, ledger.read() as connection:
        found = inspecting.trace(connection, message, limit=_MOST_LIVES + 1, shows=shows)
        left = [] if found else inspecting.forgotten(connection, message)
    if left:
        told = "; ".join(
            f"a {one['kind']} copy of message {one['message_id']} of route {one['route']}, seen in {one['source']} at"
            f" {str(one['seen_at'])[:19]} UTC"
            for one in left
        )
        raise UsageError(f"{message!r} is {told}. The message is past its retention, so nothing else is known of it")
    if not found:
        _print_records(settings, message, as_json)
        return
    if len(found) > _MOST_LIVES:
        found = found[:_MOST_LIVES]
        typer.echo(f"redrive: more messages have {message!r}; these are the {_MOST_LIVES} oldest", err=True)
    for one in found:
        masked(settings, [one, one["message"], one["group"] or {}], one["message"]["route"])
    if as_json:
        typer.echo(json_line(found))
        return
    from redrive.cli import output  # noqa: PLC0415

    for one in found:
        output.print_trace(console(), one)


def _print_records(settings: "Settings", key: str, as_json: bool) -> None:
    """What consumers' records say of a key that the ledger doesn't know; UsageError where none has it."""
    from redrive.stages import records  # noqa: PLC0415

    said = records.ask(settings, key)
    done = [one for one in said if one.processed]
    if not done:
        text = (
            f"nothing is known of {key!r}: not a redrive id, message id, broker id, key or declared field in the ledger"
        )
        for one in said:
            text += f"; the record of route {one.route} " + (f"could not be asked: {one.problem}" if one.problem else
                                                             "does not have it as processed")  # fmt: skip
        raise UsageError(text)
    if as_json:
        typer.echo(json_line([{"processed_without_dying": True, **one._asdict()} for one in done]))
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

    settings = read_settings()
    if route:
        settings.route(route)
    with progress_shown(as_json) as progress:
        found = pipeline.audit(settings, route, progress=progress)
    if as_json:
        typer.echo(json_line(found))
    else:
        typer.echo(f"{found['batches']} batches with {found['copies']} copies checked")
        for problem in found["problems"]:
            typer.echo(printable(f"BROKEN  {problem}"), err=True)
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

    settings = read_settings()
    if route is not None and route not in settings.broken:
        settings.route(route)
    findings = examination.examine(settings, [route] if route else [*settings.routes, *settings.broken])
    if as_json:
        typer.echo(json_line([finding._asdict() for finding in findings]))
    else:
        from redrive.cli import output  # noqa: PLC0415

        output.print_findings(console(), findings)
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

    model = learned_model_here()
    if compare is not None:
        found = compared(*compare, known_groups=known_groups_here(), model=model)
        typer.echo(plain_json_line(found))
        one = "one group" if found["same"] else "two groups"
        typer.echo("\n".join([f"{one}:", *(f"- {reason}" for reason in found["because"])]), err=True)
        return
    causes: dict[str, None] = {}
    problems: list[str] = []
    for line in explained(_json_lines(sys.stdin.buffer, problems), known_groups=known_groups_here(), model=model):
        sys.stdout.write(plain_json_line(line) + "\n")
        causes[line["cause"]] = None
    sys.stdout.flush()
    for cause in causes:  # for people; programs read the other stream
        typer.echo(f"{cause}: {registry.advice(Cause(cause))}", err=True)
    for problem in problems:
        typer.secho(f"redrive: {problem}", err=True, fg="red")
    if problems:
        raise typer.Exit(UsageError.exit_code)


def _json_lines(stream: Iterable[bytes], problems: list[str]) -> Iterator[dict[str, Any]]:
    """The objects of JSON lines in UTF-8; what is none is noted, by its number, and costs its own line only."""
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode())
        except (ValueError, RecursionError) as error:  # of bytes that are no text, and of what is nested too deeply
            problems.append(f"line {number} is not JSON: {error}")
            continue
        if not isinstance(value, dict) or not isinstance(value.get("text", ""), str):
            problems.append(f"line {number} is not an object with a text")
            continue
        yield value
