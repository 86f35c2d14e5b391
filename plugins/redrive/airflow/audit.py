"""# Keep the promises

`audit` proves, for every route, that copies, messages and states add up, in the ledger and against the staging files
themselves. It **fails where a promise is broken** and says where and by how much: that is the one alert to have.
It also closes batches that a killed drain left open. `retention` then forgets what finished longer ago than each
route's `retention`, and twice as long ago where the audit complained, so that what explains it is still there.
`rescue` fails while a source has not been emptied for half of the time that it keeps messages, because then they may
expire unread: a paused or failing route, or one that is drained more slowly than it fills.
`done` fails if one of the others did.

By hand: `redrive audit`.
"""

from airflow.sdk import DAG

from redrive.airflow import definitions, tasks


def dags() -> dict[str, DAG]:
    """The DAG ``redrive_audit``."""
    with definitions.upkeep_dag(
        "redrive_audit",
        schedule=definitions.AUDIT_SCHEDULE,
        description="Proves that everything adds up, and forgets what is old",
        page=__doc__,
    ) as dag:
        audited, tidied = tasks.audit(), tasks.retention()
        audited >> tidied
        definitions.end([audited, tidied, tasks.rescue()])
    return {dag.dag_id: dag}
