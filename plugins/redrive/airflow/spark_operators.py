"""The Airflow operators that start the Spark job, one per runner, from the same configuration.

Imported by DAG files only. Each expects two tasks before it: ``begin``, whose XCom is the run, and
``prepare``, whose XCom is the manifest's address (and, for the cloud runners, under ``code`` where the code
was published, and under ``request`` what the job is called).
Providers are imported where they are used: not every Airflow has each, and SDKs of clouds cost seconds at every parse.
"""

import logging
import math
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import get_current_context, task

from redrive import settings as configuration
from redrive.airflow import compat, links
from redrive.extras import needing
from redrive.settings import Settings, SparkSettings
from redrive.spark import session_conf, submit

if TYPE_CHECKING:
    from redrive.airflow.spark_submit import ClassifyOperator

log = logging.getLogger(__name__)

TASK_ID = "classify"
CLOUD_RUNNERS = frozenset({"emr_serverless", "dataproc_serverless"})
CODE_KEY = "code"
REQUEST_KEY = "request"

_NAME = (
    f"{session_conf.APPLICATION_NAME} {{{{ ti.xcom_pull(task_ids='begin')['route'] }}}}"
    " {{ ti.xcom_pull(task_ids='begin')['run_id'] }}"
)
_MANIFEST = "{{ ti.xcom_pull(task_ids='prepare') }}"
_APPLICATION = "{{ ti.xcom_pull(task_ids='prepare', key='code')[0] }}"
_PY_FILES = "{{ ti.xcom_pull(task_ids='prepare', key='code')[1] }}"
#: One name per try of one run: a repeated request starts nothing new, and a retry after a job that failed is
#: not answered with that same failed job. A job that runs twice changes nothing, so that is the safe side.
_REQUEST = "{{ ti.xcom_pull(task_ids='prepare', key='request') }}-{{ ti.try_number }}"
_POLL_SECONDS = 15
#: What a job that ran out of its time has for saying so, before Airflow ends the task that waits for it.
_ENDS_BY_ITSELF = timedelta(minutes=5)


def classify(settings: Settings) -> Any:
    """The task ``classify`` of the configured runner; without a manifest it is skipped and no Spark starts."""
    match settings.spark.runner:
        case "local" | "submit":
            submitted = _submit(settings)
            submitted.operator_extra_links = _links(settings)
            return submitted
        case "connect":
            over_connect = task(task_id=TASK_ID, execution_timeout=settings.spark.timeout)(_over_connect)
            return links.to(over_connect(_MANIFEST), *_links(settings))
        case "emr_serverless":
            return _on_emr(settings)
        case "dataproc_serverless":
            return _on_dataproc(settings)


def _links(settings: Settings) -> tuple[links.SparkLink, ...]:
    return (links.SparkLink(),) if settings.spark.history else ()


def spark_of(context: Any, parsed: SparkSettings) -> SparkSettings:
    """What the run began with; ``parsed``, which the file said when the task was made, where the runner is another: it
    makes the operator. The job finds the same causes either way."""
    began_with = _began_with(context).spark
    if began_with.runner == parsed.runner:
        return began_with
    log.warning(
        "the run began with spark.runner %s, and the file says %s now: the job is started as the file says",
        began_with.runner,
        parsed.runner,
    )
    return parsed


def _began_with(context: Any) -> Settings:
    """The configuration with which the run of this task began."""
    from redrive.stages import pipeline  # noqa: PLC0415
    from redrive.stages.context import Run  # noqa: PLC0415

    run = Run.from_json(context["ti"].xcom_pull(task_ids="begin"))
    return pipeline.settings_of(run, configuration.load())


@contextmanager
def holding_route(context: Any) -> Iterator[None]:
    """Hold the route while Spark works, which writes nothing into the ledger and may take longer than a lease."""
    from redrive.stages import heartbeat, pipeline  # noqa: PLC0415
    from redrive.stages.context import Run  # noqa: PLC0415

    run, began = Run.from_json(context["ti"].xcom_pull(task_ids="begin")), time.monotonic()
    settings = configuration.load()
    pipeline.refuse_earlier_question(settings, run)
    try:
        with heartbeat.beating(settings, run):
            yield
    finally:
        _note_page(context)
        log.info("the Spark job of route %s, run %s took %.1f s", run.route, run.run_id, time.monotonic() - began)


def _note_page(context: Any) -> None:
    """Leave the address of the job's page with the task, whose link shows it; also of a job that failed."""
    manifest = context["ti"].xcom_pull(task_ids="prepare")
    if manifest and (page := submit.history_page(configuration.load(), manifest)):
        log.info("Spark's page of the job: %s", page)
        setattr(context["task"], links.SPARK_PAGE, page)


