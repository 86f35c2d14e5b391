"""The list of failures and the page of one, over a seeded ledger."""

import html
import re
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest

from redrive.classification import causes
from redrive_ui import failure_queries
from tests.ui import seeding
from tests.ui.conftest import Site
from tests.ui.test_pages import text_of


class TestFailures:
    def test_the_next_one_is_the_first_of_those_that_wait(self, site: Site) -> None:
        seen = set()
        for _ in range(4):
            with site.ledger.read() as connection:
                (first, *_), _ = failure_queries.failures(
                    connection, ["orders", "payments"], lambda _, text: text, size=1
                )
                found = failure_queries.next_failure(connection, ["orders", "payments"])
            assert found is not None
            assert (found["route"], found["group_id"]) == (first["route"], first["group_id"])
            seen.add((found["route"], found["group_id"]))
            same = "is null" if found["group_id"] is None else f"= {found['group_id']}"
            site.change("update escalated_messages set decision = 'discard', decided_by = 'ana' where route = :route"
                        f" and group_id {same}", route=found["route"])  # fmt: skip
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

    def test_that_are_done_with_come_the_latest_first_and_are_counted_so_far_only(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def listed(path: str) -> tuple[list[str], list[str]]:
            shown: tuple[list[str], list[str]] = [], []
            following: str | None = path
            while following:
                page = site.page(following)
                shown[0].extend(re.findall(r'<td class="what"><a href="/redrive/groups/([^"]+)"', page))
                shown[1].extend(re.findall(r'<td class="n"><b>([^<]+)<', page))
                found = re.search(r'rel="next" href="/redrive([^"]+)"', page)
                following = html.unescape(found[1]) if found else None
            return shown

        for module in ("failure_queries", "pages.failures"):
            monkeypatch.setattr(f"redrive_ui.{module}.PAGE", 3)
        monkeypatch.setattr("redrive_ui.message_queries.COUNT_DONE", 20)
        seeding.escalate(site.ledger, 7, "LookupError", "{}", group_id=None)
        site.change(
            "update escalated_messages set status = 'applied', decision = 'discard', decided_by = 'ben',"
            " decided_at = :now, applied_at = :now where route = 'payments' or coalesce(group_id, 0) <> 1",
            now=seeding.NOW,
        )
        # Whoever ignores a failure is not asked about it, though questions of it are open.
        later = (seeding.NOW + timedelta(days=36500)).isoformat()
        site.post("/api/issues", failures=["orders~1"], status="ignored", ignored_until=later)
        rows = site.rows(
            "select route, coalesce(cast(group_id as text), 'none'), count(*) from escalated_messages"
            " group by route, group_id order by max(escalation_id) desc"
        )
        done = [(f"{route}/{group}", n) for route, group, n in rows]
        assert {n > 20 for _, n in done} == {True, False}
        assert any(group.endswith("/none") for group, _ in done)
        names, counts = listed("/groups?tab=done")
        assert names == [group for group, _ in done]
        assert counts == [str(n) if n <= 20 else "more than 20" for _, n in done]
        assert listed("/groups?tab=done&order=oldest")[0] == names[::-1]

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

    def test_what_is_said_at_once_is_kept_or_refused_at_once(self, site: Site) -> None:
        said: dict[str, Any] = {"failures": ["orders~1", "orders~2"], "owner": "ben", "comment": "asked billing"}
        site.change(
            "create trigger too_late before insert on issue_comments begin select raise(abort, 'too late'); end"
        )
        assert site.post("/api/issues", **said).status_code == 409
        assert site.rows("select * from failure_issues") == []
        site.change("drop trigger too_late")
        assert site.post("/api/issues", **said).json()["count"] == 2
        kept = site.rows("select owner, text from failure_issues inner join issue_comments using (route, group_id)")
        assert kept == [("ben", "asked billing")] * 2

    def test_that_were_decided_say_how_far_that_has_come(self, site: Site) -> None:
        at = site.decide("redeliver", filter={"failures": ["orders~1"]}).json()["at"]
        result = f"/results?decided_by=Ana+Kov%C3%A1%C4%8D&decided_at={quote(at)}"
        ids = [row[0] for row in site.rows("select message_id from escalated_messages where decided_by is not null")]
        assert f"{len(ids)} redeliver {len(ids)} not taken up yet" in text_of(site.page(result))
        for state, some in (("waiting", ids[:3]), ("held", ids[3:8]), ("sent", ids[8:10]), ("presumed", ids[10:])):
            for one in some:
                site.change(
                    "update messages set state = :state, releases = 1, plan = case when :state in ('waiting', 'held')"
                    " then 'release' end, next_attempt_at = case when :state in ('waiting', 'held') then changed_at end"
                    " where message_id = :id",
                    state=state,
                    id=one,
                )
        # As it is: what waits or is held is not applied before it is sent.
        site.change(
            "update escalated_messages set status = 'applied', applied_at = :now where status = 'decided'"
            " and message_id in (select message_id from messages where state in ('sent', 'presumed'))",
            now=seeding.NOW,
        )
        assert "Undo for" not in site.page(result)
        listed = text_of(site.page("/groups?tab=progress"))
        assert "8 decided, 2 under way" in listed
        assert re.search(r'<td class="n"><b>10<', site.page("/groups?tab=progress")), "each once"
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
        told = re.search(r"(\d+) held", page)
        assert told
        found = text_of(site.page(f"/find?route=orders&group={held}&state=held"))
        assert f"{told[1]} messages, newest first" in found, "which its number leads to"
        assert f"/find?route=orders&amp;group={held}&amp;state=held" in site.page(f"/groups/orders/{held}")
        assert page.count("3 of 5 came back") == 1
        assert "It waits for its cool-down, until" in page
        assert "Nobody was asked about a message of it." in page
        site.change("update messages set reason = 'It comes <b>back</b>.' where state = 'held' and route = 'orders'")
        one = site.value("select max(message_id) from messages where state = 'held' and route = 'orders'")
        page = site.page(f"/messages/{one}")
        assert f'href="/redrive/groups/orders/{held}">what failure {held} waits for' in page
        assert "It comes &lt;b&gt;back&lt;/b&gt;." in page
        assert "Next attempt" not in page, "it is not due while it is held"
