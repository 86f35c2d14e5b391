"""Failures that look alike: what was told apart once stays so."""

import pytest
from benchmarks import lookalikes

#: Sets that are merged or split, of each file: less is better, more is a step back.
WRONG = {
    "application_code": (9, 40),
    "mainstream_stacks": (12, 32),
    "named_parts": (2, 1),
    "odd_software": (48, 16),
}


@pytest.fixture(scope="module")
def measured() -> dict[str, lookalikes.Measured]:
    return {file.name: file for file in lookalikes.measure()}


@pytest.mark.parametrize("name", WRONG)
def test_no_more_are_wrong_than_were(measured: dict[str, lookalikes.Measured], name: str) -> None:
    file = measured[name]
    merged, split = WRONG[name]
    assert len(file.merged) <= merged, [each["id"] for each in file.merged]
    assert len(file.split) <= split, [each["id"] for each in file.split]


def test_every_file_is_held(measured: dict[str, lookalikes.Measured]) -> None:
    assert measured.keys() == WRONG.keys()
