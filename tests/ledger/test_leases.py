"""One run per route, and nothing from a run that was replaced."""

import inspect
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from redrive.errors import LeaseLost, RouteBusy, RoutePaused
from redrive.ledger import leases, table_statistics
from redrive.ledger.delivery import (
    aiming,
    breakers,
    claims,
    consumers,
    counting,
    expiry,
    holding,
    lanes,
    observations,
    outcomes,
    planning,
    presuming,
    recovery,
    unknown_sends,
    windows,
)
from redrive.ledger.delivery.observations import Observation
from redrive.ledger.delivery.ordering import InOrder
from redrive.ledger.delivery.windows import Mark
from redrive.ledger.drain import (
    adopting,
    batches,
    first_looks,
    groups,
    horizon,
    keys,
    loading,
    returned_elsewhere,
    suspects,
)
from redrive.ledger.drain.batches import Batch
from redrive.ledger.drain.keys import Selectors
from redrive.ledger.engine import Ledger
from redrive.ledger.review import applying, escalations, restoring, rulings, standing
from redrive.ledger.selecting import Selection
from redrive.ledger.transactions import RouteLease
from redrive.lifecycle import Plan
from redrive.policy.aims import Aim, Aims
from redrive.policy.gates import Stage, Step
from redrive.policy.next_step import Case, Send
from tests.ledger.planting import MINUTE, NOW, Plant, unchanged


def acquire(ledger: Ledger, run_id: str, at: timedelta = timedelta(0), **options: Any) -> RouteLease:
    options = {"holder": "host-1", "trigger": "test", "ttl": MINUTE} | options
    return leases.acquire(ledger, "orders", run_id, now=NOW + at, **options)


def test_a_second_run_is_told_who_holds_the_route_and_until_when(ledger: Ledger) -> None:
    acquire(ledger, "first")
    with pytest.raises(RouteBusy, match=r"orders is held by run first \(host-1\) until 2025-10-09 08:54:20 UTC"):
        acquire(ledger, "second", timedelta(seconds=59))


def test_another_route_is_another_lease(ledger: Ledger) -> None:
    acquire(ledger, "first")
    assert leases.acquire(ledger, "billing", "other", holder="h", trigger="t", ttl=MINUTE, now=NOW).fence == 1


def test_a_lease_that_ran_out_is_taken_over_with_a_higher_fence(plant: Plant) -> None:
    first = plant.lease
    second = plant.begin()
    assert second.fence == first.fence + 1
    assert plant.rows("select run_id, status from runs order by run_id") == [
        ("orders-1", "replaced"),
        ("orders-2", "running"),
    ]
    assert plant.rows("select action, actor from audit_events") == [("take_over_route", "redrive")]


def test_every_write_renews_the_lease(ledger: Ledger) -> None:
    lease = acquire(ledger, "first")
    with ledger.under(lease, NOW + timedelta(seconds=50)):
        pass
    with pytest.raises(RouteBusy, match="until 2025-10-09 08:55:10"):
        acquire(ledger, "second", timedelta(seconds=100))


def test_a_lease_that_ran_out_but_was_not_taken_is_still_good(ledger: Ledger) -> None:
    lease = acquire(ledger, "first")
    with ledger.under(lease, NOW + timedelta(hours=5)):
        pass


def test_a_released_route_is_free_at_once(ledger: Ledger) -> None:
    lease = acquire(ledger, "first")
    assert leases.release(ledger, lease, status="succeeded", now=NOW)
    assert acquire(ledger, "second").fence == 2


def test_releasing_a_lease_that_was_taken_over_changes_nothing(plant: Plant) -> None:
    old = plant.lease
    plant.begin()
    with unchanged(plant):
        assert not leases.release(plant.ledger, old, status="succeeded", now=plant.now)


def test_the_same_run_may_acquire_again_and_fences_its_earlier_self(ledger: Ledger) -> None:
    first = acquire(ledger, "run")
    second = acquire(ledger, "run")
    assert second.fence == first.fence + 1
    with pytest.raises(LeaseLost), ledger.under(first, NOW):
        pass


def test_a_paused_route_says_who_paused_it_and_why(ledger: Ledger) -> None:
    leases.pause(ledger, "orders", by="ana", reason="release 1.4", now=NOW)
    with pytest.raises(RoutePaused, match=r"paused by ana: release 1\.4"):
        acquire(ledger, "first")
    assert acquire(ledger, "review", even_if_paused=True)
    with ledger.read() as connection:
        assert leases.pause_of(connection, "orders") == "paused by ana: release 1.4"


