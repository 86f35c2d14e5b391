"""Who gets in, who may decide, and what hostile texts can do: nothing."""

import html
import json
import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any, ClassVar
from urllib.parse import quote

import pytest

from redrive.errors import SettingsError
from redrive.settings import Broken, Settings
from redrive_ui import bulk_decisions, formatting, searching
from redrive_ui.export import neutral
from redrive_ui.identity import name_of
from redrive_ui.rendering import PREFIX
from tests.ui import seeding
from tests.ui.conftest import Site

PATHS = (
    "/", "/routes/orders", "/plan/orders", "/groups", "/groups/orders/1", "/messages", "/messages/1048576",
    "/find?word=x", "/decide?route=orders&action=discard", "/messages.csv", "/static/redrive.js", "/static/redrive.css",
    "/audit", "/standing", "/standing/new?route=orders&group=1", "/rulings", "/rulings/new?route=orders&group=1",
)  # fmt: skip


class TestLogin:
    @pytest.mark.parametrize("path", PATHS)
    def test_is_needed_for_everything(self, site: Site, path: str) -> None:
        site.doors.name = None
        answer = site.get(path)
        assert answer.status_code == 401
        assert "orders-dlq" not in answer.text
        assert f'href="/auth/login?next=/redrive{html.escape(path)}"' in answer.text

    def test_is_needed_to_decide(self, site: Site) -> None:
        site.doors.name = None
        answer = site.decide("discard")
        assert answer.status_code == 401
        assert site.value("select count(*) from escalated_messages where decision is not null") == 0
        for path in ("issues", "filters", "standing", "visits", "corrections", "rulings"):
            assert site.post(f"/api/{path}").status_code == 401

    @pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/static/../app.py", "/static/app.py"])
    def test_there_is_nothing_beside_the_pages(self, site: Site, path: str) -> None:
        assert site.get(path).status_code == 404

    def test_a_name_is_printable_and_bounded(self) -> None:
        assert name_of(" ana\x1b[31m\u202e\n ") == "ana[31m"
        assert len(name_of("x" * 1000)) == 200


class TestPermissions:
    @pytest.mark.parametrize("path", ["/routes/orders", "/groups/orders/1", "/messages/1048576", "/plan/orders",
                                      "/messages?route=orders", "/groups?route=orders", "/audit?route=orders",
                                      "/find?route=orders", "/standing/new?route=orders&group=1",
                                      "/rulings/new?route=orders&group=1"])  # fmt: skip
    def test_a_route_that_may_not_be_seen_is_not_there(self, site: Site, path: str) -> None:
        site.doors.hidden = {"orders"}
        assert site.get(path).status_code == 404

    def test_lists_leave_out_what_may_not_be_seen(self, site: Site) -> None:
        site.doors.hidden = {"orders"}
        for path in ("/", "/groups", "/messages?status=all", "/messages.csv", "/find?word=order-3", "/audit?machine=1"):
            page = site.page(path)
            assert "payments" in page
            assert not re.search(r"(routes|groups)/orders\b|orders-dlq|>orders<|\"orders\"", page), path

    def test_who_may_not_decide_reads_and_is_offered_nothing(self, site: Site) -> None:
        site.doors.read_only = {"orders"}
        for path in ("/groups/orders/1", "/messages/1048577"):
            page = site.page(path)
            assert "/decide?" not in page
            assert "data-pick" not in page
        assert site.get("/decide?route=orders&action=discard").status_code == 403

    def test_who_may_not_decide_does_not(self, site: Site) -> None:
        site.doors.read_only = {"orders"}
        answer = site.decide("discard")
        assert answer.status_code == 403
        assert "redrive_orders" in answer.json()["detail"]
        assert site.value("select count(*) from escalated_messages where decision is not null") == 0

    def test_ids_of_a_route_that_may_not_be_decided_are_refused_whole(self, site: Site) -> None:
        site.doors.read_only = {"payments"}
        mine = site.value("select min(escalation_id) from escalated_messages where route = 'orders'")
        other = site.value("select min(escalation_id) from escalated_messages where route = 'payments'")
        assert site.decide("discard", filter={"ids": [mine, other]}).status_code == 403
        assert site.value("select count(*) from escalated_messages where decision is not null") == 0

    def test_ids_of_a_route_that_may_not_be_seen_are_left_out(self, site: Site) -> None:
        site.doors.hidden = {"payments"}
        other = site.value("select min(escalation_id) from escalated_messages where route = 'payments'")
        assert site.decide("discard", filter={"ids": [other]}).json()["count"] == 0


