"""The ``redrive`` command.

Everything heavy is imported by the command that needs it: an idle run answers without Airflow, Spark or a browser of
their modules. Exit codes: 0 done, 1 failed or a promise broken, 2 wrong use or configuration, 3 refused because
another run holds the route or people paused it.
"""

import io
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from redrive.cli import control, groups, inspection, recovery, review, runs, upkeep
from redrive.cli.context import printable
from redrive.errors import RedriveError, UsageError
from redrive.garbage import fewer_collections

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
for part in (runs, recovery, control, inspection, upkeep):
    app.add_typer(part.app)
app.add_typer(review.app, name="review")
app.add_typer(groups.app, name="groups")


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


def _refuse_bytes(words: Sequence[str]) -> None:
    """No ledger has what is no text, and no file of ours is called so."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{word!a} is not UTF-8: check what your shell sends") from None


def main() -> None:
    """Run the command; errors that Redrive knows end in one clear line and their exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Letters that it does not know are shown by number, as on standard error: a run that has done all its work must
        # not fail over the name of a queue.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        _refuse_bytes(sys.argv[1:])
        # Without its own error handling the app returns the code of typer.Exit instead of leaving with it.
        with fewer_collections():
            sys.exit(app(standalone_mode=False) or 0)
    except RedriveError as error:
        typer.secho(printable(f"redrive: {error}"), err=True, fg="red")  # plain where nobody looks on
        sys.exit(error.exit_code)
    except typer.Exit as done:
        sys.exit(done.exit_code)
    except KeyboardInterrupt as interrupted:
        typer.echo(f"redrive: {interrupted or 'interrupted'}", err=True)
        sys.exit(130)
    except typer.Abort:  # of a question for a value: questions for a yes say it themselves
        typer.echo("\nredrive: no answer, nothing was changed", err=True)
        sys.exit(1)
    except Exception as error:
        # Wrong use of an option: Typer's own copy of Click raises these, and exports no common base class.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        sys.exit(2)
