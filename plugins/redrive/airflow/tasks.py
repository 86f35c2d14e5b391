"""What the DAG files are made of: the DAGs' settings, and one small function per task.

A task rebuilds its run from XCom, reads the configuration that the run began with, calls one stage and returns that
stage's counts.
XCom carries counts and ids, never a message. The stages (and with them the ledger, the broker and their
clients) are imported inside the functions, because the scheduler imports this module at every parse.
"""

import functools
import inspect
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow.sdk import DAG, Param, get_current_context, task

from redrive import settings as configuration
from redrive.airflow import assets, compat, lineage, metrics, schedules, spark_operators
from redrive.airflow.compat import AirflowSkipException
from redrive.brokers import registry
from redrive.classification.causes import Cause
from redrive.errors import (
    BalanceBroken,
    IllegalMove,
    LeaseLost,
    PermissionRefused,
    QueueMissing,
    RedriveError,
    RouteBusy,
    RoutePaused,
    SchemaOutdated,
    SourcesFailed,
    UsageError,
)
from redrive.message import LARGEST_ID, MOST_MESSAGES
from redrive.settings import ANY_BROKER, Route, Settings, format_duration

if TYPE_CHECKING:
    from redrive.ledger.selecting import Selection
    from redrive.stages.context import Run

log = logging.getLogger(__name__)

#: A run whose tasks write nothing for this long has lost its route to whoever asks next.
LEASE: Final = timedelta(minutes=15)
#: How long a run waits for a route that is held.
PATIENCE: Final = timedelta(seconds=30)
START: Final = datetime(2025, 1, 1, tzinfo=UTC)  # any fixed day in the past; nothing is caught up
REVIEW_SCHEDULE: Final = "*/5 * * * *"
AUDIT_SCHEDULE: Final = "17 * * * *"  # not at the full hour, when everybody's jobs start
TAG: Final = "redrive"
#: The tag of a route of which the configuration is wrong.
BROKEN: Final = "broken"


class MessagesExpiring(RedriveError):
    """Messages are about to expire in a source that nobody drains; the text names it."""


class RunFailed(RedriveError):
    """Not everything of the run was done; the text names the tasks."""


#: What the same task can't do better the next time.
HOPELESS: Final = (
    UsageError,  # wrong configuration, connection or parameter
    SchemaOutdated,
    QueueMissing,
    PermissionRefused,
    IllegalMove,
    LeaseLost,  # another run has the route now
    RouteBusy,
    RoutePaused,
    BalanceBroken,
    SourcesFailed,
    MessagesExpiring,
    RunFailed,
    # Mistakes of ours, or a program that isn't installed: what is away for a while raises other errors.
    ArithmeticError,
    AssertionError,
    AttributeError,
    FileNotFoundError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)

#: Asked once: a parse makes thousands of DAGs.
_NO_BACKFILL: Final = compat.no_backfill()

Counts = dict[str, Any]


# --- the DAGs -------------------------------------------------------------------------------------------------


def load_settings() -> Settings:
    """The configuration, from the one file that a DAG file reads.

    A :class:`~redrive.errors.SettingsError` passes through, so that Airflow shows it as the file's import
    error, with the path of every wrong key; what is wrong with one route alone is on the page of its DAG.
    """
    return configuration.load()


def dag_id(route: str) -> str:
    """The id of the route's DAG."""
    return f"redrive_{route}"


def route_dag(settings: Settings, name: str, *, page: str | None) -> DAG:
    """A DAG ``redrive_<name>`` without its tasks and their parameters; ``page`` is what every route's page says."""
    route = settings.route(name)
    return DAG(
        dag_id=dag_id(name),
        dag_display_name=route.title or dag_id(name),
        description=f"Brings dead messages of {', '.join(s.queue for s in route.sources)} back",
        doc_md=f"{page or ''}\n{route_page(settings, name)}",
        schedule=schedules.of_route(name, route),
        start_date=START,
        catchup=False,
        max_active_runs=1,
        **_NO_BACKFILL,
        tags=[TAG, route.broker],
        dagrun_timeout=route.airflow.run_timeout,
        default_args=default_args() | ({"pool": route.airflow.pool} if route.airflow.pool else {}),
        **({"max_active_tasks": route.airflow.max_active_tasks} if route.airflow.max_active_tasks else {}),
    )


def say_broken(dag: DAG, problem: str, *, page: str | None) -> DAG:
    """``dag``, of a route of which something is wrong in the configuration, with ``problem`` on its ``page``.

    It has every task, so that a run goes on that began before, with the configuration of then. ``begin`` fails at once.
    """
    dag.tags = {*dag.tags, BROKEN} - {ANY_BROKER}
    dag.doc_md = f"## The configuration of this route is wrong\n\n```text\n{problem}\n```\n\n{page or ''}"
    return dag


