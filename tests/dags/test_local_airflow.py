"""The local Airflow's environment and processes, as far as they show without starting one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.servers import free_port

from redrive.dev import airflow_environment, local_airflow, unscheduled_run, up
from redrive.dev.local_airflow import PortTaken
from redrive.errors import UsageError


class TestEnvironment:
    def test_keeps_everything_below_var(self, tmp_path: Path) -> None:
        env = airflow_environment.environment(tmp_path, 8080, base={})
        assert env["AIRFLOW_HOME"] == str(tmp_path / "var" / "airflow")
        assert str(tmp_path) in env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
        assert str(tmp_path) in env["AIRFLOW__LOGGING__BASE_LOG_FOLDER"]

    def test_makes_password_and_secrets_that_only_the_owner_reads(self, tmp_path: Path) -> None:
        airflow_environment.environment(tmp_path, 8080, base={})
        made = list((tmp_path / "var" / "airflow").iterdir())
        assert len(made) == 4
        for file in made:
            assert file.stat().st_mode & 0o077 == 0, file

    def test_keeps_them_from_start_to_start(self, tmp_path: Path) -> None:
        first = airflow_environment.environment(tmp_path, 8080, base={})
        second = airflow_environment.environment(tmp_path, 8081, base={})
        for name in ("AIRFLOW__API_AUTH__JWT_SECRET", "AIRFLOW__CORE__FERNET_KEY", "AIRFLOW__API__SECRET_KEY"):
            assert first[name] == second[name]
            assert len(first[name]) >= 32
        assert airflow_environment.password(first) == airflow_environment.password(second)

    def test_viewers_have_passwords_of_their_own_and_admins_stays(self, tmp_path: Path) -> None:
        first = airflow_environment.environment(tmp_path, 8080, base={})
        second = airflow_environment.environment(tmp_path, 8080, base={}, viewers=["val"])
        assert second["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] == "admin:admin,val:viewer"
        assert airflow_environment.password(first) == airflow_environment.password(second)
        assert len(airflow_environment.password(second, "val")) > 12
        assert airflow_environment.password(second, "val") != airflow_environment.password(second)

    def test_no_two_folders_share_them(self, tmp_path: Path) -> None:
        one = airflow_environment.environment(tmp_path / "one", 8080, base={})
        other = airflow_environment.environment(tmp_path / "other", 8080, base={})
        assert airflow_environment.password(one) != airflow_environment.password(other)
        assert one["AIRFLOW__API_AUTH__JWT_SECRET"] != other["AIRFLOW__API_AUTH__JWT_SECRET"]

    def test_takes_connections_over_and_another_airflows_settings_not(self, tmp_path: Path) -> None:
        base = {
            "AIRFLOW_CONN_SQS_DEMO": "aws://",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql://production",
            "AIRFLOW_HOME": "/opt/airflow",
            "AIRFLOW_CONFIG": "/opt/airflow/airflow.cfg",
        }
        env = airflow_environment.environment(tmp_path, 8080, base=base)
        assert env["AIRFLOW_CONN_SQS_DEMO"] == "aws://"
        assert "production" not in str(env)
        assert "/opt/airflow" not in str(env)

    def test_keeps_loopback_out_of_proxies_beside_what_is_kept_out_already(self, tmp_path: Path) -> None:
        env = airflow_environment.environment(tmp_path, 8080, base={"no_proxy": "intranet"})
        assert env["no_proxy"] == env["NO_PROXY"] == "intranet,127.0.0.1,localhost"

    def test_answers_on_loopback_and_tells_nobody(self, tmp_path: Path) -> None:
        env = airflow_environment.environment(tmp_path, 8123, base={})
        assert env["AIRFLOW__API__BASE_URL"] == "http://127.0.0.1:8123"
        assert env["AIRFLOW__API__HOST"] == "127.0.0.1"
        assert env["AIRFLOW__USAGE_DATA_COLLECTION__ENABLED"] == "False"
        assert env["AIRFLOW__CORE__LOAD_EXAMPLES"] == "False"


class TestPort:
    def test_that_is_free_is_taken_without_a_word(self) -> None:
        local_airflow.refuse_taken(free_port())

    def test_that_is_in_use_is_refused_by_name(self) -> None:
        import socket  # noqa: PLC0415

        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            with pytest.raises(PortTaken, match=f"port {other.getsockname()[1]} .*make up PORT="):
                local_airflow.refuse_taken(other.getsockname()[1])

    @pytest.mark.parametrize("text", ["http", "0", "65536", "-1", "٨٠"])
    def test_that_is_none_is_refused(self, text: str) -> None:
        with pytest.raises(UsageError, match="PORT="):
            up.port_from(text)

    @pytest.mark.parametrize(("text", "port"), [(None, 8080), ("", 8080), ("9000", 9000)])
    def test_comes_from_the_environment(self, text: str | None, port: int) -> None:
        assert up.port_from(text) == port


def test_progress_is_read_from_the_log_of_dags_test() -> None:
    heard: list[tuple[str, str]] = []
    progress = unscheduled_run.Progress(lambda task, state: heard.append((task, state)))
    for line in """\
