"""The whole loop on a real RabbitMQ node: dead-lettered by the broker, drained, classified, sent back, recognised."""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pika
import pytest
from typer.testing import CliRunner

from redrive.brokers.base import ConsumerStats, Settled
from redrive.brokers.rabbitmq.adapter import RabbitMQ
from redrive.brokers.rabbitmq.confirms import Sender, Window
from redrive.cli.app import app
from redrive.ledger.engine import parse_instant
from redrive.message import DeadLetter, Header, Outgoing, read_tracking
from redrive.policy import backoff
from redrive.stages import doctor, open_batch, pipeline, source_end
from tests import servers
from tests.contract.broker_contract import eventually
from tests.contract.test_rabbitmq import adapter, ready
from tests.stages.loop_contract import Killed, LoopContract
from tests.workshop import Workshop

pytestmark = pytest.mark.server

NO_WAIT = timedelta(0)
MINUTE = timedelta(minutes=1)


class RabbitWorkshop(Workshop):
    """A workshop on RabbitMQ and on the real clock; its queues are its own.

    The consumer's queue dead-letters into the source of the route. A consumer that fails rejects, and says no more;
    the route tells what is to be done then.
    """

    def __init__(
        self, folder: Path, server: servers.RabbitMQ, database: str | None = None, kind: str = "quorum", **route: Any
    ) -> None:
        self.server = server
        name = f"orders-{uuid.uuid4().hex[:8]}"
        self.orders, self.dlq, self.delay = name, f"{name}-dlq", f"{name}-delay"
        self.kind = kind
        self.declare_queues()
        on_rabbit = {
            "broker": "rabbitmq",
            "connection": "rabbit_test",
            "destination": None,
            "sources": [
                {
                    "queue": self.dlq,
                    "kind": "dead_letter",
                    "lease": "1s",
                    "max_deliveries": 1,
                    "origins": [self.orders],
                },
                {"queue": self.delay, "kind": "delay", "delay": "1s", "destination": self.orders},
            ],
            "causes": {"unclassified": {"verdict": "requeue"}},
            "evidence": [],
            "backoff": {"first": "1s", "factor": 2, "max": "1m"},
        }
        self._database = database or f"sqlite:///{folder}/redrive.db"
        self._route = on_rabbit | route
        super().__init__(folder, self._database, **self._route)
        self.consumer = adapter(server)
        self.broker = adapter(server)  # type: ignore[assignment]

    def declare_queues(self) -> None:
        """Declare the route's queues, as an application does at each start; one that is there stays as it is."""
        of_kind: dict[str, Any] = {"x_queue_type": self.kind}
        to_dlq = of_kind | {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": self.dlq}
        to_orders = of_kind | {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": self.orders}
        if self.kind == "quorum":
            to_dlq |= {"x_dead_letter_strategy": "at-least-once", "x_overflow": "reject-publish"}
        self.server.create_queue(self.dlq, **of_kind)
        self.server.create_queue(self.orders, **to_dlq)
        self.server.create_queue(self.delay, **to_orders, x_message_ttl=3_600_000)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def advance(self, **delta: float) -> None:
        time.sleep(timedelta(**delta).total_seconds())

    def reconfigure(self, **changes: Any) -> None:
        """Go on with these changes to the route."""
        self.settings = self.configure(self._database, **(self._route | changes))

    def restarted_process(self) -> None:
        """What a new process of ours begins with."""
        self.broker.close()
        self.broker = adapter(self.server)  # type: ignore[assignment]

    def close(self) -> None:
        for broker in (self.broker, self.consumer):
            broker.close()
        self.ledger.close()

    def buy(self, *orders: str, queue: str = "", named: bool = True) -> None:
        """A shop publishes orders, with an id each unless told."""
        stamp = str(int(time.time()))
        messages = [
            Outgoing(
                n, f"shop-{n}", 1, json.dumps({"order": order}).encode(), (Header("order", "longstr", order),),
                (("message_id", order), ("timestamp", stamp)) if named else (), content_type="application/json",
            )
            for n, order in enumerate(orders)
        ]  # fmt: skip
        results = self.consumer.publish(queue or self.orders, messages)
        # The shop doesn't know of redrives.
        assert {result.status for result in results} == {"sent"}

    def work(self, fails: Callable[[str], bool] = lambda _: False) -> list[str]:
        """A consumer works off its queue and rejects what fails; the orders that it got done."""
        done: list[str] = []
        while ready(self.consumer, self.orders):  # however long a receive brings nothing
            got = self.consumer.receive(self.orders, limit=1000, wait=NO_WAIT, lease=MINUTE)
            bad = [one for one in got if fails(order_of(one.letter))]
            good = [one for one in got if not fails(order_of(one.letter))]
            self.consumer.reject(self.orders, [one.receipt for one in bad])
            self.consumer.settle(self.orders, [one.receipt for one in good])
            done += [order_of(one.letter) for one in good]
        return sorted(done)

    def fail(self, *orders: str, named: bool = True) -> None:
        """These orders are bought, and die."""
        self.buy(*orders, named=named)
        assert self.work(fails=lambda _: True) == []
        assert eventually(lambda: self.depth(self.dlq) == len(orders)), "dead-lettering is not done at once"

    def depth(self, queue: str) -> int:
        visible = self.consumer.depth(queue).visible
        assert visible is not None
        return visible

    def letters(self, queue: str) -> list[DeadLetter]:
        """What lies in a queue; it is looked at and given back."""
        got = []
        while ready(self.consumer, queue):
            got += self.consumer.receive(queue, limit=1000, wait=NO_WAIT, lease=MINUTE)
        self.consumer.release(queue, [one.receipt for one in got])
        eventually(lambda: self.depth(queue) == len(got))  # quorum queues take their time
        return [one.letter for one in got]


def order_of(letter: DeadLetter) -> str:
    return str(json.loads(letter.body)["order"])


@pytest.fixture(params=["classic", "quorum"])
def workshop(tmp_path: Path, rabbitmq: servers.RabbitMQ, request: pytest.FixtureRequest) -> Iterator[RabbitWorkshop]:
    workshop = RabbitWorkshop(tmp_path, rabbitmq, kind=request.param)
    yield workshop
    workshop.close()


@pytest.fixture
def quorum(tmp_path: Path, rabbitmq: servers.RabbitMQ) -> Iterator[RabbitWorkshop]:
    workshop = RabbitWorkshop(tmp_path, rabbitmq)
    yield workshop
    workshop.close()


def test_a_forged_death_makes_us_publish_nowhere(quorum: RabbitWorkshop, rabbitmq: servers.RabbitMQ) -> None:
    payments = f"{quorum.orders}-payments"
    rabbitmq.create_queue(payments)
    death = {"queue": payments, "reason": "rejected", "count": 1, "exchange": "", "routing-keys": [payments]}
    forged = Header("x-death", "array", json.dumps([death]))
    message = Outgoing(1, "shop-1", 1, b'{"order": "a"}', (forged,), (("message_id", "a"),))
    assert [one.status for one in quorum.consumer.publish(quorum.dlq, [message])] == ["sent"]
    report = quorum.cycle()
    assert (report["redelivered"], report["escalated"]) == (0, 1)
    assert quorum.depth(payments) == 0
    [(reason,)] = quorum.query("select reason from escalated_messages")
    assert payments in reason


class TestLoop(LoopContract):
    @pytest.fixture
    def shop(self, workshop: RabbitWorkshop) -> RabbitWorkshop:
        return workshop

    def fail(self, shop: RabbitWorkshop, *orders: str) -> None:
        shop.fail(*orders)

    def work(self, shop: RabbitWorkshop, fails: Callable[[str], bool] = lambda _: False) -> list[str]:
        died: set[str] = set()
        done = shop.work(lambda order: fails(order) and not died.add(order))
        assert eventually(lambda: shop.depth(shop.dlq) == len(died)), "dead-lettering is not done at once"
        return done

    def restart(self, shop: RabbitWorkshop, held: int) -> None:
        shop.broker._session.link.abort()  # type: ignore[attr-defined]
        shop.restarted_process()
        assert eventually(lambda: ready(shop.consumer, shop.dlq) == held), "it is not given back at once"


def test_what_is_sent_back_looks_as_it_did(workshop: RabbitWorkshop) -> None:
    workshop.fail("a", "b", "c")
    workshop.cycle()

    redelivered = workshop.letters(workshop.orders)
    assert {order_of(letter) for letter in redelivered} == {"a", "b", "c"}
    for letter in redelivered:
        assert [h.name for h in letter.headers if "death" in h.name] == []
        assert (letter.content_type, letter.broker_message_id) == ("application/json", order_of(letter))
        assert read_tracking(letter.headers).attempt == 1  # type: ignore[union-attr]


def test_a_delay_queue_is_drained_before_its_time_and_waits_in_the_ledger(
    quorum: RabbitWorkshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    delay = 600
    quorum.reconfigure(
        sources=[{"queue": quorum.delay, "kind": "delay", "delay": f"{delay}s", "destination": quorum.orders}]
    )
    quorum.buy("later", queue=quorum.delay)
    report = quorum.cycle()
    assert (report["drained"], report["redelivered"], report["waiting"]) == (1, 0, 1)
    monkeypatch.setattr(quorum, "now", lambda: datetime.now(UTC) + timedelta(seconds=delay))
    assert quorum.cycle()["redelivered"] == 1
    assert quorum.work() == ["later"]
    assert quorum.audit() == []


def test_what_is_restored_still_knows_where_it_died(tmp_path: Path, rabbitmq: servers.RabbitMQ) -> None:
    workshop = RabbitWorkshop(tmp_path, rabbitmq, causes={"unclassified": {"verdict": "escalate"}})
    workshop.fail("a")
    [before] = workshop.letters(workshop.dlq)
    workshop.cycle()
    run = workshop.begin()
    assert pipeline.restore(workshop.settings, run, **workshop.options())["restored"] == 1
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)

    [after] = workshop.letters(workshop.dlq)
    assert (after.origin, after.reason, after.body) == (workshop.orders, "rejected", before.body)
    assert dict(after.properties)["message_id"] == "a"
    workshop.close()


# --- the story: a message that fails again and again -------------------------------------------------------


def test_requeued_messages_block_their_queue(rabbitmq: servers.RabbitMQ) -> None:
    """What people live with before: the poison message is at the head again, for ever."""
    consumer, queue = adapter(rabbitmq), rabbitmq.create_queue(f"blocked-{uuid.uuid4().hex[:8]}")
    consumer.publish(queue, [Outgoing(n, f"r-{n}", 1, body) for n, body in enumerate((b"poison", b"good"))])
    seen = []
    for _ in range(20):
        [got] = consumer.receive(queue, limit=1, wait=NO_WAIT, lease=MINUTE)
        seen.append(got.letter.body)
        consumer.release(queue, [got.receipt])
    consumer.close()

    assert seen == [b"poison"] * 20


def test_a_poison_message_is_requeued_delayed_and_given_to_a_person_while_good_ones_flow(
    tmp_path: Path, rabbitmq: servers.RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = RabbitWorkshop(tmp_path, rabbitmq, requeue_attempts=2, delay_attempts=3)
    workshop.buy("poison")
    done: list[str] = []
    for day in range(30):
        workshop.buy(f"good-{day}")
        done += workshop.work(fails=lambda order: order == "poison")
        eventually(lambda: workshop.depth(workshop.dlq), within=0.3)
        workshop.cycle()
        if workshop.states() == {"escalated": 1}:
            break
    else:
        pytest.fail("nobody was told")

    assert done == [f"good-{n}" for n in range(len(done))], "each was done in the round in which it was bought"
    assert len(done) == day + 1
    attempts = workshop.query("select mode, outcome, claimed_at, outcome_at from redelivery_attempts order by attempt")
    assert [(mode, outcome) for mode, outcome, *_ in attempts] == [
        ("requeue", "returned"),
        ("requeue", "returned"),
        ("delay", "returned"),
        ("delay", "returned"),
        ("delay", "returned"),
    ]
    waited = [parse_instant(now[2]) - parse_instant(before[3]) for before, now in pairwise(attempts[1:])]  # type: ignore[operator]
    [(message,)] = workshop.query("select message_id from messages")
    least = [backoff.delay(message, n, limit=timedelta(seconds=cap)) for n, cap in ((3, 1), (4, 2), (5, 4))]
    assert [enough <= real for enough, real in zip(least, waited, strict=True)] == [True] * 3, (
        "under a cap that doubles"
    )
    assert workshop.audit() == []

    config = tmp_path / "redrive.yaml"
    config.write_text(f"database: sqlite:///{tmp_path}/redrive.db\nstaging: {tmp_path}/staging\nroutes: {{}}\n")
    monkeypatch.setenv("REDRIVE_CONFIG", str(config))
    told = CliRunner().invoke(app, ["trace", "poison", "--json"])
    assert told.exit_code == 0, told.output
    [life] = json.loads(told.output)
    words = [event["what"] for event in life["timeline"]]
    assert words[0] == "first enqueued"
    assert [w for w in words if "sent as" in w or w.endswith("sent")] != []
    assert [w.split(":")[0] for w in words if w.endswith("returned")] == [
        f"attempt {n} ({mode}) to {workshop.orders}" for n, mode in enumerate(["requeue"] * 2 + ["delay"] * 3, 1)
    ]
    assert words[-1].startswith("escalated")
    workshop.close()


# --- consumers that hang --------------------------------------------------------------------------------------


def measured(workshop: RabbitWorkshop, enough: Callable[[dict[str, ConsumerStats]], bool]) -> dict[str, ConsumerStats]:
    """What RabbitMQ tells of the consumers, by tag, once it is enough; statistics come late."""

    def told() -> dict[str, ConsumerStats]:
        consumers = workshop.broker.consumers(workshop.orders)  # type: ignore[attr-defined]
        return {one.consumer.partition(" ")[0]: one for one in consumers}

    found = eventually(lambda: (found := told()) and enough(found) and found, within=60)
    assert found, told()
    return found  # type: ignore[return-value]


class Crew:
    """Two consumers of the route's destination: one gets three messages and hangs, the other works one by one."""

    def __init__(self, workshop: RabbitWorkshop) -> None:
        self.workshop = workshop
        self.hung = workshop.server.consume(workshop.orders, prefetch=3, consumer_tag="hung")
        self.well = workshop.server.consume(workshop.orders, prefetch=1, consumer_tag="well")
        workshop.buy(*(f"o{n}" for n in range(8)))
        measured(workshop, lambda told: {n: one[1:3] for n, one in told.items()} == {"hung": (3, 0), "well": (1, 0)})
        self.done: set[str] = set()

    def work_one(self) -> None:
        """The one that is well does a message, and RabbitMQ has noticed."""
        before = measured(self.workshop, lambda told: "well" in told)["well"].progress
        assert eventually(lambda: self.well.serve() or self.well.held, within=60)
        self.done.add(json.loads(self.well.ack())["order"])
        measured(self.workshop, lambda told: told["well"].progress != before)

    def look(self) -> dict[str, str]:
        """The one that is well gets on; then a run looks at both."""
        self.work_one()
        self.workshop.cycle()
        rows = self.workshop.query("select consumer, status from consumer_health")
        return {consumer.partition(" ")[0]: status for consumer, status in rows}

    def close(self) -> None:
        self.hung.close()
        self.well.close()


@pytest.fixture
def crew(workshop: RabbitWorkshop, request: pytest.FixtureRequest) -> Iterator[Crew]:
    """With ``@pytest.mark.parametrize("crew", ["close_connection"], indirect=True)`` that is what the route does."""
    workshop.reconfigure(
        destination={"queue": workshop.orders},
        isolation={"ack_timeout": "1s", "action": getattr(request, "param", "none")},
        rate={"max_in_flight": 20},
        deliver={"run_for": "1s"},
    )
    crew = Crew(workshop)
    assert crew.look() == {"hung": "healthy", "well": "healthy"}
    workshop.advance(seconds=1.1)
    yield crew
    crew.close()


@pytest.mark.parametrize("crew", ["close_connection"], indirect=True)
@pytest.mark.parametrize("workshop", ["quorum"], indirect=True)
def test_a_consumer_that_hangs_is_closed_and_a_healthy_one_gets_its_messages(
    workshop: RabbitWorkshop, crew: Crew
) -> None:
    assert crew.look() == {"hung": "isolated", "well": "healthy"}
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="Redrive: holds messages"):
        eventually(crew.hung.serve, within=60)
    assert eventually(lambda: crew.well.serve() or crew.well.held, within=60)
    while len(crew.done) < 8:
        crew.work_one()
    assert crew.done == {f"o{n}" for n in range(8)}, "also the three that the other held"

    measured(workshop, lambda told: set(told) == {"well"})
    workshop.buy("one more")
    assert crew.look() == {"hung": "gone", "well": "healthy"}
    rows = workshop.query(
        "select action, run_id is not null, selection, reason from audit_events where action like '%connection%'"
    )
    [(action, by_run, selection, reason)] = rows
    assert (action, bool(by_run)) == ("close_connection", True), "asked once"
    assert json.loads(selection)["queue"] == workshop.orders
    assert [one.partition(" ")[0] for one in json.loads(selection)["consumers"]] == ["hung"]
    assert "acked none" in reason


@pytest.mark.parametrize("workshop", ["classic"], indirect=True)
def test_while_a_consumer_hangs_less_is_sent_until_it_acks_or_leaves(workshop: RabbitWorkshop, crew: Crew) -> None:
    assert crew.look() == {"hung": "isolated", "well": "healthy"}
    workshop.buy(*(f"d{n}" for n in range(15)), queue=workshop.dlq)
    crew.work_one()
    assert eventually(lambda: workshop.broker.depth(workshop.orders)[:2] == (1, 4), within=60), "five of eight"
    assert workshop.cycle()["redelivered"] == 5, "half of the consumers, half of the twenty that may be there"

    before = measured(workshop, lambda told: "hung" in told)["hung"].progress
    assert eventually(lambda: crew.hung.serve() or crew.hung.held, within=60)
    crew.hung.ack()
    measured(workshop, lambda told: told["hung"].progress != before)
    assert crew.look() == {"hung": "healthy", "well": "healthy"}
    crew.hung.close()
    measured(workshop, lambda told: set(told) == {"well"})
    assert crew.look() == {"hung": "gone", "well": "healthy"}
    assert workshop.query("select count(*) from audit_events where action like '%connection%'") == [(0,)]
    assert workshop.audit() == []


@pytest.mark.parametrize("crew", ["close_connection"], indirect=True)
@pytest.mark.parametrize("workshop", ["classic"], indirect=True)
def test_who_may_not_close_says_so_and_goes_on(workshop: RabbitWorkshop, crew: Crew) -> None:
    crew.work_one()
    workshop.broker.close()
    workshop.server.create_user("clerk", write=".*", read=".*")
    workshop.broker = adapter(workshop.server, login="clerk", password="clerk")  # type: ignore[assignment]
    said: list[str] = []
    run = workshop.begin()
    counts = pipeline.observe(workshop.settings, run, progress=lambda text, *_: said.append(text), **workshop.options())
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    assert counts["isolated_consumers"] == 1
    assert [text for text in said if "stays open" in text and "closing connection" in text and "401" in text]
    crew.hung.serve()
    assert crew.hung.connection.is_open


# --- crashes and restarts ----------------------------------------------------------------------------------


def die_before(broker: RabbitMQ, method: str, monkeypatch: pytest.MonkeyPatch, *, after: bool = False) -> None:
    """The process dies as it begins ``method`` of the broker, or when that has taken effect."""
    real = getattr(broker, method)

    def dying(*arguments: Any, **options: Any) -> Any:
        if after:
            real(*arguments, **options)
        broker._session.link.abort()  # type: ignore[union-attr]
        raise Killed

    monkeypatch.setattr(broker, method, dying)


def crash_in_drain(workshop: RabbitWorkshop, monkeypatch: pytest.MonkeyPatch, *, after_ack: bool) -> None:
    """A run that dies between recording a batch and knowing that it is settled."""
    with monkeypatch.context() as patch:
        die_before(workshop.broker, "settle", patch, after=after_ack)  # type: ignore[arg-type]
        run = workshop.begin()
        with pytest.raises(Killed):
            for _ in workshop.stages(run):
                pass
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    workshop.restarted_process()


@pytest.mark.parametrize("named", [True, False], ids=["publisher-ids", "no-ids"])
def test_a_batch_that_came_back_whole_after_a_crash_is_a_duplicate(
    workshop: RabbitWorkshop, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    workshop.fail("a", "b", "c", named=named)
    crash_in_drain(workshop, monkeypatch, after_ack=False)
    workshop.buy("d", named=named)
    workshop.work(fails=lambda _: True)
    assert eventually(lambda: workshop.depth(workshop.dlq) == 4)
    report = workshop.cycle()

    assert (report["new"], report["duplicates"], report["suspected"], report["redelivered"]) == (4, 3, 0, 4)
    assert workshop.work() == ["a", "b", "c", "d"]
    assert workshop.balance()["duplicate"] == 3
    assert workshop.audit() == []


def test_a_batch_that_was_acked_before_the_crash_is_not_missed(
    workshop: RabbitWorkshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.fail("a", "b", "c")
    crash_in_drain(workshop, monkeypatch, after_ack=True)
    workshop.fail("d")
    report = workshop.cycle()

    assert (report["drained"], report["new"], report["duplicates"], report["suspected"]) == (1, 4, 0, 0)
    assert workshop.work() == ["a", "b", "c", "d"]
    assert workshop.audit() == []


def test_acks_that_no_leader_kept_make_no_second_messages(
    workshop: RabbitWorkshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node answered what came behind them, and died before a quorum had them: it gives out again what's settled."""
    workshop.fail("a", "b", "c", named=False)
    with monkeypatch.context() as patched:
        patched.setattr(workshop.broker, "settle", lambda _, receipts: Settled(len(receipts), ()))
        assert workshop.cycle()["new"] == 3
    workshop.restarted_process()
    assert eventually(lambda: workshop.depth(workshop.dlq) == 3), "they are given back"
    report = workshop.cycle()

    assert (report["drained"], report["new"], report["duplicates"], report["suspected"]) == (3, 0, 0, 3)
    assert workshop.work() == ["a", "b", "c"], "each once"
    assert workshop.audit() == []


def test_the_limit_of_a_run_does_not_cut_a_batch_that_may_come_again(
    tmp_path: Path, rabbitmq: servers.RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = RabbitWorkshop(tmp_path, rabbitmq)
    workshop.fail(*(f"o-{n}" for n in range(30)))
    crash_in_drain(workshop, monkeypatch, after_ack=False)
    assert eventually(lambda: workshop.depth(workshop.dlq) == 30), "it is not given back at once"
    workshop.reconfigure(drain={"limit": 10, "wait": "0s"})
    report = workshop.cycle()

    assert (report["drained"], report["duplicates"], report["suspected"]) == (30, 30, 0)
    assert len(workshop.work()) == 30
    workshop.close()


@pytest.fixture
def suspicion(
    tmp_path: Path, rabbitmq: servers.RabbitMQ, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RabbitWorkshop]:
    """Of a batch in doubt only a part is seen again, because somebody took the rest out of the queue meanwhile."""
    workshop = RabbitWorkshop(tmp_path, rabbitmq, ledger_url)
    workshop.fail("a", "b")
    crash_in_drain(workshop, monkeypatch, after_ack=False)
    assert eventually(lambda: workshop.depth(workshop.dlq) == 2)
    [taken] = workshop.consumer.receive(workshop.dlq, limit=1, wait=MINUTE, lease=MINUTE)
    workshop.consumer.settle(workshop.dlq, [taken.receipt])
    report = workshop.cycle()
    assert (report["drained"], report["new"], report["duplicates"], report["suspected"]) == (1, 2, 0, 1)
    yield workshop
    workshop.close()


def test_what_may_be_a_second_copy_is_for_people_to_say(suspicion: RabbitWorkshop) -> None:
    assert suspicion.work() == ["a", "b"], "each once: the suspected copy is not sent"
    [row] = suspicion.query(
        "select status, suggested_decision, reason, payload, source, destination from escalated_messages"
    )
    assert row[:2] == ("open", "discard")
    assert "second copy of message" in row[2]
    assert (json.loads(row[3]), row[4], row[5]) == ({"order": "b"}, suspicion.dlq, suspicion.orders)
    assert suspicion.balance()["suspected"] == 1
    assert suspicion.audit() == []
    suspicion.cycle()
    assert suspicion.query("select count(*) from escalated_messages") == [(1,)], "asked once"


def decide(workshop: RabbitWorkshop, decision: str) -> None:
    with workshop.ledger.write() as connection:
        connection.exec_driver_sql(f"update escalated_messages set decision = '{decision}', decided_by = 'ana'")


def test_a_suspected_copy_that_is_a_message_of_its_own_is_sent(suspicion: RabbitWorkshop) -> None:
    suspicion.work()
    decide(suspicion, "redeliver")
    assert suspicion.review()["released"] == 1
    suspicion.cycle()

    assert suspicion.work() == ["b"]
    assert suspicion.balance() | {"recorded": 0, "settled": 0} == {"recorded": 0, "new": 3, "settled": 0, "messages": 3}
    assert suspicion.query("select count(*) from messages where parent_id is not null") == [(1,)]
    assert suspicion.query("select status from escalated_messages") == [("applied",)]
    assert suspicion.audit() == []


def test_a_suspected_copy_that_is_none_is_discarded(suspicion: RabbitWorkshop) -> None:
    decide(suspicion, "discard")
    assert suspicion.review()["discarded"] == 1

    assert suspicion.work() == ["a", "b"]
    assert suspicion.states()["discarded"] == 1
    assert suspicion.audit() == []


def restart(server: servers.RabbitMQ) -> None:
    server.stop()
    server.start()


def test_the_broker_is_restarted_in_the_middle_of_a_drain(
    quorum: RabbitWorkshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    quorum.fail("a", "b", "c")
    broker = quorum.broker
    real, restarts = broker.settle, []

    def settle(queue: str, receipts: list[object]) -> object:
        if not restarts:
            restarts.append(queue)
            restart(quorum.server)
        return real(queue, receipts)

    monkeypatch.setattr(broker, "settle", settle)
    eventually(lambda: _answers(quorum))
    report = quorum.cycle()
    later = quorum.cycle()  # what was not ready again yet

    assert report["new"] + later["new"] == 3
    assert report["duplicates"] + later["duplicates"] == 3
    assert report["suspected"] + later["suspected"] == 0
    assert quorum.work() == ["a", "b", "c"]
    assert eventually(lambda: quorum.depth(quorum.dlq) == 0), "the node counts seconds late while somebody consumes"
    assert quorum.audit() == []


def _answers(workshop: RabbitWorkshop) -> bool:
    return workshop.consumer.depth(workshop.dlq).visible is not None


def test_the_broker_dies_in_the_middle_of_a_delivery(
    tmp_path: Path, rabbitmq: servers.RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = RabbitWorkshop(tmp_path, rabbitmq, kind="classic")
    orders = {f"o-{n}" for n in range(300)}
    workshop.fail(*orders)
    windows: list[Window] = []
    real = Sender.send

    def crash(sender: Sender, pack: Any) -> Window:
        window = real(sender, pack)
        windows.append(window)
        if len(windows) == 3:  # two halves of a window are on the wire, and nothing was heard of this one
            rabbitmq.kill()
            sender.channel.link.abort()
            rabbitmq.start()
            # Seen once: a node that is killed seconds after a queue was declared forgot that queue.
            workshop.declare_queues()
        return window

    monkeypatch.setattr(Sender, "send", crash)
    first, second = workshop.cycle(), workshop.cycle()
    unknown = first["unknown"]
    assert 100 <= unknown <= 200, "what was under way of a confirm window, and no more"
    assert first["redelivered"] + second["redelivered"] + unknown == 300

    # A classic queue that dies may bring back what was taken out of it just before; only what we sent carries our id.
    arrived: list[str] = []
    while ready(workshop.consumer, workshop.orders):
        got = workshop.consumer.receive(workshop.orders, limit=1000, wait=NO_WAIT, lease=MINUTE)
        arrived += [order_of(letter) for letter, _ in got if read_tracking(letter.headers)]
        workshop.consumer.settle(workshop.orders, [one.receipt for one in got])
    assert len(arrived) == len(set(arrived)), "nothing was doubled"
    told = workshop.query(
        "select m.broker_message_id from messages m inner join redelivery_attempts a on a.message_id = m.message_id"
        " where a.unknown_at is not null and m.state in ('unknown', 'escalated')"
    )
    assert len(told) == unknown
    assert {order for (order,) in told} | set(arrived) == orders, "nothing was lost"
    assert workshop.audit() == []
    workshop.close()


def test_a_destination_that_is_full_takes_the_rest_later(tmp_path: Path, rabbitmq: servers.RabbitMQ) -> None:
    workshop = RabbitWorkshop(tmp_path, rabbitmq)
    workshop.fail("a", "b", "c")
    small = rabbitmq.create_queue(f"small-{uuid.uuid4().hex[:8]}", x_max_length=1, x_overflow="reject-publish")
    workshop.reconfigure(destination={"queue": small}, deliver={"run_for": "1s"})
    report = workshop.cycle()

    assert report["redelivered"] == 1
    assert workshop.states() == {"sent": 1, "waiting": 2}
    assert workshop.audit() == []
    workshop.close()


def test_doctor_warns_of_a_dead_letter_queue_that_deletes(
    tmp_path: Path, rabbitmq: servers.RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = RabbitWorkshop(tmp_path, rabbitmq)
    deleting = rabbitmq.create_queue(f"dlq-{uuid.uuid4().hex[:8]}", x_queue_type="quorum", x_delivery_limit=3)
    source = {"queue": deleting, "kind": "dead_letter", "destination": workshop.orders}
    monkeypatch.setenv("AIRFLOW_CONN_RABBIT_TEST", json.dumps(rabbitmq.connection()))
    workshop.reconfigure(sources=[source])

    warnings = [finding for finding in doctor.examine(workshop.settings, ["orders"]) if finding.level == "warning"]
    assert any(deleting in one.subject and "DELETES" in one.text for one in warnings)
    workshop.close()


def test_doctor_warns_of_a_destination_that_drops_what_it_confirmed(
    tmp_path: Path, rabbitmq: servers.RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = RabbitWorkshop(tmp_path, rabbitmq)
    small = rabbitmq.create_queue(f"small-{uuid.uuid4().hex[:8]}", x_max_length=100)
    monkeypatch.setenv("AIRFLOW_CONN_RABBIT_TEST", json.dumps(rabbitmq.connection()))
    workshop.reconfigure(destination={"queue": small})

    found = [one.text for one in doctor.examine(workshop.settings, ["orders"]) if one.level == "warning"]
    assert any("at most 100 messages" in text and "DELETES the oldest" in text for text in found)
    workshop.close()


def test_doctor_says_what_closing_connections_lacks(
    tmp_path: Path, rabbitmq: servers.RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = RabbitWorkshop(tmp_path, rabbitmq)
    workshop.reconfigure(destination={"queue": workshop.orders}, isolation={"action": "close_connection"})

    def found(**connection: object) -> list[str]:
        monkeypatch.setenv("AIRFLOW_CONN_RABBIT_TEST", json.dumps(rabbitmq.connection(**connection)))
        findings = doctor.examine(workshop.settings, ["orders"])
        return [f"{one.level}: {one.text}" for one in findings if f"destination {workshop.orders}" in one.subject]

    assert [text for text in found() if not text.startswith("ok")] == []
    assert any("error: close_connection needs the management API" in text for text in found(extra={}))
    rabbitmq.ask("PUT", "users/blind", {"password": "blind", "tags": ""})
    rabbitmq.ask("PUT", "permissions/%2F/blind", {"configure": "", "write": ".*", "read": ".*"})
    assert any("nobody watches its consumers" in text for text in found(login="blind", password="blind"))
    workshop.close()


def test_a_whole_batch_is_settled_in_one_call(quorum: RabbitWorkshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_batch, "SETTLE_AT_ONCE", 10)
    monkeypatch.setattr(source_end, "RECEIVE_AT_ONCE", 10)
    quorum.fail(*(f"o-{n}" for n in range(35)))
    calls: list[int] = []
    real = quorum.broker.settle
    monkeypatch.setattr(
        quorum.broker, "settle", lambda queue, receipts: (calls.append(len(receipts)), real(queue, receipts))[1]
    )
    assert quorum.cycle()["drained"] == 35

    assert calls == [35]
