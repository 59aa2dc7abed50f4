"""The Spark data source `waltz`: `spark.readStream.format("waltz")` and `spark.read.format("waltz")`.

The package's name makes PySpark find `DefaultSource` without registration. Options: `options`. Which rows a batch holds: `planner`,
`offsets`. Reading: `ranges`."""

from pyspark_waltz.errors import DataLost, RangeUnreadable
from pyspark_waltz.schema import METADATA_SCHEMA, SCHEMA, SCHEMA_WITH_METADATA
from pyspark_waltz.source import DefaultSource

__all__ = ["METADATA_SCHEMA", "SCHEMA", "SCHEMA_WITH_METADATA", "DataLost", "DefaultSource", "RangeUnreadable"]
