"""Arguments and options that several commands have, each said once."""

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args

import typer

from redrive.cli.context import selection_of
from redrive.errors import UsageError
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


ALL_CHOOSING = tuple(_CHOOSING)


def choosing(
    *names: str, refuse: Callable[[str, str], str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """For a command with a parameter ``selection``: it has these options in its place, without ``names`` all of them.

    With ``refuse`` it has only those of ``names``, and says of another one that is given what ``refuse`` says of its
    parameter and its option (:class:`~redrive.errors.UsageError`): who chose a part must not get all of it.
    Typer reads options from a signature, so that is what is made here.
    """
    known = _CHOOSING if refuse else {name: _CHOOSING[name] for name in names or _CHOOSING}
    options = [
        inspect.Parameter(
            option,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=_hidden(annotation) if refuse and name not in names else annotation,
        )
        for name, (option, annotation) in known.items()
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_options(**given: Any) -> None:
            asked = {name: given.pop(option) for name, (option, _) in known.items()}
            for name, value in asked.items():
                if refuse and name not in names and value:
                    raise UsageError(refuse(name, f"--{known[name][0]}"))
            command(**given, selection=selection_of(**asked))

        parameters: list[inspect.Parameter] = []
        for one in inspect.signature(command).parameters.values():
            parameters += options if one.name == "selection" else [one.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {one.name: one.annotation for one in parameters}
        return with_options

    return decorate


def _hidden(annotation: Any) -> Any:
    """The same option, which the command's help leaves out."""
    kind, option = get_args(annotation)
    option = copy.copy(option)
    option.hidden = True
    return Annotated[kind, option]
