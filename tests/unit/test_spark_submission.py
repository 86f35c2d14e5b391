"""How the Spark job is started: with what arguments, with what code, and what a failure tells."""

import json
import os
import subprocess
import sys
import textwrap
import threading
import zipfile
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from redrive import settings as configuration
from redrive.connections import lookup
from redrive.dev import class_archive
from redrive.errors import ClassificationFailed, ConnectionMissing, SettingsError, StagingError
from redrive.settings import Settings
from redrive.spark import session_conf, submit
from redrive.spark.installed_pyspark import prefer_installed

ROOT = Path(__file__).resolve().parents[2]


def settings_with(text: str) -> Settings:
    return configuration.parse(f"spark: {text}", env={}, root=ROOT)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project root with a library of one module and a job that a test can write."""
    (tmp_path / "plugins" / "redrive").mkdir(parents=True)
    (tmp_path / "plugins" / "redrive" / "__init__.py").write_text("")
    monkeypatch.setenv("REDRIVE_HOME", str(tmp_path))
    monkeypatch.setattr(submit, "_LIBRARY", tmp_path / "plugins" / "redrive")
    return tmp_path


def spark_submit_is(home: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a Python script where spark-submit would be."""
    scripts = home / "bin"
    scripts.mkdir()
    program = scripts / "spark-submit"
    program.write_text(f"#!{sys.executable}\n{textwrap.dedent(script)}")
    program.chmod(0o755)
    monkeypatch.setattr(submit.sysconfig, "get_path", lambda _name: str(scripts))
    monkeypatch.setattr(submit, "java_missing", lambda: None)


def the_job_is(monkeypatch: pytest.MonkeyPatch, run: Callable[..., object]) -> None:
    """Put ``run(manifest, spark)`` where the job's would be."""
    monkeypatch.setattr(submit, "_job_function", lambda: lambda manifest, spark, _access: run(manifest, spark))


def a_manifest(home: Path) -> str:
    path = home / "m.json"
    path.write_text('{"batches": [{"rows": 7}]}')
    return str(path)


