"""The Airflow operators that start the Spark job, one per runner, from the same configuration.

Imported by DAG files only. Each expects two tasks before it: ``begin``, whose XCom is the run, and
``prepare``, whose XCom is the manifest's address (and, for the cloud runners, under ``code`` where the code
was published).
The cloud providers are imported where they are used, because their SDKs cost seconds at every parse.
"""

import json
import logging
import math
import os
import shlex
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import get_current_context, task

from redrive import settings as configuration
from redrive.connections import lookup
from redrive.errors import SettingsError
from redrive.settings import Settings, SparkSettings
from redrive.spark import submit

log = logging.getLogger(__name__)

TASK_ID = "classify"
CLOUD_RUNNERS = frozenset({"emr_serverless", "dataproc_serverless"})
CODE_KEY = "code"

_MANIFEST = "{{ ti.xcom_pull(task_ids='prepare') }}"
_APPLICATION = "{{ ti.xcom_pull(task_ids='prepare', key='code')[0] }}"
_PY_FILES = "{{ ti.xcom_pull(task_ids='prepare', key='code')[1] }}"
#: One name per try of one run: a repeated request starts nothing new, and a retry after a job that failed is
#: not answered with that same failed job. A job that runs twice changes nothing, so that is the safe side.
_REQUEST = (
    "redrive-{{ ti.xcom_pull(task_ids='begin')['run_id'] | string | lower | replace('_', '-') }}-{{ ti.try_number }}"
)
#: The connection id under which a master that the configuration names itself is handed to the provider.
_OWN_CONNECTION = "redrive_spark_master"
_POLL_SECONDS = 15


def classify(settings: Settings) -> Any:
    """The task ``classify`` of the configured runner; without a manifest it is skipped and no Spark starts."""
    match settings.spark.runner:
        case "local" | "submit":
            return _submit(settings)
        case "connect":
            over_connect = task(task_id=TASK_ID, execution_timeout=settings.spark.timeout)(_over_connect)
            return over_connect(_MANIFEST)
        case "emr_serverless":
            return _on_emr(settings)
        case "dataproc_serverless":
            return _on_dataproc(settings)


class ClassifyOperator(SparkSubmitOperator):  # type: ignore[misc]  # Airflow has no types for mypy
    """``spark-submit`` of the job, on this machine or to a cluster; the code travels as a zip of its own.

    Without a connection: to ``master``. A connection that is named and isn't there is an error; the provider
    would quietly submit to ``yarn`` instead.
    """

    conf: dict[str, str]

    def __init__(self, *, chosen: SparkSettings, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._choose(chosen)

    def _choose(self, chosen: SparkSettings) -> None:
        self.chosen = chosen
        self.connection = chosen.connection if chosen.runner == "submit" else None
        self._conn_id = self.connection or _OWN_CONNECTION
        self.conf = submit.properties(chosen)

    def execute(self, context: Any) -> None:
        self._choose(_spark_of(context, self.chosen))
        # All of this is found out where the task runs: the worker may not be the machine that parsed the DAG.
        self.py_files = str(submit.package())
        self.application = str(submit.application())
        if shutil.which("spark-submit") is None:
            scripts = sysconfig.get_path("scripts")
            os.environ["PATH"] = os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])
        if shutil.which("spark-submit") is None:
            raise SettingsError(
                f"spark.runner: {self.chosen.runner} needs spark-submit on the worker: install pyspark there, or choose"
                " connect"
            )
        if trouble := submit.java_missing():
            raise SettingsError(f"spark.runner: {self.chosen.runner}: {trouble}")
        self.conf = submit.properties_here(self.chosen) | self.conf
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if self.chosen.master.startswith("local") and self.connection is None:
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        with _held(context):
            super().execute(context)

    def _get_hook(self) -> SparkSubmitHook:
        if self.connection is None:
            os.environ[lookup.variable_of(_OWN_CONNECTION)] = json.dumps(
                {"conn_type": "spark", "host": self.chosen.master, "extra": {"deploy-mode": "client"}}
            )
        else:
            lookup.get(self.connection)  # raises ConnectionMissing
        return super()._get_hook()


