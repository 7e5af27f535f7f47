"""Fixtures: one Spark session for all tests of a worker, and a cluster per module."""

import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import keelmq_spark
from keelmq_spark.java import use_java
from tests.e2e.cluster_process import ClusterProcess


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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """Return three nodes that are ready."""
    with ClusterProcess(tmp_path_factory.mktemp("cluster"), nodes=3) as running:
        yield running
