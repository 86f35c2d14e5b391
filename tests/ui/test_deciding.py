"""Decisions taken on the page: what they touch, whose name they carry, what they leave alone."""

import html
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy.engine import Connection

from redrive.errors import LedgerBusy
from redrive.ledger.engine import Ledger
from redrive_ui import bulk_decisions, request_context, result_queries
from tests.ui import seeding
from tests.ui.conftest import Site


def order_of(page: str) -> dict[str, Any]:
    """What the page's script would send, but for note and body."""
    found = re.search(r"data-decision='([^']+)'", page)
    assert found
    return dict(json.loads(html.unescape(found[1])))


def follow(site: Site, path: str, **body: Any) -> Any:
    """Open the preview and press its button."""
    order = order_of(site.page(path))
    return site.decide(order.pop("action"), **{**order, **body})


def test_a_group_is_decided_with_the_name_of_who_is_logged_in(site: Site) -> None:
    expected = site.value("select count(*) from escalated_messages where route = 'orders' and group_id = 1")
    page = site.page("/decide?route=orders&group=1&action=redeliver")
    assert f"Redeliver {expected:,} messages?" in page
    assert "canary: 20 first" in re.sub(r"\s+", " ", page)

    answer = follow(site, "/decide?route=orders&group=1&action=redeliver")

    assert answer.json() == {
        "action": "redeliver", "count": expected, "by": "Ana Kováč", "at": seeding.NOW.isoformat()
    }  # fmt: skip
    assert site.rows(
        "select distinct route, group_id, decision, decided_by, note from escalated_messages where status = 'decided'"
    ) == [("orders", 1, "redeliver", "Ana Kováč", "fixed in 1.4.2")]
    assert site.value("select count(*) from audit_events where actor = 'Ana Kováč'") == expected


def test_what_comes_after_the_preview_is_left_alone(site: Site) -> None:
    order = order_of(site.page("/decide?route=orders&group=1&action=discard"))
    seeding.escalate(site.ledger, 7, "LookupError: a new one", "{}", group_id=1)
    site.decide(order.pop("action"), **order)
    assert site.value("select status from escalated_messages where message_id = 7") == "open"


def test_what_somebody_else_decided_meanwhile_is_left_alone(site: Site) -> None:
    order = order_of(site.page("/decide?route=orders&group=1&action=discard"))
    site.change(
        "update escalated_messages set decision = 'redeliver', decided_by = 'ben' where group_id = 1 and"
        " escalation_id = (select min(escalation_id) from escalated_messages where group_id = 1 and route = 'orders')"
    )
    site.decide(order.pop("action"), **order)
    assert site.rows("select decision, count(*) from escalated_messages where decided_by = 'ben' group by 1") == [
        ("redeliver", 1)
    ]


def test_what_is_asked_again_after_the_preview_is_left_alone(site: Site) -> None:
    first = (
        "escalation_id = (select min(escalation_id) from escalated_messages where group_id = 1 and route = 'orders')"
    )
    site.change(f"update escalated_messages set decision = 'redeliver', decided_by = 'ben' where {first}")
    order = order_of(site.page("/decide?route=orders&group=1&action=discard"))
    site.change(f"update escalated_messages set decision = null, decided_by = 'ben' where {first}")
    assert site.decide(order.pop("action"), **order).json()["count"] == order["expected"]
    assert site.value(f"select status from escalated_messages where {first}") == "open"


def test_what_a_preview_saw_is_no_text_of_ones_own(site: Site) -> None:
    for seen in (7, "now", "1:2", "1' or 1=1"):
        assert site.decide("discard", seen=seen).status_code == 400


def test_a_correction_that_can_not_be_is_refused_at_once(site: Site) -> None:
    escalation = site.value("select min(escalation_id) from escalated_messages")
    answer = follow(site, f"/decide?ids={escalation}&action=edit", corrected_body='{"order": 1')
    assert answer.status_code == 400
    assert "corrected_body is not JSON" in answer.json()["detail"]
    assert site.value("select count(*) from escalated_messages where decision is not null") == 0


