"""Bad input hurts only itself: it is kept byte for byte, and everything else goes on; trouble has a name."""

import json
import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from redrive.errors import (
    BrokerUnavailable,
    ClassificationFailed,
    LedgerUnavailable,
    MessageRefused,
    QueuesFailed,
    SettingsError,
    StagingError,
)
from redrive.message import DeadLetter, Header, body_hash
from redrive.settings import parse
from redrive.stages import pipeline
from redrive.staging import batch_writer
from tests import classifying
from tests.workshop import KEY_ERROR, REFUSED, Workshop

HOSTILE = {
    "empty": b"",
    "a mebibyte": b"\xc3\xa9" * (512 * 1024),
    "binary": bytes(range(256)) * 4,
    "not UTF-8": "Grüße".encode("latin-1"),
    "half a character": "€".encode()[:2],
    "NUL bytes": b"a\0b\0",
    "markup": b"<script>alert(1)</script>&amp;<img src=x onerror=alert(1)>",
    "terminal escapes": b"\x1b[2J\x1b]0;owned\x07\r\n",
    "right to left": "\u202etxt.exe\u200f \u2066".encode(),
    "deep nesting": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "one long line": b'{"error": "' + b"x " * 500_000 + b'"}',
    "formula": b"=cmd|' /C calc'!A0",
    "SQL": b"'); drop table messages; --",
    "pickle": b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "surrogates in JSON": b'{"error": "\\ud800 \\u0000 lost"}',
}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workshop]:
    database = None if request.param == "sqlite" else request.getfixturevalue("postgres_database")
    workshop = Workshop(tmp_path, database)
    yield workshop
    workshop.ledger.close()


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def test_bodies_are_redelivered_byte_for_byte(shop: Workshop) -> None:
    shop.die(*HOSTILE.values(), error=REFUSED)
    assert shop.cycle()["redelivered"] == len(HOSTILE)
    assert sorted(shop.bodies("orders")) == sorted(HOSTILE.values())
    assert shop.audit() == []


def test_bodies_are_escalated_byte_for_byte(shop: Workshop) -> None:
    shop.die(*HOSTILE.values(), error=KEY_ERROR)
    assert shop.cycle()["escalated"] == len(HOSTILE)
    rows = shop.query("select payload, payload_bytes, size_bytes from escalated_messages")
    bodies = [text.encode() if text is not None else bytes(raw) for text, raw, _ in rows]
    assert sorted(bodies) == sorted(HOSTILE.values())
    assert [size for _, _, size in rows] == [len(body) for body in bodies]
    assert shop.audit() == []


def test_any_body_without_an_error_text_is_classified(shop: Workshop) -> None:
    shop.die(*HOSTILE.values(), error=None)
    report = shop.cycle()
    assert report["new"] == len(HOSTILE)
    assert shop.audit() == []


@pytest.mark.parametrize(
    "error",
    [
        pytest.param("KeyError: '\0sku\0'", id="NUL"),
        pytest.param("KeyError: '\ud800sku'", id="lone surrogate"),
        pytest.param("\x1b[31mKeyError\x1b[0m: <b>sku</b> \u202e", id="markup"),
        pytest.param("Caused by: " * 50_000 + "KeyError: 'sku'", id="trace-like text without end"),
        pytest.param("(" * 20_000 + "a" * 20_000 + "!", id="regex bait"),
        pytest.param("", id="empty"),
    ],
)
def test_hostile_failure_texts_stay_texts(shop: Workshop, error: str) -> None:
    shop.die("hostile", error=error)
    shop.die("plain", error=REFUSED)
    shop.cycle()
    assert b"plain" in shop.bodies("orders")
    assert shop.audit() == []


def test_strange_headers_survive_the_trip(shop: Workshop) -> None:
    strange = (
        Header("", "String", ""),
        Header("naïve name \N{SNOWMAN}", "String.my-type", "ü"),
        Header("binary", "Binary.x", b"\xff\0"),
        Header("Error", "Number", "-1e400"),
        Header("x-redrive-id", "String", "forged'; --"),
        Header("x-redrive-attempt", "String", "-99999999999"),
        Header("twice", "String", "1"),
        Header("twice", "String", "2"),
        Header("nul", "String", "a\0b"),
    )
    shop.die("a", error=REFUSED)
    letter = shop.world.peek("orders-dlq")[0]
    shop.world.put("orders-dlq", letter._replace(broker_message_id="b", headers=(*letter.headers, *strange)))
    assert shop.cycle()["redelivered"] == 2
    arrived = next(one for one in shop.world.peek("orders") if len(one.headers) > 6)
    kept = [header for header in arrived.headers if header in strange]
    assert kept == [header for header in strange if not header.name.startswith("x-redrive")]
    assert shop.audit() == []


