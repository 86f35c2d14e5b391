"""# Apply what reviewers decided

People decide in SQL or on the review page, by setting `decision` in `escalated_messages`. Every few minutes this DAG applies
those decisions, each exactly once, and then sends what was released, so that nobody waits for the next scheduled
run of the route.

- `apply_decisions` goes through all routes. A decision that can't be applied is refused, with the reason in its row
  (`refusal`); a route that fails does not hold the others back, but the task fails at the end and says which.
- `deliver_released` runs once for each route that got something to send. It takes the route as any run does. Where a run of
  the route is under way or the route is paused it is skipped, and that run, or the next one, sends them instead.

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
        tasks.deliver_released.expand(route=tasks.apply_decisions())
    return {dag.dag_id: dag}
