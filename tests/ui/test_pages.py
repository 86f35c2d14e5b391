"""What the pages show, over a seeded ledger."""

import html
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError

from redrive.errors import BrokerUnavailable, LedgerUnavailable
from redrive.ledger import leases
from redrive.ledger.engine import Ledger
from redrive.settings import Broken
from redrive.stages import peek
from redrive_ui.rendering import PREFIX
from redrive_ui.request_context import Configuration
from tests import blank
from tests.crawling import follow_links
from tests.ui import seeding
from tests.ui.conftest import Site

FIRST = 1 << 20


def text_of(page: str) -> str:
    """A page without its tags, with its spaces collapsed."""
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page)))


class TestOverview:
    def test_tells_how_each_route_is(self, site: Site) -> None:
        page = text_of(site.page("/"))
        waiting = site.value("select count(*) from escalated_messages where route = 'orders'")
        assert f"{waiting:,} wait for a person" in page
        assert "True oldest age 1 d 1 h by ledger" in page
        assert "In the queues that it drains 412" in page
        assert "tripped 1" in page

    def test_says_that_a_route_is_paused_by_whom_and_why(self, site: Site) -> None:
        leases.pause(site.ledger, "payments", by="ben", reason="deploy of <b>1.5</b>", now=seeding.NOW)
        assert "by ben: deploy of &lt;b&gt;1.5&lt;/b&gt;" in site.page("/")

    def test_says_what_people_were_alarmed_about(self, site: Site) -> None:
        site.change(
            "insert into notifications (route, event, subject, facts, raised_at) values ('payments', 'slo_breach', '',"
            " '{}', :now)",
            now=seeding.NOW,
        )
        assert site.page("/").count("SLO missed") == 1
        assert "SLO missed" in site.page("/routes/payments")
        site.change("update notifications set resolved_at = :now", now=seeding.NOW)
        assert "SLO missed" not in site.page("/")

    def test_of_a_route_shows_who_is_stuck(self, site: Site) -> None:
        assert "get nowhere" not in site.page("/routes/orders")
        site.change(
            "insert into consumer_health (route, queue, consumer, observed_at, last_progress_at, unacked, progress,"
            " status) values ('orders', 'orders', 'worker/<b>7', :now, :now, 1204, 1, 'isolated')",
            now=seeding.NOW,
        )
        page = site.page("/routes/orders")
        assert "worker/&lt;b&gt;7" in page
        assert "1,204" in page

    def test_of_a_route_says_what_its_runs_began_with(self, site: Site) -> None:
        page = site.page("/routes/orders")
        assert f'<code title="SHA-256 {"5e3d0f1a" * 8}">5e3d0f1a</code>' in page
        site.change("update runs set configuration = null")
        assert "SHA-256" not in site.page("/routes/orders")

    def test_draws_what_comes_in_by_cause(self, site: Site) -> None:
        page = site.page("/")
        assert page.count('<svg class="chart"') == 2
        assert "missing data" in page
        assert re.search(r"<title>2026-11-\d\d \(UTC\): missing data \d+", page)
        assert ">UTC</text>" in page, "times are in the zone that is chosen in Airflow: days say that they are not"
        assert "Day (UTC)" in site.page("/routes/orders")
        assert "New messages per UTC day" in site.page("/groups")

    def test_of_an_empty_ledger_is_a_page_too(self, make_site: Callable[..., Site]) -> None:
        site = make_site()
        blank.upgrade(site.ledger, seeding.NOW)
        for path in ("/", "/groups", "/messages", "/routes/orders", "/plan/orders", "/find?word=x"):
            site.page(path)


def test_every_link_of_every_page_leads_somewhere(site: Site) -> None:
    assert len(follow_links(site.look)) > 60


