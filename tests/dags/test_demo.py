"""What ``make run`` does after set-up: the whole loop through Airflow and Spark, on messages that really failed."""

import json
import os
import re
import resource
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from tests import servers
from tests.crawling import follow_links
from tests.ui.conftest import Doors

from redrive import settings
from redrive.dev.demo import orders, world
from redrive.dev.demo.workspace import ROUTE, Workspace
from redrive.errors import UsageError
from redrive.ledger.engine import parse_instant
from redrive_ui.app import create_app
from redrive_ui.rendering import PREFIX

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.server, pytest.mark.timeout(1200)]

MESSAGES = 150
SEED = 5
RUN = (
    "import sys; from rich.console import Console; from redrive.dev.demo.run import main;"
    f"sys.exit(main(messages={MESSAGES}, seed={SEED}, keep_broker=False, fresh=True, console=Console(width=160)))"
)


class Performance(NamedTuple):
    """One demo that has ended."""

    code: int
    output: str
    cpu_seconds: float
    ledger: sqlite3.Connection
    shop: sqlite3.Connection
    home: Path

    def column(self, query: str) -> list[str]:
        return [row[0] for row in self.ledger.execute(query)]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Performance]:
    try:
        world.find_ministack(servers.ROOT)
    except UsageError as error:
        servers.missing(str(error))
    home = tmp_path_factory.mktemp("home")
    # What a user's shell may hold must not matter, and must not be reached.
    shell = {
        "REDRIVE_HOME": str(home),
        "REDRIVE_CONFIG": "/nonexistent/production.yaml",
        "AIRFLOW_CONN_SQS_DEMO": "aws://real:secret@/?region_name=eu-west-1",
        "AWS_PROFILE": "production",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        env=os.environ | shell,
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1100,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    with (
        closing(sqlite3.connect(home / "var" / "redrive.db")) as ledger,
        closing(sqlite3.connect(home / "var" / "demo" / "shop" / "orders.db")) as shop,
    ):
        yield Performance(done.returncode, done.stdout, cpu, ledger, shop, home)


def test_it_succeeds_within_its_budget(demo: Performance) -> None:
    assert demo.code == 0, demo.output
    # Three minutes of two cores. What counts is processor time: the machine may be busy with other tests.
    assert demo.cpu_seconds < 3 * 60 * 2


def test_the_balance_holds_and_nothing_is_left_in_between(demo: Performance) -> None:
    (row,) = demo.ledger.execute(
        "select copies_difference, messages_difference, settled_difference, staged, unknown, sending, suspected"
        " from message_balance"
    )
    assert row == (0,) * 7


def test_a_few_dozen_failures_were_told_apart(demo: Performance) -> None:
    causes = demo.column("select distinct cause from messages where cause is not null")
    (groups,) = demo.column("select count(distinct group_id) from messages")

    assert len(causes) >= 14
    assert 24 <= int(groups) <= 60


def test_what_was_processed_before_is_suppressed_and_never_done_again(demo: Performance) -> None:
    # On a busy machine the consumer may end before it has wrapped all: what it left undone is rightly sent again.
    began = parse_instant(demo.column("select min(started_at) from runs")[0])
    assert began
    wrapped = {
        key
        for key, at in demo.shop.execute("select message_id, handled_at from processed where order_type = 'gift.wrap'")
        if datetime.fromisoformat(at) < began
    }
    # … behind a canary of what was left undone, so that some may still be held: nobody has asked about those yet.
    suppressed = set(demo.column("select message_key from messages where state in ('suppressed', 'held')"))
    done = Counter(row[0] for row in demo.shop.execute("select message_id from work_log"))
    died = Counter(
        demo.column("select message_key from (select distinct message_key, broker_message_id from messages)")
    )

    assert wrapped & died.keys()
    assert wrapped & died.keys() <= suppressed
    # The queue itself had gift wrapping done up to three times, before Redrive saw the messages. And where a busy
    # machine let a visibility timeout pass, what is one message for the shop died as two, which may be done once each.
    assert not [key for key, times in done.items() if times > max(1, died[key]) and key not in wrapped]


def test_passing_failures_were_processed_without_a_person(demo: Performance) -> None:
    processed = {row[0] for row in demo.shop.execute("select order_type from processed")}

    assert {"payment.capture", "booking.post", "price.quote", "tax.calculate", "price.update"} <= processed
    assert "stock.recheck" in processed  # the delay queue's


def test_what_fails_again_comes_back_and_is_recognised(demo: Performance) -> None:
    returned = demo.column("select message_id from redelivery_attempts where outcome = 'returned'")
    known = demo.column("select count(*) from messages where parent_id is not null")

    assert returned
    assert known == [0]  # none was taken for a new message


def test_what_needs_a_person_is_under_review_with_its_payload_and_error(demo: Performance) -> None:
    causes = set(demo.column("select cause from escalated_messages"))
    (empty,) = demo.column(
        "select count(*) from escalated_messages where payload is null and payload_bytes is null"
        " or error_text is null and reason is null"
    )
    assert {"malformed_payload", "missing_data", "application_bug", "auth_failure"} <= causes
    assert empty == 0


def test_every_order_is_accounted_for(demo: Performance) -> None:
    sent = {message.message_id for message in orders.make_orders(MESSAGES, SEED)}
    processed = {row[0] for row in demo.shop.execute("select message_id from processed")}
    known = set(demo.column("select message_key from messages"))

    assert sent == sent & (processed | known)


def test_the_decision_of_a_person_was_carried_out(demo: Performance) -> None:
    released = demo.column("select message_id from redelivery_attempts where mode = 'release'")
    (confirmed,) = demo.column(
        "select count(*) from messages where state = 'confirmed' and message_id in"
        " (select message_id from redelivery_attempts where mode = 'release')"
    )
    (told,) = demo.column("select count(*) from audit_events where actor = 'you'")

    assert released
    assert confirmed == len(released)
    assert told >= len(released)


@pytest.mark.parametrize(
    "words",
    ["Run 2", "Why they died", "distinct failures", "What became of them", "It adds up", "sqlite3"],
)
def test_the_end_tells_it_all(words: str, demo: Performance) -> None:
    assert words in demo.output


def test_every_link_of_every_page_about_it_leads_somewhere(demo: Performance) -> None:
    place = Workspace(demo.home)
    endpoint = json.loads((place.folder / "ministack.json").read_text())["endpoint"]
    configured = settings.load(env=place.environment(endpoint, place.folder / "shop" / "orders.db", os.environ))
    airflow = FastAPI()
    airflow.mount(PREFIX, create_app(Doors(), load=lambda: configured))
    page = TestClient(airflow, base_url="http://airflow.test")

    def look(address: str) -> tuple[int, str]:
        if not address.startswith(PREFIX):
            return 200, ""  # Airflow's own
        answer = page.get(address)
        return answer.status_code, answer.text if "text/html" in answer.headers["content-type"] else ""

    known = follow_links(look, alike=1000)
    unfinished = demo.column(
        "select distinct group_id from messages where state in ('waiting', 'held', 'escalated')"
        " and group_id is not null"
    )
    assert unfinished
    assert {f"{PREFIX}/groups/{ROUTE}/{group}" for group in unfinished} <= known


def test_the_sql_that_is_shown_decides_a_group(demo: Performance) -> None:
    update = re.search(r'"(update escalated_messages [^"]+)"', demo.output)
    assert update

    with demo.ledger:
        decided = demo.ledger.execute(update[1]).rowcount
    assert decided
    assert demo.column(
        "select count(*) from escalated_messages where status = 'decided' and group_id = "
        + update[1].split("group_id = ")[1].split()[0]
    ) == [decided]


def test_nothing_is_left_running(demo: Performance) -> None:
    endpoint = json.loads((demo.home / "var" / "demo" / "ministack.json").read_text())["endpoint"]
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(endpoint, timeout=2)
