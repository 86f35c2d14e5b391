"""A checker that can't fail is no checker: each rule, broken in a small world without any product.

The ledger is one of the product's, empty, into which a test writes what Redrive would have shown.
"""

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.simulation.checker import Broken, Checker, body_hash
from tests.simulation.driver import Place
from tests.simulation.sql import Sql
from tests.simulation.world import Copy, System, Traits, World
from tests.simulation.world.book import Word
from tests.simulation.world.systems import EPOCH, ID, MINUTE, SECOND

BODY = b'{"n": 1}'
PLACE = ("east", "orders")
ROUTES = {
    "east0": {
        "connection": "east",
        "sources": [{"queue": "orders-dlq"}],
        "destination": {"queue": "orders"},
        "requeue_attempts": 1,
        "delay_attempts": 1,
        "deliver": {"slice": 4, "confirm_window": 1},
    }
}
NOW = "'2025-10-09 08:53:20.000000'"


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "empty.db"
    Place.empty_ledger(path)
    return path


class Small:
    """One system, one route, one message that died once."""

    def __init__(self, path: Path) -> None:
        self.world = World(random.Random(1))
        self.system = System(self.world, "east", Traits())
        self.system.create("orders", dead_letters="orders-dlq", max_deliveries=3)
        self.system.create("orders-dlq")
        self.system.create("payroll")
        self.sql = Sql(f"sqlite:///{path}")
        self.checker = Checker(self.world, ROUTES)
        self.checker.sql = self.sql
        self.world.book.owe(PLACE, BODY, EPOCH)

    def die(self, body: bytes = BODY, parent: Copy | None = None) -> Copy:
        self.system.send("orders-dlq", body, by="consumer", failed_at=PLACE, parent=parent)
        return self.world.book.entries[-1][1]

    def drained(self) -> None:
        """Nothing lies in the dead-letter queue any more."""
        self.system.queues["orders-dlq"].ready.clear()

    def send(
        self, attempt: int = 1, body: bytes = BODY, queue: str = "orders", name: str = "s-1", **how: object
    ) -> None:
        marks = ((ID, "String", name), ("x-redrive-attempt", "Number", str(attempt)))
        self.system.send(queue, body, marks, by="redrive", **how)  # type: ignore[arg-type]

    def finish(self) -> None:
        """A consumer takes what lies in the destination and is done with it."""
        for copy, receipt in self.system.receive("orders", 10, 60, by="consumer"):
            self.world.book.finish(self.world.clock.now, PLACE, copy)
            self.system.settle("orders", [receipt], by="consumer")

    def message(self, state: str, message_id: int = 1, group: str = "null", **more: str) -> None:
        columns = {
            "message_id": str(message_id), "redrive_id": f"'s-{message_id}'", "route": "'east0'",
            "source": "'orders-dlq'", "kind": "'dead_letter'", "destination": "'orders'", "broker_message_id": "''",
            "body_hash": f"x'{body_hash(BODY).hex()}'", "body_bytes": "8", "copy_id": str(message_id),
            "state": f"'{state}'", "changed_at": NOW, "group_id": group, "attempts": "1",
            **({"plan": "'requeue'", "next_attempt_at": NOW} if state in ("waiting", "held") else {}), **more,
        }  # fmt: skip
        self.sql.do(f"insert into messages ({', '.join(columns)}) values ({', '.join(columns.values())})")

    def attempt(self, outcome: str | None = None, attempt: int = 1, message_id: int = 1, **more: str) -> None:
        columns = {
            "message_id": str(message_id), "attempt": str(attempt), "route": "'east0'", "slice_id": "1",
            "mode": "'requeue'", "destination": "'orders'", "claimed_at": NOW, "sent_at": NOW,
            "outcome": "null" if outcome is None else f"'{outcome}'", **more,
        }  # fmt: skip
        self.sql.do(f"insert into redelivery_attempts ({', '.join(columns)}) values ({', '.join(columns.values())})")

    def slice(self, deadline: str = "'2025-10-09 23:00:00.000000'") -> None:
        self.sql.do(
            "insert into delivery_slices (slice_id, route, run_id, fence, shard, destination, claimed_at, deadline_at)"
            f" values (1, 'east0', 'r', 1, 0, 'orders', {NOW}, {deadline})"
        )

    def claimed(self, mode: str = "requeue", **more: str) -> None:
        """A message that died is about to be sent."""
        self.die()
        self.drained()
        self.slice()
        self.message("sending", **more)
        self.attempt(mode=f"'{mode}'", sent_at="null")

    def asked(self, **more: str) -> None:
        """Its review row."""
        columns = {
            "message_id": "1", "route": "'east0'", "group_id": "7", "reason": "'bug'", "size_bytes": "1",
            "source": "'orders-dlq'", "attempts": "0", "status": "'open'", "escalated_at": NOW, **more,
        }  # fmt: skip
        self.sql.do(f"insert into escalated_messages ({', '.join(columns)}) values ({', '.join(columns.values())})")

    def route(self, **more: object) -> None:
        """The configuration also says this."""
        self.checker.routes = {"east0": {**ROUTES["east0"], **more}}

    def end(self) -> None:
        self.checker.after_step(self.sql)
        self.checker.presumed_has_left(self.sql)
        self.checker.returned_came_back(self.sql)
        for rule in ("nothing_is_missing", "nothing_is_made_up", "escalated_can_be_decided", "confirmed_was_processed"):
            getattr(self.checker, rule)(self.sql)


