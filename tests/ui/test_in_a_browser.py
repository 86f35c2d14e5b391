"""The page in a real browser, inside the real Airflow: log in, look, decide, see it applied.

The Airflow is that of other tests too. The dead letters are a thousand real ones of an SQS-compatible server; a history
is planted around them, so that there is something to see. Screenshots go to ``$REDRIVE_SCREENSHOTS`` where it is set.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, FrameLocator, Locator, Page, expect

from redrive import settings
from redrive.dev import airflow_environment
from redrive.dev.local_airflow import Airflow
from redrive.ledger import tables
from redrive.ledger.engine import Ledger
from redrive.notify import channels
from redrive.notify.channels import Notification
from redrive.stages import pipeline
from tests import real_airflow
from tests.classifying import classify
from tests.crawling import follow_links
from tests.real_airflow import LASTING, VIEWER, Rest, Shop
from tests.ui import seeding

pytestmark = [pytest.mark.airflow, pytest.mark.server, pytest.mark.timeout(1200)]

PATIENCE = 60_000  # milliseconds; what is waited for takes one or two where nothing else runs
expect.set_options(timeout=PATIENCE)  # 5 s unless told
HOSTILE_ID = 900 << 20
TEN = 700  # failures of one message each, and more for one task each
ISSUE, IGNORED, EDITED, STANDS, ONE, TWO, APPROVED = range(TEN + 10, TEN + 17)
THOUSAND = 1000


#: Of the route a field by which its messages are found, and another route, where two people decide.
MORE = """    search: ["body:$.order"]
  payments:
    broker: amazon_sqs
    connection: sqs_test
    schedule: null
    approvals: 2
    sources: [{queue: payments-dlq}]
    destination: {queue: payments}
"""


@pytest.fixture(scope="module")
def told() -> list[Notification]:
    """What people were notified of before Airflow began."""
    return []


@pytest.fixture(scope="module")
def dead(shop: Shop, told: list[Notification]) -> Shop:
    """The shop with a history, and a thousand orders that just died of a bug and were put before people."""
    file = shop.home / "config" / "redrive.yaml"
    file.write_text(f"page: http://{airflow_environment.HOST}:{shop.house.port}\n{file.read_text()}{MORE}")
    ledger = Ledger(settings.load().database)
    seeding.seed(ledger, now=datetime.now(UTC))
    for number, text in enumerate(seeding.HOSTILE.values()):
        seeding.escalate(ledger, HOSTILE_ID + number, text, text, group_id=3, headers=[[text, "String", text]])
    _plant_failures(ledger)
    Path(settings.load().staging, "orders").mkdir(parents=True)  # else the place of the files would look gone
    with ledger.write() as connection:  # none of the history may move: its files aren't there
        later = datetime.now(UTC) + timedelta(days=30)
        gates, messages = tables.breakers, tables.messages
        connection.execute(
            gates.update().where(gates.c.stage == "failed").values(stage="tripped", cool_down_until=later)
        )
        connection.execute(messages.update().where(messages.c.state == "waiting").values(next_attempt_at=later))
    ledger.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channels, "send", lambda notification, _: told.append(notification))
        run_the_route()  # people hear of the history
        told.clear()
        shop.fail(THOUSAND, LASTING)
        run_the_route()
    return shop


def run_the_route(now: datetime | None = None) -> None:
    """All stages but the one that sends."""
    configured = settings.load()
    clock = {"clock": lambda: now or datetime.now(UTC)}
    run = pipeline.begin(configured, "orders", trigger="cli", holder="test", **clock)
    pipeline.observe(configured, run, **clock)
    pipeline.drain(configured, run, **clock)
    manifest = pipeline.prepare_classification(configured, run, **clock)
    if manifest is not None:
        classify(manifest)
    for stage in (pipeline.load, pipeline.resolve, pipeline.plan, pipeline.escalate):
        stage(configured, run, **clock)
    pipeline.finish(configured, run, "succeeded", **clock)


def _plant_failures(ledger: Ledger) -> None:
    """Ten failures of one message each, and those that one task each is about."""
    now = datetime.now(UTC)
    for group in range(TEN, APPROVED + 1):
        with ledger.write() as connection:
            connection.execute(
                tables.failure_groups.insert(),
                {"group_id": group, "fingerprint": f"planted-{group}", "cause": "application_bug",
                 "template": f"ZeroDivisionError: in step {group}", "first_seen_at": now, "last_seen_at": now,
                 "first_route": "payments" if group == APPROVED else "orders"},
            )  # fmt: skip
        for number, where in enumerate(("of billing", "of mail") if group == TWO else ("",)):
            plant(ledger, group, 2 * group + number, f"step {group} {where}".strip())
    with ledger.write() as connection:
        connection.exec_driver_sql(
            f"update escalated_messages set decision = 'discard', decided_by = 'ben' where group_id = {APPROVED}"
        )


def plant(ledger: Ledger, group: int, number: int, said: str) -> None:
    """One more message of a planted failure, and the question about it."""
    error = f"Traceback (most recent call last):\n  File 'shop.py', line {group}\nZeroDivisionError: {said}"
    route = "payments" if group == APPROVED else "orders"
    now, message = datetime.now(UTC), HOSTILE_ID + number
    seeding.escalate(ledger, message, error, "{}", group_id=group, route=route, escalated_at=now)
    with ledger.write() as connection:
        died = tables.messages.update().where(tables.messages.c.message_id == message).values(dead_lettered_at=now)
        connection.execute(died)


@pytest.fixture(scope="module")
def airflow(dead: Shop) -> Airflow:
    return dead.house.airflow()


def logged_in(browser: Browser, airflow: Airflow, user: str) -> BrowserContext:
    """A browser window's worth of cookies, after the login form."""
    context = browser.new_context(viewport={"width": 1280, "height": 860}, base_url=airflow.url)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.goto("/auth/login")
    page.locator("input[name=username]").fill(user)
    page.locator("input[name=password]").fill(airflow_environment.password(airflow.environment, user))
    page.locator("button[type=submit]").click()
    page.wait_for_function("document.cookie !== null && !location.pathname.startsWith('/auth/login')")
    page.close()
    return context


