"""The filter of what people are asked about, as it is carried out: for a list, a preview and the decision alike.

Whatever is masked for people is not found by a filter either: what the database offers is looked at as it would be
shown.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime

from sqlalchemy.engine import Connection

from redrive.ledger.dialects import dialect_of
from redrive.redaction import Redactor
from redrive_ui import message_queries
from redrive_ui.filters import Filter
from redrive_ui.recent import FEW, LOOK, LOOK_MASKED
from redrive_ui.rows import rows_of


def _few(connection: Connection, chosen: Filter, readable: Collection[str]) -> bool:
    """Whether few questions have the status that is asked for, whatever else is."""
    if chosen.status == "all" or not chosen.reads_rows:
        return False
    where, values = Filter(route=chosen.route, status=chosen.status).where(readable, dialect_of(connection))
    (row,) = rows_of(
        connection,
        f"select count(*) as n from (select 1 from escalated_messages where {where} limit {FEW + 1}) as found",
        **values,
    )
    return int(row["n"]) <= FEW


def resolve(
    connection: Connection,
    chosen: Filter,
    readable: Collection[str],
    redactor: Callable[[str], Redactor],
    now: datetime,
    *,
    up_to: int = (1 << 63) - 1,
) -> Filter:
    """``chosen`` as it is carried out: relative times made absolute, a search for texts bounded to the newest rows
    where many have its status, and nothing found by what its routes mask.

    How far back it looked is in what it returns: resolved again, later, it finds nothing older.
    """
    chosen = replace(chosen.resolved(now), unmasked=None, few=_few(connection, chosen, readable))
    if not (chosen.text or chosen.header):
        return chosen
    if not (chosen.above or chosen.ids or chosen.failures or chosen.group):
        newest = message_queries.newest_question(connection)
        if newest > LOOK:
            # Said either way, so that the decision is about what the preview was about.
            chosen = replace(chosen, above=str(0 if chosen.few else newest - LOOK))
    name, _, value = chosen.header.partition("=")
    masking = frozenset(
        route
        for route in readable
        if chosen.route in ("", route)
        and (mask := redactor(route))
        and (chosen.text or mask.header(name, value) != value)
    )
    if not masking:
        return chosen
    where, values = chosen.where(masking, dialect_of(connection))
    floor = int(chosen.masked_above or 0)
    rows = rows_of(
        connection,
        "select escalation_id, route, coalesce(error_text, reason) as said from escalated_messages"
        f" where {where} and escalation_id <= :up_to and escalation_id > :masked_above"
        f" order by escalation_id desc limit {LOOK_MASKED}",
        up_to=up_to,
        masked_above=floor,
        **values,
    )
    if len(rows) == LOOK_MASKED:  # else what is decided meanwhile would make room for what nobody has seen
        floor = rows[-1]["escalation_id"] - 1
    seen: dict[tuple[str, str], bool] = {}
    found = []
    for row in rows:
        mask = redactor(row["route"])
        if chosen.header and mask.header(name, value) != value:
            continue
        one = (row["route"], row["said"] or "")
        if one not in seen:
            seen[one] = chosen.text.lower() in mask(one[1]).lower()
        if seen[one]:
            found.append(row["escalation_id"])
    return replace(chosen, masked_above=str(floor), unmasked=(masking, tuple(found)))
