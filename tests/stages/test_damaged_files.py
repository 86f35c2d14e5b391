"""A staging file that is damaged or gone stops its own messages only, and those are told and not lost track of."""

import base64
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from redrive import selectors
from redrive.classification import executor
from redrive.classification.case_finder import CaseSettings
from redrive.errors import StagingError, UsageError
from redrive.ledger.drain import suspects
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.review.escalations import Review
from redrive.ledger.selecting import Selection
from redrive.ledger.transactions import RouteLease
from redrive.message import DeadLetter, Header, body_hash
from redrive.stages import pipeline
from redrive.stages import review as review_stage
from redrive.stages.context import Context
from redrive.staging import file_schemas
from redrive.staging.batch_files import Staging
from redrive.staging.batch_writer import staging_errors
from tests.workshop import KEY_ERROR, REFUSED, THROTTLED, Workshop


def _flip(path: Path) -> None:
    """Damage within: the end of the file, which says what is where, is as it was."""
    whole = bytearray(path.read_bytes())
    middle = len(whole) // 8
    whole[4:middle] = bytes(byte ^ 0x5A for byte in whole[4:middle])
    path.write_bytes(bytes(whole))


def _name_no_zone(path: Path) -> None:
    """The zone of all times, in the schema that Arrow keeps beside Parquet's."""
    whole = path.read_bytes()
    schema = re.search(rb"ARROW:schema.*?([A-Za-z0-9+/]{100,}=*)", whole, re.DOTALL)
    assert schema is not None
    changed = base64.b64encode(base64.b64decode(schema[1]).replace(b"UTC", b"UTK"))
    path.write_bytes(whole.replace(schema[1], changed))


def _rename(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"ordering_key", b"orderinG_key"))


def _start_of(path: Path, column: str) -> int:
    """Where in the file the pages of this column begin."""
    group = pq.read_metadata(path).row_group(0)
    parts = map(group.column, range(group.num_columns))
    first = next(part for part in parts if part.path_in_schema.split(".")[0] == column)
    return int(first.dictionary_page_offset or first.data_page_offset)


def _lose_the_last_header(path: Path) -> None:
    """The beginning of a page of headers, which has no checksum, tells of one fewer."""
    whole, before = path.read_bytes(), pq.read_table(path).column("headers")
    start = _start_of(path, "headers")
    for place in range(start, start + 40):
        changed = whole[:place] + bytes([(whole[place] - 2) % 256]) + whole[place + 1 :]
        try:
            after = pq.read_table(pa.BufferReader(changed), page_checksum_verification=True).column("headers")
        except (OSError, pa.ArrowException):
            continue
        if not after.equals(before):
            path.write_bytes(changed)
            return
    raise AssertionError("no such byte")


def _other(column: str) -> Callable[[Path], None]:
    """One bit of the file is another, and with it a value of this column and nothing else: all of it can be read."""

    def change(path: Path) -> None:
        whole = path.read_bytes()
        before = pq.read_table(path).column(column)
        for place in range(_start_of(path, column), len(whole)):
            changed = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
            try:
                after = pq.read_table(pa.BufferReader(changed), columns=[column]).column(column)
                if after.equals(before) or not after.to_pylist():
                    continue
                pq.read_table(pa.BufferReader(changed)).to_pylist()
            except Exception:
                continue
            path.write_bytes(changed)
            return
        raise AssertionError("no such bit")

    return change


DAMAGES: dict[str, Callable[[Path], object]] = {
    "gone": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "damaged within": _flip,
    "a column of another name": _rename,
    "a time zone that is none": _name_no_zone,
    "another body": _other("body"),
    "another header": _other("headers"),
    "one header fewer": _lose_the_last_header,
}


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    """Batches of one message each."""
    workshop = Workshop(tmp_path, drain={"wait": "0s", "flush_messages": 1})
    yield workshop
    workshop.ledger.close()


