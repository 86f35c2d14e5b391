"""The shape of a route's DAG: what follows what, what is retried, what a run may be asked for."""

import gc
import itertools
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.definitions.context import _AIRFLOW_PARSING_CONTEXT_DAG_ID
from airflow.sdk.definitions.retry_policy import RetryAction
from airflow.sdk.exceptions import AirflowSkipException, ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

from redrive import settings as configuration
from redrive.airflow import definitions, failures, routes, run_params, tasks
from redrive.errors import (
    BrokerUnavailable,
    IllegalMove,
    LeaseLost,
    LedgerUnavailable,
    PermissionRefused,
    QueueMissing,
    QueuesFailed,
    RouteBusy,
    RoutePaused,
    SettingsError,
    UsageError,
)
from redrive.stages import pipeline
from redrive.stages.context import Run

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
routes:
  orders:
    title: Orders of the shop
    broker: amazon_sqs
    connection: sqs_demo
    sources: [{queue: orders-dlq}, {queue: orders-delay, kind: delay, delay: 5m, destination: orders}]
    destination: {queue: orders}
    drain: {shards: 3}
    deliver: {shards: 2}
"""


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DAG]:
    """Every DAG of a configuration with one route, by id."""
    from airflow.dag_processing.dagbag import DagBag  # noqa: PLC0415

    file = tmp_path_factory.mktemp("config") / "redrive.yaml"
    file.write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDRIVE_CONFIG", str(file))
        bag = DagBag(ROOT / "dags")
    assert bag.import_errors == {}
    return dict(bag.dags)


@pytest.fixture(scope="module")
def orders(dags: dict[str, DAG]) -> DAG:
    return dags["redrive_orders"]


@pytest.mark.parametrize(("run_for", "hours"), [("8m", 6), ("5h", 6), ("12h", 13)])
def test_a_delivery_is_not_ended_before_the_route_lets_it_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_for: str, hours: int
) -> None:
    file = tmp_path / "redrive.yaml"
    file.write_text(CONFIG.replace("deliver: {shards: 2}", f"deliver: {{shards: 2, run_for: {run_for}}}"))
    monkeypatch.setenv("REDRIVE_CONFIG", str(file))
    assert routes.dags()["redrive_orders"].get_task("deliver").execution_timeout == timedelta(hours=hours)


class TestABrokenRoute:
    @pytest.fixture
    def both(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, DAG]:
        file = tmp_path / "redrive.yaml"
        broken = (
            CONFIG.replace("routes:", "").replace("orders:", "Mail-2:").replace("{shards: 3}", "{shards: 3, at: 4}")
        )
        file.write_text(CONFIG + broken)
        monkeypatch.setenv("REDRIVE_CONFIG", str(file))
        return routes.dags()

    def test_stands_beside_the_others_and_says_what_is_wrong(self, both: dict[str, DAG]) -> None:
        assert set(both) == {"redrive_orders", "redrive_mail_2"}
        assert "broken" in both["redrive_mail_2"].tags
        assert "broken" not in both["redrive_orders"].tags
        assert "routes.Mail-2.drain.at: unknown key" in str(both["redrive_mail_2"].doc_md)

    @pytest.mark.parametrize("name", ["review", "audit"])
    def test_has_no_dag_in_the_place_of_the_one_for_all_routes(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "redrive.yaml"
        file.write_text(CONFIG + CONFIG.replace("routes:", "").replace("orders:", f"{name}:", 1))
        monkeypatch.setenv("REDRIVE_CONFIG", str(file))
        made = routes.dags()
        assert set(made) == {"redrive_orders", f"redrive_route_{name}"}
        assert f"the DAG redrive_{name} serves all routes" in str(made[f"redrive_route_{name}"].doc_md)

    def test_keeps_its_tasks_for_runs_that_began_before(self, both: dict[str, DAG]) -> None:
        assert both["redrive_mail_2"].task_ids == both["redrive_orders"].task_ids
        assert both["redrive_mail_2"].get_task("begin").op_args == ("Mail-2",)


def test_a_task_makes_its_own_dag_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "redrive.yaml"
    file.write_text(CONFIG + CONFIG.replace("routes:", "").replace("orders:", "mail:"))
    monkeypatch.setenv("REDRIVE_CONFIG", str(file))
    assert set(routes.dags()) == {"redrive_orders", "redrive_mail"}
    # As Airflow's task runner says it; its own context manager leaves the variable set.
    monkeypatch.setenv(_AIRFLOW_PARSING_CONTEXT_DAG_ID, "redrive_mail")
    assert set(routes.dags()) == {"redrive_mail"}


def test_garbage_is_looked_for_rarely_meanwhile_and_then_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    before = gc.get_threshold()

    def wrong() -> None:
        assert gc.get_threshold()[0] > before[0]
        raise SettingsError("routes.orders: wrong")

    monkeypatch.setattr(definitions, "load_settings", wrong)
    with pytest.raises(SettingsError):
        routes.dags()
    assert gc.get_threshold() == before


class TestTheReview:
    """A route of which nothing can be applied keeps no other from being sent, and is not hidden by what was sent."""

    def test_what_was_released_is_sent_whatever_failed_before(self, dags: dict[str, DAG]) -> None:
        review = dags["redrive_review"]
        assert review.get_task("find_released").trigger_rule == "all_done"
        assert review.get_task("find_released").upstream_task_ids == {"apply_decisions"}
        assert review.get_task("deliver_released").upstream_task_ids == {"find_released"}

    def test_a_failure_fails_the_run(self, dags: dict[str, DAG]) -> None:
        review = dags["redrive_review"]
        (end,) = review.leaves
        assert end.trigger_rule == "none_failed"
        assert {"apply_decisions", "deliver_released"} <= end.upstream_task_ids

    def test_retention_does_not_wait_for_a_good_audit_which_fails_the_run(self, dags: dict[str, DAG]) -> None:
        audit = dags["redrive_audit"]
        assert audit.get_task("retention").trigger_rule == "all_done"
        assert {task.task_id for task in audit.leaves} == {"done"}
        assert audit.get_task("done").upstream_task_ids == {"audit", "retention", "rescue"}

    def test_it_has_ended_before_it_comes_again(self, dags: dict[str, DAG]) -> None:
        review = dags["redrive_review"]
        assert [review.get_task(name).retries for name in ("apply_decisions", "deliver_released")] == [1, 1]
        comes_again = timedelta(minutes=5)
        assert comes_again > tasks.RELEASED_FOR
        assert review.get_task("deliver_released").execution_timeout < timedelta(hours=1)


class TestTheLoop:
    def test_goes_through_all_stages_in_order(self, orders: DAG) -> None:
        order = [
            "begin", "observe", "drain", "prepare", "classify", "load", "resolve", "plan", "deliver",
            "escalate", "report", "finish",
        ]  # fmt: skip
        assert [task.task_id for task in orders.topological_sort()] == order
        for earlier, later in itertools.pairwise(order):
            assert later in orders.get_task(earlier).downstream_task_ids

    def test_one_run_at_a_time_and_nothing_caught_up(self, dags: dict[str, DAG]) -> None:
        for dag in dags.values():
            assert dag.max_active_runs == 1
            assert dag.catchup is False
            assert "redrive" in dag.tags

    def test_gives_the_route_back_whatever_happened(self, orders: DAG) -> None:
        begin, finish = orders.get_task("begin"), orders.get_task("finish")
        assert begin.is_setup
        assert finish.is_teardown
        assert finish.trigger_rule == "all_done_setup_success"
        assert begin.task_id in finish.upstream_task_ids

    def test_a_failed_stage_fails_the_run(self, orders: DAG) -> None:
        assert orders.get_task("finish").on_failure_fail_dagrun is True
        assert orders.get_task("report").trigger_rule == "all_success"

    def test_nothing_is_called_back_for_a_failure(self, dags: dict[str, DAG]) -> None:
        # Airflow would hand a run's `conf` to the dag-processor, which a number of thirty digits in it kills.
        for dag in dags.values():
            assert not dag.has_on_failure_callback
            for task in dag.tasks:
                assert not task.has_on_failure_callback, task.task_id
                assert not task.has_on_retry_callback, task.task_id

    def test_days_that_are_over_are_not_run_for(self, dags: dict[str, DAG]) -> None:
        for dag in dags.values():
            assert dag.allowed_run_types is not None
            assert {kind.value for kind in dag.allowed_run_types} >= {"manual", "scheduled", "asset_triggered"}
            assert "backfill" not in {kind.value for kind in dag.allowed_run_types}

    def test_goes_on_where_spark_was_skipped_but_not_where_the_run_was(self, orders: DAG) -> None:
        load = orders.get_task("load")
        assert load.trigger_rule == "none_failed_min_one_success"
        assert load.upstream_task_ids == {"classify", "drain"}

    def test_skips_only_spark_where_nothing_is_staged(self, orders: DAG) -> None:
        prepare = orders.get_task("prepare")
        assert prepare.ignore_downstream_trigger_rules is False
        assert prepare.downstream_task_ids == {"classify"}

    @pytest.mark.parametrize(("stage", "shards"), [("drain", 3), ("deliver", 2)])
    def test_maps_over_shards(self, orders: DAG, stage: str, shards: int) -> None:
        assert orders.get_task(stage).op_kwargs_expand_input.value == [
            {"shard": shard, "shards": shards} for shard in range(shards)
        ]

    def test_every_task_ends_some_time(self, dags: dict[str, DAG]) -> None:
        for dag in dags.values():
            for task in dag.tasks:
                assert task.execution_timeout is not None, task.task_id

    def test_its_page_says_what_it_moves(self, orders: DAG) -> None:
        assert orders.doc_md is not None
        assert "orders-dlq" in orders.doc_md
        assert "at most 2 times" in orders.doc_md
        assert "redrive pause ROUTE" in orders.doc_md
        assert orders.dag_display_name == "Orders of the shop"

    def test_survives_the_trip_to_the_scheduler(self, dags: dict[str, DAG]) -> None:
        for dag in dags.values():
            there = json.loads(json.dumps(DagSerialization.to_dict(dag)))
            assert DagSerialization.from_dict(there).task_dict.keys() == dag.task_dict.keys()


class TestRetries:
    @pytest.mark.parametrize(
        "error",
        [
            SettingsError, QueueMissing, PermissionRefused, IllegalMove, LeaseLost, RouteBusy, RoutePaused,
            QueuesFailed, ValueError, KeyError, TypeError, FileNotFoundError, ModuleNotFoundError, OverflowError,
            failures.RunFailed,
        ],
    )  # fmt: skip
    def test_what_cannot_work_fails_at_once(self, orders: DAG, error: type[Exception]) -> None:
        for task in orders.tasks:
            decision = task.retry_policy.evaluate(error("x"), try_number=1, max_tries=3)
            assert decision.action is RetryAction.FAIL, task.task_id

    @pytest.mark.parametrize("error", [BrokerUnavailable, LedgerUnavailable, ConnectionError, TimeoutError, OSError])
    def test_what_may_pass_is_tried_again(self, orders: DAG, error: type[Exception]) -> None:
        decision = orders.get_task("drain").retry_policy.evaluate(error("x"), try_number=1, max_tries=3)
        assert decision.action is not RetryAction.FAIL

    def test_waits_grow_and_are_bounded(self, orders: DAG) -> None:
        task = orders.get_task("observe")
        assert task.retries >= 2
        assert task.retry_exponential_backoff > 1
        assert task.max_retry_delay <= timedelta(minutes=15)


class TestParams:
    def test_all_may_be_left_out(self, orders: DAG) -> None:
        assert orders.params.dump() == {
            "limit": None, "dry_run": False, "causes": [], "groups": [], "since": None, "until": None,
            "sources": [], "attributes": [],
        }  # fmt: skip

    def test_each_explains_itself(self, orders: DAG) -> None:
        for name in orders.params:
            param = orders.params.get_param(name)
            assert param.description, name
            assert param.schema["title"], name

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("limit", 0),
            ("limit", "ten"),
            ("limit", 1.5),
            ("limit", 10**23),
            ("limit", 1e23),
            ("groups", [10**23]),
            ("dry_run", "yes"),
            ("causes", ["throtled"]),
            ("causes", "throttled"),
            ("groups", ["7"]),
            ("groups", [0]),
            ("since", "yesterday"),
            ("until", 20261120),
            ("sources", ["orders-dql"]),
            ("sources", "orders-dlq"),
            ("attributes", ["tenant"]),
            ("attributes", ["=acme"]),
            ("attributes", {"tenant": "acme"}),
        ],
    )
    def test_nonsense_is_refused(self, name: str, value: object) -> None:
        with pytest.raises(ParamValidationError):
            run_params.route_params(["orders-dlq"])[name].resolve(value)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("limit", 500),
            ("limit", None),
            ("causes", ["throttled", "lease_expired"]),
            ("groups", [7, 12]),
            ("since", "2026-11-20T08:00:00Z"),
            ("since", "2026-11-20T08:00:00.000+01:00"),
            ("until", "2026-11-20"),
            ("until", None),
            ("sources", ["orders-dlq"]),
            ("attributes", ["tenant=acme", "note=a=b"]),
        ],
    )
    def test_sense_is_taken(self, name: str, value: object) -> None:
        assert run_params.route_params(["orders-dlq"])[name].resolve(value) == value

    def test_the_form_knows_the_routes_sources(self, orders: DAG) -> None:
        assert orders.params.get_param("sources").schema["items"]["enum"] == ["orders-dlq", "orders-delay"]


class TestSelection:
    ALL: dict[str, Any] = {  # noqa: RUF012
        "limit": None, "causes": [], "groups": [], "since": None, "until": None, "sources": [], "attributes": [],
    }  # fmt: skip

    def test_of_nothing_is_everything(self) -> None:
        chosen = run_params.selection(self.ALL)
        assert (chosen.limit, chosen.causes, chosen.groups, chosen.since, chosen.until) == (None, (), (), None, None)

    def test_takes_over_what_was_asked(self) -> None:
        chosen = run_params.selection(
            {
                "limit": 9,
                "causes": ["throttled"],
                "groups": [7],
                "since": "2026-11-20",
                "until": "2026-11-20T09:00+01:00",
                "sources": ["orders-dlq"],
                "attributes": ["tenant=acme"],
            }
        )
        assert (chosen.sources, chosen.attributes) == (("orders-dlq",), (("tenant", "acme"),))
        assert (chosen.limit, chosen.causes, chosen.groups) == (9, ("throttled",), (7,))
        assert chosen.since == datetime(2026, 11, 20, tzinfo=UTC)
        assert chosen.until == datetime(2026, 11, 20, 8, tzinfo=UTC)

    def test_an_empty_span_is_refused(self) -> None:
        with pytest.raises(UsageError, match="since"):
            run_params.selection(self.ALL | {"since": "2026-11-20", "until": "2026-11-19"})

    def test_a_day_that_does_not_exist_is_refused(self) -> None:
        with pytest.raises(UsageError, match="2026-02-30"):
            run_params.selection(self.ALL | {"since": "2026-02-30"})


class TestBegin:
    """The first task, with a route that another run holds."""

    @pytest.fixture
    def begin(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Begin a run of the given type and parameters; the route answers with an error, or None."""

        def start(
            run_type: str,
            refusal: Exception | Callable[[], Exception | None] | None = None,
            patience: timedelta = timedelta(0),
            **conf: object,
        ) -> Any:
            params = {name: param.value for name, param in run_params.route_params().items()} | conf
            dag_run = SimpleNamespace(dag_id="redrive_orders", run_id="r1", run_type=run_type, conf=conf)
            monkeypatch.setattr(tasks, "get_current_context", lambda: {"dag_run": dag_run, "params": params})
            monkeypatch.setattr(tasks, "PATIENCE", patience)
            monkeypatch.setattr(configuration, "load", lambda: None)

            def answer(*_: object, **given: object) -> Any:
                if error := refusal() if callable(refusal) else refusal:
                    raise error
                return SimpleNamespace(to_json=lambda: given)

            monkeypatch.setattr(pipeline, "begin", answer)
            return tasks.begin.function("orders")

        return start

    @pytest.mark.parametrize("refusal", [RouteBusy("held by run 7 until 08:15"), RoutePaused("paused by ana")])
    @pytest.mark.parametrize("kind", ["scheduled", "asset_triggered"])
    def test_a_run_of_the_schedule_is_skipped_with_the_reason(self, begin: Any, kind: str, refusal: Exception) -> None:
        with pytest.raises(AirflowSkipException, match=str(refusal)):
            begin(kind, refusal)

    @pytest.mark.parametrize("refusal", [RouteBusy("held by run 7 until 08:15"), RoutePaused("paused by ana")])
    @pytest.mark.parametrize("kind", ["manual", "operator_triggered"])
    def test_a_run_that_was_asked_for_fails_with_the_reason(self, begin: Any, kind: str, refusal: Exception) -> None:
        """Who asked for it, a person or another DAG, would go on as if it had been done."""
        with pytest.raises(type(refusal), match=str(refusal)):
            begin(kind, refusal)

    def test_a_route_that_is_held_for_a_blink_costs_no_run(self, begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        answers: list[Exception | None] = [RouteBusy("held by a review"), None]
        monkeypatch.setattr(tasks, "BETWEEN_TRIES", timedelta(0))
        given = begin("manual", lambda: answers.pop(0), patience=timedelta(seconds=30))
        assert given["dag_run_id"] == "r1"
        assert answers == []

    def test_says_who_it_is(self, begin: Any) -> None:
        given = begin("scheduled")
        assert given["dag_run_id"] == "r1"
        assert "redrive_orders" in given["holder"]
        assert given["lease"] == timedelta(minutes=15)

    def test_a_mistyped_parameter_is_refused(self, begin: Any) -> None:
        with pytest.raises(UsageError, match="limits: no such parameter"):
            begin("manual", limits=5)


class TestOptions:
    """What a route says of how Airflow runs it."""

    def dag(self, **airflow: object) -> DAG:
        text = CONFIG + f"    airflow: {json.dumps(airflow)}\n"
        return definitions.route_dag(configuration.parse(text, env={}, root=ROOT), "orders", page=None)

    def test_reach_its_dag(self) -> None:
        dag = self.dag(pool="brokers", max_active_tasks=3, run_timeout="2h")
        assert (dag.default_args["pool"], dag.max_active_tasks) == ("brokers", 3)
        assert dag.dagrun_timeout == timedelta(hours=2)

    def test_a_schedule_follows_summer_time_where_its_zone_does(self) -> None:
        dag = self.dag(timezone="Europe/Berlin")
        there = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
        assert there.timetable.serialize() == {
            "expression": "*/10 * * * *", "timezone": "Europe/Berlin", "interval": 0.0, "run_immediately": False,
        }  # fmt: skip
        assert "`*/10 * * * *` Europe/Berlin" in (dag.doc_md or "")

    def test_a_zone_that_does_not_exist_is_refused(self) -> None:
        with pytest.raises(SettingsError, match=r"'Europe/Berln' is not a time zone; did you mean Europe/Berlin\?"):
            self.dag(timezone="Europe/Berln")
        with pytest.raises(SettingsError, match="is not a time zone"):
            self.dag(timezone="../../etc/passwd")

    def test_are_airflows_own_where_left_out(self) -> None:
        dag, plain = self.dag(), DAG("plain")
        assert "pool" not in dag.default_args
        assert (dag.max_active_tasks, dag.dagrun_timeout) == (plain.max_active_tasks, None)


class TestFinish:
    """The last task, which tells how the run ended."""

    DONE = dict.fromkeys(("begin", "observe", "drain_0", "drain_1", "load", "deliver_0", "report"), "success")

    @pytest.fixture
    def finish(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
        """End a run whose tasks are in these states, of which an earlier try left a report; what the ledger is told."""

        def end(states: dict[str, str | None], noted: dict[str, str] | None = None) -> list[str]:
            told: list[str] = []
            ti = SimpleNamespace(
                get_task_states=lambda dag_id, run_ids: {run_ids[0]: states | {"finish": "running"}},
                xcom_pull=lambda **_: {"drained": 5},
            )
            dag_run = SimpleNamespace(dag_id="redrive_orders", run_id="r1")
            monkeypatch.setattr(tasks, "get_current_context", lambda: {"ti": ti, "dag_run": dag_run})
            monkeypatch.setattr(configuration, "load", lambda: None)
            monkeypatch.setattr(pipeline, "failed_of", lambda _settings, _run: noted or {})
            monkeypatch.setattr(pipeline, "finish", lambda _settings, _run, status: told.append(status))
            try:
                tasks.finish.function(RUN)
            except failures.RunFailed as failed:
                told.append(str(failed))
            return told

        return end

    def test_a_run_that_did_it_all_succeeded(self, finish: Any) -> None:
        assert finish(self.DONE | {"prepare": "success", "classify": "skipped"}) == ["succeeded"]

    def test_a_task_that_was_cleared_and_failed_makes_it_a_failure_although_a_report_is_there(
        self, finish: Any
    ) -> None:
        status, told = finish(self.DONE | {"deliver_0": "failed"})
        assert status == "failed"
        assert "deliver_0 (failed)" in told

    def test_a_queue_that_failed_in_a_cleared_task_makes_it_a_failure_although_a_report_is_there(
        self, finish: Any
    ) -> None:
        status, told = finish(self.DONE, {"orders": "PermissionRefused: no"})
        assert status == "failed"
        assert "queue orders (PermissionRefused: no)" in told

    def test_a_run_that_was_stopped_before_its_report_failed(self, finish: Any) -> None:
        status, told = finish(self.DONE | {"report": "skipped"})
        assert status == "failed"
        assert "report (skipped)" in told

    def test_what_was_not_reached_is_told_too(self, finish: Any) -> None:
        status, told = finish(self.DONE | {"drain_1": "failed", "load": "upstream_failed", "report": "upstream_failed"})
        assert status == "failed"
        assert "drain_1 (failed), load (upstream_failed), report (upstream_failed)" in told


RUN = Run("orders", "orders.r1", 1, timedelta(minutes=15), datetime(2026, 11, 20, tzinfo=UTC)).to_json()
