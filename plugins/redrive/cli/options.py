"""Arguments and options that several commands have, each said once."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from redrive.cli.context import selection_of
from redrive.message import LARGEST_ID, MOST_MESSAGES

RouteName = Annotated[str, typer.Argument(help="A route of the configuration.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of tables.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, change nothing anywhere.")]
Limit = Annotated[
    int | None, typer.Option(min=1, max=MOST_MESSAGES, help="At most so many messages, drained and sent each.")
]
Causes = Annotated[list[str] | None, typer.Option("--cause", help="Only this cause; may be repeated.")]
Groups = Annotated[
    list[int] | None,
    typer.Option("--group", min=1, max=LARGEST_ID, help="Only this group's id; may be repeated."),
]
Since = Annotated[str | None, typer.Option(help="Dead-lettered at or after: 2026-11-20T06:00, or 6h ago as 6h.")]
Until = Annotated[str | None, typer.Option(help="Dead-lettered before; as --since.")]
Sources = Annotated[list[str] | None, typer.Option("--source", help="Only this source queue; may be repeated.")]
Attributes = Annotated[
    list[str] | None,
    typer.Option(
        "--attribute",
        help="Only messages with this header, as NAME=VALUE; may be repeated: any value of one name, all names.",
    ),
]
Types = Annotated[
    list[str] | None,
    typer.Option("--type", help="Only messages of this type (NServiceBus, MassTransit, Subject); may be repeated."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Where another run holds the route, wait for its end.")]
OfRoute = Annotated[str | None, typer.Option("--route", help="Only of this route.")]
By = Annotated[str, typer.Option("--by", help="Who decides.", show_default="your login name")]
Note = Annotated[str, typer.Option("--note", help="Why; kept for ever.")]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask, however many they are.")]
#: A decision about more messages than that is asked for once more.
ASK_FROM = 100

#: The options that choose messages, by the parameter that each is for :func:`~redrive.cli.context.selection_of`.
_CHOOSING: dict[str, tuple[str, Any]] = {
    "limit": ("limit", Limit),
    "causes": ("cause", Causes),
    "groups": ("group", Groups),
    "since": ("since", Since),
    "until": ("until", Until),
    "sources": ("source", Sources),
    "attributes": ("attribute", Attributes),
    "types": ("type", Types),
}


def choosing(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """For a command with a parameter ``selection``: it has these options in its place, without ``names`` all of them.

    Typer reads options from a signature, so that is what is made here.
    """
    chosen = {name: _CHOOSING[name] for name in names or _CHOOSING}
    options = [
        inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for option, annotation in chosen.values()
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_options(**given: Any) -> None:
            asked = {name: given.pop(option) for name, (option, _) in chosen.items()}
            command(**given, selection=selection_of(**asked))

        parameters: list[inspect.Parameter] = []
        for one in inspect.signature(command).parameters.values():
            parameters += options if one.name == "selection" else [one.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {one.name: one.annotation for one in parameters}
        return with_options

    return decorate
