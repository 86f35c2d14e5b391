"""People join groups and split them on the page: what that changes is shown before, and it can be taken back."""

import html
import re
import secrets
from datetime import timedelta
from typing import Any

import pytest

from redrive.ledger import leases
from redrive.ledger.review import rulings
from redrive_ui.group_rulings import distinguishing
from tests.ui import seeding
from tests.ui.conftest import Site
from tests.ui.test_audit_trail import text_of

MERGE = {"ruling": "merge", "route": "orders", "group": "101", "other": "100", "note": "one fix"}
SPLIT = {"ruling": "split", "route": "orders", "group": "101", "words": "in hall b", "note": "another team"}


@pytest.fixture
def shop(site: Site) -> Site:
    """Two groups of one cause, with three and two open questions."""
    for group, template in ((100, "LookupError: shelf is empty"), (101, "LookupError: shelf is bare in hall <*>")):
        site.change(
            "insert into failure_groups (group_id, fingerprint, cause, template, messages, first_seen_at, last_seen_at,"
            " first_route) values (:id, :name, 'missing_data', :template, 3, :at, :at, 'orders')",
            id=group, name=f"f{group}", template=template, at=seeding.NOW,
        )  # fmt: skip
        site.change(
            "insert into breakers (route, group_id, stage, stage_at, began_at)"
            " values ('orders', :id, :stage, :at, :at)",
            id=group, stage="open" if group == 100 else "canary", at=seeding.NOW - seeding.DAY,
        )  # fmt: skip
    for number in range(5):
        group = 100 if number < 3 else 101
        where = "is empty" if group == 100 else f"is bare in hall {'ab'[number - 3]} near gate"
        seeding.escalate(site.ledger, 8000 + number, f"LookupError: shelf {where}", "{}", group_id=group)
    return site


def rule(site: Site, **changes: Any) -> Any:
    given = {name: value for name, value in (MERGE | changes).items() if value is not None}
    return site.post("/api/rulings", **given)


def carry_out(site: Site) -> dict[str, int]:
    lease = leases.acquire(
        site.ledger, "orders", run_id=secrets.token_hex(4), trigger="bench", holder="t", ttl=timedelta(minutes=5),
        now=seeding.NOW,
    )  # fmt: skip
    done = rulings.apply(site.ledger, lease, seeding.NOW)
    leases.release(site.ledger, lease, status="succeeded", now=seeding.NOW)
    return done


