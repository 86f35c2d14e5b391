"""The page in a browser without Airflow around it: what axe finds on every page in both themes, and what scripts do.

The identity alone is faked; see ``conftest.py``. What Airflow's frame, login and storage do is in
``test_in_a_browser.py``.
"""

import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect

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
    problems: list[str] = []
    try:
        while not server.started:  # else nobody listens yet when the tab asks
            assert thread.is_alive()
            time.sleep(0.005)
        with closing(browser.new_context(base_url=f"http://127.0.0.1:{port}", timezone_id="Asia/Kolkata")) as context:
            context.set_default_timeout(PATIENCE)
            page = context.new_page()
            page.on("pageerror", lambda error: problems.append(str(error)))
            yield page
    finally:
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
        "/standing/new?route=orders&group=1", "/rulings/new?route=orders&group=1", "/rulings",
        f"/decide?ids={escalation}&action=edit",
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


def test_a_page_that_looks_again_by_itself_waits_for_the_answer_to_what_was_decided(site: Site, tab: Page) -> None:
    site.decide("redeliver", filter={"route": "orders", "group": "2"})
    at = site.value("select max(decided_at) from escalated_messages")
    tab.goto(f"{PREFIX}/results?decided_by=Ana+Kov%C3%A1%C4%8D&decided_at={at}".replace(" ", "T"))

    def slowly(route: Route) -> None:
        tab.evaluate("refresh(0)")
        tab.wait_for_timeout(300)
        route.continue_()

    tab.route("**/api/decisions", slowly)
    tab.get_by_role("button", name="Undo").click()
    expect(tab.get_by_text("Nothing of it stands")).to_be_visible()


def test_a_double_click_says_it_once(site: Site, tab: Page) -> None:
    asked: list[str] = []

    def slowly(route: Route) -> None:
        asked.append(route.request.url.partition("/api/")[2])
        time.sleep(0.3)
        route.continue_()

    tab.route("**/api/*", slowly)
    tab.goto(f"{PREFIX}/groups/orders/1")
    tab.get_by_text("Change it, or say something").click()
    tab.get_by_label("Comment").fill("asked billing")
    tab.get_by_role("button", name="Write it down").dblclick()
    expect(tab.get_by_text("asked billing")).to_be_visible()
    tab.goto(f"{PREFIX}/standing/new?route=orders&group=1")
    tab.get_by_label("Why?").fill("known")
    tab.get_by_role("button", name="Let it stand").dblclick()
    expect(tab.get_by_text("known")).to_be_visible()
    tab.get_by_role("button", name="end").dblclick()
    expect(tab.get_by_text("ended by")).to_be_visible()
    assert asked == ["issues", "standing", "standing"]
    tab.goto(f"{PREFIX}/groups/orders/1")
    tab.get_by_text("Change it, or say something").click()
    tab.get_by_role("button", name="Write it down").click()
    expect(tab.get_by_text("Not done: nothing to say")).to_be_visible()
    expect(tab.get_by_role("button", name="Write it down")).to_be_enabled()


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

    # And so are those that people give.
    tab.goto(f"{PREFIX}/messages?since=2026-11-15T20:00")
    expect(tab.get_by_label(re.compile(r"^from \(Asia/(Kolkata|Calcutta)\)"))).to_have_value("2026-11-16T01:30")
    tab.get_by_label(re.compile(r"^from \(Asia/(Kolkata|Calcutta)\)")).fill("2026-11-17T00:00")
    tab.get_by_role("button", name="Filter").click()
    tab.wait_for_url("**since=2026-11-16T18%3A30%3A00.000Z**")
    expect(tab.get_by_label(re.compile(r"^from \(Asia/(Kolkata|Calcutta)\)"))).to_have_value("2026-11-17T00:00")
    tab.get_by_label("Enqueued").select_option("today")
    tab.get_by_role("button", name="Filter").click()
    tab.wait_for_url(re.compile("zone=Asia%2F(Kolkata|Calcutta)"))  # as the browser calls it
    assert "since=&" in tab.url
    expect(tab.get_by_label("Enqueued").locator(":checked")).to_have_text("today")
    tab.evaluate("localStorage.setItem('timezone', JSON.stringify('America/New_York'))")
    tab.reload()
    expect(tab.get_by_label("Enqueued").locator(":checked")).to_have_text(
        re.compile(r"today \(Asia/.*\)")
    )  # a colleague's
    tab.goto(f"{PREFIX}/messages?until=2026-10-25T05:59")  # an hour before clocks go back there
    expect(tab.get_by_label("to (America/New York)")).to_have_value("2026-10-25T01:59")
    tab.get_by_label("to (America/New York)").fill("2026-11-01T02:00")  # and an hour after
    tab.get_by_role("button", name="Filter").click()
    tab.wait_for_url("**until=2026-11-01T07%3A00%3A00.000Z**")

    tab.goto(f"{PREFIX}/standing/new?route=orders&group=1")
    shown = tab.get_by_label("until (America/New York)")
    expect(shown).to_have_value(f"{seeding.NOW.astimezone(ZoneInfo('America/New_York')) + timedelta(7):%Y-%m-%dT%H:%M}")
    tab.get_by_label("For").select_option("one day")
    tab.get_by_label("Why?").fill("only to see")
    tab.get_by_role("button", name="Let it stand").click()
    expect(tab.get_by_text("only to see")).to_be_visible()
    assert site.value("select until_at from standing_decisions") == f"{seeding.NOW + timedelta(1):%Y-%m-%d %H:%M:%S.%f}"
    tab.goto(f"{PREFIX}/groups/orders/1")
    tab.get_by_text("Change it, or say something").click()
    tab.get_by_label("How far").select_option("ignored")
    tab.get_by_label("Ignored until (America/New York)").fill("2096-11-25T08:00")
    tab.get_by_role("button", name="Write it down").click()
    expect(tab.get_by_text("Ignored until 2096-11-25 08:00:00 EST")).to_be_visible()
