"""What became of past sends: unknown ones above all."""

import json
import sqlite3
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import pytest
import sqlalchemy as sa
import yaml
from typer.testing import CliRunner

from redrive.brokers.base import Publication
from redrive.brokers.memory import MemoryBroker, MemoryWorld
from redrive.cli.app import app
from redrive.connections import processed_check
from redrive.errors import SettingsError, UsageError
from redrive.ledger.engine import sql
from redrive.ledger.selecting import Selection
from redrive.message import Outgoing
from redrive.policy.worked_past import CLOCKS
from redrive.stages import checking, doctor, pipeline
from redrive.stages.preview import preview
from tests.workshop import CHECK, KEY_ERROR, REFUSED, ROUTE, Workshop

STRANGE = "the flux capacitor said hm"  # nothing is known of it


@pytest.fixture
def processed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> sqlite3.Connection:
    """The consumer's table of what it has processed."""
    path = tmp_path / "orders.db"
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS_DB", json.dumps({"conn_type": "sqlite", "host": str(path)}))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("create table processed (id text primary key)")
    return connection


def test_a_message_that_never_died_is_traced_in_the_consumers_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processed: sqlite3.Connection
) -> None:
    workshop = Workshop(tmp_path, processed_check=CHECK)
    workshop.ledger.close()
    processed.execute("insert into processed values ('done')")
    route = {**ROUTE, "processed_check": CHECK}
    settings = {"database": workshop.settings.database, "staging": str(tmp_path / "s"), "routes": {"orders": route}}
    (tmp_path / "redrive.yaml").write_text(yaml.safe_dump(settings))
    monkeypatch.setenv("REDRIVE_CONFIG", str(tmp_path / "redrive.yaml"))

    told = CliRunner().invoke(app, ["trace", "done"])
    assert told.exit_code == 0
    assert "processed, says the record of route orders" in told.output
    with pytest.raises(UsageError, match="the record of route orders does not have it"):
        CliRunner().invoke(app, ["trace", "lost"], catch_exceptions=False)
    processed.execute("drop table processed")
    with pytest.raises(UsageError, match="could not be asked"):
        CliRunner().invoke(app, ["trace", "done"], catch_exceptions=False)


def test_a_message_whose_key_can_not_be_asked_about_goes_to_people_and_keeps_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processed: sqlite3.Connection
) -> None:
    """Its producer wrote what is no number; the consumer's column has numbers."""
    ask = processed_check._Database.ask

    def typed(self: Any, keys: Sequence[str], seconds: float) -> set[str]:
        if "odd" in keys:
            raise sa.exc.DataError("select", None, ValueError("invalid input syntax for type bigint"))
        return ask(self, keys, seconds)

    monkeypatch.setattr(processed_check._Database, "ask", typed)
    processed.execute("insert into processed values ('2')")
    workshop = Workshop(tmp_path, processed_check=CHECK)
    workshop.die("odd", "1", "2", "3", error=REFUSED)
    workshop.advance(hours=1)
    workshop.cycle()
    assert workshop.states() == {"escalated": 1, "sent": 2, "suppressed": 1}
    assert workshop.query("select message_key, reason from escalated_messages") == [("odd", checking.REFUSED)]
    assert workshop.audit() == []
    workshop.ledger.close()


class Records(BaseHTTPRequestHandler):
    """A search index and a key-value table that have ``done`` only."""

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("/_mget"):
            answer: Any = {"docs": [{"_id": key, "found": key == "done"} for key in question["ids"]]}
        elif self.path == "/table":
            keys = [one["pk"]["S"] for one in question["RequestItems"]["processed"]["Keys"]]
            rows = [{"pk": {"S": key}} for key in keys if key == "done"]
            answer = {"Responses": {"processed": rows}, "UnprocessedKeys": {}}
        else:
            answer = {"processed": [key for key in question["keys"] if key == "done"]}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    "asked",
    [
        {
            "path": "/orders/_mget",
            "request": {"ids": "{keys}"},
            "answer": {"items": "docs", "key": "_id", "when": {"found": True}},
        },
        {
            "path": "/table",
            "request": {"RequestItems": {"processed": {"Keys": [{"pk": {"S": "{key}"}}]}}},
            "answer": {"items": "Responses.processed", "key": "pk.S", "empty": ["UnprocessedKeys"]},
        },
        {"path": "/v1/processed"},
    ],
    ids=["search-index", "key-value-table", "http-api"],
)
def test_what_a_record_behind_http_has_is_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Records) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        where = {"conn_type": "http", "host": "127.0.0.1", "port": server.server_port}
        monkeypatch.setenv("AIRFLOW_CONN_RECORD", json.dumps(where))
        check = {"connection": "record", "key": "attribute:message_id", "settle_after": "0s", **asked}
        workshop = Workshop(tmp_path, processed_check=check)
        workshop.die("done", "lost")
        workshop.cycle()
        assert workshop.bodies("orders") == [b"lost"]
        assert workshop.states() == {"suppressed": 1, "sent": 1}
        workshop.ledger.close()
        server.shutdown()


