"""Plan: a verdict per distinct case, applied to the whole set, and the gates of the groups.

Nothing is sent here. What may go out is ``waiting`` with a time; what must not is ``held`` behind its group's gate;
what people must decide is ``to_review`` until the escalate stage asks them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy.engine import Connection

from redrive.classification.causes import Cause, Verdict
from redrive.ledger import leases, table_statistics
from redrive.ledger.delivery import breakers, consumers, counting, holding, in_flight, planning
from redrive.ledger.delivery.aiming import refuse_lost
from redrive.ledger.delivery.breakers import DestinationGate, GroupGate
from redrive.ledger.delivery.ordering import InOrder
from redrive.ledger.delivery.planning import CaseCount
from redrive.ledger.drain import horizon
from redrive.ledger.predicates import TO_PLAN
from redrive.ledger.selecting import Selection
from redrive.policy import gates, next_step
from redrive.policy.next_step import Consumers, Decision, Limits
from redrive.settings import Route
from redrive.stages import aiming, attributes
from redrive.stages.context import Context

#: Below this many groups one group's trouble is no sign of a sick destination.
ROUTE_PAUSE_GROUPS = 5


def plan(context: Context) -> dict[str, Any]:
    """Returns how many messages went where.

    First the gates of the groups take their steps, by what became of earlier sends; then each case is decided; then
    the breakers of destinations take theirs, and each gate lets through what it may. What people decided, also about
    groups, is carried out before: see :func:`redrive.stages.review.apply_decisions`.
    """
    route, ledger, lease = context.route, context.ledger, context.lease
    now = context.now()
    aiming.aim(context)
    expired = planning.expire(ledger, lease, enqueued_before=now - route.give_up_after, now=now)

    rules = gate_rules(route)
    breakers.open_gates(ledger, lease, first=rules.first if rules.canary else None, now=now)
    if their_turn := _in_order(context):
        holding.hold_out_of_turn(ledger, lease, their_turn, now)
    stopped, reopened = _step_gates(context, rules)

    with ledger.read() as connection:
        consumed = consumers.states(connection, context.name, now=now)
        cases = planning.cases(connection, context.name, context.selection.without_attributes(), consumed)
    limits = policy_limits(route)
    counts = _apply(context, [(case, next_step.decide(case.case, limits)) for case in cases], consumed)
    keys = {source.queue: aiming.key_of(context.name, route, source.queue) for source in route.sources}
    table_statistics.look_again(ledger, lease, ("messages",), counts["planned"], now)
    lost = refuse_lost(ledger, lease, keys, now)
    counts["to_review"] += lost

    stopped += _step_destinations(context, rules)
    counting.remember(ledger, lease, gates.REMEMBERED * rules.min_samples, now)
    admitted = admit(context)
    counts["waiting"] += admitted
    counts["held"] -= admitted
    _pause_if_sick(context)  # now that what came back is held behind its gate
    return {**counts, "expired": expired, "stopped_groups": stopped, "reopened": reopened}


def _apply(
    context: Context, decisions: Sequence[tuple[CaseCount, Decision]], consumed: Mapping[str, Consumers]
) -> dict[str, int]:
    """Apply the decisions to what is selected: at once, or with attributes page by page."""
    route, selection = context.route, context.selection
    total = {"planned": 0, "waiting": 0, "held": 0, "to_review": 0, "discarded": 0}
    if not decisions:
        return total
    for part in _parts(context, TO_PLAN) if selection.attributes else [selection]:
        counts = planning.apply(
            context.ledger,
            context.lease,
            decisions,
            selection=part,
            delays={source.queue: source.delay or timedelta(0) for source in route.sources if source.kind == "delay"},
            settle_after=route.processed_check.settle_after if route.processed_check else timedelta(0),
            now=context.now(),
            consumers=consumed,
        )
        total = {name: total[name] + count for name, count in counts.items()}
    return total


def _parts(context: Context, where: str, **values: Any) -> Iterator[Selection]:
    return attributes.parts(
        context.ledger, context.staging, context.name, context.selection, where=where, values=values
    )


def policy_limits(route: Route) -> Limits:
    """The route's settings as the policy takes them."""
    return Limits(
        requeue_attempts=route.requeue_attempts,
        delay_attempts=route.delay_attempts,
        first=route.backoff.first,
        factor=route.backoff.factor,
        longest=route.backoff.max,
        least=route.backoff.first / 10 if route.backoff.least is None else route.backoff.least,
        verdicts={cause: over.verdict for cause, over in route.causes.items() if over.verdict is not None},
        checked=route.processed_check is not None,
    )