def test_who_was_faster_is_told_and_not_taken_for_success(site: Site) -> None:
    order = order_of(site.page("/decide?route=orders&group=1&action=discard"))
    site.change(
        "update escalated_messages set decision = 'redeliver', decided_by = 'ben', note = 'fixed' where group_id = 1"
        " and route = 'orders'"
    )
    answer = site.decide(order.pop("action"), **order).json()
    assert (answer["count"], answer["expected"]) == (0, order["expected"])
    assert answer["faster"] == [{"by": "ben", "decision": "redeliver", "count": order["expected"]}]

    order = order_of(site.page("/decide?route=orders&group=2&action=discard"))
    assert site.decide(order.pop("action"), **order).json().keys() == {"action", "count", "by", "at"}, (
        "all that it showed"
    )


def test_many_failures_are_decided_with_one_reason_and_taken_back_with_one_click(site: Site) -> None:
    path = "/decide?failures=orders~1&failures=payments~2&failures=orders~3&action=discard"
    chosen = "(route, group_id) in (values ('orders', 1), ('payments', 2), ('orders', 3))"
    expected = site.value(f"select count(*) from escalated_messages where {chosen}")
    answer = follow(site, path).json()
    assert answer["count"] == expected
    assert site.value(f"select count(*) from escalated_messages where {chosen} and decision = 'discard'") == expected
    site.change("update escalated_messages set decision = 'discard', decided_by = 'ben' where route = 'orders' and"
                " group_id = 4")  # fmt: skip

    result = site.page(f"/results?decided_by={quote(answer['by'])}&decided_at={quote(answer['at'])}")
    assert f"{expected:,} messages decided by you" in result
    undo = order_of(result)
    assert site.decide(**undo).json()["count"] == expected
    assert site.rows("select distinct decided_by from escalated_messages where status = 'decided'") == [("ben",)]
    assert "it was taken back" in site.page(
        f"/results?decided_by={quote(answer['by'])}&decided_at={quote(answer['at'])}"
    )


def test_what_is_taken_back_is_all_that_the_result_counts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_queries, "NEWEST", 10)
    monkeypatch.setattr(result_queries, "MOST", 2)
    answer = follow(site, "/decide?action=redeliver").json()
    result = site.page(f"/results?decided_by={quote(answer['by'])}&decided_at={quote(answer['at'])}")
    assert f"{answer['count']:,} messages decided by you" in result
    assert f"Undo for {answer['count']:,}<" in result
    assert "told of the newest 10, in at most 2 failures" in result
    undo = order_of(result)
    assert undo["routes"] == ["orders", "payments"]
    assert site.decide(**undo).json()["count"] == answer["count"]
    assert site.value("select count(*) from escalated_messages where status <> 'open'") == 0


def test_all_routes_are_decided_where_the_preview_named_them(site: Site) -> None:
    shown = site.rows("select route, count(*) from escalated_messages where status = 'open' group by route")
    assert len(shown) > 1
    assert follow(site, "/decide?action=redeliver").json()["count"] == sum(count for _, count in shown)
    assert site.value("select count(*) from escalated_messages where status = 'open'") == 0


def test_only_routes_that_are_named_are_decided(site: Site) -> None:
    answer = site.decide("discard", filter={}, routes=["orders", "no-such-route"]).json()
    assert answer["count"] == site.value("select count(*) from escalated_messages where route = 'orders'")
    assert site.rows("select distinct route from escalated_messages where status = 'decided'") == [("orders",)]
    for routes in (None, []):
        refused = site.decide("discard", filter={}, **({} if routes is None else {"routes": routes}))
        assert refused.status_code == 400
        assert "routes: name those that the preview showed" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, empty) for name in ("group", "text", "status") for empty in ("", "  ", None)),
        *(("ids", empty) for empty in ([], None, "")), *(("failures", empty) for empty in ([], None, "")),
        ("groups", "7"), ("Group", "7"), ("few", True), ("unmasked", []), ("message_id", 7),
    ],
)  # fmt: skip
def test_a_field_that_narrows_nothing_is_refused_and_not_taken_for_everything(
    site: Site, field: str, value: Any
) -> None:
    narrowed = {"route": "orders", field: value}
    for answer in (
        site.decide("discard", filter=narrowed),
        site.post("/api/corrections", filter=narrowed, corrected_body="{}"),
    ):
        assert answer.status_code == 400
        assert field in answer.json()["detail"]
    assert site.value("select count(*) from escalated_messages where decision is not null") == 0


