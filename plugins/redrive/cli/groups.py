"""What people say about groups: `redrive groups`."""

import getpass
from collections.abc import Sequence
from typing import Annotated

import typer

from redrive.cli.context import json_line, open_ledger, printable, read_settings
from redrive.cli.options import AsJson, By
from redrive.errors import UsageError
from redrive.message import LARGEST_ID

app = typer.Typer(help="Say which failures are one, and which are two.", no_args_is_help=True)

Group = Annotated[int, typer.Argument(max=LARGEST_ID, help="The group's id.", show_default=False)]
Why = Annotated[str, typer.Option("--note", help="Why; kept for ever.", show_default=False)]


@app.command("merge")
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


@app.command("split")
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
    with open_ledger(read_settings()) as ledger:
        with ledger.read() as connection:
            missing = rulings.unknown(
                connection, sorted({id_ for _, group, other, _ in rules for id_ in (group, other) if id_ is not None})
            )
        if missing:
            raise UsageError(f"there is no group {missing[0]}")
        for ruling, group, other, words in rules:
            made = rulings.make(ledger, ruling, group, other=other, words=words, by=by or getpass.getuser(), note=note)
            typer.echo(f"ruling {made}: the next run, or `redrive review apply`, carries it out")


@app.command("revoke")
def groups_revoke(
    ruling: Annotated[int, typer.Argument(max=LARGEST_ID, help="The ruling's id, as `redrive groups list` shows it.")],
    by: By = "",
) -> None:
    """Take back what was said. A merge is undone; what has a group's id by then keeps it."""
    from redrive.ledger.review import rulings  # noqa: PLC0415

    with open_ledger(read_settings()) as ledger:
        if not rulings.revoke(ledger, ruling, by=by or getpass.getuser()):
            raise UsageError(f"there is no ruling {ruling} that holds")
    typer.echo(f"ruling {ruling} does not hold any more")


@app.command("list")
def groups_list(as_json: AsJson = False) -> None:
    """What people said about groups, the newest first, and what became of it."""
    from redrive.ledger.review import rulings  # noqa: PLC0415

    with open_ledger(read_settings()) as ledger, ledger.read() as connection:
        rows = rulings.listed(connection)
    if as_json:
        typer.echo(json_line(rows))
        return
    for row in rows:
        what = f"what says {row['words']!r}" if row["words"] else f"group {row['other_group_id']}"
        told = (
            f"{row['ruling_id']:5}  {row['ruling']:5}  group {row['group_id']} and {what}, by {row['decided_by']}:"
            f" {row['note']}  ({row['refusal'] or row['status']})"
        )
        typer.echo(printable(told))