def test_strange_keys_and_content_types_are_kept(shop: Workshop) -> None:
    shop.settings = shop.configure(shop.settings.database, order_by="key")
    shop.die("a", error=REFUSED, ordering_key="k\0ey", content_type="text/\0plain")
    shop.die("b", error=KEY_ERROR, ordering_key="k\0ey2", content_type="text/\0plain")
    report = shop.cycle()
    assert (report["redelivered"], report["escalated"]) == (1, 1)
    assert [one.ordering_key for one in shop.world.peek("orders")] == ["k\0ey"]
    assert shop.audit() == []


LONG = "".join(random.Random(1).choices(string.ascii_letters + string.digits, k=6_000))  # no compression helps


@pytest.mark.parametrize(
    ("route", "fields", "redelivered"),
    [
        # The second of a key waits for the first.
        ({"order_by": "body:$.customer"}, {}, 2),
        # Nobody knows where that is: a person decides.
        ({"destination": None}, {"origin": LONG}, 1),
    ],
    ids=["order key", "origin"],
)
def test_texts_that_no_index_takes_stop_nothing(
    route: dict[str, Any], fields: dict[str, str], redelivered: int, tmp_path: Path, ledger_url: str
) -> None:
    """PostgreSQL refuses rows of an index above 2,704 bytes."""
    shop = Workshop(tmp_path, ledger_url, **route)
    for number in range(2):
        shop.die(json.dumps({"customer": LONG, "number": number}), **fields)
    shop.die('{"customer": "kim"}')
    assert shop.cycle()["redelivered"] == redelivered
    assert shop.audit() == []


def test_a_copy_with_a_long_broker_id_is_known_when_it_comes_again(shop: Workshop) -> None:
    letter = DeadLetter(LONG, b"a", (Header("error", "String", REFUSED),), enqueued_at=shop.time.now, origin="orders")
    shop.world.put("orders-dlq", letter)
    assert shop.cycle()["redelivered"] == 1
    shop.world.put("orders-dlq", letter)
    report = shop.cycle()
    assert (report["new"], report["duplicates"]) == (0, 1)


def test_copies_delivered_twice_are_one_message(workshop: Workshop) -> None:
    workshop.die("a", error=REFUSED)
    letter = workshop.world.peek("orders-dlq")[0]
    workshop.world.put("orders-dlq", letter, letter)
    report = workshop.cycle()
    assert (report["drained"], report["new"], report["duplicates"], report["redelivered"]) == (3, 1, 2, 1)
    assert workshop.audit() == []


def test_a_message_that_can_not_be_sent_goes_to_people_and_the_others_of_its_window_go(workshop: Workshop) -> None:
    workshop.world.faults.refused_bodies = {b"2"}
    workshop.die("1", "2", "3", error=REFUSED)
    report = workshop.cycle()
    assert (report["redelivered"], report["escalated"]) == (2, 1)
    assert sorted(workshop.bodies("orders")) == [b"1", b"3"]
    assert workshop.query("select payload, reason from escalated_messages") == [
        ("2", "It could not be sent: injected: this body is refused")
    ]


def test_a_message_that_fails_to_be_sent_again_and_again_goes_to_people(workshop: Workshop) -> None:
    workshop.die("1", "2", error=REFUSED)
    for _ in range(3):
        workshop.world.faults.publishes.extend(["sent", "retry"] if b"1" not in workshop.bodies("orders") else [])
        if not workshop.world.faults.publishes:
            workshop.die("other", error=REFUSED)
            workshop.world.faults.publishes.extend(["retry", "sent"])
        workshop.cycle()
        workshop.advance(minutes=2)
    assert workshop.bodies("orders").count(b"2") == 0
    rows = workshop.query("select payload, reason from escalated_messages")
    assert rows == [("2", "It could not be sent: injected: retry")]


def test_a_message_without_a_destination_is_not_lost(workshop: Workshop) -> None:
    workshop.settings = workshop.configure(workshop.settings.database, destination=None)
    workshop.die("whither", error=REFUSED, origin=None)
    workshop.die("good", error=REFUSED)
    workshop.cycle()
    assert workshop.bodies("orders") == [b"good"]
    assert workshop.query("select payload from escalated_messages") == [("whither",)], "a person has to say where to"


def test_a_source_that_does_not_exist_is_named(workshop: Workshop) -> None:
    sources = [{"queue": "nowhere-dlq", "kind": "dead_letter"}]
    workshop.settings = workshop.configure(workshop.settings.database, sources=sources)
    run = workshop.begin()
    pipeline.drain(workshop.settings, run, **workshop.options())
    with pytest.raises(QueuesFailed, match="QueueMissing: queue nowhere-dlq does not exist"):
        pipeline.report(workshop.settings, run)


@pytest.mark.parametrize("action", ["receive", "settle", "publish"])
def test_a_missing_permission_is_named_and_nothing_is_lost(workshop: Workshop, action: str) -> None:
    queue = "orders" if action == "publish" else "orders-dlq"
    workshop.die("a", "b", error=REFUSED)
    workshop.world.faults.forbidden = {(queue, action)}
    with pytest.raises(QueuesFailed, match=f"{queue}.*is not allowed"):
        workshop.cycle()
    workshop.world.faults.forbidden = set()
    workshop.advance(minutes=10)
    workshop.cycle()
    assert sorted(workshop.bodies("orders")) == [b"a", b"b"]
    assert workshop.states() == {"sent": 2}
    assert workshop.audit() == []


