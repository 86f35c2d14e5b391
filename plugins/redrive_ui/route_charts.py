"""What the pages of routes draw: what moved in the last days, what came in by cause, and the words beside it."""

from collections.abc import Iterable
from typing import Any

from redrive_ui import charts, formatting
from redrive_ui.rows import Row


def flow_of(rows: Iterable[Row]) -> dict[str, int]:
    """What moved: in, sent again, stayed away, proved, returned, to people, discarded.

    ``rows`` are of :func:`redrive_ui.route_queries.flows`. A message that stayed away and came back after all counts as
    returned, not as both.
    """
    found = dict.fromkeys(("new", "sent", "stayed", "proved", "returned", "people", "discarded", "suppressed"), 0)
    for row in rows:
        source, target, n = row["from_state"], row["to_state"], row["n"]
        if target == "classified" and source is None:
            found["new"] += n
        elif target == "sent":
            found["sent"] += n
        elif target in ("presumed", "confirmed"):
            found["proved"] += n if target == "confirmed" else 0
            found["stayed"] += n if source in ("sent", "unknown") else 0
        elif target == "returned":
            found["returned"] += n
            found["stayed"] -= n if source in ("presumed", "confirmed") else 0
            found["proved"] -= n if source == "confirmed" else 0
        elif target == "escalated":
            found["people"] += n
        elif target in ("discarded", "suppressed"):
            found[target] += n
    return {name: max(0, n) for name, n in found.items()}


def funnel(rows: Iterable[Row]) -> Any:
    """What became of the messages of these rows, as for :func:`flow_of`, step by step."""
    flow = flow_of(rows)
    steps = [
        ("came in", flow["new"]),
        ("sent again", flow["sent"]),
        ("stayed away", flow["stayed"]),
        ("proved processed", flow["proved"]),
        ("came back", flow["returned"]),
        ("to people", flow["people"]),
    ]
    return charts.funnel(steps, "What became of messages in the last seven days")


def inflow(days: list[str], found: dict[str, dict[str, int]]) -> Any:
    """New messages by day and cause, as :func:`redrive_ui.route_queries.inflow` found them."""
    named = {formatting.words(name): per_day for name, per_day in found.items()}
    return charts.stacked_bars(days, named, "New messages per UTC day, by cause")


def legend(found: dict[str, dict[str, int]]) -> list[tuple[str, int]]:
    """The names in the chart of :func:`inflow`, in its order, each with its messages."""
    totals = {formatting.words(name): sum(per_day.values()) for name, per_day in found.items()}
    names = charts.ranked(totals)
    rest = sum(n for name, n in totals.items() if name not in names)
    return [(name, totals.get(name, rest)) for name in names]