class Deduping(MemoryBroker):
    """Drops a repeat of an attempt for a while, and remembers how often it was asked to take something."""

    def __init__(self, world: MemoryWorld, window: timedelta = timedelta(minutes=10)) -> None:
        world.capabilities = replace(world.capabilities, native_dedupe=window)
        super().__init__(world)
        self.asked = 0
        self.slow = lambda: None

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        self.asked += len(messages)
        found = super().publish(queue, messages)
        self.slow()
        return found


def lose_a_response(
    folder: Path, *, arrived: bool, dedupes: bool = False, more: Sequence[str] = (), **route: Any
) -> Workshop:
    """A workshop in which the sends of message ``a``, and of the ``more`` in its window, got no answer."""
    workshop = Workshop(folder, **route)
    if dedupes:
        workshop.broker = Deduping(workshop.world)
    workshop.die("a", *more, error=REFUSED)
    if more:
        workshop.world.faults.lost_responses = 1 + len(more)
        assert workshop.cycle()["unknown"] == 1 + len(more)
        return workshop
    if arrived:
        workshop.world.faults.lost_responses = 1
    else:
        workshop.world.faults.publishes.append("unknown")
    assert workshop.cycle()["unknown"] == 1
    assert workshop.states() == {"unknown": 1}
    return workshop


@pytest.mark.parametrize("rule", ["auto", "review"])
def test_an_unknown_send_goes_to_people_where_nothing_would_notice_a_double(tmp_path: Path, rule: str) -> None:
    workshop = lose_a_response(tmp_path, arrived=True, on_unknown=rule)
    assert workshop.cycle()["escalated"] == 1
    [(reason,)] = workshop.query("select reason from escalated_messages")
    assert "whether it was sent" in reason
    assert workshop.bodies("orders") == [b"a"], "never sent again"


def test_an_unknown_send_is_repeated_as_the_same_attempt_where_the_route_says_so(tmp_path: Path) -> None:
    workshop = lose_a_response(tmp_path, arrived=False, on_unknown="resend")
    workshop.advance(minutes=30)
    workshop.cycle()
    assert workshop.bodies("orders") == [b"a"]
    assert workshop.query("select attempt, unknown_at is not null from redelivery_attempts") == [(1, True)]
    assert workshop.states() == {"sent": 1}


def test_a_send_that_never_gets_an_answer_is_repeated_a_few_times_and_then_asks_a_person(tmp_path: Path) -> None:
    workshop = lose_a_response(tmp_path, arrived=True, on_unknown="resend", deliver={"tries": 2})
    for _ in range(5):
        workshop.advance(minutes=30)
        workshop.world.faults.lost_responses = 1
        workshop.cycle()
    assert workshop.bodies("orders") == [b"a"] * 3, "the first send, and two more"
    [(reason,)] = workshop.query("select reason from escalated_messages")
    assert reason == "Nobody knows whether it was sent: it was sent again 2 times, and no answer came."
    assert workshop.states() == {"escalated": 1}
    assert workshop.audit() == []


def lose_one_of_four(folder: Path, error: str, **route: Any) -> Workshop:
    """A canary of four, of which one got no answer and the others came back."""
    canary = {"first": 4, "grow": 5, "pass": 0.95, "observe": "1m"}
    workshop = Workshop(folder, canary=canary, on_unknown="resend", **route)
    workshop.die(*(f"m{number}" for number in range(9)), error=error)
    workshop.world.faults.publishes.extend(["sent", "sent", "sent", "unknown"])
    workshop.cycle()
    assert workshop.states() == {"sent": 3, "unknown": 1, "held": 5}
    assert workshop.consume(lambda _: error) == 3
    workshop.advance(minutes=5)
    assert workshop.cycle()["redelivered"] == 0
    return workshop


