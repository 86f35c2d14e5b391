"""The doctor: windows that could miss a return, and rights that it can't try."""

import re
import socket
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import typer
import yaml

from redrive import settings as configuration
from redrive.brokers import memory
from redrive.brokers.base import ConsumerStats, Depth, QueueInfo
from redrive.brokers.memory import MemoryBroker
from redrive.cli.inspection import doctor as look_at_everything
from redrive.errors import KeysRefused, SettingsError
from redrive.ledger.engine import Ledger
from redrive.spark import session_conf, submit
from redrive.stages import doctor
from redrive.stages.context import utc_now
from redrive.stages.doctor import Finding
from tests.workshop import REFUSED, ROUTE, Workshop

PLAIN_SOURCE = {"sources": [{"queue": "orders-dlq"}]}


class Telling(MemoryBroker):
    """Knows the lease and the deliveries of the origin, as SQS does."""

    def describe(self, queue: str) -> QueueInfo:
        return super().describe(queue)._replace(origin_lease=timedelta(minutes=10), max_deliveries=3)


def examine(workshop: Workshop, monkeypatch: pytest.MonkeyPatch, broker: MemoryBroker | None = None) -> list[Finding]:
    monkeypatch.setattr(doctor, "open_broker", lambda *_: broker or workshop.broker)
    return doctor.examine(workshop.settings, ["orders"])


class Renewing(MemoryBroker):
    """Consumers' library renews leases for an hour, as Pub/Sub's does."""

    def __init__(self, *where: Any) -> None:
        super().__init__(*where)
        self.capabilities = replace(self.capabilities, client_lease=timedelta(hours=1))


def test_how_long_consumers_renew_their_leases_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop = Workshop(tmp_path, **PLAIN_SOURCE)
    subject = "orders: source orders-dlq: lease"
    [found] = [one for one in examine(workshop, monkeypatch, Renewing(workshop.world)) if one.subject == subject]
    assert found.level == "warning"
    assert "1:00:00" in found.text
    assert "sources[].lease" in found.text

    told = Workshop(tmp_path, sources=[{"queue": "orders-dlq", "lease": "20m"}])
    assert not [one for one in examine(told, monkeypatch, Renewing(told.world)) if one.subject == subject]


def test_what_can_not_be_put_back_is_said_before_the_first_drain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = Workshop(tmp_path)
    broker = Renewing(workshop.world)
    broker.capabilities = replace(broker.capabilities, takes_back=False)
    [found] = [one for one in examine(workshop, monkeypatch, broker) if one.subject.endswith(": restore")]
    assert found.level == "warning"
    assert "redrive run orders --dry-run" in found.text
    assert not [one for one in examine(workshop, monkeypatch) if one.subject.endswith(": restore")]


def test_a_consumer_that_is_given_no_more_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop = Workshop(tmp_path)
    broker = Renewing(workshop.world)
    broker.capabilities = replace(broker.capabilities, consumer_statistics=True)
    told = [ConsumerStats("worker/a", 50_000, 7, blocked=True), ConsumerStats("worker/b", 3, 7)]
    monkeypatch.setattr(broker, "consumers", lambda _: told, raising=False)
    found = [one for one in examine(workshop, monkeypatch, broker) if one.subject.endswith(": consumers")]
    assert [(one.level, one.text) for one in found] == [
        ("warning", "worker/a holds 50,000 messages and is given no more until it acks")
    ]


