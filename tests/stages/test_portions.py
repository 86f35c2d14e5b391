"""A run classifies what a job can be expected to get through; a backlog is worked off over several runs."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from redrive.brokers.memory import MEMORY_CAPABILITIES
from redrive.classification import explain
from redrive.errors import BrokerError, ClassificationFailed
from redrive.ledger.drain import batches, repeats
from redrive.stages import classify as classify_stage
from redrive.stages import pipeline
from redrive.staging import file_schemas
from tests.classifying import classify
from tests.workshop import REFUSED, Workshop


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    """Batches of five messages; a run classifies at most forty, and at least ten."""
    monkeypatch.setattr(classify_stage, "MOST", 40)
    monkeypatch.setattr(classify_stage, "LEAST", 10)
    workshop = Workshop(tmp_path, drain={"wait": "0s", "flush_messages": 5})
    yield workshop
    workshop.ledger.close()


def stage(workshop: Workshop, count: int) -> None:
    """Dead letters that are staged and not classified."""
    workshop.die(*(f"m{number}" for number in range(count)), error=REFUSED)
    run = workshop.begin()
    workshop.drain(run)
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)


def classified(workshop: Workshop, *, job_ends: bool = True) -> int:
    """How many copies the job of one more run is given; where it doesn't end, the run fails."""
    run = workshop.begin()
    manifest = pipeline.prepare_classification(workshop.settings, run, **workshop.options())
    if manifest is None:
        pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
        return 0
    asked = sum(batch["rows"] for batch in _batches(manifest))
    if job_ends:
        classify(manifest)
        pipeline.load(workshop.settings, run, **workshop.options())
    pipeline.finish(workshop.settings, run, "succeeded" if job_ends else "failed", workshop.now)
    return asked


def _batches(manifest: str) -> list[dict[str, Any]]:
    import json  # noqa: PLC0415

    found: list[dict[str, Any]] = json.loads(Path(manifest).read_text())["batches"]
    return found


def test_a_backlog_is_worked_off_over_several_runs_and_each_says_what_it_left(workshop: Workshop) -> None:
    stage(workshop, 100)
    reports = [workshop.cycle() for _ in range(3)]
    assert [report["new"] for report in reports] == [40, 40, 20]
    assert [report.get("later") for report in reports] == [60, 20, None]
    assert len(workshop.bodies("orders")) == 100
    assert workshop.audit() == []


def test_the_oldest_come_first(workshop: Workshop) -> None:
    stage(workshop, 100)
    workshop.cycle()
    assert workshop.query("select max(batch_id) from staging_batches where loaded_at is not null") == [(8,)]


def test_a_source_counts_as_drained_only_when_all_of_it_is_loaded(workshop: Workshop) -> None:
    stage(workshop, 50)
    workshop.cycle()
    assert workshop.query("select count(*) from source_state where drained_to is not null") == [(0,)]
    workshop.cycle()
    assert workshop.query("select count(*) from source_state where drained_to is not null") == [(2,)]


def test_after_a_job_that_did_not_end_the_next_is_smaller_although_more_is_staged_meanwhile(
    workshop: Workshop,
) -> None:
    sizes = []
    for _ in range(4):
        stage(workshop, 40)
        sizes.append(classified(workshop, job_ends=False))
    assert sizes == [40, 20, 10, 10]


def test_after_jobs_that_end_well_they_grow_again(workshop: Workshop) -> None:
    stage(workshop, 200)
    for _ in range(3):
        classified(workshop, job_ends=False)
    assert [classified(workshop) for _ in range(4)] == [10, 20, 40, 40]


def test_a_small_job_that_failed_or_an_idle_route_does_not_hold_a_large_one_back_for_long(workshop: Workshop) -> None:
    stage(workshop, 5)
    assert classified(workshop) == 5
    assert classified(workshop) == 0
    stage(workshop, 40)
    assert classified(workshop) == 40


def test_a_batch_that_is_larger_than_all_of_it_is_classified_alone(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classify_stage, "MOST", 3)
    monkeypatch.setattr(classify_stage, "LEAST", 1)
    stage(workshop, 10)
    assert [classified(workshop) for _ in range(3)] == [5, 5, 0]


def test_a_load_that_is_repeated_after_its_end_takes_nothing_more(workshop: Workshop) -> None:
    stage(workshop, 50)
    run = workshop.begin()
    classify(pipeline.prepare_classification(workshop.settings, run, **workshop.options()) or "")
    first = pipeline.load(workshop.settings, run, **workshop.options())
    again = pipeline.load(workshop.settings, run, **workshop.options())
    assert (first["new"], again["new"]) == (40, 0)
    assert "unreadable" not in again
    assert pipeline.report(workshop.settings, run, **workshop.options())["later"]
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    workshop.cycle()
    assert len(workshop.bodies("orders")) == 50


def test_a_run_of_airflow_may_have_the_longest_name_that_there_is(workshop: Workshop) -> None:
    workshop.die("a")
    run = workshop.begin(dag_run_id="x" * 250)
    assert dict(workshop.stages(run))["load"]["new"] == 1


def test_a_job_that_left_no_answer_fails_the_load(workshop: Workshop) -> None:
    stage(workshop, 5)
    run = workshop.begin()
    pipeline.prepare_classification(workshop.settings, run, **workshop.options())
    with pytest.raises(ClassificationFailed, match="left no"):
        pipeline.load(workshop.settings, run, **workshop.options())


