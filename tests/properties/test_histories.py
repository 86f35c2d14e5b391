"""Random histories of a route against a simple model: nothing lost, nothing over its cap, order kept, it all adds up.

Messages are produced, fail, are drained, redelivered, come back (once, twice, late, with another body, through the
delay queue), meet people, and processes die on the way: at a random call of the broker or commit of the ledger, after
which they can't do anything any more, as after a SIGKILL. Drain and delivery have two shards each, which take turns;
what was enqueued first need not have died first, and people peek into the dead-letter queue, which hides what they look
at. What must hold is checked after every step, and again at the end, when everything has been given time to come to
rest.
"""

import atexit
import copy
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from redrive.brokers.memory import ManualClock, MemoryBroker, MemoryWorld
from redrive.errors import RoutePaused
from redrive.ledger import leases
from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.message import DeadLetter, Header, Micros, body_hash, read_tracking
from redrive.stages import pipeline
from redrive.stages.context import Run
from tests.turns import Turns
from tests.workshop import KEY_ERROR, REFUSED, THROTTLED, Workshop, micros

STRANGE = "the flux capacitor said hm"
ERRORS = (REFUSED, REFUSED, REFUSED, THROTTLED, KEY_ERROR, STRANGE)
FATES = ("done", "done", "fails", "twice", "asks", "derives", "late")
REQUEUES, DELAYS = 2, 2
ROUTE: dict[str, Any] = {
    "sources": [
        {"queue": "orders-dlq", "kind": "dead_letter", "lease": "2s", "max_deliveries": 3, "retention": "14d"},
        {"queue": "orders-delay", "kind": "delay", "delay": "1m", "destination": "orders", "retention": "14d"},
    ],
    "requeue_attempts": REQUEUES,
    "delay_attempts": DELAYS,
    "backoff": {"first": "1m", "factor": 2, "max": "5m"},
    "canary": {"first": 2, "grow": 2, "pass": 0.6, "observe": "10s"},
    "breaker": {"return_rate": 0.6, "min_samples": 4, "cool_down": "5m"},
    "order_by": "attribute:customer",
    "drain": {"wait": "0s", "flush_messages": 4},
    "deliver": {"slice": 4, "confirm_window": 2},
}
CONFIRM_WINDOW = 2
SHARDS = 2
RECEIVED_AT_ONCE = 2
#: States in which a message keeps later ones of its key waiting.
UNFINISHED = (
    "('classified', 'waiting', 'held', 'sending', 'unknown', 'sent', 'returned', 'to_review', 'escalated', 'expired')"
)


class Died(BaseException):
    """The process is gone; nothing that it still tries to do happens."""


class Life:
    """Of the process that works on the route: it may be told to die at a point that it reaches."""

    def __init__(self) -> None:
        self.points_left: int | None = None
        self.dead = False

    def reach(self) -> None:
        if self.dead:
            raise Died
        if self.points_left is not None:
            self.points_left -= 1
            if self.points_left < 0:
                self.dead = True
                raise Died


class MortalBroker(MemoryBroker):
    """A broker whose client can die before and after each of its calls, and that looks at what is published. Clients
    of the same ``turns`` take turns."""

    def __init__(self, world: MemoryWorld, life: Life, watch: Callable[[Any], None], turns: Turns) -> None:
        super().__init__(world)
        self._life = life
        self._watch = watch
        self._turns = turns

    def receive(self, queue: str, *, limit: int, **how: Any) -> Any:
        received = self._mortally(super().receive, queue, limit=min(limit, RECEIVED_AT_ONCE), **how)
        self._turns.pass_on()
        return received

    def settle(self, queue: str, receipts: Any) -> Any:
        return self._mortally(super().settle, queue, receipts)

    def release(self, queue: str, receipts: Any) -> Any:
        return self._mortally(super().release, queue, receipts)

    def publish(self, queue: str, messages: Any) -> Any:
        if not self._life.dead:
            self._watch(messages)
        results = self._mortally(super().publish, queue, messages)
        self._turns.pass_on()
        return results

    def _mortally(self, call: Callable[..., Any], *args: Any, **how: Any) -> Any:
        self._life.reach()
        done = call(*args, **how)
        self._life.reach()
        return done


