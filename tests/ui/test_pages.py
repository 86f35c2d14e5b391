"""What the pages show, over a seeded ledger."""

import html
import re
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError

from redrive.classification import causes
from redrive.errors import BrokerUnavailable, LedgerUnavailable
from redrive.ledger import leases
from redrive.ledger.engine import Ledger
from redrive.message import index_key
from redrive.settings import Broken
from redrive.stages import peek
from redrive_ui import failure_queries
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
        assert "In the dead-letter queues 412" in page
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


class TestFailures:
    def test_the_next_one_is_the_first_of_those_that_wait(self, site: Site) -> None:
        seen = set()
        for _ in range(4):
            with site.ledger.read() as connection:
                (first, *_), _ = failure_queries.failures(connection, ["orders", "payments"], size=1)
                found = failure_queries.next_failure(connection, ["orders", "payments"])
            assert found is not None
            assert (found["route"], found["group_id"]) == (first["route"], first["group_id"])
            seen.add((found["route"], found["group_id"]))
            same = "is null" if found["group_id"] is None else f"= {found['group_id']}"
            site.change(f"update escalated_messages set status = 'decided' where route = :route and group_id {same}",
                        route=found["route"])  # fmt: skip
        assert len(seen) == 4

    def test_come_with_cause_example_and_number_the_largest_first(self, site: Site) -> None:
        expected = site.rows(
            "select count(*) from escalated_messages group by route, group_id order by count(*) desc, route, group_id"
        )
        page = site.page("/groups")
        assert [int(n.replace(",", "")) for n in re.findall(r'<td class="n"><b>([\d,]+)<', page)] == [
            n for (n,) in expected
        ]
        assert "LookupError: SKU A-" in page
        assert "KeyError: &#39;sku&#39; # order" in page, "of a traceback the last line"

    def test_narrow_to_a_route_and_a_cause(self, site: Site) -> None:
        page = site.page("/groups?route=payments&cause=application_bug")
        assert page.count("<tr data-row>") == 1
        assert "KeyError" in page

    def test_page_by_key_and_lose_none(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("failure_queries", "pages.failures"):
            monkeypatch.setattr(f"redrive_ui.{module}.PAGE", 3)
        for order in ("open", "oldest"):
            seen: list[str] = []
            path: str | None = f"/groups?order={order}"
            while path:
                page = site.page(path)
                seen += re.findall(r'<td class="what"><a href="(/redrive/groups/[^"]+)"', page)
                following = re.search(r'rel="next" href="/redrive([^"]+)"', page)
                path = html.unescape(following[1]) if following else None
            assert len(seen) == len(set(seen)) == 10

    def test_one_tells_what_it_means_and_what_was_decided_before(self, site: Site) -> None:
        site.change(
            "update escalated_messages set decision = 'discard', decided_by = 'ben', note = 'test orders'"
            " where group_id = 1 and route = 'orders' and escalation_id < 20"
        )
        site.change(
            "update escalated_messages set status = 'applied', applied_at = :now where status = 'decided'",
            now=seeding.NOW,
        )
        page = text_of(site.page("/groups/orders/1"))
        assert "discard by ben" in page
        assert "test orders" in page
        assert "What it means" in page
        assert any(causes.advice(cause)[:40] in page for cause in causes.Cause), "how to make it not happen again"

    def test_are_where_people_are_with_them(self, site: Site) -> None:
        def at(tab: str) -> list[str]:
            return re.findall(r'<td class="what"><a href="/redrive/groups/([^"]+)"', site.page(f"/groups?tab={tab}"))

        assert ("orders/1" in at("waiting"), at("progress"), at("done")) == (True, [], [])
        later = (seeding.NOW + timedelta(days=36500)).isoformat()
        for group, said in (
            (1, {"status": "in_progress", "owner": "ben"}),
            (2, {"status": "ignored", "ignored_until": later}),
            (
                3,
                {
                    "status": "acknowledged",
                    "ticket": "https://tickets.example.org/7",
                    "comment": "asked <b>billing</b>",
                },
            ),
        ):
            assert site.post("/api/issues", failures=[f"orders~{group}"], **said).json()["count"] == 1
        site.decide("redeliver", filter={"failures": ["orders~4"]})
        assert {"orders/1", "orders/2", "orders/4"}.isdisjoint(at("waiting"))
        assert "orders/3" in at("waiting")
        assert sorted(at("progress")) == ["orders/1", "orders/4"]
        assert at("done") == ["orders/2"]
        page = text_of(site.page("/groups/orders/3"))
        assert "acknowledged" in page
        assert "Ticket: https://tickets.example.org/7" in page
        assert "asked <b>billing</b>" in page
        site.change("update failure_issues set ignored_until_at = status_at where group_id = 2")
        assert "orders/2" in at("waiting")

    def test_that_were_decided_say_how_far_that_has_come(self, site: Site) -> None:
        at = site.decide("redeliver", filter={"failures": ["orders~1"]}).json()["at"]
        result = f"/results?decided_by=Ana+Kov%C3%A1%C4%8D&decided_at={quote(at)}"
        ids = [row[0] for row in site.rows("select message_id from escalated_messages where decided_by is not null")]
        assert f"{len(ids)} redeliver {len(ids)} not taken up yet" in text_of(site.page(result))
        site.change("update escalated_messages set status = 'applied', applied_at = :now where status = 'decided'",
                    now=seeding.NOW)  # fmt: skip
        for state, some in (("waiting", ids[:3]), ("held", ids[3:8]), ("sent", ids[8:10]), ("presumed", ids[10:])):
            for one in some:
                site.change(
                    "update messages set state = :state, plan = case when :state in ('waiting', 'held') then 'release'"
                    " end, next_attempt_at = case when :state in ('waiting', 'held') then changed_at end where"
                    " message_id = :id",
                    state=state,
                    id=one,
                )
        seeding.escalate(site.ledger, 7, "LookupError", "{}", group_id=1)
        site.change("update escalated_messages set message_id = :id where message_id = 7", id=ids[-1])
        for path in (result, "/groups/orders/1"):
            page = text_of(site.page(path))
            assert "3 waiting 5 behind the gate 2 sent, outcome open" in page
            assert f"{len(ids) - 11} stayed away 1 came back" in page

    def test_that_nobody_had_is_not_there(self, site: Site) -> None:
        assert site.get("/groups/orders/999").status_code == 404

    def test_that_is_held_has_a_page_that_says_what_it_waits_for(self, site: Site) -> None:
        held = site.value(
            "select min(group_id) from failure_groups where group_id not in"
            " (select group_id from escalated_messages where route = 'orders' and group_id is not null)"
        )
        site.change("update messages set group_id = :held where state = 'held' and route = 'orders'", held=held)
        site.change(
            "update breakers set group_id = :held, stage = 'tripped', reason = '3 of 5 came back',"
            " cool_down_until = :until where route = 'orders' and group_id = (select min(group_id) from breakers"
            " where route = 'orders')",
            held=held,
            until=seeding.NOW + timedelta(minutes=20),
        )
        page = text_of(site.page(f"/groups/orders/{held}"))
        assert "never put before people" in page
        assert re.search(r"\d+ held", page)
        assert "3 of 5 came back" in page
        assert "It waits for its cool-down, until" in page


def test_every_link_of_every_page_leads_somewhere(site: Site) -> None:
    assert len(follow_links(site.look)) > 60


class TestMessages:
    def test_page_by_key_and_lose_none(self, site: Site) -> None:
        for order in ("newest", "oldest"):
            seen: list[str] = []
            path: str | None = f"/messages?order={order}"
            while path:
                page = site.page(path)
                seen += re.findall(r'<a class="id" href="/redrive/messages/(\d+)"', page)
                following = re.search(r'rel="next" href="/redrive([^"]+)"', page)
                path = html.unescape(following[1]) if following else None
            assert len(seen) == len(set(seen)) == site.value("select count(*) from escalated_messages")

    @pytest.mark.parametrize(
        ("query", "condition"),
        [
            ("route=payments", "route = 'payments'"),
            ("cause=application_bug", "cause = 'application_bug'"),
            ("queue=orders-dlq", "source = 'orders-dlq'"),
            ("text=sku+a-1", "lower(error_text) like '%sku a-1%'"),
            ("header=tenant%3Dblue", "headers like '%blue%'"),
            ("since=2026-11-15", "first_enqueued_at >= '2026-11-15'"),
            ("until=2026-11-15T00:00%2B00:00", "first_enqueued_at < '2026-11-15'"),
            ("group=2&route=orders", "group_id = 2 and route = 'orders'"),
            ("text=100%25", "1 = 0"),
            ("text=A_", "error_text like '%A!_%' escape '!'"),
        ],
    )
    def test_are_filtered(self, site: Site, query: str, condition: str) -> None:
        expected = site.value(f"select count(*) from escalated_messages where {condition}")
        found = re.search(r"<p><b>([\d,]+)</b> messages?", site.page(f"/messages?{query}"))
        assert found
        assert int(found[1].replace(",", "")) == expected

    @pytest.mark.parametrize(
        "query",
        ["status=new", "cause=hunger", "group=x", "since=yesterday", "header=tenant", "text=" + "x" * 300, "after=x",
         "ids=1;drop", "since=0001-01-01T00:00%2B14:00", "group=99999999999999999999"],
    )  # fmt: skip
    def test_with_a_filter_that_makes_no_sense_are_refused(self, site: Site, query: str) -> None:
        answer = site.get(f"/messages?{query}")
        assert answer.status_code == 400
        assert "<main>" in answer.text

    def test_show_their_life_in_order(self, site: Site) -> None:
        message_id = site.value("select min(message_id) from messages where state = 'confirmed' and route = 'orders'")
        page = text_of(site.page(f"/messages/{message_id}"))
        story = ["first enqueued", "dead-lettered", "attempt 1 claimed", "attempt 1 sent", "attempt 1: confirmed"]
        assert [page.index(one) for one in story] == sorted(page.index(one) for one in story)

    def test_say_which_decision_is_suggested(self, site: Site) -> None:
        for decision in ("redeliver", "discard"):
            message_id = site.value(
                "select min(message_id) from escalated_messages where status = 'open'"
                f" and suggested_decision = '{decision}'"
            )
            page = site.page(f"/messages/{message_id}")
            (marked,) = re.findall(r">([^<]*) <small>suggested</small>", page)
            assert marked == f"{decision.capitalize()} …"

    def test_link_to_the_dag_run_that_moved_them(self, site: Site) -> None:
        page = site.page(f"/messages/{FIRST}")
        assert 'data-airflow href="/dags/redrive_orders/runs/scheduled__2026-11-09T15"' in page

    def test_are_found_by_id_and_key(self, site: Site) -> None:
        (redrive_id,) = site.rows("select redrive_id from messages where message_id = :id", id=FIRST + 3)[0]
        for word in (str(FIRST + 3), redrive_id, f"b-{FIRST + 3}"):
            answer = site.get(f"/find?word={word}", follow_redirects=False)
            assert answer.headers["location"] == f"/redrive/messages/{FIRST + 3}"
        ((sent,),) = site.rows("select max(message_id) from redelivery_attempts")
        answer = site.get(f"/find?word=s-{sent}", follow_redirects=False)
        assert answer.headers["location"] == f"/redrive/messages/{sent}", "the id that it got when it was sent again"
        page = site.page("/find?word=order-3")
        found = re.findall(r"<td>(key|beginning of the key)</td>", page)
        assert found == ["key"] * 24 + ["beginning of the key"] * 26, "what is meant exactly comes first"
        assert "No messages" in text_of(site.page("/find?word=nothing"))

    def test_are_found_by_a_broker_id_that_the_ledger_keeps_shortened(self, site: Site) -> None:
        first, copied, sent = (f"{name}-{'x' * 600}" for name in ("first", "copied", "sent"))
        message_id = FIRST + 3
        site.change("update messages set broker_message_id = :key where message_id = :id",
                    key=index_key(first), id=message_id)  # fmt: skip
        site.change(
            "insert into repeat_copies (copy_id, message_id, route, kind, source, broker_message_id, seen_at)"
            " select message_id + 90000, message_id, route, 'surplus', source, :key, :at from messages"
            " where message_id = :id",
            key=index_key(copied), id=message_id, at=seeding.NOW,
        )  # fmt: skip
        ((again,),) = site.rows("select max(message_id) from redelivery_attempts")
        site.change("update redelivery_attempts set broker_message_id = :key where message_id = :id",
                    key=index_key(sent), id=again)  # fmt: skip
        for word, expected in ((first, message_id), (copied, message_id), (sent, again)):
            answer = site.get(f"/find?word={word}", follow_redirects=False)
            assert answer.headers["location"] == f"/redrive/messages/{expected}"

    def test_of_bytes_are_shown_as_bytes(self, site: Site) -> None:
        seeding.escalate(site.ledger, 7, "not text", b"\x00\xff<b>bold")
        assert "00 ff 3c 62 3e 62 6f 6c 64" in site.page("/messages/7")

    def test_are_taken_as_a_file_and_cut_where_it_is_said(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        body = bytes(range(256)) * 5
        seeding.escalate(site.ledger, 7, "unreadable", body)
        assert "… 256 more bytes" in site.page("/messages/7")
        answer = site.get("/messages/7/payload")
        assert answer.content == body
        assert answer.headers["content-disposition"] == 'attachment; filename="redrive-7.bin"'
        seeding.escalate(site.ledger, 8, "KeyError", '{"mail": "kim@example.org"}')
        assert site.get("/messages/8/payload").text == '{"mail": "kim@example.org"}'
        route = site.settings.routes["orders"].model_copy(update={"redact": ("email",)})
        site.settings = site.settings.model_copy(update={"routes": {**site.settings.routes, "orders": route}})
        assert site.get("/messages/8/payload").text == '{"mail": "[redacted email]"}'
        assert site.get("/messages/7/payload").status_code == 403, "nothing can be masked in it"
        assert site.get("/messages/99/payload").status_code == 404

    def test_tell_a_refusal_once_and_after_the_decision(self, site: Site) -> None:
        message = site.value("select min(message_id) from escalated_messages where route = 'orders'")
        site.decide("redeliver", filter={"ids": [site.value("select min(escalation_id) from escalated_messages")]})
        site.change(
            "update escalated_messages set status = 'refused', refusal = 'no such queue' where message_id = :id",
            id=message,
        )
        site.change(
            "insert into audit_events (at, route, actor, action, message_id, reason) values"
            " ('2126-01-01 00:00:00.000000', 'orders', 'redrive', 'refuse_decision', :id, 'no such queue')",
            id=message,
        )
        life = text_of(site.page(f"/messages/{message}").split("Its life")[1])
        assert life.count("no such queue") == 1
        assert life.index("decided: redeliver") < life.index("refuse decision")

    @pytest.mark.parametrize(
        "path", ["/messages/8888", "/messages/-1", "/messages/9223372036854775808", "/routes/none"]
    )
    def test_that_are_not_there_are_not_there(self, site: Site, path: str) -> None:
        assert site.get(path).status_code == 404


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


class TestExport:
    def test_holds_every_row_and_no_formula(self, site: Site) -> None:
        import csv  # noqa: PLC0415

        for number, text in enumerate(["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", " =1", "\uff1d1", "\r\n=1"]):
            seeding.escalate(site.ledger, number, text, "{}")
        answer = site.get("/messages.csv?route=orders")
        assert answer.headers["content-disposition"].startswith("attachment")
        rows = list(csv.DictReader(answer.text.splitlines(keepends=True)))
        assert len(rows) >= site.value("select count(*) from escalated_messages where route = 'orders'")
        hostile = [row["error_text"] for row in rows if row["message_id"] in set("01234567")]
        assert len(hostile) == 8
        assert all(text.startswith("'") for text in hostile)


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
            began, worked = time.monotonic(), time.process_time()
            page = site.page(path)
            assert time.process_time() - worked < 1.2, path
            assert time.monotonic() - began < 20, path
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


def test_an_export_says_where_it_was_cut_and_only_two_go_on_at_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = site.page("/messages.csv").splitlines()
    monkeypatch.setattr("redrive_ui.export.MAX_ROWS", 3)
    some = site.page("/messages.csv").splitlines()
    assert (some[:4], len(some)) == (whole[:4], 5)
    assert some[4] == '"cut here: the newest 3 rows; take the rest by SQL"'
    exports = site.app.state.redrive.exports
    with exports, exports:
        assert site.get("/messages.csv").status_code == 429
    assert site.get("/messages.csv").status_code == 200


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
