"""Notify: tell people what they have to know, once per event, after what it tells of is in the ledger.

Nothing here fails a run: what can't be told is logged and tried again with the next run of the route.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any

from redrive.errors import NotificationFailed
from redrive.ledger.account import notifications
from redrive.ledger.account.balance import Problem
from redrive.ledger.account.notifications import Facts, Pending
from redrive.ledger.engine import Ledger
from redrive.notify import channels
from redrive.notify.channels import Event, NeedsAirflow
from redrive.redaction import redactor
from redrive.settings import Notify, Settings, format_duration
from redrive.stages import rescue
from redrive.stages.context import Context
from redrive.stages.rescue import Risk

log = logging.getLogger(__name__)

#: More events of one kind that come together are one message.
SINGLE = 3
#: Seconds after which the rest waits for the next time; a run must not wait for a webhook.
PATIENCE = 30.0


def after(stage: str, context: Context, counts: Mapping[str, Any]) -> None:
    """What may have changed with this stage of a run, which returned ``counts``; sends what waits."""
    if stage == "observe":
        _look(
            _of_route(context),
            RouteNotifications.paused,
            RouteNotifications.groups,
            RouteNotifications.stuck,
            partial(RouteNotifications.late, found=any(counts.get(one) for one in ("late", "aged", "deep"))),
        )
    elif looks := _AFTER.get(stage):
        _look(_of_route(context), *looks)


def balance(context: Context, problem: str | None) -> None:
    """The route adds up, or does not, as its run found."""
    _look(_of_route(context), lambda one: one.balance("run", [problem] if problem else []))


def audited(settings: Settings, problems: Sequence[Problem], route: str | None, now: datetime) -> None:
    """What an audit of one route, or of all, found."""
    names = settings.routes if route is None else {route} & set(settings.routes)
    with _of_routes(settings, names, now) as routes:
        for each in routes:
            own = [problem for problem in problems if problem.route in (each.name, None)]
            _look(each, partial(RouteNotifications.balance, who="audit", problems=own))


def expiring(settings: Settings, risks: Sequence[Risk], now: datetime) -> None:
    """Which sources keep messages that may expire, of all routes."""
    with _of_routes(settings, settings.routes, now) as routes:
        for each in routes:
            _look(each, partial(RouteNotifications.expiring, risks=[risk for risk in risks if risk.route == each.name]))


def paused(settings: Settings, route: str, now: datetime) -> None:
    """Somebody paused the route, or let it go on."""
    with _of_routes(settings, [route], now) as routes:
        for each in routes:
            _look(each, RouteNotifications.paused)


def watched(settings: Settings, route: str, now: datetime) -> None:
    """Somebody looked at the consumers of the route's destinations."""
    with _of_routes(settings, [route], now) as routes:
        for each in routes:
            _look(each, RouteNotifications.stuck)