@pytest.mark.parametrize(
    ("rate", "lag", "as_of", "told"),
    [
        ({"per_second": 500, "max_in_flight": 1000}, 60, None, True),
        ({"per_second": 16, "max_in_flight": 1000}, 60, None, False),
        ({"max_in_flight": 1000}, 0, None, False),
        ({"max_in_flight": 1000}, 60, 1, False),
        ({"per_second": 500}, 60, None, False),
    ],
    ids=["late", "slow enough", "in time", "with its moment", "nobody said what fits"],
)
def test_what_may_be_sent_before_a_late_depth_shows_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: dict[str, Any], lag: float, as_of: int | None, *, told: bool
) -> None:
    workshop = Workshop(tmp_path, rate=rate)
    broker = MemoryBroker(workshop.world)
    broker.capabilities = replace(broker.capabilities, depth_lag=timedelta(seconds=lag))
    monkeypatch.setattr(broker, "depth", lambda _: Depth(0, 0, 0, as_of=as_of))
    found = [one for one in examine(workshop, monkeypatch, broker) if one.subject == "orders: destination orders: rate"]
    assert [(one.level, "30,000" in one.text, "rate.max_in_flight (1,000)" in one.text) for one in found] == (
        [("warning", True, True)] if told else []
    )


def about_the_window(found: list[Finding]) -> list[tuple[str, str]]:
    return [(one.level, one.text) for one in found if one.subject == "orders: canary.observe"]


def with_window(folder: Path, observe: str, **route: Any) -> Workshop:
    return Workshop(folder, canary={"observe": observe}, **route)


def test_a_window_is_held_against_what_the_broker_says_of_the_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = with_window(tmp_path, "29m", **PLAIN_SOURCE)
    [(level, text)] = about_the_window(examine(workshop, monkeypatch, Telling(workshop.world)))
    assert level == "error"
    assert "0:30:00" in text


def test_a_window_that_is_long_enough_is_not_mentioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop = with_window(tmp_path, "30m", **PLAIN_SOURCE)
    assert about_the_window(examine(workshop, monkeypatch, Telling(workshop.world))) == []


def test_where_nobody_tells_a_window_is_held_against_what_a_run_would_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = with_window(tmp_path, "1m", sources=[{"queue": "unheard-of"}])
    [(level, text)] = about_the_window(examine(workshop, monkeypatch))
    assert (level, "0:02:30" in text, "max_deliveries" in text) == ("error", True, True)


def test_a_window_is_held_against_the_times_to_return_that_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = with_window(tmp_path, "1m", requeue_attempts=5)
    workshop.die(*[f"{n}" for n in range(25)], error=REFUSED)
    workshop.cycle()
    workshop.advance(minutes=40)
    workshop.consume(lambda _: REFUSED)
    workshop.cycle()
    [(level, text)] = about_the_window(examine(workshop, monkeypatch))
    assert level == "error"
    assert "99 of 100 returns" in text


def test_a_window_in_which_the_slowest_could_not_fail_is_told_although_returns_came_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = with_window(tmp_path, "10m", requeue_attempts=5, **PLAIN_SOURCE)
    workshop.die(*[f"{n}" for n in range(25)], error=REFUSED)
    workshop.cycle()
    workshop.advance(minutes=5)
    workshop.consume(lambda _: REFUSED)
    workshop.cycle()
    [(level, text)] = about_the_window(examine(workshop, monkeypatch, Telling(workshop.world)))
    assert (level, "0:30:00" in text, "99 of 100 returns" in text) == ("warning", True, True)


@pytest.mark.parametrize(("lease", "told"), [("1h12m", False), ("2h", True)])
def test_a_window_of_auto_that_is_very_long_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lease: str, *, told: bool
) -> None:
    source = {"queue": "orders-dlq", "lease": lease, "max_deliveries": 5}
    found = about_the_window(examine(with_window(tmp_path, "auto", sources=[source]), monkeypatch))
    assert [(level, "10:00:00" in text, "set canary.observe" in text) for level, text in found] == (
        [("warning", True, True)] if told else []
    )


def test_rights_that_can_not_be_tried_are_named_and_not_called_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = Workshop(tmp_path)
    assert not [one for one in examine(workshop, monkeypatch) if one.level == "untried"]
    workshop.broker.capabilities = replace(memory.MEMORY_CAPABILITIES, untried_rights="to take and to give")
    [found] = [one for one in examine(workshop, monkeypatch) if one.level == "untried"]
    assert found.subject == "orders: rights"
    assert "to take and to give" in found.text


