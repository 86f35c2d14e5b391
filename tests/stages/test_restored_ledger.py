"""The ledger is older than its staging: restored from a backup, gone, or one of two that share a folder."""

import shutil
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from redrive.errors import PathTaken, UsageError
from redrive.ledger.drain import adopting, batches
from redrive.ledger.engine import Ledger, sql
from redrive.stages import pipeline
from redrive.staging.batch_files import Staging
from tests.ledger.test_restore import restore
from tests.workshop import KEY_ERROR, REFUSED, Workshop


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path)
    yield workshop
    workshop.ledger.close()


def back_up(workshop: Workshop) -> None:
    with sqlite3.connect(workshop.folder / "redrive.db") as source:
        with sqlite3.connect(workshop.folder / "backup.db") as target:
            source.backup(target)
        target.close()
    source.close()


def restore_backup(workshop: Workshop) -> None:
    workshop.ledger.close()
    for name in ("redrive.db", "redrive.db-wal", "redrive.db-shm"):
        (workshop.folder / name).unlink(missing_ok=True)
    shutil.copy(workshop.folder / "backup.db", workshop.folder / "redrive.db")
    workshop.ledger = Ledger(workshop.settings.database)


def files(workshop: Workshop) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path(workshop.settings.staging).rglob("*") if path.is_file()}


@pytest.fixture
def rewound(workshop: Workshop) -> Workshop:
    """A ledger that knows of one batch, where two more were drained and settled since its backup."""
    workshop.die("before")
    workshop.cycle()
    workshop.consume()
    back_up(workshop)
    workshop.advance(minutes=30)
    workshop.die("paid order 4711", error=KEY_ERROR)
    workshop.cycle()
    workshop.advance(minutes=30)
    workshop.die("retry me", error=REFUSED)
    workshop.cycle()
    workshop.consume()
    restore_backup(workshop)
    workshop.advance(minutes=30)
    return workshop


def adopt(workshop: Workshop, **options: object) -> dict[str, int]:
    run = pipeline.begin(
        workshop.settings, "orders", trigger="adopt", holder="test", clock=workshop.now, even_if_paused=True
    )
    found = pipeline.adopt(workshop.settings, run, **workshop.options(), **options)
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    return {name: count for name, count in found.items() if name != "seconds" and count}


def test_what_was_staged_since_the_backup_is_never_overwritten_and_no_batch_id_is_given_twice(
    rewound: Workshop,
) -> None:
    before = files(rewound)
    rewound.die("something new")
    rewound.cycle()
    assert before.items() <= files(rewound).items()
    assert rewound.query("select max(batch_id) from staging_batches") == [(4,)]


def test_no_batch_id_is_given_twice_though_another_source_of_the_route_had_it(rewound: Workshop) -> None:
    rewound.die("asks for later", error=None, queue="orders-delay")
    rewound.cycle()
    assert rewound.query("select source, batch_id from staging_batches where batch_id > 1") == [("orders-delay", 4)]


def test_the_audit_names_each_file_that_the_ledger_does_not_know_and_what_takes_it_in(rewound: Workshop) -> None:
    problems = rewound.audit()
    assert len(problems) == 2
    for number, problem in enumerate(problems, 2):
        assert f"batch-{number:012d}" in problem
        assert "`redrive adopt orders`" in problem


def test_a_file_without_a_row_is_taken_in_once_and_people_decide_about_what_is_in_it(rewound: Workshop) -> None:
    assert adopt(rewound) == {"adopted": 2, "copies": 2}
    assert adopt(rewound) == {}
    rewound.cycle()
    assert rewound.audit() == []
    assert rewound.bodies("orders") == [], "nothing of it is sent unasked"
    found = rewound.query("select payload, reason from escalated_messages where status = 'open' order by message_id")
    assert [payload for payload, _ in found] == ["paid order 4711", "retry me"]
    assert all("may have been redelivered since" in reason for _, reason in found)
    assert rewound.query("select count(distinct redrive_id) from messages") == [(3,)]
    assert len(files(rewound)) == 3


