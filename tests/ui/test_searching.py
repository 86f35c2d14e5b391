"""One search: what it finds in every state, what it suggests, how far it looks, and what nobody finds out by it."""

import html
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest

from redrive_ui import resolved_filters, searching
from tests import blank
from tests.ui import seeding
from tests.ui.conftest import Site
from tests.ui.test_deciding import order_of
from tests.ui.test_pages import text_of

FIRST = 1 << 20


def found(site: Site, word: str = "", **narrowed: str) -> list[int]:
    """The messages that are found, in their order."""
    query = "&".join(f"{name}={quote(value)}" for name, value in {"word": word, **narrowed}.items() if value)
    answer = site.get(f"/find?{query}", follow_redirects=False)
    if answer.status_code == 303:
        return [int(answer.headers["location"].rpartition("/")[2])]
    assert answer.status_code == 200, answer.text
    return [int(one) for one in re.findall(r'<a class="id" href="/redrive/messages/(\d+)"', answer.text)]


def paged(site: Site, path: str) -> list[int]:
    """The messages that are found from page to page, in their order."""
    seen: list[int] = []
    while path:
        page = site.page(path)
        seen += map(int, re.findall(r'<a class="id" href="/redrive/messages/(\d+)"', page))
        more = re.search(r'rel="next" href="/redrive([^"]+)"', page)
        path = html.unescape(more[1]) if more else ""
    return seen


def mask(site: Site, *rules: str, route: str = "orders", **more: Any) -> None:
    """From now on the route masks this."""
    changed = site.settings.routes[route].model_copy(update={"redact": rules, **more})
    site.settings = site.settings.model_copy(update={"routes": {**site.settings.routes, route: changed}})


def declare(site: Site, *selectors: str, route: str = "orders") -> None:
    """The route's messages are found by these."""
    from redrive import selectors as parsing  # noqa: PLC0415

    mask(site, *site.settings.routes[route].redact, route=route, search=tuple(map(parsing.parse, selectors)))


def keep(site: Site, message_id: int, field: str, value: str) -> None:
    site.change(
        "insert into message_fields (message_id, field, value) values (:id, :field, :value)",
        id=message_id,
        field=field,
        value=value,
    )


