"""The contract of `redrive explain`: the same lines, in order, with a cause and a group."""

import json

import pyarrow as pa
import pytest
from failure_samples import SAMPLES

from redrive.classification import executor, grouping
from redrive.classification.cases import Case, RouteRule
from redrive.classification.causes import Cause, default_verdict
from redrive.classification.executor import FOUND
from redrive.classification.explain import OVERFLOW, Reading, explain, explain_cases, overflow_groups
from redrive.classification.learned_model import Model
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


def test_weak_evidence_yields_to_the_brokers_own_reason() -> None:
    """Half a word that the learned model knows says less than what the broker says."""
    text = "parcel vanished"
    (guessed,) = explain([{"text": text}])
    assert guessed["rule"].startswith("learned: ") or guessed["cause"] == "unclassified"
    for reason, cause in [("TTLExpiredException", "message_expired"), ("HeaderSizeExceeded", "oversized")]:
        (said,) = explain([{"text": text, "reason": reason}])
        assert (said["cause"], said["confidence"]) == (cause, 0.95)


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


def test_what_varies_in_a_place_makes_no_rule_match() -> None:
    names = ["yaml_squote", "hmac", "json_decode_list", "dns_check", "regex_match", "to_bool", "which"]
    answers = list(explain({"text": f"Marking '{name}' as a jinja filter"} for name in names))
    assert len({answer["group"] for answer in answers}) == 1
    assert next(explain([{"text": "Marking 'hmac' as a jinja filter"}]))["cause"] == "auth_failure"


def test_what_belongs_to_a_known_group_has_its_cause() -> None:
    known = KnownGroup("f" * 16, "oversized", "the gnome wandered off into the blue hills")
    (answer,) = explain([{"text": "the gnome wandered off into the blue hills"}], known_groups=[known])
    assert (answer["cause"], answer["group"], answer["rule"]) == ("oversized", "f" * 16, "group.known")


def test_time_is_evidence_where_nothing_is_said() -> None:
    explanation = explain_cases({Case("", "", "lease"): 3})[Case("", "", "lease")]
    assert explanation.cause is Cause.LEASE_EXPIRED


def test_no_input_no_output() -> None:
    assert list(explain([])) == []


@pytest.mark.parametrize(
    "line", [{}, {"text": None}, {"text": 7}, {"text": "x", "attributes": "no"}, {"text": "x", "reason": 5}]
)
def test_odd_lines_are_answered(line: dict[str, object]) -> None:
    (answer,) = explain([line])
    assert answer["cause"]


def test_what_executors_read_of_a_text_is_what_would_be_read_here() -> None:
    """Else a message's cause would hang on where it was looked at."""
    cases = {Case(text): 1 for text in dict.fromkeys(grouping.mask(text) for _, text in SAMPLES)}
    texts = ["", *(case.masked for case in cases)]
    columns = [pa.array(texts if field.name == "masked" else [None] * len(texts), field.type) for field in FOUND]
    (read,) = executor.read([pa.record_batch(columns, schema=FOUND)])
    assert read.schema == executor.READ
    first, *written = read.column("reading").to_pylist()
    assert first is None  # it says nothing that could be read
    readings = {case.masked: executor.reading_of(one) for case, one in zip(cases, written, strict=True)}
    assert readings == {case.masked: Reading.of(case.masked) for case in cases}
    assert explain_cases(cases, readings=readings) == explain_cases(cases)


