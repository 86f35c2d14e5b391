"""# Apply what reviewers decided

People decide in SQL or on the review page, by setting `decision` in `escalated_messages`. Every few minutes this DAG applies
those decisions, each exactly once, and then sends what was released, so that nobody waits for the next scheduled
run of the route.

- `apply_decisions` goes through all routes. A decision that can't be applied is refused, with the reason in its row
  (`refusal`); a route that fails does not hold the others back, but the task fails at the end and says which. The
  decisions of a route that a run holds are applied by the next run of that route, or by this DAG the next time.
- `find_released` looks which routes have something due that was released, now or earlier.
- `deliver_released` runs once for each of them. It takes the route as any run does. Where a run of
  the route is under way or the route is paused it is skipped, and that run, or the next one, sends them instead.
  It sends for two minutes at most, so that decisions on other routes don't wait; what is left goes the next time.
- `done` fails if one of the others did.

By hand: `redrive review apply`.
"""  # noqa: E501  a list of Markdown reads better unwrapped

from airflow.sdk import DAG

from redrive.airflow import definitions, tasks


def dags() -> dict[str, DAG]:
    """The DAG ``redrive_review``."""
    with definitions.upkeep_dag(
        "redrive_review",
        schedule=definitions.REVIEW_SCHEDULE,
        description="Applies reviewers' decisions and sends what they released",
        page=__doc__,
    ) as dag:
        applied, found = tasks.apply_decisions(), tasks.find_released()
        sent = tasks.deliver_released.expand(route=found)
        applied >> found
        definitions.end([applied, sent])
    return {dag.dag_id: dag}
