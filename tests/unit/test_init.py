"""``redrive init``: what it writes is read back, and nothing is overwritten."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests import command
from tests.servers import ROOT

from redrive import settings
from redrive.airflow import DAG_FILE
from redrive.cli import init
from redrive.dev import up
from redrive.errors import SettingsError

RABBIT = ("--broker", "rabbitmq", "--source", "shop.orders-dlq")


def answers(**other: object) -> init.Answers:
    plain = {
        "route": "orders",
        "broker": "rabbitmq",
        "connection": "mq",
        "sources": ["orders-dlq"],
        "destination": None,
    }
    return init.Answers(**{**plain, **other})  # type: ignore[arg-type]


def test_flags_make_a_configuration_and_a_dag_file_and_tell_what_to_do_next(tmp_path: Path) -> None:
    done = command.run("init", str(tmp_path), *RABBIT, "--destination", "orders", env={})
    assert done.returncode == 0, done.stderr
    route = settings.load(env={"REDRIVE_HOME": str(tmp_path)}).route("shop_orders")
    assert (route.broker, route.connection) == ("rabbitmq", "shop_orders_broker")
    assert [source.queue for source in route.sources] == ["shop.orders-dlq"]
    assert route.destination_of("shop.orders-dlq") == "orders"
    assert (tmp_path / "dags" / "redrive_dags.py").read_text() == DAG_FILE
    for word in (f"REDRIVE_HOME={tmp_path}", "AIRFLOW_CONN_SHOP_ORDERS_BROKER", "db upgrade", "doctor shop_orders"):
        assert word in done.stdout


def test_what_is_set_and_leads_elsewhere_is_to_be_unset_first(tmp_path: Path) -> None:
    folder = tmp_path / "my shop"
    steps = init.next_steps(folder, answers(), env={})
    assert f"export REDRIVE_HOME='{folder}'" in steps
    assert not [step for step in steps if step.startswith("unset")]
    assert steps == init.next_steps(folder, answers(), env={"REDRIVE_CONFIG": "config/redrive.yaml"}), "the same file"
    env = {"REDRIVE_CONFIG": "/srv/my.yaml", "REDRIVE_DATABASE_URL": "sqlite:///x.db", "REDRIVE_STAGING_URI": "s3://b"}
    found = [step.partition("   #")[0] for step in init.next_steps(folder, answers(), env=env)]
    *unset, home = found[found.index("unset REDRIVE_CONFIG") :][:4]
    assert unset == ["unset REDRIVE_CONFIG", "unset REDRIVE_DATABASE_URL", "unset REDRIVE_STAGING_URI"]
    assert home.startswith("export REDRIVE_HOME=")


def test_redrive_up_may_choose_sparks_runner_in_it(tmp_path: Path) -> None:
    init.write(tmp_path, answers())
    assert up.spark_is_ours({"REDRIVE_HOME": str(tmp_path)})


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "redrive_dags.py").write_text("# mine")
    done = command.run("init", str(tmp_path), *RABBIT, env={})
    assert done.returncode == 2
    assert "redrive_dags.py: there already, and not overwritten" in done.stderr
    assert (tmp_path / "dags" / "redrive_dags.py").read_text() == "# mine"
    assert not (tmp_path / "config").exists()


def test_beside_a_configuration_it_says_what_to_add(tmp_path: Path) -> None:
    assert command.run("init", str(tmp_path), *RABBIT, env={}).returncode == 0
    path = tmp_path / "config" / "redrive.yaml"
    before = path.read_text()
    done = command.run("init", str(tmp_path), *RABBIT, "--route", "payments", "--destination", "pay", env={})
    assert done.returncode == 2
    assert "Add this under `routes:`" in done.stdout
    assert "redrive doctor payments" in done.stdout
    assert "airflow dags unpause redrive_payments" in done.stdout
    assert path.read_text() == before
    section = done.stdout.split("\n\n")[1]
    path.write_text(f"{before}{section}\n")
    routes = settings.load(env={"REDRIVE_HOME": str(tmp_path)}).routes
    assert set(routes) == {"shop_orders", "payments"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--source", "q"), "--broker: is required where nobody can be asked"),
        (("--broker", "rabbitmq"), "--source: is required where nobody can be asked"),
        (("--broker", "rabbit", "--source", "q"), "rabbitmq"),
        ((*RABBIT, "--route", "My Orders"), "lower-case"),
    ],
)
def test_what_makes_no_configuration_is_told_and_nothing_is_written(
    tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    done = command.run("init", str(tmp_path), *words, env={})
    assert done.returncode == 2
    assert told in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_is_asked_of_whoever_sits_there(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "redrive", "init", str(tmp_path)],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "plugins")},
    ) as asking:
        os.write(ours, b"rabbitmq\norders.dlq\n\nmq\n\n")
        said = asking.communicate(timeout=60)[0].decode()
    os.close(ours)
    os.close(theirs)
    assert asking.returncode == 0, said
    assert "Broker (amazon_sqs, apache_pulsar, azure_service_bus, google_pubsub, rabbitmq)" in said
    route = settings.load(env={"REDRIVE_HOME": str(tmp_path)}).route("orders")
    assert (route.connection, route.destination) == ("mq", None)


@pytest.mark.parametrize(
    ("queue", "route"),
    [
        ("orders-dlq", "orders"),
        ("shop.orders.dlq", "shop_orders"),
        ("Orders_DeadLetter.fifo", "orders"),
        ("orders/$DeadLetterQueue", "orders"),
        ("persistent://shop/eu/orders-DLQ", "shop_eu_orders"),
        ("DLQ", "first"),
        ("x" * 60, "x" * 40),
    ],
)
def test_a_route_is_named_after_its_queue(queue: str, route: str) -> None:
    assert init.route_of(queue) == route


@example(queue="\x85", destination="\u2028")
@given(queue=st.text(min_size=1, max_size=30), destination=st.text(min_size=1, max_size=30))
def test_a_queue_of_any_name_is_read_back_or_refused(queue: str, destination: str) -> None:
    try:
        read = settings.parse(init.config(answers(sources=[queue], destination=destination)), env={}, root=Path("/x"))
    except SettingsError:
        assert queue == destination or not (queue + destination).isalnum()
        return
    assert read.route("orders").sources[0].queue == queue
    assert read.route("orders").destination_of(queue) == destination