@pytest.fixture(scope="module")
def admin(browser: Browser, airflow: Airflow) -> Iterator[BrowserContext]:
    context = logged_in(browser, airflow, airflow_environment.USER)
    yield context
    context.close()


@pytest.fixture(scope="module")
def viewer(browser: Browser, airflow: Airflow) -> Iterator[BrowserContext]:
    context = logged_in(browser, airflow, VIEWER)
    yield context
    context.close()


@pytest.fixture
def page(admin: BrowserContext) -> Iterator[Page]:
    """A tab of the admin's; nothing that the page does may fail in its console."""
    tab = admin.new_page()
    problems: list[str] = []
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on(
        "console",
        lambda said: problems.append(said.text) if "Content Security Policy" in said.text else None,
    )
    tab.on("dialog", lambda dialog: problems.append(dialog.message))
    yield tab
    tab.close()
    assert problems == []


@pytest.fixture(scope="module")
def picture() -> Callable[[Page, str], None]:
    """Keeps what a tab shows."""
    folder = os.environ.get("REDRIVE_SCREENSHOTS")

    def take(tab: Page, name: str) -> None:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            tab.screenshot(path=Path(folder) / f"{name}.png")

    return take


def within(tab: Page) -> FrameLocator:
    """The page in Airflow's frame."""
    return tab.frame_locator("iframe[title=Redrive]")


DISCARDED_BY_US = "select count(*) from escalated_messages where decision = 'discard' and decided_by <> 'ben'"