def known_sources(route: Route) -> list[str]:
    """The names of its sources; none where one stands for several: the broker tells which, and a parse asks nobody."""
    many = registry.kind(route.broker).many if route.broker != ANY_BROKER else None
    names = [source.queue for source in route.sources]
    return [] if many is None or any(many(name) for name in names) else names


def upkeep_dag(dag_id: str, *, schedule: str, description: str, page: str | None) -> DAG:
    """An empty DAG that serves all routes."""
    return DAG(
        dag_id=dag_id,
        description=description,
        doc_md=page,
        schedule=schedule,
        start_date=START,
        catchup=False,
        max_active_runs=1,
        **_NO_BACKFILL,
        tags=[TAG],
        default_args=default_args(),
    )


def default_args() -> dict[str, Any]:
    """What every task does about failure: a few growing waits, but none for what can't get better."""
    return {
        "owner": "redrive",
        "retries": 3,
        "retry_delay": timedelta(seconds=20),
        "max_retry_delay": timedelta(minutes=5),
        **compat.retries(HOPELESS),
        "execution_timeout": timedelta(minutes=30),
        # No callback for failures: Airflow would send a run's whole `conf` to the dag-processor for it, which does not
        # survive what may be in there.
    }


#: RFC 3339, or only its date; Airflow's form sends the first, people type the second.
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?$"


def route_params(sources: Sequence[str] = ()) -> dict[str, Param]:
    """The parameters of a run of a route with these sources, as in ``redrive run --help``; all may be left out."""
    return {
        "limit": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            maximum=MOST_MESSAGES,
            title="At most",
            description="Drain at most this many messages. Empty: what the route's `drain.limit` says.",
        ),
        "dry_run": Param(
            False,
            type="boolean",
            title="Dry run",
            description="Change nothing: plan what is staged already and report what would be sent.",
        ),
        "causes": Param(
            [],
            type="array",
            items={"type": "string", "enum": [cause.value for cause in Cause]},
            uniqueItems=True,
            examples=[cause.value for cause in Cause],
            title="Causes",
            description="Redeliver only messages that failed for one of these. Empty: all.",
        ),
        "groups": Param(
            [],
            type="array",
            items={"type": "integer", "minimum": 1, "maximum": LARGEST_ID},
            uniqueItems=True,
            title="Groups",
            description="Redeliver only messages of these failure groups, e.g. `[7, 12]`. Empty: all.",
        ),
        "since": Param(
            None,
            type=["null", "string"],
            format="date-time",
            pattern=_TIME,
            title="Since",
            description="Only messages dead-lettered at or after this time (UTC unless it says otherwise).",
        ),
        "until": Param(
            None,
            type=["null", "string"],
            format="date-time",
            pattern=_TIME,
            title="Until",
            description="Only messages dead-lettered before this time (UTC unless it says otherwise).",
        ),
        "sources": Param(
            [],
            type="array",
            items={"type": "string", **({"enum": list(sources)} if sources else {})},
            uniqueItems=True,
            examples=list(sources),
            title="Source queues",
            description="Drain, plan and redeliver only what comes from these. Empty: all.",
        ),
        "attributes": Param(
            [],
            type="array",
            items={"type": "string", "pattern": "^[^=]+="},
            uniqueItems=True,
            title="Attributes",
            description="Redeliver only messages with these headers, each as NAME=VALUE, e.g. `tenant=acme`. "
            "Of one name any value will do; different names all have to match. The name `type()` is the message's type "
            "(NServiceBus, MassTransit, Subject). Empty: all.",
        ),
    }


def route_page(settings: Settings, name: str) -> str:
    """The facts of one route, for the end of its page."""
    route = settings.route(name)
    target = route.destination.queue if route.destination else "where each message came from"
    rows: list[tuple[str, object]] = [
        ("broker", f"`{route.broker}`, connection `{route.connection}`"),
        *(("drained", f"`{source.queue}` ({source.kind})") for source in route.sources),
        ("sent to", f"`{target}`" if route.destination else target),
        ("schedule", schedules.in_words(route)),
        ("straight back", f"at most {route.requeue_attempts} times"),
        ("with growing delay", f"at most {route.delay_attempts} times, then a person"),
        ("drained at once", f"{route.drain.limit:,} messages over {route.drain.shards} shards"),
        ("sent for at most", f"{format_duration(route.deliver.run_for)} a run"),
        ("Spark", f"`{settings.spark.runner}`"),
    ]
    lines = "\n".join(f"| {key} | {value} |" for key, value in rows)
    return (
        f"## Route `{name}`\n\n| | |\n|---|---|\n{lines}\n\n"
        f"On the command line: `redrive status {name}`, `redrive run {name} --dry-run`, `redrive pause {name}`.\n"
    )