def test_a_file_with_another_body_than_was_staged_is_not_taken_in(rewound: Workshop) -> None:
    damaged = max(Path(rewound.settings.staging).rglob("batch-*.parquet"), key=lambda path: path.name)
    table = pq.read_table(damaged)
    place = table.schema.get_field_index("body")
    pq.write_table(table.set_column(place, table.schema.field(place), [[b"another"]]), damaged)
    assert adopt(rewound) == {"adopted": 1, "copies": 1, "unreadable": 1}
    assert damaged.exists()


def test_a_crash_between_taking_in_and_removing_takes_nothing_in_twice(
    rewound: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Staging, "remove", die)
        with pytest.raises(KeyboardInterrupt):
            adopt(rewound)
    rewound.advance(minutes=30)
    assert rewound.audit() == []
    assert adopt(rewound) == {}
    assert rewound.query("select sum(copies) from staging_batches where adopted_from is not null") == [(2,)]
    assert len(files(rewound)) == 3


def test_what_waited_at_the_time_of_the_backup_is_asked_about(workshop: Workshop) -> None:
    workshop.die("waits", error=REFUSED)
    run = workshop.planned()
    back_up(workshop)
    workshop.deliver(run)
    workshop.consume()
    restore_backup(workshop)
    workshop.advance(minutes=30)
    assert adopt(workshop, restored=True) == {"doubted": 1}
    workshop.cycle()
    assert workshop.bodies("orders") == []
    assert workshop.states() == {"escalated": 1}
    assert workshop.audit() == []