def test_an_unknown_send_of_a_group_whose_canary_failed_is_asked_about_and_not_made_again(tmp_path: Path) -> None:
    workshop = lose_one_of_four(tmp_path, STRANGE)
    assert workshop.query("select stage from group_state") == [("failed",)]
    assert workshop.states() == {"escalated": 9}
    asked = workshop.query("select reason from escalated_messages where reason like 'Nobody knows%'")
    assert asked == [("Nobody knows whether it was sent. The canary of its group failed: 3 of 3 came back.",)]
    assert workshop.bodies("orders") == []
    assert workshop.audit() == []


def test_an_unknown_send_of_a_group_that_keeps_coming_back_waits_for_the_cool_down(tmp_path: Path) -> None:
    workshop = lose_one_of_four(tmp_path, REFUSED, breaker={"cool_down": "30m"})
    assert workshop.query("select stage from group_state") == [("tripped",)]
    assert workshop.states() == {"unknown": 1, "held": 8}
    workshop.deliver(workshop.begin())  # also without a plan
    assert workshop.bodies("orders") == []
    workshop.advance(minutes=40)
    workshop.cycle()
    assert workshop.query("select stage from group_state") == [("canary",)]
    assert sorted(workshop.bodies("orders"))[-1:] == [b"m3"]
    assert workshop.states() == {"sent": 4, "held": 5}, "it has one of the canary's places"


@pytest.mark.parametrize("rule", ["auto", "resend"])
def test_an_unknown_send_is_repeated_at_once_while_the_broker_would_drop_the_second(tmp_path: Path, rule: str) -> None:
    workshop = lose_a_response(tmp_path, arrived=True, dedupes=True, on_unknown=rule)
    workshop.advance(minutes=5)
    assert workshop.cycle()["redelivered"] == 1
    assert workshop.bodies("orders") == [b"a"]
    assert workshop.broker.asked == 2  # type: ignore[attr-defined]
    assert workshop.states() == {"sent": 1}


def test_an_unknown_send_goes_to_people_once_the_broker_has_forgotten_it(tmp_path: Path) -> None:
    workshop = lose_a_response(tmp_path, arrived=True, dedupes=True)
    workshop.advance(minutes=10)
    report = workshop.cycle()
    assert (report["redelivered"], report["escalated"]) == (0, 1)
    assert workshop.bodies("orders") == [b"a"], "not sent twice in silence"


def test_a_clock_that_was_ahead_at_the_claim_makes_no_repeat_of_what_the_broker_has_forgotten(tmp_path: Path) -> None:
    """SQS remembers an id for five minutes. Who claimed it thought that it was almost two minutes later."""
    workshop = Workshop(tmp_path)
    workshop.broker = Deduping(workshop.world, timedelta(minutes=5))
    workshop.die("a", error=REFUSED)
    workshop.world.faults.lost_responses = 1
    run = workshop.begin()
    ahead = {**workshop.options(), "clock": lambda: workshop.now() + CLOCKS - timedelta(seconds=1)}
    for stage, _ in workshop.stages(run):
        if stage == "plan":
            assert pipeline.deliver(workshop.settings, run, **ahead)["unknown"] == 1
            break
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    workshop.advance(minutes=5, seconds=10)
    report = workshop.cycle()
    assert (report["redelivered"], report["escalated"]) == (0, 1)
    assert workshop.bodies("orders") == [b"a"], "not sent twice in silence"


def test_a_repeat_that_was_decided_in_time_is_not_sent_too_late(tmp_path: Path) -> None:
    workshop = lose_a_response(tmp_path, arrived=True, dedupes=True)
    run = workshop.planned()
    assert workshop.query("select plan from messages") == [("repeat",)]
    workshop.advance(minutes=9)
    assert workshop.deliver(run)["redelivered"] == 0
    assert workshop.bodies("orders") == [b"a"]