class TestTooManyToTellApart:
    """More different cases than are told apart at once."""

    WORDS = ("amber", "birch", "cedar", "delta", "ember", "flint", "grove", "hazel", "ivory", "jewel")

    def cases(self) -> dict[Case, int]:
        """Six of one template with many messages each, then texts that have nothing in common, once each."""
        users = {Case(f"no account of {word} in this shop"): 50 for word in self.WORDS[:6]}
        odd = {Case(f"{one} {other} went {one}{other} over the {other}"): 1 for one, other in PAIRS}
        return users | odd

    def test_those_with_the_most_messages_are_and_the_others_share_a_group_for_each_cause(self) -> None:
        found = explain_cases(self.cases(), told_apart=8)
        told = {one.template for case, one in found.items() if case.masked.startswith("no account")}
        assert told == {"no account of <*> in this shop"}
        others = [one for case, one in found.items() if not case.masked.startswith("no account")]
        assert sum(one.template == OVERFLOW for one in others) == len(others) - 2
        assert {one.fingerprint for one in others if one.template == OVERFLOW} <= overflow_groups()
        assert len({(one.cause, one.fingerprint) for one in others if one.template == OVERFLOW}) == len(
            {one.cause for one in others if one.template == OVERFLOW}
        )

    def test_the_cause_is_the_one_that_the_rules_say_all_the_same(self) -> None:
        cases = self.cases() | {Case("HTTP 429 for gizmo"): 1, Case("connection refused by gizmo"): 1}
        found = explain_cases(cases, told_apart=8)
        assert found[Case("HTTP 429 for gizmo")].cause is Cause.THROTTLED
        assert found[Case("connection refused by gizmo")].cause is Cause.TRANSIENT_NETWORK
        assert found[Case("connection refused by gizmo")].template == OVERFLOW

    def test_what_fits_a_group_that_is_known_or_was_just_found_belongs_to_it(self) -> None:
        cases = self.cases() | {Case("no account of zebra in this shop"): 1}
        gizmo = Case("the <*> of gizmo is ajar")
        known = [KnownGroup("0" * 16, explain_cases({gizmo: 1})[gizmo].cause, gizmo.masked)]
        found = explain_cases(cases | {gizmo: 1}, known=known, told_apart=8)
        assert found[Case("no account of zebra in this shop")].template == "no account of <*> in this shop"
        assert found[gizmo].fingerprint == "0" * 16

    def test_what_says_nothing_is_told_apart_from_what_says_too_much(self) -> None:
        found = explain_cases(self.cases() | {Case("", "expired"): 1, Case("", "", "lease"): 1}, told_apart=8)
        assert found[Case("", "", "lease")].template == "no failure text, time per delivery reaches the lease"
        assert found[Case("", "expired")].template == "no failure text, broker reason expired"

    def test_a_lease_that_may_have_run_out_is_not_said_to_have(self) -> None:
        found = explain_cases({Case("", "", "lease?"): 1, Case("", "", "lease"): 1})
        assert found[Case("", "", "lease")].cause is Cause.LEASE_EXPIRED
        assert found[Case("", "", "lease?")].cause is Cause.MAX_DELIVERIES, "through a canary"
        assert found[Case("", "", "lease?")].confidence < found[Case("", "", "lease")].confidence

    def test_the_order_does_not_matter(self) -> None:
        cases = self.cases()
        assert explain_cases(cases, told_apart=8) == explain_cases(dict(reversed(cases.items())), told_apart=8)

    def test_up_to_the_limit_each_has_a_group_of_its_own(self) -> None:
        cases = self.cases()
        assert explain_cases(cases) == explain_cases(cases, told_apart=len(cases))
        assert not {one.template for one in explain_cases(cases).values()} & {OVERFLOW}


PAIRS = [(one, other) for one in TestTooManyToTellApart.WORDS[:4] for other in TestTooManyToTellApart.WORDS[5:8]]


ORACLE = "ORA-00001: unique constraint (SHOP.UQ_SHIPMENT_NO) violated"


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_told_with_a_failure_does_not_make_it_two(order: int) -> None:
    texts = [ORACLE, f"{ORACLE}\nORA-06508: PL/SQL: could not find program unit\nORA-06512: at line 7"]
    alone = [next(iter(explain([{"text": text}]))) for text in texts]
    assert alone[0]["template"] == alone[1]["template"]
    assert alone[0]["cause"] != alone[1]["cause"], "or else this shows nothing"
    together = list(explain([{"text": text} for text in texts[::order]]))
    assert len({answer["group"] for answer in together}) == 1
    assert {answer["cause"] for answer in together} == {"duplicate"}


def test_the_group_that_is_known_decides_what_its_failure_is_whatever_is_told_with_it() -> None:
    alone = next(iter(explain([{"text": ORACLE}])))
    known = [KnownGroup(alone["group"], alone["cause"], alone["template"])]
    later = next(
        iter(explain([{"text": f"{ORACLE}\nORA-06508: PL/SQL: could not find program unit"}], known_groups=known))
    )
    assert (later["group"], later["cause"]) == (alone["group"], "duplicate")


