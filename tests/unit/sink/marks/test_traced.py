"""Which version of a table holds one transaction: compared with the table that was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.sink.marks.test_positions import KEY, Table
from waltz_delta.errors import NotADeltaTable
from waltz_delta.marks.traced import table_version
from waltz_log.client.inspection.transaction_trace import TableVersion
from waltz_log.errors import InvalidRequest


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def test_the_first_version_that_holds_the_transaction_is_found(table: Table) -> None:
    versions = {last: table.land({0: last}) for last in (4, 9, 12)}
    for last, version in versions.items():
        assert table_version(table.path, 0, last, KEY) == TableVersion(table.path, version, exact=True, mark=None)
    assert table_version(table.path, 0, 5, KEY).version == versions[9]
    assert table_version(table.path, 0, 13, KEY) == TableVersion(table.path, None, exact=True, mark=12)


def test_where_older_versions_were_cleaned_up_the_oldest_is_named_and_not_claimed(table: Table) -> None:
    for last in (4, 9, 12):
        table.land({0: last})
    table.clean_before(2)
    assert table_version(table.path, 0, 3, KEY) == TableVersion(table.path, 2, exact=False, mark=None)


def test_no_table_another_partition_and_another_cluster_are_distinguished(table: Table, tmp_path: Path) -> None:
    table.land({0: 4})
    with pytest.raises(NotADeltaTable):
        table_version(str(tmp_path / "nothing"), 0, 0, KEY)
    with pytest.raises(InvalidRequest, match="holds nothing of this log partition"):
        table_version(table.path, 1, 0, KEY)
    other = "00000000-0000-4000-8000-000000000000"
    assert table_version(table.path, 0, 0, other) == TableVersion(table.path, None, exact=True, mark=-1)
