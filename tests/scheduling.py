"""Which tests run on one worker, and in what order, when several workers share them (pytest-xdist).

A file stays together, so that what its fixtures start is started once. Files that use the same big server stay
together too. Files whose tests take minutes each and share nothing are taken apart. What takes longest begins first,
because the run is over when the last worker is.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

#: What stays together, by the beginnings of its files' names; in the order in which it begins.
TOGETHER: dict[str, tuple[str, ...]] = {
    # A whole Airflow takes a gigabyte, and a minute of a core to start.
    "airflow": ("tests/ui/test_in_a_browser", "tests/dags/test_rest_trigger"),
    "rabbitmq": ("tests/stages/test_rabbitmq", "tests/contract/test_rabbitmq"),
    "pulsar": ("tests/stages/test_apache_pulsar", "tests/contract/test_apache_pulsar"),
    "pubsub": ("tests/stages/test_google_pubsub", "tests/contract/test_google_pubsub"),
}
#: Files whose tests can run anywhere, each for itself.
APART = (
    *("tests/faults/", "tests/simulation/test_simulation", "tests/properties/"),
    "tests/unit/test_group_stability",  # which would be the last to end
)
#: Files whose tests tell one story on one Airflow, each going on where the last one ended: never shuffled.
IN_ORDER = TOGETHER["airflow"]
#: What begins next; the rest follows as it was collected.
EARLY = (
    *("tests/dags/test_demo.py", "tests/spark/", "tests/dags/", "tests/contract/"),
    *("tests/faults/", "tests/properties/", "tests/simulation/", "tests/ui/", "tests/stages/", "tests/ledger/"),
)


def unit_of(nodeid: str) -> str:
    """The name of what runs on one worker."""
    for name, files in TOGETHER.items():
        if nodeid.startswith(files):
            return name
    return nodeid if nodeid.startswith(APART) else nodeid.partition("::")[0]


def rank(nodeid: str) -> int:
    """When it begins: the lower the earlier."""
    order: Sequence[str] = [*TOGETHER, *EARLY]
    unit = unit_of(nodeid)
    return next((place for place, name in enumerate(order) if unit.startswith(name)), len(order))


def place(item: pytest.Item) -> tuple[int, int]:
    """The place of what keeps its order; the rest keeps the one that it is in."""
    file = next((number for number, name in enumerate(IN_ORDER) if item.nodeid.startswith(name)), None)
    return (0, 0) if file is None else (file, item.location[1] or 0)


class Schedule(LoadScopeScheduling):
    """Hands out units in the order in which their tests were collected."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # which would begin with what has the most tests

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


class Scheduling:
    """The pytest plugin."""

    @pytest.hookimpl(trylast=True)  # after a plugin that shuffles
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: (rank(item.nodeid), *place(item)))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Schedule:
        return Schedule(config, log)