class RouteNotifications:
    """The notifications of one route: looks, raises and resolves them, and sends what waits."""

    def __init__(self, settings: Settings, ledger: Ledger, name: str, now: datetime) -> None:
        self.settings, self.ledger, self.name, self.now = settings, ledger, name, now
        self.route = settings.route(name)

    def groups(self) -> None:
        """Groups that wait for a decision, or for a second person to approve one."""
        with self.ledger.read() as connection:
            found = notifications.groups(connection, self.name)
            if self.route.approvals > 1:
                found |= notifications.not_approved(connection, self.name)
        self._raise("new_group", found)

    def paused(self) -> None:
        """Whether the route is paused."""
        with self.ledger.read() as connection:
            found = notifications.pause(connection, self.name)
        self._raise("route_paused", found)

    def stuck(self) -> None:
        """Whether consumers of a destination hold messages and get nowhere."""
        with self.ledger.read() as connection:
            found = notifications.stuck(connection, self.name, now=self.now)
        self._raise("consumers_stuck", found)

    def late(self, *, found: bool) -> None:
        """Whether messages are older than the route's SLO, ours without an outcome and what a destination holds, or a
        queue holds more than the route allows; where somebody ``found`` it who looked just before, or it was told
        before. Only what the ledger saw last ends it: of a queue that could not be looked at nothing new is known."""
        with self.ledger.read() as connection:
            if not found and not notifications.is_raised(connection, self.name, "slo_breach"):
                return
            count, oldest = notifications.late(connection, self.name, enqueued_before=self.now - self.route.slo)
            aged = notifications.aged(connection, self.name, seconds=self.route.slo.total_seconds())
            most = self.route.most_messages
            deep = {} if most is None else notifications.deep(connection, self.name, most=most)
        slo = format_duration(self.route.slo)
        present: dict[str, Facts] = {"": {"messages": count, "oldest": oldest, "slo": slo}} if count else {}
        self._raise("slo_breach", present | {queue: {**facts, "slo": slo} for queue, facts in aged.items()} | deep)

    def expiring(self, risks: Iterable[Risk] | None = None) -> None:
        """Whether messages may expire in a source."""
        found = rescue.at_risk(self.settings, now=self.now, only=self.name) if risks is None else risks
        self._raise(
            "messages_expiring",
            {
                risk.queue: {
                    "queue": risk.queue,
                    "hours": int(risk.unseen.total_seconds() // 3600),
                    "retention": format_duration(risk.retention),
                }
                for risk in found
            },
        )

    def balance(self, who: str, problems: Sequence[str]) -> None:
        """Whether the route adds up, as ``who`` found; what one found the other doesn't resolve, nor tell again."""
        facts: Facts = {"problems": len(problems), "first": problems[0][:300] if problems else ""}
        self._raise("balance_broken", {who: facts} if problems else {}, of=[who], once=True)

    def _raise(
        self, event: str, present: dict[str, Facts], of: Iterable[str] | None = None, *, once: bool = False
    ) -> None:
        # Each once: several entries of one target are one, which wants what any of them does.
        targets = list(dict.fromkeys(target.name for target in self.route.notify if target.wants(event)))
        notifications.reconcile(self.ledger, self.name, event, present, targets=targets, now=self.now, of=of, once=once)

    def send(self) -> None:
        """Tell whom there is to tell, within half a minute."""
        known = {target.name: target for target in self.route.notify}
        started = time.monotonic()
        with self.ledger.read() as connection:
            waiting = notifications.due(connection, self.name, self.now)
        for some in _together(waiting):
            if time.monotonic() - started > PATIENCE:
                log.warning("route %s: the rest of its notifications waits for the next time", self.name)
                return
            mine = notifications.claim(self.ledger, some, self.now)
            if mine:
                self._tell(mine, known.get(mine[0].target))

    def _tell(self, mine: Sequence[Pending], target: Notify | None) -> None:
        if target is None:
            notifications.failed(self.ledger, mine, "the route no longer names it", self.now, for_good=True)
            return
        try:
            channels.send(channels.notification([_event(self.settings, self.name, one) for one in mine]), target)
        except NeedsAirflow:
            notifications.needs_airflow(self.ledger, mine, self.now)
        except NotificationFailed as error:
            notifications.failed(self.ledger, mine, str(error), self.now)
            log.warning("route %s: %s was not told of %s: %s", self.name, target.name, mine[0].event, error)
        except Exception as error:  # whatever this one target makes of it, the others are told
            notifications.failed(self.ledger, mine, f"{target.name}: {type(error).__name__}", self.now)
            log.warning("route %s: %s was not told of %s", self.name, target.name, mine[0].event, exc_info=True)
        else:
            notifications.sent(self.ledger, mine, self.now)


def _event(settings: Settings, name: str, one: Pending) -> Event:
    mask = redactor(settings.route(name))  # what people write as a reason may hold anything
    facts = {key: mask(value) if isinstance(value, str) else value for key, value in one.facts.items()}
    link = ""
    if settings.page is not None:
        place = f"groups/{name}/{one.facts['group_id']}" if one.event == "new_group" else f"routes/{name}"
        link = f"{settings.page}/plugin/redrive/redrive/{place}"
    over_at = one.resolved_at.isoformat(timespec="seconds") if one.resolved_at else ""
    return Event(one.event_id, one.event, name, one.subject, one.raised_at.isoformat(), facts, link, over_at)


def _together(waiting: Iterable[Pending]) -> Iterator[list[Pending]]:
    """What goes out as one message: single events, but many of one kind to one target together."""
    kinds: dict[tuple[str, str], list[Pending]] = {}
    for one in waiting:
        kinds.setdefault((one.target, one.event), []).append(one)
    for some in kinds.values():
        if len(some) > SINGLE:
            yield some
        else:
            yield from ([one] for one in some)


def _of_route(context: Context) -> RouteNotifications:
    return RouteNotifications(context.settings, context.ledger, context.name, context.now())


@contextmanager
def _of_routes(settings: Settings, routes: Iterable[str], now: datetime) -> Iterator[Iterator[RouteNotifications]]:
    ledger = Ledger(settings.database)
    try:
        yield (RouteNotifications(settings, ledger, name, now) for name in routes)
    finally:
        ledger.close()


def _look(each: RouteNotifications, *looks: Callable[[RouteNotifications], None]) -> None:
    try:
        for look in looks:
            look(each)
        each.send()
    except Exception:  # whatever it is, the run goes on, and the next one looks again
        log.warning("route %s: its notifications wait for the next time", each.name, exc_info=True)


_AFTER: Mapping[str, Sequence[Callable[[RouteNotifications], None]]] = {
    "load": (RouteNotifications.expiring,),
    "plan": (RouteNotifications.paused,),
    "escalate": (RouteNotifications.groups,),
    "review": (RouteNotifications.groups,),
}
