"""The command line: exit codes, wrong use, help that teaches. What runs do is tested with the stages."""

import json
import os
import re
import resource
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests import blank, command
from tests.servers import free_port
from tests.workshop import KEY_ERROR, THROTTLED, Workshop, micros

from redrive import __version__
from redrive.cli import held_run, output, runs
from redrive.cli.context import json_line
from redrive.errors import QueuesFailed, RoutePaused
from redrive.ledger import leases
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.selecting import Selection
from redrive.lifecycle import State
from redrive.settings import load

CONFIG = """
database: sqlite:///{folder}/redrive.db
staging: {folder}/staging
routes:
  orders:
    broker: memory
    connection: nowhere
    sources: [{{queue: orders-dlq, kind: dead_letter}}]
    destination: {{queue: orders}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "redrive.yaml").write_text(CONFIG.format(folder=tmp_path))
    return tmp_path


@pytest.fixture
def ledger(folder: Path) -> Ledger:
    made = Ledger(f"sqlite:///{folder}/redrive.db")
    blank.upgrade(made, datetime.now(UTC))
    return made


def redrive(folder: Path, *words: str, given: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    env = {"REDRIVE_CONFIG": str(folder / "redrive.yaml"), "COLUMNS": "120"} | env
    return command.run(*words, env=env, given=given.encode())


def test_an_unknown_route_is_wrong_use_and_says_which_there_are(folder: Path) -> None:
    done = redrive(folder, "run", "order")
    assert done.returncode == 2
    assert "routes.order" in done.stderr
    assert "orders" in done.stderr


def test_an_unknown_key_is_refused_with_its_path(folder: Path) -> None:
    path = folder / "redrive.yaml"
    path.write_text(path.read_text().replace("connection:", "conection:"))
    done = redrive(folder, "status")
    assert done.returncode == 2
    assert "routes.orders.conection" in done.stderr


def test_a_ledger_without_schema_says_what_to_run(folder: Path) -> None:
    done = redrive(folder, "status")
    assert done.returncode == 2
    assert "redrive db upgrade" in done.stderr
    assert redrive(folder, "db", "upgrade").returncode == 0
    assert redrive(folder, "status").returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["doctor", "--json"],
        ["audit"],
        ["trace", "1"],
        ["review", "list"],
        ["run", "orders", "--dry-run"],
        ["run", "orders"],
        ["pause", "orders", "--reason", "a typing error"],
        ["release", "orders", "1"],
        ["restore", "orders"],
        ["learn"],
    ],
)
def test_nothing_but_an_upgrade_makes_the_ledgers_file(folder: Path, words: list[str]) -> None:
    """A file that a look left behind would be taken for somebody's ledger, and a mistyped path for an empty one."""
    path = folder / "redrive.yaml"
    path.write_text(path.read_text().replace("redrive.db", "mistyped/redrive.db"))
    done = redrive(folder, *words)
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    assert "mistyped/redrive.db" in said
    assert "run `redrive db upgrade`" in " ".join(said.split()).replace("Run", "run")
    assert not (folder / "mistyped").exists()


def test_a_held_route_is_refused_with_its_holder_and_until_when(folder: Path, ledger: Ledger) -> None:
    now = datetime.now(UTC)
    leases.acquire(ledger, "orders", "r-1", holder="somebody", trigger="test", ttl=timedelta(minutes=5), now=now)
    done = redrive(folder, "run", "orders")
    assert done.returncode == 3
    assert "r-1" in done.stderr
    assert "somebody" in done.stderr
    assert f"{now + timedelta(minutes=5):%Y-%m-%d %H:%M}" in done.stderr


def test_a_paused_route_runs_again_after_resume(folder: Path, ledger: Ledger) -> None:
    assert redrive(folder, "pause", "orders", "--reason", "the shop moves").returncode == 0
    done = redrive(folder, "run", "orders")
    assert done.returncode == 3
    assert "the shop moves" in done.stderr
    assert redrive(folder, "resume", "orders").returncode == 0
    assert "was not paused" in redrive(folder, "resume", "orders").stdout


def test_a_second_pause_says_whose_the_first_is_and_nobody_drives_a_terminal(folder: Path, ledger: Ledger) -> None:
    leases.pause(ledger, "orders", by="redrive", reason="the destination \x1b[2Jis sick", now=datetime.now(UTC))
    done = redrive(folder, "pause", "orders", "--reason", "incident 7")
    assert "orders was paused by redrive: the destination \ufffd[2Jis sick. That stays" in done.stdout
    with ledger.read() as connection:
        reasons = connection.execute(sql("select reason from audit_events where action = 'pause' order by event_id"))
        assert [row.reason for row in reasons][1:] == ["incident 7"]
    status = redrive(folder, "status").stdout
    assert "UTC, by redrive: the destination \ufffd[2Jis sick" in status
    assert "\x1b" not in status + redrive(folder, "run", "orders").stderr


def test_a_broken_balance_ends_with_1(folder: Path, ledger: Ledger) -> None:
    assert redrive(folder, "audit").returncode == 0
    with ledger.write() as connection:
        connection.exec_driver_sql(
            "insert into staging_batches (route, source, kind, shard, run_id, fence, state, uri, copies, opened_at)"
            " values ('orders', 'orders-dlq', 'dead_letter', 0, 'r', 1, 'settled', 'gone.parquet', 3, '2026-01-01')"
        )
    done = redrive(folder, "audit", "--json")
    assert done.returncode == 1
    assert "gone.parquet" in json.loads(done.stdout)["problems"][0]


