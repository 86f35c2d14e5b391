"""Learn: train the model of causes from our texts and from what the ledger has seen, and keep it if it helps.

A group of which enough sends by the machine stayed away had a cause that passes; one that kept returning, or
whose messages people corrected or discarded, had not. Only groups on which the rules have little to say are
learned from: elsewhere the model is not asked.
"""

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from redrive.classification.causes import AUTOMATIC, NEED_PERSON, Cause
from redrive.classification.learned_model import (
    LEARNED,
    Example,
    Model,
    measure,
    of_site,
    shipped,
    shipped_texts,
    train,
)
from redrive.classification.rules import find
from redrive.ledger.account import learning
from redrive.ledger.account.learning import Lesson
from redrive.ledger.engine import Ledger

#: Outcomes that a group needs before they teach anything, and the share of them that must agree.
ENOUGH_OUTCOMES: Final = 5
AGREEING: Final = 0.9
#: A group at the user's site says more about that site than a text of ours.
WEIGHT: Final = 3.0
#: Groups below which nothing is held back to measure with, and so nothing is learned.
ENOUGH_GROUPS: Final = 10

#: What people correct in a body.
_EDITED: Final = frozenset({Cause.MALFORMED_PAYLOAD, Cause.MISSING_DATA, Cause.OVERSIZED})


def causes_of(lesson: Lesson) -> frozenset[Cause]:
    """The causes that what is known of a group leaves possible; empty where it teaches nothing."""
    decided = lesson.edited + lesson.discarded
    sent = lesson.stayed_away + lesson.returned
    if sent >= ENOUGH_OUTCOMES and lesson.stayed_away >= AGREEING * sent:
        return frozenset() if decided else AUTOMATIC
    if lesson.edited >= ENOUGH_OUTCOMES and lesson.edited >= AGREEING * decided:
        return _EDITED
    if lesson.discarded >= ENOUGH_OUTCOMES and lesson.discarded >= AGREEING * decided:
        return NEED_PERSON
    if sent >= ENOUGH_OUTCOMES and lesson.returned >= AGREEING * sent:
        return NEED_PERSON
    return frozenset()


def examples(lessons: Sequence[Lesson]) -> list[Example]:
    """What there is to learn: groups that teach something and of which the rules know little."""
    found = []
    for lesson in lessons:
        causes = causes_of(lesson)
        finding = find(lesson.template)
        if causes and (finding is None or finding.weak):
            found.append(Example(lesson.template, causes, WEIGHT))
    return found


def learn(ledger: Ledger, home: Path, *, seed: int = 7) -> dict[str, Any]:
    """Train with half of the site's groups, measure on the other half, and write the model below ``home`` if it helps.

    The answer has ``groups`` (that teach something), ``kept`` (whether a model was written), ``before`` and
    ``after``: texts, answers, right and unsafe ones on the half that was held back. The model that is kept is then
    trained with all of them. Without enough groups nothing is trained. ``removed``, and true, where the file was not
    one that this version can read: nothing used it any more.
    """
    removed = {"removed": True} if _remove_unreadable(home) else {}
    with ledger.read() as connection:
        site = examples(learning.lessons(connection))
    if len(site) < ENOUGH_GROUPS:
        return {"groups": len(site), "kept": False, "needed": ENOUGH_GROUPS, **removed}
    random.Random(seed).shuffle(site)  # noqa: S311 - which half is held back is no secret
    half = len(site) // 2
    ours = list(shipped_texts())
    before = measure(shipped() or train(ours), site[half:])
    after = measure(train([*ours, *site[:half]]), site[half:])
    kept = after["right"] > before["right"] and after["unsafe"] <= before["unsafe"]
    if kept:
        _write(train([*ours, *site]), home / LEARNED)
    return {"groups": len(site), "kept": kept, "before": before, "after": after, **removed}


def _remove_unreadable(home: Path) -> bool:
    try:
        of_site(home)
    except ValueError:
        (home / LEARNED).unlink(missing_ok=True)
        return True
    return False


def _write(model: Model, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    with unfinished.open("wb") as file:
        file.write(model.to_bytes())
        file.flush()
        os.fsync(file.fileno())  # else a crash may leave an empty file at its place
    unfinished.replace(path)
