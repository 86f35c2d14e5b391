"""The mapping ``spark``."""

from datetime import timedelta
from typing import Literal, Self

from pydantic import Field, model_validator

from redrive.settings.values import Address, ConnectionId, Duration, Part, problem


class SparkSettings(Part):
    """Where the job that finds causes runs."""

    runner: Literal["local", "submit", "connect", "emr_serverless", "dataproc_serverless"] = Field(
        default="local",
        description="`local`: in a process beside the task. `submit`: `spark-submit` to a cluster. "
        "`connect`: Spark Connect. The other two start a batch in the cloud and are experimental.",
    )
    # Spark tries a task four times on a cluster, but on one machine only if told: without it one Python worker that a
    # busy machine starts too late (Spark waits 10 s) ends the job.
    master: str = Field(
        default="local[*,4]",
        description="For `local` and `submit`. Default: all cores of this machine, four tries for a task.",
    )
    connection: ConnectionId | None = Field(
        default=None,
        description="Airflow connection id: of a Spark cluster for `submit` (overrides `master`), of AWS or "
        "Google Cloud for the cloud runners. Default: that of Airflow's provider.",
    )
    remote: Address | None = Field(
        default=None,
        pattern=r"^sc://",
        description="For `connect`: the address, such as `sc://spark:15002`.",
    )
    application_id: str | None = Field(default=None, description="EMR Serverless: the application's id.")
    execution_role_arn: str | None = Field(
        default=None, pattern=r"^arn:", description="EMR Serverless: the role that the job takes on."
    )
    project: str | None = Field(
        default=None, description="Dataproc Serverless: the project. Default: the connection's."
    )
    region: str | None = Field(
        default=None,
        description="The cloud's region. Required for Dataproc; default for EMR: the connection's.",
    )
    batch_bucket: Address | None = Field(
        default=None,
        pattern=r"^(s3|gs)://[^/]",
        description="Cloud runners: where the job's code and logs go, such as `s3://bucket/prefix`.",
    )
    history: Address | None = Field(
        default=None,
        pattern=r"^https?://[^/]",
        description="Address of Spark's History Server, to which the task `classify` links.",
    )
    timeout: Duration = Field(default=timedelta(hours=1), description="After this long a job counts as failed.")
    conf: dict[str, str] = Field(
        default={}, description="More Spark properties, such as `spark.driver.memory`. They override Redrive's."
    )

    @model_validator(mode="after")
    def _runner_has_what_it_needs(self) -> Self:
        needed = {
            "connect": ("remote",),
            "emr_serverless": ("application_id", "execution_role_arn", "batch_bucket"),
            "dataproc_serverless": ("region", "batch_bucket"),
        }
        for key in needed.get(self.runner, ()):
            if getattr(self, key) is None:
                raise problem(key, f"is required with runner {self.runner}")
        scheme = {"emr_serverless": "s3://", "dataproc_serverless": "gs://"}.get(self.runner, "")
        if scheme and not (self.batch_bucket or "").startswith(scheme):
            raise problem("batch_bucket", f"has to be {scheme}… with runner {self.runner}")
        return self