SECRET = "salary 184250 of Janeroe"
OWN = "salary 1 of Joedoe"


@pytest.fixture(params=["known", "unknown"])
def shared(request: pytest.FixtureRequest, site: Site) -> Site:
    """Group 77 is of both routes; payments, which nobody may read, was first and gave it its words.

    ``unknown``: the ledger is older than its knowledge of whose words they are.
    """
    site.change(
        "insert into failure_groups (group_id, fingerprint, cause, template, example, messages, first_seen_at,"
        " last_seen_at, first_route) values (77, 'f77', 'application_bug', :secret, :secret, 4711, :at, :at, :first)",
        secret=f"ValueError: {SECRET}",
        at=seeding.NOW - 100 * seeding.DAY,
        first="payments" if request.param == "known" else None,
    )
    seeding.escalate(
        site.ledger, 7, f"ValueError: {SECRET}", "{}", route="payments", group_id=77, decision="redeliver",
        decided_by="Greta", note=SECRET, status="applied", applied_at=seeding.NOW,
    )  # fmt: skip
    site.doors.hidden = {"payments"}
    return site


class TestGroupsOfSeveralRoutes:
    """A group is one over all routes; whoever reads one of them is shown nothing of the others."""

    PATHS = ("/", "/groups", "/groups?order=oldest", "/groups/orders/77", "/messages?status=all",
             "/messages.csv?status=all", "/routes/orders", "/plan/orders",
             "/decide?action=discard&route=orders&group=77", "/messages/8", "/find?word=x")  # fmt: skip

    def test_say_what_their_messages_here_say(self, shared: Site) -> None:
        seeding.escalate(shared.ledger, 8, f"ValueError: {OWN}", "{}", group_id=77)
        gate_of_77(shared)
        for path in self.PATHS:
            page = shared.page(path)
            assert "Jane" not in page, path
            assert "payments" not in page, path
            assert "4,711" not in page, path
            assert "100 d ago" not in page, path
            assert "Greta" not in page, path
        for path in ("/groups", "/groups/orders/77", "/decide?action=discard&route=orders&group=77", "/routes/orders"):
            assert "of Joedoe" in shared.page(path), path
        assert OWN in shared.page("/groups/orders/77")
        assert "1 in all" in shared.page("/groups/orders/77")

    def test_without_words_of_their_own_here_say_so(self, shared: Site) -> None:
        seeding.escalate(shared.ledger, 8, "", "{}", group_id=77)
        gate_of_77(shared)
        for path in self.PATHS:
            assert "Jane" not in shared.page(path), path
        assert "a route that you may not read" in shared.page("/groups/orders/77")
        assert ">group 77<" in shared.page("/groups/orders/77")

    def test_of_no_message_here_are_not_there(self, shared: Site) -> None:
        assert shared.get("/groups/orders/77").status_code == 404
        assert shared.get("/groups/payments/77").status_code == 404

    def test_have_their_words_for_whoever_may_read_the_first(self, shared: Site) -> None:
        seeding.escalate(shared.ledger, 8, "", "{}", group_id=77)
        shared.doors.hidden = set()
        known = shared.value("select first_route from failure_groups where group_id = 77") is not None
        assert (SECRET in shared.page("/groups/orders/77")) is known

    def test_have_words_of_another_route_masked_as_there(self, shared: Site) -> None:
        shared.doors.hidden = set()
        payments = shared.settings.routes["payments"].model_copy(update={"redact": ("email",)})
        shared.settings = shared.settings.model_copy(
            update={"routes": {**shared.settings.routes, "payments": payments}}
        )
        shared.change(
            "update failure_groups set template = 'ValueError: no mail to kim@example.org' where group_id = 77"
        )
        seeding.escalate(shared.ledger, 8, "", "{}", group_id=77)
        gate_of_77(shared)
        standing = {"decision": "discard", "until": "2027-01-01T00:00", "note": "not needed"}
        assert shared.post("/api/standing", route="orders", group="77", **standing).status_code == 200
        told = ["/groups", "/groups/orders/77", "/decide?action=discard&route=orders&group=77", "/routes/orders"]
        told += ["/standing", "/standing/new?route=orders&group=77", "/rulings/new?route=orders&group=77"]
        known = shared.value("select first_route from failure_groups where group_id = 77") is not None
        for path in {*self.PATHS, *told}:
            page = shared.page(path)
            assert "kim@" not in page, path
            assert ("no mail to [redacted email]" in page) is known or path not in told, path
        at = shared.decide("discard", filter={"route": "orders", "group": "77"}).json()["at"]
        page = shared.page(f"/results?decided_by={quote('Ana Kováč')}&decided_at={quote(at)}")
        assert "kim@" not in page
        assert ("no mail to [redacted email]" in page) is known

    def test_that_became_one_are_named_only_where_they_are(self, shared: Site) -> None:
        seeding.escalate(shared.ledger, 8, f"ValueError: {OWN}", "{}", group_id=77)
        shared.change(
            "insert into failure_groups (group_id, fingerprint, cause, template, first_seen_at, last_seen_at)"
            " values (99, 'f99', 'application_bug', 'x', :at, :at)", at=seeding.NOW,
        )  # fmt: skip
        shared.change(
            "insert into group_aliases (group_id, merged_into, merged_at) values (99, 77, :at)", at=seeding.NOW
        )
        assert "group 99" not in shared.page("/groups/orders/77")
        seeding.escalate(shared.ledger, 9, f"ValueError: {OWN}", "{}", group_id=99)
        assert "group 99" in shared.page("/groups/orders/77")
        assert "group 77" in shared.page("/groups/orders/99")

    def test_a_copy_of_a_message_on_another_route_is_not_in_its_life(self, shared: Site) -> None:
        seeding.escalate(shared.ledger, 8, f"ValueError: {OWN}", "{}", group_id=77)
        for copy, route, source in ((91, "payments", "payments.dead"), (92, "orders", "orders-dlq-2")):
            shared.change(
                "insert into repeat_copies (copy_id, message_id, route, kind, source, broker_message_id, seen_at)"
                " values (:copy, 8, :route, 'surplus', :source, :id, :at)",
                copy=copy, route=route, source=source, id=f"b-{copy}", at=seeding.NOW,
            )  # fmt: skip
        page = shared.page("/messages/8")
        assert "orders-dlq-2" in page
        assert "payments.dead" not in page
        assert shared.get("/find?word=b-92", follow_redirects=False).status_code == 303
        assert shared.get("/find?word=b-91", follow_redirects=False).status_code == 200


