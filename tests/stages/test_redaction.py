"""Redaction: what people are shown is masked; what is kept and what is sent is as it was."""

import json
from pathlib import Path
from typing import cast

import pytest
import yaml
from typer.testing import CliRunner

from redrive.brokers.base import Broker
from redrive.cli import app
from redrive.errors import SettingsError
from redrive.ledger import leases
from redrive.ledger.selecting import Selection
from redrive.message import DeadLetter, Header
from redrive.stages import peek, pipeline, preview
from redrive.stages.context import Context
from tests.workshop import Workshop

PERSONAL = ("ana@example.org", "4111 1111 1111 1111", "Ana Smith", "u-77")
BODY = '{"customer": {"name": "Ana Smith"}, "mail": "ana@example.org", "pan": "4111 1111 1111 1111"}'
ERROR = "KeyError: no address of Ana Smith, ana@example.org, 4111 1111 1111 1111, {'name': 'Ana Smith'}"
RULES = ["email", "card", "$.customer.name", "attribute:message_id"]


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    workshop = Workshop(tmp_path, redact=RULES)
    file = tmp_path / "redrive.yaml"
    route = {"broker": "memory", "connection": "memory", "sources": [{"queue": "orders-dlq"}], "redact": RULES}
    file.write_text(
        yaml.safe_dump(
            {
                "database": workshop.settings.database,
                "staging": workshop.settings.staging,
                "routes": {"orders": route | {"destination": {"queue": "orders"}}},
            }
        )
    )
    monkeypatch.setenv("REDRIVE_CONFIG", str(file))
    return workshop


def broken(file: Path) -> None:
    """Misspell a key of the route, beside another one that is right."""
    given = yaml.safe_load(file.read_text())
    given["routes"]["shop"] = given["routes"]["orders"] | {"sources": [{"queue": "shop-dlq"}]}
    given["routes"]["orders"]["redcat"] = given["routes"]["orders"].pop("redact")
    file.write_text(yaml.safe_dump(given))


def shown(*words: str) -> str:
    result = CliRunner().invoke(app.app, [*words])
    assert result.exit_code == 0, result.output
    return result.output


def test_what_is_masked_is_not_kept_to_be_found_by(tmp_path: Path) -> None:
    search = ["body:$.customer.name", "body:$.customer.id", "body:$.mail", "attribute:tenant"]
    workshop = Workshop(tmp_path, redact=RULES, search=search)
    workshop.die('{"customer": {"name": "Ana Smith", "id": "C-7"}, "mail": "ana@example.org"}', error=ERROR)
    workshop.die('{"customer": {"id": "' + "y" * 3000 + '"}}', error=ERROR)
    workshop.die("no json", error=ERROR)
    workshop.cycle()
    assert workshop.query("select field, value from message_fields order by message_id") == [
        ("body:$.customer.id", "c-7"),
        ("body:$.customer.id", "y" * 200),
    ]


