"""What the DAG files are made of: one small function per task.

A task rebuilds its run from XCom, reads the configuration that the run began with, calls one stage and returns that
stage's counts.
XCom carries counts and ids, never a message. The stages (and with them the ledger, the broker and their
clients) are imported inside the functions, because the scheduler imports this module at every parse.
"""

import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow.sdk import get_current_context, task

from redrive import settings as configuration
from redrive.airflow import assets, function_operator, lineage, metrics, spark_operators
from redrive.airflow.compat import AirflowSkipException
from redrive.airflow.failures import MessagesExpiring, RunFailed, telling
from redrive.airflow.run_params import refuse_unknown, route_params, selection
from redrive.errors import (
    BalanceBroken,
    RouteBusy,
    RoutePaused,
)
from redrive.settings import Route, Settings

if TYPE_CHECKING:
    from redrive.stages.context import Run

log = logging.getLogger(__name__)

#: A run whose tasks write nothing for this long has lost its route to whoever asks next.
LEASE: Final = timedelta(minutes=15)
#: How long a run waits for a route that is held.
PATIENCE: Final = timedelta(seconds=30)
#: And how long between two tries.
BETWEEN_TRIES: Final = timedelta(seconds=2)
#: Kinds of runs that come again by themselves, with the same question.
_COMES_AGAIN: Final = frozenset({"scheduled", "asset_triggered"})
#: In the XCom of the task ``audit``: the routes about which it complained, "" for what is of no route.
COMPLAINED: Final = "complained"
#: For so many routes at once what was released is sent; Airflow maps a task over 1,024 at most.
MOST_ROUTES: Final = 1000
#: For so long at most what was released on one route is sent: meanwhile no decision on any other is applied.
RELEASED_FOR: Final = timedelta(minutes=2)
Counts = dict[str, Any]


# --- the tasks of a route -------------------------------------------------------------------------------------


def _begin(route: str) -> Counts:
    """Takes the route for this run, for 15 minutes at a time; nobody else works on it meanwhile.

    Where another run holds it for longer than half a minute, or it is paused, a run of the schedule is skipped: the
    next one comes anyway. One that a person or another DAG started fails, and says who holds it and until when.
    """
    context = get_current_context()
    dag_run = context["dag_run"]
    refuse_unknown(dag_run.conf or {}, route_params())
    kind = str(getattr(dag_run.run_type, "value", dag_run.run_type))
    try:
        run = _take(
            route,
            trigger=kind,
            selection=selection(context["params"]),
            dry_run=bool(context["params"]["dry_run"]),
            dag_run_id=dag_run.run_id,
        )
    except (RouteBusy, RoutePaused) as refusal:
        if kind in _COMES_AGAIN:
            raise AirflowSkipException(str(refusal)) from refusal
        raise
    return run.to_json()


def _observe(run: Counts) -> Counts:
    """Measures every queue of the route: how deep, how old, who consumes."""
    from redrive.stages import pipeline  # noqa: PLC0415

    return _stage(run, pipeline.observe, tries_left=_tries_left())


def _drain(run: Counts, shard: int, shards: int) -> Counts:
    """Moves messages from the sources into staging: written, recorded, and only then settled."""
    from redrive.stages import pipeline  # noqa: PLC0415

    # In the last try a source that fails is noted: nothing that others staged waits for it.
    return _stage(run, pipeline.drain, shard=shard, shards=shards, tries_left=_tries_left())


def _prepare(run: Counts) -> str | None:
    """Writes down what Spark has to classify. Nothing new: ``classify`` is skipped, no Spark starts."""
    from redrive.stages import pipeline  # noqa: PLC0415
    from redrive.stages.context import Run  # noqa: PLC0415

    if run["dry_run"]:
        return None
    current = Run.from_json(run)
    settings = pipeline.settings_of(current, configuration.load())
    manifest = pipeline.prepare_classification(settings, current)
    if manifest is not None and settings.spark.runner in spark_operators.CLOUD_RUNNERS:
        from redrive.spark import submit  # noqa: PLC0415

        ti = get_current_context()["ti"]
        ti.xcom_push(key=spark_operators.CODE_KEY, value=list(submit.publish(settings)))
        ti.xcom_push(key=spark_operators.REQUEST_KEY, value=submit.request_name(current.route, manifest))
    return manifest


def _load() -> Counts:
    """Takes Spark's result into the ledger: messages, causes, groups, and what came back."""
    from redrive.stages import pipeline  # noqa: PLC0415
    from redrive.stages.context import Run  # noqa: PLC0415

    # Pulled by name: Airflow allows a task that follows a setup task directly no rule but all_success.
    ti = get_current_context()["ti"]
    run = ti.xcom_pull(task_ids="begin")
    if ti.xcom_pull(task_ids="prepare"):  # Airflow clears `begin` with any task, and `prepare` with none but itself
        pipeline.refuse_earlier_question(configuration.load(), Run.from_json(run), loading=True)
    return _stage(run, pipeline.load)