def gate_of_77(site: Site) -> None:
    site.change(
        "insert into breakers (route, group_id, stage, stage_at, began_at) values ('orders', 77, 'failed', :at, :at)",
        at=seeding.NOW,
    )


class TestForgery:
    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({"origin": "http://evil.test"}, 403),
            ({"origin": "null"}, 403),
            ({"origin": "http://airflow.test.evil.test"}, 403),
            ({"origin": "http://airflow.test:81"}, 403),
            ({"origin": "file://airflow.test"}, 403),
            ({"origin": "http://airflow.test", "sec-fetch-site": "cross-site"}, 403),
            ({"origin": "http://airflow.test", "sec-fetch-site": "same-site"}, 403),
            ({"content-type": "text/plain"}, 415),
            ({"content-type": "application/x-www-form-urlencoded"}, 415),
            ({"content-type": "text/plain; application/json"}, 415),
        ],
        ids=str,
    )
    def test_is_refused(self, site: Site, headers: dict[str, str], status: int) -> None:
        assert site.decide("discard", headers=headers).status_code == status
        assert site.value("select count(*) from escalated_messages where decision is not null") == 0

    def test_a_browser_that_says_where_it_is_may_be_behind_any_proxy(self, site: Site) -> None:
        headers = {"origin": "https://airflow.example", "host": "10.0.0.7:8080", "sec-fetch-site": "same-origin"}
        assert site.decide("discard", headers=headers).status_code == 200

    def test_without_any_origin_only_a_token_of_its_own_counts(self, site: Site) -> None:
        body = {"action": "discard", "note": "test orders", "up_to": 1 << 40, "filter": {"route": "orders"}}
        path = f"{PREFIX}/api/decisions"
        assert site.client.post(path, json=body).status_code == 403
        assert site.client.post(path, json=body, headers={"authorization": "Basic x"}).status_code == 403
        assert site.client.post(path, json=body, headers={"authorization": "Bearer x"}).status_code == 200

    def test_nothing_is_written_by_a_get(self, site: Site) -> None:
        before = site.rows("select * from escalated_messages")
        for path in PATHS:
            site.get(path)
        assert site.get("/api/decisions").status_code == 405
        assert site.rows("select * from escalated_messages") == before