@pytest.fixture
def small(empty: Path, tmp_path: Path) -> Iterator[Small]:
    shutil.copyfile(empty, tmp_path / "small.db")
    made = Small(tmp_path / "small.db")
    made.sql.do("pragma foreign_keys = off")
    made.checker.it_adds_up = lambda sql: None  # type: ignore[method-assign]  # no batches are planted here
    yield made
    made.sql.close()


def died_and_was_sent(small: Small) -> None:
    small.die()
    small.drained()
    small.send()
    small.message("presumed")
    small.attempt("presumed")


def test_a_good_story_is_good(small: Small) -> None:
    died_and_was_sent(small)
    small.finish()
    small.end()


def test_a_dry_run_is_held_against_the_plan(small: Small) -> None:
    small.message("held")
    small.message("waiting", 2)
    with pytest.raises(Broken, match="each message once"):
        small.checker.foretold(small.sql, "east0", Counter(hold=1))
    small.checker.foretold(small.sql, "east0", Counter(hold=1, requeue=1))
    small.checker.came_true(small.sql, "east0")
    small.checker.foretold(small.sql, "east0", Counter(admit=1, requeue=1))
    with pytest.raises(Broken, match="what a dry run told"):
        small.checker.came_true(small.sql, "east0")


def never_processed(small: Small) -> None:
    died_and_was_sent(small)
    small.system.queues["orders"].ready.clear()


def processed_twice(small: Small) -> None:
    died_and_was_sent(small)
    small.finish()
    small.send(attempt=2)
    small.finish()


def one_attempt_twice(small: Small) -> None:
    died_and_was_sent(small)
    small.send()


def more_went_out_than_came_in(small: Small) -> None:
    died_and_was_sent(small)
    small.finish()
    small.message("waiting", 2)


def presumed_lies_there(small: Small) -> None:
    died_and_was_sent(small)


def returned_and_did_not(small: Small) -> None:
    small.die()
    small.drained()
    small.send()
    small.message("waiting")
    small.attempt("returned")
    small.finish()


def returned_from_elsewhere(small: Small) -> None:
    small.system.create("billing", dead_letters="orders-dlq")
    returned_and_did_not(small)
    sent = next(one.copy for one in small.world.book.arrivals)
    small.system.send("orders-dlq", BODY, by="consumer", failed_at=("east", "billing"), parent=sent, fresh=True)
    small.world.book.owe(("east", "billing"), BODY, EPOCH)


def sent_elsewhere(small: Small) -> None:
    small.send(queue="payroll")