def _resolve(run: Counts) -> Counts:
    """Finds out what became of earlier redeliveries: returned, confirmed, presumed, unknown."""
    from redrive.stages import pipeline  # noqa: PLC0415

    return _stage(run, pipeline.resolve)


def _plan(run: Counts) -> Counts:
    """Carries out what people decided, and decides for every other message: back at once, later, held, or to a person.

    In a dry run: what would be decided about what is loaded already, row by row in this task's log.
    """
    from redrive.stages import pipeline  # noqa: PLC0415
    from redrive.stages.context import Run  # noqa: PLC0415

    if run["dry_run"]:
        return _preview(Run.from_json(run))
    return _stage(run, pipeline.plan)


def _deliver(run: Counts, shard: int, shards: int) -> Counts:
    """Sends what is due, slice by slice: claim, send, wait for the broker's word, mark."""
    from redrive.stages import pipeline  # noqa: PLC0415

    # In the last try a destination that fails is noted: nobody else's messages, and no person, waits for it.
    return _stage(run, pipeline.deliver, shard=shard, shards=shards, tries_left=_tries_left())


def _escalate(run: Counts) -> Counts:
    """Hands what needs a person over to the review table."""
    from redrive.stages import pipeline  # noqa: PLC0415

    return _stage(run, pipeline.escalate)


def _report(run: Counts) -> Counts:
    """Sums up the run; its counts are the task's XCom and the event of the route's asset.

    Fails for queues that failed: all else was done by then.
    """
    from redrive.stages import pipeline  # noqa: PLC0415

    found = _stage(run, pipeline.report)
    if not run["dry_run"]:
        assets.emit(get_current_context(), run["route"], found)
    return found


def _finish(run: Counts) -> Counts:
    """Closes the run and gives the route back, also after a failure; fails if anything of the run did.

    So Airflow and the ledger say the same, also of a run of which a task was cleared or that somebody marked failed.
    """
    from redrive.stages import pipeline  # noqa: PLC0415
    from redrive.stages.context import Run  # noqa: PLC0415

    context = get_current_context()
    dag_run = context["dag_run"]
    # What each task is now, not what it left behind: an earlier try of the run may have left a report.
    found = context["ti"].get_task_states(dag_id=dag_run.dag_id, run_ids=[dag_run.run_id])
    undone, settings, current = not_done(found.get(dag_run.run_id, {})), configuration.load(), Run.from_json(run)
    # A queue that failed is noted by its task, and only the report fails for it: which may be of an earlier time.
    undone = undone or [f"queue {queue} ({why})" for queue, why in pipeline.failed_of(settings, current).items()]
    pipeline.finish(settings, current, "failed" if undone else "succeeded")
    if undone:
        raise RunFailed(f"the route is given back; not done: {', '.join(undone)}")
    return {"status": "succeeded"}


# --- the tasks of the DAGs that serve all routes --------------------------------------------------------------


def _apply_decisions() -> Counts:
    """Applies what reviewers wrote into the review table, each decision exactly once.

    A route that fails does not hold the others back; the task fails for it at the end, and its retry finds the others
    done.
    """
    from redrive.stages import pipeline  # noqa: PLC0415

    settings = configuration.load()
    applied: Counts = {}
    failures: list[Exception] = []
    for route in _decided(settings):
        try:
            counts = pipeline.apply_decisions(settings, route)
        except (RouteBusy, RoutePaused) as refusal:
            log.info("%s; its decisions wait for the next time", refusal)
        except Exception as failure:
            log.exception("route %s", route)
            failures.append(failure)
        else:
            log.info("route %s: %s", route, counts)
            applied[route] = counts
    if failures:
        raise failures[0]
    return applied


def _find_released() -> list[str]:
    """The routes that have something due that people released, whoever applied it; also where a route has failed."""
    from redrive.ledger.engine import Ledger  # noqa: PLC0415
    from redrive.ledger.review import applying  # noqa: PLC0415

    settings = configuration.load()
    ledger = Ledger(settings.database)
    try:
        with ledger.read() as connection:
            found = [name for name in applying.to_send(connection, datetime.now(UTC)) if name in settings.routes]
    finally:
        ledger.close()
    if len(found) > MOST_ROUTES:
        log.warning("%d routes have something to send: these %d now, the others next time", len(found), MOST_ROUTES)
    return found[:MOST_ROUTES]


