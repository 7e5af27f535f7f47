"""Run `python -m tests.spark.copying_job SERVERS FROM TO CHECKPOINT`: a query that copies one topic into another."""

import sys
from typing import Final

from tests.spark.sessions import new_session

ENTRIES_PER_BATCH: Final = 3


def main(servers: str, source: str, target: str, checkpoint: str) -> None:
    spark = new_session("keelmq-copy")
    reader = spark.readStream.format("keelmq").option("servers", servers).option("subscribe", source)
    rows = reader.option("maxOffsetsPerTrigger", str(ENTRIES_PER_BATCH)).load().select("value", "key", "tag")
    writer = rows.writeStream.format("keelmq").option("servers", servers).option("topic", target)
    query = writer.option("batchMessages", "5").option("checkpointLocation", checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