# --- the tasks of a route -------------------------------------------------------------------------------------


def _begin(route: str) -> Counts:
    """Takes the route for this run, for 15 minutes at a time; nobody else works on it meanwhile.

    Where another run holds it for longer than half a minute, or it is paused, a scheduled run is skipped: the
    next one comes anyway. A run that somebody started by hand fails, and says who holds it and until when.
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
        if kind == "manual":
            raise
        raise AirflowSkipException(str(refusal)) from refusal
    return run.to_json()


def _observe(run: Counts) -> Counts:
    """Measures every queue of the route: how deep, how old, who consumes."""
    from redrive.stages import pipeline  # noqa: PLC0415

    return _stage(run, pipeline.observe)


def _drain(run: Counts, shard: int, shards: int) -> Counts:
    """Moves messages from the sources into staging: written, recorded, and only then settled."""
    from redrive.stages import pipeline  # noqa: PLC0415

    ti = get_current_context()["ti"]
    # In the last try a source that fails is noted: nothing that others staged waits for it.
    return _stage(run, pipeline.drain, shard=shard, shards=shards, tries_left=ti.try_number <= ti.max_tries)


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

        get_current_context()["ti"].xcom_push(key=spark_operators.CODE_KEY, value=list(submit.publish(settings)))
    return manifest


def _load() -> Counts:
    """Takes Spark's result into the ledger: messages, causes, groups, and what came back."""
    from redrive.stages import pipeline  # noqa: PLC0415

    # Pulled by name: Airflow allows a task that follows a setup task directly no rule but all_success.
    run = get_current_context()["ti"].xcom_pull(task_ids="begin")
    return _stage(run, pipeline.load)


def _resolve(run: Counts) -> Counts:
    """Finds out what became of earlier redeliveries: returned, confirmed, presumed, unknown."""
    from redrive.stages import pipeline  # noqa: PLC0415

    return _stage(run, pipeline.resolve)


def _plan(run: Counts) -> Counts:
    """Decides for every message: back at once, later, held, suppressed, or to a person.

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

    return _stage(run, pipeline.deliver, shard=shard, shards=shards)


def _escalate(run: Counts) -> Counts:
    """Hands what needs a person over to the review table."""
    from redrive.stages import pipeline  # noqa: PLC0415

    return _stage(run, pipeline.escalate)


def _report(run: Counts) -> Counts:
    """Sums up the run; its counts are the task's XCom and the event of the route's asset.

    Fails for sources that failed: all else was done by then.
    """
    from redrive.stages import pipeline  # noqa: PLC0415

    found = _stage(run, pipeline.report)
    if not run["dry_run"]:
        assets.tell(get_current_context(), run["route"], found)
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
    undone = not_done(found.get(dag_run.run_id, {}))
    pipeline.finish(configuration.load(), Run.from_json(run), "failed" if undone else "succeeded")
    if undone:
        raise RunFailed(f"the route is given back; not done: {', '.join(undone)}")
    return {"status": "succeeded"}


# --- the tasks of the DAGs that serve all routes --------------------------------------------------------------


def _apply_decisions() -> list[str]:
    """Applies what reviewers wrote into the review table, each decision exactly once.

    Its XCom is the names of the routes that got something to send. A route that fails does not hold the
    others back; the task fails for it at the end, and its retry finds the others done.
    """
    from redrive.stages import pipeline  # noqa: PLC0415

    settings = configuration.load()
    released: list[str] = []
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
            if counts["released"]:
                released.append(route)
    if failures:
        raise failures[0]
    return released


def _deliver_released(route: str) -> Counts:
    """Sends what is due on one route, as a short run of its own; skipped where another run holds the route.

    Nothing is drained here: with `order_by`, what died since the last run that drained every source to its end waits.
    """
    from redrive.stages import pipeline  # noqa: PLC0415

    settings = configuration.load()
    try:
        run = _take(route, trigger="review", dag_run_id=f"{get_current_context()['dag_run'].run_id} {route}")
    except (RouteBusy, RoutePaused) as refusal:
        raise AirflowSkipException(f"{refusal}; its run sends them instead") from refusal
    status: Literal["succeeded", "failed"] = "failed"
    try:
        counts = pipeline.deliver(settings, run, shard=0, shards=1)
        metrics.emit(route, "deliver", counts)
        metrics.emit(route, "escalate", pipeline.escalate(settings, run))
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
    metrics.gauge("audit.problems", len(counts["problems"]))
    if counts["problems"]:
        raise BalanceBroken("\n".join(counts["problems"]))
    return counts


def _retention() -> Counts:
    """Forgets finished messages older than the route's ``retention``, and removes their staging files."""
    from redrive.stages import pipeline  # noqa: PLC0415

    return pipeline.retention(configuration.load())


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