@pytest.mark.parametrize(
    ("words", "who_can"),
    [
        ("drain --since 6h", "`redrive plan`, `redrive deliver` and `redrive run` can"),
        ("drain --until 6h", "`redrive plan`, `redrive deliver` and `redrive run` can"),
        ("drain --cause throttled", "`redrive plan`, `redrive deliver` and `redrive run` can"),
        ("drain --group 1", "`redrive plan`, `redrive deliver` and `redrive run` can"),
        ("drain --attribute a=b", "`redrive plan`, `redrive deliver` and `redrive run` can"),
        ("drain --type Shop.OrderPlaced", "`redrive plan`, `redrive deliver` and `redrive run` can"),
        ("observe --cause throttled", "`redrive plan`, `redrive deliver` and `redrive run` can"),
        ("classify --limit 5", "`redrive drain`, `redrive deliver` and `redrive run` can"),
        ("classify --source orders-dlq", "`redrive drain`, `redrive plan`, `redrive deliver` and `redrive run` can"),
        ("resolve --group 1", "`redrive plan`, `redrive deliver` and `redrive run` can"),
        ("plan --limit 5", "`redrive drain`, `redrive deliver` and `redrive run` can"),
        ("escalate --cause throttled", "`redrive plan`, `redrive deliver` and `redrive run` can"),
        ("drain --dry-run --cause throttled", "`redrive plan`, `redrive deliver` and `redrive run` can"),
    ],
)
def test_a_stage_refuses_to_choose_by_what_it_cannot(folder: Path, ledger: Ledger, words: str, who_can: str) -> None:
    """Who asks for a part of a queue must not get all of it."""
    stage, *options = words.split()
    done = redrive(folder, stage, "orders", *options)
    assert done.returncode == 2, done.stdout
    option = next(word for word in options if word.startswith("--") and word != "--dry-run")
    assert f"{option}: `redrive {stage}` can't choose by it" in done.stderr
    assert who_can in done.stderr
    assert option not in redrive(folder, stage, "--help").stdout


def test_nonsense_options_are_wrong_use(folder: Path, ledger: Ledger) -> None:
    for words in (
        ["run", "orders", "--cause", "bad_luck"],
        ["run", "orders", "--since", "yesterday-ish"],
        ["run", "orders", "--limit", "0"],
        ["run", "orders", "--source", "orders-dql"],
        ["run", "orders", "--source", "orders-dql", "--dry-run"],
        ["run", "orders", "--attribute", "tenant"],
        ["run", "orders", "--since", "2026-11-21", "--until", "2026-11-20", "--dry-run"],
        ["run", "orders", "--since", "0001-01-01T00:00+14:00", "--dry-run"],
        ["run", "orders", "--until", "9999-12-31T23:59-12:00", "--dry-run"],
        ["plan", "orders", "--since", "1h", "--until", "2h"],
        ["run", "orders", "--since", "2026-11-20", "--until", "2026-11-20"],
        ["review", "redeliver"],
        ["review", "redeliver", "--group", "1", "--route", "nope"],
        ["review", "list", "--route", "nope"],
        ["review", "apply", "--route", "nope"],
        ["review", "edit", "1", "--body", str(folder / "nowhere.json")],
        ["review", "edit", "1", "--body", str(folder)],
        ["trace", "nobody-knows-this"],
        ["trace", "\udcff"],  # a byte that is no UTF-8
        ["pause", "orders", "--reason", "\udcff"],
        ["review", "show", "9" * 30],
        ["release", "orders", "77"],
        ["run", "orders", "--group", "77", "--dry-run"],
        ["run", "orders", "--group", "77"],
        ["restore", "orders", "--group", "77", "--dry-run"],
        ["no-such-command"],
    ):
        done = redrive(folder, *words)
        assert done.returncode == 2, (words, done.stderr)
        assert done.stderr.strip(), words


def test_a_correction_that_is_no_text_is_wrong_use(folder: Path, ledger: Ledger) -> None:
    (folder / "body").write_bytes(b'{"name": "Kov\xe1\xe8"}')
    done = redrive(folder, "review", "edit", "1", "--body", str(folder / "body"))
    assert done.returncode == 2
    assert "UTF-8" in done.stderr
    piped = subprocess.run(
        [sys.executable, "-m", "redrive", "review", "edit", "1", "--body", "-"],
        check=False,
        input=b"\xff",
        capture_output=True,
        timeout=60,
        env=os.environ | {"REDRIVE_CONFIG": str(folder / "redrive.yaml")},
    )
    assert piped.returncode == 2
    assert b"standard input" in piped.stderr


def test_a_correction_is_taken_byte_for_byte(folder: Path, ledger: Ledger) -> None:
    with ledger.write() as connection:
        connection.exec_driver_sql(
            "insert into escalated_messages (message_id, route, reason, size_bytes, source, attempts, escalated_at)"
            " values (1, 'orders', 'x', 1, 'orders-dlq', 0, '2026-01-01')"
        )
    (folder / "body").write_bytes(b"MSH|^~\r\nPID|1\rOBX\n")
    assert redrive(folder, "review", "edit", "1", "--body", str(folder / "body"), "--by", "ana").returncode == 0
    with ledger.read() as connection:
        found = connection.exec_driver_sql("select corrected_body from escalated_messages").scalar()
    assert found == "MSH|^~\r\nPID|1\rOBX\n"


def put_before_people(
    ledger: Ledger, *messages: int, group: int | None = None, content_type: str | None = None
) -> None:
    with ledger.write() as connection:
        if group is not None:
            connection.exec_driver_sql(
                "insert into failure_groups (group_id, fingerprint, cause, template, first_route, first_seen_at,"
                f" last_seen_at) values ({group}, 'f{group}', 'unclassified', 'x', 'orders', '2026', '2026')"
            )
        for message in messages:
            connection.execute(
                sql(
                    "insert into escalated_messages (message_id, route, reason, size_bytes, source, attempts,"
                    " escalated_at, group_id, content_type, payload) values (:message, 'orders', 'x', 1, 'orders-dlq',"
                    " 0, '2026-01-01', :group, :kind, '{}')"
                ),
                {"message": message, "group": group, "kind": content_type},
            )


NOTHING_WATCHED = {"not_worked_past": 0, "in_window": 0, "untold": [], "keeps_order": False}


def test_status_shows_every_place_where_a_message_can_be() -> None:
    places = ["staged", *(state.value for state in State)]
    status = {
        "route": "orders", "paused": False, "held_by": None, "configuration": {"last_run": None, "next_run": None},
        "balance": {place: 300 + number for number, place in enumerate(places)}, "next_due_at": None, "queues": [],
        "stuck_consumers": [], "destinations": [], "gates": [], "watching": NOTHING_WATCHED,
    }  # fmt: skip
    screen = Console(record=True, width=400)
    now = datetime(2026, 11, 20, 12, tzinfo=UTC)
    output.print_status(screen, status, now)
    shown = screen.export_text()
    assert "staged, not yet classified 300" in shown
    assert [place for number, place in enumerate(places) if str(300 + number) not in shown] == []


