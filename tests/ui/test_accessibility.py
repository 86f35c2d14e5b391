"""The page in a browser without Airflow around it: what axe finds on every page in both themes, and what scripts do.

The identity alone is faked; see ``conftest.py``. What Airflow's frame, login and storage do is in
``test_in_a_browser.py``.
"""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from redrive.ledger import tables
from redrive_ui.rendering import PREFIX
from tests.servers import free_port
from tests.ui import seeding
from tests.ui.conftest import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PATIENCE = 60_000
expect.set_options(timeout=PATIENCE)


@pytest.fixture
def tab(site: Site, browser: Browser) -> Iterator[Page]:
    """A tab that finds the site under its path alone."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(site.client.app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    with closing(browser.new_context(base_url=f"http://127.0.0.1:{port}", timezone_id="Asia/Kolkata")) as context:
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        yield page
    server.should_exit = True
    thread.join()
    assert problems == []


def pages(site: Site) -> list[str]:
    """One of every kind of page, with something on it."""
    message = site.value("select min(message_id) from escalated_messages where route = 'orders'")
    escalation = site.value("select min(escalation_id) from escalated_messages where route = 'orders'")
    site.decide("redeliver", filter={"route": "orders", "group": "2"})
    site.post("/api/issues", failures=["orders~1"], status="acknowledged", owner="ana", comment="asked billing")
    at = site.value("select max(decided_at) from escalated_messages")
    until = (seeding.NOW + timedelta(days=7)).isoformat()
    site.post(
        "/api/standing", route="payments", group="1", decision="redeliver", until=until, note="an import mends it"
    )
    site.post("/api/filters", name="Carts of Berlin", page="messages", query="text=SKU&past=week")
    site.doors.name = "Ben"
    return [
        "/", "/routes/orders", "/plan/orders", "/groups", "/groups?tab=in_progress", "/groups?tab=done",
        "/groups/orders/1", "/groups/orders/2", "/messages", "/messages?route=orders&status=decided",
        f"/messages/{message}", "/find?word=nothing",
        "/find?word=order-1+confirmed&past=week", "/find?state=held", "/audit", "/audit?machine=1", "/standing",
        "/standing/new?route=orders&group=1", f"/decide?ids={escalation}&action=edit",
        "/decide?route=orders&group=1&action=redeliver", "/decide?route=orders&group=2&action=withdraw",
        f"/results?decided_by=Ana+Kov%C3%A1%C4%8D&decided_at={at}".replace(" ", "T"), "/nowhere",
    ]  # fmt: skip


#: What axe is asked for: everything in one theme, in the other what a theme may change.
THEMES: dict[str, dict[str, Any]] = {
    "light": {"resultTypes": ["violations"]},
    "dark": {"resultTypes": ["violations"], "runOnly": ["color-contrast", "link-in-text-block"]},
}


def test_axe_finds_nothing_on_any_page_in_either_theme(site: Site, tab: Page) -> None:
    found, papers = [], set()
    folder = os.environ.get("REDRIVE_SCREENSHOTS")
    for number, path in enumerate(pages(site)):
        tab.goto(PREFIX + path)
        for theme, options in THEMES.items():
            tab.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
            papers.add((theme, tab.evaluate("getComputedStyle(document.body).backgroundColor")))
            if folder:
                tab.screenshot(path=Path(folder) / f"axe-{theme}-{number}.png", full_page=True)
            for one in Axe().run(tab, options=options).response["violations"]:
                found += [
                    f"{path} ({theme}): {one['id']}: {node['html'][:200]}: {node['failureSummary'][:300]}"
                    for node in one["nodes"]
                ]
    assert not found, "\n".join(found)
    assert len({paper for _, paper in papers}) == len(papers) == len(THEMES)


def test_headers_and_body_are_corrected_and_what_changes_is_shown_first(site: Site, tab: Page) -> None:
    headers = [["tenant", "String", "red"], ["mail", "String", "kim@example.org"], ["trace", "String", "t-1"]]
    seeding.escalate(site.ledger, 7, "KeyError: 'sku'", '{"order": 1}', headers=headers)
    route = site.settings.routes["orders"].model_copy(update={"redact": ("email",)})
    site.settings = site.settings.model_copy(update={"routes": {**site.settings.routes, "orders": route}})
    tab.goto(f"{PREFIX}/messages/7")
    tab.get_by_role("link", name="Edit …").click()
    expect(tab.get_by_label("mail")).to_be_disabled()
    tab.get_by_label("Why?").fill("wrong tenant")
    button = tab.get_by_role("button", name="Send corrected 1 message")
    button.click()
    expect(tab.locator(".answer")).to_have_text("Nothing is corrected yet.")
    tab.get_by_label("tenant").fill("")
    button.click()
    expect(tab.locator(".answer")).to_contain_text("It can't be sent so: attribute tenant is empty")
    tab.get_by_label("tenant").fill("blue")
    tab.locator("li", has_text="trace").get_by_label("leave out").check()
    tab.get_by_label("Name of a new header").fill("retries")
    tab.get_by_label("Value of the new header").fill("3")
    tab.get_by_label("Type of the new header").fill("Number")
    tab.get_by_role("button", name="Another header").click()
    tab.keyboard.type("second")
    tab.get_by_label("Value of the new header").last.fill("x")
    button.click()
    expect(tab.locator("[data-difference] .goes")).to_have_text(["- tenant: red", "- trace: t-1"])
    expect(tab.locator("[data-difference] .comes")).to_have_text(
        ["+ tenant: blue", "+ retries: 3 (Number)", "+ second: x"]
    )
    assert site.value("select count(*) from escalated_messages where decision is not null") == 0
    button.click()
    expect(tab.get_by_role("heading", name="1 message decided by you")).to_be_visible()
    ((body, changes),) = site.rows(
        "select corrected_body, corrected_headers from escalated_messages where message_id = 7"
    )
    assert body is None
    assert json.loads(changes) == {"tenant": "blue", "trace": None, "retries": ["Number", "3"], "second": "x"}


def test_times_are_told_in_airflows_zone(site: Site, tab: Page) -> None:
    message = site.value("select min(message_id) from escalated_messages where route = 'orders'")
    tab.goto(f"{PREFIX}/messages/{message}")
    moment = tab.locator("time[data-moment]").first
    utc = datetime.fromisoformat(str(moment.get_attribute("title")))
    here = utc.astimezone(ZoneInfo("Asia/Kolkata"))
    expect(moment).to_have_text(f"{here:%Y-%m-%d %H:%M:%S} GMT+5:30")  # the browser's, as in Airflow without a choice
    tab.evaluate("localStorage.setItem('timezone', JSON.stringify('America/New_York'))")  # as Airflow keeps a choice
    tab.reload()
    expect(moment).to_have_text(f"{utc.astimezone(ZoneInfo('America/New_York')):%Y-%m-%d %H:%M:%S} EST")
    tab.evaluate("localStorage.setItem('timezone', 'nonsense')")
    tab.reload()
    expect(moment).to_have_text(f"{here:%Y-%m-%d %H:%M:%S} GMT+5:30")


def test_a_notification_leads_to_a_decision_on_a_thousand_in_four_page_loads_and_shows_later_that_it_helped(
    site: Site, tab: Page
) -> None:
    group, first = 40, 900 << 20
    with site.ledger.write() as connection:
        connection.execute(
            tables.failure_groups.insert(),
            {"group_id": group, "fingerprint": "thousand", "cause": "application_bug", "template": "KeyError: 'vat'",
             "first_seen_at": seeding.NOW, "last_seen_at": seeding.NOW, "first_route": "orders"},
        )  # fmt: skip
    seeding.escalate(site.ledger, first, "KeyError: 'vat'", "{}", group_id=group)
    for table, number in (("messages", "message_id"), ("escalated_messages", "message_id")):
        columns = [c.name for c in tables.metadata.tables[table].columns if c.name not in (number, "escalation_id")]
        unique = {"redrive_id": "redrive_id || n", "broker_message_id": "broker_message_id || n"}
        names = ", ".join(columns)
        taken = ", ".join(unique.get(name, name) if table == "messages" else name for name in columns)
        site.change(
            f"with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < 999)"
            f" insert into {table} ({number}, {names}) select {number} + n, {taken} from {table}, numbers"
            f" where {number} = {first}"
        )
    loads: list[str] = []
    tab.on("framenavigated", lambda frame: loads.append(frame.url))
    clicks = 0
    link = f"{PREFIX}/groups/orders/{group}"  # where the one of a notification leads
    tab.goto(link)
    expect(tab.get_by_text("KeyError: 'vat'").first).to_be_visible()
    for name in ("Redeliver …", "Redeliver 1,000 messages"):
        tab.get_by_role("link" if "…" in name else "button", name=name).click()
        clicks += 1
        if "…" in name:
            expect(tab.get_by_label("Why?")).to_be_focused()
            tab.keyboard.type("fixed in 1.4.3")
    expect(tab.get_by_role("heading", name="1,000 messages decided by you")).to_be_visible()
    assert (len(loads), clicks) == (3, 2)
    assert site.rows("select decision, count(*) from escalated_messages where decided_by = 'Ana Kováč' group by 1") == [
        ("redeliver", 1000)
    ]
    # An hour later: all went out, and four came back.
    site.change(f"update escalated_messages set status = 'applied', applied_at = decided_at where group_id = {group}")
    site.change(f"update messages set state = 'presumed' where group_id = {group}")
    site.change(f"update messages set state = 'escalated' where message_id between {first} and {first + 3}")
    for number in range(4):
        site.change(
            "insert into escalated_messages (message_id, route, group_id, cause, reason, size_bytes, source, attempts,"
            f" escalated_at) values ({first + number}, 'orders', {group}, 'application_bug', 'It came back.', 2,"
            f" 'orders-dlq', 1, '{seeding.NOW:%Y-%m-%d %H:%M:%S}.000000')"
        )
    loads.clear()
    tab.goto(link)
    expect(tab.locator(".steps").first).to_contain_text("996 stayed away")
    expect(tab.locator(".steps").first).to_contain_text("4 came back or are asked again")
    assert len(loads) == 1
