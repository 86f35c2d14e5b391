"""What the demo prints: honest sums, and hostile text that stays text."""

import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from redrive.dev.demo import story
from redrive.dev.demo.workspace import Workspace
from redrive.dev.demo.world import Counts
from redrive.ledger.engine import Ledger, sql

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def place(tmp_path: Path) -> Workspace:
    place = Workspace(tmp_path)
    place.claim(fresh=True)
    return place


@pytest.fixture
def ledger(place: Workspace) -> Iterator[Ledger]:
    ledger = place.open_ledger(NOW)
    yield ledger
    ledger.close()


def insert(ledger: Ledger, table: str, **values: object) -> None:
    names = ", ".join(values)
    marks = ", ".join(f":{name}" for name in values)
    with ledger.write() as connection:
        connection.execute(sql(f"insert into {table} ({names}) values ({marks})"), values)


def a_batch(ledger: Ledger, copies: int, **more: object) -> None:
    known: Mapping[str, object] = {
        "route": "orders", "source": "orders-dlq", "kind": "dead_letter", "shard": 0, "run_id": "r", "fence": 1,
        "state": "settled", "uri": "x", "copies": copies, "settled_copies": copies, "new_copies": copies,
        "opened_at": NOW, "loaded_at": NOW,
    }  # fmt: skip
    insert(ledger, "staging_batches", **{**known, **more})


def a_group(ledger: Ledger, group_id: int, cause: str, template: str) -> None:
    insert(
        ledger, "failure_groups", group_id=group_id, fingerprint=f"f{group_id}", cause=cause, template=template,
        first_seen_at=NOW, last_seen_at=NOW,
    )  # fmt: skip


def a_message(ledger: Ledger, message_id: int, state: str, **more: object) -> None:
    known: Mapping[str, object] = {
        "redrive_id": f"x-{message_id}", "route": "orders", "source": "orders-dlq", "kind": "dead_letter",
        "broker_message_id": f"b{message_id}", "body_hash": b"0" * 16, "body_bytes": 1, "copy_id": message_id,
        "changed_at": NOW, "message_key": f"m-{message_id}",
    }  # fmt: skip
    if state in ("waiting", "held"):
        known = {**known, "plan": "requeue", "next_attempt_at": NOW}
    insert(ledger, "messages", message_id=message_id, state=state, **{**known, **more})


def printed(*parts: object, width: int = 200) -> str:
    console = Console(width=width, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as capture:
        story.tell(console, *parts)
    return capture.get()


def test_causes_and_where_their_messages_are(ledger: Ledger) -> None:
    a_group(ledger, 1, "throttled", "HTTP Error 429")
    a_message(ledger, 1, "confirmed", cause="throttled", group_id=1)
    a_message(ledger, 2, "waiting", cause="throttled", group_id=1)
    a_message(ledger, 3, "waiting", kind="delay")

    with ledger.read() as connection:
        text = printed(story.causes_table(connection))

    assert [word for word in ("confirmed", "waiting", "held") if word in text] == ["confirmed", "waiting"]
    assert "throttled" in text
    assert "(try later)" in text


def test_hostile_templates_are_shown_as_text(ledger: Ledger) -> None:
    a_group(ledger, 1, "routing_failure", "no [red]handler[/red] \x1b[31m for <script>\u202e")
    a_message(ledger, 1, "escalated", cause="routing_failure", group_id=1)

    with ledger.read() as connection:
        text = printed(story.groups_table(connection))

    assert "[red]handler[/red]" in text
    assert "<script>" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_failure_gives_way_and_the_numbers_stay_readable(ledger: Ledger, width: int) -> None:
    a_group(ledger, 17, "transient_network", "Traceback (most recent call last):\n  File x\nOSError: " + "x" * 300)
    a_message(ledger, 1, "confirmed", cause="transient_network", group_id=17)

    with ledger.read() as connection:
        text = printed(story.groups_table(connection), width=width)

    (row,) = [line for line in text.splitlines() if "transient_network" in line]
    cells = [cell for cell in row.split("  ") if cell.strip()]
    assert [cell.strip() for cell in cells[:4]] == ["17", "1", "transient_network", "1 confirmed"]
    assert cells[4].strip().startswith("OSError: xxx")


def test_a_balance_that_holds_is_told_and_kept(ledger: Ledger) -> None:
    a_batch(ledger, copies=2)
    a_message(ledger, 1, "confirmed")
    a_message(ledger, 2, "suppressed")

    with ledger.read() as connection:
        text = printed(story.balance_table(connection))
        accounts = story.settle_accounts(connection, {"m-1", "m-2", "m-3"}, {"m-3"})

    assert "2 copies staged = 2 new" in text
    assert "✗" not in text
    assert accounts == story.Accounts(broken=(), unaccounted=0)


def test_a_broken_balance_and_a_lost_message_are_both_told(ledger: Ledger) -> None:
    a_batch(ledger, copies=3)
    a_message(ledger, 1, "confirmed")

    with ledger.read() as connection:
        text = printed(story.balance_table(connection))
        accounts = story.settle_accounts(connection, {"m-1", "m-2"}, set())

    assert "off by 2" in text
    assert accounts.unaccounted == 1
    assert len(accounts.broken) == 2


def test_an_empty_ledger_is_no_success(ledger: Ledger) -> None:
    with ledger.read() as connection:
        assert story.settle_accounts(connection, {"m-1"}, set()).broken


def test_the_sql_to_review_can_be_copied_whole(ledger: Ledger, place: Workspace) -> None:
    a_group(ledger, 7, "missing_data", "customer <n> not found")
    insert(
        ledger, "escalated_messages", message_id=1, route="orders", group_id=7, cause="missing_data", reason="x",
        size_bytes=1, source="orders-dlq", attempts=0, escalated_at=NOW,
    )  # fmt: skip

    with ledger.read() as connection:
        text = printed(story.review_help(connection, place), width=60)

    (update,) = [line for line in text.splitlines() if "update escalated_messages" in line]
    statement = update.split('"')[1]
    with ledger.write() as connection:
        assert connection.exec_driver_sql(statement).rowcount == 1
    with ledger.read() as connection:
        assert connection.execute(sql("select status from escalated_messages")).scalar_one() == "decided"


def test_the_command_to_copy_is_one_that_the_shell_finds(
    ledger: Ledger, place: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_group(ledger, 7, "missing_data", "customer <n> not found")
    insert(
        ledger, "escalated_messages", message_id=1, route="orders", group_id=7, cause="missing_data", reason="x",
        size_bytes=1, source="orders-dlq", attempts=0, escalated_at=NOW,
    )  # fmt: skip
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "redrive").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.chdir(tmp_path)
    for path, command in (("/nowhere", ".venv/bin/redrive"), (str(folder), "redrive")):
        monkeypatch.setenv("PATH", path)
        with ledger.read() as connection:
            assert f"# then `{command} review apply`" in printed(story.review_help(connection, place), width=200)


def test_the_shop_table_tells_both_ways_into_the_dead_letter_queue() -> None:
    depth = {name: Counts(n, 0, 0) for name, n in (("orders", 0), ("orders-dlq", 10), ("orders-delay", 2))}

    text = printed(story.shop_table(20, {"processed": 8, "dead_lettered": 7}, depth))

    assert [line.split("│")[-2].strip() for line in text.splitlines() if line.startswith("│")] == [
        "20", "8", "7", "3", "2",
    ]  # fmt: skip