def test_a_route_that_was_renamed_is_told_as_long_as_something_of_it_is_unfinished(
    folder: Path, ledger: Ledger
) -> None:
    """No run does anything for it, so what is decided about it is not carried out."""
    workshop = Workshop(folder)
    workshop.die("a", error=KEY_ERROR)
    workshop.die("b", error=THROTTLED)
    workshop.cycle()
    ((message,),) = workshop.query("select message_id from escalated_messages")
    file = folder / "redrive.yaml"
    file.write_text(file.read_text().replace("  orders:", "  shop:"))
    for words in (["status"], ["status", "orders"]):
        told = redrive(folder, *words)
        assert "not in the configuration, or wrong there: no run does anything" in told.stdout
        assert "waiting 1   escalated 1" in told.stdout
        assert "next redelivery due" in told.stdout
        assert "sends it" not in told.stdout
        assert "None" not in told.stdout
    assert [(one["route"], one["configured"]) for one in json.loads(redrive(folder, "status", "--json").stdout)] == [
        ("shop", True),
        ("orders", False),
    ]
    assert "2 of its messages are unfinished: no run sends them" in " ".join(redrive(folder, "doctor").stdout.split())
    audited = redrive(folder, "audit")
    assert (audited.returncode, "Write it into the file again under the name orders" in audited.stderr) == (1, True)
    decided = redrive(folder, "review", "discard", "--message", str(message), "--by", "ana", "--note", "gone")
    assert "route orders is not in the configuration" in decided.stderr

    file.write_text(file.read_text().replace("  shop:", "  orders:"))
    assert "not in the configuration" not in redrive(folder, "status").stdout
    redrive(folder, "review", "apply")
    with ledger.write() as connection:
        connection.execute(
            sql("update messages set next_attempt_at = null, plan = null, state = 'discarded' where state = 'waiting'")
        )
    file.write_text(file.read_text().replace("  orders:", "  shop:"))
    assert [one["route"] for one in json.loads(redrive(folder, "status", "--json").stdout)] == ["shop"]


def test_status_tells_nothing_as_due_in_the_past() -> None:
    now = datetime(2026, 11, 20, 12, tzinfo=UTC)
    before = now - timedelta(minutes=1)
    stopped = {"destination": "orders", "stage": "tripped", "cool_down_until": before, "allowed": 0, "sent": 0,
               "waiting": 7, "reason": "9 of 9 came back."}  # fmt: skip
    status = {
        "route": "orders", "paused": False, "held_by": {"run_id": "r", "holder": "h", "until": before},
        "configuration": {"last_run": None, "next_run": None}, "balance": {"waiting": 7}, "next_due_at": before,
        "queues": [], "stuck_consumers": [], "destinations": [stopped], "gates": [],
        "watching": NOTHING_WATCHED,
    }  # fmt: skip
    screen = Console(record=True, width=80)
    output.print_status(screen, status, now)
    shown = " ".join(screen.export_text().split())
    assert "11:59" not in shown
    assert "next redelivery due now: the next run sends it" in shown
    assert "run r (h) held it and is gone: the next run takes over" in shown
    assert "nothing went to orders for a while; the next run tries it with a few; 7 wait. 9 of 9 came back." in shown


@pytest.mark.parametrize("wide", [False, True])
def test_status_fits_eighty_columns_and_cuts_no_cause(wide: bool) -> None:
    now = datetime(2026, 11, 20, 12, tzinfo=UTC)
    gate = {
        "group_id": 12345, "cause": "dependency_unavailable", "stage": "canary", "allowed": 20, "sent": 20,
        "returned": 3, "waiting": 1_000, "held": 99_000,
        "waits_for": "the observation window of 20 sends to end at 2026-11-20 14:32 UTC and a run after it",
    }  # fmt: skip
    queue = {
        "queue": "orders-dlq", "visible": 412, "in_flight": None, "delayed": 0, "oldest_age_seconds": 93_000,
        "observed_at": now - timedelta(minutes=7),
    }  # fmt: skip
    status = {
        "route": "orders", "paused": False, "held_by": None, "configuration": {"last_run": None, "next_run": None},
        "balance": {"waiting": 1}, "next_due_at": now - timedelta(hours=1), "queues": [queue], "stuck_consumers": [],
        "destinations": [], "gates": [gate], "watching": NOTHING_WATCHED,
    }  # fmt: skip
    screen = Console(record=True, width=160 if wide else 80)
    output.print_status(screen, status, now, wide=wide)
    shown = " ".join(screen.export_text().split())
    assert "12345" in shown
    assert "dependency_unavailable" in shown
    assert "canary of 20" in shown
    assert "99,000" in shown
    assert "2026-11-20 14:32 UTC" in shown
    assert "next redelivery due now" in shown, "nothing is due in the past"
    assert "7 min ago" in shown


def test_what_is_not_decided_is_named(folder: Path, ledger: Ledger) -> None:
    put_before_people(ledger, 1, 2, group=7)
    first = redrive(folder, "review", "discard", "--message", "1", "--message", "9", "--by", "ana", "--note", "no")
    assert first.returncode == 1
    assert "1 messages: discard" in first.stdout
    assert first.stderr.splitlines() == ["redrive: there is no message 9"]

    again = redrive(folder, "review", "redeliver", "--message", "1", "--by", "ben")
    assert (again.returncode, again.stdout) == (1, "")
    assert "message 1 is decided already: discard, by ana (decided)" in again.stderr

    assert "there is no group 8" in redrive(folder, "review", "discard", "--group", "8").stderr
    assert redrive(folder, "review", "discard", "--group", "7").returncode == 0
    told = redrive(folder, "review", "discard", "--message", "1", "--group", "5")
    assert (told.returncode, told.stderr) == (1, "redrive: message 1 is of group 7\nredrive: there is no group 5\n")
    told = redrive(folder, "review", "discard", "--group", "7")
    assert told.returncode == 1
    assert "nothing of group 7 waits for a decision: 2 decided" in told.stderr


