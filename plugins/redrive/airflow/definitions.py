"""The DAGs without their tasks: ids, schedules, what every task does about failure, and their pages."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from redrive import settings as configuration
from redrive.airflow import compat, schedules
from redrive.airflow.failures import HOPELESS
from redrive.brokers import registry
from redrive.settings import ANY_BROKER, Route, Settings, format_duration

START: Final = datetime(2025, 1, 1, tzinfo=UTC)  # any fixed day in the past; nothing is caught up
REVIEW_SCHEDULE: Final = "*/5 * * * *"
AUDIT_SCHEDULE: Final = "17 * * * *"  # not at the full hour, when everybody's jobs start
TAG: Final = "redrive"
#: The tag of a route of which the configuration is wrong.
BROKEN: Final = "broken"

#: Asked once: a parse makes thousands of DAGs.
_NO_BACKFILL: Final = compat.no_backfill()


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


def mark_broken(dag: DAG, problem: str, *, page: str | None) -> DAG:
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


def end(tasks: Sequence[Any]) -> None:
    """The end of a DAG in which not each task waits for all before it to succeed: it fails with any of them, for
    Airflow goes by the last tasks alone."""
    list(tasks) >> EmptyOperator(task_id="done", trigger_rule="none_failed")


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
