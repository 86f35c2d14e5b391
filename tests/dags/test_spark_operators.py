"""The task ``classify`` of every runner: what Airflow's operator is given."""

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest

from redrive import settings as configuration
from redrive.errors import ConnectionMissing, SettingsError
from redrive.spark import session_conf, submit
from redrive.stages import pipeline
from redrive.stages.context import Run

ROOT = Path(__file__).resolve().parents[2]

EMR = """
spark: {runner: emr_serverless, application_id: 00abc, execution_role_arn: "arn:aws:iam::1:role/spark",
        batch_bucket: "s3://work/redrive/", connection: aws_prod, region: eu-west-1, timeout: 30m,
        conf: {spark.app.note: "two words"}}
staging: s3://work/staging
"""
DATAPROC = """
spark: {runner: dataproc_serverless, region: europe-west1, batch_bucket: "gs://work", project: shop, timeout: 30m}
staging: gs://work/staging
"""


def the_task(text: str) -> Any:
    from redrive.airflow import spark_operators  # noqa: PLC0415  imports Airflow

    return spark_operators.classify(configuration.parse(text, env={}, root=ROOT))


class Ti:
    """A task instance that has pulled: run 7 of the route, a manifest, and where the code is."""

    try_number = 2

    def xcom_pull(self, task_ids: str, key: str = "return_value") -> object:
        return {
            ("begin", "return_value"): {"route": "orders", "run_id": "Orders_2026-11-20T08"},
            ("prepare", "return_value"): "s3://work/staging/m.json",
            ("prepare", "code"): ["s3://work/code/job.py", "s3://work/code/lib.zip"],
            ("prepare", "request"): "redrive-orders-0123456789abcdef",
        }[task_ids, key]


def rendered(value: Any) -> Any:
    """``value`` with its templates filled, as Airflow would."""
    match value:
        case str():
            return jinja2.Environment(autoescape=False).from_string(value).render(ti=Ti())
        case dict():
            return {key: rendered(item) for key, item in value.items()}
        case list():
            return [rendered(item) for item in value]
    return value


@pytest.fixture(autouse=True)
def nobody_asks_for_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """No ledger here: the lease that a task holds while Spark works is not what these tests are about."""
    from redrive.airflow import spark_operators  # noqa: PLC0415  imports Airflow

    monkeypatch.setattr(spark_operators, "holding_route", lambda _context: nullcontext())
    monkeypatch.setattr(spark_operators, "spark_of", lambda _context, parsed: parsed)
    monkeypatch.setattr(spark_operators, "get_current_context", dict)


