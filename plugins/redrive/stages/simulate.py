"""Simulate: replay a route's history against another policy. Reads the ledger, changes nothing."""

from dataclasses import asdict
from datetime import timedelta
from typing import Any

from redrive.ledger import schema
from redrive.ledger.account import history
from redrive.ledger.account.history import Doubts
from redrive.ledger.engine import Ledger
from redrive.ledger.selecting import Selection
from redrive.policy import replay
from redrive.policy.replay import Row, Tally
from redrive.redaction import redactor
from redrive.settings import Route, Settings
from redrive.stages import source_expansion
from redrive.stages.plan import gate_rules, policy_limits


def simulate(settings: Settings, route: str, other: Route, selection: Selection) -> dict[str, Any]:
    """Per cause and group what was and what would have been under the policy of ``other``; and what isn't known."""
    known = settings.route(route)
    source_expansion.refuse_unknown_sources(selection, known)
    mask = redactor(known)
    ledger = Ledger(settings.database)
    try:
        schema.check(ledger)
        _, selection = source_expansion.of_ledger(ledger, route, known, selection)
        with ledger.read() as connection:
            histories = history.histories(connection, route, selection)
            doubts = history.doubts(connection, route, selection)
            groups = {one.group_id for one in histories if one.group_id is not None}
            templates = {group: mask(text) for group, text in history.templates(connection, groups).items()}
    finally:
        ledger.close()
    rows = replay.replay(histories, policy_limits(other), gate_rules(other))
    return {
        "route": route,
        "rows": [
            {
                "cause": row.cause.value if row.cause else None,
                "group": row.group_id,
                "template": templates.get(row.group_id or 0),
                "was": _numbers(row.was),
                "would": _numbers(row.would),
                "gate": row.gate,
            }
            for row in rows
        ],
        "total": {name: _numbers(tally) for name, tally in replay.total(rows).items()},
        "not_known": list(_not_known(rows, doubts)),
    }


def _numbers(tally: Tally) -> dict[str, Any]:
    numbers = asdict(tally)
    wait: timedelta = numbers.pop("longest_wait")
    return numbers | {"longest_wait_seconds": wait.total_seconds()}


def _not_known(rows: list[Row], doubts: Doubts) -> list[str]:
    """What the numbers can't say, in sentences."""
    would = replay.total(rows)["would"]
    told = ["sends would have been at other times: an outcome is taken to be the same at any time"]
    if would.not_known:
        told.append(
            f"{would.not_known} messages would have been sent once more than they were, or their last send is not"
            " decided yet: nobody knows what comes of that"
        )
    if any(row.gate and row.gate != "passed" for row in rows):
        told.append("gates are replayed with their group's share of returns, as if these were spread evenly")
    if doubts.regrouped:
        told.append(f"{doubts.regrouped} messages failed for different reasons; the newest stands for all of them")
    if doubts.released:
        told.append(f"{doubts.released} messages were released by people; what came of that is left out")
    return told