def test_a_route_that_is_left_out_is_an_error_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workshop = Workshop(tmp_path)
    file = tmp_path / "redrive.yaml"
    routes = {"orders": ROUTE, "mail": ROUTE | {"retries": 3}}
    file.write_text(yaml.safe_dump({"database": workshop.settings.database, "routes": routes}))
    monkeypatch.setenv("REDRIVE_CONFIG", str(file))
    monkeypatch.setattr(doctor, "open_broker", lambda *_: workshop.broker)
    with pytest.raises(typer.Exit):
        look_at_everything()
    said = " ".join(capsys.readouterr().out.split())
    assert "routes.mail.retries: unknown key" in said
    assert "orders: source" in said


def test_a_route_that_there_is_not_is_a_mistake_in_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop = Workshop(tmp_path)
    file = tmp_path / "redrive.yaml"
    file.write_text(
        yaml.safe_dump({"database": workshop.settings.database, "routes": {"orders": ROUTE, "mail": {"retries": 3}}})
    )
    monkeypatch.setenv("REDRIVE_CONFIG", str(file))
    with pytest.raises(SettingsError, match="there is no such route"):  # exit code 2, not 1 as for what is found
        look_at_everything("ordres")
    with pytest.raises(typer.Exit):
        look_at_everything("mail")


def about_spark(folder: Path, text: str) -> Finding:
    return doctor.examine(configuration.parse(text, env={}, root=folder), [])[-1]


@pytest.mark.parametrize("runner", ["local", "submit"])
def test_without_java_a_runner_that_needs_one_can_not_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runner: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    found = about_spark(tmp_path, f"spark: {{runner: {runner}, master: 'spark://m:7077'}}")
    assert (found.level, found.subject) == ("error", "spark")
    assert "/nowhere" in found.text


def test_spark_connect_is_looked_for_where_it_is_configured_and_needs_no_java_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        text = f"spark: {{runner: connect, remote: 'sc://127.0.0.1:{port}/;token=secret'}}"
        refused = about_spark(tmp_path, text)
        server.listen()
        found = about_spark(tmp_path, text)
    assert (refused.level, f"127.0.0.1:{port}" in refused.text, "secret" in refused.text) == ("error", True, False)
    assert (found.level, found.text) == ("ok", f"runner connect; 127.0.0.1:{port} answers")


def test_what_nobody_expected_is_a_finding_too_and_its_text_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise ValueError("amqp://u:secret@h:x")

    workshop = Workshop(tmp_path, **PLAIN_SOURCE)
    monkeypatch.setattr(workshop.broker, "describe", fails)
    monkeypatch.setattr(submit, "java_missing", fails)
    found = examine(workshop, monkeypatch)
    told = {one.subject: one for one in found}
    assert told["ledger"].level == "ok"
    assert told["orders: source orders-dlq"].level == "ok", "what was seen before it"
    for subject in ("spark", "route orders"):
        assert (told[subject].level, "ValueError" in told[subject].text) == ("error", True)
    assert "secret" not in str(found)


def test_a_spark_that_starts_slowly_is_told_how_to_start_sooner(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive = tmp_path / "spark.jsa"
    monkeypatch.setattr(session_conf, "class_archive", lambda: archive)
    monkeypatch.setattr(submit, "java_missing", lambda: None)
    assert "redrive.dev.class_archive" in about_spark(tmp_path, "spark: {runner: local}").text
    archive.touch()
    assert about_spark(tmp_path, "spark: {runner: local}").text == "runner local"


@pytest.mark.parametrize(
    ("route", "level", "says"),
    [
        ({}, "ok", "by the broker's word: orders"),
        ({"queue": "unheard-of"}, "error", "list their queues under routes.orders.sources.0.origins"),
        ({"queue": "unheard-of", "origins": ["shop.*"]}, "ok", "by the configuration: shop.*"),
        ({"origins": ["*"]}, "warning", "any queue"),
    ],
)
def test_a_source_without_destination_says_which_origins_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, route: dict[str, Any], level: str, says: str
) -> None:
    workshop = Workshop(tmp_path, sources=[{"queue": "orders-dlq"} | route], destination=None)
    workshop.world.create("unheard-of")
    [found] = [one for one in examine(workshop, monkeypatch) if one.subject.endswith(": origins")]
    assert found.level == level
    assert says in found.text