class TestJoining:
    def test_the_likeliest_groups_of_the_cause_are_offered_and_others_are_found_by_words(self, shop: Site) -> None:
        page = shop.page("/rulings/new?route=orders&group=101")
        assert re.findall(r"other=(\d+)", page)[:1] == ["100"]
        assert "other=2&" not in page, "of another cause"
        assert 'other=1"' in shop.page("/rulings/new?route=orders&group=101&word=catalogue")
        assert 'other=100"' in shop.page("/rulings/new?route=orders&group=101&word=100")
        assert "No other group" in shop.page("/rulings/new?route=orders&group=101&word=nothing+like+this")
        assert "/rulings/new?route=orders&amp;group=101" in shop.page("/groups/orders/101")

    def test_what_it_changes_is_shown_before_and_happens_then(self, shop: Site) -> None:
        preview = text_of(shop.page("/rulings/new?route=orders&group=100&other=101"))
        assert "orders: 2 open questions are asked under group 100" in preview
        assert "it begins a canary anew" in preview
        shop.change("delete from breakers where group_id = 101")  # nothing of it was planned
        assert "it begins a canary anew" in text_of(shop.page("/rulings/new?route=orders&group=100&other=101"))
        shop.change(
            "insert into breakers (route, group_id, stage, stage_at, began_at)"
            " values ('orders', 101, 'open', :at, :at)",
            at=seeding.NOW - seeding.DAY,
        )
        assert "canary anew" not in text_of(shop.page("/rulings/new?route=orders&group=100&other=101"))
        shop.change(
            "insert into failure_issues (route, group_id, status, owner, status_at, written_by, written_at)"
            " values ('orders', 101, 'resolved', 'ben <b>', :at, 'ana', :at)",
            at=seeding.NOW,
        )
        preview = text_of(shop.page("/rulings/new?route=orders&group=100&other=101"))
        assert "orders: group 101 is resolved , ben <b> has it. That stays with its old name" in preview
        shop.change("update breakers set stage = 'canary' where group_id = 101")
        assert rule(shop).json() == {"ruling": 1, "by": "Ana Kováč"}
        assert "waits for a run" in shop.page("/rulings")
        assert carry_out(shop) == {"applied": 1, "refused": 0, "asked_elsewhere": 2}
        assert shop.value("select count(*) from escalated_messages where group_id = 100") == 5
        assert shop.value("select stage from breakers where route = 'orders' and group_id = 100") == "canary"
        assert shop.rows("select actor, action, reason from audit_events where action in ('rule_merge', 'merge_groups')"
                         " order by event_id") == [
            ("Ana Kováč", "rule_merge", "one fix"),
            ("redrive", "merge_groups", "ruling 1 by Ana Kováč: one fix"),
        ]  # fmt: skip
        assert "rule merge" in text_of(shop.page("/audit"))
        assert "It takes in" in shop.page("/rulings/new?route=orders&group=100")

    def test_it_can_be_taken_back_once(self, shop: Site) -> None:
        rule(shop)
        carry_out(shop)
        shop.doors.name = "Ben"
        assert '{"revoke": 1}' in html.unescape(shop.page("/rulings"))
        assert shop.post("/api/rulings", revoke=1).json() == {"ruling": 1, "by": "Ben"}
        assert shop.post("/api/rulings", revoke=1).status_code == 409
        assert shop.post("/api/rulings", revoke=4711).status_code == 409
        carry_out(shop)
        assert shop.rows("select * from group_aliases") == []
        page = shop.page("/rulings")
        assert "revoked by Ben" in text_of(page)
        assert '"revoke"' not in html.unescape(page)

    def test_groups_that_are_one_are_told_apart_again(self, shop: Site) -> None:
        rule(shop)
        carry_out(shop)
        preview = text_of(shop.page("/rulings/new?route=orders&group=100&other=101"))
        assert "goes by its own group again" in preview
        assert rule(shop, ruling="split", group="100", other="101").status_code == 200
        carry_out(shop)
        assert shop.rows("select * from group_aliases") == []

    @pytest.mark.parametrize(
        ("other", "why"),
        [("2", "A group has one cause"), ("100", "A standing decision about group 100")],
    )
    def test_what_can_not_hold_is_refused_at_once_and_said_before(self, shop: Site, other: str, why: str) -> None:
        shop.change(
            "insert into standing_decisions (group_id, decision, decided_by, note, created_at, until_at)"
            " values (100, 'discard', 'ana', 'n', :at, :until)",
            at=seeding.NOW,
            until=seeding.NOW + seeding.DAY,
        )
        said = text_of(shop.page(f"/rulings/new?route=orders&group=101&other={other}"))
        assert (f"It can't be said. {why}" in said, ".." in said) == (True, False)
        answer = rule(shop, other=other)
        assert (answer.status_code, why in answer.json()["detail"]) == (409, True)
        assert shop.rows("select * from group_rulings") == []

    def test_the_same_is_not_said_twice(self, shop: Site) -> None:
        assert rule(shop).status_code == 200
        assert rule(shop).status_code == 409
        assert rule(shop, group="100", other="101").status_code == 409


class TestSplitting:
    def test_words_that_tell_its_questions_apart_are_offered(self, shop: Site) -> None:
        page = text_of(shop.page("/rulings/new?route=orders&group=101"))
        assert "“ bare in hall a near ” 1 of 2" in page
        assert "all say the same" in shop.page("/rulings/new?route=orders&group=100")

    def test_what_it_splits_off_is_shown_before_and_happens_then(self, shop: Site) -> None:
        preview = text_of(shop.page("/rulings/new?route=orders&group=101&words=In+hall++B"))
        assert "Of the newest 2 questions on orders 1 say so" in preview
        assert "none of them" in shop.page("/rulings/new?route=orders&group=101&words=in+the+yard")
        assert rule(shop, **SPLIT, other=None).status_code == 200
        assert rule(shop, **SPLIT, other=None).status_code == 409
        assert carry_out(shop)["applied"] == 1
        assert shop.value("select template from failure_groups where group_id > 101").endswith("[in hall b]")
        assert "in hall b" in shop.page("/rulings")

    def test_words_that_differ_from_message_to_message_are_refused(self, shop: Site) -> None:
        assert "differs from message to message" in shop.page("/rulings/new?route=orders&group=101&words=hall+4711")
        assert rule(shop, **SPLIT | {"words": "hall 4711"}, other=None).status_code == 409

    def test_what_is_masked_is_not_found_by_its_words(self, shop: Site) -> None:
        seeding.escalate(shop.ledger, 8010, "LookupError: shelf is bare, ask kim@example.com", "{}", group_id=101)
        route = shop.settings.routes["orders"].model_copy(update={"redact": ("email",)})
        shop.settings = shop.settings.model_copy(update={"routes": {**shop.settings.routes, "orders": route}})
        page = shop.page("/rulings/new?route=orders&group=101")
        assert "kim@" not in page
        assert "none of them" in shop.page("/rulings/new?route=orders&group=101&words=kim@")

    def test_the_phrase_that_parts_most_evenly_comes_first(self) -> None:
        told = [("cannot read from north <*>", 5), ("cannot read from south <*>", 4), ("cannot write at all", 1)]
        assert [(one["words"], one["have"], one["of"]) for one in distinguishing(told)][:2] == [
            ("cannot read from north", 5, 10), ("cannot read from south", 4, 10)
        ]  # fmt: skip