@pytest.fixture(params=DAMAGES.values(), ids=DAMAGES.keys())
def damage(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    return request.param  # type: ignore[no-any-return]


def file_of(workshop: Workshop, batch_id: int = 2) -> Path:
    ((uri,),) = workshop.query("select uri from staging_batches where batch_id = :id", id=batch_id)
    return Path(workshop.settings.staging) / str(uri)


def test_a_batch_that_cannot_be_read_is_left_and_all_others_are_loaded(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], object]
) -> None:
    workshop.die("a", "b", "c", error=REFUSED)
    run = workshop.begin()
    workshop.drain(run)
    whole = file_of(workshop).read_bytes()
    damage(file_of(workshop))
    _job_leaves_out_what_it_cannot_read(monkeypatch)
    stages = workshop.stages(run)
    with pytest.raises(StagingError, match=r"1 staged messages could not be loaded.*batch-000000000002") as told:
        for _ in stages:
            pass
    assert "Bring the files back" in str(told.value)
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    assert sorted(workshop.bodies("orders")) == [b"a", b"c"]
    assert any("batch-000000000002" in problem for problem in workshop.audit())
    file_of(workshop).write_bytes(whole)
    workshop.advance(minutes=5)
    workshop.cycle()
    assert sorted(workshop.bodies("orders")) == [b"a", b"b", b"c"]
    assert workshop.audit() == []


