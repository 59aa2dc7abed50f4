"""The Spark data source `waltz`: `spark.readStream.format("waltz")` and `spark.read.format("waltz")`.

PySpark finds `DefaultSource` by the package's name, without registration. `options` holds the options, `planner` and `offsets` decide which rows a
batch holds, `ranges` reads them."""

from pyspark_waltz.errors import DataLost, DoesNotDecode, RangeUnreadable
from pyspark_waltz.schema import METADATA_SCHEMA, SCHEMA, SCHEMA_WITH_METADATA
from pyspark_waltz.source import DefaultSource

__all__ = ["METADATA_SCHEMA", "SCHEMA", "SCHEMA_WITH_METADATA", "DataLost", "DefaultSource", "DoesNotDecode", "RangeUnreadable"]
