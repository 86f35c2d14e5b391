"""The in-memory broker keeps the contract, and goes wrong when it is told to."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from redrive.brokers import open_broker
from redrive.brokers.memory import (
    MEMORY_CAPABILITIES,
    ManualClock,
    MemoryBroker,
    MemoryWorld,
    forget_worlds,
    register_world,
)
from redrive.errors import SettingsError
from redrive.message import DeadLetter
from tests.contract.broker_contract import CALLS, LEASE, NO_WAIT, BrokerContract, outgoing


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def world(clock: ManualClock) -> MemoryWorld:
    bounded = replace(MEMORY_CAPABILITIES, max_headers=10, max_message_bytes=1024 * 1024)
    return MemoryWorld(clock=clock, capabilities=bounded)


class TestMemory(BrokerContract):
    has_an_address = False

    @pytest.fixture
    def broker(self, world: MemoryWorld) -> MemoryBroker:
        return MemoryBroker(world)

    @pytest.fixture
    def another_broker(self, world: MemoryWorld) -> MemoryBroker:
        return MemoryBroker(world)

    @pytest.fixture
    def make_queue(self, world: MemoryWorld) -> Callable[..., str]:
        names = (f"queue-{n}" for n in range(100))
        return lambda **settings: world.create(next(names), **settings)

    @pytest.fixture
    def let_pass(self, clock: ManualClock) -> Callable[[timedelta], None]:
        return clock.advance

    @pytest.fixture
    def refused_broker(self, world: MemoryWorld) -> MemoryBroker:
        world.create("orders-dlq")
        world.faults.forbidden = {("orders-dlq", action) for action in CALLS}
        return MemoryBroker(world)

    @pytest.fixture
    def unreachable_broker(self, world: MemoryWorld) -> MemoryBroker:
        world.faults.down = "connection refused"
        return MemoryBroker(world)


@pytest.fixture
def queue(world: MemoryWorld) -> str:
    return world.create("orders")


@pytest.fixture
def broker(world: MemoryWorld) -> MemoryBroker:
    return MemoryBroker(world)


def test_publishes_fail_as_chosen(world: MemoryWorld, broker: MemoryBroker, queue: str) -> None:
    world.faults.publishes.extend(["retry", "sent", "refused", "unknown"])
    results = broker.publish(queue, [outgoing(b"%d" % n, n) for n in range(5)])

    assert [r.status for r in results] == ["retry", "sent", "refused", "unknown", "sent"]
    assert [letter.body for letter in world.peek(queue)] == [b"1", b"4"]


def test_a_lost_response_leaves_the_message_in_the_queue(world: MemoryWorld, broker: MemoryBroker, queue: str) -> None:
    world.faults.lost_responses = 1

    assert [r.status for r in broker.publish(queue, [outgoing(), outgoing(number=2)])] == ["unknown", "sent"]
    assert len(world.peek(queue)) == 2


def test_a_refused_body_is_refused_every_time(world: MemoryWorld, broker: MemoryBroker, queue: str) -> None:
    world.faults.refused_bodies.add(b"poison")

    assert [broker.publish(queue, [outgoing(b"poison")])[0].status for _ in range(2)] == ["refused"] * 2


def test_settles_fail_as_chosen(world: MemoryWorld, broker: MemoryBroker, queue: str) -> None:
    broker.publish(queue, [outgoing(number=n) for n in range(3)])
    receipts = [r.receipt for r in broker.receive(queue, limit=3, wait=NO_WAIT, lease=LEASE)]
    world.faults.settles = 1

    assert broker.settle(queue, receipts).failures == ((receipts[0], "injected: not settled"),)
    assert broker.depth(queue).in_flight == 1


def test_a_repeated_dedup_id_is_dropped_within_the_window(clock: ManualClock) -> None:
    world = MemoryWorld(clock=clock, capabilities=replace(MEMORY_CAPABILITIES, native_dedupe=timedelta(minutes=5)))
    broker, queue = MemoryBroker(world), world.create("orders.fifo", ordered=True)
    message = outgoing(dedup_id="d-1", ordering_key="a")
    [first] = broker.publish(queue, [message])
    clock.advance(timedelta(minutes=4))
    [second] = broker.publish(queue, [message])
    clock.advance(timedelta(minutes=2))
    broker.publish(queue, [message])

    assert second.broker_message_id == first.broker_message_id
    assert len(world.peek(queue)) == 2


def test_a_rejected_message_says_why_it_died(world: MemoryWorld, broker: MemoryBroker) -> None:
    dead = world.create("dead")
    live = world.create("live", dead_letter_queue=dead)
    broker.publish(live, [outgoing()])
    [received] = broker.receive(live, limit=1, wait=NO_WAIT, lease=LEASE)
    broker.dead_letter(live, [received.receipt], reason="rejected", description="KeyError: 'sku'")

    [letter] = world.peek(dead)
    assert (letter.reason, letter.description, letter.origin) == ("rejected", "KeyError: 'sku'", "live")
    assert letter.dead_lettered_at == world.clock()


def test_consumers_are_told_once_some_registered(world: MemoryWorld, broker: MemoryBroker, queue: str) -> None:
    assert broker.depth(queue).consumers is None
    world.register_consumer(queue, "a")
    assert broker.depth(queue).consumers == 1
    world.remove_consumer(queue, "a")
    assert broker.depth(queue).consumers == 0


def test_a_filled_queue_makes_its_letters_when_they_are_received(
    world: MemoryWorld, broker: MemoryBroker, queue: str
) -> None:
    made: list[int] = []

    def make(number: int) -> DeadLetter:
        made.append(number)
        return DeadLetter("", b"%d" % number)

    world.fill(queue, 1_000_000_000, make)
    first = broker.receive(queue, limit=5, wait=NO_WAIT, lease=LEASE)

    assert [r.letter.body for r in first] == [b"0", b"1", b"2", b"3", b"4"]
    assert len({r.letter.broker_message_id for r in first}) == 5
    assert made == [0, 1, 2, 3, 4]
    broker.release(queue, [first[0].receipt])
    assert broker.depth(queue).visible == 1_000_000_000 - 4


def test_a_sink_counts_and_keeps_nothing(world: MemoryWorld, broker: MemoryBroker) -> None:
    sink = world.create("sink", sink=True)

    assert [r.status for r in broker.publish(sink, [outgoing(), outgoing(number=2)])] == ["sent", "sent"]
    assert broker.depth(sink).total == 0
    assert world.messages["publish"] == 2


def test_an_empty_receive_waits_on_the_clock_of_the_world(
    world: MemoryWorld, broker: MemoryBroker, queue: str, clock: ManualClock
) -> None:
    world.patience = timedelta(hours=1)
    broker.publish(queue, [outgoing(delay_seconds=30)])
    before = clock()

    assert len(broker.receive(queue, limit=1, wait=timedelta(minutes=1), lease=LEASE)) == 1
    assert clock() - before == 30_000_000


def test_brokers_of_one_world_share_its_queues(world: MemoryWorld, broker: MemoryBroker, queue: str) -> None:
    register_world("memory_demo", world)
    try:
        broker.publish(queue, [outgoing()])
        other = open_broker("memory", "memory_demo")
        assert len(other.receive(queue, limit=2, wait=NO_WAIT, lease=LEASE)) == 1
        assert broker.receive(queue, limit=2, wait=NO_WAIT, lease=LEASE) == []
    finally:
        forget_worlds()


def test_a_broker_that_is_not_there_lists_those_that_are() -> None:
    with pytest.raises(SettingsError, match=r"kafkaesque.*amazon_sqs"):
        open_broker("kafkaesque", "any")


def test_thousands_of_messages_cost_microseconds_each() -> None:
    """A benchmark drives half a million through it; a scan per call would make this take minutes."""
    world = MemoryWorld()
    broker, queue = MemoryBroker(world), world.create("orders")
    messages = [outgoing(b"x" * 100, n) for n in range(1000)]
    started = time.process_time()
    for _ in range(50):
        broker.publish(queue, messages)
    while got := broker.receive(queue, limit=1000, wait=NO_WAIT, lease=LEASE):
        broker.settle(queue, [r.receipt for r in got])

    assert time.process_time() - started < 5
