"""Messages in review: the list, one of them, and what is taken as a file, over a seeded ledger."""

import html
import json
import re

import pytest

from redrive.message import index_key
from redrive_ui import message_queries, resolved_filters
from redrive_ui.pages.downloads import Export
from tests.ui import seeding
from tests.ui.conftest import Site
from tests.ui.test_pages import text_of

FIRST = 1 << 20


def count_on(page: str) -> int:
    found = re.search(r"<p><b>([\d,]+)</b> messages?", page)
    assert found
    return int(found[1].replace(",", ""))


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
        assert count_on(site.page(f"/messages?{query}")) == expected

    def test_are_counted_as_far_as_somebody_has_to_see_to_them(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of those that are done with, a ledger's whole past, fewer are counted; a bound that is just reached is one
        that is not passed."""
        waiting = count_on(site.page("/messages"))
        monkeypatch.setattr(message_queries, "COUNT_DONE", waiting - 1)
        assert count_on(site.page("/messages")) == waiting, "these wait for somebody"
        assert f"<b>{waiting - 1}+</b> messages" in site.page("/messages?status=all")
        monkeypatch.setattr(message_queries, "COUNT_TO", waiting)
        assert count_on(site.page("/messages")) == waiting
        monkeypatch.setattr(message_queries, "COUNT_TO", waiting - 1)
        page = site.page("/messages")
        assert f"<b>{waiting - 1}+</b> messages" in page
        assert f"All {waiting - 1}" not in page, "no button says a number that it does not mean"

    def test_texts_are_looked_for_at_any_age_where_few_have_the_status(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What waits for a person is found however many were asked about since; of what is done, the newest."""
        everywhere = site.value("select count(*) from escalated_messages where error_text like '%SKU%'")
        newest = site.value("select max(escalation_id) from escalated_messages")
        monkeypatch.setattr(resolved_filters, "LOOK", 40)
        assert (count_on(site.page("/messages?text=sku")), newest > 40) == (everywhere, True)
        assert "The text was looked for" not in site.page("/messages?text=sku")
        monkeypatch.setattr(resolved_filters, "FEW", 10)
        page = site.page("/messages?text=sku")
        assert count_on(page) == site.value(
            f"select count(*) from escalated_messages where error_text like '%SKU%' and escalation_id > {newest - 40}"
        )
        assert "The text was looked for in the newest 100,000 messages" in page

    def test_a_decision_reaches_as_far_as_its_preview(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        """More came meanwhile, so that few are many now: what was shown is what is decided."""
        monkeypatch.setattr(resolved_filters, "LOOK", 40)
        page = site.page("/decide?action=discard&text=sku")
        shown = re.search(r"data-decision='([^']+)'", page)
        assert shown
        asked = json.loads(html.unescape(shown[1]))
        monkeypatch.setattr(resolved_filters, "FEW", 10)
        told = site.post("/api/decisions", **asked, note="not needed").json()
        assert told["count"] == asked["expected"] > 40

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
        page = text_of(site.page("/messages/7"))
        assert re.search(r"Binary, [\d,]+ bytes; not shown, as the route redacts\.", page)
        assert ("00 01 02" in page, "as a file" in page) == (False, False)
        assert site.get("/messages/99/payload").status_code == 404

    def test_are_masked_before_their_texts_are_cut(self, site: Site) -> None:
        site.set_up(redact=("email", "card"))
        for number, said in enumerate(("ana.kim@example.org", "4111 1111 1111 1111")):
            for cut in (5, 12):
                text = f"{'x ' * ((message_queries.SHOWN - cut) // 2)}{said} was refused"
                seeding.escalate(site.ledger, 10 * number + cut, text, "{}", group_id=1, refusal=text, reason=text)
        for path in ("/messages.csv?status=all", "/messages?status=all", "/find?word=group:1", "/groups/orders/1",
                     "/decide?route=orders&group=1&action=discard"):  # fmt: skip
            page = site.page(path)
            assert not re.search(r"ana\.|4111", page), path
        assert "x [redacted email]" in site.page("/messages.csv?status=all")

    def test_read_the_payload_that_is_shown_and_no_earlier_one(self, site: Site) -> None:
        seeding.escalate(site.ledger, 7, "unreadable", "as it was first")
        site.change(
            "update escalated_messages set status = 'applied', decision = 'redeliver', decided_by = 'ana',"
            " decided_at = '2026-01-01', note = 'fixed', applied_at = '2026-01-01' where message_id = 7"
        )
        site.change(
            "insert into escalated_messages (message_id, route, reason, payload, size_bytes, source, attempts,"
            " escalated_at) select message_id, route, 'It came back.', 'as it is now', 12, source, 2, '2126-01-01'"
            " from escalated_messages where message_id = 7"
        )
        page = text_of(site.page("/messages/7"))
        assert "as it is now" in page
        assert page.count("handed to people") == 2
        with site.ledger.read() as connection:
            found = message_queries.message(connection, 7, {"orders"})
        assert "as it was first" not in str(found)

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


def test_an_export_that_nobody_waits_for_any_more_makes_room() -> None:
    over: list[bool] = []
    answer = Export(iter(()), done=lambda: over.append(True))
    assert over == []
    del answer
    assert over == [True]
