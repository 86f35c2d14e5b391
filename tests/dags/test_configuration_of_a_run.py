"""A run works with what it began with: an edit in the middle counts from the next run on."""

import contextlib
import copy
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest
import yaml
from tests.classifying import classify
from tests.workshop import KEY_ERROR, REFUSED, ROUTE, Workshop, micros

from redrive import settings as configuration
from redrive.airflow import failures, run_params, spark_operators, tasks
from redrive.cli.control import status
from redrive.errors import BalanceBroken, BrokerUnavailable, QueuesFailed, SettingsError, UsageError
from redrive.ledger.account.balance import Problem
from redrive.ledger.engine import sql
from redrive.ledger.review import applying
from redrive.settings import Settings
from redrive.stages import context as stage_context
from redrive.stages import deliver as delivering
from redrive.stages import pipeline
from redrive.stages.context import Run


class Shop(Workshop):
    """A workshop whose configuration is a file that people edit, and whose runs are Airflow's tasks."""

    def configure(self, database: str, **route: Any) -> Settings:
        self.written = {
            "database": database,
            "staging": str(self.folder / "staging"),
            "routes": {"orders": ROUTE | route},
        }
        self.edit({})
        return configuration.load()

    @property
    def file(self) -> Path:
        return self.folder / "config" / "redrive.yaml"

    def edit(self, route: dict[str, Any], **general: Any) -> None:
        """The file as it was at first, but for these keys."""
        text = copy.deepcopy(self.written) | general
        text["routes"]["orders"] |= route
        self.file.parent.mkdir(exist_ok=True)
        self.file.write_text(yaml.safe_dump(text))

    def task(self, name: str, *arguments: Any, **options: Any) -> Any:
        return getattr(tasks, name).function(*arguments, **options)

    def to_the_drain(self, dag_run: str) -> dict[str, Any]:
        """The tasks ``begin`` to ``drain`` of a run; what ``begin`` leaves in XCom."""
        self.dag_run = dag_run
        self.run: dict[str, Any] = self.task("begin", "orders")
        self.task("observe", self.run)
        self.drained = self.task("drain", self.run, shard=0, shards=1)
        return self.run

    def from_the_drain_on(self) -> dict[str, Any]:
        """Its other tasks; the report."""
        self.manifest = self.task("prepare", self.run)
        if self.manifest is not None:
            with spark_operators.holding_route(self.context()):
                classify(self.manifest)
        self.task("load")
        self.task("resolve", self.run)
        self.task("plan", self.run)
        self.task("deliver", self.run, shard=0, shards=1)
        self.task("escalate", self.run)
        report: dict[str, Any] = self.task("report", self.run)
        self.task("finish", self.run)
        return report

    # --- what Airflow is to a task ------------------------------------------------------------------

    try_number, max_tries = 1, 0
    manifest: str | None = None
    pushed: ClassVar[dict[str, object]] = {}

    def xcom_pull(self, task_ids: str, key: str = "return_value") -> Any:
        if key != "return_value":
            return self.pushed.get(key)
        return {"begin": self.run, "prepare": self.manifest}[task_ids]

    def xcom_push(self, key: str, value: object) -> None:
        self.pushed[key] = value

    def get_task_states(self, *, run_ids: list[str], **_: object) -> dict[str, dict[str, str]]:
        return {run_ids[0]: {"report": "success"}}

    def context(self) -> dict[str, Any]:
        params = {name: param.value for name, param in run_params.route_params().items()}
        dag_run = SimpleNamespace(dag_id="redrive_orders", run_id=self.dag_run, run_type="manual", conf={})
        return {
            "ti": self,
            "task": SimpleNamespace(),
            "dag_run": dag_run,
            "params": params,
            "outlet_events": defaultdict(MagicMock),
        }


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setenv("REDRIVE_HOME", str(tmp_path))
    monkeypatch.delenv("REDRIVE_CONFIG", raising=False)
    shop = Shop(tmp_path)
    shop.time.now = micros(datetime.now(UTC))  # the tasks' clock is the real one
    for queue in ("elsewhere", "other-dlq"):
        shop.world.create(queue, lease=timedelta(minutes=5))
    monkeypatch.setattr(stage_context, "open_broker", lambda *_: shop.broker)
    monkeypatch.setattr(shop.broker, "close", lambda: None)
    monkeypatch.setattr(tasks, "get_current_context", shop.context)
    monkeypatch.setattr(delivering, "GIVE_UP", 0.0)  # nobody works the destination off: one that is full stays full
    yield shop
    shop.ledger.close()


B: dict[str, Any] = {
    "sources": [{"queue": "other-dlq", "lease": "2s", "max_deliveries": 3}],
    "destination": {"queue": "elsewhere"},
    "rate": {"max_in_flight": 1},
}


