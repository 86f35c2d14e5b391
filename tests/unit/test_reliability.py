"""The reliability table of ``make bench``: whether answers are as often right as they are sure."""

import pytest
from benchmarks.accuracy import calibration_error, reliability


def test_each_range_tells_how_sure_its_answers_were_and_how_many_were_right() -> None:
    believed = [(0.5, True), (0.5, False), (0.99, True), (0.97, True), (1.0, True)]
    low, high = reliability(believed, edges=(0.0, 0.9, 1.0))
    assert (low.answers, low.confidence, low.right) == (2, 0.5, 0.5)
    assert (high.answers, high.right) == (3, 1.0)
    assert high.confidence == pytest.approx(0.98667, abs=1e-4)
    assert low.least < 0.5 < low.most
    assert high.least < high.confidence


def test_who_is_too_sure_is_off_by_as_much() -> None:
    bins = reliability([(0.9, number < 5) for number in range(10)])
    assert calibration_error(bins) == pytest.approx(0.4)


def test_without_answers_there_is_nothing_to_be_off_by() -> None:
    assert reliability([]) == []
    assert calibration_error([]) == 0
