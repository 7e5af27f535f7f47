"""Fixtures: one Spark session for all tests of a worker, and a cluster per module."""

import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import keelmq_spark
from keelmq_spark.java import use_java
from tests.e2e.fixtures import shared_cluster


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return a local session with two tasks at a time, on loopback only, which knows `keelmq`."""
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder: SparkSession.Builder = SparkSession.builder.master("local[2]").appName("keelmq-tests")
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    keelmq_spark.register(session)
    yield session
    session.stop()


cluster = shared_cluster(nodes=3)
