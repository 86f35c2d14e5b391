"""Review: apply what people decided, once; refuse what can't be done, with the reason in the row."""

import json

from redrive.ledger import escalations, suspects
from redrive.ledger.escalations import Decided
from redrive.stages import plan
from redrive.stages.context import Context

PAGE = 500


def apply_decisions(context: Context) -> dict[str, int]:
    """Apply the route's decided escalations: releases wait for delivery, discards are final, the rest is refused."""
    totals = {"released": 0, "discarded": 0, "refused": 0}
    suspects.adopt(context.ledger, context.lease, context.now())
    after = -1
    while True:
        with context.ledger.read() as connection:
            page = escalations.decided(
                connection, context.name, approvals=context.route.approvals, after=after, limit=PAGE
            )
        if not page:
            break
        after = page[-1].escalation_id
        redeliver, discard, refuse = [], [], []
        for one in page:
            problem = objection(one)
            if problem:
                refuse.append((one, problem))
            elif one.decision == "discard":
                discard.append(one)
            else:
                redeliver.append(one)
        done = escalations.apply(
            context.ledger, context.lease, redeliver=redeliver, discard=discard, refuse=refuse, now=context.now()
        )
        totals = {name: totals[name] + done[name] for name in totals}
    if totals["released"]:
        canary = context.route.canary
        escalations.regate(context.ledger, context.lease, first=canary.first if canary else None, now=context.now())
        # Not left to the next plan: a delivery may come first, and a claim looks at no gate.
        plan.let_through(context)
    return totals


def objection(one: Decided) -> str | None:
    """Why a decision can't be applied; None when it can."""
    if one.state is None:
        return "the message is no longer in the ledger"
    if one.decision == "edit":
        return _bad_body(one.corrected_body or "", one.content_type)
    return None


def _bad_body(body: str, content_type: str | None) -> str | None:
    """Why ``body`` can't stand for a message of ``content_type``."""
    if not body:
        return "corrected_body is empty"
    if "json" in (content_type or "").lower():
        try:
            json.loads(body)
        except ValueError as error:
            return f"corrected_body is not JSON, as the original's content type says: {error}"
        except RecursionError:
            return "corrected_body is nested too deeply"
    return None