def test_an_edit_in_the_middle_counts_from_the_next_run_on(shop: Shop) -> None:
    shop.die("a", "b", "c")
    shop.to_the_drain("first")
    shop.edit(B)
    first = shop.from_the_drain_on()
    assert (sorted(shop.bodies("orders")), shop.bodies("elsewhere")) == ([b"a", b"b", b"c"], [])

    shop.die("not drained any more")
    shop.die("d", "e", queue="other-dlq")
    shop.to_the_drain("second")
    assert shop.drained["drained"] == 2, "from the source that the file names now"
    second = shop.from_the_drain_on()
    assert (len(shop.bodies("orders")), len(shop.bodies("elsewhere"))) == (3, 1), "one at a time, to elsewhere"

    hashes = dict(shop.query("select airflow_run_id, configuration from runs"))
    assert hashes["first"] != hashes["second"]
    assert (first["configuration"], second["configuration"]) == (hashes["first"][:8], hashes["second"][:8])
    assert shop.query("select reason, count from audit_events where action = 'change_configuration'") == [
        (f"{second['configuration']}, before {first['configuration']}", 1),
        ("orders-dlq is no source of the route any more: what may have come back to it is never presumed.", 3),
    ]


def test_a_run_goes_on_whose_route_is_broken_meanwhile_and_the_next_one_fails_at_once(shop: Shop) -> None:
    shop.die("a", "b")
    shop.to_the_drain("first")
    other = {"broker": "memory", "sources": [{"queue": "other-dlq"}]}
    shop.edit({"retries": 3}, routes={"orders": dict(ROUTE), "other": other})
    report = shop.from_the_drain_on()
    assert report["clean"] is not None
    assert len(shop.bodies("orders")) == 2
    assert shop.query("select status from runs") == [("succeeded",)]
    with pytest.raises(SettingsError, match=r"routes\.orders\.retries: unknown key"):
        shop.to_the_drain("second")
    assert isinstance(SettingsError(), failures.HOPELESS), "so that nothing is tried again"


def test_a_source_that_the_file_no_longer_names_is_drained_to_the_end_of_the_run(shop: Shop) -> None:
    shop.die("a")
    shop.dag_run = "first"
    shop.run = shop.task("begin", "orders")
    shop.edit(B)
    assert shop.task("drain", shop.run, shard=0, shards=1)["drained"] == 1


