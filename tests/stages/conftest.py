"""What whole loops are for the inner one: about a second each, so that `make check` takes a few for all."""

import pytest

IN_CHECK = {"test_memory_loop", "test_journeys", "test_drain", "test_order", "test_resolve"}


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.stem not in IN_CHECK:
        item.add_marker(pytest.mark.slow)
