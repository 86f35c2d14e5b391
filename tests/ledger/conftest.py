"""The ledger on both databases: bare, planted, and within a whole Redrive."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.ledger.engine import Ledger
from tests import blank
from tests.ledger.planting import NOW, Plant
from tests.workshop import Workshop


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
