"""Run `python -m tests.spark.copying_job SERVERS FROM TO CHECKPOINT`: a query that copies one topic into another."""

import os
import sys
from typing import Final

from pyspark.sql import SparkSession

import keelmq_spark
from keelmq_spark.java import use_java

ENTRIES_PER_BATCH: Final = 3


def main(servers: str, source: str, target: str, checkpoint: str) -> None:
    use_java()
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    builder: SparkSession.Builder = SparkSession.builder.master("local[2]").appName("keelmq-copy")
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    keelmq_spark.register(spark)
    reader = spark.readStream.format("keelmq").option("servers", servers).option("subscribe", source)
    rows = reader.option("maxOffsetsPerTrigger", str(ENTRIES_PER_BATCH)).load().select("value", "key", "tag")
    writer = rows.writeStream.format("keelmq").option("servers", servers).option("topic", target)
    query = writer.option("batchMessages", "5").option("checkpointLocation", checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
