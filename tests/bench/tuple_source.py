"""The data source as it would be written without Arrow, with a tuple for every row; a baseline for the real one."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from keelmq_spark.options import SourceOptions
from keelmq_spark.source import KeelMQStreamReader, LogRange, open_log
from keelmq_spark.views.decode import others_of, trace_id_of
from keelmq_spark.views.events import spark_schema


class TupleDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "keelmq-tuples"

    def schema(self) -> StructType:
        return spark_schema()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return TupleReader(SourceOptions.parse(self.options))


class TupleReader(KeelMQStreamReader):
    """Plans like the real reader; only the tasks' work differs."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, LogRange)
        with open_log(self._options) as log:
            for page in log.pages(partition.start, partition.end):
                for entry in page.entries():
                    ts = datetime.fromtimestamp(entry.timestamp_ms / 1000, UTC)
                    row = entry.first_row
                    for event in entry.events:
                        of = event.messages
                        ids = [event.message_id] if of is None else of.ids()
                        messages = [None] if of is None else of.decode()
                        for place, (message_id, message) in enumerate(zip(ids, messages, strict=True)):
                            properties = {} if message is None else message.properties
                            yield (
                                f"0:{entry.index}:{row}",
                                ts,
                                event.type,
                                message_id,
                                event.transaction_id,
                                event.topic,
                                event.queue,
                                None if event.offset is None else event.offset + place,
                                event.offset_end,
                                event.group or properties.get("producer_group"),
                                event.client_id,
                                event.attempt,
                                trace_id_of(properties.get("traceparent")),
                                properties.get("causation_id"),
                                None if message is None or not message.keys else " ".join(message.keys),
                                entry.term,
                                entry.index,
                                None if message is None else len(message.body),
                                None if message is None else message.tag,
                                others_of(properties),
                                event.filter,
                            )
                            row += 1