class TestBounds:
    @pytest.mark.parametrize(
        "body",
        [
            {"action": "drop"},
            {"action": "discard", "note": ""},
            {"action": "discard", "note": "  \u200b "},
            {"action": "discard", "note": "x" * 2001},
            {"action": "discard", "note": 5},
            {"action": "discard", "up_to": "1"},
            {"action": "discard", "up_to": True},
            {"action": "discard", "up_to": -1},
            {"action": "discard", "filter": []},
            {"action": "discard", "filter": {}},
            {"action": "discard", "filter": {"status": "applied or 1=1"}},
            {"action": "discard", "filter": {"route": "orders", "ids": list(range(201))}},
            {"action": "discard", "filter": {"route": {"a": 1}}},
            {"action": "discard", "corrected_body": "{}"},
            {"action": "edit"},
            {"action": "edit", "corrected_body": "a\0b"},
            {"action": "discard", "filter": {"route": "orders", "text": "\0"}},
            {"action": "discard", "filter": {"route": "orders", "queue": "\0"}},
            {"action": "edit", "corrected_body": "{}"},
            {"action": "discard", "decided_by": "somebody else"},
        ],
        ids=str,
    )
    def test_nonsense_is_refused_before_anything_is_done(self, site: Site, body: dict[str, Any]) -> None:
        action = body.pop("action")
        note = body.pop("note", "a reason")
        assert site.decide(action, note=note, **body).status_code == 400
        assert site.value("select count(*) from escalated_messages where decision is not null") == 0

    def test_large_bodies_are_not_read_to_the_end(self, site: Site) -> None:
        assert site.decide("discard", note="x" * (2 << 20)).status_code == 413

    @pytest.mark.parametrize(
        "raw",
        [b"", b"[1]", b"{", b"[" * 100_000, b"\xff"]
        + [
            b'{"action": "edit", "note": "%s", "up_to": 9, "corrected_body": "%s",'
            b' "filter": {"route": "orders", "header": "%s=b"}}' % texts
            for texts in ((b"why\\ud83d", b"b", b"a"), (b"why", b"b\\ud800", b"a"), (b"why", b"b", b"a\\udfff"))
        ],
    )
    def test_what_is_no_object_is_refused(self, site: Site, raw: bytes) -> None:
        answer = site.client.post(
            f"{PREFIX}/api/decisions",
            content=raw,
            headers={"origin": "http://airflow.test", "content-type": "application/json"},
        )
        assert answer.status_code == 400


class TestHeaders:
    @pytest.mark.parametrize("path", [*PATHS, "/nowhere", "/messages?status=bad"])
    def test_are_on_every_answer(self, site: Site, path: str) -> None:
        headers = site.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'self'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "no-store" in headers["cache-control"] or path.startswith("/static/")

    def test_no_page_needs_what_the_policy_forbids(self, site: Site) -> None:
        for path in PATHS[:9]:
            page = site.page(path)
            assert not re.search(r"<(script|style)(?![^>]*src=)[^>]*>", page), path
            assert not re.search(r"<[^>]+\s(style|on\w+)=", page), path
            assert "http://" not in page.replace("http://www.w3.org", "")
            assert "https://" not in page


