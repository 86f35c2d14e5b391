"""Every cause says what it means, what is done first and how to prevent it."""

from datetime import timedelta

import pytest

from redrive.classification.causes import (
    AUTOMATIC,
    NEED_PERSON,
    PROFILES,
    Cause,
    Verdict,
    advice,
    default_verdict,
    meaning,
)
from redrive.policy.next_step import Case, Escalate, Limits, Send, decide

# The table of the design, cause by cause.
VERDICTS = {
    "transient_network": "requeue",
    "transient_database": "requeue",
    "dependency_unavailable": "delay",
    "throttled": "delay",
    "consistency_lag": "delay",
    "resource_exhausted": "delay",
    "consumer_stuck": "hold",
    "lease_expired": "suppress_or_requeue",
    "duplicate": "suppress_or_escalate",
    "max_deliveries": "canary",
    "unclassified": "canary",
    "message_expired": "escalate",
    "malformed_payload": "escalate",
    "missing_data": "escalate",
    "auth_failure": "escalate",
    "oversized": "escalate",
    "routing_failure": "escalate",
    "application_bug": "escalate",
}


def test_the_causes_and_their_verdicts_are_those_of_the_table() -> None:
    assert {cause.value: default_verdict(cause).value for cause in Cause} == VERDICTS


def test_every_cause_has_a_profile() -> None:
    assert set(PROFILES) == set(Cause)


def test_nothing_is_discarded_by_default() -> None:
    assert Verdict.DISCARD not in {default_verdict(cause) for cause in Cause}


@pytest.mark.parametrize("cause", Cause)
def test_a_meaning_is_one_sentence_and_advice_one_paragraph(cause: Cause) -> None:
    assert meaning(cause).endswith(".")
    assert ". " not in meaning(cause)
    assert "\n" not in advice(cause)
    assert "  " not in advice(cause)
    assert len(advice(cause)) > 100


def test_what_a_verdict_says_of_itself_is_what_is_decided() -> None:
    """On the first time, with consumers that are well and nothing found as processed."""
    limits = Limits(3, 3, timedelta(minutes=1), 2.0, timedelta(hours=1), {})
    for cause in Cause:
        decision = decide(Case("dead_letter", cause, 0, 0, 0, released=False, consumers="well"), limits)
        sent = isinstance(decision, Send) and decision.mode != "canary"
        assert (sent, isinstance(decision, Escalate)) == (cause in AUTOMATIC, cause in NEED_PERSON), cause


def test_no_verdict_is_both_automatic_and_for_a_person() -> None:
    assert {verdict for verdict in Verdict if verdict.automatic and verdict.needs_person} == set()
    neither = {verdict for verdict in Verdict if not verdict.automatic and not verdict.needs_person}
    assert neither == {Verdict.CANARY, Verdict.DISCARD}


def test_a_lease_that_ran_out_and_a_stuck_consumer_go_again_by_themselves() -> None:
    assert {Cause.LEASE_EXPIRED, Cause.CONSUMER_STUCK} <= AUTOMATIC
