"""The columns of the source, as Spark names them."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

__all__ = ["METADATA_SCHEMA", "SCHEMA", "SCHEMA_WITH_METADATA", "TOPIC_FIELDS", "schema_of"]

SCHEMA = StructType(
    [
        StructField("partition", IntegerType()),
        StructField("transaction_id", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("header", IntegerType()),
        StructField("data", BinaryType()),
    ]
)
"""A row for each transaction. `timestamp`: when its block was appended; `header`: the application's own number."""

SCHEMA_WITH_METADATA = StructType(
    [
        *SCHEMA.fields,
        StructField("client_id", IntegerType()),
        StructField("generation", IntegerType()),
        StructField("sequence", IntegerType()),
        StructField("checksum", LongType()),
    ]
)
"""With `includeMetadata`: who appended it (client id and its sequence name an append for ever), under which generation of the partition's ownership,
and the CRC-32 of the data, which is what SQL's `crc32(data)` gives."""

TOPIC_FIELDS = (StructField("topic", StringType()), StructField("key", BinaryType()))
"""With `topic` or `topicPattern`: the topic's name, and the key, which is null in a topic without keys. `data` is the value then, empty where the key
ends."""

METADATA_SCHEMA = StructType(
    [
        StructField("partition", IntegerType()),
        StructField("first_transaction_id", LongType()),
        StructField("high_water_mark", LongType()),
        StructField("owner", StringType()),
        StructField("generation", IntegerType()),
        StructField("session", LongType()),
        StructField("replicas", ArrayType(StringType())),
    ]
)
"""With `mode=metadata`: a row for each partition. The first retained transaction and the last committed one (one less than the first where there is
none), the owner's address, its generation and store session, and the addresses of the storage nodes that hold it. Of a partition that nobody owns
just now only the replicas are known."""


def schema_of(*, include_metadata: bool, by_topic: bool) -> StructType:
    """Of transactions."""
    plain = SCHEMA_WITH_METADATA if include_metadata else SCHEMA
    return StructType([*plain.fields, *TOPIC_FIELDS]) if by_topic else plain
