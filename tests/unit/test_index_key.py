"""What goes into an index is bounded, and says the same wherever it is asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.message import MAX_INDEXED, index_key, index_keys, is_hashed

HASHED = "a~" + "0" * 32


@pytest.mark.parametrize("value", ["", "order-1", "x" * MAX_INDEXED, "\N{SNOWMAN}", "a~b", "tab\t", "a~" + "0" * 31])
def test_what_fits_stays_as_it_is(value: str) -> None:
    assert index_key(value) == value
    assert not is_hashed(value)


@pytest.mark.parametrize(
    "value", ["x" * (MAX_INDEXED + 1), "\N{PILE OF POO}" * 129, "a\0b", "\ud800", HASHED, index_key("x" * 6_000)]
)
def test_what_does_not_fit_is_its_beginning_and_a_hash(value: str) -> None:
    key = index_key(value)
    assert key != value
    assert is_hashed(key)
    assert len(key.encode()) <= MAX_INDEXED
    assert "\0" not in key
    assert key.rpartition("~")[0] == value[:64].replace("\0", "\ufffd").encode("utf-8", "replace").decode()


@given(st.lists(st.text(st.characters(codec=None), max_size=700), min_size=2, max_size=2, unique=True))
def test_two_values_have_two_keys(values: list[str]) -> None:
    one, other = map(index_key, values)
    assert one != other


@given(st.lists(st.none() | st.sampled_from([HASHED, "x" * (MAX_INDEXED + 1), "a\0b", "\ud800", ""]) | st.text()))
def test_keys_of_many_values_are_those_of_each(values: list[str | None]) -> None:
    assert list(index_keys(values)) == [value and index_key(value) for value in values]