def _job_leaves_out_what_it_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classification of the tests does as the Spark job does."""
    import json  # noqa: PLC0415

    from tests import classifying, workshop  # noqa: PLC0415

    def classify(manifest_uri: str) -> None:
        manifest = json.loads(Path(manifest_uri).read_text())
        readable, left_out = [], []
        for batch in manifest["batches"]:
            try:
                with pa.OSFile(batch["uri"]) as stream:
                    file_schemas.read_group(file_schemas.open_staged(stream), 0, file_schemas.STAGED.names)
            except (OSError, pa.ArrowException):
                left_out.append(batch)
            else:
                readable.append(batch)
        Path(manifest_uri).write_text(json.dumps(manifest | {"batches": readable}))
        classifying.classify(manifest_uri)
        Path(manifest_uri).write_text(json.dumps(manifest))
        for batch in left_out:
            name = Path(manifest["output"]) / file_schemas.MESSAGES_DIR / file_schemas.messages_file(batch["batch_id"])
            pq.write_table(file_schemas.MESSAGES.empty_table(), name)

    monkeypatch.setattr(workshop, "classify", classify)


def test_a_message_that_cannot_be_read_goes_to_people_and_the_others_go_out(
    workshop: Workshop, damage: Callable[[Path], object]
) -> None:
    workshop.die("a", "b", "c", error=REFUSED)
    run = workshop.planned()
    whole = file_of(workshop).read_bytes()
    damage(file_of(workshop))
    counts = workshop.deliver(run)
    assert (counts["redelivered"], counts["unreadable"], counts["unknown"]) == (2, 1, 0)
    pipeline.escalate(workshop.settings, run, **workshop.options())
    pipeline.report(workshop.settings, run, **workshop.options())
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    assert sorted(workshop.bodies("orders")) == [b"a", b"c"]
    ((payload, reason),) = workshop.query("select payload, reason from escalated_messages where payload_bytes is null")
    assert payload is None
    assert "Its staging file is damaged or missing" in reason
    assert any("batch-000000000002" in problem for problem in workshop.audit())

    file_of(workshop).write_bytes(whole)
    with workshop.ledger.write() as connection:
        connection.execute(sql("update escalated_messages set decision = 'redeliver', decided_by = 'ana', note = 'x'"))
    workshop.review()
    workshop.cycle()
    assert sorted(workshop.bodies("orders")) == [b"a", b"b", b"c"]


def test_a_release_that_cannot_be_read_is_asked_again_and_sends_nothing(workshop: Workshop) -> None:
    workshop.die("a", error=KEY_ERROR)
    workshop.cycle()
    file_of(workshop, 1).unlink()
    with workshop.ledger.write() as connection:
        connection.execute(sql("update escalated_messages set decision = 'redeliver', decided_by = 'ana', note = 'x'"))
    workshop.review()
    workshop.cycle()
    ((status, refusal),) = workshop.query("select status, refusal from escalated_messages")
    assert status == "reopened"
    assert "Its staging file is damaged or missing" in refusal


def test_people_get_messages_whose_payload_is_gone_and_all_others(
    workshop: Workshop, damage: Callable[[Path], object]
) -> None:
    workshop.die("a", "b", "c", error=KEY_ERROR)
    run = workshop.begin()
    for name, _ in workshop.stages(run):
        if name == "deliver":
            damage(file_of(workshop))
    found = dict(workshop.query("select message_id >> 20, payload from escalated_messages"))
    assert found == {1: "a", 2: None, 3: "c"}


def test_restore_puts_back_all_others(workshop: Workshop, damage: Callable[[Path], object]) -> None:
    workshop.die("a", "b", "c", error=REFUSED)
    run = workshop.begin()
    workshop.drain(run)
    damage(file_of(workshop))
    found = pipeline.restore(workshop.settings, run, **workshop.options())
    assert (found["restored"], found["staged"] + found["not_restored"]) == (2, 1), "what can't be read is told"
    assert sorted(workshop.bodies("orders-dlq")) == [b"a", b"c"]


def test_a_part_by_attribute_leaves_out_what_cannot_be_read(
    workshop: Workshop, damage: Callable[[Path], object]
) -> None:
    workshop.die("a", "b", "c", error=REFUSED)
    run = workshop.begin(selection=Selection(attributes=(("message_id", "c"),)))
    for name, _ in workshop.stages(run):
        if name == "load":
            damage(file_of(workshop))
        if name == "deliver":
            break
    assert workshop.bodies("orders") == [b"c"]


def test_the_job_answers_for_it_without_rows(
    workshop: Workshop, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    workshop.die("a", "b", error=REFUSED)
    workshop.drain(workshop.begin())
    damage(file_of(workshop))
    both = [executor.Batch(number, str(file_of(workshop, number))) for number in (1, 2)]
    reading_all = CaseSettings(message_key=selectors.parse("body:$.id"))
    executor.write(both, reading_all, str(tmp_path / "out"))
    answered = [pq.read_metadata(tmp_path / "out" / file_schemas.messages_file(number)).num_rows for number in (1, 2)]
    assert answered == [1, 0]


@pytest.mark.parametrize("lasts", [True, False])
def test_a_store_that_fails_is_not_taken_for_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasts: bool
) -> None:
    """Else the answer has no rows, Spark says that it went well, and no load can be done with it."""
    workshop = Workshop(tmp_path)
    workshop.die("a", error=REFUSED)
    workshop.drain(workshop.begin())
    batch, fails, opened = executor.Batch(1, str(file_of(workshop, 1))), [True], file_schemas.open_staged

    def open_staged(stream: pa.NativeFile) -> pq.ParquetFile:
        if fails:
            fails[:] = fails if lasts else []
            raise OSError("connection reset by peer")
        return opened(stream)

    monkeypatch.setattr(executor.file_schemas, "open_staged", open_staged)
    if lasts:  # every byte of it can be read, and nothing made of them
        executor.write([batch], CaseSettings(), str(tmp_path / "out"))
        assert pq.read_metadata(tmp_path / "out" / file_schemas.messages_file(1)).num_rows == 0
        return
    with pytest.raises(OSError, match="connection reset"):
        executor.write([batch], CaseSettings(), str(tmp_path / "out"))
    executor.write([batch], CaseSettings(), str(tmp_path / "out"))
    assert pq.read_metadata(tmp_path / "out" / file_schemas.messages_file(1)).num_rows == 1


def test_a_file_that_ends_too_early_is_damaged_where_more_of_it_is_asked_for(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    workshop.die("a", "b", error=REFUSED)
    run = workshop.planned()
    file = file_of(workshop, 1)
    pq.write_table(pq.read_table(file).slice(0, 1), file)
    counts = workshop.deliver(run)
    assert (counts["redelivered"], counts["unreadable"]) == (1, 1)
    workshop.ledger.close()


def test_a_store_that_cannot_be_reached_is_no_damage(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop.die("a", error=REFUSED)
    run = workshop.planned()
    folder = Path(workshop.settings.staging)
    folder.rename(folder.with_name("unmounted"))
    with pytest.raises(StagingError):
        workshop.deliver(run)
    assert workshop.states() == {"waiting": 1}
    folder.with_name("unmounted").rename(folder)
    file = file_of(workshop, 1)
    assert not Staging(str(folder)).is_damaged(str(file.relative_to(folder)))
    workshop.deliver(run)
    assert workshop.bodies("orders") == [b"a"]


def _lost_before_its_load(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Of three batches the second is damaged before anything is loaded; returns its file as it was."""
    workshop.die("a", "b", "c", error=REFUSED)
    run = workshop.begin()
    workshop.drain(run)
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    whole = file_of(workshop).read_bytes()
    _job_leaves_out_what_it_cannot_read(monkeypatch)
    return whole