def _spark_of(context: Any, parsed: SparkSettings) -> SparkSettings:
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
def _held(context: Any) -> Iterator[None]:
    """Hold the route while Spark works, which writes nothing into the ledger and may take longer than a lease."""
    from redrive.stages import heartbeat  # noqa: PLC0415
    from redrive.stages.context import Run  # noqa: PLC0415

    run, began = Run.from_json(context["ti"].xcom_pull(task_ids="begin")), time.monotonic()
    try:
        with heartbeat.beating(configuration.load(), run):
            yield
    finally:
        log.info("the Spark job of route %s, run %s took %.1f s", run.route, run.run_id, time.monotonic() - began)


def _submit(settings: Settings) -> ClassifyOperator:
    return ClassifyOperator(
        task_id=TASK_ID,
        chosen=settings.spark,
        name=submit.APPLICATION_NAME,
        application_args=submit.arguments(_MANIFEST),
        execution_timeout=settings.spark.timeout,
        # Off: it makes a retry look for the job of the try before, which YARN allows with more settings only.
        # A job that runs twice changes nothing.
        durable=False,
        doc="Finds the cause of every staged message in Spark. Skipped when nothing new is staged.",
    )


def _over_connect(manifest: str) -> None:
    """Finds the cause of every staged message over Spark Connect. Skipped when nothing new is staged."""
    context = get_current_context()
    with _held(context):
        settings = configuration.load()
        spark = _spark_of(context, settings.spark)
        submit.classify_over_connect(settings.model_copy(update={"spark": spark}), manifest)


def _on_emr(settings: Settings) -> Any:
    from airflow.providers.amazon.aws.operators.emr import EmrServerlessStartJobOperator  # noqa: PLC0415

    class ClassifyOnEmr(EmrServerlessStartJobOperator):  # type: ignore[misc]
        """The provider's operator, with a request token that belongs to the run and the try; holds the route."""

        template_fields: ClassVar = (*EmrServerlessStartJobOperator.template_fields, "client_request_token")

        def execute(self, context: Any, event: dict[str, Any] | None = None) -> str | None:
            with _held(context):
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
                "entryPointArguments": submit.arguments(_MANIFEST),
                # Templates hold quotes of their own, so they must not go through shlex.
                "sparkSubmitParameters": " ".join(o if o == _PY_FILES else shlex.quote(o) for o in options),
            }
        },
        configuration_overrides={
            "monitoringConfiguration": {"s3MonitoringConfiguration": {"logUri": f"{_bucket(settings)}/logs/"}}
        },
        client_request_token=_REQUEST,
        name=submit.APPLICATION_NAME,
        deferrable=False,  # a trigger doesn't renew the route's lease
        waiter_delay=_POLL_SECONDS,
        waiter_max_attempts=math.ceil(chosen.timeout.total_seconds() / _POLL_SECONDS),
        **({"aws_conn_id": chosen.connection} if chosen.connection else {}),
        **({"region_name": chosen.region} if chosen.region else {}),
    )


def _on_dataproc(settings: Settings) -> Any:
    from airflow.providers.google.cloud.operators.dataproc import DataprocCreateBatchOperator  # noqa: PLC0415

    class ClassifyOnDataproc(DataprocCreateBatchOperator):  # type: ignore[misc]
        """The provider's operator; holds the route."""

        def execute(self, context: Any) -> Any:
            with _held(context):
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
                "args": submit.arguments(_MANIFEST),
                "python_file_uris": [_PY_FILES],
            },
            "runtime_config": {"properties": submit.properties(chosen)},
            "environment_config": {"execution_config": {"ttl": f"{chosen.timeout.total_seconds():.0f}s"}},
        },
        deferrable=False,
        polling_interval_seconds=_POLL_SECONDS,
        **({"project_id": chosen.project} if chosen.project else {}),
        **({"gcp_conn_id": chosen.connection} if chosen.connection else {}),
    )


def _bucket(settings: Settings) -> str:
    return (settings.spark.batch_bucket or "").rstrip("/")
