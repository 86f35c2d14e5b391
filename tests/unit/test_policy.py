"""Decisions: n requeues, then m delays, then a person; and each cause's first verdict."""

from dataclasses import replace
from datetime import timedelta

import pytest

from redrive.classification.causes import PROFILES, Cause, Verdict
from redrive.policy import next_step
from redrive.policy.next_step import Case, Discard, Escalate, Hold, Limits, Send

LIMITS = Limits(2, 3, timedelta(minutes=1), 2.0, timedelta(minutes=3), {})


def a_case(cause: Cause | None = Cause.TRANSIENT_NETWORK, **facts: object) -> Case:
    return Case(
        **(
            {"kind": "dead_letter", "cause": cause, "requeues": 0, "delays": 0, "attempts": 0, "released": False}
            | facts
        )
    )  # type: ignore[arg-type]


def test_a_delay_has_a_least_wait() -> None:
    limits = Limits(0, 3, timedelta(minutes=1), 2.0, timedelta(minutes=3), {}, least=timedelta(seconds=20))
    waits = [next_step.decide(a_case(delays=n, attempts=n), limits) for n in range(3)]
    assert waits == [Send("delay", timedelta(minutes=n), least=timedelta(seconds=20)) for n in (1, 2, 3)]


def test_a_passing_failure_goes_back_twice_then_waits_three_times_then_meets_a_person() -> None:
    decided = [
        next_step.decide(a_case(requeues=requeues, delays=delays, attempts=requeues + delays), LIMITS)
        for requeues, delays in [(0, 0), (1, 0), (2, 0), (2, 1), (2, 2), (2, 3)]
    ]
    assert decided[:5] == [
        Send("requeue"),
        Send("requeue"),
        Send("delay", timedelta(minutes=1)),
        Send("delay", timedelta(minutes=2)),
        Send("delay", timedelta(minutes=3)),
    ], "the third delay is capped"
    assert isinstance(decided[5], Escalate)
    assert "after 5 redeliveries" in decided[5].reason


def test_a_reason_is_true_whole_sentences() -> None:
    def reason(case: Case, limits: Limits = LIMITS) -> str:
        decided = next_step.decide(case, limits)
        assert isinstance(decided, Escalate)
        return decided.reason

    meaning = (
        "A unique constraint or an idempotency check says that this was done already, or a text that it may have been."
    )
    assert reason(a_case(Cause.DUPLICATE)) == f"duplicate: {meaning} No processed_check tells whether it was."
    checked = replace(LIMITS, checked=True)
    assert reason(a_case(Cause.DUPLICATE), checked) == f"duplicate: {meaning} The processed_check does not know it."
    assert reason(a_case(Cause.UNCLASSIFIED, attempts=1)) == "unclassified: It came back after 1 redelivery."
    never = replace(LIMITS, requeue_attempts=0, delay_attempts=0)
    assert reason(a_case(), never) == "transient_network: The route allows no redelivery of it."
    assert reason(a_case(Cause.APPLICATION_BUG, attempts=2)).endswith(". It came back after 2 redeliveries.")
    for case in (a_case(released=True), a_case(None, kind="delay", delays=3)):
        assert reason(case).startswith("It")
        assert reason(case).endswith(".")


def test_nothing_is_sent_where_nothing_is_allowed() -> None:
    none = Limits(0, 0, timedelta(minutes=1), 2.0, timedelta(minutes=3), {})
    assert isinstance(next_step.decide(a_case(), none), Escalate)
    assert isinstance(next_step.decide(a_case(None, kind="delay"), none), Escalate)