def escalated_without_a_row(small: Small) -> None:
    small.die()
    small.drained()
    small.message("escalated")


def confirmed_and_not_processed(small: Small) -> None:
    died_and_was_sent(small)
    small.sql.do("update messages set state = 'confirmed'")
    small.sql.do("update redelivery_attempts set outcome = 'confirmed'")
    small.system.queues["orders"].ready[0].seen_by_consumer = True


def over_its_cap(small: Small) -> None:
    died_and_was_sent(small)
    for number in range(2, 6):
        small.attempt(attempt=number)


def beyond_the_canary(small: Small) -> None:
    small.sql.do(
        "insert into breakers (route, group_id, stage, allowed, stage_at, began_at)"
        f" values ('east0', 7, 'canary', 1, {NOW.replace('08:53:20', '08:00:00')}, {NOW})"
    )
    for number in (1, 2):
        small.message("sending", number, group="7")
        small.send(name=f"s-{number}")


def out_of_order(small: Small) -> None:
    small.checker.routes = {"east0": {**ROUTES["east0"], "order_by": "attribute:customer"}}
    small.message("waiting", 1, order_key="'ana'", first_enqueued_at="'2025-10-09 08:00:00.000000'")
    small.message("sending", 2, order_key="'ana'", first_enqueued_at="'2025-10-09 08:30:00.000000'")
    small.send(name="s-2")


def too_full(small: Small) -> None:
    small.checker.routes = {"east0": {**ROUTES["east0"], "rate": {"max_in_flight": 2}}}
    for number in range(3):
        small.send(name=f"s-{number}", body=b"%d" % number)


def without_its_headers(small: Small) -> None:
    small.system.send("orders-dlq", BODY, (("tenant", "String", "acme"),), by="consumer", failed_at=PLACE)
    small.send()


def nameless(small: Small) -> None:
    small.die()
    small.system.send("orders", BODY, (), by="redrive")


def though_it_is_stopped(small: Small) -> None:
    small.die()
    small.message("sending")
    small.sql.do(
        "insert into breakers (route, destination, stage, trips, stage_at, began_at)"
        f" values ('east0', 'orders', 'tripped', 1, {NOW}, {NOW})"
    )
    small.send()


def replaced_and_busy(small: Small) -> None:
    for name, fence in (("first", 1), ("second", 2)):
        small.sql.do(
            'insert into runs (run_id, route, "trigger", holder, fence, selection, status, started_at, counts)'
            f" values ('{name}', 'east0', 'test', 'me', {fence}, '{{}}', 'running', {NOW}, '{{}}')"
        )
    for name in ("first", "second", "first"):
        small.sql.do(
            "insert into audit_events (at, route, run_id, actor, action)"
            f" values ({NOW}, 'east0', '{name}', 'redrive', 'claim')"
        )


def called_as_forged(small: Small) -> None:
    small.world.book.forged.append(("s-7", BODY))
    small.message("escalated", 8, redrive_id="'s-7'")


def beyond_what_is_proved(small: Small) -> None:
    small.checker.routes = {"east0": {**ROUTES["east0"], "canary": {"first": 1, "grow": 2}}}
    small.sql.do(
        f"insert into breakers (route, group_id, stage, stage_at, began_at) values ('east0', 7, 'open', {NOW}, {NOW})"
    )
    for number in (1, 2):
        small.message("sending", number, group="7")
        small.send(name=f"s-{number}")


def much_in_doubt(small: Small) -> None:
    small.checker.routes = {"east0": {**ROUTES["east0"], "deliver": {"confirm_window": 1}}}
    for number in (1, 2):
        small.send(name=f"s-{number}", body=b"%d" % number, known=False)
    small.checker.after_stage("deliver", small.sql, "east0")


def sent_to_all_readers(small: Small) -> None:
    small.system.traits = Traits(subscribers=2)
    small.send()


def sent_though_processed(small: Small) -> None:
    small.checker.records = SimpleNamespace(number=lambda body: body.decode(), known={BODY.decode()})
    small.checker.after_stage("plan", small.sql, "east0")
    small.send()


