"""A Pulsar that sees no bookie for a moment is asked again; whatever else it says is told."""

import urllib.error

import pytest
from tests.answering import Answer, answering

from redrive.dev.demo.pulsar_admin import administer

REFUSAL = "ManagedLedgerException: Not enough non-faulty bookies available error code: -6"
NO_BOOKIE, CONFLICT = Answer(500, line=REFUSAL), Answer(409)


def ask(url: str, method: str = "PUT") -> object:
    return administer(url, "secret", method, "persistent/public/default/orders", sleep=lambda _: None)


@pytest.mark.parametrize("refusal", [NO_BOOKIE, Answer(500, REFUSAL)], ids=["in the status line", "in the answer"])
def test_a_topic_is_made_once_a_bookie_is_seen(refusal: Answer) -> None:
    with answering([refusal, refusal, Answer(204)]) as (url, asked):
        assert ask(url) is None
    assert asked == ["PUT /admin/v2/persistent/public/default/orders Bearer secret"] * 3


def test_what_was_done_though_it_was_refused_is_done() -> None:
    with answering([NO_BOOKIE, CONFLICT]) as (url, _):
        assert ask(url) is None


@pytest.mark.parametrize(
    ("method", "answers"),
    [("PUT", [CONFLICT]), ("GET", [NO_BOOKIE, CONFLICT]), ("PUT", [Answer(500, "NullPointerException")])],
    ids=["there before", "nothing was to be done", "another failure"],
)
def test_any_other_answer_is_told(method: str, answers: list[Answer]) -> None:
    with answering(answers) as (url, asked), pytest.raises(urllib.error.HTTPError) as told:
        ask(url, method)
    assert told.value.code == answers[-1].status
    assert len(asked) == len(answers)


def test_answers_are_read() -> None:
    with answering([Answer(200, '{"partitions": 3}'), Answer(200, "ok")]) as (url, _):
        assert ask(url, "GET") == {"partitions": 3}
        assert administer(url, "secret", "GET", "brokers/health", text=True) == "ok"