class Reader(HTMLParser):
    """What a page is made of: its tags with the names of their attributes, and where its links lead."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.parts: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.links: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if ("class", "unseen") not in attrs:  # a character that is shown by its number
            self.parts[tag, tuple(name for name, _ in attrs)] += 1
        self.links |= {value or "" for name, value in attrs if name in ("href", "src", "action")}


class TestHostileTexts:
    @pytest.mark.parametrize("kind", seeding.HOSTILE)
    def test_are_text_wherever_they_are(self, site: Site, kind: str) -> None:
        seeding.escalate(site.ledger, 7, "", "", group_id=2, status="refused")
        escalation = site.value("select escalation_id from escalated_messages where message_id = 7")
        paths = (
            "/messages/7", "/groups/orders/2?status=refused", "/groups?order=oldest", "/messages", "/routes/orders",
            f"/decide?ids={escalation}&action=edit", f"/decide?ids={escalation}&action=discard",
        )  # fmt: skip
        harmless = [Reader(page) for page in pages_with(site, "words", paths)]
        hostile = pages_with(site, seeding.HOSTILE[kind], paths)
        for path, page, expected in zip(paths, hostile, harmless, strict=True):
            found = Reader(page)
            assert found.parts == expected.parts, path
            assert found.links == expected.links, path
            seen = re.sub(r"<textarea.*?</textarea>", "", page, flags=re.DOTALL)  # an editor holds what was sent
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", seen), path
            assert "49 49" not in seen

    def test_what_hides_is_shown_by_its_number(self) -> None:
        assert formatting.visible("a\u202eb\x1b") == (
            'a<span class="unseen">U+202E</span>b<span class="unseen">U+001B</span>'
        )
        assert formatting.visible("<b>&") == "&lt;b&gt;&amp;"

    def test_long_texts_are_cut_and_it_is_said(self) -> None:
        assert "… 10 more characters" in formatting.visible("x" * 110, 100)


def pages_with(site: Site, text: str, paths: tuple[str, ...]) -> list[str]:
    """The pages when every text that comes from outside is ``text``."""
    site.change("delete from audit_events where action = 'note'")  # of the call before: a trigger tells of each
    site.change("update failure_groups set template = :t, example = :t", t=text)
    site.change("update breakers set reason = :t", t=text)
    site.change("update queue_observations set queue = :t || observation_id", t=text)
    site.change("update messages set message_key = :t, broker_message_id = :t, destination = :t", t=text)
    for what in ("payload", "headers"):  # nobody else may change what a message was
        site.change(f"drop trigger if exists escalated_messages_{what}")
    site.change(
        "update escalated_messages set error_text = :t, payload = :t, reason = :t, content_type = :t, message_key = :t,"
        " note = :t, refusal = :t, headers = :headers",
        t=text,
        headers=json.dumps([[text, text, text]]),
    )
    site.doors.name = name_of(text)
    return [site.page(path) for path in paths]


class TestLayout:
    def test_json_is_laid_out_without_changing_a_value(self) -> None:
        text = '{"id": 12345678901234567890, "price": 1.10, "a": [], "b": {}, "a": [1, "x", null, true]}'
        laid_out = formatting.formatted(text)
        assert laid_out
        assert re.sub(r"\s", "", laid_out) == re.sub(r"\s", "", text)

    @pytest.mark.parametrize("text", ["", "plain", "{", "[" * 5000, "12", '{"a": 1', None])
    def test_what_is_none_stays_as_it_is(self, text: str | None) -> None:
        assert formatting.formatted(text) is None

    def test_numbers_are_no_formulas(self) -> None:
        assert neutral(-5) == "-5"
        assert neutral(None) == ""
        assert neutral("plain") == "plain"


class TestTextsThatNoDatabaseHas:
    @pytest.fixture
    def odd(self, make_site: Callable[..., Site], ledger_url: str) -> Site:
        """Messages whose headers hold what JSON can say and a database can't have as text."""
        site = make_site(ledger_url)
        for number, headers in enumerate(ODD_HEADERS):
            seeding.escalate(site.ledger, number, f"failed {number}", "{}", headers=headers)
        return site

    @pytest.mark.parametrize(
        ("wanted", "found"),
        [
            ("tenant=blue", {0, 1, 2, 3}),  # nor what only looks like it
            ("x=a", {4}),  # not a, NUL, b
            ("x=a=b", {5}),
            ("größe=漢字 \U0001f642", {6}),
            ('x=y","z', {7}),
            ("x=z", set()),
            ("String=z", set()),
            ("x=\\u0000", {8}),
            ('x=], ["tenant", "String", "blue"]', {9}),
            ("a]=green", {11}),
        ],
    )
    def test_in_one_header_hide_no_other_message(self, odd: Site, wanted: str, found: set[int]) -> None:
        page = odd.page(f"/messages?header={quote(wanted)}")
        assert {int(one) for one in re.findall(r'<a class="id" href="/redrive/messages/(\d+)"', page)} == found

    @pytest.mark.parametrize("number", range(3))
    def test_are_shown_where_they_are(self, odd: Site, number: int) -> None:
        assert "tenant" in odd.page(f"/messages/{number}")
        assert odd.get("/messages.csv").status_code == 200

    @pytest.mark.parametrize(
        "path",
        ["/messages?text=%00", "/messages?header=a%00%3Db", "/messages?queue=%00", "/messages.csv?route=%00",
         "/find?word=a%00", "/groups?after=5~a%00b~7", "/groups?route=a%00", "/decide?action=discard&text=%00",
         "/routes/a%00", "/groups/a%00/1", "/groups/orders/%00", "/static/a%00"],
    )  # fmt: skip
    def test_are_refused_in_an_address(self, odd: Site, path: str) -> None:
        assert odd.get(path).status_code in (400, 404)


