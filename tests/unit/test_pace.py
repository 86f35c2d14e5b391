"""A slow hour excuses what it makes slow, and no more."""

import pace
import pytest


@pytest.mark.parametrize(
    ("took", "additions", "is_in_time"),
    [
        (0.24, 0.06, True),
        (0.26, 0.06, False),
        (0.24, 0.03, True),
        (0.26, 0.03, False),
        (0.49, 0.12, True),
        (0.51, 0.12, False),
    ],
)
def test_a_bound_grows_with_what_additions_take(
    took: float, additions: float, is_in_time: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "additions", lambda count, clock: additions)
    assert pace.in_time(took, 0.25) is is_in_time