def test_a_filter_decides_what_it_shows_and_no_more(site: Site) -> None:
    query = "route=orders&cause=missing_data&header=tenant%3Dblue&until=2026-11-15"
    expected = site.value(
        "select count(*) from escalated_messages where route = 'orders' and cause = 'missing_data' and headers like"
        " '%blue%' and first_enqueued_at < '2026-11-15'"
    )
    assert expected > 3
    assert follow(site, f"/decide?{query}&action=discard").json()["count"] == expected
    assert site.value("select count(*) from escalated_messages where status = 'decided'") == expected


def test_picked_messages_are_decided(site: Site) -> None:
    ids = [row[0] for row in site.rows("select escalation_id from escalated_messages order by 1 limit 3")]
    query = "&".join(f"ids={one}" for one in ids)
    assert follow(site, f"/decide?{query}&action=discard").json()["count"] == 3
    decided = site.rows("select escalation_id from escalated_messages where status = 'decided' order by 1")
    assert [row[0] for row in decided] == ids


def test_large_decisions_are_made_in_portions(site: Site, monkeypatch: Any) -> None:
    monkeypatch.setattr("redrive_ui.bulk_decisions.CHUNK", 7)
    expected = site.value("select count(*) from escalated_messages where route = 'orders'")
    assert site.decide("discard").json()["count"] == expected