def _deliver_released(route: str) -> Counts:
    """Sends what is due on one route, as a short run of its own; skipped where another run holds the route.

    What two minutes are too short for is sent by the next run: people's decisions on other routes wait for this one.
    Nothing is drained here: with `order_by`, what died since the last run that drained every source to its end waits.
    Fails for destinations that failed, when all else is done.
    """
    from redrive.stages import failed_queues, pipeline  # noqa: PLC0415

    settings = configuration.load()
    try:
        run = _take(route, trigger="review", dag_run_id=f"{get_current_context()['dag_run'].run_id} {route}")
    except (RouteBusy, RoutePaused) as refusal:
        raise AirflowSkipException(f"{refusal}; its run sends them instead") from refusal
    status: Literal["succeeded", "failed"] = "failed"
    try:
        counts = pipeline.deliver(settings, run, shard=0, shards=1, at_most=RELEASED_FOR)
        metrics.emit(route, "deliver", counts)
        metrics.emit(route, "escalate", pipeline.escalate(settings, run))
        failed_queues.refuse(counts)
        status = "succeeded"
    finally:
        pipeline.finish(settings, run, status)
    return {"route": route, **counts}


def _audit() -> Counts:
    """Proves that copies, messages and states add up, against the ledger and against staging itself.

    Fails with every problem it found where a promise is broken.
    """
    from redrive.stages import pipeline  # noqa: PLC0415

    counts = pipeline.audit(configuration.load())
    get_current_context()["ti"].xcom_push(key=COMPLAINED, value=sorted({one.route or "" for one in counts["problems"]}))
    metrics.gauge("audit.problems", len(counts["problems"]))
    if counts["problems"]:
        raise BalanceBroken("\n".join(counts["problems"]))
    return counts


def _retention() -> Counts:
    """Forgets finished messages older than the route's ``retention``, and removes their staging files.

    A route about which the audit complained keeps its own twice as long; all do where it had no end, or what it found
    is of no route.
    """
    from redrive.stages import pipeline  # noqa: PLC0415

    settings = configuration.load()
    complained = get_current_context()["ti"].xcom_pull(task_ids="audit", key=COMPLAINED)
    of_all = complained is None or "" in complained
    return pipeline.retention(settings, longer=list(settings.routes) if of_all else complained)


def _rescue() -> Counts:
    """Looks for sources in which messages may be as old as half of the time that they are kept; fails if there are."""
    from redrive.stages import notify, rescue  # noqa: PLC0415

    settings, now = configuration.load(), datetime.now(UTC)
    risks = rescue.at_risk(settings, now=now)
    notify.expiring(settings, risks, now)
    metrics.gauge("sources_at_risk", len(risks))
    if risks:
        raise MessagesExpiring("\n".join(str(risk) for risk in risks))
    return {"at_risk": 0}


# --- parts of tasks -------------------------------------------------------------------------------------------


def shards(count: int) -> list[dict[str, int]]:
    """The arguments of each mapped instance of a sharded task."""
    return [{"shard": shard, "shards": count} for shard in range(count)]


def _tries_left() -> bool:
    """Whether Airflow would try this task again."""
    ti = get_current_context()["ti"]
    return bool(ti.try_number <= ti.max_tries)


def not_done(states: Mapping[str, Any]) -> list[str]:
    """The tasks for which a run has failed, each with its state: those that failed, and the report where it was not
    made, because the run was stopped before."""
    said = {task: str(getattr(state, "value", state)) for task, state in states.items()}
    undone = [f"{task} ({state})" for task, state in sorted(said.items()) if state in ("failed", "upstream_failed")]
    if not undone and said.get("report") != "success":
        undone.append(f"report ({said.get('report', 'none')})")
    return undone


def _take(route: str, **options: Any) -> "Run":
    """Begin a run; a route that is busy is asked again for half a minute.

    Applying a decision holds a route for a blink, and that must not cost a whole run.
    """
    from redrive.stages import pipeline  # noqa: PLC0415

    settings = configuration.load()
    dag_run = get_current_context()["dag_run"]
    deadline = time.monotonic() + PATIENCE.total_seconds()
    while True:
        try:
            return pipeline.begin(
                settings, route, holder=f"airflow {dag_run.dag_id} {dag_run.run_id}", lease=LEASE, **options
            )
        except RouteBusy:
            if time.monotonic() >= deadline:
                raise
        time.sleep(BETWEEN_TRIES.total_seconds())


