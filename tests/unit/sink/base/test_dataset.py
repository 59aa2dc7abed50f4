"""Tables that pyarrow would show other rows of than they have are refused, whichever way they say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from waltz_delta import UnreadableTable, dataset_at
from waltz_delta.base.dataset import open_dataset, unread_features
from waltz_delta.console.tables import newest_rows


def _table(directory: Path, protocol: dict[str, Any], properties: dict[str, str]) -> str:
    """A table of one row whose first commit has another protocol and other properties, as Spark would have written them."""
    path = directory / "table"
    write_deltalake(str(path), pa.table({"partition": pa.array([0], pa.int32()), "transaction_id": pa.array([0], pa.int64())}))
    commit = path / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] |= protocol
        if "metaData" in action:
            action["metaData"]["configuration"] |= properties
            schema = json.loads(action["metaData"]["schemaString"])
            for number, field in enumerate(schema["fields"], 1):
                field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"} if properties else {}
            action["metaData"]["schemaString"] = json.dumps(schema)
    actions.append({"txn": {"appId": "waltz:key:0", "version": 0}})
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))
    return str(path)


MAPPED = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
FEATURES = [
    ({"minReaderVersion": 2, "minWriterVersion": 5}, MAPPED, "columnMapping"),
    (
        {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["columnMapping"], "writerFeatures": ["columnMapping"]},
        MAPPED,
        "columnMapping",
    ),
    (
        {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]},
        {},
        "deletionVectors",
    ),
    ({"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["typeWidening"], "writerFeatures": ["typeWidening"]}, {}, "typeWidening"),
    ({"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["of2031"], "writerFeatures": ["of2031"]}, {}, "of2031"),
]


@pytest.mark.parametrize(("protocol", "properties", "named"), FEATURES)
def test_what_pyarrow_does_not_read_is_refused_by_its_name(tmp_path: Path, protocol: dict[str, Any], properties: dict[str, str], named: str) -> None:
    path = _table(tmp_path, protocol, properties)
    for read in (lambda: dataset_at(path, {0: 0}), lambda: open_dataset(path), lambda: newest_rows(path, [], {0: 0})):
        with pytest.raises(UnreadableTable) as raised:
            read()
        assert named in raised.value.reason
        assert raised.value.path == path


def test_a_table_of_the_second_protocol_without_column_mapping_is_read(tmp_path: Path) -> None:
    path = _table(tmp_path, {"minReaderVersion": 2, "minWriterVersion": 5}, {})
    assert dataset_at(path, {0: 0}).to_table().num_rows == 1


def test_features_that_change_no_rows_are_read() -> None:
    assert unread_features(3, ["timestampNtz", "vacuumProtocolCheck"], {}) == []
    assert unread_features(3, ["timestampNtz", "deletionVectors", "columnMapping"], {}) == ["columnMapping", "deletionVectors"]