def test_what_would_be_sent_again_and_what_would_not_stay_two() -> None:
    said = ["503 Service Unavailable", "connection refused", "permission denied for table x"]
    answers = list(explain([{"text": f"parcel not booked\nDETAIL: {detail}"} for detail in said]))
    assert {answer["template"] for answer in answers} == {"parcel not booked"}
    assert [answer["verdict"] in ("requeue", "delay") for answer in answers] == [True, True, False]
    assert len({answer["group"] for answer in answers}) == 2


class Silent(Model):
    """A model that has learned nothing."""

    def __init__(self) -> None:
        pass

    def find(self, text: str) -> None:
        return None


def test_what_nothing_is_known_of_is_what_its_failure_is_where_a_person_is_asked() -> None:
    texts = [{"text": "HutException: Krempe 7 nicht vorhanden im Regal"}, {"text": "Krempe 8 nicht vorhanden im Regal"}]
    assert [answer["cause"] for answer in explain(texts[1:], model=Silent())] == ["unclassified"]
    known, unknown = explain(texts, model=Silent())
    assert known["group"] == unknown["group"]
    assert (unknown["cause"], unknown["verdict"]) == ("application_bug", "escalate")


@pytest.mark.parametrize("value", ["rate limit", "too many requests", "deadlock detected"])
@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("Hat '{}' not found", "missing_data"),
        ("permission denied for hat '{}' of shop", "auth_failure"),
        ("Field brim of hat '{}' violates not-null constraint", "malformed_payload"),
        ('duplicate key value "{}" violates unique constraint "hats_key"', "duplicate"),
    ],
)
def test_nothing_is_sent_again_for_what_a_value_says(text: str, cause: str, value: str) -> None:
    (answer,) = explain([{"text": text.format(value)}])
    assert answer["cause"] == cause


def test_what_is_quoted_may_be_the_failure() -> None:
    (answer,) = explain([{"text": "Server error '503 Service Unavailable' for url 'https://hats.example/hats'"}])
    assert answer["cause"] == "dependency_unavailable"


@pytest.mark.parametrize("name", ["text", "error", "x-exception-message"])
def test_what_stands_escaped_in_json_is_told_apart_and_found(name: str) -> None:
    """Were it taken for a path, all that says it so were one failure."""
    said = [
        "Guthaben f\u00fcr Hut aufgebraucht",
        "\u5e3d\u5b50\u4e0d\u5b58\u5728",
        "Zeit\u00fcberschreitung der Verbindung",
    ]
    tellings = [json.dumps({"detail": one}, ensure_ascii=escaped) for one in said for escaped in (True, False)]
    lines = [{"text": one} if name == "text" else {"attributes": {name: one}} for one in tellings]
    found = list(explain(lines))
    assert [one["group"] for one in found[::2]] == [one["group"] for one in found[1::2]]
    assert len({one["group"] for one in found}) == len(said)
    assert [one["cause"] for one in found[::2]] == [one["cause"] for one in found[1::2]]
    assert found[-1]["cause"] == Cause.TRANSIENT_NETWORK
    assert "\u5e3d\u5b50\u4e0d\u5b58\u5728" in found[2]["template"]


@pytest.mark.parametrize(
    "text",
    [
        "Can\u2019t connect to MySQL server on 'hats'",
        "Zeitu\u0308berschreitung beim Verbinden",
        "Connection\u00a0reset\u00a0by\u00a0peer",
        "\uff23\uff4f\uff4e\uff4e\uff45\uff43\uff54\uff49\uff4f\uff4e \uff52\uff45\uff53\uff45\uff54",
        "De\u0301lai d\u2019attente de la connexion de\u0301passe\u0301",
        "\uff80\uff72\uff91\uff71\uff73\uff84\u304c\u767a\u751f\u3057\u307e\u3057\u305f",
    ],
)
def test_however_letters_are_written_the_cause_is_found(text: str) -> None:
    (answer,) = explain([{"text": text}])
    assert answer["cause"] == Cause.TRANSIENT_NETWORK, answer["rule"]
