"""Dry run: what the next run would do with what is staged and loaded already; nothing is changed anywhere."""

from datetime import datetime, timedelta
from typing import Any

from redrive import policy
from redrive.ledger import batches, planning, schema, sending
from redrive.ledger.engine import Ledger
from redrive.ledger.selecting import Selection
from redrive.policy import Discard, Escalate, Send
from redrive.settings import Settings
from redrive.stages.plan import policy_limits


def preview(settings: Settings, route: str, selection: Selection, *, now: datetime) -> dict[str, Any]:
    """The plan per group (verdict, count, why, when) and what a dry run can't see. Reads the ledger only.

    The broker isn't asked: receiving counts a delivery and hides messages from others, so peeking would change it.
    """
    known = settings.route(route)
    limits = policy_limits(known)
    delays = {source.queue: source.delay or timedelta(0) for source in known.sources if source.kind == "delay"}
    ledger = Ledger(settings.database)
    try:
        schema.check(ledger)
        with ledger.read() as connection:
            cases = planning.cases(connection, route, selection)
            gates = {gate.group_id: gate for gate in planning.gates(connection, route)}
            staged = batches.unloaded(connection, route)
            lanes = sending.lanes(connection, route, now)
            templates = planning.templates(connection, route)
    finally:
        ledger.close()
    rows = []
    for one in cases:
        decision = policy.decide(one.case, limits)
        gate = gates.get(one.group_id) if one.group_id is not None else None
        verdict, why, when = _words(decision, one.case.kind, delays.get(one.source), now)
        if isinstance(decision, Send) and one.case.kind != "delay" and known.canary is not None:
            stage = gate.stage if gate else "canary"
            if stage != "open":
                why = f"{why}; the group's gate is at {stage}"
        rows.append(
            {
                "group": one.group_id,
                "cause": one.case.cause.value if one.case.cause else None,
                "template": templates.get(one.group_id or 0),
                "messages": one.messages,
                "verdict": verdict,
                "why": why,
                "when": when,
            }
        )
    rows += [
        {
            "group": gate.group_id,
            "cause": gate.cause,
            "template": templates.get(gate.group_id),
            "messages": gate.held,
            "verdict": "hold",
            "why": gate.reason or f"the group's gate is at {gate.stage}",
            "when": gate.cool_down_until,
        }
        for gate in gates.values()
        if gate.held
    ]
    return {
        "route": route,
        "plan": sorted(rows, key=lambda row: (-row["messages"], str(row["group"]))),
        "due_now": [{"destination": lane.destination, "messages": lane.due} for lane in lanes],
        "not_seen": {
            "staged_but_not_classified": sum(batch.copies for batch in staged),
            "in_the_sources": "not looked at: receiving would count a delivery and hide messages from others",
        },
    }


def _words(
    decision: policy.Decision, kind: str, own_delay: timedelta | None, now: datetime
) -> tuple[str, str, str | datetime]:
    match decision:
        case Send(mode=mode, within=within):
            if kind == "delay":
                return mode, "the consumer asked for later", f"{own_delay} after it was put there"
            if within:
                return mode, "backoff with full jitter", f"within {within}"
            return mode, "passing failure" if mode == "requeue" else "tried on a few first", now
        case Escalate(reason=reason):
            return "escalate", reason, now
        case Discard(reason=reason):
            return "discard", reason, now
