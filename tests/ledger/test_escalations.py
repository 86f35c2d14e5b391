"""Review with plain SQL: what a person writes into ``escalated_messages``, and what comes of it, exactly once."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError

from redrive.ledger import schema
from redrive.ledger.account import notifications
from redrive.ledger.engine import Ledger, instant_text, parse_instant, sql
from redrive.ledger.review import applying, escalations
from redrive.ledger.review.applying import Decided
from redrive.message import DeadLetter, Header
from redrive.stages import pipeline
from redrive_ui import failure_queries
from tests.ledger.planting import NOW, Plant
from tests.stages.test_restored_ledger import adopt
from tests.workshop import KEY_ERROR, Workshop

ROOT = Path(__file__).resolve().parents[2]


def typed(ledger: Ledger, statement: str) -> None:
    """What somebody types into a SQL console: no library of ours, one statement, committed."""
    engine = sa.create_engine(ledger.url)
    try:
        with engine.begin() as connection:
            if ledger.dialect.name == "sqlite":
                connection.exec_driver_sql(statement)
            else:
                connection.exec_driver_sql("set search_path = redrive")
                connection.exec_driver_sql(statement.replace("%", "%%"))
    finally:
        engine.dispose()


def person(workshop: Workshop, statement: str) -> None:
    """The same, into the workshop's ledger."""
    typed(workshop.ledger, statement)


def escalate_two(workshop: Workshop) -> None:
    workshop.die("a", "b", error=KEY_ERROR)
    workshop.cycle()
    assert workshop.states() == {"escalated": 2}


@pytest.fixture
def bug(workshop_after: Callable[..., Workshop]) -> Workshop:
    """Two messages that a bug escalated."""
    return workshop_after(escalate_two)


def rows(workshop: Workshop, columns: str) -> list[tuple]:
    return workshop.query(f"select {columns} from escalated_messages order by escalation_id")