def test_a_decision_about_many_is_asked_for_once_more_or_only_tried(folder: Path, ledger: Ledger) -> None:
    put_before_people(ledger, *range(1, 102), group=7)
    tried = redrive(folder, "review", "discard", "--group", "7", "--dry-run")
    assert (tried.returncode, tried.stdout) == (0, "101 messages would be decided: discard\n")
    for given in ("", "n\n"):  # nobody answers, or says no
        told = redrive(folder, "review", "discard", "--group", "7", given=given)
        assert told.returncode == 1
        assert told.stderr.splitlines()[-1] == "redrive: not confirmed, nothing was changed; --yes goes ahead"
    with ledger.read() as connection:
        assert (
            connection.exec_driver_sql("select count(*) from escalated_messages where decision is null").scalar() == 101
        )
    done = redrive(folder, "review", "discard", "--group", "7", "--yes")
    assert (done.returncode, done.stdout.split(";")[0]) == (0, "101 messages: discard")


def test_a_decision_is_limited_to_the_oldest(folder: Path, ledger: Ledger) -> None:
    put_before_people(ledger, 1, 2, 3, group=7)
    tried = redrive(folder, "review", "redeliver", "--group", "7", "--limit", "2", "--dry-run")
    assert tried.stdout == "2 messages would be decided: redeliver\n"
    done = redrive(folder, "review", "redeliver", "--group", "7", "--limit", "2", "--by", "ana")
    assert (done.returncode, done.stdout.split(";")[0]) == (0, "2 messages: redeliver")
    with ledger.read() as connection:
        rows = connection.exec_driver_sql("select message_id, decision from escalated_messages order by 1").all()
    assert [tuple(row) for row in rows] == [(1, "redeliver"), (2, "redeliver"), (3, None)]


def test_headers_are_corrected_and_checked_at_once(folder: Path, ledger: Ledger) -> None:
    put_before_people(ledger, 1)
    for given, said in (("tenant", "is not JSON"), ('{"x-redrive-id": "2"}', "is written by Redrive alone")):
        done = redrive(folder, "review", "edit", "1", "--headers", given)
        assert done.returncode == 2
        assert said in done.stderr
    assert "--body FILE, --headers JSON" in redrive(folder, "review", "edit", "1").stderr
    assert redrive(folder, "review", "edit", "1", "--headers", '{"tenant": "blue"}', "--by", "ana").returncode == 0
    with ledger.read() as connection:
        found = connection.exec_driver_sql(
            "select decision, corrected_body, corrected_headers from escalated_messages"
        ).one()
    assert tuple(found) == ("edit", None, '{"tenant": "blue"}')


def test_a_correction_is_checked_at_once(folder: Path, ledger: Ledger) -> None:
    put_before_people(ledger, 1, content_type="application/json")
    (folder / "body").write_text("{")
    done = redrive(folder, "review", "edit", "1", "--body", str(folder / "body"))
    assert done.returncode == 2
    assert "message 1: corrected_body is not JSON" in done.stderr


def test_a_line_that_is_none_costs_one_line(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "redrive", "explain"],
        check=False,
        input='{"text": "KeyError: 1"}\n{broken\n["no object"]\n{"text": "deadlock detected"}\n',
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"REDRIVE_CONFIG": str(folder / "redrive.yaml")},
    )
    assert done.returncode == 2
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == ["KeyError: 1", "deadlock detected"]
    assert "line 2 is not JSON" in done.stderr
    assert "line 3 is not an object with a text" in done.stderr


def test_a_line_that_is_no_text_or_nested_too_deeply_costs_one_line(folder: Path) -> None:
    given = b'{"text": "KeyError: 1"}\n{"text": "\xff"}\n' + b"[" * 100_000 + b'\n{"text": "deadlock detected"}\n'
    done = subprocess.run(
        [sys.executable, "-m", "redrive", "explain"],
        check=False,
        input=given,
        capture_output=True,
        timeout=60,
        env=os.environ | {"REDRIVE_CONFIG": str(folder / "redrive.yaml"), "PYTHONIOENCODING": "utf-8:strict"},
    )
    assert done.returncode == 2, done.stderr
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == ["KeyError: 1", "deadlock detected"]
    assert b"line 2 is not JSON" in done.stderr
    assert b"line 3 is not JSON" in done.stderr


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_odd_characters_cost_no_line(folder: Path, encoding: str) -> None:
    """Half of a character, which no text can hold, and letters that the other end does not know."""
    given = '{"text": "KeyError: \\ud800"}\n{"text": "KeyError: 日本"}\n'
    done = redrive(folder, "explain", given=given, PYTHONIOENCODING=encoding)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    told = [json.loads(line)["text"] for line in done.stdout.splitlines()]
    assert told == ["KeyError: \ud800", "KeyError: 日本"]
    assert ("日本" in done.stdout) is (encoding == "utf-8")


def test_a_terminal_without_the_letters_shows_their_numbers(folder: Path, ledger: Ledger) -> None:
    workshop = Workshop(folder)
    workshop.die("日本", error="KeyError: 日本")
    workshop.cycle()
    message = str(workshop.value("select message_id from messages"))
    redrive(folder, "review", "discard", "--message", message, "--by", "ana", "--note", "日本")
    redrive(folder, "pause", "orders", "--reason", "日本")
    for words in (["review", "show", message], ["trace", message], ["status"]):
        done = redrive(folder, *words, PYTHONIOENCODING="latin-1")
        assert (done.returncode, done.stderr) == (0, ""), words
        assert r"\u65e5\u672c" in done.stdout, words
        assert "日本" in redrive(folder, *words).stdout


def test_json_has_numbers_as_numbers_and_bytes_as_base64() -> None:
    told = json_line(
        {"n": Decimal("3"), "share": Decimal("0.5"), "body": b"\xff\x00", "at": datetime(2026, 1, 1, tzinfo=UTC)}
    )
    assert json.loads(told) == {"n": 3, "share": 0.5, "body": "/wA=", "at": "2026-01-01 00:00:00+00:00"}


