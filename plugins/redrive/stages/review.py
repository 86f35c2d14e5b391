"""Review: apply what people decided, once; refuse what can't be done, with the reason in the row."""

from pathlib import Path

from redrive import corrections
from redrive.brokers import registry
from redrive.corrections import Bounds, Correction, Original
from redrive.ledger.drain import suspects
from redrive.ledger.review import applying, rulings, standing
from redrive.ledger.review.applying import Decided
from redrive.lifecycle import State
from redrive.settings import Route
from redrive.stages import escalate, plan
from redrive.stages.context import Context, not_sent_on

PAGE = 2000


def apply_decisions(context: Context) -> dict[str, int]:
    """Apply the route's decided escalations: releases wait for delivery, discards are final, the rest is refused."""
    totals = {"released": 0, "discarded": 0, "refused": 0}
    rulings.apply(context.ledger, context.lease, context.now())
    standing.apply(context.ledger, context.lease, approvals=context.route.approvals, now=context.now())
    _adopt(context)
    bounds, canary = bounds_of(context.route), context.route.canary
    after = -1
    while True:
        with context.ledger.read() as connection:
            page = applying.decided(
                connection,
                context.name,
                approvals=context.route.approvals,
                after=after,
                limit=PAGE,
                max_bytes=escalate.PAGE_BYTES,
            )
        if not page:
            break
        after = page[-1].escalation_id
        redeliver, discard, not_there, refuse = [], [], [], []
        for one in page:
            problem = objection(one, bounds)
            if problem:
                refuse.append((one, problem))
            elif one.decision == "discard":
                discard.append(one)
            elif one.decision == "not_there":
                not_there.append(one)
            else:
                redeliver.append(one)
        done = applying.apply(
            context.ledger,
            context.lease,
            redeliver=redeliver,
            discard=discard,
            not_there=not_there,
            refuse=refuse,
            first=canary.first if canary else None,
            now=context.now(),
        )
        totals = {name: totals[name] + done[name] for name in totals}
    if totals["released"]:
        # Not left to the next plan: a delivery may come first, and would send nothing of it.
        plan.admit(context)
    return totals


def review(context: Context) -> dict[str, int]:
    """As :func:`apply_decisions`, of a run in which no plan follows: what a review that died released before, and did
    not come to let through, goes now as far as its gates let it."""
    totals = apply_decisions(context)
    with context.ledger.read() as connection:
        left = not totals["released"] and applying.any_held(connection, context.name)
    if left:
        plan.admit(context)
    return totals


def _adopt(context: Context) -> None:
    """Suspected copies on which somebody decided become messages, as many at a time as are asked about together."""
    after = -1
    while True:
        with context.ledger.read() as connection:
            page = suspects.decided(
                connection, context.name, after=after, limit=escalate.PAGE, max_bytes=escalate.PAGE_BYTES
            )
        if not page:
            return
        after = page[-1].escalation_id
        missing = escalate.bodies(context, [one.copy_id for one in page if not one.has_body])
        suspects.adopt(context.ledger, context.lease, [one.copy_id for one in page], context.now(), missing)


def objection(one: Decided, bounds: Bounds) -> str | None:
    """Why a decision can't be applied, as a sentence; None when it can."""
    if one.state is None:
        return "The message is no longer in the ledger."
    if one.state == State.RESTORE_UNKNOWN and one.decision not in ("not_there", "discard"):
        return (
            f"A restore may have put it back into {one.source}, so sending it may double it. Look there: if it is"
            " there, discard; if not, not_there, and then decide again."
        )
    if one.decision == "not_there" and one.state != State.RESTORE_UNKNOWN:
        return (
            "not_there is for what a restore may have put back, and none is in doubt here: redeliver, discard or edit."
        )
    if one.decision == "edit":
        problem = corrections.objection(
            Correction(one.corrected_body, one.corrected_headers),
            Original(one.original, one.content_type, one.is_binary, one.original_headers, one.size_bytes),
            bounds,
        )
        return problem and f"The correction can't be sent: {problem}."
    return None


def bounds_of(route: Route | None) -> Bounds:
    """What a correction of a message may be; of a route that is not configured any more nothing of it is known."""
    if route is None:
        return Bounds()
    kind = registry.kind(route.broker)
    schema = route.body_schema
    return Bounds(kind, not_sent_on(route, kind.capabilities), Path(schema) if isinstance(schema, str) else schema)