class TestWhoMay:
    PATHS = ("/rulings/new?route=orders&group=101", "/rulings/new?route=orders&group=101&other=100")

    def test_it_takes_the_right_to_decide_on_every_route(self, shop: Site) -> None:
        shop.doors.read_only = {"payments"}
        for path in self.PATHS:
            assert shop.get(path).status_code == 403
        for given in ({}, {"other": None, **SPLIT}):
            assert rule(shop, **given).status_code == 403
        assert shop.post("/api/rulings", revoke=1).status_code == 403
        assert shop.page("/rulings")
        assert shop.rows("select * from group_rulings") == []

    def test_a_hidden_route_is_not_named(self, shop: Site) -> None:
        shop.doors.hidden = {"payments"}
        for answer in (shop.get(self.PATHS[0]), rule(shop), shop.get("/rulings")):
            assert (answer.status_code, "payments" in answer.text) == (403, False)
        shop.doors.hidden = {"orders"}
        assert shop.get(self.PATHS[0]).status_code == 404

    def test_what_is_no_ruling_is_refused(self, shop: Site) -> None:
        by_words: dict[str, Any] = {"other": None, "words": "a", "ruling": "split"}
        for changes in (
            *({"group": "x"}, {"group": 101}, {"other": "101"}, {"note": " "}, {"note": "x" * 2_001}, {"words": "a"}),
            *({"ruling": "join"}, {"other": None}, {"more": "1"}, {"note": "no\0te"}, by_words | {"words": " "}),
            *(by_words | {"ruling": "merge"}, by_words | {"words": "x" * 201}),
        ):
            assert rule(shop, **changes).status_code == 400, changes
        for group, other in (("4711", "100"), ("101", "4711")):
            assert rule(shop, group=group, other=other).status_code == 404
            assert shop.get(f"/rulings/new?route=orders&group={group}&other={other}").status_code == 404
        assert shop.rows("select * from group_rulings") == []

    def test_another_site_says_nothing(self, shop: Site) -> None:
        for headers in (
            {"origin": "http://evil.test"},
            {"sec-fetch-site": "cross-site"},
            {"content-type": "text/plain"},
        ):
            assert shop.post("/api/rulings", headers, **MERGE).status_code in (403, 415)
        assert shop.rows("select * from group_rulings") == []


@pytest.fixture
def hostile(shop: Site) -> Site:
    text = " ".join(seeding.HOSTILE.values())
    shop.change("update failure_groups set template = :t || ' shelf' where group_id in (100, 101)", t=text)
    seeding.escalate(shop.ledger, 8020, f"{text} one", "{}", group_id=101)
    return shop


def test_hostile_texts_are_texts(hostile: Site) -> None:
    text = seeding.HOSTILE["script"]
    assert rule(hostile, note=text).status_code == 200
    assert rule(hostile, other=None, **SPLIT | {"words": "<svg onload=alert>", "note": text}).status_code == 200
    for path in ("/rulings", "/rulings/new?route=orders&group=101", "/rulings/new?route=orders&group=101&other=100",
                 "/rulings/new?route=orders&group=101&words=%3Csvg+onload%3D1%3E", "/rulings/new?route=orders&group=101"
                 "&word=%3Cscript%3Ealert(1)%3C/script%3E"):  # fmt: skip
        page = hostile.page(path)
        assert "<script>document" not in page
        assert "<svg xmlns" not in page.replace('<svg xmlns="http://www.w3.org/2000/svg" class', "")
        assert "<script>alert" not in page
        assert "\u202e" not in page
        assert "\x1b" not in page