def test_json_has_no_time_without_its_zone(folder: Path, ledger: Ledger) -> None:
    """SQLite keeps times as text, and whoever reads them without their zone takes them for local ones."""
    workshop = Workshop(folder)
    workshop.time.now = micros(datetime.now(UTC).replace(microsecond=0))
    workshop.die(*(f"m{number}" for number in range(5)))
    workshop.die("bug", "2026-01-01 00:00:00", error=KEY_ERROR)
    workshop.die("again", error=THROTTLED)
    workshop.cycle()
    workshop.begin()  # which holds the route
    leases.pause(ledger, "orders", by="ana", reason="2026-01-01 00:00:00", now=workshop.now())
    redrive(folder, "groups", "merge", "1", "2", "--note", "one")
    asked = [row[0] for row in workshop.rows("select message_id from escalated_messages order by message_id")]
    for words, some in (
        (["status"], ["paused_at", "until", "observed_at", "drained_to", "oldest_send", "started_at"]),
        (["review", "list"], ["oldest", "last_seen_at"]),
        (["review", "show", str(asked[1])], ["escalated_at"]),
        (["trace", str(asked[1])], ["at", "received_at"]),
        (["groups", "list"], ["created_at"]),
        (["run", "orders", "--dry-run"], ["when", "until"]),
    ):
        told = redrive(folder, *words, "--json")
        assert told.returncode == 0, told.stderr
        for name in some:
            assert re.search(rf'"{name}": "\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\+00:00"', told.stdout), name
        without = re.findall(r'"(\w+)": "\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?"', told.stdout)
        assert set(without) <= {"payload", "pause_reason"}, "what people and messages say is no time of ours"


def test_a_key_of_many_messages_says_that_there_are_more(folder: Path, ledger: Ledger) -> None:
    workshop = Workshop(folder)
    workshop.die(*(f"m{number}" for number in range(25)))
    workshop.cycle()
    with ledger.write() as connection:
        connection.execute(sql("update messages set message_key = 'customer-7'"))
    done = redrive(folder, "trace", "customer-7", "--json")
    assert len(json.loads(done.stdout)) == 20
    assert "more messages have 'customer-7'; these are the 20 oldest" in done.stderr


def test_it_says_its_version(folder: Path) -> None:
    assert redrive(folder, "--version").stdout == f"redrive {__version__}\n"


def test_a_busy_route_does_not_keep_the_review_from_the_others(folder: Path, ledger: Ledger) -> None:
    path = folder / "redrive.yaml"
    first, _, orders = path.read_text().partition("  orders:\n")
    path.write_text(f"{first}  orders:\n{orders}  payments:\n{orders.replace('orders', 'payments')}")
    now = datetime.now(UTC)
    leases.acquire(ledger, "orders", "r-1", holder="somebody", trigger="test", ttl=timedelta(minutes=5), now=now)
    done = redrive(folder, "review", "apply")
    assert done.returncode == 3
    assert "review payments: " in done.stdout
    assert "somebody" in done.stderr
    done = redrive(folder, "review", "apply", "--json")
    assert done.returncode == 3
    told = json.loads(done.stdout)
    assert "somebody" in told["orders"]["busy"]
    assert told["payments"]["released"] == 0
    assert redrive(folder, "review", "apply", "--route", "orders").returncode == 3


def test_the_review_says_which_decisions_wait_for_something_else(folder: Path, ledger: Ledger) -> None:
    workshop = Workshop(folder)
    workshop.die("a", "b", "c", error=KEY_ERROR)
    workshop.cycle()
    path = folder / "redrive.yaml"
    text = path.read_text()
    path.write_text(f"{text}    approvals: 2\n")
    done = redrive(folder, "review", "redeliver", "--group", "1", "--by", "ana")
    assert "3 messages: redeliver; once a second person has approved it (approved_by), `redrive review" in done.stdout
    done = redrive(folder, "review", "apply")
    assert (done.returncode, "3 decisions on route orders wait for a second person" in done.stderr) == (0, True)
    assert json.loads(redrive(folder, "review", "apply", "--json").stdout)["orders"]["not_approved"] == 3
    workshop.change("update escalated_messages set approved_by = 'ben' where message_id & 1 = 1")
    path.write_text(text.replace("  orders:", "  payments:"))
    done = redrive(folder, "review", "apply")
    assert (done.returncode, "3 decisions wait: route orders is not in the configuration" in done.stderr) == (0, True)
    told = json.loads(redrive(folder, "review", "apply", "--json").stdout)
    assert (told["orders"], "not_configured" in told["payments"]) == ({"not_configured": 3}, False)
    path.write_text(f"{text}    approvals: 2\n")
    done = redrive(folder, "review", "apply")
    assert "released 1" in done.stdout
    assert "2 decisions on route orders wait for a second person" in done.stderr
    workshop.change("update escalated_messages set approved_by = 'ben' where approved_by is null")
    done = redrive(folder, "review", "apply")
    assert ("released 2" in done.stdout, done.stderr) == (True, "")


def test_a_route_that_a_dead_process_holds_is_told_so_and_waited_for(
    folder: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_run, "LOOK_AGAIN", 0.2)
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    holder = f"ana@{socket.gethostname()} process {child.pid}"
    held = {"holder": holder, "trigger": "cli", "now": datetime.now(UTC)}
    leases.acquire(ledger, "orders", "r-1", ttl=timedelta(minutes=5), **held)
    done = redrive(folder, "restore", "orders")
    assert done.returncode == 3
    assert f"process {child.pid} is not running any more" in done.stderr
    assert "--wait waits" in done.stderr
    leases.acquire(ledger, "orders", "r-1", ttl=timedelta(seconds=1), **held)
    done = redrive(folder, "restore", "orders", "--wait")
    assert done.returncode == 0, done.stderr
    assert "restored 0" in done.stdout


def test_an_interruption_says_what_is_half_done_and_that_it_goes_on(folder: Path, ledger: Ledger) -> None:
    with ledger.write() as connection:
        connection.exec_driver_sql(
            "insert into staging_batches (route, source, kind, shard, run_id, fence, state, uri, copies, opened_at)"
            " values ('orders', 'orders-dlq', 'dead_letter', 0, 'r', 1, 'settled', 'one.parquet', 300, '2026-01-01')"
        )
    said = held_run._interrupted(load(folder / "redrive.yaml"), "orders")
    assert said == (
        "interrupted: 300 staged and not yet classified; nothing is lost, and the next `redrive run orders` goes on"
    )


