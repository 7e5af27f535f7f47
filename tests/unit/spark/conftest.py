"""Fixtures of tables in an object store: one store per module, and a folder in a new bucket for each test."""

import functools
from collections.abc import Iterator

import pytest

from tests.object_store import StoreProcess
from tests.object_store import server as server
from tests.unit.spark.history import shop
from tests.unit.spark.killed_store_writer import content
from tests.unit.spark.stored import Expected, write


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    with StoreProcess(tmp_path_factory.mktemp("store"), list_page=1_000) as made:
        yield made


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """Return the content of tables in a directory whose job has written the entries before `end`."""

    @functools.cache
    def expected(end: int) -> dict[str, list[str]]:
        directory = tmp_path_factory.mktemp("directory")
        write(directory, shop(), end)
        return content(directory)

    return expected


@pytest.fixture
def place(server: StoreProcess) -> str:
    """Return a folder in a new bucket."""
    return f"s3://{server.new_bucket()}/shop/lineage"