def test_a_slice_of_repeats_ends_with_the_time_that_the_broker_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.stages.claiming.CLAIM_FOR", timedelta(minutes=30))
    workshop = lose_a_response(tmp_path, arrived=True, dedupes=True, more=["b"])
    workshop.settings = workshop.configure(workshop.settings.database, deliver={"confirm_window": 1})
    broker = workshop.broker
    assert isinstance(broker, Deduping)
    broker.slow = lambda: workshop.advance(minutes=10)
    assert workshop.cycle()["redelivered"] == 1
    assert sorted(workshop.bodies("orders")) == [b"a", b"b"]
    assert workshop.states() == {"sent": 1, "unknown": 1}, "the second has lost its time"
    assert workshop.query("select count(*) from delivery_slices where closed_at is null") == [(0,)]


def test_after_its_time_a_route_that_wants_resends_waits_as_without_dedupe(tmp_path: Path) -> None:
    observe = {"observe": "30m"}
    workshop = lose_a_response(tmp_path, arrived=True, dedupes=True, on_unknown="resend", canary=observe)
    workshop.advance(minutes=11)
    assert workshop.cycle()["redelivered"] == 0
    workshop.advance(minutes=30)
    assert workshop.cycle()["redelivered"] == 1
    assert workshop.bodies("orders") == [b"a", b"a"], "as the route says"


def test_a_message_that_the_check_could_not_know_goes_to_people(tmp_path: Path, processed: sqlite3.Connection) -> None:
    workshop = lose_a_response(tmp_path, arrived=True, processed_check=CHECK | {"key": "attribute:order"})
    workshop.advance(minutes=30)
    report = workshop.cycle()
    assert (report["redelivered"], report["escalated"]) == (0, 1)
    assert workshop.bodies("orders") == [b"a"], "nobody was asked, so nobody denied it"


def foretold(workshop: Workshop, selection: Selection | None = None) -> tuple[list[tuple[str, int]], int]:
    """What a dry run says: verdicts with their messages, and how many are due now."""
    seen = preview(workshop.settings, "orders", selection or Selection(), now=workshop.now(), broker=workshop.broker)
    assert all("Nobody knows whether it was sent" in row["why"] and row["template"] for row in seen["plan"])
    return [(row["verdict"], row["messages"]) for row in seen["plan"]], sum(
        lane["messages"] for lane in seen["due_now"]
    )


def test_a_dry_run_tells_of_unknown_sends_about_which_people_are_asked(tmp_path: Path) -> None:
    workshop = lose_a_response(tmp_path, arrived=True)
    workshop.advance(minutes=5)
    assert foretold(workshop) == ([("escalate", 1)], 0)
    assert foretold(workshop, Selection(causes=("max_deliveries",))) == ([], 0)
    assert foretold(workshop, Selection(attributes=(("message_id", "a"),))) == ([("escalate", 1)], 0)
    assert workshop.states() == {"unknown": 1}, "it only looked"
    assert workshop.cycle()["escalated"] == 1


def test_a_dry_run_tells_of_unknown_sends_that_are_made_again(tmp_path: Path) -> None:
    """Within the window they wait, and so do those that a run decided about and did not come to send."""
    workshop = lose_a_response(tmp_path, arrived=False, on_unknown="resend", canary={"first": 5, "observe": "10s"})
    assert foretold(workshop) == ([("wait", 1)], 0)
    workshop.advance(minutes=5)
    assert foretold(workshop) == ([("resend", 1)], 1)
    run = workshop.begin()
    for name, _ in workshop.stages(run):
        if name == "resolve":
            break
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    assert workshop.query("select plan from messages") == [("resend",)]
    assert foretold(workshop) == ([("resend", 1)], 1)
    assert workshop.cycle()["redelivered"] == 1


def test_a_dry_run_tells_of_unknown_sends_that_are_repeated_while_the_broker_drops_a_second(tmp_path: Path) -> None:
    workshop = lose_a_response(tmp_path, arrived=True, dedupes=True)
    assert foretold(workshop) == ([("repeat", 1)], 1)
    workshop.advance(minutes=10)
    assert foretold(workshop) == ([("escalate", 1)], 0)


def test_a_dry_run_tells_which_unknown_sends_a_processed_check_can_vouch_for(
    tmp_path: Path, processed: sqlite3.Connection
) -> None:
    workshop = lose_a_response(tmp_path, arrived=True, processed_check=CHECK)
    workshop.advance(hours=1)
    assert foretold(workshop) == ([("resend", 1)], 1)