def test_a_restore_is_looked_at_first(folder: Path, ledger: Ledger) -> None:
    workshop = Workshop(folder)
    workshop.die("one", "two", error=KEY_ERROR)
    workshop.die("three", error=THROTTLED)
    workshop.cycle()
    ((group,),) = workshop.query("select group_id from escalated_messages group by group_id")
    for words, count in (([], 3), (["--group", str(group)], 2), (["--limit", "1"], 1)):
        done = redrive(folder, "restore", "orders", "--dry-run", *words)
        assert done.stdout == f"{count} unfinished messages of orders would go back into their queues\n"
    run = workshop.begin()
    workshop.die("four")
    workshop.drain(run)
    for words, told in (([], ", and what is new of"), (["--limit", "1"], "; this leaves alone")):
        done = redrive(folder, "restore", "orders", "--dry-run", *words)
        assert f"{told} 1 copies that are staged and not yet classified" in done.stdout
    with workshop.ledger.write() as connection:
        connection.exec_driver_sql(
            "insert into repeat_copies (copy_id, route, source, kind, message_id, broker_message_id, seen_at)"
            " select message_id + 500, route, source, 'suspected', message_id, broker_message_id, changed_at"
            " from messages where state = 'waiting'"
        )
    assert "\nwould stay: unknown 0, suspected 1\n" in redrive(folder, "restore", "orders", "--dry-run").stdout
    told = json.loads(redrive(folder, "restore", "orders", "--dry-run", "--group", str(group), "--json").stdout)
    assert (told["would_restore"], told["unknown"], told["suspected"]) == (2, 0, 0)
    assert workshop.states() == {"escalated": 2, "waiting": 1}, "nothing was done"
    for dry in (["--dry-run"], []):  # to try a canary again would hold back what goes
        done = redrive(folder, "release", "orders", str(group), *dry)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"the gate of group {group} of orders is open: it holds nothing back" in done.stderr
    assert redrive(folder, "release", "orders", "999", "--dry-run").returncode == 2


def test_a_release_lets_as_many_go_first_as_it_is_told(folder: Path, ledger: Ledger) -> None:
    workshop = Workshop(folder, canary={"first": 3})
    workshop.die(*"abcdefgh", error="the flux capacitor said hm")
    workshop.cycle()
    assert workshop.states() == {"sent": 3, "held": 5}
    ((group,),) = workshop.query("select group_id from breakers where group_id is not null")
    done = redrive(folder, "release", "orders", str(group), "--limit", "2", "--dry-run")
    assert "5 messages are held; 2 of them would go first" in done.stdout
    done = redrive(folder, "release", "orders", str(group), "--limit", "2")
    assert "tries its canary again in the next run: up to 2 go first" in done.stdout
    workshop.advance(minutes=1)
    workshop.cycle()
    assert workshop.states() == {"sent": 5, "held": 3}
    done = redrive(folder, "release", "orders", "--destination", "orders", "--limit", "2")
    assert (done.returncode, "--limit is for a group" in done.stderr) == (2, True)


def test_a_release_of_a_failed_group_promises_nothing_that_can_not_happen(folder: Path, ledger: Ledger) -> None:
    workshop = Workshop(folder, canary={"first": 3})
    workshop.die(*"abc", error="the flux capacitor said hm")
    workshop.cycle()
    workshop.change("update breakers set stage = 'failed', reason = '3 of 3 came back.' where group_id is not null")
    ((group,),) = workshop.query("select group_id from breakers where group_id is not null")
    for words in (["--dry-run"], []):
        told = redrive(folder, "release", "orders", str(group), *words)
        assert told.returncode == 0
        assert f"nothing of group {group} of orders is held" in told.stdout
        assert f"`redrive review redeliver --group {group} --route orders` sends it" in told.stdout
        assert "in the next run" not in told.stdout


def test_a_release_says_how_many_of_its_group_wait_for_people(folder: Path, ledger: Ledger) -> None:
    workshop = Workshop(folder, canary={"first": 3})
    workshop.die(*"abcdefgh", error="the flux capacitor said hm")
    workshop.cycle()
    ((group,),) = workshop.query("select group_id from breakers where group_id is not null")
    assert "wait for people" not in redrive(folder, "release", "orders", str(group), "--dry-run").stdout
    workshop.die("later", error=KEY_ERROR)
    workshop.cycle()
    workshop.change(f"update escalated_messages set group_id = {group}")
    wanted = f"; 1 of it wait for people: `redrive review redeliver --group {group} --route orders` sends them"
    for words in (["--dry-run"], []):
        told = redrive(folder, "release", "orders", str(group), *words)
        assert "in the next run" in told.stdout
        assert wanted in told.stdout


