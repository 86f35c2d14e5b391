"""A source that fails keeps neither what is due from going out nor what others staged from being loaded."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive.brokers.base import Depth
from redrive.brokers.memory import MemoryBroker
from redrive.errors import BrokerUnavailable, PermissionRefused, QueueMissing, QueuesFailed
from redrive.ledger import leases
from redrive.stages import pipeline
from redrive.stages.context import Run
from tests.classifying import classify
from tests.workshop import REFUSED, ROUTE, Workshop

GONE = "gone-dlq"
SOURCES: list[dict[str, Any]] = [{"queue": GONE, "lease": "2s", "max_deliveries": 3}, *ROUTE["sources"]]


class Failing(MemoryBroker):
    """One queue fails: whenever it is asked about, or only when messages are received from it."""

    error: type[Exception] = BrokerUnavailable
    calls: tuple[str, ...] = ("depth", "receive")

    def depth(self, queue: str) -> Depth:
        self._fail(queue, "depth")
        return super().depth(queue)

    def receive(self, queue: str, **options: Any) -> list[Any]:
        self._fail(queue, "receive")
        return super().receive(queue, **options)

    def _fail(self, queue: str, call: str) -> None:
        if queue == GONE and call in self.calls:
            raise self.error(f"{queue}: no")


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[..., Workshop]]:
    made: list[Workshop] = []

    def build(**route: Any) -> Workshop:
        made.append(Workshop(tmp_path, **({"sources": SOURCES} | route)))
        return made[-1]

    yield build
    for workshop in made:
        workshop.ledger.close()


def run_to_the_end(workshop: Workshop) -> QueuesFailed:
    """One run in which a source fails; what the report says of it."""
    run = workshop.begin()
    with pytest.raises(QueuesFailed) as failed:
        for _ in workshop.stages(run):
            pass
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    return failed.value


def test_a_missing_queue_stops_neither_other_sources_nor_what_is_due_and_the_run_fails_for_it(
    build: Callable[..., Workshop],
) -> None:
    workshop = build()
    workshop.die("a", "b", error=REFUSED)
    failed = run_to_the_end(workshop)
    assert sorted(workshop.bodies("orders")) == [b"a", b"b"]
    assert f"queue {GONE} failed: QueueMissing: " in str(failed)
    assert failed.report is not None
    assert (failed.report["new"], failed.report["redelivered"]) == (2, 2)
    assert workshop.query("select status from runs") == [("failed",)]
    assert workshop.audit() == []


def test_what_is_due_goes_out_although_every_source_is_missing(build: Callable[..., Workshop]) -> None:
    workshop = build()
    workshop.die("a", error=REFUSED)
    run = workshop.begin()
    workshop.drain(run)
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    for queue in ("orders-dlq", "orders-delay"):
        del workshop.world.queues[queue]
    assert "orders-dlq failed" in str(run_to_the_end(workshop))
    assert workshop.bodies("orders") == [b"a"]


@pytest.mark.parametrize("calls", [("depth", "receive"), ("receive",)], ids=["when asked", "when drained"])
@pytest.mark.parametrize("error", [PermissionRefused, QueueMissing, BrokerUnavailable])
def test_whatever_it_fails_of(build: Callable[..., Workshop], error: type[Exception], calls: tuple[str, ...]) -> None:
    workshop = build()
    workshop.world.create(GONE)
    workshop.die("x", error=REFUSED, queue=GONE)
    workshop.die("a", error=REFUSED)
    workshop.broker = broker = Failing(workshop.world)
    broker.error, broker.calls = error, calls
    failed = run_to_the_end(workshop)
    assert f"queue {GONE} failed: {error.__name__}: {GONE}: no" in str(failed)
    assert workshop.bodies("orders") == [b"a"]
    assert workshop.bodies(GONE) == [b"x"], "what it had is still there"
    workshop.broker = MemoryBroker(workshop.world)
    workshop.advance(minutes=1)
    assert workshop.cycle()["new"] == 1
    assert workshop.audit() == []


def test_a_look_that_failed_for_a_moment_is_no_failure(build: Callable[..., Workshop]) -> None:
    workshop = build()
    workshop.world.create(GONE)
    workshop.broker = broker = Failing(workshop.world)
    broker.calls = ("depth",)
    run = workshop.begin()
    pipeline.observe(workshop.settings, run, **workshop.options())
    broker.calls = ()
    workshop.drain(run)
    pipeline.load(workshop.settings, run, **workshop.options())
    assert pipeline.report(workshop.settings, run, **workshop.options())["drained"] == 0


def test_where_nobody_answers_for_any_source_the_look_fails_so_that_it_is_tried_again(
    build: Callable[..., Workshop],
) -> None:
    workshop = build(sources=SOURCES[:1])
    workshop.broker = Failing(workshop.world)
    run = workshop.begin()
    with pytest.raises(BrokerUnavailable):
        pipeline.observe(workshop.settings, run, **workshop.options())


def test_while_tries_are_left_what_may_pass_is_raised_when_the_others_are_drained(
    build: Callable[..., Workshop],
) -> None:
    workshop = build()
    workshop.world.create(GONE)
    workshop.die("a", error=REFUSED)
    workshop.broker = Failing(workshop.world)
    run = workshop.begin()
    with pytest.raises(BrokerUnavailable):
        pipeline.drain(workshop.settings, run, tries_left=True, **workshop.options())
    assert workshop.bodies("orders-dlq") == []
    assert leases.counts_of(workshop.ledger, run.run_id) == {}
    pipeline.drain(workshop.settings, run, tries_left=False, **workshop.options())
    assert f"failed:{GONE}" in leases.counts_of(workshop.ledger, run.run_id)["drain"]


def test_what_another_shard_staged_is_loaded(build: Callable[..., Workshop]) -> None:
    workshop = build()
    workshop.die("a", "b", error=REFUSED)
    run = workshop.begin()
    workshop.world.create(GONE)
    shard(workshop, run, 0, workshop.broker)
    shard(workshop, run, 1, Failing(workshop.world))
    manifest = pipeline.prepare_classification(workshop.settings, run, **workshop.options())
    classify(manifest or "")
    assert pipeline.load(workshop.settings, run, **workshop.options())["new"] == 2
    with pytest.raises(QueuesFailed, match=GONE):
        pipeline.report(workshop.settings, run, **workshop.options())


def test_a_task_that_is_cleared_makes_nobody_forget_what_failed_before_it(build: Callable[..., Workshop]) -> None:
    """Airflow begins the run anew then, and the tasks before the cleared one stay done."""
    workshop = build()
    workshop.world.create(GONE)
    workshop.broker = Failing(workshop.world)
    run = workshop.begin(dag_run_id="of-airflow")
    with pytest.raises(QueuesFailed, match=GONE):
        for _ in workshop.stages(run):
            pass
    for _ in range(2):  # however often
        again = workshop.begin(dag_run_id="of-airflow")
        assert leases.counts_of(workshop.ledger, run.run_id) == {}
        with pytest.raises(QueuesFailed, match=GONE):
            pipeline.report(workshop.settings, again, **workshop.options())
        assert GONE in pipeline.failed_of(workshop.settings, again)
    workshop.broker = MemoryBroker(workshop.world)
    pipeline.observe(workshop.settings, again, **workshop.options())
    workshop.drain(again)  # is done again, and well
    pipeline.report(workshop.settings, again, **workshop.options())
    assert pipeline.failed_of(workshop.settings, again) == {}


def shard(workshop: Workshop, run: Run, number: int, broker: MemoryBroker) -> None:
    pipeline.drain(workshop.settings, run, shard=number, shards=2, clock=workshop.now, broker=broker)


def test_messages_back_to_where_they_came_from_wait_for_their_source_and_not_for_a_person(
    build: Callable[..., Workshop],
) -> None:
    workshop = build(destination=None, sources=SOURCES[1:2], order_by=None)
    workshop.die("a", error=REFUSED)
    run = workshop.planned()
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    queue = workshop.world.queues.pop("orders-dlq")
    run_to_the_end(workshop)
    assert workshop.bodies("orders") == [b"a"]
    workshop.world.queues["orders-dlq"] = queue
    assert "escalated" not in workshop.states()
