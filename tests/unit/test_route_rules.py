"""A route's own rules: what they find, and that no text can keep them busy."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.hostile_texts import HOSTILE

from redrive.classification import failure_text, route_rules
from redrive.classification.cases import RouteRule
from redrive.classification.causes import Cause
from redrive.classification.explain import explain
from redrive.settings.expressions import MAX_STEPS, check_expression

#: Expressions that keep an engine with backtracking busy, or are as large as they may be; with a text for each.
SLOW = {
    r"^(?:a|aa)+$": "a" * 48 + "b",
    r"(?:[a-z]|[a-z0-9])+=": "a" * 40,
    r"(?:\w|\d)*;": "1" * 40,
    r".*.*.*=": "x" * failure_text.MAX_TEXT,
    r"order .*: .*, .* failed": "order : , " * 800,
    r"(\s*\S+)*$": "a " * 4000 + "\n",
    r"((a+)+)+b": "a" * failure_text.MAX_TEXT,
    r"[ab]*a[ab]{490}c": "ab" * 4096,
    r"(?:a?){490}b": "a" * failure_text.MAX_TEXT,
    r"[ab]{0,240}[bc]{0,240}x": "ab" * 4096,
    r"(?i:.{0,480})c": "äÄ" * 4096,
}


def test_the_first_expression_that_is_found_counts() -> None:
    texts = [
        "SKU A-1 not in catalogue",
        "nothing",
        "",
        "timed out",
        "SKU timed out",
        "nothing",
        "größe 漢字 \U0001f642",
    ]
    expressions = [r"SKU \S+ not", r"(?i)TIMED", r"^$", "漢."]
    assert route_rules.first_matches(texts, expressions) == [1, 0, 3, 2, 2, 0, 4]
    assert route_rules.first_matches(texts, []) == [0] * len(texts)
    assert route_rules.first_matches([], expressions) == []


def test_a_text_may_hold_what_is_no_character() -> None:
    assert route_rules.first_matches(["a\0b", "a\ud800b", "a\0"], [r"a\x00b", r"a\?b"]) == [1, 2, 0]


@pytest.mark.parametrize("expression", SLOW)
def test_no_text_keeps_an_expression_busy(expression: str) -> None:
    """In a process of its own: what runs away in C can't be stopped otherwise."""
    check_expression(expression)
    code = (
        "import sys, time; from redrive.classification.route_rules import first_matches; first_matches(['x'], ['x']);"
        "expression, text = sys.stdin.read().split('\\n\\n', 1); t = time.process_time();"
        "first_matches([text], [expression]); print(time.process_time() - t)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=f"{expression}\n\n{SLOW[expression]}", check=True, capture_output=True,
        text=True, timeout=120, cwd=Path(route_rules.__file__).parents[1],
    )  # fmt: skip
    assert float(done.stdout) < 2


def test_hostile_texts_take_linear_time() -> None:
    texts = [failure_text.cut(text) for text in HOSTILE.values()]
    started = time.process_time()
    route_rules.first_matches(texts, list(SLOW))
    assert time.process_time() - started < 0.5 * len(texts)


def test_what_is_accepted_has_a_bound_of_steps() -> None:
    check_expression(f"(?:a?){{{MAX_STEPS}}}")
    with pytest.raises(ValueError, match=f"{MAX_STEPS + 1} steps"):
        check_expression(f"(?:a?){{{MAX_STEPS + 1}}}")
    with pytest.raises(ValueError, match=f"{2 * MAX_STEPS} steps"):
        check_expression(f"(?:ab{{0,{MAX_STEPS - 1}}}){{2}}")
    with pytest.raises(ValueError, match="steps"):
        check_expression("a" * MAX_STEPS + "b")


def test_explain_groups_and_counts_with_rules_as_without() -> None:
    lines = [{"text": text} for text in ("SKU 1 is odd", "SKU 2 is odd", "SKU 1 is odd", "KeyError: 'sku'", "")]
    found = list(explain(lines, [RouteRule(r"SKU \d+ is", Cause.MISSING_DATA), RouteRule("Key", Cause.OVERSIZED)]))
    assert [one["rule"] for one in found[:4]] == ["route:1", "route:1", "route:1", "route:2"]
    assert [one["text"] for one in found] == [one["text"] for one in lines]
    assert len({one["group"] for one in found[:3]}) == 1