def test_who_is_writing_to_what_is_asked_about_is_looked_up_once(
    bug: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is locked then is ours until the transaction ends."""
    looked: list[str] = []
    look = escalations.leave_those_at_it
    monkeypatch.setattr(escalations, "leave_those_at_it", lambda tx, of: (looked.append(of), look(tx, of)))
    bug.die("another", error=KEY_ERROR)
    assert bug.cycle()["escalated"] == 1
    assert looked == ["chosen"]


def test_a_decision_moves_the_row_and_is_told(bug: Workshop) -> None:
    person(
        bug,
        "update escalated_messages set decision = 'redeliver', decided_by = 'ana', note = '1.4.2'",
    )
    assert rows(bug, "status, decided_at is not null") == [("decided", True)] * 2
    told = bug.query("select actor, action, reason from audit_events where action like 'decide%'")
    assert told == [("ana", "decide_redeliver", "1.4.2")] * 2
    assert bug.states() == {"escalated": 2}, "nothing moves before the decision is applied"


def test_a_release_goes_out_once_and_then_the_row_is_applied(bug: Workshop) -> None:
    person(bug, "update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    assert bug.review()["released"] == 2
    assert rows(bug, "status") == [("decided",)] * 2, "applied means sent"
    assert bug.review()["released"] == 0
    bug.cycle()
    assert rows(bug, "status, applied_at is not null") == [("applied", True)] * 2
    assert sorted(bug.bodies("orders")) == [b"a", b"b"]
    bug.cycle()
    assert len(bug.bodies("orders")) == 2
    assert bug.audit() == []


def test_a_discard_is_final(bug: Workshop) -> None:
    person(bug, "update escalated_messages set decision = 'discard', decided_by = 'ana', note = 'test orders'")
    assert bug.review()["discarded"] == 2
    assert bug.states() == {"discarded": 2}
    assert rows(bug, "status") == [("applied",)] * 2
    assert (
        bug.query("select actor, to_state, reason from audit_events where to_state = 'discarded'")
        == [("ana", "discarded", "test orders")] * 2
    )
    assert bug.audit() == []


def test_an_edit_sends_the_corrected_body(bug: Workshop) -> None:
    person(
        bug,
        "update escalated_messages set decision = 'edit', corrected_body = 'A', decided_by = 'ana' where payload = 'a'",
    )
    bug.review()
    bug.cycle()
    assert bug.bodies("orders") == [b"A"]


def sent(workshop: Workshop) -> list[dict[str, str]]:
    """The headers of what lies at the destination, without our marks."""
    return [
        {h.name: str(h.value) for h in letter.headers if not h.name.startswith("x-redrive") or "edited" in h.name}
        for letter in workshop.world.peek("orders")
    ]


def test_an_edit_sends_the_corrected_headers_with_the_types_that_they_had(bug: Workshop) -> None:
    bug.world.put(
        "orders-dlq",
        DeadLetter("", b"c", (
            Header("tenant", "Custom", "red"), Header("old", "String", "1"), Header("raw", "Binary", b"\xff"),
            Header("error", "String", KEY_ERROR),
        ), origin="orders"),
    )  # fmt: skip
    bug.cycle()
    person(
        bug,
        "update escalated_messages set decision = 'edit', decided_by = 'ana', corrected_headers ="
        ' \'{"tenant": "blue", "old": null, "new": ["Number", "7"]}\' where payload = \'c\'',
    )
    bug.review()
    bug.cycle()
    (letter,) = bug.world.peek("orders")
    assert letter.body == b"c", "the body stays"
    assert [one for one in letter.headers if not one.name.startswith("x-redrive-")] == [
        Header("tenant", "Custom", "blue"), Header("raw", "Binary", b"\xff"), Header("new", "Number", "7"),
    ]  # fmt: skip
    assert ("x-redrive-edited", "String", "true") in letter.headers
    assert bug.audit() == []


def test_an_edit_of_headers_that_can_not_be_is_refused_with_the_name(bug: Workshop) -> None:
    for changes, said in (
        ('{"x-redrive-id": "7"}', "header 'x-redrive-id' is written by Redrive alone"),
        ('{"error": "another"}', "header 'error' says why the message failed before"),
        ('{"tenant": 1}', "header 'tenant': its value is a text"),
        ("tenant=blue", "corrected_headers is not JSON"),
    ):
        person(
            bug,
            f"update escalated_messages set decision = 'edit', decided_by = 'ana', corrected_headers = '{changes}'"
            " where payload = 'a'",
        )
        assert bug.review()["refused"] == 1
        (refusal,) = bug.query("select refusal from escalated_messages where payload = 'a'")[0]
        assert said in refusal
    with pytest.raises(DatabaseError, match="edit_needs_correction"):
        person(bug, "update escalated_messages set decision = 'edit', decided_by = 'ana'")


def test_a_correction_is_the_same_on_every_try(workshop: Workshop) -> None:
    workshop.settings = workshop.configure(workshop.settings.database, on_unknown="resend")
    workshop.die("a", error=KEY_ERROR)
    workshop.cycle()
    person(
        workshop,
        "update escalated_messages set decision = 'edit', decided_by = 'ana', corrected_body = 'A',"
        ' corrected_headers = \'{"tenant": "blue", "message_id": null}\'',
    )
    workshop.review()
    workshop.world.faults.publishes += ["retry"]
    workshop.cycle()
    workshop.advance(minutes=30)
    workshop.world.faults.lost_responses = 1
    workshop.cycle()
    assert workshop.states() == {"unknown": 1}
    workshop.advance(minutes=30)
    workshop.cycle()
    assert workshop.bodies("orders") == [b"A", b"A"]
    assert sent(workshop) == [{"tenant": "blue", "x-redrive-edited": "true"}] * 2


def test_what_comes_back_of_an_edit_is_shown_as_it_would_be_sent_again(bug: Workshop) -> None:
    person(
        bug,
        "update escalated_messages set decision = 'edit', decided_by = 'ana', corrected_headers ="
        " '{\"tenant\": \"blue\"}' where payload = 'a'",
    )
    bug.review()
    bug.cycle()
    bug.consume(lambda _: KEY_ERROR)
    bug.cycle()
    ((headers,),) = bug.query("select headers from escalated_messages where status = 'open' and attempts = 1")
    assert {name for name, _, _ in json.loads(headers)} == {"message_id", "error"}, "and why it failed this time"
    person(bug, "update escalated_messages set decision = 'redeliver', decided_by = 'ana' where attempts = 1")
    bug.review()
    bug.cycle()
    assert sent(bug) == [{"message_id": "a"}]


def test_an_edited_message_that_returns_and_is_redelivered_goes_out_as_it_is_shown(bug: Workshop) -> None:
    person(
        bug,
        "update escalated_messages set decision = 'edit', corrected_body = 'A', decided_by = 'ana' where payload = 'a'",
    )
    bug.review()
    bug.cycle()
    bug.consume(lambda _: KEY_ERROR)
    report = bug.cycle()
    assert (report["returned"], report["new"], report["escalated"]) == (1, 0, 1)
    assert bug.query("select payload from escalated_messages where status = 'open' and attempts = 1") == [("a",)]
    person(bug, "update escalated_messages set decision = 'redeliver', decided_by = 'ana' where attempts = 1")
    bug.review()
    bug.cycle()
    assert bug.bodies("orders") == [b"a"]
    assert bug.audit() == []


def test_minds_may_change_until_the_decision_is_taken_up(bug: Workshop) -> None:
    person(bug, "update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    person(bug, "update escalated_messages set decision = 'discard', decided_by = 'ben'")
    assert rows(bug, "status, decision") == [("decided", "discard")] * 2
    told = bug.query("select actor, action from audit_events where action like 'decide%' order by event_id")
    assert told == [("ana", "decide_redeliver")] * 2 + [("ben", "decide_discard")] * 2
    assert bug.review()["discarded"] == 2


@pytest.mark.parametrize("words", ["decision = null", "decision = null, status = 'open'"])
def test_a_decision_can_be_taken_back(bug: Workshop, words: str) -> None:
    person(bug, "update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    person(bug, f"update escalated_messages set {words} where payload = 'a'")
    assert rows(bug, "payload, status, decided_at is null") == [("a", "open", True), ("b", "decided", False)]
    assert bug.query("select actor, action from audit_events where action like 'withdraw%'") == [
        ("ana", "withdraw_redeliver")
    ]
    assert bug.review()["released"] == 1


@pytest.mark.parametrize(
    "nonsense",
    [
        "set decision = 'retry', decided_by = 'ana'",
        "set decision = 'redeliver'",
        "set decision = 'redeliver', decided_by = ' '",
        "set decision = 'edit', decided_by = 'ana'",
        "set status = 'done'",
    ],
    ids=["unknown-decision", "nobody", "blank-name", "edit-without-body", "unknown-status"],
)
def test_nonsense_is_refused_at_once(bug: Workshop, nonsense: str) -> None:
    before = rows(bug, "*")
    with pytest.raises(DatabaseError):
        person(bug, f"update escalated_messages {nonsense}")
    assert rows(bug, "*") == before
    assert bug.query("select count(*) from audit_events where action like 'decide%'") == [(0,)]


def test_what_was_applied_cannot_be_decided_again(bug: Workshop) -> None:
    person(bug, "update escalated_messages set decision = 'discard', decided_by = 'ana'")
    bug.review()
    with pytest.raises(DatabaseError, match="applied already"):
        person(bug, "update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    assert bug.states() == {"discarded": 2}


#: Words about a decision, of which none may change once it was carried out: they are what happened.
WORDS = (
    "decision = 'redeliver'",
    "corrected_body = 'x'",
    "corrected_headers = '{}'",
    "note = 'it was not me'",
    "decided_by = 'ben'",
    "approved_by = 'ben'",
    "approved_by = null",
)


def test_what_was_applied_keeps_its_words(bug: Workshop) -> None:
    person(bug, "update escalated_messages set decision = 'discard', decided_by = 'ana', note = 'test orders'")
    bug.review()
    before = rows(bug, "*")
    for words in WORDS:
        with pytest.raises(DatabaseError, match="applied already"):
            person(bug, f"update escalated_messages set {words}")
    assert rows(bug, "*") == before


def test_what_was_taken_up_keeps_its_words(bug: Workshop) -> None:
    person(bug, "update escalated_messages set decision = 'redeliver', decided_by = 'ana', note = '1.4.2'")
    bug.review()
    for words in WORDS:
        with pytest.raises(DatabaseError, match="taken up already"):
            person(bug, f"update escalated_messages set {words}")
    bug.cycle()
    assert rows(bug, "status, decided_by, approved_by, note") == [("applied", "ana", None, "1.4.2")] * 2


def test_another_note_is_told_and_makes_an_approval_void(bug: Workshop) -> None:
    first, second = "where payload = 'a'", "where payload = 'b'"
    person(bug, f"update escalated_messages set note = 'looks like 1.4.1' {first}")
    person(bug, "update escalated_messages set decision = 'redeliver', decided_by = 'ana', note = '1.4.2'")
    person(bug, "update escalated_messages set approved_by = 'ben'")
    person(bug, f"update escalated_messages set note = '1.4.3' {first}")
    person(bug, f"update escalated_messages set decided_by = 'cleo' {second}")
    person(bug, "update escalated_messages set note = note, decided_by = decided_by")
    told = bug.query(
        "select payload, actor, action, audit_events.reason from audit_events inner join escalated_messages on"
        " escalated_messages.message_id = audit_events.message_id where actor <> 'redrive' order by event_id"
    )
    assert sorted(told, key=lambda one: one[0]) == [
        ("a", "?", "note", "looks like 1.4.1"),
        ("a", "ana", "decide_redeliver", "1.4.2"),
        ("a", "ben", "approve_redeliver", "1.4.2"),
        ("a", "ana", "note", "1.4.3"),
        ("b", "ana", "decide_redeliver", "1.4.2"),
        ("b", "ben", "approve_redeliver", "1.4.2"),
        ("b", "cleo", "decide_redeliver", "1.4.2"),
    ]
    assert rows(bug, "status, approved_by") == [("decided", None)] * 2


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("'2025-10-09T08:53:20Z'", "2025-10-09 08:53:20.000000"),
        ("'2025-10-09 08:53:20'", "2025-10-09 08:53:20.000000"),
        ("'2025-10-09 08:53:20.123456'", "2025-10-09 08:53:20.123456"),
        ("'yesterday, I think'", None),
        ("''", None),
        ("'1764150000000'", None),
    ],
)
def test_a_moment_that_somebody_writes_is_one_or_is_refused(bug: Workshop, written: str, kept: str | None) -> None:
    decide = f"update escalated_messages set decision = 'discard', decided_by = 'ana', decided_at = {written}"
    if kept is None:
        with pytest.raises(DatabaseError):
            person(bug, decide)
        return
    person(bug, decide)
    ((at,), _) = rows(bug, "decided_at")
    assert instant_text(parse_instant(at)) == kept


def test_a_program_that_writes_all_columns_back_decides_now_and_keeps_no_approval(bug: Workshop) -> None:
    """It may know the moment of the decision as none, or give one of its own."""
    person(bug, "update escalated_messages set decision = 'discard', decided_by = 'ana', note = '1.4.2'")
    person(bug, "update escalated_messages set decision = 'redeliver', decided_by = 'ana', decided_at = null")
    assert rows(bug, "status, decided_at is not null") == [("decided", True)] * 2
    person(bug, "update escalated_messages set approved_by = 'ben'")
    person(bug, "update escalated_messages set decided_by = 'cleo', decided_at = '2025-10-09 08:53:20'")
    assert rows(bug, "decided_by, approved_by") == [("cleo", None)] * 2
    told = "select actor, count(*) from audit_events where action = 'decide_redeliver' group by actor order by actor"
    assert bug.query(told) == [("ana", 2), ("cleo", 2)]


def test_a_note_on_what_was_refused_decides_nothing(bug: Workshop) -> None:
    person(bug, "update escalated_messages set decision = 'edit', corrected_body = '', decided_by = 'ana'")
    bug.review()
    person(bug, "update escalated_messages set note = 'ask the shop', decided_by = 'ben'")
    assert rows(bug, "status, refusal") == [("refused", "The correction can't be sent: corrected_body is empty.")] * 2
    person(
        bug,
        "update escalated_messages set decision = 'edit', corrected_body = '', decided_by = 'cleo', note = 'again'",
    )
    assert rows(bug, "status") == [("decided",)] * 2
    told = bug.query(
        "select actor, action, reason from audit_events where actor <> 'redrive' and message_id ="
        " (select min(message_id) from messages) order by event_id"
    )
    assert told == [("ana", "decide_edit", None), ("ben", "note", "ask the shop"), ("cleo", "decide_edit", "again")]


def test_an_approval_that_is_taken_back_is_told(bug: Workshop) -> None:
    person(bug, "update escalated_messages set decision = 'discard', decided_by = 'ana'")
    person(bug, "update escalated_messages set approved_by = 'ben'")
    person(bug, "update escalated_messages set approved_by = null where payload = 'a'")
    person(bug, "update escalated_messages set decision = 'redeliver' where payload = 'b'")
    told = bug.query("select count(*) from audit_events where action = 'unapprove_discard'")
    assert told == [(1,)], "a decision that makes an approval void is told as a decision"


def test_a_release_that_was_taken_up_cannot_be_changed(bug: Workshop) -> None:
    person(bug, "update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    bug.review()
    for change in ("decision = 'discard'", "decision = null", "decision = 'edit', corrected_body = 'x'"):
        with pytest.raises(DatabaseError, match="taken up already"):
            person(bug, f"update escalated_messages set {change}")
    bug.cycle()
    assert rows(bug, "status, decision") == [("applied", "redeliver")] * 2


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("payload = 'b', decision = 'redeliver', decided_by = 'ana'", "write decision = 'edit' and corrected_body"),
        ("payload = 'b'", "write decision = 'edit' and corrected_body"),
        ("headers = '[]', decision = 'redeliver', decided_by = 'ana'", "decision = 'edit' and corrected_headers"),
        ("decision = 'redeliver', corrected_body = 'b', decided_by = 'ana'", "only decision = 'edit' sends a correct"),
        (
            "decision = 'discard', corrected_headers = '{\"x\": null}', decided_by = 'ana'",
            "only decision = 'edit' sends",
        ),
        ("corrected_body = 'b'", "only decision = 'edit' sends a correction: write it in the same statement"),
        ("status = 'decided'", "status follows from the decision: write decision and decided_by"),
        ("status = 'decided', decided_by = 'ana', note = 'send it'", "status follows from the decision"),
    ],
)
def test_what_looks_like_a_decision_and_is_none_is_refused_at_once(bug: Workshop, what: str, said: str) -> None:
    """Taken without a word it would be taken for done: the original would be sent, or nothing, and nobody asked."""
    with pytest.raises(DatabaseError, match=re.escape(said)):
        person(bug, f"update escalated_messages set {what} where payload = 'a'")
    assert rows(bug, "status, decision, payload, corrected_body, corrected_headers") == [
        ("open", None, body, None, None) for body in "ab"
    ]
    # An edit, a word about it, and another decision after it are what they were.
    for decision in ("'edit', corrected_body = 'c', corrected_headers = '{}'", "'redeliver'", "'discard'"):
        person(bug, f"update escalated_messages set decision = {decision}, decided_by = 'ana' where payload = 'a'")
    person(bug, "update escalated_messages set decision = null, corrected_body = null, decided_by = 'ana'")
    assert rows(bug, "status, decision") == [("open", None)] * 2


def test_an_edit_that_is_not_json_is_refused_with_the_reason_and_can_be_mended(workshop: Workshop) -> None:
    workshop.die('{"sku": 1}', error=KEY_ERROR, content_type="application/json")
    workshop.cycle()
    person(workshop, "update escalated_messages set decision = 'edit', corrected_body = '{', decided_by = 'ana'")
    assert workshop.review()["refused"] == 1
    ((status, refusal),) = rows(workshop, "status, refusal")
    assert status == "refused"
    assert "corrected_body is not JSON" in refusal
    person(workshop, "update escalated_messages set decision = 'edit', corrected_body = '{}', decided_by = 'ana'")
    assert rows(workshop, "status, refusal") == [("decided", None)]
    workshop.review()
    workshop.cycle()
    assert workshop.bodies("orders") == [b"{}"]


@pytest.mark.parametrize(
    ("original", "content_type", "correction", "refusal"),
    [
        ('{"a": 1}', "application/json; charset=utf-8", '{"a": NaN}', "not JSON.*content type.*NaN"),
        ("broken", "application/vnd.order+json", "[" * 100_000, "not JSON.*nested too deeply"),
        ('{"a": 1}', None, '{"a": 1', "not JSON, as the original is"),
        ('{"a": 1', None, "anything", None),  # no content type, and the original is nothing that we know
        ("plain", "text/plain", "other", None),
        ("<a/>", "application/xml", "<a>", "not XML"),
        ("<a/>", "text/xml", '<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>', "entities are not taken"),
        ("<a/>", "application/soap+xml", "<a>b</a>", None),
        (b"\xff\x00", "application/x-protobuf", "text", "no text but application/x-protobuf"),
        (b"\xff", "text/plain", "text", None),
        ("ana@example.org", None, "[redacted email]", r"\[redacted\]: it was copied"),
        ("it says [redacted]", None, "[redacted]", None),
    ],
)
def test_a_correction_has_to_be_what_the_original_was(
    tmp_path: Path, original: str | bytes, content_type: str | None, correction: str, refusal: str | None
) -> None:
    workshop = Workshop(tmp_path)
    workshop.die(original, error=KEY_ERROR, content_type=content_type)
    workshop.cycle()
    with workshop.ledger.write() as connection:
        connection.execute(
            sql("update escalated_messages set decision = 'edit', decided_by = 'ana', corrected_body = :body"),
            {"body": correction},
        )
    counts = workshop.review()
    assert (counts["refused"], counts["released"]) == ((1, 0) if refusal else (0, 1))
    if refusal:
        assert re.search(refusal, rows(workshop, "refusal")[0][0])
    workshop.ledger.close()


def test_an_empty_edit_is_refused(bug: Workshop) -> None:
    person(bug, "update escalated_messages set decision = 'edit', corrected_body = '', decided_by = 'ana'")
    assert bug.review()["refused"] == 2
    assert rows(bug, "refusal") == [("The correction can't be sent: corrected_body is empty.",)] * 2


def test_a_decision_that_changes_while_it_is_applied_waits_for_the_next_time(bug: Workshop) -> None:
    """The page was read, then the reviewer changes the row, then the page is applied."""
    person(bug, "update escalated_messages set decision = 'discard', decided_by = 'ana'")
    with bug.ledger.read() as connection:
        page = applying.decided(connection, "orders", approvals=1, after=-1, limit=10)
    person(bug, "update escalated_messages set decision = 'redeliver', decided_by = 'ana' where payload = 'a'")
    run = bug.begin(even_if_paused=True)
    done = applying.apply(bug.ledger, run.lease, redeliver=[], discard=page, refuse=[], first=1, now=bug.now())
    assert done == {"released": 0, "discarded": 1, "refused": 0}
    refused = applying.apply(
        bug.ledger, run.lease, redeliver=[], discard=[], refuse=[(one, "stale") for one in page], first=1, now=bug.now()
    )
    assert refused["refused"] == 0
    pipeline.finish(bug.settings, run, "succeeded", bug.now)
    assert rows(bug, "payload, status, decision") == [("a", "decided", "redeliver"), ("b", "applied", "discard")]
    assert bug.review()["released"] == 1


def test_a_decision_that_is_being_changed_right_now_is_not_applied_as_it_was(bug: Workshop) -> None:
    """The reviewer's transaction is open while the old decision is applied: the new one wins. Where a database locks
    rows, the others don't wait for it."""
    person(bug, "update escalated_messages set decision = 'discard', decided_by = 'ana'")
    with bug.ledger.read() as connection:
        page = applying.decided(connection, "orders", approvals=1, after=-1, limit=10)
    run = bug.begin(even_if_paused=True)
    done: list[dict[str, int]] = []

    def apply() -> None:
        done.append(
            applying.apply(bug.ledger, run.lease, redeliver=[], discard=page, refuse=[], first=1, now=bug.now())
        )

    thread = threading.Thread(target=apply)
    with bug.ledger.write() as connection:
        connection.execute(
            sql("update escalated_messages set decision = 'redeliver', decided_by = 'ben' where payload = 'a'")
        )
        thread.start()
        thread.join(0.3 if bug.ledger.dialect.name == "sqlite" else 20)
        assert bool(done) is (bug.ledger.dialect.name != "sqlite")
    thread.join()
    assert done == [{"released": 0, "discarded": 1, "refused": 0}]
    assert rows(bug, "payload, status, decision") == [("a", "decided", "redeliver"), ("b", "applied", "discard")]


def test_of_edits_only_so_many_are_held_at_once_as_their_bodies_allow(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.die("a" * 10, "b" * 10, "c" * 10, "d" * 30, "e", error=KEY_ERROR)
    workshop.cycle()
    person(workshop, "update escalated_messages set decision = 'edit', corrected_body = payload, decided_by = 'ana'")
    person(workshop, "update escalated_messages set decision = 'discard', decided_by = 'ana' where payload like 'd%'")
    pages: list[int] = []
    decided = applying.decided

    def counted(*args: Any, **options: Any) -> list[Decided]:
        found = decided(*args, **options)
        pages.append(len(found))
        return found

    monkeypatch.setattr(applying, "decided", counted)
    monkeypatch.setattr("redrive.stages.escalate.PAGE_BYTES", 25)
    assert {name: count for name, count in workshop.review().items() if name != "seconds"} == {
        "released": 4, "discarded": 1, "refused": 0,
    }  # fmt: skip
    assert pages == [2, 3, 0], "what is not edited is not read"


def test_a_page_that_is_applied_twice_is_applied_once(bug: Workshop) -> None:
    person(bug, "update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    with bug.ledger.read() as connection:
        page: list[Decided] = applying.decided(connection, "orders", approvals=1, after=-1, limit=10)
    run = bug.begin(even_if_paused=True)
    done = [
        applying.apply(bug.ledger, run.lease, redeliver=page, discard=[], refuse=[], first=1, now=bug.now())["released"]
        for _ in range(2)
    ]
    assert done == [2, 0]
    assert bug.query("select releases from messages") == [(1,), (1,)]


def test_decisions_that_change_all_the_time_are_each_applied_once(workshop: Workshop) -> None:
    """People change their minds in one connection while decisions are applied in another."""
    workshop.die(*(f"m{n}" for n in range(40)), error=KEY_ERROR)
    workshop.cycle()
    person(workshop, "update escalated_messages set decision = 'discard', decided_by = 'ana'")
    stop = threading.Event()
    turned: list[int] = []

    def change_minds() -> None:
        words = ("redeliver", "discard")
        while not stop.is_set():
            for n in range(40):
                if stop.is_set():
                    return
                try:
                    person(
                        workshop,
                        f"update escalated_messages set decision = '{words[len(turned) % 2]}', decided_by = 'ben'"
                        f" where payload = 'm{n}' and status = 'decided'",
                    )
                except DatabaseError as error:
                    assert "too late" in str(error) or "applied already" in str(error)  # noqa: PT017
                turned.append(n)

    thread = threading.Thread(target=change_minds)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while len(turned) < 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        while workshop.states().get("escalated") and time.monotonic() < deadline:
            workshop.review()
    finally:
        stop.set()
        thread.join()
    workshop.review()
    assert "escalated" not in workshop.states()
    found = workshop.query(
        "select messages.state, decision, status, releases, (select count(*) from audit_events where"
        " audit_events.message_id = messages.message_id and to_state in ('waiting', 'discarded')) from messages"
        " inner join escalated_messages on escalated_messages.message_id = messages.message_id"
    )
    assert set(found) <= {("waiting", "redeliver", "decided", 1, 1), ("discarded", "discard", "applied", 0, 1)}
    assert len(found) == 40
    workshop.cycle()
    released = sum(1 for row in found if row[0] == "waiting")
    assert len(workshop.bodies("orders")) == released
    assert workshop.audit() == []


def test_two_approvals_need_two_people(ledger_url: str, tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, ledger_url, approvals=2)
    workshop.die("a", error=KEY_ERROR)
    workshop.cycle()
    person(workshop, "update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    assert workshop.review()["released"] == 0
    for same in ("ana", "Ana", " ana "):
        with pytest.raises(DatabaseError, match="second person"):
            person(workshop, f"update escalated_messages set approved_by = '{same}'")
    person(workshop, "update escalated_messages set approved_by = ' '")
    assert workshop.review()["released"] == 0, "nobody is not a person"
    person(workshop, "update escalated_messages set approved_by = 'ben', decided_by = 'cleo'")
    person(workshop, "update escalated_messages set decided_by = 'ben'")
    assert workshop.review()["released"] == 0, "one person cannot be both"
    person(workshop, "update escalated_messages set decided_by = 'ana', approved_by = 'ben'")
    told = workshop.query("select actor from audit_events where action = 'approve_redeliver' order by event_id")
    assert told[-1] == ("ben",)
    person(workshop, "update escalated_messages set decision = 'discard', decided_by = 'ana'")
    assert rows(workshop, "approved_by") == [(None,)], "an approval is for what was decided then"
    assert workshop.review()["discarded"] == 0
    person(workshop, "update escalated_messages set approved_by = 'ben'")
    assert workshop.review()["discarded"] == 1
    workshop.ledger.close()


def test_a_body_that_is_no_text_is_shown_as_bytes(workshop: Workshop) -> None:
    workshop.die(b"\xff\x00", b"nul \x00 inside", error=KEY_ERROR)
    workshop.cycle()
    found = rows(workshop, "payload, payload_bytes, size_bytes")
    assert [(p, bytes(b), n) for p, b, n in found] == [(None, b"\xff\x00", 2), (None, b"nul \x00 inside", 12)]


def test_hostile_text_is_only_text(workshop: Workshop) -> None:
    hostile = "'; drop table messages; -- %s :now \\copy \u202e"
    workshop.die(hostile, error=f"KeyError: {hostile}")
    workshop.cycle()
    assert rows(workshop, "payload") == [(hostile,)]


def test_a_message_that_can_not_be_sent_after_its_release_is_refused_with_the_reason(plant: Plant) -> None:
    (one,) = plant.messages(1)
    candidate = escalations.Candidate(
        one, "classified", one, "orders-dlq", "orders", None, None, None, 0, None, "b", None, 2
    )
    escalations.escalate(
        plant.ledger, plant.lease, [escalations.Review(candidate, b"{}", None, [], None, "redeliver")], plant.now
    )
    plant.change("update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    with plant.ledger.read() as connection:
        page = applying.decided(connection, "orders", approvals=1, after=-1, limit=10)
    applying.apply(plant.ledger, plant.lease, redeliver=page, discard=[], refuse=[], first=1, now=plant.now)
    plant.send("release", status="refused", detail="too large")
    assert plant.states() == {"escalated": 1}
    assert plant.rows("select status, refusal from escalated_messages") == [
        ("refused", "It could not be sent: too large")
    ]


def test_a_group_that_was_archived_is_raised_again_by_what_keeps_failing(bug: Workshop) -> None:
    person(bug, "update escalated_messages set decision = 'discard', decided_by = 'ana', note = 'test orders'")
    bug.review()
    assert bug.query("select * from review_groups") == []
    bug.die("c", error=KEY_ERROR)
    bug.cycle()
    person(bug, "update escalated_messages set escalated_at = current_timestamp where status = 'open'")
    ((open_messages, last, by, because, last_day, trend),) = bug.query(
        "select open_messages, last_decision, last_decided_by, suggested_because, last_day, trend from review_groups"
    )
    assert (open_messages, last, by) == (1, "discard", "ana")
    assert because == "decided last time: discard by ana"
    assert (last_day, trend) == (1, "rising")


def test_a_group_tells_what_people_decided_last_and_not_what_was_asked_last(workshop: Workshop) -> None:
    workshop.die("a", "b", "c", error=KEY_ERROR)
    workshop.cycle()
    last = "select open_messages, last_decision, last_decided_by, suggested_because from review_groups"
    person(workshop, "update escalated_messages set decision = 'discard', decided_by = 'ana' where payload = 'b'")
    workshop.review()
    assert workshop.query(last) == [(2, "discard", "ana", "decided last time: discard by ana")]
    time.sleep(0.01)  # a moment has to pass, also for a clock of milliseconds
    person(workshop, "update escalated_messages set decision = 'redeliver', decided_by = 'ben' where payload = 'a'")
    workshop.review()
    workshop.cycle()
    assert workshop.query(last) == [(1, "redeliver", "ben", "decided last time: redeliver by ben")]
    pipeline.restore(workshop.settings, workshop.begin(), **workshop.options())
    workshop.advance(hours=1)
    workshop.cycle()
    assert workshop.query(last) == [(1, "redeliver", "ben", "decided last time: redeliver by ben")], "of people"


def test_that_something_was_sent_already_is_no_advice_about_what_failed(workshop: Workshop) -> None:
    workshop.die("a", error=KEY_ERROR)
    workshop.cycle()
    assert adopt(workshop, restored=True) == {"doubted": 1}
    workshop.die("b", error=KEY_ERROR)
    workshop.cycle()
    assert rows(workshop, "payload, question") == [("a", "sent"), ("b", "failure")]
    person(workshop, "update escalated_messages set decision = 'discard', decided_by = 'ana' where payload = 'a'")
    workshop.review()
    assert workshop.query("select open_messages, last_decision from review_groups") == [(1, None)]


def test_a_group_is_given_advice_only_where_it_is_right_for_all_that_is_open(workshop: Workshop) -> None:
    workshop.die("a", "b", "c", error=KEY_ERROR)
    workshop.cycle()
    person(workshop, "update escalated_messages set suggested_decision = 'discard' where payload in ('a', 'b')")
    person(workshop, "update escalated_messages set decision = 'discard', decided_by = 'ana' where payload = 'a'")

    def advice() -> tuple[str | None, str]:
        with workshop.ledger.read() as connection:
            (told,) = notifications.groups(connection, "orders").values()
        return workshop.query("select suggested_decision from review_groups")[0][0], told["suggested_decision"]

    assert advice() == (None, "none")
    person(workshop, "update escalated_messages set decision = 'redeliver', decided_by = 'ana' where payload = 'c'")
    assert advice() == ("discard", "discard"), "what is decided needs none"


def test_a_group_tells_what_came_of_earlier_redeliveries(bug: Workshop) -> None:
    person(bug, "update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    bug.review()
    bug.cycle()
    bug.consume(lambda letter: KEY_ERROR if letter.body == b"a" else None)
    bug.cycle()
    bug.query("select 1")
    found = bug.query("select open_messages, redelivered, returned, last_decision from review_groups")
    assert found == [(1, 2, 1, "redeliver")]
    assert bug.query("select suggested_because from review_groups") == [("0 of 1 redelivered stayed away",)]


def test_what_a_consumer_asked_to_have_later_did_not_come_back(bug: Workshop) -> None:
    person(bug, "update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    bug.review()
    bug.cycle()
    (letter,) = (one for one in bug.world.peek("orders") if one.body == b"a")
    bug.consume()
    bug.world.put("orders-delay", letter)
    bug.die("c", error=KEY_ERROR)
    bug.advance(minutes=1)
    bug.cycle()
    assert bug.query("select distinct outcome, return_kind from redelivery_attempts where return_kind is not null") == [
        ("returned", "delay")
    ]
    counted = "from review_groups where group_id is not null"
    assert bug.query(f"select open_messages, redelivered, returned {counted}") == [(1, 2, 0)]
    by_day = (ROOT / "sql" / "review" / "group_by_day.sql").read_text()
    with bug.ledger.read() as connection:
        assert {row["came_back"] for row in connection.execute(sa.text(by_day)).mappings()} == {0}
        ((group,),) = bug.query(f"select group_id {counted}")
        assert failure_queries.outcomes(connection, "orders", [group])[group]["returned"] == 0


#: What each answers about one message that was discarded as a standing decision has it, and one that waits.
ANSWERS = {
    "newest": ("payload", ["b"]),
    "biggest_groups": ("open_messages", [1]),
    "by_age": ("cause", ["application_bug"]),
    "group_by_day": ("died", [2]),
    "by_attribute": ("status", ["applied", "open"]),
    "by_queue": ("source", ["orders-dlq"]),
    "last_decisions_of_group": ("decision", ["discard"]),
    "refused_and_reopened": ("status", ["neither"]),
    "standing_decisions": ("messages", [1]),
    "who_decided_what": ("action", ["apply_discard", "decide_discard", "make_standing_discard"]),
}


@pytest.mark.parametrize("query", sorted((ROOT / "sql" / "review").glob("*.sql")), ids=lambda path: path.stem)
def test_ready_made_queries_answer(bug: Workshop, query: Path) -> None:
    person(
        bug,
        "insert into standing_decisions (group_id, decision, decided_by, note, until_at)"
        " select group_id, 'discard', 'ana', 'known', '2099-01-01' from failure_groups",
    )
    person(
        bug,
        "update escalated_messages set decision = 'discard', decided_by = 'ana', note = 'standing decision 1: known'"
        " where payload = 'a'",
    )
    bug.review()
    text = query.read_text()
    assert text.startswith("-- "), "each begins with a sentence on what it answers"
    column, answers = ANSWERS[query.stem]
    with bug.ledger.read() as connection:
        text = (
            text if bug.ledger.dialect.name == "sqlite" else text.replace("%", "%%")
        )  # for the driver, not for people
        found = connection.exec_driver_sql(text).mappings().all()
    assert [row[column] for row in found] == answers


@pytest.mark.server
def test_a_transaction_that_saw_a_message_under_review_does_not_change_its_release(
    postgres_database: str, tmp_path: Path
) -> None:
    """On PostgreSQL one of REPEATABLE READ sees it there whatever others have committed since."""
    workshop = Workshop(tmp_path, postgres_database)
    workshop.die("a", error=KEY_ERROR)
    workshop.cycle()
    person(workshop, "update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    engine = sa.create_engine(workshop.ledger.url, isolation_level="REPEATABLE READ")
    try:
        with engine.connect() as connection:
            assert connection.exec_driver_sql("select state from redrive.messages").scalar() == "escalated"
            assert workshop.review()["released"] == 1
            with pytest.raises(DatabaseError, match="could not serialize access"):
                connection.exec_driver_sql(
                    "update redrive.escalated_messages set decision = 'discard', decided_by = 'ben'"
                )
    finally:
        engine.dispose()
    workshop.cycle()
    assert rows(workshop, "status, decision, decided_by") == [("applied", "redeliver", "ana")]
    assert workshop.bodies("orders") == [b"a"]
    assert workshop.audit() == []
    workshop.ledger.close()


# --- logins of people -------------------------------------------------------------------------------------


@pytest.mark.server
class TestReviewerRole:
    """On PostgreSQL people log in, may decide and nothing else, and can't sign for others."""

    @pytest.fixture
    def bug(self, postgres_database: str, tmp_path: Path) -> Iterator[Workshop]:
        workshop = Workshop(tmp_path, postgres_database, approvals=2)
        workshop.die("a", error=KEY_ERROR)
        workshop.cycle()
        for name in ("ana", "ben"):
            person(workshop, f"drop role if exists {name}")
            person(workshop, f"create role {name} login in role redrive_reviewer")
        yield workshop
        workshop.ledger.close()
        for name in ("ana", "ben"):
            person(workshop, f"drop role {name}")

    def test_does_not_read_what_runs_began_with(self, bug: Workshop) -> None:
        assert self.says(bug, "ana", "select count(configuration) from redrive.runs") == [(1,)]
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied for table configurations"):
            self.says(bug, "ana", "select text from redrive.configurations")

    def says(self, bug: Workshop, name: str, statement: str) -> list[tuple]:
        engine = sa.create_engine(bug.ledger.url.set(username=name))
        try:
            with engine.begin() as connection:
                result = connection.exec_driver_sql(statement)
                return [tuple(row) for row in result] if result.returns_rows else []
        finally:
            engine.dispose()

    def test_decides_in_their_own_name_whatever_they_write(self, bug: Workshop) -> None:
        self.says(bug, "ana", "update redrive.escalated_messages set decision = 'redeliver', decided_by = 'ceo'")
        assert rows(bug, "status, decided_by") == [("decided", "ana")]
        self.says(bug, "ben", "update redrive.escalated_messages set decided_by = 'ana', decision = 'discard'")
        assert rows(bug, "decision, decided_by") == [("discard", "ben")]
        assert bug.query("select actor from audit_events where action like 'decide%' order by event_id") == [
            ("ana",),
            ("ben",),
        ]

    def test_need_not_write_their_name(self, bug: Workshop) -> None:
        self.says(bug, "ana", "update redrive.escalated_messages set decision = 'redeliver'")
        assert rows(bug, "decided_by") == [("ana",)]

    def test_cannot_approve_in_somebody_elses_name(self, bug: Workshop) -> None:
        self.says(bug, "ana", "update redrive.escalated_messages set decision = 'redeliver'")
        with pytest.raises(DatabaseError, match="second person"):
            self.says(bug, "ana", "update redrive.escalated_messages set approved_by = 'ben'")
        assert bug.review()["released"] == 0
        self.says(bug, "ben", "update redrive.escalated_messages set approved_by = 'ben'")
        assert bug.review()["released"] == 1

    def test_cannot_hand_their_own_decision_to_another_to_approve_it_themselves(self, bug: Workshop) -> None:
        self.says(bug, "ana", "update redrive.escalated_messages set decision = 'redeliver'")
        with pytest.raises(DatabaseError, match="second person"):
            self.says(bug, "ana", "update redrive.escalated_messages set decided_by = 'ben', approved_by = 'ana'")
        self.says(bug, "ana", "update redrive.escalated_messages set decided_by = 'ben'")
        assert rows(bug, "decided_by, approved_by") == [("ana", None)]
        assert bug.review()["released"] == 0

    def test_signs_whatever_they_name_also_where_it_stays_the_same(self, bug: Workshop) -> None:
        for words in (
            "decision = 'redeliver'",
            "decision = 'redeliver', decided_by = 'ana'",
            "decision = decision, note = 'sneaked in'",
            "note = 'sneaked in'",
            "corrected_body = null",
            "decided_by = decided_by, note = note",
        ):
            self.says(bug, "ana", "update redrive.escalated_messages set decision = 'redeliver', note = 'fixed'")
            self.says(bug, "ben", f"update redrive.escalated_messages set {words}")
            assert rows(bug, "decided_by") == [("ben",)], words
            told = bug.query(
                "select actor, action from audit_events where action like 'decide%' order by event_id desc limit 2"
            )
            assert told == [("ben", "decide_redeliver"), ("ana", "decide_redeliver")], words
            with pytest.raises(DatabaseError, match="second person"):
                self.says(bug, "ben", "update redrive.escalated_messages set approved_by = 'ben'")

    def test_cannot_decide_again_as_somebody_else_what_was_refused_and_approve_it_too(self, bug: Workshop) -> None:
        self.says(bug, "ana", "update redrive.escalated_messages set decision = 'edit', corrected_body = ''")
        self.says(bug, "ben", "update redrive.escalated_messages set approved_by = 'ben'")
        assert bug.review()["refused"] == 1
        self.says(bug, "ben", "update redrive.escalated_messages set decision = 'edit', decided_by = 'ana'")
        assert rows(bug, "status, decided_by, approved_by") == [("decided", "ben", None)]
        with pytest.raises(DatabaseError, match="second person"):
            self.says(bug, "ben", "update redrive.escalated_messages set approved_by = 'ben'")

    def test_takes_an_approval_back_in_their_own_name(self, bug: Workshop) -> None:
        self.says(bug, "ana", "update redrive.escalated_messages set decision = 'redeliver'")
        self.says(bug, "ben", "update redrive.escalated_messages set approved_by = 'ben'")
        self.says(bug, "ana", "update redrive.escalated_messages set approved_by = null")
        told = bug.query("select actor, action from audit_events where action like '%approve%' order by event_id")
        assert told == [("ben", "approve_redeliver"), ("ana", "unapprove_redeliver")]
        assert bug.review()["released"] == 0

    def test_may_read_everything(self, bug: Workshop) -> None:
        for name in (
            "escalated_messages",
            "review_groups",
            "message_balance",
            "route_summary",
            "cause_trend",
            "messages",
        ):
            self.says(bug, "ana", f"select * from redrive.{name}")
        assert self.says(bug, "ana", "select cause, open_messages from redrive.review_groups") == [
            ("application_bug", 1)
        ]

    @pytest.mark.parametrize(
        "forbidden",
        [
            "update redrive.escalated_messages set status = 'applied'",
            "update redrive.escalated_messages set payload = 'x'",
            "update redrive.messages set state = 'discarded'",
            "delete from redrive.escalated_messages",
            "insert into redrive.audit_events (at, actor, action) values (now(), 'ana', 'x')",
            "delete from redrive.audit_events",
            "drop trigger escalated_messages_a_sign on redrive.escalated_messages",
            "alter table redrive.escalated_messages disable trigger all",
            "create table redrive.t (i int)",
            "set session authorization ben",
            "update redrive.standing_decisions set until_at = now()",
            "insert into redrive.standing_decisions (group_id, decision, decided_by, note, until_at, approved_by)"
            " values (1, 'discard', 'ana', 'x', now(), 'ben')",
            "delete from redrive.standing_decisions",
            "delete from redrive.notifications",
        ],
    )
    def test_may_do_nothing_else(self, bug: Workshop, forbidden: str) -> None:
        with pytest.raises(DatabaseError, match=r"permission denied|must be owner"):
            self.says(bug, "ana", forbidden)

    def test_lets_a_decision_stand_in_their_own_name_and_another_approves_and_a_third_revokes(
        self, bug: Workshop
    ) -> None:
        self.says(
            bug,
            "ana",
            "insert into redrive.standing_decisions (group_id, decision, decided_by, note, until_at)"
            " select group_id, 'discard', 'ceo', 'known', now() + interval '1 day' from redrive.failure_groups",
        )
        with pytest.raises(DatabaseError, match="second person"):
            self.says(bug, "ana", "update redrive.standing_decisions set approved_by = 'ben'")
        self.says(bug, "ben", "update redrive.standing_decisions set approved_by = 'ceo'")
        self.says(bug, "ben", "update redrive.standing_decisions set revoked_by = 'ana'")
        found = bug.query("select decided_by, approved_by, revoked_by, revoked_at is not null from standing_decisions")
        assert found == [("ana", "ben", "ben", True)]
        told = bug.query("select actor, action from audit_events where action like '%stand%' order by event_id")
        assert told == [
            ("ana", "make_standing_discard"),
            ("ben", "approve_standing_discard"),
            ("ben", "revoke_standing_discard"),
        ]

    def test_the_owner_speaks_for_whom_it_names(self, bug: Workshop) -> None:
        person(bug, "update escalated_messages set decision = 'redeliver', decided_by = 'cleo'")
        assert rows(bug, "decided_by") == [("cleo",)]

    def test_upgrading_again_keeps_the_role(self, bug: Workshop) -> None:
        schema.upgrade(bug.ledger, bug.now())
        self.says(bug, "ana", "update redrive.escalated_messages set decision = 'redeliver'")


@pytest.mark.server
def test_without_the_right_to_create_roles_the_upgrade_goes_on(postgres_database: str) -> None:
    admin = sa.create_engine(postgres_database, isolation_level="AUTOCOMMIT")
    name = f"app_{postgres_database.rpartition('/')[2]}"
    with admin.connect() as connection:
        exists = connection.exec_driver_sql("select to_regrole('redrive_reviewer') is not null").scalar()
        connection.exec_driver_sql(f"create role {name} login nosuperuser nocreaterole")
        connection.exec_driver_sql(f"grant create on database {postgres_database.rpartition('/')[2]} to {name}")
    if exists:
        with admin.connect() as connection:
            connection.exec_driver_sql("alter role redrive_reviewer rename to redrive_reviewer_elsewhere")
    try:
        ledger = Ledger(postgres_database.replace("//redrive@", f"//{name}@"))
        schema.upgrade(ledger, NOW)
        with ledger.read() as read:
            assert ledger.dialect.lacks_reviewers(read), "so that the doctor can tell it"
        plant = Plant(ledger)
        plant.messages(1)
        ledger.close()
    finally:
        with admin.connect() as connection:
            if exists:
                connection.exec_driver_sql("alter role redrive_reviewer_elsewhere rename to redrive_reviewer")
            connection.exec_driver_sql(f"drop owned by {name} cascade")
            connection.exec_driver_sql(f"drop role {name}")
        admin.dispose()