class Hand:
    """What a person does at a tab, from the first page of Redrive in Airflow on: clicks, which are counted, and keys.

    No page is reached but by what is on the one before.
    """

    def __init__(self, tab: Page) -> None:
        self.tab = tab
        self.clicks = 0
        tab.goto("/plugin/redrive")
        self.page = within(tab)

    def click(self, what: Locator) -> None:
        self.ready(what)
        what.click()
        self.clicks += 1

    def ready(self, what: Locator) -> None:
        """What a page does about clicks and keys it does once it is read to its end; a row is seen before that."""
        what.wait_for()
        for frame in self.tab.frames:
            frame.wait_for_load_state("domcontentloaded")

    def follow(self, words: str) -> None:
        """Click the link, or the button, that says so."""
        found = self.page.get_by_role("link", name=words, exact=True)
        for other in (
            self.page.get_by_role("button", name=words, exact=True),
            self.page.locator("summary", has_text=words),
        ):
            found = found.or_(other)
        self.click(found.first)

    def choose(self, label: str, option: str) -> None:
        """Open a list, and pick."""
        self.page.locator("label", has_text=re.compile(f"^{label}")).locator("select").first.select_option(option)
        self.clicks += 2

    def write(self, text: str, *, into: str | None = None) -> None:
        """Type, where the cursor is or into a field that is clicked."""
        if into is not None:
            self.click(self.page.get_by_label(into, exact=True))
        self.tab.keyboard.type(text)

    def explain(self, why: str) -> None:
        """Type into the field that asks for it, which has the cursor without a click, also within Airflow's frame."""
        expect(self.page.get_by_label("Why?")).to_be_focused()
        self.write(why)

    def press(self, key: str) -> None:
        self.tab.keyboard.press(key)

    def open_failure(self, group: int, *, route: str = "orders") -> None:
        """From the table of failures."""
        self.click(self.page.locator(f'[data-row]:has([aria-label="Pick failure {group} on {route}"]) .what a'))

    def find(self, words: str) -> None:
        """Search in every state, by the box in the corner."""
        self.write(words, into="Find a message")
        self.press("Enter")

    def sees(self, text: str | re.Pattern[str]) -> None:
        expect(self.page.get_by_text(text).first).to_be_visible()


def test_nobody_sees_anything_before_the_login(browser: Browser, airflow: Airflow) -> None:
    context = browser.new_context(base_url=airflow.url)
    context.set_default_timeout(PATIENCE)
    tab = context.new_page()
    answer = tab.goto("/redrive/")
    assert answer
    assert answer.status == 401
    expect(tab.get_by_role("heading")).to_have_text("Not logged in")
    expect(tab.get_by_role("link", name="Log in")).to_have_attribute("href", "/auth/login?next=%2Fredrive%2F")
    context.close()


def test_the_page_is_in_airflows_navigation(page: Page, picture: Callable[[Page, str], None]) -> None:
    page.goto("/")
    page.get_by_role("button", name="Browse").click()
    page.get_by_role("menuitem", name="Redrive").click()
    frame = within(page)
    expect(frame.get_by_role("heading", name="Routes")).to_be_visible()
    expect(frame.get_by_text("wait for a person").first).to_be_visible()
    expect(frame.locator(".who")).to_have_text(airflow_environment.USER)
    picture(page, "routes")
    frame.get_by_role("link", name="Failures", exact=True).first.click()
    expect(frame.get_by_role("heading", name="Failures that wait for a decision")).to_be_visible()
    picture(page, "failures")
    page.wait_for_url("**/plugin/redrive/redrive/groups")  # so that the address can be sent to somebody


def test_ten_failures_are_decided_with_one_reason_in_thirteen_clicks_and_taken_back_with_one(
    page: Page, dead: Shop, picture: Callable[[Page, str], None]
) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    hand = Hand(page)
    hand.follow("Failures")
    expect(hand.page.locator("[data-row]").nth(9)).to_be_in_viewport()
    for number in range(10):
        hand.click(hand.page.get_by_label(f"Pick failure {TEN + number} on orders"))
    picture(page, "triage")
    hand.follow("Discard …")
    expect(hand.page.get_by_role("heading", name="Discard 10 messages?")).to_be_visible()
    hand.explain("test orders")
    hand.follow("Discard 10 messages")
    expect(hand.page.get_by_role("heading", name="10 messages decided by you")).to_be_visible()
    assert hand.clicks == 13, "the way to the table is one of them"
    hand.follow("Undo for 10")
    hand.sees("Nothing of it stands")
    assert dead.query(DISCARDED_BY_US) == [(0,)]