def test_messages_of_a_failure_that_the_job_does_not_name_are_not_loaded(workshop: Workshop) -> None:
    """One try of a Spark task could not read the file and has no case of it, and another one, taken for dead, could."""
    stage(workshop, 5)
    run = workshop.begin()
    manifest = pipeline.prepare_classification(workshop.settings, run, **workshop.options())
    assert manifest is not None
    classify(manifest)
    cases = Path(manifest.removesuffix(".json")) / file_schemas.CASES_FILE
    pq.write_table(pq.read_table(cases).slice(0, 0), cases)
    with pytest.raises(ClassificationFailed, match=r"of 5 messages of batches 1 to 1 .*, and not what it is"):
        pipeline.load(workshop.settings, run, **workshop.options())
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    assert workshop.cycle()["new"] == 5


def test_a_file_that_can_not_be_read_is_named_and_those_of_later_runs_are_not(workshop: Workshop) -> None:
    stage(workshop, 100)
    ((uri,),) = workshop.query("select uri from staging_batches where batch_id = 3")
    (Path(workshop.settings.staging) / str(uri)).unlink()
    run = workshop.begin()
    with pytest.raises(Exception, match=r"5 staged messages could not be loaded.*batch-000000000003-[^,]*\. They"):
        for _ in workshop.stages(run):
            pass
    assert len(workshop.bodies("orders")) == 40


def test_a_batch_that_was_recorded_while_the_job_ran_waits_for_the_next_run_though_its_id_is_lower(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A try of the drain was slow; another try of its task drained all of it meanwhile."""
    record, slow = batches.record, list[Callable[[], None]]()

    def later(*args: Any, **options: Any) -> None:
        slow.append(lambda: record(*args, **options))
        raise KeyboardInterrupt

    run = workshop.begin()
    workshop.die("slow")
    with monkeypatch.context() as patched:
        patched.setattr(batches, "record", later)
        patched.setattr(batches, "abandon_one", lambda *_: False)
        with pytest.raises(KeyboardInterrupt):
            workshop.drain(run)
    workshop.die("fast")
    workshop.drain(run)
    manifest = pipeline.prepare_classification(workshop.settings, run, **workshop.options())
    assert manifest is not None
    classify(manifest)
    slow[0]()
    assert workshop.query("select count(*) from staging_batches where state = 'recorded'") == [(1,)]
    counts = pipeline.load(workshop.settings, run, **workshop.options())
    assert (counts["new"], counts["later"], counts.get("unreadable")) == (2, 1, None)
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    workshop.advance(minutes=30)
    assert workshop.cycle()["duplicates"] == 1
    assert workshop.audit() == []


class NoIdentity(Workshop):
    """What RabbitMQ tells of copies."""

    capabilities = replace(MEMORY_CAPABILITIES, stable_identity=False)


def test_without_identities_what_can_be_no_repeat_is_not_looked_at_however_much_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = NoIdentity(tmp_path, drain={"wait": "0s", "flush_messages": 5, "shards": 1})
    stage(shop, 30)
    shop.die("one", "two", "m7", error=REFUSED)
    run = shop.begin()
    with monkeypatch.context() as patched:
        patched.setattr(shop.broker, "settle", _no_answer)
        with suppress(BrokerError):
            shop.drain(run)
    pipeline.finish(shop.settings, run, "failed", shop.now)
    shop.advance(minutes=30)
    seen = list[int]()
    decide = repeats.decide

    def count(staged: Any, *others: Any) -> Any:
        staged = list(staged)
        seen.append(sum(len(batch.copies) for batch in staged))
        return decide(staged, *others)

    monkeypatch.setattr(repeats, "decide", count)
    report = shop.cycle()
    assert (report["new"], report["suspected"], report["duplicates"]) == (33, 0, 3)
    assert seen == [3 + 3 + 1], "those in doubt, those that came again, and one with the same body"
    assert shop.audit() == []
    shop.ledger.close()


def _no_answer(*_: object) -> None:
    raise BrokerError("connection reset by peer")


def test_failures_that_are_too_many_to_tell_apart_are_counted_in_the_report_and_named_in_their_group(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain, "TOLD_APART", 1)
    workshop.die("a", "b", error=REFUSED)
    workshop.die("c", error="the gizmo is ajar")
    workshop.die("d", error="no account of zebra in this shop")
    assert workshop.cycle()["overflowed"] == 2
    shared = (
        "select count(*) from messages m inner join failure_groups g on g.group_id = m.group_id where template = :it"
    )
    assert workshop.query(shared, it=explain.OVERFLOW) == [(2,)]
    workshop.die("e", error=REFUSED)
    assert "overflowed" not in workshop.cycle()


def test_what_is_left_for_later_is_told_once_however_often_a_load_is_tried(workshop: Workshop) -> None:
    stage(workshop, 100)
    run = workshop.begin()
    for name, _ in workshop.stages(run):
        if name == "load":
            pipeline.load(workshop.settings, run, **workshop.options())
    report = pipeline.report(workshop.settings, run, **workshop.options())
    assert (report["new"], report["later"]) == (40, 60)