class TestTheCode:
    def test_travels_as_a_zip_of_the_library(self, home: Path) -> None:
        with zipfile.ZipFile(submit.package()) as archive:
            assert archive.namelist() == ["redrive/__init__.py"]

    def test_is_named_by_its_content(self, home: Path) -> None:
        before = submit.package()
        assert submit.package() == before
        (home / "plugins" / "redrive" / "__init__.py").write_text("changed = True")
        after = submit.package()
        assert after != before
        assert before.exists(), "a job that runs with it must not lose it"

    def test_holds_no_compiled_files_and_leaves_no_half_written_ones(self, home: Path) -> None:
        (home / "plugins" / "redrive" / "__pycache__").mkdir()
        (home / "plugins" / "redrive" / "__pycache__" / "x.pyc").write_bytes(b"x")
        archive = submit.package()
        assert [name for name in zipfile.ZipFile(archive).namelist() if "pyc" in name] == []
        assert list(archive.parent.glob("*.part")) == []

    def test_holds_what_the_job_imports(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REDRIVE_HOME", str(tmp_path))  # the state is elsewhere; the code stays where it is
        archive = submit.package()
        assert archive.parent == tmp_path / "var" / "spark"
        names = set(zipfile.ZipFile(archive).namelist())
        assert {"redrive/classification/causes.py", "redrive/errors.py", "redrive/classification/executor.py"} <= names

    def test_is_published_for_the_cloud_runners_once(self, home: Path) -> None:
        bucket = home / "bucket"
        (bucket / "code").mkdir(parents=True)
        settings = settings_with("{runner: local}")
        there = settings.spark.model_copy(update={"batch_bucket": bucket.as_uri()})
        settings = settings.model_copy(update={"spark": there})

        code = submit.publish(settings)
        written = {path.name: path.stat().st_mtime_ns for path in (bucket / "code").iterdir()}
        assert submit.publish(settings) == code
        assert {path.name: path.stat().st_mtime_ns for path in (bucket / "code").iterdir()} == written
        assert {Path(code.application).name, Path(code.py_files).name} == set(written)


class TestThePageOfAJob:
    @pytest.fixture
    def manifest(self, home: Path) -> str:
        (home / "out").mkdir()
        (home / "m.json").write_text(json.dumps({"output": str(home / "out")}))
        return str(home / "m.json")

    def test_is_known_once_the_job_has_said_which_application_it_is(self, home: Path, manifest: str) -> None:
        spark = settings_with("{history: 'https://history.example/spark/'}")
        assert submit.history_page(spark, manifest) is None
        (home / "out" / "spark.json").write_text('{"application": "app-7/8"}')
        assert submit.history_page(spark, manifest) == "https://history.example/spark/history/app-7%2F8/"

    def test_is_not_guessed(self, home: Path, manifest: str) -> None:
        (home / "out" / "spark.json").write_text('{"application": ""}')
        assert submit.history_page(settings_with("{history: 'http://h'}"), manifest) is None
        assert submit.history_page(settings_with("{}"), "nowhere.json") is None
        assert submit.history_page(settings_with("{history: 'http://h'}"), "nowhere.json") is None


class TestTheCommand:
    def test_says_the_master_the_code_and_the_manifest(self, home: Path) -> None:
        command = submit.submit_command(settings_with("{runner: submit, master: 'spark://m:7077'}"), "s3://b/m.json")
        assert command[command.index("--master") + 1] == "spark://m:7077"
        assert command[command.index("--py-files") + 1] == str(submit.package())
        assert command[-3:] == [str(Path(submit.__file__).with_name("application.py")), "--manifest", "s3://b/m.json"]

    def test_takes_the_master_of_a_connection(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(
            "AIRFLOW_CONN_CLUSTER",
            '{"conn_type": "spark", "host": "k8s://https://k", "port": 443, "extra": {"deploy-mode": "cluster"}}',
        )
        command = submit.submit_command(settings_with("{runner: submit, connection: cluster}"), "m.json")
        assert command[command.index("--master") + 1] == "k8s://https://k:443"
        assert command[command.index("--deploy-mode") + 1] == "cluster"

    def test_never_falls_back_to_yarn_when_the_connection_is_missing(self, home: Path) -> None:
        with pytest.raises(ConnectionMissing, match="nowhere"):
            submit.submit_command(settings_with("{runner: submit, connection: nowhere}"), "m.json")

    @pytest.mark.parametrize(
        ("connection", "master"),
        [
            pytest.param("spark://host:7077", "spark://host:7077", id="standalone as a URI"),
            pytest.param('{"conn_type": "spark", "host": "local[2]"}', "local[2]", id="local"),
            pytest.param('{"conn_type": "spark", "host": "yarn"}', "yarn", id="yarn as a host"),
            pytest.param("yarn://", "yarn", id="yarn as a type"),
        ],
    )
    def test_reads_a_master_as_the_airflow_provider_does(self, connection: str, master: str) -> None:
        assert submit.master_of(lookup.parse("x", connection)) == master

    def test_a_connection_without_a_host_is_refused(self) -> None:
        with pytest.raises(SettingsError, match="x: its host"):
            submit.master_of(lookup.parse("x", '{"conn_type": "spark"}'))

    def test_properties_of_the_configuration_win(self) -> None:
        settings = settings_with("{conf: {spark.sql.shuffle.partitions: '7'}}")
        properties = submit.properties(settings.spark)
        assert properties["spark.sql.shuffle.partitions"] == "7"

    def test_a_session_of_this_machine_is_ours_and_a_cluster_is_left_as_it_is(self) -> None:
        here = submit.properties(settings_with("{runner: local}").spark)
        assert session_conf.SESSION.items() <= here.items()
        asked = "{runner: submit, master: yarn, conf: {spark.sql.adaptive.enabled: 'true'}}"
        there = submit.properties(settings_with(asked).spark)
        assert there == {"spark.sql.adaptive.enabled": "true"}

    def test_a_spark_of_this_machine_gets_a_jvm_that_is_soon_at_work(self) -> None:
        given = submit.properties_here(settings_with("{}").spark)
        assert given[session_conf.JVM_OPTIONS].startswith(session_conf.QUICK_JVM)

    def test_its_workers_are_forked_by_a_python_that_has_imported_what_they_need(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
        daemon = submit.properties_here(settings_with("{}").spark)[session_conf.WORKER_DAEMON]
        assert find_spec(daemon) is not None
        # Another Python need not have the library.
        another = settings_with("{conf: {spark.pyspark.python: /usr/bin/python3}}").spark
        assert session_conf.WORKER_DAEMON not in submit.properties_here(another)
        monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
        assert session_conf.WORKER_DAEMON not in submit.properties_here(settings_with("{}").spark)

    def test_a_cluster_is_told_nothing_about_its_jvm_and_its_workers(self) -> None:
        assert submit.properties_here(settings_with("{runner: submit}").spark) == {}

    def test_the_users_own_options_win(self) -> None:
        chosen = settings_with("{conf: {spark.driver.extraJavaOptions: -Xss8m}}").spark
        assert submit.properties_here(chosen)[session_conf.JVM_OPTIONS] == "-Xss8m"

    def test_a_manifest_that_is_gone_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(StagingError, match=r"gone\.json"):
            submit.read_manifest(str(tmp_path / "gone.json"))


class TestTheArchiveOfClasses:
    @pytest.fixture
    def java(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A Java of which only the folder is real."""
        (tmp_path / "jdk" / "bin").mkdir(parents=True)
        (tmp_path / "jdk" / "bin" / "java").touch()
        (tmp_path / "jdk" / "release").write_text('JAVA_RUNTIME_VERSION="17.0.1+2"\nOS_ARCH="x86_64"\n')
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
        monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
        return tmp_path / "jdk"

    def test_is_named_by_the_builds_of_spark_and_java(self, java: Path) -> None:
        archive = session_conf.class_archive()
        assert archive is not None
        assert archive.name == f"spark-{metadata.version('pyspark')}-17.0.1+2-x86_64.jsa"

    @pytest.mark.usefixtures("java")
    def test_is_used_where_it_is(self) -> None:
        archive = session_conf.class_archive()
        assert archive is not None
        assert session_conf.jvm_options() == session_conf.QUICK_JVM
        archive.parent.mkdir(parents=True)
        archive.touch()
        assert f"-XX:SharedArchiveFile={archive}" in session_conf.jvm_options()

    def test_there_is_none_of_a_java_that_tells_no_version(self, java: Path) -> None:
        (java / "release").write_text("IMPLEMENTOR=nobody\n")
        assert session_conf.class_archive() is None
        (java / "release").unlink()
        assert session_conf.class_archive() is None

    def test_there_is_none_whose_path_no_option_could_name(self, java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "prefix", str(java / "my env"))
        assert session_conf.class_archive() is None

    def test_that_fails_leaves_nothing_and_tells_what_was_said(
        self, java: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        spark_submit_is(home, monkeypatch, "raise SystemExit('no room for classes')")
        assert class_archive.main() == 0, "nothing depends on it"
        assert "no room for classes" in capsys.readouterr().err
        archive = session_conf.class_archive()
        assert archive is not None
        assert list(archive.parent.iterdir()) == []

    def test_appears_when_it_is_complete(self, java: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        spark_submit_is(
            home,
            monkeypatch,
            """
            import pathlib, re, sys
            found = re.search("ArchiveClassesAtExit=([^ ]+)", " ".join(sys.argv))
            pathlib.Path(found.group(1)).write_text("classes")
            """,
        )
        made = class_archive.make()
        assert made is not None
        assert made == session_conf.class_archive()
        assert made.read_text() == "classes"
        assert [path.name for path in made.parent.iterdir()] == [made.name]


class TestARun:
    def test_waits_for_the_end(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        spark_submit_is(
            home, monkeypatch, "import sys, pathlib; pathlib.Path(sys.argv[-1] + '.seen').write_text('classified')"
        )
        submit.classify(settings_with("{}"), a_manifest(home))
        assert (home / "m.json.seen").read_text() == "classified"

    def test_that_fails_tells_its_log_and_its_last_words(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        spark_submit_is(home, monkeypatch, "print('first'); raise SystemExit('no such file: batch-7')")
        with pytest.raises(ClassificationFailed, match="no such file: batch-7") as failure:
            submit.classify(settings_with("{}"), a_manifest(home))
        log = next((home / "var" / "spark" / "logs").iterdir())
        assert str(log) in str(failure.value)
        assert log.stat().st_mode & 0o077 == 0, "error texts of a customer's messages are nobody else's business"

    def test_that_hangs_is_stopped(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        spark_submit_is(home, monkeypatch, "import time; time.sleep(60)")
        started: list[subprocess.Popen[bytes]] = []

        class Noted(subprocess.Popen[bytes]):
            """Known also where it is stopped before it has got to its first line."""

            def __init__(self, *words: Any, **options: Any) -> None:
                super().__init__(*words, **options)
                started.append(self)

        monkeypatch.setattr(subprocess, "Popen", Noted)
        with pytest.raises(ClassificationFailed, match=r"spark\.timeout"):
            submit.classify(settings_with("{timeout: 1s}"), a_manifest(home))
        [job] = started
        with pytest.raises(ProcessLookupError):
            os.kill(job.pid, 0)

    def test_without_java_says_so_before_anything_starts(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(home))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        with pytest.raises(ClassificationFailed, match="Java 17"):
            submit.classify(settings_with("{}"), a_manifest(home))

    def test_keeps_a_bounded_number_of_logs(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        spark_submit_is(home, monkeypatch, "")
        logs = home / "var" / "spark" / "logs"
        logs.mkdir(parents=True)
        for number in range(150):
            (logs / f"classify-20200101T0000{number:03}-x.log").write_text("")
        submit.classify(settings_with("{}"), a_manifest(home))
        assert len(list(logs.iterdir())) <= 101

    @pytest.mark.parametrize(
        "runner",
        [
            "{runner: emr_serverless, application_id: a, execution_role_arn: 'arn:aws:iam::1:role/r', batch_bucket: 's3://b'}",
            "{runner: dataproc_serverless, region: europe-west1, batch_bucket: 'gs://b'}",
        ],
        ids=["emr", "dataproc"],
    )
    def test_in_a_cloud_is_left_to_airflow(self, runner: str) -> None:
        place = "s3://b/staging" if "emr" in runner else "gs://b/staging"
        settings = configuration.parse(f"spark: {runner}\nstaging: {place}", env={}, root=ROOT)
        with pytest.raises(SettingsError, match=r"spark\.runner.*Airflow"):
            submit.classify(settings, "m.json")

    def test_over_connect_runs_the_job_in_this_process(
        self, home: Path, remote: "Remote", monkeypatch: pytest.MonkeyPatch
    ) -> None:
        the_job_is(monkeypatch, lambda manifest, _: Path(manifest["output"]).write_text("classified"))
        (home / "m.json").write_text(json.dumps({"output": str(home / "out")}))

        submit.classify(settings_with("{runner: connect, remote: 'sc://spark:15002'}"), str(home / "m.json"))

        assert remote.address == "sc://spark:15002"
        assert remote.stopped
        assert (home / "out").read_text() == "classified"

    def test_over_connect_the_servers_python_gets_our_code(
        self, home: Path, remote: "Remote", monkeypatch: pytest.MonkeyPatch
    ) -> None:
        the_job_is(monkeypatch, lambda _, __: None)
        (home / "m.json").write_text("{}")
        submit.classify(settings_with("{runner: connect, remote: 'sc://spark:15002'}"), str(home / "m.json"))
        assert remote.artifacts == [str(submit.package())]
        assert remote.options == {}, "the session is the server's"

    def test_over_connect_that_fails_tells_the_server_and_no_token(
        self, home: Path, remote: "Remote", monkeypatch: pytest.MonkeyPatch
    ) -> None:

        def fail(_: object, __: object) -> None:
            raise OSError("no such file: batch-7")

        the_job_is(monkeypatch, fail)
        (home / "m.json").write_text("{}")
        settings = settings_with("{runner: connect, remote: 'sc://spark:443/;use_ssl=true;token=s3cret'}")
        with pytest.raises(ClassificationFailed, match=r"sc://spark:443/ \(spark\.remote\): .*batch-7") as failure:
            submit.classify(settings, str(home / "m.json"))
        assert "s3cret" not in str(failure.value)
        assert remote.stopped

    def test_over_connect_that_hangs_is_stopped(
        self, home: Path, remote: "Remote", monkeypatch: pytest.MonkeyPatch
    ) -> None:

        def hang(_: object, spark: Remote) -> None:
            assert spark.interrupted.wait(60)
            raise RuntimeError("cancelled")

        the_job_is(monkeypatch, hang)
        (home / "m.json").write_text("{}")
        settings = settings_with("{runner: connect, remote: 'sc://spark:15002', timeout: 1s}")
        with pytest.raises(ClassificationFailed, match=r"spark\.timeout"):
            submit.classify(settings, str(home / "m.json"))
        assert remote.stopped


class Remote:
    """What PySpark gives for ``builder.remote(address).create()``, without a server."""

    def __init__(self) -> None:
        self.address, self.stopped, self.interrupted = "", False, threading.Event()
        self.client = self.conf = self
        self.options: dict[str, str] = {}
        self.artifacts: list[str] = []

    def remote(self, address: str) -> "Remote":
        self.address = address
        return self

    def create(self) -> "Remote":
        return self

    def set(self, key: str, value: str) -> None:
        self.options[key] = value

    def addArtifacts(self, path: str, *, pyfile: bool) -> None:  # noqa: N802  PySpark's name
        assert pyfile
        self.artifacts.append(path)

    def set_retry_policies(self, policies: list[object]) -> None:
        assert policies

    def interruptAll(self) -> None:  # noqa: N802  PySpark's name
        self.interrupted.set()

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Remote:
    made = Remote()
    monkeypatch.setattr("pyspark.sql.SparkSession.builder", made)
    return made


def test_importing_it_costs_no_spark_and_no_airflow() -> None:
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "import redrive.spark.submit, sys; print({'pyspark', 'airflow', 'botocore', 'pyarrow'} & set(sys.modules))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "set()"


class TestPySparkAsInstalled:
    def test_goes_before_its_own_archive_and_stays_behind_that_of_another_spark(self, tmp_path: Path) -> None:
        installed, other = tmp_path / "site-packages", tmp_path / "opt"
        (installed / "pyspark").mkdir(parents=True)
        (installed / "pyspark" / "__init__.py").touch()
        own, foreign = (str(home / "python/lib/pyspark.zip") for home in (installed / "pyspark", other / "spark"))

        path = [own, "/code.zip", str(installed)]
        prefer_installed(path)
        assert path == ["/code.zip", str(installed), own]
        path = [foreign, "/code.zip", str(installed)]
        prefer_installed(path)
        assert path == [foreign, "/code.zip", str(installed)]
        path = [own, "/code.zip"]  # a Python that has no PySpark of its own
        prefer_installed(path)
        assert path == [own, "/code.zip"]