def suppressed_and_not_processed(small: Small) -> None:
    small.checker.records = SimpleNamespace(number=lambda body: body.decode(), known=set())
    small.message("suppressed")


def too_fast(small: Small) -> None:
    small.checker.routes = {
        "east0": {**ROUTES["east0"], "rate": {"per_second": 2, "max_in_flight": 9}, "deliver": {"confirm_window": 1}}
    }
    for number in range(3):
        small.send(name=f"s-{number}", body=b"%d" % number)
    small.checker.after_stage("deliver", small.sql, "east0")


def left_to_expire(small: Small) -> None:
    small.system.queues["orders-dlq"].retention = 3600
    small.die()
    small.world.clock.now += 3590 * SECOND
    small.checker.after_stage("drain", small.sql, "east0")


def stands_too_long(small: Small) -> None:
    small.sql.do(
        "insert into failure_groups (group_id, fingerprint, cause, template, first_route, first_seen_at, last_seen_at)"
        f" values (7, 'f', 'application_bug', 'hm', 'east0', {NOW}, {NOW})"
    )
    small.sql.do(
        "insert into standing_decisions (group_id, decision, decided_by, note, created_at, until_at)"
        " values (7, 'discard', 'ana', 'known', '2025-10-09 08:00:00.000000', '2025-10-09 08:30:00.000000')"
    )
    small.message("escalated", group="7")
    small.sql.do(
        "insert into escalated_messages (message_id, route, group_id, reason, size_bytes, source, attempts, status,"
        " note, escalated_at, decided_at) values (1, 'east0', 7, 'bug', 1, 'orders-dlq', 0, 'open',"
        f" 'standing decision 1: known', {NOW}, {NOW})"
    )


def sent_though_discarded(small: Small) -> None:
    small.claimed()
    small.world.book.said[1] = Word("discard")
    small.send()


def released_by_nobody(small: Small) -> None:
    small.claimed("release")
    small.send()


def released_and_taken_back(small: Small) -> None:
    small.message("waiting", plan="'release'", releases="1")
    small.world.book.said[1], small.world.book.releases[1] = Word(None), 1


def released_by_one_of_two(small: Small) -> None:
    small.route(approvals=2)
    small.claimed("release")
    small.world.book.said[1] = Word("redeliver")
    small.send()


def sent_without_its_edit(small: Small) -> None:
    small.claimed("release")
    small.world.book.said[1] = Word("edit", b'{"n": 2}')
    small.send()


def sent_with_anothers_body(small: Small) -> None:
    small.claimed()
    small.send(body=b'{"n": 2}')


def edited_too_much(small: Small) -> None:
    small.system.send("orders-dlq", BODY, (("tenant", "String", "acme"),), by="consumer", failed_at=PLACE)
    small.claimed("release")
    small.world.book.entries.pop()
    small.world.book.said[1] = Word("edit", b'{"n": 2}')
    small.send(body=b'{"n": 2}')


def released_twice(small: Small) -> None:
    small.message("escalated", releases="2")
    small.world.book.releases[1] = 1


def discarded_by_nobody(small: Small) -> None:
    small.message("discarded")
    small.asked(status="'applied'", decision="'discard'", decided_by="'ana'")


def discarded_by_one_of_two(small: Small) -> None:
    small.route(approvals=2)
    small.world.book.said[1] = Word("discard")
    discarded_by_nobody(small)


def stands_by_one_of_two(small: Small) -> None:
    small.route(approvals=2)
    small.message("waiting", plan="'release'")
    small.asked(status="'decided'", decision="'redeliver'", decided_by="'ana'", note="'standing decision 1: known'")


def not_discarded(small: Small) -> None:
    small.world.book.said[1] = Word("discard")
    small.message("suppressed")
    small.checker.decisions.at_the_end(small.sql)