def gate_rules(route: Route) -> gates.Rules:
    """The route's canary and breaker as the gates take them."""
    canary = route.canary
    return gates.Rules(
        canary=canary is not None,
        first=canary.first if canary else 0,
        grow=canary.grow if canary else 1.0,
        pass_share=canary.pass_ if canary else 0.0,
        return_rate=route.breaker.return_rate,
        min_samples=route.breaker.min_samples,
        cool_down=route.breaker.cool_down,
    )


def step_of(
    connection: Connection,
    route: str,
    gate: GroupGate,
    rules: gates.Rules,
    verdicts: Mapping[Cause, Verdict],
    now: datetime,
) -> gates.Step | None:
    """The step that a group's gate takes at the next plan, by what is known; None when it stays."""
    passing = next_step.is_automatic(Cause(gate.cause), verdicts)
    return gates.step(gate, rules, passing=passing, now=now, slices=_slices(connection, route, gate, rules, now))


def _slices(
    connection: Connection, route: str, gate: GroupGate | DestinationGate, rules: gates.Rules, now: datetime
) -> gates.Slices | None:
    """What it let go, where that is to be looked at."""
    if not gates.in_question(gate, rules):
        return None
    return breakers.slices_of(connection, route, gate, since=now - in_flight.KEPT)


def _step_gates(context: Context, rules: gates.Rules) -> tuple[int, int]:
    """Let every gate take its step; (groups stopped, messages reopened for people)."""
    ledger, lease, now = context.ledger, context.lease, context.now()
    overrides = policy_limits(context.route).verdicts
    with ledger.read() as connection:
        current = breakers.of_groups(connection, context.name)
        steps = [step_of(connection, context.name, gate, rules, overrides, now) for gate in current]
    hold: dict[GroupGate, str] = {}
    ask_again: dict[GroupGate, str] = {}
    to_people: dict[GroupGate, str] = {}
    for gate, taken in zip(current, steps, strict=True):
        if taken is None:
            if gate.stage == "failed" and gate.waiting + gate.held:  # came in after the canary had failed
                to_people[gate] = f"The canary of its group failed: {gate.reason}"
            elif gate.stage == "tripped" and gate.released:  # was being sent when it tripped
                ask_again[gate] = f"Its group keeps coming back: {gate.reason}"
            continue
        stage_id = breakers.take_step(ledger, lease, gate, taken, now)
        if stage_id is None:
            continue
        stopped = replace(gate, stage_id=stage_id)
        if taken.stage == "tripped":
            hold[stopped] = f"Its group keeps coming back: {taken.reason}"
            if gate.released:
                ask_again[stopped] = hold[stopped]
        elif taken.stage == "failed":
            to_people[stopped] = f"The canary of its group failed: {taken.reason}"
    # Before the rest is held: whoever released something is to see that it did not help, and wait for no cool-down.
    reopened = holding.reopen_released(ledger, lease, ask_again, now) if ask_again else 0
    holding.hold_back(ledger, lease, hold, now)
    moved = holding.put_to_review(ledger, lease, to_people, now)
    return len(hold) + len(to_people), reopened + moved["reopened"]


def _step_destinations(context: Context, rules: gates.Rules) -> int:
    """Let the breaker of every destination take its step; how many were stopped."""
    now, stopped = context.now(), 0
    with context.ledger.read() as connection:
        current = breakers.of_destinations(connection, context.name)
        steps = [
            gates.step_destination(
                gate, gate.outcomes, rules, now=now, slices=_slices(connection, context.name, gate, rules, now)
            )
            for gate in current
        ]
    for gate, taken in zip(current, steps, strict=True):
        if taken is None:
            continue
        moved = breakers.take_step(context.ledger, context.lease, gate, taken, now)
        if moved is not None and taken.stage == "tripped":
            stopped += 1
            context.progress(f"nothing goes to {gate.destination} for a while: {taken.reason}", 0, None)
    return stopped


