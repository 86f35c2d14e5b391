"""What Redrive relies on in every broker, written once.

A broker's test class inherits :class:`BrokerContract` and supplies fixtures only; what it can't carry it says
in the class attributes. A promise that holds for one broker only is tested in that broker's own file.

Nothing skips: where a broker lacks a capability, the test holds it to what follows from that (a broker without a bound
takes a large message, one that keeps no delay refuses one), or its class overrides the test with what is true there.
A test that a server can't be put to is set to None in its class, with the reason beside it, and isn't collected.
"""

import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.brokers.base import Broker, Publication, Settled
from redrive.errors import BrokerUnavailable, NothingSent, PermissionRefused, QueueMissing
from redrive.message import (
    FIRST_MOMENT,
    LAST_MOMENT,
    MOST,
    Header,
    Outgoing,
    Received,
    Tracking,
    clean_headers,
    read_tracking,
    tracking_headers,
)
from redrive.stages import pipeline
from redrive.stages.context import utc_now
from tests.workshop import Workshop

NO_WAIT = timedelta(0)
LEASE = timedelta(seconds=60)
BOUNCES = 20  # so many and a drain does not end by itself
UNBOUNDED_BODY = 4 << 20
#: Seconds that a server may take, however busy the machine is; who waits ends at once when it has come.
PATIENCE = 60.0
UNBOUNDED_HEADERS = 1_000

BODIES = {
    "text": b'{"order": 17}',
    "umlauts": "Größe: 42 €, 漢字, 🙂".encode(),
    "line-ends": b"a\r\nb\tc\n",
    "hostile": b"'; drop table orders; -- <script>${jndi:ldap://x}</script> {{7*7}} %s%n",
    "spaces": b"  ",
}


def outgoing(body: bytes = b"hello", number: int = 1, **fields: object) -> Outgoing:
    """A message to publish, with only the facts that matter."""
    return Outgoing(number, f"k3v9q2-{number:014x}", 1, body, **fields)  # type: ignore[arg-type]