class TestLocalAndSubmit:
    def test_a_worker_without_spark_submit_says_so_and_what_helps(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
        with pytest.raises(SettingsError, match=r"need spark-submit.*: pip install 'redrive\[spark\]'"):
            the_task("spark: {}").execute({})

    def test_a_worker_without_java_says_so(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        with pytest.raises(SettingsError, match=r"spark\.runner: local: JAVA_HOME is .*, where there is no bin/java"):
            the_task("spark: {}").execute({})

    def test_the_manifest_comes_from_prepare(self) -> None:
        classify = the_task("spark: {}")
        assert rendered(classify.application_args) == ["--manifest", "s3://work/staging/m.json"]
        assert "application_args" in classify.template_fields

    def test_local_needs_no_connection(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_REDRIVE_SPARK_MASTER", "")  # so that it is gone after the test
        classify = the_task("spark: {runner: local, master: 'local[3]'}")
        assert classify._get_hook()._connection["master"] == "local[3]"

    def test_a_master_of_the_configuration_is_used_as_it_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_REDRIVE_SPARK_MASTER", "")
        connection = the_task("spark: {runner: submit, master: 'spark://m:7077'}")._get_hook()._connection
        assert (connection["master"], connection["deploy_mode"]) == ("spark://m:7077", "client")

    def test_a_connection_goes_before_the_master(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", '{"conn_type": "spark", "host": "yarn"}')
        hook = the_task("spark: {runner: submit, connection: cluster}")._get_hook()
        assert hook._connection["master"] == "yarn"

    def test_a_missing_connection_is_an_error_and_not_yarn(self) -> None:
        with pytest.raises(ConnectionMissing, match="nowhere"):
            the_task("spark: {runner: submit, connection: nowhere}")._get_hook()

    def test_code_and_submit_program_are_found_where_the_task_runs(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator  # noqa: PLC0415

        monkeypatch.setenv("PATH", "/nowhere")
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "java").touch()
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        seen: dict[str, str] = {}
        monkeypatch.setattr(
            SparkSubmitOperator,
            "execute",
            lambda self, context: seen.update(zip=self.py_files, path=os.environ["PATH"], **self.conf),
        )
        classify = the_task("spark: {}")
        manifest = tmp_path / "manifest.json"
        manifest.write_text('{"batches": [{"rows": 7}]}')
        classify.application_args = ["--manifest", str(manifest)]
        classify.execute({})
        assert Path(seen["zip"]).exists()
        assert any(Path(folder, "spark-submit").exists() for folder in seen["path"].split(os.pathsep))
        assert seen[session_conf.JVM_OPTIONS].startswith(session_conf.QUICK_JVM), "seven messages are few"


def held_while_executing(operator: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the provider's operator runs to its end, not deferred, within a beating lease."""
    from redrive.airflow import spark_operators  # noqa: PLC0415  imports Airflow

    seen: list[str] = []

    @contextmanager
    def held(_context: Any) -> Iterator[None]:
        seen.append("held")
        yield
        seen.append("free")

    monkeypatch.setattr(spark_operators, "holding_route", held)
    monkeypatch.setattr(type(operator).__mro__[1], "execute", lambda *_: seen.append("waited"))
    operator.execute({})
    return seen == ["held", "waited", "free"] and not operator.deferrable


@pytest.fixture(scope="module")
def call() -> dict[str, Any]:
    """What the operator asks of EMR."""
    classify = the_task(EMR)
    assert {"client_request_token", "job_driver"} <= set(classify.template_fields)
    return {
        "operator": classify,
        "token": rendered(classify.client_request_token),
        "driver": rendered(classify.job_driver)["sparkSubmit"],
    }


@pytest.mark.parametrize("runner", ["local", "connect, remote: 'sc://spark:15002'"])
def test_the_task_leads_to_sparks_page_where_one_is_known(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from redrive.airflow import links, spark_operators  # noqa: PLC0415  imports Airflow

    assert not links_of(the_task(f"spark: {{runner: {runner}}}"))
    task = the_task(f"spark: {{runner: {runner}, history: 'http://history'}}")
    (link,) = links_of(task)
    task = getattr(task, "operator", task)
    assert link.get_link(task, ti_key=None) == "", "nothing ran yet"
    monkeypatch.setattr(
        spark_operators.submit, "history_page", lambda _settings, manifest: f"http://history/{manifest}"
    )
    spark_operators._note_page({"ti": Ti(), "task": task})
    assert link.get_link(task, ti_key=None) == "http://history/s3://work/staging/m.json"
    assert links.SPARK_PAGE not in vars(the_task("spark: {}"))


def links_of(task: Any) -> list[Any]:
    return list(getattr(task, "operator", task).operator_extra_links)


def test_the_application_is_named_after_route_and_run() -> None:
    for text in ("spark: {}", EMR):
        assert rendered(the_task(text).name) == "redrive-classify orders Orders_2026-11-20T08"


@pytest.mark.parametrize("text", [EMR, DATAPROC])
def test_prepare_names_the_job_as_both_clouds_allow_it(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the DAG run is called: a scheduled one has colons and a plus in its id, others may be long."""
    from redrive.airflow import spark_operators, tasks  # noqa: PLC0415  imports Airflow

    left: dict[str, Any] = {}
    ti = SimpleNamespace(xcom_push=lambda key, value: left.update({key: value}))
    route = f"the_orders_{'x' * 29}"
    settings = configuration.parse(text, env={}, root=ROOT)
    monkeypatch.setattr(tasks, "get_current_context", lambda: {"ti": ti})
    monkeypatch.setattr(tasks.configuration, "load", lambda: settings)
    monkeypatch.setattr(pipeline, "prepare_classification", lambda _settings, run: f"s3://work/{run.run_id}.json")
    monkeypatch.setattr(submit, "publish", lambda _settings: submit.Code("s3://work/job.py", "s3://work/lib.zip"))
    names = set()
    for day in ("20", "21"):
        run_id = f"{route}.scheduled__2026-11-{day}T08:00:00+00:00"
        run = Run(route, run_id, 1, timedelta(minutes=15), datetime(2026, 11, 20, tzinfo=UTC))
        tasks.prepare.function(run.to_json())
        assert left[spark_operators.CODE_KEY] == ["s3://work/job.py", "s3://work/lib.zip"]
        names.add(name := left[spark_operators.REQUEST_KEY])
        assert re.fullmatch("[a-z][a-z0-9-]{3,62}", f"{name}-999"), "Dataproc's batch id; EMR's token may be more"
    assert len(names) == 2


@pytest.mark.parametrize("text", [EMR, DATAPROC], ids=["emr", "dataproc"])
@pytest.mark.parametrize("asked", ["10m", "3h"])
def test_airflow_ends_the_task_no_sooner_than_the_job_runs_out_of_its_time(text: str, asked: str) -> None:
    """Else it cancels a job that is paid for, and its retry begins another one."""
    classify = the_task(text.replace("timeout: 30m", f"timeout: {asked}"))
    waits = {"10m": timedelta(minutes=10), "3h": timedelta(hours=3)}[asked]
    assert waits < classify.execution_timeout <= waits + timedelta(minutes=5)


class TestEmrServerless:
    def test_runs_the_published_code_over_the_manifest(self, call: dict[str, Any]) -> None:
        assert call["driver"]["entryPoint"] == "s3://work/code/job.py"
        assert call["driver"]["entryPointArguments"] == ["--manifest", "s3://work/staging/m.json"]

    def test_gives_library_and_properties(self, call: dict[str, Any]) -> None:
        words = shlex.split(call["driver"]["sparkSubmitParameters"])
        assert words[:2] == ["--py-files", "s3://work/code/lib.zip"]
        assert "spark.app.note=two words" in words
        assert not [word for word in words if word.startswith("spark.driver.memory")], "EMR's own default fits"

    def test_a_repeated_request_starts_nothing_and_a_retry_does(self, call: dict[str, Any]) -> None:
        assert call["token"] == "redrive-orders-0123456789abcdef-2"

    def test_waits_as_long_as_a_job_may_take_and_holds_the_route(
        self, call: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        operator = call["operator"]
        assert held_while_executing(operator, monkeypatch)
        assert operator.waiter_delay * operator.waiter_max_attempts == 1800

    def test_knows_account_region_and_logs(self, call: dict[str, Any]) -> None:
        operator = call["operator"]
        assert (operator.aws_conn_id, operator.region_name) == ("aws_prod", "eu-west-1")
        logs = operator.configuration_overrides["monitoringConfiguration"]["s3MonitoringConfiguration"]
        assert logs == {"logUri": "s3://work/redrive/logs/"}


class TestDataprocServerless:
    def test_runs_the_published_code_over_the_manifest(self) -> None:
        batch = rendered(the_task(DATAPROC).batch)
        assert batch["pyspark_batch"] == {
            "main_python_file_uri": "s3://work/code/job.py",
            "args": ["--manifest", "s3://work/staging/m.json"],
            "python_file_uris": ["s3://work/code/lib.zip"],
        }
        assert batch["environment_config"]["execution_config"]["ttl"] == "1800s"

    def test_a_repeated_request_finds_its_batch(self) -> None:
        classify = the_task(DATAPROC)
        assert rendered(classify.batch_id) == "redrive-orders-0123456789abcdef-2"

    def test_holds_the_route_while_it_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert held_while_executing(the_task(DATAPROC), monkeypatch)


def test_connect_runs_in_the_task_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(
        "redrive.spark.submit.classify_over_connect", lambda _settings, manifest: called.append(manifest)
    )
    classify = the_task("spark: {runner: connect, remote: 'sc://spark:15002'}").operator
    assert rendered(list(classify.op_args)) == ["s3://work/staging/m.json"]
    classify.python_callable("m.json")
    assert called == ["m.json"]
