"""Selections on both databases; what they mean for a run is tested with the stages."""

from redrive.ledger.engine import parse_instant
from redrive.ledger.selecting import Selection
from redrive.message import DeadLetter, Header
from redrive.stages.preview import preview
from tests.workshop import REFUSED, THROTTLED, Workshop


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


def test_a_dry_run_tells_of_what_waits_already_and_when_it_is_due(workshop: Workshop) -> None:
    headers = (Header("error", "String", THROTTLED),)
    for number in range(20):
        workshop.world.put("orders-dlq", DeadLetter("", b"%d" % number, headers, origin="orders"))
    workshop.cycle()
    assert workshop.states() == {"waiting": 20}, "throttled: after a while"
    (row,) = preview(workshop.settings, "orders", Selection(), now=workshop.now())["plan"]
    assert (row["messages"], row["verdict"], row["cause"]) == (20, "delay", "throttled")
    ((first, last),) = workshop.query("select min(next_attempt_at), max(next_attempt_at) from messages")
    assert (row["when"], row["until"]) == (parse_instant(first), parse_instant(last))
    workshop.advance(hours=1)
    planned = preview(workshop.settings, "orders", Selection(), now=workshop.now())
    assert [(row["messages"], row["when"]) for row in planned["plan"]] == [(20, workshop.now())]
    assert planned["due_now"] == [{"destination": "orders", "messages": 20}]
    assert preview(workshop.settings, "orders", Selection(causes=("max_deliveries",)), now=workshop.now())["plan"] == []