LIFE = Life()


class Shop(Workshop):
    """Drains and delivers with several shards."""

    watch: Callable[[Any], None]

    def client(self, turns: Turns) -> MortalBroker:
        return MortalBroker(self.world, LIFE, self.watch, turns)

    def drain(self, run: Run) -> dict[str, Any]:
        return self._sharded(pipeline.drain, run)

    def deliver(self, run: Run) -> dict[str, Any]:
        return self._sharded(pipeline.deliver, run)

    def _sharded(self, stage: Callable[..., dict[str, Any]], run: Run) -> dict[str, Any]:
        turns = Turns()

        def shard(number: int) -> Callable[[], dict[str, Any]]:
            how = {"shard": number, "shards": SHARDS, "clock": self.now, "broker": self.client(turns)}
            return lambda: stage(self.settings, run, **how)

        return dict(zip("abcdef", turns.run(*[shard(number) for number in range(SHARDS)]), strict=False))


@contextmanager
def _mortal_write(ledger: Ledger) -> Iterator[Any]:
    LIFE.reach()
    with _write(ledger) as connection:
        yield connection
        LIFE.reach()
    LIFE.reach()


_write = Ledger.write


def _template() -> Shop:
    """A workshop with an empty ledger, made once."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="redrive-histories-", dir=place))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shop = Shop(folder / "template", **ROUTE)
    shop.ledger.close()
    return shop


class Histories(RuleBasedStateMachine):
    """See the module."""

    template: Shop | None = None
    made = 0

    def __init__(self) -> None:
        super().__init__()
        cls = Histories
        cls.template = cls.template or _template()
        cls.made += 1
        folder = cls.template.folder.parent / str(cls.made)
        shutil.copytree(cls.template.folder, folder)
        shop = self.shop = copy.copy(cls.template)
        shop.folder = folder
        shop.time = ManualClock(cls.template.time.now)
        shop.world = MemoryWorld(clock=shop.time, patience=timedelta(0))
        for queue in ("orders", "orders-dlq", "orders-delay"):
            shop.world.create(queue, lease=timedelta(minutes=5))
        shop.settings = shop.configure(f"sqlite:///{folder}/redrive.db", **ROUTE)
        shop.ledger = Ledger(shop.settings.database)
        self.consumer = MemoryBroker(shop.world)
        shop.watch = self._publishing
        shop.broker = shop.client(Turns())
        LIFE.points_left, LIFE.dead = None, False
        Ledger.write = _mortal_write  # type: ignore[method-assign, assignment]
        # The model: what there is, what has been seen.
        self.bodies: set[bytes] = set()
        self.first_died: dict[bytes, tuple[str | None, Micros, Micros]] = {}  # customer, when enqueued, when it died
        self.arrived: Counter[tuple[str, int]] = Counter()  # at the consumer, by redrive id and attempt
        self.kept: list[DeadLetter] = []  # copies that the consumer has had and may still fail with
        self.deaths = 0
        self.injected = 0  # answers of the broker that were lost
        self.out_of_order: list[str] = []

    # --- what happens -----------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        """Nothing is interesting before something has failed."""
        self.produce(4, REFUSED, None, False, False)
        self.produce(2, REFUSED, "ana", False, False)

    @rule(
        count=st.integers(1, 4),
        error=st.sampled_from(ERRORS),
        customer=st.sampled_from([None, "ana", "ben"]),
        delay=st.sampled_from([False, False, False, True]),
        backwards=st.booleans(),
        peek=st.integers(0, 2),
    )
    def produce(
        self, count: int, error: str, customer: str | None, delay: bool, backwards: bool, peek: int = 0
    ) -> None:
        """Messages die, or are put off by their consumer; ``backwards``: the one that was enqueued last comes first.

        Somebody looks at the first few, and at all that lies there: for long nobody else sees it.
        """
        first = self._tick()
        for number in range(count):
            died_at = self._tick()
            enqueued_at = first - number if backwards else first + number
            body = b"message %d" % len(self.bodies)
            self.bodies.add(body)
            self.first_died[body] = (customer, enqueued_at, died_at)
            headers = [Header("error", "String", error)] if not delay else []
            if customer:
                headers.append(Header("customer", "String", customer))
            queue = "orders-delay" if delay else "orders-dlq"
            self.shop.world.put(
                queue,
                DeadLetter(
                    "", body, tuple(headers), origin="orders", enqueued_at=enqueued_at, dead_lettered_at=died_at
                ),
            )
            if number < peek:
                self.consumer.receive(queue, limit=100, wait=timedelta(0), lease=timedelta(minutes=100))

    @rule(
        fates=st.lists(st.sampled_from(FATES), min_size=2, max_size=8),
        error=st.sampled_from(ERRORS),
        minutes=st.sampled_from([1, 7, 40]),
    )
    def go_on(self, fates: list[str], error: str, minutes: int) -> None:
        """A run, and the consumer works."""
        self.run(minutes)
        self.consume(fates, error)

    @rule(fates=st.lists(st.sampled_from(FATES), min_size=1, max_size=6), error=st.sampled_from(ERRORS))
    def consume(self, fates: list[str], error: str) -> None:
        """The consumer takes messages from the destination, and what becomes of each differs."""
        received = self.consumer.receive("orders", limit=len(fates), wait=timedelta(0), lease=timedelta(minutes=1))
        for (letter, _), fate in zip(received, fates, strict=False):
            self._saw(letter)
            match fate:
                case "fails":
                    self._back(letter, error)
                case "twice":
                    self._back(letter, error)
                    self._back(letter, error)
                case "asks":
                    self._back(letter, None, "orders-delay")
                case "derives":
                    body = b"derived %d" % len(self.bodies)
                    self.bodies.add(body)
                    self._back(letter._replace(body=body), error)
                case "late":
                    self.kept.append(letter)
        self.consumer.settle("orders", [receipt for _, receipt in received])

    @rule(fate=st.sampled_from(["done", "fails"]), error=st.sampled_from(ERRORS), rounds=st.integers(2, 4))
    def go_on_for_long(self, fate: str, error: str, rounds: int) -> None:
        """Everything is mended, or everything goes wrong."""
        for _ in range(rounds):
            self.run(40)
            self.consume([fate] * 20, error)

    @precondition(lambda self: self.kept)
    @rule(data=st.data(), error=st.sampled_from(ERRORS))
    def come_back_late(self, data: st.DataObject, error: str) -> None:
        """What was thought to be done, and may have been sent again since, fails after all."""
        self._back(self.kept.pop(data.draw(st.integers(0, len(self.kept) - 1))), error)

    @rule(minutes=st.sampled_from([0, 1, 7, 40]))
    def run(self, minutes: int) -> None:
        """A whole run."""
        self.shop.advance(minutes=minutes)
        try:
            self.shop.cycle()
        except RoutePaused:
            leases.resume(self.shop.ledger, "orders", by="ana", now=self.shop.now())

    @rule(points=st.integers(0, 120), minutes=st.sampled_from([0, 7]))
    def run_and_die(self, points: int, minutes: int) -> None:
        """A run that dies on the way; nobody takes over before its leases are over."""
        self.shop.advance(minutes=minutes)
        LIFE.points_left = points
        try:
            self.shop.cycle()
        except Died:
            self.deaths += 1
        except RoutePaused:
            pass
        finally:
            LIFE.points_left, LIFE.dead = None, False
        self.shop.advance(minutes=10)

    @rule(what=st.sampled_from(["lost", "unknown", "retry", "refused"]))
    def trouble(self, what: str) -> None:
        """One of the next sends goes wrong."""
        faults = self.shop.world.faults
        if what == "lost":
            faults.lost_responses = 1
        elif not faults.publishes:
            faults.publishes.append(what)  # type: ignore[arg-type]
        self.injected += what in ("lost", "unknown")

    @rule(data=st.data(), decision=st.sampled_from(["redeliver", "redeliver", "discard", "edit"]), apply=st.booleans())
    def review(self, data: st.DataObject, decision: str, apply: bool) -> None:
        """A person decides about one message, or about all of its group."""
        open_ = self.shop.query(
            "select escalation_id, group_id from escalated_messages where status in ('open', 'refused', 'reopened')"
            " order by 1"
        )
        if not open_:
            return
        one, group = data.draw(st.sampled_from(open_))
        where = "group_id = :which" if decision == "redeliver" and group is not None else "escalation_id = :which"
        with self.shop.ledger.write() as connection:
            connection.execute(
                sql(
                    "update escalated_messages set decision = :decision, decided_by = 'ana', corrected_body = :body"
                    f" where {where} and status in ('open', 'refused', 'reopened')"
                ),
                {
                    "decision": decision,
                    "body": "corrected" if decision == "edit" else None,
                    "which": group if "group" in where else one,
                },
            )
        if apply:
            self.shop.review()

    # --- what must hold -----------------------------------------------------------------------------------

    @invariant()
    def it_adds_up(self) -> None:
        for row in self.shop.query("select * from message_balance"):
            assert row[-3:] == (0, 0, 0), row

    @invariant()
    def nothing_is_over_its_cap(self) -> None:
        over = self.shop.query(
            "select m.message_id, m.releases, sum(case when a.mode = 'release' then 1 else 0 end) as released,"
            " sum(case when a.mode <> 'release' then 1 else 0 end) as others from redelivery_attempts a"
            " inner join messages m on m.message_id = a.message_id group by m.message_id, m.releases"
            " having released > m.releases or others > :most",
            most=REQUEUES + DELAYS,
        )
        assert over == []

    @invariant()
    def order_is_kept(self) -> None:
        assert self.out_of_order == []

    @invariant()
    def nothing_arrives_twice_or_without_being_known(self) -> None:
        assert [key for key, count in self.arrived.items() if count > 1] == [], "an attempt is sent once"
        known = set(
            self.shop.query(
                "select m.redrive_id, a.attempt from redelivery_attempts a inner join messages m"
                " on m.message_id = a.message_id"
            )
        )
        assert set(self.arrived) <= known

    def teardown(self) -> None:
        """Everything comes to rest: the consumer works well, time passes, runs go through."""
        try:
            LIFE.points_left, LIFE.dead = None, False
            faults = self.shop.world.faults
            faults.lost_responses = 0
            faults.publishes.clear()
            for _ in range(3):
                self.shop.advance(minutes=40)
                leases.resume(self.shop.ledger, "orders", by="ana", now=self.shop.now())
                self.shop.cycle()
                self._work_off()
            self._nothing_is_lost()
            assert self.shop.audit() == []
        finally:
            Ledger.write = _write  # type: ignore[method-assign]
            self.shop.ledger.close()
            shutil.rmtree(self.shop.folder, ignore_errors=True)

    def _nothing_is_lost(self) -> None:
        for queue in ("orders-dlq", "orders-delay"):
            assert self.shop.broker.depth(queue).total == 0, f"{queue} is drained"
        rows = self.shop.query("select body_hash, state, redrive_id, attempts, message_id from messages")
        found = Counter(bytes(row[0]) for row in rows)
        assert found == Counter(body_hash(body) for body in self.bodies), "each message is there exactly once"
        sends = {
            (redrive_id, attempt): (sent_at is not None, unknown_at is not None)
            for redrive_id, attempt, sent_at, unknown_at in self.shop.query(
                "select m.redrive_id, a.attempt, a.sent_at, a.unknown_at from redelivery_attempts a"
                " inner join messages m on m.message_id = a.message_id"
            )
        }
        for key, (sent, unknown) in sends.items():
            assert sent or unknown, f"{key} was never sent, and its claim is still there"
            assert self.arrived[key] == 1 or (unknown and not sent), f"{key} was sent and has not arrived"
        unknowns = sum(unknown for _, unknown in sends.values())
        assert unknowns <= self.deaths * CONFIRM_WINDOW + self.injected, "at most one confirm window per death"
        for _, state, redrive_id, attempts, message_id in rows:
            assert state not in ("sending", "classified", "returned"), (state, message_id)
            if state in ("sent", "presumed"):
                assert self.arrived[redrive_id, attempts] == 1
            if state == "escalated":
                assert self.shop.query(
                    "select count(*) from escalated_messages where message_id = :id and status <> 'applied'",
                    id=message_id,
                ) == [(1,)]

    # --- the world ----------------------------------------------------------------------------------------

    def _publishing(self, messages: Any) -> None:
        """Nothing goes out while an earlier message of its key is not finished, or not even staged."""
        staged = {bytes(found) for (found,) in self.shop.query("select body_hash from messages")}
        hidden = {body: died for body, died in self.first_died.items() if body_hash(body) not in staged}
        for message in messages:
            earlier = self.shop.query(
                "select e.message_id, e.state from messages m inner join messages e on e.order_key = m.order_key"
                " and (e.first_enqueued_at, e.message_id) < (m.first_enqueued_at, m.message_id)"
                f" and e.state in {UNFINISHED} where m.message_id = :id",
                id=message.message_id,
            )
            if earlier:
                self.out_of_order.append(f"{message.message_id} was sent before {earlier}")
            ((key, *times),) = self.shop.query(
                "select order_key, first_enqueued_at, dead_lettered_at from messages where message_id = :id",
                id=message.message_id,
            )
            enqueued_at, died_at = (micros(at) for time in times if (at := parse_instant(time)) is not None)
            for body, (customer, when_enqueued, when_died) in hidden.items():
                if customer is not None and customer == key and when_enqueued < enqueued_at and when_died <= died_at:
                    self.out_of_order.append(f"{message.message_id} was sent before {body!r} was drained")

    def _saw(self, letter: DeadLetter) -> None:
        redrive_id, attempt = read_tracking(letter.headers)[:2]
        assert redrive_id is not None
        assert attempt is not None
        self.arrived[redrive_id, attempt] += 1

    def _back(self, letter: DeadLetter, error: str | None, queue: str = "orders-dlq") -> None:
        """A copy of ``letter`` lands in ``queue`` with all headers."""
        kept = tuple(header for header in letter.headers if header.name != "error")
        headers = kept if error is None else (*kept, Header("error", "String", error))
        died_at = self._tick()
        copied = letter._replace(
            broker_message_id="", headers=headers, enqueued_at=died_at, dead_lettered_at=died_at, origin="orders"
        )
        if letter.body in self.bodies and letter.body not in self.first_died:
            customer = next((header.value for header in headers if header.name == "customer"), None)
            self.first_died[letter.body] = (customer, died_at, died_at)
        self.shop.world.put(queue, copied)

    def _tick(self) -> Micros:
        """No two things happen at the same moment; what moment that is."""
        self.shop.advance(milliseconds=1)
        return self.shop.time.now

    def _work_off(self) -> None:
        while received := self.consumer.receive("orders", limit=100, wait=timedelta(0), lease=timedelta(minutes=1)):
            for letter, _ in received:
                self._saw(letter)
            self.consumer.settle("orders", [receipt for _, receipt in received])


#: A failure is made smaller before it is told, and that takes a while.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
HOW = settings(
    max_examples=int(os.environ.get("REDRIVE_HISTORIES", "15")),
    stateful_step_count=20,
    derandomize="REDRIVE_HISTORIES" not in os.environ,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    database=None,
)


def test_random_histories_lose_and_double_nothing() -> None:
    """With ``$REDRIVE_HISTORIES`` so many histories of other dice than always."""
    run_state_machine_as_test(Histories, settings=HOW)
