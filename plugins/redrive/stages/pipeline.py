"""The stages of a run in order, as the DAG and the command line call them.

Each function opens what it needs, does its stage under the run's lease, notes its counts with the run, and returns
them. A run travels between tasks as :class:`Run`: names and numbers, no payloads, no receipts.
"""

import logging
import os
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from redrive import settings as configuration
from redrive.brokers.base import Broker
from redrive.connections import storage
from redrive.errors import BalanceBroken, QueuesFailed, SettingsError, UsageError
from redrive.garbage import fewer_collections
from redrive.ledger import configurations, leases, schema
from redrive.ledger.delivery import recovery
from redrive.ledger.drain import batches, horizon
from redrive.ledger.engine import Ledger, let_go_of_interrupted
from redrive.ledger.review import restoring
from redrive.ledger.selecting import Selection, refuse_unknown_groups
from redrive.ledger.transactions import RouteLease
from redrive.settings import Settings
from redrive.stages import adopt as adopt_stage
from redrive.stages import audit as audit_stage
from redrive.stages import classify as classify_stage
from redrive.stages import deliver as deliver_stage
from redrive.stages import drain as drain_stage
from redrive.stages import escalate as escalate_stage
from redrive.stages import failed_queues, give_up_batch, keys, notify, source_expansion
from redrive.stages import observe as observe_stage
from redrive.stages import plan as plan_stage
from redrive.stages import report as report_stage
from redrive.stages import resolve as resolve_stage
from redrive.stages import restore as restore_stage
from redrive.stages import review as review_stage
from redrive.stages.context import Context, Progress, Run, silent, utc_now

Clock = Callable[[], datetime]

log = logging.getLogger(__name__)


def begin(
    settings: Settings,
    route: str,
    *,
    trigger: str,
    holder: str,
    selection: Selection | None = None,
    lease: timedelta = timedelta(seconds=60),
    dry_run: bool = False,
    dag_run_id: str | None = None,
    even_if_paused: bool = False,
    clock: Clock = utc_now,
) -> Run:
    """Take the route for a new run and clean up after runs that died.

    Raises :class:`RouteBusy` or :class:`RoutePaused`; the text says who, and until when or why.
    """
    selection = selection or Selection()
    source_expansion.refuse_unknown_sources(selection, settings.route(route))
    now, system = clock(), settings.route(route).system
    # A task that is tried again must meet its own lease, not somebody else's: its run id is that of the DAG run.
    run_id = f"{route}.{dag_run_id}" if dag_run_id else f"{now:%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"
    if dry_run:
        return Run(route, run_id, 0, lease, now, selection, dry_run=True, system=system)
    given = configuration.written(settings, route)
    ledger = Ledger(settings.database)
    try:
        schema.check(ledger)
        refuse_unknown_groups(ledger, selection)
        held = leases.acquire(
            ledger,
            route,
            run_id,
            holder=holder,
            trigger=trigger,
            ttl=lease,
            now=now,
            selection=selection.to_json(),
            airflow_run_id=dag_run_id,
            even_if_paused=even_if_paused,
            system=system,
            configuration=given,
        )
        try:
            recover(settings, ledger, held, now)
        except BaseException:
            let_go_of_interrupted()
            leases.release(ledger, held, status="failed", now=clock())
            raise
    finally:
        ledger.close()
    name = given.hash if given else ""
    log.info(
        "run %s of route %s begins with configuration %s", run_id, route, configurations.shown(name) or "of no file"
    )
    return Run(route, run_id, held.fence, lease, now, selection, system=system, configuration=name)


def settings_of(run: Run, settings: Settings, env: Mapping[str, str] = os.environ) -> Settings:
    """What ``run`` began with, whatever the file says by now; ``settings`` are the file's and say where the ledger is.

    The environment's values and the connections are those of now. Raises :class:`SettingsError` when the ledger
    doesn't have it, or it can't be read with this environment.
    """
    if not run.configuration:
        return settings
    ledger = Ledger(settings.database)
    try:
        with ledger.read() as connection:
            text = configurations.text_of(connection, run.configuration)
        what = f"configuration {configurations.shown(run.configuration)}, with which run {run.run_id} began"
        if text is None:
            raise SettingsError(
                f"{what}: {ledger!r} doesn't have it. If `database` was changed in the middle of the run, change it"
                " back; the next run begins with what the file says then"
            )
    finally:
        ledger.close()
    try:
        began_with = configuration.parse(text, env=env, root=configuration.home(env))
    except SettingsError as error:
        raise SettingsError(f"{what}: {error}") from None
    return began_with.model_copy(update={"database": settings.database})


