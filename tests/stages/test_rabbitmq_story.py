"""``redrive demo --broker rabbitmq``, and with it the route of RabbitMQ's page, on a real node."""

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from redrive.dev.demo.workspace import Workspace
from redrive.ledger.engine import parse_instant
from tests import servers
from tests.story import perform

pytestmark = pytest.mark.server


def test_the_error_decides_what_is_done_with_a_poison_message(
    rabbitmq: servers.RabbitMQ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rabbitmq.ask("PUT", "vhosts/story")
    rabbitmq.ask("PUT", "permissions/story/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    said = perform("rabbitmq", rabbitmq.connection(schema="story"), tmp_path, monkeypatch)

    assert "the queue stands still" in said
    assert "attempt 2 (requeue) to orders" in said, "the trace of a life"
    assert "how to make it not happen again" in said, "a run says it"
    assert "None" not in said, "the broker gives no id, and nobody reads of one"
    with closing(sqlite3.connect(Workspace(tmp_path).ledger_file)) as ledger:
        waits = ledger.execute(
            "select later.claimed_at, earlier.outcome_at from redelivery_attempts later inner join redelivery_attempts"
            " earlier on earlier.message_id = later.message_id and earlier.attempt = later.attempt - 1"
            " where later.mode = 'delay'"
        ).fetchall()
    assert len(waits) == 4
    for later, earlier in waits:
        assert parse_instant(later) - parse_instant(earlier) >= timedelta(seconds=1), "the least wait"  # type: ignore[operator]
