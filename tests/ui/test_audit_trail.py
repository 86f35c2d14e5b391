"""Who did what; standing decisions; what has changed since somebody looked last."""

import html
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from redrive.ledger.review import standing
from redrive_ui import audit_trail
from tests.ui import seeding
from tests.ui.conftest import Site
from tests.ui.test_pages import text_of

LATER = (seeding.NOW + timedelta(days=7)).isoformat()


def entries(page: str) -> list[list[str]]:
    """The rows of the audit's table: when, who, what, messages, about, why."""
    body = page.partition('<table class="audit">')[2].partition("</table>")[0]
    return [
        [text_of(cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)]
        for row in re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
        if "<td" in row
    ]


def stand(site: Site, **changes: Any) -> Any:
    given = {"route": "orders", "group": "1", "decision": "discard", "until": LATER, "note": "test orders"} | changes
    return site.post("/api/standing", **given)


class TestAudit:
    def test_one_decision_about_many_is_one_row_with_links(self, site: Site) -> None:
        count = site.decide("discard", filter={"route": "orders", "group": "1"}).json()["count"]
        site.doors.name = "Ben"
        site.post("/api/issues", failures=["payments~2"], status="acknowledged", owner="ben")
        page = site.page("/audit")
        (theirs, mine) = entries(page)
        assert theirs[1:3] == ["Ben", "change issue"]
        assert "status: acknowledged, owner: ben" in theirs[4]
        assert mine[1:4] == ["Ana Kováč", "decide discard", f"{count:,}"]
        assert mine[5] == "fixed in 1.4.2"
        assert 'href="/redrive/groups/orders/1"' in page
        assert 'href="/redrive/groups/payments/2"' in page

    def test_filters_by_who_what_where_and_when(self, site: Site) -> None:
        site.decide("discard", filter={"route": "orders", "group": "1"})
        site.decide("redeliver", filter={"route": "payments", "group": "2"})
        site.doors.name = "Ben"
        site.decide("redeliver", filter={"route": "orders", "group": "3"})
        site.change("update audit_events set at = :old where actor = 'Ben'", old=seeding.NOW - timedelta(days=3))
        site.change("update audit_events set at = :now where actor = 'Ana Kováč'", now=seeding.NOW)
        for query, expected in (
            ("actor=ben", ["Ben"]),
            ("action=decide_discard", ["Ana Kováč"]),
            ("route=payments", ["Ana Kováč"]),
            ("group=3", ["Ben"]),
            ("group=1", ["Ana Kováč"]),
            ("past=day", ["Ana Kováč"] * 2),
            ("until=2026-11-20", ["Ben"]),
            ("actor=nobody", []),
        ):
            assert [row[1] for row in entries(site.page(f"/audit?{query}"))] == expected, query
        assert len(entries(site.page("/audit?machine=1"))) > 20

    def test_goes_back_page_by_page_and_loses_nothing(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(audit_trail, "PAGE", 4)
        monkeypatch.setattr(audit_trail, "_PORTION", 7)
        monkeypatch.setattr(audit_trail, "GO_THROUGH", 30)
        for number in range(9):
            site.decide("discard", note=f"reason {number}", filter={"route": "orders", "group": str(number % 3 + 1)})
            site.decide("withdraw", note=f"reason {number}", filter={"route": "orders"})
        site.doors.name = "Ben"
        site.decide("discard", filter={"route": "payments"})
        for query, condition in (("", "actor <> 'redrive'"), ("actor=Ana+Kováč&machine=1", "actor = 'Ana Kováč'")):
            total, path = 0, f"/audit?{query}"
            while path:
                page = site.page(path)
                total += sum(int(row[3].replace(",", "")) for row in entries(page))
                following = re.search(r'rel="next" href="/redrive([^"]+)"', page)
                path = html.unescape(following[1]) if following else ""
            assert total == site.value(f"select sum(count) from audit_events where {condition}")

    def test_of_routes_that_may_not_be_read_tells_nothing(self, site: Site) -> None:
        site.decide("redeliver", filter={"route": "payments", "group": "2"}, note="hidden reason")
        stand(site, route="", note="for every route")
        assert [row[5] for row in entries(site.page("/audit"))] == ["for every route", "hidden reason"]
        site.doors.hidden = {"payments"}
        assert entries(site.page("/audit")) == entries(site.page("/audit?machine=1&group=2")) == []
        assert site.get("/audit?route=payments").status_code == 404

    @pytest.mark.parametrize("query", ["action=x", "group=x", "past=x", "since=x", "before=x", "actor=a%00"])
    def test_refuses_what_makes_no_sense(self, site: Site, query: str) -> None:
        assert site.get(f"/audit?{query}").status_code == 400


class TestStanding:
    def test_is_made_listed_and_ended_with_a_trail(self, site: Site) -> None:
        preview = text_of(site.page("/standing/new?route=orders&group=1"))
        lately = site.value("select count(*) from escalated_messages where route = 'orders' and group_id = 1")
        assert f"In the last two weeks that was {lately:,} messages on orders" in preview
        assert f"What waits now, {lately:,} , is left alone" in preview
        made = stand(site).json()
        assert made["by"] == "Ana Kováč"
        with site.ledger.read() as connection:
            (held,) = standing.in_force(connection, "orders", approvals=1, now=seeding.NOW)
        assert (held.group_id, held.decision, held.decided_by, held.note) == (1, "discard", "Ana Kováč", "test orders")
        for path in ("/standing", "/groups/orders/1"):
            assert "test orders" in site.page(path)
        site.doors.name = "Ben"
        assert site.post("/api/standing", action="end", standing=made["standing"]).status_code == 200
        assert site.post("/api/standing", action="end", standing=made["standing"]).status_code == 409
        assert "ended by Ben" in text_of(site.page("/standing"))
        assert "until: 2026-11-28 09:00 UTC" in text_of(site.page("/audit"))
        told = site.rows("select actor, action, route from audit_events where action like '%standing%' order by 1")
        assert told == [
            ("Ana Kováč", "make_standing_discard", "orders"),
            ("Ben", "revoke_standing_discard", "orders"),
        ]

    @pytest.mark.parametrize("route", ["orders", ""])
    def test_said_twice_is_one(self, site: Site, route: str) -> None:
        first = stand(site, route=route).json()
        assert stand(site, route=route).json() == first
        assert site.value("select count(*) from standing_decisions") == 1
        assert stand(site, route=route, note="others too").json() != first
        assert site.post("/api/standing", action="end", standing=first["standing"]).status_code == 200
        assert stand(site, route=route).json() != first, "that one stands no longer"
        site.doors.name = "Ben"
        stand(site, route=route)
        assert site.value("select count(*) from standing_decisions") == 4

    def test_said_again_after_another_was_made_is_one_of_its_own(self, site: Site) -> None:
        made = [stand(site, decision=said).json()["standing"] for said in ("redeliver", "discard", "redeliver")]
        assert len(set(made)) == 3
        with site.ledger.read() as connection:
            (held,) = standing.in_force(connection, "orders", approvals=1, now=seeding.NOW)
        assert (held.standing_id, held.decision) == (made[-1], "redeliver")

    @pytest.mark.parametrize("route", ["orders", ""])
    def test_one_that_its_group_suspended_says_so(self, site: Site, route: str) -> None:
        group = site.value("select min(group_id) from breakers where route = 'orders' and group_id is not null")
        first = stand(site, route=route, group=str(group), decision="redeliver").json()
        said = "suspended on orders:" if not route else "suspended:"
        assert "suspended" not in site.page("/standing") + site.page(f"/groups/orders/{group}")
        site.change(
            "update breakers set failed_at = :failed_at where group_id = :group and route = 'orders'",
            failed_at=seeding.NOW,
            group=group,
        )
        assert said in text_of(site.page("/standing"))
        assert "suspended:" in text_of(site.page(f"/groups/orders/{group}"))
        assert stand(site, route=route, group=str(group), decision="redeliver").json() != first, "she says it anew"
        site.doors.hidden = {"orders"}
        assert "suspended" not in site.page("/standing"), "that is told who may read the route"

    def test_a_second_person_approves_and_the_first_does_not(self, site: Site) -> None:
        made = stand(site, route="payments", decision="redeliver").json()["standing"]
        assert "waits for a second person" in site.page("/standing")
        assert "approve" not in site.page("/standing")
        assert site.post("/api/standing", action="approve", standing=made).status_code == 409
        site.doors.name = "Ben"
        assert "approve" in site.page("/standing")
        assert site.post("/api/standing", action="approve", standing=made).status_code == 200
        with site.ledger.read() as connection:
            (held,) = standing.in_force(connection, "payments", approvals=2, now=seeding.NOW)
        assert (held.decided_by, held.approved_by) == ("Ana Kováč", "Ben")

    def test_needs_the_right_to_decide_and_on_every_route_for_all(self, site: Site) -> None:
        made = stand(site, route="").json()["standing"]
        site.doors.read_only = {"payments"}
        assert "every route</option>" not in site.page("/standing/new?route=orders&group=1")
        assert stand(site, route="").status_code == stand(site, route="payments").status_code == 403
        assert stand(site).status_code == 200
        assert site.get("/standing/new?route=payments&group=1").status_code == 403
        assert site.post("/api/standing", action="end", standing=made).status_code == 403
        site.doors.hidden = {"payments"}
        assert stand(site, route="payments").status_code == 404
        site.change("update standing_decisions set revoked_by = 'x'")

    @pytest.mark.parametrize(
        "given",
        [
            {"decision": "edit"}, {"until": "2020-01-01"}, {"until": "soon"}, {"note": "x"}, {"group": "none"},
            {"group": "x"}, {"group": None}, {"until": ""}, {"more": 1},
        ],
    )  # fmt: skip
    def test_that_makes_no_sense_is_refused(self, site: Site, given: dict[str, Any]) -> None:
        assert stand(site, **given).status_code == 400
        assert site.rows("select * from standing_decisions") == []

    def test_about_a_group_that_is_not_there_is_refused(self, site: Site) -> None:
        assert stand(site, group="4711").status_code == 404
        assert site.get("/standing/new?route=orders&group=4711").status_code == 404
        assert site.post("/api/standing", action="end", standing=4711).status_code == 404

    def test_another_site_makes_none(self, site: Site) -> None:
        assert stand(site, headers={"origin": "http://evil.test"}).status_code == 403


class TestChanges:
    def told(self, site: Site) -> str:
        page = site.page("/")
        return text_of(page.partition('<section class="card changed"')[2].partition("</section>")[0])

    def test_since_the_last_visit_and_not_since_this_one(self, site: Site) -> None:
        assert "The last 24 hours you were not here before" in self.told(site)
        site.post("/api/visits")
        assert site.rows("select person, visited_at from page_visits")[0][0] == "Ana Kováč"
        site.change("update page_visits set visited_at = :then_at, since_at = :before_at",
                    then_at=seeding.NOW - timedelta(hours=5), before_at=seeding.NOW - timedelta(days=9))  # fmt: skip
        for _ in range(2):  # also while this visit goes on
            assert "Since you looked last, 5 h ago 2026-11-21 04:00" in self.told(site)
            site.post("/api/visits")
        site.doors.name = "Ben"
        assert "you were not here before" in self.told(site), "each has a last visit of their own"

    def test_tells_new_regressed_and_grown_failures_and_what_others_did(self, site: Site) -> None:
        site.post("/api/visits", seen=True)
        site.change("update page_visits set visited_at = :at, since_at = :at", at=seeding.NOW - timedelta(minutes=10))
        site.change("update escalated_messages set escalated_at = :old", old=seeding.NOW - timedelta(days=1))
        assert "Nothing has changed for people" in self.told(site)
        at = seeding.NOW - timedelta(minutes=1)
        for number, group in enumerate((1, 1, 2, 7)):
            seeding.escalate(site.ledger, 50 + number, "again", "{}", group_id=group, escalated_at=at)
        site.change("update messages set dead_lettered_at = :at where message_id = 52", at=seeding.NOW)
        site.change(
            "insert into failure_issues (route, group_id, status, written_by, written_at, status_at)"
            " values ('orders', 2, 'resolved', 'ben', :at, :at)",
            at=seeding.NOW - timedelta(hours=2),
        )
        site.change("delete from audit_events where actor <> 'redrive'")
        site.doors.name = "Ben"
        count = site.decide("discard", filter={"route": "payments", "group": "3"}).json()["count"]
        site.change("update audit_events set at = :at where actor = 'Ben'", at=seeding.NOW)
        site.doors.name = "Ana Kováč"
        told = self.told(site)
        assert "1 came back after they were resolved, 1 new, 1 have grown" in told
        assert re.search(r"LookupError: SKU <\*> not in catalogue grown \+2", told)
        assert re.search(r"KeyError: 'sku' at shop.orders.handle regressed \+1", told)
        assert re.search(r"429 Too Many Requests new \+1", told)
        assert f"Ben: decide discard {count}" in told
        (link,) = re.findall(r'href="/redrive(/audit\?actor=Ben[^"]*)"', site.page("/"))
        assert [row[1:4] for row in entries(site.page(html.unescape(link)))] == [["Ben", "decide discard", str(count)]]
        assert site.post("/api/visits", seen=True).json() == {"since": seeding.NOW.isoformat()}
        assert "Nothing has changed for people" in self.told(site)

    def test_of_many_the_largest_are_shown_and_the_rest_counted(self, site: Site) -> None:
        at = seeding.NOW - timedelta(minutes=1)
        for number in range(9):
            seeding.escalate(site.ledger, 60 + number, "again", "{}", group_id=100 + number, escalated_at=at)
        told = self.told(site)
        (new,) = re.findall(r"(\d+) new", told)
        assert told.count(" new +") == 8
        assert f"and {int(new) - 8} more" in told

    def test_of_routes_that_may_not_be_read_tells_nothing(self, site: Site) -> None:
        site.change("update escalated_messages set escalated_at = :at where route = 'payments'", at=seeding.NOW)
        site.change("update escalated_messages set escalated_at = :at where route <> 'payments'",
                    at=seeding.NOW - timedelta(days=9))  # fmt: skip
        assert "payments" in self.told(site)
        site.doors.hidden = {"payments"}
        assert "Nothing has changed for people" in self.told(site)

    def test_looking_changes_nothing_and_other_sites_mark_nothing(self, site: Site) -> None:
        site.page("/")
        assert site.post("/api/visits", {"origin": "http://evil.test"}, seen=True).status_code == 403
        assert site.post("/api/visits", seen="yes").status_code == 400
        assert site.rows("select * from page_visits") == []


@pytest.mark.server
def test_all_of_it_works_on_postgresql(make_site: Callable[..., Site], postgres_database: str) -> None:
    site = make_site(postgres_database)
    seeding.seed(site.ledger, per_day=10)
    site.change("insert into route_state (route) values ('payments') on conflict do nothing")
    count = site.decide("discard", filter={"route": "orders", "group": "1"}).json()["count"]
    made = stand(site).json()["standing"]
    everywhere = stand(site, route="", group="2", decision="redeliver").json()["standing"]
    (theirs, mine, many) = entries(site.page("/audit"))
    assert (mine[2], theirs[2], many[3]) == ("make standing discard", "make standing redeliver", str(count))
    assert len(entries(site.page("/audit?group=1&past=week&machine=1&actor=Ana+Kováč&route=orders"))) == 2
    site.page("/standing")
    site.page("/standing/new?route=orders&group=1")
    site.doors.name = "Ben"
    assert "Ana Kováč: decide discard" in text_of(site.page("/"))
    assert site.post("/api/standing", action="approve", standing=made).status_code == 200
    assert site.post("/api/standing", action="end", standing=everywhere).status_code == 200
    site.post("/api/visits")
    site.post("/api/visits", seen=True)
    assert "Nothing has changed" not in text_of(site.page("/")) or site.value("select count(*) from page_visits") == 1
