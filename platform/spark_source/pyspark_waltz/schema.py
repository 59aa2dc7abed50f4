"""The columns of the source, with Spark's types."""

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
"""A row for each transaction. `timestamp`: the append time of its block; `header`: the number that the application chose."""

SCHEMA_WITH_METADATA = StructType(
    [
        *SCHEMA.fields,
        StructField("client_id", IntegerType()),
        StructField("generation", IntegerType()),
        StructField("sequence", IntegerType()),
        StructField("checksum", LongType()),
    ]
)
"""With `includeMetadata`: the appending client (client id and its sequence identify an append permanently), the generation of the partition's
ownership, and the CRC-32 of the data, which equals SQL's `crc32(data)`."""

TOPIC_FIELDS = (StructField("topic", StringType()), StructField("key", BinaryType()))
"""With `topic` or `topicPattern`: the topic's name, and the key, which is null in a topic without keys. `data` is then the value, empty for a
tombstone."""

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
"""With `mode=metadata`: a row for each partition. The first retained transaction and the last committed one (one less than the first if there is
none), the owner's address, its generation and store session, and the addresses of the storage nodes that hold it. For a partition without an owner
only the replicas are known."""


def schema_of(*, include_metadata: bool, by_topic: bool) -> StructType:
    """The schema of transactions."""
    plain = SCHEMA_WITH_METADATA if include_metadata else SCHEMA
    return StructType([*plain.fields, *TOPIC_FIELDS]) if by_topic else plain
