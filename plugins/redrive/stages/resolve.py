"""Resolve: what became of past sends. Proof first, then absence within a window that could have shown a return."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import NamedTuple

from redrive.brokers import registry
from redrive.brokers.base import Broker, Origin, QueueInfo
from redrive.errors import BrokerError, BrokerUnavailable, CheckFailed
from redrive.ledger import leases
from redrive.ledger.delivery import expiry, in_flight, observations, outcomes, presuming, unknown_sends
from redrive.ledger.drain import horizon, returned_elsewhere
from redrive.ledger.engine import Ledger
from redrive.lifecycle import Plan
from redrive.policy.next_step import trusted
from redrive.policy.worked_past import Consumption, Holds
from redrive.settings import Route, Source
from redrive.stages.checking import open_check, vouches_for_unknown
from redrive.stages.context import Context

#: Messages asked about at once.
PAGE = 5_000
#: What is reckoned with where neither the configuration nor the broker tells.
ASSUMED = Holds(timedelta(seconds=30), 5)
#: Who keeps messages for less wants them dead-lettered, or gone, after that time. Nobody is asked before it is over.
LEAST_KEPT = timedelta(days=1)
#: How many more times at most, after the first days, the check is asked about a send of which nothing is learnt.
DOUBLED = 8


def resolve(context: Context) -> dict[str, int]:
    """Confirm by the processed check, presume after the observation window, decide about unknown sends."""
    _leave_sources(context)
    returned_elsewhere.take_in(context.ledger, context.lease, context.now())
    with context.ledger.read() as connection:
        if not outcomes.any_under_observation(connection, context.name):
            return {"confirmed": 0, "presumed": 0, "unanswered": 0, "decided_unknown": 0}
    confirmed, unanswered = _confirm(context)
    redrive = cache(lambda: redrive_at_origins(context.broker, context.route))
    window = observation_window(context.ledger, context.name, context.route, lambda: _longest(context, redrive()))
    watched = _watched(context, lambda: redrive().holds if redrive().is_told else None)
    presumed = presuming.presume(
        context.ledger,
        context.lease,
        watched,
        window=window,
        sources=[source.queue for source in context.route.sources],
        now=context.now(),
    )
    return {
        "confirmed": confirmed,
        "presumed": presumed,
        "unanswered": unanswered,
        "decided_unknown": _decide_unknown(context, window, asked=unanswered == 0),
        "window_seconds": round(window.total_seconds()),
    } | ({} if context.route.processed_check is None else {"checked": 1})


def _leave_sources(context: Context) -> None:
    """What came back to a source that the route doesn't drain any more is not seen: its absence says nothing."""
    covers = registry.kind(context.route.broker).covers
    # As they are written: a queue that is not listed at this moment is one of many all the same.
    written = [source.queue for source in context.settings.route(context.name).sources]
    with context.ledger.read() as connection:
        known = sorted(expiry.of_sources(connection, context.name))
    left = [queue for queue in known if not any(covers(source, queue) for source in written)]
    for source, unseen in horizon.leave(context.ledger, context.lease, left, context.now()).items() if left else ():
        if unseen:
            context.progress(f"sends that may have come back to {source}, which is no source any more", unseen, None)


def _watched(context: Context, holds: Callable[[], Holds | None]) -> dict[str, Consumption]:
    """How messages are taken from each destination with sends under observation."""
    with context.ledger.read() as connection:
        found = presuming.watched(connection, context.name)
        told = {queue for queue in found if observations.tells_depth(connection, context.name, queue)}
    watched = {}
    for queue, since in found.items():
        able = context.broker.capabilities_for(queue)
        keeps = _keeps(context.broker, queue) if queue in told and context.now() - since > LEAST_KEPT else None
        watched[queue] = Consumption(able.in_order, holds() if able.leases_end else None, keeps)
    return watched


def _keeps(broker: Broker, queue: str) -> timedelta | None:
    """How long a destination keeps messages, where it says so and means no delay by it."""
    with suppress(BrokerError):  # not everybody may ask
        told = broker.describe(queue).retention
        return None if told is None or told < LEAST_KEPT else told
    return None


def observation_window(ledger: Ledger, name: str, route: Route, longest: Callable[[], timedelta]) -> timedelta:
    """How long after the destination worked past a send a return could still come.

    As configured; with ``auto`` the ``longest`` that the broker's own redrive can take: lease times max deliveries, as
    configured or as the broker says, else 30 seconds times 5. Where the 99th percentile of the route's times to return
    is longer, that. It never shortens the window: it is that of groups which failed before, and the next one may fail
    later, with its canary passed by then.
    """
    canary = route.canary
    if canary is not None and isinstance(canary.observe, timedelta):
        return canary.observe
    with ledger.read() as connection:
        seconds = outcomes.return_times(connection, name)
    return max(timedelta(seconds=seconds or 0), longest())


class Redrive(NamedTuple):
    """What a message that fails may go through before the broker dead-letters it, at whichever origin."""

    longest: timedelta  # lease times deliveries of the origin where that is the longest
    holds: Holds  # the longest lease of all, and the most deliveries
    is_told: bool = True  # False: the broker was away, and what it would have said may be longer


