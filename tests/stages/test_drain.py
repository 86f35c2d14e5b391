"""What a drain does when things go slowly, partly, or round in circles."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from redrive.brokers.base import Capabilities, Depth, Settled
from redrive.brokers.memory import MEMORY_CAPABILITIES, MemoryBroker
from redrive.ledger.account import inspecting
from redrive.ledger.engine import parse_instant
from redrive.stages import pipeline, source_end
from redrive.staging import batch_writer
from redrive.staging.batch_files import Staging
from tests.workshop import REFUSED, Workshop


class SlowBroker(MemoryBroker):
    """Time passes while it works: per receive, and per settle."""

    def __init__(self, workshop: Workshop, *, receive: float = 0, settle: float = 0, most: int = 1000) -> None:
        super().__init__(workshop.world)
        self._workshop = workshop
        self._receive, self._settle, self._most = receive, settle, most
        self.extended: list[int] = []

    def receive(self, queue: str, **options: Any) -> list[Any]:
        self._workshop.advance(seconds=self._receive)
        return super().receive(queue, **options | {"limit": min(options["limit"], self._most)})

    def settle(self, queue: str, receipts: Any) -> Settled:
        self._workshop.advance(seconds=self._settle)
        return super().settle(queue, receipts)

    def extend(self, queue: str, receipts: Any, lease: timedelta) -> None:
        self.extended.append(len(receipts))
        super().extend(queue, receipts, lease)


def a_workshop(folder: Path, **drain: Any) -> Workshop:
    return Workshop(folder, drain={"wait": "0s"} | drain)


def drain(workshop: Workshop) -> dict[str, Any]:
    return pipeline.drain(workshop.settings, workshop.begin(), **workshop.options())


def batches(workshop: Workshop) -> list[int]:
    return [row[0] for row in workshop.query("select copies from staging_batches order by batch_id")]


def test_a_message_that_bounces_back_can_not_keep_a_drain_running(tmp_path: Path) -> None:
    workshop = a_workshop(tmp_path)
    workshop.die("a", "b", "c")

    class Bouncing(MemoryBroker):
        def settle(self, queue: str, receipts: Any) -> Settled:
            workshop.die(*[f"again {receipt}" for receipt in receipts])
            return super().settle(queue, receipts)

    workshop.broker = Bouncing(workshop.world)
    workshop.settings = workshop.configure(workshop.settings.database, drain={"wait": "0s", "flush_messages": 1})
    assert drain(workshop)["drained"] == 3
    assert len(workshop.bodies("orders-dlq")) == 3


@pytest.mark.parametrize("late", [False, True], ids=["counts now", "counts as of a moment"])
def test_what_was_there_is_not_left_for_what_came_in_since_where_the_broker_keeps_no_order(
    tmp_path: Path, late: bool
) -> None:
    workshop = Workshop(tmp_path, drain={"wait": "0s"}, order_by="attribute:message_id" if late else None)
    workshop.die("first", "second")

    class Shuffling(MemoryBroker):
        began = False

        def capabilities_for(self, queue: str) -> Capabilities:
            return replace(super().capabilities_for(queue), in_order=False)

        def depth(self, queue: str) -> Depth:
            return super().depth(queue)._replace(as_of=workshop.time.now if late else None)

        def receive(self, queue: str, **options: Any) -> list[Any]:
            if self.began:
                return super().receive(queue, **options)
            self.began = True
            workshop.die("third")
            first, *others = super().receive(queue, **options | {"limit": options["limit"] + 1})
            self.release(queue, [first.receipt])
            return others

    workshop.broker = Shuffling(workshop.world)
    assert drain(workshop)["drained"] == 3


def test_what_a_drain_tells_of_its_source_is_as_of_when_it_began(tmp_path: Path) -> None:
    """The depth from before it is none of after it."""
    workshop = Workshop(tmp_path, drain={"wait": "0s"})
    workshop.die("a", "b")
    workshop.advance(minutes=5)
    began = workshop.now()

    class Slow(MemoryBroker):
        def receive(self, queue: str, **options: Any) -> list[Any]:
            workshop.advance(minutes=1)
            return super().receive(queue, **options)

    workshop.broker = Slow(workshop.world)
    assert drain(workshop)["drained"] == 2
    with workshop.ledger.read() as connection:
        (told,) = inspecting.status(connection, "orders", workshop.now())["queues"]
    assert (told["visible"], told["oldest_age_seconds"]) == (2, 300)
    assert parse_instant(told["observed_at"]) == began < workshop.now()


def test_batches_are_closed_by_count(tmp_path: Path) -> None:
    workshop = a_workshop(tmp_path, flush_messages=4)
    workshop.die(*[str(i) for i in range(10)])
    assert drain(workshop)["settled"] == 10
    assert batches(workshop) == [4, 4, 2]


def test_batches_are_closed_by_size(tmp_path: Path) -> None:
    workshop = a_workshop(tmp_path, flush_bytes=2048)
    workshop.broker = SlowBroker(workshop, most=1)
    workshop.die(*[bytes([65 + i]) * 1000 for i in range(6)])
    assert drain(workshop)["settled"] == 6
    assert batches(workshop) == [3, 3]


class Asked(MemoryBroker):
    """Remembers what it was asked for, and what it brought."""

    def __init__(self, workshop: Workshop) -> None:
        super().__init__(workshop.world)
        self.limits: list[int] = []
        self.brought: list[int] = []

    def receive(self, queue: str, **options: Any) -> list[Any]:
        found = super().receive(queue, **options)
        if queue == "orders-dlq":
            self.limits.append(options["limit"])
            self.brought.append(sum(len(letter.body) for letter, _ in found))
        return found


def test_a_receive_brings_no_more_than_a_batch_has_room_for(tmp_path: Path) -> None:
    workshop = a_workshop(tmp_path, flush_bytes=50_000)
    broker = workshop.broker = Asked(workshop)
    workshop.die(*[bytes(5_000)] * 100)
    assert drain(workshop)["settled"] == 100
    assert max(broker.brought) <= 50_000
    assert max(batches(workshop)) == 10


def test_of_small_messages_a_receive_soon_brings_as_many_as_ever(tmp_path: Path) -> None:
    workshop = a_workshop(tmp_path)
    broker = workshop.broker = Asked(workshop)
    workshop.die(*[bytes(1_000)] * 3_000)
    assert drain(workshop)["settled"] == 3_000
    assert broker.limits[:4] == [10, 100, 1000, 1000]


def test_one_large_message_makes_the_receives_behind_it_smaller_for_a_while(tmp_path: Path) -> None:
    workshop = a_workshop(tmp_path, flush_bytes=50_000, flush_messages=100_000)
    broker = workshop.broker = Asked(workshop)
    workshop.die(*[bytes(10)] * 10, bytes(40_000), *[bytes(10)] * 2_000)
    assert drain(workshop)["settled"] == 2_011
    assert broker.limits[:2] == [10, 100]
    assert broker.limits[2] < 100
    assert max(broker.limits) > 500


def test_the_first_receive_knows_how_large_messages_may_be(tmp_path: Path) -> None:
    class Large(Workshop):
        capabilities = replace(MEMORY_CAPABILITIES, max_message_bytes=20_000)

    workshop = Large(tmp_path, drain={"wait": "0s", "flush_bytes": 50_000})
    broker = workshop.broker = Asked(workshop)
    workshop.die(*[bytes(20_000)] * 9)
    assert drain(workshop)["settled"] == 9
    assert max(broker.brought) <= 50_000


def test_what_one_receive_brought_is_split_into_row_groups_by_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_writer, "GROUP_BYTES", 10_000)
    workshop = a_workshop(tmp_path)
    workshop.die(*[bytes([number]) * 3_000 for number in range(10)])
    assert drain(workshop)["settled"] == 10
    ((uri,),) = workshop.query("select uri from staging_batches")
    staging = Staging(str(workshop.settings.staging))
    file = pq.ParquetFile(staging.full_path(str(uri)))
    assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [4, 4, 2]
    letters = [letter for some in staging.letters(str(uri), range(10)) for letter in some]
    assert [letter.body for letter in letters] == [bytes([number]) * 3_000 for number in range(10)]


def test_stack_traces_in_headers_count_as_bodies_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some clients put them there, up to a hundred kilobytes each, beside bodies of a few."""
    monkeypatch.setattr(batch_writer, "GROUP_BYTES", 10_000)
    workshop = a_workshop(tmp_path, flush_bytes=50_000)
    broker = workshop.broker = Asked(workshop)
    workshop.die(*[b"{}"] * 95, error="x" * 5_000)
    assert drain(workshop)["settled"] == 95
    assert max(broker.limits[1:]) <= 10
    assert max(batches(workshop)) <= 11
    ((uri,),) = workshop.query("select uri from staging_batches where batch_id = 1")
    file = pq.ParquetFile(Staging(str(workshop.settings.staging)).full_path(str(uri)))
    assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [2] * 5