def test_what_nobody_classified_goes_to_a_person() -> None:
    for attempts in (0, 2):
        assert isinstance(next_step.decide(a_case(None, attempts=attempts), LIMITS), Escalate)
    assert isinstance(next_step.decide(a_case(None, kind="delay"), LIMITS), Send)


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_has_a_decision_that_fits_its_verdict(cause: Cause) -> None:
    decision = next_step.decide(a_case(cause), LIMITS)
    match PROFILES[cause].verdict:
        case Verdict.ESCALATE | Verdict.SUPPRESS_OR_ESCALATE:
            assert isinstance(decision, Escalate)
            assert cause in decision.reason
        case Verdict.CANARY:
            assert decision == Send("canary")
        case Verdict.DELAY | Verdict.HOLD:
            assert decision == Send("delay", timedelta(minutes=1))
        case _:
            assert decision == Send("requeue")


def test_a_stuck_consumers_message_is_held_while_it_is_stuck_and_costs_no_delay() -> None:
    stuck = next_step.decide(a_case(Cause.CONSUMER_STUCK, consumers="stuck"), LIMITS)
    assert isinstance(stuck, Hold)
    assert "stuck" in stuck.reason
    assert next_step.decide(a_case(Cause.CONSUMER_STUCK, consumers="well"), LIMITS) == Send("requeue")
    assert next_step.decide(a_case(Cause.CONSUMER_STUCK), LIMITS) == Send("delay", timedelta(minutes=1)), "nobody tells"
    assert next_step.decide(a_case(consumers="stuck"), LIMITS) == Send("requeue"), "other causes don't wait for them"


def test_a_message_at_which_consumers_get_stuck_again_and_again_meets_a_person() -> None:
    decided = [
        next_step.decide(a_case(Cause.CONSUMER_STUCK, consumers="well", requeues=r, delays=d, attempts=r + d), LIMITS)
        for r, d in [(1, 0), (2, 0), (2, 3)]
    ]
    assert decided[:2] == [Send("requeue"), Send("delay", timedelta(minutes=1))]
    assert isinstance(decided[2], Escalate)


def test_an_unclassified_failure_is_tried_once() -> None:
    assert next_step.decide(a_case(Cause.UNCLASSIFIED), LIMITS) == Send("canary")
    assert isinstance(next_step.decide(a_case(Cause.UNCLASSIFIED, requeues=1, attempts=1), LIMITS), Escalate)


def test_what_a_person_released_goes_straight_back_to_people() -> None:
    decision = next_step.decide(a_case(released=True, attempts=1), LIMITS)
    assert isinstance(decision, Escalate)
    assert "released" in decision.reason


def test_attempts_of_another_ledger_count_towards_the_cap() -> None:
    assert isinstance(next_step.decide(a_case(attempts=100), LIMITS), Escalate)


def test_a_route_may_decide_otherwise() -> None:
    limits = Limits(
        2,
        3,
        timedelta(minutes=1),
        2.0,
        timedelta(minutes=3),
        {Cause.MESSAGE_EXPIRED: Verdict.DISCARD, Cause.THROTTLED: Verdict.ESCALATE},
    )
    assert isinstance(next_step.decide(a_case(Cause.MESSAGE_EXPIRED), limits), Discard)
    assert isinstance(next_step.decide(a_case(Cause.THROTTLED), limits), Escalate)


@pytest.mark.parametrize(
    ("window", "for_"),
    [(None, None), (20, None), (180, None), (240, 60), (300, 120), (600, 420), (3600, 2880)],
    ids=["none", "too short", "three minutes", "four minutes", "SQS FIFO", "Service Bus", "an hour"],
)
def test_a_duplicate_window_is_not_trusted_to_its_end(window: float | None, for_: float | None) -> None:
    seconds = None if window is None else timedelta(seconds=window)
    assert next_step.trusted(seconds) == (None if for_ is None else timedelta(seconds=for_))


def test_only_failures_that_go_away_by_themselves_may_try_again_by_themselves() -> None:
    assert next_step.is_automatic(Cause.TRANSIENT_DATABASE, {})
    assert next_step.is_automatic(None, {})
    assert not next_step.is_automatic(Cause.APPLICATION_BUG, {})
    assert not next_step.is_automatic(Cause.UNCLASSIFIED, {})
    assert not next_step.is_automatic(Cause.THROTTLED, {Cause.THROTTLED: Verdict.ESCALATE})