def eventually(question: Callable[[], object], within: float = PATIENCE) -> object:
    """The first answer that is true; the last one after ``within`` seconds."""
    deadline = time.monotonic() + within
    while not (answer := question()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return answer


#: Every call of the port, on one queue.
CALLS: dict[str, Callable[[Broker, str], object]] = {
    "receive": lambda broker, queue: broker.receive(queue, limit=1, wait=NO_WAIT, lease=LEASE),
    "settle": lambda broker, queue: broker.settle(queue, ["receipt"]),
    "release": lambda broker, queue: broker.release(queue, ["receipt"]),
    "extend": lambda broker, queue: broker.extend(queue, ["receipt"], LEASE),
    "publish": lambda broker, queue: broker.publish(queue, [outgoing()]),
    "depth": lambda broker, queue: broker.depth(queue),
    "describe": lambda broker, queue: broker.describe(queue),
}


class Bouncing:
    """A broker at which every message comes back as soon as it is settled."""

    def __init__(self, broker: Broker, let_pass: Callable[[timedelta], None]) -> None:
        self._broker = broker
        self._let_pass = let_pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def settle(self, queue: str, receipts: Sequence[object]) -> Settled:
        settled = self._broker.settle(queue, receipts)
        self._let_pass(timedelta(milliseconds=2))
        self._broker.publish(queue, [outgoing(b"again", number) for number, _ in enumerate(receipts)])
        return settled


class BrokerContract:
    """Supply the fixtures of the first section; the tests below are the contract."""

    #: False: a body that is no text is refused, with the reason.
    carries_binary = True
    #: False: it is in this process.
    has_an_address = True
    #: False: an empty body is refused, with the reason.
    carries_empty = True
    #: The type of a plain text header, as the broker names it.
    text_type = "String"
    #: False: a dead letter gets a new broker id. Asked where identity is stable at all.
    keeps_id_when_dead_lettered = True
    #: False: the broker doesn't tell how often a message was delivered.
    counts_deliveries = True
    #: Headers in which this broker's adapter reads numbers and times, with what anyone could write there.
    hostile_headers: tuple[tuple[Header, ...], ...] = ((Header("x-delivery-count", "String", "99999999999"),),)
    #: A little under the broker's bound, where that is less than 1 MB.
    max_body = 1_000_000
    #: The shortest lease that the broker gives.
    short_lease = timedelta(seconds=1)
    #: How a source of dead letters is named that is a queue itself.
    source_name = "{}"

    # --- what a broker's tests supply ------------------------------------------------------------------

    @pytest.fixture
    def broker(self) -> Broker:
        """The adapter, on a server that works."""
        raise NotImplementedError

    @pytest.fixture
    def another_broker(self) -> Broker:
        """A second client of the same server, as another task has."""
        raise NotImplementedError

    @pytest.fixture
    def make_queue(self) -> Callable[..., str]:
        """``make_queue(ordered=False, dead_letter_queue=None, max_deliveries=None)`` -> name of a new, empty queue."""
        raise NotImplementedError

    @pytest.fixture
    def let_pass(self) -> Callable[[timedelta], None]:
        """Let time pass: sleep, move a stand-in's clock, or end the consumer where only that ends a lease."""
        return lambda duration: time.sleep(duration.total_seconds())

    @pytest.fixture
    def now(self) -> Callable[[], datetime]:
        """The broker's clock."""
        return utc_now

    @pytest.fixture
    def refused_broker(self) -> Broker:
        """A broker that the server allows nothing on ``orders-dlq``."""
        raise NotImplementedError

    @pytest.fixture
    def unreachable_broker(self) -> Broker:
        """A broker whose server isn't there, with short timeouts."""
        raise NotImplementedError

    def left(self, broker: Broker, queue: str) -> int:
        """How many messages ``queue`` holds, leased ones too; where a broker can't know, its tests look for it."""
        total = broker.depth(queue).total
        assert total is not None
        return total

    def delivered(self, received: Received, times: int) -> bool:
        """The letter says that it was delivered so often, or nothing where its broker doesn't count."""
        counted = received.letter.deliveries
        return counted == times if self.counts_deliveries else counted in (0, times)

    # --- words that the tests use ----------------------------------------------------------------------

    @pytest.fixture
    def queue(self, make_queue: Callable[..., str]) -> str:
        return make_queue()

    @staticmethod
    def take(
        broker: Broker, queue: str, count: int, lease: timedelta = LEASE, *, least: int | None = None
    ) -> list[Received]:
        """Receive until ``count`` messages are here.

        With ``least`` so many are certain, and of the others those that come before nothing more does for a while. A
        server on a busy machine may pause for longer: so what is certain is waited for.
        """
        taken: list[Received] = []
        deadline = time.monotonic() + PATIENCE
        while len(taken) < count:
            got = broker.receive(
                queue, limit=count - len(taken), wait=timedelta(seconds=0.3 if taken else 1), lease=lease
            )
            if not got and len(taken) >= (count if least is None else least):
                break
            assert got or time.monotonic() < deadline, f"{len(taken)} of {count} came: {taken}"
            taken += got
        return taken

    @staticmethod
    def send(broker: Broker, queue: str, *messages: Outgoing) -> list[Publication]:
        results = broker.publish(queue, messages)
        assert [result.status for result in results] == ["sent"] * len(messages)
        return results

    # --- messages arrive as they were sent -------------------------------------------------------------

    @pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
    def test_a_body_survives_byte_for_byte(self, broker: Broker, queue: str, body: bytes) -> None:
        self.send(broker, queue, outgoing(body))

        assert [r.letter.body for r in self.take(broker, queue, 1)] == [body]

    @pytest.mark.parametrize("body", [b"\xff\xfe\x00 not text", b"null \x00 byte", b"\xef\xbf\xbf noncharacter"],
                             ids=["not-utf8", "nul", "nonchar"])  # fmt: skip
    def test_a_binary_body_survives_or_is_refused(self, broker: Broker, queue: str, body: bytes) -> None:
        [result, after] = broker.publish(queue, [outgoing(body, 1), outgoing(b"after", 2)])

        if self.carries_binary:
            assert result.status == "sent"
            assert {r.letter.body for r in self.take(broker, queue, 2)} == {body, b"after"}
        else:
            assert result.status == "refused"
            assert result.detail
            assert after.status == "sent"  # one message that can't be sent does not block its batch

    def test_an_empty_body_survives_or_is_refused(self, broker: Broker, queue: str) -> None:
        [result] = broker.publish(queue, [outgoing(b"")])

        if self.carries_empty:
            assert [r.letter.body for r in self.take(broker, queue, 1)] == [b""]
        else:
            assert result.status == "refused"
            assert "empty" in result.detail

    def test_a_large_body_survives(self, broker: Broker, queue: str) -> None:
        body = bytes(range(32, 127)) * (self.max_body // 95)
        self.send(broker, queue, outgoing(body))

        assert self.take(broker, queue, 1)[0].letter.body == body

    def test_large_bodies_are_sent_in_one_call(self, broker: Broker, queue: str) -> None:
        bodies = {bytes([65 + n]) * (self.max_body // 3) for n in range(12)}
        self.send(broker, queue, *(outgoing(body, n) for n, body in enumerate(bodies)))

        assert {r.letter.body for r in self.take(broker, queue, 12)} == bodies

    def test_a_body_that_is_too_large_is_refused_with_its_size(self, broker: Broker, queue: str) -> None:
        bound = broker.capabilities.max_message_bytes
        if bound is None:
            self.send(broker, queue, outgoing(b"x" * UNBOUNDED_BODY))
            return
        results = broker.publish(queue, [outgoing(b"x" * (bound + 1), 1), outgoing(b"small", 2)])

        assert [r.status for r in results] == ["refused", "sent"]
        assert str(bound) in results[0].detail

    def test_headers_survive_with_their_types(self, broker: Broker, queue: str) -> None:
        headers = (
            Header("customer", "String", "Müller & Söhne"),
            Header("amount", "Number", "12.50"),
            Header("count", "Number.int", "7"),
            Header("thumbnail", "Binary.png", b"\x89PNG\x00\xff"),
        )
        self.send(broker, queue, outgoing(headers=headers))

        assert set(self.take(broker, queue, 1)[0].letter.headers) == set(headers)

    def test_whatever_a_header_says_a_message_is_received(self, broker: Broker, queue: str) -> None:
        hostile = dict(enumerate(((), *self.hostile_headers)))
        self.send(broker, queue, *(outgoing(b"%d" % n, n, headers=headers) for n, headers in hostile.items()))
        taken = [received.letter for received in self.take(broker, queue, len(hostile))]

        assert {int(letter.body) for letter in taken} == set(hostile)
        for letter in taken:
            assert 0 <= letter.deliveries <= MOST
            for moment in (letter.enqueued_at, letter.dead_lettered_at, letter.first_received_at):
                assert moment is None or FIRST_MOMENT <= moment <= LAST_MOMENT

    def test_tracking_headers_survive(self, broker: Broker, queue: str) -> None:
        self.send(broker, queue, outgoing(headers=(Header("a", "String", "b"), *tracking_headers("k3v9q2-17", 3))))

        assert read_tracking(self.take(broker, queue, 1)[0].letter.headers) == Tracking("k3v9q2-17", 3)

    def test_too_many_headers_are_refused(self, broker: Broker, queue: str) -> None:
        bound = broker.capabilities.max_headers
        if bound is None:
            many = tuple(Header(f"h{n}", self.text_type, "v") for n in range(UNBOUNDED_HEADERS))
            self.send(broker, queue, outgoing(headers=many))
            assert set(self.take(broker, queue, 1)[0].letter.headers) >= set(many)
            return
        many = tuple(Header(f"h{n}", "String", "v") for n in range(bound + 1))
        results = broker.publish(queue, [outgoing(headers=many), outgoing(number=2, headers=many[:-1])])

        assert [r.status for r in results] == ["refused", "sent"]
        assert str(bound) in results[0].detail

    def test_an_ordering_key_survives(self, broker: Broker, make_queue: Callable[..., str]) -> None:
        queue = make_queue(ordered=True)
        self.send(broker, queue, outgoing(ordering_key="customer-7"))

        assert self.take(broker, queue, 1)[0].letter.ordering_key == "customer-7"

    def test_a_content_type_survives(self, broker: Broker, queue: str) -> None:
        self.send(broker, queue, outgoing(content_type="application/json"))

        assert self.take(broker, queue, 1)[0].letter.content_type == "application/json"

    def test_a_letter_tells_its_id_and_times(self, broker: Broker, queue: str) -> None:
        [result] = self.send(broker, queue, outgoing())
        [received] = self.take(broker, queue, 1)

        assert received.letter.broker_message_id == result.broker_message_id != ""
        assert received.letter.enqueued_at is not None
        assert received.letter.enqueued_at > 1_600_000_000_000_000
        assert self.delivered(received, 1)
        assert not received.letter.redelivered

    # --- receive, settle, release ----------------------------------------------------------------------

    def test_a_settled_message_is_gone(self, broker: Broker, queue: str) -> None:
        self.send(broker, queue, outgoing())
        [received] = self.take(broker, queue, 1)

        assert broker.settle(queue, [received.receipt]).count == 1
        assert self.left(broker, queue) == 0

    def test_settling_twice_harms_nothing(self, broker: Broker, queue: str) -> None:
        self.send(broker, queue, outgoing(number=1), outgoing(number=2))
        first, _ = self.take(broker, queue, 2)
        broker.settle(queue, [first.receipt])
        broker.settle(queue, [first.receipt])

        assert self.left(broker, queue) == 1

    def test_settling_nothing_is_nothing(self, broker: Broker, queue: str) -> None:
        assert broker.settle(queue, []).count == 0
        assert broker.publish(queue, []) == []
        broker.release(queue, [])
        broker.extend(queue, [], LEASE)

    def test_one_bad_receipt_does_not_spoil_the_others(
        self, broker: Broker, queue: str, let_pass: Callable[[timedelta], None]
    ) -> None:
        self.send(broker, queue, outgoing(number=1))
        [lost] = self.take(broker, queue, 1, self.short_lease)
        let_pass(self.short_lease * 1.5)
        self.send(broker, queue, *(outgoing(number=n) for n in range(2, 14)))
        good = [r.receipt for r in self.take(broker, queue, 13)]  # the lost one under a new receipt among them

        settled = broker.settle(queue, [*good[:3], lost.receipt, *good[3:]])

        assert settled.count == 13
        assert [receipt for receipt, _ in settled.failures] == [lost.receipt]
        assert settled.failures[0][1]
        assert self.left(broker, queue) == 0

    def test_a_leased_message_is_hidden_and_counted(self, broker: Broker, queue: str) -> None:
        self.send(broker, queue, outgoing(), outgoing(number=2))
        self.take(broker, queue, 1)

        assert len(self.take(broker, queue, 2, least=1)) == 1
        assert self.left(broker, queue) == 2
        depth = broker.depth(queue)
        told = (depth.visible, depth.in_flight, depth.delayed)
        # What a broker doesn't tell is None, never a number that looks like an answer.
        assert [true if number is None else number for number, true in zip(told, (0, 2, 0), strict=True)] == [0, 2, 0]
        assert depth.total == (None if None in told else 2)
        assert None not in told or not broker.capabilities.knows_empty

    def test_a_released_message_comes_back_at_once(self, broker: Broker, queue: str) -> None:
        self.send(broker, queue, outgoing())
        [first] = self.take(broker, queue, 1)
        broker.release(queue, [first.receipt])
        [again] = self.take(broker, queue, 1)

        assert again.letter.broker_message_id == first.letter.broker_message_id
        assert self.delivered(again, 2)
        assert again.letter.redelivered or not self.counts_deliveries

    def test_what_a_killed_consumer_held_comes_back_after_the_lease(
        self, broker: Broker, queue: str, let_pass: Callable[[timedelta], None]
    ) -> None:
        self.send(broker, queue, *(outgoing(b"%d" % n, n) for n in range(3)))
        self.take(broker, queue, 3, self.short_lease)
        let_pass(self.short_lease * 1.5)

        back = self.take(broker, queue, 3)
        assert {r.letter.body for r in back} == {b"0", b"1", b"2"}
        assert all(self.delivered(r, 2) for r in back)

    def test_an_extended_lease_keeps_a_message_away(
        self, broker: Broker, make_queue: Callable[..., str], let_pass: Callable[[timedelta], None]
    ) -> None:
        lease = self.short_lease
        while True:
            queue = make_queue()
            self.send(broker, queue, outgoing(b"kept", 1), outgoing(b"let go", 2))
            began = time.monotonic()
            taken = self.take(broker, queue, 2, lease)
            kept = next(r for r in taken if r.letter.body == b"kept")
            broker.extend(queue, [kept.receipt], LEASE)
            if time.monotonic() - began < lease.total_seconds():
                break
            lease *= 2  # so busy a machine lets a short lease end before it can be extended
        let_pass(lease * 1.5)

        assert [r.letter.body for r in self.take(broker, queue, 2, least=1)] == [b"let go"]
        assert broker.settle(queue, [kept.receipt]).count == 1

    def test_an_empty_queue_gives_nothing(self, broker: Broker, queue: str) -> None:
        assert broker.receive(queue, limit=100, wait=NO_WAIT, lease=LEASE) == []
        assert self.left(broker, queue) == 0

    def test_the_limit_is_kept(self, broker: Broker, queue: str) -> None:
        self.send(broker, queue, *(outgoing(number=n) for n in range(40)))

        assert broker.receive(queue, limit=0, wait=NO_WAIT, lease=LEASE) == []
        for limit in (7, 25):
            assert 1 <= len(broker.receive(queue, limit=limit, wait=timedelta(seconds=PATIENCE), lease=LEASE)) <= limit

    def test_many_messages_arrive_once_each(self, broker: Broker, queue: str) -> None:
        self.send(broker, queue, *(outgoing(b"%d" % n, n) for n in range(137)))
        taken = self.take(broker, queue, 137)

        assert sorted(int(r.letter.body) for r in taken) == list(range(137))
        assert broker.settle(queue, [r.receipt for r in taken]).count == 137
        assert self.left(broker, queue) == 0

    def test_what_bounces_back_during_a_drain_does_not_keep_it_running(
        self,
        broker: Broker,
        queue: str,
        now: Callable[[], datetime],
        let_pass: Callable[[timedelta], None],
        tmp_path: Path,
    ) -> None:
        """What was there when it began is the end of it: a depth that is known, or the moment."""
        self.send(broker, queue, *(outgoing(b"%d" % n, n) for n in range(3)))
        workshop = Workshop(
            tmp_path,
            sources=[{"queue": queue, "kind": "dead_letter"}],
            drain={"wait": "2s", "flush_messages": 1, "limit": BOUNCES, "shards": 1, "lease": "60s"},
        )
        run = pipeline.begin(workshop.settings, "orders", trigger="test", holder="test", clock=now)
        counts = pipeline.drain(workshop.settings, run, clock=now, broker=Bouncing(broker, let_pass))
        workshop.ledger.close()

        assert 3 <= counts["drained"] < BOUNCES
        assert counts["settled"] == counts["drained"]

    # --- order, delay, dead-lettering ------------------------------------------------------------------

    def test_order_within_a_key_is_kept(self, broker: Broker, make_queue: Callable[..., str]) -> None:
        queue = make_queue(ordered=True)
        keys = ("a", "b", "a", "a", "b", "a") * 4
        self.send(broker, queue, *(outgoing(b"%d" % n, n, ordering_key=k) for n, k in enumerate(keys)))
        seen: dict[str | None, list[int]] = {}
        while got := self.take(broker, queue, 5, least=sum(map(len, seen.values())) < len(keys)):
            for received in got:
                seen.setdefault(received.letter.ordering_key, []).append(int(received.letter.body))
            broker.settle(queue, [r.receipt for r in got])

        assert seen == {key: [n for n, k in enumerate(keys) if k == key] for key in ("a", "b")}

    def test_no_send_is_taken_for_another(self, broker: Broker, make_queue: Callable[..., str]) -> None:
        """Messages of one body and one id of their producer's: all go back, and so does a second attempt of each."""
        queue = make_queue(ordered=True)
        self.send(broker, queue, outgoing(b"tick", ordering_key="a", dedup_id="tick"))
        [dead] = self.take(broker, queue, 1)
        broker.settle(queue, [dead.receipt])
        again = [
            outgoing(b"tick", n, ordering_key="a", properties=dead.letter.properties, claimed_at=7) for n in range(3)
        ]
        self.send(broker, queue, *again)
        self.send(broker, queue, *(one._replace(attempt=2) for one in again))

        came = []
        while got := self.take(broker, queue, 6, least=len(came) < 6):
            came += [received.letter.body for received in got]
            broker.settle(queue, [received.receipt for received in got])
        assert came == [b"tick"] * 6

    def test_behind_a_message_that_was_not_sent_its_key_waits(
        self, broker: Broker, make_queue: Callable[..., str]
    ) -> None:
        queue = make_queue(ordered=True)
        # A broker without a bound of its own refuses nothing: then all of them go.
        bound = broker.capabilities.max_message_bytes
        bodies = [(b"1", "a"), (b"x" * (1 if bound is None else bound + 1), "a"), (b"3", "a"), (b"4", "b")]
        results = broker.publish(queue, [outgoing(body, n, ordering_key=k) for n, (body, k) in enumerate(bodies)])

        expected = ["sent"] * 4 if bound is None else ["sent", "refused", "retry", "sent"]
        assert [r.status for r in results] == expected

    def test_a_delayed_message_is_counted_and_comes_later(
        self, broker: Broker, make_queue: Callable[..., str], let_pass: Callable[[timedelta], None]
    ) -> None:
        if broker.capabilities.native_delay is None:  # then nothing is sent too early, as if it kept one
            [result] = broker.publish(make_queue(), [outgoing(delay_seconds=1)])
            assert result.status == "refused"
            assert "delay" in result.detail
            return
        delay = 1
        while True:
            queue, began = make_queue(), time.monotonic()
            self.send(broker, queue, outgoing(delay_seconds=delay))
            early = broker.receive(queue, limit=1, wait=NO_WAIT, lease=LEASE)
            delayed = broker.depth(queue).delayed
            if time.monotonic() - began < delay * 0.9:
                break
            delay *= 4  # on so busy a machine its time comes before it can be looked for

        assert (early, delayed) == ([], 1)
        let_pass(timedelta(seconds=delay * 1.5))
        assert len(self.take(broker, queue, 1)) == 1

    def test_a_dead_letter_names_the_queue_on_which_it_failed(
        self, broker: Broker, make_queue: Callable[..., str], let_pass: Callable[[timedelta], None]
    ) -> None:
        dead = make_queue()
        live = make_queue(dead_letter_queue=dead, max_deliveries=2)
        [sent] = self.send(broker, live, outgoing(b"fails", headers=(Header("a", self.text_type, "b"),)))
        for _ in range(2):
            assert len(self.take(broker, live, 1, self.short_lease)) == 1
            let_pass(self.short_lease * 1.5)
        assert self.take(broker, live, 1, least=0) == []

        [received] = self.take(broker, dead, 1)
        assert received.letter.origin == live
        assert broker.leads_to(live, live)
        assert not broker.leads_to(dead, live)
        vouched = broker.origins(dead)
        assert broker.capabilities_for(dead).proves_origin or vouched is None or live in vouched
        assert received.letter.body == b"fails"
        assert clean_headers(received.letter.headers, broker.capabilities.failure_headers) == (
            Header("a", self.text_type, "b"),
        )
        assert received.letter.deliveries >= 2
        if broker.capabilities.stable_identity and self.keeps_id_when_dead_lettered:
            assert received.letter.broker_message_id == sent.broker_message_id

    def test_a_queue_tells_where_it_dead_letters(self, broker: Broker, make_queue: Callable[..., str]) -> None:
        dead = make_queue()
        live = make_queue(dead_letter_queue=dead, max_deliveries=3)

        told = broker.describe(live)
        assert (told.dead_letter_queue, told.max_deliveries, told.ordered) == (
            self.source_name.format(dead),
            3,
            False,
        )
        assert told.lease is not None
        if broker.capabilities.oldest_age == "sample":  # looks into a live queue are rationed by it
            assert (told.own_max_deliveries, broker.describe(dead).own_max_deliveries) == (3, None)
        assert broker.describe(make_queue(ordered=True)).ordered

    # --- errors ---------------------------------------------------------------------------------------

    @pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
    def test_a_missing_queue_is_named(self, broker: Broker, call: Callable[[Broker, str], object]) -> None:
        with pytest.raises(QueueMissing, match="no-such-queue"):
            call(broker, "no-such-queue")

    @pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
    def test_a_refusal_names_the_queue(self, refused_broker: Broker, call: Callable[[Broker, str], object]) -> None:
        with pytest.raises(PermissionRefused, match="orders-dlq"):
            call(refused_broker, "orders-dlq")

    @pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
    def test_a_broker_that_is_not_there_is_told(
        self, unreachable_broker: Broker, call: Callable[[Broker, str], object]
    ) -> None:
        with pytest.raises(BrokerUnavailable, match="orders-dlq") as told:
            call(unreachable_broker, "orders-dlq")
        if self.has_an_address:
            assert re.search(r"\b(127\.0\.0\.1|localhost):\d+", str(told.value)), told.value

    def test_a_broker_that_is_not_there_has_been_sent_nothing(self, unreachable_broker: Broker) -> None:
        with pytest.raises(NothingSent, match="orders-dlq"):
            unreachable_broker.publish("orders-dlq", [outgoing()])

    # --- several tasks at once -------------------------------------------------------------------------

    def test_two_tasks_never_hold_the_same_message(self, broker: Broker, another_broker: Broker, queue: str) -> None:
        self.send(broker, queue, *(outgoing(b"%d" % n, n) for n in range(40)))
        mine = self.take(broker, queue, 20)
        theirs = self.take(another_broker, queue, 40, least=20)

        assert sorted(int(r.letter.body) for r in [*mine, *theirs]) == list(range(40))

    def test_closing_settles_nothing(self, broker: Broker, another_broker: Broker, queue: str) -> None:
        self.send(broker, queue, outgoing(), outgoing(number=2))
        self.take(broker, queue, 1)
        broker.close()

        # A broker may take its time to give back what was held, or tell of it late.
        assert eventually(lambda: self.left(another_broker, queue) == 2), self.left(another_broker, queue)