def _submit(settings: Settings) -> "ClassifyOperator":
    with needing("spark", f"spark.runner: {settings.spark.runner}"):
        from redrive.airflow.spark_submit import ClassifyOperator  # noqa: PLC0415

    return ClassifyOperator(
        task_id=TASK_ID,
        settings=settings,
        name=_NAME,
        application_args=submit.arguments(settings, _MANIFEST),
        execution_timeout=settings.spark.timeout,
        # Off: it makes a retry look for the job of the try before, which YARN allows with more settings only.
        # A job that runs twice changes nothing.
        **(
            compat.known_to(ClassifyOperator, durable=False) if compat.VERSION >= (3, 3) else {}
        ),  # before, of no effect
        doc="Finds the cause of every staged message in Spark. Skipped when nothing new is staged.",
    )


def _over_connect(manifest: str) -> None:
    """Finds the cause of every staged message over Spark Connect. Skipped when nothing new is staged."""
    context = get_current_context()
    with holding_route(context):
        settings = configuration.load()
        spark = spark_of(context, settings.spark)
        submit.classify_over_connect(settings.model_copy(update={"spark": spark}), manifest)


def _on_emr(settings: Settings) -> Any:
    with needing("emr", "spark.runner: emr_serverless"):
        from airflow.providers.amazon.aws.operators.emr import EmrServerlessStartJobOperator  # noqa: PLC0415

    class ClassifyOnEmr(EmrServerlessStartJobOperator):  # type: ignore[misc]
        """The provider's operator, with a request token that belongs to the run and the try; holds the route."""

        template_fields: ClassVar = (*EmrServerlessStartJobOperator.template_fields, "client_request_token")

        def execute(self, context: Any, event: dict[str, Any] | None = None) -> str | None:
            with holding_route(context):
                job: str | None = super().execute(context, event)
                return job

    chosen = settings.spark
    options = ["--py-files", _PY_FILES]
    for key, value in submit.properties(chosen).items():
        options += ["--conf", f"{key}={value}"]
    return ClassifyOnEmr(
        task_id=TASK_ID,
        application_id=chosen.application_id,
        execution_role_arn=chosen.execution_role_arn,
        job_driver={
            "sparkSubmit": {
                "entryPoint": _APPLICATION,
                "entryPointArguments": submit.arguments(settings, _MANIFEST),
                # Templates hold quotes of their own, so they must not go through shlex.
                "sparkSubmitParameters": " ".join(o if o == _PY_FILES else shlex.quote(o) for o in options),
            }
        },
        configuration_overrides={
            "monitoringConfiguration": {"s3MonitoringConfiguration": {"logUri": f"{_bucket(settings)}/logs/"}}
        },
        client_request_token=_REQUEST,
        name=_NAME,
        deferrable=False,  # a trigger doesn't renew the route's lease
        waiter_delay=_POLL_SECONDS,
        waiter_max_attempts=math.ceil(chosen.timeout.total_seconds() / _POLL_SECONDS),
        execution_timeout=chosen.timeout + _ENDS_BY_ITSELF,
        **({"aws_conn_id": chosen.connection} if chosen.connection else {}),
        **({"region_name": chosen.region} if chosen.region else {}),
    )


def _on_dataproc(settings: Settings) -> Any:
    with needing("dataproc", "spark.runner: dataproc_serverless"):
        from airflow.providers.google.cloud.operators.dataproc import DataprocCreateBatchOperator  # noqa: PLC0415

    class ClassifyOnDataproc(DataprocCreateBatchOperator):  # type: ignore[misc]
        """The provider's operator; holds the route."""

        def execute(self, context: Any) -> Any:
            with holding_route(context):
                return super().execute(context)

    chosen = settings.spark
    return ClassifyOnDataproc(
        task_id=TASK_ID,
        region=chosen.region,
        # A batch id that exists already is attached to, so the id alone makes a repeated request harmless.
        batch_id=_REQUEST,
        batch={
            "pyspark_batch": {
                "main_python_file_uri": _APPLICATION,
                "args": submit.arguments(settings, _MANIFEST),
                "python_file_uris": [_PY_FILES],
            },
            "runtime_config": {"properties": submit.properties(chosen)},
            "environment_config": {"execution_config": {"ttl": f"{chosen.timeout.total_seconds():.0f}s"}},
        },
        deferrable=False,
        polling_interval_seconds=_POLL_SECONDS,
        execution_timeout=chosen.timeout + _ENDS_BY_ITSELF,
        **({"project_id": chosen.project} if chosen.project else {}),
        **({"gcp_conn_id": chosen.connection} if chosen.connection else {}),
    )


def _bucket(settings: Settings) -> str:
    return (settings.spark.batch_bucket or "").rstrip("/")
