"""Two tries of one task, and two tasks of one run: what the one has given up is nobody's but who claims it anew."""

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.brokers.base import Publication
from redrive.errors import LeaseLost
from redrive.ledger.delivery import claims, windows
from redrive.stages import pipeline
from redrive.stages.context import Run
from tests.turns import Turns
from tests.workshop import Pipelining, Workshop


def planned(workshop: Workshop) -> Run:
    """A run that is about to deliver 40 messages."""
    workshop.die(*(f"m-{number:02}" for number in range(40)))
    return workshop.planned()


def named(name: str, work: Callable[[], Any]) -> Callable[[], Any]:
    """``work`` in a thread of that name, which gives its error as its result."""

    def run() -> Any:
        threading.current_thread().name = name
        try:
            return work()
        except Exception as error:
            return error

    return run


def me() -> str:
    return threading.current_thread().name


def contradictions(workshop: Workshop) -> int:
    """Messages that are to be sent although it is written down that they were."""
    ((count,),) = workshop.query(
        "select count(*) from messages inner join redelivery_attempts attempts"
        " on attempts.message_id = messages.message_id and attempts.attempt = messages.attempts"
        " where state in ('waiting', 'unknown') and sent_at is not null and outcome is null"
    )
    return int(count)


def in_the_end(workshop: Workshop, run: Run) -> dict[str, int]:
    """The states when the run and some more are over; nothing may have been found."""
    pipeline.escalate(workshop.settings, run, **workshop.options())
    pipeline.report(workshop.settings, run, **workshop.options())
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    for _ in range(8):
        workshop.consume()
        workshop.advance(minutes=20)
        workshop.cycle()
    assert workshop.audit() == []
    return workshop.states()


@pytest.mark.parametrize("windows_of_the_new_try", [1, 4])
def test_a_try_that_was_taken_for_dead_takes_nothing_from_the_next_one(
    tmp_path: Path, windows_of_the_new_try: int
) -> None:
    workshop = Workshop(tmp_path, deliver={"confirm_window": 10, "slice": 40})
    run = planned(workshop)
    turns, publish, calls = Turns(), workshop.broker.publish, {"old": 0, "new": 0}

    def stalling(queue: str, messages: Any) -> Any:
        calls[me()] += 1
        results = publish(queue, messages)
        # The old try stalls with its first window on the wire; it wakes up while the new one sends.
        if (me(), calls[me()]) in (("old", 1), ("new", min(windows_of_the_new_try, 3))):
            turns.pass_on()
        return results

    workshop.broker.publish = stalling  # type: ignore[method-assign]
    old, new = turns.run(named("old", lambda: workshop.deliver(run)), named("new", lambda: workshop.deliver(run)))
    workshop.broker.publish = publish  # type: ignore[method-assign]
    assert isinstance(old, LeaseLost)
    assert "has taken over slice 1" in str(old)
    assert new["redelivered"] == 30
    assert workshop.states() == {"sent": 30, "unknown": 10}
    assert contradictions(workshop) == 0
    assert sum(in_the_end(workshop, run).values()) == 40


def test_a_try_that_fails_late_recovers_nothing_of_the_next_one(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, deliver={"confirm_window": 10, "slice": 40}, on_unknown="resend")
    run = planned(workshop)
    turns, publish, calls = Turns(), workshop.broker.publish, {"old": 0, "new": 0}

    def stalling(queue: str, messages: Any) -> Any:
        calls[me()] += 1
        results = publish(queue, messages)
        if me() == "old" and calls["old"] == 1:
            turns.pass_on()
            raise ConnectionResetError("what a process meets that was cut off")
        if me() == "new" and calls["new"] == 2:
            turns.pass_on()
        return results

    workshop.broker.publish = stalling  # type: ignore[method-assign]
    old, new = turns.run(named("old", lambda: workshop.deliver(run)), named("new", lambda: workshop.deliver(run)))
    workshop.broker.publish = publish  # type: ignore[method-assign]
    assert isinstance(old, ConnectionResetError)
    assert new["redelivered"] == 30
    assert workshop.states() == {"sent": 30, "unknown": 10}
    assert contradictions(workshop) == 0


def test_what_was_claimed_waits_again_when_its_task_is_interrupted_between_the_commit_and_the_next_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = Workshop(tmp_path, deliver={"confirm_window": 10, "slice": 20})
    run = planned(workshop)
    claim = claims.claim

    def interrupted(*args: Any) -> Any:
        claim(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(claims, "claim", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workshop.deliver(run)
    assert workshop.states() == {"waiting": 40}


def test_what_a_task_has_given_back_it_does_not_give_back_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = Pipelining(tmp_path, deliver={"confirm_window": 20, "slice": 20, "shards": 2})
    run = planned(workshop)
    turns, ready, give_back = Turns(), workshop.broker.ready, windows.give_back
    first_of_the_other, gaps = [1], [1]

    def shaky(queue: str, messages: Any) -> Any:
        begin = ready(queue, messages)

        def begun() -> Any:
            finish = begin()

            def finished() -> Any:
                results = finish()
                if me() == "one":
                    return [Publication("unknown", None, "connection lost") for _ in results]
                if first_of_the_other:  # it has claimed what the one gave back
                    first_of_the_other.pop()
                    turns.pass_on()
                return results

            return finished

        return begun

    def slowly(*arguments: Any) -> int:
        count = give_back(*arguments)
        if me() == "one" and gaps:
            gaps.pop()
            turns.pass_on()
        return count

    monkeypatch.setattr(workshop.broker, "ready", shaky)
    monkeypatch.setattr(windows, "give_back", slowly)
    one, other = turns.run(
        *(
            named(name, lambda shard=shard: pipeline.deliver(workshop.settings, run, shard, 2, **workshop.options()))
            for shard, name in enumerate(("one", "other"))
        )
    )
    assert one["put_back"] == 20
    assert other["redelivered"] == 20
    assert workshop.states() == {"sent": 20, "unknown": 20}
    assert contradictions(workshop) == 0
    pipeline.report(workshop.settings, run, **workshop.options())


def test_the_audit_finds_a_send_that_is_unknown_although_it_was_confirmed(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    run = planned(workshop)
    workshop.deliver(run)
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    assert workshop.audit() == []
    workshop.change("update messages set state = 'unknown' where message_id = (select min(message_id) from messages)")
    workshop.advance(seconds=timedelta(minutes=1).total_seconds())
    assert any("count as unknown although" in str(problem) for problem in workshop.audit())