def test_a_failure_gets_an_owner_a_ticket_and_a_comment_and_says_when_it_is_back(
    page: Page, dead: Shop, picture: Callable[[Page, str], None]
) -> None:
    hand = Hand(page)
    hand.follow("Failures")
    hand.click(hand.page.get_by_label(f"Pick failure {ISSUE} on orders"))
    hand.choose("How far", "in progress")
    expect(hand.page.get_by_label(f"Pick failure {ISSUE} on orders")).to_have_count(0)  # it waits no more
    hand.click(hand.page.get_by_role("link", name=re.compile("^In progress")))
    row = hand.page.locator(f'[data-row]:has([aria-label="Pick failure {ISSUE} on orders"])')
    hand.ready(row)
    for _ in range(hand.page.locator("[data-row]").count()):  # what was decided is in progress, too
        hand.press("j")
        if row.evaluate("row => row.classList.contains('here')"):
            break
    hand.press("x")
    expect(hand.page.locator("[data-picked-count]").first).to_have_text("1")
    hand.press("Enter")
    hand.follow("Change it, or say something")
    hand.write("ana", into="Owner")
    hand.press("Tab")
    hand.write("https://tickets.example.org/SHOP-412")
    hand.press("Tab")
    hand.write("asked the team of billing")
    hand.press("Enter")
    hand.sees("asked the team of billing")
    expect(hand.page.get_by_role("link", name="https://tickets.example.org/SHOP-412")).to_be_visible()
    assert hand.clicks == 7, "six and the field"
    picture(page, "issue")
    assert dead.query(f"select status, owner, written_by from issue_state where group_id = {ISSUE}") == [
        ("in_progress", "ana", airflow_environment.USER)
    ]
    hand.clicks = 0
    hand.follow("Change it, or say something")
    hand.choose("How far", "resolved")
    hand.follow("Write it down")
    expect(hand.page.locator("h2 .pill.good")).to_have_text("resolved")
    assert hand.clicks == 4
    plant(dead.ledger, ISSUE, 100 + ISSUE * 2, f"step {ISSUE}")
    hand.follow("Routes")
    hand.sees("came back after they were resolved")
    back = hand.page.locator(".changed li", has_text=f"in step {ISSUE}")
    expect(back.locator(".pill")).to_have_text("regressed")
    hand.click(back.get_by_role("link"))
    expect(hand.page.locator("h2 .pill.bad")).to_have_text("regressed")
    assert hand.clicks == 6, "two to see what has changed since one looked last, and to open it"


def test_a_failure_is_ignored_until_a_day_by_six_clicks(page: Page, dead: Shop) -> None:
    hand = Hand(page)
    hand.follow("Failures")
    hand.open_failure(IGNORED)
    hand.follow("Change it, or say something")
    hand.choose("How far", "ignored")
    for _ in range(2):  # from the words that were clicked by the list to the day
        hand.press("Tab")
    for part in ("12312096", "1000AM"):
        hand.write(part)
        hand.press("Tab")
    hand.follow("Write it down")
    hand.sees(re.compile("Ignored until 2096-12-31 10:00"))
    assert hand.clicks == 6
    assert dead.query(f"select status from issue_state where group_id = {IGNORED}") == [("ignored",)]