@pytest.mark.parametrize("recorded", [True, False])
def test_what_was_staged_and_not_loaded_at_the_time_of_the_backup_is_asked_about(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    """``recorded``, or still open: then the next run records it for its writer."""
    record = batches.record

    def back_up_and_record(*args: object, **options: object) -> None:
        back_up(workshop)
        record(*args, **options)  # type: ignore[arg-type]

    workshop.die("a", "b", error=REFUSED)
    if not recorded:
        monkeypatch.setattr(batches, "record", back_up_and_record)
    for name, _ in workshop.stages(workshop.begin()):
        if name == "drain" and recorded:
            back_up(workshop)
    assert workshop.consume() == 2
    monkeypatch.undo()
    restore_backup(workshop)
    workshop.advance(hours=2)
    assert adopt(workshop, restored=True) == {"doubted": 2}
    assert adopt(workshop, restored=True) == {}, "it is told once"
    workshop.cycle()
    assert workshop.bodies("orders") == [], "nothing of it is sent unasked"
    assert workshop.states() == {"escalated": 2}
    assert workshop.query("select distinct question, reason from escalated_messages") == [
        ("sent", adopting.OF_A_BACKUP)
    ]
    assert workshop.audit() == []
    found = restore(workshop)
    assert (found["restored"], found["unknown"]) == (0, 2)
    workshop.change("update escalated_messages set decision = 'redeliver', decided_by = 'ana', note = 'nothing ran'")
    assert workshop.review()["released"] == 2
    assert len(files(workshop)) == 1, "its file stays"


def test_a_decision_that_was_not_carried_out_at_the_time_of_the_backup_is_asked_again(workshop: Workshop) -> None:
    workshop.die("a", error=KEY_ERROR)
    workshop.cycle()
    with workshop.ledger.write() as connection:
        connection.execute(sql("update escalated_messages set decision = 'redeliver', decided_by = 'ana', note = 'x'"))
    assert adopt(workshop, restored=True) == {"doubted": 1}
    workshop.review()
    workshop.cycle()
    assert workshop.bodies("orders") == []
    assert workshop.query("select status from escalated_messages") == [("reopened",)]


def test_a_standing_decision_of_the_backup_holds_no_more(workshop: Workshop) -> None:
    """Somebody revoked it since, because it was wrong; the ledger that knew is lost."""
    workshop.die("first", error=KEY_ERROR)
    workshop.die("of another group", error=REFUSED)
    workshop.cycle()
    at, until = (f"{workshop.now() + timedelta(days=days):%Y-%m-%d %H:%M:%S}" for days in (0, 30))
    for route in ("'orders'", "null", "'payments'"):
        workshop.change(
            "insert into standing_decisions (route, group_id, decision, decided_by, note, created_at, until_at)"
            f" select {route}, min(group_id), 'discard', 'ana', 'test data', '{at}', '{until}' from failure_groups"
        )
    back_up(workshop)
    workshop.advance(minutes=1)
    workshop.change("update standing_decisions set revoked_by = 'ben'")
    restore_backup(workshop)
    assert adopt(workshop, restored=True)["standing_decisions_ended"] == 2
    assert adopt(workshop, restored=True) == {}, "once"
    workshop.advance(minutes=1)
    workshop.change(
        "insert into standing_decisions (route, group_id, decision, decided_by, note, created_at, until_at)"
        " select null, max(group_id), 'discard', 'ben', 'made knowing of it',"
        f" '{workshop.now():%Y-%m-%d %H:%M:%S}', '{until}' from failure_groups"
    )
    assert adopt(workshop, restored=True) == {}, "what was said since the first time stays"
    workshop.die("paid order", error=KEY_ERROR)
    workshop.cycle()
    workshop.review()
    found = workshop.query("select payload, status, decision from escalated_messages order by message_id")
    assert found == [("first", "reopened", None), ("paid order", "open", None)]
    ended = "select route from audit_events where actor = 'redrive adopt' and action = 'revoke_standing_discard'"
    assert workshop.query(ended) == [("orders",), (None,)], "another route's ends when that one is taken in"


def test_who_was_asked_already_at_the_time_of_the_backup_is_told_that_somebody_may_have_answered(
    workshop: Workshop,
) -> None:
    workshop.die("a", error=KEY_ERROR)
    workshop.cycle()
    back_up(workshop)
    decide = "update escalated_messages set decision = 'redeliver', decided_by = 'ana', note = 'fixed'"
    workshop.change(decide)
    workshop.review()
    workshop.cycle()
    assert workshop.consume() == 1
    restore_backup(workshop)
    workshop.advance(minutes=30)
    assert adopt(workshop, restored=True) == {"doubted": 1}
    assert adopt(workshop, restored=True) == {}, "it is told once"
    workshop.cycle()
    told = "select status, refusal from escalated_messages"
    assert workshop.query(told) == [("reopened", adopting.OF_A_BACKUP)]
    workshop.change(decide)
    assert workshop.review()["released"] == 1, "people may know better"


@pytest.mark.parametrize("asked", [False, True])
def test_what_may_have_been_processed_since_the_backup_is_not_put_back_before_a_person_says_so(
    workshop: Workshop, asked: bool
) -> None:
    """From its queue it would be drained as a new message, and sent in silence."""
    workshop.die("a", error=KEY_ERROR if asked else REFUSED)
    workshop.cycle() if asked else workshop.planned()
    workshop.advance(hours=1)
    assert adopt(workshop, restored=True) == {"doubted": 1}
    workshop.cycle()
    found = restore(workshop)
    assert (found["restored"], found["unknown"]) == (0, 1)
    workshop.change("update escalated_messages set decision = 'redeliver', decided_by = 'ana', note = 'nothing ran'")
    assert workshop.review()["released"] == 1
    assert restore(workshop)["restored"] == 1
    assert workshop.bodies("orders-dlq") == [b"a"]


def test_what_was_on_its_way_to_people_at_the_time_of_the_backup_says_so(workshop: Workshop) -> None:
    workshop.die("a", error=KEY_ERROR)
    for name, _ in workshop.stages(workshop.begin()):
        if name == "deliver":
            break
    assert workshop.states() == {"to_review": 1}
    workshop.advance(hours=1)
    (before,) = workshop.query("select reason from messages")[0]
    assert adopt(workshop, restored=True) == {"doubted": 1}
    workshop.cycle()
    assert workshop.query("select status, reason from escalated_messages") == [
        ("open", f"{before} {adopting.OF_A_BACKUP}")
    ]


def test_a_row_that_was_open_in_the_backup_does_not_cost_the_file_that_was_settled_since(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup was taken while a batch was written; afterwards it was recorded and settled."""
    record = batches.record

    def back_up_and_record(*args: object, **options: object) -> None:
        back_up(workshop)
        record(*args, **options)  # type: ignore[arg-type]

    workshop.die("a", "b")
    monkeypatch.setattr(batches, "record", back_up_and_record)
    workshop.cycle()
    workshop.consume()
    monkeypatch.undo()
    restore_backup(workshop)
    assert workshop.query("select state from staging_batches") == [("open",)]
    workshop.advance(hours=2)
    assert workshop.audit() == [] or "not loaded" in workshop.audit()[0]
    workshop.cycle()
    assert workshop.query("select state, new_copies from staging_batches") == [("recorded", 2)]


@pytest.fixture
def unmounted(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Restored from a backup that has as open what was settled since, and the disk with its file is not mounted; where
    that is."""
    record = batches.record

    def back_up_and_record(*args: object, **options: object) -> None:
        back_up(workshop)
        record(*args, **options)  # type: ignore[arg-type]

    workshop.die("a", "b")
    with monkeypatch.context() as patched:
        patched.setattr(batches, "record", back_up_and_record)
        workshop.drain(workshop.begin())
    restore_backup(workshop)
    workshop.advance(hours=2)
    place, disk = Path(workshop.settings.staging), workshop.folder / "the disk"
    place.rename(disk)
    place.mkdir()
    return disk


def mount(workshop: Workshop, disk: Path) -> None:
    for file in (path for path in disk.rglob("*") if path.is_file()):
        place = Path(workshop.settings.staging) / file.relative_to(disk)
        place.parent.mkdir(parents=True, exist_ok=True)
        file.rename(place)


def test_a_row_that_was_open_in_the_backup_waits_for_a_disk_that_is_not_mounted(
    workshop: Workshop, unmounted: Path
) -> None:
    for _ in range(2):
        workshop.cycle()
        workshop.audit()
        workshop.advance(hours=2)
    assert workshop.query("select state from staging_batches") == [("open",)]
    mount(workshop, unmounted)
    workshop.cycle()
    assert workshop.query("select state, new_copies from staging_batches") == [("recorded", 2)]
    assert workshop.audit() == []


def test_a_file_whose_row_was_abandoned_while_its_disk_was_not_mounted_is_told_and_taken_in(
    workshop: Workshop, unmounted: Path
) -> None:
    """Something was staged at the place of the disk meanwhile: from then on it looks as if only the file was gone."""
    workshop.die("new")
    workshop.cycle()
    workshop.advance(hours=2)
    workshop.cycle()
    assert workshop.query("select state from staging_batches order by batch_id") == [("abandoned",), ("settled",)]
    mount(workshop, unmounted)
    (problem,) = workshop.audit()
    assert "that the ledger doesn't know" in problem
    assert adopt(workshop) == {"adopted": 1, "copies": 2}
    workshop.cycle()
    assert sorted(payload for (payload,) in workshop.query("select payload from escalated_messages")) == ["a", "b"]
    assert workshop.audit() == []


def test_retention_keeps_the_rows_of_files_that_are_not_mounted(workshop: Workshop) -> None:
    workshop.die("a", error=KEY_ERROR)
    workshop.cycle()
    workshop.change("update escalated_messages set decision = 'discard', decided_by = 'ana', note = 'a test'")
    assert workshop.review()["discarded"] == 1
    workshop.advance(days=60)
    place, disk = Path(workshop.settings.staging), workshop.folder / "the disk"
    place.rename(disk)
    pipeline.retention(workshop.settings, workshop.now())
    assert workshop.query("select count(*) from staging_batches") == [(1,)]
    mount(workshop, disk)
    assert workshop.audit() == []
    pipeline.retention(workshop.settings, workshop.now())
    assert (workshop.query("select count(*) from staging_batches"), files(workshop)) == ([(0,)], {})


def test_an_open_row_whose_file_holds_no_copy_keeps_nobody_waiting(workshop: Workshop) -> None:
    run = workshop.begin()
    _, path = batches.open_batch(
        workshop.ledger, run.lease, source="orders-dlq", kind="dead_letter", shard=0,
        path_of=Staging(workshop.settings.staging).new_path, now=workshop.now(),
    )  # fmt: skip
    writer = Staging(workshop.settings.staging).writer(
        path, batch_id=1, route="orders", source="orders-dlq", kind="dead_letter", broker="memory"
    )
    assert writer.close().copies == 0
    workshop.advance(minutes=30)
    workshop.die("retry me", error=REFUSED)
    assert workshop.cycle()["redelivered"] == 1
    assert workshop.audit() == []
    assert path not in {str(one.relative_to(workshop.settings.staging)) for one in files(workshop)}


def test_a_settled_batch_keeps_its_file_though_the_ledger_forgot_that_it_was_recorded(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database goes on on a replica that was behind, between the record and the mark."""
    settled = batches.settled

    def fail_over(ledger: Ledger, *args: object, **options: object) -> None:
        with ledger.write() as connection:
            connection.execute(sql("update staging_batches set state = 'open', copies = 0"))
        raise KeyboardInterrupt

    workshop.die("a")
    monkeypatch.setattr(batches, "settled", fail_over)
    run = workshop.begin()
    with pytest.raises(KeyboardInterrupt):
        workshop.drain(run)
    monkeypatch.setattr(batches, "settled", settled)
    workshop.advance(minutes=30)
    workshop.cycle()
    assert workshop.bodies("orders") == [b"a"]


def test_a_path_at_which_something_lies_is_refused_and_left_alone(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = "orders/orders-dlq/batch-000000000001-other-00.parquet"
    theirs = Path(workshop.settings.staging) / taken
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"somebody else's")
    monkeypatch.setattr(Staging, "new_path", lambda *_: taken)
    workshop.die("a")
    with pytest.raises(PathTaken, match="there is a file already"):
        workshop.drain(workshop.begin())
    monkeypatch.undo()
    assert theirs.read_bytes() == b"somebody else's"
    workshop.advance(minutes=30)
    workshop.cycle()
    assert theirs.read_bytes() == b"somebody else's"
    assert workshop.bodies("orders") == [b"a"]


def test_ledgers_that_share_a_folder_leave_each_other_alone_and_are_told(workshop: Workshop, tmp_path: Path) -> None:
    other = Workshop(tmp_path, f"sqlite:///{tmp_path}/other.db")
    workshop.die("mine")
    run = workshop.begin()
    workshop.drain(run)
    manifest = pipeline.prepare_classification(workshop.settings, run, **workshop.options())
    assert manifest is not None
    other.die("theirs")
    died = other.begin()
    other.drain(died)
    other.advance(minutes=30)
    other.cycle()  # cleans up after its own dead run
    assert Path(manifest).exists()
    assert {body for (body,) in other.query("select count(*) from messages")} == {1}
    (problem,) = other.audit()
    assert "1 staging files in the folder of route orders were written by another ledger" in problem
    with workshop.ledger.read() as connection:
        theirs = connection.execute(sql("select ledger_id from ledger_identity")).scalar_one()
    assert f"`redrive adopt orders --ledger {theirs}`" in problem
    assert adopt(other) == {"of_other_ledgers": 1}
    with pytest.raises(UsageError, match=f"--ledger {theirs}0: no staging file .* there are files of {theirs}$"):
        adopt(other, of_ledgers=[f"{theirs}0"])
    other.advance(minutes=30)
    assert adopt(other, of_ledgers=[theirs]) == {"adopted": 1, "copies": 1}
    assert adopt(other, of_ledgers=[theirs]) == {}, "of which there was one"
    other.ledger.close()
