"""A run that is limited to a part takes that part and leaves everything else where it is."""

from pathlib import Path
from typing import Any

import pytest

from redrive.errors import UsageError
from redrive.ledger import leases
from redrive.ledger.selecting import Selection
from redrive.message import DeadLetter, Header
from redrive.stages import attributes, peek
from redrive.stages.preview import preview
from tests.workshop import KEY_ERROR, REFUSED, THROTTLED, Workshop

TWO_SOURCES: dict[str, Any] = {
    "sources": [
        {"queue": "orders-dlq", "lease": "2s", "max_deliveries": 3},
        {"queue": "orders-delay", "lease": "2s", "max_deliveries": 3},
    ]
}


def die(workshop: Workshop, body: str, *headers: tuple[str, str | bytes], error: str = REFUSED) -> None:
    """A dead letter with these headers."""
    all_headers = tuple(Header(name, "String", value) for name, value in (*headers, ("error", error)))
    workshop.world.put("orders-dlq", DeadLetter("", body.encode(), all_headers, origin="orders"))


def of_tenants(*tenants: str) -> Selection:
    return Selection(attributes=tuple(("tenant", tenant) for tenant in tenants))


def test_a_run_for_one_source_drains_and_sends_only_that(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, **TWO_SOURCES)
    workshop.die("a", "b")
    workshop.die("c", queue="orders-delay")
    report = workshop.cycle(Selection(sources=("orders-delay",)))
    assert (report["drained"], report["redelivered"]) == (1, 1)
    assert workshop.bodies("orders") == [b"c"]
    assert len(workshop.bodies("orders-dlq")) == 2, "the other source was not touched"


def test_how_much_lies_in_the_sources_is_told_without_touching_it(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, **TWO_SOURCES)
    workshop.die("a", "b")
    workshop.die("c", queue="orders-delay")
    told = peek.depths(workshop.settings, "orders", broker=workshop.broker)
    assert told == {"orders-dlq": 2, "orders-delay": 1}
    of_one = Selection(sources=("orders-delay",))
    assert peek.depths(workshop.settings, "orders", broker=workshop.broker, selection=of_one) == {"orders-delay": 1}
    assert workshop.cycle()["drained"] == 3


def test_what_another_source_left_waiting_stays(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, **TWO_SOURCES, causes={"transient_network": {"verdict": "delay"}})
    workshop.die("a")
    workshop.die("c", queue="orders-delay")
    workshop.cycle()
    workshop.advance(hours=2)
    assert workshop.cycle(Selection(sources=("orders-delay",)))["redelivered"] == 1
    assert workshop.bodies("orders") == [b"c"]


