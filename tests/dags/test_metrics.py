"""What stages report reaches Airflow's metrics, with its route."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.observability import stats
from tests.workshop import Workshop

from redrive import settings as configuration
from redrive.airflow import metrics, tasks
from redrive.stages import pipeline


class Backend:
    """What Airflow hands metrics to: a StatsD or OpenTelemetry client elsewhere."""

    def __init__(self) -> None:
        self.got: list[tuple[Any, ...]] = []

    def incr(self, stat: str, count: int = 1, *, tags: Any = None, **_: Any) -> None:
        self.got.append((stat, count, tags))

    gauge = timing = incr


@pytest.fixture(params=[False, True], ids=["tags", "old-names-too"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    backend = Backend()
    monkeypatch.setenv("AIRFLOW__METRICS__LEGACY_NAMES_ON", str(request.param))
    backend.old = request.param  # type: ignore[attr-defined]
    metrics._old_names_too.cache_clear()
    with monkeypatch.context() as patch:
        for name in ("_factory", "_backend"):
            patch.setattr(f"airflow.sdk._shared.observability.metrics.stats.{name}", None)
        stats.initialize(factory=lambda: backend, export_legacy_names=request.param)  # type: ignore[arg-type,return-value]
        yield backend
    metrics._old_names_too.cache_clear()


def test_counters_gauges_and_times_say_their_route(backend: Backend) -> None:
    metrics.emit("orders", "deliver", {"redelivered": 5, "suppressed": 0, "slices": 3, "seconds": 1.5})
    metrics.emit("orders", "observe", {"source_depth": 0, "destination_depth": None})
    route, second = {"route": "orders"}, timedelta(seconds=1.5)
    assert [one for one in backend.got if one[0] in ("redrive.redelivered", "redrive.stage.duration")] == [
        ("redrive.redelivered", 5, route),
        ("redrive.stage.duration", second, route | {"stage": "deliver"}),
    ]
    assert ("redrive.source_depth", 0, route) in backend.got, "zero is what a gauge has to say"
    named = {"redrive.redelivered.orders", "redrive.stage.duration.orders.deliver", "redrive.source_depth.orders"}
    assert {one[0] for one in backend.got if one[0].endswith(("orders", "deliver"))} == (
        named if backend.old else set()  # type: ignore[attr-defined]
    )


def test_a_task_tells_what_its_stage_did(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    def drain(*_: object, **__: object) -> dict[str, Any]:
        return {"drained": 7, "seconds": 0.5}

    monkeypatch.setattr(pipeline, "drain", drain)
    monkeypatch.setattr(configuration, "load", lambda: None)
    monkeypatch.setattr(tasks, "get_current_context", lambda: {"ti": SimpleNamespace(try_number=1, max_tries=0)})
    run = {
        "route": "orders",
        "run_id": "r",
        "fence": 1,
        "ttl_seconds": 60,
        "dry_run": False,
        "selection": {},
        "started_at": "2026-11-20T08:00:00+00:00",
    }
    assert tasks.drain.function(run, shard=0, shards=1) == {"drained": 7, "seconds": 0.5}
    assert ("redrive.drained", 7, {"route": "orders"}) in backend.got


def test_a_metric_that_fails_fails_no_run(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refuse() -> None:
        raise OSError("no network")

    monkeypatch.setattr(metrics.compat, "stats", refuse)
    metrics.emit("orders", "drain", {"drained": 1})
    metrics.gauge("audit.problems", 1)
    assert "the metrics of drain of route orders were not sent" in caplog.text


def test_every_metric_is_a_number_that_its_stage_reports(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, ages={"sample": 5})
    workshop.die("a")
    reported = {name: counts.keys() for name, counts in workshop.stages(workshop.begin())}
    workshop.ledger.close()
    for stage, names in (metrics.COUNTERS | metrics.GAUGES).items():
        assert names <= reported[stage], stage