def _decided(settings: Settings) -> list[str]:
    """The routes about which somebody decided something; the others are not even taken."""
    from redrive.ledger.engine import Ledger  # noqa: PLC0415
    from redrive.ledger.review import applying  # noqa: PLC0415

    ledger = Ledger(settings.database)
    try:
        with ledger.read() as connection:
            for name, count in applying.of_routes_not_configured(connection, settings.routes).items():
                log.warning("%s", applying.why_nobody_applies(name, count))
            return [
                name
                for name, route in settings.routes.items()
                if applying.decided(connection, name, approvals=route.approvals, after=-1, limit=1)
            ]
    finally:
        ledger.close()


def _stage(run: Counts, stage: Callable[..., Counts], **options: Any) -> Counts:
    """One stage of a run, with what the run began with. A dry run changes nothing, so it only passes through."""
    from redrive.stages import pipeline  # noqa: PLC0415
    from redrive.stages.context import Run  # noqa: PLC0415

    if run["dry_run"]:
        return {"dry_run": True}
    current = Run.from_json(run)
    settings = pipeline.settings_of(current, configuration.load())
    counts = stage(settings, current, **options)
    metrics.emit(current.route, stage.__name__, counts)
    lineage.emit(settings, current.route, stage.__name__, counts)
    return counts


def _preview(run: "Run") -> Counts:
    """What the run would do, in full in the log and in numbers as the answer."""
    from redrive.stages import peek, preview  # noqa: PLC0415

    settings = configuration.load()
    found = preview.preview(settings, run.route, run.selection, now=datetime.now(UTC))
    verdicts: dict[str, int] = {}
    for row in found["plan"]:
        log.info("%(messages)s messages of group %(group)s (%(cause)s): %(verdict)s, %(why)s", row)
        verdicts[row["verdict"]] = verdicts.get(row["verdict"], 0) + row["messages"]
    looked = peek.peek(settings, run.route, selection=run.selection) if peek.can_peek(settings, run.route) else []
    for row in looked:
        log.info("%(messages)s of type %(type)s in %(source)s, reason %(reason)s: %(cause)s, %(template)s", row)
    for text, what in found["not_seen"].items():
        log.info("not seen: %s: %s", text.replace("_", " "), what)
    return {
        "dry_run": True,
        "would": verdicts,
        **({"peeked": sum(row["messages"] for row in looked)} if looked else {}),
        "due_now": sum(lane["messages"] for lane in found["due_now"]),
        "staged_but_not_classified": found["not_seen"]["staged_but_not_classified"],
    }


def time_to_deliver(route: Route) -> timedelta:
    """When Airflow ends a delivery that does not end by itself: not before the route lets it."""
    return max(timedelta(hours=6), route.deliver.run_for + timedelta(hours=1))


def _task(function: Callable[..., object], **options: Any) -> Any:
    """``function`` as a task of its own name; its docstring is the task's documentation."""
    name = function.__name__.lstrip("_")
    return function_operator.task(telling(function), task_id=name, multiple_outputs=False, **options)


#: Tried once more and not for minutes: the next run comes anyway, and one that can't begin at all is over soon.
begin = _task(_begin, retries=1, execution_timeout=timedelta(minutes=5))
observe = _task(_observe, execution_timeout=timedelta(minutes=10))
drain = _task(_drain, execution_timeout=timedelta(hours=6))
#: Its XCom decides whether ``classify`` runs; what comes after ``classify`` looks after itself.
prepare = task.short_circuit(task_id="prepare", multiple_outputs=False, ignore_downstream_trigger_rules=False)(
    telling(_prepare)
)
classify = spark_operators.classify
#: Runs also where ``classify`` was skipped, but not where the whole run is.
load = _task(_load, trigger_rule="none_failed_min_one_success", execution_timeout=timedelta(hours=2))
resolve = _task(_resolve, execution_timeout=timedelta(hours=1))
plan = _task(_plan, execution_timeout=timedelta(hours=1))
deliver = _task(_deliver)
escalate = _task(_escalate, execution_timeout=timedelta(hours=1))
report = _task(_report, execution_timeout=timedelta(minutes=10))
finish = _task(_finish, execution_timeout=timedelta(minutes=5))

#: Tried once more and not for minutes: it comes again in five.
apply_decisions = _task(_apply_decisions, retries=1)
#: Also where that failed for one route: the others' messages don't wait for it.
find_released = _task(_find_released, trigger_rule="all_done", execution_timeout=timedelta(minutes=5))
#: As that, and with no more time than a broker that hangs should keep decisions waiting.
deliver_released = _task(_deliver_released, retries=1)
audit = _task(_audit, execution_timeout=timedelta(hours=2))
retention = _task(_retention, trigger_rule="all_done", execution_timeout=timedelta(hours=2))
rescue = _task(_rescue, execution_timeout=timedelta(minutes=10))