def recover(settings: Settings, ledger: Ledger, held: RouteLease, now: datetime) -> None:
    """What dead runs left: open batches are recorded or abandoned, open slices settled, half-known drains forgotten;
    people are asked about what a restore may have put back."""
    with ledger.read() as connection:
        left = batches.left_open(connection, route=held.route, before_fence=held.fence, opened_before=None)
        left += batches.abandoned(connection, held.route)
        mine = schema.ledger_id(connection)
    died = leases.predecessor_died(ledger, held)
    if left or died:
        staging = storage.staging(settings)
        audit_stage.close_left_open(ledger, staging, left, now)
        classify_stage.remove_leftovers(staging, held.route, mine)
    recovery.recover(ledger, held, now, tries=settings.route(held.route).deliver.tries)
    restoring.doubt(ledger, held, now)
    horizon.forget_pending(ledger, held, now)


def finish(settings: Settings, run: Run, status: str, clock: Clock = utc_now) -> None:
    """Give the route back; ``status`` is ``succeeded`` or ``failed``. Harmless when the run was replaced."""
    if run.dry_run:
        return
    if status != "succeeded":
        let_go_of_interrupted()
    ledger = Ledger(settings.database)
    try:
        leases.release(ledger, run.lease, status=status, now=clock())
    finally:
        ledger.close()


def failed_of(settings: Settings, run: Run) -> dict[str, str]:
    """By queue, why it failed in this run as far as its stages are done, also before it was begun anew."""
    ledger = Ledger(settings.database)
    try:
        return failed_queues.failed(leases.counts_of(ledger, run.run_id, also_before=True))
    finally:
        ledger.close()


def observe(settings: Settings, run: Run, *, tries_left: bool = False, **options: Any) -> dict[str, Any]:
    """Look at every queue of the route."""
    return _stage(
        settings, run, "observe", lambda context: observe_stage.observe(context, tries_left=tries_left), **options
    )


def drain(
    settings: Settings, run: Run, shard: int = 0, shards: int = 1, *, tries_left: bool = False, **options: Any
) -> dict[str, Any]:
    """Stage what lies in the sources, and settle it there. A source that fails is noted, for the report to tell.

    With ``tries_left``, one that may pass is raised instead: the caller tries again.
    """
    return _stage(
        settings,
        run,
        "drain",
        lambda context: drain_stage.drain(context, shard=shard, shards=shards, tries_left=tries_left),
        **options,
    )


def prepare_classification(settings: Settings, run: Run, **options: Any) -> str | None:
    """The manifest for Spark; None when nothing waits, and then no Spark is started."""
    with Context(settings, run, **options) as context:
        return classify_stage.prepare(context)


def refuse_earlier_question(settings: Settings, run: Run, *, loading: bool = False) -> None:
    """Raise :class:`UsageError` where ``run`` was begun anew and has not asked Spark since: what it asked before is
    gone. ``loading`` is no harm where nothing waits for it."""
    ledger = Ledger(settings.database)
    try:
        asked = classify_stage.PREPARE in leases.counts_of(ledger, run.run_id)
        with ledger.read() as connection:
            if asked or (loading and not batches.unloaded(connection, run.route)):
                return
    finally:
        ledger.close()
    raise UsageError(
        f"run {run.run_id} was begun anew, and what it had asked Spark before is gone: clear `prepare`, with all that"
        " comes after it. Nothing is lost; the next run goes on with it too"
    )


def load(settings: Settings, run: Run, **options: Any) -> dict[str, Any]:
    """Take Spark's output into the ledger."""
    return _stage(settings, run, "load", classify_stage.load, **options)


def resolve(settings: Settings, run: Run, **options: Any) -> dict[str, Any]:
    """Find out what became of past sends."""
    return _stage(settings, run, "resolve", _by_new_keys(resolve_stage.resolve), **options)


def plan(settings: Settings, run: Run, **options: Any) -> dict[str, Any]:
    """Carry out what people decided, then decide about the rest.

    Where one run follows the other at once, nobody else ever finds the route free to apply a decision.
    """

    def decided_then_planned(context: Context) -> dict[str, Any]:
        applied = review_stage.apply_decisions(context)
        if any(applied.values()):
            leases.note_counts(context.ledger, context.lease, "review", applied, context.now())
        return _by_new_keys(plan_stage.plan)(context)

    return _stage(settings, run, "plan", decided_then_planned, **options)