def test_a_message_is_looked_at_taken_as_a_file_corrected_and_taken_back(page: Page, dead: Shop) -> None:
    hand = Hand(page)
    hand.follow("Failures")
    hand.open_failure(EDITED)
    hand.follow(str(HOSTILE_ID + 2 * EDITED))
    assert hand.clicks == 3
    with page.expect_download() as taken:
        hand.follow("as a file")
    assert taken.value.path().read_text() == "{}"
    hand.follow("Edit …")
    hand.explain("the order is known")
    hand.click(hand.page.get_by_label("Corrected payload"))
    hand.press("Control+a")
    hand.write('{"order": 1')
    hand.follow("Send corrected 1 message")
    hand.sees(re.compile("It can't be sent so: corrected_body is not JSON"))
    hand.click(hand.page.get_by_label("Corrected payload"))
    hand.press("Control+End")
    hand.write("}")
    hand.follow("Send corrected 1 message")
    expect(hand.page.locator("[data-difference] .comes").nth(1)).to_have_text('+   "order": 1')
    hand.follow("Send corrected 1 message")
    expect(hand.page.get_by_role("heading", name="1 message decided by you")).to_be_visible()
    assert hand.clicks == 10, "seven without the file, the mistake and what mends it"
    assert dead.query(f"select decision, corrected_body from escalated_messages where group_id = {EDITED}") == [
        ("edit", '{"order": 1}')
    ]
    hand.follow("Undo for 1")
    hand.sees("Nothing of it stands")
    assert dead.query(f"select decision from escalated_messages where group_id = {EDITED}") == [(None,)]


def test_messages_are_found_by_parts_fields_and_headers_and_the_filter_is_kept(
    page: Page, dead: Shop, picture: Callable[[Page, str], None]
) -> None:
    hand = Hand(page)
    found = hand.page.locator("table.found tbody tr")
    for clicks, (words, by) in enumerate(
        {
            "rder-10": "key",
            "order:77": "order",
            "header:tenant=blue": "header",
            "text:KeyError": "what went wrong",
        }.items(),
        start=1,
    ):
        hand.find(words)
        expect(hand.page.get_by_label("Id, key, or part of a text")).to_have_value(words)
        expect(found.first.locator("td").last).to_contain_text(by)
        assert hand.clicks == clicks, words
    hand.find("typ:confirmed order-1")
    hand.follow("state:confirmed")
    expect(found.first.locator(".pill")).to_have_text("confirmed")
    hand.follow("Save this filter")
    hand.write("confirmed orders", into="Name")
    hand.press("Enter")
    expect(hand.page.get_by_role("link", name="confirmed orders")).to_be_visible()
    assert hand.clicks == 8, "an unknown word, what it may mean, and two to keep it"
    picture(page, "search")
    hand.follow("Messages")
    expect(hand.page.get_by_role("heading", name="Messages in review")).to_be_visible()
    hand.follow("confirmed orders")
    expect(found.first.locator(".pill")).to_have_text("confirmed")
    hand.follow("Remove filter confirmed orders")
    expect(hand.page.get_by_role("link", name="confirmed orders")).to_have_count(0)
    assert hand.clicks == 11


def test_a_decision_stands_and_ends_and_who_did_it_is_told(
    page: Page, dead: Shop, picture: Callable[[Page, str], None]
) -> None:
    hand = Hand(page)
    hand.follow("Failures")
    hand.open_failure(STANDS)
    hand.follow("Decide what comes …")
    hand.explain("test orders of the load test")
    hand.follow("Let it stand")
    hand.sees("test orders of the load test")
    assert hand.clicks == 4
    picture(page, "standing")
    assert dead.query("select decided_by, route, group_id from standing_decisions") == [
        (airflow_environment.USER, "orders", STANDS)
    ]
    hand.follow("End")
    hand.sees(f"ended by {airflow_environment.USER}")
    hand.follow("Audit")
    hand.choose("What", "revoke standing redeliver")
    hand.follow("Filter")
    expect(hand.page.get_by_role("cell", name="revoke standing redeliver")).to_be_visible()
    expect(hand.page.locator("table.audit tbody tr")).to_have_count(1)
    picture(page, "audit")
    assert hand.clicks == 9
    hand.follow("Routes")
    expect(hand.page.get_by_role("heading", name=re.compile("The last 24 hours|Since you looked last"))).to_be_visible()
    hand.follow("Mark as seen")
    hand.sees("Nothing has changed for people.")
    assert hand.clicks == 11