def test_an_unknown_send_that_comes_back_was_sent(tmp_path: Path) -> None:
    workshop = lose_a_response(tmp_path, arrived=True, on_unknown="resend")
    workshop.consume(lambda _: REFUSED)
    report = workshop.cycle()
    assert (report["returned"], report["new"]) == (1, 0)
    assert workshop.query("select attempt, outcome from redelivery_attempts order by 1") == [(1, "returned"), (2, None)]


def ask_about_a_send(folder: Path, **route: Any) -> Workshop:
    """A workshop in which people are asked whether message ``a`` was sent; it was."""
    workshop = lose_a_response(folder, arrived=True, on_unknown="review", **route)
    assert workshop.cycle()["escalated"] == 1
    return workshop


def decide(workshop: Workshop, decision: str) -> None:
    with workshop.ledger.write() as connection:
        connection.execute(
            sql("update escalated_messages set decision = :decision, decided_by = 'ana', note = 'the consumer has it'"),
            {"decision": decision},
        )


QUESTIONS = "select status, decision, cause, reason, error_text from escalated_messages order by escalation_id"
CAME_BACK = "Nobody knew whether it was sent. It was, and it came back."


def test_a_discarded_message_of_an_unknown_send_that_comes_back_is_asked_about(tmp_path: Path) -> None:
    workshop = ask_about_a_send(tmp_path)
    decide(workshop, "discard")
    assert workshop.review()["discarded"] == 1
    workshop.consume(lambda _: KEY_ERROR)
    report = workshop.cycle()
    assert (report["returned"], report["new"], report["escalated"]) == (1, 0, 1)
    assert workshop.states() == {"escalated": 1}
    answered, asked = workshop.query(QUESTIONS)
    assert answered[:2] == ("applied", "discard"), "what ana said stays"
    why = "It was discarded while nobody knew whether it was sent. It was, and it came back."
    assert asked == ("open", None, "application_bug", why, KEY_ERROR)
    assert workshop.bodies("orders") == [], "nothing that somebody discarded is sent without a word"
    assert workshop.audit() == []
    decide_last = "update escalated_messages set decision = 'discard', decided_by = 'ana' where status = 'open'"
    with workshop.ledger.write() as connection:
        connection.execute(sql(decide_last))
    assert workshop.review()["discarded"] == 1
    assert workshop.audit() == [], "what is finished is counted"


def test_a_question_about_an_unknown_send_that_comes_back_says_so(tmp_path: Path) -> None:
    workshop = ask_about_a_send(tmp_path)
    workshop.consume(lambda _: KEY_ERROR)
    report = workshop.cycle()
    assert (report["returned"], report["escalated"]) == (1, 1)
    assert workshop.query(QUESTIONS) == [("open", None, "application_bug", CAME_BACK, KEY_ERROR)]
    same = "select asked.group_id = m.group_id, asked.cause = m.cause, m.copy_id > m.message_id"
    assert workshop.query(f"{same} from escalated_messages asked inner join messages m using (message_id)") == [
        (True, True, True)
    ]
    assert workshop.audit() == []


@pytest.mark.parametrize("decision", ["redeliver", "discard"])
def test_a_decision_about_an_unknown_send_that_comes_back_first_is_asked_again(tmp_path: Path, decision: str) -> None:
    workshop = ask_about_a_send(tmp_path)
    decide(workshop, decision)
    workshop.consume(lambda _: KEY_ERROR)
    workshop.cycle()
    assert workshop.query(QUESTIONS) == [("reopened", None, "application_bug", CAME_BACK, KEY_ERROR)]
    [(why,)] = workshop.query("select refusal from escalated_messages")
    assert why == f"It came back before this decision of ana was carried out: {decision}. Decide again."
    assert workshop.query("select reason from audit_events where action = 'reopen'") == [(why,)]
    assert workshop.review() | {"seconds": 0} == {"released": 0, "discarded": 0, "refused": 0, "seconds": 0}
    assert workshop.states() == {"escalated": 1}
    assert workshop.audit() == []


