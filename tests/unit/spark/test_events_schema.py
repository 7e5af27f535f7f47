"""The view `events` has one schema in two languages."""

from pyspark.sql.pandas.types import to_arrow_schema

from keelmq_spark.views.events import EVENTS_ARROW, spark_schema


def test_spark_makes_the_same_arrow_schema_of_it() -> None:
    assert to_arrow_schema(spark_schema(), timezone="UTC").equals(EVENTS_ARROW)
