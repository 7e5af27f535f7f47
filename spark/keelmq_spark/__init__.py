"""Spark data source and lineage over the KeelMQ log (docs/lineage.md)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Register `format("keelmq")` in the session, and have Spark hand its filters to sources in Python."""
    from keelmq_spark.source import KeelMQDataSource

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(KeelMQDataSource)
