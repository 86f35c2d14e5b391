"""The ledger on both databases: bare, planted, and within a whole Redrive."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from redrive.ledger.engine import Ledger
from tests import blank
from tests.ledger.planting import NOW, Plant
from tests.servers import Postgres
from tests.workshop import Template, Workshop


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    """A ledger with its schema and nothing in it."""
    ledger = Ledger(ledger_url)
    blank.upgrade(ledger, NOW)
    yield ledger
    ledger.close()


@pytest.fixture
def plant(ledger: Ledger) -> Plant:
    """A ledger of which a run of route ``orders`` holds the lease."""
    return Plant(ledger)


@pytest.fixture
def workshop(ledger_url: str, tmp_path: Path) -> Iterator[Workshop]:
    """A whole Redrive, with a broker in memory and a clock that moves when told."""
    workshop = Workshop(tmp_path, ledger_url)
    yield workshop
    workshop.ledger.close()


@pytest.fixture(scope="session")
def _templates() -> dict[object, tuple[Template, str]]:
    return {}


@pytest.fixture
def workshop_after(
    request: pytest.FixtureRequest,
    ledger_url: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    _templates: dict[object, tuple[Template, str]],
) -> Iterator[Callable[[Callable[[Workshop], None]], Workshop]]:
    """Gives a whole Redrive in which something has happened: it happens once per worker and database, and is copied."""
    made: list[Workshop] = []

    def after(what: Callable[[Workshop], None]) -> Workshop:
        on_sqlite = sa.make_url(ledger_url).get_backend_name() == "sqlite"
        if (what, on_sqlite) not in _templates:
            folder = tmp_path_factory.mktemp("template")
            url = f"sqlite:///{folder}/redrive.db"
            if not on_sqlite:
                postgres: Postgres = request.getfixturevalue("postgres")
                url = blank.database(postgres.database_url("postgres"))
            shop = Workshop(folder, url)
            what(shop)
            _templates[what, on_sqlite] = Template(shop), url
        template, url = _templates[what, on_sqlite]
        if not on_sqlite:
            blank.overwrite(ledger_url, url)
        made.append(template.start(tmp_path, ledger_url))
        return made[-1]

    yield after
    for one in made:
        one.ledger.close()
