"""Replays: the same policy gives what was, another one what would have been, and nothing is guessed."""

from datetime import timedelta

import pytest

from redrive.classification.causes import Cause, Verdict
from redrive.policy import replay
from redrive.policy.gates import Rules
from redrive.policy.next_step import Limits
from redrive.policy.replay import History, Tally

MINUTE = timedelta(minutes=1)
LIMITS = Limits(2, 3, MINUTE, 2.0, 3 * MINUTE, {})
NO_CANARY = Rules(False, 0, 1.0, 0.0, 0.5, 20, 15 * MINUTE)
CANARY = Rules(True, 10, 10.0, 0.95, 0.5, 20, 15 * MINUTE)


def ways(messages: int = 1, **facts: object) -> History:
    """Messages that went one way: never sent unless told."""
    known: dict[str, object] = {
        "kind": "dead_letter", "cause": Cause.TRANSIENT_NETWORK, "group_id": 7, "carried": 0, "sends": 0,
        "fate": "none", "state": "other", "escalated": False,
    }  # fmt: skip
    return History(**(known | facts), messages=messages)  # type: ignore[arg-type]


def sent(times: int, fate: str, messages: int = 1, **facts: object) -> History:
    return ways(messages, sends=times, fate=fate, **facts)


def would(*histories: History, limits: Limits = LIMITS, rules: Rules = NO_CANARY) -> Tally:
    return replay.total(replay.replay(histories, limits, rules))["would"]


def changed(**values: object) -> Limits:
    known = {
        "requeue_attempts": 2, "delay_attempts": 3, "first": MINUTE, "factor": 2.0, "longest": 3 * MINUTE,
        "verdicts": {},
    }  # fmt: skip
    return Limits(**(known | values))  # type: ignore[arg-type]


#: A finished past under LIMITS.
PAST = [
    sent(1, "stayed", 60),
    sent(2, "stayed", 20),
    sent(4, "stayed", 5),
    sent(5, "returned", 15, escalated=True),
    ways(4, state="suppressed"),
    ways(6, cause=Cause.APPLICATION_BUG, group_id=8, escalated=True),
    sent(1, "returned", 3, cause=Cause.UNCLASSIFIED, group_id=9, escalated=True),
    sent(2, "stayed", 5, kind="delay", cause=None, group_id=None),
]


def test_the_same_policy_gives_what_was() -> None:
    both = replay.total(replay.replay(PAST, LIMITS, NO_CANARY))
    assert both["would"] == Tally(**_plain(both["was"]) | {"longest_wait": both["would"].longest_wait})  # type: ignore[arg-type]
    assert both["was"] == Tally(
        messages=118, redelivered=108, sends=60 + 40 + 20 + 75 + 3 + 10, returns=20 + 15 + 75 + 3 + 5,
        stayed=90, escalated=24, suppressed=4,
    )  # fmt: skip


def _plain(tally: Tally) -> dict[str, object]:
    return {name: getattr(tally, name) for name in Tally.__slots__}  # type: ignore[attr-defined]


def test_fewer_attempts_spare_returns_and_say_what_they_would_have_cost() -> None:
    found = would(*PAST, limits=changed(requeue_attempts=1, delay_attempts=0))
    assert found.stayed == 60, "what stayed away after the first send"
    assert found.given_up == 20 + 5 + 5, "what a later send did bring home"
    assert found.escalated == 15 + 6 + 3 + 20 + 5 + 5
    assert found.sends == 60 + 20 + 5 + 15 + 3
    assert found.not_known == 0


def test_what_nobody_tried_is_not_known() -> None:
    found = would(sent(5, "returned", 15, escalated=True), limits=changed(delay_attempts=9))
    assert (found.not_known, found.sends, found.returns) == (15, 6 * 15, 5 * 15)
    bug = ways(6, cause=Cause.APPLICATION_BUG, escalated=True)
    found = would(bug, limits=changed(verdicts={Cause.APPLICATION_BUG: Verdict.REQUEUE}))
    assert (found.not_known, found.redelivered, found.escalated) == (6, 6, 0)


def test_a_send_whose_outcome_is_open_stays_open() -> None:
    assert would(sent(2, "open", 3)).not_known == 3
    assert would(sent(2, "open", 3), limits=changed(requeue_attempts=1, delay_attempts=0)).escalated == 3


