"""Arguments and options that several commands have, each said once."""

from typing import Annotated

import typer

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