def test_messages_that_consumers_publish_to_a_dead_letter_queue_themselves_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = Workshop(tmp_path, sources=[{"queue": "orders-dlq"}], destination=None)
    workshop.die("rejected")
    workshop.cycle()
    assert len([one for one in examine(workshop, monkeypatch) if one.subject.endswith(": origins")]) == 1
    workshop.die("published", "published, too", origin=None)
    workshop.cycle()
    [_, found] = [one for one in examine(workshop, monkeypatch) if one.subject.endswith(": origins")]
    assert found.level == "warning"
    assert "2 of its newest 3 messages don't tell where they failed" in found.text


def test_with_a_destination_nobody_asks_for_origins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop = Workshop(tmp_path, **PLAIN_SOURCE)
    assert [one for one in examine(workshop, monkeypatch) if one.subject.endswith(": origins")] == []


@pytest.mark.parametrize(
    ("written", "level", "told"),
    [
        ('{"type": "object"}', "ok", "is a JSON Schema"),
        ('{"type": "objekt"}', "error", "no JSON Schema"),
        ("{", "error", "schema.json"),
        (None, "error", "No such file"),
    ],
)
def test_a_schema_of_bodies_is_read_before_somebody_corrects_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str | None, level: str, told: str
) -> None:
    schema = tmp_path / "schema.json"
    if written is not None:
        schema.write_text(written)
    found = examine(Workshop(tmp_path / "place", body_schema=str(schema)), monkeypatch)
    (one,) = [one for one in found if one.subject == "orders: body_schema"]
    assert one.level == level
    assert told in one.text


@pytest.mark.parametrize(
    ("sources", "behind", "told"),
    [
        (["orders-dlq"], "orders-dlq", None),
        (["parked"], "orders-dlq", "goes to orders-dlq, which this route does not drain"),
        (["arn:aws:sqs:eu-central-1:17:orders-dlq"], "orders-dlq", None),
        (["orders-dlq"], "work", None),  # by way of a queue in which messages wait
        (["parked"], "work", "goes to work and then orders-dlq, which"),
        (["parked"], None, None),  # nobody knows
    ],
)
def test_what_fails_again_has_to_come_to_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: list[str], behind: str | None, told: str | None
) -> None:
    """Else it would be presumed that all that is sent stayed away."""
    workshop = Workshop(tmp_path, sources=[{"queue": queue} for queue in sources])
    workshop.world.create("work", dead_letter_queue="orders-dlq")
    workshop.world.create("orders", dead_letter_queue=behind)
    found = [one for one in examine(workshop, monkeypatch) if one.subject == "orders: destination orders: returns"]
    assert [one.level for one in found] == (["warning"] if told else [])
    assert not told or told in found[0].text


def test_who_can_not_be_told_is_an_error_although_the_connection_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = Workshop(tmp_path, notify=["hook", {"connection": "post", "to": ["ana@example.org"]}, "post", "chat"])
    monkeypatch.setenv("AIRFLOW_CONN_HOOK", "https://hooks.example.org/alerts")
    monkeypatch.setenv("AIRFLOW_CONN_POST", "smtp://mail.example.org/?from_email=redrive%40example.org")
    monkeypatch.setenv("AIRFLOW_CONN_CHAT", "slackwebhook://:T0%2FB0%2Fx@")
    found = [(one.level, one.text) for one in examine(workshop, monkeypatch) if one.subject == "orders: notify"]
    assert [level for level, _ in found] == ["error", "ok", "error", "ok"]
    assert "the path of a connection's URI is the schema" in found[0][1]
    assert found[1][1] == "connection post (smtp); nothing was sent to it"
    assert "`to` in notify" in found[2][1]


