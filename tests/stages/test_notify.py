"""Notifications: people are told once per event, after it is recorded, and never at the cost of a run."""

import json
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from redrive.brokers.base import Depth
from redrive.brokers.memory import MemoryBroker
from redrive.errors import BalanceBroken, PermissionRefused
from redrive.ledger import leases
from redrive.ledger.account import notifications
from redrive.ledger.delivery import observations
from redrive.ledger.delivery.observations import Observation
from redrive.message import DeadLetter
from redrive.notify import channels
from redrive.settings import parse
from redrive.stages import notify, pipeline, rescue
from redrive.stages.context import Context
from tests import query_plans
from tests.probe import numbers
from tests.workshop import KEY_ERROR, REFUSED, ROUTE, Workshop


class Inbox:
    """A webhook on loopback; ``status`` is what it answers."""

    def __init__(self) -> None:
        self.status = 200
        self.got: list[dict[str, Any]] = []
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                inbox.got.append({"path": self.path, "headers": dict(self.headers), **json.loads(body)})
                self.send_response(inbox.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def connection(self) -> str:
        return json.dumps({"conn_type": "http", "host": "127.0.0.1", "port": self.server.server_port})

    def events(self) -> list[str]:
        return [one["event"] for one in self.got]


@pytest.fixture
def inbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[Inbox]:
    inbox = Inbox()
    monkeypatch.setenv("AIRFLOW_CONN_OPS", inbox.connection)
    yield inbox
    inbox.server.shutdown()
    inbox.server.server_close()


TO_INBOX = {"notify": [{"connection": "ops", "path": "/alerts"}], "redact": ["email"]}


@pytest.fixture
def told(tmp_path: Path, inbox: Inbox) -> Iterator[Workshop]:
    """A workshop of which somebody is told."""
    workshop = Workshop(tmp_path, **TO_INBOX)
    yield workshop
    workshop.ledger.close()


@pytest.fixture
def told_on_both(ledger_url: str, tmp_path: Path, inbox: Inbox) -> Iterator[Workshop]:
    """The same, on SQLite and on PostgreSQL."""
    workshop = Workshop(tmp_path, ledger_url, **TO_INBOX)
    yield workshop
    workshop.ledger.close()


def test_a_new_group_is_told_once_and_again_when_it_was_over(told_on_both: Workshop, inbox: Inbox) -> None:
    told_on_both.die("a ana@example.org", "b", error=KEY_ERROR)
    told_on_both.cycle()
    told_on_both.die("c", error=KEY_ERROR)
    told_on_both.cycle()
    (one,) = inbox.got
    assert one["path"] == "/alerts"
    assert one["title"] == "orders: failure group 1 (application_bug) waits for a decision"
    assert one["events"][0]["facts"] | {"group_id": 1} == {
        "cause": "application_bug",
        "group_id": 1,
        "messages": 2,
        "suggested_decision": "redeliver",
    }
    assert one["headers"]["Idempotency-Key"] == one["id"] == one["events"][0]["id"]
    assert not {"sku", "ana@example.org", "shop.py"} & set(json.dumps(one).split()), "no texts of messages"
    with told_on_both.ledger.write() as connection:
        connection.exec_driver_sql("update escalated_messages set decision = 'discard', decided_by = 'ana'")
    told_on_both.review()
    assert told_on_both.query("select resolved_at is not null from notifications") == [(True,)]
    told_on_both.die("d", error=KEY_ERROR)
    told_on_both.cycle()
    assert inbox.events() == ["new_group"] * 2, "archived, and it keeps failing"
    assert len({one["id"] for one in inbox.got}) == 2


def test_a_decision_that_waits_for_a_second_person_is_told(ledger_url: str, tmp_path: Path, inbox: Inbox) -> None:
    shop = Workshop(tmp_path, ledger_url, **TO_INBOX, approvals=2)
    shop.die("a", "b", "c", error=KEY_ERROR)
    assert "to_approve" not in shop.cycle()
    shop.change("update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    report = shop.cycle()
    assert (report["to_decide"], report["to_approve"]) == (0, 3)
    shop.cycle()
    assert [one["title"] for one in inbox.got] == [
        "orders: failure group 1 (application_bug) waits for a decision",
        "orders: failure group 1 (application_bug) waits for a second person",
    ]
    assert inbox.got[1]["events"][0]["facts"] == {
        "cause": "application_bug", "decided_by": "ana", "decision": "redeliver", "group_id": 1, "messages": 3,
    }  # fmt: skip
    open_ones = "select subject from notifications where resolved_at is null"
    assert shop.query(open_ones) == [("1 to approve",)]
    shop.change("update escalated_messages set approved_by = 'ben' where payload <> 'a'")
    assert shop.cycle()["to_approve"] == 1
    assert shop.query(open_ones) == [("1 to approve",)]
    shop.change("update escalated_messages set approved_by = 'ben' where payload = 'a'")
    assert "to_approve" not in shop.cycle()
    assert (shop.query(open_ones), len(inbox.got)) == ([], 2)
    shop.ledger.close()


def test_who_is_listed_twice_is_told_once_of_what_either_entry_names(tmp_path: Path, inbox: Inbox) -> None:
    shop = Workshop(
        tmp_path, notify=["ops", *({"connection": "ops", "events": [one]} for one in ("new_group", "route_paused"))]
    )
    shop.die("a", error=KEY_ERROR)
    shop.cycle()
    leases.pause(shop.ledger, "orders", by="ana", reason="", now=shop.now())
    notify.paused(shop.settings, "orders", shop.now())
    assert inbox.events() == ["new_group", "route_paused"]
    shop.ledger.close()


def test_a_notification_leads_to_the_failure(told: Workshop, inbox: Inbox) -> None:
    told.settings = told.settings.model_copy(update={"page": "https://airflow.example.org/af"})
    told.die("a", error=KEY_ERROR)
    told.cycle()
    (one,) = inbox.got
    link = "https://airflow.example.org/af/plugin/redrive/redrive/groups/orders/1"
    assert one["text"].endswith(f"\n{link}")
    assert one["events"][0]["link"] == link


def test_a_breach_of_the_slo_is_told_once_per_breach(told_on_both: Workshop, inbox: Inbox) -> None:
    told_on_both.die("a", error=REFUSED)
    told_on_both.advance(hours=25)
    run = told_on_both.begin()
    counts = dict(told_on_both.stages(run))
    pipeline.finish(told_on_both.settings, run, "succeeded", told_on_both.now)
    assert "late" not in counts["observe"], "what is still in the queue has not been seen"
    run = told_on_both.begin()
    assert pipeline.observe(told_on_both.settings, run, **told_on_both.options())["late"] == 1
    assert pipeline.observe(told_on_both.settings, run, **told_on_both.options())["late"] == 1
    assert inbox.events() == ["slo_breach"]
    assert "SLO of 1d" in inbox.got[0]["title"] or "SLO of 24h" in inbox.got[0]["title"]
    with told_on_both.ledger.write() as connection:
        connection.exec_driver_sql("update messages set state = 'presumed'")
    assert "late" not in pipeline.observe(told_on_both.settings, run, **told_on_both.options())
    with told_on_both.ledger.write() as connection:
        connection.exec_driver_sql("update messages set state = 'sent'")
    pipeline.observe(told_on_both.settings, run, **told_on_both.options())
    assert inbox.events() == ["slo_breach"] * 2, "another breach"


def test_people_are_told_of_a_queue_that_holds_too_much(tmp_path: Path, inbox: Inbox) -> None:
    shop = Workshop(tmp_path, **TO_INBOX, most_messages=2)

    def look() -> dict[str, Any]:
        run = shop.begin()
        counts = pipeline.observe(shop.settings, run, **shop.options())
        pipeline.finish(shop.settings, run, "succeeded", shop.now)
        return counts

    shop.die("a", "b", error=REFUSED)
    assert ("deep" in look(), inbox.events()) == (False, [])
    shop.die("c", error=REFUSED)
    assert (look()["deep"], look()["source_depth"]) == (1, 3)
    assert inbox.events() == ["slo_breach"], "once"
    assert inbox.got[0]["title"] == "orders: orders-dlq holds 3 messages, more than 2"
    received = shop.broker.receive("orders-dlq", limit=1, wait=timedelta(0), lease=timedelta(minutes=1))
    shop.broker.settle("orders-dlq", [one.receipt for one in received])
    look()
    assert shop.query("select count(*) from notifications where resolved_at is null") == [(0,)]
    shop.ledger.close()


class Refusing(MemoryBroker):
    """One queue of which may not be looked at."""

    refused = ""

    def depth(self, queue: str) -> Depth:
        if queue == self.refused:
            raise PermissionRefused(f"{queue}: not now")
        return super().depth(queue)


def test_a_breach_is_not_over_because_its_queue_can_not_be_looked_at(
    ledger_url: str, tmp_path: Path, inbox: Inbox
) -> None:
    sources = [*ROUTE["sources"], {"queue": "pay-dlq", "destination": "pay"}]
    shop = Workshop(tmp_path, ledger_url, **TO_INBOX, most_messages=5, sources=sources)
    broker = shop.broker = Refusing(shop.world)
    shop.world.create("pay-dlq")
    shop.world.create("pay")
    shop.world.put("pay", *[DeadLetter("", b"x", ())] * 10)
    shop.cycle()
    for refused in ("pay", "", "pay"):
        broker.refused = refused
        shop.advance(minutes=10)
        run = shop.begin()
        counts = pipeline.observe(shop.settings, run, **shop.options())
        pipeline.finish(shop.settings, run, "succeeded", shop.now)
        assert counts.get("deep", 0) == (0 if refused else 1)
        assert shop.query("select subject, resolved_at from notifications") == [("depth of pay", None)]
    assert inbox.events() == ["slo_breach"]
    broker.refused = ""
    shop.consume(queue="pay")
    shop.advance(minutes=10)
    shop.cycle()
    assert shop.query("select count(*) from notifications where resolved_at is null") == [(0,)]
    shop.ledger.close()


def test_a_breach_is_not_over_because_nobody_may_look_at_an_age(ledger_url: str, tmp_path: Path, inbox: Inbox) -> None:
    """Looks are rationed, and of a queue of which something left a remembered age says nothing."""
    shop = Workshop(tmp_path, ledger_url, **TO_INBOX, ages={"sample": 10}, slo="2h")
    open_ones = []
    for age in (3 * 3600.0, None, 4 * 3600.0, None, 60.0):
        shop.advance(minutes=10)
        run = shop.begin()
        method = "sample" if age else "unknown"
        seen = Observation("orders", "destination", 5, 0, 0, oldest_age_seconds=age, oldest_age_method=method)
        with Context(shop.settings, run, clock=shop.now, broker=shop.broker) as context:
            observations.observe(shop.ledger, context.lease, [seen], shop.now())
            notify.after("observe", context, {"aged": 1} if age and age > 7200 else {})
        pipeline.finish(shop.settings, run, "succeeded", shop.now)
        open_ones.append(shop.query("select count(*) from notifications where resolved_at is null")[0][0])
    assert (open_ones, inbox.events()) == ([1, 1, 1, 1, 0], ["slo_breach"])
    shop.ledger.close()


def test_how_long_an_age_is_looked_for_does_not_rest_on_how_often_a_queue_was_ever_looked_at(tmp_path: Path) -> None:
    """Looks are kept for ever, and of a queue that is never empty none may know an age: all were gone through."""

    def work(days: int) -> int:
        (folder := tmp_path / str(days)).mkdir()
        shop = Workshop(folder)
        shop.cycle()
        shop.change(
            "insert into queue_observations (route, queue, role, observed_at, visible, in_flight, delayed,"
            " oldest_age_method, oldest_visible_age_method, system) select 'orders', 'pay', 'destination',"
            " strftime('%Y-%m-%d %H:%M:%S.000000', :now, '-' || (:most - n) || ' hours'), 5, 0, 0, 'unknown',"
            " 'unknown', 'memory:memory' from"
            f" ({numbers(days * 24)} select n from n)",
            now=shop.now(),
            most=days * 24,
        )
        with query_plans.counted() as work, shop.ledger.read() as connection:
            assert notifications.aged(connection, "orders", seconds=60) == {}
        shop.ledger.close()
        return work.hundreds

    assert work(1000) < 2 * work(10)


def test_an_age_is_that_of_the_newest_look_of_a_day_that_knew_one(ledger_url: str, tmp_path: Path) -> None:
    shop = Workshop(tmp_path, ledger_url)
    shop.cycle()

    def look(age: float | None, system: str = "memory:memory") -> list[str]:
        shop.advance(hours=9)
        shop.change(
            "insert into queue_observations (route, queue, role, observed_at, visible, in_flight, delayed,"
            " oldest_age_seconds, oldest_age_method, oldest_visible_age_method, system) values ('orders', 'pay',"
            " 'destination', :now, 5, 0, 0, :age, :method, 'unknown', :system)",
            now=shop.now(),
            age=age,
            method="sample" if age else "unknown",
            system=system,
        )
        with shop.ledger.read() as connection:
            return list(notifications.aged(connection, "orders", seconds=3600))

    assert [look(age) for age in (None, 7200, None, None, None)] == [[], ["pay"], ["pay"], ["pay"], []]
    assert [look(7200), look(60), look(None)] == [["pay"], [], []]
    assert [look(7200), look(None, "memory:other"), look(None, "memory:other")] == [["pay"]] * 3
    shop.ledger.close()


def test_a_pause_is_told_with_its_reason(told: Workshop, inbox: Inbox) -> None:
    leases.pause(told.ledger, "orders", by="ana", reason="call ben@example.org", now=told.now())
    notify.paused(told.settings, "orders", told.now())
    notify.paused(told.settings, "orders", told.now())
    leases.resume(told.ledger, "orders", by="ana", now=told.now())
    notify.paused(told.settings, "orders", told.now())
    (one,) = inbox.got
    assert one["title"] == "orders: paused by ana"
    assert "call [redacted email]" in one["text"]
    told.advance(seconds=1)
    leases.pause(told.ledger, "orders", by="ana", reason="again", now=told.now())
    notify.paused(told.settings, "orders", told.now())
    assert inbox.events() == ["route_paused"] * 2


def test_a_pause_of_the_machines_own_is_told_by_the_run_that_made_it(told: Workshop, inbox: Inbox) -> None:
    run = told.begin()
    leases.pause(told.ledger, "orders", by="redrive", reason="most groups are held", now=told.now())
    pipeline.plan(told.settings, run, **told.options())
    assert [one["title"] for one in inbox.got] == ["orders: paused by redrive"]


def test_messages_near_their_expiry_are_told_per_queue(told: Workshop, inbox: Inbox) -> None:
    told.cycle()
    risk = rescue.Risk("orders", "orders-dlq", timedelta(hours=60), timedelta(days=4))
    for _ in range(2):
        notify.expiring(told.settings, [risk], told.now())
    (one,) = inbox.got
    assert one["events"][0]["facts"] == {"queue": "orders-dlq", "hours": 60, "retention": "4d"}
    told.cycle()
    assert told.query("select resolved_at is not null from notifications") == [(True,)], "the queue was emptied"


def test_a_balance_that_breaks_is_told_although_the_run_fails(told: Workshop, inbox: Inbox) -> None:
    told.die("a", error=REFUSED)
    told.cycle()
    with told.ledger.write() as connection:
        connection.exec_driver_sql("update staging_batches set copies = copies + 1")
    run = told.begin()
    with pytest.raises(BalanceBroken):
        pipeline.report(told.settings, run, **told.options())
    assert inbox.events() == ["balance_broken"]
    assert told.audit()
    assert inbox.events() == ["balance_broken"], "the audit found it too, but it is one event"
    with told.ledger.write() as connection:
        connection.exec_driver_sql("update staging_batches set copies = copies - 1")
    pipeline.report(told.settings, run, **told.options())
    assert told.query("select subject from notifications where resolved_at is null") == [("audit",)]
    assert told.audit() == []
    assert told.query("select subject from notifications where resolved_at is null") == []
    with told.ledger.write() as connection:
        connection.exec_driver_sql("update staging_batches set copies = copies + 1")
    assert told.audit()
    assert inbox.events() == ["balance_broken"] * 2, "it was over, and breaks again"


def test_an_audit_tells_the_route_that_it_is_about_and_no_other(
    told_on_both: Workshop, inbox: Inbox, tmp_path: Path
) -> None:
    told = told_on_both
    told.die("a", "b", error=KEY_ERROR)
    told.cycle()
    inbox.got.clear()
    route = ROUTE | TO_INBOX
    text = yaml.safe_dump(
        {
            "database": told.settings.database,
            "staging": told.settings.staging,
            "routes": {name: route | {"connection": name} for name in ("orders", "orders_eu", "eu")},
        }
    )
    told.settings = parse(text, env=os.environ, root=tmp_path)
    with told.ledger.write() as connection:
        connection.exec_driver_sql("update escalated_messages set route = 'orders_eu'")
        connection.exec_driver_sql(
            "update escalated_messages set status = 'applied', decision = 'discard', decided_by = 'ana'"
            " where payload = 'a'"
        )
        connection.exec_driver_sql("update messages set route = 'orders_eu'")
        connection.exec_driver_sql("update staging_batches set route = 'orders_eu', uri = 'of route orders: gone'")
    for path in Path(told.settings.staging).rglob("*.parquet"):
        path.unlink()  # or the audit would tell orders of a file without a row
    problems = told.audit()
    assert any("without an open review row" in one for one in problems), "counted over all routes"
    assert {one["route"] for one in inbox.got} == {"orders_eu"}
    assert inbox.got[0]["events"][0]["facts"]["problems"] == len(problems) > 1


def test_what_can_not_be_told_fails_no_run_and_is_told_later(told_on_both: Workshop, inbox: Inbox) -> None:
    inbox.status = 503
    told_on_both.die("a", error=KEY_ERROR)
    told_on_both.cycle()
    assert told_on_both.states() == {"escalated": 1}
    assert told_on_both.query("select tries, sent_at, problem from notification_sends") == [
        (1, None, "connection ops: it answered 503")
    ]
    told_on_both.cycle()
    assert len(inbox.got) == 1, "not at once again"
    inbox.status = 200
    told_on_both.advance(minutes=5)
    told_on_both.cycle()
    assert inbox.events() == ["new_group"] * 2
    assert len({one["id"] for one in inbox.got}) == 1, "it is the same event"
    told_on_both.advance(minutes=60)
    told_on_both.cycle()
    assert len(inbox.got) == 2


def test_nothing_that_goes_wrong_with_it_fails_a_run(
    told: Workshop, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    told.die("a", error=KEY_ERROR)
    monkeypatch.setattr(notifications, "reconcile", broken)
    told.cycle()
    monkeypatch.undo()
    monkeypatch.setenv("AIRFLOW_CONN_OPS", inbox.connection)
    told.cycle()
    assert inbox.events() == ["new_group"], "the next run finds it"


def test_a_crash_between_telling_and_marking_tells_twice_with_one_id(
    told: Workshop, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    told.die("a", error=KEY_ERROR)
    with monkeypatch.context() as patched:
        patched.setattr(notifications, "sent", killed)
        with pytest.raises(KeyboardInterrupt):
            told.cycle()
    told.advance(minutes=20)
    told.cycle()
    assert [one["id"] for one in inbox.got] == [inbox.got[0]["id"]] * 2


def test_many_that_come_together_are_one_message(told: Workshop, inbox: Inbox) -> None:
    found = {str(n): {"group_id": n, "cause": "application_bug", "messages": n, "suggested_decision": "redeliver"}
             for n in range(1, 8)}  # fmt: skip
    teller = notify.RouteNotifications(told.settings, told.ledger, "orders", told.now())
    notifications.reconcile(
        told.ledger, "orders", "new_group", found, targets=["connection ops/alerts"], now=told.now()
    )
    teller.send()
    (one,) = inbox.got
    assert one["title"] == "orders: 7 times new group"
    assert len(one["events"]) == 7
    assert "failure group 3 (application_bug)" in one["text"]


def test_who_knows_repeats_by_their_id_misses_nothing_that_came_since(told_on_both: Workshop, inbox: Inbox) -> None:
    """The answer to the first one is lost: it was taken, and is told again together with what began since."""
    seen: dict[str, set[str]] = {}

    def looked(groups: range) -> None:
        found = {str(n): {"group_id": n, "cause": "application_bug", "messages": n, "suggested_decision": "redeliver"}
                 for n in groups}  # fmt: skip
        teller = notify.RouteNotifications(told_on_both.settings, told_on_both.ledger, "orders", told_on_both.now())
        notifications.reconcile(
            told_on_both.ledger, "orders", "new_group", found, targets=["connection ops/alerts"],
            now=told_on_both.now(),
        )  # fmt: skip
        teller.send()
        for one in inbox.got:
            assert one["id"] == one["headers"]["Idempotency-Key"]
            seen.setdefault(one["id"], {each["subject"] for each in one["events"]})

    for begun in (2, 6, 9):
        inbox.status = 503
        looked(range(1, begun))
        told_on_both.advance(hours=2)
    looked(range(1, 9))
    inbox.status = 200
    told_on_both.advance(hours=2)
    looked(range(1, 9))
    assert set().union(*seen.values()) == {str(n) for n in range(1, 9)}
    assert len(inbox.got) - len(seen) == 2, "what is told again as it was has the id that it had"


def test_what_was_over_before_anybody_could_be_told_is_told_so(told_on_both: Workshop, inbox: Inbox) -> None:
    inbox.status = 503
    leases.pause(told_on_both.ledger, "orders", by="ana", reason="deploy", now=told_on_both.now())
    notify.paused(told_on_both.settings, "orders", told_on_both.now())
    assert "resolved_at" not in inbox.got[0]["events"][0]
    told_on_both.advance(minutes=1)
    over = told_on_both.now()
    leases.resume(told_on_both.ledger, "orders", by="ana", now=over)
    notify.paused(told_on_both.settings, "orders", over)
    inbox.status = 200
    told_on_both.advance(minutes=5)
    told_on_both.cycle()
    assert inbox.events() == ["route_paused"] * 2
    assert inbox.got[1]["title"] == "orders: paused by ana (over)"
    assert inbox.got[1]["text"].startswith(f"It was over at {over.isoformat(timespec='seconds')}, before you could")
    assert inbox.got[1]["events"][0]["resolved_at"] == over.isoformat(timespec="seconds")
    assert inbox.got[0]["id"] == inbox.got[1]["id"]


def test_two_processes_that_look_at_once_tell_once(told_on_both: Workshop, inbox: Inbox) -> None:
    leases.pause(told_on_both.ledger, "orders", by="ana", reason="x", now=told_on_both.now())
    start = threading.Barrier(4)

    def look() -> None:
        start.wait()
        notify.paused(told_on_both.settings, "orders", told_on_both.now())

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert inbox.events() == ["route_paused"]


def test_who_is_told_of_what_is_configured(tmp_path: Path, inbox: Inbox) -> None:
    workshop = Workshop(
        tmp_path,
        notify=[
            {"connection": "ops", "events": ["route_paused"]},
            {"notifier": "nowhere.Notifier", "arguments": {"text": "{{ redrive.title }}"}},
            "missing",
        ],
    )
    workshop.die("a", error=KEY_ERROR)
    workshop.cycle()
    assert inbox.got == []
    states = dict(workshop.query("select target, problem from notification_sends"))
    assert len(states) == 2
    assert "connection missing is not defined" in states["connection missing"]
    ((tries, waits),) = workshop.query(
        "select tries, next_try_at is not null from notification_sends where target like 'notifier%'"
    )
    assert (tries, waits) == (0, True), "it waits for a task of Airflow"
    workshop.settings = workshop.configure(str(workshop.ledger.url.render_as_string(hide_password=False)))
    workshop.advance(hours=2)
    workshop.cycle()
    assert (
        workshop.query("select problem from notification_sends where next_try_at is null")
        == [("the route no longer names it",)] * 2
    )
    workshop.ledger.close()


def test_a_target_that_fails_as_nobody_expected_keeps_the_others_from_nothing(
    tmp_path: Path, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = Workshop(tmp_path, notify=["odd", {"connection": "ops"}])
    send = channels.send

    def odd(said: Any, target: Any) -> None:
        if target.connection == "odd":
            raise LookupError("unknown encoding: secret")
        send(said, target)

    monkeypatch.setattr(channels, "send", odd)
    workshop.die("a", error=KEY_ERROR)
    workshop.cycle()
    assert inbox.events() == ["new_group"]
    rows = workshop.query(
        "select problem, tries, next_try_at is not null from notification_sends where sent_at is null"
    )
    assert rows == [("connection odd: LookupError", 1, True)], "and it is tried again"
    workshop.ledger.close()


def test_what_only_airflow_can_tell_keeps_no_other_target_from_anything_and_is_given_up_as_any(
    tmp_path: Path, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = Workshop(tmp_path, notify=["away", {"connection": "ops"}])
    send = channels.send

    def away(said: Any, target: Any) -> None:
        if target.connection == "away":
            raise channels.NeedsAirflow
        send(said, target)

    monkeypatch.setattr(channels, "send", away)
    workshop.die("a", error=KEY_ERROR)
    workshop.cycle()
    assert inbox.events() == ["new_group"]
    with workshop.ledger.write() as connection:
        connection.exec_driver_sql(
            "update notification_sends set sent_at = null, next_try_at = raised_at from notifications"
            " where notifications.notification_id = notification_sends.notification_id"
        )
    with workshop.ledger.read() as connection:
        due = notifications.due(connection, "orders", workshop.now(), limit=1)
    assert [one.target for one in due] == ["connection away", "connection ops"]
    workshop.advance(hours=25)
    workshop.cycle()
    gone = workshop.query("select problem from notification_sends where next_try_at is null and sent_at is null")
    assert gone == [("no task of Airflow came by, which alone can tell it",)]
    workshop.ledger.close()


def test_what_is_no_news_any_more_is_given_up(told: Workshop, inbox: Inbox) -> None:
    inbox.status = 500
    told.die("a", error=KEY_ERROR)
    told.cycle()
    told.advance(hours=25)
    run = told.begin()
    pipeline.escalate(told.settings, run, **told.options())
    told.advance(hours=25)
    pipeline.escalate(told.settings, run, **told.options())
    assert len(inbox.got) == 2
    assert told.query("select next_try_at, sent_at from notification_sends") == [(None, None)]


def test_words_are_short_and_of_one_line_whatever_the_facts_are() -> None:
    hostile = "x\r\nBcc: everybody@example.org\r\n\r\n" + "y" * 10_000
    event = channels.Event("i", "route_paused", "orders", "", "now", {"by": hostile, "reason": hostile})
    said = channels.notification([event])
    assert "\n" not in said.title
    assert "\r" not in said.title
    assert len(said.title) <= 200
    assert len(said.text) <= 2000