def _give_up(workshop: Workshop, batch_id: int = 2, reason: str = "no versions") -> dict[str, object]:
    run = workshop.begin()
    try:
        return pipeline.give_up(workshop.settings, run, batch_id, by="ana", reason=reason, **workshop.options())
    finally:
        pipeline.finish(workshop.settings, run, "succeeded", workshop.now)


def test_a_batch_that_is_lost_for_good_is_given_up_and_the_route_goes_on(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], object]
) -> None:
    whole = _lost_before_its_load(workshop, monkeypatch)
    place = file_of(workshop)
    damage(place)
    with pytest.raises(StagingError, match="redrive forget-batch orders 2"):
        workshop.cycle()
    workshop.advance(minutes=5)
    assert {"batch_id": 2, "copies": 1, "watched": 0}.items() <= _give_up(workshop).items()
    assert workshop.query("select actor, count, reason from audit_events where action = 'give_up_batch'") == [
        ("ana", 1, "no versions")
    ]
    assert workshop.audit() == []
    workshop.consume()
    for _ in range(4):
        workshop.advance(hours=2)
        workshop.cycle()
    assert workshop.states() == {"presumed": 2}, "they were sent after it was drained"
    assert workshop.audit() == []

    place.write_bytes(whole)
    assert any("redrive adopt orders" in problem for problem in workshop.audit())
    run = workshop.begin()
    assert pipeline.adopt(workshop.settings, run, **workshop.options())["adopted"] == 1
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    workshop.cycle()
    assert workshop.query("select payload from escalated_messages") == [("b",)]
    assert workshop.audit() == []


def test_a_place_in_which_nothing_is_stops_the_drain_instead_of_asking_people_about_all_that_waits(
    workshop: Workshop,
) -> None:
    """A disk that is not mounted after a restart, or another folder in the configuration."""
    workshop.die("a", "b", error=THROTTLED)
    workshop.cycle()
    assert workshop.states() == {"waiting": 2}
    place = Path(workshop.settings.staging)
    place.rename(workshop.folder / "the disk")
    place.mkdir()
    workshop.die("new")
    workshop.advance(hours=1)
    run = workshop.begin()
    with pytest.raises(StagingError, match="is it mounted"):
        workshop.drain(run)
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    assert workshop.bodies("orders-dlq") == [b"new"], "nothing was settled"
    assert workshop.query("select distinct state from staging_batches") == [("settled",)], "nothing was begun there"
    place.rmdir()
    (workshop.folder / "the disk").rename(place)
    workshop.cycle()
    assert workshop.states() == {"sent": 3}
    assert workshop.audit() == []