def test_a_broker_that_is_away_is_named_and_nothing_is_lost(workshop: Workshop) -> None:
    workshop.die("a", error=REFUSED)
    workshop.world.faults.down = "connection refused"
    with pytest.raises(BrokerUnavailable, match="connection refused"):
        workshop.cycle()
    workshop.world.faults.down = ""
    workshop.advance(minutes=10)
    workshop.cycle()
    assert workshop.bodies("orders") == [b"a"]


def test_a_dead_database_is_named_without_its_password(workshop: Workshop) -> None:
    workshop.die("a", error=REFUSED)
    workshop.settings = workshop.configure("postgresql+psycopg://redrive:hunter2@127.0.0.1:1/redrive")
    with pytest.raises(LedgerUnavailable, match=r"127\.0\.0\.1:1") as raised:
        workshop.cycle()
    assert "hunter2" not in str(raised.value)
    assert workshop.bodies("orders-dlq") == [b"a"]


def test_a_database_file_that_is_none_is_named(workshop: Workshop, tmp_path: Path) -> None:
    (tmp_path / "other.db").write_bytes(b"this is not a database, whatever its name says" * 100)
    workshop.settings = workshop.configure(f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(LedgerUnavailable, match=r"other\.db.*not a database"):
        workshop.begin()


def test_a_staging_folder_that_is_a_file_is_named_and_nothing_is_settled(workshop: Workshop) -> None:
    workshop.die("a", error=REFUSED)
    run = workshop.begin()
    Path(workshop.settings.staging).write_text("in the way")
    with pytest.raises(StagingError, match="staging"):
        pipeline.drain(workshop.settings, run, **workshop.options())
    assert workshop.bodies("orders-dlq") == [b"a"], "given back at once"
    Path(workshop.settings.staging).unlink()
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    workshop.cycle()
    assert workshop.bodies("orders") == [b"a"]
    assert workshop.audit() == []


@pytest.mark.parametrize("moment", ["write_table", "close"])
def test_a_full_disk_is_told_and_nothing_is_settled(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    workshop.die("a", error=REFUSED)

    def full(*_args: object, **_options: object) -> None:
        raise pa.ArrowIOError("[Errno 28] Error writing bytes to file. No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(batch_writer.pq.ParquetWriter, moment, full)
        with pytest.raises(StagingError, match="No space left on device"):
            workshop.cycle()
    assert workshop.bodies("orders-dlq") == [b"a"]
    assert list(Path(workshop.settings.staging).rglob("*.parquet")) == []
    workshop.advance(minutes=10)
    workshop.cycle()
    assert workshop.bodies("orders") == [b"a"]
    assert workshop.audit() == []


def test_the_ledger_knows_each_body_by_its_size_and_hash(workshop: Workshop) -> None:
    bodies = ["", "a", "\u00e9" * 7]
    workshop.die(*bodies, error=REFUSED)
    workshop.cycle()
    known = workshop.query("select body_bytes, body_hash from messages order by message_id")
    assert [(size, bytes(digest)) for size, digest in known] == [
        (len(body.encode()), body_hash(body.encode())) for body in bodies
    ]


def test_spark_output_that_lacks_rows_is_never_loaded(workshop: Workshop) -> None:
    workshop.die("a", "b", error=REFUSED)
    run = workshop.begin()
    pipeline.drain(workshop.settings, run, **workshop.options())
    manifest = pipeline.prepare_classification(workshop.settings, run, **workshop.options())
    assert manifest is not None
    with pytest.raises(ClassificationFailed, match=r"left no cases\.parquet"):
        pipeline.load(workshop.settings, run, **workshop.options())
    classifying.classify(manifest)
    (file,) = Path(workshop.settings.staging).rglob("classified/*/messages/*.parquet")
    answers = pq.read_table(file)
    file.unlink()
    with pytest.raises(ClassificationFailed, match=r"left no messages/batch-1\.parquet"):
        pipeline.load(workshop.settings, run, **workshop.options())
    pq.write_table(answers.slice(1), file)
    with pytest.raises(ClassificationFailed, match=r"answered for 1 messages of batches 1 to 1, where 2 are staged"):
        pipeline.load(workshop.settings, run, **workshop.options())
    assert workshop.states() == {}
    assert workshop.query("select staged from message_balance") == [(2,)]


def test_an_unknown_key_of_the_configuration_is_named(tmp_path: Path) -> None:
    text = "routes: {orders: {broker: memory, connection: m, sources: [{queue: q, kind: dead_letter}], retries: 3}}"
    with pytest.raises(SettingsError, match=r"routes\.orders\.retries"):
        parse(text, env={}, root=tmp_path)


def test_a_message_refused_by_the_adapter_itself_is_told() -> None:
    assert "never take" in str(MessageRefused())