class TestPlan:
    def test_shows_what_the_next_run_would_do(self, site: Site) -> None:
        site.change(
            "update messages set state = 'classified', plan = null where state = 'waiting' and route = 'orders'"
        )
        expected = site.value("select count(*) from messages where state = 'classified' and cause = 'throttled'")
        page = text_of(site.page("/plan/orders"))
        assert f"{expected} send later It backs off, with full jitter." in page

    def test_tells_nothing_as_due_in_the_past(self, site: Site) -> None:
        before = "'2026-11-20 09:00:00.000000'"
        site.change(f"update messages set next_attempt_at = {before} where state = 'waiting'")
        site.change(f"update breakers set cool_down_until = {before} where stage = 'tripped'")
        page = text_of(site.page("/plan/orders"))
        assert "It is planned already. now" in page
        assert " ago" not in page
        assert re.search(r"tripped \S+ 0 / 0 the next run", text_of(site.page("/routes/orders")))

    def test_shows_what_lies_in_the_dead_letter_queues_where_the_broker_lets_it_be_looked_at(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert "Look into" not in site.page("/plan/orders"), "this one doesn't"
        seen = {"source": "orders-dlq", "origin": "orders", "type": "Shop.Placed", "reason": "<b>why</b>"}
        seen |= {"cause": "oversized", "template": None, "messages": 3}
        monkeypatch.setattr(peek, "can_peek", lambda *_: True)
        monkeypatch.setattr(peek, "peek", lambda *_: [seen])
        assert "Look into its dead-letter queues" in text_of(site.page("/plan/orders"))
        page = site.page("/plan/orders?look=now")
        assert "3 Shop.Placed" in text_of(page)
        assert "<b>why" not in page

        def away(*_: object) -> None:
            raise BrokerUnavailable("nobody answers")

        monkeypatch.setattr(peek, "peek", away)
        assert "could not be looked at: nobody answers" in text_of(site.page("/plan/orders?look=now"))


class TestRedaction:
    def test_masks_what_the_route_names_everywhere(self, site: Site) -> None:
        route = site.settings.routes["orders"].model_copy(update={"redact": ("email", "$.customer.name")})
        site.settings = site.settings.model_copy(update={"routes": site.settings.routes | {"orders": route}})
        seeding.escalate(
            site.ledger, 7, "no account for kim@shop.example", '{"customer": {"name": "Kim Lee"}}', group_id=1,
            headers=[["from", "String", "kim@shop.example"]],
        )  # fmt: skip
        escalation = site.value("select escalation_id from escalated_messages where message_id = 7")
        for path in (
            "/messages/7", "/messages?text=account", "/groups/orders/1", "/messages.csv?text=account",
            f"/decide?ids={escalation}&action=edit", f"/decide?ids={escalation}&action=discard",
        ):  # fmt: skip
            page = site.page(path)
            assert "kim@shop.example" not in page, path
            assert "Kim Lee" not in page, path
        assert "[redacted" in site.page("/messages/7")

    def test_masks_more_where_the_route_is_no_longer_configured(self, site: Site) -> None:
        seeding.escalate(site.ledger, 7, "no account for kim@shop.example", "{}", route="old")
        assert "kim@shop.example" not in site.page("/messages/7")


class TestSize:
    """Each page takes less than 0.4 s on a machine that does nothing else. Here it is three times that of a processor,
    and on PostgreSQL, which works elsewhere, more of the clock: tests share their machine."""

    def test_a_hundred_thousand_open_messages_are_no_burden(
        self, make_site: Callable[..., Site], ledger_url: str
    ) -> None:
        site = make_site(ledger_url)
        seeding.crowd(site.ledger, 100_000)
        for path in (
            "/", "/groups", "/groups?order=oldest", "/groups/orders/1000", "/messages?after=50000",
            "/messages?text=nothing+like+this", "/messages?text=gone&past=week", "/messages?header=tenant%3Dred",
            "/routes/orders",
            "/find?word=nothing", "/find?word=crowd-77", "/find?word=order-", "/find?state=escalated",
            "/find?past=hour", "/find?text=is+gone", "/find?header=tenant%3Dblue",
            "/decide?route=orders&action=discard", "/decide?route=orders&action=redeliver&text=gone",
            "/decide?route=orders&action=discard&header=tenant%3Dred",
            "/audit", "/audit?machine=1&group=1000", "/standing",
            "/standing/new?route=orders&group=1000",
        ):  # fmt: skip
            for tries_left in (2, 1, 0):  # a page that is slow is slow each time; a busy machine is not
                began, worked = time.monotonic(), time.process_time()
                page = site.page(path)
                worked, took = time.process_time() - worked, time.monotonic() - began
                if worked < 1.2 and took < 20:
                    break
                assert tries_left, f"{path}: {worked:.1f} s of a processor, {took:.1f} s of the clock"
            assert len(page) < 100_000, path
        assert "<b>100,000</b> messages" in site.page("/messages")

    def test_counting_failures_reads_no_payload(self, make_site: Callable[..., Site]) -> None:
        site = make_site()
        seeding.crowd(site.ledger, 100)
        counted = (
            "select route, group_id, min(coalesce(first_enqueued_at, escalated_at)), min(escalation_id) from"
            " escalated_messages where status in ('open', 'decided') and route in ('orders') group by route, group_id"
        )
        plan = " ".join(str(row) for row in site.rows(f"explain query plan {counted}"))
        assert "USING COVERING INDEX" in plan


@pytest.fixture
def both(make_site: Callable[..., Site], ledger_url: str) -> Site:
    """The page over a few days, on SQLite and on PostgreSQL."""
    site = make_site(ledger_url)
    seeding.seed(site.ledger, per_day=5)
    return site


def test_the_page_says_of_a_route_what_status_says_of_it(both: Site) -> None:
    """Nothing stands still in silence: what is staged, a run that died, a destination that is stopped, a depth that
    nobody tells."""
    before = text_of(both.page("/"))
    assert not any(said in before for said in ("staged, not yet", "destination stopped", "at least", "running"))
    later = seeding.NOW + seeding.HOUR
    for number, state, copies in ((7001, "recorded", 3), (7002, "settled", 40), (7003, "abandoned", 7)):
        both.change(
            "insert into staging_batches (batch_id, route, source, kind, shard, run_id, fence, state, uri, copies,"
            " opened_at) values (:id, 'orders', 'orders-dlq', 'dead_letter', 0, 'r', 1, :state, :uri, :copies, :now)",
            id=number, state=state, uri=f"{number}.parquet", copies=copies, now=seeding.NOW,
        )  # fmt: skip
    both.change(
        "insert into breakers (route, destination, stage, stage_at, began_at, cool_down_until, reason, stage_slice,"
        " began_slice) values ('orders', 'orders', 'tripped', :now, :now, :later_at, '3 groups came back', 0, 0)",
        now=seeding.NOW,
        later_at=later,
    )
    both.change(
        "update route_state set run_id = 'r-1', holder = 'ana@box', lease_until = :later_at, paused_at = :now,"
        " paused_by = 'ana', pause_reason = 'deploy' where route = 'orders'",
        later_at=later,
        now=seeding.NOW,
    )
    both.change("update queue_observations set visible = null where role = 'source' and route = 'orders'")
    page = text_of(both.page("/"))
    assert "and 43 staged, not yet classified" in page
    assert "destination stopped" in page
    assert "running" in page
    assert "In the queues that it drains not told" in page
    page = text_of(both.page("/routes/orders"))
    assert "staged, not yet classified 43" in page
    assert "A run holds this route: ana@box" in page
    waiting = both.value("select count(*) from messages where state = 'waiting' and destination = 'orders'")
    assert f"orders tripped {waiting} 0 / 0 in 1 h 3 groups came back" in page
    for action, told in (("redeliver", True), ("discard", False)):
        page = text_of(both.page(f"/decide?route=orders&action={action}"))
        assert (
            "orders is paused, so nothing of it is sent until redrive resume orders (paused by ana: deploy)" in page
        ) is told
    both.change("update route_state set lease_until = :before_at", before_at=seeding.NOW - seeding.HOUR)
    both.change(
        "insert into queue_observations (route, run_id, queue, role, observed_at, visible, oldest_age_method,"
        " oldest_visible_age_method) values ('orders', 'r', 'orders-more', 'source', :now, 5, 'unknown', 'unknown')",
        now=seeding.NOW,
    )
    page = text_of(both.page("/"))
    assert "running" not in page
    assert "In the queues that it drains at least 5" in page
    assert "A run held this route and is gone: ana@box" in text_of(both.page("/routes/orders"))
    both.settings.routes.pop("orders")
    page = text_of(both.page("/decide?route=orders&action=discard"))
    assert "orders is not in the configuration, so nobody carries this out" in page


def test_a_destination_that_is_tried_again_says_how_many_of_its_few_went(both: Site) -> None:
    both.change(
        "insert into breakers (route, destination, stage, allowed, stage_at, began_at, reason) values ('orders',"
        " 'orders', 'half_open', 20, :now, :now, 'Its cool-down is over')",
        now=seeding.NOW,
    )
    waiting = both.value("select count(*) from messages where state = 'waiting' and destination = 'orders'")
    page = text_of(both.page("/routes/orders"))
    assert f"orders half open {waiting} 0 / 0 0 of 20 sent Its cool-down is over" in page
    assert "destination stopped" in text_of(both.page("/"))


@pytest.mark.server
def test_every_page_works_on_postgresql(make_site: Callable[..., Site], postgres_database: str) -> None:
    site = make_site(postgres_database)
    seeding.seed(site.ledger, per_day=10)
    escalation = site.value("select min(escalation_id) from escalated_messages")
    for path in (
        "/", "/routes/orders", "/plan/orders", "/groups", "/groups?order=oldest&cause=missing_data", "/groups/orders/1",
        "/groups/orders/1?text=SKU&header=tenant%3Dblue&since=2026-11-01&queue=orders-dlq&status=all",
        "/messages", "/messages?order=oldest&after=3", f"/messages/{FIRST}", "/find?word=order-1", "/messages.csv",
        "/decide?route=orders&action=redeliver", f"/decide?ids={escalation}&action=edit",
        "/decide?route=orders&action=approve", "/groups?after=3~orders~1", "/groups?tab=progress", "/groups?tab=done",
        "/decide?failures=orders~1&failures=orders~2&action=discard",
        "/results?decided_by=Ana&decided_at=2026-11-21T09:00",
    ):  # fmt: skip
        site.page(path)
    assert site.decide("redeliver", filter={"route": "orders", "group": "1"}).json()["count"] > 5
    site.doors.name = "Ben"
    assert site.decide("approve", filter={"route": "orders", "group": "1"}).json()["count"] > 5
    assert site.decide("withdraw", filter={"route": "orders", "group": "1"}).json()["count"] > 5
    assert site.value("select count(*) from audit_events where actor = 'Ana Kováč' and action = 'decide_redeliver'") > 5


def test_links_hold_where_airflow_lives_below_a_path(site: Site) -> None:
    below = TestClient(site.client.app, base_url="http://airflow.test", root_path="/tools/airflow")
    page = below.get(f"/tools/airflow{PREFIX}/messages/{FIRST + 1}").text
    links = set(re.findall(r'(?:href|src|action)="([^"#]+)"', page))
    assert all(link.startswith("/tools/airflow/") for link in links), links
    assert any(link.startswith("/tools/airflow/dags/redrive_orders/runs/") for link in links)


def test_of_a_route_that_is_left_out_only_that_is_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    found = site.app.state.redrive.load()
    settings = found.model_copy(update={"routes": {n: one for n, one in found.routes.items() if n != "orders"}})
    settings._broken = {"orders": Broken("routes.orders.redact.0: what a person wrote", found.route("orders"))}
    monkeypatch.setattr(site.app.state.redrive, "load", lambda: settings)
    assert "Route orders is left out" in site.page("/")
    assert site.get("/messages?status=all").text.count("/routes/orders") == 0
    for path in ("/routes/orders", f"/messages/{FIRST + 1}", "/groups?route=orders"):
        answer = site.get(path)
        assert "what a person wrote" not in answer.text
        assert "order-1" not in answer.text
    assert site.get("/routes/orders").status_code == 503
    assert "redrive doctor orders" in site.get("/routes/orders").text


def test_a_changed_configuration_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "redrive.yaml"
    monkeypatch.setenv("REDRIVE_CONFIG", str(file))
    text = seeding.CONFIG.format(folder=tmp_path, database=f"sqlite:///{tmp_path}/redrive.db")
    file.write_text(text)
    configuration = Configuration()
    first = configuration.load()
    assert configuration.load() is first
    file.write_text(text.replace("title: Orders of the shop", "title: Something else"))
    assert configuration.load().routes["orders"].title == "Something else"


def test_what_went_wrong_inside_stays_in_the_log(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, status in (
        (RuntimeError("db.internal:5432"), 500),
        (LedgerUnavailable("db.internal:5432"), 503),
        (OperationalError("select 1", {}, Exception("db.internal:5432")), 503),
    ):

        def fail(*_: object, problem: Exception = error) -> None:
            raise problem

        monkeypatch.setattr("redrive_ui.route_queries.states", fail)
        answer = site.get("/")
        assert answer.status_code == status
        assert "db.internal" not in answer.text
        assert "content-security-policy" in answer.headers
        assert 'class="top"' in answer.text, "in the page's own frame"


def test_a_ledger_of_another_version_is_told_and_not_touched(make_site: Callable[..., Site]) -> None:
    site = make_site()
    answer = site.get("/")
    assert answer.status_code == 503
    assert "redrive db upgrade" in answer.text
    assert isinstance(site.ledger, Ledger)
