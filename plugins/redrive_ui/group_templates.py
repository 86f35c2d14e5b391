"""What a group of failures says, in words that whoever asks may read."""

from collections.abc import Callable, Collection, Iterable

from sqlalchemy.engine import Connection

from redrive.classification import grouping, normalization
from redrive_ui.rows import first_of, routes_in, rows_of

#: Of a route and a text of it: the text as people may see it.
Mask = Callable[[str, str], str]


def templates(
    connection: Connection, readable: Collection[str], mask: Mask, wanted: Iterable[tuple[str, int | None]]
) -> dict[tuple[str, int], str]:
    """What each of these groups says, on a route that may be read, in words that may be read.

    A group is one over all routes, and its template holds words of the route that it was first seen on: they are masked
    as on that one. Whoever may not read it gets the template of a message on the route that is asked about; nothing
    where no such message is in front of people.
    """
    pairs = {(route, group_id) for route, group_id in wanted if group_id is not None and route in readable}
    if not pairs:
        return {}
    where, values = routes_in(readable, "first_route")
    own = {
        row["group_id"]: mask(row["first_route"], row["template"])
        for row in rows_of(
            connection,
            f"select group_id, template, first_route from failure_groups where {where}"
            f" and group_id in ({', '.join(str(int(one)) for one in sorted({group_id for _, group_id in pairs}))})",
            **values,
        )
    }
    found = {(route, group_id): own[group_id] for route, group_id in pairs if group_id in own}
    for route, group_id in sorted(pairs - found.keys()):
        if text := example(connection, route, group_id):
            found[route, group_id] = normalization.template(grouping.mask(mask(route, text)))
    return found


def example(connection: Connection, route: str, group_id: int) -> str | None:
    """What a message of the group on this route failed with, the same one every time."""
    row = first_of(
        connection,
        "select error_text from escalated_messages where route = :route and group_id = :group_id"
        " order by status, escalated_at, escalation_id limit 1",
        route=route,
        group_id=group_id,
    )
    return str(row["error_text"]) if row and row["error_text"] else None
