"""Fixed seeds of the simulation, and that a seed is a story."""

import pytest

from tests.simulation import story
from tests.simulation.__main__ import play_all

SEEDS = 200
#: So many at a time, so that several workers share them.
AT_ONCE = 20


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_fixed_seeds_are_green(first: int) -> None:
    failures = [told.line() for told in play_all(range(first, first + AT_ONCE), workers=1) if told.broken]
    assert not failures, "\n".join(failures)


@pytest.mark.server
@pytest.mark.parametrize("seed", range(1000, 1012))
def test_fixed_seeds_are_green_on_postgresql(postgres_database: str, seed: int) -> None:
    told = story.play(seed, database=postgres_database)
    assert not told.broken, told.line()


@pytest.mark.server
def test_keys_of_any_length_are_green_on_postgresql(postgres_database: str) -> None:
    told = story.play(1, theme="long-keys", database=postgres_database)
    assert not told.broken, told.line()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 17, 2))
def test_slices_beside_each_other_are_green(seed: int) -> None:
    told = story.play(seed, theme="beside")
    assert not told.broken, told.line()


@pytest.mark.parametrize("seed", [3, 17, 21])
def test_a_seed_replays_exactly(seed: int) -> None:
    assert story.play(seed).log == story.play(seed).log