def test_a_source_that_is_none_is_refused_before_anything_is_held(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    with pytest.raises(UsageError, match="orders-dql"):
        workshop.begin(selection=Selection(sources=("orders-dql",)))
    workshop.cycle()  # nobody holds the route


def test_only_messages_that_carry_the_attributes_are_decided_and_sent(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    die(workshop, "acme eu", ("tenant", "acme"), ("region", "eu"))
    die(workshop, "acme us", ("tenant", "acme"), ("region", "us"))
    die(workshop, "umbrella eu", ("tenant", "umbrella"), ("region", "eu"))
    die(workshop, "nobody")
    selection = Selection(attributes=(("tenant", "acme"), ("tenant", "umbrella"), ("region", "eu")))
    assert workshop.cycle(selection)["redelivered"] == 2
    assert workshop.bodies("orders") == [b"acme eu", b"umbrella eu"]
    assert workshop.states() == {"sent": 2, "classified": 2}
    assert workshop.cycle()["redelivered"] == 2, "a run without limits takes the rest"
    assert workshop.audit() == []


def test_the_last_header_of_a_name_counts_and_bytes_are_text(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    die(workshop, "was acme", ("tenant", "acme"), ("tenant", "umbrella"))
    die(workshop, "is acme", ("tenant", "umbrella"), ("tenant", "acme"))
    die(workshop, "acme in bytes", ("tenant", b"acme"))
    die(workshop, "not text", ("tenant", b"\xff\xfe"))
    assert workshop.cycle(of_tenants("acme"))["redelivered"] == 2
    assert sorted(workshop.bodies("orders")) == [b"acme in bytes", b"is acme"]


def test_an_attribute_finds_its_messages_over_many_pages_and_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attributes, "PAGE", 7)
    workshop = Workshop(tmp_path, deliver={"slice": 3}, drain={"wait": "0s", "flush_messages": 10})
    for number in range(60):
        die(workshop, f"{number:02}", ("tenant", "acme" if number % 20 == 3 or number > 55 else "umbrella"))
    assert workshop.cycle(of_tenants("acme"))["redelivered"] == 7
    assert workshop.bodies("orders") == [f"{n:02}".encode() for n in (3, 23, 43, 56, 57, 58, 59)]
    assert workshop.cycle(of_tenants("acme"))["redelivered"] == 0, "and nothing of anybody else"
    assert workshop.states() == {"sent": 7, "classified": 53}


def test_a_limit_counts_what_is_selected(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    for number in range(10):
        die(workshop, f"{number}", ("tenant", "acme" if number > 4 else "umbrella"))
    workshop.cycle(Selection(causes=("throttled",)))  # stages everything, sends nothing
    assert workshop.cycle(Selection(limit=2, attributes=(("tenant", "acme"),)))["redelivered"] == 2
    assert workshop.bodies("orders") == [b"5", b"6"]


def test_a_canary_is_taken_from_what_is_selected(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, canary={"first": 2, "observe": "1s"})
    for number in range(20):
        die(workshop, f"{number:02}", ("tenant", "acme" if number > 9 else "umbrella"))
    workshop.cycle(Selection(causes=("throttled",)))
    assert workshop.cycle(of_tenants("acme"))["redelivered"] == 2
    assert workshop.bodies("orders") == [b"10", b"11"]
    assert workshop.cycle()["redelivered"] == 0, "the canary is out, whoever it was taken from"


def test_people_get_only_what_was_selected(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    die(workshop, "mine", ("tenant", "acme"), error=KEY_ERROR)
    die(workshop, "theirs", ("tenant", "umbrella"), error=KEY_ERROR)
    report = workshop.cycle(of_tenants("acme"))
    assert report["escalated"] == 1
    assert workshop.query("select payload from escalated_messages") == [("mine",)]


def test_a_dry_run_says_what_keeps_a_run_from_it(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    workshop.die(*"abcde", error=THROTTLED)
    workshop.cycle()
    workshop.advance(hours=2)

    def bounds(selection: Selection) -> list[str]:
        found = preview(workshop.settings, "orders", selection, now=workshop.now())
        assert found["due_now"] == [{"destination": "orders", "messages": 5}]
        return list(found["bounds"])

    assert bounds(Selection()) == []
    assert bounds(Selection(limit=3)) == ["of what is due at most 3 are sent, as --limit says"]
    leases.pause(workshop.ledger, "orders", by="ana", reason="deploy", now=workshop.now())
    assert bounds(Selection()) == ["the route is paused by ana: deploy; no run begins until `redrive resume orders`"]
    leases.resume(workshop.ledger, "orders", by="ana", now=workshop.now())
    assert workshop.cycle(Selection(limit=3))["redelivered"] == 3


def test_a_dry_run_of_a_part_says_what_expires_beside_it(tmp_path: Path) -> None:
    """A run gives up what is too old and asks people whatever it is limited to: who looks first has to see it."""
    workshop = Workshop(tmp_path, give_up_after="1d")
    workshop.die("a", "b", error=THROTTLED)
    workshop.die("c", error=REFUSED)
    workshop.cycle(Selection(sources=("orders-dlq",), causes=("nothing",)))
    workshop.advance(days=2)
    only = Selection(causes=("transient_network",))
    told = preview(workshop.settings, "orders", only, now=workshop.now())["bounds"]
    assert told == ["2 messages beside these expire or are put to people, as in every run"]
    assert preview(workshop.settings, "orders", Selection(), now=workshop.now())["bounds"] == []
    workshop.cycle(only)
    assert workshop.states() == {"escalated": 3}


def test_a_dry_run_counts_what_carries_the_attribute_and_changes_nothing(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, canary={"first": 2, "observe": "1s"})
    for number in range(9):
        die(workshop, f"{number}", ("tenant", "acme" if number > 4 else "umbrella"))
    workshop.cycle(of_tenants("nobody"))
    before = workshop.query("select * from messages order by message_id")
    planned = preview(workshop.settings, "orders", of_tenants("acme"), now=workshop.now())
    assert [(row["verdict"], row["messages"]) for row in planned["plan"]] == [("requeue", 2), ("hold", 2)]
    assert workshop.query("select * from messages order by message_id") == before
    workshop.cycle(of_tenants("umbrella"))
    planned = preview(workshop.settings, "orders", of_tenants("umbrella"), now=workshop.now())
    assert [(row["verdict"], row["messages"]) for row in planned["plan"]] == [("hold", 3)]