def test_failures_are_joined_and_split_and_both_are_taken_back(page: Page, dead: Shop) -> None:
    hand = Hand(page)
    for group, offered, button in (
        (ONE, "ZeroDivisionError: in step", "They are one failure"),
        (TWO, "of billing", "It is a failure of its own"),
    ):
        hand.clicks = 0
        hand.follow("Failures")
        hand.open_failure(group)
        hand.follow("One failure or two? …")
        expect(hand.page.get_by_role("heading", name="One failure or two?")).to_be_visible()
        hand.click(hand.page.get_by_role("link").filter(has_text=offered).first)
        expect(hand.page.get_by_role("heading", name="What will happen")).to_be_visible()
        hand.explain("the same line of code" if group == ONE else "two programs")
        hand.follow(button)
        hand.sees("waits for a run")
        assert hand.clicks == 5
        hand.follow("Take back")
        hand.sees(f"revoked by {airflow_environment.USER}")
    assert dead.query("select ruling, revoked_by from group_rulings order by ruling_id") == [
        ("merge", airflow_environment.USER), ("split", airflow_environment.USER)
    ]  # fmt: skip


def test_a_second_person_approves_by_five_clicks(page: Page, dead: Shop) -> None:
    hand = Hand(page)
    hand.follow("Failures")
    hand.click(hand.page.get_by_role("link", name=re.compile("^In progress")))
    hand.open_failure(APPROVED, route="payments")
    hand.sees("wait for a second person")
    hand.follow("Approve 1 …")
    hand.follow("Approve 1 message")
    hand.sees(re.compile("Done: approve, 1 message|decided by"))
    assert hand.clicks == 5
    assert dead.query(f"select decided_by, approved_by from escalated_messages where group_id = {APPROVED}") == [
        ("ben", airflow_environment.USER)
    ]


def test_a_viewer_reads_and_does_not_decide(viewer: BrowserContext, dead: Shop) -> None:
    tab = viewer.new_page()
    tab.goto("/redrive/groups/orders/1")
    expect(tab.get_by_role("region", name="Messages")).to_be_visible()
    expect(tab.get_by_role("link", name="Redeliver …")).to_have_count(0)
    expect(tab.locator("[data-pick]")).to_have_count(0)
    answer = tab.goto("/redrive/decide?route=orders&group=1&action=discard")
    assert answer
    assert answer.status == 403
    tab.goto("/redrive/")
    status = tab.evaluate(
        """async () => (await fetch("/redrive/api/decisions", {method: "POST", headers: {"Content-Type":
        "application/json"}, body: JSON.stringify({action: "discard", note: "just so", up_to: 1000000,
        filter: {route: "orders"}})})).status"""
    )
    assert status == 403
    assert dead.query(DISCARDED_BY_US) == [(0,)]
    tab.close()


def test_a_program_decides_with_a_token_of_its_own(airflow: Airflow, dead: Shop) -> None:
    rest = Rest(airflow)
    wanted = "select escalation_id from escalated_messages where message_id = "
    ((escalation,),) = dead.query(f"{wanted}{HOSTILE_ID}")
    body = {"action": "withdraw", "filter": {"ids": [escalation]}, "up_to": escalation, "note": "only to see"}
    status, answer = rest.call("POST", "/redrive/api/decisions", body)
    assert (status, answer) == (200, {"action": "withdraw", "count": 0, "by": airflow_environment.USER})
    rest.token = "forged"
    assert rest.call("POST", "/redrive/api/decisions", body)[0] == 401


def test_another_site_can_not_decide(browser: Browser, admin: BrowserContext, airflow: Airflow, dead: Shop) -> None:
    tab = admin.new_page()
    tab.route("http://evil.localhost/**", lambda route: route.fulfill(body="<h1>evil</h1>", content_type="text/html"))
    tab.goto("http://evil.localhost/")
    said = tab.evaluate(
        """async (url) => { try { return (await fetch(url, {method: "POST", credentials: "include", mode: "no-cors",
        headers: {"Content-Type": "text/plain"}, body: '{"action": "discard"}'})).type }
        catch (e) { return "failed" } }""",
        f"{airflow.url}/redrive/api/decisions",
    )
    assert said in ("opaque", "failed")
    assert dead.query(DISCARDED_BY_US) == [(0,)]
    tab.close()


