"""`redrive learn`: what a ledger teaches, and that a model is kept only where it answers better."""

import json
from pathlib import Path

import pytest

from redrive.classification import learned_model
from redrive.classification.causes import AUTOMATIC, NEED_PERSON, Cause
from redrive.classification.learned_model import LEARNED, of_site
from redrive.ledger.account import learning
from redrive.ledger.account.learning import Lesson
from redrive.ledger.drain import groups
from redrive.ledger.drain.groups import Group
from redrive.stages import learn, pipeline
from tests.ledger.planting import Plant
from tests.ledger.test_escalations import person
from tests.ledger.test_restore import restore
from tests.stages.test_restored_ledger import adopt
from tests.workshop import Workshop


def group(plant: Plant, template: str) -> int:
    one = Group(template, "unclassified", template, None)
    return groups.ensure_groups(plant.ledger, plant.lease, [one], plant.now)[template]


def attempts(plant: Plant, group_id: int, outcome: str, count: int = 6, mode: str = "canary") -> None:
    (first,) = plant.rows("select coalesce(max(message_id), 0) from redelivery_attempts")[0]
    for message_id in range(first + 1, first + 1 + count):
        plant.change(
            "insert into redelivery_attempts (message_id, attempt, route, group_id, slice_id, mode, destination,"
            " claimed_at, sent_at, outcome, outcome_at, return_kind)"
            " values (:id, 1, 'orders', :group_id, 1, :mode, 'orders', :now, :now, :outcome, :now, :kind)",
            id=message_id,
            group_id=group_id,
            mode=mode,
            now=plant.now,
            outcome=outcome,
            kind="dead_letter" if outcome == "returned" else None,
        )


def test_the_ledger_tells_what_stayed_away_and_what_came_back(plant: Plant) -> None:
    passing, permanent = group(plant, "zorp blinked"), group(plant, "glim refused")
    attempts(plant, passing, "presumed", 3)
    attempts(plant, passing, "confirmed", 2)
    attempts(plant, permanent, "returned", 4)
    attempts(plant, permanent, "confirmed", 9, mode="release")
    group(plant, "of this one nothing is known")
    with plant.ledger.read() as connection:
        found = {lesson.template: lesson for lesson in learning.lessons(connection)}
    assert found == {
        "zorp blinked": Lesson("zorp blinked", 5, 0, 0, 0),
        "glim refused": Lesson("glim refused", 0, 4, 0, 0),
    }


def test_what_people_did_not_say_about_a_failure_teaches_nothing(workshop: Workshop) -> None:
    """A restore closes what it puts back; a second copy is discarded because there is a first one, and what may have
    been sent already because it was."""
    workshop.die(*"abcdef", error="zorp blinked")
    workshop.cycle()
    person(workshop, "update escalated_messages set decision = 'discard', decided_by = 'ana' where payload = 'a'")
    person(
        workshop,
        "update escalated_messages set decision = 'discard', decided_by = 'ana', question = 'second_copy'"
        " where payload = 'b'",
    )
    workshop.review()
    assert restore(workshop, limit=3)["restored"] == 3
    assert adopt(workshop, restored=True) == {"doubted": 1}
    person(workshop, "update escalated_messages set decision = 'discard', decided_by = 'ana' where status = 'reopened'")
    assert workshop.review()["discarded"] == 1
    assert workshop.query("select decision, count(*) from escalated_messages group by decision") == [("discard", 6)]
    with workshop.ledger.read() as connection:
        assert [lesson.discarded for lesson in learning.lessons(connection)] == [1]


@pytest.mark.parametrize(
    ("lesson", "some_of"),
    [
        (Lesson("t", 9, 0, 0, 0), AUTOMATIC),
        (Lesson("t", 0, 9, 0, 0), NEED_PERSON),
        (Lesson("t", 0, 0, 9, 0), {Cause.MALFORMED_PAYLOAD}),
        (Lesson("t", 0, 0, 0, 9), NEED_PERSON),
    ],
)
def test_outcomes_and_decisions_tell_the_kind_of_cause(lesson: Lesson, some_of: set[Cause]) -> None:
    assert some_of <= learn.causes_of(lesson)


