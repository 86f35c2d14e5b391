"""Selections on both databases; what they mean for a run is tested with the stages."""

from redrive.ledger.selecting import Selection
from redrive.message import DeadLetter, Header
from redrive.stages.preview import preview
from tests.workshop import REFUSED, Workshop


def test_a_run_of_one_source_and_one_tenant(workshop: Workshop) -> None:
    for tenant in ("acme", "umbrella"):
        headers = (Header("tenant", "String", tenant), Header("error", "String", REFUSED))
        workshop.world.put("orders-dlq", DeadLetter("", tenant.encode(), headers, origin="orders"))
    workshop.cycle(Selection(attributes=(("tenant", "nobody"),)))
    selection = Selection(sources=("orders-dlq",), attributes=(("tenant", "acme"),))
    planned = preview(workshop.settings, "orders", selection, now=workshop.now())
    assert [row["messages"] for row in planned["plan"]] == [1]
    assert workshop.cycle(selection)["redelivered"] == 1
    assert workshop.bodies("orders") == [b"acme"]
    assert workshop.states() == {"sent": 1, "classified": 1}