@pytest.mark.parametrize("number", range(len(seeding.HOSTILE)), ids=list(seeding.HOSTILE))
def test_hostile_texts_are_texts(page: Page, number: int) -> None:
    text = list(seeding.HOSTILE.values())[number]
    for path in (f"messages/{HOSTILE_ID + number}", "messages", "groups/orders/3"):
        page.goto(f"/redrive/{path}")
        assert page.title().endswith("· Redrive")
    page.goto(f"/redrive/messages/{HOSTILE_ID + number}")
    shown = page.locator("#payload").inner_text()
    expected = "".join(c if c.isprintable() else f"U+{ord(c):04X}" for c in text)
    assert shown == expected
    # Nothing turned the line around: what comes first stands left of what comes last, or above it.
    first, last = page.evaluate(
        """() => { const walk = document.createTreeWalker(document.querySelector("#payload"), NodeFilter.SHOW_TEXT);
        const places = []; while (walk.nextNode()) { const range = document.createRange(), node = walk.currentNode;
        if (!node.data) continue; range.setStart(node, 0); range.setEnd(node, 1);
        const at = range.getBoundingClientRect(); places.push([Math.round(at.top / 12), at.left]); }
        return [places[0], places[places.length - 1]]; }"""
    )
    assert first <= last
    escalation = page.locator("a", has_text="Edit …").get_attribute("href")
    page.goto(str(escalation))
    assert page.locator("#corrected").input_value() == text
    assert page.title() == "Send corrected · Redrive"


def test_it_is_dark_and_light_as_airflow_is(page: Page, picture: Callable[[Page, str], None]) -> None:
    paper = "() => getComputedStyle(document.body).backgroundColor"
    page.goto("/redrive/")
    page.emulate_media(color_scheme="light")
    light = page.evaluate(paper)
    page.evaluate("localStorage.setItem('theme', 'dark')")
    page.reload()
    dark = page.evaluate(paper)
    assert dark != light
    picture(page, "dark")
    page.evaluate("localStorage.setItem('theme', 'light')")
    page.emulate_media(color_scheme="dark")
    page.reload()
    assert page.evaluate(paper) == light
    page.evaluate("localStorage.removeItem('theme')")
    page.reload()
    assert page.evaluate(paper) == dark