def test_a_run_until_done_waits_for_what_is_due_and_ends_when_nothing_is_left(
    folder: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = load(folder / "redrive.yaml")

    def pause(drained: int, *, watch: bool = False) -> float | None:
        found = runs._before_next(settings, "orders", Selection(), {"drained": drained}, watch=watch)
        return None if found is None else found.total_seconds()

    assert pause(0) is None
    assert "done: nothing is left on orders that a run could do" in capsys.readouterr().err
    assert pause(3) == 2, "there may be more in the queue"
    assert pause(0, watch=True) == 60
    workshop = Workshop(folder)
    workshop.die("later", error=THROTTLED)
    workshop.cycle()
    assert pause(0) == 2
    assert "left: 1 waiting; the next run in 2 s" in capsys.readouterr().err, "it has been due for long"
    with ledger.write() as connection:
        connection.execute(
            sql("update messages set next_attempt_at = :due_at"), {"due_at": datetime.now(UTC) + timedelta(hours=1)}
        )
    assert pause(0) == 60


def test_a_run_of_a_part_until_done_ends_when_nothing_of_that_part_is_left(
    folder: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    workshop = Workshop(folder)
    workshop.die("later", error=THROTTLED)
    workshop.cycle()
    assert workshop.states() == {"waiting": 1}
    ((group, source),) = workshop.query("select group_id, source from messages")

    def ends(**chosen: Any) -> bool:
        return runs._before_next(workshop.settings, "orders", Selection(**chosen), {"drained": 0}, watch=False) is None

    now = datetime.now(UTC)
    mine = {"causes": ["throttled"], "groups": [group], "sources": [source], "attributes": [("message_id", "later")]}
    others = {"causes": ["poison"], "groups": [group + 1], "sources": ["a"], "attributes": [("message_id", "b")]}
    for key, value in mine.items():
        assert not ends(**{key: value}), key
        assert "left: 1 waiting; the next run in 2 s" in capsys.readouterr().err
    for key, value in others.items():
        assert ends(**{key: value}), key
    assert ends(since=now + timedelta(days=9000))
    assert not ends(limit=1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dry-run", "--until-done"], "--dry-run shows what the next run would do: without --until-done"),
        (["--dry-run", "--watch"], "without --watch"),
        (["--until-done", "--source", "orders-dlq"], "has an outcome once every source is drained, and late would not"),
    ],
)
def test_what_can_not_be_asked_of_one_run_is_refused(folder: Path, ledger: Ledger, words: list[str], said: str) -> None:
    path = folder / "redrive.yaml"
    path.write_text(path.read_text().replace("kind: dead_letter}]", "kind: dead_letter}, {queue: late}]"))
    done = redrive(folder, "run", "orders", *words)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_a_route_that_is_watched_is_watched_on_whatever_failed(
    folder: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trouble: list[Exception] = [
        QueuesFailed("queue orders failed: away"),
        RoutePaused("paused by ana"),
        KeyError("bug"),
    ]
    pauses: list[float] = []

    def run_once(*_: object, **__: object) -> dict[str, Any]:
        raise trouble.pop(0)

    monkeypatch.setattr(runs, "_run_once", run_once)
    monkeypatch.setattr(runs, "read_settings", lambda: load(folder / "redrive.yaml"))
    monkeypatch.setattr(runs.time, "sleep", pauses.append)
    with pytest.raises(KeyError):
        runs.run.__wrapped__("orders", selection=Selection(), watch=True)
    assert pauses == [60, 60]
    assert "queue orders failed: away; the next run in 60 s" in capsys.readouterr().err
    trouble.append(QueuesFailed("queue orders failed: away"))
    with pytest.raises(QueuesFailed):
        runs.run.__wrapped__("orders", selection=Selection())


def test_a_report_keeps_this_run_and_all_apart_and_says_why_people_are_asked() -> None:
    report = {
        "route": "orders", "run_id": "r-1", "drained": 0, "redelivered": 0, "escalated": 3, "refused": 2, "waiting": 7,
        "to_decide": 40, "reasons": {"application_bug: a KeyError": 3}, "seconds": {"classify": 12.5},
    }  # fmt: skip
    console = Console(width=80)
    with console.capture() as capture:
        output.print_report(console, report)
    said = [" ".join(line.split()) for line in capture.get().splitlines()]
    assert said.index("this run") < said.index("3 escalated") < said.index("all of the route, now")
    assert said.index("all of the route, now") < said.index("7 waiting")
    assert "to people, 3: application_bug: a KeyError" in said
    assert "2 were refused by the broker and went to people: `redrive review list`" in said
    assert "took classify 12.5 s" in said


def test_explain_keeps_the_lines_in_order_and_needs_no_ledger(folder: Path) -> None:
    lines = [{"text": "KeyError: 'sku'", "n": 1}, {"text": "HTTP 429 Too Many Requests", "n": 2}]
    done = redrive(folder, "explain", given="\n".join(json.dumps(line) for line in lines))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(a["n"], a["cause"]) for a in answers] == [(1, "application_bug"), (2, "throttled")]
    assert set(answers[0]) >= {"cause", "rule", "confidence", "verdict", "group", "template"}
    assert "throttled: Limit concurrency" in done.stderr, "what helps is told beside the lines"
    assert redrive(folder, "explain", given="[1]").returncode == 2


@pytest.mark.parametrize("command", ["status", "classify"])
def test_status_and_classify_say_what_would_help(folder: Path, command: str) -> None:
    workshop = Workshop(folder)
    workshop.die("a", "b", error="Dropping 7 items because they were leased too long.")
    workshop.die("c", error=THROTTLED)
    workshop.cycle()
    workshop.ledger.close()
    told = redrive(folder, command, "orders")
    assert "lease_expired, 2 of the newest messages" in told.stdout
    assert "Fetch fewer messages at a time" in " ".join(told.stdout.split())
    assert told.stdout.index("lease_expired, 2") < told.stdout.index("throttled, 1")


def test_a_simulation_reads_a_policy_and_the_ledger(folder: Path, ledger: Ledger) -> None:
    policy = folder / "policy.yaml"
    policy.write_text("requeue_attempts: 1")
    done = redrive(folder, "simulate", "orders", "--policy", str(policy), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["total"]["was"]["messages"] == 0
    assert "no" in redrive(folder, "simulate", "orders", "--policy", str(policy), "--since", "7d").stdout
    policy.write_text("requeue_attemps: 1")
    done = redrive(folder, "simulate", "orders", "--policy", str(policy))
    assert done.returncode == 2
    assert "requeue_attemps" in done.stderr
    assert redrive(folder, "simulate", "orders", "--policy", str(folder / "nowhere.yaml")).returncode == 2


def test_help_teaches(folder: Path) -> None:
    for words, taught in (
        ([], "redrive demo"),
        (["run"], "--dry-run"),
        (["explain"], "echo"),
        (["restore"], "way out"),
        (["simulate"], "never guessed"),
    ):
        done = redrive(folder, *words, "--help")
        assert done.returncode == 0
        assert taught in done.stdout


def test_status_answers_without_airflow_spark_or_the_cloud_clients(folder: Path, ledger: Ledger) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "redrive", "status"],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"REDRIVE_CONFIG": str(folder / "redrive.yaml")},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 10, "of computing, however busy it is here"
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert not imported & {"airflow", "pyspark", "boto3", "botocore", "pandas"}