def deliver(
    settings: Settings,
    run: Run,
    shard: int = 0,
    shards: int = 1,
    *,
    tries_left: bool = False,
    at_most: timedelta | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Send what is due, under the budget, for no longer than ``at_most``."""
    return _stage(
        settings,
        run,
        "deliver",
        _by_new_keys(
            lambda context: deliver_stage.deliver(
                context, shard=shard, shards=shards, tries_left=tries_left, at_most=at_most
            )
        ),
        **options,
    )


def escalate(settings: Settings, run: Run, **options: Any) -> dict[str, Any]:
    """Hand over to people."""
    return _stage(settings, run, "escalate", _by_new_keys(escalate_stage.escalate), **options)


def report(settings: Settings, run: Run, **options: Any) -> dict[str, Any]:
    """The run's numbers; raises :class:`BalanceBroken` when the route doesn't add up, and :class:`QueuesFailed` when
    everything was done but for queues that failed."""
    with Context(settings, run, **options) as context:
        try:
            found = report_stage.report(context)
        except BalanceBroken as broken:
            notify.balance(context, str(broken))
            raise
        except QueuesFailed:
            notify.balance(context, None)
            raise
        notify.balance(context, None)
        return found


def restore(settings: Settings, run: Run, **options: Any) -> dict[str, Any]:
    """Put every unfinished message back where it came from."""
    return _stage(settings, run, "restore", restore_stage.restore, **options)


def adopt(
    settings: Settings, run: Run, *, of_ledgers: Collection[str] = (), restored: bool = False, **options: Any
) -> dict[str, Any]:
    """Take in the route's files that the ledger doesn't know."""
    return _stage(
        settings,
        run,
        "adopt",
        lambda context: adopt_stage.adopt(context, of_ledgers=of_ledgers, restored=restored),
        **options,
    )


def give_up(settings: Settings, run: Run, batch_id: int, *, by: str, reason: str, **options: Any) -> dict[str, Any]:
    """Give up a batch whose file was lost before its load."""
    return _stage(
        settings,
        run,
        "give_up",
        lambda context: give_up_batch.give_up(context, batch_id, by=by, reason=reason),
        **options,
    )


def review(settings: Settings, run: Run, **options: Any) -> dict[str, Any]:
    """Apply the route's decisions under a lease that is held already."""
    return _stage(settings, run, "review", review_stage.review, **options)


def apply_decisions(
    settings: Settings, route: str, *, holder: str = "redrive review", clock: Clock = utc_now
) -> dict[str, Any]:
    """Apply the route's decisions in a short run of its own."""
    run = begin(settings, route, trigger="review", holder=holder, clock=clock, even_if_paused=True)
    status = "failed"
    try:
        counts = review(settings, run, clock=clock)
        status = "succeeded"
        return counts
    finally:
        finish(settings, run, status, clock)


def audit(
    settings: Settings, route: str | None = None, *, now: datetime | None = None, progress: Progress = silent
) -> dict[str, Any]:
    """Prove that everything adds up; ``problems`` is empty then."""
    now = now or utc_now()
    found = audit_stage.audit(settings, route=route, now=now, progress=progress)
    notify.audited(settings, found.problems, route, now)
    return {
        "batches": found.batches,
        "copies": found.copies,
        "abandoned": found.abandoned,
        "problems": found.problems,
    }


def retention(settings: Settings, now: datetime | None = None, *, longer: Collection[str] = ()) -> dict[str, int]:
    """Forget what is finished and old, later on the routes named in ``longer``."""
    return audit_stage.tidy(settings, now=now or utc_now(), longer=longer)


def _by_new_keys(work: Callable[[Context], dict[str, Any]]) -> Callable[[Context], dict[str, Any]]:
    """``work`` that goes by keys of messages, those that the configuration names: it may be the first of its run."""

    def keyed(context: Context) -> dict[str, Any]:
        keys.renew(context)
        return work(context)

    return keyed


def _stage(
    settings: Settings,
    run: Run,
    name: str,
    work: Callable[[Context], dict[str, Any]],
    *,
    clock: Clock = utc_now,
    progress: Progress = silent,
    broker: Broker | None = None,
) -> dict[str, Any]:
    started = time.monotonic()
    with fewer_collections(), Context(settings, run, clock=clock, progress=progress, broker=broker) as context:
        counts = work(context)
        counts["seconds"] = round(time.monotonic() - started, 3)
        log.info("%s of route %s, run %s: %s", name, run.route, run.run_id, _said(counts))
        leases.note_counts(context.ledger, context.lease, name, counts, clock())
        notify.after(name, context, counts)
    return counts


def _said(counts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in counts.items())
