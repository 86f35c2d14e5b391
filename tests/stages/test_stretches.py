"""Messages for many destinations that lie mixed in the same files: each is read once, and nobody waits for another."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive.stages import deliver as deliver_stage
from redrive.stages import pipeline, stretches
from redrive.stages.context import Context
from redrive.staging import batch_files
from tests.workshop import REFUSED, THROTTLED, Workshop

SHOPS = [f"shop-{number}" for number in range(8)]


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Callable[..., Workshop]]:
    """Makes a workshop whose dead letters go back to eight queues, each to that which it came from."""
    made = []

    def make(per_shop: int = 20, error: str = REFUSED, flush: int = 20, **route: Any) -> Workshop:
        sources = [{"queue": "orders-dlq", "lease": "2s", "max_deliveries": 3, "origins": ["shop-*"]}]
        drain = {"wait": "0s", "flush_messages": flush}
        workshop = Workshop(tmp_path, **({"destination": None, "sources": sources, "drain": drain} | route))
        made.append(workshop)
        for queue in SHOPS:
            workshop.world.create(queue)
        for number in range(per_shop):
            for queue in SHOPS:
                workshop.die(f"{queue} {number:03}", error=error, origin=queue)
        return workshop

    yield make
    for workshop in made:
        workshop.ledger.close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches are of about twenty messages, and so are batches."""
    monkeypatch.setattr(stretches, "STRETCH_BYTES", 20 * 1100)
    monkeypatch.setattr(stretches, "PAGE", 7)


@pytest.fixture
def groups_read(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int]]:
    """How often each row group was read."""
    counts = Counter[tuple[str, int]]()
    read = batch_files._OpenFile.read

    def counted(self: Any, group: int) -> Any:
        if group != self._group:
            counts[self.path, group] += 1
        return read(self, group)

    monkeypatch.setattr(batch_files._OpenFile, "read", counted)
    return counts


def deliver(workshop: Workshop, run: Any, on_sleep: Callable[[], object] = lambda: None) -> dict[str, int]:
    """Deliver with simulated time: sleeping moves the clock."""

    def sleep(seconds: float) -> None:
        workshop.advance(seconds=seconds)
        on_sleep()

    with Context(workshop.settings, run, clock=workshop.now, broker=workshop.broker) as context:
        return deliver_stage.deliver(context, monotonic=lambda: workshop.time.now / 1e6, sleep=sleep)


def test_each_gets_its_own_and_files_are_read_once(
    mixed: Callable[..., Workshop], short: None, groups_read: Counter[tuple[str, int]]
) -> None:
    workshop = mixed()
    run = workshop.planned()
    groups_read.clear()
    assert deliver(workshop, run)["redelivered"] == 160
    for queue in SHOPS:
        assert workshop.bodies(queue) == [f"{queue} {number:03}".encode() for number in range(20)]
    assert len(groups_read) == 8
    assert max(groups_read.values()) <= 2, "once, or by two stretches that meet in it"
    assert workshop.audit() == []


def test_a_full_destination_keeps_nobody(mixed: Callable[..., Workshop], short: None) -> None:
    workshop = mixed(rate={"max_in_flight": 25})
    workshop.world.put(SHOPS[0], *[batch_files.DeadLetter("", b"old", (), ()) for _ in range(25)])
    run = workshop.planned()
    assert deliver(workshop, run)["redelivered"] == 140
    assert {queue: len(workshop.bodies(queue)) for queue in SHOPS} == dict.fromkeys(SHOPS, 20) | {SHOPS[0]: 25}
    assert workshop.states() == {"sent": 140, "waiting": 20}


def test_who_found_no_room_goes_on_where_it_was(mixed: Callable[..., Workshop], short: None) -> None:
    workshop = mixed(rate={"max_in_flight": 6})
    run = workshop.planned()
    assert deliver(workshop, run, lambda: [workshop.consume(queue=queue) for queue in SHOPS])["redelivered"] == 160
    assert workshop.states() == {"sent": 160}


def test_a_slow_rate_reads_no_further_than_it_sends(
    mixed: Callable[..., Workshop], short: None, groups_read: Counter[tuple[str, int]]
) -> None:
    workshop = mixed(rate={"per_second": 2}, deliver={"run_for": "20s"})
    run = workshop.planned()
    groups_read.clear()
    assert 38 <= deliver(workshop, run)["redelivered"] <= 44
    assert sum(groups_read.values()) <= 6, "two or three stretches of eight"


def test_a_slow_cause_keeps_no_other(mixed: Callable[..., Workshop], short: None) -> None:
    causes = {"throttled": {"verdict": "requeue", "rate": {"per_second": 1}}}
    workshop = mixed(4, causes=causes, error=THROTTLED, rate={"per_second": 1000})
    for number in range(4, 20):
        for queue in SHOPS:
            workshop.die(f"{queue} {number:03}", error=REFUSED, origin=queue)
    run = workshop.planned()
    sent: list[int] = []
    assert deliver(workshop, run, lambda: sent.append(workshop.states()["sent"]))["redelivered"] == 160
    assert sent[0] >= 128, "all that is not slow, before anybody waits"