def released_past_its_gate(small: Small) -> None:
    small.route(canary={"first": 1, "grow": 2, "pass": 0.6, "observe": "1m"})
    small.message("waiting", group="7", plan="'release'")
    small.sql.do(
        "insert into breakers (route, group_id, stage, stage_at, began_at)"
        f" values ('east0', 7, 'open', '2025-10-09 08:00:00.000000', {NOW})"
    )
    small.checker.decisions.after_review(small.sql, "east0", set())


def released_and_asked_again(small: Small) -> None:
    small.route(canary={"first": 1, "grow": 2, "pass": 0.6, "observe": "1m"})
    small.asked(status="'reopened'")
    small.checker.decisions.after_review(small.sql, "east0", {1})


def sent_though_paused(small: Small) -> None:
    small.claimed()
    small.world.book.paused["east0"] = 0
    small.send()


def sent_too_late(small: Small) -> None:
    small.claimed()
    small.sql.do("update delivery_slices set deadline_at = '2025-10-09 01:00:00.000000'")
    small.send()
    small.send(attempt=1)


def repeated_though_people_are_asked(small: Small) -> None:
    small.route(on_unknown="review")
    small.claimed()
    small.send()
    small.sql.do(f"update redelivery_attempts set unknown_at = {NOW}")
    small.send()


def sent_too_early(small: Small) -> None:
    small.claimed(next_attempt_at="'2025-10-09 10:00:00.000000'")
    small.send()


def put_off_and_sent(small: Small) -> None:
    sources = [{"queue": "orders-dlq", "kind": "delay", "delay": "1m", "destination": "orders"}]
    small.route(sources=sources)
    small.claimed(kind="'delay'")
    small.send()


def sent_though_given_up(small: Small) -> None:
    small.route(give_up_after="1h")
    small.checker.after_stage("plan", small.sql, "east0")
    small.claimed(first_enqueued_at="'2025-10-09 01:00:00.000000'")
    small.send()


def overtaken_by_a_later_one(small: Small) -> None:
    small.checker.staging = Path("nowhere")
    small.route(order_by="attribute:customer")
    customer = (("customer", "String", "ana"),)
    small.system.send("orders-dlq", b'{"n": 0}', customer, by="consumer", failed_at=PLACE)
    small.world.clock.now += MINUTE
    small.system.send("orders-dlq", BODY, customer, by="consumer", failed_at=PLACE)
    small.slice()
    small.message("sending", first_enqueued_at="'2025-10-09 09:00:00.000000'")
    small.attempt(sent_at="null")
    marks = ((ID, "String", "s-1"), ("x-redrive-attempt", "Number", "1"))
    small.system.send("orders", BODY, (*customer, *marks), by="redrive")


def overtaken_in_its_window(small: Small) -> None:
    small.system.traits = Traits(ordered=True)
    other = b'{"n": 2}'
    for body in (BODY, other):
        small.system.send("orders-dlq", body, by="consumer", failed_at=PLACE, key="k1")
    small.slice()
    small.message("sending")
    small.message("sending", 2, body_hash=f"x'{body_hash(other).hex()}'")
    small.attempt(sent_at="null")
    small.attempt(sent_at="null", message_id=2)
    small.send(body=other, name="s-2", key="k1")


def settled_and_not_staged(small: Small) -> None:
    small.checker.staging = Path("nowhere")
    small.die()
    [(_, receipt)] = small.system.receive("orders-dlq", 1, 60, by="redrive")
    small.system.settle("orders-dlq", [receipt], by="redrive")


def begins_to_count_anew(small: Small) -> None:
    marks = ((ID, "String", "other-7"), ("x-redrive-attempt", "Number", "3"))
    small.system.send("orders-dlq", BODY, marks, by="consumer", failed_at=PLACE)
    small.message("classified", redrive_id="'other-7'", attempts="0")
    small.checker.after_stage("load", small.sql, "east0")


def presumed_too_soon(small: Small) -> None:
    small.route(canary={"first": 1, "grow": 2, "pass": 0.6, "observe": "1m"})
    died_and_was_sent(small)
    small.checker.after_stage("resolve", small.sql, "east0")


