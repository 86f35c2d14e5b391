"""A run that begins because something died: when the bell rings, and what a route's DAG makes of it."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.serialization.serialized_objects import DagSerialization

from redrive import brokers
from redrive import settings as configuration
from redrive.airflow import definitions, watching
from redrive.airflow.watching import DepthTrigger, Rise
from redrive.brokers.base import Depth
from redrive.errors import BrokerUnavailable, SettingsError

ROUTE = """
routes:
  orders:
    broker: memory
    schedule: {schedule}
    sources: [{{queue: dead}}, {{queue: later, kind: delay, delay: 1m, destination: orders}}]
    destination: {{queue: orders}}
    airflow: {{watch: {watch}}}
"""


@pytest.mark.parametrize(
    ("depths", "rings"),
    [
        ([0, 0, 0], []),
        ([1, 1, 1, 1], [1]),
        ([1, 40, 90, 90, 90], [1, 3]),
        ([5, 5, 0, 0, 3, 3], [1, 5]),
        ([5, 5, 2, 2, 2, 3, 3], [1, 6]),
        ([1, 0, 1, 0], []),
    ],
    ids=["nothing", "what-is-left", "a-burst", "again-after-a-run", "more-than-was-left", "taken-meanwhile"],
)
def test_the_bell_rings_when_more_has_come_and_once_for_a_burst(depths: Sequence[int], rings: Sequence[int]) -> None:
    rise = Rise()
    assert [look for look, depth in enumerate(depths) if rise.seen(depth)] == rings


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "redrive.yaml").write_text(ROUTE.format(schedule="null", watch="5s"))
    monkeypatch.setenv("REDRIVE_CONFIG", str(tmp_path / "redrive.yaml"))


@pytest.mark.usefixtures("configured")
def test_it_counts_what_can_be_received_from_dead_letter_sources_and_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    depths = {"dead": Depth(7, 3, 0), "later": Depth(90, 0, 0)}
    closed: list[bool] = []
    only_looks = SimpleNamespace(
        depth=depths.__getitem__,
        close=lambda: closed.append(True),
        capabilities=SimpleNamespace(consumer_statistics=False),
    )
    monkeypatch.setattr(brokers, "open_broker", lambda *_: only_looks)
    assert watching.look("orders") == 7
    assert closed == [True]
    depths["dead"] = Depth(None, None, None)
    assert watching.look("orders") == 0, "who doesn't know never rings"


def test_a_look_that_fails_is_told_and_the_next_one_comes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = iter([0, BrokerUnavailable("down"), 4, 4])

    def look(_route: str) -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(watching, "look", look)

    async def first() -> object:
        async for event in DepthTrigger("orders", 0).run():
            return event.payload
        return None

    assert asyncio.run(first()) == {"route": "orders", "visible": 4}
    assert "route orders: could not look at its sources: BrokerUnavailable: down" in caplog.text


@pytest.mark.parametrize(
    ("schedule", "watch", "summary"),
    [("'@hourly'", "null", "0 * * * *"), ("'17 * * * *'", "15s", "Asset or 17 * * * *"), ("null", "15s", "Asset")],
    ids=["by-schedule", "by-both", "by-arrival"],
)
def test_the_schedule_stays_beside_what_arrives(schedule: str, watch: str, summary: str, tmp_path: Path) -> None:
    settings = configuration.parse(ROUTE.format(schedule=schedule, watch=watch), env={}, root=tmp_path)
    dag = definitions.route_dag(settings, "orders", page=None)
    there = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
    assert there.timetable.summary == summary
    watched = watch != "null"
    assert ("redrive.airflow.watching.DepthTrigger" in json.dumps(DagSerialization.to_dict(dag))) is watched
    assert ("when something dies" in (dag.doc_md or "")) is watched


def test_a_look_every_second_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"airflow\.watch: 1s is too short; at least 5s"):
        configuration.parse(ROUTE.format(schedule="null", watch="1s"), env={}, root=tmp_path)