def test_it_works_with_a_keyboard_and_in_a_narrow_window(page: Page, picture: Callable[[Page, str], None]) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    for path in ("", "routes/orders", "groups", "groups/orders/1", "messages", f"messages/{HOSTILE_ID}", "plan/orders",
                 "find?word=order-1", "audit?machine=1", "standing", "standing/new?route=orders&group=1"):  # fmt: skip
        page.goto(f"/redrive/{path}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    page.goto("/redrive/groups")
    picture(page, "narrow")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    page.keyboard.press("Enter")
    while page.evaluate("document.activeElement.closest('[data-row] .what') === null"):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/groups/orders/*")
    page.locator("[data-pick]").first.focus()
    page.keyboard.press("Space")
    expect(page.locator("[data-picked-count]").first).to_have_text("1")
    page.get_by_role("button", name="Discard", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Discard 1 message?")).to_be_visible()
    expect(page.get_by_label("Why?")).to_be_focused()
    page.goto("/redrive/")
    page.keyboard.press("/")
    expect(page.get_by_label("Find a message")).to_be_focused()
    page.keyboard.type(str(HOSTILE_ID))
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=f"Message {HOSTILE_ID}")).to_be_visible()


def test_every_link_of_every_page_leads_somewhere(admin: BrowserContext, airflow: Airflow) -> None:
    """Also those to Airflow's own pages."""

    def look(address: str) -> tuple[int, str]:
        answer = admin.request.get(address, timeout=PATIENCE)
        return answer.status, answer.text() if "text/html" in answer.headers["content-type"] else ""

    known = follow_links(look)
    assert len([path for path in known if path.startswith("/redrive/") and "/messages/" not in path]) > 60
    assert any(path.startswith("/dags/") for path in known)


def test_a_notification_leads_to_a_decision_on_a_thousand_in_two_minutes_and_an_hour_later_to_what_became_of_it(
    page: Page, dead: Shop, airflow: Airflow, told: list[Notification], picture: Callable[[Page, str], None]
) -> None:
    ((event,),) = [notification.events for notification in told]
    group = event.facts["group_id"]
    loads: list[str] = []
    page.on("request", lambda one: loads.append(one.url) if one.is_navigation_request() else None)
    began, clicks = time.monotonic(), 0

    def click(what: Locator) -> None:
        nonlocal clicks
        what.click()
        clicks += 1

    page.goto(event.link)
    frame = within(page)
    expect(frame.get_by_text("1,000 messages", exact=True)).to_be_visible()
    expect(frame.get_by_text("KeyError: 'sku'").first).to_be_visible()
    picture(page, "notified")
    click(frame.get_by_role("link", name="Redeliver …"))
    expect(frame.get_by_role("heading", name="Redeliver 1,000 messages?")).to_be_visible()
    button = frame.get_by_role("button", name="Redeliver 1,000 messages")
    click(button)  # the reason is missing: the browser itself says so
    assert dead.query("select count(*) from escalated_messages where status = 'decided' and route = 'orders'") == [(0,)]
    expect(frame.get_by_label("Why?")).to_be_focused()
    page.keyboard.type("fixed in 1.4.2")
    picture(page, "deciding")
    click(button)
    expect(frame.get_by_role("heading", name="1,000 messages decided by you")).to_be_visible()
    assert time.monotonic() - began < 120
    assert (len(loads), clicks) == (4, 3), loads  # Airflow's own page is one of the four
    expect(frame.locator(".steps")).to_contain_text("1,000 not taken up yet")
    picture(page, "result")
    assert dead.query(
        f"select decided_by, note, count(*) from escalated_messages where group_id = {group} group by 1, 2"
    ) == [(airflow_environment.USER, "fixed in 1.4.2", THOUSAND)]

    rest = Rest(airflow)
    deadline = time.monotonic() + real_airflow.PATIENCE
    while rest.call("GET", "/api/v2/dags/redrive_review")[0] != 200:
        assert time.monotonic() < deadline, rest.call("GET", "/api/v2/importErrors")
        time.sleep(0.5)
    assert rest.trigger("redrive_review", "from-the-page")[0] == 200
    assert rest.wait("redrive_review", "from-the-page") == "success", rest.states("redrive_review", "from-the-page")
    assert dead.query(f"select distinct status from escalated_messages where group_id = {group}") == [("applied",)]
    assert dead.depth("orders") == THOUSAND

    assert dead.consume(lambda body: LASTING if body["order"] in (7, 70, 700, 77) else None) == THOUSAND
    for minutes in (0, 10, 20, 60):  # some see the queue worked off; by the last the window of what was sent is over
        run_the_route(datetime.now(UTC) + timedelta(minutes=minutes))
    page.goto("about:blank")  # what was open looks again by itself
    loads.clear()
    page.goto(event.link)
    expect(frame.locator(".steps").first).to_contain_text("996 stayed away")
    expect(frame.locator(".steps").first).to_contain_text("4 came back or are asked again")
    assert len(loads) == 2, loads  # Airflow's page, and this one in it
    picture(page, "failure")

    ((message,),) = dead.query(
        "select min(message_id) from messages where state in ('presumed', 'confirmed')"
        f" and message_id in (select message_id from escalated_messages where group_id = {group})"
    )
    page.goto(f"/plugin/redrive/redrive/messages/{message}")
    story = within(page).locator(".timeline li")
    expect(story.filter(has_text="admin decided: redeliver")).to_be_visible()
    expect(story.filter(has_text="attempt 1 sent")).to_be_visible()
    expect(story.filter(has_text="decision applied: redeliver")).to_be_visible()
    picture(page, "message")
    story.get_by_role("link", name="DAG run").first.click()
    page.wait_for_url("**/dags/redrive_review/runs/**")  # around the frame, not within it
