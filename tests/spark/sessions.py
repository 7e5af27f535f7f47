"""Spark sessions of tests: on loopback only, and with a Java that starts soon instead of one that runs for days."""

import os
import sys
from typing import Final

from pyspark.sql import SparkSession

import keelmq_spark
from keelmq_spark.java import use_java

SETTINGS: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # The optimising compiler costs more than it gains within minutes, and threads of the collector disturb brokers.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def new_session(name: str) -> SparkSession:
    """Return a local session with two tasks at a time, which knows `keelmq`."""
    use_java()
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    builder: SparkSession.Builder = SparkSession.builder.master("local[2]").appName(name)
    for setting, value in SETTINGS.items():
        builder = builder.config(setting, value)
    session = builder.getOrCreate()
    keelmq_spark.register(session)
    return session
