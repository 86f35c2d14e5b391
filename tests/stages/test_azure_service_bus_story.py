"""``redrive demo --broker service_bus``, and with it the route of Service Bus's page, on the stand-in."""

from pathlib import Path

import pytest

from tests.contract.test_azure_service_bus import _quick_links  # noqa: F401 - a fixture
from tests.serving import service_bus
from tests.story import perform

pytestmark = pytest.mark.server


def test_what_lies_there_is_looked_at_and_sent_one_cause_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service_bus(tmp_path) as (_, connection):
        said = perform("service_bus", connection, tmp_path, monkeypatch)

    assert "can't be put back" in said, "the doctor's warning"
    assert "Shop.PriceChanged" in said.partition("Billing is up again")[0], "what the peek showed"
