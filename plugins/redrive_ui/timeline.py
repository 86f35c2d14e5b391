"""A message's life as a timeline: everything that the ledger knows of it, in the order in which it happened."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redrive.audit_actions import Action, decision_of
from redrive_ui.route_queries import dag_run
from redrive_ui.rows import Row


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a message."""

    at: datetime
    tone: str  # came | sent | good | bad | person | plain: how it is coloured
    what: str
    detail: str = ""
    run: tuple[str, str] | None = None  # DAG and DAG run in which it happened


def events_of(message: Row) -> list[Event]:
    """The events of a row of :func:`redrive_ui.message_queries.message`, oldest first."""
    runs, batch = message["runs"], message["batch"]
    found: list[Event] = []

    def add(at: datetime | None, tone: str, what: str, detail: str | None = "", run_id: str | None = None) -> None:
        if at is not None:
            found.append(Event(at, tone, what, detail or "", dag_run(runs.get(run_id))))

    add(message["first_enqueued_at"], "plain", "first enqueued")
    if not message["copies"]:
        add(message["dead_lettered_at"], "bad", f"dead-lettered into {message['source']}")
    if batch:
        add(
            batch["recorded_at"], "came", "staged", f"batch {batch['batch_id']} from {batch['source']}", batch["run_id"]
        )
        add(batch["settled_at"], "plain", "settled at its source", "the queue has let it go", batch["run_id"])
        add(batch["loaded_at"], "came", "cause and group found", message["group_cause"])
    for one in message["attempts_made"]:
        what, run = f"attempt {one['attempt']}", one["run_id"]
        add(one["claimed_at"], "plain", f"{what} claimed", f"{one['mode']} to {one['destination']}", run)
        add(
            one["sent_at"],
            "sent",
            f"{what} sent",
            f"as {one['broker_message_id']}" if one["broker_message_id"] else "",
            run,
        )
        add(one["unknown_at"], "bad", f"{what} lost from sight", "between send and confirmation", run)
        outcome = one["outcome"] or ""
        tone = {"returned": "bad", "presumed": "good", "confirmed": "good"}.get(outcome, "plain")
        means = _OUTCOMES.get(outcome, "")
        if outcome == "returned" and one["return_kind"] == "delay":
            tone, means = "plain", "its consumer asked to have it later"
        add(one["outcome_at"], tone, f"{what}: {one['outcome']}", means)
    for one in message["copies"]:
        add(one["seen_at"], "plain", f"{one['kind']} copy seen", f"in {one['source']}")
    for one in message["reviews"]:
        add(one["escalated_at"], "person", "handed to people", one["reason"])
        add(one["applied_at"], "person", f"decision applied: {one['decision']}")
    for one in message["events"]:
        if one["actor"] == "redrive":
            tone = "bad" if one["action"] in (Action.REFUSE_DECISION, Action.REOPEN) else "plain"
            add(one["at"], tone, one["action"].replace("_", " "), one["reason"], one["run_id"])
        else:
            add(one["at"], "person", f"{one['actor']} {_said(one['action'])}", one["reason"])
    return sorted(found, key=lambda event: event.at)


def _said(action: str) -> str:
    """What a person did, by the word of the audit trail."""
    if action == Action.NOTE:
        return "noted"
    verb, decision = decision_of(action) or (action, None)
    told = _TOLD.get(verb, verb.replace("_", " "))
    return f"{told}: {decision.replace('_', ' ')}" if decision else told


_TOLD = {
    "decide": "decided",
    "approve": "approved",
    "unapprove": "took an approval back",
    "withdraw": "withdrew",
    "apply": "had it carried out",
}

_OUTCOMES = {
    "returned": "it failed again",
    "presumed": "it did not come back within a window that could have seen it",
    "confirmed": "proved to be processed",
}


def headers_of(stored: str) -> list[tuple[str, str, str]]:
    """Name, type and value of each header, as the review table holds them; what is no list shows as it is."""
    try:
        value: Any = json.loads(stored)
        return [(str(name), str(kind), str(text)) for name, kind, text in value]
    except (ValueError, TypeError):
        return [("", "", stored)]