def selection(params: Mapping[str, Any]) -> "Selection":
    """The selection that the parameters of a run mean; :class:`UsageError` names a parameter that is wrong."""
    from redrive.ledger.selecting import Selection, parse_attributes  # noqa: PLC0415

    since, until = moment("since", params["since"]), moment("until", params["until"])
    if since and until and since >= until:
        raise UsageError(f"since: {params['since']} is not before until ({params['until']})")
    return Selection(
        limit=None if params["limit"] is None else int(params["limit"]),  # 1e3 is an integer to JSON Schema
        causes=tuple(params["causes"]),
        groups=tuple(params["groups"]),
        since=since,
        until=until,
        sources=tuple(params["sources"]),
        attributes=parse_attributes(params["attributes"]),
    )


def moment(name: str, text: str | None) -> datetime | None:
    """A time in ISO 8601 as an aware datetime; one without an offset is UTC."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{name}: {text!r} is not a time; write 2026-11-20T08:00:00Z or 2026-11-20") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def refuse_unknown(conf: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse parameters that do not exist; Airflow takes them, and a mistyped ``limit`` would drain it all."""
    names = sorted(known)
    if unknown := sorted(set(conf) - set(names)):
        raise UsageError(f"{', '.join(unknown)}: no such parameter; there are {', '.join(names)}")


def shards(count: int) -> list[dict[str, int]]:
    """The arguments of each mapped instance of a sharded task."""
    return [{"shard": shard, "shards": count} for shard in range(count)]


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
        time.sleep(2)


def _decided(settings: Settings) -> list[str]:
    """The routes about which somebody decided something; the others are not even taken."""
    from redrive.ledger.engine import Ledger  # noqa: PLC0415
    from redrive.ledger.review import escalations  # noqa: PLC0415

    ledger = Ledger(settings.database)
    try:
        with ledger.read() as connection:
            return [
                name
                for name, route in settings.routes.items()
                if escalations.decided(connection, name, approvals=route.approvals, after=-1, limit=1)
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


def _telling(function: Callable[..., object]) -> Callable[..., object]:
    """``function``, with one line in the task's log where it fails, for whoever looks there first."""

    @functools.wraps(function)
    def told(*args: Any, **kwargs: Any) -> object:
        try:
            return function(*args, **kwargs)
        except AirflowSkipException:
            raise
        except Exception as error:
            log.error(
                "%s failed: %s: %s. Nothing is lost: what was staged and not settled comes back, and the next run"
                " goes on where this one ended.",
                function.__name__.lstrip("_"),
                type(error).__name__,
                error,
            )
            told_so = compat.told_at_once(error, HOPELESS)
            if told_so is not error:
                raise told_so from error
            raise

    # Said once: Airflow asks for it several times a task, and a parse makes thousands of them.
    told.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return told


def _task(function: Callable[..., object], **options: Any) -> Any:
    """``function`` as a task of its own name; its docstring is the task's documentation."""
    return task(task_id=function.__name__.lstrip("_"), multiple_outputs=False, **options)(_telling(function))


#: Tried once more and not for minutes: the next run comes anyway, and one that can't begin at all is over soon.
begin = _task(_begin, retries=1, execution_timeout=timedelta(minutes=5))
observe = _task(_observe, execution_timeout=timedelta(minutes=10))
drain = _task(_drain, execution_timeout=timedelta(hours=6))
#: Its XCom decides whether ``classify`` runs; what comes after ``classify`` looks after itself.
prepare = task.short_circuit(task_id="prepare", multiple_outputs=False, ignore_downstream_trigger_rules=False)(
    _telling(_prepare)
)
classify = spark_operators.classify
#: Runs also where ``classify`` was skipped, but not where the whole run is.
load = _task(_load, trigger_rule="none_failed_min_one_success", execution_timeout=timedelta(hours=2))
resolve = _task(_resolve, execution_timeout=timedelta(hours=1))
plan = _task(_plan, execution_timeout=timedelta(hours=1))
deliver = _task(_deliver, execution_timeout=timedelta(hours=6))
escalate = _task(_escalate, execution_timeout=timedelta(hours=1))
report = _task(_report, execution_timeout=timedelta(minutes=10))
finish = _task(_finish, execution_timeout=timedelta(minutes=5))

apply_decisions = _task(_apply_decisions)
deliver_released = _task(_deliver_released, execution_timeout=timedelta(hours=6))
audit = _task(_audit, execution_timeout=timedelta(hours=2))
retention = _task(_retention, execution_timeout=timedelta(hours=2))
rescue = _task(_rescue, execution_timeout=timedelta(minutes=10))