def _pause_if_sick(context: Context) -> None:
    """With most of the open messages behind stopped gates it is the destination that is sick, not the messages."""
    why = partial(_sickness, route=context.name, most=context.route.breaker.max_held_share)
    with context.ledger.read() as connection:
        if not breakers.has_gates_at(connection, context.name, gates.Stage.TRIPPED) or why(connection) is None:
            return
    reason = leases.pause_itself(context.ledger, context.lease, why, context.now())
    if reason is not None:
        context.progress(f"the route pauses: {reason}", 0, None)


def _sickness(connection: Connection, *, route: str, most: float) -> str | None:
    """That more than the share ``most`` of the route's open messages is behind gates that tripped; None while not."""
    current = breakers.of_groups(connection, route)
    open_messages = {gate.group_id: gate.waiting + gate.held for gate in current}
    busy = [gate for gate in current if open_messages[gate.group_id]]
    total = sum(open_messages.values())
    if len(busy) < ROUTE_PAUSE_GROUPS or not total:
        return None
    tripped = sum(open_messages[gate.group_id] for gate in busy if gate.stage == "tripped")
    if tripped / total <= most:
        return None
    return f"{tripped} of {total} open messages are in groups that keep coming back: the destination is sick"


def admit(context: Context) -> int:
    """Hold what is beyond a gate's quota and what took none of its places, then let each group's quota through; how
    many more wait for it."""
    ledger, lease, now = context.ledger, context.lease, context.now()
    held = 0
    if their_turn := _in_order(context):
        held = holding.hold_out_of_turn(ledger, lease, their_turn, now)
    with ledger.read() as connection:
        current = breakers.of_groups(connection, context.name)
    beyond = {
        gate: gate.reason or f"Its gate is at {gate.stage}: the outcome of the first {gate.allowed} is awaited."
        for gate in current
        if gate.stage in ("canary", "ramp", "tripped") and gate.waiting > max(0, gate.allowed - gate.sent)
    }
    back = holding.hold_back(ledger, lease, beyond, now) + _put_off(context, current)
    if back:
        with ledger.read() as connection:
            current = breakers.of_groups(connection, context.name)
    quotas = {gate: gates.quota(gate) for gate in current if gate.held}
    quotas = {gate: allowed for gate, allowed in quotas.items() if allowed != 0}
    admitted = _admit_selected(context, quotas)
    table_statistics.look_again(ledger, lease, ("messages",), admitted, now)
    return admitted - back - held


def _put_off(context: Context, current: Sequence[GroupGate]) -> int:
    """Places that were not used since the last plan are free for other destinations; how many are."""
    taken = [
        gate for gate in current if gate.stage in gates.LIMITED and gate.waiting and gate.held and not gates.quota(gate)
    ]
    if not taken:
        return 0
    with context.ledger.read() as connection:
        before = leases.run_before(connection, context.lease, "plan")
    if before is None or before.began is None:
        return 0
    return holding.put_off(context.ledger, context.lease, taken, planned_at=before.began, now=context.now())


def _in_order(context: Context) -> InOrder | None:
    if context.route.order_by is None:
        return None
    with context.ledger.read() as connection:
        return in_order(connection, context.name, context.route)


def in_order(connection: Connection, name: str, route: Route) -> InOrder | None:
    """That messages go in order, and up to when all sources were drained to their end; None where they don't."""
    if route.order_by is None:
        return None
    return InOrder(horizon.drained_to(connection, name, [one.queue for one in route.sources]))


def _admit_selected(context: Context, quotas: Mapping[GroupGate, int | None]) -> int:
    """Let so many selected messages behind each gate wait for delivery; None lets all."""
    if not quotas:
        return 0
    ledger, lease, selection, admitted = context.ledger, context.lease, context.selection, 0
    through_gate = partial(holding.admit, ledger, lease, in_order=_in_order(context))
    if not selection.attributes:
        return through_gate(quotas, context.now(), selection)
    for gate, quota in quotas.items():
        room = quota
        for number, part in enumerate(_parts(context, "state = 'held' and group_id = :group", group=gate.group_id)):
            through = through_gate({replace(gate, admits=gate.admits + number): room}, context.now(), part)
            admitted += through
            room = None if room is None else room - through
            if room == 0:
                break
    return admitted