@pytest.mark.parametrize(
    "lesson",
    [Lesson("t", 2, 0, 0, 0), Lesson("t", 5, 5, 0, 0), Lesson("t", 9, 0, 0, 9), Lesson("t", 0, 0, 5, 5)],
    ids=["too few", "undecided", "people disagree with the broker", "people disagree"],
)
def test_what_does_not_agree_teaches_nothing(lesson: Lesson) -> None:
    assert learn.causes_of(lesson) == frozenset()


def test_what_the_rules_know_is_not_learned() -> None:
    known, unknown = Lesson("connection refused", 9, 0, 0, 0), Lesson("zorp blinked", 9, 0, 0, 0)
    assert [example.text for example in learn.examples([known, unknown])] == ["zorp blinked"]


def test_a_ledger_with_little_to_teach_changes_nothing(plant: Plant, tmp_path: Path) -> None:
    attempts(plant, group(plant, "zorp blinked"), "presumed")
    assert learn.learn(plant.ledger, tmp_path) == {"groups": 1, "kept": False, "needed": learn.ENOUGH_GROUPS}
    assert of_site(tmp_path) is None


def _of_another_version(monkeypatch: pytest.MonkeyPatch) -> bytes:
    model = learned_model.shipped()
    assert model is not None
    with monkeypatch.context() as older:
        older.setattr(learned_model, "CAUSES", learned_model.CAUSES[1:])
        return model.to_bytes()


@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("kind", ["of another version", "half written", "empty", "no model"])
def test_a_model_that_can_not_be_read_keeps_nothing_from_being_classified(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    older = _of_another_version(monkeypatch)
    content = {"of another version": older, "half written": older[: len(older) // 2], "empty": b"", "no model": b"?"}
    monkeypatch.setenv("REDRIVE_HOME", str(workshop.folder))
    path = workshop.folder / LEARNED
    path.parent.mkdir(parents=True)
    path.write_bytes(content[kind])
    workshop.die("a")
    run = workshop.begin()
    workshop.drain(run)
    manifest = pipeline.prepare_classification(workshop.settings, run, **workshop.options())
    assert manifest is not None
    assert "model" not in json.loads(Path(manifest).read_text())
    assert f"{path} is left out" in caplog.text
    found = learn.learn(workshop.ledger, workshop.folder)
    assert found == {"groups": 0, "kept": False, "needed": learn.ENOUGH_GROUPS, "removed": True}
    assert not path.exists()
    assert "removed" not in learn.learn(workshop.ledger, workshop.folder)


@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)  # what a ledger teaches is read above, from both
def test_a_model_that_answers_better_is_kept(plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = list(learn.shipped_texts())[::24]
    monkeypatch.setattr(learned_model, "_EPOCHS", 8)  # enough to learn a few words
    monkeypatch.setattr(learn, "shipped_texts", lambda: iter(texts))
    monkeypatch.setattr(learn, "shipped", lambda: None)
    # Of different lengths: what differs in a word of one place only is one group.
    for where in ("north", "old south", "far old east", "west or north", "upper east and west", "very low and far off"):
        attempts(plant, group(plant, f"zorpulator blinkered in the {where} hall"), "presumed")
        attempts(plant, group(plant, f"glimmerite flanged beyond {where} gantry"), "returned")
    found = learn.learn(plant.ledger, tmp_path)
    assert found["groups"] >= learn.ENOUGH_GROUPS
    assert found["kept"] is ((tmp_path / LEARNED).exists())
    assert found["kept"], found
    model = of_site(tmp_path)
    assert model is not None
    likely = model.probabilities("zorpulator blinkered in the other hall")
    assert sum(likely[cause] for cause in AUTOMATIC) > 0.5
