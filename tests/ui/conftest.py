"""The page over a seeded ledger, with a login that tests choose: identity is the only thing that is faked."""

import copy
import functools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from playwright.sync_api import Browser, sync_playwright
from starlette.datastructures import State
from starlette.requests import Request

from redrive.ledger.engine import Ledger
from redrive.settings import Settings
from redrive_ui.app import create_app
from redrive_ui.identity import NotLoggedIn, Person
from redrive_ui.rendering import PREFIX
from redrive_ui.request_context import AppState
from tests.probe import Probe
from tests.servers import missing
from tests.ui import seeding


class Doors:
    """Who comes in, and what they may; everything to begin with."""

    def __init__(self) -> None:
        self.name: str | None = "Ana Kováč"
        self.hidden: set[str] = set()
        self.read_only: set[str] = set()
        self.admins: set[str] = set()

    async def person(self, request: Request) -> Person:
        if self.name is None:
            raise NotLoggedIn("Not authenticated")
        return Person(self.name)

    def readable(self, person: Person, routes: Iterable[str]) -> frozenset[str]:
        return frozenset(routes) - self.hidden

    def may_decide(self, person: Person, route: str) -> bool:
        return route not in self.read_only

    def administers(self, person: Person) -> bool:
        return person.name in self.admins

    def login_url(self, back: str) -> str:
        return f"/auth/login?next={back}"


@functools.cache
def _made() -> FastAPI:
    """The application as Airflow has it: its routes and templates are read once, as there."""
    return create_app(Doors())


class Site(Probe):
    """The page as a browser meets it, mounted where Airflow mounts it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.ledger = Ledger(settings.database)
        self.doors = Doors()
        airflow = FastAPI()
        self.app = copy.copy(_made())
        templates = self.app.state.redrive.templates
        self.app.state = State(
            {"redrive": AppState(self.doors, lambda: self.settings, lambda: seeding.NOW, templates=templates)}
        )
        airflow.mount(PREFIX, self.app)
        self.client = TestClient(airflow, base_url="http://airflow.test", raise_server_exceptions=True)

    def get(self, path: str, **options: Any) -> Any:
        return self.client.get(PREFIX + path, **options)

    def look(self, address: str) -> tuple[int, str]:
        """Status and text of an address on Airflow's host; nothing but the page is there."""
        if not address.startswith(PREFIX):
            return 200, ""
        answer = self.client.get(address)
        return answer.status_code, answer.text if "text/html" in answer.headers["content-type"] else ""

    def page(self, path: str) -> str:
        """The text of a page that is there."""
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return str(answer.text)

    def decide(
        self, action: str, note: str = "fixed in 1.4.2", headers: dict[str, str] | None = None, **body: Any
    ) -> Any:
        """What the page's own script sends."""
        given = {"action": action, "note": note, "up_to": 1 << 40, "filter": {"route": "orders"}} | body
        return self.post("/api/decisions", headers, **given)

    def set_up(self, route: str = "orders", **changes: Any) -> None:
        """Change the settings of a route."""
        changed = self.settings.routes[route].model_copy(update=changes)
        self.settings = self.settings.model_copy(update={"routes": {**self.settings.routes, route: changed}})

    def post(self, path: str, headers: dict[str, str] | None = None, **body: Any) -> Any:
        """A write as the page's own script makes it."""
        return self.client.post(PREFIX + path, json=body, headers={"origin": "http://airflow.test"} | (headers or {}))


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Makes the page over an empty ledger; ``database`` may be another one than a file."""
    made: list[Site] = []

    def make(database: str | None = None) -> Site:
        made.append(Site(seeding.settings(tmp_path, database)))
        return made[-1]

    yield make
    for one in made:
        one.ledger.close()


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with twelve days of two routes, to be copied."""
    path = tmp_path_factory.mktemp("history") / "redrive.db"
    ledger = Ledger(f"sqlite:///{path}")
    seeding.seed(ledger, per_day=40)
    seeding.seed(ledger, per_day=10, route="payments", seed=3)
    ledger.close()
    return path


@pytest.fixture
def site(make_site: Callable[..., Site], history: Path, tmp_path: Path) -> Site:
    """The page over twelve days of two routes."""
    shutil.copy(history, tmp_path)
    return make_site()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, for the tests of one file."""
    program = shutil.which("chromium")
    if program is None:
        missing("chromium is not installed")
    with sync_playwright() as playwright:
        # Its own sandbox refuses to run as root, as in a container; it visits nothing but our own pages.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program, args=options, timeout=120_000)  # 30 s unless told
        yield browser
        browser.close()