def test_what_is_secret_stays_out_of_the_ledger(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's values do, and the ledger's own address. What a variable says is read again by each task."""
    monkeypatch.setenv("WHERE", "orders")
    shop.edit({"destination": {"queue": "${WHERE}"}}, spark={"conf": {"spark.token": "${TOKEN:-none}"}})
    monkeypatch.setenv("TOKEN", "hush")
    shop.die("a")
    shop.to_the_drain("first")
    [(text,)] = shop.query("select text from configurations")
    assert "${WHERE}" in text
    assert "${TOKEN:-none}" in text
    for hidden in ("hush", "database", "redrive.db"):
        assert hidden not in text
    monkeypatch.setenv("WHERE", "elsewhere")
    shop.from_the_drain_on()
    assert shop.bodies("elsewhere") == [b"a"]


def test_a_variable_that_is_gone_is_told_with_the_run(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "orders")
    shop.edit({"destination": {"queue": "${WHERE}"}})
    run = shop.to_the_drain("first")
    shop.edit({})
    monkeypatch.delenv("WHERE")
    with pytest.raises(
        SettingsError,
        match=rf"configuration {run['configuration'][:8]}, with which run orders\.first began: .*WHERE is not set",
    ):
        shop.from_the_drain_on()


def test_a_configuration_that_is_missing_is_told_and_the_route_is_given_back(shop: Shop) -> None:
    run = shop.to_the_drain("first")
    with shop.ledger.write() as connection:
        connection.exec_driver_sql("delete from configurations")
    with pytest.raises(
        SettingsError, match=rf"configuration {run['configuration'][:8]}, with which .* doesn't have it"
    ):
        shop.task("prepare", run)
    shop.task("finish", run)
    assert shop.query("select run_id from route_state") == [(None,)]


def test_spark_is_started_as_the_run_began_but_for_another_runner(shop: Shop) -> None:
    shop.edit({}, spark={"runner": "submit", "master": "spark://a:7077"})
    parsed = configuration.load().spark
    shop.to_the_drain("first")
    shop.edit({}, spark={"runner": "submit", "master": "spark://b:7077"})
    assert spark_operators.spark_of(shop.context(), parsed).master == "spark://a:7077"
    shop.edit({}, spark={"runner": "connect", "remote": "sc://c"})
    connect = configuration.load().spark
    assert spark_operators.spark_of(shop.context(), connect) == connect


def test_runs_of_before_this_version_go_on_with_the_file(shop: Shop) -> None:
    run = shop.to_the_drain("first")
    del run["configuration"]
    current = Run.from_json(run)
    given = configuration.load()
    assert pipeline.settings_of(current, given) is given


def test_a_begin_that_is_tried_again_begins_with_what_the_file_says_then(shop: Shop) -> None:
    shop.to_the_drain("first")
    shop.edit(B)
    again = shop.to_the_drain("first")
    assert shop.query("select configuration from runs") == [(again["configuration"],)]
    assert shop.query("select count(*) from configurations") == [(2,)]


def test_a_begin_that_dies_leaves_neither_run_nor_configuration(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    from redrive.ledger import leases  # noqa: PLC0415

    class Killed(BaseException):
        """The process dies here."""

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(leases, "_move", die)  # the last thing that it writes
        with pytest.raises(Killed):
            shop.to_the_drain("first")
    assert shop.query("select count(*) from configurations") == [(0,)]
    assert shop.query("select count(*) from runs") == [(0,)]
    shop.to_the_drain("first")


def test_retention_forgets_what_no_run_began_with_for_long(shop: Shop) -> None:
    shop.die("a")
    shop.to_the_drain("first")
    shop.from_the_drain_on()
    shop.edit(B)
    shop.to_the_drain("second")
    later = pipeline.utc_now() + timedelta(days=400)
    pipeline.retention(configuration.load(), later)
    kept = shop.query("select configuration from runs where status = 'running'")
    assert shop.query("select hash from configurations") == kept, "of a run that is under way"
    shop.task("finish", shop.run)
    pipeline.retention(configuration.load(), later)
    assert shop.query("select count(*) from configurations") == [(0,)]
    assert shop.query("select count(*) from runs where configuration is null") == [(0,)], "the hash stays"


def test_what_the_audit_complains_about_is_kept_longer_and_nothing_waits_for_ever(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    shop.dag_run = "scheduled__1"
    monkeypatch.setattr(pipeline, "retention", lambda _, longer: asked.append(list(longer)) or {})

    def audited(*problems: Problem) -> None:
        shop.pushed = {}
        monkeypatch.setattr(pipeline, "audit", lambda _: {"problems": list(problems)})
        with contextlib.nullcontext() if not problems else pytest.raises(BalanceBroken):
            shop.task("audit")
        shop.task("retention")

    audited()
    audited(Problem("a copy is gone", "mail"))
    audited(Problem("it does not add up", None))
    shop.pushed = {}
    shop.task("retention")  # of an audit that had no end
    assert asked == [[], ["mail"], ["orders"], ["orders"]]


def test_status_says_what_the_last_run_began_with_and_that_the_file_was_edited(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.to_the_drain("first")
    status()
    began_with = shop.run["configuration"][:8]
    assert f"configuration {began_with}\n" in capsys.readouterr().out
    shop.edit(B)
    status()
    assert (
        f"configuration {began_with}; the file was edited since: the next run begins with " in capsys.readouterr().out
    )


def test_a_route_that_says_one_long_word_often_is_not_kept(tmp_path: Path) -> None:
    conf = ", ".join(f"k{n}: *long" for n in range(50))
    text = f"spark: {{conf: {{k: &long {'x' * 100_000}, {conf}}}}}\n"
    text += "routes: {orders: {broker: memory, sources: [{queue: a}], destination: {queue: o}}}"
    with pytest.raises(SettingsError, match=r"routes\.orders: larger than 4"):
        configuration.written(configuration.parse(text, env={}, root=tmp_path), "orders")


def test_the_hash_is_of_what_concerns_the_route(tmp_path: Path) -> None:
    def hash_of(text: str, route: str = "orders") -> str:
        found = configuration.written(configuration.parse(text, env={"A": "a"}, root=tmp_path), route)
        assert found is not None
        return found.hash

    orders = "orders: {broker: memory, sources: [{queue: a}], destination: {queue: o}}"
    two, three = (f"routes: {{{orders}, other: {{broker: memory, sources: [{{queue: {q}}}]}}}}" for q in "bc")
    assert hash_of(two) == hash_of(f"# why\ndatabase: sqlite:///x.db\n{three}")
    assert hash_of(two, "other") != hash_of(three, "other")
    assert hash_of(two) != hash_of(two.replace("queue: a", "queue: '${A}'"))
    assert hash_of(two) != hash_of(f"defaults: {{retention: 9d}}\n{two}")
    assert configuration.written(configuration.Settings(), "orders") is None


def test_a_destination_that_fails_is_tried_again_and_then_people_are_asked_and_the_report_fails(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.die("for the destination", error=REFUSED)
    shop.die("for people", error=KEY_ERROR)
    shop.to_the_drain("scheduled__1")
    deliver = tasks.deliver.function

    def in_two_tries(*arguments: Any, **options: Any) -> Any:
        def away(queue: str) -> Any:
            raise BrokerUnavailable(f"{queue}: nobody answers")

        monkeypatch.setattr(shop.broker, "depth", away)
        shop.max_tries = 1
        with pytest.raises(BrokerUnavailable):
            deliver(*arguments, **options)
        shop.try_number = 2
        return deliver(*arguments, **options)

    monkeypatch.setattr(tasks.deliver, "function", in_two_tries)
    with pytest.raises(QueuesFailed, match="queue orders failed: BrokerUnavailable: orders: nobody answers"):
        shop.from_the_drain_on()
    assert shop.states() == {"waiting": 1, "escalated": 1}


def test_the_delivery_of_what_was_released_fails_for_a_destination_when_people_are_asked(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.world.faults.publishes.append("retry")
    shop.die("1", error=REFUSED)
    shop.to_the_drain("scheduled__1")
    shop.from_the_drain_on()
    with shop.ledger.write() as connection:
        connection.execute(sql("update messages set next_attempt_at = :now"), {"now": shop.now()})
    shop.world.faults.forbidden = {("orders", "depth")}
    shop.dag_run = "scheduled__2"
    asked = []
    monkeypatch.setattr(pipeline, "escalate", lambda *_: asked.append("escalate") or {})
    with pytest.raises(QueuesFailed, match="queue orders failed: PermissionRefused"):
        shop.task("deliver_released", "orders")
    assert asked == ["escalate"]
    assert shop.query("select status from runs order by fence desc limit 1") == [("failed",)]


def test_what_was_released_is_found_though_the_task_that_applied_it_was_killed(shop: Shop) -> None:
    shop.die("1", error=KEY_ERROR)
    shop.to_the_drain("scheduled__1")
    shop.from_the_drain_on()
    assert shop.task("find_released") == []
    with shop.ledger.write() as connection:
        connection.exec_driver_sql("update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    assert shop.task("apply_decisions")["orders"]["released"] == 1
    assert shop.task("apply_decisions") == {}, "its second try"
    assert shop.task("find_released") == ["orders"]
    shop.dag_run = "scheduled__2"
    assert shop.task("deliver_released", "orders")["redelivered"] == 1
    assert shop.task("find_released") == []


def test_one_slow_delivery_of_what_was_released_does_not_keep_decisions_on_other_routes_waiting(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.edit({"rate": {"per_second": 1}, "canary": "off"})
    shop.die(*"12345", error=KEY_ERROR)
    shop.to_the_drain("scheduled__1")
    shop.from_the_drain_on()
    with shop.ledger.write() as connection:
        connection.exec_driver_sql("update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    shop.task("apply_decisions")
    monkeypatch.setattr(delivering, "GIVE_UP", 30.0)
    monkeypatch.setattr(tasks, "RELEASED_FOR", timedelta(seconds=2))
    sent = 0
    for again in range(2, 7):
        assert shop.task("find_released") == ["orders"], "what was left"
        shop.dag_run = f"scheduled__{again}"
        sent += (now := shop.task("deliver_released", "orders")["redelivered"])
        assert 0 < now < 5, "of what takes four seconds"
        assert shop.states() == ({"sent": sent, "waiting": 5 - sent} if sent < 5 else {"sent": 5}), "none is claimed"
        assert shop.query("select count(*) from delivery_slices where closed_at is null") == [(0,)]
        if sent == 5:
            break
    assert shop.task("find_released") == []


def test_more_routes_than_airflow_maps_go_in_turns(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MOST_ROUTES", 2)
    monkeypatch.setattr(applying, "to_send", lambda *_: ["gone", "orders"])
    assert shop.task("find_released") == ["orders"], "what is not configured is not sent"
    names = [f"r{number}" for number in range(3)]
    monkeypatch.setattr(applying, "to_send", lambda *_: names)
    many = SimpleNamespace(database=shop.settings.database, routes=dict.fromkeys(names))
    monkeypatch.setattr(tasks.configuration, "load", lambda: many)
    assert shop.task("find_released") == ["r0", "r1"]


def test_what_was_cleared_without_prepare_says_so(shop: Shop) -> None:
    """Airflow clears `begin` with it, so the run is another one for the ledger: what Spark had found for it is gone."""
    shop.die("a", "b")
    shop.to_the_drain("first")
    shop.manifest = shop.task("prepare", shop.run)
    shop.run = shop.task("begin", "orders")
    for again in (lambda: shop.task("load"), lambda: spark_operators.holding_route(shop.context()).__enter__()):
        with pytest.raises(UsageError, match=r"begun anew.*: clear `prepare`, with all that comes after it"):
            again()
    assert isinstance(UsageError(), failures.HOPELESS), "so that nothing is tried again"
    assert shop.from_the_drain_on()["new"] == 2

    shop.run = shop.task("begin", "orders")
    assert shop.task("load")["new"] == 0, "nothing waits for it"