def grows_unearned(small: Small) -> None:
    small.route(canary={"first": 1, "grow": 2, "pass": 0.6, "observe": "1m"})
    small.sql.do(
        "insert into breakers (route, group_id, stage, allowed, stage_at, began_at)"
        f" values ('east0', 7, 'canary', 1, {NOW}, {NOW})"
    )
    small.checker.after_stage("plan", small.sql, "east0")
    small.message("waiting", group="7")
    small.attempt("returned", group_id="7", return_kind="'dead_letter'")
    small.sql.do("update breakers set stage = 'ramp', stage_at = '2025-10-09 09:00:00.000000'")
    small.checker.after_stage("plan", small.sql, "east0")


def settled_more_than_is_gone(small: Small) -> None:
    small.sql.do(
        "insert into staging_batches (route, source, kind, shard, run_id, fence, state, uri, copies, settled_copies,"
        f" opened_at) values ('east0', 'orders-dlq', 'dead_letter', 0, 'r', 1, 'settled', 'x', 1, 1, {NOW})"
    )


def counted_too_often(small: Small) -> None:
    small.message("waiting")
    small.checker.after_step(small.sql)
    small.sql.do("update messages set attempts = 2")


def over_one_cap(mode: str) -> Callable[[Small], None]:
    def story(small: Small) -> None:
        small.message("waiting", attempts="2")
        for number in (1, 2):
            small.attempt("returned", number, mode=f"'{mode}'")

    return story


def released_and_sent_again(small: Small) -> None:
    small.message("waiting", attempts="2")
    small.attempt("returned", 1, mode="'release'")
    small.attempt("returned", 2, mode="'requeue'")
    small.sql.do("update messages set releases = 1")
    small.world.book.releases[1] = 1


def planned_while_under_way(small: Small) -> None:
    died_and_was_sent(small)
    small.sql.do("update messages set state = 'classified', plan = null")
    small.sql.do("update redelivery_attempts set outcome = null")


def drained_and_lies_there(small: Small) -> None:
    small.checker.staging = Path("nowhere")
    small.die()
    small.sql.do("insert into route_state (route) values ('east0')")
    small.sql.do(
        "insert into source_state (route, source, drained_to) values ('east0', 'orders-dlq', '2025-10-09 23:00:00.0')"
    )


def removed(state: str) -> Callable[[Small], None]:
    def story(small: Small) -> None:
        small.message(state)
        before = small.checker.terms.before_retention(small.sql)
        small.sql.do("drop trigger messages_stay")
        small.sql.do("delete from messages")
        small.checker.terms.after_retention(small.sql, before)

    return story


def suspected_and_not_shown(small: Small) -> None:
    small.sql.do(
        "insert into repeat_copies (copy_id, message_id, route, kind, source, broker_message_id, seen_at)"
        f" values (5, 1, 'east0', 'suspected', 'orders-dlq', '', {NOW})"
    )
    small.checker.terms.at_the_end(small.sql)


def two_at_once(small: Small) -> None:
    small.sql.do(
        "insert into route_state (route, run_id, lease_until) values ('east0', 'r', '2025-10-09 23:00:00.000000')"
    )
    small.checker.leases.second(small.sql, "east0", lambda: SimpleNamespace(status="done"))


def writes_though_replaced(small: Small) -> None:
    for name, fence, status in (("first", 1, "replaced"), ("second", 2, "succeeded")):
        small.sql.do(
            'insert into runs (run_id, route, "trigger", holder, fence, selection, status, started_at, counts)'
            f" values ('{name}', 'east0', 'test', 'me', {fence}, '{{}}', '{status}', {NOW}, '{{}}')"
        )
    small.checker.leases.taken_over(small.sql, "east0")
    small.message("waiting")
    small.checker.leases.replaced_is_over(small.sql, "east0")


