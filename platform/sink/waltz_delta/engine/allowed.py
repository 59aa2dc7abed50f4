"""Decides which tables the Arrow engine writes: an allow list of what Delta's protocol, the table's properties and its columns may require. Pure.

`deltalake` commits files that another library wrote, and compares them with nothing. For example, it accepts files for a table with column mapping,
in which every reader then finds NULL. So whatever this module does not name is left to Spark's engine, with the reason as a sentence.

Source: Delta's PROTOCOL.md, "Table Features", and what `deltalake` 1.6 was seen to do with each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final  # Any: JSON values
from urllib.parse import urlsplit

from waltz_delta.engine.store_options import AZURE, GOOGLE, S3

__all__ = [
    "COMPRESSION",
    "COMPRESSIONS",
    "FEATURES",
    "NOT_OF_NEW",
    "PROPERTIES",
    "Protocol",
    "TableShape",
    "refusal",
    "refusal_of_created",
    "refusal_of_new",
    "refusal_of_path",
]

READER_VERSION_MAX: Final = 3
WRITER_VERSION_MAX: Final = 7
IDENTITY_VERSION: Final = 6
"""The writer version that stands for identity columns, which `deltalake` refuses even if no column is one."""

FEATURES: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",  # an append writes no change files
        "checkConstraints",  # if there is none
        "columnMapping",  # if it is off
        "generatedColumns",  # if there is none
        "invariants",  # if there is none
        "timestampNtz",
        "v2Checkpoint",  # a classic checkpoint is allowed too
    }
)

_CASES: Final = {name.lower(): name for name in FEATURES}

COMPRESSION: Final = "delta.parquet.compression.codec"
COMPRESSIONS: Final[Mapping[str, str]] = {
    "none": "none",
    "uncompressed": "none",
    "snappy": "snappy",
    "gzip": "gzip",
    "zstd": "zstd",
    "lz4_raw": "lz4",
}
"""Codecs by Delta's and Spark's names, with pyarrow's names. Spark's `lz4` and `lzo` are formats that most readers do not know."""

_LOCAL: Final = "file"
_STORES: Final = S3 | AZURE | GOOGLE
_AZURE_HOST: Final = re.compile(r"[^@]+@[a-z0-9]+\.dfs\.core\.windows\.net")
"""Container, account and the host of Azure's own service. Fabric's OneLake has another one, and answers a listing from an offset with no file
(apache/arrow-rs-object-store#695)."""
_ESCAPED: Final = re.compile("%[0-9A-Fa-f]{2}")
_UNREAD: Final = re.compile(r"[\\\x00-\x1f\x7f]")
_OF_URLS: Final = re.compile("[%#?]")

_READ_BY_DELTALAKE: Final = re.compile(r"interval \d+ ((nano|micro|milli)?second|minute|hour|day|week)s?")
_INTERVALS: Final = frozenset({"delta.deletedfileretentionduration", "delta.logretentionduration"})
"""`deltalake` cleans up the log by these. Of a value that it does not read, as `365 days`, it uses the default instead, and deletes too early."""

_CONSTRAINT: Final = "delta.constraints."
_FEATURE: Final = "delta.feature."
_OF_CLUSTERED: Final = frozenset({"clustering", "domainMetadata"})
_OFF: Final = frozenset({"false", "none"})

PROPERTIES: Final = frozenset(
    {
        "delta.appendOnly",
        "delta.checkpoint.writeStatsAsJson",
        "delta.checkpointInterval",
        "delta.dataSkippingNumIndexedCols",
        "delta.dataSkippingStatsColumns",
        "delta.deletedFileRetentionDuration",
        "delta.enableChangeDataFeed",
        "delta.enableExpiredLogCleanup",
        "delta.enableFullRetentionRollback",
        "delta.isolationLevel",
        "delta.logRetentionDuration",
        "delta.minReaderVersion",
        "delta.minWriterVersion",
        "delta.sampleRetentionDuration",
        "delta.setTransactionRetentionDuration",  # the marks of this engine have no date, so they never expire
        "delta.targetFileSize",  # of OPTIMIZE
        "delta.tuneFileSizesForRewrites",  # of OPTIMIZE and MERGE
    }
)
"""Properties that do not change how files are written, or that the engine follows."""

_FOLLOWED: Final = frozenset(name.lower() for name in PROPERTIES)

NOT_OF_NEW: Final = frozenset({COMPRESSION, "delta.enableFullRetentionRollback", "delta.sampleRetentionDuration"})
"""Properties of Delta that `deltalake` does not know when it creates a table."""

PRIMITIVE: Final = frozenset(
    {"binary", "boolean", "byte", "date", "double", "float", "integer", "long", "short", "string", "timestamp", "timestamp_ntz"}
)
PARTITION_TYPES: Final = frozenset({"boolean", "byte", "date", "integer", "long", "short", "string"})
"""Types whose values have one text as a partition value, the same for every writer."""

COLUMN_METADATA: Final = frozenset({"comment"})


@dataclass(frozen=True, slots=True)
class Protocol:
    """What the table's protocol requires of its writers. `features`: of readers and writers, empty before reader version 3 and writer version 7."""

    reader_version: int
    writer_version: int
    features: frozenset[str]


@dataclass(frozen=True, slots=True)
class TableShape:
    """Columns, layout and properties of a table. `schema`: as Delta stores it, parsed from JSON."""

    schema: Mapping[str, Any]
    partition_by: Sequence[str]
    properties: Mapping[str, str]


def refusal(protocol: Protocol, shape: TableShape) -> str | None:
    """Why the Arrow engine does not write this table; None if it does."""
    if protocol.reader_version > READER_VERSION_MAX or protocol.writer_version > WRITER_VERSION_MAX:
        return f"the table's protocol is newer than the Arrow engine: reader {protocol.reader_version}, writer {protocol.writer_version}"
    if protocol.writer_version == IDENTITY_VERSION:
        return "the table's writer version 6 stands for identity columns"
    if unknown := sorted(protocol.features - FEATURES):
        return f"the table has features that the Arrow engine does not write: {', '.join(unknown)}"
    return _refusal_of_shape(shape)


def refusal_of_path(scheme: str, directory: str) -> str | None:
    """Why the Arrow engine does not write at this place; None if it does."""
    if scheme != _LOCAL and scheme not in _STORES:
        return f"the Arrow engine does not write to {scheme}: paths"
    if scheme == _LOCAL and _ESCAPED.search(directory):
        return "deltalake reads the sign % in a path as an escape"
    if scheme == _LOCAL and _UNREAD.search(directory):
        return "deltalake does not open a path with a backslash or a control character"
    if scheme in _STORES and (sign := _OF_URLS.search(directory)):
        return f"deltalake and pyarrow would read the sign {sign[0]} in the path of an object differently"
    if scheme in _STORES and not urlsplit(directory).netloc:
        return f"the path names no bucket or container of {scheme}:"
    if scheme in AZURE and not _AZURE_HOST.fullmatch(urlsplit(directory).netloc):
        return "the Arrow engine writes on Azure only at CONTAINER@ACCOUNT.dfs.core.windows.net"
    return None


def refusal_of_created(shape: TableShape, cluster_by: Sequence[str]) -> str | None:
    """Why the Arrow engine does not write this table after Spark has created it; None if it does."""
    asked = {name[len(_FEATURE) :] for name in shape.properties if name.lower().startswith(_FEATURE)}
    features = {_CASES.get(name.lower(), name) for name in asked} | (_OF_CLUSTERED if cluster_by else frozenset())
    kept = {name: value for name, value in shape.properties.items() if not name.lower().startswith(_FEATURE)}
    return refusal(Protocol(READER_VERSION_MAX, WRITER_VERSION_MAX, frozenset(features)), replace(shape, properties=kept))


def refusal_of_new(shape: TableShape, cluster_by: Sequence[str]) -> str | None:
    """Why the Arrow engine does not create this table; None if it does."""
    if cluster_by:
        return "the Arrow engine does not create clustered tables"
    if asked := sorted(name for name in shape.properties if name.lower().startswith(_FEATURE)):
        return f"the Arrow engine does not turn on features: {', '.join(asked)}"
    if other := sorted(name for name in shape.properties if not name.lower().startswith("delta.") or name in NOT_OF_NEW):
        return f"deltalake creates no table with the property {', '.join(other)}"
    return _refusal_of_shape(shape)


def _refusal_of_shape(shape: TableShape) -> str | None:
    return _refusal_of_properties(shape.properties) or _refusal_of_columns(shape) or _refusal_of_partitions(shape)


def _refusal_of_properties(properties: Mapping[str, str]) -> str | None:
    for name, value in sorted(properties.items()):
        known = name.lower()
        if known.startswith(_CONSTRAINT):
            return f"the table has the CHECK constraint {name[len(_CONSTRAINT) :]}, which the Arrow engine does not evaluate"
        if known in _INTERVALS and not _READ_BY_DELTALAKE.fullmatch(value):
            return f"deltalake does not read the table property {name}={value}; it reads for example interval 30 days"
        if not known.startswith("delta.") or known in _FOLLOWED or value.lower() in _OFF:
            continue
        if known == COMPRESSION and value.lower() in COMPRESSIONS:
            continue
        if known == "delta.checkpointpolicy" and value.lower() == "classic":
            continue
        return f"the Arrow engine does not follow the table property {name}={value}"
    return None


def _refusal_of_columns(shape: TableShape) -> str | None:
    for field in shape.schema["fields"]:
        name = field["name"]
        if extra := sorted(set(field.get("metadata") or {}) - COLUMN_METADATA):
            return f"the column {name} has rules that the Arrow engine does not apply: {', '.join(extra)}"
        if reason := _refusal_of_type(field["type"]):
            return f"the column {name} {reason}"
    return None


def _refusal_of_type(kind: object) -> str | None:
    """What the Arrow engine does not write of a type in Delta's JSON, as the end of a sentence about its column."""
    if isinstance(kind, str):
        known = kind in PRIMITIVE or kind.startswith("decimal(")
        return None if known else f"has the type {kind}, which the Arrow engine does not write"
    if not isinstance(kind, Mapping):
        return f"has an unknown type: {kind}"
    if kind["type"] == "array":
        inner, required = [kind["elementType"]], not kind["containsNull"]
    elif kind["type"] == "map":
        inner, required = [kind["keyType"], kind["valueType"]], not kind["valueContainsNull"]
    elif kind["type"] == "struct":
        inner = [field["type"] for field in kind["fields"]]
        required = not all(field["nullable"] for field in kind["fields"])
        if extra := sorted({name for field in kind["fields"] for name in field.get("metadata") or {}} - COLUMN_METADATA):
            return f"has fields with rules that the Arrow engine does not apply: {', '.join(extra)}"
    else:
        return f"has the type {kind['type']}, which the Arrow engine does not write"
    if required:
        return "has inner values that must not be null, which the Arrow engine does not check"
    return _first(_refusal_of_type(each) for each in inner)


def _refusal_of_partitions(shape: TableShape) -> str | None:
    kinds = {field["name"].lower(): field["type"] for field in shape.schema["fields"]}
    for name in shape.partition_by:
        kind = kinds.get(name.lower())
        if kind not in PARTITION_TYPES:
            return f"the Arrow engine does not partition by {name}, which has the type {kind if isinstance(kind, str) else 'of nested values'}"
    return None


def _first(reasons: Iterable[str | None]) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)