2026-11-21T07:47:23 [info] [DAG TEST] starting task_id=begin map_index=-1 [airflow.sdk] loc=dag.py:1501
2026-11-21T07:47:28 [info] Task instance state updated [x] new_state=success rows_affected=1
2026-11-21T07:47:28 [info] [DAG TEST] end task task_id=begin map_index=-1 [airflow.sdk] loc=dag.py:1563
2026-11-21T07:47:28 [info] [DAG TEST] starting task_id=drain map_index=1 [airflow.sdk] loc=dag.py:1501
2026-11-21T07:47:28 [info] a message that says new_state=success
2026-11-21T07:47:28 [info] [DAG TEST] end task task_id=drain map_index=1 [airflow.sdk] loc=dag.py:1563
""".splitlines():
        progress.read(line)
    assert heard == [
        ("begin", "running"),
        ("begin", "success"),
        ("drain[1]", "running"),
        ("drain[1]", "failed"),
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_children_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    child = tmp_path / "child"
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, sys, time; from redrive.dev import child_processes as c;"
            " p = c.spawn(['/bin/sleep', '300'], os.environ, 2);"
            f" open({str(child)!r}, 'w').write(str(p.pid)); time.sleep(300)",
        ]
    )
    try:
        deadline = time.monotonic() + 120
        while not child.exists() or not child.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        sleeper = psutil.Process(int(child.read_text()))
        while sleeper.name() != "sleep":  # the leash comes first
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(parent.pid, signal.SIGKILL)
        gone, alive = psutil.wait_procs([sleeper], timeout=60)
        assert (len(gone), alive) == (1, [])
    finally:
        parent.kill()
        parent.wait()


class TestSpark:
    """Whether `make up` starts a Spark Connect server of its own."""

    def configured(self, home: Path, spark: str) -> dict[str, str]:
        (home / "redrive.yaml").write_text(f"spark: {spark}\n")
        return {"REDRIVE_HOME": str(home), "REDRIVE_CONFIG": str(home / "redrive.yaml")}

    def test_is_ours_with_the_configuration_of_the_house(self) -> None:
        assert up.spark_is_ours({})

    def test_is_not_where_somebody_has_chosen(self) -> None:
        assert not up.spark_is_ours({"REDRIVE_SPARK_RUNNER": "local"})

    def test_is_not_where_the_configuration_would_not_find_it(self, tmp_path: Path) -> None:
        assert not up.spark_is_ours(self.configured(tmp_path, "{runner: local}"))
        theirs = "{runner: connect, remote: 'sc://spark:15002'}"
        assert not up.spark_is_ours(self.configured(tmp_path, theirs))