@pytest.mark.parametrize(
    ("story", "rule"),
    [
        (sent_though_discarded, "what people discarded is not sent"),
        (released_by_nobody, "nothing is released that people did not release"),
        (released_and_taken_back, "nothing is released that people did not release"),
        (released_by_one_of_two, "what needs two people waits for the second"),
        (sent_without_its_edit, "an edited message goes out with its edit"),
        (sent_with_anothers_body, "a message goes out with its own body"),
        (edited_too_much, "an edit changes nothing but the body"),
        (released_twice, "each word of people is carried out once"),
        (discarded_by_nobody, "nothing is discarded that people did not discard"),
        (discarded_by_one_of_two, "what needs two people waits for the second"),
        (stands_by_one_of_two, "what needs two people waits for the second"),
        (not_discarded, "what people decided is done"),
        (released_past_its_gate, "what people release gets a canary"),
        (released_and_asked_again, "what people release gets a canary"),
        (sent_though_paused, "nothing is sent while its route is paused"),
        (sent_too_late, "no window is sent after the end of its claim"),
        (repeated_though_people_are_asked, "an unknown send is repeated only as its route says"),
        (sent_too_early, "nothing is sent before it is due"),
        (put_off_and_sent, "what a consumer put off waits as long as that says"),
        (sent_though_given_up, "what is older than give_up_after is not sent"),
        (overtaken_by_a_later_one, "messages of a key go in order"),
        (overtaken_in_its_window, "messages of a key go in order"),
        (settled_and_not_staged, "what is settled is durable and recorded"),
        (begins_to_count_anew, "no circle begins to count anew"),
        (presumed_too_soon, "what is presumed was observed as long as the route says"),
        (grows_unearned, "a canary grows only on what stayed away"),
        (settled_more_than_is_gone, "what counts as settled is"),
        (counted_too_often, "attempts are counted as they are made"),
        (over_one_cap("delay"), "no message is delayed more often than its cap allows"),
        (over_one_cap("requeue"), "no message is requeued more often than its cap allows"),
        (released_and_sent_again, "what people released and came back goes to people"),
        (planned_while_under_way, "what is under way is not planned anew"),
        (drained_and_lies_there, "a source that counts as drained is"),
        (removed("held"), "retention removes what is finished"),
        (removed("presumed"), "retention removes what is old"),
        (suspected_and_not_shown, "what is suspected lies before a person"),
        (two_at_once, "one run at a time holds a route"),
        (writes_though_replaced, "a run that was replaced writes nothing"),
        (never_processed, "nothing is lost"),
        (processed_twice, "every second processing is announced"),
        (one_attempt_twice, "an attempt is sent once, unless it was unknown before"),
        (more_went_out_than_came_in, "each copy that came in goes out once"),
        (presumed_lies_there, "presumed means that a consumer had it"),
        (returned_and_did_not, "returned means that it came back"),
        (returned_from_elsewhere, "returned means that it came back"),
        (sent_elsewhere, "nothing is sent where nobody said so"),
        (escalated_without_a_row, "what is escalated lies before a person"),
        (confirmed_and_not_processed, "confirmed means that it was processed"),
        (over_its_cap, "no message is sent more often than its caps allow"),
        (beyond_the_canary, "a canary sends no more than its stage allows"),
        (out_of_order, "messages of a key go in order"),
        (replaced_and_busy, "a run that was replaced changes nothing"),
        (called_as_forged, "an id in a header is a claim and no proof"),
        (beyond_what_is_proved, "a group proves itself before more of it goes"),
        (much_in_doubt, "a broker that confirms nothing gets one window"),
        (sent_to_all_readers, "nobody else gets it unless that is allowed"),
        (sent_though_processed, "what is known to be processed is not sent"),
        (suppressed_and_not_processed, "suppressed means that it was processed"),
        (too_fast, "no more is sent in a second than the rate allows"),
        (left_to_expire, "what would expire is drained beyond the limit"),
        (stands_too_long, "a standing decision holds for its group and its time"),
        (without_its_headers, "a message keeps its own headers"),
        (nameless, "a redelivery says its id"),
        (though_it_is_stopped, "nothing goes to a destination that is stopped"),
        (too_full, "a destination is not filled beyond max_in_flight"),
    ],
)
def test_each_rule_can_be_broken(small: Small, story: Callable[[Small], None], rule: str) -> None:
    def told() -> None:
        story(small)
        small.end()

    with pytest.raises(Broken) as broken:
        told()
    assert broken.value.rule == rule