def test_what_was_processed_stays_suppressed_whoever_asks() -> None:
    later = sent(2, "returned", 2, state="suppressed")
    for limits in (LIMITS, changed(requeue_attempts=2, delay_attempts=0)):
        assert would(ways(4, state="suppressed"), later, limits=limits).suppressed == 6


def test_a_route_may_escalate_or_discard_a_cause() -> None:
    past = sent(1, "stayed", 60)
    escalate = changed(verdicts={Cause.TRANSIENT_NETWORK: Verdict.ESCALATE})
    assert (would(past, limits=escalate).given_up, would(past, limits=escalate).sends) == (60, 0)
    assert would(past, limits=changed(verdicts={Cause.TRANSIENT_NETWORK: Verdict.DISCARD})).discarded == 60


def test_waits_add_up_to_the_longest_of_one_message() -> None:
    assert would(sent(5, "returned", 2, escalated=True)).longest_wait == (1 + 2 + 3) * MINUTE
    slower = changed(first=2 * MINUTE, longest=60 * MINUTE)
    assert would(sent(5, "returned", escalated=True), limits=slower).longest_wait == (2 + 4 + 8) * MINUTE


def test_attempts_of_another_ledger_count() -> None:
    assert would(ways(2, carried=100)).escalated == 2


# --- canaries ---------------------------------------------------------------------------------------------------

BUG = {"cause": Cause.APPLICATION_BUG}
SEND_BUGS = changed(verdicts={Cause.APPLICATION_BUG: Verdict.CANARY}, delay_attempts=0)


def test_a_canary_would_have_stopped_a_bug_that_always_comes_back() -> None:
    past = sent(2, "returned", 100_000, escalated=True, **BUG)
    assert would(past, limits=SEND_BUGS).sends == 200_000
    found = would(past, limits=SEND_BUGS, rules=CANARY)
    assert (found.sends, found.returns, found.escalated) == (10, 10, 100_000)


def test_a_canary_lets_a_group_through_that_stays_away() -> None:
    (row,) = replay.replay([sent(1, "stayed", 100_000, **BUG)], SEND_BUGS, CANARY)
    assert (row.would.stayed, row.gate) == (100_000, "passed")


def test_a_passing_failure_is_held_and_not_given_up() -> None:
    past = [sent(1, "stayed", 500), sent(1, "returned", 500)]
    found = would(*past, rules=CANARY)
    assert (found.sends, found.stayed, found.returns) == (10, 5, 5)
    assert (found.held, found.escalated, found.given_up) == (995, 0, 0)


def test_messages_that_a_failed_canary_keeps_back_were_given_up_if_they_would_have_stayed_away() -> None:
    past = [sent(1, "stayed", 60, **BUG), sent(1, "returned", 40, escalated=True, **BUG)]
    found = would(*past, limits=SEND_BUGS, rules=CANARY)
    assert (found.stayed, found.given_up, found.escalated) == (6, 54, 94)


def test_a_canary_of_which_nobody_knows_the_end_says_so() -> None:
    (row,) = replay.replay([ways(100, escalated=True, **BUG)], SEND_BUGS, CANARY)
    assert (row.would.redelivered, row.would.not_known) == (10, 100)
    assert row.gate is not None
    assert "nobody knows" in row.gate


def test_a_delay_source_meets_no_gate() -> None:
    past = sent(2, "returned", 1000, kind="delay", cause=None, group_id=None)
    assert would(past, rules=CANARY).sends == 3000


@pytest.mark.parametrize("rules", [NO_CANARY, CANARY], ids=["open", "canary"])
@pytest.mark.parametrize("attempts", [0, 1, 2, 5])
def test_every_message_has_one_end(rules: Rules, attempts: int) -> None:
    past = [*PAST, sent(3, "open", 7), ways(11), ways(2, state="held"), ways(1, state="discarded")]
    for tally in replay.total(replay.replay(past, changed(requeue_attempts=attempts), rules)).values():
        ends = ("stayed", "escalated", "held", "suppressed", "discarded", "not_known")
        assert sum(getattr(tally, end) for end in ends) == tally.messages == 139
        assert tally.returns <= tally.sends
        assert tally.given_up <= tally.escalated


def test_a_group_is_dealt_out_in_whole_messages() -> None:
    past = [sent(1, "stayed", 1), sent(2, "stayed", 1), sent(3, "stayed", 1), *[sent(1, "returned", 100)]]
    assert would(*past, rules=CANARY).redelivered == 10