def test_a_slow_cause_for_which_time_is_too_short_ends_no_others_turn(
    mixed: Callable[..., Workshop], short: None
) -> None:
    causes = {"throttled": {"verdict": "requeue", "rate": {"per_second": 0.01}}}
    workshop = mixed(4, causes=causes, error=THROTTLED, rate={"per_second": 8}, deliver={"run_for": "1m"})
    for number in range(4, 20):
        for queue in SHOPS:
            workshop.die(f"{queue} {number:03}", error=REFUSED, origin=queue)
    run = workshop.planned()
    assert deliver(workshop, run)["redelivered"] > 128, "all that is not slow"


def test_sends_of_unknown_fate_go_first_wherever_they_are(mixed: Callable[..., Workshop], short: None) -> None:
    workshop = mixed()
    workshop.cycle()
    with workshop.ledger.write() as connection:
        connection.exec_driver_sql(
            "update messages set state = 'unknown', plan = 'resend' where message_id in"
            " (select max(message_id) from messages group by destination)"
        )
    for queue in SHOPS:
        workshop.consume(queue=queue)
        workshop.die(f"{queue} new", error=REFUSED, origin=queue)
    run = workshop.planned()
    assert deliver(workshop, run)["redelivered"] == 16
    for queue in SHOPS:
        assert workshop.bodies(queue) == [f"{queue} 019".encode(), f"{queue} new".encode()]


def test_large_headers_take_no_more_memory(
    mixed: Callable[..., Workshop], short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger knows the size of bodies alone."""
    workshop = mixed(0, flush=2)
    large = (batch_files.Header("note", "String", "x" * 20_000), batch_files.Header("error", "String", REFUSED))
    for number in range(5):
        for queue in SHOPS:
            letter = batch_files.DeadLetter("", f"{queue} {number}".encode(), large, (), origin=queue)
            workshop.world.put("orders-dlq", letter)
    run = workshop.planned()
    kept: list[int] = []
    read = stretches._read

    def remembered(*args: Any) -> stretches.Stretch:
        stretch = read(*args)
        kept.append(sum(one.bytes for one in stretch.payloads.values()))
        return stretch

    monkeypatch.setattr(stretches, "_read", remembered)
    assert deliver(workshop, run)["redelivered"] == 40
    assert {queue: len(workshop.bodies(queue)) for queue in SHOPS} == dict.fromkeys(SHOPS, 5)
    group = 2 * 21_000
    assert len(kept) >= 2
    assert max(kept) <= stretches.STRETCH_BYTES + group


@pytest.mark.parametrize(
    ("route", "selection"),
    [
        ({"order_by": "attribute:key"}, None),
        ({}, pipeline.Selection(attributes=(("message_id", "shop-3 001"),))),
    ],
    ids=["in order", "by attribute"],
)
def test_where_little_may_go_not_all_is_read(
    mixed: Callable[..., Workshop],
    short: None,
    groups_read: Counter[tuple[str, int]],
    route: dict[str, Any],
    selection: Any,
) -> None:
    workshop = mixed(2, **route)
    for queue in SHOPS:
        for _ in range(18):
            key = (batch_files.Header("key", "String", "one"),)
            workshop.world.put("orders-dlq", batch_files.DeadLetter("", b"x", key, (), origin=queue))
    run = workshop.planned()
    groups_read.clear()
    run = dataclasses.replace(run, selection=selection) if selection else run
    assert 1 <= deliver(workshop, run)["redelivered"] <= 17
    assert sum(groups_read.values()) <= 4, "of eight"


def test_a_damaged_file_stops_its_own_messages_only(mixed: Callable[..., Workshop], short: None) -> None:
    workshop = mixed()
    run = workshop.planned()
    ((uri, copies),) = workshop.query("select uri, copies from staging_batches where batch_id = 2")
    file = Path(workshop.settings.staging) / str(uri)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    counts = deliver(workshop, run)
    assert (counts["redelivered"], counts["unreadable"], counts["unknown"]) == (160 - copies, copies, 0)


def test_copies_of_one_origin_lie_together_where_they_go_back(mixed: Callable[..., Workshop]) -> None:
    workshop = mixed(5, flush=1000)
    workshop.drain(workshop.begin())
    assert lying(workshop) == [f"{queue} {number:03}".encode() for queue in SHOPS for number in range(5)]


@pytest.mark.parametrize(
    "route",
    [{"destination": {"queue": "orders"}}, {"order_by": "attribute:message_id"}],
    ids=["one destination", "in order"],
)
def test_elsewhere_they_lie_as_they_came(mixed: Callable[..., Workshop], route: dict[str, Any]) -> None:
    workshop = mixed(5, flush=1000, **route)
    workshop.drain(workshop.begin())
    assert lying(workshop) == [f"{queue} {number:03}".encode() for number in range(5) for queue in SHOPS]


def lying(workshop: Workshop) -> list[bytes]:
    """The bodies in the only batch file, in its order."""
    staging = batch_files.Staging(workshop.settings.staging)
    [(uri, copies)] = workshop.query("select uri, copies from staging_batches")
    return [letter.body for letters in staging.letters(str(uri), range(int(copies))) for letter in letters]


def test_a_run_that_is_limited_sends_no_more(mixed: Callable[..., Workshop], short: None) -> None:
    workshop = mixed()
    report = workshop.cycle(pipeline.Selection(limit=50))
    assert report["redelivered"] == 50
