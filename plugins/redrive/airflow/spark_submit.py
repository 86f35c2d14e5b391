"""The operator that submits the Spark job, for the runners ``local`` and ``submit``; it needs the Spark provider."""

import json
import os
import shutil
import sys
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from redrive.airflow import spark_operators
from redrive.connections import lookup, storage
from redrive.errors import SettingsError
from redrive.settings import Settings, SparkSettings
from redrive.spark import submit

#: The connection id under which a master that the configuration names itself is handed to the provider.
_OWN_CONNECTION = "redrive_spark_master"


class ClassifyOperator(SparkSubmitOperator):  # type: ignore[misc]  # Airflow has no types for mypy
    """``spark-submit`` of the job, on this machine or to a cluster; the code travels as a zip of its own.

    Without a connection: to ``master``. A connection that is named and isn't there is an error; the provider
    would quietly submit to ``yarn`` instead.
    """

    conf: dict[str, str]

    def __init__(self, *, settings: Settings, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._settings = settings
        self._choose(settings.spark)

    def _choose(self, chosen: SparkSettings) -> None:
        self.chosen = chosen
        self.connection = chosen.connection if chosen.runner == "submit" else None
        self._conn_id = self.connection or _OWN_CONNECTION
        self.conf = submit.properties(chosen)

    def execute(self, context: Any) -> None:
        self._choose(spark_operators.spark_of(context, self.chosen))
        # All of this is found out where the task runs: the worker may not be the machine that parsed the DAG.
        self.py_files = str(submit.package())
        self.application = str(submit.application())
        if shutil.which("spark-submit") is None:  # the provider looks nowhere but there
            known = os.environ.get("PATH", os.defpath)
            os.environ["PATH"] = os.pathsep.join([str(submit.spark_submit().parent), known])
        if trouble := submit.java_missing():
            raise SettingsError(f"spark.runner: {self.chosen.runner}: {trouble}")
        self.conf = submit.properties_here(self.chosen) | self.conf
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if self.chosen.master.startswith("local") and self.connection is None:
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # To the program that is started, and no further: an argument or a property would be in its log.
        secrets = storage.for_job(self._settings)
        os.environ.update(secrets)
        try:
            with spark_operators.holding_route(context):
                super().execute(context)
        finally:
            for name in secrets:
                os.environ.pop(name, None)

    def _get_hook(self) -> SparkSubmitHook:
        if self.connection is None:
            os.environ[lookup.variable_of(_OWN_CONNECTION)] = json.dumps(
                {"conn_type": "spark", "host": self.chosen.master, "extra": {"deploy-mode": "client"}}
            )
        else:
            lookup.get(self.connection)  # raises ConnectionMissing
        return super()._get_hook()
