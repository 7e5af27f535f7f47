"""Fixtures: one Spark session for all tests of a worker, and a cluster per module."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.e2e.fixtures import shared_cluster
from tests.spark.sessions import new_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = new_session("keelmq-tests")
    yield session
    session.stop()


cluster = shared_cluster(nodes=3)
