"""The Spark data source `waltz`: `spark.readStream.format("waltz")` and `spark.read.format("waltz")`.

The package's name makes PySpark find `DefaultSource` without registration. Options: `options`. Which rows a batch holds: `offsets`. Reading:
`ranges`."""

from pyspark_waltz.errors import DataLost, RangeUnreadable
from pyspark_waltz.source import SCHEMA, DefaultSource

__all__ = ["SCHEMA", "DataLost", "DefaultSource", "RangeUnreadable"]