ODD_HEADERS = (
    [["tenant", "String", "blue"]],
    [["tenant", "String", "blue"], ["x", "String", "a\0b"], ["\0", "String", "\0"]],
    [["tenant", "String", "blue"], ["x", "String", "a\ud800b"], ["\udfff", "\udfff", "\udfff\ud800"]],
    [["x", "\0", "\0"], ["tenant", "String", "blue"]],
    [["x", "String", "a"]],
    [["x", "String", "a=b"]],
    [["größe", "String", "漢字 \U0001f642"]],
    [["x", "String", 'y","z']],
    [["x", "String", "\\u0000"]],
    [["x", "String", '], ["tenant", "String", "blue"]'], ["y", "[", ""]],
    [["tenant", "String", "green"], ["y", "String", "blue"]],
    [["x", "String", '["tenant", "String", "blue"'], ["a]", "]", "green"]],
)


def test_what_is_wrong_with_the_configuration_is_for_those_who_run_it(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def load() -> Settings:
        raise SettingsError("routes.payments.rules.0.match: not a regular expression: Jane Roe")

    site.app.state.redrive.load = load
    answer = site.get("/groups")
    assert answer.status_code == 500
    assert "redrive doctor" in answer.text
    assert "payments" not in answer.text
    assert "routes.payments.rules.0.match" in caplog.text


@pytest.fixture
def left_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The configuration of payments is wrong."""
    found = site.app.state.redrive.load()
    settings = found.model_copy(update={"routes": {n: one for n, one in found.routes.items() if n != "payments"}})
    settings._broken = {"payments": Broken("routes.payments.redact.0: no rule", found.route("payments"))}
    monkeypatch.setattr(site.app.state.redrive, "load", lambda: settings)
    return site


class TestARouteThatIsLeftOut:
    """Who may read all others may not therefore do what needs all."""

    EVERYWHERE: ClassVar = {
        "route": "",
        "group": "1",
        "decision": "discard",
        "until": "2099-01-01T00:00",
        "note": "not needed",
    }

    def test_a_filter_without_a_route_is_shown_as_before(self, left_out: Site) -> None:
        assert left_out.post("/api/filters", name="n", page="messages", query="text=merger").status_code == 200
        left_out.doors.name = "Ben"
        assert "merger" in left_out.page("/messages")
        left_out.doors.hidden = {"payments"}
        assert "merger" not in left_out.page("/messages")

    def test_who_may_not_see_it_does_not_see_all(self, left_out: Site) -> None:
        left_out.doors.hidden = {"payments"}
        left_out.change(
            "insert into audit_events (at, route, actor, action, count) values (:at, 'payments', 'Greta', 'pause', 1)",
            at=seeding.NOW,
        )
        for path in ("/rulings", "/rulings/new?route=orders&group=1&word=x"):
            assert left_out.get(path).status_code == 403
        assert "Greta" not in left_out.page("/audit")
        assert "Greta" not in left_out.page("/")

    def test_nothing_is_decided_for_it(self, left_out: Site) -> None:
        assert left_out.post("/api/standing", **self.EVERYWHERE).status_code == 503, "who may read it is told why"
        left_out.doors.hidden = {"payments"}
        assert left_out.post("/api/standing", **self.EVERYWHERE).status_code == 403
        merge = {"ruling": "merge", "route": "orders", "group": "1", "other": "2", "note": "the same"}
        assert left_out.post("/api/rulings", **merge).status_code == 403
        assert left_out.value("select count(*) from standing_decisions") == 0
        assert left_out.value("select count(*) from group_rulings") == 0


class TestWhatAnIndexKnows:
    def test_others_messages_are_neither_counted_nor_in_the_way(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(searching, "LOOK_INDEX", 5)
        site.change("update messages set message_key = 'invoice-1-' || message_id where route = 'payments'")
        own = site.value("select min(message_id) from messages where route = 'orders'")
        site.change("update messages set message_key = 'invoice-2' where message_id = :own", own=own)
        assert "were looked at" in site.page("/find?key=invoice-")
        site.doors.hidden = {"payments"}
        page = site.page("/find?key=invoice-")
        assert f"/messages/{own}" in page
        assert "were looked at" not in page
        assert "were looked at" not in site.page("/find?key=invoice-1")

    def test_it_is_not_told_how_many_values_there_are_of_what_is_masked(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(searching, "LOOK_INDEX", 5)
        site.change(
            "insert into message_fields (message_id, field, value)"
            " select message_id, 'body:$.name', 'janeroe' from messages where route = 'orders'"
        )
        assert "were looked at" in site.page("/find?word=janer")
        route = site.settings.routes["orders"].model_copy(update={"redact": ("$.name",)})
        site.settings = site.settings.model_copy(update={"routes": {**site.settings.routes, "orders": route}})
        page = site.page("/find?word=janer")
        assert "field begins with" not in page


class TestOneMessageThatIsCorrected:
    def test_only_the_one_that_was_held_against_the_correction_gets_it(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seeding.escalate(site.ledger, 7, "KeyError: uniquely", '{"order": 7}')
        decide = bulk_decisions.decide

        def later(*arguments: Any, **named: Any) -> bulk_decisions.Taken:
            seeding.escalate(site.ledger, 9, "KeyError: uniquely", '{"order": 9}')
            return decide(*arguments, **named)

        monkeypatch.setattr(bulk_decisions, "decide", later)
        wide = {"route": "orders", "text": "uniquely"}
        assert site.decide("edit", filter=wide, corrected_body='{"order": 70}').json()["count"] == 1
        corrected = site.value("select max(message_id) from escalated_messages where corrected_body is not null")
        assert corrected == 7


class TestWhatPeopleWrote:
    """Whoever writes why may quote what is masked: it is masked wherever it is read."""

    SAID = "asked kim@example.org, says hat17box"

    @pytest.fixture
    def said(self, site: Site) -> Site:
        site.set_up(redact=("email",))
        site.doors.name = "ana@example.org"
        group = {"filter": {"failures": ["orders~1"]}}
        assert site.decide("discard", note=self.SAID, **group).json()["count"] > 0
        assert site.post(
            "/api/issues", failures=["orders~1"], comment=self.SAID
        ).json()["count"] == 1  # fmt: skip
        for route in ("orders", ""):
            assert "standing" in site.post(
                "/api/standing", route=route, group="1", decision="discard", until="2099-01-01", note=self.SAID
            ).json()  # fmt: skip
        site.change(
            "insert into group_rulings (ruling, group_id, other_group_id, decided_by, note)"
            " values ('merge', 2, 1, 'ana@example.org', :said)",
            said=self.SAID,
        )
        return site

    def test_is_masked_on_every_page_and_in_files(self, said: Site) -> None:
        message = said.value("select max(message_id) from escalated_messages where note is not null")
        paths = [f"/messages/{message}", "/groups/orders/1", "/standing", "/rulings", "/audit",
                 "/messages.csv?status=all"]  # fmt: skip
        pages = {path: said.page(path) for path in paths}
        pages["/results"] = said.client.get(
            "/redrive/results", params={"decided_by": "ana@example.org", "decided_at": seeding.NOW.isoformat()}
        ).text
        for path, page in pages.items():
            assert "kim@example.org" not in page, path
            assert "asked [redacted email]" in page, path
            assert "ana@example.org" in page, "who said it is told"

    def test_is_shown_as_it_is_where_nothing_is_masked(self, site: Site) -> None:
        assert site.decide("discard", note=self.SAID, filter={"failures": ["payments~1"]}).json()["count"] > 0
        message = site.value("select max(message_id) from escalated_messages where note is not null")
        assert self.SAID in site.page(f"/messages/{message}")


class TestStandingDecisions:
    def test_one_for_every_route_is_shown_where_its_failure_is(self, site: Site) -> None:
        group = site.value("select group_id from breakers where route = 'payments' limit 1")
        site.change("delete from breakers where route = 'orders' and group_id = :group", group=group)
        site.change(
            "insert into standing_decisions (route, group_id, decision, until_at, decided_by, created_at, note)"
            " values (null, :group, 'discard', '2099-01-01', 'Greta', :at, 'of payments')",
            group=group,
            at=seeding.NOW,
        )
        assert "of payments" in site.page("/standing")
        site.doors.hidden = {"payments"}
        assert "of payments" not in site.page("/standing")