@pytest.mark.parametrize(("takes", "level"), [(r"\d+", "ok"), (r".+", "ok"), (r"\d{3}", "error")])
def test_a_check_whose_keys_are_numbers_is_asked_about_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes: str, level: str
) -> None:
    def processed(_: object, keys: list[str]) -> set[str]:
        if not all(re.fullmatch(takes, key) for key in keys):
            raise KeysRefused("processed_check through connection shop: invalid input syntax")
        return set()

    monkeypatch.setattr("redrive.connections.processed_check.Checker.processed", processed)
    check = {"connection": "shop", "query": "select id from done where id in :keys", "key": "attribute:message_id"}
    workshop = Workshop(tmp_path, processed_check=check)
    [found] = [one for one in examine(workshop, monkeypatch) if one.subject == "orders: processed_check"]
    assert found.level == level


def test_a_ledger_that_may_lose_commits_is_warned_of(
    postgres_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it forgot is sent again. The tests' own server waits for no disk."""
    workshop = Workshop(tmp_path, postgres_database)
    workshop.ledger.close()

    def told() -> str:
        found = [one for one in examine(workshop, monkeypatch) if one.subject == "ledger: commits"]
        [(level, text)] = [(one.level, one.text.partition(": after")[0]) for one in found]
        assert level == "warning"
        return text.removeprefix("fsync is off").removeprefix(", ")

    def server(**parameters: str) -> None:
        for name, value in parameters.items():
            with psycopg.connect(address, autocommit=True) as connection:
                connection.execute(f"alter database {postgres_database.rpartition('/')[2]} set {name} = {value}")

    address = postgres_database.replace("+psycopg", "")
    assert told() == "synchronous_commit is off"
    server(synchronous_commit="local")
    assert told() == "synchronous_commit is local"
    server(synchronous_commit="on")
    assert told() == "", "nothing but fsync"
    standby = psycopg.connect(f"{address}?replication=true", autocommit=True)  # it is one to the server
    try:
        assert told().startswith("it has standbys,")
    finally:
        standby.close()


def test_who_takes_changes_by_a_logical_slot_is_no_standby(postgres_database: str) -> None:
    ledger = Ledger(postgres_database)
    try:
        with ledger.write() as connection:
            columns = "select 1 as pid, 'streaming' as state"
            connection.exec_driver_sql(f"create temporary view pg_stat_replication as {columns}")
            slots = "select 1 as active_pid, cast('logical' as text) as slot_type"
            connection.exec_driver_sql(f"create temporary view pg_replication_slots as {slots}")
            connection.exec_driver_sql("set local search_path to pg_temp, pg_catalog")
            connection.exec_driver_sql("set local synchronous_commit to on")
            assert ledger.dialect.may_lose(connection) == "fsync is off"
            connection.exec_driver_sql(f"create or replace temporary view pg_replication_slots as {slots} where false")
            assert "it has standbys" in (ledger.dialect.may_lose(connection) or "")
    finally:
        ledger.close()


def test_a_clock_that_differs_from_the_ledger_s_is_warned_of(
    postgres_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = Workshop(tmp_path, postgres_database)

    def told() -> list[str]:
        return [one.text for one in examine(workshop, monkeypatch) if one.subject == "ledger: clock"]

    assert told() == []
    monkeypatch.setattr(doctor, "utc_now", lambda: utc_now() + timedelta(hours=1))
    [text] = told()
    assert re.search(r"differ by (3600|3599) s: Redrive reckons with 120 s", text)
    workshop.ledger.close()


def test_a_ledger_in_a_file_loses_nothing_and_has_no_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = examine(Workshop(tmp_path), monkeypatch)
    assert [one.subject for one in found if one.subject.startswith("ledger")] == ["ledger"]