def test_a_question_about_what_came_back_stays_although_the_check_knows_its_message(
    tmp_path: Path, processed: sqlite3.Connection
) -> None:
    workshop = ask_about_a_send(tmp_path, processed_check=CHECK)
    workshop.consume(lambda _: KEY_ERROR)
    processed.execute("insert into processed values ('a')")
    workshop.cycle()
    assert workshop.query(QUESTIONS) == [("open", None, "application_bug", CAME_BACK, KEY_ERROR)]
    assert workshop.audit() == []


def test_an_unknown_send_that_was_processed_is_confirmed(tmp_path: Path, processed: sqlite3.Connection) -> None:
    workshop = lose_a_response(tmp_path, arrived=True, processed_check=CHECK)
    processed.execute("insert into processed values ('a')")
    assert workshop.cycle()["confirmed"] == 1
    assert workshop.states() == {"confirmed": 1}


def test_a_resend_that_turns_out_to_be_processed_is_confirmed_and_not_tried_for_ever(
    tmp_path: Path, processed: sqlite3.Connection
) -> None:
    workshop = lose_a_response(tmp_path, arrived=True, processed_check=CHECK, deliver={"run_for": "3s"})
    workshop.cycle()
    workshop.advance(minutes=30)
    run = workshop.begin()
    for name, counts in workshop.stages(run):
        if name == "plan":
            processed.execute("insert into processed values ('a')")
        if name == "deliver":
            assert (counts["slices"], counts["suppressed"], counts["redelivered"]) == (1, 1, 0)
    assert workshop.states() == {"confirmed": 1}
    assert workshop.audit() == []


def test_an_unknown_send_is_repeated_once_the_check_denies_it(tmp_path: Path, processed: sqlite3.Connection) -> None:
    workshop = lose_a_response(tmp_path, arrived=False, processed_check=CHECK)
    workshop.cycle()
    assert workshop.states() == {"unknown": 1}, "within the window it may still be processed"
    workshop.advance(minutes=30)
    workshop.cycle()
    assert workshop.bodies("orders") == [b"a"]


def test_a_failing_check_decides_nothing(tmp_path: Path, processed: sqlite3.Connection) -> None:
    workshop = lose_a_response(tmp_path, arrived=True, processed_check=CHECK)
    processed.execute("drop table processed")
    workshop.advance(hours=5)
    report = workshop.cycle()
    assert (report["confirmed"], report["escalated"]) == (0, 0)
    assert workshop.states() == {"unknown": 1}


def test_a_check_whose_driver_is_missing_holds_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS_DB", "mysql://reader:secret@db.example:3306/shop")
    workshop = Workshop(tmp_path, processed_check=CHECK)
    workshop.die("send me", error=REFUSED)
    workshop.die("look at me", error=KEY_ERROR)
    report = workshop.cycle()
    assert (report["redelivered"], report["escalated"], report["suppressed"]) == (0, 0, 0)
    found = {finding.subject: finding for finding in doctor.examine(workshop.settings, ["orders"])}
    assert found["orders: processed_check"].level == "error"
    assert "orders_db: its driver is not installed" in found["orders: processed_check"].text


def test_processed_messages_are_suppressed_and_those_sent_are_confirmed(
    tmp_path: Path, processed: sqlite3.Connection
) -> None:
    workshop = Workshop(tmp_path, processed_check=CHECK)
    workshop.die("done", "not done", error=REFUSED)
    processed.execute("insert into processed values ('done')")
    report = workshop.cycle()
    assert (report["suppressed"], report["redelivered"]) == (1, 1)
    assert workshop.bodies("orders") == [b"not done"]
    processed.execute("insert into processed values ('not done')")
    assert workshop.cycle()["confirmed"] == 1
    assert workshop.states() == {"suppressed": 1, "confirmed": 1}


