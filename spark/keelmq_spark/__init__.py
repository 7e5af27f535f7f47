"""Spark data source and lineage over the KeelMQ log (docs/lineage.md)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Register `format("keelmq")` in the session."""
    from keelmq_spark.source import KeelMQDataSource

    spark.dataSource.register(KeelMQDataSource)