def test_a_batch_is_closed_when_half_of_its_lease_is_gone(tmp_path: Path) -> None:
    workshop = a_workshop(tmp_path, lease="60s")
    workshop.broker = SlowBroker(workshop, receive=10, most=1)
    workshop.die(*[str(i) for i in range(8)])
    counts = drain(workshop)
    assert (counts["drained"], counts["settled"]) == (8, 8), "no lease ran out"
    assert batches(workshop) == [4, 4]


def test_leases_are_extended_while_settling_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.stages.open_batch.SETTLE_AT_ONCE", 2)
    workshop = a_workshop(tmp_path, lease="60s")
    broker = workshop.broker = SlowBroker(workshop, settle=20)
    workshop.die(*[str(i) for i in range(12)])
    assert drain(workshop)["settled"] == 12, "120 s of settling under leases of 60 s"
    assert broker.extended == [8, 4], "what is not settled yet, whenever half of the lease is gone"
    assert workshop.broker.depth("orders-dlq").total == 0


def test_what_could_not_be_settled_is_recognised_when_it_comes_again(tmp_path: Path) -> None:
    workshop = a_workshop(tmp_path)
    workshop.die("a", "b", "c", error=REFUSED)
    workshop.world.faults.settles = 2
    run = workshop.begin()
    counts = pipeline.drain(workshop.settings, run, **workshop.options())
    assert (counts["drained"], counts["settled"], counts["not_settled"]) == (3, 1, 2)
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    workshop.advance(minutes=10)
    report = workshop.cycle()
    assert (report["new"], report["duplicates"], report["redelivered"]) == (3, 2, 3)
    assert sorted(workshop.bodies("orders")) == [b"a", b"b", b"c"]
    assert workshop.audit() == []