def test_whoever_lost_all_files_for_good_can_say_so(workshop: Workshop) -> None:
    workshop.die("a", "b", error=THROTTLED)
    workshop.cycle()
    place = Path(workshop.settings.staging)
    place.rename(workshop.folder / "lost")
    (place / "orders").mkdir(parents=True)
    workshop.die("new")
    workshop.advance(hours=1)
    workshop.cycle()
    assert workshop.states() == {"escalated": 2, "sent": 1}


def test_a_new_place_is_right_where_nothing_needs_the_old_one(workshop: Workshop) -> None:
    workshop.die("a", error=KEY_ERROR)
    workshop.cycle()
    with workshop.ledger.write() as connection:
        connection.exec_driver_sql("update escalated_messages set decision = 'discard', decided_by = 'ana'")
    workshop.review()
    Path(workshop.settings.staging).rename(workshop.folder / "old")
    workshop.die("new")
    assert workshop.cycle()["new"] == 1


def test_what_may_have_come_back_in_a_batch_that_is_given_up_is_never_presumed(workshop: Workshop) -> None:
    workshop.die("a", "b", error=REFUSED)
    assert workshop.cycle()["redelivered"] == 2
    workshop.consume(lambda letter: REFUSED if letter.body == b"a" else None)
    run = workshop.begin()
    workshop.drain(run)
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    ((lost,),) = workshop.query("select max(batch_id) from staging_batches")
    whole = file_of(workshop, lost).read_bytes()
    file_of(workshop, lost).unlink()
    assert _give_up(workshop, lost)["watched"] == 2
    for _ in range(4):
        workshop.advance(hours=2)
        workshop.cycle()
    assert workshop.states() == {"sent": 2}
    assert workshop.query("select distinct reason from messages") == [
        (f"It may have come back in batch {lost}, which was given up.",)
    ]
    assert workshop.query("select sent, stayed, returned from destination_state") == [(0, 0, 0)]
    workshop.advance(days=4)
    workshop.cycle()
    assert workshop.audit() == [], "nothing has to be done, so nothing keeps the audit and retention from their work"
    file_of(workshop, lost).write_bytes(whole)
    run = workshop.begin()
    assert pipeline.adopt(workshop.settings, run, **workshop.options())["adopted"] == 1
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    assert workshop.cycle()["returned"] == 1, "what is seen after all counts"
    assert workshop.audit() == []


def test_a_send_that_nobody_watches_any_more_keeps_no_later_message_of_its_key(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, order_by="attribute:customer")
    headers = (Header("customer", "String", "c"), Header("error", "String", REFUSED))
    for body in (b"1", b"2", b"3"):
        workshop.world.put("orders-dlq", DeadLetter("", body, headers, origin="orders"))
    assert workshop.cycle()["redelivered"] == 1
    workshop.consume(lambda _: REFUSED)
    run = workshop.begin()
    workshop.drain(run)
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    ((lost,),) = workshop.query("select max(batch_id) from staging_batches")
    file_of(workshop, lost).unlink()
    assert _give_up(workshop, lost)["watched"] == 1
    workshop.advance(minutes=10)
    assert workshop.cycle()["redelivered"] == 1
    assert workshop.bodies("orders") == [b"2"]
    workshop.advance(minutes=10)
    assert workshop.cycle()["redelivered"] == 0, "what becomes of this one is watched"
    for _ in range(2):
        workshop.consume()
        workshop.advance(hours=1)
        workshop.cycle()
    assert workshop.states() == {"sent": 2, "presumed": 1}
    assert workshop.query("select outcome from redelivery_attempts order by message_id")[0] == (None,)
    assert workshop.audit() == []
    workshop.ledger.close()


