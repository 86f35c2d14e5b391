"""The goals of causes and groups, held where the labelled data is: ``$REDRIVE_DATA``."""

import pytest
from benchmarks import accuracy, grouping

pytestmark = pytest.mark.outside_data


def test_causes_are_right_and_safe() -> None:
    measured = accuracy.measure()
    if measured is None:
        pytest.skip("no labelled failure texts: set REDRIVE_DATA")
    assert measured.good, measured._replace(pairs=[])


def test_groups_are_those_that_people_made() -> None:
    measured = grouping.measure()
    if not measured:
        pytest.skip("no labelled logs: set REDRIVE_DATA")
    ga, fga = grouping.means(measured)
    assert ga >= grouping.GA
    assert fga >= grouping.FGA


def test_failures_are_grouped_as_people_would() -> None:
    measured = grouping.failures()
    if not measured:
        pytest.skip("no families of failures: set REDRIVE_DATA")
    assert measured["all"].good, measured["all"]
