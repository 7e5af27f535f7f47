"""Watches the memory of each module."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.budget import MEMORY_BYTES_MAX, in_memory


@settings(max_examples=3, database=None)
@given(st.text(), st.from_regex("[a-z]"))
def make_tables(text: str, match: str) -> None:
    """Make Hypothesis' own tables of all characters: on a fresh clone they take some 200 MiB once."""


@pytest.fixture(autouse=True, scope="module")
def memory_stays_small() -> Iterator[None]:
    make_tables()
    with in_memory(MEMORY_BYTES_MAX):
        yield