def test_a_send_of_which_nothing_is_learnt_is_asked_about_more_and_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processed: sqlite3.Connection
) -> None:
    """Else each run asks about all that ever stayed without an outcome. What nobody answered is asked again."""
    workshop = Workshop(tmp_path, processed_check=CHECK)
    workshop.die("a", error=REFUSED)
    workshop.cycle()
    ask, asked = processed_check._Database.ask, list[int]()

    def noted(self: Any, keys: Sequence[str], seconds: float) -> set[str]:
        asked.append(day)
        if day == 14:
            raise OSError("away")
        return ask(self, keys, seconds)

    monkeypatch.setattr(processed_check._Database, "ask", noted)
    for day in range(1, 60):
        if not 40 < day < 58:  # it is paused
            workshop.advance(days=1 if day != 58 else 18)
            workshop.cycle()
    assert asked == [*range(1, 8), 14, 15, 28, 58]
    workshop.settings = workshop.configure(workshop.settings.database, processed_check=CHECK | {"batch": 100})
    for _ in range(2):
        day += 1
        workshop.advance(days=1)
        workshop.cycle()
    assert asked[11:] == [60], "another configuration may have another answer"
    processed.execute("insert into processed values ('a')")
    workshop.advance(days=60)
    assert workshop.cycle()["confirmed"] == 1


def test_a_failing_check_holds_messages_and_never_sends_or_escalates_them(
    tmp_path: Path, processed: sqlite3.Connection
) -> None:

    workshop = Workshop(tmp_path, processed_check=CHECK)
    workshop.die("send me", error=REFUSED)
    workshop.die("look at me", error=KEY_ERROR)
    processed.execute("alter table processed rename to away")
    report = workshop.cycle()
    assert (report["redelivered"], report["escalated"]) == (0, 0)
    assert workshop.bodies("orders") == []
    assert workshop.query("select count(*) from redelivery_attempts") == [(0,)], "not asked is not attempted"
    processed.execute("alter table away rename to processed")
    workshop.advance(minutes=10)
    report = workshop.cycle()
    assert (report["redelivered"], report["escalated"]) == (1, 1)
    assert workshop.audit() == []


# --- by the broker's own id ------------------------------------------------------------------------------------

BY_ID = CHECK | {"key": "broker_id"}


def keep_ids(workshop: Workshop, how: Literal["kept", "new"]) -> None:
    """From now on dead letters have the id that their consumer saw."""
    workshop.world.capabilities = replace(workshop.world.capabilities, consumer_ids=how)
    workshop.broker = MemoryBroker(workshop.world)


def fail_again(workshop: Workshop) -> str:
    """What was redelivered dies again, under the id that its consumer saw; that id."""
    [(letter, receipt)] = workshop.broker.receive("orders", limit=9, wait=timedelta(0), lease=timedelta(minutes=1))
    workshop.broker.settle("orders", [receipt])
    workshop.world.put("orders-dlq", letter._replace(origin="orders"))
    return letter.broker_message_id


def test_a_check_by_broker_id_is_refused_where_the_consumer_saw_another(
    tmp_path: Path, processed: sqlite3.Connection
) -> None:
    workshop = Workshop(tmp_path, processed_check=BY_ID)
    workshop.die("a")
    with pytest.raises(SettingsError, match=r"routes\.orders\.processed_check\.key: broker_id can't be used"):
        workshop.cycle()
    assert workshop.bodies("orders-dlq") == [b"a"], "refused before anything was drained"
    found = {finding.subject: finding for finding in doctor.examine(workshop.settings, ["orders"])}
    assert found["orders: processed_check.key"].level == "error"


def test_a_check_by_broker_id_asks_with_every_id_that_the_message_had(
    tmp_path: Path, processed: sqlite3.Connection
) -> None:
    workshop = Workshop(tmp_path, processed_check=BY_ID)
    keep_ids(workshop, "new")
    workshop.die("a")
    assert workshop.cycle()["redelivered"] == 1
    second = fail_again(workshop)
    processed.execute("insert into processed values (?)", (second,))
    report = workshop.cycle()
    assert (report["returned"], report["redelivered"], report["suppressed"]) == (1, 0, 1)
    assert workshop.bodies("orders") == [], "it had in fact succeeded, under the id of its redelivery"


def test_a_redelivery_is_proved_by_its_own_id(tmp_path: Path, processed: sqlite3.Connection) -> None:
    workshop = Workshop(tmp_path, processed_check=BY_ID)
    keep_ids(workshop, "new")
    workshop.die("a")
    workshop.cycle()
    [sent] = workshop.query("select broker_message_id from redelivery_attempts")
    processed.execute("insert into processed values (?)", sent)
    assert workshop.cycle()["confirmed"] == 1


