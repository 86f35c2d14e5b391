"""The mistakes that are kept fit the code as it is."""

import pytest

from tests.simulation import planting
from tests.simulation.plan import THEMES
from tests.simulation.planting import Mistake


@pytest.mark.parametrize("mistake", planting.mistakes(), ids=lambda one: one.name)
def test_each_mistake_can_still_be_made(mistake: Mistake) -> None:
    """Who changes the code that a mistake is in says here what the mistake is now."""
    texts: dict[str, str] = {}
    for edit in mistake.edits:
        before = texts.get(edit["file"]) or (planting.ROOT / edit["file"]).read_text()
        texts[edit["file"]] = planting.edited(edit, before)
        assert texts[edit["file"]] != before
    for file, text in texts.items():
        if file.endswith(".py"):
            compile(text, file, "exec")
    assert mistake.theme is None or mistake.theme in THEMES


def test_names_tell_mistakes_apart() -> None:
    names = [one.name for one in planting.mistakes()]
    assert len(set(names)) == len(names)
    assert sum(one.kind == "planted" for one in planting.mistakes()) >= 40
