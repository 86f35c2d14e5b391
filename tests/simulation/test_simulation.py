"""Fixed seeds of the simulation, and that a seed is a story."""

import pytest

from tests.simulation import story
from tests.simulation.__main__ import play_all

SEEDS = 60
WORKERS = 2


@pytest.mark.timeout(600)
def test_fixed_seeds_are_green() -> None:
    failures = [told.line() for told in play_all(range(SEEDS), workers=WORKERS) if told.broken]
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("seed", [3, 17, 21])
def test_a_seed_replays_exactly(seed: int) -> None:
    assert story.play(seed).log == story.play(seed).log