def test_what_was_looked_at_is_told_in_whole_words_on_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    looked_at = {
        "source": "orders/$DeadLetterQueue", "origin": "orders", "type": "Shop.OrderPlaced",
        "reason": "MaxDeliveryCountExceeded", "cause": "max_deliveries", "messages": 1234,
        "template": "Message could not be consumed after <*> delivery attempts.",
    }  # fmt: skip
    unseen = {"staged_but_not_classified": 0, "in_the_sources": "looked at, and not touched"}
    output.print_preview(
        Console(width=80),
        {"route": "orders", "plan": [], "peeked": [looked_at], "due_now": [], "bounds": [], "not_seen": unseen},
    )
    said = capsys.readouterr().out
    for word in ("1,234", *(str(value) for name, value in looked_at.items() if name != "messages")):
        assert word in said
    assert "verdict" not in said, "a plan for nothing has no table"


@pytest.mark.parametrize(
    ("sources", "staged", "said"),
    [
        (
            {"orders-dlq": 1234, "late": None},
            0,
            "1,234 in orders-dlq nobody tells how much is in late next: redrive drain orders --limit 100, redrive"
            " classify orders, then this again",
        ),
        ({"orders-dlq": 0}, 0, "0 in orders-dlq nothing of orders is known that a run could do"),
        ({}, 7, "next: redrive classify orders, then this again"),
    ],
)
def test_a_plan_for_nothing_says_how_much_lies_there_and_what_comes_next(
    capsys: pytest.CaptureFixture[str], sources: dict[str, int | None], staged: int, said: str
) -> None:
    unseen = {"staged_but_not_classified": staged, "in_the_sources": "not looked at"}
    plan = {"route": "orders", "plan": [], "due_now": [], "bounds": [], "not_seen": unseen, "sources": sources}
    output.print_preview(Console(width=200), plan)
    told = " ".join(capsys.readouterr().out.split())
    assert told.endswith(said)
    assert ("staged copies" in told) == bool(staged)


def test_names_of_queues_are_neither_markup_nor_orders_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """``orders[/]`` ended the command in a traceback."""
    name = "orders[/][red]\x1b[31m"
    unseen = {"staged_but_not_classified": 0, "in_the_sources": "not looked at"}
    plan = {"route": "orders", "plan": [], "due_now": [{"destination": name, "messages": 1234}], "bounds": [],
            "not_seen": unseen, "sources": {name: 7}}  # fmt: skip
    output.print_preview(Console(width=200), plan)
    queue = {"queue": name, "visible": 1, "in_flight": 0, "delayed": 0, "oldest_age_seconds": None, "observed_at": None}
    output._print_queues(Console(width=200), [queue], datetime(2026, 11, 20, 12, tzinfo=UTC))
    said = capsys.readouterr().out
    assert said.count("orders[/][red]\N{REPLACEMENT CHARACTER}[31m") == 3
    assert "due now for orders[/]" in said


def test_a_dry_run_before_the_first_drain_needs_no_broker(folder: Path, ledger: Ledger) -> None:
    path = folder / "redrive.yaml"
    path.write_text(path.read_text().replace("broker: memory", "broker: amazon_sqs"))
    done = redrive(folder, "run", "orders", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "how much the sources hold is not known: " in done.stderr
    assert "`redrive doctor orders`" in done.stderr
    chosen = redrive(folder, "run", "orders", "--dry-run", "--cause", "throttled")
    assert (chosen.returncode, chosen.stderr) == (0, "")


def test_a_plan_cuts_no_cause_and_no_time_on_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    now = datetime(2026, 11, 20, 12, tzinfo=UTC)
    row = {"group": 12345, "cause": "dependency_unavailable", "messages": 1234, "verdict": "escalate",
           "template": "HTTPError: HTTP Error 503: Down for Maintenance at consumer.py in _post",
           "why": "2 of 2 came back."}  # fmt: skip
    plan = [row | {"when": now}, row | {"when": "after 0:00:30 to 0:05:00"},
            row | {"when": "2026-11-20 12:00:00.000000", "until": now + timedelta(minutes=5)}]  # fmt: skip
    unseen = {"staged_but_not_classified": 0, "in_the_sources": "looked at, and not touched"}
    output.print_preview(
        Console(width=80), {"route": "orders", "plan": plan, "due_now": [], "bounds": [], "not_seen": unseen}
    )
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:3] == [
        "1,234  escalate  dependency_unavailable, group 12345", "2026-11-20 12:00:00 UTC: 2 of 2 came back."
    ]  # fmt: skip
    assert "after 0:00:30 to 0:05:00: 2 of 2 came back." in lines
    assert "2026-11-20 12:00:00 - 12:05:00 UTC: 2 of 2 came back." in lines
    assert row["template"] in " ".join(lines)


def test_what_waits_for_a_decision_is_two_lines_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"group_id": 12345, "open_messages": 100_000, "cause": "dependency_unavailable", "route": "orders",
           "oldest": datetime(2026, 11, 20, 12, tzinfo=UTC), "redelivered": 50, "returned": 2, "why": None,
           "suggested_decision": "redeliver", "template": "503 Service Unavailable: " + "inventory " * 20}  # fmt: skip
    output.print_review_groups(Console(width=80), [row, row | {"group_id": None}])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert all(word in lines[1] for word in ("12345", "100,000", "dependency_unavailable", "50/2", "redeliver"))
    assert lines[2].strip().startswith("orders: 503 Service Unavailable: inventory")
    assert max(map(len, lines)) <= 80


def test_what_a_run_left_alone_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    report = {"route": "orders", "run_id": "r", "drained": 13, "redelivered": 4, "escalated": 0, "classified": 13,
              "untouched": 9, "seconds": {}}  # fmt: skip
    output.print_report(Console(width=80), report)
    assert "9  untouched (this run did not ask for them)" in capsys.readouterr().out


def test_a_broker_that_is_not_there_is_named_by_host_and_port(folder: Path, ledger: Ledger) -> None:
    path = folder / "redrive.yaml"
    head, _, _ = path.read_text().partition("routes:")
    path.write_text(f"{head}routes:\n  orders: {{broker: rabbitmq, connection: rabbit, sources: [{{queue: dead}}]}}\n")
    port = free_port()
    done = redrive(folder, "observe", "orders", AIRFLOW_CONN_RABBIT=f"amqp://guest:secret@127.0.0.1:{port}")
    assert done.returncode == 1
    assert f"connection rabbit at 127.0.0.1:{port}" in done.stderr
    assert "secret" not in done.stderr
