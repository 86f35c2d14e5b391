"""Which cause a failure text has, and that no text makes finding it slow."""

import re
import time
from pathlib import Path

import pytest
from failure_samples import SAMPLES
from hostile_texts import HOSTILE

from redrive.classification import failure_text, grouping, rules, templates
from redrive.classification.causes import Cause


@pytest.mark.parametrize(("cause", "text"), SAMPLES, ids=[f"{cause}-{n}" for n, (cause, _) in enumerate(SAMPLES)])
def test_the_cause_of(cause: Cause, text: str) -> None:
    finding = rules.find(grouping.mask(failure_text.cut(text)))
    assert finding is not None
    assert finding.cause is cause, finding.rule
    assert 0 < finding.confidence <= 1


def test_every_cause_but_unclassified_has_rules() -> None:
    assert {rule.cause for rule in rules.RULES} == set(Cause) - {Cause.UNCLASSIFIED}


def test_rule_ids_name_one_rule_each() -> None:
    ids = [rule.id for rule in rules.RULES]
    assert sorted(ids) == sorted(set(ids))


def test_literals_can_be_indexed_and_match_lower_case_text() -> None:
    for rule in rules.RULES:
        assert all(len(literal) >= 3 and literal == literal.lower() for literal in rule.literals), rule.id


def test_patterns_keep_to_what_java_and_python_share() -> None:
    for pattern in [rule.pattern for rule in rules.RULES] + [mask.pattern for mask in grouping.MASKS]:
        # No Unicode classes, no word boundaries, no dot, no unbounded repetition of a group.
        assert not re.search(r"\\[bBdDwWsS]", pattern), pattern
        bare = re.sub(r"\\.|\[(?:\\.|[^\]\\])*\]", "x", pattern)
        bare = re.sub(r"(?:[*+?]|\{[0-9,]+\})[+]", "", bare)  # possessive: never gives back, so always linear
        assert "." not in bare, pattern
        assert not re.search(r"[*+]|\{[0-9]+,\}", bare), pattern


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_is_slow(name: str) -> None:
    text = failure_text.cut(HOSTILE[name])
    best = min(_seconds(text) for _ in range(3))
    assert best < 0.05, f"{best * 1000:.0f} ms"


def _seconds(text: str) -> float:
    started = time.process_time()
    masked = grouping.mask(text)
    rules.find.__wrapped__(masked)
    templates.mine({grouping.trace_key(masked): 1})
    return time.process_time() - started


def test_the_root_cause_decides_not_the_wrapper() -> None:
    wrapped = (
        "TimeoutException: handler timed out\nCaused by: java.lang.IllegalStateException\n"
        "Caused by: org.postgresql.util.PSQLException: duplicate key value violates unique constraint"
    )
    finding = rules.find(wrapped)
    assert finding is not None
    assert finding.cause is Cause.DUPLICATE


def test_frames_do_not_decide() -> None:
    finding = rules.find(
        "java.lang.NullPointerException\n\tat com.acme.TimeoutHandler.connectionRefused(TimeoutHandler.java:3)"
    )
    assert finding is not None
    assert finding.cause is Cause.APPLICATION_BUG


def test_words_decide_where_no_rule_does_and_are_not_sure() -> None:
    finding = rules.find("the elapsed socket never shook hands")
    assert finding is not None
    assert (finding.cause, finding.rule) == (Cause.TRANSIENT_NETWORK, "hints.words")
    assert finding.confidence < 0.5


def test_words_that_hint_at_both_choose_what_is_not_sent_by_itself() -> None:
    finding = rules.find("schema and socket both gave in")
    assert finding is not None
    assert finding.cause is Cause.MALFORMED_PAYLOAD


def test_a_short_word_inside_another_says_nothing() -> None:
    finding = rules.find("plugin was installed by ResourceAccess of the flagging team")
    assert finding is None or finding.rule == "hints.words"


def test_text_that_says_nothing_known_is_left_open() -> None:
    assert rules.find("wibble wobble") is None


@pytest.mark.parametrize("reason", sorted(failure_text.BROKER_REASONS))
def test_every_broker_reason_has_a_meaning(reason: str) -> None:
    assert rules.find_reason(reason) is not None
    assert rules.find_reason(reason.upper()) == rules.find_reason(reason)


def test_the_document_is_current() -> None:
    written = (Path(__file__).parents[2] / "docs" / "causes.md").read_text(encoding="utf-8")
    assert written == rules.document(), "run: python -m redrive.classification.rules > docs/causes.md"