class TestFinding:
    def test_a_message_in_any_state_by_the_beginning_or_a_part_of_its_key(self, site: Site) -> None:
        for number, state in enumerate(("confirmed", "escalated", "discarded")):
            site.change(
                "update messages set message_key = :key where message_id = (select max(message_id) from messages where"
                " state = :state)",
                key=f"INV-{number}-Berlin",
                state=state,
            )
        wanted = {one for (one,) in site.rows("select message_id from messages where message_key like 'INV-%'")}
        assert set(found(site, "INV-")) == set(found(site, "-berlin")) == set(found(site, "key:INV-")) == wanted
        assert len(found(site, "INV-", state="confirmed")) == 1
        assert len(found(site, "INV- state:finished")) == 2
        assert found(site, "inv-", state="held") == []

    def test_by_a_declared_field_in_every_state(self, site: Site) -> None:
        declare(site, "body:$.customer.id", "attribute:tenant")
        (done,) = site.rows("select max(message_id) from messages where state = 'confirmed' and route = 'orders'")[0]
        keep(site, done, "body:$.customer.id", "c-4711")
        assert found(site, "C-4711") == found(site, "id:c-47") == found(site, "4711") == [done]
        assert "Found by" in site.page("/find?word=C-4711")
        assert found(site, "tenant:c-4711") == []

    def test_by_a_header_and_by_what_went_wrong_also_of_what_is_decided(self, site: Site) -> None:
        seeding.escalate(site.ledger, 7, "OutOfCheese: moon", "{}", headers=[["Tenant", "String", "Acme Ltd"]])
        seeding.escalate(site.ledger, 8, "OutOfCheese: mars", "{}", headers=[["tenant", "String", "other"]])
        site.change("update escalated_messages set decision = 'discard', decided_by = 'ben' where message_id = 7")
        site.change("update messages set state = 'discarded' where message_id = 7")
        assert found(site, "acme") == found(site, "header:tenant=acme") == found(site, "header:ltd") == [7]
        assert found(site, "header:name=acme") == []
        assert found(site, "outofcheese") == found(site, "text:cheese") == [8, 7]
        assert found(site, '"cheese: moon"') == [7]

    def test_each_term_narrows(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = ((7, "moon", "acme"), (8, "mars", "acme"), (9, "moon", "o"), (10, "moon", "acme"))
        for number, planet, tenant in asked:
            headers = [["tenant", "String", tenant]]
            seeding.escalate(site.ledger, number, f"OutOfCheese: {planet}", "{}", headers=headers)
            keep(site, number, "attribute:tenant", tenant)
            key = f"{'INV' if number < 10 else 'ORD'}-{number}"
            site.change("update messages set message_key = :key where message_id = :id", key=key, id=number)
        declare(site, "attribute:tenant")
        for words, wanted in (
            ("key:INV- text:moon", [9, 7]),
            ("text:moon header:tenant=acme", [10, 7]),
            ("key:INV- text:moon header:acme", [7]),
            ("tenant:acme text:moon", [10, 7]),
            ("tenant:acme key:INV-", [8, 7]),
            ("outofcheese key:INV- tenant:acme", [8, 7]),
            ("INV- text:mars", [8]),
            ("INV-7 text:mars", []),
            ("8 key:INV-", [8]),
            ("8 key:ORD-", []),
            ("key:INV- header:tenant=", []),
        ):
            assert found(site, words) == wanted, words
        # However many match one term, and are newer: what matches both is found.
        monkeypatch.setattr(searching, "PAGE", 1)
        for words, wanted in (("key:INV- text:mars", [8]), ("text:moon key:INV-7", [7]), ("cheese text:mars", [8])):
            assert found(site, words) == wanted, words

    def test_pages_through_what_no_word_is_looked_for(self, site: Site) -> None:
        for query in ("cause=transient_network", "state=confirmed", "state=finished&route=payments", "past=week"):
            condition = {
                "cause=transient_network": "cause = 'transient_network'",
                "state=confirmed": "state = 'confirmed'",
                "state=finished&route=payments": "route = 'payments' and state in ('confirmed', 'presumed',"
                " 'suppressed', 'discarded')",
                "past=week": f"first_enqueued_at >= '{seeding.NOW - timedelta(days=7):%Y-%m-%d %H:%M:%S}'",
            }[query]
            assert paged(site, f"/find?{query}") == [
                one for (one,) in site.rows(f"select message_id from messages where {condition} order by 1 desc")
            ]

    @pytest.mark.parametrize(
        ("query", "condition"),
        [
            ("state=escalated&group=3&route=orders", "group_id = 3 and route = 'orders'"),
            ("state=escalated&until=2026-11-12", "first_enqueued_at < '2026-11-12'"),
            ("state=escalated", "1 = 1"),
        ],
    )
    def test_in_one_state_looks_on_where_it_ended(
        self, site: Site, monkeypatch: pytest.MonkeyPatch, query: str, condition: str
    ) -> None:
        """What matches may be older than all that are looked at, and one route have more of them than another."""
        monkeypatch.setattr(searching, "LOOK_ROUTE", 20)
        monkeypatch.setattr(searching, "LOOK", 20)
        page = site.page(f"/find?{query}")
        assert "Looked at the newest messages in this state, 20 of a route at most." in page
        assert "Look further back" in page
        assert paged(site, f"/find?{query}") == [
            one
            for (one,) in site.rows(
                f"select message_id from messages where state = 'escalated' and {condition} order by 1 desc"
            )
        ]
        assert "Looked at" not in site.page("/find?state=expired"), "there are no more"

    def test_says_how_far_it_looked(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(searching, "LOOK", 50)
        monkeypatch.setattr(searching, "LOOK_TEXTS", 20)
        page = site.page("/find?word=nothing-like-this")
        assert "Parts of keys and fields were looked for in the newest 50 messages, staged since 2026-11-" in page
        assert "in the newest 20 messages that people were asked about" in page
        page = site.page("/find?cause=throttled&state=unfinished")
        assert "Look further back" in page
        seen = set(paged(site, "/find?cause=throttled"))  # by looking on all of it is found
        assert len(seen) == site.value("select count(*) from messages where cause = 'throttled'")

    @pytest.mark.parametrize("query", ["state=new", "cause=x", "group=x", "past=year", "since=yesterday", "word=a%00"])
    def test_refuses_what_makes_no_sense(self, site: Site, query: str) -> None:
        assert site.get(f"/find?{query}").status_code == 400

    def test_finds_nothing_on_routes_that_may_not_be_read(self, site: Site) -> None:
        site.doors.hidden = {"payments"}
        (hidden,) = site.rows("select max(message_id) from messages where route = 'payments'")[0]
        keep(site, hidden, "attribute:tenant", "secret-tenant")
        for word in (str(hidden), f"b-{hidden}", "secret-tenant"):
            assert found(site, word) == []
        assert all(one >> 20 < 500 for one in found(site, state="confirmed"))
        assert site.get("/find?route=payments").status_code == 404


class TestSuggestions:
    @pytest.mark.parametrize(
        ("word", "said"),
        [
            ("confirmed", "state:confirmed"),
            ("missing_data", "cause:missing_data"),
            ("throttled", "cause:throttled"),
            ("orders-dlq", "queue:orders-dlq"),
            ("payments", "route:payments"),
            ("rote:payments", "route:payments"),
            ("typ:order", "header:typ=order"),
            ("typ:order", "text:order"),
            ("tenent:blue", "tenant:blue"),
        ],
    )
    def test_of_a_word_that_is_a_name_or_no_filter(self, site: Site, word: str, said: str) -> None:
        declare(site, "attribute:tenant")
        page = site.page(f"/find?word={quote(word)}")
        assert "Did you mean" in page
        assert f">{said}</a>" in page
        (query,) = re.findall(rf'<a class="chip" href="/redrive(/find\?[^"]+)">{re.escape(said)}</a>', page)
        site.page(query.replace("&amp;", "&"))

    def test_none_where_nothing_is_like_it(self, site: Site) -> None:
        assert "Did you mean" not in site.page("/find?word=qqqq")


class TestMasked:
    """Whoever can't see a value can't find it out by searching either."""

    def test_texts_are_looked_at_as_they_are_shown(self, site: Site) -> None:
        seeding.escalate(site.ledger, 7, "no mail to kim@example.org in Berlin", "{}")
        assert found(site, "kim@exam") == found(site, "berlin") == [7]
        mask(site, "email")
        for word in ("kim@exam", "kim", "example.org", "text:kim"):
            assert found(site, word) == []
        assert found(site, "berlin") == [7]

    def test_headers_too(self, site: Site) -> None:
        seeding.escalate(site.ledger, 7, "x", "{}", headers=[["x-user", "String", "kim"], ["n", "String", "blue"]])
        assert found(site, "header:x-user=ki") == [7]
        mask(site, "attribute:x-user")
        assert found(site, "header:x-user=ki") == found(site, "header:kim") == found(site, "kim") == []
        assert found(site, "header:n=blue") == [7]

    def test_nor_is_it_found_out_beside_another_term(self, site: Site) -> None:
        declare(site, "body:$.customer.name")
        seeding.escalate(site.ledger, 7, "no mail to kim@example.org", "{}", headers=[["u", "String", "kim"]])
        keep(site, 7, "body:$.customer.name", "kim")
        narrowing = ("text:kim", "header:u=kim", "header:kim", "name:ki")
        for term in narrowing:
            assert found(site, f"key:order-7 {term}") == found(site, f"mail {term}") == [7], term
        mask(site, "email", "attribute:u", "$.customer.name", search=site.settings.routes["orders"].search)
        for term in narrowing:
            assert found(site, f"key:order-7 {term}") == found(site, f"mail {term}") == [], term
        assert found(site, "key:order-7 text:mail") == [7]

    def test_fields_that_were_kept_before(self, site: Site) -> None:
        declare(site, "body:$.customer.name")
        keep(site, FIRST, "body:$.customer.name", "kim")
        assert found(site, "kim") == found(site, "name:ki") == found(site, "im") == [FIRST]
        mask(site, "$.customer.name", search=site.settings.routes["orders"].search)
        assert found(site, "kim") == found(site, "name:ki") == found(site, "im") == []

    def test_what_waits_is_listed_counted_decided_and_exported_by_what_is_shown(self, site: Site) -> None:
        seeding.escalate(site.ledger, 7, "no mail to kim@example.org in Berlin", "{}", headers=[["u", "String", "kim"]])
        mask(site, "email", "attribute:u")
        for text, count in (("kim", 0), ("example.org", 0), ("in Berlin", 1)):
            assert f"<b>{count}</b> message" in site.page(f"/messages?text={quote(text)}")
            assert len(site.get(f"/messages.csv?text={quote(text)}").text.splitlines()) == count + 1
            preview = text_of(site.page(f"/decide?action=discard&text={quote(text)}"))
            assert f"Discard {count} message" in preview
        assert "<b>0</b> messages" in site.page("/messages?header=u%3Dkim")
        for text, count in (("kim", 0), ("berlin", 1)):
            told = site.decide("discard", filter={"route": "orders", "text": text}).json()
            assert told["count"] == count

    def test_a_decision_is_about_nothing_older_than_its_preview_looked_at(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What somebody else decides meanwhile makes no room for what nobody has seen."""
        for number in range(50, 56):
            seeding.escalate(site.ledger, number, f"no stock in Berlin: {number}", "{}")
        mask(site, "email")
        monkeypatch.setattr(resolved_filters, "LOOK_MASKED", 3)
        (offered,) = re.findall(r'href="/redrive(/decide[^"]*discard[^"]*)"', site.page("/messages?text=in+Berlin"))
        for path in ("/decide?action=discard&text=in+Berlin", html.unescape(offered)):
            order = order_of(site.page(path))
            assert order["expected"] == 3
        site.change("update escalated_messages set decision = 'redeliver', decided_by = 'ben' where message_id = 55")
        assert site.decide(order.pop("action"), **order).json()["count"] == 2
        decided = site.rows("select message_id from escalated_messages where decision = 'discard' order by 1")
        assert decided == [(53,), (54,)]

    def test_nor_where_the_newest_that_it_looked_at_do_not_show_the_text(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(50, 56):
            text = "an example of a fault" if number < 53 else "no mail to kim@example.org"
            seeding.escalate(site.ledger, number, text, "{}")
        mask(site, "email")
        monkeypatch.setattr(resolved_filters, "LOOK_MASKED", 4)
        order = order_of(site.page("/decide?action=discard&text=example"))
        assert (order["expected"], site.decide(order.pop("action"), **order).json()["count"]) == (1, 1)
        assert site.rows("select message_id from escalated_messages where decision = 'discard'") == [(52,)]

    def test_other_routes_are_looked_for_as_before(self, site: Site) -> None:
        plain = site.value(
            "select count(*) from escalated_messages where route = 'payments' and error_text like '%SKU%'"
        )
        masked = site.value(
            "select count(*) from escalated_messages where route = 'orders' and error_text like '%SKU%'"
        )
        mask(site, "email")
        assert f"<b>{plain + masked}</b> messages" in site.page("/messages?text=SKU")


class TestTimes:
    @pytest.mark.parametrize(
        ("past", "hours"), [("hour", 1), ("today", 9), ("day", 24), ("week", 168)], ids=["hour", "today", "day", "week"]
    )
    def test_presets_are_as_long_as_they_say(self, site: Site, past: str, hours: int) -> None:
        since = f"{seeding.NOW - timedelta(hours=hours):%Y-%m-%d %H:%M:%S}"
        count = site.value(f"select count(*) from escalated_messages where first_enqueued_at >= '{since}'")
        page = site.page(f"/messages?past={past}&status=all")
        assert f"<b>{count}</b> message" in page
        assert f'<option value="{past}" selected' in page
        if count:  # what is decided is of times that don't move
            assert (
                "past="
                not in re.findall(r'href="([^"]*/decide[^"]*discard[^"]*)"', site.page(f"/messages?past={past}"))[0]
            )

    @pytest.mark.parametrize(
        ("zone", "hours"),
        [("Asia/Kolkata", 14.5), ("America/New_York", 4), ("", 9)],
        ids=["Kolkata", "New York", "UTC"],
    )
    def test_today_begins_where_people_are(self, site: Site, zone: str, hours: float) -> None:
        for number, back in enumerate((hours - 0.1, hours + 0.1)):
            died = seeding.NOW - timedelta(hours=back)
            seeding.escalate(site.ledger, 50 + number, "today?", "{}", first_enqueued_at=died)
            site.change(f"update messages set first_enqueued_at = :at where message_id = {50 + number}", at=died)
        query = f"text=today%3F&past=today&zone={zone}"
        assert "<b>1</b> message" in site.page(f"/messages?{query}")
        assert "<b>1</b> message" in site.page(f"/find?{query}")
        assert f"today ({zone or 'UTC'})" in site.page(f"/messages?{query}")

    @pytest.mark.parametrize("zone", ["Nowhere/Else", "../etc/passwd", "/etc/passwd", "America", "x" * 300, "a%00b"])
    def test_of_a_zone_that_is_none_are_refused(self, site: Site, zone: str) -> None:
        for page in ("messages", "find", "audit"):
            assert site.get(f"/{page}?past=today&zone={zone}").status_code == 400

    def test_the_picker_shows_what_was_chosen(self, site: Site) -> None:
        page = site.page("/messages?since=2026-11-15&until=2026-11-20T02:30%2B01:00")
        assert 'name="since" value="2026-11-15T00:00"' in page
        assert 'name="until" value="2026-11-20T01:30"' in page


class TestSaved:
    def save(self, site: Site, name: str = "stuck in Berlin", query: str = "cause=missing_data", **more: Any) -> Any:
        return site.post("/api/filters", **{"name": name, "page": "messages", "query": query} | more)

    def test_filters_have_a_name_an_owner_and_a_link(self, site: Site) -> None:
        assert self.save(site).json() == {"name": "stuck in Berlin", "by": "Ana Kováč"}
        assert site.post("/api/filters", name="lost", page="find", query="word=INV&state=held").status_code == 200
        for path in ("/messages", "/find"):
            page = site.page(path)
            assert 'href="/redrive/messages?cause=missing_data"' in page
            assert 'href="/redrive/find?word=INV&amp;state=held"' in page
        assert (
            site.rows("select actor, action from audit_events where action = 'save_filter'")
            == [("Ana Kováč", "save_filter")] * 2
        )

    def test_a_name_is_given_once(self, site: Site) -> None:
        self.save(site)
        assert self.save(site, query="route=orders").status_code == 409

    @pytest.mark.parametrize(
        "given",
        [
            {"name": " ", "page": "messages", "query": ""}, {"name": "x", "page": "groups", "query": ""},
            {"name": "x", "page": "messages", "query": "cause=hunger"},
            {"name": "x", "page": "find", "query": "state=x"},
            {"name": "x"}, {"remove": "1"}, {"remove": True}, {"name": "x\0", "page": "find", "query": ""},
            {"name": "x" * 81, "page": "find", "query": ""},
        ],
    )  # fmt: skip
    def test_what_makes_no_sense_is_not_saved(self, site: Site, given: dict[str, Any]) -> None:
        assert site.post("/api/filters", **given).status_code == 400
        assert site.rows("select * from saved_filters") == []

    def test_its_owner_or_an_administrator_removes_it(self, site: Site) -> None:
        self.save(site)
        ((saved,),) = site.rows("select filter_id from saved_filters")
        site.doors.name = "Ben"
        assert "data-say" not in site.page("/messages")
        assert site.post("/api/filters", remove=saved).status_code == 403
        site.doors.admins = {"Ben"}
        assert "data-say" in site.page("/messages")
        assert site.post("/api/filters", remove=saved).status_code == 200
        assert site.post("/api/filters", remove=saved).status_code == 409
        assert site.rows("select actor from audit_events where action = 'remove_filter'") == [("Ben",)]

    def test_of_a_route_that_may_not_be_read_is_neither_shown_nor_saved(self, site: Site) -> None:
        self.save(site, query="route=payments")
        site.doors.hidden = {"payments"}
        assert "stuck in Berlin" not in site.page("/messages")
        assert self.save(site, name="other", query="route=payments").status_code == 404

    @pytest.mark.parametrize(
        ("page", "query"),
        [("messages", "failures=orders~1&failures=payments~1&text=merger"),
         ("messages", "queue=payments-dlq&text=merger"),
         ("find", "word=route:payments merger"), ("find", 'word="route:payments" merger'),
         ("find", "queue=payments-dlq&word=merger")],
    )  # fmt: skip
    def test_is_for_nobody_who_may_not_read_what_it_names(self, site: Site, page: str, query: str) -> None:
        assert self.save(site, page=page, query=query).status_code == 200
        assert "merger" in site.page("/messages")
        site.doors.hidden = {"payments"}
        site.doors.name = "Ben"
        assert "merger" not in site.page("/messages") + site.page("/find")
        if "queue=" not in query:
            assert self.save(site, name="mine", page=page, query=query).status_code == 404
            site.doors.name = "Ana Kováč"
            assert "merger" not in site.page("/messages") + site.page("/find"), "not even for its owner"

    def test_its_owner_has_it_when_the_queue_has_another_name(self, site: Site) -> None:
        self.save(site, query="queue=orders-dlq&text=merger")
        site.doors.hidden = {"payments"}
        renamed = [one.model_copy(update={"queue": "orders-dlq-v2"}) for one in site.settings.routes["orders"].sources]
        site.set_up(sources=tuple(renamed))
        assert "merger" in site.page("/messages")
        assert self.save(site, name="again", query="queue=orders-dlq").status_code == 200
        ((saved,),) = site.rows("select filter_id from saved_filters where name = 'again'")
        assert site.post("/api/filters", remove=saved).status_code == 200
        site.doors.name = "Ben"
        assert "merger" not in site.page("/messages"), "whose it is, nobody can tell"

    def test_without_a_route_is_for_its_owner_and_who_reads_all(self, site: Site) -> None:
        self.save(site, query="text=merger")
        self.save(site, name="ours", query="failures=orders~1&failures=orders~2&text=union")
        assert "failures=orders~1&amp;failures=orders~2" in site.page("/messages").replace("%7E", "~")
        site.doors.hidden = {"payments"}
        assert "merger" in site.page("/messages")
        site.doors.name = "Ben"
        page = site.page("/messages")
        assert ("merger" in page, "union" in page) == (False, True)
        site.doors.hidden = set()
        assert "merger" in site.page("/messages")

    def test_another_site_saves_none(self, site: Site) -> None:
        answer = self.save(site, headers={"origin": "http://evil.test"})
        assert answer.status_code == 403


@pytest.mark.server
def test_it_is_the_same_on_postgresql(
    make_site: Callable[..., Site], postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(postgres_database)
    blank.upgrade(site.ledger, seeding.NOW)
    seeding.seed(site.ledger, per_day=10)
    declare(site, "attribute:tenant")
    seeding.escalate(
        site.ledger, 7, "no mail to kim@example.org in Berlin", "{}", headers=[["tenant", "String", "Ä b"]]
    )
    keep(site, 7, "attribute:tenant", "ä b")
    site.change("update messages set message_key = 'Straße 7/x' where message_id = 7")
    for word in (
        "Straße", "raße 7", "tenant:ä", "ä b", "key:Str", "text:berlin", "kim@example", 'header:"tenant=Ä b"',
        "key:Str text:berlin tenant:ä", 'tenant:ä header:"tenant=Ä b" text:kim', "berlin key:Str tenant:ä",
    ):  # fmt: skip
        assert found(site, word) == [7], word
    for word in ("key:Str text:hamburg", "berlin key:x", "text:berlin tenant:b"):
        assert found(site, word) == [], word
    assert len(found(site, state="confirmed")) > 3
    assert len(found(site, "order-", cause="missing_data", past="week", queue="orders-dlq", group="1")) > 3
    mask(site, "email")
    assert found(site, "kim@example") == []
    assert "<b>0</b> messages" in site.page("/messages?text=kim")
    assert "<b>1</b> message" in site.page("/messages?text=berlin")
    assert site.post("/api/filters", name="x", page="messages", query="text=berlin").status_code == 200
    assert site.post("/api/filters", name="x", page="messages", query="text=berlin").status_code == 409
    some = site.rows("select message_id from messages order by message_id limit 9")
    keys = {message_id: f"many-{99 - place}" for place, (message_id,) in enumerate(some)}
    for message_id, key in keys.items():
        site.change("update messages set message_key = :key where message_id = :id", key=key, id=message_id)
    site.change("analyze messages")
    monkeypatch.setattr(searching, "LOOK_INDEX", 2)  # of many that begin so the first are looked at, by the index
    assert {keys[one] for one in found(site, "key:many")} == {"many-91", "many-92"}
    plan = " ".join(
        str(row)
        for row in site.rows(
            "explain select message_id from messages where message_key ~>=~ :low and message_key ~<~ :high limit 5",
            low="a",
            high="b",
        )
    )
    assert "message_key" in plan
