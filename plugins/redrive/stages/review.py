"""Review: apply what people decided, once; refuse what can't be done, with the reason in the row."""

import json
from typing import Any, Never
from xml.parsers import expat

from redrive.ledger.delivery import breakers
from redrive.ledger.drain import suspects
from redrive.ledger.review import escalations, rulings, standing
from redrive.ledger.review.decisions import Original
from redrive.ledger.review.escalations import Decided
from redrive.lifecycle import State
from redrive.redaction import MASKED
from redrive.stages import escalate, plan
from redrive.stages.context import Context

PAGE = 2000


def apply_decisions(context: Context) -> dict[str, int]:
    """Apply the route's decided escalations: releases wait for delivery, discards are final, the rest is refused."""
    totals = {"released": 0, "discarded": 0, "refused": 0}
    rulings.apply(context.ledger, context.lease, context.now())
    standing.apply(context.ledger, context.lease, approvals=context.route.approvals, now=context.now())
    with context.ledger.read() as connection:
        missing = suspects.without_payload(connection, context.name)
    suspects.adopt(context.ledger, context.lease, context.now(), escalate.bodies(context, missing))
    after = -1
    while True:
        with context.ledger.read() as connection:
            page = escalations.decided(
                connection, context.name, approvals=context.route.approvals, after=after, limit=PAGE
            )
        if not page:
            break
        after = page[-1].escalation_id
        redeliver, discard, not_there, refuse = [], [], [], []
        for one in page:
            problem = objection(one)
            if problem:
                refuse.append((one, problem))
            elif one.decision == "discard":
                discard.append(one)
            elif one.decision == "not_there":
                not_there.append(one)
            else:
                redeliver.append(one)
        done = escalations.apply(
            context.ledger,
            context.lease,
            redeliver=redeliver,
            discard=discard,
            not_there=not_there,
            refuse=refuse,
            now=context.now(),
        )
        totals = {name: totals[name] + done[name] for name in totals}
    if totals["released"]:
        canary = context.route.canary
        breakers.regate(context.ledger, context.lease, first=canary.first if canary else None, now=context.now())
        # Not left to the next plan: a delivery may come first, and a claim looks at no gate.
        plan.admit(context)
    return totals


def objection(one: Decided) -> str | None:
    """Why a decision can't be applied; None when it can."""
    if one.state is None:
        return "the message is no longer in the ledger"
    if one.state == State.RESTORE_UNKNOWN and one.decision not in ("not_there", "discard"):
        return (
            f"a restore may have put it back into {one.source}, so sending it may double it: look there; if it is"
            " there, discard; if not, not_there, and then decide again"
        )
    if one.decision == "not_there" and one.state != State.RESTORE_UNKNOWN:
        return (
            "not_there is for what a restore may have put back, and none is in doubt here: redeliver, discard or edit"
        )
    if one.decision == "edit":
        return objection_to_body(one.corrected_body or "", Original(one.original, one.content_type, one.is_binary))
    return None


def objection_to_body(body: str, original: Original) -> str | None:
    """Why ``body`` can't take the place of ``original``; None when it can."""
    if not body:
        return "corrected_body is empty"
    if MASKED.search(body) and not MASKED.search(original.payload or ""):
        return (
            "corrected_body holds [redacted]: it was copied from where the payload is masked; take the column payload"
        )
    kind = (original.content_type or "").partition(";")[0].strip().lower()
    if "json" in kind:
        problem = _not_json(body)
        return problem and f"corrected_body is not JSON, as the original's content type says: {problem}"
    if kind in ("text/xml", "application/xml") or kind.endswith("+xml"):
        problem = _not_xml(body)
        return problem and f"corrected_body is not XML, as the original's content type says: {problem}"
    if kind and original.is_binary and not kind.startswith("text/"):
        return f"the original is no text but {kind[:100]}, and corrected_body can only be text"
    if not kind and (original.payload or "").lstrip()[:1] in ("{", "[") and _not_json(original.payload or "") is None:
        problem = _not_json(body)
        return problem and f"corrected_body is not JSON, as the original is: {problem}"
    return None


def _not_json(text: str) -> str | None:
    def no_constant(word: str) -> Never:
        raise ValueError(f"{word} is no value in JSON")

    try:
        json.loads(text, parse_constant=no_constant)
    except ValueError as error:
        return str(error)
    except RecursionError:
        return "nested too deeply"
    return None


def _not_xml(text: str) -> str | None:
    def no_entities(*_: Any) -> Never:
        raise ValueError("entities are not taken")

    parser = expat.ParserCreate()
    parser.EntityDeclHandler = no_entities
    try:
        parser.Parse(text, True)
    except (expat.ExpatError, ValueError) as error:
        return str(error)
    return None
