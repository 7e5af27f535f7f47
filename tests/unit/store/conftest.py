from collections.abc import Iterator
from pathlib import Path

import pytest

from store.index.index import Index
from tests.unit.store.replica import Replica


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    """Return a fresh replica, closed after the test."""
    opened = Replica(tmp_path / "index")
    yield opened
    opened.close()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """Return an empty index, closed after the test."""
    opened = Index.open(str(tmp_path / "index"))
    yield opened
    opened.close()