def test_a_pause_lets_the_present_run_keep_its_lease(plant: Plant) -> None:
    leases.pause(plant.ledger, "orders", by="ana", reason="x", now=plant.now)
    with plant.ledger.under(plant.lease, plant.now):
        pass


def test_a_second_pause_does_not_hide_the_first(ledger: Ledger) -> None:
    assert leases.pause(ledger, "orders", by="ana", reason="first", now=NOW) is None
    assert leases.pause(ledger, "orders", by="ben", reason="second", now=NOW) == "paused by ana: first"
    with ledger.read() as connection:
        assert leases.pause_of(connection, "orders") == "paused by ana: first"


def test_resume_is_told_once(plant: Plant) -> None:
    leases.pause(plant.ledger, "orders", by="ana", reason="x", now=NOW)
    assert leases.resume(plant.ledger, "orders", by="ben", now=NOW)
    assert not leases.resume(plant.ledger, "orders", by="ben", now=NOW)
    assert plant.rows("select actor, action from audit_events order by event_id") == [
        ("ana", "pause"),
        ("ben", "resume"),
    ]


def test_of_many_runs_that_start_at_once_one_gets_the_route(ledger: Ledger) -> None:
    won: list[str] = []
    lost: list[str] = []
    start = threading.Barrier(6)

    def run(name: str) -> None:
        start.wait()
        try:
            acquire(ledger, name)
            won.append(name)
        except RouteBusy as error:
            lost.append(str(error))

    threads = [threading.Thread(target=run, args=(f"run-{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert len(lost) == 5
    assert all(won[0] in text for text in lost)


def test_counts_of_mapped_tasks_add_up(plant: Plant) -> None:
    for settled in (3, 4):
        leases.note_counts(plant.ledger, plant.lease, "drain", {"settled": settled, "complete:q": 1}, plant.now)
    leases.note_counts(plant.ledger, plant.lease, "load", {"new": 7}, plant.now)
    assert leases.counts_of(plant.ledger, plant.lease.run_id) == {
        "drain": {"settled": 7, "complete:q": 2},
        "load": {"new": 7},
    }


def test_a_queue_that_is_called_as_a_stage_is_none(plant: Plant) -> None:
    """What a run noted of its sources is no word of a stage: a queue's name is anybody's."""
    leases.note_counts(plant.ledger, plant.lease, "prepare", {"asked": {"copies": 3}}, plant.now)
    plant.begin()
    first_looks.note(plant.ledger, plant.lease, "prepare", shard=0, total=None, in_flight=0, as_of=None, now=plant.now)
    plant.begin()
    with plant.ledger.read() as connection:
        before = leases.run_before(connection, plant.lease, "prepare")
        assert before is not None
        assert before.counts == {"prepare": {"asked": {"copies": 3}}}


# --- fencing ----------------------------------------------------------------------------------------------

CASE = planning.CaseCount(Case("dead_letter", None, 0, 0, 0, False), None, "orders-dlq", 1)
DECIDED = applying.Decided(1, 1, "orders", "discard", "ana", None, None, None, None, "escalated")
CANDIDATE = escalations.Candidate(1, "waiting", 1, "q", None, None, None, None, 0, None, "b", None, 2)
UNFINISHED = restoring.Unfinished(1, "r", 0, "orders-dlq", "waiting", None)
GATE = breakers.GroupGate(
    stage=Stage.CANARY, allowed=1, sent=0, stayed=0, returned=0, trips=0, cool_down_until=None, waiting=0,
    held=0, stage_id=1, admits=0, group_id=1, cause="throttled", reason=None, released=0,
)  # fmt: skip

GUARDED: dict[str, Callable[[Plant, RouteLease, int], Any]] = {
    "open_batch": lambda p, z, s: batches.open_batch(
        p.ledger, z, source="q", kind="dead_letter", shard=0, path_of=lambda *_: "p", now=p.now
    ),
    "record": lambda p, z, s: batches.record(p.ledger, z, 1, copies=1, size=1, now=p.now),
    "ensure_groups": lambda p, z, s: groups.ensure_groups(
        p.ledger, z, [groups.Group("new", "throttled", "t", None)], p.now
    ),
    "renew_keys": lambda p, z, s: keys.renew(
        p.ledger, z, Batch(1, "orders", "q", "dead_letter", "p", 0, "settled"), Selectors("key"), [], p.now
    ),
    "load": lambda p, z, s: loading.load(p.ledger, z, [1], [], p.now),
    "note": lambda p, z, s: first_looks.note(
        p.ledger, z, "q", shard=0, total=1, in_flight=0, as_of=None, now=p.now
    ),
    "end": lambda p, z, s: first_looks.end(p.ledger, z, "q", shard=0, now=p.now),
    "observe": lambda p, z, s: observations.observe(p.ledger, z, [Observation("q", "source", 1, 0, 0)], p.now),
    "sources_drained": lambda p, z, s: horizon.sources_drained(p.ledger, z, ["q"], p.now, p.now),
    "sources_loaded": lambda p, z, s: horizon.sources_loaded(p.ledger, z, p.now),
    "forget_pending": lambda p, z, s: horizon.forget_pending(p.ledger, z, p.now),
    "take_in": lambda p, z, s: returned_elsewhere.take_in(p.ledger, z, p.now),
    "leave": lambda p, z, s: horizon.leave(p.ledger, z, ["orders-dlq"], p.now),
    "presume": lambda p, z, s: presuming.presume(p.ledger, z, {}, window=MINUTE, sources=["q"], now=p.now),
    "confirm": lambda p, z, s: outcomes.confirm(p.ledger, z, [1], p.now),
    "decide_unknown": lambda p, z, s: unknown_sends.decide(
        p.ledger, z, destination="orders", rule=unknown_sends.Rule(Plan.RESEND, p.now), now=p.now
    ),
    "plan": lambda p, z, s: planning.apply(
        p.ledger, z, [(CASE, Send("requeue"))], selection=Selection(), delays={}, settle_after=MINUTE, now=p.now
    ),
    "expire": lambda p, z, s: planning.expire(p.ledger, z, enqueued_before=p.now, now=p.now),
    "refuse_lost": lambda p, z, s: aiming.refuse_lost(p.ledger, z, {"orders-dlq": "key"}, p.now),
    "aim": lambda p, z, s: aiming.aim(p.ledger, z, Aims({}, Aim("elsewhere")), p.now),
    "open_gates": lambda p, z, s: breakers.open_gates(p.ledger, z, first=1, now=p.now),
    "note_expiry": lambda p, z, s: expiry.note(
        p.ledger, z, "q", expiry.Expiry(), rescued=1, expiring_at=p.now, began_at=p.now, now=p.now
    ),
    "remember": lambda p, z, s: counting.remember(p.ledger, z, 10, p.now),
    "admit": lambda p, z, s: holding.admit(p.ledger, z, {GATE: None}, p.now),
    "hold_out_of_turn": lambda p, z, s: holding.hold_out_of_turn(p.ledger, z, InOrder(), p.now),
    "put_off": lambda p, z, s: holding.put_off(p.ledger, z, [GATE], planned_at=p.now, now=p.now),
    "hold_back": lambda p, z, s: holding.hold_back(p.ledger, z, {GATE: "why"}, p.now),
    "reopen_released": lambda p, z, s: holding.reopen_released(p.ledger, z, {GATE: "why"}, p.now),
    "put_to_review": lambda p, z, s: holding.put_to_review(p.ledger, z, {GATE: "why"}, p.now),
    "claim": lambda p, z, s: claims.claim(p.ledger, z, *p.asking(1), p.now),
    "all_fit": lambda p, z, s: claims.all_fit(p.ledger, z, "orders", [], p.now),
    "claim_resends": lambda p, z, s: claims.claim_resends(p.ledger, z, *p.asking(1), p.now),
    "refuse_destination": lambda p, z, s: lanes.refuse_destination(p.ledger, z, "orders", "why", p.now),
    "raise_mark": lambda p, z, s: windows.raise_mark(p.ledger, z, s, 1 << 40, p.now),
    "mark": lambda p, z, s: windows.mark(p.ledger, z, s, [Mark(1 << 20, 1, "sent")], tries=3, now=p.now),
    "give_back": lambda p, z, s: windows.give_back(p.ledger, z, s, [1 << 20], p.now),
    "set_aside": lambda p, z, s: windows.set_aside(p.ledger, z, s, [1 << 20], "why", p.now),
    "suppress": lambda p, z, s: windows.suppress(p.ledger, z, s, [1 << 20], p.now),
    "close": lambda p, z, s: windows.close(p.ledger, z, s, p.now),
    "recover": lambda p, z, s: recovery.recover(p.ledger, z, p.now),
    "escalate": lambda p, z, s: escalations.escalate(
        p.ledger, z, [escalations.Review(CANDIDATE, b"", None, [], None, "discard")], p.now
    ),
    "look_again": lambda p, z, s: table_statistics.look_again(
        p.ledger, z, ["messages"], table_statistics.MANY, p.now
    ),
    "suppress_escalation": lambda p, z, s: escalations.suppress(p.ledger, z, [1], p.now),
    "apply_decisions": lambda p, z, s: applying.apply(
        p.ledger, z, redeliver=[], discard=[DECIDED], refuse=[], first=1, now=p.now
    ),
    "stand": lambda p, z, s: standing.apply(p.ledger, z, approvals=1, now=p.now),
    "rule": lambda p, z, s: rulings.apply(p.ledger, z, p.now),
    "ask_about_suspected": lambda p, z, s: suspects.write_reviews(
        p.ledger, z, [escalations.Review(CANDIDATE, b"", None, [], None, "discard")], p.now
    ),
    "adopt": lambda p, z, s: suspects.adopt(p.ledger, z, [1], p.now),
    "give_up_batch": lambda p, z, s: batches.give_up(
        p.ledger, z, batches.Batch(1, "orders", "q", "dead_letter", "u", 1, "recorded"), by="ana", reason="x", now=p.now
    ),
    "doubt_unsent": lambda p, z, s: adopting.doubt_unsent(p.ledger, z, p.now),
    "begin_restore": lambda p, z, s: restoring.begin(p.ledger, z, [1 << 20], p.now),
    "undo_restore": lambda p, z, s: restoring.undo(p.ledger, z, [UNFINISHED], "why", p.now),
    "doubt_restore": lambda p, z, s: restoring.doubt(p.ledger, z, p.now),
    "ask_again": lambda p, z, s: escalations.ask_again(
        p.ledger, z, [escalations.Review(CANDIDATE, b"", None, [], None, "discard")], p.now
    ),
    "finish_restore": lambda p, z, s: restoring.finish(p.ledger, z, [1 << 20], "q", p.now),
    "judge_consumers": lambda p, z, s: consumers.write(
        p.ledger, z, "orders", [consumers.Health("c", 1, 1, p.now, "healthy")], p.now
    ),
    "close_connection": lambda p, z, s: consumers.close_connection(p.ledger, z, "orders", "x", ["c"], "why", p.now),
    "connection_stayed": lambda p, z, s: consumers.connection_stayed(p.ledger, z, "orders", "x", ["c"], "why", p.now),
    "step_breaker": lambda p, z, s: breakers.take_step(p.ledger, z, GATE, Step(Stage.OPEN, 0, "why", 0), p.now),
    "pause_itself": lambda p, z, s: leases.pause_itself(p.ledger, z, lambda _: "sick", p.now),
    "note_counts": lambda p, z, s: leases.note_counts(p.ledger, z, "drain", {}, p.now),
}  # fmt: skip


def test_a_replaced_run_writes_nothing_anywhere(plant: Plant) -> None:
    plant.messages(3)
    plant.make_due()
    claimed = plant.claim(1)
    assert claimed is not None
    plant.stand(plant.group())
    plant.change(
        "insert into group_rulings (ruling, group_id, words, decided_by, note)"
        " values ('split', :group, 'boom', 'ana', 'two')",
        group=plant.group(),
    )
    plant.change(
        "insert into returned_elsewhere (message_id, attempt, route, copy_id, kind, received_at)"
        " values (1048576, 1, 'orders', 2097152, 'dead_letter', :now)",
        now=plant.now,
    )
    zombie = plant.lease
    plant.begin()
    for name, operation in GUARDED.items():
        with unchanged(plant):
            try:
                operation(plant, zombie, claimed.slice_id)
            except LeaseLost:
                continue
        pytest.fail(f"{name} let a replaced run write")


def test_every_operation_that_takes_a_lease_is_in_the_test_above() -> None:
    modules = (
        adopting, aiming, applying, batches, consumers, breakers, first_looks, escalations, expiry, horizon, loading,
        observations, outcomes, claims, lanes, planning, presuming, recovery, restoring, returned_elsewhere, rulings,
        standing, suspects, table_statistics, unknown_sends, windows,
    )  # fmt: skip
    takes_lease = {
        function
        for module in modules
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
        and "lease" in inspect.signature(function).parameters
    }  # fmt: skip
    called = {name for operation in GUARDED.values() for name in _names(operation.__code__)}
    not_called = {f.__name__ for f in takes_lease} - called
    only_look = {"open_of", "left", "settled_by", "taken_by", "first", "may_hold"}
    assert not_called <= only_look


def _names(code: Any) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            found |= _names(constant)
    return found
