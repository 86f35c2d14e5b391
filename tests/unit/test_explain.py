"""The contract of `redrive explain`: the same lines, in order, with a cause and a group."""

import pytest
from failure_samples import SAMPLES

from redrive.classification.cases import Case, RouteRule
from redrive.classification.causes import Cause, default_verdict
from redrive.classification.explain import explain, judge, without_personal_data
from redrive.classification.templates import KnownGroup


def test_lines_come_back_in_order_with_what_was_found() -> None:
    lines = [{"text": text, "n": n} for n, (_, text) in enumerate(SAMPLES)]
    answers = list(explain(lines))
    assert [answer["n"] for answer in answers] == list(range(len(SAMPLES)))
    for answer, (cause, text) in zip(answers, SAMPLES, strict=True):
        assert answer["text"] == text
        assert answer["cause"] == cause.value
        assert answer["verdict"] == default_verdict(cause).value
        assert len(answer["group"]) == 16
        assert answer["template"]
        assert 0 <= answer["confidence"] <= 1


def test_a_routes_own_rule_comes_first_and_sees_the_unmasked_text() -> None:
    rules = [RouteRule(r"order 4711 ", Cause.MISSING_DATA)]
    first, second = explain([{"text": "order 4711 timed out"}, {"text": "order 4712 timed out"}], rules=rules)
    assert (first["cause"], first["rule"], first["confidence"]) == ("missing_data", "route:1", 1.0)
    assert second["cause"] == "transient_network"


def test_the_brokers_reason_is_the_last_resort() -> None:
    with_text, without, given_up = explain(
        [
            {"text": "connection refused", "reason": "MaxDeliveryCountExceeded"},
            {"text": "", "reason": "TTLExpiredException"},
            {"text": "failed after 5 attempts", "reason": "expired"},
        ]
    )
    assert with_text["cause"] == "transient_network"
    assert without["cause"] == "message_expired"
    assert given_up["cause"] == "message_expired"


def test_attributes_are_evidence() -> None:
    (answer,) = explain([{"text": "", "attributes": {"ErrorCode": 429, "ErrorMessage": "no more"}}])
    assert answer["cause"] == "throttled"


def test_nothing_said_is_max_deliveries_and_nothing_known_unclassified() -> None:
    silent, odd = explain([{"text": ""}, {"text": "wibble wobble"}])
    assert silent["cause"] == "max_deliveries"
    assert (odd["cause"], odd["rule"], odd["confidence"]) == ("unclassified", "none", 0.0)


def test_the_whole_input_is_one_batch() -> None:
    names = ["ana", "bob", "cy", "dan", "eve", "fay"]
    answers = list(explain({"text": f"cannot open session for user {name} at gateway"} for name in names))
    assert len({answer["group"] for answer in answers}) == 1
    assert answers[0]["template"] == "cannot open session for user <*> at gateway"


def test_a_name_in_a_text_that_no_rule_knows_does_not_split_its_group() -> None:
    names = ["gateway", "password", "json", "queue", "ana", "heap"]
    answers = list(explain({"text": f"the {name} gnome wandered off into the blue hills"} for name in names))
    assert len({(answer["cause"], answer["group"]) for answer in answers}) == 1


def test_what_belongs_to_a_known_group_has_its_cause() -> None:
    known = KnownGroup("f" * 16, "oversized", "the gnome wandered off into the blue hills")
    (answer,) = explain([{"text": "the gnome wandered off into the blue hills"}], known_groups=[known])
    assert (answer["cause"], answer["group"], answer["rule"]) == ("oversized", "f" * 16, "group.known")


def test_time_is_evidence_where_nothing_is_said() -> None:
    judgement = judge({Case("", "", "lease"): 3})[Case("", "", "lease")]
    assert judgement.cause is Cause.LEASE_EXPIRED


def test_no_input_no_output() -> None:
    assert list(explain([])) == []


@pytest.mark.parametrize(
    "line", [{}, {"text": None}, {"text": 7}, {"text": "x", "attributes": "no"}, {"text": "x", "reason": 5}]
)
def test_odd_lines_are_answered(line: dict[str, object]) -> None:
    (answer,) = explain([line])
    assert answer["cause"]


def test_an_example_shows_nothing_personal() -> None:
    text = "card 4111 1111 1111 1111 of ana@acme.test, password=hunter2 Bearer abcdefghijklmnop"
    assert without_personal_data(text) == "card <card> of <email>, password=<secret> <credentials>"