def test_what_was_written_before_the_ledger_could_take_no_more_is_told(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = order_of(site.page("/decide?route=orders&action=discard"))
    write, begun = Ledger.write, list[Ledger]()

    @contextmanager
    def busy(ledger: Ledger) -> Iterator[Connection]:
        begun.append(ledger)
        if len(begun) == 3:
            raise LedgerBusy("locked")
        with write(ledger) as connection:
            yield connection

    with monkeypatch.context() as patched:
        patched.setattr(bulk_decisions, "CHUNK", 7)
        patched.setattr(Ledger, "write", busy)
        answer = site.decide(**order)
    told = answer.json()
    assert (answer.status_code, told["count"], told["stopped"]) == (200, 14, True)
    assert site.value("select count(*) from escalated_messages where decision = 'discard'") == 14
    result = site.page(f"/results?decided_by={quote(told['by'])}&decided_at={quote(told['at'])}")
    assert "14 messages decided by you" in result
    rest = site.decide(**order).json()
    assert rest["count"] == order["expected"] - 14
    assert "stopped" not in rest


def test_a_message_is_edited(site: Site) -> None:
    escalation = site.value("select min(escalation_id) from escalated_messages")
    page = site.page(f"/decide?ids={escalation}&action=edit")
    assert "&#34;customer&#34;" in page
    assert follow(site, f"/decide?ids={escalation}&action=edit", corrected_body='{"order": 1}').json()["count"] == 1
    assert site.rows("select decision, corrected_body from escalated_messages where decision is not null") == [
        ("edit", '{"order": 1}')
    ]


@pytest.mark.parametrize("end", ["\r", "\r\n"], ids=["HL7", "EDI"])
@pytest.mark.parametrize("masked", [False, True])
def test_an_edit_on_the_page_keeps_how_lines_end(site: Site, end: str, masked: bool) -> None:
    """A form ends each line with LF, and the consumer would not know its own message again."""
    lines = f"MSH|a{end}PID|kim@example.org{end}ZZZ|b{end}"
    seeding.escalate(site.ledger, 7, "no such segment", lines, content_type="text/plain")
    escalation = site.value("select escalation_id from escalated_messages where message_id = 7")
    if masked:
        route = site.settings.routes["orders"].model_copy(update={"redact": ("email",)})
        site.settings = site.settings.model_copy(update={"routes": {**site.settings.routes, "orders": route}})
    page = site.page(f"/decide?ids={escalation}&action=edit")
    shown = html.unescape(re.search(r"<textarea id=\"corrected\"[^>]*>\n([^<]*)</textarea>", page)[1])  # type: ignore[index]
    in_the_form = re.sub("\r\n|\r", "\n", shown).replace("ZZZ", "PV1")
    order = order_of(page)
    assert site.decide(**{**order, "note": "typo", "corrected_body": in_the_form}).json()["count"] == 1
    corrected = site.value("select corrected_body from escalated_messages where message_id = 7")
    assert corrected == lines.replace("ZZZ", "PV1")


def test_lines_that_end_in_several_ways_are_not_edited_on_the_page(site: Site) -> None:
    seeding.escalate(site.ledger, 7, "no such segment", "a\r\nb\nc", content_type="text/plain")
    escalation = site.value("select escalation_id from escalated_messages where message_id = 7")
    order = order_of(site.page(f"/decide?ids={escalation}&action=edit"))
    refused = site.decide(**{**order, "note": "typo", "corrected_body": "a\nb\nd"})
    assert (refused.status_code, "correct it in SQL" in refused.json()["detail"]) == (400, True)


def test_masked_values_are_locked_while_a_message_is_edited_and_come_back(site: Site) -> None:
    payload = '{"order": 1, "customer": {"name": "Kim", "mail": "kim@example.org"}}'
    seeding.escalate(site.ledger, 7, "KeyError", payload)
    escalation = site.value("select escalation_id from escalated_messages where message_id = 7")
    route = site.settings.routes["orders"].model_copy(update={"redact": ("email", "$.customer.name")})
    site.settings = site.settings.model_copy(update={"routes": {**site.settings.routes, "orders": route}})
    page = site.page(f"/decide?ids={escalation}&action=edit")
    assert "Kim" not in page
    assert "kim@" not in page
    shown = html.unescape(re.search(r"<textarea id=\"corrected\"[^>]*>\n([^<]*)</textarea>", page)[1])  # type: ignore[index]
    assert shown == '{"order": 1, "customer": {"name": "[redacted 1]", "mail": "[redacted 2]"}}'
    order = order_of(page)

    def check(body: str) -> Any:
        return site.post("/api/corrections", filter=order["filter"], corrected_body=body, restore=order["restore"])

    assert check(shown.replace("[redacted 1]", "Ben")).json()["detail"].startswith("[redacted 1] is missing")
    assert "not JSON" in check(shown[:-1]).json()["detail"]
    corrected = shown.replace('"order": 1', '"order": 2')
    told = check(corrected).json()["difference"]
    assert [one for one in told if one[0] in "+-"] == [["-", '  "order": 1,'], ["+", '  "order": 2,']]
    assert "Kim" not in str(told)
    assert site.value("select count(*) from escalated_messages where decision is not null") == 0, (
        "checking changes nothing"
    )
    refused = site.decide(**{**order, "note": "typo", "corrected_body": shown.replace("[redacted 2]", "x")})
    assert refused.status_code == 400
    assert site.decide(**{**order, "note": "typo", "corrected_body": corrected}).json()["count"] == 1
    assert site.value("select corrected_body from escalated_messages where message_id = 7") == payload.replace(
        '"order": 1', '"order": 2'
    )


def test_what_changes_is_shown_whatever_its_lines_begin_with() -> None:
    before = "-- rows\n" + "".join(f"{n}\n" for n in range(9)) + "++ end"
    assert bulk_decisions.difference(before, before.replace("-- rows", "-- all").replace("++ end", "++ over")) == [
        ("-", "-- rows"), ("+", "-- all"), (" ", "0"), (" ", "1"), (" ", "…"), (" ", "7"), (" ", "8"),
        ("-", "++ end"), ("+", "++ over"),
    ]  # fmt: skip
    assert bulk_decisions.difference("{}", "{}") == []


@pytest.mark.parametrize("status", [[], {}, 7, None, "done"])
def test_a_status_that_is_none_is_refused(site: Site, status: Any) -> None:
    assert site.post("/api/issues", failures=["orders~1"], status=status).status_code == 400


def test_who_may_not_decide_checks_no_correction(site: Site) -> None:
    escalation = site.value("select min(escalation_id) from escalated_messages where route = 'orders'")
    site.doors.read_only = {"orders"}
    given = {"filter": {"ids": [escalation]}, "corrected_body": "{}"}
    assert site.post("/api/corrections", **given).status_code == 403
    assert site.post("/api/issues", failures=["orders~1"], status="resolved").status_code == 403
    site.doors.hidden = {"orders"}
    assert site.post("/api/corrections", **given).status_code == 409
    assert site.post("/api/issues", failures=["orders~1"], status="resolved").status_code == 404


def test_the_same_name_in_other_letters_is_the_same_person(site: Site) -> None:
    site.change(
        "update escalated_messages set decision = 'redeliver', decided_by = case when message_id % 2 = 0 then ' ANA '"
        " else 'ben' end where route = 'payments' and group_id = 1"
    )
    site.doors.name = "ana"
    answer = follow(site, "/decide?route=payments&group=1&action=approve")
    assert answer.status_code == 200, answer.text
    assert answer.json()["count"] > 0
    assert site.rows("select distinct decided_by from escalated_messages where approved_by = 'ana'") == [("ben",)]
    ((own,),) = site.rows("select max(message_id) from escalated_messages where decided_by = ' ANA '")
    assert "Approve …" not in site.page(f"/messages/{own}")


def test_a_second_person_approves_and_the_first_does_not(site: Site) -> None:
    site.decide("redeliver", filter={"route": "payments", "group": "1"})
    own = site.decide("approve", filter={"route": "payments", "group": "1"})
    assert own.json()["count"] == 0
    of_group = "/groups/payments/1"
    assert "Approve" not in site.page(of_group)
    site.doors.name = "Ben"
    site.doors.read_only.add("payments")
    assert "Approve" not in site.page(of_group), "who may not decide is offered nothing"
    site.doors.read_only.clear()
    (offered,) = re.findall(r'href="/redrive(/decide[^"]*)">Approve', site.page(of_group))
    (at,) = re.findall(r'href="/redrive(/results[^"]*)"', site.page(of_group))
    assert offered in site.page(html.unescape(at))
    assert follow(site, html.unescape(offered)).json()["count"] > 0
    assert "Approve" not in site.page(of_group)
    assert site.rows(
        "select distinct decided_by, approved_by, note from escalated_messages where status = 'decided'"
    ) == [("Ana Kováč", "Ben", "fixed in 1.4.2")]
    assert site.decide("approve", filter={"route": "payments", "group": "1"}).json()["count"] == 0


def test_a_decision_is_withdrawn_as_long_as_it_was_not_taken_up(site: Site) -> None:
    site.decide("redeliver", filter={"route": "orders", "group": "1"})
    taken = site.value("select min(message_id) from escalated_messages where status = 'decided'")
    site.change(
        "update messages set state = 'waiting', plan = 'release', next_attempt_at = changed_at where message_id = :id",
        id=taken,
    )
    expected = site.value("select count(*) from escalated_messages where status = 'decided'") - 1
    assert (
        follow(site, "/decide?route=orders&group=1&action=withdraw", note="wait for 1.4.3").json()["count"] == expected
    )
    assert site.rows("select message_id from escalated_messages where status = 'decided'") == [(taken,)]


def test_the_timeline_tells_who_decided(site: Site) -> None:
    message = site.value("select min(message_id) from escalated_messages where route = 'orders'")
    site.decide("discard", note="nobody needs it", filter={"route": "orders"})
    page = site.page(f"/messages/{message}")
    assert "Ana Kováč decided: discard" in page
    assert "nobody needs it" in page


def test_nothing_left_to_decide_is_told(site: Site) -> None:
    site.decide("discard")
    assert "somebody was faster" in site.page("/decide?route=orders&action=redeliver")
    assert site.decide("discard").json()["count"] == 0


def test_headers_are_corrected_and_what_is_masked_of_them_is_locked(site: Site) -> None:
    headers = [
        ["tenant", "String", "red"], ["mail", "String", "kim@example.org"], ["blob", "Binary", "/w=="],
        ["x-redrive-id", "String", "old"], ["ErrorCode", "String", "500"],
    ]  # fmt: skip
    seeding.escalate(site.ledger, 7, "KeyError", '{"order": 1}', headers=headers)
    escalation = site.value("select escalation_id from escalated_messages where message_id = 7")
    schema = {"type": "object", "properties": {"order": {"type": "integer"}}}
    route = site.settings.routes["orders"].model_copy(update={"redact": ("email",), "body_schema": schema})
    site.settings = site.settings.model_copy(update={"routes": {**site.settings.routes, "orders": route}})
    page = site.page(f"/decide?ids={escalation}&action=edit")
    assert "kim@" not in page
    fields = re.findall(r'data-header="\d" data-locked="(\w+)" value="([^"]*)"', page)
    assert fields == [("no", "red"), ("yes", "[redacted email]"), ("yes", "/w==")]
    assert """data-headers='["tenant", "mail", "blob"]'""" in page
    order = order_of(page)

    def check(body: str | None = None, **headers: Any) -> Any:
        return site.post("/api/corrections", filter=order["filter"], corrected_headers=headers, corrected_body=body)

    assert check(mail="x@example.org").json()["detail"].startswith("header 'mail' is locked")
    assert check(blob=None).json()["detail"].startswith("header 'blob' is locked")
    assert "written by Redrive alone" in check(**{"x-redrive-id": "9"}).json()["detail"]
    assert "SQS takes at most 10" in check(**{f"h{n}": "x" for n in range(8)}).json()["detail"]
    assert "type has to be" in check('{"order": "one"}').json()["detail"], "the route's schema, before anything is kept"
    assert check().status_code == 400
    told = check(tenant="blue", new=["Number", "7"]).json()
    assert told == {
        "headers": [["-", "tenant: red"], ["+", "tenant: blue"], ["+", "new: 7 (Number)"]], "difference": []
    }  # fmt: skip
    assert site.value("select count(*) from escalated_messages where decision is not null") == 0
    changes = {"tenant": "blue", "new": ["Number", "7"]}
    answer = site.decide(**{**order, "note": "typo", "corrected_headers": changes | {"mail": "x"}})
    assert answer.status_code == 400
    assert site.decide(**{**order, "note": "typo", "corrected_headers": changes}).json()["count"] == 1
    assert site.rows("select corrected_body, corrected_headers from escalated_messages where message_id = 7") == [
        (None, json.dumps(changes))
    ]
    assert "Corrected headers" in site.page("/messages/7")


def test_whoever_left_a_transaction_open_holds_no_thread_of_the_api_server(
    make_site: Callable[..., Site], ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_context, "PATIENCE", timedelta(seconds=0.5))
    site = make_site(ledger_url)
    seeding.seed(site.ledger, per_day=3)
    with site.ledger.write() as lunch:
        lunch.exec_driver_sql("update escalated_messages set note = 'hm'")
        answer = site.decide("discard")
    assert answer.status_code == 503
    assert "Somebody else is changing the same" in answer.text
    assert site.decide("discard").status_code == 200