def test_only_a_batch_that_waits_and_cannot_be_read_is_given_up(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    _lost_before_its_load(workshop, monkeypatch)
    with pytest.raises(UsageError, match="can be read"):
        _give_up(workshop)
    with pytest.raises(UsageError, match="no batch 17"):
        _give_up(workshop, 17)
    folder = Path(workshop.settings.staging)
    folder.rename(folder.with_name("unmounted"))
    with pytest.raises(StagingError):
        _give_up(workshop)
    folder.with_name("unmounted").rename(folder)
    file_of(workshop).unlink()
    with pytest.raises(UsageError, match="say why"):
        _give_up(workshop, reason=" ")
    assert workshop.query("select count(*) from staging_batches where copies = 1") == [(3,)]


@pytest.fixture
def unreadable_suspect(workshop: Workshop) -> tuple[Workshop, int]:
    """A suspected copy whose file was gone when people were asked about it."""
    workshop.die("a", error=KEY_ERROR)
    workshop.cycle()
    ((copy_id,),) = workshop.query("select message_id + 500 from messages")
    with workshop.ledger.write() as connection:
        connection.execute(
            sql(
                "insert into repeat_copies (copy_id, route, source, kind, message_id, broker_message_id, seen_at)"
                " select message_id + 500, route, source, 'suspected', message_id, broker_message_id, changed_at"
                " from messages"
            )
        )
        connection.execute(sql("update staging_batches set copies = 2, suspected_copies = 1"))
    file_of(workshop, 1).unlink()
    run = workshop.begin()
    pipeline.escalate(workshop.settings, run, **workshop.options())
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    return workshop, int(copy_id)


def _decide(workshop: Workshop, copy_id: int, decision: str) -> None:
    with workshop.ledger.write() as connection:
        connection.execute(
            sql(
                "update escalated_messages set decision = :what, decided_by = 'ana', note = 'x' where message_id = :id"
            ),
            {"what": decision, "id": copy_id},
        )
    workshop.review()


def test_a_suspected_copy_that_cannot_be_read_is_not_taken_for_an_empty_one(
    unreadable_suspect: tuple[Workshop, int],
) -> None:
    workshop, copy_id = unreadable_suspect
    _decide(workshop, copy_id, "redeliver")
    assert workshop.query("select count(*) from messages") == [(1,)]
    ((status, refusal),) = workshop.query(
        "select status, refusal from escalated_messages where message_id = :id", id=copy_id
    )
    assert status == "refused"
    assert "bring the file back" in refusal


def test_a_suspected_copy_that_cannot_be_read_is_discarded_as_what_it_may_be_a_copy_of(
    unreadable_suspect: tuple[Workshop, int],
) -> None:
    workshop, copy_id = unreadable_suspect
    _decide(workshop, copy_id, "discard")
    assert workshop.query("select count(distinct body_hash), count(*) from messages") == [(1, 2)]
    assert workshop.query("select state from messages where message_id = :id", id=copy_id) == [("discarded",)]


def test_a_suspected_copy_whose_file_is_back_is_what_the_file_says(
    unreadable_suspect: tuple[Workshop, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop, copy_id = unreadable_suspect
    monkeypatch.setattr("redrive.stages.escalate.bodies", lambda _, asked: dict.fromkeys(asked, b"other"))
    _decide(workshop, copy_id, "redeliver")
    assert workshop.query("select body_hash, body_bytes from messages where message_id = :id", id=copy_id) == [
        (body_hash(b"other"), 5)
    ]


def test_a_decision_on_a_suspected_copy_that_comes_while_a_review_is_at_work_waits_for_the_next_one(
    unreadable_suspect: tuple[Workshop, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decided after those copies were taken up on which somebody had, and before decisions are read."""
    workshop, copy_id = unreadable_suspect
    monkeypatch.setattr("redrive.stages.escalate.bodies", lambda _, asked: dict.fromkeys(asked, b"other"))
    take_up, read = review_stage._adopt, "select status, refusal from escalated_messages where message_id = :id"

    def decide_then(context: Context) -> None:
        take_up(context)
        monkeypatch.setattr(review_stage, "_adopt", take_up)
        workshop.change(
            f"update escalated_messages set decision = 'discard', decided_by = 'b' where message_id = {copy_id}"
        )

    monkeypatch.setattr(review_stage, "_adopt", decide_then)
    workshop.review()
    assert workshop.query(read, id=copy_id) == [("decided", None)]
    assert workshop.review()["discarded"] == 1
    assert workshop.query(read, id=copy_id) == [("applied", None)]


@pytest.mark.parametrize(("page", "page_bytes"), [(2, 1_000), (500, 25)], ids=["by number", "by bytes"])
def test_of_suspected_copies_a_few_are_held_at_a_time(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, page: int, page_bytes: int
) -> None:
    """A queue that is staged twice may make one of every message: asked about, and decided, with all their bodies."""
    workshop.die(*(letter * 10 for letter in "abcde"), error=KEY_ERROR)
    workshop.cycle()
    workshop.change(
        "insert into repeat_copies (copy_id, route, source, kind, message_id, broker_message_id, seen_at)"
        " select message_id + 500, route, source, 'suspected', message_id, broker_message_id, changed_at from messages"
    )
    workshop.change("update staging_batches set copies = 2, suspected_copies = 1")
    for path in Path(workshop.settings.staging).rglob("*.parquet"):
        path.unlink()
    monkeypatch.setattr("redrive.stages.escalate.PAGE", page)
    monkeypatch.setattr("redrive.stages.escalate.PAGE_BYTES", page_bytes)
    asked: list[int] = []
    read: list[int] = []
    write_reviews = suspects.write_reviews

    def counted(ledger: Ledger, lease: RouteLease, reviews: Sequence[Review], now: datetime) -> int:
        asked.append(len(reviews))
        return write_reviews(ledger, lease, reviews, now)

    def bodies(_: object, copy_ids: Sequence[int]) -> dict[int, bytes]:
        read.append(len(copy_ids))
        return dict.fromkeys(copy_ids, b"other")

    monkeypatch.setattr(suspects, "write_reviews", counted)
    monkeypatch.setattr("redrive.stages.escalate.bodies", bodies)
    run = workshop.begin()
    pipeline.escalate(workshop.settings, run, **workshop.options())
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    assert asked == [2, 2, 1]
    workshop.change("update escalated_messages set decision = 'discard', decided_by = 'ana', note = 'x'")
    assert workshop.review()["discarded"] == 10
    assert read == [2, 2, 1]
    assert workshop.query("select sum(new_copies), sum(suspected_copies) from staging_batches") == [(10, 0)]


@pytest.mark.parametrize("lack", [pa.ArrowMemoryError("malloc of size 8388608 failed"), MemoryError()])
def test_a_lack_of_memory_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lack: MemoryError) -> None:
    """Else what is whole would go to people as lost."""
    workshop = Workshop(tmp_path)
    workshop.die("a", error=REFUSED)
    workshop.drain(workshop.begin())
    ((path,),) = workshop.query("select uri from staging_batches")
    staging = Staging(workshop.settings.staging)

    def fail(*_: object, **__: object) -> None:
        raise lack

    batch, out = executor.Batch(1, staging.uri(path)), str(tmp_path / "out")
    for of, name in ((file_schemas, "read_group"), (pq, "ParquetFile")):
        with monkeypatch.context() as patched:
            patched.setattr(of, name, fail)
            for looking in (
                lambda: list(Staging(workshop.settings.staging).letters(path, [0])),
                lambda: staging.is_damaged(path),
                lambda: staging.proof(path, bodies=True),
                lambda: executor._is_damaged(batch, None),
            ):
                with pytest.raises(MemoryError):
                    looking()
    with monkeypatch.context() as patched:
        patched.setattr(executor.CaseFinder, "at", fail)
        with pytest.raises(MemoryError):
            executor.write([batch], CaseSettings(), out)
    with pytest.raises(MemoryError), staging_errors(path):
        fail()
    workshop.ledger.close()