class Ahead(MemoryBroker):
    """Brings up to three more than it was asked for, and remembers what was wanted at most."""

    def __init__(self, workshop: Workshop) -> None:
        super().__init__(workshop.world)
        self.came: list[Any] = []
        self.wanted: list[int] = []
        self.given_back = 0

    def receive_ahead(self, queue: str, *, limit: int, ahead: int, **options: Any) -> list[Any]:
        self.wanted.append(limit + ahead)
        if len(self.came) < limit:
            self.came += self.receive(queue, limit=limit - len(self.came) + min(ahead, 3), **options)
        taken, self.came = self.came[:limit], self.came[limit:]
        return taken

    def depth(self, queue: str) -> Any:
        found, came = super().depth(queue), len(self.came) if queue == "orders-dlq" else 0
        return found._replace(visible=found.visible + came, in_flight=found.in_flight - came)

    def release(self, queue: str, receipts: Any) -> None:
        self.given_back += 1
        super().release(queue, [*receipts, *(one.receipt for one in self.came)])
        self.came = []


class Forward(Workshop):
    """Whose broker lets come what is wanted next."""

    capabilities = replace(MEMORY_CAPABILITIES, reads_ahead=True)


@pytest.mark.parametrize(("limit", "drained"), [(100, 25), (17, 17)])
def test_what_comes_ahead_is_never_more_than_is_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, drained: int
) -> None:
    monkeypatch.setattr(source_end, "RECEIVE_AT_ONCE", 4)
    workshop = Forward(tmp_path, drain={"wait": "0s", "flush_messages": 10, "limit": limit})
    workshop.die(*(f"{number:04}" for number in range(25)))
    broker = workshop.broker = Ahead(workshop)
    assert drain(workshop)["drained"] == drained
    assert sum(batches(workshop)) == drained
    assert max(batches(workshop)) == 10
    assert broker.wanted[0] == drained
    assert broker.wanted == sorted(broker.wanted, reverse=True), "as much as is left, and no more"
    assert broker.given_back
    assert broker.depth("orders-dlq")[:2] == (25 - drained, 0), "nothing is held when a drain is over"


def test_a_limit_bounds_the_drain(tmp_path: Path) -> None:
    workshop = a_workshop(tmp_path, limit=5, shards=1)
    workshop.die(*[str(i) for i in range(9)])
    assert drain(workshop)["drained"] == 5
    assert len(workshop.bodies("orders-dlq")) == 4


def test_shards_share_a_source_without_leaving_or_doubling_anything(tmp_path: Path) -> None:
    workshop = a_workshop(tmp_path)
    workshop.die(*[str(i) for i in range(9)])
    run = workshop.begin()
    drained = [
        pipeline.drain(workshop.settings, run, shard=shard, shards=2, **workshop.options())["drained"]
        for shard in (0, 1)
    ]
    assert sum(drained) == 9
    assert workshop.broker.depth("orders-dlq").total == 0
