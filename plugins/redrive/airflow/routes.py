"""# Bring dead messages back

One run takes what failed through the whole loop. Each step is safe to repeat: a task that is retried, cleared
or killed loses nothing and sends nothing twice in silence.

| step | what happens | where to look when it fails |
|---|---|---|
| `begin` | takes the route for this run; a scheduled run is skipped while another run holds it or it is paused | `redrive status ROUTE` says who holds it and until when |
| `observe` | measures the queues | the connection, the queue's name, permissions: `redrive doctor ROUTE` |
| `drain` | messages go into staging, and are settled only after they are recorded | the broker; staging's free space |
| `prepare`, `classify` | Spark finds the cause of each failure; skipped when nothing new is staged | this task's log holds Spark's |
| `load` | causes, groups and what came back go into the ledger | the database |
| `resolve` | what became of earlier redeliveries | the database |
| `plan` | carries out what people decided; then who goes back at once, who later, who is held, who needs a person | `redrive run ROUTE --dry-run` shows the plan |
| `deliver` | sends in slices under rate, canary and breaker; a destination that fails keeps no other from its messages | the destination; a group that keeps failing is held |
| `escalate` | the rest goes to `escalated_messages` | `redrive review list` |
| `report` | the counts of the run, also in XCom; fails for a queue that failed, when all else is done | its error names the queue |
| `finish` | gives the route back, whatever happened, and fails if anything did | its error names the tasks; a lease that was not given back ends by itself after 15 minutes |

**Trigger by hand** with `dry_run` to see what would happen, or with `causes`, `groups`, `since`, `until`, `sources`,
`attributes`, `limit` to take a part. A run that is triggered by hand while the route is held or paused fails and says who holds it.
**Stop** with `redrive pause ROUTE`: pausing this DAG only ends its schedule, and `redrive_review` still sends what people
release. **The way out** is `redrive restore ROUTE`, which puts
every unfinished message back into its dead-letter queue.
"""  # noqa: E501  rows of a table can't be wrapped

import re
from collections.abc import Iterator

from airflow.sdk import DAG, chain, get_parsing_context

from redrive.airflow import assets, definitions, links, run_params, tasks
from redrive.garbage import fewer_collections
from redrive.settings import TAKEN, Settings


def dags() -> dict[str, DAG]:
    """A DAG ``redrive_<route>`` for each route of the configuration; that of a broken one fails as it begins.

    Where Airflow parses for one DAG, to run a task of it, that one alone.
    """
    with fewer_collections():  # every DAG is kept: it would go through ever more of them, and find nothing
        settings, only = definitions.load_settings(), get_parsing_context().dag_id
        return {dag.dag_id: dag for dag in _dags(settings, only)}


def _dags(settings: Settings, only: str | None) -> Iterator[DAG]:
    for name in settings.routes:
        if only in (None, definitions.dag_id(name)):
            yield _route_dag(settings, name)
    for name, broken in settings.broken.items():
        shown = re.sub(r"[^a-z0-9_]", "_", name.lower())[:40]  # the name may be what is wrong
        if shown in TAKEN:
            shown = f"route_{shown}"
        if shown not in settings.routes and only in (None, definitions.dag_id(shown)):
            remains = settings.model_copy(update={"routes": {shown: broken.remains}})
            yield definitions.mark_broken(_route_dag(remains, shown, begins=name), broken.problem, page=__doc__)


def _route_dag(settings: Settings, name: str, *, begins: str | None = None) -> DAG:
    """The DAG of the route ``name``; ``begins`` is what its runs take, where that is another."""
    route = settings.route(name)
    with definitions.route_dag(settings, name, page=__doc__) as dag:
        run = tasks.begin(begins or name)
        delivery = tasks.deliver.override(execution_timeout=tasks.time_to_deliver(route))
        drained = tasks.drain.partial(run=run).expand_kwargs(tasks.shards(route.drain.shards))
        loaded = tasks.load()
        chain(
            tasks.observe(run),
            drained,
            tasks.prepare(run),
            tasks.classify(settings),
            loaded,
            tasks.resolve(run),
            tasks.plan(run),
            delivery.partial(run=run).expand_kwargs(tasks.shards(route.deliver.shards)),
            links.to(tasks.escalate(run), links.review(name)),
            links.to(tasks.report.override(outlets=[assets.alias(name)])(run), links.route(name)),
            tasks.finish(run).as_teardown(setups=run, on_failure_fail_dagrun=True),
        )
        drained >> loaded  # so that a skipped classify does not skip the load
    # Only now: Airflow copies the parameters that a DAG has into each of its tasks, and checks those that it is made
    # with against their schemas, which takes longer than all the rest.
    dag.params.update(run_params.route_params(definitions.known_sources(route)))
    return dag