@pytest.mark.parametrize(("how", "escalated"), [("new", 1), ("kept", 0)])
def test_a_send_whose_id_is_not_known_is_denied_by_no_check(
    tmp_path: Path, processed: sqlite3.Connection, how: Literal["kept", "new"], escalated: int
) -> None:
    workshop = Workshop(tmp_path, processed_check=BY_ID)
    keep_ids(workshop, how)
    workshop.die("a")
    workshop.world.faults.publishes.append("unknown")
    assert workshop.cycle()["unknown"] == 1
    workshop.advance(minutes=30)
    report = workshop.cycle()
    assert (report["escalated"], report["redelivered"]) == (escalated, 1 - escalated)


# --- what a person released ------------------------------------------------------------------------------------


@pytest.fixture
def released(tmp_path: Path, processed: sqlite3.Connection) -> Workshop:
    """A message that waits because a person released it."""
    workshop = Workshop(tmp_path, processed_check=CHECK)
    workshop.die("a", error=KEY_ERROR)
    assert workshop.cycle()["escalated"] == 1
    with workshop.ledger.write() as connection:
        connection.execute(sql("update escalated_messages set decision = 'redeliver', decided_by = 'ana'"))
    assert workshop.review()["released"] == 1
    return workshop


def review_rows(workshop: Workshop) -> list[tuple[Any, ...]]:
    return workshop.query("select status, decision, refusal, applied_at is not null from escalated_messages")


def test_a_release_that_is_not_sent_because_it_was_processed_is_closed_and_says_so(
    released: Workshop, processed: sqlite3.Connection
) -> None:
    processed.execute("insert into processed values ('a')")
    assert released.cycle()["suppressed"] == 1
    assert released.states() == {"suppressed": 1}
    assert review_rows(released) == [
        ("applied", "redeliver", "The processed_check says that it was processed. It was not sent.", True)
    ]
    assert released.audit() == []


def test_a_release_of_unknown_fate_that_was_processed_is_closed_and_says_so(
    released: Workshop, processed: sqlite3.Connection
) -> None:
    released.world.faults.lost_responses = 1
    assert released.cycle()["unknown"] == 1
    assert review_rows(released) == [("decided", "redeliver", None, False)]
    processed.execute("insert into processed values ('a')")
    assert released.cycle()["confirmed"] == 1
    why = "Nobody knew whether it was sent. The processed_check says that it was processed."
    assert review_rows(released) == [("applied", "redeliver", why, True)]
    assert released.audit() == []


def test_a_release_of_unknown_fate_that_comes_back_processed_is_closed_too(
    released: Workshop, processed: sqlite3.Connection
) -> None:
    released.world.faults.lost_responses = 1
    assert released.cycle()["unknown"] == 1
    released.consume(lambda _: KEY_ERROR)
    processed.execute("insert into processed values ('a')")
    report = released.cycle()
    assert (report["returned"], report["suppressed"], report["escalated"]) == (1, 1, 0)
    assert [row[0] for row in review_rows(released)] == ["applied"]
    assert released.audit() == []


def test_what_came_from_a_source_that_is_not_drained_any_more_is_never_presumed(tmp_path: Path) -> None:
    """It failed again, and lies where nobody looks."""
    mail = {"queue": "mail-dlq", "destination": "mail"}
    workshop = Workshop(tmp_path, sources=[{"queue": "orders-dlq"}, mail])
    for queue in ("mail", "mail-dlq"):
        workshop.world.create(queue, lease=timedelta(minutes=5))
    workshop.die("letter", queue="mail-dlq", origin="mail")
    workshop.die("order")
    assert workshop.cycle()["redelivered"] == 2
    for queue in ("mail", "orders"):
        workshop.consume(queue=queue)
    both, workshop.settings = (
        workshop.settings,
        workshop.configure(workshop.settings.database, sources=ROUTE["sources"]),
    )
    for _ in range(3):
        workshop.advance(minutes=30)
        workshop.cycle()
    assert workshop.query("select source, state from messages order by 1") == [
        ("mail-dlq", "sent"),
        ("orders-dlq", "presumed"),
    ]
    workshop.settings = both  # it may have lain there meanwhile, and be gone
    for _ in range(2):
        workshop.advance(minutes=30)
        workshop.cycle()
    assert workshop.states() == {"presumed": 1, "sent": 1}
    assert workshop.audit() == []
    workshop.ledger.close()