def test_what_does_not_add_up_is_seen(small: Small) -> None:
    small.message("waiting")
    with pytest.raises(Broken, match="it adds up"):
        Checker.it_adds_up(small.checker, small.sql)


def test_an_announced_repeat_is_none(small: Small) -> None:
    processed_twice(small)
    small.attempt(attempt=2, unknown_at=NOW)
    small.checker.nothing_is_done_twice_in_silence(small.sql)


def test_what_the_world_does_twice_is_its_own(small: Small) -> None:
    processed_twice(small)
    small.world.book.excuse(PLACE, BODY, "a slow consumer")
    small.checker.nothing_is_done_twice_in_silence(small.sql)


def test_unrest_is_seen(small: Small) -> None:
    small.message("held")
    small.die()
    small.world.clock.now += SECOND
    assert len(small.checker.unrest(small.sql)) == 2


class TestRulings:
    LATER = "'2025-10-09 09:00:00.000000'"

    def merged(self, small: Small, stage: str, *, began: str = NOW) -> None:
        """Somebody has merged group 8, a canary, into group 7."""
        for group, its, since in ((7, stage, began), (8, "canary", NOW)):
            small.sql.do(
                "insert into failure_groups (group_id, fingerprint, cause, template, first_seen_at, last_seen_at)"
                f" values ({group}, 'f{group}', 'throttled', 't', {NOW}, {NOW})"
            )
            small.sql.do(
                "insert into breakers (route, group_id, stage, allowed, stage_at, began_at)"
                f" values ('east0', {group}, '{its}', 5, {since}, {since})"
            )
        small.sql.do(
            "insert into group_rulings (ruling, group_id, other_group_id, decided_by, note)"
            " values ('merge', 8, 7, 'ana', 'one')"
        )
        small.sql.do(
            "insert into group_aliases (group_id, merged_into, merged_at, parent_id, ruling_id)"
            f" values (8, 7, {self.LATER}, 7, 1)"
        )
        small.sql.do(
            'insert into runs (run_id, route, "trigger", holder, fence, status, started_at)'
            " values ('r', 'east0', 't', 'h', 1, 'running', '2025-10-09 09:30:00.000000')"
        )

    @pytest.mark.parametrize(("stage", "broken"), [("open", True), ("ramp", True), ("canary", False)])
    def test_a_group_proves_itself_anew(self, small: Small, stage: str, broken: bool) -> None:
        self.merged(small, stage)
        small.claimed(group="7")
        small.sql.do("update redelivery_attempts set group_id = 7")
        small.send()
        said = [one.rule for one in small.checker.broken]
        assert ("a group that another was merged into proves itself anew" in said) == broken

    def test_what_comes_after_a_merge_is_one_group(self, small: Small) -> None:
        self.merged(small, "canary")
        small.message("escalated", message_id=1 << 20, group="8")
        batch = (
            "insert into staging_batches (batch_id, route, source, kind, shard, run_id, fence, state, uri, opened_at)"
            " values (1, 'east0', 'orders-dlq', 'dead_letter', 0, 'r', 1, 'settled', 'x', {})"
        )
        small.sql.do(batch.format(NOW))
        small.checker.rulings.after_step(small.sql)
        small.sql.do("update staging_batches set opened_at = '2025-10-09 09:10:00.000000'")
        with pytest.raises(Broken, match="what comes after a merge is one group"):
            small.checker.rulings.after_step(small.sql)

    def test_what_was_decided_stays_about_its_group(self, small: Small) -> None:
        small.asked(status="'decided'", decision="'redeliver'", decided_by="'ana'", decided_at=NOW)
        small.checker.rulings.after_step(small.sql)
        small.sql.do("update escalated_messages set group_id = 6")
        with pytest.raises(Broken, match="what was decided stays about its group"):
            small.checker.rulings.after_step(small.sql)