def test_the_command_line_masks_and_the_ledger_keeps_and_the_queue_gets_what_was_there(workshop: Workshop) -> None:
    workshop.die(BODY, error=ERROR)
    workshop.cycle()
    ((message, payload, error),) = workshop.query("select message_id, payload, error_text from escalated_messages")
    assert (payload, "Ana Smith" in error) == (BODY, True), "people who may read the ledger decide by it"
    for words in (
        ("review", "show", str(message)),
        ("review", "show", str(message), "--json"),
        ("review", "list", "--json"),
    ):
        text = shown(*words)
        for one in PERSONAL[:2]:
            assert one not in text, words
    (row,) = json.loads(shown("review", "show", str(message), "--json"))
    assert json.loads(row["payload"])["customer"] == {"name": "[redacted]"}
    assert ["message_id", "String", "[redacted]"] in json.loads(row["headers"])
    ((example,),) = workshop.query("select example from failure_groups")
    assert "{'name': '[redacted]'}" in example
    with workshop.ledger.write() as connection:
        connection.exec_driver_sql("update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    workshop.review()
    workshop.cycle()
    assert workshop.bodies("orders") == [BODY.encode()]


def test_a_payload_that_is_no_text_is_not_shown_where_the_route_redacts(workshop: Workshop) -> None:
    body = 'Müller {"mail": "ana@example.org"}'.encode("utf-16")
    workshop.die(body, error="KeyError: sku")
    workshop.cycle()
    ((message, kept),) = workshop.query("select message_id, payload_bytes from escalated_messages")
    assert kept == body
    (row,) = json.loads(shown("review", "show", str(message), "--json"))
    assert (row["payload"], row["payload_bytes"], row["size_bytes"]) == (None, "[redacted]", len(body))
    text = shown("review", "show", str(message))
    assert body[:4].hex(" ") not in text
    assert "[redacted]" in text


def test_what_people_and_brokers_say_is_masked_and_who_says_it_is_not(workshop: Workshop) -> None:
    workshop.die("x", error="KeyError: sku")
    workshop.cycle()
    ((message,),) = workshop.query("select message_id from messages")
    workshop.change("update escalated_messages set reason = 'refused: no such user, ana@example.org'")
    (group,) = json.loads(shown("review", "list", "--json"))
    assert {group["why"], group["suggested_because"]} == {"refused: no such user, [redacted email]"}
    shown("review", "discard", "--message", str(message), "--by", "ben@example.org", "--note", "told ana@example.org")
    shown("pause", "orders", "--reason", "ana@example.org called")
    for words in (
        ("status",),
        ("status", "--json"),
        ("run", "orders", "--dry-run"),
        ("review", "show", str(message)),
        ("review", "show", str(message), "--json"),
        ("trace", str(message)),
        ("trace", str(message), "--json"),
    ):
        text = " ".join(shown(*words).split())
        assert "ana@example.org" not in text, words
        assert "[redacted email]" in text, words
    assert "decided by ben@example.org: discard: told [redacted email]" in shown("trace", str(message), "--json")
    shown("resume", "orders")
    workshop.review()
    leases.pause(workshop.ledger, "orders", by="ben@example.org", reason="ana@example.org", now=workshop.now())
    run = workshop.begin(even_if_paused=True)
    report = pipeline.report(workshop.settings, run, **workshop.options())
    assert report["paused"] == "paused by ben@example.org: [redacted email]"


def test_a_report_masks_reasons_before_it_cuts_them(workshop: Workshop) -> None:
    workshop.die("x", "y", error="KeyError: sku")
    workshop.cycle()
    said = f"{'no ' * 63}kim@example.org"
    workshop.change(f"update escalated_messages set escalated_at = '2099-01-01', reason = '{said}' || message_id")
    report = pipeline.report(workshop.settings, workshop.begin(), **workshop.options())
    assert report["reasons"] == {f"{'no ' * 63}[redacted email]": 2}


def test_a_trace_finds_messages_by_a_whole_field_but_not_by_one_that_is_masked_by_now(workshop: Workshop) -> None:
    for number in range(3):
        workshop.die(f'{{"n": {number}}}', error=ERROR)
    workshop.cycle()
    ids = [one for (one,) in workshop.query("select message_id from messages order by message_id")]
    for one, field, value in (
        (ids[0], "attribute:order", "inv-7/berlin"),
        (ids[1], "attribute:order", "inv-7/berlin"),
        (ids[1], "attribute:parent", "inv-7/berlin"),
        (ids[2], "attribute:order", "inv-77"),
        (ids[2], "attribute:mail", "ana@example.org"),
    ):
        workshop.change(f"insert into message_fields (message_id, field, value) values ({one}, '{field}', '{value}')")
    found = json.loads(shown("trace", "INV-7/Berlin", "--json"))
    assert [life["message"]["message_id"] for life in found] == ids[:2]
    for word in ("inv-7/ber", "ana@example.org"):
        result = CliRunner().invoke(app.app, ["trace", word])
        assert "nothing is known of" in str(result.exception), result.output
    workshop.change("update messages set message_key = 'inv-77' where message_id = " + str(ids[0]))
    (life,) = json.loads(shown("trace", "inv-77", "--json"))
    assert life["message"]["message_id"] == ids[0], "a key comes before a field"


def test_what_is_left_of_a_renamed_route_is_masked_by_the_rules_of_all(workshop: Workshop, tmp_path: Path) -> None:
    workshop.die(BODY, error=ERROR)
    workshop.cycle()
    leases.pause(workshop.ledger, "orders", by="ben", reason=f"{PERSONAL[0]}, {PERSONAL[1]}", now=workshop.now())
    ((message,),) = workshop.query("select message_id from messages")
    file = tmp_path / "redrive.yaml"
    file.write_text(file.read_text().replace("  orders:", "  shop:"))
    for words in (
        ("status",),
        ("status", "orders", "--json"),
        ("review", "list", "--json"),
        ("review", "show", str(message), "--json"),
        ("trace", str(message), "--json"),
    ):
        text = " ".join(shown(*words).split())
        assert not [one for one in PERSONAL[:2] if one in text], words
    (row,) = json.loads(shown("review", "show", str(message), "--json"))
    assert json.loads(row["payload"])["customer"] == {"name": "[redacted]"}


def test_status_shows_no_text_of_a_route_whose_section_is_wrong(workshop: Workshop, tmp_path: Path) -> None:
    workshop.die(BODY, error=ERROR)
    workshop.cycle()
    leases.pause(workshop.ledger, "orders", by="ben", reason="Ana Smith called", now=workshop.now())
    broken(tmp_path / "redrive.yaml")
    for words in (("status",), ("status", "--json")):
        text = shown(*words)
        assert "[redacted]" in text
        assert "Ana Smith" not in text


def test_a_route_whose_section_is_wrong_keeps_the_review_from_no_other(workshop: Workshop, tmp_path: Path) -> None:
    workshop.die(BODY, error="KeyError: sku")
    workshop.cycle()
    workshop.change("update escalated_messages set route = 'shop'")
    workshop.die(BODY, error="KeyError: sku")
    workshop.cycle()
    assert {one["route"] for one in json.loads(shown("review", "list", "--json"))} == {"orders", "shop"}
    broken(tmp_path / "redrive.yaml")
    result = CliRunner().invoke(app.app, ["review", "list", "--json"])
    assert result.exit_code == 0
    assert [one["route"] for one in json.loads(result.stdout)] == ["shop"]
    assert "redrive: 1 groups of route orders are not shown until that is mended" in result.stderr
    refused = CliRunner().invoke(app.app, ["review", "list", "--route", "orders"])
    assert isinstance(refused.exception, SettingsError)


def test_a_simulation_is_masked(workshop: Workshop, tmp_path: Path) -> None:
    workshop.die("x", error="KeyError: customer name=Smith")
    workshop.cycle()
    ((template,),) = workshop.query("select template from failure_groups")
    assert "Smith" in template, "it is what the group is known by"
    (tmp_path / "policy.yaml").write_text("requeue_attempts: 1")
    words = ("simulate", "orders", "--policy", str(tmp_path / "policy.yaml"))
    (row,) = json.loads(shown(*words, "--json"))["rows"]
    assert row["template"] == template.replace("Smith", "[redacted]")
    assert "Smith" not in shown(*words)


def test_a_preview_and_progress_are_masked(workshop: Workshop) -> None:
    said: list[str] = []
    run = workshop.begin()
    with Context(workshop.settings, run, progress=lambda text, done, total: said.append(text)) as context:
        context.progress("held: no answer about ana@example.org", 0, None)
    assert said == ["held: no answer about [redacted email]"]
    workshop.die("x", error="KeyError: customer name=Smith")
    for stage, _ in workshop.stages(run):
        if stage == "load":
            break
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    ((redrive_id,),) = workshop.query("select redrive_id from messages")
    assert "Smith" not in shown("trace", redrive_id)
    (row,) = preview.preview(workshop.settings, "orders", Selection(), now=workshop.now())["plan"]
    assert "Smith" not in row["template"]


@pytest.mark.parametrize(
    ("letter", "shown"),
    [
        (DeadLetter("", b"x", (Header("type", "String", "for u-77"),)), ("[redacted]", None)),
        (DeadLetter("", b"x", properties=(("Subject", "for ana@example.org"),)), ("for [redacted email]", None)),
        (DeadLetter("", b"x", reason="no ana@example.org"), (None, "no [redacted email]")),
        (DeadLetter("", b"x", (Header("MessageType", "String", "Order"),)), ("Order", None)),
    ],
)
def test_a_look_into_the_queues_is_masked(
    tmp_path: Path, letter: DeadLetter, shown: tuple[str | None, str | None]
) -> None:
    class Looked:
        def peek(self, queue: str, limit: int) -> list[DeadLetter]:
            return [letter]

    workshop = Workshop(tmp_path, redact=["email", "attribute:Type"])
    (row,) = peek.peek(workshop.settings, "orders", broker=cast("Broker", Looked()))
    assert (row["type"], row["reason"]) == shown
