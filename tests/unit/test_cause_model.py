"""The learned model: asked only where rules say little, sure of what it says, and the same every time."""

import numpy as np
import pytest

from redrive.classification import learned_model
from redrive.classification.causes import Cause, default_verdict
from redrive.classification.explain import explain
from redrive.classification.learned_model import CAUSES, Example, Model, measure, train

WORDS = {
    Cause.MISSING_DATA: ["parcel vanished", "meter not on file", "tenant gone from the list"],
    Cause.TRANSIENT_NETWORK: ["line dropped early", "remote side hung up", "nobody picked up the socket"],
    Cause.MALFORMED_PAYLOAD: ["weight blank", "date upside down", "columns too few"],
}


def examples(*, times: int = 6) -> list[Example]:
    return [
        Example(f"{text} {'again ' * n}", frozenset({cause}))
        for n in range(times)
        for cause, texts in WORDS.items()
        for text in texts
    ]


@pytest.fixture(scope="module")
def small() -> Model:
    return train(examples())


def test_it_finds_what_it_was_shown_and_says_by_which_words(small: Model) -> None:
    finding = small.find("the parcel has vanished")
    assert finding is not None
    assert finding.cause is Cause.MISSING_DATA
    assert finding.rule.startswith("learned: ")
    assert {"parcel", "vanished"} & set(finding.rule.removeprefix("learned: ").split(", "))
    assert learned_model.ENOUGH <= finding.confidence <= 1


def test_it_abstains_where_no_word_tells_it_anything(small: Model) -> None:
    shipped = learned_model.shipped()
    assert shipped is not None
    assert shipped.find("wibble wobble") is None
    assert small.find("") is None


def test_probabilities_are_probabilities(small: Model) -> None:
    likely = small.probabilities("line dropped")
    assert set(likely) == set(CAUSES)
    assert sum(likely.values()) == pytest.approx(1, abs=1e-4)


def test_in_doubt_it_chooses_what_is_not_sent_by_itself() -> None:
    text = "nothing came back from the counter"
    mixed = [*[Cause.TRANSIENT_NETWORK] * 9, *[Cause.MISSING_DATA] * 7]
    model = train([*examples(), *(Example(text, frozenset({cause})) for cause in mixed)])
    likely = model.probabilities(text)
    finding = model.find(text)
    assert likely[Cause.TRANSIENT_NETWORK] > likely[Cause.MISSING_DATA] > learned_model.DOUBT
    assert finding is not None
    assert finding.cause is Cause.MISSING_DATA


def test_the_same_texts_give_the_same_model() -> None:
    assert train(examples()).to_bytes() == train(examples()).to_bytes()


def test_a_file_answers_like_the_model_in_it(small: Model) -> None:
    read = Model.from_bytes(small.to_bytes())
    for text in ("parcel vanished", "line dropped", "weight blank"):
        assert read.find(text) is not None
        assert read.find(text).cause is small.find(text).cause  # type: ignore[union-attr]


def test_a_file_that_is_no_model_is_refused() -> None:
    with pytest.raises(ValueError, match="model"):
        Model.from_bytes(b"PK\x03\x04 nothing of the kind")


def test_outcomes_teach_without_naming_one_cause() -> None:
    unsure = frozenset({Cause.TRANSIENT_NETWORK, Cause.DEPENDENCY_UNAVAILABLE})
    seen = Example("zorp gateway blinked", unsure)
    before = train(examples()).probabilities("zorp gateway blinked")
    after = train([*examples(), *[seen] * 5]).probabilities("zorp gateway blinked")
    assert sum(after[cause] for cause in unsure) > sum(before[cause] for cause in unsure)


def test_the_shipped_model_knows_the_shipped_texts() -> None:
    shipped = learned_model.shipped()
    assert shipped is not None
    some = list(learned_model.shipped_texts())[::20]
    result = measure(shipped, some)
    assert result["right"] >= 0.9 * result["texts"], "run: python -m redrive.classification.learned_model"
    assert result["unsafe"] <= 0.02 * result["texts"]


def test_rules_come_before_the_model() -> None:
    always = Model(
        np.zeros((1 << 15, len(CAUSES)), np.float32),
        np.ones(1 << 15, np.float32),
        np.eye(len(CAUSES), dtype=np.float32)[CAUSES.index(Cause.OVERSIZED)] * 20,
        1.0,
    )
    by_rule, by_model = explain(
        [{"text": "connection refused"}, {"text": "the gentleman prefers not to"}], model=always
    )
    assert by_rule["cause"] == "transient_network"
    # A model that answers from its bias alone has no words to show, and so no say.
    assert by_model["cause"] == "unclassified"


def test_what_no_rule_knows_is_answered_with_words() -> None:
    (answer,) = explain([{"text": "the delivery note is not on file any more"}])
    assert answer["cause"] == "missing_data"
    assert answer["rule"].startswith("learned: ")
    assert answer["verdict"] == default_verdict(Cause.MISSING_DATA).value