def redrive_at_origins(broker: Broker, route: Route) -> Redrive:
    """As configured for the route's sources, or as the broker says; else 30 seconds times 5."""
    found, is_told = list[Holds](), True
    for source in route.sources:
        if source.kind != "dead_letter":
            continue
        told = QueueInfo()
        if source.lease is None or source.max_deliveries is None:
            try:
                told = broker.describe(source.queue)
            except BrokerUnavailable:
                is_told = False
            except BrokerError:  # not everybody may ask
                pass
        found += _holds(source, told)
    if not found:
        return Redrive(timedelta(minutes=5), Holds(timedelta(minutes=1), 5))
    leases, deliveries = zip(*found, strict=True)
    return Redrive(max(lease * times for lease, times in found), Holds(max(leases), max(deliveries)), is_told)


def _longest(context: Context, redrive: Redrive) -> timedelta:
    """``redrive.longest``; where a broker that is away could not say it, no less than the window of the run before: an
    outage must not make it shorter."""
    if redrive.is_told:
        return redrive.longest
    with context.ledger.read() as connection:
        before = leases.run_before(connection, context.lease, "resolve")
    told = before.counts["resolve"].get("window_seconds", 0) if before else 0
    return max(redrive.longest, timedelta(seconds=told))


def _holds(source: Source, told: QueueInfo) -> list[Holds]:
    """Of each origin that dead-letters into ``source``."""
    lease, deliveries = source.lease, source.max_deliveries
    return [
        Holds(lease or one.lease or ASSUMED.lease, deliveries or one.max_deliveries or ASSUMED.deliveries)
        for one in told.origins or (Origin(told.origin_lease, told.max_deliveries),)
    ]


def _confirm(context: Context) -> tuple[int, int]:
    """Ask about what is under observation; (confirmed, left unanswered because the check failed)."""
    checker, confirmed, after = open_check(context), 0, -1
    if checker is None:
        return 0, 0
    asked = asked_about(context.now(), _answered_before(context))
    try:
        while True:
            with context.ledger.read() as connection:
                page = outcomes.under_observation(connection, context.name, after, PAGE, sent_within=asked)
            if not page:
                return confirmed, 0
            after = page[-1].message_id
            try:
                done = checker.processed(page)
            except CheckFailed as error:
                context.progress(str(error), 0, None)
                return confirmed, len(page)
            confirmed += outcomes.confirm(context.ledger, context.lease, sorted(done), context.now())
    finally:
        checker.close()


def _answered_before(context: Context) -> datetime | None:
    """When the last run began that resolved; None where it had no check, another configuration (the answers may have
    been wrong), or no answer."""
    with context.ledger.read() as connection:
        before = leases.run_before(connection, context.lease, "resolve")
    if before is None or not before.configured_alike:
        return None
    counts = before.counts["resolve"]
    return before.began if counts.get("checked") and not counts.get("unanswered") else None


def asked_about(now: datetime, before: datetime | None) -> list[tuple[datetime, datetime]] | None:
    """When those were sent that a run asks about, where the last one, begun ``before``, was answered; None: whenever.

    Where nobody tells a depth, a send that the check doesn't know stays under observation. It is asked about by each
    run for as long as anything is learnt by waiting, and then each time that its age has doubled.
    """
    if before is None:
        return None
    ages = [in_flight.KEPT * 2**times for times in range(DOUBLED)]
    young = (now - in_flight.KEPT, datetime.max.replace(tzinfo=UTC))
    return [young, *((min(before, now) - age, now - age) for age in ages)]


def _decide_unknown(context: Context, window: timedelta, *, asked: bool) -> int:
    """``on_unknown``, by :func:`rules_of_unknown`, destination by destination."""
    if context.route.processed_check is not None and not asked:
        return 0  # a failed check never turns into a guess
    with context.ledger.read() as connection:
        destinations = unknown_sends.destinations(connection, context.name)
    decided = 0
    for destination in destinations:
        now = context.now()
        for rule in rules_of_unknown(context.route, context.broker, destination, window, now):
            decided += unknown_sends.decide(context.ledger, context.lease, destination=destination, rule=rule, now=now)
    return decided


def rules_of_unknown(
    route: Route, broker: Broker, destination: str, window: timedelta, now: datetime
) -> list[unknown_sends.Rule]:
    """What the route does with sends to ``destination`` of unknown fate: resend what can't be doubled in silence, give
    the rest to people.

    While the broker still remembers the first try, so that it would drop a second, a resend is due at once. Later,
    where the broker doesn't dedupe, and where the route's queues were on another one then, it waits for the observation
    window: until then the first try may still come back or prove processed. A processed check can only vouch for
    messages that have a key: the others go to people.
    """
    remembers = trusted(broker.capabilities_for(destination).native_dedupe)
    rules, memory = list[unknown_sends.Rule](), None
    if remembers is not None and route.on_unknown != "review":
        memory = unknown_sends.Memory(now - remembers, route.system)
        rules.append(unknown_sends.Rule(Plan.REPEAT, now, memory=memory))
    resend = unknown_sends.Rule(Plan.RESEND, now - window, beyond=memory)
    people = unknown_sends.Rule(None, now, beyond=memory)
    if route.on_unknown == "resend":
        return [*rules, resend]
    if route.on_unknown == "auto" and vouches_for_unknown(route, broker.capabilities):
        return [*rules, replace(resend, keyed=True), replace(people, keyed=False)]
    return [*rules, people]
